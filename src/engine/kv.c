/* The KV cache: page tables, growth, sharing, truncation. See kv.h for the layout. What happens to rows inside an operation of the
 * CPU backend is in src/cpu/kv_rows.c. */
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/kv.h"

size_t butler_kv_row_bytes(enum butler_kv_type type, int n)
{
    switch (type) {
    case BUTLER_KV_F32:
        return (size_t)n * 4;
    case BUTLER_KV_F16:
        return (size_t)n * 2;
    case BUTLER_KV_Q8_0:
        return n % 32 == 0 ? (size_t)n / 32 * 34 : 0;
    default:
        return 0;
    }
}

static size_t whole_lines(size_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* Page tables, positions and orders of all heads together: they are small beside the pages they point to. */
static int make_tables(struct butler_kv *kv, bool evicting, struct butler_error *err)
{
    const size_t n_heads = (size_t)kv->n_layers * (size_t)kv->n_kv_heads, max_slots = (size_t)kv->max_slots;
    const size_t n_extents = (size_t)kv->max_pages / BUTLER_EXTENT;
    size_t bytes;
    if (!butler_mul_size(n_heads, n_extents * 4 + (evicting ? max_slots * 8 : 0), &bytes))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "a context of %d tokens is more than this machine can address", kv->max_slots);
    kv->tables_bytes = bytes;
    kv->extents_held_bytes = n_heads * n_extents * sizeof *kv->extents_held;
    kv->tables = kv->backend->alloc(kv->backend, bytes, true, err);
    kv->extents_held = butler_reserve(kv->extents_held_bytes, false, err);
    kv->heads = butler_alloc(n_heads * sizeof *kv->heads, err);
    if (!kv->tables || !kv->extents_held || !kv->heads)
        return BUTLER_ERROR_MEMORY;
    unsigned char *at = kv->tables;
    for (size_t i = 0; i < n_heads; i++) {
        struct butler_kv_head *head = &kv->heads[i];
        head->extents = kv->extents_held + i * n_extents;
        head->table = (uint32_t *)at;
        at += n_extents * 4;
        if (evicting) {
            head->positions = (int32_t *)at;
            head->order = (uint32_t *)(at + max_slots * 4);
            at += max_slots * 8;
        }
        if (kv->norms)
            head->value_norms = kv->norms + i * max_slots;
        if (kv->records)
            head->records = kv->records + i * kv->records_stride;
        if (kv->states)
            head->state = kv->states + i * whole_lines(kv->state_bytes);
    }
    return 0;
}

/* Records and norms of all heads. */
static int make_records(struct butler_kv *kv, const struct butler_metric_shape *shape, const struct butler_policy *policy,
                        struct butler_error *err)
{
    const size_t n_heads = (size_t)kv->n_layers * (size_t)kv->n_kv_heads, slots = (size_t)kv->max_slots;
    if (policy->metric &&
        butler_metric_record(policy->metric, shape, policy->values, &kv->record_slots, &kv->record_bytes, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (kv->record_slots > 0) {
        kv->records_stride = (BUTLER_CEIL_DIV(slots, (size_t)kv->record_slots) * kv->record_bytes + 63) / 64 * 64;
        if (!butler_mul_size(n_heads, kv->records_stride, &kv->records_bytes))
            return butler_fail(err, BUTLER_ERROR_MEMORY,
                               "the metric's records for %d tokens are more than this machine can address", kv->max_slots);
        kv->prompt_records = policy->plan.prompt_records;
        kv->records_off = kv->prompt_records;
        kv->records = kv->backend->alloc(kv->backend, kv->records_bytes, true, err);
        if (!kv->records)
            return BUTLER_ERROR_MEMORY;
    }
    if (policy->metric && butler_metric_state(policy->metric, shape, policy->values, &kv->state_bytes, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (kv->state_bytes > 0 && kv->record_slots > 1 && policy->method == BUTLER_EVICT && policy->metric->append &&
        policy->metric->leave && !policy->metric->move)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s: to evict, a metric with a state that leave() keeps and records of %d tokens needs move()",
                           policy->text, kv->record_slots);
    if (kv->state_bytes > 0) {
        kv->states_bytes = n_heads * whole_lines(kv->state_bytes);
        kv->states = kv->backend->alloc(kv->backend, kv->states_bytes, true, err);
        if (!kv->states)
            return BUTLER_ERROR_MEMORY;
    }
    kv->value_norm = policy->value_norm;
    if (kv->value_norm != BUTLER_NORM_NONE) {
        kv->norms_bytes = n_heads * slots * sizeof *kv->norms;
        kv->norms = kv->backend->alloc(kv->backend, kv->norms_bytes, true, err);
        if (!kv->norms)
            return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

int butler_kv_init(struct butler_kv *kv, const struct butler_metric_shape *shape, struct butler_pages *pages,
                   enum butler_kv_type type, int max_slots, const struct butler_policy *policy, struct butler_error *err)
{
    memset(kv, 0, sizeof *kv);
    kv->n_layers = shape->n_layers;
    kv->n_heads = shape->n_heads;
    kv->n_kv_heads = shape->n_kv_heads;
    kv->head_dim = shape->head_dim;
    kv->type = type;
    kv->backend = pages->backend;
    kv->kernels = pages->backend->kernels;
    kv->row_bytes = butler_kv_row_bytes(type, shape->head_dim);
    kv->page_bytes = 2 * BUTLER_PAGE * kv->row_bytes;
    kv->extent_bytes = BUTLER_EXTENT * kv->page_bytes;
    kv->extents = pages;
    kv->pool = pages->base;
    kv->places = pages->places;
    kv->max_slots = max_slots;
    kv->max_pages = BUTLER_CEIL_DIV(max_slots, BUTLER_EXTENT_TOKENS) * BUTLER_EXTENT;
    if (make_records(kv, shape, policy, err) < 0 || make_tables(kv, policy->method == BUTLER_EVICT, err) < 0) {
        butler_kv_free(kv);
        return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

void butler_kv_free(struct butler_kv *kv)
{
    if (!kv->backend)
        return;
    for (int l = 0; kv->heads && l < kv->n_layers; l++)
        butler_kv_truncate(kv, l, 0);
    kv->backend->free(kv->backend, kv->records, kv->records_bytes);
    kv->backend->free(kv->backend, kv->states, kv->states_bytes);
    kv->backend->free(kv->backend, kv->norms, kv->norms_bytes);
    kv->backend->free(kv->backend, kv->tables, kv->tables_bytes);
    butler_unreserve(kv->extents_held, kv->extents_held_bytes);
    free(kv->heads);
    memset(kv, 0, sizeof *kv);
}

static unsigned char *extent_at(const struct butler_kv *kv, uint32_t extent)
{
    return kv->pool + (size_t)extent * kv->extent_bytes;
}

/* Of a head, so that operations find extents [first, end). */
static struct butler_upload table_of(const struct butler_kv_head *head, int first, int end)
{
    return (struct butler_upload){head->table + first, head->extents + first, (size_t)(end - first) * sizeof *head->extents};
}

static void upload_table(const struct butler_kv *kv, const struct butler_kv_head *head, int first, int end)
{
    const struct butler_upload table = table_of(head, first, end);
    kv->backend->upload_many(kv->backend, &table, 1);
}

/* The table is still to be uploaded. */
static void add_extent(struct butler_kv *kv, struct butler_kv_head *head, uint32_t extent)
{
    head->extents[head->n_pages / BUTLER_EXTENT] = extent;
    head->n_pages += BUTLER_EXTENT;
    kv->pages_held += BUTLER_EXTENT;
    kv->pages_held_peak = BUTLER_MAX(kv->pages_held_peak, kv->pages_held);
}

/* Extent i of a head becomes its own. */
static int own_extent(struct butler_kv *kv, struct butler_kv_head *head, int i, struct butler_error *err)
{
    const uint32_t shared = head->extents[i];
    uint32_t own;
    if (kv->extents->references[shared] == 1)
        return 0;
    if (butler_pages_take(kv->extents, &own, err) < 0)
        return BUTLER_ERROR_MEMORY;
    kv->backend->copy(kv->backend, extent_at(kv, own), extent_at(kv, shared), kv->extent_bytes);
    if (butler_backend_check(kv->backend, err) < 0) {
        butler_pages_release(kv->extents, own);
        return BUTLER_ERROR_MEMORY;
    }
    butler_pages_release(kv->extents, shared);
    head->extents[i] = own;
    upload_table(kv, head, i, i + 1);
    return 0;
}

int butler_kv_unshare(struct butler_kv *kv, int layer, struct butler_error *err)
{
    for (int h = 0; kv->shares && h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        for (int i = head->n_released; i < head->n_pages / BUTLER_EXTENT; i++)
            if (own_extent(kv, head, i, err) < 0)
                return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

/* Extents for n more slots of a head; what they will be written to is the head's own. */
static int make_room(struct butler_kv *kv, struct butler_kv_head *head, int n, struct butler_error *err)
{
    uint32_t extent;
    if (kv->shares && head->n_slots % BUTLER_EXTENT_TOKENS && own_extent(kv, head, head->n_slots / BUTLER_EXTENT_TOKENS, err) < 0)
        return BUTLER_ERROR_MEMORY;
    while (head->n_pages * BUTLER_PAGE < head->n_slots + n) {
        if (butler_pages_take(kv->extents, &extent, err) < 0)
            return BUTLER_ERROR_MEMORY;
        add_extent(kv, head, extent);
    }
    return 0;
}

bool butler_kv_has_room(const struct butler_kv *kv, int n)
{
    uint64_t n_new = 0;
    for (int i = 0; i < kv->n_layers * kv->n_kv_heads; i++) {
        const struct butler_kv_head *head = &kv->heads[i];
        const int n_more = BUTLER_CEIL_DIV(head->n_slots + n, BUTLER_EXTENT_TOKENS) - head->n_pages / BUTLER_EXTENT;
        n_new += (uint64_t)BUTLER_MAX(n_more, 0) + (kv->shares && head->n_slots % BUTLER_EXTENT_TOKENS != 0);
    }
    struct butler_pages *pages = kv->extents;
    while (n_new > butler_pages_free_extents(pages) && pages->spare && pages->spare(pages->spare_user, pages))
        continue;
    return n_new <= butler_pages_free_extents(pages);
}

/* Room in every head of a layer, and what is new of their tables in one operation. */
static int make_layer_room(struct butler_kv *kv, int layer, int n, struct butler_error *err)
{
    enum { AT_ONCE = 64 };
    struct butler_upload tables[AT_ONCE];
    int n_tables = 0, code = 0;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        const int before = head->n_pages / BUTLER_EXTENT;
        code = code < 0 ? code : make_room(kv, head, n, err);
        if (head->n_pages / BUTLER_EXTENT > before)
            tables[n_tables++] = table_of(head, before, head->n_pages / BUTLER_EXTENT);
        if (n_tables == AT_ONCE || (n_tables > 0 && h == kv->n_kv_heads - 1)) {
            kv->backend->upload_many(kv->backend, tables, n_tables);
            n_tables = 0;
        }
    }
    return code;
}

struct butler_piece butler_kv_new_records(const struct butler_kv *kv, const struct butler_kv_head *head, int first)
{
    const size_t from = (size_t)BUTLER_CEIL_DIV(first, kv->record_slots) * kv->record_bytes,
                 end = (size_t)BUTLER_CEIL_DIV(head->n_slots, kv->record_slots) * kv->record_bytes;
    return (struct butler_piece){head->records + from, end - from};
}

/* Slots that no append will fill: each holds the position of its own number. */
static void take_slots(struct butler_kv *kv, struct butler_kv_head *head, int n)
{
    enum { AT_ONCE = 256 };
    uint32_t numbers[AT_ONCE];
    for (int done = 0, m; head->positions && done < n; done += m) {
        m = BUTLER_MIN(n - done, AT_ONCE);
        for (int i = 0; i < m; i++)
            numbers[i] = (uint32_t)(head->n_slots + done + i);
        kv->backend->upload(kv->backend, head->positions + head->n_slots + done, numbers, (size_t)m * sizeof *numbers);
        kv->backend->upload(kv->backend, head->order + head->n_slots + done, numbers, (size_t)m * sizeof *numbers);
    }
    head->n_slots += n;
}

/* Records of n heads whose first slot is `first` or a later one become zeros. What append writes it empties by itself; this is for
 * slots that come otherwise. */
static void zero_records(struct butler_kv *kv, struct butler_kv_head *heads, int n_heads, int first)
{
    enum { AT_ONCE = 64 };
    struct butler_piece pieces[AT_ONCE];
    int n = 0;
    for (int h = 0; h < n_heads; h++) {
        pieces[n++] = butler_kv_new_records(kv, &heads[h], first);
        if (n == AT_ONCE || h == n_heads - 1) {
            kv->backend->zero_many(kv->backend, pieces, n);
            n = 0;
        }
    }
}

int butler_kv_grow(struct butler_kv *kv, int layer, int n, struct butler_error *err)
{
    for (int h = 0; h < kv->n_kv_heads; h++)
        if (n > kv->max_slots - butler_kv_at(kv, layer, h)->n_slots)
            return butler_fail(err, BUTLER_ERROR_LENGTH, "the KV cache holds %d tokens, %d more do not fit beside %d",
                               kv->max_slots, n, butler_kv_at(kv, layer, h)->n_slots);
    if (make_layer_room(kv, layer, n, err) < 0)
        return BUTLER_ERROR_MEMORY;
    for (int h = 0; h < kv->n_kv_heads; h++)
        butler_kv_at(kv, layer, h)->n_slots += n;
    if (kv->records || kv->norms || kv->states)
        kv->metric_memory_peak = BUTLER_MAX(kv->metric_memory_peak, butler_kv_record_memory(kv));
    return 0;
}

/* Records of slots that an extent just given back could have held. */
static void discard_records(struct butler_kv *kv, struct butler_kv_head *head, int n_pages_before)
{
    if (kv->record_slots == 0)
        return;
    const size_t used = (size_t)BUTLER_CEIL_DIV(head->n_slots, kv->record_slots) * kv->record_bytes;
    const size_t before = (size_t)BUTLER_CEIL_DIV(n_pages_before * BUTLER_PAGE, kv->record_slots) * kv->record_bytes;
    kv->backend->discard(kv->backend, head->records + used, BUTLER_MIN(before, kv->records_stride) - used);
}

void butler_kv_trim(struct butler_kv *kv, int layer)
{
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        const int n_pages_before = head->n_pages;
        while (head->n_pages / BUTLER_EXTENT > head->n_released &&
               head->n_pages - BUTLER_EXTENT >= BUTLER_CEIL_DIV(head->n_slots, BUTLER_PAGE)) {
            head->n_pages -= BUTLER_EXTENT;
            butler_pages_release(kv->extents, head->extents[head->n_pages / BUTLER_EXTENT]);
            kv->pages_held -= BUTLER_EXTENT;
        }
        if (head->n_pages < n_pages_before)
            discard_records(kv, head, n_pages_before);
        if (head->n_slots == 0)
            head->n_pages = head->n_released = 0;
    }
}

void butler_kv_release(struct butler_kv *kv, int layer, int n, int window)
{
    const int first = butler_kv_window_start(n, window) / BUTLER_EXTENT_TOKENS;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        for (; head->n_released < BUTLER_MIN(first, head->n_pages / BUTLER_EXTENT); head->n_released++) {
            butler_pages_release(kv->extents, head->extents[head->n_released]);
            kv->pages_held -= BUTLER_EXTENT;
        }
    }
}

bool butler_kv_holds_window(const struct butler_kv *kv, int layer, int n, int window)
{
    return n == 0 || butler_kv_at(kv, layer, 0)->n_released * BUTLER_EXTENT_TOKENS <= butler_kv_window_start(n, window);
}

void butler_kv_truncate(struct butler_kv *kv, int layer, int n)
{
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        head->n_slots = BUTLER_MIN(head->n_slots, n);
    }
    butler_kv_trim(kv, layer);
}

void butler_kv_join(struct butler_kv *kv, struct butler_kv_head *head, uint32_t extent, int n)
{
    butler_pages_share(kv->extents, extent);
    add_extent(kv, head, extent);
    upload_table(kv, head, head->n_pages / BUTLER_EXTENT - 1, head->n_pages / BUTLER_EXTENT);
    take_slots(kv, head, n);
    if (kv->record_slots > 0 && !kv->records_off)
        zero_records(kv, head, 1, head->n_slots - n);
    kv->shares = true;
}

void butler_kv_share(struct butler_kv *to, struct butler_kv *from, int layer, int n)
{
    butler_kv_truncate(to, layer, 0);
    for (int h = 0; h < from->n_kv_heads; h++) {
        const struct butler_kv_head *source = butler_kv_at(from, layer, h);
        struct butler_kv_head *head = butler_kv_at(to, layer, h);
        head->n_released = source->n_released;
        head->n_pages = source->n_released * BUTLER_EXTENT;
        for (int i = source->n_released; i < BUTLER_CEIL_DIV(n, BUTLER_EXTENT_TOKENS); i++) {
            butler_pages_share(from->extents, source->extents[i]);
            add_extent(to, head, source->extents[i]);
        }
        upload_table(to, head, head->n_released, head->n_pages / BUTLER_EXTENT);
        take_slots(to, head, n);
    }
    if (to->record_slots > 0 && !to->records_off)
        zero_records(to, butler_kv_at(to, layer, 0), to->n_kv_heads, 0);
    to->shares = from->shares = true;
}

uint64_t butler_kv_memory(const struct butler_kv *kv)
{
    return kv->pages_held * kv->page_bytes;
}

uint64_t butler_kv_record_memory(const struct butler_kv *kv)
{
    const bool records = kv->record_slots > 0 && !kv->records_off;
    uint64_t bytes = (uint64_t)(kv->n_layers * kv->n_kv_heads) * kv->state_bytes;
    for (int i = 0; i < kv->n_layers * kv->n_kv_heads && (records || kv->norms); i++) {
        bytes += records ? (uint64_t)BUTLER_CEIL_DIV(kv->heads[i].n_slots, kv->record_slots) * kv->record_bytes : 0;
        bytes += kv->norms ? (uint64_t)kv->heads[i].n_slots * sizeof *kv->norms : 0;
    }
    return bytes;
}

void butler_kv_zero_states(struct butler_kv *kv, int layer)
{
    for (int h = 0; kv->states && h < kv->n_kv_heads; h++)
        kv->backend->zero_many(kv->backend, &(struct butler_piece){butler_kv_at(kv, layer, h)->state, kv->state_bytes}, 1);
}

void butler_kv_begin_records(struct butler_kv *kv)
{
    zero_records(kv, kv->heads, kv->n_layers * kv->n_kv_heads, 0);
    kv->records_off = false;
}

void butler_kv_end_records(struct butler_kv *kv)
{
    kv->backend->discard(kv->backend, kv->records, kv->records_bytes);
    kv->records_off = true;
}
