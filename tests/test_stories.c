/* The whole way on real weights: the small trained model of ../shared/data converts, and its greedy text at F32 is, token
 * by token, the one that transformers gives; at F16 and Q8_0 it stays the same for a while. */
#include "convert.h"
#include "fixtures.h"
#include "quantize.h"
#include "tiny_model.h"

enum { MAX_IDS = 512 };

/* The ids after a word at the beginning of a line of the fixture. */
static int read_ids(const char *word, int32_t ids[MAX_IDS])
{
    char path[FIXTURE_PATH], line[8192];
    fixture_path(path, "stories260k_greedy.txt");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int n = 0;
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(word);
        if (strncmp(line, word, length) != 0 || line[length] != ' ')
            continue;
        char *at = line + length, *end;
        for (long id = strtol(at, &end, 10); end != at && n < MAX_IDS; id = strtol(at, &end, 10)) {
            ids[n++] = (int32_t)id;
            at = end;
        }
    }
    fclose(file);
    return n;
}

/* How many of the expected ids the model says before it says another. */
static int count_agreeing(const char *path, const int32_t *prompt, int n_prompt, const int32_t *text, int n_text)
{
    struct butler_error err = {0};
    struct butler_model *model = butler_model_load(path, &(struct butler_model_params){.n_threads = 2}, &err);
    if (!model)
        fail_msg("%s", err.message);
    struct butler_session *session =
        butler_session_new(model, &(struct butler_session_params){.n_ctx = n_prompt + n_text, .kv_type = BUTLER_KV_F32}, &err);
    struct butler_sampler *sampler = butler_sampler_new(&(struct butler_sampler_params){.top_p = 1}, &err);
    if (!session || !sampler || butler_prefill(session, prompt, n_prompt, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    int n = 0;
    while (n < n_text) {
        if (butler_sample(sampler, butler_logits(session), butler_model_get_info(model)->n_vocab, &err) != text[n])
            break;
        if (++n < n_text && butler_step(session, text[n - 1], &err) < 0)
            fail_msg("%s", err.message);
    }
    butler_sampler_free(sampler);
    butler_session_free(session);
    butler_model_free(model);
    return n;
}

static void test_greedy_text(void **state)
{
    (void)state;
    const char *folder = getenv("BUTLER_DATA");
    char in[512], tokens[512];
    snprintf(in, sizeof in, "%s/weights/stories260K.bin", folder ? folder : "../shared/data");
    snprintf(tokens, sizeof tokens, "%s/weights/tok512.bin", folder ? folder : "../shared/data");
    if (access(in, R_OK) != 0 || access(tokens, R_OK) != 0) {
        print_message("skipped: %s is not here\n", in);
        skip();
    }
    int32_t prompt[MAX_IDS], text[MAX_IDS];
    int n_prompt = read_ids("prompt", prompt), n_text = read_ids("greedy", text);
    assert_true(n_prompt > 10 && n_text > 200);
    struct butler_error err = {0};
    const char *f32 = tiny_path("f32.gguf"), *f16 = tiny_path("f16.gguf"), *q8 = tiny_path("q8.gguf");
    if (butler_convert_llama2c(in, tokens, f32, &err) < 0 || butler_quantize_file(f32, f16, BUTLER_F16, NULL, NULL, &err) < 0 ||
        butler_quantize_file(f32, q8, BUTLER_Q8_0, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    assert_int_equal(count_agreeing(f32, prompt, n_prompt, text, n_text), n_text);
    int n_f16 = count_agreeing(f16, prompt, n_prompt, text, n_text), n_q8 = count_agreeing(q8, prompt, n_prompt, text, n_text);
    print_message("of %d tokens agree at F16 %d, at Q8_0 %d\n", n_text, n_f16, n_q8);
    assert_true(n_f16 >= 100 && n_q8 >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy_text)};
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
