/* The term of `pos_query`, aQ_ij . k_j: a strip of scores per key, for the labels that the queries of a task reach.

   It mirrors the strips of rows in `strips.h`. The next query has the label before, so the terms of the ROWS queries of
   a tile are one contiguous run of a key's strip, in reverse. Small squares of them are transposed into the tile. */

#ifndef RELATTN_KEY_STRIPS_H
#define RELATTN_KEY_STRIPS_H

#include "strips.h"

typedef struct {
    real *terms, *masses; /* (keys, width): scores by label, and sums of dS */
    table table;
    run keys;             /* those that have strips */
    idx position, rows;   /* of the task's queries */
} key_strips;

INLINE idx key_strip_width(const arguments *a) {
    const idx rows = a->queries < TASK_ROWS ? up(a->queries, ROWS) : TASK_ROWS, most = rows + 2 * KEYS;
    return up(a->relations.data || a->labels < most ? a->labels : most, PADDING) + 2 * ROWS;
}

/* The labels of KEYS keys with the queries of the task, from a multiple of KEYS labels after the first loaded one. */
INLINE run labels_of_keys(const arguments *a, const key_strips *s, idx key) {
    if (a->relations.data) return (run){0, a->labels};
    const run loaded = s->table.labels;
    const idx first = clamped(a->left + key - (s->position + s->rows - 1), loaded.first, loaded.first + loaded.count - 1);
    const idx end = clamped(a->left + key + KEYS - s->position, first + 1, loaded.first + loaded.count);
    const idx back = (first - loaded.first) % KEYS;
    return (run){first - back, end - first + back};
}

/* Where the run of a key begins in its strip: the label of the last row of a tile. */
INLINE idx run_of_key(const arguments *a, run labels, idx position, idx key) {
    return clamped(a->left + key - (position + ROWS - 1) - labels.first + ROWS, 0, labels.count + ROWS);
}

/* Compute the strips of some keys. The table's rows for the labels of the task are loaded. */
static void fill_key_strips(const arguments *a, key_strips *s, idx b, idx kv, run keys, idx position, idx rows,
                            real *space) {
    const idx width = key_strip_width(a);
    s->keys = keys;
    s->position = position;
    s->rows = rows;
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx count = tile_len(j, keys.count);
        const run labels = labels_of_keys(a, s, keys.first + j);
        by_label(s->terms + j * width, width, ROWS, rows_once(a, &a->key, b, kv, keys.first + j, count, a->dim, space),
                 count, a->dim, &s->table, labels);
        fill_margins(a->clips, s->terms + j * width, width, ROWS, count, labels);
    }
    if (s->masses) memset(s->masses, 0, sizeof(real) * keys.count * width);
}

/* Write the terms of a tile, (ROWS, KEYS), or add the numbers of a tile to the masses of its keys. */
INLINE void move_tile(const arguments *a, const key_strips *s, const place *at, idx live, idx position, real *tile,
                      const int adds) {
    const idx width = key_strip_width(a), first = at->key - s->keys.first;
    real *strips = (adds ? s->masses : s->terms) + first * width;
    if (a->relations.data) {
        for (idx r = 0; r < live; r++) {
            const idx start = pair_at(&a->relations, at, r);
            for (idx j = 0; j < at->keys; j++) {
                real *number = strips + j * width + ROWS + label_at(a, start + j);
                if (adds) *number += tile[r * KEYS + j];
                else tile[r * KEYS + j] = *number;
            }
        }
        return;
    }
    const run labels = labels_of_keys(a, s, at->key);
    for (idx j = 0; j < at->keys; j += SQUARE) {
        const idx some = at->keys - j < SQUARE ? at->keys - j : SQUARE;
        real *runs[SQUARE];
        for (idx i = 0; i < SQUARE; i++) {
            const idx key = i < some ? j + i : j;
            runs[i] = strips + key * width + run_of_key(a, labels, position, at->key + key) + ROWS - SQUARE;
        }
        for (idx r = 0; r < live; r += SQUARE) {
            real from[SQUARE * SQUARE], *rows = tile + (r + SQUARE - 1) * KEYS + j;
            if (adds) {
                transpose_square(from, SQUARE, rows, -KEYS);
                for (idx i = 0; i < some; i++)
                    for (idx l = 0; l < SQUARE; l++) runs[i][l - r] += from[i * SQUARE + l];
            } else {
                for (idx i = 0; i < SQUARE; i++) memcpy(from + i * SQUARE, runs[i] - r, sizeof(real) * SQUARE);
                transpose_square(rows, -KEYS, from, SQUARE);
            }
        }
    }
}

INLINE void terms_of_tile(const arguments *a, const key_strips *s, const place *at, idx live, idx position, real *tile) {
    move_tile(a, s, at, live, position, tile, 0);
}

/* Numbers of rows from `live` on are set to zero first. */
INLINE void add_tile(const arguments *a, const key_strips *s, const place *at, idx live, idx position, real *tile) {
    memset(tile + live * KEYS, 0, sizeof(real) * KEYS * (up(live, SQUARE) - live));
    move_tile(a, s, at, live, position, tile, 1);
}

/* Write the terms of a tile of a few queries, without strips. */
static void few_terms(const arguments *a, const table *t, const place *at, idx live, idx position, rows keys,
                      real *tile) {
    const idx padded = up(a->dim, PADDING);
    for (idx r = 0; r < live; r++)
        for (idx j = 0; j < at->keys; j++) {
            idx label = a->left + at->key + j - (position + r);
            if (a->relations.data) label = label_at(a, pair_at(&a->relations, at, r) + j);
            else if (a->clips) label = clamped(label, 0, a->labels - 1);
            else if (label >= a->labels) label = -1;
            vec sum = splat(0);
            const real *row = rows_at(t, label).data;
            for (idx i = 0; i < padded && label >= 0; i += LANES) sum += AT(row + i) * AT(keys.data + j * keys.row + i);
            tile[r * KEYS + j] = sum_of(sum);
        }
}

/* Add what the masses give to the gradients of the keys and of the table. */
static void add_key_gradients(const arguments *a, const key_strips *s, idx b, idx kv, rows d_keys, real *d_table,
                              real *space) {
    const idx width = key_strip_width(a), padded = up(a->dim, PADDING);
    for (idx j = 0; j < s->keys.count; j += KEYS) {
        const idx count = tile_len(j, s->keys.count), key = s->keys.first + j;
        const run labels = labels_of_keys(a, s, key);
        real *masses = s->masses + j * width;
        fold_margins(a->clips, masses, width, ROWS, count, labels);
        const rows table = rows_at(&s->table, labels.first);
        const rows keys = rows_once(a, &a->key, b, kv, key, count, a->dim, space);
        product(d_keys.data + key * d_keys.row, d_keys.row, masses + ROWS, width, 1, table.data, table.row, PANEL,
                count, padded, labels.count, 1);
        product(d_table + labels.first * padded, padded, masses + ROWS, 1, width, keys.data, keys.row, PANEL,
                labels.count, padded, count, 1);
    }
}

#endif
