/* The choice of the kernels of attention for a processor, and the threads of the library. */

#include "../simd/threads.c"

#include "../levels.h"
#include "relattn.h"

__attribute__((visibility("default"))) int relattn_open(int dtype, const char *level, relattn_kernels *kernels,
                                                        char *message) {
    int has_dots = 0;
    const relattn_kernels *chosen = relattn_choose(dtype, level, &has_dots, message);
    if (!chosen) {
        if (*message) return RELATTN_WRONG_LEVEL;
        snprintf(message, 256, "the library has no kernels for this processor");
        return RELATTN_NO_KERNELS;
    }
    *kernels = *chosen;
    if (!has_dots) kernels->int8_kernels &= ~(1 << DOTS);
    return 0;
}
