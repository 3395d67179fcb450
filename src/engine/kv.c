/* The KV store: pages, page tables, eviction. See kv.h for the layout. Its memory is address space reserved for the
 * longest text; the system backs what is written, and gets back the extents that eviction frees. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Page tables, positions and orders of all heads in one allocation: they are small beside the pages they point to. */
static int make_tables(struct butler_kv *kv, bool evicting, struct butler_error *err)
{
    const size_t n_heads = (size_t)kv->n_layers * (size_t)kv->n_kv_heads, max_slots = (size_t)kv->max_slots;
    const bool norms = kv->value_norm != BUTLER_NORM_NONE;
    const size_t per_head = (size_t)kv->max_pages * 4 + (evicting ? max_slots * 8 : 0) + (norms ? max_slots * 4 : 0);
    size_t bytes;
    if (!butler_mul_size(n_heads, per_head, &bytes))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "a context of %d tokens is more than this machine can address", kv->max_slots);
    kv->tables = butler_reserve(bytes, false, err);
    kv->heads = butler_alloc(n_heads * sizeof *kv->heads, err);
    kv->free_extents = butler_alloc(kv->n_extents * sizeof *kv->free_extents, err);
    if (!kv->tables || !kv->heads || !kv->free_extents)
        return BUTLER_ERROR_MEMORY;
    kv->tables_bytes = bytes;
    unsigned char *at = kv->tables;
    for (size_t i = 0; i < n_heads; i++) {
        struct butler_kv_head *head = &kv->heads[i];
        head->pages = (uint32_t *)at;
        at += (size_t)kv->max_pages * 4;
        if (evicting) {
            head->positions = (int32_t *)at;
            head->order = (uint32_t *)(at + max_slots * 4);
            at += max_slots * 8;
        }
        if (norms) {
            head->value_norms = (float *)at;
            at += max_slots * 4;
        }
        if (kv->records)
            head->records = kv->records + i * kv->records_stride;
    }
    return 0;
}

int butler_kv_init(struct butler_kv *kv, const struct butler_metric_shape *shape, enum butler_kv_type type, int max_slots,
                   const struct butler_policy *policy, const struct butler_kernels *kernels, struct butler_error *err)
{
    int record_slots = 0;
    size_t record_bytes = 0;
    if (policy->metric && policy->metric->record)
        policy->metric->record(shape, policy->values, &record_slots, &record_bytes);
    memset(kv, 0, sizeof *kv);
    kv->n_layers = shape->n_layers;
    kv->n_heads = shape->n_heads;
    kv->n_kv_heads = shape->n_kv_heads;
    kv->head_dim = shape->head_dim;
    kv->type = type;
    kv->kernels = kernels;
    kv->value_norm = policy->value_norm;
    kv->row_bytes = butler_kv_row_bytes(type, shape->head_dim);
    if (kv->row_bytes == 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "kv type q8_0 stores blocks of 32 numbers, the model's heads have %d",
                           shape->head_dim);
    kv->page_bytes = 2 * BUTLER_PAGE * kv->row_bytes;
    kv->extent_bytes = BUTLER_EXTENT * kv->page_bytes;
    const size_t n_heads = (size_t)shape->n_layers * (size_t)shape->n_kv_heads;
    const size_t extents = BUTLER_CEIL_DIV((size_t)max_slots, BUTLER_EXTENT * BUTLER_PAGE);
    kv->max_slots = max_slots;
    kv->max_pages = (int)(extents * BUTLER_EXTENT);
    kv->n_extents = (uint32_t)(n_heads * extents);
    if (n_heads * extents > UINT32_MAX / BUTLER_EXTENT || !butler_mul_size(n_heads * extents, kv->extent_bytes, &kv->pool_bytes))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "a context of %d tokens is more than this machine can address", max_slots);
    kv->pool = butler_reserve(kv->pool_bytes, true, err);
    if (!kv->pool)
        goto fail;
    if (record_slots > 0) {
        kv->record_slots = record_slots;
        kv->record_bytes = record_bytes;
        kv->records_stride = (BUTLER_CEIL_DIV((size_t)max_slots, (size_t)record_slots) * record_bytes + 63) / 64 * 64;
        if (!butler_mul_size(n_heads, kv->records_stride, &kv->records_bytes)) {
            butler_fail(err, BUTLER_ERROR_MEMORY, "the metric's records for %d tokens are more than this machine can address",
                        max_slots);
            goto fail;
        }
        kv->records = butler_reserve(kv->records_bytes, false, err);
        if (!kv->records)
            goto fail;
    }
    if (make_tables(kv, policy->method == BUTLER_EVICT, err) < 0)
        goto fail;
    return 0;
fail:
    butler_kv_free(kv);
    return BUTLER_ERROR_MEMORY;
}

void butler_kv_free(struct butler_kv *kv)
{
    butler_unreserve(kv->pool, kv->pool_bytes);
    butler_unreserve(kv->records, kv->records_bytes);
    butler_unreserve(kv->tables, kv->tables_bytes);
    free(kv->free_extents);
    free(kv->heads);
    memset(kv, 0, sizeof *kv);
}

static void take_extent(struct butler_kv *kv, struct butler_kv_head *head)
{
    const uint32_t extent = kv->n_free_extents > 0 ? kv->free_extents[--kv->n_free_extents] : kv->n_extents_touched++;
    for (int i = 0; i < BUTLER_EXTENT; i++)
        head->pages[head->n_pages++] = extent * BUTLER_EXTENT + (uint32_t)i;
    kv->pages_held += BUTLER_EXTENT;
    kv->pages_held_peak = BUTLER_MAX(kv->pages_held_peak, kv->pages_held);
}

int butler_kv_grow(struct butler_kv *kv, int layer, int n, int first_position, struct butler_error *err)
{
    for (int h = 0; h < kv->n_kv_heads; h++)
        if (n > kv->max_slots - butler_kv_at(kv, layer, h)->n_slots)
            return butler_fail(err, BUTLER_ERROR_LENGTH, "the KV cache holds %d tokens, %d more do not fit beside %d",
                               kv->max_slots, n, butler_kv_at(kv, layer, h)->n_slots);
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        const int n_slots = head->n_slots + n;
        while (head->n_pages * BUTLER_PAGE < n_slots)
            take_extent(kv, head);
        if (head->positions)
            for (int i = 0; i < n; i++) {
                head->positions[head->n_slots + i] = first_position + i;
                head->order[head->n_slots + i] = (uint32_t)(head->n_slots + i);
            }
        if (kv->record_slots > 0) { /* a slot that is used again starts with an empty record */
            const int used = BUTLER_CEIL_DIV(head->n_slots, kv->record_slots), wanted = BUTLER_CEIL_DIV(n_slots, kv->record_slots);
            memset(head->records + (size_t)used * kv->record_bytes, 0, (size_t)(wanted - used) * kv->record_bytes);
        }
        head->n_slots = n_slots;
    }
    return 0;
}

/* The norm of a value as it is stored. */
static float norm_of(const struct butler_kv *kv, const void *row)
{
    float x[BUTLER_METRIC_MAX_HEAD_DIM];
    float norm = 0;
    kv->kernels->load_row[kv->type](x, row, kv->head_dim);
    for (int i = 0; i < kv->head_dim; i++) {
        const float a = fabsf(x[i]);
        norm = kv->value_norm == BUTLER_NORM_LINF ? fmaxf(norm, a) : norm + (kv->value_norm == BUTLER_NORM_L1 ? a : a * a);
    }
    return kv->value_norm == BUTLER_NORM_L2 ? sqrtf(norm) : norm;
}

void butler_kv_write(struct butler_kv *kv, struct butler_kv_head *head, uint32_t slot, const float *k, const float *v)
{
    kv->kernels->store_row[kv->type](butler_kv_key_row(kv, head, slot), k, kv->head_dim);
    kv->kernels->store_row[kv->type](butler_kv_value_row(kv, head, slot), v, kv->head_dim);
    if (head->value_norms)
        head->value_norms[slot] = norm_of(kv, butler_kv_value_row(kv, head, slot));
}

void butler_kv_make_norms(const struct butler_kv *kv, struct butler_kv_head *head)
{
    for (int slot = 0; slot < head->n_slots; slot++)
        head->value_norms[slot] = norm_of(kv, butler_kv_value_row(kv, head, (uint32_t)slot));
}

static void copy_slots(struct butler_kv *kv, struct butler_kv_head *head, int from, int to, int n)
{
    for (int i = 0; i < n; i++) {
        const uint32_t f = (uint32_t)(from + i), t = (uint32_t)(to + i);
        memcpy(butler_kv_key_row(kv, head, t), butler_kv_key_row(kv, head, f), kv->row_bytes);
        memcpy(butler_kv_value_row(kv, head, t), butler_kv_value_row(kv, head, f), kv->row_bytes);
        head->positions[t] = head->positions[f];
        if (head->value_norms)
            head->value_norms[t] = head->value_norms[f];
    }
}

/* A drop changes where tokens lie, not the order they came in. new_slot: where each old slot went, UINT32_MAX: nowhere. */
static void restore_order(struct butler_kv_head *head, int old_n_slots, const uint32_t *new_slot)
{
    int n = 0;
    for (int i = 0; i < old_n_slots; i++) {
        const uint32_t slot = new_slot[head->order[i]];
        head->order[n] = slot;
        n += slot != UINT32_MAX;
    }
}

/* The same where one slot is gone and another may lie in its place. */
static void close_order(struct butler_kv_head *head, int old_n_slots, uint32_t gone, uint32_t moved)
{
    int at = 0, of_moved = old_n_slots - 1;
    while (head->order[at] != gone)
        at++;
    while (head->order[of_moved] != moved)
        of_moved--;
    head->order[of_moved] = gone;
    memmove(head->order + at, head->order + at + 1, (size_t)(old_n_slots - 1 - at) * sizeof *head->order);
}

void butler_kv_drop(struct butler_kv *kv, struct butler_kv_head *head, int unit, const uint32_t *units, int n, uint32_t *new_slot,
                    butler_kv_moved_fn *moved, void *user)
{
    const int old_n_slots = head->n_slots, n_full = old_n_slots / unit, n_rest = old_n_slots % unit, n_left = n_full - n;
    const bool whole_records = kv->record_slots > 0 && unit % kv->record_slots == 0, one = unit == 1 && n == 1;
    int survivor = n_left, gone = 0; /* walks the full units past the new end, and the dropped among them */
    if (n == 0)
        return;
    for (int i = 0; i < old_n_slots && !one; i++)
        new_slot[i] = (uint32_t)i;
    for (int i = 0; i < n && !one; i++)
        for (int j = 0; j < unit; j++)
            new_slot[(int)units[i] * unit + j] = UINT32_MAX;
    while (gone < n && (int)units[gone] < n_left)
        gone++;
    const int n_holes = gone;
    for (int i = 0; i <= n_holes; i++) {
        int from, to, count = unit;
        if (i < n_holes) {
            while (gone < n && (int)units[gone] == survivor) {
                gone++;
                survivor++;
            }
            from = survivor++ * unit;
            to = (int)units[i] * unit;
        } else { /* last, the unit being filled follows the full ones */
            from = n_full * unit;
            to = n_left * unit;
            count = n_rest;
        }
        if (count == 0)
            continue;
        copy_slots(kv, head, from, to, count);
        if (!whole_records && kv->record_slots > 0 && moved)
            moved(user, from, to, count);
        for (int j = 0; j < count && !one; j++)
            new_slot[from + j] = (uint32_t)(to + j);
        if (whole_records)
            memcpy(head->records + (size_t)(to / kv->record_slots) * kv->record_bytes,
                   head->records + (size_t)(from / kv->record_slots) * kv->record_bytes,
                   (size_t)BUTLER_CEIL_DIV(count, kv->record_slots) * kv->record_bytes);
    }
    if (one) /* a step in a full cache */
        close_order(head, old_n_slots, units[0], (uint32_t)n_left);
    else
        restore_order(head, old_n_slots, new_slot);
    head->n_slots = n_left * unit + n_rest;
    if (!whole_records && kv->record_slots > 0 && moved && head->n_slots > 0) {
        for (int i = 0; i < n_holes; i++)
            moved(user, (int)units[i] * unit, (int)units[i] * unit, unit);
        const int tail = (head->n_slots - 1) / kv->record_slots * kv->record_slots;
        moved(user, tail, tail, head->n_slots - tail);
    }
}

/* Records of slots that an extent just given back could have held. */
static void discard_records(struct butler_kv *kv, struct butler_kv_head *head, int n_pages_before)
{
    if (kv->record_slots == 0)
        return;
    const size_t used = (size_t)BUTLER_CEIL_DIV(head->n_slots, kv->record_slots) * kv->record_bytes;
    const size_t before = (size_t)BUTLER_CEIL_DIV(n_pages_before * BUTLER_PAGE, kv->record_slots) * kv->record_bytes;
    butler_reserve_discard(head->records + used, BUTLER_MIN(before, kv->records_stride) - used);
}

void butler_kv_trim(struct butler_kv *kv, int layer)
{
    for (int h = 0; h < kv->n_kv_heads; h++) {
        struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        const int n_pages_before = head->n_pages;
        while (head->n_pages - BUTLER_EXTENT >= BUTLER_CEIL_DIV(head->n_slots, BUTLER_PAGE)) {
            head->n_pages -= BUTLER_EXTENT;
            const uint32_t extent = head->pages[head->n_pages] / BUTLER_EXTENT;
            butler_reserve_discard(kv->pool + extent * kv->extent_bytes, kv->extent_bytes);
            kv->free_extents[kv->n_free_extents++] = extent;
            kv->pages_held -= BUTLER_EXTENT;
        }
        if (head->n_pages < n_pages_before)
            discard_records(kv, head, n_pages_before);
    }
}

uint64_t butler_kv_memory(const struct butler_kv *kv)
{
    return kv->pages_held * kv->page_bytes;
}

uint64_t butler_kv_record_memory(const struct butler_kv *kv)
{
    uint64_t bytes = 0;
    if (kv->record_slots == 0)
        return 0;
    for (int i = 0; i < kv->n_layers * kv->n_kv_heads; i++)
        bytes += (uint64_t)BUTLER_CEIL_DIV(kv->heads[i].n_slots, kv->record_slots) * kv->record_bytes;
    return bytes;
}

static void view_rows(const struct butler_head_view *view, int first, int n, bool values, const void **out)
{
    const struct butler_kv *kv = view->store;
    const struct butler_kv_head *head = butler_kv_at(kv, view->layer, view->kv_head);
    for (int i = 0; i < n; i++)
        out[i] = values ? butler_kv_value_row(kv, head, (uint32_t)(first + i)) : butler_kv_key_row(kv, head, (uint32_t)(first + i));
}

struct butler_head_view butler_kv_view(const struct butler_kv *kv, int layer, int kv_head, int query_position)
{
    const struct butler_kv_head *head = butler_kv_at(kv, layer, kv_head);
    return (struct butler_head_view){
        .layer = layer,
        .kv_head = kv_head,
        .head_dim = kv->head_dim,
        .n_heads = kv->n_heads,
        .group = kv->n_heads / kv->n_kv_heads,
        .n_slots = head->n_slots,
        .query_position = query_position,
        .positions = head->positions,
        .records = head->records,
        .record_bytes = kv->record_bytes,
        .record_slots = kv->record_slots,
        .kv_type = kv->type,
        .kernels = kv->kernels,
        .rows = view_rows,
        .store = kv,
        .predict = kv->predict,
        .queries = kv->queries,
    };
}
