/* The loop over steps, see scheduler.h: admission by bytes, the choice of what a step does, its measurement. */
#include "serve/scheduler.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/choice.h"
#include "serve/draft.h"
#include "serve/jobs.h"
#include "serve/pace.h"
#include "serve/park.h"
#include "serve/prepare.h"
#include "serve/receipt.h"
#include "serve/reread.h"
#include "serve/scores.h"

enum {
    MIN_CHUNK = 8,        /* tokens of prompts in a step, however long it takes: a prompt goes on in any case */
    FIRST_CHUNK = 32,     /* before anything was measured */
    MAP_BYTES = 64 << 20, /* of the maps of all texts */
};

struct serve_scheduler {
    struct butler_engine *engine;
    struct butler_model *model;
    struct serve_params params;
    char *policy;
    int32_t *end_ids;
    int n_end_ids;
    pthread_t thread;

    /* The engine's thread alone. */
    struct serve_jobs jobs;
    int first_id; /* of its own numbers the next */
    struct serve_job *waiting;
    int n_waiting;
    struct butler_span *spans;  /* [n_spans]: */
    struct serve_job **of_span; /* whose they are */
    struct serve_choice **choice_of;
    struct serve_job **prompts; /* [max_jobs]: those that wait, in the order of serve_jobs_prompts */
    struct butler_error *errors;
    struct serve_pace pace;
    double work[SERVE_N_WORK]; /* of the step */
    double stepped;            /* when the latest texts got their tokens */
    int chunk;                 /* prompt tokens of the latest step with both */
    struct serve_scores *scores;
    struct serve_traces *traces, *own_traces;
    struct serve_maps *own_maps;
    struct serve_prepare *prepare;
    struct serve_reread *reread;
    bool idle; /* all that runs waits for what is being prepared */

    /* Under the lock, which is never held while the engine runs. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct serve_job *submitted, **submitted_end;
    struct serve_event *events, **events_end;
    bool prepared; /* there are choices to collect from s->prepare */
    int n_queued;  /* submitted or waiting */
    int n_begun;   /* running or parked */
    bool blocked;  /* the next job to be admitted waits for memory: places that are free do not help */
    bool stopping;
    struct serve_metrics metrics;
    struct serve_slot *slots; /* [max_jobs] */
    int n_slots;
};

/* ---------------------------------------------------------------------------------------------------- events */

static struct serve_event *event_new(struct serve_job *job, enum serve_event_kind kind, int choice)
{
    struct serve_event *event = serve_alloc(1, sizeof *event);
    event->job = job;
    event->kind = kind;
    event->choice = choice;
    return event;
}

static void send(struct serve_scheduler *s, struct serve_event *event)
{
    pthread_mutex_lock(&s->lock);
    *s->events_end = event;
    s->events_end = &event->next;
    pthread_mutex_unlock(&s->lock);
}

struct serve_event *serve_collect(struct serve_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    struct serve_event *events = s->events;
    s->events = NULL;
    s->events_end = &s->events;
    pthread_mutex_unlock(&s->lock);
    return events;
}

void serve_event_free(struct serve_event *event)
{
    free(event->text);
    free(event);
}

/* ------------------------------------------------------------------------------------------------ life of a job */

/* The job is over: its sessions are freed, and with SERVE_DONE it is the caller's again. */
static void finish_job(struct serve_scheduler *s, struct serve_job *job)
{
    struct serve_metrics *m = &s->metrics;
    const double end = serve_now();
    for (int i = 0; job->choices && i < job->n_choices; i++) {
        job->n_generated += job->choices[i].n_generated;
        serve_traces_end(s->traces, &job->choices[i]);
        serve_map_end(job->choices[i].map);
        serve_reread_add(s->reread, job, &job->choices[i]);
        serve_receipt_take(job, s->model, &job->choices[i]);
        serve_choice_free(&job->choices[i]);
    }
    free(job->choices);
    job->choices = NULL;
    serve_traces_job(s->traces, job);
    job->decode_s = job->first > 0 ? end - job->first : 0;
    pthread_mutex_lock(&s->lock);
    s->n_begun -= job->begun;
    m->n_jobs++;
    m->n_failed += job->error.code != 0 && job->error.code != BUTLER_ERROR_CANCELLED;
    m->n_cancelled += job->error.code == BUTLER_ERROR_CANCELLED;
    m->decode_s += job->decode_s;
    m->kv_bytes += job->stats.kv_bytes;
    m->metric_bytes += job->stats.metric_bytes;
    m->full_kv_bytes += job->stats.full_kv_bytes;
    m->pages_wanted += job->stats.pages_wanted;
    m->pages_fetched += job->stats.pages_fetched;
    m->disk_bytes += job->stats.disk_bytes;
    m->disk_s += job->stats.disk_s;
    m->library_tokens += job->stats.n_library;
    pthread_mutex_unlock(&s->lock);
    send(s, event_new(job, SERVE_DONE, 0)); /* last: from here on it may be freed */
}

/* --------------------------------------------------------------------------------------------------- admission */

/* Takes over the beginning of a prompt to be scored that was read and scored before; returns its length. One token less than that
 * is known stays: the logits after it score the first token that is not. */
static int adopt_scored(struct serve_scheduler *s, struct serve_job *job)
{
    struct butler_session *session = job->choices[0].session;
    struct butler_error *err = &job->error;
    if (job->n_top > 1)
        return 0;
    const int n_scored = serve_scores_find(s->scores, job->policy, job->salt, job->prompt, job->n_prompt, job->scores);
    const int n = n_scored ? butler_session_adopt_prefix(session, job->prompt, job->n_prompt, err) : 0;
    const int n_kept = n < n_scored ? n - 1 : n_scored - 1;
    if (n <= 0)
        return n;
    if (butler_session_truncate(session, n_kept, NULL) == 0)
        return n_kept;
    return butler_session_truncate(session, 0, err); /* a window that has lost those before: all is read again */
}

/* Sessions and samplers of the choices; the prompt is read by the first. */
static int start_job(struct serve_scheduler *s, struct serve_job *job)
{
    struct butler_error *err = &job->error;
    const struct butler_session_params params = {.n_ctx = s->params.n_ctx,
                                                 .kv_type = (enum butler_kv_type)s->params.kv_type,
                                                 .policy = job->policy,
                                                 .seed = job->sampling.seed};
    struct butler_sampler_params sampling = job->sampling;
    sampling.end_ids = s->end_ids;
    sampling.n_end_ids = s->n_end_ids;
    job->choices = serve_alloc((size_t)job->n_choices, sizeof *job->choices);
    for (int i = 0; i < job->n_choices; i++) {
        job->choices[i].fd = -1;
        job->choices[i].map = job->map ? serve_map_begin(s->params.maps, job, i) : NULL;
    }
    for (int i = 0; i < job->n_choices; i++) {
        sampling.seed = job->sampling.seed + (uint64_t)i;
        if (!(job->choices[i].sampler = butler_sampler_new(&sampling, err)) ||
            butler_sampler_accept(job->choices[i].sampler, job->prompt, job->n_prompt, err) < 0)
            return err->code;
    }
    struct butler_session *session = job->choices[0].session = butler_session_new(s->engine, &params, err);
    if (!session || butler_session_set_prefix_salt(session, job->salt, err) < 0 ||
        butler_session_keep_receipt(session, job->receipt, err) < 0)
        return err->code;
    for (int i = 0; i < s->params.n_steps; i++)
        if (butler_session_add_step(session, s->params.steps[i], err) < 0)
            return err->code;
    if (job->lossless && serve_draft_open(job, &job->choices[0], err) < 0)
        return err->code;
    job->n_vocab = butler_model_get_info(s->model)->n_vocab;
    job->n_embd = butler_model_get_info(s->model)->n_embd;
    if (job->pooling != SERVE_POOL_NONE)
        job->embedding = serve_alloc((size_t)job->n_embd, sizeof *job->embedding);
    if (job->score_prompt)
        job->scores = serve_alloc((size_t)job->n_prompt, sizeof *job->scores);
    return 0;
}

/* Once, just before a prompt is read: of several with the same beginning that came together, the first is read by then. False: the
 * job has failed. */
static bool look_up(struct serve_scheduler *s, struct serve_job *job)
{
    if (job->no_cache || job->looked_up)
        return true;
    job->looked_up = true;
    /* Not before: serve_jobs_prompts asks in every step what is known, and would ask the disk. Scores come from memory alone. */
    if (!job->score_prompt && butler_session_use_library(job->choices[0].session, s->params.library, &job->error) < 0)
        return false;
    const int n = job->score_prompt ? adopt_scored(s, job)
                                    : butler_session_adopt_prefix(job->choices[0].session, job->prompt, job->n_prompt, &job->error);
    job->n_cached = n > 0 ? n : 0;
    return n >= 0;
}

/* Of the jobs that wait: the oldest of the keys that have the fewest jobs running. */
static struct serve_job **choose(struct serve_scheduler *s)
{
    struct serve_job **best = NULL;
    int fewest = 0;
    for (struct serve_job **at = &s->waiting; *at; at = &(*at)->next) {
        int n = 0;
        for (int i = 0; i < s->jobs.n_running; i++)
            n += (*at)->key && s->jobs.running[i]->key ? strcmp((*at)->key, s->jobs.running[i]->key) == 0
                                                       : (*at)->key == s->jobs.running[i]->key;
        if (!best || n < fewest) {
            best = at;
            fewest = n;
        }
    }
    return best;
}

/* begins: it takes a place among those that run. */
static void take_from_queue(struct serve_scheduler *s, struct serve_job **at, bool begins)
{
    struct serve_job *job = *at;
    *at = job->next;
    job->begun = begins;
    job->admitted = serve_now();
    job->queue_s = job->admitted - job->submitted;
    pthread_mutex_lock(&s->lock);
    s->n_queued--;
    s->n_begun += begins;
    if (begins)
        serve_histogram_add(&s->metrics.queue, serve_bounds, job->queue_s);
    pthread_mutex_unlock(&s->lock);
    s->n_waiting--;
}

/* Places count as free from here on, or no longer. */
static void set_blocked(struct serve_scheduler *s, bool blocked)
{
    pthread_mutex_lock(&s->lock);
    s->blocked = blocked;
    pthread_mutex_unlock(&s->lock);
}

static void admit(struct serve_scheduler *s)
{
    set_blocked(s, s->jobs.parked != NULL);
    while (s->waiting && s->jobs.n_running < s->params.max_jobs) {
        struct serve_job **at = choose(s), *job = *at;
        int code = serve_jobs_count(&s->jobs, job);
        if (code == 0 && !serve_jobs_fits(&s->jobs, job)) {
            set_blocked(s, true);
            break; /* until others have ended: nobody that fits overtakes it for ever */
        }
        take_from_queue(s, at, true);
        job->id = __atomic_fetch_add(s->params.next_id, 1, __ATOMIC_RELAXED);
        if (code == 0)
            code = start_job(s, job);
        if (code < 0) {
            finish_job(s, job);
            continue;
        }
        s->jobs.running[s->jobs.n_running++] = job;
        if (s->work[SERVE_WORK_TEXTS] > 0) /* beginning takes time, for which others wait: one a step */
            break;
    }
}

/* Under the lock, which is released meanwhile. */
static void wait_a_while(struct serve_scheduler *s)
{
    enum { WAIT_NS = 20000000 };
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += WAIT_NS;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&s->changed, &s->lock, &end);
}

/* Jobs that were submitted join those that wait. False: the scheduler ends. Waits while there is nothing to do. */
static bool take_submitted(struct serve_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->submitted && !s->waiting && s->jobs.n_running + s->jobs.n_parked == 0 && !s->stopping &&
           !serve_reread_pending(s->reread))
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->idle && !s->submitted && !s->prepared && !s->stopping)
        wait_a_while(s); /* clients that leave are seen then */
    s->prepared = false;
    struct serve_job *jobs = s->submitted, **end = &s->waiting;
    s->submitted = NULL;
    s->submitted_end = &s->submitted;
    const bool go_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    while (*end)
        end = &(*end)->next;
    *end = jobs;
    for (; jobs; jobs = jobs->next)
        s->n_waiting++;
    return go_on;
}

/* Jobs that were cancelled, or all of them, end. */
static void drop_cancelled(struct serve_scheduler *s, bool all)
{
    for (struct serve_job **at = &s->waiting; *at;) {
        struct serve_job *job = *at;
        if (!all && !serve_job_is_cancelled(job)) {
            at = &job->next;
            continue;
        }
        take_from_queue(s, at, false);
        serve_set_error(job, BUTLER_ERROR_CANCELLED, "cancelled");
        finish_job(s, job);
    }
    for (struct serve_job **at = &s->jobs.parked; *at;) {
        struct serve_job *job = *at;
        if (!all && !serve_job_is_cancelled(job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        s->jobs.n_parked--;
        serve_set_error(job, BUTLER_ERROR_CANCELLED, "cancelled");
        finish_job(s, job);
    }
    for (int i = 0; i < s->jobs.n_running; i++)
        if (all || serve_job_is_cancelled(s->jobs.running[i]))
            serve_set_error(s->jobs.running[i], BUTLER_ERROR_CANCELLED, "cancelled");
}

/* ------------------------------------------------------------------------------------------------------- a step */

/* The next token of a choice after its logits were made. */
static void next_token(struct serve_scheduler *s, struct serve_job *job, int i)
{
    struct serve_choice *choice = &job->choices[i];
    struct serve_event *event = event_new(job, SERVE_TOKEN, i);
    int finish = job->max_tokens == 0                                             ? SERVE_FINISH_LENGTH
                 : choice->n_generated > 0 && butler_should_stop(choice->session) ? SERVE_FINISH_ENTROPY
                                                                                  : SERVE_FINISH_NONE;
    const bool none = finish != SERVE_FINISH_NONE;
    if (!none)
        finish = serve_choice_sample(job, choice, s->model, event, &job->error);
    if (none || finish < 0) {
        serve_event_free(event);
    } else {
        const double time = serve_now();
        pthread_mutex_lock(&s->lock);
        serve_histogram_add(job->first > 0 ? &s->metrics.between : &s->metrics.first, serve_bounds,
                            time - (job->first > 0 ? job->latest : job->submitted));
        s->metrics.generated_tokens++;
        pthread_mutex_unlock(&s->lock);
        job->first = job->first > 0 ? job->first : time;
        job->latest = time;
        if (choice->map)
            serve_map_token(choice->map, event->id);
        send(s, event);
    }
    if (finish < 0 || finish == SERVE_FINISH_NONE)
        return;
    struct serve_event *end = event_new(job, SERVE_END, i);
    end->finish = (enum serve_finish)finish;
    end->stop = finish == SERVE_FINISH_STOP ? choice->stop : NULL;
    serve_choice_flush(choice, end);
    send(s, end);
    choice->ended = true;
    job->n_running--;
}

/* The same once it is known what the job's grammar allows, which the thread of prepare.h may have to find out first. */
static void prepare_token(struct serve_scheduler *s, struct serve_job *job, int i)
{
    struct serve_choice *choice = &job->choices[i];
    const bool drawn = choice->n_taken < choice->n_drawn || job->max_tokens == 0;
    const int code = job->sampling.grammar && !drawn ? serve_prepare_choice(s->prepare, job, choice, &job->error) : 1;
    if (code > 0)
        next_token(s, job, i);
}

/* Choices whose grammars' next tokens are known. */
static void take_prepared(struct serve_scheduler *s)
{
    for (struct serve_choice *choice = serve_prepare_collect(s->prepare), *next; choice; choice = next) {
        struct serve_job *job = choice->job;
        next = choice->next;
        if (choice->prepared < 0 && job->error.code == 0)
            job->error = choice->prepare_error;
        else if (choice->prepared > 0 && job->error.code == 0)
            next_token(s, job, (int)(choice - job->choices));
    }
}

static void end_prompt(struct serve_scheduler *s, struct serve_job *job)
{
    job->prompt_done = true;
    const int n_texts = job->pooling == SERVE_POOL_NONE ? job->n_choices : 0;
    job->n_running = n_texts;
    job->prompt_s = serve_now() - job->admitted;
    for (int i = 1; i < job->n_choices && job->max_tokens > 0; i++)
        if (!(job->choices[i].session = butler_session_fork(job->choices[0].session, &job->error)) ||
            butler_session_keep_receipt(job->choices[i].session, job->receipt, &job->error) < 0)
            return;
    if (serve_jobs_end_prompt(&s->jobs, job) < 0)
        return;
    if (job->score_prompt) {
        serve_scores_add(s->scores, job->policy, job->salt, job->prompt, job->n_prompt, job->scores);
        for (int i = 0; job->n_top == 0 && i < job->n_prompt; i++)
            job->scores[i].n_top = 0;
    }
    pthread_mutex_lock(&s->lock);
    s->metrics.prompt_tokens += (uint64_t)(job->n_prompt - job->n_cached);
    s->metrics.cached_tokens += (uint64_t)job->n_cached;
    s->metrics.prompt_s += job->prompt_s;
    pthread_mutex_unlock(&s->lock);
    send(s, event_new(job, SERVE_PROMPT, 0));
    if (job->pooling != SERVE_POOL_NONE)
        serve_job_end_embedding(job);
    for (int i = 0; i < n_texts && job->error.code == 0; i++)
        prepare_token(s, job, i);
}

static void add_span(struct serve_scheduler *s, int *n, struct serve_job *job, struct serve_choice *choice, const int32_t *ids,
                     int n_ids)
{
    const bool scored = !job->prompt_done && job->score_prompt;
    s->of_span[*n] = job;
    s->choice_of[*n] = choice;
    s->errors[*n].code = 0;
    s->spans[(*n)++] = (struct butler_span){.session = choice->session,
                                            .ids = ids,
                                            .n = n_ids,
                                            .prompt_end = job->n_prompt,
                                            .no_logits = job->pooling != SERVE_POOL_NONE,
                                            .exact = job->lossless && job->prompt_done,
                                            .each = scored ? serve_job_logits : NULL,
                                            .user = job,
                                            .hidden = job->pooling != SERVE_POOL_NONE ? serve_job_hidden : NULL};
}

/* At most ten times a second. */
static void tell_progress(struct serve_scheduler *s, struct serve_job *job)
{
    const double now = serve_now();
    if (!job->progress || now - job->told < 0.1)
        return;
    struct serve_event *event = event_new(job, SERVE_PROGRESS, 0);
    event->n_read = butler_n_past(job->choices[0].session);
    event->n_cached = job->n_cached;
    event->read_s = now - job->admitted;
    job->told = now;
    send(s, event);
}

/* How many of the next tokens of a prompt go into a step that has n_prompt already: as many as its time allows, by what was
 * measured; where no text is being generated, as many as a pass of the engine takes. */
static int fit_prompt(const struct serve_scheduler *s, const struct serve_job *job, int n_decodes, int n_prompt)
{
    const int n_past = butler_n_past(job->choices[0].session), left = job->n_prompt - n_past, n_block = s->metrics.engine.n_block,
              room = (n_decodes < n_block ? n_block - n_decodes : 1) - n_prompt,
              most = s->chunk > 0 ? 2 * s->chunk : FIRST_CHUNK; /* a prediction that is far off costs little */
    int n = left < room ? left : room;
    if (n_decodes == 0)
        return n;
    const double spent = serve_now() - s->stepped, seconds = s->params.max_stall_s - spent - serve_pace_predict(&s->pace, s->work);
    n = n < most - n_prompt ? n : most - n_prompt;
    n = serve_pace_tokens(&s->pace, n_past, seconds, n);
    return n_prompt == 0 && n < MIN_CHUNK ? (left < MIN_CHUNK ? left : MIN_CHUNK) : n < MIN_CHUNK && n < left ? 0 : n;
}

/* The spans of a step: a token of every choice that is being generated, then prompts. *n_decodes: how many are the former. */
static int make_step(struct serve_scheduler *s, int *n_decodes, int *n_prompt)
{
    int n = 0;
    memset(s->work, 0, sizeof s->work);
    s->work[SERVE_WORK_STEP] = 1;
    for (int j = 0; j < s->jobs.n_running; j++) {
        struct serve_job *job = s->jobs.running[j];
        for (int i = 0; job->prompt_done && !job->held && job->error.code == 0 && i < job->n_choices; i++)
            if (!job->choices[i].ended && !job->choices[i].preparing) {
                s->work[SERVE_WORK_CACHE] += butler_n_past(job->choices[i].session);
                add_span(s, &n, job, &job->choices[i], &job->choices[i].id, 1);
            }
    }
    *n_decodes = n;
    s->work[SERVE_WORK_TEXTS] = n;
    *n_prompt = 0;
    const int n_prompts = serve_jobs_prompts(&s->jobs, s->prompts);
    for (int j = 0; j < n_prompts; j++) {
        struct serve_job *job = s->prompts[j];
        /* Not looked up before some of it is read: a beginning that is read now may be found by then. */
        if (fit_prompt(s, job, *n_decodes, *n_prompt) == 0)
            break;
        if (!look_up(s, job))
            continue;
        const int n_past = butler_n_past(job->choices[0].session), n_more = fit_prompt(s, job, *n_decodes, *n_prompt);
        if (n_more == 0)
            break;
        add_span(s, &n, job, &job->choices[0], job->prompt + n_past, n_more);
        *n_prompt += n_more;
        serve_jobs_overtake(&s->jobs, job, n_more);
        s->work[SERVE_WORK_PROMPT] += n_more;
        s->work[SERVE_WORK_PAIRS] += n_more * (n_past + 0.5 * n_more);
    }
    if (*n_decodes > 0 && *n_prompt > 0)
        s->chunk = *n_prompt < MIN_CHUNK ? MIN_CHUNK : *n_prompt;
    return n;
}

static void describe(const struct serve_job *job, struct serve_slot *slot, bool parked)
{
    *slot = (struct serve_slot){
        .id = job->id, .owner = job->owner, .n_prompt = job->n_prompt, .prompt_done = job->prompt_done, .parked = parked};
    slot->n_read = job->prompt_done ? job->n_prompt : parked ? job->n_prompt - job->n_left : butler_n_past(job->choices[0].session);
    for (int c = 0; c < job->n_choices; c++)
        slot->n_generated += job->choices[c].n_generated;
    snprintf(slot->policy, sizeof slot->policy, "%s", job->policy);
}

/* What others may see of the jobs that have begun. */
static void publish(struct serve_scheduler *s)
{
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(s->engine, &info);
    serve_reread_discount(s->reread, &info);
    pthread_mutex_lock(&s->lock);
    struct serve_metrics *m = &s->metrics;
    m->engine = info;
    m->n_running = s->jobs.n_running;
    m->n_parked = s->jobs.n_parked;
    m->parked_total = s->jobs.parked_total;
    m->parked_bytes = s->jobs.parked_bytes;
    m->park_failures = s->jobs.park_failures;
    m->park_s = s->jobs.park_s;
    m->chunk = s->chunk;
    m->reserved = serve_jobs_reserved(&s->jobs);
    s->n_slots = 0;
    for (int i = 0; i < s->jobs.n_running; i++)
        describe(s->jobs.running[i], &s->slots[s->n_slots++], false);
    for (const struct serve_job *job = s->jobs.parked; job; job = job->next)
        describe(job, &s->slots[s->n_slots++], true);
    pthread_mutex_unlock(&s->lock);
}

static void run_step(struct serve_scheduler *s)
{
    int n_decodes, n_prompt;
    const int n = make_step(s, &n_decodes, &n_prompt);
    const double begin = serve_now(), before = s->stepped;
    s->idle = n == 0 && serve_jobs_preparing(&s->jobs);
    if (n == 0)
        return;
    const bool round = n == 1 && serve_draft_wanted(s->of_span[0]);
    if (round) {
        serve_draft_round(s->of_span[0], s->choice_of[0], s->params.max_stall_s, &s->errors[0]);
    } else {
        serve_traces_before(s->traces, s->choice_of, n_decodes);
        for (int i = 0; i < n_decodes; i++)
            if (s->choice_of[i]->map)
                serve_map_before(s->choice_of[i]->map, s->choice_of[i]->session);
        butler_run(s->engine, s->spans, n, s->errors);
    }
    for (int i = 0; i < n; i++) {
        struct serve_job *job = s->of_span[i];
        if (i < n_decodes && s->errors[i].code == 0)
            serve_traces_after(s->traces, job, s->choice_of[i]);
        if (i < n_decodes && s->errors[i].code == 0 && s->choice_of[i]->map)
            serve_map_after(s->choice_of[i]->map);
        if (s->errors[i].code < 0 && job->error.code == 0)
            job->error = s->errors[i];
        else if (job->error.code == 0 && job->prompt_done)
            do
                prepare_token(s, job, (int)(s->choice_of[i] - job->choices));
            while (s->choice_of[i]->n_taken < s->choice_of[i]->n_drawn && !s->choice_of[i]->ended);
        else if (job->error.code == 0 && butler_n_past(job->choices[0].session) == job->n_prompt)
            end_prompt(s, job);
        else if (job->error.code == 0)
            tell_progress(s, job);
    }
    s->stepped = serve_now();
    if (!round) /* the work of rounds is another */
        serve_pace_add(&s->pace, s->work, s->stepped - begin);
    pthread_mutex_lock(&s->lock);
    s->metrics.n_steps++;
    s->metrics.busy += (uint64_t)n_decodes;
    if (n_decodes > 0 && s->stepped - before > s->metrics.longest_step_s)
        s->metrics.longest_step_s = s->stepped - before;
    pthread_mutex_unlock(&s->lock);
}

/* Takes the jobs that are complete, or failed, out of those that run. */
static void drop_done(struct serve_scheduler *s)
{
    int n = 0;
    for (int i = 0; i < s->jobs.n_running; i++) {
        struct serve_job *job = s->jobs.running[i];
        if (job->n_preparing > 0 || (job->error.code == 0 && (!job->prompt_done || job->n_running > 0)))
            s->jobs.running[n++] = job;
        else
            finish_job(s, job);
    }
    s->jobs.n_running = n;
}

/* There is nothing else to do. */
static void reread(struct serve_scheduler *s)
{
    const int n = serve_reread_step(s->reread);
    pthread_mutex_lock(&s->lock);
    s->metrics.reread_tokens += (uint64_t)n;
    pthread_mutex_unlock(&s->lock);
}

static void *run_engine(void *user)
{
    struct serve_scheduler *s = user;
    bool go_on = true;
    while (go_on) {
        go_on = take_submitted(s);
        if (!go_on)
            serve_prepare_stop(s->prepare);
        take_prepared(s);
        drop_cancelled(s, !go_on);
        drop_done(s);
        if (go_on) {
            const int n_running = s->jobs.n_running;
            serve_jobs_resume(&s->jobs);
            admit(s);
            serve_jobs_grant(&s->jobs);
            drop_done(s); /* what could not come back, or got no memory */
            if (s->jobs.n_running != n_running)
                publish(s); /* a step can be long */
        }
        if (go_on && s->jobs.n_running + s->jobs.n_parked == 0 && !s->waiting && serve_reread_pending(s->reread))
            reread(s);
        run_step(s);
        drop_done(s);
        publish(s);
        s->params.wake(s->params.user);
    }
    return NULL;
}

/* In the thread of prepare.h. */
static void on_prepared(void *user)
{
    struct serve_scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    s->prepared = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------------------------------- the caller's thread */

int serve_submit(struct serve_scheduler *s, struct serve_job *job)
{
    job->submitted = serve_now();
    job->next = NULL;
    if (!job->policy)
        job->policy =
            strdup(s->params.policy_for ? s->params.policy_for(s->params.policy_user, serve_jobs_most(&s->jobs, job)) : s->policy);
    pthread_mutex_lock(&s->lock);
    /* Jobs that are queued get the free places at the next step. */
    const int n_free = s->blocked ? 0 : s->params.max_jobs - s->n_begun;
    const bool full = s->n_queued >= s->params.max_queue + n_free;
    if (full) {
        s->metrics.n_refused++;
    } else {
        s->n_queued++;
        *s->submitted_end = job;
        s->submitted_end = &job->next;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return full ? BUTLER_ERROR_MEMORY : 0;
}

int serve_inspect(struct serve_scheduler *s, struct serve_metrics *metrics, struct serve_slot *slots, int max_slots)
{
    pthread_mutex_lock(&s->lock);
    *metrics = s->metrics;
    metrics->n_waiting = s->n_queued;
    const int n = s->n_slots < max_slots ? s->n_slots : max_slots;
    if (n > 0)
        memcpy(slots, s->slots, (size_t)n * sizeof *slots);
    pthread_mutex_unlock(&s->lock);
    return n;
}

const struct serve_params *serve_scheduler_params(const struct serve_scheduler *s)
{
    return &s->params;
}

/* Tokens whose scores are kept: as many as the prefix cache may hold, without which scores are of no use. */
static uint64_t max_scored(const struct serve_scheduler *s)
{
    enum { SOME = 1024, MOST = 1 << 19 };
    const uint64_t bytes = butler_kv_bytes(s->model, (enum butler_kv_type)s->params.kv_type, SOME) / SOME;
    return s->params.prefix_bytes / bytes < MOST ? s->params.prefix_bytes / bytes : MOST;
}

struct serve_scheduler *serve_scheduler_new(struct butler_engine *engine, const struct serve_params *params,
                                            struct butler_error *err)
{
    if (serve_park_check(engine, params->park, err) < 0)
        return NULL;
    struct serve_scheduler *s = serve_alloc(1, sizeof *s);
    s->engine = engine;
    s->model = butler_engine_model(engine);
    s->params = *params;
    const struct butler_model_info *info = butler_model_get_info(s->model);
    if (!s->params.n_ctx)
        s->params.n_ctx = info->n_ctx_train;
    s->policy = strdup(params->policy ? params->policy : "full");
    s->params.policy = s->policy;
    s->end_ids = serve_alloc((size_t)info->n_vocab, sizeof *s->end_ids);
    for (int32_t id = 0; id < info->n_vocab; id++)
        if (butler_token_is_end(s->model, id))
            s->end_ids[s->n_end_ids++] = id;
    const size_t max_jobs = (size_t)params->max_jobs, max_spans = max_jobs * SERVE_MAX_CHOICES;
    serve_jobs_init(&s->jobs, engine, &s->params);
    s->slots = serve_alloc(max_jobs, sizeof *s->slots);
    s->spans = serve_alloc(max_spans, sizeof *s->spans);
    s->of_span = serve_alloc(max_spans, sizeof(struct serve_job *));
    s->choice_of = serve_alloc(max_spans, sizeof(struct serve_choice *));
    s->prompts = serve_alloc(max_jobs, sizeof(struct serve_job *));
    s->errors = serve_alloc(max_spans, sizeof *s->errors);
    s->scores = serve_scores_new(max_scored(s));
    if (!params->traces) {
        s->params.traces = s->own_traces = serve_traces_new(params->audit_every);
        s->params.maps = s->own_maps = serve_maps_new(info, MAP_BYTES);
        s->params.next_id = &s->first_id;
    }
    s->traces = s->params.traces;
    s->submitted_end = &s->submitted;
    s->events_end = &s->events;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    publish(s);
    s->reread = serve_reread_new(engine, &s->params);
    s->prepare = serve_prepare_new(info->n_vocab, on_prepared, s);
    if (s->prepare && pthread_create(&s->thread, NULL, run_engine, s) == 0)
        return s;
    *err = (struct butler_error){BUTLER_ERROR_MEMORY, "the engine's threads cannot be started"};
    serve_scheduler_free(s);
    return NULL;
}

void serve_scheduler_stop(struct serve_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

void serve_scheduler_free(struct serve_scheduler *s)
{
    serve_prepare_free(s->prepare);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    serve_scores_free(s->scores);
    serve_traces_free(s->own_traces);
    serve_maps_free(s->own_maps);
    serve_reread_free(s->reread);
    free(s->policy);
    free(s->end_ids);
    free(s->jobs.running);
    free(s->slots);
    free(s->spans);
    free(s->of_span);
    free(s->choice_of);
    free(s->prompts);
    free(s->errors);
    free(s);
}
