/* The compiled kernels of relattn: attention forward and backward, and linear layers in 8 bits, on CPUs.

   `relattn_open` chooses the kernels for this processor and a dtype. The caller owns all memory; the kernels allocate
   workspaces while they run. `build.py` reads this file for Python, so every line of a structure is `type names;` or a
   function. */

#ifndef RELATTN_H
#define RELATTN_H

#include <stddef.h>
#include <stdint.h>

enum { RELATTN_FLOAT32, RELATTN_FLOAT64, RELATTN_BFLOAT16 }; /* what kernels compute in; bfloat16 sums are in float32 */
enum { /* error codes */
    RELATTN_NO_MEMORY = -1, /* for a workspace */
    RELATTN_WRONG_LEVEL = -2,
    RELATTN_NO_KERNELS = -3, /* for this processor and dtype */
};

/* The address and the strides of a tensor. Strides are in elements, and the last dimension is contiguous. */
typedef struct {
    void *data;
    ptrdiff_t batch_stride, head_stride, row_stride;
} relattn_array;

/* The arguments of attention: those of relattn.call.Call, with the same names, and sizes and results. `real` is float, in
   float64 double. */
typedef struct {
    /* (batch, heads, rows, dim) of dtype `type`: 0 for `real`, 1 for bfloat16, 2 for float16. The keys and values have
       key_heads heads. data of rel_query may be NULL */
    relattn_array query, key, value, rel_query, output, grad, d_query, d_key, d_value, d_rel_query;
    /* (1, heads, labels, rel_dim, value_dim or dim) of dtype `type`; head_stride is 0 if heads share a table; data is
       NULL without a table */
    relattn_array rel_key, rel_value, pos_query, d_rel_key, d_rel_value, d_pos_query;
    /* (batch, heads, queries) of dtype `real`; data is NULL if it is not needed */
    relattn_array lse;
    /* (batch, heads, queries, keys), one byte per pair; strides are 0 in broadcast dimensions; data is NULL without a
       mask */
    relattn_array mask;
    /* like the mask, with integers of `relations_size` bytes */
    relattn_array relations;
    /* like the mask, of dtype `type` */
    relattn_array bias;
    /* like the bias, of dtype `real`, initialized to zero; rows are padded; data is NULL if the gradient is not needed */
    relattn_array d_bias;
    /* (2, batch, heads, padded queries) of dtype `real`: base of each row and log2 of its sum of 2^(score - base); NULL if
       not needed */
    void *row_stats;
    /* (batch,), or NULL */
    const int64_t *query_offsets, *key_lengths, *query_lengths;
    /* (batch + 1,): cumulative lengths of packed sequences, or NULL. Then the rows of all sequences are one after another
       in the arrays, whose batch_stride is not used; `queries` and `keys` are the length of the longest; row_stats has a
       batch of 1 and the queries of all sequences, rounded down to a multiple of 16, and 16 more per sequence; mask,
       relations and bias are NULL */
    const int64_t *cu_seqlens;
    ptrdiff_t batch, heads, key_heads, queries, keys, dim, value_dim, rel_dim, labels, relations_size, type, threads;
    /* number of parts of the batch; each part has separate sums of table gradients, and a separate gradient of a bias that
       sequences share, after `d_bias_split_stride` elements */
    ptrdiff_t splits, d_bias_split_stride;
    ptrdiff_t query_offset, left, clips, is_causal;
    /* number of keys in the window before and after the first position of a query's chunk; -1: no limit */
    ptrdiff_t window_left, window_right, chunk;
    /* dropout keeps a pair if its random number from [0, 2^24) is below keep_threshold, and multiplies its weight by
       keep_scale = 1 / (1 - p) */
    ptrdiff_t keep_threshold;
    double scale, keep_scale;
    uint64_t seed;
} relattn_attention;

/* A linear layer in 8 bits: to (rows, outputs) = x (rows, inputs) W + b */
typedef struct {
    const float *x;
    float *to;
    /* in panels, as `int8.h` describes; the bias, scales and sums are allocated to the end of the last panel */
    const void *weight;
    const float *bias, *scales;
    const int32_t *sums;
    /* (inputs,), with which x is multiplied first, or NULL */
    const float *factors;
    /* workspace: (rows, inputs rounded up to 16) bytes, and (rows, 2) */
    void *codes;
    float *row_scales;
    ptrdiff_t rows, x_row, inputs, outputs, kernel, threads;
} relattn_linear;

/* The kernels for a processor level and a dtype. Functions return 0 or an error code. */
typedef struct {
    const char *level;
    /* number of outputs per panel; sum of 1 << kernel of the kernels for int8 that this processor runs */
    ptrdiff_t panel, int8_kernels;
    ptrdiff_t (*forward)(const relattn_attention *);
    ptrdiff_t (*backward)(const relattn_attention *);
    /* in float32 only */
    ptrdiff_t (*linear)(const relattn_linear *);
    /* pack codes of weights (outputs, inputs), as `int8.h` describes */
    ptrdiff_t (*pack)(int8_t *panels, int32_t *sums, const int8_t *codes, ptrdiff_t outputs, ptrdiff_t inputs);
} relattn_kernels;

#ifdef __cplusplus
extern "C" {
#endif

/* Choose the kernels for this processor that compute in a dtype. `level` lowers the processor level as the environment
   variable RELATTN_LEVEL does, which is read if it is NULL. Errors are explained in `message`, which has at least 256
   bytes. */
int relattn_open(int dtype, const char *level, relattn_kernels *kernels, char *message);

#ifdef __cplusplus
}
#endif

#endif
