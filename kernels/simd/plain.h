/* Vectors of 16 bytes, for x86-64 without AVX2 and for every machine that has no other level. */

#ifndef RELATTN_PLAIN_H
#define RELATTN_PLAIN_H

#ifdef REAL64 /* vectors of at least four numbers */
enum { VECTOR_BYTES = 32, MICRO_VECS = 2, CHAINS = 4 };
#else
enum { VECTOR_BYTES = 16, MICRO_VECS = 4, CHAINS = 1 };
#endif
#include "types.h"

#if defined(__SSE2__) && !defined(REAL64)
#include <emmintrin.h>

#define HAS_CONVERT_CODES
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    __m128i codes[4];
    for (int i = 0; i < 4; i++)
        codes[i] = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + 4 * i), _mm_set1_ps(inverse)));
    const __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(codes[0], codes[1]), _mm_packs_epi32(codes[2], codes[3]));
    _mm_storeu_si128((__m128i *)to, _mm_xor_si128(bytes, _mm_set1_epi8((char)offset)));
}

#define HAS_ADD_PRODUCTS
INLINE ivec add_products(ivec sum, ivec a, ivec w) {
    const __m128i x = (__m128i)a, y = (__m128i)w, even_x = _mm_srai_epi16(_mm_slli_epi16(x, 8), 8),
                  even_y = _mm_srai_epi16(_mm_slli_epi16(y, 8), 8);
    return sum + ((ivec)_mm_madd_epi16(even_x, even_y) +
                  (ivec)_mm_madd_epi16(_mm_srai_epi16(x, 8), _mm_srai_epi16(y, 8)));
}
#endif

#endif
