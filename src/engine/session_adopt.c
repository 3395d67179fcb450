/* A session's text given to one of another policy: the prompt is read once and several policies decode from it. Keys and values are
 * copied; what the other's metric keeps is copied where both have the same metric, and made anew from the keys elsewhere. */
#include <string.h>

#include "engine/session.h"

static bool same_metric(const struct butler_policy *a, const struct butler_policy *b)
{
    return a->metric && a->metric == b->metric && memcmp(a->values, b->values, sizeof a->values) == 0 && a->unit == b->unit &&
           a->dense_layers == b->dense_layers;
}

bool butler_session_can_adopt(const struct butler_policy *to, const struct butler_policy *from)
{
    if (to->rope_in_cache != from->rope_in_cache)
        return false;
    if (to->metric && to->metric->predictor == 1) /* it has read the text itself */
        return false;
    if (same_metric(to, from))
        return true;
    return !to->metric || !to->metric->attention_window || to->metric->attention_window(to->values) == 0;
}

/* Whole pages: keys and values of a run of tokens lie together. */
static void copy_rows(const struct butler_kv *to, const struct butler_kv_head *head, const struct butler_kv *from,
                      const struct butler_kv_head *source)
{
    for (int page = 0; page * BUTLER_PAGE < source->n_slots; page++)
        memcpy(to->pool + (size_t)head->pages[page] * to->page_bytes, from->pool + (size_t)source->pages[page] * from->page_bytes,
               to->page_bytes);
}

static void copy_head(struct butler_session *session, const struct butler_session *from, int layer, int kv_head)
{
    struct butler_kv *kv = &session->kv;
    const struct butler_policy *policy = &session->policy;
    struct butler_kv_head *head = butler_kv_at(kv, layer, kv_head);
    const struct butler_kv_head *source = butler_kv_at(&from->kv, layer, kv_head);
    const size_t n = (size_t)source->n_slots;
    copy_rows(kv, head, &from->kv, source);
    if (head->value_norms && source->value_norms && kv->value_norm == from->kv.value_norm)
        memcpy(head->value_norms, source->value_norms, n * sizeof *head->value_norms);
    else if (head->value_norms)
        butler_kv_make_norms(kv, head);
    if (kv->record_slots > 0 && same_metric(policy, &from->policy)) {
        memcpy(head->records, source->records, (size_t)BUTLER_CEIL_DIV(source->n_slots, kv->record_slots) * kv->record_bytes);
    } else if (policy->metric && policy->metric->append && layer >= policy->dense_layers) {
        struct butler_head_view view = butler_kv_view(kv, layer, kv_head, session->n_past - 1);
        policy->metric->append(&session->shape, policy->values, &view, 0, source->n_slots);
    }
}

int butler_session_adopt(struct butler_session *session, const struct butler_session *from, struct butler_error *err)
{
    if (session->model != from->model || session->kv_type != from->kv_type || session->n_past != 0 || from->failed ||
        session->rope_freq != from->rope_freq || !butler_session_can_adopt(&session->policy, &from->policy))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session of policy %s cannot take over one of policy %s",
                           session->policy.text, from->policy.text);
    if (from->n_past > session->n_ctx)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%d tokens do not fit in a context of %d", from->n_past, session->n_ctx);
    for (int i = 0; i < from->kv.n_layers * from->kv.n_kv_heads; i++)
        if (from->kv.heads[i].n_slots < from->n_past)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                               "a session of policy %s has evicted tokens: another policy cannot go on from it", from->policy.text);
    session->n_past = from->n_past;
    for (int l = 0; l < from->kv.n_layers; l++) {
        const int n = butler_kv_at(&from->kv, l, 0)->n_slots;
        if (n > 0 && butler_kv_grow(&session->kv, l, n, 0, err) < 0)
            return BUTLER_ERROR_LENGTH;
        for (int h = 0; h < from->kv.n_kv_heads && n > 0; h++)
            copy_head(session, from, l, h);
    }
    memcpy(session->tokens, from->tokens, (size_t)from->n_past * sizeof *from->tokens);
    memcpy(session->logits, from->logits, (size_t)session->model->hp.n_vocab * sizeof *from->logits);
    session->has_logits = from->has_logits;
    session->n_decoded = from->n_decoded;
    session->stop = from->stop;
    return 0;
}
