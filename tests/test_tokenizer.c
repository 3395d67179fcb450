/* Text to ids and back: both families on vocabularies made here, against slow readings of the same definitions, with texts
 * that are hostile or long. */
#include "share.h"
#include "tokenizer_test.h"

#include <time.h>

#include "text/pretokenizer.h"

static const char *const pres[] = {"default", "gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen"};
enum { N_PRES = sizeof pres / sizeof *pres, N_VOCABS = N_PRES + 1 };
static struct tiny_vocab *vocabs[N_VOCABS]; /* one per pre-tokenizer, then the family llama */

static int open_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_PRES; i++)
        vocabs[i] = opened(tiny_bpe(pres[i]));
    vocabs[N_PRES] = opened(tiny_spm());
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_VOCABS; i++)
        tiny_vocab_free(vocabs[i]);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- by hand */

static void test_llama(void **state)
{
    (void)state;
    const struct tiny_vocab *vocab = vocabs[N_PRES];
    assert_string_equal(butler_tokenizer_kind(vocab->tokenizer), "llama");
    assert_int_equal(butler_tokenizer_n_vocab(vocab->tokenizer), vocab->n_tokens);
    expect(vocab, "", 0, "");
    expect(vocab, "", BUTLER_ADD_SPECIAL, "<s>");
    expect(vocab, "hello world", 0, "\u2581hello \u2581world");
    expect(vocab, "hello world", BUTLER_ADD_SPECIAL, "<s> \u2581hello \u2581world");
    expect(vocab, " hello", 0, "\u2581 \u2581hello"); /* "▁he" is made before "▁▁" */
    expect(vocab, "hell", 0, "\u2581he ll");
    expect(vocab, "wlh", 0, "\u2581w lh");
    expect(vocab, "   1", 0, "\u2581\u2581\u2581\u2581 1");
    expect(vocab, "aaa", 0, "\u2581 aa a"); /* of equal pairs the leftmost first */
    expect(vocab, "\u00e9", 0, "\u2581 \u00e9");
    expect(vocab, "\u00e9\u00e9", 0, "\u2581 \u00e9\u00e9");
    expect(vocab, "\u2581hello", 0, "\u2581 \u2581hello"); /* a mark in the text is a space */
    expect(vocab, "zé\n", 0, "\u2581 <0x7A> \u00e9 <0x0A>");
    expect(vocab, "\u20ac", 0, "\u2581 <0xE2> <0x82> <0xAC>");
    expect(vocab, "h\xC3(\xE2\x82", 0, "\u2581 h <0xC3> <0x28> <0xE2> <0x82>");
    expect_n(vocab, "h\0e", 3, 0, "\u2581 h <0x00> e");
    expect(vocab, "<0x0A>", 0, "\u2581 < <0x30> <0x78> <0x30> <0x41> >");
}

static void test_gpt2(void **state)
{
    (void)state;
    const struct tiny_vocab *vocab = vocabs[1];
    assert_string_equal(butler_tokenizer_kind(vocab->tokenizer), "gpt2");
    expect(vocab, "", 0, "");
    expect(vocab, "", BUTLER_ADD_SPECIAL, "");
    expect(vocab, "hello hello", 0, "he llo \u0120hello");
    expect(vocab, "hel", 0, "hel");
    expect(vocab, "hell", 0, "he ll"); /* "ll" is made before "hel" */
    expect(vocab, "12312", 0, "123 12");
    expect(vocab, "aaaaaaa", 0, "aaaa aa a");
    expect(vocab, "\u00e9", 0, "\u00c3\u00a9");
    expect(vocab, "\xC3\n\xFF", 0, "\u00c3 \u010a \u00ff");
    expect_n(vocab, "a\0a", 3, 0, "a \u0100 a");
}

static void test_special_tokens(void **state)
{
    (void)state;
    const struct tiny_vocab *bpe = vocabs[1], *spm = vocabs[N_PRES];
    expect(bpe, "a<|endoftext|>a", BUTLER_PARSE_SPECIAL, "a <|endoftext|> a");
    expect(bpe, "a<|endoftex", BUTLER_PARSE_SPECIAL, "a <|end o f t e x");
    expect(bpe, "<|end<|endoftext|><|endoftext|>", BUTLER_PARSE_SPECIAL, "<|end <|endoftext|> <|endoftext|>");
    expect(bpe, "<|endoftext|>", 0, "< | e n d o f t e x t | >");
    expect(spm, "<s>a<|im_end|>a</s>", BUTLER_PARSE_SPECIAL, "<s> \u2581 a <|im_end|> \u2581 a </s>");
    expect(spm, "<unk>", BUTLER_PARSE_SPECIAL, "<unk>");
    /* Without the flag nothing in the text makes a control token, not even merges. */
    expect(spm, "<s></s>", 0, "\u2581 < s > < / s >");
    for (int flags = 0; flags <= BUTLER_PARSE_SPECIAL; flags += BUTLER_PARSE_SPECIAL) {
        expect(bpe, "a user-defined", flags, "a \u0120 user-defined");
        expect(spm, "user-defineda", flags, "user-defined \u2581 a");
        /* The longer token wins, though the other begins earlier. */
        expect(bpe, "user-defined_token", flags, "u s e r -defined_token");
        expect(spm, "user-defined_token", flags, "\u2581 <0x75> s e r -defined_token");
    }
}

static void test_added_tokens(void **state)
{
    (void)state;
    struct tiny_vocab *vocab = tiny_spm();
    tiny_number(vocab, "tokenizer.ggml.add_bos_token", BUTLER_GGUF_BOOL, 1, 0);
    tiny_number(vocab, "tokenizer.ggml.add_eos_token", BUTLER_GGUF_BOOL, 1, 1);
    tiny_number(vocab, "tokenizer.ggml.add_space_prefix", BUTLER_GGUF_BOOL, 1, 0);
    expect(opened(vocab), "hello", BUTLER_ADD_SPECIAL, "he llo </s>");
    tiny_vocab_free(vocab);

    vocab = tiny_bpe("llama-bpe"); /* BOS by habit, but there is none to add */
    expect(opened(vocab), "a", BUTLER_ADD_SPECIAL, "a");
    assert_int_equal(butler_tokenizer_bos(vocab->tokenizer), -1);
    assert_int_equal(butler_tokenizer_eos(vocab->tokenizer), -1);
    tiny_vocab_free(vocab);

    for (int i = 0; i < 3; i++) {
        vocab = tiny_bpe(i == 0 ? "llama-bpe" : "qwen2");
        int id = token_id(vocab, "<|endoftext|>");
        tiny_number(vocab, "tokenizer.ggml.bos_token_id", BUTLER_GGUF_U32, 4, id);
        tiny_number(vocab, "tokenizer.ggml.eos_token_id", BUTLER_GGUF_U32, 4, 0xFFFFFFFF); /* none */
        if (i == 2)
            tiny_number(vocab, "tokenizer.ggml.add_bos_token", BUTLER_GGUF_BOOL, 1, 1);
        expect(opened(vocab), "a", BUTLER_ADD_SPECIAL, i == 1 ? "a" : "<|endoftext|> a");
        assert_int_equal(butler_tokenizer_bos(vocab->tokenizer), id);
        assert_int_equal(butler_tokenizer_eos(vocab->tokenizer), -1);
        tiny_vocab_free(vocab);
    }
}

static void test_ends(void **state)
{
    (void)state;
    struct tiny_vocab *vocab = tiny_bpe("gpt-2");
    int eot = tiny_token(vocab, "<|my_end|>", 0, TINY_CONTROL), odd = tiny_token(vocab, "<|eot_id|>", 0, TINY_NORMAL);
    int deepseek = tiny_token(vocab, "<\uff5cend\u2581of\u2581sentence\uff5c>", 0, TINY_USER_DEFINED);
    int call = tiny_token(vocab, "<|call|>", 0, TINY_CONTROL), end = tiny_token(vocab, "<|end|>", 0, TINY_CONTROL);
    int eos = tiny_token(vocab, "<eos>", 0, TINY_CONTROL), im_end = tiny_token(vocab, "<|im_end|>", 0, TINY_CONTROL);
    tiny_number(vocab, "tokenizer.ggml.eos_token_id", BUTLER_GGUF_U32, 4, eos);
    tiny_number(vocab, "tokenizer.ggml.eot_token_id", BUTLER_GGUF_U32, 4, eot);
    opened(vocab);
    const int ends[] = {eot, eos, im_end, token_id(vocab, "<|endoftext|>"), odd, deepseek, call, end};
    for (int id = -1; id <= vocab->n_tokens; id++) {
        bool is_end = false;
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            is_end |= id == ends[i];
        assert_int_equal(butler_tokenizer_is_end(vocab->tokenizer, id), is_end);
    }
    /* Whatever its type: found in a template's text, not in a user's, and not printed. */
    size_t n;
    expect(vocab, "a<|eot_id|>", BUTLER_PARSE_SPECIAL, "a <|eot_id|>");
    assert_non_null(butler_tokenizer_bytes(vocab->tokenizer, odd, &n));
    assert_int_equal(n, 0);
    tiny_vocab_free(vocab);

    /* Between messages of several kinds <|end|> ends none of them. */
    vocab = tiny_bpe("gpt-2");
    end = tiny_token(vocab, "<|end|>", 0, TINY_CONTROL), call = tiny_token(vocab, "<|call|>", 0, TINY_CONTROL);
    int done = tiny_token(vocab, "<|return|>", 0, TINY_CONTROL);
    opened(vocab);
    assert_false(butler_tokenizer_is_end(vocab->tokenizer, end));
    assert_true(butler_tokenizer_is_end(vocab->tokenizer, call) && butler_tokenizer_is_end(vocab->tokenizer, done));
    tiny_vocab_free(vocab);
}

/* Phi-3's special tokens swallow white space, except those three. */
static void test_phi3(void **state)
{
    (void)state;
    struct tiny_vocab *vocab = tiny_spm();
    tiny_text(vocab, "general.name", "My Phi-3 mini");
    expect(opened(vocab), "<|im_end|> \n\thello<s> a", BUTLER_PARSE_SPECIAL, "<|im_end|> \u2581hello <s> \u2581\u2581 a");
    tiny_vocab_free(vocab);
    expect(vocabs[N_PRES], "<|im_end|>\nhello", BUTLER_PARSE_SPECIAL, "<|im_end|> \u2581 <0x0A> he llo");
}

static void test_bytes(void **state)
{
    (void)state;
    const struct tiny_vocab *spm = vocabs[N_PRES], *bpe = vocabs[1];
    static const struct {
        bool spm;
        const char *token, *bytes;
    } cases[] = {{true, "\u2581he", " he"},
                 {true, "<0x41>", "A"},
                 {true, "<s>", ""},
                 {true, "<unk>", ""},
                 {true, "\u00e9", "\u00e9"},
                 {false, "\u0120he", " he"},
                 {false, "\u00c3\u00a9", "\u00e9"},
                 {false, "<|endoftext|>", ""},
                 {true, "user-defined", "user-defined"},
                 {false, "user-defined", "user-defined"}};
    size_t n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct tiny_vocab *vocab = cases[i].spm ? spm : bpe;
        const char *bytes = butler_tokenizer_bytes(vocab->tokenizer, token_id(vocab, cases[i].token), &n);
        assert_non_null(bytes);
        assert_int_equal(n, strlen(cases[i].bytes));
        assert_memory_equal(bytes, cases[i].bytes, n);
    }
    assert_null(butler_tokenizer_bytes(bpe->tokenizer, -1, &n));
    assert_null(butler_tokenizer_bytes(bpe->tokenizer, bpe->n_tokens, &n));
}

static void test_room_and_arguments(void **state)
{
    (void)state;
    const struct butler_tokenizer *tokenizer = vocabs[1]->tokenizer;
    struct butler_error err;
    int32_t ids[8], all[8] = {0};
    int n = butler_tokenizer_encode(tokenizer, "hello 12", 8, 0, all, 8, NULL);
    assert_int_equal(n, 4);
    for (int room = 0; room <= 8; room++) {
        memset(ids, 0x7F, sizeof ids);
        assert_int_equal(butler_tokenizer_encode(tokenizer, "hello 12", 8, 0, room ? ids : NULL, room, &err), n);
        for (int i = 0; i < 8; i++)
            assert_int_equal(ids[i], i < room && i < n ? all[i] : 0x7F7F7F7F);
    }
    assert_int_equal(butler_tokenizer_encode(tokenizer, NULL, 0, 0, NULL, 0, &err), 0);
    assert_int_equal(butler_tokenizer_encode(tokenizer, NULL, 1, 0, ids, 8, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_tokenizer_encode(tokenizer, "a", 1, 4, ids, 8, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_tokenizer_encode(tokenizer, "a", 1, 0, ids, -1, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_tokenizer_encode(tokenizer, "a", 1, 0, NULL, 1, NULL), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_tokenizer_encode(tokenizer, "a", SIZE_MAX, 0, ids, 8, &err), BUTLER_ERROR_LENGTH);
}

/* ------------------------------------------------------------------------------------------------- words */

static int join_words(void *user, const char *word, size_t n, struct butler_error *err)
{
    struct tiny_bytes *out = user;
    (void)err;
    tiny_put(out, "~", out->n > 0);
    tiny_put(out, word, n);
    return 0;
}

static void test_words(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *words; /* "~" where the text is cut */
    } cases[] = {
        {"gpt-2", "Hello~ world"},
        {"gpt-2", "I~'ve~ '~told~ '~RE"},
        {"gpt-2", " ab~ ~ cd~  "},
        {"gpt-2", "a~\n\n~ b~\n~\n~c"},
        {"gpt-2", "x~12~ 3456~,.~ !\u2026"},
        {"gpt-2", "\u041f\u0440\u0438\u0432\u0435\u0442~ \u4e2d\u6587\u00e9~\u216f\u00b2\u0663~\u0301"},
        {"gpt-2", "a~ \u180e~b~\xC2\x85\u00a0~\u3000~b~\u2009\u2028~\t~c"}, /* U+180E has not been a space since Unicode 6.3 */
        {"gpt-2", "a~ ~\xFF\xFE~ b~\xE2\x82"},
        {"smollm", "in~ ~2~0~2~6~,~ I~'ve~ x~1"},
        {"smollm", " ~1~   ~2~ ~\u0663~ b~ ~ c"},
        {"llama-bpe", "I~'VE~ x~'\u017f"},
        {"llama-bpe", "123~456~78~ ~9"},
        {"llama-bpe", "(hello~)~\thello~ ~ hello~\n~hello"},
        {"llama-bpe", "!!\n\n~x~ ..\r\n~a~ \n \n~ b~   "},
        {"llama-bpe", "\u4e2d\u6587~\u3002\n~\U0001F999.~cpp~ '~tis"},
        {"llama3", "123~4~\n\n~5"},
        {"llama-v3", "123~4"},
        {"qwen2", "I~'ll~ x~1~2~3~4"},
        {"qwen2", "a~ \n\n~  ~ b~_c"},
        {"deepseek-r1-qwen", "1~2~ '~Tis"},
        {"default", "a~,~ ~123~4~ b~'!$+~ x~^"},
        {"default", "it~'~s~ ~200~6~ ~--~ ~\u0663\u0663\u0663\u0663"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct butler_error err = {0};
        struct tiny_bytes got = {0}, text = {0};
        struct butler_split *split = butler_split_new(cases[i].pre, "file", &err);
        assert_non_null(split);
        for (const char *c = cases[i].words; *c; c++)
            tiny_put(&text, c, *c != '~');
        assert_int_equal(butler_split_run(split, text.data, text.n, join_words, &got, &err), 0);
        tiny_put(&got, "", 1);
        assert_string_equal(got.data, cases[i].words);
        butler_split_free(split);
        free(got.data);
        free(text.data);
    }
}

static int stop_at_b(void *user, const char *word, size_t n, struct butler_error *err)
{
    (void)err;
    ++*(int *)user;
    return n == 2 && word[1] == 'b' ? -42 : 0;
}

static void test_words_stop(void **state)
{
    (void)state;
    int n = 0;
    struct butler_split *split = butler_split_new("default", "file", NULL);
    assert_int_equal(butler_split_run(split, "a b c", 5, stop_at_b, &n, NULL), -42);
    assert_int_equal(n, 2);
    butler_split_free(split);
}

/* ------------------------------------------------------------------------------------- a slow definition */

struct parts {
    char text[64][80];
    int n;
};

static int find_token(const struct tiny_vocab *vocab, const char *text)
{
    for (int i = vocab->n_tokens - 1; i >= 0; i--)
        if (vocab->tokens[i].type == TINY_NORMAL && strcmp(vocab->tokens[i].bytes, text) == 0)
            return i;
    return -1;
}

/* How good it is to join a and b: higher is better, -INFINITY not at all. */
static double goodness(const struct tiny_vocab *vocab, const char *a, const char *b)
{
    char text[256];
    if (strcmp(vocab->model, "llama") == 0) {
        snprintf(text, sizeof text, "%s%s", a, b);
        int id = find_token(vocab, text);
        return id < 0 ? -1e30 : (double)vocab->tokens[id].score;
    }
    snprintf(text, sizeof text, "%s %s", a, b);
    for (int i = 0; i < vocab->n_merges; i++)
        if (strcmp(vocab->merges[i].bytes, text) == 0)
            return -i;
    return -1e30;
}

static int slow_encode(const struct tiny_vocab *vocab, struct parts *parts, int32_t *ids)
{
    for (;;) {
        int best = -1, n_ids = 0;
        double most = -1e30;
        for (int i = 0; i + 1 < parts->n; i++)
            if (goodness(vocab, parts->text[i], parts->text[i + 1]) > most) {
                most = goodness(vocab, parts->text[i], parts->text[i + 1]);
                best = i;
            }
        if (best >= 0) {
            const char *next = parts->text[best + 1];
            memmove(parts->text[best] + strlen(parts->text[best]), next, strlen(next) + 1);
            for (int i = best + 1; i + 1 < parts->n; i++)
                strcpy(parts->text[i], parts->text[i + 1]);
            parts->n--;
            continue;
        }
        for (int i = 0; i < parts->n; i++) {
            int id = find_token(vocab, parts->text[i]);
            /* A space that is no token falls back to its own byte, not to those of the mark. */
            const char *bytes = strcmp(parts->text[i], "\u2581") == 0 ? " " : parts->text[i];
            for (const char *c = bytes; id < 0 && *c; c++) {
                char byte[8];
                snprintf(byte, sizeof byte, "<0x%02X>", (unsigned char)*c);
                ids[n_ids++] = strcmp(vocab->model, "llama") == 0 ? token_id(vocab, byte) : find_token(vocab, (char[]){*c, 0});
            }
            if (id >= 0)
                ids[n_ids++] = id;
        }
        return n_ids;
    }
}

/* A vocabulary of random words over few letters: many ways to the same text, equal scores, letters that are no token, and
 * (gpt2) merges whose result is none. */
static struct tiny_vocab *random_vocab(bool spm, uint64_t *seed)
{
    static const char *const letters[] = {"a", "b", "c", "\u00e9", "\u2581"};
    struct tiny_vocab *vocab = spm ? tiny_spm() : tiny_vocab_new("gpt2", "gpt-2");
    if (spm) {
        vocab->n_tokens = 259;
        for (int i = 259; vocab->tokens[i].bytes; i++)
            free(vocab->tokens[i].bytes);
    }
    for (int i = 0; i < 256 && !spm; i++) {
        char text[3] = {0};
        tiny_spell((unsigned char)i, text);
        tiny_token(vocab, text, 0, TINY_NORMAL);
    }
    int n_words = 4 + (int)(butler_random(seed) % 40), known = 0;
    char words[64][64];
    for (int i = 0; i < n_words; i++) {
        char text[80] = "";
        if (spm) {
            int n = 1 + (int)(butler_random(seed) % 5);
            for (int k = 0; k < n; k++)
                strcat(text, letters[butler_random(seed) % 5]);
            tiny_token(vocab, text, -(float)(butler_random(seed) % 8), TINY_NORMAL);
            continue;
        }
        const char *half[2];
        for (int k = 0; k < 2; k++)
            half[k] =
                known && butler_random(seed) % 2 ? words[butler_random(seed) % (uint64_t)known] : letters[butler_random(seed) % 3];
        if (strlen(half[0]) + strlen(half[1]) > 20)
            continue;
        snprintf(words[known], sizeof words[known], "%s%s", half[0], half[1]);
        snprintf(text, sizeof text, "%s %s", half[0], half[1]);
        tiny_merge(vocab, text);
        if (butler_random(seed) % 4)
            tiny_token(vocab, words[known], 0, TINY_NORMAL);
        known++;
    }
    return opened(vocab);
}

static void slow_definition(bool spm, uint64_t seed)
{
    for (int round = 0; round < 150; round++) {
        struct tiny_vocab *vocab = random_vocab(spm, &seed);
        for (int t = 0; t < 20; t++) {
            static const char *const letters[] = {"a", "b", "c", "\u00e9", " ", "z"};
            struct parts parts = {.n = 0};
            char text[256] = "";
            int32_t expected[256], ids[256];
            int n = (int)(butler_random(&seed) % 50);
            if (spm && n > 0)
                strcpy(parts.text[parts.n++], "\u2581");
            for (int i = 0; i < n; i++) {
                const char *letter = letters[butler_random(&seed) % (spm ? 6 : 3)];
                strcat(text, letter);
                strcpy(parts.text[parts.n++], *letter == ' ' ? "\u2581" : letter);
            }
            int n_expected = slow_encode(vocab, &parts, expected);
            int n_ids = butler_tokenizer_encode(vocab->tokenizer, text, strlen(text), 0, ids, 256, NULL);
            if (n_ids != n_expected || memcmp(ids, expected, (size_t)n_ids * sizeof *ids) != 0)
                fail_msg("round %d: \"%s\" becomes %d ids, by the definition %d", round, text, n_ids, n_expected);
        }
        tiny_vocab_free(vocab);
    }
}

static void test_llama_slowly(void **state)
{
    (void)state;
    slow_definition(true, 1);
}

static void test_gpt2_slowly(void **state)
{
    (void)state;
    slow_definition(false, 2);
}

/* -------------------------------------------------------------------------------------------- any bytes */

static void test_all_bytes(void **state)
{
    (void)state;
    char all[256];
    for (int v = 0; v < N_VOCABS; v++) {
        round_trip(vocabs[v]->tokenizer, NULL, 0);
        for (int i = 0; i < 256; i++) {
            all[i] = (char)i;
            round_trip(vocabs[v]->tokenizer, all + i, 1);
        }
        round_trip(vocabs[v]->tokenizer, all, 256);
    }
}

static void test_random_bytes(void **state)
{
    (void)state;
    static const char *const chunks[] = {"hello",      " ",  "\n",       "123",  "\u00e9", "\u2581", "\xE2\x96", "\xF0\x9F\x9A",
                                         "\U0001F680", "<|", "user-def", "ined", "\xFF",   "'s",     "\u3000",   "\xED\xA0\x80",
                                         "\xC0\x80"};
    uint64_t seed = 3;
    char text[400];
    for (int round = 0; round < 3000; round++) {
        size_t n = 0, wanted = butler_random(&seed) % 300;
        while (n < wanted) {
            const char *chunk = chunks[butler_random(&seed) % (sizeof chunks / sizeof *chunks)];
            size_t length = round % 2 ? strlen(chunk) : 1;
            char byte = (char)butler_random(&seed);
            memcpy(text + n, round % 2 ? chunk : &byte, length);
            n += length;
        }
        /* A user-defined token starts a new stretch, and with it a new space: in such texts only gpt2 comes back. */
        bool user_defined = memmem(text, n, "user-defined", 12);
        round_trip(vocabs[round % (user_defined ? N_PRES : N_VOCABS)]->tokenizer, text, n);
    }
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A megabyte in one word, one run of spaces, one run of what is not UTF-8: each comes back in a time that a quadratic
 * algorithm, with 10^12 steps to take, would be far from. */
static void test_long_texts(void **state)
{
    (void)state;
    const int n_bytes = share_of(1 << 20);
    static const char *const units[] = {"a", " ",     "\n",        "\u00e9",  "ab ",      "'",  "\xFF",
                                        "1", "<|end", "user-defi", "h\u3000", "\xE2\x82", " \n"};
    char *text = malloc((size_t)n_bytes);
    uint64_t seed = 5;
    assert_non_null(text);
    for (size_t u = 0; u <= sizeof units / sizeof *units; u++) {
        const char *unit = u < sizeof units / sizeof *units ? units[u] : "";
        for (size_t i = 0; i < (size_t)n_bytes; i++)
            text[i] = *unit ? unit[i % strlen(unit)] : (char)butler_random(&seed);
        if (u == 1)
            text[n_bytes - 1] = 'x'; /* so that the expressions must give back a space */
        static const int which[] = {0, 1, 2, 5, N_PRES};
        for (size_t v = 0; v < sizeof which / sizeof *which; v++) {
            double start = cpu_seconds();
            int n = round_trip(vocabs[which[v]]->tokenizer, text, (size_t)n_bytes);
            if (cpu_seconds() - start > 60)
                fail_msg("%d bytes of \"%s\" took %.0f s", n_bytes, unit, cpu_seconds() - start);
            assert_in_range(n, n_bytes / 8, n_bytes + 1);
        }
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),          cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_ends),           cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_bytes),          cmocka_unit_test(test_room_and_arguments),
        cmocka_unit_test(test_words),          cmocka_unit_test(test_words_stop),
        cmocka_unit_test(test_llama_slowly),   cmocka_unit_test(test_gpt2_slowly),
        cmocka_unit_test(test_all_bytes),      cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
