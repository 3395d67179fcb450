/* The pool of threads one engine owns. Work is a number of independent tasks; who runs a task never changes its result. */
#ifndef BUTLER_THREADS_H
#define BUTLER_THREADS_H

#include "base/util.h"

struct butler_pool;

/* n_threads counts the caller: n_threads - 1 threads are started. */
struct butler_pool *butler_pool_new(int n_threads, struct butler_error *err);
void butler_pool_free(struct butler_pool *pool);
int butler_pool_size(const struct butler_pool *pool);

/* Runs fn(context, task, thread) for every task in [0, n_tasks) and returns when all are done. thread is in
 * [0, size): an index for scratch memory. Tasks are taken in order. Not reentrant; safe to call from several sessions'
 * threads one after the other (it locks). */
typedef void butler_task_fn(void *context, int task, int thread);
void butler_pool_run(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks);

/* The same, where thread t takes the tasks from butler_pool_first(pool, t, n_tasks) on, in order; when it has no more, the last
 * of the others'. What it will read first is known before. */
void butler_pool_run_shares(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks);
int butler_pool_first(const struct butler_pool *pool, int thread, int n_tasks);

/* While `thread` waits for work, or the caller (0) for the other threads, it fetches these bytes into its cache. Prefetches never
 * fault: the memory may be gone by then. */
void butler_pool_ahead(struct butler_pool *pool, int thread, const void *first, size_t n_bytes);

#endif
