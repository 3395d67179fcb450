/* What a process holds at a depth: the KV store as predicted, the metric's records, and the rest.
 *
 *     build/bench/bench_memory MODEL.gguf DEPTH [POLICY]...
 *
 * A prompt of the largest block is run, the cache filled to DEPTH, eight tokens decoded. "beside" is resident anonymous memory
 * less the KV store and the records: activations, scratch, tokenizer, tables. The mapping of the file is not in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "butler.h"

enum { BLOCK = 512 }; /* of a prompt, where there is a matrix unit */

static double resident_anonymous_mb(void)
{
    char line[256];
    double kb = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "RssAnon:", 8) == 0)
            kb = strtod(line + 8, NULL);
    if (file)
        fclose(file);
    return kb * 1024 / 1e6;
}

static int measure(struct butler_engine *engine, int depth, const char *policy)
{
    struct butler_error err;
    struct butler_stats stats;
    int32_t prompt[BLOCK];
    const int n_prompt = depth < BLOCK ? depth : BLOCK;
    const struct butler_session_params params = {.n_ctx = depth + 16, .kv_type = BUTLER_KV_F16, .policy = policy};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        goto fail;
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = i % 200;
    if (butler_prefill(session, prompt, n_prompt, NULL, NULL, &err) < 0 ||
        (depth > n_prompt && butler_fill(session, depth - n_prompt, 1, &err) < 0))
        goto fail;
    for (int i = 0; i < 8; i++)
        if (butler_step(session, 1, &err) < 0)
            goto fail;
    butler_session_stats(session, &stats);
    const double kv = (double)stats.kv_memory / 1e6, metric = (double)stats.metric_memory / 1e6, all = resident_anonymous_mb();
    printf("%-34s %8d %12.1f %12.1f %12.1f %12.1f %12.1f\n", policy, depth,
           (double)butler_kv_bytes(butler_engine_model(engine), BUTLER_KV_F16, depth + 8) / 1e6, kv, metric, all,
           all - kv - metric);
    butler_session_free(session);
    return 0;
fail:
    fprintf(stderr, "bench_memory: %s\n", err.message);
    butler_session_free(session);
    return 1;
}

int main(int argc, char **argv)
{
    struct butler_error err;
    int failed = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_memory MODEL.gguf DEPTH [POLICY]...\n");
        return 2;
    }
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, NULL, &err) : NULL;
    if (!engine) {
        fprintf(stderr, "bench_memory: %s\n", err.message);
        butler_model_free(model);
        return 1;
    }
    printf("%-34s %8s %12s %12s %12s %12s %12s\n", "policy, in MB", "depth", "full KV", "KV held", "records", "resident", "beside");
    for (int i = 3; i < argc || i == 3; i++)
        failed |= measure(engine, atoi(argv[2]), argc > 3 ? argv[i] : "full");
    butler_engine_free(engine);
    butler_model_free(model);
    return failed;
}
