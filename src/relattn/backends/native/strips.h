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
} place;

INLINE idx margin_of(const arguments *a) { return a->keys < KEYS ? up(a->keys, PADDING) : KEYS; }
INLINE idx strip_width(const arguments *a) { return up(a->labels, PADDING) + 2 * margin_of(a); }
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

/* Where in a strip the run of the tile's keys starts. */
INLINE idx run_of(const arguments *a, idx key, idx position) {
    return clamped(key - position + a->left + margin_of(a), 0, a->labels + margin_of(a));
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

/* One number per label for each row, rows times table, into strips. With 2k + 1 labels there is often one more than
   fills whole vectors; that one is made alone. */
static void by_label(const arguments *a, real *strips, rows x, idx count, idx dim, const real *table,
                     const real *turned, real scale) {
    const idx width = strip_width(a), deep = up(dim, PADDING), last = a->labels - 1, alone = last % LANES == 0;
    real *labels = strips + margin_of(a);
    product(labels, width, x.data, x.row, 1, turned, up(a->labels, PADDING), count, up(a->labels - alone, LANES), dim,
            0);
    for (idx r = 0; r < count && alone; r++) {
        vec sum = splat(0);
        for (idx i = 0; i < deep; i += LANES) sum += AT(x.data + r * x.row + i) * AT(table + last * deep + i);
        labels[r * width + last] = sum_of(sum) * scale;
    }
}

/* Scores by label to strips: edges repeated on both sides, or zeros; the slot before label 0 is zero for relations. */
INLINE void extend(const arguments *a, real *strips, idx count) {
    const idx width = strip_width(a), margin = margin_of(a);
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + a->labels;
        const vec before = splat(a->clips ? labels[0] : 0), after = splat(a->clips ? end[-1] : 0);
        for (idx i = 0; i < margin; i += LANES) AT(strip + i) = before;
        for (idx i = 0; i < margin; i += LANES) AT(end + i) = after;
    }
}

/* The relative terms of a row's keys, from its strip. */
INLINE const real *terms_of(const arguments *a, const place *at, idx r, const real *strip, idx position, real *space) {
    if (!a->relations.data) return strip + run_of(a, at->key, position);
    const idx start = pair_at(&a->relations, at, r);
    for (idx j = 0; j < at->keys; j++) space[j] = strip[margin_of(a) + label_at(a, start + j)];
    for (idx j = at->keys; j < at->vecs * LANES; j++) space[j] = 0;
    return space;
}

/* Scales a row of scores and adds its relative terms; -inf where the row may not look. Whether it may look anywhere. */
INLINE int complete(const arguments *a, const place *at, idx r, idx position, real *scores, const real *terms) {
    idx allowed = at->keys;
    if (a->is_causal) allowed = clamped(position + 1 - at->key, 0, allowed);
    for (idx v = 0; v < at->vecs; v++)
        AT(scores + v * LANES) = AT(scores + v * LANES) * a->scale + (terms ? AT(terms + v * LANES) : splat(0));
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

/* Adds a row of numbers to the row's strip, each at its label or on an edge's repetitions. */
INLINE void onto_labels(const arguments *a, const place *at, idx r, idx position, const real *numbers, real *strip) {
    if (a->relations.data) {
        const idx start = pair_at(&a->relations, at, r);
        for (idx j = 0; j < at->keys; j++) strip[margin_of(a) + label_at(a, start + j)] += numbers[j];
    } else {
        real *run = strip + run_of(a, at->key, position);
        for (idx v = 0; v < at->vecs; v++) AT(run + v * LANES) += AT(numbers + v * LANES);
    }
}

/* The edges' repetitions added onto the edges: the gradient of `extend`. */
INLINE void collapse(const arguments *a, real *strips, idx count) {
    if (!a->clips) return;
    const idx width = strip_width(a), margin = margin_of(a);
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + a->labels;
        vec before = splat(0), after = splat(0);
        for (idx i = 0; i < margin; i += LANES) before += AT(strip + i);
        for (idx i = 0; i < margin; i += LANES) after += AT(end + i);
        labels[0] += sum_of(before);
        end[-1] += sum_of(after);
    }
}

/* Makes dS add up to nothing over a row's labels, as it does but for rounding in delta. Spread over many keys that
   error averages out; on an edge's label, which has most of the keys, it would not. */
INLINE void level(const arguments *a, real *ds_masses, const real *masses, idx count) {
    const idx width = strip_width(a);
    for (idx r = 0; r < count; r++, ds_masses += width, masses += width) {
        vec excess = splat(0), mass = splat(0);
        for (idx i = 0; i < width; i += LANES) excess += AT(ds_masses + i), mass += AT(masses + i);
        const real total = sum_of(mass), share = total > 0 ? sum_of(excess) / total : 0;
        for (idx i = 0; i < width; i += LANES) AT(ds_masses + i) -= share * AT(masses + i);
    }
}

#endif
