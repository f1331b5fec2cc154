/* Vectors of float32 and products of small matrices, in the compiler's own vector extension: GCC or Clang. */

#ifndef RELATTN_VECTORS_H
#define RELATTN_VECTORS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE_ROWS = 6, TILE_VECS = 4 };
#elif defined(__AVX2__)
enum { LANES = 8, TILE_ROWS = 6, TILE_VECS = 2 };
#else
enum { LANES = 4, TILE_ROWS = 6, TILE_VECS = 4 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef ptrdiff_t idx;

#define INLINE static inline __attribute__((always_inline))
#define AT(pointer) (*(vec *)(pointer))

INLINE idx clamped(idx x, idx low, idx high) { return x < low ? low : x > high ? high : x; }
INLINE idx up(idx x, idx multiple) { return (x + multiple - 1) / multiple * multiple; }

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec pick(ivec condition, vec yes, vec no) { return (vec)((condition & (ivec)yes) | (~condition & (ivec)no)); }

INLINE ivec lanes_from(int32_t first) {
    ivec lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = first + i;
    return lanes;
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

INLINE float sum_of(vec x) {
    four parts[LANES / 4], total = {0};
    memcpy(parts, &x, sizeof x);
    for (int i = 0; i < LANES / 4; i++) total += parts[i];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

INLINE float max_of(vec x) {
    typedef int32_t four_ints __attribute__((vector_size(16)));
    four parts[LANES / 4];
    memcpy(parts, &x, sizeof x);
    four top = parts[0];
    for (int i = 1; i < LANES / 4; i++) {
        const four_ints higher = parts[i] > top;
        top = (four)((higher & (four_ints)parts[i]) | (~higher & (four_ints)top));
    }
    const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
    return a > b ? a : b;
}

/* e^x for x <= 0 to an ulp or two; 0 below the least normal number, NaN for NaN. */
INLINE vec exp_of(vec x) {
    const ivec under = x < -87.0f;
    x = pick(under, splat(-87.0f), x);
    const vec shift = splat(12582912.0f); /* 1.5 * 2^23: rounds to an integer and leaves it in the low bits */
    const vec shifted = x * 1.44269504f + shift;
    const vec whole = shifted - shift;
    vec r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    vec y = splat(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const ivec power = ((ivec)shifted - 0x4B400000 + 127) << 23;
    return pick(under, splat(0), y * (vec)power);
}

/* ---- products ---- */

INLINE void tile(const int rows, const int vecs, float *c, idx ldc, const float *a, idx a_row, idx a_col,
                 const float *b, idx ldb, idx inner, int add) {
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
            const float x = a[i * a_row + k * a_col];
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
    static void columns_##vecs(float *c, idx ldc, const float *a, idx a_row, idx a_col, const float *b, idx ldb,       \
                               idx m, idx inner, int add) {                                                            \
        for (idx i = 0; i < m; i += TILE_ROWS) {                                                                       \
            float *ci = c + i * ldc;                                                                                   \
            const float *ai = a + i * a_row;                                                                           \
            FEWER_ROWS(vecs)                                                                                           \
        }                                                                                                              \
    }

COLUMNS(1)
COLUMNS(2)
COLUMNS(3)
COLUMNS(4)

/* c (m, n) = or += a (m, inner) b (inner, n); n a multiple of LANES, a by its two strides. What is there is added
   last: sums of sums lose less than one long sum. */
static void product(float *c, idx ldc, const float *a, idx a_row, idx a_col, const float *b, idx ldb, idx m, idx n,
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
