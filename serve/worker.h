/* A thread for what takes long and needs no engine: bodies become JSON, and texts tokens, while the loop's thread answers others.
 */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

/* The first member of a task. */
struct serve_task {
    struct serve_task *next;
};

struct serve_worker;

/* run is called for one task after the other, in the order of their submission, wake after each; both in the worker's thread. NULL:
 * the thread cannot be started. */
struct serve_worker *serve_worker_new(void (*run)(struct serve_task *task), void (*wake)(void *user), void *user);
void serve_worker_submit(struct serve_worker *worker, struct serve_task *task);
/* Tasks that were run, oldest first; NULL: none. */
struct serve_task *serve_worker_collect(struct serve_worker *worker);
/* Runs what was submitted and ends the thread. What it ran can still be collected. */
void serve_worker_stop(struct serve_worker *worker);
/* After serve_worker_stop, and all tasks were collected. */
void serve_worker_free(struct serve_worker *worker);

#endif
