/* Internal interfaces of the framework: set up, results on disk, the loop over items. */
#ifndef EVAL_PARTS_H
#define EVAL_PARTS_H

#include "eval.h"

int eval_take_options(struct eval_run *run, struct butler_error *err);
int eval_take_policies(struct eval_run *run, struct butler_error *err);

/* The bytes and tokens of a session's decode steps. */
void eval_cost_take(struct eval_cost *cost, const struct butler_stats *stats, double seconds);

/* What eval_step needs; after trial->dense is set. */
int eval_watch_begin(struct eval_trial *trial, struct butler_error *err);
void eval_watch_end(struct eval_trial *trial);

/* The last prompt that was read to be shared. */
struct eval_donor {
    const struct eval_item *item;
    bool observes;
    struct butler_session *session;
};

/* A session under this policy that has read the item's prompt (mode simulate: nothing). budget: in tokens, in place of the policy's
 * own; 0: that. *out may be set even where it fails. */
int eval_session_begin(const struct eval_run *run, const struct eval_item *item, const char *policy, int budget,
                       struct eval_donor *donor, struct butler_session **out, struct butler_error *err);
void eval_donor_free(struct eval_donor *donor);

/* Of a canonical text: whether it has a key, its number (0 where there is none), and whether it is this word. */
bool eval_text_has(const char *text, const char *key);
double eval_text_number(const char *text, const char *key);
bool eval_text_is(const char *text, const char *key, const char *word);
/* Puts "key=value" in the place of a key of a canonical text; nothing where there is no such key. */
void eval_text_set(char text[EVAL_POLICY_TEXT], const char *key, const char *item);
void eval_policy_set_dense(struct eval_policy *policy, int n);
/* Whether it decides what this layer reads: it is neither one of the first dense ones, nor has it a window. */
bool eval_policy_applies(const struct eval_run *run, const struct eval_policy *policy, int layer);
/* Whether it can share no prompt: what it keeps of one part determines how it reads the next. */
bool eval_policy_reads_alone(const struct eval_run *run, const char *text);
/* Whether its metric must see the prompt's attention, so that it cannot share a dense reading. */
bool eval_policy_observes(const struct eval_run *run, const char *text);

/* The newest of n tokens and the k - 1 of the others with the highest scores, ties to the lower index: into ids[n], ascending.
 * Returns their number. scratch[n]. */
int eval_top(const float *scores, int n, int k, float *scratch, uint32_t *ids);

/* A file of JSON lines that are appended to. */
struct eval_log {
    char *path;        /* NULL: none */
    int fd, precision; /* digits of a number */
};
struct eval_log_kind {
    const char *begin, *fault;             /* how every line begins; what a line of another kind lacks */
    int (*take)(void *user, json_t *line); /* -1: of another kind; 0: more lines belong to it; 1: complete */
    void *user;
};
/* Opens or creates the file, reads its lines, and cuts off what is incomplete at its end. A file with other lines is an error, and
 * nothing is changed. */
int eval_log_open(struct eval_log *log, const char *path, const struct eval_log_kind *kind, struct butler_error *err);
/* Bytes as a JSON string, with U+FFFD for what is not UTF-8. NULL: no memory. */
json_t *eval_text(const char *bytes, size_t n);
/* Reads the complete lines of such a file, which may be absent. */
int eval_log_read(const char *path, const struct eval_log_kind *kind, struct butler_error *err);
/* Appends the objects of an array, synced to the disk before it returns. */
int eval_log_append(const struct eval_log *log, const json_t *lines, struct butler_error *err);
void eval_log_close(struct eval_log *log);

/* The measurements of a pass, n of n_items items each, seen by all processes. */
struct eval_shares {
    const struct eval_processes *processes; /* NULL: one */
    int n, n_items, n_values;
    double *values;          /* [n][n_items][n_values] */
    struct eval_cost *costs; /* [n][n_items] */
    bool *have;              /* [n][n_items] measured */
    bool *mine;              /* [n_items] this process measures what is lacking of the item */
    int n_have;              /* at first, of all processes */
};
bool eval_is_root(const struct eval_params *params);
/* Makes what one process has known to all, and distributes the items that lack a measurement. */
int eval_share_begin(struct eval_shares *shares, struct butler_error *err);
/* Makes what every process measured since known to all. */
int eval_share_end(struct eval_shares *shares, struct butler_error *err);
/* Rank 0's numbers become those of all. */
int eval_share_root(const struct eval_params *params, double *numbers, size_t n, struct butler_error *err);

/* The first 12 digits of the commit that the program was built from; "+changes" behind it if the tree had others, "unknown" without
 * git. */
const char *eval_commit(void);
/* What identifies the measurement of a policy on items of any number, as text. Owned; NULL: no memory. */
char *eval_items_key(const struct eval_run *run, const struct eval_policy *policy);

/* The file of results: rows are appended a policy at a time. */
struct eval_results {
    struct eval_log log;
    json_t *done; /* what the file had when it was opened: an object of arrays, the rows of each measurement */
};
/* path NULL: none. Also after a failure eval_results_close is called. */
int eval_results_open(struct eval_results *results, const char *path, struct butler_error *err);
/* 1 if the file has the rows of this policy, of as many items, and *rows is then an array of them (borrowed); 0; or a negative
 * code. */
int eval_results_has(const struct eval_results *results, const struct eval_run *run, const struct eval_policy *policy,
                     const json_t **rows);
/* Appends the rows of one policy (an array). */
int eval_results_append(struct eval_results *results, const json_t *rows, struct butler_error *err);
void eval_results_close(struct eval_results *results);

/* The journal of a file of results: single items of policies that are not complete. Each process has its own, RESULTS.items and
 * RESULTS.items.RANK; rank 0 also knows what is in the others'. */
struct eval_journal {
    struct eval_log log;
    json_t *done;    /* an object of its lines */
    json_t *commits; /* an object: for each key the commits of other programs that measured items which were taken, an object too */
};
int eval_journal_open(struct eval_journal *journal, const char *results_path, int rank, struct butler_error *err);
/* Whether the journal has the run's item `index` (key: eval_items_key). Then values[run->n_values] and *cost are filled. */
bool eval_journal_take(const struct eval_journal *journal, const char *key, const struct eval_run *run, int index, double *values,
                       struct eval_cost *cost);
/* Adds the commits of others that measured some of these rows' items to `commit`. */
void eval_journal_name_commits(const struct eval_journal *journal, const char *key, json_t *rows);
/* What the journal keeps of an item. */
struct eval_journal_item {
    const char *key, *policy;
    int index;
    const double *values; /* [run->n_values] */
    const struct eval_cost *cost;
    const char *output;
};
int eval_journal_add(const struct eval_journal *journal, const struct eval_run *run, const struct eval_journal_item *item,
                     struct butler_error *err);
void eval_journal_close(struct eval_journal *journal);

/* The policy with which the others are compared item by item. */
struct eval_base {
    const struct eval_policy *policy; /* the first dense one, or the first */
    double *values;                   /* [n_items][n_values] owned; NULL: not known (yet) */
};
struct eval_difference {
    double value, lo, hi; /* a policy's metric minus the base's, and its 95 % interval (NaN for a single item) */
};
/* Differences of all of the task's rows into out[EVAL_MAX_ROWS]. */
int eval_paired(const struct eval_run *run, const double *values, const double *base, struct eval_difference *out,
                struct butler_error *err);

/* The rows of a policy whose items are done; an array, or NULL. cost: the sum over the items. */
json_t *eval_make_rows(const struct eval_run *run, const struct eval_policy *policy, const double *values,
                       const struct eval_cost *cost, const struct eval_base *base, struct butler_error *err);

#endif
