/* Relation-aware attention for processors: one pass forward, one pass backward, nothing queries x keys in memory.

   e_ij = scale q_i . (k_j + aK_ij)      p_ij = exp(e_ij - lse_i)      z_i = sum_j p_ij (v_j + aV_ij)

   Tiles of ROWS queries by KEYS keys, with the softmax kept as it goes (Milakov and Gimelshein 2018; Dao et al. 2022).
   The relative term of a row comes from a strip of scores, a label each:

       strip of a row:   | margin x left edge | labels 0 .. labels - 1 | margin x right edge |

   with margins as wide as a tile has keys, where the biases of neighbouring keys are one contiguous run, wherever the tile stands, since a step to the
   next key is a step to the next label and edges repeat. Probabilities go back by the same runs into a strip of
   masses; what falls on the edges' repetitions is summed apart. Labels of the caller's (relations) are read and
   summed one by one in the same strips; the slot before label 0 is for pairs that have none.

   All arithmetic is float32. Half types are widened as they are read and rounded as they are written. */

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "rows.h"

/* ---- rows of a tile ---- */

typedef struct { /* where a task works */
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
    product(labels, width, x.data, x.row, 1, turned, up(c->labels, PADDING), count, up(c->labels - alone, LANES), dim, 0);
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

/* ---- forward ---- */

enum { FEW = 4 };

typedef struct {
    float *keys, *values, *space, *query, *scores, *output, *terms, *masses, *highest, *total;
    idx packed; /* the head whose keys and values are here, -1 for none */
} forward_space;

/* One row of a tile: its scores become probabilities under the highest score so far. Whether it sees anything. */
INLINE int forward_row(const call *c, const place *at, idx r, idx position, rows out, const forward_space *w) {
    const idx width = strip_width(c), wide = up(c->value_dim, PADDING);
    float *scores = w->scores + r * KEYS, *output = out.data + r * out.row, *masses = w->masses + r * width;
    float space[KEYS];
    const float *terms = c->rel_key ? terms_of(c, at, r, w->terms + r * width, position, space) : NULL;
    const int seen = complete(c, at, r, position, scores, terms);

    vec high = splat(-INFINITY);
    for (idx v = 0; v < at->vecs; v++) {
        const vec x = AT(scores + v * LANES);
        high = pick(x > high, x, high);
    }
    const float top = max_of(high);
    if (top > w->highest[r]) {
        const float shrink = w->highest[r] == -INFINITY ? 0 : expf(w->highest[r] - top);
        w->highest[r] = top;
        w->total[r] *= shrink;
        if (at->key > 0) {
            for (idx i = 0; i < wide; i += LANES) AT(output + i) *= shrink;
            if (c->rel_value)
                for (idx i = 0; i < width; i += LANES) AT(masses + i) *= shrink;
        }
    }
    const vec base = splat(w->highest[r] == -INFINITY ? 0 : w->highest[r]);
    const uint32_t number = c->keep < 1 ? row_number(c, at, r) : 0;
    vec total = splat(0);
    for (idx v = 0; v < at->vecs; v++) {
        vec p = exp_of(AT(scores + v * LANES) - base);
        total += p;
        if (c->keep < 1) p = pick(kept(number, at->key + v * LANES, c->keep), p, splat(0));
        AT(scores + v * LANES) = p;
    }
    w->total[r] += sum_of(total);
    if (c->rel_value) onto_labels(c, at, r, position, scores, masses);
    return seen;
}

/* Products of so few queries with keys that turning the keys to columns would cost more. */
static void few_products(float *scores, rows query, idx live, rows keys, const place *at, idx deep) {
    for (idx r = 0; r < live; r++)
        for (idx j = 0; j < at->vecs * LANES; j++) {
            vec sum = splat(0);
            for (idx i = 0; i < deep && j < at->keys; i += LANES)
                sum += AT(query.data + r * query.row + i) * AT(keys.data + (at->key + j) * keys.row + i);
            scores[r * KEYS + j] = sum_of(sum);
        }
}

/* ROWS queries of a head against all of its keys, which are turned to columns or, for FEW queries, are not. */
static void forward_rows(const call *c, place at, idx live, rows keys, rows values, const forward_space *w) {
    const idx dim = c->dim, deep = up(dim, PADDING), wide = up(c->value_dim, PADDING);
    const idx width = strip_width(c), margin = margin_of(c), labels = up(c->labels, PADDING);
    const idx table = at.h % c->key_table_heads, value_table = at.h % c->value_table_heads;
    const float *rel_key = c->rel_key + table * c->labels * deep, *rel_key_t = c->rel_key_t + table * dim * labels;
    const float *rel_value = c->rel_value + value_table * c->labels * wide;
    const idx offset = c->offsets[at.b] + at.first;
    idx valid = valid_keys(c, at.b);
    if (c->is_causal) valid = clamped(offset + live, 0, valid);
    char seen[ROWS] = {0};

    const rows query = rows_of(c, &c->query, at.b, at.h, at.first, live, dim, w->query);
    const rows out = room_for(c, &c->output, at.b, at.h, at.first, c->value_dim, w->output);
    if (c->rel_key) {
        by_label(c, w->terms, query, live, dim, rel_key, rel_key_t, c->scale);
        extend(c, w->terms, live);
    }
    if (c->rel_value) memset(w->masses, 0, sizeof(float) * live * width);
    for (idx r = 0; r < live; r++) w->highest[r] = -INFINITY, w->total[r] = 0;

    for (at.key = 0; at.key < valid; at.key += KEYS) {
        at.keys = valid - at.key < KEYS ? valid - at.key : KEYS;
        at.vecs = (at.keys + LANES - 1) / LANES;
        if (c->queries < FEW) few_products(w->scores, query, live, keys, &at, deep);
        else product(w->scores, KEYS, query.data, query.row, 1, w->keys + at.key * deep, KEYS, live, at.vecs * LANES, dim, 0);
        for (idx r = 0; r < live; r++) seen[r] |= (char)forward_row(c, &at, r, offset + r, out, w);
        product(out.data, out.row, w->scores, KEYS, 1, values.data + at.key * values.row, values.row, live, wide, at.keys,
                at.key > 0);
    }

    if (c->rel_value && valid > 0) {
        collapse(c, w->masses, live);
        product(out.data, out.row, w->masses + margin, width, 1, rel_value, wide, live, wide, c->labels, 1);
    }
    float *lse = (float *)c->lse.data + at.b * c->lse.batch + at.h * c->lse.head + at.first;
    for (idx r = 0; r < at.rows; r++) {
        const int empty = r >= live || !seen[r];
        lse[r] = empty ? -INFINITY : w->highest[r] + logf(w->total[r]);
        if (empty) write_zeros(&c->output, at.b, at.h, at.first + r, c->value_dim, c->type);
        else write_row(&c->output, at.b, at.h, at.first + r, out.data + r * out.row, c->value_dim,
                       c->keep > 0 ? 1 / (w->total[r] * c->keep) : 0, c->type);
    }
}

/* Queries of a batch's sequence that are not padding, of those from `first` on. */
INLINE idx live_rows(const call *c, idx b, idx first, idx count) {
    return c->lengths ? clamped(c->lengths[b] - c->offsets[b] - first, 0, count) : count;
}

/* ---- backward ---- */

typedef struct {
    float *keys_t, *values_t, *keys, *query, *grad, *scores, *slopes, *d_query, *d_keys, *d_values;
    float *terms, *slope_terms, *masses, *slope_masses, *dot, *lse;
} backward_space;

/* One row of a tile: scores become probabilities as they weighed values, slopes the gradient of the products q . k. */
INLINE void backward_row(const call *c, const place *at, idx r, idx position, const backward_space *w) {
    const idx width = strip_width(c);
    float *scores = w->scores + r * KEYS, *slopes = w->slopes + r * KEYS;
    float space[KEYS], slope_space[KEYS];
    const float *terms = c->rel_key ? terms_of(c, at, r, w->terms + r * width, position, space) : NULL;
    const float *slope_terms =
        c->rel_value ? terms_of(c, at, r, w->slope_terms + r * width, position, slope_space) : NULL;
    complete(c, at, r, position, scores, terms);

    const vec lse = splat(w->lse[r]), dot = splat(w->dot[r]);
    const uint32_t number = c->keep < 1 ? row_number(c, at, r) : 0;
    for (idx v = 0; v < at->vecs; v++) {
        const vec p = exp_of(AT(scores + v * LANES) - lse);
        vec slope = AT(slopes + v * LANES), weight = p;
        if (slope_terms) slope += AT(slope_terms + v * LANES);
        if (c->keep < 1) weight = pick(kept(number, at->key + v * LANES, c->keep), p / c->keep, splat(0));
        AT(scores + v * LANES) = weight;
        AT(slopes + v * LANES) = (weight * slope - p * dot) * c->scale;
    }
    if (c->rel_key) onto_labels(c, at, r, position, slopes, w->slope_masses + r * width);
    if (c->rel_key || c->rel_value) onto_labels(c, at, r, position, scores, w->masses + r * width);
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

/* ROWS queries of a head against all of its keys, the way back; adds to the gradients of keys, values and tables. */
static void backward_rows(const call *c, place at, idx live, idx chunk, rows keys, rows d_keys, rows d_values,
                          const backward_space *w) {
    const idx dim = c->dim, value_dim = c->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx width = strip_width(c), margin = margin_of(c), labels = up(c->labels, PADDING);
    const idx table = at.h % c->key_table_heads, value_table = at.h % c->value_table_heads;
    const float *rel_key = c->rel_key + table * c->labels * deep, *rel_key_t = c->rel_key_t + table * dim * labels;
    const float *rel_value = c->rel_value + value_table * c->labels * wide;
    const float *rel_value_t = c->rel_value_t + value_table * value_dim * labels;
    const idx offset = c->offsets[at.b] + at.first;
    idx valid = valid_keys(c, at.b);
    if (c->is_causal) valid = clamped(offset + live, 0, valid);

    const rows query = rows_of(c, &c->query, at.b, at.h, at.first, live, dim, w->query);
    const rows grad = rows_of(c, &c->grad, at.b, at.h, at.first, live, value_dim, w->grad);
    const rows out = rows_of(c, &c->output, at.b, at.h, at.first, live, value_dim, w->d_query);
    const float *lse = (const float *)c->lse.data + at.b * c->lse.batch + at.h * c->lse.head + at.first;
    for (idx r = 0; r < live; r++) {
        vec dot = splat(0);
        for (idx i = 0; i < wide; i += LANES) dot += AT(grad.data + r * grad.row + i) * AT(out.data + r * out.row + i);
        w->dot[r] = sum_of(dot);
        w->lse[r] = lse[r] == -INFINITY ? INFINITY : lse[r]; /* a row that sees nothing: e^(x - inf) = 0 */
    }
    if (c->rel_key) {
        by_label(c, w->terms, query, live, dim, rel_key, rel_key_t, c->scale);
        extend(c, w->terms, live);
        memset(w->slope_masses, 0, sizeof(float) * live * width);
    }
    if (c->rel_value) {
        by_label(c, w->slope_terms, grad, live, value_dim, rel_value, rel_value_t, 1);
        extend(c, w->slope_terms, live);
    }
    if (c->rel_key || c->rel_value) memset(w->masses, 0, sizeof(float) * live * width);
    const rows d_query = room_for(c, &c->d_query, at.b, at.h, at.first, dim, w->d_query);

    for (at.key = 0; at.key < valid; at.key += KEYS) {
        at.keys = valid - at.key < KEYS ? valid - at.key : KEYS;
        at.vecs = (at.keys + LANES - 1) / LANES;
        const idx n = at.vecs * LANES;
        product(w->scores, KEYS, query.data, query.row, 1, w->keys_t + at.key * deep, KEYS, live, n, dim, 0);
        product(w->slopes, KEYS, grad.data, grad.row, 1, w->values_t + at.key * wide, KEYS, live, n, value_dim, 0);
        for (idx r = 0; r < live; r++) backward_row(c, &at, r, offset + r, w);
        product(d_values.data + at.key * d_values.row, d_values.row, w->scores, 1, KEYS, grad.data, grad.row, at.keys,
                wide, live, 1);
        product(d_keys.data + at.key * d_keys.row, d_keys.row, w->slopes, 1, KEYS, query.data, query.row, at.keys, deep,
                live, 1);
        product(d_query.data, d_query.row, w->slopes, KEYS, 1, keys.data + at.key * keys.row, keys.row, live, deep, at.keys,
                at.key > 0);
    }

    if (c->rel_key && valid > 0) {
        level(c, w->slope_masses, w->masses, live);
        collapse(c, w->slope_masses, live);
        float *d_rows = c->d_rel_key + (chunk * c->key_table_heads + table) * c->labels * deep;
        product(d_query.data, d_query.row, w->slope_masses + margin, width, 1, rel_key, deep, live, deep, c->labels, 1);
        product(d_rows, deep, w->slope_masses + margin, 1, width, query.data, query.row, c->labels, deep, live, 1);
    }
    if (c->rel_value && valid > 0) {
        collapse(c, w->masses, live);
        float *d_rows = c->d_rel_value + (chunk * c->value_table_heads + value_table) * c->labels * wide;
        product(d_rows, wide, w->masses + margin, 1, width, grad.data, grad.row, c->labels, wide, live, 1);
    }
    for (idx r = 0; r < at.rows; r++) {
        if (r >= live || valid == 0) write_zeros(&c->d_query, at.b, at.h, at.first + r, dim, c->type);
        else if (!in_place(c, &c->d_query, dim))
            write_row(&c->d_query, at.b, at.h, at.first + r, d_query.data + r * d_query.row, dim, 1, c->type);
    }
}

/* All heads that share a head of keys. */
static void backward_head(const call *c, idx b, idx kv, idx chunk, const backward_space *w) {
    const idx dim = c->dim, value_dim = c->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx valid = valid_keys(c, b), group = c->heads / c->key_heads;
    const rows keys = rows_of(c, &c->key, b, kv, 0, valid, dim, w->keys);
    turn(w->keys_t, c, &c->key, b, kv, valid, dim, w->keys);
    turn(w->values_t, c, &c->value, b, kv, valid, value_dim, w->d_values);
    const rows d_keys = room_for(c, &c->d_key, b, kv, 0, dim, w->d_keys);
    const rows d_values = room_for(c, &c->d_value, b, kv, 0, value_dim, w->d_values);
    for (idx j = 0; j < valid; j++) memset(d_keys.data + j * d_keys.row, 0, sizeof(float) * deep);
    for (idx j = 0; j < valid; j++) memset(d_values.data + j * d_values.row, 0, sizeof(float) * wide);
    for (idx h = kv * group; h < (kv + 1) * group; h++)
        for (idx first = 0; first < c->queries; first += ROWS) {
            const idx count = c->queries - first < ROWS ? c->queries - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            backward_rows(c, at, live_rows(c, b, first, count), chunk, keys, d_keys, d_values, w);
        }
    for (idx j = 0; j < c->keys; j++) {
        if (j >= valid) {
            write_zeros(&c->d_key, b, kv, j, dim, c->type);
            write_zeros(&c->d_value, b, kv, j, value_dim, c->type);
            continue;
        }
        if (!in_place(c, &c->d_key, dim)) write_row(&c->d_key, b, kv, j, d_keys.data + j * deep, dim, 1, c->type);
        if (!in_place(c, &c->d_value, value_dim))
            write_row(&c->d_value, b, kv, j, d_values.data + j * wide, value_dim, 1, c->type);
    }
}

/* ---- threads ---- */

enum { TASK_ROWS = 8 * ROWS }; /* queries of a task on the way out */

typedef struct {
    const call *call;
    idx next, failed; /* shared: the next task, whether memory ran out */
} crew;

/* Cuts `count` floats off a block, to vectors. */
INLINE float *cut(float **block, idx count) {
    float *here = *block;
    *block += up(count + 1, 16);
    return here;
}

INLINE idx sum_of_sizes(const idx *sizes, idx count) {
    idx total = 0;
    for (idx i = 0; i < count; i++) total += up(sizes[i] + 1, 16);
    return total;
}

static void forward_worker(void *data) {
    crew *work = data;
    const call *c = work->call;
    const idx deep = up(c->dim, PADDING), wide = up(c->value_dim, PADDING), width = strip_width(c), all = up(c->keys, KEYS);
    const idx sizes[] = {c->queries < FEW ? 0 : all * deep,
                         in_place(c, &c->value, c->value_dim) ? 0 : all * wide,
                         in_place(c, &c->key, c->dim) ? 0 : all * deep,
                         ROWS * deep,
                         ROWS * KEYS,
                         ROWS * wide,
                         c->rel_key ? ROWS * width : 0,
                         c->rel_value ? ROWS * width : 0,
                         ROWS,
                         ROWS};
    float *block = aligned_alloc(64, sizeof(float) * up(sum_of_sizes(sizes, 10), 16));
    if (!block) {
        __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *left = block;
    forward_space w = {.packed = -1};
    float **const fields[] = {&w.keys,   &w.values, &w.space,  &w.query,   &w.scores,
                              &w.output, &w.terms,  &w.masses, &w.highest, &w.total};
    for (idx i = 0; i < 10; i++) *fields[i] = cut(&left, sizes[i]);

    const idx parts = (c->queries + TASK_ROWS - 1) / TASK_ROWS, group = c->heads / c->key_heads;
    rows keys = {0}, values = {0};
    for (;;) {
        const idx task = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (task >= c->batch * c->heads * parts) break;
        const idx b = task / parts / c->heads, h = task / parts % c->heads, kv = h / group;
        if (w.packed != b * c->key_heads + kv) {
            const idx valid = valid_keys(c, b);
            if (c->queries < FEW) keys = rows_of(c, &c->key, b, kv, 0, valid, c->dim, w.space);
            else turn(w.keys, c, &c->key, b, kv, valid, c->dim, w.space);
            values = rows_of(c, &c->value, b, kv, 0, valid, c->value_dim, w.values);
            w.packed = b * c->key_heads + kv;
        }
        const idx start = task % parts * TASK_ROWS, end = start + TASK_ROWS < c->queries ? start + TASK_ROWS : c->queries;
        for (idx first = start; first < end; first += ROWS) {
            const idx count = end - first < ROWS ? end - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            forward_rows(c, at, live_rows(c, b, first, count), keys, values, &w);
        }
    }
    free(block);
}

static void backward_worker(void *data) {
    crew *work = data;
    const call *c = work->call;
    const idx deep = up(c->dim, PADDING), wide = up(c->value_dim, PADDING), width = strip_width(c), all = up(c->keys, KEYS);
    const idx keyed = c->rel_key ? ROWS * width : 0, valued = c->rel_value ? ROWS * width : 0;
    const idx weighed = c->rel_key || c->rel_value ? ROWS * width : 0;
    const idx keys = in_place(c, &c->key, c->dim) ? 0 : all * deep;
    const idx d_keys = in_place(c, &c->d_key, c->dim) ? 0 : all * deep;
    const int own_values = !in_place(c, &c->value, c->value_dim) || !in_place(c, &c->d_value, c->value_dim);
    const idx sizes[] = {all * deep, all * wide, keys,   ROWS * deep, ROWS * wide, ROWS * KEYS, ROWS * KEYS,
                         ROWS * (deep > wide ? deep : wide), d_keys, own_values ? all * wide : 0,  keyed,       valued,      weighed,
                         keyed,        ROWS,               ROWS};
    float *block = aligned_alloc(64, sizeof(float) * up(sum_of_sizes(sizes, 16), 16));
    if (!block) {
        __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *left = block;
    backward_space w;
    float **const fields[] = {&w.keys_t,  &w.values_t, &w.keys,  &w.query,       &w.grad,   &w.scores,       &w.slopes, &w.d_query,
                              &w.d_keys,  &w.d_values, &w.terms, &w.slope_terms, &w.masses, &w.slope_masses, &w.dot,    &w.lse};
    for (idx i = 0; i < 16; i++) *fields[i] = cut(&left, sizes[i]);

    const idx tasks = c->batch * c->key_heads;
    for (;;) {
        const idx chunk = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (chunk >= c->chunks) break;
        for (idx task = chunk * tasks / c->chunks; task < (chunk + 1) * tasks / c->chunks; task++)
            backward_head(c, task / c->key_heads, task % c->key_heads, chunk, &w);
    }
    free(block);
}

/* Runs a worker on each thread of the pool that PyTorch uses (GNU OpenMP's), or on this one alone. */
static int together(const call *c, void (*worker)(void *)) {
    typedef void (*start)(void (*)(void *), void *, unsigned, unsigned);
    crew work = {.call = c};
    start parallel = c->threads > 1 ? (start)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    if (parallel) parallel(worker, &work, (unsigned)c->threads, 0);
    else worker(&work);
    return (int)work.failed;
}

/* Asks for a new result's memory in large pages: 4 KiB at a time, finding it costs as much as a short row's attention. */
static void in_large_pages(const call *c, const array *x, idx heads, idx count, idx dim) {
    const uintptr_t page = 1 << 21, start = ((uintptr_t)x->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)x->data + (c->type == FLOAT32 ? 4 : 2) * c->batch * heads * count * dim) / page * page;
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
}

int relattn_forward(const call *c) {
    in_large_pages(c, &c->output, c->heads, c->queries, c->value_dim);
    return together(c, forward_worker);
}

int relattn_backward(const call *c) {
    in_large_pages(c, &c->d_query, c->heads, c->queries, c->dim);
    in_large_pages(c, &c->d_key, c->key_heads, c->keys, c->dim);
    in_large_pages(c, &c->d_value, c->key_heads, c->keys, c->value_dim);
    return together(c, backward_worker);
}

int relattn_call_size(void) { return (int)sizeof(call); }
