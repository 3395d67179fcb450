/* butler_session_keep_receipt: what a receipt says is that of a plain computation from the queries and keys that the layers
 * compared, and a session with a receipt computes what one without does. */
#include <math.h>

#include "watch.h"

enum { EVERY = 3 };

/* Who holds what, of every layer and KV head. */
typedef bool held_tokens[MAX_LAYERS][MAX_HEADS][N_TEXT];

static void note_held(struct butler_session *session, held_tokens held)
{
    int32_t ids[N_TEXT];
    memset(held, 0, sizeof(held_tokens));
    for (int l = 0; l < session->shape.n_layers; l++)
        for (int h = 0; h < session->shape.n_kv_heads; h++) {
            const int window = session->model->layers[l].window;
            int n = butler_last_selection(session, l, h * session->shape.group, ids, N_TEXT);
            for (int i = 0; i < n && session->policy.method == BUTLER_EVICT; i++)
                held[l][h][ids[i]] = true;
            for (int t = 0; t < butler_n_past(session) && session->policy.method != BUTLER_EVICT; t++)
                held[l][h][t] = window == 0 || t >= butler_n_past(session) - window;
        }
}

/* A head's attention to the tokens that are held, by the queries that were kept last. Returns what a learned sink has. */
static double weigh(const struct watch *watch, int layer, int head, const bool *held, double *weights)
{
    const struct butler_metric_shape *shape = &watch->session->shape;
    const float *sinks = watch->session->model->layers[layer].sinks;
    const double sink = sinks ? exp((double)sinks[head]) : 0;
    double sum = sink;
    for (int t = 0; t < N_TEXT; t++) {
        weights[t] = 0;
        for (int c = 0; c < shape->head_dim && held[t]; c++)
            weights[t] += (double)watch->q[layer][head * shape->head_dim + c] *
                          (double)watch->k[layer][t][head / shape->group * shape->head_dim + c];
        weights[t] = held[t] ? exp(weights[t] / sqrt(shape->head_dim)) : 0;
        sum += weights[t];
    }
    for (int t = 0; t < N_TEXT; t++)
        weights[t] /= sum;
    return sink / sum;
}

/* Attention to tokens that were held before and are not after: a mean over heads and layers. */
static double lost(const struct watch *watch, held_tokens before, held_tokens after)
{
    const struct butler_metric_shape *shape = &watch->session->shape;
    double sum = 0, weights[N_TEXT];
    for (int l = 0; l < shape->n_layers; l++)
        for (int h = 0; h < shape->n_heads; h++) {
            weigh(watch, l, h, before[l][h / shape->group], weights);
            for (int t = 0; t < N_TEXT; t++) {
                const bool left = before[l][h / shape->group][t] && !after[l][h / shape->group][t];
                sum += left ? weights[t] / shape->n_heads / shape->n_layers : 0;
            }
        }
    return sum;
}

/* Adds what a step read of its attention, and what each position had. */
static void add_step(const struct watch *watch, held_tokens held, double *read, double *attention)
{
    const struct butler_session *session = watch->session;
    const int n_heads = session->shape.n_heads, n_all = n_heads * session->shape.n_layers;
    double weights[N_TEXT];
    int32_t ids[N_TEXT];
    for (int l = 0; l < session->shape.n_layers; l++)
        for (int h = 0; h < n_heads; h++) {
            *read += weigh(watch, l, h, held[l][h / session->shape.group], weights) / n_all;
            const int n = butler_last_selection(session, l, h, ids, N_TEXT);
            for (int i = 0; i < n; i++)
                *read += weights[ids[i]] / n_all;
            for (int t = 0; t < N_TEXT; t++)
                attention[t] += weights[t] / n_all;
        }
}

static void expect_near(const char *model, const char *policy, const char *what, double value, double expected)
{
    if (!(fabs(value - expected) < 2e-5))
        fail_msg("%s, %s: %s is %.7f, %.7f expected", model, policy, what, value, expected);
}

static void check_receipt(const char *model, struct butler_session *session, struct watch *watch, struct butler_session *plain)
{
    const char *policy = session->policy.name;
    held_tokens all, before, after;
    double read = 0, step_lost = 0, attention[N_TEXT] = {0}, got[N_TEXT];
    int n_steps = 0, n_lost = 0;
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    assert_int_equal(butler_session_keep_receipt(session, EVERY, NULL), 0);
    read_prompt(session);
    read_prompt(plain);
    memset(all, 0, sizeof all);
    for (int l = 0; l < MAX_LAYERS; l++)
        for (int h = 0; h < MAX_HEADS; h++)
            for (int t = 0; t < N_PROMPT; t++)
                all[l][h][t] = true;
    note_held(session, after);
    assert_int_equal(butler_session_receipt(session, &receipt, got), 1);
    if (session->policy.method == BUTLER_EVICT && !session->policy.prefill_evict && session->model->hp.n_windowed == 0)
        expect_near(model, policy, "prompt_evicted", receipt.prompt_evicted, lost(watch, all, after));
    assert_true(receipt.n_steps == 0 && receipt.read == 1 && receipt.step_evicted == 0);
    for (int i = N_PROMPT; i < N_TEXT; i++) {
        note_held(session, before);
        assert_int_equal(butler_step(session, i * 7 % 40, NULL), 0);
        assert_int_equal(butler_step(plain, i * 7 % 40, NULL), 0);
        assert_memory_equal(butler_logits(plain), butler_logits(session), (size_t)plain->model->hp.n_vocab * sizeof(float));
        if ((i - N_PROMPT) % EVERY != 0)
            continue;
        note_held(session, after);
        n_steps++;
        add_step(watch, after, &read, attention);
        const double l = session->policy.method == BUTLER_EVICT ? lost(watch, before, after) : 0;
        step_lost += l;
        n_lost += l > 0;
    }
    assert_int_equal(butler_session_receipt(session, &receipt, got), 1);
    assert_int_equal(receipt.n_steps, n_steps);
    expect_near(model, policy, "read", receipt.read, read / n_steps);
    if (session->model->hp.n_windowed == 0)
        expect_near(model, policy, "step_evicted", receipt.step_evicted, n_lost ? step_lost / n_lost : 0);
    for (int t = 0; t < N_TEXT; t++)
        expect_near(model, policy, "attention to a position", got[t], attention[t] / n_steps);
    assert_true(receipt.seconds > 0);
}

static void test_equals_a_plain_computation(void **state)
{
    static const char *const policies[] = {"full",
                                           "fier:budget=12,dense=0",
                                           "quest:budget=32,page=4,dense=1",
                                           "oracle:budget=7,share=query",
                                           "oracle:budget=7,share=2",
                                           "random:budget=20,share=layer",
                                           "snapkv:budget=24,window=8,kernel=3,dense=0",
                                           "h2o:budget=24,dense=1",
                                           "knorm:budget=30"};
    struct watch *watch = calloc(1, sizeof *watch);
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct butler_engine *engine = open_model(models[m], 2);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct butler_session *session = new_session(engine, policies[p], watch),
                                  *plain = new_session(engine, policies[p], NULL);
            check_receipt(models[m], session, watch, plain);
            butler_session_free(session);
            butler_session_free(plain);
        }
        free_engine(engine);
    }
    free(watch);
}

static void test_who_has_one(void **state)
{
    struct butler_engine *engine = open_model(models[0], 1);
    struct butler_session *session = new_session(engine, "streaming:budget=20,rope=cache", NULL);
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    struct butler_error err;
    (void)state;
    assert_int_equal(butler_session_receipt(session, &receipt, NULL), 0);
    assert_int_equal(butler_session_keep_receipt(session, -1, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_keep_receipt(NULL, 1, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_keep_receipt(session, 1, NULL), 0);
    read_prompt(session);
    struct butler_session *fork = butler_session_fork(session, NULL);
    assert_int_equal(butler_session_receipt(fork, &receipt, NULL), 0);
    butler_session_free(fork);
    assert_int_equal(butler_step(session, 3, NULL), 0);
    assert_int_equal(butler_session_receipt(session, &receipt, NULL), 1);
    assert_true(receipt.n_steps == 1 && receipt.prompt_evicted > 0 && receipt.prompt_evicted < 1);
    assert_int_equal(butler_session_keep_receipt(session, 0, NULL), 0);
    assert_int_equal(butler_session_receipt(session, &receipt, NULL), 0);
    butler_session_free(session);
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equals_a_plain_computation), cmocka_unit_test(test_who_has_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
