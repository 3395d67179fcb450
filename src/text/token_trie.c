/* See token_trie.h. */
#include <stdlib.h>
#include <string.h>

#include "text/token_trie.h"
#include "text/tokenizer_parts.h"

const char *butler_token_code_bytes(const struct butler_tokenizer *tokenizer, int32_t id, char code[BUTLER_TOKEN_CODE], size_t *n)
{
    const char *bytes = butler_tokenizer_bytes(tokenizer, id, n);
    if (bytes && *n > 0) {
        *n = memchr(bytes, 0xff, *n) ? 0 : *n;
        return bytes;
    }
    if (!bytes || tokenizer->vocab.types[id] != BUTLER_TOKEN_CONTROL || butler_tokenizer_is_end(tokenizer, id))
        return "";
    for (int i = 0; i < BUTLER_TOKEN_CODE; i++)
        code[i] = (char)(i == 0 ? 0xff : id >> 8 * (BUTLER_TOKEN_CODE - 1 - i) & 0xff);
    *n = BUTLER_TOKEN_CODE;
    return code;
}

void butler_token_trie_free(struct butler_token_trie *trie)
{
    if (!trie)
        return;
    free(trie->ids);
    free(trie->nodes);
    free(trie->ends);
    free(trie);
}

const char *butler_token_trie_bytes(const struct butler_tokenizer *tokenizer, uint32_t id, char code[BUTLER_TOKEN_CODE], size_t *n)
{
    if (tokenizer->vocab.types[id] == BUTLER_TOKEN_CONTROL)
        return butler_token_code_bytes(tokenizer, (int32_t)id, code, n);
    *n = tokenizer->vocab.pieces[id].n_bytes;
    return tokenizer->vocab.pieces[id].bytes;
}

static int by_bytes(const void *a, const void *b, void *user)
{
    char codes[2][BUTLER_TOKEN_CODE];
    size_t n, m;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const char *p = butler_token_trie_bytes(user, x, codes[0], &n), *q = butler_token_trie_bytes(user, y, codes[1], &m);
    const int order = memcmp(p, q, BUTLER_MIN(n, m));
    if (order)
        return order;
    return n != m ? (n > m) - (n < m) : (x > y) - (x < y);
}

/* Sorts the tokens that a grammar can have, and finds those that end an answer: they count as such, whatever their bytes. */
static size_t sort_tokens(struct butler_token_trie *trie, const struct butler_tokenizer *tokenizer)
{
    size_t n_bytes = 0, n;
    for (int32_t id = 0; id < trie->n_tokens; id++) {
        char code[BUTLER_TOKEN_CODE];
        butler_token_code_bytes(tokenizer, id, code, &n);
        if (butler_tokenizer_is_end(tokenizer, id)) {
            trie->ends[trie->n_ends++] = id;
        } else if (n > 0) {
            trie->ids[trie->n_ids++] = (uint32_t)id;
            n_bytes += n;
        }
    }
    qsort_r(trie->ids, trie->n_ids, sizeof *trie->ids, by_bytes, (void *)tokenizer);
    return n_bytes;
}

/* Nodes of the sorted tokens, of which each shares what it can with the one before. */
static void add_nodes(struct butler_token_trie *trie, const struct butler_tokenizer *tokenizer)
{
    uint32_t path[BUTLER_MAX_TOKEN_BYTES];
    char codes[2][BUTLER_TOKEN_CODE];
    const char *before = "";
    size_t n_before = 0, n, depth = 0;
    for (uint32_t i = 0; i < trie->n_ids; i++) {
        const char *bytes = butler_token_trie_bytes(tokenizer, trie->ids[i], codes[i % 2], &n);
        size_t shared = 0;
        while (shared < BUTLER_MIN(n_before, n) && before[shared] == bytes[shared])
            shared++;
        for (; depth > shared; depth--)
            trie->nodes[path[depth - 1]].next = trie->n_nodes;
        for (; depth < n; depth++) {
            path[depth] = trie->n_nodes;
            trie->nodes[trie->n_nodes++] =
                (struct token_node){.first_id = i, .depth = (uint16_t)depth, .byte = (uint8_t)bytes[depth]};
        }
        before = bytes;
        n_before = n;
    }
    for (; depth > 0; depth--)
        trie->nodes[path[depth - 1]].next = trie->n_nodes;
    trie->nodes[trie->n_nodes].first_id = trie->n_ids;
}

static struct butler_token_trie *make_trie(const struct butler_tokenizer *tokenizer, struct butler_error *err)
{
    struct butler_token_trie *trie = butler_alloc(sizeof *trie, err);
    if (!trie)
        return NULL;
    trie->n_tokens = butler_tokenizer_n_vocab(tokenizer);
    trie->ids = malloc((size_t)trie->n_tokens * sizeof *trie->ids + 1);
    trie->ends = malloc((size_t)trie->n_tokens * sizeof *trie->ends + 1);
    if (trie->ids && trie->ends)
        trie->nodes = malloc((sort_tokens(trie, tokenizer) + 1) * sizeof *trie->nodes);
    if (!trie->nodes) {
        butler_token_trie_free(trie);
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a trie of %d tokens", butler_tokenizer_n_vocab(tokenizer));
        return NULL;
    }
    add_nodes(trie, tokenizer);
    struct token_node *nodes = realloc(trie->nodes, ((size_t)trie->n_nodes + 1) * sizeof *nodes); /* shared beginnings need less */
    if (nodes)
        trie->nodes = nodes;
    return trie;
}

const struct butler_token_trie *butler_token_trie_of(struct butler_tokenizer *tokenizer, struct butler_error *err)
{
    struct butler_token_trie *trie = __atomic_load_n(&tokenizer->trie, __ATOMIC_ACQUIRE), *none = NULL;
    if (trie || !(trie = make_trie(tokenizer, err)))
        return trie;
    if (__atomic_compare_exchange_n(&tokenizer->trie, &none, trie, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return trie;
    butler_token_trie_free(trie);
    return none;
}
