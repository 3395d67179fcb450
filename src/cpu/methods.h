/* From scores to lists: of what a step reads, and of what leaves the cache. Both reduce the scores of the query heads that share a
 * selection to one number per unit, and both leave the choice itself to select.c. How many, and when, the engine has decided. */
#ifndef BUTLER_METHODS_H
#define BUTLER_METHODS_H

#include "cpu/attend.h"
#include "cpu/select.h"

/* Reduces the scores of query heads [head, head + n_heads) over n units into the row of `head`, as state->plan->reduction says;
 * rows: those of the query heads of its KV head and what follows, score_stride apart, or the one that they have together. The
 * result is one score per unit, comparable within the selection:
 *   1. logits of several heads become log-probabilities (a softmax without its underflow), or standard scores (zscores);
 *   2. weigh: times the norm of the token's value in the head's own KV head;
 *   3. over the heads: the maximum, or the mean of probabilities;
 *   4. probabilities: exp of it, up to a factor, and *sink_mass is the share of the learned sinks up to the same factor;
 *   5. pool: where tokens have scores but pages are selected, a page gets the highest of its tokens' scores, or their sum (4).
 * sink_mass may be NULL without 4. Returns the row. */
float *butler_reduce_scores(const struct butler_layer_state *state, float *rows, int head, int n_heads, int n_units,
                            double *sink_mass);

/* Operations of backend.h. */
void butler_select_lists(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                         const struct butler_selecting *selecting, const struct butler_lists *lists);
void butler_repeat_lists(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                         const struct butler_selecting *selecting, const struct butler_lists *lists);
void butler_select_leaving(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_cut *cut,
                           const struct butler_lists *lists);
void butler_compact(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_lists *lists);
bool butler_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span);
void butler_evict_spans(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                        int n_spans);

/* Scores, lists and attention of a span that retrieves for one KV head whose new key and value are in the cache (or, where the
 * layer shares a selection, for all: kv_head is then ignored), by one thread. */
void butler_retrieve_head(const struct butler_attend_span *span, const struct butler_layer_state *state, int kv_head, int thread);

/* Scratch of one thread: four lists of max_slots units, and scores by position and values for select.c, as many each. */
static inline uint32_t *butler_units_scratch(const struct butler_layer_state *state, int thread, int list)
{
    return state->work->units + ((size_t)thread * 4 + (size_t)list) * (size_t)state->work->max_slots;
}
static inline float *butler_ordered_scratch(const struct butler_layer_state *state, int thread)
{
    return state->work->ordered + (size_t)thread * 2 * (size_t)state->work->max_slots;
}
static inline float *butler_values_scratch(const struct butler_layer_state *state, int thread)
{
    return butler_ordered_scratch(state, thread) + state->work->max_slots;
}

#endif
