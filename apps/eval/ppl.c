/* Perplexity of a text. It is cut into windows of `length` tokens that start `stride` tokens apart; each is read after the
 * beginning-of-text token where the file asks for one, and the tokens that the previous window did not count are counted. Decode
 * simulation (TokenButler, section 4.3): every token is decoded under the policy. Mode prefill: the first `prompt` tokens of a
 * window are read densely and only what follows is decoded and counted (PG19 style). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

enum { BUCKETS = 16, PARTS = 3 /* -ln p, tokens, bytes: of each bucket of positions */ };

/* eval_item.own. */
struct window {
    int first; /* the first id that is predicted and counted */
};

static int add_windows(struct eval_run *run, const struct eval_ids *text, int stride, int prompt, struct butler_error *err)
{
    const int length = run->length;
    int counted = 0; /* tokens of the text that windows have counted */
    struct eval_ids ids = {0};
    int code = 0;
    for (int at = 0; code == 0 && counted < text->n && at + length <= text->n && (run->limit == 0 || run->items.n < run->limit);
         at += stride) {
        code = eval_ids_begin(&ids, run->model, err);
        const int n_bos = ids.n;
        if (code == 0)
            code = eval_ids_append(&ids, text->ids + at, length, err);
        struct eval_item *item = code == 0 ? eval_item_add(run, ids.ids, ids.n, prompt, err) : NULL;
        struct window *window = item ? item->own = butler_alloc(sizeof *window, err) : NULL;
        if (!window) {
            code = BUTLER_ERROR_MEMORY;
            break;
        }
        window->first = BUTLER_MAX(1, n_bos + counted - at);
        counted = at + length;
    }
    eval_ids_free(&ids);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    int stride, prompt;
    if (!run->params->data)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--data: ppl needs a text file");
    if (eval_option_int(run, "stride", 0, INT32_MAX / 2, &stride, err) < 0 ||
        eval_option_int(run, "prompt", 0, run->length - 1, &prompt, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    struct eval_text text;
    struct eval_ids ids = {0};
    int code = eval_text_read(run, run->params->data, &text, err);
    if (code < 0)
        return code;
    code = eval_ids_text(&ids, run->model, text.bytes, err);
    eval_text_free(&text);
    if (code == 0 && ids.n < run->length)
        code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: %d tokens, less than one window of --length %d", run->params->data,
                           ids.n, run->length);
    stride = stride ? BUTLER_MIN(stride, run->length) : run->length;
    if (code == 0)
        code = add_windows(run, &ids, stride, prompt ? prompt : run->length / 2, err);
    eval_ids_free(&ids);
    run->n_values = BUCKETS * PARTS;
    return code;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    double *values = trial->values;
    const struct window *window = item->own;
    const int n_bos = item->n_ids - run->length;
    memset(values, 0, BUCKETS * PARTS * sizeof *values);
    for (int i = butler_n_past(session); i + 1 < item->n_ids; i++) {
        const int code = eval_step(trial, item->ids[i], err);
        if (code < 0)
            return code;
        if (i + 1 < window->first)
            continue;
        double *bucket = values + PARTS * (int)((int64_t)(i + 1 - n_bos) * BUCKETS / run->length);
        size_t n_bytes;
        butler_token_bytes(run->model, item->ids[i + 1], &n_bytes);
        bucket[0] -= eval_log_prob(butler_logits(session), run->info->n_vocab, item->ids[i + 1]);
        bucket[1]++;
        bucket[2] += (double)n_bytes;
    }
    return 0;
}

/* Sums over a window's buckets: one observation of the interval. A single window gives its buckets as observations, without the
 * empty ones. Returns the number of observations. */
static int observations(const struct eval_run *run, const double *values, double *out)
{
    const int n = run->items.n;
    int n_seen = 0;
    memset(out, 0, (size_t)BUTLER_MAX(n, BUCKETS) * PARTS * sizeof *out);
    for (int b = 0; n == 1 && b < BUCKETS; b++)
        if (values[b * PARTS + 1] > 0)
            memcpy(out + PARTS * n_seen++, values + b * PARTS, PARTS * sizeof *out);
    for (int i = 0; n > 1 && i < n; i++)
        for (int k = 0; k < BUCKETS * PARTS; k++)
            out[i * PARTS + k % PARTS] += values[i * BUCKETS * PARTS + k];
    return n > 1 ? n : n_seen;
}

static json_t *by_position(const struct eval_run *run, const double *values)
{
    json_t *out = json_array();
    for (int b = 0; b < BUCKETS; b++) {
        double nll = 0, n = 0;
        for (int i = 0; i < run->items.n; i++) {
            nll += values[(i * BUCKETS + b) * PARTS];
            n += values[(i * BUCKETS + b) * PARTS + 1];
        }
        const int from = (int)(((int64_t)b * run->length + BUCKETS - 1) / BUCKETS);
        const int to = (int)(((int64_t)(b + 1) * run->length + BUCKETS - 1) / BUCKETS);
        if (n > 0)
            json_array_append_new(
                out, json_pack("{s:i, s:i, s:f, s:I}", "from", from, "to", to, "ppl", exp(nll / n), "n", (json_int_t)n));
    }
    return json_pack("{s:o}", "by_position", out);
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    double *seen = butler_alloc((size_t)BUTLER_MAX(run->items.n, BUCKETS) * PARTS * sizeof *seen, err);
    double nll = 0, tokens = 0, bytes = 0, lo, hi;
    if (!seen)
        return BUTLER_ERROR_MEMORY;
    const int n = observations(run, values, seen);
    for (int i = 0; i < n; i++) {
        nll += seen[i * PARTS];
        tokens += seen[i * PARTS + 1];
        bytes += seen[i * PARTS + 2];
    }
    eval_ratio_interval(seen, seen + 1, PARTS, n, &lo, &hi);
    out[0] = (struct eval_row){"ppl", exp(nll / tokens), exp(lo), exp(hi), (int64_t)tokens, by_position(run, values)};
    eval_ratio_interval(seen, seen + 2, PARTS, n, &lo, &hi);
    out[1] = (struct eval_row){"bpb", nll / bytes / log(2), lo / log(2), hi / log(2), (int64_t)tokens, NULL};
    free(seen);
    return 2;
}

static const struct eval_option options[] = {
    {"stride", "0", "tokens from one window to the next; 0: the window's length"},
    {"prompt", "0", "mode prefill: tokens of a window read as its prompt; 0: half"},
    EVAL_COMMON_OPTIONS,
    {NULL, NULL, NULL},
};

const struct eval_task eval_ppl = {
    .name = "ppl",
    .summary = "perplexity and bits per byte of a text",
    .data = "a text file (UTF-8), for instance WikiText-2 (CC BY-SA)",
    .work = "decodes --length tokens",
    .details = "--data is any text file (UTF-8), --length the window, --limit windows.\n",
    .options = options,
    .length = 1024,
    .simulate = true,
    .load = load,
    .run = measure,
    .rows = rows,
};
