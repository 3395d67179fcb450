/* Vocabularies as GGUF bytes in memory, for the tokenizer's tests and fuzz target. They are written byte by byte, not with
 * the library's writer, so that they can also be invalid. */
#ifndef TINY_VOCAB_H
#define TINY_VOCAB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

enum { TINY_NORMAL = 1, TINY_UNKNOWN, TINY_CONTROL, TINY_USER_DEFINED, TINY_UNUSED, TINY_BYTE };
enum { TINY_TOKENS = 1024 };

struct tiny_bytes {
    char *data;
    size_t n, capacity;
};

static inline void tiny_put(struct tiny_bytes *to, const void *data, size_t n)
{
    if (to->n + n > to->capacity) {
        to->capacity = 2 * (to->n + n) + 256;
        to->data = realloc(to->data, to->capacity);
        if (!to->data)
            abort();
    }
    if (n)
        memcpy(to->data + to->n, data, n);
    to->n += n;
}

static inline void tiny_put_number(struct tiny_bytes *to, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        tiny_put(to, &(unsigned char){(unsigned char)(value >> 8 * i)}, 1);
}

static inline void tiny_put_string(struct tiny_bytes *to, const char *text, size_t n)
{
    tiny_put_number(to, n, 8);
    tiny_put(to, text, n);
}

struct tiny_token {
    char *bytes;
    size_t n;
    float score;
    int type;
};

struct tiny_vocab {
    const char *model, *pre; /* pre NULL: the key is absent */
    struct tiny_token tokens[TINY_TOKENS];
    int n_tokens;
    struct tiny_token merges[TINY_TOKENS];
    int n_merges;
    struct tiny_bytes extra; /* additional values */
    int n_extra;
    const char *leave_out;  /* an array that is left out */
    const char *one_short;  /* an array that lacks its last element */
    const char *wrong_type; /* an array with a wrong element type of the same size */
    /* after tiny_vocab_open */
    struct tiny_bytes file;
    struct butler_gguf *gguf;
    struct butler_tokenizer *tokenizer;
};

static inline int tiny_token_n(struct tiny_vocab *vocab, const char *bytes, size_t n, float score, int type)
{
    char *copy = malloc(n + 1);
    if (!copy || vocab->n_tokens == TINY_TOKENS)
        abort();
    memcpy(copy, bytes, n);
    copy[n] = 0;
    vocab->tokens[vocab->n_tokens] = (struct tiny_token){copy, n, score, type};
    return vocab->n_tokens++;
}

static inline int tiny_token(struct tiny_vocab *vocab, const char *text, float score, int type)
{
    return tiny_token_n(vocab, text, strlen(text), score, type);
}

static inline void tiny_merge(struct tiny_vocab *vocab, const char *text)
{
    char *copy = strdup(text);
    if (!copy || vocab->n_merges == TINY_TOKENS)
        abort();
    vocab->merges[vocab->n_merges++] = (struct tiny_token){.bytes = copy, .n = strlen(copy)};
}

static inline void tiny_number(struct tiny_vocab *vocab, const char *key, enum butler_gguf_type type, int n_bytes, int64_t value)
{
    tiny_put_string(&vocab->extra, key, strlen(key));
    tiny_put_number(&vocab->extra, type, 4);
    tiny_put_number(&vocab->extra, (uint64_t)value, n_bytes);
    vocab->n_extra++;
}

static inline void tiny_text(struct tiny_vocab *vocab, const char *key, const char *value)
{
    tiny_put_string(&vocab->extra, key, strlen(key));
    tiny_put_number(&vocab->extra, BUTLER_GGUF_STRING, 4);
    tiny_put_string(&vocab->extra, value, strlen(value));
    vocab->n_extra++;
}

static inline void tiny_array(struct tiny_vocab *vocab, const char *key, enum butler_gguf_type type, const struct tiny_token *items,
                              int n, int *n_values)
{
    enum butler_gguf_type said = type;
    if (vocab->leave_out && strcmp(vocab->leave_out, key) == 0)
        return;
    n -= vocab->one_short && strcmp(vocab->one_short, key) == 0;
    if (vocab->wrong_type && strcmp(vocab->wrong_type, key) == 0)
        said = type == BUTLER_GGUF_FLOAT32 ? BUTLER_GGUF_U32 : BUTLER_GGUF_FLOAT32;
    tiny_put_string(&vocab->file, key, strlen(key));
    tiny_put_number(&vocab->file, BUTLER_GGUF_ARRAY, 4);
    tiny_put_number(&vocab->file, said, 4);
    tiny_put_number(&vocab->file, said != type && type == BUTLER_GGUF_STRING ? 0 : (uint64_t)n, 8);
    for (int i = 0; i < n && (said == type || type != BUTLER_GGUF_STRING); i++) {
        uint32_t bits;
        memcpy(&bits, &items[i].score, sizeof bits);
        if (type == BUTLER_GGUF_STRING)
            tiny_put_string(&vocab->file, items[i].bytes, items[i].n);
        else
            tiny_put_number(&vocab->file, type == BUTLER_GGUF_FLOAT32 ? bits : (uint32_t)items[i].type, 4);
    }
    ++*n_values;
}

/* Opens the vocabulary. If it is refused, vocab->tokenizer is NULL and *err has the reason. */
static inline void tiny_vocab_open(struct tiny_vocab *vocab, struct butler_error *err)
{
    int n_values = 0;
    tiny_put(&vocab->file, "GGUF\3\0\0\0", 8);
    tiny_put_number(&vocab->file, 0, 8);
    size_t at = vocab->file.n;
    tiny_put_number(&vocab->file, 0, 8);
    struct tiny_bytes extra = vocab->extra;
    tiny_put(&vocab->file, extra.data, extra.n);
    n_values += vocab->n_extra;
    vocab->extra = (struct tiny_bytes){0};
    if (vocab->model)
        tiny_text(vocab, "tokenizer.ggml.model", vocab->model), n_values++;
    if (vocab->pre)
        tiny_text(vocab, "tokenizer.ggml.pre", vocab->pre), n_values++;
    tiny_put(&vocab->file, vocab->extra.data, vocab->extra.n);
    free(vocab->extra.data);
    vocab->extra = extra;
    tiny_array(vocab, "tokenizer.ggml.tokens", BUTLER_GGUF_STRING, vocab->tokens, vocab->n_tokens, &n_values);
    tiny_array(vocab, "tokenizer.ggml.token_type", BUTLER_GGUF_I32, vocab->tokens, vocab->n_tokens, &n_values);
    tiny_array(vocab, "tokenizer.ggml.scores", BUTLER_GGUF_FLOAT32, vocab->tokens, vocab->n_tokens, &n_values);
    tiny_array(vocab, "tokenizer.ggml.merges", BUTLER_GGUF_STRING, vocab->merges, vocab->n_merges, &n_values);
    vocab->file.data[at] = (char)n_values;
    vocab->gguf = butler_gguf_open_memory(vocab->file.data, vocab->file.n, "tiny.gguf", err);
    if (vocab->gguf)
        vocab->tokenizer = butler_tokenizer_new(vocab->gguf, NULL, err);
}

static inline void tiny_vocab_free(struct tiny_vocab *vocab)
{
    if (!vocab)
        return;
    butler_tokenizer_free(vocab->tokenizer);
    butler_gguf_free(vocab->gguf);
    for (int i = 0; i < vocab->n_tokens; i++)
        free(vocab->tokens[i].bytes);
    for (int i = 0; i < vocab->n_merges; i++)
        free(vocab->merges[i].bytes);
    free(vocab->extra.data);
    free(vocab->file.data);
    free(vocab);
}

static inline struct tiny_vocab *tiny_vocab_new(const char *model, const char *pre)
{
    struct tiny_vocab *vocab = calloc(1, sizeof *vocab);
    if (!vocab)
        abort();
    vocab->model = model;
    vocab->pre = pre;
    return vocab;
}

/* ------------------------------------------------------------------------------------------ two vocabularies */

/* The character for a byte in byte-level spellings, in UTF-8. */
static inline int tiny_spell(unsigned char byte, char *out)
{
    unsigned codepoint = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && shown)
            codepoint = b;
        else if (b < byte && !shown)
            codepoint++;
    }
    if (codepoint < 128) {
        out[0] = (char)codepoint;
        return 1;
    }
    out[0] = (char)(0xC0 | codepoint >> 6);
    out[1] = (char)(0x80 | (codepoint & 63));
    return 2;
}

/* A merge of the family gpt2 and the token that results. */
static inline int tiny_merge_token(struct tiny_vocab *vocab, const char *left, const char *right)
{
    char text[256];
    snprintf(text, sizeof text, "%s %s", left, right);
    tiny_merge(vocab, text);
    snprintf(text, sizeof text, "%s%s", left, right);
    return tiny_token(vocab, text, 0, TINY_NORMAL);
}

/* <unk> 0, <s> 1, </s> 2, bytes from 3, then characters, words, and special tokens. Not yet opened. */
static inline struct tiny_vocab *tiny_spm(void)
{
    static const char *const words[] = {"he", "ll",        "\u2581he", "llo",         "\u2581hello",  "\u2581w",
                                        "or", "\u2581wor", "ld",       "\u2581world", "\u2581\u2581", "\u2581\u2581\u2581\u2581",
                                        "lh", "aa",        "aaaa",     "\u00e9\u00e9"};
    static const char *const letters[] = {"\u2581", "h", "e", "l", "o", "w", "r", "d", "a", "1", "\u00e9", "<", ">", "s", "/", "|"};
    struct tiny_vocab *vocab = tiny_vocab_new("llama", NULL);
    char text[16];
    tiny_token(vocab, "<unk>", 0, TINY_UNKNOWN);
    tiny_token(vocab, "<s>", 0, TINY_CONTROL);
    tiny_token(vocab, "</s>", 0, TINY_CONTROL);
    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", i);
        tiny_token(vocab, text, 0, TINY_BYTE);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        tiny_token(vocab, words[i], -(float)i - 1, TINY_NORMAL);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        tiny_token(vocab, letters[i], -(float)i - 100, TINY_NORMAL);
    tiny_token(vocab, "<|im_end|>", 0, TINY_CONTROL);
    tiny_token(vocab, "<|im", 0, TINY_CONTROL);
    tiny_token(vocab, "user-defined", 0, TINY_USER_DEFINED);
    tiny_token(vocab, "-defined_token", 0, TINY_USER_DEFINED);
    return vocab;
}

/* Bytes 0 to 255, then merges, then special tokens. Not yet opened. */
static inline struct tiny_vocab *tiny_bpe(const char *pre)
{
    struct tiny_vocab *vocab = tiny_vocab_new("gpt2", pre);
    for (int i = 0; i < 256; i++) {
        char text[3] = {0};
        tiny_spell((unsigned char)i, text);
        tiny_token(vocab, text, 0, TINY_NORMAL);
    }
    static const char *const merges[][2] = {
        {"h", "e"},  {"l", "l"},           {"\u0120", "he"},     {"ll", "o"}, {"\u0120he", "llo"}, {"he", "l"},         {"1", "2"},
        {"12", "3"}, {"\u0120", "\u0120"}, {"\u010a", "\u010a"}, {"a", "a"},  {"aa", "aa"},        {"\u00c3", "\u00a9"}};
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        tiny_merge_token(vocab, merges[i][0], merges[i][1]);
    tiny_token(vocab, "<|endoftext|>", 0, TINY_CONTROL);
    tiny_token(vocab, "<|end", 0, TINY_CONTROL);
    tiny_token(vocab, "user-defined", 0, TINY_USER_DEFINED);
    tiny_token(vocab, "-defined_token", 0, TINY_USER_DEFINED);
    return vocab;
}

#endif
