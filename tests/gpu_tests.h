/* A device against the CPU: every operation on rows, and what sessions compute. Skipped, saying so, where there is no
 * device. Includers say which driver it is by GPU_DRIVER and GPU_DEVICE, the name of its devices, and GPU_FEW (1: it is slow, so
 * that it gets a part of the cases), and call run_gpu_tests(). */
#ifndef GPU_TESTS_H
#define GPU_TESTS_H

#include "fixtures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/select.h"
#include "cpu/backend_cpu.h"
#include "engine/engine.h"
#include "file/weight_types.h"
#include "gpu/gpu.h"
#include "gpu/opencl_api.h"
#include "metrics/registry.h"
#include "random_predictor.h"
#include "tiny_model.h"

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* Both backends, and arrays that each has in its own memory. */
enum { CPU, GPU, N_BACKENDS, ARRAYS = 8 };
struct both {
    struct butler_pool *pool;
    struct butler_backend *on[N_BACKENDS];
    float *arrays[N_BACKENDS][ARRAYS];
    size_t sizes[ARRAYS]; /* in numbers */
    int n;
    struct butler_workspace work;
    void *bound[64]; /* weights, which must outlive the backend */
    int n_bound;
};

static int setup(void **state)
{
    struct both *both = calloc(1, sizeof *both);
    struct butler_error err = {0};
    struct butler_gpu_info info;
    if (!both)
        return -1;
    *state = both;
    if (!butler_gpu_describe(&GPU_DRIVER, 0, &info, &err)) {
        print_message("skipped: %s\n", err.message);
        return 0;
    }
    print_message(GPU_DEVICE ":0: %s\n", info.name);
    both->pool = butler_pool_new(2, &err);
    both->on[CPU] = butler_backend_cpu(both->pool, NULL, &err);
    both->on[GPU] = butler_backend_gpu(both->pool, both->on[CPU]->kernels, &GPU_DRIVER, 0, NULL, &err);
    if (!both->on[GPU])
        print_message("%s\n", err.message);
    both->on[CPU]->activation_bits = 16;
    const struct butler_hparams hp = {.n_embd = 1280, .n_ff = 1280, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
    const struct butler_workspace_sizes sizes = {64, 64, 2, true, false};
    return both->on[GPU] && both->on[CPU]->make_workspace(both->on[CPU], &both->work, &hp, &sizes, &err) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    struct both *both = *state;
    if (both->pool) {
        butler_workspace_free(&both->work);
        butler_backend_free(both->on[CPU]);
        butler_backend_free(both->on[GPU]);
        butler_pool_free(both->pool);
    }
    for (int i = 0; i < both->n_bound; i++)
        free(both->bound[i]);
    free(both);
    return tiny_clean(state);
}

static struct both *begin(void **state)
{
    struct both *both = *state;
    if (!both->pool)
        skip();
    both->n = 0;
    return both;
}

/* Numbers between -1 and 1 in both memories; the array's index. */
static int array(struct both *both, size_t n, uint64_t seed)
{
    const int i = both->n++;
    float *host = malloc(n * sizeof *host);
    assert_non_null(host);
    for (size_t j = 0; j < n; j++)
        host[j] = (float)((double)butler_random(&seed) / 9223372036854775808.0 - 1);
    both->sizes[i] = n;
    for (int b = 0; b < N_BACKENDS; b++) {
        both->arrays[b][i] = both->on[b]->alloc(both->on[b], n * sizeof *host, true, NULL);
        assert_non_null(both->arrays[b][i]);
        both->on[b]->upload(both->on[b], both->arrays[b][i], host, n * sizeof *host);
    }
    free(host);
    return i;
}

/* Array i is the same in both, within `tolerance` of its largest number. */
static void compare_one(struct both *both, int i, double tolerance, const char *what)
{
    float *found[N_BACKENDS];
    double largest = 0, worst = 0;
    struct butler_error err = {0};
    for (int b = 0; b < N_BACKENDS; b++) {
        found[b] = malloc(both->sizes[i] * sizeof(float));
        assert_non_null(found[b]);
        both->on[b]->download(both->on[b], found[b], both->arrays[b][i], both->sizes[i] * sizeof(float));
    }
    if (butler_backend_check(both->on[GPU], &err) < 0)
        fail_msg("%s: %s", what, err.message);
    for (size_t j = 0; j < both->sizes[i]; j++) {
        largest = fmax(largest, fabs((double)found[CPU][j]));
        worst = fmax(worst, fabs((double)found[CPU][j] - (double)found[GPU][j]));
    }
    if (!(worst <= tolerance * largest))
        fail_msg("%s: differs by %g, largest %g", what, worst, largest);
    free(found[CPU]), free(found[GPU]);
}

/* The same; then all arrays are freed. */
static void compare(struct both *both, int i, double tolerance, const char *what)
{
    compare_one(both, i, tolerance, what);
    for (int b = 0; b < N_BACKENDS; b++)
        for (int a = 0; a < both->n; a++)
            both->on[b]->free(both->on[b], both->arrays[b][a], both->sizes[a] * sizeof(float));
    both->n = 0;
}

#define EACH(b, operation, ...) both->on[b]->operation(both->on[b], __VA_ARGS__)

/* Of the CPU's sums of floats, and of its 16-bit activations, which quantised weights meet. */
static double product_tolerance(enum butler_type type)
{
    return butler_types[type].block == 1 ? 1e-5 : 2e-4;
}

/* Every type, in rows of more blocks than a row has threads. */
static void test_products(void **state)
{
#define TYPE(type, ...) BUTLER_##type,
    static const enum butler_type types[] = {BUTLER_WEIGHT_TYPES(TYPE)};
#undef TYPE
    enum { ROWS = 6, COLS = 1280 };
    struct both *both = begin(state);
    uint64_t seed = 7;
    for (int t = 0; t < N(types); t++) {
        const char *name = butler_types[types[t]].name;
        const size_t row_bytes = butler_row_bytes(types[t], COLS);
        unsigned char *data = malloc(ROWS * row_bytes);
        float *bias = malloc(ROWS * sizeof *bias), row[COLS];
        assert_true(data && bias);
        for (int r = 0; r < ROWS; r++) {
            bias[r] = (float)r;
            for (int i = 0; i < COLS; i++)
                row[i] = (float)((double)butler_random(&seed) / 9223372036854775808.0 - 1);
            if (!butler_quantize_row(types[t], data + (size_t)r * row_bytes, row, COLS))
                tiny_random_row(types[t], data + (size_t)r * row_bytes, row, COLS, 0.5f, &seed);
        }
        const struct butler_weights bound[] = {{data, ROWS * row_bytes, types[t]}, {bias, ROWS * sizeof *bias, BUTLER_F32}};
        assert_int_equal(both->on[GPU]->bind_weights(both->on[GPU], bound, 2, NULL), 0);
        const struct butler_matrix w = {types[t], ROWS, COLS, row_bytes, data, bias};
        for (int n = 1; n <= 10; n += 9) {
            const int x = array(both, (size_t)n * COLS, 3), y = array(both, (size_t)n * ROWS, 4);
            for (int b = 0; b < N_BACKENDS; b++)
                EACH(b, matmul, &both->work, &(struct butler_product){both->arrays[b][y], &w}, 1, both->arrays[b][x], n);
            compare(both, y, product_tolerance(types[t]), name);
        }
        const int y = array(both, 3 * COLS, 5);
        const int32_t ids[] = {ROWS - 1, 0, 3};
        for (int b = 0; b < N_BACKENDS; b++)
            EACH(b, embed, both->arrays[b][y], &w, ids, 3);
        compare(both, y, 1e-6, name);
        both->bound[both->n_bound++] = data;
        both->bound[both->n_bound++] = bias;
    }
}

static void test_rows(void **state)
{
    enum { ROWS = 5, DIM = 200 };
    struct both *both = begin(state);
    static float weight[2 * DIM], bias[2 * DIM];
    for (int i = 0; i < 2 * DIM; i++) {
        weight[i] = (float)i / DIM;
        bias[i] = (float)(i % 7);
    }
    const struct butler_weights bound[] = {{weight, sizeof weight, BUTLER_F32}, {bias, sizeof bias, BUTLER_F32}};
    assert_int_equal(both->on[GPU]->bind_weights(both->on[GPU], bound, 2, NULL), 0);
    for (int kind = 0; kind < 2; kind++) {
        const struct butler_vector v = {weight, kind ? bias : NULL, 2};
        const int x = array(both, ROWS * DIM, 1);
        for (int b = 0; b < N_BACKENDS; b++)
            EACH(b, norm, both->arrays[b][x], both->arrays[b][x], &v, ROWS, DIM, (enum butler_norm)kind, 1e-5f);
        compare(both, x, 1e-5, "norm");
    }
    for (int kind = BUTLER_ROPE_ADJACENT; kind <= BUTLER_ROPE_HALVES; kind++) {
        const int x = array(both, ROWS * DIM, 1), c = array(both, ROWS * 8, 2), s = array(both, ROWS * 8, 3);
        for (int b = 0; b < N_BACKENDS; b++)
            EACH(b, rope, &(struct butler_rotation){both->arrays[b][x], 5}, 1,
                 &(struct butler_angles){both->arrays[b][c], both->arrays[b][s], DIM / 5, 16, (enum butler_rope)kind}, ROWS);
        compare(both, x, 1e-5, "rope");
    }
    for (int kind = BUTLER_SILU; kind <= BUTLER_SWIGLU_CLAMPED; kind++)
        for (int gated = kind == BUTLER_SWIGLU_CLAMPED; gated < 2; gated++) {
            const int up = array(both, ROWS * 2 * DIM, 1), gate = array(both, ROWS * DIM, 2);
            for (int b = 0; b < N_BACKENDS; b++)
                EACH(b, activate, both->arrays[b][up], 2 * DIM, gated ? both->arrays[b][gate] : NULL, ROWS, DIM,
                     (enum butler_activation)kind);
            compare(both, up, 1e-5, "activate");
        }
    const int x = array(both, ROWS * DIM, 1), y = array(both, ROWS * DIM, 2), rows[] = {1, 2, 4}, spread[] = {4, 0, 3};
    const float factors[] = {0.5f, -2, 3};
    for (int b = 0; b < N_BACKENDS; b++) {
        EACH(b, gather_rows, both->arrays[b][x], both->arrays[b][x], rows, 3, DIM);
        EACH(b, scatter_add, both->arrays[b][y], both->arrays[b][x], spread, factors, 3, DIM);
        EACH(b, add, both->arrays[b][y], both->arrays[b][x], ROWS * DIM);
        EACH(b, scale, both->arrays[b][y], 3, ROWS * DIM);
        EACH(b, softcap, both->arrays[b][y], 5, ROWS * DIM);
        EACH(b, copy, both->arrays[b][y] + DIM, both->arrays[b][x] + 2 * DIM, DIM * sizeof(float));
    }
    compare(both, y, 1e-5, "rows moved and added");
}

static void test_top(void **state)
{
    enum { ROWS = 20, DIM = 5000 }; /* parts of a row */
    struct both *both = begin(state);
    struct butler_top tops[N_BACKENDS][ROWS];
    const int x = array(both, ROWS * DIM, 9);
    const float odd[] = {NAN, 2, 2, 2, INFINITY};
    memset(tops, 0, sizeof tops);
    for (int b = 0; b < N_BACKENDS; b++) {
        EACH(b, upload, both->arrays[b][x] + 3 * DIM + 700, odd + 1, 3 * sizeof *odd);
        EACH(b, upload, both->arrays[b][x] + 3 * DIM + 4500, odd + 1, 2 * sizeof *odd);
        EACH(b, upload, both->arrays[b][x] + 5 * DIM + 4500, odd, sizeof odd);
        EACH(b, upload, both->arrays[b][x] + 5 * DIM + 300, odd, sizeof odd);
        EACH(b, finite_top_k, both->arrays[b][x], ROWS, DIM, 5, tops[b]);
    }
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(tops[GPU][r].not_finite, r == 5 ? 300 : -1);
        for (int k = 0; k < 5 && r != 5; k++) {
            assert_int_equal(tops[GPU][r].ids[k], tops[CPU][r].ids[k]);
            assert_true(tops[GPU][r].values[k] == tops[CPU][r].values[k]);
        }
    }
    for (int b = 0; b < N_BACKENDS; b++)
        EACH(b, zero_many, &(struct butler_piece){both->arrays[b][x], ROWS * DIM * sizeof(float)}, 1);
    compare(both, x, 0, "zeros");
}

/* The choice of a device from scores on it, ids and ties as the CPU makes it from the same. A list is a query head's own. */
static void select_same(struct both *both, int n_units, int unit, struct butler_choice choice, bool ties)
{
    enum { LISTS = 3 };
    struct butler_error err = {0};
    const int n_slots = n_units * unit - unit / 2, words = (n_slots + 63) / 64;
    const size_t stride = ((size_t)n_slots + 15) / 16 * 16;
    struct butler_backend *gpu = both->on[GPU];
    float *scores = malloc(LISTS * stride * sizeof *scores), *device = gpu->alloc(gpu, LISTS * stride * sizeof *scores, true, &err);
    uint32_t *slots = gpu->alloc(gpu, LISTS * stride * sizeof *slots, true, &err), *found = malloc(stride * sizeof *found);
    uint64_t *noted = gpu->alloc(gpu, LISTS * (size_t)words * sizeof *noted, true, &err), seed = 3;
    int *counts = gpu->alloc(gpu, LISTS * sizeof *counts, true, &err), n_found[LISTS];
    uint32_t *ids = malloc((size_t)n_units * sizeof *ids);
    float *scratch = malloc((size_t)n_units * sizeof *scratch);
    struct butler_kv kv = {.head_dim = 64, .n_kv_heads = LISTS};
    struct butler_workspace work = {.scores = device, .score_stride = stride};
    struct butler_selection selection = {.units = noted, .words = (size_t)words};
    struct butler_traffic traffic = {0};
    const struct butler_plan plan = {.unit = unit};
    const struct butler_layer_state state = {
        .plan = &plan, .kv = &kv, .work = &work, .selection = &selection, .traffic = &traffic, .n_heads = LISTS};
    const struct butler_selecting selecting = {.n = n_slots, .choice = choice};
    const struct butler_lists lists = {.n_lists = LISTS, .n = counts, .memory = slots, .stride = stride};
    assert_true(scores && found && ids && scratch && device && slots && noted && counts);
    for (size_t i = 0; i < LISTS * stride; i++) {
        const int random = (int)(butler_random(&seed) % 1000);
        scores[i] = ties ? (float)(random % 4 - 2) : random == 0 ? NAN : (float)random / 7 - 70;
    }
    gpu->upload(gpu, device, scores, LISTS * stride * sizeof *scores);
    gpu->select(gpu, &state, NULL, &selecting, &lists);
    gpu->download(gpu, n_found, counts, sizeof n_found);
    for (int list = 0; list < LISTS; list++) {
        const int n = butler_select_top(both->on[CPU]->kernels, scores + (size_t)list * stride, n_units, choice.budget,
                                        choice.first, choice.last, scratch, ids);
        int n_expected = 0;
        gpu->download(gpu, found, slots + (size_t)list * stride, (size_t)n_found[list] * sizeof *found);
        for (int i = 0; i < n; i++)
            for (int slot = (int)ids[i] * unit; slot < n_slots && slot < (int)(ids[i] + 1) * unit; slot++) {
                assert_true(n_expected < n_found[list]);
                assert_int_equal(found[n_expected++], slot);
            }
        assert_int_equal(n_expected, n_found[list]);
    }
    gpu->free(gpu, device, 0), gpu->free(gpu, slots, 0), gpu->free(gpu, noted, 0), gpu->free(gpu, counts, 0);
    free(scores), free(found), free(ids), free(scratch);
}

static void test_selection(void **state)
{
    struct both *both = begin(state);
    for (int ties = 0; ties < 2; ties++) {
        select_same(both, 1000, 1, (struct butler_choice){.n_units = 1000, .budget = 100, .first = 4, .last = 1}, ties);
        select_same(both, 301, 16, (struct butler_choice){.n_units = 301, .budget = 40, .first = 1, .last = 2}, ties);
        select_same(both, 40, 16, (struct butler_choice){.n_units = 40, .budget = 40, .first = 1, .last = 1}, ties);
        select_same(both, 130, 4, (struct butler_choice){.n_units = 130, .budget = 3, .first = 2, .last = 1}, ties);
    }
}

/* A layer's cache in the memory of a backend, of KV heads with an extent each. */
struct cache {
    struct butler_backend *backend;
    struct butler_kv kv;
    struct butler_kv_head heads[4]; /* of layer 0; layer 1 has the same, for metrics that layer 0 has not */
    struct butler_metric_shape shape;
    struct butler_traffic traffic;
};

enum { CACHE_SLOTS = 37, CACHE_PAGE = 16, CACHE_MOST = 64, CACHE_TABLE = 1 + 2 * CACHE_MOST, CACHE_RECORDS = 8192 };

static void make_cache(struct cache *cache, struct butler_backend *backend, enum butler_kv_type type, int dim, const float *shifts)
{
    static const uint32_t extents[] = {1, 0};
    struct butler_kv *kv = &cache->kv;
    memset(cache, 0, sizeof *cache);
    cache->backend = backend;
    cache->shape = (struct butler_metric_shape){.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = dim};
    *kv = (struct butler_kv){.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = dim, .type = type, .backend = backend};
    kv->kernels = backend->kernels;
    kv->row_bytes = butler_kv_row_bytes(type, dim);
    kv->extent_bytes = butler_kv_extent_bytes(type, dim);
    kv->heads = cache->heads;
    kv->pool = backend->alloc(backend, 2 * kv->extent_bytes, true, NULL);
    kv->hadamard = type == BUTLER_KV_Q8_0;
    kv->key_shifts = kv->hadamard ? shifts : NULL;
    kv->record_slots = CACHE_PAGE;
    kv->record_bytes = (size_t)dim * 4;
    kv->records_stride = CACHE_RECORDS;
    kv->records = backend->alloc(backend, 2 * kv->records_stride, true, NULL);
    uint32_t *tables = backend->alloc(backend, 2 * CACHE_TABLE * sizeof *tables, true, NULL); /* positions and order follow */
    assert_true(kv->pool && kv->records && tables);
    for (int h = 0; h < 2; h++) {
        cache->heads[h] = (struct butler_kv_head){
            .table = tables + h * CACHE_TABLE, .n_slots = CACHE_SLOTS, .records = kv->records + h * kv->records_stride};
        backend->upload(backend, cache->heads[h].table, &extents[h], sizeof extents[h]);
        cache->heads[2 + h] = cache->heads[h];
    }
}

static void free_cache(struct cache *cache)
{
    struct butler_backend *backend = cache->backend;
    backend->free(backend, cache->kv.pool, 2 * cache->kv.extent_bytes);
    backend->free(backend, cache->kv.records, 2 * cache->kv.records_stride);
    backend->free(backend, cache->heads[0].table, 2 * CACHE_TABLE * sizeof(uint32_t));
}

/* Rows and page bounds have the CPU's bytes, for every type; Q8_0 keys behind their transform and less their shifts. */
static void test_append(void **state)
{
    static const int dims[] = {64, 96, 128};
    static float shifts[2 * 128];
    struct both *both = begin(state);
    struct butler_plan plan = {.metric = &butler_metric_page_bounds, .values = {CACHE_PAGE}, .unit = CACHE_PAGE};
    for (int i = 0; i < N(shifts); i++)
        shifts[i] = (float)(i % 9) - 4;
    assert_int_equal(
        both->on[GPU]->bind_weights(both->on[GPU], &(struct butler_weights){shifts, sizeof shifts, BUTLER_F32}, 1, NULL), 0);
    for (int c = 0; c < BUTLER_N_KV_TYPES * N(dims) * 2; c += GPU_FEW ? 7 : 1) {
        const enum butler_kv_type type = (enum butler_kv_type)(c % BUTLER_N_KV_TYPES);
        const int dim = dims[c / BUTLER_N_KV_TYPES % N(dims)];
        const size_t n = (size_t)(CACHE_SLOTS * 2 * dim);
        const int k = array(both, n, 1), v = array(both, n, 2);
        struct cache caches[N_BACKENDS];
        unsigned char *found[N_BACKENDS];
        for (int b = 0; b < N_BACKENDS; b++) {
            struct cache *cache = &caches[b];
            struct butler_kv *kv = &cache->kv;
            make_cache(cache, both->on[b], type, dim, c < BUTLER_N_KV_TYPES * N(dims) ? NULL : shifts);
            const struct butler_layer_state layer = {
                .plan = &plan, .shape = &cache->shape, .kv = kv, .traffic = &cache->traffic, .n_heads = 2};
            EACH(b, append, &layer, both->arrays[b][k], both->arrays[b][v], CACHE_SLOTS);
            found[b] = malloc(2 * kv->extent_bytes + 2 * kv->records_stride);
            EACH(b, download, found[b], kv->pool, 2 * kv->extent_bytes);
            EACH(b, download, found[b] + 2 * kv->extent_bytes, kv->records, 2 * kv->records_stride);
        }
        const size_t used = CACHE_SLOTS * 2 * caches[CPU].kv.row_bytes, extent = caches[CPU].kv.extent_bytes;
        assert_memory_equal(found[CPU], found[GPU], used);
        assert_memory_equal(found[CPU] + extent, found[GPU] + extent, used);
        assert_memory_equal(found[CPU] + 2 * extent, found[GPU] + 2 * extent, 2 * caches[CPU].kv.records_stride);
        for (int b = 0; b < N_BACKENDS; b++) {
            free_cache(&caches[b]);
            free(found[b]);
        }
        compare(both, k, 0, "keys");
    }
}

/* ---------------------------------------------------------------------------------------------------- sessions */

static const char *const usual_model = "models/llama-gqa.gguf";
enum { N_PROMPT = GPU_FEW ? 40 : 90, N_STEPS = GPU_FEW ? 2 : 6, MOST_VOCAB = 1024 };
enum { FEW_LAYERS = GPU_FEW ? 1 : 2 }; /* of models whose heads are wide */

static const struct butler_metric *plugged; /* what every engine gets; or NULL */
static int with_predictors;                 /* engines get random ones: 1; 2: of version 1 with a key for each query head */

/* isa: of the CPU's kernels; NULL: the best. */
static struct butler_engine *engine_with(const char *path, const char *device, const char *isa, int n_block,
                                         struct butler_error *err)
{
    const struct butler_engine_params params = {BUTLER_INIT(butler_engine_params),
                                                .n_threads = 2,
                                                .n_block = n_block,
                                                .kv_bytes = 1 << 24,
                                                .activation_bits = 16,
                                                .isa = isa,
                                                .device = device};
    struct butler_model *model = butler_model_load(path, NULL, err);
    assert_non_null(model);
    struct butler_engine *engine = butler_engine_new(model, &params, err);
    if (!engine)
        butler_model_free(model);
    else if (plugged)
        assert_int_equal(butler_metric_register(engine, plugged, err), 0);
    else if (with_predictors)
        attach_both(engine, with_predictors == 2);
    return engine;
}

static struct butler_engine *engine_of(const char *path, const char *device, int n_block, struct butler_error *err)
{
    return engine_with(path, device, NULL, n_block, err);
}

static struct butler_engine *engine_on(const char *name, const char *device, int n_block, struct butler_error *err)
{
    char path[FIXTURE_PATH];
    fixture_path(path, name);
    return engine_of(path, device, n_block, err);
}

static struct butler_session *session_on(struct butler_engine *engine, const char *policy, enum butler_kv_type type)
{
    struct butler_error err = {0};
    struct butler_session *session = butler_session_new(
        engine,
        &(struct butler_session_params){BUTLER_INIT(butler_session_params), .n_ctx = 128, .kv_type = type, .policy = policy}, &err);
    if (!session)
        fail_msg("%s", err.message);
    return session;
}

static void read_prompt(struct butler_session *session, int n)
{
    struct butler_error err = {0};
    int32_t ids[N_PROMPT];
    for (int i = 0; i < n; i++)
        ids[i] = i * 37 % 40;
    if (butler_prefill(session, ids, n, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
}

/* Their logits are the same within `tolerance` of their range; exactly for 0. */
static void compare_logits(const struct butler_session *a, const struct butler_session *b, int n_vocab, double tolerance,
                           const char *what)
{
    const float *x = butler_logits(a), *y = butler_logits(b);
    double low = x[0], high = x[0], worst = 0;
    for (int i = 0; i < n_vocab; i++) {
        low = fmin(low, (double)x[i]);
        high = fmax(high, (double)x[i]);
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
    }
    if (!(worst <= tolerance * (high - low)))
        fail_msg("%s: logits differ by %g of %g", what, worst, high - low);
}

static int n_vocab_of(const struct butler_engine *engine)
{
    return butler_model_get_info(butler_engine_model(engine))->n_vocab;
}

/* A prompt and some steps give the CPU's logits, lists and numbers of bytes read. */
static void sessions_same(const char *model, const char *isa, const char *policy, enum butler_kv_type type, double tolerance)
{
    struct butler_error err = {0};
    struct butler_engine *engines[N_BACKENDS];
    struct butler_session *sessions[N_BACKENDS];
    for (int b = 0; b < N_BACKENDS; b++) {
        engines[b] = engine_with(model, b == GPU ? GPU_DEVICE ":0" : "cpu", b == CPU ? isa : NULL, 0, &err);
        if (!engines[b])
            fail_msg("%s", err.message);
        sessions[b] = session_on(engines[b], policy, type);
        read_prompt(sessions[b], N_PROMPT);
    }
    compare_logits(sessions[CPU], sessions[GPU], n_vocab_of(engines[CPU]), tolerance, model);
    for (int step = 0; step < N_STEPS; step++) {
        for (int b = 0; b < N_BACKENDS; b++)
            assert_int_equal(butler_step(sessions[b], 3 + step, &err), 0);
        compare_logits(sessions[CPU], sessions[GPU], n_vocab_of(engines[CPU]), tolerance, policy);
    }
    int32_t ids[N_BACKENDS][128];
    const int layer = butler_model_get_info(butler_engine_model(engines[CPU]))->n_layers - 1;
    const int n = butler_last_selection(sessions[CPU], layer, 0, ids[CPU], 128);
    const int n_gpu = butler_last_selection(sessions[GPU], layer, 0, ids[GPU], 128);
    if (n_gpu != n)
        fail_msg("%s: %d tokens selected, on the CPU %d", policy, n_gpu, n);
    assert_memory_equal(ids[CPU], ids[GPU], (size_t)(n > 0 ? n : 0) * sizeof ids[0][0]);
    struct butler_stats stats[N_BACKENDS] = {{BUTLER_INIT(butler_stats)}, {BUTLER_INIT(butler_stats)}};
    for (int b = 0; b < N_BACKENDS; b++)
        butler_session_stats(sessions[b], &stats[b]);
    if (stats[GPU].kv_bytes != stats[CPU].kv_bytes)
        fail_msg("%s: %llu bytes read, on the CPU %llu", policy, (unsigned long long)stats[GPU].kv_bytes,
                 (unsigned long long)stats[CPU].kv_bytes);
    for (int b = 0; b < N_BACKENDS; b++) {
        butler_session_free(sessions[b]);
        free_engine(engines[b]);
    }
}

static void test_logits(void **state)
{
    static const struct {
        const char *model, *policy;
        enum butler_kv_type type;
        double tolerance;
    } cases[] = {{"models/llama-gqa.gguf", "full", BUTLER_KV_F16, 1e-4},
                 {"models/llama-gqa.gguf", "quest:budget=32,dense=0", BUTLER_KV_F16, 1e-4},
                 {"models/llama-gqa.gguf", "quest:budget=32,dense=0,every=3,group=mean", BUTLER_KV_F32, 1e-4},
                 {"models/llama-gqa.gguf", "tinyserve:budget=32,bound=max,share=query", BUTLER_KV_F16, 1e-4},
                 {"models/llama-gqa.gguf", "oracle:budget=20", BUTLER_KV_F32, 1e-4},
                 {"models/gemma3.gguf", "full", BUTLER_KV_F32, 1e-4},
                 {"models/gpt-oss.gguf", "tinyserve:budget=32", BUTLER_KV_F32, 1e-4},
                 {"models/qwen2-mixed.gguf", "full", BUTLER_KV_F16, 2e-3},
                 {"models/qwen3.gguf", "full", BUTLER_KV_F32, 1e-4},
                 {"models/phi3-partial.gguf", "full", BUTLER_KV_F32, 1e-4}};
    begin(state);
    for (int c = 0; c < N(cases); c += GPU_FEW ? 6 : 1) {
        char path[FIXTURE_PATH];
        fixture_path(path, cases[c].model);
        sessions_same(path, NULL, cases[c].policy, cases[c].type, cases[c].tolerance);
    }
}

/* A model whose matrices have the types in turn. */
static void test_types(void **state)
{
    static const enum butler_type types[] = {BUTLER_Q2_K,  BUTLER_IQ4_XS, BUTLER_Q3_K, BUTLER_MXFP4,
                                             BUTLER_TQ1_0, BUTLER_IQ4_NL, BUTLER_TQ2_0};
    struct tiny tiny = tiny_default;
    begin(state);
    tiny.types = types;
    tiny.n_types = N(types);
    tiny.n_embd = tiny.n_ff = 256; /* a block of most of them */
    tiny.head_dim = 64;
    tiny.n_layers = 1;
    tiny_write(tiny_path("types.gguf"), &tiny);
    sessions_same(tiny_path("types.gguf"), NULL, "quest:budget=32,dense=0", BUTLER_KV_F16, 2e-3);
}

/* TinyServe's Algorithm 1, whose new row, bounds and scores are one launch, against the CPU and, bit for bit, against a launch
 * each, for query groups and heads that are not the usual ones. The counters prove which kernels ran. */
static void test_fused(void **state)
{
    static const int groups[] = {1, 4, 6, 7}, dims[] = {64, 128};
    static const enum butler_kv_type types[] = {BUTLER_KV_F16, BUTLER_KV_F32, BUTLER_KV_Q8_0};
    enum { ONE_LAUNCH, FUSED, CHAIN, ON_CPU, N_SESSIONS };
    static const char *const policies[N_SESSIONS] = {"tinyserve:budget=24,page=4", "tinyserve:budget=24,page=4",
                                                     "tinyserve:budget=24,page=4,fused=0", "tinyserve:budget=24,page=4"};
    struct butler_error err = {0};
    begin(state);
    for (int c = 0; c < N(groups) * N(dims); c += GPU_FEW ? 6 : 1) {
        struct tiny tiny = tiny_default;
        tiny.arch = c % 4 == 3 ? "qwen2" : "llama"; /* whose keys have biases */
        tiny.n_heads = 2 * groups[c / N(dims)];
        tiny.head_dim = dims[c % N(dims)];
        tiny.n_layers = FEW_LAYERS;
        tiny.seed = (uint64_t)c;
        const char *path = tiny_path("fused.gguf");
        tiny_write(path, &tiny);
        struct butler_engine *engines[N_BACKENDS] = {engine_of(path, "cpu", 0, &err), engine_of(path, GPU_DEVICE ":0", 0, &err)};
        const struct butler_backend *gpu = engines[GPU]->backend;
        int *processors = &((struct butler_gpu *)engines[GPU]->backend)->info.processors;
        for (int t = 0; t < N(types); t++) {
            if (GPU_FEW && t % 2 != c / 6)
                continue;
            struct butler_session *sessions[N_SESSIONS];
            int32_t ids[N_SESSIONS][N_PROMPT + N_STEPS];
            for (int i = 0; i < N_SESSIONS; i++) {
                static const char *const kernels[] = {"append", "bound_pages", "score_pages", "choose_units", "retrieve_pages"};
                uint64_t before[N(kernels)];
                sessions[i] = session_on(engines[i == ON_CPU ? CPU : GPU], policies[i], types[t]);
                read_prompt(sessions[i], N_PROMPT);
                for (int k = 0; k < N(kernels); k++)
                    before[k] = butler_gpu_launches(gpu, kernels[k]);
                *processors = i == ONE_LAUNCH ? 1 : 1000;
                for (int step = 0; step < N_STEPS; step++)
                    assert_int_equal(butler_step(sessions[i], 3 + step, &err), 0);
                for (int k = 0; k < N(kernels); k++) {
                    const bool launched = i == ONE_LAUNCH ? k == 4 : i == FUSED ? k == 2 || k == 3 : i == CHAIN && k < 4;
                    assert_int_equal(butler_gpu_launches(gpu, kernels[k]) - before[k], launched ? N_STEPS * tiny.n_layers : 0);
                }
            }
            compare_logits(sessions[ONE_LAUNCH], sessions[CHAIN], tiny.n_vocab, 0, "in one launch and one after the other");
            compare_logits(sessions[FUSED], sessions[CHAIN], tiny.n_vocab, 0, "fused and one after the other");
            compare_logits(sessions[FUSED], sessions[ON_CPU], tiny.n_vocab, types[t] == BUTLER_KV_Q8_0 ? 1e-3 : 1e-4,
                           "fused, and on the CPU");
            for (int layer = 0; layer < tiny.n_layers; layer++)
                for (int head = 0; head < 2; head++) {
                    int n[N_SESSIONS];
                    for (int i = 0; i < N_SESSIONS; i++)
                        n[i] = butler_last_selection(sessions[i], layer, head, ids[i], N(ids[i]));
                    assert_true(n[ON_CPU] > 0 && n[ON_CPU] <= 24);
                    for (int i = 0; i < ON_CPU; i++) {
                        assert_int_equal(n[i], n[ON_CPU]);
                        assert_memory_equal(ids[i], ids[ON_CPU], (size_t)n[i] * sizeof ids[i][0]);
                    }
                }
            for (int i = 0; i < N_SESSIONS; i++)
                butler_session_free(sessions[i]);
        }
        free_engine(engines[CPU]), free_engine(engines[GPU]);
    }
}

/* A prompt has the same bits in passes of 7 tokens and of all; a session that one device saved goes on on the other. */
static void passes_and_files(const char *model, const char *isa, const char *policy, enum butler_kv_type type, double tolerance)
{
    const char *path = tiny_path("session");
    struct butler_error err = {0};
    struct butler_engine *few = engine_of(model, GPU_DEVICE ":0", 7, &err), *all = engine_of(model, GPU_DEVICE ":0", 128, &err),
                         *cpu = engine_with(model, "cpu", isa, 0, &err);
    struct butler_session *a = session_on(few, policy, type), *b = session_on(all, policy, type);
    read_prompt(a, N_PROMPT);
    read_prompt(b, N_PROMPT);
    compare_logits(a, b, n_vocab_of(cpu), 0, "passes");
    assert_int_equal(butler_session_save(a, path, &err), 0);
    struct butler_session *c = butler_session_restore(cpu, path, 0, &err);
    if (!c)
        fail_msg("%s", err.message);
    assert_int_equal(butler_step(a, 5, &err) | butler_step(c, 5, &err), 0);
    compare_logits(a, c, n_vocab_of(cpu), tolerance, "restored on the CPU");
    assert_int_equal(butler_session_save(c, path, &err), 0);
    struct butler_session *d = butler_session_restore(all, path, 0, &err);
    if (!d)
        fail_msg("%s", err.message);
    assert_int_equal(butler_step(a, 6, &err) | butler_step(d, 6, &err), 0);
    compare_logits(a, d, n_vocab_of(cpu), tolerance, "restored on the device");
    butler_session_free(a), butler_session_free(b), butler_session_free(c), butler_session_free(d);
    free_engine(few), free_engine(all), free_engine(cpu);
}

static void test_passes_and_files(void **state)
{
    char path[FIXTURE_PATH];
    struct tiny tiny = tiny_default;
    begin(state);
    fixture_path(path, "models/llama-gqa.gguf");
    passes_and_files(path, NULL, "quest:budget=32,dense=0", BUTLER_KV_F16, 1e-4);
    tiny.arch = "qwen2";
    tiny.head_dim = 64;
    tiny.n_layers = FEW_LAYERS;
    tiny_write(tiny_path("files.gguf"), &tiny);
    passes_and_files(tiny_path("files.gguf"), NULL, "quest:budget=32,dense=0", BUTLER_KV_Q8_0, 1e-3);
}

/* What sessions compute is the same alone, in a batch with others, and in another order. */
static void test_batch(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
        int n_prompt;
    } cases[] = {{"full", BUTLER_KV_F16, N_PROMPT},
                 {"quest:budget=16,page=4,dense=0,every=2", BUTLER_KV_F32, N_PROMPT - 3},
                 {"tinyserve:budget=16,page=4", BUTLER_KV_F16, 5}};
    struct butler_error errs[N(cases)] = {{0}};
    struct butler_session *alone[N(cases)], *together[N(cases)];
    begin(state);
    struct butler_engine *engine = engine_on("models/llama-gqa.gguf", GPU_DEVICE ":0", 64, errs);
    struct butler_span spans[N(cases)];
    int32_t ids[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = i * 37 % 40;
    for (int i = 0; i < N(cases); i++) {
        alone[i] = session_on(engine, cases[i].policy, cases[i].type);
        together[i] = session_on(engine, cases[i].policy, cases[i].type);
        read_prompt(alone[i], cases[i].n_prompt);
        spans[i] = (struct butler_span){BUTLER_INIT(butler_span), .session = together[i], .ids = ids, .n = cases[i].n_prompt,
                                        .prompt_end = cases[i].n_prompt};
    }
    assert_int_equal(butler_run(engine, spans, N(cases), errs), 0);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < N(cases); i++)
            compare_logits(alone[i], together[i], n_vocab_of(engine), 0, cases[i].policy);
        struct butler_session *order[N(cases)];
        int32_t next[N(cases)];
        for (int i = 0; i < N(cases); i++) {
            const int from = (i * 2 + step) % N(cases);
            order[i] = together[from];
            next[i] = 3 + step + from;
            assert_int_equal(butler_step(alone[i], 3 + step + i, errs), 0);
        }
        assert_int_equal(butler_step_batch(order, next, N(cases), errs), 0);
    }
    for (int i = 0; i < N(cases); i++)
        butler_session_free(alone[i]), butler_session_free(together[i]);
    free_engine(engine);
}

/* What a device has no kernel for is named; so is a device that is not there. */
static void test_errors(void **state)
{
    struct butler_error err = {0};
    assert_null(engine_on("models/llama-gqa.gguf", GPU_DEVICE, 0, &err));
    assert_non_null(strstr(err.message, "device '" GPU_DEVICE "'"));
    begin(state);
    assert_null(engine_on("models/llama-gqa.gguf", GPU_DEVICE ":99", 0, &err));
    assert_non_null(strstr(err.message, GPU_DEVICE ":99"));
    struct butler_engine *engine = engine_on("models/qwen2.gguf", GPU_DEVICE ":0", 0, &err); /* three query heads on a KV head */
    static const struct {
        const char *policy;
        enum butler_kv_type type;
        const char *named;
    } cases[] = {{"layer0", BUTLER_KV_F16, "first_layer"},
                 {"streaming:rope=cache", BUTLER_KV_F16, "recency"},
                 {"quest:method=evict", BUTLER_KV_F16, "page_bounds"},
                 {"quest:share=2", BUTLER_KV_F16, "share=2"}};
    for (int i = 0; i < N(cases); i++) {
        const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 64, .kv_type = cases[i].type,
                                                     .policy = cases[i].policy};
        assert_null(butler_session_new(engine, &params, &err));
        assert_int_equal(err.code, BUTLER_ERROR_UNSUPPORTED);
        assert_non_null(strstr(err.message, cases[i].named));
    }
    free_engine(engine);
}

/* A device that does not start, for the tests of drivers that fail: GPU_DEVICE:0 is refused by an error that says so; auto takes
 * the CPU, says the same, and works. */
static inline void refused(enum butler_code code, const char *says, const char *auto_says)
{
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    assert_null(engine_on(usual_model, GPU_DEVICE ":0", 0, &err));
    if (err.code != (int)code || !strstr(err.message, says))
        fail_msg("%d %s", err.code, err.message);
    err = (struct butler_error){0};
    struct butler_engine *engine = engine_on(usual_model, "auto", 0, &err);
    if (!engine || err.code != 0 || !strstr(err.message, auto_says))
        fail_msg("auto: %d %s", err.code, err.message);
    butler_engine_get_info(engine, &info);
    assert_string_equal(info.device, "cpu");
    struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
    read_prompt(session, 5);
    butler_session_free(session);
    free_engine(engine);
}

#include "gpu_host_tests.h"
#include "gpu_long_tests.h"
#include "gpu_policy_tests.h"

static int run_gpu_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),    cmocka_unit_test(test_rows),          cmocka_unit_test(test_top),
        cmocka_unit_test(test_selection),   cmocka_unit_test(test_append),        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_types),       cmocka_unit_test(test_fused),         cmocka_unit_test(test_passes_and_files),
        cmocka_unit_test(test_one_bit),     cmocka_unit_test(test_fier),          cmocka_unit_test(test_predicted),
        cmocka_unit_test(test_tokenbutler), cmocka_unit_test(test_evict),         cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_h2o),         cmocka_unit_test(test_deviation),     cmocka_unit_test(test_batch),
        cmocka_unit_test(test_host),        cmocka_unit_test(test_host_sessions), cmocka_unit_test(test_on_cpu),
        cmocka_unit_test(test_layer),       cmocka_unit_test(test_long),          cmocka_unit_test(test_errors)};
    const struct CMUnitTest few[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_append), cmocka_unit_test(test_errors)};
    return GPU_FEW > 1 ? cmocka_run_group_tests(few, setup, teardown) : cmocka_run_group_tests(tests, setup, teardown);
}

#endif
