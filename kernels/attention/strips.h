/* The operations on the rows of a tile between the matrix products: relative terms, masks, dropout and label sums.

   `attention.c` describes the strips that hold terms and sums. */

#ifndef RELATTN_STRIPS_H
#define RELATTN_STRIPS_H

#include "operands.h"

typedef struct {                  /* a tile of queries by keys */
    idx b, h;                     /* sequence, head */
    idx first_query, num_queries; /* rows of the tile, with padding */
    idx keys_begin;               /* first key of the first tile for these queries */
    idx first_key, num_keys;      /* columns of the tile */
    idx num_vecs;                 /* number of vectors that hold the columns */
    range labels;                 /* labels in the strips: those that the queries reach */
    int labels_repeat;            /* whether several keys of a query may have the same label */
    int is_banded;                /* whether the window hides some keys of the tile from some queries */
    range bands[NUM_BANDS];       /* the keys in the windows of each BAND_ROWS queries, if is_banded */
} tile_info;

INLINE idx margin_size(const arguments *a) { return a->keys < KEYS ? round_up(a->keys, PADDING) : KEYS; }

/* Return the maximum number of keys in the windows of some queries. They start at a multiple of KEYS. */
INLINE idx max_window_keys(const arguments *a, idx queries) {
    if (a->window_left < 0 || (a->window_right < 0 && !a->is_causal)) return a->keys;
    const idx right = a->window_right < 0 ? 0 : a->window_right;
    const idx max_keys = round_up(queries, QUERIES) + a->window_left + right + a->chunk + KEYS;
    return a->keys < max_keys ? a->keys : max_keys;
}

/* Return the maximum number of labels that some queries reach, counted from a multiple of KEYS. With relations, queries
   reach all labels. */
INLINE idx max_window_labels(const arguments *a, idx queries) {
    const idx max_labels = max_window_keys(a, queries) + round_up(queries, QUERIES) + KEYS;
    return a->relations.data || a->labels < max_labels ? a->labels : max_labels;
}

INLINE idx strip_width(const arguments *a) {
    return round_up(max_window_labels(a, QUERIES), PADDING) + 2 * margin_size(a);
}

/* Return the number of slots of a strip that are in use. */
INLINE idx used_strip_width(const arguments *a, const tile_info *tile) {
    return round_up(tile->labels.count, PADDING) + 2 * margin_size(a);
}

INLINE idx valid_keys(const arguments *a, idx b) {
    return a->key_lengths ? clamp(a->key_lengths[b], 0, a->keys) : sequence_keys(a, b);
}

/* Return the number of queries from `first` on that are not padding, at most `count`. */
INLINE idx valid_queries(const arguments *a, idx b, idx first, idx count) {
    return a->query_lengths ? clamp(a->query_lengths[b] - first, 0, count) : count;
}

/* Return the position of a query on the key axis. */
INLINE idx query_position(const arguments *a, idx b, idx row) {
    return (a->query_offsets ? a->query_offsets[b] : a->query_offset) + row;
}

/* Return the first position of a position's chunk. It may be negative. */
INLINE idx chunk_start(const arguments *a, idx position) {
    return a->chunk == 1 ? position : position - (position % a->chunk + a->chunk) % a->chunk;
}

/* Return the begin and the end of the keys in the window of a query. They are not clamped to the number of keys. */
INLINE idx window_begin(const arguments *a, idx position) {
    return a->window_left < 0 ? 0 : chunk_start(a, position) - a->window_left;
}
INLINE idx window_end(const arguments *a, idx position) {
    const idx end = a->window_right < 0 ? INT64_MAX : chunk_start(a, position) + a->window_right + 1;
    return a->is_causal && position + 1 < end ? position + 1 : end;
}

/* Return the end of the keys that `num_queries` queries from a position on may attend to. */
INLINE idx visible_keys(const arguments *a, idx b, idx position, idx num_queries) {
    return num_queries > 0 ? clamp(window_end(a, position + num_queries - 1), 0, valid_keys(a, b)) : 0;
}

/* Return the first key of the first tile for the queries from a position on: a multiple of KEYS, at most `visible`. */
INLINE idx first_tile_key(const arguments *a, idx position, idx visible) {
    return clamp(window_begin(a, position), 0, visible) / KEYS * KEYS;
}

/* Set the keys of a tile from `first_key` on, and the ranges of keys that each BAND_ROWS queries attend to. */
INLINE void set_tile_keys(const arguments *a, tile_info *tile, idx position, idx visible) {
    tile->num_keys = tile_len(tile->first_key, visible);
    tile->num_vecs = (tile->num_keys + LANES - 1) / LANES;
    tile->is_banded = window_end(a, position) < tile->first_key + tile->num_keys ||
                      window_begin(a, position + tile->num_queries - 1) > tile->first_key;
    for (idx r = 0; r < tile->num_queries && tile->is_banded; r += BAND_ROWS) {
        const idx last = position + (r + BAND_ROWS < tile->num_queries ? r + BAND_ROWS : tile->num_queries) - 1;
        const idx end = clamp(window_end(a, last) - tile->first_key, 0, tile->num_keys);
        const idx first = clamp(window_begin(a, position + r) - tile->first_key, 0, end) / BAND_ROWS * BAND_ROWS;
        tile->bands[r / BAND_ROWS] = (range){first, end - first};
    }
}

/* Return the labels of the queries from a position on with the keys from `begin` to `visible`. With relations, these
   are all labels. */
INLINE range label_range(const arguments *a, idx position, idx queries, idx begin, idx visible) {
    if (a->relations.data) return (range){0, a->labels};
    const idx first = clamp(a->left + begin - (position + queries - 1), 0, a->labels - 1);
    return (range){first, clamp(a->left + visible - position, first + 1, a->labels) - first};
}

/* Return whether several keys of one of these queries may have the same label: with relations, or beyond an edge. */
INLINE int labels_repeat(const arguments *a, idx position, idx visible) {
    if (a->relations.data) return 1;
    return a->clips && (position + QUERIES - 1 > a->left || a->left + visible - position > a->labels);
}

/* Return whether `labels_repeat` may hold for any query of the call. */
INLINE int labels_may_repeat(const arguments *a) {
    const idx last = a->query_offset + round_up(a->queries, QUERIES) - QUERIES;
    return (a->clips && a->query_offsets) || labels_repeat(a, last, 0) || labels_repeat(a, a->query_offset, a->keys);
}

/* Return the labels of QUERIES queries. The range starts at a multiple of KEYS labels after the first loaded label, since
   KEYS labels are transposed at a time. */
INLINE range tile_label_range(const arguments *a, idx position, idx begin, idx visible, range loaded) {
    const range labels = label_range(a, position, QUERIES, begin, visible);
    const idx extra = (labels.first - loaded.first) % KEYS;
    return (range){labels.first - extra, labels.count + extra};
}

/* Return the label of a pair, or -1, which has no term, if it is out of range. */
INLINE idx relation_label(const arguments *a, idx i) {
    int64_t label;
    switch (a->relations_size) {
        case 1: label = ((const int8_t *)a->relations.data)[i]; break;
        case 2: label = ((const int16_t *)a->relations.data)[i]; break;
        case 4: label = ((const int32_t *)a->relations.data)[i]; break;
        default: label = ((const int64_t *)a->relations.data)[i];
    }
    return label >= 0 && label < a->labels ? label : -1;
}

INLINE idx pair_offset(const array *x, const tile_info *tile, idx r) {
    return tile->b * x->batch_stride + tile->h * x->head_stride + (tile->first_query + r) * x->row_stride +
           tile->first_key;
}

/* Return the statistics of a tile's rows that the forward pass stores for the backward pass. */
enum { BASE, LOG2_SUM };
INLINE real *stats_of_rows(const arguments *a, const tile_info *tile, idx which) {
    if (!a->cu_seqlens)
        return (real *)a->row_stats + ((which * a->batch + tile->b) * a->heads + tile->h) * round_up(a->queries, PADDING) +
               tile->first_query;
    const idx sequence = a->cu_seqlens[tile->b] / PADDING * PADDING + PADDING * tile->b,
              all = a->cu_seqlens[a->batch] / PADDING * PADDING + PADDING * a->batch;
    return (real *)a->row_stats + (which * a->heads + tile->h) * all + sequence + tile->first_query;
}

/* Return the vectors that are multiplied with the table of keys. */
INLINE matrix load_rel_query(const arguments *a, const tile_info *tile, idx num_rows, matrix query, real *scratch) {
    return a->rel_query.data
               ? load_rows(a, &a->rel_query, tile->b, tile->h, tile->first_query, num_rows, a->rel_dim, scratch)
               : query;
}

/* The labels that a row of strips needs: `count` from `first` on for row 0, and `step` further, 1 or -1, for each next
   row. With relations, every row needs all labels. */
typedef struct {
    idx first, count, step;
} row_labels;

INLINE row_labels labels_of_rows(const arguments *a, const tile_info *tile, idx position, idx visible) {
    if (a->relations.data) return (row_labels){0, a->labels, 0};
    return (row_labels){a->left + tile->keys_begin - position, visible - tile->keys_begin, -1};
}

/* Return the number of rows for which the same labels are computed. Fewer rows need fewer labels. */
INLINE idx label_block_rows(row_labels rows, range labels, idx count) {
    return rows.step != 0 && labels.count > KEYS ? 4 * MICRO_ROWS : count;
}

/* Return the labels, counted from the first of `labels`, that the rows from r to `end` need, from a multiple of PANEL
   on. A row beyond an edge needs the edge. */
INLINE range labels_of_block(row_labels rows, idx r, idx end, range labels) {
    const idx low = rows.first + rows.step * (rows.step < 0 ? end - 1 : r) - labels.first;
    const idx high = rows.first + rows.count + rows.step * (rows.step < 0 ? r : end - 1) - labels.first;
    const idx first = clamp(low, 0, labels.count - 1) / PANEL * PANEL;
    return (range){first, clamp(high, first + 1, labels.count) - first};
}

/* Multiply rows of x with rows of a table. Write the scores of the labels that each row needs to its strip, after the
   margin. */
static void compute_label_scores(real *strips, idx width, idx margin, matrix x, idx count, idx dim, const table *t,
                                 range labels, row_labels rows) {
    const idx padded_dim = round_up(dim, PADDING), first_row = labels.first - t->labels.first;
    const idx gemm_labels = t->transposed ? gemm_label_count(labels.count) : 0;
    const idx block_rows = label_block_rows(rows, labels, count);
    real *strip = strips + margin;
    for (idx r = 0, end; r < count && gemm_labels > 0; r = end) {
        end = r + block_rows < count ? r + block_rows : count;
        const range block = labels_of_block(rows, r, end, (range){labels.first, gemm_labels});
        gemm(strip + r * width + block.first, width, x.data + r * x.row_stride, x.row_stride, 1,
             t->transposed + (first_row + block.first) * padded_dim, PANEL, padded_dim * PANEL, end - r,
             round_up(block.count, LANES), dim, 0);
    }
    for (idx r = 0; r < count; r++)
        for (idx l = gemm_labels; l < labels.count; l++) {
            const real *row = t->loaded_rows.data + (first_row + l) * t->loaded_rows.row_stride;
            vec sum = splat(0);
            for (idx i = 0; i < padded_dim; i += LANES) sum += VEC(x.data + r * x.row_stride + i) * VEC(row + i);
            strip[r * width + l] = reduce_sum(sum);
        }
}

/* Fill the margins of strips with the scores of the edge labels, or with zeros if labels are not clipped. Relations
   need the zero before label 0 for pairs without a label. */
INLINE void fill_margins(idx clips, real *strips, idx width, idx margin, idx count, range labels) {
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *scores = strip + margin, *end = scores + labels.count;
        const vec left_edge = splat(clips ? scores[0] : 0), right_edge = splat(clips ? end[-1] : 0);
        for (idx i = 0; i < margin; i += LANES) VEC(strip + i) = left_edge;
        for (idx i = 0; i < margin; i += LANES) VEC(end + i) = right_edge;
    }
}

/* The slots of a tile's keys in the strip of a row. */
typedef struct {
    idx offset;  /* first slot; not used with relations */
    int is_edge; /* whether all keys have the same edge label */
} strip_slice;

/* Where the slices of a tile's rows are. */
typedef struct {
    idx width; /* of a strip */
    idx slot;  /* of the first key of the first row, if there were no edges */
    idx end;   /* last slot at which a slice begins */
} strip_layout;

INLINE strip_layout strip_layout_of(const arguments *a, const tile_info *tile, idx position) {
    const idx margin = margin_size(a);
    return (strip_layout){strip_width(a), tile->first_key - position + a->left - tile->labels.first + margin,
                          tile->labels.count + margin};
}

INLINE strip_slice strip_slice_of(strip_layout strips, idx r, int has_relations) {
    const idx offset = clamp(strips.slot - r, 0, strips.end);
    return (strip_slice){offset, !has_relations && (offset == 0 || offset == strips.end)};
}

/* Compute the slots of a row's keys from their relations. A label that is out of range gets the slot before label 0. */
INLINE void relation_slots(const arguments *a, const tile_info *tile, idx r, int32_t *slots) {
    const idx first_pair = pair_offset(&a->relations, tile, r), margin = margin_size(a), end = a->labels;
#define RELATION_SLOTS(type)                                                                                           \
    for (idx j = 0; j < tile->num_keys; j++) {                                                                         \
        const type label = ((const type *)a->relations.data)[first_pair + j];                                          \
        slots[j] = (int32_t)(margin + (label >= 0 && label < end ? label : -1));                                       \
    }
    switch (a->relations_size) { /* outside the loops, so that the compiler can vectorise them */
        case 1: RELATION_SLOTS(int8_t); break;
        case 2: RELATION_SLOTS(int16_t); break;
        case 4: RELATION_SLOTS(int32_t); break;
        default: RELATION_SLOTS(int64_t);
    }
#undef RELATION_SLOTS
}

/* Return the relative terms of a row's keys: a slice of its strip or, with relations, the terms in `slots`, copied to
   `scratch`. */
INLINE const real *gather_terms(int has_relations, const tile_info *tile, const real *strip, strip_slice slice,
                                const int32_t *slots, real *scratch) {
    if (!has_relations) return strip + slice.offset;
    for (idx j = 0; j < tile->num_keys; j++) scratch[j] = strip[slots[j]];
    for (idx j = tile->num_keys; j < tile->num_vecs * LANES; j++) scratch[j] = 0;
    return scratch;
}

/* ---- flags of the rows of a tile: compile-time constants for the common combinations ---- */

enum { TILE_VECS = KEYS / LANES };
enum {
    KEY_TERMS = 1,   /* the call has rel_key */
    VALUE_TERMS = 2, /* the call has rel_value */
    FULL_TILE = 4,   /* the tile has KEYS keys, and the window hides none of them */
    BANDED = 16,     /* the window hides some keys of the tile from some queries */
    FAST_PATH = 8,   /* no relations, mask, bias or dropout, and a positive scale */
    PAIR_BIAS = 32,  /* the call has a bias per pair */
};

/* Return the range of vectors of a row that are computed: all, or the vectors of its band. */
INLINE range row_vectors(const tile_info *tile, idx r, const int flags) {
    if (!(flags & BANDED)) return (range){0, flags & FULL_TILE ? TILE_VECS : tile->num_vecs};
    const range band = tile->bands[r / BAND_ROWS];
    const idx first = band.first / LANES, end = round_up(band.first + band.count, BAND_ROWS) / LANES;
    return (range){first, band.count == 0 ? 0 : (end < tile->num_vecs ? end : tile->num_vecs) - first};
}

/* Return the biases of a row's keys, in the array or copied to `scratch`. */
INLINE const real *load_bias(const arguments *a, const tile_info *tile, idx r, real *scratch) {
    const idx start = pair_offset(&a->bias, tile, r), count = tile->num_keys, padded = tile->num_vecs * LANES;
    if (a->type == REAL && count == padded) return (const real *)a->bias.data + start;
    if (a->type == REAL) load_row(scratch, a->bias.data, start, count, padded, REAL);
    else if (a->type == FLOAT16) load_row(scratch, a->bias.data, start, count, padded, FLOAT16);
    else load_row(scratch, a->bias.data, start, count, padded, BFLOAT16);
    return scratch;
}

/* Add biases to scores in units of log2(e). `apply_mask` hides the pairs whose bias is -inf. */
INLINE void add_bias(range vecs, const real *biases, vec *scores) {
#pragma GCC unroll 16
    for (idx v = vecs.first; v < vecs.first + vecs.count; v++) {
        const vec bias = VEC(biases + v * LANES), at_least = vec_max(splat(-MAX_BIAS), bias);
        const vec clamped = blend(bias == splat(INFINITY), bias, -vec_max(splat(-MAX_BIAS), -at_least));
        scores[v] = clamped * LOG2_E + (clamped * LOG2_E_LO + scores[v]);
    }
}

/* Set the scores of hidden pairs of a row to -inf. Return whether the row attends to a key. */
INLINE int apply_mask(const arguments *a, const tile_info *tile, idx r, idx position, range vecs, const real *biases,
                      vec *scores) {
    const idx end = clamp(window_end(a, position) - tile->first_key, 0, tile->num_keys);
    const idx begin = clamp(window_begin(a, position) - tile->first_key, 0, end);
    for (idx v = vecs.first; v * LANES < begin; v++)
        scores[v] = blend(lane_indices((integer)(v * LANES)) >= (integer)begin, scores[v], splat(-INFINITY));
    for (idx v = end / LANES; v < vecs.first + vecs.count; v++)
        scores[v] = blend(lane_indices((integer)(v * LANES)) < (integer)end, scores[v], splat(-INFINITY));
    if (!a->mask.data && !biases) return end > begin;
    if (!a->mask.data) {
        ivec any_allowed = {0};
        for (idx v = vecs.first; v < vecs.first + vecs.count; v++) {
            const ivec shown = VEC(biases + v * LANES) != splat(-INFINITY);
            scores[v] = blend(shown, scores[v], splat(-INFINITY));
            if (v * LANES >= begin && (v + 1) * LANES <= end) any_allowed |= shown;
            else {
                const ivec key = lane_indices((integer)(v * LANES));
                any_allowed |= shown & (key >= (integer)begin) & (key < (integer)end);
            }
        }
        return any_lane(any_allowed);
    }
    typedef uint8_t byte_vec __attribute__((vector_size(LANES)));
    const uint8_t *mask = (const uint8_t *)a->mask.data + pair_offset(&a->mask, tile, r);
    ivec any_allowed = {0};
    for (idx v = vecs.first; v * LANES < end; v++) {
        const idx remaining = end - v * LANES;
        byte_vec allowed = {0};
        memcpy(&allowed, mask + v * LANES, remaining < LANES ? remaining : LANES);
        for (idx i = v * LANES; i < begin && i < (v + 1) * LANES; i++) allowed[i - v * LANES] = 0;
        ivec shown = __builtin_convertvector(allowed, ivec) != 0;
        if (biases) shown &= VEC(biases + v * LANES) != splat(-INFINITY);
        any_allowed |= shown;
        scores[v] = blend(shown, scores[v], splat(-INFINITY));
    }
    return any_lane(any_allowed);
}

/* ---- dropout: a counter-based generator, so that the backward pass draws the same numbers ---- */

enum { DRAWS = 1 << 24 };
typedef uint32_t uint32_vec __attribute__((vector_size(4 * LANES)));
typedef int32_t int32_vec __attribute__((vector_size(4 * LANES)));

INLINE int has_dropout(const arguments *a) { return a->keep_threshold < DRAWS; }

/* Return a random number per row: splitmix64 of the seed and the row (Steele, Lea and Flood 2014). */
INLINE uint32_t dropout_row_key(const arguments *a, const tile_info *tile, idx r) {
    const uint64_t row = ((uint64_t)tile->b * a->heads + tile->h) * a->queries + tile->first_query + r;
    uint64_t x = a->seed + (row + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(x ^ (x >> 31));
}

/* Return which of LANES keys from `key` on a row keeps. A hash of the key index ("lowbias32", Wellons 2018) is compared
   with the threshold. */
INLINE ivec dropout_mask(const arguments *a, uint32_t row_key, idx key) {
    uint32_vec x = (__builtin_convertvector(lane_indices((integer)key), uint32_vec) + 1) * 0x9E3779B9u ^ row_key;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return __builtin_convertvector((int32_vec)(x >> 8) < (int32_t)a->keep_threshold, ivec);
}

INLINE int row_flags(const arguments *a, const tile_info *tile, idx position) {
    const int fast_path = !a->mask.data && !a->bias.data && !a->relations.data && !has_dropout(a) && (real)a->scale > 0;
    return (a->bias.data ? PAIR_BIAS : 0) | (a->rel_key.data ? KEY_TERMS : 0) | (a->rel_value.data ? VALUE_TERMS : 0) |
           (tile->is_banded ? BANDED : tile->num_keys == KEYS ? FULL_TILE : 0) | (fast_path ? FAST_PATH : 0);
}

/* ---- sums of probabilities, or of gradients of scores, by label ---- */

INLINE void zero_label_sums(const arguments *a, real *strips, idx count, const tile_info *tile) {
    for (idx r = 0; r < count; r++) memset(strips + r * strip_width(a), 0, sizeof(real) * used_strip_width(a, tile));
}

/* Add the values of a row's pairs to the slots of their labels, for some vectors of the row. */
INLINE void scatter_add(const tile_info *tile, range vecs, const real *values, const int32_t *slots, real *strip) {
    const idx end = (vecs.first + vecs.count) * LANES;
    for (idx j = vecs.first * LANES; j < end && j < tile->num_keys; j++) strip[slots[j]] += values[j];
}

/* Add the margins to the edge labels. This is the gradient of `fill_margins`. */
INLINE void fold_margins(idx clips, real *strips, idx width, idx margin, idx count, range labels) {
    if (!clips) return;
    for (idx r = 0; r < count; r++) {
        real *strip = strips + r * width, *sums = strip + margin, *end = sums + labels.count;
        vec left_sum = splat(0), right_sum = splat(0);
        for (idx i = 0; i < margin; i += LANES) left_sum += VEC(strip + i);
        for (idx i = 0; i < margin; i += LANES) right_sum += VEC(end + i);
        sums[0] += reduce_sum(left_sum);
        end[-1] += reduce_sum(right_sum);
    }
}

/* Compute c (count, padded_dim) = or += label sums times the rows of a table. */
static void multiply_label_sums(matrix c, const real *sums, idx width, matrix table, idx count, idx padded_dim,
                                range labels, row_labels rows, int add) {
    const idx block_rows = label_block_rows(rows, labels, count);
    for (idx r = 0, end; r < count; r = end) {
        end = r + block_rows < count ? r + block_rows : count;
        const range block = labels_of_block(rows, r, end, labels);
        gemm(c.data + r * c.row_stride, c.row_stride, sums + r * width + block.first, width, 1,
             table.data + block.first * table.row_stride, table.row_stride, PANEL, end - r, padded_dim, block.count,
             add);
    }
}

/* Add the products of label sums, transposed, and x (count, padded_dim) to the gradients of the rows of a table. */
static void add_table_gradients(real *d_rows, const real *sums, idx width, matrix x, idx count, idx padded_dim,
                                range labels, row_labels rows) {
    const idx block_rows = label_block_rows(rows, labels, count);
    for (idx r = 0, end; r < count; r = end) {
        end = r + block_rows < count ? r + block_rows : count;
        const range block = labels_of_block(rows, r, end, labels);
        gemm(d_rows + block.first * padded_dim, padded_dim, sums + r * width + block.first, 1, width,
             x.data + r * x.row_stride, x.row_stride, PANEL, block.count, padded_dim, end - r, 1);
    }
}

/* Correct dS so that it sums to zero over the labels of a row. Otherwise rounding errors of delta would add up on an
   edge label, which most keys may have. */
INLINE void center_ds_sums(const arguments *a, real *ds_label_sums, const real *label_sums, idx count,
                           const tile_info *tile) {
    const idx width = strip_width(a), used_width = used_strip_width(a, tile);
    for (idx r = 0; r < count; r++, ds_label_sums += width, label_sums += width) {
        vec ds_sum = splat(0), weight_sum = splat(0);
        for (idx i = 0; i < used_width; i += LANES) ds_sum += VEC(ds_label_sums + i), weight_sum += VEC(label_sums + i);
        const real weight_total = reduce_sum(weight_sum);
        const real correction = weight_total > 0 ? reduce_sum(ds_sum) / weight_total : 0;
        for (idx i = 0; i < used_width; i += LANES) VEC(ds_label_sums + i) -= correction * VEC(label_sums + i);
    }
}

#endif
