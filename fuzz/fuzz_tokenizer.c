/* Any bytes as text, for each pre-tokenizer and both families: the count of ids does not depend on the size of the buffer,
 * decoding gives the bytes back, and the UTF-8 stream's output fits in the documented size. */
#include <string.h>

#include "fuzz.h"

#include "tests/tiny_vocab.h"

static struct tiny_vocab *vocabs[8];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const pres[] = {"default", "gpt-2", "llama-bpe", "qwen2"};
    (void)argc, (void)argv;
    for (int i = 0; i < 8; i++) {
        struct tiny_vocab *vocab = i < 4 ? tiny_bpe(pres[i]) : tiny_spm();
        struct butler_error err = {0};
        if (i == 5)
            tiny_text(vocab, "general.name", "phi-3");
        if (i >= 6)
            tiny_number(vocab, "tokenizer.ggml.add_space_prefix", BUTLER_GGUF_BOOL, 1, 0);
        if (i == 7)
            tiny_number(vocab, "tokenizer.ggml.add_eos_token", BUTLER_GGUF_BOOL, 1, 1);
        tiny_vocab_open(vocab, &err);
        fuzz_require(vocab->tokenizer != NULL, err.message);
        vocabs[i] = vocab;
    }
    return 0;
}

/* The next byte of the text that the ids spell: the family llama reads U+2581 as a space. */
static unsigned char spelt(bool spm, const char *text, size_t n_text, size_t *at)
{
    bool mark = spm && n_text - *at >= 3 && memcmp(text + *at, "\xE2\x96\x81", 3) == 0;
    *at += mark ? 3 : 1;
    return mark ? ' ' : (unsigned char)text[*at - 1];
}

static void decode(const struct butler_tokenizer *tokenizer, const int32_t *ids, int n, const char *text, size_t n_text, bool whole)
{
    struct butler_utf8 stream = {0};
    bool spm = butler_tokenizer_kind(tokenizer)[0] == 'l';
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t n_bytes;
        char out[3 * (64 + 3)];
        const char *bytes = butler_tokenizer_bytes(tokenizer, ids[i], &n_bytes);
        fuzz_require(bytes != NULL && n_bytes <= 64, "every id of a text is a token");
        fuzz_require(butler_utf8_push(&stream, bytes, n_bytes, out, n_bytes + 16) <= n_bytes + 16,
                     "a token fits where it is said to");
        for (size_t k = 0; k < n_bytes && whole; k++)
            fuzz_require(at < n_text && spelt(spm, text, n_text, &at) == (unsigned char)bytes[k], "the tokens spell the text");
    }
    fuzz_require(!whole || at == n_text, "the tokens spell all of the text");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    if (size < 1)
        return 0;
    const int which = data[0] >> 2 & 7, flags = data[0] & (BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL);
    const struct butler_tokenizer *tokenizer = vocabs[which]->tokenizer;
    const size_t n_text = size - 1;
    /* A copy of exactly this size, so that the sanitizer detects a read past its end. */
    char *text = malloc(n_text ? n_text : 1);
    fuzz_require(text != NULL, "memory");
    memcpy(text, data + 1, n_text);
    const int n = butler_tokenizer_encode(tokenizer, text, n_text, flags, NULL, 0, &err);
    fuzz_require(n >= 0, "these vocabularies have a token for every byte");
    int32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    int32_t first = -1;
    fuzz_require(ids != NULL, "memory");
    fuzz_require(butler_tokenizer_encode(tokenizer, text, n_text, flags, ids, n, &err) == n,
                 "the count does not depend on the buffer's size");
    fuzz_require(butler_tokenizer_encode(tokenizer, text, n_text, flags, &first, 1, &err) == n, "nor on there being too little");
    fuzz_require(n == 0 || first == ids[0], "a buffer that is too small gets the first ids");
    /* Not for spaces that the family llama adds (4, 5), nor for those that Phi-3's tokens include (5). */
    decode(tokenizer, ids, n, text, n_text, flags == 0 && which != 4 && which != 5);
    free(ids);
    free(text);
    return 0;
}
