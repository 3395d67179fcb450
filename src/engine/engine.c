/* The engine: a loaded model with its tokenizer, its threads and its backend, and the public functions that only pass
 * on to a room of their own. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "model/model.h"
#include "model/predictor.h"

struct butler_model *butler_model_load(const char *path, const struct butler_model_params *params, struct butler_error *err)
{
    static const struct butler_model_params defaults = {0};
    struct butler_model *model = butler_alloc(sizeof *model, err);
    if (!model)
        return NULL;
    if (!params)
        params = &defaults;
    const struct butler_kernels *kernels = butler_kernels_get(params->isa);
    long n_threads = params->n_threads > 0 ? params->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    n_threads = BUTLER_MIN(BUTLER_MAX(n_threads, 1), 256);
    if (!kernels) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "no kernels for isa '%s' on this CPU", params->isa);
        goto fail;
    }
    model->path = strdup(path);
    if (!model->path) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the name of %s", path);
        goto fail;
    }
    model->gguf = butler_gguf_open(path, err);
    if (!model->gguf || (!params->vocabulary_only && butler_model_bind(model, err) < 0))
        goto fail;
    if (butler_gguf_value(model->gguf, "tokenizer.ggml.model") || params->vocabulary_only) {
        model->tokenizer = butler_tokenizer_new(model->gguf, err);
        if (!model->tokenizer)
            goto fail;
    }
    if (model->tokenizer && model->layers && butler_tokenizer_n_vocab(model->tokenizer) > model->hp.n_vocab) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the tokenizer has %d tokens, the model %d", path,
                    butler_tokenizer_n_vocab(model->tokenizer), model->hp.n_vocab);
        goto fail;
    }
    model->pool = butler_pool_new((int)n_threads, err);
    if (!model->pool)
        goto fail;
    model->backend = butler_backend_cpu(model->pool, kernels, err);
    if (!model->backend)
        goto fail;
    model->info.tokenizer = model->tokenizer ? butler_tokenizer_kind(model->tokenizer) : "";
    model->info.isa = kernels->isa;
    model->info.n_threads = (int)n_threads;
    return model;
fail:
    butler_model_free(model);
    return NULL;
}

void butler_model_free(struct butler_model *model)
{
    if (!model)
        return;
    butler_backend_free(model->backend);
    butler_pool_free(model->pool);
    butler_metric_list_free(model->plugins);
    butler_predictor_free(model->predictors[0]);
    butler_predictor_free(model->predictors[1]);
    butler_tokenizer_free(model->tokenizer);
    butler_model_unbind(model);
    butler_gguf_free(model->gguf);
    free(model->path);
    free(model);
}

const struct butler_model_info *butler_model_get_info(const struct butler_model *model)
{
    return &model->info;
}

int butler_tokenize(const struct butler_model *model, const char *text, size_t n_text, int flags, int32_t *ids, int max_ids,
                    struct butler_error *err)
{
    if (!model->tokenizer)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no tokenizer", model->path);
    return butler_tokenizer_encode(model->tokenizer, text, n_text, flags, ids, max_ids, err);
}

const char *butler_token_bytes(const struct butler_model *model, int32_t id, size_t *n_bytes)
{
    *n_bytes = 0;
    return model->tokenizer ? butler_tokenizer_bytes(model->tokenizer, id, n_bytes) : NULL;
}

int32_t butler_token_bos(const struct butler_model *model)
{
    return model->tokenizer ? butler_tokenizer_bos(model->tokenizer) : -1;
}

bool butler_token_is_end(const struct butler_model *model, int32_t id)
{
    return model->tokenizer && butler_tokenizer_is_end(model->tokenizer, id);
}
