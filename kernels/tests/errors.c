/* What both libraries answer when they cannot be opened: this one has no kernels for any processor. */

#define _GNU_SOURCE
#include <stdlib.h>

#include "../attention/relattn.h"
#include "../engine/relattn_mt.h"
#include "check.h"

int main(void) {
    char message[256];
    relattn_kernels kernels;
    relattn_mt_engine engine;
    unsetenv("RELATTN_LEVEL");
    CHECK(relattn_open(RELATTN_FLOAT32, NULL, &kernels, message) == RELATTN_NO_KERNELS, "%s", message);
    CHECK(relattn_open(RELATTN_FLOAT32, "no level", &kernels, message) == RELATTN_WRONG_LEVEL, "%s", message);
    CHECK(strstr(message, "RELATTN_LEVEL must be one of default"), "%s", message);

    CHECK(relattn_mt_open(RELATTN_MT_INTERFACE, NULL, &engine, message) == RELATTN_MT_NO_KERNELS, "%s", message);
    CHECK(strcmp(message, relattn_mt_message(RELATTN_MT_NO_KERNELS)) == 0, "%s", message);
    CHECK(relattn_mt_open(RELATTN_MT_INTERFACE, "no level", &engine, message) == RELATTN_MT_WRONG_LEVEL, "%s", message);
    CHECK(strstr(message, "RELATTN_LEVEL must be one of default"), "%s", message);
    CHECK(relattn_mt_open(RELATTN_MT_INTERFACE + 1, "no level", &engine, message) == RELATTN_MT_WRONG_INTERFACE, "%s", message);
    CHECK(strstr(message, "must have interface"), "%s", message);

    for (int code = RELATTN_MT_NO_KERNELS; code < 0; code++)
        for (int other = code + 1; other <= 0; other++)
            CHECK(strcmp(relattn_mt_message(code), relattn_mt_message(other)), "%d and %d have the same reason", code, other);
    puts("errors: ok");
    return 0;
}
