/* Policies on a device whose metrics keep more than bounds of pages, against the CPU: what they record, score and choose. Part of
 * gpu_tests.h. */
#ifndef GPU_POLICY_TESTS_H
#define GPU_POLICY_TESTS_H

#include "engine/predict.h"
#include "kernels/kernels.h"

/* What a metric records of keys, and its scores for queries. */
struct record_case {
    const struct butler_plan *plan;
    enum butler_kv_type type;
    int dim, layer;
    const float *shifts;
    struct butler_predict *predict[N_BACKENDS]; /* or NULL */
    double tolerance;                           /* of scores */
};

/* Records have the CPU's bytes, and scores of them its bits where the tolerance is 0: of the portable kernels, for others round in
 * between. The tokens come in two parts, so that the second finds a record that is being filled. */
static void records_same(struct both *both, const struct record_case *c)
{
    enum { FIRST = 20, HEADS = 4, STRIDE = 64 };
    const size_t n = (size_t)(CACHE_SLOTS * 2 * c->dim);
    const int k = array(both, n, 1), v = array(both, n, 2), q = array(both, (size_t)(HEADS * c->dim), 3),
              s = array(both, HEADS * STRIDE, 4);
    struct cache caches[N_BACKENDS];
    unsigned char *found[N_BACKENDS];
    size_t bytes = 0;
    for (int b = 0; b < N_BACKENDS; b++) {
        struct cache *cache = &caches[b];
        struct butler_kv *kv = &cache->kv;
        make_cache(cache, both->on[b], c->type, c->dim, c->shifts);
        cache->shape.n_heads = kv->n_heads = HEADS;
        cache->shape.group = HEADS / 2;
        if (b == CPU)
            kv->kernels = &butler_kernels_ref;
        if ((kv->predict = c->predict[b]))
            butler_predictor_shape(kv->predict->predictor, &cache->shape);
        c->plan->metric->record(&cache->shape, c->plan->values, &kv->record_slots, &kv->record_bytes);
        bytes = 2 * kv->records_stride;
        struct butler_workspace work = {.scores = both->arrays[b][s], .score_stride = STRIDE};
        struct butler_layer_state layer = {.plan = c->plan,
                                           .shape = &cache->shape,
                                           .kv = kv,
                                           .work = &work,
                                           .traffic = &cache->traffic,
                                           .layer = c->layer,
                                           .n_heads = HEADS};
        for (int first = 0, end = FIRST; first < CACHE_SLOTS; first = end, end = CACHE_SLOTS) {
            for (int h = 0; h < N(cache->heads); h++)
                cache->heads[h].n_slots = end;
            layer.summarise_from = first;
            EACH(b, append, &layer, both->arrays[b][k] + first * 2 * c->dim, both->arrays[b][v] + first * 2 * c->dim, end - first);
        }
        EACH(b, score, &layer, both->arrays[b][q], false);
        found[b] = malloc(bytes);
        EACH(b, download, found[b], kv->records, bytes);
    }
    assert_memory_equal(found[CPU], found[GPU], bytes);
    assert_int_equal(caches[CPU].traffic.metric_bytes > 0, caches[GPU].traffic.metric_bytes > 0);
    for (int b = 0; b < N_BACKENDS; b++) {
        free_cache(&caches[b]);
        free(found[b]);
    }
    compare(both, s, c->tolerance, c->plan->metric->name);
}

/* One-bit keys. */
static void test_one_bit(void **state)
{
    static const int dims[] = {64, 96, 70, 128}; /* of which 70 is no multiple of what a bit's byte has channels */
    static float shifts[2 * 128];
    struct both *both = begin(state);
    for (int i = 0; i < N(shifts); i++)
        shifts[i] = (float)(i % 9) - 4;
    const struct butler_weights bound = {shifts, sizeof shifts, BUTLER_F32};
    assert_int_equal(both->on[GPU]->bind_weights(both->on[GPU], &bound, 1, NULL), 0);
    for (int c = 0; c < BUTLER_N_KV_TYPES * N(dims) * 4; c += GPU_FEW ? 5 : 1) {
        const enum butler_kv_type type = (enum butler_kv_type)(c % BUTLER_N_KV_TYPES);
        const int dim = dims[c / BUTLER_N_KV_TYPES % N(dims)], which = c / BUTLER_N_KV_TYPES / N(dims);
        const struct butler_plan plan = {.metric = &butler_metric_one_bit,
                                         .values = {which % 2 ? 64 : 32, 1, which / 2},
                                         .unit = 1,
                                         .score_slots = 1,
                                         .reduction = {.pool = 1}};
        if (butler_kv_row_bytes(type, dim) > 0)
            records_same(both, &(struct record_case){&plan, type, dim, 0, which % 2 ? shifts : NULL, {NULL}, 0});
    }
}

/* Predicted keys and their scores: of version 1 as they are given, of version 2 from stored keys; one or two for a KV head, queries
 * by themselves and combined. */
static void test_predicted(void **state)
{
    static const struct {
        int version, d, bits, n_keys; /* bits: 0, 1, 2 for 4, 8, 16; n_keys: of a KV head */
        bool combined;
        enum butler_kv_type type;
    } cases[] = {{2, 16, 0, 1, true, BUTLER_KV_F16},  {1, 20, 0, 2, false, BUTLER_KV_F32}, {2, 128, 1, 1, false, BUTLER_KV_Q8_0},
                 {1, 12, 1, 1, true, BUTLER_KV_F16},  {2, 4, 2, 1, false, BUTLER_KV_F32},  {2, 20, 0, 1, false, BUTLER_KV_Q8_0},
                 {1, 16, 2, 2, false, BUTLER_KV_F16}, {1, 12, 2, 1, true, BUTLER_KV_Q8_0}};
    enum { DIM = 64, MOST_D = 128, HEADS = 4 };
    static float shifts[4 * DIM];
    struct both *both = begin(state);
    for (int i = 0; i < N(shifts); i++)
        shifts[i] = (float)(i % 9) - 4;
    const struct butler_weights bound = {shifts, sizeof shifts, BUTLER_F32};
    assert_int_equal(both->on[GPU]->bind_weights(both->on[GPU], &bound, 1, NULL), 0);
    for (int i = 0; i < N(cases); i += GPU_FEW ? 3 : 1) {
        const int version = cases[i].version, d = cases[i].d, n_keys = cases[i].n_keys;
        struct butler_predictor predictor = {
            .sizes = {.version = version, .n_layers = 2, .n_heads = HEADS, .n_kv_heads = 2, .head_dim = DIM, .d = d}};
        predictor.sizes.n_key_heads = 2 * n_keys;
        const int projections = array(both, (size_t)(2 * d * DIM), 5), queries = array(both, (size_t)(2 * HEADS * d), 6),
                  keys = array(both, (size_t)(CACHE_SLOTS * 2 * n_keys * d), 7);
        struct butler_predict_scratch scratch[N_BACKENDS];
        struct butler_predict predict[N_BACKENDS];
        for (int b = 0; b < N_BACKENDS; b++) {
            scratch[b] = (struct butler_predict_scratch){.projections = both->arrays[b][projections]};
            predict[b] = (struct butler_predict){.predictor = &predictor,
                                                 .scratch = &scratch[b],
                                                 .queries = both->arrays[b][queries],
                                                 .keys = both->arrays[b][keys]};
        }
        const struct butler_plan plan = {
            .metric = version == 1 ? &butler_metric_predicted : &butler_metric_predicted2,
            .values = {cases[i].bits, 1, 1},
            .unit = 1,
            .score_slots = 1,
            .reduction = {.rows = cases[i].combined ? BUTLER_ROWS_COMBINED : BUTLER_ROWS_QUERY, .pool = 1}};
        records_same(both, &(struct record_case){.plan = &plan,
                                                 .type = cases[i].type,
                                                 .dim = DIM,
                                                 .layer = 1,
                                                 .shifts = shifts,
                                                 .predict = {&predict[CPU], &predict[GPU]},
                                                 .tolerance = cases[i].combined || cases[i].bits == 2 ? 1e-6 : 0});
    }
}

/* TokenButler by random predictors: the logits and the lists of the CPU, whose portable kernels give the scores that a device does;
 * a session that one of them saved goes on on the other. */
static void test_tokenbutler(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
        int predictors;
    } cases[] = {{"tokenbutler2:budget=24,on_top=0,sinks=2,recent=3", BUTLER_KV_F16, 1},
                 {"tokenbutler:budget=24", BUTLER_KV_F16, 1},
                 {"tokenbutler2:budget=32,on_top=0,sinks=0,recent=0,group=max,page=4,every=2", BUTLER_KV_F32, 2},
                 {"tokenbutler:budget=24,keys=int8", BUTLER_KV_F32, 2},
                 {"tokenbutler2:budget=24,on_top=0,sinks=2,recent=3,keys=f16,normalise=softmax,group=max", BUTLER_KV_F16, 1},
                 {"tokenbutler:budget=24,keys=f16,share=query,every=3", BUTLER_KV_F16, 2}};
    char model[FIXTURE_PATH];
    begin(state);
    fixture_path(model, usual_model);
    for (int c = 0; c < N(cases); c += GPU_FEW ? 3 : 1) {
        with_predictors = cases[c].predictors;
        sessions_same(model, "ref", cases[c].policy, cases[c].type, 1e-4);
        if (c < (GPU_FEW ? 0 : 2))
            passes_and_files(model, "ref", cases[c].policy, cases[c].type, 1e-4);
    }
    with_predictors = 0;
}

/* Tokens and pages of one-bit keys: the logits and the lists of the CPU, whose portable kernels give the scores that a device does;
 * a session that one of them saved goes on on the other. */
static void test_fier(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
    } cases[] = {{"fier:budget=24,dense=0", BUTLER_KV_F16},
                 {"fier:budget=32,dense=1,page=16,levels=means,sinks=4", BUTLER_KV_F32},
                 {"fier:budget=24,dense=0,g=64,share=query,recent=3", BUTLER_KV_F32},
                 {"fier:budget=0.3,dense=0,every=3,group=mean,page=4", BUTLER_KV_Q8_0},
                 {"fier:budget=24,dense=0,every=2,share=2", BUTLER_KV_Q8_0}}; /* of four query heads on a KV head */
    char fixture[FIXTURE_PATH];
    struct tiny tiny = tiny_default;
    begin(state);
    tiny.arch = "qwen2";
    tiny.head_dim = 64;
    tiny.n_heads = GPU_FEW ? 4 : 8;
    tiny.n_layers = FEW_LAYERS;
    tiny_write(tiny_path("fier.gguf"), &tiny);
    fixture_path(fixture, usual_model);
    for (int c = GPU_FEW; c < N(cases); c += GPU_FEW ? 2 : 1) {
        const bool q8 = cases[c].type == BUTLER_KV_Q8_0;
        const char *model = q8 ? tiny_path("fier.gguf") : fixture;
        sessions_same(model, "ref", cases[c].policy, cases[c].type, q8 ? 1e-3 : 1e-4);
        if (c % 3 == 0)
            passes_and_files(model, "ref", cases[c].policy, cases[c].type, q8 ? 1e-3 : 1e-4);
    }
}

/* Scores with ties and numbers that are none; of the text's i-th token the slot, 5 i + 3 modulo their number, and the position. */
static void make_evicted(float *scores, int n, uint32_t *order, uint32_t *positions)
{
    uint32_t seed = 5;
    for (int i = 0; i < n; i++, seed = seed * 1664525 + 1013904223)
        scores[i] = seed >> 24 < 4 ? NAN : (float)(seed >> 28);
    for (int i = 0; i < CACHE_SLOTS; i++) {
        order[i] = (uint32_t)(i * 5 + 3) % CACHE_SLOTS;
        positions[order[i]] = (uint32_t)i * 2;
    }
}

/* A cut, and arrays of struct both that it is made of. */
struct evict_case {
    enum butler_kv_type type;
    struct butler_choice choice;
    bool newest, mean;
    int k, v, scores, lists, counts;
};
enum { EVICT_DIM = 64, EVICT_HEADS = 4, EVICT_TABLE = 2 * CACHE_TABLE * 4 };

/* What is left: the pool, records, tables, positions and order; of a query of ones the attention to all that is left but 3. */
struct evicted {
    unsigned char *bytes;
    size_t n_bytes;
    int n_left;
    float weights[EVICT_HEADS * CACHE_MOST];
    int32_t positions[2 * CACHE_MOST];
};

static void read_evicted(struct both *both, int b, struct cache *cache, const struct butler_layer_state *layer,
                         struct evicted *left)
{
    const struct butler_kv *kv = layer->kv;
    float q[EVICT_HEADS * EVICT_DIM];
    for (int i = 0; i < N(q); i++)
        q[i] = (float)(i % 5) - 1;
    cache->heads[0].n_slots = cache->heads[1].n_slots = left->n_left;
    EACH(b, exact_weights, layer, q,
         &(struct butler_exact){
             .n = left->n_left - 3, .stride = CACHE_MOST, .weights = left->weights, .positions = left->positions});
    left->n_bytes = 2 * kv->extent_bytes + 2 * kv->records_stride + EVICT_TABLE;
    left->bytes = malloc(left->n_bytes);
    unsigned char *tables = left->bytes + left->n_bytes - EVICT_TABLE;
    EACH(b, download, left->bytes, kv->pool, 2 * kv->extent_bytes);
    EACH(b, download, left->bytes + 2 * kv->extent_bytes, kv->records, 2 * kv->records_stride);
    EACH(b, download, tables, cache->heads[0].table, EVICT_TABLE);
    for (int h = 0; h < 2; h++) /* of an order the rest is of no meaning */
        memset(tables + (h * CACHE_TABLE + 1 + CACHE_MOST + left->n_left) * 4, 0, (size_t)(CACHE_SLOTS - left->n_left) * 4);
}

static void evict_on(struct both *both, int b, const struct evict_case *c, struct evicted *left)
{
    const struct butler_plan plan = {.metric = &butler_metric_attention,
                                     .values = {1},
                                     .method = BUTLER_EVICT,
                                     .unit = 1,
                                     .score_slots = 1,
                                     .share = BUTLER_SHARE_KV,
                                     .reduction = {.mean = c->mean, .pool = 1}};
    struct butler_workspace work = {0};
    struct cache cache;
    struct butler_kv *kv = &cache.kv;
    float scores[EVICT_HEADS * CACHE_MOST];
    uint32_t order[CACHE_MOST] = {0}, positions[CACHE_MOST] = {0}, *slots[2];
    int n_cpu[2];
    make_evicted(scores, N(scores), order, positions);
    make_cache(&cache, both->on[b], c->type, EVICT_DIM, NULL);
    cache.shape.n_heads = kv->n_heads = EVICT_HEADS;
    cache.shape.group = EVICT_HEADS / 2;
    butler_metric_attention.record(&cache.shape, plan.values, &kv->record_slots, &kv->record_bytes);
    if (b == CPU)
        work = both->work;
    work.scores = both->arrays[b][c->scores];
    work.score_stride = CACHE_MOST;
    const struct butler_layer_state layer = {.plan = &plan,
                                             .shape = &cache.shape,
                                             .kv = kv,
                                             .work = &work,
                                             .traffic = &cache.traffic,
                                             .n_heads = EVICT_HEADS,
                                             .summarise_from = INT32_MAX};
    for (int h = 0; h < 2; h++) {
        cache.heads[h].positions = (int32_t *)cache.heads[h].table + 1;
        cache.heads[h].order = cache.heads[h].table + 1 + CACHE_MOST;
    }
    EACH(b, append, &layer, both->arrays[b][c->k], both->arrays[b][c->v], CACHE_SLOTS);
    for (int h = 0; h < 2; h++) {
        EACH(b, upload, cache.heads[h].positions, positions, sizeof positions);
        EACH(b, upload, cache.heads[h].order, order, sizeof order);
        EACH(b, upload, cache.heads[h].records, scores, CACHE_SLOTS * kv->record_bytes);
    }
    EACH(b, upload, work.scores, scores, sizeof scores);
    const struct butler_lists lists = {.n_lists = 2,
                                       .slots = slots,
                                       .n = b == GPU ? (int *)both->arrays[b][c->counts] : n_cpu,
                                       .memory = (uint32_t *)both->arrays[b][c->lists],
                                       .stride = CACHE_MOST};
    EACH(b, select_leaving, &layer, &((struct butler_cut){.choice = c->choice, .newest = c->newest}), &lists);
    EACH(b, compact, &layer, &lists);
    read_evicted(both, b, &cache, &layer, left);
    free_cache(&cache);
}

/* What a cut leaves has the CPU's bytes, and its exact attention the CPU's weights. */
static void evict_same(struct both *both, enum butler_kv_type type, struct butler_choice choice, bool newest, bool mean)
{
    const size_t n = (size_t)(CACHE_SLOTS * 2 * EVICT_DIM);
    const struct evict_case c = {.type = type,
                                 .choice = choice,
                                 .newest = newest,
                                 .mean = mean,
                                 .k = array(both, n, 1),
                                 .v = array(both, n, 2),
                                 .scores = array(both, EVICT_HEADS * CACHE_MOST, 4),
                                 .lists = array(both, 2 * CACHE_MOST, 5),
                                 .counts = array(both, 2, 6)};
    struct evicted left[N_BACKENDS] = {{0}};
    for (int b = 0; b < N_BACKENDS; b++) {
        left[b].n_left = BUTLER_MAX(choice.budget, choice.first + choice.last);
        evict_on(both, b, &c, &left[b]);
    }
    assert_memory_equal(left[CPU].bytes, left[GPU].bytes, left[CPU].n_bytes);
    assert_memory_equal(left[CPU].positions, left[GPU].positions, sizeof left[CPU].positions);
    for (int i = 0; i < N(left[CPU].weights); i++)
        if (fabsf(left[CPU].weights[i] - left[GPU].weights[i]) > 1e-5f)
            fail_msg("weight %d: %g, on the CPU %g", i, (double)left[GPU].weights[i], (double)left[CPU].weights[i]);
    free(left[CPU].bytes), free(left[GPU].bytes);
    compare(both, c.k, 0, "keys");
}

static void test_evict(void **state)
{
    struct both *both = begin(state);
    const struct butler_choice some = {.n_units = CACHE_SLOTS, .budget = 20, .first = 2, .last = 5},
                               one = {.n_units = CACHE_SLOTS, .budget = CACHE_SLOTS - 1, .first = 0, .last = 3},
                               ends = {.n_units = CACHE_SLOTS, .budget = 12, .first = 4, .last = 8};
    evict_same(both, BUTLER_KV_F16, some, false, false);
    evict_same(both, BUTLER_KV_Q8_0, some, false, true);
    evict_same(both, BUTLER_KV_F32, one, false, false);
    evict_same(both, BUTLER_KV_F16, ends, true, false);
    evict_same(both, BUTLER_KV_F16, ends, false, false);
}

/* The last token of a prompt is taken out, which a cut has moved, or (n_left > 0) all but the first: what is left goes on as on the
 * CPU. */
static void unread_same(const char *policy, int n_left)
{
    struct butler_error err = {0};
    struct butler_engine *engines[N_BACKENDS];
    struct butler_session *sessions[N_BACKENDS];
    for (int b = 0; b < N_BACKENDS; b++) {
        engines[b] = engine_on(usual_model, b == GPU ? GPU_DEVICE ":0" : "cpu", 0, &err);
        sessions[b] = session_on(engines[b], policy, BUTLER_KV_F32);
        read_prompt(sessions[b], 40);
        assert_int_equal(n_left > 0 ? butler_session_truncate(sessions[b], n_left, &err) : butler_session_unread(sessions[b], &err),
                         0);
        for (int step = 0; step < 3; step++)
            assert_int_equal(butler_step(sessions[b], 6 + step, &err), 0);
    }
    compare_logits(sessions[CPU], sessions[GPU], n_vocab_of(engines[CPU]), 1e-4, "tokens taken out");
    for (int b = 0; b < N_BACKENDS; b++) {
        butler_session_free(sessions[b]);
        free_engine(engines[b]);
    }
}

/* The first tokens and the latest: a prompt and steps behind which tokens leave the cache give the CPU's logits and keep its
 * tokens; a session that one of them saved goes on on the other. */
static void test_streaming(void **state)
{
    char path[FIXTURE_PATH];
    begin(state);
    fixture_path(path, usual_model);
    unread_same("streaming:budget=24", 0);
    if (GPU_FEW)
        return;
    sessions_same(path, NULL, "streaming:budget=24", BUTLER_KV_F16, 1e-4);
    sessions_same(path, NULL, "streaming:budget=20,sinks=0,dense=1", BUTLER_KV_F32, 1e-4);
    passes_and_files(path, NULL, "streaming:budget=24", BUTLER_KV_F16, 1e-4);
}

/* The same of what drew most attention, whose sums a device keeps. */
static void test_h2o(void **state)
{
    char path[FIXTURE_PATH];
    begin(state);
    fixture_path(path, usual_model);
    sessions_same(path, NULL, "h2o:budget=0.3,sinks=2,half_life=9,group=mean", BUTLER_KV_F16, 1e-4);
    if (GPU_FEW)
        return;
    passes_and_files(path, NULL, "h2o:budget=24", BUTLER_KV_F32, 1e-4);
    sessions_same(path, NULL, "softprune:min=20,ratio=0.5,dense=1", BUTLER_KV_F32, 1e-4);
}

/* Pages by the mean and deviation of their keys, by themselves and in one launch. A mean's last bit may not be the CPU's. */
static void test_deviation(void **state)
{
    char path[FIXTURE_PATH];
    begin(state);
    fixture_path(path, usual_model);
    sessions_same(path, NULL, "tinyserve:budget=24,page=4,bounds=deviation", BUTLER_KV_F16, 1e-4);
    if (GPU_FEW)
        return;
    sessions_same(path, NULL, "pagestats:budget=24,page=4,std=2", BUTLER_KV_F32, 1e-4);
    passes_and_files(path, NULL, "quest:budget=32,dense=0,bounds=deviation", BUTLER_KV_F16, 1e-4);
}

/* Operations on a layer of few tokens: a prompt that is appended and attended to, and a step that retrieves pages. */
enum { LAYER_DIM = 32, LAYER_PROMPT = 5, LAYER_PAGE = 2 };

static void layer_on(struct both *both, int b, const int x[3], int out, int step_out, int32_t ids[2][CACHE_MOST], int n_ids[2])
{
    struct butler_backend *backend = both->on[b];
    const struct butler_plan plan = {.metric = &butler_metric_page_bounds,
                                     .values = {LAYER_PAGE},
                                     .method = BUTLER_RETRIEVE,
                                     .unit = LAYER_PAGE,
                                     .score_slots = LAYER_PAGE,
                                     .share = BUTLER_SHARE_KV,
                                     .fused = true,
                                     .reduction = {.logits = true, .pool = 1}};
    const struct butler_hparams hp = {.n_heads = 2, .n_kv_heads = 2, .head_dim = LAYER_DIM, .n_embd = 32, .n_ff = 32};
    const struct butler_workspace_sizes sizes = {CACHE_MOST, 8, 2, true, false};
    const int row = 2 * LAYER_DIM, n_units = LAYER_PROMPT / LAYER_PAGE + 1;
    float *const *in = both->arrays[b];
    struct butler_workspace work;
    struct cache cache;
    uint64_t *units = backend->alloc(backend, 2 * sizeof *units, true, NULL);
    make_cache(&cache, backend, BUTLER_KV_F16, LAYER_DIM, NULL);
    cache.shape.group = 1;
    cache.kv.record_slots = LAYER_PAGE;
    cache.kv.max_slots = CACHE_MOST;
    assert_int_equal(backend->make_workspace(backend, &work, &hp, &sizes, NULL), 0);
    struct butler_selection selection = {.units = units, .words = 1};
    struct butler_attend_span span = {.state = {.plan = &plan,
                                                .shape = &cache.shape,
                                                .kv = &cache.kv,
                                                .work = &work,
                                                .selection = &selection,
                                                .traffic = &cache.traffic,
                                                .n_heads = 2},
                                      .q = in[x[0]] + LAYER_PROMPT * row,
                                      .k = in[x[1]] + LAYER_PROMPT * row,
                                      .v = in[x[2]] + LAYER_PROMPT * row,
                                      .out = in[step_out],
                                      .n = 1,
                                      .decode = true,
                                      .retrieves = true,
                                      .selects = true,
                                      .n_together = 1,
                                      .selecting = {{LAYER_PROMPT + 1, {.n_units = n_units, .budget = 2, .last = 1}, {0}}},
                                      .observe_from = INT32_MAX};
    cache.heads[0].n_slots = cache.heads[1].n_slots = LAYER_PROMPT;
    EACH(b, append, &span.state, in[x[1]], in[x[2]], LAYER_PROMPT);
    EACH(b, attend_block, &span.state, in[x[0]], in[out], LAYER_PROMPT, INT32_MAX, INT32_MAX);
    cache.heads[0].n_slots = cache.heads[1].n_slots = LAYER_PROMPT + 1;
    span.state.position = span.state.summarise_from = LAYER_PROMPT;
    assert_true(EACH(b, retrieve_fused, &span));
    const struct butler_lists lists = butler_lists_of(&span.state, 0);
    EACH(b, download, n_ids, lists.n, 2 * sizeof *n_ids);
    for (int h = 0; h < 2; h++)
        EACH(b, download, ids[h], lists.memory + (size_t)h * lists.stride, (size_t)n_ids[h] * sizeof **ids);
    backend->free(backend, units, 2 * sizeof *units);
    butler_workspace_free(&work);
    free_cache(&cache);
}

static void test_layer(void **state)
{
    struct both *both = begin(state);
    const size_t n = (LAYER_PROMPT + 1) * 2 * LAYER_DIM;
    const int x[] = {array(both, n, 1), array(both, n, 2), array(both, n, 3)}, out = array(both, n, 4), step = array(both, n, 4);
    int32_t ids[N_BACKENDS][2][CACHE_MOST];
    int n_ids[N_BACKENDS][2];
    layer_on(both, CPU, x, out, step, ids[CPU], n_ids[CPU]);
    for (int processors = 1; processors <= 1000; processors += 999) { /* in one launch, and in several */
        ((struct butler_gpu *)both->on[GPU])->info.processors = processors;
        layer_on(both, GPU, x, out, step, ids[GPU], n_ids[GPU]);
        for (int h = 0; h < 2; h++) {
            assert_int_equal(n_ids[CPU][h], 2 * LAYER_PAGE);
            assert_int_equal(n_ids[GPU][h], n_ids[CPU][h]);
            assert_memory_equal(ids[CPU][h], ids[GPU][h], 2 * LAYER_PAGE * sizeof(int32_t));
        }
        compare_one(both, step, 1e-5, "a step");
        compare_one(both, out, 1e-5, "a prompt");
    }
    compare(both, out, 1e-5, "a prompt");
}

/* A plug-in: tokens by q . the sum of the keys of four neighbours, who have one score; but first the one whose slot is how often
 * the KV head was scored before. */
enum { SUMMED = 4 };

static void record_sums(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)values;
    *n_slots = SUMMED;
    *n_bytes = (size_t)shape->head_dim * sizeof(float);
}

static void append_sums(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        int first, int n)
{
    float key[BUTLER_MAX_HEAD_DIM];
    (void)values;
    for (int slot = first / SUMMED * SUMMED; slot < first + n; slot++) {
        float *sum = butler_view_record(view, slot / SUMMED);
        butler_view_key(view, slot, key);
        for (int d = 0; d < shape->head_dim; d++)
            sum[d] = (slot % SUMMED > 0 ? sum[d] : 0) + key[d];
    }
}

static size_t bytes_of_count(const struct butler_metric_shape *shape, const double *values)
{
    (void)shape, (void)values;
    return sizeof(int);
}

static void count_scored(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                         const float *q, int n_q)
{
    (void)shape, (void)values, (void)q, (void)n_q;
    ++*(int *)butler_view_state(view);
}

static void score_key_sums(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           const struct butler_score_request *request)
{
    const int dim = shape->head_dim, first = *(int *)butler_view_state(view);
    (void)values;
    for (int i = 0; i < request->n_q; i++)
        for (int j = 0; j < request->n; j++) {
            const float *sum = butler_view_record(view, (request->first + j) / SUMMED);
            float *score = request->out + (size_t)i * request->stride + j;
            *score = request->first + j == first ? 1000 : 0;
            for (int d = 0; d < dim; d++)
                *score += request->q[i * dim + d] * sum[d];
        }
}

static const struct butler_metric key_sums = {
    .abi = BUTLER_METRIC_ABI,
    .name = "key_sums",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .weighing = BUTLER_WEIGH_NOTHING,
    .record = record_sums,
    .head_bytes = bytes_of_count,
    .append = append_sums,
    .begin_score = count_scored,
    .score = score_key_sums,
};

/* Metrics without kernels run on the CPU, and it is said; attention is the device's. */
static void noted(const char *model, const char *policy)
{
    struct butler_error err = {0}, checked = {0};
    struct butler_engine *engine = engine_of(model, GPU_DEVICE ":0", 0, &err);
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 64, .policy = policy};
    assert_int_equal(butler_policy_check(engine, "full", &checked), 0);
    assert_string_equal(checked.message, "");
    assert_int_equal(butler_policy_check(engine, policy, &checked), 0);
    struct butler_session *session = butler_session_new(engine, &params, &err);
    assert_non_null(session);
    assert_int_equal(err.code | checked.code, 0);
    assert_string_equal(err.message, checked.message);
    if (!strstr(err.message, "metric key_sums runs on the CPU"))
        fail_msg("%s", err.message);
    read_prompt(session, 30);
    const uint64_t before = butler_gpu_launches(engine->backend, "attend");
    assert_int_equal(butler_step(session, 3, &err), 0);
    assert_true(butler_gpu_launches(engine->backend, "attend") > before);
    assert_int_equal(butler_gpu_launches(engine->backend, "choose_units"), 0);
    butler_session_free(session);
    free_engine(engine);
}

static void test_on_cpu(void **state)
{
    const struct {
        const char *policy;
        enum butler_kv_type type;
        const char *model;
    } cases[] = {{"random:budget=24", BUTLER_KV_F16, "models/gemma3.gguf"},
                 {"keydiff:budget=24", BUTLER_KV_F32, "models/gpt-oss.gguf"},
                 {"key_sums:budget=24,group=mean,every=2", BUTLER_KV_F16, usual_model},
                 {"key_sums:method=evict,budget=24", BUTLER_KV_F32, usual_model},
                 {"keydiff:budget=24", BUTLER_KV_F16, usual_model},
                 {"snapkv:budget=24,recent=8,window=8", BUTLER_KV_F16, usual_model},
                 {"scissorhands:budget=24", BUTLER_KV_F32, usual_model},
                 {"tova:budget=24", BUTLER_KV_F16, usual_model},
                 {"h2o+vatp:budget=60", BUTLER_KV_F32, usual_model},
                 {"random:budget=24,share=query", BUTLER_KV_F16, usual_model},
                 {"knorm:budget=24,dense=1", BUTLER_KV_F16, usual_model},
                 {"fier:budget=24,dense=0,scan=2", BUTLER_KV_F16, usual_model},
                 {"quest:budget=32,dense=0,share=layer", BUTLER_KV_F32, usual_model},
                 {"oracle:mass=0.6", BUTLER_KV_F32, usual_model}};
    char path[FIXTURE_PATH];
    struct tiny tiny = tiny_default;
    begin(state);
    plugged = &key_sums;
    fixture_path(path, usual_model);
    noted(path, "key_sums:budget=16");
    for (int c = GPU_FEW ? 3 : 0; c < N(cases); c += GPU_FEW ? 4 : 1) {
        fixture_path(path, cases[c].model);
        sessions_same(path, NULL, cases[c].policy, cases[c].type, 1e-4);
    }
    tiny.arch = "qwen2";
    tiny.head_dim = 64;
    tiny.n_layers = FEW_LAYERS;
    tiny_write(tiny_path("on_cpu.gguf"), &tiny);
    sessions_same(tiny_path("on_cpu.gguf"), NULL, "key_sums:budget=24", BUTLER_KV_Q8_0, 1e-3);
    fixture_path(path, usual_model);
    unread_same("keydiff:method=retrieve,budget=24", 34);
    if (!GPU_FEW)
        passes_and_files(path, NULL, "keydiff:budget=24", BUTLER_KV_F32, 1e-4);
    plugged = NULL;
}

#endif
