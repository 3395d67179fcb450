/* Attention of earlier layers (TokenButler, arXiv 2503.07518, Fig. 9): exact q.k of the same head in layer 0, or in the layer
 * before. These metrics measure whether another layer's scores suffice. They save nothing, because they read that layer's
 * keys. */
#include "engine/metric.h"

static void score_first(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const struct butler_score_request *request)
{
    (void)shape, (void)values;
    butler_view_dot_layer(view, 0, request->n_q, request->first, request->n, request->out, request->stride);
}

static void score_previous(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           const struct butler_score_request *request)
{
    (void)shape, (void)values;
    butler_view_dot_layer(view, butler_view_layer(view) - 1, request->n_q, request->first, request->n, request->out,
                          request->stride);
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
