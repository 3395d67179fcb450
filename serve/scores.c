/* See scores.h. */
#include "serve/scores.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, N_SLOTS = 8192 }; /* half a million tokens */

struct serve_scores {
    struct slot {
        uint64_t hash; /* 0: nothing is here */
        int32_t ids[BLOCK], top[BLOCK];
        double logprobs[BLOCK], top_logprobs[BLOCK];
    } * slots[N_SLOTS];
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t begin(const char *policy)
{
    uint64_t hash = 1;
    for (; *policy; policy++)
        hash = mix(hash, (unsigned char)*policy);
    return hash;
}

static uint64_t add_block(uint64_t hash, const int32_t *ids)
{
    for (int i = 0; i < BLOCK; i++)
        hash = mix(hash, (uint64_t)ids[i] + 1);
    return hash ? hash : 1;
}

struct serve_scores *serve_scores_new(void)
{
    return serve_alloc(1, sizeof(struct serve_scores));
}

void serve_scores_free(struct serve_scores *scores)
{
    for (int i = 0; scores && i < N_SLOTS; i++)
        free(scores->slots[i]);
    free(scores);
}

int serve_scores_find(const struct serve_scores *scores, const char *policy, const int32_t *ids, int n, struct serve_score *out)
{
    uint64_t hash = begin(policy);
    int found = 0;
    for (; found + BLOCK <= n; found += BLOCK) {
        hash = add_block(hash, ids + found);
        const struct slot *slot = scores->slots[hash % N_SLOTS];
        if (!slot || slot->hash != hash || memcmp(slot->ids, ids + found, sizeof slot->ids) != 0)
            break;
        for (int i = 0; i < BLOCK; i++)
            out[found + i] = (struct serve_score){
                .logprob = slot->logprobs[i], .n_top = 1, .top = {{.id = slot->top[i], .logprob = slot->top_logprobs[i]}}};
    }
    return found;
}

void serve_scores_add(struct serve_scores *scores, const char *policy, const int32_t *ids, int n, const struct serve_score *from)
{
    uint64_t hash = begin(policy);
    for (int at = 0; at + BLOCK <= n; at += BLOCK) {
        hash = add_block(hash, ids + at);
        struct slot **slot = &scores->slots[hash % N_SLOTS];
        if (!*slot)
            *slot = serve_alloc(1, sizeof **slot);
        (*slot)->hash = hash;
        memcpy((*slot)->ids, ids + at, sizeof(*slot)->ids);
        for (int i = 0; i < BLOCK; i++) {
            (*slot)->logprobs[i] = from[at + i].logprob;
            (*slot)->top[i] = from[at + i].top[0].id;
            (*slot)->top_logprobs[i] = from[at + i].top[0].logprob;
        }
    }
}
