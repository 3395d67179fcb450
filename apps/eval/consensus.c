/* Whether heads agree on which tokens matter (TokenButler, figure 8): the attention logits of the last token of a text, and
 * their correlation between all heads of the model; its mean over all pairs of heads is the cross-head consensus. It measures
 * the model's own dense attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attended.h"

struct logits {
    int n, n_heads; /* tokens, heads of a layer */
    double *units;  /* [n_layers * n_heads][n] logits of the last token, centred and of length 1; 0 outside of a layer's window */
};

/* Centres a row and scales it to length 1, so that correlations are dot products. */
static void normalise(const float *row, int n, double *out)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < n; i++)
        mean += (double)row[i] / n;
    for (int i = 0; i < n; i++) {
        out[i] = (double)row[i] - mean;
        squares += out[i] * out[i];
    }
    for (int i = 0; i < n; i++)
        out[i] /= squares > 0 ? sqrt(squares) : 1;
}

static void take_logits(void *user, const struct butler_head_attention *attention)
{
    const struct logits *logits = user;
    double *unit =
        logits->units + ((size_t)attention->layer * (size_t)logits->n_heads + (size_t)attention->head) * (size_t)logits->n;
    normalise(attention->scores, attention->n, unit + logits->n - attention->n);
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    double *values = trial->values;
    const int heads = run->info->n_layers * run->info->n_heads, n = item->n_ids;
    struct logits logits = {n, run->info->n_heads, butler_alloc((size_t)heads * (size_t)n * sizeof(double), err)};
    int code = logits.units ? 0 : BUTLER_ERROR_MEMORY;
    while (code == 0 && butler_n_past(session) < n - 1)
        code = eval_step(trial, item->ids[butler_n_past(session)], err);
    if (code == 0)
        code = butler_session_on_attention(session, take_logits, &logits, err);
    if (code == 0)
        code = eval_step(trial, item->ids[n - 1], err);
    butler_session_on_attention(session, NULL, NULL, NULL);
    for (int a = 0; a < heads && code == 0; a++)
        for (int b = 0; b < heads; b++) {
            double dot = 0;
            for (int i = 0; i < n; i++)
                dot += logits.units[(size_t)a * (size_t)n + (size_t)i] * logits.units[(size_t)b * (size_t)n + (size_t)i];
            values[a * heads + b] = dot;
        }
    free(logits.units);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    const int heads = run->info->n_layers * run->info->n_heads;
    if (eval_only_full(run, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (heads > 4096)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "consensus compares all pairs of heads: %d are too many", heads);
    run->n_values = heads * heads;
    return eval_windows_load(run, 1, err);
}

/* Mean over the items of one layer's own matrix. */
static json_t *layer_matrix(const struct eval_run *run, const double *values, int layer)
{
    const int n_heads = run->info->n_heads, heads = run->info->n_layers * n_heads;
    json_t *matrix = json_array();
    for (int a = 0; a < n_heads; a++) {
        json_t *row = json_array();
        for (int b = 0; b < n_heads; b++) {
            double sum = 0;
            for (int i = 0; i < run->items.n; i++)
                sum += values[(size_t)i * (size_t)run->n_values + (size_t)((layer * n_heads + a) * heads + layer * n_heads + b)];
            json_array_append_new(row, json_real(sum / run->items.n));
        }
        json_array_append_new(matrix, row);
    }
    return matrix;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    const int heads = run->info->n_layers * run->info->n_heads, n = run->items.n;
    double *seen = butler_alloc((size_t)n * 2 * sizeof *seen, err), sum = 0, lo, hi;
    if (!seen)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n; i++) {
        const double *matrix = values + (size_t)i * (size_t)run->n_values;
        for (int a = 0; a < heads; a++)
            for (int b = a + 1; b < heads; b++)
                seen[2 * i] += matrix[a * heads + b] / (0.5 * heads * (heads - 1));
        seen[2 * i + 1] = 1;
        sum += seen[2 * i];
    }
    eval_ratio_interval(seen, seen + 1, 2, n, &lo, &hi);
    free(seen);
    json_t *layers = json_array();
    for (int l = 0; l < run->info->n_layers; l++)
        json_array_append_new(layers, layer_matrix(run, values, l));
    out[0] = (struct eval_row){"correlation", sum / n, lo, hi, n, json_pack("{s:o}", "layers", layers)};
    return 1;
}

const struct eval_task eval_consensus = {
    .name = "consensus",
    .summary = "whether heads agree on which tokens matter",
    .data = "a text file (UTF-8)",
    .work = "reads --length tokens",
    .details = "--data is any text file (UTF-8), --length tokens of a text, --limit texts; --kv full.\n",
    .length = 512,
    .limit = 20,
    .load = load,
    .run = measure,
    .rows = rows,
};
