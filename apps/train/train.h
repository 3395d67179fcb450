/* Training of a predictor (TokenButler v1, v2) on the attention of a frozen model: the model reads texts, and at every layer the
 * predictor's scores are compared with the layer's attention. `butler train` is a loop over butler_trainer_step.
 *
 * The model's pass over a text costs more than all else, so its states are kept and used in several steps, each time with other
 * queries. A step takes batch * accumulate texts, each processed by one thread, and adds their gradients in the order of the
 * texts: the result does not depend, bit for bit, on the number of threads or processes. */
#ifndef BUTLER_TRAIN_H
#define BUTLER_TRAIN_H

#include "adamw.h"
#include "data.h"
#include "loss.h"
#include "gather.h"

enum { BUTLER_TRAIN_KEPT = 4 };

struct butler_train_params {
    const char *const *data, *const *valid; /* paths of texts; valid: held-out texts, n_valid 0: a part of data */
    int n_data, n_valid;
    const char *start; /* a predictor of this version to continue from, with its sizes; NULL: a new one of these sizes: */
    struct butler_predictor_sizes sizes;
    bool fit; /* a new one of version 2 begins with least squares (fit.h), else at random */
    enum butler_loss_kind loss;
    int length;            /* tokens of a text */
    int n_uses;            /* steps in which a text is used once the model has read it */
    int n_queries;         /* of a text, that the loss sees: a random sample, another in every step; 0: all */
    float dropout;         /* version 1, while it trains: see net.h */
    int batch, accumulate; /* texts whose gradients are summed together, over all processes; number of such sums per step */
    int64_t n_tokens;      /* to train on, if adam.n_steps is 0; both 0: all data once */
    int n_valid_texts;
    struct butler_adamw_params adam;
    uint64_t seed;
    int n_threads; /* of this process */
};

/* The fit has passed over n of n_all batches. */
typedef void butler_fit_progress_fn(void *user, int n, int n_all);

struct butler_trainer {
    struct butler_engine *engine; /* borrowed */
    struct butler_model *model;   /* the engine's */
    const struct butler_model_info *info;
    struct butler_train_params params;
    const struct butler_gather *reduce; /* borrowed */
    struct butler_blas *blas;
    struct butler_vector_loops loops;
    struct butler_data data;
    struct butler_predictor *predictor;
    bool to_fit;                      /* before the first step */
    butler_fit_progress_fn *progress; /* while it is fitted; NULL: nobody asks */
    void *user;
    int n_fitted; /* batches that the fit has passed over */
    struct butler_adamw adam;
    int64_t n_texts, n_tokens; /* used so far, over all processes: a text counts as often as it was used */
    double loss;               /* of the last step */
    double batch_s[2];         /* time of this process's batches: those whose texts were kept, those that the model read */
    int64_t n_batches[2];
    /* This process takes texts [first_text, first_text + n_local) of each batch. */
    int first_text, n_local;
    /* Texts whose states are kept take turns: with n_uses = 1 one for each text of a batch, else BUTLER_TRAIN_KEPT. */
    int n_kept;
    struct butler_states *kept; /* [n_kept][n_local] */
    int64_t *kept_number;       /* [n_kept][n_local] of the text that is there, or -1 */
    float **grads;              /* [n_local][n_weights + 2 batch]: after the gradient the loss and the tokens of each text */
    float *sum, *total;         /* [n_weights + 2 batch] of a batch, of a step */
    struct butler_pool *pool;
    int n_workers;
    struct butler_train_worker *workers; /* [n_workers] */
    struct butler_train_result *results; /* [n_results] */
    int n_results;
};

/* Model, data and reduce must outlive the trainer. */
struct butler_trainer *butler_trainer_new(struct butler_engine *engine, const struct butler_train_params *params,
                                          const struct butler_gather *reduce, struct butler_error *err);
void butler_trainer_free(struct butler_trainer *trainer);

struct butler_train_report {
    int64_t step, n_steps, n_tokens, n_skipped;
    double loss, rate, norm;
    double seconds_left; /* of the steps that follow, by the time of those before; negative: not known yet */
    bool skipped;
};

/* The least squares that a new predictor of version 2 begins with (fit.h), where it has not begun; otherwise nothing. Returns 1 if
 * it was fitted now, 0, or a negative code. progress is called after each batch of texts, by this thread. */
int butler_trainer_begin(struct butler_trainer *trainer, butler_fit_progress_fn *progress, void *user, struct butler_error *err);

/* Runs the next step, and butler_trainer_begin before the first. Returns 1, 0 after the last step (and does nothing), or a negative
 * code. */
int butler_trainer_step(struct butler_trainer *trainer, struct butler_train_report *report, struct butler_error *err);

/* Loss and measures (sums, see loss.h) on the held-out texts, by this process alone. */
int butler_trainer_measure(struct butler_trainer *trainer, double *loss, struct butler_loss_measures *measures,
                           struct butler_error *err);

/* Writes the predictor in its current state to a file; text: what it was trained on. */
int butler_trainer_write(struct butler_trainer *trainer, const char *path, enum butler_type type, const char *text,
                         struct butler_error *err);

/* Everything that a killed run needs to continue bit for bit: weights, moments, position in the data, counters. Versioned,
 * checksummed, written to a temporary file and renamed. Restoring into a trainer with other sizes, data or settings is an error
 * that names the difference. */
int butler_trainer_save(const struct butler_trainer *trainer, const char *path, struct butler_error *err);
int butler_trainer_restore(struct butler_trainer *trainer, const char *path, struct butler_error *err);

/* Bytes of the predictor's scratch and of the states that are kept, in this process. */
size_t butler_trainer_bytes(const struct butler_trainer *trainer);

#endif
