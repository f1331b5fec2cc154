/* Vectors of `real`, and products of small matrices, in the vector extension of GCC and Clang.

   `real` is float, or double if REAL64 is defined. */

#ifndef RELATTN_VECTORS_H
#define RELATTN_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef REAL64
typedef double real;
typedef int64_t integer; /* of the same width */
enum { MANTISSA = 52, BIAS = 1023 };
#else
typedef float real;
typedef int32_t integer;
enum { MANTISSA = 23, BIAS = 127 };
#endif

#if defined(__AVX512F__)
enum { BYTES = 64, TILE_ROWS = 6, TILE_VECS = 4 };
#elif __ARM_FEATURE_SVE_BITS == 256
enum { BYTES = 32, TILE_ROWS = 6, TILE_VECS = 4 };
#elif defined(__AVX2__) || defined(REAL64) /* at least four numbers */
enum { BYTES = 32, TILE_ROWS = 6, TILE_VECS = 2 };
#else
enum { BYTES = 16, TILE_ROWS = 6, TILE_VECS = 4 };
#endif
enum { LANES = BYTES / sizeof(real) };
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef integer ivec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef ptrdiff_t idx;

#define INLINE static inline __attribute__((always_inline))
#define AT(pointer) (*(vec *)(pointer))

INLINE idx clamped(idx x, idx low, idx high) { return x < low ? low : x > high ? high : x; }
INLINE idx up(idx x, idx multiple) { return (x + multiple - 1) / multiple * multiple; }

INLINE vec splat(real x) { return x - (vec){0}; }

INLINE vec pick(ivec condition, vec yes, vec no) { return (vec)((condition & (ivec)yes) | (~condition & (ivec)no)); }

INLINE ivec lanes_from(integer first) {
    ivec lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = first + i;
    return lanes;
}

/* The larger of a and b in each lane; b if either is NaN. */
INLINE vec larger(vec a, vec b) {
#if defined(__AVX512F__) && defined(REAL64)
    return (vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(REAL64)
    return (vec)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return pick(a > b, a, b);
#endif
}

/* Whether a lane of x is above a limit. */
INLINE int any_above(vec x, real limit) {
    const ivec above = x > splat(limit);
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)above, (__m512i)above) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)above, (__m256i)above);
#else
    uint64_t parts[BYTES / 8], any = 0;
    memcpy(parts, &above, sizeof above);
    for (int i = 0; i < BYTES / 8; i++) any |= parts[i];
    return any != 0;
#endif
}

typedef real four __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));

INLINE real sum_of(vec x) {
    four parts[LANES / 4], total = {0};
    memcpy(parts, &x, sizeof x);
    for (int i = 0; i < LANES / 4; i++) total += parts[i];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

INLINE real max_of(vec x) {
    real top = x[0];
    for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* ln 2 and log2(e), each as a sum of two numbers. */
#define LN_2 ((real)0.693147180559945309417232121458L)
#define LN_2_REST ((real)(0.693147180559945309417232121458L - LN_2))
#define LOG2_E ((real)1.442695040888963407359924681002L)
#define LOG2_E_REST ((real)(1.442695040888963407359924681002L - LOG2_E))

/* The factor of scores with which 2^x is e^(scale * score), as a sum of two numbers: one rounding would shift all
   scores in the same direction. Both parts have the same sign, so that an infinite score stays what it is. */
typedef struct {
    real most, rest;
} factor;

INLINE factor factor_of(real scale) {
    const long double whole = scale * 1.442695040888963407359924681002L;
    const real most = (real)(whole * (1 - (long double)(sizeof(real) == 8 ? 0x1p-52 : 0x1p-23)));
    return (factor){most, (real)(whole - most)};
}

/* 2^r = 1 + r (... + POWER_TERMS[0] r^n) for |r| <= 1/2, with relative errors of at most 2e-9 and 2e-17. */
#ifdef REAL64
static const real POWER_TERMS[] = {
    4.45496059818651856e-10, 7.07258594926922339e-09, 1.01780624458457737e-07, 1.32154425879216893e-06,
    1.52527338298361192e-05, 1.54035304417360499e-04, 1.33335581464169356e-03, 9.61812910760688825e-03,
    5.55041086648215970e-02, 2.40226506959100972e-01, 6.93147180559945286e-01, 1.0,
};
#else
static const real POWER_TERMS[] = {
    1.5353361811e-4f, 1.3398874445e-3f, 9.6184373583e-3f, 5.5503324710e-2f, 2.4022647914e-1f, 6.9314720286e-1f, 1.0f,
};
#endif

/* 2^x for x up to BIAS; 0 below the least normal number, NaN for NaN. */
INLINE vec power_of_2(vec x) {
    /* Adding this rounds to an integer, and leaves x + BIAS in the low bits. */
    const vec shift = splat((real)(3ll << (MANTISSA - 1)) + BIAS);
    x = larger(splat(-BIAS), x);
    const vec shifted = x + shift, r = x - (shifted - shift);
    vec y = splat(POWER_TERMS[0]);
#pragma GCC unroll 16
    for (size_t i = 1; i < sizeof POWER_TERMS / sizeof *POWER_TERMS; i++) y = y * r + POWER_TERMS[i];
    return y * (vec)((ivec)shifted << MANTISSA);
}

/* ln(x) for normal x > 0; NaN for NaN and infinity. With x = 2^e m and s = (m - 1) / (m + 1), it is
   e ln 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...), where |s| <= 0.172. */
INLINE vec log_of(vec x) {
    const ivec half = (ivec)splat((real)0.70710678118654752); /* m is in [sqrt(1/2), sqrt(2)) */
    const ivec exponent = ((ivec)x - half) >> MANTISSA;
    const vec m = (vec)((ivec)x - (exponent << MANTISSA)), s = (m - 1) / (m + 1), square = s * s;
    const int terms = sizeof(real) == 8 ? 11 : 5;
    vec y = splat(0);
#pragma GCC unroll 11
    for (int i = terms; i > 0; i--) y = y * square + (real)2 / (real)(2 * i - 1);
    return __builtin_convertvector(exponent, vec) * LN_2 + (y * s + (x - x));
}

/* ---- products ---- */

/* Blocks of at most 6 rows by 4 vectors of c (m, n) = or += a (m, inner) b (inner, n), in registers. */
INLINE void block(const int rows, const int vecs, real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b,
                  idx ldb, idx inner, int add) {
    vec sums[6][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) sums[i][v] = splat(0);
    for (idx k = 0; k < inner; k++) {
        vec bs[4];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) bs[v] = AT(b + k * ldb + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const real x = a[i * a_row + k * a_col];
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++) sums[i][v] += x * bs[v];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            if (add) AT(c + i * ldc + v * LANES) += sums[i][v];
            else AT(c + i * ldc + v * LANES) = sums[i][v];
}

#define FEWER_ROWS(vecs)                                                                                               \
    switch (m - i) {                                                                                                   \
        case 1: block(1, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                  \
        case 2: block(2, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                  \
        case 3: block(3, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                  \
        case 4: block(4, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                  \
        case 5: block(5, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                  \
        default: block(6, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add);                                        \
    }

#define COLUMNS(vecs)                                                                                                  \
    static void columns_##vecs(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb, idx m,   \
                               idx inner, int add) {                                                                   \
        for (idx i = 0; i < m; i += TILE_ROWS) {                                                                       \
            real *ci = c + i * ldc;                                                                                    \
            const real *ai = a + i * a_row;                                                                            \
            FEWER_ROWS(vecs)                                                                                           \
        }                                                                                                              \
    }

COLUMNS(1)
COLUMNS(2)
COLUMNS(3)
COLUMNS(4)

enum { PANEL = TILE_VECS * LANES }; /* columns of b that are multiplied at a time */

/* c (m, n) = or += a (m, inner) b (inner, n); n is a multiple of LANES. Columns of b come in panels of PANEL, whose
   rows are `ldb` apart and which are `panel` apart. a is addressed by two strides. The previous content of c is added
   last: sums of sums lose less than one long sum. */
static void product(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb, idx panel, idx m,
                    idx n, idx inner, int add) {
    for (idx j = 0; j < n; j += PANEL, b += panel) {
        switch (n - j >= PANEL ? TILE_VECS : (n - j) / LANES) {
            case 1: columns_1(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            case 2: columns_2(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            case 3: columns_3(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add); break;
            default: columns_4(c + j, ldc, a, a_row, a_col, b, ldb, m, inner, add);
        }
    }
}

#endif
