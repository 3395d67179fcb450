/* Attention beside the size of values (VATP, section 3.1 and figure 1): the L1 norms of the values of the first token and of the
 * most attended ones, compared with the mean of all tokens, and the rank correlation of a token's accumulated attention with its
 * norm. It measures the model's own attention, per KV head: the attention of the query heads that share one is summed. */
#include <math.h>
#include <stdlib.h>

#include "attended.h"

/* An item's values: the mean of each metric over all KV heads; each as [layers][KV heads]; of the shown layers, mean over heads,
 * the tokens' attention and norms [N_SHOWN][2][length]; 1. */
enum {
    FIRST, /* norm of the first token's value, as a share of the mean of all tokens */
    TOP,   /* mean norm of the hundredth of the tokens that got most attention, as such a share */
    RANKS, /* Spearman's rank correlation of attention and norm */
    N_METRICS,
    N_SHOWN = 5
};
static const char *const names[N_METRICS] = {"first_norm", "top_norm", "rank_correlation"};

struct norms {
    int n, n_kv_heads, head_dim;
    double *l1;    /* [n_layers][n_kv_heads][n] */
    double *ranks; /* [2][n] scratch */
    int *order;    /* [n] scratch */
};

static int n_matrix(const struct eval_run *run)
{
    return run->info->n_layers * run->info->n_kv_heads;
}

/* The first layer, those at a quarter, half and three quarters, and the last. */
static int shown_layer(const struct eval_run *run, int k)
{
    return (run->info->n_layers - 1) * k / (N_SHOWN - 1);
}

static void take_values(void *user, int layer, int first, int n, const float *v)
{
    const struct norms *norms = user;
    for (int i = 0; i < n * norms->n_kv_heads; i++, v += norms->head_dim) {
        const int head = layer * norms->n_kv_heads + i % norms->n_kv_heads;
        double sum = 0;
        for (int d = 0; d < norms->head_dim; d++)
            sum += fabs((double)v[d]);
        norms->l1[(size_t)head * (size_t)norms->n + (size_t)(first + i / norms->n_kv_heads)] = sum;
    }
}

/* Ranks of values[n] in their order, centred, equal values by the mean of theirs: the same token has the same value in layer 0. */
static void rank(const double *values, const int *order, int n, double *ranks)
{
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && values[order[end]] >= values[order[i]]; end++)
            ;
        for (int k = i; k < end; k++)
            ranks[order[k]] = (i + end - n) / 2.0;
    }
}

/* One KV head: out[N_METRICS]. order, ranks: scratch [n] and [2][n]. */
static int compare(const double *attention, const double *l1, int n, int *order, double *ranks, double *out,
                   struct butler_error *err)
{
    const int n_top = eval_share_of(0.01, n);
    double mean = 0, dot = 0, squares[2] = {0};
    if (eval_order(attention, n, order, err) < 0)
        return BUTLER_ERROR_MEMORY;
    rank(attention, order, n, ranks);
    for (int i = 0; i < n; i++)
        mean += l1[i] / n;
    out[FIRST] = l1[0] / mean;
    for (int i = 0; i < n_top; i++)
        out[TOP] += l1[order[i]] / mean / n_top;
    if (eval_order(l1, n, order, err) < 0)
        return BUTLER_ERROR_MEMORY;
    rank(l1, order, n, ranks + n);
    for (int i = 0; i < n; i++) {
        dot += ranks[i] * ranks[n + i];
        squares[0] += ranks[i] * ranks[i];
        squares[1] += ranks[n + i] * ranks[n + i];
    }
    out[RANKS] = squares[0] > 0 && squares[1] > 0 ? dot / sqrt(squares[0] * squares[1]) : 0;
    return 0;
}

/* Sums the attention of the query heads that share a KV head into the rows of the first of them. */
static void add_groups(struct eval_attended *attended, int group)
{
    for (int row = 0; row < attended->n_layers * attended->n_heads; row++)
        for (int i = 0; row % group > 0 && i < attended->n; i++)
            attended->sums[(size_t)(row - row % group) * (size_t)attended->n + (size_t)i] +=
                attended->sums[(size_t)row * (size_t)attended->n + (size_t)i];
}

static int fill(const struct eval_run *run, const struct eval_attended *attended, const struct norms *norms, double *values,
                struct butler_error *err)
{
    const int n = norms->n, n_kv_heads = norms->n_kv_heads, group = run->info->n_heads / n_kv_heads;
    double *series = values + N_METRICS * (1 + n_matrix(run));
    for (int head = 0; head < n_matrix(run); head++) {
        const double *attention = attended->sums + (size_t)head * (size_t)group * (size_t)n,
                     *l1 = norms->l1 + (size_t)head * (size_t)n;
        double found[N_METRICS] = {0};
        if (compare(attention, l1, n, norms->order, norms->ranks, found, err) < 0)
            return BUTLER_ERROR_MEMORY;
        for (int m = 0; m < N_METRICS; m++) {
            values[m] += found[m] / n_matrix(run);
            values[N_METRICS + m * n_matrix(run) + head] = found[m];
        }
        for (int k = 0; k < N_SHOWN; k++)
            for (int i = 0; i < n && shown_layer(run, k) == head / n_kv_heads; i++) {
                series[2 * k * n + i] += attention[i] / n_kv_heads;
                series[(2 * k + 1) * n + i] += l1[i] / n_kv_heads;
            }
    }
    values[run->n_values - 1] = 1;
    return 0;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    struct eval_attended attended = {0};
    struct norms norms = {.n = trial->item->n_ids, .n_kv_heads = run->info->n_kv_heads, .head_dim = run->info->head_dim};
    const struct butler_capture capture = {BUTLER_INIT(butler_capture), .user = &norms, .values = take_values};
    const size_t n = (size_t)norms.n;
    norms.l1 = butler_alloc((size_t)n_matrix(run) * n * sizeof *norms.l1, err);
    norms.ranks = butler_alloc(2 * n * sizeof *norms.ranks, err);
    norms.order = butler_alloc(n * sizeof *norms.order, err);
    int code = norms.l1 && norms.ranks && norms.order ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = butler_session_set_capture(trial->session, &capture, err);
    if (code == 0)
        code = eval_attended_read(trial, &attended, err);
    butler_session_set_capture(trial->session, NULL, NULL);
    if (code == 0) {
        add_groups(&attended, run->info->n_heads / norms.n_kv_heads);
        code = fill(run, &attended, &norms, trial->values, err);
    }
    eval_attended_free(&attended);
    free(norms.l1);
    free(norms.ranks);
    free(norms.order);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    const int code = eval_only_full(run, err);
    if (run->length < 2)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: norms compares tokens: at least 2");
    run->n_values = N_METRICS * (1 + n_matrix(run)) + N_SHOWN * 2 * run->length + 1;
    return code < 0 ? code : eval_windows_load(run, run->length, err);
}

static json_t *numbers(const double *values, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_real(values[i]));
    return array;
}

/* The shown layers of the first text, token by token. */
static json_t *shown_text(const struct eval_run *run, const double *values)
{
    const double *series = values + N_METRICS * (1 + n_matrix(run));
    json_t *shown = json_array();
    for (int k = 0; k < N_SHOWN; k++, series += 2 * (size_t)run->length)
        json_array_append_new(shown, json_pack("{s:i, s:o, s:o}", "layer", shown_layer(run, k), "attention",
                                               numbers(series, run->length), "norm", numbers(series + run->length, run->length)));
    return shown;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    (void)err;
    for (int m = 0; m < N_METRICS; m++) {
        out[m] = eval_item_row(run, names[m], values, m);
        out[m].detail =
            json_pack("{s:o}", "heads", eval_layer_means(run, values, N_METRICS + m * n_matrix(run), run->info->n_kv_heads));
    }
    json_object_set_new(out[FIRST].detail, "shown", shown_text(run, values));
    return N_METRICS;
}

const struct eval_task eval_norms = {
    .name = "norms",
    .summary = "whether tokens with much attention have small values",
    .data = "a text file (UTF-8)",
    .work = "decodes --length tokens",
    .details = "--data is any text file (UTF-8), --length tokens of a text, --limit texts; --kv full.\n",
    .length = 1024,
    .limit = 4,
    .simulate = true,
    .load = load,
    .run = measure,
    .rows = rows,
};
