/* The forward pass: one layer loop for every architecture, every policy and every backend, over the rows of a pass: tokens of one
 * or of many sessions, parts of prompts and decode steps. Products take all rows of the pass at once, so its weights are read once;
 * attention is per session. */
#include <math.h>
#include <string.h>

#include "engine/method.h"
#include "engine/predict.h"
#include "engine/schedule.h"
#include "engine/session.h"

struct pass {
    struct butler_backend *backend;
    const struct butler_model *model;
    const struct butler_hparams *hp;
    struct butler_scratch *s;
    struct butler_part *parts;
    int n_parts, n;                 /* n: rows */
    struct butler_traffic *weights; /* where weights that are read count: the first decode step's session */
};

/* cos and sin of positions [first, first + n), times scale, into rows [0, n) of host tables. */
static void rotations(const float *freq, float scale, size_t half, int first, int n, float *cosines, float *sines)
{
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)(first + t) * (double)freq[i];
            cosines[(size_t)t * half + i] = (float)(cos(angle) * (double)scale);
            sines[(size_t)t * half + i] = (float)(sin(angle) * (double)scale);
        }
}

/* Where keys stay unrotated, attention rotates them by their place in the cache: the table grows with the places. */
static void place_rotations(const struct pass *pass, struct butler_session *session, int n)
{
    struct butler_kv *kv = &session->kv;
    const size_t half = (size_t)kv->n_rot / 2;
    int n_places = 0;
    for (int l = 0; l < kv->n_layers; l++)
        n_places = BUTLER_MAX(n_places, butler_kv_at(kv, l, 0)->n_slots + n);
    while (session->n_places < n_places) {
        const int m = BUTLER_MIN(n_places - session->n_places, pass->s->max_rows);
        const size_t at = (size_t)session->n_places * half, bytes = (size_t)m * half * sizeof(float);
        rotations(session->rope_freq, session->rope_scale, half, session->n_places, m, pass->s->host_cos, pass->s->host_sin);
        pass->backend->upload(pass->backend, kv->rope_cos + at, pass->s->host_cos, bytes);
        pass->backend->upload(pass->backend, kv->rope_sin + at, pass->s->host_sin, bytes);
        session->n_places += m;
    }
}

static void multiply(const struct pass *pass, const struct butler_product *products, int n_products, const float *x, int n)
{
    pass->backend->matmul(pass->backend, &pass->s->work, products, n_products, x, n);
    for (int i = 0; i < n_products; i++)
        pass->weights->weight_bytes += products[i].w->row_bytes * (uint64_t)products[i].w->n_rows;
}

static void matmul(const struct pass *pass, float *y, const struct butler_matrix *w, const float *x, int n)
{
    multiply(pass, &(struct butler_product){y, w}, 1, x, n);
}

/* Ends the part with an error. Its session's state is lost. */
static void fail(struct butler_part *part)
{
    part->failed = true;
    part->session->failed = true;
}

/* ------------------------------------------------------------------------------------------------ attention */

/* Queries from this position on are shown to the metric: INT32_MAX, none. */
static int observe_from(const struct butler_part *part, int layer)
{
    const struct butler_policy *policy = &part->session->policy;
    if (part->exact) /* the one query that what is checked next begins from; of a token by itself nobody asks for drafts */
        return part->n > 1 && policy->plan.guided && butler_policy_applies(policy, layer) ? part->session->n_past + part->n - 1
                                                                                          : INT32_MAX;
    const int window = butler_policy_applies(policy, layer) ? policy->plan.observe[part->decode] : 0;
    /* A cut of up to `reach` tokens, at which this query is still one of the latest, drops nothing. */
    const int reach = part->session->n_past + 1 + BUTLER_MIN(window, 1 << 24);
    if (part->decode && window > 0 && !part->session->evicted &&
        butler_policy_keeps_all(policy, layer, part->session->shape.n_layers, reach))
        return INT32_MAX;
    return window == 0 ? INT32_MAX : BUTLER_MAX(part->cut_end - BUTLER_MIN(window, part->cut_end), 0);
}

static struct butler_attend_span span_of(const struct pass *pass, const struct butler_part *part, int layer)
{
    struct butler_session *session = part->session;
    const size_t n_q = (size_t)(session->shape.n_heads * session->shape.head_dim),
                 n_kv = (size_t)(session->shape.n_kv_heads * session->shape.head_dim), row = (size_t)part->row;
    const int window = pass->model->layers[layer].window;
    return (struct butler_attend_span){
        .state = butler_session_layer(session, part->traffic, layer, session->n_past),
        .q = pass->s->q + row * n_q,
        .k = pass->s->k + row * n_kv,
        .v = pass->s->v + row * n_kv,
        .out = pass->s->o + row * n_q,
        .n = part->n,
        .window = window > 0 ? window : INT32_MAX,
        .decode = part->decode,
        .exact = part->exact,
        .observe_from = observe_from(part, layer),
    };
}

/* Whether the policy evicts from this layer of the part's cache, before (decode) or after (prompt) its tokens are appended: *cut
 * says what stays. */
static bool evicts(const struct butler_part *part, int layer, struct butler_cut *cut)
{
    const struct butler_session *session = part->session;
    return !part->failed && part->cuts && butler_schedule_cut(session, layer, session->n_past + part->n, part->decode, cut);
}

/* Cuts the caches of decode steps, or of prompts. */
static void evict(const struct pass *pass, int layer, bool decode)
{
    int n = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        if (part->decode != decode || !evicts(part, layer, &pass->s->cuts[n]))
            continue;
        if (butler_kv_unshare(&part->session->kv, layer, part->err) < 0) {
            fail(part);
            continue;
        }
        struct butler_attend_span *span = &pass->s->spans[n++];
        *span = span_of(pass, part, layer);
        span->q += (size_t)(part->n - 1) * (size_t)(span->state.n_heads * part->session->shape.head_dim);
        span->state.position += part->n - 1 - part->decode; /* decode: the cache ends with the token before */
        part->session->evicted = true;
    }
    if (n > 0)
        butler_method_evict(pass->backend, pass->s->spans, pass->s->cuts, n);
}

static uint64_t attention_ns(const struct butler_part *part)
{
    return part->traffic->score_ns + part->traffic->select_ns + part->traffic->attend_ns;
}

/* Divides the wall time of attention among the decode steps, in proportion to the thread time of each. before_sum: the thread time
 * of all parts before this layer. */
static void share_time(const struct pass *pass, double seconds, uint64_t before_sum)
{
    uint64_t sum = 0;
    for (int i = 0; i < pass->n_parts; i++)
        sum += attention_ns(&pass->parts[i]);
    for (int i = 0; i < pass->n_parts && sum > before_sum; i++) {
        struct butler_part *part = &pass->parts[i];
        part->session->stats.attend_s +=
            part->decode ? seconds * (double)(attention_ns(part) - part->ns_before) / (double)(sum - before_sum) : 0;
    }
}

static void capture_layer(const struct pass *pass, const struct butler_part *part, int layer)
{
    const struct butler_session *session = part->session;
    const struct butler_capture *capture = session->capture;
    const struct butler_scratch *s = pass->s;
    const size_t row = (size_t)part->row, n = (size_t)part->n, n_embd = (size_t)pass->hp->n_embd,
                 n_q = (size_t)(session->shape.n_heads * session->shape.head_dim),
                 n_kv = (size_t)(session->shape.n_kv_heads * session->shape.head_dim);
    struct butler_backend *backend = pass->backend;
    if (!capture || !capture->layer)
        return;
    backend->download(backend, s->host_x, s->x + row * n_embd, n * n_embd * sizeof(float));
    backend->download(backend, s->host_h, s->h + row * n_embd, n * n_embd * sizeof(float));
    backend->download(backend, s->host_q, s->q + row * n_q, n * n_q * sizeof(float));
    backend->download(backend, s->host_k, s->k + row * n_kv, n * n_kv * sizeof(float));
    capture->layer(capture->user, layer, session->n_past, part->n, s->host_x, s->host_h, s->host_q, s->host_k);
}

static void capture_attended(const struct pass *pass, const struct butler_part *part, int layer)
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

static void audit_attended(const struct pass *pass, const struct butler_part *part, int layer)
{
    struct butler_session *session = part->session;
    const size_t n_q = (size_t)(session->shape.n_heads * session->shape.head_dim);
    if (part->failed || !part->decode || part->exact || !butler_audit_wanted(session))
        return;
    pass->backend->download(pass->backend, pass->s->host_q, pass->s->q + (size_t)part->row * n_q, n_q * sizeof(float));
    butler_audit_layer(session, layer, pass->s->host_q);
}

/* What the metric read since it had read `before` is for later steps: the layer reads all. */
static void keep_for_later(struct butler_traffic *traffic, uint64_t before)
{
    traffic->upkeep_bytes += traffic->metric_bytes - before;
    traffic->metric_bytes = before;
}

/* q, k, v of the new tokens -> o, the caches grown and, where policies say so, cut. */
static void attention(const struct pass *pass, int layer)
{
    uint64_t before = 0;
    int n = 0;
    const double start = butler_seconds();
    for (int i = 0; i < pass->n_parts; i++) {
        pass->parts[i].ns_before = attention_ns(&pass->parts[i]);
        before += pass->parts[i].ns_before;
        pass->parts[i].metric_bytes_before = pass->parts[i].traffic->metric_bytes;
    }
    evict(pass, layer, true);
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        struct butler_session *session = part->session;
        if (part->failed)
            continue;
        if (butler_kv_grow(&session->kv, layer, part->n, session->n_past, part->err) < 0) {
            fail(part);
            continue;
        }
        struct butler_attend_span *span = &pass->s->spans[n++];
        *span = span_of(pass, part, layer);
        capture_layer(pass, part, layer);
        span->state.summarise_from = butler_schedule_summarise(session, layer, part->n);
        butler_schedule_span(session, layer, pass->n_parts == 1, span);
        if (session->queries) {
            const size_t n_token = (size_t)(session->shape.n_heads * session->shape.head_dim);
            pass->backend->copy(pass->backend, session->queries + (size_t)layer * n_token,
                                span->q + (size_t)(part->n - 1) * n_token, n_token * sizeof(float));
        }
    }
    if (n > 0)
        butler_method_attend(pass->backend, pass->s->spans, n);
    for (int i = 0; i < pass->n_parts; i++)
        if (!pass->parts[i].failed)
            capture_attended(pass, &pass->parts[i], layer);
    evict(pass, layer, false);
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].decode && butler_schedule_covered(pass->parts[i].session, layer, pass->parts[i].n))
            keep_for_later(pass->parts[i].traffic, pass->parts[i].metric_bytes_before);
    share_time(pass, butler_seconds() - start, before);
    for (int i = 0; i < pass->n_parts; i++)
        audit_attended(pass, &pass->parts[i], layer);
}

/* ------------------------------------------------------------------------------------------ the rest of a layer */

static const struct butler_vector none;

/* y[n][dim] = normed x[n][dim]; a copy of it where there is no such norm. */
static void norm(const struct pass *pass, float *y, const float *x, const struct butler_vector *v, int n, int dim)
{
    if (v->weight)
        pass->backend->norm(pass->backend, y, x, v, n, dim, pass->hp->norm, pass->hp->norm_eps);
    else if (y != x)
        pass->backend->copy(pass->backend, y, x, (size_t)n * (size_t)dim * sizeof *y);
}

/* What queries and keys go through between the products and attention. */
static void prepare_heads(const struct pass *pass, const struct butler_layer *layer)
{
    const struct butler_hparams *hp = pass->hp;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const int q_parts = hp->wide_qk_norm ? 1 : hp->n_heads, k_parts = hp->wide_qk_norm ? 1 : hp->n_kv_heads;
    const size_t half = (size_t)hp->n_rot / 2, local = layer->rope == BUTLER_LAYER_ROTATES_LOCAL ? (size_t)s->max_rows * half : 0;
    norm(pass, s->q, s->q, &layer->q_norm, pass->n * q_parts, hp->n_heads / q_parts * hp->head_dim);
    norm(pass, s->k, s->k, &layer->k_norm, pass->n * k_parts, hp->n_kv_heads / k_parts * hp->head_dim);
    if (layer->rope != BUTLER_LAYER_UNROTATED) {
        const struct butler_rotation rotations[] = {{s->q, hp->n_heads}, {s->k, hp->n_kv_heads}};
        backend->rope(backend, rotations, BUTLER_COUNT(rotations), s->cos + local, s->sin + local, pass->n, hp->head_dim, hp->n_rot,
                      hp->rope);
    }
    if (hp->query_scale != 1)
        backend->scale(backend, s->q, hp->query_scale, (size_t)pass->n * (size_t)(hp->n_heads * hp->head_dim));
}

/* How many outputs of a gate of n_ff are computed together: equal parts of as many as fit for n rows. */
static int gate_part(const struct pass *pass, int n_ff, int n)
{
    enum { EVEN = 256 };
    const int most = (int)BUTLER_MIN(pass->s->gate_floats / (size_t)n, (size_t)n_ff);
    const int even = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n_ff, BUTLER_CEIL_DIV(n_ff, most)), EVEN) * EVEN;
    return BUTLER_MIN(even, most);
}

/* y[n][n_embd] = w_down activation(w_gate x, w_up x) for n rows; y may be x. */
static void feed_forward(const struct pass *pass, const struct butler_matrix *w_gate, const struct butler_matrix *w_up,
                         const struct butler_matrix *w_down, float *y, const float *x, int n)
{
    struct butler_scratch *s = pass->s;
    const int n_ff = w_up->n_rows;
    struct butler_matrix rows;
    const struct butler_product products[] = {{s->up, w_up}, {s->gate, &rows}};
    if (!w_gate->data) {
        multiply(pass, products, 1, x, n);
        pass->backend->activate(pass->backend, s->up, (size_t)n_ff, NULL, n, n_ff, pass->hp->activation);
    }
    for (int first = 0, part = gate_part(pass, n_ff, n); w_gate->data && first < n_ff; first += part) {
        rows = butler_matrix_rows(w_gate, first, BUTLER_MIN(part, n_ff - first));
        multiply(pass, products + (first > 0), 2 - (first > 0), x, n);
        pass->backend->activate(pass->backend, s->up + first, (size_t)n_ff, s->gate, n, rows.n_rows, pass->hp->activation);
    }
    matmul(pass, y, w_down, s->up, n);
}

/* The router's logits of a row become the weights of the experts that it uses, the others 0. */
static void choose_experts(const struct butler_hparams *hp, float *weights)
{
    float max = -INFINITY, sum = 0, chosen = 0;
    for (int e = 0; e < hp->n_experts; e++)
        max = fmaxf(max, weights[e]);
    for (int e = 0; e < hp->n_experts; e++)
        sum += weights[e] = expf(weights[e] - max);
    for (int k = 0; k < hp->n_experts_used; k++) { /* a chosen weight has its sign set */
        int best = -1;
        for (int e = 0; e < hp->n_experts; e++)
            if (!signbit(weights[e]) && (best < 0 || weights[e] > weights[best]))
                best = e;
        if (best < 0)
            break;
        chosen += weights[best];
        weights[best] = -weights[best];
    }
    for (int e = 0; e < hp->n_experts; e++)
        weights[e] = signbit(weights[e]) ? -weights[e] / (hp->experts_normalised ? chosen : sum) : 0;
}

/* h (normed) -> h: the FFN of n rows, where it is a mixture of experts. An expert runs for all rows that use it. */
static void mix_experts(const struct pass *pass, const struct butler_layer *layer, int n)
{
    const struct butler_hparams *hp = pass->hp;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const size_t n_embd = (size_t)hp->n_embd, n_experts = (size_t)hp->n_experts;
    matmul(pass, s->router, &layer->router, s->h, n);
    backend->download(backend, s->host_router, s->router, (size_t)n * n_experts * sizeof(float));
    for (int t = 0; t < n; t++)
        choose_experts(hp, s->host_router + (size_t)t * n_experts);
    backend->zero_many(backend, &(struct butler_piece){s->mixed, (size_t)n * n_embd * sizeof(float)}, 1);
    for (int e = 0; e < hp->n_experts; e++) {
        const struct butler_matrix w_gate = butler_matrix_rows(&layer->expert_gate, e * hp->n_expert_ff, hp->n_expert_ff),
                                   w_up = butler_matrix_rows(&layer->expert_up, e * hp->n_expert_ff, hp->n_expert_ff),
                                   w_down = butler_matrix_rows(&layer->expert_down, e * hp->n_embd, hp->n_embd);
        int m = 0;
        for (int t = 0; t < n; t++) {
            s->factors[m] = s->host_router[(size_t)t * n_experts + (size_t)e];
            s->rows[m] = t;
            m += s->factors[m] != 0;
        }
        if (m == 0)
            continue;
        backend->gather_rows(backend, s->expert_x, s->h, s->rows, m, hp->n_embd);
        feed_forward(pass, &w_gate, &w_up, &w_down, s->expert_x, s->expert_x, m);
        backend->scatter_add(backend, s->mixed, s->expert_x, s->rows, s->factors, m, hp->n_embd);
    }
    if (layer->shared_gate.data) {
        matmul(pass, s->router, &layer->shared_gate, s->h, n);
        backend->download(backend, s->host_router, s->router, (size_t)n * sizeof(float));
        feed_forward(pass, &layer->w_gate, &layer->w_up, &layer->w_down, s->expert_x, s->h, n);
        for (int t = 0; t < n; t++) {
            s->rows[t] = t;
            s->factors[t] = 1 / (1 + expf(-s->host_router[t]));
        }
        backend->scatter_add(backend, s->mixed, s->expert_x, s->rows, s->factors, n, hp->n_embd);
    }
    backend->copy(backend, s->h, s->mixed, (size_t)n * n_embd * sizeof(float));
}

/* What a layer's attention (or its feed-forward part) takes in, rows h[.][n_embd] -> predicted queries (and keys) of later layers.
 */
static void predict(struct butler_part *part, int layer, enum butler_predictor_input input, const float *h)
{
    struct butler_session *session = part->session;
    struct butler_predict *predict = session->predict;
    const double start = butler_seconds();
    int first;
    const int n_served =
        !part->failed && predict && predict->predictor->sizes.input == input ? butler_predict_serves(predict, layer, &first) : 0;
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
    if (butler_predict_run(predict, part->traffic, layer, h, part->n, session->n_past, decode, wanted, part->err) < 0)
        fail(part);
    if (covered)
        keep_for_later(part->traffic, metric_bytes);
    if (part->decode)
        session->stats.predict_s += butler_seconds() - start;
}

/* x += what a layer's attention or FFN gave, y[n_rows][n_embd], normed and scaled as the model does it. */
static void add_residual(const struct pass *pass, float *y, const struct butler_vector *post_norm, int n_rows)
{
    const size_t n = (size_t)n_rows * (size_t)pass->hp->n_embd;
    norm(pass, y, y, post_norm, n_rows, pass->hp->n_embd);
    if (pass->hp->residual_scale != 1)
        pass->backend->scale(pass->backend, y, pass->hp->residual_scale, n);
    pass->backend->add(pass->backend, pass->s->x, y, n);
}

/* Rows that go on after the attention of the last layer are those whose logits or hidden states somebody wants: they move to the
 * front. Returns how many there are; in other layers, all. */
static int keep_rows(const struct pass *pass, int layer)
{
    const bool last = layer == pass->hp->n_layers - 1;
    const struct butler_scratch *s = pass->s;
    bool moves = false;
    int n_rows = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        part->n_kept = !last || part->each || part->hidden || part->session->capture ? part->n : part->logits ? 1 : 0;
        part->kept_row = n_rows;
        for (int t = 0; t < part->n_kept; t++, n_rows++) {
            s->rows[n_rows] = part->row + part->n - part->n_kept + t;
            moves = moves || s->rows[n_rows] != n_rows;
        }
    }
    if (moves) {
        pass->backend->gather_rows(pass->backend, s->x, s->x, s->rows, n_rows, pass->hp->n_embd);
        pass->backend->gather_rows(pass->backend, s->h, s->h, s->rows, n_rows, pass->hp->n_embd);
        pass->backend->gather_rows(pass->backend, s->o, s->o, s->rows, n_rows, pass->hp->n_heads * pass->hp->head_dim);
    }
    return n_rows;
}

/* What a layer does after its attention, for the first n rows. */
static void close_layer(const struct pass *pass, int l, int n)
{
    const struct butler_layer *layer = &pass->model->layers[l];
    const struct butler_hparams *hp = pass->hp;
    struct butler_scratch *s = pass->s;
    const size_t n_embd = (size_t)hp->n_embd;
    matmul(pass, s->up, &layer->wo, s->o, n);            /* the FFN's memory is free until it begins */
    if (hp->parallel_residual && layer->ffn_norm.weight) /* else h is still what attn_norm gave */
        norm(pass, s->h, s->x, &layer->ffn_norm, n, hp->n_embd);
    add_residual(pass, s->up, &layer->attn_post_norm, n);
    if (hp->norms_after)
        norm(pass, s->x, s->x, &layer->attn_norm, n, hp->n_embd);
    if (!hp->parallel_residual)
        norm(pass, s->h, s->x, hp->norms_after ? &none : &layer->ffn_norm, n, hp->n_embd);
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        const struct butler_capture *capture = part->session->capture;
        const float *h = s->h + (size_t)part->kept_row * n_embd;
        if (capture && capture->fed) {
            pass->backend->download(pass->backend, s->host_h, h, (size_t)part->n * n_embd * sizeof(float));
            capture->fed(capture->user, l, part->session->n_past, part->n, s->host_h);
        }
        predict(part, l, BUTLER_PREDICTOR_INPUT_ATTENTION, h);
    }
    if (layer->router.data)
        mix_experts(pass, layer, n);
    else
        feed_forward(pass, &layer->w_gate, &layer->w_up, &layer->w_down, s->h, s->h, n);
    add_residual(pass, s->h, &layer->ffn_post_norm, n);
    if (hp->norms_after)
        norm(pass, s->x, s->x, &layer->ffn_norm, n, hp->n_embd);
}

/* --------------------------------------------------------------------------------------------------- logits */

/* scratch logits [n][n_vocab] of x[n][n_embd] */
static void logits_of(const struct pass *pass, const float *x, int n)
{
    const struct butler_hparams *hp = pass->hp;
    const size_t n_logits = (size_t)n * (size_t)hp->n_vocab;
    norm(pass, pass->s->h, x, &pass->model->output_norm, n, hp->n_embd);
    matmul(pass, pass->s->logits, &pass->model->output, pass->s->h, n);
    if (hp->logit_scale != 1)
        pass->backend->scale(pass->backend, pass->s->logits, hp->logit_scale, n_logits);
    if (hp->logit_softcap > 0)
        pass->backend->softcap(pass->backend, pass->s->logits, hp->logit_softcap, n_logits);
}

double butler_entropy(const float *logits, int n)
{
    double max = -INFINITY, sum = 0, weighted = 0;
    for (int i = 0; i < n; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int i = 0; i < n; i++) {
        const double x = (double)logits[i] - max, e = exp(x);
        sum += e;
        weighted += e * x;
    }
    return log(sum) - weighted / sum;
}

static bool stops(const struct butler_session *session, const float *logits)
{
    return session->policy.stop_entropy >= 0 && session->n_decoded >= session->policy.stop_after &&
           butler_entropy(logits, session->model->hp.n_vocab) < session->policy.stop_entropy;
}

/* Whether the numbers of rows that the model made are finite. what, of: their name, and what each belongs to. */
static int check_finite(const struct butler_session *session, const struct butler_top *top, const char *what, const char *of,
                        int position, struct butler_error *err)
{
    if (top->not_finite < 0)
        return 0;
    return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: the model's %s are not numbers: %f for %s %d at position %d",
                       session->model->path, what, (double)top->value, of, top->not_finite, position);
}

/* Whether all files that the part was computed from are still whole: a row computed from a file that shrank is worthless. */
static bool files_are_whole(struct butler_part *part)
{
    const struct butler_session *session = part->session;
    if (butler_gguf_check(session->model->gguf, part->err) == 0 &&
        (!session->predict || butler_gguf_check(session->predict->predictor->gguf, part->err) == 0))
        return true;
    fail(part);
    return false;
}

/* One row of logits goes to its session, and to who asked for it. t: which of the part's tokens. */
static void deliver(const struct pass *pass, struct butler_part *part, int t, const float *device, const struct butler_top *top)
{
    struct butler_session *session = part->session;
    const int position = session->n_past + t;
    if (part->failed || !files_are_whole(part))
        return;
    if (check_finite(session, top, "logits", "token", position, part->err) < 0) {
        fail(part);
        return;
    }
    pass->backend->download(pass->backend, session->logits, device, (size_t)pass->hp->n_vocab * sizeof(float));
    session->top = *top;
    session->has_logits = true;
    if (part->each && !part->cancelled && !part->each(part->user, position, session->logits))
        part->cancelled = true;
}

/* Final norm of a part's rows, for who asked for hidden states. */
static void deliver_hidden(const struct pass *pass, struct butler_part *part)
{
    const size_t n_embd = (size_t)pass->hp->n_embd;
    const float *hidden = pass->s->host_h;
    if (part->failed || !files_are_whole(part))
        return;
    norm(pass, pass->s->h, pass->s->x + (size_t)part->kept_row * n_embd, &pass->model->output_norm, part->n, pass->hp->n_embd);
    pass->backend->finite_top_k(pass->backend, pass->s->h, part->n, pass->hp->n_embd, 0, pass->s->tops);
    pass->backend->download(pass->backend, pass->s->host_h, pass->s->h, (size_t)part->n * n_embd * sizeof(float));
    for (int t = 0; t < part->n && !part->cancelled; t++, hidden += n_embd) {
        const int position = part->session->n_past + t;
        if (check_finite(part->session, &pass->s->tops[t], "hidden states", "channel", position, part->err) < 0) {
            fail(part);
            return;
        }
        part->cancelled = !part->hidden(part->user, position, hidden);
    }
}

/* Of the rows that were kept, those whose logits are wanted move to the front of x. Returns how many there are. */
static int keep_logits_rows(const struct pass *pass)
{
    bool moves = false;
    int n_rows = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        const int n = part->each ? part->n : part->logits ? 1 : 0, first = part->kept_row + part->n_kept - n;
        part->kept_row = n_rows;
        part->n_kept = n;
        for (int t = 0; t < n; t++, n_rows++) {
            pass->s->rows[n_rows] = first + t;
            moves = moves || first + t != n_rows;
        }
    }
    if (moves)
        pass->backend->gather_rows(pass->backend, pass->s->x, pass->s->x, pass->s->rows, n_rows, pass->hp->n_embd);
    return n_rows;
}

/* Whether somebody looks at how far the highest logit is above the next. */
static bool drafts(const struct pass *pass)
{
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].session->drafting)
            return true;
    return false;
}

/* Final norm and output of the rows that somebody wants, logits of as many at a time as there is room for. */
static void finish(const struct pass *pass)
{
    int i = 0;
    for (int p = 0; p < pass->n_parts; p++)
        if (pass->parts[p].hidden)
            deliver_hidden(pass, &pass->parts[p]);
    const int n_rows = keep_logits_rows(pass);
    for (int row = 0, m; row < n_rows; row += m) {
        m = BUTLER_MIN(pass->s->logit_rows, n_rows - row);
        logits_of(pass, pass->s->x + (size_t)row * (size_t)pass->hp->n_embd, m);
        pass->backend->finite_top_k(pass->backend, pass->s->logits, m, pass->hp->n_vocab, drafts(pass) ? 2 : 0, pass->s->tops);
        for (int r = row; r < row + m; r++) {
            while (r >= pass->parts[i].kept_row + pass->parts[i].n_kept)
                i++;
            struct butler_part *part = &pass->parts[i];
            deliver(pass, part, part->n - part->n_kept + r - part->kept_row,
                    pass->s->logits + (size_t)(r - row) * (size_t)pass->hp->n_vocab, &pass->s->tops[r - row]);
        }
    }
}

/* Rotation tables of a part's rows. Keys that are stored unrotated get the identity. */
static void part_rotations(const struct pass *pass, const struct butler_part *part)
{
    const struct butler_session *session = part->session;
    const size_t half = (size_t)pass->hp->n_rot / 2, local = (size_t)pass->s->max_rows * half;
    float *cosines = pass->s->host_cos + (size_t)part->row * half, *sines = pass->s->host_sin + (size_t)part->row * half;
    if (session->kv.rope_cos)
        for (size_t j = 0; j < (size_t)part->n * half; j++)
            cosines[j] = 1, sines[j] = 0;
    else
        rotations(session->rope_freq, session->rope_scale, half, session->n_past, part->n, cosines, sines);
    if (pass->model->rope_freq_local)
        rotations(pass->model->rope_freq_local, 1, half, session->n_past, part->n, cosines + local, sines + local);
}

/* Embeddings of the new tokens into the residual stream, and their rotation tables. */
static void begin(const struct pass *pass)
{
    const struct butler_model *model = pass->model;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const size_t n_embd = (size_t)pass->hp->n_embd, half = (size_t)pass->hp->n_rot / 2;
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].session->kv.rope_cos)
            place_rotations(pass, pass->parts[i].session, pass->parts[i].n);
    for (int i = 0; i < pass->n_parts; i++)
        if (!pass->parts[i].decode && pass->parts[i].session->kv.records_off)
            butler_kv_begin_records(&pass->parts[i].session->kv);
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        struct butler_session *session = part->session;
        if (session->steps && part->decode && !part->exact && butler_steps_before(session, part->err) < 0)
            fail(part);
        backend->embed(backend, s->x + (size_t)part->row * n_embd, &model->tok_embd, part->ids, part->n);
        part->traffic->weight_bytes += (uint64_t)part->n * model->tok_embd.row_bytes;
        for (int t = 0; t < part->n && model->pos_embd.data; t++) {
            const int32_t position = session->n_past + t;
            backend->embed(backend, s->h + (size_t)(part->row + t) * n_embd, &model->pos_embd, &position, 1);
        }
        if (pass->hp->rope != BUTLER_ROPE_NONE)
            part_rotations(pass, part);
    }
    for (int set = 0; pass->hp->rope != BUTLER_ROPE_NONE && set < 1 + (model->rope_freq_local != NULL); set++) {
        const size_t at = (size_t)set * (size_t)s->max_rows * half, bytes = (size_t)pass->n * half * sizeof(float);
        backend->upload(backend, s->cos + at, s->host_cos + at, bytes);
        backend->upload(backend, s->sin + at, s->host_sin + at, bytes);
    }
    if (pass->hp->embd_scale != 1)
        backend->scale(backend, s->x, pass->hp->embd_scale, (size_t)pass->n * n_embd);
    if (model->pos_embd.data)
        backend->add(backend, s->x, s->h, (size_t)pass->n * n_embd);
}

/* The tokens are part of the text now. */
static void note_tokens(struct butler_part *part)
{
    struct butler_session *session = part->session;
    if (part->failed || !files_are_whole(part))
        return;
    memcpy(session->tokens + session->n_past, part->ids, (size_t)part->n * sizeof *part->ids);
    if (!part->decode && session->n_dense == session->n_past && !session->evicted)
        session->n_dense += part->n;
    session->n_past += part->n;
    if (part->ends_prompt && session->kv.prompt_records) {
        butler_kv_end_records(&session->kv);
        session->n_observed = 0;
    }
    for (int l = 0; l < session->shape.n_layers && !session->policy.plan.guided; l++)
        if (!session->kv.records_off && observe_from(part, l) < session->n_past)
            session->n_observed = session->n_past;
    if (!part->logits && !part->each)
        session->has_logits = false;
    session->n_decoded = part->decode ? session->n_decoded + part->n : 0;
    session->stop = part->decode && part->logits && stops(session, session->logits);
    if (session->steps && part->logits && !part->exact && butler_steps_after(session, part->err) < 0)
        fail(part);
}

void butler_forward(struct butler_engine *engine, int n_parts)
{
    struct butler_traffic uncounted = {0};
    struct pass pass = {.backend = engine->backend,
                        .model = engine->model,
                        .hp = &engine->model->hp,
                        .s = &engine->scratch,
                        .parts = engine->scratch.parts,
                        .n_parts = n_parts,
                        .weights = &uncounted};
    const struct butler_hparams *hp = pass.hp;
    struct butler_scratch *s = pass.s;
    for (int i = n_parts - 1; i >= 0; i--) {
        pass.parts[i].traffic = pass.parts[i].decode ? &pass.parts[i].session->traffic : &pass.parts[i].session->prompt_traffic;
        if (pass.parts[i].decode)
            pass.weights = pass.parts[i].traffic;
    }
    for (int i = 0; i < n_parts; i++) {
        pass.parts[i].row = pass.parts[i].kept_row = pass.n;
        pass.n += pass.parts[i].n;
    }
    begin(&pass);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct butler_layer *layer = &pass.model->layers[l];
        norm(&pass, s->h, s->x, hp->norms_after ? &none : &layer->attn_norm, pass.n, hp->n_embd);
        for (int i = 0; i < n_parts; i++)
            predict(&pass.parts[i], l, BUTLER_PREDICTOR_INPUT_NORM, s->h + (size_t)pass.parts[i].row * (size_t)hp->n_embd);
        const struct butler_product products[] = {{s->q, &layer->wq}, {s->k, &layer->wk}, {s->v, &layer->wv}};
        multiply(&pass, products, BUTLER_COUNT(products), s->h, pass.n);
        prepare_heads(&pass, layer);
        attention(&pass, l);
        const int n_rows = keep_rows(&pass, l);
        if (n_rows > 0)
            close_layer(&pass, l, n_rows);
    }
    finish(&pass);
    for (int i = 0; i < n_parts; i++)
        note_tokens(&pass.parts[i]);
}
