/* See method.h. Where a backend does several operations at once, it is asked to; else they are called one by one, with the same
 * results. */
#include "engine/method.h"

/* Where the lists of the layer `ahead` layers after one are put: where layers select together, in the session's memory, which holds
 * them until these layers run. */
struct butler_lists butler_lists_of(const struct butler_layer_state *state, int ahead)
{
    const struct butler_selection *selection = state->selection;
    const struct butler_workspace *work = state->work;
    const int share = state->plan->share, n_kv_heads = state->kv->n_kv_heads, group = state->n_heads / n_kv_heads;
    const int n_lists = n_kv_heads * butler_lists_per_head(share, group), at = ahead * n_lists;
    struct butler_lists lists = {n_lists,     butler_list_heads(share, group), work->list_slots, work->list_n,
                                 work->slots, (size_t)work->max_slots};
    if (selection->slots) {
        lists.stride = (size_t)state->kv->max_slots;
        lists.slots = selection->list_slots + at;
        lists.n = selection->list_n + at;
        lists.memory = selection->slots + (size_t)at * lists.stride;
    }
    return lists;
}

/* The lists of the span's layer, and those of the layers that select with it. */
static struct butler_lists make_lists(struct butler_backend *backend, const struct butler_attend_span *span, double *clock)
{
    struct butler_layer_state state = span->state;
    const struct butler_lists lists = butler_lists_of(&state, 0);
    backend->append(backend, &state, span->k, span->v, 1);
    if (!span->selects)
        backend->repeat(backend, &state, span->selected_at, &span->selecting[0], &lists);
    butler_count_ns(span->selects ? &state.traffic->score_ns : &state.traffic->select_ns, clock);
    for (int ahead = 0; span->selects && ahead < span->n_together; ahead++) {
        const struct butler_selecting *selecting = &span->selecting[ahead];
        const struct butler_lists own = butler_lists_of(&state, ahead);
        state.layer = span->state.layer + ahead;
        backend->score(backend, &state, span->q, selecting->pages.budget > 0);
        butler_count_ns(&state.traffic->score_ns, clock);
        backend->select(backend, &state, span->q, selecting, &own);
        butler_count_ns(&state.traffic->select_ns, clock);
    }
    return lists;
}

static void retrieve(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    const bool observe = span->observe_from != INT32_MAX, made = span->made_before > 0;
    double clock = butler_seconds();
    if (!made && backend->retrieve_fused && backend->retrieve_fused(backend, span))
        return;
    const struct butler_lists lists = made ? butler_lists_of(state, span->made_before) : make_lists(backend, span, &clock);
    backend->attend(
        backend, state,
        &(struct butler_attend_token){
            .q = span->q, .k = made ? span->k : NULL, .v = span->v, .lists = &lists, .out = span->out, .observe = observe});
    butler_count_ns(&state->traffic->attend_ns, &clock);
}

static void attend(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    const bool observe = span->observe_from != INT32_MAX;
    double clock = butler_seconds();
    if (span->retrieves) {
        retrieve(backend, span);
        return;
    }
    if (!span->decode) {
        backend->append(backend, state, span->k, span->v, span->n);
        if (span->sparse)
            backend->attend_sparse(backend, span);
        else
            backend->attend_block(backend, state, span->q, span->out, span->n, span->window, span->observe_from);
    } else if (span->exact && (span->n > 1 || observe))
        backend->attend_exact(backend, span);
    else
        backend->attend(
            backend, state,
            &(struct butler_attend_token){.q = span->q,
                                          .k = span->k,
                                          .v = span->v,
                                          .newest = BUTLER_MIN(butler_kv_at(state->kv, state->layer, 0)->n_slots, span->window),
                                          .out = span->out,
                                          .observe = observe});
    butler_count_ns(&state->traffic->attend_ns, &clock);
}

void butler_method_attend(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans)
{
    bool sparse = false;
    for (int i = 0; i < n_spans; i++)
        sparse = sparse || spans[i].sparse;
    if (n_spans > 1 && backend->attend_spans && !sparse) {
        backend->attend_spans(backend, spans, n_spans);
        return;
    }
    for (int i = 0; i < n_spans; i++)
        attend(backend, &spans[i]);
}

static void evict(struct butler_backend *backend, const struct butler_attend_span *span, const struct butler_cut *cut)
{
    const struct butler_layer_state *state = &span->state;
    const struct butler_workspace *work = state->work;
    const int n_kv_heads = state->kv->n_kv_heads;
    const struct butler_lists lists = {n_kv_heads,  state->n_heads / n_kv_heads, work->list_slots, work->list_n,
                                       work->slots, (size_t)work->max_slots};
    double clock = butler_seconds();
    if (!cut->newest)
        backend->score(backend, state, span->q, false);
    butler_count_ns(&state->traffic->score_ns, &clock);
    backend->select_leaving(backend, state, cut, &lists);
    backend->compact(backend, state, &lists);
    butler_count_ns(&state->traffic->select_ns, &clock);
}

/* Of every head of the layer: the host keeps count. */
static void set_n_slots(const struct butler_layer_state *state, int n)
{
    for (int h = 0; h < state->kv->n_kv_heads; h++)
        butler_kv_at(state->kv, state->layer, h)->n_slots = n;
}

void butler_method_evict(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                         int n_spans)
{
    if (backend->evict_spans)
        backend->evict_spans(backend, spans, cuts, n_spans);
    for (int i = 0; i < n_spans; i++) {
        if (!backend->evict_spans)
            evict(backend, &spans[i], &cuts[i]);
        set_n_slots(&spans[i].state, cuts[i].n_left);
        butler_kv_trim(spans[i].state.kv, spans[i].state.layer);
    }
}
