/* butler bench on several devices: an engine and a thread on each, the sessions placed over them (TinyServe's Table 3). */
#include <pthread.h>
#include <string.h>

#include "cmd.h"
#include "bench.h"
#include "base/util.h"

enum { MOST_DEVICES = 16 };

/* A device at work. */
struct worker {
    struct bench bench;
    const char *device;
    pthread_barrier_t *ready; /* of all workers: what is measured begins together */
    int status;
    double start, end;
};

struct fleet {
    struct cmd_options *options;
    struct butler_engine *engines[MOST_DEVICES];
    struct butler_device_info devices[MOST_DEVICES];
    int n;
    double alone; /* tokens a second of the first device, of the policy and depth under way */
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct bench *bench = &worker->bench;
    worker->status = bench_prepare(bench);
    if (worker->status == CMD_DONE)
        worker->status = bench_decode(bench, -bench->options->warmup, 0);
    pthread_barrier_wait(worker->ready);
    worker->start = butler_seconds();
    if (worker->status == CMD_DONE)
        worker->status = bench_decode(bench, 0, bench->options->n);
    worker->end = butler_seconds();
    return NULL;
}

/* Tokens that the sessions of a device say they decoded. */
static uint64_t tokens_of(const struct bench *bench)
{
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    uint64_t n = 0;
    for (int b = 0; b < bench->batch; b++) {
        butler_session_stats(bench->sessions[b], &stats);
        n += stats.n_decode;
    }
    return n;
}

/* A quantile of the milliseconds of all rounds of n devices. */
static double step_ms(const struct worker *workers, int n, double share)
{
    const int n_rounds = workers->bench.options->n;
    double *values = cmd_alloc((size_t)n * (size_t)n_rounds, sizeof *values);
    for (int i = 0; i < n * n_rounds; i++)
        values[i] = workers[i / n_rounds].bench.rounds[i % n_rounds].ms;
    const double ms = bench_quantile(values, n * n_rounds, share);
    free(values);
    return ms;
}

static void print(struct fleet *fleet, const struct worker *workers, int n)
{
    const struct cmd_options *options = fleet->options;
    const struct bench *bench = &workers[0].bench;
    double start = workers[0].start, end = workers[0].end, tokens = 0;
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    json_t *each = json_array();
    for (int i = 0; i < n; i++) {
        start = workers[i].start < start ? workers[i].start : start;
        end = workers[i].end > end ? workers[i].end : end;
        tokens += (double)tokens_of(&workers[i].bench);
    }
    const double speed = tokens / (end - start), ms = step_ms(workers, n, 0.5), p99 = step_ms(workers, n, 0.99);
    fleet->alone = n == 1 ? speed : fleet->alone;
    const double speed_up = speed / fleet->alone;
    if (!options->json)
        cmd_printf("%-32s %8d %5d %7d %10.2f %8.2f %10.1f %% %9.3f %9.3f\n", bench->policy, bench->depth, options->batch, n, speed,
                   speed_up, 100 * speed_up / n, ms, p99);
    for (int i = 0; i < n; i++) {
        const uint64_t own = tokens_of(&workers[i].bench);
        const double own_speed = (double)own / (workers[i].end - workers[i].start), own_ms = step_ms(&workers[i], 1, 0.5);
        butler_engine_get_info(workers[i].bench.engine, &info);
        json_array_append_new(each, json_pack("{s:s, s:o, s:i, s:I, s:f, s:f}", "device", workers[i].device, "name",
                                              cmd_json_text(info.isa, strlen(info.isa)), "batch", workers[i].bench.batch, "tokens",
                                              (json_int_t)own, "tok_s", own_speed, "ms_step", own_ms));
        if (!options->json && n > 1)
            cmd_printf("  %-30s %8s %5d %7s %10.2f %8s %12s %9.3f\n", workers[i].device, "", workers[i].bench.batch, "", own_speed,
                       "", "", own_ms);
    }
    if (options->json)
        cmd_row(json_pack("{s:s, s:o, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:O}", "policy", bench->policy, "model",
                          bench_model_name(options), "depth", bench->depth, "batch", options->batch, "devices", n, "tok_s", speed,
                          "speed_up", speed_up, "efficiency", speed_up / n, "ms_step", ms, "ms_step_p99", p99, "by_device", each));
    json_decref(each);
    cmd_out_flush();
}

/* On the first n devices: session b goes to the one with the fewest so far, which is device b modulo n. */
static int measure(struct fleet *fleet, const char *policy, int depth, int n)
{
    struct cmd_options *options = fleet->options;
    struct worker workers[MOST_DEVICES] = {0};
    pthread_t threads[MOST_DEVICES];
    pthread_barrier_t ready;
    int status = CMD_DONE, first = 0, code = 0, n_started = 0;
    for (int i = 0; i < n; i++) {
        const int batch = options->batch / n + (i < options->batch % n);
        workers[i] = (struct worker){
            .bench =
                {.options = options, .engine = fleet->engines[i], .policy = policy, .depth = depth, .batch = batch, .first = first},
            .device = fleet->devices[i].device,
            .ready = &ready};
        first += batch;
    }
    pthread_barrier_init(&ready, NULL, (unsigned)n);
    for (; n_started < n - 1 && code == 0; n_started += code == 0)
        code = pthread_create(&threads[n_started], NULL, work, &workers[n_started + 1]);
    if (code) { /* the others wait for it */
        cmd_say(options, "no thread for %s", workers[n_started + 1].device);
        exit(CMD_FAILED);
    }
    work(&workers[0]);
    for (int i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&ready);
    for (int i = n - 1; i >= 0; i--)
        status = workers[i].status != CMD_DONE ? workers[i].status : status;
    if (status == CMD_DONE)
        print(fleet, workers, n);
    for (int i = 0; i < n; i++)
        bench_free(&workers[i].bench);
    return status;
}

int cmd_bench_devices(struct cmd_options *options)
{
    struct fleet fleet = {.options = options};
    int status = CMD_DONE;
    fleet.n = cmd_engines_load(options, fleet.engines, fleet.devices, MOST_DEVICES, &status);
    if (fleet.n > options->batch) {
        cmd_say(options, "--batch: %d sessions do not go over %d devices; each needs one", options->batch, fleet.n);
        status = CMD_USAGE;
    }
    if (status == CMD_DONE && !options->json)
        cmd_printf("%-32s %8s %5s %7s %10s %8s %12s %9s %9s\n", "policy", "depth", "batch", "devices", "tokens/s", "speed-up",
                   "efficiency", "ms/step", "p99");
    for (int d = 0; status == CMD_DONE && d < options->depths.n; d++)
        for (int k = 0; status == CMD_DONE && k < options->kv.n; k++)
            for (int n = 1; status == CMD_DONE && n <= fleet.n; n = n < fleet.n && 2 * n > fleet.n ? fleet.n : 2 * n)
                status = measure(&fleet, options->kv.values[k], options->depths.values[d], n);
    for (int i = fleet.n - 1; i > 0; i--)
        butler_engine_free(fleet.engines[i]);
    if (fleet.n > 0)
        cmd_engine_free(fleet.engines[0]);
    return status;
}
