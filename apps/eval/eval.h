/* Evaluation: quality of a policy and bytes that it saves. A task (one file each) makes items from its data and measures one item
 * in one session. The framework does the rest for all tasks: policies and budgets, threads, prompts read once for several
 * policies, confidence intervals, rows, resuming:
 *
 *     task->load -> items -> { a session per item and policy -> task->run -> numbers } -> task->rows -> JSON lines
 */
#ifndef EVAL_H
#define EVAL_H

#include <jansson.h>

#include "butler_tools.h"
#include "base/util.h"

enum {
    EVAL_MAX_OPTIONS = 16, /* of one task */
    EVAL_MAX_ROWS = 8,     /* metrics one task reports for a policy */
    EVAL_CURVE = 16,       /* parts of a text in a curve over time */
    EVAL_POLICY_TEXT = sizeof(((struct butler_policy_parts *)0)->text),
};

/* ------------------------------------------------------------------------------------------------ a task */

/* One text, and the position from which it is measured. */
struct eval_item {
    int32_t *ids; /* [n_ids] owned */
    int n_ids;
    /* ids[0, n_prompt) are read as a prompt, with dense attention, once for all policies that can share it; the task's run
     * decodes from there on. Mode simulate: run starts with an empty session. */
    int n_prompt;
    /* Question-aware: the policy observes the whole prompt and cuts its cache; then the prompt's last token is taken out again, and
     * run begins by decoding it, so that the first prediction comes from what the policy kept. */
    bool repeats_last;
    int n_extra; /* tokens that run may add after n_ids */
    void *own;   /* the task's; freed by its free_own, or by free() where that is NULL */
};

struct eval_items {
    struct eval_item *items;
    int n;
    size_t capacity;
};

/* A task's result for one policy when all items are done. */
struct eval_row {
    const char *metric;   /* as in the contract: ppl, bpb, accuracy, ... */
    double value, lo, hi; /* 95 % confidence interval; NaN: written as null */
    int64_t n;            /* number of observations in value */
    json_t *detail;       /* or NULL; ownership is taken. If it has an array "tokens", its fields go into the row itself */
};

struct eval_option {
    const char *name, *value, *help; /* value: the default, as text */
};

struct eval_run;
struct eval_policy;
struct eval_watch;

/* What decoding one item under one policy cost, and how it compares with dense attention on the same text. All numbers are sums,
 * so that items add up. */
struct eval_cost {
    double n_decode, kv_bytes, metric_bytes, full_kv_bytes, seconds;
    double compared, kl, agreed; /* tokens; sum of KL(dense || policy) in nats; tokens with the same likeliest next token */
    /* By the position in the text, in parts of 1 / EVAL_CURVE of the longest item: units selected, and of them selected by the step
     * before too; tokens with the highest q.k under dense attention, and of them read. */
    double selected[EVAL_CURVE], reused[EVAL_CURVE], wanted[EVAL_CURVE], found[EVAL_CURVE];
};
enum { EVAL_N_COSTS = (int)(sizeof(struct eval_cost) / sizeof(double)) };

/* One item under one policy, while it is measured. */
struct eval_trial {
    const struct eval_run *run;
    const struct eval_item *item;
    const struct eval_policy *policy;
    struct butler_session *session; /* which has read the prompt */
    struct butler_session *dense;   /* the same text under dense attention, for comparison; or NULL */
    double *values;                 /* [run->n_values], zeroed */
    struct eval_watch *watch;       /* the framework's */
    char *output;                   /* what the model wrote, for the journal; or NULL. The framework frees it */
    struct eval_cost cost;
};

struct eval_task {
    const char *name, *summary;
    const char *data;                  /* what it needs, and under which licence; or NULL */
    const char *work;                  /* tokens that an item reads as a prompt and decodes: its time, on any machine; or NULL */
    const char *details;               /* what --data, --length and --limit mean, in a few lines */
    const struct eval_option *options; /* ends with name NULL; NULL: none */
    const char *(*subset)(int i);      /* the i-th value of option subset, NULL after the last: without one, each is run. Or NULL */
    int length, limit;                 /* defaults; limit 0: all items */
    bool simulate;                     /* the default mode */
    /* Reads or makes the items (at most run->limit of them) and sets run->n_values, and run->length where it is 0. */
    int (*load)(struct eval_run *run, struct butler_error *err);
    /* One item under one policy: decodes by eval_step and writes trial->values. Called from several threads for different trials:
     * run and item are read only. */
    int (*run)(struct eval_trial *trial, struct butler_error *err);
    /* Alternatively, one item under all policies at once: values[p] and costs[p] are those of policies[p]. */
    int (*run_together)(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *const *policies, int n,
                        double *const *values, struct eval_cost *costs, struct butler_error *err);
    /* Makes rows[EVAL_MAX_ROWS] from the items' values [n_items][n_values]; returns their number or a negative code. */
    int (*rows)(const struct eval_run *run, const double *values, struct eval_row *rows, struct butler_error *err);
    void (*free_own)(void *own);
};

/* The tasks, listed only here: each(NAME) for struct eval_task eval_NAME. */
#define EVAL_TASKS(each)                                                                                                           \
    each(ppl) each(coref) each(passkey) each(kv) each(lines) each(turns) each(chain) each(recall) each(consensus) each(sparsity)   \
        each(norms) each(heat) each(drafts) each(mc) each(longbench) each(summary) each(ruler) each(speed)
#define EVAL_DECLARE(name) extern const struct eval_task eval_##name;
EVAL_TASKS(EVAL_DECLARE)
#undef EVAL_DECLARE
/* All of them, NULL-terminated. */
extern const struct eval_task *const eval_tasks[];
const struct eval_task *eval_task_find(const char *name);

/* ------------------------------------------------------------------------------------------------- a run */

/* The processes that share the items of a run. Every one makes all items and ends with the same numbers; only rank 0 writes results
 * and calls events->row and note. */
struct eval_processes {
    int rank, n_ranks;
    const void *user;
    /* values[n] becomes the sum over all processes; at most one of them has a value that is not 0. */
    int (*share)(const void *user, double *values, size_t n, struct butler_error *err);
};

/* From the command line. */
struct eval_params {
    const char *data;   /* path, or NULL: the task generates its data */
    const char *subset; /* one of several subsets that are run one after the other; NULL: --set says which, or the data */
    int length, limit;  /* 0: the task's default */
    uint64_t seed;
    const char *mode; /* "simulate", "prefill", or NULL: the task's default */
    const char *const *policies;
    int n_policies;
    const double *budgets; /* each is applied to every policy that has a budget; none: policies as given */
    int n_budgets;
    const char *const *settings; /* "key=value[,key=value...]" for the task's options */
    int n_settings;
    enum butler_kv_type kv_type;
    int activation_bits;    /* of the engine, 0: 8: named in rows */
    const char *conditions; /* what else the engine was made with, for `config`: ",isa=avx2,pre=qwen2"; NULL: nothing unusual */
    uint64_t centres;       /* digest of the files with query centres, of policies that use them; 0: there are none */
    int n_threads;          /* sequences at a time, each in an engine of one thread */
    const char *output; /* rows are appended to this file, items to FILE.items, and what they have is not computed again; or NULL */
    const char *model_name;
    const struct eval_processes *processes; /* NULL: this one alone */
    const char *library;                    /* a folder (butler_library_open) in which prompts are kept and found; NULL: none */
    uint64_t library_bytes;                 /* its limit; 0: the default */
};

struct eval_events {
    void *user;
    void (*progress)(void *user, double done);    /* done: fraction of the work, 0 .. 1 */
    void (*row)(void *user, const json_t *row);   /* newly measured */
    void (*known)(void *user, const json_t *row); /* what this run would measure, and the output already has */
    void (*note)(void *user, const char *text);
    bool (*stopped)(void *user); /* true: the run stops, at the latest after the token or the part of a prompt that is being read.
                                  * From any thread */
};

/* A policy with its budget applied. */
struct eval_policy {
    char *text;
    double budget;
    int given; /* index in params->policies */
    struct butler_policy_parts parts;
    char runs[EVAL_POLICY_TEXT]; /* canonical: what its sessions read under, parts.text but for dense= */
    int dense;                   /* layers [0, dense) read everything */
};

struct eval_run {
    const struct eval_task *task;
    const struct eval_params *params;
    const struct eval_events *events;
    struct butler_engine *engine;   /* of the thread that has this copy of the run */
    struct butler_library *library; /* of this thread; or NULL */
    struct butler_model *model;
    const struct butler_model_info *info;
    bool simulate;
    int length, limit;
    uint64_t seed;
    const char *option_values[EVAL_MAX_OPTIONS]; /* of task->options, in order */
    char *settings;                              /* owned text that they point into */
    const char *subset;                          /* data set, for a task with several, or NULL; load sets it */
    uint64_t data_digest;                        /* of what eval_text_read read */
    bool reads_data;                             /* params->data is among it */
    struct eval_items items;
    int longest; /* tokens of the longest item */
    int n_values;
    struct eval_policy *policies;
    int n_policies;
    int min_dense; /* minimum of dense layers, under every policy */
    void *own;     /* the task's, freed by free() at the end */
};

/* An engine of the run's model, plug-ins and predictors with threads of its own, for a task that measures time. */
struct butler_engine *eval_engine_beside(const struct eval_run *run, int n_threads, struct butler_error *err);
/* The processor (on ARM the board, or the core's numbers), its instructions that this engine uses, and a number of threads, as
 * text: what a time holds for. */
enum { EVAL_MACHINE = 192 };
void eval_machine(const struct butler_engine *engine, int n_threads, char *out, size_t n_out);

/* 0, or negative with *err filled. EVAL_SKIPPED: the subset was not measured, and a note said why. EVAL_STOPPED when
 * events->stopped returned true: finished items are in the output's journal. */
enum { EVAL_STOPPED = 1, EVAL_SKIPPED = 2 };
int eval_execute(const struct eval_task *task, struct butler_engine *engine, const struct eval_params *params,
                 const struct eval_events *events, struct butler_error *err);

/* Option chat of a task with questions: "auto" (on where the model has a chat template), "on" or "off". */
int eval_option_chat(const struct eval_run *run, bool *chat, struct butler_error *err);
/* For a task's load: notes why there is nothing to measure, and returns EVAL_SKIPPED. */
int eval_skip(const struct eval_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Options of every task that decodes by eval_step. */
#define EVAL_COMMON_OPTIONS                                                                                                        \
    {                                                                                                                              \
        "compare", "1", "0: no second session with dense attention, so no kl, agreement and found share"                           \
    }
/* The value of a task's option, as text, or as a whole number in [min, max] (error: names the option). */
const char *eval_option_text(const struct eval_run *run, const char *name);
int eval_option_int(const struct eval_run *run, const char *name, int min, int max, int *out, struct butler_error *err);

/* ----------------------------------------------------------------------------------------------- for tasks */

/* Decodes a token, and under dense attention too where trial->dense is there. BUTLER_ERROR_CANCELLED: the run was stopped. */
int eval_step(struct eval_trial *trial, int32_t id, struct butler_error *err);
/* An error (BUTLER_ERROR_CANCELLED) if the run was stopped. */
int eval_check_stop(const struct eval_run *run, struct butler_error *err);
/* Appends an item of ids[n] (copied). NULL: no memory. */
struct eval_item *eval_item_add(struct eval_run *run, const int32_t *ids, int n, int n_prompt, struct butler_error *err);

/* Items from the text file --data: run->limit windows of run->length tokens (with the beginning-of-text token where the file asks
 * for it), spread over the whole file. The last n_decode tokens of each are decoded. */
int eval_windows_load(struct eval_run *run, int n_decode, struct butler_error *err);

/* Tokens of a text appended to *ids. */
struct eval_ids {
    int32_t *ids;
    int n;
    size_t capacity;
};
/* Empties ids and adds the beginning-of-text token where the model's file asks for one. */
int eval_ids_begin(struct eval_ids *ids, const struct butler_model *model, struct butler_error *err);
int eval_ids_text(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err);
/* The same for a text that continues another one: no space is added before it. */
int eval_ids_piece(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err);
/* Tokens of a conversation that begins with this user's text, by the model's chat template, up to the beginning of an answer. */
int eval_ids_chat(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err);
/* Tokens of the model's chat template around a user's text: before it, and from its end to the beginning of an answer. */
int eval_ids_frame(struct eval_ids *before, struct eval_ids *after, const struct butler_model *model, struct butler_error *err);
int eval_ids_append(struct eval_ids *ids, const int32_t *more, int n, struct butler_error *err);
void eval_ids_free(struct eval_ids *ids);

/* ln of the probability that softmax(logits[n]) gives id. */
double eval_log_prob(const float *logits, int n, int32_t id);
/* KL(p || q) in nats of the softmax of two rows of logits[n]. */
double eval_divergence(const float *p_logits, const float *q_logits, int n);
int32_t eval_argmax(const float *logits, int n);

/* --------------------------------------------------------------------------------------------------- data */

/* A file read whole, checked to be UTF-8 (and not compressed); its digest goes into the run. bytes[n] is 0. */
struct eval_text {
    char *bytes;
    size_t n;
};
int eval_text_read(struct eval_run *run, const char *path, struct eval_text *text, struct butler_error *err);
void eval_text_free(struct eval_text *text);

/* Lines of JSON objects. Empty lines are skipped. Errors name file, line and field. */
struct eval_jsonl {
    const char *path;
    struct eval_text text;
    size_t at;
    int line;       /* of object */
    json_t *object; /* the current one, owned */
};
int eval_jsonl_open(struct eval_run *run, struct eval_jsonl *lines, const char *path, struct butler_error *err);
/* 1: lines->object is the next one. 0: no more. */
int eval_jsonl_next(struct eval_jsonl *lines, struct butler_error *err);
void eval_jsonl_close(struct eval_jsonl *lines);
/* Fields of the current object; borrowed. Strings may not be empty where `filled`. */
int eval_jsonl_string(const struct eval_jsonl *lines, const char *field, bool filled, const char **out, struct butler_error *err);
int eval_jsonl_int(const struct eval_jsonl *lines, const char *field, json_int_t min, json_int_t max, json_int_t *out,
                   struct butler_error *err);
int eval_jsonl_array(const struct eval_jsonl *lines, const char *field, size_t at_least, json_t **out, struct butler_error *err);
/* An error about a field of the current object. */
int eval_jsonl_fail(const struct eval_jsonl *lines, const char *field, struct butler_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* --------------------------------------------------------------------------------------------- statistics */

/* A row of the mean of values[i * run->n_values + which] over the items, from 0 to 1; Wilson's interval where all are 0 or 1. The
 * items' last value must be 1. */
struct eval_row eval_mean_row(const struct eval_run *run, const char *metric, const double *values, int which);

/* Wilson's 95 % interval of k successes in n. */
void eval_wilson(double k, double n, double *lo, double *hi);
/* 95 % interval of sum x / sum w over n independent sequences (a ratio; Student's t on its linearised deviations):
 * x[i * stride], w[i * stride]. NaN where n < 2. */
void eval_ratio_interval(const double *x, const double *w, size_t stride, int n, double *lo, double *hi);
/* The same where x is a part of w, within [0, 1]; where x is all of w, or nothing, Wilson's interval of n sequences that all are.
 */
void eval_share_interval(const double *x, const double *w, size_t stride, int n, double *lo, double *hi);

#endif
