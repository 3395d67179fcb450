/* butler plan: what asking about documents will cost, measured on this machine in seconds instead of read in minutes. Attention's
 * part of a pass grows with the position, the rest does not, so two passes, at the beginning and at the end of the text, say what
 * all will take. The caches before them are filled with random keys and values, as in bench. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "base/util.h"

enum {
    PASS = 256,    /* tokens of a measured pass */
    QUESTION = 32, /* of another question */
    STEPS = 8,
};

static const char *const usual[] = {"full", "fier:budget=1024", "quest:budget=1024", "snapkv:budget=1024"};

struct plan {
    const struct cmd_options *options;
    struct butler_engine *engine;
    struct cmd_integers prompt;
    bool keeps;     /* there is a library, which keeps what is read */
    int n_known;    /* tokens that it has */
    double load_s;  /* what loading them took */
    double begin_s; /* seconds a token of a pass at the beginning */
};

struct costs {
    double read_s, question_s, token_s;
    struct butler_policy_cost memory;
};

static int read_pass(const struct plan *plan, struct butler_session *session, int from, int n, double *seconds)
{
    struct butler_error err = {0};
    const double start = butler_seconds();
    if (butler_prefill(session, plan->prompt.values + from, n, NULL, NULL, &err) < 0)
        return cmd_fail(plan->options, &err);
    *seconds = butler_seconds() - start;
    return CMD_DONE;
}

/* At the beginning of the text, behind a pass that brings the weights into memory. */
static int measure_begin(struct plan *plan)
{
    const int n = BUTLER_MIN(PASS, plan->prompt.n);
    double seconds = 0;
    int status = CMD_DONE;
    for (int i = 0; i < 3 && status == CMD_DONE; i++) {
        struct butler_session *session = cmd_session_new(plan->options, plan->engine, "full", n, &status);
        if (session)
            status = read_pass(plan, session, 0, n, &seconds);
        butler_session_free(session);
        plan->begin_s = i <= 1 ? seconds / n : fmin(plan->begin_s, seconds / n);
    }
    return status;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_steps(const struct plan *plan, struct butler_session *session, double *token_s)
{
    double seconds[STEPS];
    struct butler_error err = {0};
    for (int i = 0; i < STEPS; i++) {
        const double start = butler_seconds();
        if (butler_step(session, plan->prompt.values[i % plan->prompt.n], &err) < 0)
            return cmd_fail(plan->options, &err);
        seconds[i] = butler_seconds() - start;
    }
    qsort(seconds, STEPS, sizeof *seconds, by_size);
    *token_s = (seconds[STEPS / 2 - 1] + seconds[STEPS / 2]) / 2;
    return CMD_DONE;
}

static int measure(const struct plan *plan, const char *policy, struct costs *costs)
{
    const struct cmd_options *options = plan->options;
    const int n = plan->prompt.n, pass = BUTLER_MIN(PASS, n), n_passes = n >= 2 * pass ? 2 : 1, depth = n - n_passes * pass,
              question = BUTLER_MIN(QUESTION, n);
    struct butler_error err = {0};
    double end_s = INFINITY;
    int status = CMD_DONE;
    struct butler_session *session = cmd_session_new(options, plan->engine, policy, n + question + STEPS, &status);
    if (!session)
        return status;
    if (depth > 0 && butler_fill(session, depth, options->seed, &err) < 0)
        status = cmd_fail(options, &err);
    for (int i = 0; i < n_passes && status == CMD_DONE; i++) {
        double seconds = 0;
        status = read_pass(plan, session, depth + i * pass, pass, &seconds);
        end_s = fmin(end_s, seconds); /* what others do on the machine makes a pass longer, never shorter */
    }
    if (status == CMD_DONE)
        status = read_pass(plan, session, 0, question, &costs->question_s);
    if (status == CMD_DONE)
        status = measure_steps(plan, session, &costs->token_s);
    butler_session_free(session);
    if (status != CMD_DONE)
        return status;
    end_s /= pass;
    struct cmd_speed speed = {.kept_b = depth > 0 ? fmax(end_s - plan->begin_s, 0) / depth : 0};
    speed.kept_a = fmax((depth > 0 ? plan->begin_s : end_s) - speed.kept_b * pass / 2, 1e-9);
    costs->read_s = cmd_speed_predict(&speed, plan->n_known, n);
    if (strcmp(policy, "full") == 0 && depth > 0)
        cmd_speed_store(options, plan->engine, speed.kept_a, speed.kept_b);
    costs->memory = (struct butler_policy_cost){BUTLER_INIT(butler_policy_cost)};
    if (butler_policy_estimate(plan->engine, policy, (enum butler_kv_type)options->kv_type, n + options->n, &costs->memory, &err) <
        0)
        return cmd_fail(options, &err);
    return CMD_DONE;
}

/* What the library has of the text, and how long loading it takes. */
static int look_up(struct plan *plan, int n_ctx)
{
    const struct cmd_options *options = plan->options;
    struct butler_error err = {0};
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    int status = CMD_DONE;
    struct butler_library *library = cmd_library_try(options);
    plan->keeps = library != NULL;
    struct butler_session *session = library ? cmd_session_new(options, plan->engine, "full", n_ctx, &status) : NULL;
    if (session) {
        cmd_library_use(options, library, session);
        plan->n_known = butler_session_adopt_prefix(session, plan->prompt.values, plan->prompt.n, &err);
        if (plan->n_known < 0)
            status = cmd_fail(options, &err);
        butler_session_stats(session, &stats);
        plan->load_s = stats.library_s;
    }
    butler_session_free(session);
    butler_library_free(library);
    return status;
}

static void print_head(const struct plan *plan)
{
    const struct cmd_options *options = plan->options;
    const struct butler_model_info *info = butler_model_get_info(butler_engine_model(plan->engine));
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    char weights[32], disk[32];
    butler_policy_estimate(plan->engine, "full", (enum butler_kv_type)options->kv_type, plan->prompt.n, &cost, NULL);
    cmd_printf("%d tokens, of which %d were read before; weights %s; kept on disk: %s\n\n", plan->prompt.n, plan->n_known,
               cmd_bytes(weights, sizeof weights, info->weight_bytes),
               !plan->keeps ? "nothing" : cmd_bytes(disk, sizeof disk, cost.full_kv_bytes));
    cmd_printf("%-24s %14s %14s %10s %14s %12s %10s\n", "policy", "first word", "next question", "a token", "the answer",
               "KV cache", "KV read");
}

static void print_costs(const struct plan *plan, const char *policy, const struct costs *costs)
{
    const struct cmd_options *options = plan->options;
    const struct butler_policy_cost *memory = &costs->memory;
    const double first_s = plan->load_s + costs->read_s + costs->token_s, answer_s = options->n * costs->token_s;
    const double read =
        memory->full_kv_bytes ? (double)(memory->kv_bytes + memory->metric_bytes) / (double)memory->full_kv_bytes : 1;
    char first[32], question[32], token[32], answer[32], kv[32];
    if (options->json) {
        cmd_row(json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f}", "policy", policy, "tokens", plan->prompt.n,
                          "known", plan->n_known, "first_word_s", first_s, "question_s", costs->question_s + costs->token_s,
                          "token_s", costs->token_s, "answer_s", answer_s, "kv_memory",
                          (json_int_t)(memory->kv_memory + memory->metric_memory), "prompt_memory",
                          (json_int_t)memory->prompt_memory, "disk", (json_int_t)(options->no_cache ? 0 : memory->full_kv_bytes),
                          "kv_read", read));
        return;
    }
    snprintf(token, sizeof token, "%.1f ms", 1e3 * costs->token_s);
    cmd_printf("%-24s %14s %14s %10s %14s %12s %8.0f %%\n", policy, cmd_duration(first, sizeof first, first_s),
               cmd_duration(question, sizeof question, costs->question_s + costs->token_s), token,
               cmd_duration(answer, sizeof answer, answer_s), cmd_bytes(kv, sizeof kv, memory->kv_memory + memory->metric_memory),
               100 * read);
    cmd_out_flush();
}

static int run_plan(struct plan *plan)
{
    const struct cmd_options *options = plan->options;
    const bool given = options->given[CMD_KV];
    const int n_policies = given ? options->kv.n : BUTLER_COUNT(usual);
    const int n_train = butler_model_get_info(butler_engine_model(plan->engine))->n_ctx_train;
    if (plan->prompt.n > n_train - options->n) {
        cmd_say_choices(options, plan->engine, "the documents have", plan->prompt.n, options->n, n_train);
        return CMD_FAILED;
    }
    int status = look_up(plan, plan->prompt.n + options->n);
    if (status == CMD_DONE)
        status = measure_begin(plan);
    if (status == CMD_DONE && !options->json)
        print_head(plan);
    for (int i = 0; i < n_policies && status == CMD_DONE; i++) {
        if (cmd_interrupted()) { /* which takes the signal: it is asked once */
            cmd_say(options, "interrupted after %d of %d policies", i, n_policies);
            return CMD_FAILED;
        }
        const char *policy = given ? options->kv.values[i] : usual[i];
        struct costs costs = {0};
        status = measure(plan, policy, &costs);
        if (status == CMD_DONE)
            print_costs(plan, policy, &costs);
    }
    return status;
}

static int run(struct cmd_options *options)
{
    struct plan plan = {.options = options};
    struct cmd_template template = {0};
    int status = CMD_DONE;
    if (options->documents.n == 0 || options->n < 1) {
        cmd_say(options, options->documents.n == 0 ? "no document: name a file with -f FILE (- is standard input)"
                                                   : "-n: an answer has 1 token or more");
        return CMD_USAGE;
    }
    cmd_interrupts_start();
    plan.engine = cmd_engine_load(options, &status);
    if (!plan.engine)
        return status;
    const struct butler_model *model = butler_engine_model(plan.engine);
    status = cmd_template_choose(options, model, &template);
    if (status == CMD_DONE)
        status = cmd_ask_prompt(options, model, &template, "", &plan.prompt, NULL, NULL);
    if (status == CMD_DONE)
        status = run_plan(&plan);
    cmd_template_free(&template);
    free(plan.prompt.values);
    cmd_engine_free(plan.engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},    {CMD_PRE, NULL},       {CMD_DOCUMENTS, NULL},     {CMD_CACHE, NULL},     {CMD_CACHE_SIZE, "0"},
    {CMD_NO_CACHE, NULL}, {CMD_SYSTEM, NULL},    {CMD_CHAT_TEMPLATE, NULL}, {CMD_N, "200"},        {CMD_KV, NULL},
    {CMD_KV_TYPE, "f16"}, {CMD_BLOCK, "0"},      {CMD_SEED, "0"},           {CMD_THREADS, "0"},    {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},      {CMD_PRECISION, "8"},  {CMD_ROPE_SCALING, NULL},  {CMD_ROPE_SCALE, "0"}, {CMD_ROPE_ORIGINAL, "0"},
    {CMD_PLUGIN, NULL},   {CMD_PREDICTOR, NULL}, {CMD_JSON, NULL},          {CMD_HELP, NULL},      {CMD_NONE, NULL},
};

const struct cmd_command cmd_plan = {
    .name = "plan",
    .synopsis = "[-m FILE] -f FILE [-f FILE]... [--kv POLICY]... [-n N]",
    .summary = "what a question about documents will take: time, memory, disk",
    .details =
        "Measures short passes on this machine, before which the cache is filled with random keys and values, instead of reading\n"
        "the documents: `butler ask` with the same documents then takes about that long. Without --kv: full, fier and quest with\n"
        "budget=1024, snapkv:budget=1024. Printed for each policy:\n\n"
        "  first word     until an answer begins: what the library does not have is read\n"
        "  next question  until the answer to another question of 32 tokens begins, in chat or serve; ask also loads the text\n"
        "  a token        of the answer; and an answer of -n tokens\n"
        "  KV cache       memory for keys, values and what the policy keeps; KV read: of it, what a step reads\n\n"
        "With --json one row for each: {\"policy\", \"tokens\", \"known\", \"first_word_s\", \"question_s\", \"token_s\", "
        "\"answer_s\",\n"
        "\"kv_memory\", \"prompt_memory\", \"disk\", \"kv_read\"}.\n",
    .uses = uses,
    .answers = true,
    .run = run,
};
