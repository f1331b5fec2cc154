/* Rows of the arguments' arrays: read as `real`, transposed, rounded and written. */

#ifndef RELATTN_ROWS_H
#define RELATTN_ROWS_H

#include "arguments.h"

enum { ROWS = 64, KEYS = 64 };    /* queries and keys of a tile */
enum { TASK_ROWS = 8 * ROWS };    /* queries for which the tables' rows are loaded at once */
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

INLINE void copy_row(real *to, const real *from, idx dim) {
    for (idx i = 0; i < dim; i += LANES) AT(to + i) = AT(from + i);
}

/* Rows that are far apart are not prefetched by the processor itself. */
enum { ROWS_AHEAD = 12 };
INLINE void prefetch_row(const real *row, idx dim) {
    for (idx i = 0; i < dim; i += 64 / (idx)sizeof(real)) __builtin_prefetch(row + i);
}

/* Rows of a head from `first` on, `padded` wide. */
static void read_rows(real *to, idx padded, const array *x, idx b, idx h, idx first, idx count, idx dim, idx type) {
    for (idx r = 0; r < count; r++) {
        const idx start = b * x->batch + h * x->head + (first + r) * x->row;
        real *row = to + r * padded;
        if (type == REAL && dim == padded) {
            const real *from = (const real *)x->data + start;
            if (r + ROWS_AHEAD < count) prefetch_row(from + ROWS_AHEAD * x->row, dim);
            copy_row(row, from, dim);
        } else if (type == REAL) widen_row(row, x->data, start, dim, padded, REAL);
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

enum { FEW = 4 }; /* with fewer queries, transposing the keys would cost more than it saves */

typedef struct {
    real *data;
    idx row;
} rows;

/* Rows of a head from `first` on, in the array itself. */
INLINE rows rows_in(const array *x, idx b, idx h, idx first) {
    return (rows){(real *)x->data + b * x->batch + h * x->head + first * x->row, x->row};
}

/* Whether products can read an array itself, with any gaps between rows. */
INLINE int is_readable(const arguments *a, idx dim) { return a->type == REAL && dim % PADDING == 0; }

/* Whether rows that are used often stay in the array. In long sequences, rows with gaps are copied: rows 2 KiB apart
   share a few sets of the first-level cache. In short ones the copy costs more than it saves, 3 to 15 %. */
enum { SHORT = 128 };
INLINE int in_place(const arguments *a, const array *x, idx dim) {
    return is_readable(a, dim) && (x->row == dim || (a->queries <= SHORT && a->keys <= SHORT));
}

/* Rows of a head: in the array, or copied to `space`. */
static rows rows_of(const arguments *a, const array *x, idx b, idx h, idx first, idx count, idx dim, real *space) {
    if (in_place(a, x, dim)) return rows_in(x, b, h, first);
    const idx padded = up(dim, PADDING);
    read_rows(space, padded, x, b, h, first, count, dim, a->type);
    return (rows){space, padded};
}

/* The same for rows that are read once. */
static rows rows_once(const arguments *a, const array *x, idx b, idx h, idx first, idx count, idx dim, real *space) {
    return is_readable(a, dim) ? rows_in(x, b, h, first) : rows_of(a, x, b, h, first, count, dim, space);
}

/* Rows for a result: in the array, or in `space`. */
INLINE rows result_rows(const arguments *a, const array *x, idx b, idx h, idx first, idx dim, real *space) {
    return in_place(a, x, dim) ? rows_in(x, b, h, first) : (rows){space, up(dim, PADDING)};
}

/* Transpose four rows of four numbers. */
INLINE void transpose_four(real *to, idx to_row, const real *from, idx from_row) {
    const four a = *(four *)from, b = *(four *)(from + from_row);
    const four c = *(four *)(from + 2 * from_row), d = *(four *)(from + 3 * from_row);
    const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(four *)(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(four *)(to + 2 * to_row) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
    *(four *)(to + 3 * to_row) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

#if defined(__AVX2__) && !defined(REAL64)
enum { SQUARE = 8 };
/* Transpose eight rows of eight numbers. */
INLINE void transpose_square(real *to, idx to_row, const real *from, idx from_row) {
    __m256 halves[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const real *low = from + i * from_row, *high = low + 4 * from_row;
        halves[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        halves[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4, to += 4 * to_row) {
        const __m256 a = _mm256_unpacklo_ps(halves[h], halves[h + 1]), b = _mm256_unpackhi_ps(halves[h], halves[h + 1]);
        const __m256 c = _mm256_unpacklo_ps(halves[h + 2], halves[h + 3]);
        const __m256 d = _mm256_unpackhi_ps(halves[h + 2], halves[h + 3]);
        _mm256_storeu_ps(to, _mm256_shuffle_ps(a, c, 0x44));
        _mm256_storeu_ps(to + to_row, _mm256_shuffle_ps(a, c, 0xEE));
        _mm256_storeu_ps(to + 2 * to_row, _mm256_shuffle_ps(b, d, 0x44));
        _mm256_storeu_ps(to + 3 * to_row, _mm256_shuffle_ps(b, d, 0xEE));
    }
}
#else
enum { SQUARE = 4 };
INLINE void transpose_square(real *to, idx to_row, const real *from, idx from_row) {
    transpose_four(to, to_row, from, from_row);
}
#endif

/* Transpose KEYS rows, or the last few, into panels (padded, PANEL) of PANEL rows each, with zeros after the last row
   to the end of a vector. */
static void transpose(real *to, rows from, idx count, idx padded) {
    for (idx j = 0; j < up(count, LANES); j += SQUARE) {
        real *columns = to + j / PANEL * padded * PANEL + j % PANEL;
        const real *row = from.data + j * from.row;
        if (count - j >= SQUARE) {
            if (count - j >= 2 * SQUARE && from.row > padded)
                for (idx r = SQUARE; r < 2 * SQUARE; r++) prefetch_row(row + r * from.row, padded);
            for (idx d = 0; d < padded; d += SQUARE) transpose_square(columns + d * PANEL, PANEL, row + d, from.row);
        } else {
            for (idx d = 0; d < padded; d++)
                for (idx r = 0; r < SQUARE; r++) columns[d * PANEL + r] = r < count - j ? row[r * from.row + d] : 0;
        }
    }
}

/* Copy rows into panels (rows, PANEL) that are `panel` apart. */
static void to_panels(real *to, idx panel, rows from, idx count, idx padded) {
    for (idx r = 0; r < count; r++) {
        const real *row = from.data + r * from.row;
        if (r + ROWS_AHEAD < count && from.row > padded) prefetch_row(row + ROWS_AHEAD * from.row, padded);
        for (idx d = 0; d < padded; d += PANEL)
            copy_row(to + d / PANEL * panel + r * PANEL, row + d, padded - d < PANEL ? padded - d : PANEL);
    }
}

/* Number of rows of a tile that starts at `first`, of `count` in all. */
INLINE idx tile_len(idx first, idx count) { return count - first < KEYS ? count - first : KEYS; }

typedef struct { /* consecutive labels */
    idx first, count;
} run;

typedef struct {      /* the rows of a table that a thread has loaded */
    idx head;         /* -1 for none */
    run labels;
    rows rows;
    real *space;      /* for the rows, if they are copied */
    real *transposed; /* KEYS rows at a time; NULL if nothing reads it */
} table;

/* Number of labels whose terms are computed by matrix products. 2k + 1 labels are often one more than fill whole
   vectors; the last one is then computed row by row. */
INLINE idx in_products(idx labels) { return labels % LANES == 1 ? labels - 1 : labels; }

/* The labels to load for some that are needed: those that are loaded, if they contain these. */
INLINE run to_load(run loaded, run labels) {
    const idx ahead = labels.first - loaded.first;
    return ahead >= 0 && ahead + labels.count <= loaded.count ? loaded : labels;
}

/* Load rows of a table, if there is one. */
static void load_table(const arguments *a, table *t, const array *x, idx h, run labels, idx dim) {
    const idx head = x->head == 0 ? 0 : h, padded = up(dim, PADDING);
    if (!x->data || (t->head == head && t->labels.first == labels.first && t->labels.count == labels.count)) return;
    t->head = head;
    t->labels = labels;
    t->rows = rows_of(a, x, 0, head, labels.first, labels.count, dim, t->space);
    const idx count = t->transposed ? in_products(labels.count) : 0;
    for (idx l = 0; l < count; l += KEYS)
        transpose(t->transposed + l * padded, (rows){t->rows.data + l * t->rows.row, t->rows.row}, tile_len(l, count),
                  padded);
}

/* The loaded rows of a table from a label on. */
INLINE rows rows_at(const table *t, idx label) {
    return (rows){t->rows.data + (label - t->labels.first) * t->rows.row, t->rows.row};
}

#endif
