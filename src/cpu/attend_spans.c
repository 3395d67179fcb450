/* Attention of one layer for several sessions in one run of the pool: a task is a KV head of a decode step, or a tile of a prompt's
 * block. A thread has a workspace of its own for these. One session alone is cut finer, so that all threads have work. What a
 * session computes is the same either way: slices of a list are put together in order, whoever computed them. */
#include "cpu/attend.h"
#include "cpu/methods.h"

/* How many of the newest slots a dense decode step reads. */
static int newest_of(const struct butler_attend_span *span, int kv_head)
{
    return BUTLER_MIN(butler_kv_at(span->state.kv, span->state.layer, kv_head)->n_slots, span->window);
}

struct spans_job {
    struct butler_backend *backend;
    const struct butler_attend_span *spans;
    int n_spans;
};

/* The keys of a prompt's block must all be there before its tiles run. */
static void append_task(void *context, int task, int thread)
{
    const struct spans_job *job = context;
    const struct butler_attend_span *span = &job->spans[task % job->n_spans];
    (void)thread;
    if (!span->decode)
        butler_attend_append_head(&span->state, task / job->n_spans, span->k, span->v, span->n);
}

static void decode_head(const struct butler_attend_span *span, const struct butler_layer_state *state, int kv_head)
{
    const bool observe = span->observe_from != INT32_MAX;
    const bool layer = span->retrieves && state->plan->share == BUTLER_SHARE_LAYER;
    double clock = butler_seconds();
    if (span->exact) {
        butler_attend_append_head(state, kv_head, span->k, span->v, span->n);
        butler_attend_exact_head(span, state, kv_head);
        butler_count_ns(&state->traffic->attend_ns, &clock);
        return;
    }
    for (int h = layer ? 0 : kv_head; h < (layer ? state->kv->n_kv_heads : kv_head + 1); h++)
        butler_attend_append_head(state, h, span->k, span->v, 1);
    if (span->retrieves) {
        butler_retrieve_head(span, state, kv_head, 0);
        return;
    }
    butler_attend_head(state, 0, kv_head, span->q, NULL, newest_of(span, kv_head), span->out, observe);
    butler_count_ns(&state->traffic->attend_ns, &clock);
}

/* Of span i, whose prompt is read. state: the span's, in the engine's workspace or in one of a thread. */
static int begin_block(const struct spans_job *job, int i, const struct butler_layer_state *state,
                       struct butler_attend_block_job *block)
{
    const struct butler_attend_span *span = &job->spans[i];
    *block = (struct butler_attend_block_job){.state = state,
                                              .q = span->q,
                                              .out = span->out,
                                              .n = span->n,
                                              .window = span->window,
                                              .observe_from = span->observe_from,
                                              .turns = span->state.work->turns + i * span->state.kv->n_kv_heads};
    return butler_attend_block_begin(block, butler_pool_size(job->backend->pool));
}

static void span_task(void *context, int task, int thread)
{
    const struct spans_job *job = context;
    const struct butler_attend_span *span = &job->spans[task % job->n_spans];
    struct butler_layer_state state = span->state;
    const int part = task / job->n_spans;
    state.work = &job->backend->batch[thread];
    if (span->decode) {
        const bool layer = span->retrieves && state.plan->share == BUTLER_SHARE_LAYER;
        if (part < (layer ? 1 : state.kv->n_kv_heads))
            decode_head(span, &state, part);
        return;
    }
    struct butler_attend_block_job block;
    double clock = butler_seconds();
    if (part < begin_block(job, task % job->n_spans, &state, &block))
        butler_attend_block_task(&block, part, 0);
    butler_count_ns(&state.traffic->attend_ns, &clock);
}

void butler_attend_spans(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans)
{
    struct spans_job job = {backend, spans, n_spans};
    const int n_kv_heads = spans[0].state.kv->n_kv_heads;
    int n_tasks = n_kv_heads;
    bool prompts = false;
    for (int i = 0; i < n_spans; i++) {
        struct butler_attend_block_job block;
        if (spans[i].decode)
            continue;
        prompts = true;
        n_tasks = BUTLER_MAX(n_tasks, begin_block(&job, i, &spans[i].state, &block));
        butler_attend_block_start(&block);
    }
    if (prompts)
        butler_pool_run(backend->pool, append_task, &job, n_spans * n_kv_heads);
    butler_pool_run(backend->pool, span_task, &job, n_spans * n_tasks);
}
