/* Tokens of a prompt a second, for several instruction sets in turn.
 *
 *     bench_prefill MODEL [--isa NAME,...] [--n N] [--depth N] [--block N] [--threads N] [--kv POLICY] [--repeat N]
 *
 * A prompt of N random tokens follows `depth` made-up ones. Every repetition runs each instruction set once; the last lines
 * are medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "median.h"
#include "util.h"

enum { MAX_ISAS = 4, MAX_REPEAT = 99 };

struct run {
    const char *isa;
    struct butler_model *model;
    double seconds[MAX_REPEAT];
};

/* Seconds of one prompt, or less than 0. */
static double prefill(struct butler_model *model, const struct butler_session_params *params, int depth, const int32_t *ids, int n,
                      struct butler_error *err)
{
    struct butler_session *session = butler_session_new(model, params, err);
    double seconds = -1;
    if (session && (depth == 0 || butler_fill(session, depth, 1, err) == 0)) {
        const double start = butler_seconds();
        if (butler_prefill(session, ids, n, NULL, NULL, err) == 0)
            seconds = butler_seconds() - start;
    }
    butler_session_free(session);
    return seconds;
}

int main(int argc, char **argv)
{
    int n = 512, depth = 0, threads = 0, repeat = 3, n_runs = 0, status = EXIT_FAILURE;
    char *isas = NULL;
    struct butler_session_params params = {.kv_type = BUTLER_KV_F16};
    struct butler_error err = {0};
    struct run runs[MAX_ISAS] = {0};
    int32_t *ids = NULL;
    for (int i = 2; i + 1 < argc; i += 2) {
        const int value = atoi(argv[i + 1]);
        const char *flag = argv[i];
        if (strcmp(flag, "--isa") == 0)
            isas = argv[i + 1];
        else if (strcmp(flag, "--kv") == 0)
            params.policy = argv[i + 1];
        else
            *(strcmp(flag, "--n") == 0         ? &n
              : strcmp(flag, "--depth") == 0   ? &depth
              : strcmp(flag, "--block") == 0   ? &params.n_block
              : strcmp(flag, "--threads") == 0 ? &threads
                                               : &repeat) = value;
    }
    if (argc < 2 || argc % 2 || n < 1 || depth < 0 || repeat < 1 || repeat > MAX_REPEAT) {
        fprintf(stderr,
                "usage: %s MODEL [--isa NAME,...] [--n N] [--depth N] [--block N] [--threads N] [--kv POLICY] [--repeat N]\n",
                argv[0]);
        return EXIT_FAILURE;
    }
    params.n_ctx = depth + n;
    do {
        char *next = isas ? strchr(isas, ',') : NULL;
        if (next)
            *next++ = 0;
        struct run *run = &runs[n_runs++];
        run->model = butler_model_load(argv[1], &(struct butler_model_params){.isa = isas, .n_threads = threads}, &err);
        if (!run->model)
            goto fail;
        run->isa = butler_model_get_info(run->model)->isa;
        isas = next;
    } while (isas && n_runs < MAX_ISAS);
    ids = butler_alloc((size_t)n * sizeof *ids, &err);
    if (!ids)
        goto fail;
    uint64_t random = 1;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)butler_model_get_info(runs[0].model)->n_vocab);
    for (int k = 0; k < repeat; k++)
        for (int i = 0; i < n_runs; i++) {
            runs[i].seconds[k] = prefill(runs[i].model, &params, depth, ids, n, &err);
            if (runs[i].seconds[k] < 0)
                goto fail;
        }
    for (int i = 0; i < n_runs; i++) {
        qsort(runs[i].seconds, (size_t)repeat, sizeof(double), median_order);
        printf("isa=%s tokens=%d depth=%d repeat=%d tokens_s=%.1f (%.1f to %.1f)\n", runs[i].isa, n, depth, repeat,
               n / runs[i].seconds[repeat / 2], n / runs[i].seconds[repeat - 1], n / runs[i].seconds[0]);
    }
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "bench_prefill: %s\n", err.message);
    for (int i = 0; i < n_runs; i++)
        butler_model_free(runs[i].model);
    free(ids);
    return status;
}
