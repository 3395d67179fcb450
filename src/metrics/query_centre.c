/* Query centres (TriAttention, arXiv 2604.04921): what the queries to come are expected to give to a key. Before RoPE the queries
 * of a head lie around a centre, which a calibration text gives (model/centres.h). For every pair f of channels that RoPE rotates
 * together, as a complex number, c is the centre, a the mean of |q|, w the frequency, k the key before RoPE at position p. With D =
 * T - p + o, T the newest position,
 *
 *     score = sum_f |c||k| cos(w D + arg(c conj(k))) + sum_f (a - |c|) |k|, the mean over the offsets o = 1, 2, 4, ..., 65536.
 *
 * Cached keys are rotated, k' = k e^(i w p), and |k'| = |k|. So the first sum is Re(Q conj(k')) with Q = c e^(i w T) mean_o e^(i w
 * o): one dot product with a query that is made once per head and step, the state: float[group][head_dim]. Channels that are not
 * rotated are pairs with w = 0.
 *
 * The authors' program evicts every 128 tokens, and always keeps the prompt. Here the method `evict` decides that, as for all
 * policies: each step evicts, and `sinks` is what is always kept. */
#include <math.h>

#include "engine/metric.h"
#include "kernels/kernels.h"
#include "model/centres.h"

enum { AT_ONCE = 16 /* keys that are converted together */ };

static const struct butler_param params[] = {
    {"normalise", 1, 0, 1, "how heads are made comparable: softmax, or zscore: (score - mean) / standard deviation"},
    {NULL, 0, 0, 0, NULL},
};
static const struct butler_param_form forms[] = {{0, {"softmax", "zscore"}}};

static size_t head_bytes(const struct butler_metric_shape *shape, const double *values)
{
    (void)values;
    return (size_t)shape->group * (size_t)shape->head_dim * sizeof(float);
}

/* Place of a KV head's first query head in the arrays of centres. */
static size_t first_centre(const struct butler_metric_shape *shape, const struct butler_head_view *view)
{
    const int head = butler_view_kv_head(view) * shape->group;
    return (size_t)(butler_view_layer(view) * shape->n_heads + head) * (size_t)view->centres->n_pairs;
}

static void begin_score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const float *q, int n_q)
{
    const struct butler_centres *centres = view->centres;
    const int n_pairs = centres->n_pairs, position = butler_view_query_position(view);
    const struct butler_predictor_pair *pairs = centres->pairs + (size_t)(butler_view_layer(view) * n_pairs);
    const float *real = centres->real + first_centre(shape, view), *imag = centres->imag + first_centre(shape, view);
    float *query = butler_view_state(view);
    (void)values, (void)q, (void)n_q;
    for (int f = 0; f < n_pairs; f++) {
        const double angle = (double)pairs[f].freq * position, x = cos(angle), y = sin(angle);
        for (int h = 0; h < shape->group; h++) {
            const double a = (double)real[h * n_pairs + f], b = (double)imag[h * n_pairs + f];
            query[h * shape->head_dim + pairs[f].first] = (float)(a * x - b * y);
            query[h * shape->head_dim + pairs[f].second] = (float)(a * y + b * x);
        }
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const int n = request->n;
    const struct butler_centres *centres = view->centres;
    const struct butler_kernels *kernels = butler_view_kernels(view);
    const int n_pairs = centres->n_pairs, dim = shape->head_dim;
    const struct butler_predictor_pair *pairs = centres->pairs + (size_t)(butler_view_layer(view) * n_pairs);
    const float *spread = centres->spread + first_centre(shape, view), *query = butler_view_state(view);
    float keys[AT_ONCE * BUTLER_MAX_HEAD_DIM], lengths[BUTLER_MAX_HEAD_DIM / 2];
    (void)values;
    for (int done = 0; done < n; done += AT_ONCE) {
        const int m = BUTLER_MIN(n - done, AT_ONCE);
        butler_view_keys(view, request->first + done, m, keys);
        for (int i = 0; i < m; i++) {
            const float *key = keys + i * dim;
            for (int f = 0; f < n_pairs; f++) {
                const float a = key[pairs[f].first], b = key[pairs[f].second];
                lengths[f] = sqrtf(a * a + b * b);
            }
            for (int h = 0; h < request->n_q; h++)
                request->out[(size_t)h * request->stride + (size_t)(done + i)] =
                    kernels->dot(query + h * dim, key, dim) + kernels->dot(spread + h * n_pairs, lengths, n_pairs);
        }
    }
}

const struct butler_metric butler_metric_query_centre = {
    .name = "query_centre",
    .summary = "what queries around their calibrated centre are expected to give to the key",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .centres = true,
    .params = params,
    .forms = forms,
    .weighing = BUTLER_WEIGH_NOTHING,
    .head_bytes = head_bytes,
    .begin_score = begin_score,
    .score = score,
};
