/* RULER (Hsieh et al., arXiv 2404.06654): what the makers of its thirteen tasks share. A maker writes one item of a given size as
 * text; ruler.c finds the largest size that --length holds. */
#ifndef EVAL_RULER_H
#define EVAL_RULER_H

#include <stdio.h>

#include "answer.h"
#include "words.h"

/* What hides the needles: one sentence over and over, a text, or other needles. */
enum ruler_haystack { RULER_NOISE, RULER_ESSAY, RULER_NEEDLES };

/* An item as text. Strings are owned. */
struct ruler_text {
    char *document, *ask, *lead; /* as in struct eval_question; a maker may leave NULL where there was no memory */
    json_t *answers;             /* the expected strings */
};

struct ruler;
/* One of the thirteen. */
struct ruler_set {
    const char *name;
    int max_answer; /* tokens that are generated */
    int min_size;
    /* Writes item `index` of this size; the text is a function of the size and of *random. */
    int (*make)(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out, struct butler_error *err);
    bool any; /* one expected string is enough; otherwise each counts */
    /* of needles: keys and values are UUIDs, or else names and numbers; of n_keys keys with n_values values each, n_queries are
     * asked for */
    enum ruler_haystack haystack;
    bool uuid_keys, uuid_values;
    int n_keys, n_values, n_queries;
};

/* What makers read. */
struct ruler {
    const struct ruler_set *set;
    int length;              /* of an item, in tokens, with its answer */
    int n_depths;            /* places of the needle that is asked for; 0: at random */
    struct eval_words essay; /* words of the text that hides the needles */
    struct ruler_questions *questions;
    int max_size;
};

int ruler_make_needles(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                       struct butler_error *err);
int ruler_make_chain(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                     struct butler_error *err);
int ruler_make_common(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                      struct butler_error *err);
int ruler_make_frequent(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                        struct butler_error *err);
int ruler_make_question(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                        struct butler_error *err);

/* The sentences of RULER_NOISE, one line. */
extern const char ruler_noise[];

/* The questions and passages of a SQuAD or HotpotQA file. */
struct ruler_questions;
/* hotpot: which of the two forms is expected. Errors name the file and the field. */
int ruler_questions_read(struct eval_run *run, const char *path, bool hotpot, struct ruler_questions **out,
                         struct butler_error *err);
int ruler_questions_count(const struct ruler_questions *questions);
int ruler_passages_count(const struct ruler_questions *questions);
void ruler_questions_free(struct ruler_questions *questions);

/* Ends a text that open_memstream collects (NULL: it could not begin); negative, with *err filled, without memory. */
int ruler_close(FILE *out, struct butler_error *err);
/* asprintf; NULL without memory. */
char *ruler_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
