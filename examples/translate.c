/* Translate sentences with the compiled engine, without Python: translate LIBRARY MODEL < sentences > translations

   MODEL is a file that `flat_model.py` writes of a bundle. Each line of the input has the numbers of the source tokens of a
   sentence, special tokens included. Each line of the output has a score and the numbers of the target tokens.

       cc -std=gnu11 -I kernels/engine examples/translate.c -ldl -lm -o translate
       python examples/flat_model.py BUNDLE model && ./translate LIBRARY model

   where LIBRARY is relattn_mt.so of the installed package relattn_mt.engine. */

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "relattn_mt.h"

typedef struct { /* the beginning of the file; pointers in the file are offsets, at the places that `pointers` lists */
    char magic[8], level[24];
    int64_t panel, capacity, pointer_count, pointers;
    const int64_t *limits; /* (capacity + 1,) maximum number of target tokens by number of source tokens */
    relattn_mt_step encoder;
    relattn_mt_memory memory;
    relattn_mt_search search;
} model;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "translate: %s: %s\n", what, why);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!memory) fail("memory", "not enough");
    return memory;
}

static model *read_model(const char *path, const relattn_mt_engine *engine) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path, "cannot be read");
    const long size = ftell(file);
    char *bytes = allocate(size);
    rewind(file);
    model *m = (model *)bytes;
    if (size < (long)sizeof *m || fread(bytes, 1, size, file) != (size_t)size || memcmp(m->magic, "relattn1", 8))
        fail(path, "must be a file of flat_model.py");
    if (strcmp(m->level, engine->level) || m->panel != engine->panel) fail(path, "was written for another processor level");
    const ptrdiff_t kernel = m->search.step.output.kernel;
    if (kernel != RELATTN_MT_FLOAT && !(engine->int8_kernels >> kernel & 1)) fail(path, "was written for another int8 kernel");
    const int64_t *places = (int64_t *)(bytes + m->pointers);
    for (int64_t i = 0; i < m->pointer_count; i++) *(char **)(bytes + places[i]) += (size_t)bytes;
    fclose(file);
    return m;
}

/* Translate a sentence and print the result. */
static void translate(const relattn_mt_engine *engine, const model *m, const int64_t *tokens, int64_t count) {
    relattn_mt_step encoder = m->encoder;
    encoder.tokens = tokens, encoder.src_lengths = &count, encoder.rows = 1, encoder.src_len = count;
    encoder.encoded = allocate(sizeof(float) * count * encoder.dim);
    encoder.space = allocate(sizeof(float) * engine->space(&encoder));
    engine->encode(&encoder);

    relattn_mt_memory memory = m->memory;
    memory.x = encoder.encoded, memory.rows = memory.src_len = count, memory.row_len = (count + 15) / 16 * 16;
    const size_t layer_size = memory.heads * 2 * memory.head_dim * memory.row_len;
    memory.to = allocate(sizeof(float) * layer_size * memory.layer_count);
    memory.space = allocate(sizeof(float) * engine->memory_space(&memory));
    engine->memory(&memory);
    for (ptrdiff_t i = 0; i < memory.layer_count; i++)
        ((relattn_mt_layer *)m->search.step.layers)[i].memory = memory.to + i * layer_size;

    relattn_mt_search search = m->search;
    search.step.src_lengths = &count, search.step.src_len = count;
    search.sentences = 1, search.limits = m->limits + count, search.capacity = m->limits[count];
    search.tokens = allocate(sizeof(int64_t) * search.beam * search.capacity);
    search.scores = allocate(sizeof(float) * search.beam);
    const ptrdiff_t steps = engine->search(&search);
    if (steps < 0) fail("search", "not enough memory");
    if (isnan(search.scores[0])) printf("nan");
    else {
        printf("%.9g", search.scores[0]);
        for (ptrdiff_t i = 0; i < steps && search.tokens[i] != search.eos; i++) printf(" %lld", (long long)search.tokens[i]);
    }
    printf("\n");
    void *own[] = {encoder.encoded, encoder.space, memory.to, memory.space, search.tokens, search.scores};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) free(own[i]);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage", "translate LIBRARY MODEL < sentences");
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*open_engine)(int, const char *, relattn_mt_engine *, char *) =
        library ? (int (*)(int, const char *, relattn_mt_engine *, char *))dlsym(library, "relattn_mt_open") : NULL;
    if (!open_engine) fail(argv[1], library ? "has no engine" : dlerror());
    relattn_mt_engine engine;
    char message[256];
    if (open_engine(RELATTN_MT_INTERFACE, NULL, &engine, message)) fail(argv[1], message);
    const model *m = read_model(argv[2], &engine);
    int64_t *tokens = allocate(sizeof(int64_t) * m->capacity);
    char *line = NULL;
    for (size_t size = 0; getline(&line, &size, stdin) > 0;) {
        int64_t count = 0;
        char *end = line;
        for (char *next = line;; next = end) {
            const long long token = strtoll(next, &end, 10);
            if (end == next) break;
            if (token < 0 || token >= m->encoder.vocab || count == m->capacity) fail("sentence", "has wrong tokens or too many");
            tokens[count++] = token;
        }
        if (count > 0) translate(&engine, m, tokens, count);
    }
    return 0;
}
