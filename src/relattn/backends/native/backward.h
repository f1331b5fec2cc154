/* Backward: the gradients, from probabilities made again.

   dP_ij = g_i . (v_j + aV_ij)      delta_i = g_i . z_i      dS_ij = scale (w_ij dP_ij - p_ij delta_i)

   where w_ij are the weights of the values: p_ij as dropout left them. */

#ifndef RELATTN_BACKWARD_H
#define RELATTN_BACKWARD_H

#include "products.h"
#include "strips.h"
#include "threads.h"

typedef struct {
    real *space, *columns, *keys, *query, *rel_query, *grad, *scores, *ds, *d_query, *d_rel_query, *d_keys, *d_values;
    real *terms, *dp_terms, *masses, *ds_masses, *delta, *lse;
    number *key_columns, *value_columns, *key_pairs, *query_left, *grad_left, *query_right, *grad_right, *tile_left;
    table rel_key, rel_value;
    run labels; /* those that the tables hold */
} backward_space;

/* One row of a tile: its scores become the weights of values, and in `ds` the products of g and values become dS. */
INLINE void backward_row(const arguments *a, const place *at, idx r, idx position, const backward_space *w) {
    const idx width = strip_width(a);
    real *scores = w->scores + r * KEYS, *ds = w->ds + r * KEYS;
    real space[KEYS], dp_space[KEYS];
    const real *terms = a->rel_key.data ? terms_of(a, at, r, w->terms + r * width, position, space) : NULL;
    const real *dp_terms = a->rel_value.data ? terms_of(a, at, r, w->dp_terms + r * width, position, dp_space) : NULL;
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
    if (a->rel_key.data) onto_labels(a, at, r, position, ds, w->ds_masses + r * width);
    if (a->rel_value.data || at->repeats) onto_labels(a, at, r, position, scores, w->masses + r * width);
}

/* The rows of a result of the queries: zeros from `live` on. */
static void write_gradients(const arguments *a, const array *x, const place *at, idx live, rows from, idx dim) {
    for (idx r = 0; r < at->rows; r++) {
        if (r >= live) write_zeros(x, at->b, at->h, at->first + r, dim, a->type);
        else if (!in_place(a, x, dim))
            write_row(x, at->b, at->h, at->first + r, from.data + r * from.row, dim, 1, a->type);
    }
}

/* ROWS queries of a head against all of its keys; adds to the gradients of keys, values and tables. */
static void backward_rows(const arguments *a, place at, idx live, idx share, right keys, rows d_keys, rows d_values,
                          const backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_of(a), across = up(a->rel_dim, PADDING);
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
    const rows rel_query = rel_query_of(a, &at, live, query, w->rel_query);
    at.labels = reached_by_rows(a, position, visible, w->labels);
    if (a->rel_key.data) {
        by_label(a, w->terms, rel_query, live, a->rel_dim, &w->rel_key, &at);
        extend(a, w->terms, live, &at);
        clear(a, w->ds_masses, live, &at);
    }
    if (a->rel_value.data) {
        by_label(a, w->dp_terms, grad, live, value_dim, &w->rel_value, &at);
        extend(a, w->dp_terms, live, &at);
    }
    at.repeats = a->rel_key.data && repeats(a, position, visible);
    if (a->rel_value.data || at.repeats) clear(a, w->masses, live, &at);
    const left query_left = left_of(query, live, deep, w->query_left);
    const left grad_left = left_of(grad, live, wide, w->grad_left);
    const right query_right = right_of(query, live, deep, w->query_right);
    const right grad_right = right_of(grad, live, wide, w->grad_right);
    const rows d_query = room_for(a, &a->d_query, at.b, at.h, at.first, dim, w->d_query);

    for (at.key = 0; at.key < visible; at.key += KEYS) {
        at.keys = lot(at.key, visible);
        at.vecs = (at.keys + LANES - 1) / LANES;
        const idx n = at.vecs * LANES;
        const right key_columns = {w->key_columns + at.key * packed(deep), KEYS};
        const right value_columns = {w->value_columns + at.key * packed(wide), KEYS};
        multiply(w->scores, KEYS, query_left, key_columns, live, n, dim, 0);
        multiply(w->ds, KEYS, grad_left, value_columns, live, n, value_dim, 0);
        for (idx r = 0; r < live; r++) backward_row(a, &at, r, position + r, w);
        const rows weights = {w->scores, KEYS}, ds = {w->ds, KEYS};
        multiply(d_values.data + at.key * d_values.row, d_values.row,
                 left_of_turned(weights, at.keys, live, w->tile_left), grad_right, at.keys, wide, live, 1);
        multiply(d_keys.data + at.key * d_keys.row, d_keys.row, left_of_turned(ds, at.keys, live, w->tile_left),
                 query_right, at.keys, deep, live, 1);
        multiply(d_query.data, d_query.row, left_of(ds, live, n, w->tile_left), rights_from(keys, at.key), live, deep,
                 at.keys, at.key > 0);
    }

    const idx tables = share * a->heads + at.h; /* gradients of tables before this head's */
    const int own = a->rel_query.data != NULL;
    rows d_rel_query = d_query;
    if (own) d_rel_query = room_for(a, &a->d_rel_query, at.b, at.h, at.first, a->rel_dim, w->d_rel_query);
    if (a->rel_key.data && visible > 0) {
        if (at.repeats) level(a, w->ds_masses, w->masses, live, &at);
        collapse(a, w->ds_masses, live, &at);
        const rows table = rows_at(&w->rel_key, at.labels.first);
        real *d_rows = a->d_rel_key + (tables * a->labels + at.labels.first) * across;
        product(d_rel_query.data, d_rel_query.row, w->ds_masses + margin, width, 1, table.data, table.row, live, across,
                at.labels.count, !own);
        product(d_rows, across, w->ds_masses + margin, 1, width, rel_query.data, rel_query.row, at.labels.count, across,
                live, 1);
    }
    if (a->rel_value.data && visible > 0) {
        collapse(a, w->masses, live, &at);
        real *d_rows = a->d_rel_value + (tables * a->labels + at.labels.first) * wide;
        product(d_rows, wide, w->masses + margin, 1, width, grad.data, grad.row, at.labels.count, wide, live, 1);
    }
    write_gradients(a, &a->d_query, &at, visible > 0 ? live : 0, d_query, dim);
    if (own) write_gradients(a, &a->d_rel_query, &at, visible > 0 ? live : 0, d_rel_query, a->rel_dim);
}

/* All heads that share a head of keys. */
static void backward_head(const arguments *a, idx b, idx kv, idx share, backward_space *w) {
    const idx dim = a->dim, value_dim = a->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx valid = valid_keys(a, b), group = a->heads / a->key_heads;
    for (idx j = 0; j < valid; j += KEYS) {
        const idx some = lot(j, valid);
        const rows key = rows_of(a, &a->key, b, kv, j, some, dim, w->space);
        columns_of(w->key_columns + j * packed(deep), key, some, deep, w->columns);
        const rows value = rows_of(a, &a->value, b, kv, j, some, value_dim, w->space);
        columns_of(w->value_columns + j * packed(wide), value, some, wide, w->columns);
    }
    const right keys = all_rows(a, &a->key, b, kv, valid, dim, w->keys, w->key_pairs);
    const rows d_keys = room_for(a, &a->d_key, b, kv, 0, dim, w->d_keys);
    const rows d_values = room_for(a, &a->d_value, b, kv, 0, value_dim, w->d_values);
    for (idx j = 0; j < valid; j++) memset(d_keys.data + j * d_keys.row, 0, sizeof(real) * deep);
    for (idx j = 0; j < valid; j++) memset(d_values.data + j * d_values.row, 0, sizeof(real) * wide);
    for (idx h = kv * group; h < (kv + 1) * group; h++)
        for (idx first = 0; first < a->queries; first += ROWS) {
            if (first % TASK_ROWS == 0) {
                const idx rest = a->queries - first, several = rest < TASK_ROWS ? rest : TASK_ROWS;
                const idx position = position_of(a, b, first), live = live_rows(a, b, first, several);
                const idx visible = visible_keys(a, b, position, live);
                w->labels = to_hold(w->labels, reached(a, position, up(several, ROWS), visible));
                hold(a, &w->rel_key, &a->rel_key, h, w->labels, a->rel_dim);
                hold(a, &w->rel_value, &a->rel_value, h, w->labels, value_dim);
            }
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
    const idx widest = deep > wide ? deep : wide;
    const int pairs = TOGETHER > 1;
    const idx labels = up(most_labels(a, TASK_ROWS), KEYS), across = up(a->rel_dim, PADDING);
    backward_space w = {.rel_key.head = -1, .rel_value.head = -1};
    const piece pieces[] = {
        {&w.space, KEYS * widest},
        {&w.columns, pairs ? KEYS * widest : 0},
        {&w.key_columns, all * packed(deep)},
        {&w.value_columns, all * packed(wide)},
        {&w.keys, in_place(a, &a->key, a->dim) ? 0 : (pairs ? KEYS : all) * deep},
        {&w.key_pairs, pairs ? all * deep / TOGETHER : 0},
        {&w.query_left, pairs ? ROWS * packed(deep) : 0},
        {&w.grad_left, pairs ? ROWS * packed(wide) : 0},
        {&w.query_right, pairs ? packed(ROWS) * deep : 0},
        {&w.grad_right, pairs ? packed(ROWS) * wide : 0},
        {&w.tile_left, pairs ? ROWS * packed(KEYS) : 0},
        {&w.d_keys, in_place(a, &a->d_key, a->dim) ? 0 : all * deep},
        {&w.d_values, in_place(a, &a->d_value, a->value_dim) ? 0 : all * wide},
        {&w.query, ROWS * deep},
        {&w.rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.d_rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.rel_key.space, !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : labels * across},
        {&w.rel_key.turned, a->rel_key.data ? labels * across : 0},
        {&w.rel_value.space, !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : labels * wide},
        {&w.rel_value.turned, a->rel_value.data ? labels * wide : 0},
        {&w.grad, ROWS * wide},
        {&w.d_query, ROWS * widest}, /* and before it, the output */
        {&w.scores, ROWS * KEYS},
        {&w.ds, ROWS * KEYS},
        {&w.terms, a->rel_key.data ? ROWS * width : 0},
        {&w.dp_terms, a->rel_value.data ? ROWS * width : 0},
        {&w.masses, a->rel_value.data || (a->rel_key.data && may_repeat(a)) ? ROWS * width : 0},
        {&w.ds_masses, a->rel_key.data ? ROWS * width : 0},
        {&w.delta, ROWS},
        {&w.lse, ROWS},
    };
    real *block = carve(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;
    begin_products();

    /* heads of a sequence, which lie side by side, go to one thread where that leaves enough for all */
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
