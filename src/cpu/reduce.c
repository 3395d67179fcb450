/* Scores of several query heads -> one score per unit (methods.h): the group reduction every method shares. */
#include <float.h>
#include <math.h>

#include "cpu/methods.h"

static void reduce_mean(const struct butler_kernels *kernels, float *x, size_t stride, int n_heads, int n)
{
    for (int h = 1; h < n_heads; h++)
        kernels->add(x, x + (size_t)h * stride, n);
    for (int i = 0; i < n; i++)
        x[i] /= (float)n_heads;
}

/* log(mean(exp(x))) over heads. */
static void reduce_mean_log(float *x, size_t stride, int n_heads, int n)
{
    for (int i = 0; i < n; i++) {
        float max = x[i], sum = 0;
        for (int h = 1; h < n_heads; h++)
            max = fmaxf(max, x[(size_t)h * stride + (size_t)i]);
        for (int h = 0; h < n_heads; h++)
            sum += expf(x[(size_t)h * stride + (size_t)i] - max);
        x[i] = max > -INFINITY ? max + logf(sum / (float)n_heads) : max; /* all -inf: a value of zeros under a norm */
    }
}

/* Scores of n tokens -> of pages of `unit` of them: the highest, or their sum. */
static void pool_pages(float *x, int n, int unit, bool sum)
{
    for (int page = 0; page * unit < n; page++) {
        const int first = page * unit, end = BUTLER_MIN(first + unit, n);
        float all = sum ? 0 : -INFINITY;
        for (int i = first; i < end && sum; i++)
            all += x[i];
        for (int i = first; i < end && !sum; i++)
            all = x[i] > all ? x[i] : all;
        x[page] = all;
    }
}

/* Each score times the norm of the token's value: of the head's own KV head, for a layer's heads have different values. In place of
 * minus a size its inverse is taken: it has the same order, and can be multiplied. */
static void weigh_values(const struct butler_layer_state *state, float *x, size_t stride, int head, int n_heads, int n)
{
    const struct butler_reduction *reduction = &state->plan->reduction;
    const int group = state->n_heads / state->kv->n_kv_heads;
    const bool row_of_kv_head = reduction->rows == BUTLER_ROWS_ANY;
    for (int h = 0; h < n_heads; h++) {
        const int kv_head = row_of_kv_head ? head / group + h : (head + h) / group;
        const float *norm = butler_kv_at(state->kv, state->layer, kv_head)->value_norms;
        float *row = x + (size_t)h * stride;
        if ((head + h) % group == 0 || row_of_kv_head) /* the heads of a group read the same */
            __atomic_fetch_add(&state->traffic->metric_bytes, (uint64_t)n * sizeof *norm, __ATOMIC_RELAXED);
        for (int i = 0; i < n; i++)
            row[i] = reduction->weigh == BUTLER_WEIGH_ADD_LOG  ? row[i] + logf(norm[i])
                     : reduction->weigh == BUTLER_WEIGH_DIVIDE ? norm[i] / fmaxf(-row[i], FLT_MIN)
                                                               : row[i] * norm[i];
    }
}

/* scale[h] * x - shift[h] of each row, of query heads from `head` on, is comparable with the other heads': the logarithm of the
 * softmax, or the distance from the row's mean in standard deviations. A row of one value says nothing; one with a NaN becomes NaN,
 * and is passed over. */
static void comparable(const struct butler_layer_state *state, const float *x, size_t stride, int n_heads, int n, int head,
                       float *scale, float *shift)
{
    const struct butler_kernels *kernels = state->kv->kernels;
    const bool zscores = state->plan->reduction.zscores;
    for (int h = 0; h < n_heads; h++) {
        const float *row = x + (size_t)h * stride;
        if (zscores) {
            float mean, deviation;
            kernels->moments(row, n, &mean, &deviation);
            scale[h] = deviation > 0 ? 1 / deviation : 0;
            shift[h] = mean * scale[h];
        } else {
            scale[h] = 1.0f / sqrtf((float)state->kv->head_dim);
            shift[h] = kernels->log_sum_exp(row, scale[h], n);
            if (state->sinks && state->plan->reduction.rows != BUTLER_ROWS_ANY) /* part of the softmax, as if of one more token */
                shift[h] = fmaxf(shift[h], state->sinks[head + h]) + log1pf(expf(-fabsf(shift[h] - state->sinks[head + h])));
        }
    }
}

/* log of the probability of the learned sinks: of each head, reduced as the tokens' are. shift as comparable() left it. */
static float sink_log_mass(const struct butler_layer_state *state, int head, int n_heads, const float *shift, bool mean)
{
    float max = -INFINITY, sum = 0;
    for (int h = 0; h < n_heads; h++)
        max = fmaxf(max, state->sinks[head + h] - shift[h]);
    for (int h = 0; h < n_heads && mean; h++)
        sum += expf(state->sinks[head + h] - shift[h] - max);
    return mean ? max + logf(sum / (float)n_heads) : max;
}

float *butler_reduce_scores(const struct butler_layer_state *state, float *rows, int head, int n_heads, int n_units,
                            double *sink_mass)
{
    const struct butler_reduction *reduction = &state->plan->reduction;
    const struct butler_kernels *kernels = state->kv->kernels;
    const int group = state->n_heads / state->kv->n_kv_heads;
    const int n_slots = butler_kv_at(state->kv, state->layer, head / group)->n_slots;
    /* A block of a prompt reduces units before it, though the cache has later tokens. */
    const int n_pooled = state->plan->method == BUTLER_RETRIEVE ? BUTLER_MIN(n_slots, n_units * reduction->pool) : n_slots;
    const int n = reduction->pool > 1 ? n_pooled : n_units;
    const bool norms = reduction->weigh != BUTLER_WEIGH_NOT, logits = reduction->logits, mean = reduction->mean;
    const bool probabilities = reduction->probabilities, zscores = reduction->zscores;
    size_t stride = state->work->score_stride;
    float *x = rows, *scale = state->work->row_scales + head, *shift = state->work->row_shifts + head;
    if (reduction->rows == BUTLER_ROWS_ANY) { /* one row per KV head, at its first query head */
        n_heads = BUTLER_CEIL_DIV(n_heads, group);
        stride *= (size_t)group;
    } else if (reduction->rows == BUTLER_ROWS_COMBINED) /* reduced by its query already */
        n_heads = 1;
    else
        x = rows + (size_t)(head % group) * stride;
    float own_scale, own_shift; /* a single row may belong to any of several layers */
    if (n_heads == 1) {
        scale = &own_scale;
        shift = &own_shift;
    }
    const bool normalised = logits && (n_heads > 1 || probabilities || norms);
    for (int h = 0; h < n_heads; h++) {
        scale[h] = 1;
        shift[h] = 0;
    }
    for (int h = 0; h < n_heads && normalised && !zscores && state->softcap > 0; h++) /* as attention does, of scaled scores */
        butler_softcap(x + (size_t)h * stride, n, sqrtf((float)state->kv->head_dim) * state->softcap);
    if (normalised)
        comparable(state, x, stride, n_heads, n, head, scale, shift);
    /* A sink has no value, so that norms leave nothing of it. */
    float sinks = -INFINITY;
    if (probabilities && logits && state->sinks && !norms && reduction->rows != BUTLER_ROWS_ANY)
        sinks = sink_log_mass(state, head, n_heads, shift, mean);
    if (norms || mean || n_heads == 1) /* more than a maximum follows, or nothing */
        for (int h = 0; h < n_heads && normalised; h++) {
            kernels->group_max(x + (size_t)h * stride, x + (size_t)h * stride, 0, scale + h, shift + h, 1, n);
            scale[h] = 1;
            shift[h] = 0;
        }
    if (norms)
        weigh_values(state, x, stride, head, n_heads, n);
    if (n_heads > 1 && mean && logits && !zscores)
        reduce_mean_log(x, stride, n_heads, n);
    else if (n_heads > 1 && mean)
        reduce_mean(kernels, x, stride, n_heads, n);
    else if (n_heads > 1)
        kernels->group_max(x, x, stride, scale, shift, n_heads, n);
    if (probabilities && logits) {
        const float max = kernels->max(x, n);
        *sink_mass = exp((double)(sinks - max));
        kernels->exp_sum(x, max, n);
    }
    if (reduction->pool > 1)
        pool_pages(x, n, reduction->pool, probabilities);
    return x;
}
