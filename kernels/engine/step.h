/* The layers, a step of the decoder with the best next tokens, and the encoder. */

#ifndef RELATTN_STEP_H
#define RELATTN_STEP_H

#include "attention.h"

/* Return the input of a sub-layer, whose first map is w: x, normalized with pre-norm. */
static linear_input sublayer_input(const step_arguments *a, const sizes *s, buffers *b, const norm *n, const map *w,
                                   idx num_rows) {
    if (a->pre_norm) normalize(b->y, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
    return operand_of(a->pre_norm ? b->y : b->x, s->padded_dim, w, num_rows, b->codes, b->scales);
}

/* Normalize x, the output of a sub-layer, with post-norm. */
static void normalize_output(const step_arguments *a, const sizes *s, buffers *b, const norm *n, idx num_rows) {
    if (!a->pre_norm) normalize(b->x, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
}

/* Add a linear layer of the attention y to x. */
static void add_attention(const step_arguments *a, const sizes *s, buffers *b, const map *w, const norm *n, idx num_rows) {
    const linear_input y = operand_of(b->y, s->joined_dim, w, num_rows, b->codes, b->scales);
    linear(b->x, s->padded_dim, &y, w, num_rows, 1);
    normalize_output(a, s, b, n, num_rows);
}

/* Write the weights of an output to `to`: the embedding of a token, if outputs are tokens. */
static void read_output(real *to, const map *w, idx output) {
    const idx record = 8 * PANEL, records = round_up(w->inputs, GROUP) / 8;
    const int8_t *weight = (const int8_t *)w->weight + output / PANEL * records * record + output % PANEL * 4;
    const real scale = w->scales[output];
    const int offset = w->kernel == PAIRS ? WEIGHT_OFFSET : 0;
    for (idx k = 0; k < w->inputs; k++)
        to[k] = (weight[k / 8 * record + k % 8 / 4 * (4 * PANEL) + k % 4] - offset) * scale;
}

/* Compute row `row` of x: the embedding of a token at a position. */
static void embed(const step_arguments *a, const sizes *s, buffers *b, idx row, int64_t token, idx position) {
    const real *from = a->embedding ? a->embedding + token * a->dim : b->y,
               *signal = a->signal ? a->signal + position * a->dim : NULL;
    real *x = b->x + row * s->padded_dim;
    if (!a->embedding) read_output(b->y, &a->embedding_map, token);
    for (idx i = 0; i < a->dim; i++) x[i] = from[i] * a->embedding_scale + (signal ? signal[i] : 0);
    for (idx i = a->dim; i < s->padded_dim; i++) x[i] = 0;
}

static void normalize_embeddings(const step_arguments *a, const sizes *s, buffers *b, idx num_rows) {
    const norm *n = &a->embedding_norm;
    if (n->weight) normalize(b->x, s->padded_dim, b->x, n, num_rows, s->padded_dim, a->dim, a->epsilon);
}

/* Multiply the activations of some rows, which lie before column `gate` of `hidden`, by the outputs of w from `gate` on. */
static void multiply_by_gate(real *hidden, idx hidden_dim, const linear_input *x, const map *w, idx gate, idx num_rows) {
    linear_columns(hidden + gate, hidden_dim, x, w, gate, w->outputs, num_rows, 0, NO_ACTIVATION);
    for (idx r = 0; r < num_rows; r++, hidden += hidden_dim)
        for (idx i = 0; i < w->outputs - gate; i += LANES) VEC(hidden + i) *= VEC(hidden + gate + i);
}

/* Add the feed-forward network of the input to x. In 8 bits, it computes few rows at a time, which stay in the cache. */
static void add_feed_forward(const step_arguments *a, const sizes *s, buffers *b, const layer *l, const linear_input *input,
                             idx num_rows) {
    const idx block = l->feed_in.kernel == FLOAT ? num_rows : INT8_ROWS;
    for (idx i = 0; i < num_rows; i += block) {
        const idx count = num_rows - i < block ? num_rows - i : block;
        const linear_input rows = operand_rows(input, i);
        const idx width = l->feed_gate ? l->feed_gate : l->feed_in.outputs;
        linear_columns(b->hidden, s->hidden_dim, &rows, &l->feed_in, 0, width, count, 0, a->activation);
        if (l->feed_gate) multiply_by_gate(b->hidden, s->hidden_dim, &rows, &l->feed_in, l->feed_gate, count);
        const linear_input hidden =
            operand_of(b->hidden, s->hidden_dim, &l->feed_out, count, b->hidden_codes, b->hidden_scales);
        linear(b->x + i * s->padded_dim, s->padded_dim, &hidden, &l->feed_out, count, 1);
    }
}

/* Add an SSRU of the gates and values in `hidden` to x, and update its states. */
static void add_ssru(const step_arguments *a, const sizes *s, idx layer_index, buffers *b, idx first_row, idx num_rows) {
    for (idx r = 0; r < num_rows; r++) {
        const real *gate = b->hidden + r * s->hidden_dim, *value = gate + s->padded_dim;
        real *state = *(real *const *)a->blocks + ((first_row + r) * a->layer_count + layer_index) * s->padded_dim,
             *x = b->x + r * s->padded_dim;
        for (idx i = 0; i < s->padded_dim; i += LANES) {
            const vec forget = logistic(VEC(gate + i)), before = a->position > 0 ? VEC(state + i) : splat(0);
            VEC(state + i) = forget * before + (1 - forget) * VEC(value + i);
            VEC(x + i) += vec_max(splat(0), VEC(state + i));
        }
    }
}

/* Run a layer. Rows are hypotheses from `first` on, or in the encoder those of the sources from `first` on. */
static void run_layer(const step_arguments *a, const sizes *s, idx layer_index, buffers *b, idx first, idx num_rows) {
    const layer *l = a->layers + layer_index;
    linear_input input = sublayer_input(a, s, b, &l->self_norm, &l->self_in, num_rows);
    linear(b->hidden, s->hidden_dim, &input, &l->self_in, num_rows, 0);
    if (a->encoded)
        for (idx i = 0, source = first; i < num_rows; i += a->src_lengths[source++])
            sentence_attention(a, s, l, b, i, a->src_lengths[source]);
    else if (a->ssru) add_ssru(a, s, layer_index, b, first, num_rows);
    else self_attention(a, s, layer_index, b, first, num_rows);
    if (a->ssru) normalize_output(a, s, b, &l->self_norm, num_rows);
    else add_attention(a, s, b, &l->self_out, &l->self_norm, num_rows);
    if (!a->encoded) {
        input = sublayer_input(a, s, b, &l->cross_norm, &l->cross_query, num_rows);
        linear(b->hidden, s->hidden_dim, &input, &l->cross_query, num_rows, 0);
        cross_attention(a, s, l, b, first, num_rows);
        add_attention(a, s, b, &l->cross_out, &l->cross_norm, num_rows);
    }
    input = sublayer_input(a, s, b, &l->feed_norm, &l->feed_in, num_rows);
    add_feed_forward(a, s, b, l, &input, num_rows);
    normalize_output(a, s, b, &l->feed_norm, num_rows);
}

/* Insert a candidate after all candidates that are at least as good. */
INLINE void insert_candidate(real *values, int64_t *tokens, idx best, real value, idx token) {
    idx i = best - 1;
    for (; i > 0 && values[i - 1] < value; i--) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
    values[i] = value;
    tokens[i] = token;
}

/* Update a row's maximum, sum of exponentials and best candidates with the logits of the outputs from `first` on. */
static void update_candidates(const step_arguments *a, idx row, real *logits, idx first, idx count, idx only, real *row_max,
                              real *row_sum) {
    vec max_logit = splat(*row_max), exp_sum = splat(0);
    for (idx j = 0; j < count; j += LANES) max_logit = vec_max(max_logit, VEC(logits + j));
    const real new_max = reduce_max(max_logit), base = new_max > -INFINITY ? new_max : 0;
    for (idx j = 0; j < count; j += LANES) exp_sum += vec_exp2((VEC(logits + j) - base) * LOG2_E);
    *row_sum = *row_sum * exp2_of((*row_max - base) * LOG2_E) + reduce_sum(exp_sum);
    *row_max = new_max;
    real *values = a->values + row * a->best;
    int64_t *tokens = a->candidates + row * a->best;
    if (only >= 0) {
        if (only >= first && only < first + count) values[0] = logits[only - first], tokens[0] = only;
        return;
    }
    for (idx i = 0; i < a->banned_count && !a->short_outputs; i++) {
        const idx token = a->banned[i] - first;
        if (token >= 0 && token < count) logits[token] = -INFINITY;
    }
    for (idx j = 0; j < count; j += LANES)
        if (any_greater(VEC(logits + j), values[a->best - 1]))
            for (idx i = j; i < j + LANES; i++)
                if (logits[i] > values[a->best - 1]) insert_candidate(values, tokens, a->best, logits[i], first + i);
}

/* Return the index of a token in a shortlist. */
INLINE idx position_of(idx token, const int64_t *tokens, idx count) {
    idx i = 0;
    while (i < count - 1 && tokens[i] != token) i++;
    return i;
}

/* Compute the logits of y and, if `best` is not 0, the best candidates of each row. */
static void compute_logits(const step_arguments *a, buffers *b, const linear_input *y, idx first_row, idx num_rows) {
    for (idx r = 0; r < num_rows; r++) {
        b->max_logits[r] = -INFINITY;
        b->exp_sums[r] = 0;
        for (idx i = 0; i < a->best; i++) {
            a->values[(first_row + r) * a->best + i] = -INFINITY;
            a->candidates[(first_row + r) * a->best + i] = 0;
        }
    }
    const idx group = a->short_outputs ? a->per_source : num_rows; /* rows with the same outputs */
    for (idx i = 0; i < num_rows && (a->logits || a->best > 0); i += group) {
        const idx source = a->short_outputs ? a->sources[(first_row + i) / group] : 0;
        const map *w = a->short_outputs ? a->short_outputs + source : &a->output;
        const int64_t *tokens = a->short_outputs ? a->shortlist + a->shortlist_begins[source] : NULL;
        const linear_input rows = operand_rows(y, i);
        for (idx j = 0; j < w->outputs; j += LOGIT_COLUMNS) {
            const idx count = w->outputs - j < LOGIT_COLUMNS ? w->outputs - j : LOGIT_COLUMNS;
            linear_columns(b->logits, LOGIT_COLUMNS, &rows, w, j, j + count, group, 0, NO_ACTIVATION);
            for (idx r = 0; r < group; r++) {
                const idx valid = a->vocab - j < count ? a->vocab - j : count, row = first_row + i + r;
                real *logits = b->logits + r * LOGIT_COLUMNS;
                idx only = a->only ? a->only[row] : -1;
                if (tokens && only >= 0) only = position_of(only, tokens, w->outputs);
                if (a->logits) memcpy(a->logits + row * a->vocab + j, logits, sizeof(real) * valid);
                if (a->best > 0)
                    update_candidates(a, row, logits, j, count, only, b->max_logits + i + r, b->exp_sums + i + r);
            }
        }
        int64_t *found = a->candidates + (first_row + i) * a->best;
        for (idx k = 0; tokens && k < group * a->best; k++) found[k] = tokens[found[k]];
    }
    for (idx r = 0; r < num_rows && a->best > 0; r++) {
        const real log_sum = b->max_logits[r] + log_of(b->exp_sums[r]);
        for (idx i = 0; i < a->best; i++) a->values[(first_row + r) * a->best + i] -= log_sum;
        if (a->log_sums) a->log_sums[first_row + r] = log_sum;
    }
}

static idx relattn_step(const step_arguments *a) {
    const sizes s = sizes_of(a);
    const idx max_rows = max_tile_rows(a);
    buffers b;
    assign_buffers(&b, a, a->space);
    configure_matrix_tiles();
    for (idx first = 0; first < a->rows; first += max_rows) {
        const idx num_rows = a->rows - first < max_rows ? a->rows - first : max_rows;
        for (idx r = 0; r < num_rows; r++) embed(a, &s, &b, r, a->tokens[first + r], a->position);
        normalize_embeddings(a, &s, &b, num_rows);
        for (idx layer_index = 0; layer_index < a->layer_count; layer_index++)
            run_layer(a, &s, layer_index, &b, first, num_rows);
        const linear_input y = sublayer_input(a, &s, &b, &a->final_norm, &a->output, num_rows);
        compute_logits(a, &b, &y, first, num_rows);
    }
    release_matrix_tiles();
    return 0;
}

/* Run the encoder for `rows` sources. Each tile of rows has the tokens of some whole sources, without padding. */
static idx relattn_encode(const step_arguments *a) {
    const sizes s = sizes_of(a);
    const idx max_rows = max_tile_rows(a);
    buffers b;
    assign_buffers(&b, a, a->space);
    configure_matrix_tiles();
    for (idx first = 0, last = 0; first < a->rows; first = last) {
        idx num_rows = 0;
        for (; last < a->rows && num_rows + a->src_lengths[last] <= max_rows; last++)
            for (idx i = 0; i < a->src_lengths[last]; i++)
                embed(a, &s, &b, num_rows++, a->tokens[last * a->src_len + i], i);
        normalize_embeddings(a, &s, &b, num_rows);
        for (idx layer_index = 0; layer_index < a->layer_count; layer_index++)
            run_layer(a, &s, layer_index, &b, first, num_rows);
        if (a->pre_norm)
            normalize(b.x, s.padded_dim, b.x, &a->final_norm, num_rows, s.padded_dim, a->dim, a->epsilon);
        const real *from = b.x;
        for (idx source = first; source < last; source++)
            for (idx i = 0; i < a->src_lengths[source]; i++, from += s.padded_dim)
                memcpy(a->encoded + (source * a->src_len + i) * a->dim, from, sizeof(real) * a->dim);
    }
    release_matrix_tiles();
    return 0;
}

#endif
