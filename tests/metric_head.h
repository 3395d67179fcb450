/* A head of the cache that is a few arrays, for tests of metrics. */
#ifndef METRIC_HEAD_H
#define METRIC_HEAD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/registry.h"
#include "kernels/kernels.h"

enum { DIM = 64, GROUP = 3, MAX_SLOTS = 6000 };
static const struct butler_metric_shape shape = {2, 2 * GROUP, 2, DIM, GROUP, 77, 0, 0};

/* ------------------------------------------------------------------------------------ a head over arrays */

struct head {
    struct butler_head_view view;
    unsigned char *keys, *values;
    uint64_t bytes;
};

static inline void rows(const struct butler_head_view *view, int first, int n, bool values, const void **out)
{
    const struct head *head = view->store;
    assert_true(first >= 0 && n > 0 && first + n <= view->n_slots);
    for (int i = 0; i < n; i++)
        out[i] = (values ? head->values : head->keys) + (size_t)(first + i) * butler_view_row_bytes(view);
}

static inline void head_init(struct head *head, const struct butler_metric *metric, const double *values, enum butler_kv_type type,
                             const char *isa)
{
    int record_slots = 1;
    size_t record_bytes = 0;
    if (metric->record)
        metric->record(&shape, values, &record_slots, &record_bytes);
    *head = (struct head){.view = {.layer = 1,
                                   .kv_head = 1,
                                   .head_dim = DIM,
                                   .record_bytes = record_bytes,
                                   .record_slots = record_slots,
                                   .kv_type = type,
                                   .kernels = butler_kernels_get(isa),
                                   .rows = rows}};
    head->keys = calloc(MAX_SLOTS, butler_view_row_bytes(&head->view));
    head->values = calloc(MAX_SLOTS, butler_view_row_bytes(&head->view));
    head->view.records = calloc((size_t)BUTLER_CEIL_DIV(MAX_SLOTS, record_slots), record_bytes + 1);
    head->view.state = calloc(1, (metric->head_bytes ? metric->head_bytes(&shape, values) : 0) + 1);
    assert_true(head->keys && head->values && head->view.records && head->view.state && head->view.kernels);
}

static inline void head_free(struct head *head)
{
    free(head->keys);
    free(head->values);
    free(head->view.records);
    free(head->view.state);
}

static inline void head_bind(struct head *head)
{
    head->view.store = head;
    head->view.bytes = &head->bytes;
}

/* n more tokens with random keys, told to the metric `block` at a time. */
static inline void grow(struct head *head, const struct butler_metric *metric, const double *values, int n, int block,
                        uint64_t seed)
{
    head_bind(head);
    while (n > 0) {
        int m = BUTLER_MIN(n, block), first = head->view.n_slots;
        for (int i = first; i < first + m; i++) {
            float x[DIM];
            uint64_t random = seed * 1000003 + (uint64_t)i;
            for (int d = 0; d < DIM; d++)
                x[d] = butler_random_normal(&random) * (float)(1 + d % 5);
            head->view.kernels->store_row[head->view.kv_type](head->keys + (size_t)i * butler_view_row_bytes(&head->view), x, DIM);
        }
        head->view.n_slots += m;
        head->view.query_position = head->view.n_slots - 1;
        if (metric->append)
            metric->append(&shape, values, &head->view, first, m);
        n -= m;
    }
}

static inline void random_queries(float *q, int n, uint64_t seed)
{
    for (int i = 0; i < n * DIM; i++)
        q[i] = butler_random_normal(&seed);
}

static inline void key_of(const struct head *head, int slot, float *out)
{
    head->view.kernels->load_row[head->view.kv_type](out, head->keys + (size_t)slot * butler_view_row_bytes(&head->view), DIM);
}

static inline double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += (double)a[d] * b[d];
    return sum;
}

/* Sum of |a_d b_d|: what the rounding of a dot product goes with. */
static inline double size(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += fabs((double)a[d] * b[d]);
    return sum;
}

static inline void near(double got, double expected, double tolerance, const char *what, int at)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s at %d: %.9g, expected %.9g (tolerance %g)", what, at, got, expected, tolerance);
}

static inline const double *defaults(const struct butler_metric *metric, double *values)
{
    for (int i = 0; metric->params && metric->params[i].name; i++)
        values[i] = metric->params[i].value;
    return values;
}

#endif
