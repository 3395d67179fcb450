/* TinyServe's Algorithm 1 (arXiv 2509.12211) in one launch: a group of threads does all of a KV head's step. It has the same bits
 * as the kernels of cache.cl one after the other, whose functions it calls. */

/* Appends k, v [n_kv_heads][dim] as slot n - 1, bounds the pages from `stale` on, at least the last, scores all pages for the
 * head's `group` query heads, chooses some (struct choice), gathers and attends. scores, slots, counts, noted, partial are left as
 * by score_pages, choose_units and attend; out[n_heads][dim]. Groups: n_kv_heads. */
KERNEL retrieve_pages(BUFFER(out), BUFFER(q), BUFFER(k), BUFFER(v), BUFFER(pool), BUFFER(table), BUFFER(records), BUFFER(scores),
                      BUFFER(slots), BUFFER(counts), BUFFER(noted), BUFFER(sinks), BUFFER(partial), BUFFER(shifts),
                      ulong records_stride, ulong score_stride, ulong list_stride, ulong noted_stride, int table_stride, ROWS,
                      int group, int n, int stale, int page, int budget, int first, int last, float scale, float softcap,
                      float deviation, int by_max, int mean, int n_slices)
{
    SHARED float queries[MOST_HEADS * MOST_DIM];
    SHARED float weights[MOST_HEADS * SLICE];
    SHARED float some[THREADS];
    SHARED uint rows[SLICE];
    SHARED int ints[256];
    SHARED uint few[THREADS / 32];
    const struct attending g = {queries, weights, some, rows};
    const struct attention a = {ROWS_GIVEN, group, 1 / sqrt((float)dim), softcap};
    const int head = GROUP(0), n_pages = (n + page - 1) / page;
    const struct choice c = {n_pages, budget, first, last, page, n};
    const GLOBAL uint *own = AT(uint, table) + head * table_stride;
    const GLOBAL float *own_q = AT(float, q) + head * group * dim;
    const GLOBAL float *shift = SHIFT_OF(head), *own_sinks = GIVEN(sinks) ? AT(float, sinks) + head * group : 0;
    GLOBAL uchar *record = AT(uchar, records) + (ulong)head * records_stride;
    GLOBAL uchar *row = AT(uchar, pool) + (ulong)row_at(a.rows, own, (uint)(n - 1)) * (ulong)(2 * row_bytes);
    GLOBAL float *score = AT(float, scores) + (ulong)(head * group) * score_stride;
    GLOBAL uint *list = AT(uint, slots) + (ulong)head * list_stride;
    const ulong slice_floats = (ulong)(dim + 2), head_floats = slice_floats * (ulong)n_slices;
    GLOBAL float *sums = AT(float, partial) + (ulong)(head * group) * head_floats;

    append_row(a.rows, queries, row, AT(float, k) + head * dim, AT(float, v) + head * dim, shift);
    int p = stale;
    do
        bound_page(a.rows, queries, record, AT(uchar, pool), own, shift, page, p, n, deviation);
    while (++p < n_pages);
    BARRIER();
    for (int h = 0; h < group; h++)
        for (p = THREAD; p < n_pages; p += THREADS)
            score[(ulong)h * score_stride + (ulong)p] =
                score_page(record + (ulong)p * (ulong)(4 * dim), own_q + h * dim, dim, by_max);
    BARRIER();
    reduce_rows(some, score, score_stride, own_sinks, group, n_pages, scale, mean);
    const int count = choose(ints, few, score, c, list, AT(uint, noted) + (ulong)head * noted_stride);
    if (THREAD == 0)
        AT(int, counts)[head] = count;
    load_queries(g, a, own_q);
    int i = 0;
    do {
        attend_slice(g, a, AT(uchar, pool), own, list + i * SLICE, 0, count - i * SLICE < SLICE ? count - i * SLICE : SLICE,
                     sums + (ulong)i * slice_floats, head_floats);
    } while (++i * SLICE < count);
    for (int h = 0; h < group; h++)
        merge_slices(sums + (ulong)h * head_floats, (count + SLICE - 1) / SLICE, dim, own_sinks ? own_sinks[h] : -INFINITY,
                     AT(float, out) + (head * group + h) * dim);
}
