/* A tile's rows between products: relative terms and masks onto scores, dropout, masses back onto labels, by strips.

   What a strip is, `attention.c` says. */

#ifndef RELATTN_STRIPS_H
#define RELATTN_STRIPS_H

#include "rows.h"

typedef struct {     /* where a task works */
    idx b, h;        /* sequence, head */
    idx first, rows; /* queries */
    idx key, keys;   /* the tile's keys */
    idx vecs;        /* vectors that hold them */
} place;

INLINE idx margin_of(const call *c) { return c->keys < KEYS ? up(c->keys, PADDING) : KEYS; }
INLINE idx strip_width(const call *c) { return up(c->labels, PADDING) + 2 * margin_of(c); }
INLINE idx valid_keys(const call *c, idx b) { return c->lengths ? clamped(c->lengths[b], 0, c->keys) : c->keys; }

/* Where in a strip the run of the tile's keys starts. */
INLINE idx run_of(const call *c, idx key, idx position) {
    return clamped(key - position + c->left + margin_of(c), 0, c->labels + margin_of(c));
}

/* A pair's label; -1, no term, where it is out of range. */
INLINE idx label_at(const call *c, idx i) {
    int64_t label;
    switch (c->label_size) {
        case 1: label = ((const int8_t *)c->relations.data)[i]; break;
        case 2: label = ((const int16_t *)c->relations.data)[i]; break;
        case 4: label = ((const int32_t *)c->relations.data)[i]; break;
        default: label = ((const int64_t *)c->relations.data)[i];
    }
    return label >= 0 && label < c->labels ? label : -1;
}

INLINE idx pair_at(const array *x, const place *at, idx r) {
    return at->b * x->batch + at->h * x->head + (at->first + r) * x->row + at->key;
}

/* A number a label for each row, rows times table, into strips. With 2k + 1 labels there is often one more than fills
   whole vectors; that one is made alone. */
static void by_label(const call *c, float *strips, rows x, idx count, idx dim, const float *table, const float *turned,
                     float scale) {
    const idx width = strip_width(c), deep = up(dim, PADDING), last = c->labels - 1, alone = last % LANES == 0;
    float *labels = strips + margin_of(c);
    product(labels, width, x.data, x.row, 1, turned, up(c->labels, PADDING), count, up(c->labels - alone, LANES), dim,
            0);
    for (idx r = 0; r < count && alone; r++) {
        vec sum = splat(0);
        for (idx i = 0; i < deep; i += LANES) sum += AT(x.data + r * x.row + i) * AT(table + last * deep + i);
        labels[r * width + last] = sum_of(sum) * scale;
    }
}

/* Scores by label to strips: edges repeated on both sides, or zeros; the slot before label 0 is zero for relations. */
INLINE void extend(const call *c, float *strips, idx count) {
    const idx width = strip_width(c), margin = margin_of(c);
    for (idx r = 0; r < count; r++) {
        float *strip = strips + r * width, *labels = strip + margin, *end = labels + c->labels;
        const vec before = splat(c->clips ? labels[0] : 0), after = splat(c->clips ? end[-1] : 0);
        for (idx i = 0; i < margin; i += LANES) AT(strip + i) = before;
        for (idx i = 0; i < margin; i += LANES) AT(end + i) = after;
    }
}

/* The relative terms of a row's keys, from its strip. */
INLINE const float *terms_of(const call *c, const place *at, idx r, const float *strip, idx position, float *space) {
    if (!c->relations.data) return strip + run_of(c, at->key, position);
    const idx start = pair_at(&c->relations, at, r);
    for (idx j = 0; j < at->keys; j++) space[j] = strip[margin_of(c) + label_at(c, start + j)];
    for (idx j = at->keys; j < at->vecs * LANES; j++) space[j] = 0;
    return space;
}

/* Scales a row of scores and adds its relative terms; -inf where the row may not look. Whether it may look anywhere. */
INLINE int complete(const call *c, const place *at, idx r, idx position, float *scores, const float *terms) {
    idx allowed = at->keys;
    if (c->is_causal) allowed = clamped(position + 1 - at->key, 0, allowed);
    for (idx v = 0; v < at->vecs; v++)
        AT(scores + v * LANES) = AT(scores + v * LANES) * c->scale + (terms ? AT(terms + v * LANES) : splat(0));
    for (idx v = allowed / LANES; v < at->vecs; v++)
        AT(scores + v * LANES) =
            pick(lanes_from((int32_t)(v * LANES)) < (int32_t)allowed, AT(scores + v * LANES), splat(-INFINITY));
    if (!c->mask.data) return allowed > 0;
    const uint8_t *mask = (const uint8_t *)c->mask.data + pair_at(&c->mask, at, r);
    int any = 0;
    for (idx j = 0; j < allowed; j++) {
        scores[j] = mask[j] ? scores[j] : -INFINITY;
        any |= mask[j];
    }
    return any;
}

/* ---- dropout: a counter-based generator, so that the way back draws the same numbers ---- */

/* The number of a row: splitmix64 (Steele, Lea and Flood 2014) of the seed and the row. */
INLINE uint32_t row_number(const call *c, const place *at, idx r) {
    const uint64_t row = ((uint64_t)at->b * c->heads + at->h) * c->queries + at->first + r;
    uint64_t x = c->seed + (row + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(x ^ (x >> 31));
}

/* Which of LANES keys from `key` a row keeps: a mixed counter (Wellons 2018, "lowbias32") against a threshold. */
INLINE ivec kept(uint32_t number, idx key, float keep) {
    uvec x = ((uvec)lanes_from((int32_t)key) + 1) * 0x9E3779B9u ^ number;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return (ivec)(x >> 8) < (int32_t)(keep * 16777216.0f);
}

/* ---- masses: probabilities, or their gradients, back onto labels ---- */

/* Adds a row of numbers to the row's strip, each at its label or on an edge's repetitions. */
INLINE void onto_labels(const call *c, const place *at, idx r, idx position, const float *numbers, float *strip) {
    if (c->relations.data) {
        const idx start = pair_at(&c->relations, at, r);
        for (idx j = 0; j < at->keys; j++) strip[margin_of(c) + label_at(c, start + j)] += numbers[j];
    } else {
        float *run = strip + run_of(c, at->key, position);
        for (idx v = 0; v < at->vecs; v++) AT(run + v * LANES) += AT(numbers + v * LANES);
    }
}

/* The edges' repetitions onto the edges: the way back of `extend`. */
INLINE void collapse(const call *c, float *strips, idx count) {
    if (!c->clips) return;
    const idx width = strip_width(c), margin = margin_of(c);
    for (idx r = 0; r < count; r++) {
        float *strip = strips + r * width, *labels = strip + margin, *end = labels + c->labels;
        vec before = splat(0), after = splat(0);
        for (idx i = 0; i < margin; i += LANES) before += AT(strip + i);
        for (idx i = 0; i < margin; i += LANES) after += AT(end + i);
        labels[0] += sum_of(before);
        end[-1] += sum_of(after);
    }
}

/* Makes slopes add up to nothing over a row's labels, as they do but for rounding in g . z. Spread over many keys that
   error averages out; on an edge's label, which has most of the keys, it would not. */
INLINE void level(const call *c, float *slope_masses, const float *masses, idx count) {
    const idx width = strip_width(c);
    for (idx r = 0; r < count; r++, slope_masses += width, masses += width) {
        vec excess = splat(0), mass = splat(0);
        for (idx i = 0; i < width; i += LANES) excess += AT(slope_masses + i), mass += AT(masses + i);
        const float total = sum_of(mass), share = total > 0 ? sum_of(excess) / total : 0;
        for (idx i = 0; i < width; i += LANES) AT(slope_masses + i) -= share * AT(masses + i);
    }
}

#endif
