/* One-bit keys (FIER, arXiv 2508.08256) on a device: records and scores of metric one_bit, with its bytes. A record is a group of g
 * tokens in parts of PART, which lie one after the other: {half low[dim], uchar range[m], uchar bits[m / 4][16], float unit}, m dim
 * rounded up to a multiple of 4 (kernels.h says what they mean). */

#define PART 32

static int padded_channels(int dim)
{
    return (dim + 3) / 4 * 4;
}

static ulong part_bytes(int dim)
{
    return (ulong)(2 * dim + 5 * padded_channels(dim) + 4);
}

/* A float at any address. */
static float load_float(const GLOBAL uchar *p)
{
    return BITS_TO_FLOAT((uint)p[0] | (uint)p[1] << 8 | (uint)p[2] << 16 | (uint)p[3] << 24);
}

/* What a group's threads share while they record tokens. Each has the channels THREAD, THREAD + THREADS, ... */
struct recording {
    LOCAL float *x;          /* [MOST_DIM] a key */
    LOCAL float *middle;     /* [MOST_DIM] keys from here on have a 1 */
    LOCAL float *low, *high; /* [MOST_DIM] the ends of the keys, later the levels */
    LOCAL float *some;       /* [THREADS] */
};

static float within_half(float x)
{
    return fmax(-65504.0f, fmin(x, 65504.0f));
}

/* The ends of the keys of slots [first, end), and the middles. */
static void find_ends(struct recording g, struct rows r, const GLOBAL uchar *pool, const GLOBAL uint *table,
                      const GLOBAL float *shift, int first, int end)
{
    int slot = first;
    for (int d = THREAD; d < r.dim; d += THREADS) {
        g.low[d] = INFINITY;
        g.high[d] = -INFINITY;
    }
    do {
        load_key(r, g.x, pool, table, shift, slot);
        for (int d = THREAD; d < r.dim; d += THREADS) {
            g.low[d] = fmin(g.low[d], g.x[d]);
            g.high[d] = fmax(g.high[d], g.x[d]);
        }
        BARRIER();
    } while (++slot < end);
    for (int d = THREAD; d < r.dim; d += THREADS) {
        g.low[d] = within_half(g.low[d]);
        g.high[d] = within_half(g.high[d]);
        g.middle[d] = (g.high[d] + g.low[d]) / 2;
    }
    BARRIER();
}

/* In place of the ends the means of the keys below the middle, and from it on. Nothing if not `means`. */
static void take_means(struct recording g, struct rows r, const GLOBAL uchar *pool, const GLOBAL uint *table,
                       const GLOBAL float *shift, int first, int end, int means)
{
    float low[MOST_DIM / THREADS], high[MOST_DIM / THREADS];
    int n_high[MOST_DIM / THREADS], slot = means ? first : end - 1;
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        low[i] = high[i] = 0;
        n_high[i] = 0;
    }
    do {
        load_key(r, g.x, pool, table, shift, slot);
        for (int d = THREAD, i = 0; d < r.dim; d += THREADS, i++) {
            const int one = g.x[d] >= g.middle[d];
            low[i] += one ? 0.0f : g.x[d];
            high[i] += one ? g.x[d] : 0.0f;
            n_high[i] += one;
        }
        BARRIER();
    } while (++slot < end);
    for (int d = THREAD, i = 0; d < r.dim && means; d += THREADS, i++) {
        if (n_high[i] < end - first) /* all keys of a channel may be equal */
            g.low[d] = within_half(low[i] / (float)(end - first - n_high[i]));
        if (n_high[i] > 0)
            g.high[d] = within_half(high[i] / (float)n_high[i]);
    }
}

/* 1 of a range. */
static float unit_of(struct recording g, struct rows r)
{
    float widest = 0;
    for (int d = THREAD; d < r.dim; d += THREADS)
        widest = fmax(widest, g.high[d] - g.low[d]);
    return group_max(g.some, widest) / 255;
}

/* A part, before its tokens' bits. */
static void begin_part(struct recording g, struct rows r, GLOBAL uchar *part, float unit)
{
    const int m = padded_channels(r.dim);
    GLOBAL uchar *ranges = part + 2 * r.dim, *to = ranges + 5 * m;
    for (int d = THREAD; d < m; d += THREADS) {
        if (d < r.dim)
            STORE_HALF(part + 2 * d, g.low[d]);
        ranges[d] = d < r.dim && unit > 0 ? (uchar)(int)rint(fmin((g.high[d] - g.low[d]) / unit, 255.0f)) : 0;
    }
    for (int i = THREAD; i < 16 * m / 4; i += THREADS)
        ranges[m + i] = 0;
    for (int i = THREAD; i < 4; i += THREADS)
        to[i] = (uchar)(FLOAT_TO_BITS(unit) >> 8 * i & 255);
}

/* Makes records of groups of g tokens from group `first` on, of KV heads with n slots, from their stored keys. Groups: groups x
 * n_kv_heads. */
KERNEL record_bits(BUFFER(records), BUFFER(pool), BUFFER(table), BUFFER(shifts), ulong records_stride, int table_stride, ROWS,
                   int g, int first, int n, int means)
{
    SHARED float x[MOST_DIM];
    SHARED float middle[MOST_DIM];
    SHARED float low[MOST_DIM];
    SHARED float high[MOST_DIM];
    SHARED float some[THREADS];
    const struct recording own = {x, middle, low, high, some};
    const struct rows r = ROWS_GIVEN;
    const int head = GROUP(1), start = (first + GROUP(0)) * g, end = start + g < n ? start + g : n;
    const GLOBAL uint *slots = AT(uint, table) + head * table_stride;
    find_ends(own, r, AT(uchar, pool), slots, SHIFT_OF(head), start, end);
    take_means(own, r, AT(uchar, pool), slots, SHIFT_OF(head), start, end, means);
    const float unit = unit_of(own, r);
    int slot = start;
    do {
        GLOBAL uchar *part = AT(uchar, records) + (ulong)head * records_stride + (ulong)(slot / PART) * part_bytes(dim);
        const int at = slot % PART;
        if (at == 0)
            begin_part(own, r, part, unit);
        load_key(r, x, AT(uchar, pool), slots, SHIFT_OF(head), slot);
        for (int c = THREAD; c < padded_channels(dim) / 4; c += THREADS) {
            GLOBAL uchar *bits = part + 2 * dim + padded_channels(dim) + 16 * c + at / 2;
            int four = 0;
            for (int d = 4 * c; d < 4 * c + 4 && d < dim; d++)
                four |= (x[d] >= middle[d]) << (d - 4 * c);
            bits[0] = (uchar)(bits[0] | four << at % 2 * 4);
        }
        BARRIER();
    } while (++slot < end);
    GLOBAL uchar *record = AT(uchar, records) + (ulong)head * records_stride + (ulong)(start / PART) * part_bytes(dim);
    for (int i = (end - start + PART - 1) / PART * (int)part_bytes(dim) + THREAD; i < g / PART * (int)part_bytes(dim); i += THREADS)
        record[i] = 0; /* parts without tokens */
}

/* scores[head][i] of query heads for n slots. A thread has a token, whose query is integers: most of them 127. Groups: blocks of
 * THREADS slots x n_heads; group: query heads of a KV head. */
KERNEL score_bits(BUFFER(scores), BUFFER(q), BUFFER(records), ulong score_stride, ulong records_stride, int dim, int group, int n)
{
    SHARED float some[THREADS];
    SHARED int steps[THREADS / PART * MOST_DIM]; /* what a set bit of a part adds */
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1), m = padded_channels(dim);
    const GLOBAL float *own_q = AT(float, q) + head * dim;
    const GLOBAL uchar *part = AT(uchar, records) + (ulong)(head / group) * records_stride + (ulong)(i / PART) * part_bytes(dim);
    const GLOBAL uchar *ranges = part + 2 * dim, *bits = ranges + m + THREAD % PART / 2;
    LOCAL int *own_steps = steps + THREAD / PART * MOST_DIM;
    float most = 0, low = 0;
    int sum = 0;
    for (int d = THREAD; d < dim; d += THREADS)
        most = fmax(most, own_q[d] != own_q[d] ? INFINITY : fabs(own_q[d]));
    most = group_max(some, most);
    const int usable = most >= 0x1p-100f && most <= 0x1p+127f;
    const float factor = usable ? 127 / most : 0.0f;
    for (int d = THREAD % PART; d < m && i - THREAD % PART < n; d += PART)
        own_steps[d] = usable && d < dim ? (int)rint(own_q[d] * factor) * ranges[d] : 0;
    BARRIER();
    if (i >= n)
        return;
    for (int d = 0; d < dim; d++)
        low += own_q[d] * LOAD_HALF(part + 2 * d);
    for (int c = 0; c < m / 4; c++) {
        const int four = bits[16 * c] >> THREAD % 2 * 4;
        for (int j = 0; j < 4; j++)
            sum += four >> j & 1 ? own_steps[4 * c + j] : 0;
    }
    AT(float, scores)[(ulong)head * score_stride + (ulong)i] =
        low + (float)sum * (load_float(ranges + 5 * m) * (usable ? most / 127 : 0.0f));
}
