/* butler serve: the command line of the server in serve/. */
#include <errno.h>
#include <fcntl.h>
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

static void say(void *user, const char *message)
{
    cmd_say(user, "%s", message);
}

/* It says who asked what: others may not read it. */
static FILE *open_log(const struct cmd_options *options)
{
    const int fd = open(options->access_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    FILE *log = fd < 0 ? NULL : fdopen(fd, "a");
    if (!log)
        cmd_say(options, "--access-log %s: %s", options->access_log, strerror(errno));
    if (!log && fd >= 0)
        close(fd);
    return log;
}

/* Keys of clients, from all places. */
struct keys {
    const char **values; /* [n] */
    int n;
    const char *admin; /* or NULL */
    struct butler_buffer file;
};

static bool add_key(const struct cmd_options *options, struct keys *keys, const char *key, const char *from)
{
    const char *wrong = !*key ? "the key is empty, which every client has" : NULL;
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            wrong = "a key has no blanks and no control characters";
    if (wrong)
        cmd_say(options, "%s: %s", from, wrong);
    else if (keys)
        keys->values[keys->n++] = key;
    return !wrong;
}

/* CMD_DONE or the exit status. */
static int read_keys(const struct cmd_options *options, struct keys *keys)
{
    const char *one = getenv("BUTLER_API_KEY"), *admin = getenv("BUTLER_ADMIN_KEY");
    size_t n_lines = 0;
    bool right = true;
    if (options->api_key_file && cmd_file_read(options, options->api_key_file, &keys->file) != CMD_DONE)
        return CMD_FAILED;
    cmd_append(&keys->file, "", 1);
    for (const char *c = keys->file.bytes; *c; c++)
        n_lines += *c == '\n';
    keys->values = cmd_alloc((size_t)options->api_keys.n + n_lines + 2, sizeof *keys->values);
    for (int i = 0; i < options->api_keys.n; i++)
        right = right && add_key(options, keys, options->api_keys.values[i], "--api-key");
    for (char *line = keys->file.bytes, *next; right && line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        line[strcspn(line, "\r")] = 0;
        right = !*line || add_key(options, keys, line, options->api_key_file);
    }
    right = right && (!one || add_key(options, keys, one, "BUTLER_API_KEY"));
    keys->admin = options->admin_key ? options->admin_key : admin;
    right = right && (!keys->admin || add_key(options, NULL, keys->admin, options->admin_key ? "--admin-key" : "BUTLER_ADMIN_KEY"));
    if (right && options->api_key_file && keys->n == options->api_keys.n + (one != NULL)) {
        cmd_say(options, "%s has no key", options->api_key_file);
        right = false;
    }
    return right ? CMD_DONE : CMD_USAGE;
}

static void free_keys(struct keys *keys)
{
    free(keys->values);
    butler_buffer_free(&keys->file);
}

/* Of the model's file, without the folder. */
static const char *name_model(const struct cmd_options *options)
{
    const char *slash = strrchr(options->model, '/');
    return slash ? slash + 1 : options->model;
}

static const char *policy_for(const void *user, int n_tokens)
{
    return cmd_auto_policy(user, n_tokens);
}

/* What it runs on: engines of one model. */
struct engines {
    struct butler_engine *engines[SERVE_MAX_DEVICES];
    struct butler_library *libraries[SERVE_MAX_DEVICES]; /* of each, or NULL */
    int n;
};

static void free_libraries(struct engines *engines)
{
    for (int i = 0; i < engines->n; i++)
        butler_library_free(engines->libraries[i]);
}

static int serve(const struct cmd_options *options, struct engines *engines, const struct cmd_template *template,
                 const struct keys *keys, FILE *log)
{
    struct butler_error err = {0};
    const uint64_t kv_bytes = options->kv_bytes - options->prefix_bytes;
    unsigned char secret[SERVE_SECRET];
    bool kept = options->cache != NULL;
    for (int i = 0; kept && i < engines->n; i++)
        kept = (engines->libraries[i] = cmd_library_try(options)) != NULL;
    if (kept && cmd_library_secret(options, secret, sizeof secret, &err) < 0) {
        free_libraries(engines);
        return cmd_fail(options, &err);
    }
    const struct serve_config config = {.http = {.host = options->host,
                                                 .port = options->port,
                                                 .keys = keys->values,
                                                 .n_keys = keys->n,
                                                 .admin_key = keys->admin,
                                                 .max_header = MAX_HEADER,
                                                 .max_body = (size_t)options->max_body,
                                                 .max_unread = MAX_UNREAD,
                                                 .max_connections = options->connections,
                                                 .n_files = options->park ? options->parallel : 0,
                                                 .timeout_s = options->timeout,
                                                 .say = say,
                                                 .say_user = (void *)options,
                                                 .log = log},
                                        .scheduler = {.n_ctx = options->n_ctx,
                                                      .kv_type = options->kv_type,
                                                      .policy = options->kv.values[0],
                                                      .policy_for = options->automatic.open ? policy_for : NULL,
                                                      .policy_user = &options->automatic,
                                                      .lossless = options->given[CMD_LOSSLESS],
                                                      .n_drafts = options->n_drafts,
                                                      .kv_bytes = kv_bytes,
                                                      .park = options->park,
                                                      .prefix_bytes = options->prefix_bytes,
                                                      .rereads = options->reread && !options->no_cache,
                                                      .max_stall_s = 1e-3 * options->max_stall,
                                                      .max_jobs = options->parallel,
                                                      .max_queue = options->queue,
                                                      .audit_every = options->audit,
                                                      .steps = (const char *const *)options->steps.values,
                                                      .n_steps = options->steps.n},
                                        .libraries = kept ? engines->libraries : NULL,
                                        .sampling = cmd_sampler_params(options),
                                        .model_name = options->alias ? options->alias : name_model(options),
                                        .file_name = name_model(options),
                                        .chat_template = template->jinja,
                                        .chat_stop = template->stop,
                                        .stops = options->stops.values,
                                        .n_stops = options->stops.n,
                                        .secret = kept ? secret : NULL,
                                        .ready = say_ready,
                                        .user = (void *)options};
    const int code = serve_run(engines->engines, engines->n, &config, &err);
    free_libraries(engines);
    return code < 0 ? cmd_fail(options, &err) : CMD_DONE;
}

/* The memory of caches: what the machine has not cannot be had. CMD_DONE or the exit status. */
static int choose_memory(struct cmd_options *options)
{
    const char *whose = "the device's memory";
    uint64_t usual, limit = cmd_device_memory(options, &usual);
    char wanted[32], most[32];
    if (!limit) {
        limit = cmd_memory_limit(&whose);
        usual = limit / 2;
    }
    if (!options->kv_bytes)
        options->kv_bytes = usual;
    if (options->kv_bytes <= limit) {
        options->kv_ram = options->kv_disk > 0 ? options->kv_bytes : 0;
        options->kv_bytes += options->kv_disk;
        options->prefix_bytes = options->no_cache ? 0 : options->kv_bytes / PREFIX_SHARE;
        return CMD_DONE;
    }
    cmd_say(options, "--kv-ram: %s cannot be had: %s is %s", cmd_bytes(wanted, sizeof wanted, options->kv_bytes), whose,
            cmd_bytes(most, sizeof most, limit));
    return CMD_USAGE;
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
    if (options->alias && !*options->alias) {
        cmd_say(options, "--alias: the name is empty");
        return CMD_USAGE;
    }
    if (options->stops.n > SERVE_MAX_STOPS / 2) {
        cmd_say(options, "--stop: %d texts; a server takes %d, to which requests add their own", options->stops.n,
                SERVE_MAX_STOPS / 2);
        return CMD_USAGE;
    }
    struct keys keys = {0};
    status = read_keys(options, &keys);
    if (status == CMD_DONE)
        status = choose_memory(options);
    FILE *log = NULL;
    if (status == CMD_DONE && options->access_log)
        log = strcmp(options->access_log, "-") == 0 ? stderr : open_log(options);
    if (options->access_log && !log)
        status = status == CMD_DONE ? CMD_FAILED : status;
    struct engines engines = {0};
    struct butler_device_info devices[SERVE_MAX_DEVICES] = {{BUTLER_INIT(butler_device_info)}};
    if (status == CMD_DONE && cmd_names_devices(options))
        engines.n = cmd_engines_load(options, engines.engines, devices, SERVE_MAX_DEVICES, &status);
    else if (status == CMD_DONE)
        engines.n = (engines.engines[0] = cmd_engine_load(options, &status)) != NULL;
    struct butler_engine *const engine = engines.engines[0];
    if (engines.n > 0)
        status = cmd_template_choose(options, butler_engine_model(engine), &template);
    if (engines.n > 0 && status == CMD_DONE) /* what no request could have is told now, not to every client */
        butler_session_free(
            cmd_add_steps(options, cmd_session_new(options, engine, options->kv.values[0], options->n_ctx, &status), &status));
    if (engines.n > 0 && status == CMD_DONE)
        cmd_auto_say_why(options,
                         options->n_ctx ? options->n_ctx : butler_model_get_info(butler_engine_model(engine))->n_ctx_train);
    if (engines.n > 0 && status == CMD_DONE)
        status = serve(options, &engines, &template, &keys, log);
    cmd_template_free(&template);
    for (int i = engines.n - 1; i > 0; i--)
        butler_engine_free(engines.engines[i]);
    if (engines.n > 0)
        cmd_engine_free(engine);
    free_keys(&keys);
    if (log && log != stderr)
        fclose(log);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},
    {CMD_PRE, NULL},
    {CMD_HOST, "127.0.0.1"},
    {CMD_PORT, "8080"},
    {CMD_ALIAS, NULL},
    {CMD_API_KEY, NULL},
    {CMD_API_KEY_FILE, NULL},
    {CMD_ADMIN_KEY, NULL},
    {CMD_CTX, "0"},
    {CMD_KV, "auto"},
    {CMD_KV_TYPE, "f16"},
    {CMD_LOSSLESS, NULL},
    {CMD_KV_RAM, "0"},
    {CMD_KV_DISK, "0"},
    {CMD_PARK, NULL},
    {CMD_MAX_STALL, "200"},
    {CMD_PARALLEL, "64"},
    {CMD_QUEUE, "512"},
    {CMD_CONNECTIONS, "1024"},
    {CMD_MAX_BODY, "16M"},
    {CMD_TIMEOUT, "60"},
    {CMD_ACCESS_LOG, NULL},
    {CMD_AUDIT, "0"},
    {CMD_NO_CACHE, NULL},
    {CMD_REREAD, NULL},
    {CMD_CACHE, NULL},
    {CMD_CACHE_SIZE, "0"},
    {CMD_BLOCK, "0"},
    {CMD_CHAT_TEMPLATE, NULL},
    {CMD_TEMP, "0.8"},
    {CMD_TOP_K, "40"},
    {CMD_TOP_P, "0.95"},
    {CMD_MIN_P, "0.05"},
    CMD_PENALTIES,
    {CMD_THREADS, "0"},
    {CMD_STOP, NULL},
    {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},
    {CMD_PRECISION, "8"},
    {CMD_ROPE_SCALING, NULL},
    {CMD_ROPE_SCALE, "0"},
    {CMD_ROPE_ORIGINAL, "0"},
    {CMD_PLUGIN, NULL},
    {CMD_STEP, NULL},
    {CMD_PREDICTOR, NULL},
    {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_serve = {
    .name = "serve",
    .synopsis = "[-m FILE] [--host H] [--port P] [--api-key KEY]... [--kv POLICY] [FLAGS]",
    .summary = "answer requests over HTTP, as OpenAI's and llama.cpp's servers do",
    .details =
        "Without -m the model is found as in `butler ask`.\n\n"
        "Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /completion, /tokenize, /detokenize, /tokenizer_info,\n"
        "/apply-template, /props, /slots, /health, /metrics, /kv/trace, /kv/map. docs/serve/server.md says what each takes. / is a "
        "page:\n"
        "a chat about files that shows which tokens an answer read.\n\n"
        "A request may choose its own policy: \"kv\": {\"policy\": \"quest:budget=1024\"}. An answer does not depend on what else\n"
        "is served at the same time: the same prompt, seed and policy give the same text.\n\n"
        "Without keys every client is answered. There is no TLS: on a network, put a reverse proxy in front.\n"
        "With --cache FOLDER prompts are also kept there, and a later start does not read them again (docs/library.md).\n"
        "SIGTERM or Ctrl-C: answers that have begun are completed; a second one ends them too.\n",
    .uses = uses,
    .answers = true,
    .run = run,
};
