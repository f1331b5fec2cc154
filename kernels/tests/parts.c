/* Run the tests of `part.c` at all levels of this processor. */

#define _GNU_SOURCE
#include <stdlib.h>

#include "check.h"
#include "values.h"

int main(void) {
    for (int dtype = LEVEL_FLOAT32; dtype <= LEVEL_FLOAT64; dtype++)
        for (int v = 0; v < VALUES; v++) {
            char message[256];
            int has_dots;
            const int is_repeated = dtype == LEVEL_FLOAT64 && strchr(values[v], '_'); /* which has no 8-bit integers */
            void (*const *run)(int) = *values[v] && !is_repeated ? relattn_choose(dtype, values[v], &has_dots, message) : NULL;
            if (run) (*run)(has_dots);
        }
    return 0;
}
