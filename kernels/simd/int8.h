/* Products of 8-bit integers for linear layers.

   Rows of activations are quantized when they are used: x = scale * code with codes from -127 to 127. Weights have a scale
   per output. Their codes are from -63 to 63 if we quantized them, and may be from -127 to 127 if another toolkit did.
   Sums of at most 133144 inputs are exact, in any order, since 127 * 127 * 133144 < 2^31. So all kernels give the same
   integers.

   Before this file is included, `map` must be a structure with the fields weight, bias, scales, sums, inputs, outputs and
   kernel, as in `relattn_mt.h`. Weights are in panels of PANEL outputs, (inputs / 8, 2, PANEL, 4): the codes of four inputs
   lie next to each other. There are three kernels, which read the same panels:

   DOTS     instructions that add four products. On x86, they multiply unsigned by signed bytes. So 128 is added to the
            codes of activations, and `sums` has -128 times the sum of the weights of each output.
   PAIRS    for codes of weights from -63 to 63: `maddubs`, which adds two products in 16 bits. It also multiplies unsigned
            by signed bytes, and two products cannot saturate: 2 * 255 * 63 = 32130.
   GENERIC  products of 16 or 32 bits. With AVX2, `maddubs` of the magnitudes of activations and of weights with the signs
            of both, whose sums cannot saturate: 2 * 127 * 127 = 32258.

   With AMX, matrix tiles replace all three, from FEWEST_ROWS rows on and if inputs are a multiple of TILE_INPUTS. */

#ifndef RELATTN_INT8_H
#define RELATTN_INT8_H

#include "../levels.h"
#include "products.h"

enum { GROUP = 16 };         /* inputs are padded to a multiple of this */
enum { LARGEST_PAIRS = 63 }; /* largest code of a weight for PAIRS */
enum { CODE_ROWS = 16 };     /* rows of a matrix tile. Buffers of codes have as many, also beyond the last row */
enum { FEWEST_ROWS = 3 };    /* from which on tiles are faster */

enum { INT8_KERNELS = 1 << GENERIC | HAS_PAIRS << PAIRS | 1 << DOTS }; /* where the processor has the instructions of DOTS */

typedef struct { /* input of a linear layer, also quantized if its weights are */
    const real *x;
    idx ldx;
    const uint8_t *codes;
    const real *scales; /* per row its scale, and in the same bits the integer that `row_number` returns */
    idx codes_row;
} linear_input;

/* ---- quantization ---- */

/* Quantize a row, and return its scale. The scale of a row with NaN is NaN. */
static real quantize_row(uint8_t *codes, const real *x, idx count, int offset) {
    ivec max_bits = {0}; /* of absolute values: as integers they have the same order, with NaN last */
    idx i = 0;
    for (; i + LANES <= count; i += LANES) {
        const ivec bits = (ivec)VEC(x + i) & 0x7fffffff, is_larger = bits > max_bits;
        max_bits = (bits & is_larger) | (max_bits & ~is_larger);
    }
    integer largest = 0;
    for (int l = 0; l < LANES; l++) largest = max_bits[l] > largest ? max_bits[l] : largest;
    for (; i < count; i++) {
        integer bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    real max_value;
    memcpy(&max_value, &largest, sizeof max_value);
    const real inverse = max_value > 1e-36f && max_value < INFINITY ? 127 / max_value : 0; /* finite */
    for (i = 0; i + GROUP <= count; i += GROUP) convert_codes(codes + i, x + i, inverse, offset);
    if (i < count) {
        real rest[GROUP] = {0};
        memcpy(rest, x + i, sizeof(real) * (count - i));
        convert_codes(codes + i, rest, inverse, offset);
    }
    return max_value / 127;
}

/* Return m rows as the input of a linear layer. If its weights are quantized, the rows are quantized into `codes`. */
static linear_input operand_of(const real *x, idx ldx, const map *w, idx m, void *codes, real *scales) {
    const linear_input a = {x, ldx, (uint8_t *)codes, scales, round_up(w->inputs, GROUP)};
    for (idx r = 0; r < m && w->kernel != FLOAT; r++) {
        uint8_t *row = (uint8_t *)codes + r * a.codes_row;
        scales[2 * r] = quantize_row(row, x + r * ldx, w->inputs, CODE_OFFSET);
        const integer number = w->kernel == PAIRS ? row_number(row, w->inputs) : 0;
        memcpy(scales + 2 * r + 1, &number, sizeof number);
    }
    return a;
}

INLINE linear_input operand_rows(const linear_input *a, idx first) {
    return (linear_input){a->x + first * a->ldx, a->ldx, a->codes + first * a->codes_row, a->scales + 2 * first,
                          a->codes_row};
}

/* ---- products ---- */

/* Return a vector with the same four codes in all lanes, without their offset for a kernel that needs signed ones. */
INLINE ivec splat_codes(const int kernel, const uint8_t *codes) {
    integer four;
    memcpy(&four, codes, sizeof four);
    if (kernel == GENERIC) four ^= (integer)(0x01010101u * CODE_OFFSET);
    return four - (ivec){0};
}

#define IVEC(pointer) (*(const ivec *)(pointer))

/* Add four products per lane, of activations and weights. */
INLINE ivec add_four(const int kernel, ivec sum, ivec a, ivec w) {
    if (kernel == DOTS) return add_dots(sum, a, w);
    return kernel == PAIRS ? add_pairs(sum, a, w) : add_products(sum, a, w);
}

/* Write outputs whose products have the sums `total`. */
INLINE void store_sums(real *to, ivec total, vec scale, vec bias, int add) {
    vec y = __builtin_convertvector(total, vec) * scale + bias;
    if (add) y += VEC(to);
    VEC(to) = y;
}

/* Compute rows of a panel: c (num_rows, PANEL) = or += a (num_rows, inputs) W + b. Only the first `num_vecs` vectors of c
   are written. With few rows, ROW_SUMS accumulators hide the latency of additions. */
INLINE void panel_rows(const int kernel, const int num_rows, real *c, idx ldc, const linear_input *a, const map *w, idx row,
                       idx j, int num_vecs, int add) {
    const int num_sums = num_rows <= 2 ? ROW_SUMS : 1;
    const idx record = 8 * PANEL, records = round_up(w->inputs, GROUP) / 8;
    const int8_t *weight = (const int8_t *)w->weight + j / PANEL * records * record;
    const uint8_t *codes = a->codes + row * a->codes_row;
    ivec sums[6][MICRO_VECS][2];
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; r++) {
        integer number;
        memcpy(&number, a->scales + 2 * (row + r) + 1, sizeof number);
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            sums[r][v][0] = sums[r][v][1] = (ivec){0};
            if (kernel != GENERIC && CODE_OFFSET) sums[r][v][0] = IVEC(w->sums + j + v * LANES);
            if (kernel == PAIRS && !CODE_OFFSET) sums[r][v][0] -= number;
        }
    }
    for (idx k = 0; k < records; k += num_sums)
#pragma GCC unroll 2
        for (int s = 0; s < num_sums; s++, weight += record, codes += 8)
#pragma GCC unroll 6
            for (int r = 0; r < num_rows; r++) {
                const uint8_t *own = codes + r * a->codes_row;
                const ivec a0 = splat_codes(kernel, own), a1 = splat_codes(kernel, own + 4);
#pragma GCC unroll 4
                for (int v = 0; v < MICRO_VECS; v++) {
                    const int8_t *first = weight + v * VECTOR_BYTES, *second = first + 4 * PANEL;
                    sums[r][v][s] = add_four(kernel, sums[r][v][s], a0, IVEC(first));
                    sums[r][v][s] = add_four(kernel, sums[r][v][s], a1, IVEC(second));
                }
            }
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            if (v >= num_vecs) break;
            const ivec total = sums[r][v][0] + sums[r][v][1];
            const vec scale = a->scales[2 * (row + r)] * VEC(w->scales + j + v * LANES);
            store_sums(c + (row + r) * ldc + v * LANES, total, scale, VEC(w->bias + j + v * LANES), add);
        }
}

INLINE void tile_kernel(const int kernel, idx num_rows, real *c, idx ldc, const linear_input *a, const map *w, idx row,
                        idx j, int num_vecs, int add) {
    switch (num_rows) {
        case 1: panel_rows(kernel, 1, c, ldc, a, w, row, j, num_vecs, add); break;
        case 2: panel_rows(kernel, 2, c, ldc, a, w, row, j, num_vecs, add); break;
        case 3: panel_rows(kernel, 3, c, ldc, a, w, row, j, num_vecs, add); break;
        case 4: panel_rows(kernel, 4, c, ldc, a, w, row, j, num_vecs, add); break;
        case 5: panel_rows(kernel, 5, c, ldc, a, w, row, j, num_vecs, add); break;
        default: panel_rows(kernel, 6, c, ldc, a, w, row, j, num_vecs, add);
    }
}

/* Compute m rows of the panel whose first output is j. */
INLINE void panel_kernel(const int kernel, const int max_rows, real *c, idx ldc, const linear_input *a, const map *w, idx j,
                         int num_vecs, idx m, int add) {
    for (idx i = 0; i < m; i += max_rows) {
        const idx num_rows = m - i < max_rows ? m - i : max_rows;
        tile_kernel(kernel, num_rows, c, ldc, a, w, i, j, num_vecs, add);
    }
}

/* The same in matrix tiles. The codes of rows beyond m may be any. */
static void tile_panel(real *c, idx ldc, const linear_input *a, const map *w, idx j, int num_vecs, idx m, int add) {
    const int8_t *weight = (const int8_t *)w->weight + j * w->inputs;
    int32_t sums[CODE_ROWS * PANEL] __attribute__((aligned(64)));
    for (idx i = 0; i < m; i += CODE_ROWS, c += CODE_ROWS * ldc) {
        const idx num_rows = m - i < CODE_ROWS ? m - i : CODE_ROWS;
        const real *row_scales = a->scales + 2 * i;
        multiply_codes(sums, w->sums + j, a->codes + i * a->codes_row, a->codes_row, weight, w->inputs);
        for (int v = 0; v < num_vecs; v++) {
            const vec scales = VEC(w->scales + j + v * LANES), bias = VEC(w->bias + j + v * LANES);
            for (idx r = 0; r < num_rows; r++) {
                const ivec total = IVEC(sums + r * PANEL + v * LANES);
                store_sums(c + r * ldc + v * LANES, total, row_scales[2 * r] * scales, bias, add);
            }
        }
    }
}

static void int8_panel(real *c, idx ldc, const linear_input *a, const map *w, idx j, int num_vecs, idx m, int add) {
    if (HAS_CODE_TILES && m >= FEWEST_ROWS && w->inputs % TILE_INPUTS == 0)
        tile_panel(c, ldc, a, w, j, num_vecs, m, add);
    else if (w->kernel == DOTS) panel_kernel(DOTS, 6, c, ldc, a, w, j, num_vecs, m, add);
    else if (HAS_PAIRS && w->kernel == PAIRS) panel_kernel(PAIRS, PAIRS_TILE, c, ldc, a, w, j, num_vecs, m, add);
    else panel_kernel(GENERIC, 4, c, ldc, a, w, j, num_vecs, m, add);
}

/* ---- packing ---- */

/* Return the size in bytes of codes in panels. */
static idx packed_size(idx outputs, idx inputs) { return round_up(outputs, PANEL) * round_up(inputs, GROUP); }

/* Write codes (outputs, inputs) in panels, and the numbers of each output. */
static void pack_codes(int8_t *panels, int32_t *sums, const int8_t *codes, idx outputs, idx inputs) {
    const idx record = 8 * PANEL, records = round_up(inputs, GROUP) / 8;
    memset(panels, 0, packed_size(outputs, inputs));
    memset(sums, 0, sizeof *sums * round_up(outputs, PANEL));
    for (idx o = 0; o < outputs; o++, codes += inputs) {
        int8_t *to = panels + o / PANEL * records * record + o % PANEL * 4;
        int32_t total = 0;
        for (idx k = 0; k < inputs; k++) total += codes[k];
        sums[o] = -128 * total;
        for (idx k = 0; k + 4 <= inputs; k += 4) memcpy(to + k * PANEL, codes + k, 4);
        for (idx k = inputs / 4 * 4; k < inputs; k++) to[inputs / 4 * 4 * PANEL + k % 4] = codes[k];
    }
}

#endif
