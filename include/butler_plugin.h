/* Plug-ins: the contracts of metrics and of steps, and how an engine gets to know them. Conventions as in butler.h. */
#ifndef BUTLER_PLUGIN_H
#define BUTLER_PLUGIN_H

#include "butler.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ------------------------------------------------------------------------------------------ metric plug-ins
 *
 * A metric gives one number per token or page of the cache, per query head: how much it matters to this query. It keeps
 * what it must remember in *records* of a fixed size, each covering a fixed number of neighbouring cache slots, and in a *state* of
 * a fixed size for every KV head. The engine owns both, zeroes them, moves records when slots move, counts their bytes, saves,
 * copies and restores them. So a metric has no memory of its own, and most are a page long.
 * A slot is a row of the cache of one KV head. Without eviction slot i holds position i.
 *
 * score() and begin_score() may read keys, values, positions and records of this KV head, its state, the queries that they are
 * given, and what butler_view_dot_layer gives. Several threads call score() at once for one head: it writes nothing but out. A
 * score is a number: NaN is an error of the metric, and counts as lower than every other score. */

struct butler_metric_shape {
    int n_layers, n_heads, n_kv_heads, head_dim;
    int group; /* n_heads / n_kv_heads: query heads that share a KV head */
    uint64_t seed;
    int predicted_dim, predicted_keys; /* channels of a predicted head, predicted keys a KV head; 0: no predictor */
};

struct butler_head_view; /* one (layer, KV head) of the cache; made by the engine, valid during a call */

int butler_view_layer(const struct butler_head_view *view);
int butler_view_kv_head(const struct butler_head_view *view);
int butler_view_n_slots(const struct butler_head_view *view);
int butler_view_query_position(const struct butler_head_view *view); /* position of the newest token */
int butler_view_position(const struct butler_head_view *view, int slot);
void butler_view_key(const struct butler_head_view *view, int slot, float *out /* [head_dim] */);
void butler_view_value(const struct butler_head_view *view, int slot, float *out /* [head_dim] */);
/* The same for slots [first, first + n). */
void butler_view_keys(const struct butler_head_view *view, int first, int n, float *out /* [n][head_dim] */);
void butler_view_values(const struct butler_head_view *view, int first, int n, float *out /* [n][head_dim] */);
/* out[i * stride + j] = q_i . key(first + j), i < n_q, j < n: at the engine's own speed. Counts as keys read. */
void butler_view_dot_keys(const struct butler_head_view *view, const float *q, int n_q, int first, int n, float *out,
                          size_t stride);
/* Records of a view lie one after the other: record i begins i times a record's bytes behind record 0. */
void *butler_view_record(const struct butler_head_view *view, int record);
/* The state of the KV head; NULL where its metric has none. */
void *butler_view_state(const struct butler_head_view *view);
/* butler_view_dot_keys for an earlier layer's keys and that layer's own queries of the newest token, of the first n_q query
 * heads of this KV head. Only for a metric with earlier_layers. */
void butler_view_dot_layer(const struct butler_head_view *view, int layer, int n_q, int first, int n, float *out, size_t stride);

enum butler_metric_scale {
    BUTLER_SCORE_LOGIT,  /* q.k-like, before scaling by 1/sqrt(head_dim): the engine takes a softmax per query head */
    BUTLER_SCORE_WEIGHT, /* already comparable between query heads: used as it is */
};

/* Changes with every change of the layout or the meaning of anything in this section: struct butler_metric, butler_param and
 * butler_metric_shape, the scales, the butler_view_ functions. A plug-in is loaded only if it was built with the same number. */
#define BUTLER_METRIC_ABI 2

/* How a parameter is written: as one of words, for 0, 1, 2, or (words[0] NULL) as min and a multiple of step (0: any number). */
struct butler_param_form {
    double step;
    const char *words[3];
};
/* Two stages of a selection of tokens (key scan=): first pages by bounds of their keys, then the tokens of the chosen pages. */
struct butler_metric_scan {
    int page_slots; /* tokens of a page */
    /* out[i * stride + (p - first)]: bounds of pages p in [first, first + n) for queries q[n_q][head_dim] */
    void (*bounds)(const struct butler_head_view *view, const float *q, int n_q, int first, int n, float *out, size_t stride);
    /* out[i * stride + page_slots * p + t]: scores of the tokens of pages[n]; a page that is not full has as many */
    void (*score_pages)(const struct butler_head_view *view, const float *q, int n_q, const uint32_t *pages, int n, float *out,
                        size_t stride);
    uint64_t (*bytes)(int head_dim, int n_bounds, int n_pages); /* that they read */
};

/* +vatp: how a score is weighed by the norm of the token's value. */
enum butler_value_weighing {
    BUTLER_WEIGH_ATTENTION, /* scores are shares of attention, or become so by a softmax: times the norm */
    BUTLER_WEIGH_INVERSE,   /* scores are minus a size: the norm divided by it */
    BUTLER_WEIGH_NOTHING,   /* scores are neither: +vatp and mass= are refused */
};

/* Weights that consecutive queries of a prompt gave to slots in the order of the text, before their factors: query t and query head
 * h gave weights[(t * group + h) * stride + i] * factors[i / keys * factor_stride + t * group + h] to slot i < n_seen + t. */
struct butler_block_weights {
    const float *weights, *factors;
    size_t stride, factor_stride;
    int n_queries, n_seen, keys; /* keys: at most 256 */
};

/* Scores that are wanted: out[i * stride + (u - first)] of units u in [first, first + n) (slots or pages) for query i. */
struct butler_score_request {
    const float *q; /* [n_q][head_dim] */
    int n_q, first, n;
    float *out;
    size_t stride;
};

/* Two parameters mean the same for every metric that has them: `page` (tokens that are selected together, by the highest score
 * among them) and `normalise` (with the words softmax and zscore: how heads that share a selection are made comparable). */
struct butler_metric {
    size_t abi; /* BUTLER_METRIC_ABI. Stays the first field in every version, so that a plug-in built with another is refused */
    const char *name;
    const char *summary;
    enum butler_metric_scale scale;
    bool page_scores;                  /* one score per record (a page) instead of one per token */
    bool query_free;                   /* scores do not depend on the query head: score() is called with n_q = 1 */
    bool reads_keys;                   /* append or score looks at keys: excludes policies that store them unrotated */
    const struct butler_param *params; /* ends with name NULL; NULL: none */

    /* Slots a record covers and its bytes. NULL: keeps nothing. values: one per entry of params. */
    void (*record)(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes);
    /* How many of the latest queries' attention weights it wants to see: 0 none, INT_MAX all. NULL: none. */
    int (*attention_window)(const double *values);
    /* Slots [first, first + n) are new, or their contents have changed: bring their records up to date. NULL: nothing
     * to do. A record may already cover older slots, which are still readable through the view. */
    void (*append)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n);
    /* weights[group][stride]: for each query head of the group the attention that the query at `position` paid to slots
     * 0..n-1 (softmax; it sums to 1). Called once per query, in order. */
    void (*observe)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n);
    void (*score)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request);
    /* Bytes one score() over n_slots slots reads of records (keys read through the view count themselves). NULL: all
     * records once. */
    uint64_t (*score_bytes)(const struct butler_metric_shape *shape, const double *values, int n_slots);
    /* The same for one observe(). NULL: all records once. */
    uint64_t (*observe_bytes)(const struct butler_metric_shape *shape, const double *values, int n_slots);
    /* The tokens of slots [from, from + n) now lie in slots [to, to + n): what records hold of them follows. Only called where
     * slots move otherwise than by whole records. NULL: append() is called for the slots that changed; a metric with leave()
     * and records of several slots, whose state they would be added to again, cannot evict then. */
    void (*move)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int from,
                 int to, int n);
    int predictor;       /* version of the predictor whose queries and keys it scores by; 0: none. Built-in metrics only */
    bool earlier_layers; /* score() uses butler_view_dot_layer: needs layers that hold the same tokens (retrieve) */
    bool centres;        /* it scores by query centres, which `butler calibrate` makes. Built-in metrics only */
    /* Of a metric whose scores are linear in the query: out[u - first] orders units as the mean of the n_q query heads' scores,
     * each as comparable as a standard score, in one pass for all of them: under share=kv, group=mean, normalise=zscore. NULL:
     * heads are scored one by one. */
    void (*score_mean)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                       const float *q, int n_q, int first, int n, float *out);
    bool by_position;                      /* the newer a token, the higher its score: an evicting policy need not ask for scores */
    const struct butler_param_form *forms; /* one per entry of params; NULL: all are numbers */
    /* Bytes of the state of a KV head, at most 16 MiB; NULL: none. It begins as zeros. Where a text is cut back or taken over from
     * another policy, it is zeroed and append() is called for all slots. */
    size_t (*head_bytes)(const struct butler_metric_shape *shape, const double *values);
    /* Called for every KV head before it is scored for the queries q[n_q][head_dim], by one thread; may write the state. */
    void (*begin_score)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const float *q, int n_q);
    /* The tokens of slots[n], ascending, are about to be evicted: the state forgets them. NULL: it does not. */
    void (*leave)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const uint32_t *slots, int n);
    enum butler_value_weighing weighing;
    bool fuses;                            /* fused=: a thread scores, selects and attends to a KV head in one pass */
    const struct butler_metric_scan *scan; /* NULL: all tokens are scored */
    bool guided;                           /* it observes prompts and the last query of exact checks, and no other decode step */
    /* What observe() does, for many queries. NULL: observe() is called. */
    void (*observe_block)(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                          const struct butler_block_weights *block);
};

/* Makes a metric known to this engine under metric->name, as a retrieving policy whose method, budget and the rest are
 * set in the policy string. The struct must outlive the engine. BUTLER_ERROR_UNSUPPORTED when its abi is not
 * BUTLER_METRIC_ABI, BUTLER_ERROR_ARGUMENT when its fields contradict each other; then nothing has changed. */
int butler_metric_register(struct butler_engine *engine, const struct butler_metric *metric, struct butler_error *err);

/* ------------------------------------------------------------------------------------------ step plug-ins
 *
 * A step plug-in is called around every decode step of a session: it may end the text, change the logits, and change how much the
 * policy reads (the dispatch loop of TinyServe, arXiv 2509.12211, has such plug-ins: token pruning, entropy stop, approximate
 * attention). It has no state but some bytes per session, which forks and copies take along. */

/* What it sees. Valid during the call. */
struct butler_step_view {
    const struct butler_model *model;
    const struct butler_session *session; /* for butler_session_stats, butler_last_selection, butler_policy_of, butler_n_past */
    const int32_t *ids;                   /* [n_ids] the text so far */
    int n_ids;
    int n_decoded;       /* of them, decoded since the last prompt */
    const float *logits; /* [n_vocab] of the token behind them, before any plug-in changed them; NULL before the step */
    int n_vocab;
    double entropy; /* of that token, in nats; NAN before the step */
};

/* What it asks for; zeroed before the call, except logits. */
struct butler_step_action {
    bool stop;          /* after the step: the text is done (butler_should_stop) */
    const char *policy; /* of the steps that follow, the coming one included; NULL: as it is. See butler_session_set_policy */
    float *logits;      /* [n_vocab] to be changed in place: after the step; NULL before it. -INFINITY: never drawn */
};

/* Changes with every change of the layout or the meaning of the structs of this section. */
#define BUTLER_STEP_ABI 1

struct butler_step_plugin {
    size_t abi;                        /* BUTLER_STEP_ABI, always the first field */
    const char *name;                  /* 1 to 31 of a-z, 0-9 and _, a letter first */
    const char *summary;               /* one line */
    const struct butler_param *params; /* ends with name NULL; NULL: none */
    size_t state_bytes;                /* per session, zeroed when it is added; at most 1 MiB */
    /* values: one per entry of params. state: [state_bytes]. Either may be NULL. Called in the thread that runs the engine. */
    void (*before)(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action);
    /* Also where a prompt ends: there the logits of the first token can be changed. */
    void (*after)(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action);
};

/* Makes a step plug-in known to this engine. The struct must outlive the engine. BUTLER_ERROR_UNSUPPORTED when its abi is not
 * BUTLER_STEP_ABI, BUTLER_ERROR_ARGUMENT when a field makes no sense or the name is taken. */
int butler_step_register(struct butler_engine *engine, const struct butler_step_plugin *plugin, struct butler_error *err);

/* The step plug-ins of an engine: out[max_out], which may be NULL where max_out is 0. Returns their number. */
int butler_step_list(const struct butler_engine *engine, const struct butler_step_plugin **out, int max_out);

/* Adds a step plug-in to the session: "name" or "name:key=value,...". At most 8; they are called in this order, and each sees the
 * logits that the model gave. They are not part of session files: a restored session has none. Truncating a session leaves what
 * they remember as it is. A session that has some cannot draft (butler_draft_new). A plug-in that asks for a policy that cannot
 * follow ends the session's run with its error. */
int butler_session_add_step(struct butler_session *session, const char *text, struct butler_error *err);

/* From now on the session reads under this policy. Only budget (but not from or to mass=), sinks and recent may differ from those
 * that it has, and the policy must retrieve; else BUTLER_ERROR_ARGUMENT and nothing changes. */
int butler_session_set_policy(struct butler_session *session, const char *policy, struct butler_error *err);
const char *butler_policy_of(const struct butler_session *session); /* every key written out; valid until the policy changes */

/* Loads a shared object and registers what its `const struct butler_metric *butler_plugin_metric(void)` or its
 * `const struct butler_step_plugin *butler_plugin_step(void)` returns; it may have both. Errors as of
 * butler_metric_register and butler_step_register, BUTLER_ERROR_IO when the file cannot be loaded, BUTLER_ERROR_FORMAT when it is
 * no plug-in; the message names the file. */
int butler_plugin_load(struct butler_engine *engine, const char *path, struct butler_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
