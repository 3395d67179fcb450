/* Exact attention of one query of every head, for who looks at what a policy reads: audits, the map of the cache, the evaluation. A
 * task is a KV head. */
#include <math.h>
#include <string.h>

#include "cpu/attend.h"

struct exact_job {
    struct butler_layer_state state; /* without the cap, which scores do not have yet */
    float softcap;
    const float *q;
    const struct butler_exact *exact;
};

/* Rows of q . k of a KV head's query heads, keys in the order of the text. */
static void compare_keys(const struct exact_job *job, int kv_head, int thread, float *rows)
{
    enum { AT_ONCE = 128 };
    const struct butler_kv *kv = job->state.kv;
    const struct butler_kv_head *head = butler_kv_at(kv, job->state.layer, kv_head);
    const int group = job->state.n_heads / kv->n_kv_heads, dim = kv->head_dim, first = head->n_slots - job->exact->n;
    const float *q = job->q + (size_t)(kv_head * group) * (size_t)dim;
    const void *keys[AT_ONCE];
    for (int done = 0, m; done < job->exact->n; done += m) {
        m = BUTLER_MIN(job->exact->n - done, AT_ONCE);
        butler_attend_keys(kv, head, head->order, first + done, m, keys);
        if (!kv->rope_cos && !kv->hadamard) {
            kv->kernels->qk[kv->type](rows + done, job->exact->stride, q, (size_t)dim, group, keys, m, dim);
            continue;
        }
        float rotated[BUTLER_MAX_HEAD_DIM];
        const size_t at = (size_t)(head->n_slots - 1) * (size_t)kv->n_rot / 2; /* the newest token's place */
        for (int i = 0; i < group; i++) {
            const void *own[AT_ONCE];
            memcpy(own, keys, (size_t)m * sizeof *own);
            memcpy(rotated, q + (size_t)i * (size_t)dim, (size_t)dim * sizeof *rotated);
            butler_kv_turn_queries(kv, rotated, 1);
            if (kv->rope_cos)
                butler_rotate(kv->kernels, kv->rope, rotated, kv->rope_cos + at, kv->rope_sin + at, kv->n_rot);
            butler_attend_scores(&job->state, thread,
                                 (struct butler_results){rows + (size_t)i * job->exact->stride + done, job->exact->stride},
                                 (struct butler_vectors){rotated, (size_t)dim, 1}, own, first + done, m);
        }
    }
}

/* scores[n] become attention weights; returns that of the learned sink. scores may be weights. */
static float weigh(const struct exact_job *job, int head, const float *scores, float *weights)
{
    const struct butler_kernels *kernels = job->state.kv->kernels;
    const float *sinks = job->state.sinks, cap = job->softcap, scale = 1 / sqrtf((float)job->state.kv->head_dim);
    const int n = job->exact->n;
    memmove(weights, scores, (size_t)n * sizeof *weights);
    kernels->scale(weights, scale, n);
    for (int i = 0; i < n && cap > 0; i++)
        weights[i] = cap * tanhf(weights[i] / cap);
    const float most = kernels->max(weights, n), max = sinks ? fmaxf(most, sinks[head]) : most;
    const double sum = (double)kernels->exp_sum(weights, max, n), sink = sinks ? exp((double)(sinks[head] - max)) : 0;
    kernels->scale(weights, (float)(1 / (sum + sink)), n);
    return (float)(sink / (sum + sink));
}

static void exact_task(void *context, int kv_head, int thread)
{
    const struct exact_job *job = context;
    const struct butler_exact *exact = job->exact;
    const struct butler_kv_head *head = butler_kv_at(job->state.kv, job->state.layer, kv_head);
    const int group = job->state.n_heads / job->state.kv->n_kv_heads, first = head->n_slots - exact->n;
    const size_t row = (size_t)(kv_head * group) * exact->stride;
    float *rows = exact->scores ? exact->scores : exact->weights;
    if (rows)
        compare_keys(job, kv_head, thread, rows + row);
    for (int h = 0; h < group && exact->weights; h++) {
        const size_t at = row + (size_t)h * exact->stride;
        const float sink = weigh(job, kv_head * group + h, rows + at, exact->weights + at);
        if (exact->sinks)
            exact->sinks[kv_head * group + h] = sink;
    }
    for (int i = 0; i < exact->n && exact->positions; i++)
        exact->positions[(size_t)kv_head * exact->stride + (size_t)i] =
            butler_kv_position(head, head->order ? head->order[first + i] : (uint32_t)(first + i));
}

void butler_exact_weights(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                          const struct butler_exact *exact)
{
    struct exact_job job = {*state, state->softcap, q, exact};
    job.state.softcap = 0;
    butler_pool_run(backend->pool, exact_task, &job, state->kv->n_kv_heads);
}
