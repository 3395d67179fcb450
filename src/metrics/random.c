/* Random scores in [0, 1): the lower bound of quality. A hash of seed, layer, query head, position of the newest token, and
 * position of the scored token. So runs can be repeated, and moving a token to another slot changes nothing. */
#include "engine/metric.h"

static uint64_t hash(uint64_t state, int x)
{
    state ^= (uint64_t)x;
    return butler_random(&state);
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)values;
    for (int i = 0; i < request->n_q; i++) {
        uint64_t state = hash(shape->seed, butler_view_layer(view));
        state = hash(state, butler_view_kv_head(view) * shape->group + i);
        state = hash(state, butler_view_query_position(view));
        for (int j = 0; j < request->n; j++)
            request->out[(size_t)i * request->stride + j] =
                (float)(hash(state, butler_view_position(view, request->first + j)) >> 40) / 16777216.0f;
    }
}

const struct butler_metric butler_metric_random = {
    .name = "random",
    .summary = "a random number",
    .scale = BUTLER_SCORE_WEIGHT,
    .weighing = BUTLER_WEIGH_NOTHING,
    .score = score,
};
