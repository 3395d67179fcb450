/* butler info: what a model file contains and the memory that a session with it needs; what a predictor or a session file is. */
#include <inttypes.h>
#include <string.h>

#include "cmd.h"
#include "verdict.h"

/* The cache grows in pages: the mean over many tokens is the cost of one. Layers with a window have stopped growing by then. */
static uint64_t kv_bytes_per_token(const struct butler_model *model, enum butler_kv_type type)
{
    enum { MANY = 1 << 16 };
    return (butler_kv_bytes(model, type, 2 * MANY) - butler_kv_bytes(model, type, MANY)) / MANY;
}

static const int depths[] = {8192, 32768, 131072}; /* tokens at which the cache's memory is shown */
enum { N_DEPTHS = sizeof depths / sizeof *depths };

/* null where the heads are too narrow for the type. */
static json_t *kv_row(const struct butler_model *model, enum butler_kv_type type, int n_ctx)
{
    if (kv_bytes_per_token(model, type) == 0)
        return json_null();
    json_t *at = json_object();
    for (int i = 0; i < N_DEPTHS; i++) {
        char tokens[16];
        snprintf(tokens, sizeof tokens, "%d", depths[i]);
        json_object_set_new(at, tokens, json_integer((json_int_t)butler_kv_bytes(model, type, depths[i])));
    }
    return json_pack("{s:I, s:I, s:o}", "per_token", (json_int_t)kv_bytes_per_token(model, type), "at_ctx",
                     (json_int_t)butler_kv_bytes(model, type, n_ctx), "at", at);
}

static json_t *predictor_rows(const struct butler_engine *engine)
{
    struct butler_predictor_info p = {BUTLER_INIT(butler_predictor_info)};
    json_t *rows = json_array();
    char fingerprint[24];
    for (int version = 1; version <= 2; version++)
        if (butler_predictor_describe(engine, version, &p)) {
            snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, p.fingerprint);
            json_array_append_new(rows,
                                  json_pack("{s:i, s:o, s:s, s:i, s:I, s:f, s:I, s:I, s:I, s:I, s:f, s:o}", "version", version,
                                            "file", cmd_json_text(p.path, strlen(p.path)), "fingerprint", fingerprint, "d", p.d,
                                            "n_params", (json_int_t)p.n_params, "share", p.share, "bytes", (json_int_t)p.bytes,
                                            "step_bytes", (json_int_t)p.step_bytes, "n_tokens", (json_int_t)p.n_tokens, "n_steps",
                                            (json_int_t)p.n_steps, "loss", p.loss, "text", cmd_json_text(p.text, strlen(p.text))));
        }
    return rows;
}

static void print_predictors(const struct butler_engine *engine)
{
    struct butler_predictor_info p = {BUTLER_INIT(butler_predictor_info)};
    char a[32];
    for (int version = 1; version <= 2; version++)
        if (butler_predictor_describe(engine, version, &p)) {
            cmd_printf("predictor v%d    %llu parameters, %.2f %% of the model's, %s, heads of %d: %s\n", version,
                       (unsigned long long)p.n_params, 100 * p.share, cmd_bytes(a, sizeof a, p.bytes), p.d, p.path);
            cmd_printf("                trained on %lld tokens in %lld steps, loss %.4g: %s\n", (long long)p.n_tokens,
                       (long long)p.n_steps, p.loss, p.text);
        }
}

/* What the gate found, length by length; where nothing passed, what failed. gate may be NULL. */
static void print_gate(const json_t *gate)
{
    size_t i, k;
    json_t *on, *one;
    if (!gate)
        cmd_printf("gate            not run: butler gate -m MODEL finds which policies hold for this model\n");
    json_array_foreach(json_object_get(gate, "on"), i, on)
    {
        cmd_printf("%-15s from %d tokens on: %s", i ? "" : "gate", (int)json_integer_value(json_object_get(on, "length")),
                   json_string_value(json_object_get(on, "policy")));
        const char *gap = "; failed: ";
        json_array_foreach(json_object_get(gate, "candidates"), k, one)
        {
            const bool same = json_equal(json_object_get(one, "length"), json_object_get(on, "length"));
            if (same && !json_is_true(json_object_get(one, "passes"))) {
                cmd_printf("%s%s", gap, json_string_value(json_object_get(one, "policy")));
                gap = ", ";
            }
        }
        cmd_printf("\n");
    }
}

/* Why chat cannot use the model's own template, or NULL. */
static const char *template_error(const struct butler_model *model, struct butler_error *err)
{
    const bool has_one = butler_model_get_info(model)->chat_template;
    return has_one && !cmd_template_works(model, err) ? err->message : NULL;
}

/* Calls fn with each token that ends an answer. */
static void each_end(const struct butler_model *model, void (*fn)(int32_t id, const char *spelling, size_t n, void *user),
                     void *user)
{
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    for (int32_t id = 0; id < n_vocab; id++)
        if (butler_token_is_end(model, id)) {
            size_t n;
            const char *spelling = butler_token_spelling(model, id, &n);
            fn(id, spelling, n, user);
        }
}

static void add_end(int32_t id, const char *spelling, size_t n, void *user)
{
    json_array_append_new(user, json_pack("{s:i, s:o}", "id", id, "text", cmd_json_text(spelling, n)));
}

static void print_end(int32_t id, const char *spelling, size_t n, void *user)
{
    char text[256];
    int *n_printed = user;
    cmd_printf("%s%d %s", (*n_printed)++ ? ", " : "", id, cmd_plain(text, sizeof text, spelling, n));
}

static void print_row(const struct butler_engine *engine, const struct butler_model_info *info, int n_ctx, const json_t *gate)
{
    struct butler_error err = {0};
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_engine_info device = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &device);
    json_t *kv = json_object();
    for (int type = 0; type < BUTLER_N_KV_TYPES; type++)
        json_object_set_new(kv, cmd_kv_type_name((enum butler_kv_type)type), kv_row(model, (enum butler_kv_type)type, n_ctx));
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:s?, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "architecture", info->architecture, "name",
                  info->name, "file_type", info->file_type, "tokenizer", *info->tokenizer ? info->tokenizer : NULL, "n_layers",
                  info->n_layers, "n_embd", info->n_embd, "n_ff", info->n_ff, "n_heads", info->n_heads, "n_kv_heads",
                  info->n_kv_heads, "head_dim", info->head_dim, "n_vocab", info->n_vocab, "n_ctx_train", info->n_ctx_train);
    const char *error = template_error(model, &err);
    json_object_set_new(row, "rope_scaling", info->rope_scaling[0] ? json_string(info->rope_scaling) : json_null());
    json_object_set_new(row, "chat_template",
                        info->chat_template ? cmd_json_text(info->chat_template, strlen(info->chat_template)) : json_null());
    json_object_set_new(row, "chat_template_error", error ? cmd_json_text(error, strlen(error)) : json_null());
    json_t *ends = json_array();
    each_end(model, add_end, ends);
    json_object_set_new(row, "end_tokens", ends);
    json_object_set_new(row, "n_params", json_integer((json_int_t)info->n_params));
    json_object_set_new(row, "weight_bytes", json_integer((json_int_t)info->weight_bytes));
    json_object_set_new(row, "step_weight_bytes", json_integer((json_int_t)info->step_weight_bytes));
    json_object_set_new(row, "window", info->n_windowed ? json_integer(info->window) : json_null());
    json_object_set_new(row, "n_windowed", json_integer(info->n_windowed));
    json_object_set_new(row, "isa", json_string(device.isa));
    json_object_set_new(row, "n_threads", json_integer(device.n_threads));
    json_object_set_new(row, "n_ctx", json_integer(n_ctx));
    json_object_set_new(row, "kv_bytes", kv);
    json_object_set_new(row, "predictors", predictor_rows(engine));
    json_object_set_new(row, "gate", gate ? json_deep_copy(gate) : json_null());
    cmd_row(row);
}

static void print_template(const struct butler_model *model)
{
    struct butler_error err = {0};
    const char *jinja = butler_model_get_info(model)->chat_template, *error = template_error(model, &err);
    if (!jinja)
        cmd_printf("chat template   none\n");
    else if (error)
        cmd_printf("chat template   %zu bytes, cannot be used: %s\n", strlen(jinja), error);
    else
        cmd_printf("chat template   %zu bytes\n", strlen(jinja));
}

static void print_name(const char *label, const char *name)
{
    char text[1024];
    cmd_printf("%-15s %s\n", label, cmd_plain(text, sizeof text, name, strlen(name)));
}

static void print_devices(void)
{
    struct butler_device_info info = {BUTLER_INIT(butler_device_info)};
    char memory[32], name[512], driver[256];
    for (int i = 0; butler_device_describe(i, &info); i++)
        cmd_printf("device          %s: %s%s, %s, %s\n", info.device, cmd_plain(name, sizeof name, info.name, strlen(info.name)),
                   info.is_gpu ? "" : " (not a GPU)", cmd_bytes(memory, sizeof memory, info.memory),
                   cmd_plain(driver, sizeof driver, info.driver, strlen(info.driver)));
}

static void print_text(const struct butler_engine *engine, const struct butler_model_info *info, int n_ctx, const json_t *gate)
{
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_engine_info device = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &device);
    char a[32], b[32];
    print_name("name", info->name);
    print_name("architecture", info->architecture);
    cmd_printf("layers          %d\n", info->n_layers);
    cmd_printf("width           %d, feed-forward %d\n", info->n_embd, info->n_ff);
    cmd_printf("heads           %d query, %d key/value, %d wide\n", info->n_heads, info->n_kv_heads, info->head_dim);
    cmd_printf("vocabulary      %d tokens, tokenizer %s\n", info->n_vocab, *info->tokenizer ? info->tokenizer : "none");
    print_template(model);
    int n_ends = 0;
    cmd_printf("ends of answers ");
    each_end(model, print_end, &n_ends);
    cmd_printf(n_ends ? "\n" : "none\n");
    cmd_printf("context         %d tokens %s%s", info->n_ctx_train, info->rope_scaling[0] ? "by --rope-scaling " : "in training",
               info->rope_scaling);
    if (n_ctx > info->n_ctx_train)
        cmd_printf("; -c %d is beyond it: answers to longer texts are not to be trusted", n_ctx);
    cmd_printf("\n");
    if (info->n_windowed)
        cmd_printf("windows         %d of %d layers see the latest %d tokens\n", info->n_windowed, info->n_layers, info->window);
    cmd_printf("weights         %s, %llu parameters, mostly %s\n", cmd_bytes(a, sizeof a, info->weight_bytes),
               (unsigned long long)info->n_params, info->file_type);
    cmd_printf("read per token  %s of weights, and of the cache at %d tokens:\n", cmd_bytes(a, sizeof a, info->step_weight_bytes),
               n_ctx);
    for (int i = 0; i < BUTLER_N_KV_TYPES; i++) {
        enum butler_kv_type type = (enum butler_kv_type)i;
        if (kv_bytes_per_token(model, type) == 0)
            cmd_printf("  %-13s not possible with heads of %d\n", cmd_kv_type_name(type), info->head_dim);
        else
            cmd_printf("  %-13s %s a token, %s in all\n", cmd_kv_type_name(type),
                       cmd_bytes(a, sizeof a, kv_bytes_per_token(model, type)),
                       cmd_bytes(b, sizeof b, butler_kv_bytes(model, type, n_ctx)));
    }
    cmd_printf("cache in f16    ");
    for (int i = 0; i < N_DEPTHS; i++)
        cmd_printf("%s%dk tokens %s%s", i ? ", " : "", depths[i] / 1024,
                   cmd_bytes(a, sizeof a, butler_kv_bytes(model, BUTLER_KV_F16, depths[i])),
                   depths[i] > info->n_ctx_train ? " (beyond training)" : "");
    cmd_printf("\n");
    print_predictors(engine);
    print_gate(gate);
    cmd_printf("runs with       %s, %d threads\n", device.isa, device.n_threads);
}

/* ------------------------------------------------------------------------------------ predictors and sessions */

static void print_owner(const struct butler_file_info *file)
{
    cmd_printf("model           %016llx%s\n", (unsigned long long)file->model_fingerprint,
               file->model_sampled ? " (of samples of its file, as version 0.1 wrote it)" : "");
    cmd_printf("shape           %d layers, %d key/value heads, %d wide\n", file->n_layers, file->n_kv_heads, file->head_dim);
}

static void print_predictor_file(const struct butler_file_info *file)
{
    char a[32];
    cmd_printf("file            a predictor, version %d (policy %s), %s\n", file->version,
               file->version == 1 ? "tokenbutler" : "tokenbutler2", cmd_bytes(a, sizeof a, file->bytes));
    print_owner(file);
    cmd_printf("predicts        heads of %d numbers, with %llu parameters\n", file->d, (unsigned long long)file->n_params);
    cmd_printf("trained         on %lld tokens in %lld steps, loss %.4g\n", (long long)file->n_trained, (long long)file->n_steps,
               file->loss);
    print_name("text", file->text);
}

static void print_session_file(const struct butler_file_info *file)
{
    char a[32];
    cmd_printf("file            a saved session, %s\n", cmd_bytes(a, sizeof a, file->bytes));
    print_owner(file);
    print_name("policy", file->policy);
    cmd_printf("text            %d tokens, in a context of %d\n", file->n_tokens, file->n_ctx);
    cmd_printf("cache           %s\n", cmd_kv_type_name((enum butler_kv_type)file->kv_type));
}

static void print_file_row(const struct butler_file_info *file)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)file->model_fingerprint);
    json_t *row =
        json_pack("{s:s, s:I, s:s, s:b, s:i, s:i, s:i}", "kind", file->kind == BUTLER_FILE_SESSION ? "session" : "predictor",
                  "bytes", (json_int_t)file->bytes, "model", fingerprint, "model_sampled", file->model_sampled, "n_layers",
                  file->n_layers, "n_kv_heads", file->n_kv_heads, "head_dim", file->head_dim);
    json_t *more =
        file->kind == BUTLER_FILE_SESSION
            ? json_pack("{s:i, s:i, s:s, s:s}", "n_tokens", file->n_tokens, "n_ctx", file->n_ctx, "kv_type",
                        cmd_kv_type_name((enum butler_kv_type)file->kv_type), "policy", file->policy)
            : json_pack("{s:i, s:i, s:I, s:I, s:I, s:f, s:o}", "version", file->version, "d", file->d, "n_params",
                        (json_int_t)file->n_params, "n_tokens", (json_int_t)file->n_trained, "n_steps", (json_int_t)file->n_steps,
                        "loss", file->loss, "text", cmd_json_text(file->text, strlen(file->text)));
    json_object_update(row, more);
    json_decref(more);
    cmd_row(row);
}

static void print_file(const struct cmd_options *options, const struct butler_file_info *file)
{
    if (options->json)
        print_file_row(file);
    else if (file->kind == BUTLER_FILE_SESSION)
        print_session_file(file);
    else
        print_predictor_file(file);
}

static int run(struct cmd_options *options)
{
    int status = CMD_DONE;
    if (options->positional.n && options->model) {
        cmd_say(options, "two models, '%s' and -m '%s'; name one", options->positional.values[0], options->model);
        return CMD_USAGE;
    }
    if (options->positional.n)
        options->model = options->positional.values[0];
    struct butler_error err = {0};
    struct butler_file_info file = {BUTLER_INIT(butler_file_info)};
    if (options->model && butler_file_describe(options->model, &file, &err) < 0)
        return cmd_fail(options, &err);
    if (options->model && file.kind != BUTLER_FILE_MODEL) {
        print_file(options, &file);
        return CMD_DONE;
    }
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (!engine)
        return status;
    const struct butler_model_info *info = butler_model_get_info(butler_engine_model(engine));
    int n_ctx = options->n_ctx ? options->n_ctx : info->n_ctx_train;
    uint64_t fingerprint;
    json_t *gate = options->model && butler_model_fingerprint(butler_engine_model(engine), &fingerprint, NULL) == 0
                       ? verdict_read(options, options->model, fingerprint)
                       : NULL;
    if (options->json)
        print_row(engine, info, n_ctx, gate);
    else
        print_text(engine, info, n_ctx, gate);
    if (options->device && !options->json) /* else no driver is loaded */
        print_devices();
    json_decref(gate);
    cmd_engine_free(engine);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_MODEL, NULL},        {CMD_CTX, "0"},   {CMD_PREDICTOR, NULL},    {CMD_THREADS, "0"},
                                      {CMD_DEVICE, NULL},       {CMD_ISA, NULL},  {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"},
                                      {CMD_ROPE_ORIGINAL, "0"}, {CMD_JSON, NULL}, {CMD_HELP, NULL},         {CMD_NONE, NULL}};

const struct cmd_command cmd_info = {
    .name = "info",
    .synopsis = "[FILE] [-c N] [--json]",
    .summary = "what a model, predictor or session file contains and the memory that a session needs",
    .details = "Prints architecture, sizes, tokenizer and quantisation, and the KV cache's bytes per token and for a full context\n"
               "(-c, or what the model was trained for) in every type that --kv-type knows. Without FILE: the default model.\n"
               "Of a predictor and a saved session: the model they belong to, and what they are.\n\n"
               "With --json one row; its \"kv_bytes\" is {\"f16\": {\"per_token\", \"at_ctx\", \"at\": {\"8192\": ...}}, ...}.\n",
    .uses = uses,
    .max_positional = 1,
    .run = run,
};
