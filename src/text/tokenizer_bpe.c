/* The family "gpt2": BPE. Text is split into words, a word starts as its bytes or, as the pre-tokenizer says, as its characters,
 * and merges are applied in the order of the file's list. The file spells bytes as visible characters; here tokens are stored as
 * the bytes themselves. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SPELLING = 2 * BUTLER_MAX_TOKEN_BYTES + 1 }; /* of a merge: two strings and a space */

/* The byte that a character of a spelling represents, -1: none. Printable Latin-1 characters represent themselves; the other
 * 68 bytes are spelt U+0100 and following, in order. */
static int spelt_byte(uint32_t codepoint)
{
    static const struct {
        unsigned char first, last;
    } hidden[] = {{0x00, 0x20}, {0x7F, 0xA0}, {0xAD, 0xAD}};
    for (int i = 0; i < BUTLER_COUNT(hidden) && codepoint < 256; i++)
        if (codepoint >= hidden[i].first && codepoint <= hidden[i].last)
            return -1;
    if (codepoint < 256)
        return (int)codepoint;
    codepoint -= 256;
    for (int i = 0; i < BUTLER_COUNT(hidden); i++) {
        uint32_t count = hidden[i].last - hidden[i].first + 1u;
        if (codepoint < count)
            return hidden[i].first + (int)codepoint;
        codepoint -= count;
    }
    return -1;
}

/* Writes the bytes that text[n] spells to out[n] (which may be text) and returns their number, or n + 1 if text is not a
 * spelling: then out may be partly written. */
static size_t unspell(const char *text, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t codepoint;
        int length = butler_utf8_decode(text + at, n - at, &codepoint);
        int byte = length ? spelt_byte(codepoint) : -1;
        if (byte < 0)
            return n + 1;
        out[n_out++] = (char)byte;
        at += (size_t)length;
    }
    return n_out;
}

static size_t spelling_bytes(char *bytes, size_t n, bool *mergeable)
{
    char out[MAX_SPELLING];
    size_t length = unspell(bytes, n, out);
    if (length > n) {
        *mergeable = false;
        return n;
    }
    memcpy(bytes, out, length);
    return length;
}

static size_t spelling_plain(char *bytes, size_t n, bool *mergeable)
{
    (void)bytes;
    (void)mergeable;
    return n;
}

static butler_spelling_fn *const spellings[] = {
    [BUTLER_SPELLING_BYTES] = spelling_bytes,
    [BUTLER_SPELLING_MARKED] = butler_spelling_marked,
    [BUTLER_SPELLING_PLAIN] = spelling_plain,
};

static enum butler_token_type infer_type(const char *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    return BUTLER_TOKEN_NORMAL;
}

/* --------------------------------------------------------------------------------------------------- load */

/* "Ġt he": the two strings, separated by the first space after the first byte. */
static int add_merge(struct butler_tokenizer *tokenizer, butler_spelling_fn *spell, uint32_t rank, const char *text, size_t n,
                     struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    char bytes[MAX_SPELLING];
    const char *space = n > 1 && n <= sizeof bytes ? memchr(text + 1, ' ', n - 1) : NULL;
    if (!space || space + 1 == text + n)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tokenizer.ggml.merges[%u] is not two strings and a space between them",
                           vocab->path, rank);
    size_t n_first = (size_t)(space - text), n_second = n - n_first - 1;
    bool occurs = true;
    memcpy(bytes, text, n_first);
    const size_t n_left = spell(bytes, n_first, &occurs);
    memcpy(bytes + n_left, space + 1, n_second);
    const size_t n_right = spell(bytes + n_left, n_second, &occurs);
    if (!occurs)
        return BUTLER_OK; /* a symbol that spells no bytes never occurs in a word */
    struct butler_pair pair = {.rank = rank};
    pair.left = butler_vocab_intern(vocab, bytes, n_left, err);
    pair.right = pair.left == BUTLER_NO_SYMBOL ? pair.left : butler_vocab_intern(vocab, bytes + n_left, n_right, err);
    pair.result = pair.right == BUTLER_NO_SYMBOL ? pair.right : butler_vocab_intern(vocab, bytes, n_left + n_right, err);
    return pair.result == BUTLER_NO_SYMBOL ? BUTLER_ERROR_MEMORY : butler_pairs_add(&tokenizer->pairs, pair, err);
}

static int load_merges(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, butler_spelling_fn *spell,
                       struct butler_error *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    const char *path = tokenizer->vocab.path;
    const struct butler_gguf_value *merges = butler_gguf_value(gguf, key);
    if (!merges || merges->type != BUTLER_GGUF_ARRAY || merges->element_type != BUTLER_GGUF_STRING)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s is missing or not an array of strings", path, key);
    if (merges->n > INT32_MAX / 64)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s has %llu elements", path, key, (unsigned long long)merges->n);
    for (uint32_t i = 0; i < merges->n; i++) {
        size_t n;
        const char *text = butler_gguf_array_string(merges, i, &n);
        int rc = add_merge(tokenizer, spell, i, text, n, err);
        if (rc)
            return rc;
    }
    return BUTLER_OK;
}

static int load(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *pre_tokenizer,
                struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    const char *pre = "default";
    int rc;
    if ((rc = butler_gguf_string(gguf, "tokenizer.ggml.pre", false, &pre, err)))
        return rc;
    tokenizer->split = butler_split_new(pre_tokenizer ? pre_tokenizer : pre, butler_gguf_path(gguf), &tokenizer->no_split);
    if (!tokenizer->split && (pre_tokenizer || tokenizer->no_split.code != BUTLER_ERROR_UNSUPPORTED))
        return butler_fail(err, pre_tokenizer ? BUTLER_ERROR_ARGUMENT : tokenizer->no_split.code, "%s",
                           tokenizer->no_split.message);
    if (!tokenizer->split)
        butler_gguf_warn(gguf, "unknown pre-tokenizer \"%.32s\": text needs --pre NAME", pre);
    tokenizer->spelling = tokenizer->split ? butler_split_spelling(tokenizer->split) : BUTLER_SPELLING_BYTES;
    butler_spelling_fn *spell = spellings[tokenizer->spelling];
    if ((rc = butler_vocab_init(vocab, gguf, spell, infer_type, err)) || (rc = load_merges(tokenizer, gguf, spell, err)))
        return rc;
    tokenizer->add_bos = tokenizer->split && butler_split_adds_bos(tokenizer->split);
    if (tokenizer->spelling != BUTLER_SPELLING_BYTES) {
        butler_find_bytes(tokenizer);
        return BUTLER_OK;
    }
    for (int i = 0; i < 256; i++) {
        tokenizer->byte_symbols[i] = butler_vocab_intern(vocab, &(char){(char)i}, 1, err);
        if (tokenizer->byte_symbols[i] == BUTLER_NO_SYMBOL)
            return BUTLER_ERROR_MEMORY;
    }
    return BUTLER_OK;
}

/* ------------------------------------------------------------------------------------------------- encode */

/* Merges word[n], starting from its characters. One that is no token falls back to its bytes. */
static int encode_characters(struct butler_encoder *encoder, const char *word, size_t n)
{
    const struct butler_vocab *vocab = &encoder->tokenizer->vocab;
    const bool marked = encoder->tokenizer->spelling == BUTLER_SPELLING_MARKED;
    int rc = BUTLER_OK;
    for (size_t i = 0, length; i < n && !rc; i += length) {
        length = butler_character(word + i, n - i);
        const bool mark = marked && butler_is_mark(word + i, length);
        const uint32_t symbol = butler_vocab_find(vocab, mark ? " " : word + i, mark ? 1 : length);
        if (symbol != BUTLER_NO_SYMBOL)
            rc = butler_merge_add(&encoder->merge, symbol, encoder->err);
        else if (!(rc = butler_encoder_flush(encoder)))
            rc = butler_encoder_emit_bytes(encoder, word + i, length);
    }
    return rc ? rc : butler_encoder_flush(encoder);
}

static int encode_word(void *user, const char *word, size_t n, struct butler_error *err)
{
    struct butler_encoder *encoder = user;
    const struct butler_tokenizer *tokenizer = encoder->tokenizer;
    if (butler_split_whole_words(tokenizer->split) || (tokenizer->spelling == BUTLER_SPELLING_MARKED && word[0] == '\n')) {
        uint32_t id = butler_vocab_find(&tokenizer->vocab, word, n);
        if (id < tokenizer->vocab.n_tokens) {
            butler_encoder_emit(encoder, (int32_t)id);
            return BUTLER_OK;
        }
    }
    if (tokenizer->spelling != BUTLER_SPELLING_BYTES)
        return encode_characters(encoder, word, n);
    for (size_t i = 0; i < n; i++) {
        int rc = butler_merge_add(&encoder->merge, tokenizer->byte_symbols[(unsigned char)word[i]], err);
        if (rc)
            return rc;
    }
    return butler_encoder_flush(encoder);
}

static int encode(struct butler_encoder *encoder, const char *text, size_t n, bool after_special)
{
    (void)after_special;
    return butler_split_run(encoder->tokenizer->split, text, n, encode_word, encoder, encoder->err);
}

const struct butler_family butler_family_bpe = {.name = "gpt2", .load = load, .encode = encode, .skips_unknown = true};
