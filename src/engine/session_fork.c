/* Several sessions from one text: fork, copy, adopt under another policy, and going back. Pages are shared, not copied (kv.h); what
 * metrics keep is copied, or made anew from the keys. */
#include <string.h>

#include "engine/predict.h"
#include "engine/receipt.h"
#include "engine/schedule.h"
#include "engine/session.h"

/* The cache of one layer, whose heads hold equally many slots, with positions; norms and records where they are wanted. */
static void share_layer(struct butler_kv *to, struct butler_kv *from, int layer, bool norms, bool records)
{
    struct butler_backend *backend = from->backend;
    const int n = butler_kv_at(from, layer, 0)->n_slots;
    to->records_off = records ? from->records_off : to->records_off;
    butler_kv_share(to, from, layer, n);
    for (int h = 0; h < from->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(to, layer, h);
        const struct butler_kv_head *source = butler_kv_at(from, layer, h);
        if (n > 0 && head->positions && source->positions) {
            backend->copy(backend, head->positions, source->positions, (size_t)n * sizeof *head->positions);
            backend->copy(backend, head->order, source->order, (size_t)n * sizeof *head->order);
        }
        if (norms && n > 0 && head->value_norms)
            backend->copy(backend, head->value_norms, source->value_norms, (size_t)n * sizeof *head->value_norms);
        if (records && n > 0 && from->record_slots > 0 && !from->records_off)
            backend->copy(backend, head->records, source->records,
                          (size_t)BUTLER_CEIL_DIV(n, from->record_slots) * from->record_bytes);
        if (records && head->state)
            backend->copy(backend, head->state, source->state, from->state_bytes);
    }
}

static void copy_text(struct butler_session *to, const struct butler_session *from)
{
    memcpy(to->tokens, from->tokens, (size_t)from->n_past * sizeof *to->tokens);
    memcpy(to->logits, from->logits, (size_t)from->model->hp.n_vocab * sizeof *to->logits);
    to->n_past = from->n_past;
    to->n_decoded = from->n_decoded;
    to->n_dense = from->n_dense;
    to->n_observed = from->n_observed;
    to->n_skipped = from->n_skipped;
    to->observed_more = from->observed_more;
    to->steered = from->steered;
    to->sparse_end = from->sparse_end;
    to->evicted = from->evicted;
    to->has_logits = from->has_logits;
    to->failed = false;
    to->stop = from->stop;
}

int butler_session_copy(struct butler_session *to, struct butler_session *from, struct butler_error *err)
{
    if (BUTLER_IS_NULL(to, err) || BUTLER_IS_NULL(from, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_backend *backend = from->engine->backend;
    if (to == from)
        return 0;
    if (from->failed)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "a session that ended with an error cannot be copied");
    if (to->engine != from->engine)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session cannot be copied into one of another engine");
    if (to->kv_type != from->kv_type || to->n_ctx != from->n_ctx || to->seed != from->seed ||
        strcmp(to->policy.text, from->policy.text) != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "a session of %s (%d tokens) cannot be copied into one of %s (%d tokens): policy, context, KV type and "
                           "seed must be the same",
                           from->policy.text, from->n_ctx, to->policy.text, to->n_ctx);
    to->kv.fault.code = 0; /* of what it had */
    to->kv.lost = false;
    for (int l = 0; l < from->kv.n_layers; l++)
        share_layer(&to->kv, &from->kv, l, true, true);
    if (from->predict)
        share_layer(&to->predict->kv, &from->predict->kv, 0, true, true);
    const size_t lists = (size_t)from->shape.n_layers * (size_t)from->shape.n_heads * from->selection.words;
    if (lists > 0)
        backend->copy(backend, to->selection.units, from->selection.units, lists * sizeof *to->selection.units);
    memcpy(to->selection.at, from->selection.at, (size_t)from->shape.n_layers * sizeof *to->selection.at);
    if (butler_steps_copy(&to->steps, from->steps, from->model->hp.n_vocab, err) < 0)
        return BUTLER_ERROR_MEMORY;
    copy_text(to, from);
    to->policy = from->policy; /* a budget that was set, and whether it drafts or rests */
    butler_receipt_begin(to);
    return 0;
}

struct butler_session *butler_session_fork(struct butler_session *session, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return NULL;
    const struct butler_session_params params = {.n_ctx = session->n_ctx, .kv_type = session->kv_type, .seed = session->seed};
    struct butler_session *fork = butler_session_make(session->engine, &session->policy, &params, err);
    if (fork && butler_session_copy(fork, session, err) < 0) {
        butler_session_free(fork);
        return NULL;
    }
    if (fork)
        fork->prefix_salt = session->prefix_salt;
    return fork;
}

void butler_session_summarise(struct butler_session *session, int first, int n)
{
    struct butler_backend *backend = session->engine->backend;
    struct butler_traffic uncounted = {0};
    const bool makes = session->policy.metric && session->policy.metric->append && !session->policy.plan.own_text;
    if (!session->kv.norms && !makes)
        return;
    for (int l = 0; l < session->shape.n_layers && first < n; l++) {
        const struct butler_layer_state state = butler_session_layer(session, &uncounted, l, n - 1);
        if (butler_schedule_summarise(session, l, 0) != INT32_MAX)
            backend->summarise(backend, &state, first);
    }
    session->failed = session->failed || session->kv.fault.code < 0;
}

/* ----------------------------------------------------------------------------------------- another policy */

static bool same_metric(const struct butler_policy *a, const struct butler_policy *b)
{
    return a->metric && a->metric == b->metric && memcmp(a->values, b->values, sizeof a->values) == 0 && a->unit == b->unit &&
           a->dense_layers == b->dense_layers;
}

bool butler_session_can_adopt(const struct butler_policy *to, const struct butler_policy *from)
{
    if (to->rope_in_cache != from->rope_in_cache || !butler_policy_same_prompts(to, from))
        return false;
    if (to->plan.own_text) /* it has read the text itself */
        return false;
    if (same_metric(to, from))
        return true;
    return to->plan.observe[0] == 0;
}

/* What the policy goes by was not observed: by a session whose budget covers all, whose records ended with the prompt, or which
 * observed only what it checked. */
static bool lacks_observations(const struct butler_policy *to, const struct butler_session *from)
{
    return to->plan.observe[0] > 0 &&
           (from->policy.plan.idle || butler_session_has_skipped(from, to) || (from->kv.records_off && to->plan.observe[1] > 0) ||
            (from->policy.plan.guided && !to->plan.guided && (from->observed_more || from->n_decoded > 0)));
}

int butler_session_adopt(struct butler_session *session, struct butler_session *from, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(from, err))
        return BUTLER_ERROR_ARGUMENT;
    const bool records = same_metric(&session->policy, &from->policy), norms = session->kv.value_norm == from->kv.value_norm;
    if (session->engine != from->engine || session->kv_type != from->kv_type || session->n_past != 0 || from->failed ||
        session->rope_freq != from->rope_freq || !butler_session_can_adopt(&session->policy, &from->policy))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session of policy %s cannot take over one of policy %s",
                           session->policy.text, from->policy.text);
    if (records && from->n_past > 0 && lacks_observations(&session->policy, from))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s has not observed this text: %s cannot take it over", from->policy.text,
                           session->policy.text);
    if (from->n_past > session->n_ctx)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%d tokens do not fit in a context of %d", from->n_past, session->n_ctx);
    for (int i = 0; i < from->kv.n_layers * from->kv.n_kv_heads; i++)
        if (from->kv.heads[i].n_slots < from->n_past)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                               "a session of policy %s has evicted tokens: another policy cannot go on from it", from->policy.text);
    for (int l = 0; l < from->kv.n_layers; l++)
        share_layer(&session->kv, &from->kv, l, norms, records);
    if (session->kv.prompt_records && !session->kv.records_off &&
        from->n_dense < from->n_past) /* as they would have ended with the prompt */
        butler_kv_end_records(&session->kv);
    copy_text(session, from);
    if (!records)
        session->n_observed = session->n_skipped = session->observed_more = 0;
    bool late = false; /* what the other policy's budget put off is wanted here */
    for (int l = 0; l < session->shape.n_layers; l++)
        late = late || butler_policy_defers(&from->policy, l, session->shape.n_layers, from->n_past);
    if (!records || !norms || late) /* records are made anew only from keys: a metric that has observed is the same one */
        butler_session_summarise(session, 0, from->n_past);
    return session->failed ? butler_session_fault(session, err) : 0;
}

/* ------------------------------------------------------------------------------------------------ going back */

int butler_session_truncate(struct butler_session *session, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (n < 0 || n > session->n_past)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a text of %d tokens cannot be cut to %d", session->n_past, n);
    if (session->failed && n > 0)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "this session ended with an error before: it can only be cut to 0 tokens");
    if (n == session->n_past && !session->failed)
        return 0;
    if (n > 0 && session->evicted)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s has evicted tokens: its state after token %d is gone",
                           session->policy.name, n);
    if (n > 0 && session->n_observed > n)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s has observed the attention of later tokens than %d: its state then is gone", session->policy.name,
                           n);
    if (n < session->sparse_end && !butler_schedule_can_go_on(session, n))
        return butler_fail(
            err, BUTLER_ERROR_ARGUMENT,
            "%s: what token %d selected is gone: a prompt that was read sparsely can be cut to multiples of %d tokens "
            "and in its last block",
            session->policy.name, n / BUTLER_PROMPT_BLOCK * BUTLER_PROMPT_BLOCK, BUTLER_PROMPT_BLOCK);
    for (int l = 0; l < session->kv.n_layers; l++)
        if (session->model->layers[l].window > 0 && !butler_kv_holds_window(&session->kv, l, n, session->model->layers[l].window))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "layer %d has a window of %d tokens: those before token %d are gone", l,
                               session->model->layers[l].window, n);
    if (n == 0) {
        session->kv.fault.code = 0;
        session->kv.lost = false;
        session->n_adopted = 0;
        butler_receipt_begin(session);
    }
    bool late = false; /* a pyramid's low layers may be covered by their budget at the longer text and not at the shorter one */
    for (int l = 0; l < session->kv.n_layers; l++)
        late = late || (butler_policy_defers(&session->policy, l, session->kv.n_layers, session->n_past) &&
                        !butler_policy_defers(&session->policy, l, session->kv.n_layers, n));
    for (int l = 0; l < session->kv.n_layers; l++) {
        butler_kv_truncate(&session->kv, l, n);
        session->selection.at[l] = session->selection.at[l] > n ? 0 : session->selection.at[l];
    }
    if (session->predict)
        butler_kv_truncate(&session->predict->kv, 0, n);
    /* A record that covers slots on both sides is made anew from the keys. Version 1 of the predictor has keys of its own, each in
     * its place in the record, where the next tokens overwrite those that are gone. */
    if (n > 0 && late && !session->kv.states)
        butler_session_summarise(session, 0, n);
    else if (n > 0 && session->kv.record_slots > 1 && !session->policy.plan.own_text && !session->kv.states)
        butler_session_summarise(session, butler_kv_record_start(&session->kv, n), n);
    for (int l = 0; l < session->kv.n_layers; l++)
        butler_kv_zero_states(&session->kv, l);
    if (session->kv.states)
        butler_session_summarise(session, 0, n);
    session->selection.ahead_end = 0;
    session->n_decoded = BUTLER_MAX(session->n_decoded - (session->n_past - n), 0);
    session->n_past = n;
    session->n_dense = BUTLER_MIN(session->n_dense, n);
    session->sparse_end = BUTLER_MIN(session->sparse_end, n);
    session->n_observed = BUTLER_MIN(session->n_observed, n);
    session->n_skipped = n > session->n_dense ? BUTLER_MIN(session->n_skipped, n) : 0; /* no step lies in the prompt */
    session->observed_more = n > 0 && (session->observed_more || session->policy.plan.guided);
    session->steered = session->steered && n > 0;
    session->evicted = session->evicted && n > 0;
    session->has_logits = session->stop = false;
    session->failed = session->kv.fault.code < 0;
    return session->failed ? butler_session_fault(session, err) : 0;
}
