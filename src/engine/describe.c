/* What a file is: a model, a predictor or a session, for `butler info FILE`. */
#include <string.h>

#include "engine/abi.h"
#include "engine/session.h"
#include "model/centres.h"

static int describe_predictor(const char *path, struct butler_file_info *info, struct butler_error *err)
{
    struct butler_predictor *predictor = butler_predictor_load(path, NULL, false, err);
    if (!predictor)
        return err ? err->code : BUTLER_ERROR_FORMAT;
    info->model_fingerprint = predictor->model_fingerprint;
    info->model_sampled = predictor->model_sampled;
    info->n_layers = predictor->sizes.n_layers;
    info->n_kv_heads = predictor->sizes.n_kv_heads;
    info->head_dim = predictor->sizes.head_dim;
    info->version = predictor->sizes.version;
    info->d = predictor->sizes.d;
    info->n_params = predictor->n_weights;
    info->n_trained = predictor->training.n_tokens;
    info->n_steps = predictor->training.n_steps;
    info->loss = predictor->training.loss;
    memcpy(info->text, predictor->training.text, sizeof info->text);
    butler_predictor_free(predictor);
    return 0;
}

static int describe_gguf(const char *path, struct butler_file_info *info, struct butler_error *err)
{
    struct butler_gguf *gguf = butler_gguf_open(path, err);
    const char *architecture = "";
    if (!gguf)
        return err ? err->code : BUTLER_ERROR_FORMAT;
    int code = butler_gguf_string(gguf, "general.architecture", true, &architecture, err);
    info->kind = strcmp(architecture, BUTLER_PREDICTOR_ARCHITECTURE) == 0 ? BUTLER_FILE_PREDICTOR : BUTLER_FILE_MODEL;
    if (strcmp(architecture, BUTLER_CENTRES_ARCHITECTURE) == 0)
        code = butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: query centres that `butler calibrate` made, no model", path);
    butler_gguf_free(gguf);
    if (code == 0 && info->kind == BUTLER_FILE_PREDICTOR)
        code = describe_predictor(path, info, err);
    return code;
}

int butler_file_describe(const char *path, struct butler_file_info *info, struct butler_error *err)
{
    struct butler_map map = {0};
    if (BUTLER_IS_NULL(path, err) || BUTLER_IS_NULL(info, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_file_info own = {0};
    int code = butler_map_open(&map, path, err);
    if (code < 0)
        return code;
    own.bytes = map.size;
    if (map.size >= 7 && memcmp(map.data, "butlerS", 7) == 0) {
        own.kind = BUTLER_FILE_SESSION;
        code = butler_session_describe(&map, path, &own, err);
    } else
        code = describe_gguf(path, &own, err);
    butler_map_close(&map);
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_file_info, policy));
    return code;
}
