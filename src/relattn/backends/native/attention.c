/* Relation-aware attention for processors: one pass forward, one pass backward, nothing queries x keys in memory.

   e_ij = scale q_i . (k_j + aK_ij)      p_ij = exp(e_ij - lse_i)      z_i = sum_j p_ij (v_j + aV_ij)

   Tiles of ROWS queries by KEYS keys, with the softmax kept as it goes (Milakov and Gimelshein 2018; Dao et al. 2022).
   The relative term of a row comes from a strip of scores, a label each:

       strip of a row:   | margin x left edge | labels 0 .. labels - 1 | margin x right edge |

   with margins as wide as a tile. The terms of a tile's keys are one contiguous run of it, wherever the tile stands,
   since a step to the next key is a step to the next label and edges repeat. Probabilities are added back onto the same
   runs, into a strip of masses. Labels of the caller's (relations) are read and added one by one in the same strips;
   the slot before label 0 is for pairs that have none.

   All arithmetic is float32. Half types are widened as they are read and rounded as they are written. */

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "strips.h"

/* ---- forward ---- */

enum { FEW = 4 };

typedef struct {
    float *keys, *values, *space, *query, *scores, *output, *terms, *masses, *highest, *total;
    idx packed; /* the head whose keys and values are here, -1 for none */
} forward_space;

/* One row of a tile: its scores become probabilities under the highest score so far. Whether it sees anything. */
INLINE int forward_row(const call *c, const place *at, idx r, idx position, rows out, const forward_space *w) {
    const idx width = strip_width(c), wide = up(c->value_dim, PADDING);
    float *scores = w->scores + r * KEYS, *output = out.data + r * out.row, *masses = w->masses + r * width;
    float space[KEYS];
    const float *terms = c->rel_key ? terms_of(c, at, r, w->terms + r * width, position, space) : NULL;
    const int seen = complete(c, at, r, position, scores, terms);

    vec high = splat(-INFINITY);
    for (idx v = 0; v < at->vecs; v++) {
        const vec x = AT(scores + v * LANES);
        high = pick(x > high, x, high);
    }
    const float top = max_of(high);
    if (top > w->highest[r]) {
        const float shrink = w->highest[r] == -INFINITY ? 0 : expf(w->highest[r] - top);
        w->highest[r] = top;
        w->total[r] *= shrink;
        if (at->key > 0) {
            for (idx i = 0; i < wide; i += LANES) AT(output + i) *= shrink;
            if (c->rel_value)
                for (idx i = 0; i < width; i += LANES) AT(masses + i) *= shrink;
        }
    }
    const vec base = splat(w->highest[r] == -INFINITY ? 0 : w->highest[r]);
    const uint32_t number = c->keep < 1 ? row_number(c, at, r) : 0;
    vec total = splat(0);
    for (idx v = 0; v < at->vecs; v++) {
        vec p = exp_of(AT(scores + v * LANES) - base);
        total += p;
        if (c->keep < 1) p = pick(kept(number, at->key + v * LANES, c->keep), p, splat(0));
        AT(scores + v * LANES) = p;
    }
    w->total[r] += sum_of(total);
    if (c->rel_value) onto_labels(c, at, r, position, scores, masses);
    return seen;
}

/* Products of so few queries with keys that turning the keys to columns would cost more. */
static void few_products(float *scores, rows query, idx live, rows keys, const place *at, idx deep) {
    for (idx r = 0; r < live; r++)
        for (idx j = 0; j < at->vecs * LANES; j++) {
            vec sum = splat(0);
            for (idx i = 0; i < deep && j < at->keys; i += LANES)
                sum += AT(query.data + r * query.row + i) * AT(keys.data + (at->key + j) * keys.row + i);
            scores[r * KEYS + j] = sum_of(sum);
        }
}

/* ROWS queries of a head against all of its keys, which are turned to columns or, for FEW queries, are not. */
static void forward_rows(const call *c, place at, idx live, rows keys, rows values, const forward_space *w) {
    const idx dim = c->dim, deep = up(dim, PADDING), wide = up(c->value_dim, PADDING);
    const idx width = strip_width(c), margin = margin_of(c), labels = up(c->labels, PADDING);
    const idx table = at.h % c->key_table_heads, value_table = at.h % c->value_table_heads;
    const float *rel_key = c->rel_key + table * c->labels * deep, *rel_key_t = c->rel_key_t + table * dim * labels;
    const float *rel_value = c->rel_value + value_table * c->labels * wide;
    const idx offset = c->offsets[at.b] + at.first;
    idx valid = valid_keys(c, at.b);
    if (c->is_causal) valid = clamped(offset + live, 0, valid);
    char seen[ROWS] = {0};

    const rows query = rows_of(c, &c->query, at.b, at.h, at.first, live, dim, w->query);
    const rows out = room_for(c, &c->output, at.b, at.h, at.first, c->value_dim, w->output);
    if (c->rel_key) {
        by_label(c, w->terms, query, live, dim, rel_key, rel_key_t, c->scale);
        extend(c, w->terms, live);
    }
    if (c->rel_value) memset(w->masses, 0, sizeof(float) * live * width);
    for (idx r = 0; r < live; r++) w->highest[r] = -INFINITY, w->total[r] = 0;

    for (at.key = 0; at.key < valid; at.key += KEYS) {
        at.keys = valid - at.key < KEYS ? valid - at.key : KEYS;
        at.vecs = (at.keys + LANES - 1) / LANES;
        if (c->queries < FEW) few_products(w->scores, query, live, keys, &at, deep);
        else
            product(w->scores, KEYS, query.data, query.row, 1, w->keys + at.key * deep, KEYS, live, at.vecs * LANES,
                    dim, 0);
        for (idx r = 0; r < live; r++) seen[r] |= (char)forward_row(c, &at, r, offset + r, out, w);
        product(out.data, out.row, w->scores, KEYS, 1, values.data + at.key * values.row, values.row, live, wide,
                at.keys, at.key > 0);
    }

    if (c->rel_value && valid > 0) {
        collapse(c, w->masses, live);
        product(out.data, out.row, w->masses + margin, width, 1, rel_value, wide, live, wide, c->labels, 1);
    }
    float *lse = (float *)c->lse.data + at.b * c->lse.batch + at.h * c->lse.head + at.first;
    for (idx r = 0; r < at.rows; r++) {
        const int empty = r >= live || !seen[r];
        lse[r] = empty ? -INFINITY : w->highest[r] + logf(w->total[r]);
        if (empty) write_zeros(&c->output, at.b, at.h, at.first + r, c->value_dim, c->type);
        else
            write_row(&c->output, at.b, at.h, at.first + r, out.data + r * out.row, c->value_dim,
                      c->keep > 0 ? 1 / (w->total[r] * c->keep) : 0, c->type);
    }
}

/* Queries of a batch's sequence that are not padding, of those from `first` on. */
INLINE idx live_rows(const call *c, idx b, idx first, idx count) {
    return c->lengths ? clamped(c->lengths[b] - c->offsets[b] - first, 0, count) : count;
}

/* ---- backward ---- */

typedef struct {
    float *keys_t, *values_t, *keys, *query, *grad, *scores, *slopes, *d_query, *d_keys, *d_values;
    float *terms, *slope_terms, *masses, *slope_masses, *dot, *lse;
} backward_space;

/* One row of a tile: scores become probabilities as they weighed values, slopes the gradient of the products q . k. */
INLINE void backward_row(const call *c, const place *at, idx r, idx position, const backward_space *w) {
    const idx width = strip_width(c);
    float *scores = w->scores + r * KEYS, *slopes = w->slopes + r * KEYS;
    float space[KEYS], slope_space[KEYS];
    const float *terms = c->rel_key ? terms_of(c, at, r, w->terms + r * width, position, space) : NULL;
    const float *slope_terms =
        c->rel_value ? terms_of(c, at, r, w->slope_terms + r * width, position, slope_space) : NULL;
    complete(c, at, r, position, scores, terms);

    const vec lse = splat(w->lse[r]), dot = splat(w->dot[r]);
    const uint32_t number = c->keep < 1 ? row_number(c, at, r) : 0;
    for (idx v = 0; v < at->vecs; v++) {
        const vec p = exp_of(AT(scores + v * LANES) - lse);
        vec slope = AT(slopes + v * LANES), weight = p;
        if (slope_terms) slope += AT(slope_terms + v * LANES);
        if (c->keep < 1) weight = pick(kept(number, at->key + v * LANES, c->keep), p / c->keep, splat(0));
        AT(scores + v * LANES) = weight;
        AT(slopes + v * LANES) = (weight * slope - p * dot) * c->scale;
    }
    if (c->rel_key) onto_labels(c, at, r, position, slopes, w->slope_masses + r * width);
    if (c->rel_key || c->rel_value) onto_labels(c, at, r, position, scores, w->masses + r * width);
}

/* ROWS queries of a head against all of its keys, the way back; adds to the gradients of keys, values and tables. */
static void backward_rows(const call *c, place at, idx live, idx chunk, rows keys, rows d_keys, rows d_values,
                          const backward_space *w) {
    const idx dim = c->dim, value_dim = c->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx width = strip_width(c), margin = margin_of(c), labels = up(c->labels, PADDING);
    const idx table = at.h % c->key_table_heads, value_table = at.h % c->value_table_heads;
    const float *rel_key = c->rel_key + table * c->labels * deep, *rel_key_t = c->rel_key_t + table * dim * labels;
    const float *rel_value = c->rel_value + value_table * c->labels * wide;
    const float *rel_value_t = c->rel_value_t + value_table * value_dim * labels;
    const idx offset = c->offsets[at.b] + at.first;
    idx valid = valid_keys(c, at.b);
    if (c->is_causal) valid = clamped(offset + live, 0, valid);

    const rows query = rows_of(c, &c->query, at.b, at.h, at.first, live, dim, w->query);
    const rows grad = rows_of(c, &c->grad, at.b, at.h, at.first, live, value_dim, w->grad);
    const rows out = rows_of(c, &c->output, at.b, at.h, at.first, live, value_dim, w->d_query);
    const float *lse = (const float *)c->lse.data + at.b * c->lse.batch + at.h * c->lse.head + at.first;
    for (idx r = 0; r < live; r++) {
        vec dot = splat(0);
        for (idx i = 0; i < wide; i += LANES) dot += AT(grad.data + r * grad.row + i) * AT(out.data + r * out.row + i);
        w->dot[r] = sum_of(dot);
        w->lse[r] = lse[r] == -INFINITY ? INFINITY : lse[r]; /* a row that sees nothing: e^(x - inf) = 0 */
    }
    if (c->rel_key) {
        by_label(c, w->terms, query, live, dim, rel_key, rel_key_t, c->scale);
        extend(c, w->terms, live);
        memset(w->slope_masses, 0, sizeof(float) * live * width);
    }
    if (c->rel_value) {
        by_label(c, w->slope_terms, grad, live, value_dim, rel_value, rel_value_t, 1);
        extend(c, w->slope_terms, live);
    }
    if (c->rel_key || c->rel_value) memset(w->masses, 0, sizeof(float) * live * width);
    const rows d_query = room_for(c, &c->d_query, at.b, at.h, at.first, dim, w->d_query);

    for (at.key = 0; at.key < valid; at.key += KEYS) {
        at.keys = valid - at.key < KEYS ? valid - at.key : KEYS;
        at.vecs = (at.keys + LANES - 1) / LANES;
        const idx n = at.vecs * LANES;
        product(w->scores, KEYS, query.data, query.row, 1, w->keys_t + at.key * deep, KEYS, live, n, dim, 0);
        product(w->slopes, KEYS, grad.data, grad.row, 1, w->values_t + at.key * wide, KEYS, live, n, value_dim, 0);
        for (idx r = 0; r < live; r++) backward_row(c, &at, r, offset + r, w);
        product(d_values.data + at.key * d_values.row, d_values.row, w->scores, 1, KEYS, grad.data, grad.row, at.keys,
                wide, live, 1);
        product(d_keys.data + at.key * d_keys.row, d_keys.row, w->slopes, 1, KEYS, query.data, query.row, at.keys, deep,
                live, 1);
        product(d_query.data, d_query.row, w->slopes, KEYS, 1, keys.data + at.key * keys.row, keys.row, live, deep,
                at.keys, at.key > 0);
    }

    if (c->rel_key && valid > 0) {
        level(c, w->slope_masses, w->masses, live);
        collapse(c, w->slope_masses, live);
        float *d_rows = c->d_rel_key + (chunk * c->key_table_heads + table) * c->labels * deep;
        product(d_query.data, d_query.row, w->slope_masses + margin, width, 1, rel_key, deep, live, deep, c->labels, 1);
        product(d_rows, deep, w->slope_masses + margin, 1, width, query.data, query.row, c->labels, deep, live, 1);
    }
    if (c->rel_value && valid > 0) {
        collapse(c, w->masses, live);
        float *d_rows = c->d_rel_value + (chunk * c->value_table_heads + value_table) * c->labels * wide;
        product(d_rows, wide, w->masses + margin, 1, width, grad.data, grad.row, c->labels, wide, live, 1);
    }
    for (idx r = 0; r < at.rows; r++) {
        if (r >= live || valid == 0) write_zeros(&c->d_query, at.b, at.h, at.first + r, dim, c->type);
        else if (!in_place(c, &c->d_query, dim))
            write_row(&c->d_query, at.b, at.h, at.first + r, d_query.data + r * d_query.row, dim, 1, c->type);
    }
}

/* All heads that share a head of keys. */
static void backward_head(const call *c, idx b, idx kv, idx chunk, const backward_space *w) {
    const idx dim = c->dim, value_dim = c->value_dim, deep = up(dim, PADDING), wide = up(value_dim, PADDING);
    const idx valid = valid_keys(c, b), group = c->heads / c->key_heads;
    const rows keys = rows_of(c, &c->key, b, kv, 0, valid, dim, w->keys);
    const rows values = rows_of(c, &c->value, b, kv, 0, valid, value_dim, w->d_values);
    for (idx j = 0; j < valid; j += KEYS) {
        turn(w->keys_t + j * deep, (rows){keys.data + j * keys.row, keys.row}, lot(j, valid), deep);
        turn(w->values_t + j * wide, (rows){values.data + j * values.row, values.row}, lot(j, valid), wide);
    }
    const rows d_keys = room_for(c, &c->d_key, b, kv, 0, dim, w->d_keys);
    const rows d_values = room_for(c, &c->d_value, b, kv, 0, value_dim, w->d_values);
    for (idx j = 0; j < valid; j++) memset(d_keys.data + j * d_keys.row, 0, sizeof(float) * deep);
    for (idx j = 0; j < valid; j++) memset(d_values.data + j * d_values.row, 0, sizeof(float) * wide);
    for (idx h = kv * group; h < (kv + 1) * group; h++)
        for (idx first = 0; first < c->queries; first += ROWS) {
            const idx count = c->queries - first < ROWS ? c->queries - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            backward_rows(c, at, live_rows(c, b, first, count), chunk, keys, d_keys, d_values, w);
        }
    for (idx j = 0; j < c->keys; j++) {
        if (j >= valid) {
            write_zeros(&c->d_key, b, kv, j, dim, c->type);
            write_zeros(&c->d_value, b, kv, j, value_dim, c->type);
            continue;
        }
        if (!in_place(c, &c->d_key, dim)) write_row(&c->d_key, b, kv, j, d_keys.data + j * deep, dim, 1, c->type);
        if (!in_place(c, &c->d_value, value_dim))
            write_row(&c->d_value, b, kv, j, d_values.data + j * wide, value_dim, 1, c->type);
    }
}

/* ---- threads ---- */

enum { TASK_ROWS = 8 * ROWS }; /* queries of a task on the way out */

typedef struct {
    const call *call;
    idx next, failed; /* shared: the next task, whether memory ran out */
} crew;

typedef struct {
    float **field;
    idx size;
} share;

/* One block of memory, cut up for the fields; to be freed. NULL where there is none. */
static float *carve(const share *shares, idx count) {
    idx total = 0;
    for (idx i = 0; i < count; i++) total += up(shares[i].size, PADDING);
    float *block = aligned_alloc(64, sizeof(float) * (total + PADDING)), *left = block;
    for (idx i = 0; block && i < count; i++) {
        *shares[i].field = left;
        left += up(shares[i].size, PADDING);
    }
    return block;
}

static void forward_worker(void *data) {
    crew *work = data;
    const call *c = work->call;
    const idx deep = up(c->dim, PADDING), wide = up(c->value_dim, PADDING), width = strip_width(c),
              all = up(c->keys, KEYS);
    forward_space w = {.packed = -1};
    const share shares[] = {
        {&w.keys, c->queries < FEW ? 0 : all * deep},
        {&w.values, in_place(c, &c->value, c->value_dim) ? 0 : all * wide},
        {&w.space, in_place(c, &c->key, c->dim) ? 0 : (c->queries < FEW ? all : KEYS) * deep},
        {&w.query, ROWS * deep},
        {&w.scores, ROWS * KEYS},
        {&w.output, ROWS * wide},
        {&w.terms, c->rel_key ? ROWS * width : 0},
        {&w.masses, c->rel_value ? ROWS * width : 0},
        {&w.highest, ROWS},
        {&w.total, ROWS},
    };
    float *block = carve(shares, sizeof shares / sizeof *shares);
    if (!block) {
        __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
        return;
    }

    const idx parts = (c->queries + TASK_ROWS - 1) / TASK_ROWS, group = c->heads / c->key_heads;
    rows keys = {0}, values = {0};
    for (;;) {
        const idx task = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (task >= c->batch * c->heads * parts) break;
        const idx b = task / parts / c->heads, h = task / parts % c->heads, kv = h / group;
        if (w.packed != b * c->key_heads + kv) {
            const idx valid = valid_keys(c, b);
            if (c->queries < FEW) keys = rows_of(c, &c->key, b, kv, 0, valid, c->dim, w.space);
            for (idx j = 0; j < valid && c->queries >= FEW; j += KEYS) {
                const rows part = rows_of(c, &c->key, b, kv, j, lot(j, valid), c->dim, w.space);
                turn(w.keys + j * deep, part, lot(j, valid), deep);
            }
            values = rows_of(c, &c->value, b, kv, 0, valid, c->value_dim, w.values);
            w.packed = b * c->key_heads + kv;
        }
        const idx start = task % parts * TASK_ROWS,
                  end = start + TASK_ROWS < c->queries ? start + TASK_ROWS : c->queries;
        for (idx first = start; first < end; first += ROWS) {
            const idx count = end - first < ROWS ? end - first : ROWS;
            const place at = {.b = b, .h = h, .first = first, .rows = count};
            forward_rows(c, at, live_rows(c, b, first, count), keys, values, &w);
        }
    }
    free(block);
}

static void backward_worker(void *data) {
    crew *work = data;
    const call *c = work->call;
    const idx deep = up(c->dim, PADDING), wide = up(c->value_dim, PADDING), width = strip_width(c),
              all = up(c->keys, KEYS);
    const int values_apart = !in_place(c, &c->value, c->value_dim) || !in_place(c, &c->d_value, c->value_dim);
    backward_space w;
    const share shares[] = {
        {&w.keys_t, all * deep},
        {&w.values_t, all * wide},
        {&w.keys, in_place(c, &c->key, c->dim) ? 0 : all * deep},
        {&w.d_keys, in_place(c, &c->d_key, c->dim) ? 0 : all * deep},
        {&w.d_values, values_apart ? all * wide : 0}, /* on the way there, room to widen the values */
        {&w.query, ROWS * deep},
        {&w.grad, ROWS * wide},
        {&w.d_query, ROWS * (deep > wide ? deep : wide)}, /* and before it, the output */
        {&w.scores, ROWS * KEYS},
        {&w.slopes, ROWS * KEYS},
        {&w.terms, c->rel_key ? ROWS * width : 0},
        {&w.slope_terms, c->rel_value ? ROWS * width : 0},
        {&w.masses, c->rel_key || c->rel_value ? ROWS * width : 0},
        {&w.slope_masses, c->rel_key ? ROWS * width : 0},
        {&w.dot, ROWS},
        {&w.lse, ROWS},
    };
    float *block = carve(shares, sizeof shares / sizeof *shares);
    if (!block) {
        __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
        return;
    }

    const idx tasks = c->batch * c->key_heads;
    for (;;) {
        const idx chunk = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (chunk >= c->chunks) break;
        for (idx task = chunk * tasks / c->chunks; task < (chunk + 1) * tasks / c->chunks; task++)
            backward_head(c, task / c->key_heads, task % c->key_heads, chunk, &w);
    }
    free(block);
}

/* Runs a worker on each thread of the pool that PyTorch uses (GNU OpenMP's), or on this one alone. */
static int together(const call *c, void (*worker)(void *)) {
    typedef void (*start)(void (*)(void *), void *, unsigned, unsigned);
    crew work = {.call = c};
    start parallel = c->threads > 1 ? (start)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    if (parallel) parallel(worker, &work, (unsigned)c->threads, 0);
    else worker(&work);
    return (int)work.failed;
}

/* Asks for a new result's memory in large pages: 4 KiB at a time, finding it costs as much as a short row's attention. */
static void in_large_pages(const call *c, const array *x, idx heads, idx count, idx dim) {
    const uintptr_t page = 1 << 21, start = ((uintptr_t)x->data + page - 1) / page * page;
    const uintptr_t end =
        ((uintptr_t)x->data + (c->type == FLOAT32 ? 4 : 2) * c->batch * heads * count * dim) / page * page;
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
}

int relattn_forward(const call *c) {
    in_large_pages(c, &c->output, c->heads, c->queries, c->value_dim);
    return together(c, forward_worker);
}

int relattn_backward(const call *c) {
    in_large_pages(c, &c->d_query, c->heads, c->queries, c->dim);
    in_large_pages(c, &c->d_key, c->key_heads, c->keys, c->dim);
    in_large_pages(c, &c->d_value, c->key_heads, c->keys, c->value_dim);
    return together(c, backward_worker);
}

int relattn_call_size(void) { return (int)sizeof(call); }
