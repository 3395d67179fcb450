/* What is done when: which steps of a policy that retrieves make a selection, which layers make theirs together, how much is
 * selected, kept and summarised. Numbers for the operations of backend.h, the same for every backend. */
#ifndef BUTLER_SCHEDULE_H
#define BUTLER_SCHEDULE_H

#include "engine/session.h"

/* Whether the budget of a layer that the policy is for covers the text with n more tokens: all is read, and what the metric does is
 * for later steps. */
bool butler_schedule_covered(const struct butler_session *session, int layer, int n);

/* Whether a decode step reads less than all of the layer's cache. */
bool butler_schedule_retrieves(const struct butler_session *session, int layer);

/* prompt=: whether the block of a prompt that has `position` is sparse in the layers to which the policy applies. The last
 * BUTLER_PROMPT_BLOCK tokens of a prompt, and those of their block before them, are dense: they are what is asked. */
bool butler_schedule_sparse(const struct butler_policy *policy, int position, int prompt_end);
/* The tokens before this position are read in the same way wherever a prompt ends behind it. */
int butler_schedule_shared_end(const struct butler_policy *policy, int prompt_end);
/* How many of n tokens of a prompt from n_past on a pass can take: all sparse or all dense, and the rest of a block by itself. */
int butler_schedule_prompt_tokens(const struct butler_policy *policy, int n_past, int prompt_end, int n);
/* Whether a session cut to n tokens, the last of which was read sparsely, knows what the next token of the prompt reads. */
bool butler_schedule_can_go_on(const struct butler_session *session, int n);
/* Fills the span's blocks, in a layer of a sparse part to which the policy applies. */
void butler_schedule_blocks(const struct butler_part *part, int layer, struct butler_attend_span *span);

/* Whether this layer's step selects anew (every=): where there is no selection to repeat, when its turn has come, or too long
 * after. BUTLER_AHEAD layers have their turn together, so that a predictor that serves them is asked once. */
bool butler_schedule_selects(const struct butler_session *session, int layer);

/* Queries of the part from this position on are shown to the layer's metric; INT32_MAX: none. */
int butler_schedule_observe(const struct butler_part *part, int layer);

/* state->summarise_from of an append of the layer's newest n tokens, whose slots are there. */
int butler_schedule_summarise(const struct butler_session *session, int layer, int n);

/* Whether the layer's cache is cut so that of a text of n tokens its policy's budget stays, with room for free_slots more: *cut
 * says what stays of the slots in use. */
bool butler_schedule_cut(const struct butler_session *session, int layer, int n, int free_slots, struct butler_cut *cut);

/* Fills what a decode step's span says of selecting, and notes what is decided. alone: no other session runs in the pass: layers
 * may select together. */
void butler_schedule_span(struct butler_session *session, int layer, bool alone, struct butler_attend_span *span);

#endif
