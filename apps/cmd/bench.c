/* butler bench: time and bytes per token at a given cache depth. The cache is filled with random keys and values: the time
 * depends only on their number. */
#include <math.h>
#include <string.h>

#include "cmd.h"
#include "bench.h"
#include "base/util.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, int n, double share)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    const double at = share * (n - 1);
    const int below = (int)at, above = below + 1 < n ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

/* Median of one field of every round. */
static double median(const struct bench *bench, size_t offset)
{
    int n = bench->options->n;
    double *values = cmd_alloc((size_t)n, sizeof *values);
    for (int i = 0; i < n; i++)
        values[i] = *(const double *)((const char *)&bench->rounds[i] + offset);
    double middle = bench_quantile(values, n, 0.5);
    free(values);
    return middle;
}

int bench_prepare(struct bench *bench)
{
    const struct cmd_options *options = bench->options;
    struct butler_error err = {0};
    int status = CMD_DONE, n_ctx = bench->depth + options->warmup + options->n;
    bench->sessions = cmd_alloc((size_t)bench->batch, sizeof *bench->sessions);
    bench->rounds = cmd_alloc((size_t)options->n, sizeof *bench->rounds);
    for (int b = 0; b < bench->batch; b++) {
        bench->sessions[b] = cmd_session_new(options, bench->engine, bench->policy, n_ctx, &status);
        if (!bench->sessions[b])
            return status;
        if (bench->depth && butler_fill(bench->sessions[b], bench->depth, options->seed + (uint64_t)(bench->first + b), &err) < 0)
            return cmd_fail(options, &err);
    }
    return CMD_DONE;
}

int bench_decode(struct bench *bench, int first, int end)
{
    const struct cmd_options *options = bench->options;
    struct butler_error *errs = cmd_alloc((size_t)bench->batch, sizeof *errs);
    struct butler_stats *before = cmd_alloc((size_t)bench->batch, sizeof *before), after = {BUTLER_INIT(butler_stats)};
    int32_t *ids = cmd_alloc((size_t)bench->batch, sizeof *ids);
    int n_vocab = butler_model_get_info(butler_engine_model(bench->engine))->n_vocab, status = CMD_DONE;
    uint64_t random = options->seed + 1 + (uint64_t)(first + options->warmup);
    for (int i = first; i < end && status == CMD_DONE; i++) {
        struct bench_round round = {0};
        for (int b = 0; b < bench->batch; b++) {
            if (i == 0)
                butler_session_stats_reset(bench->sessions[b]);
            butler_session_stats(bench->sessions[b], &before[b]);
            random = random * 6364136223846793005u + 1442695040888963407u;
            ids[b] = (int32_t)((random >> 33) % (uint64_t)n_vocab);
        }
        double start = butler_seconds();
        if (butler_step_batch(bench->sessions, ids, bench->batch, errs) < 0) {
            int failed = 0;
            while (failed + 1 < bench->batch && errs[failed].code == 0)
                failed++;
            status = cmd_fail(options, &errs[failed]);
        }
        round.ms = 1e3 * (butler_seconds() - start);
        for (int b = 0; b < bench->batch; b++) {
            butler_session_stats(bench->sessions[b], &after);
            round.predict_us += 1e6 * (after.predict_s - before[b].predict_s);
            round.score_us += 1e6 * (after.score_s - before[b].score_s);
            round.select_us += 1e6 * (after.select_s - before[b].select_s);
            round.attend_us += 1e6 * (after.attend_s - before[b].attend_s);
        }
        if (i >= 0)
            bench->rounds[i] = round;
    }
    free(errs);
    free(before);
    free(ids);
    return status;
}

void bench_free(struct bench *bench)
{
    for (int b = 0; bench->sessions && b < bench->batch; b++)
        butler_session_free(bench->sessions[b]);
    free(bench->sessions);
    free(bench->rounds);
}

json_t *bench_model_name(const struct cmd_options *options)
{
    const char *slash = options->model ? strrchr(options->model, '/') : NULL;
    const char *file = slash ? slash + 1 : options->model ? options->model : "butler-default.gguf";
    return cmd_json_text(file, strlen(file));
}

static void print_row(const struct bench *bench)
{
    const struct cmd_options *options = bench->options;
    struct butler_stats sum = {0}, stats = {BUTLER_INIT(butler_stats)};
    for (int b = 0; b < options->batch; b++) {
        butler_session_stats(bench->sessions[b], &stats);
        sum.weight_bytes += stats.weight_bytes;
        sum.kv_bytes += stats.kv_bytes;
        sum.metric_bytes += stats.metric_bytes;
        sum.full_kv_bytes += stats.full_kv_bytes;
        sum.predict_bytes += stats.predict_bytes;
        sum.pages_wanted += stats.pages_wanted;
        sum.pages_fetched += stats.pages_fetched;
        sum.disk_bytes += stats.disk_bytes;
        sum.disk_s += stats.disk_s;
    }
    uint64_t tokens = (uint64_t)options->n * (uint64_t)options->batch;
    double batch = options->batch;
    double ms = median(bench, offsetof(struct bench_round, ms)) / batch;
    double predict = median(bench, offsetof(struct bench_round, predict_us)) / batch;
    double score = median(bench, offsetof(struct bench_round, score_us)) / batch;
    double select = median(bench, offsetof(struct bench_round, select_us)) / batch;
    double attend = median(bench, offsetof(struct bench_round, attend_us)) / batch;
    if (!options->json) {
        double read = sum.full_kv_bytes ? 100 * (double)(sum.kv_bytes + sum.metric_bytes) / (double)sum.full_kv_bytes : 0;
        cmd_printf("%-32s %8d %5d %10.2f %10.3f %8.1f %% %10.0f %10.0f %10.0f\n", bench->policy, bench->depth, options->batch,
                   1e3 / ms, ms, read, score, select, attend);
        if (options->kv_ram > 0)
            cmd_printf("  pages of a token %.0f, from %s %.1f %%, %.1f MB; it waited %.3f ms for these\n",
                       (double)sum.pages_wanted / (double)tokens,
                       !options->device || !strcmp(options->device, "cpu") ? "the disk" : "host memory",
                       sum.pages_wanted ? 100 * (double)sum.pages_fetched / (double)sum.pages_wanted : 0.0,
                       1e-6 * (double)sum.disk_bytes / (double)tokens, 1e3 * sum.disk_s / (double)tokens);
        cmd_out_flush();
        return;
    }
    cmd_row(json_pack("{s:s, s:o, s:i, s:i, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f}", "policy",
                      bench->policy, "model", bench_model_name(options), "depth", bench->depth, "batch", options->batch, "tok_s",
                      1e3 / ms, "ms_tok", ms, "weight_bytes", (json_int_t)(sum.weight_bytes / tokens), "kv_bytes",
                      (json_int_t)(sum.kv_bytes / tokens), "metric_bytes", (json_int_t)(sum.metric_bytes / tokens), "full_kv_bytes",
                      (json_int_t)(sum.full_kv_bytes / tokens), "us_score", score, "us_select", select, "us_attend", attend,
                      "us_predict", predict, "predict_bytes", (json_int_t)(sum.predict_bytes / tokens), "pages_wanted",
                      (json_int_t)(sum.pages_wanted / tokens), "pages_fetched", (json_int_t)(sum.pages_fetched / tokens),
                      "disk_bytes", (json_int_t)(sum.disk_bytes / tokens), "us_disk", 1e6 * sum.disk_s / (double)tokens));
}

static int measure(struct bench *bench)
{
    int status = bench_prepare(bench);
    if (status == CMD_DONE)
        status = bench_decode(bench, -bench->options->warmup, bench->options->n);
    if (status == CMD_DONE)
        print_row(bench);
    bench_free(bench);
    return status;
}

static int run(struct cmd_options *options)
{
    int status = CMD_DONE;
    if (options->n < 1) {
        cmd_say(options, "-n: '%d' is not allowed; bench takes a whole number of tokens, 1 or more", options->n);
        return CMD_USAGE;
    }
    if (options->file && !options->given[CMD_LOSSLESS]) {
        cmd_say(options, "-f: only --lossless goes on from a text");
        return CMD_USAGE;
    }
    if (options->batch > 1 && options->given[CMD_LOSSLESS]) {
        cmd_say(options, "--batch: --lossless measures one session");
        return CMD_USAGE;
    }
    if (cmd_names_devices(options) && options->given[CMD_LOSSLESS]) {
        cmd_say(options, "--device %s: --lossless measures one device", options->device);
        return CMD_USAGE;
    }
    if (cmd_names_devices(options))
        return cmd_bench_devices(options);
    if (options->given[CMD_LOSSLESS]) /* policies share what was read */
        options->prefix_bytes = (uint64_t)64 << 30;
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (!engine)
        return status;
    if (options->given[CMD_LOSSLESS])
        status = cmd_bench_lossless(options, engine);
    else if (!options->json)
        cmd_printf("%-32s %8s %5s %10s %10s %10s %10s %10s %10s\n", "policy", "depth", "batch", "tokens/s", "ms/token", "KV read",
                   "us score", "us select", "us attend");
    for (int d = 0; !options->given[CMD_LOSSLESS] && status == CMD_DONE && d < options->depths.n; d++)
        for (int k = 0; status == CMD_DONE && k < options->kv.n; k++) {
            struct bench bench = {.options = options,
                                  .engine = engine,
                                  .policy = options->kv.values[k],
                                  .depth = options->depths.values[d],
                                  .batch = options->batch};
            status = measure(&bench);
        }
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},    {CMD_KV, "full"},     {CMD_DEPTH, "1024,4096"}, {CMD_N, "32"},         {CMD_WARMUP, "4"},
    {CMD_BATCH, "1"},     {CMD_KV_TYPE, "f16"}, {CMD_KV_RESIDENT, "0"},   {CMD_THREADS, "0"},    {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},      {CMD_PRECISION, "8"}, {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"}, {CMD_ROPE_ORIGINAL, "0"},
    {CMD_SEED, "0"},      {CMD_PLUGIN, NULL},   {CMD_PREDICTOR, NULL},    {CMD_JSON, NULL},      {CMD_HELP, NULL},
    {CMD_LOSSLESS, NULL}, {CMD_FILE, NULL},     {CMD_NONE, NULL},
};

const struct cmd_command cmd_bench = {
    .name = "bench",
    .synopsis = "[-m FILE] [--kv POLICY]... [-d DEPTH,...] [-n N] [--batch B] [--device NAME] [--json]",
    .summary = "time and bytes per token at a cache depth",
    .details =
        "For every depth and policy: fills a cache of that many tokens with random keys and values, decodes --warmup tokens,\n"
        "then -n more, and prints medians over those. Bytes are what the kernels were asked to read for one token, on average.\n"
        "With --batch B, B sessions of that depth decode one token each at the same time and share every row of weights: the\n"
        "time and the bytes of one token are the mean over the sessions.\n\n"
        "With --json one row for each: {\"policy\", \"model\", \"depth\", \"batch\", \"tok_s\", \"ms_tok\", \"weight_bytes\", "
        "\"kv_bytes\",\n"
        "\"metric_bytes\", \"full_kv_bytes\", \"us_score\", \"us_select\", \"us_attend\", \"us_predict\",\n"
        "\"predict_bytes\"}.\n\n"
        "With --device of several (cuda:all, opencl:0,opencl:1) the B sessions are placed over the first, the first two, four and "
        "so\n"
        "on of them, and over all. Each device decodes its sessions at the same time as the others. Printed are tokens per second\n"
        "of all and of each, the speed-up over the first alone, that by the number of devices (efficiency), and the median\n"
        "and the 99th percentile of a step, which is what a session waits for a token. With --json: policy, model, depth,\n"
        "batch, devices, tok_s, speed_up, efficiency, ms_step, ms_step_p99, by_device: [{device, name, batch, tokens, tok_s, "
        "ms_step}].\n\n"
        "With --lossless: dense, lossless (drafts under --kv, checked) and sparse (--kv alone) decoding of -n tokens behind\n"
        "the first DEPTH tokens of the text of -f, in turns of 16 tokens, greedily. Without -f behind random keys and values,\n"
        "where times mean something and right drafts do not. Printed are medians over turns, drafts and\n"
        "tokens of a check, and the speed-up that these would give if a check took as long as a dense step (ceiling).\n"
        "The command fails if the lossless text is not the dense one. --lossless=G makes G drafts for every check, --lossless as "
        "many as pay. With --json the keys are policy, depth, n,\n"
        "dense_ms, lossless_ms, sparse_ms, speed_up, ci, ceiling, n_checks, n_drafted, n_accepted, draft_s, check_s, and bytes of "
        "a "
        "token:\n"
        "weight_bytes, kv_bytes, metric_bytes, full_kv_bytes.\n",
    .uses = uses,
    .run = run,
};
