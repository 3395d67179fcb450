/* Line retrieval (LongEval): many lines, each with a name and a number, and the number of one line is asked for. Lines come from
 * LongEval's JSON lines (prompt, random_idx, expected_number) or are generated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

static int add_item(struct eval_run *run, const char *prompt, const char *ask, const char *number, int tail, struct eval_ids *ids,
                    struct butler_error *err)
{
    int code = eval_ids_begin(ids, run->model, err);
    if (code == 0)
        code = eval_ids_text(ids, run->model, prompt, err);
    if (code == 0)
        code = eval_ids_piece(ids, run->model, ask, err);
    const int n_prompt = ids->n;
    if (code == 0)
        code = eval_ids_piece(ids, run->model, number, err);
    if (code == 0)
        code = eval_answer_add(run, ids, ids->n - n_prompt, tail, 0, err);
    run->length = BUTLER_MAX(run->length, ids->n);
    return code;
}

/* The file's prompt ends with its question; this text after it makes the number the continuation. */
static int add_record(struct eval_run *run, const struct eval_jsonl *lines, int tail, struct eval_ids *ids,
                      struct butler_error *err)
{
    const char *prompt, *name;
    json_t *index;
    json_int_t expected;
    int code = eval_jsonl_string(lines, "prompt", true, &prompt, err);
    if (code == 0)
        code = eval_jsonl_array(lines, "random_idx", 1, &index, err);
    if (code == 0)
        code = eval_jsonl_int(lines, "expected_number", 0, INT64_MAX, &expected, err);
    if (code < 0)
        return code;
    name = json_string_value(json_array_get(index, 0));
    if (!name || !*name)
        return eval_jsonl_fail(lines, "random_idx", err, "its first entry is not the name of a line");
    size_t n = strlen(prompt);
    while (n > 0 && strchr(" \t\r\n", prompt[n - 1]))
        n--;
    char *ask = NULL, *body = strndup(prompt, n), number[32];
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, expected);
    if (!body || asprintf(&ask, " The <REGISTER_CONTENT> in line %s is <", name) < 0)
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a line");
    if (code == 0)
        code = add_item(run, body, ask, number, tail, ids, err);
    free(body);
    free(ask);
    return code;
}

static int load_file(struct eval_run *run, int tail, struct eval_ids *ids, struct butler_error *err)
{
    struct eval_jsonl lines;
    int code = eval_jsonl_open(run, &lines, run->params->data, err), more = 0;
    while (code == 0 && (run->limit == 0 || run->items.n < run->limit) && (more = eval_jsonl_next(&lines, err)) > 0)
        code = add_record(run, &lines, tail, ids, err);
    eval_jsonl_close(&lines);
    return BUTLER_MIN(code, more < 0 ? more : 0);
}

/* ----------------------------------------------------------------------------------------------- generated */

static void write_name(FILE *out, int index)
{
    fprintf(out, "%s-%s", eval_words[index / EVAL_N_WORDS], eval_words[index % EVAL_N_WORDS]);
}

static int add_made(struct eval_run *run, int n_lines, int asked, int tail, int *scratch, int *names, uint64_t *random,
                    struct eval_ids *ids, struct butler_error *err)
{
    char *body = NULL, *ask = NULL, number[8], expected[8] = "";
    size_t n_body = 0, n_ask = 0;
    FILE *out = open_memstream(&body, &n_body), *end = open_memstream(&ask, &n_ask);
    int code = out && end ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the lines");
    if (code == 0) {
        eval_distinct(random, EVAL_N_WORDS * EVAL_N_WORDS, n_lines, scratch, names);
        fputs("Each line below holds a number as its REGISTER_CONTENT. Keep them in mind.\n", out);
        for (int i = 0; i < n_lines; i++) {
            eval_digits(random, 4, number);
            number[0] = number[0] == '0' ? '1' : number[0];
            fputs("line ", out);
            write_name(out, names[i]);
            fprintf(out, ": REGISTER_CONTENT is <%s>\n", number);
            if (i == asked)
                memcpy(expected, number, sizeof expected);
        }
        fputs("\nWhat is the REGISTER_CONTENT of line ", end);
        write_name(end, names[asked]);
        fputs("? The REGISTER_CONTENT in line ", end);
        write_name(end, names[asked]);
        fputs(" is <", end);
    }
    if (out)
        fclose(out);
    if (end)
        fclose(end);
    if (code == 0)
        code = add_item(run, body, ask, expected, tail, ids, err);
    free(body);
    free(ask);
    return code;
}

static int load_made(struct eval_run *run, int tail, struct eval_ids *ids, struct butler_error *err)
{
    uint64_t random = run->seed;
    int n_lines;
    if (eval_option_int(run, "lines", 1, 100000, &n_lines, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    int *scratch = butler_alloc(((size_t)EVAL_N_WORDS * EVAL_N_WORDS + (size_t)n_lines) * sizeof *scratch, err);
    int code = scratch ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; code == 0 && i < (run->limit ? run->limit : 50); i++)
        code = add_made(run, n_lines, (int)((int64_t)i * 7919 % n_lines), tail, scratch, scratch + EVAL_N_WORDS * EVAL_N_WORDS,
                        &random, ids, err);
    free(scratch);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct eval_ids ids = {0};
    int tail;
    if (eval_answer_tail(run, &tail, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "--length: it follows from the number of lines (--set lines=N, or the file)");
    const int code = run->params->data ? load_file(run, tail, &ids, err) : load_made(run, tail, &ids, err);
    eval_ids_free(&ids);
    return code;
}

static const struct eval_option options[] = {
    {"lines", "100", "without --data: lines in a text"},
    EVAL_ANSWER_OPTIONS,
    {NULL, NULL, NULL},
};

const struct eval_task eval_lines = {
    .name = "lines",
    .summary = "the number in one of many lines",
    .details = "--data: JSON lines with prompt, random_idx, expected_number (LongEval); without it lines are made.\n",
    .options = options,
    .limit = 50,
    .load = load,
    .run = eval_answer_run,
    .rows = eval_answer_rows,
};
