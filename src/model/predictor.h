/* A predictor (TokenButler, arXiv 2503.07518): predicts which cached tokens matter to each head of later layers. It is learned
 * from the frozen model's attention. This file has its sizes, weights and file format. predict.c runs it; the trainer loops
 * over `params`.
 *
 * Notation. Of the model: N layers, E n_embd, H query heads, G KV heads, D head_dim. Of the predictor: d the width of a
 * predicted head, M n_mid the width of its two-layer networks. Rows of a matrix are outputs: y = W x, W[n_rows][n_cols].
 * p is the token's position in the text. Layer 0 is always dense; layers 1 .. N-1 are predicted.
 *
 * Input I[E] of the token at a layer (sizes.input):
 *   NORM       the input of the layer's attention: attn_norm(x), x the residual stream before the layer
 *   ATTENTION  the input of its feed-forward part: ffn_norm(x + attention output)
 *
 * Version 1 (section 3.1), once per token, on the input of layer 0. E' = n_inner (E/8), h = n_inner_heads:
 *   z  = down I                                                       [E']
 *   q, k, v = attn_q z, attn_k z, attn_v z; q and k of each of the h heads [E'/h] rotated at p
 *   a  = causal attention of the h heads, scale 1/sqrt(E'/h), over the last 4 rope_length tokens, itself included [E']
 *        (as published, rope_length 0: over the whole text up to it)
 *   n  = (a - mean a) / sqrt(var a + 1e-5) * norm.weight + norm.bias  (variance divides by E')
 *   f  = ffn_down gelu(ffn_up n + ffn_up.bias) + ffn_down.bias        ffn_up [2E'][E'], ffn_down [E][2E']
 *        gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   I' = I + f                                                        [E]
 *   Q  = query_2 silu(query_1 I')                                     query_1 [M][E], query_2 [(N-1) H d][M]
 *   K  = key_2 silu(key_1 I')                                         key_1 [M][E], key_2 [(N-1) C d][M]
 *        as [N-1][H][d] and [N-1][C][d]; C = n_key_heads is H (as published) or G. Head j of layer l
 *        begins at row ((l-1) H + j) d. Every [d] of Q and K is rotated at p, once, before it is stored.
 *   score of layer l, head j, for token i <= t: Q_t[l-1][j] . K_i[l-1][j C / H] / sqrt(d)
 *
 * Version 2 (arXiv 2503.07518 v2). Producers are at layers 0, stride, 2 stride, ... while a layer follows. Producer b, at
 * layer p_b = b stride, serves layers p_b + 1 .. min(p_b + stride, N - 1), n_b of them:
 *   n  = layer norm of I at layer p_b, as above, with producer.b.norm                 [E]
 *   Q  = query_2 silu(query_1 n)              query_1 [M][E], query_2 [n_b H d][M]; as [n_b][H][d]
 *        every [d] rotated at p with rope_freq (ours), or with rope_freq[l-1][j G / H] where each KV head has its own
 *        (head_freq); not rotated if that is 0 (as published)
 *   K  of layer l, KV head g = key.l[g] k     k [D] the model's cached key, after its rotation; key.l [G d][D], rows g d ...
 *   score of layer l, head j, for token i: Q_t[l-p_b-1][j] . K_i[l][j G / H] / sqrt(d)
 *
 * Rotation: pairs (x_i, x_{i + n/2}) of a vector of n, by the angle p f_i: (a c - b s, a s + b c). Version 1: f_i =
 * rope_base^(-2i/n), but 0 for pairs that do not complete a turn in rope_length tokens (ours; as published, rope_length 0: all
 * pairs are rotated). Version 2: rope_freq[i]. The model's cached keys are rotated by their positions. A query that is not rotated
 * by its own position can distinguish near from far tokens only by the slowest pairs. */
#ifndef BUTLER_PREDICTOR_H
#define BUTLER_PREDICTOR_H

#include "model/model.h"

enum butler_predictor_input { BUTLER_PREDICTOR_INPUT_NORM, BUTLER_PREDICTOR_INPUT_ATTENTION };

/* general.architecture of a predictor's file. */
#define BUTLER_PREDICTOR_ARCHITECTURE "butler-predictor"

enum { BUTLER_PREDICTOR_MAX_D = 128 };

struct butler_predictor_sizes {
    int version; /* 1 or 2 */
    enum butler_predictor_input input;
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim; /* the model's */
    int d;                                               /* a multiple of 4, at most BUTLER_PREDICTOR_MAX_D */
    int n_mid;                                           /* "intdim" */
    /* Version 1, else 0. */
    int n_inner, n_inner_heads; /* n_inner / n_inner_heads is even */
    int n_key_heads;            /* n_heads or n_kv_heads; version 2: n_kv_heads */
    float rope_base;
    int rope_length; /* pairs that turn within so many tokens are rotated; window: 4 times as many; 0: all, no window */
    /* Version 2, else 0. */
    int stride;
    float rope_freq[BUTLER_PREDICTOR_MAX_D / 2]; /* of pair i < d/2: radians per position; all 0: queries are not rotated */
    bool head_freq; /* each KV head has frequencies of its own instead: the parameter rope_freq[N-1][G][d/2] */
};

/* One parameter. A vector (a norm's weight, a bias) has n_rows 1. */
struct butler_predictor_param {
    char name[40]; /* "query_2.weight", "producer.1.norm.bias", "key.3.weight": the tensor's name in the file */
    int n_rows, n_cols;
    float *data;                 /* [n_rows][n_cols], inside predictor->weights; NULL: loaded to be run only */
    struct butler_matrix matrix; /* the same, to be run: floats, or the file's type in the mapping */
};

/* What the file says about its training. */
struct butler_predictor_training {
    int64_t n_tokens, n_steps;
    double loss;    /* of the last steps */
    char text[256]; /* a description of what it was trained on */
};

struct butler_predictor {
    struct butler_predictor_sizes sizes;
    uint64_t model_fingerprint; /* of the model it was trained for: butler_model_fingerprint, or sampled_fingerprint */
    bool model_sampled;         /* the latter: a file of version 0.1 */
    /* Of the file it was loaded from, whole and sampled; 0: made by butler_predictor_new. */
    uint64_t fingerprint, sampled_fingerprint;
    struct butler_predictor_training training;
    int n_params;
    struct butler_predictor_param *params; /* in the order of the comment above; version 2: producers, keys, rope_freq */
    size_t n_weights;                      /* in all parameters */
    float *weights;                        /* [n_weights] all parameters, concatenated, or NULL */
    struct butler_gguf *gguf;              /* mapping behind the matrices, or NULL */
    uint64_t run_bytes;                    /* of all matrices in the type in which they are run */
};

/* Default sizes of a new predictor for this model: E' = E/8 in as many heads as the model has (or one, if they would not be
 * even), n_mid = E/4 in [64, 1024], d = 16 (32 from E = 4096 on), one key per KV head, stride 4, the model's rope base, fast pairs
 * rotated (version 2: if the model rotates). The caller may change them before butler_predictor_new. */
struct butler_predictor_sizes butler_predictor_sizes_for(const struct butler_model *model, int version);

/* Sets which pairs are rotated, for training texts of n_tokens: those that complete a turn within such a text. A slower pair
 * would learn only part of the circle, and distances beyond the training texts would look near. Version 1: rope_length; its
 * attention window is four times as long, beyond which nothing was gained. Version 2: rope_freq for d channels, evenly chosen
 * from the model's own fast pairs; all 0 if the model rotates nothing. n_tokens 0: as published, all pairs in version 1, none in
 * version 2. butler_predictor_sizes_for has done it for BUTLER_PREDICTOR_TEXT tokens. */
enum { BUTLER_PREDICTOR_TEXT = 1024 };
void butler_predictor_rotate(struct butler_predictor_sizes *sizes, const struct butler_model *model, int n_tokens);
bool butler_predictor_rotates(const struct butler_predictor_sizes *sizes); /* version 1, head_freq, or rope_freq is not all 0 */
/* Version 2: radians per position of a predicted layer's queries, *n_sets sets of [d/2], of each KV head or (1) of all. */
const float *butler_predictor_layer_freq(const struct butler_predictor *predictor, int layer, int *n_sets);
/* Channels of a head of the model that its rotation turns together, and by which angle (radians per position, 0: not at all). */
struct butler_predictor_pair {
    int first, second;
    float freq;
};
/* The i-th of head_dim / 2 pairs. */
struct butler_predictor_pair butler_predictor_pair_of(const struct butler_model *model, int layer, int i);
/* Length of version 1's attention window, the query's token included. */
int butler_predictor_window(const struct butler_predictor_sizes *sizes);
/* Radians per position, freq[dim / 2], of version 1's vectors of dim channels. */
void butler_predictor_frequencies(const struct butler_predictor_sizes *sizes, int dim, float *freq);

/* Layers that producer b serves: [*first, *first + n); returns n, 0 if there is no such producer. Version 1 has one. */
int butler_predictor_serves(const struct butler_predictor_sizes *sizes, int producer, int *first);

/* A new predictor: Glorot-uniform matrices from seed, norms 1, biases 0. model_fingerprint is 0; the caller sets it.
 * NULL with *err filled: invalid sizes, or no memory. */
struct butler_predictor *butler_predictor_new(const struct butler_predictor_sizes *sizes, uint64_t seed, struct butler_error *err);

/* Loads a file for this model; a file for another model is an error that names both fingerprints. model NULL: not checked.
 * trainable: converted to floats (weights, data); otherwise the matrices stay in the mapped file. */
struct butler_predictor *butler_predictor_load(const char *path, struct butler_model *model, bool trainable,
                                               struct butler_error *err);
void butler_predictor_free(struct butler_predictor *predictor);

/* Writes a trainable predictor atomically: matrices as type (F32, F16, Q8_0 or Q4_0; F16 where rows are not a multiple of 32),
 * vectors as F32. */
int butler_predictor_save(const struct butler_predictor *predictor, const char *path, enum butler_type type,
                          struct butler_error *err);

/* NULL if there is no parameter of that name. */
const struct butler_predictor_param *butler_predictor_find(const struct butler_predictor *predictor, const char *name);

/* Bytes of its weights that a decode step reads. */
uint64_t butler_predictor_step_bytes(const struct butler_predictor *predictor);

#endif
