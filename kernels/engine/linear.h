/* Linear layers, activations and normalization. */

#ifndef RELATTN_ENGINE_LINEAR_H
#define RELATTN_ENGINE_LINEAR_H

#include "workspace.h"

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
    for (idx i = 0; i < m; i += ROW_BLOCK) {
        const idx num_rows = m - i < ROW_BLOCK ? m - i : ROW_BLOCK;
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
        if (!n->bias) {
            for (idx i = 0; i < padded_dim; i += LANES) squares += VEC(x + i) * VEC(x + i);
            const real scale = 1 / sqrt(reduce_sum(squares) / dim + epsilon);
            for (idx i = 0; i < padded_dim; i += LANES) VEC(to + r * ldt + i) = VEC(x + i) * scale * VEC(n->weight + i);
            continue;
        }
        for (idx i = 0; i < padded_dim; i += LANES) sum += VEC(x + i);
        const real mean = reduce_sum(sum) / dim;
        for (idx i = 0; i < padded_dim; i += LANES) squares += (VEC(x + i) - mean) * (VEC(x + i) - mean);
        const real variance = (reduce_sum(squares) - (padded_dim - dim) * mean * mean) / dim; /* without padding */
        const real scale = 1 / sqrt(variance + epsilon);
        for (idx i = 0; i < padded_dim; i += LANES)
            VEC(to + r * ldt + i) = (VEC(x + i) - mean) * scale * VEC(n->weight + i) + VEC(n->bias + i);
    }
}

#endif
