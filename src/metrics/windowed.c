/* Windowed attention (Scissorhands, arXiv 2305.17118; VATP, arXiv 2406.12335, eq. 3: the sum of a_jk over j = t-w..t, w + 1
 * queries). The window counts queries, in blocks of 16 by position: the block being filled and the ceil(w / 16) before it. So it
 * holds the last w + 1 queries, and up to 15 more.
 *
 * A record (one slot) is {uint64 closed[group], uint32 filling[group], uint32 block, uint8 ring[group][ceil(w / 16)]}, sums in
 * units of 2^-24. `filling` is the exact sum of block number `block`. A block that is full is rounded to an 8-bit float (5 bits of
 * exponent, 3 of mantissa: at most 1/16 off), put into the ring, and added to `closed`; what it replaces there is subtracted, both
 * as whole numbers, so that no error accumulates. A ring of halves would be twice as long, one of all w weights 16 times that. */
#include <string.h>

#include "engine/metric.h"
#include "kernels/kernels.h"

enum { BLOCK = 16 };     /* queries whose weights are added up */
#define UNITS 16777216.0 /* in a weight of 1 */
/* Prefetch distance in records. A step touches one or two cache lines of each: the hardware does not prefetch them. */
#define AHEAD 16

static int ring_length(const double *values)
{
    return BUTLER_CEIL_DIV((int)values[0], BLOCK);
}

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    const size_t of_head = sizeof(uint64_t) + sizeof(uint32_t) + (size_t)ring_length(values);
    *n_slots = 1;
    *n_bytes = ((size_t)shape->group * of_head + sizeof(uint32_t) + 7) / 8 * 8;
}

/* Whole blocks, so that the window is complete at the end of a prompt. */
static int attention_window(const double *values)
{
    return (ring_length(values) + 1) * BLOCK;
}

static uint8_t round_block(uint32_t sum)
{
    if (sum < 16)
        return (uint8_t)sum;
    const unsigned shift = 28 - (unsigned)__builtin_clz(sum);
    return (uint8_t)(((shift + 1) << 3) + ((sum + (1u << (shift - 1))) >> shift) - 8);
}

static uint64_t block_units(uint8_t code)
{
    return code < 16 ? code : (uint64_t)(8 | (code & 7)) << ((code >> 3) - 1);
}

/* Block number `block` begins for a slot, whatever was seen of it before. */
static void next_block(unsigned char *record, int group, int n_ring, uint32_t block)
{
    uint64_t *closed = (uint64_t *)record;
    uint32_t *filling = (uint32_t *)(closed + group), *last = filling + group;
    uint8_t *ring = (uint8_t *)(last + 1);
    const uint32_t n_passed = block - *last; /* blocks that end: the one being filled, and those in which nothing was seen */
    for (int head = 0; head < group; head++, ring += n_ring) {
        if (n_passed > (uint32_t)n_ring) {
            closed[head] = 0;
            memset(ring, 0, (size_t)n_ring);
        }
        for (uint32_t i = 0; i < n_passed && n_passed <= (uint32_t)n_ring; i++) {
            uint8_t *at = ring + (*last + i) % (uint32_t)n_ring;
            const uint8_t code = i == 0 ? round_block(filling[head]) : 0;
            closed[head] += block_units(code) - block_units(*at);
            *at = code;
        }
        filling[head] = 0;
    }
    *last = block;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    const int group = shape->group, n_ring = ring_length(values);
    const uint32_t block = (uint32_t)position / BLOCK;
    unsigned char *record = butler_view_record(view, 0);
    for (int slot = 0; slot < n; slot++, record += view->record_bytes) {
        uint32_t *filling = (uint32_t *)(record + (size_t)group * sizeof(uint64_t));
        if (slot + AHEAD < n)
            __builtin_prefetch((unsigned char *)filling + AHEAD * view->record_bytes, 1);
        if (filling[group] != block)
            next_block(record, group, n_ring, block);
        for (int head = 0; head < group; head++)
            filling[head] += (uint32_t)(weights[(size_t)head * stride + slot] * UNITS + 0.5);
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)values;
    const unsigned char *record = butler_view_record(view, request->first);
    for (int i = 0; i < request->n; i++, record += view->record_bytes) {
        const uint64_t *closed = (const uint64_t *)record;
        const uint32_t *filling = (const uint32_t *)(closed + shape->group);
        if (i + AHEAD < request->n)
            __builtin_prefetch(record + AHEAD * view->record_bytes);
        for (int head = 0; head < request->n_q; head++)
            request->out[(size_t)head * request->stride + i] = (float)((double)(closed[head] + filling[head]) / UNITS);
    }
}

/* score() reads the sums. */
static uint64_t score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return (uint64_t)n_slots * (uint64_t)shape->group * (sizeof(uint64_t) + sizeof(uint32_t));
}

/* observe() reads sums and number of the block being filled; once in BLOCK queries also `closed` and an entry of each ring. */
static uint64_t observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    const uint64_t n = (uint64_t)n_slots, group = (uint64_t)shape->group;
    return n * (group + 1) * sizeof(uint32_t) + n * group * (sizeof(uint64_t) + 1) / BLOCK;
}

static const struct butler_param params[] = {
    {"window", 400, 1, 65536, "latest queries that count, besides the newest"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {NULL}}};

const struct butler_metric butler_metric_windowed = {
    .name = "windowed",
    .summary = "attention received from the last w + 1 queries",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .forms = forms,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .score = score,
    .score_bytes = score_bytes,
    .observe_bytes = observe_bytes,
};
