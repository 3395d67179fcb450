/* Ways to compute the same: threads, and what a backend does at once or operation by operation. Every policy, bit for bit. */
#include "invariants.h"

/* One thread and two, and another backend table of the same ISA, agree bit for bit; so do more threads than KV heads, which select
 * a layer at a time where fewer do it for several that a predictor serves. */
static void threads_law(const struct context *c, const struct context *other, const char *policy)
{
    char text[512];
    struct butler_session *a = open_session(c, with_budget(policy, BUDGET, text)), *b = open_session(other, text);
    prefill(a, c->text, c->n_prompt);
    prefill(b, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        assert_same_logits(a, b, text, i - 1);
        step(a, c->text[i]);
        step(b, c->text[i]);
    }
    butler_session_free(a);
    butler_session_free(b);
}

static void test_threads(void **state)
{
    enum { MANY = 6 };
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    (void)state;
    for (int m = 0; m < END_THREADED_MODELS; m++) {
        const struct context c = open_model(&models[m], 2), one = open_model(&models[m], 1), many = open_model(&models[m], MANY);
        for (int i = 0; butler_policy_describe(c.engine, i, &info); i++)
            if (in_share(m + 7 * i))
                threads_law(&c, &one, info.name);
        for (int i = 0; i < BUTLER_COUNT(unnamed); i++)
            if (in_share(m + 5 * i))
                threads_law(&c, &one, unnamed[i]);
        assert_true(butler_model_get_info(c.model)->n_kv_heads < MANY);
        threads_law(&c, &many, "tokenbutler");
        threads_law(&c, &many, "tokenbutler:page=16,keys=int8");
        threads_law(&c, &many, "tokenbutler2:on_top=0,sinks=0,recent=0");
        threads_law(&c, &many, "tokenbutler2:on_top=0,sinks=4,recent=8,every=2");
        free_engine(c.engine);
        free_engine(one.engine);
        free_engine(many.engine);
    }
}

/* What a backend does at once, and the engine's sequence of operations where it does not, agree bit for bit: in what is read, how
 * many bytes, and logits. */
static void fused_law(const struct context *c, const struct context *plain, const char *policy)
{
    char text[512];
    struct butler_session *a = open_session(c, with_budget(policy, BUDGET, text)), *b = open_session(plain, text);
    struct butler_stats of_a = {BUTLER_INIT(butler_stats)}, of_b = {BUTLER_INIT(butler_stats)};
    int32_t ids[2][N_TEXT];
    prefill(a, c->text, c->n_prompt);
    prefill(b, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        step(a, c->text[i]);
        step(b, c->text[i]);
        assert_same_logits(a, b, text, i);
        for (int layer = 0; i % 16 == 0 && layer < a->shape.n_layers; layer++)
            for (int head = 0; head < a->shape.n_heads; head++) {
                const int n = butler_last_selection(a, layer, head, ids[0], N_TEXT);
                assert_int_equal(n, butler_last_selection(b, layer, head, ids[1], N_TEXT));
                assert_memory_equal(ids[0], ids[1], (size_t)n * sizeof **ids);
            }
    }
    butler_session_stats(a, &of_a);
    butler_session_stats(b, &of_b);
    assert_true(of_a.kv_bytes == of_b.kv_bytes && of_a.metric_bytes == of_b.metric_bytes && of_a.units_reused == of_b.units_reused);
    butler_session_free(a);
    butler_session_free(b);
}

static void test_fused(void **state)
{
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    (void)state;
    for (int m = 0; m < END_THREADED_MODELS; m++) {
        const struct context c = open_model(&models[m], 2), plain = open_model(&models[m], 2);
        plain.engine->backend->retrieve_fused = NULL;
        plain.engine->backend->attend_spans = NULL;
        plain.engine->backend->evict_spans = NULL;
        for (int i = 0; butler_policy_describe(c.engine, i, &info); i++)
            if (in_share(m + 7 * i))
                fused_law(&c, &plain, info.name);
        for (int i = 0; i < BUTLER_COUNT(unnamed); i++)
            if (in_share(m + 5 * i))
                fused_law(&c, &plain, unnamed[i]);
        free_engine(c.engine);
        free_engine(plain.engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads), cmocka_unit_test(test_fused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
