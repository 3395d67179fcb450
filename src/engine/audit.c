/* See audit.h. A task is a KV head: its query heads are compared with all of its keys, and what their selection has of the
 * attention is counted. */
#include "engine/audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

struct audit_job {
    const struct butler_session *session;
    const float *q; /* [n_heads][head_dim] */
    int layer, n;   /* n: tokens of the text */
};

void butler_audit_scratch_free(struct butler_audit_scratch *scratch)
{
    free(scratch->shares);
    free(scratch->rows);
    *scratch = (struct butler_audit_scratch){0};
}

bool butler_audit_wanted(const struct butler_session *session)
{
    return session->audit || (session->on_attention && !session->drafting);
}

/* Makes *array hold n elements; what it held is lost. */
static int reserve(void *array, size_t *n_now, size_t n, size_t size, struct butler_error *err)
{
    void **pointer = array;
    if (n <= *n_now)
        return 0;
    free(*pointer);
    *n_now = 0;
    *pointer = butler_alloc(n * size, err);
    *n_now = *pointer ? n : 0;
    return *pointer ? 0 : BUTLER_ERROR_MEMORY;
}

/* Rows of one KV head for every thread: scores of its query heads, and three more. */
static int reserve_scratch(struct butler_session *session, struct butler_error *err)
{
    struct butler_audit_scratch *scratch = &session->engine->audit;
    const size_t row_floats = (size_t)(session->shape.group + 3) * (size_t)session->n_ctx,
                 n_threads = (size_t)butler_pool_size(session->engine->pool);
    scratch->row_floats = BUTLER_MAX(scratch->row_floats, row_floats);
    if (reserve(&scratch->shares, &scratch->n_shares, 2 * (size_t)session->shape.n_heads, sizeof *scratch->shares, err) < 0)
        return BUTLER_ERROR_MEMORY;
    return reserve(&scratch->rows, &scratch->n_rows, n_threads * scratch->row_floats, sizeof *scratch->rows, err);
}

int butler_session_on_attention(struct butler_session *session, butler_attention_fn *fn, void *user, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (fn && reserve_scratch(session, err) < 0)
        return BUTLER_ERROR_MEMORY;
    session->on_attention = fn;
    session->attention_user = user;
    return 0;
}

int butler_session_audit(struct butler_session *session, struct butler_audit *audit, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(audit, err))
        return BUTLER_ERROR_ARGUMENT;
    if (session->policy.method != BUTLER_RETRIEVE)
        return 0;
    if (reserve_scratch(session, err) < 0)
        return BUTLER_ERROR_MEMORY;
    *audit = (struct butler_audit){0};
    session->audit = audit;
    return 1;
}

/* The k-th largest of values[n], 1 <= k <= n, whose order is lost. */
static float kth_largest(float *values, int n, int k)
{
    int first = 0, last = n - 1;
    const int wanted = k - 1;
    while (first < last) {
        const float pivot = values[first + (last - first) / 2];
        int i = first, j = last;
        while (i <= j) {
            while (values[i] > pivot)
                i++;
            while (values[j] < pivot)
                j--;
            if (i <= j) {
                const float other = values[i];
                values[i++] = values[j];
                values[j--] = other;
            }
        }
        if (wanted <= j)
            last = j;
        else if (wanted >= i)
            first = i;
        else
            break;
    }
    return values[wanted];
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
    const float least = kth_largest(scratch, n - 1, k);
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

/* scores[n] become attention weights before they are divided by the sum, which is returned with the share of a learned sink. */
static double weigh(const struct butler_session *session, int layer, int head, float *scores, int n, double *sink)
{
    const struct butler_model *model = session->model;
    const float *sinks = model->layers[layer].sinks, cap = model->hp.attn_softcap,
                scale = 1 / sqrtf((float)session->shape.head_dim);
    float max = sinks ? sinks[head] : -INFINITY;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const float score = scores[i] * scale;
        scores[i] = cap > 0 ? cap * tanhf(score / cap) : score;
        max = fmaxf(max, scores[i]);
    }
    for (int i = 0; i < n; i++)
        sum += (double)(scores[i] = expf(scores[i] - max));
    *sink = sinks ? exp((double)(sinks[head] - max)) : 0;
    return sum + *sink;
}

static void audit_task(void *context, int kv_head, int thread)
{
    const struct audit_job *job = context;
    const struct butler_session *session = job->session;
    const struct butler_audit_scratch *scratch = &session->engine->audit;
    const int group = session->shape.group, n = job->n, first = kv_head * group;
    const size_t stride = (size_t)session->n_ctx;
    float *rows = scratch->rows + (size_t)thread * scratch->row_floats, *values = rows + (size_t)group * stride;
    int32_t *ids = (int32_t *)(values + stride);
    const struct butler_head_view view = butler_kv_view(&session->kv, job->layer, kv_head, n - 1);
    butler_view_dot_keys(&view, job->q + (size_t)first * (size_t)session->shape.head_dim, group, 0, n, rows, stride);
    for (int h = 0, n_read = 0; h < group; h++) {
        float *row = rows + (size_t)h * stride;
        if (h == 0 || session->policy.share == BUTLER_SHARE_QUERY)
            n_read = butler_last_selection(session, job->layer, first + h, ids, n);
        double *shares = scratch->shares + 2 * (size_t)(first + h), read;
        shares[0] = recall_of(row, n, ids, n_read, values);
        const double all = weigh(session, job->layer, first + h, row, n, &read);
        for (int i = 0; i < n_read; i++)
            read += (double)row[ids[i]];
        shares[1] = read / all;
    }
}

/* Calls on_attention for the query heads of a KV head. */
static void report_heads(const struct butler_session *session, int layer, int kv_head, const float *q)
{
    const int group = session->shape.group, first_head = kv_head * group, window = session->model->layers[layer].window;
    const struct butler_kv_head *cache = butler_kv_at(&session->kv, layer, kv_head);
    const struct butler_head_view view = butler_kv_view(&session->kv, layer, kv_head, session->n_past);
    const int from = window > 0 ? BUTLER_MAX(cache->n_slots - window, 0) : 0, n = cache->n_slots - from,
              base = cache->order ? 0 : from; /* the first slot whose key is compared */
    const size_t stride = (size_t)session->n_ctx;
    float *rows = session->engine->audit.rows, *weights = rows + (size_t)group * stride;
    int32_t *positions = (int32_t *)(weights + stride), *read = positions + stride;
    butler_view_dot_keys(&view, q + (size_t)first_head * (size_t)session->shape.head_dim, group, base, cache->n_slots - base, rows,
                         stride);
    for (int i = 0; i < n; i++)
        positions[i] = butler_kv_position(cache, cache->order ? cache->order[from + i] : (uint32_t)(from + i));
    for (int h = 0, n_read = 0; h < group; h++) {
        const float *row = rows + (size_t)h * stride;
        double sink;
        for (int i = 0; i < n; i++)
            weights[i] = row[cache->order ? (int)cache->order[from + i] : i];
        const double all = weigh(session, layer, first_head + h, weights, n, &sink);
        for (int i = 0; i < n; i++)
            weights[i] = (float)((double)weights[i] / all);
        if (h == 0 || session->policy.share == BUTLER_SHARE_QUERY)
            n_read = butler_last_selection(session, layer, first_head + h, read, session->n_ctx);
        const struct butler_head_attention attention = {.layer = layer,
                                                        .head = first_head + h,
                                                        .read = read,
                                                        .n_read = n_read,
                                                        .positions = positions,
                                                        .weights = weights,
                                                        .n = n};
        session->on_attention(session->attention_user, &attention);
    }
}

void butler_audit_layer(struct butler_session *session, int layer, const float *q)
{
    struct butler_audit *audit = session->audit;
    struct butler_engine *engine = session->engine;
    const struct audit_job job = {.session = session, .q = q, .layer = layer, .n = session->n_past + 1};
    for (int h = 0; h < session->shape.n_kv_heads && session->on_attention && !session->drafting; h++)
        report_heads(session, layer, h, q);
    if (!audit || !butler_policy_applies(&session->policy, layer) || session->selection.at[layer] == 0)
        return;
    const double start = butler_seconds();
    butler_pool_run(engine->pool, audit_task, (void *)&job, session->shape.n_kv_heads);
    for (int h = 0; h < session->shape.n_heads; h++) {
        audit->recall += engine->audit.shares[2 * h];
        audit->mass += engine->audit.shares[2 * h + 1];
    }
    audit->n_heads += session->shape.n_heads;
    audit->seconds += butler_seconds() - start;
}

void butler_audit_end(struct butler_session *session)
{
    struct butler_audit *audit = session->audit;
    session->audit = NULL;
    if (audit && audit->n_heads > 0) {
        audit->recall /= audit->n_heads;
        audit->mass /= audit->n_heads;
    }
}
