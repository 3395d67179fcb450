/* What decode steps read: of every policy in total and as audits found it (for /metrics), of recent texts step by step (for
 * /kv/trace). Filled in the engine's thread, copied by any. */
#ifndef SERVE_TRACE_H
#define SERVE_TRACE_H

#include "serve/scheduler.h"

enum {
    SERVE_TRACES = 32,       /* texts that are remembered: those that run, then those that ended last */
    SERVE_TRACE_STEPS = 256, /* latest steps of each */
    SERVE_POLICIES = 32,     /* policies that are counted by name; the last is "other" */
    SERVE_POLICY_NAME = 96,
};

struct serve_choice;
struct serve_traces;

/* Of a text that is being generated. Zeroed at first. */
struct serve_watch {
    struct butler_audit audit;
    bool audited;             /* the step that runs fills it */
    struct butler_stats seen; /* after the last step */
    int trace;                /* 1 + the number of its trace; 0: it has none yet; -1: none was free */
};

/* One step of a text. */
struct serve_trace_step {
    int n_tokens; /* of the text, the step's included */
    uint64_t kv_bytes, metric_bytes, dense_bytes;
    float reuse;        /* share of the units read that the step before read too; NAN: nothing was selected */
    float recall, mass; /* NAN: not audited */
};

struct serve_trace {
    int id, owner, choice, n_prompt; /* id and owner: the job's */
    char answer_id[48];
    bool running;
    uint64_t n_steps; /* step i lies at i % SERVE_TRACE_STEPS */
    char policy[SERVE_POLICY_NAME];
    struct serve_trace_step steps[SERVE_TRACE_STEPS];
};

struct serve_policy_metrics {
    char policy[SERVE_POLICY_NAME];
    uint64_t n_jobs, prompt_tokens, cached_tokens; /* of jobs whose prompts were read; cached_tokens: of the prefix cache */
    uint64_t read_bytes, dense_bytes;              /* read_bytes: with those of the metric */
    struct serve_histogram recall, mass;           /* of audited steps, by serve_share_bounds */
    double audit_s;
};
extern const double serve_share_bounds[SERVE_BUCKETS - 1];

/* audit_every: steps from one audit to the next; 0: none. */
struct serve_traces *serve_traces_new(int audit_every);
void serve_traces_free(struct serve_traces *traces);

/* Before a step that decodes a token of each of n texts. Where its turn has come, one of them is audited, each after the other. */
void serve_traces_before(struct serve_traces *traces, struct serve_choice *const *choices, int n);
/* After it, for each. */
void serve_traces_after(struct serve_traces *traces, const struct serve_job *job, struct serve_choice *choice);
/* The job is over; one whose prompt was not read does not count. */
void serve_traces_job(struct serve_traces *traces, const struct serve_job *job);
/* The text is complete. */
void serve_traces_end(struct serve_traces *traces, struct serve_choice *choice);

/* Copies of all, into out[SERVE_TRACES] and out[SERVE_POLICIES]. Returns their number. */
int serve_traces_copy(struct serve_traces *traces, struct serve_trace *out);
int serve_traces_policies(struct serve_traces *traces, struct serve_policy_metrics *out);

#endif
