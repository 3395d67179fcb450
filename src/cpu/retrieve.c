/* Retrieve: all tokens stay, a step reads a subset. Scores -> lists of slots, one list per KV head (or query head, or
 * the same for the whole layer). */
#include <string.h>

#include "cpu/methods.h"

/* What is always kept and how much besides, in units (of so many slots) of a head with n slots. */
struct unit_limits {
    int n_units, budget, first, last;
};

static struct unit_limits unit_limits(const struct butler_layer_state *state, int unit, int n)
{
    const struct butler_limits limits = butler_policy_limits(state->policy, state->layer, state->kv->n_layers, n);
    struct unit_limits u = {.n_units = BUTLER_CEIL_DIV(n, unit)};
    u.budget = BUTLER_MAX(limits.budget / unit, 1);
    u.first = BUTLER_MIN(BUTLER_CEIL_DIV(limits.sinks, unit), u.n_units);
    u.last = u.n_units - BUTLER_MAX(n - BUTLER_MAX(limits.recent, 1), 0) / unit;
    if (limits.budget >= n) /* a budget that holds the text holds its unfinished page too */
        u.budget = u.n_units;
    return u;
}

static uint64_t *selected_of(const struct butler_layer_state *state, int list)
{
    const struct butler_selection *selection = state->selection;
    return selection->units + ((size_t)state->layer * (size_t)state->n_heads + (size_t)list) * selection->words;
}

/* Where units are put: tokens are slots already. */
static uint32_t *units_of(const struct butler_layer_state *state, int thread, uint32_t *slots)
{
    return state->policy->unit == 1 ? slots : butler_units_scratch(state, thread, 0);
}

/* units (units_of) -> slots of a head with n; counts how many were chosen, and how many of these were in the step before too. */
static int expand_units(const struct butler_layer_state *state, const uint32_t *units, int n_units, int n_reused, int n,
                        uint32_t *slots)
{
    const int unit = state->policy->unit;
    int n_slots = unit == 1 ? n_units : 0;
    for (int i = 0; i < n_units && unit > 1; i++)
        for (int slot = (int)units[i] * unit; slot < BUTLER_MIN(((int)units[i] + 1) * unit, n); slot++)
            slots[n_slots++] = (uint32_t)slot;
    __atomic_fetch_add(&state->traffic->units_selected, (uint64_t)n_units, __ATOMIC_RELAXED);
    __atomic_fetch_add(&state->traffic->units_reused, (uint64_t)n_reused, __ATOMIC_RELAXED);
    return n_slots;
}

/* Notes the chosen units as the list's; how many of them it had in the step before. By way of a byte a unit: how many of them a
 * word's worth has nobody can predict. */
static int note_units(const struct butler_layer_state *state, int thread, int list, const uint32_t *units, int n_units, int n)
{
    const int n_words = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n, state->policy->unit), 64);
    unsigned char few[64], *chosen = n_words > 1 ? (unsigned char *)butler_units_scratch(state, thread, 1) : few;
    memset(chosen, 0, (size_t)n_words * 64);
    for (int i = 0; i < n_units; i++)
        chosen[units[i]] = 1;
    return state->kv->kernels->note_bytes(selected_of(state, list), chosen, n_words);
}

/* The list of an earlier step, and the tokens that came since. */
static int repeat_list(const struct butler_layer_state *state, int thread, int list, int n, uint32_t *slots)
{
    const int unit_slots = state->policy->unit;
    const uint32_t n_units = (uint32_t)BUTLER_CEIL_DIV(n, unit_slots);
    const uint32_t fresh = (uint32_t)(state->selection->at[state->layer] / unit_slots);
    uint64_t *selected = selected_of(state, list);
    uint32_t *units = units_of(state, thread, slots);
    int n_kept = 0, n_new = 0;
    for (uint32_t unit = fresh; unit < n_units; unit++) {
        const uint64_t bit = (uint64_t)1 << unit % 64;
        n_new += !(selected[unit / 64] & bit);
        selected[unit / 64] |= bit;
    }
    for (uint32_t first = 0; first < n_units; first += 64)
        for (uint64_t bits = selected[first / 64]; bits; bits &= bits - 1) {
            const uint32_t unit = first + (uint32_t)__builtin_ctzll(bits);
            if (unit < n_units)
                units[n_kept++] = unit;
        }
    return expand_units(state, units, n_kept, n_kept - n_new, n, slots);
}

/* One list of query heads [head, head + n_heads), whose cache has n slots. rows: scores of their KV head's query heads. */
static int select_list(const struct butler_layer_state *state, float *rows, int thread, int list, int head, int n_heads, int n,
                       uint32_t *slots)
{
    const struct unit_limits u = unit_limits(state, state->policy->unit, n);
    const bool mass = state->policy->budget_kind == BUTLER_BUDGET_MASS;
    double beside = 0;
    uint32_t *units = units_of(state, thread, slots);
    float *values = butler_values_scratch(state, thread);
    const struct butler_kernels *kernels = state->kv->kernels;
    const float *scores = butler_reduce_scores(state, rows, head, n_heads, u.n_units, mass ? &beside : NULL);
    const int n_kept = mass ? butler_select_mass(kernels, scores, u.n_units, state->policy->budget, u.first, u.last, beside, values,
                                                 butler_units_scratch(state, thread, 1), units)
                            : butler_select_top(kernels, scores, u.n_units, u.budget, u.first, u.last, values, units);
    return expand_units(state, units, n_kept, note_units(state, thread, list, units, n_kept, n), n, slots);
}

/* The same in two stages (scan=): n_pages pages of one-bit keys by the bounds in rows, then tokens of these pages by their scores,
 * which take the place of the bounds. One list for a KV head. */
static int select_in_pages(const struct butler_layer_state *state, const float *q, float *rows, int thread, int kv_head,
                           int n_pages, int n, uint32_t *slots)
{
    const struct butler_kernels *kernels = state->kv->kernels;
    const int group = state->n_heads / state->kv->n_kv_heads, page = state->policy->metric->scan->page_slots;
    const struct unit_limits u = unit_limits(state, page, n), tokens = unit_limits(state, 1, n);
    uint32_t *pages = butler_units_scratch(state, thread, 0);
    float *values = butler_values_scratch(state, thread);
    const struct butler_metric_scan *scan = state->policy->metric->scan;
    const struct butler_head_view view = butler_kv_view(state->kv, state->layer, kv_head, state->position);
    const float *scores = butler_reduce_scores(state, rows, kv_head * group, group, u.n_units, NULL);
    n_pages = butler_select_top(kernels, scores, u.n_units, n_pages, u.first, u.last, values, pages);
    scan->score_pages(&view, q + (size_t)(kv_head * group) * (size_t)state->kv->head_dim, group, pages, n_pages, rows,
                      state->work->score_stride);
    __atomic_fetch_add(&state->traffic->metric_bytes, scan->bytes(state->kv->head_dim, 0, n_pages), __ATOMIC_RELAXED);
    const int n_scored = n_pages * page - (u.n_units * page - n); /* the last page is chosen and may not be full */
    scores = butler_reduce_scores(state, rows, kv_head * group, group, n_scored, NULL);
    const int n_kept = butler_select_top(kernels, scores, n_scored, tokens.budget, tokens.first, tokens.last, values, slots);
    for (int i = 0; i < n_kept; i++)
        slots[i] = pages[slots[i] / (uint32_t)page] * (uint32_t)page + slots[i] % (uint32_t)page;
    return expand_units(state, slots, n_kept, note_units(state, thread, kv_head, slots, n_kept, n), n, slots);
}

static int lists_of(const struct butler_layer_state *state)
{
    return state->policy->share == BUTLER_SHARE_QUERY ? state->n_heads : state->kv->n_kv_heads;
}

/* Where the lists of the layer `ahead` layers after one are put: where layers select together, in the session's memory, which holds
 * them until these layers run. */
static struct butler_lists lists_ahead(const struct butler_layer_state *state, int ahead)
{
    const struct butler_selection *selection = state->selection;
    const int n_lists = lists_of(state);
    return selection->slots
               ? (struct butler_lists){n_lists, selection->list_slots + ahead * n_lists, selection->list_n + ahead * n_lists}
               : (struct butler_lists){n_lists, state->work->list_slots, state->work->list_n};
}

static uint32_t *slots_of(const struct butler_layer_state *state, int ahead, int list)
{
    const struct butler_selection *selection = state->selection;
    return selection->slots ? selection->slots + (size_t)(ahead * lists_of(state) + list) * (size_t)state->kv->max_slots
                            : state->work->slots + (size_t)list * (size_t)state->work->max_slots;
}

struct select_job {
    const struct butler_layer_state *state;
    struct butler_lists *lists;
    const float *q, *k, *v;
    float *out;                   /* fused only */
    bool selects;                 /* else lists are those of a step before */
    uint64_t score_ns, select_ns; /* summed over threads */
};

/* One list of the layer `ahead` layers after the job's, which is `state`'s. */
static void make_list(const struct select_job *job, const struct butler_layer_state *state, int ahead, float *rows, int list,
                      int thread)
{
    const int n_lists = lists_of(state), kv_head = list * state->kv->n_kv_heads / n_lists;
    const int heads = state->policy->share == BUTLER_SHARE_LAYER ? state->n_heads : state->n_heads / n_lists;
    const struct butler_lists lists = lists_ahead(state, ahead);
    uint32_t *slots = slots_of(state, ahead, list);
    const int n = butler_kv_at(state->kv, state->layer, kv_head)->n_slots + (ahead > 0); /* with the token that will be there */
    const int n_pages = butler_scan_pages(state, n);
    if (!job->selects)
        lists.n[list] = repeat_list(state, thread, list, n, slots);
    else if (n_pages > 0)
        lists.n[list] = select_in_pages(state, job->q, rows, thread, list, n_pages, n, slots);
    else
        lists.n[list] = select_list(state, rows, thread, list, list * state->n_heads / n_lists, heads, n, slots);
    lists.slots[list] = slots;
}

/* One KV head's new key and value, scores and lists: threads meet once for all of it. A thread writes the scores of one KV head
 * after the other to the same rows: they are read again at once, and of a long text those of all heads would no longer be in its
 * cache by then. Tasks beyond the layer's KV heads are those of the next layers, by the tokens that they have. */
static void retrieve_task(void *context, int task, int thread)
{
    struct select_job *job = context;
    const int n_kv_heads = job->state->kv->n_kv_heads, kv_head = task % n_kv_heads, ahead = task / n_kv_heads;
    struct butler_layer_state state = *job->state;
    state.layer += ahead;
    const int n_lists = lists_of(&state) / n_kv_heads;
    float *rows = butler_score_rows(&state, thread);
    double clock = butler_seconds();
    if (ahead == 0)
        butler_attend_append_head(&state, kv_head, job->k, job->v, 1);
    const int n_scores = butler_n_scores(&state, kv_head);
    if (n_scores > 0) { /* before the first token a later layer has none */
        butler_attend_begin_score(&state, kv_head, job->q);
        butler_attend_score_units(&state, kv_head, job->q, 0, n_scores, rows);
    }
    butler_count_ns(&job->score_ns, &clock);
    for (int list = kv_head * n_lists; list < (kv_head + 1) * n_lists; list++)
        make_list(job, &state, ahead, rows, list, thread);
    butler_count_ns(&job->select_ns, &clock);
}

static void select_task(void *context, int list, int thread)
{
    const struct select_job *job = context;
    make_list(job, job->state, 0, butler_score_rows(job->state, list * job->state->kv->n_kv_heads / job->lists->n_lists), list,
              thread);
}

double butler_retrieve(struct butler_backend *backend, const struct butler_attend_span *span, struct butler_lists *lists)
{
    const struct butler_layer_state *state = &span->state;
    struct butler_selection *selection = state->selection;
    if (selection->ahead_position == state->position && selection->ahead_layer < state->layer &&
        state->layer < selection->ahead_end) {
        backend->append(backend, state, span->k, span->v, 1);
        *lists = lists_ahead(state, state->layer - selection->ahead_layer);
        return 1;
    }
    struct select_job job = {.state = state, .lists = lists, .q = span->q, .k = span->k, .v = span->v, .selects = span->selects};
    const bool layer = state->policy->share == BUTLER_SHARE_LAYER;
    *lists = lists_ahead(state, 0);
    if (job.selects && !layer && butler_pool_size(backend->pool) <= state->kv->n_kv_heads) {
        selection->ahead_layer = state->layer;
        selection->ahead_end = state->layer + span->n_together;
        selection->ahead_position = state->position;
        butler_pool_run(backend->pool, retrieve_task, &job, span->n_together * state->kv->n_kv_heads);
    } else { /* more threads than KV heads: the scores of a head are split */
        double clock = butler_seconds();
        backend->append(backend, state, span->k, span->v, 1);
        if (job.selects)
            backend->score(backend, state, span->q);
        butler_count_ns(&job.score_ns, &clock);
        if (layer)
            select_task(&job, 0, 0);
        else
            butler_pool_run(backend->pool, select_task, &job, lists->n_lists);
        butler_count_ns(&job.select_ns, &clock);
    }
    for (int i = 1; layer && i < lists->n_lists; i++) {
        lists->slots[i] = lists->slots[0];
        lists->n[i] = lists->n[0];
    }
    const uint64_t all = job.score_ns + job.select_ns;
    return all ? (double)job.score_ns / (double)all : 0;
}

/* ---------------------------------------------------------------------------------------------- by one thread */

void butler_retrieve_head(const struct butler_layer_state *state, int kv_head, const float *q, float *out, bool selects,
                          bool observe, int thread)
{
    const bool layer = state->policy->share == BUTLER_SHARE_LAYER;
    const int n_kv_heads = state->kv->n_kv_heads, first = layer ? 0 : kv_head, end = layer ? n_kv_heads : kv_head + 1;
    struct butler_lists lists = lists_ahead(state, 0);
    const struct select_job job = {.state = state, .lists = &lists, .q = q, .selects = selects};
    const int n_lists = lists.n_lists / n_kv_heads;
    double clock = butler_seconds();
    for (int h = first; h < end && selects; h++) {
        butler_attend_begin_score(state, h, q);
        butler_attend_score_units(state, h, q, 0, butler_n_scores(state, h), butler_score_rows(state, h));
    }
    butler_count_ns(&state->traffic->score_ns, &clock);
    for (int list = first * n_lists; list < (layer ? 1 : end * n_lists); list++)
        make_list(&job, state, 0, butler_score_rows(state, list * n_kv_heads / lists.n_lists), list, thread);
    for (int i = 1; layer && i < lists.n_lists; i++) {
        lists.slots[i] = lists.slots[0];
        lists.n[i] = lists.n[0];
    }
    butler_count_ns(&state->traffic->select_ns, &clock);
    for (int h = first; h < end; h++)
        butler_attend_head(state, thread, h, q, &lists, 0, out, observe);
    butler_count_ns(&state->traffic->attend_ns, &clock);
}

/* TinyServe, Algorithm 1: the pages of a KV head are scored, chosen, gathered and attended to by one thread, while what it needs is
 * still in that thread's cache. */
static void fused_task(void *context, int kv_head, int thread)
{
    const struct select_job *job = context;
    const struct butler_layer_state *state = job->state;
    const bool layer = state->policy->share == BUTLER_SHARE_LAYER;
    for (int h = kv_head; h < (layer ? state->kv->n_kv_heads : kv_head + 1); h++)
        butler_attend_append_head(state, h, job->k, job->v, 1);
    butler_retrieve_head(state, kv_head, job->q, job->out, job->selects, false, thread);
}

void butler_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    struct select_job job = {.state = state, .q = span->q, .k = span->k, .v = span->v, .out = span->out, .selects = span->selects};
    const bool layer = state->policy->share == BUTLER_SHARE_LAYER;
    butler_pool_run(backend->pool, fused_task, &job, layer ? 1 : state->kv->n_kv_heads);
}
