/* Keys that a predictor gives (TokenButler, arXiv 2503.07518) on a device: records and scores of the metrics of
 * src/metrics/predicted.c, with their bytes. A record has BLOCK_TOKENS tokens, once for each predicted key of the KV head: of 4 or
 * 8 bits a channel {uchar scale[16], uchar k[..][16][4]}, else {half k[d][16]} (kernels.h). A thread has a channel: d <= THREADS. */

#define BLOCK_TOKENS 16

/* Of 4 bits they are a multiple of 8: zeros behind the others. */
static int stored_channels(int d, int bits)
{
    return bits == 4 ? (d + 7) / 8 * 8 : d;
}

static ulong block_bytes(int d, int bits)
{
    return (ulong)(BLOCK_TOKENS * ((bits < 16) + stored_channels(d, bits) * bits / 8));
}

/* A scale of eight bits (blocks.h). */
static float scale_of(uint b)
{
    return BITS_TO_FLOAT((b << 20) + (104u << 23));
}

static uint to_scale(float x)
{
    if (!(x > scale_of(0)))
        return 0;
    return x > scale_of(255) ? 255 : (FLOAT_TO_BITS(x) - (104u << 23) + (1u << 20) - 1) >> 20;
}

/* An integer of magnitude `limit` at most; NaN becomes -limit. */
static int quantised(float x, float inverse, float limit)
{
    const float y = x * inverse;
    return (int)rint(y > -limit ? fmin(y, limit) : -limit);
}

/* Records of the predicted keys of slots from `first` on: the stored key times projections[n_kv_heads][d][dim], or where there are
 * none keys[slot - first][n_kv_heads][n_keys][d], keys_stride numbers a slot. Groups: slots x KV heads' predicted keys. */
KERNEL record_predicted(BUFFER(records), BUFFER(pool), BUFFER(table), BUFFER(shifts), BUFFER(projections), BUFFER(keys),
                        ulong records_stride, ulong keys_stride, int table_stride, ROWS, int d, int bits, int n_keys, int first)
{
    SHARED float x[MOST_DIM];
    SHARED float some[THREADS];
    SHARED int numbers[THREADS];
    struct rows r = ROWS_GIVEN;
    const int slot = first + GROUP(0), head = GROUP(1) / n_keys, t = slot % BLOCK_TOKENS, m = stored_channels(d, bits);
    GLOBAL uchar *block = AT(uchar, records) + (ulong)head * records_stride +
                          (ulong)(slot / BLOCK_TOKENS * n_keys + GROUP(1) % n_keys) * block_bytes(d, bits);
    float own = 0;
    r.dim = GIVEN(projections) ? dim : 0; /* else nothing is read of the stored key */
    load_stored(r, x, AT(uchar, pool), AT(uint, table) + head * table_stride, SHIFT_OF(head), slot, 1);
    if (THREAD < d && !GIVEN(projections))
        own = AT(float, keys)[(ulong)GROUP(0) * keys_stride + (ulong)(GROUP(1) * d + THREAD)];
    for (int i = 0; i < r.dim && THREAD < d; i++)
        own = fma(AT(float, projections)[(ulong)(head * d + THREAD) * (ulong)dim + (ulong)i], x[i], own);
    const float limit = bits == 8 ? 127.0f : 7.0f, most = group_max(some, fabs(own));
    const uint scale = to_scale(most / limit);
    numbers[THREAD] = quantised(own, 1 / scale_of(scale), limit); /* 0 of padding */
    BARRIER();
    if (bits == 16 && THREAD < d)
        STORE_HALF(block + 2 * (THREAD * BLOCK_TOKENS + t), within_half(own));
    if (bits < 16 && THREAD == 0)
        block[t] = (uchar)scale;
    if (bits < 16 && THREAD < m * bits / 8) {
        const int c = bits == 8 ? THREAD : THREAD / 4 * 8 + THREAD % 4;
        block[BLOCK_TOKENS + (THREAD / 4 * BLOCK_TOKENS + t) * 4 + THREAD % 4] =
            (uchar)(bits == 8 ? numbers[c] + 128 : (numbers[c] + 8) | (numbers[c + 4] + 8) << 4);
    }
}

/* Channel c of the mean of n queries [n][d], each divided by its length; of those with none, or with no finite one, zeros. */
static float combined(const GLOBAL float *q, int n, int d, int c)
{
    float sum = 0;
    for (int h = 0; h < n; h++) {
        float most = 0, squares = 0;
        for (int i = 0; i < d; i++)
            most = fmax(most, fabs(q[h * d + i]));
        for (int i = 0; i < d; i++)
            squares = fma(q[h * d + i] / most, q[h * d + i] / most, squares);
        sum += squares > 0 ? q[h * d + c] / most / sqrt(squares) : 0.0f;
    }
    return sum / (float)n;
}

/* scores[row][i] of n slots for predicted queries [rows][together][d], which are quantised to 8 bits: a row is a query head, or all
 * `together` = group of a KV head by their combined() query. Groups: blocks of THREADS slots x rows. */
KERNEL score_predicted(BUFFER(scores), BUFFER(queries), BUFFER(records), STATS, ulong score_stride, ulong records_stride, int d,
                       int bits, int n_keys, int group, int together, int n, float factor)
{
    SHARED float q[THREADS];
    SHARED int numbers[THREADS];
    SHARED float some[THREADS];
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1) * together, t = i % BLOCK_TOKENS;
    const int here = i < n ? i : 0, n_blocks = (n + THREADS - 1) / THREADS;
    const int key = n_keys > 1 ? head % group : 0, m = stored_channels(d, bits);
    const GLOBAL float *own = AT(float, queries) + head * d;
    const GLOBAL uchar *block = AT(uchar, records) + (ulong)(head / group) * records_stride +
                                (ulong)(here / BLOCK_TOKENS * n_keys + key) * block_bytes(d, bits);
    const GLOBAL uint *quads = (const GLOBAL uint *)(block + BLOCK_TOKENS);
    float most = 0, score = 0;
    int sum = 0;
    q[THREAD] = THREAD >= d ? 0.0f : together > 1 ? combined(own, together, d, THREAD) : own[THREAD];
    BARRIER();
    for (int c = 0; c < d; c++)
        most = fmax(most, fabs(q[c]));
    const float step = most / 127;
    numbers[THREAD] = quantised(q[THREAD], step > 0 ? 1 / step : 0.0f, 127.0f);
    BARRIER();
    for (int c = 0; c < d && bits == 16; c++)
        score = fma(q[c] * factor, LOAD_HALF(block + 2 * (c * BLOCK_TOKENS + t)), score);
    for (int w = 0; w < m * bits / 32 && bits < 16; w++) {
        const uint quad = quads[w * BLOCK_TOKENS + t];
        for (int j = 0; j < 4; j++) {
            const int b = (int)(quad >> 8 * j & 255);
            sum += bits == 8 ? numbers[w * 4 + j] * (b - 128)
                             : numbers[w * 8 + j] * ((b & 15) - 8) + numbers[w * 8 + 4 + j] * ((b >> 4) - 8);
        }
    }
    if (bits < 16)
        score = (float)sum * scale_of(block[t]) * (factor * step);
    if (i < n)
        AT(float, scores)[(ulong)GROUP(1) * score_stride + (ulong)i] = score;
    BARRIER();
    NOTE_STATS(q, some, GROUP(1), score, n_blocks, n);
}
