/* The arguments of the decoder kernel. `library.py` reads these structures, so every line of one is `type names;`.

   head_dim, the outputs of maps and the row lengths of all buffers are padded to multiples of 16 (PADDING). The padding
   of weights, biases and values is zero, so that it does not change sums. */

#ifndef RELATTN_DECODER_H
#define RELATTN_DECODER_H

#include "vectors.h" /* real, idx */

enum { RELU, GELU, GELU_TANH, GELU_SIGMOID, SWISH }; /* activations; here, so that the checksum of objects covers them */

/* y = x W + b */
typedef struct {
    /* (outputs / PANEL, inputs, PANEL), or in 8 bits as `int8.h` describes */
    const void *weight;
    /* (outputs,), allocated to the end of the last panel */
    const real *bias;
    /* the same for 8 bits: scales of outputs, and numbers that `int8.h` describes */
    const real *scales;
    const int32_t *sums;
    /* kernel: 0 in float32, or a kernel of `int8.h` */
    idx inputs, outputs, kernel;
} map;

typedef struct {
    /* (dim,) */
    const real *weight, *bias;
} norm;

typedef struct {
    norm self_norm, cross_norm, feed_norm;
    /* `self_in` computes queries, keys and values of all heads; queries are scaled by log2(e) / sqrt(head_dim). With
       `ssru`, it computes the forget gates and the values of an SSRU, and there is no `self_out` */
    map self_in, self_out, cross_query, cross_out, feed_in, feed_out;
    /* relative tables by label, or NULL; label l is the distance l - left. rel_key (heads, labels / PANEL, head_dim,
       PANEL), rel_value (heads, labels, head_dim), and rel_bias (heads, strip_len) in the units of the scores */
    const real *rel_key, *rel_value, *rel_bias;
    /* strides of heads in rel_key and rel_value, 0 if heads share a table */
    idx rel_key_head, rel_value_head;
    /* (sources, heads): keys (head_dim, src_len) and values (src_len, head_dim) */
    const real *memory;
} layer;

typedef struct {
    const layer *layers;
    norm final_norm;
    map output;
    /* (vocab, dim), or NULL: the embeddings are the weights of the outputs of a map in 8 bits */
    const real *embedding;
    map embedding_map;
    /* (positions, dim), added to the embeddings, or NULL */
    const real *signal;
    /* (positions, 2, rotary_dim): cosines and sines, or NULL */
    const real *rotation;
    /* blocks of BLOCK positions of the cache, each (at least rows, layers, heads): keys (head_dim, BLOCK) and values
       (BLOCK, head_dim); with `ssru`, one block (at least rows, layers, padded dim) of states */
    const void *blocks;
    /* (rows,) the tokens at `position`, in an encoder (rows, src_len) the tokens of the sources; (rows / per_source,) the
       source of each group of rows; (sources,) */
    const int64_t *tokens, *sources, *src_lengths;
    /* (rows, src_len, dim), the output of an encoder; NULL: a decoder. An encoder has no cross-attention */
    real *encoded;
    /* (rows, vocab), or NULL */
    real *logits;
    /* (rows, src_len) mean weights of the heads of a layer's cross-attention, or NULL */
    real *attention;
    /* (rows, best) log-probabilities in descending order; (rows,) log-sums of the logits, or NULL; (rows, best) tokens */
    real *values, *log_sums;
    int64_t *candidates;
    /* (banned_count,) tokens that are excluded, and (rows,) the forced token of a row, or -1; either may be NULL */
    const int64_t *banned, *only;
    /* workspace of the size that relattn_space returns */
    real *space;
    idx rows, per_source, position, src_len, vocab, dim, heads, head_dim, rotary_dim, layer_count, attention_layer, best;
    /* label `left` is distance 0, and left + right is the last; with `clips`, it is also that of keys farther to the right,
       and label 0 that of keys farther to the left */
    idx left, right, clips, banned_count, pre_norm, activation, ssru;
    real embedding_scale, epsilon;
} arguments;

/* The keys and values of sources in all layers. `to` (layers, sources, heads, 2) has keys (head_dim, row_len) and values
   (row_len, head_dim) for the rows (sources, src_len) of x. `space` has the size that relattn_memory_space returns. */
typedef struct {
    /* the keys of all heads, then their values, of all layers */
    map keys_values;
    const real *x;
    real *to, *space;
    idx rows, x_row, src_len, row_len, layer_count, heads, head_dim;
} memory;

/* The arguments of a beam search: those that are the same in all steps, and those of `search/beam.py`. */
typedef struct {
    arguments step;
    /* (sentences,) maximum numbers of generated tokens, at most the capacity */
    const int64_t *limits;
    /* (capacity + 2,) length penalty by length */
    const real *penalties;
    /* (sentences, beam, capacity) finished hypotheses with their end token, best first, and their scores; -inf: none */
    int64_t *tokens;
    real *scores;
    /* (given_count,) first tokens of all hypotheses, with probability 1 */
    const int64_t *given;
    /* early_stopping: 0 for false, 1 for true, 2 for "heuristic" */
    idx sentences, capacity, beam, best, early_stopping, bos, eos, given_count;
} search;

#endif
