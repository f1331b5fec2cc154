/* The instructions of AMX in plain C, for processors without them: `run.sh` includes this before the kernels of the level.
   Unlike with the instructions, AddressSanitizer sees what a tile reads and writes. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_BYTES = 64 };
static _Thread_local uint8_t tiles[AMX_TILES][AMX_ROWS][AMX_BYTES];

static inline void load_tile(int tile, const void *from, ptrdiff_t stride) {
    for (int i = 0; i < AMX_ROWS; i++) memcpy(tiles[tile][i], (const char *)from + i * stride, AMX_BYTES);
}

static inline void store_tile(int tile, void *to, ptrdiff_t stride) {
    for (int i = 0; i < AMX_ROWS; i++) memcpy((char *)to + i * stride, tiles[tile][i], AMX_BYTES);
}

static inline float of_bfloat16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* c += a b: each number of 32 bits of `a` and `b` holds two bfloat16 numbers of the inner dimension. */
static inline void multiply_bfloat16(int c, int a, int b) {
    float sums[AMX_ROWS][AMX_BYTES / 4];
    uint16_t x[AMX_ROWS][AMX_BYTES / 2], y[AMX_ROWS][AMX_BYTES / 2];
    memcpy(sums, tiles[c], sizeof sums);
    memcpy(x, tiles[a], sizeof x);
    memcpy(y, tiles[b], sizeof y);
    for (int i = 0; i < AMX_ROWS; i++)
        for (int j = 0; j < AMX_BYTES / 4; j++)
            for (int k = 0; k < AMX_BYTES / 2; k++)
                sums[i][j] += of_bfloat16(x[i][k]) * of_bfloat16(y[k / 2][2 * j + k % 2]);
    memcpy(tiles[c], sums, sizeof sums);
}

/* c += a b: each number of 32 bits holds four bytes of the inner dimension, those of `a` without a sign. */
static inline void multiply_bytes(int c, int a, int b) {
    int32_t sums[AMX_ROWS][AMX_BYTES / 4];
    memcpy(sums, tiles[c], sizeof sums);
    for (int i = 0; i < AMX_ROWS; i++)
        for (int j = 0; j < AMX_BYTES / 4; j++)
            for (int k = 0; k < AMX_BYTES; k++) sums[i][j] += tiles[a][i][k] * (int8_t)tiles[b][k / 4][4 * j + k % 4];
    memcpy(tiles[c], sums, sizeof sums);
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig(sizes) ((void)(sizes))
#define _tile_release() memset(tiles, 0xFF, sizeof tiles)
#define _tile_loadd(tile, from, stride) load_tile(tile, from, stride)
#define _tile_stored(tile, to, stride) store_tile(tile, to, stride)
#define _tile_zero(tile) memset(tiles[tile], 0, sizeof tiles[tile])
#define _tile_dpbf16ps(c, a, b) multiply_bfloat16(c, a, b)
#define _tile_dpbusd(c, a, b) multiply_bytes(c, a, b)
