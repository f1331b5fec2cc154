/* A tiny model of random weights for the tests of the engine: an encoder layer and a decoder layer. */

#ifndef RELATTN_TEST_MODEL_H
#define RELATTN_TEST_MODEL_H

#include <math.h>

#include "../engine/relattn_mt.h"
#include "check.h"

typedef ptrdiff_t idx;

enum { DIM = 12, MODEL_HEADS = 2, HEAD_DIM = 16, HIDDEN = 20, VOCAB = 5, MOST_POSITIONS = 12, LEFT = 2, KEPT = 64 };

typedef struct {
    relattn_mt_engine engine;
    relattn_mt_layer encoder_layer, decoder_layer;
    relattn_mt_map output, keys_values;
    float embedding[VOCAB * DIM];
    void *kept[KEPT]; /* packed weights */
    int count;
    double (*number)(void); /* draws a weight */
} model;

static void *keep(model *m, void *memory) {
    CHECK(m->count < KEPT, "%d arrays", m->count);
    return m->kept[m->count++] = memory;
}

/* Return a packed map, or one whose weight is NULL if it is refused. */
static relattn_mt_map new_map(model *m, idx inputs, idx outputs, idx kernel, float end) {
    float *weight = exactly(sizeof(float) * inputs * outputs), *bias = exactly(sizeof(float) * outputs),
          *scales = exactly(sizeof(float) * outputs);
    int8_t *codes = exactly(inputs * outputs);
    for (idx i = 0; i < inputs * outputs; i++) weight[i] = (float)m->number(), codes[i] = (int8_t)(random_below(127) - 63);
    for (idx o = 0; o < outputs; o++) bias[o] = (float)m->number(), scales[o] = 0.02f;
    relattn_mt_packing p = {kernel ? (void *)codes : weight, bias, kernel ? scales : NULL, NULL, inputs, outputs, kernel, end, {0}};
    const idx bytes = m->engine.pack(&p);
    CHECK(bytes > 0, "size %td", bytes);
    p.buffer = keep(m, exactly_aligned(bytes));
    const idx result = m->engine.pack(&p);
    CHECK(result == bytes || result == RELATTN_MT_NOT_FINITE, "%td", result);
    free(weight), free(bias), free(scales), free(codes);
    return result < 0 ? (relattn_mt_map){0} : p.map;
}

static float *new_numbers(model *m, idx count, idx valid) {
    float *x = keep(m, exactly_aligned(sizeof(float) * count));
    for (idx i = 0; i < count; i++) x[i] = i < valid ? (float)m->number() : 0;
    return x;
}

static relattn_mt_norm new_norm(model *m) { return (relattn_mt_norm){new_numbers(m, 16, DIM), new_numbers(m, 16, DIM)}; }

static relattn_mt_layer new_layer(model *m, idx kernel, int is_decoder) {
    const idx joined = MODEL_HEADS * HEAD_DIM, labels = LEFT + 1 + (is_decoder ? 0 : LEFT);
    relattn_mt_layer l = {.self_norm = new_norm(m), .cross_norm = new_norm(m), .feed_norm = new_norm(m)};
    l.self_in = new_map(m, DIM, 3 * joined, kernel, 0);
    l.self_out = new_map(m, joined, DIM, kernel, 0);
    l.cross_query = new_map(m, DIM, joined, kernel, 0);
    l.cross_out = new_map(m, joined, DIM, kernel, 0);
    l.feed_in = new_map(m, DIM, HIDDEN, kernel, 0);
    l.feed_out = new_map(m, (HIDDEN + 15) / 16 * 16, DIM, kernel, 0);
    l.rel_key = new_map(m, HEAD_DIM, labels, 0, 0).weight; /* shared by heads */
    l.rel_value = new_numbers(m, labels * HEAD_DIM, labels * HEAD_DIM);
    return l;
}

/* Make a model for the engine of a level; 0 if a weight is not finite. */
static int new_model(model *m, idx kernel, double (*number)(void)) {
    m->count = 0, m->number = number;
    m->encoder_layer = new_layer(m, kernel, 0), m->decoder_layer = new_layer(m, kernel, 1);
    m->output = new_map(m, DIM, VOCAB, kernel, -INFINITY);
    m->keys_values = new_map(m, DIM, 2 * MODEL_HEADS * HEAD_DIM, kernel, 0);
    for (idx i = 0; i < VOCAB * DIM; i++) m->embedding[i] = (float)number();
    const relattn_mt_layer *l = &m->encoder_layer;
    int is_whole = m->output.weight && m->keys_values.weight;
    for (int i = 0; i < 2; i++, l = &m->decoder_layer)
        is_whole &= l->self_in.weight && l->self_out.weight && l->cross_query.weight && l->cross_out.weight &&
                    l->feed_in.weight && l->feed_out.weight && l->rel_key;
    return is_whole;
}

static void free_model(model *m) {
    while (m->count > 0) free(m->kept[--m->count]);
}

static relattn_mt_step new_step(const model *m, int is_decoder) {
    return (relattn_mt_step){
        .layers = is_decoder ? &m->decoder_layer : &m->encoder_layer, .final_norm = m->decoder_layer.feed_norm,
        .output = m->output, .embedding = m->embedding, .vocab = VOCAB, .dim = DIM, .heads = MODEL_HEADS,
        .head_dim = HEAD_DIM, .layer_count = 1, .left = LEFT, .right = is_decoder ? 0 : LEFT, .clips = 1, .pre_norm = 1,
        .embedding_scale = 1, .epsilon = 1e-5f};
}

static float *space_of(idx count) {
    CHECK(count >= 0, "%td", count);
    return exactly_aligned(sizeof(float) * (count ? count : 1));
}

/* Run the encoder and compute the keys and values of sources (sources, src_len). The caller frees both. */
static float *encode(model *m, const int64_t *tokens, const int64_t *lengths, idx sources, idx src_len, float **encoded) {
    relattn_mt_step a = new_step(m, 0);
    a.tokens = tokens, a.src_lengths = lengths, a.rows = sources, a.src_len = src_len;
    a.encoded = *encoded = exactly(sizeof(float) * sources * src_len * DIM);
    memset(a.encoded, 0, sizeof(float) * sources * src_len * DIM);
    a.space = space_of(m->engine.space(&a));
    m->engine.encode(&a);
    free(a.space);
    const idx row_len = (src_len + 15) / 16 * 16, size = sources * MODEL_HEADS * 2 * HEAD_DIM * row_len;
    relattn_mt_memory k = {m->keys_values, *encoded, exactly_aligned(sizeof(float) * size), NULL, sources * src_len, DIM,
                           src_len, row_len, 1, MODEL_HEADS, HEAD_DIM};
    memset(k.to, 0, sizeof(float) * size);
    k.space = space_of(m->engine.memory_space(&k));
    m->engine.memory(&k);
    free(k.space);
    m->decoder_layer.memory = k.to;
    return k.to;
}

#endif
