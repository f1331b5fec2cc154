/* The term of `pos_query`, aQ_ij . k_j. Each key has a strip of scores for the labels that the queries of a task reach.

   These strips mirror the strips of rows in `strips.h`. The label decreases by one from query to query, so the terms of
   the QUERIES queries of a tile are a contiguous slice of a key's strip, in reverse order. They are transposed into the
   tile in small blocks. */

#ifndef RELATTN_KEY_STRIPS_H
#define RELATTN_KEY_STRIPS_H

#include "strips.h"

typedef struct {
    real *terms, *label_sums; /* (keys, width): scores by label, and sums of dS */
    table table;
    range keys;                /* the keys that have strips */
    idx position, num_queries; /* the first position and the number of the task's queries */
} key_strips;

INLINE idx key_strip_width(const arguments *a) {
    const idx num_queries = a->queries < TASK_QUERIES ? round_up(a->queries, QUERIES) : TASK_QUERIES,
              max_labels = num_queries + 2 * KEYS;
    return round_up(a->relations.data || a->labels < max_labels ? a->labels : max_labels, PADDING) + 2 * QUERIES;
}

/* Return the labels of KEYS keys with the queries of the task. The range starts at a multiple of KEYS labels after the
   first loaded label. */
INLINE range key_tile_labels(const arguments *a, const key_strips *s, idx key) {
    if (a->relations.data) return (range){0, a->labels};
    const range loaded = s->table.labels;
    const idx first =
        clamp(a->left + key - (s->position + s->num_queries - 1), loaded.first, loaded.first + loaded.count - 1);
    const idx end = clamp(a->left + key + KEYS - s->position, first + 1, loaded.first + loaded.count);
    const idx extra = (first - loaded.first) % KEYS;
    return (range){first - extra, end - first + extra};
}

/* Return the labels that the strips of keys need from a key on. */
INLINE row_labels labels_of_keys(const arguments *a, const key_strips *s, idx key) {
    if (a->relations.data) return (row_labels){0, a->labels, 0};
    return (row_labels){a->left + key - (s->position + s->num_queries - 1), s->num_queries, 1};
}

/* Return where the slice of a tile begins in the strip of a key: at the label of the tile's last row. */
INLINE idx key_strip_offset(const arguments *a, range labels, idx position, idx key) {
    return clamp(a->left + key - (position + QUERIES - 1) - labels.first + QUERIES, 0, labels.count + QUERIES);
}

/* Compute the strips of some keys. The rows of the table for the labels of the task must be loaded. */
static void fill_key_strips(const arguments *a, key_strips *s, idx b, idx kv, range keys, idx position, idx num_queries,
                            real *scratch) {
    const idx width = key_strip_width(a);
    s->keys = keys;
    s->position = position;
    s->num_queries = num_queries;
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx count = tile_len(j, keys.count);
        const range labels = key_tile_labels(a, s, keys.first + j);
        compute_label_scores(s->terms + j * width, width, QUERIES,
                             load_rows_once(a, &a->key, b, kv, keys.first + j, count, a->dim, scratch), count, a->dim,
                             &s->table, labels, labels_of_keys(a, s, keys.first + j));
        fill_margins(a->clips, s->terms + j * width, width, QUERIES, count, labels);
        for (idx r = j; r < j + count && s->label_sums; r++)
            memset(s->label_sums + r * width, 0, sizeof(real) * (labels.count + 2 * QUERIES));
    }
}

/* Copy the terms of a tile (QUERIES, KEYS) from the strips to `values`, or add `values` to the label sums of the keys. */
INLINE void transfer_key_terms(const arguments *a, const key_strips *s, const tile_info *tile, idx num_rows,
                               idx position, real *values, const int accumulate) {
    const idx width = key_strip_width(a), first_strip = tile->first_key - s->keys.first;
    real *strips = (accumulate ? s->label_sums : s->terms) + first_strip * width;
    if (a->relations.data) {
        for (idx r = 0; r < num_rows; r++) {
            const idx first_pair = pair_offset(&a->relations, tile, r);
            for (idx j = 0; j < tile->num_keys; j++) {
                real *entry = strips + j * width + QUERIES + relation_label(a, first_pair + j);
                if (accumulate) *entry += values[r * KEYS + j];
                else values[r * KEYS + j] = *entry;
            }
        }
        return;
    }
    const range labels = key_tile_labels(a, s, tile->first_key);
    const idx first = key_strip_offset(a, labels, position, tile->first_key),
              last = key_strip_offset(a, labels, position, tile->first_key + tile->num_keys - 1);
    if (last == 0 || first == labels.count + QUERIES) { /* all pairs are beyond an edge: a key has one term */
        real terms[KEYS];
        for (idx j = 0; j < tile->num_keys && !accumulate; j++) terms[j] = strips[j * width + first];
        for (idx v = 0; v < tile->num_vecs; v++) {
            vec sum = splat(0);
            for (idx r = 0; r < num_rows; r++)
                if (accumulate) sum += VEC(values + r * KEYS + v * LANES);
                else VEC(values + r * KEYS + v * LANES) = VEC(terms + v * LANES);
            if (accumulate) VEC(terms + v * LANES) = sum;
        }
        for (idx j = 0; j < tile->num_keys && accumulate; j++) strips[j * width + first] += terms[j];
        return;
    }
    for (idx j = 0; j < tile->num_keys; j += TRANSPOSE_BLOCK) {
        const idx num_keys = tile->num_keys - j < TRANSPOSE_BLOCK ? tile->num_keys - j : TRANSPOSE_BLOCK;
        real *slices[TRANSPOSE_BLOCK];
        for (idx i = 0; i < TRANSPOSE_BLOCK; i++) {
            const idx key = i < num_keys ? j + i : j;
            slices[i] = strips + key * width + key_strip_offset(a, labels, position, tile->first_key + key) + QUERIES -
                        TRANSPOSE_BLOCK;
        }
        for (idx r = 0; r < num_rows; r += TRANSPOSE_BLOCK) {
            real block[TRANSPOSE_BLOCK * TRANSPOSE_BLOCK], *block_rows = values + (r + TRANSPOSE_BLOCK - 1) * KEYS + j;
            if (accumulate) {
                transpose_block(block, TRANSPOSE_BLOCK, block_rows, -KEYS);
                for (idx i = 0; i < num_keys; i++)
                    for (idx l = 0; l < TRANSPOSE_BLOCK; l++) slices[i][l - r] += block[i * TRANSPOSE_BLOCK + l];
            } else {
                for (idx i = 0; i < TRANSPOSE_BLOCK; i++)
                    memcpy(block + i * TRANSPOSE_BLOCK, slices[i] - r, sizeof(real) * TRANSPOSE_BLOCK);
                transpose_block(block_rows, -KEYS, block, TRANSPOSE_BLOCK);
            }
        }
    }
}

INLINE void load_key_terms(const arguments *a, const key_strips *s, const tile_info *tile, idx num_rows, idx position,
                           real *values) {
    transfer_key_terms(a, s, tile, num_rows, position, values, 0);
}

/* Add the values of a tile to the label sums of its keys. Rows from `num_rows` on are set to zero first. */
INLINE void add_key_sums(const arguments *a, const key_strips *s, const tile_info *tile, idx num_rows, idx position,
                         real *values) {
    memset(values + num_rows * KEYS, 0, sizeof(real) * KEYS * (round_up(num_rows, TRANSPOSE_BLOCK) - num_rows));
    transfer_key_terms(a, s, tile, num_rows, position, values, 1);
}

/* Compute the terms of a tile without strips. This is faster for a few queries. */
static void direct_key_terms(const arguments *a, const table *t, const tile_info *tile, idx num_rows, idx position,
                             matrix keys, real *values) {
    const idx padded_dim = round_up(a->dim, PADDING);
    for (idx r = 0; r < num_rows; r++)
        for (idx j = 0; j < tile->num_keys; j++) {
            idx label = a->left + tile->first_key + j - (position + r);
            if (a->relations.data) label = relation_label(a, pair_offset(&a->relations, tile, r) + j);
            else if (a->clips) label = clamp(label, 0, a->labels - 1);
            else if (label >= a->labels) label = -1;
            vec sum = splat(0);
            const real *row = table_rows(t, label).data;
            for (idx i = 0; i < padded_dim && label >= 0; i += LANES)
                sum += VEC(row + i) * VEC(keys.data + j * keys.row_stride + i);
            values[r * KEYS + j] = reduce_sum(sum);
        }
}

/* Add the products of the label sums to the gradients of the keys and of the table. */
static void add_key_gradients(const arguments *a, const key_strips *s, idx b, idx kv, matrix d_keys, real *d_table,
                              real *scratch) {
    const idx width = key_strip_width(a), padded_dim = round_up(a->dim, PADDING);
    for (idx j = 0; j < s->keys.count; j += KEYS) {
        const idx count = tile_len(j, s->keys.count), key = s->keys.first + j;
        const range labels = key_tile_labels(a, s, key);
        real *label_sums = s->label_sums + j * width;
        fold_margins(a->clips, label_sums, width, QUERIES, count, labels);
        const matrix table = table_rows(&s->table, labels.first);
        const matrix keys = load_rows_once(a, &a->key, b, kv, key, count, a->dim, scratch);
        const matrix d_rows = {d_keys.data + key * d_keys.row_stride, d_keys.row_stride};
        const row_labels rows = labels_of_keys(a, s, key);
        multiply_label_sums(d_rows, label_sums + QUERIES, width, table, count, padded_dim, labels, rows, 1);
        add_table_gradients(d_table + labels.first * padded_dim, label_sums + QUERIES, width, keys, count, padded_dim,
                            labels, rows);
    }
}

#endif
