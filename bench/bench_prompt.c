/* Where a prompt's time goes, for several instruction sets and precisions of activations in turn.
 *
 *     bench_prompt MODEL [--isa NAME,...] [--bits 8,16] [--n N] [--threads N] [--repeat N]
 *
 * A prompt of N random tokens is read by every combination once a repetition. A line of JSON each time: seconds on the clock and of
 * processor time (of all threads), processor time of products, of the quantising of activations and of the unpacking of weights in
 * them (8 bits), of attention, and of the rest; and what the products and attention multiplied and added. With one thread and on a
 * shared machine processor time is the steadier of both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/session.h"
#include "kernels/kernels.h"

enum { MOST = 8 };

struct parts {
    double products, attention, quantise, unpack, product_ops, attention_ops;
};

/* What is measured now: operations of the backend and entries of the kernel table are given no pointer of a caller. */
static struct parts parts;
static struct butler_backend real;
static const struct butler_kernels *kernels;

static double processor(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add_time(double *to, double seconds)
{
    double old, sum;
    __atomic_load(to, &old, __ATOMIC_RELAXED);
    do
        sum = old + seconds;
    while (!__atomic_compare_exchange(to, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static void timed_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                         int n_products, const float *x, int n)
{
    const double start = processor(CLOCK_PROCESS_CPUTIME_ID);
    real.matmul(backend, work, products, n_products, x, n);
    parts.products += processor(CLOCK_PROCESS_CPUTIME_ID) - start;
    for (int i = 0; i < n_products; i++)
        parts.product_ops += 2.0 * products[i].w->n_rows * products[i].w->n_cols * n;
}

static void timed_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                         int n)
{
    const double start = processor(CLOCK_PROCESS_CPUTIME_ID);
    real.append(backend, state, k, v, n);
    parts.attention += processor(CLOCK_PROCESS_CPUTIME_ID) - start;
}

static void timed_attention(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                            int n, int window, int observe_from)
{
    const double start = processor(CLOCK_PROCESS_CPUTIME_ID);
    real.attend_block(backend, state, q, out, n, window, observe_from);
    parts.attention += processor(CLOCK_PROCESS_CPUTIME_ID) - start;
    parts.attention_ops += 4.0 * state->n_heads * state->kv->head_dim * n * (state->position + n / 2.0);
}

static void timed_quantise(void *q8, enum butler_type type, const float *x, int n_tokens, int n)
{
    const double start = processor(CLOCK_THREAD_CPUTIME_ID);
    kernels->quantise_q8(q8, type, x, n_tokens, n);
    add_time(&parts.quantise, processor(CLOCK_THREAD_CPUTIME_ID) - start);
}

#define TIMED_UNPACK(type, name, ...)                                                                                              \
    static void timed_unpack_##name(void *panel, const void *w, size_t row_bytes, int n_rows, int n, bool is_signed)               \
    {                                                                                                                              \
        const double start = processor(CLOCK_THREAD_CPUTIME_ID);                                                                   \
        kernels->unpack_q8[BUTLER_##type](panel, w, row_bytes, n_rows, n, is_signed);                                              \
        add_time(&parts.unpack, processor(CLOCK_THREAD_CPUTIME_ID) - start);                                                       \
    }
#define TIMED_ENTRY(type, name, ...) [BUTLER_##type] = timed_unpack_##name,
BUTLER_WEIGHT_TYPES(TIMED_UNPACK)

/* One prompt; false on failure. */
static bool prompt(struct butler_engine *engine, const int32_t *ids, int n, int round, struct butler_error *err)
{
    static const struct butler_kernels timed = {.unpack_q8 = {BUTLER_WEIGHT_TYPES(TIMED_ENTRY)}};
    struct butler_kernels table = *engine->backend->kernels;
    struct butler_session *session = butler_session_new(engine, &(struct butler_session_params){.n_ctx = n}, err);
    if (!session)
        return false;
    parts = (struct parts){0};
    real = *engine->backend;
    kernels = real.kernels;
    table.quantise_q8 = timed_quantise;
    memcpy(table.unpack_q8, timed.unpack_q8, sizeof table.unpack_q8);
    engine->backend->kernels = &table;
    engine->backend->matmul = timed_matmul;
    engine->backend->append = timed_append;
    engine->backend->attend_block = timed_attention;
    const double wall = butler_seconds(), start = processor(CLOCK_PROCESS_CPUTIME_ID);
    const bool done = butler_prefill(session, ids, n, NULL, NULL, err) == 0;
    const double seconds = processor(CLOCK_PROCESS_CPUTIME_ID) - start;
    *engine->backend = real;
    if (done && round >= 0)
        printf("{\"isa\": \"%s\", \"bits\": %d, \"tokens\": %d, \"threads\": %d, \"round\": %d, \"wall_s\": %.4f, \"cpu_s\": %.4f, "
               "\"products_s\": %.4f, \"quantise_s\": %.4f, \"unpack_s\": %.4f, \"attention_s\": %.4f, \"rest_s\": %.4f, "
               "\"product_gop\": %.2f, \"attention_gop\": %.2f}\n",
               real.isa, real.activation_bits, n, butler_pool_size(engine->pool), round, butler_seconds() - wall, seconds,
               parts.products, parts.quantise, parts.unpack, parts.attention, seconds - parts.products - parts.attention,
               parts.product_ops / 1e9, parts.attention_ops / 1e9);
    fflush(stdout);
    butler_session_free(session);
    return done;
}

int main(int argc, char **argv)
{
    int n = 512, repeat = 3, n_engines = 0, status = EXIT_FAILURE;
    char isas[64] = "", *bits = "8,16", *rest = NULL;
    struct butler_engine_params device = {0};
    struct butler_engine *engines[MOST] = {NULL};
    struct butler_error err = {0};
    int32_t *ids = NULL;
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], "--isa") == 0)
            snprintf(isas, sizeof isas, "%s", argv[i + 1]);
        else if (strcmp(argv[i], "--bits") == 0)
            bits = argv[i + 1];
        else
            *(strcmp(argv[i], "--n") == 0         ? &n
              : strcmp(argv[i], "--threads") == 0 ? &device.n_threads
                                                  : &repeat) = atoi(argv[i + 1]);
    if (argc < 2 || argc % 2 || n < 1 || repeat < 1) {
        fprintf(stderr, "usage: %s MODEL [--isa NAME,...] [--bits 8,16] [--n N] [--threads N] [--repeat N]\n", argv[0]);
        return EXIT_FAILURE;
    }
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    if (!model || !(ids = butler_alloc((size_t)n * sizeof *ids, &err)))
        goto fail;
    uint64_t random = 1;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)model->hp.n_vocab);
    for (char *isa = strtok_r(isas, ",", &rest), *first = isa; (isa || !first) && n_engines + 1 < MOST;) {
        for (int b = 16; b >= 8; b -= 8) {
            device.isa = isa;
            device.activation_bits = b;
            if (!strstr(bits, b == 8 ? "8" : "16"))
                continue;
            if (!(engines[n_engines] = butler_engine_new(model, &device, &err)) ||
                !prompt(engines[n_engines++], ids, BUTLER_MIN(n, 64), -1,
                        &err)) /* the file's pages are mapped where they are first read */
                goto fail;
        }
        if (!isa || !(isa = strtok_r(NULL, ",", &rest)))
            break;
    }
    for (int round = 0; round < repeat; round++)
        for (int i = 0; i < n_engines; i++)
            if (!prompt(engines[i], ids, n, round, &err))
                goto fail;
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "bench_prompt: %s\n", err.message);
    for (int i = 0; i < n_engines; i++)
        butler_engine_free(engines[i]);
    butler_model_free(model);
    free(ids);
    return status;
}
