/* AVX512-BF16: dot products of pairs of bfloat16 numbers, in vectors of 64 bytes. */

#ifndef RELATTN_AVX512_BF16_H
#define RELATTN_AVX512_BF16_H

#include "avx512.h"

/* Return pairs of bfloat16 numbers: those of `low` in the low halves, those of `high` in the high halves. */
INLINE ivec pair_numbers(vec low, vec high) {
    const __m512i evens = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
    const __m512i odds = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
    return (ivec)_mm512_or_si512(evens, _mm512_slli_epi32(odds, 16));
}

/* Return the pairs of adjacent numbers of two consecutive vectors. */
INLINE ivec pair_neighbours(vec first, vec second) {
    return (ivec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

#ifndef HAS_MATRIX_TILES
enum { PAIRS_ROWS = 8 }; /* rows per block */

/* Compute PAIRS_ROWS rows by one or two vectors of c = or += a b, where a and b hold pairs along `inner` numbers. */
INLINE void multiply_pairs(const int two_vecs, real *c, idx ldc, const uint32_t *a, idx a_row, const uint32_t *b,
                           idx b_row, idx inner, int add) {
    __m512 sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
        for (int v = 0; v <= two_vecs; v++)
            sums[i][v] = add ? _mm512_loadu_ps(c + i * ldc + v * LANES) : _mm512_setzero_ps();
    for (idx k = 0; k < inner / 2; k++) {
        __m512i bs[2];
#pragma GCC unroll 2
        for (int v = 0; v <= two_vecs; v++) bs[v] = _mm512_loadu_si512(b + k * b_row + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512i x = _mm512_set1_epi32((int)a[i * a_row + k]);
#pragma GCC unroll 2
            for (int v = 0; v <= two_vecs; v++) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], (__m512bh)x, (__m512bh)bs[v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
        for (int v = 0; v <= two_vecs; v++) _mm512_storeu_ps(c + i * ldc + v * LANES, sums[i][v]);
}
#endif

#endif
