/* The names of the engine, its block sizes, and the buffers of a step. */

#ifndef RELATTN_WORKSPACE_H
#define RELATTN_WORKSPACE_H

#include "../simd/products.h"
#include "relattn_mt.h"

typedef relattn_mt_map map;
typedef relattn_mt_norm norm;
typedef relattn_mt_layer layer;
typedef relattn_mt_step step_arguments;
typedef relattn_mt_memory source_memory;
typedef relattn_mt_search search;

enum { RELU, GELU, GELU_TANH, GELU_SIGMOID, SWISH }; /* activations, as in `relattn_mt.h` */
enum { PADDING = 16, BLOCK = 16 };
enum { MARGIN = 16 };                  /* slots of a strip before label 0, and after the last label */
enum { TILE_ROWS = 240 };              /* maximum number of rows per tile */
enum { ROW_BLOCK = 96, INNER_BLOCK = 256 }; /* block of rows and of inputs in a linear layer */
enum { INT8_ROWS = 48 };               /* block of rows in a feed-forward network in 8 bits */
enum { LOGIT_COLUMNS = 256 };          /* block of logits, a multiple of PANEL */
enum { QUERY_BLOCK = 48 };                 /* block of queries in the encoder's attention */

#include "../simd/int8.h"

typedef struct {
    idx padded_labels, strip_len;               /* of a head */
    idx joined_dim;                             /* of all heads */
    idx padded_dim, hidden_dim, padded_src_len; /* row lengths of the buffers */
} sizes;

static sizes sizes_of(const step_arguments *a) {
    idx hidden_dim = 3 * a->heads * a->head_dim;
    for (idx l = 0; l < a->layer_count; l++)
        if (a->layers[l].feed_in.outputs > hidden_dim) hidden_dim = a->layers[l].feed_in.outputs;
    const idx padded_labels = round_up(a->left + 1 + a->right, PADDING), joined_dim = a->heads * a->head_dim,
              padded_dim = round_up(a->dim, PADDING);
    return (sizes){padded_labels, padded_labels + 2 * MARGIN,   joined_dim, padded_dim,
                   hidden_dim,    round_up(a->src_len, PADDING)};
}

typedef struct { /* buffers of a tile; codes are those of INT8_ROWS rows of `hidden`, and of other operands */
    real *x, *y, *hidden, *strips, *label_sums, *scores, *keys, *values, *logits, *max_logits, *exp_sums;
    real *hidden_codes, *hidden_scales, *codes, *scales;
} buffers;

/* Return the number of rows per tile. A tile of the encoder has whole sentences. */
static idx max_tile_rows(const step_arguments *a) {
    idx total = 0, max_rows = TILE_ROWS;
    for (idx i = 0; i < a->rows && a->encoded; total += a->src_lengths[i++])
        if (a->src_lengths[i] > max_rows) max_rows = a->src_lengths[i];
    if (a->encoded) return total < max_rows ? total : max_rows;
    max_rows = TILE_ROWS / a->per_source * a->per_source;
    if (max_rows == 0) max_rows = a->per_source;
    return max_rows < a->rows ? max_rows : a->rows;
}

/* Return whether the step has maps in 8 bits, whose inputs are quantized. */
static int has_int8(const step_arguments *a) {
    int found = a->output.kernel != FLOAT;
    for (idx i = 0; i < a->layer_count; i++) {
        const layer *l = a->layers + i;
        found |= l->self_in.kernel != FLOAT || l->self_out.kernel != FLOAT || l->cross_query.kernel != FLOAT;
        found |= l->cross_out.kernel != FLOAT || l->feed_in.kernel != FLOAT || l->feed_out.kernel != FLOAT;
    }
    return found;
}

static idx assign_buffers(buffers *b, const step_arguments *a, real *memory) {
    const sizes s = sizes_of(a);
    const idx num_rows = max_tile_rows(a), max_dim = s.padded_dim > s.joined_dim ? s.padded_dim : s.joined_dim,
              num_strips = a->encoded ? QUERY_BLOCK : num_rows * a->heads;
    const idx self_scores = round_up(a->position + 1, BLOCK) + PADDING,
              src_scores = (a->encoded ? QUERY_BLOCK : a->per_source) * s.padded_src_len,
              num_keys = a->encoded ? round_up(a->src_len, PANEL) : 0, num_logits = a->encoded ? 0 : num_rows;
    const int quantizes = has_int8(a);
    const idx counts[] = {num_rows * s.padded_dim,
                          num_rows * max_dim,
                          num_rows * s.hidden_dim,
                          num_strips * s.strip_len,
                          num_strips * s.padded_labels,
                          self_scores > src_scores ? self_scores : src_scores,
                          num_keys * a->head_dim,
                          num_keys * a->head_dim,
                          num_logits * LOGIT_COLUMNS,
                          num_logits,
                          num_logits,
                          quantizes * INT8_ROWS * s.hidden_dim / (idx)sizeof(real),
                          2 * INT8_ROWS,
                          quantizes * (num_rows + CODE_ROWS - 1) * max_dim / (idx)sizeof(real),
                          2 * num_rows};
    real **fields[] = {&b->x,          &b->y,        &b->hidden,       &b->strips,        &b->label_sums, &b->scores,
                       &b->keys,       &b->values,   &b->logits,       &b->max_logits,    &b->exp_sums,
                       &b->hidden_codes, &b->hidden_scales, &b->codes, &b->scales};
    idx total = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; total += round_up(counts[i++], PADDING))
        *fields[i] = memory + total;
    return total;
}

/* Return the size of the workspace of a step, in `real` elements. */
static idx relattn_space(const step_arguments *a) {
    buffers b;
    return assign_buffers(&b, a, NULL);
}

#endif
