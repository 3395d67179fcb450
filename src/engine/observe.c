/* Who watches layers of a pass: predictors, metrics that look at earlier layers, hooks of training and evaluation, audits. */
#include "engine/pass.h"
#include "engine/predict.h"
#include "engine/schedule.h"

/* ---------------------------------------------------------------------------------------------- predictors */

/* What a layer's attention (or its feed-forward part) takes in, rows h[.][n_embd] -> predicted queries (and keys) of later layers.
 */
static void predict(struct butler_part *part, int layer, enum butler_predictor_input input, const float *h)
{
    struct butler_session *session = part->session;
    struct butler_predict *predict = session->predict;
    const double start = butler_seconds();
    int first;
    const int n_served = predict && predict->predictor->sizes.input == input ? butler_predict_serves(predict, layer, &first) : 0;
    if (n_served == 0)
        return;
    const bool decode = part->decode && !part->exact; /* whose keys may come in a block */
    const bool evicts = session->policy.method == BUTLER_EVICT;
    const uint64_t metric_bytes = part->traffic->metric_bytes;
    bool wanted = evicts && !decode, covered = part->decode;
    for (int l = first; l < first + n_served && decode; l++)
        wanted = wanted || (evicts ? butler_policy_applies(&session->policy, l) && !butler_schedule_covered(session, l, 1)
                                   : butler_schedule_retrieves(session, l) && butler_schedule_selects(session, l));
    for (int l = first; l < first + n_served; l++)
        covered = covered && (!butler_policy_applies(&session->policy, l) || butler_schedule_covered(session, l, part->n));
    const struct butler_predict_block block = {h, part->n, session->n_past, decode, wanted};
    if (butler_predict_run(predict, part->traffic, layer, &block, part->err) < 0)
        butler_part_fail(part);
    if (covered)
        butler_part_keep_for_later(part->traffic, metric_bytes);
    if (part->decode)
        session->stats.predict_s += butler_seconds() - start;
}

static void predict_before(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    predict(part, layer, BUTLER_PREDICTOR_INPUT_NORM, pass->s->h + (size_t)part->row * (size_t)pass->hp->n_embd);
}

static void predict_fed(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    predict(part, layer, BUTLER_PREDICTOR_INPUT_ATTENTION, pass->s->h + (size_t)part->kept_row * (size_t)pass->hp->n_embd);
}

static const struct butler_layer_observer predictors = {{predict_before, NULL, predict_fed}};

/* ------------------------------------------------------------------------------ queries for later layers' metrics */

static void queries_before(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    const struct butler_session *session = part->session;
    const size_t n_token = (size_t)(session->shape.n_heads * session->shape.head_dim), newest = (size_t)(part->row + part->n - 1);
    if (session->queries)
        pass->backend->copy(pass->backend, session->queries + (size_t)layer * n_token, pass->s->q + newest * n_token,
                            n_token * sizeof(float));
}

static const struct butler_layer_observer queries = {{queries_before, NULL, NULL}};

/* ------------------------------------------------------------------------------------------------- captures */

static void capture_before(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    const struct butler_session *session = part->session;
    const struct butler_capture *capture = session->capture;
    const struct butler_scratch *s = pass->s;
    const size_t row = (size_t)part->row, n = (size_t)part->n, n_embd = (size_t)pass->hp->n_embd,
                 n_q = (size_t)(session->shape.n_heads * session->shape.head_dim),
                 n_kv = (size_t)(session->shape.n_kv_heads * session->shape.head_dim);
    struct butler_backend *backend = pass->backend;
    if (capture && capture->values) {
        backend->download(backend, s->host_k, s->v + row * n_kv, n * n_kv * sizeof(float));
        capture->values(capture->user, layer, session->n_past, part->n, s->host_k);
    }
    if (!capture || !capture->layer)
        return;
    backend->download(backend, s->host_x, s->x + row * n_embd, n * n_embd * sizeof(float));
    backend->download(backend, s->host_h, s->h + row * n_embd, n * n_embd * sizeof(float));
    backend->download(backend, s->host_q, s->q + row * n_q, n * n_q * sizeof(float));
    backend->download(backend, s->host_k, s->k + row * n_kv, n * n_kv * sizeof(float));
    capture->layer(capture->user, layer, session->n_past, part->n, s->host_x, s->host_h, s->host_q, s->host_k);
}

static void capture_after(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    const struct butler_session *session = part->session;
    const struct butler_capture *capture = session->capture;
    const size_t n_q = (size_t)(session->shape.n_heads * session->shape.head_dim), bytes = (size_t)part->n * n_q * sizeof(float);
    float *o = pass->s->o + (size_t)part->row * n_q;
    if (!capture || !capture->attended)
        return;
    pass->backend->download(pass->backend, pass->s->host_q, pass->s->q + (size_t)part->row * n_q, bytes);
    pass->backend->download(pass->backend, pass->s->host_o, o, bytes);
    capture->attended(capture->user, layer, session->n_past, part->n, pass->s->host_q, pass->s->host_o);
    pass->backend->upload(pass->backend, o, pass->s->host_o, bytes);
}

static void capture_fed(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    const struct butler_capture *capture = part->session->capture;
    const size_t n_embd = (size_t)pass->hp->n_embd;
    if (!capture || !capture->fed)
        return;
    pass->backend->download(pass->backend, pass->s->host_h, pass->s->h + (size_t)part->kept_row * n_embd,
                            (size_t)part->n * n_embd * sizeof(float));
    capture->fed(capture->user, layer, part->session->n_past, part->n, pass->s->host_h);
}

static const struct butler_layer_observer captures = {{capture_before, capture_after, capture_fed}};

/* --------------------------------------------------------------------------------------------------- audits */

static void audit_after(const struct butler_pass *pass, struct butler_part *part, int layer)
{
    struct butler_session *session = part->session;
    const size_t n_q = (size_t)(session->shape.n_heads * session->shape.head_dim);
    if (!part->decode || part->exact || !butler_audit_wanted(session))
        return;
    pass->backend->download(pass->backend, pass->s->host_q, pass->s->q + (size_t)part->row * n_q, n_q * sizeof(float));
    butler_audit_layer(session, layer, pass->s->host_q);
}

static const struct butler_layer_observer audits = {{NULL, audit_after, NULL}};

/* In this order: what captures see of queries and keys that are predicted is there. */
const struct butler_layer_observer *const butler_layer_observers[] = {&predictors, &queries, &captures, &audits, NULL};
