/* Attention over the cache on the CPU: append, score, attend. Every row that is read is gathered from its page; what is
 * not selected is not touched. The operations are those of backend.h. */
#ifndef BUTLER_ATTEND_H
#define BUTLER_ATTEND_H

#include "engine/backend.h"
#include "kernels/kernels.h"

/* Rotates the first n_rot of x in place. */
void butler_rotate(const struct butler_kernels *kernels, enum butler_rope rope, float *x, const float *cos, const float *sin,
                   int n_rot);

/* x[n] -> cap tanh(x / cap) */
void butler_softcap(float *x, int n, float cap);

void butler_attend_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                          int n);
void butler_attend_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first);
void butler_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out, int n,
                         int window, int observe_from);
void butler_attend_score(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds);
void butler_attend(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_attend_token *token);
void butler_attend_spans(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans);
void butler_exact_weights(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                          const struct butler_exact *exact);

/* The pieces, for tasks that do them one after the other (retrieve.c, attend_spans.c). */

/* What append does for one KV head. */
void butler_attend_append_head(const struct butler_layer_state *state, int kv_head, const float *k, const float *v, int n);
/* What score does for one KV head: into rows, as long as the workspace's; into the first where its query heads have one together.
 */
void butler_attend_score_head(const struct butler_layer_state *state, int kv_head, const float *q, bool bounds, float *rows);
/* Part of a list of slots, BUTLER_SLICE of them from slot index BUTLER_SLICE of the list on, or what is left. */
struct butler_slice {
    int head, n_q;         /* query heads [head, head + n_q) of one KV head, whose list it is */
    const uint32_t *slots; /* [n]; NULL: the newest n of the KV head */
    int n, index;
};

/* A slice's heads attend to it. next: the slice that the thread has next, or NULL; its first rows are prefetched. weights: what
 * butler_attend_combine needs for attention weights is left in the rows of scores. */
void butler_attend_slice(const struct butler_layer_state *state, int thread, const float *q, const struct butler_slice *slice,
                         const struct butler_slice *next, bool weights);
/* Attention of scaled queries to the rows of pairs, as kernels->attend gives it, but for out.s: from query n_unseen on exp(score -
 * top) of each row; else scratch. rank: place in the cache of the first row. */
void butler_attend_queries(const struct butler_layer_state *state, int thread, struct butler_attended out, struct butler_vectors q,
                           const struct butler_pairs *pairs, int rank, int n_unseen);
/* Keeps what a slice gave to one query head of token `row` of a span, until the slices are combined. */
void butler_attend_keep(const struct butler_layer_state *state, int row, int head, int slice, float top, float sum,
                        const float *out);
/* Puts the slices of a query head of token `row` together, in order: out[head_dim]. With weights, also turns its row of scores into
 * the attention weights of the list. */
void butler_attend_combine(const struct butler_layer_state *state, int row, int head, int n, float *out, bool weights);

/* An exact span (attend_exact.c): n tokens, each of which gets the bits that a decode step under the policy `full` gives it. */
void butler_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span);
/* The same for one KV head, by one thread, with the workspace of state. */
void butler_attend_exact_head(const struct butler_attend_span *span, const struct butler_layer_state *state, int kv_head);

/* All of a decode step for one KV head whose new key and value are in the cache, by one thread: its lists (or, NULL, its newest
 * slots), combined, and shown to the metric if observe. */
void butler_attend_head(const struct butler_layer_state *state, int thread, int kv_head, const float *q,
                        const struct butler_lists *lists, int newest, float *out, bool observe);

/* A prompt's block (attend_prefill.c), cut into tasks that may run in any order. */
struct butler_attend_block_job {
    const struct butler_layer_state *state;
    const float *q;
    float *out;
    int n, window, observe_from, tile_tokens, n_tiles;
    bool tiles; /* in the matrix unit */
    /* What the first token sees before itself, and then the block's tokens; NULL: all slots. */
    const uint32_t *list; /* [n_before + n] */
    int n_before;
    int *turns; /* [n_kv_heads] which tile's weights the metric of a head sees next; NULL: nothing is observed */
};
/* Cuts *job, of which the caller has filled all but tiles and their sizes, and returns its number of tasks; turns becomes NULL
 * where nothing is observed. n_threads: that will share the tasks, or those of other sessions. They begin tasks in ascending order,
 * after butler_attend_block_start, and share turns. */
int butler_attend_block_begin(struct butler_attend_block_job *job, int n_threads);
void butler_attend_block_start(const struct butler_attend_block_job *job);
void butler_attend_block_task(const struct butler_attend_block_job *job, int task, int thread);

/* All of a block of which a KV head reads a list (attend_sparse.c), by one thread. */
void butler_attend_block_list(const struct butler_attend_block_job *job, int kv_head, int thread);
/* Operation of backend.h. */
void butler_attend_sparse(struct butler_backend *backend, const struct butler_attend_span *span);

/* The pieces of a prompt's block. */

/* Rows of keys of slots[first .. first + n) of a list (slots NULL: 0, 1, ...). */
void butler_attend_keys(const struct butler_kv *kv, const struct butler_kv_head *head, const uint32_t *slots, int first, int n,
                        const void **keys);
/* Rows of keys and of values of slots[first .. first + n) of a list (slots NULL: 0, 1, ...). */
void butler_attend_rows(const struct butler_kv *kv, const struct butler_kv_head *head, const uint32_t *slots, int first, int n,
                        const void **keys, const void **values);
/* s: scores of scaled queries against n gathered keys. rank: place in the cache of the first; where keys are stored unrotated,
 * their pointers become those of rotated copies, and n may be at most BUTLER_SLICE. */
void butler_attend_scores(const struct butler_layer_state *state, int thread, struct butler_results s, struct butler_vectors q,
                          const void **keys, int rank, int n);
/* Shows the metric what the query at `position` paid to slots 0..n-1: weights[group][stride]. */
void butler_attend_observe(const struct butler_layer_state *state, int kv_head, int position, const float *weights, size_t stride,
                           int n);
/* Floats of scratch a thread needs for a block, and query rows whose weights it can keep. */
size_t butler_attend_block_floats(int group, int head_dim, int max_slots);
int butler_attend_kept_rows(int group, int max_slots);

/* The workspace's rows of scores for the query heads of a KV head. */
static inline float *butler_score_rows(const struct butler_layer_state *state, int kv_head)
{
    const int group = state->n_heads / state->kv->n_kv_heads;
    return state->work->scores + (size_t)(kv_head * group) * state->work->score_stride;
}

/* Scores of a head, as its metric gives them: a page each, or a token each. bounds: those of its first stage. */
static inline int butler_n_scores(const struct butler_layer_state *state, int kv_head, bool bounds)
{
    return BUTLER_CEIL_DIV(butler_kv_at(state->kv, state->layer, kv_head)->n_slots,
                           bounds ? state->plan->metric->scan->page_slots : state->plan->score_slots);
}

#endif
