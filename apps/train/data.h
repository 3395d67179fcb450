/* Training texts: mapped files, cut into pieces of about `length` tokens that are tokenised when they are used. The i-th piece
 * depends only on the files, the length and the seed, so that a position in the data is one number. */
#ifndef BUTLER_DATA_H
#define BUTLER_DATA_H

#include "base/util.h"

enum { BUTLER_DATA_MAX_FILES = 64, BUTLER_DATA_MIN_TOKENS = 32 };

struct butler_data_file {
    const char *path; /* borrowed */
    struct butler_map map;
    size_t n_train; /* bytes for training; the rest is held out */
    int64_t first_train, n_train_pieces, n_valid_pieces;
};

struct butler_data {
    const struct butler_model *model;
    int length; /* maximum tokens of a text */
    uint64_t seed;
    size_t piece_bytes;
    int n_files, n_valid_files; /* of `files`: for training, then only for measuring */
    struct butler_data_file files[2 * BUTLER_DATA_MAX_FILES];
    int64_t n_train, n_valid; /* pieces */
    uint64_t digest;          /* of the files' sizes and samples: a restored run checks it */
};

struct butler_data_params {
    const char *const *paths, *const *valid; /* files to train on; held-out ones */
    int n_paths, n_valid;                    /* n_valid 0: the last hundredth of every file, at least one piece, is held out */
    int length;                              /* maximum tokens of a text */
    uint64_t seed;
};

int butler_data_open(struct butler_data *data, const struct butler_model *model, const struct butler_data_params *params,
                     struct butler_error *err);
void butler_data_close(struct butler_data *data);

/* ids[length] of text number i >= 0; each pass over the data has another order. Returns the number of ids, at least
 * BUTLER_DATA_MIN_TOKENS. Thread-safe. */
int butler_data_train(const struct butler_data *data, int64_t i, int32_t *ids, struct butler_error *err);
/* The i-th of n held-out texts, spread evenly. */
int butler_data_valid(const struct butler_data *data, int i, int n, int32_t *ids, struct butler_error *err);

#endif
