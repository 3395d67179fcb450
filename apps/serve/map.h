/* Maps: which tokens each step of a text read, and its exact attention, head by head, for GET /kv/map. Requests ask for them
 * (job->map). Filled in the engine's thread, read by any. */
#ifndef SERVE_MAP_H
#define SERVE_MAP_H

#include "serve/scheduler.h"

enum {
    SERVE_MAP_TOP = 64, /* of a KV head's tokens, those with the most attention that are kept */
};

struct serve_maps;
struct serve_map; /* of one text */

/* What one KV head read in a step. Its query heads are taken together: tokens that any of them read, the mean of their attention.
 */
struct serve_map_head {
    float mass_read; /* attention to the tokens that were read */
    int n_top, n_runs;
    struct serve_map_top {
        int position;
        float mass;
    } * top; /* [n_top], most attention first */
    struct serve_map_run {
        int first, n;
    } * runs; /* [n_runs] of tokens that were read, ascending */
};

/* One step: the query is the token at n_tokens - 1. */
struct serve_map_step {
    int n_tokens;
    size_t bytes;
    float *mass;                  /* [n_tokens] attention, the mean over all heads of all layers */
    uint16_t *readers;            /* [n_tokens] KV heads of all layers that read the token */
    struct serve_map_head *heads; /* [n_layers * n_kv_heads] */
};

/* What a reader sees, under the lock. Token i >= n_prompt was drawn after the step steps[i - n_prompt], NULL: it was not recorded.
 */
struct serve_map_view {
    int id, owner, choice, n_layers, n_kv_heads, n_prompt, n_tokens;
    bool running, complete; /* complete: nothing was left out for lack of room */
    const char *policy;
    const int32_t *ids;                        /* [n_tokens] */
    const struct serve_map_step *const *steps; /* [n_tokens - n_prompt] */
};

/* max_bytes: of all maps together; the oldest of texts that have ended make room. */
struct serve_maps *serve_maps_new(const struct butler_model_info *info, size_t max_bytes);
void serve_maps_free(struct serve_maps *maps);

/* In the engine's thread. A map of the text, which is the job's i-th choice; the maps keep it after serve_map_end. */
struct serve_map *serve_map_begin(struct serve_maps *maps, const struct serve_job *job, int i);
/* Before a step that decodes a token of the text in this session, and after it where it did not fail. */
void serve_map_before(struct serve_map *map, struct butler_session *session);
void serve_map_after(struct serve_map *map);
/* id was drawn from what the step, or the prompt, gave. */
void serve_map_token(struct serve_map *map, int32_t id);
void serve_map_end(struct serve_map *map); /* map may be NULL */

/* Calls fn for every map, oldest first, under the lock, until it returns false. */
void serve_maps_each(struct serve_maps *maps, bool (*fn)(void *user, const struct serve_map_view *view), void *user);

#endif
