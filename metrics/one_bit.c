/* One-bit keys (FIER, algorithm 1): per channel and group of g tokens a zero z = (max + min) / 2 and a scale
 * s = (max - min) / 2, both halves; a token keeps one bit per channel, k >= z, and stands for k~ = z + s or z - s.
 *
 * A record holds 32 tokens as the kernel wants it: {half scale[head_dim], half zero[head_dim], uint32 bits[head_dim]}.
 * Larger groups repeat their scale and zero in each of their records: they score as the paper's, but save no bytes.
 * The group being filled has the scale and zero of the tokens it has, so its records change until it is full. */
#include <string.h>

#include "metric.h"

#define TOKENS 32
#define QUERIES 16 /* of a group whose scores pass through a row together */

static const struct butler_param params[] = {
    {"g", 32, 32, 1024, "tokens that share a scale and a zero, a multiple of 32"},
    {NULL, 0, 0, 0, NULL},
};

static size_t record_size(int dim)
{
    return (size_t)dim * (2 * sizeof(uint16_t) + sizeof(uint32_t));
}

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)values;
    *n_slots = TOKENS;
    *n_bytes = record_size(shape->head_dim);
}

static uint16_t finite_half(float x)
{
    return butler_float_to_half(BUTLER_MAX(-65504.0f, BUTLER_MIN(x, 65504.0f)));
}

static void widen(float *most, float *least, const float *keys, int n, int dim)
{
    for (int t = 0; t < n; t++)
        for (int d = 0; d < dim; d++) {
            float k = keys[(size_t)t * dim + d];
            most[d] = BUTLER_MAX(most[d], k);
            least[d] = BUTLER_MIN(least[d], k);
        }
}

static void write_record(unsigned char *at, const uint16_t *scale, const uint16_t *zero, const float *keys, int n, int dim)
{
    uint32_t bits[BUTLER_METRIC_MAX_HEAD_DIM] = {0};
    float z[BUTLER_METRIC_MAX_HEAD_DIM];
    for (int d = 0; d < dim; d++)
        z[d] = butler_half_to_float(zero[d]);
    for (int t = 0; t < n; t++)
        for (int d = 0; d < dim; d++)
            bits[d] |= (uint32_t)(keys[(size_t)t * dim + d] >= z[d]) << t;
    memcpy(at, scale, (size_t)dim * 2);
    memcpy(at + (size_t)dim * 2, zero, (size_t)dim * 2);
    memcpy(at + (size_t)dim * 4, bits, (size_t)dim * 4);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    int dim = shape->head_dim, group = (int)values[0], n_slots = butler_view_n_slots(view);
    float keys[TOKENS * BUTLER_METRIC_MAX_HEAD_DIM];
    float most[BUTLER_METRIC_MAX_HEAD_DIM], least[BUTLER_METRIC_MAX_HEAD_DIM];
    uint16_t scale[BUTLER_METRIC_MAX_HEAD_DIM], zero[BUTLER_METRIC_MAX_HEAD_DIM];
    for (int start = first / group * group; start < first + n; start += group) {
        int end = BUTLER_MIN(start + group, n_slots);
        butler_view_key(view, start, most);
        memcpy(least, most, (size_t)dim * sizeof *least);
        for (int at = start; at < end; at += TOKENS) {
            butler_view_load_keys(view, at, BUTLER_MIN(TOKENS, end - at), keys);
            widen(most, least, keys, BUTLER_MIN(TOKENS, end - at), dim);
        }
        for (int d = 0; d < dim; d++) {
            scale[d] = finite_half((most[d] - least[d]) / 2);
            zero[d] = finite_half((most[d] + least[d]) / 2);
        }
        for (int at = start; at < end; at += TOKENS) {
            if (end - start > TOKENS) /* else they are still here */
                butler_view_load_keys(view, at, BUTLER_MIN(TOKENS, end - at), keys);
            write_record(butler_view_record(view, at / TOKENS), scale, zero, keys, BUTLER_MIN(TOKENS, end - at), dim);
        }
    }
}

/* Whole records go straight to out; the tokens of a record cut by [first, first + n) pass through a row of 32. */
static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)values;
    const struct butler_kernels *kernels = butler_view_kernels(view);
    int dim = shape->head_dim, last = first + n;
    for (int slot = first; slot < last;) {
        int r = slot / TOKENS, whole = slot % TOKENS ? 0 : (last - slot) / TOKENS;
        if (whole) {
            kernels->one_bit(out + (slot - first), stride, q, n_q, butler_view_record(view, r), record_size(dim), whole, dim);
            slot += whole * TOKENS;
            continue;
        }
        int end = BUTLER_MIN((r + 1) * TOKENS, last);
        for (int i = 0; i < n_q; i += QUERIES) {
            float rows[QUERIES * TOKENS];
            int m = BUTLER_MIN(QUERIES, n_q - i);
            kernels->one_bit(rows, TOKENS, q + (size_t)i * dim, m, butler_view_record(view, r), record_size(dim), 1, dim);
            for (int j = 0; j < m; j++)
                memcpy(out + (size_t)(i + j) * stride + (slot - first), rows + j * TOKENS + slot % TOKENS,
                       (size_t)(end - slot) * sizeof *rows);
        }
        slot = end;
    }
}

const struct butler_metric butler_metric_one_bit = {
    .name = "one_bit",
    .summary = "q.k with every key channel reduced to one bit",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .params = params,
    .record = record,
    .append = append,
    .score = score,
};
