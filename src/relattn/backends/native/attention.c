/* Relation-aware attention for CPUs: one pass forward, one pass backward, and nothing of size queries x keys in memory.

   e_ij = scale (q_i . k_j + r_i . aK_ij)      p_ij = exp(e_ij - lse_i)      z_i = sum_j p_ij (v_j + aV_ij)

   where r_i is q_i, or rel_query if it is given.

   Tiles of ROWS queries by KEYS keys, with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022). The
   relative terms of a row come from a strip of scores, one per label:

       strip of a row:   | margin: left edge | labels that ROWS queries reach | margin: right edge |

   A margin is as wide as a tile. The queries reach all labels of a narrow clipping range, and about one label per key
   of a wide one. The next key has the next label, and edges repeat. So the terms of a tile's keys are one contiguous
   run of the strip, wherever the tile is, or one number if all keys are beyond an edge. Probabilities are added to the
   same runs of a strip of masses. With relations, labels are read and added one by one in the same strips; pairs
   without a label use the slot before label 0.

   The rows of a tile are processed in one pass, in registers, in powers of 2: a score becomes 2^(score - base), where
   the base of a row is raised only if a score is more than RISE above it (`forward.h`).

   All arithmetic is in `real`, except the products of bfloat16 numbers in `products.h`. Half types are widened when
   they are read and rounded when they are written. */

#define _GNU_SOURCE /* RTLD_DEFAULT in older C libraries */
#include <sys/mman.h>

#include "forward.h"
#include "backward.h"

/* Ask for large pages for the memory of a result (Linux). In pages of 4 KiB, page faults cost as much as the attention
   of short sequences. */
static void in_large_pages(const arguments *a, const array *x, idx heads, idx count, idx dim) {
    const uintptr_t page = 1 << 21, start = ((uintptr_t)x->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)x->data + size_of(a->type) * a->batch * heads * count * dim) / page * page;
#ifdef MADV_HUGEPAGE
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
#endif
}

/* Whether this system can run these kernels. */
int relattn_usable(void) { return may_multiply(); }

int relattn_forward(const arguments *a) {
    in_large_pages(a, &a->output, a->heads, a->queries, a->value_dim);
    return run_threads(a, forward_worker);
}

int relattn_backward(const arguments *a) {
    in_large_pages(a, &a->d_query, a->heads, a->queries, a->dim);
    in_large_pages(a, &a->d_key, a->key_heads, a->keys, a->dim);
    in_large_pages(a, &a->d_value, a->key_heads, a->keys, a->value_dim);
    return run_threads(a, backward_worker);
}

const uint32_t relattn_checksum = CHECKSUM; /* of `arguments.h` */
