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

/* Translate sentences `src` (sentences, src_len) with the search's beam. Write `tokens` (sentences, beam, capacity) and
   `scores` (sentences, beam), the first `best` of each sentence. Return the number of steps, or an error code. */
int EXPORT(translate)(const model *m, int sentences, int src_len, const int64_t *src, const int64_t *lengths, int beam, int best,
                      const int64_t *limits, int capacity, int64_t *tokens, float *scores) {
    const relattn_mt_engine *engine = relattn_wasm;
    relattn_mt_step encoder = m->encoder;
    relattn_mt_memory memory = m->memory;
    relattn_mt_search search = m->search;
    ptrdiff_t steps = RELATTN_MT_NO_MEMORY;
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
            ((relattn_mt_layer *)search.step.layers)[i].memory = memory.to + i * layer_size;
        search.step.src_lengths = lengths, search.step.src_len = src_len, search.sentences = sentences;
        search.limits = limits, search.capacity = capacity, search.beam = beam, search.best = best;
        search.tokens = tokens, search.scores = scores;
        steps = engine->search(&search);
    }
    free(encoder.encoded), free(encoder.space), free(memory.to), free(memory.space);
    return (int)steps;
}
