/* Training a predictor (TokenButler v1, v2) on the attention of a model that stays as it is: the model reads texts, and at every
 * layer what the predictor would have said is held against what the layer does. `butler train` is a loop over
 * butler_trainer_step.
 *
 * A step takes batch * accumulate texts, each the work of one thread, and adds their gradients in the order of the texts: how many
 * threads or processes share them changes no bit. */
#ifndef BUTLER_TRAIN_H
#define BUTLER_TRAIN_H

#include "adamw.h"
#include "data.h"
#include "loss.h"
#include "gather.h"

struct butler_train_params {
    const char *const *data, *const *valid; /* paths of texts; valid: to measure on, none: a part of data */
    int n_data, n_valid;
    const char *start; /* a predictor of this version to go on from, whose sizes count; NULL: a new one of these: */
    struct butler_predictor_sizes sizes;
    enum butler_loss_kind loss;
    int length;            /* tokens of a text */
    int batch, accumulate; /* texts whose gradients are summed at once, over all processes; how many such sums a step has */
    int64_t n_tokens;      /* to train on, if adam.n_steps is 0; both 0: the data once */
    int n_valid_texts;
    struct butler_adamw_params adam;
    uint64_t seed;
    int n_threads; /* of this process */
};

struct butler_trainer {
    struct butler_engine *engine; /* borrowed */
    struct butler_model *model;   /* the engine's */
    struct butler_train_params params;
    const struct butler_gather *reduce; /* borrowed */
    struct butler_blas *blas;
    struct butler_data data;
    struct butler_predictor *predictor;
    struct butler_adamw adam;
    int64_t n_texts, n_tokens; /* read so far, over all processes */
    double loss;               /* of the last step */
    /* This process takes texts [first_text, first_text + n_local) of each batch. */
    int first_text, n_local;
    float **grads;      /* [n_local][n_weights + 2 batch]: behind the gradient the loss and the tokens of each text */
    float *sum, *total; /* [n_weights + 2 batch] of a batch, of a step */
    struct butler_pool *pool;
    int n_workers;
    struct butler_train_worker *workers; /* [n_workers] */
    struct butler_train_result *results; /* [most texts at once] */
    int n_results;
};

/* Model, data and reduce must outlive the trainer. */
struct butler_trainer *butler_trainer_new(struct butler_engine *engine, const struct butler_train_params *params,
                                          const struct butler_gather *reduce, struct butler_error *err);
void butler_trainer_free(struct butler_trainer *trainer);

struct butler_train_report {
    int64_t step, n_steps, n_tokens, n_skipped;
    double loss, rate, norm;
    bool skipped;
};

/* The next step. Past the last it does nothing and returns 0; else 1, or a negative code. */
int butler_trainer_step(struct butler_trainer *trainer, struct butler_train_report *report, struct butler_error *err);

/* Loss and measures (sums, see loss.h) on the held-out texts, by this process alone. */
int butler_trainer_measure(struct butler_trainer *trainer, double *loss, struct butler_loss_measures *measures,
                           struct butler_error *err);

/* The predictor as it is now, as a file; text: what it was trained on. */
int butler_trainer_write(struct butler_trainer *trainer, const char *path, enum butler_type type, const char *text,
                         struct butler_error *err);

/* Everything a killed run needs to go on bit for bit: weights, moments, place in the data, counters. Versioned, checksummed,
 * written beside the path and renamed. Restoring into a trainer of other sizes, data or settings is an error that names the
 * difference. */
int butler_trainer_save(const struct butler_trainer *trainer, const char *path, struct butler_error *err);
int butler_trainer_restore(struct butler_trainer *trainer, const char *path, struct butler_error *err);

/* Bytes of scratch one text of the full length takes in one thread: predictor, session. */
size_t butler_trainer_text_bytes(const struct butler_trainer *trainer);

#endif
