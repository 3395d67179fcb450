/* See attended.h. */
#include "attended.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_head(void *user, const struct butler_head_attention *attention)
{
    struct eval_attended *attended = user;
    const size_t row = (size_t)attention->layer * (size_t)attended->n_heads + (size_t)attention->head;
    double *sums = attended->sums + row * (size_t)attended->n;
    float largest = 0;
    int below = 0;
    for (int i = 0; i < attention->n; i++) {
        sums[attention->positions[i]] += (double)attention->weights[i];
        largest = BUTLER_MAX(largest, attention->weights[i]);
    }
    for (int i = 0; i < attention->n; i++)
        below += attention->weights[i] < EVAL_SPARSE * largest;
    attended->sparsity[row] += (double)below / attention->n / attended->n;
}

int eval_attended_read(struct eval_trial *trial, struct eval_attended *out, struct butler_error *err)
{
    const struct eval_item *item = trial->item;
    const struct butler_model_info *info = trial->run->info;
    const size_t heads = (size_t)info->n_layers * (size_t)info->n_heads;
    *out = (struct eval_attended){item->n_ids, info->n_layers, info->n_heads, NULL, NULL};
    out->sums = butler_alloc(heads * (size_t)out->n * sizeof *out->sums, err);
    out->sparsity = butler_alloc(heads * sizeof *out->sparsity, err);
    if (!out->sums || !out->sparsity)
        return BUTLER_ERROR_MEMORY;
    int code = butler_session_on_attention(trial->session, add_head, out, err);
    for (int i = 0; i < out->n && code == 0; i++)
        code = eval_step(trial, item->ids[i], err);
    butler_session_on_attention(trial->session, NULL, NULL, NULL);
    return code;
}

void eval_attended_free(struct eval_attended *attended)
{
    free(attended->sums);
    free(attended->sparsity);
}

int eval_only_full(const struct eval_run *run, struct butler_error *err)
{
    for (int i = 0; i < run->n_policies; i++)
        if (run->policies[i].parts.metric)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--kv: %s measures the model's own attention: 'full', not '%s'",
                               run->task->name, run->policies[i].text);
    return 0;
}

struct ranked {
    double value;
    int index;
};

static int larger_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->value > y->value ? -1 : x->value < y->value ? 1 : (x->index > y->index) - (x->index < y->index);
}

int eval_order(const double *values, int n, int *order, struct butler_error *err)
{
    struct ranked *ranked = butler_alloc((size_t)n * sizeof *ranked, err);
    if (!ranked)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n; i++)
        ranked[i] = (struct ranked){values[i], i};
    qsort(ranked, (size_t)n, sizeof *ranked, larger_first);
    for (int i = 0; i < n; i++)
        order[i] = ranked[i].index;
    free(ranked);
    return 0;
}

int eval_share_of(double share, int n)
{
    return (int)fmax(1, floor(share * n + 0.5));
}

struct eval_row eval_item_row(const struct eval_run *run, const char *metric, const double *values, int which)
{
    const size_t stride = (size_t)run->n_values;
    struct eval_row row = {.metric = metric, .n = run->items.n};
    for (int i = 0; i < run->items.n; i++)
        row.value += values[(size_t)i * stride + (size_t)which] / run->items.n;
    eval_ratio_interval(values + which, values + stride - 1, stride, run->items.n, &row.lo, &row.hi);
    return row;
}

json_t *eval_layer_means(const struct eval_run *run, const double *values, int first, int n)
{
    json_t *layers = json_array();
    for (int l = 0; l < run->info->n_layers; l++) {
        json_t *layer = json_array();
        for (int k = 0; k < n; k++)
            json_array_append_new(layer, json_real(eval_item_row(run, NULL, values, first + l * n + k).value));
        json_array_append_new(layers, layer);
    }
    return layers;
}
