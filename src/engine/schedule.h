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
