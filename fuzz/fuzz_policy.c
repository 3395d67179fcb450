/* Any string as a policy: it is refused with a reason, or parsed; then its canonical text parses to the same policy. */
#include <string.h>

#include "fuzz.h"
#include "engine/policy.h"

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
    struct butler_policy policy, again;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    if (butler_policy_parse(engine, text, &policy, &err) < 0) {
        fuzz_require(err.code < 0 && err.message[0], "a refused policy is refused with a reason");
        free(text);
        return 0;
    }
    free(text);
    fuzz_require(butler_policy_parse(engine, policy.text, &again, &err) == 0, "a canonical text is a policy");
    fuzz_require(strcmp(policy.text, again.text) == 0, "a canonical text is its own canonical text");
    for (int n = 1; n < 5000; n = 3 * n + 1)
        for (int layer = 0; layer < 4; layer++) {
            struct butler_limits limits = butler_policy_limits(&policy, layer, 4, n);
            if (policy.metric && policy.budget_kind != BUTLER_BUDGET_MASS)
                fuzz_require(limits.budget >= 1 && limits.sinks >= 0 && limits.recent >= 0, "limits make sense");
        }
    struct butler_session_params params = {.n_ctx = 64, .policy = policy.text};
    const int32_t ids[] = {1, 40, 50, 60, 70, 80, 90, 100};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (session && butler_prefill(session, ids, 8, NULL, NULL, &err) == 0)
        for (int i = 0; i < 4; i++)
            fuzz_require(butler_step(session, ids[i], &err) == 0, "a policy that makes a session decodes");
    butler_session_free(session);
    return 0;
}
