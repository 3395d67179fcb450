/* Threads for what takes long and needs no engine: bodies become JSON, and texts tokens, while the loop's thread answers others.
 *
 * Work is fair among clients: each key's tasks wait for those of the same key, by their bytes, and not for a key that sends more.
 * One thread is kept for small tasks, so that none of them waits for large ones. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first member of a task. */
struct serve_task {
    const char *key; /* whose it is; valid until it is collected */
    size_t n_bytes;  /* of its work */
    /* The worker's. */
    struct serve_task *next;
    uint64_t start; /* in units of work that the threads have begun */
    int dropped;
};

struct serve_worker;

/* run is called for each task in one of n_threads threads, two or more, wake after each in the same thread. NULL: a thread cannot
 * be started. */
struct serve_worker *serve_worker_new(int n_threads, void (*run)(struct serve_task *task), void (*wake)(void *user), void *user);
void serve_worker_submit(struct serve_worker *worker, struct serve_task *task);
/* Nobody waits for the task any more: if it has not begun, it never does. It is still collected. */
void serve_worker_drop(struct serve_task *task);
bool serve_worker_is_dropped(const struct serve_task *task); /* from any thread, also from run */
/* Tasks that were run or dropped, oldest first; NULL: none. */
struct serve_task *serve_worker_collect(struct serve_worker *worker);
/* Drops what has not begun and ends the threads. All can still be collected. */
void serve_worker_stop(struct serve_worker *worker);
/* After serve_worker_stop, and all tasks were collected. */
void serve_worker_free(struct serve_worker *worker);

#endif
