/* Functions of vectors of `real`. LEVEL_FILE is the file of the processor level. */

#ifndef RELATTN_VECTORS_H
#define RELATTN_VECTORS_H

#include <tgmath.h>

#include LEVEL_FILE
#include "generic.h"

/* Return whether a lane of x is greater than a limit. */
INLINE int any_greater(vec x, real limit) { return any_lane(x > splat(limit)); }

INLINE vec4 reduce_to_4(vec x) {
    vec4 parts[LANES / 4], total = {0};
    memcpy(parts, &x, sizeof x);
    for (int i = 0; i < LANES / 4; i++) total += parts[i];
    return total;
}

INLINE real reduce_sum(vec x) {
    const vec4 total = reduce_to_4(x);
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* Return the sums of four vectors. */
INLINE vec4 reduce_sums(const vec *x) {
    const vec4 a = reduce_to_4(x[0]), b = reduce_to_4(x[1]), c = reduce_to_4(x[2]), d = reduce_to_4(x[3]);
    const vec4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const vec4 ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return (__builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7)) +
           (__builtin_shufflevector(ab2, cd2, 0, 1, 4, 5) + __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

INLINE real reduce_max(vec x) {
    real maximum = x[0];
    for (int i = 1; i < LANES; i++) maximum = x[i] > maximum ? x[i] : maximum;
    return maximum;
}

/* ln 2 and log2(e), each as a sum of two numbers. */
#define LN_2 ((real)0.693147180559945309417232121458L)
#define LN_2_LO ((real)(0.693147180559945309417232121458L - LN_2))
#define LOG2_E ((real)1.442695040888963407359924681002L)
#define LOG2_E_LO ((real)(1.442695040888963407359924681002L - LOG2_E))

/* Scores are finite in units of log2(e) up to here. Finite biases beyond are clamped: models hide pairs by the smallest
   number of a dtype. */
#ifdef REAL64
#define LARGEST 1.7976931348623157e308
#else
#define LARGEST 3.4028234e38f
#endif
#define MAX_BIAS (LARGEST * (real)0.6931471)

/* A number as a sum of two, as in double-word arithmetic. The factor scale * log2(e) of the scores is split, because a
   rounded factor would shift all scores in the same direction. Both parts have the same sign, so that infinite scores
   do not become NaN. */
typedef struct {
    real hi, lo;
} split_real;

INLINE split_real split_scale(real scale) {
    const long double exact = scale * 1.442695040888963407359924681002L;
    const real hi = (real)(exact * (1 - (long double)(sizeof(real) == 8 ? 0x1p-52 : 0x1p-23)));
    return (split_real){hi, (real)(exact - hi)};
}

/* 2^r = 1 + r (... + EXP2_COEFFICIENTS[0] r^n) for |r| <= 1/2, with relative errors of at most 2e-9 in float32 and
   2e-17 in float64. */
#ifdef REAL64
static const real EXP2_COEFFICIENTS[] = {
    4.45496059818651856e-10, 7.07258594926922339e-09, 1.01780624458457737e-07, 1.32154425879216893e-06,
    1.52527338298361192e-05, 1.54035304417360499e-04, 1.33335581464169356e-03, 9.61812910760688825e-03,
    5.55041086648215970e-02, 2.40226506959100972e-01, 6.93147180559945286e-01, 1.0,
};
#else
static const real EXP2_COEFFICIENTS[] = {
    1.5353361811e-4f, 1.3398874445e-3f, 9.6184373583e-3f, 5.5503324710e-2f, 2.4022647914e-1f, 6.9314720286e-1f, 1.0f,
};
#endif

/* Replace each x by 2^x for x up to BIAS: 0 below the smallest normal number, NaN for NaN. At most CHAINS vectors are
   computed in lockstep: each step needs the result of the one before, and the processor does not look far ahead. */
INLINE void vecs_exp2(vec *x, const int count) {
    /* Adding the shift rounds x to an integer, and leaves x + BIAS in the low bits. */
    const vec shift = splat((real)(3ll << (MANTISSA - 1)) + BIAS);
    vec shifted[CHAINS], y[CHAINS];
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)
    EACH x[i] = vec_max(splat(-BIAS), x[i]);
    EACH shifted[i] = x[i] + shift;
    EACH x[i] -= shifted[i] - shift;
    EACH y[i] = splat(EXP2_COEFFICIENTS[0]);
#pragma GCC unroll 16
    for (size_t k = 1; k < sizeof EXP2_COEFFICIENTS / sizeof *EXP2_COEFFICIENTS; k++)
        EACH y[i] = y[i] * x[i] + EXP2_COEFFICIENTS[k];
    EACH x[i] = y[i] * (vec)((uvec)shifted[i] << MANTISSA);
#undef EACH
}

INLINE vec vec_exp2(vec x) {
    vecs_exp2(&x, 1);
    return x;
}

/* Return 2^x as of a vector. The functions of C libraries differ from system to system. */
INLINE real exp2_of(real x) { return vec_exp2(splat(x))[0]; }

/* Return ln(x) for normal x > 0, or NaN for NaN and infinity. With x = 2^e m and s = (m - 1) / (m + 1), it is
   e ln 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...), where |s| <= 0.172. */
INLINE vec vec_log(vec x) {
    const uvec sqrt_half = (uvec)splat((real)0.70710678118654752); /* m is in [sqrt(1/2), sqrt(2)) */
    const ivec exponent = (ivec)((uvec)x - sqrt_half) >> MANTISSA;
    const vec m = (vec)((uvec)x - ((uvec)exponent << MANTISSA)), s = (m - 1) / (m + 1), square = s * s;
    const int terms = sizeof(real) == 8 ? 11 : 5;
    vec y = splat(0);
#pragma GCC unroll 11
    for (int i = terms; i > 0; i--) y = y * square + (real)2 / (real)(2 * i - 1);
    return __builtin_convertvector(exponent, vec) * LN_2 + (y * s + (x - x));
}

INLINE real log_of(real x) { return vec_log(splat(x))[0]; }

#endif
