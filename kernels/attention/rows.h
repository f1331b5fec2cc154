/* Reading rows of the arguments' arrays as `real`, transposing them, and writing rounded results. */

#ifndef RELATTN_ROWS_H
#define RELATTN_ROWS_H

#include <stdlib.h>

#include "../simd/products.h"
#include "../simd/threads.h"
#include "relattn.h"

typedef relattn_array array;
typedef relattn_attention arguments;

enum { QUERIES = 64, KEYS = 64 };    /* queries and keys of a tile */
enum { TASK_QUERIES = 8 * QUERIES }; /* queries of a task, for which the rows of the tables are loaded once */
enum { PADDING = 16 };               /* of row lengths of buffers and table gradients, as in `operators.py` */
enum { REAL, BFLOAT16, FLOAT16 };    /* dtypes of arrays, as in `relattn.h` */

#if defined(__clang__) && __clang_major__ < 15
typedef __fp16 half; /* older versions have no _Float16 on x86-64 */
#else
typedef _Float16 half;
#endif

/* Return the number of queries and of keys of a sequence, with padding. */
INLINE idx sequence_queries(const arguments *a, idx b) {
    return a->cu_seqlens ? a->cu_seqlens[b + 1] - a->cu_seqlens[b] : a->queries;
}
INLINE idx sequence_keys(const arguments *a, idx b) { return a->cu_seqlens ? sequence_queries(a, b) : a->keys; }

/* Return the index of a row in an array. Tables have their rows in sequence 0. */
INLINE idx row_start(const arguments *a, const array *x, idx b, idx h, idx row) {
    const idx sequence = a->cu_seqlens ? a->cu_seqlens[b] * x->row_stride : b * x->batch_stride;
    return sequence + h * x->head_stride + row * x->row_stride;
}

INLINE real load_real(const void *data, idx i, idx type) {
    if (type == REAL) return ((const real *)data)[i];
    if (type == FLOAT16) return ((const half *)data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE void store_real(void *data, idx i, real x, idx type) {
    if (type == REAL) {
        ((real *)data)[i] = x;
    } else if (type == FLOAT16) {
        ((half *)data)[i] = (half)x;
    } else {
        const float narrow = (float)x;
        uint32_t bits;
        memcpy(&bits, &narrow, 4);
        const uint32_t nearest_even = bits + 0x7FFF + ((bits >> 16) & 1);
        ((uint16_t *)data)[i] = x != x ? 0x7FC0 : (uint16_t)(nearest_even >> 16);
    }
}

INLINE idx size_of(idx type) { return type == REAL ? (idx)sizeof(real) : 2; }

INLINE void load_row(real *to, const void *from, idx start, idx dim, idx padded_dim, idx type) {
    for (idx i = 0; i < dim; i++) to[i] = load_real(from, start + i, type);
    for (idx i = dim; i < padded_dim; i++) to[i] = 0;
}

INLINE void copy_row(real *to, const real *from, idx dim) {
    for (idx i = 0; i < dim; i += LANES) VEC(to + i) = VEC(from + i);
}

/* The processor does not prefetch rows that are far apart. */
enum { ROWS_AHEAD = 12 };
INLINE void prefetch_row(const real *row, idx dim) {
    for (idx i = 0; i < dim; i += 64 / (idx)sizeof(real)) __builtin_prefetch(row + i);
}

/* Copy rows of a head from `first` on, and pad them with zeros to `padded_dim`. */
static void read_rows(const arguments *a, real *to, idx padded_dim, const array *x, idx b, idx h, idx first, idx count,
                      idx dim) {
    const idx type = a->type;
    for (idx r = 0; r < count; r++) {
        const idx start = row_start(a, x, b, h, first + r);
        real *row = to + r * padded_dim;
        if (type == REAL && dim == padded_dim) {
            const real *from = (const real *)x->data + start;
            if (r + ROWS_AHEAD < count) prefetch_row(from + ROWS_AHEAD * x->row_stride, dim);
            copy_row(row, from, dim);
        } else if (type == REAL) load_row(row, x->data, start, dim, padded_dim, REAL);
        else if (type == FLOAT16) load_row(row, x->data, start, dim, padded_dim, FLOAT16);
        else load_row(row, x->data, start, dim, padded_dim, BFLOAT16);
    }
}

INLINE void store_row(void *to, idx start, const real *from, idx dim, real scale, idx type) {
    for (idx i = 0; i < dim; i++) store_real(to, start + i, scale * from[i], type);
}

static void write_row(const arguments *a, const array *x, idx b, idx h, idx row, const real *from, idx dim, real scale) {
    const idx start = row_start(a, x, b, h, row), type = a->type;
    if (type == REAL) store_row(x->data, start, from, dim, scale, REAL);
    else if (type == FLOAT16) store_row(x->data, start, from, dim, scale, FLOAT16);
    else store_row(x->data, start, from, dim, scale, BFLOAT16);
}

static void write_zeros(const arguments *a, const array *x, idx b, idx h, idx row, idx dim) {
    memset((char *)x->data + size_of(a->type) * row_start(a, x, b, h, row), 0, size_of(a->type) * dim);
}

enum { MIN_QUERIES_TO_TRANSPOSE = 4 }; /* with fewer queries, transposing the keys takes longer than it saves */

typedef struct { /* a matrix with contiguous rows */
    real *data;
    idx row_stride;
} matrix;

/* Return the rows of a head from `first` on, in the array itself. */
INLINE matrix array_rows(const arguments *a, const array *x, idx b, idx h, idx first) {
    return (matrix){(real *)x->data + row_start(a, x, b, h, first), x->row_stride};
}

/* Return whether matrix products can read the array without a copy. There may be gaps between its rows. */
INLINE int is_gemm_layout(const arguments *a, idx dim) { return a->type == REAL && dim % PADDING == 0; }

/* Return whether rows that are read often are used in the array, without a copy. In long sequences, rows with gaps are
   copied, since rows 2 KiB apart share a few sets of the first-level cache. In short sequences, the copy takes longer
   than it saves (3 to 15 %). */
enum { SHORT_SEQUENCE = 128 };
INLINE int in_place(const arguments *a, const array *x, idx dim) {
    const int is_read_once = a->queries < MIN_QUERIES_TO_TRANSPOSE;
    return is_gemm_layout(a, dim) &&
           (x->row_stride == dim || is_read_once || (a->queries <= SHORT_SEQUENCE && a->keys <= SHORT_SEQUENCE));
}

/* Return rows of a head, in the array or copied to `scratch`. */
static matrix load_rows(const arguments *a, const array *x, idx b, idx h, idx first, idx count, idx dim,
                        real *scratch) {
    if (in_place(a, x, dim)) return array_rows(a, x, b, h, first);
    const idx padded_dim = round_up(dim, PADDING);
    read_rows(a, scratch, padded_dim, x, b, h, first, count, dim);
    return (matrix){scratch, padded_dim};
}

/* Return rows of a head that are read only once, in the array or copied to `scratch`. */
static matrix load_rows_once(const arguments *a, const array *x, idx b, idx h, idx first, idx count, idx dim,
                             real *scratch) {
    return is_gemm_layout(a, dim) ? array_rows(a, x, b, h, first) : load_rows(a, x, b, h, first, count, dim, scratch);
}

/* Return the rows that a result is computed in: the array's, or `scratch`. */
INLINE matrix output_rows(const arguments *a, const array *x, idx b, idx h, idx first, idx dim, real *scratch) {
    return in_place(a, x, dim) ? array_rows(a, x, b, h, first) : (matrix){scratch, round_up(dim, PADDING)};
}

/* Transpose at most KEYS rows into panels (padded_dim, PANEL) of PANEL rows each. After the last row, fill the vector
   with zeros. */
static void transpose_to_panels(real *to, matrix from, idx count, idx padded_dim) {
    for (idx j = 0; j < round_up(count, LANES); j += TRANSPOSE_BLOCK) {
        real *columns = to + j / PANEL * padded_dim * PANEL + j % PANEL;
        const real *row = from.data + j * from.row_stride;
        if (count - j >= TRANSPOSE_BLOCK) {
            if (count - j >= 2 * TRANSPOSE_BLOCK && from.row_stride > padded_dim)
                for (idx r = TRANSPOSE_BLOCK; r < 2 * TRANSPOSE_BLOCK; r++)
                    prefetch_row(row + r * from.row_stride, padded_dim);
            for (idx d = 0; d < padded_dim; d += TRANSPOSE_BLOCK)
                transpose_block(columns + d * PANEL, PANEL, row + d, from.row_stride);
        } else {
            for (idx d = 0; d < padded_dim; d++)
                for (idx r = 0; r < TRANSPOSE_BLOCK; r++)
                    columns[d * PANEL + r] = r < count - j ? row[r * from.row_stride + d] : 0;
        }
    }
}

/* Copy rows into panels (rows, PANEL), whose stride is `panel_stride`. */
static void copy_to_panels(real *to, idx panel_stride, matrix from, idx count, idx padded_dim) {
    for (idx r = 0; r < count; r++) {
        const real *row = from.data + r * from.row_stride;
        if (r + ROWS_AHEAD < count && from.row_stride > padded_dim)
            prefetch_row(row + ROWS_AHEAD * from.row_stride, padded_dim);
        for (idx d = 0; d < padded_dim; d += PANEL)
            copy_row(to + d / PANEL * panel_stride + r * PANEL, row + d,
                     padded_dim - d < PANEL ? padded_dim - d : PANEL);
    }
}

/* Return the length of a tile that starts at `first`, for `count` rows in all. */
INLINE idx tile_len(idx first, idx count) { return count - first < KEYS ? count - first : KEYS; }

typedef struct { /* consecutive labels or keys */
    idx first, count;
} range;

typedef struct { /* the rows of a table that a thread has loaded */
    idx head;    /* -1 for none */
    range labels;
    matrix loaded_rows;
    real *scratch;    /* memory for the rows, if they are copied */
    real *transposed; /* the rows transposed, KEYS at a time; NULL if they are not used */
} table;

/* Return the number of labels whose terms are computed by matrix products. 2k + 1 labels are often one more than a
   multiple of LANES. Then the last label is computed by dot products. */
INLINE idx gemm_label_count(idx labels) { return labels % LANES == 1 ? labels - 1 : labels; }

/* Return the labels to load: the loaded ones if they contain the needed labels, else the needed ones. */
INLINE range labels_to_load(range loaded, range labels) {
    const idx offset = labels.first - loaded.first;
    return offset >= 0 && offset + labels.count <= loaded.count ? loaded : labels;
}

/* Load rows of a table, if the call has it. */
static void load_table(const arguments *a, table *t, const array *x, idx h, range labels, idx dim) {
    const idx head = x->head_stride == 0 ? 0 : h, padded_dim = round_up(dim, PADDING);
    if (!x->data || (t->head == head && t->labels.first == labels.first && t->labels.count == labels.count)) return;
    t->head = head;
    t->labels = labels;
    t->loaded_rows = load_rows(a, x, 0, head, labels.first, labels.count, dim, t->scratch);
    const idx count = t->transposed ? gemm_label_count(labels.count) : 0;
    for (idx l = 0; l < count; l += KEYS)
        transpose_to_panels(t->transposed + l * padded_dim,
                            (matrix){t->loaded_rows.data + l * t->loaded_rows.row_stride, t->loaded_rows.row_stride},
                            tile_len(l, count), padded_dim);
}

/* Return the loaded rows of a table from a label on. */
INLINE matrix table_rows(const table *t, idx label) {
    return (matrix){t->loaded_rows.data + (label - t->labels.first) * t->loaded_rows.row_stride,
                    t->loaded_rows.row_stride};
}

/* ---- workspaces ---- */

typedef struct {
    void *field; /* address of the pointer to the buffer */
    idx size;    /* number of `real` elements */
} buffer;

/* Allocate one block of memory for all buffers. The caller frees it. If there is not enough memory, set `out_of_memory`
   and return NULL. */
static real *allocate_buffers(task_queue *queue, const buffer *buffers, idx count) {
    idx total = 0;
    for (idx i = 0; i < count; i++) total += round_up(buffers[i].size, PADDING);
    real *memory = aligned_alloc(64, sizeof(real) * (total + PADDING)), *next = memory;
    for (idx i = 0; memory && i < count; i++) {
        memcpy(buffers[i].field, &next, sizeof next);
        next += round_up(buffers[i].size, PADDING);
    }
    if (!memory) __atomic_store_n(&queue->out_of_memory, 1, __ATOMIC_RELAXED);
    return memory;
}

#endif
