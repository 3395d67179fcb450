/* butler gate: whether sparse policies may be on by default for this model on this machine. Measures needles, perplexity and speed
 * by the tasks of eval, and judges them by rules that are fixed in verdict.h. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "verdict.h"
#include "base/util.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static bool is_stopped(void *user)
{
    (void)user;
    return interrupted;
}

/* Tried where --kv names none, at lengths of `from` tokens or more. The last three need a predictor. */
static const struct {
    const char *policy;
    int from;
} usual[] = {
    {"fier:budget=1024,levels=means", 0},
    {"fier:budget=2048,levels=means", 0},
    {"fier:budget=4096,levels=means", 8192},
    {"quest:budget=1024", 0},
    {"quest:budget=2048", 0},
    {"quest:budget=4096", 8192},
    {"tinyserve:budget=1024", 0},
    {"tinyserve:budget=2048", 0},
    {"tinyserve:budget=4096", 8192},
    {"tokenbutler2:budget=1024,on_top=0,sinks=16,recent=64", 0},
    {"tokenbutler2:budget=1024", 0},
    {"tokenbutler2:budget=2048", 0},
};
enum { COUNTED = 256 /* tokens of a window whose perplexity counts */, WINDOWS = 4 };
static const int usual_lengths[] = {4096, 16384};

struct gate {
    const struct cmd_options *options;
    struct butler_engine *engine;
    struct cmd_bar bar;
    char rows[PATH_MAX + 16], verdict[PATH_MAX + 16], data[PATH_MAX + 16];
    int n_text;                             /* tokens of the text at `data` */
    const char *policies[CMD_MAX_LIST + 1]; /* "full", then the candidates */
    int from[CMD_MAX_LIST + 1];             /* the length from which each is tried */
    int n_policies;
    int lengths[CMD_MAX_LIST], n_lengths;
    int n_threads;
    json_t *found; /* the rows of all that is measured or was before */
};

/* ------------------------------------------------------------------------------------------------ choices */

static int choose_policies(struct gate *gate)
{
    const struct cmd_options *options = gate->options;
    const bool given = options->given[CMD_KV];
    const int n = given ? options->kv.n : BUTLER_COUNT(usual);
    gate->policies[gate->n_policies++] = "full";
    for (int i = 0; i < n; i++) {
        const char *policy = given ? options->kv.values[i] : usual[i].policy;
        if (strcmp(policy, "full") == 0 || (!given && butler_policy_check(gate->engine, policy, NULL) < 0))
            continue;
        if (gate->n_policies == BUTLER_COUNT(gate->policies)) {
            cmd_say(options, "--kv: more than %d policies", CMD_MAX_LIST);
            return CMD_USAGE;
        }
        gate->from[gate->n_policies] = given ? 0 : usual[i].from;
        gate->policies[gate->n_policies++] = policy;
    }
    if (gate->n_policies > 1)
        return CMD_DONE;
    cmd_say(options, "--kv: no policy beside full, which needs no gate");
    return CMD_USAGE;
}

/* The text whose perplexity is measured, and its number of tokens. */
static int choose_text(struct gate *gate)
{
    const struct cmd_options *options = gate->options;
    struct butler_buffer text = {0};
    struct butler_error err = {0};
    if (options->data)
        snprintf(gate->data, sizeof gate->data, "%s", options->data);
    else if (!cmd_find_model_file("long_text.txt", gate->data, sizeof gate->data)) {
        cmd_say(options, "no long_text.txt in a folder models beside the command or in share/butler under its prefix; name a text "
                         "with --data FILE");
        return CMD_USAGE;
    }
    int status = cmd_file_read(options, gate->data, &text);
    if (status == CMD_DONE) {
        gate->n_text = butler_tokenize(butler_engine_model(gate->engine), text.bytes, text.n, 0, NULL, 0, &err);
        status = gate->n_text < 0 ? cmd_fail(options, &err) : CMD_DONE;
    }
    butler_buffer_free(&text);
    return status;
}

/* What --length names, else the usual lengths that the text has: perplexity is measured at each. */
static int choose_lengths(struct gate *gate)
{
    const struct cmd_options *options = gate->options;
    const int most = butler_model_get_info(butler_engine_model(gate->engine))->n_ctx_train;
    const bool given = options->lengths.n > 0;
    for (int i = 0; i < (given ? options->lengths.n : BUTLER_COUNT(usual_lengths)); i++) {
        const int length = given ? options->lengths.values[i] : BUTLER_MIN(usual_lengths[i], most);
        const int before = gate->n_lengths ? gate->lengths[gate->n_lengths - 1] : 0;
        if (given && (length > most || length <= COUNTED)) {
            cmd_say(options, "--length: %d is not allowed; the gate takes %d to %d tokens, what this model was trained for", length,
                    COUNTED + 1, most);
            return CMD_USAGE;
        }
        if (!given && length <= COUNTED) {
            cmd_say(options, "the gate takes %d tokens or more; this model was trained for %d", COUNTED + 1, most);
            return CMD_USAGE;
        }
        if (given && length < before) {
            cmd_say(options, "--length: %d after %d; name the shorter ones first", length, before);
            return CMD_USAGE;
        }
        if (length > gate->n_text) {
            cmd_say(options, "%s has %d tokens, too few for the perplexity at %d; --data FILE names a longer text", gate->data,
                    gate->n_text, length);
            if (given || gate->n_lengths == 0)
                return CMD_USAGE;
        } else if (gate->n_lengths == BUTLER_COUNT(gate->lengths)) {
            cmd_say(options, "--length: more than %d lengths", CMD_MAX_LIST);
            return CMD_USAGE;
        } else if (length > before)
            gate->lengths[gate->n_lengths++] = length;
    }
    return CMD_DONE;
}

/* Where rows and verdict are written: beside the model, or as -o says. */
static int choose_files(struct gate *gate)
{
    const struct cmd_options *options = gate->options;
    const bool fits = options->output
                          ? snprintf(gate->verdict, sizeof gate->verdict, "%s", options->output) < (int)sizeof gate->verdict &&
                                snprintf(gate->rows, sizeof gate->rows, "%sl", options->output) < (int)sizeof gate->rows
                          : verdict_path(options->model, ".gate.json", gate->verdict, sizeof gate->verdict) &&
                                verdict_path(options->model, ".gate.jsonl", gate->rows, sizeof gate->rows);
    if (fits)
        return CMD_DONE;
    cmd_say(options, "%s: the name is too long", options->output ? options->output : options->model);
    return CMD_USAGE;
}

/* ---------------------------------------------------------------------------------------------- measuring */

static void show_progress(void *user, double done)
{
    struct gate *gate = user;
    cmd_bar_show(&gate->bar, done);
}

static void keep_row(void *user, const json_t *row)
{
    json_array_append_new(((struct gate *)user)->found, json_deep_copy(row));
}

static void show_note(void *user, const char *text)
{
    struct gate *gate = user;
    cmd_bar_wipe(&gate->bar);
    cmd_say(gate->options, "%s", text);
}

/* One task at one length. setting: one --set, or NULL. CMD_DONE, CMD_INTERRUPTED or the exit status. */
static int measure(struct gate *gate, const char *name, const char *subset, int length, int limit, const char *setting)
{
    const struct cmd_options *options = gate->options;
    const char *slash = strrchr(options->model, '/');
    struct butler_error err = {0};
    char what[64], conditions[CMD_CONDITIONS];
    const char *policies[CMD_MAX_LIST + 1];
    int n_policies = 0;
    for (int p = 0; p < gate->n_policies; p++)
        if (length >= gate->from[p])
            policies[n_policies++] = gate->policies[p];
    snprintf(what, sizeof what, "%s, %d tokens", subset ? subset : name, length);
    struct eval_params params = {
        .data = strcmp(name, "ppl") == 0 ? gate->data : NULL,
        .subset = subset,
        .length = length,
        .limit = limit,
        .seed = options->seed,
        .mode = strcmp(name, "speed") == 0 ? NULL : "prefill",
        .policies = policies,
        .n_policies = n_policies,
        .settings = &setting,
        .n_settings = setting != NULL,
        .kv_type = (enum butler_kv_type)options->kv_type,
        .conditions = cmd_conditions(options, conditions),
        .centres = cmd_centres_digest(options),
        .n_threads = gate->n_threads,
        .output = gate->rows,
        .library = options->cache,
        .library_bytes = options->cache_bytes,
        .model_name = slash ? slash + 1 : options->model,
    };
    const struct eval_events events = {
        .user = gate, .progress = show_progress, .row = keep_row, .known = keep_row, .note = show_note, .stopped = is_stopped};
    cmd_bar_begin(&gate->bar, options, what);
    const int code = eval_execute(eval_task_find(name), gate->engine, &params, &events, &err);
    cmd_bar_wipe(&gate->bar);
    if (code == EVAL_STOPPED)
        return CMD_INTERRUPTED;
    return code < 0 ? cmd_fail(options, &err) : CMD_DONE;
}

/* The shortest and cheapest first: a verdict that must be "full" is known early to who watches. */
static int measure_all(struct gate *gate)
{
    const int n_items = gate->options->limit ? gate->options->limit : 4;
    int status = CMD_DONE;
    for (int l = 0; l < gate->n_lengths && status == CMD_DONE; l++) {
        const int length = gate->lengths[l];
        char prompt[48];
        snprintf(prompt, sizeof prompt, "prompt=%d,compare=0", length - COUNTED);
        status = measure(gate, "speed", NULL, length, 0, NULL);
        for (int i = 0; i < VERDICT_SETS && status == CMD_DONE; i++)
            status = measure(gate, "ruler", verdict_sets[i], length, n_items, "compare=0");
        if (status == CMD_DONE)
            status = measure(gate, "ppl", NULL, length, BUTLER_MIN(WINDOWS, gate->n_text / length), prompt);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------- output */

static void print_candidate(const json_t *one)
{
    char because[512] = "";
    size_t i, at = 0;
    json_t *reason;
    json_array_foreach(json_object_get(one, "because"), i, reason)
    {
        at += (size_t)snprintf(because + at, sizeof because - at, "%s%s", i ? "; " : "", json_string_value(reason));
        at = BUTLER_MIN(at, sizeof because - 1);
    }
    const double gain = json_number_value(json_object_get(json_object_get(one, "speed_up"), "value"));
    cmd_printf("%8d  %-36s %7.2f  %6.1f %%  %s%s\n", (int)json_integer_value(json_object_get(one, "length")),
               json_string_value(json_object_get(one, "policy")), gain, 100 * json_number_value(json_object_get(one, "kv_read")),
               json_is_true(json_object_get(one, "passes")) ? "passes" : "fails: ", because);
}

static void print_verdict(const struct gate *gate, const json_t *verdict)
{
    size_t i;
    json_t *one;
    if (gate->options->json) {
        cmd_row(json_deep_copy(verdict));
        return;
    }
    cmd_printf("%8s  %-36s %7s  %8s  %s\n", "length", "policy", "speed", "KV read", "verdict");
    json_array_foreach(json_object_get(verdict, "candidates"), i, one) print_candidate(one);
    json_array_foreach(json_object_get(verdict, "on"), i, one)
        cmd_printf("from %d tokens on: %s\n", (int)json_integer_value(json_object_get(one, "length")),
                   json_string_value(json_object_get(one, "policy")));
    cmd_printf("verdict: %s\n", gate->verdict);
}

static int judge(const struct gate *gate)
{
    const struct cmd_options *options = gate->options;
    char machine[EVAL_MACHINE];
    uint64_t fingerprint;
    struct butler_error err = {0};
    struct verdict_of of = {.rows = gate->found,
                            .kv_type = cmd_kv_type_name((enum butler_kv_type)options->kv_type),
                            .machine = machine,
                            .lengths = gate->lengths,
                            .n_lengths = gate->n_lengths,
                            .policies = gate->policies + 1,
                            .from = gate->from + 1,
                            .n_policies = gate->n_policies - 1};
    if (butler_model_fingerprint(butler_engine_model(gate->engine), &fingerprint, &err) < 0)
        return cmd_fail(options, &err);
    eval_machine(gate->engine, gate->n_threads, machine, sizeof machine);
    snprintf(of.fingerprint, sizeof of.fingerprint, "%016" PRIx64, fingerprint);
    json_t *verdict = verdict_make(options, &of);
    int status = verdict ? verdict_write(options, gate->verdict, verdict) : CMD_FAILED;
    if (status == CMD_DONE)
        print_verdict(gate, verdict);
    json_decref(verdict);
    return status;
}

static int run(struct cmd_options *options)
{
    struct gate gate = {
        .options = options, .found = json_array(), .n_threads = options->n_threads ? options->n_threads : butler_n_processors()};
    int status = cmd_choose_model(options);
    if (status == CMD_DONE)
        status = choose_files(&gate);
    if (status != CMD_DONE) {
        json_decref(gate.found);
        return status;
    }
    options->n_threads = 1; /* eval makes an engine for each of its threads */
    gate.engine = cmd_engine_load(options, &status);
    if (gate.engine)
        status = choose_policies(&gate);
    if (status == CMD_DONE)
        status = choose_text(&gate);
    const char *const outputs[] = {gate.verdict, gate.rows}, *const data = gate.data;
    for (int i = 0; i < BUTLER_COUNT(outputs) && status == CMD_DONE; i++)
        if ((status = cmd_check_output(options, outputs[i], &data, 1)) == CMD_DONE)
            status = cmd_check_output(options, outputs[i], options->predictors.values, options->predictors.n);
    if (status == CMD_DONE)
        status = choose_lengths(&gate);
    struct sigaction action = {.sa_handler = on_signal}, before;
    action.sa_flags = (int)SA_RESETHAND; /* a second one ends the program at once */
    sigaction(SIGINT, &action, &before);
    if (status == CMD_DONE)
        status = measure_all(&gate);
    sigaction(SIGINT, &before, NULL);
    if (status == CMD_DONE)
        status = judge(&gate);
    else if (status == CMD_INTERRUPTED) {
        cmd_say(options, "stopped; the same command goes on after what %s has", gate.rows);
        status = CMD_FAILED;
    }
    cmd_engine_free(gate.engine);
    json_decref(gate.found);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},     {CMD_KV, NULL},     {CMD_LENGTH, NULL},    {CMD_LIMIT, "0"},   {CMD_DATA, NULL}, {CMD_SEED, "0"},
    {CMD_KV_TYPE, "f16"},  {CMD_OUTPUT, NULL}, {CMD_THREADS, "0"},    {CMD_DEVICE, NULL}, {CMD_ISA, NULL},  {CMD_PLUGIN, NULL},
    {CMD_PREDICTOR, NULL}, {CMD_CACHE, NULL},  {CMD_CACHE_SIZE, "0"}, {CMD_JSON, NULL},   {CMD_HELP, NULL}, {CMD_NONE, NULL},
};

const struct cmd_command cmd_gate = {
    .name = "gate",
    .synopsis = "[-m FILE] [--kv POLICY]... [--length L,...] [--limit N] [--data TEXT] [-o VERDICT] [--json]",
    .summary = "which policies may be on by default for a model on this machine",
    .details =
        "At each --length (4096 and, where --data has as many tokens, 16384, or as far as the model was trained) measures every\n"
        "--kv, each with its budget (fier with levels=means, quest and tinyserve with 1024, 2048 and, from 8192 tokens on, 4096;\n"
        "tokenbutler2, with a predictor, with 1024, twice, and 2048), beside dense attention: needles (--limit items of a set, "
        "4),\n"
        "perplexity of --data behind a dense prompt (long_text.txt, which has some 6,000 tokens), and speed.\n"
        "A policy passes if it finds no fewer needles than dense attention, raises perplexity by at most 0.5 %, and a step of it\n"
        "is faster here. The verdict is written beside the model, as MODEL.gate.json, what was measured as MODEL.gate.jsonl; -o\n"
        "names another verdict, and the other file gets an l behind it. After Ctrl-C the same command goes on. docs/gate.md has\n"
        "the rules and the fields.\n",
    .uses = uses,
    .run = run,
};
