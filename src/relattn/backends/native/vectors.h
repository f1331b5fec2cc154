/* Vectors of the build's number and products of small matrices, in the compiler's own vector extension: GCC or Clang.

   The number is float32, or float64 where REAL64 is defined. */

#ifndef RELATTN_VECTORS_H
#define RELATTN_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>

#ifdef REAL64
typedef double real;
typedef int64_t integer; /* as wide */
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
#elif defined(__AVX2__) || defined(REAL64) /* four numbers at least */
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

typedef real four __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));

INLINE real sum_of(vec x) {
    four parts[LANES / 4], total = {0};
    memcpy(parts, &x, sizeof x);
    for (int i = 0; i < LANES / 4; i++) total += parts[i];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

INLINE real max_of(vec x) {
    typedef integer four_integers __attribute__((vector_size(sizeof(four))));
    four parts[LANES / 4];
    memcpy(parts, &x, sizeof x);
    four top = parts[0];
    for (int i = 1; i < LANES / 4; i++) {
        const four_integers higher = parts[i] > top;
        top = (four)((higher & (four_integers)parts[i]) | (~higher & (four_integers)top));
    }
    const real a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
    return a > b ? a : b;
}

/* e^r = 1 + r + r^2 (... + EXP_TERMS[last]) for |r| <= ln 2 / 2, in minimax polynomials; ln 2 in two parts, of which
   the first times a power's exponent is exact. */
#ifdef REAL64
#define EXP_LEAST (-708.0)
#define LOG_2 0.693147180369123816490
#define LOG_2_REST 1.90821492927058770002e-10
static const real EXP_TERMS[] = {
    2.5100424157005067e-08, 2.7620138719733994e-07, 2.7557268378684192e-06, 2.480152119021773e-05,
    1.9841269863105968e-04, 1.3888888917281794e-03, 8.333333333330051e-03,  4.166666666662399e-02,
    1.6666666666666669e-01, 5.000000000000001e-01,
};
#else
#define EXP_LEAST (-87.0f)
#define LOG_2 0.693359375f
#define LOG_2_REST (-2.12194440e-4f)
static const real EXP_TERMS[] = {
    1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f,
};
#endif

/* e^x for x <= 0 to an ulp or two; 0 below the least normal number, NaN for NaN. */
INLINE vec exp_of(vec x) {
    const ivec under = x < EXP_LEAST;
    x = pick(under, splat(EXP_LEAST), x);
    const vec shift = splat((real)(3ll << (MANTISSA - 1))); /* rounds to an integer and leaves it in the low bits */
    const vec shifted = x * (real)1.44269504088896341 + shift;
    const vec whole = shifted - shift;
    vec r = x - whole * LOG_2;
    r = r - whole * LOG_2_REST;
    vec y = splat(EXP_TERMS[0]);
#pragma GCC unroll 16
    for (size_t i = 1; i < sizeof EXP_TERMS / sizeof *EXP_TERMS; i++) y = y * r + EXP_TERMS[i];
    y = y * (r * r) + r + (real)1;
    const ivec power = ((ivec)shifted - (ivec)shift + BIAS) << MANTISSA;
    return pick(under, splat(0), y * (vec)power);
}

/* ---- products ---- */

INLINE void tile(const int rows, const int vecs, real *c, idx ldc, const real *a, idx a_row, idx a_col,
                 const real *b, idx ldb, idx inner, int add) {
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
            AT(c + i * ldc + v * LANES) = sums[i][v] + (add ? AT(c + i * ldc + v * LANES) : splat(0));
}

#define FEWER_ROWS(vecs)                                                                                               \
    switch (m - i) {                                                                                                   \
        case 1: tile(1, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                   \
        case 2: tile(2, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                   \
        case 3: tile(3, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                   \
        case 4: tile(4, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                   \
        case 5: tile(5, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add); break;                                   \
        default: tile(6, vecs, ci, ldc, ai, a_row, a_col, b, ldb, inner, add);                                         \
    }

#define COLUMNS(vecs)                                                                                                  \
    static void columns_##vecs(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb,       \
                               idx m, idx inner, int add) {                                                            \
        for (idx i = 0; i < m; i += TILE_ROWS) {                                                                       \
            real *ci = c + i * ldc;                                                                                   \
            const real *ai = a + i * a_row;                                                                           \
            FEWER_ROWS(vecs)                                                                                           \
        }                                                                                                              \
    }

COLUMNS(1)
COLUMNS(2)
COLUMNS(3)
COLUMNS(4)

/* c (m, n) = or += a (m, inner) b (inner, n); n a multiple of LANES, a by its two strides. What is there is added
   last: sums of sums lose less than one long sum. */
static void product(real *c, idx ldc, const real *a, idx a_row, idx a_col, const real *b, idx ldb, idx m, idx n,
                    idx inner, int add) {
    for (idx j = 0; j < n; j += TILE_VECS * LANES) {
        idx vecs = (n - j) / LANES;
        if (vecs >= TILE_VECS) vecs = TILE_VECS;
        switch (vecs) {
            case 1: columns_1(c + j, ldc, a, a_row, a_col, b + j, ldb, m, inner, add); break;
            case 2: columns_2(c + j, ldc, a, a_row, a_col, b + j, ldb, m, inner, add); break;
            case 3: columns_3(c + j, ldc, a, a_row, a_col, b + j, ldb, m, inner, add); break;
            default: columns_4(c + j, ldc, a, a_row, a_col, b + j, ldb, m, inner, add);
        }
    }
}

#endif
