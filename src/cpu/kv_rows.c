/* Rows of the KV cache on the CPU: written, moved when others are evicted, and shown to metrics. */
#include <math.h>
#include <string.h>

#include "base/hadamard.h"
#include "engine/kv.h"
#include "kernels/kernels.h"

/* The norm of a value as it is stored. */
static float norm_of(const struct butler_kv *kv, const void *row)
{
    float x[BUTLER_MAX_HEAD_DIM];
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
    float turned[BUTLER_MAX_HEAD_DIM];
    if (kv->hadamard) {
        const float *shift = kv->key_shifts ? kv->key_shifts + (head - kv->heads) * kv->head_dim : NULL;
        memcpy(turned, k, (size_t)kv->head_dim * sizeof *turned);
        butler_hadamard(turned, kv->head_dim);
        for (int i = 0; shift && i < kv->head_dim; i++)
            turned[i] -= shift[i];
        k = turned;
    }
    kv->kernels->store_row[kv->type](butler_kv_key_row(kv, head, slot), k, kv->head_dim);
    kv->kernels->store_row[kv->type](butler_kv_value_row(kv, head, slot), v, kv->head_dim);
}

void butler_kv_turn_queries(const struct butler_kv *kv, float *q, int n)
{
    for (int i = 0; kv->hadamard && i < n; i++)
        butler_hadamard(q + (size_t)i * (size_t)kv->head_dim, kv->head_dim);
}

void butler_kv_make_norms(const struct butler_kv *kv, struct butler_kv_head *head, int first)
{
    for (int slot = first; slot < head->n_slots && head->value_norms; slot++)
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
        .state = head->state,
        .kv_type = kv->type,
        .kernels = kv->kernels,
        .rows = view_rows,
        .store = kv,
        .hadamard = kv->hadamard,
        .key_shifts = kv->key_shifts,
        .predict = kv->predict,
        .centres = kv->centres,
        .queries = kv->queries,
    };
}
