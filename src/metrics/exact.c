/* Exact attention (oracle): q.k with the cached keys. The other metrics approximate it. It saves nothing. */
#include "engine/metric.h"

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values;
    butler_view_dot_keys(view, q, n_q, first, n, out, stride);
}

const struct butler_metric butler_metric_exact = {
    .name = "exact",
    .summary = "q.k itself",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .score = score,
};
