/* A session in another session: everything that decides what follows, so that both continue alike, bit for bit. What
 * session_file.c writes to a file stays in memory here: several ways on from one text, without reading it again. */
#include <string.h>

#include "engine/predict.h"
#include "engine/session.h"

static void copy_head(struct butler_kv *to_kv, struct butler_kv_head *to, const struct butler_kv *from_kv,
                      const struct butler_kv_head *from)
{
    const size_t n = (size_t)from->n_slots;
    if (from->positions) {
        memcpy(to->positions, from->positions, n * sizeof *to->positions);
        memcpy(to->order, from->order, n * sizeof *to->order);
    }
    if (from->value_norms)
        memcpy(to->value_norms, from->value_norms, n * sizeof *to->value_norms);
    for (int i = 0; i < BUTLER_CEIL_DIV(from->n_slots, BUTLER_PAGE); i++)
        memcpy(to_kv->pool + (size_t)to->pages[i] * to_kv->page_bytes, from_kv->pool + (size_t)from->pages[i] * from_kv->page_bytes,
               from_kv->page_bytes);
    if (from_kv->record_slots > 0)
        memcpy(to->records, from->records, (size_t)BUTLER_CEIL_DIV(from->n_slots, from_kv->record_slots) * from_kv->record_bytes);
}

static int copy_layer(struct butler_kv *to, const struct butler_kv *from, int layer, struct butler_error *err)
{
    for (int h = 0; h < from->n_kv_heads; h++)
        butler_kv_at(to, layer, h)->n_slots = 0;
    const int n_slots = butler_kv_at(from, layer, 0)->n_slots; /* that of every head of the layer */
    if (n_slots > 0 && butler_kv_grow(to, layer, n_slots, 0, err) < 0)
        return BUTLER_ERROR_LENGTH;
    butler_kv_trim(to, layer);
    for (int h = 0; h < from->n_kv_heads; h++)
        copy_head(to, butler_kv_at(to, layer, h), from, butler_kv_at(from, layer, h));
    return 0;
}

int butler_session_copy(struct butler_session *to, const struct butler_session *from, struct butler_error *err)
{
    if (to == from)
        return 0;
    if (from->failed)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "a session that ended with an error cannot be copied");
    if (to->model != from->model || to->kv_type != from->kv_type || to->n_ctx != from->n_ctx || to->seed != from->seed ||
        strcmp(to->policy.text, from->policy.text) != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "a session of %s (%d tokens) cannot be copied into one of %s (%d tokens): model, policy, context, KV "
                           "type and seed must be the same",
                           from->policy.text, from->n_ctx, to->policy.text, to->n_ctx);
    for (int l = 0; l < from->kv.n_layers; l++)
        if (copy_layer(&to->kv, &from->kv, l, err) < 0)
            return BUTLER_ERROR_LENGTH;
    if (from->predict && copy_layer(&to->predict->kv, &from->predict->kv, 0, err) < 0)
        return BUTLER_ERROR_LENGTH;
    memcpy(to->tokens, from->tokens, (size_t)from->n_past * sizeof *to->tokens);
    memcpy(to->logits, from->logits, (size_t)from->model->hp.n_vocab * sizeof *to->logits);
    memcpy(to->work.selected, from->work.selected,
           (size_t)from->shape.n_layers * (size_t)from->shape.n_heads * from->work.selected_words * sizeof *to->work.selected);
    memcpy(to->work.selected_at, from->work.selected_at, (size_t)from->shape.n_layers * sizeof *to->work.selected_at);
    to->n_past = from->n_past;
    to->n_decoded = from->n_decoded;
    to->has_logits = from->has_logits;
    to->failed = false;
    to->stop = from->stop;
    return 0;
}
