/* Forward pass: the output and the log-sum-exp. */

#ifndef RELATTN_FORWARD_H
#define RELATTN_FORWARD_H

#include "key_strips.h"
#include "threads.h"

typedef struct {
    real *space, *columns, *query, *rel_query, *scores, *output, *terms, *masses;
    real *base, *sums, *total; /* per row: see forward_row */
    factor factor; /* of scores */
    number *keys, *values, *query_lhs, *scores_lhs;    /* operands of products */
    table rel_key, rel_value;
    key_strips strips;
    run labels; /* those that are loaded of the tables */
    idx loaded; /* the head of which keys and values are loaded, -1 for none */
    run held;   /* these keys */
} forward_space;

/* Raise the base of a row, which is a score in powers of 2, and scale down what was summed with the old one. */
static void raise_base(const arguments *a, const place *at, idx r, real top, rows out, const forward_space *w) {
    const real shrink = w->base[r] == -INFINITY ? 0 : exp2(w->base[r] - top);
    const idx width = strip_width(a), used = used_of(a, at), wide = up(a->value_dim, PADDING);
    w->base[r] = top;
    AT(w->sums + r * LANES) *= shrink;
    if (at->key == at->begin) return;
    for (idx i = 0; i < wide; i += LANES) AT(out.data + r * out.row + i) *= shrink;
    if (a->rel_value.data)
        for (idx i = 0; i < used; i += LANES) AT(w->masses + r * width + i) *= shrink;
}

/* The base of a row is at most RISE below its highest score so far. That is exact: probabilities relative to a lower
   base are larger by the same factor everywhere, and 2^RISE of them are far from an overflow. */
#define RISE 24

/* Replace the scores of a row of a tile by 2^(score - base): probabilities, but for a factor of the row. Return whether
   the row attends to a key. */
INLINE int forward_row(const arguments *a, const place *at, idx r, idx position, rows out, const forward_space *w,
                       const int flags) {
    const run vecs = vectors_of(at, r, flags);
    const idx first = vecs.first, end = first + vecs.count, width = strip_width(a);
    const int plain = flags & PLAIN, by_relation = !plain && a->relations.data;
    const span s = span_of(a, at, position);
    const real c = w->factor.most, c_rest = w->factor.rest;
    real *scores = w->scores + r * KEYS, *masses = w->masses + r * width;
    real space[KEYS];
    int32_t slots[KEYS];
    vec x[VECS];
    if (flags & BANDED && vecs.count == 0) return 0;
    if (by_relation) slots_of(a, at, r, slots);

#pragma GCC unroll 16
    for (idx v = first; v < end; v++) x[v] = AT(scores + v * LANES);
    const real *terms = flags & KEY_TERMS ? terms_of(a, at, w->terms + r * width, s, slots, space) : NULL;
    if (flags & KEY_TERMS && !s.far)
#pragma GCC unroll 16
        for (idx v = first; v < end; v++) x[v] += AT(terms + v * LANES);
    real edge = flags & KEY_TERMS && s.far ? terms[0] * c + terms[0] * c_rest : 0;
    int any = 1;
    if (!plain) { /* the scale may be negative */
        for (idx v = first; v < end; v++) x[v] = x[v] * c + (x[v] * c_rest + edge);
        edge = 0;
    }
    if (flags & BANDED || at->keys % LANES != 0 || !plain) any = hide(a, at, r, position, vecs, x);
    if (!any) {
        for (idx v = first; v < end; v++) AT(scores + v * LANES) = splat(0);
        return 0;
    }

    vec high = x[first];
#pragma GCC unroll 16
    for (idx v = first + 1; v < end; v++) high = larger(high, x[v]);
    if (plain) high *= c;
    if (__builtin_expect(any_above(high, w->base[r] - edge + RISE), 0))
        raise_base(a, at, r, max_of(high) + edge, out, w);
    const real base = (w->base[r] == -INFINITY ? 0 : w->base[r]) - edge;

    const int drop = !plain && drops(a);
    const uint32_t number = drop ? row_number(a, at, r) : 0;
    vec sum = splat(0), kept = splat(0);
#pragma GCC unroll 16
    for (idx v = first; v < end; v++) {
        vec p = x[v] - base;
        if (plain) p = x[v] * c - base + x[v] * c_rest;
        p = power_of_2(p);
        sum += p;
        if (drop) p = pick(is_kept(a, number, at->key + v * LANES), p, splat(0));
        AT(scores + v * LANES) = p;
        if (flags & VALUE_TERMS && !s.far && (plain || !a->relations.data)) AT(masses + s.start + v * LANES) += p;
        if (flags & VALUE_TERMS && s.far) kept += p;
    }
    AT(w->sums + r * LANES) += sum;
    if (flags & VALUE_TERMS && s.far) AT(masses + s.start) += kept;
    if (flags & VALUE_TERMS && by_relation) add_by_label(at, vecs, scores, slots, masses);
    return any;
}

static void forward_tile(const arguments *a, const place *at, idx live, idx position, rows out, const forward_space *w,
                         char *seen) {
    const int flags = row_flags(a, at, position);
#define FORWARD_ROWS(flags)                                                                                            \
    for (idx r = 0; r < live; r++) seen[r] |= (char)forward_row(a, at, r, position + r, out, w, flags)
    switch (flags) {
        case PLAIN | WHOLE: FORWARD_ROWS(PLAIN | WHOLE); break;
        case PLAIN | WHOLE | KEY_TERMS: FORWARD_ROWS(PLAIN | WHOLE | KEY_TERMS); break;
        case PLAIN | WHOLE | KEY_TERMS | VALUE_TERMS: FORWARD_ROWS(PLAIN | WHOLE | KEY_TERMS | VALUE_TERMS); break;
        default:
            if (!(flags & PLAIN)) FORWARD_ROWS(flags & ~PLAIN);
            else if (flags & BANDED) FORWARD_ROWS(flags | PLAIN | BANDED);
            else FORWARD_ROWS((flags | PLAIN) & ~BANDED);
    }
}

/* Scores of a few queries, without transposed keys. */
static void few_products(real *scores, rows query, idx live, rows keys, const place *at, idx padded, int add) {
    for (idx r = 0; r < live; r++)
        for (idx j = 0; j < at->vecs * LANES; j++) {
            vec sum = splat(0);
            for (idx i = 0; i < padded && j < at->keys; i += LANES)
                sum += AT(query.data + r * query.row + i) * AT(keys.data + j * keys.row + i);
            scores[r * KEYS + j] = (add ? scores[r * KEYS + j] : 0) + sum_of(sum);
        }
}

/* ROWS queries of a head against all of its keys, of which those in `w->held` are loaded. `keys` is used by FEW queries
   alone. */
static void forward_rows(const arguments *a, place at, idx live, rows keys, rhs values, const forward_space *w) {
    const idx dim = a->dim, padded = up(dim, PADDING), wide = up(a->value_dim, PADDING);
    const idx width = strip_width(a), margin = margin_of(a), add = a->pos_query.data != NULL;
    const idx position = position_of(a, at.b, at.first), visible = visible_keys(a, at.b, position, live);
    char seen[ROWS] = {0};

    const rows query = rows_of(a, &a->query, at.b, at.h, at.first, live, dim, w->query);
    const lhs query_lhs = lhs_of(query, live, padded, w->query_lhs);
    const rows out = result_rows(a, &a->output, at.b, at.h, at.first, a->value_dim, w->output);
    at.begin = first_tile(a, position, visible);
    at.labels = reached_by_rows(a, position, at.begin, visible, w->labels);
    if (a->rel_key.data) {
        by_label(w->terms, width, margin, rel_query_of(a, &at, live, query, w->rel_query), live, a->rel_dim,
                 &w->rel_key, at.labels);
        fill_margins(a->clips, w->terms, width, margin, live, at.labels);
    }
    if (a->rel_value.data) clear(a, w->masses, live, &at);
    for (idx r = 0; r < live; r++) w->base[r] = -INFINITY, AT(w->sums + r * LANES) = splat(0);

    for (at.key = at.begin; at.key < visible; at.key += KEYS) {
        const idx held = at.key - w->held.first;
        next_tile(a, &at, position, visible);
        if (a->queries < FEW) {
            const rows tile_keys = {keys.data + held * keys.row, keys.row};
            if (add) few_terms(a, &w->strips.table, &at, live, position, tile_keys, w->scores);
            few_products(w->scores, query, live, tile_keys, &at, padded, add);
        } else {
            const rhs columns = columns_at(w->keys + held * packed(padded), padded);
            if (add) terms_of_tile(a, &w->strips, &at, live, position, w->scores);
            if (at.banded) multiply_columns(w->scores, KEYS, query_lhs, columns, live, at.bands, dim, add);
            else multiply(w->scores, KEYS, query_lhs, columns, live, at.vecs * LANES, dim, add);
        }
        forward_tile(a, &at, live, position, out, w, seen);
        const lhs weights = lhs_of((rows){w->scores, KEYS}, live, at.vecs * LANES, w->scores_lhs);
        const rhs tile_values = rows_from(values, held);
        if (at.banded)
            multiply_inner(out.data, out.row, weights, tile_values, live, wide, at.bands, at.key > at.begin);
        else multiply(out.data, out.row, weights, tile_values, live, wide, at.keys, at.key > at.begin);
    }

    if (a->rel_value.data && at.begin < visible) {
        const rows table = rows_at(&w->rel_value, at.labels.first);
        fold_margins(a->clips, w->masses, width, margin, live, at.labels);
        product(out.data, out.row, w->masses + margin, width, 1, table.data, table.row, PANEL, live,
                wide, at.labels.count, 1);
    }
    for (idx r = 0; r < live; r++) w->total[r] = sum_of(AT(w->sums + r * LANES));
    const rows lse = rows_in(&a->lse, at.b, at.h, at.first);
    for (idx r = 0; r < live; r += LANES) {
        const vec base = AT(w->base + r), sums = base * LN_2 + (base * LN_2_REST + log_of(AT(w->total + r)));
        for (idx i = r; i < live && i < r + LANES; i++) lse.data[i * lse.row] = seen[i] ? sums[i - r] : -INFINITY;
    }
    for (idx r = 0; r < at.rows; r++)
        if (r < live && seen[r])
            write_row(&a->output, at.b, at.h, at.first + r, out.data + r * out.row, a->value_dim,
                      a->keep_scale / w->total[r], a->type);
        else write_zeros(&a->output, at.b, at.h, at.first + r, a->value_dim, a->type);
    for (idx r = live; r < at.rows; r++) lse.data[r * lse.row] = -INFINITY;
}

static void forward_worker(void *data) {
    pool *work = data;
    const arguments *a = work->a;
    const idx padded = up(a->dim, PADDING), wide = up(a->value_dim, PADDING), width = strip_width(a),
              most = up(most_keys(a, TASK_ROWS), KEYS), widest = padded > wide ? padded : wide;
    const idx labels = up(most_labels(a, TASK_ROWS), KEYS), across = up(a->rel_dim, PADDING);
    forward_space w = {.factor = factor_of(a->scale), .loaded = -1, .rel_key.head = -1, .rel_value.head = -1,
                       .strips.table.head = -1};
    const int few = a->queries < FEW, pairs = TOGETHER > 1;
    real *key_rows;
    const piece pieces[] = {
        {&w.keys, few ? 0 : most * packed(padded)},
        {&w.values, all_rows_size(a, &a->value, most, a->value_dim)},
        {&w.query_lhs, pairs ? ROWS * packed(padded) : 0},
        {&w.scores_lhs, pairs ? ROWS * packed(KEYS) : 0},
        {&key_rows, few && !in_place(a, &a->key, a->dim) ? most * padded : 0},
        {&w.space, KEYS * widest},
        {&w.columns, pairs ? KEYS * padded : 0},
        {&w.query, ROWS * padded},
        {&w.rel_query, a->rel_query.data ? ROWS * across : 0},
        {&w.rel_key.space, !a->rel_key.data || in_place(a, &a->rel_key, a->rel_dim) ? 0 : labels * across},
        {&w.rel_key.transposed, a->rel_key.data && !few ? labels * across : 0},
        {&w.rel_value.space, !a->rel_value.data || in_place(a, &a->rel_value, a->value_dim) ? 0 : labels * wide},
        {&w.strips.terms, a->pos_query.data && !few ? most * key_strip_width(a) : 0},
        {&w.strips.table.space, !a->pos_query.data || in_place(a, &a->pos_query, a->dim) ? 0 : labels * padded},
        {&w.strips.table.transposed, a->pos_query.data && !few ? labels * padded : 0},
        {&w.scores, ROWS * KEYS},
        {&w.output, ROWS * wide},
        {&w.terms, a->rel_key.data ? ROWS * width : 0},
        {&w.masses, a->rel_value.data ? ROWS * width : 0},
        {&w.base, ROWS},
        {&w.total, ROWS},
        {&w.sums, ROWS * LANES},
    };
    real *block = allocate(work, pieces, sizeof pieces / sizeof *pieces);
    if (!block) return;
    begin_products();
    if (few) w.rel_key.transposed = w.strips.table.transposed = NULL;
    w.strips.masses = NULL;

    const idx parts = (a->queries + TASK_ROWS - 1) / TASK_ROWS, group = a->heads / a->key_heads;
    rows keys = {0};
    rhs values = {0};
    for (idx task; (task = next_task(work)) < a->batch * a->heads * parts;) {
        const idx b = task / parts / a->heads, h = task / parts % a->heads, kv = h / group;
        const idx start = task % parts * TASK_ROWS,
                  end = start + TASK_ROWS < a->queries ? start + TASK_ROWS : a->queries;
        const idx position = position_of(a, b, start);
        const idx visible = visible_keys(a, b, position, live_rows(a, b, start, end - start));
        const idx begin = first_tile(a, position, visible), valid = valid_keys(a, b);
        /* all keys of a head, or those in the windows of a task */
        const run needed = most >= a->keys ? (run){0, valid} : (run){begin, visible - begin};
        if (w.loaded != b * a->key_heads + kv || w.held.first != needed.first || w.held.count != needed.count) {
            if (few) keys = rows_of(a, &a->key, b, kv, needed.first, needed.count, a->dim, key_rows);
            for (idx j = 0; j < needed.count && !few; j += KEYS) {
                const idx some = tile_len(j, needed.count);
                const rows key = rows_once(a, &a->key, b, kv, needed.first + j, some, a->dim, w.space);
                columns_of(w.keys + j * packed(padded), key, some, padded, w.columns);
            }
            values = all_rows(a, &a->value, b, kv, needed, most, a->value_dim, w.space, w.values);
            w.loaded = b * a->key_heads + kv;
            w.held = needed;
        }
        w.labels = to_load(w.labels, reached(a, position, up(end - start, ROWS), begin, visible));
        load_table(a, &w.rel_key, &a->rel_key, h, w.labels, a->rel_dim);
        load_table(a, &w.rel_value, &a->rel_value, h, w.labels, a->value_dim);
        load_table(a, &w.strips.table, &a->pos_query, h, w.labels, a->dim);
        if (a->pos_query.data && !few)
            fill_key_strips(a, &w.strips, b, kv, (run){begin, visible - begin}, position, up(end - start, ROWS),
                            w.space);
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
