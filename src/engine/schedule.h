/* When a layer selects: which steps of a policy that retrieves make a selection, and which layers may make theirs together. */
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

/* What the layer's heads keep of a text of n tokens, so that free_slots more fit the budget. */
struct butler_cut butler_schedule_cut(const struct butler_session *session, int layer, int n, int free_slots);

/* Fills what a decode step's span says of selecting, and notes what is decided. */
void butler_schedule_span(struct butler_session *session, int layer, struct butler_attend_span *span);

#endif
