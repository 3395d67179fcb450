/* The pool of threads: every task of a run is run once, whoever takes it, and shares begin where they are said to. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/threads.h"

enum { MOST_TASKS = 300, MOST_THREADS = 7, ROUNDS = 200 };

struct counts {
    atomic_int runs[MOST_TASKS], strangers; /* strangers: runs by threads that the pool does not have */
    int n_threads;
};

static void count_task(void *context, int task, int thread)
{
    struct counts *counts = context;
    atomic_fetch_add(&counts->runs[task], 1);
    atomic_fetch_add(&counts->strangers, thread < 0 || thread >= counts->n_threads);
}

static void every_task_runs_once(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 64, MOST_TASKS};
    struct butler_error err;
    (void)state;
    for (int n_threads = 1; n_threads <= MOST_THREADS; n_threads += 2) {
        struct butler_pool *pool = butler_pool_new(n_threads, &err);
        assert_non_null(pool);
        for (int round = 0; round < ROUNDS; round++) {
            const int n_tasks = sizes[round % (int)(sizeof sizes / sizeof *sizes)];
            struct counts counts = {.n_threads = n_threads};
            (round % 2 ? butler_pool_run_shares : butler_pool_run)(pool, count_task, &counts, n_tasks);
            for (int task = 0; task < MOST_TASKS; task++)
                assert_int_equal(counts.runs[task], task < n_tasks);
            assert_int_equal(counts.strangers, 0);
        }
        butler_pool_free(pool);
    }
}

/* Shares are in order, without gaps, and as even as they can be. */
static void shares_cover_all_tasks(void **state)
{
    struct butler_error err;
    (void)state;
    for (int n_threads = 1; n_threads <= MOST_THREADS; n_threads++) {
        struct butler_pool *pool = butler_pool_new(n_threads, &err);
        assert_non_null(pool);
        for (int n_tasks = 0; n_tasks < MOST_TASKS; n_tasks++) {
            assert_int_equal(butler_pool_first(pool, 0, n_tasks), 0);
            assert_int_equal(butler_pool_first(pool, n_threads, n_tasks), n_tasks);
            for (int i = 0; i < n_threads; i++)
                assert_in_range(butler_pool_first(pool, i + 1, n_tasks) - butler_pool_first(pool, i, n_tasks), n_tasks / n_threads,
                                n_tasks / n_threads + 1);
        }
        butler_pool_free(pool);
    }
}

/* Who waits for tasks, or for the last of them, sleeps when it takes long, and is woken: tasks about as long as a thread spins. */
static void busy_task(void *context, int task, int thread)
{
    const int *loops = context;
    (void)thread;
    for (int i = 0; i < loops[task]; i++)
        butler_cpu_relax();
}

static void sleepers_are_woken(void **state)
{
    struct butler_error err;
    struct butler_pool *pool = butler_pool_new(2, &err);
    uint32_t random = 1;
    (void)state;
    assert_non_null(pool);
    for (int round = 0; round < 20000; round++) {
        int loops[2];
        for (int i = 0; i < 2; i++) {
            random = random * 1664525 + 1013904223;
            loops[i] = (int)(random >> 16) % 6000;
        }
        butler_pool_run(pool, busy_task, loops, 2); /* returns: nobody sleeps forever */
    }
    butler_pool_free(pool);
}

/* What is bound to one processor, as in a container with a cpuset, starts no threads for the others. */
static void processors_are_those_that_may_be_used(void **state)
{
    cpu_set_t all, one;
    int first = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(butler_n_processors(), CPU_COUNT(&all));
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(butler_n_processors(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(shares_cover_all_tasks),
        cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(processors_are_those_that_may_be_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
