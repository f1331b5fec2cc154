/* AVX2 and FMA: vectors of 32 bytes. DOTS needs AVX-VNNI. */

#ifndef RELATTN_AVX2_H
#define RELATTN_AVX2_H

#include <immintrin.h>

enum { VECTOR_BYTES = 32, MICRO_VECS = 2, CHAINS = 4 };
#include "ymm.h"

#define HAS_VEC_MAX
INLINE vec vec_max(vec a, vec b) {
#ifdef REAL64
    return (vec)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#endif
}

#define HAS_ANY_LANE
INLINE int any_lane(ivec x) { return !_mm256_testz_si256((__m256i)x, (__m256i)x); }

#ifndef REAL64
#define HAS_CONVERT_CODES
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor)),
                  second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    const __m256i wide = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128((__m128i *)to, _mm_xor_si128(bytes, _mm_set1_epi8((char)offset)));
}

#define HAS_ADD_PAIRS
INLINE ivec add_pairs(ivec sum, ivec a, ivec w) {
    return sum + (ivec)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)a, (__m256i)w), _mm256_set1_epi16(1));
}

#define HAS_ADD_DOTS
/* Add four products per lane. Intrinsics would need functions that are compiled for these processors only. */
INLINE ivec add_dots(ivec sum, ivec a, ivec w) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "xm"(w));
    return sum;
}

#define HAS_ADD_PRODUCTS
INLINE ivec add_products(ivec sum, ivec a, ivec w) {
    const __m256i x = (__m256i)a, signed_w = _mm256_sign_epi8((__m256i)w, x);
    return sum + (ivec)_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(x), signed_w), _mm256_set1_epi16(1));
}
#endif

#endif
