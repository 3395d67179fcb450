/* Multiple-choice questions of eight data sets, read from their own formats into one struct. */
#ifndef EVAL_MC_H
#define EVAL_MC_H

#include "eval.h"

enum { MC_MAX_CHOICES = 20 };

enum mc_kind { MC_HELLASWAG, MC_PIQA, MC_ARC_EASY, MC_WINOGRANDE, MC_BOOLQ, MC_LAMBADA, MC_BBH, MC_MMLU_PRO, MC_N_KINDS };

/* As in lm-evaluation-harness: the probabilities of answers[i] after contexts[i] are compared; LAMBADA has one answer. */
struct mc_question {
    int n_choices, gold;
    char *contexts[MC_MAX_CHOICES];   /* owned */
    char *answers[MC_MAX_CHOICES];    /* owned; begins with the space that follows the context */
    int n_characters[MC_MAX_CHOICES]; /* of the choice in the data; acc_norm divides by it */
};

struct mc_reader {
    enum mc_kind kind;
    struct eval_jsonl lines;
    bool plain;              /* HellaSwag as text, six lines an item */
    struct eval_text labels; /* PIQA's second file */
    char *labels_path;
    size_t labels_at;
    int n_labels;
    json_t *targets; /* BBH: the different targets of the file, in the order in which they occur */
};

const char *mc_kind_name(enum mc_kind kind);

/* path: see docs/eval-sets.md for the formats. PIQA without labels in it: NAME.jsonl has them in NAME-labels.lst. */
int mc_reader_open(struct eval_run *run, struct mc_reader *reader, enum mc_kind kind, const char *path, struct butler_error *err);
/* 1: *question is the next one, to be cleared. 0: no more. Errors name file, line and field. */
int mc_reader_next(struct mc_reader *reader, struct mc_question *question, struct butler_error *err);
void mc_reader_close(struct mc_reader *reader);
void mc_question_clear(struct mc_question *question);

#endif
