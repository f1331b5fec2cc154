/* Attention on any numbers, lengths, labels and windows: no access beyond an array, no undefined operation. */

#define _GNU_SOURCE
#include <stddef.h>
typedef ptrdiff_t idx;

#include "../attention/relattn.h"
#include "fuzz.h"
#include "values.h"

static void *next_array(idx count, idx size) {
    char *memory = exactly(count * size);
    for (idx i = 0; i < count * size; i++) memory[i] = (char)next_byte();
    return memory;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    fuzz_data = data, fuzz_left = length;
    const unsigned flags = next_byte() | next_byte() << 8;
    const int dtype = flags & 1 ? RELATTN_BFLOAT16 : RELATTN_FLOAT32;
    relattn_kernels kernels;
    char message[256];
    if (relattn_open(dtype, values[next_byte() % VALUES], &kernels, message)) return 0;
    const idx size = dtype ? 2 : 4, n = 1 + next_byte() % 70, m = 1 + next_byte() % 140, d = 1 + next_byte() % 20,
              dv = 1 + next_byte() % 20, labels = 1 + next_byte() % 70;
    int64_t key_length = (int8_t)next_byte(), query_length = (int8_t)next_byte(), offset = (int8_t)next_byte() * 100;
    enum { ARRAYS = 12 };
    const idx counts[ARRAYS] = {n * d, m * d, m * dv, n * dv, n * d, m * d, m * dv, labels * d, labels * dv, labels * d, n * m, n * dv};
    void *x[ARRAYS];
    for (int i = 0; i < ARRAYS; i++) x[i] = i > 3 && i < 7 ? exactly(counts[i] * size) : next_array(counts[i], size);
    uint8_t *mask = next_array(n * m, 1);
    int8_t *relations = next_array(n * m, 1);
    float *lse = exactly(4 * n), *row_stats = exactly(4 * 2 * ((n + 15) / 16 * 16));
    void *tables[3];
    for (int t = 0; t < 3; t++) tables[t] = exactly(labels * (t == 1 ? dv : d) * size);
    float *d_bias = calloc(n * ((m + 15) / 16 * 16), 4);
    double scale = next_float();
    relattn_attention a = {
        .query = {x[0], 0, 0, d}, .key = {x[1], 0, 0, d}, .value = {x[2], 0, 0, dv}, .grad = {x[3], 0, 0, dv},
        .output = {x[11], 0, 0, dv}, .d_query = {x[4], 0, 0, d}, .d_key = {x[5], 0, 0, d}, .d_value = {x[6], 0, 0, dv},
        .lse = {lse, 0, 0, 1}, .row_stats = row_stats, .batch = 1, .heads = 1, .key_heads = 1, .queries = n, .keys = m, .dim = d,
        .value_dim = dv, .rel_dim = d, .labels = labels, .type = dtype == RELATTN_BFLOAT16, .threads = 1, .splits = 1,
        .query_offset = (int8_t)next_byte(), .left = next_byte() % labels, .clips = flags >> 1 & 1,
        .is_causal = flags >> 2 & 1, .window_left = (idx)(next_byte() % 100) - 1, .window_right = (idx)(next_byte() % 100) - 1,
        .chunk = 1 + next_byte() % 9, .keep_threshold = flags >> 3 & 1 ? 1 << 23 : 1 << 24, .scale = scale,
        .keep_scale = 2, .seed = next_byte()};
    if (flags >> 4 & 1) a.rel_key = (relattn_array){x[7], 0, 0, d}, a.d_rel_key = (relattn_array){tables[0], 0, 0, d};
    if (flags >> 5 & 1) a.rel_value = (relattn_array){x[8], 0, 0, dv}, a.d_rel_value = (relattn_array){tables[1], 0, 0, dv};
    if (flags >> 6 & 1) a.pos_query = (relattn_array){x[9], 0, 0, d}, a.d_pos_query = (relattn_array){tables[2], 0, 0, d};
    if (flags >> 7 & 1) a.mask = (relattn_array){mask, 0, 0, m};
    if (flags >> 8 & 1) a.relations = (relattn_array){relations, 0, 0, m}, a.relations_size = 1, a.clips = 0;
    if (flags >> 9 & 1) a.bias = (relattn_array){x[10], 0, 0, m}, a.d_bias = (relattn_array){d_bias, 0, 0, (m + 15) / 16 * 16};
    if (flags >> 10 & 1) a.key_lengths = &key_length;
    if (flags >> 11 & 1) a.query_lengths = &query_length;
    if (flags >> 12 & 1) a.query_offsets = &offset;
    CHECK(kernels.forward(&a) == 0 && kernels.backward(&a) == 0, "memory");
    for (int i = 0; i < ARRAYS; i++) free(x[i]);
    for (int t = 0; t < 3; t++) free(tables[t]);
    free(mask), free(relations), free(lse), free(row_stats), free(d_bias);
    return 0;
}
