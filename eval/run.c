/* The loop over items, in parallel, each under its policies. Values are stored per item and combined in the order of the items, so
 * that no result depends on the threads. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"
#include "engine/engine.h"

/* Policies that run together: their items' prompts are read once if they can be shared. */
struct pass {
    struct eval_run *run;
    const struct eval_events *events;
    const struct eval_policy *const *policies; /* [n] */
    int n;
    double *values;            /* [n][n_items][n_values] */
    struct eval_cost *costs;   /* [n][n_items] */
    double done_before, share; /* fractions of the whole work */
    pthread_mutex_t lock;      /* of the fields below */
    int next_item, n_finished;
    bool stop, stopped;
    int failed_item; /* the first that failed, INT_MAX: none */
    int code;
    struct butler_error error;
};

/* One item under one policy. */
static int run_one(struct pass *pass, struct eval_run *run, int p, int item_index, struct eval_donor *donor,
                   struct butler_error *err)
{
    const struct eval_item *item = &run->items.items[item_index];
    const size_t at = (size_t)p * (size_t)run->items.n + (size_t)item_index;
    struct butler_stats stats = {0};
    struct butler_session *session = NULL;
    const double start = butler_seconds();
    int code = eval_session_begin(run, item, &pass->policies[p]->parsed, donor, &session, err);
    if (code == 0) {
        butler_session_stats_reset(session);
        code = run->task->run(run, item, session, pass->values + at * (size_t)run->n_values, err);
    }
    if (code == 0)
        butler_session_stats(session, &stats);
    pass->costs[at] = (struct eval_cost){stats.n_decode,       stats.kv_bytes,     stats.metric_bytes,      stats.full_kv_bytes,
                                         stats.units_selected, stats.units_reused, butler_seconds() - start};
    butler_session_free(session);
    return code;
}

/* One item under all policies, for a task with run_together. */
static int run_together(struct pass *pass, struct eval_run *run, int item_index, struct butler_error *err)
{
    double **values = butler_alloc((size_t)pass->n * sizeof *values, err);
    struct eval_cost *costs = butler_alloc((size_t)pass->n * sizeof *costs, err);
    int code = values && costs ? 0 : BUTLER_ERROR_MEMORY;
    for (int p = 0; p < pass->n && code == 0; p++)
        values[p] = pass->values + ((size_t)p * (size_t)run->items.n + (size_t)item_index) * (size_t)run->n_values;
    if (code == 0)
        code = run->task->run_together(run, &run->items.items[item_index], pass->policies, pass->n, values, costs, err);
    for (int p = 0; p < pass->n && code == 0; p++)
        pass->costs[(size_t)p * (size_t)run->items.n + (size_t)item_index] = costs[p];
    free(values);
    free(costs);
    return code;
}

static int take_item(struct pass *pass)
{
    pthread_mutex_lock(&pass->lock);
    if (!pass->stop && pass->events->stopped && pass->events->stopped(pass->events->user))
        pass->stop = pass->stopped = true;
    const int item = pass->stop || pass->next_item == pass->run->items.n ? -1 : pass->next_item++;
    pthread_mutex_unlock(&pass->lock);
    return item;
}

static void finish_one(struct pass *pass)
{
    pthread_mutex_lock(&pass->lock);
    pass->n_finished++;
    if (pass->events->progress)
        pass->events->progress(pass->events->user, pass->done_before + pass->share * (double)pass->n_finished /
                                                                           ((double)pass->n * (double)pass->run->items.n));
    pthread_mutex_unlock(&pass->lock);
}

static void fail_item(struct pass *pass, int item, int code, const struct butler_error *err)
{
    pthread_mutex_lock(&pass->lock);
    pass->stop = true;
    if (item < pass->failed_item) {
        pass->failed_item = item;
        pass->code = code;
        pass->error = *err;
    }
    pthread_mutex_unlock(&pass->lock);
}

static int run_item(struct pass *pass, struct eval_run *run, int item, struct eval_donor *donor, struct butler_error *err)
{
    int code = 0;
    if (pass->run->task->run_together) {
        code = run_together(pass, run, item, err);
        for (int p = 0; p < pass->n && code == 0; p++)
            finish_one(pass);
        return code;
    }
    /* First the policies that share the dense prompt, so that it is read once. */
    for (int observes = 0; observes < 2; observes++)
        for (int p = 0; p < pass->n && code == 0; p++)
            if (eval_policy_observes(&pass->policies[p]->parsed) == (bool)observes) {
                code = run_one(pass, run, p, item, donor, err);
                if (code == 0)
                    finish_one(pass);
            }
    return code;
}

static void *work(void *argument)
{
    struct pass *pass = argument;
    struct butler_error err = {0};
    struct eval_donor donor = {0};
    struct eval_run run = *pass->run; /* with an engine of this thread's own */
    run.engine = butler_engine_clone(pass->run->engine, 1, &err);
    int code = run.engine ? 0 : err.code, item = code < 0 ? 0 : -1;
    while (code == 0 && (item = take_item(pass)) >= 0)
        code = run_item(pass, &run, item, &donor, &err);
    if (code < 0)
        fail_item(pass, item, code, &err);
    eval_donor_free(&donor);
    butler_engine_free(run.engine);
    return NULL;
}

/* Runs the items on params->n_threads threads; if a thread cannot be started, the others do its work. */
static void run_items(struct pass *pass)
{
    enum { MAX_THREADS = 256 };
    pthread_t threads[MAX_THREADS];
    int n = 0;
    const int wanted = BUTLER_MIN(BUTLER_MIN(pass->run->params->n_threads, pass->run->items.n), MAX_THREADS) - 1;
    while (n < wanted && pthread_create(&threads[n], NULL, work, pass) == 0)
        n++;
    work(pass);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static int report(struct pass *pass, struct eval_results *results, struct butler_error *err)
{
    struct eval_run *run = pass->run;
    int code = 0;
    for (int p = 0; p < pass->n && code == 0; p++) {
        struct eval_cost sum = {0};
        for (int i = 0; i < run->items.n; i++) {
            const struct eval_cost *cost = &pass->costs[(size_t)p * (size_t)run->items.n + (size_t)i];
            sum.n_decode += cost->n_decode;
            sum.kv_bytes += cost->kv_bytes;
            sum.metric_bytes += cost->metric_bytes;
            sum.full_kv_bytes += cost->full_kv_bytes;
            sum.units_selected += cost->units_selected;
            sum.units_reused += cost->units_reused;
            sum.seconds += cost->seconds;
        }
        json_t *rows = eval_make_rows(run, pass->policies[p],
                                      pass->values + (size_t)p * (size_t)run->items.n * (size_t)run->n_values, &sum, err);
        size_t i;
        json_t *row;
        code = rows ? eval_results_append(results, rows, err) : BUTLER_ERROR_MEMORY;
        if (code == 0 && pass->events->row)
            json_array_foreach(rows, i, row) pass->events->row(pass->events->user, row);
        json_decref(rows);
    }
    return code;
}

static int run_pass(struct pass *pass, struct eval_results *results, struct butler_error *err)
{
    const size_t n = (size_t)pass->n * (size_t)pass->run->items.n;
    pass->values = butler_alloc(n * (size_t)pass->run->n_values * sizeof *pass->values, err);
    pass->costs = butler_alloc(n * sizeof *pass->costs, err);
    int code = pass->values && pass->costs ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0) {
        pass->failed_item = INT32_MAX;
        pthread_mutex_init(&pass->lock, NULL);
        run_items(pass);
        pthread_mutex_destroy(&pass->lock);
        code = pass->code;
        if (code < 0 && err)
            *err = pass->error;
        else if (code == 0)
            code = pass->stopped ? EVAL_STOPPED : report(pass, results, err);
    }
    free(pass->values);
    free(pass->costs);
    return code;
}

/* Runs all policies that the file of results does not have yet. A task with prompts runs them together, another one policy after
 * the other, so that each row is written as early as possible. */
static int run_policies(struct eval_run *run, const struct eval_events *events, struct eval_results *results,
                        struct butler_error *err)
{
    const struct eval_policy **pending = butler_alloc((size_t)run->n_policies * sizeof *pending, err);
    int n = 0, code = pending ? 0 : BUTLER_ERROR_MEMORY;
    bool prompts = false;
    for (int i = 0; i < run->n_policies && code == 0; i++)
        if (!eval_results_has(results, run, &run->policies[i]))
            pending[n++] = &run->policies[i];
    for (int i = 0; i < run->items.n; i++)
        prompts = prompts || (!run->simulate && run->items.items[i].n_prompt > 0);
    for (int i = 0; i < run->n_policies; i++)
        run->policies[i].parsed.dense_layers = BUTLER_MAX(run->policies[i].parsed.dense_layers, run->min_dense);
    if (n < run->n_policies && events->note) {
        char text[96];
        snprintf(text, sizeof text, "%d of %d policies are in the results already", run->n_policies - n, run->n_policies);
        events->note(events->user, text);
    }
    const int together = prompts || run->task->run_together ? n : 1;
    for (int first = 0; first < n && code == 0; first += together) {
        struct pass pass = {.run = run, .events = events, .policies = pending + first, .n = BUTLER_MIN(together, n - first)};
        pass.done_before = (double)first / n;
        pass.share = (double)pass.n / n;
        code = run_pass(&pass, results, err);
    }
    free(pending);
    return code;
}

static void free_run(struct eval_run *run)
{
    for (int i = 0; i < run->items.n; i++) {
        struct eval_item *item = &run->items.items[i];
        free(item->ids);
        if (run->task->free_own)
            run->task->free_own(item->own);
        else
            free(item->own);
    }
    free(run->items.items);
    for (int i = 0; i < run->n_policies; i++)
        free(run->policies[i].text);
    free(run->policies);
    free(run->settings);
    free(run->own);
}

int eval_execute(const struct eval_task *task, struct butler_engine *engine, const struct eval_params *params,
                 const struct eval_events *events, struct butler_error *err)
{
    static const struct eval_events silent = {0};
    struct eval_run run = {.task = task,
                           .params = params,
                           .engine = engine,
                           .model = butler_engine_model(engine),
                           .info = butler_model_get_info(butler_engine_model(engine)),
                           .simulate = params->mode ? strcmp(params->mode, "simulate") == 0 : task->simulate,
                           .length = params->length ? params->length : task->length,
                           .limit = params->limit ? params->limit : task->limit,
                           .seed = params->seed};
    struct eval_results results = {.fd = -1};
    struct butler_error local = {0};
    err = err ? err : &local; /* it is also read below */
    int code = eval_take_options(&run, err);
    if (code == 0)
        code = eval_take_policies(&run, err);
    if (code == 0)
        code = eval_results_open(&results, params->output, err);
    if (code == 0)
        code = task->load(&run, err);
    if (code == 0 && run.items.n == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no items in it", params->data ? params->data : task->name);
    if (code == 0)
        code = run_policies(&run, events ? events : &silent, &results, err);
    eval_results_close(&results);
    free_run(&run);
    return code;
}
