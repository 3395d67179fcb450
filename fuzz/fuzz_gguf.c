/* Any bytes as a model file: it loads, and then it can be run, or it is refused with a reason. */
#include "fuzz.h"

static void use(struct butler_model *model)
{
    struct butler_error err = {0};
    const struct butler_engine_params device = {.n_threads = 1, .n_block = 2};
    const struct butler_session_params params = {.n_ctx = 4, .kv_type = BUTLER_KV_F32, .policy = "streaming:budget=2,sinks=1"};
    const int32_t ids[] = {0, 0, 0};
    butler_tokenize(model, "a b\xff", 4, BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL, NULL, 0, &err);
    if (butler_model_get_info(model)->weight_bytes > 1 << 20) /* the header may name one row many times; this bounds the time */
        return;
    struct butler_engine *engine = butler_engine_new(model, &device, &err);
    fuzz_require(engine || (err.code < 0 && err.message[0]), "no engine, and a reason");
    struct butler_session *session = engine ? butler_session_new(engine, &params, &err) : NULL;
    if (session && butler_prefill(session, ids, 3, NULL, NULL, &err) == 0)
        butler_step(session, 0, &err);
    butler_session_free(session);
    butler_engine_free(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_file file = fuzz_file_make(data, size);
    for (int vocabulary_only = 0; vocabulary_only < 2; vocabulary_only++) {
        struct butler_error err = {0};
        struct butler_model_params params = {.vocabulary_only = vocabulary_only};
        struct butler_model *model = butler_model_load(file.path, &params, &err);
        fuzz_require(model || (err.code < 0 && err.message[0]), "a refused file is refused with a reason");
        if (model)
            use(model);
        butler_model_free(model);
    }
    close(file.fd);
    return 0;
}
