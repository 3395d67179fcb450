/* Any bytes as a session file. The checksum and the model's fingerprint are corrected first, so that the fuzzer reaches the
 * code behind those checks. A session that is restored then decodes. */
#include <string.h>
#include <xxhash.h>

#include "fuzz.h"
#include "engine/engine.h"

/* Offsets in the file. A context of millions of tokens is allowed, but slow, and tests nothing new. */
enum { FINGERPRINT = 8, N_CTX = 24, MAX_CTX = 1024 };

static struct butler_engine *engine;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    engine = fuzz_engine("tests/data/models/llama-gqa.gguf");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    uint8_t *bytes = malloc(size + sizeof(uint64_t));
    memcpy(bytes, data, size);
    uint64_t fingerprint;
    fuzz_require(butler_model_fingerprint(engine->model, &fingerprint, &err) == 0, "the model has a fingerprint");
    if (size >= FINGERPRINT + sizeof fingerprint)
        memcpy(bytes + FINGERPRINT, &fingerprint, sizeof fingerprint);
    int32_t n_ctx = 0;
    if (size >= N_CTX + sizeof n_ctx)
        memcpy(&n_ctx, bytes + N_CTX, sizeof n_ctx);
    if (n_ctx > MAX_CTX) {
        n_ctx = 1 + n_ctx % MAX_CTX;
        memcpy(bytes + N_CTX, &n_ctx, sizeof n_ctx);
    }
    const uint64_t digest = XXH3_64bits(bytes, size);
    memcpy(bytes + size, &digest, sizeof digest);
    struct fuzz_file file = fuzz_file_make(bytes, size + sizeof digest);
    struct butler_session *session = butler_session_restore(engine, file.path, 0, &err);
    fuzz_require(session || (err.code < 0 && err.message[0]), "a refused file is refused with a reason");
    if (session && butler_n_past(session) < butler_n_ctx(session))
        butler_step(session, 42, &err);
    butler_session_free(session);
    free(bytes);
    close(file.fd);
    return 0;
}
