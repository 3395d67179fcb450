/* Tokens of a prompt a second, for several instruction sets in turn.
 *
 *     bench_prefill MODEL [--isa NAME,...] [--n N] [--depth N] [--block N] [--threads N] [--kv POLICY] [--repeat N] [--attention N]
 *
 * A prompt of N random tokens follows `depth` made-up ones. Every repetition runs each instruction set once; the last lines
 * are medians. With --attention, so many more runs take the time of attention alone, and set it beside what the unit in use
 * multiplies at most, measured by all threads for a millisecond or two after every layer's attention. Without a matrix unit that
 * are multiply-adds of floats. Of a matrix unit: what was asked for, and what the unit did for it, three products of parts for
 * each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "median.h"
#include "engine/session.h"
#include "base/threads.h"
#include "kernels/kernels.h"

enum { MAX_ISAS = 4, MAX_REPEAT = 99, PARTS = 3 };

struct run {
    struct butler_engine *engine;
    double seconds[MAX_REPEAT];
};

/* The attention of a prompt: its time, and the multiplications and additions of queries with keys and of weights with values. In
 * turns with it, what the threads' units do with nothing else to do. */
struct attention {
    struct butler_pool *pool;
    double start, seconds, ops, ops_a_key; /* of a token and a key */
    double unit_seconds, unit_ops;
    enum ceiling_unit unit;
};

struct ceiling {
    enum ceiling_unit unit;
    double ops;
    float sink;
};

static void ceiling_task(void *context, int task, int thread)
{
    struct ceiling *ceilings = context;
    (void)thread;
    const bool tiles = ceilings[task].unit == CEILING_AMX_BF16;
    ceilings[task].sink = ceiling_dot(ceilings[task].unit, tiles ? 1 << 15 : 1 << 18, &ceilings[task].ops);
}

static void measure_unit(struct attention *attention)
{
    enum { TASKS = 64 };
    struct ceiling ceilings[TASKS];
    const int n = BUTLER_MIN(2 * butler_pool_size(attention->pool), TASKS);
    for (int i = 0; i < n; i++)
        ceilings[i].unit = attention->unit;
    const double start = butler_seconds();
    butler_pool_run(attention->pool, ceiling_task, ceilings, n);
    attention->unit_seconds += butler_seconds() - start;
    for (int i = 0; i < n; i++)
        attention->unit_ops += ceilings[i].ops;
}

static void attention_starts(void *user, int layer, int first, int n, const float *x, const float *h, const float *q,
                             const float *k)
{
    (void)layer, (void)first, (void)n, (void)x, (void)h, (void)q, (void)k;
    ((struct attention *)user)->start = butler_seconds();
}

static void attention_ends(void *user, int layer, int first, int n, const float *q, float *o)
{
    struct attention *attention = user;
    (void)layer, (void)q, (void)o;
    attention->seconds += butler_seconds() - attention->start;
    attention->ops += (double)n * (first + (n + 1) / 2.0) * attention->ops_a_key;
    measure_unit(attention);
}

/* Seconds of one prompt, or less than 0. With attention, that of every layer is measured, and nothing of the last is left out. */
static double prefill(struct butler_engine *engine, const struct butler_session_params *params, int depth, const int32_t *ids,
                      int n, struct attention *attention, struct butler_error *err)
{
    const struct butler_capture capture = {.layer = attention_starts, .attended = attention_ends, .user = attention};
    struct butler_session *session = butler_session_new(engine, params, err);
    double seconds = -1;
    if (session && attention) {
        const struct butler_hparams *hp = &engine->model->hp;
        *attention = (struct attention){.pool = engine->pool,
                                        .ops_a_key = 4.0 * hp->n_heads * hp->head_dim,
                                        .unit = engine->backend->kernels->tiles ? CEILING_AMX_BF16 : CEILING_FMA_F32};
        session->capture = &capture;
    }
    if (session && (depth == 0 || butler_fill(session, depth, 1, err) == 0)) {
        const double start = butler_seconds();
        if (butler_prefill(session, ids, n, NULL, NULL, err) == 0)
            seconds = butler_seconds() - start;
    }
    butler_session_free(session);
    return seconds;
}

/* Rates of attention and of the matrix unit in turns: medians. */
static int report_attention(struct run *run, const struct butler_session_params *params, int depth, const int32_t *ids, int n,
                            int repeat, struct butler_error *err)
{
    double rates[MAX_REPEAT], shares[MAX_REPEAT], seconds[MAX_REPEAT];
    for (int k = 0; k < repeat; k++) {
        struct attention attention;
        if (prefill(run->engine, params, depth, ids, n, &attention, err) < 0)
            return err->code;
        rates[k] = attention.ops / attention.seconds;
        seconds[k] = attention.seconds;
        shares[k] = rates[k] * attention.unit_seconds / attention.unit_ops;
    }
    printf("isa=%s tokens=%d depth=%d repeat=%d attention_s=%.3f attention_gops=%.0f", run->engine->backend->isa, n, depth, repeat,
           median(seconds, repeat), median(rates, repeat) / 1e9);
    const double share = median(shares, repeat);
    if (run->engine->backend->kernels->tiles)
        printf(" of_amx_bf16=%.3f (%.3f to %.3f) unit_busy=%.3f", share, shares[0], shares[repeat - 1], PARTS * share);
    else
        printf(" of_fma=%.3f (%.3f to %.3f)", share, shares[0], shares[repeat - 1]);
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    int n = 512, depth = 0, repeat = 3, n_attention = 0, n_runs = 0, status = EXIT_FAILURE;
    char *isas = NULL;
    struct butler_session_params params = {.kv_type = BUTLER_KV_F16};
    struct butler_engine_params device = {0};
    struct butler_model *model = NULL;
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
            *(strcmp(flag, "--n") == 0           ? &n
              : strcmp(flag, "--depth") == 0     ? &depth
              : strcmp(flag, "--block") == 0     ? &device.n_block
              : strcmp(flag, "--threads") == 0   ? &device.n_threads
              : strcmp(flag, "--attention") == 0 ? &n_attention
                                                 : &repeat) = value;
    }
    if (argc < 2 || argc % 2 || n < 1 || depth < 0 || repeat < 1 || repeat > MAX_REPEAT || n_attention < 0 ||
        n_attention > MAX_REPEAT) {
        fprintf(stderr,
                "usage: %s MODEL [--isa NAME,...] [--n N] [--depth N] [--block N] [--threads N] [--kv POLICY] [--repeat N]"
                " [--attention N]\n",
                argv[0]);
        return EXIT_FAILURE;
    }
    params.n_ctx = depth + n;
    model = butler_model_load(argv[1], NULL, &err);
    if (!model)
        goto fail;
    do {
        char *next = isas ? strchr(isas, ',') : NULL;
        if (next)
            *next++ = 0;
        device.isa = isas;
        if (!(runs[n_runs++].engine = butler_engine_new(model, &device, &err)))
            goto fail;
        isas = next;
    } while (isas && n_runs < MAX_ISAS);
    ids = butler_alloc((size_t)n * sizeof *ids, &err);
    if (!ids)
        goto fail;
    uint64_t random = 1;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)model->hp.n_vocab);
    for (int i = 0; i < n_runs; i++) /* the file's pages are mapped where they are first read */
        if (prefill(runs[i].engine, &params, 0, ids, BUTLER_MIN(n, 64), NULL, &err) < 0)
            goto fail;
    for (int k = 0; k < repeat; k++)
        for (int i = 0; i < n_runs; i++) {
            runs[i].seconds[k] = prefill(runs[i].engine, &params, depth, ids, n, NULL, &err);
            if (runs[i].seconds[k] < 0)
                goto fail;
        }
    for (int i = 0; i < n_runs; i++) {
        qsort(runs[i].seconds, (size_t)repeat, sizeof(double), median_order);
        printf("isa=%s tokens=%d depth=%d repeat=%d tokens_s=%.1f (%.1f to %.1f)\n", runs[i].engine->backend->isa, n, depth, repeat,
               n / runs[i].seconds[repeat / 2], n / runs[i].seconds[repeat - 1], n / runs[i].seconds[0]);
        if (n_attention && report_attention(&runs[i], &params, depth, ids, n, n_attention, &err) < 0)
            goto fail;
    }
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "bench_prefill: %s\n", err.message);
    for (int i = 0; i < n_runs; i++)
        butler_engine_free(runs[i].engine);
    butler_model_free(model);
    free(ids);
    return status;
}
