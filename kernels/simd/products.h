/* Products of small matrices of `real`. */

#ifndef RELATTN_PRODUCTS_H
#define RELATTN_PRODUCTS_H

#include "vectors.h"

enum { MICRO_ROWS = 6 };

/* Compute a block of at most 6 rows by 4 vectors of c (m, n) = or += a (m, inner) b (inner, n), in registers. */
INLINE void micro_kernel(const int num_rows, const int num_vecs, real *c, idx ldc, const real *a, idx a_row, idx a_col,
                         const real *b, idx ldb, idx inner, int add) {
    vec sums[6][4];
#pragma GCC unroll 8
    for (int i = 0; i < num_rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < num_vecs; v++) sums[i][v] = splat(0);
    for (idx k = 0; k < inner; k++) {
        vec bs[4];
#pragma GCC unroll 8
        for (int v = 0; v < num_vecs; v++) bs[v] = VEC(b + k * ldb + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < num_rows; i++) {
            const real x = a[i * a_row + k * a_col];
#pragma GCC unroll 8
            for (int v = 0; v < num_vecs; v++) sums[i][v] += x * bs[v];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < num_rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < num_vecs; v++)
            if (add) VEC(c + i * ldc + v * LANES) += sums[i][v];
            else VEC(c + i * ldc + v * LANES) = sums[i][v];
}

#define MICRO_KERNEL_ROWS(vecs)                                                                                        \
    switch (m - i) {                                                                                                   \
        case 1: micro_kernel(1, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                           \
        case 2: micro_kernel(2, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                           \
        case 3: micro_kernel(3, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                           \
        case 4: micro_kernel(4, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                           \
        case 5: micro_kernel(5, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                           \
        default: micro_kernel(6, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add);                                 \
    }

#define PANEL_PRODUCT(vecs)                                                                                            \
    static void panel_product_##vecs(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb,    \
                                     idx m, idx inner, int add) {                                                      \
        for (idx i = 0; i < m; i += MICRO_ROWS) {                                                                      \
            real *ci = c + i * ldc;                                                                                    \
            const real *ai = a + i * a_row;                                                                            \
            MICRO_KERNEL_ROWS(vecs)                                                                                    \
        }                                                                                                              \
    }

PANEL_PRODUCT(1)
PANEL_PRODUCT(2)
PANEL_PRODUCT(3)
PANEL_PRODUCT(4)

enum { PANEL = MICRO_VECS * LANES }; /* number of columns of b per panel */

/* Compute c (m, n) = or += a (m, inner) b (inner, n), where n is a multiple of LANES. b is in panels of PANEL columns,
   with row stride `ldb` and panel stride `panel_stride`. a has two strides. The previous content of c is added last,
   because a sum of partial sums has a smaller rounding error. */
static void gemm(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb, idx panel_stride, idx m,
                 idx n, idx inner, int add) {
    for (idx j = 0; j < n; j += PANEL, b += panel_stride) {
        switch (n - j >= PANEL ? MICRO_VECS : (n - j) / LANES) {
            case 1: panel_product_1(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            case 2: panel_product_2(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            case 3: panel_product_3(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            default: panel_product_4(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add);
        }
    }
}

#endif
