/* Models, policies and texts of the tests of invariants. */
#ifndef BUTLER_TESTS_INVARIANTS_H
#define BUTLER_TESTS_INVARIANTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "fixtures.h"
#include "glass_backend.h"
#include "random_predictor.h"
#include "engine/session.h"

enum { N_TEXT = 200, N_PROMPT = 90, BUDGET = 48 };

/* Points besides the named policies' defaults. */
static const char *const unnamed[] = {
    "h2o+vatp",
    "knorm+vatp",
    "fier+vatp:dense=1",
    "scissorhands+vatp:norm=l2",
    "snapkv:rolling=1,recent=8,window=8",
    "snapkv+vatp:rolling=1,recent=8,window=8,pool=avg",
    "h2o:share=layer",
    "h2o:method=retrieve",
    "streaming:method=retrieve",
    "streaming:rope=cache",
    "quest:bound=max,group=mean,dense=0",
    "quest:page=8,dense=0",
    "quest:method=evict,dense=0",
    "pagestats:method=evict,page=32",
    "fier:method=evict,dense=0",
    "oracle:method=evict",
    "oracle:share=query",
    "oracle:share=layer,group=mean",
    "oracle:group=mean,sinks=4,recent=8",
    "oracle:on_top=1,sinks=4,recent=8",
    "random:share=query",
    "knorm:prefill=evict",
    "tokenbutler:page=16,group=mean",
    "tokenbutler:share=query,keys=f16",
    "tokenbutler:method=evict,sinks=4,recent=8",
    "tokenbutler:method=evict,page=8,keys=f16",
    "tokenbutler:method=evict,keys=int8",
    "tokenbutler:method=evict,prefill=evict,dense=2",
    "tokenbutler+vatp:method=evict",
    "tokenbutler2:on_top=0,sinks=4,recent=8",
    "tokenbutler2:on_top=0,sinks=4,recent=8,share=query,keys=int8",
    "tokenbutler2:on_top=0,sinks=0,recent=0,page=5,keys=f16,share=layer",
    "quest:dense=0,every=3",
    "fier:every=4,share=query",
    "fier:g=64,levels=means,dense=0",
    "fier:scan=1,dense=0",
    "fier:scan=1,dense=1,sinks=4,recent=8,group=mean,every=2",
    "tinyserve:every=5",
    "tokenbutler2:on_top=0,sinks=4,recent=8,every=2",
    "tokenbutler:every=7,share=layer",
    "tokenbutler2:method=evict,on_top=0,sinks=4,recent=8",
    "tokenbutler2:method=evict,on_top=0,sinks=0,recent=0,page=16",
    "prevlayer:share=query",
    "layer0:group=mean,dense=2",
    "triattention:prefill=evict,normalise=softmax",
    "triattention:method=retrieve,share=layer",
};

struct model_case {
    const char *file;
    enum butler_kv_type kv_type;
    int n_threads;
    bool glass; /* on the backend whose memory only its operations can touch */
};

static const struct model_case models[] = {
    {"models/llama-gqa.gguf", BUTLER_KV_F16, 2, false}, {"models/llama-q8_0.gguf", BUTLER_KV_Q8_0, 2, false},
    {"models/gpt-oss.gguf", BUTLER_KV_F16, 2, false}, /* windows, experts, sinks */
    {"models/llama-mha.gguf", BUTLER_KV_F16, 1, false}, {"models/gpt2.gguf", BUTLER_KV_F16, 1, false},
    {"models/llama-gqa.gguf", BUTLER_KV_F16, 2, true},
};

/* Sanitizers are slow: under ThreadSanitizer the properties are tested on one model, under AddressSanitizer on three. */
#if defined(__SANITIZE_THREAD__)
enum { END_MODELS = 1, END_THREADED_MODELS = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { END_MODELS = 3, END_THREADED_MODELS = 1 };
#else
enum { END_MODELS = BUTLER_COUNT(models), END_THREADED_MODELS = 2 };
#endif

struct context {
    struct butler_model *model;
    struct butler_engine *engine;
    const struct model_case *from;
    int n_text, n_prompt;
    int32_t text[N_TEXT];
};

static inline struct context open_model(const struct model_case *from, int n_threads)
{
    struct context c = {.from = from};
    struct butler_error err;
    char path[FIXTURE_PATH];
    uint64_t random = 7;
    fixture_path(path, from->file);
    const struct butler_engine_params params = {
        .n_threads = n_threads ? n_threads : from->n_threads, .n_block = 32, .kv_bytes = 1 << 26};
    c.model = butler_model_load(path, NULL, &err);
    c.engine = !c.model ? NULL : from->glass ? glass_engine(c.model, &params, &err) : butler_engine_new(c.model, &params, &err);
    if (!c.engine)
        fail_msg("%s", err.message);
    attach_both(c.engine, from->n_threads == 2);
    const struct butler_model_info *info = butler_model_get_info(c.model);
    c.n_text = BUTLER_MIN(N_TEXT, info->n_ctx_train);
    c.n_prompt = BUTLER_MIN(N_PROMPT, c.n_text / 2);
    for (int i = 0; i < c.n_text; i++)
        c.text[i] = (int32_t)(butler_random(&random) % (uint64_t)info->n_vocab);
    return c;
}

static inline struct butler_session *open_session(const struct context *c, const char *policy)
{
    struct butler_error err;
    struct butler_session *session = butler_session_new(
        c->engine, &(struct butler_session_params){.n_ctx = c->n_text, .kv_type = c->from->kv_type, .policy = policy, .seed = 3},
        &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

/* The policy with a budget of n tokens, or as it is where it has none. */
static const char *with_budget(const char *policy, int n, char out[512])
{
    const bool dense = strcmp(policy, "full") == 0 || strncmp(policy, "entropystop", 11) == 0;
    if (dense)
        snprintf(out, 512, "%s", policy);
    else
        snprintf(out, 512, "%s%c%s=%d", policy, strchr(policy, ':') ? ',' : ':',
                 strncmp(policy, "softprune", 9) == 0 ? "min" : "budget", n);
    return out;
}

/* Whether the policy means something on this model; if not, the parser must say so. */
static inline bool applies(const struct context *c, const char *policy)
{
    struct butler_error err = {0};
    if (butler_policy_check(c->engine, policy, &err) == 0)
        return true;
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    /* What some models lack here: keys that all layers rotate alike, and layers before that hold everything. */
    assert_true(strstr(policy, "rope=cache") || strstr(err.message, "have a window"));
    return false;
}

/* Calls property for every model and every policy, or a share of both. */
typedef void property_fn(const struct context *c, const char *policy);

static inline void for_all(property_fn *property)
{
    for (int m = 0; m < END_MODELS; m++) {
        const struct context c = open_model(&models[m], 0);
        struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
        int n = 0;
        for (int i = 0; butler_policy_describe(c.engine, i, &info); i++, n++)
            if (in_share(m + 7 * i) && applies(&c, info.name))
                property(&c, info.name);
        assert_true(n >= 20);
        for (int i = 0; i < BUTLER_COUNT(unnamed); i++)
            if (in_share(m + 5 * i + 1) && applies(&c, unnamed[i]))
                property(&c, unnamed[i]);
        free_engine(c.engine);
    }
}

static inline void prefill(struct butler_session *session, const int32_t *ids, int n)
{
    struct butler_error err;
    if (butler_prefill(session, ids, n, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
}

/* Part of a prompt that ends at prompt_end. */
static inline void prefill_part(struct butler_session *session, const int32_t *ids, int n, int prompt_end)
{
    struct butler_error err;
    const struct butler_span span = {.session = session, .ids = ids, .n = n, .prompt_end = prompt_end};
    if (butler_run(session->engine, &span, 1, &err) < 0)
        fail_msg("%s", err.message);
}

static inline void step(struct butler_session *session, int32_t id)
{
    struct butler_error err;
    if (butler_step(session, id, &err) < 0)
        fail_msg("%s", err.message);
}

static inline void assert_same_logits(const struct butler_session *a, const struct butler_session *b, const char *policy,
                                      int position)
{
    if (memcmp(butler_logits(a), butler_logits(b), (size_t)a->model->hp.n_vocab * sizeof(float)) != 0)
        fail_msg("%s: other logits at position %d", policy, position);
}

#endif
