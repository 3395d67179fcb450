/* The tokens of a vocabulary in a trie over their bytes, and what bytes a token is to a grammar. */
#ifndef BUTLER_TOKEN_TRIE_H
#define BUTLER_TOKEN_TRIE_H

#include "text/tokenizer.h"

/* The bytes that stand for a token in a grammar: its text, or, of a control token, which has none, the byte 0xFF
 * and three bytes of its id, written to code. UTF-8 has no byte 0xFF, so only <name> or <[id]> of a grammar matches it. *n 0: no
 * grammar can match the token. */
enum { BUTLER_TOKEN_CODE = 4 };
const char *butler_token_code_bytes(const struct butler_tokenizer *tokenizer, int32_t id, char code[BUTLER_TOKEN_CODE], size_t *n);

struct butler_token_trie {
    int n_tokens;  /* of the vocabulary */
    uint32_t *ids; /* [n_ids] tokens in the order of their bytes */
    uint32_t n_ids;
    /* Without the root, parents before children. next: the node behind all children; its own tokens are ids[first_id] up to the
     * next node's first_id. */
    struct token_node {
        uint32_t next, first_id;
        uint16_t depth;
        uint8_t byte;
    } * nodes; /* [n_nodes + 1]; the last ends ids */
    uint32_t n_nodes;
    int32_t *ends; /* [n_ends] tokens that end an answer */
    int n_ends;
};

/* The tokenizer's trie, made at the first call and freed with the tokenizer. Of several threads that make the first one, all use
 * what one of them has made. NULL: no memory. */
const struct butler_token_trie *butler_token_trie_of(struct butler_tokenizer *tokenizer, struct butler_error *err);
/* butler_token_code_bytes of a token that the trie has. */
const char *butler_token_trie_bytes(const struct butler_tokenizer *tokenizer, uint32_t id, char code[BUTLER_TOKEN_CODE], size_t *n);
void butler_token_trie_free(struct butler_token_trie *trie);

#endif
