/* RULER's eight tasks of needles in a haystack: sentences that give a key's value, one or several of them asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ruler.h"

enum { MAX_NEEDLES = 4, N_DEPTHS = 40 };

struct needle {
    char key[40], value[40];
    int at; /* lines or sentences of the haystack before it */
};

const char ruler_noise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/* A random UUID of version 4. */
static void write_uuid(uint64_t *random, char out[40])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 36; i++)
        out[i] = i == 8 || i == 13 || i == 18 || i == 23 ? '-'
                 : i == 14                               ? '4'
                 : i == 19                               ? digits[8 + eval_below(random, 4)]
                                                         : digits[eval_below(random, 16)];
    out[36] = 0;
}

static void draw(const struct ruler_set *set, uint64_t *random, struct needle *needle)
{
    if (set->uuid_keys)
        write_uuid(random, needle->key);
    else
        eval_name(eval_below(random, EVAL_N_NAMES), needle->key, sizeof needle->key);
    if (set->uuid_values)
        write_uuid(random, needle->value);
    else { /* seven digits */
        needle->value[0] = (char)('1' + eval_below(random, 9));
        eval_digits(random, 6, needle->value + 1);
    }
}

static void write_needle(FILE *out, const struct ruler_set *set, const struct needle *needle)
{
    fprintf(out, "One code %s of %s is %s.", set->uuid_values ? "identifier" : "number", needle->key, needle->value);
}

/* Draws a needle whose key and value are none of the n before it. */
static void draw_new(const struct ruler_set *set, uint64_t *random, const struct needle *before, int n, struct needle *needle)
{
    bool known = true;
    while (known) {
        draw(set, random, needle);
        known = false;
        for (int i = 0; i < n; i++)
            known = known || strcmp(needle->key, before[i].key) == 0 || strcmp(needle->value, before[i].value) == 0;
    }
}

/* The needles of an item: those of one key stand together in the array. Returns their number. */
static int draw_needles(const struct ruler_set *set, uint64_t *random, struct needle *needles)
{
    int n = 0;
    for (int k = 0; k < set->n_keys; k++)
        for (int v = 0; v < set->n_values; v++, n++) {
            draw_new(set, random, needles, n, &needles[n]);
            if (v > 0)
                memcpy(needles[n].key, needles[n - 1].key, sizeof needles[n].key);
        }
    return n;
}

static int by_place(const void *a, const void *b)
{
    return ((const struct needle *)a)->at - ((const struct needle *)b)->at;
}

/* ----------------------------------------------------------------------------------------------- haystacks */

static bool ends_sentence(struct eval_span word)
{
    size_t n = word.n;
    while (n > 0 && strchr("\"')]", word.bytes[n - 1]))
        n--;
    return n > 0 && strchr(".!?", word.bytes[n - 1]);
}

static struct eval_span essay_word(const struct ruler *ruler, int i)
{
    return ruler->essay.words[i % ruler->essay.n];
}

/* Sentences of the text's first `size` words. */
static int count_sentences(const struct ruler *ruler, int size)
{
    int n = 0;
    for (int i = 0; i < size; i++)
        n += i + 1 == size || ends_sentence(essay_word(ruler, i));
    return n;
}

/* The text's first `size` words, repeated where it is shorter, with needles between its sentences. */
static void write_essay(FILE *out, const struct ruler *ruler, int size, const struct needle *needles, int n)
{
    int sentence = 0, next = 0;
    bool begins = true;
    for (int i = 0; i < size; i++) {
        for (; begins && next < n && needles[next].at <= sentence; next++) {
            write_needle(out, ruler->set, &needles[next]);
            fputc(' ', out);
        }
        const struct eval_span word = essay_word(ruler, i);
        fwrite(word.bytes, 1, word.n, out);
        begins = ends_sentence(word);
        sentence += begins;
        if (i + 1 < size)
            fputc(' ', out);
    }
    for (; next < n; next++) {
        fputc(' ', out);
        write_needle(out, ruler->set, &needles[next]);
    }
}

/* `size` lines of noise or of other needles, with the needles between them. */
static void write_lines(FILE *out, const struct ruler *ruler, int size, const struct needle *needles, int n, uint64_t *random)
{
    int next = 0;
    for (int i = 0; i <= size; i++) {
        struct needle other;
        for (; next < n && needles[next].at <= i; next++) {
            if (i > 0 || next > 0)
                fputc('\n', out);
            write_needle(out, ruler->set, &needles[next]);
        }
        if (i == size)
            break;
        if (i > 0 || next > 0)
            fputc('\n', out);
        if (ruler->set->haystack == RULER_NOISE)
            fputs(ruler_noise, out);
        else {
            draw_new(ruler->set, random, needles, n, &other);
            write_needle(out, ruler->set, &other);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ an item */

/* Places of the needles: different depths of RULER's 40 in a text, different lines otherwise. */
static int place(const struct ruler *ruler, int index, int size, struct needle *needles, int n, uint64_t *random,
                 struct butler_error *err)
{
    const bool essay = ruler->set->haystack == RULER_ESSAY;
    const int n_units = essay ? count_sentences(ruler, size) : size, n_places = essay ? N_DEPTHS : size;
    int chosen[MAX_NEEDLES], *scratch = butler_alloc((size_t)n_places * sizeof *scratch, err);
    if (!scratch)
        return BUTLER_ERROR_MEMORY;
    eval_distinct(random, n_places, n, scratch, chosen);
    free(scratch);
    for (int i = 0; i < n; i++) {
        /* as the benchmark rounds: whole per cents, nearest, then a whole sentence before */
        const int percent = (int)(100.0 * chosen[i] / (N_DEPTHS - 1) + 0.5);
        needles[i].at = essay ? (int)((int64_t)n_units * percent / 100) : chosen[i];
    }
    if (ruler->n_depths > 0) {
        const int cell = index % ruler->n_depths, last = ruler->n_depths - 1;
        needles[0].at = last > 0 ? (int)(((int64_t)n_units * cell + last / 2) / last) : n_units / 2;
    }
    return 0;
}

/* The keys that are asked for, "A, B, and C", and their values. The first needle's key is among them. Owned. */
static char *write_query(const struct ruler_set *set, const struct needle *needles, uint64_t *random, json_t *answers)
{
    int scratch[MAX_NEEDLES], order[MAX_NEEDLES];
    char text[MAX_NEEDLES * 48] = "";
    eval_distinct(random, set->n_queries, set->n_queries, scratch, order);
    for (int q = 0, at = 0; q < set->n_queries; q++) {
        const struct needle *first = &needles[order[q] * set->n_values];
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s%s", q > 0 ? ", " : "",
                       q > 0 && q + 1 == set->n_queries ? "and " : "", first->key);
        for (int v = 0; v < set->n_values; v++)
            json_array_append_new(answers, json_string(first[v].value));
    }
    return strdup(text);
}

int ruler_make_needles(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                       struct butler_error *err)
{
    const struct ruler_set *set = ruler->set;
    struct needle needles[MAX_NEEDLES];
    size_t n_document;
    const bool one = set->n_values * set->n_queries == 1;
    const char *noun = set->uuid_values ? "identifier" : "number", *s = one ? "" : "s";
    const int n = draw_needles(set, random, needles);
    int code = place(ruler, index, size, needles, n, random, err);
    if (code < 0)
        return code;
    out->answers = json_array();
    char *query = write_query(set, needles, random, out->answers);
    qsort(needles, (size_t)n, sizeof *needles, by_place);
    FILE *document = open_memstream(&out->document, &n_document);
    if (document) {
        fprintf(document, "The text below contains %scode %s%s. Remember %s: a question follows.\n", one ? "a " : "", noun, s,
                one ? "it" : "them");
        if (set->haystack == RULER_ESSAY)
            write_essay(document, ruler, size, needles, n);
        else
            write_lines(document, ruler, size, needles, n, random);
    }
    code = ruler_close(document, err);
    if (query) {
        out->ask = ruler_format("\nWhat %s code %s%s of %s in the text above?", one ? "is the" : "are all the", noun, s, query);
        out->lead = ruler_format(" The code %s%s of %s in the text %s", noun, s, query, one ? "is" : "are");
    }
    free(query);
    return code;
}
