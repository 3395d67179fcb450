/* The attention of a prompt's block, dense and causal, over all tokens or the newest of them. Keys come in chunks; a query keeps
 * the maximum, the sum of exponentials and the weighted values of the chunks so far, so that nothing grows with the text. Only
 * where a metric observes a query do the weights of its chunks stay, each with the maximum it was taken against, until the last
 * chunk is in and they can be put right.
 *
 * A task has some tokens of the block and the query heads of one KV head. All its queries pass a chunk before the next is
 * prefetched: a chunk is widened, and packed for the matrix unit where there is one, once for all of them. What a query computes
 * depends on the chunks alone, not on the other queries of the task. */
#include <assert.h>
#include <math.h>
#include <sched.h>
#include <string.h>

#include "cpu/attend.h"

#define LOG2_E 1.44269504f

enum {
    KEYS = BUTLER_WINDOW_CHUNK, /* of a chunk */
    STRIP = 48,                 /* queries that meet a chunk together: their scores stay in cache */
    ROWS = 1024,                /* most queries of a task, where no weights have to stay */
    KEPT = 128,                 /* most queries of a task where they have to, */
    KEPT_FLOATS = 1 << 21,      /* if so many floats hold their weights */
};

/* What a task works on, and its scratch. Rows are (token, query head): a token's query heads are neighbours. */
struct tile {
    const struct butler_attend_block_job *job;
    const struct butler_kv_head *cache;
    const uint32_t *slots; /* keys in the order of the text; NULL: as they lie */
    int kv_head, thread, group, first, n, n_rows, before, n_keys;
    bool keeps;
    float *q, *out;   /* [rows][dim] */
    float *max, *sum; /* [rows] */
    float *weights;   /* [rows][score_stride] where they are kept */
    float *maxima;    /* [chunk][KEPT rows] which maximum a chunk's weights have */
    float *scores;    /* [STRIP][KEYS] */
    float *widened;   /* [KEYS][dim] */
    void *packed_q, *packed_keys, *packed_values;
    void *begin, *end; /* int32_t[rows]: of a chunk's keys that a row sees */
};

static int round_up(int n, int unit)
{
    return BUTLER_CEIL_DIV(n, unit) * unit;
}

int butler_attend_kept_rows(int group, int max_slots)
{
    const int rows = BUTLER_MIN(BUTLER_MAX(KEPT_FLOATS / max_slots, 32), KEPT);
    return round_up(BUTLER_MAX(group, rows / group * group), 16);
}

/* Cuts a thread's scratch into the tile's arrays; with base NULL only counts. Returns floats. */
static size_t cut_scratch(struct tile *tile, float *base, int group, int dim, int max_slots)
{
    const size_t rows = (size_t)round_up(BUTLER_MAX(ROWS, group), BUTLER_ATTEND_ROWS), width = (size_t)dim,
                 chunks = BUTLER_CEIL_DIV((size_t)max_slots, BUTLER_ATTEND_KEYS);
    const size_t packed_width = BUTLER_CEIL_DIV(width, BUTLER_TILE_K) * BUTLER_TILE_K;
    float *none;
    const struct {
        float **where;
        size_t n;
    } pieces[] = {
        {&tile->q, rows * width},
        {&tile->out, rows * packed_width},
        {&tile->max, rows},
        {&tile->sum, rows},
        {&tile->maxima, chunks * (size_t)butler_attend_kept_rows(group, max_slots)},
        {&tile->scores, STRIP * KEYS},
        {&tile->widened, KEYS * width},
        {(float **)&tile->packed_q, rows * packed_width},
        {(float **)&tile->packed_keys, KEYS * packed_width},
        {(float **)&tile->packed_values, KEYS * packed_width},
        {(float **)&tile->begin, rows},
        {(float **)&tile->end, rows},
    };
    size_t at = 0;
    for (int i = 0; i < BUTLER_COUNT(pieces); i++) {
        *(base ? pieces[i].where : &none) = base ? base + at : NULL;
        at += (pieces[i].n + 15) / 16 * 16;
    }
    return at;
}

size_t butler_attend_block_floats(int group, int head_dim, int max_slots)
{
    struct tile tile;
    return cut_scratch(&tile, NULL, group, head_dim, max_slots);
}

/* Queries scaled by 1/sqrt(head_dim); rotated, where keys are rotated as they are read. */
static void load_queries(struct tile *tile)
{
    const struct butler_layer_state *state = tile->job->state;
    const struct butler_kv *kv = state->kv;
    const struct butler_kernels *kernels = kv->kernels;
    const int dim = kv->head_dim, width = tile->group * dim;
    for (int t = 0; t < tile->n; t++) {
        float *q = tile->q + (size_t)(t * width);
        memcpy(q,
               tile->job->q +
                   ((size_t)(tile->first + t) * (size_t)state->n_heads + (size_t)(tile->kv_head * tile->group)) * (size_t)dim,
               (size_t)width * sizeof *q);
        kernels->scale(q, 1.0f / sqrtf((float)dim), width);
        butler_kv_turn_queries(kv, q, tile->group);
        const size_t at = (size_t)(tile->before + t) * (size_t)kv->n_rot / 2;
        for (int i = 0; kv->rope_cos && i < tile->group; i++)
            butler_rotate(kernels, kv->rope, q + i * dim, kv->rope_cos + at, kv->rope_sin + at, kv->n_rot);
    }
    if (tile->job->tiles)
        kernels->pack_columns(tile->packed_q, tile->q, (size_t)dim, tile->n_rows, dim);
}

/* A row of the cache as the key at place `rank` of the text. */
static void load_key(const struct tile *tile, float *x, const void *row, int rank)
{
    const struct butler_kv *kv = tile->job->state->kv;
    const size_t at = (size_t)rank * (size_t)kv->n_rot / 2;
    kv->kernels->load_row[kv->type](x, row, kv->head_dim);
    if (kv->rope_cos)
        butler_rotate(kv->kernels, kv->rope, x, kv->rope_cos + at, kv->rope_sin + at, kv->n_rot);
}

/* Keys and values [first, first + n) for the matrix unit. */
static void pack_tiles(struct tile *tile, int first, int n, const void *const *keys, const void *const *values)
{
    const struct butler_kv *kv = tile->job->state->kv;
    const int dim = kv->head_dim, n_packed = round_up(n, BUTLER_ATTEND_KEYS);
    memset(tile->widened, 0, (size_t)(n_packed * dim) * sizeof *tile->widened);
    for (int i = 0; i < n; i++)
        load_key(tile, tile->widened + (size_t)(butler_attend_place(i) * dim), keys[i], first + i);
    kv->kernels->pack_rows(tile->packed_keys, tile->widened, (size_t)dim, n_packed, dim);
    memset(tile->widened + (size_t)(n * dim), 0, (size_t)((n_packed - n) * dim) * sizeof *tile->widened);
    for (int i = 0; i < n; i++)
        kv->kernels->load_row[kv->type](tile->widened + (size_t)(i * dim), values[i], dim);
    kv->kernels->pack_transposed(tile->packed_values, tile->widened, (size_t)dim, dim, n_packed);
    if (dim % 32)
        memset((unsigned char *)tile->packed_values + butler_packed_bytes(dim, n_packed), 0, butler_packed_bytes(16, n_packed));
}

/* Keys and values [first, first + n) for all rows of the tile. */
static void pack_chunk(struct tile *tile, int first, int n)
{
    const struct butler_kv *kv = tile->job->state->kv;
    const int dim = kv->head_dim;
    const void *keys[KEYS], *values[KEYS];
    butler_attend_rows(kv, tile->cache, tile->slots, first, n, keys, values);
    if (tile->job->tiles) {
        pack_tiles(tile, first, n, keys, values);
        return;
    }
    for (int i = 0; i < n; i++) {
        load_key(tile, tile->widened + (size_t)(i * dim), keys[i], first + i);
        kv->kernels->load_row[kv->type]((float *)tile->packed_values + (size_t)(i * dim), values[i], dim);
    }
    kv->kernels->pack_keys(tile->packed_keys, tile->widened, n, dim);
}

/* The first key that a token's rows see; the last is its own. */
static int first_seen(const struct tile *tile, int token)
{
    return BUTLER_MAX(tile->before + token + 1 - tile->job->window, 0);
}

/* All rows meet keys [first, first + n) in the matrix unit. */
static void attend_packed(const struct tile *tile, int first, int n)
{
    const struct butler_workspace *work = tile->job->state->work;
    int32_t *begin = tile->begin, *end = tile->end;
    const int rows = round_up(tile->n_rows, BUTLER_ATTEND_ROWS);
    for (int row = 0, token = 0; row < rows; token += token + 1 < tile->n) /* rows that are none are as the last */
        for (const int until = BUTLER_MIN(row + tile->group, rows); row < until; row++) {
            begin[row] = first_seen(tile, token) - first;
            end[row] = BUTLER_MIN(tile->before + token + 1 - first, n);
        }
    tile->job->state->kv->kernels->attend_packed(
        &(struct butler_attention){.queries = tile->packed_q,
                                   .keys = tile->packed_keys,
                                   .values = tile->packed_values,
                                   .begin = begin,
                                   .end = end,
                                   .max = tile->max,
                                   .sum = tile->sum,
                                   .out = tile->out,
                                   .kept = tile->keeps ? tile->weights + first : NULL,
                                   .maxima = tile->maxima + (size_t)(first / BUTLER_ATTEND_KEYS) * (size_t)work->tile_rows,
                                   .kept_stride = work->score_stride,
                                   .maxima_stride = (size_t)work->tile_rows,
                                   .n_rows = tile->n_rows,
                                   .n_keys = n,
                                   .dim = tile->job->state->kv->head_dim});
}

/* Scores of the keys [hidden, visible) of a chunk of n, which row `row` sees, become weights against the greatest score so far, in
 * powers of 2 and rounded up to a whole one, so that what was summed before is multiplied seldom and exactly. The others weigh 0.
 */
static void weigh_row(const struct tile *tile, int row, float *s, int hidden, int visible, int n)
{
    const struct butler_kernels *kernels = tile->job->state->kv->kernels;
    const int dim = tile->job->state->kv->head_dim;
    visible = BUTLER_MIN(BUTLER_MAX(visible, 0), n);
    hidden = BUTLER_MIN(BUTLER_MAX(hidden, 0), visible);
    if (hidden < visible) {
        const float max = ceilf(kernels->max(s + hidden, visible - hidden) * LOG2_E);
        if (max > tile->max[row]) {
            const float factor = exp2f(tile->max[row] - max);
            tile->sum[row] *= factor;
            kernels->scale(tile->out + (size_t)row * (size_t)dim, factor, dim);
            tile->max[row] = max;
        }
        tile->sum[row] += kernels->weigh(s + hidden, tile->max[row], visible - hidden);
    }
    memset(s, 0, (size_t)hidden * sizeof *s);
    memset(s + visible, 0, (size_t)(n - visible) * sizeof *s);
}

/* Rows [row, row + n_rows) meet keys [first, first + n) in vectors. */
static void attend_strip(const struct tile *tile, int row, int n_rows, int first, int n)
{
    const struct butler_layer_state *state = tile->job->state;
    const struct butler_kernels *kernels = state->kv->kernels;
    const int dim = state->kv->head_dim;
    const size_t stride = tile->keeps ? state->work->score_stride : KEYS;
    float *s = tile->keeps ? tile->weights + (size_t)row * stride + first : tile->scores;
    n = BUTLER_MIN(n, tile->before + (row + n_rows - 1) / tile->group + 1 - first); /* seen by the last row */
    if (n <= 0 || first_seen(tile, row / tile->group) >= first + n)
        return;
    kernels->score_keys(s, stride, tile->q + (size_t)(row * dim), n_rows, tile->packed_keys, n, dim);
    for (int r = 0; r < n_rows; r++) {
        const int token = (row + r) / tile->group;
        if (state->softcap > 0)
            butler_softcap(s + (size_t)r * stride, n, state->softcap);
        weigh_row(tile, row + r, s + (size_t)r * stride, first_seen(tile, token) - first, tile->before + token + 1 - first, n);
        if (tile->keeps)
            tile->maxima[(size_t)(first / KEYS) * (size_t)state->work->tile_rows + (size_t)(row + r)] = tile->max[row + r];
    }
    kernels->add_values(tile->out + (size_t)(row * dim), s, stride, n_rows, tile->packed_values, n, dim);
}

/* Keys that have one maximum. */
static int keys_of_maximum(const struct tile *tile)
{
    return tile->job->tiles ? BUTLER_ATTEND_KEYS : KEYS;
}

/* The maxima of the chunks become what their weights must be multiplied by: they were taken against the maxima of their time. */
static void make_factors(const struct tile *tile)
{
    const int keys = keys_of_maximum(tile);
    const size_t stride = (size_t)tile->job->state->work->tile_rows;
    for (int i = 0; i < tile->n_keys; i += keys)
        for (int r = 0; r < tile->n_rows; r++) {
            float *maximum = &tile->maxima[(size_t)(i / keys) * stride + (size_t)r];
            const float fall = *maximum - tile->max[r];
            *maximum = exp2f(fall) / tile->sum[r];
        }
}

/* Weights of the query heads of token t, in place. */
static float *finish_weights(const struct tile *tile, int t, int n)
{
    const struct butler_layer_state *state = tile->job->state;
    const int keys = keys_of_maximum(tile);
    float *weights = tile->weights + (size_t)(t * tile->group) * state->work->score_stride;
    for (int h = 0; h < tile->group; h++)
        for (int i = 0; i < n; i += keys)
            state->kv->kernels->scale(
                weights + (size_t)h * state->work->score_stride + i,
                tile->maxima[(size_t)(i / keys) * (size_t)state->work->tile_rows + (size_t)(t * tile->group + h)],
                BUTLER_MIN(keys, n - i));
    return weights;
}

/* Weights in the order the keys were read, as weights of slots 0 .. n-1. The decode scores are free in prefill. */
static const float *weights_by_slot(const struct tile *tile, const float *weights, int n)
{
    const struct butler_workspace *work = tile->job->state->work;
    const size_t stride = work->score_stride;
    float *by_slot = work->scores + (size_t)(tile->kv_head * tile->group) * stride;
    if (!tile->slots)
        return weights;
    for (int i = 0; i < tile->group; i++)
        for (int j = 0; j < n; j++)
            by_slot[(size_t)i * stride + tile->slots[j]] = weights[(size_t)i * stride + (size_t)j];
    return by_slot;
}

/* The metric sees the weights of all queries of a tile, in the turn of the tile. */
static void observe_tile(const struct tile *tile)
{
    const struct butler_layer_state *state = tile->job->state;
    const struct butler_workspace *work = state->work;
    int *turn = tile->job->turns ? &tile->job->turns[tile->kv_head] : NULL;
    make_factors(tile);
    while (turn && __atomic_load_n(turn, __ATOMIC_ACQUIRE) != tile->first)
        sched_yield();
    if (state->plan->metric->observe_block && !tile->slots) {
        const struct butler_block_weights block = {.weights = tile->weights,
                                                   .factors = tile->maxima,
                                                   .stride = work->score_stride,
                                                   .factor_stride = (size_t)work->tile_rows,
                                                   .n_queries = tile->n,
                                                   .n_seen = tile->before + 1,
                                                   .keys = keys_of_maximum(tile)};
        const struct butler_head_view view =
            butler_kv_view(state->kv, state->layer, tile->kv_head, state->position + tile->first + tile->n - 1);
        state->plan->metric->observe_block(state->shape, state->plan->values, &view, &block);
    } else
        for (int t = 0; t < tile->n; t++) {
            const int seen = tile->before + t + 1;
            butler_attend_observe(state, tile->kv_head, state->position + tile->first + t,
                                  weights_by_slot(tile, finish_weights(tile, t, seen), seen), work->score_stride, seen);
        }
    if (turn)
        __atomic_store_n(turn, tile->first + tile->n, __ATOMIC_RELEASE);
}

/* What all keys gave, over the sums of weights. */
static void write_out(const struct tile *tile)
{
    enum { CHANNELS = 16 }; /* of a tile that the matrix unit gives */
    const struct butler_layer_state *state = tile->job->state;
    const int dim = state->kv->head_dim, step = tile->job->tiles ? CHANNELS : 1;
    for (int r = 0; r < tile->n_rows; r++) {
        const float scale = 1.0f / tile->sum[r];
        float *out = tile->job->out + ((size_t)(tile->first + r / tile->group) * (size_t)state->n_heads +
                                       (size_t)(tile->kv_head * tile->group + r % tile->group)) *
                                          (size_t)dim;
        for (int c = 0; c < dim; c += CHANNELS) {
            const float *from = tile->out + (tile->job->tiles ? butler_attend_at(r, c, dim) : (size_t)(r * dim + c));
            for (int i = 0; i < BUTLER_MIN(CHANNELS, dim - c); i++)
                out[c + i] = from[i * step] * scale;
        }
    }
}

/* Tokens [first, first + n) of the block and the query heads of one KV head against what they see before them. */
static void attend_tile(const struct butler_attend_block_job *job, int kv_head, int first, int n, bool keeps, int thread)
{
    const struct butler_layer_state *state = job->state;
    const struct butler_kv *kv = state->kv;
    const struct butler_workspace *work = state->work;
    const int group = state->n_heads / kv->n_kv_heads, n_rows = n * group;
    struct tile tile = {.job = job,
                        .cache = butler_kv_at(kv, state->layer, kv_head),
                        .kv_head = kv_head,
                        .thread = thread,
                        .group = group,
                        .first = first,
                        .n = n,
                        .n_rows = n_rows,
                        .keeps = keeps};
    tile.slots = job->list ? job->list : kv->rope_cos ? tile.cache->order : NULL;
    tile.before = (job->list ? job->n_before : tile.cache->n_slots - job->n) + first;
    tile.n_keys = tile.before + n;
    tile.weights = work->tile + (size_t)thread * (size_t)work->tile_rows * work->score_stride;
    cut_scratch(&tile, work->block + (size_t)thread * work->block_floats, group, kv->head_dim, work->max_slots);

    load_queries(&tile);
    const int rows = round_up(n_rows, BUTLER_ATTEND_ROWS);
    memset(tile.out, 0, (size_t)(rows * round_up(kv->head_dim, 32)) * sizeof *tile.out);
    for (int r = 0; r < rows; r++) {
        tile.max[r] = BUTLER_ATTEND_LEAST;
        tile.sum[r] = 0;
    }
    for (int i = first_seen(&tile, 0) / KEYS * KEYS; i < tile.n_keys; i += KEYS) {
        const int m = BUTLER_MIN(KEYS, tile.n_keys - i);
        pack_chunk(&tile, i, m);
        if (job->tiles)
            attend_packed(&tile, i, m);
        for (int row = 0; row < n_rows && !job->tiles; row += STRIP)
            attend_strip(&tile, row, BUTLER_MIN(STRIP, n_rows - row), i, m);
    }
    for (int r = 0; state->sinks && r < n_rows; r++)
        tile.sum[r] += exp2f(state->sinks[kv_head * group + r % group] * LOG2_E - tile.max[r]);
    write_out(&tile);
    if (keeps)
        observe_tile(&tile);
}

static void attend_tokens(const struct butler_attend_block_job *job, int kv_head, int first, int end, bool keeps, int tokens,
                          int thread)
{
    for (; first < end; first += tokens)
        attend_tile(job, kv_head, first, BUTLER_MIN(tokens, end - first), keeps, thread);
}

/* Tokens of a tile whose weights are kept. */
static int kept_tokens(const struct butler_layer_state *state)
{
    return BUTLER_MAX(state->work->tile_rows / (state->n_heads / state->kv->n_kv_heads), 1);
}

void butler_attend_block_list(const struct butler_attend_block_job *job, int kv_head, int thread)
{
    attend_tokens(job, kv_head, 0, job->n, false, BUTLER_MAX(ROWS * job->state->kv->n_kv_heads / job->state->n_heads, 1), thread);
}

/* A metric sees queries in their order: the tiles of a head that is observed take turns. */
void butler_attend_block_task(const struct butler_attend_block_job *job, int task, int thread)
{
    const int n_kv_heads = job->state->kv->n_kv_heads, group = job->state->n_heads / n_kv_heads;
    const int kv_head = job->turns ? task % n_kv_heads : task / job->n_tiles; /* tiles that run together are of different heads */
    const int first = (job->turns ? task / n_kv_heads : task % job->n_tiles) * job->tile_tokens;
    const int end = BUTLER_MIN(first + job->tile_tokens, job->n);
    const int observed = BUTLER_MIN(BUTLER_MAX(job->observe_from - job->state->position, first), end);
    attend_tokens(job, kv_head, first, observed, false, BUTLER_MAX(ROWS / group, 1), thread);
    attend_tokens(job, kv_head, observed, end, true, kept_tokens(job->state), thread);
}

int butler_attend_block_begin(struct butler_attend_block_job *job, int n_threads)
{
    const struct butler_layer_state *state = job->state;
    const int n_kv_heads = state->kv->n_kv_heads, group = state->n_heads / n_kv_heads, n = job->n;
    const bool observed = state->position + n > job->observe_from;
    if (!observed)
        job->turns = NULL;
    assert(!observed || job->window == INT32_MAX); /* weights of chunks that were passed over would be missing */
    /* F32 caches are for those who want float arithmetic. */
    job->tiles = state->kv->kernels->tiles && state->kv->type != BUTLER_KV_F32 && state->kv->head_dim % 16 == 0 &&
                 state->softcap == 0 && !state->sinks;
    /* The later tokens of a block see more keys: some tasks more than threads, but a chunk should serve many queries. */
    const int wanted = BUTLER_CEIL_DIV(3 * n_threads, n_kv_heads);
    const int tokens =
        BUTLER_MIN(BUTLER_MAX(BUTLER_CEIL_DIV(n, wanted), BUTLER_CEIL_DIV(STRIP, group)), BUTLER_MAX(ROWS / group, 1));
    job->tile_tokens = job->turns ? kept_tokens(state) : tokens;
    job->n_tiles = BUTLER_CEIL_DIV(n, job->tile_tokens);
    return n_kv_heads * job->n_tiles;
}

void butler_attend_block_start(const struct butler_attend_block_job *job)
{
    for (int h = 0; h < job->state->kv->n_kv_heads && job->turns; h++) /* tiles before the first that is observed have no turn */
        job->turns[h] = BUTLER_MAX(job->observe_from - job->state->position, 0);
}

static void block_task(void *context, int task, int thread)
{
    butler_attend_block_task(context, task, thread);
}

void butler_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out, int n,
                         int window, int observe_from)
{
    struct butler_attend_block_job job = {
        .state = state, .q = q, .out = out, .n = n, .window = window, .observe_from = observe_from, .turns = state->work->turns};
    const int n_tasks = butler_attend_block_begin(&job, butler_pool_size(backend->pool));
    butler_attend_block_start(&job);
    butler_pool_run(backend->pool, block_task, &job, n_tasks);
}
