/* Recency (StreamingLLM): the newer a token, the higher its score. Exact up to position 2^24. */
#include "engine/metric.h"

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)shape, (void)values;
    const int32_t *positions = view->positions ? view->positions + request->first : NULL;
    for (int i = 0; i < request->n; i++)
        request->out[i] = (float)(positions ? positions[i] : request->first + i);
}

const struct butler_metric butler_metric_recency = {
    .name = "recency",
    .summary = "the token's position",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .by_position = true,
    .weighing = BUTLER_WEIGH_NOTHING,
    .score = score,
};
