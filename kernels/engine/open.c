/* The choice of the engine for a processor, and the meaning of its error codes. */

#include <stdio.h>

#include "../levels.h"
#include "relattn_mt.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int relattn_mt_open(int interface, const char *level, relattn_mt_engine *engine, char *message) {
    if (interface != RELATTN_MT_INTERFACE) {
        snprintf(message, 256, "the library must have interface %d, got %d", interface, RELATTN_MT_INTERFACE);
        return RELATTN_MT_WRONG_INTERFACE;
    }
    int has_dots = 0;
    const relattn_mt_engine *chosen = relattn_choose(LEVEL_FLOAT32, level, &has_dots, message);
    if (!chosen) {
        if (*message) return RELATTN_MT_WRONG_LEVEL;
        snprintf(message, 256, "%s", relattn_mt_message(RELATTN_MT_NO_KERNELS));
        return RELATTN_MT_NO_KERNELS;
    }
    *engine = *chosen;
    if (!has_dots) engine->int8_kernels &= ~(1 << DOTS);
    return 0;
}

EXPORTED const char *relattn_mt_message(ptrdiff_t code) {
    switch (code) {
        case RELATTN_MT_NO_MEMORY: return "the cache of a search must fit in memory";
        case RELATTN_MT_NOT_FINITE: return "weights must be finite, got NaN or infinity";
        case RELATTN_MT_WRONG_INTERFACE: return "the library must have another interface";
        case RELATTN_MT_WRONG_LEVEL: return "RELATTN_LEVEL must name a level of this processor";
        case RELATTN_MT_NO_KERNELS: return "the library has no kernels for this processor";
        default: return "";
    }
}
