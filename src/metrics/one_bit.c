/* One-bit keys (FIER, arXiv 2508.08256, algorithm 1). For a group of g tokens, each channel has a minimum (low) and a range.
 * A token stores one bit per channel: whether its key is nearer to the maximum or to the minimum. k~ = low or low + range;
 * the paper writes z - s and z + s.
 *
 * levels=means (ours): the bits are the same, but k~ is the mean of the group's keys that have this bit. The maximum and the
 * minimum are the two keys that are farthest from all others; the means have the least squared error that these bits allow. Same
 * bytes, same kernels: low is the mean of the lower keys, the range the distance to that of the higher ones.
 *
 * A record is a group, in parts of 32 tokens in the kernel's layout: {half low[head_dim], uint8 range[], uint8 bits[], float unit}.
 * A range is a multiple of unit, 1/255 of the group's widest range; so it has 8 bits, where the paper has 16. Groups of more than
 * 32 tokens repeat low and range in each part: the scores are the paper's, but no bytes are saved. While a group fills, low and
 * range follow its tokens, so all its parts change until it is full. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "engine/metric.h"

enum { TOKENS = 32 };
#define QUERIES 16 /* query heads per call for a partly covered part */

static const struct butler_param params[] = {
    {"g", 32, 32, 1024, "tokens that share a scale and a zero, a multiple of 32"},
    {"page", 1, 1, 1024, "adjacent tokens that are selected together, by the highest of their scores"},
    {"levels", 0, 0, 1,
     "what a bit stands for: ends: the lowest or highest key of the group; means: the mean of its keys with this bit"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{32, {NULL}}, {1, {NULL}}, {1, {"ends", "means"}}};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    const int g = (int)values[0];
    *n_slots = g; /* all tokens of a group change its scale */
    *n_bytes = (size_t)(g / TOKENS) * butler_one_bit_bytes(shape->head_dim);
}

/* The i-th 32 tokens of a head; records lie one after the other. */
static unsigned char *part(const struct butler_head_view *view, int i)
{
    return (unsigned char *)butler_view_record(view, 0) + (size_t)i * butler_one_bit_bytes(view->head_dim);
}

/* Clamps to the range of half precision. */
static float within_half(float x)
{
    return BUTLER_MAX(-65504.0f, BUTLER_MIN(x, 65504.0f));
}

static void extend_bounds(float *max, float *min, const float *keys, int n, int dim)
{
    for (int t = 0; t < n; t++)
        for (int d = 0; d < dim; d++) {
            float k = keys[(size_t)t * dim + d];
            max[d] = BUTLER_MAX(max[d], k);
            min[d] = BUTLER_MIN(min[d], k);
        }
}

/* What the records of a group share. */
struct group {
    float max[BUTLER_MAX_HEAD_DIM], min[BUTLER_MAX_HEAD_DIM], unit;
    float middle[BUTLER_MAX_HEAD_DIM]; /* keys from here on have a 1 */
    uint16_t low[BUTLER_MAX_HEAD_DIM];
    uint8_t range[BUTLER_MAX_HEAD_DIM + 4];
};

static void set_middle(struct group *group, int dim)
{
    for (int d = 0; d < dim; d++) {
        group->max[d] = within_half(group->max[d]);
        group->min[d] = within_half(group->min[d]);
        group->middle[d] = (group->max[d] + group->min[d]) / 2;
    }
}

/* Sums and numbers of the keys on both sides of the middle. */
struct sides {
    float sum[2][BUTLER_MAX_HEAD_DIM], n[2][BUTLER_MAX_HEAD_DIM];
};

static void add_sides(struct sides *sides, const struct group *group, const float *keys, int n, int dim)
{
    for (int t = 0; t < n; t++)
        for (int d = 0; d < dim; d++) {
            const float k = keys[(size_t)t * dim + d];
            const bool high = k >= group->middle[d];
            sides->sum[0][d] += high ? 0 : k;
            sides->sum[1][d] += high ? k : 0;
            sides->n[0][d] += high ? 0 : 1;
            sides->n[1][d] += high ? 1 : 0;
        }
}

/* The means in place of the ends. All keys of a channel may be equal, and then on one side. */
static void take_means(struct group *group, const struct sides *sides, int dim)
{
    for (int d = 0; d < dim; d++) {
        if (sides->n[0][d] > 0)
            group->min[d] = within_half(sides->sum[0][d] / sides->n[0][d]);
        if (sides->n[1][d] > 0)
            group->max[d] = within_half(sides->sum[1][d] / sides->n[1][d]);
    }
}

static void set_ranges(struct group *group, int dim)
{
    float widest = 0;
    for (int d = 0; d < dim; d++) {
        group->low[d] = butler_float_to_half(group->min[d]);
        widest = BUTLER_MAX(widest, group->max[d] - group->min[d]);
    }
    group->unit = widest / 255;
    memset(group->range, 0, sizeof group->range);
    for (int d = 0; d < dim && group->unit > 0; d++)
        group->range[d] = (uint8_t)rintf(BUTLER_MIN((group->max[d] - group->min[d]) / group->unit, 255.0f));
}

static void write_record(unsigned char *at, const struct group *group, const float *keys, int n, int dim)
{
    uint8_t bits[BUTLER_MAX_HEAD_DIM * 4 + 16] = {0};
    const size_t padded = ((size_t)dim + 3) / 4 * 4;
    for (int t = 0; t < n; t++, keys += dim)
        for (int d = 0; d < (int)padded; d += 4) {
            unsigned nibble = 0;
            for (int j = 0; j < 4; j++)
                nibble |= (unsigned)(d + j < dim && keys[d + j] >= group->middle[d + j]) << j;
            bits[d * 4 + t / 2] |= (uint8_t)(nibble << t % 2 * 4);
        }
    memcpy(at, group->low, (size_t)dim * 2);
    memcpy(at + (size_t)dim * 2, group->range, padded);
    memcpy(at + (size_t)dim * 2 + padded, bits, padded * 4);
    memcpy(at + (size_t)dim * 2 + padded * 5, &group->unit, sizeof group->unit);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    int dim = shape->head_dim, g = (int)values[0], n_slots = butler_view_n_slots(view);
    float keys[TOKENS * BUTLER_MAX_HEAD_DIM];
    struct group group;
    for (int start = first / g * g; start < first + n; start += g) {
        int end = BUTLER_MIN(start + g, n_slots);
        butler_view_key(view, start, group.max);
        memcpy(group.min, group.max, (size_t)dim * sizeof *group.min);
        for (int at = start; at < end; at += TOKENS) {
            butler_view_keys(view, at, BUTLER_MIN(TOKENS, end - at), keys);
            extend_bounds(group.max, group.min, keys, BUTLER_MIN(TOKENS, end - at), dim);
        }
        set_middle(&group, dim);
        if (values[2] != 0) {
            struct sides sides = {0};
            for (int at = start; at < end; at += TOKENS) {
                if (end - start > TOKENS) /* otherwise they are still loaded */
                    butler_view_keys(view, at, BUTLER_MIN(TOKENS, end - at), keys);
                add_sides(&sides, &group, keys, BUTLER_MIN(TOKENS, end - at), dim);
            }
            take_means(&group, &sides, dim);
        }
        set_ranges(&group, dim);
        for (int at = start; at < end; at += TOKENS) {
            if (end - start > TOKENS)
                butler_view_keys(view, at, BUTLER_MIN(TOKENS, end - at), keys);
            write_record(part(view, at / TOKENS), &group, keys, BUTLER_MIN(TOKENS, end - at), dim);
        }
    }
}

/* Whole parts are scored directly into out. A part that [first, first + n) covers only partly goes through a row of 32. */
static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const int first = request->first, n_q = request->n_q;
    const float *q = request->q;
    float *out = request->out;
    (void)values;
    const struct butler_kernels *kernels = butler_view_kernels(view);
    int dim = shape->head_dim, last = first + request->n;
    for (int slot = first; slot < last;) {
        int r = slot / TOKENS, whole = slot % TOKENS ? 0 : (last - slot) / TOKENS;
        if (whole) {
            kernels->one_bit(out + (slot - first), request->stride, q, n_q, part(view, r), butler_one_bit_bytes(dim), whole, dim);
            slot += whole * TOKENS;
            continue;
        }
        int end = BUTLER_MIN((r + 1) * TOKENS, last);
        for (int i = 0; i < n_q; i += QUERIES) {
            float rows[QUERIES * TOKENS];
            int m = BUTLER_MIN(QUERIES, n_q - i);
            kernels->one_bit(rows, TOKENS, q + (size_t)i * dim, m, part(view, r), butler_one_bit_bytes(dim), 1, dim);
            for (int j = 0; j < m; j++)
                memcpy(out + (size_t)(i + j) * request->stride + (slot - first), rows + j * TOKENS + slot % TOKENS,
                       (size_t)(end - slot) * sizeof *rows);
        }
        slot = end;
    }
}

static uint64_t scan_bytes(int head_dim, int n_bounds, int n_pages)
{
    return (uint64_t)n_bounds * butler_one_bit_bounds_bytes(head_dim) + (uint64_t)n_pages * butler_one_bit_bytes(head_dim);
}

static void bounds(const struct butler_head_view *view, const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    const size_t bytes = butler_one_bit_bytes(view->head_dim);
    butler_view_kernels(view)->one_bit_bounds(out, stride, q, n_q, part(view, first), bytes, n, view->head_dim);
}

/* Parts are copied side by side first: a call of the kernel for each would make integers of the queries every time. */
static void score_pages(const struct butler_head_view *view, const float *q, int n_q, const uint32_t *pages, int n, float *out,
                        size_t stride)
{
    unsigned char records[1 << 15];
    const size_t bytes = butler_one_bit_bytes(view->head_dim);
    const int most = (int)(sizeof records / bytes);
    for (int first = 0; first < n; first += most) {
        const int m = BUTLER_MIN(most, n - first);
        for (int i = 0; i < m; i++)
            memcpy(records + (size_t)i * bytes, part(view, (int)pages[first + i]), bytes);
        butler_view_kernels(view)->one_bit(out + (size_t)first * TOKENS, stride, q, n_q, records, bytes, m, view->head_dim);
    }
}

/* A part's tokens are a page, whose bounds its lowest keys and ranges are. */
static const struct butler_metric_scan scan = {
    .page_slots = TOKENS, .bounds = bounds, .score_pages = score_pages, .bytes = scan_bytes};

const struct butler_metric butler_metric_one_bit = {
    .name = "one_bit",
    .summary = "q.k with one bit per key channel",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .params = params,
    .forms = forms,
    .record = record,
    .append = append,
    .score = score,
    .scan = &scan,
};
