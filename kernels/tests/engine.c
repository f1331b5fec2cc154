/* The engine on a tiny model, at all levels: search against all hypotheses, batches against single sentences, and arguments
   that are refused. */

#define _GNU_SOURCE
#include "model.h"
#include "values.h"

enum { BOS = 0, EOS = 1, LIMIT = 4, SOURCES = 3, SRC_LEN = 7, BLOCK_SIZE = 16 * MODEL_HEADS * 2 * HEAD_DIM };

static model tiny;

/* Return the log-probability of the tokens of a hypothesis, computed with one forced token per step. */
static float score(const int64_t *lengths, idx source, const int64_t *tokens, idx count) {
    float *block = exactly_aligned(sizeof(float) * BLOCK_SIZE), value = 0, sum = 0;
    void *blocks[] = {block};
    for (idx i = 0; i < count; i++) {
        const int64_t input = i ? tokens[i - 1] : BOS;
        int64_t candidate;
        relattn_mt_step a = new_step(&tiny, 1);
        a.blocks = blocks, a.tokens = &input, a.sources = (const int64_t[]){source}, a.src_lengths = lengths, a.only = tokens + i;
        a.values = &value, a.candidates = &candidate, a.rows = a.per_source = a.best = 1, a.position = i, a.src_len = SRC_LEN;
        a.space = space_of(tiny.engine.space(&a));
        tiny.engine.step(&a);
        free(a.space);
        sum += value;
    }
    free(block);
    return sum;
}

static void best_hypothesis(const int64_t *lengths, idx source, idx limit, float *best, int64_t *tokens) {
    int64_t current[LIMIT];
    idx total = 1;
    *best = -INFINITY;
    for (idx count = 1; count <= limit; count++, total *= VOCAB)
        for (idx number = 0; number < total; number++) { /* all hypotheses of `count` tokens */
            int ends = 0;
            for (idx i = 0, rest = number; i < count - 1; i++, rest /= VOCAB) {
                current[i] = rest % VOCAB;
                ends |= current[i] == EOS;
            }
            current[count - 1] = EOS;
            if (ends) continue;
            /* at the limit the end is free of cost neither here nor in a search */
            const float found = score(lengths, source, current, count);
            if (found > *best) *best = found, memcpy(tokens, current, sizeof(int64_t) * count);
        }
}

typedef struct {
    idx steps;
    int64_t tokens[SOURCES * VOCAB * VOCAB * VOCAB * LIMIT];
    float scores[SOURCES * VOCAB * VOCAB * VOCAB];
} found;

static void search(const int64_t *lengths, idx sentences, idx src_len, idx beam, const int64_t *limits, found *to) {
    static float penalties[LIMIT + 2];
    for (int i = 0; i < LIMIT + 2; i++) penalties[i] = 1;
    relattn_mt_search s = {.step = new_step(&tiny, 1), .limits = limits, .penalties = penalties, .tokens = to->tokens,
                           .scores = to->scores, .sentences = sentences, .capacity = LIMIT, .beam = beam, .best = 1,
                           .bos = BOS, .eos = EOS};
    s.step.src_lengths = lengths, s.step.src_len = src_len;
    to->steps = tiny.engine.search(&s);
    CHECK(to->steps >= 0, "error %td", to->steps);
}

static void test_search(idx kernel) {
    CHECK(new_model(&tiny, kernel, random_real), "a model");
    static found all, single;
    int64_t tokens[SOURCES * SRC_LEN], lengths[SOURCES] = {SRC_LEN, 1, 4}, limits[SOURCES] = {LIMIT, LIMIT, 3};
    for (int i = 0; i < SOURCES * SRC_LEN; i++) tokens[i] = random_below(VOCAB);
    float *encoded, *memory = encode(&tiny, tokens, lengths, SOURCES, SRC_LEN, &encoded);
    const idx beam = VOCAB * VOCAB * VOCAB; /* keeps every hypothesis */
    search(lengths, SOURCES, SRC_LEN, beam, limits, &all);
    for (idx i = 0; i < SOURCES; i++) {
        float best;
        int64_t expected[LIMIT];
        best_hypothesis(lengths, i, limits[i], &best, expected);
        const int64_t *got = all.tokens + i * beam * LIMIT;
        CHECK(fabsf(all.scores[i * beam] - best) < 1e-4, "sentence %td: %g, expected %g", i, all.scores[i * beam], best);
        for (idx k = 0; expected[k] != EOS; k++) CHECK(got[k] == expected[k], "token %td is %d", k, (int)got[k]);
    }
    for (idx narrow = 1; narrow <= 3; narrow++) {
        search(lengths, SOURCES, SRC_LEN, narrow, limits, &all);
        for (idx i = 0; i < SOURCES; i++) {
            float *own, *own_memory = encode(&tiny, tokens + i * SRC_LEN, lengths + i, 1, lengths[i], &own);
            search(lengths + i, 1, lengths[i], narrow, limits + i, &single);
            CHECK(all.scores[i * narrow] == single.scores[0], "a batch changes %td: %.9g, %.9g", i, all.scores[i * narrow], single.scores[0]);
            CHECK(memcmp(encoded + i * SRC_LEN * DIM, own, sizeof(float) * lengths[i] * DIM) == 0, "a batch changes the encoder");
            free(own), free(own_memory);
        }
        tiny.decoder_layer.memory = memory;
    }
    free(encoded), free(memory);
    free_model(&tiny);
}

static double spoiled(void) { return random_below(500) ? random_real() : random_below(2) ? NAN : INFINITY; }

static void test_refusals(void) {
    int refused = 0;
    for (int i = 0; i < 20; i++) {
        refused += !new_model(&tiny, 0, spoiled);
        free_model(&tiny);
    }
    CHECK(refused > 10, "%d of 20 models with NaN are refused", refused);
    relattn_mt_engine engine;
    char message[256];
    CHECK(relattn_mt_open(RELATTN_MT_INTERFACE + 1, NULL, &engine, message) == RELATTN_MT_WRONG_INTERFACE, "%s", message);
    CHECK(relattn_mt_open(RELATTN_MT_INTERFACE, "no level", &engine, message) == RELATTN_MT_WRONG_LEVEL, "%s", message);
    CHECK(*relattn_mt_message(RELATTN_MT_NO_MEMORY) && !*relattn_mt_message(1), "messages");
}

static void test_large_search(void) {
    CHECK(new_model(&tiny, 0, random_real), "a model");
    const int64_t length = 1, limit = LIMIT;
    float penalty = 1, score;
    relattn_mt_search s = {.step = new_step(&tiny, 1), .limits = &limit, .penalties = &penalty, .scores = &score, .sentences = 1,
                           .capacity = (idx)1 << TOO_MANY_BITS, .beam = 1, .best = 1, .bos = BOS, .eos = EOS};
    s.step.src_lengths = &length, s.step.src_len = 1;
    CHECK(tiny.engine.search(&s) == RELATTN_MT_NO_MEMORY, "of a search");
    free_model(&tiny);
}

int main(void) {
    int count = 0;
    for (int v = 0; v < VALUES; v++) {
        char message[256];
        if (!*values[v] || relattn_mt_open(RELATTN_MT_INTERFACE, values[v], &tiny.engine, message)) continue;
        if (v > 0 && strncmp(tiny.engine.level, values[v], strlen(tiny.engine.level))) continue; /* of a level of attention */
        for (idx kernel = RELATTN_MT_FLOAT; kernel <= RELATTN_MT_DOTS; kernel++)
            if (kernel == RELATTN_MT_FLOAT || tiny.engine.int8_kernels >> kernel & 1) {
                random_state = 1;
                test_search(kernel);
                count++;
            }
        test_refusals();
        test_large_search();
        printf("engine at %s: ok\n", values[v]);
    }
    CHECK(count > 0, "no level runs");
    return 0;
}
