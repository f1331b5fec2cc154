/* Attention: the scores and probabilities of the decoder, the encoder and cross-attention. */

#ifndef RELATTN_ENGINE_ATTENTION_H
#define RELATTN_ENGINE_ATTENTION_H

#include "linear.h"

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

static void rotate(real *x, const step_arguments *a, idx position) {
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
INLINE label_range labels_of(const step_arguments *a, idx position, idx last, idx count) {
    const idx labels = a->left + 1 + a->right, end = a->left + count - position;
    return (label_range){a->left > last ? a->left - last : 0, end < labels ? end : labels};
}

/* Compute the relative terms of the scores of some queries and a head by label: strips with row length `ld`. The queries
   have the positions from `position` to `last`, or one position. The keys are those before `count`. */
static void fill_strips(const step_arguments *a, const sizes *s, const layer *l, idx h, real *strips, idx ld, const real *q,
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
INLINE void add_strip(const step_arguments *a, real *scores, const real *strip, idx position, idx count) {
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
INLINE void sum_by_label(const step_arguments *a, real *label_sums, const real *p, idx position, idx count) {
    const idx num_before = position - a->left, end = position + a->right + 1; /* keys beyond the labels */
    const idx first = num_before > 0 ? num_before : 0, last = end < count ? end : count;
    memcpy(label_sums + a->left - position + first, p + first, sizeof(real) * (last - first));
    if (a->clips) {
        label_sums[0] += sum_of(p, first);
        label_sums[a->left + a->right] += sum_of(p + last, count - last);
    }
}

/* Compute y = causal self-attention of the queries in `hidden`. */
static void self_attention(const step_arguments *a, const sizes *s, idx layer_index, buffers *b, idx first_row,
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
static void sentence_attention(const step_arguments *a, const sizes *s, const layer *l, buffers *b, idx row, idx count) {
    const idx dim = a->head_dim, ld = s->padded_src_len;
    for (idx h = 0; h < a->heads; h++) {
        real *queries = b->hidden + row * s->hidden_dim + h * dim, *key = queries + s->joined_dim;
        for (idx j = 0; j < count; j++, key += s->hidden_dim) {
            if (a->rotation) rotate(queries + j * s->hidden_dim, a, j), rotate(key, a, j);
            real *to = b->keys + j / PANEL * dim * PANEL + j % PANEL;
            for (idx d = 0; d < dim; d++) to[d * PANEL] = key[d];
            memcpy(b->values + j * dim, key + s->joined_dim, sizeof(real) * dim);
        }
        for (idx i = 0; i < count; i += QUERY_BLOCK) {
            const idx num_rows = count - i < QUERY_BLOCK ? count - i : QUERY_BLOCK, last = i + num_rows - 1;
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
static void cross_attention(const step_arguments *a, const sizes *s, const layer *l, buffers *b, idx first_row,
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

#endif
