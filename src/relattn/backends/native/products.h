/* Products of small matrices, c (m, n) = or += a (m, inner) b (inner, n), with operands as the build multiplies them:
   numbers where they lie, or with PAIRS defined two numbers of bfloat16 in the place of one.

   Then the two are neighbours along `inner`, which is what the processors' instructions add up in float32: matrix tiles
   (AMX), or dot products of vectors (AVX512-BF16), which more processors have. What `inner` lacks is filled with zeros;
   rows of `a` and `c` are there up to a multiple of 32, whatever they hold. */

#ifndef RELATTN_PRODUCTS_H
#define RELATTN_PRODUCTS_H

#include "rows.h"

#ifdef PAIRS
enum { TOGETHER = 2, INNER = 32 };
#else
enum { TOGETHER = 1, INNER = 1 };
#endif

/* Numbers that so many along `inner` are. */
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
} left;

typedef struct {
    const number *data;
    idx row;
} right;

/* Operands of rows: as they are, `a` (m, inner) or of its transpose, and `b` (inner, n). */
INLINE left left_of(rows a, idx m, idx inner, number *space) { return (left){a.data, a.row, 1}; }
INLINE left left_of_turned(rows a, idx m, idx inner, number *space) { return (left){a.data, 1, a.row}; }
INLINE right right_of(rows b, idx inner, idx n, number *space) { return (right){b.data, b.row}; }

/* KEYS rows, or the last few, as columns to multiply by: `b` (padded, KEYS). */
INLINE void columns_of(number *to, rows from, idx count, idx padded, real *space) { turn(to, from, count, padded); }

/* All rows of a head as `b`. */
INLINE right all_rows(const arguments *a, const array *x, idx b, idx h, idx count, idx dim, real *space, number *to) {
    const rows all = rows_of(a, x, b, h, 0, count, dim, space);
    return (right){all.data, all.row};
}

INLINE void multiply(real *c, idx ldc, left a, right b, idx m, idx n, idx inner, int add) {
    product(c, ldc, a.data, a.row, a.col, b.data, b.row, m, n, inner, add);
}

#else

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint32_t number; /* the first of the two in its low half */

typedef struct {
    const number *data;
    idx row;
} left, right;

/* Two rows of `inner` as one of pairs. */
INLINE right right_of(rows b, idx inner, idx n, number *space) {
    for (idx k = 0; k < up(inner, INNER); k += 2)
        for (idx j = 0; j < n; j += LANES) {
            const real *row = b.data + k * b.row + j;
            const vec low = k < inner ? AT(row) : splat(0), high = k + 1 < inner ? AT(row + b.row) : splat(0);
            const __m512i evens = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
            const __m512i odds = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
            _mm512_storeu_si512(space + k / 2 * n + j, _mm512_or_si512(evens, _mm512_slli_epi32(odds, 16)));
        }
    return (right){space, n};
}

/* Rows of numbers as rows of pairs; `inner` is a multiple of LANES. */
INLINE left left_of(rows a, idx m, idx inner, number *space) {
    const idx row = packed(inner);
    for (idx i = 0; i < m; i++)
        for (idx k = 0; k < inner; k += INNER) {
            const real *from = a.data + i * a.row + k;
            const vec high = k + LANES < inner ? AT(from + LANES) : splat(0);
            _mm512_storeu_si512(space + i * row + k / 2,
                                (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)AT(from)));
        }
    return (left){space, row};
}

/* Of the transpose of rows: pairs of these, turned, and zeros after `m` rows: what they are added onto may go on. */
INLINE left left_of_turned(rows a, idx m, idx inner, number *space) {
    number pairs[ROWS / 2 * KEYS];
    const right b = right_of(a, inner, up(m, LANES), pairs);
    const idx row = packed(inner);
    for (idx k = 0; k < row; k += 4)
        for (idx i = 0; i < m; i += 4)
            turn_four((real *)(space + i * row + k), row, (const real *)(b.data + k * b.row + i), b.row);
    memset(space + m * row, 0, sizeof(number) * row * (up(m, 32) - m));
    return (left){space, row};
}

INLINE void columns_of(number *to, rows from, idx count, idx padded, real *space) {
    turn(space, from, count, padded);
    right_of((rows){space, KEYS}, padded, KEYS, to);
}

INLINE right all_rows(const arguments *a, const array *x, idx b, idx h, idx count, idx dim, real *space, number *to) {
    const idx padded = up(dim, PADDING);
    for (idx j = 0; j < count; j += KEYS) {
        const idx some = lot(j, count);
        right_of(rows_of(a, x, b, h, j, some, dim, space), some, padded, to + j / 2 * padded);
    }
    return (right){to, padded};
}

#ifdef __AMX_BF16__

/* Whether the system lets this process use the matrix tiles: Linux wants to be asked, once. */
static int may_multiply(void) {
    enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

/* Tells a thread's processor the size of its eight tiles, 16 rows of 64 bytes, and that they are no longer used. */
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

/* Two tiles of rows by one or two of columns, 16 x 16 numbers each, summed up in tiles 0 to 3. */
INLINE void tiles(const int wide, real *c, idx ldc, left a, right b, idx inner, int add) {
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
INLINE void tiles(const int wide, real *c, idx ldc, left a, right b, idx inner, int add) {
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

INLINE void multiply(real *c, idx ldc, left a, right b, idx m, idx n, idx inner, int add) {
    for (idx i = 0; i < m; i += STEP)
        for (idx j = 0; j < n; j += 2 * LANES) {
            const left ai = {a.data + i * a.row, a.row};
            const right bj = {b.data + j, b.row};
            if (n - j > LANES) tiles(1, c + i * ldc + j, ldc, ai, bj, inner, add);
            else tiles(0, c + i * ldc + j, ldc, ai, bj, inner, add);
        }
}

#endif

/* Rows of `b` from one on. */
INLINE right rights_from(right b, idx k) { return (right){b.data + k / TOGETHER * b.row, b.row}; }

#endif
