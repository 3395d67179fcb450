/* See trace.h. */
#include "serve/trace.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/choice.h"

struct serve_traces {
    int audit_every, turn; /* turn, n_steps: atomic, for engines may share this; turn: the text that is audited next */
    uint64_t n_steps;
    pthread_mutex_t lock; /* of what follows */
    uint64_t n_begun;
    struct serve_trace traces[SERVE_TRACES];
    uint64_t begun[SERVE_TRACES]; /* the order in which they began */
    struct serve_policy_metrics policies[SERVE_POLICIES];
    int n_policies;
};

const double serve_share_bounds[SERVE_BUCKETS - 1] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999};

struct serve_traces *serve_traces_new(int audit_every)
{
    struct serve_traces *traces = serve_alloc(1, sizeof *traces);
    traces->audit_every = audit_every;
    pthread_mutex_init(&traces->lock, NULL);
    return traces;
}

void serve_traces_free(struct serve_traces *traces)
{
    if (traces)
        pthread_mutex_destroy(&traces->lock);
    free(traces);
}

void serve_traces_before(struct serve_traces *traces, struct serve_choice *const *choices, int n)
{
    if (traces->audit_every == 0 || n == 0 ||
        __atomic_add_fetch(&traces->n_steps, 1, __ATOMIC_RELAXED) % (uint64_t)traces->audit_every != 0)
        return;
    const int turn = __atomic_load_n(&traces->turn, __ATOMIC_RELAXED);
    for (int i = 0; i < n; i++) {
        struct serve_choice *choice = choices[(turn + i) % n];
        choice->watch.audited = butler_session_audit(choice->session, &choice->watch.audit, NULL) == 1;
        if (choice->watch.audited) {
            __atomic_store_n(&traces->turn, (turn + i + 1) % n, __ATOMIC_RELAXED);
            return;
        }
    }
}

/* The text's trace: one that is unused, or else the one of those that ended which began first. NULL: all run. */
static struct serve_trace *find_trace(struct serve_traces *traces, const struct serve_job *job, struct serve_choice *choice)
{
    int best = -1;
    if (choice->watch.trace != 0)
        return choice->watch.trace > 0 ? &traces->traces[choice->watch.trace - 1] : NULL;
    for (int i = 0; i < SERVE_TRACES; i++)
        if (!traces->traces[i].running && (best < 0 || traces->begun[i] < traces->begun[best]))
            best = i;
    choice->watch.trace = best < 0 ? -1 : best + 1;
    if (best < 0)
        return NULL;
    struct serve_trace *trace = &traces->traces[best];
    *trace = (struct serve_trace){
        .id = job->id, .owner = job->owner, .choice = (int)(choice - job->choices), .n_prompt = job->n_prompt, .running = true};
    snprintf(trace->policy, sizeof trace->policy, "%s", job->policy);
    snprintf(trace->answer_id, sizeof trace->answer_id, "%s", job->answer_id);
    traces->begun[best] = ++traces->n_begun;
    return trace;
}

static struct serve_policy_metrics *find_policy(struct serve_traces *traces, const char *policy)
{
    int i = 0;
    while (i < traces->n_policies && strncmp(traces->policies[i].policy, policy, SERVE_POLICY_NAME - 1) != 0)
        i++;
    if (i >= SERVE_POLICIES - 1) { /* clients choose policies: their number must not grow without a bound */
        i = SERVE_POLICIES - 1;
        policy = "other";
    }
    traces->n_policies = i < traces->n_policies ? traces->n_policies : i + 1;
    snprintf(traces->policies[i].policy, SERVE_POLICY_NAME, "%s", policy);
    return &traces->policies[i];
}

void serve_traces_after(struct serve_traces *traces, const struct serve_job *job, struct serve_choice *choice)
{
    struct serve_watch *watch = &choice->watch;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)}, *seen = &watch->seen;
    butler_session_stats(choice->session, &stats);
    if (stats.n_decode <= seen->n_decode) /* they began anew */
        *seen = (struct butler_stats){0};
    const uint64_t units = stats.units_selected - seen->units_selected, reused = stats.units_reused - seen->units_reused;
    const bool audited = watch->audited && watch->audit.n_heads > 0;
    const struct serve_trace_step step = {.n_tokens = butler_n_past(choice->session),
                                          .kv_bytes = stats.kv_bytes - seen->kv_bytes,
                                          .metric_bytes = stats.metric_bytes - seen->metric_bytes,
                                          .dense_bytes = stats.full_kv_bytes - seen->full_kv_bytes,
                                          .reuse = units ? (float)((double)reused / (double)units) : NAN,
                                          .recall = audited ? (float)watch->audit.recall : NAN,
                                          .mass = audited ? (float)watch->audit.mass : NAN};
    pthread_mutex_lock(&traces->lock);
    struct serve_trace *trace = find_trace(traces, job, choice);
    if (trace)
        trace->steps[trace->n_steps++ % SERVE_TRACE_STEPS] = step;
    struct serve_policy_metrics *policy = find_policy(traces, job->policy);
    policy->read_bytes += step.kv_bytes + step.metric_bytes;
    policy->dense_bytes += step.dense_bytes;
    policy->audit_s += watch->audited ? watch->audit.seconds : 0;
    if (audited) {
        serve_histogram_add(&policy->recall, serve_share_bounds, watch->audit.recall);
        serve_histogram_add(&policy->mass, serve_share_bounds, watch->audit.mass);
    }
    pthread_mutex_unlock(&traces->lock);
    *seen = stats;
    watch->audited = false;
}

void serve_traces_job(struct serve_traces *traces, const struct serve_job *job)
{
    if (!job->prompt_done)
        return;
    pthread_mutex_lock(&traces->lock);
    struct serve_policy_metrics *policy = find_policy(traces, job->policy);
    policy->n_jobs++;
    policy->prompt_tokens += (uint64_t)job->n_prompt;
    policy->cached_tokens += (uint64_t)job->n_cached;
    pthread_mutex_unlock(&traces->lock);
}

void serve_traces_end(struct serve_traces *traces, struct serve_choice *choice)
{
    if (choice->watch.trace <= 0)
        return;
    pthread_mutex_lock(&traces->lock);
    traces->traces[choice->watch.trace - 1].running = false;
    pthread_mutex_unlock(&traces->lock);
    choice->watch.trace = -1;
}

int serve_traces_copy(struct serve_traces *traces, struct serve_trace *out)
{
    int n = 0;
    pthread_mutex_lock(&traces->lock);
    for (int i = 0; i < SERVE_TRACES; i++)
        if (traces->begun[i])
            out[n++] = traces->traces[i];
    pthread_mutex_unlock(&traces->lock);
    return n;
}

int serve_traces_policies(struct serve_traces *traces, struct serve_policy_metrics *out)
{
    pthread_mutex_lock(&traces->lock);
    const int n = traces->n_policies;
    memcpy(out, traces->policies, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&traces->lock);
    return n;
}
