/* One step of a Transformer's decoder for a batch of hypotheses: from the last pieces to the best next ones.

   Rows are hypotheses. Those of one source are consecutive, and attend to its keys and values together. A tile of rows
   passes through all layers while its activations stay in the processor's cache. Logits are computed for some columns
   at a time and reduced to a running maximum, a sum of exponentials and the best candidates of each row.

   Scores are in units of log2(e), so that a softmax is a power of 2. The relative terms of a row's scores are a strip
   with one number per label, and its keys read a contiguous run of it (see `attention.c`). */

#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include <stdlib.h>
#include <sys/mman.h>

#include "decoder.h"

enum { PADDING = 16, BLOCK = 16 };
enum { MARGIN = 16 };           /* numbers of a strip before label 0, and after the last label */
enum { TILE = 240 };            /* rows that pass through all layers at a time */
enum { ROWS = 96, INNER = 256 }; /* of the operands of a product at a time */
enum { COLUMNS = 256 };         /* logits of a row at a time, a multiple of PANEL */
enum { RELU, GELU, GELU_TANH, SWISH };

typedef struct { /* of the strips, of all heads of a layer's keys or values, and of rows of the buffers */
    idx labels, strip, joined, width, hidden, src_len;
} sizes;

static sizes sizes_of(const arguments *a) {
    idx hidden = 3 * a->heads * a->head_dim;
    for (idx l = 0; l < a->layer_count; l++)
        if (a->layers[l].feed_in.outputs > hidden) hidden = a->layers[l].feed_in.outputs;
    const idx labels = round_up(a->left + 1, PADDING), joined = a->heads * a->head_dim, width = round_up(a->dim, PADDING);
    return (sizes){labels, labels + 2 * MARGIN, joined, width, hidden, round_up(a->src_len, PADDING)};
}

typedef struct { /* buffers of a tile */
    real *x, *y, *hidden, *strips, *masses, *scores, *logits, *tops, *sums;
} buffers;

static idx tile_rows(const arguments *a) {
    const idx rows = TILE / a->per_source * a->per_source, most = rows > 0 ? rows : a->per_source;
    return most < a->rows ? most : a->rows;
}

static idx share(buffers *b, const arguments *a, real *space) {
    const sizes s = sizes_of(a);
    const idx rows = tile_rows(a), wide = s.width > s.joined ? s.width : s.joined, heads = rows * a->heads;
    const idx self = round_up(a->position + 1, BLOCK) + PADDING, cross = a->per_source * s.src_len;
    const idx counts[] = {rows * s.width,   rows * wide, rows * s.hidden, heads * s.strip, heads * s.labels,
                          self > cross ? self : cross, rows * COLUMNS, rows, rows};
    real **fields[] = {&b->x, &b->y, &b->hidden, &b->strips, &b->masses, &b->scores, &b->logits, &b->tops, &b->sums};
    idx total = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; total += round_up(counts[i++], PADDING)) *fields[i] = space + total;
    return total;
}

/* Number of `real` of the work space of a step. */
idx relattn_space(const arguments *a) {
    buffers b;
    return share(&b, a, NULL);
}

/* ---- maps ---- */

/* One row of a product, for some vectors of columns. The sums of every fourth number of x are separate, since an
   addition takes several cycles. */
INLINE void row_block(const int vecs, real *c, const real *x, const real *b, idx ldb, idx inner, int add) {
    vec sums[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) sums[i][v] = splat(0);
    idx k = 0;
    for (; k + 4 <= inner; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) sums[i][v] += x[k + i] * VEC(b + (k + i) * ldb + v * LANES);
    for (; k < inner; k++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) sums[0][v] += x[k] * VEC(b + k * ldb + v * LANES);
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) {
        const vec sum = (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
        if (add) VEC(c + v * LANES) += sum;
        else VEC(c + v * LANES) = sum;
    }
}

/* `product` with a (m, inner) in rows, which is faster for a single one. */
INLINE void rows_product(real *c, idx ldc, const real *a, idx lda, const real *b, idx ldb, idx panel, idx m, idx n,
                         idx inner, int add) {
    if (m > 1) {
        gemm(c, ldc, a, lda, 1, b, ldb, panel, m, n, inner, add);
        return;
    }
    for (idx j = 0; j < n; j += PANEL, b += panel)
        if (n - j >= PANEL) row_block(MICRO_VECS, c + j, a, b, ldb, inner, add);
        else
            for (idx v = 0; v < n - j; v += LANES) row_block(1, c + j + v, a, b + v, ldb, inner, add);
}

/* The logistic function. */
INLINE vec logistic(vec x) {
    const vec power = vec_exp2(-vec_max(x * LOG2_E, splat(-126)));
    return 1 / (1 + power);
}

/* The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
INLINE vec error_function(vec x) {
    const vec far = vec_max(x, -x), t = 1 / (1 + (real)0.3275911 * far);
    const vec sum = ((((real)1.061405429 * t - (real)1.453152027) * t + (real)1.421413741) * t - (real)0.284496736) * t;
    const vec y = 1 - (sum + (real)0.254829592) * t * vec_exp2(-far * far * LOG2_E);
    return blend(x < splat(0), -y, y);
}

INLINE vec activated(vec x, const idx kind) {
    switch (kind) {
        case RELU: return vec_max(splat(0), x);
        case GELU: return x * (1 + error_function(x * (real)0.70710678118654752)) / 2;
        case GELU_TANH: return x * logistic((real)1.5957691216057308 * (x + (real)0.044715 * x * x * x));
        default: return x * logistic(x);
    }
}

INLINE void activate(real *c, idx ldc, idx m, idx n, const idx kind) {
    for (idx i = 0; i < m; i++)
        for (idx j = 0; j < n; j += LANES) VEC(c + i * ldc + j) = activated(VEC(c + i * ldc + j), kind);
}

enum { NO_ACTIVATION = -1 };

/* c (m, outputs) = or += x (m, inputs) W + b for the columns from `first` to `end`, then an activation. */
static void apply(real *c, idx ldc, const real *x, idx ldx, const map *w, idx first, idx end, idx m, int add, idx kind) {
    for (idx i = 0; i < m; i += ROWS) {
        const idx some = m - i < ROWS ? m - i : ROWS;
        for (idx j = first; j < end; j += PANEL) {
            const idx n = end - j < PANEL ? end - j : PANEL;
            real *to = c + i * ldc + j - first;
            for (idx r = 0; r < some; r++)
                for (idx v = 0; v < n; v += LANES) {
                    if (add) VEC(to + r * ldc + v) += VEC(w->bias + j + v);
                    else VEC(to + r * ldc + v) = VEC(w->bias + j + v);
                }
            for (idx k = 0; k < w->inputs; k += INNER) {
                const idx inner = w->inputs - k < INNER ? w->inputs - k : INNER;
                rows_product(to, ldc, x + i * ldx + k, ldx, w->weight + j * w->inputs + k * PANEL, PANEL, 0, some, n,
                             inner, 1);
            }
            if (kind == RELU) activate(to, ldc, some, n, RELU);
            else if (kind == GELU) activate(to, ldc, some, n, GELU);
            else if (kind == GELU_TANH) activate(to, ldc, some, n, GELU_TANH);
            else if (kind == SWISH) activate(to, ldc, some, n, SWISH);
        }
    }
}

INLINE void apply_all(real *c, idx ldc, const real *x, idx ldx, const map *w, idx m, int add) {
    apply(c, ldc, x, ldx, w, 0, w->outputs, m, add, NO_ACTIVATION);
}

static void normalize(real *to, idx ldt, const real *from, const norm *n, idx rows, idx width, idx dim, real epsilon) {
    for (idx r = 0; r < rows; r++) {
        const real *x = from + r * width;
        vec total = splat(0), squares = splat(0);
        for (idx i = 0; i < width; i += LANES) total += VEC(x + i);
        const real mean = reduce_sum(total) / dim;
        for (idx i = 0; i < width; i += LANES) squares += (VEC(x + i) - mean) * (VEC(x + i) - mean);
        const real variance = (reduce_sum(squares) - (width - dim) * mean * mean) / dim; /* without padding */
        const real times = 1 / sqrt(variance + epsilon);
        for (idx i = 0; i < width; i += LANES)
            VEC(to + r * ldt + i) = (VEC(x + i) - mean) * times * VEC(n->weight + i) + VEC(n->bias + i);
    }
}

/* ---- attention ---- */

/* Replace scores by probabilities. The scores exist to a multiple of LANES, with any content after `count`. */
INLINE void softmax(real *s, idx count) {
    vec most = splat(-INFINITY), total = splat(0);
    for (idx j = count; j % LANES != 0; j++) s[j] = -INFINITY;
    for (idx j = 0; j < count; j += LANES) most = vec_max(most, VEC(s + j));
    const real base = reduce_max(most);
    for (idx j = 0; j < count; j += LANES) {
        const vec p = vec_exp2(VEC(s + j) - base);
        VEC(s + j) = p;
        total += p;
    }
    const real times = 1 / reduce_sum(total);
    for (idx j = 0; j < count; j += LANES) VEC(s + j) *= times;
}

/* Scores of a query by the positions of a block: q (dim) K (dim, BLOCK). Sums of every fourth, second or each number
   of a query are separate, since an addition takes several cycles. */
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

/* out (vecs vectors) = p (count) V, whose rows of `dim` numbers are in blocks; the position of a row is even or odd. */
INLINE void weigh(const int vecs, real *out, const real *p, const real *const *blocks, idx start, idx count, idx dim) {
    vec sums[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) sums[0][v] = sums[1][v] = splat(0);
    for (idx j = 0; j < count; j += BLOCK, blocks++) {
        const real *row = *blocks + start;
        const idx some = count - j < BLOCK ? count - j : BLOCK;
        idx i = 0;
        for (; i + 1 < some; i += 2, row += 2 * dim)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                sums[0][v] += p[j + i] * VEC(row + v * LANES);
                sums[1][v] += p[j + i + 1] * VEC(row + dim + v * LANES);
            }
        if (i < some)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) sums[0][v] += p[j + i] * VEC(row + v * LANES);
    }
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) VEC(out + v * LANES) = sums[0][v] + sums[1][v];
}

static void rotate(real *x, const arguments *a, real sign) {
    const idx half = a->rotary_dim;
    const real *cosines = a->rotation, *sines = a->rotation + half;
    for (idx i = 0; i < half; i++) {
        const real first = x[i], second = x[i + half], sine = sign * sines[i];
        x[i] = first * cosines[i] - second * sine;
        x[i + half] = second * cosines[i] + first * sine;
    }
}

/* The relative terms of the scores of all rows and heads, by label. */
static void fill_strips(const arguments *a, const sizes *s, const layer *l, buffers *b, idx rows) {
    const idx first = a->left > a->position ? (a->left - a->position) / PANEL * PANEL : 0;
    const idx ld = a->heads * s->strip;
    for (idx h = 0; h < a->heads; h++) {
        real *to = b->strips + h * s->strip + MARGIN + first;
        if (l->rel_bias)
            for (idx r = 0; r < rows; r++)
                memcpy(to + r * ld, l->rel_bias + h * s->strip + MARGIN + first, sizeof(real) * (s->labels - first));
        gemm(to, ld, b->hidden + h * a->head_dim, s->hidden, 1,
                l->rel_key + h * l->rel_key_head + first * a->head_dim, PANEL, a->head_dim * PANEL, rows,
                s->labels - first, a->head_dim, l->rel_bias != NULL);
        if (a->position > a->left)
            for (idx r = 0; r < rows; r++)
                for (idx i = 1; i <= MARGIN; i++)
                    to[r * ld - i] = a->clips ? to[r * ld] : 0;
    }
}

/* Sums of the probabilities of a row by label, from the farthest label on that has a key. */
INLINE void add_masses(const arguments *a, real *masses, const real *p) {
    const idx before = a->position - a->left; /* keys farther than label 0 */
    if (before <= 0) {
        memcpy(masses - before, p, sizeof(real) * (a->position + 1));
        return;
    }
    memcpy(masses, p + before, sizeof(real) * (a->left + 1));
    for (idx j = 0; j < before && a->clips; j++) masses[0] += p[j];
}

/* y = attention of the queries in `hidden` to their earlier positions and themselves. */
static void attend(const arguments *a, const sizes *s, idx l, buffers *b, idx first_row, idx rows) {
    const layer *own = a->layers + l;
    const idx dim = a->head_dim, count = a->position + 1, key_size = dim * BLOCK;
    const real *const *blocks = (const real *const *)a->blocks;
    real *last_block = (real *)blocks[a->position / BLOCK];
    const idx place = a->position % BLOCK;
    if (a->rotation)
        for (idx r = 0; r < rows; r++)
            for (idx h = 0; h < a->heads * (a->rotates_values ? 3 : 2); h++)
                rotate(b->hidden + r * s->hidden + h * dim, a, 1);
    if (own->rel_key) fill_strips(a, s, own, b, rows);
    for (idx r = 0; r < rows; r++)
        for (idx h = 0; h < a->heads; h++) {
            const idx start = (((first_row + r) * a->layer_count + l) * a->heads + h) * 2 * key_size;
            const real *q = b->hidden + r * s->hidden + h * dim, *key = q + s->joined, *value = key + s->joined;
            real *keys = last_block + start, *out = b->y + r * s->joined + h * dim;
            for (idx i = 0; i < dim; i++) keys[i * BLOCK + place] = key[i];
            memcpy(keys + key_size + place * dim, value, sizeof(real) * dim);
            for (idx j = 0; j < count; j += BLOCK) block_scores(b->scores + j, q, blocks[j / BLOCK] + start, dim);
            if (own->rel_key || own->rel_bias) {
                const real *strip = own->rel_key ? b->strips + (r * a->heads + h) * s->strip
                                                 : own->rel_bias + h * s->strip;
                for (idx j = 0; j < count; j += LANES) {
                    const idx label = a->left - a->position + j;
                    VEC(b->scores + j) += VEC(strip + MARGIN + (label < -LANES ? -LANES : label));
                }
            }
            softmax(b->scores, count);
            idx i = 0;
            for (; i + 4 * LANES <= dim; i += 4 * LANES)
                weigh(4, out + i, b->scores, blocks, start + key_size + i, count, dim);
            for (; i + 2 * LANES <= dim; i += 2 * LANES)
                weigh(2, out + i, b->scores, blocks, start + key_size + i, count, dim);
            for (; i < dim; i += LANES) weigh(1, out + i, b->scores, blocks, start + key_size + i, count, dim);
            if (own->rel_value) add_masses(a, b->masses + (r * a->heads + h) * s->labels, b->scores);
        }
    if (own->rel_value) {
        const idx first = a->left > a->position ? a->left - a->position : 0;
        for (idx h = 0; h < a->heads; h++)
            gemm(b->y + h * dim, s->joined, b->masses + h * s->labels + first, a->heads * s->labels, 1,
                    own->rel_value + h * own->rel_value_head + first * dim, dim, PANEL, rows, dim, a->left + 1 - first,
                    1);
    }
    if (a->rotates_values)
        for (idx r = 0; r < rows; r++)
            for (idx h = 0; h < a->heads; h++) rotate(b->y + r * s->joined + h * dim, a, -1);
}

/* y = attention of the queries in `hidden` to their sources. */
static void attend_source(const arguments *a, const sizes *s, const layer *l, buffers *b, idx first_row, idx rows) {
    const idx dim = a->head_dim, size = dim * s->src_len, per = a->per_source;
    for (idx r = 0; r < rows; r += per) {
        const int64_t source = a->sources[(first_row + r) / per];
        const idx count = a->src_lengths[source];
        for (idx h = 0; h < a->heads; h++) {
            const real *keys = l->memory + (source * a->heads + h) * 2 * size;
            rows_product(b->scores, s->src_len, b->hidden + r * s->hidden + h * dim, s->hidden, keys, s->src_len, PANEL,
                         per, round_up(count, LANES), dim, 0);
            for (idx i = 0; i < per; i++) softmax(b->scores + i * s->src_len, count);
            rows_product(b->y + r * s->joined + h * dim, s->joined, b->scores, s->src_len, keys + size, dim, PANEL, per,
                         dim, count, 0);
        }
    }
}

/* ---- a step ---- */

/* x = or x += a map of y, inside a residual connection. */
static void add_residual(const arguments *a, const sizes *s, buffers *b, const map *w, const real *y, idx ldy,
                         const norm *n, idx rows) {
    apply_all(b->x, s->width, y, ldy, w, rows, 1);
    if (!a->pre_norm) normalize(b->x, s->width, b->x, n, rows, s->width, a->dim, a->epsilon);
}

/* The input of a sub-layer: x, normalized before it or not. */
static const real *sublayer_input(const arguments *a, const sizes *s, buffers *b, const norm *n, idx rows) {
    if (!a->pre_norm) return b->x;
    normalize(b->y, s->width, b->x, n, rows, s->width, a->dim, a->epsilon);
    return b->y;
}

static void embed(const arguments *a, const sizes *s, buffers *b, idx first_row, idx rows) {
    for (idx r = 0; r < rows; r++) {
        const real *from = a->embedding + a->tokens[first_row + r] * a->dim;
        real *x = b->x + r * s->width;
        for (idx i = 0; i < a->dim; i++) x[i] = from[i] * a->embedding_scale + (a->signal ? a->signal[i] : 0);
        for (idx i = a->dim; i < s->width; i++) x[i] = 0;
    }
}

static void run_layer(const arguments *a, const sizes *s, idx l, buffers *b, idx first_row, idx rows) {
    const layer *own = a->layers + l;
    const real *input = sublayer_input(a, s, b, &own->self_norm, rows);
    apply_all(b->hidden, s->hidden, input, s->width, &own->self_in, rows, 0);
    attend(a, s, l, b, first_row, rows);
    add_residual(a, s, b, &own->self_out, b->y, s->joined, &own->self_norm, rows);
    input = sublayer_input(a, s, b, &own->cross_norm, rows);
    apply_all(b->hidden, s->hidden, input, s->width, &own->cross_query, rows, 0);
    attend_source(a, s, own, b, first_row, rows);
    add_residual(a, s, b, &own->cross_out, b->y, s->joined, &own->cross_norm, rows);
    input = sublayer_input(a, s, b, &own->feed_norm, rows);
    apply(b->hidden, s->hidden, input, s->width, &own->feed_in, 0, own->feed_in.outputs, rows, 0, a->activation);
    add_residual(a, s, b, &own->feed_out, b->hidden, s->hidden, &own->feed_norm, rows);
}

/* Insert a candidate behind those that are at least as good. */
INLINE void insert(real *values, int64_t *tokens, idx best, real value, idx token) {
    idx i = best - 1;
    for (; i > 0 && values[i - 1] < value; i--) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
    values[i] = value;
    tokens[i] = token;
}

/* Take some logits of a row, from token `first` on, into its maximum, its sum and its best candidates. */
static void rank(const arguments *a, idx row, real *z, idx first, idx count, real *top, real *sum) {
    vec most = splat(*top), total = splat(0);
    for (idx j = 0; j < count; j += LANES) most = vec_max(most, VEC(z + j));
    const real highest = reduce_max(most), base = highest > -INFINITY ? highest : 0;
    for (idx j = 0; j < count; j += LANES) total += vec_exp2((VEC(z + j) - base) * LOG2_E);
    *sum = *sum * exp2((*top - base) * LOG2_E) + reduce_sum(total);
    *top = highest;
    real *values = a->values + row * a->best;
    int64_t *tokens = a->candidates + row * a->best;
    if (a->only && a->only[row] >= 0) {
        const idx token = a->only[row] - first;
        if (token >= 0 && token < count) values[0] = z[token], tokens[0] = a->only[row];
        return;
    }
    for (idx i = 0; i < a->banned_count; i++) {
        const idx token = a->banned[i] - first;
        if (token >= 0 && token < count) z[token] = -INFINITY;
    }
    for (idx j = 0; j < count; j += LANES)
        if (any_greater(VEC(z + j), values[a->best - 1]))
            for (idx i = j; i < j + LANES; i++)
                if (z[i] > values[a->best - 1]) insert(values, tokens, a->best, z[i], first + i);
}

/* Logits of y, and the best candidates of each row if there is room for some. */
static void predict(const arguments *a, buffers *b, const real *y, idx ldy, idx first_row, idx rows) {
    for (idx r = 0; r < rows; r++) {
        b->tops[r] = -INFINITY;
        b->sums[r] = 0;
        for (idx i = 0; i < a->best; i++) {
            a->values[(first_row + r) * a->best + i] = -INFINITY;
            a->candidates[(first_row + r) * a->best + i] = 0;
        }
    }
    for (idx j = 0; j < a->output.outputs; j += COLUMNS) {
        const idx count = a->output.outputs - j < COLUMNS ? a->output.outputs - j : COLUMNS;
        apply(b->logits, COLUMNS, y, ldy, &a->output, j, j + count, rows, 0, NO_ACTIVATION);
        for (idx r = 0; r < rows; r++) {
            const idx valid = a->vocab - j < count ? a->vocab - j : count;
            if (a->logits)
                memcpy(a->logits + (first_row + r) * a->vocab + j, b->logits + r * COLUMNS, sizeof(real) * valid);
            if (a->best > 0) rank(a, first_row + r, b->logits + r * COLUMNS, j, count, b->tops + r, b->sums + r);
        }
    }
    for (idx r = 0; r < rows && a->best > 0; r++) {
        const real log_sum = b->tops[r] + log(b->sums[r]);
        for (idx i = 0; i < a->best; i++) a->values[(first_row + r) * a->best + i] -= log_sum;
    }
}

void relattn_step(const arguments *a) {
    const sizes s = sizes_of(a);
    const idx most = tile_rows(a);
    buffers b;
    share(&b, a, a->space);
    for (idx first = 0; first < a->rows; first += most) {
        const idx rows = a->rows - first < most ? a->rows - first : most;
        embed(a, &s, &b, first, rows);
        for (idx l = 0; l < a->layer_count; l++) run_layer(a, &s, l, &b, first, rows);
        const real *y = sublayer_input(a, &s, &b, &a->final_norm, rows);
        predict(a, &b, y, s.width, first, rows);
    }
}

/* Run a part of a layer of the encoder, in `space` of ROWS times the rows of x and of the first map's output. */
void relattn_sublayer(const sublayer *a) {
    real *hidden = a->space + ROWS * a->x_row;
    for (idx i = 0; i < a->rows; i += ROWS) {
        const idx some = a->rows - i < ROWS ? a->rows - i : ROWS;
        const real *x = a->x + i * a->x_row;
        real *to = a->to + i * a->to_row;
        if (a->input_norm.weight) {
            normalize(a->space, a->x_row, x, &a->input_norm, some, a->x_row, a->dim, a->epsilon);
            x = a->space;
        }
        if (a->second.weight) {
            apply(hidden, a->first.outputs, x, a->x_row, &a->first, 0, a->first.outputs, some, 0, a->activation);
            apply_all(to, a->to_row, hidden, a->first.outputs, &a->second, some, a->add);
        } else apply_all(to, a->to_row, x, a->x_row, &a->first, some, a->add);
        if (a->output_norm.weight)
            normalize(to, a->to_row, to, &a->output_norm, some, a->to_row, a->dim, a->epsilon);
    }
}

/* Number of `real` of a row of a block of the cache. */
INLINE idx row_size(const arguments *a) { return a->layer_count * a->heads * 2 * a->head_dim * BLOCK; }

static void copy_rows(real *to_block, const real *from_block, const int64_t *from, const int64_t *to, idx count,
                      idx size) {
    for (idx i = 0; i < count; i++)
        memcpy(to_block + to[i] * size, from_block + from[i] * size, sizeof(real) * size);
}

/* Copy rows of the cache over others. No row is both copied and overwritten. */
void relattn_move(const arguments *a, const int64_t *from, const int64_t *to, idx count) {
    real *const *blocks = (real *const *)a->blocks;
    for (idx b = 0; b < round_up(a->position, BLOCK) / BLOCK; b++)
        copy_rows(blocks[b], blocks[b], from, to, count, row_size(a));
}

#include "search.h"

int relattn_usable(void) { return 1; }

const int32_t relattn_panel = PANEL;
const uint32_t relattn_checksum = CHECKSUM; /* of `decoder.h` */
