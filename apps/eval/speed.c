/* Time of a decode step at a depth, beside dense attention in the same minutes: the two take turns, a few tokens each, so that what
 * else the machine does meets both. The cache holds random keys and values, as in `butler bench`: the time depends only on their
 * number. Policies are measured one after the other, each with all threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "parts.h"

enum { ROUNDS = 15, TOKENS = 2 /* of each side in a round */, WARM_UP = 2 /* rounds before them */ };
enum { DECODED = TOKENS * (ROUNDS + WARM_UP) /* by each side; the last token is the text's last */ };

/* The 95 % interval of the median of 15 numbers, by their order: the sign test gives [4th, 12th] 96.5 %. */
enum { LOW = 3, HIGH = 11 };

/* The first value of a field of /proc/cpuinfo. */
static bool read_cpuinfo(const char *field, char *out, size_t n_out)
{
    char line[256];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        found = value && strncmp(line, field, strlen(field)) == 0;
        if (found) {
            value += 1 + strspn(value + 1, " \t");
            snprintf(out, n_out, "%.*s", (int)strcspn(value, "\n"), value);
        }
    }
    if (file)
        fclose(file);
    return found && out[0];
}

/* 64-bit ARM kernels name no model there: the board, or what the core says of itself. */
static void name_processor(char *out, size_t n_out)
{
    char implementer[32], part[32];
    if (read_cpuinfo("model name", out, n_out))
        return;
    FILE *file = fopen("/sys/firmware/devicetree/base/model", "r");
    const bool named = file && fgets(out, (int)n_out, file) && out[0];
    if (file)
        fclose(file);
    if (!named && read_cpuinfo("CPU implementer", implementer, sizeof implementer) && read_cpuinfo("CPU part", part, sizeof part))
        snprintf(out, n_out, "processor %s/%s", implementer, part);
    else if (!named)
        snprintf(out, n_out, "unknown processor");
}

void eval_machine(const struct butler_engine *engine, int n_threads, char *out, size_t n_out)
{
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    char name[128];
    name_processor(name, sizeof name);
    butler_engine_get_info(engine, &info);
    snprintf(out, n_out, "%s, %s, %d threads", name, info.isa, n_threads);
}

static int load(struct eval_run *run, struct butler_error *err)
{
    const int32_t id = 0;
    char machine[EVAL_MACHINE];
    eval_machine(run->engine, run->params->n_threads, machine, sizeof machine);
    /* Another machine or another program is another measurement. */
    run->data_digest = XXH3_64bits_withSeed(machine, strlen(machine), XXH3_64bits(eval_commit(), strlen(eval_commit())));
    run->n_values = 2 * ROUNDS;
    if (run->length <= DECODED)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: speed takes more than %d tokens", DECODED);
    return eval_item_add(run, &id, 1, 1, err) ? 0 : BUTLER_ERROR_MEMORY;
}

static struct butler_session *fill(const struct eval_run *run, struct butler_engine *engine, const char *policy,
                                   struct butler_error *err)
{
    const struct butler_session_params params = {
        .n_ctx = run->length, .kv_type = run->params->kv_type, .policy = policy, .seed = run->seed};
    struct butler_session *session = butler_session_new(engine, &params, err);
    if (session && butler_fill(session, run->length - DECODED, run->seed, err) == 0)
        return session;
    butler_session_free(session);
    return NULL;
}

/* Milliseconds a token. */
static int decode(const struct eval_run *run, struct butler_session *session, double *ms, struct butler_error *err)
{
    const double start = butler_seconds();
    int code = eval_check_stop(run, err);
    for (int i = 0; i < TOKENS && code == 0; i++)
        code = butler_step(session, (int32_t)(butler_n_past(session) % run->info->n_vocab), err);
    *ms = 1e3 * (butler_seconds() - start) / TOKENS;
    return code;
}

/* values[ROUNDS][2]: ms under the policy, and densely. */
static int measure_one(const struct eval_run *run, struct butler_engine *engine, const char *policy, double *values,
                       struct eval_cost *cost, struct butler_error *err)
{
    struct butler_session *session = fill(run, engine, policy, err), *dense = session ? fill(run, engine, "full", err) : NULL;
    int code = dense ? 0 : err->code;
    double unused[2];
    for (int round = -WARM_UP; round < ROUNDS && code == 0; round++) {
        double *ms = round < 0 ? unused : values + 2 * round;
        if (round == 0)
            butler_session_stats_reset(session);
        code = decode(run, round % 2 ? dense : session, &ms[round % 2 != 0], err); /* who is first alternates */
        if (code == 0)
            code = decode(run, round % 2 ? session : dense, &ms[round % 2 == 0], err);
    }
    if (code == 0) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        butler_session_stats(session, &stats);
        *cost = (struct eval_cost){.n_decode = (double)stats.n_decode,
                                   .kv_bytes = (double)stats.kv_bytes,
                                   .metric_bytes = (double)stats.metric_bytes,
                                   .full_kv_bytes = (double)stats.full_kv_bytes};
    }
    butler_session_free(session);
    butler_session_free(dense);
    return code;
}

static int measure(const struct eval_run *run, const struct eval_item *item, const struct eval_policy *const *policies, int n,
                   double *const *values, struct eval_cost *costs, struct butler_error *err)
{
    (void)item;
    struct butler_engine *engine = eval_engine_beside(run, run->params->n_threads, err);
    int code = engine ? 0 : BUTLER_ERROR_MEMORY;
    for (int p = 0; p < n && code == 0; p++)
        code = measure_one(run, engine, policies[p]->text, values[p], &costs[p], err);
    butler_engine_free(engine);
    return code;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    double ms[ROUNDS], gain[ROUNDS];
    char machine[EVAL_MACHINE];
    (void)err;
    for (int i = 0; i < ROUNDS; i++) {
        ms[i] = values[2 * i];
        gain[i] = values[2 * i + 1] / values[2 * i];
    }
    qsort(ms, ROUNDS, sizeof *ms, ascending);
    qsort(gain, ROUNDS, sizeof *gain, ascending);
    eval_machine(run->engine, run->params->n_threads, machine, sizeof machine);
    out[0] = (struct eval_row){"ms", ms[ROUNDS / 2], ms[LOW], ms[HIGH], ROUNDS, json_pack("{s:s}", "machine", machine)};
    out[1] = (struct eval_row){"speed_up", gain[ROUNDS / 2], gain[LOW], gain[HIGH], ROUNDS, json_pack("{s:s}", "machine", machine)};
    return 2;
}

const struct eval_task eval_speed = {
    .name = "speed",
    .summary = "time of a decode step beside dense attention, in turns",
    .work = "decodes 68 tokens at the end of --length random ones; one policy at a time, with all threads (-t)",
    .details =
        "ms: a decode step at the end of --length random keys and values. speed_up: dense attention's time divided by it, the\n"
        "median of 15 turns of two tokens each, with its interval by the sign test.\n",
    .length = 4096,
    .limit = 1,
    .load = load,
    .run_together = measure,
    .rows = rows,
};
