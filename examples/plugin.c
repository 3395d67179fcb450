/* A metric in a shared object: the importance of a token is the length of its value vector. It does not depend on the query
 * and stores nothing. It reads the values in each step; a metric for speed would store a record per token instead.
 *
 *     cc -shared -fPIC plugin.c $(pkg-config --cflags butler) -lm -o value_norm.so
 *     butler run -m MODEL.gguf --plugin ./value_norm.so --kv value_norm:budget=256
 */
#include <math.h>

#include <butler_plugin.h>

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)values; /* query_free: one row of scores */
    float value[BUTLER_MAX_HEAD_DIM];
    for (int i = 0; i < request->n; i++) {
        float sum = 0;
        butler_view_value(view, request->first + i, value);
        for (int d = 0; d < shape->head_dim; d++)
            sum += value[d] * value[d];
        request->out[i] = sqrtf(sum);
    }
}

static const struct butler_metric value_norm = {
    .abi = BUTLER_METRIC_ABI,
    .name = "value_norm",
    .summary = "length of the value vector",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .score = score,
};

const struct butler_metric *butler_plugin_metric(void);
const struct butler_metric *butler_plugin_metric(void)
{
    return &value_norm;
}
