/* Lossless jobs: their texts are those of `full`, token for token, and come faster where one of them is alone, by rounds of drafts
 * under the job's policy and an exact check (butler_draft_step). Beside other texts or prompts a step decodes one token exactly:
 * there the batch shares the weights, and a round would let the others wait. */
#ifndef SERVE_DRAFT_H
#define SERVE_DRAFT_H

#include "serve/choice.h"

/* Whether the job's text takes a round when its step has nothing else. Scores need the logits of every token, which a round does
 * not keep. */
bool serve_draft_wanted(const struct serve_job *job);
/* The choice's session can draft; at once for the first of a job, to refuse its policy. 0, or < 0 with *err. */
int serve_draft_open(const struct serve_job *job, struct serve_choice *choice, struct butler_error *err);
/* One round behind choice->id, of no more tokens than the job's grant and max_tokens allow, and that took no longer than
 * max_stall_s by the time of the rounds before. The tokens are put where serve_choice_sample takes them from. 0, or < 0 with *err.
 */
int serve_draft_round(const struct serve_job *job, struct serve_choice *choice, double max_stall_s, struct butler_error *err);

#endif
