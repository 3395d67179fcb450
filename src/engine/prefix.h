/* The prefix cache of an engine: keys and values of beginnings of texts that were read as prompts, so that the next text with the
 * same beginning need not read it again. It holds pages together with sessions (pages.h) and outlives these.
 *
 * Its unit is a block of BUTLER_EXTENT_TOKENS tokens, or fewer at the end of a prompt: one extent for each layer and KV head.
 * Blocks form a tree: texts that begin alike share a path. A text takes over whole blocks and then a part of the one that it has
 * most tokens in common with, whose extents are copied when the text goes on. A block belongs to what keys and values depend on
 * beside the tokens (KV type, rotation). It holds no records: what a session's metric keeps of the tokens is made anew from the
 * keys. */
#ifndef BUTLER_PREFIX_H
#define BUTLER_PREFIX_H

#include "base/util.h"

struct butler_pages;
struct butler_prefix;
struct butler_session;

/* NULL with *err filled on failure. max_bytes: of pages that the cache holds; the leaves used longest ago go first. */
struct butler_prefix *butler_prefix_new(uint64_t max_bytes, struct butler_error *err);
void butler_prefix_free(struct butler_prefix *prefix); /* gives its pages back; may be NULL */

void butler_prefix_clear(struct butler_prefix *prefix);
/* Keeps what of the session's text was read as a prompt from the beginning on and is not known yet: its whole blocks, and if
 * `whole`, the prompt is complete, its last tokens too. Where memory is short it keeps fewer. */
void butler_prefix_add(struct butler_prefix *prefix, struct butler_session *session, bool whole);

/* Drops the leaf used longest ago of which nobody else holds this pool's extents. False: there is none. */
bool butler_prefix_spare(void *prefix, struct butler_pages *pages);

/* How many of a prompt's n tokens may come from a cache under this policy: the metric must not have observed any of their
 * queries, and nothing may have been cut while they were read. */
int butler_prefix_shareable(const struct butler_session *session, int n);

struct butler_prefix_stats {
    uint64_t bytes, lookups, hits, tokens;
};
void butler_prefix_get_stats(const struct butler_prefix *prefix, struct butler_prefix_stats *stats);

#endif
