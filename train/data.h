/* The texts a predictor learns from: files mapped and cut into pieces of about `length` tokens, tokenised when they are wanted.
 * Which piece is the i-th depends on nothing but the files, the length and the seed, so that a position in the data is one number.
 */
#ifndef BUTLER_DATA_H
#define BUTLER_DATA_H

#include "base/util.h"

enum { BUTLER_DATA_MAX_FILES = 64, BUTLER_DATA_MIN_TOKENS = 32 };

struct butler_data_file {
    const char *path; /* borrowed */
    struct butler_map map;
    size_t n_train; /* bytes that are trained on; what follows is held out */
    int64_t first_train, n_train_pieces, n_valid_pieces;
};

struct butler_data {
    const struct butler_model *model;
    int length; /* most tokens of a text */
    uint64_t seed;
    size_t piece_bytes;
    int n_files, n_valid_files; /* of `files`: trained on, then only measured on */
    struct butler_data_file files[2 * BUTLER_DATA_MAX_FILES];
    int64_t n_train, n_valid; /* pieces */
    uint64_t digest;          /* of the files' sizes and samples: tells whether they are the same ones */
};

/* The last hundredth of every file, a piece at least, is held out, unless valid names files for that. */
int butler_data_open(struct butler_data *data, const struct butler_model *model, const char *const *paths, int n_paths,
                     const char *const *valid, int n_valid, int length, uint64_t seed, struct butler_error *err);
void butler_data_close(struct butler_data *data);

/* ids[length] of text number i >= 0: each pass over the data in another order. Returns how many, BUTLER_DATA_MIN_TOKENS or
 * more. Safe in several threads. */
int butler_data_train(const struct butler_data *data, int64_t i, int32_t *ids, struct butler_error *err);
/* The i-th of n held-out texts, spread evenly. */
int butler_data_valid(const struct butler_data *data, int i, int n, int32_t *ids, struct butler_error *err);

#endif
