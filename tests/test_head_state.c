/* A metric's state of a KV head (butler.h): a plug-in whose state is the number and the sum of the positions of the tokens that the
 * head holds. Whatever happens to the session, whoever runs it, the state is that of these tokens, and begin_score() came before.
 */
#include <unistd.h>

#include "fixtures.h"
#include "engine/session.h"

enum { N_TEXT = 150, N_PROMPT = 90 };

struct held {
    int64_t n, sum;
    int64_t begun; /* the number of tokens when begin_score was last called */
};

static int n_scored; /* atomic */

static size_t head_bytes(const struct butler_metric_shape *shape, const double *values)
{
    (void)shape, (void)values;
    return sizeof(struct held);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    struct held *held = butler_view_state(view);
    (void)shape, (void)values;
    for (int slot = first; slot < first + n; slot++)
        held->sum += butler_view_position(view, slot);
    held->n += n;
}

static void leave(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const uint32_t *slots, int n)
{
    struct held *held = butler_view_state(view);
    (void)shape, (void)values;
    for (int i = 0; i < n; i++)
        held->sum -= butler_view_position(view, (int)slots[i]);
    held->n -= n;
}

static void begin_score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                        const float *q, int n_q)
{
    struct held *held = butler_view_state(view);
    (void)shape, (void)values, (void)q;
    if (n_q != 1)
        abort();
    held->begun = held->n;
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const struct held *held = butler_view_state(view);
    int64_t sum = 0;
    (void)shape, (void)values;
    for (int slot = 0; slot < butler_view_n_slots(view); slot++)
        sum += butler_view_position(view, slot);
    if (held->n != butler_view_n_slots(view) || held->sum != sum || held->begun != held->n)
        abort();
    for (int i = 0; i < request->n; i++)
        request->out[i] = (float)(butler_view_position(view, request->first + i) * 37 % 101);
    __atomic_fetch_add(&n_scored, 1, __ATOMIC_RELAXED);
}

static const struct butler_metric counter = {
    .abi = BUTLER_METRIC_ABI,
    .name = "counter",
    .scale = BUTLER_SCORE_WEIGHT,
    .query_free = true,
    .head_bytes = head_bytes,
    .append = append,
    .leave = leave,
    .begin_score = begin_score,
    .score = score,
};

static struct butler_engine *open_engine(int n_threads)
{
    char path[FIXTURE_PATH];
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_engine *engine = load_engine(path, n_threads, NULL);
    assert_int_equal(butler_metric_register(engine, &counter, NULL), 0);
    return engine;
}

static struct butler_session *open_session(struct butler_engine *engine, const char *policy)
{
    struct butler_error err;
    int32_t text[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = i * 37 % 40;
    struct butler_session *session =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_TEXT, .policy = policy}, &err);
    if (!session)
        fail_msg("%s", err.message);
    assert_int_equal(butler_prefill(session, text, N_PROMPT, NULL, NULL, NULL), 0);
    return session;
}

static void step(struct butler_session *session, int n)
{
    const int before = n_scored;
    for (int i = 0; i < n; i++)
        assert_int_equal(butler_step(session, i * 7 % 40, NULL), 0);
    assert_true(n_scored > before);
}

static void test_state_follows(void **state)
{
    static const char *const policies[] = {"counter:budget=24", "counter:method=evict,budget=24",
                                           "counter:method=evict,budget=40,prefill=evict", "counter:budget=24,share=layer"};
    char path[] = "/tmp/butler-test-state-XXXXXX";
    (void)state;
    close(mkstemp(path));
    for (int threads = 1; threads < 4; threads += 2) {
        struct butler_engine *engine = open_engine(threads);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct butler_session *session = open_session(engine, policies[p]), *other = open_session(engine, policies[p]);
            step(session, 5);
            struct butler_session *fork = butler_session_fork(session, NULL);
            step(fork, 3);
            assert_int_equal(butler_session_save(session, path, NULL), 0);
            struct butler_session *restored = butler_session_restore(engine, path, 0, NULL);
            assert_non_null(restored);
            step(restored, 3);
            assert_memory_equal(butler_logits(fork), butler_logits(restored), (size_t)fork->model->hp.n_vocab * sizeof(float));
            for (int i = 0; i < 3; i++) /* several sessions in one pass */
                assert_int_equal(butler_step_batch((struct butler_session *[]){session, other}, (int32_t[]){3, 4}, 2, NULL), 0);
            if (session->policy.method == BUTLER_RETRIEVE) {
                assert_int_equal(butler_session_truncate(fork, 70, NULL), 0);
                step(fork, 3);
            }
            assert_int_equal(butler_session_truncate(other, 0, NULL), 0);
            assert_int_equal(butler_prefill(other, (int32_t[]){1, 2, 3}, 3, NULL, NULL, NULL), 0);
            for (int i = 0; i < 60; i++)
                assert_int_equal(butler_step(other, 5, NULL), 0);
            struct butler_stats stats = {BUTLER_INIT(butler_stats)};
            butler_session_stats(other, &stats);
            assert_true(stats.metric_memory == 2 * 2 * sizeof(struct held)); /* layers times KV heads */
            butler_session_free(restored);
            butler_session_free(fork);
            butler_session_free(other);
            butler_session_free(session);
        }
        free_engine(engine);
    }
    unlink(path);
}

/* Texts that are taken over: from the prefix cache, and from a session of another policy. */
static void test_taken_over(void **state)
{
    char path[FIXTURE_PATH];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_model *model = butler_model_load(path, NULL, NULL);
    struct butler_engine *engine =
        butler_engine_new(model, &(struct butler_engine_params){.n_threads = 2, .prefix_bytes = 1 << 24}, NULL);
    assert_int_equal(butler_metric_register(engine, &counter, NULL), 0);
    struct butler_session *dense = open_session(engine, "full"), *session = open_session(engine, "counter:budget=24");
    step(session, 3);
    struct butler_session *adopts =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_TEXT, .policy = "counter:budget=24"}, NULL);
    assert_int_equal(butler_session_adopt(adopts, dense, NULL), 0);
    step(adopts, 3);
    butler_session_free(adopts);
    butler_session_free(session);
    butler_session_free(dense);
    free_engine(engine);
}

/* Logits of no query: -1 to -7. */
static void score_logits(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                         const struct butler_score_request *request)
{
    (void)shape, (void)values;
    for (int h = 0; h < request->n_q; h++)
        for (int i = 0; i < request->n; i++)
            request->out[(size_t)h * request->stride + i] = -1 - (float)(butler_view_position(view, request->first + i) % 7);
}

/* Probabilities of logits are their softmax whether or not they depend on a query. */
static void test_logits_without_queries(void **state)
{
    static const char *const budgets[] = {"mass=0.9", "budget=20,sinks=0"};
    (void)state;
    for (int b = 0; b < BUTLER_COUNT(budgets); b++) {
        int32_t ids[2][N_TEXT];
        int n[2];
        for (int query_free = 0; query_free < 2; query_free++) {
            struct butler_engine *engine = open_engine(1);
            struct butler_error err;
            char policy[96];
            const struct butler_metric metric = {.abi = BUTLER_METRIC_ABI,
                                                 .name = "logits",
                                                 .scale = BUTLER_SCORE_LOGIT,
                                                 .query_free = query_free,
                                                 .score = score_logits};
            snprintf(policy, sizeof policy, "logits%s:%s", b ? "+vatp" : "", budgets[b]);
            assert_int_equal(butler_metric_register(engine, &metric, &err), 0);
            struct butler_session *session = open_session(engine, policy);
            assert_int_equal(butler_step(session, 3, NULL), 0);
            n[query_free] = butler_last_selection(session, 1, 0, ids[query_free], N_TEXT);
            butler_session_free(session);
            free_engine(engine);
        }
        assert_int_equal(n[0], n[1]);
        assert_true(n[0] > 10 && n[0] < N_PROMPT);
        assert_memory_equal(ids[0], ids[1], (size_t)n[0] * sizeof **ids);
    }
}

static void records_of_four(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 4;
    *n_bytes = 8;
}

/* Records that are made anew when a token of them goes would add the others to the state again. */
static void test_states_beside_records(void **state)
{
    struct butler_engine *engine = open_engine(1);
    struct butler_error err;
    struct butler_metric metric = counter;
    (void)state;
    metric.name = "several";
    metric.record = records_of_four;
    assert_int_equal(butler_metric_register(engine, &metric, &err), 0);
    assert_null(butler_session_new(
        engine, &(struct butler_session_params){.n_ctx = N_TEXT, .policy = "several:method=evict,budget=24"}, &err));
    assert_non_null(strstr(err.message, "needs move()"));
    butler_session_free(open_session(engine, "several:method=retrieve,budget=24"));
    free_engine(engine);
}

static void test_what_cannot_be(void **state)
{
    struct butler_engine *engine = open_engine(1);
    struct butler_metric bad[3] = {counter, counter, counter};
    (void)state;
    bad[0].name = "one", bad[0].head_bytes = NULL;
    bad[1].name = "two", bad[1].weighing = (enum butler_value_weighing)3;
    bad[2].name = "three", bad[2].abi = 1;
    for (int i = 0; i < 3; i++)
        assert_int_equal(butler_metric_register(engine, &bad[i], NULL), i < 2 ? BUTLER_ERROR_ARGUMENT : BUTLER_ERROR_UNSUPPORTED);
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_state_follows), cmocka_unit_test(test_taken_over),
                                       cmocka_unit_test(test_logits_without_queries), cmocka_unit_test(test_states_beside_records),
                                       cmocka_unit_test(test_what_cannot_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
