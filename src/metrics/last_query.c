/* Last-query attention (TOVA, arXiv 2401.06104): the weight that the latest query gave. A record is one float per query head. */
#include "engine/metric.h"

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)values;
    *n_slots = 1;
    *n_bytes = (size_t)shape->group * sizeof(float);
}

static int attention_window(const double *values)
{
    (void)values;
    return 1;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    (void)values, (void)position;
    float *last = butler_view_record(view, 0);
    for (int slot = 0; slot < n; slot++)
        for (int head = 0; head < shape->group; head++)
            last[(size_t)slot * shape->group + head] = weights[(size_t)head * stride + slot];
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)values;
    const float *last = butler_view_record(view, request->first);
    for (int head = 0; head < request->n_q; head++)
        for (int i = 0; i < request->n; i++)
            request->out[(size_t)head * request->stride + i] = last[(size_t)i * shape->group + head];
}

const struct butler_metric butler_metric_last_query = {
    .name = "last_query",
    .summary = "attention received from the latest query",
    .scale = BUTLER_SCORE_WEIGHT,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .score = score,
};
