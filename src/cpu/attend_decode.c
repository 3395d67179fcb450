/* Attention: from ids and queries to outputs (of a prompt's block: attend_prefill.c; of many sessions: attend_spans.c). A decode
 * step cuts every list into slices of BUTLER_SLICE tokens; a slice keeps its maximum, its sum and its weighted values, and slices
 * are put together in order, whoever computed them. */
#include <math.h>
#include <string.h>

#include "cpu/attend.h"

static void count(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

void butler_rotate(const struct butler_kernels *kernels, enum butler_rope rope, float *x, const float *cos, const float *sin,
                   int n_rot)
{
    (rope == BUTLER_ROPE_ADJACENT ? kernels->rope_adjacent : kernels->rope_halves)(x, cos, sin, n_rot);
}

void butler_softcap(float *x, int n, float cap)
{
    for (int i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

static int group_of(const struct butler_layer_state *state)
{
    return state->n_heads / state->kv->n_kv_heads;
}

/* ------------------------------------------------------------------------------------------------- append */

/* Clears and makes anew the metric's records of a head from the one of slot `first` on; all of them, where there is a state. */
static void summarise(const struct butler_layer_state *state, int kv_head, int first, const struct butler_head_view *view)
{
    const struct butler_kv *kv = state->kv;
    const struct butler_kv_head *head = butler_kv_at(kv, state->layer, kv_head);
    if (head->state) {
        memset(head->state, 0, kv->state_bytes);
        first = 0;
    }
    if (kv->record_slots > 0) {
        const size_t from = (size_t)(first / kv->record_slots), end = (size_t)BUTLER_CEIL_DIV(head->n_slots, kv->record_slots);
        memset(head->records + from * kv->record_bytes, 0, (end - from) * kv->record_bytes);
    }
    state->plan->metric->append(state->shape, state->plan->values, view, first, head->n_slots - first);
}

void butler_attend_append_head(const struct butler_layer_state *state, int kv_head, const float *k, const float *v, int n)
{
    struct butler_kv *kv = state->kv;
    struct butler_kv_head *head = butler_kv_at(kv, state->layer, kv_head);
    const struct butler_metric *metric = state->plan->metric;
    const int first = head->n_slots - n;
    if (kv->record_slots > 0 && !kv->records_off) {
        const struct butler_piece fresh = butler_kv_new_records(kv, head, first);
        memset(fresh.address, 0, fresh.n_bytes);
    }
    for (int t = 0; t < n; t++) {
        const size_t at = (size_t)(t * kv->n_kv_heads + kv_head) * (size_t)kv->head_dim;
        butler_kv_write(kv, head, (uint32_t)(first + t), k + at, v + at);
        if (head->positions) {
            head->positions[first + t] = state->position + t;
            head->order[first + t] = (uint32_t)(first + t);
        }
    }
    if (state->summarise_from == INT32_MAX)
        return;
    const bool late = state->summarise_from < first; /* nothing was made of the tokens before these */
    if (head->value_norms) {
        butler_kv_make_norms(kv, head, late ? 0 : first);
        count(&state->traffic->metric_bytes, (uint64_t)(late ? head->n_slots : n) * kv->row_bytes);
    }
    if (metric && metric->append) {
        uint64_t bytes = 0;
        struct butler_head_view view = butler_kv_view(kv, state->layer, kv_head, state->position + n - 1);
        view.bytes = &bytes;
        if (late)
            summarise(state, kv_head, 0, &view);
        else
            metric->append(state->shape, state->plan->values, &view, first, n);
        count(&state->traffic->metric_bytes, bytes);
    }
}

void butler_attend_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first)
{
    const struct butler_metric *metric = state->plan->metric;
    (void)backend;
    for (int h = 0; h < state->kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(state->kv, state->layer, h);
        butler_kv_make_norms(state->kv, head, first);
        if (!metric || !metric->append || state->plan->own_text || (first >= head->n_slots && !head->state))
            continue;
        const struct butler_head_view view = butler_kv_view(state->kv, state->layer, h, state->position);
        summarise(state, h, first, &view);
    }
}

struct append_job {
    const struct butler_layer_state *state;
    const float *k, *v;
    int n;
};

static void append_task(void *context, int kv_head, int thread)
{
    const struct append_job *job = context;
    (void)thread;
    butler_attend_append_head(job->state, kv_head, job->k, job->v, job->n);
}

void butler_attend_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                          int n)
{
    struct append_job job = {state, k, v, n};
    butler_pool_run(backend->pool, append_task, &job, state->kv->n_kv_heads);
}

/* -------------------------------------------------------------------------------------------------- score */

enum { SCORE_UNITS = 1024 }; /* units one task scores: a multiple of every record's slots, so that records are not split */

/* Units [first, first + n), into rows that each begin with unit 0. */
static void score_units(const struct butler_layer_state *state, int kv_head, const float *q, bool bounds, int first, int n,
                        float *rows)
{
    const struct butler_metric *metric = state->plan->metric;
    const struct butler_kv *kv = state->kv;
    const int group = group_of(state), n_q = state->plan->reduction.rows == BUTLER_ROWS_ANY ? 1 : group;
    uint64_t bytes = 0;
    struct butler_head_view view = butler_kv_view(kv, state->layer, kv_head, state->position);
    view.bytes = &bytes;
    q += (size_t)(kv_head * group) * (size_t)kv->head_dim;
    if (bounds) {
        metric->scan->bounds(&view, q, n_q, first, n, rows + first, state->work->score_stride);
        count(&state->traffic->metric_bytes, metric->scan->bytes(kv->head_dim, n, 0));
        return;
    }
    if (state->plan->reduction.rows == BUTLER_ROWS_COMBINED)
        metric->score_mean(state->shape, state->plan->values, &view, q, n_q, first, n, rows + first);
    else
        metric->score(state->shape, state->plan->values, &view,
                      &(struct butler_score_request){q, n_q, first, n, rows + first, state->work->score_stride});
    if (first == 0) { /* records are counted once a head, keys as they are read */
        const int n_slots = butler_kv_at(kv, state->layer, kv_head)->n_slots;
        bytes += metric->score_bytes    ? metric->score_bytes(state->shape, state->plan->values, n_slots)
                 : kv->record_slots > 0 ? (uint64_t)BUTLER_CEIL_DIV(n_slots, kv->record_slots) * kv->record_bytes
                                        : 0;
    }
    count(&state->traffic->metric_bytes, bytes);
}

/* Before a KV head is scored for q[n_heads][head_dim]. */
static void begin_score(const struct butler_layer_state *state, int kv_head, const float *q)
{
    const struct butler_metric *metric = state->plan->metric;
    const int group = group_of(state);
    uint64_t bytes = state->kv->state_bytes;
    struct butler_head_view view = butler_kv_view(state->kv, state->layer, kv_head, state->position);
    view.bytes = &bytes;
    if (metric->begin_score)
        metric->begin_score(state->shape, state->plan->values, &view, q + (size_t)(kv_head * group) * (size_t)state->kv->head_dim,
                            state->plan->reduction.rows == BUTLER_ROWS_ANY ? 1 : group);
    if (bytes > 0)
        count(&state->traffic->metric_bytes, bytes);
}

void butler_attend_score_head(const struct butler_layer_state *state, int kv_head, const float *q, bool bounds, float *rows)
{
    const int n = butler_n_scores(state, kv_head, bounds);
    if (n == 0) /* of a later layer, before its first token */
        return;
    begin_score(state, kv_head, q);
    score_units(state, kv_head, q, bounds, 0, n, rows);
}

struct score_job {
    const struct butler_layer_state *state;
    const float *q;
    bool bounds;
    int n_slices;
};

static void begin_task(void *context, int kv_head, int thread)
{
    const struct score_job *job = context;
    (void)thread;
    begin_score(job->state, kv_head, job->q);
}

static void score_task(void *context, int task, int thread)
{
    const struct score_job *job = context;
    const int kv_head = task / job->n_slices, first = task % job->n_slices * SCORE_UNITS;
    const int n = BUTLER_MIN(SCORE_UNITS, butler_n_scores(job->state, kv_head, job->bounds) - first);
    (void)thread;
    if (n > 0)
        score_units(job->state, kv_head, job->q, job->bounds, first, n, butler_score_rows(job->state, kv_head));
}

void butler_attend_score(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds)
{
    struct score_job job = {state, q, bounds, 0};
    for (int h = 0; h < state->kv->n_kv_heads; h++)
        job.n_slices = BUTLER_MAX(job.n_slices, BUTLER_CEIL_DIV(butler_n_scores(state, h, bounds), SCORE_UNITS));
    if (state->plan->metric->begin_score || state->kv->state_bytes > 0)
        butler_pool_run(backend->pool, begin_task, &job, state->kv->n_kv_heads);
    butler_pool_run(backend->pool, score_task, &job, state->kv->n_kv_heads * job.n_slices);
}

/* ------------------------------------------------------------------------------------------- decode: slices */

void butler_attend_keys(const struct butler_kv *kv, const struct butler_kv_head *head, const uint32_t *slots, int first, int n,
                        const void **keys)
{
    if (slots) {
        for (int i = 0; i < n; i++)
            keys[i] = butler_kv_key_row(kv, head, slots[first + i]);
        return;
    }
    for (int i = 0, m; i < n; i += m) {
        const unsigned char *row = butler_kv_key_row(kv, head, (uint32_t)(first + i));
        m = BUTLER_MIN(BUTLER_PAGE - (first + i) % BUTLER_PAGE, n - i);
        for (int r = 0; r < m; r++)
            keys[i + r] = row + (size_t)r * 2 * kv->row_bytes;
    }
}

void butler_attend_rows(const struct butler_kv *kv, const struct butler_kv_head *head, const uint32_t *slots, int first, int n,
                        const void **keys, const void **values)
{
    butler_attend_keys(kv, head, slots, first, n, keys);
    for (int i = 0; i < n; i++)
        values[i] = (const unsigned char *)keys[i] + kv->row_bytes;
}

/* Keys that are stored unrotated, as floats rotated by their place in the cache: rows become pointers to scratch. */
static void rotate_rows(const struct butler_layer_state *state, int thread, int first_rank, int n, const void **rows)
{
    const struct butler_kv *kv = state->kv;
    const struct butler_workspace *work = state->work;
    float *x = work->rotated + (size_t)thread * BUTLER_CHUNK * (size_t)kv->head_dim;
    for (int i = 0; i < n; i++, x += kv->head_dim) {
        const size_t at = (size_t)(first_rank + i) * (size_t)kv->n_rot / 2;
        kv->kernels->load_row[kv->type](x, rows[i], kv->head_dim);
        butler_rotate(kv->kernels, kv->rope, x, kv->rope_cos + at, kv->rope_sin + at, kv->n_rot);
        rows[i] = x;
    }
}

void butler_attend_scores(const struct butler_layer_state *state, int thread, struct butler_results s, struct butler_vectors q,
                          const void **keys, int rank, int n)
{
    const struct butler_kv *kv = state->kv;
    if (!kv->rope_cos)
        kv->kernels->qk[kv->type](s.at, s.stride, q.at, q.stride, q.n, keys, n, kv->head_dim);
    for (int i = 0; kv->rope_cos && i < n; i += BUTLER_CHUNK) {
        const int m = BUTLER_MIN(BUTLER_CHUNK, n - i);
        rotate_rows(state, thread, rank + i, m, keys + i);
        kv->kernels->qk[BUTLER_KV_F32](s.at + i, s.stride, q.at, q.stride, q.n, keys + i, m, kv->head_dim);
    }
    for (int i = 0; state->softcap > 0 && i < q.n; i++)
        butler_softcap(s.at + (size_t)i * s.stride, n, state->softcap);
}

/* Queries scaled by 1/sqrt(head_dim) into the thread's scratch; rotated, where keys are rotated as they are read. */
static float *scaled_queries(const struct butler_layer_state *state, int thread, const float *q, int n_q, int rank)
{
    const struct butler_workspace *work = state->work;
    const struct butler_kv *kv = state->kv;
    const struct butler_kernels *kernels = kv->kernels;
    const int dim = kv->head_dim;
    float *scaled = work->tile_q + (size_t)thread * (size_t)work->tile_rows * (size_t)dim;
    memcpy(scaled, q, (size_t)n_q * (size_t)dim * sizeof *scaled);
    kernels->scale(scaled, 1.0f / sqrtf((float)dim), n_q * dim);
    butler_kv_turn_queries(kv, scaled, n_q);
    if (kv->rope_cos)
        for (int i = 0; i < n_q; i++)
            butler_rotate(kernels, kv->rope, scaled + (size_t)i * (size_t)dim, kv->rope_cos + (size_t)rank * (size_t)kv->n_rot / 2,
                          kv->rope_sin + (size_t)rank * (size_t)kv->n_rot / 2, kv->n_rot);
    return scaled;
}

static float *partial_of(const struct butler_layer_state *state, int row, int head, int slice)
{
    const size_t n_slices = BUTLER_CEIL_DIV((size_t)state->work->max_slots, BUTLER_SLICE);
    const size_t list = (size_t)row * (size_t)state->n_heads + (size_t)head;
    return state->work->partial + (list * n_slices + (size_t)slice) * ((size_t)state->kv->head_dim + 2);
}

void butler_attend_keep(const struct butler_layer_state *state, int row, int head, int slice, float top, float sum,
                        const float *out)
{
    float *partial = partial_of(state, row, head, slice);
    partial[0] = top;
    partial[1] = sum;
    memcpy(partial + 2, out, (size_t)state->kv->head_dim * sizeof *out);
}

/* The unfused fallback of kernels->attend: scores, softmax and values one after the other, for keys that are rotated as they are
 * read and for scores with a cap. */
static void attend_unfused(const struct butler_layer_state *state, int thread, struct butler_attended out, struct butler_vectors q,
                           const void **keys, int rank, int n)
{
    const struct butler_kv *kv = state->kv;
    const void *values[BUTLER_SLICE];
    for (int i = 0; i < n; i++)
        values[i] = (const unsigned char *)keys[i] + kv->row_bytes;
    butler_attend_scores(state, thread, out.s, q, keys, rank, n);
    for (int i = 0; i < q.n; i++) {
        float *s = out.s.at + (size_t)i * out.s.stride;
        memset(out.acc.at + (size_t)i * out.acc.stride, 0, (size_t)kv->head_dim * sizeof *out.acc.at);
        out.top[i] = kv->kernels->max(s, n);
        out.sum[i] = kv->kernels->exp_sum(s, out.top[i], n);
    }
    kv->kernels->av[kv->type](out.acc.at, out.acc.stride, out.s.at, out.s.stride, q.n, values, n, kv->head_dim);
}

void butler_attend_queries(const struct butler_layer_state *state, int thread, struct butler_attended out, struct butler_vectors q,
                           const struct butler_pairs *pairs, int rank, int n_unseen)
{
    const struct butler_kv *kv = state->kv;
    const void *keys[BUTLER_SLICE];
    if (kv->rope_cos || state->softcap > 0) {
        memcpy(keys, pairs->keys, (size_t)pairs->n * sizeof *keys); /* rotating replaces the pointers */
        attend_unfused(state, thread, out, q, keys, rank, pairs->n);
        return;
    }
    if (n_unseen >= q.n)
        out.s.at = NULL;
    kv->kernels->attend[kv->type](out, q, pairs, kv->head_dim);
    for (int i = n_unseen; i < q.n; i++)
        kv->kernels->exp_sum(out.s.at + (size_t)i * out.s.stride, out.top[i], pairs->n);
}

enum { SLICE_QUERIES = 16 }; /* query heads of a group that go through a slice together */

/* The first keys of a slice, up to `most`. Returns how many, and at *first the place of the first: in the list, or where that is
 * the newest slots, in the cache. */
static int slice_keys(const struct butler_layer_state *state, const struct butler_slice *slice, int most, const void **keys,
                      int *first)
{
    const struct butler_kv_head *cache = butler_kv_at(state->kv, state->layer, slice->head / group_of(state));
    const int begin = slice->index * BUTLER_SLICE, n_keys = BUTLER_MIN(BUTLER_MIN(slice->n - begin, BUTLER_SLICE), most);
    *first = slice->slots ? begin : cache->n_slots - slice->n + begin;
    butler_attend_keys(state->kv, cache, slice->slots, *first, n_keys, keys);
    return n_keys;
}

void butler_attend_slice(const struct butler_layer_state *state, int thread, const float *q, const struct butler_slice *slice,
                         const struct butler_slice *next, bool weights)
{
    const struct butler_kv *kv = state->kv;
    const struct butler_kv_head *cache = butler_kv_at(kv, state->layer, slice->head / group_of(state));
    const size_t stride = state->work->score_stride, dim = (size_t)kv->head_dim;
    float *out = state->work->tile_out + (size_t)thread * (size_t)state->work->tile_rows * dim;
    const float *scaled = scaled_queries(state, thread, q + (size_t)slice->head * dim, slice->n_q, cache->n_slots - 1);
    const void *keys[BUTLER_SLICE + BUTLER_PAIRS_NEXT];
    struct butler_pairs pairs = {keys, kv->row_bytes, 0, 0};
    for (int i = 0, m; i < slice->n_q; i += m, scaled += (size_t)m * dim) {
        float *s = state->work->scores + (size_t)(slice->head + i) * stride + slice->index * BUTLER_SLICE;
        float top[SLICE_QUERIES], sum[SLICE_QUERIES];
        int from, from_next;
        m = BUTLER_MIN(slice->n_q - i, SLICE_QUERIES);
        pairs.n = slice_keys(state, slice, BUTLER_SLICE, keys, &from);
        if (next && i + m == slice->n_q)
            pairs.n_next = slice_keys(state, next, BUTLER_PAIRS_NEXT, keys + pairs.n, &from_next);
        butler_attend_queries(state, thread, (struct butler_attended){{out, dim}, top, sum, {s, stride}},
                              (struct butler_vectors){scaled, dim, m}, &pairs, from, weights ? 0 : m);
        for (int h = 0; h < m; h++)
            butler_attend_keep(state, 0, slice->head + i + h, slice->index, top[h], sum[h], out + (size_t)h * dim);
    }
    count(&state->traffic->kv_bytes, 2 * kv->row_bytes * (uint64_t)pairs.n);
}

void butler_attend_combine(const struct butler_layer_state *state, int row, int head, int n, float *out, bool weights)
{
    const struct butler_kernels *kernels = state->kv->kernels;
    const int dim = state->kv->head_dim, n_slices = BUTLER_CEIL_DIV(n, BUTLER_SLICE);
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n_slices; i++)
        max = fmaxf(max, partial_of(state, row, head, i)[0]);
    for (int i = 0; i < n_slices; i++)
        sum += partial_of(state, row, head, i)[1] * expf(partial_of(state, row, head, i)[0] - max);
    if (state->sinks)
        sum += expf(state->sinks[head] - max);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int i = 0; i < n_slices; i++) {
        const float *partial = partial_of(state, row, head, i);
        const float scale = expf(partial[0] - max) / sum;
        kernels->axpy(out, scale, partial + 2, dim);
        if (weights)
            kernels->scale(state->work->scores + (size_t)head * state->work->score_stride + (size_t)i * BUTLER_SLICE, scale,
                           BUTLER_MIN(BUTLER_SLICE, n - i * BUTLER_SLICE));
    }
}

/* ------------------------------------------------------------------------------------------- decode: a step */

struct attend_job {
    const struct butler_layer_state *state;
    const float *q, *k, *v; /* k, v: of the newest token, not yet in the cache, or NULL */
    const struct butler_lists *lists;
    float *out;
    int n_slices;
    bool observe;
};

/* False where the list has no such slice. */
static bool slice_of(const struct attend_job *job, int task, struct butler_slice *slice)
{
    const int list = task / job->n_slices;
    if (list >= job->lists->n_lists)
        return false;
    *slice = (struct butler_slice){.slots = job->lists->slots[list], .n = job->lists->n[list], .index = task % job->n_slices};
    slice->n_q = butler_lists_heads(job->lists, group_of(job->state), list, &slice->head);
    return slice->index * BUTLER_SLICE < slice->n;
}

/* Slice `task` of all lists; the next one, of those before `end`, is prefetched. */
static void attend_slice(const struct attend_job *job, int task, int end, int thread)
{
    const int next_list = (task / job->n_slices + 1) * job->n_slices;
    struct butler_slice slice, next;
    if (!slice_of(job, task, &slice))
        return;
    const bool more = (task + 1 < end && slice_of(job, task + 1, &next)) || (next_list < end && slice_of(job, next_list, &next));
    butler_attend_slice(job->state, thread, job->q, &slice, more ? &next : NULL, job->observe);
}

static void slice_task(void *context, int task, int thread)
{
    const struct attend_job *job = context;
    attend_slice(job, task, job->lists->n_lists * job->n_slices, thread);
}

/* The list of a query head. */
static int list_of(const struct attend_job *job, int head)
{
    return butler_list_of(job->lists->heads, group_of(job->state), head);
}

/* The weights of a list as weights of all slots of the head: what was not read got none. */
static const float *scatter_weights(const struct attend_job *job, int thread, int kv_head, size_t *stride)
{
    const struct butler_workspace *work = job->state->work;
    const int group = group_of(job->state), n_slots = butler_kv_at(job->state->kv, job->state->layer, kv_head)->n_slots;
    float *tile = work->tile + (size_t)thread * (size_t)work->tile_rows * work->score_stride;
    *stride = work->score_stride;
    if (!job->lists->slots[list_of(job, kv_head * group)])
        return work->scores + (size_t)(kv_head * group) * work->score_stride;
    for (int i = 0; i < group; i++) {
        const int head = kv_head * group + i, list = list_of(job, head);
        const float *from = work->scores + (size_t)head * work->score_stride;
        float *to = tile + (size_t)i * work->score_stride;
        memset(to, 0, (size_t)n_slots * sizeof *to);
        for (int j = 0; j < job->lists->n[list]; j++)
            to[job->lists->slots[list][j]] = from[j];
    }
    return tile;
}

void butler_attend_observe(const struct butler_layer_state *state, int kv_head, int position, const float *weights, size_t stride,
                           int n)
{
    const struct butler_metric *metric = state->plan->metric;
    const struct butler_kv *kv = state->kv;
    uint64_t bytes = metric->observe_bytes  ? metric->observe_bytes(state->shape, state->plan->values, n)
                     : kv->record_slots > 0 ? (uint64_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes
                                            : 0;
    struct butler_head_view view = butler_kv_view(kv, state->layer, kv_head, position);
    view.n_slots = n;
    view.bytes = &bytes;
    metric->observe(state->shape, state->plan->values, &view, position, weights, stride, n);
    count(&state->traffic->metric_bytes, bytes);
}

static void combine_task(void *context, int kv_head, int thread)
{
    const struct attend_job *job = context;
    const struct butler_layer_state *state = job->state;
    const int group = group_of(state);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        butler_attend_combine(state, 0, head, job->lists->n[list_of(job, head)],
                              job->out + (size_t)head * (size_t)state->kv->head_dim, job->observe);
    if (job->observe) {
        size_t stride;
        const float *weights = scatter_weights(job, thread, kv_head, &stride);
        butler_attend_observe(state, kv_head, state->position, weights, stride,
                              butler_kv_at(state->kv, state->layer, kv_head)->n_slots);
    }
}

/* All of it for one KV head, whose lists are a slice each: threads meet once. */
static void head_task(void *context, int kv_head, int thread)
{
    const struct attend_job *job = context;
    const int n_lists = job->lists->n_lists / job->state->kv->n_kv_heads;
    if (job->k)
        butler_attend_append_head(job->state, kv_head, job->k, job->v, 1);
    /* Keys of the next head are fetched ahead, but not by its order of slots, which another thread may be writing. */
    const int end = job->state->kv->rope_cos ? (kv_head + 1) * n_lists : job->lists->n_lists;
    for (int list = kv_head * n_lists; list < (kv_head + 1) * n_lists; list++)
        attend_slice(job, list, end, thread);
    combine_task(context, kv_head, thread);
}

/* Lists of the newest slots of all KV heads. */
static struct butler_lists newest_lists(const struct butler_layer_state *state, int newest)
{
    struct butler_lists lists = {
        .n_lists = state->kv->n_kv_heads, .heads = group_of(state), .slots = state->work->list_slots, .n = state->work->list_n};
    for (int h = 0; h < lists.n_lists; h++) {
        lists.slots[h] = state->kv->rope_cos ? butler_kv_at(state->kv, state->layer, h)->order : NULL;
        lists.n[h] = newest;
    }
    return lists;
}

void butler_attend_head(const struct butler_layer_state *state, int thread, int kv_head, const float *q,
                        const struct butler_lists *lists, int newest, float *out, bool observe)
{
    struct butler_lists all;
    if (!lists) {
        all = newest_lists(state, newest);
        lists = &all;
    }
    const int n_lists = lists->n_lists / state->kv->n_kv_heads;
    struct attend_job job = {state, q, NULL, NULL, lists, out, 1, observe};
    for (int list = kv_head * n_lists; list < (kv_head + 1) * n_lists; list++)
        job.n_slices = BUTLER_MAX(job.n_slices, BUTLER_CEIL_DIV(lists->n[list], BUTLER_SLICE));
    for (int task = kv_head * n_lists * job.n_slices; task < (kv_head + 1) * n_lists * job.n_slices; task++)
        attend_slice(&job, task, (kv_head + 1) * n_lists * job.n_slices, thread);
    combine_task(&job, kv_head, thread);
}

void butler_attend(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_attend_token *token)
{
    const struct butler_lists all = token->lists ? *token->lists : newest_lists(state, token->newest), *lists = &all;
    struct attend_job job = {state, token->q, token->k, token->v, lists, token->out, 1, token->observe};
    for (int i = 0; i < lists->n_lists; i++)
        job.n_slices = BUTLER_MAX(job.n_slices, BUTLER_CEIL_DIV(lists->n[i], BUTLER_SLICE));
    if (job.n_slices == 1 && butler_pool_size(backend->pool) <= state->kv->n_kv_heads) {
        butler_pool_run_shares(backend->pool, head_task, &job, state->kv->n_kv_heads);
        return;
    }
    if (token->k)
        butler_attend_append(backend, state, token->k, token->v, 1);
    butler_pool_run_shares(backend->pool, slice_task, &job, lists->n_lists * job.n_slices);
    butler_pool_run(backend->pool, combine_task, &job, state->kv->n_kv_heads);
}
