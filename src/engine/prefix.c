/* The prefix cache, see prefix.h. Its state is host memory; pages are only counted. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/library.h"
#include "engine/session.h"

enum {
    TOKENS = BUTLER_EXTENT_TOKENS,
    LEAST = 8, /* tokens that are worth a part of a block: its extents are copied when the session writes there */
};

/* Tokens of texts that begin alike. Those of one parent differ in their tokens. */
struct block {
    struct block *parent, *children, *next; /* the block before it, or NULL; next: of the same parent */
    struct block *older, *newer;            /* of all, by use */
    struct butler_pages *pages;
    uint64_t kind;
    int n, n_extents; /* n: tokens; fewer than TOKENS: the end of a prompt, which has no children */
    int32_t tokens[TOKENS];
    uint32_t extents[]; /* [n_layers][n_kv_heads] */
};

struct butler_prefix {
    struct block *first;           /* without a parent */
    struct block *oldest, *newest; /* a block is used before its children are */
    uint64_t max_bytes;
    struct butler_prefix_stats stats;
};

struct butler_prefix *butler_prefix_new(uint64_t max_bytes, struct butler_error *err)
{
    struct butler_prefix *prefix = butler_alloc(sizeof *prefix, err);
    if (prefix)
        prefix->max_bytes = max_bytes;
    return prefix;
}

static uint64_t block_bytes(const struct block *block)
{
    return (uint64_t)block->n_extents * block->pages->extent_bytes;
}

static struct block **children_of(struct butler_prefix *prefix, struct block *parent)
{
    return parent ? &parent->children : &prefix->first;
}

static void unlink_use(struct butler_prefix *prefix, struct block *block)
{
    *(block->older ? &block->older->newer : &prefix->oldest) = block->newer;
    *(block->newer ? &block->newer->older : &prefix->newest) = block->older;
}

static void link_newest(struct butler_prefix *prefix, struct block *block)
{
    block->older = prefix->newest;
    block->newer = NULL;
    *(prefix->newest ? &prefix->newest->newer : &prefix->oldest) = block;
    prefix->newest = block;
}

static void use(struct butler_prefix *prefix, struct block *block)
{
    unlink_use(prefix, block);
    link_newest(prefix, block);
}

static void free_block(struct block *block)
{
    for (int i = 0; i < block->n_extents; i++)
        butler_pages_release(block->pages, block->extents[i]);
    free(block);
}

/* A block without children. */
static void drop(struct butler_prefix *prefix, struct block *block)
{
    struct block **at = children_of(prefix, block->parent);
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    unlink_use(prefix, block);
    prefix->stats.bytes -= block_bytes(block);
    free_block(block);
}

void butler_prefix_clear(struct butler_prefix *prefix)
{
    for (struct block *block = prefix->oldest, *next; block; block = next) {
        next = block->newer;
        free_block(block);
    }
    prefix->first = prefix->oldest = prefix->newest = NULL;
    prefix->stats.bytes = 0;
}

void butler_prefix_free(struct butler_prefix *prefix)
{
    if (prefix)
        butler_prefix_clear(prefix);
    free(prefix);
}

/* Drops the leaves used longest ago until `bytes` more fit; never `keep` or what is before it. False where they cannot. */
static bool make_room(struct butler_prefix *prefix, uint64_t bytes, const struct block *keep)
{
    while (prefix->stats.bytes + bytes > prefix->max_bytes) {
        struct block *block = prefix->oldest;
        while (block && (block->children || block == keep))
            block = block->newer;
        if (!block)
            return false;
        drop(prefix, block);
    }
    return true;
}

bool butler_prefix_spare(void *user, struct butler_pages *pages)
{
    struct butler_prefix *prefix = user;
    for (struct block *block = prefix->oldest; block; block = block->newer)
        if (!block->children && block->pages == pages && pages->references[block->extents[0]] == 1) {
            drop(prefix, block);
            return true;
        }
    return false;
}

/* What keys and values depend on beside the tokens: the beginning of every chain. */
static uint64_t kind_of(const struct butler_session *session)
{
    const struct {
        const void *freq, *pages;
        uint64_t salt;
        int kv_type, unrotated;
    } kind = {session->rope_freq, session->kv.extents, session->prefix_salt, (int)session->kv_type, session->policy.rope_in_cache};
    const uint64_t hash = XXH3_64bits(&kind, sizeof kind);
    const struct butler_policy *policy = &session->policy; /* a sparse prompt's rows depend on it */
    return policy->prompt > 0 ? XXH3_64bits_withSeed(policy->text, strlen(policy->text), hash) : hash;
}

/* The block after `parent` that has most of tokens[n] in common, from its first on; *n_same: how many. NULL: none has any. */
static struct block *closest(struct butler_prefix *prefix, uint64_t kind, struct block *parent, const int32_t *tokens, int n,
                             int *n_same)
{
    struct block *best = NULL;
    *n_same = 0;
    for (struct block *block = *children_of(prefix, parent); block && *n_same < BUTLER_MIN(n, TOKENS); block = block->next) {
        const int most = BUTLER_MIN(n, block->n);
        int same = 0;
        while (block->kind == kind && same < most && block->tokens[same] == tokens[same])
            same++;
        if (same > *n_same) {
            best = block;
            *n_same = same;
        }
    }
    return best;
}

int butler_prefix_shareable(const struct butler_session *session, int n)
{
    const struct butler_policy *policy = &session->policy;
    const int window = policy->plan.observe[0];
    if (policy->prefill_evict || policy->plan.own_text)
        return 0;
    return BUTLER_MAX(n - BUTLER_MAX(BUTLER_MIN(window, n), 1), 0);
}

/* Keeps n tokens of the session's text from its block `index` on. NULL: there is no room, or a window has passed it. */
static struct block *add_block(struct butler_prefix *prefix, struct butler_session *session, uint64_t kind, struct block *parent,
                               int index, int n)
{
    struct butler_kv *kv = &session->kv;
    const int n_extents = kv->n_layers * kv->n_kv_heads;
    struct block *block;
    for (int h = 0; h < n_extents; h++)
        if (kv->heads[h].n_released > index)
            return NULL;
    if (!make_room(prefix, (uint64_t)n_extents * kv->extent_bytes, parent) ||
        !(block = calloc(1, sizeof *block + (size_t)n_extents * sizeof *block->extents)))
        return NULL;
    block->kind = kind;
    block->parent = parent;
    block->next = *children_of(prefix, parent);
    *children_of(prefix, parent) = block;
    block->pages = kv->extents;
    block->n = n;
    block->n_extents = n_extents;
    memcpy(block->tokens, session->tokens + index * TOKENS, (size_t)n * sizeof *block->tokens);
    for (int h = 0; h < n_extents; h++) {
        block->extents[h] = kv->heads[h].extents[index];
        butler_pages_share(kv->extents, block->extents[h]);
    }
    link_newest(prefix, block);
    prefix->stats.bytes += block_bytes(block);
    kv->shares = true;
    return block;
}

void butler_prefix_add(struct butler_prefix *prefix, struct butler_session *session, bool whole)
{
    const uint64_t kind = kind_of(session);
    struct block *parent = NULL;
    if (session->evicted || session->steered)
        return;
    for (int i = 0; i * TOKENS < session->n_dense; i++) {
        const int n = BUTLER_MIN(session->n_dense - i * TOKENS, TOKENS);
        int n_same;
        struct block *block = closest(prefix, kind, parent, session->tokens + i * TOKENS, n, &n_same);
        if (n < TOKENS && (!whole || n < LEAST))
            return;
        if (block && n_same == n) {
            use(prefix, block);
        } else {
            if (block && n_same == block->n) /* the end of a shorter prompt, of which this one has more */
                drop(prefix, block);
            block = add_block(prefix, session, kind, parent, i, n);
        }
        if (!block)
            return;
        parent = block;
    }
}

static int check_empty(const struct butler_session *session, struct butler_error *err)
{
    if (session->n_past != 0 || session->failed)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session of %d tokens cannot adopt a beginning: it must be empty",
                           session->n_past);
    return 0;
}

/* The blocks of a beginning of at most `most` tokens, one after the other: the one after `block`, or NULL. *n_found: tokens up to
 * and with it. */
static struct block *next_block(const struct butler_session *session, struct block *block, const int32_t *ids, int most,
                                int *n_found)
{
    int n_same;
    if (!session->engine->prefix || *n_found % TOKENS != 0)
        return NULL;
    block = closest(session->engine->prefix, kind_of(session), block, ids + *n_found, most - *n_found, &n_same);
    if (!block || n_same < LEAST)
        return NULL;
    *n_found += n_same;
    return block;
}

/* How many tokens of ids, of at most `most`, are in memory. */
static int find(const struct butler_session *session, const int32_t *ids, int most)
{
    struct block *block = NULL;
    int n_found = 0;
    while ((block = next_block(session, block, ids, most, &n_found)))
        continue;
    return n_found;
}

/* Under prompt= a text goes on at the beginning of a block: what a block has selected is not kept. */
static int whole_blocks(const struct butler_session *session, int n)
{
    return session->policy.prompt > 0 ? n - n % BUTLER_PROMPT_BLOCK : n;
}

int butler_session_set_prefix_salt(struct butler_session *session, uint64_t salt, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    session->prefix_salt = salt;
    return 0;
}

/* How many of a prompt's n tokens may come from a cache, and whether with their state. */
static int may_share(const struct butler_session *session, const int32_t *ids, int n, bool *state)
{
    int most = butler_prefix_shareable(session, n);
    *state = butler_shelf_has_states(session);
    if (!*state)
        return most;
    for (most = n - 1; (most = butler_shelf_find_state(session, ids, most)) > 0; most--)
        if (find(session, ids, most) == most || butler_shelf_find(session, ids, most) == most)
            break;
    return BUTLER_MAX(most, 0);
}

int butler_session_find_prefix(const struct butler_session *session, const int32_t *ids, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || (n > 0 && BUTLER_IS_NULL(ids, err)) || check_empty(session, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    bool state;
    const int most = may_share(session, ids, BUTLER_MIN(n, session->n_ctx), &state);
    const int n_memory = find(session, ids, most), n_disk = butler_shelf_find(session, ids, most);
    return whole_blocks(session, BUTLER_MAX(n_memory, n_disk));
}

/* The first `most` tokens of ids from memory, which has them. */
static void share(struct butler_session *session, const int32_t *ids, int most)
{
    struct butler_prefix *prefix = session->engine->prefix;
    struct block *block = NULL;
    int n = 0;
    while (n < most && (block = next_block(session, block, ids, most, &n))) {
        for (int h = 0; h < block->n_extents; h++)
            butler_kv_join(&session->kv, &session->kv.heads[h], block->extents[h], n - session->kv.heads[h].n_slots);
        use(prefix, block);
    }
    prefix->stats.hits++;
    prefix->stats.tokens += (uint64_t)n;
    session->stats.n_shared += (uint64_t)n;
}

/* The state of what was taken cannot be used: all is read again. */
static int give_up(struct butler_session *session)
{
    session->stats.n_shared = session->stats.n_library = 0;
    butler_session_truncate(session, 0, NULL);
    return 0;
}

/* Of a session that is empty. Returns how many tokens it has then. */
static int adopt(struct butler_session *session, const int32_t *ids, int n)
{
    bool state;
    const int most = may_share(session, ids, BUTLER_MIN(n, session->n_ctx), &state);
    int n_memory = whole_blocks(session, find(session, ids, most)), n_found;
    const int n_disk = n_memory < most ? whole_blocks(session, butler_shelf_find(session, ids, most)) : 0;
    if (session->engine->prefix)
        session->engine->prefix->stats.lookups++;
    if (n_disk > n_memory)
        n_memory -= n_memory % BUTLER_BLOCK_MOST; /* from there on the library's blocks */
    if (n_memory > 0)
        share(session, ids, n_memory);
    n_found = n_disk > n_memory ? butler_shelf_load(session, ids, session->policy.prompt > 0 ? n_disk : most, n_memory) : n_memory;
    if (n_found == 0)
        return 0;
    memcpy(session->tokens, ids, (size_t)n_found * sizeof *ids);
    session->n_past = session->n_dense = n_found;
    session->sparse_end = session->policy.prompt > 0 ? n_found : 0;
    butler_session_summarise(session, 0, n_found);
    if (state && !session->failed && (n_found < most || !butler_shelf_load_state(session)))
        n_found = give_up(session);
    butler_session_release_windows(session);
    return session->n_adopted = n_found;
}

int butler_session_adopt_prefix(struct butler_session *session, const int32_t *ids, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || (n > 0 && BUTLER_IS_NULL(ids, err)) || check_empty(session, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    int n_found = adopt(session, ids, n);
    if (butler_shelf_start_again(session))
        n_found = adopt(session, ids, n);
    return session->failed ? butler_session_fault(session, err) : n_found;
}

void butler_prefix_get_stats(const struct butler_prefix *prefix, struct butler_prefix_stats *stats)
{
    *stats = prefix->stats;
}
