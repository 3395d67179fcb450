/* Sessions: what they refuse, what they report, what a file of one may contain, and places in the cache as positions. */
#include <math.h>

#include <xxhash.h>

#include "fixtures.h"
#include "engine/session.h"
#include "tiny_model.h"

static struct butler_engine *load_precision(const struct tiny *tiny, int n_threads, int bits)
{
    char path[] = "/tmp/butler-test-model-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    tiny_write(path, tiny);
    struct butler_error err;
    const struct butler_engine_params params = {.n_threads = n_threads, .n_block = 16, .activation_bits = bits};
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, &params, &err) : NULL;
    unlink(path);
    if (!engine)
        fail_msg("%s", err.message);
    return engine;
}

static struct butler_engine *load(const struct tiny *tiny, int n_threads)
{
    return load_precision(tiny, n_threads, 0);
}

static struct butler_session *open_session(struct butler_engine *engine, enum butler_kv_type type, int n_ctx, const char *policy)
{
    struct butler_error err;
    struct butler_session *session =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = n_ctx, .kv_type = type, .policy = policy}, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static void text_of(int32_t *ids, int n, int n_vocab)
{
    uint64_t random = 11;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)n_vocab);
}

static void run(struct butler_session *session, const int32_t *ids, int n_prompt, int n)
{
    struct butler_error err;
    if (n_prompt > 0 && butler_prefill(session, ids, n_prompt, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    for (int i = n_prompt; i < n; i++)
        if (butler_step(session, ids[i], &err) < 0)
            fail_msg("%s", err.message);
}

/* max|a - b| / max|b| */
static double distance(const float *a, const float *b, int n)
{
    double most = 0, scale = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}

/* In a model of one layer a cached key and value depend on their token alone. So a cache that keeps the first 4 tokens and
 * the last of a text, at positions counted in the cache, is the cache of a text of just these tokens. */
static void test_rope_in_cache(void **state)
{
    int32_t text[90], kept[20];
    char path[FIXTURE_PATH];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf"); /* its attention is far from uniform */
    struct butler_engine *engine = load_engine(path, 0, NULL);
    engine->model->hp.n_layers = 1;
    const int n_vocab = engine->model->hp.n_vocab;
    text_of(text, 90, n_vocab);
    memcpy(kept, text, 4 * sizeof *kept);
    memcpy(kept + 4, text + 90 - 16, 16 * sizeof *kept);
    for (int n_prompt = 0; n_prompt <= 60; n_prompt += 30) {
        struct butler_session *streaming = open_session(engine, BUTLER_KV_F32, 128, "streaming:budget=20,sinks=4,rope=cache");
        struct butler_session *shifted = open_session(engine, BUTLER_KV_F32, 128, "streaming:budget=20,sinks=4");
        struct butler_session *full = open_session(engine, BUTLER_KV_F32, 128, "full");
        run(streaming, text, n_prompt, 90);
        run(shifted, text, n_prompt, 90);
        run(full, kept, 0, 20);
        assert_true(distance(butler_logits(streaming), butler_logits(full), n_vocab) < 1e-4);
        assert_true(distance(butler_logits(shifted), butler_logits(full), n_vocab) > 1e-3); /* else this shows nothing */
        butler_session_free(streaming);
        butler_session_free(shifted);
        butler_session_free(full);
    }
    free_engine(engine);
}

static void test_refusals(void **state)
{
    struct tiny tiny = tiny_default;
    struct butler_error err;
    int32_t text[70];
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    text_of(text, 70, tiny.n_vocab);
    struct butler_session *session = open_session(engine, BUTLER_KV_F16, 64, "full");
    assert_null(butler_logits(session));
    assert_int_equal(butler_prefill(session, text, 65, NULL, NULL, &err), BUTLER_ERROR_LENGTH);
    assert_non_null(strstr(err.message, "65"));
    assert_non_null(strstr(err.message, "64"));
    assert_int_equal(butler_n_past(session), 0); /* refused whole */
    assert_int_equal(butler_prefill(session, text, 0, NULL, NULL, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step(session, tiny.n_vocab, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step(session, -1, &err), BUTLER_ERROR_ARGUMENT);
    run(session, text, 60, 64);
    assert_int_equal(butler_step(session, 1, &err), BUTLER_ERROR_LENGTH);
    assert_int_equal(butler_fill(session, 1, 1, &err), BUTLER_ERROR_LENGTH);
    assert_int_equal(butler_n_past(session), 64);
    butler_session_free(session);
    assert_null(butler_session_new(engine, &(struct butler_session_params){.policy = "ful"}, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    assert_null(butler_session_new(engine, &(struct butler_session_params){.n_ctx = -3}, &err));
    assert_null(butler_session_new(engine, &(struct butler_session_params){.n_ctx = INT32_MAX}, &err));
    assert_null(butler_session_new(engine, &(struct butler_session_params){.kv_type = (enum butler_kv_type)9}, &err));
    assert_null(butler_session_new(engine, &(struct butler_session_params){.kv_type = BUTLER_KV_Q8_0}, &err)); /* heads of 16 */
    assert_non_null(strstr(err.message, "32"));
    free_engine(engine);
}

/* Without parameters and with zeroed ones a session is the same: every token read, keys and values in F16. */
static void test_default_parameters(void **state)
{
    enum { N = 24 };
    static const struct butler_session_params zeroed, f16 = {.n_ctx = 128, .kv_type = BUTLER_KV_F16, .policy = "full"};
    const struct butler_session_params *params[] = {&f16, &zeroed, NULL};
    struct tiny tiny = tiny_default;
    float logits[3][64];
    int32_t text[N];
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    const size_t n_bytes = sizeof(float) * (size_t)tiny.n_vocab;
    text_of(text, N, tiny.n_vocab);
    for (int i = 0; i < 3; i++) {
        struct butler_error err;
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        struct butler_session *session = butler_session_new(engine, params[i], &err);
        assert_non_null(session);
        assert_int_equal(butler_n_ctx(session), f16.n_ctx);
        run(session, text, N - 4, N);
        butler_session_stats(session, &stats);
        assert_int_equal(stats.kv_bytes, stats.full_kv_bytes);
        memcpy(logits[i], butler_logits(session), n_bytes);
        butler_session_free(session);
    }
    assert_memory_equal(logits[0], logits[1], n_bytes);
    assert_memory_equal(logits[0], logits[2], n_bytes);
    free_engine(engine);
}

static void test_nan(void **state)
{
    struct tiny tiny = tiny_default;
    struct butler_error err;
    char path[] = "/tmp/butler-test-session-XXXXXX";
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    struct butler_session *session = open_session(engine, BUTLER_KV_F32, 64, "full");
    float weight[64];
    const float *before = engine->model->output_norm.weight;
    for (int i = 0; i < 64; i++)
        weight[i] = NAN;
    run(session, (int32_t[]){1, 2, 3}, 2, 3);
    engine->model->output_norm.weight = weight;
    assert_int_equal(
        engine->backend->bind_weights(engine->backend, &(struct butler_weights){weight, sizeof weight, BUTLER_F32}, 1, NULL), 0);
    assert_int_equal(butler_step(session, 4, &err), BUTLER_ERROR_NUMERIC);
    assert_non_null(strstr(err.message, "position 3"));
    engine->model->output_norm.weight = before;
    assert_int_equal(butler_step(session, 4, &err), BUTLER_ERROR_NUMERIC); /* it stays ended */
    assert_int_equal(butler_session_save(session, path, &err), BUTLER_ERROR_NUMERIC);
    assert_int_not_equal(access(path, F_OK), 0);
    butler_session_free(session);
    free_engine(engine);
}

/* A key that is not finite reaches the logits through every type of cache, in prompts and in decode steps. */
static void test_nan_keys(void **state)
{
    static const char *const isas[] = {"ref", NULL};
    struct tiny tiny = tiny_default;
    struct butler_error err;
    char path[160];
    (void)state;
    tiny.head_dim = 32;
    snprintf(path, sizeof path, "%s", tiny_path("nan-keys.gguf"));
    tiny_write(path, &tiny);
    struct tiny_bytes bytes = tiny_read(path);
    struct butler_gguf *gguf = butler_gguf_open_memory(bytes.data, bytes.size, path, &err);
    /* One channel of a key becomes NaN; queries and values stay finite. */
    ((float *)(uintptr_t)butler_gguf_find(gguf, "blk.1.attn_k.weight")->data)[0] = NAN;
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, file), bytes.size);
    fclose(file);
    butler_gguf_free(gguf);
    free(bytes.data);
    for (int i = 0; i < BUTLER_COUNT(isas); i++)
        for (int type = 0; type < BUTLER_N_KV_TYPES; type++) {
            struct butler_engine *engine = load_engine(path, 1, isas[i]);
            struct butler_session *session = open_session(engine, (enum butler_kv_type)type, 64, "full");
            assert_int_equal(butler_prefill(session, (const int32_t[]){1, 2, 3}, 3, NULL, NULL, &err), BUTLER_ERROR_NUMERIC);
            butler_session_free(session);
            session = open_session(engine, (enum butler_kv_type)type, 64, "full");
            assert_int_equal(butler_step(session, 4, &err), BUTLER_ERROR_NUMERIC);
            butler_session_free(session);
            free_engine(engine);
        }
}

/* The stopping rule: entropy below the threshold, after so many tokens. */
static void test_entropystop(void **state)
{
    struct tiny tiny = tiny_default;
    int32_t text[40];
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    text_of(text, 40, tiny.n_vocab);
    struct butler_session *never = open_session(engine, BUTLER_KV_F16, 64, "entropystop:entropy=0,after=5");
    struct butler_session *always = open_session(engine, BUTLER_KV_F16, 64, "entropystop:entropy=100,after=5");
    run(never, text, 10, 12);
    run(always, text, 10, 14);
    assert_false(butler_should_stop(never));
    assert_false(butler_should_stop(always)); /* 4 tokens decoded */
    run(always, text + 14, 0, 1);
    assert_true(butler_should_stop(always));
    butler_session_free(never);
    butler_session_free(always);
    free_engine(engine);
}

static void test_entropy(void **state)
{
    float logits[4] = {3, 3, 3, 3};
    (void)state;
    assert_float_equal(butler_entropy(logits, 4), log(4), 1e-6);
    logits[1] = 60;
    assert_float_equal(butler_entropy(logits, 4), 0, 1e-6);
    logits[0] = 60;
    assert_float_equal(butler_entropy(logits, 4), log(2), 1e-6);
}

/* A filled cache is as long as it says, evicting policies keep their budget in it, and decoding goes on from there. */
static void test_fill(void **state)
{
    struct tiny tiny = tiny_default;
    struct butler_error err;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    (void)state;
    tiny.n_ctx = 4096;
    struct butler_engine *engine = load(&tiny, 2);
    struct butler_session *quest = open_session(engine, BUTLER_KV_F16, 2048, "quest:budget=64,dense=0");
    struct butler_session *h2o = open_session(engine, BUTLER_KV_F16, 2048, "h2o:budget=128");
    assert_int_equal(butler_fill(quest, 2000, 1, &err), 0);
    assert_int_equal(butler_fill(h2o, 2000, 1, &err), 0);
    run(quest, (int32_t[]){1, 2, 3}, 0, 3);
    run(h2o, (int32_t[]){1, 2, 3}, 0, 3);
    assert_int_equal(butler_n_past(quest), 2003);
    butler_session_stats(quest, &stats);
    assert_int_equal(stats.kv_memory, butler_kv_bytes(engine->model, BUTLER_KV_F16, 2003));
    assert_true(stats.kv_bytes < stats.full_kv_bytes / 20);
    butler_session_stats(h2o, &stats);
    assert_int_equal(stats.kv_memory, butler_kv_bytes(engine->model, BUTLER_KV_F16, 128));
    butler_session_free(quest);
    butler_session_free(h2o);
    free_engine(engine);
}

/* A feed-forward part wider than what attention leaves free is computed in parts for a block and at once for a token. */
static void test_wide_feed_forward(void **state)
{
    enum { N = 21 };
    struct tiny tiny = tiny_default;
    int32_t ids[N];
    (void)state;
    tiny.n_ff = 600;
    struct butler_engine *engine = load(&tiny, 2);
    struct butler_session *block = open_session(engine, BUTLER_KV_F32, N, "full"),
                          *single = open_session(engine, BUTLER_KV_F32, N, "full");
    const struct butler_scratch *scratch = &engine->scratch;
    assert_true(scratch->gate_floats < (size_t)scratch->max_rows * 600 && scratch->gate_floats > 600);
    text_of(ids, N, tiny.n_vocab);
    run(block, ids, N, N);
    run(single, ids, 0, N);
    assert_true(distance(butler_logits(block), butler_logits(single), tiny.n_vocab) < 1e-5); /* floats in another order */
    butler_session_free(block);
    butler_session_free(single);
    free_engine(engine);
}

/* ------------------------------------------------------------------------------------------- hostile files */

static struct tiny_bytes saved_session(const struct butler_session *session)
{
    char path[] = "/tmp/butler-test-session-XXXXXX";
    struct butler_error err;
    struct tiny_bytes b;
    const int fd = mkstemp(path);
    close(fd);
    assert_int_equal(butler_session_save(session, path, &err), 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    b.size = (size_t)ftell(file);
    rewind(file);
    b.data = malloc(b.size);
    assert_int_equal(fread(b.data, 1, b.size, file), b.size);
    fclose(file);
    unlink(path);
    return b;
}

/* A file without a name takes the same bytes as one with, whatever it held before; what is no file is refused. */
static void test_open_files(void **state)
{
    struct tiny tiny = tiny_default;
    char path[] = "/tmp/butler-test-session-XXXXXX";
    struct butler_error err = {0};
    int32_t text[50];
    int ends[2];
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    text_of(text, 50, tiny.n_vocab);
    struct butler_session *session = open_session(engine, BUTLER_KV_F16, 64, "quest:budget=32");
    run(session, text, 40, 50);
    struct tiny_bytes b = saved_session(session);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    unsigned char *noise = malloc(2 * b.size);
    memset(noise, 7, 2 * b.size);
    assert_int_equal(write(fd, noise, 2 * b.size), 2 * b.size);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(butler_session_save_fd(session, fd, &err), 0);
        assert_int_equal(lseek(fd, 0, SEEK_END), b.size);
        assert_int_equal(pread(fd, noise, b.size, 0), b.size);
        assert_memory_equal(noise, b.data, b.size);
    }
    struct butler_session *again = butler_session_restore_fd(engine, fd, 0, &err);
    assert_non_null(again);
    assert_int_equal(butler_step(session, 1, &err), 0);
    assert_int_equal(butler_step(again, 1, &err), 0);
    assert_memory_equal(butler_logits(session), butler_logits(again), (size_t)tiny.n_vocab * sizeof(float));
    butler_session_free(again);
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_null(butler_session_restore_fd(engine, fd, 0, &err));
    assert_int_equal(err.code, BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "file descriptor"));
    close(fd);
    assert_int_equal(butler_session_save_fd(session, fd, &err), BUTLER_ERROR_IO);
    assert_null(butler_session_restore_fd(engine, fd, 0, &err));
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(butler_session_save_fd(session, ends[1], &err), BUTLER_ERROR_IO);
    assert_non_null(strstr(err.message, "a pipe"));
    close(ends[0]);
    close(ends[1]);
    free(noise);
    free(b.data);
    butler_session_free(session);
    free_engine(engine);
}

/* Restores from bytes; with sign, under a digest that fits them. A failure must name the file. What is restored can go on, or says
 * why not. */
static struct butler_session *restore(struct butler_engine *engine, const unsigned char *data, size_t size, bool sign)
{
    char path[] = "/tmp/butler-test-session-XXXXXX";
    struct butler_error err = {0};
    const int fd = mkstemp(path);
    FILE *file = fdopen(fd, "wb");
    const size_t body = size >= 8 && sign ? size - 8 : size;
    const uint64_t digest = XXH3_64bits(data, body);
    fwrite(data, 1, body, file);
    if (body < size)
        fwrite(&digest, 1, sizeof digest, file);
    fclose(file);
    struct butler_session *session = butler_session_restore(engine, path, 0, &err);
    unlink(path);
    if (!session) {
        assert_true(err.code < 0);
        if (!strstr(err.message, path) && !strstr(err.message, "context") && err.code != BUTLER_ERROR_ARGUMENT)
            fail_msg("an error that does not say where: %s", err.message);
    } else if (butler_n_past(session) < butler_n_ctx(session))
        assert_true(butler_step(session, 1, &err) == 0 || err.code < 0);
    return session;
}

static void test_hostile_files(void **state)
{
    static const char *const policies[] = {"full", "h2o+vatp:budget=48", "quest:budget=32", "fier:budget=16",
                                           "quest:budget=32,prompt=16"};
    struct tiny tiny = tiny_default;
    int32_t text[60];
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    text_of(text, 60, tiny.n_vocab);
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        enum { N_DECODED = 36 /* its place in the header */ };
        struct butler_session *session = open_session(engine, BUTLER_KV_F16, 64, policies[p]), *again;
        run(session, text, 40, 60);
        struct tiny_bytes b = saved_session(session);
        again = restore(engine, b.data, b.size, false);
        assert_non_null(again);
        butler_session_free(again);
        for (size_t size = 0; size < b.size; size += 64) {
            assert_null(restore(engine, b.data, size, false));
            assert_null(restore(engine, b.data, size, true));
        }
        for (size_t at = 0; at < b.size; at += 61) { /* one byte changed, and the digest not */
            b.data[at] ^= 0x10;
            assert_null(restore(engine, b.data, b.size, false));
            b.data[at] ^= 0x10;
        }
        for (size_t at = 0; at + 4 <= 200; at += 4) /* sizes that lie, under a digest that fits */
            for (int v = 0; v < 8; v++) {
                const uint32_t lies[] = {0, 1, 0x7fffffff, 0x80000000u, 0xffffffffu, 2, 32, 63};
                uint32_t before;
                memcpy(&before, b.data + at, 4);
                memcpy(b.data + at, &lies[v], 4);
                again = restore(engine, b.data, b.size, true);
                if (at == N_DECODED && v > 1 && v < 5) /* more than the text has, or fewer than none */
                    assert_null(again);
                butler_session_free(again);
                memcpy(b.data + at, &before, 4);
            }
        free(b.data);
        butler_session_free(session);
    }
    free_engine(engine);
}

static void test_other_model(void **state)
{
    struct tiny tiny = tiny_default;
    (void)state;
    struct butler_engine *engine = load(&tiny, 1);
    tiny.seed++;
    struct butler_engine *other = load(&tiny, 1);
    struct butler_session *session = open_session(engine, BUTLER_KV_F16, 64, "full");
    run(session, (int32_t[]){1, 2, 3}, 3, 3);
    struct tiny_bytes b = saved_session(session);
    assert_null(restore(other, b.data, b.size, false));
    free(b.data);
    butler_session_free(session);
    free_engine(engine);
    free_engine(other);
}

/* Activations of 8 bits give other numbers, near those of 16; neither goes on from a file of the other. */
static void test_precision(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    tiny.matrix_type = BUTLER_Q8_0;
    struct butler_engine *engines[2] = {load_precision(&tiny, 1, 16), load_precision(&tiny, 1, 8)};
    struct butler_session *sessions[2];
    char paths[2][40];
    struct butler_error err;
    int32_t ids[40];
    const int n_vocab = engines[0]->model->hp.n_vocab;
    text_of(ids, 40, n_vocab);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/butler-test-precision-%d-%d", getpid(), i);
        sessions[i] = open_session(engines[i], BUTLER_KV_F16, 64, "full");
        run(sessions[i], ids, 30, 40);
        assert_int_equal(butler_session_save(sessions[i], paths[i], &err), 0);
    }
    const double far = distance(butler_logits(sessions[1]), butler_logits(sessions[0]), n_vocab);
    assert_true(engines[0]->backend->kernels->q16 ? far > 0 && far < 0.1 : far == 0);
    for (int i = 0; i < 2; i++) {
        assert_null(butler_session_restore(engines[1 - i], paths[i], 0, &err));
        assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
        assert_non_null(
            strstr(err.message, i == 0 ? "activations of 16 bits, this engine has 8" : "of 8 bits, this engine has 16"));
        struct butler_session *again = butler_session_restore(engines[i], paths[i], 0, &err);
        assert_non_null(again);
        butler_session_free(again);
        unlink(paths[i]);
        butler_session_free(sessions[i]);
    }
    struct butler_engine *without = load_precision(&tiny, 1, 0);
    assert_int_equal(without->backend->activation_bits, 8);
    free_engine(without);
    assert_null(butler_engine_new(engines[0]->model, &(struct butler_engine_params){.activation_bits = 9}, &err));
    assert_non_null(strstr(err.message, "activations of 9 bits"));
    free_engine(engines[0]);
    free_engine(engines[1]);
}

static void test_sampler(void **state)
{
    struct butler_error err;
    const float logits[5] = {1, 3, 2.9f, -INFINITY, 0}, bad[3] = {0, NAN, 1};
    int seen[5] = {0};
    (void)state;
    const struct butler_sampler_params zeroed = {.seed = 0}, *const defaults[] = {NULL, &zeroed};
    for (int i = 0; i < BUTLER_COUNT(defaults); i++) {
        struct butler_sampler *greedy = butler_sampler_new(defaults[i], &err);
        assert_non_null(greedy);
        assert_int_equal(butler_sample(greedy, logits, 5, &err), 1);
        assert_int_equal(butler_sample(greedy, bad, 3, &err), BUTLER_ERROR_NUMERIC);
        butler_sampler_free(greedy);
    }
    /* Frequencies at temperature 1 are the softmax: chi-square with 3 degrees of freedom, of which 1 in 10,000 is above 21.1. */
    enum { DRAWS = 100000 };
    struct butler_sampler *plain = butler_sampler_new(&(struct butler_sampler_params){.temperature = 1, .seed = 4}, &err);
    for (int i = 0; i < DRAWS; i++)
        seen[butler_sample(plain, logits, 5, &err)]++;
    double sum = 0, chi_square = 0;
    for (int i = 0; i < 5; i++)
        sum += exp((double)logits[i]);
    for (int i = 0; i < 5; i++) {
        const double expected = DRAWS * exp((double)logits[i]) / sum;
        chi_square += expected > 0 ? pow(seen[i] - expected, 2) / expected : seen[i];
    }
    assert_true(chi_square < 21.1);
    butler_sampler_free(plain);
    /* top-k 2, top-p 0.5 and min-p 0.95 each keep the number of tokens that they should */
    const struct butler_sampler_params params[] = {{.temperature = 1, .top_k = 2, .seed = 5},
                                                   {.temperature = 1, .top_p = 0.5f, .seed = 5},
                                                   {.temperature = 1, .min_p = 0.95f, .seed = 5}};
    const int n_kept[] = {2, 2, 1};
    for (int p = 0; p < 3; p++) {
        struct butler_sampler *sampler = butler_sampler_new(&params[p], &err);
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < 500; i++)
            seen[butler_sample(sampler, logits, 5, &err)]++;
        assert_int_equal((seen[0] > 0) + (seen[1] > 0) + (seen[2] > 0) + (seen[4] > 0), n_kept[p]);
        assert_true(seen[1] > 0);
        butler_sampler_free(sampler);
    }
    /* The best few are found without sorting all: what is drawn is the same, equal logits included. */
    enum { VOCAB = 1000, BEST = 40 };
    float many[VOCAB], best[VOCAB];
    uint64_t random = 3;
    for (int i = 0; i < VOCAB; i++) {
        many[i] = (float)(butler_random(&random) % 2 ? 0 : butler_random(&random) % 50) * 0.1f;
        best[i] = -INFINITY;
    }
    for (int k = 0; k < BEST; k++) { /* the highest, the first of equal ones */
        int highest = -1;
        for (int i = 0; i < VOCAB; i++)
            highest = best[i] == -INFINITY && (highest < 0 || many[i] > many[highest]) ? i : highest;
        best[highest] = many[highest];
    }
    struct butler_sampler *few = butler_sampler_new(&(struct butler_sampler_params){.temperature = 1, .top_k = BEST}, &err),
                          *all = butler_sampler_new(&(struct butler_sampler_params){.temperature = 1}, &err);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(butler_sample(few, many, VOCAB, &err), butler_sample(all, best, VOCAB, &err));
    butler_sampler_free(few);
    butler_sampler_free(all);
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.top_p = -0.5f}, &err));
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.top_p = 1, .min_p = 2}, &err));
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.top_p = 1, .top_k = -1}, &err));
}

/* Biases and penalties, each seen where it changes which token is the greatest. */
static void test_sampler_penalties(void **state)
{
    struct butler_error err;
    const float logits[5] = {1, 3, 2.9f, 2.5f, 0};
    const struct butler_logit_bias ban = {1, -INFINITY}, wish = {4, 3.5f};
    const int32_t end = 1, prompt[2] = {1, 1};
    const struct {
        struct butler_sampler_params params;
        int ids[3]; /* that are drawn after the prompt */
    } cases[] = {
        {{.logit_bias = &ban, .n_logit_bias = 1}, {2, 2, 2}},
        {{.logit_bias = &wish, .n_logit_bias = 1}, {4, 4, 4}},
        {{.end_ids = &end, .n_end_ids = 1, .min_tokens = 2}, {2, 2, 1}},
        {{.repeat_penalty = 2}, {2, 3, 1}},                           /* 3 and 2.9 and 2.5 are halved, once */
        {{.presence_penalty = 0.2f}, {2, 1, 1}},                      /* 2.8, then 2.7 */
        {{.frequency_penalty = 0.2f}, {2, 2, 1}},                     /* 2.6; 2.7, 2.5; 2.6 */
        {{.presence_penalty = 0.2f, .penalty_last_n = 1}, {2, 1, 2}}, /* only the newest counts */
    };
    (void)state;
    for (int c = 0; c < BUTLER_COUNT(cases); c++) {
        struct butler_sampler *sampler = butler_sampler_new(&cases[c].params, &err);
        assert_non_null(sampler);
        assert_int_equal(butler_sampler_accept(sampler, prompt, 2, &err), 0);
        for (int i = 0; i < 3; i++)
            assert_int_equal(butler_sample(sampler, logits, 5, &err), cases[c].ids[i]);
        butler_sampler_free(sampler);
    }
    /* a second prompt begins a second answer, which has a minimum of its own */
    struct butler_sampler *twice = butler_sampler_new(&cases[2].params, &err);
    for (int i = 0; i < 3 * 2; i++) {
        if (i % 3 == 0)
            assert_int_equal(butler_sampler_accept(twice, prompt, 2, &err), 0);
        assert_int_equal(butler_sample(twice, logits, 5, &err), cases[2].ids[i % 3]);
    }
    butler_sampler_free(twice);
    /* of a distribution with one probable and many improbable tokens the typical ones do not include the rarest */
    float flat[16];
    for (int i = 0; i < 16; i++)
        flat[i] = i < 8 ? 3 : -3;
    struct butler_sampler *typical =
        butler_sampler_new(&(struct butler_sampler_params){.temperature = 1, .typical_p = 0.9f, .seed = 1}, &err);
    for (int i = 0; i < 2000; i++)
        assert_true(butler_sample(typical, flat, 16, &err) < 8);
    butler_sampler_free(typical);
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.typical_p = 2}, &err));
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.repeat_penalty = -1}, &err));
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.presence_penalty = NAN}, &err));
    assert_null(butler_sampler_new(&(struct butler_sampler_params){.penalty_last_n = -2}, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_in_cache), cmocka_unit_test(test_refusals),      cmocka_unit_test(test_default_parameters),
        cmocka_unit_test(test_nan_keys),      cmocka_unit_test(test_nan),           cmocka_unit_test(test_entropystop),
        cmocka_unit_test(test_entropy),       cmocka_unit_test(test_fill),          cmocka_unit_test(test_wide_feed_forward),
        cmocka_unit_test(test_open_files),    cmocka_unit_test(test_hostile_files), cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_precision),     cmocka_unit_test(test_sampler),       cmocka_unit_test(test_sampler_penalties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
