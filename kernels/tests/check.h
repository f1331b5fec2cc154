/* Checks of the C tests, and random numbers that are the same everywhere. */

#ifndef RELATTN_CHECK_H
#define RELATTN_CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Let the allocator of AddressSanitizer return NULL for too much memory, as that of the system does. */
__attribute__((weak)) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
enum { TOO_MANY_BITS = 45 }; /* 2^45 numbers do not fit in memory */

static uint64_t random_state = 1;

/* Return a random number below a limit (splitmix64). */
static inline int64_t random_below(int64_t limit) {
    uint64_t x = random_state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (int64_t)((x ^ (x >> 31)) >> 1) % limit;
}

static inline double random_real(void) { return random_below(2000001) / 1e6 - 1; }

/* Return memory of exactly some bytes, so that a sanitizer sees each access beyond it. It may begin anywhere. */
static inline void *exactly(size_t bytes) {
    void *memory = malloc(bytes);
    CHECK(memory, "%zu bytes", bytes);
    return memset(memory, 0xFF, bytes); /* NaN */
}

/* The same, aligned to 64 bytes. */
static inline void *exactly_aligned(size_t bytes) {
    void *memory = NULL;
    CHECK(posix_memalign(&memory, 64, bytes ? bytes : 1) == 0, "%zu bytes", bytes);
    return memset(memory, 0xFF, bytes);
}

#endif
