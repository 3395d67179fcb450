/* What a policy's budget comes to in one layer of a text of a given length: the only place that rounds it. */
#include "engine/policy.h"

#include <math.h>
#include <string.h>

static int pyramid_budget(const struct butler_policy *policy, int budget, int layer, int n_layers, int n)
{
    int l = 0, m = 0, window = policy->heavy >= 0 ? 0 : policy->recent, c = budget - window;
    for (int i = 0; i < n_layers; i++) {
        l += i < layer && butler_policy_applies(policy, i);
        m += butler_policy_applies(policy, i);
    }
    if (n <= budget || n < 2 * c || m <= 1 || c <= 0) /* a short text: every layer the same */
        return budget;
    int low = (int)floor(c / policy->pyramid), high = 2 * c - low;
    if (high > n - window) {
        high = n - window;
        low = 2 * c - high;
    }
    return high - l * ((high - low) / (m - 1)) + window;
}

/* Whole pages that hold the first `sinks` and the last `recent` tokens wherever the text ends, and one that the scores choose: a
 * smaller budget would read the page being filled and nothing that was asked for. */
static int fewest_pages(const struct butler_policy *policy, const struct butler_limits *limits)
{
    const int unit = policy->unit;
    return BUTLER_CEIL_DIV(limits->sinks, unit) + BUTLER_CEIL_DIV(limits->recent - 1, unit) + 2;
}

struct butler_limits butler_policy_limits(const struct butler_policy *policy, int layer, int n_layers, int n)
{
    struct butler_limits limits = {0, policy->sinks, policy->recent};
    if (!policy->metric || !butler_policy_applies(policy, layer))
        return (struct butler_limits){n, 0, 0};
    if (policy->method == BUTLER_RETRIEVE)
        limits.recent = BUTLER_MAX(1, limits.recent);
    if (policy->budget_kind == BUTLER_BUDGET_MASS)
        return limits;
    int budget = (int)policy->budget;
    if (policy->budget_kind == BUTLER_BUDGET_FRACTION)
        budget = BUTLER_MAX(BUTLER_MAX(1, policy->prune_min), (int)floor(policy->budget * n + 0.5));
    if (policy->pyramid > 0)
        budget = pyramid_budget(policy, budget, layer, n_layers, n);
    if (policy->heavy >= 0)
        limits.recent = BUTLER_MAX(policy->method == BUTLER_RETRIEVE, budget - (int)floor(policy->heavy * budget + 0.5));
    if (policy->on_top)
        budget += limits.sinks + limits.recent;
    if (policy->method == BUTLER_RETRIEVE && policy->unit > 1)
        budget = BUTLER_MAX(budget, fewest_pages(policy, &limits) * policy->unit);
    limits.budget = BUTLER_MAX(policy->unit, BUTLER_MAX(budget, limits.sinks + BUTLER_MAX(1, limits.recent)));
    return limits;
}

int butler_policy_scan_pages(const struct butler_policy *policy, const struct butler_limits *limits, int n)
{
    if (policy->scan == 0)
        return 0;
    const int page = policy->metric->scan->page_slots, n_all = BUTLER_CEIL_DIV(n, page);
    const int n_kept = BUTLER_CEIL_DIV(limits->sinks, page) + n_all - BUTLER_MAX(n - limits->recent, 0) / page;
    const int64_t tokens = (int64_t)policy->scan * (limits->budget - limits->sinks - limits->recent);
    const int64_t n_pages = n_kept + BUTLER_CEIL_DIV(tokens, page);
    return n_pages < n_all ? (int)n_pages : 0;
}

bool butler_policy_covers(const struct butler_policy *policy, int layer, int n_layers, int n)
{
    return policy->budget_kind != BUTLER_BUDGET_MASS && butler_policy_limits(policy, layer, n_layers, n).budget >= n;
}

bool butler_policy_keeps_all(const struct butler_policy *policy, int layer, int n_layers, int n)
{
    /* A share of the text, and a pyramid's low layers, may cover a longer text than one that they do not cover. */
    return policy->method == BUTLER_EVICT && policy->budget_kind == BUTLER_BUDGET_COUNT && !(policy->pyramid > 0) &&
           policy->prune_ratio < 0 && butler_policy_covers(policy, layer, n_layers, n);
}

bool butler_policy_idles(const struct butler_policy *policy, int n_layers, int n_ctx)
{
    bool idles = policy->method == BUTLER_EVICT && !policy->plan.own_text;
    for (int l = 0; l < n_layers; l++)
        idles = idles && butler_policy_keeps_all(policy, l, n_layers, n_ctx);
    return idles;
}

int butler_policy_prompt_tokens(const struct butler_policy *policy, int n)
{
    const double budget = policy->prompt > 1 ? policy->prompt : floor(policy->prompt * n + 0.5);
    return !(policy->prompt > 0) || budget >= n ? n : BUTLER_MAX((int)budget, 1);
}

bool butler_policy_same_prompts(const struct butler_policy *a, const struct butler_policy *b)
{
    return a->prompt == b->prompt && (!(a->prompt > 0) || !strcmp(a->text, b->text));
}

bool butler_policy_defers(const struct butler_policy *policy, int layer, int n_layers, int n)
{
    if (policy->plan.idle)
        return true;
    return policy->method == BUTLER_RETRIEVE && butler_policy_applies(policy, layer) && policy->plan.from_rows &&
           butler_policy_covers(policy, layer, n_layers, n) && butler_policy_prompt_tokens(policy, n) == n;
}
