/* What happens to the rows of a tile between products: relative terms, masks, dropout, and sums by label.

   Terms and sums are in strips, which `attention.c` describes. */

#ifndef RELATTN_STRIPS_H
#define RELATTN_STRIPS_H

#include "products.h"

typedef struct {     /* a tile, or the rows of one */
    idx b, h;        /* sequence, head */
    idx first, rows; /* queries */
    idx begin;       /* first key of the first tile of these rows */
    idx key, keys;   /* the tile's keys */
    idx vecs;        /* vectors that hold them */
    run labels;      /* those of the strips, which the queries reach */
    int repeats;     /* whether several keys of a query may have one label */
    int banded;      /* whether some rows attend to a part of the tile's keys only, but for a mask: */
    run bands[BANDS];
} place;

INLINE idx margin_of(const arguments *a) { return a->keys < KEYS ? up(a->keys, PADDING) : KEYS; }

/* The largest number of keys in the windows of some queries, from a multiple of KEYS on. */
INLINE idx most_keys(const arguments *a, idx queries) {
    if (a->window_left < 0 || (a->window_right < 0 && !a->is_causal)) return a->keys;
    const idx right = a->window_right < 0 ? 0 : a->window_right;
    const idx most = up(queries, ROWS) + a->window_left + right + a->chunk + KEYS;
    return a->keys < most ? a->keys : most;
}

/* The largest number of labels that some queries reach, counted from a multiple of KEYS. Relations reach all. */
INLINE idx most_labels(const arguments *a, idx queries) {
    const idx most = most_keys(a, queries) + up(queries, ROWS) + KEYS;
    return a->relations.data || a->labels < most ? a->labels : most;
}

INLINE idx strip_width(const arguments *a) { return up(most_labels(a, ROWS), PADDING) + 2 * margin_of(a); }

/* The part of a strip that is used. */
INLINE idx used_of(const arguments *a, const place *at) { return up(at->labels.count, PADDING) + 2 * margin_of(a); }

INLINE idx valid_keys(const arguments *a, idx b) {
    return a->key_lengths ? clamped(a->key_lengths[b], 0, a->keys) : a->keys;
}

/* Number of queries from `first` on that are not padding, at most `count`. */
INLINE idx live_rows(const arguments *a, idx b, idx first, idx count) {
    return a->query_lengths ? clamped(a->query_lengths[b] - first, 0, count) : count;
}

/* The position of a query on the key axis. */
INLINE idx position_of(const arguments *a, idx b, idx row) {
    return (a->query_offsets ? a->query_offsets[b] : a->query_offset) + row;
}

/* The first position of the chunk of a position, which may be negative. */
INLINE idx chunk_start(const arguments *a, idx position) {
    return a->chunk == 1 ? position : position - (position % a->chunk + a->chunk) % a->chunk;
}

/* The first key that a query at a position may attend to, and the end of these keys, if there were enough keys. */
INLINE idx window_begin(const arguments *a, idx position) {
    return a->window_left < 0 ? 0 : chunk_start(a, position) - a->window_left;
}
INLINE idx window_end(const arguments *a, idx position) {
    const idx end = a->window_right < 0 ? INT64_MAX : chunk_start(a, position) + a->window_right + 1;
    return a->is_causal && position + 1 < end ? position + 1 : end;
}

/* Number of keys, from the first, that `live` queries from a position on may attend to. */
INLINE idx visible_keys(const arguments *a, idx b, idx position, idx live) {
    return live > 0 ? clamped(window_end(a, position + live - 1), 0, valid_keys(a, b)) : 0;
}

/* The first key, a multiple of KEYS, of the tiles for queries from a position on, whose visible keys end there. */
INLINE idx first_tile(const arguments *a, idx position, idx visible) {
    return clamped(window_begin(a, position), 0, visible) / KEYS * KEYS;
}

/* Set the keys of the next tile of some rows, and the runs of them that each BAND rows attend to. */
INLINE void next_tile(const arguments *a, place *at, idx position, idx visible) {
    at->keys = tile_len(at->key, visible);
    at->vecs = (at->keys + LANES - 1) / LANES;
    at->banded = window_end(a, position) < at->key + at->keys || window_begin(a, position + at->rows - 1) > at->key;
    for (idx r = 0; r < at->rows && at->banded; r += BAND) {
        const idx last = position + (r + BAND < at->rows ? r + BAND : at->rows) - 1;
        const idx end = clamped(window_end(a, last) - at->key, 0, at->keys);
        const idx first = clamped(window_begin(a, position + r) - at->key, 0, end) / BAND * BAND;
        at->bands[r / BAND] = (run){first, end - first};
    }
}

/* The labels of queries from a position on with the keys from `begin` to `visible`. Relations reach all. */
INLINE run reached(const arguments *a, idx position, idx queries, idx begin, idx visible) {
    if (a->relations.data) return (run){0, a->labels};
    const idx first = clamped(a->left + begin - (position + queries - 1), 0, a->labels - 1);
    return (run){first, clamped(a->left + visible - position, first + 1, a->labels) - first};
}

/* Whether several keys of one of these queries may have the same label: by relations, or beyond an edge. */
INLINE int repeats(const arguments *a, idx position, idx visible) {
    if (a->relations.data) return 1;
    return a->clips && (position + ROWS - 1 > a->left || a->left + visible - position > a->labels);
}

/* Whether this holds for any query of the call. */
INLINE int may_repeat(const arguments *a) {
    const idx last = a->query_offset + up(a->queries, ROWS) - ROWS;
    return (a->clips && a->query_offsets) || repeats(a, last, 0) || repeats(a, a->query_offset, a->keys);
}

/* The labels of ROWS queries, from a multiple of KEYS labels after the first loaded one: KEYS are transposed at a time.
   */
INLINE run reached_by_rows(const arguments *a, idx position, idx begin, idx visible, run held) {
    const run labels = reached(a, position, ROWS, begin, visible);
    const idx back = (labels.first - held.first) % KEYS;
    return (run){labels.first - back, labels.count + back};
}

/* The label of a pair; -1, which has no term, if it is out of range. */
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

/* The vectors that are multiplied with the table of keys. */
INLINE rows rel_query_of(const arguments *a, const place *at, idx live, rows query, real *space) {
    return a->rel_query.data ? rows_of(a, &a->rel_query, at->b, at->h, at->first, live, a->rel_dim, space) : query;
}

/* Multiply rows with the rows of a table: one number per label, in strips of a width, after a margin. */
static void by_label(real *strips, idx width, idx margin, rows x, idx count, idx dim, const table *t, run run) {
    const idx deep = up(dim, PADDING), skipped = run.first - t->labels.first;
    const idx labels = run.count, products = t->transposed ? in_products(labels) : 0;
    real *strip = strips + margin;
    for (idx l = 0; l < products; l += KEYS)
        product(strip + l, width, x.data, x.row, 1, t->transposed + (skipped + l) * deep, PANEL, deep * PANEL, count,
                up(tile_len(l, products), LANES), dim, 0);
    for (idx r = 0; r < count; r++)
        for (idx l = products; l < labels; l++) {
            const real *row = t->rows.data + (skipped + l) * t->rows.row;
            vec sum = splat(0);
            for (idx i = 0; i < deep; i += LANES) sum += AT(x.data + r * x.row + i) * AT(row + i);
            strip[r * width + l] = sum_of(sum);
        }
}

/* Fill the margins of strips of scores: with the scores of the two edges, or with zeros. For relations, the slot before
   label 0 is zero: pairs without a label use it. */
INLINE void fill_margins(idx clips, real *strips, idx width, idx margin, idx count, run run) {
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + run.count;
        const vec before = splat(clips ? labels[0] : 0), after = splat(clips ? end[-1] : 0);
        for (idx i = 0; i < margin; i += LANES) AT(strip + i) = before;
        for (idx i = 0; i < margin; i += LANES) AT(end + i) = after;
    }
}

/* Where the keys of a tile are in the strip of a row. */
typedef struct {
    idx start; /* of their run; unused for relations */
    int far;   /* whether all of them have the same edge label */
} span;

INLINE span span_of(const arguments *a, const place *at, idx position) {
    const idx margin = margin_of(a), last = at->labels.count + margin;
    const idx start = clamped(at->key - position + a->left - at->labels.first + margin, 0, last);
    return (span){start, !a->relations.data && (start == 0 || start == last)};
}

/* Where a strip has the labels of a row's keys. A label out of range takes the slot before label 0. */
INLINE void slots_of(const arguments *a, const place *at, idx r, int32_t *slots) {
    const idx start = pair_at(&a->relations, at, r), margin = margin_of(a), end = a->labels;
#define SLOTS(type)                                                                                                    \
    for (idx j = 0; j < at->keys; j++) {                                                                               \
        const type label = ((const type *)a->relations.data)[start + j];                                               \
        slots[j] = (int32_t)(margin + (label >= 0 && label < end ? label : -1));                                       \
    }
    switch (a->relations_size) { /* outside of the loops, which the compiler then vectorises */
        case 1: SLOTS(int8_t); break;
        case 2: SLOTS(int16_t); break;
        case 4: SLOTS(int32_t); break;
        default: SLOTS(int64_t);
    }
#undef SLOTS
}

/* The relative terms of a row's keys: a run of its strip, or, for relations, those in `slots`, in `space`. */
INLINE const real *terms_of(const arguments *a, const place *at, const real *strip, span s, const int32_t *slots,
                            real *space) {
    if (!a->relations.data) return strip + s.start;
    for (idx j = 0; j < at->keys; j++) space[j] = strip[slots[j]];
    for (idx j = at->keys; j < at->vecs * LANES; j++) space[j] = 0;
    return space;
}

/* ---- what the rows of a tile have in common, so that the compiler can leave out the rest ---- */

enum { VECS = KEYS / LANES };
enum {
    KEY_TERMS = 1,   /* there is a table of keys */
    VALUE_TERMS = 2, /* there is a table of values */
    WHOLE = 4,       /* the rows attend to all KEYS keys of the tile, but for a mask */
    BANDED = 16,     /* some rows attend to a part of the tile's keys only */
    PLAIN = 8,       /* there are no relations, no mask and no dropout, and the scale is positive */
};

/* The vectors of a row of a tile that are computed: all, or those of its band. */
INLINE run vectors_of(const place *at, idx r, const int flags) {
    if (!(flags & BANDED)) return (run){0, flags & WHOLE ? VECS : at->vecs};
    const run band = at->bands[r / BAND];
    const idx first = band.first / LANES, end = up(band.first + band.count, BAND) / LANES;
    return (run){first, band.count == 0 ? 0 : (end < at->vecs ? end : at->vecs) - first};
}

/* Set the scores of a row's pairs that may not attend to -inf. Return whether a pair is left. */
INLINE int hide(const arguments *a, const place *at, idx r, idx position, run vecs, vec *scores) {
    const idx allowed = clamped(window_end(a, position) - at->key, 0, at->keys);
    const idx before = clamped(window_begin(a, position) - at->key, 0, allowed);
    for (idx v = vecs.first; v * LANES < before; v++)
        scores[v] = pick(lanes_from((integer)(v * LANES)) >= (integer)before, scores[v], splat(-INFINITY));
    for (idx v = allowed / LANES; v < vecs.first + vecs.count; v++)
        scores[v] = pick(lanes_from((integer)(v * LANES)) < (integer)allowed, scores[v], splat(-INFINITY));
    if (!a->mask.data) return allowed > before;
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    const uint8_t *mask = (const uint8_t *)a->mask.data + pair_at(&a->mask, at, r);
    bytes any = {0};
    for (idx v = vecs.first; v * LANES < allowed; v++) {
        const idx rest = allowed - v * LANES;
        bytes kept = {0};
        memcpy(&kept, mask + v * LANES, rest < LANES ? rest : LANES);
        for (idx i = v * LANES; i < before && i < (v + 1) * LANES; i++) kept[i - v * LANES] = 0;
        any |= kept;
        scores[v] = pick(__builtin_convertvector(kept, ivec) != 0, scores[v], splat(-INFINITY));
    }
    return any_above(__builtin_convertvector(any, vec), 0);
}

/* ---- dropout: a counter-based generator, so that the backward pass draws the same numbers ---- */

enum { DRAWS = 1 << 24 };
typedef uint32_t draws __attribute__((vector_size(4 * LANES)));
typedef int32_t signed_draws __attribute__((vector_size(4 * LANES)));

INLINE int drops(const arguments *a) { return a->keep_threshold < DRAWS; }

/* A random number per row: splitmix64 (Steele, Lea and Flood 2014) of the seed and the row. */
INLINE uint32_t row_number(const arguments *a, const place *at, idx r) {
    const uint64_t row = ((uint64_t)at->b * a->heads + at->h) * a->queries + at->first + r;
    uint64_t x = a->seed + (row + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(x ^ (x >> 31));
}

/* Which of LANES keys from `key` on are kept by a row: a mixed counter (Wellons 2018, "lowbias32") against the
   threshold. */
INLINE ivec is_kept(const arguments *a, uint32_t number, idx key) {
    draws x = (__builtin_convertvector(lanes_from((integer)key), draws) + 1) * 0x9E3779B9u ^ number;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return __builtin_convertvector((signed_draws)(x >> 8) < (int32_t)a->keep_threshold, ivec);
}

INLINE int row_flags(const arguments *a, const place *at, idx position) {
    const int plain = !a->mask.data && !a->relations.data && !drops(a) && a->scale > 0;
    return (a->rel_key.data ? KEY_TERMS : 0) | (a->rel_value.data ? VALUE_TERMS : 0) |
           (at->banded ? BANDED : at->keys == KEYS ? WHOLE : 0) | (plain ? PLAIN : 0);
}

/* ---- masses: sums by label of probabilities, or of gradients of scores ---- */

INLINE void clear(const arguments *a, real *strips, idx count, const place *at) {
    for (idx r = 0; r < count; r++) memset(strips + r * strip_width(a), 0, sizeof(real) * used_of(a, at));
}

/* Add some vectors of a row of numbers to its strip, each number at its label. */
INLINE void add_by_label(const place *at, run vecs, const real *numbers, const int32_t *slots, real *strip) {
    const idx end = (vecs.first + vecs.count) * LANES;
    for (idx j = vecs.first * LANES; j < end && j < at->keys; j++) strip[slots[j]] += numbers[j];
}

/* Add the margins to the edge labels: the gradient of `fill_margins`. */
INLINE void fold_margins(idx clips, real *strips, idx width, idx margin, idx count, run run) {
    if (!clips) return;
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *labels = strip + margin, *end = labels + run.count;
        vec before = splat(0), after = splat(0);
        for (idx i = 0; i < margin; i += LANES) before += AT(strip + i);
        for (idx i = 0; i < margin; i += LANES) after += AT(end + i);
        labels[0] += sum_of(before);
        end[-1] += sum_of(after);
    }
}

/* Make dS sum to zero over the labels of a row. It does so but for rounding in delta, an error that averages out over
   many keys, but not on an edge label, which has most of them. */
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
