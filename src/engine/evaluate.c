/* Beside a run: what evaluation and training ask of policies, sessions and engines (butler_tools.h). */
#include <string.h>

#include "engine/abi.h"
#include "engine/predict.h"
#include "engine/session.h"

/* -------------------------------------------------------------------------------------------------- policies */

int butler_policy_read(const struct butler_engine *engine, const char *text, struct butler_policy_parts *parts,
                       struct butler_error *err)
{
    struct butler_policy policy;
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(parts, err))
        return BUTLER_ERROR_ARGUMENT;
    const int code = butler_policy_parse(engine, text, &policy, err);
    if (code < 0)
        return code;
    const struct butler_metric *metric = policy.metric;
    struct butler_policy_parts own = {.metric = metric ? metric->name : NULL,
                                      .retrieves = policy.method == BUTLER_RETRIEVE,
                                      .evicts = policy.method == BUTLER_EVICT,
                                      .budget_kind = metric ? policy.budget_kind : BUTLER_BUDGET_FRACTION,
                                      .budget = metric ? policy.budget : 1,
                                      .predictor = metric ? metric->predictor : 0,
                                      .looks_ahead = metric && (metric->predictor || metric->earlier_layers)};
    _Static_assert(sizeof own.name == sizeof policy.name && sizeof own.text == sizeof policy.text, "copied whole");
    memcpy(own.name, policy.name, sizeof own.name);
    memcpy(own.text, policy.text, sizeof own.text);
    butler_give_struct(parts, &own, sizeof own, BUTLER_END_OF(butler_policy_parts, looks_ahead));
    return 0;
}

bool butler_policy_can_adopt(const struct butler_engine *engine, const char *to, const char *from)
{
    struct butler_policy policies[2];
    return engine && butler_policy_parse(engine, to, &policies[0], NULL) == 0 &&
           butler_policy_parse(engine, from, &policies[1], NULL) == 0 && butler_session_can_adopt(&policies[0], &policies[1]);
}

/* Whether decode steps of the text were not observed, because the budget held all tokens that could be observed (schedule.c), and
 * the next one is smaller than that. */
bool butler_session_has_skipped(const struct butler_session *session, const struct butler_policy *next)
{
    const int window = next->plan.observe[1], n_layers = session->shape.n_layers;
    bool skipped = false;
    for (int l = 0; l < n_layers && session->n_skipped > 0 && !session->evicted && window > 0; l++)
        skipped = skipped || (butler_policy_applies(next, l) &&
                              !butler_policy_keeps_all(next, l, n_layers, session->n_skipped + BUTLER_MIN(window, 1 << 24)));
    return skipped;
}

int butler_session_set_budget(struct butler_session *session, int n_tokens, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_policy *policy = &session->policy;
    if (!policy->metric || policy->budget_kind == BUTLER_BUDGET_MASS)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s has no budget in tokens", policy->name);
    if (n_tokens < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a budget of %d tokens: it must be at least 1", n_tokens);
    const struct butler_policy last = *policy;
    struct butler_policy next = *policy;
    next.budget_kind = BUTLER_BUDGET_COUNT;
    next.budget = n_tokens;
    next.budget_set = true;
    if (butler_session_has_skipped(session, &next))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "a budget of %d tokens: under the larger one %s has not observed all that it goes by", n_tokens,
                           policy->name);
    /* The old budget covered the whole context, so that nothing was observed. */
    if (last.plan.idle && !butler_policy_idles(&next, session->shape.n_layers, session->n_ctx)) {
        if (session->n_past > 0)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a budget of %d tokens: %s has observed nothing of the text so far",
                               n_tokens, policy->name);
        const int code = butler_policy_compile(&next, &session->shape, err);
        if (code < 0)
            return code;
        if (last.plan.guided)
            butler_plan_guide(&next.plan);
    }
    *policy = next;
    butler_session_follow_policy(session, &last);
    return 0;
}

/* ------------------------------------------------------------------------------------------- bytes of a metric */

/* What version 1 of the predictor reads of its own keys and values in a step, as a share of every KV head that it selects for. */
static double predictor_bytes(const struct butler_session *session, int n)
{
    const struct butler_predict *predict = session->predict;
    int n_layers = 0;
    if (!predict || session->policy.metric->predictor != 1)
        return 0;
    for (int l = 0; l < session->kv.n_layers; l++)
        n_layers += butler_policy_applies(&session->policy, l);
    const int n_read = BUTLER_MIN(n, butler_predictor_window(&predict->predictor->sizes));
    return 2.0 * (double)predict->kv.row_bytes * n_read * predict->kv.n_kv_heads /
           (BUTLER_MAX(n_layers, 1) * session->kv.n_kv_heads);
}

/* Pages that scan= scores in one KV head of n slots under a budget of so many tokens. */
static int scan_pages(const struct butler_session *session, int budget, int n)
{
    struct butler_policy policy = session->policy;
    policy.budget_kind = BUTLER_BUDGET_COUNT;
    policy.budget = budget;
    const struct butler_limits limits = butler_policy_limits(&policy, session->shape.n_layers - 1, session->shape.n_layers, n);
    return butler_policy_scan_pages(&policy, &limits, n);
}

double butler_session_metric_bytes(const struct butler_session *session, int budget, int n)
{
    const struct butler_metric *metric = session ? session->policy.metric : NULL;
    if (!metric)
        return 0;
    const struct butler_kv *kv = &session->kv;
    const double *values = session->policy.values;
    const double records = kv->record_slots > 0 ? (double)BUTLER_CEIL_DIV(n, kv->record_slots) * (double)kv->record_bytes : 0;
    const int n_pages = scan_pages(session, budget, n);
    if (n_pages > 0)
        return (double)metric->scan->bytes(kv->head_dim, BUTLER_CEIL_DIV(n, metric->scan->page_slots), n_pages);
    double bytes = metric->score_bytes ? (double)metric->score_bytes(&session->shape, values, n) : records;
    if (metric->attention_window && metric->attention_window(values) > 0)
        bytes += metric->observe_bytes ? (double)metric->observe_bytes(&session->shape, values, n) : records;
    return bytes + predictor_bytes(session, n);
}

/* -------------------------------------------------------------------------------- the newest token taken out */

bool butler_session_can_unread(const struct butler_session *session, int n)
{
    for (int l = 0; session && l < session->kv.n_layers; l++) {
        const int window = session->model->layers[l].window;
        if (window > 0 && butler_kv_window_start(n, window) != butler_kv_window_start(n - 1, window))
            return false;
    }
    return session && session->policy.unit == 1 && session->kv.record_slots <= 1 && !session->kv.states && !session->predict;
}

/* The slot of a head's newest token. */
static uint32_t newest_slot(struct butler_backend *backend, const struct butler_kv_head *head)
{
    uint32_t slot = (uint32_t)head->n_slots - 1;
    if (head->order)
        backend->download(backend, &slot, head->order + slot, sizeof slot);
    return slot;
}

static void replace_in_order(struct butler_backend *backend, struct butler_kv_head *head, uint32_t old, uint32_t slot)
{
    enum { AT_ONCE = 256 };
    uint32_t order[AT_ONCE];
    for (int first = 0, n; first < head->n_slots; first += n) {
        n = BUTLER_MIN(head->n_slots - first, AT_ONCE);
        backend->download(backend, order, head->order + first, (size_t)n * sizeof *order);
        for (int i = 0; i < n; i++)
            if (order[i] == old)
                backend->upload(backend, head->order + first + i, &slot, sizeof slot);
    }
}

/* The newest slot of a head goes: the last slot takes its place, so that slots stay without gaps. */
static void drop_newest(struct butler_kv *kv, struct butler_kv_head *head)
{
    struct butler_backend *backend = kv->backend;
    const uint32_t last = (uint32_t)head->n_slots - 1, newest = newest_slot(backend, head);
    head->n_slots--;
    if (newest == last)
        return;
    backend->copy(backend, butler_kv_row_address(kv, head, (int)newest), butler_kv_row_address(kv, head, (int)last),
                  2 * kv->row_bytes);
    if (head->value_norms)
        backend->copy(backend, head->value_norms + newest, head->value_norms + last, sizeof *head->value_norms);
    if (kv->record_slots == 1)
        backend->copy(backend, head->records + (size_t)newest * kv->record_bytes, head->records + (size_t)last * kv->record_bytes,
                      kv->record_bytes);
    backend->copy(backend, head->positions + newest, head->positions + last, sizeof *head->positions);
    replace_in_order(backend, head, last, newest);
}

int butler_session_unread(struct butler_session *session, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    const int n = session->n_past;
    if (n == 0 || session->failed || !butler_session_can_unread(session, n))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s cannot take out the last of %d tokens", session->policy.name, n);
    for (int l = 0; l < session->kv.n_layers; l++) {
        const int code = butler_kv_unshare(&session->kv, l, err);
        if (code < 0)
            return code;
        for (int h = 0; h < session->kv.n_kv_heads; h++) {
            struct butler_kv_head *head = butler_kv_at(&session->kv, l, h);
            int32_t position = n - 1;
            if (head->positions)
                session->kv.backend->download(session->kv.backend, &position,
                                              head->positions + newest_slot(session->kv.backend, head), sizeof position);
            if (position == n - 1)
                drop_newest(&session->kv, head);
        }
    }
    session->n_past = n - 1;
    session->n_dense = BUTLER_MIN(session->n_dense, n - 1);
    session->n_decoded = BUTLER_MIN(session->n_decoded, n - 1);
    session->n_observed = BUTLER_MIN(session->n_observed, n - 1);
    session->sparse_end = BUTLER_MIN(session->sparse_end, n - 1);
    session->has_logits = false;
    const int code = butler_backend_check(session->kv.backend, err);
    session->failed = code < 0;
    return code;
}

/* ----------------------------------------------------------------------------------------- models and engines */

int butler_model_window(const struct butler_model *model, int layer)
{
    return model && model->layers && layer >= 0 && layer < model->hp.n_layers ? model->layers[layer].window : 0;
}

int butler_session_set_capture(struct butler_session *session, const struct butler_capture *capture, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    session->capture = capture;
    return 0;
}
