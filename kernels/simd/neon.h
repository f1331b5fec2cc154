/* NEON: vectors of 16 bytes. DOTS needs the dot products of ARMv8.2. */

#ifndef RELATTN_NEON_H
#define RELATTN_NEON_H

#ifdef REAL64 /* vectors of at least four numbers */
enum { VECTOR_BYTES = 32, MICRO_VECS = 2, CHAINS = 4 };
#else
enum { VECTOR_BYTES = 16, MICRO_VECS = 4, CHAINS = 1 };
#endif
#include "arm_codes.h"

#ifndef REAL64
#if defined(__linux__)
#define DOTS_EXTENSION ".arch armv8.2-a+dotprod\n\t" /* for the assembler */
#else
#define DOTS_EXTENSION
#endif

#define HAS_ADD_DOTS
/* Add four products per lane. Intrinsics would need functions that are compiled for these processors only. */
INLINE ivec add_dots(ivec sum, ivec a, ivec w) {
    __asm__(DOTS_EXTENSION "sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(w));
    return sum;
}
#endif

#endif
