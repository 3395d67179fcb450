/* What a process holds at a depth, and what one more session adds to it.
 *
 *     build/bench/bench_memory MODEL.gguf DEPTH [--predictor FILE]... [POLICY]...
 *
 * A prompt of the largest block is run, the cache filled to DEPTH, eight tokens decoded; then the same in a second session beside
 * the first. "resident" is anonymous memory with one session, "beside" what of it is neither its KV pages nor its records:
 * activations, scratch, tokenizer, tables. "second" is what the second session adds, "its rest" what of that is neither its KV
 * pages nor its records. The mapping of the file is not in any of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "butler.h"
#include "resident.h"

enum { BLOCK = 512 }; /* of a prompt, where there is a matrix unit */

/* A session that has read and written at the depth, or NULL. */
static struct butler_session *use_session(struct butler_engine *engine, int depth, const char *policy, struct butler_error *err)
{
    int32_t prompt[BLOCK];
    const int n_prompt = depth < BLOCK ? depth : BLOCK;
    const struct butler_session_params params = {.n_ctx = depth + 16, .policy = policy};
    struct butler_session *session = butler_session_new(engine, &params, err);
    if (!session)
        return NULL;
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = i % 200;
    int code = butler_prefill(session, prompt, n_prompt, NULL, NULL, err);
    if (code == 0 && depth > n_prompt)
        code = butler_fill(session, depth - n_prompt, 1, err);
    for (int i = 0; i < 8 && code == 0; i++)
        code = butler_step(session, 1, err);
    if (code == 0)
        return session;
    butler_session_free(session);
    return NULL;
}

static int measure(struct butler_engine *engine, int depth, const char *policy)
{
    struct butler_error err;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_free(use_session(engine, depth, policy, &err)); /* touches what the engine has once */
    struct butler_session *first = use_session(engine, depth, policy, &err), *second = NULL;
    const double one = resident_anonymous_mb();
    if (first && (second = use_session(engine, depth, policy, &err))) {
        const double two = resident_anonymous_mb();
        butler_session_stats(second, &stats);
        const double kv = (double)stats.kv_memory / 1e6, metric = (double)stats.metric_memory / 1e6;
        printf("%-34s %8d %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", policy, depth,
               (double)butler_kv_bytes(butler_engine_model(engine), BUTLER_KV_F16, depth + 8) / 1e6, kv, metric, one,
               one - kv - metric, two - one, two - one - kv - metric);
    } else
        fprintf(stderr, "bench_memory: %s\n", err.message);
    const bool failed = !second;
    butler_session_free(first);
    butler_session_free(second);
    return failed;
}

int main(int argc, char **argv)
{
    struct butler_error err;
    int failed = 0, n_policies = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_memory MODEL.gguf DEPTH [--predictor FILE]... [POLICY]...\n");
        return 2;
    }
    use_small_pages();
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, NULL, &err) : NULL;
    for (int i = 3; engine && i + 1 < argc; i++)
        if (strcmp(argv[i], "--predictor") == 0 && butler_predictor_attach(engine, argv[i + 1], &err) < 0) {
            butler_engine_free(engine);
            engine = NULL;
        }
    if (!engine) {
        fprintf(stderr, "bench_memory: %s\n", err.message);
        butler_model_free(model);
        return 1;
    }
    printf("%-34s %8s %10s %10s %10s %10s %10s %10s %10s\n", "policy, in MB", "depth", "full KV", "KV held", "records", "resident",
           "beside", "second", "its rest");
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[i], "--predictor") == 0)
            i++;
        else if (++n_policies)
            failed |= measure(engine, atoi(argv[2]), argv[i]);
    if (n_policies == 0)
        failed = measure(engine, atoi(argv[2]), "full");
    butler_engine_free(engine);
    butler_model_free(model);
    return failed;
}
