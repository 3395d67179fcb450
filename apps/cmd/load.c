/* From options to the library's objects: the model, the text, its tokens, a session. */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cmd.h"
#include "base/util.h"
#include "schema/schema.h"

static _Noreturn void no_memory(void)
{
    fprintf(stderr, "butler: out of memory\n");
    exit(CMD_FAILED);
}

void *cmd_alloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        no_memory();
    return memory;
}

char *cmd_copy(const char *text)
{
    const size_t n = strlen(text) + 1;
    return memcpy(cmd_alloc(n, 1), text, n);
}

void cmd_append(struct butler_buffer *text, const char *bytes, size_t n)
{
    butler_buffer_append(text, bytes, n);
    if (text->failed)
        no_memory();
}

static struct butler_model *load(struct cmd_options *options, bool vocabulary_only, int *status)
{
    struct butler_error err = {0};
    if ((*status = cmd_choose_model(options)) != CMD_DONE)
        return NULL;
    char *folder = cmd_user_folder();
    const struct butler_model_params params = {BUTLER_INIT(butler_model_params),
                                               .vocabulary_only = vocabulary_only,
                                               .pre_tokenizer = options->pre,
                                               .cache_folder = folder,
                                               .rope_scaling = options->rope_scaling,
                                               .rope_scale = options->rope_scale,
                                               .rope_original_ctx = options->rope_original_ctx};
    struct butler_model *model = butler_model_load(options->model, &params, &err);
    free(folder);
    if (!model) {
        *status = cmd_fail(options, &err);
        return NULL;
    }
    for (const char *line = butler_model_get_info(model)->warnings; *line;) {
        int n = (int)strcspn(line, "\n");
        cmd_say(options, "warning: %s: %.*s", options->model, n, line);
        line += n + (line[n] == '\n');
    }
    return model;
}

struct butler_model *cmd_vocabulary_load(struct cmd_options *options, int *status)
{
    return load(options, true, status);
}

/* Adds a file's bytes; one that cannot be read adds nothing. */
static uint64_t add_file(uint64_t digest, const char *path)
{
    unsigned char bytes[65536];
    FILE *file = fopen(path, "rb");
    size_t n;
    while (file && (n = fread(bytes, 1, sizeof bytes, file)) > 0)
        digest = XXH3_64bits_withSeed(bytes, n, digest);
    if (file)
        fclose(file);
    return digest;
}

/* A file beside the model, NAME.KIND.gguf; false: the name is too long. */
static bool beside_model(const struct cmd_options *options, const char *kind, char path[PATH_MAX + 64])
{
    const size_t n = strlen(options->model), end = n > 5 && strcmp(options->model + n - 5, ".gguf") == 0 ? n - 5 : n;
    return n < PATH_MAX && snprintf(path, PATH_MAX + 64, "%.*s.%s.gguf", (int)end, options->model, kind) < PATH_MAX + 64;
}

uint64_t cmd_centres_digest(const struct cmd_options *options)
{
    char path[PATH_MAX + 64];
    uint64_t digest = 0;
    for (int i = 0; i < options->predictors.n; i++)
        digest = add_file(digest, options->predictors.values[i]);
    return options->predictors.n == 0 && options->model && beside_model(options, "centres", path) ? add_file(0, path) : digest;
}

const char *cmd_conditions(const struct cmd_options *options, char out[CMD_CONDITIONS])
{
    size_t n = 0;
    uint64_t digest = 0;
    const char *const given[][2] = {{"pre", options->pre}, {"isa", options->isa}, {"device", options->device}};
    for (int i = 0; i < options->plugins.n; i++)
        digest = add_file(digest, options->plugins.values[i]);
    out[0] = 0;
    for (int i = 0; i < BUTLER_COUNT(given); i++)
        if (given[i][1])
            n += (size_t)snprintf(out + n, CMD_CONDITIONS - n, ",%s=%.100s", given[i][0], given[i][1]);
    if (options->plugins.n > 0)
        snprintf(out + n, CMD_CONDITIONS - n, ",plugin=%016" PRIx64, digest);
    return out;
}

/* The predictors and query centres of --predictor, or those beside the model. Of the latter, one that does not fit the model is
 * only a note. */
static int attach_predictors(const struct cmd_options *options, struct butler_engine *engine)
{
    static const char *const names[] = {"tokenbutler", "tokenbutler2", "centres"};
    struct butler_error err = {0};
    char path[PATH_MAX + 64];
    for (int i = 0; i < options->predictors.n; i++)
        if (butler_predictor_attach(engine, options->predictors.values[i], &err) < 0)
            return cmd_fail(options, &err);
    for (int i = 0; options->predictors.n == 0 && i < BUTLER_COUNT(names); i++) {
        if (!beside_model(options, names[i], path) || access(path, R_OK) != 0)
            continue;
        if (butler_predictor_attach(engine, path, &err) < 0)
            cmd_say(options, "note: not used: %s", err.message);
    }
    return CMD_DONE;
}

/* Commands that take --predictor FILE. */
static bool uses_predictors(const struct cmd_options *options)
{
    for (const struct cmd_use *use = options->command->uses; use->flag; use++)
        if (use->flag == CMD_PREDICTOR)
            return true;
    return false;
}

void cmd_engine_free(struct butler_engine *engine)
{
    struct butler_model *model = engine ? butler_engine_model(engine) : NULL;
    butler_engine_free(engine);
    butler_model_free(model);
}

/* Plug-ins, predictors and policies that were asked for. */
static int prepare(struct cmd_options *options, struct butler_engine *engine)
{
    struct butler_error err = {0};
    const struct butler_model_info *info = butler_model_get_info(butler_engine_model(engine));
    int status = CMD_DONE;
    for (int i = 0; i < options->plugins.n; i++)
        if (butler_plugin_load(engine, options->plugins.values[i], &err) < 0)
            return cmd_fail(options, &err);
    if (uses_predictors(options) && (status = attach_predictors(options, engine)) != CMD_DONE)
        return status;
    cmd_auto_open(options, engine);
    for (int i = 0; i < options->kv.n; i++) {
        err = (struct butler_error){0};
        if (butler_policy_check(engine, options->kv.values[i], &err) < 0) {
            cmd_say(options, "--kv: %s", err.message);
            return CMD_USAGE;
        }
        if (err.message[0])
            cmd_say(options, "note: --kv %s: %s", options->kv.values[i], err.message);
    }
    for (int i = 0; options->given[CMD_LOSSLESS] && !options->load_session && i < options->kv.n; i++)
        if (!cmd_drafts_under(engine, options->kv.values[i], &err)) {
            cmd_say(options, "--lossless: %s", err.message);
            return CMD_USAGE;
        }
    if (options->given[CMD_KV_TYPE] &&
        butler_kv_bytes(butler_engine_model(engine), (enum butler_kv_type)options->kv_type, 1) == 0) {
        cmd_say(options, "--kv-type: '%s' is not possible here: it stores blocks of 32 numbers, the model's heads have %d",
                cmd_kv_type_name((enum butler_kv_type)options->kv_type), info->head_dim);
        return CMD_USAGE;
    }
    if (options->n_ctx > info->n_ctx_train)
        cmd_say(options, "note: -c %d is more than the %d tokens the model was trained for", options->n_ctx, info->n_ctx_train);
    return CMD_DONE;
}

/* What --device auto took, and why nothing better. */
static void say_device(const struct cmd_options *options, const struct butler_engine *engine, const struct butler_error *why)
{
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    const bool cpu = !strcmp(info.device, "cpu");
    cmd_say(options, "note: --device %s: runs on %s: %s", options->device, cpu ? "the CPU" : info.device, why->message);
}

/* On a device, with n_threads threads. Frees nothing of the model. NULL: *status is the exit status. */
static struct butler_engine *make_engine(struct cmd_options *options, struct butler_model *model, const char *device, int n_threads,
                                         int *status)
{
    struct butler_error err = {0};
    char *folder = options->kv_ram > 0 ? cmd_library_folder(options) : NULL;
    const bool usable = folder && butler_make_folder(folder) == 0;
    const struct butler_engine_params params = {.struct_size = sizeof params,
                                                .kv_ram = options->kv_ram,
                                                .kv_folder = usable ? folder : NULL,
                                                .n_threads = n_threads,
                                                .device = device,
                                                .isa = options->isa,
                                                .activation_bits = options->precision,
                                                .n_block = options->n_block,
                                                .kv_bytes = options->kv_bytes,
                                                .prefix_bytes = options->prefix_bytes};
    struct butler_engine *engine = butler_engine_new(model, &params, &err);
    free(folder);
    if (!engine) {
        *status = cmd_fail(options, &err);
        return NULL;
    }
    if (err.message[0]) /* auto */
        say_device(options, engine, &err);
    if ((*status = prepare(options, engine)) == CMD_DONE)
        return engine;
    butler_engine_free(engine);
    return NULL;
}

struct butler_engine *cmd_engine_load(struct cmd_options *options, int *status)
{
    if (cmd_names_devices(options)) {
        cmd_say(options, "--device %s: only serve and bench use several devices; this takes one, such as %.*s:0", options->device,
                (int)strcspn(options->device, ":"), options->device);
        *status = CMD_USAGE;
        return NULL;
    }
    struct butler_model *model = load(options, false, status);
    struct butler_engine *engine = model ? make_engine(options, model, options->device, options->n_threads, status) : NULL;
    if (!engine)
        butler_model_free(model);
    return engine;
}

int cmd_engines_load(struct cmd_options *options, struct butler_engine **engines, struct butler_device_info *devices, int most,
                     int *status)
{
    const int n = cmd_devices(options, devices, most), n_threads = options->n_threads ? options->n_threads : butler_n_processors();
    struct butler_model *model = n > 0 ? load(options, false, status) : NULL;
    int made = 0;
    if (n == 0) {
        cmd_say(options, "--device %s: there is no such device here%s", options->device,
                strchr(options->device, ',') ? ", or it is named twice" : "");
        *status = CMD_FAILED;
    }
    while (model && made < n &&
           (engines[made] = make_engine(options, model, devices[made].device, (n_threads + n - 1) / n, status)))
        made++;
    if (made > 0 && made == n)
        return n;
    while (made > 0)
        butler_engine_free(engines[--made]);
    butler_model_free(model);
    return 0;
}

int cmd_file_read(const struct cmd_options *options, const char *path, struct butler_buffer *text)
{
    const bool standard_input = strcmp(path, "-") == 0;
    const int fd = standard_input ? STDIN_FILENO : cmd_open_input(path);
    char buffer[65536];
    ssize_t n = -1;
    if (fd >= 0)
        while (cmd_wait_readable(fd) ? (n = read(fd, buffer, sizeof buffer)) > 0 : (n = -1, false))
            cmd_append(text, buffer, (size_t)n);
    const int error = n < 0 ? errno : 0;
    if (fd >= 0 && !standard_input)
        close(fd);
    if (error == 0)
        return CMD_DONE;
    cmd_say(options, "%s: %s", standard_input ? "standard input" : path, error == EINTR ? "interrupted" : strerror(error));
    return CMD_FAILED;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int cmd_check_output(const struct cmd_options *options, const char *out, const char *const *in, int n)
{
    for (int i = -2; i < n; i++) {
        const char *read = i == -2 ? options->model : i == -1 ? options->file : in[i];
        if (read && is_same_file(out, read)) {
            cmd_say(options, "%s would be written over %s, which is read: they are the same file", out, read);
            return CMD_USAGE;
        }
    }
    return CMD_DONE;
}

int cmd_text_read(const struct cmd_options *options, struct butler_buffer *text)
{
    if (options->prompt && options->file) {
        cmd_say(options, "-p and -f both give the text; use one of them");
        return CMD_USAGE;
    }
    if (options->file)
        return cmd_file_read(options, options->file, text); /* as it is: tokens are compared byte by byte */
    if (!options->prompt) {
        cmd_say(options, "no text: give it with -p TEXT or -f FILE (- is standard input)");
        return CMD_USAGE;
    }
    cmd_append(text, options->prompt, strlen(options->prompt));
    return CMD_DONE;
}

int cmd_tokenize_text(const struct cmd_options *options, const struct butler_model *model, const char *bytes, size_t n, int flags,
                      struct cmd_integers *ids)
{
    struct butler_error err = {0};
    if (n == 0)
        bytes = "";
    int count = butler_tokenize(model, bytes, n, flags, NULL, 0, &err);
    if (count < 0)
        return cmd_fail(options, &err);
    free(ids->values);
    *ids = (struct cmd_integers){.n = count, .capacity = count, .values = cmd_alloc((size_t)count, sizeof *ids->values)};
    count = butler_tokenize(model, bytes, n, flags, ids->values, count, &err);
    if (count < 0)
        return cmd_fail(options, &err);
    if (*err.message)
        cmd_say(options, "note: %s", err.message);
    int32_t bos = butler_token_bos(model);
    if ((flags & BUTLER_ADD_SPECIAL) && count > 1 && bos >= 0 && ids->values[0] == bos && ids->values[1] == bos)
        cmd_say(options, "warning: the text begins with the beginning-of-text token, and the model adds one: there are two");
    return CMD_DONE;
}

struct butler_session *cmd_session_new(const struct cmd_options *options, struct butler_engine *engine, const char *policy,
                                       int n_ctx, int *status)
{
    struct butler_error err = {0};
    struct butler_session_params params = {
        .n_ctx = n_ctx, .kv_type = (enum butler_kv_type)options->kv_type, .policy = policy, .seed = options->seed};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        *status = cmd_fail(options, &err);
    return session;
}

struct butler_session *cmd_add_steps(const struct cmd_options *options, struct butler_session *session, int *status)
{
    struct butler_error err = {0};
    for (int i = 0; session && i < options->steps.n; i++)
        if (butler_session_add_step(session, options->steps.values[i], &err) < 0) {
            cmd_say(options, "--step: %s", err.message);
            *status = err.code == BUTLER_ERROR_ARGUMENT ? CMD_USAGE : CMD_FAILED;
            butler_session_free(session);
            session = NULL;
        }
    return session;
}

struct butler_sampler_params cmd_sampler_params(const struct cmd_options *options)
{
    /* --top-p 0 keeps the most probable token alone, as in llama.cpp; to the library 0 is off. */
    return (struct butler_sampler_params){.temperature = (float)options->temperature,
                                          .top_k = options->top_k,
                                          .top_p = options->top_p > 0 ? (float)options->top_p : FLT_MIN,
                                          .min_p = (float)options->min_p,
                                          .typical_p = (float)options->typical,
                                          .repeat_penalty = (float)options->repeat_penalty,
                                          .frequency_penalty = (float)options->frequency_penalty,
                                          .presence_penalty = (float)options->presence_penalty,
                                          .penalty_last_n = options->repeat_last_n,
                                          .logit_bias = options->logit_biases.values,
                                          .n_logit_bias = options->logit_biases.n};
}

static bool biases_are_of_tokens(const struct cmd_options *options, int n_vocab)
{
    for (int i = 0; i < options->logit_biases.n; i++)
        if (options->logit_biases.values[i].id >= n_vocab) {
            cmd_say(options, "--logit-bias: token %d is none of the model's, which are 0 to %d",
                    (int)options->logit_biases.values[i].id, n_vocab - 1);
            return false;
        }
    return true;
}

/* The grammar of --grammar or --json-schema; NULL without one, or with *status where it cannot be used. */
static struct butler_grammar *read_grammar(const struct cmd_options *options, const struct butler_model *model, int *status)
{
    struct butler_error err = {0};
    struct butler_buffer text = {0};
    struct butler_grammar *grammar = NULL;
    char *made = NULL;
    const char *flag = options->schema ? "--json-schema" : "--grammar",
               *source = options->schema ? options->schema : options->grammar;
    const bool is_text = options->schema && *source == '{';
    if (!source)
        return NULL;
    if (options->schema && options->grammar) {
        cmd_say(options, "--grammar and --json-schema exclude each other");
        *status = CMD_USAGE;
        return NULL;
    }
    if (is_text)
        cmd_append(&text, source, strlen(source));
    else
        *status = cmd_file_read(options, source, &text);
    if (*status == CMD_DONE && memchr(text.bytes ? text.bytes : "", 0, text.n)) {
        cmd_say(options, "%s: %s has a zero byte: it is no text", flag, source);
        *status = CMD_FAILED;
    }
    cmd_append(&text, "", 1);
    if (*status == CMD_DONE && options->schema)
        made = schema_text_to_grammar(text.bytes, text.n - 1, &err);
    if (*status == CMD_DONE && (!options->schema || made))
        grammar = butler_grammar_new(model, made ? made : text.bytes, &err);
    if (*status == CMD_DONE && !grammar) {
        cmd_say(options, "%s%s%s: %s", flag, is_text ? "" : " ", is_text ? "" : source, err.message);
        *status = CMD_FAILED;
    }
    butler_buffer_free(&text);
    free(made);
    return grammar;
}

struct butler_sampler *cmd_sampler_new(const struct cmd_options *options, const struct butler_model *model, int *status)
{
    struct butler_error err = {0};
    struct butler_sampler_params params = cmd_sampler_params(options);
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    if (!biases_are_of_tokens(options, n_vocab)) {
        *status = CMD_USAGE;
        return NULL;
    }
    struct butler_grammar *grammar = read_grammar(options, model, status);
    if (*status != CMD_DONE)
        return NULL;
    int32_t *ends = cmd_alloc((size_t)n_vocab, sizeof *ends);
    params.grammar = grammar;
    params.seed = options->seed;
    params.min_tokens = options->ignore_eos ? INT_MAX : options->min_tokens;
    for (int32_t id = 0; params.min_tokens > 0 && id < n_vocab; id++)
        if (butler_token_is_end(model, id))
            ends[params.n_end_ids++] = id;
    params.end_ids = ends;
    struct butler_sampler *sampler = butler_sampler_new(&params, &err);
    free(ends);
    butler_grammar_free(grammar);
    if (!sampler)
        *status = cmd_fail(options, &err);
    return sampler;
}
