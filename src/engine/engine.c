/* Models and engines: made, freed and described, and the public functions that only pass on to the tokenizer. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/abi.h"
#include "engine/prefix.h"
#include "engine/predict.h"
#include "model/centres.h"
#include "model/predictor.h"

/* --------------------------------------------------------------------------------------------------- model */

struct butler_model *butler_model_load(const char *path, const struct butler_model_params *params, struct butler_error *err)
{
    struct butler_model_params own;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_model_params, rope_original_ctx), "butler_model_params",
                           err) < 0)
        return NULL;
    params = &own;
    if (BUTLER_IS_NULL(path, err))
        return NULL;
    struct butler_model *model = butler_alloc(sizeof *model, err);
    if (!model)
        return NULL;
    model->path = strdup(path);
    model->rope_given = (struct butler_rope_given){
        .type = params->rope_scaling, .scale = params->rope_scale, .original_ctx = params->rope_original_ctx};
    if (params->cache_folder)
        model->cache_folder = strdup(params->cache_folder);
    if (!model->path || (params->cache_folder && !model->cache_folder)) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the name of %s", path);
        goto fail;
    }
    model->gguf = butler_gguf_open(path, err);
    if (!model->gguf || (!params->vocabulary_only && butler_model_bind(model, err) < 0))
        goto fail;
    if (params->vocabulary_only &&
        butler_gguf_string(model->gguf, "tokenizer.chat_template", false, &model->info.chat_template, err) < 0)
        goto fail;
    if (butler_gguf_value(model->gguf, "tokenizer.ggml.model") || params->vocabulary_only) {
        model->tokenizer = butler_tokenizer_new(model->gguf, params->pre_tokenizer, err);
        if (!model->tokenizer)
            goto fail;
    }
    if (model->tokenizer && model->layers && butler_tokenizer_n_vocab(model->tokenizer) > model->hp.n_vocab) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the tokenizer has %d tokens, the model %d", path,
                    butler_tokenizer_n_vocab(model->tokenizer), model->hp.n_vocab);
        goto fail;
    }
    if (butler_gguf_check(model->gguf, err) < 0)
        goto fail;
    model->info.warnings = butler_gguf_warnings(model->gguf);
    model->info.tokenizer = model->tokenizer ? butler_tokenizer_kind(model->tokenizer) : "";
    return model;
fail:
    butler_model_free(model);
    return NULL;
}

void butler_model_free(struct butler_model *model)
{
    if (!model)
        return;
    butler_tokenizer_free(model->tokenizer);
    butler_model_unbind(model);
    butler_gguf_free(model->gguf);
    free(model->cache_folder);
    free(model->path);
    free(model);
}

const struct butler_model_info *butler_model_get_info(const struct butler_model *model)
{
    return model ? &model->info : NULL;
}

/* -------------------------------------------------------------------------------------------------- engine */

enum { SPILL = 16 /* so many times the memory KV pages may take where they lie on a disk, unless somebody says otherwise */ };

/* Bytes of memory of this machine. */
static uint64_t machine_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 34;
}

static int bind_model(struct butler_engine *engine, struct butler_error *err)
{
    int n;
    struct butler_weights *weights = butler_model_weights(engine->model, &n, err);
    const int code = weights ? engine->backend->bind_weights(engine->backend, weights, n, err) : BUTLER_ERROR_MEMORY;
    free(weights);
    return code;
}

struct butler_engine *butler_engine_new_on(struct butler_model *model, const struct butler_engine_params *params,
                                           const struct butler_registry *registry, struct butler_pool *pool,
                                           struct butler_backend *backend, struct butler_error *err)
{
    const bool known = params->activation_bits == 0 || params->activation_bits == 8 || params->activation_bits == 16;
    if (!known)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "activations of %d bits: there are 8 and 16", params->activation_bits);
    struct butler_engine *engine = known && pool && backend ? butler_alloc(sizeof *engine, err) : NULL;
    if (!engine) {
        butler_backend_free(backend);
        butler_pool_free(pool);
        return NULL;
    }
    engine->model = model;
    engine->registry = registry;
    engine->pool = pool;
    engine->backend = backend;
    engine->n_block = params->n_block ? params->n_block : backend->block_rows;
    engine->kv_ram = params->kv_ram;
    engine->kv_bytes = params->kv_bytes    ? params->kv_bytes
                       : backend->kv_bytes ? backend->kv_bytes
                                           : machine_memory() * (params->kv_ram > 0 ? SPILL : 1);
    backend->activation_bits = params->activation_bits ? params->activation_bits : 8;
    if (bind_model(engine, err) < 0 ||
        (params->prefix_bytes > 0 && !(engine->prefix = butler_prefix_new(params->prefix_bytes, err)))) {
        butler_engine_free(engine);
        return NULL;
    }
    return engine;
}

int butler_engine_threads(int n_threads)
{
    const int n = n_threads > 0 ? n_threads : butler_n_processors();
    return BUTLER_MIN(BUTLER_MAX(n, 1), 256);
}

struct butler_engine *butler_engine_clone(const struct butler_engine *engine, int n_threads, uint64_t prefix_bytes,
                                          struct butler_error *err)
{
    if (BUTLER_IS_NULL(engine, err))
        return NULL;
    const struct butler_engine_params params = {.n_block = engine->n_block,
                                                .kv_bytes = engine->kv_bytes,
                                                .kv_ram = engine->kv_ram,
                                                .prefix_bytes = prefix_bytes,
                                                .activation_bits = engine->backend->activation_bits};
    struct butler_pool *pool = butler_pool_new(butler_engine_threads(n_threads), err);
    struct butler_backend *backend = pool ? engine->backend->another(engine->backend, pool, err) : NULL;
    struct butler_engine *clone = butler_engine_new_on(engine->model, &params, engine->registry, pool, backend, err);
    if (!clone)
        return NULL;
    clone->plugins = engine->plugins;
    clone->steps = engine->steps;
    memcpy(clone->predictors, engine->predictors, sizeof clone->predictors);
    clone->centres = engine->centres;
    clone->borrows = true;
    for (int i = 0; i < BUTLER_COUNT(clone->predictors); i++)
        if (clone->predictors[i] && butler_predictor_bind(clone, clone->predictors[i], err) < 0) {
            butler_engine_free(clone);
            return NULL;
        }
    return clone;
}

void butler_engine_free(struct butler_engine *engine)
{
    if (!engine)
        return;
    butler_prefix_free(engine->prefix);
    for (struct butler_pages *pages = engine->pages, *next; pages; pages = next) {
        next = pages->next;
        butler_pages_free(pages);
    }
    butler_scratch_free(&engine->scratch);
    butler_audit_scratch_free(&engine->audit);
    butler_predict_scratch_free(engine->predict_scratch[0]);
    butler_predict_scratch_free(engine->predict_scratch[1]);
    if (!engine->borrows) {
        butler_step_registry_free(engine->steps);
        butler_metric_list_free(engine->plugins);
        butler_predictor_free(engine->predictors[0]);
        butler_predictor_free(engine->predictors[1]);
        butler_centres_free(engine->centres);
    }
    butler_backend_free(engine->backend);
    butler_pool_free(engine->pool);
    free(engine);
}

/* Most bytes of a pool. What a metric keeps has a pool by itself, which on a device is not memory that costs nothing until it is
 * written: of as many tokens as the other pool holds, with no more heads than the model's queries have. Weights, other pools, other
 * engines and other programs may hold most of a device: of what is left a quarter stays for the rest that sessions need. */
static uint64_t pool_bytes(const struct butler_engine *engine, size_t extent_bytes, bool spills)
{
    const struct butler_hparams *hp = &engine->model->hp;
    struct butler_backend *backend = engine->backend;
    const uint64_t extents = engine->kv_bytes / butler_kv_extent_bytes(BUTLER_KV_F16, hp->head_dim),
                   of_all_heads = extents / (uint64_t)(hp->n_layers * hp->n_kv_heads);
    uint64_t wanted = engine->kv_bytes;
    if (!spills && backend->kv_bytes > 0)
        wanted = BUTLER_MAX(2 * of_all_heads * (uint64_t)hp->n_heads * extent_bytes, 1 << 20);
    if (!backend->memory_left || (spills && backend->alloc_extents))
        return wanted;
    return BUTLER_MIN(wanted, backend->memory_left(backend) / 4 * 3);
}

struct butler_pages *butler_engine_pages(struct butler_engine *engine, enum butler_kv_type type, int head_dim, bool spills,
                                         struct butler_error *err)
{
    const size_t extent_bytes = butler_kv_extent_bytes(type, head_dim);
    if (extent_bytes == 0) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "kv type q8_0 stores blocks of 32 numbers, the model's heads have %d", head_dim);
        return NULL;
    }
    for (struct butler_pages *pages = engine->pages; pages; pages = pages->next)
        if (pages->extent_bytes == extent_bytes && pages->spills == spills)
            return pages;
    struct butler_pages *pages =
        butler_pages_new(engine->backend, extent_bytes, pool_bytes(engine, extent_bytes, spills), spills, err);
    if (pages) {
        pages->spare = engine->prefix ? butler_prefix_spare : NULL;
        pages->spare_user = engine->prefix;
        pages->next = engine->pages;
        engine->pages = pages;
    }
    return pages;
}

struct butler_model *butler_engine_model(const struct butler_engine *engine)
{
    return engine ? engine->model : NULL;
}

void butler_engine_get_info(const struct butler_engine *engine, struct butler_engine_info *info)
{
    if (!info)
        return;
    struct butler_engine_info own = {0};
    if (engine) {
        own.device = engine->backend->name;
        own.isa = engine->backend->isa;
        own.n_threads = butler_pool_size(engine->pool);
        own.n_block = engine->n_block;
        own.scratch_memory = butler_scratch_bytes(&engine->scratch);
    }
    for (const struct butler_pages *pages = engine ? engine->pages : NULL; pages; pages = pages->next)
        own.kv_memory += butler_pages_held(pages);
    if (engine && engine->backend->spilled)
        engine->backend->spilled(engine->backend, &own.kv_resident, &own.kv_on_disk, &own.kv_disk);
    if (engine && engine->prefix) {
        struct butler_prefix_stats stats;
        butler_prefix_get_stats(engine->prefix, &stats);
        own.prefix_memory = stats.bytes;
        own.prefix_lookups = stats.lookups;
        own.prefix_hits = stats.hits;
        own.prefix_tokens = stats.tokens;
    }
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_engine_info, kv_disk));
}

/* ----------------------------------------------------------------------------------------------- tokenizer */

int butler_tokenize(const struct butler_model *model, const char *text, size_t n_text, int flags, int32_t *ids, int max_ids,
                    struct butler_error *err)
{
    if (BUTLER_IS_NULL(model, err))
        return BUTLER_ERROR_ARGUMENT;
    if (!model->tokenizer)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no tokenizer", model->path);
    return butler_tokenizer_encode(model->tokenizer, text, n_text, flags, ids, max_ids, err);
}

const char *butler_token_bytes(const struct butler_model *model, int32_t id, size_t *n_bytes)
{
    if (!n_bytes)
        return NULL;
    *n_bytes = 0;
    return model && model->tokenizer ? butler_tokenizer_bytes(model->tokenizer, id, n_bytes) : NULL;
}

const char *butler_token_spelling(const struct butler_model *model, int32_t id, size_t *n_bytes)
{
    if (!n_bytes)
        return NULL;
    *n_bytes = 0;
    return model && model->tokenizer ? butler_tokenizer_spelling(model->tokenizer, id, n_bytes) : NULL;
}

int32_t butler_token_bos(const struct butler_model *model)
{
    return model && model->tokenizer ? butler_tokenizer_bos(model->tokenizer) : -1;
}

struct butler_fim_tokens butler_model_fim(const struct butler_model *model)
{
    static const struct butler_fim_tokens none = {-1, -1, -1, -1, -1};
    return model && model->tokenizer ? *butler_tokenizer_fim(model->tokenizer) : none;
}

bool butler_token_is_end(const struct butler_model *model, int32_t id)
{
    return model && model->tokenizer && butler_tokenizer_is_end(model->tokenizer, id);
}
