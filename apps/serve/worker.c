/* See worker.h. Start-time fair queueing (Goyal, Vin and Cheng 1996): a task starts, in virtual time, where its key's last one
 * ends, and the waiting task that starts first is run next. Virtual time is the start of the task that began last. */
#include "serve/worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "serve/text.h"

enum {
    LARGE = 256 << 10, /* bytes of a task that the last free thread does not take */
    LEAST = 4096,      /* bytes that a task counts as at least */
    MAX_THREADS = 16,
    N_KEYS = 64, /* of which the end of the last task is remembered, by a hash of the key: two that share one share their turns */
};

struct serve_worker {
    void (*run)(struct serve_task *task);
    void (*wake)(void *user);
    void *user;
    pthread_t threads[MAX_THREADS];
    int n_threads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct serve_task *waiting, *done, **done_end; /* waiting: by start, then by arrival */
    uint64_t now, ends[N_KEYS];                    /* virtual time */
    int n_large;                                   /* large tasks that run */
    bool stopping;
};

bool serve_worker_is_dropped(const struct serve_task *task)
{
    return __atomic_load_n(&task->dropped, __ATOMIC_ACQUIRE);
}

/* The task that is run next; NULL: none may begin. */
static struct serve_task *take(struct serve_worker *worker)
{
    for (struct serve_task **at = &worker->waiting; *at; at = &(*at)->next) {
        struct serve_task *task = *at;
        if (task->n_bytes >= LARGE && worker->n_large >= worker->n_threads - 1 && !serve_worker_is_dropped(task) &&
            !worker->stopping)
            continue;
        *at = task->next;
        return task;
    }
    return NULL;
}

static void *work(void *user)
{
    struct serve_worker *worker = user;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        struct serve_task *task = take(worker);
        if (!task && worker->stopping)
            break;
        if (!task) {
            pthread_cond_wait(&worker->changed, &worker->lock);
            continue;
        }
        const bool runs = !serve_worker_is_dropped(task) && !worker->stopping, large = runs && task->n_bytes >= LARGE;
        worker->now = runs && task->start > worker->now ? task->start : worker->now;
        worker->n_large += large;
        pthread_mutex_unlock(&worker->lock);
        if (runs)
            worker->run(task);
        pthread_mutex_lock(&worker->lock);
        worker->n_large -= large;
        if (large)
            pthread_cond_signal(&worker->changed);
        task->next = NULL;
        *worker->done_end = task;
        worker->done_end = &task->next;
        pthread_mutex_unlock(&worker->lock);
        worker->wake(worker->user);
        pthread_mutex_lock(&worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

struct serve_worker *serve_worker_new(int n_threads, void (*run)(struct serve_task *task), void (*wake)(void *user), void *user)
{
    struct serve_worker *worker = serve_alloc(1, sizeof *worker);
    worker->run = run;
    worker->wake = wake;
    worker->user = user;
    worker->done_end = &worker->done;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    while (worker->n_threads < n_threads && worker->n_threads < MAX_THREADS &&
           pthread_create(&worker->threads[worker->n_threads], NULL, work, worker) == 0)
        worker->n_threads++;
    if (worker->n_threads == n_threads)
        return worker;
    serve_worker_stop(worker);
    serve_worker_free(worker);
    return NULL;
}

void serve_worker_submit(struct serve_worker *worker, struct serve_task *task)
{
    struct serve_task **at = &worker->waiting;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = task->key; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    task->dropped = 0;
    pthread_mutex_lock(&worker->lock);
    uint64_t *end = &worker->ends[hash % N_KEYS];
    task->start = *end > worker->now ? *end : worker->now;
    *end = task->start + (task->n_bytes > LEAST ? task->n_bytes : LEAST);
    while (*at && (*at)->start <= task->start)
        at = &(*at)->next;
    task->next = *at;
    *at = task;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
}

void serve_worker_drop(struct serve_task *task)
{
    __atomic_store_n(&task->dropped, 1, __ATOMIC_RELEASE);
}

struct serve_task *serve_worker_collect(struct serve_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    struct serve_task *done = worker->done;
    worker->done = NULL;
    worker->done_end = &worker->done;
    pthread_mutex_unlock(&worker->lock);
    return done;
}

void serve_worker_stop(struct serve_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->stopping = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    for (int i = 0; i < worker->n_threads; i++)
        pthread_join(worker->threads[i], NULL);
    worker->n_threads = 0;
}

void serve_worker_free(struct serve_worker *worker)
{
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}
