/* Questions with one right answer: passkey, key-value pairs, lines, co-reference. */
#include "answer.h"

#include <string.h>

int eval_answer_add(struct eval_run *run, const struct eval_ids *ids, int n_answer, int tail, int cell, struct butler_error *err)
{
    const int n_prompt = ids->n - n_answer;
    if (n_answer < 1 || n_prompt < 1)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "an item with %d tokens of prompt and %d of answer", n_prompt, n_answer);
    struct eval_item *item = eval_item_add(run, ids->ids, ids->n, BUTLER_MAX(n_prompt - tail, 0), err);
    struct eval_answer *answer = item ? item->own = butler_alloc(sizeof *answer, err) : NULL;
    if (!answer)
        return BUTLER_ERROR_MEMORY;
    *answer = (struct eval_answer){n_answer, cell};
    run->n_values = EVAL_ANSWER_VALUES;
    return 0;
}

int eval_answer_run(const struct eval_run *run, const struct eval_item *item, struct butler_session *session, double *values,
                    struct butler_error *err)
{
    const struct eval_answer *answer = item->own;
    int right = 0;
    for (int i = butler_n_past(session); i + 1 < item->n_ids; i++) {
        const int code = butler_step(session, item->ids[i], err);
        if (code < 0)
            return code;
        if (i + 1 >= item->n_ids - answer->n_answer)
            right += eval_argmax(butler_logits(session), run->info->n_vocab) == item->ids[i + 1];
    }
    values[0] = right == answer->n_answer;
    values[1] = right;
    values[2] = answer->n_answer;
    return 0;
}

int eval_answer_summary(const struct eval_run *run, const double *values, bool coverage, json_t *detail, struct eval_row *rows)
{
    const int n = run->items.n;
    double right = 0, covered = 0, tokens = 0, lo, hi;
    for (int i = 0; i < n; i++) {
        right += values[i * EVAL_ANSWER_VALUES];
        covered += values[i * EVAL_ANSWER_VALUES + 1];
        tokens += values[i * EVAL_ANSWER_VALUES + 2];
    }
    eval_wilson(right, n, &lo, &hi);
    rows[0] = (struct eval_row){"accuracy", right / n, lo, hi, n, detail};
    if (!coverage)
        return 1;
    /* Tokens of one answer are not independent, so the interval is over answers. */
    eval_ratio_interval(values + 1, values + 2, EVAL_ANSWER_VALUES, n, &lo, &hi);
    rows[1] = (struct eval_row){"coverage", covered / tokens, BUTLER_MAX(lo, 0), BUTLER_MIN(hi, 1), (int64_t)tokens, NULL};
    return 2;
}

int eval_answer_rows(const struct eval_run *run, const double *values, struct eval_row *rows, struct butler_error *err)
{
    (void)err;
    return eval_answer_summary(run, values, true, NULL, rows);
}

int eval_answer_tail(const struct eval_run *run, int *tail, struct butler_error *err)
{
    return eval_option_int(run, "tail", 1, 1 << 24, tail, err);
}

int eval_below(uint64_t *random, int n)
{
    return (int)((butler_random(random) >> 32) * (uint64_t)n >> 32);
}

void eval_digits(uint64_t *random, int n, char *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (char)('0' + eval_below(random, 10));
    out[n] = 0;
}

void eval_distinct(uint64_t *random, int n, int k, int *scratch, int *out)
{
    for (int i = 0; i < n; i++)
        scratch[i] = i;
    for (int i = 0; i < k; i++) {
        const int j = i + eval_below(random, n - i), chosen = scratch[j];
        scratch[j] = scratch[i];
        out[i] = scratch[i] = chosen;
    }
}
