/* Products of 8-bit integers for linear layers.

   Rows of activations are quantized when they are used: x = scale * code with codes from -127 to 127. Weights have a scale
   per output. Their codes are from -63 to 63 if we quantized them, and may be from -127 to 127 if another toolkit did.
   Sums of at most 133144 inputs are exact, in any order, since 127 * 127 * 133144 < 2^31. So all kernels give the same
   integers.

   Before this file is included, `map` must be a structure with the fields weight, bias, scales, sums, inputs, outputs and
   kernel, as in `relattn_mt.h`. Weights are in panels of PANEL outputs, (inputs / 8, 2, PANEL, 4): the codes of four inputs
   lie next to each other. There are three kernels:

   DOTS     instructions that add four products. On x86, they multiply unsigned by signed bytes. So 128 is added to the
            codes of activations, and `sums` has -128 times the sum of the weights of each output.
   PAIRS    for codes of weights from -63 to 63: `maddubs`, which adds two products in 16 bits. It also multiplies unsigned
            by signed bytes, and two products cannot saturate: 2 * 255 * 63 = 32130. The sum of some of its results may
            wrap around. Subtracting 128 times the sum of their weights leaves the sum of products of signed codes, if 16
            bits can hold it. They can hold four: 4 * 128 * 63 = 32256. They can hold eight, of codes a and weights w, if
            |a|^2 |w|^2 <= 32767^2 (Cauchy-Schwarz). EIGHTS takes fewer instructions for these, and is chosen per tile of
            rows and panel: each row has its largest |a|^2, and each panel its largest |w|^2 in `sums`. Of 16 inputs, 0,
            1, 4, 5, 8, 9, 12 and 13 are one sum. The numbers to subtract follow the codes of each eight inputs, (PANEL,
            2) in 16 bits: those of the first eight of 16 inputs, then those of all 16.
   GENERIC  products of 16 or 32 bits. With AVX2, `maddubs` of the magnitudes of activations and of weights with the signs
            of both, whose sums cannot saturate: 2 * 127 * 127 = 32258. */

#ifndef RELATTN_INT8_H
#define RELATTN_INT8_H

#include "../levels.h"
#include "products.h"

enum { EIGHTS = -1 };        /* PAIRS with sums of eight products */
enum { GROUP = 16 };         /* inputs are padded to a multiple of this */
enum { LARGEST_PAIRS = 63 }; /* largest code of a weight for PAIRS */

enum { INT8_KERNELS = 1 << GENERIC | HAS_PAIRS << PAIRS | 1 << DOTS }; /* where the processor has the instructions of DOTS */

typedef struct { /* input of a linear layer, also quantized if its weights are */
    const real *x;
    idx ldx;
    const uint8_t *codes;
    const real *scales; /* per row its scale, and the largest sum of squares of `int8.h` */
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
        if (w->kernel == PAIRS) scales[2 * r + 1] = max_square(row, w->inputs);
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

/* Add the products of 16 inputs, as PAIRS or EIGHTS. `first` points to the numbers to subtract for eight inputs. */
INLINE ivec add_pairs(const int kernel, ivec sum, const ivec *a, const ivec *w, const int8_t *first, words offsets) {
    const words x = add_two(a[0], w[0]) + add_two(a[1], w[1]), y = add_two(a[2], w[2]) + add_two(a[3], w[3]);
    if (kernel == EIGHTS) return sum + add_halves(x + (y - offsets));
    const words first_offsets = (words)IVEC(first);
    return sum + (add_halves(x - first_offsets) + add_halves(y - (offsets - first_offsets)));
}

/* Compute rows of a panel: c (num_rows, PANEL) = or += a (num_rows, inputs) W + b. Only the first `num_vecs` vectors of c
   are written. With few rows, two accumulators of DOTS hide the latency of additions. */
INLINE void panel_rows(const int kernel, const int num_rows, real *c, idx ldc, const linear_input *a, const map *w, idx row,
                       idx j, int num_vecs, int add) {
    const int num_sums = num_rows <= 2 && kernel == DOTS ? 2 : 1, is_paired = kernel == PAIRS || kernel == EIGHTS;
    const idx record = (is_paired ? 12 : 8) * PANEL, records = round_up(w->inputs, GROUP) / 8;
    const int8_t *weight = (const int8_t *)w->weight + j / PANEL * records * record;
    const uint8_t *codes = a->codes + row * a->codes_row;
    ivec sums[6][MICRO_VECS][2];
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            sums[r][v][0] = sums[r][v][1] = (ivec){0};
            if (kernel == DOTS && CODE_OFFSET) sums[r][v][0] = IVEC(w->sums + j + v * LANES);
        }
    for (idx k = 0; is_paired && k < records; k += 2, weight += 2 * record, codes += GROUP)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            const int8_t *own = weight + v * VECTOR_BYTES;
            ivec w16[4] = {IVEC(own), IVEC(own + 4 * PANEL), IVEC(own + record), IVEC(own + record + 4 * PANEL)};
            words offsets = (words)IVEC(own + record + 8 * PANEL);
            HOLD_IN_REGISTERS(w16[0]);
            HOLD_IN_REGISTERS(w16[1]);
            HOLD_IN_REGISTERS(w16[2]);
            HOLD_IN_REGISTERS(w16[3]);
            HOLD_IN_REGISTERS(offsets);
#pragma GCC unroll 6
            for (int r = 0; r < num_rows; r++) {
                ivec a16[4];
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) a16[i] = splat_codes(kernel, codes + r * a->codes_row + 4 * i);
                sums[r][v][0] = add_pairs(kernel, sums[r][v][0], a16, w16, own + 8 * PANEL, offsets);
            }
        }
    for (idx k = 0; !is_paired && k < records; k += num_sums)
#pragma GCC unroll 2
        for (int s = 0; s < num_sums; s++, weight += record, codes += 8)
#pragma GCC unroll 6
            for (int r = 0; r < num_rows; r++) {
                const uint8_t *own = codes + r * a->codes_row;
                const ivec a0 = splat_codes(kernel, own), a1 = splat_codes(kernel, own + 4);
#pragma GCC unroll 4
                for (int v = 0; v < MICRO_VECS; v++) {
                    const int8_t *first = weight + v * VECTOR_BYTES, *second = first + 4 * PANEL;
                    ivec *sum = &sums[r][v][s];
                    if (kernel == DOTS) *sum = add_dots(add_dots(*sum, a0, IVEC(first)), a1, IVEC(second));
                    else *sum = add_products(add_products(*sum, a0, IVEC(first)), a1, IVEC(second));
                }
            }
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < MICRO_VECS; v++) {
            if (v >= num_vecs) break;
            real *to = c + (row + r) * ldc + v * LANES;
            const ivec total = sums[r][v][0] + sums[r][v][1];
            const vec scale = a->scales[2 * (row + r)] * VEC(w->scales + j + v * LANES);
            vec y = __builtin_convertvector(total, vec) * scale + VEC(w->bias + j + v * LANES);
            if (add) y += VEC(to);
            VEC(to) = y;
        }
}

/* Return whether EIGHTS is exact for these rows and a panel. */
INLINE int fits_eights(const linear_input *a, const map *w, idx row, idx num_rows, idx j) {
    real largest = 0;
    for (idx r = 0; r < num_rows; r++) {
        const real square = a->scales[2 * (row + r) + 1];
        largest = square > largest ? square : largest;
    }
    return (int64_t)largest * w->sums[j / PANEL] <= 32767 * 32767;
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
        if (kernel == PAIRS && fits_eights(a, w, i, num_rows, j))
            tile_kernel(EIGHTS, num_rows, c, ldc, a, w, i, j, num_vecs, add);
        else tile_kernel(kernel, num_rows, c, ldc, a, w, i, j, num_vecs, add);
    }
}

static void int8_panel(real *c, idx ldc, const linear_input *a, const map *w, idx j, int num_vecs, idx m, int add) {
    if (w->kernel == DOTS) panel_kernel(DOTS, 6, c, ldc, a, w, j, num_vecs, m, add);
    else if (HAS_PAIRS && w->kernel == PAIRS) panel_kernel(PAIRS, 4, c, ldc, a, w, j, num_vecs, m, add);
    else panel_kernel(GENERIC, 4, c, ldc, a, w, j, num_vecs, m, add);
}

/* ---- packing ---- */

/* Return the size in bytes of codes in panels. */
static idx packed_size(idx kernel, idx outputs, idx inputs) {
    return round_up(outputs, PANEL) * round_up(inputs, GROUP) / 8 * (kernel == PAIRS ? 12 : 8);
}

/* Write codes (outputs, inputs) in panels, and the numbers of each output or panel. */
static void pack_codes(int8_t *panels, int32_t *sums, const int8_t *codes, idx outputs, idx inputs, idx kernel) {
    const idx record = (kernel == PAIRS ? 12 : 8) * PANEL, records = round_up(inputs, GROUP) / 8;
    memset(panels, 0, packed_size(kernel, outputs, inputs));
    memset(sums, 0, sizeof *sums * round_up(outputs, PANEL) / (kernel == PAIRS ? PANEL : 1));
    for (idx o = 0; o < outputs; o++, codes += inputs) {
        int8_t *to = panels + o / PANEL * records * record;
        int32_t *total = sums + (kernel == PAIRS ? o / PANEL : o);
        for (idx k = 0; k < inputs; k += GROUP, to += 2 * record) {
            int32_t offsets[2] = {0}, squares[2] = {0};
            for (idx i = 0; i < GROUP; i++) {
                const int8_t code = k + i < inputs ? codes[k + i] : 0;
                int8_t *half = to + i / 8 * record;
                half[i % 8 / 4 * (4 * PANEL) + o % PANEL * 4 + i % 4] = code;
                offsets[i % 4 / 2] += 128 * code, squares[i % 4 / 2] += code * code;
                if (kernel != PAIRS) *total -= 128 * code;
                else if (i % 8 == 7)
                    for (int p = 0; p < 2; p++)
                        ((int16_t *)(half + 8 * PANEL))[o % PANEL * 2 + p] = (int16_t)offsets[p];
            }
            for (int p = 0; p < 2 && kernel == PAIRS; p++) *total = squares[p] > *total ? squares[p] : *total;
        }
    }
}

#endif
