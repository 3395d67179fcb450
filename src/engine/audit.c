/* See audit.h. The backend compares the queries of a layer with all keys; what their selection has of it is counted here. */
#include "engine/abi.h"
#include "engine/audit.h"
#include "engine/receipt.h"

#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

void butler_audit_scratch_free(struct butler_audit_scratch *scratch)
{
    free(scratch->rows);
    *scratch = (struct butler_audit_scratch){0};
}

bool butler_audit_wanted(const struct butler_session *session)
{
    return session->audit || (session->on_attention && !session->drafting) || butler_receipt_wanted(session);
}

/* Rows of n_ctx numbers: of every query head scores and weights, of every KV head positions, and two for one head at a time. */
int butler_audit_reserve(struct butler_session *session, struct butler_error *err)
{
    struct butler_audit_scratch *scratch = &session->engine->audit;
    const struct butler_metric_shape *shape = &session->shape;
    const size_t n = (size_t)(2 * shape->n_heads + shape->n_kv_heads + 2) * (size_t)session->n_ctx + (size_t)shape->n_heads;
    if (n <= scratch->n_rows)
        return 0;
    butler_audit_scratch_free(scratch);
    scratch->rows = butler_alloc(n * sizeof *scratch->rows, err);
    scratch->n_rows = scratch->rows ? n : 0;
    return scratch->rows ? 0 : BUTLER_ERROR_MEMORY;
}

/* The newest n tokens of a layer, in the engine's scratch. *ids, *values: a row each behind it. */
static struct butler_exact exact_of(const struct butler_session *session, int n, int32_t **ids, float **values)
{
    const size_t stride = (size_t)session->n_ctx, n_heads = (size_t)session->shape.n_heads;
    float *rows = session->engine->audit.rows;
    struct butler_exact exact = {.n = n, .stride = stride, .scores = rows, .weights = rows + n_heads * stride};
    exact.positions = (int32_t *)(exact.weights + n_heads * stride);
    *ids = exact.positions + (size_t)session->shape.n_kv_heads * stride;
    *values = (float *)(*ids + stride);
    exact.sinks = *values + stride;
    return exact;
}

int butler_session_on_attention(struct butler_session *session, butler_attention_fn *fn, void *user, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (fn && butler_audit_reserve(session, err) < 0)
        return BUTLER_ERROR_MEMORY;
    session->on_attention = fn;
    session->attention_user = user;
    return 0;
}

static void give_audit(const struct butler_session *session)
{
    butler_give_struct(session->audit_to, &session->audited, sizeof session->audited, BUTLER_END_OF(butler_audit, seconds));
}

int butler_session_audit(struct butler_session *session, struct butler_audit *audit, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(audit, err))
        return BUTLER_ERROR_ARGUMENT;
    if (session->policy.method != BUTLER_RETRIEVE)
        return 0;
    if (butler_audit_reserve(session, err) < 0)
        return BUTLER_ERROR_MEMORY;
    session->audited = (struct butler_audit){0};
    session->audit = &session->audited;
    session->audit_to = audit;
    give_audit(session);
    return 1;
}

/* Share of ids[n_read] among the n_read tokens with the highest of scores[n]: the newest, which every step reads, and of the others
 * the highest scores, ties to the lower index. scratch[n]. */
static double recall_of(const float *scores, int n, const int32_t *ids, int n_read, float *scratch)
{
    const int k = BUTLER_MIN(n_read, n) - 1; /* beside the newest */
    int hits = n_read > 0 && ids[n_read - 1] == n - 1, n_above = 0, at = 0, n_ties = 0;
    if (k < 1)
        return hits;
    memcpy(scratch, scores, (size_t)(n - 1) * sizeof *scores);
    const float least = butler_kth_largest(scratch, n - 1, k);
    for (int i = 0; i < n - 1; i++)
        n_above += scores[i] > least;
    for (int i = 0; i < n - 1; i++) {
        const bool read = at < n_read && ids[at] == i, tie = !(scores[i] > least) && scores[i] >= least;
        hits += read && (scores[i] > least || (tie && n_ties < k - n_above));
        n_ties += tie;
        at += read;
    }
    return (double)hits / n_read;
}

/* Adds what the heads of a layer read of their exact attention. */
static void add_heads(const struct butler_session *session, int layer, const struct butler_exact *exact, int32_t *ids,
                      float *values)
{
    struct butler_audit *audit = session->audit;
    const int group = session->shape.group;
    for (int h = 0, n_read = 0; h < session->shape.n_heads; h++) {
        const float *weights = exact->weights + (size_t)h * exact->stride;
        if (h % group % butler_list_heads(session->policy.share, group) == 0)
            n_read = butler_last_selection(session, layer, h, ids, exact->n);
        double mass = (double)exact->sinks[h];
        for (int i = 0; i < n_read; i++)
            mass += (double)weights[ids[i]];
        audit->recall += recall_of(exact->scores + (size_t)h * exact->stride, exact->n, ids, n_read, values);
        audit->mass += mass;
    }
    audit->n_heads += session->shape.n_heads;
}

/* Calls on_attention for the heads of a layer. */
static void report_heads(const struct butler_session *session, int layer, const struct butler_exact *exact, int32_t *ids)
{
    const int group = session->shape.group;
    for (int h = 0, n_read = 0; h < session->shape.n_heads; h++) {
        if (h % group % butler_list_heads(session->policy.share, group) == 0)
            n_read = butler_last_selection(session, layer, h, ids, session->n_ctx);
        const struct butler_head_attention attention = {.struct_size = sizeof attention,
                                                        .layer = layer,
                                                        .head = h,
                                                        .read = ids,
                                                        .n_read = n_read,
                                                        .positions = exact->positions + (size_t)(h / group) * exact->stride,
                                                        .weights = exact->weights + (size_t)h * exact->stride,
                                                        .n = exact->n,
                                                        .scores = exact->scores + (size_t)h * exact->stride,
                                                        .sink = exact->sinks[h]};
        session->on_attention(session->attention_user, &attention);
    }
}

static void exact_at(struct butler_session *session, int layer, int position, const float *q, const struct butler_exact *exact)
{
    struct butler_backend *backend = session->engine->backend;
    struct butler_traffic uncounted = {0};
    const struct butler_layer_state state = butler_session_layer(session, &uncounted, layer, position);
    backend->exact_weights(backend, &state, q, exact);
}

void butler_session_exact(struct butler_session *session, int layer, const float *q, const struct butler_exact *exact)
{
    exact_at(session, layer, session->n_past, q, exact);
}

struct butler_exact butler_audit_exact(struct butler_session *session, int layer, int n, int position, const float *q)
{
    int32_t *ids;
    float *values;
    const struct butler_exact exact = exact_of(session, n, &ids, &values);
    exact_at(session, layer, position, q, &exact);
    return exact;
}

void butler_audit_layer(struct butler_session *session, int layer, const float *q)
{
    const bool reports = session->on_attention && !session->drafting, sums = butler_receipt_wanted(session),
               audits = session->audit && butler_policy_applies(&session->policy, layer) && session->selection.at[layer] != 0;
    const int n_slots = butler_kv_at(&session->kv, layer, 0)->n_slots, window = session->model->layers[layer].window;
    int32_t *ids;
    float *values;
    if (!reports && !audits && !sums)
        return;
    const double start = butler_seconds();
    const struct butler_exact exact = exact_of(session, window > 0 ? BUTLER_MIN(n_slots, window) : n_slots, &ids, &values);
    butler_session_exact(session, layer, q, &exact);
    if (audits) {
        add_heads(session, layer, &exact, ids, values);
        session->audit->seconds += butler_seconds() - start;
    }
    if (reports)
        report_heads(session, layer, &exact, ids);
    if (sums)
        butler_receipt_layer(session, layer, &exact, ids);
    if (sums)
        session->receipt->sums.seconds += butler_seconds() - start;
}

void butler_audit_end(struct butler_session *session)
{
    struct butler_audit *audit = session->audit;
    session->audit = NULL;
    if (audit && audit->n_heads > 0) {
        audit->recall /= audit->n_heads;
        audit->mass /= audit->n_heads;
    }
    if (audit)
        give_audit(session);
}
