/* WebAssembly with SIMD128: vectors of 16 bytes. With relaxed SIMD, PAIRS has the relaxed dot product.

   That needs weights from 0 to 127. So the codes of PAIRS are packed with 64 added, and 64 times the sum of a row's codes is
   subtracted. Then no sum saturates, and results are the same in every browser. */

#ifndef RELATTN_WASM_H
#define RELATTN_WASM_H

#include <wasm_simd128.h>

enum { VECTOR_BYTES = 16, MICRO_VECS = 4, CHAINS = 1 }; /* as in `plain.h`: both have the same panels and the same scores */
#include "types.h"

#define HAS_CONVERT_CODES
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    v128_t codes[4];
    for (int i = 0; i < 4; i++)
        codes[i] = wasm_i32x4_trunc_sat_f32x4(
            wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + 4 * i), wasm_f32x4_splat(inverse))));
    wasm_v128_store(to, wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(codes[0], codes[1]),
                                                wasm_i16x8_narrow_i32x4(codes[2], codes[3])));
    (void)offset; /* 0 */
}

#define HAS_ADD_PRODUCTS
INLINE ivec add_products(ivec sum, ivec a, ivec w) {
    const v128_t x = (v128_t)a, y = (v128_t)w, even_x = wasm_i16x8_shr(wasm_i16x8_shl(x, 8), 8),
                 even_y = wasm_i16x8_shr(wasm_i16x8_shl(y, 8), 8);
    return sum + ((ivec)wasm_i32x4_dot_i16x8(even_x, even_y) +
                  (ivec)wasm_i32x4_dot_i16x8(wasm_i16x8_shr(x, 8), wasm_i16x8_shr(y, 8)));
}

#define HAS_ADD_PAIRS
enum { HAS_PAIRS = 1, CODE_OFFSET = 0, WEIGHT_OFFSET = 64 };
#ifdef __wasm_relaxed_simd__
INLINE ivec add_pairs(ivec sum, ivec a, ivec w) {
    return (ivec)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)a, (v128_t)w, (v128_t)sum);
}
#else
#define HAS_TILE_SIZES
enum { PAIRS_TILE = 2, ROW_SUMS = 1 }; /* V8 keeps 15 vectors in registers */

/* Two weights, of which none is negative, are the number first + 256 second in 16 bits. So the products of both are
   a_0 (first + 256 second) + (a_1 - 256 a_0) second, and only the second one has to be taken out of the pair. Sums of the
   terms wrap around in 32 bits, and the total is exact. */
INLINE ivec add_pairs(ivec sum, ivec a, ivec w) {
    const v128_t shifted = wasm_i16x8_shl((v128_t)a, 8), first = wasm_i16x8_shr(shifted, 8),
                 second = wasm_i16x8_sub(wasm_i16x8_shr((v128_t)a, 8), shifted);
    const v128_t products = wasm_i32x4_dot_i16x8(second, wasm_i16x8_shr((v128_t)w, 8));
    return (ivec)wasm_i32x4_add((v128_t)sum, wasm_i32x4_add(wasm_i32x4_dot_i16x8(first, (v128_t)w), products));
}
#endif

#define HAS_ROW_NUMBER
/* Return what is subtracted from the sums of PAIRS of a row. It is exact: at most 64 * 127 * 133144 < 2^31. */
INLINE integer row_number(const uint8_t *codes, idx count) {
    integer sum = 0;
    for (idx k = 0; k < count; k++) sum += (int8_t)codes[k];
    return WEIGHT_OFFSET * sum;
}
#endif
