/* butler ask: a question about documents. They stand first in the message, so that what was read of them serves the next question
 * too, and what changes from one question to the next stands behind them: the library (store.c) keeps what was read. */
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "base/util.h"

struct ask {
    struct cmd_template template;
    struct cmd_integers prompt;
    int n_shared; /* tokens that another question's prompt begins with, too */
    struct cmd_sources sources;
    char *policy;                   /* owned: of --kv, for a text longer than the model's context; or NULL */
    struct butler_library *library; /* or NULL */
    struct butler_session *session;
};

/* ---------------------------------------------------------------------------------------------- the prompt */

/* What is appended to the documents is taken back. */
static int render(const struct cmd_options *options, const struct butler_model *model, const struct cmd_template *template,
                  struct butler_buffer *documents, const char *question, struct cmd_integers *ids)
{
    static const char label[] = "Question: ";
    struct butler_error err = {0};
    struct butler_chat_text text = {0};
    const size_t n_documents = documents->n;
    int status;
    if (options->system && *options->system) { /* before the documents it would make all that follows another text */
        cmd_append(documents, options->system, strlen(options->system));
        cmd_append(documents, "\n\n", 2);
    }
    cmd_append(documents, label, sizeof label - 1);
    cmd_append(documents, question, strlen(question) + 1);
    const struct butler_chat_message message = {.role = "user", .content = documents->bytes};
    if (cmd_template_render(template, model, &message, 1, &text, &err) < 0)
        status = cmd_fail(options, &err);
    else
        status = cmd_chat_tokenize(options, model, &text, 0, ids);
    butler_chat_text_free(&text);
    documents->n = n_documents;
    return status;
}

/* How many tokens the prompt begins with whatever is asked. */
static int count_shared(const struct cmd_options *options, const struct butler_model *model, const struct cmd_template *template,
                        struct butler_buffer *documents, const struct cmd_integers *ids)
{
    struct cmd_integers other = {0};
    int n = 0;
    if (render(options, model, template, documents, "", &other) == CMD_DONE)
        while (n < BUTLER_MIN(ids->n, other.n) && ids->values[n] == other.values[n])
            n++;
    free(other.values);
    return n;
}

int cmd_ask_prompt(const struct cmd_options *options, const struct butler_model *model, const struct cmd_template *template,
                   const char *question, struct cmd_integers *ids, int *n_shared, struct cmd_sources *sources)
{
    struct butler_buffer documents = {0};
    int status = CMD_DONE;
    for (int i = 0; status == CMD_DONE && i < options->documents.n; i++)
        status = cmd_document_append(options, options->documents.values[i], &documents, sources);
    if (status == CMD_DONE)
        status = render(options, model, template, &documents, question, ids);
    if (status == CMD_DONE && n_shared)
        *n_shared = count_shared(options, model, template, &documents, ids);
    butler_buffer_free(&documents);
    return status;
}

/* ------------------------------------------------------------------------------------------------- reading */

static int read_prompt(const struct cmd_options *options, struct butler_engine *engine, int n_ctx, struct ask *ask)
{
    int status = CMD_DONE;
    ask->library = cmd_library_try(options);
    ask->session = cmd_add_steps(options, cmd_session_new(options, engine, options->kv.values[0], n_ctx, &status), &status);
    if (!ask->session)
        return status;
    cmd_library_use(options, ask->library, ask->session);
    butler_session_keep_at(ask->session, ask->n_shared, NULL); /* without a library it keeps nothing */
    status = cmd_receipt_begin(options, ask->session);
    if (status != CMD_DONE)
        return status;
    status = cmd_prefill(options, engine, ask->session, &ask->prompt);
    if (status != CMD_INTERRUPTED)
        return status;
    cmd_say(options, "interrupted after %d of %d tokens%s", butler_n_past(ask->session), ask->prompt.n,
            ask->library ? "; they are kept: the same command goes on there" : "");
    return CMD_FAILED;
}

/* Whether the text fits, or the policy takes it all the same. */
static int check_length(struct cmd_options *options, struct butler_engine *engine, struct ask *ask, int *n_ctx)
{
    enum { ANSWER = 512 }; /* tokens to plan for an answer without a limit */
    const int n = ask->prompt.n, n_answer = options->n < 0 ? ANSWER : options->n;
    ask->policy = cmd_stream(options, engine, options->kv.values[0], (int64_t)n + n_answer, n_ctx);
    if (ask->policy)
        options->kv.values[0] = ask->policy;
    if (n < *n_ctx)
        return CMD_DONE;
    cmd_say_choices(options, engine, "the documents and the question have", n, n_answer, *n_ctx);
    return CMD_FAILED;
}

/* What the answer took, in a sentence; with -v in all its parts. */
static void say_cost(const struct cmd_options *options, const struct butler_engine *engine, const struct ask *ask,
                     const struct cmd_answer *answer)
{
    char first[32];
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(ask->session, &stats);
    cmd_duration(first, sizeof first, (answer->shown_s > 0 ? answer->shown_s : butler_seconds()) - options->start_s);
    cmd_say(options, "first word after %s: %llu tokens read, %d read before; %llu answered, %.1f a second (%s)", first,
            (unsigned long long)stats.n_prefill, ask->prompt.n - (int)stats.n_prefill, (unsigned long long)stats.n_decode,
            cmd_per_second(stats.n_decode, stats.decode_s), cmd_end_names[answer->end]);
    if (options->verbose)
        cmd_say_cost(engine, options->kv.values[0], &stats, answer->end);
}

static int answer(const struct cmd_options *options, struct butler_engine *engine, struct ask *ask)
{
    struct cmd_answer answer = {0};
    struct butler_error err = {0};
    int status = CMD_DONE;
    struct butler_sampler *sampler = cmd_sampler_new(options, butler_engine_model(engine), &status);
    if (sampler && butler_sampler_accept(sampler, ask->prompt.values, ask->prompt.n, &err) < 0)
        status = cmd_fail(options, &err);
    if (sampler && status == CMD_DONE)
        status = cmd_answer_generate(options, engine, ask->session, sampler, ask->template.stop, &answer);
    if (status == CMD_DONE) {
        say_cost(options, engine, ask, &answer);
        cmd_receipt_say(options, butler_engine_model(engine), ask->session, &ask->prompt, &ask->sources);
    }
    butler_sampler_free(sampler);
    cmd_answer_free(&answer);
    return status;
}

static int run(struct cmd_options *options)
{
    struct ask ask = {0};
    int status = CMD_DONE;
    if (options->documents.n == 0 || options->kv.n > 1) {
        if (options->kv.n > 1)
            cmd_say(options, "--kv: an answer has one policy, but %d are given", options->kv.n);
        else
            cmd_say(options, "no document: name a file with -f FILE (- is standard input)");
        return CMD_USAGE;
    }
    cmd_interrupts_start();
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (!engine)
        return status;
    const struct butler_model *model = butler_engine_model(engine);
    int n_ctx = options->n_ctx ? options->n_ctx : butler_model_get_info(model)->n_ctx_train;
    status = cmd_template_choose(options, model, &ask.template);
    if (status == CMD_DONE)
        status =
            cmd_ask_prompt(options, model, &ask.template, options->positional.values[0], &ask.prompt, &ask.n_shared, &ask.sources);
    if (status == CMD_DONE)
        status = check_length(options, engine, &ask, &n_ctx);
    if (status == CMD_DONE)
        cmd_auto_choose(options, options->n < 0 || ask.prompt.n > n_ctx - options->n ? n_ctx : ask.prompt.n + options->n);
    if (status == CMD_DONE)
        status = read_prompt(options, engine, n_ctx, &ask);
    if (status == CMD_DONE)
        status = answer(options, engine, &ask);
    butler_session_free(ask.session);
    butler_library_free(ask.library);
    cmd_template_free(&ask.template);
    free(ask.policy);
    free(ask.prompt.values);
    cmd_sources_free(&ask.sources);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},    {CMD_PRE, NULL},          {CMD_DOCUMENTS, NULL},     {CMD_CACHE, NULL},        {CMD_CACHE_SIZE, "0"},
    {CMD_NO_CACHE, NULL}, {CMD_SYSTEM, NULL},       {CMD_CHAT_TEMPLATE, NULL}, {CMD_N, "512"},           {CMD_CTX, "0"},
    {CMD_KV, "auto"},     {CMD_KV_TYPE, "f16"},     {CMD_KV_RESIDENT, "0"},    {CMD_LOSSLESS, NULL},     {CMD_BLOCK, "0"},
    {CMD_TEMP, "0"},      {CMD_TOP_K, "40"},        {CMD_TOP_P, "0.95"},       {CMD_MIN_P, "0.05"},      CMD_PENALTIES,
    CMD_CONSTRAINTS,      {CMD_SEED, "0"},          {CMD_THREADS, "0"},        {CMD_DEVICE, NULL},       {CMD_ISA, NULL},
    {CMD_PRECISION, "8"}, {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"},     {CMD_ROPE_ORIGINAL, "0"}, {CMD_PLUGIN, NULL},
    {CMD_STEP, NULL},     {CMD_PREDICTOR, NULL},    {CMD_VERBOSE, NULL},       {CMD_RECEIPT, "8"},       {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_ask = {
    .name = "ask",
    .synopsis = "[-m FILE] -f FILE [-f FILE]... [FLAGS] \"QUESTION\"",
    .summary = "answer a question about documents",
    .details =
        "Without -m the model is the one real model in models/ beside the command, or in share/butler of the prefix it is "
        "installed\n"
        "in, and is named; with none or several there the command stops and says so.\n\n"
        "The documents, the instructions of --system-prompt and the question are one message, in this order, rendered by the\n"
        "model's chat template. The answer goes to standard output while it is made, messages and its cost to standard error.\n\n"
        "What is read is kept while it is read, in the folder of --cache ($XDG_CACHE_HOME/butler/library or\n"
        "~/.cache/butler/library): the next question reads only what is new, also under another policy, budget, -c or name of\n"
        "the file, after a line was appended, and after Ctrl-C, SIGTERM or a crash while it was read. chat, run and `butler\n"
        "library` use the same folder. A file there that is damaged is not used, with a warning, and is written anew.\n\n"
        "Documents in Latin-1, UTF-16 and UTF-32, HTML, PDF, docx, odt and epub are converted, with a note. Documents and a\n"
        "question longer than what the model was trained for are an error that says what the choices are; --kv streaming reads\n"
        "them, and keeps only the first and the latest tokens. Ctrl-C ends the answer.\n",
    .uses = uses,
    .answers = true,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
