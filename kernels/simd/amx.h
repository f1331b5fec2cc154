/* AMX: products of matrix tiles of bfloat16 numbers. */

#ifndef RELATTN_AMX_H
#define RELATTN_AMX_H

#define HAS_MATRIX_TILES
#include "avx512_bf16.h"

enum { PAIRS_ROWS = 32 }; /* rows per block */

/* Set the size of this thread's eight tiles: 16 rows of 64 bytes. */
INLINE void configure_matrix_tiles(void) {
    struct {
        uint8_t palette, row, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    for (int t = 0; t < 8; t++) sizes.bytes[t] = 64, sizes.rows[t] = 16;
    _tile_loadconfig(&sizes);
}
INLINE void release_matrix_tiles(void) { _tile_release(); }

/* Compute PAIRS_ROWS rows by one or two vectors of c = or += a b, where a and b hold pairs along `inner` numbers, a multiple
   of 32. Tiles 0 to 3 are the accumulators. */
INLINE void multiply_pairs(const int two_vecs, real *c, idx ldc, const uint32_t *a, idx a_row, const uint32_t *b,
                           idx b_row, idx inner, int add) {
    const idx c_bytes = 4 * ldc, a_bytes = 4 * a_row, b_bytes = 4 * b_row;
    __asm__ volatile("" ::: "memory"); /* GCC does not know that loads of tiles read memory */
    if (add) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(2, c + 16 * ldc, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(2);
    }
    if (two_vecs && add) {
        _tile_loadd(1, c + 16, c_bytes);
        _tile_loadd(3, c + 16 * ldc + 16, c_bytes);
    } else {
        _tile_zero(1);
        _tile_zero(3);
    }
    for (idx k = 0; k < inner / 2; k += 16) {
        _tile_loadd(4, a + k, a_bytes);
        _tile_loadd(5, a + k + 16 * a_row, a_bytes);
        _tile_loadd(6, b + k * b_row, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (!two_vecs) continue;
        _tile_loadd(7, b + k * b_row + 16, b_bytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(2, c + 16 * ldc, c_bytes);
    if (!two_vecs) return;
    _tile_stored(1, c + 16, c_bytes);
    _tile_stored(3, c + 16 * ldc + 16, c_bytes);
}

#endif
