/* Public structs of programs that were built with other headers of the same soname: a program that knows fewer fields has nothing
 * written behind them, one that knows more gets an error only where it uses them. */
#include "fixtures.h"
#include "engine/abi.h"

#define PAST 0xa5 /* what lies behind a program's struct */

static struct butler_engine *engine;
static struct butler_session *session;

static void fill_engine(void *to)
{
    butler_engine_get_info(engine, to);
}

static void fill_stats(void *to)
{
    butler_session_stats(session, to);
}

static void fill_policy(void *to)
{
    assert_true(butler_policy_describe(engine, 1, to));
}

static void fill_cost(void *to)
{
    assert_int_equal(butler_policy_estimate(engine, "h2o:budget=16", BUTLER_KV_F16, 100, to, NULL), 0);
}

static void fill_file(void *to)
{
    char path[FIXTURE_PATH];
    fixture_path(path, "models/llama-gqa.gguf");
    assert_int_equal(butler_file_describe(path, to, NULL), 0);
}

static void fill_audit(void *to)
{
    struct butler_error err;
    assert_int_equal(butler_session_audit(session, to, &err), 1);
    assert_int_equal(butler_step(session, 3, &err), 0);
    assert_int_equal(butler_session_truncate(session, butler_n_past(session) - 1, &err), 0);
}

static void test_filled(void **state)
{
    static const struct {
        const char *name;
        size_t size;
        void (*fill)(void *to);
    } structs[] = {{"engine_info", sizeof(struct butler_engine_info), fill_engine},
                   {"stats", sizeof(struct butler_stats), fill_stats},
                   {"policy_info", sizeof(struct butler_policy_info), fill_policy},
                   {"policy_cost", sizeof(struct butler_policy_cost), fill_cost},
                   {"file_info", sizeof(struct butler_file_info), fill_file},
                   {"audit", sizeof(struct butler_audit), fill_audit}};
    unsigned char got[2048];
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(structs); i++) {
        const size_t full = structs[i].size, sizes[] = {0, full, sizeof(size_t), sizeof(size_t) + 8, full - 8, full + 64};
        for (int s = 0; s < BUTLER_COUNT(sizes); s++) {
            const size_t end = sizes[s] == 0 || sizes[s] > full ? full : sizes[s];
            size_t kept;
            memset(got, PAST, sizeof got);
            memcpy(got, &sizes[s], sizeof sizes[s]);
            structs[i].fill(got);
            memcpy(&kept, got, sizeof kept);
            assert_int_equal(kept, sizes[s]);
            for (size_t at = end; at < sizeof got; at++)
                if (got[at] != PAST)
                    fail_msg("%s of %zu bytes: byte %zu was written", structs[i].name, sizes[s], at);
            bool changed = end == sizeof(size_t);
            for (size_t at = sizeof(size_t); at < end; at++)
                changed |= got[at] != PAST;
            assert_true(changed);
        }
    }
}

static void test_parameters(void **state)
{
    struct butler_error err;
    (void)state;
    /* A program that knows n_ctx alone: what lies behind it is no parameter. */
    struct butler_session_params few = {.n_ctx = 40, .kv_type = (enum butler_kv_type)99, .policy = "nonsense"};
    few.struct_size = offsetof(struct butler_session_params, kv_type);
    struct butler_session *made = butler_session_new(engine, &few, &err);
    assert_non_null(made);
    assert_int_equal(butler_n_ctx(made), 40);
    assert_string_equal(butler_policy_of(made), "full");
    butler_session_free(made);
    few.struct_size = sizeof few;
    assert_null(butler_session_new(engine, &few, &err));
    /* One that knows a field more. */
    struct {
        struct butler_sampler_params known;
        uint64_t more;
    } newer = {.known = {.struct_size = sizeof newer}};
    struct butler_sampler *sampler = butler_sampler_new(&newer.known, &err);
    assert_non_null(sampler);
    butler_sampler_free(sampler);
    newer.more = 1;
    assert_null(butler_sampler_new(&newer.known, &err));
    assert_true(err.code == BUTLER_ERROR_UNSUPPORTED && strstr(err.message, "butler_sampler_params"));
    /* The size alone is no parameter. */
    for (size_t size = 1; size < sizeof(size_t); size++) {
        assert_null(butler_session_new(engine, &(struct butler_session_params){.struct_size = size}, &err));
        assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    }
}

/* Spans lie in an array, as far apart as the program's struct is large. */
static void test_spans(void **state)
{
    static const int32_t ids[] = {1, 20, 33, 5};
    struct {
        struct butler_span known;
        uint64_t more[2];
    } newer[2] = {0};
    struct butler_session *sessions[2], *other;
    struct butler_error errs[2];
    const int n_vocab = butler_model_get_info(butler_engine_model(engine))->n_vocab;
    (void)state;
    for (int i = 0; i < 2; i++) {
        sessions[i] = butler_session_fork(session, errs);
        newer[i].known = (struct butler_span){.struct_size = sizeof *newer, .session = sessions[i], .ids = ids, .n = 2 + i};
    }
    assert_int_equal(butler_run(engine, &newer[0].known, 2, errs), 0);
    assert_non_null(other = butler_session_fork(session, errs));
    for (int i = 0; i < 3; i++)
        assert_int_equal(butler_step(other, ids[i], errs), 0);
    assert_memory_equal(butler_logits(sessions[1]), butler_logits(other), (size_t)n_vocab * sizeof(float));
    newer[1].more[1] = 1;
    assert_int_equal(butler_run(engine, &newer[0].known, 2, errs), BUTLER_ERROR_UNSUPPORTED);
    butler_session_free(sessions[0]);
    butler_session_free(sessions[1]);
    butler_session_free(other);
}

struct words {
    char text[4096];
    size_t n;
    int n_calls, most_calls;
};

static bool keep_text(void *user, const char *text, size_t n)
{
    struct words *words = user;
    memcpy(words->text + words->n, text, n);
    words->n += n;
    return ++words->n_calls != words->most_calls;
}

static void test_generate(void **state)
{
    enum { N = 12 };
    struct butler_error err;
    struct words words = {.n = 0}, stopped = {.most_calls = 3};
    struct butler_utf8 stream = {0};
    char text[4096];
    size_t n_text = 0, n_bytes;
    struct butler_model *model = butler_engine_model(engine);
    const int n_vocab = butler_model_get_info(model)->n_vocab, n_past = butler_n_past(session);
    (void)state;
    struct butler_sampler *sampler = butler_sampler_new(NULL, &err);
    struct butler_session *a = butler_session_fork(session, &err), *b = butler_session_fork(session, &err),
                          *c = butler_session_fork(session, &err), *empty = butler_session_new(engine, NULL, &err);
    assert_int_equal(butler_generate(a, sampler, N, keep_text, &words, &err), N);
    for (int i = 0; i < N; i++) {
        const int32_t id = butler_sample(sampler, butler_logits(b), n_vocab, &err);
        assert_int_equal(butler_step(b, id, &err), 0);
        const char *bytes = butler_token_bytes(model, id, &n_bytes);
        n_text += butler_utf8_push(&stream, bytes, n_bytes, text + n_text, sizeof text - n_text);
    }
    n_text += butler_utf8_push(&stream, NULL, 0, text + n_text, sizeof text - n_text);
    assert_int_equal(words.n, n_text);
    assert_memory_equal(words.text, text, n_text);
    assert_memory_equal(butler_logits(a), butler_logits(b), (size_t)n_vocab * sizeof(float));
    const int n_stopped = butler_generate(c, sampler, N, keep_text, &stopped, &err);
    assert_true(n_stopped >= 3 && n_stopped < N && stopped.n_calls == 3 && butler_n_past(c) == n_past + n_stopped);
    assert_memory_equal(stopped.text, words.text, stopped.n);
    assert_int_equal(butler_generate(b, sampler, 1 << 20, NULL, NULL, &err),
                     butler_n_ctx(b) - n_past - N); /* the context is full */
    assert_int_equal(butler_generate(b, sampler, 1, NULL, NULL, &err), 0);
    assert_int_equal(butler_generate(a, sampler, -1, NULL, NULL, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_generate(empty, sampler, 1, NULL, NULL, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "read a prompt first"));
    assert_int_equal(butler_generate(NULL, sampler, 1, NULL, NULL, &err), BUTLER_ERROR_ARGUMENT);
    butler_sampler_free(sampler);
    butler_session_free(a);
    butler_session_free(b);
    butler_session_free(c);
    butler_session_free(empty);
}

static int setup(void **state)
{
    static const int32_t ids[] = {1, 40, 21, 60, 33, 12, 9, 5, 70, 22, 11, 30, 44, 18, 7, 19, 25, 28, 31, 41, 51, 61};
    char path[FIXTURE_PATH];
    struct butler_error err;
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    engine = load_engine(path, 1, NULL);
    session = butler_session_new(engine, &(struct butler_session_params){.n_ctx = 64, .policy = "fier:budget=16,recent=2"}, &err);
    return !session || butler_prefill(session, ids, BUTLER_COUNT(ids), NULL, NULL, &err) < 0;
}

static int teardown(void **state)
{
    (void)state;
    butler_session_free(session);
    free_engine(engine);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generate), cmocka_unit_test(test_filled),
                                       cmocka_unit_test(test_parameters), cmocka_unit_test(test_spans)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
