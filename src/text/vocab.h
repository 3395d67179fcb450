/* What a tokenizer knows of its tokens: their bytes as they stand in text, their types, and which token a string is.
 * Strings that are no token, but that merging passes through, get numbers above the tokens': symbols. */
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
/* Longer tokens are refused: no real vocabulary comes near, and what a hostile one may cost is quadratic in this. */
#define BUTLER_MAX_TOKEN_BYTES 1024

struct butler_piece {
    const char *bytes;
    uint32_t n_bytes;
    bool mergeable; /* ordinary text: what merging may produce. Tokens with a meaning of their own are not */
};

struct butler_vocab {
    const char *path; /* borrowed, for messages */
    uint32_t n_tokens;
    unsigned char *types;        /* [n_tokens], enum butler_token_type */
    char *bytes;                 /* of all tokens, one after the other */
    struct butler_piece *pieces; /* [n_symbols]; from n_tokens on each owns its bytes */
    uint32_t n_symbols, capacity;
    uint32_t *slots;          /* hash table of the mergeable pieces; BUTLER_NO_SYMBOL: free */
    uint32_t n_slots, n_used; /* n_slots is a power of two */
};

/* Turns a token as the file spells it into its bytes, in place; returns how many. Sets *mergeable to false for a spelling
 * that no text leads to. */
typedef size_t butler_spelling_fn(char *bytes, size_t n, bool *mergeable);

/* Reads and checks tokens and types. `infer` gives the type of a token where the file has no types. */
int butler_vocab_init(struct butler_vocab *vocab, const struct butler_gguf *gguf, butler_spelling_fn *spelling,
                      enum butler_token_type (*infer)(const char *bytes, size_t n), struct butler_error *err);
void butler_vocab_free(struct butler_vocab *vocab);

/* The mergeable token or symbol with these bytes, or BUTLER_NO_SYMBOL. */
uint32_t butler_vocab_find(const struct butler_vocab *vocab, const char *bytes, size_t n);
/* The same, made if there is none. BUTLER_NO_SYMBOL: no memory. */
uint32_t butler_vocab_intern(struct butler_vocab *vocab, const char *bytes, size_t n, struct butler_error *err);

/* Checks that an array of the file has one element of that type per token. */
int butler_vocab_array(const struct butler_vocab *vocab, const struct butler_gguf *gguf, const char *key,
                       enum butler_gguf_type element_type, const struct butler_gguf_value **out, struct butler_error *err);

#endif
