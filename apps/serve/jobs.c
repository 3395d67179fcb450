/* See jobs.h. Why every job ends: the oldest running job is never parked for another, what it can ever need fits into the memory
 * alone, and nothing new begins while a job is parked, so that each becomes the oldest in turn. */
#include "serve/jobs.h"

#include <stdio.h>
#include <time.h>

#include "serve/choice.h"
#include "serve/park.h"

enum {
    GRANT = 64,         /* tokens of a text at a time */
    WINDOW_EXTRA = 256, /* tokens that a layer with a window keeps beyond it */
};

double serve_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int serve_set_error(struct serve_job *job, int code, const char *message)
{
    job->error.code = code;
    snprintf(job->error.message, sizeof job->error.message, "%s", message);
    return code;
}

static enum butler_kv_type kv_type(const struct serve_jobs *jobs)
{
    return (enum butler_kv_type)jobs->params->kv_type;
}

void serve_jobs_init(struct serve_jobs *jobs, struct butler_engine *engine, const struct serve_params *params)
{
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    jobs->engine = engine;
    jobs->params = params;
    jobs->running = serve_alloc((size_t)params->max_jobs, sizeof *jobs->running);
    /* Every head may have one extent that is not full; layers with a window keep some tokens more, and those of a pass. */
    const int n = butler_model_get_info(model)->n_windowed > 0 ? WINDOW_EXTRA + info.n_block : 1;
    jobs->slack = butler_kv_bytes(model, kv_type(jobs), n);
}

uint64_t serve_jobs_reserved(const struct serve_jobs *jobs)
{
    uint64_t bytes = 0;
    for (int i = 0; i < jobs->n_running; i++)
        bytes += jobs->running[i]->grant.bytes;
    return bytes;
}

/* ------------------------------------------------------------------------------------------------------- grants */

int serve_jobs_most(const struct serve_jobs *jobs, const struct serve_job *job)
{
    const int n_ctx = jobs->params->n_ctx;
    return job->max_tokens < n_ctx - job->n_prompt ? job->n_prompt + job->max_tokens : n_ctx;
}

/* Bytes that the job's texts hold at most while each has up to n tokens. */
static int count_bytes(const struct serve_jobs *jobs, struct serve_job *job, int n, uint64_t *bytes)
{
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    if (butler_policy_estimate(jobs->engine, job->policy, kv_type(jobs), n, &cost, &job->error) < 0)
        return job->error.code;
    uint64_t one = cost.kv_memory + cost.metric_memory + jobs->slack;
    if (cost.evicts_prompts_only && n > job->n_prompt)
        one += butler_kv_bytes(butler_engine_model(jobs->engine), kv_type(jobs), n - job->n_prompt);
    *bytes = (uint64_t)job->n_choices * one;
    return 0;
}

/* A grant for texts of n tokens and some that follow. */
static int make_grant(const struct serve_jobs *jobs, struct serve_job *job, int n, struct serve_grant *grant)
{
    const int most = serve_jobs_most(jobs, job), next = n < most - GRANT ? n + GRANT : most;
    grant->n_tokens = jobs->params->park ? next : most;
    if (count_bytes(jobs, job, grant->n_tokens, &grant->bytes) < 0 ||
        count_bytes(jobs, job, next < most - GRANT ? next + GRANT : most, &grant->growth) < 0)
        return job->error.code;
    grant->growth -= grant->growth < grant->bytes ? grant->growth : grant->bytes;
    if (!job->prompt_done && grant->bytes < job->prompt_bytes)
        grant->bytes = job->prompt_bytes;
    return 0;
}

int serve_jobs_count(const struct serve_jobs *jobs, struct serve_job *job)
{
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    uint64_t most = 0;
    const int n = job->n_prompt;
    if (job->prompt_bytes > 0)
        return 0;
    if (butler_policy_estimate(jobs->engine, job->policy, kv_type(jobs), n, &cost, &job->error) < 0 ||
        count_bytes(jobs, job, serve_jobs_most(jobs, job), &most) < 0)
        return job->error.code;
    job->prompt_bytes = cost.prompt_memory + jobs->slack;
    if (most > jobs->params->kv_bytes || job->prompt_bytes > jobs->params->kv_bytes)
        return serve_set_error(job, BUTLER_ERROR_LENGTH, "the request needs more memory than --kv-ram allows");
    return make_grant(jobs, job, n, &job->grant);
}

/* Beside every running job's next grant, so that what begins is not parked at once. */
static bool has_room(const struct serve_jobs *jobs, uint64_t bytes)
{
    for (int i = 0; i < jobs->n_running; i++)
        bytes += jobs->running[i]->grant.bytes + (jobs->params->park ? jobs->running[i]->grant.growth : 0);
    return bytes <= jobs->params->kv_bytes || jobs->n_running == 0;
}

bool serve_jobs_fits(const struct serve_jobs *jobs, const struct serve_job *job)
{
    return !jobs->parked && jobs->n_running < jobs->params->max_jobs && has_room(jobs, job->grant.bytes);
}

int serve_jobs_end_prompt(const struct serve_jobs *jobs, struct serve_job *job)
{
    return make_grant(jobs, job, job->n_prompt, &job->grant);
}

/* ------------------------------------------------------------------------------------------------------ prompts */

/* Less comes first. A prompt that has not begun counts twice: of two with the same beginning, one is read to its end, then the
 * other finds it in the prefix cache. */
static int rank(const struct serve_job *job)
{
    const bool begun = job->looked_up || butler_n_past(job->choices[0].session) > 0;
    return (begun ? 1 : 2) * job->n_left - job->n_overtaken;
}

int serve_jobs_prompts(const struct serve_jobs *jobs, struct serve_job **prompts)
{
    int n = 0;
    for (int i = 0; i < jobs->n_running; i++) {
        struct serve_job *job = jobs->running[i];
        const struct butler_session *session = job->prompt_done ? NULL : job->choices[0].session;
        if (job->prompt_done)
            continue;
        job->n_left = job->n_prompt - butler_n_past(session);
        if (job->n_left == job->n_prompt && !job->no_cache && !job->looked_up)
            job->n_left -= butler_session_find_prefix(session, job->prompt, job->n_prompt, NULL);
        int at = n++;
        for (; at > 0 && rank(prompts[at - 1]) > rank(job); at--)
            prompts[at] = prompts[at - 1];
        prompts[at] = job;
    }
    return n;
}

void serve_jobs_overtake(const struct serve_jobs *jobs, const struct serve_job *job, int n)
{
    for (int i = 0; i < jobs->n_running && jobs->running[i] != job; i++)
        jobs->running[i]->n_overtaken += n;
}

/* ------------------------------------------------------------------------------------------------------ parking */

/* Tokens of the job's longest text after the next step. */
static int next_tokens(const struct serve_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_choices; i++)
        n = job->choices[i].n_generated > n ? job->choices[i].n_generated : n;
    return job->n_prompt + n;
}

/* False: it stays, and jobs->park_error says why. */
static bool park_youngest(struct serve_jobs *jobs)
{
    struct serve_job *job = jobs->running[jobs->n_running - 1], **at = &jobs->parked;
    const double begin = serve_now();
    uint64_t n_bytes;
    if (!jobs->params->park || begin < jobs->park_again || job->n_preparing > 0)
        return false;
    if (serve_park(job, jobs->params->park, &n_bytes, &jobs->park_error) < 0) {
        jobs->park_again = begin + 1;
        jobs->park_failures++;
        return false;
    }
    jobs->n_running--;
    while (*at && (*at)->id < job->id)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    jobs->n_parked++;
    jobs->parked_total++;
    jobs->parked_bytes += n_bytes;
    jobs->park_s += serve_now() - begin;
    return true;
}

void serve_jobs_resume(struct serve_jobs *jobs)
{
    bool go_on = true; /* one at a time where others wait for their next token */
    while (go_on && jobs->parked) {
        struct serve_job *job = jobs->parked;
        struct serve_grant grant = {0};
        if (make_grant(jobs, job, next_tokens(job), &grant) == 0 && !has_room(jobs, grant.bytes))
            break;
        const double begin = serve_now();
        go_on = jobs->n_running == 0;
        jobs->parked = job->next;
        jobs->n_parked--;
        job->grant = grant;
        if (job->error.code == 0)
            serve_unpark(job, jobs->engine, &job->error);
        int at = jobs->n_running++;
        for (; at > 0 && jobs->running[at - 1]->id > job->id; at--)
            jobs->running[at] = jobs->running[at - 1];
        jobs->running[at] = job;
        jobs->park_s += serve_now() - begin;
    }
}

/* Returns how many jobs are held. */
static int grant_all(struct serve_jobs *jobs)
{
    int n_held = 0;
    for (int i = 0; i < jobs->n_running; i++) {
        struct serve_job *job = jobs->running[i];
        struct serve_grant grant = {0};
        job->held = false;
        if (job->error.code || !job->prompt_done || next_tokens(job) <= job->grant.n_tokens ||
            make_grant(jobs, job, next_tokens(job), &grant) < 0)
            continue;
        const uint64_t added = grant.bytes > job->grant.bytes ? grant.bytes - job->grant.bytes : 0;
        while (serve_jobs_reserved(jobs) + added > jobs->params->kv_bytes && jobs->n_running > i + 1 && park_youngest(jobs))
            continue;
        job->held = serve_jobs_reserved(jobs) + added > jobs->params->kv_bytes;
        if (!job->held)
            job->grant = grant;
        else if (i + 1 < jobs->n_running || !park_youngest(jobs))
            n_held++;
    }
    return n_held;
}

bool serve_jobs_preparing(const struct serve_jobs *jobs)
{
    for (int i = 0; i < jobs->n_running; i++)
        if (jobs->running[i]->n_preparing > 0)
            return true;
    return false;
}

static bool all_held(struct serve_jobs *jobs)
{
    const int n_held = grant_all(jobs);
    return n_held > 0 && n_held == jobs->n_running;
}

void serve_jobs_grant(struct serve_jobs *jobs)
{
    if (!all_held(jobs) || serve_jobs_preparing(jobs)) /* which is soon done: then it can leave memory */
        return;
    jobs->park_again = 0; /* once more, before a job ends for it */
    if (!all_held(jobs))
        return;
    struct serve_job *job = jobs->running[jobs->n_running - 1];
    job->error.code = BUTLER_ERROR_MEMORY;
    snprintf(job->error.message, sizeof job->error.message,
             "the memory of --kv-ram ran out, and the request could not leave it: %.400s", jobs->park_error.message);
}
