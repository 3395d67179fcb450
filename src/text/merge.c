/* Merges symbols with a heap of pairs: a word of n symbols costs O(n log n). */
#include "text/merge.h"
#include "base/buffer.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- pairs */

static size_t pair_slot(const struct butler_pairs *pairs, uint32_t left, uint32_t right)
{
    size_t mask = pairs->n_slots - 1;
    uint64_t hash = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    size_t slot = (size_t)(hash >> 32) & mask;
    while (pairs->slots[slot].left != BUTLER_NO_SYMBOL && (pairs->slots[slot].left != left || pairs->slots[slot].right != right))
        slot = (slot + 1) & mask;
    return slot;
}

const struct butler_pair *butler_pairs_find(const struct butler_pairs *pairs, uint32_t left, uint32_t right)
{
    if (pairs->n_slots == 0)
        return NULL;
    const struct butler_pair *pair = &pairs->slots[pair_slot(pairs, left, right)];
    return pair->left == BUTLER_NO_SYMBOL ? NULL : pair;
}

int butler_pairs_add(struct butler_pairs *pairs, struct butler_pair pair, struct butler_error *err)
{
    if (pairs->n_used * 3 >= pairs->n_slots * 2) {
        struct butler_pairs grown = {.n_slots = pairs->n_slots ? pairs->n_slots * 2 : 512, .n_used = pairs->n_used};
        grown.slots = malloc(grown.n_slots * sizeof *grown.slots);
        if (!grown.slots)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the tokenizer's %zu pairs", grown.n_slots);
        for (size_t i = 0; i < grown.n_slots; i++)
            grown.slots[i].left = BUTLER_NO_SYMBOL;
        for (size_t i = 0; i < pairs->n_slots; i++)
            if (pairs->slots[i].left != BUTLER_NO_SYMBOL)
                grown.slots[pair_slot(&grown, pairs->slots[i].left, pairs->slots[i].right)] = pairs->slots[i];
        free(pairs->slots);
        *pairs = grown;
    }
    struct butler_pair *slot = &pairs->slots[pair_slot(pairs, pair.left, pair.right)];
    if (slot->left == BUTLER_NO_SYMBOL) {
        *slot = pair;
        pairs->n_used++;
    }
    return BUTLER_OK;
}

void butler_pairs_free(struct butler_pairs *pairs)
{
    free(pairs->slots);
    *pairs = (struct butler_pairs){0};
}

/* -------------------------------------------------------------------------------------------------- heap */

static int no_memory(size_t n, struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory to split a text into tokens: %zu symbols", n);
}

static int heap_push(struct butler_merge *merge, uint64_t key, struct butler_error *err)
{
    if (!butler_grow(&merge->heap, merge->n_heap + 1, &merge->heap_capacity, sizeof *merge->heap))
        return no_memory(merge->n_heap + 1, err);
    size_t i = merge->n_heap++;
    for (; i > 0 && merge->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        merge->heap[i] = merge->heap[(i - 1) / 2];
    merge->heap[i] = key;
    return BUTLER_OK;
}

static uint64_t heap_pop(struct butler_merge *merge)
{
    uint64_t *heap = merge->heap, top = heap[0], last = heap[--merge->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < merge->n_heap) {
        child += child + 1 < merge->n_heap && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* ----------------------------------------------------------------------------------------------- merging */

int butler_merge_add(struct butler_merge *merge, uint32_t id, struct butler_error *err)
{
    if (!butler_grow(&merge->symbols, merge->n_symbols + 1, &merge->symbol_capacity, sizeof *merge->symbols))
        return no_memory(merge->n_symbols + 1, err);
    int32_t i = (int32_t)merge->n_symbols++;
    merge->symbols[i] = (struct butler_merge_symbol){.id = id, .rank = BUTLER_NO_SYMBOL, .previous = i - 1, .next = -1};
    if (i > 0)
        merge->symbols[i - 1].next = i;
    return BUTLER_OK;
}

/* Looks up the merge of symbol i with its right neighbour, and queues it. */
static int consider(struct butler_merge *merge, const struct butler_pairs *pairs, int32_t i, struct butler_error *err)
{
    struct butler_merge_symbol *symbol = &merge->symbols[i];
    symbol->rank = BUTLER_NO_SYMBOL;
    if (symbol->next < 0)
        return BUTLER_OK;
    const struct butler_pair *pair = butler_pairs_find(pairs, symbol->id, merge->symbols[symbol->next].id);
    if (!pair)
        return BUTLER_OK;
    symbol->rank = pair->rank;
    symbol->result = pair->result;
    return heap_push(merge, (uint64_t)pair->rank << 32 | (uint32_t)i, err);
}

int butler_merge_run(struct butler_merge *merge, const struct butler_pairs *pairs, struct butler_error *err)
{
    int rc;
    merge->n_heap = 0;
    for (size_t i = 0; i + 1 < merge->n_symbols; i++)
        if ((rc = consider(merge, pairs, (int32_t)i, err)))
            return rc;
    while (merge->n_heap > 0) {
        uint64_t top = heap_pop(merge);
        int32_t left = (int32_t)(top & UINT32_MAX);
        struct butler_merge_symbol *symbol = &merge->symbols[left];
        /* Heap entries are not removed when a neighbour changes: an entry is stale if the pair at its symbol now has another
         * rank. */
        if (symbol->rank != (uint32_t)(top >> 32))
            continue;
        struct butler_merge_symbol *gone = &merge->symbols[symbol->next];
        gone->rank = BUTLER_NO_SYMBOL;
        symbol->id = symbol->result;
        symbol->next = gone->next;
        if (gone->next >= 0)
            merge->symbols[gone->next].previous = left;
        if ((rc = consider(merge, pairs, left, err)))
            return rc;
        if (symbol->previous >= 0 && (rc = consider(merge, pairs, symbol->previous, err)))
            return rc;
    }
    size_t n = 0;
    for (int32_t i = merge->n_symbols ? 0 : -1; i >= 0; i = merge->symbols[i].next)
        merge->symbols[n++].id = merge->symbols[i].id;
    merge->n_symbols = n;
    return BUTLER_OK;
}

void butler_merge_free(struct butler_merge *merge)
{
    free(merge->symbols);
    free(merge->heap);
    *merge = (struct butler_merge){0};
}
