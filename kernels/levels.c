/* The choice of the processor level. `decoder.c` is compiled once per level, and LEVELS has LEVEL(name) for each, best
   first. The library for attention has the same choice in Python (`backends/native/levels.py`). */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "engine/relattn_mt.h"

#define EXPORTED __attribute__((visibility("default")))

enum { AVX2 = 1, AVX_VNNI = 2, AVX512 = 4, AVX512_VNNI = 8, AVX512_BF16 = 16, AMX_BF16 = 32, SVE256 = 64, DOTPROD = 128 };

static const struct {
    const char *name;
    unsigned features; /* that RELATTN_LEVEL allows */
} limits[] = {
    {"default", 0},
#if defined(__x86_64__)
    {"avx2", AVX2},
    {"avx2_vnni", AVX2 | AVX_VNNI},
    {"avx512", AVX512 | AVX2},
    {"avx512_vnni", AVX512 | AVX2 | AVX512_VNNI},
    {"avx512_bf16", AVX512 | AVX2 | AVX512_VNNI | AVX512_BF16},
    {"avx512_amx", AVX512 | AVX2 | AVX512_VNNI | AVX512_BF16 | AMX_BF16},
#else
    {"sve256", SVE256 | DOTPROD},
#endif
};
enum { LIMITS = sizeof limits / sizeof *limits };

/* Features that a level needs, and the one that the int8 kernel DOTS needs. */
enum { NEEDS_x86_64 = 0, NEEDS_x86_64_v3 = AVX2, NEEDS_x86_64_v4 = AVX512, NEEDS_aarch64 = 0, NEEDS_aarch64_sve256 = SVE256 };
enum { DOTS_x86_64 = 0, DOTS_x86_64_v3 = AVX_VNNI, DOTS_x86_64_v4 = AVX512_VNNI, DOTS_aarch64 = DOTPROD };
enum { DOTS_aarch64_sve256 = DOTPROD };
#define LEVEL(name) extern const relattn_mt_engine relattn_##name;
LEVELS
#undef LEVEL
#define LEVEL(name) {&relattn_##name, NEEDS_##name, DOTS_##name},
static const struct {
    const relattn_mt_engine *engine;
    unsigned needs, dots;
} levels[] = {LEVELS};

#if defined(__x86_64__)
/* Return the features of this processor that the system supports too. */
static unsigned processor_features(void) {
    unsigned a, b, c, d, b7, c7, d7, a71 = 0, low = 0, high, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* OSXSAVE */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const int has_fma = c >> 12 & 1;
    if ((low & 0x6) != 0x6 || !has_fma || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !(b7 >> 5 & 1)) return 0;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
    found = AVX2 | (a71 >> 4 & 1 ? AVX_VNNI : 0);
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW and VL */
    if ((low & 0xE0) != 0xE0 || (b7 & avx512) != avx512) return found;
    found |= AVX512 | (c7 >> 11 & 1 ? AVX512_VNNI : 0) | (a71 >> 5 & 1 ? AVX512_BF16 : 0);
    return found | ((low & 0x60000) == 0x60000 && d7 >> 22 & 1 ? AMX_BF16 : 0);
}
#elif defined(__linux__)
static unsigned processor_features(void) {
    const unsigned long features = getauxval(AT_HWCAP);
    const int has_sve256 = features >> 22 & 1 && (prctl(51 /* PR_SVE_GET_VL */) & 0xFFFF) == 32;
    return (has_sve256 ? SVE256 : 0) | (features >> 20 & 1 ? DOTPROD : 0);
}
#else /* Apple's processors */
static unsigned processor_features(void) { return DOTPROD; }
#endif

/* Write the error of an unknown level, or one that is higher than the processor. */
static int refuse_level(unsigned has, const char *level, char *message) {
    int length = snprintf(message, 256, "RELATTN_LEVEL must be one of ");
    for (int i = 0, count = 0; i < LIMITS; i++)
        if (!(limits[i].features & ~has))
            length += snprintf(message + length, 256 - length, "%s%s", count++ ? ", " : "", limits[i].name);
    snprintf(message + length, 256 - length, " on this processor, got '%.40s'", level);
    return RELATTN_MT_WRONG_LEVEL;
}

EXPORTED int relattn_mt_open(int interface, const char *level, relattn_mt_engine *engine, char *message) {
    if (interface != RELATTN_MT_INTERFACE) {
        snprintf(message, 256, "the library must have interface %d, got %d", interface, RELATTN_MT_INTERFACE);
        return RELATTN_MT_WRONG_INTERFACE;
    }
    unsigned has = processor_features();
    if (!level) level = getenv("RELATTN_LEVEL");
    if (level && *level) {
        int i = 0;
        while (i < LIMITS && (strcmp(limits[i].name, level) || limits[i].features & ~has)) i++;
        if (i == LIMITS) return refuse_level(has, level, message);
        has &= limits[i].features;
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!(levels[i].needs & ~has)) {
            *engine = *levels[i].engine;
            if (!(has & levels[i].dots)) engine->int8_kernels &= ~(1 << RELATTN_MT_DOTS);
            return 0;
        }
    snprintf(message, 256, "the library has no kernels for this processor");
    return RELATTN_MT_WRONG_LEVEL;
}

EXPORTED const char *relattn_mt_message(ptrdiff_t code) {
    switch (code) {
        case RELATTN_MT_NO_MEMORY: return "the cache of a search must fit in memory";
        case RELATTN_MT_NOT_FINITE: return "weights must be finite, got NaN or infinity";
        case RELATTN_MT_WRONG_INTERFACE: return "the library must have another interface";
        case RELATTN_MT_WRONG_LEVEL: return "RELATTN_LEVEL must name a level of this processor";
        default: return "";
    }
}
