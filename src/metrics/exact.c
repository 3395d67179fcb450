/* Exact attention (oracle): q.k with the cached keys. The other metrics approximate it. It saves nothing. */
#include "engine/metric.h"

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)shape, (void)values;
    butler_view_dot_keys(view, request->q, request->n_q, request->first, request->n, request->out, request->stride);
}

const struct butler_metric butler_metric_exact = {
    .name = "exact",
    .summary = "q.k itself",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .score = score,
};
