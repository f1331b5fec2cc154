/* All values of RELATTN_LEVEL, of which a processor allows some. */

#ifndef RELATTN_VALUES_H
#define RELATTN_VALUES_H

#include "../levels.h"

#define X86_64(level, dtypes, requirement, dots_name, ...) #level, dots_name,
#define AARCH64 X86_64
#define OTHER X86_64
static const char *const values[] = {
    "default",
#include "../levels.h"
};
enum { VALUES = sizeof values / sizeof *values };

#endif
