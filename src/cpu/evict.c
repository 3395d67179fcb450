/* What scores low leaves the cache for good: the operations select_leaving and compact, and both at once. */
#include <math.h>
#include <string.h>

#include "cpu/methods.h"

/* Full units of a head by position into order. The unit being filled is not among them. */
static void units_by_position(const struct butler_kv_head *head, int unit, uint32_t *order)
{
    const int n_full = head->n_slots / unit;
    int n = 0;
    for (int i = 0; i < head->n_slots && n < n_full; i++)
        if (head->order[i] % (uint32_t)unit == 0 && (int)head->order[i] / unit < n_full)
            order[n++] = head->order[i] / (uint32_t)unit;
}

struct refresh {
    const struct butler_layer_state *state;
    int kv_head;
};

/* What records that cover several slots hold follows the slots, or is made anew from the keys they cover now. */
static void refresh_records(void *user, int from, int to, int n)
{
    const struct refresh *refresh = user;
    const struct butler_layer_state *state = refresh->state;
    const struct butler_kv_head *head = butler_kv_at(state->kv, state->layer, refresh->kv_head);
    uint64_t bytes = 0;
    struct butler_head_view view = butler_kv_view(state->kv, state->layer, refresh->kv_head, state->position);
    view.bytes = &bytes;
    const struct butler_metric *metric = state->plan->metric;
    if (metric->move) {
        if (from != to)
            metric->move(state->shape, state->plan->values, &view, from, to, n);
        return;
    }
    n = BUTLER_MIN(n, head->n_slots - to);
    if (metric->append && from == to && n > 0)
        metric->append(state->shape, state->plan->values, &view, to, n);
    __atomic_fetch_add(&state->traffic->metric_bytes, bytes, __ATOMIC_RELAXED);
}

/* Of units order[first .. end) the one with the lowest score, a NaN before all others; of equals the last, for butler_select_top
 * keeps the first. Of one, that one: it may have no score. */
static uint32_t lowest(const float *scores, const uint32_t *order, int first, int end)
{
    float least = INFINITY;
    int at = first, nan = -1;
    if (end - first == 1)
        return order[first];
    for (int i = first; i < end; i++) {
        const float score = scores[order[i]];
        if (score != score)
            nan = i;
        else if (score <= least) {
            least = score;
            at = i;
        }
    }
    return order[nan >= 0 ? nan : at];
}

/* Full units of a head that do not stay, ascending, into dropped; their number. scores: in slot order; NULL where first and last
 * are the budget. */
static int drop_lowest(const struct butler_layer_state *state, int thread, int kv_head, const struct butler_choice *c,
                       const float *scores, uint32_t *dropped)
{
    const struct butler_kv_head *head = butler_kv_at(state->kv, state->layer, kv_head);
    const int unit = state->plan->unit, n_full = c->n_units;
    uint32_t *units = butler_units_scratch(state, thread, 0), *kept = butler_units_scratch(state, thread, 1);
    uint32_t *marks = butler_units_scratch(state, thread, 3);
    const uint32_t *order = unit == 1 ? head->order : units;
    float *ordered = butler_ordered_scratch(state, thread);
    int n_dropped = 0;
    if (unit > 1)
        units_by_position(head, unit, units);
    if (n_full == c->budget + 1 && c->first + c->last <= c->budget) { /* a step in a full cache */
        dropped[0] = lowest(scores, order, c->first, n_full - c->last);
        return 1;
    }
    for (int i = 0; i < n_full && scores; i++)
        ordered[i] = scores[order[i]];
    const int n_kept = butler_select_top(state->kv->kernels, ordered, n_full, c->budget, c->first, c->last,
                                         butler_values_scratch(state, thread), kept);
    memset(marks, 0, (size_t)n_full * sizeof *marks);
    for (int i = 0; i < n_kept; i++)
        marks[order[kept[i]]] = 1;
    for (int u = 0; u < n_full; u++)
        if (!marks[u])
            dropped[n_dropped++] = (uint32_t)u;
    return n_dropped;
}

/* Tells the metric which tokens leave. slots: scratch[n_slots]. */
static void forget(const struct butler_layer_state *state, int kv_head, const uint32_t *units, int n, uint32_t *slots)
{
    const struct butler_metric *metric = state->plan->metric;
    const int unit = state->plan->unit;
    if (!metric->leave || n == 0)
        return;
    for (int i = 0; i < n * unit; i++)
        slots[i] = units[i / unit] * (uint32_t)unit + (uint32_t)(i % unit);
    const struct butler_head_view view = butler_kv_view(state->kv, state->layer, kv_head, state->position);
    metric->leave(state->shape, state->plan->values, &view, slots, n * unit);
}

/* Takes units [n] out of a head. */
static void compact_head(const struct butler_layer_state *state, int thread, int kv_head, const uint32_t *units, int n)
{
    struct refresh refresh = {state, kv_head};
    forget(state, kv_head, units, n, butler_units_scratch(state, thread, 1));
    butler_kv_drop(state->kv, butler_kv_at(state->kv, state->layer, kv_head), state->plan->unit, units, n,
                   butler_units_scratch(state, thread, 3), refresh_records, &refresh);
}

struct evict_job {
    const struct butler_layer_state *state;
    const struct butler_cut *cut;
    const struct butler_lists *lists; /* of the operations by themselves */
    const float *layer_scores;        /* one selection for all heads; NULL: each its own */
};

/* Scores of all heads are in the workspace: those of a layer that shares a selection become one row. */
static struct evict_job job_of(const struct butler_layer_state *state, const struct butler_cut *cut)
{
    struct evict_job job = {.state = state, .cut = cut};
    const int n_slots = butler_kv_at(state->kv, state->layer, 0)->n_slots; /* heads of a layer hold equally many */
    if (state->plan->share == BUTLER_SHARE_LAYER && !cut->newest)
        job.layer_scores = butler_reduce_scores(state, butler_score_rows(state, 0), 0, state->n_heads,
                                                BUTLER_CEIL_DIV(n_slots, state->plan->unit), NULL);
    return job;
}

/* By the scores in the head's rows, or the layer's. */
static int select_head(const struct evict_job *job, int thread, int kv_head, uint32_t *dropped)
{
    const struct butler_layer_state *state = job->state;
    const int group = state->n_heads / state->kv->n_kv_heads, n = butler_kv_at(state->kv, state->layer, kv_head)->n_slots;
    const float *scores = job->layer_scores;
    if (!scores && !job->cut->newest)
        scores = butler_reduce_scores(state, butler_score_rows(state, kv_head), kv_head * group, group,
                                      BUTLER_CEIL_DIV(n, state->plan->unit), NULL);
    return drop_lowest(state, thread, kv_head, &job->cut->choice, scores, dropped);
}

/* ----------------------------------------------------------------------------------------- operations by themselves */

static void select_task(void *context, int kv_head, int thread)
{
    const struct evict_job *job = context;
    const struct butler_lists *lists = job->lists;
    lists->slots[kv_head] = lists->memory + (size_t)kv_head * lists->stride;
    lists->n[kv_head] = select_head(job, thread, kv_head, lists->slots[kv_head]);
}

void butler_select_leaving(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_cut *cut,
                           const struct butler_lists *lists)
{
    struct evict_job job = job_of(state, cut);
    job.lists = lists;
    butler_pool_run(backend->pool, select_task, &job, state->kv->n_kv_heads);
}

static void compact_task(void *context, int kv_head, int thread)
{
    const struct evict_job *job = context;
    compact_head(job->state, thread, kv_head, job->lists->slots[kv_head], job->lists->n[kv_head]);
}

void butler_compact(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_lists *lists)
{
    struct evict_job job = {.state = state, .lists = lists};
    butler_pool_run(backend->pool, compact_task, &job, state->kv->n_kv_heads);
}

/* --------------------------------------------------------------------------------------------- both at once */

static void evict_head(const struct evict_job *job, int kv_head, int thread)
{
    uint32_t *dropped = butler_units_scratch(job->state, thread, 2);
    const int n_dropped = select_head(job, thread, kv_head, dropped);
    compact_head(job->state, thread, kv_head, dropped, n_dropped);
}

static void evict_task(void *context, int kv_head, int thread)
{
    evict_head(context, kv_head, thread);
}

/* One session, all threads. */
static void evict_alone(struct butler_backend *backend, const struct butler_attend_span *span, const struct butler_cut *cut)
{
    const struct butler_layer_state *state = &span->state;
    double clock = butler_seconds();
    if (!cut->newest)
        butler_attend_score(backend, state, span->q, false);
    butler_count_ns(&state->traffic->score_ns, &clock);
    struct evict_job job = job_of(state, cut);
    butler_pool_run(backend->pool, evict_task, &job, state->kv->n_kv_heads);
    butler_count_ns(&state->traffic->select_ns, &clock);
}

struct spans_job {
    struct butler_backend *backend;
    const struct butler_attend_span *spans;
    const struct butler_cut *cuts;
    int n_spans;
};

/* One KV head of one session by one thread; all of them where the layer shares a selection. */
static void span_task(void *context, int task, int thread)
{
    const struct spans_job *job = context;
    const struct butler_attend_span *span = &job->spans[task % job->n_spans];
    const struct butler_cut *cut = &job->cuts[task % job->n_spans];
    struct butler_layer_state state = span->state;
    const bool layer = state.plan->share == BUTLER_SHARE_LAYER;
    const int kv_head = task / job->n_spans, n_kv_heads = state.kv->n_kv_heads;
    if (kv_head >= (layer ? 1 : n_kv_heads))
        return;
    state.work = &job->backend->batch[thread];
    struct evict_job own = {.state = &state, .cut = cut};
    double clock = butler_seconds();
    for (int h = layer ? 0 : kv_head; h < (layer ? n_kv_heads : kv_head + 1) && !cut->newest; h++)
        butler_attend_score_head(&state, h, span->q, false, butler_score_rows(&state, h));
    butler_count_ns(&state.traffic->score_ns, &clock);
    if (layer)
        own = job_of(&state, cut);
    for (int h = layer ? 0 : kv_head; h < (layer ? n_kv_heads : kv_head + 1); h++)
        evict_head(&own, h, 0);
    butler_count_ns(&state.traffic->select_ns, &clock);
}

void butler_evict_spans(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                        int n_spans)
{
    struct spans_job job = {backend, spans, cuts, n_spans};
    if (n_spans == 1)
        evict_alone(backend, spans, cuts);
    else
        butler_pool_run(backend->pool, span_task, &job, n_spans * spans[0].state.kv->n_kv_heads);
}
