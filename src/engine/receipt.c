/* See receipt.h. */
#include "engine/abi.h"
#include "engine/receipt.h"

#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

void butler_receipt_free(struct butler_receipt_state *receipt)
{
    if (!receipt)
        return;
    free(receipt->attention);
    free(receipt->weights);
    free(receipt->positions);
    free(receipt->kept);
    free(receipt);
}

int butler_session_keep_receipt(struct butler_session *session, int every, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (every < 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a receipt that looks at every %dth step", every);
    butler_receipt_free(session->receipt);
    session->receipt = NULL;
    if (every == 0)
        return 0;
    const size_t n = (size_t)session->n_ctx, n_heads = (size_t)session->shape.n_kv_heads;
    const bool evicts = session->policy.method == BUTLER_EVICT;
    struct butler_receipt_state *receipt = butler_alloc(sizeof *receipt, err);
    if (!receipt)
        return BUTLER_ERROR_MEMORY;
    *receipt = (struct butler_receipt_state){.every = every,
                                             .n_decoded = session->n_decoded,
                                             .cut_at = {-1, -1},
                                             .attention = butler_alloc(n * sizeof *receipt->attention, err)};
    if (evicts) {
        receipt->weights = butler_alloc(n * n_heads * sizeof *receipt->weights, err);
        receipt->positions = butler_alloc(n * n_heads * sizeof *receipt->positions, err);
        receipt->kept = butler_alloc(n * sizeof *receipt->kept, err);
    }
    if (!receipt->attention || (evicts && (!receipt->weights || !receipt->positions || !receipt->kept)) ||
        butler_audit_reserve(session, err) < 0) {
        butler_receipt_free(receipt);
        return BUTLER_ERROR_MEMORY;
    }
    memset(receipt->attention, 0, n * sizeof *receipt->attention);
    session->receipt = receipt;
    return 0;
}

void butler_receipt_begin(struct butler_session *session)
{
    struct butler_receipt_state *receipt = session->receipt;
    if (!receipt)
        return;
    receipt->n_decoded = receipt->n_prompt_cuts = receipt->n_step_cuts = receipt->n_before = 0;
    receipt->cut_at[0] = receipt->cut_at[1] = -1;
    receipt->sums = (struct butler_receipt){0};
    memset(receipt->attention, 0, (size_t)session->n_ctx * sizeof *receipt->attention);
}

int butler_session_receipt(const struct butler_session *session, struct butler_receipt *receipt, double *attention)
{
    if (!session || !receipt || !session->receipt)
        return 0;
    const struct butler_receipt_state *state = session->receipt;
    const double n_layers = session->shape.n_layers;
    struct butler_receipt means = state->sums;
    const int n = BUTLER_MAX(means.n_steps, 1), n_prompt = BUTLER_MAX(state->n_prompt_cuts, 1),
              n_step = BUTLER_MAX(state->n_step_cuts, 1);
    means.read = means.n_steps > 0 ? means.read / n / n_layers : 1;
    means.prompt_evicted /= n_prompt * n_layers; /* a layer that was not cut lost nothing */
    means.step_evicted /= n_step * n_layers;
    means.n_prompt_cuts = state->n_prompt_cuts;
    means.n_step_cuts = state->n_step_cuts;
    for (int i = 0; attention && i < session->n_past; i++)
        attention[i] = state->attention[i] / n / n_layers;
    butler_give_struct(receipt, &means, sizeof means, BUTLER_END_OF(butler_receipt, n_step_cuts));
    return 1;
}

bool butler_receipt_wanted(const struct butler_session *session)
{
    const struct butler_receipt_state *receipt = session->receipt;
    return receipt && !session->drafting && receipt->n_decoded % receipt->every == 0;
}

void butler_receipt_layer(struct butler_session *session, int layer, const struct butler_exact *exact, int32_t *ids)
{
    struct butler_receipt_state *receipt = session->receipt;
    const struct butler_metric_shape *shape = &session->shape;
    const bool all = session->policy.method != BUTLER_RETRIEVE || session->selection.at[layer] == 0;
    float *sums = exact->scores; /* which nobody needs any more: of the weights of a KV head's query heads */
    double sum = 0;
    for (int h = 0, n_read = 0; h < shape->n_heads; h++) {
        const float *weights = exact->weights + (size_t)h * exact->stride;
        const int32_t *positions = exact->positions + (size_t)(h / shape->group) * exact->stride;
        const bool first = h % shape->group == 0, last = (h + 1) % shape->group == 0;
        double read = (double)exact->sinks[h];
        if (!all && h % shape->group % butler_list_heads(session->policy.share, shape->group) == 0)
            n_read = butler_last_selection(session, layer, h, ids, session->n_ctx);
        for (int i = 0, at = 0; i < n_read && at < exact->n; i++) { /* both ascend */
            while (at < exact->n && positions[at] < ids[i])
                at++;
            read += at < exact->n && positions[at] == ids[i] ? (double)weights[at] : 0;
        }
        for (int i = 0; i < exact->n; i++)
            sums[i] = weights[i] + (first ? 0 : sums[i]);
        for (int i = 0; i < exact->n && last; i++)
            receipt->attention[positions[i]] += (double)sums[i] / shape->n_heads;
        sum += all ? 1 : BUTLER_MIN(read, 1);
    }
    receipt->sums.read += sum / shape->n_heads;
}

void butler_receipt_end_step(struct butler_session *session)
{
    if (!session->receipt || session->drafting)
        return;
    session->receipt->sums.n_steps += butler_receipt_wanted(session);
    session->receipt->n_decoded++;
}

/* ---------------------------------------------------------------------------------------------------- cuts */

void butler_receipt_before_cut(struct butler_session *session, int layer, bool decode, int position, const float *q)
{
    struct butler_receipt_state *receipt = session->receipt;
    const struct butler_metric_shape *shape = &session->shape;
    const int n = butler_kv_at(&session->kv, layer, 0)->n_slots;
    float *host_q = session->engine->scratch.host_q;
    /* Under rope=cache a query's place is known once its token is in the cache. */
    if (!receipt || !receipt->weights || n == 0 || (decode && (!butler_receipt_wanted(session) || session->n_places > 0)))
        return;
    const double start = butler_seconds();
    session->engine->backend->download(session->engine->backend, host_q, q,
                                       (size_t)(shape->n_heads * shape->head_dim) * sizeof *host_q);
    const struct butler_exact exact = butler_audit_exact(session, layer, n, position, host_q);
    for (int kv_head = 0; kv_head < shape->n_kv_heads; kv_head++) {
        float *weights = receipt->weights + (size_t)kv_head * (size_t)session->n_ctx;
        memset(weights, 0, (size_t)n * sizeof *weights);
        for (int h = kv_head * shape->group; h < (kv_head + 1) * shape->group; h++)
            for (int i = 0; i < n; i++)
                weights[i] += exact.weights[(size_t)h * exact.stride + (size_t)i] / (float)shape->group;
        memcpy(receipt->positions + (size_t)kv_head * (size_t)session->n_ctx, exact.positions + (size_t)kv_head * exact.stride,
               (size_t)n * sizeof *receipt->positions);
    }
    receipt->n_before = n;
    *(decode ? &receipt->n_step_cuts : &receipt->n_prompt_cuts) += receipt->cut_at[decode] != position;
    receipt->cut_at[decode] = position;
    receipt->sums.seconds += butler_seconds() - start;
}

/* Attention to the tokens of a KV head that are no longer held. Both lists ascend. */
static double evicted(const struct butler_session *session, int layer, int kv_head)
{
    const struct butler_receipt_state *receipt = session->receipt;
    const size_t row = (size_t)kv_head * (size_t)session->n_ctx;
    const int n_kept = butler_last_selection(session, layer, kv_head * session->shape.group, receipt->kept, session->n_ctx);
    double sum = 0;
    for (int i = 0, at = 0; i < receipt->n_before; i++) {
        while (at < n_kept && receipt->kept[at] < receipt->positions[row + (size_t)i])
            at++;
        sum +=
            at < n_kept && receipt->kept[at] == receipt->positions[row + (size_t)i] ? 0 : (double)receipt->weights[row + (size_t)i];
    }
    return sum;
}

void butler_receipt_after_cut(struct butler_session *session, int layer, bool decode)
{
    struct butler_receipt_state *receipt = session->receipt;
    const int n_kv_heads = session->shape.n_kv_heads;
    if (!receipt || receipt->n_before == 0)
        return;
    double *sum = decode ? &receipt->sums.step_evicted : &receipt->sums.prompt_evicted;
    for (int kv_head = 0; kv_head < n_kv_heads; kv_head++)
        *sum += evicted(session, layer, kv_head) / n_kv_heads;
    receipt->n_before = 0;
}
