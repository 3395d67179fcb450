/* The merge step of both tokenizer families: adjacent symbols are joined, best pair first, until the vocabulary has no merge
 * for any pair left. */
#ifndef BUTLER_MERGE_H
#define BUTLER_MERGE_H

#include "text/vocab.h"

/* left and right become result. The pair with the lower rank is merged first. */
struct butler_pair {
    uint32_t left, right, rank, result;
};

struct butler_pairs {
    struct butler_pair *slots; /* hash table; left == BUTLER_NO_SYMBOL: free slot */
    size_t n_slots, n_used;    /* n_slots is 0 or a power of two */
};

/* If a pair is added twice, the first entry stays. */
int butler_pairs_add(struct butler_pairs *pairs, struct butler_pair pair, struct butler_error *err);
const struct butler_pair *butler_pairs_find(const struct butler_pairs *pairs, uint32_t left, uint32_t right); /* or NULL */
void butler_pairs_free(struct butler_pairs *pairs);

/* Scratch memory of one call. */
struct butler_merge {
    struct butler_merge_symbol {
        uint32_t id;
        uint32_t rank, result; /* of the merge of this symbol with the next; rank BUTLER_NO_SYMBOL: none */
        int32_t previous, next;
    } * symbols;
    size_t n_symbols, symbol_capacity;
    uint64_t *heap; /* rank << 32 | symbol: the lowest is on top, so equal ranks go left to right */
    size_t n_heap, heap_capacity;
};

int butler_merge_add(struct butler_merge *merge, uint32_t id, struct butler_error *err);
/* Merges until nothing is left to merge. symbols[0..n_symbols) are then the result, in order. */
int butler_merge_run(struct butler_merge *merge, const struct butler_pairs *pairs, struct butler_error *err);
void butler_merge_free(struct butler_merge *merge);

#endif
