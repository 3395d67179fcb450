/* Calls for evaluation and training (butler_tools.h): budgets in tokens, the newest token taken out, policies taken apart, hooks.
 */
#include <math.h>

#include "fixtures.h"
#include "butler_tools.h"

enum { N_CTX = 160, N_PROMPT = 90, N_STEPS = 8 };

static struct butler_engine *engine;
static int n_vocab;

static int make(void **state)
{
    char path[FIXTURE_PATH];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    engine = load_engine(path, 2, NULL);
    n_vocab = butler_model_get_info(butler_engine_model(engine))->n_vocab;
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    free_engine(engine);
    return 0;
}

static int32_t id_at(int i)
{
    return (i * 7 + i * i % 5 + 3) % n_vocab;
}

static struct butler_session *begin(const char *policy, int budget, int n)
{
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = N_CTX, .policy = policy};
    struct butler_error err = {0};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    int32_t ids[N_CTX];
    for (int i = 0; i < n; i++)
        ids[i] = id_at(i);
    if (!session || (budget && butler_session_set_budget(session, budget, &err) < 0) ||
        (n > 0 && butler_prefill(session, ids, n, NULL, NULL, &err) < 0))
        fail_msg("%s: %s", policy, err.message);
    return session;
}

/* Both go on for some steps with the same logits. */
static void same_steps(struct butler_session *a, struct butler_session *b, const char *what)
{
    for (int i = 0; i < N_STEPS; i++) {
        assert_int_equal(butler_step(a, id_at(i + 11), NULL), 0);
        assert_int_equal(butler_step(b, id_at(i + 11), NULL), 0);
        if (memcmp(butler_logits(a), butler_logits(b), (size_t)n_vocab * sizeof(float)) != 0)
            fail_msg("%s: step %d differs", what, i);
    }
    butler_session_free(a);
    butler_session_free(b);
}

static void test_budgets(void **state)
{
    static const struct {
        const char *policy, *with;
        int budget;
    } cases[] = {{"quest:budget=1.0,page=4,dense=0", "quest:budget=32,page=4,dense=0", 32},
                 {"h2o", "h2o:budget=24", 24},
                 {"tova:budget=50", "tova:budget=20", 20},
                 {"knorm:budget=0.9", "knorm:budget=30", 30}};
    struct butler_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        same_steps(begin(cases[i].policy, cases[i].budget, N_PROMPT), begin(cases[i].with, 0, N_PROMPT), cases[i].policy);
    struct butler_session *late = begin("quest:budget=1.0,page=4,dense=0", 0, N_PROMPT); /* what it put off is made now */
    assert_int_equal(butler_session_set_budget(late, 32, NULL), 0);
    same_steps(late, begin("quest:budget=32,page=4,dense=0", 0, N_PROMPT), "in the middle of a text");
    /* A budget that covers the whole context lets the metric rest: what is set before the text counts, what is set behind it comes
     * too late. */
    static const char *const observing[] = {"h2o", "snapkv:window=8,recent=8", "tova", "scissorhands:window=16"};
    for (size_t i = 0; i < sizeof observing / sizeof *observing; i++) {
        char covers[80], small[80];
        const char *mark = strchr(observing[i], ':') ? "," : ":";
        snprintf(covers, sizeof covers, "%s%sbudget=%d", observing[i], mark, N_CTX);
        snprintf(small, sizeof small, "%s%sbudget=24", observing[i], mark);
        same_steps(begin(covers, 24, N_PROMPT), begin(small, 0, N_PROMPT), observing[i]);
        struct butler_session *rested = begin(covers, 0, N_PROMPT), *other = begin(small, 0, 0);
        assert_int_equal(butler_session_set_budget(rested, 24, &err), BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_session_adopt(other, rested, &err), BUTLER_ERROR_ARGUMENT);
        assert_non_null(strstr(err.message, "observed"));
        butler_session_free(rested);
        butler_session_free(other);
    }
    struct butler_session *full = begin("full", 0, 3), *mass = begin("fier:mass=0.9", 0, 3), *quest = begin("quest", 0, 3);
    assert_int_equal(butler_session_set_budget(full, 8, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_set_budget(mass, 8, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_set_budget(quest, 0, &err), BUTLER_ERROR_ARGUMENT);
    assert_true(butler_session_metric_bytes(full, 8, 100) == 0);
    assert_true(butler_session_metric_bytes(quest, 8, 200) > butler_session_metric_bytes(quest, 8, 100));
    butler_session_free(full);
    butler_session_free(mass);
    butler_session_free(quest);
}

/* Where nothing was evicted, the token that is taken out was as if never read. */
static void test_unread(void **state)
{
    static const char *const policies[] = {"full", "tova:budget=150", "knorm:budget=150", "tova+vatp:budget=150"};
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct butler_session *session = begin(policies[i], 0, N_PROMPT);
        assert_true(butler_session_can_unread(session, N_PROMPT));
        assert_int_equal(butler_session_unread(session, NULL), 0);
        assert_int_equal(butler_n_past(session), N_PROMPT - 1);
        assert_null(butler_logits(session));
        same_steps(session, begin(policies[i], 0, N_PROMPT - 1), policies[i]);
    }
    /* With a small budget the slot of the token may be one of others: the text stays one of single positions. */
    struct butler_session *cut = begin("tova:budget=20", 0, N_PROMPT);
    int32_t before[N_CTX], after[N_CTX];
    assert_int_equal(butler_step(cut, 5, NULL), 0);
    const int n = butler_last_selection(cut, 0, 0, before, N_CTX);
    assert_int_equal(butler_session_unread(cut, NULL), 0);
    assert_int_equal(butler_step(cut, 5, NULL), 0);
    assert_int_equal(butler_last_selection(cut, 0, 0, after, N_CTX), n);
    assert_int_equal(after[n - 1], N_PROMPT);
    for (int i = 1; i < n; i++)
        assert_true(after[i] > after[i - 1]);
    butler_session_free(cut);
    struct butler_session *pages = begin("quest:page=4", 0, 9), *sums = begin("keydiff", 0, 9), *none = begin("full", 0, 1);
    struct butler_error err;
    assert_false(butler_session_can_unread(pages, 9));
    assert_int_equal(butler_session_unread(pages, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_unread(sums, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_truncate(none, 0, NULL), 0);
    assert_int_equal(butler_session_unread(none, &err), BUTLER_ERROR_ARGUMENT);
    butler_session_free(pages);
    butler_session_free(sums);
    butler_session_free(none);
}

static void test_policies(void **state)
{
    static const char *const policies[] = {"full", "h2o+vatp:budget=0.3", "quest", "fier:mass=0.9", "layer0", "softprune"};
    struct butler_policy_parts parts = {BUTLER_INIT(butler_policy_parts)}, again = parts;
    struct butler_error err;
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        assert_int_equal(butler_policy_read(engine, policies[i], &parts, NULL), 0);
        assert_int_equal(butler_policy_read(engine, parts.text, &again, NULL), 0);
        assert_string_equal(parts.text, again.text);
        assert_true(!parts.metric == !(parts.retrieves || parts.evicts));
        assert_true(butler_policy_can_adopt(engine, policies[i], policies[i]));
    }
    assert_int_equal(butler_policy_read(engine, "full", &parts, NULL), 0);
    assert_true(parts.budget == 1 && !parts.metric && !parts.looks_ahead);
    assert_int_equal(butler_policy_read(engine, "layer0:budget=0.25", &parts, NULL), 0);
    assert_true(parts.budget == 0.25 && parts.retrieves && parts.looks_ahead && parts.budget_kind == BUTLER_BUDGET_FRACTION);
    assert_int_equal(butler_policy_read(engine, "nosuch", &parts, &err), BUTLER_ERROR_ARGUMENT);
    assert_true(butler_policy_can_adopt(engine, "quest", "full"));
    assert_false(butler_policy_can_adopt(engine, "h2o", "full"));
    assert_false(butler_policy_can_adopt(engine, "nosuch", "full"));
}

struct seen {
    int layers, attended, fed, values;
    float v[BUTLER_MAX_HEAD_DIM]; /* of the first token, its first KV head */
};

static void see_layer(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct seen *seen = user;
    assert_true(x && h && q && k && layer >= 0 && first == 0 && n == 4);
    seen->layers++;
}

static void see_values(void *user, int layer, int first, int n, const float *v)
{
    struct seen *seen = user;
    const struct butler_model_info *info = butler_model_get_info(butler_engine_model(engine));
    assert_true(layer >= 0 && first == 0 && n == 4);
    memcpy(seen->v, v, (size_t)info->head_dim * sizeof *v);
    seen->values++;
}

/* The first token attends to itself alone. */
static void see_attended(void *user, int layer, int first, int n, const float *q, float *o)
{
    struct seen *seen = user;
    assert_true(q && o && layer >= 0 && first == 0 && n == 4);
    for (int d = 0; d < butler_model_get_info(butler_engine_model(engine))->head_dim; d++)
        assert_float_equal(o[d], seen->v[d], 1e-3f * fabsf(seen->v[d]) + 1e-6f);
    seen->attended++;
}

static void see_fed(void *user, int layer, int first, int n, const float *h)
{
    struct seen *seen = user;
    assert_true(h && layer >= 0 && first == 0 && n == 4);
    seen->fed++;
}

static void test_hooks(void **state)
{
    const int n_layers = butler_model_get_info(butler_engine_model(engine))->n_layers;
    const int32_t ids[] = {1, 2, 3, 4};
    struct seen seen = {0};
    const struct butler_capture capture = {BUTLER_INIT(butler_capture), .layer = see_layer, .user = &seen,
                                           .attended = see_attended,    .fed = see_fed,     .values = see_values};
    struct butler_engine *beside = butler_engine_clone(engine, 1, 0, NULL);
    struct butler_session *session = beside ? butler_session_new(beside, NULL, NULL) : NULL;
    (void)state;
    assert_non_null(session);
    assert_int_equal(butler_session_set_capture(session, &capture, NULL), 0);
    assert_int_equal(butler_prefill(session, ids, 4, NULL, NULL, NULL), 0);
    assert_true(seen.layers == n_layers && seen.attended == n_layers && seen.fed == n_layers && seen.values == n_layers);
    assert_int_equal(butler_session_set_capture(session, NULL, NULL), 0);
    assert_int_equal(butler_step(session, 5, NULL), 0);
    assert_int_equal(seen.layers, n_layers);
    struct butler_session *same = butler_session_new(engine, NULL, NULL);
    assert_int_equal(butler_prefill(same, ids, 4, NULL, NULL, NULL), 0);
    assert_int_equal(butler_step(same, 5, NULL), 0);
    assert_memory_equal(butler_logits(same), butler_logits(session), (size_t)n_vocab * sizeof(float));
    butler_session_free(same);
    butler_session_free(session);
    butler_engine_free(beside);
    struct butler_vector_loops loops = {BUTLER_INIT(butler_vector_loops)};
    float x[3] = {1, 2, 3}, y[3] = {1, 1, 1};
    butler_engine_vector_loops(engine, &loops);
    loops.axpy(y, 2, x, 3);
    assert_float_equal(loops.dot(x, y, 3), 3 + 10 + 21, 0);
    assert_float_equal(loops.max(y, 3), 7, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_unread),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_hooks),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
