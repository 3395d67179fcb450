/* Attention of an exact span: a few tokens of one text that are checked together. Each gets the bits that a decode step over the
 * whole cache would give it, because keys are cut into the same slices and a query's sums do not depend on the other queries of a
 * call. Slices that all tokens see whole are read from memory once: their queries go through them batch by batch, while the slice
 * is in the core's cache. What lies behind, at most a slice and the tokens of the span, is attended to token by token. */
#include <math.h>
#include <string.h>

#include "cpu/attend.h"

enum { BATCH = 8 }; /* queries of a call: kernels have loops of their own for so many */

struct exact_job {
    const struct butler_attend_span *span;
    const struct butler_layer_state *state;
    int group;
    int n_shared; /* slices that all tokens see whole */
    int observed; /* the metric sees the weights of tokens from here on: of the last, or (the number of tokens) of none */
};

/* The first slot that a token sees: it sees all from there to its own. */
static int first_slot(const struct exact_job *job, int row)
{
    return BUTLER_MAX(job->state->position + row + 1 - job->span->window, 0);
}

static int n_slots_of(const struct exact_job *job, int row)
{
    return job->state->position + row + 1 - first_slot(job, row);
}

static struct exact_job job_of(const struct butler_attend_span *span, const struct butler_layer_state *state)
{
    struct exact_job job = {.span = span, .state = state, .group = state->n_heads / state->kv->n_kv_heads};
    job.n_shared = first_slot(&job, span->n - 1) == 0 ? n_slots_of(&job, 0) / BUTLER_SLICE : 0;
    job.observed = span->observe_from != INT32_MAX ? span->n - 1 : span->n;
    return job;
}

/* Queries [first, end) of a KV head, counted token by token, over the rows of a slice. */
static void attend_batches(const struct exact_job *job, int thread, int kv_head, int slice, const struct butler_pairs *pairs,
                           int rank, int first, int end)
{
    const struct butler_layer_state *state = job->state;
    const struct butler_workspace *work = state->work;
    const size_t dim = (size_t)state->kv->head_dim, stride = work->score_stride, rows = (size_t)thread * (size_t)work->tile_rows;
    float *scaled = work->tile_q + rows * dim, *out = work->tile_out + rows * dim, *s = work->tile + rows * stride;
    for (int m; first < end; first += m) {
        float top[BATCH], sum[BATCH];
        m = BUTLER_MIN(end - first, BATCH);
        const int n_unseen = BUTLER_MIN(BUTLER_MAX(job->observed * job->group - first, 0), m);
        for (int i = 0; i < m; i++) {
            const int row = (first + i) / job->group, head = kv_head * job->group + (first + i) % job->group;
            memcpy(scaled + (size_t)i * dim, job->span->q + (size_t)(row * state->n_heads + head) * dim, dim * sizeof *scaled);
        }
        state->kv->kernels->scale(scaled, 1.0f / sqrtf((float)dim), m * (int)dim);
        butler_kv_turn_queries(state->kv, scaled, m);
        butler_attend_queries(state, thread, (struct butler_attended){{out, dim}, top, sum, {s, stride}},
                              (struct butler_vectors){scaled, dim, m}, pairs, rank, n_unseen);
        for (int i = 0; i < m; i++) {
            const int row = (first + i) / job->group, head = kv_head * job->group + (first + i) % job->group;
            butler_attend_keep(state, row, head, slice, top[i], sum[i], out + (size_t)i * dim);
            if (i >= n_unseen)
                memcpy(work->scores + (size_t)head * stride + slice * BUTLER_SLICE, s + (size_t)i * stride,
                       (size_t)pairs->n * sizeof *s);
        }
    }
}

/* Tokens [row, end) over a slice of n rows from slot `first` on. */
static void attend_rows(const struct exact_job *job, int thread, int kv_head, int slice, int first, int n, int row, int end)
{
    const struct butler_layer_state *state = job->state;
    const void *keys[BUTLER_SLICE];
    const struct butler_pairs pairs = {keys, state->kv->row_bytes, n, 0};
    butler_attend_keys(state->kv, butler_kv_at(state->kv, state->layer, kv_head), NULL, first, n, keys);
    attend_batches(job, thread, kv_head, slice, &pairs, first, row * job->group, end * job->group);
}

/* A shared slice for all tokens, or one token's rest. */
static void exact_task(const struct exact_job *job, int thread, int kv_head, int part)
{
    const int row = part - job->n_shared;
    if (row < 0) {
        attend_rows(job, thread, kv_head, part, part * BUTLER_SLICE, BUTLER_SLICE, 0, job->span->n);
        return;
    }
    const int first = first_slot(job, row), n = n_slots_of(job, row);
    for (int slice = job->n_shared; slice * BUTLER_SLICE < n; slice++)
        attend_rows(job, thread, kv_head, slice, first + slice * BUTLER_SLICE, BUTLER_MIN(n - slice * BUTLER_SLICE, BUTLER_SLICE),
                    row, row + 1);
}

static void combine_head(const struct exact_job *job, int kv_head)
{
    const struct butler_layer_state *state = job->state;
    const struct butler_workspace *work = state->work;
    const int last = job->span->n - 1, n_read = state->position + last + 1 - first_slot(job, 0);
    for (int row = 0; row <= last; row++)
        for (int head = kv_head * job->group; head < (kv_head + 1) * job->group; head++)
            butler_attend_combine(state, row, head, n_slots_of(job, row),
                                  job->span->out + (size_t)(row * state->n_heads + head) * (size_t)state->kv->head_dim,
                                  row == job->observed);
    if (job->observed == last)
        butler_attend_observe(state, kv_head, state->position + job->observed,
                              work->scores + (size_t)(kv_head * job->group) * work->score_stride, work->score_stride,
                              n_slots_of(job, job->observed));
    __atomic_fetch_add(&state->traffic->kv_bytes, 2 * state->kv->row_bytes * (uint64_t)n_read, __ATOMIC_RELAXED);
}

void butler_attend_exact_head(const struct butler_attend_span *span, const struct butler_layer_state *state, int kv_head)
{
    const struct exact_job job = job_of(span, state);
    for (int part = 0; part < job.n_shared + span->n; part++)
        exact_task(&job, 0, kv_head, part);
    combine_head(&job, kv_head);
}

static void slice_task(void *context, int task, int thread)
{
    const struct exact_job *job = context;
    const int n_parts = job->n_shared + job->span->n;
    exact_task(job, thread, task / n_parts, task % n_parts);
}

static void combine_task(void *context, int kv_head, int thread)
{
    (void)thread;
    combine_head(context, kv_head);
}

void butler_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct exact_job job = job_of(span, &span->state);
    butler_attend_append(backend, &span->state, span->k, span->v, span->n);
    butler_pool_run(backend->pool, slice_task, &job, span->state.kv->n_kv_heads * (job.n_shared + span->n));
    butler_pool_run(backend->pool, combine_task, &job, span->state.kv->n_kv_heads);
}
