/* The compiled engine of relattn-mt: a Transformer's encoder and decoder, and beam search, on CPUs, in float32 or int8.
   `examples/translate.c` is a program that uses it.

   1. `relattn_mt_open` chooses the kernels for this processor.
   2. `pack` brings the weight of each linear layer into the form of these kernels.
   3. `encode` runs the encoder, and `memory` computes the keys and values of its output for all layers of the decoder.
   4. `search` translates, or `step` computes the next tokens of some hypotheses, and `move` reorders their caches. Scores
      of given translations are steps with `only`, and alignments are steps with `attention`.

   The caller owns all memory; only `search` allocates some while it runs. Functions return a number, or an error code,
   which is negative. Threads may share everything except for results and workspaces. A result depends on its sentence
   only: not on the rest of the batch, to the last bit.

   head_dim, the outputs of maps and the row lengths of all buffers are padded to multiples of 16. The padding of weights,
   biases and values is zero, so that it does not change sums. `build.py` reads this file for Python, so every line of a
   structure is `type names;` or a function. A change to a structure changes RELATTN_MT_INTERFACE. */

#ifndef RELATTN_MT_H
#define RELATTN_MT_H

#include <stddef.h>
#include <stdint.h>

enum { RELATTN_MT_INTERFACE = 4 };
enum { RELATTN_MT_RELU, RELATTN_MT_GELU, RELATTN_MT_GELU_TANH, RELATTN_MT_GELU_SIGMOID, RELATTN_MT_SWISH }; /* activations */
enum { RELATTN_MT_FLOAT, RELATTN_MT_GENERIC, RELATTN_MT_PAIRS, RELATTN_MT_DOTS }; /* kernels of maps, see `int8.h` */
enum { /* error codes */
    RELATTN_MT_NO_MEMORY = -1,
    RELATTN_MT_NOT_FINITE = -2, /* a weight */
    RELATTN_MT_WRONG_INTERFACE = -3,
    RELATTN_MT_WRONG_LEVEL = -4,
    RELATTN_MT_NO_KERNELS = -5, /* for this processor */
};

/* y = x W + b */
typedef struct {
    /* (outputs / PANEL, inputs, PANEL), or in 8 bits as `int8.h` describes */
    const void *weight;
    /* (outputs,), allocated to the end of the last panel */
    const float *bias;
    /* the same for 8 bits: scales of outputs, and numbers that `int8.h` describes */
    const float *scales;
    const int32_t *sums;
    /* kernel: 0 in float32, or a kernel of `int8.h` */
    ptrdiff_t inputs, outputs, kernel;
} relattn_mt_map;

typedef struct {
    /* (dim,); without a bias, it divides by the root of the mean square */
    const float *weight, *bias;
} relattn_mt_norm;

typedef struct {
    relattn_mt_norm self_norm, cross_norm, feed_norm;
    /* `self_in` computes queries, keys and values of all heads; queries are scaled by log2(e) / sqrt(head_dim). With
       `ssru`, it computes the forget gates and the values of an SSRU, and there is no `self_out` */
    relattn_mt_map self_in, self_out, cross_query, cross_out, feed_in, feed_out;
    /* the first output of `feed_in`, at the beginning of a panel, whose outputs multiply the activations; 0: none */
    ptrdiff_t feed_gate;
    /* relative tables by label, or NULL; label l is the distance l - left. rel_key (heads, labels / PANEL, head_dim,
       PANEL), rel_value (heads, labels, head_dim), and rel_bias (heads, strip_len) in the units of the scores */
    const float *rel_key, *rel_value, *rel_bias;
    /* strides of heads in rel_key and rel_value, 0 if heads share a table */
    ptrdiff_t rel_key_head, rel_value_head;
    /* (sources, heads): keys (head_dim, src_len) and values (src_len, head_dim) */
    const float *memory;
} relattn_mt_layer;

typedef struct {
    const relattn_mt_layer *layers;
    /* of the embeddings, without a weight if there is none, and of the output */
    relattn_mt_norm embedding_norm, final_norm;
    relattn_mt_map output;
    /* (vocab, dim), or NULL: the embeddings are the weights of the outputs of a map in 8 bits */
    const float *embedding;
    relattn_mt_map embedding_map;
    /* (sources,) the outputs of `shortlist`, made by `search`, or NULL: all pieces of the vocabulary */
    const relattn_mt_map *short_outputs;
    /* the tokens that may be generated for each source, in rising order, and (sources + 1,) where they begin; or NULL.
       They must include the end and the given tokens, and no banned ones */
    const int64_t *shortlist, *shortlist_begins;
    /* (positions, dim), added to the embeddings, or NULL */
    const float *signal;
    /* (positions, 2, rotary_dim): cosines and sines, or NULL */
    const float *rotation;
    /* blocks of BLOCK positions of the cache, each (at least rows, layers, heads): keys (head_dim, BLOCK) and values
       (BLOCK, head_dim); with `ssru`, one block (at least rows, layers, padded dim) of states */
    const void *blocks;
    /* (rows,) the tokens at `position`, in an encoder (rows, src_len) the tokens of the sources; (rows / per_source,) the
       source of each group of rows; (sources,) */
    const int64_t *tokens, *sources, *src_lengths;
    /* (rows, src_len, dim), the output of an encoder; NULL: a decoder. An encoder has no cross-attention */
    float *encoded;
    /* (rows, vocab), or NULL */
    float *logits;
    /* (rows, src_len) mean weights of the first `attention_heads` heads of a layer's cross-attention, or NULL */
    float *attention;
    /* (rows, best) log-probabilities in descending order; (rows,) log-sums of the logits, or NULL; (rows, best) tokens */
    float *values, *log_sums;
    int64_t *candidates;
    /* (banned_count,) tokens that are excluded, and (rows,) the forced token of a row, or -1; either may be NULL */
    const int64_t *banned, *only;
    /* workspace of the size that `space` returns */
    float *space;
    ptrdiff_t rows, per_source, position, src_len, vocab, dim, heads, head_dim, rotary_dim, layer_count, best;
    /* label `left` is distance 0, and left + right is the last; with `clips`, it is also that of keys farther to the right,
       and label 0 that of keys farther to the left */
    ptrdiff_t left, right, clips, banned_count, pre_norm, activation, ssru, attention_layer, attention_heads;
    float embedding_scale, epsilon;
} relattn_mt_step;

/* The keys and values of sources in all layers. `to` (layers, sources, heads, 2) has keys (head_dim, row_len) and values
   (row_len, head_dim) for the rows (sources, src_len) of x. `space` has the size that `memory_space` returns. */
typedef struct {
    /* the keys of all heads, then their values, of all layers */
    relattn_mt_map keys_values;
    const float *x;
    float *to, *space;
    ptrdiff_t rows, x_row, src_len, row_len, layer_count, heads, head_dim;
} relattn_mt_memory;

/* The arguments of a beam search: those that are the same in all steps, and those of `search/beam.py`. */
typedef struct {
    relattn_mt_step step;
    /* (sentences,) maximum numbers of generated tokens, at most the capacity */
    const int64_t *limits;
    /* (capacity + 2,) length penalty by length */
    const float *penalties;
    /* (sentences, beam, capacity) finished hypotheses with their end token, best first, and their scores; -inf: none */
    int64_t *tokens;
    float *scores;
    /* (given_count,) first tokens of all hypotheses, with probability 1 */
    const int64_t *given;
    /* early_stopping: 0 for false, 1 for true, 2 for "heuristic" */
    ptrdiff_t sentences, capacity, beam, best, early_stopping, bos, eos, given_count;
} relattn_mt_search;

/* A weight (outputs, inputs) to be packed: in float32, or in 8 bits with a scale per output. */
typedef struct {
    const void *weight;
    /* (outputs,); scales are NULL in float32, and the bias may be NULL */
    const float *bias, *scales;
    /* of the size that `pack` returns if it is NULL, aligned to 64 bytes */
    void *buffer;
    ptrdiff_t inputs, outputs, kernel;
    /* bias of the outputs that are added to complete a panel: -inf for logits */
    float end_bias;
    /* the result, which points into `buffer` */
    relattn_mt_map map;
} relattn_mt_packing;

/* The functions for a processor level. */
typedef struct {
    const char *level;
    /* number of outputs per panel; sum of 1 << kernel of the kernels for int8 that this processor runs */
    ptrdiff_t panel, int8_kernels;
    /* with `buffer`, write `map`; return the size of `buffer` in bytes, or an error code. If the codes of a weight are
       beyond the range of PAIRS, its map gets the kernel GENERIC */
    ptrdiff_t (*pack)(relattn_mt_packing *);
    /* sizes of workspaces, in floats; that of `encode` is `space` too */
    ptrdiff_t (*space)(const relattn_mt_step *);
    ptrdiff_t (*memory_space)(const relattn_mt_memory *);
    ptrdiff_t (*encode)(const relattn_mt_step *);
    ptrdiff_t (*memory)(const relattn_mt_memory *);
    ptrdiff_t (*step)(const relattn_mt_step *);
    /* copy rows of the cache to other rows; no row may be both a source and a target */
    ptrdiff_t (*move)(const relattn_mt_step *, const int64_t *from, const int64_t *to, ptrdiff_t count);
    /* return the number of steps. A sentence whose log-probabilities are NaN ends, and its first score becomes NaN */
    ptrdiff_t (*search)(const relattn_mt_search *);
} relattn_mt_engine;

#ifdef __cplusplus
extern "C" {
#endif

/* Choose the functions for this processor. `interface` is RELATTN_MT_INTERFACE. `level` lowers the processor level as the
   environment variable RELATTN_LEVEL does, which is read if it is NULL. Errors are explained in `message`, which has at
   least 256 bytes. */
int relattn_mt_open(int interface, const char *level, relattn_mt_engine *engine, char *message);

/* Return the meaning of an error code. */
const char *relattn_mt_message(ptrdiff_t code);

#ifdef __cplusplus
}
#endif

#endif
