/* Products of small matrices, c (m, n) = or += a (m, inner) b (inner, n), with operands in the form that the build
   multiplies: `real`, or pairs of bfloat16 numbers if PAIRS is defined.

   The numbers of a pair are neighbours along `inner`. The processor adds their products in float32, with matrix tiles
   (AMX) or with dot products of vectors (AVX512-BF16). `inner` is padded with zeros. Rows of `a` and `c` exist up to a
   multiple of 32, with any content. */

#ifndef RELATTN_PRODUCTS_H
#define RELATTN_PRODUCTS_H

#include "rows.h"

#ifdef PAIRS
enum { TOGETHER = 2, INNER = 32 };
#else
enum { TOGETHER = 1, INNER = 1 };
#endif

/* Number of operands along `inner`. */
INLINE idx packed(idx inner) { return up(inner, INNER) / TOGETHER; }

#ifndef __AMX_BF16__
static int may_multiply(void) { return 1; }
INLINE void begin_products(void) {}
INLINE void end_products(void) {}
#endif

#ifndef PAIRS

typedef real number;

typedef struct {
    const number *data;
    idx row, col;
} lhs;

typedef struct {
    const number *data;
    idx row, panel; /* strides of rows and of panels of PANEL columns */
} rhs;

/* Rows as an operand: `a` (m, inner), their transpose as `a`, and `b` (inner, n). */
INLINE lhs lhs_of(rows a, idx m, idx inner, number *space) { return (lhs){a.data, a.row, 1}; }
INLINE lhs lhs_of_transposed(rows a, idx m, idx inner, number *space) { return (lhs){a.data, 1, a.row}; }
INLINE lhs lhs_at(lhs a, idx i, idx k) { return (lhs){a.data + i * a.row + k * a.col, a.row, a.col}; }
INLINE rhs rhs_of(rows b, idx inner, idx n, number *space) { return (rhs){b.data, b.row, PANEL}; }

/* KEYS rows, or the last few, transposed: `b` (padded, KEYS). */
INLINE void columns_of(number *to, rows from, idx count, idx padded, real *space) {
    transpose(to, from, count, padded);
}
INLINE rhs columns_at(const number *columns, idx padded) { return (rhs){columns, PANEL, padded * PANEL}; }
INLINE rhs columns_from(rhs b, idx j) { return (rhs){b.data + j / PANEL * b.panel + j % PANEL, b.row, b.panel}; }

/* Memory for up to `most` rows of a head as `b`, in numbers. `most` is a multiple of KEYS. */
INLINE idx all_rows_size(const arguments *a, const array *x, idx most, idx dim) {
    const idx padded = up(dim, PADDING);
    return in_place(a, x, dim) && padded <= PANEL ? 0 : most * up(padded, PANEL);
}

/* Some rows of a head as `b`, in panels if they are wider than one. */
INLINE rhs all_rows(const arguments *a, const array *x, idx b, idx h, run keys, idx most, idx dim, real *space,
                    number *to) {
    const idx padded = up(dim, PADDING), panel = most * PANEL;
    if (all_rows_size(a, x, most, dim) == 0) return (rhs){rows_in(x, b, h, keys.first).data, x->row, PANEL};
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx some = tile_len(j, keys.count);
        to_panels(to + j * PANEL, panel, rows_once(a, x, b, h, keys.first + j, some, dim, space), some, padded);
    }
    return (rhs){to, PANEL, panel};
}

INLINE void multiply(real *c, idx ldc, lhs a, rhs b, idx m, idx n, idx inner, int add) {
    product(c, ldc, a.data, a.row, a.col, b.data, b.row, b.panel, m, n, inner, add);
}

#else

#include <sys/syscall.h>
#include <unistd.h>

typedef uint32_t number; /* the first of the two in its low half */

typedef struct {
    const number *data;
    idx row;
} lhs, rhs;

/* Pairs of neighbouring rows: `b` (inner, n). */
INLINE rhs rhs_of(rows b, idx inner, idx n, number *space) {
    for (idx k = 0; k < up(inner, INNER); k += 2)
        for (idx j = 0; j < n; j += LANES) {
            const real *row = b.data + k * b.row + j;
            const vec low = k < inner ? AT(row) : splat(0), high = k + 1 < inner ? AT(row + b.row) : splat(0);
            const __m512i evens = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
            const __m512i odds = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
            _mm512_storeu_si512(space + k / 2 * n + j, _mm512_or_si512(evens, _mm512_slli_epi32(odds, 16)));
        }
    return (rhs){space, n};
}

/* Pairs of neighbouring columns: `a` (m, inner), where inner is a multiple of LANES. */
INLINE lhs lhs_of(rows a, idx m, idx inner, number *space) {
    const idx row = packed(inner);
    for (idx i = 0; i < m; i++)
        for (idx k = 0; k < inner; k += INNER) {
            const real *from = a.data + i * a.row + k;
            const vec high = k + LANES < inner ? AT(from + LANES) : splat(0);
            _mm512_storeu_si512(space + i * row + k / 2,
                                (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)AT(from)));
        }
    return (lhs){space, row};
}

/* The same for the transpose of rows. Rows after the last are zeros, because sums may be written after it. */
INLINE lhs lhs_of_transposed(rows a, idx m, idx inner, number *space) {
    number pairs[ROWS / 2 * KEYS];
    const rhs b = rhs_of(a, inner, up(m, LANES), pairs);
    const idx row = packed(inner);
    for (idx k = 0; k < row; k += 4)
        for (idx i = 0; i < m; i += 4)
            transpose_four((real *)(space + i * row + k), row, (const real *)(b.data + k * b.row + i), b.row);
    memset(space + m * row, 0, sizeof(number) * row * (up(m, 32) - m));
    return (lhs){space, row};
}

INLINE void columns_of(number *to, rows from, idx count, idx padded, real *space) {
    transpose(space, from, count, padded); /* PANEL is KEYS */
    rhs_of((rows){space, KEYS}, padded, KEYS, to);
}
INLINE rhs columns_at(const number *columns, idx padded) { return (rhs){columns, KEYS}; }
INLINE rhs columns_from(rhs b, idx j) { return (rhs){b.data + j, b.row}; }
INLINE lhs lhs_at(lhs a, idx i, idx k) { return (lhs){a.data + i * a.row + k / 2, a.row}; }

INLINE idx all_rows_size(const arguments *a, const array *x, idx most, idx dim) {
    return most / TOGETHER * up(dim, PADDING);
}

INLINE rhs all_rows(const arguments *a, const array *x, idx b, idx h, run keys, idx most, idx dim, real *space,
                    number *to) {
    const idx padded = up(dim, PADDING);
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx some = tile_len(j, keys.count);
        rhs_of(rows_once(a, x, b, h, keys.first + j, some, dim, space), some, padded, to + j / 2 * padded);
    }
    return (rhs){to, padded};
}

#ifdef __AMX_BF16__

/* Ask Linux, once, to let this process use the matrix tiles; return whether it does. */
static int may_multiply(void) {
    enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

/* Set the size of a thread's eight tiles, 16 rows of 64 bytes, and release them. */
INLINE void begin_products(void) {
    struct {
        uint8_t palette, row, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    for (int t = 0; t < 8; t++) sizes.bytes[t] = 64, sizes.rows[t] = 16;
    _tile_loadconfig(&sizes);
}
INLINE void end_products(void) { _tile_release(); }

/* 32 rows by 16 or 32 columns, summed in tiles 0 to 3. */
INLINE void tiles(const int wide, real *c, idx ldc, lhs a, rhs b, idx inner, int add) {
    const idx row = sizeof(real) * ldc, a_row = sizeof(number) * a.row, b_row = sizeof(number) * b.row;
    __asm__ volatile("" ::: "memory"); /* GCC's loads of tiles do not say that they read memory */
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(2, c + 16 * ldc, row);
    } else {
        _tile_zero(0);
        _tile_zero(2);
    }
    if (wide && add) {
        _tile_loadd(1, c + 16, row);
        _tile_loadd(3, c + 16 * ldc + 16, row);
    } else {
        _tile_zero(1);
        _tile_zero(3);
    }
    for (idx k = 0; k < inner; k += INNER) {
        const number *ak = a.data + k / 2, *bk = b.data + k / 2 * b.row;
        _tile_loadd(4, ak, a_row);
        _tile_loadd(5, ak + 16 * a.row, a_row);
        _tile_loadd(6, bk, b_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (!wide) continue;
        _tile_loadd(7, bk + 16, b_row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(2, c + 16 * ldc, row);
    if (!wide) return;
    _tile_stored(1, c + 16, row);
    _tile_stored(3, c + 16 * ldc + 16, row);
}

enum { STEP = 32 }; /* rows at a time */

#else

/* 8 rows by one or two vectors. */
INLINE void tiles(const int wide, real *c, idx ldc, lhs a, rhs b, idx inner, int add) {
    __m512 sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
        for (int v = 0; v <= wide; v++)
            sums[i][v] = add ? _mm512_loadu_ps(c + i * ldc + v * LANES) : _mm512_setzero_ps();
    for (idx k = 0; k < packed(inner); k++) {
        __m512i bs[2];
#pragma GCC unroll 2
        for (int v = 0; v <= wide; v++) bs[v] = _mm512_loadu_si512(b.data + k * b.row + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512i x = _mm512_set1_epi32((int)a.data[i * a.row + k]);
#pragma GCC unroll 2
            for (int v = 0; v <= wide; v++) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], (__m512bh)x, (__m512bh)bs[v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
        for (int v = 0; v <= wide; v++) _mm512_storeu_ps(c + i * ldc + v * LANES, sums[i][v]);
}

enum { STEP = 8 }; /* rows at a time */

#endif

INLINE void multiply(real *c, idx ldc, lhs a, rhs b, idx m, idx n, idx inner, int add) {
    for (idx i = 0; i < m; i += STEP)
        for (idx j = 0; j < n; j += 2 * LANES) {
            const lhs ai = {a.data + i * a.row, a.row};
            const rhs bj = {b.data + j, b.row};
            if (n - j > LANES) tiles(1, c + i * ldc + j, ldc, ai, bj, inner, add);
            else tiles(0, c + i * ldc + j, ldc, ai, bj, inner, add);
        }
}

#endif

/* The rows of `b` from one on. */
INLINE rhs rows_from(rhs b, idx k) {
    b.data += k / TOGETHER * b.row;
    return b;
}

/* ---- products of tiles of which a band attends: each BAND rows have their own run of columns ---- */

enum { BAND = TOGETHER > 1 ? 32 : PANEL < KEYS && PANEL > 16 ? PANEL : 16, BANDS = ROWS / BAND };

/* Columns of `c` outside the runs are not written. */
INLINE void multiply_columns(real *c, idx ldc, lhs a, rhs b, idx m, const run *runs, idx inner, int add) {
    for (idx i = 0; i < m; i += BAND) {
        const run columns = runs[i / BAND];
        multiply(c + i * ldc + columns.first, ldc, lhs_at(a, i, 0), columns_from(b, columns.first),
                 m - i < BAND ? m - i : BAND, up(columns.count, LANES), inner, add);
    }
}

/* Columns of `a`, and rows of `b`, outside the runs are not read. */
INLINE void multiply_inner(real *c, idx ldc, lhs a, rhs b, idx m, idx n, const run *runs, int add) {
    for (idx i = 0; i < m; i += BAND) {
        const run inner = runs[i / BAND];
        multiply(c + i * ldc, ldc, lhs_at(a, i, inner.first), rows_from(b, inner.first), m - i < BAND ? m - i : BAND,
                 n, inner.count, add);
    }
}

#endif
