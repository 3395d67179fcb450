/* butler logits: the logits after a prompt in full precision, to compare with other engines. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "cmd.h"

struct sink {
    const struct cmd_options *options;
    const struct butler_model *model;
    int n_vocab;
    int bad_position;             /* the first whose logits are not numbers, or -1 */
    int *order;                   /* --top: [n_vocab] tokens; the first `top` are sorted by their logits */
    struct butler_writer *writer; /* -o; NULL: standard output */
    struct butler_error err;      /* of the writer */
};

/* ---------------------------------------------------------------------------------------------------- --top */

/* Whether token a stands before token b: the higher logit, then the lower number. */
static bool is_before(const float *logits, int a, int b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Moves the last of the tokens below `at` to its place: order[0 .. n) is a heap whose first token is the last in the order. */
static void sift(int *order, int n, int at, const float *logits)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(logits, order[child], order[child + 1]))
            child++;
        if (!is_before(logits, order[at], order[child]))
            return;
        const int swapped = order[at];
        order[at] = order[child];
        order[child] = swapped;
    }
}

/* The n first tokens, sorted, to the front of order. */
static void choose_top(int *order, int n, const float *logits, int n_vocab)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n / 2; i-- > 0;)
        sift(order, n, i, logits);
    for (int i = n; i < n_vocab; i++)
        if (is_before(logits, i, order[0])) {
            order[0] = i;
            sift(order, n, 0, logits);
        }
    for (int end = n - 1; end > 0; end--) {
        const int last = order[0];
        order[0] = order[end];
        order[end] = last;
        sift(order, end, 0, logits);
    }
}

static void print_top(const struct sink *sink, int position, const float *logits)
{
    const int n = sink->options->top < sink->n_vocab ? sink->options->top : sink->n_vocab;
    choose_top(sink->order, n, logits, sink->n_vocab);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        size_t n_bytes = 0;
        const int32_t id = sink->order[i];
        const char *bytes = butler_token_bytes(sink->model, id, &n_bytes);
        json_t *token = cmd_json_text(bytes ? bytes : "", n_bytes);
        if (!sink->options->json) {
            char *text = json_dumps(token, JSON_ENCODE_ANY);
            cmd_printf("%d\t%d\t%.9g\t%s\n", position, (int)id, (double)logits[id], text ? text : "");
            free(text);
            json_decref(token);
        } else
            json_array_append_new(list, json_pack("{s:i, s:o, s:f}", "id", (int)id, "token", token, "logit", (double)logits[id]));
    }
    if (sink->options->json)
        cmd_row(json_pack("{s:i, s:o}", "position", position, "top", list));
    else
        json_decref(list);
}

/* --------------------------------------------------------------------------------------------------- a row */

/* Little-endian, whatever the machine: files are compared between machines. */
static bool write_floats(struct sink *sink, const float *logits)
{
    unsigned char bytes[4096];
    size_t used = 0;
    for (int i = 0; i < sink->n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        for (int byte = 0; byte < 4; byte++)
            bytes[used++] = (unsigned char)(bits >> 8 * byte);
        if (used == sizeof bytes || i == sink->n_vocab - 1) {
            if (butler_write(sink->writer, bytes, used, &sink->err) < 0)
                return false;
            used = 0;
        }
    }
    return true;
}

static bool print_row(void *user, int position, const float *logits)
{
    struct sink *sink = user;
    for (int i = 0; i < sink->n_vocab && sink->bad_position < 0; i++)
        if (!isfinite(logits[i]))
            sink->bad_position = position;
    if (sink->bad_position >= 0)
        return false;
    if (sink->writer)
        return write_floats(sink, logits);
    if (sink->options->top > 0) {
        print_top(sink, position, logits);
        return true;
    }
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
    if (options->output && (options->json || options->top > 0)) {
        cmd_say(options, "-o writes all logits as float32; leave out %s", options->json ? "--json" : "--top");
        return CMD_USAGE;
    }
    return CMD_DONE;
}

static int read_tokens(struct cmd_options *options, const struct butler_model *model)
{
    struct butler_buffer text = {0};
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
    butler_buffer_free(&text);
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
    struct butler_writer writer = {0};
    struct sink sink = {.options = options,
                        .model = model,
                        .n_vocab = butler_model_get_info(model)->n_vocab,
                        .bad_position = -1,
                        .writer = options->output ? &writer : NULL};
    if (options->output && cmd_check_output(options, options->output, NULL, 0) != CMD_DONE)
        return CMD_USAGE;
    if (options->output && butler_writer_open(&writer, options->output, 0, &err) < 0)
        return cmd_fail(options, &err);
    if (options->top > 0)
        sink.order = cmd_alloc((size_t)sink.n_vocab, sizeof *sink.order);
    int status = CMD_DONE;
    if (butler_prefill(session, options->ids.values, n, options->all ? print_row : NULL, &sink, &err) < 0 &&
        sink.bad_position < 0 && sink.err.code == 0)
        status = cmd_fail(options, &err);
    if (status == CMD_DONE && !options->all)
        print_row(&sink, n - 1, butler_logits(session));
    if (sink.bad_position >= 0) {
        cmd_say(options, "the logits at position %d hold NaN or infinity", sink.bad_position);
        status = CMD_FAILED;
    }
    if (status == CMD_DONE && (sink.err.code < 0 || (sink.writer && butler_writer_commit(&writer, &sink.err) < 0)))
        status = cmd_fail(options, &sink.err);
    butler_writer_abort(&writer);
    free(sink.order);
    return status;
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
    {CMD_MODEL, NULL},      {CMD_PRE, NULL},          {CMD_PROMPT, NULL},    {CMD_FILE, NULL},         {CMD_IDS, NULL},
    {CMD_NO_SPECIAL, NULL}, {CMD_ALL, NULL},          {CMD_TOP, "0"},        {CMD_OUTPUT, NULL},       {CMD_CTX, "0"},
    {CMD_KV_TYPE, "f32"},   {CMD_BLOCK, "0"},         {CMD_THREADS, "0"},    {CMD_DEVICE, NULL},       {CMD_ISA, NULL},
    {CMD_PRECISION, "8"},   {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"}, {CMD_ROPE_ORIGINAL, "0"}, {CMD_JSON, NULL},
    {CMD_HELP, NULL},       {CMD_NONE, NULL},
};

const struct cmd_command cmd_logits = {
    .name = "logits",
    .synopsis = "[-m FILE] (-p TEXT | -f FILE | --ids I,J,...) [--all] [--top N] [--json | -o FILE]",
    .summary = "the logits after a prompt, to compare with other engines",
    .details =
        "Prints a line for the last position, or with --all for every one: the position, a tab, and the logits of the whole\n"
        "vocabulary separated by spaces, with nine significant digits, which represent every float exactly.\n"
        "--ids are taken as they are; nothing is added before them.\n\n"
        "With --json the same as rows {\"position\", \"logits\": [...]}. --top N prints a line for each of the N highest logits\n"
        "instead: the position, the token, its logit and its text as a JSON string, with tabs between; with --json a row\n"
        "{\"position\", \"top\": [{\"id\", \"token\", \"logit\"}, ...]} for each position.\n\n"
        "-o FILE writes the logits as little-endian float32 and nothing else: a row of the vocabulary's size for each position, "
        "in\n"
        "order; numpy reads it by fromfile(FILE, '<f4').reshape(-1, n_vocab). FILE appears only when it is complete.\n",
    .uses = uses,
    .run = run,
};
