/* The forward pass: one layer loop for every architecture, every policy and every backend. It knows only which parts a
 * layer has; what the policy does between the projections is `attention` below. */
#include <math.h>
#include <string.h>

#include "cpu/attend.h"
#include "engine/predict.h"
#include "engine/session.h"

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

/* Rows of a decode step may be of several sessions: each comes out as it would alone. */
static void multiply(struct butler_session *session, const struct butler_product *products, int n_products, const float *x, int n,
                     bool decode)
{
    struct butler_backend *backend = session->model->backend;
    backend->matmul(backend, &session->work, products, n_products, x, n, decode);
    for (int i = 0; i < n_products; i++)
        session->traffic.weight_bytes += products[i].w->row_bytes * (uint64_t)products[i].w->n_rows;
}

static void matmul(struct butler_session *session, float *y, const struct butler_matrix *w, const float *x, int n, bool decode)
{
    multiply(session, &(struct butler_product){y, w}, 1, x, n, decode);
}

enum product { OUTPUT = -1, QKV, WO, UP, DOWN };

/* Tells the backend what follows the product of a decode step that comes next, `product` of layer l. */
static void expect_after(const struct butler_session *session, const struct butler_pass *pass, int l, enum product product)
{
    const struct butler_model *model = session->model;
    const struct butler_layer *layer = &model->layers[product == OUTPUT ? 0 : l];
    const bool last = product == DOWN && l + 1 == model->hp.n_layers;
    const struct butler_layer *next = product == DOWN && !last ? layer + 1 : layer;
    const struct butler_matrix *const qkv[] = {&next->wq, &next->wk, &next->wv}, *const up[] = {&layer->w_up, &layer->w_gate};
    if (!pass->decode)
        return;
    if (last)
        model->backend->expect(model->backend, (const struct butler_matrix *const[]){&model->output}, 1);
    else if (product == DOWN || product == OUTPUT)
        model->backend->expect(model->backend, qkv, BUTLER_COUNT(qkv));
    else if (product == WO)
        model->backend->expect(model->backend, up, layer->w_gate.data ? 2 : 1);
    else
        model->backend->expect(model->backend, (const struct butler_matrix *const[]){product == QKV ? &layer->wo : &layer->w_down},
                               1);
}

/* Queries from this position on are shown to the metric: INT_MAX, none. */
static int observe_from(const struct butler_session *session, const struct butler_pass *pass, int layer)
{
    const struct butler_policy *policy = &session->policy;
    const int window = policy->metric && policy->metric->attention_window && layer >= policy->dense_layers
                           ? policy->metric->attention_window(policy->values)
                           : 0;
    /* Where every block is cut, every block needs its own last queries. */
    const int end = pass->decode ? session->n_past + 1 : policy->prefill_evict ? session->n_past + pass->n : pass->prompt_end;
    return window == 0 ? INT32_MAX : BUTLER_MAX(end - BUTLER_MIN(window, end), 0);
}

/* Time since *mark into *sum; moves the mark. */
static void lap(double *sum, double *mark)
{
    const double now = butler_seconds();
    *sum += now - *mark;
    *mark = now;
}

/* The rows of one session in the block: q, o [n][n_heads][head_dim], k, v [n][n_kv_heads][head_dim]. */
struct heads {
    const float *q, *k, *v;
    float *o;
};

/* q, k, v of n new tokens -> o, the cache grown and, where the policy says so, cut. */
static int attention(struct butler_session *session, const struct butler_pass *pass, int layer, int n, const struct heads *heads,
                     struct butler_error *err)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_policy *policy = &session->policy;
    const int from = observe_from(session, pass, layer), last = session->n_past + n - 1;
    const bool sparse = layer >= policy->dense_layers, evicts = sparse && policy->method == BUTLER_EVICT;
    const bool retrieves = sparse && policy->method == BUTLER_RETRIEVE && pass->decode;
    const bool cuts_now = pass->decode ? !policy->evict_at_prefill_only : pass->prompt_ends || policy->prefill_evict;
    struct butler_layer_state state = {policy, &session->shape,        &session->kv,   &session->work, &session->traffic,
                                       layer,  session->shape.n_heads, session->n_past};
    struct butler_stats *stats = &session->stats;
    double mark = butler_seconds();

    if (evicts && pass->decode && cuts_now && butler_kv_at(&session->kv, layer, 0)->n_slots > 0) {
        state.position--; /* the cache ends with the token before */
        backend->score(backend, &state, heads->q);
        lap(&stats->score_s, &mark);
        state.position++;
        backend->evict(backend, &state, 1);
        lap(&stats->select_s, &mark);
    }
    if (butler_kv_grow(&session->kv, layer, n, session->n_past, err) < 0)
        return BUTLER_ERROR_LENGTH;
    if (!pass->decode || (retrieves && policy->fused))
        backend->append(backend, &state, heads->k, heads->v, n);
    if (!pass->decode) {
        session->work.selected_at[layer] = 0;
        backend->attend_block(backend, &state, heads->q, heads->o, n, INT32_MAX, from);
        if (evicts && cuts_now) {
            state.position = last;
            backend->score(backend, &state,
                           heads->q + (size_t)(n - 1) * (size_t)(session->shape.n_heads * session->shape.head_dim));
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
    if (retrieves && policy->fused) {
        backend->attend_fused(backend, &state, heads->q, &lists, heads->o);
        lap(&stats->attend_s, &mark);
        return 0;
    }
    if (retrieves) {
        double seconds = 0;
        const double scoring = backend->retrieve(backend, &state, heads->q, heads->k, heads->v, &lists);
        lap(&seconds, &mark);
        stats->score_s += scoring * seconds;
        stats->select_s += (1 - scoring) * seconds;
    }
    backend->attend(backend, &state, heads->q, retrieves ? NULL : heads->k, retrieves ? NULL : heads->v, &lists, heads->o,
                    from != INT32_MAX);
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

/* How many outputs of the gate are computed together: equal parts of as many as fit for n rows. */
static int gate_part(const struct butler_session *session, int n)
{
    enum { EVEN = 256 };
    const int n_ff = session->model->hp.n_ff, most = (int)BUTLER_MIN(session->gate_floats / (size_t)n, (size_t)n_ff);
    const int even = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n_ff, BUTLER_CEIL_DIV(n_ff, most)), EVEN) * EVEN;
    return BUTLER_MIN(even, most);
}

/* session->h (normed) -> session->h: the feed-forward part. */
static void feed_forward(struct butler_session *session, const struct butler_pass *pass, int l, int n)
{
    const bool decode = pass->decode;
    const struct butler_layer *layer = &session->model->layers[l];
    struct butler_backend *backend = session->model->backend;
    const struct butler_hparams *hp = &session->model->hp;
    const size_t n_ff = (size_t)hp->n_ff;
    struct butler_matrix rows;
    const struct butler_product products[] = {{session->up, &layer->w_up}, {session->gate, &rows}};
    expect_after(session, pass, l, UP);
    if (!layer->w_gate.data) {
        multiply(session, products, 1, session->h, n, decode);
        backend->activate(backend, session->up, n_ff, NULL, n, hp->n_ff, hp->activation);
    }
    for (int first = 0, part = gate_part(session, n); layer->w_gate.data && first < hp->n_ff; first += part) {
        rows = butler_matrix_rows(&layer->w_gate, first, BUTLER_MIN(part, hp->n_ff - first));
        multiply(session, products + (first > 0), 2 - (first > 0), session->h, n, decode);
        backend->activate(backend, session->up + first, n_ff, session->gate, n, rows.n_rows, hp->activation);
    }
    expect_after(session, pass, l, DOWN);
    matmul(session, session->h, &layer->w_down, session->up, n, decode);
}

/* What a layer's attention (or its feed-forward part) takes in, h[n][n_embd] -> what later layers will look for. */
static int foresee(struct butler_session *session, const struct butler_pass *pass, int layer, enum butler_predictor_input input,
                   const float *h, int n, struct butler_error *err)
{
    struct butler_predict *predict = session->predict;
    double mark = butler_seconds(), sum = 0;
    int first;
    const int n_served = predict && predict->predictor->sizes.input == input ? butler_predict_serves(predict, layer, &first) : 0;
    if (n_served == 0)
        return 0;
    const bool retrieves = session->policy.method == BUTLER_RETRIEVE;
    bool wanted = !retrieves;
    for (int l = first; l < first + n_served && retrieves && pass->decode; l++)
        wanted = wanted || butler_selects(&session->policy, &session->work, l, session->n_past);
    const int code = butler_predict_run(predict, &session->traffic, layer, h, n, session->n_past, pass->decode, wanted, err);
    lap(&sum, &mark);
    session->stats.predict_s += pass->decode ? sum : 0;
    return code;
}

/* logits[n][n_vocab] of x[n][n_embd] */
static void logits_of(struct butler_session *session, const float *x, float *logits, int n, bool decode)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_hparams *hp = &session->model->hp;
    backend->norm(backend, session->h, x, &session->model->output_norm, n, hp->n_embd, hp->norm, hp->norm_eps);
    matmul(session, logits, &session->model->output, session->h, n, decode);
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

/* True when the prediction after this layer is already certain and the layers left may be skipped. */
static bool leaves_early(struct butler_session *session, const float *x, int layer)
{
    if (!session->policy.stop_layers || layer + 1 >= session->model->hp.n_layers)
        return false;
    logits_of(session, x, session->exit_logits, 1, true);
    return stops(session, session->exit_logits);
}

/* Without a way out of the loop, and in integers, compilers make vectors of it: a third of the time. */
static bool all_finite(const float *x, int n)
{
    const int32_t exponent = 0x7f800000;
    int32_t others = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        others |= (bits & exponent) == exponent;
    }
    return !others;
}

static int check_logits(struct butler_session *session, const float *logits, int position, struct butler_error *err)
{
    const int n_vocab = session->model->hp.n_vocab;
    if (all_finite(logits, n_vocab))
        return 0;
    int i = 0;
    while (i < n_vocab - 1 && isfinite(logits[i]))
        i++;
    session->failed = true;
    return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: the model's logits are not numbers: %f for token %d at position %d",
                       session->model->path, (double)logits[i], i, position);
}

/* Final norm and output for the last token of each session, or for every token where the caller wants them: as many at a
 * time as fit the rows of the feed-forward part, which are free by now. errs[n_sessions]. */
static int finish(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass, struct butler_error *errs)
{
    struct butler_session *lead = sessions[0];
    const struct butler_hparams *hp = &lead->model->hp;
    const size_t n_embd = (size_t)hp->n_embd, n_vocab = (size_t)hp->n_vocab;
    const int rows = pass->n / n_sessions, room = (int)BUTLER_MAX((size_t)lead->n_block * (size_t)hp->n_ff / n_vocab, (size_t)1);
    int code = 0;
    if (!pass->each && !pass->decode && !pass->prompt_ends)
        return 0;
    for (int t = pass->each || pass->decode ? 0 : pass->n - 1, m; t < pass->n; t += m) {
        m = BUTLER_MIN(room, pass->n - t);
        float *logits = m == 1 ? sessions[t / rows]->logits : lead->up;
        expect_after(lead, pass, 0, OUTPUT);
        logits_of(lead, lead->x + (size_t)t * n_embd, logits, m, pass->decode);
        for (int i = t; i < t + m; i++, logits += n_vocab) {
            struct butler_session *session = sessions[i / rows];
            const int position = session->n_past + i % rows;
            if (check_logits(session, logits, position, &errs[i / rows]) < 0) {
                code = BUTLER_ERROR_NUMERIC;
                if (n_sessions == 1)
                    return code;
                continue;
            }
            if (logits != session->logits && (pass->decode || i == pass->n - 1))
                memcpy(session->logits, logits, n_vocab * sizeof *logits);
            if (pass->each)
                pass->each(pass->user, position, logits);
            session->has_logits = true;
        }
    }
    return code;
}

/* Residual stream of the new tokens, and their rotations: those of keys that stay unrotated turn by nothing. */
static void begin(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass)
{
    struct butler_session *lead = sessions[0];
    const struct butler_model *model = lead->model;
    struct butler_backend *backend = model->backend;
    const size_t n_embd = (size_t)model->hp.n_embd, half = (size_t)model->hp.n_rot / 2;
    const int rows = pass->n / n_sessions;
    backend->embed(backend, lead->x, &model->tok_embd, pass->ids, pass->n);
    for (int s = 0; s < n_sessions; s++) {
        struct butler_session *session = sessions[s];
        float *cosines = lead->cos + (size_t)(s * rows) * half, *sines = lead->sin + (size_t)(s * rows) * half;
        session->traffic.weight_bytes += (uint64_t)rows * model->tok_embd.row_bytes;
        session->left = false;
        for (int t = 0; t < rows && model->pos_embd.data; t++) {
            const int32_t position = session->n_past + t;
            backend->embed(backend, lead->h + (size_t)(s * rows + t) * n_embd, &model->pos_embd, &position, 1);
        }
        if (session->work.rope_cos) {
            place_rotations(session, rows);
            for (size_t i = 0; i < (size_t)rows * half; i++)
                cosines[i] = 1, sines[i] = 0;
        } else if (model->hp.rope != BUTLER_ROPE_NONE) {
            rotations(session, session->n_past, rows, cosines, sines);
        }
    }
    if (model->pos_embd.data)
        backend->add(backend, lead->x, lead->h, (size_t)pass->n * n_embd);
}

/* x += h for the rows of the sessions that have not left the stack. */
static void add_residual(struct butler_session *const *sessions, int n_sessions, float *x, size_t n_row)
{
    struct butler_session *lead = sessions[0];
    struct butler_backend *backend = lead->model->backend;
    for (int s = 0; s < n_sessions; s++)
        if (!sessions[s]->left)
            backend->add(backend, x + (size_t)s * n_row, lead->h + (size_t)s * n_row, n_row);
}

/* Session `which` cannot go on inside a layer; the caches of the others have grown too, and none is what it was. */
static int give_up(struct butler_session *const *sessions, int n_sessions, int which, struct butler_error *errs)
{
    for (int s = 0; s < n_sessions; s++) {
        sessions[s]->failed = true;
        if (s != which)
            butler_fail(&errs[s], errs[which].code, "session %d of the batch failed: %s", which, errs[which].message);
    }
    return errs[which].code;
}

static int attend_all(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass, int layer,
                      struct butler_error *errs)
{
    struct butler_session *lead = sessions[0];
    const int rows = pass->n / n_sessions;
    const size_t n_token = (size_t)(lead->shape.n_heads * lead->shape.head_dim), n_q = (size_t)rows * n_token,
                 n_x = (size_t)rows * (size_t)lead->model->hp.n_embd,
                 n_kv = (size_t)(rows * lead->shape.n_kv_heads * lead->shape.head_dim);
    for (size_t s = 0; s < (size_t)n_sessions; s++) {
        struct butler_session *session = sessions[s];
        const struct butler_capture *capture = session->capture;
        const struct heads heads = {lead->q + s * n_q, lead->k + s * n_kv, lead->v + s * n_kv, lead->o + s * n_q};
        if (capture && capture->layer)
            capture->layer(capture->user, layer, session->n_past, rows, lead->x + s * n_x, lead->h + s * n_x, heads.q, heads.k);
        if (session->queries)
            memcpy(session->queries + (size_t)layer * n_token, heads.q + n_q - n_token, n_token * sizeof *heads.q);
        if (attention(session, pass, layer, rows, &heads, &errs[s]) < 0)
            return give_up(sessions, n_sessions, (int)s, errs);
        if (capture && capture->attended)
            capture->attended(capture->user, layer, session->n_past, rows, heads.o);
    }
    return 0;
}

/* Rows of a prompt's block that nobody will look at once the last layer has filled its cache: what follows runs for its end
 * alone, as many rows as take the way of a whole block through the products, and none where the prompt goes on. */
static int unused_rows(const struct butler_session *session, const struct butler_pass *pass, int layer)
{
    enum { END = 16 };
    if (pass->decode || pass->each || session->capture || layer < session->model->hp.n_layers - 1)
        return 0;
    return pass->prompt_ends ? BUTLER_MAX(pass->n - END, 0) : pass->n;
}

/* What a layer does after its attention, for the rows of the block from `first` on: only a single session skips any. */
static int close_layer(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass, int l, int first,
                       struct butler_error *errs)
{
    struct butler_session *lead = sessions[0];
    const struct butler_layer *layer = &lead->model->layers[l];
    const struct butler_hparams *hp = &lead->model->hp;
    struct butler_backend *backend = lead->model->backend;
    const int n = pass->n - first, rows = n / n_sessions;
    const size_t n_row = (size_t)rows * (size_t)hp->n_embd;
    float *x = lead->x + (size_t)first * (size_t)hp->n_embd;

    expect_after(lead, pass, l, WO);
    matmul(lead, lead->h, &layer->wo, lead->o + (size_t)first * (size_t)(hp->n_heads * hp->head_dim), n, pass->decode);
    add_residual(sessions, n_sessions, x, n_row);
    backend->norm(backend, lead->h, x, &layer->ffn_norm, n, hp->n_embd, hp->norm, hp->norm_eps);
    for (int s = 0; s < n_sessions; s++) {
        const struct butler_capture *capture = sessions[s]->capture;
        const float *h = lead->h + (size_t)s * n_row;
        if (sessions[s]->left)
            continue;
        if (capture && capture->fed)
            capture->fed(capture->user, l, sessions[s]->n_past, rows, h);
        if (foresee(sessions[s], pass, l, BUTLER_PREDICTOR_INPUT_ATTENTION, h, rows, &errs[s]) < 0)
            return give_up(sessions, n_sessions, s, errs);
    }
    feed_forward(lead, pass, l, n);
    add_residual(sessions, n_sessions, x, n_row);
    return 0;
}

int butler_forward(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass,
                   struct butler_error *errs)
{
    struct butler_session *lead = sessions[0];
    const struct butler_model *model = lead->model;
    const struct butler_hparams *hp = &model->hp;
    struct butler_backend *backend = model->backend;
    const int n = pass->n, rows = n / n_sessions;
    const bool decode = pass->decode;
    const size_t n_row = (size_t)rows * (size_t)hp->n_embd;
    int code, n_left = 0; /* sessions that left the stack early: the layers that remain only fill their caches */

    begin(sessions, n_sessions, pass);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct butler_layer *layer = &model->layers[l];

        backend->norm(backend, lead->h, lead->x, &layer->attn_norm, n, hp->n_embd, hp->norm, hp->norm_eps);
        for (int s = 0; s < n_sessions; s++)
            if (foresee(sessions[s], pass, l, BUTLER_PREDICTOR_INPUT_NORM, lead->h + (size_t)s * n_row, rows, &errs[s]) < 0)
                return give_up(sessions, n_sessions, s, errs);
        const struct butler_product products[] = {{lead->q, &layer->wq}, {lead->k, &layer->wk}, {lead->v, &layer->wv}};
        expect_after(lead, pass, l, QKV);
        multiply(lead, products, BUTLER_COUNT(products), lead->h, n, decode);
        head_norms(lead, layer, n);
        if (hp->rope != BUTLER_ROPE_NONE) {
            backend->rope(backend, lead->q, lead->cos, lead->sin, n, hp->n_heads, hp->head_dim, hp->n_rot, hp->rope);
            backend->rope(backend, lead->k, lead->cos, lead->sin, n, hp->n_kv_heads, hp->head_dim, hp->n_rot, hp->rope);
        }
        code = attend_all(sessions, n_sessions, pass, l, errs);
        if (code < 0)
            return code;
        const int skipped = unused_rows(lead, pass, l);
        if (n_left == n_sessions || skipped == n)
            continue;
        code = close_layer(sessions, n_sessions, pass, l, skipped, errs);
        if (code < 0)
            return code;
        for (int s = 0; s < n_sessions && decode; s++)
            if (!sessions[s]->left && leaves_early(sessions[s], lead->x + (size_t)s * n_row, l)) {
                sessions[s]->left = true;
                n_left++;
            }
    }
    code = finish(sessions, n_sessions, pass, errs);
    for (int s = 0; s < n_sessions; s++) {
        struct butler_session *session = sessions[s];
        if (session->failed)
            continue;
        memcpy(session->tokens + session->n_past, pass->ids + s * rows, (size_t)rows * sizeof *pass->ids);
        session->n_past += rows;
        if (decode) {
            session->n_decoded++;
            session->stop = stops(session, session->logits);
        }
    }
    return code;
}
