/* Tokens a second of sessions that decode together, and of prompts that are read in blocks of several sizes.
 *
 *     bench_batch MODEL [--kv POLICY]... [--depth N,...] [--batch N,...] [--prompt N] [--block N,...]
 *                       [--steps N] [--turns N] [--threads N] [--isa NAME]
 *
 * For each policy and depth: as many sessions as the largest batch, each with its own random cache of that depth. Every turn runs
 * each batch size once: `steps` steps of the first sessions, after one that is not measured. Then the sessions go back to the
 * depth; those that evict cannot, and need not: their cache stays at its budget. For each block size: a prompt of random tokens on
 * an engine whose passes have so many rows at most, all sizes once a turn. Printed are medians over the turns, the lowest and the
 * highest, and the median of the ratios to the first size of the same turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "butler.h"
#include "median.h"

enum { MAX_POLICIES = 16, MAX_SIZES = 16, MAX_TURNS = 99, MAX_BATCH = 256 };

struct options {
    const char *policies[MAX_POLICIES];
    int depths[MAX_SIZES], batches[MAX_SIZES], blocks[MAX_SIZES];
    int n_policies, n_depths, n_batches, n_blocks, prompt, steps, turns;
    struct butler_engine_params engine;
};

/* Tokens a second, one row for each size. */
struct rates {
    double of[MAX_SIZES][MAX_TURNS];
};

static void print_rates(const struct rates *rates, int n_turns, int i, const char *label, int size)
{
    double all[MAX_TURNS], ratios[MAX_TURNS];
    for (int t = 0; t < n_turns; t++) {
        all[t] = rates->of[i][t];
        ratios[t] = rates->of[i][t] / rates->of[0][t];
    }
    const double middle = median(all, n_turns);
    printf("%s=%-4d tokens_s=%.1f (%.1f to %.1f) ratio=%.2f\n", label, size, middle, all[0], all[n_turns - 1],
           median(ratios, n_turns));
    fflush(stdout);
}

/* Tokens a second of n sessions together, or less than 0. */
static double decode(struct butler_session **sessions, int n, int steps, uint64_t *random, int n_vocab, struct butler_error *err)
{
    struct butler_error errs[MAX_BATCH];
    int32_t ids[MAX_BATCH];
    double start = 0;
    for (int s = 0; s <= steps; s++) {
        for (int i = 0; i < n; i++)
            ids[i] = (int32_t)(butler_random(random) % (uint64_t)n_vocab);
        if (s == 1)
            start = butler_seconds();
        if (butler_step_batch(sessions, ids, n, errs) < 0) {
            for (int i = n; i--;)
                *err = errs[i].code ? errs[i] : *err;
            return -1;
        }
    }
    return n * steps / (butler_seconds() - start);
}

static int bench_decode(struct butler_engine *engine, const struct options *options, const char *policy, int depth,
                        struct butler_error *err)
{
    const int n_vocab = butler_model_get_info(butler_engine_model(engine))->n_vocab;
    struct butler_session *sessions[MAX_BATCH] = {0};
    struct rates rates;
    int n = 0, code = 0;
    uint64_t random = 1;
    for (int i = 0; i < options->n_batches; i++)
        n = BUTLER_MAX(n, options->batches[i]);
    const struct butler_session_params params = {
        .n_ctx = depth + options->turns * options->n_batches * (options->steps + 1), .kv_type = BUTLER_KV_F16, .policy = policy};
    for (int i = 0; i < n && code == 0; i++)
        code = !(sessions[i] = butler_session_new(engine, &params, err)) ||
                       (depth > 0 && butler_fill(sessions[i], depth, (uint64_t)i + 1, err) < 0)
                   ? err->code
                   : 0;
    for (int t = 0; t < options->turns && code == 0; t++)
        for (int i = 0; i < options->n_batches && code == 0; i++) {
            rates.of[i][t] = decode(sessions, options->batches[i], options->steps, &random, n_vocab, err);
            code = rates.of[i][t] < 0 ? err->code : 0;
            for (int s = 0; s < options->batches[i] && code == 0; s++)
                butler_session_truncate(sessions[s], depth, NULL);
        }
    if (code == 0) {
        printf("policy=%s depth=%d steps=%d turns=%d\n", policy, depth, options->steps, options->turns);
        for (int i = 0; i < options->n_batches; i++)
            print_rates(&rates, options->turns, i, "  sessions", options->batches[i]);
    }
    for (int i = 0; i < n; i++)
        butler_session_free(sessions[i]);
    return code;
}

/* Tokens a second of a prompt, or less than 0. */
static double prefill(struct butler_engine *engine, const char *policy, const int32_t *ids, int n, struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = n, .kv_type = BUTLER_KV_F16, .policy = policy};
    struct butler_session *session = butler_session_new(engine, &params, err);
    const double start = butler_seconds();
    const int code = session ? butler_prefill(session, ids, n, NULL, NULL, err) : err->code;
    const double seconds = butler_seconds() - start;
    butler_session_free(session);
    return code < 0 ? -1 : n / seconds;
}

static int bench_blocks(struct butler_model *model, const struct options *options, struct butler_error *err)
{
    struct butler_engine *engines[MAX_SIZES] = {0};
    struct butler_engine_params params = options->engine;
    struct rates rates;
    const int n = options->prompt;
    int32_t *ids = butler_alloc((size_t)n * sizeof *ids, err);
    int code = ids ? 0 : BUTLER_ERROR_MEMORY;
    uint64_t random = 1;
    for (int i = 0; i < n && ids; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)butler_model_get_info(model)->n_vocab);
    for (int i = 0; i < options->n_blocks && code == 0; i++) {
        params.n_block = options->blocks[i];
        engines[i] = butler_engine_new(model, &params, err);
        if (!engines[i] || prefill(engines[i], options->policies[0], ids, BUTLER_MIN(n, params.n_block), err) < 0)
            code = err->code; /* the first touch of the file and of the scratch is not measured */
    }
    for (int t = 0; t < options->turns && code == 0; t++)
        for (int i = 0; i < options->n_blocks && code == 0; i++)
            code = (rates.of[i][t] = prefill(engines[i], options->policies[0], ids, n, err)) < 0 ? err->code : 0;
    if (code == 0) {
        printf("policy=%s prompt=%d turns=%d\n", options->policies[0], n, options->turns);
        for (int i = 0; i < options->n_blocks; i++)
            print_rates(&rates, options->turns, i, "  block", options->blocks[i]);
    }
    for (int i = 0; i < options->n_blocks; i++)
        butler_engine_free(engines[i]);
    free(ids);
    return code;
}

/* Whole numbers from min to max, separated by commas. Their number, or -1. */
static int read_sizes(const char *text, int min, int max, int *sizes)
{
    for (int n = 0; n < MAX_SIZES;) {
        char *end;
        const long value = strtol(text, &end, 10);
        if (end == text || value < min || value > max)
            return -1;
        sizes[n++] = (int)value;
        if (*end == 0)
            return n;
        if (*end != ',')
            return -1;
        text = end + 1;
    }
    return -1;
}

static bool read_options(struct options *options, int argc, char **argv)
{
    enum { MAX = 1 << 24 };
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *flag = argv[i], *value = argv[i + 1];
        int one[MAX_SIZES], n = 1;
        if (strcmp(flag, "--kv") == 0 && options->n_policies < MAX_POLICIES)
            options->policies[options->n_policies++] = value;
        else if (strcmp(flag, "--isa") == 0)
            options->engine.isa = value;
        else if (strcmp(flag, "--depth") == 0)
            n = options->n_depths = read_sizes(value, 0, MAX, options->depths);
        else if (strcmp(flag, "--batch") == 0)
            n = options->n_batches = read_sizes(value, 1, MAX_BATCH, options->batches);
        else if (strcmp(flag, "--block") == 0)
            n = options->n_blocks = read_sizes(value, 1, MAX, options->blocks);
        else {
            int *number = strcmp(flag, "--prompt") == 0    ? &options->prompt
                          : strcmp(flag, "--steps") == 0   ? &options->steps
                          : strcmp(flag, "--turns") == 0   ? &options->turns
                          : strcmp(flag, "--threads") == 0 ? &options->engine.n_threads
                                                           : NULL;
            n = number && read_sizes(value, 1, number == &options->turns ? MAX_TURNS : MAX, one) == 1 ? 1 : -1;
            if (n == 1)
                *number = one[0];
        }
        if (n < 1)
            return false;
    }
    if (options->n_policies == 0)
        options->policies[options->n_policies++] = "full";
    return argc >= 2 && argc % 2 == 0 && options->n_batches + options->n_blocks > 0;
}

int main(int argc, char **argv)
{
    struct options options = {.depths = {512}, .n_depths = 1, .prompt = 2048, .steps = 16, .turns = 5};
    struct butler_error err = {0};
    int code = 0;
    if (!read_options(&options, argc, argv)) {
        fprintf(stderr,
                "usage: %s MODEL [--kv POLICY]... [--depth N,...] [--batch N,...] [--prompt N] [--block N,...] [--steps N]\n"
                "       [--turns N] [--threads N] [--isa NAME]: --batch or --block is needed\n",
                argv[0]);
        return 2;
    }
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, &options.engine, &err) : NULL;
    if (!engine)
        code = err.code;
    for (int p = 0; p < options.n_policies && options.n_batches > 0; p++)
        for (int d = 0; d < options.n_depths && code == 0; d++)
            code = bench_decode(engine, &options, options.policies[p], options.depths[d], &err);
    butler_engine_free(engine);
    if (code == 0 && options.n_blocks > 0)
        code = bench_blocks(model, &options, &err);
    if (code)
        fprintf(stderr, "bench_batch: %s\n", err.message);
    butler_model_free(model);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
