/* The tokens of one text that each policy reads to predict the answer (TokenButler, figure 5): a text of the co-reference task,
 * and for each of its tokens the share of query heads, in the upper half of the layers, that read it for the first token of the
 * answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "parts.h"

/* Index of the answer's tokens in the prompt; -1: the name has other tokens there. */
static int find_answer(const struct eval_item *item)
{
    const struct eval_answer *answer = item->own;
    const int32_t *wanted = item->ids + item->n_ids - answer->n_answer;
    for (int i = 0; i + 2 * answer->n_answer < item->n_ids; i++)
        if (memcmp(item->ids + i, wanted, (size_t)answer->n_answer * sizeof *wanted) == 0)
            return i;
    return -1;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    double *values = trial->values;
    const struct eval_answer *answer = item->own;
    const int n = item->n_ids - answer->n_answer, first_layer = run->info->n_layers / 2;
    const double share = 1.0 / ((run->info->n_layers - first_layer) * run->info->n_heads);
    int32_t *read = butler_alloc((size_t)n * sizeof *read, err);
    int code = read ? 0 : BUTLER_ERROR_MEMORY;
    while (code == 0 && butler_n_past(session) < n)
        code = eval_step(trial, item->ids[butler_n_past(session)], err);
    memset(values, 0, (size_t)run->n_values * sizeof *values);
    for (int l = first_layer; l < run->info->n_layers && code == 0; l++)
        for (int h = 0; h < run->info->n_heads; h++) {
            const int n_read = butler_last_selection(session, l, h, read, n);
            for (int i = 0; i < n_read; i++)
                values[read[i]] += share;
        }
    free(read);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    if (run->limit != 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--limit: heat measures one text (--seed chooses it)");
    const int code = eval_coref_load(run, err);
    if (code == 0)
        run->n_values = run->items.items[0].n_ids;
    return code;
}

/* A token as a JSON string, with U+FFFD for a part of a character. */
static json_t *token_text(const struct butler_model *model, int32_t id)
{
    size_t n_bytes;
    const char *bytes = butler_token_bytes(model, id, &n_bytes);
    return eval_text(bytes ? bytes : "", bytes ? n_bytes : 0);
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    const struct eval_item *item = &run->items.items[0];
    const struct eval_answer *answer = item->own;
    const int n = item->n_ids - answer->n_answer, at = find_answer(item);
    json_t *tokens = json_array(), *kept = json_array(), *marked = json_array();
    double sum = 0;
    (void)err;
    for (int i = 0; i < n; i++) {
        json_array_append_new(tokens, token_text(run->model, item->ids[i]));
        json_array_append_new(kept, json_real(values[i]));
    }
    for (int i = 0; i < answer->n_answer && at >= 0; i++) {
        json_array_append_new(marked, json_integer(at + i));
        sum += values[at + i];
    }
    out[0] = (struct eval_row){.metric = "answer_read",
                               .value = at >= 0 ? sum / answer->n_answer : NAN,
                               .lo = NAN,
                               .hi = NAN,
                               .n = answer->n_answer,
                               .detail = json_pack("{s:o, s:o, s:o}", "tokens", tokens, "kept", kept, "answer", marked)};
    return 1;
}

static const struct eval_option options[] = {
    {"dense", "1", "this many layers, at least, read everything under every policy"},
    EVAL_ANSWER_OPTIONS("off"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_heat = {
    .name = "heat",
    .summary = "the tokens of one text that a policy reads to predict the answer",
    .data = "as coref",
    .work = "as coref",
    .details = "One text of the task coref, chosen by --seed; --data as there.\n",
    .options = options,
    .limit = 1,
    .load = load,
    .run = measure,
    .rows = rows,
};
