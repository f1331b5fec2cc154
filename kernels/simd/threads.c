/* Threads of a library: see `threads.h`. Compiled once, since a process has one pool. */

#define _GNU_SOURCE /* RTLD_DEFAULT in older C libraries */
#include "threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { MOST_NEW_THREADS = 255 };

static void *thread_main(void *queue) {
    ((task_queue *)queue)->worker(queue);
    return NULL;
}

/* Run the worker on this thread and on as many new threads as the system provides. */
static void run_on_new_threads(task_queue *queue) {
    pthread_t threads[MOST_NEW_THREADS];
    int count = 0;
    while (count < MOST_NEW_THREADS && count + 1 < queue->threads && pthread_create(&threads[count], NULL, thread_main, queue) == 0) count++;
    queue->worker(queue);
    while (count > 0) pthread_join(threads[--count], NULL);
}

/* Threads do not survive a fork, but the GNU OpenMP library's record of its pool does: a child that used the pool would
   wait for its threads forever. So the pool of a thread is ended before the thread forks, and the library starts another
   when one is needed. Where it cannot be ended, the child starts new threads for every call. */
static __thread int has_used_pool; /* so the pool of this thread has threads */
static int is_pool_lost, was_forked, is_pool_ended;

/* Return whether this process is a fork that has not executed a program since: its pool may have lost its threads before
   the kernels were loaded, and ending it would wait forever. */
static int is_fork(void) {
    unsigned flags = 0x40; /* PF_FORKNOEXEC */
    FILE *stat = fopen("/proc/self/stat", "r");
    if (!stat) return 1;
    fscanf(stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %u", &flags);
    fclose(stat);
    return (flags & 0x40) != 0;
}

static void before_fork(void) {
    const int has_threads = !is_pool_lost && (has_used_pool || !was_forked);
    int (*end_pool)(int) = has_threads ? (int (*)(int))dlsym(RTLD_DEFAULT, "omp_pause_resource_all") : NULL;
    is_pool_ended = end_pool && end_pool(2 /* omp_pause_hard */) == 0;
}

static void after_fork(void) { is_pool_lost |= !is_pool_ended; }

__attribute__((constructor)) static void watch_forks(void) {
    was_forked = is_fork();
    pthread_atfork(before_fork, NULL, after_fork);
}

int run_threads(const void *a, ptrdiff_t threads, void (*worker)(void *)) {
    typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
    task_queue queue = {.a = a, .threads = threads, .worker = worker};
    parallel_fn parallel = threads > 1 && !is_pool_lost ? (parallel_fn)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    if (parallel) parallel(worker, &queue, (unsigned)threads, 0), has_used_pool = 1;
    else run_on_new_threads(&queue);
    return (int)queue.out_of_memory;
}
