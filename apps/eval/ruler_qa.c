/* RULER's two tasks of questions: a question of SQuAD or HotpotQA, its passages, and others of the same file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ruler.h"
#include "base/buffer.h"

struct question {
    const char *ask;
    json_t *answers;  /* owned */
    int first, n;     /* its own passages: own[first, first + n) */
    int near, n_near; /* passages [near, near + n_near) are of the same article; they are the first others */
};

struct ruler_questions {
    json_t *file;   /* owned; strings point into it */
    json_t *places; /* owned: a passage's text -> its index */
    const char **passages;
    struct question *questions;
    int *own;
    int n_passages, n_questions, n_own;
    size_t max_passages, max_questions, max_own;
};

void ruler_questions_free(struct ruler_questions *questions)
{
    if (!questions)
        return;
    for (int i = 0; i < questions->n_questions; i++)
        json_decref(questions->questions[i].answers);
    json_decref(questions->places);
    json_decref(questions->file);
    free(questions->passages);
    free(questions->questions);
    free(questions->own);
    free(questions);
}

int ruler_questions_count(const struct ruler_questions *questions)
{
    return questions->n_questions;
}

int ruler_passages_count(const struct ruler_questions *questions)
{
    return questions->n_passages;
}

/* ------------------------------------------------------------------------------------------------- reading */

static int lacks(const char *path, const char *where, struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s is missing or of the wrong type", path, where);
}

/* Room for one more element of an array. */
static int grow(void *array /* T ** */, int n, size_t *max, size_t size, struct butler_error *err)
{
    return butler_grow(array, (size_t)n + 1, max, size) ? 0
                                                        : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d passages", n + 1);
}

/* The index of a passage, which is added where it is new; negative: no memory. The text is borrowed from questions->places. */
static int add_passage(struct ruler_questions *q, const char *text, struct butler_error *err)
{
    const json_t *known = json_object_get(q->places, text);
    if (known)
        return (int)json_integer_value(known);
    if (grow(&q->passages, q->n_passages, &q->max_passages, sizeof *q->passages, err) < 0)
        return BUTLER_ERROR_MEMORY;
    if (json_object_set_new(q->places, text, json_integer(q->n_passages)) < 0)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a passage");
    q->passages[q->n_passages] = json_object_iter_key(json_object_iter_at(q->places, text));
    return q->n_passages++;
}

/* A question without passages; NULL: no memory. answers is taken. */
static struct question *add_question(struct ruler_questions *q, const char *ask, json_t *answers, struct butler_error *err)
{
    if (grow(&q->questions, q->n_questions, &q->max_questions, sizeof *q->questions, err) < 0) {
        json_decref(answers);
        return NULL;
    }
    q->questions[q->n_questions] = (struct question){.ask = ask, .answers = answers, .first = q->n_own};
    return &q->questions[q->n_questions++];
}

static int add_own(struct ruler_questions *q, struct question *question, int passage, struct butler_error *err)
{
    if (grow(&q->own, q->n_own, &q->max_own, sizeof *q->own, err) < 0)
        return BUTLER_ERROR_MEMORY;
    q->own[q->n_own++] = passage;
    question->n++;
    return 0;
}

/* {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}], "is_impossible"}]}]}]} */
static int read_paragraph(struct ruler_questions *q, const char *path, const json_t *paragraph, int passage,
                          struct butler_error *err)
{
    const json_t *qas = json_object_get(paragraph, "qas");
    for (size_t i = 0; i < json_array_size(qas); i++) {
        const json_t *qa = json_array_get(qas, i), *given = json_object_get(qa, "answers");
        const char *ask = json_string_value(json_object_get(qa, "question"));
        if (json_is_true(json_object_get(qa, "is_impossible")))
            continue;
        if (!ask || json_array_size(given) == 0)
            return lacks(path, "\"question\" or \"answers\" of a paragraph", err);
        json_t *answers = json_array();
        for (size_t k = 0; k < json_array_size(given); k++) {
            json_t *answer = json_object_get(json_array_get(given, k), "text");
            if (json_is_string(answer))
                json_array_append(answers, answer);
        }
        if (json_array_size(answers) != json_array_size(given)) {
            json_decref(answers);
            return lacks(path, "\"text\" of an answer", err);
        }
        struct question *question = add_question(q, ask, answers, err);
        if (!question || add_own(q, question, passage, err) < 0)
            return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

static int read_squad(struct ruler_questions *q, const char *path, struct butler_error *err)
{
    const json_t *data = json_object_get(q->file, "data");
    if (json_array_size(data) == 0)
        return lacks(path, "\"data\", the array of articles of SQuAD,", err);
    for (size_t i = 0; i < json_array_size(data); i++) {
        const json_t *paragraphs = json_object_get(json_array_get(data, i), "paragraphs");
        const int near = q->n_passages, from = q->n_questions;
        if (!json_is_array(paragraphs))
            return lacks(path, "\"paragraphs\" of an article", err);
        for (size_t k = 0; k < json_array_size(paragraphs); k++) {
            const json_t *paragraph = json_array_get(paragraphs, k);
            const char *text = json_string_value(json_object_get(paragraph, "context"));
            const int passage = text ? add_passage(q, text, err) : lacks(path, "\"context\" of a paragraph", err);
            const int code = passage < 0 ? passage : read_paragraph(q, path, paragraph, passage, err);
            if (code < 0)
                return code;
        }
        for (int k = from; k < q->n_questions; k++) {
            q->questions[k].near = near;
            q->questions[k].n_near = q->n_passages - near;
        }
    }
    return 0;
}

/* One of HotpotQA's passages, [title, [sentence, ...]], as "title\nsentences". Owned; NULL: of the wrong form, or no memory. */
static char *hotpot_passage(const json_t *pair)
{
    const char *title = json_string_value(json_array_get(pair, 0));
    const json_t *sentences = json_array_get(pair, 1);
    char *text = NULL;
    size_t n;
    FILE *out = title && json_is_array(sentences) ? open_memstream(&text, &n) : NULL;
    if (!out)
        return NULL;
    fprintf(out, "%s\n", title);
    for (size_t i = 0; i < json_array_size(sentences); i++)
        fputs(json_is_string(json_array_get(sentences, i)) ? json_string_value(json_array_get(sentences, i)) : "", out);
    return fclose(out) == 0 ? text : NULL;
}

/* [{"question", "answer", "context": [[title, [sentence, ...]], ...]}] */
static int read_hotpot(struct ruler_questions *q, const char *path, struct butler_error *err)
{
    if (json_array_size(q->file) == 0)
        return lacks(path, "the array of questions of HotpotQA", err);
    for (size_t i = 0; i < json_array_size(q->file); i++) {
        const json_t *entry = json_array_get(q->file, i), *context = json_object_get(entry, "context");
        const char *ask = json_string_value(json_object_get(entry, "question"));
        json_t *answer = json_object_get(entry, "answer");
        if (!ask || !json_is_string(answer) || json_array_size(context) == 0)
            return lacks(path, "\"question\", \"answer\" or \"context\" of a question", err);
        struct question *question = add_question(q, ask, json_pack("[O]", answer), err);
        for (size_t k = 0; question && k < json_array_size(context); k++) {
            char *text = hotpot_passage(json_array_get(context, k));
            const int passage = text ? add_passage(q, text, err) : lacks(path, "a title or the sentences of \"context\"", err);
            free(text);
            const int code = passage < 0 ? passage : add_own(q, question, passage, err);
            if (code < 0)
                return code;
        }
        if (!question)
            return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

int ruler_questions_read(struct eval_run *run, const char *path, bool hotpot, struct ruler_questions **out,
                         struct butler_error *err)
{
    struct eval_text text;
    json_error_t fault;
    *out = NULL;
    int code = eval_text_read(run, path, &text, err);
    if (code < 0)
        return code;
    struct ruler_questions *q = butler_alloc(sizeof *q, err);
    if (!q) {
        eval_text_free(&text);
        return BUTLER_ERROR_MEMORY;
    }
    q->places = json_object();
    q->file = json_loadb(text.bytes, text.n, 0, &fault);
    eval_text_free(&text);
    if (!q->file)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not JSON: %s (column %d)", path, fault.line, fault.text, fault.column);
    else
        code = hotpot ? read_hotpot(q, path, err) : read_squad(q, path, err);
    if (code == 0 && q->n_questions == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no questions in it", path);
    if (code == 0)
        *out = q;
    else
        ruler_questions_free(q);
    return code;
}

/* ------------------------------------------------------------------------------------------------ an item */

/* The passages of an item of this size, shuffled: all of its own, then others of the same article, then any. Returns their
 * number. chosen[size + question->n]. */
static int choose(const struct ruler_questions *q, const struct question *question, int size, uint64_t *random, int *chosen,
                  struct butler_error *err)
{
    const int n_all = q->n_passages;
    int *order = butler_alloc(3 * (size_t)n_all * sizeof *order, err), n = 0;
    if (!order)
        return BUTLER_ERROR_MEMORY;
    int *scratch = order + n_all, *taken = order + 2 * n_all;
    eval_distinct(random, n_all, n_all, scratch, order);
    for (int i = 0; i < question->n; i++) {
        const int passage = q->own[question->first + i];
        if (!taken[passage])
            chosen[n++] = passage;
        taken[passage] = 1;
    }
    for (int any = 0; any < 2; any++)
        for (int i = 0; i < n_all && n < size; i++) {
            const int passage = order[i];
            const bool near = passage >= question->near && passage < question->near + question->n_near;
            if (!taken[passage] && (any || near)) {
                chosen[n++] = passage;
                taken[passage] = 1;
            }
        }
    eval_distinct(random, n, n, scratch, order);
    memcpy(scratch, chosen, (size_t)n * sizeof *chosen);
    for (int i = 0; i < n; i++)
        chosen[i] = scratch[order[i]];
    free(order);
    return n;
}

int ruler_make_question(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                        struct butler_error *err)
{
    static const char task[] = "Answer the question from the passages. Give the answer alone, in as few words as possible.";
    const struct ruler_questions *q = ruler->questions;
    const struct question *question = &q->questions[index % q->n_questions];
    size_t n_document;
    int *chosen = butler_alloc(((size_t)size + (size_t)question->n) * sizeof *chosen, err);
    const int n = chosen ? choose(q, question, size, random, chosen, err) : BUTLER_ERROR_MEMORY;
    FILE *document = n > 0 ? open_memstream(&out->document, &n_document) : NULL;
    if (document)
        fprintf(document, "%s\n\nThe passages:\n\n", task);
    for (int i = 0; i < n && document; i++)
        fprintf(document, "%sPassage %d:\n%s", i ? "\n\n" : "", i + 1, q->passages[chosen[i]]);
    free(chosen);
    if (n < 0 || ruler_close(document, err) < 0)
        return BUTLER_ERROR_MEMORY;
    out->ask = ruler_format("\n\n%s\n\nQuestion: %s", task, question->ask);
    out->lead = strdup(" Answer:");
    out->answers = json_incref(question->answers);
    return 0;
}
