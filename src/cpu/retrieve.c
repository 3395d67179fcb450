/* Scores -> lists of slots, one list per KV head (or query head, or the same for the whole layer): the operations select and
 * repeat, and the same inside tasks that do more. */
#include <string.h>

#include "cpu/methods.h"

static uint64_t *selected_of(const struct butler_layer_state *state, int list)
{
    const struct butler_selection *selection = state->selection;
    return selection->units + ((size_t)state->layer * (size_t)state->n_heads + (size_t)list) * selection->words;
}

/* Where units are put: tokens are slots already. */
static uint32_t *units_of(const struct butler_layer_state *state, int thread, uint32_t *slots)
{
    return state->plan->unit == 1 ? slots : butler_units_scratch(state, thread, 0);
}

/* units (units_of) -> slots of a head with n; counts how many were chosen, and how many of these were in the step before too. */
static int expand_units(const struct butler_layer_state *state, const uint32_t *units, int n_units, int n_reused, int n,
                        uint32_t *slots)
{
    const int unit = state->plan->unit;
    int n_slots = unit == 1 ? n_units : 0;
    for (int i = 0; i < n_units && unit > 1; i++)
        for (int slot = (int)units[i] * unit; slot < BUTLER_MIN(((int)units[i] + 1) * unit, n); slot++)
            slots[n_slots++] = (uint32_t)slot;
    __atomic_fetch_add(&state->traffic->units_selected, (uint64_t)n_units, __ATOMIC_RELAXED);
    __atomic_fetch_add(&state->traffic->units_reused, (uint64_t)n_reused, __ATOMIC_RELAXED);
    return n_slots;
}

/* Notes the chosen units as the list's; returns how many of them it had in the step before. Sets bytes first, then packs them to
 * bits: this avoids an unpredictable branch per word. */
static int note_units(const struct butler_layer_state *state, int thread, int list, const uint32_t *units, int n_units, int n)
{
    const int n_words = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n, state->plan->unit), 64);
    unsigned char few[64], *chosen = n_words > 1 ? (unsigned char *)butler_units_scratch(state, thread, 1) : few;
    memset(chosen, 0, (size_t)n_words * 64);
    for (int i = 0; i < n_units; i++)
        chosen[units[i]] = 1;
    return state->kv->kernels->note_bytes(selected_of(state, list), chosen, n_words);
}

/* The list of the step before position selected_at, and the tokens that came since. */
static int repeat_list(const struct butler_layer_state *state, int thread, int list, int selected_at, int n, uint32_t *slots)
{
    const int unit_slots = state->plan->unit;
    const uint32_t n_units = (uint32_t)BUTLER_CEIL_DIV(n, unit_slots);
    const uint32_t fresh = (uint32_t)(selected_at / unit_slots);
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

/* One list of query heads [head, head + n_heads). rows: scores of their KV head's query heads. */
static int select_list(const struct butler_layer_state *state, float *rows, int thread, int list, int head, int n_heads,
                       const struct butler_selecting *selecting, uint32_t *slots)
{
    const struct butler_choice *c = &selecting->choice;
    double beside = 0;
    uint32_t *units = units_of(state, thread, slots);
    float *values = butler_values_scratch(state, thread);
    const struct butler_kernels *kernels = state->kv->kernels;
    const float *scores = butler_reduce_scores(state, rows, head, n_heads, c->n_units, &beside);
    const int n_kept = c->mass > 0
                           ? butler_select_mass(kernels, scores, c, beside, values, butler_units_scratch(state, thread, 1), units)
                           : butler_select_top(kernels, scores, c->n_units, c->budget, c->first, c->last, values, units);
    const int n_reused = note_units(state, thread, list, units, n_kept, selecting->n);
    return expand_units(state, units, n_kept, n_reused, selecting->n, slots);
}

/* The same in two stages (scan=): pages by the bounds in rows, then tokens of these pages by their scores, which take the place of
 * the bounds. One list for a KV head. */
static int select_in_pages(const struct butler_layer_state *state, const float *q, float *rows, int thread, int kv_head,
                           const struct butler_selecting *selecting, uint32_t *slots)
{
    const struct butler_kernels *kernels = state->kv->kernels;
    const struct butler_metric_scan *scan = state->plan->metric->scan;
    const struct butler_choice *by_page = &selecting->pages, *tokens = &selecting->choice;
    const int group = state->n_heads / state->kv->n_kv_heads, page = scan->page_slots, n = selecting->n;
    uint32_t *pages = butler_units_scratch(state, thread, 0);
    float *values = butler_values_scratch(state, thread);
    const struct butler_head_view view = butler_kv_view(state->kv, state->layer, kv_head, state->position);
    const float *scores = butler_reduce_scores(state, rows, kv_head * group, group, by_page->n_units, NULL);
    const int n_pages =
        butler_select_top(kernels, scores, by_page->n_units, by_page->budget, by_page->first, by_page->last, values, pages);
    scan->score_pages(&view, q + (size_t)(kv_head * group) * (size_t)state->kv->head_dim, group, pages, n_pages, rows,
                      state->work->score_stride);
    __atomic_fetch_add(&state->traffic->metric_bytes, scan->bytes(state->kv->head_dim, 0, n_pages), __ATOMIC_RELAXED);
    const int n_scored = n_pages * page - (by_page->n_units * page - n); /* the last page is chosen and may not be full */
    scores = butler_reduce_scores(state, rows, kv_head * group, group, n_scored, NULL);
    const int n_kept = butler_select_top(kernels, scores, n_scored, tokens->budget, tokens->first, tokens->last, values, slots);
    for (int i = 0; i < n_kept; i++)
        slots[i] = pages[slots[i] / (uint32_t)page] * (uint32_t)page + slots[i] % (uint32_t)page;
    return expand_units(state, slots, n_kept, note_units(state, thread, kv_head, slots, n_kept, n), n, slots);
}

struct select_job {
    const struct butler_layer_state *state;
    const struct butler_selecting *selecting; /* of the layer, and of those whose lists are made with it */
    const float *q, *k, *v;
    float *out;   /* fused only */
    bool selects; /* else lists are those of the step before position selected_at */
    int selected_at;
    uint64_t score_ns, select_ns; /* summed over threads */
};

static struct select_job job_of(const struct butler_attend_span *span, const struct butler_layer_state *state)
{
    return (struct select_job){.state = state,
                               .selecting = span->selecting,
                               .q = span->q,
                               .k = span->k,
                               .v = span->v,
                               .out = span->out,
                               .selects = span->selects,
                               .selected_at = span->selected_at};
}

/* One list of a layer, by what selecting says of it. */
static void make_list(const struct select_job *job, const struct butler_layer_state *state, const struct butler_lists *lists,
                      const struct butler_selecting *selecting, float *rows, int list, int thread)
{
    int head, n_heads = butler_lists_heads(lists, state->n_heads / state->kv->n_kv_heads, list, &head);
    if (state->plan->share == BUTLER_SHARE_LAYER)
        n_heads = state->n_heads;
    uint32_t *slots = lists->memory + (size_t)list * lists->stride;
    if (!job->selects)
        lists->n[list] = repeat_list(state, thread, list, job->selected_at, selecting->n, slots);
    else if (selecting->pages.budget > 0)
        lists->n[list] = select_in_pages(state, job->q, rows, thread, list, selecting, slots);
    else
        lists->n[list] = select_list(state, rows, thread, list, head, n_heads, selecting, slots);
    lists->slots[list] = slots;
}

/* Where a layer shares a selection, its first list is that of all. */
static void share_list(const struct butler_lists *lists)
{
    for (int i = 1; i < lists->n_lists; i++) {
        lists->slots[i] = lists->slots[0];
        lists->n[i] = lists->n[0];
    }
}

/* ----------------------------------------------------------------------------------------- operations by themselves */

struct lists_job {
    struct select_job select;
    const struct butler_lists *lists;
};

static void list_task(void *context, int list, int thread)
{
    const struct lists_job *job = context;
    const struct butler_layer_state *state = job->select.state;
    make_list(&job->select, state, job->lists, job->select.selecting,
              butler_score_rows(state, list * state->kv->n_kv_heads / job->lists->n_lists), list, thread);
}

static void run_lists(struct butler_backend *backend, struct lists_job *job)
{
    const bool layer = job->select.state->plan->share == BUTLER_SHARE_LAYER;
    butler_pool_run(backend->pool, list_task, job, layer ? 1 : job->lists->n_lists);
    if (layer)
        share_list(job->lists);
}

void butler_select_lists(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                         const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    run_lists(backend, &(struct lists_job){{.state = state, .selecting = selecting, .q = q, .selects = true}, lists});
}

void butler_repeat_lists(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                         const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    run_lists(backend, &(struct lists_job){{.state = state, .selecting = selecting, .selected_at = selected_at}, lists});
}

/* --------------------------------------------------------------------------------------------- several at once */

/* One KV head's new key and value, scores and lists: threads meet once for all of it. A thread writes the scores of one KV head
 * after the other to the same rows: they are read again at once, and of a long text those of all heads would no longer be in its
 * cache by then. Tasks beyond the layer's KV heads are those of the next layers, by the tokens that they have. */
static void retrieve_task(void *context, int task, int thread)
{
    struct select_job *job = context;
    const int n_kv_heads = job->state->kv->n_kv_heads, kv_head = task % n_kv_heads, ahead = task / n_kv_heads;
    struct butler_layer_state state = *job->state;
    state.layer += ahead;
    const struct butler_selecting *selecting = &job->selecting[ahead];
    const struct butler_lists lists = butler_lists_of(&state, ahead);
    const int n_lists = lists.n_lists / n_kv_heads;
    float *rows = butler_score_rows(&state, thread);
    double clock = butler_seconds();
    if (ahead == 0)
        butler_attend_append_head(&state, kv_head, job->k, job->v, 1);
    butler_attend_score_head(&state, kv_head, job->q, selecting->pages.budget > 0, rows);
    butler_count_ns(&job->score_ns, &clock);
    for (int list = kv_head * n_lists; list < (kv_head + 1) * n_lists; list++)
        make_list(job, &state, &lists, selecting, rows, list, thread);
    butler_count_ns(&job->select_ns, &clock);
}

void butler_retrieve_head(const struct butler_attend_span *span, const struct butler_layer_state *state, int kv_head, int thread)
{
    const struct select_job job = job_of(span, state);
    const bool layer = state->plan->share == BUTLER_SHARE_LAYER;
    const int n_kv_heads = state->kv->n_kv_heads, first = layer ? 0 : kv_head, end = layer ? n_kv_heads : kv_head + 1;
    const struct butler_lists lists = butler_lists_of(state, 0);
    const int n_lists = lists.n_lists / n_kv_heads;
    double clock = butler_seconds();
    for (int h = first; h < end && job.selects; h++)
        butler_attend_score_head(state, h, job.q, job.selecting->pages.budget > 0, butler_score_rows(state, h));
    butler_count_ns(&state->traffic->score_ns, &clock);
    for (int list = first * n_lists; list < (layer ? 1 : end * n_lists); list++)
        make_list(&job, state, &lists, job.selecting, butler_score_rows(state, list * n_kv_heads / lists.n_lists), list, thread);
    if (layer)
        share_list(&lists);
    butler_count_ns(&state->traffic->select_ns, &clock);
    for (int h = first; h < end; h++)
        butler_attend_head(state, thread, h, job.q, &lists, 0, job.out, span->observe_from != INT32_MAX);
    butler_count_ns(&state->traffic->attend_ns, &clock);
}

/* TinyServe, Algorithm 1: the pages of a KV head are scored, chosen, gathered and attended to by one thread, while what it needs is
 * still in that thread's cache. */
static void fused_task(void *context, int kv_head, int thread)
{
    const struct butler_attend_span *span = context;
    butler_attend_append_head(&span->state, kv_head, span->k, span->v, 1);
    butler_retrieve_head(span, &span->state, kv_head, thread);
}

/* Appends, scores, selects, and counts in which proportion the time went there. */
static void retrieve_lists(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct butler_traffic *traffic = span->state.traffic;
    struct select_job job = job_of(span, &span->state);
    double clock = butler_seconds();
    butler_pool_run(backend->pool, retrieve_task, &job, span->n_together * span->state.kv->n_kv_heads);
    const double ns = (butler_seconds() - clock) * 1e9, all = (double)(job.score_ns + job.select_ns);
    const double scoring = all > 0 ? (double)job.score_ns / all : 0;
    traffic->score_ns += (uint64_t)(scoring * ns);
    traffic->select_ns += (uint64_t)((1 - scoring) * ns);
}

bool butler_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    const bool observe = span->observe_from != INT32_MAX;
    /* A KV head is work for a thread: where there are more threads, scores of a head are split. */
    const bool by_head = state->plan->share != BUTLER_SHARE_LAYER && butler_pool_size(backend->pool) <= state->kv->n_kv_heads;
    if (!observe && (state->plan->fused || (by_head && !span->selects))) { /* threads need not meet before the end */
        butler_pool_run(backend->pool, fused_task, (void *)span, state->kv->n_kv_heads);
        return true;
    }
    if (!by_head || !span->selects)
        return false;
    retrieve_lists(backend, span);
    const struct butler_lists lists = butler_lists_of(state, 0);
    double clock = butler_seconds();
    backend->attend(backend, state,
                    &(struct butler_attend_token){.q = span->q, .lists = &lists, .out = span->out, .observe = observe});
    butler_count_ns(&state->traffic->attend_ns, &clock);
    return true;
}
