/* Scores of an answer against a correct one, each in 0 .. 1. LongBench's compute what the benchmark's Python code does with its
 * packages (rouge 1.0.1, fuzzywuzzy 0.18.0 over the standard library's difflib), unintended cases included; eval_score_rouge is
 * that of rouge-score 0.1.2;
 * tests/test_eval_score.c compares them. All return 0, or negative with *err filled. */
#ifndef EVAL_SCORE_H
#define EVAL_SCORE_H

#include "base/util.h"

/* F1 over words, in lower case, without punctuation and articles. */
int eval_score_f1(const char *answer, const char *right, double *score, struct butler_error *err);
/* ROUGE-L, summary level (Lin 2004, section 3.2), over the sets of words; sentences end at full stops. */
int eval_score_rouge_l(const char *answer, const char *right, double *score, struct butler_error *err);
/* F-measures of Rouge-1, Rouge-2 and Rouge-L, of whole texts, without stemming. */
enum { EVAL_N_ROUGE = 3 };
int eval_score_rouge(const char *answer, const char *right, double scores[EVAL_N_ROUGE], struct butler_error *err);
/* 1 / number of classes that the answer names, if the correct one is among them, else 0. */
int eval_score_class(const char *answer, const char *right, const char *const *classes, int n_classes, double *score,
                     struct butler_error *err);
/* Share of the numbers in the answer that are the correct one: `right` itself, or the text after `before` in it. */
int eval_score_number(const char *answer, const char *right, const char *before, double *score, struct butler_error *err);
/* 1 if the answer contains `right`, whatever the case of letters, else 0 (RULER's string match of one string). */
int eval_score_contains(const char *answer, const char *right, double *score, struct butler_error *err);
/* Similarity of the answer's first line that is not a comment: Ratcliff and Obershelp's ratio over characters, in hundredths. */
int eval_score_edit(const char *answer, const char *right, double *score, struct butler_error *err);

#endif
