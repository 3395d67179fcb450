/* Layers with a window: what a session computes and holds once the window has left pages behind. The model is Gemma 3's shape with
 * windows of 24 tokens in five of six layers; texts are long enough that pages are given back. */
#include <unistd.h>

#include "engine/session.h"
#include "fixtures.h"

enum { N_TEXT = 800, WINDOW = 24 };

struct context {
    struct butler_model *model;
    struct butler_engine *engine;
    int32_t text[N_TEXT];
};

static struct context open_model(int n_block, uint64_t prefix_bytes)
{
    struct context c;
    struct butler_error err;
    char path[FIXTURE_PATH];
    uint64_t random = 11;
    fixture_path(path, "models/gemma3.gguf");
    c.model = butler_model_load(path, NULL, &err);
    c.engine = c.model
                   ? butler_engine_new(c.model,
                                       &(struct butler_engine_params){
                                           .n_threads = 2, .n_block = n_block, .kv_bytes = 1 << 26, .prefix_bytes = prefix_bytes},
                                       &err)
                   : NULL;
    if (!c.engine)
        fail_msg("%s", err.message);
    for (int i = 0; i < N_TEXT; i++)
        c.text[i] = (int32_t)(butler_random(&random) % 96);
    return c;
}

static struct butler_session *open_session(const struct context *c, const char *policy)
{
    struct butler_error err;
    struct butler_session *session =
        butler_session_new(c->engine, &(struct butler_session_params){.n_ctx = N_TEXT, .policy = policy, .seed = 5}, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static void read_text(struct butler_session *session, const int32_t *ids, int n)
{
    struct butler_error err;
    if (butler_prefill(session, ids, n, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
}

static void step(struct butler_session *session, int32_t id)
{
    struct butler_error err;
    if (butler_step(session, id, &err) < 0)
        fail_msg("%s", err.message);
}

/* The rest of the text, token by token: both sessions compute the same bits. */
static void continue_alike(const struct context *c, struct butler_session *a, struct butler_session *b)
{
    assert_int_equal(butler_n_past(a), butler_n_past(b));
    for (int i = butler_n_past(a); i < N_TEXT; i++) {
        step(a, c->text[i]);
        step(b, c->text[i]);
        assert_memory_equal(butler_logits(a), butler_logits(b), 96 * sizeof(float));
    }
}

static const char *const policies[] = {"full", "quest:budget=64", "h2o:budget=64", "fier:budget=64", "snapkv:budget=64"};

/* Memory: a layer with a window holds that and one chunk of keys at most; the sixth layer holds what its policy keeps. */
static void test_memory(void **state)
{
    const struct context c = open_model(64, 0);
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct butler_session *session = open_session(&c, policies[p]);
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        read_text(session, c.text, 600);
        for (int i = 600; i < 700; i++)
            step(session, c.text[i]);
        butler_session_stats(session, &stats);
        for (int l = 0; l < session->shape.n_layers; l++) {
            const struct butler_kv_head *head = butler_kv_at(&session->kv, l, 0);
            const int held = head->n_pages * BUTLER_PAGE - head->n_released * BUTLER_EXTENT_TOKENS;
            if (c.model->layers[l].window > 0)
                assert_true(held <= WINDOW + BUTLER_WINDOW_CHUNK + BUTLER_EXTENT_TOKENS && head->n_released > 0);
            else
                assert_int_equal(head->n_released, 0);
        }
        assert_true(stats.kv_memory <= butler_kv_bytes(c.model, BUTLER_KV_F16, 700));
        assert_true(4 * butler_kv_bytes(c.model, BUTLER_KV_F16, 700) < /* five of six layers hold less than half */
                    3 * (uint64_t)c.model->hp.n_layers * 704 * 2 * session->kv.row_bytes * (uint64_t)session->shape.n_kv_heads);
        butler_session_free(session);
    }
    free_engine(c.engine);
}

/* A prompt in passes of 256 and of 7 tokens: the pages that are there differ, the results do not. */
static void test_blocks(void **state)
{
    const struct context large = open_model(256, 0), small = open_model(7, 0);
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct butler_session *a = open_session(&large, policies[p]), *b = open_session(&small, policies[p]);
        read_text(a, large.text, 700);
        read_text(b, small.text, 700);
        assert_memory_equal(butler_logits(a), butler_logits(b), 96 * sizeof(float));
        continue_alike(&large, a, b);
        butler_session_free(a);
        butler_session_free(b);
    }
    free_engine(large.engine);
    free_engine(small.engine);
}

/* A fork and a restored file go on as the session does. */
static void test_fork_and_file(void **state)
{
    const struct context c = open_model(64, 0);
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct butler_session *session = open_session(&c, policies[p]);
        char path[] = "/tmp/butler-test-session-XXXXXX";
        struct butler_error err;
        const int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        read_text(session, c.text, 700);
        if (butler_session_save(session, path, &err) < 0)
            fail_msg("%s", err.message);
        struct butler_session *fork = butler_session_fork(session, &err),
                              *restored = butler_session_restore(c.engine, path, 0, &err);
        unlink(path);
        if (!fork || !restored)
            fail_msg("%s", err.message);
        struct butler_session *third = butler_session_fork(session, &err);
        continue_alike(&c, session, fork);
        continue_alike(&c, third, restored);
        assert_memory_equal(butler_logits(session), butler_logits(third), 96 * sizeof(float));
        butler_session_free(session);
        butler_session_free(fork);
        butler_session_free(restored);
        butler_session_free(third);
    }
    free_engine(c.engine);
}

/* Going back: as far as the windows still reach, else an error that changes nothing; or to the beginning. */
static void test_truncate(void **state)
{
    const struct context c = open_model(64, 0);
    struct butler_session *session = open_session(&c, "quest:budget=64"), *other = open_session(&c, "quest:budget=64");
    struct butler_error err;
    (void)state;
    read_text(session, c.text, 600);
    assert_int_equal(butler_session_truncate(session, 100, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "has a window of 24 tokens"));
    assert_int_equal(butler_n_past(session), 600);
    assert_int_equal(butler_session_truncate(session, 590, &err), 0);
    read_text(session, c.text + 590, 10);
    read_text(other, c.text, 600);
    continue_alike(&c, session, other);
    assert_int_equal(butler_session_truncate(session, 0, &err), 0);
    assert_int_equal(butler_session_truncate(other, 0, &err), 0);
    read_text(session, c.text, 700);
    read_text(other, c.text, 700);
    continue_alike(&c, session, other);
    butler_session_free(session);
    butler_session_free(other);
    free_engine(c.engine);
}

/* A beginning from the prefix cache, which keeps the pages that windows have passed. */
static void test_prefix(void **state)
{
    const struct context c = open_model(64, 1 << 24);
    struct butler_session *first = open_session(&c, "full"), *second = open_session(&c, "full");
    struct butler_error err;
    (void)state;
    read_text(first, c.text, 700);
    const int n = butler_session_adopt_prefix(second, c.text, 700, &err);
    assert_int_equal(n, 699);
    read_text(second, c.text + n, 700 - n);
    assert_memory_equal(butler_logits(first), butler_logits(second), 96 * sizeof(float));
    continue_alike(&c, first, second);
    butler_session_free(first);
    butler_session_free(second);
    free_engine(c.engine);
}

/* What the windows leave costs nothing to read: stats count it so. */
static void test_traffic(void **state)
{
    const struct context c = open_model(64, 0);
    struct butler_session *session = open_session(&c, "full");
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    (void)state;
    read_text(session, c.text, 700);
    butler_session_stats_reset(session);
    step(session, c.text[700]);
    butler_session_stats(session, &stats);
    assert_true(stats.kv_bytes == stats.full_kv_bytes);
    assert_true(stats.kv_bytes ==
                2 * session->kv.row_bytes * (uint64_t)session->shape.n_kv_heads * butler_model_layer_tokens(c.model, 701));
    butler_session_free(session);
    free_engine(c.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory),        cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_fork_and_file), cmocka_unit_test(test_truncate),
                                       cmocka_unit_test(test_prefix),        cmocka_unit_test(test_traffic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
