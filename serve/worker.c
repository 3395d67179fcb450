/* See worker.h. */
#include "serve/worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "serve/text.h"

struct serve_worker {
    void (*run)(struct serve_task *task);
    void (*wake)(void *user);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct serve_task *submitted, **submitted_end, *done, **done_end;
    bool stopping;
};

static void *work(void *user)
{
    struct serve_worker *worker = user;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (!worker->submitted && !worker->stopping)
            pthread_cond_wait(&worker->changed, &worker->lock);
        struct serve_task *task = worker->submitted;
        if (!task)
            break;
        worker->submitted = task->next;
        if (!worker->submitted)
            worker->submitted_end = &worker->submitted;
        pthread_mutex_unlock(&worker->lock);
        worker->run(task);
        task->next = NULL;
        pthread_mutex_lock(&worker->lock);
        *worker->done_end = task;
        worker->done_end = &task->next;
        pthread_mutex_unlock(&worker->lock);
        worker->wake(worker->user);
        pthread_mutex_lock(&worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

struct serve_worker *serve_worker_new(void (*run)(struct serve_task *task), void (*wake)(void *user), void *user)
{
    struct serve_worker *worker = serve_alloc(1, sizeof *worker);
    worker->run = run;
    worker->wake = wake;
    worker->user = user;
    worker->submitted_end = &worker->submitted;
    worker->done_end = &worker->done;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    if (pthread_create(&worker->thread, NULL, work, worker) == 0)
        return worker;
    serve_worker_free(worker);
    return NULL;
}

void serve_worker_submit(struct serve_worker *worker, struct serve_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&worker->lock);
    *worker->submitted_end = task;
    worker->submitted_end = &task->next;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
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
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
}

void serve_worker_free(struct serve_worker *worker)
{
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}
