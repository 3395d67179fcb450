/* Kernels of a device on the KV cache of one layer: rows appended, page bounds, scores, selection, attention (kernels.cl has the
 * others). Dense attention is attention over the list 0, 1, 2, ...; a prompt's tokens are each attended to as a decode step is. */

#define SLICE 256    /* tokens of a list that a group attends to; fixed, so that no result depends on what shares a launch */
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

/* A key and a value into a row of the pool. shift may be NULL. */
static void append_row(struct rows r, LOCAL float *x, GLOBAL uchar *row, const GLOBAL float *k, const GLOBAL float *v,
                       const GLOBAL float *shift)
{
    for (int d = THREAD; d < r.dim; d += THREADS)
        x[d] = k[d];
    hadamard(r, x, r.dim);
    for (int d = THREAD; d < r.dim && shift; d += THREADS)
        x[d] -= shift[d];
    BARRIER();
    store_row(r, row, x);
    BARRIER();
    for (int d = THREAD; d < r.dim; d += THREADS)
        x[d] = v[d];
    BARRIER();
    store_row(r, row + r.bytes, x);
    BARRIER();
}

/* The key of a slot as it was before its row was made, into x[dim], which the group shares. */
static void load_key(struct rows r, LOCAL float *x, const GLOBAL uchar *pool, const GLOBAL uint *table, const GLOBAL float *shift,
                     int slot)
{
    const GLOBAL uchar *key = pool + (ulong)row_at(r, table, (uint)slot) * (ulong)(2 * r.bytes);
    for (int d = THREAD; d < r.dim; d += THREADS)
        x[d] = load_row(r, key, d) + (shift ? shift[d] : 0.0f);
    hadamard(r, x, r.dim); /* its own inverse */
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

/* The record of page p of a KV head with n slots, from its stored keys: {half max[dim], half min[dim]}, or where deviation >= 0 in
 * their places mean + deviation standard deviations and mean - deviation standard deviations (metrics page_bounds, page_stats). */
static void bound_page(struct rows r, LOCAL float *x, GLOBAL uchar *records, const GLOBAL uchar *pool, const GLOBAL uint *table,
                       const GLOBAL float *shift, int page, int p, int n, float deviation)
{
    float max[MOST_DIM / THREADS], min[MOST_DIM / THREADS]; /* or the mean, and the sum of squares less the mean's */
    const int end = (p + 1) * page < n ? (p + 1) * page : n;
    GLOBAL uchar *record = records + (ulong)p * (ulong)(4 * r.dim);
    int slot = p * page;
    for (int i = 0; i < MOST_DIM / THREADS; i++) {
        max[i] = deviation < 0 ? -65504.0f : 0.0f;
        min[i] = deviation < 0 ? 65504.0f : 0.0f;
    }
    do {
        load_key(r, x, pool, table, shift, slot);
        for (int d = THREAD; d < r.dim; d += THREADS) {
            const float off = x[d] - max[d / THREADS];
            if (deviation < 0) {
                max[d / THREADS] = fmax(max[d / THREADS], x[d]);
                min[d / THREADS] = fmin(min[d / THREADS], x[d]);
            } else { /* Welford's sums: no digits are lost */
                max[d / THREADS] += off / (float)(slot + 1 - p * page);
                min[d / THREADS] += off * (x[d] - max[d / THREADS]);
            }
        }
        BARRIER();
    } while (++slot < end);
    for (int d = THREAD; d < r.dim; d += THREADS) {
        float high = max[d / THREADS], low = min[d / THREADS];
        if (deviation >= 0) {
            const float spread = deviation * sqrt(low / (float)(end - p * page));
            low = high - spread;
            high += spread;
        }
        STORE_HALF(record + 2 * d, fmax(fmin(high, 65504.0f), -65504.0f));
        STORE_HALF(record + 2 * (r.dim + d), fmax(fmin(low, 65504.0f), -65504.0f));
    }
}

/* Records of pages from `first` on. Groups: pages x n_kv_heads. */
KERNEL bound_pages(BUFFER(records), BUFFER(pool), BUFFER(table), BUFFER(shifts), ulong records_stride, int table_stride, ROWS,
                   int page, int first, int n, float deviation)
{
    SHARED float x[MOST_DIM];
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

/* The score of a page for q[dim]: the sum, or with by_max the highest, over d of max(q_d max_d, q_d min_d). */
static float score_page(const GLOBAL uchar *record, const GLOBAL float *q, int dim, int by_max)
{
    float score = by_max ? -INFINITY : 0.0f;
    for (int d = 0; d < dim; d++) {
        const float bound = fmax(q[d] * LOAD_HALF(record + 2 * d), q[d] * LOAD_HALF(record + 2 * (dim + d)));
        score = by_max ? fmax(score, bound) : score + bound;
    }
    return score;
}

/* scores[head][i] of query heads for pages. Groups: blocks of THREADS pages x n_heads; group: query heads of a KV head. */
KERNEL score_pages(BUFFER(scores), BUFFER(q), BUFFER(records), ulong score_stride, ulong records_stride, int dim, int group, int n,
                   int by_max)
{
    const int p = GROUP(0) * THREADS + THREAD, head = GROUP(1);
    if (p >= n)
        return;
    const GLOBAL uchar *record = AT(uchar, records) + (ulong)(head / group) * records_stride + (ulong)p * (ulong)(4 * dim);
    AT(float, scores)[(ulong)head * score_stride + (ulong)p] = score_page(record, AT(float, q) + head * dim, dim, by_max);
}

/* scores[head][i] = q . key, less q . shift, of slot first + i, or where an order is given (evict.cl) of order[first + i]. Groups:
 * blocks of THREADS slots x n_heads. */
KERNEL score_keys(BUFFER(scores), BUFFER(q), BUFFER(pool), BUFFER(table), BUFFER(order), ulong score_stride, int table_stride, ROWS,
                  int group, int first, int n)
{
    SHARED float x[MOST_DIM];
    const struct rows r = ROWS_GIVEN;
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1);
    for (int d = THREAD; d < dim; d += THREADS)
        x[d] = AT(float, q)[head * dim + d];
    hadamard(r, x, dim);
    if (i >= n)
        return;
    const GLOBAL uint *own = AT(uint, table) + head / group * table_stride;
    const uint slot = GIVEN(order) ? AT(uint, order)[head / group * table_stride + first + i] : (uint)(first + i);
    const GLOBAL uchar *key = AT(uchar, pool) + (ulong)row_at(r, own, slot) * (ulong)(2 * row_bytes);
    float score = 0;
    for (int d = 0; d < dim; d++)
        score = fma(x[d], load_row(r, key, d), score);
    AT(float, scores)[(ulong)head * score_stride + (ulong)i] = score;
}

/* ------------------------------------------------------------------------------------------------- selection */

/* What rows of query heads that share a list become, in bits: their mean, else their highest; standard scores, else logarithms of
 * their softmax. */
#define BY_MEAN 1
#define BY_ZSCORE 2

/* Rows of n_heads query heads -> the first of them, by BY_*: a softmax beside the head's learned sink, whose mean is the logarithm
 * of that of the shares. One row stays as it is. sinks may be NULL. */
static void reduce_rows(LOCAL float *shared, GLOBAL float *rows, ulong stride, const GLOBAL float *sinks, int n_heads, int n,
                        float scale, int by)
{
    float shift[MOST_HEADS];
    const int zscores = by & BY_ZSCORE, mean = by & BY_MEAN;
    int h = 0;
    if (n_heads == 1)
        n = 0;
    if (zscores)
        scale = 1;
    do {
        GLOBAL float *x = rows + (ulong)h * stride;
        float max = -INFINITY, sum = 0, squares = 0;
        for (int i = THREAD; i < n; i += THREADS)
            max = fmax(max, x[i]);
        max = group_max(shared, max) * scale;
        for (int i = THREAD; i < n; i += THREADS)
            sum += zscores ? x[i] - max : exp(x[i] * scale - max);
        sum = group_sum(shared, sum);
        const float middle = max + sum / (float)n;
        for (int i = THREAD; i < n && zscores; i += THREADS) {
            x[i] -= middle;
            squares = fma(x[i], x[i], squares);
        }
        squares = group_sum(shared, squares);
        for (int i = THREAD; i < n && zscores; i += THREADS)
            x[i] = squares > 0 ? x[i] / sqrt(squares / (float)n) : 0.0f;
        shift[h] = zscores ? 0.0f : max + log(sum);
        if (sinks && !zscores)
            shift[h] = fmax(shift[h], sinks[h]) + log(1 + exp(-fabs(shift[h] - sinks[h])));
    } while (++h < n_heads);
    for (int i = THREAD; i < n; i += THREADS) {
        float max = -INFINITY, sum = 0;
        for (h = 0; h < n_heads; h++)
            max = fmax(max, rows[(ulong)h * stride + (ulong)i] * scale - shift[h]);
        for (h = 0; h < n_heads && zscores && mean; h++)
            sum += rows[(ulong)h * stride + (ulong)i];
        if (mean && !zscores) { /* PoCL 6.0 with LLVM 18 aborts while it compiles this as one conditional expression */
            for (h = 0; h < n_heads; h++)
                sum += exp(rows[(ulong)h * stride + (ulong)i] * scale - shift[h] - max);
            max += log(sum / (float)n_heads);
        }
        rows[i] = zscores && mean ? sum / (float)n_heads : max;
    }
    BARRIER();
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

/* The k-th highest key of x[first .. end), or where an order is given of x[order[first]] and so on: the bound; k may be 0. Returns
 * how many keys that equal it are among the k. Four passes, each of which finds eight bits by a histogram of the keys that begin with
 * those found before. */
static int kth_highest(LOCAL int *histogram, LOCAL uint *found, const GLOBAL float *x, const GLOBAL uint *order, int first, int end,
                       int k, uint *bound)
{
    uint prefix = 0, mask = 0;
    int need = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = THREAD; i < 256; i += THREADS)
            histogram[i] = 0;
        BARRIER();
        for (int i = first + THREAD; i < end; i += THREADS) {
            const uint key = sortable(x[order ? order[i] : (uint)i]);
            if ((key & mask) == prefix)
                ATOMIC_ADD(&histogram[key >> shift & 255], 1);
        }
        BARRIER();
        if (THREAD == 0) {
            int bucket = 255;
            for (; bucket > 0 && histogram[bucket] < need; bucket--)
                need -= histogram[bucket];
            found[0] = (uint)bucket;
            found[1] = (uint)need;
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
 * index. */
static int choose(LOCAL int *shared, LOCAL uint *few, const GLOBAL float *x, struct choice c, GLOBAL uint *slots,
                  GLOBAL uint *noted)
{
    const int all = c.budget >= c.n_units || c.first + c.last >= c.n_units;
    const int k = !all && c.budget - c.first - c.last > 0 ? c.budget - c.first - c.last : 0, end = c.n_units - c.last;
    uint bound;
    const int n_words = (c.n_units + 63) / 64 * 2;
    const int n_equal = kth_highest(shared, few, x, 0, c.first, k > 0 ? end : 0, k, &bound);
    int n_chosen = 0, n_ties = 0, last_chosen = 0, base = 0;
    do {
        const int u = base + THREAD, scored = u >= c.first && u < end;
        const uint key = scored && u < c.n_units && k > 0 ? sortable(x[u]) : 0;
        int total, chosen = u < c.n_units && (all || !scored || (k > 0 && key > bound));
        const int tie = u < c.n_units && scored && k > 0 && key == bound;
        const int rank = n_ties + group_scan(shared, tie, &total);
        n_ties += total;
        chosen = chosen || (tie && rank < n_equal);
        shared[THREAD] = chosen;
        BARRIER();
        if (u % 32 == 0 && u / 32 < n_words) {
            uint word = 0;
            for (int i = 0; i < 32; i++)
                word |= (uint)shared[THREAD + i] << i;
            noted[u / 32] = word;
        }
        last_chosen = shared[(c.n_units - 1 - base) % THREADS];
        BARRIER();
        const int place = n_chosen + group_scan(shared, chosen, &total);
        n_chosen += total;
        for (int i = 0; i < c.unit && chosen; i++)
            if (u * c.unit + i < c.n)
                slots[place * c.unit + i] = (uint)(u * c.unit + i);
        BARRIER();
        base += THREADS;
    } while (base < c.n_units);
    return n_chosen * c.unit - (last_chosen ? c.n_units * c.unit - c.n : 0);
}

/* Scores of a list's n_heads query heads -> the list. pool: a unit has the highest of its slots' scores; else it has one score.
 * Groups: n_lists. */
KERNEL choose_units(BUFFER(scores), BUFFER(slots), BUFFER(counts), BUFFER(noted), BUFFER(sinks), ulong score_stride,
                    ulong list_stride, ulong noted_stride, int n_heads, int n_units, int budget, int first, int last, int unit,
                    int n, float scale, int by, int pool)
{
    SHARED float floats[THREADS];
    SHARED int ints[256];
    SHARED uint few[THREADS / 32];
    const struct choice c = {n_units, budget, first, last, unit, n};
    const int list = GROUP(0);
    GLOBAL float *rows = AT(float, scores) + (ulong)(list * n_heads) * score_stride;
    reduce_rows(floats, rows, score_stride, GIVEN(sinks) ? AT(float, sinks) + list * n_heads : 0, n_heads, pool ? n : n_units,
                scale, by);
    pool_units(rows, pool ? n : 0, unit);
    const int count =
        choose(ints, few, rows, c, AT(uint, slots) + (ulong)list * list_stride, AT(uint, noted) + (ulong)list * noted_stride);
    if (THREAD == 0)
        AT(int, counts)[list] = count;
}

/* The list of an earlier step and the units from `fresh` on. Groups: n_lists. */
KERNEL repeat(BUFFER(slots), BUFFER(counts), BUFFER(noted), ulong list_stride, ulong noted_stride, int fresh, int unit, int n)
{
    SHARED int shared[THREADS];
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

/* ------------------------------------------------------------------------------------------------- attention */

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
