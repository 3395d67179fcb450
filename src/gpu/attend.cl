/* Kernels of a device that attend, over lists of slots. Dense attention is attention over the list 0, 1, 2, ...; a prompt's
 * tokens are each attended to as a decode step is. */

#define SLICE 256 /* tokens of a list that a group attends to; fixed, so that no result depends on what shares a launch */

/* Where row number `row` of a pool is, or (part 1) the value behind its key. */
static const GLOBAL uchar *pool_row(struct rows r, const GLOBAL uchar *pool, uint row, int part)
{
    return pool + (ulong)row * (ulong)(2 * r.bytes) + part * r.bytes;
}

/* v[n] = numbers [d, d + n) of a row, n 4 or 8 and a divisor of d; zeros behind the last. */
static INLINE void load_some(struct rows r, float *v, const GLOBAL uchar *row, int d, int n)
{
    const GLOBAL ushort *pairs = (const GLOBAL ushort *)(row + d / 32 * 34 + 2 + d % 32);
    if (r.type == 2 && d < r.dim)
        for (int i = 0; i < n; i++)
            v[i] = LOAD_HALF(row + d / 32 * 34) * (float)signed_byte(pairs[i / 2] >> i % 2 * 8 & 255);
    else
        for (int i = 0; i < n; i++)
            v[i] = d + i >= r.dim ? 0.0f : r.type == 0 ? LOAD_HALF(row + 2 * (d + i)) : ((const GLOBAL float *)row)[d + i];
}

/* v[4][8] = numbers [d, d + 8) of four keys, d < dim. What is read of halves, the usual type, is awaited together. */
static INLINE void load_keys(struct rows r, float v[4][8], const GLOBAL uchar *pool, const uint *rows, int d)
{
    uint w[4][4];
    if (r.type == 0 && r.dim % 8 == 0) {
        for (int j = 0; j < 4; j++)
            load_aligned(w[j], pool_row(r, pool, rows[j], 0) + 2 * d, 16);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 8; i++)
                v[j][i] = HALF_TO_FLOAT(w[j][i / 2] >> i % 2 * 16 & 0xffff);
    } else
        UNROLL for (int j = 0; j < 4; j++)
            load_some(r, v[j], pool_row(r, pool, rows[j], 0), d, 8);
}

/* v[8][4] = numbers [d, d + 4) of eight values; d may be behind the last. */
static INLINE void load_values(struct rows r, float v[8][4], const GLOBAL uchar *pool, const uint *rows, int d)
{
    uint w[8][2];
    if (r.type == 0 && r.dim % 4 == 0 && d < r.dim) {
        for (int j = 0; j < 8; j++) {
            const uint2 two = *(const GLOBAL uint2 *)(pool_row(r, pool, rows[j], 1) + 2 * d);
            w[j][0] = two.x;
            w[j][1] = two.y;
        }
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 4; i++)
                v[j][i] = HALF_TO_FLOAT(w[j][i / 2] >> i % 2 * 16 & 0xffff);
    } else
        UNROLL for (int j = 0; j < 8; j++)
            load_some(r, v[j], pool_row(r, pool, rows[j], 1), d, 4);
}

/* Heads and rows that attention over a list goes by. */
struct attention {
    struct rows rows;
    int n_q;              /* query heads of this group, of one KV head */
    float scale, softcap; /* softcap 0: none */
};

/* What a group shares while it attends. A key is read by KEY_LANES threads, 8 numbers each, four keys at a time; a value by
 * VALUE_LANES, 4 numbers each, eight values at a time. So BATCH rows are awaited together. */
#define KEY_LANES 8
#define VALUE_LANES 16
#define KEYS (THREADS / KEY_LANES)
#define VALUES (THREADS / VALUE_LANES)
#define BATCH 64
#define QUERY_FLOATS 1536 /* of the queries of a group */
#define STRIDE_OF(dim) (((dim) + 7) / 8 * 8)
struct attending {
    LOCAL float4 *q;    /* [n_q][STRIDE_OF(dim)] scaled, as stored keys meet them; zeros behind dim */
    LOCAL float4 *s;    /* [MOST_HEADS][SLICE] */
    LOCAL float4 *part; /* [MOST_HEADS][BATCH][KEY_LANES], or [MOST_HEADS][VALUES][4 VALUE_LANES] */
    LOCAL float *some;  /* [THREADS] */
    LOCAL uint *rows;   /* [SLICE] */
};

/* q[n_q][dim] -> to[n_q][STRIDE_OF(dim)]. */
static void load_queries(LOCAL float *to, struct attention a, const GLOBAL float *q)
{
    const int dim = a.rows.dim, stride = STRIDE_OF(dim);
    for (int i = THREAD; i < a.n_q * stride; i += THREADS)
        to[i] = i % stride < dim ? q[i / stride * dim + i % stride] * a.scale : 0.0f;
    hadamard(a.rows, to, a.n_q * stride); /* where there is one, dim is its own stride */
}

static void load_four(float *v, const LOCAL float4 *from)
{
    const float4 four = *from;
    v[0] = four.x;
    v[1] = four.y;
    v[2] = four.z;
    v[3] = four.w;
}

static void store_four(LOCAL float4 *to, const float *v)
{
    float4 four;
    four.x = v[0];
    four.y = v[1];
    four.z = v[2];
    four.w = v[3];
    *to = four;
}

/* Scores of the slice's slots: KEY_LANES threads' parts of each, whose sums are taken in one order. */
static INLINE void score_slice(struct attending g, struct attention a, const GLOBAL uchar *pool, int m)
{
    const int lane = THREAD % KEY_LANES, own = THREAD / KEY_LANES, fours = STRIDE_OF(a.rows.dim) / 4;
    LOCAL float *part = (LOCAL float *)g.part, *s = (LOCAL float *)g.s;
    int base = 0;
    do {
        uint rows[4];
        float acc[MOST_HEADS][4], k[4][8], q[8];
        for (int j = 0; j < 4; j++)
            rows[j] = g.rows[base + own * 4 + j];
        for (int h = 0; h < MOST_HEADS; h++)
            for (int j = 0; j < 4; j++)
                acc[h][j] = 0;
        for (int d = 8 * lane; d < a.rows.dim; d += 8 * KEY_LANES) {
            load_keys(a.rows, k, pool, rows, d);
            for (int h = 0; h < MOST_HEADS; h++)
                if (h < a.n_q) {
                    load_four(q, g.q + h * fours + d / 4);
                    load_four(q + 4, g.q + h * fours + d / 4 + 1);
                    for (int i = 0; i < 8; i++)
                        for (int j = 0; j < 4; j++)
                            acc[h][j] = fma(k[j][i], q[i], acc[h][j]);
                }
        }
        for (int h = 0; h < MOST_HEADS; h++)
            for (int j = 0; j < 4; j++)
                if (h < a.n_q)
                    part[(h * BATCH + own * 4 + j) * KEY_LANES + lane] = acc[h][j];
        BARRIER();
        for (int i = THREAD; i < a.n_q * BATCH; i += THREADS) {
            const int t = base + i % BATCH;
            load_four(q, g.part + i * 2);
            load_four(q + 4, g.part + i * 2 + 1);
            const float score = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
            if (t < m)
                s[i / BATCH * SLICE + t] = a.softcap > 0 ? a.softcap * tanh(score / a.softcap) : score;
        }
        BARRIER();
        base += BATCH;
    } while (base < m);
}

/* partial[n_q][partial_stride] = sums of the slice's values by the weights s. */
static INLINE void sum_values(struct attending g, struct attention a, const GLOBAL uchar *pool, int m, GLOBAL float *partial,
                              ulong partial_stride)
{
    const int lane = THREAD % VALUE_LANES, own = THREAD / VALUE_LANES, dim = a.rows.dim;
    LOCAL float *part = (LOCAL float *)g.part;
    int base = 0;
    do {
        float acc[MOST_HEADS][4];
        for (int h = 0; h < MOST_HEADS; h++)
            for (int i = 0; i < 4; i++)
                acc[h][i] = 0;
        for (int t = own * 8; t < m; t += BATCH) {
            uint rows[8];
            float v[8][4], w[8];
            for (int j = 0; j < 8; j++)
                rows[j] = g.rows[t + j];
            load_values(a.rows, v, pool, rows, base + 4 * lane);
            for (int h = 0; h < MOST_HEADS; h++)
                if (h < a.n_q) {
                    load_four(w, g.s + (h * SLICE + t) / 4);
                    load_four(w + 4, g.s + (h * SLICE + t) / 4 + 1);
                    for (int j = 0; j < 8; j++)
                        for (int i = 0; i < 4; i++)
                            acc[h][i] = fma(w[j], v[j][i], acc[h][i]);
                }
        }
        for (int h = 0; h < MOST_HEADS; h++)
            if (h < a.n_q)
                store_four(g.part + (h * VALUES + own) * VALUE_LANES + lane, acc[h]);
        BARRIER();
        for (int i = THREAD; i < a.n_q * 4 * VALUE_LANES; i += THREADS) {
            const int h = i / (4 * VALUE_LANES), c = i % (4 * VALUE_LANES);
            float sum = 0;
            for (int j = 0; j < VALUES; j++)
                sum += part[(h * VALUES + j) * 4 * VALUE_LANES + c];
            if (base + c < dim)
                partial[(ulong)h * partial_stride + (ulong)(base + c)] = sum;
        }
        BARRIER();
        base += 4 * VALUE_LANES;
    } while (base < dim);
}

/* Numbers of a slice of a query head: the sum of weighted values, behind it the highest score and the sum of weights. */
#define PARTIAL_FLOATS(dim) (((dim) + 5) / 4 * 4)

/* Attention over m <= SLICE slots: those of a list, or (NULL) first, first + 1, ...: partial[n_q][partial_stride]. */
static void attend_slice(struct attending g, struct attention a, const GLOBAL uchar *pool, const GLOBAL uint *table,
                         const GLOBAL uint *slots, int first, int m, GLOBAL float *partial, ulong partial_stride)
{
    const int lanes = THREADS / MOST_HEADS, head = THREAD / lanes, lane = THREAD % lanes, dim = a.rows.dim;
    LOCAL float *s = (LOCAL float *)g.s;
    float max = -INFINITY, sum = 0;
    for (int t = THREAD; t < SLICE; t += THREADS) { /* behind the last slot its row again, with the weight 0 */
        const int own = t < m ? t : m - 1;
        g.rows[t] = row_at(a.rows, table, slots ? slots[own] : (uint)(first + own));
    }
    BARRIER();
    score_slice(g, a, pool, m);
    for (int t = lane; t < m && head < a.n_q; t += lanes)
        max = fmax(max, s[head * SLICE + t]);
    g.some[THREAD] = max;
    BARRIER();
    for (int i = 0; i < lanes; i++)
        max = fmax(max, g.some[head * lanes + i]);
    BARRIER();
    for (int t = lane; t < SLICE; t += lanes) {
        const float weight = t < m && head < a.n_q ? exp(s[head * SLICE + t] - max) : 0.0f;
        s[head * SLICE + t] = weight;
        sum += weight;
    }
    g.some[THREAD] = sum;
    BARRIER();
    if (lane == 0 && head < a.n_q) {
        for (int i = 1; i < lanes; i++)
            sum += g.some[head * lanes + i];
        partial[(ulong)head * partial_stride + (ulong)dim] = max;
        partial[(ulong)head * partial_stride + (ulong)dim + 1] = sum;
    }
    sum_values(g, a, pool, m, partial, partial_stride);
}

/* The highest score of a query head, and the sum of weights that it makes 1. */
struct total {
    float max, sum;
};

/* out[dim] of a query head from its slices, PARTIAL_FLOATS each; sink: a logit beside the tokens' (-INFINITY: none). A thread has
 * four channels of every n_own-th slice. shared[THREADS] of 4 floats. */
static struct total merge_slices(LOCAL float4 *shared, const GLOBAL float *partial, int n_slices, int dim, float sink,
                                 GLOBAL float *out)
{
    const int stride = PARTIAL_FLOATS(dim), n_lanes = (dim + 3) / 4, n_own = THREADS / n_lanes;
    const int lane = THREAD % n_lanes, own = THREAD / n_lanes;
    LOCAL float *some = (LOCAL float *)shared;
    float acc[4] = {0, 0, 0, 0}, max = sink, sum = 0;
    for (int i = THREAD; i < n_slices; i += THREADS)
        max = fmax(max, partial[(ulong)i * (ulong)stride + (ulong)dim]);
    max = group_max(some, max);
    for (int i = THREAD; i < n_slices; i += THREADS) {
        const GLOBAL float *own_total = partial + (ulong)i * (ulong)stride + (ulong)dim;
        sum = fma(own_total[1], exp(own_total[0] - max), sum);
    }
    sum = group_sum(some, sum) + (sink > -INFINITY ? exp(sink - max) : 0.0f);
    for (int i = own; i < n_slices && own < n_own; i += 4 * n_own) {
        float4 four[4];
        float score[4];
        for (int j = 0; j < 4; j++) { /* behind the last slice this one again, with the weight 0 */
            const int at = i + j * n_own < n_slices ? i + j * n_own : i;
            const GLOBAL float *from = partial + (ulong)at * (ulong)stride;
            four[j] = *(const GLOBAL float4 *)(from + 4 * lane);
            score[j] = at > i || j == 0 ? from[dim] : -INFINITY;
        }
        for (int j = 0; j < 4; j++) {
            const float weight = exp(score[j] - max);
            acc[0] = fma(four[j].x, weight, acc[0]);
            acc[1] = fma(four[j].y, weight, acc[1]);
            acc[2] = fma(four[j].z, weight, acc[2]);
            acc[3] = fma(four[j].w, weight, acc[3]);
        }
    }
    store_four(shared + THREAD, acc);
    BARRIER();
    for (int d = THREAD; d < dim; d += THREADS) {
        float all = 0;
        for (int i = 0; i < n_own; i++)
            all += some[(i * n_lanes + d / 4) * 4 + d % 4];
        out[d] = all / sum;
    }
    BARRIER();
    const struct total total = {max, sum};
    return total;
}

/* How many slots query row `row` attends to, and from which on: list `list`, or without lists the `window` newest of those up to
 * the row's own, which is slot own + row. */
#define COUNT_OF(row, list)                                                                                                        \
    const int n_seen = own + (row) + 1, first = GIVEN(counts) || n_seen < window ? 0 : n_seen - window,                            \
              count = GIVEN(counts) ? AT(int, counts)[list] : n_seen - first

/* partial[row][head][slice][PARTIAL_FLOATS]. Groups: query heads by n_q x slices x rows. list_heads: query heads of a list. */
KERNEL attend(BUFFER(partial), BUFFER(q), BUFFER(pool), BUFFER(table), BUFFER(slots), BUFFER(counts), ulong list_stride,
              int table_stride, int n_heads, int group, int list_heads, int n_q, ROWS, float softcap, int own, int window,
              int n_slices)
{
    SHARED float4 shared_q[QUERY_FLOATS / 4];
    SHARED float4 shared_s[MOST_HEADS * SLICE / 4];
    SHARED float4 shared_part[MOST_HEADS * BATCH * KEY_LANES / 4];
    SHARED float some[THREADS];
    SHARED uint rows[SLICE];
    const struct attending g = {shared_q, shared_s, shared_part, some, rows};
    const struct attention a = {ROWS_GIVEN, n_q, 1 / sqrt((float)dim), softcap};
    const int head = GROUP(0) * n_q, slice = GROUP(1), row = GROUP(2), list = head / list_heads;
    COUNT_OF(row, list);
    const int left = count - slice * SLICE, m = left < SLICE ? left : SLICE;
    if (m <= 0)
        return;
    load_queries((LOCAL float *)g.q, a, AT(float, q) + (ulong)(row * n_heads + head) * (ulong)dim);
    attend_slice(g, a, AT(uchar, pool), AT(uint, table) + head / group * table_stride,
                 GIVEN(slots) ? AT(uint, slots) + (ulong)list * list_stride + (ulong)(slice * SLICE) : 0, first + slice * SLICE, m,
                 AT(float, partial) + ((ulong)(row * n_heads + head) * (ulong)n_slices + (ulong)slice) * (ulong)PARTIAL_FLOATS(dim),
                 (ulong)n_slices * (ulong)PARTIAL_FLOATS(dim));
}

/* out[row][head][dim]. Behind the first slice's values its total is left (struct total). Groups: n_heads x rows. */
KERNEL merge(BUFFER(out), BUFFER(partial), BUFFER(counts), BUFFER(sinks), int list_heads, int dim, int n_heads, int own, int window,
             int n_slices)
{
    SHARED float4 shared[THREADS];
    const int head = GROUP(0), row = GROUP(1);
    const ulong at = (ulong)(row * n_heads + head);
    COUNT_OF(row, head / list_heads);
    (void)first;
    GLOBAL float *own_partial = AT(float, partial) + at * (ulong)n_slices * (ulong)PARTIAL_FLOATS(dim);
    const struct total total = merge_slices(shared, own_partial, (count + SLICE - 1) / SLICE, dim,
                                            GIVEN(sinks) ? AT(float, sinks)[head] : -INFINITY, AT(float, out) + at * (ulong)dim);
    if (THREAD == 0) {
        own_partial[dim] = total.max;
        own_partial[dim + 1] = total.sum;
    }
}
