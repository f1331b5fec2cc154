/* The functions of the engine in WebAssembly: a model in linear memory, and the translation of a batch.

   `relattn_mt/web/engine.mjs` calls them, and `relattn_mt/web/model_file.py` writes models: the structures of `relattn_mt.h` with
   pointers of 32 bits, which are offsets in the file until `open_model`. */

#include <stdlib.h>
#include <string.h>

#include "relattn_mt.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

extern const void *const relattn_wasm;

typedef struct {
    char magic[8];
    int32_t interface, panel, capacity, pointer_count, pointers;
    relattn_mt_step encoder;
    relattn_mt_memory memory;
    relattn_mt_search search;
} model;

void *EXPORT(allocate)(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64); }
void EXPORT(release)(void *memory) { free(memory); }
int EXPORT(capacity)(const model *m) { return m->capacity; }
int EXPORT(eos)(const model *m) { return (int)m->search.eos; }
int EXPORT(beam)(const model *m) { return (int)m->search.beam; }
float EXPORT(penalty)(const model *m, int length) { return m->search.penalties[length]; }
int EXPORT(bos)(const model *m) { return (int)m->search.bos; }

enum { DAMAGED = 1, WRONG_INTERFACE = 2 };

/* Turn the offsets of a model of `size` bytes into pointers. Return 0, DAMAGED, or WRONG_INTERFACE if it is for another engine. */
int EXPORT(open_model)(model *m, size_t size) {
    const relattn_mt_engine *engine = relattn_wasm;
    if (size < sizeof *m || memcmp(m->magic, "relattnw", 8)) return DAMAGED;
    if (m->interface != RELATTN_MT_INTERFACE || m->panel != engine->panel) return WRONG_INTERFACE;
    if ((uint64_t)(uint32_t)m->pointers + 4ull * (uint32_t)m->pointer_count != size) return DAMAGED;
    const uint32_t *places = (const uint32_t *)((char *)m + m->pointers);
    for (int32_t i = 0; i < m->pointer_count; i++) {
        uint32_t offset;
        if (places[i] > size - 4) return DAMAGED;
        memcpy(&offset, (char *)m + places[i], 4);
        if (offset >= size) return DAMAGED;
        *(char **)((char *)m + places[i]) += (size_t)m;
    }
    return 0;
}

/* Run the encoder for sentences `src` (sentences, src_len), and return the keys and values of the decoder's layers; NULL if they do
   not fit in memory. `step` gets them, and the lengths. */
static float *read_sources(const model *m, relattn_mt_step *step, int sentences, int src_len, const int64_t *src,
                           const int64_t *lengths) {
    const relattn_mt_engine *engine = relattn_wasm;
    relattn_mt_step encoder = m->encoder;
    relattn_mt_memory memory = m->memory;
    encoder.tokens = src, encoder.src_lengths = lengths, encoder.rows = sentences, encoder.src_len = src_len;
    memory.rows = sentences * src_len, memory.src_len = src_len, memory.row_len = (src_len + 15) / 16 * 16;
    const size_t layer_size = sentences * memory.heads * 2 * memory.head_dim * memory.row_len;
    memory.to = allocate(sizeof(float) * layer_size * memory.layer_count);
    memory.space = allocate(sizeof(float) * engine->memory_space(&memory));
    memory.x = encoder.encoded = calloc(sentences * src_len * encoder.dim, sizeof(float));
    encoder.space = encoder.encoded ? allocate(sizeof(float) * engine->space(&encoder)) : NULL;
    if (encoder.space && memory.to && memory.space) {
        engine->encode(&encoder);
        engine->memory(&memory);
        for (ptrdiff_t i = 0; i < memory.layer_count; i++)
            ((relattn_mt_layer *)step->layers)[i].memory = memory.to + i * layer_size;
    } else {
        free(memory.to);
        memory.to = NULL;
    }
    step->src_lengths = lengths, step->src_len = src_len;
    free(encoder.encoded), free(encoder.space), free(memory.space);
    return memory.to;
}

/* Translate sentences `src` (sentences, src_len) with the search's beam. Write `tokens` (sentences, beam, capacity) and
   `scores` (sentences, beam), the first `best` of each sentence. Translations begin with the tokens `given`. `shortlist` has the
   tokens that may follow, as in `relattn_mt.h`, or is NULL. Return the number of steps, or an error code. */
int EXPORT(translate)(const model *m, int sentences, int src_len, const int64_t *src, const int64_t *lengths, int beam, int best,
                      const int64_t *limits, int capacity, const int64_t *given, int given_count, const int64_t *shortlist,
                      const int64_t *begins, int64_t *tokens, float *scores) {
    relattn_mt_search search = m->search;
    float *memory = read_sources(m, &search.step, sentences, src_len, src, lengths);
    if (!memory) return RELATTN_MT_NO_MEMORY;
    search.sentences = sentences, search.limits = limits, search.capacity = capacity, search.beam = beam, search.best = best;
    search.given = given, search.given_count = given_count, search.tokens = tokens, search.scores = scores;
    search.step.shortlist = shortlist, search.step.shortlist_begins = begins;
    const ptrdiff_t steps = ((const relattn_mt_engine *)relattn_wasm)->search(&search);
    free(memory);
    return (int)steps;
}

/* Write the attention `weights` (steps, src_len) of a sentence `src` while the tokens `target` are read, one in each step. Return
   0, or an error code. */
int EXPORT(align)(const model *m, int src_len, const int64_t *src, int steps, const int64_t *target, float *weights) {
    const relattn_mt_engine *engine = relattn_wasm;
    const int64_t length = src_len, source = 0;
    relattn_mt_step step = m->search.step;
    float *memory = read_sources(m, &step, 1, src_len, src, &length);
    step.sources = &source, step.rows = step.per_source = 1, step.position = steps - 1;
    step.space = allocate(sizeof(float) * engine->space(&step));
    const size_t block_size = step.layer_count * (step.ssru ? (step.dim + 15) / 16 * 16 : step.heads * 2 * step.head_dim * 16),
                 count = step.ssru ? 1 : (steps + 15) / 16;
    float *cache = allocate(sizeof(float) * block_size * count), **blocks = allocate(sizeof(float *) * count);
    const int fits = memory && step.space && cache && blocks;
    for (size_t i = 0; fits && i < count; i++) blocks[i] = cache + i * block_size;
    step.blocks = blocks;
    for (int i = 0; fits && i < steps; i++) {
        step.position = i, step.tokens = target + i, step.attention = weights + i * src_len;
        engine->step(&step);
    }
    free(memory), free(step.space), free(cache), free(blocks);
    return fits ? 0 : RELATTN_MT_NO_MEMORY;
}
