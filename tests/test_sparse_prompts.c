/* prompt=: below its budget, and where all pages are chosen, prompts have the bits of dense ones; beyond it they read less and have
 * the same bits however they are cut, whoever shares the pass, and after a fork, a file and the prefix cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "fixtures.h"
#include "share.h"
#include "engine/session.h"

enum { N = 700, N_CTX = 800, BLOCK = BUTLER_PROMPT_BLOCK };

static const char *const sparse[] = {
    "quest:budget=64,prompt=128,dense=0",     "quest:budget=64,bounds=deviation,prompt=0.25,dense=1",
    "tinyserve:budget=64,page=32,prompt=128", "pagestats:budget=64,prompt=128",
    "fier:budget=64,prompt=128,dense=1",      "fier:budget=64,page=16,prompt=100,dense=0",
    "oracle:budget=64,prompt=96,every=4",     "quest:mass=0.9,page=48,dense=0,prompt=128",
    "pagestats:budget=2000,prompt=128",       "fier:budget=64,g=64,prompt=128,dense=0",
};

static const char *isa; /* NULL: the best one */

static struct butler_engine *open_engine(const char *name, int n_threads, uint64_t prefix_bytes)
{
    char path[FIXTURE_PATH];
    struct butler_error err = {0};
    fixture_path(path, name);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    const struct butler_engine_params params = {
        .isa = isa, .n_threads = n_threads, .kv_bytes = 1 << 27, .prefix_bytes = prefix_bytes};
    struct butler_engine *engine = model ? butler_engine_new(model, &params, &err) : NULL;
    if (!engine)
        fail_msg("%s: %s", name, err.message);
    return engine;
}

static void close_engine(struct butler_engine *engine)
{
    struct butler_model *model = butler_engine_model(engine);
    butler_engine_free(engine);
    butler_model_free(model);
}

static struct butler_session *open_session(struct butler_engine *engine, const char *policy)
{
    struct butler_error err = {0};
    const struct butler_session_params params = {.n_ctx = N_CTX, .policy = policy, .kv_type = BUTLER_KV_F16};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static void make_text(const struct butler_engine *engine, int32_t *ids)
{
    uint64_t seed = 7;
    for (int i = 0; i < N_CTX; i++)
        ids[i] = (int32_t)(butler_random(&seed) % (uint64_t)engine->model->hp.n_vocab);
}

/* Tokens [n_past, end) of a prompt of N, then decode steps. */
static void run(struct butler_session *session, const int32_t *ids, int end)
{
    struct butler_error err = {0};
    const struct butler_span span = {
        .session = session, .ids = ids + butler_n_past(session), .n = end - butler_n_past(session), .prompt_end = N};
    if (butler_run(session->engine, &span, 1, &err) < 0)
        fail_msg("%s: %s", session->policy.text, err.message);
}

static uint64_t digest(const struct butler_session *session)
{
    return XXH3_64bits(butler_logits(session), (size_t)session->model->hp.n_vocab * sizeof(float));
}

/* Of the prompt's last logits, and of those some decode steps later. */
static uint64_t finish(struct butler_session *session, const int32_t *ids)
{
    if (butler_n_past(session) < N)
        run(session, ids, N);
    uint64_t both[2] = {digest(session)};
    run(session, ids, N + 5);
    both[1] = digest(session);
    return XXH3_64bits(both, sizeof both);
}

static uint64_t whole(struct butler_engine *engine, const char *policy, const int32_t *ids, struct butler_stats *stats)
{
    struct butler_session *session = open_session(engine, policy);
    const uint64_t bits = finish(session, ids);
    butler_session_stats(session, stats);
    butler_session_free(session);
    return bits;
}

static void test_identity(void **state)
{
    static const char *const models[] = {"models/llama-gqa.gguf", "models/gpt-oss.gguf"};
    /* A budget that the text does not reach; shares that are less than the text and yet all of its pages. */
    static const char *const pairs[][2] = {{"quest:budget=64,dense=0", "quest:budget=64,dense=0,prompt=700"},
                                           {"quest:budget=64,dense=1", "quest:budget=64,dense=1,prompt=0.98"},
                                           {"tinyserve:budget=64", "tinyserve:budget=64,prompt=0.98"}};
    int32_t ids[N_CTX];
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++) {
        struct butler_engine *engine = open_engine(models[m], 2, 0);
        make_text(engine, ids);
        for (int i = 0; i < BUTLER_COUNT(pairs); i++) {
            if (!in_share(m + i))
                continue;
            struct butler_stats dense = {BUTLER_INIT(butler_stats)}, same = {BUTLER_INIT(butler_stats)};
            const uint64_t bits = whole(engine, pairs[i][0], ids, &dense);
            if (whole(engine, pairs[i][1], ids, &same) != bits)
                fail_msg("%s: %s is not %s", models[m], pairs[i][1], pairs[i][0]);
            assert_int_equal(dense.prompt_kv_bytes, 0);
            assert_int_equal(same.prompt_kv_bytes, same.prompt_full_kv_bytes);
            assert_true((same.prompt_kv_bytes > 0) == (i > 0));
        }
        close_engine(engine);
    }
}

/* Some tokens more; behind a long text they are sparse, which what they read shows. */
static void run_piece(struct butler_session *session, const int32_t *ids, int n)
{
    struct butler_stats before = {BUTLER_INIT(butler_stats)}, after = {BUTLER_INIT(butler_stats)};
    const int n_past = butler_n_past(session), end = BUTLER_MIN(n_past + n, N);
    butler_session_stats(session, &before);
    run(session, ids, end);
    butler_session_stats(session, &after);
    const uint64_t read = after.prompt_kv_bytes - before.prompt_kv_bytes,
                   all = after.prompt_full_kv_bytes - before.prompt_full_kv_bytes;
    if (n_past > 400 && end <= N - 2 * BLOCK && !(read > 0 && read < all * 3 / 4))
        fail_msg("%s: tokens %d to %d read %llu of %llu bytes", session->policy.text, n_past, end, (unsigned long long)read,
                 (unsigned long long)all);
}

/* One text in pieces of 1, 2 and 31 to 129 tokens. */
static uint64_t in_pieces(struct butler_engine *engine, const char *policy, const int32_t *ids, uint64_t seed)
{
    struct butler_session *session = open_session(engine, policy);
    while (butler_n_past(session) < N - 2 * BLOCK) {
        const int r = (int)(butler_random(&seed) % 8);
        run_piece(session, ids, r < 2 ? 1 : r < 4 ? 2 : 31 + (int)(butler_random(&seed) % 99));
    }
    const uint64_t bits = finish(session, ids);
    butler_session_free(session);
    return bits;
}

static void test_pieces(void **state)
{
    static const char *const models[] = {"models/llama-gqa.gguf", "models/gpt-oss.gguf"};
    int32_t ids[N_CTX];
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++) {
        struct butler_engine *one = open_engine(models[m], 1, 0), *three = open_engine(models[m], 3, 0);
        make_text(one, ids);
        for (int i = 0; i < BUTLER_COUNT(sparse); i++) {
            if (!in_share(m + i))
                continue;
            struct butler_stats stats = {BUTLER_INIT(butler_stats)};
            const uint64_t bits = whole(one, sparse[i], ids, &stats);
            assert_true(stats.prompt_kv_bytes > 0 && stats.prompt_kv_bytes < stats.prompt_full_kv_bytes);
            if (whole(three, sparse[i], ids, &stats) != bits)
                fail_msg("%s: other bits with three threads", sparse[i]);
            for (uint64_t seed = 1; seed <= (uint64_t)share_of(3); seed++)
                if (in_pieces(three, sparse[i], ids, seed) != bits)
                    fail_msg("%s: other bits in pieces (seed %d)", sparse[i], (int)seed);
        }
        close_engine(three);
        close_engine(one);
    }
}

/* Prompts of several policies in one pass, some of them dense. */
static void test_batch(void **state)
{
    enum { MOST = BUTLER_COUNT(sparse) + 1 };
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 2, 0);
    struct butler_span spans[MOST];
    struct butler_error errs[MOST];
    int32_t ids[N_CTX];
    (void)state;
    make_text(engine, ids);
    for (int i = 0; i < MOST; i++) {
        struct butler_session *session = open_session(engine, i == 0 ? "full" : sparse[i - 1]);
        spans[i] = (struct butler_span){.session = session, .ids = ids, .n = 500 + 7 * i, .prompt_end = N};
    }
    assert_int_equal(butler_run(engine, spans, MOST, errs), 0);
    for (int i = 0; i < MOST; i++) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        const uint64_t bits = finish(spans[i].session, ids);
        if (bits != whole(engine, i == 0 ? "full" : sparse[i - 1], ids, &stats))
            fail_msg("%s: other bits in a batch", spans[i].session->policy.text);
        butler_session_free(spans[i].session);
    }
    close_engine(engine);
}

/* In the middle of a block: a fork, a file, and going back; what was read before is found by the same policy alone. */
static void test_states(void **state)
{
    enum { MIDDLE = 9 * BLOCK + 20 };
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 2, 1 << 24);
    struct butler_error err = {0};
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    char path[] = "/tmp/butler-sparse-XXXXXX";
    int32_t ids[N_CTX], other[N_CTX];
    (void)state;
    make_text(engine, ids);
    memcpy(other, ids, sizeof ids);
    other[MIDDLE - 5] = (ids[MIDDLE - 5] + 1) % 50;
    const uint64_t bits = whole(engine, sparse[0], ids, &stats);
    struct butler_session *session = open_session(engine, sparse[0]);
    run(session, ids, MIDDLE);
    struct butler_session *fork = butler_session_fork(session, &err);
    assert_true(fork && finish(fork, ids) == bits);
    close(mkstemp(path));
    assert_int_equal(butler_session_save(session, path, &err), 0);
    struct butler_session *restored = butler_session_restore(engine, path, 0, &err);
    unlink(path);
    assert_true(restored && finish(restored, ids) == bits);
    assert_int_equal(butler_session_truncate(session, MIDDLE - 3, &err), 0); /* of its last block */
    assert_true(finish(session, ids) == bits);
    assert_int_equal(butler_session_truncate(session, 5 * BLOCK + 1, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "multiples of 64 tokens"));
    assert_int_equal(butler_session_truncate(session, 5 * BLOCK, &err), 0);
    assert_true(finish(session, ids) == bits);
    butler_session_free(restored);
    butler_session_free(fork);
    butler_session_free(session);

    session = open_session(engine, sparse[0]);
    assert_int_equal(butler_session_adopt_prefix(session, other, N, &err), 9 * BLOCK);
    const uint64_t adopted = finish(session, other);
    assert_true(adopted == whole(engine, sparse[0], other, &stats));
    struct butler_session *dense = open_session(engine, "quest:budget=64,dense=0");
    assert_int_equal(butler_session_adopt_prefix(dense, ids, N, &err), 0);
    assert_int_equal(butler_session_adopt(dense, session, &err), BUTLER_ERROR_ARGUMENT);
    butler_session_free(dense);
    butler_session_free(session);
    close_engine(engine);
}

/* A policy whose selection would be ignored does not load. */
static void test_refusals(void **state)
{
    static const char *const refused[] = {"full:prompt=128",     "h2o:prompt=128",      "quest:share=query,prompt=128",
                                          "verified:prompt=128", "prevlayer:prompt=64", "quest:prompt=1.5"};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 1, 0);
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(refused); i++) {
        struct butler_error err = {0};
        assert_null(butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = refused[i]}, &err));
        assert_non_null(strstr(err.message, "prompt="));
    }
    close_engine(engine);
}

/* In plain C as with this processor's instructions. */
static void test_plain_c(void **state)
{
    isa = "ref";
    test_identity(state);
    test_states(state);
    isa = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identity), cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_batch),    cmocka_unit_test(test_states),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_plain_c)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
