/* Selection and attention at the lengths that devices are for, against the CPU. Part of gpu_tests.h. */
#ifndef GPU_LONG_TESTS_H
#define GPU_LONG_TESTS_H

enum { LONG = GPU_FEW ? 1100 : 32768, LONG_BUDGET = LONG / 8, LONG_STEPS = 3 };

/* How many of the ids a[n] are not among b[n]; both ascend. */
static int n_others(const int32_t *a, const int32_t *b, int n)
{
    int others = 0;
    for (int i = 0, j = 0; i < n; i++) {
        while (j < n && b[j] < a[i])
            j++;
        others += j == n || b[j] != a[i];
    }
    return others;
}

/* Steps behind LONG random tokens give the reference's logits and lists, whose one-bit scores a device has too, and AVX2 rounds
 * further (one_bit_step). Attention to so many tokens is a small part of a logit. Of
 * scores that are equal but for their last bits either may be the last that is chosen. */
static void long_same(const char *path, const char *policy, enum butler_kv_type type)
{
    static int32_t ids[N_BACKENDS][LONG + LONG_STEPS];
    struct butler_error err = {0};
    struct butler_engine *engines[N_BACKENDS];
    struct butler_session *sessions[N_BACKENDS];
    int n[N_BACKENDS];
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = LONG + LONG_STEPS, .kv_type = type,
                                                 .policy = policy};
    for (int b = 0; b < N_BACKENDS; b++) {
        engines[b] = engine_with(path, b == GPU ? GPU_DEVICE ":0" : "cpu", b == CPU ? "ref" : NULL, 256, &err);
        sessions[b] = engines[b] ? butler_session_new(engines[b], &params, &err) : NULL;
        if (!sessions[b] || butler_fill(sessions[b], LONG, 5, &err) < 0)
            fail_msg("%s: %s", policy, err.message);
    }
    for (int step = 0; step < LONG_STEPS; step++) {
        for (int b = 0; b < N_BACKENDS; b++)
            if (butler_step(sessions[b], 3 + step, &err) < 0)
                fail_msg("%s: %s", policy, err.message);
        compare_logits(sessions[CPU], sessions[GPU], n_vocab_of(engines[CPU]), 2e-5, policy);
    }
    for (int b = 0; b < N_BACKENDS; b++)
        n[b] = butler_last_selection(sessions[b], 0, 0, ids[b], N(ids[b]));
    assert_int_equal(n[GPU], n[CPU]);
    assert_in_range(n[GPU], LONG_BUDGET - 16, LONG + LONG_STEPS);
    if (n_others(ids[GPU], ids[CPU], n[GPU]) > 2)
        fail_msg("%s: %d of %d tokens are not the CPU's", policy, n_others(ids[GPU], ids[CPU], n[GPU]), n[GPU]);
    for (int b = 0; b < N_BACKENDS; b++) {
        butler_session_free(sessions[b]);
        free_engine(engines[b]);
    }
}

static void test_long(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
    } cases[] = {{"full", BUTLER_KV_F16},
                 {"quest:budget=%d,dense=0", BUTLER_KV_F16},
                 {"tinyserve:budget=%d", BUTLER_KV_F16},
                 {"fier:budget=%d,dense=0", BUTLER_KV_F16},
                 {"oracle:budget=%d,dense=0", BUTLER_KV_F16},
                 {"quest:budget=%d,dense=0", BUTLER_KV_Q8_0}};
    struct both *both = begin(state);
    struct tiny tiny = tiny_default;
    tiny.n_layers = tiny.n_kv_heads = 1; /* whose pages fit into what engines have here */
    tiny.head_dim = 64;
    tiny.n_ctx = LONG + LONG_STEPS;
    tiny_write(tiny_path("long.gguf"), &tiny);
    for (int c = 0; c < N(cases); c += GPU_FEW ? 3 : 1) {
        char policy[64];
        snprintf(policy, sizeof policy, cases[c].policy, LONG_BUDGET);
        long_same(tiny_path("long.gguf"), policy, cases[c].type);
    }
    for (int ties = 0; ties < 2; ties++) { /* from the same scores the same list */
        select_same(both, LONG, 1, (struct butler_choice){.n_units = LONG, .budget = LONG_BUDGET, .first = 4, .last = 1}, ties);
        select_same(both, LONG / 16, 16,
                    (struct butler_choice){.n_units = LONG / 16, .budget = LONG_BUDGET / 16, .first = 1, .last = 1}, ties);
    }
}

#endif
