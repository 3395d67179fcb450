/* Key norm (Devoto et al., arXiv 2406.11430): keys of low Euclidean norm tend to receive much attention, so the score is
 * -|k|. A record is that number. */
#include <math.h>

#include "kernels/kernels.h"
#include "engine/metric.h"

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 1;
    *n_bytes = sizeof(float);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    (void)values;
    float key[BUTLER_MAX_HEAD_DIM];
    for (int slot = first; slot < first + n; slot++) {
        butler_view_key(view, slot, key);
        *(float *)butler_view_record(view, slot) = -sqrtf(butler_view_kernels(view)->dot(key, key, shape->head_dim));
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values, (void)q, (void)n_q, (void)stride;
    for (int i = 0; i < n; i++)
        out[i] = *(const float *)butler_view_record(view, first + i);
}

const struct butler_metric butler_metric_key_norm = {
    .name = "key_norm",
    .summary = "minus the Euclidean norm of the key",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .reads_keys = true,
    .weighing = BUTLER_WEIGH_INVERSE,
    .record = record,
    .append = append,
    .score = score,
};
