/* butler eval: quality of policies and bytes that they read, task by task. The work is done in eval/; this file has the flags,
 * the progress bar and the output. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "cmd.h"
#include "base/util.h"
#include "train/train.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

struct screen {
    const struct cmd_options *options;
    struct cmd_bar bar;
    int n_rows;
};

static void show_progress(void *user, double done)
{
    struct screen *screen = user;
    cmd_bar_show(&screen->bar, done);
}

static double real_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void show_row(void *user, const json_t *row)
{
    struct screen *screen = user;
    cmd_bar_wipe(&screen->bar);
    if (screen->options->json) {
        cmd_row(json_deep_copy(row));
        return;
    }
    const json_t *ci = json_object_get(row, "ci"), *lo = json_array_get(ci, 0), *hi = json_array_get(ci, 1);
    if (screen->n_rows++ == 0)
        cmd_printf("%-40s %8s %-18s %10s %21s %8s %8s\n", "policy", "length", "metric", "value", "95 % interval", "n", "KV read");
    cmd_printf("%-40s %8.0f %-18s %10.4f [%9.4f,%9.4f] %8.0f %6.1f %%\n", json_string_value(json_object_get(row, "policy")),
               real_of(row, "length"), json_string_value(json_object_get(row, "metric")), real_of(row, "value"),
               json_is_number(lo) ? json_number_value(lo) : (double)NAN, json_is_number(hi) ? json_number_value(hi) : (double)NAN,
               real_of(row, "n"), 100 * real_of(row, "kv_read"));
    cmd_out_flush();
}

static void show_note(void *user, const char *text)
{
    struct screen *screen = user;
    cmd_bar_wipe(&screen->bar);
    cmd_say(screen->options, "%s", text);
}

static bool is_stopped(void *user)
{
    (void)user;
    return interrupted;
}

/* Subsets to run one after the other: all of the task's, unless --set names one. */
static int count_subsets(const struct cmd_options *options, const struct eval_task *task)
{
    int n = 0;
    for (int i = 0; i < options->settings.n; i++)
        if (strncmp(options->settings.values[i], "subset=", 7) == 0 || strstr(options->settings.values[i], ",subset="))
            return 0;
    while (task->subset && task->subset(n))
        n++;
    return n;
}

static int share(const void *user, double *values, size_t n, struct butler_error *err)
{
    const struct butler_gather *gather = user;
    return gather->share(gather, values, n, err);
}

static int run_lengths(const struct cmd_options *options, const struct eval_task *task, struct butler_engine *engine,
                       const struct butler_gather *gather)
{
    struct screen screen = {.options = options};
    cmd_bar_begin(&screen.bar, options, "");
    const struct eval_events quiet = {.stopped = is_stopped}, loud = {.user = &screen,
                                                                      .progress = show_progress,
                                                                      .row = show_row,
                                                                      .note = show_note,
                                                                      .stopped = is_stopped};
    const struct eval_events *events = gather->rank == 0 ? &loud : &quiet;
    const struct eval_processes processes = {gather->rank, gather->n_ranks, gather, share};
    const char *slash = options->model ? strrchr(options->model, '/') : NULL;
    char conditions[CMD_CONDITIONS];
    struct eval_params params = {
        .data = options->data,
        .limit = options->limit,
        .seed = options->seed,
        .mode = options->mode,
        .policies = options->kv.values,
        .n_policies = options->kv.n,
        .budgets = options->budgets.values,
        .n_budgets = options->budgets.n,
        .settings = options->settings.values,
        .n_settings = options->settings.n,
        .kv_type = (enum butler_kv_type)options->kv_type,
        .activation_bits = options->precision,
        .conditions = cmd_conditions(options, conditions),
        .centres = cmd_centres_digest(options),
        .n_threads = options->n_threads ? options->n_threads : butler_n_processors(),
        .output = options->output,
        .processes = &processes,
        .library = options->cache,
        .library_bytes = options->cache_bytes,
        .model_name = slash            ? slash + 1
                      : options->model ? options->model
                                       : "butler-default.gguf",
    };
    const int n_lengths = BUTLER_MAX(options->lengths.n, 1), n_subsets = count_subsets(options, task);
    int code = 0;
    for (int i = 0; code != EVAL_STOPPED && i < n_lengths * BUTLER_MAX(n_subsets, 1); i++) {
        struct butler_error err = {0};
        params.length = options->lengths.n ? options->lengths.values[i % n_lengths] : 0;
        params.subset = n_subsets > 0 ? task->subset(i / n_lengths) : NULL;
        cmd_bar_begin(&screen.bar, options, "");
        code = eval_execute(task, engine, &params, events, &err);
        if (gather->rank == 0)
            cmd_bar_wipe(&screen.bar);
        if (code < 0)
            return cmd_fail(options, &err);
    }
    if (code == EVAL_STOPPED) {
        cmd_say(options, options->output ? "stopped; the same command continues after the items in %s.items" : "stopped",
                options->output);
        return CMD_FAILED;
    }
    return CMD_DONE;
}

static void print_tasks(FILE *out)
{
    for (int i = 0; eval_tasks[i]; i++)
        fprintf(out, "  %-10s %s\n", eval_tasks[i]->name, eval_tasks[i]->summary);
}

static json_t *options_of(const struct eval_task *task)
{
    json_t *out = json_object();
    for (int i = 0; task->options && task->options[i].name; i++)
        json_object_set_new(out, task->options[i].name, json_string(task->options[i].value));
    return out;
}

/* Indented, line by line. */
static void print_details(const char *text)
{
    while (*text) {
        const int n = (int)strcspn(text, "\n");
        cmd_printf("             %.*s\n", n, text);
        text += n + (text[n] == '\n');
    }
}

/* What each task needs and costs. */
static int list_tasks(const struct cmd_options *options)
{
    for (int i = 0; eval_tasks[i]; i++) {
        const struct eval_task *task = eval_tasks[i];
        const char *data = task->data ? task->data : "see below", *work = task->work ? task->work : "see below";
        if (options->json) {
            cmd_row(json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:o}", "task", task->name, "summary", task->summary, "data",
                              data, "work", work, "details", task->details, "length", task->length, "limit", task->limit, "options",
                              options_of(task)));
            continue;
        }
        cmd_printf("%-10s %s\n  data       %s\n  an item    %s\n", task->name, task->summary, data, work);
        if (task->length)
            cmd_printf("  --length   %d\n", task->length);
        if (task->limit)
            cmd_printf("  --limit    %d\n", task->limit);
        print_details(task->details);
        for (int k = 0; task->options && task->options[k].name; k++)
            cmd_printf("  --set %s=%s: %s\n", task->options[k].name, task->options[k].value, task->options[k].help);
        cmd_printf("\n");
    }
    if (!options->json)
        cmd_printf("Time of an item: tokens read and decoded, each at the speed that `butler bench` prints; items run in parallel "
                   "(-t).\n");
    cmd_out_flush();
    return CMD_DONE;
}

static int run(struct cmd_options *options)
{
    int status = CMD_DONE;
    if (strcmp(options->positional.values[0], "list") == 0)
        return list_tasks(options);
    const struct eval_task *task = eval_task_find(options->positional.values[0]);
    if (!task) {
        cmd_say(options, "there is no task '%s'; the tasks are:", options->positional.values[0]);
        print_tasks(stderr);
        return CMD_USAGE;
    }
    if (options->mode && strcmp(options->mode, "simulate") != 0 && strcmp(options->mode, "prefill") != 0) {
        cmd_say(options, "--mode: '%s' is not allowed; it takes simulate or prefill", options->mode);
        return CMD_USAGE;
    }
    char shots[32];
    snprintf(shots, sizeof shots, "shots=%d", options->shots);
    if (options->given[CMD_SHOTS] && options->settings.n < CMD_MAX_LIST)
        options->settings.values[options->settings.n++] = shots;
    struct butler_gather gather;
    if ((status = cmd_join_processes(options, &gather)) != CMD_DONE)
        return status;
    /* Sequences run in parallel, each in one thread: the pool of this engine has one thread. */
    const int n_threads = options->n_threads;
    options->n_threads = 1;
    struct butler_engine *engine = cmd_engine_load(options, &status);
    options->n_threads = n_threads;
    if (!engine)
        return status;
    struct sigaction action = {.sa_handler = on_signal}, before;
    action.sa_flags = (int)SA_RESETHAND; /* a second one ends the program at once */
    sigaction(SIGINT, &action, &before);
    status = run_lengths(options, task, engine, &gather);
    sigaction(SIGINT, &before, NULL);
    cmd_engine_free(engine);
    /* A process that failed does not finalise MPI: mpirun then ends the others, which would wait for it. */
    if (status == CMD_DONE)
        gather.end(&gather);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},  {CMD_PRE, NULL},       {CMD_KV, "full"},         {CMD_BUDGET, NULL},    {CMD_DATA, NULL},
    {CMD_LENGTH, NULL}, {CMD_LIMIT, "0"},      {CMD_MODE, NULL},         {CMD_SET, NULL},       {CMD_SHOTS, "0"},
    {CMD_SEED, "0"},    {CMD_KV_TYPE, "f16"},  {CMD_OUTPUT, NULL},       {CMD_THREADS, "0"},    {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},    {CMD_PRECISION, "8"},  {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"}, {CMD_ROPE_ORIGINAL, "0"},
    {CMD_PLUGIN, NULL}, {CMD_PREDICTOR, NULL}, {CMD_CACHE, NULL},        {CMD_CACHE_SIZE, "0"}, {CMD_JSON, NULL},
    {CMD_HELP, NULL},   {CMD_NONE, NULL},
};

#define WORD(name) " " #name
const struct cmd_command cmd_eval = {
    .name = "eval",
    .synopsis = "TASK [-m FILE] [--kv POLICY]... [--budget B,...] [--data FILE] [--length L,...] [--limit N] [--shots N] [-o "
                "RESULTS] [--json]",
    .summary = "what policies cost in quality and save in bytes, on the papers' tasks",
    .details =
        "Tasks:" EVAL_TASKS(WORD) ". `butler eval list` says what data each needs, under which licence, and how "
                                  "long\nan item takes; docs/eval.md describes what each measures.\n\n"
                                  "Every --budget is applied to every --kv that has one. Rows are appended to -o when a policy is "
                                  "done, items to RESULTS.items as\n"
                                  "they are done. What the files have is not measured again: the same command continues a run that "
                                  "was stopped.\n\n"
                                  "With --json one row for each policy and metric: {\"task\", \"model\", \"policy\", \"budget\", "
                                  "\"metric\", \"value\", "
                                  "\"ci\",\n"
                                  "\"n\", \"length\", \"kv_read\", \"bytes\", ...}.\n",
    .uses = uses,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
