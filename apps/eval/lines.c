/* Line retrieval (LongEval): many lines, each with a name and a number, and the number of one line is asked for. Lines come from
 * LongEval's JSON lines (prompt, random_idx, expected_number) or are generated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

/* What an item is made with. */
struct maker {
    struct eval_frame frame;
    struct eval_ids ids;
};

/* name: of the line that is asked for. */
static int add_item(struct eval_run *run, struct maker *maker, const char *prompt, const char *ask, const char *name,
                    const char *number, struct butler_error *err)
{
    char *lead = NULL;
    if (asprintf(&lead, " The <REGISTER_CONTENT> in line %s is <", name) < 0)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a line");
    int code = eval_document(&maker->ids, run, &maker->frame, prompt, err);
    if (code == 0)
        code = eval_answer_add(run, &maker->frame, &maker->ids, &(struct eval_question){ask, lead, number}, 0, err);
    free(lead);
    return code;
}

/* The file's prompt ends with its question; this text after it makes the number the continuation. */
static int add_record(struct eval_run *run, const struct eval_jsonl *lines, struct maker *maker, struct butler_error *err)
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
    size_t n_document = n; /* the last line asks */
    while (n_document > 0 && prompt[n_document - 1] != '\n')
        n_document--;
    char *ask = strndup(prompt + n_document, n - n_document), *document = strndup(prompt, n_document), number[32];
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, expected);
    code = ask && document ? add_item(run, maker, document, ask, name, number, err)
                           : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a line");
    free(document);
    free(ask);
    return code;
}

static int load_file(struct eval_run *run, struct maker *maker, struct butler_error *err)
{
    struct eval_jsonl lines;
    int code = eval_jsonl_open(run, &lines, run->params->data, err), more = 0;
    while (code == 0 && (run->limit == 0 || run->items.n < run->limit) && (more = eval_jsonl_next(&lines, err)) > 0)
        code = add_record(run, &lines, maker, err);
    eval_jsonl_close(&lines);
    return BUTLER_MIN(code, more < 0 ? more : 0);
}

/* ----------------------------------------------------------------------------------------------- generated */

static int add_made(struct eval_run *run, struct maker *maker, int n_lines, int asked, int *scratch, int *names, uint64_t *random,
                    struct butler_error *err)
{
    char *body = NULL, name[64], number[8], expected[8] = "", ask[128];
    size_t n_body = 0;
    FILE *out = open_memstream(&body, &n_body);
    if (!out)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the lines");
    eval_distinct(random, EVAL_N_NAMES, n_lines, scratch, names);
    fputs("Each line below holds a number as its REGISTER_CONTENT. Keep them in mind.\n", out);
    for (int i = 0; i < n_lines; i++) {
        eval_digits(random, 4, number);
        number[0] = number[0] == '0' ? '1' : number[0];
        eval_name(names[i], name, sizeof name);
        fprintf(out, "line %s: REGISTER_CONTENT is <%s>\n", name, number);
        if (i == asked)
            memcpy(expected, number, sizeof expected);
    }
    eval_name(names[asked], name, sizeof name);
    snprintf(ask, sizeof ask, "\nWhat is the REGISTER_CONTENT of line %s?", name);
    const int code = fclose(out) == 0 ? add_item(run, maker, body, ask, name, expected, err)
                                      : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the lines");
    free(body);
    return code;
}

static int load_made(struct eval_run *run, struct maker *maker, struct butler_error *err)
{
    uint64_t random = run->seed;
    int n_lines;
    if (eval_option_int(run, "lines", 1, 100000, &n_lines, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    int *scratch = butler_alloc(((size_t)EVAL_N_NAMES + (size_t)n_lines) * sizeof *scratch, err);
    int code = scratch ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; code == 0 && i < (run->limit ? run->limit : 50); i++)
        code = add_made(run, maker, n_lines, (int)((int64_t)i * 7919 % n_lines), scratch, scratch + EVAL_N_NAMES, &random, err);
    free(scratch);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct maker maker = {0};
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "--length: it follows from the number of lines (--set lines=N, or the file)");
    int code = eval_frame_init(&maker.frame, run, err);
    if (code == 0)
        code = run->params->data ? load_file(run, &maker, err) : load_made(run, &maker, err);
    eval_ids_free(&maker.ids);
    eval_frame_free(&maker.frame);
    return code;
}

static const struct eval_option options[] = {
    {"lines", "100", "without --data: lines in a text"},
    EVAL_ANSWER_OPTIONS("auto"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_lines = {
    .name = "lines",
    .summary = "the number in one of many lines",
    .data = "none; or LongEval's JSON lines (Apache-2.0)",
    .work = "reads about 25 tokens a line, decodes 4",
    .details = "--data: JSON lines with prompt, random_idx, expected_number (LongEval); without it lines are made.\n",
    .options = options,
    .limit = 50,
    .load = load,
    .run = eval_answer_run,
    .rows = eval_answer_rows,
};
