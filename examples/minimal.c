/* The whole life of a program that embeds butler: load a model, put it on a device, read a prompt, continue it under a policy, say
 * what it cost.
 *
 *     cc minimal.c $(pkg-config --cflags --libs butler) -o minimal
 *     ./minimal MODEL.gguf "Once upon a time" quest:budget=1024
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <butler.h>

enum { MAX_TOKENS = 64 };

static bool print(void *user, const char *text, size_t n)
{
    (void)user;
    return fwrite(text, 1, n, stdout) == n;
}

int main(int argc, char **argv)
{
    struct butler_error err = {0};
    struct butler_model *model = NULL;
    struct butler_engine *engine = NULL;
    struct butler_session *session = NULL;
    struct butler_sampler *sampler = NULL;
    int32_t *ids = NULL;
    int status = EXIT_FAILURE;
    if (argc < 3) {
        fprintf(stderr, "usage: minimal MODEL PROMPT [POLICY]\n");
        return 2;
    }
    if (!(model = butler_model_load(argv[1], NULL, &err)) || !(engine = butler_engine_new(model, NULL, &err)))
        goto fail;
    struct butler_session_params params = {BUTLER_INIT(butler_session_params), .policy = argc > 3 ? argv[3] : "full"};
    struct butler_sampler_params greedy = {BUTLER_INIT(butler_sampler_params), .temperature = 0};
    if (!(session = butler_session_new(engine, &params, &err)) || !(sampler = butler_sampler_new(&greedy, &err)))
        goto fail;

    int flags = BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL;
    int n = butler_tokenize(model, argv[2], strlen(argv[2]), flags, NULL, 0, &err);
    if (n < 0 || !(ids = malloc((size_t)n * sizeof *ids + 1)) ||
        butler_tokenize(model, argv[2], strlen(argv[2]), flags, ids, n, &err) < 0 ||
        butler_prefill(session, ids, n, NULL, NULL, &err) < 0 ||
        butler_generate(session, sampler, MAX_TOKENS, print, NULL, &err) < 0)
        goto fail;

    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &stats);
    printf("\n[%llu tokens read %llu of %llu KV bytes]\n", (unsigned long long)stats.n_decode,
           (unsigned long long)(stats.kv_bytes + stats.metric_bytes), (unsigned long long)stats.full_kv_bytes);
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "minimal: %s\n", err.message);
    free(ids);
    butler_sampler_free(sampler);
    butler_session_free(session);
    butler_engine_free(engine);
    butler_model_free(model);
    return status;
}
