/* LongBench, and summaries of news: a long text and a question, an answer generated greedily, and the score of its set. The prompts
 * and scores of the sets are in longbench.json, or in the file that option config names. The middle of a prompt that is too long is
 * removed, as in the benchmark's own program. The prompt is read densely (mode prefill), with its question or, by ask=after,
 * without it; the rest is decoded under the policy. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "score.h"
#include "words.h"

/* One set of the configuration. */
struct set {
    const char *name, *metric, *before, *prompt;
    const char *context, *answer; /* fields of the data; answer NULL: the array "answers" */
    int max_answer, n_shots;      /* n_shots: solved examples before each question */
    bool first_line;              /* only the first line of an answer counts */
    bool chat;                    /* the prompt is a user's turn in the model's chat template */
    bool asks_after;              /* the question is decoded under the policy, after the context was cut */
    int n_template;               /* tokens that the template adds */
    char strings[];               /* that the pointers point into */
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
    static const char *const folders[] = {"apps/eval", "../apps/eval", "../../apps/eval", "../share/butler"};
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
    static const char *const names[][2] = {{"f1", "f1"},     {"rouge_l", "rouge_l"}, {"class", "accuracy"},
                                           {"number", "em"}, {"edit", "edit_sim"},   {"rouge", "rouge_1"}};
    for (int i = 0; i < BUTLER_COUNT(names); i++)
        if (strcmp(names[i][0], metric) == 0)
            return names[i][1];
    return NULL;
}

/* Numbers that an answer is scored by: Rouge-1, Rouge-2 and Rouge-L, or one. */
static int count_scores(const struct set *set)
{
    return strcmp(set->metric, "rouge") == 0 ? EVAL_N_ROUGE : 1;
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
    set->context = json_string_value(json_object_get(entry, "context"));
    set->context = set->context ? set->context : "context";
    set->answer = json_string_value(json_object_get(entry, "answer"));
    set->first_line = json_is_true(json_object_get(entry, "first_line"));
    set->chat = !json_is_false(json_object_get(entry, "chat"));
    if (!set->metric || !metric_name(set->metric))
        return bad_config(set, path, "metric", "it must be f1, rouge_l, class, number, edit or rouge", err);
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
    const char *const strings[] = {from->name, from->metric, from->prompt, from->before, from->context, from->answer};
    size_t n = sizeof *from;
    for (int i = 0; i < BUTLER_COUNT(strings); i++)
        n += strings[i] ? strlen(strings[i]) + 1 : 0;
    struct set *set = butler_alloc(n, err);
    if (!set)
        return NULL;
    char *at = set->strings;
    const char **const kept[] = {&set->name, &set->metric, &set->prompt, &set->before, &set->context, &set->answer};
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
    set->n_shots = from->n_shots;
    return set;
}

/* The protocol of the set's prompts: whether they stand in the chat template, what it adds to them, when the question comes. */
static int use_template(const struct eval_run *run, struct set *set, struct butler_error *err)
{
    bool chat;
    const char *ask = eval_option_text(run, "ask");
    struct eval_ids ids = {0};
    int code = eval_option_chat(run, &chat, err);
    if (code == 0)
        code = eval_option_int(run, "shots", 0, 1000, &set->n_shots, err);
    /* Examples are plain text, each ended by a newline: so is what follows them. */
    set->first_line = set->first_line || set->n_shots > 0;
    set->chat = set->chat && chat && (set->n_shots == 0 || strcmp(eval_option_text(run, "chat"), "on") == 0);
    if (code == 0 && strcmp(ask, "before") != 0 && strcmp(ask, "after") != 0)
        code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set ask: '%s' is not allowed; it takes before, after", ask);
    set->asks_after = strcmp(ask, "after") == 0;
    if (code == 0 && set->chat)
        code = eval_ids_chat(&ids, run->model, "", err);
    set->n_template = ids.n;
    eval_ids_free(&ids);
    return code;
}

/* The set whose field for the text the object has; NULL: none. */
static const char *set_with_field(json_t *config, const json_t *object)
{
    const char *name, *field;
    json_t *entry;
    json_object_foreach(config, name, entry)
    {
        field = json_string_value(json_object_get(entry, "context"));
        if (field && json_object_get(object, field))
            return name;
    }
    return NULL;
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
    int code = BUTLER_ERROR_FORMAT;
    const bool read = (config = read_object(run, path, err)) && (!*prompts_path || (prompts = read_object(run, prompts_path, err)));
    if (!*set.name)
        set.name = json_string_value(json_object_get(first, "dataset"));
    if (read && !set.name && !(set.name = set_with_field(config, first)))
        code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set subset=NAME: %s does not say which set it is (field \"dataset\")",
                           run->params->data);
    else if (read)
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

/* The fields of a question. *answers is owned where this succeeds. */
static int take_fields(const struct set *set, const struct eval_jsonl *lines, const char **context, const char **input,
                       json_t **answers, struct butler_error *err)
{
    const char *answer = NULL;
    *input = "";
    int code = eval_jsonl_string(lines, set->context, true, context, err);
    if (code == 0 && set->answer) {
        code = eval_jsonl_string(lines, set->answer, true, &answer, err);
        *answers = code == 0 ? json_pack("[s]", answer) : NULL;
        return code;
    }
    if (code == 0)
        code = eval_jsonl_string(lines, "input", false, input, err);
    if (code == 0)
        code = eval_jsonl_array(lines, "answers", 1, answers, err);
    for (size_t i = 0; code == 0 && i < json_array_size(*answers); i++)
        if (!json_is_string(json_array_get(*answers, i)))
            code = eval_jsonl_fail(lines, "answers", err, "entry %zu is not a string", i);
    if (code == 0)
        json_incref(*answers);
    return code;
}

/* Writes the current question with its first answer, as an example: the answer on one line, then an empty line. */
static int write_shot(const struct set *set, const struct eval_jsonl *lines, FILE *out, struct butler_error *err)
{
    const char *context, *input;
    json_t *answers = NULL;
    int code = take_fields(set, lines, &context, &input, &answers, err);
    char *text = code == 0 ? fill(set->prompt, context, input, err) : NULL;
    if (text) {
        fprintf(out, "%s ", text);
        for (const char *at = json_string_value(json_array_get(answers, 0)); *at; at++)
            fputc(*at == '\n' ? ' ' : *at, out);
        fputs("\n\n", out);
    } else if (code == 0)
        code = BUTLER_ERROR_MEMORY;
    if (code == 0)
        json_decref(answers);
    free(text);
    return code;
}

/* shots: examples before the prompt. answers is borrowed. */
static int add_prompt(struct eval_run *run, const struct set *set, const char *shots, const char *context, const char *input,
                      const json_t *answers, const json_t *classes, struct butler_error *err)
{
    struct eval_ids ids = {0};
    const int length = run->length - set->n_template;
    char *prompt = fill(set->prompt, context, input, err), *text = NULL;
    int code = prompt ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0 && asprintf(&text, "%s%s", shots, prompt) < 0) {
        text = NULL;
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a prompt");
    }
    free(prompt);
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
        *(struct question *)item->own = (struct question){json_deep_copy(answers), classes ? json_deep_copy(classes) : NULL};
    } else if (code == 0)
        code = BUTLER_ERROR_MEMORY;
    eval_ids_free(&ids);
    free(text);
    return code;
}

static int add_question(struct eval_run *run, const struct set *set, const char *shots, const struct eval_jsonl *lines,
                        struct butler_error *err)
{
    const char *context, *input;
    json_t *answers, *classes = json_object_get(lines->object, "all_classes");
    int code = take_fields(set, lines, &context, &input, &answers, err);
    if (code < 0)
        return code;
    const bool wants_classes = strcmp(set->metric, "class") == 0;
    if (wants_classes && json_array_size(classes) == 0)
        code = eval_jsonl_fail(lines, "all_classes", err, "not an array of classes");
    for (size_t i = 0; wants_classes && code == 0 && i < json_array_size(classes); i++)
        if (!json_is_string(json_array_get(classes, i)))
            code = eval_jsonl_fail(lines, "all_classes", err, "entry %zu is not a string", i);
    if (code == 0)
        code = add_prompt(run, set, shots, context, input, answers, wants_classes ? classes : NULL, err);
    json_decref(answers);
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
    run->n_values = count_scores(set) + 1;
    run->length = run->length ? run->length : run->info->n_ctx_train - set->max_answer;
    if (run->length < 2 + set->n_template)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: %d tokens of prompt are too few (%d more are for the answer)",
                           run->length, set->max_answer);
    return 0;
}

/* Writes n examples from the file of option examples. */
static int read_examples(struct eval_run *run, const struct set *set, const char *path, FILE *out, struct butler_error *err)
{
    struct eval_jsonl lines;
    int code = eval_jsonl_open(run, &lines, path, err);
    if (code < 0)
        return code;
    for (int i = 0; i < set->n_shots && code == 0; i++) {
        code = eval_jsonl_next(&lines, err);
        if (code == 0)
            code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %d examples, but --set shots is %d", path, i, set->n_shots);
        if (code > 0)
            code = write_shot(set, &lines, out, err);
    }
    eval_jsonl_close(&lines);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct eval_jsonl lines;
    const char *examples = eval_option_text(run, "examples");
    char *shots = NULL;
    size_t n_shots = 0;
    if (!run->params->data)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--data: %s needs a JSONL file", run->task->name);
    FILE *out = open_memstream(&shots, &n_shots);
    if (!out)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for examples");
    int code = eval_jsonl_open(run, &lines, run->params->data, err), n_solved = 0;
    while (code >= 0 && (run->limit == 0 || run->items.n < run->limit) && (code = eval_jsonl_next(&lines, err)) > 0) {
        if (!run->own) {
            code = begin(run, lines.object, err);
            if (code == 0 && *examples)
                code = read_examples(run, run->own, examples, out, err);
            if (code < 0)
                break;
        }
        const struct set *set = run->own;
        if (!*examples && n_solved < set->n_shots) { /* the data's first questions are the examples */
            code = write_shot(set, &lines, out, err);
            n_solved++;
        } else
            code = fflush(out) == 0 ? add_question(run, set, shots, &lines, err)
                                    : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for examples");
    }
    eval_jsonl_close(&lines);
    fclose(out);
    free(shots);
    return BUTLER_MIN(code, 0);
}

/* ------------------------------------------------------------------------------------------------- answers */

/* The best scores over the right answers into best[count_scores(set)]. */
static int score_answer(const struct set *set, const struct question *question, const char *answer, double *best,
                        struct butler_error *err)
{
    const int n_classes = (int)json_array_size(question->classes), n_scores = count_scores(set);
    const char **classes = butler_alloc((size_t)n_classes * sizeof *classes, err);
    int code = classes ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n_classes && code == 0; i++)
        classes[i] = json_string_value(json_array_get(question->classes, (size_t)i));
    for (size_t i = 0; i < json_array_size(question->answers) && code == 0; i++) {
        const char *right = json_string_value(json_array_get(question->answers, i));
        double scores[EVAL_N_ROUGE] = {0};
        code = n_scores > 1                          ? eval_score_rouge(answer, right, scores, err)
               : strcmp(set->metric, "f1") == 0      ? eval_score_f1(answer, right, scores, err)
               : strcmp(set->metric, "rouge_l") == 0 ? eval_score_rouge_l(answer, right, scores, err)
               : strcmp(set->metric, "class") == 0   ? eval_score_class(answer, right, classes, n_classes, scores, err)
               : strcmp(set->metric, "number") == 0  ? eval_score_number(answer, right, set->before, scores, err)
                                                     : eval_score_edit(answer, right, scores, err);
        for (int k = 0; k < n_scores; k++)
            best[k] = BUTLER_MAX(best[k], scores[k]);
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
    trial->values[trial->run->n_values - 1] = 1;
    if (code == 0)
        code = score_answer(set, trial->item->own, set->first_line ? first_line(trial->output) : trial->output, &trial->values[0],
                            err);
    return code;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    static const char *const rouge[EVAL_N_ROUGE] = {"rouge_1", "rouge_2", "rouge_l"};
    const struct set *set = run->own;
    const int n = count_scores(set);
    (void)err;
    for (int k = 0; k < n; k++)
        out[k] = eval_mean_row(run, n > 1 ? rouge[k] : metric_name(set->metric), values, k);
    return n;
}

static const struct eval_option options[] = {
    {"subset", "", "the set, as the configuration names it; without it, from the data's first line"},
    {"shots", "0", "solved questions before each: the first of examples, or of the data, where they are then not asked"},
    {"examples", "", "a file of the same form for shots"},
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

const struct eval_task eval_summary = {
    .name = "summary",
    .summary = "summaries of news (XSum, CNN/DailyMail), written greedily",
    .data = "JSONL of XSum (its authors name no licence) or CNN/DailyMail (Apache-2.0); the articles are the publishers'",
    .work = "reads the article, and N more with --shots N; decodes up to 64 (XSum) or 128 tokens",
    .details = "--data: document and summary, or article and highlights, in each line; --length, --limit as in longbench.\n",
    .options = options,
    .load = load,
    .run = measure,
    .rows = rows,
    .free_own = free_question,
};
