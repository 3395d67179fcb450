/* Questions with one right answer: passkey, key-value pairs, lines, co-reference. */
#include "answer.h"

#include <stdio.h>
#include <string.h>

int eval_frame_init(struct eval_frame *frame, const struct eval_run *run, struct butler_error *err)
{
    const char *ask = eval_option_text(run, "ask");
    *frame = (struct eval_frame){.asks_after = strcmp(ask, "after") == 0};
    if (!frame->asks_after && strcmp(ask, "before") != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set ask: '%s' is not allowed; it takes before, after", ask);
    const int code = eval_option_chat(run, &frame->chat, err);
    if (code < 0)
        return code;
    return frame->chat ? eval_ids_frame(&frame->before, &frame->after, run->model, err)
                       : eval_ids_begin(&frame->before, run->model, err);
}

void eval_frame_free(struct eval_frame *frame)
{
    eval_ids_free(&frame->before);
    eval_ids_free(&frame->after);
}

int eval_document(struct eval_ids *ids, const struct eval_run *run, const struct eval_frame *frame, const char *text,
                  struct butler_error *err)
{
    ids->n = 0;
    return (frame->chat ? eval_ids_piece : eval_ids_text)(ids, run->model, text, err);
}

int eval_frame_join(struct eval_ids *ids, const struct eval_run *run, const struct eval_frame *frame,
                    const struct eval_ids *document, const struct eval_question *question, int *n_document,
                    struct butler_error *err)
{
    /* At the beginning of a turn no space stands before the text. */
    const char *lead = question->lead + (frame->chat && question->lead[0] == ' ');
    ids->n = 0;
    int code = eval_ids_append(ids, frame->before.ids, frame->before.n, err);
    if (code == 0)
        code = eval_ids_append(ids, document->ids, document->n, err);
    *n_document = ids->n;
    if (code == 0 && *question->ask)
        code = eval_ids_piece(ids, run->model, question->ask, err);
    if (code == 0)
        code = eval_ids_append(ids, frame->after.ids, frame->after.n, err);
    return code == 0 && *lead ? eval_ids_piece(ids, run->model, lead, err) : code;
}

int eval_answer_add(struct eval_run *run, const struct eval_frame *frame, const struct eval_ids *document,
                    const struct eval_question *question, int cell, struct butler_error *err)
{
    struct eval_ids ids = {0};
    int n_document = 0;
    int code = eval_frame_join(&ids, run, frame, document, question, &n_document, err);
    const int n_prompt = ids.n;
    if (code == 0)
        code = eval_ids_piece(&ids, run->model, question->answer, err);
    const int n_answer = ids.n - n_prompt;
    if (code == 0 && (n_answer < 1 || n_prompt <= n_document))
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "an item with %d tokens of question and %d of answer", n_prompt - n_document,
                           n_answer);
    struct eval_item *item = code == 0 ? eval_item_add(run, ids.ids, ids.n, frame->asks_after ? n_document : n_prompt, err) : NULL;
    struct eval_answer *answer = item ? item->own = butler_alloc(sizeof *answer, err) : NULL;
    if (answer) {
        *answer = (struct eval_answer){n_answer, cell};
        item->repeats_last = !frame->asks_after;
        run->n_values = EVAL_ANSWER_VALUES;
        run->length = BUTLER_MAX(run->length, ids.n);
    } else if (code == 0)
        code = BUTLER_ERROR_MEMORY;
    eval_ids_free(&ids);
    return code;
}

int eval_answer_run(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    double *values = trial->values;
    const struct eval_answer *answer = item->own;
    size_t n_output = 0, n_bytes;
    FILE *output = open_memstream(&trial->output, &n_output); /* the likeliest tokens, for the journal */
    int right = 0, code = output ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an answer");
    for (int i = butler_n_past(session); i + 1 < item->n_ids && code == 0; i++) {
        code = eval_step(trial, item->ids[i], err);
        if (code < 0 || i + 1 < item->n_ids - answer->n_answer)
            continue;
        const int32_t best = eval_argmax(butler_logits(session), run->info->n_vocab);
        const char *bytes = butler_token_bytes(run->model, best, &n_bytes);
        if (bytes)
            fwrite(bytes, 1, strnlen(bytes, n_bytes), output);
        right += best == item->ids[i + 1];
    }
    if (output && fclose(output) != 0 && code == 0)
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an answer");
    values[0] = right == answer->n_answer;
    values[1] = right;
    values[2] = answer->n_answer;
    return code;
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
    eval_share_interval(values + 1, values + 2, EVAL_ANSWER_VALUES, n, &lo, &hi);
    rows[1] = (struct eval_row){"coverage", covered / tokens, lo, hi, (int64_t)tokens, NULL};
    return 2;
}

int eval_answer_rows(const struct eval_run *run, const double *values, struct eval_row *rows, struct butler_error *err)
{
    (void)err;
    return eval_answer_summary(run, values, true, NULL, rows);
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

void eval_name(int index, char *out, size_t n_out)
{
    snprintf(out, n_out, "%s-%s", eval_words[index / EVAL_N_WORDS], eval_words[index % EVAL_N_WORDS]);
}
