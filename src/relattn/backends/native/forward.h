/* Forward: the output and the log-sum-exp. */

#ifndef RELATTN_FORWARD_H
#define RELATTN_FORWARD_H

#include "strips.h"
#include "threads.h"

enum { FEW = 4 };
enum { TASK_ROWS = 8 * ROWS }; /* queries of a task */

typedef struct {
    real *keys, *values, *space, *query, *scores, *output, *terms, *masses, *highest, *total;
    idx packed; /* the head whose keys and values are here, -1 for none */
} forward_space;

/* One row of a tile: its scores become probabilities under the highest score so far. Whether it sees anything. */
INLINE int forward_row(const arguments *a, const place *at, idx r, idx position, rows out, const forward_space *w) {
    const idx width = strip_width(a), wide = up(a->value_dim, PADDING);
    real *scores = w->scores + r * KEYS, *output = out.data + r * out.row, *masses = w->masses + r * width;
    real space[KEYS];
    const real *terms = a->rel_key ? terms_of(a, at, r, w->terms + r * width, position, space) : NULL;
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
            if (a->rel_value)
                for (idx i = 0; i < width; i += LANES) AT(masses + i) *= shrink;
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
    if (a->rel_value) onto_labels(a, at, r, position, scores, masses);
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
static void forward_rows(const arguments *a, place at, idx live, rows keys, rows values, const forward_space *w) {
    const idx dim = a->dim, deep = up(dim, PADDING), wide = up(a->value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_of(a), labels = up(a->labels, PADDING);
    const idx table = at.h % a->rel_key_heads, value_table = at.h % a->rel_value_heads;
    const real *rel_key = a->rel_key + table * a->labels * deep, *rel_key_t = a->rel_key_t + table * dim * labels;
    const real *rel_value = a->rel_value + value_table * a->labels * wide;
    const idx position = position_of(a, at.b, at.first), visible = visible_keys(a, at.b, position, live);
    char seen[ROWS] = {0};

    const rows query = rows_of(a, &a->query, at.b, at.h, at.first, live, dim, w->query);
    const rows out = room_for(a, &a->output, at.b, at.h, at.first, a->value_dim, w->output);
    if (a->rel_key) {
        by_label(a, w->terms, query, live, dim, rel_key, rel_key_t, a->scale);
        extend(a, w->terms, live);
    }
    if (a->rel_value) memset(w->masses, 0, sizeof(real) * live * width);
    for (idx r = 0; r < live; r++) w->highest[r] = -INFINITY, w->total[r] = 0;

    for (at.key = 0; at.key < visible; at.key += KEYS) {
        at.keys = lot(at.key, visible);
        at.vecs = (at.keys + LANES - 1) / LANES;
        if (a->queries < FEW) few_products(w->scores, query, live, keys, &at, deep);
        else
            product(w->scores, KEYS, query.data, query.row, 1, w->keys + at.key * deep, KEYS, live, at.vecs * LANES,
                    dim, 0);
        for (idx r = 0; r < live; r++) seen[r] |= (char)forward_row(a, &at, r, position + r, out, w);
        product(out.data, out.row, w->scores, KEYS, 1, values.data + at.key * values.row, values.row, live, wide,
                at.keys, at.key > 0);
    }

    if (a->rel_value && visible > 0) {
        collapse(a, w->masses, live);
        product(out.data, out.row, w->masses + margin, width, 1, rel_value, wide, live, wide, a->labels, 1);
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
    forward_space w = {.packed = -1};
    const piece pieces[] = {
        {&w.keys, a->queries < FEW ? 0 : all * deep},
        {&w.values, in_place(a, &a->value, a->value_dim) ? 0 : all * wide},
        {&w.space, in_place(a, &a->key, a->dim) ? 0 : (a->queries < FEW ? all : KEYS) * deep},
        {&w.query, ROWS * deep},
        {&w.scores, ROWS * KEYS},
        {&w.output, ROWS * wide},
        {&w.terms, a->rel_key ? ROWS * width : 0},
        {&w.masses, a->rel_value ? ROWS * width : 0},
        {&w.highest, ROWS},
        {&w.total, ROWS},
    };
    real *block = carve(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;

    const idx parts = (a->queries + TASK_ROWS - 1) / TASK_ROWS, group = a->heads / a->key_heads;
    rows keys = {0}, values = {0};
    for (idx task; (task = next_task(work)) < a->batch * a->heads * parts;) {
        const idx b = task / parts / a->heads, h = task / parts % a->heads, kv = h / group;
        if (w.packed != b * a->key_heads + kv) {
            const idx valid = valid_keys(a, b);
            if (a->queries < FEW) keys = rows_of(a, &a->key, b, kv, 0, valid, a->dim, w.space);
            for (idx j = 0; j < valid && a->queries >= FEW; j += KEYS) {
                const rows part = rows_of(a, &a->key, b, kv, j, lot(j, valid), a->dim, w.space);
                turn(w.keys + j * deep, part, lot(j, valid), deep);
            }
            values = rows_of(a, &a->value, b, kv, 0, valid, a->value_dim, w.values);
            w.packed = b * a->key_heads + kv;
        }
        const idx start = task % parts * TASK_ROWS,
                  end = start + TASK_ROWS < a->queries ? start + TASK_ROWS : a->queries;
        for (idx first = start; first < end; first += ROWS) {
            const idx count = end - first < ROWS ? end - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            forward_rows(a, at, live_rows(a, b, first, count), keys, values, &w);
        }
    }
    free(block);
}

#endif
