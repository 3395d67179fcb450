/* What scores low leaves the cache for good. Slots have positions in the text, and an order: slots by ascending position. */

#define NOWHERE 0xffffffffu

/* Scores x[n_heads] of a slot, `stride` apart, as one: their mean, or the highest. */
static float combine(const GLOBAL float *x, ulong stride, int n_heads, int mean)
{
    float all = x[0];
    for (int h = 1; h < n_heads; h++)
        all = mean ? all + x[(ulong)h * stride] : fmax(all, x[(ulong)h * stride]);
    return mean ? all / (float)n_heads : all;
}

/* scores: of a KV head's query heads, reduced here to one row; NULL: first and last are all that stays. Lists the slots that do not
 * stay, ascending: of order[n] the first and the last stay, and those with the highest scores up to the budget, of equals the
 * earlier. Groups: n_kv_heads. */
KERNEL choose_leaving(BUFFER(leaving), BUFFER(counts), BUFFER(scores), BUFFER(order), ulong list_stride, ulong score_stride,
                      int table_stride, int group, int n, int budget, int first, int last, int mean)
{
    SHARED int ints[256 + SCAN_INTS];
    SHARED uint few[2];
    const int head = GROUP(0), k = GIVEN(scores) && budget > first + last ? budget - first - last : 0;
    const GLOBAL uint *slots = AT(uint, order) + head * table_stride;
    GLOBAL float *x = AT(float, scores) + (ulong)(head * group) * score_stride;
    GLOBAL uint *list = AT(uint, leaving) + (ulong)head * list_stride;
    uint bound;
    int n_ties = 0, n_leaving = 0, base = 0, total;
    for (int i = THREAD; i < n && k > 0; i += THREADS)
        x[i] = combine(x + i, score_stride, group, mean);
    BARRIER();
    const int n_equal = kth_highest(ints, few, x, slots, first, k > 0 ? n - last : 0, k, &bound);
    do { /* in the order of the text */
        const int i = base + THREAD, scored = i >= first && i < n - last && k > 0;
        const uint key = scored ? sortable(x[slots[i]]) : 0;
        const int tie = scored && key == bound;
        const int rank = n_ties + group_scan(ints, tie, &total);
        n_ties += total;
        if (i < n)
            list[slots[i]] = i < first || i >= n - last || (scored && key > bound) || (tie && rank < n_equal);
        base += THREADS;
    } while (base < n);
    BARRIER();
    base = 0;
    do { /* in the order of slots: what says that one stays becomes the list */
        const int slot = base + THREAD, leaves = slot < n && !list[slot];
        const int place = n_leaving + group_scan(ints, leaves, &total);
        if (leaves)
            list[place] = (uint)slot;
        n_leaving += total;
        BARRIER();
        base += THREADS;
    } while (base < n);
    if (THREAD == 0)
        AT(int, counts)[head] = n_leaving;
}

/* A row's key and value, its position and its record move to another slot. */
static void move_slot(GLOBAL uint *pool, const GLOBAL uint *table, GLOBAL int *positions, GLOBAL uint *records, int row_words,
                      int record_words, uint from, uint to)
{
    const GLOBAL uint *row = pool + (ulong)row_of(table, from) * (ulong)row_words;
    GLOBAL uint *new_row = pool + (ulong)row_of(table, to) * (ulong)row_words;
    for (int i = THREAD; i < row_words; i += THREADS)
        new_row[i] = row[i];
    for (int i = THREAD; i < record_words; i += THREADS)
        records[(ulong)to * (ulong)record_words + (ulong)i] = records[(ulong)from * (ulong)record_words + (ulong)i];
    if (THREAD == 0)
        positions[to] = positions[from];
}

/* Takes the slots of the lists out of heads with n slots: later ones move into the holes, ascending. scratch[n] for each head.
 * row_words: 4 bytes each, of a key and a value; record_words: of a slot's record, 0 where there is none. Groups: n_kv_heads. */
KERNEL compact(BUFFER(pool), BUFFER(table), BUFFER(positions), BUFFER(order), BUFFER(records), BUFFER(leaving), BUFFER(counts),
               BUFFER(scratch), ulong records_stride, ulong list_stride, ulong scratch_stride, int table_stride, int row_words,
               int record_words, int n)
{
    SHARED int shared[SCAN_INTS];
    const int head = GROUP(0), n_leaving = AT(int, counts)[head], n_left = n - n_leaving;
    const GLOBAL uint *list = AT(uint, leaving) + (ulong)head * list_stride, *own = AT(uint, table) + head * table_stride;
    GLOBAL uint *slots = AT(uint, order) + head * table_stride, *to = AT(uint, scratch) + (ulong)head * scratch_stride;
    int base = n_left, n_moved = 0, total;
    for (int i = THREAD; i < n; i += THREADS)
        to[i] = (uint)i;
    BARRIER();
    for (int i = THREAD; i < n_leaving; i += THREADS)
        to[list[i]] = NOWHERE;
    BARRIER();
    do {
        const int slot = base + THREAD, moves = slot < n && to[slot] != NOWHERE;
        const int place = n_moved + group_scan(shared, moves, &total);
        if (moves)
            to[slot] = list[place];
        n_moved += total;
        BARRIER();
        for (int from = base; from < base + THREADS && from < n; from++)
            if (to[from] != NOWHERE)
                move_slot(AT(uint, pool), own, AT(int, positions) + head * table_stride,
                          AT(uint, records) + (ulong)head * records_stride / 4, row_words, record_words, (uint)from, to[from]);
        base += THREADS;
    } while (base < n);
    base = n_moved = 0;
    do {
        const int i = base + THREAD;
        const uint slot = i < n ? to[slots[i]] : NOWHERE;
        const int place = n_moved + group_scan(shared, slot != NOWHERE, &total);
        if (slot != NOWHERE)
            slots[place] = slot;
        n_moved += total;
        BARRIER();
        base += THREADS;
    } while (base < n);
}

/* Adds the attention of rows [first, n_rows) of q, or its squares, to the sums of the slots that they see (metric attention): one
 * after the other, each behind a decay. partial is as merge left it; row t is that of slot own + t. Groups: blocks of THREADS slots
 * x n_heads. */
KERNEL observe(BUFFER(sums), BUFFER(q), BUFFER(partial), BUFFER(pool), BUFFER(table), ulong sums_stride, int table_stride,
               int n_heads, int group, ROWS, float softcap, float decay, int squares, int own, int first, int n_rows, int n_slices)
{
    SHARED float query[MOST_DIM];
    const struct attention a = {ROWS_GIVEN, 1, 1 / sqrt((float)dim), softcap};
    const int slot = GROUP(0) * THREADS + THREAD, head = GROUP(1), held = slot < own + n_rows;
    const uint row = held ? row_at(a.rows, AT(uint, table) + head / group * table_stride, (uint)slot) : 0;
    const GLOBAL uchar *key = AT(uchar, pool) + (ulong)row * (ulong)(2 * row_bytes);
    GLOBAL float *sum = AT(float, sums) + (ulong)(head / group) * sums_stride + (ulong)(held ? slot * group + head % group : 0);
    float all = held ? *sum : 0.0f;
    int t = first;
    do {
        const ulong at = (ulong)(t * n_heads + head);
        load_queries(query, a, AT(float, q) + at * (ulong)dim);
        if (slot <= own + t) {
            const GLOBAL float *total = AT(float, partial) + at * (ulong)n_slices * (ulong)PARTIAL_FLOATS(dim) + dim;
            float score = 0;
            for (int d = 0; d < dim; d++)
                score = fma(load_row(a.rows, key, d), query[d], score);
            const float capped = softcap > 0 ? softcap * tanh(score / softcap) : score;
            const float weight = exp(capped - total[0]) / total[1];
            all = all * decay + (squares ? weight * weight : weight);
        }
        BARRIER();
    } while (++t < n_rows);
    if (held)
        *sum = all;
}

/* scores[head][i] of query heads for n slots from their sums. Groups: blocks of THREADS slots x n_heads. */
KERNEL score_sums(BUFFER(scores), BUFFER(sums), ulong score_stride, ulong sums_stride, int group, int n, int squares)
{
    const int i = GROUP(0) * THREADS + THREAD, head = GROUP(1);
    if (i >= n)
        return;
    const float sum = AT(float, sums)[(ulong)(head / group) * sums_stride + (ulong)(i * group + head % group)];
    AT(float, scores)[(ulong)head * score_stride + (ulong)i] = squares ? sqrt(sum) : sum;
}
