/* TinyServe's Algorithm 1 (arXiv 2509.12211) in one launch: a group of threads does all of a KV head's step. It calls the functions
 * of the kernels that do the same one after the other, so the results have the same bits. For devices that have few processors. */

/* Appends k, v [n_kv_heads][dim] as slot n - 1, bounds the pages from `stale` on, at least the last, scores all pages for the
 * head's `group` query heads, chooses some (struct choice), gathers and attends: out[n_heads][dim]. scores, slots, counts, noted
 * are left as by score_pages, combine_rows and choose_units; partial as by attend, but first it has the scores' stats. Groups:
 * n_kv_heads. */
LARGE_KERNEL retrieve_pages(BUFFER(out), BUFFER(q), BUFFER(k), BUFFER(v), BUFFER(pool), BUFFER(table), BUFFER(shifts),
                            BUFFER(records), BUFFER(scores), BUFFER(slots), BUFFER(counts), BUFFER(noted), BUFFER(sinks),
                            BUFFER(partial), ulong records_stride, ulong score_stride, ulong list_stride, ulong noted_stride,
                            int table_stride, ROWS, int group, int n, int stale, int page, int budget, int first, int last,
                            float scale, float softcap, float deviation, int by_max, int by, int n_slices)
{
    SHARED float4 shared_q[QUERY_FLOATS / 4];
    SHARED float4 shared_s[MOST_HEADS * SLICE / 4];
    SHARED float4 shared_part[MOST_HEADS * BATCH * KEY_LANES / 4];
    SHARED uint rows[256 + SCAN_INTS];
    SHARED uint few[2];
    const int kv_head = GROUP(0), head = kv_head * group, n_pages = (n + page - 1) / page, n_blocks = (n_pages + PAGES - 1) / PAGES;
    const ulong slice_floats = (ulong)PARTIAL_FLOATS(dim), head_floats = slice_floats * (ulong)n_slices;
    const GLOBAL float *own_sinks = GIVEN(sinks) ? AT(float, sinks) + head : 0;
    GLOBAL float *sums = AT(float, partial) + (ulong)head * head_floats;
    GLOBAL uint *list = AT(uint, slots) + (ulong)kv_head * list_stride;
    /* An OpenCL device may have 32 KB for a group: the memory of attention serves before, while pages are scored and chosen. */
    LOCAL float *small = (LOCAL float *)shared_q, *some = small + MOST_HEADS * (PAGES + 2);
    const struct page_space space = {(LOCAL float *)shared_part, (LOCAL float *)shared_s, small, some};
    const struct paging p = {ROWS_GIVEN, group, n, stale, page, by_max, by, deviation, scale};
    const struct paged_head h = {AT(float, scores) + (ulong)head * score_stride,
                                 group > 1 ? sums : 0,
                                 AT(float, q) + head * dim,
                                 AT(float, k) + kv_head * dim,
                                 AT(float, v) + kv_head * dim,
                                 SHIFT_OF(kv_head),
                                 AT(uchar, records) + (ulong)kv_head * records_stride,
                                 AT(uchar, pool),
                                 AT(uint, table) + kv_head * table_stride,
                                 score_stride};
    const struct combining c = {some, small, small + MOST_HEADS, group, n_blocks, PAGES, n_pages, by};
    const struct choice choice = {n_pages, budget, first, last, page, n};
    const struct attention a = {p.rows, group, 1 / sqrt((float)dim), softcap};
    const struct attending g = {shared_q, shared_s, shared_part, (LOCAL float *)(rows + SLICE), rows};

    int i = 0;
    do {
        score_page_block(space, p, h, i);
        BARRIER();
    } while (++i < n_blocks);
    if (group > 1) {
        head_shifts(c, h.stats, own_sinks, scale);
        for (i = THREAD; i < n_pages; i += THREADS)
            combine_scores(c, h.scores + i, score_stride);
        BARRIER();
    }
    const int count = choose((LOCAL int *)rows, few, h.scores, choice, list, AT(uint, noted) + (ulong)kv_head * noted_stride);
    BARRIER();
    if (THREAD == 0)
        AT(int, counts)[kv_head] = count;
    load_queries((LOCAL float *)g.q, a, h.q);
    i = 0;
    do {
        attend_slice(g, a, AT(uchar, pool), h.table, list + i * SLICE, 0, count - i * SLICE < SLICE ? count - i * SLICE : SLICE,
                     sums + (ulong)i * slice_floats, head_floats);
    } while (++i * SLICE < count);
    for (int j = 0; j < group; j++)
        merge_slices(shared_part, sums + (ulong)j * head_floats, (count + SLICE - 1) / SLICE, dim,
                     own_sinks ? own_sinks[j] : -INFINITY, AT(float, out) + (head + j) * dim);
}
