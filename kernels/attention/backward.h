/* Backward pass: the gradients. Probabilities are recomputed.

   dP_ij = g_i . (v_j + aV_ij)      delta_i = g_i . z_i      dS_ij = scale (w_ij dP_ij - p_ij delta_i)

   where w_ij are the weights of the values: p_ij after dropout. */

#ifndef RELATTN_BACKWARD_H
#define RELATTN_BACKWARD_H

#include "key_strips.h"

typedef struct {
    real *scratch, *transpose_scratch, *query, *rel_query, *grad, *scores, *ds, *d_query, *d_rel_query, *d_keys,
        *d_values;
    real *terms, *dp_terms, *label_sums, *ds_label_sums, *delta, *base, *base_lo;
    real *d_biases;  /* the gradient of the bias, of the split */
    real *bias_sums; /* its sums over the rows of a tile, if queries share the bias */
    split_real scale; /* factor of the scores */
    operand *key_columns, *value_columns, *keys, *query_lhs, *grad_lhs, *query_rhs, *grad_rhs, *tile_lhs;
    table rel_key, rel_value;
    key_strips strips;
    range labels;      /* the labels whose rows of the tables are loaded */
    range loaded_keys; /* the keys of a head that are loaded */
    rhs key_rows;
} backward_workspace;

/* Process one row of a tile: replace its scores by the weights of the values, and `ds`, which holds g . v per key, by
   dS. */
INLINE void backward_row(const arguments *a, const tile_info *tile, const strip_layout strips, idx r, idx position,
                         const backward_workspace s, const int flags) {
    const range vecs = row_vectors(tile, r, flags);
    const idx first = vecs.first, end = first + vecs.count, width = strips.width;
    const int fast_path = flags & FAST_PATH, has_relations = !fast_path && a->relations.data,
              drop = !fast_path && has_dropout(a), group = flags & FULL_TILE ? CHAINS : 1;
    const int needs_weight_sums = flags & VALUE_TERMS || tile->labels_repeat;
    const strip_slice slice = strip_slice_of(strips, r, has_relations);
    const real scale_hi = s.scale.hi, scale_lo = s.scale.lo;
    real *scores = s.scores + r * KEYS, *ds = s.ds + r * KEYS;
    real *label_sums = s.label_sums + r * width, *ds_label_sums = s.ds_label_sums + r * width;
    real scratch[KEYS], dp_scratch[KEYS], bias_scratch[KEYS];
    int32_t slots[KEYS];
    vec x[TILE_VECS];
    if (flags & BANDED && vecs.count == 0) return;
    if (has_relations) relation_slots(a, tile, r, slots);

#pragma GCC unroll 16
    for (idx v = first; v < end; v++) x[v] = VEC(scores + v * LANES);
    const real *terms = flags & KEY_TERMS ? gather_terms(has_relations, tile, s.terms + r * width, slice, slots, scratch) : NULL;
    const real *dp_terms =
        flags & VALUE_TERMS ? gather_terms(has_relations, tile, s.dp_terms + r * width, slice, slots, dp_scratch) : NULL;
    if (flags & KEY_TERMS && !slice.is_edge)
#pragma GCC unroll 16
        for (idx v = first; v < end; v++) x[v] += VEC(terms + v * LANES);
    real edge_term = flags & KEY_TERMS && slice.is_edge ? terms[0] * scale_hi + terms[0] * scale_lo : 0;
    if (!fast_path) {
        for (idx v = first; v < end; v++) x[v] = x[v] * scale_hi + (x[v] * scale_lo + edge_term);
        edge_term = 0;
    }
    int any_allowed = 1;
    const real *biases = flags & PAIR_BIAS ? load_bias(a, tile, r, bias_scratch) : NULL;
    if (flags & PAIR_BIAS) add_bias(vecs, biases, x);
    if (flags & BANDED || !fast_path || (!(flags & FULL_TILE) && tile->num_keys % LANES != 0))
        any_allowed = apply_mask(a, tile, r, position, vecs, biases, x);
    if (!any_allowed) {
        for (idx v = first; v < end; v++) VEC(scores + v * LANES) = VEC(ds + v * LANES) = splat(0);
        return;
    }

    const real scale = (real)a->scale, base = s.base[r], base_lo = s.base_lo[r] - edge_term, delta = s.delta[r];
    const real dp_edge_term = flags & VALUE_TERMS && slice.is_edge ? dp_terms[0] : 0;
    const uint32_t row_key = drop ? dropout_row_key(a, tile, r) : 0;
    real *d_biases = NULL;
    if (flags & PAIR_BIAS && a->d_bias.data)
        d_biases = a->d_bias.row_stride == 0 ? s.bias_sums : s.d_biases + pair_offset(&a->d_bias, tile, r);
    vec weight_sum = splat(0), ds_sum = splat(0);
#pragma GCC unroll 16
    for (idx u = first; u < end; u += group) {
        vec ps[CHAINS];
#pragma GCC unroll 4
        for (int i = 0; i < group; i++)
            if (fast_path) ps[i] = x[u + i] * scale_hi - base + (x[u + i] * scale_lo - base_lo);
            else ps[i] = x[u + i] - base - base_lo;
        vecs_exp2(ps, group);
#pragma GCC unroll 4
        for (idx i = 0; i < group; i++) {
            const idx v = u + i;
            const vec p = ps[i];
            vec dp = VEC(ds + v * LANES), weight = p, ds_vec;
            if (flags & VALUE_TERMS && !slice.is_edge) dp += VEC(dp_terms + v * LANES);
            if (drop) {
                weight = blend(dropout_mask(a, row_key, tile->first_key + v * LANES), p * (real)a->keep_scale, splat(0));
                ds_vec = weight * (dp + dp_edge_term) - p * delta;
            } else {
                ds_vec = p * (dp - (delta - dp_edge_term));
            }
            if (!(flags & FULL_TILE))
                ds_vec = blend(x[v] != splat(-INFINITY), ds_vec, splat(0)); /* dP is only computed inside the bands */
            if (d_biases) VEC(d_biases + v * LANES) += ds_vec;
            ds_vec *= scale;
            VEC(scores + v * LANES) = weight;
            VEC(ds + v * LANES) = ds_vec;
            if (slice.is_edge) {
                weight_sum += weight;
                ds_sum += ds_vec;
            } else if (!has_relations) {
                if (flags & KEY_TERMS) VEC(ds_label_sums + slice.offset + v * LANES) += ds_vec;
                if (needs_weight_sums) VEC(label_sums + slice.offset + v * LANES) += weight;
            }
        }
    }
    if (slice.is_edge && flags & KEY_TERMS) VEC(ds_label_sums + slice.offset) += ds_sum;
    if (slice.is_edge && needs_weight_sums) VEC(label_sums + slice.offset) += weight_sum;
    if (has_relations && flags & KEY_TERMS) scatter_add(tile, vecs, ds, slots, ds_label_sums);
    if (has_relations && needs_weight_sums) scatter_add(tile, vecs, scores, slots, label_sums);
}

static void backward_tile(const arguments *a, const tile_info *tile, idx num_rows, idx position,
                          const backward_workspace *w) {
    const int flags = row_flags(a, tile, position);
    const strip_layout strips = strip_layout_of(a, tile, position);
    const backward_workspace s = *w;
#define BACKWARD_ROWS(flags)                                                                                           \
    for (idx r = 0; r < num_rows; r++) backward_row(a, tile, strips, r, position + r, s, flags)
    switch (flags) {
        case PAIR_BIAS | FULL_TILE: BACKWARD_ROWS(PAIR_BIAS | FULL_TILE); break;
        case FAST_PATH | FULL_TILE: BACKWARD_ROWS(FAST_PATH | FULL_TILE); break;
        case FAST_PATH | FULL_TILE | KEY_TERMS: BACKWARD_ROWS(FAST_PATH | FULL_TILE | KEY_TERMS); break;
        case FAST_PATH | FULL_TILE | KEY_TERMS | VALUE_TERMS:
            BACKWARD_ROWS(FAST_PATH | FULL_TILE | KEY_TERMS | VALUE_TERMS);
            break;
        default:
            if (!(flags & FAST_PATH)) BACKWARD_ROWS(flags & ~FAST_PATH);
            else if (flags & BANDED) BACKWARD_ROWS(flags | FAST_PATH | BANDED);
            else BACKWARD_ROWS((flags | FAST_PATH) & ~BANDED);
    }
}

/* Write a gradient of the queries, with zeros for the rows from `num_rows` on. */
static void write_gradients(const arguments *a, const array *x, const tile_info *tile, idx num_rows, matrix from,
                            idx dim) {
    for (idx r = 0; r < tile->num_queries; r++) {
        if (r >= num_rows) write_zeros(a, x, tile->b, tile->h, tile->first_query + r, dim);
        else if (!in_place(a, x, dim))
            write_row(a, x, tile->b, tile->h, tile->first_query + r, from.data + r * from.row_stride, dim, 1);
    }
}

/* Compute the ranges of rows that attend to each BAND_ROWS keys of a tile. */
INLINE void transpose_bands(const tile_info *tile, idx num_rows, range *row_bands) {
    for (idx j = 0; j < tile->num_keys; j += BAND_ROWS) {
        idx first = num_rows, end = 0;
        for (idx r = 0; r < num_rows; r += BAND_ROWS) {
            const range band = tile->bands[r / BAND_ROWS];
            if (band.first >= j + BAND_ROWS || band.first + band.count <= j) continue;
            if (first == num_rows) first = r;
            end = r + BAND_ROWS < num_rows ? r + BAND_ROWS : num_rows;
        }
        row_bands[j / BAND_ROWS] = (range){first < end ? first : 0, first < end ? end - first : 0};
    }
}

/* The gradients of the keys and the values of a head. Those of the first `begun` keys have been written. */
typedef struct {
    matrix d_keys, d_values;
    idx dim, value_dim, begun; /* dims are padded */
} key_gradients;

/* Set the gradients of keys before `end` that have not been written to zero. */
static void zero_gradients(key_gradients *g, idx end) {
    for (idx j = g->begun; j < end; j++) {
        memset(g->d_keys.data + j * g->d_keys.row_stride, 0, sizeof(real) * g->dim);
        memset(g->d_values.data + j * g->d_values.row_stride, 0, sizeof(real) * g->value_dim);
    }
    if (end > g->begun) g->begun = end;
}

/* Return whether a tile adds to the gradients of its keys. Otherwise it is the first, and writes them all. */
static int adds_to_gradients(const arguments *a, key_gradients *g, const tile_info *tile) {
    const idx valid = valid_keys(a, tile->b), end = tile->first_key + tile_len(tile->first_key, valid);
    const int is_first = tile->first_key == g->begun && tile->first_key + tile->num_keys == end && !tile->is_banded;
    if (is_first) g->begun = end;
    else zero_gradients(g, end);
    return !is_first;
}

/* Compute the gradients of QUERIES queries of a head from all keys that they attend to, which are in `w->loaded_keys`. Add
   to the gradients of keys, values and tables. */
static void backward_rows(const arguments *a, tile_info tile, idx num_rows, idx split, key_gradients *gradients,
                          const backward_workspace *w) {
    const idx dim = a->dim, value_dim = a->value_dim, padded_dim = round_up(dim, PADDING),
              padded_value_dim = round_up(value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_size(a), padded_rel_dim = round_up(a->rel_dim, PADDING);
    const idx position = query_position(a, tile.b, tile.first_query),
              visible = visible_keys(a, tile.b, position, num_rows);
    const int has_pos_query = a->pos_query.data != NULL;

    const matrix query = load_rows(a, &a->query, tile.b, tile.h, tile.first_query, num_rows, dim, w->query);
    const matrix grad = load_rows(a, &a->grad, tile.b, tile.h, tile.first_query, num_rows, value_dim, w->grad);
    const matrix out = load_rows(a, &a->output, tile.b, tile.h, tile.first_query, num_rows, value_dim, w->d_query);
    const real *bases = stats_of_rows(a, &tile, BASE), *log2_sums = stats_of_rows(a, &tile, LOG2_SUM);
    for (idx r = 0; r < num_rows; r++) {
        vec delta = splat(0);
        for (idx i = 0; i < padded_value_dim; i += LANES)
            delta += VEC(grad.data + r * grad.row_stride + i) * VEC(out.data + r * out.row_stride + i);
        w->delta[r] = reduce_sum(delta);
        w->base[r] = bases[r];
        w->base_lo[r] = log2_sums[r];
    }
    const matrix rel_query = load_rel_query(a, &tile, num_rows, query, w->rel_query);
    tile.keys_begin = first_tile_key(a, position, visible);
    tile.labels = tile_label_range(a, position, tile.keys_begin, visible, w->labels);
    const row_labels rows = labels_of_rows(a, &tile, position, visible);
    if (a->rel_key.data) {
        compute_label_scores(w->terms, width, margin, rel_query, num_rows, a->rel_dim, &w->rel_key, tile.labels,
                             rows);
        fill_margins(a->clips, w->terms, width, margin, num_rows, tile.labels);
        zero_label_sums(a, w->ds_label_sums, num_rows, &tile);
    }
    if (a->rel_value.data) {
        compute_label_scores(w->dp_terms, width, margin, grad, num_rows, value_dim, &w->rel_value, tile.labels,
                             rows);
        fill_margins(a->clips, w->dp_terms, width, margin, num_rows, tile.labels);
    }
    tile.labels_repeat = a->rel_key.data && labels_repeat(a, position, visible);
    if (a->rel_value.data || tile.labels_repeat) zero_label_sums(a, w->label_sums, num_rows, &tile);
    const lhs query_lhs = pack_lhs(query, num_rows, padded_dim, w->query_lhs);
    const lhs grad_lhs = pack_lhs(grad, num_rows, padded_value_dim, w->grad_lhs);
    const rhs query_rhs = pack_rhs(query, num_rows, padded_dim, w->query_rhs);
    const rhs grad_rhs = pack_rhs(grad, num_rows, padded_value_dim, w->grad_rhs);
    const matrix d_query = output_rows(a, &a->d_query, tile.b, tile.h, tile.first_query, dim, w->d_query);

    for (tile.first_key = tile.keys_begin; tile.first_key < visible; tile.first_key += KEYS) {
        set_tile_keys(a, &tile, position, visible);
        const idx n = tile.num_vecs * LANES, key_offset = tile.first_key - w->loaded_keys.first;
        const rhs key_columns = packed_columns(w->key_columns + key_offset * packed_len(padded_dim), padded_dim);
        const rhs value_columns =
            packed_columns(w->value_columns + key_offset * packed_len(padded_value_dim), padded_value_dim);
        if (has_pos_query) load_key_terms(a, &w->strips, &tile, num_rows, position, w->scores);
        if (tile.is_banded) {
            if (has_pos_query) memset(w->ds, 0, sizeof(real) * QUERIES * KEYS); /* outside the bands */
            matmul_band_columns(w->scores, KEYS, query_lhs, key_columns, num_rows, tile.bands, dim, has_pos_query);
            matmul_band_columns(w->ds, KEYS, grad_lhs, value_columns, num_rows, tile.bands, value_dim, 0);
        } else {
            matmul(w->scores, KEYS, query_lhs, key_columns, num_rows, n, dim, has_pos_query);
            matmul(w->ds, KEYS, grad_lhs, value_columns, num_rows, n, value_dim, 0);
        }
        const int sums_rows = a->d_bias.data && a->d_bias.row_stride == 0;
        if (sums_rows) memset(w->bias_sums, 0, sizeof(real) * KEYS);
        backward_tile(a, &tile, num_rows, position, w);
        real *d_biases = sums_rows ? w->d_biases + pair_offset(&a->d_bias, &tile, 0) : NULL;
        for (idx v = 0; v < tile.num_vecs && sums_rows; v++) VEC(d_biases + v * LANES) += VEC(w->bias_sums + v * LANES);
        if (has_pos_query) add_key_sums(a, &w->strips, &tile, num_rows, position, w->ds);
        const matrix weights = {w->scores, KEYS}, ds = {w->ds, KEYS};
        const int add = adds_to_gradients(a, gradients, &tile);
        const matrix d_keys = gradients->d_keys, d_values = gradients->d_values;
        real *d_value = d_values.data + tile.first_key * d_values.row_stride,
             *d_key = d_keys.data + tile.first_key * d_keys.row_stride;
        if (tile.is_banded) {
            range row_bands[KEYS / BAND_ROWS];
            transpose_bands(&tile, num_rows, row_bands);
            matmul_band_inner(d_value, d_values.row_stride,
                              pack_lhs_transposed(weights, tile.num_keys, num_rows, w->tile_lhs), grad_rhs,
                              tile.num_keys, padded_value_dim, row_bands, 1);
            matmul_band_inner(d_key, d_keys.row_stride, pack_lhs_transposed(ds, tile.num_keys, num_rows, w->tile_lhs),
                              query_rhs, tile.num_keys, padded_dim, row_bands, 1);
            matmul_band_inner(d_query.data, d_query.row_stride, pack_lhs(ds, num_rows, n, w->tile_lhs),
                              rhs_from_row(w->key_rows, key_offset), num_rows, padded_dim, tile.bands,
                              tile.first_key > tile.keys_begin);
        } else {
            matmul(d_value, d_values.row_stride, pack_lhs_transposed(weights, tile.num_keys, num_rows, w->tile_lhs),
                   grad_rhs, tile.num_keys, padded_value_dim, num_rows, add);
            matmul(d_key, d_keys.row_stride, pack_lhs_transposed(ds, tile.num_keys, num_rows, w->tile_lhs), query_rhs,
                   tile.num_keys, padded_dim, num_rows, add);
            matmul(d_query.data, d_query.row_stride, pack_lhs(ds, num_rows, n, w->tile_lhs),
                   rhs_from_row(w->key_rows, key_offset), num_rows, padded_dim, tile.num_keys,
                   tile.first_key > tile.keys_begin);
        }
    }

    const idx table_index = split * a->heads + tile.h; /* index of this head's table gradients */
    const int has_rel_query = a->rel_query.data != NULL;
    matrix d_rel_query = d_query;
    if (has_rel_query)
        d_rel_query = output_rows(a, &a->d_rel_query, tile.b, tile.h, tile.first_query, a->rel_dim, w->d_rel_query);
    if (a->rel_key.data && tile.keys_begin < visible) {
        if (tile.labels_repeat) center_ds_sums(a, w->ds_label_sums, w->label_sums, num_rows, &tile);
        fold_margins(a->clips, w->ds_label_sums, width, margin, num_rows, tile.labels);
        const matrix table = table_rows(&w->rel_key, tile.labels.first);
        real *d_rows = (real *)a->d_rel_key.data + (table_index * a->labels + tile.labels.first) * padded_rel_dim;
        multiply_label_sums(d_rel_query, w->ds_label_sums + margin, width, table, num_rows, padded_rel_dim, tile.labels,
                            rows, !has_rel_query);
        add_table_gradients(d_rows, w->ds_label_sums + margin, width, rel_query, num_rows, padded_rel_dim, tile.labels,
                            rows);
    }
    if (a->rel_value.data && tile.keys_begin < visible) {
        fold_margins(a->clips, w->label_sums, width, margin, num_rows, tile.labels);
        real *d_rows = (real *)a->d_rel_value.data + (table_index * a->labels + tile.labels.first) * padded_value_dim;
        add_table_gradients(d_rows, w->label_sums + margin, width, grad, num_rows, padded_value_dim, tile.labels, rows);
    }
    write_gradients(a, &a->d_query, &tile, tile.keys_begin < visible ? num_rows : 0, d_query, dim);
    if (has_rel_query)
        write_gradients(a, &a->d_rel_query, &tile, tile.keys_begin < visible ? num_rows : 0, d_rel_query, a->rel_dim);
}

/* Load some keys and values of a head. */
static void load_keys(const arguments *a, idx b, idx kv, range keys, backward_workspace *w) {
    const idx padded_dim = round_up(a->dim, PADDING), padded_value_dim = round_up(a->value_dim, PADDING),
              max_keys = round_up(max_window_keys(a, TASK_QUERIES), KEYS);
    w->loaded_keys = keys;
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx num_rows = tile_len(j, keys.count);
        const matrix key = load_rows_once(a, &a->key, b, kv, keys.first + j, num_rows, a->dim, w->scratch);
        pack_columns(w->key_columns + j * packed_len(padded_dim), key, num_rows, padded_dim, w->transpose_scratch);
        const matrix value = load_rows_once(a, &a->value, b, kv, keys.first + j, num_rows, a->value_dim, w->scratch);
        pack_columns(w->value_columns + j * packed_len(padded_value_dim), value, num_rows, padded_value_dim,
                     w->transpose_scratch);
    }
    w->key_rows = pack_rows(a, &a->key, b, kv, keys, max_keys, a->dim, w->scratch, w->keys);
}

/* Compute the gradients of all heads that share a head of keys. */
static void backward_head(const arguments *a, idx b, idx kv, idx split, backward_workspace *w) {
    const idx dim = a->dim, value_dim = a->value_dim, padded_dim = round_up(dim, PADDING),
              padded_value_dim = round_up(value_dim, PADDING);
    const idx valid = valid_keys(a, b), queries = sequence_queries(a, b), heads_per_key_head = a->heads / a->key_heads;
    const int windowed = max_window_keys(a, TASK_QUERIES) < a->keys;
    if (!windowed) load_keys(a, b, kv, (range){0, valid}, w);
    const matrix d_keys = output_rows(a, &a->d_key, b, kv, 0, dim, w->d_keys);
    const matrix d_values = output_rows(a, &a->d_value, b, kv, 0, value_dim, w->d_values);
    key_gradients gradients = {d_keys, d_values, padded_dim, padded_value_dim, 0};
    for (idx h = kv * heads_per_key_head; h < (kv + 1) * heads_per_key_head; h++)
        for (idx first = 0; first < queries; first += QUERIES) {
            if (first % TASK_QUERIES == 0) {
                const idx remaining = queries - first, task_queries = remaining < TASK_QUERIES ? remaining : TASK_QUERIES;
                const idx position = query_position(a, b, first),
                          num_queries = valid_queries(a, b, first, task_queries);
                const idx visible = visible_keys(a, b, position, num_queries);
                const idx begin = first_tile_key(a, position, visible);
                if (windowed) load_keys(a, b, kv, (range){begin, visible - begin}, w);
                w->labels =
                    labels_to_load(w->labels, label_range(a, position, round_up(task_queries, QUERIES), begin, visible));
                load_table(a, &w->rel_key, &a->rel_key, h, w->labels, a->rel_dim);
                load_table(a, &w->rel_value, &a->rel_value, h, w->labels, value_dim);
                load_table(a, &w->strips.table, &a->pos_query, h, w->labels, dim);
                if (a->pos_query.data)
                    fill_key_strips(a, &w->strips, b, kv, (range){begin, visible - begin}, position,
                                    round_up(task_queries, QUERIES), w->scratch);
            }
            const idx count = queries - first < QUERIES ? queries - first : QUERIES;
            const tile_info tile = {.b = b, .h = h, .first_query = first, .num_queries = count};
            backward_rows(a, tile, valid_queries(a, b, first, count), split, &gradients, w);
            if (a->pos_query.data && ((first + QUERIES) % TASK_QUERIES == 0 || first + QUERIES >= queries)) {
                add_key_gradients(a, &w->strips, b, kv, d_keys,
                                  (real *)a->d_pos_query.data + (split * a->heads + h) * a->labels * padded_dim, w->scratch);
            }
        }
    zero_gradients(&gradients, valid);
    for (idx j = 0; j < sequence_keys(a, b); j++) {
        if (j >= valid) {
            write_zeros(a, &a->d_key, b, kv, j, dim);
            write_zeros(a, &a->d_value, b, kv, j, value_dim);
            continue;
        }
        if (!in_place(a, &a->d_key, dim)) write_row(a, &a->d_key, b, kv, j, d_keys.data + j * padded_dim, dim, 1);
        if (!in_place(a, &a->d_value, value_dim))
            write_row(a, &a->d_value, b, kv, j, d_values.data + j * padded_value_dim, value_dim, 1);
    }
}

/* ---- gradients of the tables: sums (splits, heads, labels, padded dim) of dtype `real`, which are added up at the end ---- */

INLINE idx table_sums_size(const arguments *a, const array *table, idx dim) {
    return table->data ? a->splits * a->heads * a->labels * round_up(dim, PADDING) : 0;
}

/* Set the sums of some heads of a split to zero. */
static void zero_table_sums(const arguments *a, idx first, idx count) {
    const array *sums[] = {&a->d_rel_key, &a->d_rel_value, &a->d_pos_query};
    const idx dims[] = {a->rel_dim, a->value_dim, a->dim};
    for (int t = 0; t < 3; t++) {
        const idx size = a->labels * round_up(dims[t], PADDING);
        if (sums[t]->data) memset((real *)sums[t]->data + first * size, 0, sizeof(real) * count * size);
    }
}

/* Write the gradient of a table: the sum over the splits and, if heads share the table, over the heads. */
static void write_table_gradient(const arguments *a, const array *table, real *sums, idx dim) {
    const idx padded_dim = round_up(dim, PADDING), head_size = a->labels * padded_dim;
    const idx heads = table->head_stride == 0 ? 1 : a->heads, parts = a->splits * a->heads / heads;
    for (idx h = 0; h < heads && table->data; h++)
        for (idx l = 0; l < a->labels; l++) {
            real *row = sums + h * head_size + l * padded_dim;
            for (idx part = 1; part < parts; part++)
                for (idx i = 0; i < padded_dim; i += LANES) VEC(row + i) += VEC(row + part * heads * head_size + i);
            const idx start = h * table->head_stride + l * table->row_stride;
            if (a->type == REAL) store_row(table->data, start, row, dim, 1, REAL);
            else if (a->type == FLOAT16) store_row(table->data, start, row, dim, 1, FLOAT16);
            else store_row(table->data, start, row, dim, 1, BFLOAT16);
        }
}

static void backward_worker(void *data) {
    task_queue *queue = data;
    const arguments *a = queue->a;
    const idx padded_dim = round_up(a->dim, PADDING), padded_value_dim = round_up(a->value_dim, PADDING),
              width = strip_width(a), all_keys = round_up(a->keys, KEYS),
              max_keys = round_up(max_window_keys(a, TASK_QUERIES), KEYS);
    const idx max_padded_dim = padded_dim > padded_value_dim ? padded_dim : padded_value_dim;
    const int is_packed = PACK_SIZE > 1;
    const idx max_labels = round_up(max_window_labels(a, TASK_QUERIES), KEYS),
              padded_rel_dim = round_up(a->rel_dim, PADDING);
    backward_workspace w = {
        .scale = split_scale((real)a->scale), .rel_key.head = -1, .rel_value.head = -1, .strips.table.head = -1};
    const buffer buffers[] = {
        {&w.scratch, KEYS * max_padded_dim},
        {&w.transpose_scratch, is_packed ? KEYS * max_padded_dim : 0},
        {&w.key_columns, max_keys * packed_len(padded_dim)},
        {&w.value_columns, max_keys * packed_len(padded_value_dim)},
        {&w.keys, packed_rows_size(a, &a->key, max_keys, a->dim)},
        {&w.query_lhs, is_packed ? QUERIES * packed_len(padded_dim) : 0},
        {&w.grad_lhs, is_packed ? QUERIES * packed_len(padded_value_dim) : 0},
        {&w.query_rhs, is_packed ? packed_len(QUERIES) * padded_dim : 0},
        {&w.grad_rhs, is_packed ? packed_len(QUERIES) * padded_value_dim : 0},
        {&w.tile_lhs, is_packed ? QUERIES * packed_len(KEYS) : 0},
        {&w.d_keys, in_place(a, &a->d_key, a->dim) ? 0 : all_keys * padded_dim},
        {&w.d_values, in_place(a, &a->d_value, a->value_dim) ? 0 : all_keys * padded_value_dim},
        {&w.query, QUERIES * padded_dim},
        {&w.rel_query, a->rel_query.data ? QUERIES * padded_rel_dim : 0},
        {&w.d_rel_query, a->rel_query.data ? QUERIES * padded_rel_dim : 0},
        {&w.rel_key.scratch,
         !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : max_labels * padded_rel_dim},
        {&w.strips.terms, a->pos_query.data ? max_keys * key_strip_width(a) : 0},
        {&w.strips.label_sums, a->pos_query.data ? max_keys * key_strip_width(a) : 0},
        {&w.strips.table.scratch,
         !a->pos_query.data || in_place(a, &a->pos_query, a->dim) ? 0 : max_labels * padded_dim},
        {&w.strips.table.transposed, a->pos_query.data ? max_labels * padded_dim : 0},
        {&w.rel_key.transposed, a->rel_key.data ? max_labels * padded_rel_dim : 0},
        {&w.rel_value.scratch,
         !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : max_labels * padded_value_dim},
        {&w.rel_value.transposed, a->rel_value.data ? max_labels * padded_value_dim : 0},
        {&w.grad, QUERIES * padded_value_dim},
        {&w.d_query, QUERIES * max_padded_dim}, /* holds the output first */
        {&w.scores, QUERIES * KEYS},
        {&w.ds, QUERIES * KEYS},
        {&w.terms, a->rel_key.data ? QUERIES * width : 0},
        {&w.dp_terms, a->rel_value.data ? QUERIES * width : 0},
        {&w.label_sums, a->rel_value.data || (a->rel_key.data && labels_may_repeat(a)) ? QUERIES * width : 0},
        {&w.ds_label_sums, a->rel_key.data ? QUERIES * width : 0},
        {&w.bias_sums, a->d_bias.data ? KEYS : 0},
        {&w.delta, QUERIES},
        {&w.base, QUERIES},
        {&w.base_lo, QUERIES},
    };
    real *memory = allocate_buffers(queue, buffers, sizeof buffers / sizeof *buffers);
    if (!memory) return;
    configure_matrix_tiles();

    /* If there are enough tasks for all threads, a task has all heads of a sequence, which are adjacent in memory. */
    const int sums_heads = a->d_bias.data && a->d_bias.head_stride == 0; /* in the same elements */
    const idx groups = a->splits >= 4 * a->threads || sums_heads ? 1 : a->key_heads;
    for (idx task; (task = next_task(queue)) < a->splits * groups;) {
        const idx split = task / groups, group = task % groups;
        if (a->d_bias.data) w.d_biases = (real *)a->d_bias.data + split * a->d_bias_split_stride;
        zero_table_sums(a, split * a->heads + group * a->heads / groups, a->heads / groups);
        for (idx b = split * a->batch / a->splits; b < (split + 1) * a->batch / a->splits; b++)
            for (idx kv = group * a->key_heads / groups; kv < (group + 1) * a->key_heads / groups; kv++)
                backward_head(a, b, kv, split, &w);
    }
    release_matrix_tiles();
    free(memory);
}

#endif
