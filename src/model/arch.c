/* The supported architectures as tables: tensor names as in their GGUF files, and shapes in terms of the hyperparameters. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

#define MODEL(field) offsetof(struct butler_model, field)
#define LAYER(field) offsetof(struct butler_layer, field)
#define D(name) BUTLER_DIM_##name

#define MATRIX(name, where, rows, cols)                                                                                            \
    {                                                                                                                              \
        name, BUTLER_PART_MATRIX, where, D(rows), D(cols), D(rows), D(NONE), false                                                 \
    }
#define MATRIX_OPTIONAL(name, where, rows, cols)                                                                                   \
    {                                                                                                                              \
        name, BUTLER_PART_MATRIX, where, D(rows), D(cols), D(rows), D(NONE), true                                                  \
    }
#define MATRIX_SLICE(name, where, rows, cols, stored, first)                                                                       \
    {                                                                                                                              \
        name, BUTLER_PART_MATRIX, where, D(rows), D(cols), D(stored), D(first), false                                              \
    }
#define BIAS(name, where, n)                                                                                                       \
    {                                                                                                                              \
        name, BUTLER_PART_BIAS, where, D(n), D(NONE), D(n), D(NONE), false                                                         \
    }
#define BIAS_OPTIONAL(name, where, n)                                                                                              \
    {                                                                                                                              \
        name, BUTLER_PART_BIAS, where, D(n), D(NONE), D(n), D(NONE), true                                                          \
    }
#define BIAS_SLICE(name, where, n, stored, first)                                                                                  \
    {                                                                                                                              \
        name, BUTLER_PART_BIAS, where, D(n), D(NONE), D(stored), D(first), false                                                   \
    }
#define WEIGHT(name, where, n)                                                                                                     \
    {                                                                                                                              \
        name, BUTLER_PART_WEIGHT, where, D(n), D(NONE), D(n), D(NONE), false                                                       \
    }
#define SHIFT(name, where, n)                                                                                                      \
    {                                                                                                                              \
        name, BUTLER_PART_SHIFT, where, D(n), D(NONE), D(n), D(NONE), false                                                        \
    }
#define OTHER(name)                                                                                                                \
    {                                                                                                                              \
        name, BUTLER_PART_OTHER, 0, D(NONE), D(NONE), D(NONE), D(NONE), true                                                       \
    }
#define END                                                                                                                        \
    {                                                                                                                              \
        NULL, BUTLER_PART_OTHER, 0, D(NONE), D(NONE), D(NONE), D(NONE), true                                                       \
    }

static const struct butler_binding rope_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),
    WEIGHT("output_norm.weight", MODEL(output_norm), EMBD),
    MATRIX_OPTIONAL("output.weight", MODEL(output), VOCAB, EMBD),
    OTHER("rope_freqs.weight"),
    OTHER("rope_factors_long.weight"),
    OTHER("rope_factors_short.weight"),
    END,
};

#define GATED_FFN                                                                                                                  \
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD), MATRIX("ffn_gate.weight", LAYER(w_gate), FF, EMBD),                          \
        MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD), MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF)

#define SEPARATE_QKVO                                                                                                              \
    WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD), MATRIX("attn_q.weight", LAYER(wq), Q, EMBD),                               \
        MATRIX("attn_k.weight", LAYER(wk), KV, EMBD), MATRIX("attn_v.weight", LAYER(wv), KV, EMBD),                                \
        MATRIX("attn_output.weight", LAYER(wo), EMBD, Q)

static const struct butler_binding llama_layer[] = {
    SEPARATE_QKVO,
    BIAS_OPTIONAL("attn_q.bias", LAYER(wq), Q),
    BIAS_OPTIONAL("attn_k.bias", LAYER(wk), KV),
    BIAS_OPTIONAL("attn_v.bias", LAYER(wv), KV),
    BIAS_OPTIONAL("attn_output.bias", LAYER(wo), EMBD),
    GATED_FFN,
    BIAS_OPTIONAL("ffn_gate.bias", LAYER(w_gate), FF),
    BIAS_OPTIONAL("ffn_up.bias", LAYER(w_up), FF),
    BIAS_OPTIONAL("ffn_down.bias", LAYER(w_down), EMBD),
    OTHER("attn_rot_embd.weight"), /* frequencies stored by old conversions; they follow from rope.freq_base */
    END,
};

static const struct butler_binding qwen2_layer[] = {
    SEPARATE_QKVO,
    BIAS("attn_q.bias", LAYER(wq), Q),
    BIAS("attn_k.bias", LAYER(wk), KV),
    BIAS("attn_v.bias", LAYER(wv), KV),
    GATED_FFN,
    END,
};

static const struct butler_binding qwen3_layer[] = {
    SEPARATE_QKVO, WEIGHT("attn_q_norm.weight", LAYER(q_norm), HEAD), WEIGHT("attn_k_norm.weight", LAYER(k_norm), HEAD), GATED_FFN,
    END,
};

static const struct butler_binding phi3_layer[] = {
    WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD),
    MATRIX_OPTIONAL("attn_q.weight", LAYER(wq), Q, EMBD),
    MATRIX_OPTIONAL("attn_k.weight", LAYER(wk), KV, EMBD),
    MATRIX_OPTIONAL("attn_v.weight", LAYER(wv), KV, EMBD),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wq), Q, EMBD, QKV, NONE),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wk), KV, EMBD, QKV, Q),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wv), KV, EMBD, QKV, Q_KV),
    MATRIX("attn_output.weight", LAYER(wo), EMBD, Q),
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_gate), FF, EMBD, 2FF, NONE),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_up), FF, EMBD, 2FF, FF),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    END,
};

static const struct butler_binding gpt2_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),    MATRIX("position_embd.weight", MODEL(pos_embd), CTX, EMBD),
    WEIGHT("output_norm.weight", MODEL(output_norm), EMBD),       SHIFT("output_norm.bias", MODEL(output_norm), EMBD),
    MATRIX_OPTIONAL("output.weight", MODEL(output), VOCAB, EMBD), END,
};

static const struct butler_binding gpt2_layer[] = {
    WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD),
    SHIFT("attn_norm.bias", LAYER(attn_norm), EMBD),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wq), Q, EMBD, QKV, NONE),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wk), KV, EMBD, QKV, Q),
    MATRIX_SLICE("attn_qkv.weight", LAYER(wv), KV, EMBD, QKV, Q_KV),
    BIAS_SLICE("attn_qkv.bias", LAYER(wq), Q, QKV, NONE),
    BIAS_SLICE("attn_qkv.bias", LAYER(wk), KV, QKV, Q),
    BIAS_SLICE("attn_qkv.bias", LAYER(wv), KV, QKV, Q_KV),
    MATRIX("attn_output.weight", LAYER(wo), EMBD, Q),
    BIAS("attn_output.bias", LAYER(wo), EMBD),
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    SHIFT("ffn_norm.bias", LAYER(ffn_norm), EMBD),
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    BIAS("ffn_up.bias", LAYER(w_up), FF),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    BIAS("ffn_down.bias", LAYER(w_down), EMBD),
    END,
};

/* llama alone pairs neighbours: its conversion to GGUF reorders the rows of q and k so that this equals the halves of
 * the original. */
#define ARCHS(each)                                                                                                                \
    each("llama", BUTLER_NORM_RMS, BUTLER_SILU, BUTLER_ROPE_ADJACENT, false, rope_model, llama_layer)                              \
        each("qwen2", BUTLER_NORM_RMS, BUTLER_SILU, BUTLER_ROPE_HALVES, false, rope_model, qwen2_layer)                            \
            each("qwen3", BUTLER_NORM_RMS, BUTLER_SILU, BUTLER_ROPE_HALVES, false, rope_model, qwen3_layer)                        \
                each("phi3", BUTLER_NORM_RMS, BUTLER_SILU, BUTLER_ROPE_HALVES, true, rope_model, phi3_layer)                       \
                    each("gpt2", BUTLER_NORM_LAYER, BUTLER_GELU, BUTLER_ROPE_NONE, false, gpt2_model, gpt2_layer)

#define ROW(...) {__VA_ARGS__},
static const struct butler_arch archs[] = {ARCHS(ROW)};

#define COMMA_NAME(name, ...) ", " name
static const char names[] = ARCHS(COMMA_NAME);

const struct butler_arch *butler_arch_find(const char *name)
{
    for (int i = 0; i < BUTLER_COUNT(archs); i++)
        if (strcmp(archs[i].name, name) == 0)
            return &archs[i];
    return NULL;
}

const char *butler_arch_names(void)
{
    return names + strlen(", ");
}

struct butler_arch_key butler_arch_key(const struct butler_model *model, const char *suffix)
{
    struct butler_arch_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", model->info.architecture, suffix);
    return key;
}
