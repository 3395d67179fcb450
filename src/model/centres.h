/* Query centres (TriAttention, arXiv 2604.04921): where the queries of a head lie, on average over a text, before RoPE. One complex
 * number for each pair of channels that RoPE rotates together. `butler calibrate` writes them beside the model; the metric
 * src/metrics/query_centre.c scores by them.
 *
 * The file is GGUF: general.architecture "butler-centres", butler-centres.model_xxh3 (the model's fingerprint, 16 hexadecimal
 * digits), butler-centres.n_tokens, and three F32 tensors [n_layers][n_heads][head_dim / 2]: centre_real, centre_imag and abs_mean,
 * the mean of the absolute value. They include RoPE's attention factor (YaRN), as queries do where they meet keys. */
#ifndef BUTLER_CENTRES_H
#define BUTLER_CENTRES_H

#include "model/predictor.h"

/* general.architecture of the file. */
#define BUTLER_CENTRES_ARCHITECTURE "butler-centres"

/* For scoring. Arrays are [n_layers][n_heads][n_pairs] unless it is said. */
struct butler_centres {
    char *path;
    int n_layers, n_heads, n_pairs;      /* n_pairs: head_dim / 2 */
    struct butler_predictor_pair *pairs; /* [n_layers][n_pairs] */
    float *real, *imag;                  /* the centre times the mean of e^(i w o) over the offsets o = 1, 2, 4, ..., 65536 */
    float *spread;                       /* the mean of the absolute value, minus the absolute value of the mean */
};

/* Pairs of the model's heads: [n_layers][head_dim / 2], to be freed; n_pairs is set. NULL on failure: BUTLER_ERROR_UNSUPPORTED for
 * a model with two sets of rotary frequencies, one of them for long contexts. */
struct butler_predictor_pair *butler_centres_pairs(const struct butler_model *model, int *n_pairs, struct butler_error *err);

/* NULL on failure: BUTLER_ERROR_ARGUMENT for another model's, BUTLER_ERROR_FORMAT for what does not fit or is no number. */
struct butler_centres *butler_centres_load(const char *path, struct butler_model *model, struct butler_error *err);
void butler_centres_free(struct butler_centres *centres);

/* Writes the file, whole or not at all. values[3]: centre_real, centre_imag, abs_mean, each [n_layers][n_heads][head_dim / 2] of
 * the model, over n_tokens tokens. BUTLER_ERROR_NUMERIC where one is no number. */
int butler_centres_save(const char *path, struct butler_model *model, int64_t n_tokens, const float *const values[3],
                        struct butler_error *err);

#endif
