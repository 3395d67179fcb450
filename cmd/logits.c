/* butler logits: the logits after a prompt in full precision, to compare with other engines. */
#include <math.h>
#include <string.h>

#include "cmd.h"

struct sink {
    const struct cmd_options *options;
    int n_vocab;
    int bad_position; /* the first whose logits are not numbers, or -1 */
};

static bool print_row(void *user, int position, const float *logits)
{
    struct sink *sink = user;
    for (int i = 0; i < sink->n_vocab && sink->bad_position < 0; i++)
        if (!isfinite(logits[i]))
            sink->bad_position = position;
    if (sink->bad_position >= 0)
        return false;
    if (sink->options->json) {
        json_t *list = json_array();
        for (int i = 0; i < sink->n_vocab; i++)
            json_array_append_new(list, json_real((double)logits[i]));
        cmd_row(json_pack("{s:i, s:o}", "position", position, "logits", list));
        return true;
    }
    cmd_printf("%d", position);
    for (int i = 0; i < sink->n_vocab; i++)
        cmd_printf("%c%.9g", i ? ' ' : '\t', (double)logits[i]);
    cmd_out("\n", 1);
    return true;
}

static int check(const struct cmd_options *options)
{
    if ((options->prompt != NULL) + (options->file != NULL) + (options->ids.n > 0) > 1) {
        cmd_say(options, "-p, -f and --ids each give the tokens; use one of them");
        return CMD_USAGE;
    }
    return CMD_DONE;
}

static int read_tokens(struct cmd_options *options, const struct butler_model *model)
{
    struct cmd_text text = {0};
    int n_vocab = butler_model_get_info(model)->n_vocab;
    for (int i = 0; i < options->ids.n; i++)
        if (options->ids.values[i] >= n_vocab) {
            cmd_say(options, "--ids: %d is no token of this model; it takes 0 to %d", options->ids.values[i], n_vocab - 1);
            return CMD_USAGE;
        }
    if (options->ids.n)
        return CMD_DONE;
    int status = cmd_text_read(options, &text);
    if (status == CMD_DONE)
        status = cmd_tokenize_text(options, model, text.bytes, text.n,
                                   options->no_special ? 0 : BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL, &options->ids);
    if (status == CMD_DONE && options->ids.n == 0) {
        cmd_say(options, "the text has no tokens");
        status = CMD_FAILED;
    }
    cmd_text_free(&text);
    return status;
}

static int compute(const struct cmd_options *options, const struct butler_model *model, struct butler_session *session)
{
    struct butler_error err = {0};
    int n = options->ids.n, n_ctx = butler_n_ctx(session);
    if (n > n_ctx) {
        cmd_say(options, "the prompt has %d tokens, but the context holds %d (-c)", n, n_ctx);
        return CMD_FAILED;
    }
    struct sink sink = {.options = options, .n_vocab = butler_model_get_info(model)->n_vocab, .bad_position = -1};
    if (butler_prefill(session, options->ids.values, n, options->all ? print_row : NULL, &sink, &err) < 0)
        return cmd_fail(options, &err);
    if (!options->all)
        print_row(&sink, n - 1, butler_logits(session));
    if (sink.bad_position >= 0) {
        cmd_say(options, "the logits at position %d hold NaN or infinity", sink.bad_position);
        return CMD_FAILED;
    }
    return CMD_DONE;
}

static int run(struct cmd_options *options)
{
    struct butler_session *session = NULL;
    int status = check(options);
    if (status != CMD_DONE)
        return status;
    struct butler_engine *engine = cmd_engine_load(options, &status);
    const struct butler_model *model = engine ? butler_engine_model(engine) : NULL;
    if (engine)
        status = read_tokens(options, model);
    if (status == CMD_DONE)
        session = cmd_session_new(options, engine, "full", options->n_ctx, &status);
    if (session)
        status = compute(options, model, session);
    butler_session_free(session);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},      {CMD_PRE, NULL}, {CMD_PROMPT, NULL}, {CMD_FILE, NULL},     {CMD_IDS, NULL},
    {CMD_NO_SPECIAL, NULL}, {CMD_ALL, NULL}, {CMD_CTX, "0"},     {CMD_KV_TYPE, "f32"}, {CMD_BLOCK, "0"},
    {CMD_THREADS, "0"},     {CMD_ISA, NULL}, {CMD_JSON, NULL},   {CMD_HELP, NULL},     {CMD_NONE, NULL},
};

const struct cmd_command cmd_logits = {
    .name = "logits",
    .synopsis = "[-m FILE] (-p TEXT | -f FILE | --ids I,J,...) [--all] [--json]",
    .summary = "the logits after a prompt, to compare with other engines",
    .details =
        "Prints a line for the last position, or with --all for every one: the position, a tab, and the logits of the whole\n"
        "vocabulary separated by spaces, with nine significant digits, which represent every float exactly.\n"
        "--ids are taken as they are; nothing is added before them.\n\n"
        "With --json the same as rows {\"position\", \"logits\": [...]}.\n",
    .uses = uses,
    .run = run,
};
