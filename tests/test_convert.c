/* llama2.c checkpoints: each weight is written to its tensor, the vocabulary is spelled as in GGUF, and damaged files are
 * refused. */
#include "file/convert.h"
#include "tiny_model.h"

static void put(FILE *file, const void *bytes, size_t n)
{
    assert_int_equal(fwrite(bytes, 1, n, file), n);
}

/* dim 8, hidden 12, 2 layers, 2 heads, 1 KV head, 262 tokens, 16 positions; the weights are 1, 2, 3, ... */
enum { DIM = 8, HIDDEN = 12, LAYERS = 2, HEADS = 2, KV_HEADS = 1, VOCAB = 262, CTX = 16, KV = DIM / HEADS * KV_HEADS };

static void write_checkpoint(const char *path, bool own_output)
{
    FILE *file = fopen(path, "wb");
    int32_t header[] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, own_output ? -VOCAB : VOCAB, CTX};
    int n = VOCAB * DIM + LAYERS * (2 * DIM + 2 * DIM * DIM + 2 * KV * DIM + 3 * HIDDEN * DIM) + DIM + CTX * DIM / HEADS +
            (own_output ? VOCAB * DIM : 0);
    put(file, header, sizeof header);
    for (int i = 0; i < n; i++)
        put(file, &(float){(float)(i + 1)}, 4);
    fclose(file);
}

static void write_tokens(const char *path, int n)
{
    static const char *const words[] = {" a", "b c ", "é"};
    FILE *file = fopen(path, "wb");
    put(file, &(int32_t){7}, 4);
    for (int i = 0; i < n; i++) {
        char text[32];
        if (i < 3)
            snprintf(text, sizeof text, "%s", i == 0 ? "<unk>" : i == 1 ? "\n<s>\n" : "\n</s>\n");
        else if (i < 259)
            snprintf(text, sizeof text, "<0x%02X>", i - 3);
        else
            snprintf(text, sizeof text, "%s", words[(i - 259) % 3]);
        put(file, &(float){(float)-i}, 4);
        put(file, &(int32_t){(int32_t)strlen(text)}, 4);
        put(file, text, strlen(text));
    }
    fclose(file);
}

/* The tensor's first and last element. */
static void check_ends(const struct butler_gguf *g, const char *name, float first, float last)
{
    const struct butler_tensor *t = butler_gguf_find(g, name);
    assert_non_null(t);
    assert_int_equal(t->type, BUTLER_F32);
    const float *data = t->data;
    assert_true(data[0] == first);
    assert_true(data[t->n_rows * t->n_cols - 1] == last);
}

static void check_synthetic(bool own_output)
{
    struct butler_error err = {0};
    char in[160], tokens[160];
    snprintf(in, sizeof in, "%s", tiny_path("my.model.bin"));
    snprintf(tokens, sizeof tokens, "%s", tiny_path("tok.bin"));
    write_checkpoint(in, own_output);
    write_tokens(tokens, VOCAB);
    if (butler_convert_llama2c(in, tokens, tiny_path("out.gguf"), &err) < 0)
        fail_msg("%s", err.message);
    struct butler_model model = {.path = strdup(tiny_path("out.gguf"))};
    model.gguf = butler_gguf_open(model.path, &err);
    assert_non_null(model.gguf);
    if (butler_model_bind(&model, &err) < 0)
        fail_msg("%s", err.message);
    assert_string_equal(model.info.name, "my.model");
    assert_int_equal(model.hp.n_embd, DIM);
    assert_int_equal(model.hp.n_ff, HIDDEN);
    assert_int_equal(model.hp.n_layers, LAYERS);
    assert_int_equal(model.hp.n_heads, HEADS);
    assert_int_equal(model.hp.n_kv_heads, KV_HEADS);
    assert_int_equal(model.hp.n_vocab, VOCAB);
    assert_int_equal(model.hp.n_ctx_train, CTX);
    assert_int_equal(model.hp.rope, BUTLER_ROPE_ADJACENT);
    assert_true(model.hp.norm_eps == 1e-5f && model.hp.rope_theta == 10000);
    assert_int_equal(model.output.data == model.tok_embd.data, !own_output);

    float at = 1;
    const struct butler_gguf *g = model.gguf;
    static const struct {
        const char *name;
        int n;
    } order[] = {{"attn_norm", DIM},         {"attn_q", DIM * DIM},      {"attn_k", KV * DIM},
                 {"attn_v", KV * DIM},       {"attn_output", DIM * DIM}, {"ffn_norm", DIM},
                 {"ffn_gate", HIDDEN * DIM}, {"ffn_down", HIDDEN * DIM}, {"ffn_up", HIDDEN * DIM}};
    check_ends(g, "token_embd.weight", at, VOCAB * DIM);
    at += VOCAB * DIM;
    for (int i = 0; i < BUTLER_COUNT(order); i++)
        for (int l = 0; l < LAYERS; l++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, order[i].name);
            check_ends(g, name, at, at + (float)order[i].n - 1);
            at += (float)order[i].n;
        }
    check_ends(g, "output_norm.weight", at, at + DIM - 1);
    at += DIM + CTX * DIM / HEADS;
    if (own_output)
        check_ends(g, "output.weight", at, at + VOCAB * DIM - 1);

    const struct butler_gguf_value *texts = butler_gguf_value(g, "tokenizer.ggml.tokens");
    const struct butler_gguf_value *types = butler_gguf_value(g, "tokenizer.ggml.token_type");
    const struct butler_gguf_value *scores = butler_gguf_value(g, "tokenizer.ggml.scores");
    static const struct {
        int id;
        const char *text;
        int type;
    } known[] = {{0, "<unk>", 2},
                 {1, "<s>", 3},
                 {2, "</s>", 3},
                 {3, "<0x00>", 6},
                 {258, "<0xFF>", 6},
                 {259, "\u2581a", 1},
                 {260, "b\u2581c\u2581", 1},
                 {261, "é", 1}};
    assert_int_equal(texts->n, VOCAB);
    for (int i = 0; i < BUTLER_COUNT(known); i++) {
        size_t n;
        const char *text = butler_gguf_array_string(texts, (uint64_t)known[i].id, &n);
        assert_int_equal(n, strlen(known[i].text));
        assert_memory_equal(text, known[i].text, n);
        assert_int_equal(butler_gguf_array_int(types, (uint64_t)known[i].id), known[i].type);
        assert_true(butler_gguf_array_float(scores, (uint64_t)known[i].id) == (float)-known[i].id);
    }
    butler_model_unbind(&model);
    butler_gguf_free(model.gguf);
    free(model.path);
}

static void test_synthetic(void **state)
{
    (void)state;
    check_synthetic(false);
    check_synthetic(true);
}

static void test_without_tokenizer(void **state)
{
    (void)state;
    struct butler_error err = {0};
    write_checkpoint(tiny_path("in.bin"), false);
    char in[160];
    snprintf(in, sizeof in, "%s", tiny_path("in.bin"));
    assert_int_equal(butler_convert_llama2c(in, NULL, tiny_path("bare.gguf"), &err), 0);
    struct butler_gguf *g = butler_gguf_open(tiny_path("bare.gguf"), &err);
    assert_non_null(g);
    assert_null(butler_gguf_value(g, "tokenizer.ggml.tokens"));
    butler_gguf_free(g);
}

static void expect_refused(const char *in, const char *tokens, int code, const char *part)
{
    struct butler_error err = {0};
    char out[160];
    snprintf(out, sizeof out, "%s", tiny_path("refused.gguf"));
    int rc = butler_convert_llama2c(in, tokens, out, &err);
    if (rc != code || !strstr(err.message, part))
        fail_msg("%d: '%s', expected %d: '%s'", rc, err.message, code, part);
    assert_int_not_equal(access(out, F_OK), 0);
}

static void patch(const char *path, long at, int32_t value)
{
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    put(file, &value, 4);
    fclose(file);
}

static void test_damaged_checkpoint(void **state)
{
    (void)state;
    static const struct {
        int field;
        int32_t value;
        const char *part;
    } cases[] = {{0, 0, "offset 0: dim is 0"},
                 {0, -1, "offset 0: dim is -1"},
                 {0, INT32_MAX, "dim is 2147483647"},
                 {1, 0, "hidden_dim is 0"},
                 {2, 1 << 30, "n_layers is"},
                 {2, 3, "a checkpoint with this header"},
                 {3, 0, "n_heads is 0"},
                 {3, 3, "do not go together"},
                 {4, 3, "n_kv_heads is 3"},
                 {5, INT32_MIN, "vocab_size is"},
                 {5, 0, "vocab_size is 0"},
                 {5, 263, "a checkpoint with this header"},
                 {5, -VOCAB, "a checkpoint with this header"},
                 {6, 0, "seq_len is 0"},
                 {6, 1 << 20, "a checkpoint with this header"},
                 {0, 0x616b3432, "format version 12"}};
    char in[160];
    snprintf(in, sizeof in, "%s", tiny_path("damaged.bin"));
    for (int i = 0; i < BUTLER_COUNT(cases); i++) {
        write_checkpoint(in, false);
        patch(in, 4 * cases[i].field, cases[i].value);
        expect_refused(in, NULL, cases[i].value == 0x616b3432 ? BUTLER_ERROR_UNSUPPORTED : BUTLER_ERROR_FORMAT, cases[i].part);
    }
    write_checkpoint(in, false);
    struct tiny_bytes whole = tiny_read(in);
    for (size_t n = 0; n < whole.size; n += n < 64 ? 1 : 997) {
        assert_int_equal(truncate(in, 0), 0);
        FILE *file = fopen(in, "wb");
        put(file, whole.data, n);
        fclose(file);
        expect_refused(in, NULL, BUTLER_ERROR_FORMAT, "damaged.bin");
    }
    free(whole.data);
    expect_refused(tiny_path("absent.bin"), NULL, BUTLER_ERROR_IO, "absent.bin");
}

static void test_damaged_tokenizer(void **state)
{
    (void)state;
    char in[160], tokens[160];
    snprintf(in, sizeof in, "%s", tiny_path("good.bin"));
    snprintf(tokens, sizeof tokens, "%s", tiny_path("bad_tok.bin"));
    write_checkpoint(in, false);
    write_tokens(tokens, VOCAB - 1);
    expect_refused(in, tokens, BUTLER_ERROR_FORMAT, "the file ends before token 261");
    write_tokens(tokens, VOCAB + 1);
    expect_refused(in, tokens, BUTLER_ERROR_FORMAT, "more tokens than the model's 262");
    static const int32_t lengths[] = {0, -1, INT32_MIN, 1 << 30};
    for (int i = 0; i < BUTLER_COUNT(lengths); i++) {
        write_tokens(tokens, VOCAB);
        patch(tokens, 8, lengths[i]);
        expect_refused(in, tokens, BUTLER_ERROR_FORMAT, "offset 8: token 0 of");
    }
    write_tokens(tokens, VOCAB);
    patch(tokens, 4, 0x7fc00000); /* NaN */
    expect_refused(in, tokens, BUTLER_ERROR_FORMAT, "score of token 0");
    write_tokens(tokens, 3);
    expect_refused(in, tokens, BUTLER_ERROR_FORMAT, "cannot hold the model's 262 tokens");
    expect_refused(in, tiny_path("absent.bin"), BUTLER_ERROR_IO, "absent.bin");
}

/* The real checkpoint, if this machine has it. */
static void test_stories(void **state)
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
    struct butler_error err = {0};
    if (butler_convert_llama2c(in, tokens, tiny_path("stories.gguf"), &err) < 0)
        fail_msg("%s", err.message);
    struct butler_model model = {.path = strdup(tiny_path("stories.gguf"))};
    model.gguf = butler_gguf_open(model.path, &err);
    assert_non_null(model.gguf);
    if (butler_model_bind(&model, &err) < 0)
        fail_msg("%s", err.message);
    assert_string_equal(model.info.name, "stories260K");
    assert_int_equal(model.hp.n_layers, 5);
    assert_int_equal(model.hp.n_kv_heads, 4);
    assert_int_equal(model.hp.n_ff, 172);
    assert_true(model.info.n_params == 512 * 64 + 5 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 172 * 64) + 64);
    struct tiny_bytes raw = tiny_read(in);
    assert_memory_equal(model.tok_embd.data, raw.data + 28, 512 * 64 * 4);
    /* The third layer's ffn_down: the number of floats before it, computed by hand. */
    size_t at = 512 * 64 + 5 * 64 + 5 * (64 * 64 + 32 * 64 + 32 * 64 + 64 * 64) + 5 * 64 + 5 * 172 * 64 + 2 * 172 * 64;
    assert_memory_equal(model.layers[2].w_down.data, raw.data + 28 + 4 * at, 172 * 64 * 4);
    free(raw.data);
    size_t n;
    const struct butler_gguf_value *texts = butler_gguf_value(model.gguf, "tokenizer.ggml.tokens");
    assert_memory_equal(butler_gguf_array_string(texts, 265, &n), "\u2581the", 6);
    assert_int_equal(n, 6);
    butler_model_unbind(&model);
    butler_gguf_free(model.gguf);
    free(model.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_without_tokenizer),
        cmocka_unit_test(test_damaged_checkpoint),
        cmocka_unit_test(test_damaged_tokenizer),
        cmocka_unit_test(test_stories),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
