/* The choice of a level, on processors that are only described here. */

#define _GNU_SOURCE
#include <stdlib.h>

#include "check.h"

#define RELATTN_PROCESSOR_H /* in place of `simd/processor.h` */
static int has_avx2, has_avx_vnni, has_avx512, has_avx512_vnni, has_avx512_bf16, has_amx, has_sve, has_dotprod;
#define AVX2 has_avx2
#define AVX_VNNI has_avx_vnni
#define AVX512 has_avx512
#define AVX512_VNNI has_avx512_vnni
#define AVX512_BF16 has_avx512_bf16
#define AMX has_amx
#define SVE_BYTES (has_sve ? 32 : 0)
#define DOTPROD has_dotprod
#define CPUID(...) 0 /* features that this test does not know */

#if defined(__x86_64__)
static const int plain = 0, avx2 = 1, avx512 = 2, pairs = 3, tiles = 4, engine_tiles = 5;
const void *const relattn_plain_float32 = &plain, *const relattn_avx2_float32 = &avx2;
const void *const relattn_avx512_float32 = &avx512, *const relattn_avx512_bf16_bfloat16 = &pairs;
const void *const relattn_amx_bfloat16 = &tiles, *const relattn_amx_int8 = &engine_tiles;
#define PARTS                                                                                                          \
    PART(amx, bfloat16) PART(amx, int8) PART(avx512_bf16, bfloat16) PART(avx512, float32) PART(avx2, float32)          \
    PART(plain, float32)
#include "../levels.c"

/* Check which kernels are chosen, and whether DOTS is allowed. -1: the value is refused, -2: there are none. */
static void expect(int dtype, const char *value, int chosen, int dots) {
    char message[256];
    int has_dots = 0;
    const int *kernels = relattn_choose(dtype, value, &has_dots, message);
    const int found = kernels ? *kernels : *message ? -1 : -2;
    CHECK(found == chosen && (!kernels || has_dots == dots), "%s gives %d, %d", value, found, has_dots);
}

static void expect_message(const char *value, const char *expected) {
    char message[256];
    int has_dots;
    CHECK(!relattn_choose(LEVEL_FLOAT32, value, &has_dots, message), "%s", value);
    CHECK(strcmp(message, expected) == 0, "%s", message);
}

int main(void) {
    unsetenv("RELATTN_LEVEL");
    expect(LEVEL_FLOAT32, NULL, plain, 0);
    expect(LEVEL_BFLOAT16, NULL, -2, 0);
    expect(LEVEL_FLOAT64, NULL, -2, 0);
    expect_message("avx2", "RELATTN_LEVEL must be one of default on this processor, got 'avx2'");
    has_avx2 = 1;
    expect(LEVEL_FLOAT32, NULL, avx2, 0);
    has_avx_vnni = 1;
    expect(LEVEL_FLOAT32, NULL, avx2, 1);
    expect(LEVEL_FLOAT32, "avx2", avx2, 0);
    expect(LEVEL_FLOAT32, "avx2_vnni", avx2, 1);
    has_avx512 = 1;
    expect(LEVEL_FLOAT32, "", avx512, 0);
    has_avx512_vnni = has_avx512_bf16 = 1;
    expect(LEVEL_FLOAT32, NULL, avx512, 1);
    expect(LEVEL_FLOAT32, "avx512", avx512, 0);
    expect(LEVEL_FLOAT32, "avx512_vnni", avx512, 1);
    expect(LEVEL_FLOAT32, "avx512_bf16", avx512, 1);
    expect(LEVEL_BFLOAT16, NULL, pairs, 0);
    expect(LEVEL_BFLOAT16, "avx512_vnni", -2, 0);
    expect(LEVEL_FLOAT32, "default", plain, 0);
    expect(LEVEL_FLOAT32, "plain", -1, 0); /* has one name */
    expect(LEVEL_FLOAT32, "amx", -1, 0);
    has_amx = 1;
    expect(LEVEL_BFLOAT16, NULL, tiles, 1);
    expect(LEVEL_BFLOAT16, "avx512_bf16", pairs, 0);
    expect(LEVEL_FLOAT32, NULL, engine_tiles, 1);
    expect(LEVEL_FLOAT32, "amx", engine_tiles, 0);
    expect(LEVEL_FLOAT32, "amx_vnni", engine_tiles, 1);
    expect(LEVEL_FLOAT32, "avx512_bf16", avx512, 1);
    setenv("RELATTN_LEVEL", "avx2", 1);
    expect(LEVEL_FLOAT32, NULL, avx2, 0);
    expect(LEVEL_FLOAT32, "avx512", avx512, 0);
    expect_message("a name that is much longer than the names of all levels together, and has no end",
                   "RELATTN_LEVEL must be one of default, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx, amx_vnni on "
                   "this processor, got 'a name that is much longer than the name'");
    printf("levels: ok\n");
    return 0;
}
#else
int main(void) { return 0; }
#endif
