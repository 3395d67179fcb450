/* A model bound to its file: hyperparameters, and the tensors of each layer by role. One table of names and shapes per
 * architecture fills these structs. The forward pass does not depend on the architecture, only on which tensors are present. */
#ifndef BUTLER_MODEL_H
#define BUTLER_MODEL_H

#include "file/gguf.h"
#include "text/tokenizer.h"

enum butler_norm { BUTLER_NORM_RMS, BUTLER_NORM_LAYER };
enum butler_activation {
    BUTLER_SILU,
    BUTLER_GELU /* tanh approximation, as GPT-2 */,
    BUTLER_GELU_ERF,
    BUTLER_RELU,
    BUTLER_SWIGLU_CLAMPED /* gpt-oss: g = min(gate, 7), u in [-7, 7]: (u + 1) g sigmoid(1.702 g) */
};
enum butler_rope { BUTLER_ROPE_NONE, BUTLER_ROPE_ADJACENT /* pairs (2i, 2i+1) */, BUTLER_ROPE_HALVES /* pairs (i, i+n/2) */ };

/* A weight matrix y[n_rows] = W[n_rows][n_cols] x[n_cols] (+ bias), possibly some rows of a larger tensor. */
struct butler_matrix {
    enum butler_type type;
    int n_rows, n_cols;
    size_t row_bytes;
    const void *data;  /* NULL: absent */
    const float *bias; /* [n_rows] or NULL */
};

/* Rows [first, first + n) of a matrix, in the same memory. */
static inline struct butler_matrix butler_matrix_rows(const struct butler_matrix *w, int first, int n)
{
    return (struct butler_matrix){w->type,
                                  n,
                                  w->n_cols,
                                  w->row_bytes,
                                  (const unsigned char *)w->data + (size_t)first * w->row_bytes,
                                  w->bias ? w->bias + first : NULL};
}

/* weight[n], bias[n] or NULL, always F32. n_parts > 1: weight[n_parts][n], of which part r % n_parts is that of row r (a norm of
 * its own for each head); 0 means 1. */
struct butler_vector {
    const float *weight, *bias;
    int n_parts;
};

/* Bytes of host memory in which weights lie. */
struct butler_weights {
    const void *data;
    size_t n_bytes;
    enum butler_type type; /* F32 of vectors */
};

/* How a layer rotates queries and keys. */
enum butler_layer_rope { BUTLER_LAYER_ROTATES, BUTLER_LAYER_ROTATES_LOCAL /* by rope_freq_local */, BUTLER_LAYER_UNROTATED };

/* x += post_norm(wo attention(attn_norm(x))); x += post_norm(ffn(ffn_norm(x))). Norms whose weight is NULL are left out. */
struct butler_layer {
    int window; /* a token attends to the last `window` tokens, itself included; 0: to all */
    enum butler_layer_rope rope;
    struct butler_vector attn_norm;
    struct butler_matrix wq, wk, wv, wo;
    struct butler_vector q_norm, k_norm; /* per head: one [head_dim], or one for each; with wide_qk_norm over all heads */
    struct butler_vector attn_post_norm; /* of what attention adds to the residual stream */
    struct butler_vector ffn_norm;       /* NULL with parallel_residual: the FFN takes what attn_norm gives */
    struct butler_vector ffn_post_norm;
    const float *sinks; /* [n_heads] logits in the softmax's denominator that belong to no token (gpt-oss); NULL: none */
    /* A mixture of experts: rows [e n_expert_ff, (e + 1) n_expert_ff) are those of expert e, of expert_down n_embd each. The other
     * matrices are then the shared expert's, which all tokens pass, times sigmoid(shared_gate x). */
    struct butler_matrix router; /* [n_experts][n_embd]; data NULL: no mixture */
    struct butler_matrix expert_gate, expert_up, expert_down;
    struct butler_matrix shared_gate; /* [1][n_embd] */
    struct butler_matrix w_gate;      /* data NULL: two-layer FFN without a gate (gpt2) */
    struct butler_matrix w_up, w_down;
};

struct butler_hparams {
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx_train;
    enum butler_norm norm;
    float norm_eps;
    enum butler_activation activation;
    enum butler_rope rope;
    int n_rot;                                               /* dimensions of a head that are rotated */
    int n_experts, n_experts_used, n_expert_ff, n_shared_ff; /* of a mixture of experts; 0 otherwise */
    bool experts_normalised;                                 /* the weights of the experts that a token uses sum to 1 */
    float rope_theta;
    bool wide_qk_norm;      /* q_norm and k_norm are over all heads at once (olmo2) */
    bool norms_after;       /* attn_norm and ffn_norm follow the addition: x = attn_norm(x + attention(x)) (OPT-350M) */
    bool parallel_residual; /* the FFN takes the layer's input, not what attention has made of it (gptneox, phi2) */
    /* Factors; 1 where a model has none. query_scale: of queries, beside 1 / sqrt(head_dim). */
    float embd_scale, query_scale, residual_scale, logit_scale;
    float attn_softcap, logit_softcap; /* x -> cap tanh(x / cap); 0: none */
    int window, n_windowed;            /* of layers that have one; how many do */
    bool exact_yarn;                   /* YaRN's ramp is not rounded to whole pairs (gpt-oss) */
    float local_theta;                 /* RoPE base of layers that rotate by rope_freq_local; 0: there are none */
};

struct butler_model {
    char *path;
    struct butler_gguf *gguf;
    struct butler_tokenizer *tokenizer; /* NULL: the file has none */
    struct butler_hparams hp;
    struct butler_matrix tok_embd; /* [n_vocab][n_embd] */
    struct butler_matrix pos_embd; /* [n_ctx_train][n_embd], gpt2; data NULL otherwise */
    struct butler_vector output_norm;
    struct butler_matrix output; /* tied: same data as tok_embd */
    struct butler_layer *layers; /* [n_layers] */
    /* Rotation of pair i at position p: by the angle p * rope_freq[i]; cos and sin are multiplied by rope_scale. Models with
     * long and short factors (phi3, longrope) have two sets: sessions longer than rope_original_ctx use rope_freq_long. */
    float *rope_freq;       /* [n_rot / 2] or NULL */
    float *rope_freq_long;  /* or NULL */
    float *rope_freq_local; /* of layers with BUTLER_LAYER_ROTATES_LOCAL, unscaled; or NULL */
    float rope_scale, rope_scale_long;
    int rope_original_ctx;
    struct butler_rope_given {
        const char *type; /* until butler_model_bind has read it; NULL: none is given */
        double scale;
        int original_ctx;
        char text[64]; /* "yarn:4:32768"; "" */
    } rope_given;      /* rope_scaling and what is behind it in butler_model_params */
    /* Constant part of the keys of layers with biases of keys, behind a Hadamard transform: what a cache of type Q8_0 leaves out.
     * [n_layers][n_kv_heads][head_dim], zeros where a layer has none; NULL: no layer has one. */
    float *key_shifts;
    struct butler_weights *owned_vectors; /* F16/BF16 norm weights and biases converted to F32; freed with the model */
    int n_owned_vectors;
    char *cache_folder;           /* owned; or NULL */
    bool has_fingerprint;         /* atomic: fingerprint has been computed */
    uint64_t fingerprint;         /* by butler_model_fingerprint */
    uint64_t sampled_fingerprint; /* what files of version 0.1 name the model by */
    struct butler_model_info info;
};

/* Whether a session of n_ctx tokens uses rope_freq_long. */
static inline bool butler_long_context(const struct butler_model *model, int n_ctx)
{
    return model->rope_freq_long && n_ctx > model->rope_original_ctx;
}

/* Binds tensors and reads hyperparameters into *model (zeroed by the caller, path and gguf set). On failure the caller
 * frees with butler_model_unbind. Does not touch the tokenizer. Fills info except its tokenizer. */
int butler_model_bind(struct butler_model *model, struct butler_error *err);
/* The widest inner layer of any FFN. */
static inline int butler_widest_ff(const struct butler_hparams *hp)
{
    return BUTLER_MAX(BUTLER_MAX(hp->n_ff, hp->n_expert_ff), hp->n_shared_ff);
}
/* Tokens that a dense step after n - 1 others reads, summed over the layers: n, or what a window leaves. */
uint64_t butler_model_layer_tokens(const struct butler_model *model, int n);
void butler_model_unbind(struct butler_model *model);
/* Everything that the model's matrices and vectors point to, [*n]; the caller frees it. NULL with *err filled on failure. */
struct butler_weights *butler_model_weights(const struct butler_model *model, int *n, struct butler_error *err);

#endif
