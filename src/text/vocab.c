/* The tokens of a file, checked, and indexed by id (array) and by bytes (hash table). */
#include "text/vocab.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ------------------------------------------------------------------------------------------- hash table */

static uint32_t slot_of(const struct butler_vocab *vocab, const char *bytes, size_t n)
{
    uint32_t mask = vocab->n_slots - 1;
    uint32_t slot = (uint32_t)XXH3_64bits(bytes, n) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint32_t id = vocab->slots[slot];
        if (id == BUTLER_NO_SYMBOL)
            return slot;
        const struct butler_piece *piece = &vocab->pieces[id];
        if (piece->n_bytes == n && memcmp(piece->bytes, bytes, n) == 0)
            return slot;
    }
}

uint32_t butler_vocab_find(const struct butler_vocab *vocab, const char *bytes, size_t n)
{
    return vocab->slots[slot_of(vocab, bytes, n)];
}

/* The table is at most half full, so that searches are short. */
static int resize_slots(struct butler_vocab *vocab, uint32_t n_slots, struct butler_error *err)
{
    uint32_t *slots = malloc(n_slots * sizeof *slots);
    if (!slots)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the tokenizer's table of %u strings", vocab->path,
                           n_slots / 2);
    for (uint32_t i = 0; i < n_slots; i++)
        slots[i] = BUTLER_NO_SYMBOL;
    uint32_t *old = vocab->slots, n_old = old ? vocab->n_slots : 0;
    vocab->slots = slots;
    vocab->n_slots = n_slots;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i] != BUTLER_NO_SYMBOL)
            slots[slot_of(vocab, vocab->pieces[old[i]].bytes, vocab->pieces[old[i]].n_bytes)] = old[i];
    free(old);
    return BUTLER_OK;
}

uint32_t butler_vocab_intern(struct butler_vocab *vocab, const char *bytes, size_t n, struct butler_error *err)
{
    uint32_t slot = slot_of(vocab, bytes, n);
    if (vocab->slots[slot] != BUTLER_NO_SYMBOL)
        return vocab->slots[slot];
    if (vocab->n_used >= vocab->n_slots / 2) {
        if (resize_slots(vocab, vocab->n_slots * 2, err))
            return BUTLER_NO_SYMBOL;
        slot = slot_of(vocab, bytes, n);
    }
    if (!butler_grow(&vocab->pieces, (size_t)vocab->n_symbols + 1, &vocab->capacity, sizeof *vocab->pieces))
        goto fail;
    char *copy = malloc(n + 1);
    if (!copy)
        goto fail;
    memcpy(copy, bytes, n);
    copy[n] = 0;
    vocab->pieces[vocab->n_symbols] = (struct butler_piece){.bytes = copy, .n_bytes = (uint32_t)n, .mergeable = true};
    vocab->slots[slot] = vocab->n_symbols;
    vocab->n_used++;
    return vocab->n_symbols++;
fail:
    butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the tokenizer's symbol %u", vocab->path, vocab->n_symbols);
    return BUTLER_NO_SYMBOL;
}

/* ---------------------------------------------------------------------------------------------- reading */

int butler_vocab_array(const struct butler_vocab *vocab, const struct butler_gguf *gguf, const char *key,
                       enum butler_gguf_type element_type, const struct butler_gguf_value **out, struct butler_error *err)
{
    const struct butler_gguf_value *value = butler_gguf_value(gguf, key);
    if (!value)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the key %s is missing", vocab->path, key);
    if (value->type != BUTLER_GGUF_ARRAY || value->element_type != element_type)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s is not an array of the type it must have", vocab->path, key);
    if (vocab->n_tokens && value->n != vocab->n_tokens)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s has %llu elements for %u tokens", vocab->path, key,
                           (unsigned long long)value->n, vocab->n_tokens);
    *out = value;
    return BUTLER_OK;
}

static int read_types(struct butler_vocab *vocab, const struct butler_gguf *gguf, const struct butler_gguf_value *tokens,
                      enum butler_token_type (*infer)(const char *bytes, size_t n), struct butler_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct butler_gguf_value *types = butler_gguf_value(gguf, key);
    enum butler_gguf_type width = types && types->element_type == BUTLER_GGUF_U32 ? BUTLER_GGUF_U32 : BUTLER_GGUF_I32;
    if (types && butler_vocab_array(vocab, gguf, key, width, &types, err))
        return BUTLER_ERROR_FORMAT;
    uint32_t n_unknown = 0;
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        size_t n;
        const char *bytes = butler_gguf_array_string(tokens, i, &n);
        int64_t type = types ? butler_gguf_array_int(types, i) : (int64_t)infer(bytes, n);
        bool known = type >= 0 && type < BUTLER_N_TOKEN_TYPES;
        if (!known && n_unknown++ == 0)
            butler_gguf_warn(gguf, "%s[%u] is %lld, no type of token: taken as undefined", key, i, (long long)type);
        vocab->types[i] = known ? (unsigned char)type : BUTLER_TOKEN_UNDEFINED;
    }
    return BUTLER_OK;
}

/* A byte token is spelt <0x0A>. */
static int byte_value(const char *bytes, size_t n)
{
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(bytes, "<0x", 3) != 0 || bytes[5] != '>' || !bytes[3] || !bytes[4])
        return -1;
    const char *high = strchr(digits, bytes[3]), *low = strchr(digits, bytes[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

static int read_token(struct butler_vocab *vocab, uint32_t i, char *bytes, size_t n, butler_spelling_fn *spelling,
                      struct butler_error *err)
{
    struct butler_piece *piece = &vocab->pieces[i];
    *piece = (struct butler_piece){.bytes = bytes, .n_bytes = (uint32_t)n};
    switch ((enum butler_token_type)vocab->types[i]) {
    case BUTLER_TOKEN_UNDEFINED:
    case BUTLER_TOKEN_NORMAL:
    case BUTLER_TOKEN_UNUSED:
        piece->mergeable = n > 0;
        piece->n_bytes = (uint32_t)spelling(bytes, n, &piece->mergeable);
        break;
    case BUTLER_TOKEN_BYTE: {
        int value = byte_value(bytes, n);
        if (value < 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tokenizer.ggml.tokens[%u] is of type byte but not spelt <0xXX>",
                               vocab->path, i);
        bytes[0] = (char)value;
        piece->n_bytes = 1;
        break;
    }
    default: /* special tokens appear in text exactly as the file spells them */
        break;
    }
    /* If two tokens have the same bytes, text is encoded as the later one. */
    if (piece->mergeable) {
        uint32_t slot = slot_of(vocab, piece->bytes, piece->n_bytes);
        vocab->n_used += vocab->slots[slot] == BUTLER_NO_SYMBOL;
        vocab->slots[slot] = i;
    }
    return BUTLER_OK;
}

int butler_vocab_init(struct butler_vocab *vocab, const struct butler_gguf *gguf, butler_spelling_fn *spelling,
                      enum butler_token_type (*infer)(const char *bytes, size_t n), struct butler_error *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const struct butler_gguf_value *tokens;
    size_t total = 0;
    vocab->path = butler_gguf_path(gguf);
    int rc = butler_vocab_array(vocab, gguf, key, BUTLER_GGUF_STRING, &tokens, err);
    if (rc)
        return rc;
    if (tokens->n == 0 || tokens->n > INT32_MAX / 64)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s has %llu elements", vocab->path, key, (unsigned long long)tokens->n);
    vocab->n_tokens = vocab->n_symbols = (uint32_t)tokens->n;
    vocab->capacity = tokens->n;
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        size_t n;
        butler_gguf_array_string(tokens, i, &n);
        if (n > BUTLER_MAX_TOKEN_BYTES)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s[%u] has %zu bytes, more than %d", vocab->path, key, i, n,
                               BUTLER_MAX_TOKEN_BYTES);
        total += n;
    }
    uint32_t n_slots = 512;
    while (n_slots < 2 * vocab->n_tokens)
        n_slots *= 2;
    vocab->types = malloc(vocab->n_tokens);
    vocab->bytes = malloc(total + 1);
    vocab->pieces = calloc(vocab->n_tokens, sizeof *vocab->pieces);
    if (!vocab->types || !vocab->bytes || !vocab->pieces)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for %u tokens", vocab->path, vocab->n_tokens);
    if ((rc = resize_slots(vocab, n_slots, err)) || (rc = read_types(vocab, gguf, tokens, infer, err)))
        return rc;
    char *at = vocab->bytes;
    for (uint32_t i = 0; i < vocab->n_tokens; i++) {
        size_t n;
        const char *bytes = butler_gguf_array_string(tokens, i, &n);
        memcpy(at, bytes, n);
        if ((rc = read_token(vocab, i, at, n, spelling, err)))
            return rc;
        at += n;
    }
    return BUTLER_OK;
}

void butler_vocab_free(struct butler_vocab *vocab)
{
    for (uint32_t i = vocab->n_tokens; i < vocab->n_symbols; i++)
        free((void *)vocab->pieces[i].bytes);
    free(vocab->pieces);
    free(vocab->slots);
    free(vocab->types);
    free(vocab->bytes);
    *vocab = (struct butler_vocab){0};
}
