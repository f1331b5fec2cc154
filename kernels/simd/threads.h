/* Threads that take tasks from a queue. */

#ifndef RELATTN_THREADS_H
#define RELATTN_THREADS_H

#include <stddef.h>

typedef struct {
    const void *a; /* arguments */
    ptrdiff_t threads;
    void (*worker)(void *);
    ptrdiff_t next_index, out_of_memory; /* shared by all threads: the next task, and whether an allocation failed */
} task_queue;

static inline ptrdiff_t next_task(task_queue *queue) {
    return __atomic_fetch_add(&queue->next_index, 1, __ATOMIC_RELAXED);
}

/* Run a worker on each thread of the GNU OpenMP pool, which PyTorch uses. Without such a pool (macOS, and builds with
   another one), start new threads. Return 1 if memory ran out. */
int run_threads(const void *a, ptrdiff_t threads, void (*worker)(void *));

#endif
