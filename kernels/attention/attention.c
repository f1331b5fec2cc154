/* Relation-aware attention for CPUs. The forward and the backward pass each run once over tiles, and no array of size
   queries x keys is stored.

   e_ij = scale (q_i . k_j + r_i . aK_ij) + B_ij      p_ij = exp(e_ij - lse_i)      z_i = sum_j p_ij (v_j + aV_ij)

   where r_i is rel_query if the call has one, and q_i otherwise, and B_ij is the bias per pair, if the call has one.

   A tile has QUERIES queries and KEYS keys. The softmax is computed online (Milakov and Gimelshein 2018; Dao et al. 2022).
   The relative terms of a row come from a strip with one score per label:

       strip of a row:   | margin: left edge | labels that QUERIES queries reach | margin: right edge |

   A margin is as wide as a tile. If the clipping range is narrow, the queries reach all of its labels; if it is wide,
   about one label per key. The label increases by one from key to key, and the edge labels repeat. So the terms of a
   tile's keys are a contiguous slice of the strip, or a single number if all keys are beyond an edge. Probabilities are
   summed by label in slices of a second strip, the label sums. With relations, the slots of the strips are read and
   updated one by one. Pairs without a label use the slot before label 0.

   Each row of a tile is processed once, in registers. Scores are in units of log2(e): a score becomes 2^(score - base),
   and the base of a row is raised only if a score exceeds it by more than MAX_RISE (`forward.h`).

   All arithmetic is in `real`, except the products of bfloat16 numbers in `operands.h`. Half types are converted to
   `real` when they are read, and rounded when they are written. */

#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include <sys/mman.h>

#include "forward.h"
#include "backward.h"
#if !defined(REAL64) && !defined(BF16)
#include "linear.h"
#endif

/* Ask Linux for large pages for the memory of a result. With pages of 4 KiB, page faults take as long as the attention
   of short sequences. */
static void advise_large_pages(const arguments *a, const array *x, idx heads, idx count, idx dim) {
    const uintptr_t page = 1 << 21, start = ((uintptr_t)x->data + page - 1) / page * page;
    const idx rows = a->cu_seqlens ? a->cu_seqlens[a->batch] : a->batch * count;
    const uintptr_t end = ((uintptr_t)x->data + size_of(a->type) * heads * rows * dim) / page * page;
#ifdef MADV_HUGEPAGE
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
#endif
}

static ptrdiff_t forward(const arguments *a) {
    advise_large_pages(a, &a->output, a->heads, a->queries, a->value_dim);
    return run_threads(a, a->threads, forward_worker) ? RELATTN_NO_MEMORY : 0;
}

static ptrdiff_t backward(const arguments *a) {
    advise_large_pages(a, &a->d_query, a->heads, a->queries, a->dim);
    advise_large_pages(a, &a->d_key, a->key_heads, a->keys, a->dim);
    advise_large_pages(a, &a->d_value, a->key_heads, a->keys, a->value_dim);
    const idx key_size = table_sums_size(a, &a->d_rel_key, a->rel_dim),
              value_size = table_sums_size(a, &a->d_rel_value, a->value_dim),
              size = key_size + value_size + table_sums_size(a, &a->d_pos_query, a->dim);
    real *sums = aligned_alloc(64, sizeof(real) * (size + PADDING));
    if (!sums) return RELATTN_NO_MEMORY;
    arguments with_sums = *a;
    if (a->d_rel_key.data) with_sums.d_rel_key.data = sums;
    if (a->d_rel_value.data) with_sums.d_rel_value.data = sums + key_size;
    if (a->d_pos_query.data) with_sums.d_pos_query.data = sums + key_size + value_size;
    const int failed = run_threads(&with_sums, a->threads, backward_worker);
    if (!failed) {
        write_table_gradient(a, &a->d_rel_key, sums, a->rel_dim);
        write_table_gradient(a, &a->d_rel_value, sums + key_size, a->value_dim);
        write_table_gradient(a, &a->d_pos_query, sums + key_size + value_size, a->dim);
    }
    free(sums);
    return failed ? RELATTN_NO_MEMORY : 0;
}

static const relattn_kernels kernels = {
    .level = LEVEL_NAME,
    .panel = PANEL,
    .forward = forward,
    .backward = backward,
#if !defined(REAL64) && !defined(BF16)
    .int8_kernels = INT8_KERNELS,
    .linear = linear,
    .pack = pack,
#endif
};

const void *const PART = &kernels; /* relattn_avx512_float32, for instance; `levels.c` chooses one */
