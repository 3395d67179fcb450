/* Policies on a device whose metrics keep more than bounds of pages, against the CPU: what they record, score and choose. Part of
 * gpu_tests.h. */
#ifndef GPU_POLICY_TESTS_H
#define GPU_POLICY_TESTS_H

#include "kernels/kernels.h"

/* One-bit keys have the CPU's bytes, and scores of them its bits: of the portable kernels, for others round in between. The tokens
 * come in two parts, so that the second finds a group that is being filled. */
static void one_bit_same(struct both *both, enum butler_kv_type type, int dim, int g, int means, const float *shifts)
{
    enum { FIRST = 20, HEADS = 4, STRIDE = 64 };
    const struct butler_plan plan = {
        .metric = &butler_metric_one_bit, .values = {g, 1, means}, .unit = 1, .score_slots = 1, .reduction = {.pool = 1}};
    const size_t n = (size_t)(CACHE_SLOTS * 2 * dim);
    const int k = array(both, n, 1), v = array(both, n, 2), q = array(both, (size_t)(HEADS * dim), 3),
              s = array(both, HEADS * STRIDE, 4);
    struct cache caches[N_BACKENDS];
    unsigned char *found[N_BACKENDS];
    size_t bytes = 0;
    for (int b = 0; b < N_BACKENDS; b++) {
        struct cache *cache = &caches[b];
        struct butler_kv *kv = &cache->kv;
        make_cache(cache, both->on[b], type, dim, shifts);
        cache->shape.n_heads = kv->n_heads = HEADS;
        if (b == CPU)
            kv->kernels = &butler_kernels_ref;
        butler_metric_one_bit.record(&cache->shape, plan.values, &kv->record_slots, &kv->record_bytes);
        bytes = 2 * kv->records_stride;
        struct butler_workspace work = {.scores = both->arrays[b][s], .score_stride = STRIDE};
        struct butler_layer_state layer = {
            .plan = &plan, .shape = &cache->shape, .kv = kv, .work = &work, .traffic = &cache->traffic, .n_heads = HEADS};
        for (int first = 0, end = FIRST; first < CACHE_SLOTS; first = end, end = CACHE_SLOTS) {
            cache->heads[0].n_slots = cache->heads[1].n_slots = end;
            layer.summarise_from = first;
            EACH(b, append, &layer, both->arrays[b][k] + first * 2 * dim, both->arrays[b][v] + first * 2 * dim, end - first);
        }
        EACH(b, score, &layer, both->arrays[b][q], false);
        found[b] = malloc(bytes);
        EACH(b, download, found[b], kv->records, bytes);
    }
    assert_memory_equal(found[CPU], found[GPU], bytes);
    for (int b = 0; b < N_BACKENDS; b++) {
        free_cache(&caches[b]);
        free(found[b]);
    }
    compare(both, s, 0, "scores of one-bit keys");
}

static void test_one_bit(void **state)
{
    static const int dims[] = {64, 96, 70, 128}; /* of which 70 is no multiple of what a bit's byte has channels */
    static float shifts[2 * 128];
    struct both *both = begin(state);
    for (int i = 0; i < N(shifts); i++)
        shifts[i] = (float)(i % 9) - 4;
    const struct butler_weights bound = {shifts, sizeof shifts, BUTLER_F32};
    assert_int_equal(both->on[GPU]->bind_weights(both->on[GPU], &bound, 1, NULL), 0);
    for (int c = 0; c < BUTLER_N_KV_TYPES * N(dims) * 4; c += GPU_FEW ? 5 : 1) {
        const enum butler_kv_type type = (enum butler_kv_type)(c % BUTLER_N_KV_TYPES);
        const int dim = dims[c / BUTLER_N_KV_TYPES % N(dims)], which = c / BUTLER_N_KV_TYPES / N(dims);
        if (butler_kv_row_bytes(type, dim) > 0)
            one_bit_same(both, type, dim, which % 2 ? 64 : 32, which / 2, which % 2 ? shifts : NULL);
    }
}

/* Tokens and pages of one-bit keys: the logits and the lists of the CPU, whose portable kernels give the scores that a device does;
 * a session that one of them saved goes on on the other. */
static void test_fier(void **state)
{
    static const struct {
        const char *policy;
        enum butler_kv_type type;
    } cases[] = {{"fier:budget=24,dense=0", BUTLER_KV_F16},
                 {"fier:budget=32,dense=1,page=16,levels=means,sinks=4", BUTLER_KV_F32},
                 {"fier:budget=24,dense=0,g=64,share=query,recent=3", BUTLER_KV_F32},
                 {"fier:budget=24,dense=0,every=3,group=mean,page=4", BUTLER_KV_Q8_0}};
    char fixture[FIXTURE_PATH];
    struct tiny tiny = tiny_default;
    begin(state);
    tiny.arch = "qwen2";
    tiny.head_dim = 64;
    tiny.n_heads = 8;
    tiny_write(tiny_path("fier.gguf"), &tiny);
    fixture_path(fixture, usual_model);
    for (int c = 0; c < N(cases); c += GPU_FEW ? 2 : 1) {
        const bool q8 = cases[c].type == BUTLER_KV_Q8_0;
        const char *model = q8 ? tiny_path("fier.gguf") : fixture;
        sessions_same(model, "ref", cases[c].policy, cases[c].type, q8 ? 1e-3 : 1e-4);
        if (c % 3 == 0)
            passes_and_files(model, "ref", cases[c].policy, cases[c].type, q8 ? 1e-3 : 1e-4);
    }
}

#endif
