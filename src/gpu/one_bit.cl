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
    LOCAL float *x;          /* [KEY_FLOATS] keys */
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
    const int at_once = keys_at_once(r, PART);
    int slot = first;
    for (int d = THREAD; d < r.dim; d += THREADS) {
        g.low[d] = INFINITY;
        g.high[d] = -INFINITY;
    }
    do {
        const int m = end - slot < at_once ? end - slot : at_once;
        load_stored(r, g.x, pool, table, shift, slot, m);
        for (int d = THREAD; d < r.dim; d += THREADS)
            for (int t = 0; t < m; t++) {
                g.low[d] = fmin(g.low[d], g.x[t * r.dim + d]);
                g.high[d] = fmax(g.high[d], g.x[t * r.dim + d]);
            }
        BARRIER();
        slot += at_once;
    } while (slot < end);
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
    const int at_once = keys_at_once(r, PART);
    int n_high[MOST_DIM / THREADS], slot = means ? first : end - 1;
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        low[i] = high[i] = 0;
        n_high[i] = 0;
    }
    do {
        const int m = end - slot < at_once ? end - slot : at_once;
        load_stored(r, g.x, pool, table, shift, slot, m);
        for (int i = 0; i < MOST_DIM / THREADS; i++)
            for (int t = 0; t < m && THREAD + i * THREADS < r.dim; t++) {
                const float key = g.x[t * r.dim + THREAD + i * THREADS];
                const int one = key >= g.middle[THREAD + i * THREADS];
                low[i] += one ? 0.0f : key;
                high[i] += one ? key : 0.0f;
                n_high[i] += one;
            }
        BARRIER();
        slot += at_once;
    } while (slot < end);
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        const int d = THREAD + i * THREADS;
        if (d < r.dim && means && n_high[i] < end - first) /* all keys of a channel may be equal */
            g.low[d] = within_half(low[i] / (float)(end - first - n_high[i]));
        if (d < r.dim && means && n_high[i] > 0)
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

/* A part without its tokens' bits. */
static void begin_part(struct recording g, struct rows r, GLOBAL uchar *part, float unit)
{
    const int m = padded_channels(r.dim);
    GLOBAL uchar *ranges = part + 2 * r.dim, *to = ranges + 5 * m;
    for (int d = THREAD; d < m; d += THREADS) {
        if (d < r.dim)
            STORE_HALF(part + 2 * d, g.low[d]);
        ranges[d] = d < r.dim && unit > 0 ? (uchar)(int)rint(fmin((g.high[d] - g.low[d]) / unit, 255.0f)) : 0;
    }
    for (int i = THREAD; i < 4; i += THREADS)
        to[i] = (uchar)(FLOAT_TO_BITS(unit) >> 8 * i & 255);
}

/* The bits of channels 4 c and so on of a key. */
static int four_bits(struct recording g, struct rows r, const LOCAL float *key, int c)
{
    int four = 0;
    for (int d = 4 * c; d < 4 * c + 4 && d < r.dim; d++)
        four |= (key[d] >= g.middle[d]) << (d - 4 * c);
    return four;
}

/* Makes records of groups of g tokens from group `first` on, of KV heads with n slots, from their stored keys. Groups: groups x
 * n_kv_heads. */
KERNEL record_bits(BUFFER(records), BUFFER(pool), BUFFER(table), BUFFER(shifts), ulong records_stride, int table_stride, ROWS,
                   int g, int first, int n, int means)
{
    SHARED float x[KEY_FLOATS];
    SHARED float middle[MOST_DIM];
    SHARED float low[MOST_DIM];
    SHARED float high[MOST_DIM];
    SHARED float some[THREADS];
    const struct recording own = {x, middle, low, high, some};
    const struct rows r = ROWS_GIVEN;
    const int head = GROUP(1), start = (first + GROUP(0)) * g, end = start + g < n ? start + g : n;
    const int at_once = keys_at_once(r, PART), n_fours = padded_channels(dim) / 4;
    const GLOBAL uint *slots = AT(uint, table) + head * table_stride;
    find_ends(own, r, AT(uchar, pool), slots, SHIFT_OF(head), start, end);
    take_means(own, r, AT(uchar, pool), slots, SHIFT_OF(head), start, end, means);
    const float unit = unit_of(own, r);
    int slot = start;
    do { /* of a part at_once tokens, an even number: a byte has two tokens' bits */
        GLOBAL uchar *part = AT(uchar, records) + (ulong)head * records_stride + (ulong)(slot / PART) * part_bytes(dim);
        GLOBAL uchar *bits = part + 2 * dim + padded_channels(dim);
        const int at = slot % PART, left = PART - at < at_once ? PART - at : at_once, m = end - slot < left ? end - slot : left;
        if (at == 0)
            begin_part(own, r, part, unit);
        load_stored(r, x, AT(uchar, pool), slots, SHIFT_OF(head), slot, m);
        for (int i = THREAD; i < n_fours * left / 2; i += THREADS) {
            const int c = i / (left / 2), t = i % (left / 2) * 2;
            const int even = t < m ? four_bits(own, r, x + t * dim, c) : 0;
            const int odd = t + 1 < m ? four_bits(own, r, x + (t + 1) * dim, c) : 0;
            bits[16 * c + (at + t) / 2] = (uchar)(even | odd << 4);
        }
        for (int i = THREAD; i < 16 * n_fours && slot + left >= end; i += THREADS)
            if (i % 16 * 2 >= at + left)
                bits[i] = 0; /* behind the last tokens of the last part */
        BARRIER();
        slot += left;
    } while (slot < end);
    GLOBAL uchar *record = AT(uchar, records) + (ulong)head * records_stride + (ulong)(start / PART) * part_bytes(dim);
    for (int i = (end - start + PART - 1) / PART * (int)part_bytes(dim) + THREAD; i < g / PART * (int)part_bytes(dim); i += THREADS)
        record[i] = 0; /* parts without tokens */
}

/* scores[head][i] of query heads for n slots. A thread has a token, whose query is integers: most of them 127. What four bits
 * add is in a table of 16 for each part and four channels, of SOME_CHANNELS at a time. Groups: blocks of THREADS slots x
 * n_heads; group: query heads of a KV head. */
#define SOME_CHANNELS 128
KERNEL score_bits(BUFFER(scores), BUFFER(q), BUFFER(records), STATS, ulong score_stride, ulong records_stride, int dim, int group,
                  int n)
{
    SHARED float some[THREADS];
    SHARED float lows[THREADS / PART * SOME_CHANNELS];
    SHARED int tables[THREADS / PART * SOME_CHANNELS * 4];
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1), m = padded_channels(dim), lane = THREAD % PART;
    const int n_blocks = (n + THREADS - 1) / THREADS, own_part = (i - lane < n ? i : 0) / PART;
    const GLOBAL float *own_q = AT(float, q) + head * dim;
    const GLOBAL uchar *part = AT(uchar, records) + (ulong)(head / group) * records_stride + (ulong)own_part * part_bytes(dim);
    const GLOBAL uchar *ranges = part + 2 * dim, *bits = ranges + m + lane / 2;
    LOCAL int *table = tables + THREAD / PART * SOME_CHANNELS * 4;
    LOCAL float *own_lows = lows + THREAD / PART * SOME_CHANNELS;
    float most = 0, low = 0;
    int sum = 0, base = 0;
    for (int d = THREAD; d < dim; d += THREADS)
        most = fmax(most, own_q[d] != own_q[d] ? INFINITY : fabs(own_q[d]));
    most = group_max(some, most);
    const int usable = most >= 0x1p-100f && most <= 0x1p+127f;
    const float factor = usable ? 127 / most : 0.0f;
    do {
        const int end = m - base < SOME_CHANNELS ? m - base : SOME_CHANNELS;
        for (int d = lane; d < end && base + d < dim; d += PART)
            own_lows[d] = own_q[base + d] * LOAD_HALF(part + 2 * (base + d));
        for (int at = lane; at < end / 2; at += PART) { /* halves of tables: 8 sums of up to 4 steps */
            int step[4];
            for (int j = 0; j < 4; j++) {
                const int d = base + at / 2 * 4 + j;
                step[j] = usable && d < dim ? (int)rint(own_q[d] * factor) * ranges[d] : 0;
            }
            for (int j = 0; j < 8; j++)
                table[at * 8 + j] = (at % 2 ? step[3] : 0) + (j & 1 ? step[0] : 0) + (j & 2 ? step[1] : 0) + (j & 4 ? step[2] : 0);
        }
        BARRIER();
        for (int d = 0; d < end && base + d < dim; d++)
            low += own_lows[d];
        for (int c = 0; c < end / 4; c++)
            sum += table[c * 16 + (bits[base * 4 + 16 * c] >> THREAD % 2 * 4 & 15)];
        BARRIER();
        base += SOME_CHANNELS;
    } while (base < m);
    const float score = low + (float)sum * (load_float(ranges + 5 * m) * (usable ? most / 127 : 0.0f));
    if (i < n)
        AT(float, scores)[(ulong)head * score_stride + (ulong)i] = score;
    NOTE_STATS(lows, some, head, score, n_blocks, n);
}
