/* Recall of a policy's selection (TokenButler, figure 6 and section 4): the tokens it reads, compared with the exact attention of
 * a dense session, per layer and query head, at equal bytes. After each step of the dense session the policies' sessions make the
 * same step, and their attention outputs are replaced by those of the dense session: all have the same queries and keys, and only
 * the selection differs.
 *
 * Equal bytes. A budget of B tokens at length n pays for B keys and values of every KV head. The bytes that a policy's metric
 * reads for one step (score and observe; the predictor's own attention) are subtracted first; the rest is the number of tokens it
 * may read, divided by the query heads of a KV head where each selects for itself (share=query). The oracle's
 * metric costs nothing: it is the upper bound. recall@k compares with the k = B largest weights of the query head, mass is the
 * attention on the tokens read, and on a learned sink (gpt-oss), which costs nothing to read. The newest token, which every step
 * reads, always counts as one of the k largest. Layers that are dense (--set dense=N, and those with a window) are in no mean and
 * in no byte count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"
#include "cpu/select.h"
#include "engine/predict.h"
#include "engine/session.h"

enum { SUMS = 3 /* of each query head: recall, mass, top-half accuracy */, EXTRA = 1 /* steps */ };

/* The dense session and its attention in the last step. */
struct reference {
    struct butler_session *session;
    struct butler_capture capture;
    int n_layers, n_heads, head_dim, n_ctx;
    float *outputs; /* [n_layers][n_heads][head_dim] */
    float *scores;  /* [n_layers][n_heads][n_ctx] q.k, which ranks also tokens whose attention rounds to 0 */
    float *weights; /* the same after the softmax */
};

/* A policy's sessions: at the given budget, and at half of all tokens for top_half_accuracy. */
struct follower {
    struct butler_session *session, *half;
    struct butler_capture capture;
};

/* Scratch of one item. */
struct scratch {
    int32_t *ids;
    uint32_t *chosen;     /* [n_ctx] */
    float *values;        /* [n_ctx] of a selection */
    unsigned char *marks; /* bits: 1: among the k largest, 2: in the larger half */
};

static void free_reference(struct reference *reference)
{
    butler_session_free(reference->session);
    free(reference->outputs);
    free(reference->scores);
    free(reference->weights);
}

/* After a layer of the dense session: copies its output and computes its attention weights. */
static void keep_output(void *user, int layer, int first, int n, const float *q, float *o)
{
    struct reference *reference = user;
    const size_t heads = (size_t)reference->n_heads, dim = (size_t)reference->head_dim, stride = (size_t)reference->n_ctx,
                 at = (size_t)layer * heads * stride;
    if (n != 1)
        return;
    memcpy(reference->outputs + (size_t)layer * heads * dim, o, heads * dim * sizeof *o);
    const struct butler_exact exact = {
        .n = first + 1, .stride = stride, .scores = reference->scores + at, .weights = reference->weights + at};
    butler_session_exact(reference->session, layer, q, &exact);
}

static void put_output(void *user, int layer, int first, int n, const float *q, float *o)
{
    (void)q;
    const struct reference *reference = user;
    const size_t size = (size_t)reference->n_heads * (size_t)reference->head_dim;
    (void)first;
    if (n == 1)
        memcpy(o, reference->outputs + (size_t)layer * size, size * sizeof *o);
}

/* --------------------------------------------------------------------------------------------- equal bytes */

/* What version 1 of the predictor reads of its own keys and values in a step, as a share of every KV head that it selects for. */
static double predictor_bytes(const struct butler_session *session, int n)
{
    const struct butler_predict *predict = session->predict;
    int n_layers = 0;
    if (!predict || session->policy.metric->predictor != 1)
        return 0;
    for (int l = 0; l < session->kv.n_layers; l++)
        n_layers += butler_policy_applies(&session->policy, l);
    const int n_read = BUTLER_MIN(n, butler_predictor_window(&predict->predictor->sizes));
    return 2.0 * (double)predict->kv.row_bytes * n_read * predict->kv.n_kv_heads /
           (BUTLER_MAX(n_layers, 1) * session->kv.n_kv_heads);
}

/* Pages that scan= scores in one KV head of n slots under a budget of so many tokens. */
static int scan_pages(const struct butler_session *session, int budget, int n)
{
    struct butler_policy policy = session->policy;
    policy.budget_kind = BUTLER_BUDGET_COUNT;
    policy.budget = budget;
    const struct butler_limits limits = butler_policy_limits(&policy, session->shape.n_layers - 1, session->shape.n_layers, n);
    return butler_policy_scan_pages(&policy, &limits, n);
}

/* Bytes a metric reads for one step in one KV head of n slots, under a budget of so many tokens. */
static double metric_bytes(const struct butler_session *session, int budget, int n)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_metric *metric = policy->metric;
    const struct butler_kv *kv = &session->kv;
    const double records = kv->record_slots > 0 ? (double)BUTLER_CEIL_DIV(n, kv->record_slots) * (double)kv->record_bytes : 0;
    const int n_pages = scan_pages(session, budget, n);
    if (!metric)
        return 0;
    if (n_pages > 0)
        return (double)metric->scan->bytes(kv->head_dim, BUTLER_CEIL_DIV(n, metric->scan->page_slots), n_pages);
    double bytes = metric->score_bytes ? (double)metric->score_bytes(&session->shape, policy->values, n) : records;
    if (metric->attention_window && metric->attention_window(policy->values) > 0)
        bytes += metric->observe_bytes ? (double)metric->observe_bytes(&session->shape, policy->values, n) : records;
    return bytes + predictor_bytes(session, n);
}

/* The budget B in tokens at length n. */
static int budget_tokens(const struct butler_policy *asked, int n)
{
    const double budget = asked->budget_kind == BUTLER_BUDGET_FRACTION ? floor(asked->budget * n + 0.5) : asked->budget;
    return (int)BUTLER_MAX(1, BUTLER_MIN(budget, (double)n));
}

/* Sets the session's budget to the tokens that remain after its metric's bytes; charged false: to all B. */
static void charge(struct butler_session *session, const struct butler_policy *asked, int n, bool charged)
{
    struct butler_policy *policy = &session->policy;
    const double row = 2 * (double)session->kv.row_bytes;
    if (!policy->metric || policy->prune_ratio >= 0 || policy->budget_kind == BUTLER_BUDGET_MASS)
        return;
    const int tokens = budget_tokens(asked, n);
    /* Evicted tokens are not scored: the metric's bytes grow with the tokens kept. */
    double remaining = policy->method == BUTLER_EVICT ? tokens * row / (row + metric_bytes(session, tokens, n) / n)
                                                      : tokens - metric_bytes(session, n, n) / row;
    if (policy->scan > 0) /* what it scores follows the budget */
        for (remaining = tokens; remaining > 1 && remaining * row + metric_bytes(session, (int)remaining, n) > tokens * row;)
            remaining--;
    if (policy->method == BUTLER_RETRIEVE && policy->share == BUTLER_SHARE_QUERY)
        remaining /= session->shape.group; /* every query head reads tokens of its own */
    if (!charged)
        remaining = tokens;
    if (tokens == n)
        remaining = n; /* everything is read: nothing is scored */
    if (policy->on_top)
        remaining -= policy->sinks + policy->recent;
    policy->budget_kind = BUTLER_BUDGET_COUNT;
    policy->budget = BUTLER_MAX(1, floor(remaining));
}

/* ------------------------------------------------------------------------------------------------ measuring */

/* Marks the newest token, which every step reads, and the k - 1 highest scores of the others, ties to the lower index. */
static void mark(const struct butler_kernels *kernels, const float *scores, int n, int k, struct scratch *scratch,
                 unsigned char bit)
{
    const int n_chosen = butler_select_top(kernels, scores, n, k, 0, 1, scratch->values, scratch->chosen);
    for (int i = 0; i < n_chosen; i++)
        scratch->marks[scratch->chosen[i]] |= bit;
}

static void measure_head(const struct reference *reference, const struct follower *follower, const struct butler_policy *asked,
                         int layer, int head, struct scratch *scratch, double *sums)
{
    const int n = reference->session->n_past;
    if (!butler_policy_applies(asked, layer)) { /* dense for everybody: in no mean */
        for (int s = 0; s < SUMS; s++)
            sums[s] = NAN;
        return;
    }
    const size_t at = ((size_t)layer * (size_t)reference->n_heads + (size_t)head) * (size_t)reference->n_ctx;
    const float *weights = reference->weights + at;
    const int k = asked->metric && asked->prune_ratio < 0 && asked->budget_kind != BUTLER_BUDGET_MASS ? budget_tokens(asked, n)
                                                                                                      : BUTLER_CEIL_DIV(n, 2);
    const int half = BUTLER_CEIL_DIV(n, 2);
    int hits = 0, right = 0;
    double mass = 0;
    if (reference->session->model->layers[layer].sinks) { /* what the learned sink takes is always kept */
        mass = 1;
        for (int i = 0; i < n; i++)
            mass -= (double)weights[i];
    }
    memset(scratch->marks, 0, (size_t)n);
    mark(reference->session->kv.kernels, reference->scores + at, n, k, scratch, 1);
    mark(reference->session->kv.kernels, reference->scores + at, n, half, scratch, 2);
    const int n_read = butler_last_selection(follower->session, layer, head, scratch->ids, n);
    for (int i = 0; i < n_read; i++) {
        hits += scratch->marks[scratch->ids[i]] & 1;
        mass += (double)weights[scratch->ids[i]];
    }
    const int n_half = butler_last_selection(follower->half, layer, head, scratch->ids, n);
    for (int i = 0; i < n_half; i++)
        right += scratch->marks[scratch->ids[i]] >> 1;
    sums[0] += (double)hits / k;
    sums[1] += mass;
    /* n - (read but not in the half) - (in the half but not read), over n */
    sums[2] += (double)(n - (n_half - right) - (half - right)) / n;
}

static int follow(const struct eval_run *run, const struct eval_item *item, struct reference *reference, struct follower *followers,
                  const struct eval_policy *const *policies, int n_policies, struct scratch *scratch, double *const *values,
                  struct butler_error *err)
{
    int charged;
    if (eval_option_int(run, "charge", 0, 1, &charged, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    for (int at = item->n_prompt; at < item->n_ids; at++) {
        int code = eval_check_stop(run, err);
        if (code == 0)
            code = butler_step(reference->session, item->ids[at], err);
        for (int p = 0; p < n_policies && code == 0; p++) {
            struct follower *follower = &followers[p];
            if ((code = eval_check_stop(run, err)) < 0)
                break;
            charge(follower->session, &policies[p]->parsed, at + 1, charged);
            code = butler_step(follower->session, item->ids[at], err);
            if (code == 0)
                code = butler_step(follower->half, item->ids[at], err);
            for (int i = 0; i < reference->n_layers * reference->n_heads && code == 0; i++)
                measure_head(reference, follower, &policies[p]->parsed, i / reference->n_heads, i % reference->n_heads, scratch,
                             values[p] + SUMS * i);
            values[p][run->n_values - EXTRA]++;
        }
        if (code < 0)
            return code;
    }
    return 0;
}

/* The same for an evicting policy before its session is made: the budget to which it cuts the prompt. */
static int charge_prompt(const struct eval_run *run, const struct eval_item *item, struct butler_policy *policy,
                         struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = item->n_ids, .kv_type = run->params->kv_type, .seed = run->seed};
    const struct butler_policy asked = *policy;
    int charged;
    if (policy->method != BUTLER_EVICT)
        return 0;
    if (eval_option_int(run, "charge", 0, 1, &charged, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    struct butler_session *probe = butler_session_make(run->engine, policy, &params, err);
    if (!probe)
        return BUTLER_ERROR_MEMORY;
    charge(probe, &asked, item->n_prompt, charged);
    *policy = probe->policy;
    butler_session_free(probe);
    return 0;
}

/* A session of a policy that has read the prompt, with its capture set. */
static int start(const struct eval_run *run, const struct eval_item *item, struct butler_policy policy, bool half,
                 struct eval_donor *donor, const struct butler_capture *capture, struct butler_session **out,
                 struct butler_error *err)
{
    policy.rope_in_cache = false; /* keys must be those of the dense session */
    if (half && policy.metric) {
        policy.budget_kind = BUTLER_BUDGET_FRACTION;
        policy.budget = 0.5;
        policy.prune_ratio = -1;
        policy.prune_min = 0;
        policy.on_top = false;
    }
    int code = half ? 0 : charge_prompt(run, item, &policy, err); /* where the prompt is cut to the budget */
    if (code == 0)
        code = eval_session_begin(run, item, &policy, donor, out, err);
    if (code == 0) {
        butler_session_stats_reset(*out);
        (*out)->capture = capture;
    }
    return code;
}

static int start_all(const struct eval_run *run, const struct eval_item *item, struct reference *reference,
                     struct follower *followers, const struct eval_policy *const *policies, int n, struct butler_error *err)
{
    struct eval_donor donor = {0};
    struct butler_policy dense;
    const size_t rows = (size_t)reference->n_layers * (size_t)reference->n_heads;
    int code = butler_policy_parse(run->engine, "full", &dense, err);
    reference->capture = (struct butler_capture){.attended = keep_output, .user = reference};
    reference->outputs = butler_alloc(rows * (size_t)reference->head_dim * sizeof(float), err);
    reference->scores = butler_alloc(rows * (size_t)reference->n_ctx * sizeof(float), err);
    reference->weights = butler_alloc(rows * (size_t)reference->n_ctx * sizeof(float), err);
    if (!reference->outputs || !reference->scores || !reference->weights)
        code = BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = start(run, item, dense, false, &donor, &reference->capture, &reference->session, err);
    for (int observes = 0; observes < 2; observes++)
        for (int p = 0; p < n && code == 0; p++) {
            if (eval_policy_observes(&policies[p]->parsed) != (bool)observes)
                continue;
            struct follower *follower = &followers[p];
            follower->capture = (struct butler_capture){.attended = put_output, .user = reference};
            code = start(run, item, policies[p]->parsed, false, &donor, &follower->capture, &follower->session, err);
            if (code == 0)
                code = start(run, item, policies[p]->parsed, true, &donor, &follower->capture, &follower->half, err);
        }
    eval_donor_free(&donor);
    return code;
}

/* Takes what layers read to which the policy does not apply out of the bytes: it is the same under every policy. */
static void leave_out_dense(const struct eval_run *run, const struct eval_item *item, const struct butler_session *session,
                            struct eval_cost *cost)
{
    for (int l = 0; l < run->info->n_layers; l++) {
        const int window = run->model->layers[l].window;
        double tokens = 0;
        for (int n = item->n_prompt + 1; n <= item->n_ids; n++)
            tokens += window > 0 ? BUTLER_MIN(n, window) : n;
        if (!butler_policy_applies(&session->policy, l)) {
            cost->kv_bytes -= tokens * 2 * (double)session->kv.row_bytes * session->kv.n_kv_heads;
            cost->full_kv_bytes -= tokens * 2 * (double)session->kv.row_bytes * session->kv.n_kv_heads;
        }
    }
}

static int measure(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *const *policies, int n,
                   double *const *values, struct eval_cost *costs, struct butler_error *err)
{
    struct reference reference = {
        .n_layers = run->info->n_layers, .n_heads = run->info->n_heads, .head_dim = run->info->head_dim, .n_ctx = item->n_ids};
    const size_t n_ids = (size_t)item->n_ids;
    struct scratch scratch = {butler_alloc(n_ids * sizeof(int32_t), err), butler_alloc(n_ids * sizeof(uint32_t), err),
                              butler_alloc(n_ids * sizeof(float), err), butler_alloc(n_ids, err)};
    struct follower *followers = butler_alloc((size_t)n * sizeof *followers, err);
    const double begin = butler_seconds();
    int code = scratch.ids && scratch.chosen && scratch.values && scratch.marks && followers ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = start_all(run, item, &reference, followers, policies, n, err);
    if (code == 0)
        code = follow(run, item, &reference, followers, policies, n, &scratch, values, err);
    for (int p = 0; p < n && code == 0; p++) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        butler_session_stats(followers[p].session, &stats);
        costs[p].selected[EVAL_CURVE - 1] = (double)stats.units_selected;
        costs[p].reused[EVAL_CURVE - 1] = (double)stats.units_reused;
        eval_cost_take(&costs[p], &stats, (butler_seconds() - begin) / n);
        leave_out_dense(run, item, followers[p].session, &costs[p]);
        for (int i = 0; i < reference.n_layers * reference.n_heads; i++)
            if (!isnan(values[p][SUMS * i])) {
                costs[p].found[EVAL_CURVE - 1] += values[p][SUMS * i];
                costs[p].wanted[EVAL_CURVE - 1] += values[p][run->n_values - EXTRA];
            }
    }
    for (int p = 0; p < n && followers; p++) {
        butler_session_free(followers[p].session);
        butler_session_free(followers[p].half);
    }
    free(followers);
    free(scratch.ids);
    free(scratch.chosen);
    free(scratch.values);
    free(scratch.marks);
    free_reference(&reference);
    return code;
}

/* --------------------------------------------------------------------------------------------- items, rows */

static int load(struct eval_run *run, struct butler_error *err)
{
    int steps, dense;
    if (eval_option_int(run, "steps", 1, run->length - 2, &steps, err) < 0 ||
        eval_option_int(run, "dense", 0, run->info->n_layers - 1, &dense, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    for (int p = 0; p < run->n_policies; p++) {
        struct butler_policy *policy = &run->policies[p].parsed;
        const bool looks_ahead = policy->metric && (policy->metric->predictor || policy->metric->earlier_layers);
        policy->dense_layers = looks_ahead ? BUTLER_MAX(dense, 1) : dense; /* queries of the first layer are not predicted */
    }
    run->n_values = SUMS * run->info->n_layers * run->info->n_heads + EXTRA;
    return eval_windows_load(run, steps, err);
}

/* The mean of one of the sums, per layer and head. */
static json_t *by_head(const struct eval_run *run, const double *values, int which, double steps)
{
    json_t *layers = json_array();
    for (int l = 0; l < run->info->n_layers; l++) {
        json_t *heads = json_array();
        for (int h = 0; h < run->info->n_heads; h++) {
            double sum = 0;
            for (int i = 0; i < run->items.n; i++)
                sum += values[(size_t)i * (size_t)run->n_values + (size_t)(SUMS * (l * run->info->n_heads + h) + which)];
            json_array_append_new(heads, isnan(sum) ? json_null() : json_real(sum / steps));
        }
        json_array_append_new(layers, heads);
    }
    return layers;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    static const char *const names[SUMS] = {"recall", "mass", "top_half_accuracy"};
    const int n = run->items.n, heads = run->info->n_layers * run->info->n_heads;
    double *seen = butler_alloc((size_t)n * (SUMS + 1) * sizeof *seen, err), totals[SUMS + 1] = {0};
    if (!seen)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n; i++) {
        const double *item = values + (size_t)i * (size_t)run->n_values;
        int measured = 0;
        for (int h = 0; h < heads; h++)
            measured += !isnan(item[SUMS * h]);
        for (int k = 0; k < SUMS * heads; k++)
            seen[i * (SUMS + 1) + k % SUMS] += isnan(item[k]) ? 0 : item[k] / measured;
        seen[i * (SUMS + 1) + SUMS] = item[run->n_values - EXTRA];
        for (int s = 0; s <= SUMS; s++)
            totals[s] += seen[i * (SUMS + 1) + s];
    }
    for (int s = 0; s < SUMS; s++) {
        double lo, hi;
        eval_ratio_interval(seen + s, seen + SUMS, SUMS + 1, n, &lo, &hi);
        out[s] = (struct eval_row){names[s], totals[s] / totals[SUMS], fmax(lo, 0), fmin(hi, 1), (int64_t)totals[SUMS], NULL};
        if (isnan(lo))
            out[s].lo = out[s].hi = NAN;
    }
    out[0].detail = json_pack("{s:o, s:o, s:f}", "layers", by_head(run, values, 0, totals[SUMS]), "mass",
                              by_head(run, values, 1, totals[SUMS]), "top_half", totals[2] / totals[SUMS]);
    free(seen);
    return SUMS;
}

static const struct eval_option options[] = {
    {"steps", "32", "tokens decoded and measured at the end of each text"},
    {"dense", "0", "layers that read everything, for every policy"},
    {"charge", "1", "0: a budget is the tokens read; what metrics and unshared selections read besides is free"},
    {"memory", "0", "MiB that sessions may hold, of which policies are grouped to use less; 0: half of the machine's"},
    {NULL, NULL, NULL},
};

const struct eval_task eval_recall = {
    .name = "recall",
    .summary = "share of the tokens with most attention, and of the attention, that a policy reads",
    .data = "a text file (UTF-8)",
    .work = "reads --length tokens once for all policies, and 32 (--set steps) under each",
    .details = "--data is any text file (UTF-8), --length tokens of a text, --limit texts.\n",
    .options = options,
    .length = 1024,
    .limit = 4,
    .load = load,
    .run_together = measure,
    .rows = rows,
};
