/* butler train: trains a predictor on a model's own attention over the given texts. A loop over butler_trainer_step, with its
 * progress messages and the files that it writes: the predictor, its curve and, until it is done, a checkpoint to resume from. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval/eval.h"
#include "curve.h"
#include "train/train.h"

struct run {
    struct cmd_options *options;
    struct butler_engine *engine;
    struct butler_model *model; /* the engine's */
    struct butler_trainer *trainer;
    struct butler_gather reduce;
    struct cmd_strings data, valid;
    char *lists[2]; /* the copies that data and valid point into */
    char checkpoint[PATH_MAX], csv[PATH_MAX], svg[PATH_MAX];
    struct cmd_curve curve;
    int type;                              /* of the predictor's matrices: 0 Q4_0, 1 Q8_0, 2 F16, 3 F32 */
    bool root;                             /* rank 0: prints and writes files */
    double deployed_recall, deployed_mass; /* %, of the policy whose rows come */
    double started, saved, said;           /* said: a line of progress to a log */
    double measure_s;                      /* of the last measurement */
    int64_t first_step, first_tokens;
    struct cmd_curve_row last; /* the last row with measures */
    size_t n_line;             /* bytes of the progress line on a terminal */
};

/* ------------------------------------------------------------------------------------------------ set up */

/* "a,b" -> a and b. */
static int split(const struct cmd_options *options, const char *text, char **copy, struct cmd_strings *out)
{
    *copy = cmd_alloc(strlen(text) + 1, 1);
    strcpy(*copy, text);
    for (char *rest = *copy, *word; (word = strsep(&rest, ",")) != NULL;) {
        if (!*word || out->n == CMD_MAX_LIST) {
            cmd_say(options, "'%s': from 1 to %d files of text are needed, separated by commas", text, CMD_MAX_LIST);
            return CMD_USAGE;
        }
        out->values[out->n++] = word;
    }
    return CMD_DONE;
}

static int choose(const struct cmd_options *options, const char *flag, const char *value, const char *const *names, int n, int *out)
{
    for (*out = 0; *out < n; (*out)++)
        if (strcmp(names[*out], value) == 0)
            return CMD_DONE;
    fprintf(stderr, "butler %s: %s: '%s' is not allowed; it takes", options->command->name, flag, value);
    for (int i = 0; i < n; i++)
        fprintf(stderr, "%s %s", i == 0 ? "" : " or", names[i]);
    fputc('\n', stderr);
    return CMD_USAGE;
}

/* The flags that the paper's program would have been given; those on the command line stay. */
static void take_paper(struct cmd_options *options)
{
    struct cmd_train *t = &options->train;
    const struct {
        int flag;
        const char **text, *value;
    } texts[] = {{CMD_LOSS, &t->loss, "square"},
                 {CMD_TRAIN_INPUT, &t->input, "norm"},
                 {CMD_KEY_HEADS, &t->key_heads, "query"},
                 {CMD_ROTATE, &t->rotate, "published"},
                 {CMD_BEGIN, &t->begin, "random"}};
    for (int i = 0; i < BUTLER_COUNT(texts); i++)
        if (!options->given[texts[i].flag])
            *texts[i].text = texts[i].value;
    t->batch = options->given[CMD_TRAIN_BATCH] ? t->batch : 4;
    t->n_uses = options->given[CMD_USES] ? t->n_uses : 1;
    t->n_queries = options->given[CMD_QUERIES] ? t->n_queries : 0;
    t->dropout = options->given[CMD_DROPOUT] ? t->dropout : 0.1;
}

/* The highest learning rate from random weights: 0.015 at a width of 256, a fifth of it at SmolLM2's 576, where 0.015 diverges. */
static double random_lr(int n_embd)
{
    const double narrow = 256.0 / n_embd;
    return 0.015 * BUTLER_MIN(narrow * narrow, 1);
}

static int make_params(struct run *run, struct butler_train_params *params)
{
    static const char *const versions[] = {"v1", "v2"}, *const losses[] = {"causal", "square", "entropy"};
    static const char *const inputs[] = {"norm", "attention"}, *const keys[] = {"kv", "query"},
                             *const rotates[] = {"fast", "published"}, *const types[] = {"q4_0", "q8_0", "f16", "f32"},
                             *const recipes[] = {"default", "paper"}, *const begins[] = {"fit", "random"};
    struct cmd_options *options = run->options;
    const struct cmd_train *t = &options->train;
    int version, loss, input, key_heads, published, paper, random;
    if (t->n_tokens && t->n_steps) {
        cmd_say(options, "--tokens %d and --steps %d both say how long; give one", t->n_tokens, t->n_steps);
        return CMD_USAGE;
    }
    if (choose(options, "--recipe", t->recipe, recipes, 2, &paper) != CMD_DONE)
        return CMD_USAGE;
    if (paper)
        take_paper(options);
    if (choose(options, "--predictor", t->version, versions, 2, &version) != CMD_DONE ||
        choose(options, "--loss", t->loss, losses, 3, &loss) != CMD_DONE ||
        choose(options, "--input", t->input, inputs, 2, &input) != CMD_DONE ||
        choose(options, "--key-heads", t->key_heads, keys, 2, &key_heads) != CMD_DONE ||
        choose(options, "--rotate", t->rotate, rotates, 2, &published) != CMD_DONE ||
        choose(options, "--begin", t->begin, begins, 2, &random) != CMD_DONE ||
        choose(options, "--type", t->type, types, BUTLER_COUNT(types), &run->type) != CMD_DONE)
        return CMD_USAGE;
    version++;
    if (version == 2 && (options->given[CMD_LOSS] || options->given[CMD_KEY_HEADS] || options->given[CMD_DROPOUT])) {
        cmd_say(options, "%s belongs to --predictor v1: v2 has none, or its own",
                options->given[CMD_LOSS]        ? "--loss"
                : options->given[CMD_KEY_HEADS] ? "--key-heads"
                                                : "--dropout");
        return CMD_USAGE;
    }
    struct butler_predictor_sizes sizes = butler_predictor_sizes_for(run->model, version);
    sizes.input = (enum butler_predictor_input)input;
    if (t->dim)
        sizes.d = t->dim;
    if (t->mid)
        sizes.n_mid = t->mid;
    butler_predictor_rotate(&sizes, run->model, published ? 0 : t->length);
    if (key_heads == 1 && version == 1)
        sizes.n_key_heads = sizes.n_heads;
    const bool fit = version == 2 && !random && !published;
    const double lr = options->given[CMD_LR] || fit || paper || t->start ? t->lr : random_lr(sizes.n_embd);
    struct butler_engine_info device = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(run->engine, &device);
    *params = (struct butler_train_params){
        .data = run->data.values,
        .valid = run->valid.values,
        .n_data = run->data.n,
        .n_valid = run->valid.n,
        .start = t->start,
        .sizes = sizes,
        .fit = fit,
        .loss = version == 2 ? BUTLER_LOSS_CROSS_ENTROPY : (enum butler_loss_kind)loss,
        .length = t->length,
        .n_uses = t->n_uses,
        .n_queries = t->n_queries,
        .dropout = version == 1 ? (float)t->dropout : 0,
        .batch = t->batch,
        .accumulate = t->accumulate,
        .n_tokens = t->n_tokens,
        .n_valid_texts = t->n_valid,
        .adam = {.lr = (float)lr, .weight_decay = (float)t->decay, .clip = 20, .spike = 10, .warmup = 0.1f, .n_steps = t->n_steps},
        .seed = options->seed,
        .n_threads = device.n_threads,
    };
    return CMD_DONE;
}

static int make_paths(struct run *run)
{
    const char *output = run->options->output;
    if (strlen(output) + 16 > sizeof run->csv) {
        cmd_say(run->options, "-o: the path is too long");
        return CMD_USAGE;
    }
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s.checkpoint", output);
    snprintf(run->csv, sizeof run->csv, "%s.csv", output);
    snprintf(run->svg, sizeof run->svg, "%s.svg", output);
    return CMD_DONE;
}

/* None of what is written is a file that is read. */
static int check_outputs(const struct run *run)
{
    const char *const outputs[] = {run->options->output, run->checkpoint, run->csv, run->svg};
    int status = CMD_DONE;
    for (int i = 0; i < BUTLER_COUNT(outputs) && status == CMD_DONE; i++) {
        status = cmd_check_output(run->options, outputs[i], run->data.values, run->data.n);
        if (status == CMD_DONE)
            status = cmd_check_output(run->options, outputs[i], run->valid.values, run->valid.n);
    }
    return status;
}

static int open_run(struct run *run)
{
    struct cmd_options *options = run->options;
    struct butler_train_params params;
    struct butler_error err = {0};
    int status = CMD_DONE;
    if (!options->train.data || !options->output) {
        cmd_say(options, "%s is missing; usage: butler train %s", options->output ? "--data" : "-o", options->command->synopsis);
        return CMD_USAGE;
    }
    if ((status = make_paths(run)) != CMD_DONE || (status = cmd_choose_model(options)) != CMD_DONE ||
        (status = split(options, options->train.data, &run->lists[0], &run->data)) != CMD_DONE)
        return status;
    if (options->train.valid && (status = split(options, options->train.valid, &run->lists[1], &run->valid)) != CMD_DONE)
        return status;
    if ((status = check_outputs(run)) != CMD_DONE)
        return status;
    if ((status = cmd_join_processes(options, &run->reduce)) != CMD_DONE)
        return status;
    run->root = run->reduce.rank == 0;
    run->engine = cmd_engine_load(options, &status);
    run->model = run->engine ? butler_engine_model(run->engine) : NULL;
    if (!run->engine || (status = make_params(run, &params)) != CMD_DONE)
        return status;
    run->trainer = butler_trainer_new(run->engine, &params, &run->reduce, &err);
    if (!run->trainer || (options->train.resume && butler_trainer_restore(run->trainer, run->checkpoint, &err) < 0))
        return cmd_fail(options, &err);
    run->first_step = run->trainer->adam.step;
    run->first_tokens = run->trainer->n_tokens;
    return run->root ? cmd_curve_open(&run->curve, options, run->csv, run->first_step) : CMD_DONE;
}

/* ----------------------------------------------------------------------------------------------- progress */

static void say_start(const struct run *run)
{
    const struct butler_trainer *trainer = run->trainer;
    const struct butler_train_params *params = &trainer->params;
    char bytes[32];
    cmd_bytes(bytes, sizeof bytes, butler_trainer_bytes(trainer));
    cmd_say(run->options,
            "TokenButler v%d, %zu parameters (%.2f %% of the model's); %" PRId64
            " steps of %d texts of %d tokens, %d process%s of %d "
            "threads; %s of scratch",
            params->sizes.version, trainer->predictor->n_weights,
            100.0 * (double)trainer->predictor->n_weights / (double)butler_model_get_info(run->model)->n_params,
            params->adam.n_steps, params->batch * params->accumulate, params->length, run->reduce.n_ranks,
            run->reduce.n_ranks == 1 ? "" : "es", trainer->n_workers, bytes);
    if (run->first_step > 0)
        cmd_say(run->options, "continuing after step %" PRId64 " of %s", run->first_step, run->checkpoint);
}

/* A line of progress: on a terminal it is overwritten by the next one; in a log there is one every ten seconds at most, unless it
 * is due. */
static void say_line(struct run *run, const char *line, bool due)
{
    enum { EVERY_S = 10 };
    const bool terminal = isatty(STDERR_FILENO);
    const size_t n = strlen(line);
    const double now = butler_seconds();
    if (!terminal && !due && now - run->said < EVERY_S)
        return;
    fprintf(stderr, terminal ? "\r%s%*s" : "%s%*s\n", line, terminal && n < run->n_line ? (int)(run->n_line - n) : 0, "");
    run->n_line = n;
    run->said = now;
}

static void say_fit(void *user, int n, int n_all)
{
    struct run *run = user;
    char line[96];
    snprintf(line, sizeof line, "least squares: %d of %d batches of texts, %.0f s", n, n_all, butler_seconds() - run->started);
    if (run->root)
        say_line(run, line, false);
}

static void say_progress(struct run *run, const struct butler_train_report *report, bool measured)
{
    const double seconds = butler_seconds() - run->started;
    const int every = run->options->train.every;
    const int64_t n_measures = every > 0 ? report->n_steps / every - report->step / every : 0;
    const double remaining = report->seconds_left + (double)n_measures * run->measure_s;
    const double speed = (double)(report->n_tokens - run->first_tokens) / seconds;
    char bar[21], figures[96] = "", left[32] = "time left not known yet", line[256];
    if (report->seconds_left >= 0)
        snprintf(left, sizeof left, "%d:%02d remaining", (int)remaining / 60, (int)remaining % 60);
    const int full = (int)(20 * report->step / report->n_steps);
    for (int i = 0; i < 20; i++)
        bar[i] = i < full ? '#' : '.';
    bar[20] = 0;
    if (run->last.measured)
        snprintf(figures, sizeof figures, "  held out: loss %.4g, top-50%% %.1f%%, recall@10%% %.1f%%", run->last.valid_loss,
                 100 * run->last.top_half, 100 * run->last.recall);
    snprintf(line, sizeof line, "[%s] %" PRId64 "/%" PRId64 "  loss %.4g%s  %.0f tokens/s  %s", bar, report->step, report->n_steps,
             report->loss, figures, speed, left);
    say_line(run, line, measured);
}

static void write_json(const struct cmd_curve_row *row)
{
    json_t *json =
        json_pack("{s:I,s:I,s:f,s:f,s:f,s:b}", "step", (json_int_t)row->step, "tokens", (json_int_t)row->n_tokens, "loss",
                  row->loss, "rate", row->rate, "norm", isfinite(row->norm) ? row->norm : -1, "skipped", row->skipped);
    if (json && row->measured) {
        json_object_set_new(json, "valid_loss", json_real(row->valid_loss));
        json_object_set_new(json, "top_half_accuracy", json_real(row->top_half));
        json_object_set_new(json, "recall", json_real(row->recall));
        json_object_set_new(json, "mass", json_real(row->mass));
    }
    cmd_row(json);
}

static int measure(struct run *run, struct cmd_curve_row *row)
{
    struct butler_loss_measures measures;
    struct butler_error err = {0};
    const double started = butler_seconds();
    if (butler_trainer_measure(run->trainer, &row->valid_loss, &measures, &err) < 0)
        return cmd_fail(run->options, &err);
    run->measure_s = butler_seconds() - started;
    row->measured = true;
    row->top_half = measures.top_half / measures.n_rows;
    row->recall = measures.recall / measures.n_rows;
    row->mass = measures.mass / measures.n_rows;
    run->last = *row;
    return CMD_DONE;
}

/* The predictor as it is now: it can be used while the training goes on, and after one that was stopped. */
static int write_predictor(const struct run *run)
{
    static const enum butler_type types[] = {BUTLER_Q4_0, BUTLER_Q8_0, BUTLER_F16, BUTLER_F32};
    struct butler_error err = {0};
    char text[256];
    int n = 0;
    for (int i = 0; i < run->data.n && n < (int)sizeof text; i++) {
        const char *name = run->data.values[i], *slash = strrchr(name, '/');
        if (i > 0 && strcmp(name, run->data.values[i - 1]) == 0) /* named several times to be read more often */
            continue;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", n ? ", " : "", slash ? slash + 1 : name);
    }
    return butler_trainer_write(run->trainer, run->options->output, types[run->type], text, &err) < 0 ? cmd_fail(run->options, &err)
                                                                                                      : CMD_DONE;
}

static int save(struct run *run)
{
    struct butler_error err = {0};
    run->saved = butler_seconds();
    if (butler_trainer_save(run->trainer, run->checkpoint, &err) < 0)
        return cmd_fail(run->options, &err);
    return write_predictor(run);
}

/* ---------------------------------------------------------------------------------------------- the loop */

/* What rank 0 does after a step. */
static int after_step(struct run *run, const struct butler_train_report *report)
{
    const struct cmd_train *t = &run->options->train;
    struct cmd_curve_row row = {.step = report->step,
                                .n_tokens = report->n_tokens,
                                .loss = report->loss,
                                .rate = report->rate,
                                .norm = report->norm,
                                .skipped = report->skipped};
    const bool last = report->step == report->n_steps, measures = last || (t->every > 0 && report->step % t->every == 0);
    int status = measures ? measure(run, &row) : CMD_DONE;
    if (status == CMD_DONE)
        status = cmd_curve_add(&run->curve, run->options, &row);
    if (status == CMD_DONE && !last && butler_seconds() - run->saved >= t->checkpoint_s)
        status = save(run);
    if (status == CMD_DONE && run->options->json)
        write_json(&row);
    say_progress(run, report, measures);
    return status;
}

/* A row of `eval recall`: a policy's recall, mass and top_half_accuracy, in this order. */
static void show_deployed(void *user, const json_t *row)
{
    struct run *run = user;
    const double share = 100 * json_number_value(json_object_get(row, "value"));
    const char *metric = json_string_value(json_object_get(row, "metric"));
    if (run->options->json)
        cmd_row(json_deep_copy(row));
    else if (metric && strcmp(metric, "recall") == 0)
        run->deployed_recall = share;
    else if (metric && strcmp(metric, "mass") == 0)
        run->deployed_mass = share;
    else
        cmd_say(run->options,
                "as deployed, %s: %.1f %% of the top half; it reads %.1f %% of the top tenth, %.1f %% of the attention",
                json_string_value(json_object_get(row, "policy")), share, run->deployed_recall, run->deployed_mass);
}

/* What the predictor's policy will read, one list for the query heads of a KV head and its own bytes charged, beside fier and true
 * attention: `eval recall` on the first --valid text. What was measured while training is each query head by itself. The predictor
 * is written by then: that this cannot be measured is said, not an error. */
static void measure_deployed(struct run *run)
{
    static const char *const policies[2][3] = {{"tokenbutler:dense=1", "fier:dense=1", "oracle:dense=1"},
                                               {"tokenbutler2:on_top=0,sinks=4,recent=0", "fier:dense=1", "oracle:dense=1"}};
    const struct cmd_options *options = run->options;
    const double budget = 0.1;
    const char *setting = "dense=1,steps=16";
    const struct eval_params params = {.data = run->valid.values[0],
                                       .length = run->trainer->params.length,
                                       .limit = 2,
                                       .mode = "prefill",
                                       .policies = policies[run->trainer->params.sizes.version == 2],
                                       .n_policies = 3,
                                       .budgets = &budget,
                                       .n_budgets = 1,
                                       .settings = &setting,
                                       .n_settings = 1,
                                       .n_threads = run->trainer->params.n_threads,
                                       .model_name = butler_model_get_info(run->model)->name};
    const struct eval_events events = {.user = run, .row = show_deployed};
    struct butler_error err = {0};
    if (butler_predictor_attach(run->engine, options->output, &err) < 0 ||
        eval_execute(eval_task_find("recall"), run->engine, &params, &events, &err) < 0)
        cmd_say(options, "as deployed it could not be measured: %s", err.message);
}

static int finish(struct run *run)
{
    char title[256];
    snprintf(title, sizeof title, "TokenButler v%d for %s", run->trainer->params.sizes.version,
             butler_model_get_info(run->model)->name);
    int status = write_predictor(run);
    if (status == CMD_DONE)
        status = cmd_curve_draw(&run->curve, run->options, run->svg, title);
    if (status == CMD_DONE)
        unlink(run->checkpoint); /* the run is complete */
    if (status == CMD_DONE && run->valid.n > 0)
        measure_deployed(run);
    return status;
}

/* The fit, if there is one: its predictor ranks most tokens rightly already, so it is written. */
static int begin(struct run *run)
{
    struct butler_error err = {0};
    const double started = butler_seconds();
    const int fitted = butler_trainer_begin(run->trainer, say_fit, run, &err);
    if (fitted < 0)
        return cmd_fail(run->options, &err);
    if (fitted == 0 || !run->root)
        return CMD_DONE;
    if (isatty(STDERR_FILENO))
        fputc('\n', stderr);
    const int status = write_predictor(run);
    if (status == CMD_DONE)
        cmd_say(run->options, "least squares took %.0f s; %s can be used from now on, and gets better with each checkpoint",
                butler_seconds() - started, run->options->output);
    return status;
}

static int loop(struct run *run)
{
    struct butler_train_report report;
    struct butler_error err = {0};
    int code, status;
    run->started = run->saved = run->said = butler_seconds();
    status = begin(run);
    run->started = butler_seconds();
    while (status == CMD_DONE && (code = butler_trainer_step(run->trainer, &report, &err)) != 0) {
        if (code < 0)
            status = cmd_fail(run->options, &err);
        else if (run->root)
            status = after_step(run, &report);
    }
    if (run->root && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    return status == CMD_DONE && run->root ? finish(run) : status;
}

static int run_train(struct cmd_options *options)
{
    struct run run = {.options = options};
    int status = open_run(&run);
    if (status == CMD_DONE) {
        if (run.root)
            say_start(&run);
        status = loop(&run);
    }
    /* A process that failed does not finalise MPI: mpirun then ends the others, which would wait for it. */
    if (status == CMD_DONE)
        run.reduce.end(&run.reduce);
    cmd_curve_free(&run.curve);
    butler_trainer_free(run.trainer);
    cmd_engine_free(run.engine);
    free(run.lists[0]);
    free(run.lists[1]);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},
    {CMD_PRE, NULL},
    {CMD_TRAIN_DATA, NULL},
    {CMD_OUTPUT, NULL},
    {CMD_TRAIN_VERSION, "v1"},
    {CMD_RECIPE, "default"},
    {CMD_RESUME, NULL},
    {CMD_START, NULL},
    {CMD_TRAIN_LENGTH, "1024"},
    {CMD_USES, "8"},
    {CMD_QUERIES, "128"},
    {CMD_DROPOUT, "0"},
    {CMD_TRAIN_TOKENS, "0"},
    {CMD_STEPS, "0"},
    {CMD_TRAIN_BATCH, "2"},
    {CMD_ACCUMULATE, "1"},
    {CMD_LR, "0.001"},
    {CMD_DECAY, "0.01"},
    {CMD_LOSS, "entropy"},
    {CMD_TRAIN_INPUT, "attention"},
    {CMD_DIM, "0"},
    {CMD_MID, "0"},
    {CMD_KEY_HEADS, "kv"},
    {CMD_ROTATE, "fast"},
    {CMD_BEGIN, "fit"},
    {CMD_VALID, NULL},
    {CMD_VALID_TEXTS, "8"},
    {CMD_EVERY, "50"},
    {CMD_CHECKPOINT, "120"},
    {CMD_TYPE, "q4_0"},
    {CMD_SEED, "1"},
    {CMD_THREADS, "0"},
    {CMD_ISA, NULL},
    {CMD_ROPE_SCALING, NULL},
    {CMD_ROPE_SCALE, "0"},
    {CMD_ROPE_ORIGINAL, "0"},
    {CMD_JSON, NULL},
    {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_train = {
    .name = "train",
    .synopsis = "-m MODEL --data TEXT[,TEXT...] -o PREDICTOR [--predictor v1|v2] [--resume] [FLAGS]",
    .summary = "train a TokenButler predictor for a model on texts",
    .details =
        "The model is not changed; the predictor learns its attention. Beside PREDICTOR the command writes PREDICTOR.csv and\n"
        ".svg, the curve, and until the end PREDICTOR.checkpoint: --resume, with the same flags, continues from it exactly.\n"
        "The same texts in the same batch give the same predictor with any number of threads or, under mpirun, processes.\n",
    .uses = uses,
    .run = run_train,
};
