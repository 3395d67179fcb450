/* Key difference (KeyDiff, Park et al., arXiv 2504.15364): keys that are unlike the others matter. The anchor of a KV head is the
 * mean of its keys, each scaled to length 1; the score is minus the cosine between a key and the anchor. The anchor is that of the
 * keys that are held: a key joins it as it comes and leaves it as it is evicted. kvpress's KeyDiffPress computes it once, when the
 * prompt has been read: that is rolling=0.
 *
 * The state is {int64 sum[head_dim], float anchor[head_dim]}. A channel of a key of length 1, in [-1, 1], is an integer in units of
 * 2^-24: sums are exact, so that keys leave without a trace, in any order. A record (one slot) is the inverse of the key's length,
 * with which a score is one dot product. */
#include <math.h>

#include "kernels/kernels.h"
#include "engine/metric.h"

#define ONE 16777216.0f /* 2^24 units */

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 1;
    *n_bytes = sizeof(float);
}

static size_t head_bytes(const struct butler_metric_shape *shape, const double *values)
{
    (void)values;
    return (size_t)shape->head_dim * (sizeof(int64_t) + sizeof(float));
}

/* The key of a slot joins the sum (sign 1) or leaves it (-1). A key of zeros has no direction. Returns the inverse of its length.
 */
static float add_key(const struct butler_metric_shape *shape, const struct butler_head_view *view, int slot, int sign)
{
    float key[BUTLER_MAX_HEAD_DIM];
    int64_t *sum = butler_view_state(view);
    butler_view_key(view, slot, key);
    const float length = sqrtf(butler_view_kernels(view)->dot(key, key, shape->head_dim));
    const float inverse = length > 0 && isfinite(length) ? 1 / length : 0;
    for (int d = 0; d < shape->head_dim && inverse > 0; d++)
        sum[d] += sign * (int64_t)lrintf(key[d] * inverse * ONE);
    return inverse;
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    (void)values;
    for (int slot = first; slot < first + n; slot++)
        *(float *)butler_view_record(view, slot) = add_key(shape, view, slot, 1);
}

static void leave(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const uint32_t *slots, int n)
{
    (void)values;
    for (int i = 0; i < n; i++)
        add_key(shape, view, (int)slots[i], -1);
}

/* The sum, scaled to length 1. */
static void begin_score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const float *q, int n_q)
{
    const int64_t *sum = butler_view_state(view);
    float *anchor = (float *)(sum + shape->head_dim);
    double squares = 0;
    (void)values, (void)q, (void)n_q;
    for (int d = 0; d < shape->head_dim; d++)
        squares += (double)sum[d] * (double)sum[d];
    for (int d = 0; d < shape->head_dim; d++)
        anchor[d] = squares > 0 ? (float)((double)sum[d] / sqrt(squares)) : 0;
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const float *anchor = (const float *)((const int64_t *)butler_view_state(view) + shape->head_dim);
    (void)values;
    butler_view_dot_keys(view, anchor, 1, request->first, request->n, request->out, request->stride);
    for (int i = 0; i < request->n; i++)
        request->out[i] *= -*(const float *)butler_view_record(view, request->first + i);
}

const struct butler_metric butler_metric_key_diff = {
    .name = "key_diff",
    .summary = "minus the cosine between the key and the mean direction of all keys held",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .reads_keys = true,
    .weighing = BUTLER_WEIGH_NOTHING,
    .record = record,
    .head_bytes = head_bytes,
    .append = append,
    .leave = leave,
    .begin_score = begin_score,
    .score = score,
};
