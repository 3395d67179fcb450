/* Passkey retrieval (FIER, table 3): a key of five digits, hidden in a long unrelated text and asked for at the end. Depths are
 * spread evenly over the items. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

static const char filler_text[] = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
static const char intro[] =
    "A pass key is hidden in a long text without importance. Find it and remember it: you will be asked for it.\n";
static const char ask[] = "\nWhat is the pass key?", lead[] = " The pass key is";

struct pieces {
    struct eval_frame frame;
    struct eval_ids intro, filler, question, fact, text; /* question: with the answer; only its length matters */
};

static void free_pieces(struct pieces *pieces)
{
    eval_frame_free(&pieces->frame);
    eval_ids_free(&pieces->intro);
    eval_ids_free(&pieces->filler);
    eval_ids_free(&pieces->question);
    eval_ids_free(&pieces->fact);
    eval_ids_free(&pieces->text);
}

/* n tokens of filler, starting at position `at` of the filler text, repeated. */
static int append_filler(struct pieces *pieces, int at, int n, struct butler_error *err)
{
    int code = 0;
    for (int done = 0; done < n && code == 0;) {
        const int from = (at + done) % pieces->filler.n, m = BUTLER_MIN(n - done, pieces->filler.n - from);
        code = eval_ids_append(&pieces->text, pieces->filler.ids + from, m, err);
        done += m;
    }
    return code;
}

/* Tokens of an item that are not filler, but for the fact. */
static int other_tokens(const struct eval_run *run, struct pieces *pieces, const char *answer, int *n, struct butler_error *err)
{
    pieces->question.n = 0;
    int code = eval_ids_piece(&pieces->question, run->model, ask, err);
    if (code == 0)
        code = eval_ids_piece(&pieces->question, run->model, lead + pieces->frame.chat, err);
    if (code == 0)
        code = eval_ids_piece(&pieces->question, run->model, answer, err);
    *n = pieces->frame.before.n + pieces->frame.after.n + pieces->question.n + pieces->intro.n;
    return code;
}

static int add_item(struct eval_run *run, struct pieces *pieces, int cell, int n_depths, uint64_t *random, struct butler_error *err)
{
    char key[8], text[128], answer[16];
    int n_other = 0;
    eval_digits(random, 5, key);
    pieces->fact.n = pieces->text.n = 0;
    snprintf(text, sizeof text, " The pass key is %s. Remember it. %s is the pass key.", key, key);
    snprintf(answer, sizeof answer, " %s", key);
    int code = eval_ids_piece(&pieces->fact, run->model, text, err);
    if (code == 0)
        code = other_tokens(run, pieces, answer, &n_other, err);
    if (code < 0)
        return code;
    const int n_filler = run->length - pieces->fact.n - n_other;
    if (n_filler < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: %d tokens do not hold a pass key and its question, which take %d",
                           run->length, run->length - n_filler);
    const int before = n_depths > 1 ? (int)((int64_t)n_filler * cell / (n_depths - 1)) : n_filler / 2;
    const int at = run->params->data ? eval_below(random, pieces->filler.n) : 0;
    code = pieces->frame.chat ? eval_ids_append(&pieces->text, pieces->intro.ids, pieces->intro.n, err) : 0;
    if (code == 0)
        code = append_filler(pieces, at, before, err);
    if (code == 0)
        code = eval_ids_append(&pieces->text, pieces->fact.ids, pieces->fact.n, err);
    if (code == 0)
        code = append_filler(pieces, at + before, n_filler - before, err);
    const struct eval_question question = {ask, lead, answer};
    return code < 0 ? code : eval_answer_add(run, &pieces->frame, &pieces->text, &question, cell, err);
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct pieces pieces = {0};
    struct eval_text text = {0};
    uint64_t random = run->seed;
    int n_depths;
    if (eval_option_int(run, "depths", 1, 100, &n_depths, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    int code = eval_frame_init(&pieces.frame, run, err);
    if (code == 0 && run->params->data)
        code = eval_text_read(run, run->params->data, &text, err);
    if (code == 0)
        code = eval_ids_piece(&pieces.filler, run->model, text.bytes ? text.bytes : filler_text, err);
    if (code == 0 && pieces.filler.n == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no tokens in it", run->params->data);
    if (code == 0 && pieces.frame.chat) /* a conversation says what it is about */
        code = eval_ids_piece(&pieces.intro, run->model, intro, err);
    for (int i = 0; i < run->limit && code == 0; i++)
        code = add_item(run, &pieces, i % n_depths, n_depths, &random, err);
    eval_text_free(&text);
    free_pieces(&pieces);
    return code;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    int n_depths;
    const int code = eval_option_int(run, "depths", 1, 100, &n_depths, err);
    if (code < 0)
        return code;
    json_t *grid = json_array();
    for (int cell = 0; cell < n_depths; cell++) {
        int n = 0, right = 0;
        for (int i = 0; i < run->items.n; i++)
            if (((const struct eval_answer *)run->items.items[i].own)->cell == cell) {
                n++;
                right += values[i * EVAL_ANSWER_VALUES] > 0;
            }
        if (n > 0)
            json_array_append_new(grid, json_pack("{s:i, s:f, s:i, s:i}", "length", run->length, "depth",
                                                  n_depths > 1 ? (double)cell / (n_depths - 1) : 0.5, "right", right, "n", n));
    }
    return eval_answer_summary(run, values, false, json_pack("{s:o}", "grid", grid), out);
}

static const struct eval_option options[] = {
    {"depths", "5", "places of the key, evenly from the start to the end of the text"},
    EVAL_ANSWER_OPTIONS("auto"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_passkey = {
    .name = "passkey",
    .summary = "a number hidden in a long text and asked for at its end",
    .data = "none; or a text that hides the number",
    .work = "reads --length tokens, decodes 6",
    .details = "Without --data the text repeats a few sentences; with it, it is taken from that file.\n",
    .options = options,
    .length = 2048,
    .limit = 50,
    .load = load,
    .run = eval_answer_run,
    .rows = rows,
};
