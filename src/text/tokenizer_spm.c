/* The family "llama": reads text as SentencePiece's BPE models do. A space is an ordinary character (the file spells it
 * U+2581). Any string that is a token can result from a merge; the better score is merged first. A character that is not a
 * token falls back to its bytes. */
#include "text/tokenizer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t butler_spelling_marked(char *bytes, size_t n, bool *mergeable)
{
    size_t length = 0;
    for (size_t i = 0; i < n; length++) {
        const bool mark = butler_is_mark(bytes + i, BUTLER_MIN(n - i, 3));
        /* Spaces of the text are replaced before merging, so a token with a plain space never occurs. */
        if (bytes[i] == ' ')
            *mergeable = false;
        bytes[length] = mark ? ' ' : bytes[i];
        i += mark ? 3 : 1;
    }
    return length;
}

/* Old files have no types; these spellings always had this meaning. */
static enum butler_token_type infer_type(const char *bytes, size_t n)
{
    if (n == 6 && memcmp(bytes, "<0x", 3) == 0 && bytes[5] == '>')
        return BUTLER_TOKEN_BYTE;
    if (n == 5 && memcmp(bytes, "<unk>", 5) == 0)
        return BUTLER_TOKEN_UNKNOWN;
    if ((n == 3 && memcmp(bytes, "<s>", 3) == 0) || (n == 4 && memcmp(bytes, "</s>", 4) == 0))
        return BUTLER_TOKEN_CONTROL;
    return BUTLER_TOKEN_NORMAL;
}

/* --------------------------------------------------------------------------------------------------- load */

static int compare_scores(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* scores[n], and the distinct scores in sorted[*n_sorted], best first. The rank of a score is its index there. A file without
 * scores has *scores NULL: all are 0, and of several merges the leftmost is made first. */
static int read_scores(const struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, float **sorted, size_t *n_sorted,
                       const struct butler_gguf_value **scores, struct butler_error *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct butler_vocab *vocab = &tokenizer->vocab;
    *scores = NULL;
    int rc = butler_gguf_value(gguf, key) ? butler_vocab_array(vocab, gguf, key, BUTLER_GGUF_FLOAT32, scores, err) : 0;
    if (rc)
        return rc;
    if (!(*sorted = malloc(vocab->n_tokens * sizeof **sorted)))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for %u scores", vocab->path, vocab->n_tokens);
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        (*sorted)[i] = *scores ? butler_gguf_array_float(*scores, i) : 0;
        if (isnan((*sorted)[i]))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s[%u] is not a number", vocab->path, key, i);
    }
    qsort(*sorted, vocab->n_tokens, sizeof **sorted, compare_scores);
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        if (*n_sorted == 0 || (*sorted)[*n_sorted - 1] != (*sorted)[i])
            (*sorted)[(*n_sorted)++] = (*sorted)[i];
    return BUTLER_OK;
}

/* Makes the characters of token i symbols, and records which characters are adjacent. */
static int add_characters(struct butler_tokenizer *tokenizer, uint32_t i, struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    uint32_t left = BUTLER_NO_SYMBOL;
    for (size_t at = 0; at < vocab->pieces[i].n_bytes;) {
        const char *bytes = vocab->pieces[i].bytes + at;
        size_t n = butler_character(bytes, vocab->pieces[i].n_bytes - at);
        uint32_t symbol = butler_vocab_intern(vocab, bytes, n, err);
        if (symbol == BUTLER_NO_SYMBOL)
            return BUTLER_ERROR_MEMORY;
        int rc =
            left == BUTLER_NO_SYMBOL ? 0 : butler_pairs_add(&tokenizer->adjacent, (struct butler_pair){left, symbol, 0, 0}, err);
        if (rc)
            return rc;
        left = symbol;
        at += n;
    }
    return BUTLER_OK;
}

/* Adds each way to make token i from two symbols. */
static int add_pairs(struct butler_tokenizer *tokenizer, uint32_t i, uint32_t rank, struct butler_error *err)
{
    const struct butler_vocab *vocab = &tokenizer->vocab;
    const struct butler_piece *piece = &vocab->pieces[i];
    for (size_t at = 0; at < piece->n_bytes;) {
        at += butler_character(piece->bytes + at, piece->n_bytes - at);
        if (at == piece->n_bytes)
            break;
        uint32_t left = butler_vocab_find(vocab, piece->bytes, at);
        uint32_t right = left == BUTLER_NO_SYMBOL ? left : butler_vocab_find(vocab, piece->bytes + at, piece->n_bytes - at);
        int rc =
            right == BUTLER_NO_SYMBOL ? 0 : butler_pairs_add(&tokenizer->pairs, (struct butler_pair){left, right, rank, i}, err);
        if (rc)
            return rc;
    }
    return BUTLER_OK;
}

static bool merges_to(const struct butler_vocab *vocab, uint32_t i)
{
    const struct butler_piece *piece = &vocab->pieces[i];
    return piece->mergeable && butler_vocab_find(vocab, piece->bytes, piece->n_bytes) == i;
}

static int load_pairs(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    const struct butler_gguf_value *scores;
    float *sorted = NULL;
    size_t n_sorted = 0;
    int rc = read_scores(tokenizer, gguf, &sorted, &n_sorted, &scores, err);
    for (uint32_t i = 0; i < vocab->n_tokens && !rc; i++)
        if (merges_to(vocab, i))
            rc = add_characters(tokenizer, i, err);
    for (uint32_t i = 0; i < vocab->n_tokens && !rc; i++) {
        if (!merges_to(vocab, i))
            continue;
        float score = scores ? butler_gguf_array_float(scores, i) : 0;
        const float *place = bsearch(&score, sorted, n_sorted, sizeof score, compare_scores);
        rc = add_pairs(tokenizer, i, (uint32_t)(place - sorted), err);
    }
    free(sorted);
    return rc;
}

static int load(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *pre_tokenizer,
                struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    int64_t prefix = 1;
    int rc;
    if (pre_tokenizer)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: pre-tokenizer %.64s: a tokenizer \"llama\" has none",
                           butler_gguf_path(gguf), pre_tokenizer);
    if ((rc = butler_vocab_init(vocab, gguf, butler_spelling_marked, infer_type, err)) || (rc = load_pairs(tokenizer, gguf, err)) ||
        (rc = butler_gguf_int(gguf, "tokenizer.ggml.add_space_prefix", false, 0, 1, &prefix, err)))
        return rc;
    tokenizer->add_space_prefix = prefix;
    tokenizer->add_bos = true;
    for (int c = 0; c < 128; c++)
        tokenizer->ascii[c] = butler_vocab_find(vocab, &(char){(char)c}, 1);
    butler_find_bytes(tokenizer);
    /* Tokens that these models always had, used if the file does not name them and the types agree. */
    if (vocab->types[0] == BUTLER_TOKEN_UNKNOWN)
        tokenizer->unknown = 0;
    if (vocab->n_tokens > 2 && vocab->types[1] == BUTLER_TOKEN_CONTROL && vocab->types[2] == BUTLER_TOKEN_CONTROL) {
        tokenizer->bos = 1;
        tokenizer->eos = 2;
    }
    return BUTLER_OK;
}

/* ------------------------------------------------------------------------------------------------- encode */

/* Appends one character. If no token contains it next to the previous character, the symbols so far are merged and emitted
 * first: this keeps the array short. */
static int add_character(struct butler_encoder *encoder, const char *bytes, size_t n, uint32_t symbol)
{
    struct butler_merge *merge = &encoder->merge;
    int rc;
    if (merge->n_symbols > 0 && (symbol == BUTLER_NO_SYMBOL || !butler_pairs_find(&encoder->tokenizer->adjacent,
                                                                                  merge->symbols[merge->n_symbols - 1].id, symbol)))
        if ((rc = butler_encoder_flush(encoder)))
            return rc;
    if (symbol == BUTLER_NO_SYMBOL)
        return butler_encoder_emit_bytes(encoder, bytes, n);
    return butler_merge_add(merge, symbol, encoder->err);
}

static int encode(struct butler_encoder *encoder, const char *text, size_t n, bool after_special)
{
    const struct butler_tokenizer *tokenizer = encoder->tokenizer;
    int rc = 0;
    if (n > 0 && after_special && tokenizer->add_space_prefix)
        rc = add_character(encoder, " ", 1, tokenizer->ascii[' ']);
    while (n > 0 && !rc) {
        size_t length = 1;
        if ((signed char)*text >= 0) {
            rc = add_character(encoder, text, 1, tokenizer->ascii[(unsigned char)*text]);
        } else {
            length = butler_character(text, n);
            const bool mark = butler_is_mark(text, length);
            rc = add_character(encoder, text, length,
                               mark ? tokenizer->ascii[' '] : butler_vocab_find(&tokenizer->vocab, text, length));
        }
        text += length;
        n -= length;
    }
    return rc ? rc : butler_encoder_flush(encoder);
}

const struct butler_family butler_family_spm = {.name = "llama", .load = load, .encode = encode};
