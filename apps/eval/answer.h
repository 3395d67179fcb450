/* Shared by the tasks that ask for an answer: a prompt from pieces, its answer, and the count of correct tokens. */
#ifndef EVAL_ANSWER_H
#define EVAL_ANSWER_H

#include "eval.h"

/* eval_item.own. */
struct eval_answer {
    int n_answer; /* tokens at the end of the item's ids */
    int cell;     /* of a grid, or 0 */
};

enum { EVAL_ANSWER_VALUES = 3 /* whole answer correct; correct tokens; tokens */ };

/* What stands around the document and the question of an item, and which of them the policy observes. */
struct eval_frame {
    bool chat;                     /* document and question are a user's turn in the model's chat template */
    bool asks_after;               /* the document alone is the prompt: the question is decoded under the policy */
    struct eval_ids before, after; /* tokens before the document, and between question and answer */
};
/* From the task's options chat and ask. */
int eval_frame_init(struct eval_frame *frame, const struct eval_run *run, struct butler_error *err);
void eval_frame_free(struct eval_frame *frame);

/* The texts of an item after its document. The model is to continue `lead` with the answer. */
struct eval_question {
    const char *ask;  /* or "" */
    const char *lead; /* the beginning of the answer, given */
    const char *answer;
};
/* Tokens of an item up to its answer into ids: frame, document, ask, frame, lead. ids[0, *n_document) are those up to the
 * document's end. question->answer is not read. */
int eval_frame_join(struct eval_ids *ids, const struct eval_run *run, const struct eval_frame *frame,
                    const struct eval_ids *document, const struct eval_question *question, int *n_document,
                    struct butler_error *err);
/* Adds an item: frame, document, ask, frame, lead, answer. Each part is tokenized separately. */
int eval_answer_add(struct eval_run *run, const struct eval_frame *frame, const struct eval_ids *document,
                    const struct eval_question *question, int cell, struct butler_error *err);
/* Tokens of a document that is a text: in the template it continues another. */
int eval_document(struct eval_ids *ids, const struct eval_run *run, const struct eval_frame *frame, const char *text,
                  struct butler_error *err);

/* eval_task.run: an answer token is correct when it is the most probable one after the true tokens before it; a whole answer is
 * correct exactly when greedy generation would give it. */
int eval_answer_run(struct eval_trial *trial, struct butler_error *err);

/* Rows accuracy and, if asked for, coverage; detail (or NULL) goes into the first. */
int eval_answer_summary(const struct eval_run *run, const double *values, bool coverage, json_t *detail, struct eval_row *rows);
/* eval_task.rows: both rows, without detail. */
int eval_answer_rows(const struct eval_run *run, const double *values, struct eval_row *rows, struct butler_error *err);

/* The texts of coref, also for other tasks on them: needs the options dense, ask and chat. */
int eval_coref_load(struct eval_run *run, struct butler_error *err);

/* Options every such task has. */
#define EVAL_ANSWER_OPTIONS(chat)                                                                                                  \
    {"ask", "before", "before: the policy sees the question before it cuts; after: it cuts the document, then is asked"},          \
        EVAL_COMMON_OPTIONS,                                                                                                       \
    {                                                                                                                              \
        "chat", chat, "the model's chat template: auto (where it has one), on, off"                                                \
    }

/* A number below n from the run's random numbers. */
int eval_below(uint64_t *random, int n);
/* n decimal digits and a 0. */
void eval_digits(uint64_t *random, int n, char *out);
/* k different numbers below n into out, in random order. scratch[n]. */
void eval_distinct(uint64_t *random, int n, int k, int *scratch, int *out);

/* "amber-anchor": the name with this index, below EVAL_N_NAMES. */
#define EVAL_N_NAMES (EVAL_N_WORDS * EVAL_N_WORDS)
void eval_name(int index, char *out, size_t n_out);

/* Common words of four to nine letters, for keys, values and names. */
enum { EVAL_N_WORDS = 400 };
extern const char *const eval_words[EVAL_N_WORDS];

#endif
