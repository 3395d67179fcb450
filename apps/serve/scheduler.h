/* Runs jobs (a prompt and the texts that follow it) on one engine, in a thread of its own that alone touches the engine. One loop:
 * a step is the next token of every text that is being generated, and a chunk of the prompts that wait. What a job computes does
 * not depend on the others.
 *
 * The caller's thread submits jobs and collects events; neither waits for the engine. A job belongs to the scheduler from
 * serve_submit until its SERVE_DONE event was collected. */
#ifndef SERVE_SCHEDULER_H
#define SERVE_SCHEDULER_H

#include "butler_plugin.h"
#include "butler_tools.h"
#include "serve/text.h"

enum {
    SERVE_MAX_TOP = 20,     /* most probable tokens that are reported with one */
    SERVE_MAX_CHOICES = 64, /* of a job */
    SERVE_MAX_STOPS = 16,
    SERVE_MAX_PASSAGES = 10, /* of a receipt */
    SERVE_MAX_DEVICES = 16,
    SERVE_BUCKETS = 14, /* of a histogram, the last without a bound */
};

/* How probable a token was, by the model's own distribution: before temperature, penalties and biases. */
struct serve_score {
    double logprob;
    int n_top;
    struct serve_top {
        int32_t id;
        double logprob;
    } top[SERVE_MAX_TOP]; /* highest first */
};

enum serve_finish { SERVE_FINISH_NONE, SERVE_FINISH_END, SERVE_FINISH_STOP, SERVE_FINISH_LENGTH, SERVE_FINISH_ENTROPY };

/* The vector that stands for a prompt: of the hidden states of its tokens after the final norm, divided by its Euclidean length. */
enum serve_pooling { SERVE_POOL_NONE, SERVE_POOL_MEAN, SERVE_POOL_LAST, SERVE_POOL_FIRST };

struct serve_choice; /* a text that is being generated */
struct serve_traces;
struct serve_maps;

struct serve_job {
    /* Set by the caller; pointers are owned by the job, from malloc. */
    int32_t *prompt; /* [n_prompt], at least 1 */
    int n_prompt;
    char *policy, *key;                    /* key: whose job it is; or NULL */
    int owner;                             /* as in struct http_exchange: who may see the job's trace, map and slot */
    uint64_t salt;                         /* beginnings of prompts are shared with jobs of the same salt alone */
    char answer_id[48];                    /* what its answer is called, "" if it has no name */
    struct butler_sampler_params sampling; /* without end_ids; choice i has seed + i */
    int n_choices, max_tokens;
    int n_indent;      /* a later line with fewer spaces or tabs before its first letter ends the text; 0: none does */
    double max_line_s; /* seconds after its first token a text ends with its line, if there was one before; 0: at any time */
    int n_top;         /* most probable tokens to report with each; -1: no scores at all */
    bool score_prompt; /* scores of the prompt's tokens, with n_top of each */
    bool ignore_end, no_cache;
    bool progress; /* SERVE_PROGRESS events come */
    int receipt;   /* steps from one that is compared with exact attention to the next; 0: none is */
    bool map;      /* which tokens its steps read is recorded (see map.h); not of lossless jobs */
    /* Not SERVE_POOL_NONE: the job gives no text, only embedding; with no_cache, for it takes every token's hidden state. */
    enum serve_pooling pooling;
    bool lossless; /* texts are those of `full`; the policy, which must be one that can, drafts (see draft.h) */
    int n_drafts;  /* most for a check, 1 to 15; 0: the library's default */
    char *stops[SERVE_MAX_STOPS];
    int n_stops;
    bool (*is_shown)(const char *bytes, size_t n); /* control tokens of this spelling are in the text too; NULL: none */
    void *user;
    int device; /* devices.h's: which scheduler has it */

    /* Results, to be read after the events that say so. */
    struct serve_score *scores;     /* [n_prompt], that of token 0 means nothing; after SERVE_PROMPT */
    double *embedding;              /* [n_embd]; after SERVE_DONE without an error */
    int n_cached;                   /* tokens of the prompt that the prefix cache had; after SERVE_PROMPT */
    int n_generated;                /* tokens of all choices; after SERVE_DONE */
    struct butler_stats stats;      /* of all choices; after SERVE_DONE */
    struct butler_receipt compared; /* of all choices, means; n_steps 0: none was compared; after SERVE_DONE */
    struct serve_passage {
        char *text; /* UTF-8 */
        double share;
    } passages[SERVE_MAX_PASSAGES]; /* of the prompt, with the share of the attention to it; see receipt.h */
    int n_passages;
    double queue_s, prompt_s, decode_s;
    struct butler_error error; /* code != 0: the job failed; after SERVE_DONE */

    /* The scheduler's. */
    struct serve_job *next;
    struct serve_choice *choices; /* [n_choices] */
    int id, n_running, n_vocab, n_embd, cancelled;
    int n_preparing; /* choices that the thread of prepare.h has: until it is 0 the job neither ends nor leaves memory */
    bool prompt_done;
    bool looked_up;          /* in the prefix cache */
    bool begun;              /* it has or had a place among those that run */
    bool held;               /* not in the next step: there is no memory for it */
    uint64_t prompt_bytes;   /* of the cache that it may hold while the prompt is read; 0: not counted yet */
    int n_left, n_overtaken; /* tokens of the prompt still to be read; tokens of younger prompts that were read before them */
    struct serve_grant {
        int n_tokens;           /* that each of its texts may have */
        uint64_t bytes, growth; /* reserved for that; what the next grant adds */
    } grant;
    double submitted, admitted, told, first, latest; /* seconds; told: the latest SERVE_PROGRESS */
};

enum serve_event_kind {
    SERVE_PROGRESS, /* some of the prompt was read; of jobs that ask for it, while they read */
    SERVE_PROMPT,   /* the prompt was read */
    SERVE_TOKEN,    /* a token of a choice */
    SERVE_END,      /* a choice is complete */
    SERVE_DONE,     /* the job is: the last event of it */
};

struct serve_event {
    struct serve_event *next;
    struct serve_job *job;
    enum serve_event_kind kind;
    int choice;
    int32_t id;               /* of SERVE_TOKEN */
    int n_read, n_cached;     /* of SERVE_PROGRESS: tokens of the prompt, those of the prefix cache among them */
    double read_s;            /* of SERVE_PROGRESS: since the job was admitted */
    enum serve_finish finish; /* of SERVE_END */
    struct serve_score score; /* of SERVE_TOKEN */
    char *text;               /* [n_text] UTF-8 that is certain now: no part of a character, nothing that may become a stop text */
    size_t n_text;
    const char *stop; /* of SERVE_END: the job's text that ended it; or NULL */
};

struct serve_params {
    int n_ctx;          /* of every session; 0: what the model was trained for */
    int kv_type;        /* enum butler_kv_type */
    const char *policy; /* of jobs that name none, unless policy_for says which */
    /* The policy of a job whose texts come to have n_tokens at most; NULL: policy. From any thread. */
    const char *(*policy_for)(const void *user, int n_tokens);
    const void *policy_user;
    bool lossless;         /* jobs that name none are lossless, */
    int n_drafts;          /* with so many drafts */
    uint64_t kv_bytes;     /* that jobs may reserve together */
    const char *park;      /* folder for jobs that leave memory when it runs out; NULL: a job's memory is reserved as a whole */
    uint64_t prefix_bytes; /* that the engine's prefix cache holds; 0: it has none */
    /* Where prompts are kept, also for a later start; the scheduler's until serve_scheduler_free. NULL: nowhere */
    struct butler_library *library;
    bool rereads;             /* answers are read as prompts while nothing else runs (reread.h) */
    double max_stall_s;       /* longest step while a text is being generated */
    int max_jobs, max_queue;  /* that run, that wait for one of those places or for memory; max_queue may be 0 */
    int audit_every;          /* steps that decode, from one audit to the next; 0: none */
    const char *const *steps; /* [n_steps] plug-ins of every session (butler_session_add_step); not with park */
    int n_steps;
    /* What decode steps read, what tokens attended to, and the number of the next job: another scheduler's, which is freed after
     * this one; NULL: its own, which serve_scheduler_params then gives. */
    struct serve_traces *traces;
    struct serve_maps *maps;
    int *next_id;
    void (*wake)(void *user); /* in the engine's thread: there are events */
    void *user;
};

struct serve_scheduler;

/* Starts the engine's thread. The engine is the scheduler's until serve_scheduler_free. NULL: *err says why. */
struct serve_scheduler *serve_scheduler_new(struct butler_engine *engine, const struct serve_params *params,
                                            struct butler_error *err);
/* Cancels what runs and ends the thread; events can still be collected. */
void serve_scheduler_stop(struct serve_scheduler *scheduler);
/* After serve_scheduler_stop. All events were collected. */
void serve_scheduler_free(struct serve_scheduler *scheduler);
/* The caller's parameters, defaults filled in. */
const struct serve_params *serve_scheduler_params(const struct serve_scheduler *scheduler);

/* 0, or BUTLER_ERROR_MEMORY when no place is free and the queue is full. Then the job stays the caller's. */
int serve_submit(struct serve_scheduler *scheduler, struct serve_job *job);
/* From the caller's thread: the job ends after the step that runs. Its SERVE_DONE still comes. */
void serve_cancel(struct serve_job *job);
bool serve_job_is_cancelled(const struct serve_job *job); /* from any thread */
/* All events so far, oldest first; NULL: none. Each is freed by serve_event_free. */
struct serve_event *serve_collect(struct serve_scheduler *scheduler);
void serve_event_free(struct serve_event *event);
void serve_job_free(struct serve_job *job);

struct serve_histogram {
    uint64_t counts[SERVE_BUCKETS], n;
    double sum;
};
extern const double serve_bounds[SERVE_BUCKETS - 1]; /* seconds */
/* bounds[SERVE_BUCKETS - 1], ascending */
void serve_histogram_add(struct serve_histogram *histogram, const double *bounds, double value);

/* What happened so far. */
struct serve_metrics {
    uint64_t n_jobs, n_failed, n_cancelled, n_refused, prompt_tokens, cached_tokens, generated_tokens, n_steps;
    uint64_t kv_bytes, metric_bytes, full_kv_bytes; /* of decode steps of jobs that are done */
    uint64_t pages_wanted, pages_fetched, disk_bytes;
    double disk_s;
    uint64_t reread_tokens;                    /* of answers, read as prompts */
    uint64_t library_tokens;                   /* of cached_tokens those that came from the library's folder */
    double prompt_s, decode_s, longest_step_s; /* longest_step_s: of steps in which a text was being generated */
    uint64_t busy;                             /* texts of all decode steps */
    int n_running, n_waiting, n_parked, chunk;
    uint64_t reserved;                                  /* of serve_params.kv_bytes */
    uint64_t parked_total, parked_bytes, park_failures; /* jobs that left memory, what was written, how often that failed */
    double park_s;                                      /* that it took, and coming back */
    struct serve_histogram queue, first, between;       /* queue: from submission to admission */
    struct butler_engine_info engine;
};

struct serve_slot {
    int id, owner, n_prompt, n_read, n_generated;
    bool prompt_done, parked;
    char policy[96];
};

/* Copies; slots[max_slots] of jobs that run. Returns their number. */
int serve_inspect(struct serve_scheduler *scheduler, struct serve_metrics *metrics, struct serve_slot *slots, int max_slots);

#endif
