/* The server's threads for bodies (apps/serve/worker.h): what nobody waits for is not done, keys take turns by their bytes, small
 * tasks do not wait for large ones. Runs wait for the test to let them go on, so that no result depends on time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "serve/worker.h"

enum { MAX_TASKS = 64, LARGE = 1 << 20 };

struct job {
    struct serve_task task;
    int number;
};

/* What the threads do; begin() makes it anew. */
static struct bench {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun[MAX_TASKS], n_begun, n_woken, n_held; /* begun: numbers in the order in which they ran; n_held: that wait to end */
    bool hold;
} bench;

static void run(struct serve_task *task)
{
    const struct job *job = (const struct job *)task;
    pthread_mutex_lock(&bench.lock);
    bench.begun[bench.n_begun++] = job->number;
    bench.n_held++;
    pthread_cond_broadcast(&bench.changed);
    while (bench.hold)
        pthread_cond_wait(&bench.changed, &bench.lock);
    bench.n_held--;
    pthread_mutex_unlock(&bench.lock);
}

static void wake(void *user)
{
    (void)user;
    pthread_mutex_lock(&bench.lock);
    bench.n_woken++;
    pthread_cond_broadcast(&bench.changed);
    pthread_mutex_unlock(&bench.lock);
}

static void wait_for(const int *count, int n)
{
    pthread_mutex_lock(&bench.lock);
    while (*count < n)
        pthread_cond_wait(&bench.changed, &bench.lock);
    pthread_mutex_unlock(&bench.lock);
}

static void set_hold(bool hold)
{
    pthread_mutex_lock(&bench.lock);
    bench.hold = hold;
    pthread_cond_broadcast(&bench.changed);
    pthread_mutex_unlock(&bench.lock);
}

static struct serve_worker *begin(int n_threads)
{
    memset(&bench, 0, sizeof bench);
    pthread_mutex_init(&bench.lock, NULL);
    pthread_cond_init(&bench.changed, NULL);
    bench.hold = true;
    struct serve_worker *worker = serve_worker_new(n_threads, run, wake, NULL);
    assert_non_null(worker);
    return worker;
}

static struct job *submit(struct serve_worker *worker, int number, const char *key, size_t n_bytes)
{
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    *job = (struct job){.task = {.key = key, .n_bytes = n_bytes}, .number = number};
    serve_worker_submit(worker, &job->task);
    return job;
}

/* Returns how many tasks were collected. */
static int end(struct serve_worker *worker)
{
    int n = 0;
    serve_worker_stop(worker);
    for (struct serve_task *task = serve_worker_collect(worker), *next; task; task = next, n++) {
        next = task->next;
        free(task);
    }
    serve_worker_free(worker);
    return n;
}

static void test_dropped_tasks_never_run(void **state)
{
    (void)state;
    struct serve_worker *worker = begin(2);
    for (int i = 0; i < 2; i++)
        submit(worker, i, "a", 10);
    wait_for(&bench.n_held, 2);
    for (int i = 2; i < 8; i++)
        serve_worker_drop(&submit(worker, i, "a", LARGE)->task);
    submit(worker, 8, "a", 10);
    set_hold(false);
    wait_for(&bench.n_woken, 9); /* who dropped them collects them too */
    assert_int_equal(bench.n_begun, 3);
    assert_int_equal(bench.begun[2], 8);
    assert_int_equal(end(worker), 9);
}

static void test_keys_take_turns(void **state)
{
    (void)state;
    struct serve_worker *worker = begin(1); /* of two threads, either may tell first what it has taken */
    submit(worker, 0, "x", 10);
    wait_for(&bench.n_held, 1);
    for (int i = 2; i < 6; i++) /* all of a's come first */
        submit(worker, i, "a", 8000);
    for (int i = 10; i < 13; i++)
        submit(worker, i, "b", 16000);
    for (int i = 20; i < 22; i++)
        submit(worker, i, "c", 8000);
    set_hold(false);
    wait_for(&bench.n_woken, 10);
    int place[32] = {0};
    for (int i = 0; i < bench.n_begun; i++)
        place[bench.begun[i]] = i;
    assert_int_equal(bench.n_begun, 10);
    assert_true(place[10] <= 4 && place[20] <= 4);       /* the first of b and c do not wait for all of a's */
    assert_true(place[21] <= place[5] && place[21] < 8); /* nor the second of c */
    assert_true(place[11] >= place[2] && place[12] >= place[4]);
    assert_int_equal(end(worker), 10);
}

static void test_small_tasks_do_not_wait_for_large_ones(void **state)
{
    (void)state;
    struct serve_worker *worker = begin(3);
    for (int i = 0; i < 4; i++)
        submit(worker, i, "a", LARGE);
    wait_for(&bench.n_held, 2);
    submit(worker, 4, "a", 10); /* though its own key sent all of them */
    wait_for(&bench.n_held, 3);
    assert_int_equal(bench.n_begun, 3);
    assert_int_equal(bench.begun[2], 4);
    set_hold(false);
    wait_for(&bench.n_woken, 5);
    assert_int_equal(bench.n_begun, 5);
    assert_int_equal(end(worker), 5);
}

static void test_stopping_drops_what_waits(void **state)
{
    (void)state;
    struct serve_worker *worker = begin(2);
    for (int i = 0; i < 2; i++)
        submit(worker, i, "a", 10);
    wait_for(&bench.n_held, 2);
    for (int i = 2; i < 5; i++)
        submit(worker, i, "a", i == 4 ? LARGE : 10);
    set_hold(false);
    assert_int_equal(end(worker), 5);
    assert_true(bench.n_begun >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped_tasks_never_run),
        cmocka_unit_test(test_keys_take_turns),
        cmocka_unit_test(test_small_tasks_do_not_wait_for_large_ones),
        cmocka_unit_test(test_stopping_drops_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
