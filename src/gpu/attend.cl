/* Kernels of a device that attend, over lists of slots. Dense attention is attention over the list 0, 1, 2, ...; a prompt's
 * tokens are each attended to as a decode step is. */

#define SLICE 256 /* tokens of a list that a group attends to; fixed, so that no result depends on what shares a launch */

/* Heads and rows that attention over a list goes by. */
struct attention {
    struct rows rows;
    int n_q;              /* query heads of this group, of one KV head */
    float scale, softcap; /* softcap 0: none */
};

/* What a group shares while it attends. */
struct attending {
    LOCAL float *q;    /* [MOST_HEADS][dim] scaled, as stored keys meet them */
    LOCAL float *s;    /* [MOST_HEADS][SLICE] */
    LOCAL float *some; /* [THREADS] */
    LOCAL uint *rows;  /* [SLICE] */
};

static void load_queries(struct attending g, struct attention a, const GLOBAL float *q)
{
    for (int i = THREAD; i < a.n_q * a.rows.dim; i += THREADS)
        g.q[i] = q[i] * a.scale;
    hadamard(a.rows, g.q, a.n_q * a.rows.dim);
}

/* Attention over m <= SLICE slots: those of a list, or (NULL) first, first + 1, ...: partial[n_q][partial_stride] gets the sum of
 * weighted values, behind it the highest score and the sum of weights. */
static void attend_slice(struct attending g, struct attention a, const GLOBAL uchar *pool, const GLOBAL uint *table,
                         const GLOBAL uint *slots, int first, int m, GLOBAL float *partial, ulong partial_stride)
{
    const int lanes = THREADS / MOST_HEADS, head = THREAD / lanes, lane = THREAD % lanes, dim = a.rows.dim;
    float acc[MOST_HEADS], max = -INFINITY, sum = 0;
    for (int t = THREAD; t < m; t += THREADS) {
        g.rows[t] = row_at(a.rows, table, slots ? slots[t] : (uint)(first + t));
        const GLOBAL uchar *key = pool + (ulong)g.rows[t] * (ulong)(2 * a.rows.bytes);
        for (int h = 0; h < MOST_HEADS; h++)
            acc[h] = 0;
        for (int d = 0; d < dim; d++) {
            const float k = load_row(a.rows, key, d);
            for (int h = 0; h < a.n_q; h++)
                acc[h] = fma(k, g.q[h * dim + d], acc[h]);
        }
        for (int h = 0; h < a.n_q; h++)
            g.s[h * SLICE + t] = a.softcap > 0 ? a.softcap * tanh(acc[h] / a.softcap) : acc[h];
    }
    BARRIER();
    for (int t = lane; t < m && head < a.n_q; t += lanes)
        max = fmax(max, g.s[head * SLICE + t]);
    g.some[THREAD] = max;
    BARRIER();
    for (int i = 0; i < lanes; i++)
        max = fmax(max, g.some[head * lanes + i]);
    BARRIER();
    for (int t = lane; t < m && head < a.n_q; t += lanes) {
        const float weight = exp(g.s[head * SLICE + t] - max);
        g.s[head * SLICE + t] = weight;
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
    for (int d = THREAD; d < dim; d += THREADS) {
        for (int h = 0; h < MOST_HEADS; h++)
            acc[h] = 0;
        for (int t = 0; t < m; t++) {
            const float v = load_row(a.rows, pool + (ulong)g.rows[t] * (ulong)(2 * a.rows.bytes) + a.rows.bytes, d);
            for (int h = 0; h < a.n_q; h++)
                acc[h] = fma(g.s[h * SLICE + t], v, acc[h]);
        }
        for (int h = 0; h < a.n_q; h++)
            partial[(ulong)h * partial_stride + (ulong)d] = acc[h];
    }
    BARRIER();
}

/* The highest score of a query head, and the sum of weights that it makes 1. */
struct total {
    float max, sum;
};

/* out[dim] of a query head from its slices, dim + 2 numbers each; sink: a logit beside the tokens' (-INFINITY: none). */
static struct total merge_slices(const GLOBAL float *partial, int n_slices, int dim, float sink, GLOBAL float *out)
{
    float max = sink, sum = 0;
    for (int i = 0; i < n_slices; i++)
        max = fmax(max, partial[(ulong)i * (ulong)(dim + 2) + (ulong)dim]);
    sum = sink > -INFINITY ? exp(sink - max) : 0.0f;
    for (int i = 0; i < n_slices; i++)
        sum = fma(partial[(ulong)i * (ulong)(dim + 2) + (ulong)dim + 1],
                  exp(partial[(ulong)i * (ulong)(dim + 2) + (ulong)dim] - max), sum);
    for (int d = THREAD; d < dim; d += THREADS) {
        float acc = 0;
        for (int i = 0; i < n_slices; i++)
            acc = fma(partial[(ulong)i * (ulong)(dim + 2) + (ulong)d], exp(partial[(ulong)i * (ulong)(dim + 2) + (ulong)dim] - max),
                      acc);
        out[d] = acc / sum;
    }
    const struct total total = {max, sum};
    return total;
}

/* How many slots query row `row` attends to, and from which on: list `list`, or without lists the `window` newest of those up to
 * the row's own, which is slot own + row. */
#define COUNT_OF(row, list)                                                                                                        \
    const int n_seen = own + (row) + 1, first = GIVEN(counts) || n_seen < window ? 0 : n_seen - window,                            \
              count = GIVEN(counts) ? AT(int, counts)[list] : n_seen - first

/* partial[row][head][slice][dim + 2]. Groups: query heads by n_q x slices x rows. list_heads: query heads of a list. */
KERNEL attend(BUFFER(partial), BUFFER(q), BUFFER(pool), BUFFER(table), BUFFER(slots), BUFFER(counts), ulong list_stride,
              int table_stride, int n_heads, int group, int list_heads, int n_q, ROWS, float softcap, int own, int window,
              int n_slices)
{
    SHARED float queries[MOST_HEADS * MOST_DIM];
    SHARED float weights[MOST_HEADS * SLICE];
    SHARED float some[THREADS];
    SHARED uint rows[SLICE];
    const struct attending g = {queries, weights, some, rows};
    const struct attention a = {ROWS_GIVEN, n_q, 1 / sqrt((float)dim), softcap};
    const int head = GROUP(0) * n_q, slice = GROUP(1), row = GROUP(2), list = head / list_heads;
    COUNT_OF(row, list);
    const int left = count - slice * SLICE, m = left < SLICE ? left : SLICE;
    if (m <= 0)
        return;
    load_queries(g, a, AT(float, q) + (ulong)(row * n_heads + head) * (ulong)dim);
    attend_slice(g, a, AT(uchar, pool), AT(uint, table) + head / group * table_stride,
                 GIVEN(slots) ? AT(uint, slots) + (ulong)list * list_stride + (ulong)(slice * SLICE) : 0, first + slice * SLICE, m,
                 AT(float, partial) + ((ulong)(row * n_heads + head) * (ulong)n_slices + (ulong)slice) * (ulong)(dim + 2),
                 (ulong)n_slices * (ulong)(dim + 2));
}

/* out[row][head][dim]. Behind the first slice's values its total is left (struct total). Groups: n_heads x rows. */
KERNEL merge(BUFFER(out), BUFFER(partial), BUFFER(counts), BUFFER(sinks), int list_heads, int dim, int n_heads, int own, int window,
             int n_slices)
{
    const int head = GROUP(0), row = GROUP(1);
    const ulong at = (ulong)(row * n_heads + head);
    COUNT_OF(row, head / list_heads);
    (void)first;
    GLOBAL float *own_partial = AT(float, partial) + at * (ulong)n_slices * (ulong)(dim + 2);
    const struct total total = merge_slices(own_partial, (count + SLICE - 1) / SLICE, dim,
                                            GIVEN(sinks) ? AT(float, sinks)[head] : -INFINITY, AT(float, out) + at * (ulong)dim);
    BARRIER();
    if (THREAD == 0) {
        own_partial[dim] = total.max;
        own_partial[dim + 1] = total.sum;
    }
}
