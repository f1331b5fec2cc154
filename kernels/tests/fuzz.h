/* A target of libFuzzer, or without it a program that runs the target on mutated inputs: PROGRAM [ROUNDS]. */

#ifndef RELATTN_FUZZ_H
#define RELATTN_FUZZ_H

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef LIBFUZZER
int main(int argc, char **argv) {
    enum { MOST_BYTES = 4096 };
    static const uint32_t numbers[] = {0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0xFF7FFFFF, 1, 0x00800000, 0xFFFFFFFF};
    static uint8_t data[MOST_BYTES];
    const int rounds = argc > 1 ? atoi(argv[1]) : 400;
    random_state = 1;
    for (int round = 0; round < rounds; round++) {
        if (round % 8 == 0)
            for (int i = 0; i < MOST_BYTES; i++) data[i] = (uint8_t)random_below(256);
        for (int i = random_below(16); i >= 0; i--) {
            const idx at = random_below(MOST_BYTES - 4);
            if (random_below(2)) data[random_below(64)] = (uint8_t)random_below(256);
            else memcpy(data + at, &numbers[random_below(sizeof numbers / sizeof *numbers)], 4);
        }
        const size_t size = random_below(MOST_BYTES + 1);
        uint8_t *own = exactly(size ? size : 1); /* a read beyond the input is seen */
        memcpy(own, data, size);
        LLVMFuzzerTestOneInput(own, size);
        free(own);
    }
    printf("%s: %d rounds\n", argv[0], rounds);
    return 0;
}
#endif

static const uint8_t *fuzz_data;
static size_t fuzz_left;

/* Return the next byte of the input, 0 after its end. */
static unsigned next_byte(void) { return fuzz_left ? (fuzz_left--, *fuzz_data++) : 0; }

/* Return the next number of four bytes, which may be NaN or infinite. */
static float next_float(void) {
    uint8_t bytes[4];
    float x;
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)next_byte();
    memcpy(&x, bytes, 4);
    return x;
}

#endif
