/* butler_session_audit: recall and mass of a decode step are those of a plain computation from the queries and keys that the layers
 * compared, whatever else runs, and an audited step gives the same logits. butler_session_on_attention: the same head by head. */
#include <math.h>

#include "watch.h"

/* A session that has read the prompt. watch may be NULL. */
static struct butler_session *begin(struct butler_engine *engine, const char *policy, struct watch *watch)
{
    struct butler_session *session = new_session(engine, policy, watch);
    read_prompt(session);
    return session;
}

/* Adds what the head read of its exact attention. */
static void expect_head(const struct watch *watch, int layer, int head, double *recall, double *mass)
{
    const struct butler_session *session = watch->session;
    const struct butler_metric_shape *shape = &session->shape;
    const float *sinks = session->model->layers[layer].sinks;
    const int n = butler_n_past(session);
    double scores[N_TEXT], sum = sinks ? exp((double)sinks[head]) : 0, read = sum;
    bool best[N_TEXT] = {false};
    int32_t ids[N_TEXT];
    for (int t = 0; t < n; t++) {
        scores[t] = 0;
        for (int c = 0; c < shape->head_dim; c++)
            scores[t] += (double)watch->q[layer][head * shape->head_dim + c] *
                         (double)watch->k[layer][t][head / shape->group * shape->head_dim + c];
        scores[t] /= sqrt(shape->head_dim);
        sum += exp(scores[t]);
    }
    const int k = butler_last_selection(session, layer, head, ids, N_TEXT);
    best[n - 1] = true;
    for (int i = 1, top; i < k; i++) {
        top = -1;
        for (int t = 0; t < n; t++)
            if (!best[t] && (top < 0 || scores[t] > scores[top]))
                top = t;
        best[top] = true;
    }
    int hits = 0;
    for (int i = 0; i < k; i++) {
        hits += best[ids[i]];
        read += exp(scores[ids[i]]);
    }
    *recall += (double)hits / k;
    *mass += read / sum;
}

static void test_equals_a_plain_computation(void **state)
{
    static const char *const policies[] = {
        "fier:budget=12,dense=0",         "quest:budget=0.5,dense=0",      "tinyserve:budget=48",    "fier:budget=9,dense=1",
        "oracle:budget=7,share=query",    "random:budget=20,share=layer",  "fier:budget=12,every=3", "oracle:mass=0.8",
        "quest:budget=32,page=4,dense=0", "fier:budget=12,dense=0,share=2"};
    struct watch *watch = calloc(1, sizeof *watch);
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct butler_engine *engine = open_model(models[m], 1);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct butler_session *session = begin(engine, policies[p], watch);
            for (int i = N_PROMPT; i < N_TEXT; i++) {
                struct butler_audit audit = {BUTLER_INIT(butler_audit)};
                double recall = 0, mass = 0;
                int n_heads = 0;
                assert_int_equal(butler_session_audit(session, &audit, NULL), 1);
                assert_int_equal(butler_step(session, i * 7 % 40, NULL), 0);
                for (int l = 0; l < session->shape.n_layers; l++)
                    for (int h = 0; h < session->shape.n_heads && butler_policy_applies(&session->policy, l); h++, n_heads++)
                        expect_head(watch, l, h, &recall, &mass);
                assert_int_equal(audit.n_heads, n_heads);
                if (n_heads == 0)
                    continue;
                if (fabs(audit.recall - recall / n_heads) > 1e-9 || fabs(audit.mass - mass / n_heads) > 1e-5)
                    fail_msg("%s, %s, token %d: recall %.9f, %.9f expected; mass %.9f, %.9f expected", models[m], policies[p], i,
                             audit.recall, recall / n_heads, audit.mass, mass / n_heads);
                assert_true(audit.mass > 0 && audit.mass <= 1 + 1e-6 && audit.seconds > 0);
            }
            butler_session_free(session);
        }
        free_engine(engine);
    }
    free(watch);
}

/* Two policies side by side, one of them audited in some steps: logits are those of sessions that are not, and what is found does
 * not depend on the threads. */
static void test_changes_nothing(void **state)
{
    struct butler_engine *engines[] = {open_model(models[0], 1), open_model(models[0], 3)};
    struct butler_audit first[N_TEXT] = {{BUTLER_INIT(butler_audit)}};
    (void)state;
    for (int e = 0; e < 2; e++) {
        struct butler_session *plain = begin(engines[e], "fier:budget=12,dense=0", NULL),
                              *both[] = {begin(engines[e], "fier:budget=12,dense=0", NULL),
                                         begin(engines[e], "h2o:budget=20", NULL)};
        for (int i = N_PROMPT; i < N_TEXT; i++) {
            const int32_t ids[] = {i * 3 % 40, i * 5 % 40};
            struct butler_audit audit = {.n_heads = -1}, unused;
            if (i % 2)
                assert_int_equal(butler_session_audit(both[0], &audit, NULL), 1);
            assert_int_equal(butler_session_audit(both[1], &unused, NULL), 0);
            assert_int_equal(butler_step(plain, ids[0], NULL), 0);
            assert_int_equal(butler_step_batch(both, ids, 2, NULL), 0);
            assert_memory_equal(butler_logits(plain), butler_logits(both[0]), (size_t)plain->model->hp.n_vocab * sizeof(float));
            assert_int_equal(audit.n_heads, i % 2 ? plain->shape.n_layers * plain->shape.n_heads : -1);
            if (e == 0)
                first[i] = audit;
            else
                assert_true(audit.recall == first[i].recall && audit.mass == first[i].mass);
        }
        butler_session_free(plain);
        butler_session_free(both[0]);
        butler_session_free(both[1]);
        free_engine(engines[e]);
    }
}

/* What on_attention told of a step: weights by position, whether they were read. */
struct heads {
    int n_calls, n_heads;
    float weights[MAX_LAYERS][MAX_HEADS][N_TEXT];
    bool held[MAX_LAYERS][MAX_HEADS][N_TEXT], read[MAX_LAYERS][MAX_HEADS][N_TEXT];
};

static void keep_head(void *user, const struct butler_head_attention *attention)
{
    struct heads *heads = user;
    assert_int_equal(attention->layer * heads->n_heads + attention->head, heads->n_calls++); /* in order */
    for (int i = 0; i < attention->n; i++) {
        assert_true(i == 0 || attention->positions[i] > attention->positions[i - 1]);
        heads->held[attention->layer][attention->head][attention->positions[i]] = true;
        heads->weights[attention->layer][attention->head][attention->positions[i]] = attention->weights[i];
    }
    for (int i = 0; i < attention->n_read; i++)
        heads->read[attention->layer][attention->head][attention->read[i]] = true;
}

/* The weights are the softmax over the tokens that the head holds, what was read is what the selection says, the logits are those
 * of a session that nobody watches. */
static void expect_heads(const struct watch *watch, const struct heads *heads, bool evicts)
{
    const struct butler_session *session = watch->session;
    const struct butler_metric_shape *shape = &session->shape;
    const int n = butler_n_past(session);
    assert_int_equal(heads->n_calls, shape->n_layers * shape->n_heads);
    for (int l = 0; l < shape->n_layers; l++)
        for (int h = 0; h < shape->n_heads; h++) {
            const float *sinks = session->model->layers[l].sinks;
            const int window = session->model->layers[l].window;
            double scores[N_TEXT], sum = sinks ? exp((double)sinks[h]) : 0;
            int32_t ids[N_TEXT];
            int n_held = 0, n_read = 0;
            for (int t = 0; t < n; t++) {
                const bool in_window = window == 0 || t >= n - window;
                scores[t] = 0;
                for (int c = 0; c < shape->head_dim; c++)
                    scores[t] += (double)watch->q[l][h * shape->head_dim + c] *
                                 (double)watch->k[l][t][h / shape->group * shape->head_dim + c];
                scores[t] = exp(scores[t] / sqrt(shape->head_dim));
                assert_true(evicts || heads->held[l][h][t] == in_window);
                sum += heads->held[l][h][t] ? scores[t] : 0;
                n_held += heads->held[l][h][t];
                n_read += heads->read[l][h][t];
            }
            for (int t = 0; t < n; t++)
                if (fabs((double)heads->weights[l][h][t] - (heads->held[l][h][t] ? scores[t] / sum : 0)) > 1e-5)
                    fail_msg("layer %d, head %d, token %d of %d: weight %.7f, %.7f expected", l, h, t, n,
                             (double)heads->weights[l][h][t], scores[t] / sum);
            assert_int_equal(n_read, butler_last_selection(session, l, h, ids, N_TEXT));
            for (int i = 0; i < n_read; i++)
                assert_true(heads->read[l][h][ids[i]]);
            assert_true(!evicts || n_held == n_read);
        }
}

static void test_attention_of_heads(void **state)
{
    static const char *const policies[] = {"full",
                                           "fier:budget=12",
                                           "quest:budget=32,page=4,dense=0",
                                           "random:budget=20,share=layer",
                                           "oracle:budget=7,share=query",
                                           "oracle:budget=7,share=2",
                                           "h2o:budget=24",
                                           "streaming:budget=16"};
    struct watch *watch = calloc(1, sizeof *watch);
    struct heads *heads = calloc(1, sizeof *heads);
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct butler_engine *engine = open_model(models[m], 2);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct butler_session *session = begin(engine, policies[p], watch), *plain = begin(engine, policies[p], NULL);
            assert_int_equal(butler_session_on_attention(session, keep_head, heads, NULL), 0);
            for (int i = N_PROMPT; i < N_TEXT - 1; i++) {
                *heads = (struct heads){.n_heads = session->shape.n_heads};
                assert_int_equal(butler_step(session, i * 7 % 40, NULL), 0);
                expect_heads(watch, heads, session->policy.method == BUTLER_EVICT);
                assert_int_equal(butler_step(plain, i * 7 % 40, NULL), 0);
                assert_memory_equal(butler_logits(plain), butler_logits(session),
                                    (size_t)session->model->hp.n_vocab * sizeof(float));
            }
            *heads = (struct heads){0};
            struct butler_session *fork = butler_session_fork(session, NULL);
            assert_int_equal(butler_session_on_attention(session, NULL, NULL, NULL), 0);
            assert_int_equal(butler_step(session, 3, NULL), 0);
            assert_int_equal(butler_step(fork, 3, NULL), 0);
            assert_int_equal(heads->n_calls, 0);
            butler_session_free(fork);
            butler_session_free(session);
            butler_session_free(plain);
        }
        free_engine(engine);
    }
    free(heads);
    free(watch);
}

/* Keys that are stored unrotated are compared as attention compares them: as long as nothing is evicted, the tokens' places are
 * their positions, and the weights those of keys that are stored rotated. */
static void test_places(void **state)
{
    struct heads *heads = calloc(2, sizeof *heads);
    (void)state;
    for (size_t m = 0; m < 2; m++) { /* the third rotates its layers in different ways */
        struct butler_engine *engine = open_model(models[m], 2);
        for (int i = 0; i < 2; i++) {
            struct butler_session *session = begin(engine, i == 0 ? "streaming:budget=98" : "streaming:budget=98,rope=cache", NULL);
            heads[i] = (struct heads){.n_heads = session->shape.n_heads};
            assert_int_equal(butler_session_on_attention(session, keep_head, &heads[i], NULL), 0);
            assert_int_equal(butler_step(session, 7, NULL), 0);
            butler_session_free(session);
        }
        for (int l = 0; l < MAX_LAYERS; l++)
            for (int h = 0; h < heads->n_heads; h++)
                for (int t = 0; t < N_TEXT; t++)
                    if (fabsf(heads[0].weights[l][h][t] - heads[1].weights[l][h][t]) > 1e-4f)
                        fail_msg("%s: layer %d, head %d, token %d: weight %.6f, %.6f by its place", models[m], l, h, t,
                                 (double)heads[0].weights[l][h][t], (double)heads[1].weights[l][h][t]);
        free_engine(engine);
    }
    free(heads);
}

static void test_known_answers(void **state)
{
    struct butler_engine *engine = open_model(models[0], 1);
    struct butler_audit audit = {BUTLER_INIT(butler_audit)};
    struct butler_session *session = begin(engine, "oracle:budget=10,share=query", NULL);
    (void)state;
    assert_int_equal(butler_session_audit(session, &audit, NULL), 1);
    assert_int_equal(butler_step(session, 9, NULL), 0);
    assert_true(audit.recall == 1); /* it selects by the very scores */
    butler_session_free(session);
    session = begin(engine, "fier:budget=1.0,dense=0", NULL);
    assert_int_equal(butler_session_audit(session, &audit, NULL), 1);
    assert_int_equal(butler_step(session, 9, NULL), 0);
    assert_int_equal(audit.n_heads, 0); /* everything was read */
    butler_session_free(session);
    session = begin(engine, "full", NULL);
    assert_int_equal(butler_session_audit(session, &audit, NULL), 0);
    butler_session_free(session);
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_a_plain_computation),
        cmocka_unit_test(test_changes_nothing),
        cmocka_unit_test(test_attention_of_heads),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_known_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
