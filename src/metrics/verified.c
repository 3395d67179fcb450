/* Attention of the latest exact check (verification-guided selection, as Vegas, arXiv 2602.07223): while drafts are made nothing is
 * observed; the check that follows them attends to the whole cache, and the weights that its last query gave are kept for the next
 * selection, on top of those of earlier checks times `decay`. A record is one float for a KV head, the maximum over its query
 * heads. */
#include <string.h>

#include "engine/metric.h"

static const struct butler_param params[] = {
    {"decay", 0.5, 0, 1, "how much the weights of the check before count; 0: not at all"},
    {NULL, 0, 0, 0, NULL},
};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 1;
    *n_bytes = sizeof(float);
}

static int attention_window(const double *values)
{
    (void)values;
    return 1;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    (void)position;
    float *kept = butler_view_record(view, 0);
    const float decay = (float)values[0];
    for (int slot = 0; slot < n; slot++)
        kept[slot] *= decay;
    for (int head = 0; head < shape->group; head++, weights += stride)
        for (int slot = 0; slot < n; slot++)
            kept[slot] = weights[slot] > kept[slot] ? weights[slot] : kept[slot];
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)shape, (void)values;
    memcpy(request->out, butler_view_record(view, request->first), (size_t)request->n * sizeof *request->out);
}

const struct butler_metric butler_metric_verified = {
    .name = "verified",
    .summary = "attention received from the latest exact check",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .guided = true,
    .params = params,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .score = score,
};
