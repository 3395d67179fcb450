/* A trained model from end to end: a llama2.c checkpoint is converted, its tokenizer reads a prompt, and the greedy text
 * is PyTorch's token by token at F32, and stays so for a while at F16 and Q8_0. The checkpoint is not ours to carry: without
 * it the tests say so and are skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "file/convert.h"
#include "fixtures.h"
#include "file/quantize.h"

enum { MAX_IDS = 512 };

/* From tests/data/stories260k_greedy.txt. */
static char text[512];
static int32_t prompt[MAX_IDS], greedy[MAX_IDS];
static int n_prompt, n_greedy;
static char folder[] = "/tmp/butler-stories-XXXXXX", f32[64], f16[64], q8[64];
static bool present;

static int read_ids(char *at, int32_t *ids)
{
    int n = 0, used;
    long id;
    while (n < MAX_IDS && sscanf(at, "%ld%n", &id, &used) == 1) {
        ids[n++] = (int32_t)id;
        at += used;
    }
    return n;
}

static int setup(void **state)
{
    (void)state;
    char path[FIXTURE_PATH], line[4096], checkpoint[FIXTURE_PATH], vocabulary[FIXTURE_PATH];
    fixture_path(path, "stories260k_greedy.txt");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "text ", 5) == 0)
            snprintf(text, sizeof text, "%.500s", line + 5);
        else if (strncmp(line, "prompt ", 7) == 0)
            n_prompt = read_ids(line + 7, prompt);
        else if (strncmp(line, "greedy ", 7) == 0)
            n_greedy = read_ids(line + 7, greedy);
    }
    fclose(file);
    assert_true(text[0] && n_prompt > 0 && n_greedy >= 200);

    const char *data = getenv("BUTLER_DATA");
    snprintf(checkpoint, sizeof checkpoint, "%s/weights/stories260K.bin", data ? data : "../shared/data");
    snprintf(vocabulary, sizeof vocabulary, "%s/weights/tok512.bin", data ? data : "../shared/data");
    present = access(checkpoint, R_OK) == 0 && access(vocabulary, R_OK) == 0;
    if (!present) {
        print_message("no %s: set BUTLER_DATA to the data folder to run these\n", checkpoint);
        return 0;
    }
    struct butler_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(f32, sizeof f32, "%s/f32.gguf", folder);
    snprintf(f16, sizeof f16, "%s/f16.gguf", folder);
    snprintf(q8, sizeof q8, "%s/q8.gguf", folder);
    if (butler_convert_llama2c(checkpoint, vocabulary, f32, &err) < 0 ||
        butler_quantize_file(f32, f16, BUTLER_F16, NULL, NULL, &err) < 0 ||
        butler_quantize_file(f32, q8, BUTLER_Q8_0, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (present) {
        unlink(f32);
        unlink(f16);
        unlink(q8);
        rmdir(folder);
    }
    return 0;
}

/* NULL when this machine lacks the ISA, which ref never may. */
static struct butler_engine *open_engine(const char *path, const char *isa)
{
    struct butler_error err = {0};
    const struct butler_engine_params params = {.n_threads = 2, .isa = isa};
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, &params, &err) : NULL;
    if (!model || (!engine && (strcmp(isa, "ref") == 0 || err.code != BUTLER_ERROR_UNSUPPORTED)))
        fail_msg("%s: %s", isa, err.message);
    if (!engine)
        butler_model_free(model);
    return engine;
}

/* How many tokens of the expected text the model says before it says another. */
static int count_agreeing(struct butler_engine *engine)
{
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_error err = {0};
    struct butler_session_params params = {.kv_type = BUTLER_KV_F32};
    struct butler_sampler_params greedily = {.temperature = 0, .top_p = 1};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    struct butler_sampler *sampler = butler_sampler_new(&greedily, &err);
    if (!session || !sampler || butler_prefill(session, prompt, n_prompt, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    int n = 0;
    while (n < n_greedy &&
           butler_sample(sampler, butler_logits(session), butler_model_get_info(model)->n_vocab, &err) == greedy[n]) {
        if (butler_step(session, greedy[n++], &err) < 0)
            fail_msg("%s", err.message);
    }
    butler_sampler_free(sampler);
    butler_session_free(session);
    return n;
}

static void prompt_is_read_as_the_same_ids(void **state)
{
    (void)state;
    if (!present)
        skip();
    int32_t ids[MAX_IDS];
    struct butler_error err = {0};
    struct butler_engine *engine = open_engine(f32, "ref");
    int n = butler_tokenize(butler_engine_model(engine), text, strlen(text), BUTLER_ADD_SPECIAL, ids, MAX_IDS, &err);
    assert_int_equal(n, n_prompt);
    assert_memory_equal(ids, prompt, sizeof *ids * (size_t)n);
    free_engine(engine);
}

static void greedy_text_is_the_same(void **state)
{
    (void)state;
    if (!present)
        skip();
    static const char *const isas[] = {"ref", "avx2", "avx512", "amx", "neon"};
    for (int i = 0; i < 3; i++) {
        struct butler_engine *engine = open_engine(f32, isas[i]);
        if (!engine)
            continue;
        int n = count_agreeing(engine);
        if (n != n_greedy)
            fail_msg("%s: token %d of the text is not PyTorch's %d", isas[i], n, (int)greedy[n]);
        free_engine(engine);
    }
}

static void rounded_weights_tell_it_for_a_while(void **state)
{
    (void)state;
    if (!present)
        skip();
    struct butler_engine *half = open_engine(f16, "ref"), *eight = open_engine(q8, "ref");
    int n_half = count_agreeing(half), n_eight = count_agreeing(eight);
    print_message("of %d tokens agree at F16 %d, at Q8_0 %d\n", n_greedy, n_half, n_eight);
    assert_true(n_half >= 100 && n_eight >= 20);
    free_engine(half);
    free_engine(eight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_is_read_as_the_same_ids),
        cmocka_unit_test(greedy_text_is_the_same),
        cmocka_unit_test(rounded_weights_tell_it_for_a_while),
    };
    return cmocka_run_group_tests_name("stories", tests, setup, teardown);
}
