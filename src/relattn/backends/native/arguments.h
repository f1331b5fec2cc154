/* The arguments of a kernel: those of relattn.call.Call by the same names, beside sizes and results.

   They are written down here alone: `library.py` reads these structures too, so every line of one is `type names;`.
   An object holds the checksum of the text that it was compiled with, and is not used with any other. */

#ifndef RELATTN_ARGUMENTS_H
#define RELATTN_ARGUMENTS_H

#include "vectors.h" /* real, idx */

/* Where a tensor lies: its strides are counted in elements, and its last dimension is contiguous. */
typedef struct {
    void *data;
    idx batch, head, row;
} array;

typedef struct {
    /* (batch, heads, rows, dim) in `type`; key and value have key_heads heads; a rel_query may have no data */
    array query, key, value, rel_query, output, grad, d_query, d_key, d_value, d_rel_query;
    /* (1, heads, labels, rel_dim, value_dim or dim) in `type`, stride 0 where heads share one; no data where there is
       none */
    array rel_key, rel_value, pos_query;
    /* (batch, heads, queries) in the build's number */
    array lse;
    /* one byte per pair, (batch, heads, queries, keys), strides 0 where broadcast; no data where there is none */
    array mask;
    /* as the mask; integers of `relations_size` bytes */
    array relations;
    /* (shares, heads, labels, padded dim) in the build's number, zeros at first */
    real *d_rel_key, *d_rel_value, *d_pos_query;
    /* (batch,), or NULL */
    const int64_t *query_offsets, *key_lengths, *query_lengths;
    idx batch, heads, key_heads, queries, keys, dim, value_dim, rel_dim, labels, relations_size, type, threads;
    /* parts of the batch whose heads have gradients of the tables of their own */
    idx shares;
    idx query_offset, left, clips, is_causal;
    /* number of keys in the window before and after the first position of a query's chunk; -1: no limit */
    idx window_left, window_right, chunk;
    /* a pair is kept where its draw from [0, 2^24) is below the threshold, and multiplied by the scale: 1 / (1 - p) */
    idx keep_threshold;
    real scale, keep_scale;
    uint64_t seed;
} arguments;

#endif
