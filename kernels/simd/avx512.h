/* AVX-512 (F, DQ, BW and VL): vectors of 64 bytes. DOTS needs VNNI. */

#ifndef RELATTN_AVX512_H
#define RELATTN_AVX512_H

#include <immintrin.h>

enum { VECTOR_BYTES = 64, MICRO_VECS = 4, CHAINS = 1 };
#include "ymm.h"

#define HAS_VEC_MAX
INLINE vec vec_max(vec a, vec b) {
#ifdef REAL64
    return (vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#else
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#endif
}

#define HAS_ANY_LANE
INLINE int any_lane(ivec x) { return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0; }

#ifndef REAL64
#define HAS_CONVERT_CODES
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
    const __m128i bytes = _mm512_cvtepi32_epi8(codes);
    _mm_storeu_si128((__m128i *)to, _mm_xor_si128(bytes, _mm_set1_epi8((char)offset)));
}

#define HAS_ADD_PAIRS
INLINE ivec add_pairs(ivec sum, ivec a, ivec w) {
    return sum + (ivec)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)a, (__m512i)w), _mm512_set1_epi16(1));
}

#define HAS_ADD_DOTS
/* Add four products per lane. Intrinsics would need functions that are compiled for these processors only. */
INLINE ivec add_dots(ivec sum, ivec a, ivec w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(w));
    return sum;
}

#define HAS_ADD_PRODUCTS
INLINE ivec add_products(ivec sum, ivec a, ivec w) {
    const __m512i x = (__m512i)a, y = (__m512i)w,
                  signed_w = _mm512_mask_sub_epi8(y, _mm512_movepi8_mask(x), _mm512_setzero_si512(), y);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(x), signed_w);
    return sum + (ivec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#endif

#endif
