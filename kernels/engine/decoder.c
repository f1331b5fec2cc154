/* One step of a Transformer decoder for a batch of hypotheses, from their last tokens to the best next ones, and the
   encoder.

   Each row is a hypothesis. The rows of a source sentence are consecutive, and attend to its keys and values together.
   In the encoder, each row is a token of a source sentence. A tile of rows passes through all layers, so that its
   activations stay in the processor's cache. Logits are computed in blocks of columns. Each block updates a row's
   maximum, its sum of exponentials and its best candidates.

   The order of every sum depends on the sizes of the sentence only. So a result does not depend on the other rows, on
   threads or on the alignment of memory.

   Scores are in units of log2(e), so that the softmax needs powers of 2 only. The relative terms of a row are a strip
   with one score per label. The terms of consecutive keys are a contiguous slice of it (see `attention.c`). */

#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include <stdlib.h>
#include <sys/mman.h>

#include "relattn_mt.h"
#include "../simd/vectors.h"

typedef relattn_mt_map map;
typedef relattn_mt_norm norm;
typedef relattn_mt_layer layer;
typedef relattn_mt_step arguments;
typedef relattn_mt_memory memory;
typedef relattn_mt_search search;

enum { RELU, GELU, GELU_TANH, GELU_SIGMOID, SWISH }; /* activations, as in `relattn_mt.h` */
enum { PADDING = 16, BLOCK = 16 };
enum { MARGIN = 16 };                  /* slots of a strip before label 0, and after the last label */
enum { TILE_ROWS = 240 };              /* maximum number of rows per tile */
enum { ROWS = 96, INNER_BLOCK = 256 }; /* block of rows and of inputs in a linear layer */
enum { INT8_ROWS = 48 };               /* block of rows in a feed-forward network in 8 bits */
enum { LOGIT_COLUMNS = 256 };          /* block of logits, a multiple of PANEL */
enum { QUERIES = 48 };                 /* block of queries in the encoder's attention */

#include "../simd/int8.h"

typedef struct {
    idx padded_labels, strip_len;               /* of a head */
    idx joined_dim;                             /* of all heads */
    idx padded_dim, hidden_dim, padded_src_len; /* row lengths of the buffers */
} sizes;

static sizes sizes_of(const arguments *a) {
    idx hidden_dim = 3 * a->heads * a->head_dim;
    for (idx l = 0; l < a->layer_count; l++)
        if (a->layers[l].feed_in.outputs > hidden_dim) hidden_dim = a->layers[l].feed_in.outputs;
    const idx padded_labels = round_up(a->left + 1 + a->right, PADDING), joined_dim = a->heads * a->head_dim,
              padded_dim = round_up(a->dim, PADDING);
    return (sizes){padded_labels, padded_labels + 2 * MARGIN,   joined_dim, padded_dim,
                   hidden_dim,    round_up(a->src_len, PADDING)};
}

typedef struct { /* buffers of a tile; codes are those of INT8_ROWS rows of `hidden`, and of other operands */
    real *x, *y, *hidden, *strips, *label_sums, *scores, *keys, *values, *logits, *max_logits, *exp_sums;
    real *hidden_codes, *hidden_scales, *codes, *scales;
} buffers;

/* Return the number of rows per tile. A tile of the encoder has whole sentences. */
static idx max_tile_rows(const arguments *a) {
    idx total = 0, max_rows = TILE_ROWS;
    for (idx i = 0; i < a->rows && a->encoded; total += a->src_lengths[i++])
        if (a->src_lengths[i] > max_rows) max_rows = a->src_lengths[i];
    if (a->encoded) return total < max_rows ? total : max_rows;
    max_rows = TILE_ROWS / a->per_source * a->per_source;
    if (max_rows == 0) max_rows = a->per_source;
    return max_rows < a->rows ? max_rows : a->rows;
}

static idx assign_buffers(buffers *b, const arguments *a, real *memory) {
    const sizes s = sizes_of(a);
    const idx num_rows = max_tile_rows(a), max_dim = s.padded_dim > s.joined_dim ? s.padded_dim : s.joined_dim,
              num_strips = a->encoded ? QUERIES : num_rows * a->heads;
    const idx self_scores = round_up(a->position + 1, BLOCK) + PADDING,
              src_scores = (a->encoded ? QUERIES : a->per_source) * s.padded_src_len,
              num_keys = a->encoded ? round_up(a->src_len, PANEL) : 0, num_logits = a->encoded ? 0 : num_rows;
    const int quantizes = !a->embedding;
    const idx counts[] = {num_rows * s.padded_dim,
                          num_rows * max_dim,
                          num_rows * s.hidden_dim,
                          num_strips * s.strip_len,
                          num_strips * s.padded_labels,
                          self_scores > src_scores ? self_scores : src_scores,
                          num_keys * a->head_dim,
                          num_keys * a->head_dim,
                          num_logits * LOGIT_COLUMNS,
                          num_logits,
                          num_logits,
                          quantizes * INT8_ROWS * s.hidden_dim / (idx)sizeof(real),
                          2 * INT8_ROWS,
                          quantizes * num_rows * max_dim / (idx)sizeof(real),
                          2 * num_rows};
    real **fields[] = {&b->x,          &b->y,        &b->hidden,       &b->strips,        &b->label_sums, &b->scores,
                       &b->keys,       &b->values,   &b->logits,       &b->max_logits,    &b->exp_sums,
                       &b->hidden_codes, &b->hidden_scales, &b->codes, &b->scales};
    idx total = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; total += round_up(counts[i++], PADDING))
        *fields[i] = memory + total;
    return total;
}

/* Return the size of the workspace of a step, in `real` elements. */
static idx relattn_space(const arguments *a) {
    buffers b;
    return assign_buffers(&b, a, NULL);
}

/* ---- linear layers ---- */

enum { ROW_PANELS = 4, ROW_COLUMNS = ROW_PANELS * PANEL }; /* computed at a time for a single row */

/* Multiply one row by some panels, in the order of `gemm`. Several panels hide the latency of additions. */
INLINE void row_kernel(real *c, const real *x, const real *b, idx ldb, idx panel, idx inner, int add) {
    vec sums[ROW_PANELS][MICRO_VECS];
#pragma GCC unroll 4
    for (int i = 0; i < ROW_PANELS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) sums[i][v] = splat(0);
    for (idx k = 0; k < inner; k++)
#pragma GCC unroll 4
        for (int i = 0; i < ROW_PANELS; i++)
#pragma GCC unroll 4
            for (int v = 0; v < MICRO_VECS; v++) sums[i][v] += x[k] * VEC(b + i * panel + k * ldb + v * LANES);
#pragma GCC unroll 4
    for (int i = 0; i < ROW_PANELS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            real *to = c + i * PANEL + v * LANES;
            if (add) VEC(to) += sums[i][v];
            else VEC(to) = sums[i][v];
        }
}

/* Like `gemm`, for contiguous rows of `a`. It is faster for a single row. */
INLINE void rows_gemm(real *c, idx ldc, const real *a, idx lda, const real *b, idx ldb, idx panel, idx m, idx n,
                      idx inner, int add) {
    if (m > 1) {
        gemm(c, ldc, a, lda, 1, b, ldb, panel, m, n, inner, add);
        return;
    }
    idx j = 0;
    for (; j + ROW_COLUMNS <= n; j += ROW_COLUMNS, b += ROW_PANELS * panel)
        row_kernel(c + j, a, b, ldb, panel, inner, add);
    gemm(c + j, ldc, a, lda, 1, b, ldb, panel, 1, n - j, inner, add);
}

/* Return the logistic function of x. */
INLINE vec logistic(vec x) {
    const vec power = vec_exp2(-vec_max(x * LOG2_E, splat(-126)));
    return 1 / (1 + power);
}

/* Return the error function of x, with an error of at most 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
INLINE vec error_function(vec x) {
    const vec magnitude = vec_max(x, -x), t = 1 / (1 + (real)0.3275911 * magnitude);
    const vec sum = ((((real)1.061405429 * t - (real)1.453152027) * t + (real)1.421413741) * t - (real)0.284496736) * t;
    const vec y = 1 - (sum + (real)0.254829592) * t * vec_exp2(-magnitude * magnitude * LOG2_E);
    return blend(x < splat(0), -y, y);
}

INLINE vec activation_of(vec x, const idx activation) {
    switch (activation) {
        case RELU: return vec_max(splat(0), x);
        case GELU: return x * (1 + error_function(x * (real)0.70710678118654752)) / 2;
        case GELU_TANH: return x * logistic((real)1.5957691216057308 * (x + (real)0.044715 * x * x * x));
        case GELU_SIGMOID: return x * logistic((real)1.702 * x);
        default: return x * logistic(x);
    }
}

INLINE void activate(real *c, idx ldc, idx m, idx n, const idx activation) {
    for (idx i = 0; i < m; i++)
        for (idx j = 0; j < n; j += LANES) VEC(c + i * ldc + j) = activation_of(VEC(c + i * ldc + j), activation);
}

/* Compute n outputs from `j` on, which is the first of a panel, of m rows. */
INLINE void float_panel(real *c, idx ldc, const linear_input *x, const map *w, idx j, idx n, idx m, int add) {
    for (idx r = 0; r < m; r++)
        for (idx v = 0; v < n; v += LANES) {
            if (add) VEC(c + r * ldc + v) += VEC(w->bias + j + v);
            else VEC(c + r * ldc + v) = VEC(w->bias + j + v);
        }
    for (idx k = 0; k < w->inputs; k += INNER_BLOCK) {
        const idx inner = w->inputs - k < INNER_BLOCK ? w->inputs - k : INNER_BLOCK;
        const real *weight = (const real *)w->weight + j * w->inputs + k * PANEL;
        rows_gemm(c, ldc, x->x + k, x->ldx, weight, PANEL, w->inputs * PANEL, m, n, inner, 1);
    }
}

enum { NO_ACTIVATION = -1 };

/* Compute the columns from `first` to `end` of c (m, outputs) = or += x (m, inputs) W + b, then apply an activation. */
static void linear_columns(real *c, idx ldc, const linear_input *x, const map *w, idx first, idx end, idx m, int add,
                           idx activation) {
    for (idx i = 0; i < m; i += ROWS) {
        const idx num_rows = m - i < ROWS ? m - i : ROWS;
        const idx columns = num_rows == 1 && w->kernel == FLOAT ? ROW_COLUMNS : PANEL;
        for (idx j = first; j < end; j += columns) {
            const idx n = end - j < columns ? end - j : columns;
            real *to = c + i * ldc + j - first;
            const linear_input rows = operand_rows(x, i);
            if (w->kernel == FLOAT) float_panel(to, ldc, &rows, w, j, n, num_rows, add);
            else int8_panel(to, ldc, &rows, w, j, n / LANES, num_rows, add);
            if (activation == RELU) activate(to, ldc, num_rows, n, RELU);
            else if (activation == GELU) activate(to, ldc, num_rows, n, GELU);
            else if (activation == GELU_TANH) activate(to, ldc, num_rows, n, GELU_TANH);
            else if (activation == GELU_SIGMOID) activate(to, ldc, num_rows, n, GELU_SIGMOID);
            else if (activation == SWISH) activate(to, ldc, num_rows, n, SWISH);
        }
    }
}

INLINE void linear(real *c, idx ldc, const linear_input *x, const map *w, idx m, int add) {
    linear_columns(c, ldc, x, w, 0, w->outputs, m, add, NO_ACTIVATION);
}

static void normalize(real *to, idx ldt, const real *from, const norm *n, idx num_rows, idx padded_dim, idx dim,
                      real epsilon) {
    for (idx r = 0; r < num_rows; r++) {
        const real *x = from + r * padded_dim;
        vec sum = splat(0), squares = splat(0);
        for (idx i = 0; i < padded_dim; i += LANES) sum += VEC(x + i);
        const real mean = reduce_sum(sum) / dim;
        for (idx i = 0; i < padded_dim; i += LANES) squares += (VEC(x + i) - mean) * (VEC(x + i) - mean);
        const real variance = (reduce_sum(squares) - (padded_dim - dim) * mean * mean) / dim; /* without padding */
        const real scale = 1 / sqrt(variance + epsilon);
        for (idx i = 0; i < padded_dim; i += LANES)
            VEC(to + r * ldt + i) = (VEC(x + i) - mean) * scale * VEC(n->weight + i) + VEC(n->bias + i);
    }
}

/* ---- attention ---- */

/* Replace scores by probabilities. Scores are allocated to a multiple of LANES; the padding may have any content. */
INLINE void softmax(real *s, idx count) {
    vec max_score = splat(-INFINITY), sum = splat(0);
    for (idx j = count; j % LANES != 0; j++) s[j] = -INFINITY;
    for (idx j = 0; j < count; j += LANES) max_score = vec_max(max_score, VEC(s + j));
    const real base = reduce_max(max_score);
    for (idx j = 0; j < count; j += LANES) {
        const vec p = vec_exp2(VEC(s + j) - base);
        VEC(s + j) = p;
        sum += p;
    }
    const real scale = 1 / reduce_sum(sum);
    for (idx j = 0; j < count; j += LANES) VEC(s + j) *= scale;
}

/* Compute the scores of a query and the positions of a block: q (dim) K (dim, BLOCK). At least four accumulators hide
   the latency of additions. */
INLINE void block_scores(real *to, const real *q, const real *keys, idx dim) {
    enum { VECS = BLOCK / LANES, CHAINS = VECS < 4 ? 4 / VECS : 1 };
    vec sums[CHAINS][VECS];
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) sums[c][v] = splat(0);
    for (idx d = 0; d < dim; d += CHAINS)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) sums[c][v] += q[d + c] * VEC(keys + (d + c) * BLOCK + v * LANES);
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++) {
#pragma GCC unroll 4
        for (int c = 1; c < CHAINS; c++) sums[0][v] += sums[c][v];
        VEC(to + v * LANES) = sums[0][v];
    }
}

/* Compute `num_vecs` vectors of p (count) V. The rows of V (count, dim) are in blocks. Even and odd rows have separate
   accumulators. */
INLINE void weighted_sum(const int num_vecs, real *out, const real *p, const real *const *blocks, idx offset, idx count,
                         idx dim) {
    vec sums[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < num_vecs; v++) sums[0][v] = sums[1][v] = splat(0);
    for (idx j = 0; j < count; j += BLOCK, blocks++) {
        const real *row = *blocks + offset;
        const idx block_len = count - j < BLOCK ? count - j : BLOCK;
        idx i = 0;
        for (; i + 1 < block_len; i += 2, row += 2 * dim)
#pragma GCC unroll 4
            for (int v = 0; v < num_vecs; v++) {
                sums[0][v] += p[j + i] * VEC(row + v * LANES);
                sums[1][v] += p[j + i + 1] * VEC(row + dim + v * LANES);
            }
        if (i < block_len)
#pragma GCC unroll 4
            for (int v = 0; v < num_vecs; v++) sums[0][v] += p[j + i] * VEC(row + v * LANES);
    }
#pragma GCC unroll 4
    for (int v = 0; v < num_vecs; v++) VEC(out + v * LANES) = sums[0][v] + sums[1][v];
}

static void rotate(real *x, const arguments *a, idx position) {
    const idx half = a->rotary_dim;
    const real *cosines = a->rotation + position * 2 * half, *sines = cosines + half;
    for (idx i = 0; i < half; i++) {
        const real first = x[i], second = x[i + half];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + half] = second * cosines[i] + first * sines[i];
    }
}

/* Labels from `first` to before `end`. */
typedef struct {
    idx first, end;
} label_range;

/* Return the labels of queries from `position` to `last` and keys before `count`. */
INLINE label_range labels_of(const arguments *a, idx position, idx last, idx count) {
    const idx labels = a->left + 1 + a->right, end = a->left + count - position;
    return (label_range){a->left > last ? a->left - last : 0, end < labels ? end : labels};
}

/* Compute the relative terms of the scores of some queries and a head by label: strips with row length `ld`. The queries
   have the positions from `position` to `last`, or one position. The keys are those before `count`. */
static void fill_strips(const arguments *a, const sizes *s, const layer *l, idx h, real *strips, idx ld, const real *q,
                        idx num_rows, idx position, idx last, idx count) {
    const label_range range = labels_of(a, position, last, count);
    const idx first = range.first / PANEL * PANEL, columns = round_up(range.end - first, LANES);
    real *to = strips + MARGIN + first;
    if (l->rel_bias)
        for (idx r = 0; r < num_rows; r++)
            memcpy(to + r * ld, l->rel_bias + h * s->strip_len + MARGIN + first, sizeof(real) * columns);
    gemm(to, ld, q, s->hidden_dim, 1, l->rel_key + h * l->rel_key_head + first * a->head_dim, PANEL,
         a->head_dim * PANEL, num_rows, columns, a->head_dim, l->rel_bias != NULL);
    for (idx r = 0; r < num_rows; r++, strips += ld) {
        real *labels = strips + MARGIN, *end = labels + a->left + 1 + a->right;
        for (idx i = 0; i < MARGIN && last > a->left; i++) strips[i] = a->clips ? labels[0] : 0;
        for (idx i = 0; i < MARGIN && count - 1 - position > a->right; i++) end[i] = a->clips ? end[-1] : 0;
    }
}

/* Add the terms of a strip to the scores of a query and all keys. */
INLINE void add_strip(const arguments *a, real *scores, const real *strip, idx position, idx count) {
    const idx labels = a->left + 1 + a->right;
    for (idx j = 0; j < count; j += LANES)
        VEC(scores + j) += VEC(strip + MARGIN + clamp(a->left - position + j, -LANES, labels));
}

INLINE real sum_of(const real *x, idx count) {
    vec sum = splat(0);
    real rest = 0;
    idx i = 0;
    for (; i + LANES <= count; i += LANES) sum += VEC(x + i);
    for (; i < count; i++) rest += x[i];
    return reduce_sum(sum) + rest;
}

/* Sum the probabilities of a query and all keys by label, for the labels that have a key. */
INLINE void sum_by_label(const arguments *a, real *label_sums, const real *p, idx position, idx count) {
    const idx num_before = position - a->left, end = position + a->right + 1; /* keys beyond the labels */
    const idx first = num_before > 0 ? num_before : 0, last = end < count ? end : count;
    memcpy(label_sums + a->left - position + first, p + first, sizeof(real) * (last - first));
    if (a->clips) {
        label_sums[0] += sum_of(p, first);
        label_sums[a->left + a->right] += sum_of(p + last, count - last);
    }
}

/* Compute y = causal self-attention of the queries in `hidden`. */
static void self_attention(const arguments *a, const sizes *s, idx layer_index, buffers *b, idx first_row,
                           idx num_rows) {
    const layer *l = a->layers + layer_index;
    const idx dim = a->head_dim, count = a->position + 1, key_size = dim * BLOCK;
    const real *const *blocks = (const real *const *)a->blocks;
    real *last_block = (real *)blocks[a->position / BLOCK];
    const idx block_offset = a->position % BLOCK;
    if (a->rotation)
        for (idx r = 0; r < num_rows; r++)
            for (idx h = 0; h < a->heads * 2; h++)
                rotate(b->hidden + r * s->hidden_dim + h * dim, a, a->position);
    for (idx h = 0; h < a->heads && l->rel_key; h++)
        fill_strips(a, s, l, h, b->strips + h * s->strip_len, a->heads * s->strip_len, b->hidden + h * dim, num_rows,
                    a->position, a->position, count);
    for (idx r = 0; r < num_rows; r++)
        for (idx h = 0; h < a->heads; h++) {
            const idx offset = (((first_row + r) * a->layer_count + layer_index) * a->heads + h) * 2 * key_size;
            const real *q = b->hidden + r * s->hidden_dim + h * dim, *key = q + s->joined_dim,
                       *value = key + s->joined_dim;
            real *keys = last_block + offset, *out = b->y + r * s->joined_dim + h * dim;
            for (idx i = 0; i < dim; i++) keys[i * BLOCK + block_offset] = key[i];
            memcpy(keys + key_size + block_offset * dim, value, sizeof(real) * dim);
            for (idx j = 0; j < count; j += BLOCK) block_scores(b->scores + j, q, blocks[j / BLOCK] + offset, dim);
            if (l->rel_key) add_strip(a, b->scores, b->strips + (r * a->heads + h) * s->strip_len, a->position, count);
            else if (l->rel_bias) add_strip(a, b->scores, l->rel_bias + h * s->strip_len, a->position, count);
            softmax(b->scores, count);
            idx i = 0;
            for (; i + 4 * LANES <= dim; i += 4 * LANES)
                weighted_sum(4, out + i, b->scores, blocks, offset + key_size + i, count, dim);
            for (; i + 2 * LANES <= dim; i += 2 * LANES)
                weighted_sum(2, out + i, b->scores, blocks, offset + key_size + i, count, dim);
            for (; i < dim; i += LANES) weighted_sum(1, out + i, b->scores, blocks, offset + key_size + i, count, dim);
            if (l->rel_value)
                sum_by_label(a, b->label_sums + (r * a->heads + h) * s->padded_labels, b->scores, a->position, count);
        }
    if (l->rel_value) {
        const idx first = a->left > a->position ? a->left - a->position : 0;
        for (idx h = 0; h < a->heads; h++)
            gemm(b->y + h * dim, s->joined_dim, b->label_sums + h * s->padded_labels + first,
                 a->heads * s->padded_labels, 1, l->rel_value + h * l->rel_value_head + first * dim, dim, PANEL,
                 num_rows, dim, a->left + 1 - first, 1);
    }
}

/* Compute y = self-attention of a sentence in the encoder, whose rows are the `count` rows of `hidden` from `row` on. */
static void sentence_attention(const arguments *a, const sizes *s, const layer *l, buffers *b, idx row, idx count) {
    const idx dim = a->head_dim, ld = s->padded_src_len;
    for (idx h = 0; h < a->heads; h++) {
        real *queries = b->hidden + row * s->hidden_dim + h * dim, *key = queries + s->joined_dim;
        for (idx j = 0; j < count; j++, key += s->hidden_dim) {
            if (a->rotation) rotate(queries + j * s->hidden_dim, a, j), rotate(key, a, j);
            real *to = b->keys + j / PANEL * dim * PANEL + j % PANEL;
            for (idx d = 0; d < dim; d++) to[d * PANEL] = key[d];
            memcpy(b->values + j * dim, key + s->joined_dim, sizeof(real) * dim);
        }
        for (idx i = 0; i < count; i += QUERIES) {
            const idx num_rows = count - i < QUERIES ? count - i : QUERIES, last = i + num_rows - 1;
            const label_range range = labels_of(a, i, last, count);
            const real *q = queries + i * s->hidden_dim;
            real *to = b->y + (row + i) * s->joined_dim + h * dim;
            gemm(b->scores, ld, q, s->hidden_dim, 1, b->keys, PANEL, dim * PANEL, num_rows, round_up(count, LANES), dim,
                 0);
            if (l->rel_key) fill_strips(a, s, l, h, b->strips, s->strip_len, q, num_rows, i, last, count);
            for (idx r = 0; r < num_rows; r++) {
                real *scores = b->scores + r * ld, *label_sums = b->label_sums + r * s->padded_labels;
                if (l->rel_key) add_strip(a, scores, b->strips + r * s->strip_len, i + r, count);
                else if (l->rel_bias) add_strip(a, scores, l->rel_bias + h * s->strip_len, i + r, count);
                softmax(scores, count);
                if (!l->rel_value) continue;
                memset(label_sums + range.first, 0, sizeof(real) * (range.end - range.first));
                sum_by_label(a, label_sums, scores, i + r, count);
            }
            gemm(to, s->joined_dim, b->scores, ld, 1, b->values, dim, PANEL, num_rows, dim, count, 0);
            if (l->rel_value)
                gemm(to, s->joined_dim, b->label_sums + range.first, s->padded_labels, 1,
                     l->rel_value + h * l->rel_value_head + range.first * dim, dim, PANEL, num_rows, dim,
                     range.end - range.first, 1);
        }
    }
}

/* Compute y = attention of the queries in `hidden` to their source sentences. */
static void cross_attention(const arguments *a, const sizes *s, const layer *l, buffers *b, idx first_row,
                            idx num_rows) {
    const idx dim = a->head_dim, memory_len = dim * s->padded_src_len, rows_per_source = a->per_source;
    for (idx r = 0; r < num_rows; r += rows_per_source) {
        const int64_t source = a->sources[(first_row + r) / rows_per_source];
        const idx count = a->src_lengths[source];
        for (idx h = 0; h < a->heads; h++) {
            const real *keys = l->memory + (source * a->heads + h) * 2 * memory_len;
            rows_gemm(b->scores, s->padded_src_len, b->hidden + r * s->hidden_dim + h * dim, s->hidden_dim, keys,
                      s->padded_src_len, PANEL, rows_per_source, round_up(count, LANES), dim, 0);
            for (idx i = 0; i < rows_per_source; i++) softmax(b->scores + i * s->padded_src_len, count);
            if (a->attention && l == a->layers + a->attention_layer && h < a->attention_heads)
                for (idx i = 0; i < rows_per_source; i++) {
                    real *to = a->attention + (first_row + r + i) * a->src_len;
                    for (idx j = 0; j < count; j++)
                        to[j] = (h > 0 ? to[j] : 0) + b->scores[i * s->padded_src_len + j] / a->attention_heads;
                }
            rows_gemm(b->y + r * s->joined_dim + h * dim, s->joined_dim, b->scores, s->padded_src_len,
                      keys + memory_len, dim, PANEL, rows_per_source, dim, count, 0);
        }
    }
}

/* ---- a step ---- */

/* Return the input of a sub-layer, whose first map is w: x, normalized with pre-norm. */
static linear_input sublayer_input(const arguments *a, const sizes *s, buffers *b, const norm *n, const map *w,
                              idx num_rows) {
    if (a->pre_norm) normalize(b->y, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
    return operand_of(a->pre_norm ? b->y : b->x, s->padded_dim, w, num_rows, b->codes, b->scales);
}

/* Normalize x, the output of a sub-layer, with post-norm. */
static void normalize_output(const arguments *a, const sizes *s, buffers *b, const norm *n, idx num_rows) {
    if (!a->pre_norm) normalize(b->x, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
}

/* Add a linear layer of the attention y to x. */
static void add_attention(const arguments *a, const sizes *s, buffers *b, const map *w, const norm *n, idx num_rows) {
    const linear_input y = operand_of(b->y, s->joined_dim, w, num_rows, b->codes, b->scales);
    linear(b->x, s->padded_dim, &y, w, num_rows, 1);
    normalize_output(a, s, b, n, num_rows);
}

/* Write the weights of an output to `to`: the embedding of a token, if outputs are tokens. */
static void read_output(real *to, const map *w, idx output) {
    const idx record = (w->kernel == PAIRS ? 12 : 8) * PANEL, records = round_up(w->inputs, GROUP) / 8;
    const int8_t *weight = (const int8_t *)w->weight + output / PANEL * records * record + output % PANEL * 4;
    const real scale = w->scales[output];
    for (idx k = 0; k < w->inputs; k++) to[k] = weight[k / 8 * record + k % 8 / 4 * (4 * PANEL) + k % 4] * scale;
}

/* Compute row `row` of x: the embedding of a token at a position. */
static void embed(const arguments *a, const sizes *s, buffers *b, idx row, int64_t token, idx position) {
    const real *from = a->embedding ? a->embedding + token * a->dim : b->y,
               *signal = a->signal ? a->signal + position * a->dim : NULL;
    real *x = b->x + row * s->padded_dim;
    if (!a->embedding) read_output(b->y, &a->embedding_map, token);
    for (idx i = 0; i < a->dim; i++) x[i] = from[i] * a->embedding_scale + (signal ? signal[i] : 0);
    for (idx i = a->dim; i < s->padded_dim; i++) x[i] = 0;
}

static void normalize_embeddings(const arguments *a, const sizes *s, buffers *b, idx num_rows) {
    const norm *n = &a->embedding_norm;
    if (n->weight) normalize(b->x, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
}

/* Add the feed-forward network of the input to x. In 8 bits, it computes few rows at a time, which stay in the cache. */
static void add_feed_forward(const arguments *a, const sizes *s, buffers *b, const layer *l, const linear_input *input,
                             idx num_rows) {
    const idx block = l->feed_in.kernel == FLOAT ? num_rows : INT8_ROWS;
    for (idx i = 0; i < num_rows; i += block) {
        const idx count = num_rows - i < block ? num_rows - i : block;
        const linear_input rows = operand_rows(input, i);
        linear_columns(b->hidden, s->hidden_dim, &rows, &l->feed_in, 0, l->feed_in.outputs, count, 0, a->activation);
        const linear_input hidden =
            operand_of(b->hidden, s->hidden_dim, &l->feed_out, count, b->hidden_codes, b->hidden_scales);
        linear(b->x + i * s->padded_dim, s->padded_dim, &hidden, &l->feed_out, count, 1);
    }
}

/* Add an SSRU of the gates and values in `hidden` to x, and update its states. */
static void add_ssru(const arguments *a, const sizes *s, idx layer_index, buffers *b, idx first_row, idx num_rows) {
    for (idx r = 0; r < num_rows; r++) {
        const real *gate = b->hidden + r * s->hidden_dim, *value = gate + s->padded_dim;
        real *state = *(real *const *)a->blocks + ((first_row + r) * a->layer_count + layer_index) * s->padded_dim,
             *x = b->x + r * s->padded_dim;
        for (idx i = 0; i < s->padded_dim; i += LANES) {
            const vec forget = logistic(VEC(gate + i)), before = a->position > 0 ? VEC(state + i) : splat(0);
            VEC(state + i) = forget * before + (1 - forget) * VEC(value + i);
            VEC(x + i) += vec_max(splat(0), VEC(state + i));
        }
    }
}

/* Run a layer. Rows are hypotheses from `first` on, or in the encoder those of the sources from `first` on. */
static void run_layer(const arguments *a, const sizes *s, idx layer_index, buffers *b, idx first, idx num_rows) {
    const layer *l = a->layers + layer_index;
    linear_input input = sublayer_input(a, s, b, &l->self_norm, &l->self_in, num_rows);
    linear(b->hidden, s->hidden_dim, &input, &l->self_in, num_rows, 0);
    if (a->encoded)
        for (idx i = 0, source = first; i < num_rows; i += a->src_lengths[source++])
            sentence_attention(a, s, l, b, i, a->src_lengths[source]);
    else if (a->ssru) add_ssru(a, s, layer_index, b, first, num_rows);
    else self_attention(a, s, layer_index, b, first, num_rows);
    if (a->ssru) normalize_output(a, s, b, &l->self_norm, num_rows);
    else add_attention(a, s, b, &l->self_out, &l->self_norm, num_rows);
    if (!a->encoded) {
        input = sublayer_input(a, s, b, &l->cross_norm, &l->cross_query, num_rows);
        linear(b->hidden, s->hidden_dim, &input, &l->cross_query, num_rows, 0);
        cross_attention(a, s, l, b, first, num_rows);
        add_attention(a, s, b, &l->cross_out, &l->cross_norm, num_rows);
    }
    input = sublayer_input(a, s, b, &l->feed_norm, &l->feed_in, num_rows);
    add_feed_forward(a, s, b, l, &input, num_rows);
    normalize_output(a, s, b, &l->feed_norm, num_rows);
}

/* Insert a candidate after all candidates that are at least as good. */
INLINE void insert_candidate(real *values, int64_t *tokens, idx best, real value, idx token) {
    idx i = best - 1;
    for (; i > 0 && values[i - 1] < value; i--) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
    values[i] = value;
    tokens[i] = token;
}

/* Update a row's maximum, sum of exponentials and best candidates with the logits of the outputs from `first` on. */
static void update_candidates(const arguments *a, idx row, real *logits, idx first, idx count, idx only, real *row_max,
                              real *row_sum) {
    vec max_logit = splat(*row_max), exp_sum = splat(0);
    for (idx j = 0; j < count; j += LANES) max_logit = vec_max(max_logit, VEC(logits + j));
    const real new_max = reduce_max(max_logit), base = new_max > -INFINITY ? new_max : 0;
    for (idx j = 0; j < count; j += LANES) exp_sum += vec_exp2((VEC(logits + j) - base) * LOG2_E);
    *row_sum = *row_sum * exp2((*row_max - base) * LOG2_E) + reduce_sum(exp_sum);
    *row_max = new_max;
    real *values = a->values + row * a->best;
    int64_t *tokens = a->candidates + row * a->best;
    if (only >= 0) {
        if (only >= first && only < first + count) values[0] = logits[only - first], tokens[0] = only;
        return;
    }
    for (idx i = 0; i < a->banned_count && !a->short_outputs; i++) {
        const idx token = a->banned[i] - first;
        if (token >= 0 && token < count) logits[token] = -INFINITY;
    }
    for (idx j = 0; j < count; j += LANES)
        if (any_greater(VEC(logits + j), values[a->best - 1]))
            for (idx i = j; i < j + LANES; i++)
                if (logits[i] > values[a->best - 1]) insert_candidate(values, tokens, a->best, logits[i], first + i);
}

/* Return the index of a token in a shortlist. */
INLINE idx position_of(idx token, const int64_t *tokens, idx count) {
    idx i = 0;
    while (i < count - 1 && tokens[i] != token) i++;
    return i;
}

/* Compute the logits of y and, if `best` is not 0, the best candidates of each row. */
static void compute_logits(const arguments *a, buffers *b, const linear_input *y, idx first_row, idx num_rows) {
    for (idx r = 0; r < num_rows; r++) {
        b->max_logits[r] = -INFINITY;
        b->exp_sums[r] = 0;
        for (idx i = 0; i < a->best; i++) {
            a->values[(first_row + r) * a->best + i] = -INFINITY;
            a->candidates[(first_row + r) * a->best + i] = 0;
        }
    }
    const idx group = a->short_outputs ? a->per_source : num_rows; /* rows with the same outputs */
    for (idx i = 0; i < num_rows && (a->logits || a->best > 0); i += group) {
        const idx source = a->short_outputs ? a->sources[(first_row + i) / group] : 0;
        const map *w = a->short_outputs ? a->short_outputs + source : &a->output;
        const int64_t *tokens = a->short_outputs ? a->shortlist + a->shortlist_begins[source] : NULL;
        const linear_input rows = operand_rows(y, i);
        for (idx j = 0; j < w->outputs; j += LOGIT_COLUMNS) {
            const idx count = w->outputs - j < LOGIT_COLUMNS ? w->outputs - j : LOGIT_COLUMNS;
            linear_columns(b->logits, LOGIT_COLUMNS, &rows, w, j, j + count, group, 0, NO_ACTIVATION);
            for (idx r = 0; r < group; r++) {
                const idx valid = a->vocab - j < count ? a->vocab - j : count, row = first_row + i + r;
                real *logits = b->logits + r * LOGIT_COLUMNS;
                idx only = a->only ? a->only[row] : -1;
                if (tokens && only >= 0) only = position_of(only, tokens, w->outputs);
                if (a->logits) memcpy(a->logits + row * a->vocab + j, logits, sizeof(real) * valid);
                if (a->best > 0)
                    update_candidates(a, row, logits, j, count, only, b->max_logits + i + r, b->exp_sums + i + r);
            }
        }
        int64_t *found = a->candidates + (first_row + i) * a->best;
        for (idx k = 0; tokens && k < group * a->best; k++) found[k] = tokens[found[k]];
    }
    for (idx r = 0; r < num_rows && a->best > 0; r++) {
        const real log_sum = b->max_logits[r] + log(b->exp_sums[r]);
        for (idx i = 0; i < a->best; i++) a->values[(first_row + r) * a->best + i] -= log_sum;
        if (a->log_sums) a->log_sums[first_row + r] = log_sum;
    }
}

static idx relattn_step(const arguments *a) {
    const sizes s = sizes_of(a);
    const idx max_rows = max_tile_rows(a);
    buffers b;
    assign_buffers(&b, a, a->space);
    for (idx first = 0; first < a->rows; first += max_rows) {
        const idx num_rows = a->rows - first < max_rows ? a->rows - first : max_rows;
        for (idx r = 0; r < num_rows; r++) embed(a, &s, &b, r, a->tokens[first + r], a->position);
        normalize_embeddings(a, &s, &b, num_rows);
        for (idx layer_index = 0; layer_index < a->layer_count; layer_index++)
            run_layer(a, &s, layer_index, &b, first, num_rows);
        const linear_input y = sublayer_input(a, &s, &b, &a->final_norm, &a->output, num_rows);
        compute_logits(a, &b, &y, first, num_rows);
    }
    return 0;
}

/* Run the encoder for `rows` sources. Each tile of rows has the tokens of some whole sources, without padding. */
static idx relattn_encode(const arguments *a) {
    const sizes s = sizes_of(a);
    const idx max_rows = max_tile_rows(a);
    buffers b;
    assign_buffers(&b, a, a->space);
    for (idx first = 0, last = 0; first < a->rows; first = last) {
        idx num_rows = 0;
        for (; last < a->rows && num_rows + a->src_lengths[last] <= max_rows; last++)
            for (idx i = 0; i < a->src_lengths[last]; i++)
                embed(a, &s, &b, num_rows++, a->tokens[last * a->src_len + i], i);
        normalize_embeddings(a, &s, &b, num_rows);
        for (idx layer_index = 0; layer_index < a->layer_count; layer_index++)
            run_layer(a, &s, layer_index, &b, first, num_rows);
        if (a->pre_norm)
            normalize(b.x, s.padded_dim, b.x, &a->final_norm, num_rows, s.padded_dim, a->dim, a->epsilon);
        const real *from = b.x;
        for (idx source = first; source < last; source++)
            for (idx i = 0; i < a->src_lengths[source]; i++, from += s.padded_dim)
                memcpy(a->encoded + (source * a->src_len + i) * a->dim, from, sizeof(real) * a->dim);
    }
    return 0;
}

enum { LARGE_PAGE = 1 << 21 };

/* Let the system use large pages for memory that was not used before: it has to clear and map each page. */
static void advise_large_pages(void *memory, idx bytes) {
#ifdef MADV_HUGEPAGE
    const idx skipped = round_up((idx)memory, LARGE_PAGE) - (idx)memory, left = (bytes - skipped) / LARGE_PAGE;
    if (left > 0) madvise((char *)memory + skipped, left * LARGE_PAGE, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* Return the number of outputs that are computed at a time: whole panels of some layers. */
INLINE idx memory_columns(const memory *a) {
    const idx layer_size = 2 * a->heads * a->head_dim;
    return layer_size % PANEL == 0 ? layer_size : a->keys_values.outputs;
}

/* Return the size of the workspace of `relattn_memory`, in `real` elements. */
static idx relattn_memory_space(const memory *a) {
    return INT8_ROWS * (memory_columns(a) + 2 + round_up(a->keys_values.inputs, GROUP) / (idx)sizeof(real));
}

static idx relattn_memory(const memory *a) {
    const idx layer_size = 2 * a->heads * a->head_dim, memory_len = a->head_dim * a->row_len, columns = memory_columns(a),
              num_sources = a->rows / a->src_len;
    advise_large_pages(a->to, num_sources * a->layer_count * a->heads * 2 * memory_len * (idx)sizeof(real));
    real *projected = a->space, *scales = projected + INT8_ROWS * columns, *codes = scales + 2 * INT8_ROWS;
    for (idx i = 0; i < a->rows; i += INT8_ROWS) {
        const idx num_rows = a->rows - i < INT8_ROWS ? a->rows - i : INT8_ROWS;
        const linear_input input = operand_of(a->x + i * a->x_row, a->x_row, &a->keys_values, num_rows, codes, scales);
        for (idx j = 0; j < a->layer_count * layer_size; j += columns) {
            linear_columns(projected, columns, &input, &a->keys_values, j, j + columns, num_rows, 0, NO_ACTIVATION);
            for (idx part = 0; part < columns / a->head_dim; part++)
                for (idx r = 0; r < num_rows; r++) {
                    const idx layer_index = (j + part * a->head_dim) / layer_size, kind = part / a->heads % 2;
                    const idx source = (i + r) / a->src_len, position = (i + r) % a->src_len;
                    const idx head = (layer_index * num_sources + source) * a->heads + part % a->heads;
                    const real *from = projected + r * columns + part * a->head_dim;
                    real *to = a->to + (head * 2 + kind) * memory_len;
                    if (kind == 1) memcpy(to + position * a->head_dim, from, sizeof(real) * a->head_dim);
                    else
                        for (idx d = 0; d < a->head_dim; d++) to[d * a->row_len + position] = from[d];
                }
        }
    }
    return 0;
}

/* Return the size of a row of a cache block, in `real` elements. */
INLINE idx cache_row_size(const arguments *a) {
    return a->layer_count * (a->ssru ? round_up(a->dim, PADDING) : a->heads * 2 * a->head_dim * BLOCK);
}

/* Return the number of blocks of the cache for a number of positions. */
INLINE idx cache_blocks(const arguments *a, idx positions) {
    return a->ssru ? positions > 0 : round_up(positions, BLOCK) / BLOCK;
}

static void copy_cache_rows(real *to_block, const real *from_block, const int64_t *from, const int64_t *to, idx count,
                            idx size) {
    for (idx i = 0; i < count; i++) memcpy(to_block + to[i] * size, from_block + from[i] * size, sizeof(real) * size);
}

/* Copy cache rows to other rows. No row may be both a source and a target. */
static idx relattn_move(const arguments *a, const int64_t *from, const int64_t *to, idx count) {
    real *const *blocks = (real *const *)a->blocks;
    for (idx b = 0; b < cache_blocks(a, a->position); b++)
        copy_cache_rows(blocks[b], blocks[b], from, to, count, cache_row_size(a));
    return 0;
}

/* Return the number of rows of four bytes that the panels of a map have: an input in float32, four in 8 bits, and the
   numbers to subtract of PAIRS. */
INLINE idx panel_rows_of(const map *w) {
    return w->kernel == FLOAT ? w->inputs : round_up(w->inputs, GROUP) / 8 * (w->kernel == PAIRS ? 3 : 2);
}

/* Copy some outputs of a map to `memory`, and return the map of them. */
static map select_outputs(const map *w, const int64_t *outputs, idx count, char **memory) {
    const idx depth = panel_rows_of(w), padded = round_up(count, PANEL), bytes = round_up(4 * padded, 64);
    int32_t *panels = (int32_t *)*memory, *sums = (int32_t *)(*memory + 4 * depth * padded);
    real *bias = (real *)((char *)sums + bytes), *scales = (real *)((char *)bias + bytes);
    memset(panels, 0, 4 * depth * padded), memset(sums, 0, bytes), memset(scales, 0, bytes);
    for (idx o = 0; o < padded; o++) bias[o] = -INFINITY;
    for (idx o = 0; o < count; o++) {
        const int32_t *from = (const int32_t *)w->weight + outputs[o] / PANEL * PANEL * depth + outputs[o] % PANEL;
        int32_t *to = panels + o / PANEL * PANEL * depth + o % PANEL;
        for (idx k = 0; k < depth; k++) to[k * PANEL] = from[k * PANEL];
        bias[o] = w->bias[outputs[o]], scales[o] = w->scales[outputs[o]];
        if (w->kernel != PAIRS) sums[o] = w->sums[outputs[o]];
        else if (w->sums[outputs[o] / PANEL] > sums[o / PANEL]) sums[o / PANEL] = w->sums[outputs[o] / PANEL];
    }
    *memory += 4 * depth * padded + 3 * bytes;
    return (map){panels, bias, scales, sums, w->inputs, round_up(count, PADDING), w->kernel};
}

#include "search.h"

/* ---- packing ---- */

/* Return whether numbers are finite, or absent. */
static int are_finite(const float *x, idx count) {
    for (idx i = 0; x && i < count; i++)
        if (!(x[i] - x[i] == 0)) return 0;
    return 1;
}

static idx relattn_pack(relattn_mt_packing *p) {
    idx kernel = p->kernel;
    const int8_t *codes = p->weight;
    const float *weight = p->weight;
    for (idx i = 0; kernel == PAIRS && i < p->outputs * p->inputs; i++)
        if (codes[i] > LARGEST_PAIRS || codes[i] < -LARGEST_PAIRS) kernel = GENERIC;
    const idx padded = round_up(p->outputs, PANEL), bytes = sizeof(float) * padded,
              size = kernel == FLOAT ? bytes * p->inputs : packed_size(kernel, p->outputs, p->inputs);
    if (!p->memory) return round_up(size, 64) + 3 * round_up(bytes, 64);
    char *memory = p->memory;
    float *bias = (float *)(memory + round_up(size, 64)), *scales = bias + round_up(bytes, 64) / sizeof(float);
    int32_t *sums = (int32_t *)scales + round_up(bytes, 64) / sizeof(float);
    if (!are_finite(p->bias, p->outputs) || !are_finite(p->scales, p->outputs) ||
        (kernel == FLOAT && !are_finite(weight, p->outputs * p->inputs)))
        return RELATTN_MT_NOT_FINITE;
    for (idx o = 0; o < padded; o++) {
        bias[o] = o >= p->outputs ? p->end_bias : p->bias ? p->bias[o] : 0;
        scales[o] = o < p->outputs && p->scales ? p->scales[o] : 0;
        for (idx k = 0; kernel == FLOAT && k < p->inputs; k++)
            ((float *)memory)[(o / PANEL * p->inputs + k) * PANEL + o % PANEL] =
                o < p->outputs ? weight[o * p->inputs + k] : 0;
    }
    if (kernel != FLOAT) pack_codes((int8_t *)memory, sums, codes, p->outputs, p->inputs, kernel);
    p->map = (map){memory, bias, scales, sums, p->inputs, round_up(p->outputs, PADDING), kernel};
    return round_up(size, 64) + 3 * round_up(bytes, 64);
}

/* ENGINE is relattn_x86_64_v3, for instance. `levels.c` leaves out int8 kernels that the processor does not run. */
const relattn_mt_engine ENGINE = {
    .level = LEVEL,
    .panel = PANEL,
    .int8_kernels = INT8_KERNELS,
    .pack = relattn_pack,
    .space = relattn_space,
    .memory_space = relattn_memory_space,
    .encode = relattn_encode,
    .memory = relattn_memory,
    .step = relattn_step,
    .move = relattn_move,
    .search = relattn_search,
};
