/* From logits to the next id: top-k, top-p and min-p on the distribution at temperature 1, then a softmax at the temperature of
 * what they keep, then one draw. The order is llama.cpp's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

struct butler_sampler {
    struct butler_sampler_params params;
    uint64_t random;
    struct candidate {
        float logit, p;
        int32_t id;
    } * candidates;
    int max_candidates;
};

struct butler_sampler *butler_sampler_new(const struct butler_sampler_params *params, struct butler_error *err)
{
    static const struct butler_sampler_params defaults = {.top_p = 0};
    if (!params)
        params = &defaults;
    const char *wrong = !isfinite(params->temperature)                ? "temperature must be a number"
                        : params->top_k < 0                           ? "top-k must be 0 (off) or more"
                        : !(params->top_p >= 0 && params->top_p <= 1) ? "top-p must be from 0 (off) to 1 (off)"
                        : !(params->min_p >= 0 && params->min_p <= 1) ? "min-p must be from 0 (off) to 1"
                                                                      : NULL;
    struct butler_sampler *sampler = NULL;
    if (wrong)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "sampler: %s", wrong);
    else
        sampler = butler_alloc(sizeof *sampler, err);
    if (!sampler)
        return NULL;
    sampler->params = *params;
    sampler->random = params->seed;
    return sampler;
}

void butler_sampler_free(struct butler_sampler *sampler)
{
    if (sampler)
        free(sampler->candidates);
    free(sampler);
}

/* Highest logit first; equal logits by id, so that a seed always gives the same text. */
static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

/* Probabilities at a temperature, over the first n candidates. */
static void softmax(struct candidate *c, int n, float temperature)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].p = expf((c[i].logit - c[0].logit) / temperature);
    for (int i = 0; i < n; i++)
        c[i].p /= sum;
}

/* Number of the sorted candidates that top-k, top-p and min-p keep: at least one. */
static int truncate(const struct butler_sampler_params *params, struct candidate *c, int n)
{
    if (params->top_k > 0)
        n = BUTLER_MIN(n, params->top_k);
    softmax(c, n, 1);
    if (params->top_p > 0 && params->top_p < 1) {
        float sum = 0;
        int kept = 0;
        while (kept < n && sum < params->top_p)
            sum += c[kept++].p;
        n = BUTLER_MAX(kept, 1);
    }
    while (n > 1 && c[n - 1].p < params->min_p * c[0].p)
        n--;
    return n;
}

int32_t butler_sample(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err)
{
    if (BUTLER_IS_NULL(sampler, err) || BUTLER_IS_NULL(logits, err))
        return BUTLER_ERROR_ARGUMENT;
    if (n_vocab < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d logits to sample from", n_vocab);
    int32_t best = 0;
    for (int i = 0; i < n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return butler_fail(err, BUTLER_ERROR_NUMERIC, "the logit of token %d is %f", i, (double)logits[i]);
        if (logits[i] > logits[best])
            best = i;
    }
    if (sampler->params.temperature <= 0)
        return best;
    if (n_vocab > sampler->max_candidates) {
        struct candidate *candidates = realloc(sampler->candidates, (size_t)n_vocab * sizeof *candidates);
        if (!candidates)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d candidates", n_vocab);
        sampler->candidates = candidates;
        sampler->max_candidates = n_vocab;
    }
    struct candidate *c = sampler->candidates;
    for (int i = 0; i < n_vocab; i++)
        c[i] = (struct candidate){.logit = logits[i], .id = i};
    qsort(c, (size_t)n_vocab, sizeof *c, by_logit);
    const int n = truncate(&sampler->params, c, n_vocab);
    softmax(c, n, sampler->params.temperature);
    float u = butler_random_float(&sampler->random);
    for (int i = 0; i < n - 1; i++) {
        u -= c[i].p;
        if (u < 0)
            return c[i].id;
    }
    return c[n - 1].id;
}
