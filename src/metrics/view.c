/* A metric's view of one head of the cache: the functions butler_view_* of butler.h, over rows in memory of the CPU. */
#include <string.h>

#include "base/hadamard.h"
#include "engine/metric.h"
#include "kernels/kernels.h"

/* Row pointers are gathered this many at a time, on the stack. */
#define ROWS_AT_ONCE 128

int butler_view_layer(const struct butler_head_view *view)
{
    return view ? view->layer : 0;
}
int butler_view_kv_head(const struct butler_head_view *view)
{
    return view ? view->kv_head : 0;
}
int butler_view_n_slots(const struct butler_head_view *view)
{
    return view ? view->n_slots : 0;
}
int butler_view_query_position(const struct butler_head_view *view)
{
    return view ? view->query_position : 0;
}
const struct butler_kernels *butler_view_kernels(const struct butler_head_view *view)
{
    return view->kernels;
}

int butler_view_position(const struct butler_head_view *view, int slot)
{
    return !view ? 0 : view->positions ? view->positions[slot] : slot;
}

size_t butler_view_row_bytes(const struct butler_head_view *view)
{
    switch (view->kv_type) {
    case BUTLER_KV_F32:
        return (size_t)view->head_dim * 4;
    case BUTLER_KV_Q8_0:
        return (size_t)view->head_dim / 32 * 34;
    default:
        return (size_t)view->head_dim * 2;
    }
}

void *butler_view_record(const struct butler_head_view *view, int record)
{
    return !view ? NULL : view->records + (size_t)record * view->record_bytes;
}

void *butler_view_state(const struct butler_head_view *view)
{
    return view ? view->state : NULL;
}

static void count_rows(const struct butler_head_view *view, int n)
{
    if (view->bytes)
        *view->bytes += (uint64_t)n * butler_view_row_bytes(view);
}

static const float *shift_of(const struct butler_head_view *view)
{
    if (!view->key_shifts)
        return NULL;
    return view->key_shifts + (size_t)(view->layer * (view->n_heads / view->group) + view->kv_head) * (size_t)view->head_dim;
}

static void load_rows(const struct butler_head_view *view, int first, int n, bool values, float *out)
{
    const void *rows[ROWS_AT_ONCE];
    for (int done = 0; done < n; done += ROWS_AT_ONCE) {
        int m = BUTLER_MIN(n - done, ROWS_AT_ONCE);
        view->rows(view, first + done, m, values, rows);
        for (int i = 0; i < m; i++)
            view->kernels->load_row[view->kv_type](out + (size_t)(done + i) * view->head_dim, rows[i], view->head_dim);
    }
    count_rows(view, n);
}

void butler_view_keys(const struct butler_head_view *view, int first, int n, float *out)
{
    if (view && out)
        load_rows(view, first, n, false, out);
    const float *shift = view && out && view->hadamard ? shift_of(view) : NULL;
    for (int i = 0; view && out && view->hadamard && i < n; i++) {
        float *key = out + (size_t)i * (size_t)view->head_dim;
        for (int c = 0; shift && c < view->head_dim; c++)
            key[c] += shift[c];
        butler_hadamard(key, view->head_dim); /* its own inverse */
    }
}
void butler_view_values(const struct butler_head_view *view, int first, int n, float *out)
{
    if (view && out)
        load_rows(view, first, n, true, out);
}
void butler_view_key(const struct butler_head_view *view, int slot, float *out)
{
    butler_view_keys(view, slot, 1, out);
}
void butler_view_value(const struct butler_head_view *view, int slot, float *out)
{
    butler_view_values(view, slot, 1, out);
}

/* The same where rows hold H k - shift: H q meets them, and q k is what they give and H q shift. */
static void dot_turned(const struct butler_head_view *view, const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    enum { AT_ONCE = 8 };
    const size_t dim = (size_t)view->head_dim;
    const float *shift = shift_of(view);
    float turned[AT_ONCE * BUTLER_MAX_HEAD_DIM];
    for (int i = 0, m; i < n_q; i += m) {
        struct butler_head_view plain = *view;
        float *scores = out + (size_t)i * stride;
        plain.hadamard = false;
        plain.bytes = i == 0 ? view->bytes : NULL;
        m = BUTLER_MIN(n_q - i, AT_ONCE);
        memcpy(turned, q + (size_t)i * dim, (size_t)m * dim * sizeof *turned);
        for (int j = 0; j < m; j++)
            butler_hadamard(turned + (size_t)j * dim, view->head_dim);
        butler_view_dot_keys(&plain, turned, m, first, n, scores, stride);
        for (int j = 0; shift && j < m; j++) {
            float more = 0;
            for (size_t c = 0; c < dim; c++)
                more += turned[(size_t)j * dim + c] * shift[c];
            for (int t = 0; t < n; t++)
                scores[(size_t)j * stride + (size_t)t] += more;
        }
    }
}

void butler_view_dot_keys(const struct butler_head_view *view, const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    if (!view || !q || !out)
        return;
    if (view->hadamard) {
        dot_turned(view, q, n_q, first, n, out, stride);
        return;
    }
    const void *rows[ROWS_AT_ONCE];
    for (int done = 0; done < n; done += ROWS_AT_ONCE) {
        int m = BUTLER_MIN(n - done, ROWS_AT_ONCE);
        view->rows(view, first + done, m, false, rows);
        view->kernels->qk[view->kv_type](out + done, stride, q, (size_t)view->head_dim, n_q, rows, m, view->head_dim);
    }
    count_rows(view, n);
}

void butler_view_dot_layer(const struct butler_head_view *view, int layer, int n_q, int first, int n, float *out, size_t stride)
{
    if (!view || !view->queries || !out)
        return;
    struct butler_head_view earlier = *view;
    const size_t head = (size_t)layer * (size_t)view->n_heads + (size_t)(view->kv_head * view->group);
    earlier.layer = layer;
    butler_view_dot_keys(&earlier, view->queries + head * (size_t)view->head_dim, n_q, first, n, out, stride);
}
