/* The choice of the processor level, for the libraries of both packages. PARTS has PART(level, dtype) for each object that
   is linked into a library.

   RELATTN_LEVEL is the name of a level, or its name with DOTS. It allows this level and those below it. The name of a level
   without DOTS forbids the int8 kernel DOTS at this level, but not at those below. The lowest level is "default". */

#include "levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simd/processor.h"

#define NONE(...)
#if defined(__x86_64__)
#define X86_64 LEVEL
#else
#define X86_64 NONE
#endif
#if defined(__aarch64__)
#define AARCH64 LEVEL
#else
#define AARCH64 NONE
#endif
#if defined(__x86_64__) || defined(__aarch64__)
#define OTHER NONE
#else
#define OTHER LEVEL
#endif

#define LEVEL(name, dtypes, requirement, dots_name, dots, flags)                                                       \
    static int runs_##name(void) { return requirement; }                                                               \
    static int has_dots_##name(void) { return dots; }
#include "levels.h"
#undef LEVEL

#define LEVEL(name, ...) AT_##name,
enum {
#include "levels.h"
    LEVELS
};
#undef LEVEL

#define LEVEL(name, dtypes, requirement, dots_name, dots, flags) {#name, dots_name, runs_##name, has_dots_##name},
static const struct {
    const char *name, *dots_name;
    int (*runs)(void), (*has_dots)(void);
} levels[] = {
#include "levels.h"
};
#undef LEVEL

enum { DTYPE_float32 = LEVEL_FLOAT32, DTYPE_int8 = LEVEL_FLOAT32, DTYPE_float64 = LEVEL_FLOAT64, DTYPE_bfloat16 = LEVEL_BFLOAT16 };
#define PART(level, dtype) extern const void *const relattn_##level##_##dtype;
PARTS
#undef PART
#define PART(level, dtype) {AT_##level, DTYPE_##dtype, &relattn_##level##_##dtype},
static const struct {
    int level, dtype;
    const void *const *kernels;
} parts[] = {PARTS};

/* Return a name of a level, with DOTS or without, or NULL if this processor does not run it or it has no such name. */
static const char *value_of(int level, int dots) {
    if (!levels[level].runs() || (dots && !(*levels[level].dots_name && levels[level].has_dots()))) return NULL;
    return dots ? levels[level].dots_name : level == LEVELS - 1 ? "default" : levels[level].name;
}

static void refuse(const char *value, char *message) {
    int length = snprintf(message, 256, "RELATTN_LEVEL must be one of ");
    for (int i = 2 * LEVELS - 1, count = 0; i >= 0; i--) {
        const char *allowed = value_of(i / 2, !(i % 2));
        if (allowed && length < 200) length += snprintf(message + length, 200 - length, "%s%s", count++ ? ", " : "", allowed);
    }
    snprintf(message + length, 256 - length, " on this processor, got '%.40s'", value);
}

const void *relattn_choose(int dtype, const char *value, int *has_dots, char *message) {
    int first = 0, may_have_dots = 1;
    *message = 0;
    if (!value) value = getenv("RELATTN_LEVEL");
    if (value && *value) {
        int i = 0;
        for (; i < 2 * LEVELS; i++) {
            const char *allowed = value_of(i / 2, !(i % 2));
            if (allowed && strcmp(allowed, value) == 0) break;
        }
        if (i == 2 * LEVELS) {
            refuse(value, message);
            return NULL;
        }
        first = i / 2;
        may_have_dots = !(i % 2);
    }
    for (int level = first; level < LEVELS; level++)
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            if (parts[p].level == level && parts[p].dtype == dtype && levels[level].runs()) {
                *has_dots = (may_have_dots || level > first) && levels[level].has_dots();
                return *parts[p].kernels;
            }
    return NULL;
}
