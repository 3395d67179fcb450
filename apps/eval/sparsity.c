/* How sparse the model's own attention is (H2O, section 3 and figure 2): the share of weights below one per cent of the largest of
 * their row, and how much of the attention that tokens accumulate the most attended ones hold. A row has the tokens that a query
 * sees: those behind it, which causal attention hides, are not counted as zeros. */
#include <stdlib.h>

#include "attended.h"

/* Shares of the tokens. */
static const double tops[] = {0.01, 0.05, 0.1, 0.2, 0.5};
enum { N_TOPS = BUTLER_COUNT(tops), TENTH = 2 /* index of 0.1 */ };

/* An item's values: means over all heads of sparsity and of what the top tenth holds; [layers][heads] sparsity;
 * [layers][N_TOPS] what the top tokens hold, mean over the layer's heads; 1. */
enum { SPARSITY, HELD, HEADS };

static int first_held(const struct eval_run *run)
{
    return HEADS + run->info->n_layers * run->info->n_heads;
}

/* Adds what the top tokens of one head hold of its attention, divided by the number of heads. order: scratch [n]. */
static int add_held(const struct eval_attended *attended, int row, int *order, double *held, struct butler_error *err)
{
    const double *sums = attended->sums + (size_t)row * (size_t)attended->n;
    double total = 0, sum = 0;
    const int code = eval_order(sums, attended->n, order, err);
    for (int i = 0; i < attended->n; i++)
        total += sums[i];
    for (int k = 0, i = 0; code == 0 && k < N_TOPS; k++) {
        for (; i < eval_share_of(tops[k], attended->n); i++)
            sum += sums[order[i]];
        held[k] += sum / total / attended->n_heads;
    }
    return code;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const int n_layers = run->info->n_layers, n_heads = run->info->n_heads;
    double *values = trial->values, *held = values + first_held(run);
    struct eval_attended attended;
    int *order = butler_alloc((size_t)trial->item->n_ids * sizeof *order, err);
    int code = eval_attended_read(trial, &attended, err);
    if (!order)
        code = BUTLER_ERROR_MEMORY;
    for (int row = 0; row < n_layers * n_heads && code == 0; row++) {
        values[HEADS + row] = attended.sparsity[row];
        values[SPARSITY] += attended.sparsity[row] / (n_layers * n_heads);
        code = add_held(&attended, row, order, held + row / n_heads * N_TOPS, err);
    }
    for (int l = 0; l < n_layers; l++)
        values[HELD] += held[l * N_TOPS + TENTH] / n_layers;
    values[run->n_values - 1] = 1;
    eval_attended_free(&attended);
    free(order);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    const int code = eval_only_full(run, err);
    run->n_values = first_held(run) + run->info->n_layers * N_TOPS + 1;
    return code < 0 ? code : eval_windows_load(run, run->length, err);
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    json_t *shares = json_array();
    (void)err;
    for (int k = 0; k < N_TOPS; k++)
        json_array_append_new(shares, json_real(tops[k]));
    out[0] = eval_item_row(run, "sparsity", values, SPARSITY);
    out[0].detail = json_pack("{s:o}", "heads", eval_layer_means(run, values, HEADS, run->info->n_heads));
    out[1] = eval_item_row(run, "top_tenth", values, HELD);
    out[1].detail = json_pack("{s:o, s:o}", "tops", shares, "held", eval_layer_means(run, values, first_held(run), N_TOPS));
    return 2;
}

const struct eval_task eval_sparsity = {
    .name = "sparsity",
    .summary = "how few tokens get the model's attention",
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
