/* Accumulated attention (H2O, arXiv 2306.14048; VATP, arXiv 2406.12335, eq. 2): S_t(k) = sum over all queries j = k..t of
 * a_jk. power=2 gives the Euclidean norm sqrt(sum a_jk^2) (softprune): it favours one high weight over many low ones. A
 * record is one float per query head; evicting the token deletes it.
 *
 * half_life=N is our own: sum over j of a_jk 2^-((t - j) / N). It forgets like a window of Scissorhands, in a record as small as
 * H2O's, and a prompt shows it only the queries that are not forgotten at its end. */
#include <limits.h>
#include <math.h>

#include "engine/metric.h"
#include "kernels/kernels.h"

static const struct butler_param params[] = {
    {"power", 1, 1, 2, "1: sum of the attention received; 2: its Euclidean norm"},
    {"half_life", 0, 0, 1e6, "queries after which a weight counts half; 0: always whole"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {NULL}}, {0, {NULL}}};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)values;
    *n_slots = 1;
    *n_bytes = (size_t)shape->group * sizeof(float);
}

/* After 24 half-lives a weight is less than the last bit of a new one. */
static int attention_window(const double *values)
{
    return values[1] > 0 ? (int)ceil(24 * values[1]) : INT_MAX;
}

static float decay_of(const double *values)
{
    return values[1] > 0 ? (float)exp2(-1 / values[1]) : 1;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    (void)position;
    float *sums = butler_view_record(view, 0);
    const bool squares = values[0] == 2;
    const float decay = decay_of(values);
    for (int slot = 0; slot < n; slot++)
        for (int head = 0; head < shape->group; head++) {
            const float a = weights[(size_t)head * stride + slot];
            float *sum = &sums[(size_t)slot * shape->group + head];
            *sum = *sum * decay + (squares ? a * a : a);
        }
}

/* Sums are added to a chunk of slots at a time, each head's beside one another: a record has those of all heads. A slot's sum is
 * added to in the order of the queries, so it does not depend on how a prompt is cut into blocks. */
static void observe_block(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                          const struct butler_block_weights *block)
{
    const int group = shape->group, n_slots = block->n_seen + block->n_queries - 1;
    const float decay = decay_of(values);
    const struct butler_kernels *kernels = butler_view_kernels(view);
    float sums[256], squares[256];
    for (int first = 0; first < n_slots; first += block->keys)
        for (int head = 0; head < group; head++) {
            const int n_chunk = BUTLER_MIN(block->keys, n_slots - first);
            const float *factors = block->factors + (size_t)(first / block->keys) * block->factor_stride + head;
            float *records = (float *)butler_view_record(view, first) + head;
            for (int i = 0; i < n_chunk; i++)
                sums[i] = records[i * group];
            for (int t = BUTLER_MAX(first + 1 - block->n_seen, 0); t < block->n_queries; t++) {
                const int n = BUTLER_MIN(n_chunk, block->n_seen + t - first);
                const float factor = factors[t * group],
                            *weights = block->weights + (size_t)(t * group + head) * block->stride + first;
                if (decay != 1)
                    kernels->scale(sums, decay, n);
                for (int i = 0; i < n && values[0] == 2; i++)
                    squares[i] = weights[i] * weights[i];
                if (values[0] == 2)
                    kernels->axpy(sums, factor * factor, squares, n);
                else
                    kernels->axpy(sums, factor, weights, n);
            }
            for (int i = 0; i < n_chunk; i++)
                records[i * group] = sums[i];
        }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const float *sums = butler_view_record(view, request->first);
    bool squares = values[0] == 2;
    for (int head = 0; head < request->n_q; head++)
        for (int i = 0; i < request->n; i++) {
            float sum = sums[(size_t)i * shape->group + head];
            request->out[(size_t)head * request->stride + i] = squares ? sqrtf(sum) : sum;
        }
}

const struct butler_metric butler_metric_attention = {
    .name = "attention",
    .summary = "attention received from every query so far",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .forms = forms,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .observe_block = observe_block,
    .score = score,
};
