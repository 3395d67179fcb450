/* Text by the rules of the published scorers, which are Python programs: spaces, words and lower-case letters are Python's. */
#ifndef EVAL_WORDS_H
#define EVAL_WORDS_H

#include "base/util.h"

/* A piece of a text, not terminated. */
struct eval_span {
    const char *bytes;
    size_t n;
};

struct eval_words {
    struct eval_span *words; /* [n] into the text they were cut from */
    int n;
    size_t capacity;
};

/* The character at bytes[0] and its length; an invalid byte is a character by itself. */
int eval_character(const char *bytes, size_t n, uint32_t *codepoint);
int eval_count_characters(const char *text);
/* str.isspace of one character. */
bool eval_is_space(uint32_t codepoint);
/* str.strip */
struct eval_span eval_strip(struct eval_span text);
/* str.lower, or with capital the first letter upper (str.capitalize). Owned. */
char *eval_lower(struct eval_span text, bool capital, struct butler_error *err);
/* \w of Python's re. */
bool eval_is_word(uint32_t codepoint);

/* Appends the words of a text, cut at white space (str.split without arguments). */
int eval_split(struct eval_span text, struct eval_words *words, struct butler_error *err);
int eval_words_add(struct eval_words *words, struct eval_span word, struct butler_error *err);
/* Numbers the words of two texts from 0, equal words equally, into ids_a[a->n] and ids_b[b->n]; returns how many differ. */
int eval_number_words(const struct eval_words *a, const struct eval_words *b, int *ids_a, int *ids_b, struct butler_error *err);
void eval_words_free(struct eval_words *words);
int eval_span_compare(struct eval_span a, struct eval_span b);

#endif
