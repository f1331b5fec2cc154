/* The keys and values of sources, and the cache of hypotheses. */

#ifndef RELATTN_MEMORY_H
#define RELATTN_MEMORY_H

#include <stdlib.h>
#ifndef __wasm__
#include <sys/mman.h>
#endif

#include "linear.h"

enum { LARGE_PAGE = 1 << 21 };

/* Let the system use large pages for memory that was not used before: it has to clear and map each page. */
static void advise_large_pages(void *memory, idx bytes) {
#ifdef MADV_HUGEPAGE
    const idx skipped = round_up((idx)memory, LARGE_PAGE) - (idx)memory, left = (bytes - skipped) / LARGE_PAGE;
    if (left > 0) madvise((char *)memory + skipped, left * LARGE_PAGE, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* Return the number of outputs that are computed at a time: whole panels of some layers. */
INLINE idx memory_columns(const source_memory *a) {
    const idx layer_size = 2 * a->heads * a->head_dim;
    return layer_size % PANEL == 0 ? layer_size : a->keys_values.outputs;
}

/* Return the size of the workspace of `relattn_memory`, in `real` elements. */
static idx relattn_memory_space(const source_memory *a) {
    return INT8_ROWS * (memory_columns(a) + 2 + round_up(a->keys_values.inputs, GROUP) / (idx)sizeof(real));
}

static idx relattn_memory(const source_memory *a) {
    const idx layer_size = 2 * a->heads * a->head_dim, memory_len = a->head_dim * a->row_len, columns = memory_columns(a),
              num_sources = a->rows / a->src_len;
    advise_large_pages(a->to, num_sources * a->layer_count * a->heads * 2 * memory_len * (idx)sizeof(real));
    configure_matrix_tiles();
    real *projected = a->space, *scales = projected + INT8_ROWS * columns, *codes = scales + 2 * INT8_ROWS;
    for (idx i = 0; i < a->rows; i += INT8_ROWS) {
        const idx num_rows = a->rows - i < INT8_ROWS ? a->rows - i : INT8_ROWS;
        const linear_input input = operand_of(a->x + i * a->x_row, a->x_row, &a->keys_values, num_rows, codes, scales);
        for (idx j = 0; j < a->layer_count * layer_size; j += columns) {
            linear_columns(projected, columns, &input, &a->keys_values, j, j + columns, num_rows, 0, NO_ACTIVATION);
            for (idx part = 0; part < columns / a->head_dim; part++)
                for (idx r = 0; r < num_rows; r++) {
                    const idx layer_index = (j + part * a->head_dim) / layer_size, kind = part / a->heads % 2;
                    const idx source = (i + r) / a->src_len, position = (i + r) % a->src_len;
                    const idx head = (layer_index * num_sources + source) * a->heads + part % a->heads;
                    const real *from = projected + r * columns + part * a->head_dim;
                    real *to = a->to + (head * 2 + kind) * memory_len;
                    if (kind == 1) memcpy(to + position * a->head_dim, from, sizeof(real) * a->head_dim);
                    else
                        for (idx d = 0; d < a->head_dim; d++) to[d * a->row_len + position] = from[d];
                }
        }
    }
    release_matrix_tiles();
    return 0;
}

/* Return the size of a row of a cache block, in `real` elements. */
INLINE idx cache_row_size(const step_arguments *a) {
    return a->layer_count * (a->ssru ? round_up(a->dim, PADDING) : a->heads * 2 * a->head_dim * BLOCK);
}

/* Return the number of blocks of the cache for a number of positions. */
INLINE idx cache_blocks(const step_arguments *a, idx positions) {
    return a->ssru ? positions > 0 : round_up(positions, BLOCK) / BLOCK;
}

static void copy_cache_rows(real *to_block, const real *from_block, const int64_t *from, const int64_t *to, idx count,
                            idx size) {
    for (idx i = 0; i < count; i++) memcpy(to_block + to[i] * size, from_block + from[i] * size, sizeof(real) * size);
}

/* Copy cache rows to other rows. No row may be both a source and a target. */
static idx relattn_move(const step_arguments *a, const int64_t *from, const int64_t *to, idx count) {
    real *const *blocks = (real *const *)a->blocks;
    for (idx b = 0; b < cache_blocks(a, a->position); b++)
        copy_cache_rows(blocks[b], blocks[b], from, to, count, cache_row_size(a));
    return 0;
}

#endif
