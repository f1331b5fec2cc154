/* SVE with vectors of exactly 32 bytes. DOTS needs the dot products of ARMv8.2. */

#ifndef RELATTN_SVE256_H
#define RELATTN_SVE256_H

enum { VECTOR_BYTES = 32, MICRO_VECS = 4, CHAINS = 1 };
#include "arm_codes.h"

#ifndef REAL64
#include <arm_sve.h>

typedef svint32_t sve_words __attribute__((arm_sve_vector_bits(256)));
typedef svint8_t sve_bytes __attribute__((arm_sve_vector_bits(256)));

#define HAS_ADD_DOTS
INLINE ivec add_dots(ivec sum, ivec a, ivec w) {
    sve_words total;
    sve_bytes x, y;
    memcpy(&total, &sum, sizeof sum), memcpy(&x, &a, sizeof a), memcpy(&y, &w, sizeof w);
    total = svdot_s32(total, x, y);
    memcpy(&sum, &total, sizeof sum);
    return sum;
}
#endif

#endif
