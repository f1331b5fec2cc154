/* Attention, forward and backward, against plain loops over pairs, at all levels and in all dtypes of this processor. */

#define _GNU_SOURCE
#include <math.h>

#include "../attention/relattn.h"
#include "check.h"
#include "values.h"

typedef ptrdiff_t idx;

enum { BATCH = 3, HEADS = 2 };
typedef struct { /* sizes and options of a call */
    idx key_heads, queries, keys, dim, value_dim, rel_dim, left, right;
    int has_rel_key, has_rel_value, has_pos_query, has_rel_query, has_mask, has_bias, has_relations, has_lengths, is_packed, is_per_head, is_causal, clips;
    idx window_left, window_right, chunk, offset, threads;
} options;

static int dtype, is_double; /* of the kernels */

static double rounded(double x) { /* to the dtype of the arrays */
    if (is_double) return x;
    float y = (float)x;
    if (dtype != RELATTN_BFLOAT16) return y;
    uint32_t bits;
    memcpy(&bits, &y, 4);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&y, &bits, 4);
    return y;
}

/* Numbers in double, and the same in memory of exactly their size in the dtype of arrays. */
typedef struct {
    idx count;
    double *values;
    void *memory;
} numbers;

static idx size_of_type(void) { return is_double ? 8 : dtype == RELATTN_BFLOAT16 ? 2 : 4; }

static double read_at(const void *memory, idx i, idx size) {
    if (size == 8) return ((const double *)memory)[i];
    if (size == 4) return ((const float *)memory)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void write_at(void *memory, idx i, double x) {
    const float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    if (size_of_type() == 8) ((double *)memory)[i] = x;
    else if (size_of_type() == 4) ((float *)memory)[i] = narrow;
    else ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
}

static numbers make(idx count, int is_random) {
    numbers x = {count, calloc(count, sizeof(double)), exactly(count * size_of_type())};
    for (idx i = 0; i < count && is_random; i++) write_at(x.memory, i, x.values[i] = rounded(2 * random_real()));
    return x;
}

static void release(numbers *x) { free(x->values), free(x->memory); }

static void compare(const char *name, const options *o, const void *memory, idx size, const double *expected, idx count) {
    double error = 0, norm = 0;
    for (idx i = 0; i < count; i++) {
        const double off = read_at(memory, i, size) - expected[i];
        error += off * off, norm += expected[i] * expected[i];
        CHECK(isfinite(off), "%s[%td] is %g, expected %g", name, i, read_at(memory, i, size), expected[i]);
    }
    const double limit = is_double ? 1e-13 : dtype == RELATTN_BFLOAT16 ? 2e-2 : 2e-5;
    CHECK(sqrt(error) <= limit * (sqrt(norm) + 1), "%s: error %g of %g, with %td queries, %td keys, dims %td, %td, labels %td + %td",
          name, sqrt(error), sqrt(norm), o->queries, o->keys, o->dim, o->value_dim, o->left, o->right);
}

static idx padded(idx dim) { return (dim + 15) / 16 * 16; }

static relattn_array strided(const numbers *x, idx heads, idx rows, idx dim) {
    return (relattn_array){x->memory, heads * rows * dim, rows * dim, dim};
}

/* Cumulative lengths of packed sequences, or of sequences of the same length. */
static int64_t ends[BATCH + 1];

/* Return the row of a position in an array of some heads. */
static idx row_of(const options *o, idx b, idx heads, idx h, idx rows, idx i) {
    return o->is_packed ? h * ends[BATCH] + ends[b] + i : (b * heads + h) * rows + i;
}

static void test(const relattn_kernels *kernels, const options *o) {
    const idx n = o->queries, m = o->keys, d = o->dim, dv = o->value_dim, dr = o->has_rel_query ? o->rel_dim : d,
              labels = o->left + 1 + o->right, group = HEADS / o->key_heads, real_size = is_double ? 8 : 4;
    for (idx b = 0; b < BATCH; b++) ends[b + 1] = ends[b] + (!o->is_packed || b == 1 ? n : random_below(n + 1));
    const idx rows_of_queries = ends[BATCH], rows_of_keys = o->is_packed ? rows_of_queries : BATCH * m;
    const idx tables = o->is_per_head ? HEADS : 1;
    const double scale = rounded(0.3);
    numbers query = make(HEADS * rows_of_queries * d, 1), key = make(o->key_heads * rows_of_keys * d, 1),
            value = make(o->key_heads * rows_of_keys * dv, 1), grad = make(HEADS * rows_of_queries * dv, 1),
            rel_query = make(HEADS * rows_of_queries * dr, 1), rel_key = make(tables * labels * dr, 1), rel_value = make(tables * labels * dv, 1),
            pos_query = make(tables * labels * d, 1), bias = make(HEADS * n * m, 1), output = make(HEADS * rows_of_queries * dv, 0);
    numbers d_query = make(query.count, 0), d_key = make(key.count, 0), d_value = make(value.count, 0),
            d_rel_query = make(rel_query.count, 0), d_rel_key = make(rel_key.count, 0),
            d_rel_value = make(rel_value.count, 0), d_pos_query = make(pos_query.count, 0);
    uint8_t *mask = exactly(BATCH * n * m);
    int16_t *relations = exactly(2 * n * m);
    int64_t lengths[BATCH] = {m, random_below(m + 1)}, query_lengths[BATCH] = {random_below(n + 1), n, n};
    for (idx i = 0; i < BATCH * n * m; i++) mask[i] = (uint8_t)(random_below(4) > 0);
    for (idx i = 0; i < n * m; i++) relations[i] = (int16_t)(random_below(labels + 2) - 1); /* also out of range */
    const idx stats = o->is_packed ? rows_of_queries / 16 * 16 + 16 * BATCH : BATCH * padded(n);
    void *lse = exactly(real_size * HEADS * rows_of_queries), *row_stats = exactly(real_size * 2 * HEADS * stats);
    void *d_bias = calloc(HEADS * n * padded(m), real_size);
    double *d_biases = calloc(HEADS * n * m, sizeof(double)), *lses = calloc(HEADS * rows_of_queries, sizeof(double));

    const idx q_rows = o->is_packed ? rows_of_queries : n, k_rows = o->is_packed ? rows_of_keys : m; /* of a head */
    relattn_attention a = {
        .query = strided(&query, HEADS, q_rows, d), .key = strided(&key, o->key_heads, k_rows, d),
        .value = strided(&value, o->key_heads, k_rows, dv), .output = strided(&output, HEADS, q_rows, dv),
        .grad = strided(&grad, HEADS, q_rows, dv), .d_query = strided(&d_query, HEADS, q_rows, d),
        .d_key = strided(&d_key, o->key_heads, k_rows, d), .d_value = strided(&d_value, o->key_heads, k_rows, dv),
        .lse = {lse, HEADS * q_rows, q_rows, 1}, .row_stats = row_stats,
        .batch = BATCH, .heads = HEADS, .key_heads = o->key_heads, .queries = n, .keys = m, .dim = d, .value_dim = dv,
        .rel_dim = dr, .labels = labels, .type = dtype == RELATTN_BFLOAT16, .threads = o->threads, .splits = o->has_bias ? 1 : o->threads,
        .query_offset = o->offset, .left = o->left, .clips = o->clips && !o->has_relations, .is_causal = o->is_causal,
        .window_left = o->window_left, .window_right = o->window_right, .chunk = o->chunk, .keep_threshold = 1 << 24,
        .scale = scale, .keep_scale = 1,
    };
    if (o->has_rel_query) a.rel_query = strided(&rel_query, HEADS, q_rows, dr), a.d_rel_query = strided(&d_rel_query, HEADS, q_rows, dr);
    if (o->is_packed) a.cu_seqlens = ends;
    const idx of_head = o->is_per_head ? labels : 0; /* rows */
    if (o->has_rel_key) a.rel_key = (relattn_array){rel_key.memory, 0, of_head * dr, dr}, a.d_rel_key = a.rel_key, a.d_rel_key.data = d_rel_key.memory;
    if (o->has_rel_value) a.rel_value = (relattn_array){rel_value.memory, 0, of_head * dv, dv}, a.d_rel_value = a.rel_value, a.d_rel_value.data = d_rel_value.memory;
    if (o->has_pos_query) a.pos_query = (relattn_array){pos_query.memory, 0, of_head * d, d}, a.d_pos_query = a.pos_query, a.d_pos_query.data = d_pos_query.memory;
    if (o->has_mask) a.mask = (relattn_array){mask, n * m, 0, m};
    if (o->has_relations) a.relations = (relattn_array){relations, 0, 0, m}, a.relations_size = 2;
    if (o->has_bias) a.bias = (relattn_array){bias.memory, 0, n * m, m}, a.d_bias = (relattn_array){d_bias, 0, n * padded(m), padded(m)};
    if (o->has_lengths) a.key_lengths = lengths, a.query_lengths = query_lengths;

    double *p = calloc(m, sizeof *p), *ds = calloc(m, sizeof *ds);
    idx *label = calloc(m, sizeof *label);
    for (idx b = 0; b < BATCH; b++)
        for (idx h = 0; h < HEADS; h++)
            for (idx i = 0; i < ends[b + 1] - ends[b]; i++) {
                const idx row = row_of(o, b, HEADS, h, n, i), position = o->offset + i;
                const idx first_key = row_of(o, b, o->key_heads, h / group, m, 0), keys = o->is_packed ? ends[b + 1] - ends[b] : m;
                const idx start = position - ((position % o->chunk) + o->chunk) % o->chunk;
                const double *q = query.values + row * d, *r = o->has_rel_query ? rel_query.values + row * dr : q;
                double top = -INFINITY, sum = 0, delta = 0;
                for (idx j = 0; j < keys; j++) {
                    int allowed = !o->has_lengths || (j < lengths[b] && i < query_lengths[b]);
                    allowed &= !o->is_causal || j <= position;
                    allowed &= o->window_left < 0 || j >= start - o->window_left;
                    allowed &= o->window_right < 0 || j <= start + o->window_right;
                    allowed &= !o->has_mask || mask[(b * n + i) * m + j];
                    label[j] = o->has_relations ? relations[i * m + j] : o->left + j - position;
                    if (!o->has_relations && o->clips) label[j] = label[j] < 0 ? 0 : label[j] >= labels ? labels - 1 : label[j];
                    if (label[j] >= labels) label[j] = -1;
                    double e = 0;
                    for (idx k = 0; k < d; k++) e += q[k] * key.values[(first_key + j) * d + k];
                    for (idx k = 0; k < dr && o->has_rel_key && label[j] >= 0; k++) e += r[k] * rel_key.values[(h * o->is_per_head * labels + label[j]) * dr + k];
                    for (idx k = 0; k < d && o->has_pos_query && label[j] >= 0; k++)
                        e += key.values[(first_key + j) * d + k] * pos_query.values[(h * o->is_per_head * labels + label[j]) * d + k];
                    e = e * scale + (o->has_bias ? bias.values[(h * n + i) * m + j] : 0);
                    p[j] = allowed ? e : -INFINITY;
                    if (p[j] > top) top = p[j];
                }
                for (idx j = 0; j < keys; j++) sum += p[j] = top == -INFINITY ? 0 : exp(p[j] - top);
                lses[row] = top == -INFINITY ? -INFINITY : top + log(sum);
                for (idx j = 0; j < keys && sum > 0; j++) p[j] /= sum;
                for (idx j = 0; j < keys; j++) {
                    double dp = 0;
                    for (idx k = 0; k < dv; k++) {
                        const double v = value.values[(first_key + j) * dv + k] +
                                         (o->has_rel_value && label[j] >= 0 ? rel_value.values[(h * o->is_per_head * labels + label[j]) * dv + k] : 0);
                        output.values[row * dv + k] += p[j] * v, dp += grad.values[row * dv + k] * v;
                    }
                    ds[j] = dp;
                }
                /* The backward pass reads the output, which is rounded: in bfloat16, a query with one key has a small gradient. */
                for (idx k = 0; k < dv; k++) delta += grad.values[row * dv + k] * rounded(output.values[row * dv + k]);
                for (idx j = 0; j < keys; j++) {
                    ds[j] = p[j] * (ds[j] - delta);
                    d_biases[(h * n + i) * m + j] += ds[j];
                    for (idx k = 0; k < d; k++) {
                        const idx at = (first_key + j) * d + k;
                        const double table = o->has_pos_query && label[j] >= 0 ? pos_query.values[(h * o->is_per_head * labels + label[j]) * d + k] : 0;
                        d_query.values[row * d + k] += scale * ds[j] * key.values[at];
                        d_key.values[at] += scale * ds[j] * (q[k] + table);
                        if (o->has_pos_query && label[j] >= 0) d_pos_query.values[(h * o->is_per_head * labels + label[j]) * d + k] += scale * ds[j] * key.values[at];
                    }
                    for (idx k = 0; k < dv; k++) {
                        const double weight = p[j] * grad.values[row * dv + k];
                        d_value.values[(first_key + j) * dv + k] += weight;
                        if (o->has_rel_value && label[j] >= 0) d_rel_value.values[(h * o->is_per_head * labels + label[j]) * dv + k] += weight;
                    }
                    for (idx k = 0; k < dr && o->has_rel_key && label[j] >= 0; k++) {
                        double *to = o->has_rel_query ? d_rel_query.values + row * dr : d_query.values + row * d;
                        to[k] += scale * ds[j] * rel_key.values[(h * o->is_per_head * labels + label[j]) * dr + k];
                        d_rel_key.values[(h * o->is_per_head * labels + label[j]) * dr + k] += scale * ds[j] * r[k];
                    }
                }
            }

    CHECK(kernels->forward(&a) == 0, "forward");
    const idx size = size_of_type();
    compare("output", o, output.memory, size, output.values, output.count);
    for (idx i = 0; i < HEADS * rows_of_queries; i++) {
        const double found = read_at(lse, i, real_size);
        CHECK(found == lses[i] || fabs(found - lses[i]) < (dtype == RELATTN_BFLOAT16 ? 0.05 : 1e-4), "lse %g, expected %g", found, lses[i]);
    }
    CHECK(kernels->backward(&a) == 0, "backward");
    compare("d_query", o, d_query.memory, size, d_query.values, d_query.count);
    compare("d_key", o, d_key.memory, size, d_key.values, d_key.count);
    compare("d_value", o, d_value.memory, size, d_value.values, d_value.count);
    if (o->has_rel_query) compare("d_rel_query", o, d_rel_query.memory, size, d_rel_query.values, d_rel_query.count);
    if (o->has_rel_key) compare("d_rel_key", o, d_rel_key.memory, size, d_rel_key.values, d_rel_key.count);
    if (o->has_rel_value) compare("d_rel_value", o, d_rel_value.memory, size, d_rel_value.values, d_rel_value.count);
    if (o->has_pos_query) compare("d_pos_query", o, d_pos_query.memory, size, d_pos_query.values, d_pos_query.count);
    for (idx i = 0; i < HEADS * n && o->has_bias; i++)
        for (idx j = 0; j < m; j++) {
            const double off = read_at(d_bias, i * padded(m) + j, real_size) - d_biases[i * m + j];
            CHECK(fabs(off) < (dtype == RELATTN_BFLOAT16 ? 0.1 : 1e-4), "d_bias is off by %g", off);
        }

    numbers *all[] = {&query, &key, &value, &grad, &rel_query, &rel_key, &rel_value, &pos_query, &bias, &output, &d_query,
                      &d_key, &d_value, &d_rel_query, &d_rel_key, &d_rel_value, &d_pos_query};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
    free(mask), free(relations), free(lse), free(row_stats), free(d_bias), free(d_biases), free(lses), free(p), free(ds), free(label);
}

static int coin(void) { return (int)random_below(2); }

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 60;
    int count = 0;
    for (dtype = RELATTN_FLOAT32; dtype <= RELATTN_BFLOAT16; dtype++)
        for (int v = 0; v < VALUES; v++) {
            relattn_kernels kernels;
            char message[256];
            if (!*values[v] || relattn_open(dtype, values[v], &kernels, message) != 0) continue;
            if (v > 0 && strcmp(kernels.level, values[v])) continue; /* the value of another level, or with DOTS */
            is_double = dtype == RELATTN_FLOAT64;
            random_state = 1;
            for (int round = 0; round < rounds; round++, count++) {
                const idx most = round % 5 == 4 ? 140 : 40;
                options o = {.key_heads = 1 + coin(), .queries = 1 + random_below(most), .keys = 1 + random_below(most),
                             .dim = 1 + random_below(40), .value_dim = 1 + random_below(40), .rel_dim = 1 + random_below(20),
                             .left = random_below(40), .right = random_below(40), .has_rel_key = coin(),
                             .has_rel_value = coin(), .has_pos_query = coin() && coin(), .has_rel_query = coin(),
                             .has_mask = coin() && coin(), .has_bias = coin() && coin(), .has_relations = coin() && coin(),
                             .has_lengths = coin(), .is_per_head = coin(), .is_causal = coin(), .clips = coin(), .window_left = -1,
                             .window_right = -1, .chunk = 1, .offset = random_below(60) - 20, .threads = 1 + coin()};
                if (round % 7 == 0) o.dim = o.rel_dim = 16 * (1 + coin()), o.value_dim = 32; /* rows in place */
                if (!o.has_rel_key) o.has_rel_query = 0;
                if (round % 3 == 1) o.is_packed = 1, o.keys = o.queries, o.has_mask = o.has_bias = o.has_relations = o.has_lengths = 0;
                if (coin()) o.window_left = random_below(30), o.window_right = random_below(30), o.chunk = 1 + random_below(6);
                if (!o.has_rel_key && !o.has_rel_value && !o.has_pos_query) o.left = o.right = o.has_relations = 0;
                test(&kernels, &o);
            }
            printf("attention at %s, dtype %d: ok\n", kernels.level, dtype);
        }
    CHECK(count > 0, "no level runs");
    relattn_kernels kernels;
    char message[256];
    CHECK(relattn_open(0, "no level", &kernels, message) == RELATTN_WRONG_LEVEL, "%s", message);
    CHECK(relattn_open(7, NULL, &kernels, message) == RELATTN_NO_KERNELS, "%s", message);
    CHECK(relattn_open(RELATTN_FLOAT32, NULL, &kernels, message) == 0, "%s", message);
    const relattn_attention large = {.batch = 1, .heads = 1, .key_heads = 1, .queries = 8, .dim = 16, .value_dim = 16, .labels = 1,
                                     .keys = (idx)1 << TOO_MANY_BITS, .window_left = -1, .window_right = -1, .chunk = 1,
                                     .threads = 2, .splits = 1, .scale = 1, .keep_scale = 1, .keep_threshold = 1 << 24};
    CHECK(kernels.forward(&large) == RELATTN_NO_MEMORY, "of the forward pass");
    CHECK(kernels.backward(&large) == RELATTN_NO_MEMORY, "of the backward pass");
    return 0;
}
