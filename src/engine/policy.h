/* A policy: a metric, a method and numbers, parsed from `name[+modifier...][:key=value,...]`, and the plan that they come to
 * (plan.h). Plain data: the session keeps a copy. */
#ifndef BUTLER_POLICY_H
#define BUTLER_POLICY_H

#include "engine/plan.h"
#include "model/model.h"

struct butler_engine;

/* prefill=evict cuts the cache where the text has a multiple of this number of tokens, and at the end of the prompt. */
enum { BUTLER_PREFILL_CUT = 256 };

struct butler_policy {
    char name[64];                           /* "h2o+vatp" */
    char text[768];                          /* canonical: every parameter written out; parses to this very policy */
    const struct butler_metric *metric;      /* NULL: dense */
    double values[BUTLER_METRIC_MAX_PARAMS]; /* one per metric->params */
    enum butler_method method;
    int unit;                  /* slots per selection unit: 1, or the page size of a page metric */
    int share;                 /* who shares a selection: see butler_plan */
    enum butler_reduce reduce; /* over the heads that share */
    enum butler_budget budget_kind;
    double budget;                     /* tokens, share of the current length, or mass */
    bool budget_set;                   /* by butler_session_set_budget: text has another */
    bool on_top;                       /* sinks and recent come on top of the budget, not out of it */
    int sinks;                         /* first tokens, always kept */
    int recent;                        /* last tokens, always kept; they count the newest. Superseded by heavy >= 0 */
    double heavy;                      /* share of the budget for the highest scores, the rest is recent; < 0: off */
    int dense_layers;                  /* layers [0, dense_layers) read and keep everything */
    const struct butler_layer *layers; /* the model's: a layer with a window is dense, too; NULL: none has one */
    double pyramid;                    /* 0: every layer the same budget; else PyramidKV's beta */
    bool evict_at_prefill_only;        /* rolling=0 */
    bool prefill_evict;                /* prefill=evict: cut every BUTLER_PREFILL_CUT tokens; else once, after the prompt */
    bool rope_in_cache;                /* rope=cache: keys stored unrotated, rotated by their rank in the cache */
    enum butler_value_norm value_norm; /* vatp: scores are multiplied by this norm of the token's value */
    bool fused;                        /* score, select, gather and attend in one pass (tinyserve) */
    int scan;                          /* one_bit: scores pages of scan × budget tokens, chosen by their bounds; 0: all */
    int every;                         /* retrieve: steps from one selection of a layer to its next; 1: each selects */
    double prompt;                     /* retrieve: earlier tokens that a block of a prompt reads, or the share of them; 0: all */
    double stop_entropy;               /* nats; < 0: never stops */
    int stop_after;                    /* tokens decoded before the stopping rule looks */
    double prune_ratio;                /* softprune: budget = (1 - ratio) of the length; < 0: off */
    int prune_min;                     /* ... but not fewer tokens than this */
    struct butler_plan plan;
};

/* The engine's model may be NULL (nothing is checked that depends on it). policy may be NULL; on failure it is not changed. */
int butler_policy_parse(const struct butler_engine *engine, const char *text, struct butler_policy *policy,
                        struct butler_error *err);

/* Makes the plan: after the parse, and again where numbers of the policy are set otherwise. shape: of the model, with the sizes of
 * the predictor that its metric asks for. Fails where the metric's pages have no size. */
int butler_policy_compile(struct butler_policy *policy, const struct butler_metric_shape *shape, struct butler_error *err);

/* Names a metric may not take: names of keys, policies and modifiers. */
bool butler_policy_is_key(const char *name);
bool butler_policy_is_name(const struct butler_registry *registry, const char *name);

/* Whether the policy decides what this layer keeps and reads. Layers with a window are bounded already: they stay dense. */
static inline bool butler_policy_applies(const struct butler_policy *policy, int layer)
{
    return layer >= policy->dense_layers && !(policy->layers && policy->layers[layer].window > 0);
}

/* The policy's numbers for one layer of a text of n tokens (the newest included). The only place that rounds:
 *   budget   COUNT: as given. FRACTION f: max(1, floor(f n + 1/2)). softprune: max(min, floor((1 - ratio) n + 1/2)).
 *   pyramid  over the layers that are not dense, l of m, cap = budget, w = recent: nothing changes while n <= cap, n < 2c or
 *            m = 1, with c = cap - w; else low = floor(c / beta), high = 2c - low; if high > n - w: high = n - w, low = 2c - high;
 *            budget = high - l floor((high - low) / (m - 1)) + w.
 *   heavy    recent = budget - floor(heavy budget + 1/2).
 *   on_top   budget += sinks + recent.
 * At last budget >= sinks + max(1, recent) (the newest token is always held), >= one page; recent >= 1 for retrieve; where pages
 * are retrieved, >= the pages of sinks and recent tokens and one more, so that scores choose at least one. Mass: budget is 0 and
 * says nothing. Layers to which the policy does not apply: budget n. */
struct butler_limits {
    int budget, sinks, recent; /* tokens */
};
struct butler_limits butler_policy_limits(const struct butler_policy *policy, int layer, int n_layers, int n);

/* scan=: how many pages of the metric's scan are scored in a head with n slots of a layer with these limits: those with
 * sinks or recent tokens, and as many as scan times the rest of the budget fills. 0: every token is scored. */
int butler_policy_scan_pages(const struct butler_policy *policy, const struct butler_limits *limits, int n);

/* Whether the budget of a layer covers a text of n tokens: everything is read then, and nothing has to be scored. Never true of a
 * mass. */
bool butler_policy_covers(const struct butler_policy *policy, int layer, int n_layers, int n);

/* Whether an evicting policy's budget covers this layer for as long as the text has up to n tokens. */
bool butler_policy_keeps_all(const struct butler_policy *policy, int layer, int n_layers, int n);

/* Whether no step of a session of n_ctx tokens can evict, and nothing is lost by not observing: see butler_plan_idle. */
bool butler_policy_idles(const struct butler_policy *policy, int n_layers, int n_ctx);

/* prompt=: how many earlier tokens a block of a prompt reads that begins behind n; n: all of them. */
int butler_policy_prompt_tokens(const struct butler_policy *policy, int n);

/* Whether prompts have the same keys and values under both: only then can a text be shared. */
bool butler_policy_same_prompts(const struct butler_policy *a, const struct butler_policy *b);

/* Whether what a step scores by is not made while the text has n tokens: norms of values and the metric's records, where both come
 * from the stored rows alone. When the budget no longer covers the text they are made for all tokens at once. */
bool butler_policy_defers(const struct butler_policy *policy, int layer, int n_layers, int n);

#endif
