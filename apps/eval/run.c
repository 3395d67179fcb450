/* The loop over items, in parallel, each under its policies. Values are stored per item and combined in the order of the items, so
 * that no result depends on the threads. An item is in the journal as soon as it is measured. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

/* An item under a policy, by what it costs: it reads the item's prompt, or another policy has read it. */
enum kind { READS, SHARES, N_KINDS };

/* Policies that run together: their items' prompts are read once if they can be shared. */
struct pass {
    struct eval_run *run;
    const struct eval_events *events;
    const struct eval_journal *journal;
    struct eval_base *base;
    const struct eval_policy *const *policies; /* [n] */
    char *const *keys;                         /* [n] */
    int n, n_threads;
    uint64_t prefix_bytes; /* of each thread's prefix cache: the longest prompt */
    struct eval_shares shares;
    double before, share; /* fractions of the whole work */
    int todo[N_KINDS];
    pthread_mutex_t lock; /* of the fields below, and of the journal */
    int done[N_KINDS];
    double seconds[N_KINDS]; /* that they took */
    int next_item;
    bool stop, stopped;
    int failed_item; /* the first that failed, INT_MAX: none */
    int code;
    struct butler_error error;
};

static size_t index_of(const struct pass *pass, int p, int item)
{
    return (size_t)p * (size_t)pass->run->items.n + (size_t)item;
}

static double *values_of(const struct pass *pass, int p, int item)
{
    return pass->shares.values + index_of(pass, p, item) * (size_t)pass->run->n_values;
}

/* By time, since a prompt takes much longer than an answer: nothing is said until each kind has been done once. */
static void show_progress(const struct pass *pass)
{
    double spent = 0, remaining = 0;
    for (int k = 0; k < N_KINDS; k++) {
        const int left = pass->todo[k] - pass->done[k];
        if (left > 0 && pass->done[k] == 0 && pass->done[READS] > 0)
            return;
        spent += pass->seconds[k];
        remaining += left > 0 && pass->done[k] > 0 ? left * pass->seconds[k] / pass->done[k] : 0;
    }
    /* Other processes are taken to be as far with their share as this one. */
    const double have = pass->shares.n_have / ((double)pass->n * pass->run->items.n);
    const double own = spent + remaining > 0 ? spent / (spent + remaining) : 0;
    if (pass->events->progress)
        pass->events->progress(pass->events->user, pass->before + pass->share * (have + (1 - have) * own));
}

/* An item under a policy is measured: into the journal. */
static int finish_one(struct pass *pass, int p, int item, const char *output, enum kind kind, double seconds,
                      struct butler_error *err)
{
    const size_t at = index_of(pass, p, item);
    pthread_mutex_lock(&pass->lock);
    const struct eval_journal_item kept = {.key = pass->keys[p],
                                           .policy = pass->policies[p]->text,
                                           .index = item,
                                           .values = values_of(pass, p, item),
                                           .cost = &pass->shares.costs[at],
                                           .output = output};
    const int code = eval_journal_add(pass->journal, pass->run, &kept, err);
    pass->shares.have[at] = code == 0;
    pass->done[kind]++;
    pass->seconds[kind] += seconds;
    show_progress(pass);
    pthread_mutex_unlock(&pass->lock);
    return code;
}

/* Whether the task compares this policy with dense attention. */
static int wants_dense(const struct eval_run *run, const struct eval_policy *policy, bool *wants, struct butler_error *err)
{
    int compare = 0;
    if (eval_option_text(run, "compare") && eval_option_int(run, "compare", 0, 1, &compare, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    *wants = compare && (policy->parts.metric || eval_text_has(policy->runs, "entropy"));
    return 0;
}

/* One item under one policy. donors[2]: dense, and with the policy's metric. */
static int run_one(struct pass *pass, struct eval_run *run, int p, int item_index, struct eval_donor *donors, enum kind kind,
                   struct butler_error *err)
{
    const struct eval_policy *policy = pass->policies[p];
    struct eval_trial trial = {
        .run = run, .item = &run->items.items[item_index], .policy = policy, .values = values_of(pass, p, item_index)};
    const double start = butler_seconds();
    bool compares = false;
    int code = wants_dense(run, policy, &compares, err);
    if (code == 0)
        code = eval_session_begin(run, trial.item, policy->runs, 0, &donors[eval_policy_observes(run, policy->runs)],
                                  &trial.session, err);
    if (code == 0 && compares)
        code = eval_session_begin(run, trial.item, "full", 0, &donors[0], &trial.dense, err);
    if (code == 0)
        code = eval_watch_begin(&trial, err);
    if (code == 0) {
        butler_session_stats_reset(trial.session);
        code = run->task->run(&trial, err);
    }
    if (code == 0) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        butler_session_stats(trial.session, &stats);
        const double seconds = butler_seconds() - start;
        eval_cost_take(&trial.cost, &stats, seconds);
        pass->shares.costs[index_of(pass, p, item_index)] = trial.cost;
        code = finish_one(pass, p, item_index, trial.output, kind, seconds, err);
    }
    eval_watch_end(&trial);
    butler_session_free(trial.session);
    butler_session_free(trial.dense);
    free(trial.output);
    return code;
}

/* One item under all policies that do not have it yet, for a task with run_together. */
static int run_together(struct pass *pass, struct eval_run *run, int item_index, struct butler_error *err)
{
    double **values = butler_alloc((size_t)pass->n * sizeof *values, err);
    const struct eval_policy **policies = butler_alloc((size_t)pass->n * sizeof *policies, err);
    struct eval_cost *costs = butler_alloc((size_t)pass->n * sizeof *costs, err);
    int *which = butler_alloc((size_t)pass->n * sizeof *which, err), n = 0;
    int code = values && costs && policies && which ? 0 : BUTLER_ERROR_MEMORY;
    for (int p = 0; p < pass->n && code == 0; p++)
        if (!pass->shares.have[index_of(pass, p, item_index)]) {
            values[n] = values_of(pass, p, item_index);
            policies[n] = pass->policies[p];
            which[n++] = p;
        }
    const double start = butler_seconds();
    if (code == 0 && n > 0)
        code = run->task->run_together(run, &run->items.items[item_index], policies, n, values, costs, err);
    const double seconds = (butler_seconds() - start) / BUTLER_MAX(n, 1);
    for (int i = 0; i < n && code == 0; i++) {
        pass->shares.costs[index_of(pass, which[i], item_index)] = costs[i];
        code = finish_one(pass, which[i], item_index, NULL, READS, seconds, err);
    }
    free(values);
    free(policies);
    free(costs);
    free(which);
    return code;
}

static int take_item(struct pass *pass)
{
    pthread_mutex_lock(&pass->lock);
    if (!pass->stop && pass->events->stopped && pass->events->stopped(pass->events->user))
        pass->stop = pass->stopped = true;
    while (pass->next_item < pass->run->items.n && !pass->shares.mine[pass->next_item])
        pass->next_item++;
    const int item = pass->stop || pass->next_item == pass->run->items.n ? -1 : pass->next_item++;
    pthread_mutex_unlock(&pass->lock);
    return item;
}

static void fail_item(struct pass *pass, int item, int code, const struct butler_error *err)
{
    pthread_mutex_lock(&pass->lock);
    pass->stop = true;
    if (code == BUTLER_ERROR_CANCELLED)
        pass->stopped = true;
    else if (item < pass->failed_item) {
        pass->failed_item = item;
        pass->code = code;
        pass->error = *err;
    }
    pthread_mutex_unlock(&pass->lock);
}

/* Whether an item is to be measured under a policy whose prompt is read with (observes) or without its metric. */
static bool is_todo(const struct pass *pass, int p, int item, bool observes)
{
    return eval_policy_observes(pass->run, pass->policies[p]->runs) == observes && !pass->shares.have[index_of(pass, p, item)];
}

static int run_item(struct pass *pass, struct eval_run *run, int item, struct eval_donor *donors, struct butler_error *err)
{
    int code = 0;
    if (pass->run->task->run_together)
        return run_together(pass, run, item, err);
    /* First the policies that share the dense prompt, so that at most two prompts are held. */
    for (int observes = 0; observes < 2; observes++) {
        enum kind kind = READS;
        for (int p = 0; p < pass->n && code == 0; p++)
            if (is_todo(pass, p, item, observes)) {
                code = run_one(pass, run, p, item, donors, kind, err);
                kind = SHARES;
            }
    }
    return code;
}

struct butler_engine *eval_engine_beside(const struct eval_run *run, int n_threads, struct butler_error *err)
{
    return butler_engine_clone(run->engine, n_threads, 0, err);
}

static void *work(void *argument)
{
    struct pass *pass = argument;
    struct butler_error err = {0};
    struct eval_donor donors[2] = {{0}, {0}};
    struct eval_run run = *pass->run; /* with an engine of this thread's own */
    run.engine = butler_engine_clone(pass->run->engine, 1, pass->prefix_bytes, &err);
    const struct butler_library_params library = {.folder = run.params->library, .max_bytes = run.params->library_bytes};
    run.library = run.engine && library.folder ? butler_library_open(&library, &err) : NULL;
    int code = run.engine && (run.library || !library.folder) ? 0 : err.code, item = code < 0 ? 0 : -1;
    while (code == 0 && (item = take_item(pass)) >= 0)
        code = run_item(pass, &run, item, donors, &err);
    if (code < 0)
        fail_item(pass, item, code, &err);
    eval_donor_free(&donors[0]);
    eval_donor_free(&donors[1]);
    butler_library_free(run.library);
    butler_engine_free(run.engine);
    return NULL;
}

/* Runs the items on pass->n_threads threads; if a thread cannot be started, the others do its work. */
static void run_items(struct pass *pass)
{
    enum { MAX_THREADS = 256 };
    pthread_t threads[MAX_THREADS];
    int n = 0;
    const int wanted = BUTLER_MIN(BUTLER_MIN(pass->n_threads, pass->run->items.n), MAX_THREADS) - 1;
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
        for (int i = 0; i < run->items.n; i++)
            for (int k = 0; k < EVAL_N_COSTS; k++)
                ((double *)&sum)[k] += ((const double *)&pass->shares.costs[index_of(pass, p, i)])[k];
        const size_t n_values = (size_t)run->items.n * (size_t)run->n_values;
        if (pass->policies[p] == pass->base->policy && (pass->base->values = butler_alloc(n_values * sizeof(double), err)))
            memcpy(pass->base->values, values_of(pass, p, 0), n_values * sizeof(double));
        json_t *rows = eval_make_rows(run, pass->policies[p], values_of(pass, p, 0), &sum, pass->base, err);
        size_t i;
        json_t *row;
        eval_journal_name_commits(pass->journal, pass->keys[p], rows);
        code = rows ? eval_results_append(results, rows, err) : BUTLER_ERROR_MEMORY;
        if (code == 0 && pass->events->row)
            json_array_foreach(rows, i, row) pass->events->row(pass->events->user, row);
        json_decref(rows);
    }
    return code;
}

/* Takes from the journal what an earlier run measured. */
static void take_journal(struct pass *pass)
{
    for (int p = 0; p < pass->n; p++)
        for (int i = 0; i < pass->run->items.n; i++) {
            const size_t at = index_of(pass, p, i);
            pass->shares.have[at] =
                eval_journal_take(pass->journal, pass->keys[p], pass->run, i, values_of(pass, p, i), &pass->shares.costs[at]);
        }
}

static int alloc_shares(struct pass *pass, struct butler_error *err)
{
    const struct eval_run *run = pass->run;
    const size_t n = (size_t)pass->n * (size_t)run->items.n;
    struct eval_shares *shares = &pass->shares;
    *shares =
        (struct eval_shares){.processes = run->params->processes, .n = pass->n, .n_items = run->items.n, .n_values = run->n_values};
    shares->values = butler_alloc(n * (size_t)run->n_values * sizeof *shares->values, err);
    shares->costs = butler_alloc(n * sizeof *shares->costs, err);
    shares->have = butler_alloc(n * sizeof *shares->have, err);
    shares->mine = butler_alloc((size_t)run->items.n * sizeof *shares->mine, err);
    return shares->values && shares->costs && shares->have && shares->mine ? 0 : BUTLER_ERROR_MEMORY;
}

/* How many of each kind this process has to do. */
static void count_todo(struct pass *pass)
{
    for (int i = 0; i < pass->run->items.n; i++)
        for (int observes = 0; observes < 2 && pass->shares.mine[i]; observes++) {
            int n = 0;
            for (int p = 0; p < pass->n; p++)
                n += is_todo(pass, p, i, observes);
            const int reads = pass->run->task->run_together ? n : BUTLER_MIN(n, 1);
            pass->todo[READS] += reads;
            pass->todo[SHARES] += n - reads;
        }
}

static int run_pass(struct pass *pass, struct eval_results *results, struct butler_error *err)
{
    int code = alloc_shares(pass, err);
    if (code == 0) {
        take_journal(pass);
        code = eval_share_begin(&pass->shares, err);
    }
    if (code == 0) {
        pass->failed_item = INT32_MAX;
        count_todo(pass);
        show_progress(pass);
        pthread_mutex_init(&pass->lock, NULL);
        run_items(pass);
        pthread_mutex_destroy(&pass->lock);
        code = pass->code;
        if (code < 0)
            *err = pass->error;
        else if (pass->stopped)
            code = EVAL_STOPPED;
        else
            code = eval_share_end(&pass->shares, err);
    }
    if (code == 0 && eval_is_root(pass->run->params))
        code = report(pass, results, err);
    free(pass->shares.values);
    free(pass->shares.costs);
    free(pass->shares.have);
    free(pass->shares.mine);
    return code;
}

/* The measurements that the file of results does not have yet, and how they are grouped. */
struct plan {
    const struct eval_policy **policies; /* [n] */
    char **keys;                         /* [n] */
    int n;
    bool together; /* a pass may have several policies */
    struct eval_base base;
};

/* The base is measured first. If it is in the results already, the journal may have its items. */
static int find_base(struct plan *plan, const struct eval_run *run, const struct eval_journal *journal, struct butler_error *err)
{
    struct eval_base *base = &plan->base;
    int code = 0, n = 0;
    base->policy = &run->policies[0];
    for (int i = run->n_policies - 1; i >= 0; i--)
        if (!run->policies[i].parts.metric && !eval_text_has(run->policies[i].runs, "entropy"))
            base->policy = &run->policies[i];
    for (int i = 0; i < plan->n; i++)
        if (plan->policies[i] == base->policy) {
            char *key = plan->keys[i];
            memmove(plan->policies + 1, plan->policies, (size_t)i * sizeof *plan->policies);
            memmove(plan->keys + 1, plan->keys, (size_t)i * sizeof *plan->keys);
            plan->policies[0] = base->policy;
            plan->keys[0] = key;
            return 0;
        }
    char *key = eval_items_key(run, base->policy);
    base->values = butler_alloc((size_t)run->items.n * (size_t)run->n_values * sizeof(double), err);
    if (!key || !base->values)
        code = BUTLER_ERROR_MEMORY;
    for (struct eval_cost cost; code == 0 && n < run->items.n; n++)
        if (!eval_journal_take(journal, key, run, n, base->values + (size_t)n * (size_t)run->n_values, &cost))
            break;
    if (n < run->items.n) {
        free(base->values);
        base->values = NULL;
        if (code == 0 && plan->n > 0 && run->events->note)
            run->events->note(run->events->user,
                              "the results have the dense policy, but its items are gone: no difference in the rows");
    }
    free(key);
    return code;
}

static int make_plan(struct plan *plan, struct eval_run *run, const struct eval_results *results, struct butler_error *err)
{
    double *known = butler_alloc((size_t)run->n_policies * sizeof *known, err); /* 1: in the results, which only rank 0 reads */
    plan->policies = butler_alloc((size_t)run->n_policies * sizeof *plan->policies, err);
    plan->keys = butler_alloc((size_t)run->n_policies * sizeof *plan->keys, err);
    int code = plan->policies && plan->keys && known ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; i < run->n_policies && code == 0; i++) {
        struct eval_policy *policy = &run->policies[i];
        eval_policy_set_dense(policy, BUTLER_MAX(policy->dense, run->min_dense));
        plan->keys[i] = eval_items_key(run, policy);
        const json_t *rows, *row;
        const int has = eval_results_has(results, run, policy, &rows);
        if (!plan->keys[i] || has < 0)
            code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a row");
        known[i] = has;
        plan->n++;
        size_t at;
        json_array_foreach(has > 0 && run->events->known ? rows : NULL, at, row) run->events->known(run->events->user, row);
    }
    if (code == 0)
        code = eval_share_root(run->params, known, (size_t)run->n_policies, err);
    for (int i = 0, n = plan->n; i < n && code == 0; i++) {
        char *key = plan->keys[i];
        plan->n = i == 0 ? 0 : plan->n;
        if (known[i] > 0)
            free(key);
        else {
            plan->policies[plan->n] = &run->policies[i];
            plan->keys[plan->n++] = key;
        }
    }
    free(known);
    if (code < 0)
        return code;
    plan->together = run->task->run_together != NULL;
    for (int i = 0; i < run->items.n; i++) {
        const struct eval_item *item = &run->items.items[i];
        run->longest = BUTLER_MAX(run->longest, item->n_ids + item->n_extra);
        plan->together = plan->together || (!run->simulate && item->n_prompt > 0);
    }
    return 0;
}

/* How many policies from `first` on one pass takes, and on how many threads, so that what their sessions hold fits in the memory:
 * half of the machine's, or option memory in MiB. One policy on one thread always runs, and on a device one thread alone. */
static int size_pass(struct pass *pass, const struct plan *plan, int first, struct butler_error *err)
{
    struct eval_run *run = pass->run;
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(run->engine, &info);
    const int most_threads = strcmp(info.device, "cpu") == 0 ? run->params->n_threads : 1; /* each has an engine: weights, pages */
    int mebibytes = 0;
    if (eval_option_text(run, "memory") && eval_option_int(run, "memory", 0, 1 << 30, &mebibytes, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    const double limit =
        mebibytes > 0 ? 1048576.0 * mebibytes : 0.5 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double bytes = 0, one = 0;
    pass->n = 0;
    for (int p = first; p < plan->n && (pass->n == 0 || plan->together); p++) {
        struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
        const int code =
            butler_policy_estimate(run->engine, plan->policies[p]->text, run->params->kv_type, run->longest, &cost, err);
        if (code < 0)
            return code;
        /* while the prompt is read, everything is held */
        const double own = (double)cost.full_kv_bytes +
                           cost.record_bytes * run->longest * (run->task->run_together ? 2 : 1); /* recall has two sessions */
        pass->prefix_bytes = run->simulate || run->task->run_together ? 0 : cost.full_kv_bytes;
        bytes = run->task->run_together ? bytes + own : BUTLER_MAX(bytes, 2 * own + (double)pass->prefix_bytes);
        one = pass->n == 0 ? bytes : one;
        if (pass->n > 0 && bytes > limit / BUTLER_MIN(most_threads, BUTLER_MAX(1, (int)BUTLER_MIN(limit / one, 1e6))))
            break;
        pass->n++;
    }
    pass->n_threads = BUTLER_MAX(1, BUTLER_MIN(most_threads, (int)BUTLER_MIN(limit / one, 1e6)));
    double n = pass->n; /* one number for all processes, whatever their machines hold */
    const int code = eval_share_root(run->params, &n, 1, err);
    pass->n = (int)n;
    return code;
}

static int run_policies(struct eval_run *run, struct eval_results *results, const struct eval_journal *journal,
                        struct butler_error *err)
{
    struct plan plan = {0};
    int code = make_plan(&plan, run, results, err);
    if (code == 0)
        code = find_base(&plan, run, journal, err);
    if (code == 0 && plan.n < run->n_policies && run->events->note) {
        char text[96];
        snprintf(text, sizeof text, "%d of %d policies are in the results already", run->n_policies - plan.n, run->n_policies);
        run->events->note(run->events->user, text);
    }
    for (int first = 0; first < plan.n && code == 0;) {
        struct pass pass = {.run = run,
                            .events = run->events,
                            .journal = journal,
                            .base = &plan.base,
                            .policies = plan.policies + first,
                            .keys = plan.keys + first};
        code = size_pass(&pass, &plan, first, err);
        pass.before = (double)first / plan.n;
        pass.share = (double)pass.n / plan.n;
        if (code == 0)
            code = run_pass(&pass, results, err);
        first += pass.n;
    }
    for (int i = 0; i < plan.n; i++)
        free(plan.keys[i]);
    free(plan.base.values);
    free(plan.policies);
    free(plan.keys);
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
                           .events = events ? events : &silent,
                           .engine = engine,
                           .model = butler_engine_model(engine),
                           .info = butler_model_get_info(butler_engine_model(engine)),
                           .simulate = params->mode ? strcmp(params->mode, "simulate") == 0 : task->simulate,
                           .length = params->length ? params->length : task->length,
                           .limit = params->limit ? params->limit : task->limit,
                           .seed = params->seed};
    struct eval_results results = {.log = {.fd = -1}};
    struct eval_journal journal = {.log = {.fd = -1}};
    struct butler_error local = {0};
    err = err ? err : &local; /* it is also read below */
    int code = eval_take_options(&run, err);
    if (code == 0)
        code = eval_take_policies(&run, err);
    if (code == 0)
        code = eval_results_open(&results, eval_is_root(params) ? params->output : NULL, err);
    if (code == 0)
        code = eval_journal_open(&journal, params->output, params->processes ? params->processes->rank : 0, err);
    if (code == 0)
        code = task->load(&run, err);
    if (code == 0 && run.items.n == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no items in it", params->data ? params->data : task->name);
    if (code == 0)
        code = run_policies(&run, &results, &journal, err);
    eval_journal_close(&journal);
    eval_results_close(&results);
    free_run(&run);
    return code;
}
