/* Sessions: what a program holds while a text is read and written. Builds the KV store and the activations once; the
 * token loop allocates nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/predict.h"
#include "engine/session.h"

enum { BATCH = 64 }; /* sessions that share a pass */

/* Floats of whole cache lines. */
static size_t line(size_t n)
{
    return (n + 15) / 16 * 16;
}

static int make_activations(struct butler_session *session, struct butler_error *err)
{
    const struct butler_hparams *hp = &session->model->hp;
    struct butler_arena *arena = &session->arena;
    const size_t n = (size_t)session->n_block, dim = (size_t)hp->head_dim, rot = (size_t)hp->n_rot / 2;
    const size_t queries = line(n * (size_t)hp->n_heads * dim), keys = line(n * (size_t)hp->n_kv_heads * dim);
    session->gate_floats = 2 * queries + 2 * keys;
    butler_arena_want(arena, &session->x, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(arena, &session->h, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(arena, &session->gate, session->gate_floats, sizeof(float));
    butler_arena_want(arena, &session->up, n * (size_t)hp->n_ff, sizeof(float));
    butler_arena_want(arena, &session->cos, n * rot, sizeof(float));
    butler_arena_want(arena, &session->sin, n * rot, sizeof(float));
    butler_arena_want(arena, &session->logits, (size_t)hp->n_vocab, sizeof(float));
    butler_arena_want(arena, &session->exit_logits, (size_t)hp->n_vocab, sizeof(float));
    butler_arena_want(arena, &session->tokens, (size_t)session->n_ctx, sizeof(int32_t));
    if (session->policy.metric && session->policy.metric->earlier_layers)
        butler_arena_want(arena, &session->queries, (size_t)hp->n_layers * (size_t)hp->n_heads * dim, sizeof(float));
    if (butler_arena_make(arena, err) < 0)
        return BUTLER_ERROR_MEMORY;
    session->q = session->gate;
    session->o = session->q + queries;
    session->k = session->o + queries;
    session->v = session->k + keys;
    return 0;
}

/* What metrics that look at other layers need beside the cache. */
static int make_lookahead(struct butler_session *session, struct butler_error *err)
{
    const struct butler_metric *metric = session->policy.metric;
    session->kv.queries = session->queries;
    if (!metric || !metric->predictor)
        return 0;
    session->predict = butler_predict_new(session->model->predictors[metric->predictor - 1], session->model->backend,
                                          session->kv_type == BUTLER_KV_F32 ? BUTLER_KV_F32 : BUTLER_KV_Q8_0, session->n_ctx,
                                          session->n_block, err);
    session->kv.predict = session->predict;
    return session->predict ? 0 : BUTLER_ERROR_MEMORY;
}

/* Sizes of predicted keys, which the records of the policy's metric depend on. */
static int shape_predictor(struct butler_session *session, struct butler_error *err)
{
    const struct butler_metric *metric = session->policy.metric;
    const struct butler_predictor *predictor;
    if (!metric || !metric->predictor)
        return 0;
    predictor = session->model->predictors[metric->predictor - 1];
    if (!predictor)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s has no predictor of version %d", session->model->path,
                           metric->predictor);
    session->shape.predicted_dim = predictor->sizes.d;
    session->shape.predicted_keys = predictor->sizes.n_key_heads / predictor->sizes.n_kv_heads;
    return 0;
}

static int check_shape(const struct butler_model *model, int n_ctx, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    if (model->layers == NULL)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s was loaded for its vocabulary only", model->path);
    if (model->pos_embd.data && n_ctx > hp->n_ctx_train)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%s has learned positions for %d tokens: a context of %d is impossible",
                           model->path, hp->n_ctx_train, n_ctx);
    if (hp->sliding_window > 0 && n_ctx > hp->sliding_window)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%s attends to its last %d tokens only: ask for a context of at most that, not %d", model->path,
                           hp->sliding_window, n_ctx);
    if (hp->head_dim > BUTLER_METRIC_MAX_HEAD_DIM)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: heads of %d numbers, at most %d are supported", model->path,
                           hp->head_dim, BUTLER_METRIC_MAX_HEAD_DIM);
    return 0;
}

struct butler_session *butler_session_make(struct butler_model *model, const struct butler_policy *policy,
                                           const struct butler_session_params *params, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    struct butler_session *session = NULL;
    int n_ctx = params->n_ctx;
    if (n_ctx == 0)
        n_ctx = hp->sliding_window > 0 ? BUTLER_MIN(hp->sliding_window, hp->n_ctx_train) : hp->n_ctx_train;
    if (n_ctx < 1 || n_ctx > 1 << 24)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "a context of %d tokens: it must be between 1 and %d", n_ctx, 1 << 24);
    else if (params->n_block < 0 || params->n_block > 1 << 16)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "prompt blocks of %d tokens: they must be between 1 and %d", params->n_block,
                    1 << 16);
    else if ((unsigned)params->kv_type >= BUTLER_N_KV_TYPES)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "kv type %d is none of f32, f16, q8_0", (int)params->kv_type);
    else if (check_shape(model, n_ctx, err) == 0)
        session = butler_alloc(sizeof *session, err);
    if (!session)
        return NULL;
    session->model = model;
    session->policy = *policy;
    session->n_ctx = n_ctx;
    /* A matrix unit is faster than weights can be made ready for it: more tokens for each. */
    session->n_block = BUTLER_MIN(params->n_block ? params->n_block : model->backend->kernels->tiles ? 512 : 256, n_ctx);
    session->kv_type = params->kv_type;
    session->seed = params->seed;
    session->shape = (struct butler_metric_shape){
        hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, params->seed, 0, 0};
    const bool long_context = model->rope_freq_long && n_ctx > model->rope_original_ctx;
    session->rope_freq = long_context ? model->rope_freq_long : model->rope_freq;
    session->rope_scale = long_context ? model->rope_scale_long : model->rope_scale;
    if (shape_predictor(session, err) < 0 ||
        butler_kv_init(&session->kv, &session->shape, params->kv_type, n_ctx, policy, model->backend->kernels, err) < 0 ||
        butler_workspace_make(&session->work, hp, policy, n_ctx, session->n_block, model->backend, err) < 0 ||
        make_activations(session, err) < 0 || make_lookahead(session, err) < 0) {
        butler_session_free(session);
        return NULL;
    }
    return session;
}

struct butler_session *butler_session_new(struct butler_model *model, const struct butler_session_params *params,
                                          struct butler_error *err)
{
    static const struct butler_session_params defaults = {.kv_type = BUTLER_KV_F16};
    struct butler_policy policy;
    if (!params)
        params = &defaults;
    if (butler_policy_parse(model, params->policy ? params->policy : "full", &policy, err) < 0)
        return NULL;
    return butler_session_make(model, &policy, params, err);
}

void butler_session_free(struct butler_session *session)
{
    if (!session)
        return;
    butler_predict_free(session->predict);
    butler_kv_free(&session->kv);
    butler_workspace_free(&session->work);
    butler_arena_free(&session->arena);
    free(session);
}

/* Everything that can be wrong with n more tokens, before anything changes. ids may be NULL: made up. */
static int check_tokens(const struct butler_session *session, const int32_t *ids, int n, struct butler_error *err)
{
    if (session->failed)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "this session ended with an error before");
    if (n < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "no tokens to run");
    if (n > session->n_ctx - session->n_past)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%d tokens after %d do not fit in a context of %d", n, session->n_past,
                           session->n_ctx);
    for (int i = 0; ids && i < n; i++)
        if (ids[i] < 0 || ids[i] >= session->model->hp.n_vocab)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "token %d is %d: the vocabulary ends at %d", i, ids[i],
                               session->model->hp.n_vocab - 1);
    return 0;
}

/* A prompt, or the part of one that ends before position prompt_end. */
static int read_prompt(struct butler_session *session, const int32_t *ids, int n, int prompt_end, butler_logits_fn *each,
                       void *user, struct butler_error *err)
{
    const double start = butler_seconds();
    const struct butler_traffic before = session->traffic; /* traffic counts decode steps alone */
    const bool ends = session->n_past + n == prompt_end;
    struct butler_error ignored;
    int code = check_tokens(session, ids, n, err);
    for (int done = 0; code == 0 && done < n; done += session->n_block) {
        const struct butler_pass pass = {
            .ids = ids + done,
            .n = BUTLER_MIN(session->n_block, n - done),
            .prompt_ends = ends && done + session->n_block >= n,
            .prompt_end = prompt_end,
            .each = each,
            .user = user,
        };
        code = butler_forward(&session, 1, &pass, err ? err : &ignored);
        if (code == 0)
            session->stats.n_prefill += (uint64_t)pass.n;
        if (code == 0 && session->progress)
            session->progress(session->progress_user, done + pass.n, n);
    }
    session->traffic = before;
    session->n_decoded = 0;
    session->stop = false;
    session->stats.prefill_s += butler_seconds() - start;
    return code;
}

int butler_prefill(struct butler_session *session, const int32_t *ids, int n, butler_logits_fn *each, void *user,
                   struct butler_error *err)
{
    return read_prompt(session, ids, n, session->n_past + n, each, user, err);
}

int butler_prefill_part(struct butler_session *session, const int32_t *ids, int n, int prompt_end, struct butler_error *err)
{
    return read_prompt(session, ids, n, prompt_end, NULL, NULL, err);
}

void butler_session_on_progress(struct butler_session *session, butler_progress_fn *fn, void *user)
{
    session->progress = fn;
    session->progress_user = user;
}

int butler_step(struct butler_session *session, int32_t id, struct butler_error *err)
{
    return butler_step_batch(&session, &id, 1, err);
}

/* Everything that can be wrong with a batch, before anything changes. */
static int check_batch(struct butler_session *const *sessions, const int32_t *ids, int n, struct butler_error *errs)
{
    int code = 0;
    for (int s = 0; s < n; s++) {
        struct butler_error *err = errs ? &errs[s] : NULL;
        if (err)
            err->code = 0;
        int one = check_tokens(sessions[s], &ids[s], 1, err);
        if (one == 0 && sessions[s]->model != sessions[0]->model)
            one = butler_fail(err, BUTLER_ERROR_ARGUMENT, "session %d of a batch has another model than the first", s);
        for (int i = 0; i < s && one == 0; i++)
            if (sessions[i] == sessions[s])
                one = butler_fail(err, BUTLER_ERROR_ARGUMENT, "sessions %d and %d of a batch are the same", i, s);
        code = code == 0 ? one : code;
    }
    return code;
}

int butler_step_batch(struct butler_session *const *sessions, const int32_t *ids, int n, struct butler_error *errs)
{
    struct butler_error some[BATCH];
    if (n < 1)
        return butler_fail(errs, BUTLER_ERROR_ARGUMENT, "a batch of %d sessions", n);
    int code = check_batch(sessions, ids, n, errs);
    for (int done = 0, m; code == 0 && done < n; done += m) {
        const double start = butler_seconds();
        m = BUTLER_MIN(BUTLER_MIN(n - done, BATCH), sessions[done]->n_block);
        const struct butler_pass pass = {.ids = ids + done, .n = m, .decode = true};
        code = butler_forward(sessions + done, m, &pass, errs ? errs + done : some);
        const double seconds = butler_seconds() - start;
        for (int s = done; s < done + m; s++) {
            struct butler_session *session = sessions[s];
            const struct butler_hparams *hp = &session->model->hp;
            if (session->failed)
                continue;
            session->stats.n_decode++;
            session->stats.full_kv_bytes +=
                2 * (uint64_t)session->kv.row_bytes * (uint64_t)session->n_past * (uint64_t)(hp->n_layers * hp->n_kv_heads);
            session->stats.decode_s += seconds / m;
        }
    }
    return code;
}

/* About N(0, 1): 64 coin tosses and a dither of one step, an order of magnitude faster than the real thing. */
static float noise(uint64_t *random)
{
    const uint64_t bits = butler_random(random);
    return ((float)__builtin_popcountll(bits) - 32.5f + (float)(bits & 0xffff) * 0x1p-16f) * 0.25f;
}

int butler_fill(struct butler_session *session, int n, uint64_t seed, struct butler_error *err)
{
    struct butler_backend *backend = session->model->backend;
    const struct butler_traffic before = session->traffic;
    const int code = check_tokens(session, NULL, n, err), row = session->shape.n_kv_heads * session->shape.head_dim;
    uint64_t random = seed;
    if (code < 0)
        return code;
    for (int done = 0; done < n; done += session->n_block) {
        const int m = BUTLER_MIN(session->n_block, n - done);
        if (session->predict && butler_predict_fill(session->predict, m, session->n_past, noise, &random, err) < 0)
            return BUTLER_ERROR_LENGTH;
        for (int l = 0; l < session->shape.n_layers; l++) {
            struct butler_layer_state state = {&session->policy,       &session->shape,   &session->kv,
                                               &session->work,         &session->traffic, l,
                                               session->shape.n_heads, session->n_past};
            for (int i = 0; i < m * row; i++) {
                session->k[i] = noise(&random);
                session->v[i] = noise(&random);
            }
            if (butler_kv_grow(&session->kv, l, m, session->n_past, err) < 0)
                return BUTLER_ERROR_LENGTH;
            backend->append(backend, &state, session->k, session->v, m);
            if (session->policy.method == BUTLER_EVICT && l >= session->policy.dense_layers) {
                state.position = session->n_past + m - 1;
                for (int i = 0; i < session->shape.n_heads * session->shape.head_dim; i++)
                    session->q[i] = noise(&random);
                backend->score(backend, &state, session->q);
                backend->evict(backend, &state, 0);
            }
        }
        for (int i = 0; i < m; i++)
            session->tokens[session->n_past + i] = -1;
        session->n_past += m;
    }
    session->traffic = before;
    return 0;
}

const float *butler_logits(const struct butler_session *session)
{
    return session->has_logits ? session->logits : NULL;
}

int butler_n_past(const struct butler_session *session)
{
    return session->n_past;
}

int butler_n_ctx(const struct butler_session *session)
{
    return session->n_ctx;
}

bool butler_should_stop(const struct butler_session *session)
{
    return session->stop;
}

void butler_session_stats(const struct butler_session *session, struct butler_stats *stats)
{
    const struct butler_traffic *traffic = &session->traffic;
    *stats = session->stats;
    stats->weight_bytes = traffic->weight_bytes;
    stats->kv_bytes = traffic->kv_bytes;
    stats->metric_bytes = traffic->metric_bytes;
    stats->predict_bytes = traffic->predict_bytes;
    stats->units_selected = traffic->units_selected;
    stats->units_reused = traffic->units_reused;
    stats->kv_memory = butler_kv_memory(&session->kv);
    stats->kv_memory_peak = session->kv.pages_held_peak * session->kv.page_bytes;
    stats->metric_memory = butler_kv_record_memory(&session->kv) + (session->predict ? butler_kv_memory(&session->predict->kv) : 0);
    /* A fused pass keeps its own clocks: threads' time, of which the pass took the share below. */
    const uint64_t fused = traffic->score_ns + traffic->select_ns + traffic->attend_ns;
    if (fused > 0) {
        const double pass_s = stats->attend_s;
        stats->score_s += pass_s * (double)traffic->score_ns / (double)fused;
        stats->select_s += pass_s * (double)traffic->select_ns / (double)fused;
        stats->attend_s = pass_s * (double)traffic->attend_ns / (double)fused;
    }
}

void butler_session_stats_reset(struct butler_session *session)
{
    memset(&session->stats, 0, sizeof session->stats);
    memset(&session->traffic, 0, sizeof session->traffic);
    session->kv.pages_held_peak = session->kv.pages_held;
}

uint64_t butler_kv_bytes(const struct butler_model *model, enum butler_kv_type type, int n_tokens)
{
    const struct butler_hparams *hp = &model->hp;
    const uint64_t extent = (uint64_t)(2 * BUTLER_PAGE * BUTLER_EXTENT) * butler_kv_row_bytes(type, hp->head_dim);
    return (uint64_t)(hp->n_layers * hp->n_kv_heads) * (uint64_t)BUTLER_CEIL_DIV(n_tokens, BUTLER_PAGE * BUTLER_EXTENT) * extent;
}

int butler_last_selection(const struct butler_session *session, int layer, int head, int32_t *ids, int max_ids)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_workspace *work = &session->work;
    const int group = session->shape.group;
    if (layer < 0 || layer >= session->shape.n_layers || head < 0 || head >= session->shape.n_heads)
        return 0;
    const struct butler_kv_head *cache = butler_kv_at(&session->kv, layer, head / group);
    const int list = policy->share == BUTLER_SHARE_QUERY ? head : policy->share == BUTLER_SHARE_LAYER ? 0 : head / group;
    const uint64_t *selected =
        work->selected + ((size_t)layer * (size_t)session->shape.n_heads + (size_t)list) * work->selected_words;
    int n = 0;
    for (int i = 0; i < cache->n_slots; i++) {
        const uint32_t slot = cache->order ? cache->order[i] : (uint32_t)i, unit = slot / (uint32_t)policy->unit;
        const bool read =
            policy->method != BUTLER_RETRIEVE || layer < policy->dense_layers || (selected[unit / 64] >> unit % 64 & 1);
        if (read && n++ < max_ids)
            ids[n - 1] = butler_kv_position(cache, slot);
    }
    return n;
}
