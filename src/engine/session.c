/* Sessions: what a program holds while a text is read and written. Builds the KV store and the activations once; the
 * token loop allocates nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/library.h"
#include "engine/method.h"
#include "engine/predict.h"
#include "engine/schedule.h"
#include "engine/session.h"

/* Tokens, logits and selections in host and device memory. */
static int make_memory(struct butler_session *session, struct butler_error *err)
{
    const struct butler_hparams *hp = &session->model->hp;
    const struct butler_metric *metric = session->policy.metric;
    struct butler_arena *host = &session->arena, *device = &session->buffers.pieces;
    struct butler_selection *selection = &session->selection;
    const size_t layers = (size_t)hp->n_layers, heads = (size_t)hp->n_heads, slots = (size_t)session->n_ctx;
    butler_arena_want(host, &session->tokens, slots, sizeof(int32_t));
    butler_arena_want(host, &session->logits, (size_t)hp->n_vocab, sizeof(float));
    butler_arena_want(host, &selection->at, layers, sizeof(int32_t));
    if (session->policy.method == BUTLER_RETRIEVE) {
        selection->words = BUTLER_CEIL_DIV(slots, 64);
        butler_arena_want(device, &selection->units, layers * heads * selection->words, sizeof(uint64_t));
    }
    if (metric && metric->predictor) {
        const size_t lists = (size_t)(BUTLER_AHEAD * hp->n_kv_heads);
        butler_arena_want(device, &selection->slots, BUTLER_MAX(lists, heads) * slots, sizeof(uint32_t));
        butler_arena_want(device, &selection->list_slots, BUTLER_MAX(lists, heads), sizeof(uint32_t *));
        butler_arena_want(device, &selection->list_n, BUTLER_MAX(lists, heads), sizeof(int));
    }
    if (metric && metric->earlier_layers)
        butler_arena_want(device, &session->queries, layers * heads * (size_t)hp->head_dim, sizeof(float));
    if (session->policy.rope_in_cache) {
        session->kv.n_rot = hp->n_rot;
        session->kv.rope = hp->rope;
        butler_arena_want(device, &session->kv.rope_cos, slots * (size_t)hp->n_rot / 2, sizeof(float));
        butler_arena_want(device, &session->kv.rope_sin, slots * (size_t)hp->n_rot / 2, sizeof(float));
    }
    if (butler_arena_make(host, err) < 0 || butler_buffers_make(&session->buffers, session->engine->backend, err) < 0)
        return BUTLER_ERROR_MEMORY;
    return 0;
}

/* What metrics that look at other layers need beside the cache. */
static int make_lookahead(struct butler_session *session, struct butler_error *err)
{
    const struct butler_metric *metric = session->policy.metric;
    session->kv.queries = session->queries;
    session->kv.hadamard = session->kv_type == BUTLER_KV_Q8_0 && !session->policy.rope_in_cache;
    session->kv.key_shifts = session->kv.hadamard ? session->model->key_shifts : NULL;
    session->kv.centres = session->engine->centres;
    if (!metric || !metric->predictor)
        return 0;
    session->predict = butler_predict_new(session->engine, metric->predictor,
                                          session->kv_type == BUTLER_KV_F32 ? BUTLER_KV_F32 : BUTLER_KV_Q8_0, session->n_ctx, err);
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
    predictor = session->engine->predictors[metric->predictor - 1];
    if (!predictor)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s has no predictor of version %d", session->model->path,
                           metric->predictor);
    butler_predictor_shape(predictor, &session->shape);
    return 0;
}

/* Prompts read a whole layer. */
/* What an operation reads must be resident together: a layer, and what the metric looks at of earlier ones, of a plug-in all of
 * them. */
static int check_resident(const struct butler_engine *engine, const struct butler_policy *policy, enum butler_kv_type type,
                          int n_ctx, struct butler_error *err)
{
    const struct butler_hparams *hp = &engine->model->hp;
    const struct butler_metric *metric = policy->metric;
    const int n_layers = !metric || !metric->earlier_layers ? 1 : metric->abi != 0 ? hp->n_layers : BUTLER_MIN(3, hp->n_layers);
    size_t frame_bytes;
    const uint32_t pieces = butler_extent_pieces(butler_kv_extent_bytes(type, hp->head_dim), &frame_bytes);
    const uint64_t n_extents = (uint64_t)BUTLER_CEIL_DIV(n_ctx, BUTLER_EXTENT_TOKENS) * (uint64_t)hp->n_kv_heads,
                   bytes = n_extents * pieces * frame_bytes * (uint64_t)n_layers;
    if (engine->kv_ram == 0 || bytes <= engine->kv_ram)
        return 0;
    return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                       "--kv-ram: %llu bytes of keys and values in memory are too few: with a context of %d %s %llu",
                       (unsigned long long)engine->kv_ram, n_ctx,
                       n_layers == 1 ? "a layer takes" : "the layers that scores read take", (unsigned long long)bytes);
}

static int check_shape(const struct butler_model *model, int n_ctx, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    if (model->layers == NULL)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s was loaded for its vocabulary only", model->path);
    if (model->pos_embd.data && n_ctx > hp->n_ctx_train)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%s has learned positions for %d tokens: a context of %d is impossible",
                           model->path, hp->n_ctx_train, n_ctx);
    return 0;
}

struct butler_session *butler_session_make(struct butler_engine *engine, const struct butler_policy *policy,
                                           const struct butler_session_params *params, struct butler_error *err)
{
    struct butler_model *model = engine->model;
    const struct butler_hparams *hp = &model->hp;
    struct butler_session *session = NULL;
    struct butler_pages *pages = NULL;
    int n_ctx = params->n_ctx;
    if (n_ctx == 0)
        n_ctx = hp->n_ctx_train;
    if (n_ctx < 1 || n_ctx > 1 << 24)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "a context of %d tokens: it must be between 1 and %d", n_ctx, 1 << 24);
    else if ((unsigned)params->kv_type >= BUTLER_N_KV_TYPES)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "kv type %d is none of f32, f16, q8_0", (int)params->kv_type);
    else if (policy->prompt > 0 && !engine->backend->attend_sparse)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: prompt=%g: this device reads prompts densely%s", policy->name, policy->prompt,
                    engine->backend->alloc_extents ? ", as do all whose KV pages lie on a disk" : "");
    else if (check_shape(model, n_ctx, err) == 0 && check_resident(engine, policy, params->kv_type, n_ctx, err) == 0 &&
             /* Before the pool, which takes most of what a device has left. */
             butler_scratch_make(&engine->scratch, hp, engine->backend, engine->n_block, n_ctx, policy->rope_in_cache, err) == 0 &&
             (pages = butler_engine_pages(engine, params->kv_type, hp->head_dim, true, err)) != NULL)
        session = butler_alloc(sizeof *session, err);
    if (!session)
        return NULL;
    session->engine = engine;
    session->model = model;
    session->policy = *policy;
    session->n_ctx = n_ctx;
    session->kv_type = params->kv_type;
    session->seed = params->seed;
    session->shape = (struct butler_metric_shape){
        hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, params->seed, 0, 0};
    const bool long_context = butler_long_context(model, n_ctx);
    session->rope_freq = long_context ? model->rope_freq_long : model->rope_freq;
    session->rope_scale = long_context ? model->rope_scale_long : model->rope_scale;
    if (shape_predictor(session, err) < 0 || butler_policy_compile(&session->policy, &session->shape, err) < 0 ||
        butler_backend_check_plan(engine->backend, &session->policy.plan, params->kv_type, session->shape.group, err) < 0 ||
        butler_kv_init(&session->kv, &session->shape, pages, params->kv_type, n_ctx, &session->policy, err) < 0 ||
        make_memory(session, err) < 0 || make_lookahead(session, err) < 0) {
        butler_session_free(session);
        return NULL;
    }
    return session;
}

struct butler_session *butler_session_new(struct butler_engine *engine, const struct butler_session_params *params,
                                          struct butler_error *err)
{
    struct butler_session_params own;
    struct butler_policy policy;
    if (BUTLER_IS_NULL(engine, err))
        return NULL;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_session_params, seed), "butler_session_params", err) <
            0 ||
        butler_policy_parse(engine, own.policy ? own.policy : "full", &policy, err) < 0)
        return NULL;
    struct butler_session *session = butler_session_make(engine, &policy, &own, err);
    if (session)
        butler_session_rest(session);
    return session;
}

void butler_session_rest(struct butler_session *session)
{
    if (butler_policy_idles(&session->policy, session->shape.n_layers, session->n_ctx))
        butler_plan_idle(&session->policy.plan);
}

void butler_session_free(struct butler_session *session)
{
    if (!session)
        return;
    butler_steps_free(session->steps);
    butler_shelf_free(session->shelf);
    butler_receipt_free(session->receipt);
    butler_predict_free(session->predict);
    butler_kv_free(&session->kv);
    butler_buffers_free(&session->buffers);
    butler_arena_free(&session->arena);
    free(session);
}

/* About N(0, 1): 64 coin tosses and a dither of one step, an order of magnitude faster than the real thing. */
static float noise(uint64_t *random)
{
    const uint64_t bits = butler_random(random);
    return ((float)__builtin_popcountll(bits) - 32.5f + (float)(bits & 0xffff) * 0x1p-16f) * 0.25f;
}

/* n random numbers into device memory, by way of the scratch's host memory. */
static void upload_noise(struct butler_session *session, float *to, int n, uint64_t *random)
{
    struct butler_backend *backend = session->engine->backend;
    float *host = session->engine->scratch.host_q; /* as many as q has */
    for (int i = 0; i < n; i++)
        host[i] = noise(random);
    backend->upload(backend, to, host, (size_t)n * sizeof *host);
}

/* The newest n tokens of a layer, and what an evicting policy makes of them. */
static int fill_layer(struct butler_session *session, int layer, int n, uint64_t *random, struct butler_error *err)
{
    struct butler_scratch *s = &session->engine->scratch;
    struct butler_backend *backend = session->engine->backend;
    const int row = session->shape.n_kv_heads * session->shape.head_dim;
    struct butler_attend_span span = {
        .state = butler_session_layer(session, &session->prompt_traffic, layer, session->n_past), .q = s->q, .n = 1};
    upload_noise(session, s->k, n * row, random);
    upload_noise(session, s->v, n * row, random);
    if (butler_kv_grow(&session->kv, layer, n, err) < 0)
        return BUTLER_ERROR_LENGTH;
    span.state.summarise_from = butler_schedule_summarise(session, layer, n);
    backend->append(backend, &span.state, s->k, s->v, n);
    const int n_all = session->n_past + n;
    struct butler_cut cut;
    if (!butler_schedule_cut(session, layer, n_all, 0, &cut))
        return 0;
    if (butler_kv_unshare(&session->kv, layer, err) < 0)
        return BUTLER_ERROR_MEMORY;
    span.state.position = n_all - 1;
    upload_noise(session, s->q, session->shape.n_heads * session->shape.head_dim, random);
    butler_method_evict(backend, &span, &cut, 1);
    session->evicted = true;
    return 0;
}

void butler_session_release_windows(struct butler_session *session)
{
    for (int l = 0; session->model->hp.n_windowed > 0 && l < session->shape.n_layers; l++)
        if (session->model->layers[l].window > 0)
            butler_kv_release(&session->kv, l, session->n_past, session->model->layers[l].window);
}

int butler_fill(struct butler_session *session, int n, uint64_t seed, struct butler_error *err)
{
    uint64_t random = seed;
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (session->failed)
        return butler_session_fault(session, err);
    if (n < 1 || n > session->n_ctx - session->n_past)
        return butler_fail(err, n < 1 ? BUTLER_ERROR_ARGUMENT : BUTLER_ERROR_LENGTH,
                           "%d tokens after %d: a context of %d holds 1 to %d more", n, session->n_past, session->n_ctx,
                           session->n_ctx - session->n_past);
    session->has_logits = session->stop = false;
    for (int done = 0, m; done < n; done += m) {
        m = BUTLER_MIN(session->engine->n_block, n - done);
        session->failed = true; /* until these tokens are in all layers */
        if (session->predict && butler_predict_fill(session->predict, m, session->n_past, noise, &random, err) < 0)
            return BUTLER_ERROR_LENGTH;
        for (int l = 0; l < session->shape.n_layers; l++)
            if (fill_layer(session, l, m, &random, err) < 0)
                return BUTLER_ERROR_MEMORY;
        for (int i = 0; i < m; i++)
            session->tokens[session->n_past + i] = -1;
        session->n_past += m;
        if (session->kv.fault.code < 0)
            return butler_session_fault(session, err);
        session->failed = false;
        butler_session_release_windows(session);
    }
    return 0;
}

int butler_session_fault(const struct butler_session *session, struct butler_error *err)
{
    if (session->kv.fault.code < 0)
        return butler_fail(err, session->kv.fault.code, "%s", session->kv.fault.message);
    return butler_fail(err, BUTLER_ERROR_NUMERIC, "this session ended with an error before");
}

const float *butler_logits(const struct butler_session *session)
{
    return session && session->has_logits ? session->logits : NULL;
}

int butler_n_past(const struct butler_session *session)
{
    return session ? session->n_past : 0;
}

int butler_n_ctx(const struct butler_session *session)
{
    return session ? session->n_ctx : 0;
}

bool butler_should_stop(const struct butler_session *session)
{
    return session && session->stop;
}

/* What is counted elsewhere, too. */
static void fill_stats(const struct butler_session *session, struct butler_stats *stats)
{
    const struct butler_traffic *traffic = &session->traffic;
    *stats = session->stats;
    stats->weight_bytes = traffic->weight_bytes;
    stats->kv_bytes = traffic->kv_bytes;
    stats->metric_bytes = traffic->metric_bytes;
    stats->upkeep_bytes = traffic->upkeep_bytes;
    stats->predict_bytes = traffic->predict_bytes;
    stats->units_selected = traffic->units_selected;
    stats->units_reused = traffic->units_reused;
    stats->pages_wanted = traffic->n_wanted;
    stats->pages_fetched = traffic->n_fetched;
    stats->disk_bytes = traffic->disk_bytes;
    stats->pages_prefetched = traffic->n_prefetched;
    stats->pages_guessed = traffic->n_guessed;
    stats->disk_s = 1e-9 * (double)traffic->disk_ns;
    stats->prompt_disk_bytes = session->prompt_traffic.disk_bytes;
    stats->prompt_kv_bytes = session->prompt_traffic.kv_bytes;
    stats->prompt_full_kv_bytes = session->prompt_traffic.full_kv_bytes;
    stats->kv_memory = butler_kv_memory(&session->kv);
    stats->kv_memory_peak = session->kv.pages_held_peak * session->kv.page_bytes;
    stats->metric_memory = butler_kv_record_memory(&session->kv) + (session->predict ? butler_kv_memory(&session->predict->kv) : 0);
    stats->metric_memory_peak = session->kv.metric_memory_peak +
                                (session->predict ? session->predict->kv.pages_held_peak * session->predict->kv.page_bytes : 0);
    /* The parts of attention's wall time are as the threads' times for them. */
    const uint64_t all = traffic->score_ns + traffic->select_ns + traffic->attend_ns;
    const double wall = stats->attend_s, share = all > 0 ? wall / (double)all : 0;
    stats->score_s = share * (double)traffic->score_ns;
    stats->select_s = share * (double)traffic->select_ns;
    stats->attend_s = wall - stats->score_s - stats->select_s;
}

void butler_session_stats(const struct butler_session *session, struct butler_stats *stats)
{
    struct butler_stats own = {0};
    if (!stats)
        return;
    if (session)
        fill_stats(session, &own);
    butler_give_struct(stats, &own, sizeof own, BUTLER_END_OF(butler_stats, prompt_full_kv_bytes));
}

void butler_session_stats_reset(struct butler_session *session)
{
    if (!session)
        return;
    memset(&session->stats, 0, sizeof session->stats);
    memset(&session->traffic, 0, sizeof session->traffic);
    session->kv.pages_held_peak = session->kv.pages_held;
    session->kv.metric_memory_peak = butler_kv_record_memory(&session->kv);
}

uint64_t butler_kv_bytes(const struct butler_model *model, enum butler_kv_type type, int n_tokens)
{
    if (!model || (unsigned)type >= BUTLER_N_KV_TYPES || n_tokens < 1)
        return 0;
    const struct butler_hparams *hp = &model->hp;
    const uint64_t extent = (uint64_t)(2 * BUTLER_PAGE * BUTLER_EXTENT) * butler_kv_row_bytes(type, hp->head_dim);
    const uint64_t all = BUTLER_CEIL_DIV((uint64_t)n_tokens, (uint64_t)BUTLER_EXTENT_TOKENS),
                   windowed = all - (uint64_t)(butler_kv_window_start(n_tokens, hp->window) / BUTLER_EXTENT_TOKENS);
    return (uint64_t)hp->n_kv_heads * extent *
           ((uint64_t)(hp->n_layers - hp->n_windowed) * all + (uint64_t)hp->n_windowed * windowed);
}

static int by_position(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Of a head that may have evicted some. Where there is no room for all, the first. */
static int positions_held(struct butler_backend *backend, const struct butler_kv_head *head, int32_t *ids, int max_ids)
{
    const int n = head->n_slots;
    if (n <= max_ids) {
        backend->download(backend, ids, head->positions, (size_t)n * sizeof *ids);
        qsort(ids, (size_t)n, sizeof *ids, by_position);
    }
    for (int i = 0; n > max_ids && i < max_ids; i++) {
        uint32_t slot;
        backend->download(backend, &slot, head->order + i, sizeof slot);
        backend->download(backend, &ids[i], head->positions + slot, sizeof ids[i]);
    }
    return n;
}

int butler_last_selection(const struct butler_session *session, int layer, int head, int32_t *ids, int max_ids)
{
    if (!session || (!ids && max_ids > 0))
        return 0;
    const struct butler_policy *policy = &session->policy;
    const struct butler_selection *selection = &session->selection;
    struct butler_backend *backend = session->engine->backend;
    const int group = session->shape.group;
    if (layer < 0 || layer >= session->shape.n_layers || head < 0 || head >= session->shape.n_heads)
        return 0;
    const struct butler_kv_head *cache = butler_kv_at(&session->kv, layer, head / group);
    const bool all = policy->method != BUTLER_RETRIEVE || selection->at[layer] == 0;
    const int list = policy->share == BUTLER_SHARE_LAYER ? 0 : butler_list_of(policy->share, group, head);
    const uint64_t *units =
        all ? NULL : selection->units + ((size_t)layer * (size_t)session->shape.n_heads + (size_t)list) * selection->words;
    enum { AT_ONCE = 64 };
    uint64_t bits[AT_ONCE];
    size_t first = 0, end = 0; /* words that are in bits */
    int n = 0;
    const int window = session->model->layers[layer].window;
    if (cache->order && window == 0)
        return positions_held(backend, cache, ids, max_ids);
    for (int i = window > 0 ? BUTLER_MAX(cache->n_slots - window, 0) : 0; i < cache->n_slots; i++) {
        const uint32_t unit = (uint32_t)i / (uint32_t)policy->unit;
        if (!all && unit / 64 >= end) {
            first = unit / 64;
            end = BUTLER_MIN(first + AT_ONCE, selection->words);
            backend->download(backend, bits, units + first, (end - first) * sizeof *bits);
        }
        if ((all || (bits[unit / 64 - first] >> unit % 64 & 1)) && n++ < max_ids)
            ids[n - 1] = i;
    }
    return n;
}
