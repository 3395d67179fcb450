/* The thread pool of one engine. Every matrix product and every head's attention passes through it, a few hundred times per
 * token. So starting a run costs one store, and a wake-up only if a worker sleeps.
 *
 * The state of a run is one 64-bit word, `ticket`: the number of the run in the high half, the count of unclaimed tasks in
 * the low half. A worker claims a task by a compare-and-swap of that word. A worker that is late for one run therefore cannot
 * claim a task of the next run with the old function: run_tasks() changes the job only when all tasks of the previous run are
 * claimed and done.
 *
 * Who goes to sleep and who wakes sleepers each write one word and then read the other's; at least one must see the other. The
 * writes are exchanges, not stores: on x86 they are the same instruction, and QEMU, when it emulates an ARM there, lets a store and
 * a later load of another word pass each other. */
#include "base/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Spins before a thread sleeps: tens of microseconds. That is longer than the gaps between the products of one layer, and
 * short enough that a waiting thread soon frees its core on a busy machine. */
#define SPIN 1000

/* One thread's share of a run's tasks, on a cache line of its own. */
struct lane {
    _Alignas(64) _Atomic uint64_t tasks; /* unclaimed tasks: first in the high half, end in the low half */
};

struct worker {
    struct butler_pool *pool;
    pthread_t thread;
    int index;
};

struct butler_pool {
    pthread_mutex_t run_lock; /* one run at a time */

    _Alignas(64) _Atomic uint64_t ticket;
    /* The job. Atomic because a late worker may read it while the next job is written; its claim then fails. */
    _Atomic(butler_task_fn *) fn;
    _Atomic(void *) context;
    _Atomic int n_tasks;

    _Alignas(64) atomic_int n_done;

    _Alignas(64) pthread_mutex_t sleep_lock;
    pthread_cond_t work, finished;
    atomic_int n_sleeping;     /* workers that wait for `work`, changed under sleep_lock */
    atomic_bool caller_sleeps; /* changed under sleep_lock */
    atomic_bool stop;

    int n_threads, n_started;
    pid_t process;      /* that the workers run in: a fork of it has none, and its caller takes all tasks */
    struct lane *lanes; /* [n_threads] */
    struct worker workers[];
};

static uint32_t ticket_left(uint64_t ticket)
{
    return (uint32_t)ticket;
}

/* Claims and runs one task; false when none is left. */
static bool run_one(struct butler_pool *pool, int thread)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    for (;;) {
        if (ticket_left(ticket) == 0)
            return false;
        butler_task_fn *fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        int n_tasks = atomic_load_explicit(&pool->n_tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(context, n_tasks - (int)ticket_left(ticket), thread);
        if (atomic_fetch_add(&pool->n_done, 1) + 1 == n_tasks && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->sleep_lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->sleep_lock);
        }
        return true;
    }
}

static bool work_waits(struct butler_pool *pool)
{
    return ticket_left(atomic_load(&pool->ticket)) > 0 || atomic_load(&pool->stop);
}

static void wait_for_work(struct butler_pool *pool)
{
    for (int i = 0; i < SPIN; i++) {
        if (work_waits(pool))
            return;
        butler_cpu_relax();
    }
    pthread_mutex_lock(&pool->sleep_lock);
    /* Incremented before the last check for work: run_tasks() stores the ticket before it checks for sleepers, so at least
     * one of the two sees the other. */
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (!work_waits(pool))
        pthread_cond_wait(&pool->work, &pool->sleep_lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->sleep_lock);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct butler_pool *pool = worker->pool;
    while (!atomic_load(&pool->stop)) {
        if (!run_one(pool, worker->index))
            wait_for_work(pool);
    }
    return NULL;
}

static void wait_until_done(struct butler_pool *pool, int n_tasks)
{
    for (int i = 0; i < SPIN; i++) {
        if (atomic_load(&pool->n_done) == n_tasks)
            return;
        butler_cpu_relax();
    }
    pthread_mutex_lock(&pool->sleep_lock);
    atomic_exchange(&pool->caller_sleeps, true);
    while (atomic_load(&pool->n_done) != n_tasks)
        pthread_cond_wait(&pool->finished, &pool->sleep_lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->sleep_lock);
}

/* Under run_lock. */
static void run_tasks(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks)
{
    uint64_t run = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    atomic_exchange(&pool->ticket, run << 32 | (uint32_t)n_tasks);
    if (atomic_load(&pool->n_sleeping) > 0) {
        pthread_mutex_lock(&pool->sleep_lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->sleep_lock);
    }
    while (run_one(pool, 0))
        ;
    wait_until_done(pool, n_tasks);
}

void butler_pool_run(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks)
{
    if (n_tasks <= 0)
        return;
    /* A pool without worker threads takes no lock: sessions in several threads run in parallel. */
    if (pool->n_threads == 1) {
        for (int task = 0; task < n_tasks; task++)
            fn(context, task, 0);
        return;
    }
    /* Also locked if run inline: thread 0's scratch memory belongs to one run at a time. */
    pthread_mutex_lock(&pool->run_lock);
    if (n_tasks == 1)
        fn(context, 0, 0);
    else
        run_tasks(pool, fn, context, n_tasks);
    pthread_mutex_unlock(&pool->run_lock);
}

struct shares {
    struct butler_pool *pool;
    butler_task_fn *fn;
    void *context;
};

/* Claims the first or the last task of a share. Relaxed order suffices: n_done publishes the results of tasks. */
static bool claim(struct lane *lane, bool last, int *task)
{
    uint64_t tasks = atomic_load_explicit(&lane->tasks, memory_order_relaxed);
    for (;;) {
        const uint32_t first = (uint32_t)(tasks >> 32), end = (uint32_t)tasks;
        if (first >= end)
            return false;
        const uint64_t left = last ? tasks - 1 : tasks + ((uint64_t)1 << 32);
        if (atomic_compare_exchange_weak_explicit(&lane->tasks, &tasks, left, memory_order_relaxed, memory_order_relaxed)) {
            *task = (int)(last ? end - 1 : first);
            return true;
        }
    }
}

static void share_task(void *context, int share, int thread)
{
    const struct shares *shares = context;
    struct butler_pool *pool = shares->pool;
    int task;
    (void)share;
    while (claim(&pool->lanes[thread], false, &task))
        shares->fn(shares->context, task, thread);
    for (int i = 1; i < pool->n_threads; i++)
        while (claim(&pool->lanes[(thread + i) % pool->n_threads], true, &task))
            shares->fn(shares->context, task, thread);
}

int butler_pool_first(const struct butler_pool *pool, int thread, int n_tasks)
{
    return (int)((int64_t)n_tasks * thread / pool->n_threads);
}

void butler_pool_run_shares(struct butler_pool *pool, butler_task_fn *fn, void *context, int n_tasks)
{
    struct shares shares = {pool, fn, context};
    if (pool->n_threads == 1 || n_tasks < 2) {
        butler_pool_run(pool, fn, context, n_tasks);
        return;
    }
    pthread_mutex_lock(&pool->run_lock);
    for (int i = 0; i < pool->n_threads; i++)
        atomic_store_explicit(&pool->lanes[i].tasks,
                              (uint64_t)butler_pool_first(pool, i, n_tasks) << 32 |
                                  (uint32_t)butler_pool_first(pool, i + 1, n_tasks),
                              memory_order_relaxed);
    run_tasks(pool, share_task, &shares, pool->n_threads);
    pthread_mutex_unlock(&pool->run_lock);
}

struct butler_pool *butler_pool_new(int n_threads, struct butler_error *err)
{
    if (n_threads < 1) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d threads: at least one is needed", n_threads);
        return NULL;
    }
    struct butler_pool *pool = butler_alloc(sizeof *pool + (size_t)n_threads * sizeof pool->workers[0], err);
    if (!pool)
        return NULL;
    pool->lanes = butler_alloc((size_t)n_threads * sizeof *pool->lanes, err);
    if (!pool->lanes) {
        free(pool);
        return NULL;
    }
    pool->n_threads = n_threads;
    pool->process = getpid();
    pthread_mutex_init(&pool->run_lock, NULL);
    pthread_mutex_init(&pool->sleep_lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);

    /* Workers block all signals: those belong to the program's own threads. But a fault that finds its signal blocked ends the
     * process, and for SIGBUS there is a handler (map.c); the others have what a sanitizer or the program installed. */
    static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE};
    sigset_t all, before;
    sigfillset(&all);
    for (int i = 0; i < BUTLER_COUNT(faults); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = 0;
    for (int i = 1; i < n_threads && status == 0; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        status = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (status == 0)
            pool->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot start thread %d of %d: %s", pool->n_started + 1, n_threads, strerror(status));
        butler_pool_free(pool);
        return NULL;
    }
    return pool;
}

void butler_pool_free(struct butler_pool *pool)
{
    if (!pool)
        return;
    if (pool->process == getpid()) { /* in a fork these would wait for threads that it does not have */
        pthread_mutex_lock(&pool->sleep_lock);
        atomic_store(&pool->stop, true);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->sleep_lock);
        for (int i = 1; i <= pool->n_started; i++)
            pthread_join(pool->workers[i].thread, NULL);
        pthread_cond_destroy(&pool->finished);
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->sleep_lock);
        pthread_mutex_destroy(&pool->run_lock);
    }
    free(pool->lanes);
    free(pool);
}

int butler_pool_size(const struct butler_pool *pool)
{
    return pool->n_threads;
}
