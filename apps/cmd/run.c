/* butler run: a prompt, then the generated text, under one policy or several, and the cost of each. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "base/util.h"

struct result {
    const char *policy;
    char *streaming; /* owned; what policy points to where the text is longer than the model's context */
    struct butler_stats stats;
    struct cmd_integers ids;
    struct butler_buffer text; /* up to a stop text */
    size_t n_shown;            /* bytes of it that are printed */
    enum cmd_end end;
};

static void result_free(struct result *result)
{
    free(result->streaming);
    free(result->ids.values);
    butler_buffer_free(&result->text);
}

/* ----------------------------------------------------------------------------------------------- the text */

/* One token, or with id < 0 what is left at the end. True: a stop text ends the text here. */
static bool emit(const struct cmd_options *options, const struct butler_model *model, struct butler_utf8 *stream, int32_t id,
                 struct result *result)
{
    char small[1024], *piece = small;
    size_t n = 0;
    bool found;
    const char *bytes = id < 0 ? NULL : butler_token_bytes(model, id, &n);
    if (n + 16 > sizeof small)
        piece = cmd_alloc(n + 16, 1);
    n = butler_utf8_push(stream, bytes, n, piece, n + 16 > sizeof small ? n + 16 : sizeof small);
    cmd_append(&result->text, piece, n);
    const char *rest = result->text.bytes ? result->text.bytes + result->n_shown : "";
    const size_t n_new = cmd_stop_find(options, NULL, rest, result->text.n - result->n_shown, id < 0, &found);
    if (found)
        result->text.n = result->n_shown + n_new;
    if (id >= 0)
        cmd_integers_append(&result->ids, id);
    if (options->json && id >= 0) {
        cmd_row(json_pack("{s:s, s:i, s:o}", "policy", result->policy, "id", (int)id, "token", cmd_json_text(piece, n)));
    } else if (!options->json && n_new) {
        cmd_out(rest, n_new);
        cmd_out_flush();
    }
    result->n_shown += n_new;
    if (piece != small)
        free(piece);
    return found;
}

/* Samples and decodes until the text ends. If the session is to be saved, its last token is decoded too, so that the saved
 * session has the whole text. */
static int generate(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session,
                    struct butler_sampler *sampler, struct result *result)
{
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_error err = {0};
    struct butler_utf8 stream = {0};
    struct cmd_writer writer;
    const int n_ctx = butler_n_ctx(session), status = cmd_writer_begin(&writer, options, engine, session, sampler);
    if (status != CMD_DONE)
        return status;
    result->end = CMD_END_LENGTH;
    for (int i = 0; options->n < 0 || i < options->n; i++) {
        if (cmd_interrupted()) {
            result->end = CMD_END_INTERRUPTED;
            break;
        }
        if (options->save_session && writer.n_past >= n_ctx) {
            result->end = CMD_END_CONTEXT;
            break;
        }
        const int32_t id = cmd_writer_draw(&writer, &err);
        if (id < 0)
            break;
        if (butler_token_is_end(model, id)) {
            result->end = CMD_END_TOKEN;
            break;
        }
        if (emit(options, model, &stream, id, result)) {
            result->end = CMD_END_STOP;
            break;
        }
        if (i + 1 == options->n && !options->save_session)
            break;
        if (writer.n_past >= n_ctx) {
            result->end = CMD_END_CONTEXT;
            break;
        }
        if (cmd_writer_decode(&writer, options->n < 0 ? INT_MAX : options->n - i - 1, &err) < 0)
            break;
        if (butler_should_stop(session)) {
            result->end = CMD_END_POLICY;
            break;
        }
    }
    cmd_writer_end(&writer, &err);
    if (err.code < 0)
        return cmd_fail(options, &err);
    if (result->end != CMD_END_STOP)
        emit(options, model, &stream, -1, result);
    if (!options->json && result->text.n && result->text.bytes[result->text.n - 1] != '\n')
        cmd_out("\n", 1);
    cmd_out_flush();
    return CMD_DONE;
}

/* ----------------------------------------------------------------------------------------------- the cost */

static void print_last_row(const struct cmd_options *options, const struct result *result)
{
    const struct butler_stats *s = &result->stats;
    json_t *ids = json_array();
    for (int i = 0; i < result->ids.n; i++)
        json_array_append_new(ids, json_integer(result->ids.values[i]));
    json_t *stats =
        json_pack("{s:s, s:s, s:I, s:I, s:I}", "policy", result->policy, "end", cmd_end_names[result->end], "seed",
                  (json_int_t)options->seed, "n_prefill", (json_int_t)s->n_prefill, "n_decode", (json_int_t)s->n_decode);
    json_object_set_new(stats, "n_library", json_integer((json_int_t)s->n_library));
    json_object_set_new(stats, "library_s", json_real(s->library_s));
    json_object_set_new(stats, "prefill_s", json_real(s->prefill_s));
    json_object_set_new(stats, "decode_s", json_real(s->decode_s));
    json_object_set_new(stats, "tok_s", json_real(cmd_per_second(s->n_decode, s->decode_s)));
    json_object_set_new(stats, "score_s", json_real(s->score_s));
    json_object_set_new(stats, "select_s", json_real(s->select_s));
    json_object_set_new(stats, "attend_s", json_real(s->attend_s));
    json_object_set_new(stats, "predict_s", json_real(s->predict_s));
    json_object_set_new(stats, "n_checks", json_integer((json_int_t)s->n_checks));
    json_object_set_new(stats, "n_drafted", json_integer((json_int_t)s->n_drafted));
    json_object_set_new(stats, "n_accepted", json_integer((json_int_t)s->n_accepted));
    json_object_set_new(stats, "draft_s", json_real(s->draft_s));
    json_object_set_new(stats, "check_s", json_real(s->check_s));
    json_object_set_new(stats, "weight_bytes", json_integer((json_int_t)s->weight_bytes));
    json_object_set_new(stats, "kv_bytes", json_integer((json_int_t)s->kv_bytes));
    json_object_set_new(stats, "metric_bytes", json_integer((json_int_t)s->metric_bytes));
    json_object_set_new(stats, "upkeep_bytes", json_integer((json_int_t)s->upkeep_bytes));
    json_object_set_new(stats, "predict_bytes", json_integer((json_int_t)s->predict_bytes));
    json_object_set_new(stats, "full_kv_bytes", json_integer((json_int_t)s->full_kv_bytes));
    json_object_set_new(stats, "kv_read", s->full_kv_bytes ? json_real(cmd_kv_read(s)) : json_null());
    json_object_set_new(stats, "kv_memory", json_integer((json_int_t)s->kv_memory));
    json_object_set_new(stats, "kv_memory_peak", json_integer((json_int_t)s->kv_memory_peak));
    json_object_set_new(stats, "metric_memory", json_integer((json_int_t)s->metric_memory));
    json_object_set_new(stats, "metric_memory_peak", json_integer((json_int_t)s->metric_memory_peak));
    json_object_set_new(stats, "pages_wanted", json_integer((json_int_t)s->pages_wanted));
    json_object_set_new(stats, "pages_fetched", json_integer((json_int_t)s->pages_fetched));
    json_object_set_new(stats, "pages_prefetched", json_integer((json_int_t)s->pages_prefetched));
    json_object_set_new(stats, "pages_guessed", json_integer((json_int_t)s->pages_guessed));
    json_object_set_new(stats, "disk_bytes", json_integer((json_int_t)s->disk_bytes));
    json_object_set_new(stats, "disk_s", json_real(s->disk_s));
    json_object_set_new(stats, "prompt_disk_bytes", json_integer((json_int_t)s->prompt_disk_bytes));
    cmd_row(json_pack("{s:o, s:o, s:o}", "text", cmd_json_text(result->text.bytes ? result->text.bytes : "", result->text.n), "ids",
                      ids, "stats", stats));
}

static void say_comparison(const struct result *results, int n)
{
    fprintf(stderr, "\n%-32s %10s %9s %12s %10s %10s %10s\n", "policy", "tokens/s", "KV read", "KV memory", "score ms", "select ms",
            "attend ms");
    for (int i = 0; i < n; i++) {
        const struct butler_stats *s = &results[i].stats;
        char memory[32];
        double tokens = s->n_decode ? (double)s->n_decode : 1;
        fprintf(stderr, "%-32s %10.1f %7.1f %% %12s %10.3f %10.3f %10.3f\n", results[i].policy,
                cmd_per_second(s->n_decode, s->decode_s), 100 * cmd_kv_read(s), cmd_bytes(memory, sizeof memory, s->kv_memory),
                1e3 * s->score_s / tokens, 1e3 * s->select_s / tokens, 1e3 * s->attend_s / tokens);
    }
}

/* ---------------------------------------------------------------------------------------------- one policy */

static struct butler_session *begin(const struct cmd_options *options, struct butler_engine *engine, struct butler_library *library,
                                    int n_prompt, struct result *result, int *status)
{
    struct butler_error err = {0};
    int n_ctx = options->n_ctx;
    if (!options->load_session) {
        result->streaming =
            cmd_stream(options, engine, result->policy, (int64_t)n_prompt + (options->n > 0 ? options->n : 0), &n_ctx);
        result->policy = result->streaming ? result->streaming : result->policy;
        struct butler_session *new = cmd_session_new(options, engine, result->policy, n_ctx, status);
        cmd_library_use(options, library, new);
        return cmd_add_steps(options, new, status);
    }
    struct butler_session *session = butler_session_restore(engine, options->load_session, options->n_ctx, &err);
    if (!session)
        *status = cmd_fail(options, &err);
    else
        butler_session_stats_reset(session);
    return cmd_add_steps(options, session, status);
}

static int prefill(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session, bool keeps,
                   const struct cmd_integers *prompt)
{
    int n_past = butler_n_past(session), n_ctx = butler_n_ctx(session);
    if (prompt->n > n_ctx - n_past) {
        if (n_past)
            cmd_say(options, "the prompt has %d tokens and the session %d, but its context holds %d (-c)", prompt->n, n_past,
                    n_ctx);
        else
            cmd_say_choices(options, engine, "the prompt has", prompt->n, options->n > 0 ? options->n : 0, n_ctx);
        return CMD_FAILED;
    }
    const int status = prompt->n ? cmd_prefill(options, engine, session, prompt) : CMD_DONE;
    if (status == CMD_INTERRUPTED)
        cmd_say(options, "interrupted after %d of %d prompt tokens%s%s", butler_n_past(session) - n_past, prompt->n,
                options->save_session ? "; the session is not saved" : "",
                keeps ? "; they are kept: the same command goes on there" : "");
    if (status != CMD_DONE)
        return status;
    if (!butler_logits(session)) {
        cmd_say(options, "the prompt is empty: there is nothing to continue");
        return CMD_FAILED;
    }
    return CMD_DONE;
}

static int run_policy(const struct cmd_options *options, struct butler_engine *engine, struct butler_library *library,
                      const struct cmd_integers *prompt, struct result *result)
{
    struct butler_error err = {0};
    int status = CMD_DONE;
    struct butler_session *session = begin(options, engine, library, prompt->n, result, &status);
    struct butler_sampler *sampler = session ? cmd_sampler_new(options, butler_engine_model(engine), &status) : NULL;
    if (!sampler)
        goto done;
    status = prefill(options, engine, session, library && !options->load_session, prompt);
    if (status == CMD_DONE && butler_sampler_accept(sampler, prompt->values, prompt->n, &err) < 0)
        status = cmd_fail(options, &err);
    if (status == CMD_DONE)
        status = generate(options, engine, session, sampler, result);
    result->stats = (struct butler_stats){BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &result->stats);
    if (status == CMD_INTERRUPTED) {
        cmd_say_cost(engine, result->policy, &result->stats, CMD_END_INTERRUPTED);
        status = CMD_FAILED;
    }
    if (status != CMD_DONE)
        goto done;
    if (options->json)
        print_last_row(options, result);
    cmd_say_cost(engine, result->policy, &result->stats, result->end);
    if (options->save_session && butler_session_save(session, options->save_session, &err) < 0)
        status = cmd_fail(options, &err);
done:
    butler_sampler_free(sampler);
    butler_session_free(session);
    return status;
}

/* ---------------------------------------------------------------------------------------------- the prompt */

static int check(const struct cmd_options *options)
{
    if (options->load_session && (options->given[CMD_KV] || options->given[CMD_KV_TYPE])) {
        cmd_say(options, "--load-session brings its own policy and types; leave out --kv and --kv-type");
        return CMD_USAGE;
    }
    if (options->save_session && options->kv.n > 1) {
        cmd_say(options, "--save-session keeps one session, but there are %d --kv", options->kv.n);
        return CMD_USAGE;
    }
    if (options->prompt && options->file) {
        cmd_say(options, "-p and -f both give the text; use one of them");
        return CMD_USAGE;
    }
    if (options->save_session &&
        cmd_check_output(options, options->save_session, options->predictors.values, options->predictors.n))
        return CMD_USAGE;
    if (options->save_session) { /* now, and not after hours of work */
        struct butler_error err = {0};
        struct butler_writer writer;
        if (butler_writer_open(&writer, options->save_session, false, &err) < 0)
            return cmd_fail(options, &err);
        butler_writer_abort(&writer);
    }
    return CMD_DONE;
}

/* The text that comes with the default model, cut so that the answer fits into the context too. */
static int default_prompt(const struct cmd_options *options, const struct butler_model *model, struct cmd_integers *prompt)
{
    char path[PATH_MAX];
    struct butler_buffer text = {0};
    if (!cmd_find_model_file("long_text.txt", path, sizeof path)) {
        cmd_say(options, "no text: give it with -p TEXT or -f FILE (- is standard input)");
        return CMD_USAGE;
    }
    int status = cmd_file_read(options, path, &text);
    if (status == CMD_DONE)
        status = cmd_tokenize_text(options, model, text.bytes, text.n, BUTLER_ADD_SPECIAL, prompt);
    butler_buffer_free(&text);
    if (status != CMD_DONE)
        return status;
    int n_ctx = options->n_ctx ? options->n_ctx : butler_model_get_info(model)->n_ctx_train;
    int max_prompt = n_ctx - (options->n < 0 ? n_ctx / 8 : options->n);
    int n = prompt->n > max_prompt && max_prompt > 0 ? max_prompt : prompt->n;
    cmd_say(options, "no -p or -f: the prompt is the first %d of %d tokens of %s", n, prompt->n, path);
    prompt->n = n;
    return CMD_DONE;
}

static int read_prompt(const struct cmd_options *options, const struct butler_model *model, struct cmd_integers *prompt)
{
    struct butler_buffer text = {0};
    if (!options->prompt && !options->file)
        return options->load_session ? CMD_DONE : default_prompt(options, model, prompt);
    int status = options->file ? cmd_document_read(options, options->file, &text) : cmd_text_read(options, &text);
    if (status == CMD_DONE)
        status =
            cmd_tokenize_text(options, model, text.bytes, text.n,
                              options->load_session ? BUTLER_PARSE_SPECIAL : BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL, prompt);
    butler_buffer_free(&text);
    return status;
}

/* Tokens that the text can come to have. */
static int most_tokens(const struct cmd_options *options, const struct butler_engine *engine, int n_prompt)
{
    const int n_ctx = options->n_ctx ? options->n_ctx : butler_model_get_info(butler_engine_model(engine))->n_ctx_train;
    return options->n < 0 || n_prompt > n_ctx - options->n ? n_ctx : n_prompt + options->n;
}

static int run(struct cmd_options *options)
{
    struct result results[CMD_MAX_LIST] = {{0}};
    struct cmd_integers prompt = {0};
    int n_done = 0, status = check(options);
    if (status != CMD_DONE)
        return status;
    cmd_interrupts_start();
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (engine)
        status = read_prompt(options, butler_engine_model(engine), &prompt);
    if (status == CMD_DONE && !options->load_session) /* which has the policy it was saved with */
        cmd_auto_choose(options, most_tokens(options, engine, prompt.n));
    struct butler_library *library = status == CMD_DONE && options->file ? cmd_library_try(options) : NULL;
    for (int i = 0; status == CMD_DONE && i < options->kv.n; i++) {
        results[i].policy = options->load_session ? "as saved" : options->kv.values[i];
        if (options->kv.n > 1)
            fprintf(stderr, "%s--- %s\n", i ? "\n" : "", results[i].policy);
        status = run_policy(options, engine, library, &prompt, &results[i]);
        n_done = i + 1;
        if (results[i].end == CMD_END_INTERRUPTED)
            break;
    }
    if (status == CMD_DONE && n_done > 1)
        say_comparison(results, n_done);
    for (int i = 0; i < n_done; i++)
        result_free(&results[i]);
    free(prompt.values);
    butler_library_free(library);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},  {CMD_PRE, NULL},      {CMD_PROMPT, NULL},       {CMD_FILE, NULL},         {CMD_N, "128"},
    {CMD_CTX, "0"},     {CMD_KV, "auto"},     {CMD_KV_TYPE, "f16"},     {CMD_KV_RESIDENT, "0"},   {CMD_LOSSLESS, NULL},
    {CMD_BLOCK, "0"},   {CMD_TEMP, "0.8"},    {CMD_TOP_K, "40"},        {CMD_TOP_P, "0.95"},      {CMD_MIN_P, "0.05"},
    CMD_PENALTIES,      CMD_CONSTRAINTS,      {CMD_SEED, "0"},          {CMD_THREADS, "0"},       {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},    {CMD_PRECISION, "8"}, {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"},    {CMD_ROPE_ORIGINAL, "0"},
    {CMD_PLUGIN, NULL}, {CMD_STEP, NULL},     {CMD_PREDICTOR, NULL},    {CMD_SAVE_SESSION, NULL}, {CMD_LOAD_SESSION, NULL},
    {CMD_JSON, NULL},   {CMD_CACHE, NULL},    {CMD_CACHE_SIZE, "0"},    {CMD_NO_CACHE, NULL},     {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_run = {
    .name = "run",
    .synopsis = "[-m FILE] [-p TEXT | -f FILE] [-n N] [--kv POLICY]... [FLAGS]",
    .summary = "continue a prompt, and print what it cost",
    .details =
        "Without -m the model is butler-default.gguf, found in models/ beside the command or in share/butler of the prefix it is\n"
        "installed in, and is named; without -p or -f the prompt is long_text.txt from there, cut to the context.\n\n"
        "--kv auto is the policy that `butler gate` found to hold for this model, machine and length of text; full where no gate\n"
        "has run or nothing passed.\n\n"
        "The text goes to standard output while it is generated. Its cost goes to standard error: tokens per second, the share of\n"
        "the KV cache that was read (what the metric reads included), memory, and the time per token for scoring, selecting\n"
        "and attending. With several --kv each policy gets the same prompt and the same seed.\n\n"
        "--save-session also decodes the last token, so that --load-session continues after the printed text; with --temp 0\n"
        "both parts together are what one run would have generated.\n\n"
        "Ctrl-C ends the text, with its cost and the saved session, as -n does; while the prompt is read it ends the command.\n\n"
        "What is read of -f is kept in the folder of --cache and not read again, by any policy: see `butler ask --help`. A prompt\n"
        "whose reading was ended goes on where it was.\n\n"
        "With --json a row for each token, {\"policy\", \"id\", \"token\"}, and after them, for each policy, {\"text\", \"ids\", "
        "\"stats\"}.\n",
    .uses = uses,
    .run = run,
};
