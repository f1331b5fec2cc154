/* Relation-aware attention for processors: one pass forward, one pass backward, nothing queries x keys in memory.

   e_ij = scale (q_i . k_j + r_i . aK_ij)      p_ij = exp(e_ij - lse_i)      z_i = sum_j p_ij (v_j + aV_ij)

   where r_i is q_i unless it is given.

   Tiles of ROWS queries by KEYS keys, with the softmax kept as it goes (Milakov and Gimelshein 2018; Dao et al. 2022).
   The relative term of a row comes from a strip of scores, one per label:

       strip of a row:   | margin x left edge | labels that ROWS queries reach | margin x right edge |

   with margins as wide as a tile. Those reached are all of a narrow window, and about one for each key of a wide one. The terms of a tile's keys are one contiguous run of it, wherever the tile stands,
   since a step to the next key is a step to the next label and edges repeat. Probabilities are added onto the same
   runs, into a strip of masses. Labels of the caller's (relations) are read and added one by one in the same strips;
   the slot before label 0 is for pairs that have none.

   All arithmetic is in the build's number, but for the products that `products.h` makes of bfloat16. Half types are
   widened as they are read and rounded as they are written. */

#define _GNU_SOURCE /* RTLD_DEFAULT in older C libraries */
#include <sys/mman.h>

#include "forward.h"
#include "backward.h"

/* Asks for a result's memory in large pages, where a program can (Linux): 4 KiB at a time, finding it costs as much as
   a short row's attention. */
static void in_large_pages(const arguments *a, const array *x, idx heads, idx count, idx dim) {
    const uintptr_t page = 1 << 21, start = ((uintptr_t)x->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)x->data + size_of(a->type) * a->batch * heads * count * dim) / page * page;
#ifdef MADV_HUGEPAGE
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
#endif
}

/* Whether this system runs these kernels. */
int relattn_usable(void) { return may_multiply(); }

int relattn_forward(const arguments *a) {
    in_large_pages(a, &a->output, a->heads, a->queries, a->value_dim);
    return together(a, forward_worker);
}

int relattn_backward(const arguments *a) {
    in_large_pages(a, &a->d_query, a->heads, a->queries, a->dim);
    in_large_pages(a, &a->d_key, a->key_heads, a->keys, a->dim);
    in_large_pages(a, &a->d_value, a->key_heads, a->keys, a->value_dim);
    return together(a, backward_worker);
}

const uint32_t relattn_checksum = CHECKSUM; /* of `arguments.h` */
