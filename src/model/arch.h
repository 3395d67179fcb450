/* What binding a model needs to know about an architecture: the role of each tensor, and its shape in terms of the
 * hyperparameters. A new architecture of the same family is one more table in arch.c. */
#ifndef BUTLER_ARCH_H
#define BUTLER_ARCH_H

#include "model/model.h"

/* Sizes a shape is written in. */
enum butler_dim {
    BUTLER_DIM_NONE, /* 0 */
    BUTLER_DIM_EMBD,
    BUTLER_DIM_FF,
    BUTLER_DIM_2FF, /* gate and up in one tensor */
    BUTLER_DIM_Q,   /* all query heads */
    BUTLER_DIM_KV,  /* all KV heads */
    BUTLER_DIM_Q_KV,
    BUTLER_DIM_QKV, /* q, k and v in one tensor */
    BUTLER_DIM_HEAD,
    BUTLER_DIM_VOCAB,
    BUTLER_DIM_CTX,
    BUTLER_N_DIMS,
};

enum butler_part {
    BUTLER_PART_MATRIX, /* where: a struct butler_matrix */
    BUTLER_PART_BIAS,   /* where: the struct butler_matrix it belongs to */
    BUTLER_PART_WEIGHT, /* where: a struct butler_vector */
    BUTLER_PART_SHIFT,  /* where: the struct butler_vector whose bias it is */
    BUTLER_PART_OTHER,  /* read elsewhere, or can be ignored */
};

/* Rows [first, first + n_rows) of a tensor with n_stored rows have a role. For a vector, rows are elements and n_cols is
 * NONE. An entry whose role is already filled is skipped: so a table can list alternatives, the required one last. */
struct butler_binding {
    const char *name; /* within a layer: the part after "blk.N."; NULL ends the table */
    enum butler_part part;
    size_t where; /* offset in struct butler_model or struct butler_layer */
    enum butler_dim n_rows, n_cols, n_stored, first;
    bool optional;
};

struct butler_arch {
    const char *name;
    enum butler_norm norm;
    enum butler_activation activation;
    enum butler_rope rope;
    bool has_sliding_window;
    const struct butler_binding *model, *layer;
};

/* NULL if there is no architecture of that name. */
const struct butler_arch *butler_arch_find(const char *name);
/* "llama, qwen2, ..." */
const char *butler_arch_names(void);

/* "ARCH.SUFFIX", for a suffix from our own code, which is short. */
struct butler_arch_key {
    char text[96];
};
struct butler_arch_key butler_arch_key(const struct butler_model *model, const char *suffix);

/* *out = n elements of a vector from `first` on, as floats: borrowed from the mapping if they are F32 and aligned, otherwise
 * converted into memory that the model owns. */
int butler_model_vector(struct butler_model *model, const struct butler_tensor *tensor, int64_t first, int64_t n, const float **out,
                        struct butler_error *err);

/* Fills rope_freq, rope_freq_long, the scales and rope_original_ctx from hp, the scaling keys, and the factor tensors. */
int butler_rope_init(struct butler_model *model, struct butler_error *err);

#endif
