/* See metric_gpu.h. An operation that asks the metric downloads the layer's rows and what the metric keeps, has the CPU backend do
 * it over these copies, and uploads what it made: what the metric keeps, or lists of slots. Rows are written and moved, and
 * attended to, by the device; what observes attention is given the CPU's over the copies. Nothing is kept between a layer's
 * operations but from score to select, and from there to compact. */
#include "gpu/metric_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"

/* Memory of the copies. */
enum room { HEADS, TABLES, POSITIONS, ORDERS, ROWS, RECORDS, STATES, NORMS, UNITS, QUERIES, KEYS, VALUES, RESULTS, N_ROOMS };

struct butler_gpu_metrics {
    struct butler_backend plain; /* the device's operations */
    struct butler_backend *cpu;
    struct butler_workspace work; /* of the CPU */
    struct {
        void *at;
        size_t n_bytes;
    } rooms[N_ROOMS];
    struct butler_kv kv; /* a session's cache with copies of one layer */
    struct butler_selection selection;
    struct butler_layer_state state; /* of the operation at work, over these */
};

static struct butler_gpu_metrics *metrics_of(struct butler_backend *backend)
{
    return ((struct butler_gpu *)backend)->metrics;
}

bool butler_gpu_metric_on_cpu(const struct butler_gpu *gpu, const struct butler_plan *plan, int group)
{
    const bool evicts = plan->method == BUTLER_EVICT;
    return gpu->metrics && plan->metric && !butler_gpu_has_kernels(plan, group) && !plan->metric->predictor &&
           !plan->metric->earlier_layers && !plan->unrotated && (!evicts || plan->unit == 1);
}

static bool on_cpu(struct butler_backend *backend, const struct butler_layer_state *state)
{
    return butler_gpu_metric_on_cpu((struct butler_gpu *)backend, state->plan, state->n_heads / state->kv->n_kv_heads);
}

/* ------------------------------------------------------------------------------------------------------ copies */

/* At least so many bytes, which stay until more are wanted. NULL: the cache fails. */
static void *room(struct butler_gpu_metrics *m, enum room which, size_t n_bytes, struct butler_kv *kv)
{
    if (m->rooms[which].n_bytes < n_bytes) {
        m->cpu->free(m->cpu, m->rooms[which].at, m->rooms[which].n_bytes);
        m->rooms[which].at = m->cpu->alloc(m->cpu, n_bytes, true, &kv->fault);
        m->rooms[which].n_bytes = m->rooms[which].at ? n_bytes : 0;
    }
    return m->rooms[which].at;
}

/* Head `h` of the layer, with room for its copies: n_extents of rows, and what the device's head has. */
static struct butler_kv_head copy_of(struct butler_gpu_metrics *m, const struct butler_kv_head *from, struct butler_kv *kv, int h,
                                     size_t n_extents)
{
    const size_t heads = (size_t)kv->n_kv_heads, slots = n_extents * BUTLER_EXTENT_TOKENS, at = (size_t)h;
    const size_t state_bytes = (kv->state_bytes + 63) / 64 * 64;
    struct butler_kv_head head = {.n_slots = from->n_slots};
    head.table = (uint32_t *)room(m, TABLES, heads * n_extents * sizeof *head.table, kv) + at * n_extents;
    if (from->positions) {
        head.positions = (int32_t *)room(m, POSITIONS, heads * slots * sizeof *head.positions, kv) + at * slots;
        head.order = (uint32_t *)room(m, ORDERS, heads * slots * sizeof *head.order, kv) + at * slots;
    }
    if (from->records)
        head.records = (unsigned char *)room(m, RECORDS, heads * kv->records_stride, kv) + at * kv->records_stride;
    if (from->state)
        head.state = (unsigned char *)room(m, STATES, heads * state_bytes, kv) + at * state_bytes;
    if (from->value_norms)
        head.value_norms = (float *)room(m, NORMS, heads * slots * sizeof(float), kv) + at * slots;
    for (size_t e = 0; kv->fault.code == 0 && e < n_extents; e++)
        head.table[e] = (uint32_t)(at * n_extents + e);
    return head;
}

/* Makes m->state that of an operation over copies, whose contents are not fetched yet. False: the session's cache has failed. */
static bool begin(struct butler_backend *backend, const struct butler_layer_state *state)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    struct butler_kv *kv = state->kv;
    const size_t n_extents = BUTLER_CEIL_DIV((size_t)kv->max_slots, (size_t)BUTLER_EXTENT_TOKENS);
    if (kv->fault.code < 0)
        return false;
    m->kv = *kv;
    m->kv.backend = m->cpu;
    m->kv.places = (struct butler_places){0};
    m->kv.heads = room(m, HEADS, (size_t)(kv->n_layers * kv->n_kv_heads) * sizeof *kv->heads, kv);
    m->kv.pool = room(m, ROWS, (size_t)kv->n_kv_heads * n_extents * kv->extent_bytes, kv);
    for (int h = 0; kv->fault.code == 0 && h < kv->n_kv_heads; h++)
        *butler_kv_at(&m->kv, state->layer, h) = copy_of(m, butler_kv_at(kv, state->layer, h), kv, h, n_extents);
    m->state = *state;
    m->state.kv = &m->kv;
    m->state.work = &m->work;
    return kv->fault.code == 0;
}

static void fetch(struct butler_backend *backend, void *host, const void *from, size_t n_bytes)
{
    if (from)
        backend->download(backend, host, from, n_bytes);
}

/* Whole extents, those that are neighbours together. */
static void fetch_rows(struct butler_backend *backend, const struct butler_kv *kv, const struct butler_kv_head *head,
                       const struct butler_kv_head *copy)
{
    const struct butler_kv *own = &metrics_of(backend)->kv;
    const int end = BUTLER_CEIL_DIV(head->n_slots, BUTLER_EXTENT_TOKENS);
    for (int first = head->n_released, n; first < end; first += n) {
        n = 1;
        while (first + n < end && head->extents[first + n] == head->extents[first] + (uint32_t)n)
            n++;
        fetch(backend, own->pool + (size_t)copy->table[first] * kv->extent_bytes,
              kv->pool + (size_t)head->extents[first] * kv->extent_bytes, (size_t)n * kv->extent_bytes);
    }
}

/* Bytes of the records of a head's slots. */
static size_t record_bytes(const struct butler_kv *kv, const struct butler_kv_head *head)
{
    const bool some = kv->record_slots > 0 && !kv->records_off;
    return some ? (size_t)BUTLER_CEIL_DIV(head->n_slots, kv->record_slots) * kv->record_bytes : 0;
}

/* begin, and the contents of the layer. */
static bool copy_layer(struct butler_backend *backend, const struct butler_layer_state *state)
{
    const struct butler_kv *kv = state->kv;
    if (!begin(backend, state))
        return false;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const struct butler_kv_head *head = butler_kv_at(kv, state->layer, h);
        const struct butler_kv_head *copy = butler_kv_at(&metrics_of(backend)->kv, state->layer, h);
        const size_t numbers = (size_t)head->n_slots * sizeof(uint32_t);
        fetch_rows(backend, kv, head, copy);
        fetch(backend, copy->positions, head->positions, numbers);
        fetch(backend, copy->order, head->order, numbers);
        fetch(backend, copy->records, head->records, record_bytes(kv, copy));
        fetch(backend, copy->state, head->state, kv->state_bytes);
        fetch(backend, copy->value_norms, head->value_norms, numbers);
    }
    return true;
}

/* What the metric keeps goes back. */
static void keep(struct butler_backend *backend, const struct butler_layer_state *state)
{
    const struct butler_kv *kv = state->kv;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const struct butler_kv_head *head = butler_kv_at(kv, state->layer, h);
        const struct butler_kv_head *copy = butler_kv_at(&metrics_of(backend)->kv, state->layer, h);
        if (head->records)
            backend->upload(backend, head->records, copy->records, record_bytes(kv, copy));
        if (head->state)
            backend->upload(backend, head->state, copy->state, kv->state_bytes);
        if (head->value_norms)
            backend->upload(backend, head->value_norms, copy->value_norms, (size_t)copy->n_slots * sizeof(float));
    }
}

/* Rows of n numbers in all, as the host reads them. */
static float *host_rows(struct butler_backend *backend, const struct butler_layer_state *state, enum room which, const float *from,
                        int n_rows, int n_heads)
{
    const size_t n_bytes = (size_t)(n_rows * n_heads * state->kv->head_dim) * sizeof(float);
    float *rows = room(metrics_of(backend), which, n_bytes, state->kv);
    if (rows)
        fetch(backend, rows, from, n_bytes);
    return rows;
}

/* ------------------------------------------------------------------------------------------- what a metric keeps */

/* The newest n tokens, whose rows the device has written. */
static void record(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v, int n)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    if (state->summarise_from == INT32_MAX || !(state->plan->metric->append || state->kv->norms) || !copy_layer(backend, state))
        return;
    k = host_rows(backend, state, KEYS, k, n, state->kv->n_kv_heads);
    v = host_rows(backend, state, VALUES, v, n, state->kv->n_kv_heads);
    if (!k || !v)
        return;
    m->cpu->append(m->cpu, &m->state, k, v, n);
    keep(backend, state);
}

/* Begins to show the metric attention of the CPU, which is not counted: the device's is. End it by shown. */
static bool show(struct butler_backend *backend, const struct butler_layer_state *state, struct butler_traffic *traffic)
{
    *traffic = (struct butler_traffic){0};
    if (!copy_layer(backend, state))
        return false;
    metrics_of(backend)->state.traffic = traffic;
    return true;
}

static void shown(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_traffic *traffic)
{
    state->traffic->metric_bytes += traffic->metric_bytes;
    keep(backend, state);
}

/* The attention of the newest n tokens, which the metric sees from position observe_from on. */
static void observe(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, int n, int window,
                    int observe_from)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    struct butler_traffic traffic;
    const int first = BUTLER_MAX(observe_from - state->position, 0);
    if (first >= n || !show(backend, state, &traffic))
        return;
    q = host_rows(backend, state, QUERIES, q + (size_t)(first * state->n_heads * state->kv->head_dim), n - first, state->n_heads);
    float *out = host_rows(backend, state, RESULTS, NULL, n - first, state->n_heads);
    if (!q || !out)
        return;
    m->state.position += first;
    m->cpu->attend_block(m->cpu, &m->state, q, out, n - first, window, observe_from);
    shown(backend, state, &traffic);
}

/* The device's part of an operation that appends: rows alone. */
static struct butler_layer_state rows_alone(const struct butler_layer_state *state)
{
    struct butler_layer_state own = *state;
    own.summarise_from = INT32_MAX;
    return own;
}

static void metrics_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                           int n)
{
    const bool cpu = on_cpu(backend, state);
    const struct butler_layer_state own = rows_alone(state);
    metrics_of(backend)->plain.append(backend, cpu ? &own : state, k, v, n);
    if (cpu)
        record(backend, state, k, v, n);
}

static void metrics_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    if (!on_cpu(backend, state)) {
        m->plain.summarise(backend, state, first);
        return;
    }
    if (!copy_layer(backend, state))
        return;
    m->cpu->summarise(m->cpu, &m->state, first);
    keep(backend, state);
}

/* --------------------------------------------------------------------------------------------------- selection */

static void metrics_score(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    if (!on_cpu(backend, state)) {
        m->plain.score(backend, state, q, bounds);
        return;
    }
    if (!copy_layer(backend, state) || !(q = host_rows(backend, state, QUERIES, q, 1, state->n_heads)))
        return;
    m->cpu->score(m->cpu, &m->state, q, bounds);
    keep(backend, state); /* begin_score may change a state */
}

static struct butler_lists lists_on_cpu(const struct butler_gpu_metrics *m, const struct butler_lists *lists)
{
    return (struct butler_lists){lists->n_lists, lists->heads,  m->work.list_slots,
                                 m->work.list_n, m->work.slots, (size_t)m->work.max_slots};
}

/* The lists of the CPU become the device's. */
static void give_lists(struct butler_backend *backend, const struct butler_lists *lists)
{
    const struct butler_lists own = lists_on_cpu(metrics_of(backend), lists);
    for (int i = 0; i < lists->n_lists; i++)
        backend->upload(backend, lists->memory + (size_t)i * lists->stride, own.slots[i], (size_t)own.n[i] * sizeof *own.memory);
    backend->upload(backend, lists->n, own.n, (size_t)lists->n_lists * sizeof *own.n);
}

/* Selects by the scores on the CPU, or (selected_at > 0) repeats an earlier step's; units are noted on the device. */
static void make_lists(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                       const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    const struct butler_lists own = lists_on_cpu(m, lists);
    const size_t words = (size_t)state->n_heads * state->selection->words, at = (size_t)state->layer * words;
    uint64_t *units = room(m, UNITS, (size_t)state->kv->n_layers * words * sizeof *units, state->kv);
    if (state->kv->fault.code < 0)
        return;
    backend->download(backend, units + at, state->selection->units + at, words * sizeof *units);
    m->selection = *state->selection;
    m->selection.units = units;
    m->state.selection = &m->selection;
    if (selected_at > 0)
        m->cpu->repeat(m->cpu, &m->state, selected_at, selecting, &own);
    else
        m->cpu->select(m->cpu, &m->state, m->rooms[QUERIES].at, selecting, &own);
    backend->upload(backend, state->selection->units + at, units + at, words * sizeof *units);
    give_lists(backend, lists);
    for (int i = 0; i < own.n_lists; i++)
        state->traffic->kv_bytes += 2 * (uint64_t)state->kv->row_bytes * (uint64_t)own.n[i];
}

static void metrics_select(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                           const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    if (on_cpu(backend, state))
        make_lists(backend, state, 0, selecting, lists);
    else
        metrics_of(backend)->plain.select(backend, state, q, selecting, lists);
}

static void metrics_repeat(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                           const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    if (!on_cpu(backend, state))
        metrics_of(backend)->plain.repeat(backend, state, selected_at, selecting, lists);
    else if (begin(backend, state))
        make_lists(backend, state, selected_at, selecting, lists);
}

/* ---------------------------------------------------------------------------------------------------- eviction */

static void metrics_select_leaving(struct butler_backend *backend, const struct butler_layer_state *state,
                                   const struct butler_cut *cut, const struct butler_lists *lists)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    if (!on_cpu(backend, state)) {
        m->plain.select_leaving(backend, state, cut, lists);
        return;
    }
    if (state->kv->fault.code < 0 || (cut->newest && !copy_layer(backend, state))) /* else it has been scored */
        return;
    const struct butler_lists own = lists_on_cpu(m, lists);
    m->cpu->select_leaving(m->cpu, &m->state, cut, &own);
    give_lists(backend, lists);
}

/* The device moves rows, the CPU what belongs to them, by the same lists. */
static void metrics_compact(struct butler_backend *backend, const struct butler_layer_state *state,
                            const struct butler_lists *lists)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    const bool cpu = on_cpu(backend, state);
    struct butler_kv bare = *state->kv;
    struct butler_layer_state own = *state;
    if (cpu && state->kv->fault.code < 0)
        return;
    if (cpu) {
        bare.record_slots = 0;
        own.kv = &bare;
    }
    m->plain.compact(backend, &own, lists);
    if (!cpu)
        return;
    const struct butler_lists host = lists_on_cpu(m, lists);
    m->cpu->compact(m->cpu, &m->state, &host);
    keep(backend, state);
}

/* --------------------------------------------------------------------------------------------------- attention */

static void metrics_attend(struct butler_backend *backend, const struct butler_layer_state *state,
                           const struct butler_attend_token *token)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    const struct butler_layer_state rows = rows_alone(state);
    struct butler_attend_token own = *token;
    struct butler_traffic traffic;
    if (!on_cpu(backend, state)) {
        m->plain.attend(backend, state, token);
        return;
    }
    own.observe = false;
    m->plain.attend(backend, &rows, &own);
    if (token->k)
        record(backend, state, token->k, token->v, 1);
    if (!token->observe || !show(backend, state, &traffic))
        return;
    own = (struct butler_attend_token){.newest = token->newest, .observe = true};
    own.q = host_rows(backend, state, QUERIES, token->q, 1, state->n_heads);
    own.out = host_rows(backend, state, RESULTS, NULL, 1, state->n_heads);
    const struct butler_lists lists = token->lists ? lists_on_cpu(m, token->lists) : (struct butler_lists){0};
    own.lists = token->lists ? &lists : NULL;
    if (!own.q || !own.out)
        return;
    m->cpu->attend(m->cpu, &m->state, &own);
    shown(backend, state, &traffic);
}

static void metrics_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                                 int n, int window, int observe_from)
{
    const bool cpu = on_cpu(backend, state);
    metrics_of(backend)->plain.attend_block(backend, state, q, out, n, window, cpu ? INT32_MAX : observe_from);
    if (cpu)
        observe(backend, state, q, n, window, observe_from);
}

/* Of which the metric sees the last token's. */
static void metrics_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    const struct butler_layer_state *state = &span->state;
    struct butler_attend_span own = *span;
    if (!on_cpu(backend, state)) {
        metrics_of(backend)->plain.attend_exact(backend, span);
        return;
    }
    own.state = rows_alone(state);
    own.observe_from = INT32_MAX;
    metrics_of(backend)->plain.attend_exact(backend, &own);
    record(backend, state, span->k, span->v, span->n);
    if (span->observe_from != INT32_MAX)
        observe(backend, state, span->q, span->n, span->window, state->position + span->n - 1);
}

static bool metrics_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    return !on_cpu(backend, &span->state) && metrics_of(backend)->plain.retrieve_fused(backend, span);
}

/* --------------------------------------------------------------------------------------------------- making */

static int metrics_make_workspace(struct butler_backend *backend, struct butler_workspace *work, const struct butler_hparams *hp,
                                  const struct butler_workspace_sizes *sizes, struct butler_error *err)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    struct butler_workspace_sizes own = *sizes;
    own.products = own.rotates = false;
    if (m->plain.make_workspace(backend, work, hp, sizes, err) < 0)
        return BUTLER_ERROR_MEMORY;
    if (!sizes->products || sizes->max_slots <= m->work.max_slots)
        return 0;
    butler_workspace_free(&m->work);
    return m->cpu->make_workspace(m->cpu, &m->work, hp, &own, err);
}

static void metrics_destroy(struct butler_backend *backend)
{
    struct butler_gpu_metrics *m = metrics_of(backend);
    void (*destroy)(struct butler_backend *) = m->plain.destroy;
    butler_workspace_free(&m->work);
    for (int i = 0; i < N_ROOMS; i++)
        m->cpu->free(m->cpu, m->rooms[i].at, m->rooms[i].n_bytes);
    butler_backend_free(m->cpu);
    destroy(backend);
    free(m);
}

static struct butler_backend *metrics_another(const struct butler_backend *backend, struct butler_pool *pool,
                                              struct butler_error *err)
{
    const struct butler_gpu_metrics *m = ((const struct butler_gpu *)backend)->metrics;
    struct butler_backend *cpu = m->cpu->another(m->cpu, pool, err);
    return butler_gpu_use_metrics(cpu ? m->plain.another(backend, pool, err) : NULL, cpu, err);
}

struct butler_backend *butler_gpu_use_metrics(struct butler_backend *backend, struct butler_backend *cpu, struct butler_error *err)
{
    struct butler_gpu_metrics *m = backend && cpu ? butler_alloc(sizeof *m, err) : NULL;
    if (!m) {
        butler_backend_free(backend);
        butler_backend_free(cpu);
        return NULL;
    }
    m->plain = *backend;
    m->cpu = cpu;
    ((struct butler_gpu *)backend)->metrics = m;
    backend->append = metrics_append;
    backend->summarise = metrics_summarise;
    backend->score = metrics_score;
    backend->select = metrics_select;
    backend->repeat = metrics_repeat;
    backend->select_leaving = metrics_select_leaving;
    backend->compact = metrics_compact;
    backend->attend = metrics_attend;
    backend->attend_block = metrics_attend_block;
    backend->attend_exact = metrics_attend_exact;
    backend->retrieve_fused = metrics_retrieve_fused;
    backend->make_workspace = metrics_make_workspace;
    backend->another = metrics_another;
    backend->destroy = metrics_destroy;
    return backend;
}
