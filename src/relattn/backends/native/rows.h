/* Rows of the arguments' arrays: read as the build's number, turned to columns, rounded and written. */

#ifndef RELATTN_ROWS_H
#define RELATTN_ROWS_H

#include "arguments.h"

enum { ROWS = 64, KEYS = 64 };    /* queries and keys of a tile */
enum { TASK_ROWS = 8 * ROWS };    /* queries for which the labels that they reach are held at once */
enum { PADDING = 16 };            /* rows of work space and of tables' gradients are multiples of this: `library.py` */
enum { REAL, BFLOAT16, FLOAT16 }; /* types of arrays: `library.py` */

INLINE real widened(const void *data, idx i, idx type) {
    if (type == REAL) return ((const real *)data)[i];
    if (type == FLOAT16) return ((const _Float16 *)data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE void put(void *data, idx i, real x, idx type) {
    if (type == REAL) {
        ((real *)data)[i] = x;
    } else if (type == FLOAT16) {
        ((_Float16 *)data)[i] = (_Float16)x;
    } else {
        const float narrow = (float)x;
        uint32_t bits;
        memcpy(&bits, &narrow, 4);
        const uint32_t nearest_even = bits + 0x7FFF + ((bits >> 16) & 1);
        ((uint16_t *)data)[i] = x != x ? 0x7FC0 : (uint16_t)(nearest_even >> 16);
    }
}

INLINE idx size_of(idx type) { return type == REAL ? (idx)sizeof(real) : 2; }

INLINE void widen_row(real *to, const void *from, idx start, idx dim, idx padded, idx type) {
    for (idx i = 0; i < dim; i++) to[i] = widened(from, start + i, type);
    for (idx i = dim; i < padded; i++) to[i] = 0;
}

/* Rows of a head from `first` on, `padded` wide. */
static void read_rows(real *to, idx padded, const array *x, idx b, idx h, idx first, idx count, idx dim, idx type) {
    for (idx r = 0; r < count; r++) {
        const idx start = b * x->batch + h * x->head + (first + r) * x->row;
        real *row = to + r * padded;
        if (type == REAL) widen_row(row, x->data, start, dim, padded, REAL);
        else if (type == FLOAT16) widen_row(row, x->data, start, dim, padded, FLOAT16);
        else widen_row(row, x->data, start, dim, padded, BFLOAT16);
    }
}

INLINE void round_row(void *to, idx start, const real *from, idx dim, real times, idx type) {
    for (idx i = 0; i < dim; i++) put(to, start + i, times * from[i], type);
}

static void write_row(const array *x, idx b, idx h, idx row, const real *from, idx dim, real times, idx type) {
    const idx start = b * x->batch + h * x->head + row * x->row;
    if (type == REAL) round_row(x->data, start, from, dim, times, REAL);
    else if (type == FLOAT16) round_row(x->data, start, from, dim, times, FLOAT16);
    else round_row(x->data, start, from, dim, times, BFLOAT16);
}

static void write_zeros(const array *x, idx b, idx h, idx row, idx dim, idx type) {
    const idx start = b * x->batch + h * x->head + row * x->row;
    memset((char *)x->data + size_of(type) * start, 0, size_of(type) * dim);
}

enum { FEW = 4 }; /* queries for which turning what they are multiplied by to columns would cost more */

typedef struct {
    real *data;
    idx row;
} rows;

/* Whether products work on an array's rows where they lie. Rows with gaps are gathered where they are read often. */
INLINE int in_place(const arguments *a, const array *x, idx dim) {
    return a->type == REAL && dim % PADDING == 0 && (x->row == dim || a->keys <= 512);
}

/* Rows of a head from `first` on, where they lie. */
INLINE rows lying(const array *x, idx b, idx h, idx first) {
    return (rows){(real *)x->data + b * x->batch + h * x->head + first * x->row, x->row};
}

/* Rows of a head: where they lie, or widened into `space`. */
static rows rows_of(const arguments *a, const array *x, idx b, idx h, idx first, idx count, idx dim, real *space) {
    if (in_place(a, x, dim)) return lying(x, b, h, first);
    const idx padded = up(dim, PADDING);
    read_rows(space, padded, x, b, h, first, count, dim, a->type);
    return (rows){space, padded};
}

/* Room for rows of a result: where they are to lie, or in `space`. */
INLINE rows room_for(const arguments *a, const array *x, idx b, idx h, idx first, idx dim, real *space) {
    return in_place(a, x, dim) ? lying(x, b, h, first) : (rows){space, up(dim, PADDING)};
}

/* Four rows of `from` as four columns of `to`. */
INLINE void turn_four(real *to, idx to_row, const real *from, idx from_row) {
    const four a = *(four *)from, b = *(four *)(from + from_row);
    const four c = *(four *)(from + 2 * from_row), d = *(four *)(from + 3 * from_row);
    const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(four *)(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(four *)(to + 2 * to_row) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
    *(four *)(to + 3 * to_row) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

/* KEYS rows, or the last few, turned to columns: (padded, KEYS), zeros past the last to the end of a vector. */
static void turn(real *to, rows from, idx count, idx padded) {
    for (idx j = 0; j < count; j += 4)
        if (count - j >= 4)
            for (idx d = 0; d < padded; d += 4)
                turn_four(to + d * KEYS + j, KEYS, from.data + j * from.row + d, from.row);
        else
            for (idx d = 0; d < padded; d++)
                for (idx r = j; r < count; r++) to[d * KEYS + r] = from.data[r * from.row + d];
    const idx short_of = up(count, LANES) - count;
    for (idx d = 0; d < padded && short_of > 0; d++) memset(to + d * KEYS + count, 0, sizeof(real) * short_of);
}

/* Rows of a head from `first` on, as many as are left or KEYS of them. */
INLINE idx lot(idx first, idx count) { return count - first < KEYS ? count - first : KEYS; }

typedef struct { /* labels in a row */
    idx first, count;
} run;

typedef struct {  /* what a thread holds of a table */
    idx head;     /* -1 for none */
    run labels;   /* of that head */
    rows rows;    /* theirs */
    real *space;  /* for the rows, where they do not lie ready */
    real *turned; /* KEYS of them at a time, turned to columns; NULL where nothing reads that */
} table;

/* With 2k + 1 labels there is often one more than fills whole vectors: that one is no part of the products. */
INLINE idx in_products(idx labels) { return labels % LANES == 1 ? labels - 1 : labels; }

/* Labels to hold where `labels` are needed: those held before, if these are among them. */
INLINE run to_hold(run held, run labels) {
    const idx ahead = labels.first - held.first;
    return ahead >= 0 && ahead + labels.count <= held.count ? held : labels;
}

/* Has a table, where there is one, hold these labels of a head. */
static void hold(const arguments *a, table *t, const array *x, idx h, run labels, idx dim) {
    const idx head = x->head == 0 ? 0 : h, deep = up(dim, PADDING);
    if (!x->data || (t->head == head && t->labels.first == labels.first && t->labels.count == labels.count)) return;
    t->head = head;
    t->labels = labels;
    t->rows = rows_of(a, x, 0, head, labels.first, labels.count, dim, t->space);
    const idx turned = t->turned ? in_products(labels.count) : 0;
    for (idx l = 0; l < turned; l += KEYS)
        turn(t->turned + l * deep, (rows){t->rows.data + l * t->rows.row, t->rows.row}, lot(l, turned), deep);
}

/* The rows that a table holds, from a label on. */
INLINE rows rows_at(const table *t, idx label) {
    return (rows){t->rows.data + (label - t->labels.first) * t->rows.row, t->rows.row};
}

#endif
