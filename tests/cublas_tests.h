/* Tests of src/gpu/prompt_gpu.c, part of test_cuda.c: prompts by cuBLAS, whose stand-in rounds as TF32 does and sums in an order
 * that depends on a product's shape. */
#ifndef CUBLAS_TESTS_H
#define CUBLAS_TESTS_H

enum { PROMPT = 16 };

/* Of every token of a prompt. */
struct prompt_logits {
    int n_vocab;
    float of[PROMPT][MOST_VOCAB];
};

static bool keep_prompt_logits(void *user, int position, const float *logits)
{
    struct prompt_logits *kept = user;
    memcpy(kept->of[position], logits, (size_t)kept->n_vocab * sizeof *logits);
    return true;
}

/* An engine on which a session, given back too, has read a prompt. */
static struct butler_engine *prompt_on(const char *path, const char *device, int n_block, struct butler_session **session,
                                       struct prompt_logits *kept)
{
    struct butler_error err = {0};
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i * 37 % 40;
    struct butler_engine *engine = engine_of(path, device, n_block, &err);
    if (!engine)
        fail_msg("%s", err.message);
    *session = session_on(engine, "tinyserve:budget=12,page=4", BUTLER_KV_F16);
    kept->n_vocab = n_vocab_of(engine);
    assert_in_range(kept->n_vocab, 1, MOST_VOCAB);
    if (butler_prefill(*session, ids, PROMPT, keep_prompt_logits, kept, &err) < 0)
        fail_msg("%s", err.message);
    return engine;
}

/* A decode step of one session in the pass of another's prompt has the bits that it has alone, and so has the prompt. */
static void step_beside_prompt(struct butler_engine *engine, struct butler_session *a, struct butler_session *expected)
{
    struct butler_error errs[2] = {{0}};
    struct butler_session *b = session_on(engine, "full", BUTLER_KV_F16), *alone = session_on(engine, "full", BUTLER_KV_F16);
    const int32_t ids[] = {5, 3, 8, 1, 9, 2};
    const struct butler_span spans[] = {{BUTLER_INIT(butler_span), .session = b, .ids = ids, .n = N(ids), .prompt_end = N(ids)},
                                        {BUTLER_INIT(butler_span), .session = a, .ids = ids, .n = 1, .prompt_end = PROMPT}};
    cublas->n_products = 0;
    assert_int_equal(butler_step(expected, ids[0], errs), 0);
    assert_int_equal(cublas->n_products, 0);
    assert_int_equal(butler_prefill(alone, ids, N(ids), NULL, NULL, errs), 0);
    assert_int_equal(butler_run(engine, spans, N(spans), errs), 0);
    compare_logits(a, expected, n_vocab_of(engine), 0, "a step beside a prompt");
    compare_logits(b, alone, n_vocab_of(engine), 0, "a prompt beside a step");
    butler_session_free(alone), butler_session_free(b);
}

/* A model whose gate is wider than the memory that attention leaves to it. */
static void write_wide(char path[FIXTURE_PATH])
{
    struct tiny tiny = tiny_default;
    tiny.n_heads = 2;
    tiny.n_ff = 608;
    tiny.matrix_type = BUTLER_Q8_0;
    snprintf(path, FIXTURE_PATH, "%s", tiny_path("wide.gguf"));
    tiny_write(path, &tiny);
}

/* A prompt's rows go to cuBLAS, a step's do not; the logits are the CPU's within what TF32 leaves, and the same in passes of 9
 * tokens, of all, and beside a step. */
static void test_prompts(void **state)
{
    static const struct {
        const char *model; /* NULL: one with a wide gate, which passes of fewer tokens need not compute in parts */
        double tolerance;  /* 0: last bits choose other experts where the router is random, and the CPU's logits are others */
    } cases[] = {{NULL, 2e-3}, {"models/qwen2-mixed.gguf", 2e-3}, {"models/gpt-oss.gguf", 0}};
    (void)state;
    begin_faults();
    butler_cublas_hide(false);
    for (int c = 0; c < N(cases); c++) {
        static struct prompt_logits logits[3];
        struct butler_session *on_cpu, *few, *all;
        memset(logits, 0, sizeof logits);
        char path[FIXTURE_PATH];
        if (cases[c].model)
            fixture_path(path, cases[c].model);
        else
            write_wide(path);
        cublas->n_products = 0;
        struct butler_engine *engines[] = {prompt_on(path, "cpu", 0, &on_cpu, &logits[0]),
                                           prompt_on(path, "cuda:0", 9, &few, &logits[1]),
                                           prompt_on(path, "cuda:0", 64, &all, &logits[2])};
        assert_true(cublas->n_products > 0);
        if (cases[c].tolerance > 0)
            compare_logits(on_cpu, all, n_vocab_of(engines[0]), cases[c].tolerance, path);
        assert_memory_equal(&logits[1], &logits[2], sizeof logits[1]);
        step_beside_prompt(engines[2], all, few);
        butler_session_free(on_cpu), butler_session_free(few), butler_session_free(all);
        for (int i = 0; i < N(engines); i++)
            free_engine(engines[i]);
    }
    begin_faults();
}

/* A prompt of an engine whose call `name` fails, or that starts so; the error. */
static struct butler_error prompt_that_fails(const char *name, int code)
{
    struct butler_error err = {0};
    const int32_t ids[] = {1, 2, 3};
    begin_faults();
    butler_cublas_hide(false);
    cublas->calls = (struct fake_calls){.only = name, .fail_at = 0, .fail_code = code};
    struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
    if (engine) {
        struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
        assert_true(butler_prefill(session, ids, N(ids), NULL, NULL, &err) < 0);
        butler_session_free(session);
        free_engine(engine);
    }
    begin_faults();
    return err;
}

static void test_prompts_fail(void **state)
{
    static const struct {
        const char *name;
        int status;
        const char *message;
    } calls[] = {{"GemmEx", 13, "device cuda:0 (fake): product: failed, or the device was lost (cuBLAS error 13)"},
                 {"GemmEx", 3, "device cuda:0 (fake): product: out of memory (cuBLAS error 3)"},
                 {"Create", 3, "device cuda:0 (fake) does not start: out of memory (cuBLAS error 3)"},
                 {"SetStream", 3, "device cuda:0 (fake) does not start: out of memory (cuBLAS error 3)"}};
    (void)state;
    for (int c = 0; c < N(calls); c++) {
        const struct butler_error err = prompt_that_fails(calls[c].name, calls[c].status);
        assert_string_equal(err.message, calls[c].message);
        assert_int_equal(err.code, calls[c].status == 3 ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_IO);
    }
}

/* A library that does not start, for the driver is too old for it or for what else: the device's own kernels do it, and a note says
 * so. */
static void test_cublas_does_not_start(void **state)
{
    static const char *const names[] = {"Create", "SetStream"};
    (void)state;
    for (int i = 0; i < N(names); i++) {
        struct butler_error err = {0};
        begin_faults();
        butler_cublas_hide(false);
        cublas->calls = (struct fake_calls){.only = names[i], .fail_at = 0, .fail_code = 1};
        cublas->n_products = 0;
        struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
        assert_non_null(engine);
        assert_int_equal(err.code, 0);
        assert_string_equal(
            err.message, "device cuda:0 (fake) reads prompts slowly, by its own kernels: cuBLAS does not start (cuBLAS error 1)");
        assert_int_equal(cublas->n_handles, 0);
        struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
        read_prompt(session, 3);
        assert_int_equal(cublas->n_products, 0);
        butler_session_free(session);
        free_engine(engine);
    }
    begin_faults();
}

/* Without the library the device's own kernels do it, and who lists devices is told. */
static void test_no_cublas(void **state)
{
    struct butler_device_info device = {BUTLER_INIT(butler_device_info)};
    static struct prompt_logits logits;
    struct butler_session *session;
    char path[FIXTURE_PATH];
    (void)state;
    begin_faults();
    cublas->n_products = 0;
    fixture_path(path, usual_model);
    struct butler_engine *engine = prompt_on(path, "cuda:0", 0, &session, &logits);
    assert_int_equal(cublas->n_products, 0);
    assert_true(butler_gpu_launches(engine->backend, "matmul_8") > 0);
    butler_session_free(session);
    free_engine(engine);
    assert_true(butler_device_describe(0, &device));
    assert_string_equal(device.driver, "CUDA 12.4, no cuBLAS");
    butler_cublas_hide(false);
    assert_true(butler_device_describe(0, &device));
    assert_string_equal(device.driver, "CUDA 12.4, cuBLAS");
    begin_faults();
}

#endif
