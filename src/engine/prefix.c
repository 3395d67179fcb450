/* The prefix cache, see prefix.h. Its state is host memory; pages are only counted. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/session.h"

enum { TOKENS = BUTLER_EXTENT_TOKENS, N_BUCKETS = 1 << 12 };

struct block {
    uint64_t hash;
    struct block *parent; /* the block before it, or NULL */
    struct block *next;   /* in its bucket */
    struct butler_pages *pages;
    uint64_t used; /* when, in lookups and additions */
    int n_children, n_extents;
    int32_t tokens[TOKENS];
    uint32_t extents[]; /* [n_layers][n_kv_heads] */
};

struct butler_prefix {
    struct block *buckets[N_BUCKETS];
    uint64_t max_bytes, clock;
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

static void drop(struct butler_prefix *prefix, struct block *block)
{
    struct block **at = &prefix->buckets[block->hash % N_BUCKETS];
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    if (block->parent)
        block->parent->n_children--;
    for (int i = 0; i < block->n_extents; i++)
        butler_pages_release(block->pages, block->extents[i]);
    prefix->stats.bytes -= block_bytes(block);
    free(block);
}

void butler_prefix_free(struct butler_prefix *prefix)
{
    if (!prefix)
        return;
    for (int b = 0; b < N_BUCKETS; b++)
        while (prefix->buckets[b]) {
            prefix->buckets[b]->parent = NULL; /* may be gone already */
            drop(prefix, prefix->buckets[b]);
        }
    free(prefix);
}

/* Drops the leaves used longest ago until `bytes` more fit; never `keep` or what is before it. False where they cannot. */
static bool make_room(struct butler_prefix *prefix, uint64_t bytes, const struct block *keep)
{
    while (prefix->stats.bytes + bytes > prefix->max_bytes) {
        struct block *oldest = NULL;
        for (int b = 0; b < N_BUCKETS; b++)
            for (struct block *block = prefix->buckets[b]; block; block = block->next)
                if (block->n_children == 0 && block != keep && (!oldest || block->used < oldest->used))
                    oldest = block;
        if (!oldest)
            return false;
        drop(prefix, oldest);
    }
    return true;
}

/* What keys and values depend on beside the tokens: the beginning of every chain. */
static uint64_t kind_of(const struct butler_session *session)
{
    const struct {
        const void *freq, *pages;
        int kv_type, unrotated;
    } kind = {session->rope_freq, session->kv.extents, (int)session->kv_type, session->policy.rope_in_cache};
    return XXH3_64bits(&kind, sizeof kind);
}

static uint64_t chain(uint64_t before, const int32_t *tokens)
{
    return XXH3_64bits_withSeed(tokens, TOKENS * sizeof *tokens, before);
}

static struct block *find(const struct butler_prefix *prefix, uint64_t hash, const struct block *parent, const int32_t *tokens)
{
    for (struct block *block = prefix->buckets[hash % N_BUCKETS]; block; block = block->next)
        if (block->hash == hash && block->parent == parent && !memcmp(block->tokens, tokens, sizeof block->tokens))
            return block;
    return NULL;
}

/* How many of a prompt's n tokens may come from the cache under this policy: the metric must not have observed any of their
 * queries, and nothing may have been cut while they were read. */
static int shareable(const struct butler_session *session, int n)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_metric *metric = policy->metric;
    const int window = metric && metric->attention_window ? metric->attention_window(policy->values) : 0;
    if (policy->prefill_evict || (metric && metric->predictor == 1))
        return 0;
    return BUTLER_MAX(n - BUTLER_MAX(BUTLER_MIN(window, n), 1), 0);
}

void butler_prefix_add(struct butler_prefix *prefix, struct butler_session *session)
{
    struct butler_kv *kv = &session->kv;
    const int n_extents = kv->n_layers * kv->n_kv_heads;
    uint64_t hash = kind_of(session);
    struct block *parent = NULL;
    if (session->evicted)
        return;
    prefix->clock++;
    for (int i = 0; (i + 1) * TOKENS <= session->n_dense; i++) {
        const int32_t *tokens = session->tokens + i * TOKENS;
        hash = chain(hash, tokens);
        struct block *block = find(prefix, hash, parent, tokens);
        if (!block) {
            for (int h = 0; h < n_extents; h++)
                if (kv->heads[h].n_released > i) /* the block was dropped after a window had passed it */
                    return;
            if (!make_room(prefix, (uint64_t)n_extents * kv->extent_bytes, parent) ||
                !(block = calloc(1, sizeof *block + (size_t)n_extents * sizeof *block->extents)))
                return;
            block->hash = hash;
            block->parent = parent;
            block->next = prefix->buckets[hash % N_BUCKETS];
            prefix->buckets[hash % N_BUCKETS] = block;
            block->pages = kv->extents;
            block->n_extents = n_extents;
            memcpy(block->tokens, tokens, sizeof block->tokens);
            for (int h = 0; h < n_extents; h++) {
                block->extents[h] = kv->heads[h].pages[i * BUTLER_EXTENT] / BUTLER_EXTENT;
                butler_pages_share(kv->extents, block->extents[h]);
            }
            if (parent)
                parent->n_children++;
            prefix->stats.bytes += block_bytes(block);
            kv->shares = true;
        }
        block->used = prefix->clock;
        parent = block;
    }
}

int butler_session_adopt_prefix(struct butler_session *session, const int32_t *ids, int n, struct butler_error *err)
{
    if (!session || (!ids && n > 0))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "no session that could adopt a beginning, or no tokens of one");
    struct butler_prefix *prefix = session->engine->prefix;
    const int most = shareable(session, BUTLER_MIN(n, session->n_ctx));
    const struct block *parent = NULL;
    uint64_t hash = kind_of(session);
    int n_found = 0;
    if (session->n_past != 0 || session->failed)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session of %d tokens cannot adopt a beginning: it must be empty",
                           session->n_past);
    if (!prefix)
        return 0;
    prefix->clock++;
    prefix->stats.lookups++;
    while (n_found + TOKENS <= most) {
        hash = chain(hash, ids + n_found);
        struct block *block = find(prefix, hash, parent, ids + n_found);
        if (!block)
            break;
        for (int h = 0; h < block->n_extents; h++)
            butler_kv_join(&session->kv, &session->kv.heads[h], block->extents[h]);
        block->used = prefix->clock;
        parent = block;
        n_found += TOKENS;
    }
    if (n_found == 0)
        return 0;
    prefix->stats.hits++;
    prefix->stats.tokens += (uint64_t)n_found;
    memcpy(session->tokens, ids, (size_t)n_found * sizeof *ids);
    session->n_past = session->n_dense = n_found;
    butler_session_summarise(session, 0, n_found);
    butler_session_release_windows(session);
    return n_found;
}

void butler_prefix_get_stats(const struct butler_prefix *prefix, struct butler_prefix_stats *stats)
{
    *stats = prefix->stats;
}
