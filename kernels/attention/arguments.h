/* The arguments of a kernel: those of relattn.call.Call, with the same names, and sizes and results.

   `library.py` reads these structures too, so that each field is declared only once. Every line of a structure must be
   `type names;`. An object file holds the checksum of the header that it was compiled with. It is rejected if the
   header differs. */

#ifndef RELATTN_ARGUMENTS_H
#define RELATTN_ARGUMENTS_H

#include "../simd/vectors.h" /* real, idx */

/* The address and the strides of a tensor. Strides are in elements, and the last dimension is contiguous. */
typedef struct {
    void *data;
    idx batch_stride, head_stride, row_stride;
} array;

typedef struct {
    /* (batch, heads, rows, dim) of dtype `type`; key and value have key_heads heads; data of rel_query may be NULL */
    array query, key, value, rel_query, output, grad, d_query, d_key, d_value, d_rel_query;
    /* (1, heads, labels, rel_dim, value_dim or dim) of dtype `type`; head_stride is 0 if heads share a table; data is
       NULL without a table */
    array rel_key, rel_value, pos_query;
    /* (batch, heads, queries) of dtype `real`; data is NULL if it is not needed */
    array lse;
    /* (batch, heads, queries, keys), one byte per pair; strides are 0 in broadcast dimensions; data is NULL without a
       mask */
    array mask;
    /* like the mask, with integers of `relations_size` bytes */
    array relations;
    /* like the mask, of dtype `type` */
    array bias;
    /* like the bias, of dtype `real`, initialized to zero; rows are padded; data is NULL if the gradient is not needed */
    array d_bias;
    /* (2, batch, heads, padded queries): base of each row and log2 of its sum of 2^(score - base); NULL if not needed */
    real *row_stats;
    /* (splits, heads, labels, padded dim) of dtype `real`, initialized to zero */
    real *d_rel_key, *d_rel_value, *d_pos_query;
    /* (batch,), or NULL */
    const int64_t *query_offsets, *key_lengths, *query_lengths;
    idx batch, heads, key_heads, queries, keys, dim, value_dim, rel_dim, labels, relations_size, type, threads;
    /* number of parts of the batch; each part has separate table gradients, and a separate gradient of a bias that
       sequences share, after `d_bias_split_stride` elements */
    idx splits, d_bias_split_stride;
    idx query_offset, left, clips, is_causal;
    /* number of keys in the window before and after the first position of a query's chunk; -1: no limit */
    idx window_left, window_right, chunk;
    /* dropout keeps a pair if its random number from [0, 2^24) is below keep_threshold, and multiplies its weight by
       keep_scale = 1 / (1 - p) */
    idx keep_threshold;
    real scale, keep_scale;
    uint64_t seed;
} arguments;

/* A linear layer in 8 bits: to (rows, outputs) = x (rows, inputs) W + b */
typedef struct {
    const real *x;
    real *to;
    /* in panels, as `int8.h` describes; the bias, scales and sums are allocated to the end of the last panel */
    const void *weight;
    const real *bias, *scales;
    const int32_t *sums;
    const real *factors; /* (inputs,), with which x is multiplied first, or NULL */
    /* workspace: (rows, inputs rounded up to 16) bytes, and (rows, 2) */
    void *codes;
    real *row_scales;
    idx rows, x_row, inputs, outputs, kernel, threads;
} linear;

#endif
