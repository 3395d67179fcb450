/* butler ask: a question about documents. They stand before the question in one message, so that what was read of them serves the
 * next question too: the session behind the documents is kept in a folder (cache.c). */
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

struct ask {
    struct cmd_template template;
    struct cmd_integers beginning; /* tokens up to the question; none where the template does not let them be told apart */
    struct cmd_integers rest;
    struct cmd_cache cache;
    struct butler_session *session;
    struct butler_session
        *kept; /* what the session was behind the beginning, to be saved; NULL: it is saved already, or cannot be */
};

/* ---------------------------------------------------------------------------------------------- the prompt */

/* The rendered conversation as tokens: up to the end of the documents, and from there on. The documents end with a word and the
 * question begins with a blank, where tokenizers cut, too. */
static int tokenize(const struct cmd_options *options, const struct butler_model *model, const struct butler_chat_text *text,
                    const struct cmd_text *documents, struct ask *ask)
{
    const char *at = memmem(text->bytes, text->n, documents->bytes, documents->n);
    size_t end = at ? (size_t)(at - text->bytes) + documents->n : 0, n_segments = 0;
    int status = CMD_DONE;
    if (end) {
        struct butler_chat_text before = {.bytes = text->bytes, .n = end};
        before.segments = cmd_alloc(text->n_segments, sizeof *before.segments);
        for (; n_segments < text->n_segments && text->segments[n_segments].offset < end; n_segments++) {
            struct butler_chat_segment *segment = &before.segments[n_segments];
            *segment = text->segments[n_segments];
            if (segment->n > end - segment->offset)
                segment->n = end - segment->offset;
        }
        before.n_segments = n_segments;
        status = cmd_chat_tokenize(options, model, &before, 0, &ask->beginning);
        free(before.segments);
    }
    return status == CMD_DONE ? cmd_chat_tokenize(options, model, text, end, &ask->rest) : status;
}

static int make_prompt(const struct cmd_options *options, const struct butler_model *model, struct ask *ask)
{
    static const char label[] = "Question:";
    const char *question = options->positional.values[0];
    struct butler_error err = {0};
    struct cmd_text documents = {0}, content = {0};
    struct butler_chat_message messages[2];
    struct butler_chat_text text = {0};
    int status = CMD_DONE, n = 0;
    for (int i = 0; status == CMD_DONE && i < options->documents.n; i++)
        status = cmd_document_append(options, options->documents.values[i], &documents);
    if (status != CMD_DONE)
        goto done;
    cmd_text_append(&documents, label, sizeof label - 1);
    cmd_text_append(&content, documents.bytes, documents.n);
    cmd_text_append(&content, " ", 1);
    cmd_text_append(&content, question, strlen(question) + 1);
    if (options->system && *options->system)
        messages[n++] = (struct butler_chat_message){.role = "system", .content = options->system};
    messages[n++] = (struct butler_chat_message){.role = "user", .content = content.bytes};
    if (cmd_template_render(&ask->template, model, messages, (size_t)n, &text, &err) < 0)
        status = cmd_fail(options, &err);
    else
        status = tokenize(options, model, &text, &documents, ask);
    butler_chat_text_free(&text);
done:
    cmd_text_free(&documents);
    cmd_text_free(&content);
    return status;
}

/* ------------------------------------------------------------------------------------------------- reading */

static int read_tokens(const struct cmd_options *options, struct ask *ask, const struct cmd_integers *ids)
{
    const int n_before = butler_n_past(ask->session), status = cmd_prefill(options, ask->session, ids);
    if (status != CMD_INTERRUPTED)
        return status;
    cmd_say(options, "interrupted after %d of %d tokens", butler_n_past(ask->session) - n_before, ids->n);
    return CMD_FAILED;
}

/* A session that has read the beginning, from the cache or by reading it. */
static int begin(const struct cmd_options *options, struct butler_engine *engine, int n_ctx, struct ask *ask)
{
    struct butler_error err = {0};
    int status = CMD_DONE;
    if (ask->beginning.n)
        cmd_cache_find(options, engine, n_ctx, &ask->beginning, &ask->cache);
    ask->session = cmd_cache_restore(options, engine, &ask->cache, n_ctx, ask->beginning.n);
    if (ask->session) {
        cmd_say(options, "%d tokens were read before: %s", ask->beginning.n, ask->cache.path);
        return CMD_DONE;
    }
    ask->session = cmd_session_new(options, engine, options->kv.values[0], n_ctx, &status);
    if (!ask->session)
        return status;
    if (!ask->cache.path) { /* one prompt: a policy that evicts cuts where it ends */
        for (int i = 0; i < ask->rest.n; i++)
            cmd_integers_append(&ask->beginning, ask->rest.values[i]);
        ask->rest.n = 0;
        ask->session = cmd_add_steps(options, ask->session, &status); /* with --step nothing is kept */
    }
    if (status == CMD_DONE)
        status = read_tokens(options, ask, &ask->beginning);
    if (status == CMD_DONE && ask->cache.path && !(ask->kept = butler_session_fork(ask->session, &err)))
        cmd_say(options, "warning: what was read is not kept: %s", err.message);
    return status;
}

static int check_length(const struct cmd_options *options, int n_ctx, const struct ask *ask)
{
    enum { ANSWER = 512 }; /* tokens to plan for an answer without a limit */
    const int n = ask->beginning.n + ask->rest.n, n_answer = options->n < 0 ? ANSWER : options->n;
    if (n < n_ctx)
        return CMD_DONE;
    cmd_say(options,
            "the documents and the question have %d tokens, but the context holds %d; with an answer of %d it takes -c %lld", n,
            n_ctx, n_answer, (long long)n + n_answer);
    return CMD_FAILED;
}

static int answer(const struct cmd_options *options, struct butler_engine *engine, struct ask *ask)
{
    struct cmd_answer answer = {0};
    struct butler_error err = {0};
    struct butler_stats stats;
    int status = ask->rest.n ? read_tokens(options, ask, &ask->rest) : CMD_DONE;
    struct butler_sampler *sampler = status == CMD_DONE ? cmd_sampler_new(options, butler_engine_model(engine), &status) : NULL;
    if (sampler && (butler_sampler_accept(sampler, ask->beginning.values, ask->beginning.n, &err) < 0 ||
                    butler_sampler_accept(sampler, ask->rest.values, ask->rest.n, &err) < 0))
        status = cmd_fail(options, &err);
    if (sampler && status == CMD_DONE)
        status = cmd_answer_generate(options, engine, ask->session, sampler, ask->template.stop, &answer);
    if (status == CMD_DONE) {
        butler_session_stats(ask->session, &stats);
        cmd_say_cost(options->kv.values[0], &stats, answer.end);
    }
    if (ask->kept)
        cmd_cache_save(options, &ask->cache, ask->kept);
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
    const int n_ctx = options->n_ctx ? options->n_ctx : butler_model_get_info(model)->n_ctx_train;
    status = cmd_template_choose(options, model, &ask.template);
    if (status == CMD_DONE)
        status = make_prompt(options, model, &ask);
    if (status == CMD_DONE)
        status = check_length(options, n_ctx, &ask);
    if (status == CMD_DONE)
        status = begin(options, engine, n_ctx, &ask);
    if (status == CMD_DONE)
        status = answer(options, engine, &ask);
    butler_session_free(ask.kept);
    butler_session_free(ask.session);
    cmd_cache_free(&ask.cache);
    cmd_template_free(&ask.template);
    free(ask.beginning.values);
    free(ask.rest.values);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},     {CMD_PRE, NULL},      {CMD_DOCUMENTS, NULL},     {CMD_CACHE, NULL},  {CMD_CACHE_SIZE, "2G"},
    {CMD_NO_CACHE, NULL},  {CMD_SYSTEM, NULL},   {CMD_CHAT_TEMPLATE, NULL}, {CMD_N, "512"},     {CMD_CTX, "0"},
    {CMD_KV, "full"},      {CMD_KV_TYPE, "f16"}, {CMD_LOSSLESS, NULL},      {CMD_BLOCK, "0"},   {CMD_TEMP, "0"},
    {CMD_TOP_K, "40"},     {CMD_TOP_P, "0.95"},  {CMD_MIN_P, "0.05"},       CMD_PENALTIES,      CMD_CONSTRAINTS,
    {CMD_SEED, "0"},       {CMD_THREADS, "0"},   {CMD_ISA, NULL},           {CMD_PLUGIN, NULL}, {CMD_STEP, NULL},
    {CMD_PREDICTOR, NULL}, {CMD_HELP, NULL},     {CMD_NONE, NULL},
};

const struct cmd_command cmd_ask = {
    .name = "ask",
    .synopsis = "[-m FILE] -f FILE [-f FILE]... [FLAGS] \"QUESTION\"",
    .summary = "answer a question about documents",
    .details =
        "Without -m the model is the one real model in models/ beside the command, or in share/butler of the prefix it is "
        "installed\n"
        "in, and is named; with none or several there the command stops and says so.\n\n"
        "The documents and the question are one message, rendered by the model's chat template. The answer goes to standard\n"
        "output while it is made; what was read and its cost go to standard error.\n\n"
        "What was read of the documents is kept in the folder of --cache ($XDG_CACHE_HOME/butler or ~/.cache/butler), a file for\n"
        "each model, policy, KV type, context and beginning of the text; the next question about the same files starts\n"
        "from there. A file that is damaged or belongs to something else is not used, with a warning, and is written anew.\n"
        "Policies that evict choose by the question what they keep: under them nothing is kept.\n\n"
        "Ctrl-C ends the answer. Documents and a question longer than the context are an error that names the -c they need.\n",
    .uses = uses,
    .answers = true,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
