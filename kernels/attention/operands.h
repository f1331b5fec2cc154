/* Products of small matrices, c (m, n) = or += a (m, inner) b (inner, n). Operands are `real`, or pairs of bfloat16
   numbers if BF16 is defined.

   The numbers of a pair are adjacent along `inner`. The processor sums their products in float32, with matrix tiles
   (AMX) or with dot products of vectors (AVX512-BF16). `inner` is padded with zeros. `a` and `c` are allocated to a
   multiple of 32 rows; the padding may have any content. */

#ifndef RELATTN_OPERANDS_H
#define RELATTN_OPERANDS_H

#include "rows.h"

#ifdef BF16
enum { PACK_SIZE = 2, INNER_MULTIPLE = 32 };
#else
enum { PACK_SIZE = 1, INNER_MULTIPLE = 1 };
#endif

/* Return the number of operands along `inner`. */
INLINE idx packed_len(idx inner) { return round_up(inner, INNER_MULTIPLE) / PACK_SIZE; }

#ifndef BF16

typedef real operand;

typedef struct {
    const operand *data;
    idx row_stride, col_stride;
} lhs;

typedef struct {
    const operand *data;
    idx row_stride, panel_stride; /* a panel has PANEL columns */
} rhs;

/* Return a matrix, or its transpose, as the operand `a` (m, inner) or `b` (inner, n). */
INLINE lhs pack_lhs(matrix a, idx m, idx inner, operand *scratch) { return (lhs){a.data, a.row_stride, 1}; }
INLINE lhs pack_lhs_transposed(matrix a, idx m, idx inner, operand *scratch) { return (lhs){a.data, 1, a.row_stride}; }
INLINE lhs lhs_from(lhs a, idx i, idx k) {
    return (lhs){a.data + i * a.row_stride + k * a.col_stride, a.row_stride, a.col_stride};
}
INLINE rhs pack_rhs(matrix b, idx inner, idx n, operand *scratch) { return (rhs){b.data, b.row_stride, PANEL}; }

/* Pack at most KEYS rows, transposed, as `b` (padded_dim, KEYS). */
INLINE void pack_columns(operand *to, matrix from, idx count, idx padded_dim, real *scratch) {
    transpose_to_panels(to, from, count, padded_dim);
}
INLINE rhs packed_columns(const operand *columns, idx padded_dim) { return (rhs){columns, PANEL, padded_dim * PANEL}; }
INLINE rhs rhs_from_column(rhs b, idx j) {
    return (rhs){b.data + j / PANEL * b.panel_stride + j % PANEL, b.row_stride, b.panel_stride};
}

/* Return the number of operands that `pack_rows` needs for `max_rows` rows, a multiple of KEYS. */
INLINE idx packed_rows_size(const arguments *a, const array *x, idx max_rows, idx dim) {
    const idx padded_dim = round_up(dim, PADDING);
    const int is_used_once = padded_dim <= PANEL || a->queries < MIN_QUERIES_TO_TRANSPOSE;
    return in_place(a, x, dim) && is_used_once ? 0 : max_rows * round_up(padded_dim, PANEL);
}

/* Return rows of a head as `b`. They are copied to panels if they are wider than one and more than a few queries use
   them. */
INLINE rhs pack_rows(const arguments *a, const array *x, idx b, idx h, range keys, idx max_rows, idx dim, real *scratch,
                     operand *to) {
    const idx padded_dim = round_up(dim, PADDING), panel_stride = max_rows * PANEL;
    if (packed_rows_size(a, x, max_rows, dim) == 0)
        return (rhs){array_rows(a, x, b, h, keys.first).data, x->row_stride, PANEL};
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx num_rows = tile_len(j, keys.count);
        copy_to_panels(to + j * PANEL, panel_stride, load_rows_once(a, x, b, h, keys.first + j, num_rows, dim, scratch),
                       num_rows, padded_dim);
    }
    return (rhs){to, PANEL, panel_stride};
}

INLINE void matmul(real *c, idx ldc, lhs a, rhs b, idx m, idx n, idx inner, int add) {
    gemm(c, ldc, a.data, a.row_stride, a.col_stride, b.data, b.row_stride, b.panel_stride, m, n, inner, add);
}

#else

typedef uint32_t operand; /* a pair, the first number in the low half */
#define IVEC(pointer) (*(ivec *)(pointer))

typedef struct {
    const operand *data;
    idx row_stride;
} lhs, rhs;

/* Pack pairs of adjacent rows as `b` (inner, n). */
INLINE rhs pack_rhs(matrix b, idx inner, idx n, operand *scratch) {
    for (idx k = 0; k < round_up(inner, INNER_MULTIPLE); k += 2)
        for (idx j = 0; j < n; j += LANES) {
            const real *row = b.data + k * b.row_stride + j;
            const vec low = k < inner ? VEC(row) : splat(0), high = k + 1 < inner ? VEC(row + b.row_stride) : splat(0);
            IVEC(scratch + k / 2 * n + j) = pair_numbers(low, high);
        }
    return (rhs){scratch, n};
}

/* Pack pairs of adjacent columns as `a` (m, inner), where inner is a multiple of LANES. */
INLINE lhs pack_lhs(matrix a, idx m, idx inner, operand *scratch) {
    const idx row = packed_len(inner);
    for (idx i = 0; i < m; i++)
        for (idx k = 0; k < inner; k += INNER_MULTIPLE) {
            const real *from = a.data + i * a.row_stride + k;
            const vec high = k + LANES < inner ? VEC(from + LANES) : splat(0);
            IVEC(scratch + i * row + k / 2) = pair_neighbours(VEC(from), high);
        }
    return (lhs){scratch, row};
}

/* Pack the transpose of a matrix as `a`. The rows after the last are zeros, because sums may be written to them. */
INLINE lhs pack_lhs_transposed(matrix a, idx m, idx inner, operand *scratch) {
    operand packed_pairs[QUERIES / 2 * KEYS];
    const rhs b = pack_rhs(a, inner, round_up(m, LANES), packed_pairs);
    const idx row = packed_len(inner);
    for (idx k = 0; k < row; k += 4)
        for (idx i = 0; i < m; i += 4)
            transpose_4x4((real *)(scratch + i * row + k), row, (const real *)(b.data + k * b.row_stride + i),
                          b.row_stride);
    memset(scratch + m * row, 0, sizeof(operand) * row * (round_up(m, 32) - m));
    return (lhs){scratch, row};
}

INLINE void pack_columns(operand *to, matrix from, idx count, idx padded_dim, real *scratch) {
    transpose_to_panels(scratch, from, count, padded_dim); /* PANEL is KEYS */
    pack_rhs((matrix){scratch, KEYS}, padded_dim, KEYS, to);
}
INLINE rhs packed_columns(const operand *columns, idx padded_dim) { return (rhs){columns, KEYS}; }
INLINE rhs rhs_from_column(rhs b, idx j) { return (rhs){b.data + j, b.row_stride}; }
INLINE lhs lhs_from(lhs a, idx i, idx k) { return (lhs){a.data + i * a.row_stride + k / 2, a.row_stride}; }

INLINE idx packed_rows_size(const arguments *a, const array *x, idx max_rows, idx dim) {
    return max_rows / PACK_SIZE * round_up(dim, PADDING);
}

INLINE rhs pack_rows(const arguments *a, const array *x, idx b, idx h, range keys, idx max_rows, idx dim, real *scratch,
                     operand *to) {
    const idx padded_dim = round_up(dim, PADDING);
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx num_rows = tile_len(j, keys.count);
        pack_rhs(load_rows_once(a, x, b, h, keys.first + j, num_rows, dim, scratch), num_rows, padded_dim,
                 to + j / 2 * padded_dim);
    }
    return (rhs){to, padded_dim};
}

INLINE void matmul(real *c, idx ldc, lhs a, rhs b, idx m, idx n, idx inner, int add) {
    const idx padded = round_up(inner, INNER_MULTIPLE);
    for (idx i = 0; i < m; i += PAIRS_ROWS)
        for (idx j = 0; j < n; j += 2 * LANES) {
            real *to = c + i * ldc + j;
            const operand *ai = a.data + i * a.row_stride, *bj = b.data + j;
            if (n - j > LANES) multiply_pairs(1, to, ldc, ai, a.row_stride, bj, b.row_stride, padded, add);
            else multiply_pairs(0, to, ldc, ai, a.row_stride, bj, b.row_stride, padded, add);
        }
}

#endif

/* Return the rows of `b` from row k on. */
INLINE rhs rhs_from_row(rhs b, idx k) {
    b.data += k / PACK_SIZE * b.row_stride;
    return b;
}

/* ---- products of banded tiles, where each BAND_ROWS rows attend to a range of columns ---- */

enum { BAND_ROWS = PACK_SIZE > 1 ? 32 : PANEL < KEYS && PANEL > 16 ? PANEL : 16, NUM_BANDS = QUERIES / BAND_ROWS };

/* Multiply without writing the columns of `c` outside the bands. */
INLINE void matmul_band_columns(real *c, idx ldc, lhs a, rhs b, idx m, const range *bands, idx inner, int add) {
    for (idx i = 0; i < m; i += BAND_ROWS) {
        const range columns = bands[i / BAND_ROWS];
        matmul(c + i * ldc + columns.first, ldc, lhs_from(a, i, 0), rhs_from_column(b, columns.first),
               m - i < BAND_ROWS ? m - i : BAND_ROWS, round_up(columns.count, LANES), inner, add);
    }
}

/* Multiply without reading the columns of `a`, and the rows of `b`, outside the bands. */
INLINE void matmul_band_inner(real *c, idx ldc, lhs a, rhs b, idx m, idx n, const range *bands, int add) {
    for (idx i = 0; i < m; i += BAND_ROWS) {
        const range inner = bands[i / BAND_ROWS];
        matmul(c + i * ldc, ldc, lhs_from(a, i, inner.first), rhs_from_row(b, inner.first),
               m - i < BAND_ROWS ? m - i : BAND_ROWS, n, inner.count, add);
    }
}

#endif
