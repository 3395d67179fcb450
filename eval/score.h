/* How LongBench scores an answer against a right one, each in 0 .. 1. What these compute is what the benchmark's Python
 * does with the packages it names (rouge 1.0.1, fuzzywuzzy 0.18.0 over the standard library's difflib), odd corners
 * included: tests/test_eval_score.c compares them. All return 0, or negative with *err filled. */
#ifndef EVAL_SCORE_H
#define EVAL_SCORE_H

#include "base/util.h"

/* F1 of the words, after lower case and without punctuation and articles. */
int eval_score_f1(const char *answer, const char *right, double *score, struct butler_error *err);
/* ROUGE-L, summary level (Lin 2004, section 3.2), over the sets of words, sentences ending at full stops. */
int eval_score_rouge_l(const char *answer, const char *right, double *score, struct butler_error *err);
/* One over the number of classes that the answer names, if the right one is among them. */
int eval_score_class(const char *answer, const char *right, const char *const *classes, int n_classes, double *score,
                     struct butler_error *err);
/* Share of the numbers in the answer that are the right one: right itself, or what follows `before` in it. */
int eval_score_number(const char *answer, const char *right, const char *before, double *score, struct butler_error *err);
/* Similarity of the answer's first line that is no comment: Ratcliff and Obershelp's ratio over characters, in hundredths. */
int eval_score_edit(const char *answer, const char *right, double *score, struct butler_error *err);

#endif
