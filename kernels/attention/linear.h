/* Linear layers in 8 bits on several threads: the rows are quantized, then blocks of rows are multiplied by panels. */

#ifndef RELATTN_LINEAR_H
#define RELATTN_LINEAR_H

#include "rows.h"

typedef relattn_linear map; /* has the fields of one */
#include "../simd/int8.h"

enum { LINEAR_ROWS = 96, LINEAR_PANELS = 4 }; /* of a task */

static void quantize_worker(void *shared) {
    task_queue *queue = shared;
    const map *a = queue->a;
    real *scaled = a->factors ? malloc(sizeof(real) * a->inputs) : NULL;
    if (a->factors && !scaled) __atomic_store_n(&queue->out_of_memory, 1, __ATOMIC_RELAXED);
    if (a->factors && !scaled) return;
    for (idx i; (i = next_task(queue) * LINEAR_ROWS) < a->rows;) {
        for (idx r = i; r < a->rows && r < i + LINEAR_ROWS; r++) {
            const real *x = a->x + r * a->x_row;
            for (idx j = 0; a->factors && j < a->inputs; j++) scaled[j] = x[j] * a->factors[j];
            operand_of(a->factors ? scaled : x, 0, a, 1, (uint8_t *)a->codes + r * round_up(a->inputs, GROUP),
                       a->row_scales + 2 * r);
        }
    }
    free(scaled);
}

/* Each task computes some panels of some rows. The last panel may have fewer outputs, which are copied from a buffer. */
static void multiply_worker(void *shared) {
    const map *a = ((task_queue *)shared)->a;
    const linear_input x = {NULL, 0, a->codes, a->row_scales, round_up(a->inputs, GROUP)};
    const idx num_panels = (a->outputs + PANEL - 1) / PANEL,
              num_groups = (num_panels + LINEAR_PANELS - 1) / LINEAR_PANELS,
              num_tasks = (a->rows + LINEAR_ROWS - 1) / LINEAR_ROWS * num_groups;
    real last[LINEAR_ROWS * PANEL] __attribute__((aligned(64)));
    for (idx task; (task = next_task(shared)) < num_tasks;) {
        const idx i = task / num_groups * LINEAR_ROWS, first = task % num_groups * LINEAR_PANELS * PANEL,
                  num_rows = a->rows - i < LINEAR_ROWS ? a->rows - i : LINEAR_ROWS;
        const linear_input rows = operand_rows(&x, i);
        for (idx j = first; j < a->outputs && j < first + LINEAR_PANELS * PANEL; j += PANEL) {
            real *to = a->to + i * a->outputs + j;
            const idx n = a->outputs - j;
            if (n >= PANEL) {
                int8_panel(to, a->outputs, &rows, a, j, MICRO_VECS, num_rows, 0);
                continue;
            }
            int8_panel(last, PANEL, &rows, a, j, MICRO_VECS, num_rows, 0);
            for (idx r = 0; r < num_rows; r++) memcpy(to + r * a->outputs, last + r * PANEL, sizeof(real) * n);
        }
    }
}

static ptrdiff_t linear(const map *a) {
    const int is_out_of_memory = run_threads(a, a->threads, quantize_worker);
    return is_out_of_memory || run_threads(a, a->threads, multiply_worker) ? RELATTN_NO_MEMORY : 0;
}

static ptrdiff_t pack(int8_t *panels, int32_t *sums, const int8_t *codes, idx outputs, idx inputs) {
    pack_codes(panels, sums, codes, outputs, inputs);
    return 0;
}

#endif
