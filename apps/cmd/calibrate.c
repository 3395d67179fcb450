/* butler calibrate: reads a text, and writes where the queries of each head lay on average before RoPE (model/centres.h), beside
 * the model: what the policy triattention scores by. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "model/centres.h"

enum { MAX_TOKENS = 4096, MIN_TOKENS = 32 };

/* Sums over tokens, each [n_layers][n_heads][n_pairs]. */
struct sums {
    int n_layers, n_heads, n_pairs, n_seen;
    const struct butler_predictor_pair *pairs; /* [n_layers][n_pairs] */
    double *sums[3];                           /* real and imaginary part, absolute value */
};

/* A hook of struct butler_capture: turns queries back by the rotation of their positions, and adds them up. */
static void add_queries(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct sums *s = user;
    const struct butler_predictor_pair *pairs = s->pairs + (size_t)(layer * s->n_pairs);
    (void)x, (void)h, (void)k;
    s->n_seen += layer == 0 ? n : 0;
    for (int t = 0; t < n; t++)
        for (int f = 0; f < s->n_pairs; f++) {
            const double angle = (double)pairs[f].freq * (first + t), turn_x = cos(angle), turn_y = sin(angle);
            for (int head = 0; head < s->n_heads; head++) {
                const float *query = q + (size_t)(t * s->n_heads + head) * 2 * (size_t)s->n_pairs;
                const double a = (double)query[pairs[f].first], b = (double)query[pairs[f].second];
                const size_t i = ((size_t)layer * (size_t)s->n_heads + (size_t)head) * (size_t)s->n_pairs + (size_t)f;
                s->sums[0][i] += a * turn_x + b * turn_y;
                s->sums[1][i] += b * turn_x - a * turn_y;
                s->sums[2][i] += sqrt(a * a + b * b);
            }
        }
}

static int read_text(const struct cmd_options *options, struct butler_engine *engine, struct cmd_integers *ids)
{
    const struct butler_model *model = butler_engine_model(engine);
    struct butler_buffer text = {0};
    int status = cmd_file_read(options, options->data, &text);
    if (status == CMD_DONE)
        status = cmd_tokenize_text(options, model, text.bytes, text.n, BUTLER_ADD_SPECIAL, ids);
    butler_buffer_free(&text);
    if (status == CMD_DONE && ids->n < MIN_TOKENS) {
        cmd_say(options, "%s: %d tokens: at least %d are needed, and up to %d are used", options->data, ids->n, MIN_TOKENS,
                MAX_TOKENS);
        status = CMD_FAILED;
    }
    ids->n = BUTLER_MIN(ids->n, BUTLER_MIN(MAX_TOKENS, butler_model_get_info(model)->n_ctx_train));
    return status;
}

/* The model reads the text; the sums become means and are written. */
static int calibrate(struct cmd_options *options, struct butler_engine *engine, struct sums *sums, const struct cmd_integers *ids,
                     const char *out)
{
    const struct butler_capture capture = {BUTLER_INIT(butler_capture), .layer = add_queries, .user = sums};
    const size_t n = (size_t)sums->n_layers * (size_t)sums->n_heads * (size_t)sums->n_pairs;
    struct butler_error err = {0};
    float *means = cmd_alloc(3 * n, sizeof *means);
    int status = CMD_DONE;
    for (int t = 0; t < 3; t++)
        sums->sums[t] = cmd_alloc(n, sizeof *sums->sums[t]);
    options->kv_type = BUTLER_KV_F32;
    struct butler_session *session = cmd_session_new(options, engine, "full", ids->n, &status);
    if (session && butler_session_set_capture(session, &capture, &err) < 0)
        status = cmd_fail(options, &err);
    if (session && status == CMD_DONE)
        status = cmd_prefill(options, engine, session, ids);
    butler_session_free(session);
    for (size_t i = 0; i < 3 * n; i++)
        means[i] = (float)(sums->sums[i / n][i % n] / BUTLER_MAX(sums->n_seen, 1));
    if (status == CMD_DONE && butler_centres_save(out, butler_engine_model(engine), sums->n_seen,
                                                  (const float *const[3]){means, means + n, means + 2 * n}, &err) < 0)
        status = cmd_fail(options, &err);
    if (status == CMD_DONE)
        cmd_say(options, "%s: query centres of %d layers and %d heads, from %d tokens", out, sums->n_layers, sums->n_heads,
                sums->n_seen);
    for (int t = 0; t < 3; t++)
        free(sums->sums[t]);
    free(means);
    return status == CMD_INTERRUPTED ? CMD_FAILED : status;
}

/* NAME.gguf becomes NAME.centres.gguf. */
static bool name_output(const char *model, char *out, size_t n_out)
{
    const size_t n = strlen(model), stem = n > 5 && strcmp(model + n - 5, ".gguf") == 0 ? n - 5 : n;
    return snprintf(out, n_out, "%.*s.centres.gguf", (int)stem, model) < (int)n_out;
}

static int run(struct cmd_options *options)
{
    struct cmd_integers ids = {0};
    struct butler_error err = {0};
    char out[PATH_MAX];
    int status = CMD_DONE, n_pairs = 0;
    if (!options->data) {
        cmd_say(options, "no text: --data TEXT names the file to calibrate on");
        return CMD_USAGE;
    }
    struct butler_engine *engine = cmd_engine_load(options, &status);
    if (!engine)
        return status;
    struct butler_predictor_pair *pairs = butler_centres_pairs(butler_engine_model(engine), &n_pairs, &err);
    const struct butler_model_info *info = butler_model_get_info(butler_engine_model(engine));
    struct sums sums = {.n_layers = info->n_layers, .n_heads = info->n_heads, .n_pairs = n_pairs, .pairs = pairs};
    if (!pairs)
        status = cmd_fail(options, &err);
    else if (!name_output(options->output ? "" : options->model, out, sizeof out)) {
        cmd_say(options, "%s: the name is too long; name a file with -o", options->model);
        status = CMD_FAILED;
    } else
        status = cmd_check_output(options, options->output ? options->output : out, &options->data, 1);
    if (status == CMD_DONE && (status = read_text(options, engine, &ids)) == CMD_DONE)
        status = calibrate(options, engine, &sums, &ids, options->output ? options->output : out);
    free(ids.values);
    free(pairs);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},    {CMD_PRE, NULL},          {CMD_CALIBRATE_DATA, NULL}, {CMD_OUTPUT, NULL},
    {CMD_BLOCK, "0"},     {CMD_THREADS, "0"},       {CMD_DEVICE, NULL},         {CMD_ISA, NULL},
    {CMD_PRECISION, "8"}, {CMD_ROPE_SCALING, NULL}, {CMD_ROPE_SCALE, "0"},      {CMD_ROPE_ORIGINAL, "0"},
    {CMD_HELP, NULL},     {CMD_NONE, NULL},
};

const struct cmd_command cmd_calibrate = {
    .name = "calibrate",
    .synopsis = "[-m MODEL] --data TEXT [-o FILE]",
    .summary = "what the policy triattention needs: query centres of a model, from a text",
    .details = "Reads up to 4,096 tokens of TEXT, and writes the mean of each head's queries before RoPE, as a complex number for\n"
               "each pair of rotated channels, and the mean of their absolute values. Without -o they are written beside the\n"
               "model, as NAME.centres.gguf, where other commands find them; --predictor names another file. The model is not\n"
               "changed. The file appears only when it is complete.\n",
    .uses = uses,
    .run = run,
};
