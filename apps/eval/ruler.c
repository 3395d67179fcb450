/* RULER: thirteen tasks of retrieval, tracing, counting and questions at any length, made here from the published definitions (the
 * prompts are our wording), or read from a file of items. An item is as long as --length holds, with the tokens of its answer. The
 * answer is generated greedily; its score is the share of the expected strings that it contains. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "parts.h"
#include "ruler.h"
#include "score.h"

#define NEEDLES(where, keys, values, queries)                                                                                      \
    128, 1, ruler_make_needles, .haystack = where, .n_keys = keys, .n_values = values, .n_queries = queries
static const struct ruler_set sets[] = {
    {"niah_single_1", NEEDLES(RULER_NOISE, 1, 1, 1)},
    {"niah_single_2", NEEDLES(RULER_ESSAY, 1, 1, 1)},
    {"niah_single_3", NEEDLES(RULER_ESSAY, 1, 1, 1), .uuid_values = true},
    {"niah_multikey_1", NEEDLES(RULER_ESSAY, 4, 1, 1)},
    {"niah_multikey_2", NEEDLES(RULER_NEEDLES, 1, 1, 1)},
    {"niah_multikey_3", NEEDLES(RULER_NEEDLES, 1, 1, 1), .uuid_keys = true, .uuid_values = true},
    {"niah_multivalue", NEEDLES(RULER_ESSAY, 1, 4, 1)},
    {"niah_multiquery", NEEDLES(RULER_ESSAY, 4, 1, 4)},
    {"vt", 30, 5, ruler_make_chain, .any = false},
    {"cwe", 120, 20, ruler_make_common, .any = false},
    {"fwe", 50, 100, ruler_make_frequent, .any = false},
    {"qa_1", 32, 1, ruler_make_question, .any = true},
    {"qa_2", 32, 1, ruler_make_question, .any = true},
};

static const char *subset(int i)
{
    return i < BUTLER_COUNT(sets) ? sets[i].name : NULL;
}

/* What --data holds. */
enum form { NOTHING, ITEMS, SQUAD, HOTPOT };

/* eval_item.own. */
struct expected {
    json_t *answers; /* owned */
    int max_answer, cell;
    bool any;
};

static void free_expected(void *own)
{
    struct expected *expected = own;
    if (expected)
        json_decref(expected->answers);
    free(expected);
}

static void free_text(struct ruler_text *text)
{
    free(text->document);
    free(text->ask);
    free(text->lead);
    json_decref(text->answers);
    *text = (struct ruler_text){0};
}

int ruler_close(FILE *out, struct butler_error *err)
{
    return out && fclose(out) == 0 ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an item");
}

char *ruler_format(const char *format, ...)
{
    char *out = NULL;
    va_list args;
    va_start(args, format);
    const int n = vasprintf(&out, format, args);
    va_end(args);
    return n < 0 ? NULL : out;
}

/* ------------------------------------------------------------------------------------------------ an item */

/* Tokens of an item up to its answer; *n_prompt: those that the policy reads as a prompt. */
static int item_ids(const struct eval_run *run, const struct eval_frame *frame, const struct ruler_text *text, struct eval_ids *ids,
                    int *n_prompt, struct butler_error *err)
{
    struct eval_ids document = {0};
    int n_document = 0;
    int code = eval_document(&document, run, frame, text->document, err);
    if (code == 0)
        code = eval_frame_join(ids, run, frame, &document, &(struct eval_question){text->ask, text->lead, ""}, &n_document, err);
    *n_prompt = frame->asks_after ? n_document : ids->n;
    if (code == 0 && (*n_prompt < 1 || (frame->asks_after && n_document == ids->n)))
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "an item of %d tokens, %d of them before its question", ids->n, n_document);
    eval_ids_free(&document);
    return code;
}

static int add_item(struct eval_run *run, const struct eval_frame *frame, struct ruler_text *text, int max_answer, bool any,
                    int cell, struct butler_error *err)
{
    struct eval_ids ids = {0};
    int n_prompt = 0;
    int code = item_ids(run, frame, text, &ids, &n_prompt, err);
    struct eval_item *item = code == 0 ? eval_item_add(run, ids.ids, ids.n, n_prompt, err) : NULL;
    struct expected *expected = item ? item->own = butler_alloc(sizeof *expected, err) : NULL;
    if (expected) {
        item->repeats_last = !frame->asks_after;
        item->n_extra = max_answer;
        *expected = (struct expected){json_incref(text->answers), max_answer, cell, any};
        run->n_values = 2;
        run->length = BUTLER_MAX(run->length, ids.n + max_answer);
    } else if (code == 0)
        code = BUTLER_ERROR_MEMORY;
    eval_ids_free(&ids);
    return code;
}

/* Makes item `index` of a size; returns the tokens that it takes with its answer. */
static int make(const struct eval_run *run, const struct ruler *ruler, const struct eval_frame *frame, int index, int size,
                struct ruler_text *text, struct butler_error *err)
{
    uint64_t random = run->seed;
    random = butler_random(&random) ^ (uint64_t)(ruler->set - sets) << 56 ^ (uint64_t)index << 24; /* its own, whatever the size */
    struct eval_ids ids = {0};
    int n_prompt;
    free_text(text);
    int code = ruler->set->make(ruler, index, size, &random, text, err);
    if (code == 0 && !(text->document && text->ask && text->lead && text->answers))
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an item");
    if (code == 0)
        code = item_ids(run, frame, text, &ids, &n_prompt, err);
    const int n = ids.n + ruler->set->max_answer;
    eval_ids_free(&ids);
    return code < 0 ? code : n;
}

/* Makes item `index` as large as the length holds. *size: that of the item before, 0 at first; the search begins there. */
static int fit(const struct eval_run *run, const struct ruler *ruler, const struct eval_frame *frame, int index, int *size,
               struct ruler_text *text, struct butler_error *err)
{
    const int min = ruler->set->min_size;
    int64_t fits = 0, exceeds = (int64_t)ruler->max_size + 1, at = BUTLER_MAX(*size, min), step = 1 + *size / 64;
    while (exceeds - BUTLER_MAX(fits, min - 1) > 1) {
        const int n = make(run, ruler, frame, index, (int)at, text, err);
        if (n < 0)
            return n;
        if (n <= ruler->length)
            fits = at;
        else
            exceeds = at;
        if (at == min && fits == 0 && run->params->subset) /* one of several: others may fit */
            return eval_skip(run, "%d tokens are too few for an item of %s; the smallest takes %d", ruler->length, ruler->set->name,
                             n);
        if (at == min && fits == 0)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                               "--length: %d tokens are too few for an item of %s; the smallest takes %d", ruler->length,
                               ruler->set->name, n);
        const int64_t up = fits + step, down = exceeds - step, middle = (fits + exceeds) / 2;
        at = fits == 0 ? BUTLER_MAX(down, min) : up < exceeds && exceeds > ruler->max_size ? BUTLER_MIN(up, exceeds - 1) : middle;
        step *= 2;
    }
    *size = (int)fits;
    const int n = make(run, ruler, frame, index, *size, text, err);
    return BUTLER_MIN(n, 0);
}

/* ------------------------------------------------------------------------------------------------- loading */

/* Takes out the lines of long_text.txt with facts that it hides for other purposes: they would be needles too. */
static void drop_planted(char *text)
{
    static const char *const planted[] = {"pass key", "lantern of Clara"};
    for (int i = 0; i < BUTLER_COUNT(planted); i++)
        for (char *at; (at = strstr(text, planted[i]));) {
            while (at > text && at[-1] != '\n')
                at--;
            memset(at, ' ', strcspn(at, "\n"));
        }
}

/* The words of the text that hides the needles: option text, or the book's chapter that comes with the command. *bytes owns them.
 */
static int read_essay(struct eval_run *run, struct ruler *ruler, struct eval_text *bytes, struct butler_error *err)
{
    static const char *const folders[] = {"models", "../models", "../share/butler"};
    char found[PATH_MAX + 64];
    const char *path = eval_option_text(run, "text");
    if (!*path && !butler_find_file("long_text.txt", folders, BUTLER_COUNT(folders), found, sizeof found))
        return butler_fail(
            err, BUTLER_ERROR_ARGUMENT,
            "long_text.txt is not where the command was built or installed (butler eval takes another: --set text=FILE)");
    const bool own = *path != 0;
    path = own ? path : found;
    int code = eval_text_read(run, path, bytes, err);
    if (code == 0 && !own)
        drop_planted(bytes->bytes);
    if (code == 0)
        code = eval_split((struct eval_span){bytes->bytes, bytes->n}, &ruler->essay, err);
    if (code == 0 && ruler->essay.n == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no words in it", path);
    return code;
}

/* JSON lines of items begin with an object that has an item's fields; a HotpotQA file is an array, a SQuAD file an object. */
static int find_form(const struct eval_run *run, enum form *form, struct butler_error *err)
{
    struct eval_run unread = *run; /* whose digest stays as it is */
    struct eval_text text;
    *form = NOTHING;
    if (!run->params->data)
        return 0;
    const int code = eval_text_read(&unread, run->params->data, &text, err);
    if (code < 0)
        return code;
    const char *begin = text.bytes + strspn(text.bytes, " \t\r\n"), *path = run->params->data;
    json_t *first = *begin == '[' ? NULL : json_loadb(begin, strcspn(begin, "\n"), 0, NULL);
    const bool is_item = json_object_get(first, "input") || json_object_get(first, "question"),
               is_json = *begin == '[' || *begin == '{';
    *form = *begin == '[' ? HOTPOT : is_item ? ITEMS : SQUAD;
    json_decref(first);
    eval_text_free(&text);
    return is_json ? 0
                   : butler_fail(err, BUTLER_ERROR_FORMAT, "%s: neither JSON lines of items nor a JSON file of SQuAD or HotpotQA",
                                 path);
}

/* One line of a file of items: {context, question, answer_prefix, answer: [...]} or RULER's own {input, outputs: [...],
 * answer_prefix}; also task and max_new_tokens. 1: it belongs to another set. */
static int take_item(struct eval_run *run, const struct ruler_set *set, const struct eval_frame *frame,
                     const struct eval_jsonl *lines, bool named, struct butler_error *err)
{
    const bool own = json_object_get(lines->object, "input") != NULL;
    const char *task = json_string_value(json_object_get(lines->object, "task")), *fields[3] = {"", "", ""};
    static const char *const names[] = {"context", "question", "answer_prefix"};
    json_t *answers;
    json_int_t max_answer = set->max_answer;
    int code = 0;
    if (task && strcmp(task, set->name) != 0)
        return 1;
    if (!task && !named)
        return eval_jsonl_fail(lines, "task", err, "missing; --set subset=NAME says which set it is");
    for (int i = 0; i < 3 && code == 0; i++)
        if (!own || i == 0)
            code = eval_jsonl_string(lines, own ? "input" : names[i], i == 0, &fields[i], err);
    if (code == 0 && own && json_object_get(lines->object, names[2]))
        code = eval_jsonl_string(lines, names[2], false, &fields[2], err);
    if (code == 0)
        code = eval_jsonl_array(lines, own ? "outputs" : "answer", 1, &answers, err);
    for (size_t i = 0; code == 0 && i < json_array_size(answers); i++)
        if (!json_is_string(json_array_get(answers, i)))
            code = eval_jsonl_fail(lines, own ? "outputs" : "answer", err, "entry %zu is not a string", i);
    if (code == 0 && json_object_get(lines->object, "max_new_tokens"))
        code = eval_jsonl_int(lines, "max_new_tokens", 1, 1 << 20, &max_answer, err);
    if (code < 0)
        return code;
    struct ruler_text text = {(char *)fields[0], (char *)fields[1], (char *)fields[2], answers};
    struct butler_error fault = {0};
    code = add_item(run, frame, &text, (int)max_answer, set->any, 0, &fault);
    return code < 0 ? butler_fail(err, code, "%s:%d: %s", lines->path, lines->line, fault.message) : 0;
}

static int load_items(struct eval_run *run, const struct ruler_set *set, const struct eval_frame *frame, struct butler_error *err)
{
    struct eval_jsonl lines;
    int code = eval_jsonl_open(run, &lines, run->params->data, err), more = 0;
    const int wanted = run->limit = run->params->limit; /* 0: all */
    if (strcmp(eval_option_text(run, "depths"), "0") != 0)
        code =
            butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set depths: the items of %s have needles where they are", run->params->data);
    run->length = 0;
    while (code >= 0 && (wanted == 0 || run->items.n < wanted) && (more = eval_jsonl_next(&lines, err)) > 0)
        code = take_item(run, set, frame, &lines, !run->params->subset, err);
    eval_jsonl_close(&lines);
    if (code < 0 || more < 0)
        return BUTLER_MIN(code, more);
    return run->items.n == 0 && run->params->subset ? eval_skip(run, "no items of it in %s", run->params->data) : 0;
}

static int write_item(const struct eval_run *run, const struct ruler *ruler, const struct ruler_text *text, FILE *out,
                      struct butler_error *err)
{
    const struct eval_item *item = &run->items.items[run->items.n - 1];
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:O, s:i, s:i}", "task", ruler->set->name, "context", text->document, "question",
                             text->ask, "answer_prefix", text->lead, "answer", text->answers, "max_new_tokens",
                             ruler->set->max_answer, "length", item->n_ids + item->n_extra);
    const bool written = line && json_dumpf(line, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF;
    json_decref(line);
    return written ? 0 : butler_fail(err, BUTLER_ERROR_IO, "%s: %s", eval_option_text(run, "write"), strerror(errno));
}

/* Makes the items, or, with option write, appends them to that file, to be measured by other programs. */
static int make_items(struct eval_run *run, struct ruler *ruler, const struct eval_frame *frame, struct butler_error *err)
{
    const char *path = eval_option_text(run, "write");
    FILE *out = *path ? fopen(eval_is_root(run->params) ? path : "/dev/null", "a") : NULL;
    struct ruler_text text = {0};
    int code = !*path || out ? 0 : butler_fail(err, BUTLER_ERROR_IO, "%s: %s", path, strerror(errno)), size = 0;
    const int limit = ruler->questions ? BUTLER_MIN(run->limit, ruler_questions_count(ruler->questions)) : run->limit;
    for (int i = 0; i < limit && code == 0; i++) {
        const int cell = ruler->n_depths > 0 ? i % ruler->n_depths : 0;
        code = fit(run, ruler, frame, i, &size, &text, err);
        if (code == 0)
            code = add_item(run, frame, &text, ruler->set->max_answer, ruler->set->any, cell, err);
        if (code == 0 && out)
            code = write_item(run, ruler, &text, out, err);
    }
    free_text(&text);
    if (out && fclose(out) != 0 && code == 0)
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", path, strerror(errno));
    return code == 0 && out ? eval_skip(run, "%d items written to %s", run->items.n, path) : code;
}

/* What the set lacks, or NULL. */
static const char *what_lacks(const struct ruler_set *set, enum form form, int n_depths)
{
    if (n_depths > 0 && (set->make != ruler_make_needles || set->n_values * set->n_queries != 1))
        return "option depths is for sets that ask for one needle";
    if (set->make != ruler_make_question)
        return NULL;
    if (strcmp(set->name, "qa_1") == 0)
        return form == SQUAD ? NULL : "it needs --data, a JSON file of SQuAD";
    return form == HOTPOT ? NULL : "it needs --data, a JSON file of HotpotQA";
}

/* Reads what the set's items are made of, and makes them. */
static int load_made(struct eval_run *run, const struct ruler_set *set, enum form form, const struct eval_frame *frame,
                     struct butler_error *err)
{
    struct ruler ruler = {.set = set, .length = run->length, .max_size = 1 << 24};
    struct eval_text text = {0};
    int code = eval_option_int(run, "depths", 0, 1000, &ruler.n_depths, err);
    const char *lacks = code == 0 ? what_lacks(set, form, ruler.n_depths) : NULL;
    if (lacks)
        return run->params->subset ? eval_skip(run, "%s", lacks)
                                   : butler_fail(err, BUTLER_ERROR_ARGUMENT, "ruler %s: %s", set->name, lacks);
    if (code == 0 && set->make == ruler_make_question) {
        code = ruler_questions_read(run, run->params->data, form == HOTPOT, &ruler.questions, err);
        ruler.max_size = ruler.questions ? ruler_passages_count(ruler.questions) : 0;
    }
    if (code == 0 && set->make == ruler_make_needles && set->haystack == RULER_ESSAY)
        code = read_essay(run, &ruler, &text, err);
    if (code == 0)
        code = make_items(run, &ruler, frame, err);
    ruler_questions_free(ruler.questions);
    eval_words_free(&ruler.essay);
    eval_text_free(&text);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    const char *name = eval_option_text(run, "subset");
    const struct ruler_set *set = NULL;
    struct eval_frame frame = {0};
    enum form form;
    for (int i = 0; i < BUTLER_COUNT(sets); i++)
        if (strcmp(sets[i].name, name) == 0)
            set = &sets[i];
    if (!set)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set subset: '%s' is none of RULER's sets, niah_single_1 ... qa_2", name);
    run->subset = set->name;
    int code = find_form(run, &form, err);
    if (code == 0)
        code = eval_frame_init(&frame, run, err);
    if (code == 0)
        code = form == ITEMS ? load_items(run, set, &frame, err) : load_made(run, set, form, &frame, err);
    eval_frame_free(&frame);
    return code;
}

/* ----------------------------------------------------------------------------------------------- measuring */

/* The share of the expected strings that the answer has; where any is enough, whether it has one. */
static int score(const struct expected *expected, const char *answer, double *out, struct butler_error *err)
{
    const int n = (int)json_array_size(expected->answers);
    double found = 0, has = 0;
    for (int i = 0; i < n; i++) {
        const int code = eval_score_contains(answer, json_string_value(json_array_get(expected->answers, (size_t)i)), &has, err);
        if (code < 0)
            return code;
        found += has;
    }
    *out = expected->any ? found > 0 : found / n;
    return 0;
}

/* Whether no further text can raise the score. */
static bool is_complete(const struct eval_trial *trial, const char *text)
{
    double value = 0;
    return score(trial->item->own, text, &value, NULL) == 0 && value >= 1;
}

static int measure(struct eval_trial *trial, struct butler_error *err)
{
    const struct expected *expected = trial->item->own;
    const int code = eval_generate(trial, expected->max_answer, is_complete, err);
    trial->values[1] = 1;
    return code < 0 ? code : score(expected, trial->output, &trial->values[0], err);
}

/* Scores by depth; NULL where depths are random. */
static json_t *depth_grid(const struct eval_run *run, const double *values, int n_depths)
{
    json_t *grid = n_depths > 0 ? json_array() : NULL;
    for (int cell = 0; cell < n_depths; cell++) {
        int n = 0;
        double sum = 0;
        for (int i = 0; i < run->items.n; i++)
            if (((const struct expected *)run->items.items[i].own)->cell == cell) {
                n++;
                sum += values[2 * i];
            }
        if (n > 0)
            json_array_append_new(grid, json_pack("{s:i, s:f, s:f, s:i}", "length", run->length, "depth",
                                                  n_depths > 1 ? (double)cell / (n_depths - 1) : 0.5, "right", sum, "n", n));
    }
    return grid ? json_pack("{s:o}", "grid", grid) : NULL;
}

static int rows(const struct eval_run *run, const double *values, struct eval_row *out, struct butler_error *err)
{
    int n_depths = 0;
    if (eval_option_int(run, "depths", 0, 1000, &n_depths, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    out[0] = eval_mean_row(run, "string_match", values, 0);
    out[0].detail = depth_grid(run, values, n_depths);
    return 1;
}

static const struct eval_option options[] = {
    {"subset", "", "one of the thirteen sets; without it all, one after the other"},
    {"text", "", "the text that hides needles (essay sets); without it the chapter of a book that comes with the command"},
    {"depths", "0", "places of the needle, evenly from the start to the end (a grid by --length); 0: at random, as RULER does"},
    {"write", "", "a file to which the items are appended as JSON lines; then nothing is measured"},
    EVAL_ANSWER_OPTIONS("auto"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_ruler = {
    .name = "ruler",
    .summary = "RULER's thirteen tasks: needles, chains of variables, counting words, questions",
    .data = "none; qa_1: SQuAD's JSON, qa_2: HotpotQA's (both CC BY-SA)",
    .work = "reads --length tokens, decodes up to 128; without --set subset eleven sets, or thirteen",
    .details =
        "--length: tokens of an item with its answer. --data: a JSON file of SQuAD (qa_1) or HotpotQA (qa_2), or JSON lines of\n"
        "items (context, question, answer_prefix, answer, or RULER's input, outputs).\n",
    .options = options,
    .subset = subset,
    .length = 4096,
    .limit = 20,
    .load = load,
    .run = measure,
    .rows = rows,
    .free_own = free_expected,
};
