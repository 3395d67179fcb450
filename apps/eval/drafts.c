/* How well a policy drafts (butler_draft_step): the model continues a text by drafts and exact checks, so that all policies write
 * the same text, that of dense decoding; what differs is how many drafts are right. */
#include "eval.h"

enum { MOST_DRAFTS = 15 };

/* Of an item's values. */
enum { ACCEPTED, DRAFTED, TOKENS, CHECKS, N_VALUES };

struct drafts_options {
    int n_tokens, n_drafts, temperature;
};

static int read_options(const struct eval_run *run, struct drafts_options *options, struct butler_error *err)
{
    if (eval_option_int(run, "tokens", 1, 1 << 20, &options->n_tokens, err) < 0 ||
        eval_option_int(run, "drafts", 1, MOST_DRAFTS, &options->n_drafts, err) < 0 ||
        eval_option_int(run, "temperature", 0, 1000, &options->temperature, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    return 0;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct drafts_options options;
    if (run->simulate)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--mode: %s reads its texts as prompts; simulate is not for it",
                           run->task->name);
    for (int i = 0; i < run->n_policies; i++)
        if (!run->policies[i].parts.retrieves)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--kv: policies that draft retrieve, and %s does not",
                               run->policies[i].text);
    int code = read_options(run, &options, err);
    if (code == 0)
        code = eval_windows_load(run, 1, err);
    for (int i = 0; i < run->items.n && code == 0; i++)
        run->items.items[i].n_extra = options.n_tokens;
    run->n_values = N_VALUES;
    return code;
}

static int write_text(struct eval_trial *trial, const struct drafts_options *options, struct butler_draft *draft,
                      struct butler_sampler *sampler, struct butler_error *err)
{
    int32_t ids[MOST_DRAFTS + 1], id = trial->item->ids[trial->item->n_ids - 1];
    int code = 0;
    for (int n = 0; n < options->n_tokens && code >= 0; n += code) {
        code = eval_check_stop(trial->run, err);
        if (code == 0)
            code = butler_draft_step(draft, sampler, id, ids, BUTLER_MIN(options->n_tokens - n, MOST_DRAFTS + 1), err);
        id = code > 0 ? ids[code - 1] : id;
    }
    return BUTLER_MIN(code, 0);
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    struct drafts_options options;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    int code = read_options(trial->run, &options, err);
    if (code < 0)
        return code;
    const struct butler_draft_params params = {.n_max = options.n_drafts, .fixed = true};
    const struct butler_sampler_params sampling = {.temperature = (float)options.temperature / 100, .seed = trial->run->seed};
    struct butler_draft *draft = butler_draft_new(trial->session, &params, err);
    struct butler_sampler *sampler = butler_sampler_new(&sampling, err);
    code = draft && sampler ? write_text(trial, &options, draft, sampler, err) : BUTLER_ERROR_ARGUMENT;
    butler_session_stats(trial->session, &stats);
    trial->values[ACCEPTED] = (double)stats.n_accepted;
    trial->values[DRAFTED] = (double)stats.n_drafted;
    trial->values[TOKENS] = (double)(stats.n_accepted + stats.n_checks);
    trial->values[CHECKS] = (double)stats.n_checks;
    butler_draft_free(draft);
    butler_sampler_free(sampler);
    return code;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    double sums[N_VALUES] = {0}, lo, hi;
    (void)err;
    for (int i = 0; i < run->items.n * N_VALUES; i++)
        sums[i % N_VALUES] += values[i];
    eval_share_interval(values + ACCEPTED, values + DRAFTED, N_VALUES, run->items.n, &lo, &hi);
    out[0] = (struct eval_row){"accepted", sums[ACCEPTED] / sums[DRAFTED], lo, hi, (int64_t)sums[DRAFTED], NULL};
    eval_ratio_interval(values + TOKENS, values + CHECKS, N_VALUES, run->items.n, &lo, &hi);
    out[1] = (struct eval_row){"tokens", sums[TOKENS] / sums[CHECKS], lo, hi, (int64_t)sums[CHECKS], NULL};
    return 2;
}

static const struct eval_option options_of_drafts[] = {
    {"tokens", "128", "tokens that are written behind a text"},
    {"drafts", "4", "drafts of a check, 1 to 15"},
    {"temperature", "0", "of the sampler, in hundredths; 0: greedy"},
    {NULL, NULL, NULL},
};

const struct eval_task eval_drafts = {
    .name = "drafts",
    .summary = "how many drafts under a policy are right (--lossless)",
    .data = "a text file (UTF-8)",
    .work = "reads --length tokens, writes 128 (--set tokens)",
    .details =
        "--data is any text file (UTF-8), --length tokens of a text, --limit texts. accepted: share of the drafts; tokens: of a\n"
        "check.\n",
    .options = options_of_drafts,
    .length = 1024,
    .limit = 10,
    .load = load,
    .run = measure,
    .rows = rows,
};
