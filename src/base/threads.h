/* The thread pool of one engine. A run is a number of independent tasks; which thread runs a task never changes its result. */
#ifndef BUTLER_THREADS_H
#define BUTLER_THREADS_H

#include "base/util.h"

struct butler_pool;

/* n_threads counts the caller: n_threads - 1 threads are started. */
struct butler_pool *butler_pool_new(int n_threads, struct butler_error *err);
void butler_pool_free(struct butler_pool *pool);
int butler_pool_size(const struct butler_pool *pool);

/* Runs fn(context, task, thread) for each task in [0, n_tasks) and returns when all are done. thread is in [0, size) and
 * serves as an index into scratch memory. Tasks are claimed in ascending order. Not reentrant. Several threads may call it at
 * the same time: their runs follow one another. */
typedef void butler_task_fn(void *context, int task, int thread);
void butler_pool_run(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks);

/* The same, but thread t first takes the tasks [butler_pool_first(t), butler_pool_first(t + 1)) in ascending order, so that
 * it knows what it reads next and can prefetch it. A thread without tasks then takes the last ones of other threads. */
void butler_pool_run_shares(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks);
int butler_pool_first(const struct butler_pool *pool, int thread, int n_tasks);

#endif
