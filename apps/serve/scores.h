/* Scores of prompts' tokens that were computed before, so that a beginning that the prefix cache has need not be read again to be
 * scored. Of a token its log-probability and the most probable token are kept, of the prompts that were used last. */
#ifndef SERVE_SCORES_H
#define SERVE_SCORES_H

#include "serve/scheduler.h"

struct serve_scores;

struct serve_scores *serve_scores_new(uint64_t max_tokens); /* of all prompts together */
void serve_scores_free(struct serve_scores *scores);
/* Copies what is known of the first tokens of ids[n] into out[n]; returns for how many. Of each out[i].n_top is 1, but of token 0,
 * whose score means nothing. */
int serve_scores_find(struct serve_scores *scores, const char *policy, uint64_t salt, const int32_t *ids, int n,
                      struct serve_score *out);
/* Keeps those of a prompt all of whose tokens were scored. */
void serve_scores_add(struct serve_scores *scores, const char *policy, uint64_t salt, const int32_t *ids, int n,
                      const struct serve_score *from);

#endif
