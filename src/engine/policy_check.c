/* What the keys of a policy say to one another, to its metric and to the model. */
#include <limits.h>
#include <math.h>

#include "engine/policy_parts.h"
#include "engine/predict.h"

static int check_vatp(const struct butler_policy_draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    if (!draft->vatp)
        return 0;
    if (!policy->metric)
        return butler_policy_fail(draft, "+vatp weighs tokens before some are chosen; this policy reads everything");
    if (policy->metric->page_scores)
        return butler_policy_fail(draft, "+vatp multiplies a token's score by the norm of its value; this metric scores pages");
    if (policy->metric->weighing == BUTLER_WEIGH_NOTHING)
        return butler_policy_fail(draft, "+vatp multiplies attention by the norm of the value; %s is no attention",
                                  policy->metric->name);
    return 0;
}

/* One spelling for what is the same: subgroups of all query heads of a KV head, or lists that do not depend on the query. */
static void settle_share(struct butler_policy_draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    const struct butler_model *model = draft->model;
    const int group = model && model->hp.n_kv_heads > 0 ? model->hp.n_heads / model->hp.n_kv_heads : INT_MAX;
    if (policy->share >= group ||
        (policy->share >= BUTLER_SHARE_QUERY && policy->method == BUTLER_RETRIEVE && policy->metric->query_free))
        policy->share = BUTLER_SHARE_KV;
}

/* Settles what keys say to one another, refuses what has no meaning and drops defaults that have none. */
static int settle_keys(struct butler_policy_draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    if (!policy->metric)
        policy->method = BUTLER_DENSE;
    settle_share(draft);
    if (butler_policy_given(draft, K_BUDGET) && butler_policy_given(draft, K_MASS))
        return butler_policy_fail(draft, "budget= and mass= exclude one another");
    if (butler_policy_given(draft, K_RECENT) && butler_policy_given(draft, K_HEAVY))
        return butler_policy_fail(draft,
                                  "recent= and heavy= exclude one another: heavy= leaves the rest of the budget to recent tokens");
    if (butler_policy_given(draft, K_RECENT) || (policy->budget_kind == BUTLER_BUDGET_MASS && !butler_policy_given(draft, K_HEAVY)))
        policy->heavy = butler_keys[K_HEAVY].neutral;
    int window = draft->row && draft->row->keeps_window ? butler_policy_find_param(policy->metric, "window") : -1;
    if (window >= 0 && !butler_policy_given(draft, K_RECENT))
        policy->recent = policy->evict_at_prefill_only ? (int)policy->values[window] : 0;
    int rc = check_vatp(draft);
    for (int k = 0; !rc && k < N_KEYS; k++) {
        const char *why = butler_keys[k].refuse(draft);
        if (why && butler_policy_given(draft, k))
            rc = butler_policy_fail(draft, "%s= has no meaning here: %s", butler_keys[k].name, why);
        else if (why && butler_keys[k].type != KEY_BUDGET && butler_keys[k].type != KEY_MASS)
            butler_key_set(policy, k, butler_keys[k].neutral);
    }
    if (policy->heavy >= 0)
        policy->recent = 0;
    if (!butler_policy_given(draft, K_SINKS) && policy->metric && policy->metric->page_scores &&
        policy->budget_kind == BUTLER_BUDGET_COUNT)
        policy->sinks = BUTLER_MIN(policy->sinks, (int)policy->budget - 1); /* whole pages are read anyway */
    if (butler_policy_prunes(draft)) {
        policy->budget_kind = BUTLER_BUDGET_FRACTION;
        policy->budget = 1 - policy->prune_ratio;
    }
    return rc;
}

static int check_numbers(struct butler_policy_draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    if (!policy->metric || policy->budget_kind != BUTLER_BUDGET_COUNT || policy->on_top)
        return 0;
    /* The newest token is always kept. */
    int recent = BUTLER_MAX(1, policy->recent), budget = (int)policy->budget;
    if (policy->heavy >= 0)
        recent = BUTLER_MAX(1, budget - (int)floor(policy->heavy * budget + 0.5));
    if (policy->sinks > budget)
        return butler_policy_fail(draft, "sinks=%d are more than budget=%d", policy->sinks, budget);
    if (policy->sinks > budget - recent)
        return butler_policy_fail(draft, "budget=%d cannot hold sinks=%d and %d recent tokens", budget, policy->sinks, recent);
    return 0;
}

/* Metrics that look at other layers: where they can, and whether the model has the predictor they need. */
static int check_lookahead(struct butler_policy_draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    const struct butler_metric *metric = policy->metric;
    if (metric && metric->centres && draft->model && draft->model->layers && !draft->engine->centres)
        return butler_policy_fail(draft,
                                  "there are no query centres of this model; `butler calibrate --data TEXT` makes them, which lie "
                                  "beside the model as NAME.centres.gguf or are named by --predictor (in a program: "
                                  "butler_predictor_attach)");
    if (!metric || (!metric->predictor && !metric->earlier_layers))
        return 0;
    if (metric->earlier_layers && policy->method == BUTLER_EVICT)
        return butler_policy_fail(draft, "%s reads by what other layers hold, so no layer may forget; it needs method=retrieve",
                                  metric->name);
    if (metric->earlier_layers && draft->model && draft->model->hp.n_windowed > 0)
        return butler_policy_fail(draft, "%s reads by what other layers hold; %d layers of this model have a window of %d tokens",
                                  metric->name, draft->model->hp.n_windowed, draft->model->hp.window);
    if (policy->dense_layers < 1)
        return butler_policy_fail(
            draft, "dense=0: nothing comes before the first layer that could say what it will read; dense= is at least 1");
    if (metric->predictor && draft->model && draft->model->layers && !draft->engine->predictors[metric->predictor - 1])
        return butler_policy_fail(
            draft,
            "there is no predictor of version %d for this model; `butler train --predictor v%d` makes one, which lies beside "
            "the model as NAME.%s.gguf or is named by --predictor (in a program: butler_predictor_attach)",
            metric->predictor, metric->predictor, metric->predictor == 1 ? "tokenbutler" : "tokenbutler2");
    return 0;
}

static int check_model(struct butler_policy_draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    struct butler_metric_shape shape = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .group = 1};
    bool known = draft->model && draft->model->hp.n_kv_heads > 0;
    if (known) {
        const struct butler_hparams *hp = &draft->model->hp;
        shape = (struct butler_metric_shape){
            hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, 0, 0, 0};
        if (butler_policy_given(draft, K_DENSE) && policy->dense_layers > hp->n_layers)
            return butler_policy_fail(draft, "dense=%d: the model has %d layers", policy->dense_layers, hp->n_layers);
        policy->dense_layers = BUTLER_MIN(policy->dense_layers, hp->n_layers);
        if (policy->rope_in_cache && hp->rope == BUTLER_ROPE_NONE)
            return butler_policy_fail(draft, "rope=cache: the model does not rotate its keys");
        for (int l = 0; policy->rope_in_cache && draft->model->layers && l < hp->n_layers; l++)
            if (draft->model->layers[l].rope != BUTLER_LAYER_ROTATES || draft->model->layers[l].window > 0)
                return butler_policy_fail(draft, "rope=cache: layers of this model rotate their keys in different ways");
        policy->layers = hp->n_windowed > 0 ? draft->model->layers : NULL;
        if (policy->metric && policy->method == BUTLER_EVICT && policy->share >= BUTLER_SHARE_QUERY)
            return butler_policy_fail(draft,
                                      "lists of single query heads or subgroups (share=query, share=2, ...) cannot evict here: %d "
                                      "query heads of this model share each KV head, which forgets a token "
                                      "for all of them (share=kv or share=layer)",
                                      shape.group);
    }
    const int version = policy->metric ? policy->metric->predictor : 0;
    if (version > 0 && draft->engine->predictors[version - 1])
        butler_predictor_shape(draft->engine->predictors[version - 1], &shape);
    return butler_policy_compile(policy, &shape, draft->err);
}

int butler_policy_resolve(struct butler_policy_draft *draft)
{
    int (*const stages[])(struct butler_policy_draft *) = {settle_keys, check_numbers, check_lookahead, check_model};
    int rc = 0;
    for (int i = 0; !rc && i < BUTLER_COUNT(stages); i++)
        rc = stages[i](draft);
    return rc;
}
