/* Pages in host memory: a device that has copies of a few of them computes what one does that has them all. Part of gpu_tests.h. */
#ifndef GPU_HOST_TESTS_H
#define GPU_HOST_TESTS_H

#include "engine/pages.h"
#include "gpu/gpu.h"

/* A layer of 128 tokens has 16 pages: as many as there are copies, the fewest that are allowed. */
enum {
    HOST_LAYERS = 4,
    HOST_LONG = GPU_FEW ? 36 : 120,
    HOST_STEPS = GPU_FEW ? 2 : 4,
    HOST_DIM = 32,
    HOST_PAGE = 16 * 2 * 2 * HOST_DIM, /* bytes of F16 */
};

/* Bytes that go to the device, and beside its work. */
static uint64_t uploaded, uploaded_aside;
static int count_upload(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    uploaded += n;
    return GPU_DRIVER.upload(gpu, to, at, host, n);
}

static int count_upload_aside(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    uploaded_aside += n;
    return GPU_DRIVER.upload_aside(gpu, to, at, host, n);
}

static struct butler_engine *host_engine(uint64_t kv_ram, struct butler_error *err)
{
    static struct butler_gpu_driver counting;
    struct tiny tiny = tiny_default;
    tiny.n_layers = HOST_LAYERS;
    tiny.head_dim = HOST_DIM;
    tiny.n_heads = GPU_FEW ? 2 : 4;
    tiny_write(tiny_path("host.gguf"), &tiny);
    const struct butler_engine_params params = {
        BUTLER_INIT(butler_engine_params), .n_threads = 1, .n_block = 64, .kv_bytes = 1 << 22, .kv_ram = kv_ram,
        .device = GPU_DEVICE ":0"};
    struct butler_model *model = butler_model_load(tiny_path("host.gguf"), NULL, err);
    struct butler_engine *engine = model ? butler_engine_new(model, &params, err) : NULL;
    if (!engine)
        fail_msg("%s", err->message);
    if (with_predictors)
        attach_both(engine, false);
    counting = GPU_DRIVER;
    counting.upload = count_upload;
    counting.upload_aside = count_upload_aside;
    ((struct butler_gpu *)engine->backend)->driver = &counting;
    return engine;
}

static void read_long(struct butler_session *session, int n)
{
    struct butler_error err = {0};
    int32_t ids[128];
    for (int i = 0; i < n; i++)
        ids[i] = i * i % 39;
    if (butler_prefill(session, ids, n, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
}

static struct butler_stats stats_of(const struct butler_session *session)
{
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &stats);
    return stats;
}

static void lists_same(const struct butler_session *a, const struct butler_session *b)
{
    for (int layer = 0; layer < HOST_LAYERS; layer++)
        for (int head = 0; head < 2; head++) {
            int32_t ids[2][128];
            const int n = butler_last_selection(a, layer, head, ids[0], 128);
            assert_int_equal(butler_last_selection(b, layer, head, ids[1], 128), n);
            assert_memory_equal(ids[0], ids[1], (size_t)BUTLER_MAX(n, 0) * sizeof **ids);
        }
}

/* Lists and logits have the bits of all pages on the device. What a step brings there are the pages that its lists want and the
 * device lacks; bytes are counted where they leave. Some of what is brought ahead is wanted. */
static void host_same(struct butler_engine *all, struct butler_engine *few, const char *policy, enum butler_kv_type type,
                      bool whole, bool ahead)
{
    struct butler_error err = {0};
    struct butler_session *a = session_on(all, policy, type), *b = session_on(few, policy, type);
    const size_t page_bytes = 16 * 2 * butler_kv_row_bytes(type, HOST_DIM);
    const uint64_t cache = (uint64_t)BUTLER_CEIL_DIV(HOST_LONG, 16) * 2 * HOST_LAYERS * page_bytes;
    read_long(a, HOST_LONG);
    read_long(b, HOST_LONG);
    compare_logits(a, b, 40, 0, policy);
    uploaded_aside = 0;
    for (int step = 0; step < HOST_STEPS; step++) {
        const struct butler_stats before = stats_of(b);
        assert_int_equal(butler_step(a, 3 + step, &err), 0);
        uploaded = 0;
        assert_int_equal(butler_step(b, 3 + step, &err), 0);
        const struct butler_stats after = stats_of(b);
        const uint64_t bytes = after.disk_bytes - before.disk_bytes, fetched = after.pages_fetched - before.pages_fetched;
        compare_logits(a, b, 40, 0, policy);
        lists_same(a, b);
        assert_true(bytes >= fetched * page_bytes && bytes <= uploaded && uploaded < bytes + 4096);
        /* The pages of the new token are found when lists want them. Once it is known that steps want more than there is room for,
         * others are too. */
        const uint64_t found = after.pages_wanted - before.pages_wanted - fetched, appended = 2 * HOST_LAYERS;
        assert_true(step < 2 || whole || found > appended);
        if (!whole && uploaded >= cache * 2 / 3)
            fail_msg("%s: a step brings %llu bytes of %llu", policy, (unsigned long long)uploaded, (unsigned long long)cache);
    }
    const struct butler_stats stats = stats_of(b);
    assert_true(stats.pages_fetched > 0);
    assert_true(uploaded_aside >= stats.pages_prefetched * page_bytes &&
                uploaded_aside <= stats.pages_prefetched * (page_bytes + 24));
    assert_true(stats.pages_guessed <= stats.pages_prefetched && (stats.pages_guessed > 0) == ahead);
    assert_int_equal(stats_of(a).pages_wanted, 0);
    butler_session_free(a), butler_session_free(b);
}

static void test_host(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
        bool whole, ahead;
    } cases[] = {{"tokenbutler2:budget=32,on_top=0,sinks=0,recent=0,page=16", BUTLER_KV_F16, true, true},
                 {"quest:budget=32,dense=0", BUTLER_KV_F16, false, false},
                 {"fier:budget=32,dense=0,page=16", BUTLER_KV_Q8_0, false, false},
                 {"tinyserve:budget=32", BUTLER_KV_F16, false, false},
                 {"quest:budget=16,page=4,dense=0,share=query,every=3", BUTLER_KV_F16, true, false},
                 {"fier:budget=12,dense=1", BUTLER_KV_F16, true, false},
                 {"tokenbutler:budget=32", BUTLER_KV_F16, true, true},
                 {"full", BUTLER_KV_F16, true, false}};
    struct butler_error err = {0};
    begin(state);
    with_predictors = 1;
    struct butler_engine *all = host_engine(0, &err), *layer = host_engine(16 * HOST_PAGE, &err);
    with_predictors = 0;
    for (int c = 0; c < (GPU_FEW ? 1 : N(cases)); c++)
        host_same(all, layer, cases[c].policy, cases[c].type, cases[c].whole, cases[c].ahead);
    for (const struct butler_pages *pages = all->pages; pages; pages = pages->next) /* a predictor's own is small */
        assert_true(pages->spills ? pages->n_bytes > 1 << 21 : pages->n_bytes <= 1 << 20);
    free_engine(layer);
    if (GPU_FEW) {
        free_engine(all);
        return;
    }
    struct butler_engine *more = host_engine(48 * HOST_PAGE + 12345, &err), *clone = butler_engine_clone(more, 1, 0, &err);
    assert_non_null(clone);
    struct butler_session *a = session_on(more, "quest:budget=16,dense=0", BUTLER_KV_F16),
                          *b = session_on(clone, "quest:budget=16,dense=0", BUTLER_KV_F16);
    read_long(a, HOST_LONG), read_long(b, HOST_LONG);
    for (int step = 0; step < 4; step++)
        assert_int_equal(butler_step(a, step, &err) | butler_step(b, step, &err), 0);
    compare_logits(a, b, 40, 0, "a clone");
    /* The text's lists fit: some of what a step wants is there already. */
    assert_true(stats_of(a).pages_fetched < stats_of(a).pages_wanted && stats_of(b).pages_fetched == stats_of(a).pages_fetched);
    butler_session_free(a), butler_session_free(b);
    butler_engine_free(clone);
    free_engine(more), free_engine(all);
}

/* Sessions that share pages and write to their copies, one after the other and together; a file that one of them saved; a
 * text that goes back. */
static void test_host_sessions(void **state)
{
    const char *policy = "quest:budget=32,dense=0";
    const char *path = tiny_path("session");
    struct butler_error err = {0}, errs[2] = {{0}};
    struct butler_session *s[2][4]; /* all, few; the first, its fork, another text, the file's */
    struct butler_engine *engines[2];
    begin(state);
    for (int e = 0; e < 2; e++) {
        engines[e] = host_engine(e == 0 ? 0 : 16 * HOST_PAGE, &err);
        s[e][0] = session_on(engines[e], policy, BUTLER_KV_F16);
        s[e][2] = session_on(engines[e], policy, BUTLER_KV_F16);
        read_long(s[e][0], HOST_LONG - 10);
        read_long(s[e][2], HOST_LONG / 2);
        assert_non_null(s[e][1] = butler_session_fork(s[e][0], &err));
        assert_int_equal(butler_session_truncate(s[e][2], HOST_LONG / 2 - 3, &err), 0);
        for (int step = 0; step < 3; step++) {
            assert_int_equal(butler_step_batch(s[e], (const int32_t[]){5 + step, 9 - step}, 2, errs), 0);
            assert_int_equal(butler_step(s[e][2], 7, &err), 0);
        }
    }
    assert_int_equal(butler_session_save(s[1][1], path, &err), 0);
    for (int e = 0; e < 2; e++)
        assert_non_null(s[e][3] = butler_session_restore(engines[e], path, 0, &err));
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 2; e++)
            assert_int_equal(butler_step(s[e][i], 11, &err), 0);
    for (int i = 0; i < 4; i++) {
        compare_logits(s[0][i], s[1][i], 40, 0, "sessions that share pages");
        lists_same(s[0][i], s[1][i]);
    }
    compare_logits(s[0][1], s[1][3], 40, 0, "a file");
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engines[1], &info);
    assert_int_equal(info.kv_resident, 16 * HOST_PAGE);
    assert_true(info.kv_on_disk > 0 && info.kv_on_disk % HOST_PAGE == 0);
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 4; i++)
            butler_session_free(s[e][i]);
        butler_engine_get_info(engines[e], &info);
        assert_int_equal(info.kv_on_disk, 0);
    }
    /* What cannot be is named. */
    static const struct {
        const char *policy, *named;
        int n_ctx;
    } refusals[] = {{"h2o:budget=16", "attention", 128},
                    {"oracle:budget=16", "exact", 128},
                    {"random:budget=16", "random", 128},
                    {"streaming:budget=16", "recency", 128},
                    {"quest", "--kv-ram: 32768 bytes of keys and values in memory are too few", 512}};
    for (int i = 0; i < N(refusals); i++) {
        const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = refusals[i].n_ctx,
                                                     .policy = refusals[i].policy};
        assert_null(butler_session_new(engines[1], &params, &err));
        if (!strstr(err.message, refusals[i].named))
            fail_msg("%s: %s", refusals[i].policy, err.message);
    }
    free_engine(engines[0]), free_engine(engines[1]);
}

#endif
