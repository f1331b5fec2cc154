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
} crew;

typedef struct {
    void *field; /* a pointer */
    idx size;    /* of what it is to point to, in the build's numbers */
} piece;

/* One block of memory, cut up for the fields; to be freed. NULL where there is none, which the crew is told. */
static real *carve(crew *work, const piece *pieces, idx count) {
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

INLINE idx next_task(crew *work) { return __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED); }

static void *thread(void *work) {
    ((crew *)work)->worker(work);
    return NULL;
}

/* Runs the crew's worker on this thread and on new ones, as many as the system gives of those asked for. */
static void on_new_threads(crew *work) {
    pthread_t others[work->a->threads];
    idx count = 0;
    while (count + 1 < work->a->threads && pthread_create(&others[count], NULL, thread, work) == 0) count++;
    work->worker(work);
    while (count > 0) pthread_join(others[--count], NULL);
}

/* Runs a worker on each thread of the pool that PyTorch uses, GNU OpenMP's, or on new threads where that is not in the
   process (macOS, and builds on other pools). */
static int together(const arguments *a, void (*worker)(void *)) {
    typedef void (*start)(void (*)(void *), void *, unsigned, unsigned);
    crew work = {.a = a, .worker = worker};
    start parallel = a->threads > 1 ? (start)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    if (parallel) parallel(worker, &work, (unsigned)a->threads, 0);
    else on_new_threads(&work);
    return (int)work.failed;
}

#endif
