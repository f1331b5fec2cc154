/* Threads that take tasks in turn, and the work space of each. */

#ifndef RELATTN_THREADS_H
#define RELATTN_THREADS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "rows.h"

typedef struct {
    const arguments *a;
    void (*worker)(void *);
    idx next, failed; /* shared: the next task, whether memory ran out */
} pool;

typedef struct {
    void *field; /* address of a pointer */
    idx size;    /* of the memory that it gets, in `real` */
} piece;

/* Allocate one block of memory for all fields, which the caller frees. Return NULL, and set `failed`, if there is none.
   */
static real *allocate(pool *work, const piece *pieces, idx count) {
    idx total = 0;
    for (idx i = 0; i < count; i++) total += up(pieces[i].size, PADDING);
    real *block = aligned_alloc(64, sizeof(real) * (total + PADDING)), *left = block;
    for (idx i = 0; block && i < count; i++) {
        memcpy(pieces[i].field, &left, sizeof left);
        left += up(pieces[i].size, PADDING);
    }
    if (!block) __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
    return block;
}

INLINE idx next_task(pool *work) { return __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED); }

static void *thread(void *work) {
    ((pool *)work)->worker(work);
    return NULL;
}

/* Run the worker on this thread and on new threads, as many as the system provides. */
static void on_new_threads(pool *work) {
    pthread_t others[work->a->threads];
    idx count = 0;
    while (count + 1 < work->a->threads && pthread_create(&others[count], NULL, thread, work) == 0) count++;
    work->worker(work);
    while (count > 0) pthread_join(others[--count], NULL);
}

/* Run a worker on each thread of the pool that PyTorch uses, GNU OpenMP's, or on new threads if the process has no such
   pool (macOS, and builds with other pools). Return 1 if memory ran out. */
static int run_threads(const arguments *a, void (*worker)(void *)) {
    typedef void (*start)(void (*)(void *), void *, unsigned, unsigned);
    pool work = {.a = a, .worker = worker};
    start parallel = a->threads > 1 ? (start)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    if (parallel) parallel(worker, &work, (unsigned)a->threads, 0);
    else on_new_threads(&work);
    return (int)work.failed;
}

#endif
