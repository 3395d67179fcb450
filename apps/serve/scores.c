/* See scores.h. */
#include "serve/scores.h"

#include <stdlib.h>
#include <string.h>

/* A prompt; the list begins with the one that was used last. */
struct known {
    struct known *next;
    char *policy;
    uint64_t salt;
    int n;
    int32_t *ids;
    struct known_score {
        double logprob, top_logprob;
        int32_t top;
    } * scores; /* [n] */
};

struct serve_scores {
    struct known *first;
    uint64_t max_tokens; /* of all prompts together */
};

static void free_known(struct known *known)
{
    free(known->policy);
    free(known->ids);
    free(known->scores);
    free(known);
}

struct serve_scores *serve_scores_new(uint64_t max_tokens)
{
    struct serve_scores *scores = serve_alloc(1, sizeof *scores);
    scores->max_tokens = max_tokens;
    return scores;
}

void serve_scores_free(struct serve_scores *scores)
{
    for (struct known *known = scores ? scores->first : NULL, *next; known; known = next) {
        next = known->next;
        free_known(known);
    }
    free(scores);
}

/* The prompt with the longest common beginning, in front of the list now. NULL: none. */
static struct known *closest(struct serve_scores *scores, const char *policy, uint64_t salt, const int32_t *ids, int n, int *n_same)
{
    struct known **best = NULL;
    *n_same = 0;
    for (struct known **at = &scores->first; *at && *n_same < n; at = &(*at)->next) {
        const int most = n < (*at)->n ? n : (*at)->n;
        int same = 0;
        while (same < most && (*at)->ids[same] == ids[same])
            same++;
        if (same > *n_same && (*at)->salt == salt && strcmp((*at)->policy, policy) == 0) {
            best = at;
            *n_same = same;
        }
    }
    if (!best)
        return NULL;
    struct known *known = *best;
    *best = known->next;
    known->next = scores->first;
    scores->first = known;
    return known;
}

int serve_scores_find(struct serve_scores *scores, const char *policy, uint64_t salt, const int32_t *ids, int n,
                      struct serve_score *out)
{
    int n_same;
    const struct known *known = closest(scores, policy, salt, ids, n, &n_same);
    for (int i = 0; i < n_same; i++)
        out[i] = (struct serve_score){.logprob = known->scores[i].logprob,
                                      .n_top = 1,
                                      .top = {{.id = known->scores[i].top, .logprob = known->scores[i].top_logprob}}};
    return n_same;
}

void serve_scores_add(struct serve_scores *scores, const char *policy, uint64_t salt, const int32_t *ids, int n,
                      const struct serve_score *from)
{
    int n_same;
    struct known *known = closest(scores, policy, salt, ids, n, &n_same);
    if ((uint64_t)n > scores->max_tokens || (known && n_same == n))
        return;
    if (known && n_same == known->n) { /* the new one has all that this one has */
        scores->first = known->next;
        free_known(known);
    }
    known = serve_alloc(1, sizeof *known);
    *known = (struct known){.next = scores->first,
                            .policy = strdup(policy),
                            .salt = salt,
                            .n = n,
                            .ids = serve_alloc((size_t)n, sizeof *known->ids),
                            .scores = serve_alloc((size_t)n, sizeof *known->scores)};
    memcpy(known->ids, ids, (size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++)
        known->scores[i] = (struct known_score){from[i].logprob, from[i].top[0].logprob, from[i].top[0].id};
    scores->first = known;
    uint64_t sum = 0;
    for (struct known **at = &scores->first; *at;) {
        struct known *old = *at;
        sum += (uint64_t)old->n;
        if (sum <= scores->max_tokens) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        sum -= (uint64_t)old->n;
        free_known(old);
    }
}
