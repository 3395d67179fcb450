/* What earlier layers looked at (tokenbutler.txt, Fig. 9): are the scores of another layer's heads good enough? Exact q.k of
 * the same head of layer 0, or of the layer before. Measurements, not savings: they read that layer's keys. */
#include "engine/metric.h"

static void score_first(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values, (void)q;
    butler_view_dot_layer(view, 0, n_q, first, n, out, stride);
}

static void score_previous(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values, (void)q;
    butler_view_dot_layer(view, butler_view_layer(view) - 1, n_q, first, n, out, stride);
}

const struct butler_metric butler_metric_first_layer = {
    .name = "first_layer",
    .summary = "q.k of the same head of the first layer",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .score = score_first,
    .earlier_layers = true,
};

const struct butler_metric butler_metric_previous_layer = {
    .name = "previous_layer",
    .summary = "q.k of the same head of the layer before",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .score = score_previous,
    .earlier_layers = true,
};
