/* AMX: products of matrix tiles of bfloat16 numbers and of 8-bit integers. */

#ifndef RELATTN_AMX_H
#define RELATTN_AMX_H

#define HAS_MATRIX_TILES
#include "avx512_bf16.h"

enum { PAIRS_ROWS = 32 }; /* rows per block */

/* Set the size of this thread's eight tiles: 16 rows of 64 bytes. The structure is constant because GCC 12 believes that the
   instruction reads 8 bytes, and leaves out the writes of the others. */
INLINE void configure_matrix_tiles(void) {
    static const struct {
        uint8_t palette, row, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
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

#define HAS_MULTIPLY_CODES
enum { HAS_CODE_TILES = 1, TILE_INPUTS = 64 };
/* Compute 16 rows by a panel of sums = first + codes w, where `inputs` is a multiple of TILE_INPUTS. */
INLINE void multiply_codes(int32_t *sums, const int32_t *first, const uint8_t *codes, idx codes_row, const int8_t *w, idx inputs) {
    __asm__ volatile("" ::: "memory");
    _tile_loadd(0, first, 0); /* the same numbers in all rows */
    _tile_loadd(1, first + 16, 0);
    _tile_loadd(2, first + 32, 0);
    _tile_loadd(3, first + 48, 0);
    for (idx k = 0; k < inputs; k += TILE_INPUTS, w += TILE_INPUTS * 64) {
        _tile_loadd(4, codes + k, codes_row);
        _tile_loadd(5, w, 256);
        _tile_dpbusd(0, 4, 5);
        _tile_loadd(6, w + 64, 256);
        _tile_dpbusd(1, 4, 6);
        _tile_loadd(5, w + 128, 256);
        _tile_dpbusd(2, 4, 5);
        _tile_loadd(6, w + 192, 256);
        _tile_dpbusd(3, 4, 6);
    }
    _tile_stored(0, sums, 256);
    _tile_stored(1, sums + 16, 256);
    _tile_stored(2, sums + 32, 256);
    _tile_stored(3, sums + 48, 256);
    __asm__ volatile("" ::: "memory");
}

#endif
