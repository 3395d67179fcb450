/* The predictor at work: its forward pass against PyTorch, what is stored of predicted keys against the floats they were, scores
 * known ahead of their layers, and selections by what earlier layers saw. */
#include "tiny_model.h"

#include <math.h>

#include "cpu/attend.h"
#include "fixtures.h"
#include "engine/predict.h"
#include "random_predictor.h"
#include "engine/session.h"

static const char *write_model(void)
{
    struct tiny tiny = tiny_default;
    tiny.n_layers = 6;
    const char *path = tiny_path("model.gguf");
    tiny_write(path, &tiny);
    return path;
}

/* An engine whose passes have 16 tokens. */
static struct butler_engine *open_engine(void)
{
    struct butler_engine *engine = load_engine(write_model(), 2, NULL);
    engine->n_block = 16;
    return engine;
}

/* A predictor at work on an engine, in passes of at most n_block tokens. It stays the caller's. */
static struct butler_predict *start(struct butler_engine *engine, struct butler_predictor *predictor, enum butler_kv_type type,
                                    int n_ctx, int n_block)
{
    struct butler_error err;
    const int version = predictor->sizes.version;
    engine->n_block = n_block;
    engine->predictors[version - 1] = predictor;
    struct butler_predict *predict = butler_predict_new(engine, version, type, n_ctx, &err);
    if (!predict)
        fail_msg("%s", err.message);
    return predict;
}

static void stop(struct butler_engine *engine, struct butler_predict *predict)
{
    const int version = predict->predictor->sizes.version;
    butler_predict_free(predict);
    butler_predict_scratch_free(engine->predict_scratch[version - 1]);
    engine->predict_scratch[version - 1] = NULL;
    engine->predictors[version - 1] = NULL;
}

/* ----------------------------------------------------------------------------------------------- PyTorch */

struct fixture {
    unsigned char *bytes;
    size_t size;
    const float *at;
    int n_tokens;
    struct butler_predictor *predictor;
};

static const float *take(struct fixture *fixture, size_t n)
{
    const float *from = fixture->at;
    fixture->at += n;
    assert_true((const unsigned char *)fixture->at <= fixture->bytes + fixture->size);
    return from;
}

static struct fixture open_fixture(const char *name)
{
    struct fixture fixture = {0};
    struct butler_error err;
    int32_t s[14];
    fixture.bytes = fixture_read(name, &fixture.size);
    assert_non_null(fixture.bytes);
    memcpy(s, fixture.bytes, sizeof s);
    fixture.at = (const float *)(void *)(fixture.bytes + sizeof s);
    struct butler_predictor_sizes sizes = {s[0],        BUTLER_PREDICTOR_INPUT_NORM,
                                           s[1],        s[2],
                                           s[3],        s[4],
                                           s[5],        s[6],
                                           s[7],        s[8],
                                           s[9],        s[10],
                                           *fixture.at, s[13],
                                           s[11],       {0},
                                           false};
    for (int i = 0; sizes.version == 2 && *fixture.at > 0 && i < sizes.d / 2; i++)
        sizes.rope_freq[i] = (float)pow((double)*fixture.at, -2.0 * i / sizes.d);
    fixture.at++;
    fixture.n_tokens = s[12];
    fixture.predictor = butler_predictor_new(&sizes, 1, &err);
    if (!fixture.predictor)
        fail_msg("%s", err.message);
    memcpy(fixture.predictor->weights, take(&fixture, fixture.predictor->n_weights), fixture.predictor->n_weights * sizeof(float));
    return fixture;
}

static void assert_scores(const struct fixture *fixture, const float *expected, const float *query, const float *key, int layer,
                          int head, int token)
{
    const struct butler_predictor_sizes *s = &fixture->predictor->sizes;
    double sum = 0;
    for (int i = 0; i < s->d; i++)
        sum += (double)query[i] * (double)key[i];
    sum /= sqrt(s->d);
    const double want = (double)expected[((layer - 1) * s->n_heads + head) * fixture->n_tokens + token];
    if (!(fabs(sum - want) <= 1e-4))
        fail_msg("layer %d, head %d, token %d: %.7f, PyTorch has %.7f", layer, head, token, sum, want);
}

/* Blocks of 5 tokens, then one by one: what is remembered between calls must add up. */
static void check_first(const char *name, struct butler_engine *engine)
{
    struct fixture fixture = open_fixture(name);
    const struct butler_predictor_sizes *s = &fixture.predictor->sizes;
    struct butler_error err;
    struct butler_traffic traffic = {0};
    const int n = fixture.n_tokens, row = (s->n_layers - 1) * s->n_key_heads * s->d;
    const float *input = take(&fixture, (size_t)(n * s->n_embd));
    const float *expected = take(&fixture, (size_t)((s->n_layers - 1) * s->n_heads * n));
    float *keys = calloc((size_t)(n * row), sizeof *keys);
    struct butler_predict *predict = start(engine, fixture.predictor, BUTLER_KV_F32, n, 5);
    for (int t = 0; t < n;) {
        const bool decode = t >= 20;
        const int m = decode ? 1 : 5;
        const struct butler_predict_block block = {input + t * s->n_embd, m, t, decode, t + m == n};
        assert_int_equal(butler_predict_run(predict, &traffic, 0, &block, &err), 0);
        memcpy(keys + t * row, predict->keys, (size_t)(m * row) * sizeof *keys);
        t += m;
    }
    assert_true(traffic.predict_bytes > 0 && traffic.metric_bytes > 0);
    assert_int_equal(predict->known_first, 1);
    assert_int_equal(predict->known_end, s->n_layers);
    for (int l = 1; l < s->n_layers; l++)
        for (int h = 0; h < s->n_heads; h++)
            for (int t = 0; t < n; t++)
                assert_scores(&fixture, expected, butler_predict_queries(predict, l) + h * s->d,
                              keys + t * row + ((l - 1) * s->n_key_heads + h * s->n_key_heads / s->n_heads) * s->d, l, h, t);
    free(keys);
    stop(engine, predict);
    butler_predictor_free(fixture.predictor);
    free(fixture.bytes);
}

static void check_second(const char *name, struct butler_engine *engine)
{
    struct fixture fixture = open_fixture(name);
    const struct butler_predictor_sizes *s = &fixture.predictor->sizes;
    struct butler_error err;
    struct butler_traffic traffic = {0};
    const int n = fixture.n_tokens;
    int first, n_producers = 0;
    while (butler_predictor_serves(s, n_producers, &first) > 0)
        n_producers++;
    const float *input = take(&fixture, (size_t)(n_producers * n * s->n_embd));
    const float *cached = take(&fixture, (size_t)((s->n_layers - 1) * n * s->n_kv_heads * s->head_dim));
    const float *expected = take(&fixture, (size_t)((s->n_layers - 1) * s->n_heads * n));
    struct butler_predict *predict = start(engine, fixture.predictor, BUTLER_KV_F32, n, n);
    for (int l = 1; l < s->n_layers; l++) {
        const int producer = (l - 1) / s->stride;
        if (butler_predict_serves(predict, l - 1, &first) > 0) {
            assert_int_equal(first, l);
            const struct butler_predict_block block = {input + producer * n * s->n_embd, n, 0, false, true};
            assert_int_equal(butler_predict_run(predict, &traffic, l - 1, &block, &err), 0);
        }
        for (int h = 0; h < s->n_heads; h++)
            for (int t = 0; t < n; t++) {
                const int g = h * s->n_kv_heads / s->n_heads;
                const float *k = cached + (((l - 1) * n + t) * s->n_kv_heads + g) * s->head_dim;
                float key[BUTLER_PREDICTOR_MAX_D];
                for (int i = 0; i < s->d; i++) {
                    const float *w = predict->scratch->projections + (((l - 1) * s->n_kv_heads + g) * s->d + i) * s->head_dim;
                    key[i] = 0;
                    for (int c = 0; c < s->head_dim; c++)
                        key[i] += w[c] * k[c];
                }
                assert_scores(&fixture, expected, butler_predict_queries(predict, l) + h * s->d, key, l, h, t);
            }
    }
    stop(engine, predict);
    butler_predictor_free(fixture.predictor);
    free(fixture.bytes);
}

static void test_pytorch(void **state)
{
    struct butler_engine *engine = open_engine();
    (void)state;
    check_first("predict/v1-query.bin", engine);
    check_first("predict/v1-kv.bin", engine);
    check_first("predict/v1-fast.bin", engine);
    check_first("predict/v1-window.bin", engine);
    check_second("predict/v2.bin", engine);
    check_second("predict/v2-rotated.bin", engine);
    free_engine(engine);
}

/* -------------------------------------------------------------------------------------- version 1's window */

enum { N_LONG = 900, WINDOW = 300, N_FORGOTTEN = 500 };

/* Keys [N_LONG][row] of a text that is read in blocks up to n_prompt, and then step by step. */
static float *read_long(struct butler_predictor *predictor, struct butler_engine *engine, enum butler_kv_type type,
                        const float *input, int n_block, int n_prompt)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const size_t row = (size_t)((s->n_layers - 1) * s->n_key_heads * s->d);
    struct butler_error err;
    struct butler_traffic traffic = {0};
    float *keys = calloc(N_LONG * row, sizeof *keys);
    struct butler_predict *predict = start(engine, predictor, type, N_LONG, n_block);
    for (int t = 0, m; t < N_LONG; t += m) {
        const bool decode = t >= n_prompt;
        const uint64_t before = traffic.metric_bytes;
        m = decode ? 1 : BUTLER_MIN(n_block, n_prompt - t);
        const struct butler_predict_block block = {input + t * s->n_embd, m, t, decode, false};
        assert_int_equal(butler_predict_run(predict, &traffic, 0, &block, &err), 0);
        if (decode)
            assert_int_equal(traffic.metric_bytes - before,
                             2 * predict->kv.row_bytes * (size_t)(s->n_inner_heads * BUTLER_MIN(t + 1, WINDOW)));
        memcpy(keys + (size_t)t * row, predict->keys, (size_t)m * row * sizeof *keys);
    }
    stop(engine, predict);
    return keys;
}

/* Steps find what blocks of any size find, up to the rounding of bfloat16 pairs and of the fixed-point products of a matrix unit;
 * and where the window of a token begins after what was changed, nothing changes at all. */
static void check_window(struct butler_predictor *predictor, struct butler_engine *engine, enum butler_kv_type type)
{
    static const int blocks[] = {N_LONG, 256, 70};
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const size_t row = (size_t)((s->n_layers - 1) * s->n_key_heads * s->d);
    float *input = malloc((size_t)(N_LONG * s->n_embd) * sizeof *input),
          *other = malloc((size_t)(N_LONG * s->n_embd) * sizeof *other);
    uint64_t seed = 5;
    for (int i = 0; i < N_LONG * s->n_embd; i++) {
        input[i] = 4 * butler_random_float(&seed) - 2;
        other[i] = i < N_FORGOTTEN * s->n_embd ? 4 * butler_random_float(&seed) - 2 : input[i];
    }
    float *steps = read_long(predictor, engine, type, input, 1, 0);
    for (int b = 0; b <= BUTLER_COUNT(blocks); b++) {
        const int n_block = b ? blocks[b - 1] : 1, n_prompt = b ? N_LONG - 5 : 0; /* 0: steps alone */
        float *keys = read_long(predictor, engine, type, input, n_block, n_prompt);
        float *changed = read_long(predictor, engine, type, other, n_block, n_prompt);
        for (size_t t = 0; t < N_LONG; t++) {
            double far = 0, size = 0;
            for (size_t i = t * row; i < (t + 1) * row; i++) {
                far += ((double)keys[i] - (double)steps[i]) * ((double)keys[i] - (double)steps[i]);
                size += (double)steps[i] * (double)steps[i];
            }
            if (!(sqrt(far / size) <= 2e-4))
                fail_msg("%s, blocks of %d, token %zu: off by %g", engine->backend->isa, n_block, t, sqrt(far / size));
            const bool same = memcmp(keys + t * row, changed + t * row, row * sizeof *keys) == 0;
            if (same != (t >= N_FORGOTTEN + WINDOW - 1))
                fail_msg("%s, blocks of %d, token %zu %s what came before %d", engine->backend->isa, n_block, t,
                         same ? "misses" : "still sees", N_FORGOTTEN);
        }
        free(keys);
        free(changed);
    }
    free(steps);
    free(input);
    free(other);
}

static void test_window(void **state)
{
    struct butler_engine *engine = open_engine();
    struct butler_predictor_sizes sizes = butler_predictor_sizes_for(engine->model, 1);
    struct butler_error err;
    (void)state;
    sizes.n_inner = 32;
    sizes.n_inner_heads = 2; /* of 16, as a matrix unit wants them */
    sizes.rope_length = WINDOW / 4;
    struct butler_predictor *predictor = butler_predictor_new(&sizes, 3, &err);
    assert_non_null(predictor);
    for (const char *const *isa = butler_kernels_available(); *isa; isa++) {
        struct butler_engine *other = load_engine(engine->model->path, 3, *isa);
        check_window(predictor, other, BUTLER_KV_F32);
        check_window(predictor, other, BUTLER_KV_F16);
        free_engine(other);
    }
    butler_predictor_free(predictor);
    free_engine(engine);
}

/* ------------------------------------------------------------------------- scores, ahead and as they are stored */

enum { N_PROMPT = 40, N_TEXT = 70, MAX_LAYERS = 6, MAX_HEADS = 4 };

/* What a session's layers compared, and the scores of later layers as they were known at an earlier one. */
struct watch {
    struct butler_session *session;
    bool decode;
    int n_ahead; /* layers scored ahead in this step */
    float ahead[MAX_LAYERS][MAX_HEADS][N_TEXT];
    float at[MAX_LAYERS][MAX_HEADS][N_TEXT];
    float keys[MAX_LAYERS][N_TEXT][MAX_HEADS * BUTLER_PREDICTOR_MAX_D]; /* predicted, as floats */
    float q[MAX_LAYERS][MAX_HEADS * 64], k[MAX_LAYERS][N_TEXT][MAX_HEADS * 64];
};

/* position: of the newest token, which the layer holds or not. */
static void score_layer(struct watch *watch, int layer, int position, float out[MAX_HEADS][N_TEXT])
{
    struct butler_session *session = watch->session;
    struct butler_backend *backend = session->engine->backend;
    const struct butler_scratch *scratch = &session->engine->scratch;
    const struct butler_layer_state state = butler_session_layer(session, &session->traffic, layer, position);
    const int n = butler_kv_at(&session->kv, layer, 0)->n_slots;
    backend->score(backend, &state, scratch->q, false);
    for (int h = 0; h < session->shape.n_heads; h++)
        memcpy(out[h], scratch->work.scores + (size_t)h * scratch->work.score_stride, (size_t)n * sizeof(float));
}

static void see(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct watch *watch = user;
    struct butler_session *session = watch->session;
    const struct butler_metric_shape *shape = &session->shape;
    const struct butler_predict *predict = session->predict;
    const size_t kv = (size_t)(shape->n_kv_heads * shape->head_dim), heads = (size_t)(shape->n_heads * shape->head_dim);
    (void)x, (void)h;
    for (int t = 0; t < n; t++)
        memcpy(watch->k[layer][first + t], k + (size_t)t * kv, kv * sizeof *k);
    memcpy(watch->q[layer], q + (size_t)(n - 1) * heads, heads * sizeof *q);
    if (predict && predict->predictor->sizes.version == 1 && layer > 0) {
        const size_t row = (size_t)(predict->predictor->sizes.n_key_heads * shape->predicted_dim);
        for (int t = 0; t < n; t++)
            memcpy(watch->keys[layer][first + t],
                   predict->keys + ((size_t)t * (size_t)(shape->n_layers - 1) + (size_t)layer - 1) * row, row * sizeof *k);
    }
    for (int l = layer + 1; predict && watch->decode && l < predict->known_end; l++)
        if (l >= predict->known_first && butler_predict_serves(predict, layer, &first) > 0) {
            score_layer(watch, l, session->n_past, watch->ahead[l]);
            watch->n_ahead++;
        }
}

static struct watch *open_watch(struct butler_engine *engine, const char *policy)
{
    struct butler_error err;
    static struct butler_capture capture;
    struct watch *watch = calloc(1, sizeof *watch);
    int32_t text[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = i * 7 % 40;
    watch->session = butler_session_new(
        engine, &(struct butler_session_params){.n_ctx = N_TEXT, .kv_type = BUTLER_KV_F32, .policy = policy}, &err);
    if (!watch->session)
        fail_msg("%s", err.message);
    capture = (struct butler_capture){.layer = see, .user = watch};
    watch->session->capture = &capture;
    assert_int_equal(butler_prefill(watch->session, text, N_PROMPT, NULL, NULL, &err), 0);
    watch->decode = true;
    return watch;
}

static void close_watch(struct watch *watch)
{
    butler_session_free(watch->session);
    free(watch);
}

/* Known at the producer, and the same at the layer but for the newest token, which is not in the cache before: scores of every
 * head, or where heads have one query, of the first of those that share it. */
static void check_ahead(struct butler_engine *engine, const char *policy, int n_ahead)
{
    struct watch *watch = open_watch(engine, policy);
    const bool together = watch->session->policy.reduce == BUTLER_REDUCE_MEAN;
    for (int i = N_PROMPT; i < N_TEXT; i++) {
        watch->n_ahead = 0;
        assert_int_equal(butler_step(watch->session, i % 40, NULL), 0);
        assert_int_equal(watch->n_ahead, n_ahead);
        for (int l = 1; l < engine->model->hp.n_layers; l++) {
            /* The last step's queries: of version 2 only those of the last producer are still there. */
            if (l < watch->session->predict->known_first)
                continue;
            score_layer(watch, l, i, watch->at[l]);
            for (int h = 0; h < engine->model->hp.n_heads; h += together ? watch->session->shape.group : 1)
                assert_memory_equal(watch->at[l][h], watch->ahead[l][h], (size_t)i * sizeof(float));
        }
    }
    close_watch(watch);
}

static void test_ahead(void **state)
{
    struct butler_engine *engine = open_engine();
    (void)state;
    attach_both(engine, false);
    check_ahead(engine, "tokenbutler:budget=20", 5);
    check_ahead(engine, "tokenbutler:budget=20,group=max", 5);
    check_ahead(engine, "tokenbutler2:budget=20,on_top=0,sinks=2,recent=2,group=max", 5);
    check_ahead(engine, "tokenbutler2:budget=20,on_top=0,sinks=2,recent=2", 5);
    free_engine(engine);
}

/* In the step that outgrows the budget later layers have no records yet: each selects by itself, as in a pass of several sessions.
 */
static void test_outgrown_budgets(void **state)
{
    static const char *const policies[] = {"tokenbutler2:budget=45,on_top=0,sinks=2,recent=2",
                                           "tokenbutler2:budget=52,on_top=0,sinks=1,recent=1,every=4",
                                           "tokenbutler:budget=45,sinks=2,recent=2"};
    struct butler_engine *engine = open_engine();
    (void)state;
    attach_both(engine, false);
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        const struct butler_session_params params = {.n_ctx = N_TEXT, .kv_type = BUTLER_KV_F32, .policy = policies[p]};
        struct butler_session *sessions[3];
        int32_t text[N_PROMPT];
        for (int i = 0; i < N_PROMPT; i++)
            text[i] = i * 7 % 40;
        for (int s = 0; s < 3; s++) {
            assert_non_null(sessions[s] = butler_session_new(engine, &params, NULL));
            assert_int_equal(butler_prefill(sessions[s], text, N_PROMPT, NULL, NULL, NULL), 0);
        }
        for (int i = N_PROMPT; i < N_TEXT; i++) {
            const int32_t id = i % 40;
            assert_int_equal(butler_step(sessions[0], id, NULL), 0);
            assert_int_equal(butler_step_batch(sessions + 1, (int32_t[]){id, id}, 2, NULL), 0);
            for (int s = 1; s < 3; s++)
                if (memcmp(butler_logits(sessions[0]), butler_logits(sessions[s]),
                           (size_t)engine->model->hp.n_vocab * sizeof(float)) != 0)
                    fail_msg("%s: token %d alone differs from that in a pass of two", policies[p], i);
        }
        for (int s = 0; s < 3; s++)
            butler_session_free(sessions[s]);
    }
    free_engine(engine);
}

/* Scores from stored keys are those of the floats, up to the rounding of both factors. */
static void check_stored(struct butler_engine *engine, const char *policy, double tolerance)
{
    struct watch *watch = open_watch(engine, policy);
    const struct butler_metric_shape *shape = &watch->session->shape;
    const int d = shape->predicted_dim;
    for (int i = N_PROMPT; i < N_TEXT; i++)
        assert_int_equal(butler_step(watch->session, i % 40, NULL), 0);
    for (int l = 1; l < shape->n_layers; l++) {
        score_layer(watch, l, N_TEXT - 1, watch->at[l]);
        for (int h = 0; h < shape->n_heads; h++) {
            const float *q = butler_predict_queries(watch->session->predict, l) + h * d;
            const int key = shape->predicted_keys > 1 ? h : h / shape->group;
            for (int t = 0; t < N_TEXT; t++) {
                double sum = 0, qq = 0, kk = 0;
                for (int c = 0; c < d; c++) {
                    const double a = (double)q[c], b = (double)watch->keys[l][t][key * d + c];
                    sum += a * b;
                    qq += a * a;
                    kk += b * b;
                }
                const double scale = sqrt((double)shape->head_dim / d), got = (double)watch->at[l][h][t] / scale;
                if (!(fabs(got - sum) <= tolerance * sqrt(qq * kk)))
                    fail_msg("%s: layer %d, head %d, token %d: %g, not %g (|q||k| %g)", policy, l, h, t, got, sum, sqrt(qq * kk));
            }
        }
    }
    close_watch(watch);
}

static void test_stored(void **state)
{
    (void)state;
    for (int per_query_head = 0; per_query_head < 2; per_query_head++) {
        struct butler_engine *engine = open_engine();
        attach_both(engine, per_query_head);
        check_stored(engine, "tokenbutler:budget=30,group=max,keys=int8", 0.02);
        check_stored(engine, "tokenbutler:budget=30,group=max,keys=f16", 1e-3);
        check_stored(engine, "tokenbutler:budget=30,group=max", 0.15);
        free_engine(engine);
    }
}

/* ------------------------------------------------------------------------------------------- earlier layers */

/* The tokens of the `budget` largest q.k of another layer, among all n, the newest always. */
static void expect_top(const struct watch *watch, int layer, int head, int n, int budget, bool chosen[N_TEXT])
{
    const struct butler_metric_shape *shape = &watch->session->shape;
    double scores[N_TEXT];
    for (int t = 0; t < n; t++) {
        scores[t] = 0;
        for (int c = 0; c < shape->head_dim; c++)
            scores[t] += (double)watch->q[layer][head * shape->head_dim + c] *
                         (double)watch->k[layer][t][head / shape->group * shape->head_dim + c];
        chosen[t] = false;
    }
    chosen[n - 1] = true;
    for (int i = 1; i < budget; i++) {
        int best = -1;
        for (int t = 0; t < n; t++)
            if (!chosen[t] && (best < 0 || scores[t] > scores[best]))
                best = t;
        chosen[best] = true;
    }
}

static void check_earlier(struct butler_engine *engine, const char *policy, bool previous)
{
    enum { BUDGET = 9 };
    struct watch *watch = open_watch(engine, policy);
    for (int i = N_PROMPT; i < N_TEXT; i++) {
        assert_int_equal(butler_step(watch->session, i % 40, NULL), 0);
        for (int l = 1; l < engine->model->hp.n_layers; l++)
            for (int h = 0; h < engine->model->hp.n_heads; h++) {
                bool chosen[N_TEXT];
                int32_t ids[N_TEXT];
                expect_top(watch, previous ? l - 1 : 0, h, i + 1, BUDGET, chosen);
                assert_int_equal(butler_last_selection(watch->session, l, h, ids, N_TEXT), BUDGET);
                for (int j = 0; j < BUDGET; j++)
                    if (!chosen[ids[j]])
                        fail_msg("%s: layer %d, head %d, token %d: %d was read", policy, l, h, i, ids[j]);
            }
    }
    close_watch(watch);
}

static void test_earlier(void **state)
{
    struct butler_engine *engine = open_engine();
    (void)state;
    check_earlier(engine, "layer0:budget=9,share=query", false);
    check_earlier(engine, "prevlayer:budget=9,share=query", true);
    free_engine(engine);
}

/* ------------------------------------------------------------------------------------------------- copies */

static void steps(struct butler_session *session, int first, int n)
{
    for (int i = first; i < first + n; i++)
        assert_int_equal(butler_step(session, i * 3 % 40, NULL), 0);
}

/* What both read in the step just made, in every layer for every head. */
static void assert_same_reading(const struct butler_session *a, const struct butler_session *b, const char *what)
{
    int32_t ids[2][N_TEXT];
    for (int l = 0; l < a->shape.n_layers; l++)
        for (int h = 0; h < a->shape.n_heads; h++) {
            const int n = butler_last_selection(a, l, h, ids[0], N_TEXT);
            if (butler_last_selection(b, l, h, ids[1], N_TEXT) != n || memcmp(ids[0], ids[1], (size_t)n * sizeof ids[0][0]) != 0)
                fail_msg("%s: layer %d, head %d read other tokens", what, l, h);
            assert_true(l == 0 ? n == butler_n_past(a) : n < butler_n_past(a));
        }
}

static void check_copy(struct butler_engine *engine, const char *policy)
{
    struct watch *watch = open_watch(engine, policy), *other = open_watch(engine, policy);
    struct butler_session *session = watch->session, *copy = other->session;
    struct butler_error err;
    session->capture = copy->capture = NULL;
    steps(copy, 11, 9); /* another text, which the copy forgets */
    steps(session, N_PROMPT, 6);
    if (butler_session_copy(copy, session, &err) < 0)
        fail_msg("%s", err.message);
    for (int i = N_PROMPT + 6; i < N_TEXT; i++) {
        steps(session, i, 1);
        steps(copy, i, 1);
        assert_same_reading(session, copy, policy);
        assert_memory_equal(butler_logits(session), butler_logits(copy), (size_t)engine->model->hp.n_vocab * sizeof(float));
    }
    close_watch(watch);
    close_watch(other);
}

/* A session that takes over the text of a dense one, as one that read it. Version 1 cannot: its predictor reads texts itself. */
static void check_adopt(struct butler_engine *engine, const char *policy, bool possible)
{
    struct watch *watch = open_watch(engine, policy), *donor = open_watch(engine, "full");
    struct butler_session *session = watch->session;
    struct butler_error err;
    const struct butler_session_params params = {.n_ctx = N_TEXT, .kv_type = BUTLER_KV_F32, .policy = policy};
    struct butler_session *heir = butler_session_new(engine, &params, &err);
    session->capture = donor->session->capture = NULL;
    assert_non_null(heir);
    assert_int_equal(butler_session_adopt(heir, donor->session, &err), possible ? 0 : BUTLER_ERROR_ARGUMENT);
    for (int i = N_PROMPT; i < N_TEXT && possible; i++) {
        steps(session, i, 1);
        steps(heir, i, 1);
        assert_same_reading(session, heir, policy);
    }
    butler_session_free(heir);
    close_watch(watch);
    close_watch(donor);
}

static void test_copies(void **state)
{
    (void)state;
    for (int per_query_head = 0; per_query_head < 2; per_query_head++) {
        struct butler_engine *engine = open_engine();
        attach_both(engine, per_query_head);
        check_copy(engine, "tokenbutler:budget=20");
        check_copy(engine, "tokenbutler:budget=20,share=query,keys=f16");
        check_copy(engine, "tokenbutler:budget=20,keys=int8");
        check_copy(engine, "tokenbutler2:budget=16,on_top=0,sinks=2,recent=2,page=4");
        check_adopt(engine, "tokenbutler:budget=20", false);
        check_adopt(engine, "tokenbutler2:budget=20,on_top=0,sinks=2,recent=2", true);
        free_engine(engine);
    }
}

/* ----------------------------------------------------------------------------------------------- refusals */

static void test_refusals(void **state)
{
    struct butler_engine *engine = open_engine();
    struct butler_error err;
    struct butler_predictor_info info = {BUTLER_INIT(butler_predictor_info)};
    (void)state;
    assert_int_equal(butler_policy_check(engine, "tokenbutler", &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "butler train --predictor v1"));
    assert_int_equal(butler_policy_check(engine, "tokenbutler2", &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "tokenbutler2.gguf"));
    assert_int_equal(butler_policy_check(NULL, "tokenbutler2", &err), 0); /* without a model there is nothing to miss */
    assert_false(butler_predictor_describe(engine, 1, &info));
    attach_both(engine, false);
    assert_true(butler_predictor_describe(engine, 1, &info));
    assert_int_equal(info.version, 1);
    assert_true(info.share > 0 && info.step_bytes > 0 && info.step_bytes <= info.bytes);
    assert_false(butler_predictor_describe(engine, 3, &info));
    assert_int_equal(butler_policy_check(engine, "tokenbutler", &err), 0);
    static const char *const refused[][2] = {{"tokenbutler:dense=0", "dense"},
                                             {"layer0:dense=0", "dense"},
                                             {"layer0:method=evict", "retrieve"},
                                             {"prevlayer:method=evict", "retrieve"},
                                             {"tokenbutler:keys=int2", "int4 or int8 or f16"},
                                             {"tokenbutler:page=0", "page"},
                                             {"tokenbutler2:method=evict,rope=cache", "rope"}};
    for (int i = 0; i < BUTLER_COUNT(refused); i++) {
        assert_int_equal(butler_policy_check(engine, refused[i][0], &err), BUTLER_ERROR_ARGUMENT);
        assert_non_null(strstr(err.message, refused[i][1]));
    }
    free_engine(engine);
}

/* A session saved with one predictor is not restored with another. */
static void test_other_predictor(void **state)
{
    struct butler_engine *engine = open_engine(), *other = open_engine();
    struct butler_predictor_sizes sizes = butler_predictor_sizes_for(engine->model, 1);
    struct butler_error err;
    const char *path = tiny_path("session");
    (void)state;
    attach_random(engine, &sizes, 1);
    attach_random(other, &sizes, 2);
    struct watch *watch = open_watch(engine, "tokenbutler:budget=20");
    assert_int_equal(butler_session_save(watch->session, path, &err), 0);
    assert_null(butler_session_restore(other, path, 0, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "predictor"));
    close_watch(watch);
    free_engine(engine);
    free_engine(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pytorch),          cmocka_unit_test(test_window),   cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_outgrown_budgets), cmocka_unit_test(test_stored),   cmocka_unit_test(test_earlier),
        cmocka_unit_test(test_copies),           cmocka_unit_test(test_refusals), cmocka_unit_test(test_other_predictor),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
