/* Forward pass: the output and the log-sum-exp. */

#ifndef RELATTN_FORWARD_H
#define RELATTN_FORWARD_H

#include "key_strips.h"

typedef struct {
    real *scratch, *transpose_scratch, *query, *rel_query, *scores, *output, *terms, *label_sums;
    real *base, *lane_sums, *row_sums; /* per row: the base, and sums of 2^(score - base) in vectors and in all */
    split_real scale;                  /* factor of the scores */
    operand *keys, *values, *query_lhs, *scores_lhs; /* operands of products */
    table rel_key, rel_value;
    key_strips strips;
    range labels;      /* the labels whose rows of the tables are loaded */
    idx loaded_head;   /* the head whose keys and values are loaded, -1 for none */
    range loaded_keys; /* the keys that are loaded */
} forward_workspace;

/* Raise the base of a row, and rescale the sums that were computed with the old one. */
static void raise_base(const arguments *a, const tile_info *tile, idx r, real new_base, matrix out,
                       const forward_workspace *w) {
    const real rescale = w->base[r] == -INFINITY ? 0 : exp2_of(w->base[r] - new_base);
    const idx width = strip_width(a), used_width = used_strip_width(a, tile),
              padded_value_dim = round_up(a->value_dim, PADDING);
    w->base[r] = new_base;
    VEC(w->lane_sums + r * LANES) *= rescale;
    if (tile->first_key == tile->keys_begin) return;
    for (idx i = 0; i < padded_value_dim; i += LANES) VEC(out.data + r * out.row_stride + i) *= rescale;
    if (a->rel_value.data)
        for (idx i = 0; i < used_width; i += LANES) VEC(w->label_sums + r * width + i) *= rescale;
}

/* The base of a row is at most MAX_RISE below its highest score so far. The result does not depend on the base, since
   it scales all probabilities of a row by the same factor. 2^MAX_RISE is far from an overflow. */
#define MAX_RISE 24

/* Replace the scores of a row of a tile by 2^(score - base): probabilities up to a factor per row. Return whether the
   row attends to a key of the tile. */
INLINE int forward_row(const arguments *a, const tile_info *tile, const strip_layout strips, idx r, idx position,
                       matrix out, const forward_workspace *w, const forward_workspace s, const int flags) {
    const range vecs = row_vectors(tile, r, flags);
    const idx first = vecs.first, end = first + vecs.count, width = strips.width;
    const int fast_path = flags & FAST_PATH, has_relations = !fast_path && a->relations.data,
              group = flags & FULL_TILE ? CHAINS : 1;
    const strip_slice slice = strip_slice_of(strips, r, has_relations);
    const real scale_hi = s.scale.hi, scale_lo = s.scale.lo;
    real *scores = s.scores + r * KEYS, *label_sums = s.label_sums + r * width;
    real scratch[KEYS], bias_scratch[KEYS];
    int32_t slots[KEYS];
    vec x[TILE_VECS];
    if (flags & BANDED && vecs.count == 0) return 0;
    if (has_relations) relation_slots(a, tile, r, slots);

#pragma GCC unroll 16
    for (idx v = first; v < end; v++) x[v] = VEC(scores + v * LANES);
    const real *terms = flags & KEY_TERMS ? gather_terms(has_relations, tile, s.terms + r * width, slice, slots, scratch) : NULL;
    if (flags & KEY_TERMS && !slice.is_edge)
#pragma GCC unroll 16
        for (idx v = first; v < end; v++) x[v] += VEC(terms + v * LANES);
    real edge_term = flags & KEY_TERMS && slice.is_edge ? terms[0] * scale_hi + terms[0] * scale_lo : 0;
    int any_allowed = 1;
    if (!fast_path) { /* the scale may be negative */
        for (idx v = first; v < end; v++) x[v] = x[v] * scale_hi + (x[v] * scale_lo + edge_term);
        edge_term = 0;
    }
    const real *biases = flags & PAIR_BIAS ? load_bias(a, tile, r, bias_scratch) : NULL;
    if (flags & PAIR_BIAS) add_bias(vecs, biases, x);
    if (flags & BANDED || !fast_path || (!(flags & FULL_TILE) && tile->num_keys % LANES != 0))
        any_allowed = apply_mask(a, tile, r, position, vecs, biases, x);
    if (!any_allowed) {
        for (idx v = first; v < end; v++) VEC(scores + v * LANES) = splat(0);
        return 0;
    }

    vec row_max = x[first];
#pragma GCC unroll 16
    for (idx v = first + 1; v < end; v++) row_max = vec_max(row_max, x[v]);
    if (fast_path) row_max *= scale_hi;
    if (__builtin_expect(any_greater(row_max, s.base[r] - edge_term + MAX_RISE), 0))
        raise_base(a, tile, r, reduce_max(row_max) + edge_term, out, w);
    const real base = (s.base[r] == -INFINITY ? 0 : s.base[r]) - edge_term;

    const int drop = !fast_path && has_dropout(a);
    const uint32_t row_key = drop ? dropout_row_key(a, tile, r) : 0;
    vec sum = splat(0), edge_sum = splat(0);
#pragma GCC unroll 16
    for (idx v = first; v < end; v += group) {
        vec p[CHAINS];
#pragma GCC unroll 4
        for (int i = 0; i < group; i++)
            p[i] = fast_path ? x[v + i] * scale_hi - base + x[v + i] * scale_lo : x[v + i] - base;
        vecs_exp2(p, group);
#pragma GCC unroll 4
        for (idx i = 0; i < group; i++) {
            real *to = scores + (v + i) * LANES;
            sum += p[i];
            if (drop) p[i] = blend(dropout_mask(a, row_key, tile->first_key + (v + i) * LANES), p[i], splat(0));
            if (drop) edge_sum += p[i];
            VEC(to) = p[i];
            if (flags & VALUE_TERMS && !slice.is_edge && !has_relations)
                VEC(label_sums + slice.offset + (v + i) * LANES) += p[i];
        }
    }
    VEC(s.lane_sums + r * LANES) += sum;
    if (flags & VALUE_TERMS && slice.is_edge) VEC(label_sums + slice.offset) += drop ? edge_sum : sum;
    if (flags & VALUE_TERMS && has_relations) scatter_add(tile, vecs, scores, slots, label_sums);
    return any_allowed;
}

static void forward_tile(const arguments *a, const tile_info *tile, idx num_rows, idx position, matrix out,
                         const forward_workspace *w, char *has_keys) {
    const int flags = row_flags(a, tile, position);
    const strip_layout strips = strip_layout_of(a, tile, position);
    const forward_workspace s = *w; /* no store to a row changes it, so that its fields stay in registers */
#define FORWARD_ROWS(flags)                                                                                            \
    for (idx r = 0; r < num_rows; r++)                                                                                 \
        has_keys[r] |= (char)forward_row(a, tile, strips, r, position + r, out, w, s, flags)
    switch (flags) {
        case PAIR_BIAS | FULL_TILE: FORWARD_ROWS(PAIR_BIAS | FULL_TILE); break;
        case FAST_PATH | FULL_TILE: FORWARD_ROWS(FAST_PATH | FULL_TILE); break;
        case FAST_PATH | FULL_TILE | KEY_TERMS: FORWARD_ROWS(FAST_PATH | FULL_TILE | KEY_TERMS); break;
        case FAST_PATH | FULL_TILE | KEY_TERMS | VALUE_TERMS:
            FORWARD_ROWS(FAST_PATH | FULL_TILE | KEY_TERMS | VALUE_TERMS);
            break;
        default:
            if (!(flags & FAST_PATH)) FORWARD_ROWS(flags & ~FAST_PATH);
            else if (flags & BANDED) FORWARD_ROWS(flags | FAST_PATH | BANDED);
            else FORWARD_ROWS((flags | FAST_PATH) & ~BANDED);
    }
}

/* Compute the scores without transposed keys. This is faster for a few queries. */
static void direct_scores(real *scores, matrix query, idx num_rows, matrix keys, const tile_info *tile, idx padded_dim,
                          int add) {
    for (idx r = 0; r < num_rows; r++)
        for (idx j = 0; j < tile->num_vecs * LANES; j += 4) {
            vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
            const real *q = query.data + r * query.row_stride, *key = keys.data + j * keys.row_stride;
            const idx count = tile->num_keys - j;
            for (idx i = 0; i < padded_dim && count >= 4; i += LANES)
#pragma GCC unroll 4
                for (idx k = 0; k < 4; k++) sums[k] += VEC(q + i) * VEC(key + k * keys.row_stride + i);
            for (idx k = 0; k < count && count < 4; k++)
                for (idx i = 0; i < padded_dim; i += LANES) sums[k] += VEC(q + i) * VEC(key + k * keys.row_stride + i);
            vec4 *four = (vec4 *)(scores + r * KEYS + j);
            *four = (add ? *four : (vec4){0}) + reduce_sums(sums);
        }
}

/* Compute the output of QUERIES queries of a head from all keys that they attend to, which are in `w->loaded_keys`. `keys`
   is only used for fewer than MIN_QUERIES_TO_TRANSPOSE queries. */
static void forward_rows(const arguments *a, tile_info tile, idx num_rows, matrix keys, rhs values,
                         const forward_workspace *w) {
    const idx dim = a->dim, padded_dim = round_up(dim, PADDING), padded_value_dim = round_up(a->value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_size(a), has_pos_query = a->pos_query.data != NULL;
    const idx position = query_position(a, tile.b, tile.first_query),
              visible = visible_keys(a, tile.b, position, num_rows);
    char has_keys[QUERIES] = {0};

    const matrix query = load_rows(a, &a->query, tile.b, tile.h, tile.first_query, num_rows, dim, w->query);
    const lhs query_lhs = pack_lhs(query, num_rows, padded_dim, w->query_lhs);
    const matrix out = output_rows(a, &a->output, tile.b, tile.h, tile.first_query, a->value_dim, w->output);
    tile.keys_begin = first_tile_key(a, position, visible);
    tile.labels = tile_label_range(a, position, tile.keys_begin, visible, w->labels);
    if (a->rel_key.data) {
        compute_label_scores(w->terms, width, margin, load_rel_query(a, &tile, num_rows, query, w->rel_query), num_rows,
                             a->rel_dim, &w->rel_key, tile.labels, labels_of_rows(a, &tile, position, visible));
        fill_margins(a->clips, w->terms, width, margin, num_rows, tile.labels);
    }
    if (a->rel_value.data) zero_label_sums(a, w->label_sums, num_rows, &tile);
    for (idx r = 0; r < num_rows; r++) w->base[r] = -INFINITY, VEC(w->lane_sums + r * LANES) = splat(0);

    for (tile.first_key = tile.keys_begin; tile.first_key < visible; tile.first_key += KEYS) {
        const idx key_offset = tile.first_key - w->loaded_keys.first;
        set_tile_keys(a, &tile, position, visible);
        if (a->queries < MIN_QUERIES_TO_TRANSPOSE) {
            const matrix tile_keys = {keys.data + key_offset * keys.row_stride, keys.row_stride};
            if (has_pos_query) direct_key_terms(a, &w->strips.table, &tile, num_rows, position, tile_keys, w->scores);
            direct_scores(w->scores, query, num_rows, tile_keys, &tile, padded_dim, has_pos_query);
        } else {
            const rhs columns = packed_columns(w->keys + key_offset * packed_len(padded_dim), padded_dim);
            if (has_pos_query) load_key_terms(a, &w->strips, &tile, num_rows, position, w->scores);
            if (tile.is_banded)
                matmul_band_columns(w->scores, KEYS, query_lhs, columns, num_rows, tile.bands, dim, has_pos_query);
            else matmul(w->scores, KEYS, query_lhs, columns, num_rows, tile.num_vecs * LANES, dim, has_pos_query);
        }
        forward_tile(a, &tile, num_rows, position, out, w, has_keys);
        const lhs weights = pack_lhs((matrix){w->scores, KEYS}, num_rows, tile.num_vecs * LANES, w->scores_lhs);
        const rhs tile_values = rhs_from_row(values, key_offset);
        if (tile.is_banded)
            matmul_band_inner(out.data, out.row_stride, weights, tile_values, num_rows, padded_value_dim, tile.bands,
                              tile.first_key > tile.keys_begin);
        else
            matmul(out.data, out.row_stride, weights, tile_values, num_rows, padded_value_dim, tile.num_keys,
                   tile.first_key > tile.keys_begin);
    }

    if (a->rel_value.data && tile.keys_begin < visible) {
        const matrix table = table_rows(&w->rel_value, tile.labels.first);
        fold_margins(a->clips, w->label_sums, width, margin, num_rows, tile.labels);
        multiply_label_sums(out, w->label_sums + margin, width, table, num_rows, padded_value_dim, tile.labels,
                            labels_of_rows(a, &tile, position, visible), 1);
    }
    for (idx r = 0; r < num_rows; r++) w->row_sums[r] = reduce_sum(VEC(w->lane_sums + r * LANES));
    const matrix lse = array_rows(a, &a->lse, tile.b, tile.h, tile.first_query);
    for (idx r = 0; r < num_rows && (a->lse.data || a->row_stats); r += LANES) {
        const vec base = VEC(w->base + r), log_sums = vec_log(VEC(w->row_sums + r));
        const vec lses = base * LN_2 + (base * LN_2_LO + log_sums);
        for (idx i = r; a->lse.data && i < num_rows && i < r + LANES; i++) {
            const int is_clamped = fabs(base[i - r]) > (real)0.99999 * LARGEST && !isinf(base[i - r]); /* a bias */
            const real value = is_clamped ? copysign(LARGEST, base[i - r]) : lses[i - r];
            lse.data[i * lse.row_stride] = has_keys[i] ? value : -INFINITY;
        }
        if (!a->row_stats) continue;
        VEC(stats_of_rows(a, &tile, BASE) + r) = base;
        VEC(stats_of_rows(a, &tile, LOG2_SUM) + r) = log_sums * LOG2_E;
    }
    for (idx r = 0; a->row_stats && r < round_up(tile.num_queries, PADDING); r++)
        if (r >= num_rows || !has_keys[r]) { /* a row without keys: 2^(x - inf) = 0 */
            stats_of_rows(a, &tile, BASE)[r] = INFINITY;
            stats_of_rows(a, &tile, LOG2_SUM)[r] = 0;
        }
    for (idx r = 0; r < tile.num_queries; r++)
        if (r < num_rows && has_keys[r])
            write_row(a, &a->output, tile.b, tile.h, tile.first_query + r, out.data + r * out.row_stride, a->value_dim,
                      (real)a->keep_scale / w->row_sums[r]);
        else write_zeros(a, &a->output, tile.b, tile.h, tile.first_query + r, a->value_dim);
    for (idx r = num_rows; a->lse.data && r < tile.num_queries; r++) lse.data[r * lse.row_stride] = -INFINITY;
}

static void forward_worker(void *data) {
    task_queue *queue = data;
    const arguments *a = queue->a;
    const idx padded_dim = round_up(a->dim, PADDING), padded_value_dim = round_up(a->value_dim, PADDING),
              width = strip_width(a), max_keys = round_up(max_window_keys(a, TASK_QUERIES), KEYS),
              max_padded_dim = padded_dim > padded_value_dim ? padded_dim : padded_value_dim;
    const idx max_labels = round_up(max_window_labels(a, TASK_QUERIES), KEYS),
              padded_rel_dim = round_up(a->rel_dim, PADDING);
    forward_workspace w = {.scale = split_scale((real)a->scale),
                           .loaded_head = -1,
                           .rel_key.head = -1,
                           .rel_value.head = -1,
                           .strips.table.head = -1};
    const int direct = a->queries < MIN_QUERIES_TO_TRANSPOSE, is_packed = PACK_SIZE > 1;
    real *key_rows;
    const buffer buffers[] = {
        {&w.keys, direct ? 0 : max_keys * packed_len(padded_dim)},
        {&w.values, packed_rows_size(a, &a->value, max_keys, a->value_dim)},
        {&w.query_lhs, is_packed ? QUERIES * packed_len(padded_dim) : 0},
        {&w.scores_lhs, is_packed ? QUERIES * packed_len(KEYS) : 0},
        {&key_rows, direct && !in_place(a, &a->key, a->dim) ? max_keys * padded_dim : 0},
        {&w.scratch, KEYS * max_padded_dim},
        {&w.transpose_scratch, is_packed ? KEYS * padded_dim : 0},
        {&w.query, QUERIES * padded_dim},
        {&w.rel_query, a->rel_query.data ? QUERIES * padded_rel_dim : 0},
        {&w.rel_key.scratch,
         !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : max_labels * padded_rel_dim},
        {&w.rel_key.transposed, a->rel_key.data && !direct ? max_labels * padded_rel_dim : 0},
        {&w.rel_value.scratch,
         !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : max_labels * padded_value_dim},
        {&w.strips.terms, a->pos_query.data && !direct ? max_keys * key_strip_width(a) : 0},
        {&w.strips.table.scratch,
         !a->pos_query.data || in_place(a, &a->pos_query, a->dim) ? 0 : max_labels * padded_dim},
        {&w.strips.table.transposed, a->pos_query.data && !direct ? max_labels * padded_dim : 0},
        {&w.scores, QUERIES * KEYS},
        {&w.output, QUERIES * padded_value_dim},
        {&w.terms, a->rel_key.data ? QUERIES * width : 0},
        {&w.label_sums, a->rel_value.data ? QUERIES * width : 0},
        {&w.base, QUERIES},
        {&w.row_sums, QUERIES},
        {&w.lane_sums, QUERIES * LANES},
    };
    real *memory = allocate_buffers(queue, buffers, sizeof buffers / sizeof *buffers);
    if (!memory) return;
    configure_matrix_tiles();
    if (direct) w.rel_key.transposed = w.strips.table.transposed = NULL;
    w.strips.label_sums = NULL;

    const idx tasks_per_head = (a->queries + TASK_QUERIES - 1) / TASK_QUERIES, heads_per_key_head = a->heads / a->key_heads;
    matrix keys = {0};
    rhs values = {0};
    /* The heads of a short sequence are adjacent in memory, so a thread takes several, if there are many tasks. */
    const idx tasks = a->batch * a->heads * tasks_per_head, share = tasks / (16 * a->threads),
              group = a->queries > SHORT_SEQUENCE ? 1 : clamp(share, 1, a->heads);
    for (idx first_task; (first_task = next_task(queue) * group) < tasks;)
        for (idx task = first_task; task < first_task + group && task < tasks; task++) {
            const idx b = task / tasks_per_head / a->heads, h = task / tasks_per_head % a->heads,
                      kv = h / heads_per_key_head;
            const idx start = task % tasks_per_head * TASK_QUERIES, queries = sequence_queries(a, b),
                      end = start + TASK_QUERIES < queries ? start + TASK_QUERIES : queries;
            if (start >= queries) continue;
            const idx position = query_position(a, b, start);
            const idx visible = visible_keys(a, b, position, valid_queries(a, b, start, end - start));
            const idx begin = first_tile_key(a, position, visible), valid = valid_keys(a, b);
            /* all keys of a head, or the keys in the windows of the task's queries */
            const range needed_keys = max_keys >= a->keys ? (range){0, valid} : (range){begin, visible - begin};
            if (w.loaded_head != b * a->key_heads + kv || w.loaded_keys.first != needed_keys.first ||
                w.loaded_keys.count != needed_keys.count) {
                if (direct) keys = load_rows(a, &a->key, b, kv, needed_keys.first, needed_keys.count, a->dim, key_rows);
                for (idx j = 0; j < needed_keys.count && !direct; j += KEYS) {
                    const idx num_rows = tile_len(j, needed_keys.count);
                    const matrix key = load_rows_once(a, &a->key, b, kv, needed_keys.first + j, num_rows, a->dim, w.scratch);
                    pack_columns(w.keys + j * packed_len(padded_dim), key, num_rows, padded_dim, w.transpose_scratch);
                }
                values = pack_rows(a, &a->value, b, kv, needed_keys, max_keys, a->value_dim, w.scratch, w.values);
                w.loaded_head = b * a->key_heads + kv;
                w.loaded_keys = needed_keys;
            }
            w.labels = labels_to_load(w.labels, label_range(a, position, round_up(end - start, QUERIES), begin, visible));
            load_table(a, &w.rel_key, &a->rel_key, h, w.labels, a->rel_dim);
            load_table(a, &w.rel_value, &a->rel_value, h, w.labels, a->value_dim);
            load_table(a, &w.strips.table, &a->pos_query, h, w.labels, a->dim);
            if (a->pos_query.data && !direct)
                fill_key_strips(a, &w.strips, b, kv, (range){begin, visible - begin}, position, round_up(end - start, QUERIES),
                                w.scratch);
            for (idx first = start; first < end; first += QUERIES) {
                const idx count = end - first < QUERIES ? end - first : QUERIES;
                const tile_info tile = {.b = b, .h = h, .first_query = first, .num_queries = count};
                forward_rows(a, tile, valid_queries(a, b, first, count), keys, values, &w);
            }
        }
    release_matrix_tiles();
    free(memory);
}

#endif
