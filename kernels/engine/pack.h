/* Weights in panels. */

#ifndef RELATTN_PACK_H
#define RELATTN_PACK_H

#include "workspace.h"

/* Return the number of rows of four bytes that the panels of a map have: an input in float32, or four in 8 bits. */
INLINE idx panel_rows_of(const map *w) {
    return w->kernel == FLOAT ? w->inputs : round_up(w->inputs, GROUP) / 4;
}

/* Copy some outputs of a map to `buffer`, and return the map of them. */
static map select_outputs(const map *w, const int64_t *outputs, idx count, char **buffer) {
    const idx depth = panel_rows_of(w), padded = round_up(count, PANEL), bytes = round_up(4 * padded, 64);
    int32_t *panels = (int32_t *)*buffer, *sums = (int32_t *)(*buffer + 4 * depth * padded);
    real *bias = (real *)((char *)sums + bytes), *scales = (real *)((char *)bias + bytes);
    memset(panels, 0, 4 * depth * padded + 3 * bytes);
    for (idx o = 0; o < padded; o++) bias[o] = -INFINITY;
    for (idx o = 0; o < count; o++) {
        const int32_t *from = (const int32_t *)w->weight + outputs[o] / PANEL * PANEL * depth + outputs[o] % PANEL;
        int32_t *to = panels + o / PANEL * PANEL * depth + o % PANEL;
        for (idx k = 0; k < depth; k++) to[k * PANEL] = from[k * PANEL];
        bias[o] = w->bias[outputs[o]], scales[o] = w->scales[outputs[o]], sums[o] = w->sums[outputs[o]];
    }
    *buffer += 4 * depth * padded + 3 * bytes;
    return (map){panels, bias, scales, sums, w->inputs, round_up(count, PADDING), w->kernel};
}

/* Return whether numbers are finite, or absent. */
static int are_finite(const float *x, idx count) {
    for (idx i = 0; x && i < count; i++)
        if (!(x[i] - x[i] == 0)) return 0;
    return 1;
}

static idx relattn_pack(relattn_mt_packing *p) {
    idx kernel = p->kernel;
    const int8_t *codes = p->weight;
    const float *weight = p->weight;
    for (idx i = 0; kernel == PAIRS && i < p->outputs * p->inputs; i++)
        if (codes[i] > LARGEST_PAIRS || codes[i] < -LARGEST_PAIRS) kernel = GENERIC;
    const idx padded = round_up(p->outputs, PANEL), bytes = sizeof(float) * padded,
              size = kernel == FLOAT ? bytes * p->inputs : packed_size(p->outputs, p->inputs),
              total = round_up(size, 64) + 3 * round_up(bytes, 64);
    if (!p->buffer) return total;
    char *buffer = p->buffer;
    float *bias = (float *)(buffer + round_up(size, 64)), *scales = bias + round_up(bytes, 64) / sizeof(float);
    int32_t *sums = (int32_t *)scales + round_up(bytes, 64) / sizeof(float);
    if (!are_finite(p->bias, p->outputs) || !are_finite(p->scales, p->outputs) ||
        (kernel == FLOAT && !are_finite(weight, p->outputs * p->inputs)))
        return RELATTN_MT_NOT_FINITE;
    memset(buffer, 0, total); /* also the gaps between arrays, so that equal weights are equal bytes */
    for (idx o = 0; o < padded; o++) {
        bias[o] = o >= p->outputs ? p->end_bias : p->bias ? p->bias[o] : 0;
        scales[o] = o < p->outputs && p->scales ? p->scales[o] : 0;
        for (idx k = 0; kernel == FLOAT && k < p->inputs; k++)
            ((float *)buffer)[(o / PANEL * p->inputs + k) * PANEL + o % PANEL] =
                o < p->outputs ? weight[o * p->inputs + k] : 0;
    }
    if (kernel != FLOAT) pack_codes((int8_t *)buffer, sums, codes, p->outputs, p->inputs);
    for (idx i = 0; kernel == PAIRS && i < size; i++) buffer[i] += WEIGHT_OFFSET;
    p->map = (map){buffer, bias, scales, sums, p->inputs, round_up(p->outputs, PADDING), kernel};
    return total;
}

#endif
