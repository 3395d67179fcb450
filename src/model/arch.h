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
    BUTLER_DIM_ONE,
    BUTLER_DIM_HEADS,
    BUTLER_DIM_EXPERTS,
    BUTLER_DIM_EXPERT_FF,    /* the inner width of one expert */
    BUTLER_DIM_EXPERTS_FF,   /* of all experts together */
    BUTLER_DIM_EXPERTS_EMBD, /* n_embd for each expert */
    BUTLER_DIM_SHARED_FF,
    BUTLER_DIM_Q_NORM, /* head_dim, or with wide_qk_norm all query heads */
    BUTLER_DIM_K_NORM,
    BUTLER_DIM_Q_HEADS, /* head_dim for each query head, KV head */
    BUTLER_DIM_KV_HEADS,
    BUTLER_DIM_VOCAB,
    BUTLER_DIM_CTX,
    BUTLER_N_DIMS,
};

enum butler_part {
    BUTLER_PART_MATRIX,  /* where: a struct butler_matrix */
    BUTLER_PART_BIAS,    /* where: the struct butler_matrix it belongs to */
    BUTLER_PART_WEIGHT,  /* where: a struct butler_vector */
    BUTLER_PART_SHIFT,   /* where: the struct butler_vector whose bias it is */
    BUTLER_PART_NUMBERS, /* where: a const float * */
    BUTLER_PART_OTHER,   /* read elsewhere, or can be ignored */
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

/* Which layers rotate queries and keys. */
enum butler_arch_rotates {
    BUTLER_ROTATES_ALL,
    BUTLER_ROTATES_NOT_FOURTH, /* all but every fourth layer (smollm3) */
    BUTLER_ROTATES_WINDOWED,   /* layers with a window; all, where none has (cohere2, exaone4) */
};

enum butler_arch_parallel {
    BUTLER_PARALLEL_NEVER,
    BUTLER_PARALLEL_ALWAYS,
    BUTLER_PARALLEL_KEY,     /* as the key use_parallel_residual says */
    BUTLER_PARALLEL_NO_NORM, /* where layers have no ffn_norm */
};

/* What a field that is 0 or NULL says: an RMS norm, SILU, no rotation, the tensors of rope_model. */
struct butler_arch {
    const char *name;
    enum butler_norm norm;
    enum butler_activation activation;
    enum butler_rope rope;
    const struct butler_binding *model, *layer; /* tables of tensors */
    const struct butler_binding *expert_layer;  /* of files with experts; NULL: this architecture has none */
    bool experts_unnormalised;                  /* the weights of a token's experts are those of a softmax over all */
    bool exact_yarn;                            /* YaRN's ramp is not rounded to whole pairs */
    /* Of each window_period layers the last has no window, the others have the file's; 0: all have it. For files that do not say.
     */
    int window_period;
    float local_theta; /* RoPE base of layers with a window; 0: that of the others */
    enum butler_arch_rotates rotates;
    enum butler_arch_parallel parallel;
    bool scales_embd;      /* by sqrt(n_embd) */
    bool wide_qk_norm;     /* q_norm and k_norm are over all heads at once */
    bool divides_logits;   /* key logit_scale is a divisor */
    int wide_scale_layers; /* with this number of layers, scores are scaled by sqrt(n_heads / n_embd), not 1 / sqrt(head_dim) */
};

/* The tensors outside layers, and those of a layer. */
const struct butler_binding *butler_arch_model(const struct butler_arch *arch);
const struct butler_binding *butler_arch_layer(const struct butler_arch *arch, const struct butler_hparams *hp);

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

/* Reads the keys that only some architectures have: windows, scales and soft caps, and which layers rotate by what. */
int butler_model_variants(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err);

/* Fills rope_freq, rope_freq_long, the scales and rope_original_ctx from hp, the scaling keys, and the factor tensors. */
int butler_rope_init(struct butler_model *model, struct butler_error *err);
/* The model's key_shifts; after butler_rope_init. */
int butler_key_shifts_init(struct butler_model *model, struct butler_error *err);

#endif
