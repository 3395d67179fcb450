/* Text to ids and back: selects the family of the vocabulary, finds special tokens, passes the text between them to the
 * family, and adds BOS and EOS. */
#include "text/tokenizer_parts.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "text/token_trie.h"

/* --------------------------------------------------------------------------------------------------- load */

int butler_tokenizer_read_id(const struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *key, int32_t *id,
                             struct butler_error *err)
{
    int64_t value = *id;
    int rc = butler_gguf_int(gguf, key, false, INT64_MIN, INT64_MAX, &value, err);
    if (rc)
        return rc;
    if (value == UINT32_MAX)
        value = -1;
    if (value < -1 || value >= tokenizer->vocab.n_tokens)
        butler_gguf_warn(gguf, "%s is %lld, but there are %u tokens: not used", key, (long long)value, tokenizer->vocab.n_tokens);
    else
        *id = (int32_t)value;
    return BUTLER_OK;
}

static int read_flag(const struct butler_gguf *gguf, const char *key, bool *flag, struct butler_error *err)
{
    int64_t value = *flag;
    int rc = butler_gguf_int(gguf, key, false, 0, 1, &value, err);
    *flag = value;
    return rc;
}

static void add_end(struct butler_tokenizer *tokenizer, int32_t id)
{
    for (int i = 0; i < tokenizer->n_ends; i++)
        if (tokenizer->ends[i] == id)
            return;
    if (id >= 0 && tokenizer->n_ends < BUTLER_COUNT(tokenizer->ends))
        tokenizer->ends[tokenizer->n_ends++] = id;
}

enum end { END_RETURN, END_CALL, END_CALLS, END_FLUSH, END_TOOL_RESPONSE, END_END, END_S };

/* What llama.cpp takes as the end of an answer by its spelling. */
static const char *const end_spellings[] = {
    [END_RETURN] = "<|return|>",
    [END_CALL] = "<|call|>",
    [END_CALLS] = "<|calls|>",
    [END_FLUSH] = "<|flush|>",
    [END_TOOL_RESPONSE] = "<|tool_response>",
    [END_END] = "<|end|>",
    [END_S] = "</s>",
    "<|im_end|>",
    "<|ifm|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", /* DeepSeek: fullwidth bars, U+2581 between the words */
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

/* Index in end_spellings, or -1. */
static int find_end(const char *bytes, size_t n)
{
    if (n < 4 || n > 32 || !memchr("<[_", bytes[0], 3))
        return -1;
    for (int i = 0; i < BUTLER_COUNT(end_spellings); i++)
        if (strlen(end_spellings[i]) == n && memcmp(end_spellings[i], bytes, n) == 0)
            return i;
    return -1;
}

/* Files often give such a token another type than control: then it would be printed, and not be found in a template's text. */
static void make_control(struct butler_vocab *vocab, uint32_t id, const char *bytes, size_t n)
{
    struct butler_piece *piece = &vocab->pieces[id];
    vocab->types[id] = BUTLER_TOKEN_CONTROL;
    memcpy((char *)piece->bytes, bytes, n); /* as the file spells it, for which there is room */
    piece->n_bytes = (uint32_t)n;
}

/* Models end a turn with more tokens than their files name. */
static int find_ends(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err)
{
    const struct butler_gguf_value *tokens = butler_gguf_value(gguf, "tokenizer.ggml.tokens");
    int32_t eot = -1, eom = -1, found[BUTLER_COUNT(end_spellings)];
    int rc;
    if ((rc = butler_tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eot_token_id", &eot, err)) ||
        (rc = butler_tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eom_token_id", &eom, err)))
        return rc;
    memset(found, -1, sizeof found);
    for (uint32_t i = 0; i < tokenizer->vocab.n_tokens; i++) {
        size_t n;
        const char *bytes = butler_gguf_array_string(tokens, i, &n);
        int end = find_end(bytes, n);
        if (end < 0)
            continue;
        found[end] = (int32_t)i;
        if (tokenizer->vocab.types[i] != BUTLER_TOKEN_CONTROL)
            make_control(&tokenizer->vocab, i, bytes, n);
    }
    /* Where messages of several kinds end in their own ways, <|end|> is between them; Gemma 4 has </s> as a word. */
    bool call = found[END_CALL] >= 0 || found[END_CALLS] >= 0;
    bool messages = call && (found[END_RETURN] >= 0 || found[END_FLUSH] >= 0);
    int32_t no_end[2] = {messages ? found[END_END] : -1, found[END_TOOL_RESPONSE] >= 0 ? found[END_S] : -1};
    int32_t ids[BUTLER_COUNT(found) + 3] = {tokenizer->eos, eot, eom};
    memcpy(ids + 3, found, sizeof found);
    for (int i = 0; i < BUTLER_COUNT(ids); i++)
        if (ids[i] != no_end[0] && ids[i] != no_end[1])
            add_end(tokenizer, ids[i]);
    return BUTLER_OK;
}

static int read_phi3(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err)
{
    const char *name = "";
    int rc = butler_gguf_string(gguf, "general.name", false, &name, err);
    tokenizer->strip_after_special = strcasestr(name, "phi-3") || strcasestr(name, "phi3");
    return rc;
}

static int load(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *pre_tokenizer,
                struct butler_error *err)
{
    static const struct butler_family *const families[] = {&butler_family_spm, &butler_family_bpe};
    const char *name = NULL;
    int rc = butler_gguf_string(gguf, "tokenizer.ggml.model", true, &name, err);
    if (rc)
        return rc;
    for (int i = 0; i < BUTLER_COUNT(families); i++)
        if (strcmp(families[i]->name, name) == 0)
            tokenizer->family = families[i];
    if (!tokenizer->family)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%s: tokenizer.ggml.model is \"%.64s\"; butler knows \"llama\" and \"gpt2\"", butler_gguf_path(gguf),
                           name);
    tokenizer->bos = tokenizer->eos = tokenizer->unknown = -1;
    for (int i = 0; i < 256; i++)
        tokenizer->byte_symbols[i] = BUTLER_NO_SYMBOL;
    if ((rc = tokenizer->family->load(tokenizer, gguf, pre_tokenizer, err)) ||
        (rc = butler_tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", &tokenizer->bos, err)) ||
        (rc = butler_tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eos_token_id", &tokenizer->eos, err)) ||
        (rc = butler_tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.unknown_token_id", &tokenizer->unknown, err)) ||
        (rc = read_flag(gguf, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos, err)) ||
        (rc = read_flag(gguf, "tokenizer.ggml.add_eos_token", &tokenizer->add_eos, err)) ||
        (rc = read_phi3(tokenizer, gguf, err)) || (rc = find_ends(tokenizer, gguf, err)) ||
        (rc = butler_fim_init(tokenizer, gguf, err)))
        return rc;
    return butler_special_init(tokenizer, err);
}

struct butler_tokenizer *butler_tokenizer_new(const struct butler_gguf *gguf, const char *pre_tokenizer, struct butler_error *err)
{
    struct butler_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the tokenizer", butler_gguf_path(gguf));
        return NULL;
    }
    tokenizer->grammars.max = BUTLER_GRAMMARS_MEMORY;
    if (load(tokenizer, gguf, pre_tokenizer, err)) {
        butler_tokenizer_free(tokenizer);
        return NULL;
    }
    return tokenizer;
}

void butler_tokenizer_free(struct butler_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    butler_vocab_free(&tokenizer->vocab);
    butler_pairs_free(&tokenizer->pairs);
    butler_pairs_free(&tokenizer->adjacent);
    butler_split_free(tokenizer->split);
    butler_token_trie_free(tokenizer->trie);
    free(tokenizer->special);
    free(tokenizer);
}

/* ------------------------------------------------------------------------------------------------- encode */

void butler_find_bytes(struct butler_tokenizer *tokenizer)
{
    const struct butler_vocab *vocab = &tokenizer->vocab;
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        if (vocab->types[i] == BUTLER_TOKEN_BYTE)
            tokenizer->byte_symbols[(unsigned char)vocab->pieces[i].bytes[0]] = i;
}

int butler_encoder_emit_bytes(struct butler_encoder *encoder, const char *bytes, size_t n)
{
    const struct butler_tokenizer *tokenizer = encoder->tokenizer;
    bool invalid = n == 1 && (unsigned char)bytes[0] >= 0x80; /* no character, so none that is unknown */
    for (size_t i = 0; i < n; i++) {
        if (tokenizer->family->skips_unknown || invalid ||
            tokenizer->byte_symbols[(unsigned char)bytes[i]] < tokenizer->vocab.n_tokens)
            continue;
        if (tokenizer->unknown < 0)
            return butler_fail(encoder->err, BUTLER_ERROR_FORMAT,
                               "%s: the vocabulary has no token for the byte 0x%02X, and none for unknown text",
                               tokenizer->vocab.path, (unsigned char)bytes[i]);
        butler_encoder_emit(encoder, tokenizer->unknown);
        return BUTLER_OK;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = tokenizer->byte_symbols[(unsigned char)bytes[i]];
        if (id < tokenizer->vocab.n_tokens)
            butler_encoder_emit(encoder, (int32_t)id);
        else
            encoder->n_dropped++;
    }
    return BUTLER_OK;
}

int butler_encoder_flush(struct butler_encoder *encoder)
{
    const struct butler_vocab *vocab = &encoder->tokenizer->vocab;
    struct butler_merge *merge = &encoder->merge;
    int rc = merge->n_symbols > 1 ? butler_merge_run(merge, &encoder->tokenizer->pairs, encoder->err) : BUTLER_OK;
    for (size_t i = 0; i < merge->n_symbols && !rc; i++) {
        uint32_t id = merge->symbols[i].id;
        if (id < vocab->n_tokens)
            butler_encoder_emit(encoder, (int32_t)id);
        else
            rc = butler_encoder_emit_bytes(encoder, vocab->pieces[id].bytes, vocab->pieces[id].n_bytes);
    }
    merge->n_symbols = 0;
    return rc;
}

int butler_tokenizer_encode_marked(const struct butler_tokenizer *tokenizer, const struct butler_marked_text *text, int flags,
                                   int32_t *ids, int max_ids, struct butler_error *err)
{
    if (max_ids < 0 || (max_ids > 0 && !ids) || (text->n > 0 && !text->bytes) ||
        (flags & ~(BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL)))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "tokenize: invalid arguments: flags %d, %zu bytes of text, space for %d ids",
                           flags, text->n, max_ids);
    if (text->n > INT_MAX / 4)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "tokenize: a text of %zu bytes is too long; the maximum is %d", text->n,
                           INT_MAX / 4);
    if (tokenizer->no_split.code)
        return butler_fail(err, tokenizer->no_split.code, "%s", tokenizer->no_split.message);
    struct butler_encoder encoder = {.tokenizer = tokenizer, .ids = ids, .max_ids = max_ids, .err = err};
    struct butler_text_range *spans = NULL;
    size_t n_spans = 0;
    bool after_special = !text->continues;
    int rc = butler_special_cut(tokenizer, text->bytes, text->n, flags & BUTLER_PARSE_SPECIAL, text->marks, &spans, &n_spans, err);
    if (rc)
        goto fail;
    if ((flags & BUTLER_ADD_SPECIAL) && tokenizer->add_bos && tokenizer->bos >= 0)
        butler_encoder_emit(&encoder, tokenizer->bos);
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].token >= 0)
            butler_encoder_emit(&encoder, spans[i].token);
        else if ((rc = tokenizer->family->encode(&encoder, text->bytes + spans[i].start, spans[i].n, after_special)))
            goto fail;
        after_special = spans[i].token >= 0;
    }
    if ((flags & BUTLER_ADD_SPECIAL) && tokenizer->add_eos && tokenizer->eos >= 0)
        butler_encoder_emit(&encoder, tokenizer->eos);
    rc = encoder.n_ids;
    if (encoder.n_dropped > 0)
        butler_fail(err, BUTLER_OK, "%zu bytes of the text are left out: the vocabulary has no token for them", encoder.n_dropped);
fail:
    free(spans);
    butler_merge_free(&encoder.merge);
    return rc;
}

int butler_tokenizer_encode(const struct butler_tokenizer *tokenizer, const char *text, size_t n_text, int flags, int32_t *ids,
                            int max_ids, struct butler_error *err)
{
    return butler_tokenizer_encode_marked(tokenizer, &(struct butler_marked_text){text, n_text, NULL, false}, flags, ids, max_ids,
                                          err);
}

/* ---------------------------------------------------------------------------------------------- properties */

const char *butler_tokenizer_spelling(const struct butler_tokenizer *tokenizer, int32_t id, size_t *n_bytes)
{
    const bool exists = id >= 0 && (uint32_t)id < tokenizer->vocab.n_tokens;
    *n_bytes = exists ? tokenizer->vocab.pieces[id].n_bytes : 0;
    return *n_bytes ? tokenizer->vocab.pieces[id].bytes : "";
}

const char *butler_tokenizer_bytes(const struct butler_tokenizer *tokenizer, int32_t id, size_t *n_bytes)
{
    *n_bytes = 0;
    if (id < 0 || (uint32_t)id >= tokenizer->vocab.n_tokens)
        return NULL;
    unsigned char type = tokenizer->vocab.types[id];
    if (type != BUTLER_TOKEN_CONTROL && type != BUTLER_TOKEN_UNKNOWN)
        *n_bytes = tokenizer->vocab.pieces[id].n_bytes;
    return tokenizer->vocab.pieces[id].bytes;
}

int butler_tokenizer_n_vocab(const struct butler_tokenizer *tokenizer)
{
    return (int)tokenizer->vocab.n_tokens;
}

const char *butler_tokenizer_kind(const struct butler_tokenizer *tokenizer)
{
    return tokenizer->family->name;
}

int32_t butler_tokenizer_bos(const struct butler_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

bool butler_tokenizer_adds_bos(const struct butler_tokenizer *tokenizer)
{
    return tokenizer->add_bos && tokenizer->bos >= 0;
}

int32_t butler_tokenizer_eos(const struct butler_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool butler_tokenizer_is_end(const struct butler_tokenizer *tokenizer, int32_t id)
{
    for (int i = 0; i < tokenizer->n_ends; i++)
        if (tokenizer->ends[i] == id)
            return true;
    return false;
}

const struct butler_fim_tokens *butler_tokenizer_fim(const struct butler_tokenizer *tokenizer)
{
    return &tokenizer->fim;
}
