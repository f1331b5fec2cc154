/* Backward: the gradients, from probabilities made again.

   dP_ij = g_i . (v_j + aV_ij)      delta_i = g_i . z_i      dS_ij = scale (w_ij dP_ij - p_ij delta_i)

   where w_ij are the weights of the values: p_ij as dropout left them. */

#ifndef RELATTN_BACKWARD_H
#define RELATTN_BACKWARD_H

#include "strips.h"
#include "threads.h"

typedef struct {
    real *keys_t, *values_t, *keys, *query, *grad, *scores, *ds, *d_query, *d_keys, *d_values;
    real *terms, *dp_terms, *masses, *ds_masses, *delta, *lse;
} backward_space;

/* One row of a tile: its scores become the weights of values, and in `ds` the products of g and values become dS. */
INLINE void backward_row(const arguments *a, const place *at, idx r, idx position, const backward_space *w) {
    const idx width = strip_width(a);
    real *scores = w->scores + r * KEYS, *ds = w->ds + r * KEYS;
    real space[KEYS], dp_space[KEYS];
    const real *terms = a->rel_key ? terms_of(a, at, r, w->terms + r * width, position, space) : NULL;
    const real *dp_terms = a->rel_value ? terms_of(a, at, r, w->dp_terms + r * width, position, dp_space) : NULL;
    complete(a, at, r, position, scores, terms);

    const vec lse = splat(w->lse[r]), delta = splat(w->delta[r]);
    const int drop = drops(a);
    const uint32_t number = drop ? row_number(a, at, r) : 0;
    for (idx v = 0; v < at->vecs; v++) {
        const vec p = exp_of(AT(scores + v * LANES) - lse);
        vec dp = AT(ds + v * LANES), weight = p;
        if (dp_terms) dp += AT(dp_terms + v * LANES);
        if (drop) weight = pick(is_kept(a, number, at->key + v * LANES), p * a->keep_scale, splat(0));
        AT(scores + v * LANES) = weight;
        AT(ds + v * LANES) = (weight * dp - p * delta) * a->scale;
    }
    if (a->rel_key) onto_labels(a, at, r, position, ds, w->ds_masses + r * width);
    if (a->rel_key || a->rel_value) onto_labels(a, at, r, position, scores, w->masses + r * width);
}

/* ROWS queries of a head against all of its keys; adds to the gradients of keys, values and tables. */
static void backward_rows(const arguments *a, place at, idx live, idx share, rows keys, rows d_keys, rows d_values,
                          const backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_of(a), labels = up(a->labels, PADDING);
    const idx table = at.h % a->rel_key_heads, value_table = at.h % a->rel_value_heads;
    const real *rel_key = a->rel_key + table * a->labels * deep, *rel_key_t = a->rel_key_t + table * dim * labels;
    const real *rel_value = a->rel_value + value_table * a->labels * wide;
    const real *rel_value_t = a->rel_value_t + value_table * value_dim * labels;
    const idx position = position_of(a, at.b, at.first), visible = visible_keys(a, at.b, position, live);

    const rows query = rows_of(a, &a->query, at.b, at.h, at.first, live, dim, w->query);
    const rows grad = rows_of(a, &a->grad, at.b, at.h, at.first, live, value_dim, w->grad);
    const rows out = rows_of(a, &a->output, at.b, at.h, at.first, live, value_dim, w->d_query);
    const rows lse = lying(&a->lse, at.b, at.h, at.first);
    for (idx r = 0; r < live; r++) {
        vec delta = splat(0);
        for (idx i = 0; i < wide; i += LANES)
            delta += AT(grad.data + r * grad.row + i) * AT(out.data + r * out.row + i);
        w->delta[r] = sum_of(delta);
        const real x = lse.data[r * lse.row];
        w->lse[r] = x == -INFINITY ? INFINITY : x; /* a row that sees nothing: e^(x - inf) = 0 */
    }
    if (a->rel_key) {
        by_label(a, w->terms, query, live, dim, rel_key, rel_key_t, a->scale);
        extend(a, w->terms, live);
        memset(w->ds_masses, 0, sizeof(real) * live * width);
    }
    if (a->rel_value) {
        by_label(a, w->dp_terms, grad, live, value_dim, rel_value, rel_value_t, 1);
        extend(a, w->dp_terms, live);
    }
    if (a->rel_key || a->rel_value) memset(w->masses, 0, sizeof(real) * live * width);
    const rows d_query = room_for(a, &a->d_query, at.b, at.h, at.first, dim, w->d_query);

    for (at.key = 0; at.key < visible; at.key += KEYS) {
        at.keys = lot(at.key, visible);
        at.vecs = (at.keys + LANES - 1) / LANES;
        const idx n = at.vecs * LANES;
        product(w->scores, KEYS, query.data, query.row, 1, w->keys_t + at.key * deep, KEYS, live, n, dim, 0);
        product(w->ds, KEYS, grad.data, grad.row, 1, w->values_t + at.key * wide, KEYS, live, n, value_dim, 0);
        for (idx r = 0; r < live; r++) backward_row(a, &at, r, position + r, w);
        product(d_values.data + at.key * d_values.row, d_values.row, w->scores, 1, KEYS, grad.data, grad.row, at.keys,
                wide, live, 1);
        product(d_keys.data + at.key * d_keys.row, d_keys.row, w->ds, 1, KEYS, query.data, query.row, at.keys, deep,
                live, 1);
        product(d_query.data, d_query.row, w->ds, KEYS, 1, keys.data + at.key * keys.row, keys.row, live, deep,
                at.keys, at.key > 0);
    }

    if (a->rel_key && visible > 0) {
        level(a, w->ds_masses, w->masses, live);
        collapse(a, w->ds_masses, live);
        real *d_rows = a->d_rel_key + (share * a->rel_key_heads + table) * a->labels * deep;
        product(d_query.data, d_query.row, w->ds_masses + margin, width, 1, rel_key, deep, live, deep, a->labels, 1);
        product(d_rows, deep, w->ds_masses + margin, 1, width, query.data, query.row, a->labels, deep, live, 1);
    }
    if (a->rel_value && visible > 0) {
        collapse(a, w->masses, live);
        real *d_rows = a->d_rel_value + (share * a->rel_value_heads + value_table) * a->labels * wide;
        product(d_rows, wide, w->masses + margin, 1, width, grad.data, grad.row, a->labels, wide, live, 1);
    }
    for (idx r = 0; r < at.rows; r++) {
        if (r >= live || visible == 0) write_zeros(&a->d_query, at.b, at.h, at.first + r, dim, a->type);
        else if (!in_place(a, &a->d_query, dim))
            write_row(&a->d_query, at.b, at.h, at.first + r, d_query.data + r * d_query.row, dim, 1, a->type);
    }
}

/* All heads that share a head of keys. */
static void backward_head(const arguments *a, idx b, idx kv, idx share, const backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx valid = valid_keys(a, b), group = a->heads / a->key_heads;
    const rows keys = rows_of(a, &a->key, b, kv, 0, valid, dim, w->keys);
    const rows values = rows_of(a, &a->value, b, kv, 0, valid, value_dim, w->d_values);
    for (idx j = 0; j < valid; j += KEYS) {
        turn(w->keys_t + j * deep, (rows){keys.data + j * keys.row, keys.row}, lot(j, valid), deep);
        turn(w->values_t + j * wide, (rows){values.data + j * values.row, values.row}, lot(j, valid), wide);
    }
    const rows d_keys = room_for(a, &a->d_key, b, kv, 0, dim, w->d_keys);
    const rows d_values = room_for(a, &a->d_value, b, kv, 0, value_dim, w->d_values);
    for (idx j = 0; j < valid; j++) memset(d_keys.data + j * d_keys.row, 0, sizeof(real) * deep);
    for (idx j = 0; j < valid; j++) memset(d_values.data + j * d_values.row, 0, sizeof(real) * wide);
    for (idx h = kv * group; h < (kv + 1) * group; h++)
        for (idx first = 0; first < a->queries; first += ROWS) {
            const idx count = a->queries - first < ROWS ? a->queries - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            backward_rows(a, at, live_rows(a, b, first, count), share, keys, d_keys, d_values, w);
        }
    for (idx j = 0; j < a->keys; j++) {
        if (j >= valid) {
            write_zeros(&a->d_key, b, kv, j, dim, a->type);
            write_zeros(&a->d_value, b, kv, j, value_dim, a->type);
            continue;
        }
        if (!in_place(a, &a->d_key, dim)) write_row(&a->d_key, b, kv, j, d_keys.data + j * deep, dim, 1, a->type);
        if (!in_place(a, &a->d_value, value_dim))
            write_row(&a->d_value, b, kv, j, d_values.data + j * wide, value_dim, 1, a->type);
    }
}

static void backward_worker(void *data) {
    crew *work = data;
    const arguments *a = work->a;
    const idx deep = up(a->dim, PADDING), wide = up(a->value_dim, PADDING), width = strip_width(a),
              all = up(a->keys, KEYS);
    const int values_apart = !in_place(a, &a->value, a->value_dim) || !in_place(a, &a->d_value, a->value_dim);
    backward_space w;
    const piece pieces[] = {
        {&w.keys_t, all * deep},
        {&w.values_t, all * wide},
        {&w.keys, in_place(a, &a->key, a->dim) ? 0 : all * deep},
        {&w.d_keys, in_place(a, &a->d_key, a->dim) ? 0 : all * deep},
        {&w.d_values, values_apart ? all * wide : 0}, /* and before it, the values */
        {&w.query, ROWS * deep},
        {&w.grad, ROWS * wide},
        {&w.d_query, ROWS * (deep > wide ? deep : wide)}, /* and before it, the output */
        {&w.scores, ROWS * KEYS},
        {&w.ds, ROWS * KEYS},
        {&w.terms, a->rel_key ? ROWS * width : 0},
        {&w.dp_terms, a->rel_value ? ROWS * width : 0},
        {&w.masses, a->rel_key || a->rel_value ? ROWS * width : 0},
        {&w.ds_masses, a->rel_key ? ROWS * width : 0},
        {&w.delta, ROWS},
        {&w.lse, ROWS},
    };
    real *block = carve(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;

    const idx tasks = a->batch * a->key_heads;
    for (idx share; (share = next_task(work)) < a->shares;)
        for (idx task = share * tasks / a->shares; task < (share + 1) * tasks / a->shares; task++)
            backward_head(a, task / a->key_heads, task % a->key_heads, share, &w);
    free(block);
}

#endif
