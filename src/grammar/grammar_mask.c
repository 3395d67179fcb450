/* Which tokens a state of a grammar allows. The vocabulary is a trie over its bytes: one walk steps the machine once for each
 * beginning that tokens share, and leaves out all that follows a byte that is not allowed.
 *
 * Inside a string nearly the whole vocabulary is walked. Most of its tokens do not depend on where the string stands: that walk is
 * made from the state with a shortened stack, once for all strings, and leaves a list of the branches that leave the string. Only
 * these are walked again for each state. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "base/buffer.h"
#include "grammar/grammar_parts.h"
#include "text/token_trie.h"
#include "text/tokenizer_parts.h"

enum {
    MAX_MASKS = 1024,
    MAX_SHORT_MASKS = 256,
};

struct mask {
    int32_t state;  /* 0: free */
    int n_allowed;  /* tokens, without those that end an answer */
    uint64_t *bits; /* [n_words] */
    uint32_t *open; /* [n_open] of a shortened state: nodes whose branches the stack decides */
    size_t n_open, max_open;
};

struct butler_grammar {
    int n_owners; /* atomic */
    struct butler_tokenizer *tokenizer;
    const struct butler_token_trie *trie;
    struct butler_rules rules;
    pthread_mutex_t lock; /* of what follows */
    struct butler_machine *machine;
    struct mask masks[MAX_MASKS];           /* the latest */
    struct mask shortened[MAX_SHORT_MASKS]; /* the same, of shortened states */
    uint32_t n_masks, n_shortened;          /* that were made */
    size_t n_words;
};

/* ------------------------------------------------------------------------------------------------- grammars */

struct butler_grammar *butler_grammar_compile(struct butler_tokenizer *tokenizer, const char *gbnf, struct butler_error *err)
{
    struct butler_grammar *grammar = butler_alloc(sizeof *grammar, err);
    if (!grammar)
        return NULL;
    pthread_mutex_init(&grammar->lock, NULL);
    grammar->n_owners = 1;
    grammar->tokenizer = tokenizer;
    if (butler_gbnf_parse(&grammar->rules, gbnf, tokenizer, err) < 0 || !(grammar->trie = butler_token_trie_of(tokenizer, err)) ||
        !(grammar->machine = butler_machine_new(&grammar->rules, &tokenizer->grammars, err))) {
        butler_grammar_free(grammar);
        return NULL;
    }
    grammar->n_words = (size_t)BUTLER_CEIL_DIV(grammar->trie->n_tokens, 64);
    return grammar;
}

void butler_grammar_keep(const struct butler_grammar *grammar)
{
    __atomic_add_fetch((int *)&grammar->n_owners, 1, __ATOMIC_RELAXED);
}

void butler_grammar_free(struct butler_grammar *grammar)
{
    if (!grammar || __atomic_sub_fetch(&grammar->n_owners, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (int i = 0; i < MAX_MASKS; i++)
        free(grammar->masks[i].bits);
    for (int i = 0; i < MAX_SHORT_MASKS; i++) {
        free(grammar->shortened[i].bits);
        free(grammar->shortened[i].open);
    }
    butler_machine_free(grammar->machine);
    butler_rules_free(&grammar->rules);
    pthread_mutex_destroy(&grammar->lock);
    free(grammar);
}

int32_t butler_grammar_start(const struct butler_grammar *grammar)
{
    return butler_machine_start(grammar->machine);
}

/* The lock makes the machine's states shared by all threads; what a grammar allows never changes. */
static struct butler_machine *enter(const struct butler_grammar *grammar)
{
    pthread_mutex_lock((pthread_mutex_t *)&grammar->lock);
    butler_machine_begin(grammar->machine, BUTLER_GRAMMAR_WORK);
    return grammar->machine;
}

static void leave(const struct butler_grammar *grammar)
{
    pthread_mutex_unlock((pthread_mutex_t *)&grammar->lock);
}

int32_t butler_grammar_advance(const struct butler_grammar *grammar, int32_t state, int32_t id, struct butler_error *err)
{
    size_t n = 0;
    char code[BUTLER_TOKEN_CODE];
    const char *bytes = butler_token_code_bytes(grammar->tokenizer, id, code, &n);
    const bool ends = butler_tokenizer_is_end(grammar->tokenizer, id);
    struct butler_machine *machine = enter(grammar);
    if (ends)
        state = butler_machine_can_end(machine, state) ? butler_machine_end(machine) : 0;
    else if (n == 0)
        state = 0;
    for (size_t i = 0; i < n && state > 0 && !ends; i++)
        state = butler_machine_step(machine, state, (unsigned char)bytes[i], err);
    leave(grammar);
    return state;
}

/* ----------------------------------------------------------------------------------------------------- mask */

static int add_open(struct mask *mask, uint32_t node, struct butler_error *err)
{
    if (!butler_grow(&mask->open, mask->n_open + 1, &mask->max_open, sizeof *mask->open))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %zu branches of a mask", mask->n_open + 1);
    mask->open[mask->n_open++] = node;
    return 0;
}

/* Sets the bits of all tokens of the nodes [first, end) that are allowed; `state` is the one before node first. Of a shortened
 * state a branch that ends where the whole state may go on is left open. */
static int walk(const struct butler_token_trie *trie, struct butler_machine *machine, struct mask *mask, int32_t state,
                bool is_short, uint32_t first, uint32_t end, struct butler_error *err)
{
    int32_t states[BUTLER_MAX_TOKEN_BYTES + 1];
    bool escapes[BUTLER_MAX_TOKEN_BYTES + 1]; /* this state or one before it */
    const struct token_node *nodes = trie->nodes;
    int code = 0;
    if (first == end)
        return 0;
    states[nodes[first].depth] = state;
    escapes[nodes[first].depth] = butler_machine_escapes(machine, state);
    for (uint32_t i = first; i < end && code == 0;) {
        const int depth = nodes[i].depth;
        const int32_t *known = butler_machine_known(machine, states[depth]);
        state = known ? known[nodes[i].byte] : -1;
        if (state < 0 && (state = butler_machine_step(machine, states[depth], nodes[i].byte, err)) < 0)
            return state;
        if (state == 0) {
            code = escapes[depth] || (is_short && depth >= BUTLER_MANY_REPEATS) ? add_open(mask, i, err) : 0;
            i = nodes[i].next;
            continue;
        }
        escapes[depth + 1] = escapes[depth] || (state != states[depth] && butler_machine_escapes(machine, state));
        states[depth + 1] = state;
        for (uint32_t k = nodes[i].first_id; k < nodes[i + 1].first_id; k++)
            mask->bits[trie->ids[k] / 64] |= (uint64_t)1 << trie->ids[k] % 64;
        mask->n_allowed += (int)(nodes[i + 1].first_id - nodes[i].first_id);
        i++;
    }
    return code;
}

static struct mask *cached(struct mask *masks, int n, int32_t state)
{
    for (int i = 0; i < n; i++)
        if (masks[i].state == state)
            return &masks[i];
    return NULL;
}

/* An empty mask of a state in its place of the cache; NULL: *err says why. */
static struct mask *begin_mask(struct mask *mask, size_t n_words, struct butler_error *err)
{
    mask->state = 0;
    if (!mask->bits && !(mask->bits = butler_alloc(n_words * sizeof *mask->bits + 1, err)))
        return NULL;
    memset(mask->bits, 0, n_words * sizeof *mask->bits);
    mask->n_allowed = 0;
    mask->n_open = 0;
    return mask;
}

/* The mask of a shortened state, without its open branches. */
static const struct mask *find_shortened(struct butler_grammar *grammar, int32_t state, struct butler_error *err)
{
    struct mask *mask = cached(grammar->shortened, MAX_SHORT_MASKS, state);
    if (mask)
        return mask;
    mask = &grammar->shortened[grammar->n_shortened++ % MAX_SHORT_MASKS];
    if (!begin_mask(mask, grammar->n_words, err) ||
        walk(grammar->trie, grammar->machine, mask, state, true, 0, grammar->trie->n_nodes, err) < 0) {
        grammar->n_shortened--; /* the place is free */
        return NULL;
    }
    mask->state = state;
    return mask;
}

/* Walks a branch that the shortened state left open: its first bytes are those of any token in it. */
static int walk_open(struct butler_grammar *grammar, struct mask *mask, int32_t state, uint32_t node, struct butler_error *err)
{
    const struct butler_token_trie *trie = grammar->trie;
    char code[BUTLER_TOKEN_CODE];
    size_t n;
    const char *bytes = butler_token_trie_bytes(grammar->tokenizer, trie->ids[trie->nodes[node].first_id], code, &n);
    for (int i = 0; i < trie->nodes[node].depth && state > 0; i++)
        state = butler_machine_step(grammar->machine, state, (unsigned char)bytes[i], err);
    return state <= 0 ? state : walk(trie, grammar->machine, mask, state, false, node, trie->nodes[node].next, err);
}

/* The mask of a state, from the cache or made now. NULL: *err says why. */
static const struct mask *find_mask(struct butler_grammar *grammar, int32_t state, struct butler_error *err)
{
    struct mask *mask = cached(grammar->masks, MAX_MASKS, state);
    if (mask)
        return mask;
    mask = &grammar->masks[grammar->n_masks++ % MAX_MASKS];
    const int32_t shorter = butler_machine_shorten(grammar->machine, state, err);
    const struct mask *part = shorter < 0 ? NULL : find_shortened(grammar, shorter, err);
    int code = part && begin_mask(mask, grammar->n_words, err) ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0) {
        memcpy(mask->bits, part->bits, grammar->n_words * sizeof *mask->bits);
        mask->n_allowed = part->n_allowed;
    }
    for (size_t i = 0; code >= 0 && i < part->n_open; i++)
        code = walk_open(grammar, mask, state, part->open[i], err);
    if (code < 0) {
        grammar->n_masks--; /* the place is free */
        return NULL;
    }
    mask->state = state;
    return mask;
}

int butler_grammar_prepare(const struct butler_grammar *grammar, int32_t state, size_t work, size_t *spent,
                           struct butler_error *err)
{
    struct butler_error own = {.code = BUTLER_ERROR_MEMORY};
    struct butler_machine *machine = enter(grammar);
    butler_machine_begin(machine, work);
    int code = find_mask((struct butler_grammar *)grammar, state, &own) ? 1 : own.code;
    const bool paused = butler_machine_paused(machine);
    *spent += butler_machine_work(machine);
    leave(grammar);
    if (code < 0 && paused && *spent <= BUTLER_GRAMMAR_WORK)
        return 0;
    if (code < 0 && err)
        *err = own;
    return code;
}

static void forbid(const struct mask *mask, int n_tokens, float *logits, int n_vocab)
{
    for (int i = 0; i < n_vocab; i += 64) {
        const uint64_t bits = i < n_tokens ? mask->bits[i / 64] : 0;
        const int n = BUTLER_MIN(64, n_vocab - i);
        if (bits == UINT64_MAX)
            continue;
        for (int k = 0; k < n; k++)
            logits[i + k] = bits >> k & 1 ? logits[i + k] : -INFINITY;
    }
}

int butler_grammar_mask(const struct butler_grammar *grammar, int32_t state, float *logits, int n_vocab, struct butler_error *err)
{
    const struct butler_token_trie *trie = grammar->trie;
    struct butler_machine *machine = enter(grammar);
    const bool can_end = butler_machine_can_end(machine, state);
    const struct mask *mask = find_mask((struct butler_grammar *)grammar, state, err);
    int n = mask ? mask->n_allowed : BUTLER_ERROR_UNSUPPORTED;
    if (mask) {
        float ends[64];
        const int n_ends = can_end ? BUTLER_MIN(trie->n_ends, BUTLER_COUNT(ends)) : 0;
        for (int i = 0; i < n_ends; i++)
            ends[i] = trie->ends[i] < n_vocab ? logits[trie->ends[i]] : -INFINITY;
        forbid(mask, trie->n_tokens, logits, n_vocab);
        for (int i = 0; i < n_ends; i++)
            if (trie->ends[i] < n_vocab)
                logits[trie->ends[i]] = ends[i];
        n += n_ends;
    }
    leave(grammar);
    return n;
}
