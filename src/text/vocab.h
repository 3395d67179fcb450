/* What a tokenizer knows about its tokens: their bytes in text, their types, and lookup by bytes. Strings that are not tokens
 * but that merging passes through get ids above the tokens': symbols. */
#ifndef BUTLER_VOCAB_H
#define BUTLER_VOCAB_H

#include "file/gguf.h"

/* GGUF's numbers for tokenizer.ggml.token_type. */
enum butler_token_type {
    BUTLER_TOKEN_UNDEFINED,
    BUTLER_TOKEN_NORMAL,
    BUTLER_TOKEN_UNKNOWN,
    BUTLER_TOKEN_CONTROL,
    BUTLER_TOKEN_USER_DEFINED,
    BUTLER_TOKEN_UNUSED,
    BUTLER_TOKEN_BYTE,
    BUTLER_N_TOKEN_TYPES,
};

#define BUTLER_NO_SYMBOL UINT32_MAX
/* Longer tokens are refused: no real vocabulary has them, and the cost of matching them is quadratic in this length. */
#define BUTLER_MAX_TOKEN_BYTES 1024

struct butler_piece {
    const char *bytes;
    uint32_t n_bytes;
    bool mergeable; /* ordinary text: what merging may produce. Tokens with a special meaning are not mergeable */
};

struct butler_vocab {
    const char *path; /* borrowed, for errors */
    uint32_t n_tokens;
    unsigned char *types;        /* [n_tokens], enum butler_token_type */
    char *bytes;                 /* of all tokens, concatenated */
    struct butler_piece *pieces; /* [n_symbols]; those from n_tokens on own their bytes */
    uint32_t n_symbols;
    size_t capacity;
    uint32_t *slots;          /* hash table of the mergeable pieces; BUTLER_NO_SYMBOL: free slot */
    uint32_t n_slots, n_used; /* n_slots is a power of two */
};

/* Converts a token from the file's spelling to its bytes, in place; returns their number. Sets *mergeable to false if no text
 * can produce the spelling. */
typedef size_t butler_spelling_fn(char *bytes, size_t n, bool *mergeable);

/* Reads and checks tokens and types. `infer` gives the type of a token if the file has no types. */
int butler_vocab_init(struct butler_vocab *vocab, const struct butler_gguf *gguf, butler_spelling_fn *spelling,
                      enum butler_token_type (*infer)(const char *bytes, size_t n), struct butler_error *err);
void butler_vocab_free(struct butler_vocab *vocab);

/* The mergeable token or symbol with these bytes, or BUTLER_NO_SYMBOL. */
uint32_t butler_vocab_find(const struct butler_vocab *vocab, const char *bytes, size_t n);
/* The same, but adds a symbol if there is none. BUTLER_NO_SYMBOL: no memory. */
uint32_t butler_vocab_intern(struct butler_vocab *vocab, const char *bytes, size_t n, struct butler_error *err);

/* Checks that an array of the file has one element of that type per token. */
int butler_vocab_array(const struct butler_vocab *vocab, const struct butler_gguf *gguf, const char *key,
                       enum butler_gguf_type element_type, const struct butler_gguf_value **out, struct butler_error *err);

#endif
