/* Attention of earlier layers (TokenButler, arXiv 2503.07518, Fig. 9): exact q.k of the same head in layer 0, or in the layer
 * before. These metrics measure whether another layer's scores suffice. They save nothing, because they read that layer's
 * keys. */
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
