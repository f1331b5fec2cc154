/* The arguments of the decoder kernel. `library.py` reads these structures, so every line of one is `type names;`.

   head_dim, the outputs of maps and the rows of all buffers are padded to multiples of 16 (PADDING). Padding of
   weights, biases and values is zero, so that it changes no sum. */

#ifndef RELATTN_DECODER_H
#define RELATTN_DECODER_H

#include "vectors.h" /* real, idx */

/* y = x W + b */
typedef struct {
    /* (outputs / PANEL, inputs, PANEL) */
    const real *weight;
    /* (outputs,), to the end of the last panel */
    const real *bias;
    idx inputs, outputs;
} map;

typedef struct {
    /* (dim,) */
    const real *weight, *bias;
} norm;

typedef struct {
    norm self_norm, cross_norm, feed_norm;
    /* `self_in` makes queries, keys and values of all heads; queries are scaled by log2(e) / sqrt(head_dim) */
    map self_in, self_out, cross_query, cross_out, feed_in, feed_out;
    /* terms by label, where label l is the distance l - left: of scores (heads, labels / PANEL, head_dim, PANEL), of
       outputs (heads, labels, head_dim), and biases of scores (heads, strip), in units of the scores; or NULL */
    const real *rel_key, *rel_value, *rel_bias;
    /* 0 if heads share a table */
    idx rel_key_head, rel_value_head;
    /* (sources, heads): keys (head_dim, src_len) and values (src_len, head_dim) */
    const real *memory;
} layer;

typedef struct {
    const layer *layers;
    norm final_norm;
    map output;
    /* (vocab, dim) */
    const real *embedding;
    /* (dim,), added to the embeddings, or NULL */
    const real *signal;
    /* (2, rotary_dim): cosines and sines, or NULL */
    const real *rotation;
    /* blocks of BLOCK positions of the cache, each (at least rows, layers, heads): keys (head_dim, BLOCK) and values
       (BLOCK, head_dim) */
    const void *blocks;
    /* (rows,) the pieces at `position`; (rows / per_source,) and (sources,) */
    const int64_t *tokens, *sources, *src_lengths;
    /* (rows, vocab), or NULL */
    real *logits;
    /* (rows, best): log-probabilities, in falling order, and their tokens */
    real *values;
    int64_t *candidates;
    /* (banned_count,) tokens that are no candidates; (rows,) the only candidate of a row, or -1; or NULL */
    const int64_t *banned, *only;
    /* see relattn_space */
    real *space;
    idx rows, per_source, position, src_len, vocab, dim, heads, head_dim, rotary_dim, layer_count, best;
    /* label `left` is distance 0; with `clips`, label 0 is also for all keys farther to the left */
    idx left, clips, banned_count, pre_norm, activation, rotates_values;
    real embedding_scale, epsilon;
} arguments;

/* A sub-layer without its attention, for rows of (…, dim): x or its norm through one map or two, with an activation
   between them, to another array or added to it, and that normalized. Norms and the second map may have no data. */
typedef struct {
    norm input_norm, output_norm;
    map first, second;
    const real *x;
    real *to, *space;
    idx rows, x_row, to_row, dim, activation, add;
    real epsilon;
} sublayer;

/* The arguments of a beam search: those of its steps that are the same in all of them, and those of `search/beam.py`. */
typedef struct {
    arguments step;
    /* (capacity, dim) and (capacity, 2, rotary_dim): `signal` and `rotation` by position; or NULL */
    const real *signals, *rotations;
    /* (sentences,) numbers of generated tokens, at most the capacity */
    const int64_t *limits;
    /* (capacity + 2,) length penalty by length */
    const real *penalties;
    /* (sentences, beam, capacity) finished hypotheses, best first, each with its end, and their scores; -inf: none */
    int64_t *tokens;
    real *scores;
    idx sentences, capacity, beam, best, early_stopping, bos, eos;
} search;

#endif
