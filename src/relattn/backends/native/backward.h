/* Backward pass: the gradients, from recomputed probabilities.

   dP_ij = g_i . (v_j + aV_ij)      delta_i = g_i . z_i      dS_ij = scale (w_ij dP_ij - p_ij delta_i)

   where w_ij are the weights of the values: p_ij after dropout. */

#ifndef RELATTN_BACKWARD_H
#define RELATTN_BACKWARD_H

#include "key_strips.h"
#include "threads.h"

typedef struct {
    real *space, *columns, *query, *rel_query, *grad, *scores, *ds, *d_query, *d_rel_query, *d_keys, *d_values;
    real *terms, *dp_terms, *masses, *ds_masses, *delta, *base, *base_rest;
    factor factor; /* of scores */
    number *key_columns, *value_columns, *keys, *query_lhs, *grad_lhs, *query_rhs, *grad_rhs, *tile_lhs;
    table rel_key, rel_value;
    key_strips strips;
    run labels; /* those that are loaded of the tables */
    run held;   /* the keys that are loaded of a head */
    rhs key_rows;
} backward_space;

/* One row of a tile: its scores become the weights of the values, and `ds`, which holds g . v of each key, becomes dS.
   */
INLINE void backward_row(const arguments *a, const place *at, idx r, idx position, const backward_space *w,
                         const int flags) {
    const run vecs = vectors_of(at, r, flags);
    const idx first = vecs.first, end = first + vecs.count, width = strip_width(a);
    const int plain = flags & PLAIN, by_relation = !plain && a->relations.data, drop = !plain && drops(a);
    const int sums_weights = flags & VALUE_TERMS || at->repeats;
    const span s = span_of(a, at, position);
    const real c = w->factor.most, c_rest = w->factor.rest;
    real *scores = w->scores + r * KEYS, *ds = w->ds + r * KEYS;
    real *masses = w->masses + r * width, *ds_masses = w->ds_masses + r * width;
    real space[KEYS], dp_space[KEYS];
    int32_t slots[KEYS];
    vec x[VECS];
    if (flags & BANDED && vecs.count == 0) return;
    if (by_relation) slots_of(a, at, r, slots);

#pragma GCC unroll 16
    for (idx v = first; v < end; v++) x[v] = AT(scores + v * LANES);
    const real *terms = flags & KEY_TERMS ? terms_of(a, at, w->terms + r * width, s, slots, space) : NULL;
    const real *dp_terms = flags & VALUE_TERMS ? terms_of(a, at, w->dp_terms + r * width, s, slots, dp_space) : NULL;
    if (flags & KEY_TERMS && !s.far)
#pragma GCC unroll 16
        for (idx v = first; v < end; v++) x[v] += AT(terms + v * LANES);
    real edge = flags & KEY_TERMS && s.far ? terms[0] * c + terms[0] * c_rest : 0;
    if (!plain) {
        for (idx v = first; v < end; v++) x[v] = x[v] * c + (x[v] * c_rest + edge);
        edge = 0;
    }
    int any = 1;
    if (flags & BANDED || at->keys % LANES != 0 || !plain) any = hide(a, at, r, position, vecs, x);
    if (!any) {
        for (idx v = first; v < end; v++) AT(scores + v * LANES) = AT(ds + v * LANES) = splat(0);
        return;
    }

    const real base = w->base[r], rest = w->base_rest[r] - edge, delta = w->delta[r];
    const real dp_edge = flags & VALUE_TERMS && s.far ? dp_terms[0] : 0;
    const uint32_t number = drop ? row_number(a, at, r) : 0;
    vec mass = splat(0), ds_mass = splat(0);
#pragma GCC unroll 16
    for (idx v = first; v < end; v++) {
        vec p = x[v] - base - rest;
        if (plain) p = x[v] * c - base + (x[v] * c_rest - rest);
        p = power_of_2(p);
        vec dp = AT(ds + v * LANES), weight = p, d;
        if (flags & VALUE_TERMS && !s.far) dp += AT(dp_terms + v * LANES);
        if (drop) {
            weight = pick(is_kept(a, number, at->key + v * LANES), p * a->keep_scale, splat(0));
            d = (weight * (dp + dp_edge) - p * delta) * a->scale;
        } else {
            d = p * ((dp - (delta - dp_edge)) * a->scale);
        }
        if (!(flags & WHOLE)) d = pick(x[v] != splat(-INFINITY), d, splat(0)); /* not all of dP was computed */
        AT(scores + v * LANES) = weight;
        AT(ds + v * LANES) = d;
        if (s.far) {
            mass += weight;
            ds_mass += d;
        } else if (!by_relation) {
            if (flags & KEY_TERMS) AT(ds_masses + s.start + v * LANES) += d;
            if (sums_weights) AT(masses + s.start + v * LANES) += weight;
        }
    }
    if (s.far && flags & KEY_TERMS) AT(ds_masses + s.start) += ds_mass;
    if (s.far && sums_weights) AT(masses + s.start) += mass;
    if (by_relation && flags & KEY_TERMS) add_by_label(at, vecs, ds, slots, ds_masses);
    if (by_relation && sums_weights) add_by_label(at, vecs, scores, slots, masses);
}

static void backward_tile(const arguments *a, const place *at, idx live, idx position, const backward_space *w) {
    const int flags = row_flags(a, at, position);
#define BACKWARD_ROWS(flags)                                                                                           \
    for (idx r = 0; r < live; r++) backward_row(a, at, r, position + r, w, flags)
    switch (flags) {
        case PLAIN | WHOLE: BACKWARD_ROWS(PLAIN | WHOLE); break;
        case PLAIN | WHOLE | KEY_TERMS: BACKWARD_ROWS(PLAIN | WHOLE | KEY_TERMS); break;
        case PLAIN | WHOLE | KEY_TERMS | VALUE_TERMS: BACKWARD_ROWS(PLAIN | WHOLE | KEY_TERMS | VALUE_TERMS); break;
        default:
            if (!(flags & PLAIN)) BACKWARD_ROWS(flags & ~PLAIN);
            else if (flags & BANDED) BACKWARD_ROWS(flags | PLAIN | BANDED);
            else BACKWARD_ROWS((flags | PLAIN) & ~BANDED);
    }
}

/* Write a gradient of the queries, with zeros from `live` on. */
static void write_gradients(const arguments *a, const array *x, const place *at, idx live, rows from, idx dim) {
    for (idx r = 0; r < at->rows; r++) {
        if (r >= live) write_zeros(x, at->b, at->h, at->first + r, dim, a->type);
        else if (!in_place(a, x, dim))
            write_row(x, at->b, at->h, at->first + r, from.data + r * from.row, dim, 1, a->type);
    }
}

/* The runs of rows that attend to each BAND keys of a tile. */
INLINE void transpose_bands(const place *at, idx live, run *across) {
    for (idx j = 0; j < at->keys; j += BAND) {
        idx first = live, end = 0;
        for (idx r = 0; r < live; r += BAND) {
            const run band = at->bands[r / BAND];
            if (band.first >= j + BAND || band.first + band.count <= j) continue;
            if (first == live) first = r;
            end = r + BAND < live ? r + BAND : live;
        }
        across[j / BAND] = (run){first < end ? first : 0, first < end ? end - first : 0};
    }
}

/* ROWS queries of a head against all of its keys, of which those in `w->held` are loaded. Add to the gradients of keys,
   values and tables. */
static void backward_rows(const arguments *a, place at, idx live, idx share, rows d_keys, rows d_values,
                          const backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, padded = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_of(a), across = up(a->rel_dim, PADDING);
    const idx position = position_of(a, at.b, at.first), visible = visible_keys(a, at.b, position, live);
    const int add = a->pos_query.data != NULL;

    const rows query = rows_of(a, &a->query, at.b, at.h, at.first, live, dim, w->query);
    const rows grad = rows_of(a, &a->grad, at.b, at.h, at.first, live, value_dim, w->grad);
    const rows out = rows_of(a, &a->output, at.b, at.h, at.first, live, value_dim, w->d_query);
    const rows lse = rows_in(&a->lse, at.b, at.h, at.first);
    for (idx r = 0; r < live; r++) {
        vec delta = splat(0);
        for (idx i = 0; i < wide; i += LANES)
            delta += AT(grad.data + r * grad.row + i) * AT(out.data + r * out.row + i);
        w->delta[r] = sum_of(delta);
        const real x = lse.data[r * lse.row];
        w->base[r] = x == -INFINITY ? INFINITY : x * LOG2_E; /* a row that attends to nothing: 2^(x - inf) = 0 */
        w->base_rest[r] = isinf(x) ? 0 : fma(x, LOG2_E, -w->base[r]) + x * LOG2_E_REST;
    }
    const rows rel_query = rel_query_of(a, &at, live, query, w->rel_query);
    at.begin = first_tile(a, position, visible);
    at.labels = reached_by_rows(a, position, at.begin, visible, w->labels);
    if (a->rel_key.data) {
        by_label(w->terms, width, margin, rel_query, live, a->rel_dim, &w->rel_key, at.labels);
        fill_margins(a->clips, w->terms, width, margin, live, at.labels);
        clear(a, w->ds_masses, live, &at);
    }
    if (a->rel_value.data) {
        by_label(w->dp_terms, width, margin, grad, live, value_dim, &w->rel_value, at.labels);
        fill_margins(a->clips, w->dp_terms, width, margin, live, at.labels);
    }
    at.repeats = a->rel_key.data && repeats(a, position, visible);
    if (a->rel_value.data || at.repeats) clear(a, w->masses, live, &at);
    const lhs query_lhs = lhs_of(query, live, padded, w->query_lhs);
    const lhs grad_lhs = lhs_of(grad, live, wide, w->grad_lhs);
    const rhs query_rhs = rhs_of(query, live, padded, w->query_rhs);
    const rhs grad_rhs = rhs_of(grad, live, wide, w->grad_rhs);
    const rows d_query = result_rows(a, &a->d_query, at.b, at.h, at.first, dim, w->d_query);

    for (at.key = at.begin; at.key < visible; at.key += KEYS) {
        next_tile(a, &at, position, visible);
        const idx n = at.vecs * LANES, held = at.key - w->held.first;
        const rhs key_columns = columns_at(w->key_columns + held * packed(padded), padded);
        const rhs value_columns = columns_at(w->value_columns + held * packed(wide), wide);
        if (add) terms_of_tile(a, &w->strips, &at, live, position, w->scores);
        if (at.banded) {
            if (add) memset(w->ds, 0, sizeof(real) * ROWS * KEYS); /* outside the bands */
            multiply_columns(w->scores, KEYS, query_lhs, key_columns, live, at.bands, dim, add);
            multiply_columns(w->ds, KEYS, grad_lhs, value_columns, live, at.bands, value_dim, 0);
        } else {
            multiply(w->scores, KEYS, query_lhs, key_columns, live, n, dim, add);
            multiply(w->ds, KEYS, grad_lhs, value_columns, live, n, value_dim, 0);
        }
        backward_tile(a, &at, live, position, w);
        if (add) add_tile(a, &w->strips, &at, live, position, w->ds);
        const rows weights = {w->scores, KEYS}, ds = {w->ds, KEYS};
        real *d_value = d_values.data + at.key * d_values.row, *d_key = d_keys.data + at.key * d_keys.row;
        if (at.banded) {
            run across[KEYS / BAND];
            transpose_bands(&at, live, across);
            multiply_inner(d_value, d_values.row, lhs_of_transposed(weights, at.keys, live, w->tile_lhs), grad_rhs,
                           at.keys, wide, across, 1);
            multiply_inner(d_key, d_keys.row, lhs_of_transposed(ds, at.keys, live, w->tile_lhs), query_rhs, at.keys,
                           padded, across, 1);
            multiply_inner(d_query.data, d_query.row, lhs_of(ds, live, n, w->tile_lhs), rows_from(w->key_rows, held),
                           live, padded, at.bands, at.key > at.begin);
        } else {
            multiply(d_value, d_values.row, lhs_of_transposed(weights, at.keys, live, w->tile_lhs), grad_rhs, at.keys,
                     wide, live, 1);
            multiply(d_key, d_keys.row, lhs_of_transposed(ds, at.keys, live, w->tile_lhs), query_rhs, at.keys, padded,
                     live, 1);
            multiply(d_query.data, d_query.row, lhs_of(ds, live, n, w->tile_lhs), rows_from(w->key_rows, held), live,
                     padded, at.keys, at.key > at.begin);
        }
    }

    const idx tables = share * a->heads + at.h; /* number of table gradients before this head's */
    const int own = a->rel_query.data != NULL;
    rows d_rel_query = d_query;
    if (own) d_rel_query = result_rows(a, &a->d_rel_query, at.b, at.h, at.first, a->rel_dim, w->d_rel_query);
    if (a->rel_key.data && at.begin < visible) {
        if (at.repeats) level(a, w->ds_masses, w->masses, live, &at);
        fold_margins(a->clips, w->ds_masses, width, margin, live, at.labels);
        const rows table = rows_at(&w->rel_key, at.labels.first);
        real *d_rows = a->d_rel_key + (tables * a->labels + at.labels.first) * across;
        product(d_rel_query.data, d_rel_query.row, w->ds_masses + margin, width, 1, table.data, table.row, PANEL, live,
                across, at.labels.count, !own);
        product(d_rows, across, w->ds_masses + margin, 1, width, rel_query.data, rel_query.row, PANEL, at.labels.count,
                across, live, 1);
    }
    if (a->rel_value.data && at.begin < visible) {
        fold_margins(a->clips, w->masses, width, margin, live, at.labels);
        real *d_rows = a->d_rel_value + (tables * a->labels + at.labels.first) * wide;
        product(d_rows, wide, w->masses + margin, 1, width, grad.data, grad.row, PANEL, at.labels.count, wide, live, 1);
    }
    write_gradients(a, &a->d_query, &at, at.begin < visible ? live : 0, d_query, dim);
    if (own) write_gradients(a, &a->d_rel_query, &at, at.begin < visible ? live : 0, d_rel_query, a->rel_dim);
}

/* Load keys and values of a head. */
static void load_keys(const arguments *a, idx b, idx kv, run keys, backward_space *w) {
    const idx padded = up(a->dim, PADDING), wide = up(a->value_dim, PADDING), most = up(most_keys(a, TASK_ROWS), KEYS);
    w->held = keys;
    for (idx j = 0; j < keys.count; j += KEYS) {
        const idx some = tile_len(j, keys.count);
        const rows key = rows_once(a, &a->key, b, kv, keys.first + j, some, a->dim, w->space);
        columns_of(w->key_columns + j * packed(padded), key, some, padded, w->columns);
        const rows value = rows_once(a, &a->value, b, kv, keys.first + j, some, a->value_dim, w->space);
        columns_of(w->value_columns + j * packed(wide), value, some, wide, w->columns);
    }
    w->key_rows = all_rows(a, &a->key, b, kv, keys, most, a->dim, w->space, w->keys);
}

/* All heads that share one head of keys. */
static void backward_head(const arguments *a, idx b, idx kv, idx share, backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, padded = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx valid = valid_keys(a, b), group = a->heads / a->key_heads;
    const int by_window = most_keys(a, TASK_ROWS) < a->keys;
    if (!by_window) load_keys(a, b, kv, (run){0, valid}, w);
    const rows d_keys = result_rows(a, &a->d_key, b, kv, 0, dim, w->d_keys);
    const rows d_values = result_rows(a, &a->d_value, b, kv, 0, value_dim, w->d_values);
    for (idx j = 0; j < valid; j++) memset(d_keys.data + j * d_keys.row, 0, sizeof(real) * padded);
    for (idx j = 0; j < valid; j++) memset(d_values.data + j * d_values.row, 0, sizeof(real) * wide);
    for (idx h = kv * group; h < (kv + 1) * group; h++)
        for (idx first = 0; first < a->queries; first += ROWS) {
            if (first % TASK_ROWS == 0) {
                const idx rest = a->queries - first, several = rest < TASK_ROWS ? rest : TASK_ROWS;
                const idx position = position_of(a, b, first), live = live_rows(a, b, first, several);
                const idx visible = visible_keys(a, b, position, live);
                const idx begin = first_tile(a, position, visible);
                if (by_window) load_keys(a, b, kv, (run){begin, visible - begin}, w);
                w->labels = to_load(w->labels, reached(a, position, up(several, ROWS), begin, visible));
                load_table(a, &w->rel_key, &a->rel_key, h, w->labels, a->rel_dim);
                load_table(a, &w->rel_value, &a->rel_value, h, w->labels, value_dim);
                load_table(a, &w->strips.table, &a->pos_query, h, w->labels, dim);
                if (a->pos_query.data)
                    fill_key_strips(a, &w->strips, b, kv, (run){begin, visible - begin}, position, up(several, ROWS),
                                    w->space);
            }
            const idx count = a->queries - first < ROWS ? a->queries - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            backward_rows(a, at, live_rows(a, b, first, count), share, d_keys, d_values, w);
            if (a->pos_query.data && ((first + ROWS) % TASK_ROWS == 0 || first + ROWS >= a->queries))
                add_key_gradients(a, &w->strips, b, kv, d_keys,
                                  a->d_pos_query + (share * a->heads + h) * a->labels * padded, w->space);
        }
    for (idx j = 0; j < a->keys; j++) {
        if (j >= valid) {
            write_zeros(&a->d_key, b, kv, j, dim, a->type);
            write_zeros(&a->d_value, b, kv, j, value_dim, a->type);
            continue;
        }
        if (!in_place(a, &a->d_key, dim)) write_row(&a->d_key, b, kv, j, d_keys.data + j * padded, dim, 1, a->type);
        if (!in_place(a, &a->d_value, value_dim))
            write_row(&a->d_value, b, kv, j, d_values.data + j * wide, value_dim, 1, a->type);
    }
}

static void backward_worker(void *data) {
    pool *work = data;
    const arguments *a = work->a;
    const idx padded = up(a->dim, PADDING), wide = up(a->value_dim, PADDING), width = strip_width(a),
              all = up(a->keys, KEYS), most = up(most_keys(a, TASK_ROWS), KEYS);
    const idx widest = padded > wide ? padded : wide;
    const int pairs = TOGETHER > 1;
    const idx labels = up(most_labels(a, TASK_ROWS), KEYS), across = up(a->rel_dim, PADDING);
    backward_space w = {.factor = factor_of(a->scale), .rel_key.head = -1, .rel_value.head = -1,
                        .strips.table.head = -1};
    const piece pieces[] = {
        {&w.space, KEYS * widest},
        {&w.columns, pairs ? KEYS * widest : 0},
        {&w.key_columns, most * packed(padded)},
        {&w.value_columns, most * packed(wide)},
        {&w.keys, all_rows_size(a, &a->key, most, a->dim)},
        {&w.query_lhs, pairs ? ROWS * packed(padded) : 0},
        {&w.grad_lhs, pairs ? ROWS * packed(wide) : 0},
        {&w.query_rhs, pairs ? packed(ROWS) * padded : 0},
        {&w.grad_rhs, pairs ? packed(ROWS) * wide : 0},
        {&w.tile_lhs, pairs ? ROWS * packed(KEYS) : 0},
        {&w.d_keys, in_place(a, &a->d_key, a->dim) ? 0 : all * padded},
        {&w.d_values, in_place(a, &a->d_value, a->value_dim) ? 0 : all * wide},
        {&w.query, ROWS * padded},
        {&w.rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.d_rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.rel_key.space, !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : labels * across},
        {&w.strips.terms, a->pos_query.data ? most * key_strip_width(a) : 0},
        {&w.strips.masses, a->pos_query.data ? most * key_strip_width(a) : 0},
        {&w.strips.table.space, !a->pos_query.data || in_place(a, &a->pos_query, a->dim) ? 0 : labels * padded},
        {&w.strips.table.transposed, a->pos_query.data ? labels * padded : 0},
        {&w.rel_key.transposed, a->rel_key.data ? labels * across : 0},
        {&w.rel_value.space, !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : labels * wide},
        {&w.rel_value.transposed, a->rel_value.data ? labels * wide : 0},
        {&w.grad, ROWS * wide},
        {&w.d_query, ROWS * widest}, /* first used for the output */
        {&w.scores, ROWS * KEYS},
        {&w.ds, ROWS * KEYS},
        {&w.terms, a->rel_key.data ? ROWS * width : 0},
        {&w.dp_terms, a->rel_value.data ? ROWS * width : 0},
        {&w.masses, a->rel_value.data || (a->rel_key.data && may_repeat(a)) ? ROWS * width : 0},
        {&w.ds_masses, a->rel_key.data ? ROWS * width : 0},
        {&w.delta, ROWS},
        {&w.base, ROWS},
        {&w.base_rest, ROWS},
    };
    real *block = allocate(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;
    begin_products();

    /* One thread takes all heads of a sequence, which are neighbours in memory, if there are enough tasks for all. */
    const idx parts = a->shares >= 4 * a->threads ? 1 : a->key_heads;
    for (idx task; (task = next_task(work)) < a->shares * parts;) {
        const idx share = task / parts, part = task % parts;
        for (idx b = share * a->batch / a->shares; b < (share + 1) * a->batch / a->shares; b++)
            for (idx kv = part * a->key_heads / parts; kv < (part + 1) * a->key_heads / parts; kv++)
                backward_head(a, b, kv, share, &w);
    }
    end_products();
    free(block);
}

#endif
