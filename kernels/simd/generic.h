/* The functions of a level for processors without instructions for them. */

#ifndef RELATTN_GENERIC_H
#define RELATTN_GENERIC_H

#include "types.h"

#ifndef HAS_VEC_MAX
/* Return the maximum of a and b in each lane, or b if either is NaN. */
INLINE vec vec_max(vec a, vec b) { return blend(a > b, a, b); }
#endif

#ifndef HAS_ANY_LANE
/* Return whether a lane is not zero. */
INLINE int any_lane(ivec x) {
    uint64_t parts[VECTOR_BYTES / 8], any = 0;
    memcpy(parts, &x, sizeof x);
    for (int i = 0; i < VECTOR_BYTES / 8; i++) any |= parts[i];
    return any != 0;
}
#endif

/* Transpose four rows of four numbers. */
INLINE void transpose_4x4(real *to, idx to_row, const real *from, idx from_row) {
    const vec4 a = *(vec4 *)from, b = *(vec4 *)(from + from_row);
    const vec4 c = *(vec4 *)(from + 2 * from_row), d = *(vec4 *)(from + 3 * from_row);
    const vec4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const vec4 ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(vec4 *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(vec4 *)(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(vec4 *)(to + 2 * to_row) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
    *(vec4 *)(to + 3 * to_row) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

#ifndef HAS_TRANSPOSE_BLOCK
enum { TRANSPOSE_BLOCK = 4 };
/* Transpose TRANSPOSE_BLOCK rows of as many numbers. */
INLINE void transpose_block(real *to, idx to_row, const real *from, idx from_row) {
    transpose_4x4(to, to_row, from, from_row);
}
#endif

#ifndef HAS_MATRIX_TILES
/* Set the size of this thread's matrix tiles, and release them. */
INLINE void configure_matrix_tiles(void) {}
INLINE void release_matrix_tiles(void) {}
#endif

#ifndef REAL64 /* 8-bit integers, as `int8.h` describes */

#ifndef HAS_CONVERT_CODES
/* Convert 16 numbers to codes: multiply, round to the nearest integer and to even in ties. The product is rounded first:
   a fused operation would give other codes on other processors. */
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)((int)__builtin_rintf(x[i] * inverse) ^ offset);
}
#endif

#ifndef HAS_ADD_PAIRS
enum { HAS_PAIRS = 0, CODE_OFFSET = 0, WEIGHT_OFFSET = 64 }; /* packs PAIRS for WebAssembly */
INLINE ivec add_pairs(ivec sum, ivec a, ivec w) { return (void)a, (void)w, sum; } /* never called */
#endif

#ifndef HAS_TILE_SIZES
enum { PAIRS_TILE = 4, ROW_SUMS = 2 }; /* rows of PAIRS that are computed together, and accumulators of few rows */
#endif

#ifndef HAS_ROW_NUMBER
/* Return a number of a row of codes that is subtracted from its sums of PAIRS. */
INLINE integer row_number(const uint8_t *codes, idx count) { return (void)codes, (void)count, 0; }
#endif

#ifndef HAS_ADD_DOTS
INLINE ivec add_dots(ivec sum, ivec a, ivec w) { return (void)a, (void)w, sum; } /* never called */
#endif

#ifndef HAS_MULTIPLY_CODES
enum { HAS_CODE_TILES = 0, TILE_INPUTS = 64 };
INLINE void multiply_codes(int32_t *sums, const int32_t *first, const uint8_t *codes, idx codes_row, const int8_t *w, idx inputs) {
    (void)sums, (void)first, (void)codes, (void)codes_row, (void)w, (void)inputs; /* never called */
}
#endif

#ifndef HAS_ADD_PRODUCTS
/* Add four products of signed codes and weights per lane. */
INLINE ivec add_products(ivec sum, ivec a, ivec w) {
#pragma GCC unroll 4
    for (int i = 24; i >= 0; i -= 8)
        sum += ((ivec)((uvec)a << i) >> 24) * ((ivec)((uvec)w << i) >> 24);
    return sum;
}
#endif

#endif
#endif
