/* Recall of a policy's selection (TokenButler, figure 6 and section 4): the tokens it reads, compared with the exact attention of
 * a dense session, per layer and query head, at equal bytes. After each step of the dense session the policies' sessions make the
 * same step, and their attention outputs are replaced by those of the dense session: all have the same queries and keys, and only
 * the selection differs.
 *
 * Equal bytes. A budget of B tokens at length n pays for B keys and values of every KV head. The bytes that a policy's metric
 * reads for one step (score and observe; the predictor's own attention) are subtracted first; the rest is the number of tokens it
 * may read, divided by the lists of a KV head where it has several (share=query, share=2, ...). The oracle's
 * metric costs nothing: it is the upper bound. recall@k compares with the k = B largest weights of the query head, mass is the
 * attention on the tokens read, and on a learned sink (gpt-oss), which costs nothing to read. The newest token, which every step
 * reads, always counts as one of the k largest. Layers that are dense (--set dense=N, and those with a window) are in no mean and
 * in no byte count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { SUMS = 3 /* of each query head: recall, mass, top-half accuracy */, EXTRA = 1 /* steps */ };

/* The dense session and its attention in the last step. */
struct reference {
    struct butler_session *session;
    struct butler_capture capture;
    int n_layers, n_heads, head_dim, n_ctx;
    float *outputs; /* [n_layers][n_heads][head_dim] */
    float *scores;  /* [n_layers][n_heads][n_ctx] q.k, which ranks also tokens whose attention rounds to 0 */
    float *weights; /* the same after the softmax */
    float *sinks;   /* [n_layers][n_heads] attention to learned sinks */
};

/* A policy's sessions: at the given budget, and at half of all tokens for top_half_accuracy. */
struct follower {
    const struct eval_policy *policy;
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
    free(reference->sinks);
}

/* After a layer of the dense session. */
static void keep_output(void *user, int layer, int first, int n, const float *q, float *o)
{
    struct reference *reference = user;
    const size_t size = (size_t)reference->n_heads * (size_t)reference->head_dim;
    (void)first, (void)q;
    if (n == 1)
        memcpy(reference->outputs + (size_t)layer * size, o, size * sizeof *o);
}

/* A head of it: layers with a window are not measured. */
static void keep_attention(void *user, const struct butler_head_attention *attention)
{
    struct reference *reference = user;
    const size_t row = (size_t)attention->layer * (size_t)reference->n_heads + (size_t)attention->head,
                 at = row * (size_t)reference->n_ctx, n = (size_t)attention->n;
    memcpy(reference->scores + at, attention->scores, n * sizeof *attention->scores);
    memcpy(reference->weights + at, attention->weights, n * sizeof *attention->weights);
    reference->sinks[row] = attention->sink;
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

/* Bytes of a key and a value. */
static double pair_bytes(const struct eval_run *run)
{
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    butler_policy_estimate(run->engine, "full", run->params->kv_type, 1, &cost, NULL);
    return (double)cost.full_kv_bytes / run->info->n_layers / run->info->n_kv_heads;
}

/* The budget B in tokens at length n. */
static int budget_tokens(const struct eval_policy *policy, int n)
{
    const double asked = policy->parts.budget,
                 budget = policy->parts.budget_kind == BUTLER_BUDGET_FRACTION ? floor(asked * n + 0.5) : asked;
    return (int)BUTLER_MAX(1, BUTLER_MIN(budget, (double)n));
}

/* Whether it has a budget that can be charged for bytes. */
static bool has_tokens(const struct eval_policy *policy)
{
    return eval_text_has(policy->runs, "budget");
}

/* Lists of a KV head: of all its query heads, of subgroups, or of one each. */
static int lists_per_head(const struct eval_run *run, const struct eval_policy *policy)
{
    const int group = run->info->n_heads / run->info->n_kv_heads, share = (int)eval_text_number(policy->runs, "share");
    return eval_text_is(policy->runs, "share", "query") ? group : share > 0 ? BUTLER_CEIL_DIV(group, share) : 1;
}

/* The tokens that remain of the budget after the bytes of the session's metric; charged false: all B. */
static int charge(const struct eval_run *run, const struct butler_session *session, const struct eval_policy *policy, int n,
                  bool charged)
{
    const double row = pair_bytes(run);
    const int tokens = budget_tokens(policy, n);
    /* Evicted tokens are not scored: the metric's bytes grow with the tokens kept. */
    double remaining = policy->parts.evicts ? tokens * row / (row + butler_session_metric_bytes(session, tokens, n) / n)
                                            : tokens - butler_session_metric_bytes(session, n, n) / row;
    if (eval_text_number(policy->runs, "scan") > 0) /* what it scores follows the budget */
        for (remaining = tokens;
             remaining > 1 && remaining * row + butler_session_metric_bytes(session, (int)remaining, n) > tokens * row;)
            remaining--;
    if (policy->parts.retrieves)
        remaining /= lists_per_head(run, policy); /* each reads tokens of its own */
    if (!charged)
        remaining = tokens;
    if (tokens == n)
        remaining = n; /* everything is read: nothing is scored */
    if (eval_text_number(policy->runs, "on_top") > 0)
        remaining -= eval_text_number(policy->runs, "sinks") + eval_text_number(policy->runs, "recent");
    return (int)BUTLER_MAX(1, floor(remaining));
}

/* ------------------------------------------------------------------------------------------------ measuring */

/* Marks the newest token, which every step reads, and the k - 1 highest scores of the others, ties to the lower index. */
static void mark(const float *scores, int n, int k, struct scratch *scratch, unsigned char bit)
{
    const int n_chosen = eval_top(scores, n, k, scratch->values, scratch->chosen);
    for (int i = 0; i < n_chosen; i++)
        scratch->marks[scratch->chosen[i]] |= bit;
}

static void measure_head(const struct eval_run *run, const struct reference *reference, const struct follower *follower, int row,
                         struct scratch *scratch, double *sums)
{
    const struct eval_policy *policy = follower->policy;
    const int n = butler_n_past(reference->session), layer = row / reference->n_heads, head = row % reference->n_heads;
    if (!eval_policy_applies(run, policy, layer)) { /* dense for everybody: in no mean */
        for (int s = 0; s < SUMS; s++)
            sums[s] = NAN;
        return;
    }
    const float *scores = reference->scores + (size_t)row * (size_t)reference->n_ctx,
                *weights = reference->weights + (size_t)row * (size_t)reference->n_ctx;
    const int half = BUTLER_CEIL_DIV(n, 2), k = has_tokens(policy) ? budget_tokens(policy, n) : half;
    int hits = 0, right = 0;
    double mass = (double)reference->sinks[row]; /* what the learned sink takes is always kept */
    memset(scratch->marks, 0, (size_t)n);
    mark(scores, n, k, scratch, 1);
    mark(scores, n, half, scratch, 2);
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

/* values: a row for each follower */
static int follow(const struct eval_run *run, const struct eval_item *item, struct reference *reference, struct follower *followers,
                  int n_followers, struct scratch *scratch, double *const *values, struct butler_error *err)
{
    int charged;
    if (eval_option_int(run, "charge", 0, 1, &charged, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    for (int at = item->n_prompt; at < item->n_ids; at++) {
        int code = eval_check_stop(run, err);
        if (code == 0)
            code = butler_step(reference->session, item->ids[at], err);
        for (int p = 0; p < n_followers && code == 0; p++) {
            struct follower *follower = &followers[p];
            if ((code = eval_check_stop(run, err)) < 0)
                break;
            if (has_tokens(follower->policy))
                code = butler_session_set_budget(follower->session,
                                                 charge(run, follower->session, follower->policy, at + 1, charged), err);
            if (code == 0)
                code = butler_step(follower->session, item->ids[at], err);
            if (code == 0)
                code = butler_step(follower->half, item->ids[at], err);
            for (int i = 0; i < reference->n_layers * reference->n_heads && code == 0; i++)
                measure_head(run, reference, follower, i, scratch, values[p] + SUMS * i);
            values[p][run->n_values - EXTRA]++;
        }
        if (code < 0)
            return code;
    }
    return 0;
}

/* The budget to which an evicting policy cuts the prompt, before its session is made; 0: its own. */
static int charge_prompt(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *policy,
                         const char *text, int *budget, struct butler_error *err)
{
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .policy = text, .n_ctx = item->n_ids,
                                                 .kv_type = run->params->kv_type, .seed = run->seed};
    int charged;
    *budget = 0;
    if (!policy->parts.evicts || !has_tokens(policy))
        return 0;
    if (eval_option_int(run, "charge", 0, 1, &charged, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    struct butler_session *probe = butler_session_new(run->engine, &params, err);
    if (!probe)
        return BUTLER_ERROR_MEMORY;
    *budget = charge(run, probe, policy, item->n_prompt, charged);
    butler_session_free(probe);
    return 0;
}

/* A session of a policy that has read the prompt, with its capture set. half: with half of all tokens as its budget. */
static int start(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *policy, bool half,
                 struct eval_donor *donor, const struct butler_capture *capture, struct butler_session **out,
                 struct butler_error *err)
{
    char text[EVAL_POLICY_TEXT];
    int budget = 0;
    strcpy(text, policy->runs);
    eval_text_set(text, "rope", "rope=original"); /* keys must be those of the dense session */
    if (half) {
        eval_text_set(text, "budget", "budget=0.5");
        eval_text_set(text, "mass", "budget=0.5");
        eval_text_set(text, "ratio", "ratio=0.5");
        eval_text_set(text, "min", "min=1");
        eval_text_set(text, "on_top", "on_top=0");
    }
    int code = half ? 0 : charge_prompt(run, item, policy, text, &budget, err); /* where the prompt is cut to the budget */
    if (code == 0)
        code = eval_session_begin(run, item, text, budget, donor, out, err);
    if (code == 0) {
        butler_session_stats_reset(*out);
        code = butler_session_set_capture(*out, capture, err);
    }
    return code;
}

static int start_all(const struct eval_run *run, const struct eval_item *item, struct reference *reference,
                     struct follower *followers, const struct eval_policy *const *policies, int n, struct butler_error *err)
{
    struct eval_donor donor = {0};
    const struct eval_policy dense = {.runs = "full"};
    const size_t rows = (size_t)reference->n_layers * (size_t)reference->n_heads;
    int code = 0;
    reference->capture = (struct butler_capture){.attended = keep_output, .user = reference};
    reference->outputs = butler_alloc(rows * (size_t)reference->head_dim * sizeof(float), err);
    reference->scores = butler_alloc(rows * (size_t)reference->n_ctx * sizeof(float), err);
    reference->weights = butler_alloc(rows * (size_t)reference->n_ctx * sizeof(float), err);
    reference->sinks = butler_alloc(rows * sizeof(float), err);
    if (!reference->outputs || !reference->scores || !reference->weights || !reference->sinks)
        code = BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = start(run, item, &dense, false, &donor, &reference->capture, &reference->session, err);
    if (code == 0)
        code = butler_session_on_attention(reference->session, keep_attention, reference, err);
    for (int observes = 0; observes < 2; observes++)
        for (int p = 0; p < n && code == 0; p++) {
            if (eval_policy_observes(run, policies[p]->runs) != (bool)observes)
                continue;
            struct follower *follower = &followers[p];
            follower->policy = policies[p];
            follower->capture = (struct butler_capture){.attended = put_output, .user = reference};
            code = start(run, item, policies[p], false, &donor, &follower->capture, &follower->session, err);
            if (code == 0)
                code = start(run, item, policies[p], true, &donor, &follower->capture, &follower->half, err);
        }
    eval_donor_free(&donor);
    return code;
}

/* Takes what layers read to which the policy does not apply out of the bytes: it is the same under every policy. */
static void leave_out_dense(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *policy,
                            struct eval_cost *cost)
{
    const double row = pair_bytes(run) * run->info->n_kv_heads;
    for (int l = 0; l < run->info->n_layers; l++) {
        const int window = butler_model_window(run->model, l);
        double tokens = 0;
        for (int n = item->n_prompt + 1; n <= item->n_ids; n++)
            tokens += window > 0 ? BUTLER_MIN(n, window) : n;
        if (!eval_policy_applies(run, policy, l)) {
            cost->kv_bytes -= tokens * row;
            cost->full_kv_bytes -= tokens * row;
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
        code = follow(run, item, &reference, followers, n, &scratch, values, err);
    for (int p = 0; p < n && code == 0; p++) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        butler_session_stats(followers[p].session, &stats);
        costs[p].selected[EVAL_CURVE - 1] = (double)stats.units_selected;
        costs[p].reused[EVAL_CURVE - 1] = (double)stats.units_reused;
        eval_cost_take(&costs[p], &stats, (butler_seconds() - begin) / n);
        leave_out_dense(run, item, policies[p], &costs[p]);
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
    if (run->simulate)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--mode: %s reads its texts as prompts; simulate is not for it",
                           run->task->name);
    if (eval_option_int(run, "steps", 1, run->length - 2, &steps, err) < 0 ||
        eval_option_int(run, "dense", 0, run->info->n_layers - 1, &dense, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    for (int p = 0; p < run->n_policies; p++) {
        struct eval_policy *policy = &run->policies[p];
        /* queries of the first layer are not predicted */
        eval_policy_set_dense(policy, policy->parts.looks_ahead ? BUTLER_MAX(dense, 1) : dense);
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
        eval_share_interval(seen + s, seen + SUMS, SUMS + 1, n, &lo, &hi);
        out[s] = (struct eval_row){names[s], totals[s] / totals[SUMS], lo, hi, (int64_t)totals[SUMS], NULL};
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
