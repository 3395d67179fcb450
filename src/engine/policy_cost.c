/* What a policy costs on a model, in bytes, without running it: for `butler policies NAME`. */
#include "engine/abi.h"
#include "engine/predict.h"

/* What a policy's metric keeps for one KV head with n slots. */
struct head_records {
    int n_slots; /* that a record covers; 0: keeps nothing */
    size_t n_bytes;
    size_t state_bytes; /* beside the records */
};

static uint64_t records_of(const struct head_records *records, int n)
{
    return records->n_slots > 0 ? (uint64_t)BUTLER_CEIL_DIV(n, records->n_slots) * records->n_bytes : 0;
}

/* What a decode step reads for the metric in one KV head with n slots. limits: those of the layer. */
static uint64_t metric_step(const struct butler_policy *policy, const struct butler_metric_shape *shape,
                            const struct head_records *records, const struct butler_limits *limits, int n, bool scores,
                            size_t row_bytes)
{
    const struct butler_metric *metric = policy->metric;
    const int n_pages = butler_policy_scan_pages(policy, limits, n);
    uint64_t bytes = 0;
    if (scores && n_pages > 0)
        bytes += metric->scan->bytes(shape->head_dim, BUTLER_CEIL_DIV(n, metric->scan->page_slots), n_pages);
    else if (scores)
        bytes += metric->score_bytes ? metric->score_bytes(shape, policy->values, n) : records_of(records, n);
    if (scores)
        bytes += records->state_bytes;
    if (scores && metric->reads_keys && (records->n_slots == 0 || records->state_bytes > 0)) /* beside what it keeps of a head */
        bytes += (uint64_t)n * row_bytes;
    if (policy->value_norm != BUTLER_NORM_NONE) /* read with the scores; and the new value, for its norm */
        bytes += (scores ? (uint64_t)n * sizeof(float) : 0) + row_bytes;
    if (policy->plan.observe[1] > 0)
        bytes += metric->observe_bytes ? metric->observe_bytes(shape, policy->values, n) : records_of(records, n);
    return bytes;
}

/* Adds one layer, of a text of n tokens. */
static void add_layer(struct butler_policy_cost *cost, const struct butler_model *model, const struct butler_policy *policy,
                      const struct butler_metric_shape *shape, const struct head_records *records, int layer, size_t row_bytes,
                      int n)
{
    const int window = model->layers[layer].window, dense = window > 0 ? BUTLER_MIN(n, window) : n;
    const uint64_t heads = (uint64_t)shape->n_kv_heads, pair = 2 * row_bytes;
    const bool applies = policy->metric && butler_policy_applies(policy, layer), evicts = policy->method == BUTLER_EVICT;
    const struct butler_limits limits = butler_policy_limits(policy, layer, shape->n_layers, n);
    const int budget = limits.budget;
    const int held = applies && evicts ? BUTLER_MIN(budget, n) : dense;
    const int cut = applies && policy->prefill_evict ? BUTLER_MIN(budget + BUTLER_PREFILL_CUT, n) : n;
    const uint64_t lists = heads * (uint64_t)butler_lists_per_head(policy->share, shape->group);
    cost->full_kv_bytes += heads * (uint64_t)dense * pair;
    cost->kv_memory += heads * (uint64_t)held * pair;
    cost->prompt_memory += heads * ((uint64_t)BUTLER_MIN(cut, dense) * pair + records_of(records, cut) +
                                    (policy->value_norm != BUTLER_NORM_NONE ? (uint64_t)cut * sizeof(float) : 0));
    cost->metric_memory += heads * records->state_bytes;
    cost->prompt_memory += heads * records->state_bytes;
    if (records->n_slots > 0 && !policy->plan.prompt_records)
        cost->metric_memory += heads * records_of(records, applies ? held : n); /* one for every token that the layer has seen */
    if (policy->value_norm != BUTLER_NORM_NONE)
        cost->metric_memory += heads * (uint64_t)(applies ? held : n) * sizeof(float);
    if (!applies || budget >= n) {
        cost->kv_bytes += heads * (uint64_t)dense * pair;
        if (applies && !butler_policy_defers(policy, layer, shape->n_layers, n))
            cost->upkeep_bytes += heads * metric_step(policy, shape, records, &limits, n, false, row_bytes);
        return;
    }
    const bool scores = !evicts || !(policy->evict_at_prefill_only || policy->plan.newest);
    const int read = BUTLER_MIN(evicts ? budget : BUTLER_MAX(budget / policy->unit, 1) * policy->unit, n);
    cost->kv_bytes += (evicts ? heads : lists) * (uint64_t)read * pair;
    cost->metric_bytes += heads * metric_step(policy, shape, records, &limits, evicts ? budget : n, scores, row_bytes) /
                          (uint64_t)(evicts ? 1 : policy->every);
}

int butler_policy_estimate(const struct butler_engine *engine, const char *text, enum butler_kv_type type, int n_tokens,
                           struct butler_policy_cost *cost, struct butler_error *err)
{
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(cost, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_policy policy;
    const struct butler_model *model = engine->model;
    const struct butler_hparams *hp = &model->hp;
    const size_t row_bytes = butler_kv_row_bytes(type, hp->head_dim);
    struct butler_metric_shape shape = {
        hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, 0, 0, 0};
    struct head_records records = {0, 0, 0};
    int rc = butler_policy_parse(engine, text, &policy, err);
    if (rc < 0)
        return rc;
    if (n_tokens < 1 || n_tokens > 1 << 24)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a text of %d tokens: it must have between 1 and %d", n_tokens, 1 << 24);
    if (row_bytes == 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "heads of %d numbers cannot be stored in this type", hp->head_dim);
    const struct butler_metric *metric = policy.metric;
    const struct butler_predictor *predictor = metric && metric->predictor ? engine->predictors[metric->predictor - 1] : NULL;
    if (predictor)
        butler_predictor_shape(predictor, &shape);
    if (metric && (rc = butler_metric_record(metric, &shape, policy.values, &records.n_slots, &records.n_bytes, err)) < 0)
        return rc;
    if (metric && (rc = butler_metric_state(metric, &shape, policy.values, &records.state_bytes, err)) < 0)
        return rc;
    struct butler_policy_cost own = {.budget_known = policy.budget_kind != BUTLER_BUDGET_MASS,
                                     .evicts_prompts_only = policy.method == BUTLER_EVICT && policy.evict_at_prefill_only};
    if (records.n_slots > 0)
        own.record_bytes = (double)records.n_bytes / records.n_slots * hp->n_kv_heads * hp->n_layers;
    for (int l = 0; l < hp->n_layers; l++)
        add_layer(&own, model, &policy, &shape, &records, l, row_bytes, n_tokens);
    butler_give_struct(cost, &own, sizeof own, BUTLER_END_OF(butler_policy_cost, upkeep_bytes));
    return 0;
}
