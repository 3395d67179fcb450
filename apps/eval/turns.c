/* One text, many questions (the idea of SCBench, arXiv 2412.10319): the lines of LongEval, and the number in one line after the
 * other is asked for. A policy sees the first question before it cuts; the others come when what it dropped is gone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

enum { MOST_TURNS = 32, N_VALUES = 3 /* first answer right; others right; others */ };

/* eval_item.own: where the answers stand in the item's ids. */
struct turns {
    int n, first[MOST_TURNS], end[MOST_TURNS];
};

struct maker {
    struct eval_frame frame;
    struct eval_ids document, ids;
    int n_lines, n_turns;
    int *scratch, *names; /* [EVAL_N_NAMES], [n_lines] */
    char (*numbers)[8];   /* [n_lines] */
};

static int make_document(struct eval_run *run, struct maker *maker, uint64_t *random, struct butler_error *err)
{
    char *text = NULL, name[64];
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the lines");
    eval_distinct(random, EVAL_N_NAMES, maker->n_lines, maker->scratch, maker->names);
    fputs("Each line below holds a number as its REGISTER_CONTENT. Keep them in mind.\n", out);
    for (int i = 0; i < maker->n_lines; i++) {
        eval_digits(random, 4, maker->numbers[i]);
        maker->numbers[i][0] = maker->numbers[i][0] == '0' ? '1' : maker->numbers[i][0];
        eval_name(maker->names[i], name, sizeof name);
        fprintf(out, "line %s: REGISTER_CONTENT is <%s>\n", name, maker->numbers[i]);
    }
    const int code = fclose(out) == 0 ? eval_document(&maker->document, run, &maker->frame, text, err)
                                      : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the lines");
    free(text);
    return code;
}

/* Appends a question about a line, with its answer. *n_prompt: where the answer begins. */
static int add_turn(struct eval_run *run, struct maker *maker, int line, bool first, int *n_prompt, int *n_document,
                    struct butler_error *err)
{
    char name[64], ask[128], lead[128];
    eval_name(maker->names[line], name, sizeof name);
    snprintf(ask, sizeof ask, "%s\nWhat is the REGISTER_CONTENT of line %s?", first ? "" : ">.", name);
    snprintf(lead, sizeof lead, " The <REGISTER_CONTENT> in line %s is <", name);
    int code = 0;
    if (first)
        code = eval_frame_join(&maker->ids, run, &maker->frame, &maker->document,
                               &(struct eval_question){ask, lead, maker->numbers[line]}, n_document, err);
    else if ((code = eval_ids_piece(&maker->ids, run->model, ask, err)) == 0)
        code = eval_ids_piece(&maker->ids, run->model, lead, err);
    *n_prompt = maker->ids.n;
    return code == 0 ? eval_ids_piece(&maker->ids, run->model, maker->numbers[line], err) : code;
}

static int add_item(struct eval_run *run, struct maker *maker, uint64_t *random, struct butler_error *err)
{
    struct turns turns = {.n = maker->n_turns};
    int lines[MOST_TURNS], n_document = 0, unused, code = make_document(run, maker, random, err);
    eval_distinct(random, maker->n_lines, maker->n_turns, maker->scratch, lines);
    for (int i = 0; i < turns.n && code == 0; i++) {
        code = add_turn(run, maker, lines[i], i == 0, &turns.first[i], i == 0 ? &n_document : &unused, err);
        turns.end[i] = maker->ids.n;
    }
    const int n_prompt = maker->frame.asks_after ? n_document : turns.first[0];
    struct eval_item *item = code == 0 ? eval_item_add(run, maker->ids.ids, maker->ids.n, n_prompt, err) : NULL;
    if (!item)
        return code < 0 ? code : BUTLER_ERROR_MEMORY;
    item->repeats_last = !maker->frame.asks_after;
    item->own = butler_alloc(sizeof turns, err);
    if (!item->own)
        return BUTLER_ERROR_MEMORY;
    memcpy(item->own, &turns, sizeof turns);
    run->n_values = N_VALUES;
    run->length = BUTLER_MAX(run->length, item->n_ids);
    return 0;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct maker maker = {0};
    uint64_t random = run->seed;
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: it follows from the number of lines (--set lines=N)");
    if (eval_option_int(run, "lines", 1, 100000, &maker.n_lines, err) < 0 ||
        eval_option_int(run, "turns", 2, MOST_TURNS, &maker.n_turns, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (maker.n_turns > maker.n_lines)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set turns: %d questions about %d lines", maker.n_turns, maker.n_lines);
    maker.scratch = butler_alloc((size_t)(EVAL_N_NAMES + maker.n_lines) * sizeof *maker.scratch, err);
    maker.numbers = butler_alloc((size_t)maker.n_lines * sizeof *maker.numbers, err);
    int code = maker.scratch && maker.numbers ? eval_frame_init(&maker.frame, run, err) : BUTLER_ERROR_MEMORY;
    maker.names = maker.scratch ? maker.scratch + EVAL_N_NAMES : NULL;
    for (int i = 0; code == 0 && i < (run->limit ? run->limit : 20); i++)
        code = add_item(run, &maker, &random, err);
    free(maker.scratch);
    free(maker.numbers);
    eval_ids_free(&maker.document);
    eval_ids_free(&maker.ids);
    eval_frame_free(&maker.frame);
    return code;
}

/* An answer is right when each of its tokens is the most probable one after the true tokens before it. */
static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    const struct turns *turns = item->own;
    struct butler_session *session = trial->session;
    int code = 0, turn = 0;
    bool right = true;
    trial->values[0] = trial->values[1] = 0;
    trial->values[2] = turns->n - 1;
    for (int i = butler_n_past(session); i + 1 < item->n_ids && code == 0; i++) {
        code = eval_step(trial, item->ids[i], err);
        if (code < 0 || i + 1 < turns->first[turn])
            continue;
        right = right && eval_argmax(butler_logits(session), run->info->n_vocab) == item->ids[i + 1];
        if (i + 2 < turns->end[turn])
            continue;
        trial->values[turn > 0] += right;
        right = true;
        turn++;
    }
    return code;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    const int n = run->items.n;
    double first = 0, later = 0, asked = 0, lo, hi;
    (void)err;
    for (int i = 0; i < n; i++) {
        first += values[i * N_VALUES];
        later += values[i * N_VALUES + 1];
        asked += values[i * N_VALUES + 2];
    }
    eval_wilson(first, n, &lo, &hi);
    out[0] = (struct eval_row){"first", first / n, lo, hi, n, NULL};
    /* Questions about one text are not independent, so the interval is over texts. */
    eval_share_interval(values + 1, values + 2, N_VALUES, n, &lo, &hi);
    out[1] = (struct eval_row){"later", later / asked, lo, hi, (int64_t)asked, NULL};
    return 2;
}

static const struct eval_option options[] = {
    {"lines", "100", "lines in a text"},
    {"turns", "5", "questions about a text, one after the other"},
    EVAL_ANSWER_OPTIONS("off"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_turns = {
    .name = "turns",
    .summary = "one text, many questions: what is left of it after the first",
    .data = "none",
    .work = "reads about 25 tokens a line, decodes about 45 a question",
    .details = "Generated. first: share of right answers to a text's first question; later: to the others.\n",
    .options = options,
    .limit = 20,
    .load = load,
    .run = measure,
    .rows = rows,
};
