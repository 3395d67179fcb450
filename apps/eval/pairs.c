/* Key-value retrieval: a list of pairs, and the value of one key is asked for. Pairs come from the JSON lines of "Lost in the
 * Middle" (ordered_kv_records, key, value) or are generated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

/* The text of a list and its question. In a conversation the question is `ask`, and `lead` begins the answer. */
static const struct template
{
    const char *name, *before, *pair, *last, *ask, *lead, *answer;
}
templates[] = {
    {"lines", "Remember these pairs.\n", "%s: %s\n", "%s: %s\n", "\nWhich value belongs to %s?", "\n%s:", " %s"},
    {"json", "JSON data:\n{", "\"%s\": \"%s\",\n ", "\"%s\": \"%s\"}\n", "\nWhich value belongs to the key \"%s\"?",
     "\nKey: \"%s\"\nValue: \"", "%s"},
};

struct list {
    const struct template *template;
    struct eval_frame frame;
    struct eval_ids ids;
    int n;
    const char **keys, **values; /* [n] */
};

static char *filled(const char *format, const char *text)
{
    char *out = NULL;
    return asprintf(&out, format, text) < 0 ? NULL : out;
}

static int add_item(struct eval_run *run, struct list *list, int asked, struct butler_error *err)
{
    const struct template *template = list->template;
    char *body = NULL;
    size_t n_body = 0;
    FILE *out = open_memstream(&body, &n_body);
    if (!out)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a list of pairs");
    fputs(template->before, out);
    for (int i = 0; i < list->n; i++)
        fprintf(out, i + 1 < list->n ? template->pair : template->last, list->keys[i], list->values[i]);
    const bool written = fclose(out) == 0;
    char *ask = filled(list->frame.chat ? template->ask : "", list->keys[asked]);
    char *lead = filled(template->lead + (list->frame.chat && template->lead[0] == '\n'), list->keys[asked]);
    char *answer = filled(template->answer, list->values[asked]);
    int code = written && ask && lead && answer ? eval_document(&list->ids, run, &list->frame, body, err)
                                                : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a list of pairs");
    if (code == 0)
        code = eval_answer_add(run, &list->frame, &list->ids, &(struct eval_question){ask, lead, answer}, 0, err);
    free(body);
    free(ask);
    free(lead);
    free(answer);
    return code;
}

/* -------------------------------------------------------------------------------------------- from a file */

static int take_record(const struct eval_jsonl *lines, const json_t *pairs, struct list *list, struct butler_error *err)
{
    const size_t n = json_array_size(pairs);
    free(list->keys);
    list->keys = butler_alloc(2 * n * sizeof *list->keys, err);
    if (!list->keys)
        return BUTLER_ERROR_MEMORY;
    list->values = list->keys + n;
    list->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(pairs, i);
        list->keys[i] = json_string_value(json_array_get(pair, 0));
        list->values[i] = json_string_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !list->keys[i] || !list->values[i] || !*list->keys[i] || !*list->values[i])
            return eval_jsonl_fail(lines, "ordered_kv_records", err, "entry %zu is not a pair of two strings", i);
    }
    return 0;
}

static int add_record(struct eval_run *run, const struct eval_jsonl *lines, struct list *list, struct butler_error *err)
{
    json_t *pairs;
    const char *key, *value;
    int asked = -1;
    int code = eval_jsonl_array(lines, "ordered_kv_records", 1, &pairs, err);
    if (code == 0)
        code = eval_jsonl_string(lines, "key", true, &key, err);
    if (code == 0)
        code = eval_jsonl_string(lines, "value", true, &value, err);
    if (code == 0)
        code = take_record(lines, pairs, list, err);
    for (int i = 0; code == 0 && i < list->n; i++)
        if (strcmp(list->keys[i], key) == 0)
            asked = i;
    if (code == 0 && (asked < 0 || strcmp(list->values[asked], value) != 0))
        code = eval_jsonl_fail(lines, asked < 0 ? "key" : "value", err, "not that of a pair in ordered_kv_records");
    return code < 0 ? code : add_item(run, list, asked, err);
}

static int load_file(struct eval_run *run, struct list *list, struct butler_error *err)
{
    struct eval_jsonl lines;
    int code = eval_jsonl_open(run, &lines, run->params->data, err), more = 0;
    while (code == 0 && (run->limit == 0 || run->items.n < run->limit) && (more = eval_jsonl_next(&lines, err)) > 0)
        code = add_record(run, &lines, list, err);
    eval_jsonl_close(&lines);
    return BUTLER_MIN(code, more < 0 ? more : 0);
}

/* ----------------------------------------------------------------------------------------------- generated */

static int add_made(struct eval_run *run, struct list *list, bool numbers, int asked, uint64_t *random, struct butler_error *err)
{
    int scratch[EVAL_N_WORDS], chosen[EVAL_N_WORDS];
    char digits[EVAL_N_WORDS][8];
    eval_distinct(random, EVAL_N_WORDS, list->n, scratch, chosen);
    for (int i = 0; i < list->n; i++) {
        list->keys[i] = eval_words[chosen[i]];
        eval_digits(random, 5, digits[i]);
        list->values[i] = numbers ? digits[i] : eval_words[eval_below(random, EVAL_N_WORDS)];
    }
    return add_item(run, list, asked, err);
}

static int load_made(struct eval_run *run, struct list *list, struct butler_error *err)
{
    const char *style = eval_option_text(run, "style");
    uint64_t random = run->seed;
    if (strcmp(style, "words") != 0 && strcmp(style, "numbers") != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set style: '%s' is neither words nor numbers", style);
    if (eval_option_int(run, "pairs", 1, EVAL_N_WORDS, &list->n, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    list->keys = butler_alloc(2 * (size_t)list->n * sizeof *list->keys, err);
    if (!list->keys)
        return BUTLER_ERROR_MEMORY;
    list->values = list->keys + list->n;
    int code = 0;
    /* Every position in the list is asked for equally often. */
    for (int i = 0; code == 0 && i < (run->limit ? run->limit : 100); i++)
        code = add_made(run, list, strcmp(style, "numbers") == 0, (int)((int64_t)i * 7919 % list->n), &random, err);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct list list = {0};
    const char *name = eval_option_text(run, "template");
    for (int i = 0; i < BUTLER_COUNT(templates); i++)
        if (strcmp(templates[i].name, name) == 0)
            list.template = &templates[i];
    if (!list.template)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set template: '%s' is neither lines nor json", name);
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: the number of pairs decides it (--set pairs=N)");
    int code = eval_frame_init(&list.frame, run, err);
    if (code == 0)
        code = run->params->data ? load_file(run, &list, err) : load_made(run, &list, err);
    free(list.keys);
    eval_ids_free(&list.ids);
    eval_frame_free(&list.frame);
    return code;
}

static const struct eval_option options[] = {
    {"pairs", "20", "without --data: pairs in a list"},
    {"style", "words", "without --data: values are words or numbers"},
    {"template", "lines", "how a list is written: lines (key: value) or json"},
    EVAL_ANSWER_OPTIONS("auto"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_kv = {
    .name = "kv",
    .summary = "the value of one key in a long list of pairs",
    .data = "none; or the JSON lines of Lost in the Middle (MIT)",
    .work = "reads about 6 tokens a pair, decodes 1 to 3; longer with the published keys",
    .details = "--data: JSON lines with ordered_kv_records, key, value (Lost in the Middle); without it pairs are generated.\n",
    .options = options,
    .limit = 100,
    .load = load,
    .run = eval_answer_run,
    .rows = eval_answer_rows,
};
