/* The forward pass: one layer loop for every architecture, every policy and every backend. It knows only which parts a
 * layer has; what the policy does between the projections is `attention` below. */
#include <math.h>
#include <string.h>

#include "predict.h"
#include "session.h"

/* cos and sin of positions [first, first + n) into rows [0, n) of the tables. */
static void rotations(const struct butler_session *session, int first, int n, float *cosines, float *sines)
{
    const size_t half = (size_t)session->model->hp.n_rot / 2;
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)(first + t) * (double)session->rope_freq[i];
            cosines[(size_t)t * half + i] = (float)(cos(angle) * (double)session->rope_scale);
            sines[(size_t)t * half + i] = (float)(sin(angle) * (double)session->rope_scale);
        }
}

/* Where keys stay unrotated, the attention rotates them by their place in the cache: the table grows with the places. */
static void place_rotations(struct butler_session *session, int n)
{
    struct butler_workspace *work = &session->work;
    const size_t half = (size_t)work->n_rot / 2;
    int n_places = 0;
    for (int l = 0; l < session->kv.n_layers; l++)
        n_places = BUTLER_MAX(n_places, butler_kv_at(&session->kv, l, 0)->n_slots + n);
    if (n_places > session->n_places) {
        rotations(session, session->n_places, n_places - session->n_places, work->rope_cos + (size_t)session->n_places * half,
                  work->rope_sin + (size_t)session->n_places * half);
        session->n_places = n_places;
    }
}

static void matmul(struct butler_session *session, float *y, const struct butler_matrix *w, const float *x, int n)
{
    struct butler_backend *backend = session->model->backend;
    backend->matmul(backend, &session->work, y, w, x, n);
    session->traffic.weight_bytes += w->row_bytes * (uint64_t)w->n_rows;
}

/* Queries from this position on are shown to the metric: INT_MAX, none. */
static int observe_from(const struct butler_session *session, const struct butler_pass *pass, int layer)
{
    const struct butler_policy *policy = &session->policy;
    const int window = policy->metric && policy->metric->attention_window && layer >= policy->dense_layers
                           ? policy->metric->attention_window(policy->values)
                           : 0;
    /* Where every block is cut, every block needs its own last queries. */
    const int end = policy->prefill_evict && !pass->decode ? session->n_past + pass->n : pass->prompt_end;
    return window == 0 ? INT32_MAX : BUTLER_MAX(end - BUTLER_MIN(window, end), 0);
}

/* Time since *mark into *sum; moves the mark. */
static void lap(double *sum, double *mark)
{
    const double now = butler_seconds();
    *sum += now - *mark;
    *mark = now;
}

/* q, k, v of the new tokens -> session->o, the cache grown and, where the policy says so, cut. */
static int attention(struct butler_session *session, const struct butler_pass *pass, int layer, struct butler_error *err)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_policy *policy = &session->policy;
    const int n = pass->n, from = observe_from(session, pass, layer), last = session->n_past + n - 1;
    const bool sparse = layer >= policy->dense_layers, evicts = sparse && policy->method == BUTLER_EVICT;
    const bool cuts_now = pass->decode ? !policy->evict_at_prefill_only : pass->prompt_ends || policy->prefill_evict;
    struct butler_layer_state state = {policy, &session->shape,        &session->kv,   &session->work, &session->traffic,
                                       layer,  session->shape.n_heads, session->n_past};
    struct butler_stats *stats = &session->stats;
    double mark = butler_seconds();

    if (evicts && pass->decode && cuts_now && butler_kv_at(&session->kv, layer, 0)->n_slots > 0) {
        state.position--; /* the cache ends with the token before */
        backend->score(backend, &state, session->q);
        lap(&stats->score_s, &mark);
        state.position++;
        backend->evict(backend, &state, 1);
        lap(&stats->select_s, &mark);
    }
    if (butler_kv_grow(&session->kv, layer, n, session->n_past, err) < 0)
        return BUTLER_ERROR_LENGTH;
    backend->append(backend, &state, session->k, session->v, n);
    if (!pass->decode) {
        backend->attend_block(backend, &state, session->q, session->o, n, from);
        if (evicts && cuts_now) {
            state.position = last;
            backend->score(backend, &state,
                           session->q + (size_t)(n - 1) * (size_t)(session->shape.n_heads * session->shape.head_dim));
            backend->evict(backend, &state, 0);
        }
        return 0;
    }
    struct butler_lists lists = {session->kv.n_kv_heads, session->work.list_slots, session->work.list_n};
    for (int i = 0; i < lists.n_lists; i++) {
        struct butler_kv_head *head = butler_kv_at(&session->kv, layer, i);
        lists.slots[i] = session->work.rope_cos ? head->order : NULL;
        lists.n[i] = head->n_slots;
    }
    lap(&stats->score_s, &mark);
    if (sparse && policy->method == BUTLER_RETRIEVE && policy->fused) {
        backend->attend_fused(backend, &state, session->q, &lists, session->o);
        lap(&stats->attend_s, &mark);
        return 0;
    }
    if (sparse && policy->method == BUTLER_RETRIEVE) {
        backend->score(backend, &state, session->q);
        lap(&stats->score_s, &mark);
        backend->select(backend, &state, &lists);
        lap(&stats->select_s, &mark);
    }
    backend->attend(backend, &state, session->q, &lists, session->o, from != INT32_MAX);
    lap(&stats->attend_s, &mark);
    return 0;
}

static void head_norms(struct butler_session *session, const struct butler_layer *layer, int n)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_hparams *hp = &session->model->hp;
    if (layer->q_norm.weight)
        backend->norm(backend, session->q, session->q, &layer->q_norm, n * hp->n_heads, hp->head_dim, hp->norm, hp->norm_eps);
    if (layer->k_norm.weight)
        backend->norm(backend, session->k, session->k, &layer->k_norm, n * hp->n_kv_heads, hp->head_dim, hp->norm, hp->norm_eps);
}

/* session->h (normed) -> session->h: the feed-forward part. */
static void feed_forward(struct butler_session *session, const struct butler_layer *layer, int n)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_hparams *hp = &session->model->hp;
    const bool gated = layer->w_gate.data != NULL;
    if (gated)
        matmul(session, session->gate, &layer->w_gate, session->h, n);
    matmul(session, session->up, &layer->w_up, session->h, n);
    backend->activate(backend, session->up, gated ? session->gate : NULL, (size_t)n * (size_t)hp->n_ff, hp->activation);
    matmul(session, session->h, &layer->w_down, session->up, n);
}

/* What a layer's attention (or its feed-forward part) takes in -> what later layers will look for. */
static int foresee(struct butler_session *session, const struct butler_pass *pass, int layer, enum butler_predictor_input input,
                   struct butler_error *err)
{
    struct butler_predict *predict = session->predict;
    double mark = butler_seconds(), sum = 0;
    int first;
    if (!predict || predict->predictor->sizes.input != input || butler_predict_serves(predict, layer, &first) == 0)
        return 0;
    const int code = butler_predict_run(predict, &session->traffic, layer, session->h, pass->n, session->n_past, pass->decode,
                                        pass->decode || session->policy.method == BUTLER_EVICT, err);
    lap(&sum, &mark);
    session->stats.predict_s += pass->decode ? sum : 0;
    return code;
}

static void logits_of(struct butler_session *session, const float *x, float *logits)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_hparams *hp = &session->model->hp;
    backend->norm(backend, session->h, x, &session->model->output_norm, 1, hp->n_embd, hp->norm, hp->norm_eps);
    matmul(session, logits, &session->model->output, session->h, 1);
}

double butler_entropy(const float *logits, int n)
{
    double max = -INFINITY, sum = 0, weighted = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
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

/* True when the prediction after this layer is already certain and the layers left may be skipped. */
static bool leaves_early(struct butler_session *session, int layer)
{
    if (!session->policy.stop_layers || layer + 1 >= session->model->hp.n_layers)
        return false;
    logits_of(session, session->x, session->exit_logits);
    return stops(session, session->exit_logits);
}

static int check_logits(struct butler_session *session, const float *logits, int position, struct butler_error *err)
{
    for (int i = 0; i < session->model->hp.n_vocab; i++)
        if (!isfinite(logits[i])) {
            session->failed = true;
            return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: the model's logits are not numbers: %f for token %d at position %d",
                               session->model->path, (double)logits[i], i, position);
        }
    return 0;
}

/* Final norm and output for the last token, or for each where the caller wants them. */
static int finish(struct butler_session *session, const struct butler_pass *pass, struct butler_error *err)
{
    const size_t n_embd = (size_t)session->model->hp.n_embd;
    if (!pass->each && !pass->decode && !pass->prompt_ends)
        return 0;
    for (int t = pass->each ? 0 : pass->n - 1; t < pass->n; t++) {
        logits_of(session, session->x + (size_t)t * n_embd, session->logits);
        if (check_logits(session, session->logits, session->n_past + t, err) < 0)
            return BUTLER_ERROR_NUMERIC;
        if (pass->each)
            pass->each(pass->user, session->n_past + t, session->logits);
    }
    session->has_logits = true;
    return 0;
}

int butler_forward(struct butler_session *session, const struct butler_pass *pass, struct butler_error *err)
{
    const struct butler_model *model = session->model;
    const struct butler_hparams *hp = &model->hp;
    struct butler_backend *backend = model->backend;
    const int n = pass->n;
    const size_t n_x = (size_t)n * (size_t)hp->n_embd, n_q = (size_t)(hp->n_heads * hp->head_dim);
    const bool rotates = hp->rope != BUTLER_ROPE_NONE && !session->policy.rope_in_cache;
    bool skipping = false; /* the stack was left early: the layers that remain only fill their caches */

    backend->embed(backend, session->x, &model->tok_embd, pass->ids, n);
    session->traffic.weight_bytes += (uint64_t)n * model->tok_embd.row_bytes;
    if (model->pos_embd.data) {
        for (int t = 0; t < n; t++) {
            const int32_t position = session->n_past + t;
            backend->embed(backend, session->h + (size_t)t * (size_t)hp->n_embd, &model->pos_embd, &position, 1);
        }
        backend->add(backend, session->x, session->h, n_x);
    }
    if (rotates)
        rotations(session, session->n_past, n, session->cos, session->sin);
    else if (session->work.rope_cos)
        place_rotations(session, n);

    for (int l = 0; l < hp->n_layers; l++) {
        const struct butler_layer *layer = &model->layers[l];

        backend->norm(backend, session->h, session->x, &layer->attn_norm, n, hp->n_embd, hp->norm, hp->norm_eps);
        if (foresee(session, pass, l, BUTLER_PREDICTOR_INPUT_NORM, err) < 0)
            goto fail;
        matmul(session, session->q, &layer->wq, session->h, n);
        matmul(session, session->k, &layer->wk, session->h, n);
        matmul(session, session->v, &layer->wv, session->h, n);
        head_norms(session, layer, n);
        if (rotates) {
            backend->rope(backend, session->q, session->cos, session->sin, n, hp->n_heads, hp->head_dim, hp->n_rot, hp->rope);
            backend->rope(backend, session->k, session->cos, session->sin, n, hp->n_kv_heads, hp->head_dim, hp->n_rot, hp->rope);
        }
        if (session->capture && session->capture->layer)
            session->capture->layer(session->capture->user, l, session->n_past, n, session->x, session->h, session->q, session->k);
        if (session->queries)
            memcpy(session->queries + (size_t)l * n_q, session->q + (size_t)(n - 1) * n_q, n_q * sizeof *session->q);
        if (attention(session, pass, l, err) < 0)
            goto fail;
        if (session->capture && session->capture->attended)
            session->capture->attended(session->capture->user, l, session->n_past, n, session->o);
        if (skipping)
            continue;
        matmul(session, session->h, &layer->wo, session->o, n);
        backend->add(backend, session->x, session->h, n_x);

        backend->norm(backend, session->h, session->x, &layer->ffn_norm, n, hp->n_embd, hp->norm, hp->norm_eps);
        if (session->capture && session->capture->fed)
            session->capture->fed(session->capture->user, l, session->n_past, n, session->h);
        if (foresee(session, pass, l, BUTLER_PREDICTOR_INPUT_ATTENTION, err) < 0)
            goto fail;
        feed_forward(session, layer, n);
        backend->add(backend, session->x, session->h, n_x);
        skipping = pass->decode && leaves_early(session, l);
    }
    if (finish(session, pass, err) < 0)
        return BUTLER_ERROR_NUMERIC;
    memcpy(session->tokens + session->n_past, pass->ids, (size_t)n * sizeof *pass->ids);
    session->n_past += n;
    if (pass->decode) {
        session->n_decoded++;
        session->stop = stops(session, session->logits);
    }
    return 0;
fail:
    session->failed = true;
    return BUTLER_ERROR_LENGTH;
}
