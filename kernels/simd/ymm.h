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

enum { HAS_PAIRS = 1, CODE_OFFSET = 128, WEIGHT_OFFSET = 0 };
#endif

#endif
