/* Shared by the tokenizer's files: the tokenizer itself, the scratch memory of one call, and the entry points of the two
 * families. */
#ifndef BUTLER_TOKENIZER_PARTS_H
#define BUTLER_TOKENIZER_PARTS_H

#include "text/merge.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "base/utf8.h"

struct butler_encoder;

struct butler_family {
    const char *name; /* tokenizer.ggml.model */
    /* pre_tokenizer as in butler_tokenizer_new. */
    int (*load)(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *pre_tokenizer,
                struct butler_error *err);
    /* Emits the ids of a piece of ordinary text. after_special: it begins the text or follows a special token. */
    int (*encode)(struct butler_encoder *encoder, const char *text, size_t n, bool after_special);
    /* A byte that the vocabulary has no token for is left out, as llama.cpp does for this family; else it becomes the
     * unknown token. SmolLM2 lacks six control characters, and its unknown token is also its end of text. */
    bool skips_unknown;
};
extern const struct butler_family butler_family_spm, butler_family_bpe;

enum { BUTLER_GRAMMARS_MEMORY = 1 << 30 }; /* bytes of the states of all grammars of a tokenizer; many run at once in a server */

struct butler_tokenizer {
    const struct butler_family *family;
    struct butler_vocab vocab;
    struct butler_pairs pairs;
    uint32_t byte_symbols[256]; /* symbol of a byte that is not part of a longer token; BUTLER_NO_SYMBOL: none */
    int32_t bos, eos, unknown;  /* -1: none */
    bool add_bos, add_eos;
    int32_t *special; /* [n_special] tokens that are searched in the text before anything else, sorted by bytes */
    int n_special;
    struct {
        int first, end; /* range in `special` of the tokens that begin with this byte */
        bool plain;     /* one of them is also searched if special tokens are read as plain text */
    } special_by_byte[256];
    bool strip_after_special; /* Phi-3: most special tokens include the white space that follows */
    int32_t ends[40];
    int n_ends;
    struct butler_fim_tokens fim;

    struct butler_pairs adjacent;  /* llama: which characters are adjacent in some token. Text may be split between all others */
    uint32_t ascii[128];           /* llama: symbol of a character */
    bool add_space_prefix;         /* llama */
    enum butler_spelling spelling; /* gpt2: what words begin as */
    struct butler_split *split;    /* gpt2; NULL: the file's pre-tokenizer is unknown, as no_split says */
    struct butler_error no_split;

    struct butler_token_trie *trie;       /* atomic; NULL until a grammar needs it */
    struct butler_shared_memory grammars; /* of the states of all grammars over its tokens */
};

/* One call of butler_tokenizer_encode. */
struct butler_encoder {
    const struct butler_tokenizer *tokenizer;
    struct butler_merge merge;
    int32_t *ids; /* [max_ids] */
    int n_ids, max_ids;
    size_t n_dropped; /* bytes that the vocabulary has no token for */
    struct butler_error *err;
};

static inline void butler_encoder_emit(struct butler_encoder *encoder, int32_t id)
{
    if (encoder->n_ids < encoder->max_ids)
        encoder->ids[encoder->n_ids] = id;
    encoder->n_ids++;
}

/* Length of the character at text[0], n > 0; an invalid byte counts as one character. */
static inline size_t butler_character(const char *text, size_t n)
{
    int length = butler_utf8_decode(text, n, NULL);
    return length > 0 ? (size_t)length : 1;
}

/* Whether the character text[n] is U+2581, which files write for a space. */
static inline bool butler_is_mark(const char *text, size_t n)
{
    return n == 3 && text[0] == '\xE2' && text[1] == '\x96' && text[2] == '\x81';
}

/* An id may be absent, or be given as absent by -1 in 32 bits: then *id stays. One that is no token's is as good as absent: only a
 * text that asks for that token would need it. */
int butler_tokenizer_read_id(const struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, const char *key, int32_t *id,
                             struct butler_error *err);
/* tokenizer_fim.c */
int butler_fim_init(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err);

/* Points byte_symbols at the tokens of type byte. */
void butler_find_bytes(struct butler_tokenizer *tokenizer);

/* tokenizer_spm.c. A butler_spelling_fn: U+2581 becomes a space; a token with a plain space is not mergeable. */
size_t butler_spelling_marked(char *bytes, size_t n, bool *mergeable);

/* Merges the symbols of encoder->merge, emits the result and empties it. */
int butler_encoder_flush(struct butler_encoder *encoder);
/* Bytes that are no part of a token: each one's own token. Where one of them has none, by the family: nothing for that
 * byte, or the unknown token for all of them; nothing for a byte that is not UTF-8. */
int butler_encoder_emit_bytes(struct butler_encoder *encoder, const char *bytes, size_t n);

/* tokenizer_special.c */
int butler_special_init(struct butler_tokenizer *tokenizer, struct butler_error *err);

struct butler_text_range {
    size_t start, n; /* of the text */
    int32_t token;   /* -1: ordinary text */
};

/* Cuts text[n] at its special tokens into *spans (malloc'ed). Longer tokens first, anywhere in the text; of equally long
 * ones the leftmost. parse: control and unknown tokens too, not only user-defined ones; with marks[n] only those of which all
 * bytes are marked. */
int butler_special_cut(const struct butler_tokenizer *tokenizer, const char *text, size_t n, bool parse, const char *marks,
                       struct butler_text_range **spans, size_t *n_spans, struct butler_error *err);

#endif
