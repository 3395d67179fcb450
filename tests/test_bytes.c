/* Reported bytes are what the kernels were asked to read: every kernel that reads cache rows or a metric's records is
 * wrapped in one that counts, and a decode step's report is compared with the count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "fixtures.h"
#include "random_predictor.h"
#include "engine/session.h"
#include "kernels/kernels.h"

static const struct butler_kernels *real;
static struct butler_kernels counting;
static uint64_t rows_read, scanned; /* cache rows in bytes; records in bytes */

static void add(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

static void qk_f16(float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, const void *const *rows, int n_rows, int n)
{
    add(&rows_read, (uint64_t)n_rows * butler_kv_row_bytes(BUTLER_KV_F16, n));
    real->qk[BUTLER_KV_F16](s, s_stride, q, q_stride, n_q, rows, n_rows, n);
}

static void av_f16(float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, const void *const *rows, int n_rows,
                   int n)
{
    add(&rows_read, (uint64_t)n_rows * butler_kv_row_bytes(BUTLER_KV_F16, n));
    real->av[BUTLER_KV_F16](acc, acc_stride, p, p_stride, n_q, rows, n_rows, n);
}

static void attend_f16(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)
{
    add(&rows_read, 2 * (uint64_t)pairs->n * butler_kv_row_bytes(BUTLER_KV_F16, n));
    real->attend[BUTLER_KV_F16](out, q, pairs, n);
}

static void load_f16(float *x, const void *row, int n)
{
    add(&rows_read, butler_kv_row_bytes(BUTLER_KV_F16, n));
    real->load_row[BUTLER_KV_F16](x, row, n);
}

static void page_bounds(float *s, size_t stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n)
{
    add(&scanned, (uint64_t)n_records * record_bytes);
    real->page_bounds(s, stride, q, n_q, records, record_bytes, n_records, n);
}

static void one_bit(float *s, size_t stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    add(&scanned, (uint64_t)n_records * record_bytes);
    real->one_bit(s, stride, q, n_q, records, record_bytes, n_records, n);
}

static void one_bit_bounds(float *s, size_t stride, const float *q, int n_q, const void *records, size_t record_bytes,
                           int n_records, int n)
{
    add(&scanned, (uint64_t)n_records * ((size_t)n * 3 + sizeof(float)));
    real->one_bit_bounds(s, stride, q, n_q, records, record_bytes, n_records, n);
}

static void keys8(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    add(&scanned, (uint64_t)records.n * (16 + 16 * (uint64_t)n)); /* of a record that may hold other heads' keys too */
    real->keys8(s, q, records, n);
}

static void keys4(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    add(&scanned, (uint64_t)records.n * (16 + 8 * (uint64_t)n));
    real->keys4(s, q, records, n);
}

static struct butler_engine *open_counting(void)
{
    char path[FIXTURE_PATH];
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_engine *engine = load_engine(path, 2, NULL);
    real = engine->backend->kernels;
    counting = *real;
    counting.qk[BUTLER_KV_F16] = qk_f16;
    counting.av[BUTLER_KV_F16] = av_f16;
    counting.attend[BUTLER_KV_F16] = attend_f16;
    counting.load_row[BUTLER_KV_F16] = load_f16;
    counting.page_bounds = page_bounds;
    counting.one_bit = one_bit;
    counting.one_bit_bounds = one_bit_bounds;
    counting.keys8 = keys8;
    counting.keys4 = keys4;
    engine->backend->kernels = &counting;
    attach_both(engine, true);
    return engine;
}

/* records_by_kernel: the metric reads its records through a kernel, so that they are counted too. */
static void check_bytes(struct butler_engine *engine, const char *policy, bool records_by_kernel)
{
    enum { N_PROMPT = 150, N_STEPS = 40 };
    struct butler_error err;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    int32_t text[N_PROMPT + N_STEPS];
    uint64_t random = 5;
    struct butler_session *session = butler_session_new(
        engine, &(struct butler_session_params){.n_ctx = N_PROMPT + N_STEPS, .kv_type = BUTLER_KV_F16, .policy = policy}, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    for (int i = 0; i < N_PROMPT + N_STEPS; i++)
        text[i] = (int32_t)(butler_random(&random) % 200);
    assert_int_equal(butler_prefill(session, text, N_PROMPT, NULL, NULL, &err), 0);
    butler_session_stats(session, &stats);
    assert_int_equal(stats.kv_bytes, 0); /* bytes are those of decode steps */
    rows_read = scanned = 0;
    for (int i = N_PROMPT; i < N_PROMPT + N_STEPS; i++)
        assert_int_equal(butler_step(session, text[i], &err), 0);
    butler_session_stats(session, &stats);
    if (records_by_kernel ? rows_read + scanned != stats.kv_bytes + stats.metric_bytes : rows_read != stats.kv_bytes)
        fail_msg("%s: kernels read %llu bytes of rows and %llu of records, reported are %llu and %llu", policy,
                 (unsigned long long)rows_read, (unsigned long long)scanned, (unsigned long long)stats.kv_bytes,
                 (unsigned long long)stats.metric_bytes);
    assert_true(rows_read > 0);
    if (session->policy.method != BUTLER_DENSE)
        assert_true(stats.kv_bytes < stats.full_kv_bytes);
    else
        assert_int_equal(stats.kv_bytes, stats.full_kv_bytes);
    butler_session_free(session);
}

static void test_bytes(void **state)
{
    struct butler_engine *engine = open_counting();
    (void)state;
    check_bytes(engine, "full", true);
    check_bytes(engine, "quest:budget=64,dense=1", true);
    check_bytes(engine, "quest:budget=64,dense=0,share=query", true);
    check_bytes(engine, "tinyserve:budget=48", true);
    check_bytes(engine, "fier:budget=32,dense=0", true);
    check_bytes(engine, "fier:budget=24,dense=0,scan=2", true);
    check_bytes(engine, "oracle:budget=20", true);
    check_bytes(engine, "oracle:mass=0.9", true);
    check_bytes(engine, "random:budget=20", true);
    check_bytes(engine, "streaming:budget=64", true);
    check_bytes(engine, "streaming:budget=64,rope=cache", true);
    check_bytes(engine, "tokenbutler:budget=32", true);
    check_bytes(engine, "tokenbutler2:budget=32,on_top=0,sinks=2,recent=2", true);
    check_bytes(engine, "tokenbutler2:budget=32,on_top=0,sinks=2,recent=2,keys=int8", true);
    check_bytes(engine, "tokenbutler2:budget=32,on_top=0,sinks=2,recent=2,group=max", true);
    check_bytes(engine, "layer0:budget=32", true);
    check_bytes(engine, "prevlayer:budget=32", true);
    check_bytes(engine, "h2o:budget=64", false);
    check_bytes(engine, "scissorhands:budget=64", false);
    check_bytes(engine, "tova:budget=64", false);
    check_bytes(engine, "softprune:ratio=0.5,min=20", false);
    check_bytes(engine, "snapkv:budget=64", false);
    free_engine(engine);
}

enum { N_CTX = 600, PROMPT = 300 };

static struct butler_session *open_session(struct butler_engine *engine, const char *policy, int32_t *text)
{
    struct butler_error err;
    uint64_t random = 9;
    struct butler_session *session =
        butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = policy}, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    for (int i = 0; i < N_CTX; i++)
        text[i] = (int32_t)(butler_random(&random) % 200);
    assert_int_equal(butler_prefill(session, text, PROMPT, NULL, NULL, &err), 0);
    return session;
}

/* Policies that only cut prompts observe only prompts: no memory and no bytes for it while decoding, and a second prompt is cut by
 * its own queries. */
static void what_only_prompts_need_is_given_back(void **state)
{
    static const char *const policies[] = {"snapkv:budget=64", "pyramidkv:budget=64", "h2o:budget=64,rolling=0"};
    char path[FIXTURE_PATH];
    int32_t text[N_CTX], ids[N_CTX], again[N_CTX];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_engine *engine = load_engine(path, 2, NULL);
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        struct butler_error err;
        struct butler_stats stats = {BUTLER_INIT(butler_stats)}, after = {BUTLER_INIT(butler_stats)};
        char saved[] = "/tmp/butler-records-XXXXXX";
        struct butler_session *session = open_session(engine, policies[i], text);
        butler_session_stats(session, &stats);
        assert_int_equal(stats.metric_memory, 0);
        assert_true(stats.metric_memory_peak >= (uint64_t)PROMPT * session->kv.record_bytes * (uint64_t)session->kv.n_kv_heads);
        for (int t = PROMPT; t < PROMPT + 20; t++)
            assert_int_equal(butler_step(session, text[t], &err), 0);
        butler_session_stats(session, &after);
        assert_int_equal(after.metric_memory, 0);
        assert_int_equal(after.metric_bytes, 0);
        assert_int_equal(close(mkstemp(saved)), 0);
        assert_int_equal(butler_session_save(session, saved, &err), 0);
        struct butler_session *restored = butler_session_restore(engine, saved, 0, &err),
                              *fork = butler_session_fork(session, &err);
        remove(saved);
        assert_non_null(restored);
        assert_non_null(fork);
        struct butler_session *const all[] = {session, restored, fork};
        for (int s = 0; s < 3; s++) {
            assert_int_equal(butler_prefill(all[s], text + PROMPT + 20, 100, NULL, NULL, &err), 0);
            const int n = butler_last_selection(all[s], 1, 0, s ? again : ids, N_CTX);
            assert_true(n > 0 && n < PROMPT);
            if (s > 0 && memcmp(ids, again, (size_t)n * sizeof *ids))
                fail_msg("%s: session %d holds other tokens after its second prompt", policies[i], s);
        }
        for (int s = 0; s < 3; s++)
            butler_session_free(all[s]);
    }
    free_engine(engine);
}

/* VATP's norms: four bytes a token held, read with its scores; one value a step is read to make one. */
static void norms_of_values_are_counted(void **state)
{
    char path[FIXTURE_PATH];
    int32_t text[N_CTX];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_model *model = butler_model_load(path, NULL, NULL);
    /* The prompt takes two passes, whatever the device prefers: in the second one layer after the other is cut. */
    struct butler_engine *engine = butler_engine_new(model, &(struct butler_engine_params){.n_threads = 2, .n_block = 256}, NULL);
    assert_non_null(engine);
    for (int i = 0; i < 2; i++) {
        struct butler_error err;
        struct butler_stats plain = {BUTLER_INIT(butler_stats)}, weighed = {BUTLER_INIT(butler_stats)};
        struct butler_session *without = open_session(engine, i ? "tova:budget=64,sinks=20" : "h2o:budget=64,sinks=20", text);
        struct butler_session *with = open_session(engine, i ? "tova+vatp:budget=64" : "h2o+vatp:budget=64", text);
        const uint64_t heads = (uint64_t)(with->shape.n_layers * with->shape.n_kv_heads);
        assert_int_equal(butler_step(without, text[PROMPT], &err), 0);
        assert_int_equal(butler_step(with, text[PROMPT], &err), 0);
        butler_session_stats(without, &plain);
        butler_session_stats(with, &weighed);
        assert_int_equal(weighed.metric_memory - plain.metric_memory, heads * 64 * 4);
        assert_int_equal(weighed.metric_bytes - plain.metric_bytes, heads * (64 * 4 + with->kv.row_bytes));
        assert_int_equal(weighed.metric_memory_peak - plain.metric_memory_peak,
                         4 * (uint64_t)with->shape.n_kv_heads *
                             (PROMPT + (uint64_t)(engine->n_block * (with->shape.n_layers - 1))));
        butler_session_free(without);
        butler_session_free(with);
    }
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(what_only_prompts_need_is_given_back),
        cmocka_unit_test(norms_of_values_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
