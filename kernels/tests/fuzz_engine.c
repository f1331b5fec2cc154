/* The engine with any numbers for weights, tokens, lengths and limits, and any name of a level. */

#define _GNU_SOURCE
#include "model.h"

#include "fuzz.h"

static double next_number(void) { return next_byte() % 8 ? random_real() : next_float(); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static model m;
    fuzz_data = data, fuzz_left = size;
    char name[24], message[256];
    for (int i = 0; i < 24; i++) name[i] = (char)next_byte();
    name[23] = 0;
    relattn_mt_open(RELATTN_MT_INTERFACE, name, &m.engine, message);
    if (relattn_mt_open(RELATTN_MT_INTERFACE, next_byte() % 2 ? "" : "default", &m.engine, message)) return 0;
    const idx kernel = next_byte() % 4, sources = 1 + next_byte() % 3, src_len = 1 + next_byte() % 20, beam = 1 + next_byte() % 5;
    const int is_packed = new_model(&m, m.engine.int8_kernels >> kernel & 1 ? kernel : 0, next_number);
    if (is_packed) {
        int64_t tokens[60], lengths[3], limits[3], given[1] = {next_byte() % VOCAB}, results[3 * 5 * MOST_POSITIONS], banned = 2;
        float scores[15], penalties[MOST_POSITIONS + 2], *encoded;
        for (int i = 0; i < 60; i++) tokens[i] = next_byte() % VOCAB;
        for (int i = 0; i < 3; i++) lengths[i] = 1 + next_byte() % src_len, limits[i] = 1 + next_byte() % MOST_POSITIONS;
        for (int i = 0; i < MOST_POSITIONS + 2; i++) penalties[i] = 1 + 0.1f * i;
        float *memory = encode(&m, tokens, lengths, sources, src_len, &encoded);
        relattn_mt_search s = {.step = new_step(&m, 1), .limits = limits, .penalties = penalties, .tokens = results,
                               .scores = scores, .sentences = sources, .capacity = MOST_POSITIONS, .beam = beam,
                               .best = 1 + next_byte() % beam, .eos = 1, .early_stopping = next_byte() % 3, .given = given,
                               .given_count = next_byte() % 2};
        s.step.src_lengths = lengths, s.step.src_len = src_len, s.step.activation = next_byte() % 5;
        s.step.banned = &banned, s.step.banned_count = next_byte() % 2, s.step.pre_norm = next_byte() % 2;
        const int64_t shortlist[] = {0, 1, 3, 4, 0, 1, 3, 4, 0, 1, 3, 4}, begins[] = {0, 4, 8, 12};
        if (next_byte() % 2) s.step.shortlist = shortlist, s.step.shortlist_begins = begins, given[0] = 3;
        CHECK(m.engine.search(&s) >= 0, "memory");
        free(encoded), free(memory);
    }
    free_model(&m);
    return 0;
}
