/* Step plug-ins: when they are called and with what, what they may change, and that a session with one computes what a session does
 * that was changed by hand. */
#include <math.h>

#include "fixtures.h"
#include "engine/session.h"
#include "tiny_model.h"

enum { N_CTX = 200, N_PROMPT = 90, N_VOCAB = 40, N_STEPS = 30 };

/* What a call was given, in the order of calls: 'b' or 'a', the place of the plug-in, the text. */
static struct call {
    char kind;
    int which, n_ids, n_decoded;
    double entropy;
} calls[400];
static int n_calls;

struct memory {
    int n_after;
    char policy[96];
};

static void note(char kind, int which, const struct butler_step_view *view)
{
    assert_int_equal(view->n_ids, butler_n_past(view->session));
    assert_int_equal(view->n_vocab, N_VOCAB);
    assert_true(n_calls < (int)(sizeof calls / sizeof *calls));
    calls[n_calls++] = (struct call){kind, which, view->n_ids, view->n_decoded, view->entropy};
}

static void first_before(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action)
{
    (void)values, (void)state;
    note('b', 0, view);
    assert_null(view->logits);
    assert_null(action->logits);
}

/* Biases one token, stops after some steps, and changes the budget at one. */
static void first_after(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action)
{
    struct memory *memory = state;
    note('a', 0, view);
    assert_float_equal(view->entropy, butler_entropy(view->logits, N_VOCAB), 0);
    memory->n_after++;
    action->logits[7] += (float)values[0];
    action->stop = memory->n_after > (int)values[1];
    if (memory->n_after == (int)values[2]) {
        snprintf(memory->policy, sizeof memory->policy, "fier:budget=60,dense=0");
        action->policy = memory->policy;
    }
}

/* Comes second: sees the model's logits, not those that the first left. */
static void second_after(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action)
{
    (void)values, (void)state;
    note('a', 1, view);
    assert_float_equal((double)view->logits[7] + 3, (double)action->logits[7], 1e-4);
    for (int i = 0; i < N_VOCAB; i++)
        if (i != 7)
            assert_true(view->logits[i] >= action->logits[i] && view->logits[i] <= action->logits[i]);
}

static void wrong_after(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action)
{
    (void)state;
    if (view->n_decoded == (int)values[0])
        action->policy = "quest:budget=32";
}

static const struct butler_param first_params[] = {
    {"bias", 3, -100, 100, NULL}, {"steps", 1e6, 0, 1e6, NULL}, {"change", 0, 0, 1e6, NULL}, {0}};
static const struct butler_param wrong_params[] = {{"at", 3, 0, 1e6, NULL}, {0}};
static const struct butler_step_plugin first = {.abi = BUTLER_STEP_ABI,
                                                .name = "first",
                                                .params = first_params,
                                                .state_bytes = sizeof(struct memory),
                                                .before = first_before,
                                                .after = first_after},
                                       second = {.abi = BUTLER_STEP_ABI, .name = "second", .after = second_after},
                                       wrong = {
                                           .abi = BUTLER_STEP_ABI, .name = "wrong", .params = wrong_params, .after = wrong_after};

static struct butler_engine *open_engine(int n_threads)
{
    struct tiny tiny = tiny_default;
    const char *path = tiny_path("model.gguf");
    tiny.n_ctx = N_CTX;
    tiny_write(path, &tiny);
    struct butler_engine *engine = load_engine(path, n_threads, NULL);
    assert_int_equal(butler_step_register(engine, &first, NULL), 0);
    assert_int_equal(butler_step_register(engine, &second, NULL), 0);
    assert_int_equal(butler_step_register(engine, &wrong, NULL), 0);
    return engine;
}

static struct butler_session *begin(struct butler_engine *engine, const char *policy, const char *step)
{
    int32_t text[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = i * 37 % N_VOCAB;
    struct butler_session *session =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = policy}, NULL);
    assert_non_null(session);
    if (step)
        assert_int_equal(butler_session_add_step(session, step, NULL), 0);
    assert_int_equal(butler_prefill(session, text, N_PROMPT, NULL, NULL, NULL), 0);
    return session;
}

static void test_calls(void **state)
{
    struct butler_engine *engine = open_engine(1);
    (void)state;
    n_calls = 0;
    struct butler_session *session =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = "fier:budget=20"}, NULL);
    assert_int_equal(butler_session_add_step(session, "first", NULL), 0);
    assert_int_equal(butler_session_add_step(session, "second:", NULL), 0);
    assert_int_equal(butler_prefill(session, (const int32_t[]){1, 2, 3}, 3, NULL, NULL, NULL), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(butler_step(session, i, NULL), 0);
    static const char order[] = "aabaabaabaa";
    assert_int_equal(n_calls, (int)strlen(order));
    for (int i = 0; i < n_calls; i++) {
        assert_int_equal(calls[i].kind, order[i]);
        assert_int_equal(calls[i].n_ids, i < 2 ? 3 : calls[i].kind == 'b' ? 3 + (i - 2) / 3 : 4 + (i - 2) / 3);
        assert_int_equal(calls[i].n_decoded, calls[i].n_ids - 3);
        assert_int_equal(isnan(calls[i].entropy), calls[i].kind == 'b');
    }
    butler_session_free(session);
    free_engine(engine);
}

/* The logits are those of a session without, but for the bias; the rest of the text is not touched. */
static void test_bias_and_stop(void **state)
{
    struct butler_engine *engine = open_engine(2);
    (void)state;
    n_calls = 0;
    struct butler_session *plain = begin(engine, "fier:budget=20", NULL), *with = begin(engine, "fier:budget=20", "first:steps=4");
    for (int i = 0; i < 8; i++) {
        const float *a = butler_logits(plain), *b = butler_logits(with);
        for (int t = 0; t < N_VOCAB; t++)
            assert_float_equal((double)b[t], (double)(t == 7 ? a[t] + 3 : a[t]), 0);
        assert_int_equal(butler_should_stop(with), i >= 4); /* it was called once for the prompt */
        assert_false(butler_should_stop(plain));
        struct butler_session *both[] = {plain, with};
        assert_int_equal(butler_step_batch(both, (const int32_t[]){i, i}, 2, NULL), 0);
    }
    butler_session_free(plain);
    butler_session_free(with);
    free_engine(engine);
}

/* A budget that a plug-in changes is one that the caller changes; forks take the memory along. */
static void test_policy_and_forks(void **state)
{
    struct butler_engine *engine = open_engine(1);
    (void)state;
    n_calls = 0;
    struct butler_session *by_hand = begin(engine, "fier:budget=20,dense=0", NULL),
                          *with = begin(engine, "fier:budget=20,dense=0", "first:bias=0,change=6"), *fork = NULL;
    for (int i = 0; i < N_STEPS; i++) {
        if (i == 5)
            assert_int_equal(butler_session_set_policy(by_hand, "fier:budget=60,dense=0", NULL), 0);
        if (i == 3)
            fork = butler_session_fork(with, NULL);
        assert_int_equal(butler_step(by_hand, i * 3 % N_VOCAB, NULL), 0);
        assert_int_equal(butler_step(with, i * 3 % N_VOCAB, NULL), 0);
        if (fork)
            assert_int_equal(butler_step(fork, i * 3 % N_VOCAB, NULL), 0);
        assert_memory_equal(butler_logits(by_hand), butler_logits(with), N_VOCAB * sizeof(float));
        if (fork)
            assert_memory_equal(butler_logits(fork), butler_logits(with), N_VOCAB * sizeof(float));
        int32_t ids[N_CTX];
        assert_int_equal(butler_last_selection(with, 1, 0, ids, N_CTX), i < 5 ? 20 : 60);
    }
    assert_non_null(strstr(butler_policy_of(with), "budget=60"));
    butler_session_free(by_hand);
    butler_session_free(with);
    butler_session_free(fork);
    free_engine(engine);
}

/* A policy that before() asks for holds from that step on, and batches and threads change nothing. */
static void before_asks(const double *values, void *state, const struct butler_step_view *view, struct butler_step_action *action)
{
    (void)values, (void)state;
    action->policy = view->n_decoded % 2 ? "fier:budget=60,dense=0" : "fier:budget=20,dense=0";
}

static void test_policy_of_before(void **state)
{
    static const struct butler_step_plugin plugin = {.abi = BUTLER_STEP_ABI, .name = "before", .before = before_asks};
    (void)state;
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        struct butler_engine *engine = open_engine(n_threads);
        assert_int_equal(butler_step_register(engine, &plugin, NULL), 0);
        struct butler_session *by_hand = begin(engine, "fier:budget=40,dense=0", NULL),
                              *with = begin(engine, "fier:budget=40,dense=0", "before"),
                              *other = begin(engine, "fier:budget=30,dense=0", NULL), *both[] = {other, with};
        for (int i = 0; i < N_STEPS; i++) {
            const int32_t id = i * 3 % N_VOCAB;
            const char *policy = i % 2 ? "fier:budget=60,dense=0" : "fier:budget=20,dense=0";
            assert_int_equal(butler_session_set_policy(by_hand, policy, NULL), 0);
            assert_int_equal(butler_step(by_hand, id, NULL), 0);
            assert_int_equal(butler_step_batch(both, (const int32_t[]){(id + 1) % N_VOCAB, id}, 2, NULL), 0);
            assert_memory_equal(butler_logits(by_hand), butler_logits(with), N_VOCAB * sizeof(float));
        }
        butler_session_free(by_hand);
        butler_session_free(with);
        butler_session_free(other);
        free_engine(engine);
    }
}

/* A session file has the budget that a plug-in chose, and no plug-ins. */
static void test_saved(void **state)
{
    struct butler_engine *engine = open_engine(1);
    (void)state;
    n_calls = 0;
    struct butler_session *session = begin(engine, "fier:budget=20,dense=0", "first:bias=5,change=2,steps=0");
    assert_int_equal(butler_step(session, 3, NULL), 0);
    const char *path = tiny_path("saved");
    assert_int_equal(butler_session_save(session, path, NULL), 0);
    struct butler_session *restored = butler_session_restore(engine, path, 0, NULL);
    assert_non_null(restored);
    assert_string_equal(butler_policy_of(restored), butler_policy_of(session));
    assert_non_null(strstr(butler_policy_of(restored), "budget=60"));
    const int n_before = n_calls;
    assert_int_equal(butler_step(restored, 4, NULL), 0);
    assert_int_equal(n_calls, n_before);
    assert_false(butler_should_stop(restored));
    assert_int_equal(butler_step(session, 4, NULL), 0);
    for (int t = 0; t < N_VOCAB; t++)
        assert_float_equal((double)butler_logits(session)[t],
                           (double)(t == 7 ? butler_logits(restored)[t] + 5 : butler_logits(restored)[t]), 0);
    butler_session_free(session);
    butler_session_free(restored);
    free_engine(engine);
}

/* All budget: the logits of full attention. */
static void test_set_policy(void **state)
{
    static const struct {
        const char *from, *to;
        bool works;
    } cases[] = {
        {"fier:budget=20", "fier:budget=0.5,sinks=2,recent=8", true},
        {"quest:budget=32,page=4", "quest:budget=64,page=4", true},
        {"quest:budget=32,page=4", "quest:budget=64,page=8", false},
        {"fier:budget=20", "quest:budget=20", false},
        {"fier:budget=20", "fier:budget=20,dense=0", false},
        {"fier:budget=20", "fier:budget=20,every=2", false},
        {"fier:budget=20", "fier:mass=0.9", false},
        {"fier:mass=0.9", "fier:budget=20", false},
        {"fier:budget=20", "full", false},
        {"full", "fier:budget=20", false},
        {"h2o:budget=20", "h2o:budget=30", false},
        {"fier:budget=20", "fier:budget=x", false},
    };
    struct butler_engine *engine = open_engine(1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct butler_session *session = begin(engine, cases[i].from, NULL);
        struct butler_error err = {0};
        char before[768];
        snprintf(before, sizeof before, "%s", butler_policy_of(session));
        const int code = butler_session_set_policy(session, cases[i].to, &err);
        if ((code == 0) != cases[i].works)
            fail_msg("%s to %s: %s", cases[i].from, cases[i].to, err.message);
        assert_int_equal(strcmp(before, butler_policy_of(session)) == 0, !cases[i].works);
        assert_int_equal(butler_step(session, 3, NULL), 0);
        butler_session_free(session);
    }
    struct butler_session *full = begin(engine, "full", NULL), *all = begin(engine, "quest:budget=16,page=4", NULL);
    assert_int_equal(butler_step(all, 5, NULL), 0);
    assert_int_equal(butler_session_truncate(all, N_PROMPT, NULL), 0);
    assert_int_equal(butler_session_set_policy(all, "quest:budget=1.0,page=4", NULL), 0);
    assert_int_equal(butler_step(full, 5, NULL), 0);
    assert_int_equal(butler_step(all, 5, NULL), 0);
    assert_memory_equal(butler_logits(full), butler_logits(all), N_VOCAB * sizeof(float));
    butler_session_free(full);
    butler_session_free(all);
    free_engine(engine);
}

static void test_what_cannot_be(void **state)
{
    struct butler_engine *engine = open_engine(1);
    struct butler_error err;
    static const struct {
        const char *text, *says;
    } texts[] = {{"nosuch", "no step plug-in \"nosuch\""},
                 {"first:nosuch=1", "\"nosuch=1\""},
                 {"first:bias", "\"bias\""},
                 {"first:bias=", "number"},
                 {"first:bias=x", "number"},
                 {"first:bias=101", "from -100 to 100"},
                 {"first:bias=nan", "number"},
                 {"first:bias=1,,", "\"\""},
                 {"second:a=1", "\"a=1\""},
                 {"", "no step plug-in \"\""}};
    (void)state;
    struct butler_session *session = begin(engine, "fier:budget=20", NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(butler_session_add_step(session, texts[i].text, &err), BUTLER_ERROR_ARGUMENT);
        if (!strstr(err.message, texts[i].says))
            fail_msg("%s: %s", texts[i].text, err.message);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(butler_session_add_step(session, "wrong:at=99", NULL), 0);
    assert_int_equal(butler_session_add_step(session, "wrong", &err), BUTLER_ERROR_ARGUMENT);
    assert_null(butler_draft_new(session, NULL, &err));
    assert_non_null(strstr(err.message, "step plug-ins"));
    butler_session_free(session);
    /* Nor one that gets some while it drafts. */
    session = begin(engine, "fier:budget=20", NULL);
    struct butler_draft *draft = butler_draft_new(session, NULL, &err);
    struct butler_sampler *sampler = butler_sampler_new(NULL, &err);
    int32_t drawn[8];
    assert_true(butler_draft_step(draft, sampler, 1, drawn, 8, &err) > 0);
    const int n_held = butler_n_past(session);
    assert_int_equal(butler_session_add_step(session, "second", NULL), 0);
    assert_int_equal(butler_draft_step(draft, sampler, 1, drawn, 8, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "step plug-ins"));
    assert_int_equal(butler_n_past(session), n_held);
    butler_draft_free(draft);
    butler_sampler_free(sampler);
    butler_session_free(session);
    /* A policy that cannot follow ends this session, and no other. */
    session = begin(engine, "fier:budget=20", "wrong");
    struct butler_session *other = begin(engine, "fier:budget=20", NULL), *both[] = {session, other};
    struct butler_error errs[2];
    for (int i = 0; i < 3; i++)
        assert_int_equal(butler_step_batch(both, (const int32_t[]){1, 1}, 2, errs), i < 2 ? 0 : BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(errs[0].message, "step plug-in wrong: "));
    assert_int_equal(errs[1].code, 0);
    assert_int_equal(butler_step(other, 1, NULL), 0);
    butler_session_free(session);
    butler_session_free(other);
    /* Plug-ins that are refused. */
    struct butler_step_plugin bad[] = {first, first, first, first, first};
    static const struct butler_param params[] = {{"Upper", 0, 0, 0, NULL}, {0}};
    bad[0].abi++;
    bad[1].name = "First";
    bad[3].name = "third", bad[3].before = bad[3].after = NULL;
    bad[4].name = "fourth", bad[4].params = params;
    for (int i = 0; i < 5; i++)
        assert_int_equal(butler_step_register(engine, &bad[i], &err), i == 0 ? BUTLER_ERROR_UNSUPPORTED : BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_list(engine, NULL, 0), 3);
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_bias_and_stop),
        cmocka_unit_test(test_policy_and_forks),
        cmocka_unit_test(test_policy_of_before),
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_set_policy),
        cmocka_unit_test(test_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
