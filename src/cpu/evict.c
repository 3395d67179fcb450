/* Evict: what scores low leaves the cache for good, and its memory goes back. A head is cut before a new token comes, so
 * that it never holds more than its budget. */
#include <math.h>
#include <string.h>

#include "cpu/methods.h"

struct evict_job {
    const struct butler_layer_state *state;
    struct butler_cut cut;
    const float *layer_scores; /* one selection for all heads; NULL: each its own */
};

/* Full units of a head by position into order; returns their number. The unit being filled is not among them. */
static int units_by_position(const struct butler_kv_head *head, int unit, uint32_t *order)
{
    const int n_full = head->n_slots / unit;
    int n = 0;
    for (int i = 0; i < head->n_slots && n < n_full; i++)
        if (head->order[i] % (uint32_t)unit == 0 && (int)head->order[i] / unit < n_full)
            order[n++] = head->order[i] / (uint32_t)unit;
    return n;
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
    const struct butler_metric *metric = state->policy->metric;
    if (metric->move) {
        if (from != to)
            metric->move(state->shape, state->policy->values, &view, from, to, n);
        return;
    }
    n = BUTLER_MIN(n, head->n_slots - to);
    if (metric->append && from == to && n > 0)
        metric->append(state->shape, state->policy->values, &view, to, n);
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

/* Units that are no longer kept, ascending, into dropped; their number. scores: NULL where first and last are the budget.
 * marks[n_full] is scratch. */
static int drop_lowest(const struct butler_layer_state *state, int thread, const float *scores, const uint32_t *order, int n_full,
                       int budget, int first, int last, uint32_t *dropped, uint32_t *marks)
{
    uint32_t *kept = butler_units_scratch(state, thread, 1);
    float *ordered = butler_ordered_scratch(state, thread);
    int n_dropped = 0;
    if (n_full == budget + 1 && first + last <= budget) { /* a step in a full cache */
        dropped[0] = lowest(scores, order, first, n_full - last);
        return 1;
    }
    for (int i = 0; i < n_full && scores; i++)
        ordered[i] = scores[order[i]];
    const int n_kept =
        butler_select_top(state->kv->kernels, ordered, n_full, budget, first, last, butler_values_scratch(state, thread), kept);
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
    const struct butler_metric *metric = state->policy->metric;
    const int unit = state->policy->unit;
    if (!metric->leave || n == 0)
        return;
    for (int i = 0; i < n * unit; i++)
        slots[i] = units[i / unit] * (uint32_t)unit + (uint32_t)(i % unit);
    const struct butler_head_view view = butler_kv_view(state->kv, state->layer, kv_head, state->position);
    metric->leave(state->shape, state->policy->values, &view, slots, n * unit);
}

/* Cuts one head to n_keep slots: scores [n units] in slot order, or NULL. */
static void cut_head(const struct evict_job *job, int kv_head, const float *scores, int thread)
{
    const struct butler_layer_state *state = job->state;
    struct butler_kv_head *head = butler_kv_at(state->kv, state->layer, kv_head);
    const int unit = state->policy->unit, rest = head->n_slots % unit;
    uint32_t *units = butler_units_scratch(state, thread, 0), *dropped = butler_units_scratch(state, thread, 2);
    uint32_t *new_slot = butler_units_scratch(state, thread, 3);
    const uint32_t *order = unit == 1 ? head->order : units;
    const int n_full = unit == 1 ? head->n_slots : units_by_position(head, unit, units);
    const int first = BUTLER_MIN(BUTLER_CEIL_DIV(job->cut.sinks, unit), n_full);
    const int budget = BUTLER_MAX(job->cut.n_keep - rest, 0) / unit;
    const int recent =
        BUTLER_MAX(BUTLER_CEIL_DIV(BUTLER_MAX(job->cut.recent - rest, 0), unit), job->cut.newest ? budget - first : 0);
    const int last = BUTLER_MIN(recent, n_full - first);
    const int n_dropped = drop_lowest(state, thread, scores, order, n_full, budget, first, last, dropped, new_slot);
    forget(state, kv_head, dropped, n_dropped, butler_units_scratch(state, thread, 1));
    struct refresh refresh = {state, kv_head};
    butler_kv_drop(state->kv, head, unit, dropped, n_dropped, new_slot, refresh_records, &refresh);
}

/* Cuts a head by the scores in its rows. */
static void evict_head(const struct evict_job *job, int kv_head, int thread)
{
    const struct butler_layer_state *state = job->state;
    const int group = state->n_heads / state->kv->n_kv_heads, n = butler_kv_at(state->kv, state->layer, kv_head)->n_slots;
    const float *scores = job->layer_scores;
    if (n <= job->cut.n_keep)
        return;
    if (!scores && !job->cut.newest)
        scores = butler_reduce_scores(state, butler_score_rows(state, kv_head), kv_head * group, group,
                                      BUTLER_CEIL_DIV(n, state->policy->unit), NULL);
    cut_head(job, kv_head, scores, thread);
}

static void evict_task(void *context, int kv_head, int thread)
{
    evict_head(context, kv_head, thread);
}

/* Scores of all heads are in the workspace: those of a layer that shares a selection become one row. */
static void share_scores(struct evict_job *job)
{
    const struct butler_layer_state *state = job->state;
    const int n = butler_kv_at(state->kv, state->layer, 0)->n_slots; /* heads of a layer hold equally many */
    if (state->policy->share == BUTLER_SHARE_LAYER && !job->cut.newest)
        job->layer_scores = butler_reduce_scores(state, butler_score_rows(state, 0), 0, state->n_heads,
                                                 BUTLER_CEIL_DIV(n, state->policy->unit), NULL);
}

/* One session, all threads. */
static void evict_alone(struct butler_backend *backend, const struct butler_attend_span *span, const struct butler_cut *cut)
{
    const struct butler_layer_state *state = &span->state;
    struct evict_job job = {.state = state, .cut = *cut};
    double clock = butler_seconds();
    if (!cut->newest)
        backend->score(backend, state, span->q);
    butler_count_ns(&state->traffic->score_ns, &clock);
    share_scores(&job);
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
    struct butler_layer_state state = span->state;
    const bool layer = state.policy->share == BUTLER_SHARE_LAYER;
    const int kv_head = task / job->n_spans, n_kv_heads = state.kv->n_kv_heads;
    if (kv_head >= (layer ? 1 : n_kv_heads))
        return;
    state.work = &job->backend->batch[thread];
    struct evict_job own = {.state = &state, .cut = job->cuts[task % job->n_spans]};
    double clock = butler_seconds();
    for (int h = layer ? 0 : kv_head; h < (layer ? n_kv_heads : kv_head + 1) && !own.cut.newest; h++) {
        butler_attend_begin_score(&state, h, span->q);
        butler_attend_score_units(&state, h, span->q, 0, butler_n_scores(&state, h), butler_score_rows(&state, h));
    }
    butler_count_ns(&state.traffic->score_ns, &clock);
    if (layer)
        share_scores(&own);
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
    for (int i = 0; i < n_spans; i++)
        butler_kv_trim(spans[i].state.kv, spans[i].state.layer);
}
