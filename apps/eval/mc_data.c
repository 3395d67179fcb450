/* The eight data sets of eval mc: the fields of each format, and the text that lm-evaluation-harness adds around them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mc.h"
#include "words.h"

const char *mc_kind_name(enum mc_kind kind)
{
    static const char *const names[MC_N_KINDS] = {"hellaswag", "piqa",    "arc_easy", "winogrande",
                                                  "boolq",     "lambada", "bbh",      "mmlu_pro"};
    return names[kind];
}

void mc_question_clear(struct mc_question *question)
{
    for (int i = 0; i < MC_MAX_CHOICES; i++) {
        free(question->contexts[i]);
        free(question->answers[i]);
    }
    memset(question, 0, sizeof *question);
}

/* a, b, c and d concatenated. Owned. */
static char *join(const char *a, const char *b, const char *c, const char *d)
{
    char *out = NULL;
    return asprintf(&out, "%s%s%s%s", a, b, c, d) < 0 ? NULL : out;
}

/* Adds a choice: takes ownership of context, copies the other strings. */
static int add_choice(struct mc_question *question, char *context, const char *choice, struct butler_error *err)
{
    const int i = question->n_choices++;
    question->contexts[i] = context;
    question->answers[i] = join(" ", choice, "", "");
    question->n_characters[i] = eval_count_characters(choice);
    return context && question->answers[i] ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
}

/* A string in an array of the current object. */
static int element(const struct eval_jsonl *lines, const char *field, const json_t *array, size_t i, const char **out,
                   struct butler_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s[%zu]", field, i);
    const json_t *value = json_array_get(array, i);
    if (!json_is_string(value))
        return eval_jsonl_fail(lines, name, err, "not a string");
    *out = json_string_value(value);
    return **out ? 0 : eval_jsonl_fail(lines, name, err, "empty");
}

static int choices_of(const struct eval_jsonl *lines, const char *field, json_t **out, struct butler_error *err)
{
    const int code = eval_jsonl_array(lines, field, 2, out, err);
    if (code == 0 && json_array_size(*out) > MC_MAX_CHOICES)
        return eval_jsonl_fail(lines, field, err, "%zu entries, at most %d are supported", json_array_size(*out), MC_MAX_CHOICES);
    return code;
}

/* A label: a whole number, or one written as text, from first to first + n - 1; *gold counts from 0. */
static int label_of(const struct eval_jsonl *lines, const char *field, int first, size_t n, int *gold, struct butler_error *err)
{
    const json_t *value = json_object_get(lines->object, field);
    json_int_t label = json_integer_value(value);
    if (json_is_string(value)) {
        char *end;
        const char *text = json_string_value(value);
        label = strtol(text, &end, 10);
        if (end == text || *end)
            return eval_jsonl_fail(lines, field, err, "'%.40s' is not a whole number", text);
    } else if (!json_is_integer(value))
        return eval_jsonl_fail(lines, field, err, value ? "not a whole number" : "missing");
    if (label < first || label >= first + (json_int_t)n)
        return eval_jsonl_fail(lines, field, err, "%" JSON_INTEGER_FORMAT " is not between %d and %d", label, first,
                               first + (int)n - 1);
    *gold = (int)label - first;
    return 0;
}

/* Every choice after the same context. */
static int add_choices(const struct eval_jsonl *lines, const char *field, const json_t *choices, const char *context,
                       struct mc_question *question, struct butler_error *err)
{
    const char *choice = NULL;
    int code = 0;
    for (size_t i = 0; code == 0 && i < json_array_size(choices); i++)
        if ((code = element(lines, field, choices, i, &choice, err)) == 0)
            code = add_choice(question, strdup(context), choice, err);
    return code;
}

/* ----------------------------------------------------------------------------------------------- HellaSwag */

/* Removes markers of the WikiHow part: " [title]" ends a sentence, other brackets are deleted, then double spaces become one.
 * Owned. */
static char *clean(const char *text)
{
    static const char title[] = " [title]";
    const struct eval_span span = eval_strip((struct eval_span){text, strlen(text)});
    char *out = malloc(span.n + 1), *to = out;
    if (!out)
        return NULL;
    for (size_t i = 0; i < span.n;) {
        const bool is_title = span.n - i >= sizeof title - 1 && memcmp(span.bytes + i, title, sizeof title - 1) == 0;
        if (is_title)
            to = stpcpy(to, ". ");
        else
            *to++ = span.bytes[i];
        i += is_title ? sizeof title - 1 : 1;
    }
    *to = 0;
    char *from = to = out;
    while (*from) {
        const size_t n = *from == '[' ? strcspn(from, "]\n") : 0;
        if (n > 0 && from[n] == ']')
            from += n + 1;
        else
            *to++ = *from++;
    }
    *to = 0;
    for (from = to = out; *from; from += from[0] == ' ' && from[1] == ' ' ? 2 : 1)
        *to++ = *from;
    *to = 0;
    return out;
}

static int add_ending(struct mc_question *question, const char *context, const char *ending, struct butler_error *err)
{
    char *choice = clean(ending);
    const int code = choice ? add_choice(question, strdup(context), choice, err)
                            : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    free(choice);
    return code;
}

/* Six lines: the context, the index of the correct ending, four endings. */
static int next_plain(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    enum { N = 4 };
    static const char *const fields[] = {"context", "label", "ending 0", "ending 1", "ending 2", "ending 3"};
    struct eval_jsonl *lines = &reader->lines;
    char *context = NULL;
    int code = 0;
    if (lines->at >= lines->text.n)
        return 0;
    for (int i = 0; i < 2 + N && code == 0; i++) {
        char *line = lines->text.bytes + lines->at;
        lines->line++;
        if (lines->at >= lines->text.n)
            code = eval_jsonl_fail(lines, fields[i], err, "missing: the file ends inside an item of six lines");
        else {
            const size_t n = strcspn(line, "\n");
            lines->at += n + (line[n] == '\n');
            line[n] = 0;
            if (eval_strip((struct eval_span){line, n}).n == 0)
                code = eval_jsonl_fail(lines, fields[i], err, "empty");
            else if (i == 0)
                context = clean(line);
            else if (i > 1)
                code = add_ending(question, context, line, err);
            else if (line[0] < '0' || line[0] >= '0' + N || line[1 + (line[1] == '\r')])
                code = eval_jsonl_fail(lines, fields[i], err, "'%.40s' is not the index of an ending, 0 to 3", line);
            else
                question->gold = line[0] - '0';
        }
        if (code == 0 && !context)
            code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    }
    free(context);
    return code < 0 ? code : 1;
}

static int hellaswag(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *a, *b, *activity, *ending = NULL;
    json_t *endings;
    int code;
    if ((code = eval_jsonl_string(lines, "ctx_a", false, &a, err)) < 0 ||
        (code = eval_jsonl_string(lines, "ctx_b", false, &b, err)) < 0 ||
        (code = eval_jsonl_string(lines, "activity_label", false, &activity, err)) < 0 ||
        (code = choices_of(lines, "endings", &endings, err)) < 0 ||
        (code = label_of(lines, "label", 0, json_array_size(endings), &question->gold, err)) < 0)
        return code;
    char *capital = eval_lower((struct eval_span){b, strlen(b)}, true, err);
    char *context = capital ? join(a, " ", capital, "") : NULL, *query = context ? join(activity, ": ", context, "") : NULL;
    char *cleaned = query ? clean(query) : NULL;
    code = cleaned ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    for (size_t i = 0; code == 0 && i < json_array_size(endings); i++)
        if ((code = element(lines, "endings", endings, i, &ending, err)) == 0)
            code = add_ending(question, cleaned, ending, err);
    free(capital);
    free(context);
    free(query);
    free(cleaned);
    return code;
}

/* -------------------------------------------------------------------------------------------------- the others */

static int next_piqa_label(struct mc_reader *reader, int *gold, struct butler_error *err)
{
    const char *line = reader->labels.bytes + reader->labels_at;
    reader->n_labels++;
    if (reader->labels_at >= reader->labels.n)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: missing: the labels end before the questions of %s",
                           reader->labels_path, reader->n_labels, reader->lines.path);
    const size_t n = strcspn(line, "\n"), n_label = n - (n > 0 && line[n - 1] == '\r');
    if (n_label != 1 || (line[0] != '0' && line[0] != '1'))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: '%.*s' is not a label, 0 or 1", reader->labels_path, reader->n_labels,
                           (int)BUTLER_MIN(n, 40), line);
    *gold = line[0] - '0';
    reader->labels_at += n + 1;
    return 0;
}

static int piqa(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *goal, *solution;
    int code = eval_jsonl_string(lines, "goal", true, &goal, err);
    for (int i = 0; i < 2 && code == 0; i++)
        if ((code = eval_jsonl_string(lines, i ? "sol2" : "sol1", true, &solution, err)) == 0)
            code = add_choice(question, join("Question: ", goal, "\nAnswer:", ""), solution, err);
    if (code < 0)
        return code;
    return reader->labels.bytes ? next_piqa_label(reader, &question->gold, err)
                                : label_of(lines, "label", 0, 2, &question->gold, err);
}

/* The format of MosaicML's llm-foundry: query, choices, gold. skip: text at the beginning of the query that the harness does not
 * have. */
static int query_form(const struct eval_jsonl *lines, const char *skip, struct mc_question *question, struct butler_error *err)
{
    const char *query;
    json_t *choices;
    int code;
    if ((code = eval_jsonl_string(lines, "query", true, &query, err)) < 0 ||
        (code = choices_of(lines, "choices", &choices, err)) < 0 ||
        (code = label_of(lines, "gold", 0, json_array_size(choices), &question->gold, err)) < 0)
        return code;
    if (strncmp(query, skip, strlen(skip)) == 0)
        query += strlen(skip);
    char *context = join(query, "\nAnswer:", "", "");
    code = context ? add_choices(lines, "choices", choices, context, question, err)
                   : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    free(context);
    return code;
}

/* AI2's own format: {"question", "choices": {"text": [], "label": []}, "answerKey"}. */
static int arc_easy(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *stem, *key, *label = NULL;
    if (json_object_get(lines->object, "query"))
        return query_form(lines, "", question, err);
    int code = eval_jsonl_string(lines, "question", true, &stem, err);
    if (code == 0)
        code = eval_jsonl_string(lines, "answerKey", true, &key, err);
    if (code < 0)
        return code;
    const json_t *choices = json_object_get(lines->object, "choices");
    const json_t *texts = json_object_get(choices, "text"), *labels = json_object_get(choices, "label");
    const size_t n = json_array_size(texts);
    if (!choices)
        return eval_jsonl_fail(lines, "choices", err, "missing");
    if (n < 2 || n > MC_MAX_CHOICES || json_array_size(labels) != n)
        return eval_jsonl_fail(lines, "choices", err, "needs \"text\" and \"label\", arrays of the same 2 to %d entries",
                               MC_MAX_CHOICES);
    question->gold = -1;
    for (size_t i = 0; i < n && code == 0; i++)
        if ((code = element(lines, "choices.label", labels, i, &label, err)) == 0 && strcmp(label, key) == 0)
            question->gold = (int)i;
    if (code == 0 && question->gold < 0)
        return eval_jsonl_fail(lines, "answerKey", err, "'%.40s' is none of the labels", key);
    char *context = code == 0 ? join("Question: ", stem, "\nAnswer:", "") : NULL;
    if (code == 0)
        code = context ? add_choices(lines, "choices.text", texts, context, question, err)
                       : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    free(context);
    return code;
}

/* Partial scoring: each option is inserted into the context, and the text after it is scored. */
static int winogrande(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *sentence, *option;
    json_t *contexts;
    int code;
    if (json_object_get(lines->object, "context_options")) {
        if ((code = choices_of(lines, "context_options", &contexts, err)) < 0 ||
            (code = eval_jsonl_string(lines, "continuation", true, &sentence, err)) < 0 ||
            (code = label_of(lines, "gold", 0, json_array_size(contexts), &question->gold, err)) < 0)
            return code;
        for (size_t i = 0; i < json_array_size(contexts) && code == 0; i++)
            if ((code = element(lines, "context_options", contexts, i, &option, err)) == 0)
                code = add_choice(question, strdup(option), sentence, err);
        return code;
    }
    if ((code = eval_jsonl_string(lines, "sentence", true, &sentence, err)) < 0 ||
        (code = label_of(lines, "answer", 1, 2, &question->gold, err)) < 0)
        return code;
    const char *gap = strchr(sentence, '_');
    if (!gap)
        return eval_jsonl_fail(lines, "sentence", err, "no gap (_) in it");
    const struct eval_span rest = eval_strip((struct eval_span){gap + 1, strlen(gap + 1)});
    char *before = strndup(sentence, (size_t)(gap - sentence)), *after = strndup(rest.bytes, rest.n);
    code = before && after ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a question");
    if (code == 0 && rest.n == 0)
        code = eval_jsonl_fail(lines, "sentence", err, "nothing follows the gap");
    for (int i = 0; i < 2 && code == 0; i++)
        if ((code = eval_jsonl_string(lines, i ? "option2" : "option1", true, &option, err)) == 0)
            code = add_choice(question, join(before, option, "", ""), after, err);
    free(before);
    free(after);
    return code;
}

static int boolq(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *passage, *text;
    int code;
    if (json_object_get(lines->object, "query"))
        return query_form(lines, "Passage: ", question, err);
    if ((code = eval_jsonl_string(lines, "passage", true, &passage, err)) < 0 ||
        (code = eval_jsonl_string(lines, "question", true, &text, err)) < 0)
        return code;
    const json_t *answer = json_object_get(lines->object, "answer");
    if (json_is_boolean(answer)) /* Google's file; SuperGLUE has a label */
        question->gold = json_is_true(answer);
    else if ((code = label_of(lines, "label", 0, 2, &question->gold, err)) < 0)
        return code;
    char *rest = join("\nQuestion: ", text, "?\nAnswer:", "");
    for (int i = 0; i < 2 && code == 0; i++)
        code = add_choice(question, rest ? join(passage, rest, "", "") : NULL, i ? "yes" : "no", err);
    free(rest);
    return code;
}

/* The last word, by spaces, is the answer. */
static int lambada(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *context, *word;
    char *text;
    int code;
    if (json_object_get(lines->object, "text")) {
        if ((code = eval_jsonl_string(lines, "text", true, &context, err)) < 0)
            return code;
        text = strdup(context);
    } else {
        if ((code = eval_jsonl_string(lines, "context", true, &context, err)) < 0 ||
            (code = eval_jsonl_string(lines, "continuation", true, &word, err)) < 0)
            return code;
        text = join(context, " ", word, "");
    }
    char *space = text ? strrchr(text, ' ') : NULL;
    if (text && (!space || !space[1] || space == text))
        code = eval_jsonl_fail(lines, "text", err, "no last word after a space");
    else {
        if (space)
            *space = 0;
        code = add_choice(question, text, space ? space + 1 : "", err);
        text = NULL;
    }
    free(text);
    return code;
}

/* BIG-Bench Hard: {"input", "target"}; the choices are all targets of the file (Yes and No; (A), (B) ...). */
static int bbh(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *input, *target;
    int code = eval_jsonl_string(lines, "input", true, &input, err);
    if (code == 0)
        code = eval_jsonl_string(lines, "target", true, &target, err);
    for (size_t i = 0; i < json_array_size(reader->targets) && code == 0; i++) {
        const char *choice = json_string_value(json_array_get(reader->targets, i));
        if (strcmp(choice, target) == 0)
            question->gold = (int)i;
        code = add_choice(question, join("Q: ", input, "\nA:", ""), choice, err);
    }
    return code;
}

static int collect_targets(struct mc_reader *reader, struct butler_error *err)
{
    struct eval_jsonl lines = reader->lines; /* a second cursor */
    const char *target = NULL;
    int code;
    reader->targets = json_array();
    while ((code = eval_jsonl_next(&lines, err)) > 0 && (code = eval_jsonl_string(&lines, "target", true, &target, err)) == 0) {
        size_t i = 0;
        while (i < json_array_size(reader->targets) && strcmp(json_string_value(json_array_get(reader->targets, i)), target) != 0)
            i++;
        if (i == MC_MAX_CHOICES) {
            code =
                eval_jsonl_fail(&lines, "target", err, "more than %d different ones: this is no multiple choice", MC_MAX_CHOICES);
            break;
        }
        if (i == json_array_size(reader->targets))
            json_array_append_new(reader->targets, json_string(target));
    }
    json_decref(lines.object);
    if (code == 0 && json_array_size(reader->targets) == 1)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: every target is '%.40s'", lines.path,
                           json_string_value(json_array_get(reader->targets, 0)));
    return code;
}

/* {"question", "options", "answer_index" or "answer", a letter}: the choices are the options' letters. */
static int mmlu_pro(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    const struct eval_jsonl *lines = &reader->lines;
    const char *stem, *option = NULL, *answer;
    json_t *options;
    int code;
    if ((code = eval_jsonl_string(lines, "question", true, &stem, err)) < 0 ||
        (code = choices_of(lines, "options", &options, err)) < 0)
        return code;
    const size_t n = json_array_size(options);
    if (json_object_get(lines->object, "answer_index"))
        code = label_of(lines, "answer_index", 0, n, &question->gold, err);
    else if ((code = eval_jsonl_string(lines, "answer", true, &answer, err)) == 0) {
        question->gold = answer[0] - 'A';
        if (answer[1] || question->gold < 0 || question->gold >= (int)n)
            code = eval_jsonl_fail(lines, "answer", err, "'%.40s' is not a letter from A to %c", answer, (char)('A' + n - 1));
    }
    char *context = code == 0 ? join(stem, "\n", "", "") : NULL;
    for (size_t i = 0; i < n && code == 0; i++) {
        const char letter[] = {(char)('A' + i), '.', ' ', 0};
        char *before = context;
        if ((code = element(lines, "options", options, i, &option, err)) == 0)
            context = before ? join(before, letter, option, "\n") : NULL;
        if (context != before)
            free(before);
    }
    char *whole = context ? join(context, "Answer:", "", "") : NULL;
    for (size_t i = 0; i < n && code == 0; i++) {
        const char letter[] = {(char)('A' + i), 0};
        code = add_choice(question, whole ? strdup(whole) : NULL, letter, err);
    }
    free(context);
    free(whole);
    return code;
}

/* ------------------------------------------------------------------------------------------------- reading */

static int open_labels(struct eval_run *run, struct mc_reader *reader, const char *path, struct butler_error *err)
{
    static const char ending[] = ".jsonl";
    const size_t n = strlen(path), n_name = n > sizeof ending && strcmp(path + n - 6, ending) == 0 ? n - 6 : n;
    if (asprintf(&reader->labels_path, "%.*s-labels.lst", (int)n_name, path) < 0) {
        reader->labels_path = NULL;
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a path");
    }
    return eval_text_read(run, reader->labels_path, &reader->labels, err);
}

int mc_reader_open(struct eval_run *run, struct mc_reader *reader, enum mc_kind kind, const char *path, struct butler_error *err)
{
    *reader = (struct mc_reader){.kind = kind};
    int code = eval_jsonl_open(run, &reader->lines, path, err);
    if (code < 0)
        return code;
    const char *text = reader->lines.text.bytes;
    reader->plain = kind == MC_HELLASWAG && text[strspn(text, " \t\r\n")] != '{';
    if (kind == MC_PIQA) {
        struct eval_jsonl first = reader->lines; /* reads the first object with a second cursor */
        if (eval_jsonl_next(&first, NULL) > 0 && !json_object_get(first.object, "label"))
            code = open_labels(run, reader, path, err);
        json_decref(first.object);
    }
    if (code == 0 && kind == MC_BBH)
        code = collect_targets(reader, err);
    if (code < 0)
        mc_reader_close(reader);
    return code;
}

int mc_reader_next(struct mc_reader *reader, struct mc_question *question, struct butler_error *err)
{
    static int (*const kinds[MC_N_KINDS])(struct mc_reader *, struct mc_question *, struct butler_error *) = {
        hellaswag, piqa, arc_easy, winogrande, boolq, lambada, bbh, mmlu_pro};
    memset(question, 0, sizeof *question);
    int code = reader->plain ? next_plain(reader, question, err) : eval_jsonl_next(&reader->lines, err);
    if (code > 0 && !reader->plain && (code = kinds[reader->kind](reader, question, err)) == 0)
        code = 1;
    if (code <= 0)
        mc_question_clear(question);
    return code;
}

void mc_reader_close(struct mc_reader *reader)
{
    eval_jsonl_close(&reader->lines);
    eval_text_free(&reader->labels);
    free(reader->labels_path);
    json_decref(reader->targets);
    *reader = (struct mc_reader){0};
}
