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
                  const struct butler_score_request *request)
{
    (void)shape, (void)values;
    for (int i = 0; i < request->n; i++)
        request->out[i] = *(const float *)butler_view_record(view, request->first + i);
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
