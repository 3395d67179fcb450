/* From a policy's numbers and what its metric says of itself to a plan (plan.h). Everything that depends on the metric is decided
 * here. */
#include <limits.h>
#include <string.h>

#include "engine/policy.h"

/* The value of a parameter that is the engine's business too (butler_plugin.h), or what stands for it. */
static int value_of(const struct butler_policy *policy, const char *name, int otherwise)
{
    const struct butler_param *params = policy->metric->params;
    for (int i = 0; params && params[i].name; i++)
        if (!strcmp(params[i].name, name))
            return (int)policy->values[i];
    return otherwise;
}

static enum butler_weigh weigh_of(const struct butler_policy *policy, bool logits)
{
    if (policy->value_norm == BUTLER_NORM_NONE)
        return BUTLER_WEIGH_NOT;
    return logits                                             ? BUTLER_WEIGH_ADD_LOG
           : policy->metric->weighing == BUTLER_WEIGH_INVERSE ? BUTLER_WEIGH_DIVIDE
                                                              : BUTLER_WEIGH_TIMES;
}

static void compile_scores(struct butler_plan *plan, const struct butler_policy *policy, const struct butler_metric_shape *shape)
{
    const struct butler_metric *metric = policy->metric;
    struct butler_reduction *reduction = &plan->reduction;
    const bool by_head = policy->share == BUTLER_SHARE_KV, weighs = policy->value_norm != BUTLER_NORM_NONE;
    const bool zscores = value_of(policy, "normalise", BUTLER_NORMALISE_SOFTMAX) == BUTLER_NORMALISE_ZSCORE;
    reduction->probabilities = policy->budget_kind == BUTLER_BUDGET_MASS;
    reduction->mean = policy->reduce == BUTLER_REDUCE_MEAN;
    reduction->logits = metric->scale == BUTLER_SCORE_LOGIT;
    reduction->zscores = zscores && !reduction->probabilities && !weighs;
    reduction->weigh = weigh_of(policy, reduction->logits);
    reduction->pool = metric->page_scores ? 1 : policy->unit;
    const bool combined = metric->score_mean && policy->scan == 0 && by_head && reduction->mean && reduction->zscores &&
                          shape->group > 1 && (!metric->predictor || shape->predicted_keys == 1);
    reduction->rows = metric->query_free ? BUTLER_ROWS_ANY : combined ? BUTLER_ROWS_COMBINED : BUTLER_ROWS_QUERY;
    plan->unit = policy->unit;
    plan->score_slots = metric->page_scores ? policy->unit : 1;
    plan->share = policy->share;
    plan->newest = policy->method == BUTLER_EVICT && metric->by_position && !weighs;
    plan->unrotated = policy->rope_in_cache;
    plan->scan = policy->scan;
    plan->ahead = policy->method == BUTLER_RETRIEVE && metric->predictor && by_head && !reduction->probabilities && !weighs &&
                  (shape->group == 1 || combined);
    plan->fused = policy->fused;
}

static void compile_records(struct butler_plan *plan, const struct butler_policy *policy)
{
    const struct butler_metric *metric = policy->metric;
    const bool prompts_only = metric->guided || (policy->method == BUTLER_EVICT && policy->evict_at_prefill_only);
    plan->value_norm = policy->value_norm;
    plan->own_text = metric->predictor == 1;
    plan->from_rows = !metric->observe && !plan->own_text;
    plan->guided = metric->guided;
    plan->observe[0] = metric->attention_window ? metric->attention_window(policy->values) : 0;
    plan->observe[1] = prompts_only ? 0 : plan->observe[0];
    plan->prompt_records = plan->observe[0] > 0 && plan->observe[1] == 0 && !metric->append && !plan->guided;
}

int butler_policy_compile(struct butler_policy *policy, const struct butler_metric_shape *shape, struct butler_error *err)
{
    const struct butler_metric *metric = policy->metric;
    struct butler_plan *plan = &policy->plan;
    memset(plan, 0, sizeof *plan);
    policy->unit = metric ? value_of(policy, "page", 1) : 1;
    if (metric && metric->page_scores) {
        size_t bytes = 0;
        metric->record(shape, policy->values, &policy->unit, &bytes);
        if (policy->unit < 1)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "policy \"%.72s\": %s says its pages have %d tokens", policy->name,
                               metric->name, policy->unit);
    }
    if (policy->unit < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "policy \"%.72s\": pages of %d tokens", policy->name, policy->unit);
    plan->metric = metric;
    plan->method = policy->method;
    plan->unit = plan->score_slots = plan->reduction.pool = 1;
    memcpy(plan->values, policy->values, sizeof plan->values);
    if (metric) {
        compile_scores(plan, policy, shape);
        compile_records(plan, policy);
    }
    return 0;
}

void butler_plan_guide(struct butler_plan *plan)
{
    plan->guided = plan->guided || plan->observe[1] > 0;
    if (plan->guided)
        plan->observe[1] = 0;
}

void butler_plan_idle(struct butler_plan *plan)
{
    plan->idle = true;
    plan->observe[0] = plan->observe[1] = 0;
}
