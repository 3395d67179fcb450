/* Sessions of small models whose queries and keys are kept, so that a test computes their attention itself. */
#ifndef BUTLER_TEST_WATCH_H
#define BUTLER_TEST_WATCH_H

#include "fixtures.h"
#include "engine/session.h"

enum { N_PROMPT = 90, N_TEXT = 98, MAX_LAYERS = 4, MAX_ROW = 256, MAX_HEADS = 8 };

static const char *const models[] = {"models/llama-gqa.gguf", "models/qwen2.gguf" /* three query heads on a KV head */,
                                     "models/gpt-oss.gguf" /* sinks, windows */};

/* What the layers of a session compare. */
struct watch {
    struct butler_session *session;
    struct butler_capture capture;
    float q[MAX_LAYERS][MAX_ROW], k[MAX_LAYERS][N_TEXT][MAX_ROW];
};

static void see(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct watch *watch = user;
    const struct butler_metric_shape *shape = &watch->session->shape;
    const size_t n_q = (size_t)(shape->n_heads * shape->head_dim), n_kv = (size_t)(shape->n_kv_heads * shape->head_dim);
    (void)x, (void)h;
    assert_true(layer < MAX_LAYERS && n_q <= MAX_ROW && shape->n_heads <= MAX_HEADS);
    for (int t = 0; t < n; t++)
        memcpy(watch->k[layer][first + t], k + (size_t)t * n_kv, n_kv * sizeof *k);
    memcpy(watch->q[layer], q + (size_t)(n - 1) * n_q, n_q * sizeof *q);
}

static struct butler_engine *open_model(const char *name, int n_threads)
{
    char path[FIXTURE_PATH];
    fixture_path(path, name);
    return load_engine(path, n_threads, NULL);
}

/* An empty session. watch may be NULL. */
static struct butler_session *new_session(struct butler_engine *engine, const char *policy, struct watch *watch)
{
    struct butler_error err;
    struct butler_session *session = butler_session_new(
        engine, &(struct butler_session_params){.n_ctx = N_TEXT, .kv_type = BUTLER_KV_F32, .policy = policy}, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    if (watch) {
        *watch = (struct watch){.session = session, .capture = {.layer = see, .user = watch}};
        session->capture = &watch->capture;
    }
    return session;
}

static void read_prompt(struct butler_session *session)
{
    int32_t text[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = i * 37 % 40;
    assert_int_equal(butler_prefill(session, text, N_PROMPT, NULL, NULL, NULL), 0);
}

#endif
