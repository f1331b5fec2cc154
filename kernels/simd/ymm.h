/* What AVX2 and AVX-512 do in vectors of 32 bytes. */

#ifndef RELATTN_YMM_H
#define RELATTN_YMM_H

#include "types.h"

#ifndef REAL64
#define HAS_TRANSPOSE_BLOCK
enum { TRANSPOSE_BLOCK = 8 };
/* Transpose eight rows of eight numbers. */
INLINE void transpose_block(real *to, idx to_row, const real *from, idx from_row) {
    __m256 halves[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const real *low = from + i * from_row, *high = low + 4 * from_row;
        halves[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        halves[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4, to += 4 * to_row) {
        const __m256 a = _mm256_unpacklo_ps(halves[h], halves[h + 1]), b = _mm256_unpackhi_ps(halves[h], halves[h + 1]);
        const __m256 c = _mm256_unpacklo_ps(halves[h + 2], halves[h + 3]);
        const __m256 d = _mm256_unpackhi_ps(halves[h + 2], halves[h + 3]);
        _mm256_storeu_ps(to, _mm256_shuffle_ps(a, c, 0x44));
        _mm256_storeu_ps(to + to_row, _mm256_shuffle_ps(a, c, 0xEE));
        _mm256_storeu_ps(to + 2 * to_row, _mm256_shuffle_ps(b, d, 0x44));
        _mm256_storeu_ps(to + 3 * to_row, _mm256_shuffle_ps(b, d, 0xEE));
    }
}

#define HAS_MAX_SQUARE
enum { HAS_PAIRS = 1, CODE_OFFSET = 128 };
/* Return the largest sum of the squares of eight codes that PAIRS adds. */
static real max_square(const uint8_t *codes, idx count) {
    __m256i largest = _mm256_setzero_si256();
    for (idx k = 0; k < count; k += 16) {
        const __m128i bytes = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(codes + k)), _mm_set1_epi8((char)128));
        const __m256i wide = _mm256_cvtepi8_epi16(bytes), pairs = _mm256_madd_epi16(wide, wide),
                      fours = _mm256_add_epi32(pairs, _mm256_permute2x128_si256(pairs, pairs, 1));
        largest = _mm256_max_epi32(largest, _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4E)));
    }
    const int even = _mm256_extract_epi32(largest, 0), odd = _mm256_extract_epi32(largest, 1);
    return (real)(even > odd ? even : odd);
}

#define HOLD_IN_REGISTERS(x) __asm__("" : "+x"(x)) /* for all rows of a panel */
#endif

#endif
