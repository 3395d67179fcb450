/* LongBench: a long text and a question, an answer generated greedily, and the score of its set. The prompts and scores of the
 * sets are in longbench.json, or in the file that option config names. The middle of a prompt that is too long is removed, as in
 * the benchmark's own program. The prompt is read densely (mode prefill), with its question or, by ask=after, without it; the rest
 * is decoded under the policy. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "score.h"
#include "words.h"

/* One set of the configuration. */
struct set {
    const char *name, *metric, *before, *prompt;
    int max_answer;
    bool first_line; /* only the first line of an answer counts */
    bool chat;       /* the prompt is a user's turn in the model's chat template */
    bool asks_after; /* the question is decoded under the policy, after the context was cut */
    int n_template;  /* tokens that the template adds */
    char strings[];  /* that the pointers point into */
};

struct question {
    json_t *answers, *classes; /* classes: NULL where the set has none */
};

static void free_question(void *own)
{
    struct question *question = own;
    if (question) {
        json_decref(question->answers);
        json_decref(question->classes);
    }
    free(question);
}

/* ------------------------------------------------------------------------------------------- configuration */

/* The file that comes with the command: beside its source, or where it is installed. */
static bool find_config(char *path, size_t n_path)
{
    static const char *const folders[] = {"eval", "../eval", "../../eval", "../share/butler"};
    return butler_find_file("longbench.json", folders, BUTLER_COUNT(folders), path, n_path);
}

/* A JSON object in a file. Owned. */
static json_t *read_object(struct eval_run *run, const char *path, struct butler_error *err)
{
    struct eval_text text;
    json_error_t fault;
    if (eval_text_read(run, path, &text, err) < 0)
        return NULL;
    json_t *out = json_loadb(text.bytes, text.n, 0, &fault);
    eval_text_free(&text);
    if (!out)
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not JSON: %s (column %d)", path, fault.line, fault.text, fault.column);
    else if (!json_is_object(out)) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s:1: not a JSON object", path);
        json_decref(out);
        out = NULL;
    }
    return out;
}

static const char *metric_name(const char *metric)
{
    static const char *const names[][2] = {
        {"f1", "f1"}, {"rouge_l", "rouge_l"}, {"class", "accuracy"}, {"number", "em"}, {"edit", "edit_sim"}};
    for (int i = 0; i < BUTLER_COUNT(names); i++)
        if (strcmp(names[i][0], metric) == 0)
            return names[i][1];
    return NULL;
}

static int bad_config(const struct set *set, const char *path, const char *field, const char *what, struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: \"%s\": field \"%s\": %s", path, set->name, field, what);
}

/* prompts: the benchmark's own file, {name: prompt}, or NULL. Strings are borrowed from both. */
static int take_config(struct set *set, const char *path, const json_t *config, const json_t *prompts, struct butler_error *err)
{
    const json_t *entry = json_object_get(config, set->name), *max_answer = json_object_get(entry, "max_answer");
    if (!entry)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set subset: '%s' is not in %s", set->name, path);
    set->metric = json_string_value(json_object_get(entry, "metric"));
    set->before = json_string_value(json_object_get(entry, "before"));
    set->first_line = json_is_true(json_object_get(entry, "first_line"));
    set->chat = !json_is_false(json_object_get(entry, "chat"));
    if (!set->metric || !metric_name(set->metric))
        return bad_config(set, path, "metric", "it must be f1, rouge_l, class, number or edit", err);
    if (!json_is_integer(max_answer) || json_integer_value(max_answer) < 1 || json_integer_value(max_answer) > 1 << 20)
        return bad_config(set, path, "max_answer", "it must be a whole number of tokens, 1 or more", err);
    set->max_answer = (int)json_integer_value(max_answer);
    set->prompt = json_string_value(prompts ? json_object_get(prompts, set->name) : json_object_get(entry, "prompt"));
    if (set->prompt && strstr(set->prompt, "{context}"))
        return 0;
    return bad_config(set, path, "prompt", "there must be one, with {context} in it", err);
}

/* A copy of the set with its strings, in one allocation. */
static struct set *keep_set(const struct set *from, struct butler_error *err)
{
    const char *const strings[] = {from->name, from->metric, from->prompt, from->before};
    size_t n = sizeof *from;
    for (int i = 0; i < BUTLER_COUNT(strings); i++)
        n += strings[i] ? strlen(strings[i]) + 1 : 0;
    struct set *set = butler_alloc(n, err);
    if (!set)
        return NULL;
    char *at = set->strings;
    const char **const kept[] = {&set->name, &set->metric, &set->prompt, &set->before};
    for (int i = 0; i < BUTLER_COUNT(strings); i++)
        if (strings[i]) {
            *kept[i] = at;
            at = stpcpy(at, strings[i]) + 1;
        }
    set->max_answer = from->max_answer;
    set->first_line = from->first_line;
    set->chat = from->chat;
    set->asks_after = from->asks_after;
    set->n_template = from->n_template;
    return set;
}

/* The protocol of the set's prompts: whether they stand in the chat template, what it adds to them, when the question comes. */
static int use_template(const struct eval_run *run, struct set *set, struct butler_error *err)
{
    bool chat;
    const char *ask = eval_option_text(run, "ask");
    struct eval_ids ids = {0};
    int code = eval_option_chat(run, &chat, err);
    set->chat = set->chat && chat;
    if (code == 0 && strcmp(ask, "before") != 0 && strcmp(ask, "after") != 0)
        code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set ask: '%s' is not allowed; it takes before, after", ask);
    set->asks_after = strcmp(ask, "after") == 0;
    if (code == 0 && set->chat)
        code = eval_ids_chat(&ids, run->model, "", err);
    set->n_template = ids.n;
    eval_ids_free(&ids);
    return code;
}

/* Finds the set, by option or by the data's first line. */
static int load_set(struct eval_run *run, const json_t *first, struct butler_error *err)
{
    char found[PATH_MAX + 64];
    const char *path = eval_option_text(run, "config"), *prompts_path = eval_option_text(run, "prompts");
    struct set set = {.name = eval_option_text(run, "subset")};
    json_t *config = NULL, *prompts = NULL;
    if (!*path && !find_config(found, sizeof found))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "--set config=FILE: longbench.json is not where the command was built or "
                           "installed");
    path = *path ? path : found;
    if (!*set.name)
        set.name = json_string_value(json_object_get(first, "dataset"));
    if (!set.name)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "--set subset=NAME: %s does not say which set of LongBench it is (field "
                           "\"dataset\")",
                           run->params->data);
    int code = BUTLER_ERROR_FORMAT;
    if ((config = read_object(run, path, err)) && (!*prompts_path || (prompts = read_object(run, prompts_path, err))))
        code = take_config(&set, *prompts_path ? prompts_path : path, config, prompts, err);
    if (code == 0)
        code = use_template(run, &set, err);
    if (code == 0 && !(run->own = keep_set(&set, err)))
        code = BUTLER_ERROR_MEMORY;
    json_decref(config);
    json_decref(prompts);
    return code;
}

/* ------------------------------------------------------------------------------------------------- prompts */

/* The prompt with its placeholders replaced. Owned. */
static char *fill(const char *prompt, const char *context, const char *input, struct butler_error *err)
{
    size_t n = 1;
    for (const char *at = prompt; *at; at++)
        n += 1 + (*at == '{' ? BUTLER_MAX(strlen(context), strlen(input)) : 0);
    char *out = butler_alloc(n, err), *to = out;
    for (const char *at = prompt; out && *at;) {
        const bool is_context = strncmp(at, "{context}", 9) == 0, is_input = strncmp(at, "{input}", 7) == 0;
        if (is_context || is_input)
            to = stpcpy(to, is_context ? context : input);
        else
            *to++ = *at;
        at += is_context ? 9 : is_input ? 7 : 1;
    }
    return out;
}

/* Bytes of the text of ids[n]. */
static size_t bytes_of(const struct eval_run *run, const int32_t *ids, int n)
{
    size_t sum = 0, n_bytes;
    for (int i = 0; i < n; i++)
        if (butler_token_bytes(run->model, ids[i], &n_bytes))
            sum += n_bytes;
    return sum;
}

/* Keeps the text of the first and the last half of `length` tokens. */
static int cut_middle(const struct eval_run *run, char *text, int length, int n_begin, struct eval_ids *ids,
                      struct butler_error *err)
{
    const int half = length / 2;
    const size_t n = strlen(text), all = bytes_of(run, ids->ids + n_begin, ids->n - n_begin);
    const size_t added = all > n ? all - n : 0; /* the space that the vocabulary adds in front */
    size_t head = bytes_of(run, ids->ids + n_begin, half - n_begin), tail = bytes_of(run, ids->ids + ids->n - half, half);
    head = BUTLER_MIN(head > added ? head - added : 0, n);
    tail = BUTLER_MIN(tail, n - head);
    memmove(text + head, text + n - tail, tail + 1);
    ids->n = n_begin;
    return eval_ids_text(ids, run->model, text, err);
}

/* Tokens of a prompt into ids. */
static int prompt_ids(const struct eval_run *run, const struct set *set, const char *text, struct eval_ids *ids,
                      struct butler_error *err)
{
    int code = eval_ids_begin(ids, run->model, err);
    if (set->chat) {
        ids->n = 0;
        return eval_ids_chat(ids, run->model, text, err);
    }
    return code < 0 ? code : eval_ids_text(ids, run->model, text, err);
}

/* The number of tokens of ids, made from text, that are the same whatever question follows the context. */
static int count_document(const struct eval_run *run, const struct set *set, char *text, const char *input,
                          const struct eval_ids *ids, int *n, struct butler_error *err)
{
    struct eval_ids document = {0};
    char *question = fill(strstr(set->prompt, "{context}") + strlen("{context}"), "", input, err);
    if (!question)
        return BUTLER_ERROR_MEMORY;
    const size_t n_text = strlen(text), n_question = BUTLER_MIN(strlen(question), n_text);
    free(question);
    text[n_text - n_question] = 0;
    const int code = prompt_ids(run, set, text, &document, err);
    for (*n = 0; code == 0 && *n < document.n && *n + 1 < ids->n && document.ids[*n] == ids->ids[*n];)
        ++*n;
    eval_ids_free(&document);
    return code;
}

static int add_question(struct eval_run *run, const struct set *set, const struct eval_jsonl *lines, struct butler_error *err)
{
    const char *context, *input;
    json_t *answers, *classes = json_object_get(lines->object, "all_classes");
    int code;
    if ((code = eval_jsonl_string(lines, "context", true, &context, err)) < 0 ||
        (code = eval_jsonl_string(lines, "input", false, &input, err)) < 0 ||
        (code = eval_jsonl_array(lines, "answers", 1, &answers, err)) < 0)
        return code;
    for (size_t i = 0; i < json_array_size(answers); i++)
        if (!json_is_string(json_array_get(answers, i)))
            return eval_jsonl_fail(lines, "answers", err, "entry %zu is not a string", i);
    const bool wants_classes = strcmp(set->metric, "class") == 0;
    if (wants_classes && json_array_size(classes) == 0)
        return eval_jsonl_fail(lines, "all_classes", err, "not an array of classes");
    for (size_t i = 0; wants_classes && i < json_array_size(classes); i++)
        if (!json_is_string(json_array_get(classes, i)))
            return eval_jsonl_fail(lines, "all_classes", err, "entry %zu is not a string", i);
    const int length = run->length - set->n_template;
    struct eval_ids ids = {0};
    char *text = fill(set->prompt, context, input, err);
    code = text ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = eval_ids_begin(&ids, run->model, err);
    const int n_begin = ids.n;
    if (code == 0)
        code = eval_ids_text(&ids, run->model, text, err);
    if (code == 0 && ids.n > length)
        code = cut_middle(run, text, length, n_begin, &ids, err);
    if (code == 0 && set->chat)
        code = prompt_ids(run, set, text, &ids, err);
    int n_prompt = ids.n;
    if (code == 0 && set->asks_after)
        code = count_document(run, set, text, input, &ids, &n_prompt, err);
    struct eval_item *item = code == 0 ? eval_item_add(run, ids.ids, ids.n, n_prompt, err) : NULL;
    if (item && (item->own = butler_alloc(sizeof(struct question), err))) {
        item->n_extra = set->max_answer;
        item->repeats_last = !set->asks_after;
        *(struct question *)item->own = (struct question){json_deep_copy(answers), wants_classes ? json_deep_copy(classes) : NULL};
    } else if (code == 0)
        code = BUTLER_ERROR_MEMORY;
    eval_ids_free(&ids);
    free(text);
    return code;
}

/* Reads the configuration when the first question names its set. */
static int begin(struct eval_run *run, const json_t *first, struct butler_error *err)
{
    const int code = load_set(run, first, err);
    if (code < 0)
        return code;
    const struct set *set = run->own;
    run->subset = set->name;
    run->n_values = 2;
    run->length = run->length ? run->length : run->info->n_ctx_train - set->max_answer;
    if (run->length < 2 + set->n_template)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: %d tokens of prompt are too few (%d more are for the answer)",
                           run->length, set->max_answer);
    return 0;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct eval_jsonl lines;
    if (!run->params->data)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--data: longbench needs a JSONL file of its questions");
    int code = eval_jsonl_open(run, &lines, run->params->data, err);
    if (code < 0)
        return code;
    while ((run->limit == 0 || run->items.n < run->limit) && (code = eval_jsonl_next(&lines, err)) > 0) {
        if (!run->own && (code = begin(run, lines.object, err)) < 0)
            break;
        if ((code = add_question(run, run->own, &lines, err)) < 0)
            break;
    }
    eval_jsonl_close(&lines);
    return BUTLER_MIN(code, 0);
}

/* ------------------------------------------------------------------------------------------------- answers */

static int score_answer(const struct set *set, const struct question *question, const char *answer, double *best,
                        struct butler_error *err)
{
    const int n_classes = (int)json_array_size(question->classes);
    const char **classes = butler_alloc((size_t)n_classes * sizeof *classes, err);
    int code = classes ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n_classes && code == 0; i++)
        classes[i] = json_string_value(json_array_get(question->classes, (size_t)i));
    *best = 0;
    for (size_t i = 0; i < json_array_size(question->answers) && code == 0; i++) {
        const char *right = json_string_value(json_array_get(question->answers, i));
        double score = 0;
        code = strcmp(set->metric, "f1") == 0        ? eval_score_f1(answer, right, &score, err)
               : strcmp(set->metric, "rouge_l") == 0 ? eval_score_rouge_l(answer, right, &score, err)
               : strcmp(set->metric, "class") == 0   ? eval_score_class(answer, right, classes, n_classes, &score, err)
               : strcmp(set->metric, "number") == 0  ? eval_score_number(answer, right, set->before, &score, err)
                                                     : eval_score_edit(answer, right, &score, err);
        *best = BUTLER_MAX(*best, score);
    }
    free(classes);
    return code;
}

/* The first line that is not empty. In place. */
static char *first_line(char *text)
{
    text += strspn(text, "\n");
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* Whether the line that counts is complete. */
static bool is_complete(const struct eval_trial *trial, const char *text)
{
    const struct set *set = trial->run->own;
    const char *line = text + strspn(text, "\n");
    return set->first_line && *line && strchr(line, '\n');
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct set *set = trial->run->own;
    int code = eval_generate(trial, set->max_answer, is_complete, err);
    trial->values[1] = 1;
    if (code == 0)
        code = score_answer(set, trial->item->own, set->first_line ? first_line(trial->output) : trial->output, &trial->values[0],
                            err);
    return code;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    (void)err;
    out[0] = eval_mean_row(run, metric_name(((const struct set *)run->own)->metric), values, 0);
    return 1;
}

static const struct eval_option options[] = {
    {"subset", "", "the set of LongBench; without it, from the data's first line"},
    {"config", "", "metrics, answer lengths and prompts; without it, the longbench.json that comes with the command"},
    {"chat", "auto", "the model's chat template: auto (where it has one), on, off; few-shot and code sets never have it"},
    {"ask", "before", "before: the policy sees the question before it cuts; after: it cuts the text, then is asked"},
    {"prompts", "", "the benchmark's own file of prompts ({\"SET\": \"TEXT\"}), in place of ours"},
    EVAL_COMMON_OPTIONS,
    {NULL, NULL, NULL},
};

const struct eval_task eval_longbench = {
    .name = "longbench",
    .summary = "LongBench's questions about long texts, answered greedily",
    .data = "the JSONL of a set of LongBench (MIT; its texts have their own licences)",
    .work = "reads up to --length tokens, decodes 32 to 512",
    .details = "--data is one set's JSONL file, --length the longest prompt in tokens (what is longer loses its middle), --limit\n"
               "questions.\n",
    .options = options,
    .load = load,
    .run = measure,
    .rows = rows,
    .free_own = free_question,
};
