/* Shared by the tokenizer's tests: comparing the tokens of a text with expected ones, and round trips. */
#ifndef TOKENIZER_TEST_H
#define TOKENIZER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tiny_vocab.h"

enum { MAX_IDS = 4096 };

static inline struct tiny_vocab *opened(struct tiny_vocab *vocab)
{
    struct butler_error err = {0};
    tiny_vocab_open(vocab, &err);
    if (!vocab->tokenizer)
        fail_msg("%s", err.message);
    return vocab;
}

static inline int token_id(const struct tiny_vocab *vocab, const char *text)
{
    int id = -1;
    for (int i = 0; i < vocab->n_tokens; i++)
        if (vocab->tokens[i].n == strlen(text) && memcmp(vocab->tokens[i].bytes, text, strlen(text)) == 0)
            id = i;
    if (id < 0)
        fail_msg("the test names no token: %s", text);
    return id;
}

/* The ids of a text are those of the tokens in `expected`, as the file spells them, separated by spaces. */
static inline void expect_n(const struct tiny_vocab *vocab, const char *text, size_t n, int flags, const char *expected)
{
    int32_t ids[MAX_IDS];
    struct butler_error err = {0};
    int n_ids = butler_tokenizer_encode(vocab->tokenizer, text, n, flags, ids, MAX_IDS, &err), i = 0;
    char *words = strdup(expected), *rest = words, *word;
    if (n_ids < 0)
        fail_msg("\"%s\": %s", text, err.message);
    while ((word = strsep(&rest, " ")))
        if (*word) {
            if (i >= n_ids || ids[i] != token_id(vocab, word))
                fail_msg("\"%s\": token %d of %d is \"%s\", not %s", text, i, n_ids,
                         i < n_ids ? vocab->tokens[ids[i]].bytes : "none", word);
            i++;
        }
    free(words);
    assert_int_equal(n_ids, i);
}

static inline void expect(const struct tiny_vocab *vocab, const char *text, int flags, const char *expected)
{
    expect_n(vocab, text, strlen(text), flags, expected);
}

/* The ids of a text and their bytes, both malloc'ed. */
static inline int encode_all(const struct butler_tokenizer *tokenizer, const char *text, size_t n, int flags, int32_t **ids,
                             char **bytes, size_t *n_bytes)
{
    struct butler_error err = {0};
    int n_ids = butler_tokenizer_encode(tokenizer, text, n, flags, NULL, 0, &err);
    if (n_ids < 0) {
        fail_msg("%s", err.message);
        exit(1); /* the compiler does not know that fail_msg does not return */
    }
    *ids = calloc((size_t)n_ids + 1, sizeof **ids);
    assert_int_equal(butler_tokenizer_encode(tokenizer, text, n, flags, *ids, n_ids, &err), n_ids);
    struct tiny_bytes out = {0};
    for (int i = 0; i < n_ids; i++) {
        size_t length;
        const char *piece = butler_tokenizer_bytes(tokenizer, (*ids)[i], &length);
        assert_non_null(piece);
        tiny_put(&out, piece, length);
    }
    *bytes = out.data;
    *n_bytes = out.n;
    return n_ids;
}

/* decode(encode(text)) equals text; for the family llama with its leading space, and with U+2581 read as a space. Returns the
 * number of ids. */
static inline int round_trip(const struct butler_tokenizer *tokenizer, const char *text, size_t n)
{
    struct tiny_bytes expected = {0};
    bool spm = strcmp(butler_tokenizer_kind(tokenizer), "llama") == 0;
    if (spm && n > 0)
        tiny_put(&expected, " ", 1);
    for (size_t i = 0; i < n;) {
        bool mark = spm && n - i >= 3 && memcmp(text + i, "\u2581", 3) == 0;
        tiny_put(&expected, mark ? " " : text + i, 1);
        i += mark ? 3 : 1;
    }
    int32_t *ids;
    char *bytes;
    size_t n_bytes;
    int n_ids = encode_all(tokenizer, text, n, 0, &ids, &bytes, &n_bytes);
    if (n_bytes != expected.n || (n_bytes && memcmp(bytes, expected.data, n_bytes) != 0))
        fail_msg("%s: %zu bytes of text come back as %zu other ones", butler_tokenizer_kind(tokenizer), n, n_bytes);
    free(ids);
    free(bytes);
    free(expected.data);
    return n_ids;
}

#endif
