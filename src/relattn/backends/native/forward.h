/* Forward: the output and the log-sum-exp. */

#ifndef RELATTN_FORWARD_H
#define RELATTN_FORWARD_H

#include "products.h"
#include "strips.h"
#include "threads.h"

typedef struct {
    real *space, *columns, *query, *rel_query, *values, *scores, *output, *terms, *masses, *highest, *total;
    number *keys, *value_pairs, *query_left, *scores_left; /* as they are multiplied */
    table rel_key, rel_value;
    run labels; /* those that the tables hold */
    idx packed; /* the head whose keys and values are here, -1 for none */
} forward_space;

/* One row of a tile: its scores become probabilities under the highest score so far. Whether it sees anything. */
INLINE int forward_row(const arguments *a, const place *at, idx r, idx position, rows out, const forward_space *w) {
    const idx width = strip_width(a), used = used_of(a, at), wide = up(a->value_dim, PADDING);
    real *scores = w->scores + r * KEYS, *output = out.data + r * out.row, *masses = w->masses + r * width;
    real space[KEYS];
    const real *terms = a->rel_key.data ? terms_of(a, at, r, w->terms + r * width, position, space) : NULL;
    const int seen = complete(a, at, r, position, scores, terms);

    vec high = splat(-INFINITY);
    for (idx v = 0; v < at->vecs; v++) {
        const vec x = AT(scores + v * LANES);
        high = pick(x > high, x, high);
    }
    const real top = max_of(high);
    if (top > w->highest[r]) {
        const real shrink = w->highest[r] == -INFINITY ? 0 : exp(w->highest[r] - top);
        w->highest[r] = top;
        w->total[r] *= shrink;
        if (at->key > 0) {
            for (idx i = 0; i < wide; i += LANES) AT(output + i) *= shrink;
            if (a->rel_value.data)
                for (idx i = 0; i < used; i += LANES) AT(masses + i) *= shrink;
        }
    }
    const vec base = splat(w->highest[r] == -INFINITY ? 0 : w->highest[r]);
    const int drop = drops(a);
    const uint32_t number = drop ? row_number(a, at, r) : 0;
    vec total = splat(0);
    for (idx v = 0; v < at->vecs; v++) {
        vec p = exp_of(AT(scores + v * LANES) - base);
        total += p;
        if (drop) p = pick(is_kept(a, number, at->key + v * LANES), p, splat(0));
        AT(scores + v * LANES) = p;
    }
    w->total[r] += sum_of(total);
    if (a->rel_value.data) onto_labels(a, at, r, position, scores, masses);
    return seen;
}

/* Products of so few queries with keys that turning the keys to columns would cost more. */
static void few_products(real *scores, rows query, idx live, rows keys, const place *at, idx deep) {
    for (idx r = 0; r < live; r++)
        for (idx j = 0; j < at->vecs * LANES; j++) {
            vec sum = splat(0);
            for (idx i = 0; i < deep && j < at->keys; i += LANES)
                sum += AT(query.data + r * query.row + i) * AT(keys.data + (at->key + j) * keys.row + i);
            scores[r * KEYS + j] = sum_of(sum);
        }
}

/* ROWS queries of a head against all of its keys, which are turned to columns or, for FEW queries, are not. */
static void forward_rows(const arguments *a, place at, idx live, rows keys, right values, const forward_space *w) {
    const idx dim = a->dim, deep = up(dim, PADDING), wide = up(a->value_dim, PADDING);
    const idx position = position_of(a, at.b, at.first), visible = visible_keys(a, at.b, position, live);
    char seen[ROWS] = {0};

    const rows query = rows_of(a, &a->query, at.b, at.h, at.first, live, dim, w->query);
    const left query_left = left_of(query, live, deep, w->query_left);
    const rows out = room_for(a, &a->output, at.b, at.h, at.first, a->value_dim, w->output);
    at.labels = reached_by_rows(a, position, visible, w->labels);
    if (a->rel_key.data) {
        const rows x = rel_query_of(a, &at, live, query, w->rel_query);
        by_label(a, w->terms, x, live, a->rel_dim, &w->rel_key, &at);
        extend(a, w->terms, live, &at);
    }
    if (a->rel_value.data) clear(a, w->masses, live, &at);
    for (idx r = 0; r < live; r++) w->highest[r] = -INFINITY, w->total[r] = 0;

    for (at.key = 0; at.key < visible; at.key += KEYS) {
        at.keys = lot(at.key, visible);
        at.vecs = (at.keys + LANES - 1) / LANES;
        if (a->queries < FEW) few_products(w->scores, query, live, keys, &at, deep);
        else {
            const right columns = {w->keys + at.key * packed(deep), KEYS};
            multiply(w->scores, KEYS, query_left, columns, live, at.vecs * LANES, dim, 0);
        }
        for (idx r = 0; r < live; r++) seen[r] |= (char)forward_row(a, &at, r, position + r, out, w);
        const left weights = left_of((rows){w->scores, KEYS}, live, at.vecs * LANES, w->scores_left);
        multiply(out.data, out.row, weights, rights_from(values, at.key), live, wide, at.keys, at.key > 0);
    }

    if (a->rel_value.data && visible > 0) {
        const rows table = rows_at(&w->rel_value, at.labels.first);
        collapse(a, w->masses, live, &at);
        product(out.data, out.row, w->masses + margin_of(a), strip_width(a), 1, table.data, table.row, live, wide,
                at.labels.count, 1);
    }
    const rows lse = lying(&a->lse, at.b, at.h, at.first);
    for (idx r = 0; r < at.rows; r++) {
        const int empty = r >= live || !seen[r];
        lse.data[r * lse.row] = empty ? -INFINITY : w->highest[r] + log(w->total[r]);
        if (empty) write_zeros(&a->output, at.b, at.h, at.first + r, a->value_dim, a->type);
        else
            write_row(&a->output, at.b, at.h, at.first + r, out.data + r * out.row, a->value_dim,
                      a->keep_scale / w->total[r], a->type);
    }
}

static void forward_worker(void *data) {
    crew *work = data;
    const arguments *a = work->a;
    const idx deep = up(a->dim, PADDING), wide = up(a->value_dim, PADDING), width = strip_width(a),
              all = up(a->keys, KEYS);
    const idx labels = up(most_labels(a, TASK_ROWS), KEYS), across = up(a->rel_dim, PADDING);
    forward_space w = {.packed = -1, .rel_key.head = -1, .rel_value.head = -1};
    const piece pieces[] = {
        {&w.keys, a->queries < FEW ? 0 : all * packed(deep)},
        {&w.values, in_place(a, &a->value, a->value_dim) ? 0 : (TOGETHER > 1 ? KEYS : all) * wide},
        {&w.value_pairs, TOGETHER > 1 ? all * wide / TOGETHER : 0},
        {&w.query_left, TOGETHER > 1 ? ROWS * packed(deep) : 0},
        {&w.scores_left, TOGETHER > 1 ? ROWS * packed(KEYS) : 0},
        {&w.space, in_place(a, &a->key, a->dim) ? 0 : (a->queries < FEW ? all : KEYS) * deep},
        {&w.columns, TOGETHER > 1 ? KEYS * deep : 0},
        {&w.query, ROWS * deep},
        {&w.rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.rel_key.space, !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : labels * across},
        {&w.rel_key.turned, a->rel_key.data && a->queries >= FEW ? labels * across : 0},
        {&w.rel_value.space, !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : labels * wide},
        {&w.scores, ROWS * KEYS},
        {&w.output, ROWS * wide},
        {&w.terms, a->rel_key.data ? ROWS * width : 0},
        {&w.masses, a->rel_value.data ? ROWS * width : 0},
        {&w.highest, ROWS},
        {&w.total, ROWS},
    };
    real *block = carve(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;
    begin_products();
    if (a->queries < FEW) w.rel_key.turned = NULL;

    const idx parts = (a->queries + TASK_ROWS - 1) / TASK_ROWS, group = a->heads / a->key_heads;
    rows keys = {0};
    right values = {0};
    for (idx task; (task = next_task(work)) < a->batch * a->heads * parts;) {
        const idx b = task / parts / a->heads, h = task / parts % a->heads, kv = h / group;
        if (w.packed != b * a->key_heads + kv) {
            const idx valid = valid_keys(a, b);
            if (a->queries < FEW) keys = rows_of(a, &a->key, b, kv, 0, valid, a->dim, w.space);
            for (idx j = 0; j < valid && a->queries >= FEW; j += KEYS) {
                const rows part = rows_of(a, &a->key, b, kv, j, lot(j, valid), a->dim, w.space);
                columns_of(w.keys + j * packed(deep), part, lot(j, valid), deep, w.columns);
            }
            values = all_rows(a, &a->value, b, kv, valid, a->value_dim, w.values, w.value_pairs);
            w.packed = b * a->key_heads + kv;
        }
        const idx start = task % parts * TASK_ROWS,
                  end = start + TASK_ROWS < a->queries ? start + TASK_ROWS : a->queries;
        const idx position = position_of(a, b, start);
        const idx visible = visible_keys(a, b, position, live_rows(a, b, start, end - start));
        w.labels = to_hold(w.labels, reached(a, position, up(end - start, ROWS), visible));
        hold(a, &w.rel_key, &a->rel_key, h, w.labels, a->rel_dim);
        hold(a, &w.rel_value, &a->rel_value, h, w.labels, a->value_dim);
        for (idx first = start; first < end; first += ROWS) {
            const idx count = end - first < ROWS ? end - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            forward_rows(a, at, live_rows(a, b, first, count), keys, values, &w);
        }
    }
    end_products();
    free(block);
}

#endif
