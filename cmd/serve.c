/* butler serve: the command line of the server in serve/. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "serve/api.h"

enum {
    MAX_HEADER = 16 << 10,
    MAX_UNREAD = 4 << 20,
    PREFIX_SHARE = 4, /* of the cache's memory a quarter may hold beginnings of earlier prompts */
};

static void say_ready(void *user, int port)
{
    const struct cmd_options *options = user;
    if (port)
        cmd_say(options, "listening on http://%s:%d", options->host, port);
    else
        cmd_say(options, "listening on %s", options->host);
}

static FILE *open_log(const struct cmd_options *options)
{
    FILE *log = !options->access_log ? NULL : strcmp(options->access_log, "-") == 0 ? stderr : fopen(options->access_log, "a");
    if (options->access_log && !log)
        cmd_say(options, "--access-log %s: cannot be written", options->access_log);
    return log;
}

/* The model's name in answers: its file's, without the folder. */
static const char *name_model(const struct cmd_options *options)
{
    const char *path = options->model ? options->model : "butler-default.gguf", *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int serve(const struct cmd_options *options, struct butler_engine *engine, const struct cmd_template *template, FILE *log)
{
    struct butler_error err = {0};
    const uint64_t kv_bytes = options->kv_bytes - options->prefix_bytes;
    const struct serve_config config = {.http = {.host = options->host,
                                                 .port = options->port,
                                                 .keys = options->api_keys.values,
                                                 .n_keys = options->api_keys.n,
                                                 .max_header = MAX_HEADER,
                                                 .max_body = (size_t)options->max_body,
                                                 .max_unread = MAX_UNREAD,
                                                 .max_connections = options->connections,
                                                 .timeout_s = options->timeout,
                                                 .log = log},
                                        .scheduler = {.n_ctx = options->n_ctx,
                                                      .kv_type = options->kv_type,
                                                      .policy = options->kv.values[0],
                                                      .lossless = options->given[CMD_LOSSLESS],
                                                      .n_drafts = options->n_drafts,
                                                      .kv_bytes = kv_bytes,
                                                      .park = options->park,
                                                      .prefix_bytes = options->prefix_bytes,
                                                      .max_stall_s = 1e-3 * options->max_stall,
                                                      .max_jobs = options->parallel,
                                                      .max_queue = options->queue,
                                                      .audit_every = options->audit,
                                                      .steps = (const char *const *)options->steps.values,
                                                      .n_steps = options->steps.n},
                                        .sampling = cmd_sampler_params(options),
                                        .model_name = name_model(options),
                                        .chat_template = template->jinja,
                                        .chat_stop = template->stop,
                                        .ready = say_ready,
                                        .user = (void *)options};
    return serve_run(engine, &config, &err) < 0 ? cmd_fail(options, &err) : CMD_DONE;
}

static int run(struct cmd_options *options)
{
    struct cmd_template template = {0};
    int status = CMD_DONE;
    if (options->kv.n > 1) {
        cmd_say(options, "one --kv is the policy of requests that name none, but there are %d", options->kv.n);
        return CMD_USAGE;
    }
    if (options->park && options->steps.n > 0) {
        cmd_say(options, "--park writes sessions to files, which do not hold what a plug-in of --step remembers");
        return CMD_USAGE;
    }
    if (options->given[CMD_LOSSLESS] && options->steps.n > 0) {
        cmd_say(options, "--lossless drafts tokens, which sessions with plug-ins of --step cannot");
        return CMD_USAGE;
    }
    if (!options->kv_bytes)
        options->kv_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    options->prefix_bytes = options->no_cache ? 0 : options->kv_bytes / PREFIX_SHARE;
    FILE *log = open_log(options);
    if (options->access_log && !log)
        return CMD_FAILED;
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (engine)
        status = cmd_template_choose(options, butler_engine_model(engine), &template);
    if (engine && status == CMD_DONE && options->steps.n > 0) /* a wrong one is told now, not to every client */
        butler_session_free(cmd_add_steps(options, cmd_session_new(options, engine, options->kv.values[0], 1, &status), &status));
    if (engine && status == CMD_DONE)
        status = serve(options, engine, &template, log);
    cmd_template_free(&template);
    cmd_engine_free(engine);
    if (log && log != stderr)
        fclose(log);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},         {CMD_PRE, NULL},       {CMD_HOST, "127.0.0.1"},
    {CMD_PORT, "8080"},        {CMD_API_KEY, NULL},   {CMD_CTX, "0"},
    {CMD_KV, "full"},          {CMD_KV_TYPE, "f16"},  {CMD_LOSSLESS, NULL},
    {CMD_KV_RAM, "0"},         {CMD_PARK, NULL},      {CMD_MAX_STALL, "200"},
    {CMD_PARALLEL, "64"},      {CMD_QUEUE, "512"},    {CMD_CONNECTIONS, "1024"},
    {CMD_MAX_BODY, "16M"},     {CMD_TIMEOUT, "60"},   {CMD_ACCESS_LOG, NULL},
    {CMD_AUDIT, "0"},          {CMD_NO_CACHE, NULL},  {CMD_BLOCK, "0"},
    {CMD_CHAT_TEMPLATE, NULL}, {CMD_TEMP, "0.8"},     {CMD_TOP_K, "40"},
    {CMD_TOP_P, "0.95"},       {CMD_MIN_P, "0.05"},   CMD_PENALTIES,
    {CMD_THREADS, "0"},        {CMD_ISA, NULL},       {CMD_PLUGIN, NULL},
    {CMD_STEP, NULL},          {CMD_PREDICTOR, NULL}, {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_serve = {
    .name = "serve",
    .synopsis = "[-m FILE] [--host H] [--port P] [--api-key KEY]... [--kv POLICY] [FLAGS]",
    .summary = "answer requests over HTTP, as OpenAI's and llama.cpp's servers do",
    .details =
        "Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /completion, /tokenize, /detokenize, /tokenizer_info,\n"
        "/apply-template, /props, /slots, /health, /metrics, /kv/trace, /kv/map. docs/serve.md says what each takes. / is a page:\n"
        "a chat about files that shows which tokens an answer read.\n\n"
        "A request may choose its own policy: \"kv\": {\"policy\": \"quest:budget=1024\"}. An answer does not depend on what else\n"
        "is served at the same time: the same prompt, seed and policy give the same text.\n\n"
        "Without --api-key every client is answered. There is no TLS: on a network, put a reverse proxy in front.\n"
        "SIGTERM or Ctrl-C: answers that have begun are completed; a second one ends them too.\n",
    .uses = uses,
    .run = run,
};
