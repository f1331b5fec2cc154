/* Vectors of `real`, with the vector extension of GCC and Clang. `real` is float, or double if REAL64 is defined.

   The file of a level includes this one after it has set

       VECTOR_BYTES   size of a vector
       MICRO_VECS     number of vectors in a row of the micro-kernel of products
       CHAINS         number of vectors whose powers of 2 are computed in lockstep

   and then has the functions for which the level has instructions of its own, each after `#define HAS_...`. `generic.h` has
   them for all other levels. */

#ifndef RELATTN_TYPES_H
#define RELATTN_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef REAL64
typedef double real;
typedef int64_t integer; /* as wide as `real` */
typedef uint64_t natural;
enum { MANTISSA = 52, BIAS = 1023 };
#else
typedef float real;
typedef int32_t integer;
typedef uint32_t natural;
enum { MANTISSA = 23, BIAS = 127 };
#endif

enum { LANES = VECTOR_BYTES / sizeof(real) };
typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef integer ivec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef natural uvec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef real vec4 __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef ptrdiff_t idx;

#define INLINE static inline __attribute__((always_inline))
#define VEC(pointer) (*(vec *)(pointer))

INLINE idx clamp(idx x, idx low, idx high) { return x < low ? low : x > high ? high : x; }
INLINE idx round_up(idx x, idx multiple) { return (x + multiple - 1) / multiple * multiple; }

INLINE vec splat(real x) { return x - (vec){0}; }

INLINE vec blend(ivec condition, vec if_true, vec if_false) {
    return (vec)((condition & (ivec)if_true) | (~condition & (ivec)if_false));
}

INLINE ivec lane_indices(integer first) {
    ivec lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = first + i;
    return lanes;
}

#endif
