/* The attention of a sparse prompt (prompt=). A task is a block of BUTLER_PROMPT_BLOCK tokens and a KV head: the metric scores what
 * is before the block for the query of the block's first token, the best units are listed, and all tokens of the block attend to
 * the rows of that list and to one another. No other keys and values are read. */
#include <string.h>

#include "cpu/attend.h"
#include "cpu/methods.h"

struct sparse_job {
    const struct butler_attend_span *span;
    struct butler_workspace *work; /* [threads] */
};

/* Of a KV head, one bit a unit: what its last block has chosen. */
static uint64_t *noted(const struct butler_layer_state *state, int kv_head)
{
    const struct butler_selection *selection = state->selection;
    return selection->units + ((size_t)state->layer * (size_t)state->n_heads + (size_t)kv_head) * selection->words;
}

/* The units that the block's first query chooses; returns how many. */
static int choose(const struct butler_layer_state *state, const struct butler_prompt_block *block, int kv_head, const float *q,
                  uint32_t *units)
{
    const int group = state->n_heads / state->kv->n_kv_heads;
    const struct butler_choice *choice = &block->choice;
    float *rows = butler_score_rows(state, kv_head);
    double beside = 0;
    if (choice->n_units == 0) /* all before the block is in its first unit */
        return 0;
    butler_attend_score_head(state, kv_head, q, false, rows);
    const float *scores = butler_reduce_scores(state, rows, kv_head * group, group, choice->n_units, &beside);
    return butler_select_top(state->kv->kernels, scores, choice->n_units, choice->budget, choice->first, choice->last,
                             butler_values_scratch(state, 0), units);
}

static void note(const struct butler_layer_state *state, int kv_head, const uint32_t *units, int n)
{
    uint64_t *bits = noted(state, kv_head);
    memset(bits, 0, state->selection->words * sizeof *bits);
    for (int i = 0; i < n; i++)
        bits[units[i] / 64] |= (uint64_t)1 << units[i] % 64;
}

static int recall(const struct butler_layer_state *state, int kv_head, int n_units, uint32_t *units)
{
    const uint64_t *bits = noted(state, kv_head);
    int n = 0;
    for (int unit = 0; unit < n_units; unit++)
        if (bits[unit / 64] >> unit % 64 & 1)
            units[n++] = (uint32_t)unit;
    return n;
}

static void sparse_task(void *context, int task, int thread)
{
    const struct sparse_job *job = context;
    const struct butler_attend_span *span = job->span;
    struct butler_layer_state state = span->state;
    const struct butler_kv *kv = state.kv;
    const int kv_head = task % kv->n_kv_heads, index = task / kv->n_kv_heads, unit = state.plan->unit;
    const struct butler_prompt_block *block = &span->blocks[index];
    const size_t at = (size_t)block->first * (size_t)(state.n_heads * kv->head_dim);
    int n_slots = 0;
    state.work = &job->work[thread];
    state.position = block->position;
    uint32_t *units = butler_units_scratch(&state, 0, 0), *slots = state.work->slots;
    const int n_units = block->selects ? choose(&state, block, kv_head, span->q + at, units)
                                       : recall(&state, kv_head, block->choice.n_units, units);
    if (block->selects && index == span->n_blocks - 1) /* the next tokens of the prompt may be of this block */
        note(&state, kv_head, units, n_units);
    for (int i = 0; i < n_units; i++)
        for (int slot = 0; slot < unit; slot++)
            slots[n_slots++] = units[i] * (uint32_t)unit + (uint32_t)slot;
    const int first = span->state.position + block->first; /* a policy that retrieves holds all tokens, in order */
    for (int slot = block->base; slot < first + block->n; slot++)
        slots[n_slots++] = (uint32_t)slot;
    struct butler_attend_block_job attend = {.state = &state,
                                             .q = span->q + at,
                                             .out = span->out + at,
                                             .n = block->n,
                                             .window = INT32_MAX,
                                             .observe_from = INT32_MAX,
                                             .list = slots,
                                             .n_before = n_slots - block->n};
    butler_attend_block_begin(&attend, 1);
    butler_attend_block_list(&attend, kv_head, 0);
    __atomic_fetch_add(&state.traffic->kv_bytes, 2 * (uint64_t)n_slots * kv->row_bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&state.traffic->full_kv_bytes, 2 * (uint64_t)(first + block->n) * kv->row_bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&state.traffic->units_selected, (uint64_t)n_units, __ATOMIC_RELAXED);
}

void butler_attend_sparse(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct sparse_job job = {span, backend->batch};
    butler_pool_run(backend->pool, sparse_task, &job, span->n_blocks * span->state.kv->n_kv_heads);
}
