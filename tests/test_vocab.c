/* Vocabularies as files bring them: wrong ones, odd ones, and real ones with the ids llama.cpp finds, where they are. */
#include "tokenizer_test.h"

#include <unistd.h>

/* ------------------------------------------------------------------------------------------- wrong files */

/* Opening fails with this code, and the message has every word of `words` (separated by '|'). Frees the vocabulary. */
static void refused(struct tiny_vocab *vocab, int code, const char *words)
{
    struct butler_error err = {0};
    char list[256];
    tiny_vocab_open(vocab, &err);
    if (!vocab->gguf || vocab->tokenizer || err.code != code)
        fail_msg("not refused as %d (%s): %d %s", code, words, err.code, err.message);
    snprintf(list, sizeof list, "tiny.gguf|%s", words);
    for (char *word = strtok(list, "|"); word; word = strtok(NULL, "|"))
        if (!strstr(err.message, word))
            fail_msg("the message lacks \"%s\": %s", word, err.message);
    tiny_vocab_free(vocab);
}

/* Opening works, with a warning that has this word. Frees the vocabulary. */
static void warned(struct tiny_vocab *vocab, const char *word)
{
    if (!vocab->gguf)
        opened(vocab);
    if (!strstr(butler_gguf_warnings(vocab->gguf), word))
        fail_msg("the warnings lack \"%s\": %s", word, butler_gguf_warnings(vocab->gguf));
    tiny_vocab_free(vocab);
}

static void test_wrong_arrays(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool spm, bpe;
        bool needed;
    } arrays[] = {{"tokenizer.ggml.tokens", true, true, true},
                  {"tokenizer.ggml.token_type", true, true, false},
                  {"tokenizer.ggml.scores", true, false, false},
                  {"tokenizer.ggml.merges", false, true, true}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        for (int spm = 0; spm < 2; spm++) {
            if (!(spm ? arrays[i].spm : arrays[i].bpe))
                continue;
            struct tiny_vocab *vocab;
            if (arrays[i].needed) {
                vocab = spm ? tiny_spm() : tiny_bpe("gpt-2");
                vocab->leave_out = arrays[i].key;
                refused(vocab, BUTLER_ERROR_FORMAT, arrays[i].key);
            }
            vocab = spm ? tiny_spm() : tiny_bpe("gpt-2");
            vocab->wrong_type = arrays[i].key;
            refused(vocab, BUTLER_ERROR_FORMAT, arrays[i].key);
            if (strstr(arrays[i].key, "merges"))
                continue;
            vocab = spm ? tiny_spm() : tiny_bpe("gpt-2");
            vocab->one_short = arrays[i].key;
            refused(vocab, BUTLER_ERROR_FORMAT, "elements|tokenizer.ggml.");
        }
    struct tiny_vocab *empty = tiny_vocab_new("gpt2", "gpt-2");
    refused(empty, BUTLER_ERROR_FORMAT, "tokenizer.ggml.tokens|0");
}

static void test_wrong_tokens(void **state)
{
    (void)state;
    struct tiny_vocab *vocab;
    for (int type = -1; type <= 7; type += 8) {
        vocab = tiny_bpe("gpt-2");
        vocab->tokens[5].type = type;
        warned(vocab, "token_type[5]");
    }
    static const char *const no_bytes[] = {"<0x1>", "<0x1G>", "<0x0a>", "0x0A  ", ""};
    for (size_t i = 0; i < sizeof no_bytes / sizeof *no_bytes; i++) {
        vocab = tiny_spm();
        int id = tiny_token(vocab, no_bytes[i], 0, TINY_BYTE);
        char words[64];
        snprintf(words, sizeof words, "tokens[%d]|byte", id);
        refused(vocab, BUTLER_ERROR_FORMAT, words);
    }
    vocab = tiny_spm();
    vocab->tokens[260].score = strtof("nan", NULL);
    refused(vocab, BUTLER_ERROR_FORMAT, "scores[260]");

    char *huge = malloc(2000);
    memset(huge, 'a', 2000);
    vocab = tiny_spm();
    tiny_token_n(vocab, huge, 1025, 0, TINY_NORMAL);
    refused(vocab, BUTLER_ERROR_FORMAT, "1025 bytes");
    vocab = tiny_spm();
    tiny_token_n(vocab, huge, 1024, 0, TINY_CONTROL);
    int id = tiny_token_n(vocab, huge, 1023, -1, TINY_NORMAL), lone = tiny_token_n(vocab, "", 0, 0, TINY_CONTROL);
    int32_t ids[4];
    opened(vocab);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, huge, 2000, BUTLER_PARSE_SPECIAL, ids, 4, NULL) > 2, 1);
    assert_int_equal(ids[0], id - 1);
    assert_true(lone > id);
    tiny_vocab_free(vocab);
    free(huge);
}

static void test_wrong_merges(void **state)
{
    (void)state;
    static const char *const no_merges[] = {"", "a", " a", "ab", "a "};
    for (size_t i = 0; i < sizeof no_merges / sizeof *no_merges; i++) {
        struct tiny_vocab *vocab = tiny_bpe("gpt-2");
        tiny_merge(vocab, no_merges[i]);
        refused(vocab, BUTLER_ERROR_FORMAT, "merges[13]");
    }
    /* Merges of what no text has, or of strings that nothing makes, are of no effect. */
    struct tiny_vocab *vocab = tiny_bpe("gpt-2");
    tiny_merge(vocab, "\u20ac a");
    tiny_merge(vocab, "a \u20ac");
    tiny_merge(vocab, "xyz xyz");
    tiny_merge(vocab, "h e"); /* a second time, with another rank */
    expect(opened(vocab), "xyzxyz hello", 0, "x y z x y z \u0120hello");
    round_trip(vocab->tokenizer, "a\u20aca", 5);
    tiny_vocab_free(vocab);
}

static void test_wrong_keys(void **state)
{
    (void)state;
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                      "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        for (int spm = 0; spm < 2; spm++)
            for (int k = 0; k < 3; k++) {
                struct tiny_vocab *vocab = spm ? tiny_spm() : tiny_bpe("gpt-2");
                const int64_t values[] = {vocab->n_tokens, 0xFFFFFFFE, -2};
                tiny_number(vocab, ids[i], k == 2 ? BUTLER_GGUF_I64 : BUTLER_GGUF_U32, k == 2 ? 8 : 4, values[k]);
                warned(vocab, ids[i]); /* only a text that asks for the token would need it */
            }
    struct tiny_vocab *vocab = tiny_spm();
    tiny_number(vocab, "tokenizer.ggml.add_bos_token", BUTLER_GGUF_U8, 1, 2);
    refused(vocab, BUTLER_ERROR_FORMAT, "add_bos_token");
    refused(tiny_vocab_new(NULL, NULL), BUTLER_ERROR_FORMAT, "tokenizer.ggml.model");
    refused(tiny_vocab_new("bert", NULL), BUTLER_ERROR_UNSUPPORTED, "bert|llama|gpt2");
    /* An unknown pre-tokenizer stops only text: ids still have their bytes. */
    struct butler_error err = {0};
    size_t n;
    vocab = opened(tiny_bpe("tekken2"));
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "a", 1, 0, NULL, 0, &err), BUTLER_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "tekken2"));
    assert_non_null(strstr(err.message, "superbpe"));
    assert_memory_equal(butler_tokenizer_bytes(vocab->tokenizer, token_id(vocab, "a"), &n), "a", 1);
    struct butler_tokenizer *other = butler_tokenizer_new(vocab->gguf, "tekken", &err);
    assert_int_equal(butler_tokenizer_encode(other, "a", 1, 0, NULL, 0, &err), 1);
    butler_tokenizer_free(other);
    assert_null(butler_tokenizer_new(vocab->gguf, "tekken3", &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    warned(vocab, "tekken2");
    for (int i = 0; i < 2; i++) {
        vocab = tiny_bpe(i ? "" : NULL); /* said nothing: the default */
        expect(opened(vocab), "1231", 0, "123 1");
        tiny_vocab_free(vocab);
    }
}

/* What a vocabulary has no token for is left out by gpt2; by llama it is the unknown token, or an error that names the byte. */
static void test_missing_bytes(void **state)
{
    (void)state;
    struct tiny_vocab *vocab = tiny_vocab_new("llama", NULL);
    struct butler_error err = {0};
    int32_t ids[8];
    tiny_token(vocab, "\u2581", 0, TINY_NORMAL);
    tiny_token(vocab, "a", 0, TINY_NORMAL);
    opened(vocab);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "a", 1, BUTLER_ADD_SPECIAL, ids, 8, &err), 2);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "ab", 2, 0, ids, 8, &err), BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "0x62"));
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer,
                                             "a\xff"
                                             "a",
                                             3, 0, ids, 8, &err),
                     3); /* left out: no character */
    tiny_vocab_free(vocab);

    vocab = tiny_vocab_new("llama", NULL);
    vocab->leave_out = "tokenizer.ggml.token_type"; /* then <unk> and <0xXX> are known by their spelling */
    const char *const tokens[] = {"<unk>", "<s>", "</s>", "\u2581", "a", "<0xE2>", "<0x62>"};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tiny_token(vocab, tokens[i], 0, TINY_NORMAL);
    expect(opened(vocab), "ab\u20ac</s>", BUTLER_ADD_SPECIAL, "<s> \u2581 a <0x62> <unk> <unk> <unk> <unk> <unk>");
    expect(vocab, "a</s>", BUTLER_PARSE_SPECIAL, "\u2581 a </s>");
    tiny_vocab_free(vocab);

    vocab = tiny_vocab_new("gpt2", "gpt-2");
    tiny_token(vocab, "a", 0, TINY_NORMAL);
    int unknown = tiny_token(vocab, "<unk>", 0, TINY_UNKNOWN);
    tiny_number(vocab, "tokenizer.ggml.unknown_token_id", BUTLER_GGUF_U32, 4, unknown);
    expect(opened(vocab), "aba", 0, "a a");
    tiny_vocab_free(vocab);
}

/* NUL bytes in tokens, two tokens with the same bytes, and tokens whose spelling no text leads to. */
static void test_odd_tokens(void **state)
{
    (void)state;
    struct tiny_vocab *vocab = tiny_spm();
    int32_t ids[8];
    int nul = tiny_token_n(vocab, "\0a", 2, -0.5f, TINY_NORMAL), again = tiny_token(vocab, "he", -0.25f, TINY_NORMAL);
    int control = tiny_token_n(vocab, "x\0x", 3, 0, TINY_CONTROL), bare = tiny_token(vocab, "a a", 5, TINY_NORMAL);
    opened(vocab);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "a\0a", 3, 0, ids, 8, NULL), 3);
    assert_int_equal(ids[2], nul);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "x\0x", 3, BUTLER_PARSE_SPECIAL, ids, 8, NULL), 1);
    assert_int_equal(ids[0], control);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "ehe", 3, 0, ids, 8, NULL), 3);
    assert_int_equal(ids[2], again);
    expect(vocab, "a a", 0, "\u2581 a \u2581 a");
    assert_true(bare > 0);
    tiny_vocab_free(vocab);

    vocab = tiny_bpe("llama-bpe");
    int euro = tiny_token(vocab, "\u20ac", 0, TINY_NORMAL); /* spells no bytes: text never becomes it, but it prints */
    opened(vocab);
    assert_int_equal(butler_tokenizer_encode(vocab->tokenizer, "\u20ac", 3, 0, ids, 8, NULL), 3);
    size_t n;
    assert_memory_equal(butler_tokenizer_bytes(vocab->tokenizer, euro, &n), "\u20ac", 3);
    assert_int_equal(n, 3);
    /* Whole words: "hel" by merges is "hel", but where the word is a token merges are not asked. */
    tiny_vocab_free(vocab);
    for (int i = 0; i < 2; i++) {
        vocab = tiny_bpe(i ? "llama-bpe" : "gpt-2");
        tiny_token(vocab, "hell", 0, TINY_NORMAL);
        expect(opened(vocab), "hell", 0, i ? "hell" : "he ll");
        tiny_vocab_free(vocab);
    }
}

/* ------------------------------------------------------------------------------------- real vocabularies */

static const char *data_path(const char *name)
{
    static char path[1024];
    const char *folder = getenv("BUTLER_DATA");
    snprintf(path, sizeof path, "%s/tokenizers/%s", folder ? folder : "../shared/data", name);
    return path;
}

static char *read_text(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    struct tiny_bytes bytes = {0};
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        tiny_put(&bytes, buffer, got);
    fclose(file);
    *n = bytes.n;
    tiny_put(&bytes, "", 1);
    return bytes.data;
}

/* Every text of NAME.inp has the ids of its line in NAME.out, whether special tokens are parsed or not. */
static int compare_vectors(const struct butler_tokenizer *tokenizer, const char *name)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char path[128];
    size_t n_in, n_out;
    snprintf(path, sizeof path, "ggml-vocab-%s.gguf.inp", name);
    char *texts = read_text(data_path(path), &n_in), *text = texts;
    snprintf(path, sizeof path, "ggml-vocab-%s.gguf.out", name);
    char *lines = read_text(data_path(path), &n_out), *line = lines;
    int n = 0;
    for (bool last = false; !last; n++) {
        char *end = memmem(text, n_in - (size_t)(text - texts), mark, strlen(mark));
        last = !end;
        end = last ? texts + n_in : end;
        for (int flags = 0; flags <= BUTLER_PARSE_SPECIAL; flags += BUTLER_PARSE_SPECIAL) {
            int32_t ids[MAX_IDS];
            int n_ids = butler_tokenizer_encode(tokenizer, text, (size_t)(end - text), flags, ids, MAX_IDS, NULL);
            char *at = line, *next;
            for (int i = 0; i < n_ids; i++, at = next) {
                long expected = strtol(at, &next, 10);
                if (next == at || expected != ids[i])
                    fail_msg("%s, text %d: id %d is %d, not %ld", name, n, i, ids[i], expected);
            }
            assert_true(n_ids >= 0 && at[strspn(at, " ")] == (last ? *at : '\n'));
        }
        round_trip(tokenizer, text, (size_t)(end - text));
        text = end + strlen(mark);
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line);
    }
    free(texts);
    free(lines);
    return n;
}

static void vectors(const char *name, const char *vocabulary)
{
    struct butler_error err = {0};
    struct butler_gguf *gguf = butler_gguf_open(vocabulary, &err);
    struct butler_tokenizer *tokenizer = gguf ? butler_tokenizer_new(gguf, NULL, &err) : NULL;
    if (!tokenizer)
        fail_msg("%s", err.message);
    int n = compare_vectors(tokenizer, name);
    print_message("%s: %d texts agree\n", name, n);
    assert_true(n > 40);
    butler_tokenizer_free(tokenizer);
    butler_gguf_free(gguf);
}

static void need(const char *name)
{
    if (access(data_path(name), R_OK) != 0) {
        print_message("skipped: %s is not here\n", data_path(name));
        skip();
    }
}

static void test_real_files(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "llama-spm", "phi-3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "ggml-vocab-%s.gguf", names[i]);
        need(name);
        vectors(names[i], data_path(name));
    }
}

/* These two are published as lists, which a tool makes files of. */
static void built(const char *name, const char *first, const char *second)
{
    char command[4096], out[] = "/tmp/butler-vocab-XXXXXX";
    need(first);
    int file = mkstemp(out), n = snprintf(command, sizeof command, "/usr/bin/python3 tools/convert/make_vocab_gguf.py %s %s '%s'",
                                          name, out, data_path(first));
    assert_true(file >= 0);
    if (second)
        snprintf(command + n, sizeof command - (size_t)n, " '%s'", data_path(second));
    assert_int_equal(system(command), 0);
    vectors(name, out);
    close(file);
    unlink(out);
}

static void test_llama_bpe(void **state)
{
    (void)state;
    built("llama-bpe", "llama3/ollama_llama3.2_encoder.json", "llama3/ollama_llama3.2_vocab.bpe");
}

static void test_qwen2(void **state)
{
    (void)state;
    built("qwen2", "qwen2/qwen.tiktoken", NULL);
}

static void test_phi3_chat(void **state)
{
    (void)state;
    static const char text[] = "<|user|>\nHello<|end|>\n<|assistant|>\n";
    static const int32_t expected[] = {1, 32010, 15043, 32007, 32001};
    struct butler_error err = {0};
    int32_t ids[8];
    need("ggml-vocab-phi-3.gguf");
    struct butler_gguf *gguf = butler_gguf_open(data_path("ggml-vocab-phi-3.gguf"), &err);
    struct butler_tokenizer *tokenizer = gguf ? butler_tokenizer_new(gguf, NULL, &err) : NULL;
    assert_non_null(tokenizer);
    int n = butler_tokenizer_encode(tokenizer, text, strlen(text), BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL, ids, 8, &err);
    assert_int_equal(n, 5);
    assert_memory_equal(ids, expected, sizeof expected);
    assert_true(butler_tokenizer_is_end(tokenizer, 32007) && butler_tokenizer_is_end(tokenizer, 32000));
    butler_tokenizer_free(tokenizer);
    butler_gguf_free(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_arrays), cmocka_unit_test(test_wrong_tokens),  cmocka_unit_test(test_wrong_merges),
        cmocka_unit_test(test_wrong_keys),   cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_odd_tokens),
        cmocka_unit_test(test_real_files),   cmocka_unit_test(test_llama_bpe),     cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_phi3_chat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
