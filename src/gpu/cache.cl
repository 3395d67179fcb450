/* Kernels of a device on the KV cache of one layer: rows appended, page bounds, scores, selection (attend.cl has attention,
 * kernels.cl the others). */

#define MOST_HEADS 8 /* query heads of a KV head that a group does together */
#define MOST_DIM 512

/* ------------------------------------------------------------------------------------------------------ rows */

/* How keys and values of a KV head are stored: in a type (0: F16, 1: F32, 2: Q8_0, as enum butler_kv_type), `bytes` a row of dim
 * numbers. Of Q8_0 keys rows hold H k - shift (kv.h): H the Hadamard transform of pieces of `piece` channels, scaled; piece 1: rows
 * hold keys as they are. */
struct rows {
    int type, bytes, dim, piece;
    float piece_scale;
    const GLOBAL uint *places; /* of the pool's pages, where not all of them are here (row_at), or NULL */
};
#define ROWS BUFFER(places), int type, int row_bytes, int dim, int piece, float piece_scale
#define ROWS_GIVEN {type, row_bytes, dim, piece, piece_scale, GIVEN(places) ? AT(uint, places) : 0}

static float load_row(struct rows r, const GLOBAL uchar *row, int d)
{
    const GLOBAL uchar *block = row + d / 32 * 34;
    if (r.type == 2)
        return LOAD_HALF(block) * (float)(block[2 + d % 32] < 128 ? block[2 + d % 32] : block[2 + d % 32] - 256);
    return r.type == 0 ? LOAD_HALF(row + 2 * d) : ((const GLOBAL float *)row)[d];
}

/* Which row of the pool a slot is: a key and a value at 2 row_bytes times this. EXTENT_TOKENS: BUTLER_EXTENT_TOKENS. */
#define EXTENT_TOKENS 64
static uint row_of(const GLOBAL uint *table, uint slot)
{
    return table[slot / EXTENT_TOKENS] * EXTENT_TOKENS + slot % EXTENT_TOKENS;
}

/* The same; where some pages are in host memory, in the device's copies of the others: page i of the pool is copy places[i].
 * PAGE_TOKENS: BUTLER_PAGE. */
#define PAGE_TOKENS 16
static uint row_at(struct rows r, const GLOBAL uint *table, uint slot)
{
    const uint row = row_of(table, slot);
    return r.places ? r.places[row / PAGE_TOKENS] * PAGE_TOKENS + row % PAGE_TOKENS : row;
}

/* 32 numbers as a block of Q8_0, by the operations of butler_quantize_row. */
static void store_block(GLOBAL uchar *block, const LOCAL float *x)
{
    float most = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
        finite = finite && (FLOAT_TO_BITS(x[i]) & 0x7f800000u) != 0x7f800000u;
    }
    const float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    STORE_HALF(block, finite ? d : BITS_TO_FLOAT(0x7fc00000u));
    for (int i = 0; i < 32; i++)
        block[2 + i] = finite ? (uchar)((int)fmax(fmin(round(x[i] * inverse), 127.0f), -127.0f) & 255) : 0;
}

/* Writes x[dim], which the group shares, as a row. */
static void store_row(struct rows r, GLOBAL uchar *row, const LOCAL float *x)
{
    for (int b = THREAD; b < r.dim / 32 && r.type == 2; b += THREADS)
        store_block(row + b * 34, x + b * 32);
    for (int d = THREAD; d < r.dim && r.type != 2; d += THREADS) {
        if (r.type == 0)
            STORE_HALF(row + 2 * d, x[d]);
        else
            ((GLOBAL float *)row)[d] = x[d];
    }
}

/* x[n], which the group shares, becomes H x, by the operations of butler_hadamard.
 * Barriers are in no branch, and in no loop that may have no pass: PoCL compiles what follows once for each way there is. */
static void hadamard(struct rows r, LOCAL float *x, int n)
{
    int half_piece = 1;
    do {
        BARRIER();
        for (int i = THREAD; i < n / 2 && half_piece < r.piece; i += THREADS) {
            const int j = i / half_piece * 2 * half_piece + i % half_piece;
            const float a = x[j], b = x[j + half_piece];
            x[j] = a + b;
            x[j + half_piece] = a - b;
        }
        half_piece *= 2;
    } while (half_piece < r.piece);
    BARRIER();
    for (int i = THREAD; i < n && r.piece > 1; i += THREADS)
        x[i] *= r.piece_scale;
    BARRIER();
}

/* A key and a value into a row of the pool; row NULL: nowhere. shift may be NULL. */
static void append_row(struct rows r, LOCAL float *x, GLOBAL uchar *row, const GLOBAL float *k, const GLOBAL float *v,
                       const GLOBAL float *shift)
{
    for (int d = THREAD; d < r.dim; d += THREADS)
        x[d] = k[d];
    hadamard(r, x, r.dim);
    for (int d = THREAD; d < r.dim && shift; d += THREADS)
        x[d] -= shift[d];
    BARRIER();
    if (row)
        store_row(r, row, x);
    BARRIER();
    for (int d = THREAD; d < r.dim; d += THREADS)
        x[d] = v[d];
    BARRIER();
    if (row)
        store_row(r, row + r.bytes, x);
    BARRIER();
}

/* Keys of n slots from `first` on as they were before their rows were made, into x[n][dim], which the group shares. */
static void load_stored(struct rows r, LOCAL float *x, const GLOBAL uchar *pool, const GLOBAL uint *table,
                        const GLOBAL float *shift, int first, int n)
{
    for (int i = THREAD; i < n * r.dim; i += THREADS) {
        const GLOBAL uchar *key = pool + (ulong)row_at(r, table, (uint)(first + i / r.dim)) * (ulong)(2 * r.bytes);
        x[i] = load_row(r, key, i % r.dim) + (shift ? shift[i % r.dim] : 0.0f);
    }
    hadamard(r, x, n * r.dim); /* its own inverse */
}

#define KEY_FLOATS 4096 /* of keys that a group holds; an even number of keys of any size */
static int keys_at_once(struct rows r, int most)
{
    const int n = KEY_FLOATS / r.dim / 2 * 2;
    return n < most ? n : most;
}

/* What keys of KV head `head` are stored less. */
#define SHIFT_OF(head) (GIVEN(shifts) ? AT(float, shifts) + (head)*dim : 0)

/* Writes k, v [n][n_kv_heads][dim] into slots from `first` on. Groups: n x n_kv_heads. table: that of the layer's first KV head,
 * others table_stride numbers apart, as are positions and order (evict.cl), which may be NULL: of tokens from `position` on. sums:
 * NULL, or of the attention that the slots receive, [group] each, which become 0. */
KERNEL append(BUFFER(pool), BUFFER(table), BUFFER(k), BUFFER(v), BUFFER(shifts), BUFFER(positions), BUFFER(order),
              BUFFER(sums), ulong sums_stride, int table_stride, ROWS, int n_kv_heads, int first, int position, int group)
{
    SHARED float x[MOST_DIM];
    const struct rows r = ROWS_GIVEN;
    const int t = GROUP(0), head = GROUP(1);
    const ulong from = (ulong)(t * n_kv_heads + head) * (ulong)dim;
    const uint to = row_at(r, AT(uint, table) + head * table_stride, (uint)(first + t));
    append_row(r, x, AT(uchar, pool) + (ulong)to * (ulong)(2 * row_bytes), AT(float, k) + from, AT(float, v) + from,
               SHIFT_OF(head));
    if (THREAD == 0 && GIVEN(positions)) {
        AT(int, positions)[head * table_stride + first + t] = position + t;
        AT(uint, order)[head * table_stride + first + t] = (uint)(first + t);
    }
    for (int i = THREAD; i < group && GIVEN(sums); i += THREADS)
        AT(float, sums)[(ulong)head * sums_stride + (ulong)((first + t) * group + i)] = 0;
}

/* The record of page p of a KV head with n slots, from its stored keys, which go to x[KEY_FLOATS]: {half max[dim], half
 * min[dim]}, or where deviation >= 0 in their places mean + deviation standard deviations and mean - deviation standard
 * deviations (metrics page_bounds, page_stats). */
static void bound_page(struct rows r, LOCAL float *x, GLOBAL uchar *records, const GLOBAL uchar *pool, const GLOBAL uint *table,
                       const GLOBAL float *shift, int page, int p, int n, float deviation)
{
    float max[MOST_DIM / THREADS], min[MOST_DIM / THREADS]; /* or the mean, and the sum of squares less the mean's */
    const int end = (p + 1) * page < n ? (p + 1) * page : n, at_once = keys_at_once(r, page);
    GLOBAL uchar *record = records + (ulong)p * (ulong)(4 * r.dim);
    int slot = p * page;
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        max[i] = deviation < 0 ? -65504.0f : 0.0f;
        min[i] = deviation < 0 ? 65504.0f : 0.0f;
    }
    do {
        const int m = end - slot < at_once ? end - slot : at_once;
        load_stored(r, x, pool, table, shift, slot, m);
        for (int i = 0; i < MOST_DIM / THREADS; i++)
            for (int t = 0; t < m && THREAD + i * THREADS < r.dim; t++) {
                const float key = x[t * r.dim + THREAD + i * THREADS], off = key - max[i];
                if (deviation < 0) {
                    max[i] = fmax(max[i], key);
                    min[i] = fmin(min[i], key);
                } else { /* Welford's sums: no digits are lost */
                    max[i] += off / (float)(slot + t + 1 - p * page);
                    min[i] += off * (key - max[i]);
                }
            }
        BARRIER();
        slot += at_once;
    } while (slot < end);
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        const int d = THREAD + i * THREADS;
        float high = max[i], low = min[i];
        if (deviation >= 0) {
            const float spread = deviation * sqrt(low / (float)(end - p * page));
            low = high - spread;
            high += spread;
        }
        if (d < r.dim) {
            STORE_HALF(record + 2 * d, fmax(fmin(high, 65504.0f), -65504.0f));
            STORE_HALF(record + 2 * (r.dim + d), fmax(fmin(low, 65504.0f), -65504.0f));
        }
    }
}

/* Records of pages from `first` on. Groups: pages x n_kv_heads. */
KERNEL bound_pages(BUFFER(records), BUFFER(pool), BUFFER(table), BUFFER(shifts), ulong records_stride, int table_stride, ROWS,
                   int page, int first, int n, float deviation)
{
    SHARED float x[KEY_FLOATS];
    const struct rows r = ROWS_GIVEN;
    const int head = GROUP(1);
    bound_page(r, x, AT(uchar, records) + (ulong)head * records_stride, AT(uchar, pool), AT(uint, table) + head * table_stride,
               SHIFT_OF(head), page, first + GROUP(0), n, deviation);
}

/* Pages of the pool that come from host memory, or go there: `packed` has numbers (copy, page of the pool) of each, and from byte
 * `at` on `words` numbers of 4 bytes each. to_host: copies are packed. Else packed ones become copies, but for those from n_filled
 * on, which hold nothing yet, and places says so. Groups: pages. */
KERNEL move_pages(BUFFER(copies), BUFFER(packed), BUFFER(places), ulong at, int words, int n_filled, int to_host)
{
    const int i = GROUP(0);
    const GLOBAL uint *numbers = AT(uint, packed);
    GLOBAL uint *copy = AT(uint, copies) + (ulong)numbers[2 * i] * (ulong)words;
    GLOBAL uint *page = AT(uint, packed) + at / 4 + (ulong)i * (ulong)words;
    for (int w = THREAD; w < words && to_host; w += THREADS)
        page[w] = copy[w];
    for (int w = THREAD; w < words && !to_host && i < n_filled; w += THREADS)
        copy[w] = page[w];
    if (THREAD == 0 && !to_host)
        AT(uint, places)[numbers[2 * i + 1]] = numbers[2 * i];
}

/* ---------------------------------------------------------------------------------------------------- scores */

/* What rows of query heads that share a list become (combine_rows), in bits: their mean, else their highest; standard scores, else
 * logarithms of their softmax. */
#define BY_MEAN 1
#define BY_ZSCORE 2

/* Of each query head and block of its scores, two numbers: the highest scaled one and the sum of exp of how far all are from it, or
 * by BY_ZSCORE their mean and the sum of squares of how far they are from it. NULL where no rows are combined. */
#define STATS BUFFER(stats), float scale, int by

/* x[n_heads][stride]: scores that the group shares, of which each head has n; to[n_heads]: to_stride apart. some[THREADS]. */
static void note_stats(const LOCAL float *x, LOCAL float *some, GLOBAL float *to, ulong to_stride, int n_heads, int stride, int n,
                       float scale, int by)
{
    const int lanes = THREADS / MOST_HEADS, head = THREAD / lanes, lane = THREAD % lanes, z = by & BY_ZSCORE;
    const int end = head < n_heads ? n : 0;
    float first = z ? 0.0f : -INFINITY, second = 0;
    BARRIER();
    for (int i = lane; i < end; i += lanes)
        first = z ? first + x[head * stride + i] : fmax(first, x[head * stride + i] * scale);
    some[THREAD] = first;
    BARRIER();
    first = some[head * lanes];
    for (int i = 1; i < lanes; i++)
        first = z ? first + some[head * lanes + i] : fmax(first, some[head * lanes + i]);
    first = z ? first / (float)n : first;
    BARRIER();
    for (int i = lane; i < end; i += lanes) {
        const float off = z ? x[head * stride + i] - first : exp(x[head * stride + i] * scale - first);
        second += z ? off * off : off;
    }
    some[THREAD] = second;
    BARRIER();
    if (lane == 0 && head < n_heads) {
        for (int i = 1; i < lanes; i++)
            second += some[head * lanes + i];
        to[(ulong)head * to_stride] = first;
        to[(ulong)head * to_stride + 1] = second;
    }
}

/* A score for each thread, of one query head: those of blocks of THREADS units. */
#define NOTE_STATS(x, some, head, score, n_blocks, n)                                                                              \
    do {                                                                                                                           \
        x[THREAD] = score;                                                                                                         \
        note_stats(x, some, AT(float, stats) + ((head) * (n_blocks) + GROUP(0)) * 2, 0, GIVEN(stats), 0,                           \
                   (n) - GROUP(0) * THREADS < THREADS ? (n) - GROUP(0) * THREADS : THREADS, scale, by);                            \
    } while (0)

/* Scores of pages, for query heads of one KV head: of each page and q[dim] the sum, or with by_max the highest, over d of
 * max(q_d max_d, q_d min_d). PAGE_LANES threads read a record together, of two pages at a time, for all query heads. */
#define PAGE_LANES 8
#define PAGES (2 * THREADS / PAGE_LANES)
struct paging {
    struct rows rows;
    int n_q, n, stale, page, by_max, by; /* stale: the first page whose record is not made yet */
    float deviation, scale;
};

/* What belongs to a KV head. k, v [dim] become slot n - 1, and the pages from `stale` on, of which one is the last, are bounded
 * before they are scored; or they are NULL, and all records are made. */
struct paged_head {
    GLOBAL float *scores, *stats; /* of its query heads: scores are score_stride apart; NULL where none are combined */
    const GLOBAL float *q, *k, *v, *shift;
    GLOBAL uchar *records, *pool;
    const GLOBAL uint *table;
    ulong score_stride;
};

/* What a group shares while it scores. */
struct page_space {
    LOCAL float *x;     /* [KEY_FLOATS] keys, later query heads */
    LOCAL float *part;  /* [MOST_HEADS * PAGES * PAGE_LANES] */
    LOCAL float *score; /* [MOST_HEADS * PAGES] */
    LOCAL float *some;  /* [THREADS] */
};

/* Block `block` of PAGES pages. */
static INLINE void score_page_block(struct page_space g, struct paging p, struct paged_head h, int block)
{
    const struct rows r = p.rows;
    const int dim = r.dim, first = block * PAGES, n_pages = (p.n + p.page - 1) / p.page;
    const int end = first + PAGES < n_pages ? first + PAGES : n_pages, lane = THREAD % PAGE_LANES;
    if (h.k && p.stale < end) {
        const uint row = row_at(r, h.table, (uint)(p.n - 1));
        int own = p.stale > first ? p.stale : first;
        append_row(r, g.x, end == n_pages ? h.pool + (ulong)row * (ulong)(2 * r.bytes) : 0, h.k, h.v, h.shift);
        do
            bound_page(r, g.x, h.records, h.pool, h.table, h.shift, p.page, own, p.n, p.deviation);
        while (++own < end);
        BARRIER();
    }
    for (int i = THREAD; i < p.n_q * dim; i += THREADS)
        g.x[i] = h.q[i];
    BARRIER();
    const int p0 = first + THREAD / PAGE_LANES, p1 = p0 + THREADS / PAGE_LANES;
    const GLOBAL uchar *record0 = h.records + (ulong)(p0 < end ? p0 : end - 1) * (ulong)(4 * dim);
    const GLOBAL uchar *record1 = h.records + (ulong)(p1 < end ? p1 : end - 1) * (ulong)(4 * dim);
    float acc[MOST_HEADS][2];
    for (int i = 0; i < MOST_HEADS; i++)
        acc[i][0] = acc[i][1] = p.by_max ? -INFINITY : 0.0f;
    for (int d = 8 * lane; d < dim; d += 8 * PAGE_LANES) {
        float bounds[4][8];
        UNROLL for (int j = 0; j < 4; j++) {
            uint w[4];
            load_bytes(w, (j < 2 ? record0 : record1) + 2 * (d + j % 2 * dim), 16);
            for (int i = 0; i < 8; i++)
                bounds[j][i] = HALF_TO_FLOAT(w[i / 2] >> i % 2 * 16 & 0xffff);
        }
        UNROLL for (int head = 0; head < MOST_HEADS; head++)
            if (head < p.n_q)
                for (int i = 0; i < 8; i++)
                    if (d + i < dim) {
                        const float own = g.x[head * dim + d + i];
                        const float score0 = fmax(own * bounds[0][i], own * bounds[1][i]);
                        const float score1 = fmax(own * bounds[2][i], own * bounds[3][i]);
                        acc[head][0] = p.by_max ? fmax(acc[head][0], score0) : acc[head][0] + score0;
                        acc[head][1] = p.by_max ? fmax(acc[head][1], score1) : acc[head][1] + score1;
                    }
    }
    UNROLL for (int head = 0; head < MOST_HEADS; head++)
        if (head < p.n_q) {
            g.part[(head * PAGES + THREAD / PAGE_LANES) * PAGE_LANES + lane] = acc[head][0];
            g.part[(head * PAGES + THREAD / PAGE_LANES + THREADS / PAGE_LANES) * PAGE_LANES + lane] = acc[head][1];
        }
    BARRIER();
    for (int i = THREAD; i < p.n_q * PAGES; i += THREADS) {
        const int at = first + i % PAGES;
        float all = g.part[i * PAGE_LANES];
        for (int j = 1; j < PAGE_LANES; j++)
            all = p.by_max ? fmax(all, g.part[i * PAGE_LANES + j]) : all + g.part[i * PAGE_LANES + j];
        g.score[i] = all;
        if (at < end)
            h.scores[(ulong)(i / PAGES) * h.score_stride + (ulong)at] = all;
    }
    const ulong n_blocks = (ulong)((n_pages + PAGES - 1) / PAGES);
    note_stats(g.score, g.some, h.stats ? h.stats + (ulong)block * 2 : 0, 2 * n_blocks, h.stats ? p.n_q : 0, PAGES, end - first,
               p.scale, p.by);
}

/* Groups: blocks of PAGES pages x query heads by n_q. k, v: struct paged_head. */
KERNEL score_pages(BUFFER(scores), BUFFER(q), BUFFER(records), BUFFER(k), BUFFER(v), BUFFER(pool), BUFFER(table), BUFFER(shifts),
                   STATS, ulong score_stride, ulong records_stride, int table_stride, ROWS, int group, int n_q, int n, int stale,
                   int page, float deviation, int by_max)
{
    SHARED float x[KEY_FLOATS];
    SHARED float part[MOST_HEADS * PAGES * PAGE_LANES];
    SHARED float score[MOST_HEADS * PAGES];
    SHARED float some[THREADS];
    const int head = GROUP(1) * n_q, kv_head = head / group, n_blocks = ((n + page - 1) / page + PAGES - 1) / PAGES;
    const struct page_space g = {x, part, score, some};
    const struct paging p = {ROWS_GIVEN, n_q, n, stale, page, by_max, by, deviation, scale};
    const struct paged_head h = {AT(float, scores) + (ulong)head * score_stride,
                                 GIVEN(stats) ? AT(float, stats) + (ulong)(head * n_blocks) * 2 : 0,
                                 AT(float, q) + head * dim,
                                 GIVEN(k) ? AT(float, k) + kv_head * dim : 0,
                                 GIVEN(v) ? AT(float, v) + kv_head * dim : 0,
                                 SHIFT_OF(kv_head),
                                 AT(uchar, records) + (ulong)kv_head * records_stride,
                                 AT(uchar, pool),
                                 AT(uint, table) + kv_head * table_stride,
                                 score_stride};
    score_page_block(g, p, h, GROUP(0));
}

/* scores[head][i] = q . key, less q . shift, of slot first + i, or where an order is given (evict.cl) of order[first + i]. Groups:
 * blocks of THREADS slots x n_heads. */
KERNEL score_keys(BUFFER(scores), BUFFER(q), BUFFER(pool), BUFFER(table), BUFFER(order), STATS, ulong score_stride,
                  int table_stride, ROWS, int group, int first, int n)
{
    SHARED float x[MOST_DIM];
    SHARED float some[THREADS];
    const struct rows r = ROWS_GIVEN;
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1), n_blocks = (n + THREADS - 1) / THREADS;
    for (int d = THREAD; d < dim; d += THREADS)
        x[d] = AT(float, q)[head * dim + d];
    hadamard(r, x, dim);
    const GLOBAL uint *own = AT(uint, table) + head / group * table_stride;
    const int at = i < n ? first + i : first;
    const uint slot = GIVEN(order) ? AT(uint, order)[head / group * table_stride + at] : (uint)at;
    const GLOBAL uchar *key = AT(uchar, pool) + (ulong)row_at(r, own, slot) * (ulong)(2 * row_bytes);
    float score = 0;
    for (int d = 0; d < dim; d++)
        score = fma(x[d], load_row(r, key, d), score);
    if (i < n)
        AT(float, scores)[(ulong)head * score_stride + (ulong)i] = score;
    BARRIER();
    NOTE_STATS(x, some, head, score, n_blocks, n);
}

/* ------------------------------------------------------------------------------------------------- selection */

/* How rows of n_heads query heads that share a list become one. */
struct combining {
    LOCAL float *some, *shift, *factor; /* [THREADS], [MOST_HEADS], [MOST_HEADS]; a head's score becomes score * factor - shift */
    int n_heads, n_blocks, block, n, by; /* n scores each, their stats of n_blocks blocks of `block` scores */
};

/* shift and factor of each head, from stats[n_heads][n_blocks][2] and the heads' learned sinks, or NULL. */
static INLINE void head_shifts(struct combining c, const GLOBAL float *stats, const GLOBAL float *sinks, float scale)
{
    const int lanes = THREADS / MOST_HEADS, head = THREAD / lanes, lane = THREAD % lanes, z = c.by & BY_ZSCORE;
    const int end = head < c.n_heads ? c.n_blocks : 0;
    const GLOBAL float *own = stats + (ulong)(end > 0 ? head : 0) * (ulong)(2 * c.n_blocks);
    float first = z ? 0.0f : -INFINITY, second = 0;
    for (int b = lane; b < end; b += lanes)
        first = z ? fma(own[2 * b], (float)(c.n - b * c.block < c.block ? c.n - b * c.block : c.block), first)
                  : fmax(first, own[2 * b]);
    c.some[THREAD] = first;
    BARRIER();
    first = c.some[head * lanes];
    for (int j = 1; j < lanes; j++)
        first = z ? first + c.some[head * lanes + j] : fmax(first, c.some[head * lanes + j]);
    first = z ? first / (float)c.n : first;
    BARRIER();
    for (int b = lane; b < end; b += lanes) {
        const float off = own[2 * b] - first, size = (float)(c.n - b * c.block < c.block ? c.n - b * c.block : c.block);
        second += z ? fma(off * off, size, own[2 * b + 1]) : own[2 * b + 1] * exp(off);
    }
    c.some[THREAD] = second;
    BARRIER();
    if (lane == 0 && head < c.n_heads) {
        for (int j = 1; j < lanes; j++)
            second += c.some[head * lanes + j];
        if (z) {
            c.factor[head] = second > 0 ? 1 / sqrt(second / (float)c.n) : 0.0f;
            c.shift[head] = first * c.factor[head];
        } else {
            const float log_sum = first + log(second), sink = sinks ? sinks[head] : log_sum;
            c.factor[head] = scale;
            c.shift[head] = sinks ? fmax(log_sum, sink) + log(1 + exp(-fabs(log_sum - sink))) : log_sum;
        }
    }
    BARRIER();
}

/* rows[n_heads], score_stride apart: one score of each head; the first becomes the list's. */
static INLINE void combine_scores(struct combining c, GLOBAL float *rows, ulong score_stride)
{
    float own_scores[MOST_HEADS], most = -INFINITY, sum = 0;
    const int z = c.by & BY_ZSCORE, mean = c.by & BY_MEAN;
    for (int h = 0; h < MOST_HEADS; h++)
        if (h < c.n_heads) {
            own_scores[h] = rows[(ulong)h * score_stride] * c.factor[h] - c.shift[h];
            most = fmax(most, own_scores[h]);
        }
    for (int h = 0; h < MOST_HEADS; h++)
        if (h < c.n_heads && mean)
            sum += z ? own_scores[h] : exp(own_scores[h] - most);
    if (mean && z)
        most = sum / (float)c.n_heads;
    else if (mean)
        most += log(sum / (float)c.n_heads);
    *rows = most;
}

/* Rows of n_heads query heads -> the first of them, by BY_*: a softmax beside the head's learned sink, whose mean is the
 * logarithm of that of the shares. Their stats are of blocks of `block` scores. sinks may be NULL. Groups: blocks of THREADS
 * scores x lists. */
KERNEL combine_rows(BUFFER(scores), BUFFER(sinks), STATS, ulong score_stride, int n_heads, int block, int n)
{
    SHARED float some[THREADS];
    SHARED float shift[MOST_HEADS];
    SHARED float factor[MOST_HEADS];
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1) * n_heads, n_blocks = (n + block - 1) / block;
    const struct combining c = {some, shift, factor, n_heads, n_blocks, block, n, by};
    head_shifts(c, AT(float, stats) + (ulong)head * (ulong)(2 * n_blocks), GIVEN(sinks) ? AT(float, sinks) + head : 0, scale);
    if (i < n)
        combine_scores(c, AT(float, scores) + (ulong)head * score_stride + (ulong)i, score_stride);
}

/* Scores of n slots -> of units of `unit` slots, in their place: the highest of each. n 0: nothing. */
static void pool_units(GLOBAL float *x, int n, int unit)
{
    int base = 0;
    do {
        const int u = base + THREAD;
        float most = -INFINITY;
        for (int i = u * unit; i < (u + 1) * unit && i < n; i++)
            most = x[i] > most ? x[i] : most;
        BARRIER();
        if (u * unit < n)
            x[u] = most;
        BARRIER();
        base += THREADS;
    } while (base * unit < n);
}

/* Floats as integers of the same order; NaN is the lowest, and -0 equals 0. */
static uint sortable(float f)
{
    const uint u = FLOAT_TO_BITS(f + 0.0f);
    return f != f ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k-th highest key of x[first .. end), or where an order is given of x[order[first]] and so on: the bound; k may be 0.
 * Returns how many keys that equal it are among the k. Four passes, each of which finds eight bits by a histogram of the keys
 * that begin with those found before. A thread reads 16 keys at a time, and counts neighbours of one bucket together: the first
 * bits of most scores are equal. shared[256 + SCAN_INTS]. */
static int kth_highest(LOCAL int *shared, LOCAL uint *found, const GLOBAL float *x, const GLOBAL uint *order, int first, int end,
                       int k, uint *bound)
{
    uint prefix = 0, mask = 0;
    int need = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int bucket = 0, count = 0, total;
        for (int i = THREAD; i < 256; i += THREADS)
            shared[i] = 0;
        BARRIER();
        for (int i = first + THREAD; i < end; i += 16 * THREADS) {
            float some[16];
            for (int j = 0; j < 16; j++) {
                const int at = i + j * THREADS < end ? i + j * THREADS : i;
                some[j] = x[order ? order[at] : (uint)at];
            }
            for (int j = 0; j < 16; j++) {
                const uint key = sortable(some[j]);
                const int own = (int)(key >> shift & 255);
                if ((key & mask) != prefix || i + j * THREADS >= end)
                    continue;
                if (own != bucket && count > 0) {
                    ATOMIC_ADD(&shared[bucket], count);
                    count = 0;
                }
                bucket = own;
                count++;
            }
        }
        if (count > 0)
            ATOMIC_ADD(&shared[bucket], count);
        BARRIER();
        /* A thread has two buckets; `before`: keys of higher ones. The lowest bucket has the rest, of which there are 0 for k 0. */
        const int high = 255 - 2 * THREAD, n_high = shared[high], n_low = shared[high - 1];
        const int before = group_scan(shared + 256, n_high + n_low, &total);
        if (before < need && need <= before + n_high) {
            found[0] = (uint)high;
            found[1] = (uint)(need - before);
        } else if ((before + n_high < need && need <= before + n_high + n_low) || (THREAD == THREADS - 1 && total < need)) {
            found[0] = (uint)(high - 1);
            found[1] = (uint)(need - before - n_high);
        } else if (need <= 0 && THREAD == 0) {
            found[0] = 255;
            found[1] = 0;
        }
        BARRIER();
        prefix |= found[0] << shift;
        mask |= 255u << shift;
        need = (int)found[1];
        BARRIER();
    }
    *bound = prefix;
    return need;
}

/* What a list's choice is made of (struct butler_choice) and where it goes. */
struct choice {
    int n_units, budget, first, last; /* as in backend.h */
    int unit, n;                      /* slots of a unit, of the KV head */
};

/* The ids of x's chosen units as slots, ascending; the units noted, a bit each. Returns the number of slots. Ties go to the lower
 * index. A thread has eight neighbours at a time; shared as above. */
static int choose(LOCAL int *shared, LOCAL uint *few, const GLOBAL float *x, struct choice c, GLOBAL uint *slots,
                  GLOBAL uint *noted)
{
    const int all = c.budget >= c.n_units || c.first + c.last >= c.n_units;
    const int k = !all && c.budget - c.first - c.last > 0 ? c.budget - c.first - c.last : 0, end = c.n_units - c.last;
    uint bound;
    const int n_bytes = (c.n_units + 63) / 64 * 8;
    const int n_equal = kth_highest(shared, few, x, 0, c.first, k > 0 ? end : 0, k, &bound);
    int n_above = 0, n_ties = 0, base = 0, total;
    do {
        const int u = base + 8 * THREAD;
        uint above = 0, ties = 0;
        float some[8];
        for (int i = 0; i < 8; i++)
            some[i] = x[u + i < c.n_units && k > 0 ? u + i : 0];
        for (int i = 0; i < 8; i++) {
            const int scored = u + i >= c.first && u + i < end;
            const uint key = sortable(some[i]);
            above |= (uint)(u + i < c.n_units && (all || !scored || (k > 0 && key > bound))) << i;
            ties |= (uint)(u + i < end && scored && k > 0 && key == bound && !all) << i;
        }
        int own_above = 0, own_ties = 0;
        for (int i = 0; i < 8; i++) {
            own_above += (int)(above >> i & 1);
            own_ties += (int)(ties >> i & 1);
        }
        const int before = group_scan(shared, own_above | own_ties << 16, &total);
        int rank = n_ties + (before >> 16), place = n_above + (before & 0xffff) + (rank < n_equal ? rank : n_equal);
        for (int i = 0; i < 8; i++) {
            const int tie = (int)(ties >> i & 1);
            above |= (uint)(tie && rank < n_equal) << i;
            rank += tie;
            if (above >> i & 1) {
                for (int j = 0; j < c.unit && (u + i) * c.unit + j < c.n; j++)
                    slots[place * c.unit + j] = (uint)((u + i) * c.unit + j);
                place++;
            }
        }
        if (u / 8 < n_bytes)
            ((GLOBAL uchar *)noted)[u / 8] = (uchar)above;
        if (c.n_units - 1 - u >= 0 && c.n_units - 1 - u < 8)
            few[0] = above >> (c.n_units - 1 - u) & 1;
        n_above += total & 0xffff;
        n_ties += total >> 16;
        base += 8 * THREADS;
    } while (base / 8 < n_bytes);
    BARRIER();
    return (n_above + (n_ties < n_equal ? n_ties : n_equal)) * c.unit - (few[0] ? c.n_units * c.unit - c.n : 0);
}

/* Scores of a list, of which its n_heads query heads have the first one's row -> the list. pool: a unit has the highest of its
 * slots' scores; else it has one score. Groups: n_lists. */
KERNEL choose_units(BUFFER(scores), BUFFER(slots), BUFFER(counts), BUFFER(noted), ulong score_stride, ulong list_stride,
                    ulong noted_stride, int n_heads, int n_units, int budget, int first, int last, int unit, int n, int pool)
{
    SHARED int ints[256 + SCAN_INTS];
    SHARED uint few[2];
    const struct choice c = {n_units, budget, first, last, unit, n};
    const int list = GROUP(0);
    GLOBAL float *row = AT(float, scores) + (ulong)(list * n_heads) * score_stride;
    pool_units(row, pool ? n : 0, unit);
    const int count =
        choose(ints, few, row, c, AT(uint, slots) + (ulong)list * list_stride, AT(uint, noted) + (ulong)list * noted_stride);
    if (THREAD == 0)
        AT(int, counts)[list] = count;
}

/* The list of an earlier step and the units from `fresh` on. Groups: n_lists. */
KERNEL repeat(BUFFER(slots), BUFFER(counts), BUFFER(noted), ulong list_stride, ulong noted_stride, int fresh, int unit, int n)
{
    SHARED int shared[SCAN_INTS];
    const int n_units = (n + unit - 1) / unit, list = GROUP(0);
    GLOBAL uint *bits = AT(uint, noted) + (ulong)list * noted_stride, *to = AT(uint, slots) + (ulong)list * list_stride;
    int n_slots = 0, total;
    for (int u = fresh + THREAD * 32 - fresh % 32; u < n_units; u += THREADS * 32) /* a word a thread */
        for (int i = u < fresh ? fresh : u; i < u + 32 && i < n_units; i++)
            bits[u / 32] |= 1u << i % 32;
    BARRIER();
    for (int base = 0; base < n_units; base += THREADS) {
        const int u = base + THREAD, own = u < n_units && bits[u / 32] >> u % 32 & 1;
        const int m = !own ? 0 : n - u * unit < unit ? n - u * unit : unit;
        const int place = n_slots + group_scan(shared, m, &total);
        n_slots += total;
        for (int i = 0; i < m; i++)
            to[place + i] = (uint)(u * unit + i);
    }
    if (THREAD == 0)
        AT(int, counts)[list] = n_slots;
}
