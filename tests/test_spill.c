/* KV pages on a disk: what a session computes has the same bits whether all of its cache is in memory or little more than a layer,
 * under every policy, with requests that are late, interrupted or come short; and whatever request fails, an error names it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixtures.h"
#include "tiny_model.h"
#include "trouble.h"
#include "engine/abi.h"
#include "engine/session.h"

enum { N_CTX = 640, N_PROMPT = 600, N_STEPS = 8, BUDGET = 64 };

static const char *const unnamed[] = {"h2o+vatp",
                                      "fier+vatp:dense=1",
                                      "quest:method=evict,dense=0",
                                      "h2o:method=retrieve",
                                      "streaming:rope=cache",
                                      "tokenbutler2:on_top=0,sinks=4,recent=8,share=query,keys=int8",
                                      "fier:scan=1,dense=0",
                                      "knorm:prefill=evict",
                                      "quest:dense=0,every=3",
                                      "quest:dense=0,share=layer",
                                      "quest:dense=0,share=2",
                                      "keydiff:method=retrieve,dense=0"};

static const struct model_case {
    const char *file;
    enum butler_kv_type type;
} models[] = {{"models/llama-gqa.gguf", BUTLER_KV_F16},   {"models/llama-gqa.gguf", BUTLER_KV_F32},
              {"models/llama-q8_0.gguf", BUTLER_KV_Q8_0}, {"models/gemma3.gguf", BUTLER_KV_F16}, /* windows */
              {"models/gpt-oss.gguf", BUTLER_KV_F16},     {NULL, BUTLER_KV_Q8_0}};               /* NULL: six layers, made here */
enum { DEEP = BUTLER_COUNT(models) - 1 };

struct context {
    struct butler_model *model;
    struct butler_engine *resident, *spilled;
    enum butler_kv_type type;
    struct trouble trouble;
    uint64_t n_guessed; /* pages that were read ahead and then wanted */
    int32_t text[N_CTX];
};

static uint64_t layers(const struct context *c, int n)
{
    return (uint64_t)n * layer_bytes(c->model, c->type, N_CTX);
}

static struct butler_engine *engine_of(struct context *c, uint64_t memory, bool threads)
{
    const struct butler_engine_params params = {.n_threads = 2, .n_block = 128, .kv_bytes = 1 << 26, .kv_ram = memory};
    return spilled_engine(c->model, &c->trouble, &params, threads);
}

static void open_model(struct context *c, const struct model_case *from, int n_layers, bool threads)
{
    struct butler_error err;
    char path[FIXTURE_PATH];
    uint64_t random = 5;
    const struct butler_engine_params params = {.n_threads = 2, .n_block = 128, .kv_bytes = 1 << 26};
    *c = (struct context){.type = from->type, .trouble = {.at = -1, .random = 7}};
    if (from->file)
        fixture_path(path, from->file);
    else {
        struct tiny deep = tiny_default;
        deep.n_layers = 6;
        deep.n_heads = 6;
        deep.head_dim = 32;
        deep.n_ctx = N_CTX;
        tiny_write(tiny_path("deep"), &deep);
        snprintf(path, sizeof path, "%s", tiny_path("deep"));
    }
    c->model = butler_model_load(path, NULL, &err);
    c->resident = c->model ? butler_engine_new(c->model, &params, &err) : NULL;
    if (!c->resident)
        fail_msg("%s: %s", path, err.message);
    attach_both(c->resident, false);
    c->spilled = engine_of(c, layers(c, n_layers), threads);
    for (int i = 0; i < N_CTX; i++)
        c->text[i] = (int32_t)(butler_random(&random) % (uint64_t)c->model->hp.n_vocab);
}

static void close_model(struct context *c)
{
    butler_engine_free(c->spilled);
    butler_engine_free(c->resident);
    butler_model_free(c->model);
}

static struct butler_session *open_session(const struct context *c, struct butler_engine *engine, const char *policy)
{
    struct butler_error err;
    const struct butler_session_params params = {.n_ctx = N_CTX, .kv_type = c->type, .policy = policy, .seed = 3};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

/* The next tokens of both, and the same logits after each. */
static void step_both(const struct context *c, struct butler_session *a, struct butler_session *b, int n, const char *policy)
{
    struct butler_error err;
    for (int i = 0; i <= n; i++) {
        if (memcmp(butler_logits(a), butler_logits(b), (size_t)c->model->hp.n_vocab * sizeof(float)) != 0)
            fail_msg("%s: other logits after %d tokens", policy, butler_n_past(a));
        if (i < n && (butler_step(a, c->text[i], &err) < 0 || butler_step(b, c->text[i], &err) < 0))
            fail_msg("%s: %s", policy, err.message);
    }
}

/* ------------------------------------------------------------------------------------------------ equality */

static void with_budget(const char *policy, char out[256])
{
    const bool dense = strcmp(policy, "full") == 0 || strncmp(policy, "entropystop", 11) == 0;
    snprintf(out, 256, dense ? "%s" : "%s%c%s=%d", policy, strchr(policy, ':') ? ',' : ':',
             strncmp(policy, "softprune", 9) == 0 ? "min" : "budget", BUDGET);
}

static void check_policy(struct context *c, const char *name)
{
    char policy[256], file[64];
    struct butler_error err;
    with_budget(name, policy);
    if (butler_policy_check(c->resident, policy, &err) < 0)
        return;
    struct butler_session *a = open_session(c, c->resident, policy), *b = open_session(c, c->spilled, policy);
    const int first = N_PROMPT / 3;
    for (int done = 0, n; done < N_PROMPT; done += n) {
        n = done == 0 ? first : N_PROMPT - first;
        if (butler_prefill(a, c->text + done, n, NULL, NULL, &err) < 0 ||
            butler_prefill(b, c->text + done, n, NULL, NULL, &err) < 0)
            fail_msg("%s: %s", policy, err.message);
    }
    step_both(c, a, b, N_STEPS, policy);
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(b, &stats);
    assert_true(stats.pages_guessed <= stats.pages_prefetched && stats.pages_fetched <= stats.pages_wanted);
    c->n_guessed += stats.pages_guessed;
    struct butler_session *fork = butler_session_fork(b, &err);
    if (!fork)
        fail_msg("%s: %s", policy, err.message);
    butler_session_free(b);
    b = fork;
    step_both(c, a, b, 2, policy);
    if (butler_session_truncate(a, N_PROMPT - 70, &err) == 0) {
        const struct butler_span spans[] = {
            {.session = b, .ids = c->text, .n = 1},
            {.session = open_session(c, c->spilled, policy), .ids = c->text, .n = 90, .prompt_end = 90}};
        struct butler_error errs[2];
        if (butler_session_truncate(b, N_PROMPT - 70, &err) < 0 || butler_step(a, c->text[0], &err) < 0 ||
            butler_run(c->spilled, spans, 2, errs) < 0)
            fail_msg("%s: %s", policy, err.message);
        butler_session_free(spans[1].session);
        step_both(c, a, b, 2, policy);
    }
    snprintf(file, sizeof file, "/tmp/butler-test-spill-%d", (int)getpid());
    if (butler_session_save(b, file, &err) < 0)
        fail_msg("%s: %s", policy, err.message);
    butler_session_free(b);
    b = butler_session_restore(c->spilled, file, 0, &err);
    if (!b)
        fail_msg("%s: %s", policy, err.message);
    step_both(c, a, b, 2, policy);
    unlink(file);
    butler_session_free(a);
    butler_session_free(b);
}

static void check_model(int m, bool threads, int n_layers, bool earlier)
{
    struct context c;
    struct butler_policy_info policy = {BUTLER_INIT(butler_policy_info)};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    open_model(&c, &models[m], n_layers, threads);
    c.trouble.shaky = true;
    for (int i = 0; butler_policy_describe(c.resident, i, &policy); i++)
        if (in_share(m + i) && earlier == (!strcmp(policy.name, "layer0") || !strcmp(policy.name, "prevlayer")))
            check_policy(&c, policy.name);
    for (int i = 0; i < BUTLER_COUNT(unnamed) && !earlier; i++)
        if (in_share(m + i))
            check_policy(&c, unnamed[i]);
    butler_engine_get_info(c.spilled, &info);
    assert_true(info.kv_resident <= layers(&c, n_layers));
    assert_true(!info.kv_disk || strncmp(info.kv_disk, threads ? "preadv" : "", threads ? 6 : 0) == 0);
    if (c.trouble.n == 0 && test_share() == 1) /* some policies come without a request */
        fail_msg("model %d: nothing was read or written", m);
    if (m == DEEP && !earlier && c.n_guessed == 0)
        fail_msg("nothing that was read ahead was wanted");
    close_model(&c);
}

static void test_equality(void **state)
{
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++)
        check_model(m, m % 2, 1, false);
}

/* Metrics that look at the first layer or the one before need up to three together. */
static void test_earlier_layers(void **state)
{
    (void)state;
    check_model(DEEP, false, 3, true);
}

/* A metric of somebody else's: it may look at any key at any time. Its record is the sum of the first key's and the token's own. */
static void record_sum(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 1;
    *n_bytes = sizeof(float);
}

static void append_sum(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                       int first, int n)
{
    float key[BUTLER_MAX_HEAD_DIM], oldest[BUTLER_MAX_HEAD_DIM];
    (void)values;
    butler_view_key(view, 0, oldest);
    for (int slot = first; slot < first + n; slot++) {
        float *sum = butler_view_record(view, slot);
        butler_view_key(view, slot, key);
        *sum = 0;
        for (int d = 0; d < shape->head_dim; d++)
            *sum += key[d] * oldest[d];
    }
}

static void score_sum(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                      const struct butler_score_request *request)
{
    (void)shape, (void)values;
    butler_view_dot_keys(view, request->q, request->n_q, request->first, request->n, request->out, request->stride);
    for (int i = 0; i < request->n_q; i++)
        for (int j = 0; j < request->n; j++)
            request->out[(size_t)i * request->stride + (size_t)j] += *(const float *)butler_view_record(view, request->first + j);
}

static const struct butler_metric somebodys = {.abi = BUTLER_METRIC_ABI,
                                               .name = "somebodys",
                                               .summary = "any key at any time",
                                               .scale = BUTLER_SCORE_LOGIT,
                                               .reads_keys = true,
                                               .record = record_sum,
                                               .append = append_sum,
                                               .score = score_sum};

static void test_plugin(void **state)
{
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[DEEP], 1, false);
    assert_int_equal(butler_metric_register(c.resident, &somebodys, &err), 0);
    assert_int_equal(butler_metric_register(c.spilled, &somebodys, &err), 0);
    check_policy(&c, "somebodys:dense=1");
    check_policy(&c, "somebodys:method=evict");
    assert_true(c.trouble.n > 0);
    close_model(&c);
}

/* -------------------------------------------------------------------------------------------------- faults */

/* Reads a text and goes on. Returns the first error's code; 0: the last logits are those of `expected`. */
static int run(struct context *c, struct butler_session *session, const float *expected, struct butler_error *err)
{
    int code = butler_prefill(session, c->text, N_PROMPT, NULL, NULL, err);
    for (int i = 0; i < N_STEPS && code == 0; i++)
        code = butler_step(session, c->text[i], err);
    if (code == 0 && memcmp(butler_logits(session), expected, (size_t)c->model->hp.n_vocab * sizeof(float)) != 0)
        fail_msg("a request failed, and the text is another one");
    return code;
}

static void check_faults(bool threads, int error)
{
    struct context c;
    struct butler_error err = {0};
    open_model(&c, &models[0], 1, threads);
    struct butler_session *good = open_session(&c, c.resident, "fier:budget=64");
    float *expected = malloc((size_t)c.model->hp.n_vocab * sizeof *expected);
    assert_non_null(expected);
    if (butler_prefill(good, c.text, N_PROMPT, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    for (int i = 0; i < N_STEPS; i++)
        assert_int_equal(butler_step(good, c.text[i], &err), 0);
    memcpy(expected, butler_logits(good), (size_t)c.model->hp.n_vocab * sizeof *expected);
    struct butler_session *session = open_session(&c, c.spilled, "fier:budget=64");
    assert_int_equal(run(&c, session, expected, &err), 0);
    const int n = c.trouble.n, step = BUTLER_MAX(n / share_of(24), 1);
    assert_true(n > 20);
    for (int at = 0; at < n; at += step) {
        assert_int_equal(butler_session_truncate(session, 0, &err), 0);
        c.trouble.n = 0;
        c.trouble.at = at;
        c.trouble.error = error;
        const int code = run(&c, session, expected, &err);
        if (code == 0 && c.trouble.n > at)
            fail_msg("request %d of %d failed, and nobody said so", at, n);
        if (code < 0 && (code != BUTLER_ERROR_IO || !strstr(err.message, strerror(error)) || !strstr(err.message, "/var/tmp")))
            fail_msg("request %d: %d, %s", at, code, err.message);
        if (code < 0 && butler_step(session, c.text[0], &err) == 0)
            fail_msg("request %d: the session goes on after it failed", at);
        c.trouble.at = -1;
        assert_int_equal(butler_session_truncate(session, 0, &err), 0); /* as if nothing had been */
        if (run(&c, session, expected, &err) < 0)
            fail_msg("after request %d had failed: %s", at, err.message);
    }
    free(expected);
    butler_session_free(session);
    butler_session_free(good);
    close_model(&c);
}

static void test_faults(void **state)
{
    (void)state;
    check_faults(false, EIO);
    check_faults(true, ENOSPC);
}

/* A request that never comes to anything ends. */
static void test_endless(void **state)
{
    struct context c;
    struct butler_error err = {0};
    (void)state;
    open_model(&c, &models[0], 1, true);
    struct butler_session *session = open_session(&c, c.spilled, "full");
    c.trouble.at = 0;
    c.trouble.error = EIO;
    assert_int_equal(butler_prefill(session, c.text, N_PROMPT, NULL, NULL, &err), BUTLER_ERROR_IO);
    assert_int_equal(butler_session_save(session, "/tmp/butler-test-spill", &err), BUTLER_ERROR_NUMERIC);
    butler_session_free(session);
    close_model(&c);
}

/* What cannot be: too little memory, no folder. */
static void test_refused(void **state)
{
    struct context c;
    struct butler_error err = {0};
    (void)state;
    open_model(&c, &models[0], 1, false);
    struct butler_engine *small = engine_of(&c, 8192, false);
    const struct butler_session_params params = {.n_ctx = N_CTX, .kv_type = c.type};
    assert_null(butler_session_new(small, &params, &err));
    assert_non_null(strstr(err.message, "kv-ram"));
    butler_engine_free(small);
    const struct butler_engine_params nowhere = {.struct_size = sizeof nowhere, .kv_ram = 1 << 20, .kv_folder = "/nonexistent"};
    struct butler_engine *engine = butler_engine_new(c.model, &nowhere, &err);
    assert_non_null(engine);
    assert_null(butler_session_new(engine, &params, &err));
    assert_non_null(strstr(err.message, "/nonexistent"));
    butler_engine_free(engine);
    close_model(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equality), cmocka_unit_test(test_earlier_layers), cmocka_unit_test(test_plugin),
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_endless),        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
