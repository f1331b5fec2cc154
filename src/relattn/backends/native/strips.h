/* A tile's rows between products: relative terms, masks and dropout on scores, and probabilities by label, in strips.

   `attention.c` says what a strip is. */

#ifndef RELATTN_STRIPS_H
#define RELATTN_STRIPS_H

#include "rows.h"

typedef struct {     /* where a task works */
    idx b, h;        /* sequence, head */
    idx first, rows; /* queries */
    idx key, keys;   /* the tile's keys */
    idx vecs;        /* vectors that hold them */
    run labels;      /* of the strips: those that the queries reach */
    int repeats;     /* several keys of a query may have one label */
} place;

INLINE idx margin_of(const arguments *a) { return a->keys < KEYS ? up(a->keys, PADDING) : KEYS; }

/* The most labels that so many queries reach, from where KEYS of them begin; by relations all. */
INLINE idx most_labels(const arguments *a, idx queries) {
    const idx most = a->keys + up(queries, ROWS) + KEYS;
    return a->relations.data || a->labels < most ? a->labels : most;
}

INLINE idx strip_width(const arguments *a) { return up(most_labels(a, ROWS), PADDING) + 2 * margin_of(a); }

/* As much of a strip as is used. */
INLINE idx used_of(const arguments *a, const place *at) { return up(at->labels.count, PADDING) + 2 * margin_of(a); }

INLINE idx valid_keys(const arguments *a, idx b) {
    return a->key_lengths ? clamped(a->key_lengths[b], 0, a->keys) : a->keys;
}

/* Queries from `first` on that are not padding, at most `count`. */
INLINE idx live_rows(const arguments *a, idx b, idx first, idx count) {
    return a->query_lengths ? clamped(a->query_lengths[b] - first, 0, count) : count;
}

/* The position of a query on the key axis. */
INLINE idx position_of(const arguments *a, idx b, idx row) {
    return (a->query_offsets ? a->query_offsets[b] : a->query_offset) + row;
}

/* Keys that `live` queries from a position on may attend to: the first so many. */
INLINE idx visible_keys(const arguments *a, idx b, idx position, idx live) {
    const idx valid = live > 0 ? valid_keys(a, b) : 0;
    return a->is_causal ? clamped(position + live, 0, valid) : valid;
}

/* The labels that queries from a position on take with the keys before `visible`, by relations all. */
INLINE run reached(const arguments *a, idx position, idx queries, idx visible) {
    if (a->relations.data) return (run){0, a->labels};
    const idx first = clamped(a->left - (position + queries - 1), 0, a->labels - 1);
    return (run){first, clamped(a->left + visible - position, first + 1, a->labels) - first};
}

/* Whether several keys of one of these queries may have the same label: by relations, or past an edge. */
INLINE int repeats(const arguments *a, idx position, idx visible) {
    if (a->relations.data) return 1;
    return a->clips && (position + ROWS - 1 > a->left || a->left + visible - position > a->labels);
}

/* Whether that may be so of any. */
INLINE int may_repeat(const arguments *a) {
    const idx last = a->query_offset + up(a->queries, ROWS) - ROWS;
    return (a->clips && a->query_offsets) || repeats(a, last, 0) || repeats(a, a->query_offset, a->keys);
}

/* Those of ROWS queries, from one on where KEYS labels begin that are turned together in a table that holds `held`. */
INLINE run reached_by_rows(const arguments *a, idx position, idx visible, run held) {
    const run labels = reached(a, position, ROWS, visible);
    const idx back = (labels.first - held.first) % KEYS;
    return (run){labels.first - back, labels.count + back};
}

/* Where in a strip the run of the tile's keys starts. */
INLINE idx run_of(const arguments *a, const place *at, idx position) {
    const idx margin = margin_of(a);
    return clamped(at->key - position + a->left - at->labels.first + margin, 0, at->labels.count + margin);
}

/* A pair's label; -1, no term, where it is out of range. */
INLINE idx label_at(const arguments *a, idx i) {
    int64_t label;
    switch (a->relations_size) {
        case 1: label = ((const int8_t *)a->relations.data)[i]; break;
        case 2: label = ((const int16_t *)a->relations.data)[i]; break;
        case 4: label = ((const int32_t *)a->relations.data)[i]; break;
        default: label = ((const int64_t *)a->relations.data)[i];
    }
    return label >= 0 && label < a->labels ? label : -1;
}

INLINE idx pair_at(const array *x, const place *at, idx r) {
    return at->b * x->batch + at->h * x->head + (at->first + r) * x->row + at->key;
}

/* What the queries bring to the relative terms. */
INLINE rows rel_query_of(const arguments *a, const place *at, idx live, rows query, real *space) {
    return a->rel_query.data ? rows_of(a, &a->rel_query, at->b, at->h, at->first, live, a->rel_dim, space) : query;
}

/* One number per label for each row, rows times table, into strips; labels one by one where no products make them. */
static void by_label(const arguments *a, real *strips, rows x, idx count, idx dim, const table *t, const place *at) {
    const idx width = strip_width(a), deep = up(dim, PADDING), skipped = at->labels.first - t->labels.first;
    const idx labels = at->labels.count, products = t->turned ? in_products(labels) : 0;
    real *strip = strips + margin_of(a);
    for (idx l = 0; l < products; l += KEYS)
        product(strip + l, width, x.data, x.row, 1, t->turned + (skipped + l) * deep, KEYS, count,
                up(lot(l, products), LANES), dim, 0);
    for (idx r = 0; r < count; r++)
        for (idx l = products; l < labels; l++) {
            const real *row = t->rows.data + (skipped + l) * t->rows.row;
            vec sum = splat(0);
            for (idx i = 0; i < deep; i += LANES) sum += AT(x.data + r * x.row + i) * AT(row + i);
            strip[r * width + l] = sum_of(sum);
        }
}

/* Scores by label to strips: edges repeated on both sides, or zeros; the slot before label 0 is zero for relations. */
INLINE void extend(const arguments *a, real *strips, idx count, const place *at) {
    const idx width = strip_width(a), margin = margin_of(a);
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + at->labels.count;
        const vec before = splat(a->clips ? labels[0] : 0), after = splat(a->clips ? end[-1] : 0);
        for (idx i = 0; i < margin; i += LANES) AT(strip + i) = before;
        for (idx i = 0; i < margin; i += LANES) AT(end + i) = after;
    }
}

/* The relative terms of a row's keys, from its strip. */
INLINE const real *terms_of(const arguments *a, const place *at, idx r, const real *strip, idx position, real *space) {
    if (!a->relations.data) return strip + run_of(a, at, position);
    const idx start = pair_at(&a->relations, at, r);
    for (idx j = 0; j < at->keys; j++) space[j] = strip[margin_of(a) + label_at(a, start + j)];
    for (idx j = at->keys; j < at->vecs * LANES; j++) space[j] = 0;
    return space;
}

/* Adds a row's relative terms to its scores and scales both; -inf where it may not look. Whether it looks anywhere. */
INLINE int complete(const arguments *a, const place *at, idx r, idx position, real *scores, const real *terms) {
    idx allowed = at->keys;
    if (a->is_causal) allowed = clamped(position + 1 - at->key, 0, allowed);
    for (idx v = 0; v < at->vecs; v++)
        AT(scores + v * LANES) = (AT(scores + v * LANES) + (terms ? AT(terms + v * LANES) : splat(0))) * a->scale;
    for (idx v = allowed / LANES; v < at->vecs; v++)
        AT(scores + v * LANES) =
            pick(lanes_from((integer)(v * LANES)) < (integer)allowed, AT(scores + v * LANES), splat(-INFINITY));
    if (!a->mask.data) return allowed > 0;
    const uint8_t *mask = (const uint8_t *)a->mask.data + pair_at(&a->mask, at, r);
    int any = 0;
    for (idx j = 0; j < allowed; j++) {
        scores[j] = mask[j] ? scores[j] : -INFINITY;
        any |= mask[j];
    }
    return any;
}

/* ---- dropout: a counter-based generator, so that backward draws the same numbers ---- */

enum { DRAWS = 1 << 24 };
typedef uint32_t draws __attribute__((vector_size(4 * LANES)));
typedef int32_t signed_draws __attribute__((vector_size(4 * LANES)));

INLINE int drops(const arguments *a) { return a->keep_threshold < DRAWS; }

/* The number of a row: splitmix64 (Steele, Lea and Flood 2014) of the seed and the row. */
INLINE uint32_t row_number(const arguments *a, const place *at, idx r) {
    const uint64_t row = ((uint64_t)at->b * a->heads + at->h) * a->queries + at->first + r;
    uint64_t x = a->seed + (row + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(x ^ (x >> 31));
}

/* Which of LANES keys from `key` on a row keeps: a mixed counter (Wellons 2018, "lowbias32") against the threshold. */
INLINE ivec is_kept(const arguments *a, uint32_t number, idx key) {
    draws x = (__builtin_convertvector(lanes_from((integer)key), draws) + 1) * 0x9E3779B9u ^ number;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return __builtin_convertvector((signed_draws)(x >> 8) < (int32_t)a->keep_threshold, ivec);
}

/* ---- masses: sums by label of probabilities, or of the scores' gradients ---- */

INLINE void clear(const arguments *a, real *strips, idx count, const place *at) {
    for (idx r = 0; r < count; r++) memset(strips + r * strip_width(a), 0, sizeof(real) * used_of(a, at));
}

/* Adds a row of numbers to the row's strip, each at its label or on an edge's repetitions. */
INLINE void onto_labels(const arguments *a, const place *at, idx r, idx position, const real *numbers, real *strip) {
    if (a->relations.data) {
        const idx start = pair_at(&a->relations, at, r);
        for (idx j = 0; j < at->keys; j++) strip[margin_of(a) + label_at(a, start + j)] += numbers[j];
    } else {
        real *run = strip + run_of(a, at, position);
        for (idx v = 0; v < at->vecs; v++) AT(run + v * LANES) += AT(numbers + v * LANES);
    }
}

/* The edges' repetitions added onto the edges: the gradient of `extend`. */
INLINE void collapse(const arguments *a, real *strips, idx count, const place *at) {
    if (!a->clips) return;
    const idx width = strip_width(a), margin = margin_of(a);
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + at->labels.count;
        vec before = splat(0), after = splat(0);
        for (idx i = 0; i < margin; i += LANES) before += AT(strip + i);
        for (idx i = 0; i < margin; i += LANES) after += AT(end + i);
        labels[0] += sum_of(before);
        end[-1] += sum_of(after);
    }
}

/* Makes dS add up to nothing over a row's labels, as it does but for rounding in delta. Spread over many keys that
   error averages out; on an edge's label, which has most of the keys, it would not. */
INLINE void level(const arguments *a, real *ds_masses, const real *masses, idx count, const place *at) {
    const idx width = strip_width(a), used = used_of(a, at);
    for (idx r = 0; r < count; r++, ds_masses += width, masses += width) {
        vec excess = splat(0), mass = splat(0);
        for (idx i = 0; i < used; i += LANES) excess += AT(ds_masses + i), mass += AT(masses + i);
        const real total = sum_of(mass), share = total > 0 ? sum_of(excess) / total : 0;
        for (idx i = 0; i < used; i += LANES) AT(ds_masses + i) -= share * AT(masses + i);
    }
}

#endif
