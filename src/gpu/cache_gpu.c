/* Operations of a device on one layer of the KV cache: append, score, select, attend. Lists and scores stay on the device; the host
 * knows how long a list can be at most. */
#include <math.h>
#include <string.h>

#include "engine/predict.h"
#include "gpu/gpu.h"
#include "gpu/host_pages.h"

/* What kernels are given of a layer's heads: the first KV head's, and how far apart they are. */
struct layer {
    struct butler_gpu *gpu;
    const struct butler_layer_state *state;
    const struct butler_kv *kv;
    const struct butler_kv_head *head; /* the first */
    const void *pool, *places;         /* kernels.cl's; places NULL: the pool is the cache's */
    const float *shifts;               /* of the layer's keys, or NULL */
    int table_stride, group, n;        /* n: slots, of every head */
    int piece;                         /* channels that the Hadamard transform of stored keys takes together; 1: there is none */
    float piece_scale;
};

/* GPU_ROWS. */
#define ROWS_OF(l) (l)->places, (int)(l)->kv->type, (int)(l)->kv->row_bytes, (l)->kv->head_dim, (l)->piece, (double)(l)->piece_scale

static struct layer layer_of(struct butler_backend *backend, const struct butler_layer_state *state)
{
    const struct butler_kv *kv = state->kv;
    const struct butler_kv_head *head = butler_kv_at(kv, state->layer, 0);
    const int piece = kv->hadamard ? kv->head_dim & -kv->head_dim : 1;
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    const struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu, kv->pool);
    return (struct layer){.gpu = gpu,
                          .pool = pages ? pages->copies : kv->pool,
                          .places = pages ? pages->places : NULL,
                          .state = state,
                          .kv = kv,
                          .head = head,
                          .shifts = kv->key_shifts ? kv->key_shifts + state->layer * kv->n_kv_heads * kv->head_dim : NULL,
                          .piece = piece,
                          .piece_scale = 1 / sqrtf((float)piece),
                          .table_stride = kv->n_kv_heads > 1 ? (int)(head[1].table - head[0].table) : 0,
                          .group = state->n_heads / kv->n_kv_heads,
                          .n = head->n_slots};
}

static bool has_deviations(const struct butler_plan *plan)
{
    return plan->metric && !strcmp(plan->metric->name, "page_stats");
}

static bool bounds_pages(const struct butler_plan *plan)
{
    return has_deviations(plan) || (plan->metric && !strcmp(plan->metric->name, "page_bounds"));
}

/* How many standard deviations its bounds are from the mean of a page's keys; <0: they are the highest and lowest keys. */
static double deviation_of(const struct butler_plan *plan)
{
    return has_deviations(plan) ? plan->values[1] : plan->values[2] != 0 ? 1 : -1;
}

/* Whether the highest of a page's products is its score; else their sum. */
static bool scores_by_max(const struct butler_plan *plan)
{
    return !has_deviations(plan) && plan->values[1] != 0;
}

static bool has_bits(const struct butler_plan *plan)
{
    return plan->metric && !strcmp(plan->metric->name, "one_bit");
}

static bool has_predicted(const struct butler_plan *plan)
{
    return plan->metric && plan->metric->predictor > 0;
}

static bool sums_attention(const struct butler_plan *plan)
{
    return plan->metric && !strcmp(plan->metric->name, "attention");
}

/* Numbers between the sums of two KV heads. */
static uint64_t sums_stride(const struct layer *l)
{
    return l->kv->records_stride / sizeof(float);
}

/* ------------------------------------------------------------------------------------------------------ append */

/* Keys that are read for the records from that of slot `from` on. */
static void count_recorded(const struct layer *l, int from)
{
    const int n_keys = from < l->n ? l->n - from / l->kv->record_slots * l->kv->record_slots : 0;
    l->state->traffic->metric_bytes += (uint64_t)n_keys * l->kv->row_bytes * (uint64_t)l->kv->n_kv_heads;
}

/* Bits a channel of predicted keys. */
static int predicted_bits(const struct butler_plan *plan)
{
    return 4 << (int)plan->values[0];
}

/* Records of predicted keys of slots from `first` on: of version 1 those that the predictor has just given, of version 2 made of
 * stored keys. */
static void record_predicted(const struct layer *l, int first)
{
    const struct butler_predict *predict = l->kv->predict;
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    const int n_keys = l->state->shape->predicted_keys, layer = l->state->layer - 1;
    const size_t heads = (size_t)(layer * l->kv->n_kv_heads) * (size_t)s->d;
    const bool given = s->version == 1;
    butler_gpu_launch(l->gpu, GPU_record_predicted, l->n - first, l->kv->n_kv_heads * n_keys, 1, l->head->records, l->pool,
                      l->head->table, l->shifts, given ? NULL : predict->scratch->projections + heads * (size_t)l->kv->head_dim,
                      given ? predict->keys + heads * (size_t)n_keys : NULL, (uint64_t)l->kv->records_stride,
                      (uint64_t)((s->n_layers - 1) * s->n_key_heads * s->d), l->table_stride, ROWS_OF(l), s->d,
                      predicted_bits(l->state->plan), n_keys, first);
    l->state->traffic->metric_bytes += given ? 0 : (uint64_t)(l->n - first) * l->kv->row_bytes * (uint64_t)l->kv->n_kv_heads;
}

static void gpu_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first)
{
    const struct layer l = layer_of(backend, state);
    const int slots = l.kv->record_slots, n_heads = l.kv->n_kv_heads;
    const bool bits = has_bits(state->plan);
    if (has_predicted(state->plan) && first < l.n)
        record_predicted(&l, first);
    if ((!bounds_pages(state->plan) && !bits) || first >= l.n)
        return;
    first /= slots;
    if (bits)
        butler_gpu_launch(l.gpu, GPU_record_bits, BUTLER_CEIL_DIV(l.n, slots) - first, n_heads, 1, l.head->records, l.pool,
                          l.head->table, l.shifts, (uint64_t)l.kv->records_stride, l.table_stride, ROWS_OF(&l), slots, first, l.n,
                          state->plan->values[2] != 0);
    else
        butler_gpu_launch(l.gpu, GPU_bound_pages, BUTLER_CEIL_DIV(l.n, slots) - first, n_heads, 1, l.head->records, l.pool,
                          l.head->table, l.shifts, (uint64_t)l.kv->records_stride, l.table_stride, ROWS_OF(&l), slots, first, l.n,
                          deviation_of(state->plan));
    count_recorded(&l, first * slots);
}

static void gpu_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                       int n)
{
    const struct layer l = layer_of(backend, state);
    butler_gpu_launch(l.gpu, GPU_append, n, l.kv->n_kv_heads, 1, l.pool, l.head->table, k, v, l.shifts, l.head->positions,
                      l.head->order, sums_attention(state->plan) ? l.head->records : NULL, sums_stride(&l), l.table_stride,
                      ROWS_OF(&l), l.kv->n_kv_heads, l.n - n, state->position, l.group);
    if (state->summarise_from < INT32_MAX)
        gpu_summarise(backend, state, state->summarise_from);
}

/* --------------------------------------------------------------------------------------------------- selection */

/* Whether a KV head has one row of scores, of all its query heads together. */
static bool one_row(const struct butler_plan *plan)
{
    return plan->reduction.rows == BUTLER_ROWS_COMBINED;
}

/* The most query heads of a KV head whose queries, n_floats in all, a group of threads can have: a divisor of their number. */
static int heads_together(int group, int dim, int n_floats)
{
    int n = BUTLER_MIN(BUTLER_MIN(group, GPU_MOST_HEADS), n_floats / dim);
    while (group % n != 0)
        n--;
    return n;
}

/* Rows of scores that a list's heads have. */
static int rows_of(const struct butler_layer_state *state)
{
    return one_row(state->plan) ? 1 : butler_list_heads(state->plan->share, state->n_heads / state->kv->n_kv_heads);
}

static double scale_of(const struct butler_layer_state *state)
{
    return (double)(1 / sqrtf((float)state->kv->head_dim));
}

static int combined_by(const struct butler_plan *plan)
{
    return (int)plan->reduction.mean | (int)plan->reduction.zscores << 1;
}

/* STATS of cache.cl: where attention puts its slices later. */
#define STATS_OF(state) rows_of(state) > 1 ? (state)->work->block : NULL, scale_of(state), combined_by((state)->plan)

static void score_predicted(const struct layer *l)
{
    const struct butler_layer_state *state = l->state;
    const int d = state->shape->predicted_dim, together = one_row(state->plan) ? l->group : 1;
    butler_gpu_launch(l->gpu, GPU_score_predicted, BUTLER_CEIL_DIV(l->n, GPU_THREADS), state->n_heads / together, 1,
                      state->work->scores, butler_predict_queries(l->kv->predict, state->layer), l->head->records,
                      STATS_OF(l->state), (uint64_t)state->work->score_stride * (uint64_t)together, (uint64_t)l->kv->records_stride,
                      d, predicted_bits(state->plan), state->shape->predicted_keys, l->group, together, l->n,
                      together > 1 ? 1.0 : (double)sqrtf((float)l->kv->head_dim / (float)d));
}

/* Where k is given, it and v are appended, and the pages from `stale` on are bounded, before that. */
static void score_pages(const struct layer *l, const float *q, const float *k, const float *v, int stale)
{
    const struct butler_workspace *work = l->state->work;
    const int page = l->kv->record_slots, n_q = heads_together(l->group, l->kv->head_dim, GPU_KEY_FLOATS);
    butler_gpu_launch(l->gpu, GPU_score_pages, BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(l->n, page), GPU_PAGES), l->state->n_heads / n_q, 1,
                      work->scores, q, l->head->records, k, v, l->pool, l->head->table, l->shifts, STATS_OF(l->state),
                      (uint64_t)work->score_stride, (uint64_t)l->kv->records_stride, l->table_stride, ROWS_OF(l), l->group, n_q,
                      l->n, stale, page, deviation_of(l->state->plan), scores_by_max(l->state->plan));
}

static void gpu_score(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds)
{
    const struct layer l = layer_of(backend, state);
    const struct butler_workspace *work = state->work;
    const int n = BUTLER_CEIL_DIV(l.n, state->plan->score_slots), blocks = BUTLER_CEIL_DIV(n, GPU_THREADS);
    (void)bounds; /* check_plan refuses scan= */
    if (bounds_pages(state->plan))
        score_pages(&l, q, NULL, NULL, 0);
    else if (sums_attention(state->plan))
        butler_gpu_launch(l.gpu, GPU_score_sums, blocks, state->n_heads, 1, work->scores, l.head->records,
                          (uint64_t)work->score_stride, sums_stride(&l), l.group, n, state->plan->values[0] == 2);
    else if (has_predicted(state->plan))
        score_predicted(&l);
    else if (has_bits(state->plan))
        butler_gpu_launch(l.gpu, GPU_score_bits, blocks, state->n_heads, 1, work->scores, q, l.head->records, STATS_OF(state),
                          (uint64_t)work->score_stride, (uint64_t)l.kv->records_stride, l.kv->head_dim, l.group, n);
    else
        butler_gpu_launch(l.gpu, GPU_score_keys, blocks, state->n_heads, 1, work->scores, q, l.pool, l.head->table, NULL,
                          STATS_OF(state), (uint64_t)work->score_stride, l.table_stride, ROWS_OF(&l), l.group, 0, n);
    const uint64_t bytes = l.kv->record_slots > 0 ? (uint64_t)BUTLER_CEIL_DIV(l.n, l.kv->record_slots) * l.kv->record_bytes
                                                  : (uint64_t)n * l.kv->row_bytes;
    state->traffic->metric_bytes += bytes * (uint64_t)l.kv->n_kv_heads;
}

/* Where the units that a layer's first list chose are noted. */
static uint64_t *noted_of(const struct butler_layer_state *state)
{
    return state->selection->units + (size_t)state->layer * (size_t)state->n_heads * state->selection->words;
}

/* Counts what attention will read of lists that were selected when heads had selected_n slots: the last unit, which may not be
 * full, is always among the chosen, and so is every later slot. */
static void count_lists(const struct butler_layer_state *state, const struct butler_selecting *selecting, int n_lists,
                        int selected_n)
{
    const struct butler_choice *c = &selecting->choice;
    const int unit = state->plan->unit, n_units = BUTLER_CEIL_DIV(selected_n, unit);
    const int n_kept = BUTLER_MIN(n_units, BUTLER_MAX(c->budget, c->first + c->last));
    const int n_slots = n_kept * unit - (n_units * unit - selected_n) + selecting->n - selected_n;
    state->traffic->units_selected += (uint64_t)n_lists * (uint64_t)BUTLER_CEIL_DIV(n_slots, unit);
    state->traffic->kv_bytes += 2 * (uint64_t)state->kv->row_bytes * (uint64_t)n_lists * (uint64_t)n_slots;
}

static void gpu_select(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                       const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    const struct butler_choice *c = &selecting->choice;
    const bool pools = state->plan->reduction.pool > 1;
    const int n_scores = pools ? selecting->n : c->n_units, n_heads = state->n_heads / lists->n_lists;
    const uint64_t stride = (uint64_t)state->work->score_stride;
    (void)q;
    if (rows_of(state) > 1)
        butler_gpu_launch(gpu, GPU_combine_rows, BUTLER_CEIL_DIV(n_scores, GPU_THREADS), lists->n_lists, 1, state->work->scores,
                          state->sinks, STATS_OF(state), stride, n_heads, bounds_pages(state->plan) ? GPU_PAGES : GPU_THREADS,
                          n_scores);
    butler_gpu_launch(gpu, GPU_choose_units, lists->n_lists, 1, 1, state->work->scores, lists->memory, lists->n, noted_of(state),
                      stride, (uint64_t)lists->stride, (uint64_t)(2 * state->selection->words), n_heads, c->n_units, c->budget,
                      c->first, c->last, state->plan->unit, selecting->n, pools);
    count_lists(state, selecting, lists->n_lists, selecting->n);
}

static void gpu_repeat(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                       const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    const int unit = state->plan->unit;
    butler_gpu_launch((struct butler_gpu *)backend, GPU_repeat, lists->n_lists, 1, 1, lists->memory, lists->n, noted_of(state),
                      (uint64_t)lists->stride, (uint64_t)(2 * state->selection->words), selected_at / unit, unit, selecting->n);
    count_lists(state, selecting, lists->n_lists, selected_at);
}

/* ---------------------------------------------------------------------------------------------------- eviction */

static void gpu_select_leaving(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_cut *cut,
                               const struct butler_lists *lists)
{
    const struct layer l = layer_of(backend, state);
    const struct butler_choice *c = &cut->choice;
    butler_gpu_launch(l.gpu, GPU_choose_leaving, l.kv->n_kv_heads, 1, 1, lists->memory, lists->n,
                      cut->newest ? NULL : state->work->scores, l.head->order, (uint64_t)lists->stride,
                      (uint64_t)state->work->score_stride, l.table_stride, l.group, l.n, c->budget, c->first, c->last,
                      state->plan->reduction.mean);
}

/* The scores, which are of no use any more, make room for where slots go. */
static void gpu_compact(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_lists *lists)
{
    const struct layer l = layer_of(backend, state);
    butler_gpu_launch(l.gpu, GPU_compact, l.kv->n_kv_heads, 1, 1, l.pool, l.head->table, l.head->positions, l.head->order,
                      l.head->records, lists->memory, lists->n, state->work->scores, (uint64_t)l.kv->records_stride,
                      (uint64_t)lists->stride, (uint64_t)state->work->score_stride, l.table_stride,
                      (int)(2 * l.kv->row_bytes / sizeof(uint32_t)),
                      l.kv->record_slots > 0 ? (int)(l.kv->record_bytes / sizeof(uint32_t)) : 0, l.n);
}

/* --------------------------------------------------------------------------------------------------- attention */

/* The metric sees the attention of rows [first, n) of q to all slots up to their own, own + the row. */
static void observe(const struct layer *l, const float *q, int own, int first, int n, int n_slices)
{
    const struct butler_layer_state *state = l->state;
    const double half_life = state->plan->values[1];
    butler_gpu_launch(l->gpu, GPU_observe, BUTLER_CEIL_DIV(own + n, GPU_THREADS), state->n_heads, 1, l->head->records, q,
                      state->work->block, l->pool, l->head->table, sums_stride(l), l->table_stride, state->n_heads, l->group,
                      ROWS_OF(l), (double)state->softcap, half_life > 0 ? exp2(-1 / half_life) : 1.0, state->plan->values[0] == 2,
                      own, first, n, n_slices);
    state->traffic->metric_bytes += (uint64_t)(own + n) * l->kv->record_bytes * (uint64_t)l->kv->n_kv_heads;
}

/* Rows [0, n) of q, the newest n tokens': over lists, or each over the `window` newest up to its own. most: slots of any row. The
 * metric observes the rows from observe_from on. */
static void attend_rows(const struct layer *l, const float *q, float *out, int n, const struct butler_lists *lists, int window,
                        int most, int observe_from)
{
    const struct butler_layer_state *state = l->state;
    const struct butler_workspace *work = state->work;
    const int dim = l->kv->head_dim, n_heads = state->n_heads, n_slices = BUTLER_CEIL_DIV(most, GPU_SLICE);
    const int list_heads = lists ? n_heads / lists->n_lists : l->group,
              n_q = heads_together(BUTLER_MIN(list_heads, l->group), BUTLER_CEIL_DIV(dim, 8) * 8, GPU_QUERY_FLOATS);
    const size_t row = (size_t)n_heads * (size_t)dim,
                 partial = (size_t)n_slices * (size_t)n_heads * (size_t)GPU_PARTIAL_FLOATS(dim);
    const int at_once = (int)BUTLER_MIN(BUTLER_MAX(work->block_floats / partial, 1), GPU_MOST_GROUPS);
    for (int first = 0, m; first < n; first += m) {
        const int own = l->n - n + first;
        m = BUTLER_MIN(n - first, at_once);
        butler_gpu_launch(l->gpu, GPU_attend, n_heads / n_q, n_slices, m, work->block, q + (size_t)first * row, l->pool,
                          l->head->table, lists ? lists->memory : NULL, lists ? lists->n : NULL,
                          (uint64_t)(lists ? lists->stride : 0), l->table_stride, n_heads, l->group, list_heads, n_q, ROWS_OF(l),
                          (double)state->softcap, own, window, n_slices);
        butler_gpu_launch(l->gpu, GPU_merge, n_heads, m, 1, out + (size_t)first * row, work->block, lists ? lists->n : NULL,
                          state->sinks, list_heads, dim, n_heads, own, window, n_slices);
        if (observe_from < first + m)
            observe(l, q + (size_t)first * row, own, BUTLER_MAX(observe_from - first, 0), m, n_slices);
    }
}

/* Tokens that are read, of each KV head or list. */
static void count_pairs(const struct layer *l, int n_lists, int n)
{
    l->state->traffic->kv_bytes += 2 * (uint64_t)l->kv->row_bytes * (uint64_t)n_lists * (uint64_t)n;
}

static void gpu_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                             int n, int window, int observe_from)
{
    const struct layer l = layer_of(backend, state);
    attend_rows(&l, q, out, n, NULL, window, BUTLER_MIN(l.n, window), BUTLER_MAX(observe_from - state->position, 0));
    count_pairs(&l, l.kv->n_kv_heads, l.n);
}

static void gpu_attend(struct butler_backend *backend, const struct butler_layer_state *state,
                       const struct butler_attend_token *token)
{
    const struct layer l = layer_of(backend, state);
    const int n_newest = BUTLER_MIN(l.n, token->newest);
    if (token->k)
        gpu_append(backend, state, token->k, token->v, 1);
    attend_rows(&l, token->q, token->out, 1, token->lists, token->lists ? INT32_MAX : token->newest, token->lists ? l.n : n_newest,
                token->observe ? 0 : 1);
    if (!token->lists)
        count_pairs(&l, l.kv->n_kv_heads, n_newest);
}

/* Algorithm 1 of TinyServe in one launch, a group of threads a KV head: faster than five launches where there are not many more
 * processors than KV heads; and what the group shares must suffice. */
enum { MOST_PROCESSORS = 2 }; /* a KV head */

static bool one_launch(const struct layer *l)
{
    const int n_blocks = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(l->n, l->kv->record_slots), GPU_PAGES), dim = l->kv->head_dim;
    return l->gpu->info.processors <= MOST_PROCESSORS * l->kv->n_kv_heads &&
           heads_together(l->group, dim, GPU_KEY_FLOATS) == l->group &&
           heads_together(l->group, BUTLER_CEIL_DIV(dim, 8) * 8, GPU_QUERY_FLOATS) == l->group &&
           2 * n_blocks <= BUTLER_CEIL_DIV(l->n, GPU_SLICE) * GPU_PARTIAL_FLOATS(dim); /* the stats' place is that of the slices */
}

static void retrieve_pages(const struct layer *l, const struct butler_attend_span *span, const struct butler_lists *lists,
                           int stale)
{
    const struct butler_layer_state *state = l->state;
    const struct butler_workspace *work = state->work;
    const struct butler_choice *c = &span->selecting[0].choice;
    butler_gpu_launch(l->gpu, GPU_retrieve_pages, l->kv->n_kv_heads, 1, 1, span->out, span->q, span->k, span->v, l->pool,
                      l->head->table, l->shifts, l->head->records, work->scores, lists->memory, lists->n, noted_of(state),
                      state->sinks, work->block, (uint64_t)l->kv->records_stride, (uint64_t)work->score_stride,
                      (uint64_t)lists->stride, (uint64_t)(2 * state->selection->words), l->table_stride, ROWS_OF(l), l->group, l->n,
                      stale, l->kv->record_slots, c->budget, c->first, c->last, scale_of(state), (double)state->softcap,
                      deviation_of(state->plan), scores_by_max(state->plan), combined_by(state->plan),
                      BUTLER_CEIL_DIV(l->n, GPU_SLICE));
    count_lists(state, &span->selecting[0], lists->n_lists, span->selecting[0].n);
}

/* Algorithm 1 of TinyServe: one launch, or one for the new row, its page's bounds and all pages' scores, and more for the rest. */
static bool gpu_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    const struct layer l = layer_of(backend, state);
    const struct butler_lists lists = butler_lists_of(state, 0);
    const int from = state->summarise_from, stale = BUTLER_MIN(from, l.n - 1) / state->plan->unit;
    if (!state->plan->fused || !span->selects || !bounds_pages(state->plan) || lists.n_lists != l.kv->n_kv_heads ||
        l.group > GPU_MOST_HEADS)
        return false;
    count_recorded(&l, from);
    state->traffic->metric_bytes += (uint64_t)span->selecting[0].choice.n_units * (uint64_t)l.kv->n_kv_heads * l.kv->record_bytes;
    if (one_launch(&l)) {
        retrieve_pages(&l, span, &lists, stale);
        return true;
    }
    score_pages(&l, span->q, span->k, span->v, stale);
    gpu_select(backend, state, span->q, &span->selecting[0], &lists);
    attend_rows(&l, span->q, span->out, 1, &lists, INT32_MAX, l.n, 1);
    return true;
}

static void gpu_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct layer l = layer_of(backend, &span->state);
    gpu_append(backend, &span->state, span->k, span->v, span->n);
    attend_rows(&l, span->q, span->out, span->n, NULL, span->window, BUTLER_MIN(l.n, span->window),
                span->observe_from == INT32_MAX ? span->n : span->n - 1);
    count_pairs(&l, l.kv->n_kv_heads, BUTLER_MIN(l.n, span->window));
}

/* scores[n] become attention weights; returns that of the learned sink. */
static float weigh(const struct butler_layer_state *state, int head, const float *scores, float *weights, int n)
{
    const float scale = 1 / sqrtf((float)state->kv->head_dim), cap = state->softcap;
    float max = state->sinks ? state->sinks[head] : -INFINITY;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        weights[i] = cap > 0 ? cap * tanhf(scores[i] * scale / cap) : scores[i] * scale;
        max = fmaxf(max, weights[i]);
    }
    for (int i = 0; i < n; i++)
        sum += (double)(weights[i] = expf(weights[i] - max));
    const double sink = state->sinks ? exp((double)(state->sinks[head] - max)) : 0;
    for (int i = 0; i < n; i++)
        weights[i] = (float)((double)weights[i] / (sum + sink));
    return (float)(sink / (sum + sink));
}

/* Positions of the n tokens of a KV head from the one at `first` of its order on. The scores are of no use any more. */
static void give_positions(struct butler_backend *backend, const struct butler_layer_state *state, int kv_head, int first, int n,
                           int32_t *positions)
{
    const struct butler_kv_head *head = butler_kv_at(state->kv, state->layer, kv_head);
    for (int i = 0; i < n; i++)
        positions[i] = first + i;
    if (!head->positions || n == 0)
        return;
    butler_gpu_launch((struct butler_gpu *)backend, GPU_gather_rows, 1, 1, 1, state->work->scores, head->positions,
                      head->order + first, n, 1);
    backend->download(backend, positions, state->work->scores, (size_t)n * sizeof *positions);
}

/* Scores by the device, the rest on the host: it is not in a step's way. */
static void gpu_exact_weights(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                              const struct butler_exact *exact)
{
    const struct layer l = layer_of(backend, state);
    const struct butler_workspace *work = state->work;
    const int dim = l.kv->head_dim, first = l.n - exact->n;
    float *rows = exact->scores ? exact->scores : exact->weights;
    butler_gpu_stage(l.gpu, q, 0, (size_t)(state->n_heads * dim) * sizeof *q);
    butler_gpu_launch(l.gpu, GPU_score_keys, BUTLER_CEIL_DIV(exact->n, GPU_THREADS), state->n_heads, 1, work->scores,
                      GPU_STAGING(l.gpu), l.pool, l.head->table, l.head->order, NULL, 1.0, 0, (uint64_t)work->score_stride,
                      l.table_stride, ROWS_OF(&l), l.group, first, exact->n);
    for (int h = 0; h < state->n_heads; h++) {
        const size_t at = (size_t)h * exact->stride;
        if (rows)
            backend->download(backend, rows + at, work->scores + (size_t)h * work->score_stride, (size_t)exact->n * sizeof *rows);
        const float sink = exact->weights ? weigh(state, h, rows + at, exact->weights + at, exact->n) : 0;
        if (exact->weights && exact->sinks)
            exact->sinks[h] = sink;
    }
    for (int h = 0; exact->positions && h < l.kv->n_kv_heads; h++)
        give_positions(backend, state, h, first, exact->n, exact->positions + (size_t)h * exact->stride);
}

/* ------------------------------------------------------------------------------------------------------- plans */

bool butler_gpu_has_kernels(const struct butler_plan *plan, int group)
{
    const struct butler_reduction *r = &plan->reduction;
    const bool keys = plan->metric && !strcmp(plan->metric->name, "exact");
    const bool sums = sums_attention(plan) && plan->share == BUTLER_SHARE_KV && r->weigh == BUTLER_WEIGH_NOT && !r->probabilities;
    const bool newest = plan->newest && !strcmp(plan->metric->name, "recency");
    if (plan->method == BUTLER_EVICT)
        return plan->unit == 1 && !plan->unrotated && (newest || sums);
    return !plan->metric ||
           ((bounds_pages(plan) || keys || has_bits(plan) || has_predicted(plan)) && plan->share != BUTLER_SHARE_LAYER &&
            r->logits && !r->probabilities && r->weigh == BUTLER_WEIGH_NOT && plan->scan == 0 &&
            plan->value_norm == BUTLER_NORM_NONE && butler_list_heads(plan->share, group) <= GPU_MOST_HEADS);
}

static int gpu_check_plan(const struct butler_backend *backend, const struct butler_plan *plan, enum butler_kv_type type, int group,
                          struct butler_error *err)
{
    const struct butler_gpu *gpu = (const struct butler_gpu *)backend;
    const int list_heads = butler_list_heads(plan->share, group);
    (void)type;
    if (group % list_heads != 0)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "device %s:%d has no kernels for subgroups of different sizes: share=%d does not divide the %d query "
                           "heads of a KV head; use share=kv, share=query or --device cpu",
                           gpu->driver->name, gpu->index, list_heads, group);
    if (butler_gpu_has_kernels(plan, group))
        return 0;
    if (!butler_gpu_metric_on_cpu(gpu, plan, group))
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "device %s:%d has no kernels for this policy (metric %s): use full, quest, tinyserve, pagestats, fier, "
                           "tokenbutler2, oracle, streaming, h2o or --device cpu",
                           gpu->driver->name, gpu->index, plan->metric->name);
    butler_fail(err, 0,
                "metric %s runs on the CPU, over keys and values that it downloads: device %s:%d has no kernels for this policy",
                plan->metric->name, gpu->driver->name, gpu->index);
    return 0;
}

/* Scores, lists, and slices of attention (in block) for as many rows as fit into a few million numbers, but at least one. */
static int gpu_make_workspace(struct butler_backend *backend, struct butler_workspace *work, const struct butler_hparams *hp,
                              const struct butler_workspace_sizes *sizes, struct butler_error *err)
{
    enum { PARTIAL_FLOATS = 4 << 20 };
    const size_t slots = (size_t)sizes->max_slots, heads = (size_t)hp->n_heads;
    struct butler_arena *pieces = &work->memory.pieces;
    memset(work, 0, sizeof *work);
    if (!sizes->products) /* for a thread of the CPU */
        return 0;
    work->max_slots = sizes->max_slots;
    work->n_threads = sizes->n_threads;
    work->score_stride = (slots + 15) / 16 * 16;
    work->block_floats = heads * BUTLER_CEIL_DIV(slots, (size_t)GPU_SLICE) * (size_t)GPU_PARTIAL_FLOATS(hp->head_dim);
    work->block_floats = BUTLER_MAX(work->block_floats, PARTIAL_FLOATS);
    butler_arena_want(pieces, &work->scores, heads * work->score_stride, sizeof(float));
    butler_arena_want(pieces, &work->slots, heads * slots, sizeof(uint32_t));
    butler_arena_want(pieces, &work->list_n, heads, sizeof(int));
    butler_arena_want(pieces, &work->block, work->block_floats, sizeof(float));
    return butler_buffers_make(&work->memory, backend, err);
}

void butler_gpu_use_cache(struct butler_backend *backend)
{
    backend->make_workspace = gpu_make_workspace;
    backend->check_plan = gpu_check_plan;
    backend->append = gpu_append;
    backend->summarise = gpu_summarise;
    backend->attend_block = gpu_attend_block;
    backend->score = gpu_score;
    backend->select = gpu_select;
    backend->repeat = gpu_repeat;
    backend->select_leaving = gpu_select_leaving;
    backend->compact = gpu_compact;
    backend->attend = gpu_attend;
    backend->retrieve_fused = gpu_retrieve_fused;
    backend->attend_exact = gpu_attend_exact;
    backend->exact_weights = gpu_exact_weights;
}
