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
#define MATRIX_SLICE_OPTIONAL(name, where, rows, cols, stored, first)                                                              \
    {                                                                                                                              \
        name, BUTLER_PART_MATRIX, where, D(rows), D(cols), D(stored), D(first), true                                               \
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
        name, BUTLER_PART_BIAS, where, D(n), D(NONE), D(stored), D(first), true                                                    \
    }
#define WEIGHT(name, where, n)                                                                                                     \
    {                                                                                                                              \
        name, BUTLER_PART_WEIGHT, where, D(n), D(NONE), D(n), D(NONE), false                                                       \
    }
#define SHIFT(name, where, n)                                                                                                      \
    {                                                                                                                              \
        name, BUTLER_PART_SHIFT, where, D(n), D(NONE), D(n), D(NONE), false                                                        \
    }
#define WEIGHT_OPTIONAL(name, where, n)                                                                                            \
    {                                                                                                                              \
        name, BUTLER_PART_WEIGHT, where, D(n), D(NONE), D(n), D(NONE), true                                                        \
    }
#define SHIFT_OPTIONAL(name, where, n)                                                                                             \
    {                                                                                                                              \
        name, BUTLER_PART_SHIFT, where, D(n), D(NONE), D(n), D(NONE), true                                                         \
    }
#define OTHER(name)                                                                                                                \
    {                                                                                                                              \
        name, BUTLER_PART_OTHER, 0, D(NONE), D(NONE), D(NONE), D(NONE), true                                                       \
    }
#define END                                                                                                                        \
    {                                                                                                                              \
        NULL, BUTLER_PART_OTHER, 0, D(NONE), D(NONE), D(NONE), D(NONE), true                                                       \
    }

/* Absent: the embedding is used. */
#define OUTPUT MATRIX_OPTIONAL("output.weight", MODEL(output), VOCAB, EMBD), BIAS_OPTIONAL("output.bias", MODEL(output), VOCAB)

static const struct butler_binding rope_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),
    WEIGHT("output_norm.weight", MODEL(output_norm), EMBD),
    OUTPUT,
    OTHER("rope_freqs.weight"),
    OTHER("rope_factors_long.weight"),
    OTHER("rope_factors_short.weight"),
    END,
};

#define GATED_FFN                                                                                                                  \
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD), MATRIX("ffn_gate.weight", LAYER(w_gate), FF, EMBD),                          \
        MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD), MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF)

/* Queries, keys and values as one tensor or three, and any of their biases: as in llama.cpp, for every architecture. */
#define QKV                                                                                                                        \
    MATRIX_SLICE_OPTIONAL("attn_qkv.weight", LAYER(wq), Q, EMBD, QKV, NONE),                                                       \
        MATRIX_SLICE_OPTIONAL("attn_qkv.weight", LAYER(wk), KV, EMBD, QKV, Q),                                                     \
        MATRIX_SLICE_OPTIONAL("attn_qkv.weight", LAYER(wv), KV, EMBD, QKV, Q_KV), MATRIX("attn_q.weight", LAYER(wq), Q, EMBD),     \
        MATRIX("attn_k.weight", LAYER(wk), KV, EMBD), MATRIX("attn_v.weight", LAYER(wv), KV, EMBD),                                \
        BIAS_SLICE("attn_qkv.bias", LAYER(wq), Q, QKV, NONE), BIAS_SLICE("attn_qkv.bias", LAYER(wk), KV, QKV, Q),                  \
        BIAS_SLICE("attn_qkv.bias", LAYER(wv), KV, QKV, Q_KV), BIAS_OPTIONAL("attn_q.bias", LAYER(wq), Q),                         \
        BIAS_OPTIONAL("attn_k.bias", LAYER(wk), KV), BIAS_OPTIONAL("attn_v.bias", LAYER(wv), KV)

/* The output product may have a bias, too. */
#define ATTENTION QKV, MATRIX("attn_output.weight", LAYER(wo), EMBD, Q), BIAS_OPTIONAL("attn_output.bias", LAYER(wo), EMBD)

#define NORM_AND_ATTENTION WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD), ATTENTION

static const struct butler_binding llama_layer[] = {
    NORM_AND_ATTENTION,
    GATED_FFN,
    BIAS_OPTIONAL("ffn_gate.bias", LAYER(w_gate), FF),
    BIAS_OPTIONAL("ffn_up.bias", LAYER(w_up), FF),
    BIAS_OPTIONAL("ffn_down.bias", LAYER(w_down), EMBD),
    OTHER("attn_rot_embd.weight"), /* frequencies stored by old conversions; they follow from rope.freq_base */
    END,
};

static const struct butler_binding gemma_layer[] = {NORM_AND_ATTENTION, GATED_FFN, END};

static const struct butler_binding qwen2_layer[] = {
    NORM_AND_ATTENTION,
    GATED_FFN,
    END,
};

static const struct butler_binding qwen3_layer[] = {
    NORM_AND_ATTENTION,
    WEIGHT("attn_q_norm.weight", LAYER(q_norm), HEAD),
    WEIGHT("attn_k_norm.weight", LAYER(k_norm), HEAD),
    GATED_FFN,
    END,
};

static const struct butler_binding phi3_layer[] = {
    WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD),
    ATTENTION,
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_gate), FF, EMBD, 2FF, NONE),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_up), FF, EMBD, 2FF, FF),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    END,
};

static const struct butler_binding gpt2_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),
    MATRIX("position_embd.weight", MODEL(pos_embd), CTX, EMBD),
    WEIGHT("output_norm.weight", MODEL(output_norm), EMBD),
    SHIFT("output_norm.bias", MODEL(output_norm), EMBD),
    OUTPUT,
    END,
};

static const struct butler_binding gpt2_layer[] = {
    WEIGHT("attn_norm.weight", LAYER(attn_norm), EMBD),
    SHIFT("attn_norm.bias", LAYER(attn_norm), EMBD),
    ATTENTION,
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    SHIFT("ffn_norm.bias", LAYER(ffn_norm), EMBD),
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    BIAS("ffn_up.bias", LAYER(w_up), FF),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    BIAS("ffn_down.bias", LAYER(w_down), EMBD),
    END,
};

#define MIXTURE                                                                                                                    \
    MATRIX("ffn_gate_inp.weight", LAYER(router), EXPERTS, EMBD),                                                                   \
        MATRIX("ffn_gate_exps.weight", LAYER(expert_gate), EXPERTS_FF, EMBD),                                                      \
        MATRIX("ffn_up_exps.weight", LAYER(expert_up), EXPERTS_FF, EMBD),                                                          \
        MATRIX("ffn_down_exps.weight", LAYER(expert_down), EXPERTS_EMBD, EXPERT_FF)

static const struct butler_binding llama_expert_layer[] = {NORM_AND_ATTENTION, WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
                                                           MIXTURE, OTHER("attn_rot_embd.weight"), END};

static const struct butler_binding qwen2moe_layer[] = {
    NORM_AND_ATTENTION,
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    MIXTURE,
    MATRIX("ffn_gate_shexp.weight", LAYER(w_gate), SHARED_FF, EMBD),
    MATRIX("ffn_up_shexp.weight", LAYER(w_up), SHARED_FF, EMBD),
    MATRIX("ffn_down_shexp.weight", LAYER(w_down), EMBD, SHARED_FF),
    MATRIX("ffn_gate_inp_shexp.weight", LAYER(shared_gate), ONE, EMBD),
    END,
};

static const struct butler_binding qwen3moe_layer[] = {
    NORM_AND_ATTENTION,
    WEIGHT("attn_q_norm.weight", LAYER(q_norm), HEAD),
    WEIGHT("attn_k_norm.weight", LAYER(k_norm), HEAD),
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    MIXTURE,
    END,
};

static const struct butler_binding gpt_oss_layer[] = {
    NORM_AND_ATTENTION,
    {"attn_sinks.weight", BUTLER_PART_NUMBERS, LAYER(sinks), D(HEADS), D(NONE), D(HEADS), D(NONE), false},
    WEIGHT("post_attention_norm.weight", LAYER(ffn_norm), EMBD), /* its name, but it is the FFN's */
    MIXTURE,
    BIAS("ffn_gate_inp.bias", LAYER(router), EXPERTS),
    BIAS("ffn_gate_exps.bias", LAYER(expert_gate), EXPERTS_FF),
    BIAS("ffn_up_exps.bias", LAYER(expert_up), EXPERTS_FF),
    BIAS("ffn_down_exps.bias", LAYER(expert_down), EXPERTS_EMBD),
    END,
};

#define NORM_WITH_BIAS(name, where, n) WEIGHT(name ".weight", where, n), SHIFT(name ".bias", where, n)

/* Two layers with biases and no gate. */
#define PLAIN_FFN                                                                                                                  \
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD), BIAS("ffn_up.bias", LAYER(w_up), FF),                                          \
        MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF), BIAS("ffn_down.bias", LAYER(w_down), EMBD)

static const struct butler_binding layer_norm_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),
    NORM_WITH_BIAS("output_norm", MODEL(output_norm), EMBD),
    OUTPUT,
    END,
};

static const struct butler_binding gemma2_layer[] = {
    NORM_AND_ATTENTION,
    GATED_FFN,
    WEIGHT("post_attention_norm.weight", LAYER(attn_post_norm), EMBD),
    WEIGHT("post_ffw_norm.weight", LAYER(ffn_post_norm), EMBD),
    END,
};

static const struct butler_binding gemma3_layer[] = {
    NORM_AND_ATTENTION,
    GATED_FFN,
    WEIGHT("attn_q_norm.weight", LAYER(q_norm), HEAD),
    WEIGHT("attn_k_norm.weight", LAYER(k_norm), HEAD),
    WEIGHT("post_attention_norm.weight", LAYER(attn_post_norm), EMBD),
    WEIGHT("post_ffw_norm.weight", LAYER(ffn_post_norm), EMBD),
    END,
};

static const struct butler_binding gptneox_layer[] = {
    NORM_WITH_BIAS("attn_norm", LAYER(attn_norm), EMBD),
    ATTENTION,
    NORM_WITH_BIAS("ffn_norm", LAYER(ffn_norm), EMBD),
    PLAIN_FFN,
    END,
};

static const struct butler_binding opt_model[] = {
    MATRIX("token_embd.weight", MODEL(tok_embd), VOCAB, EMBD),
    MATRIX("position_embd.weight", MODEL(pos_embd), CTX, EMBD),
    WEIGHT_OPTIONAL("output_norm.weight", MODEL(output_norm), EMBD),
    SHIFT_OPTIONAL("output_norm.bias", MODEL(output_norm), EMBD),
    OUTPUT,
    END,
};

static const struct butler_binding opt_layer[] = {
    NORM_WITH_BIAS("attn_norm", LAYER(attn_norm), EMBD),
    ATTENTION,
    NORM_WITH_BIAS("ffn_norm", LAYER(ffn_norm), EMBD),
    PLAIN_FFN,
    END,
};

static const struct butler_binding phi2_layer[] = {
    NORM_WITH_BIAS("attn_norm", LAYER(attn_norm), EMBD),
    ATTENTION,
    PLAIN_FFN,
    END,
};

static const struct butler_binding stablelm_layer[] = {
    NORM_WITH_BIAS("attn_norm", LAYER(attn_norm), EMBD),
    WEIGHT_OPTIONAL("attn_q_norm.weight", LAYER(q_norm), Q_HEADS), /* stablelm-2-12b */
    WEIGHT_OPTIONAL("attn_k_norm.weight", LAYER(k_norm), KV_HEADS),
    ATTENTION,
    WEIGHT_OPTIONAL("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    SHIFT_OPTIONAL("ffn_norm.bias", LAYER(ffn_norm), EMBD),
    MATRIX("ffn_gate.weight", LAYER(w_gate), FF, EMBD),
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    END,
};

static const struct butler_binding starcoder2_layer[] = {
    NORM_WITH_BIAS("attn_norm", LAYER(attn_norm), EMBD), ATTENTION,
    NORM_WITH_BIAS("ffn_norm", LAYER(ffn_norm), EMBD),   MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    BIAS_OPTIONAL("ffn_up.bias", LAYER(w_up), FF),       MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    BIAS_OPTIONAL("ffn_down.bias", LAYER(w_down), EMBD), END,
};

/* Norms of what a layer adds, none of what it takes in (olmo2, exaone4). */
static const struct butler_binding post_norm_layer[] = {
    ATTENTION,
    WEIGHT("attn_q_norm.weight", LAYER(q_norm), Q_NORM),
    WEIGHT("attn_k_norm.weight", LAYER(k_norm), K_NORM),
    WEIGHT("post_attention_norm.weight", LAYER(attn_post_norm), EMBD),
    MATRIX("ffn_gate.weight", LAYER(w_gate), FF, EMBD),
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    WEIGHT("post_ffw_norm.weight", LAYER(ffn_post_norm), EMBD),
    END,
};

static const struct butler_binding cohere2_layer[] = {
    NORM_AND_ATTENTION,
    MATRIX("ffn_gate.weight", LAYER(w_gate), FF, EMBD),
    MATRIX("ffn_up.weight", LAYER(w_up), FF, EMBD),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    END,
};

static const struct butler_binding glm4_layer[] = {
    NORM_AND_ATTENTION,
    WEIGHT("post_attention_norm.weight", LAYER(attn_post_norm), EMBD),
    WEIGHT("ffn_norm.weight", LAYER(ffn_norm), EMBD),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_gate), FF, EMBD, 2FF, NONE),
    MATRIX_SLICE("ffn_up.weight", LAYER(w_up), FF, EMBD, 2FF, FF),
    MATRIX("ffn_down.weight", LAYER(w_down), EMBD, FF),
    WEIGHT("post_ffw_norm.weight", LAYER(ffn_post_norm), EMBD),
    END,
};

/* Conversion to GGUF reorders the rows of q and k of llama and its relatives so that pairs of neighbours rotate. */
/* clang-format off */
#define ARCHS(each) \
    each("llama", .rope = BUTLER_ROPE_ADJACENT, .layer = llama_layer, .expert_layer = llama_expert_layer) \
    each("qwen2", .rope = BUTLER_ROPE_HALVES, .layer = qwen2_layer) \
    each("qwen3", .rope = BUTLER_ROPE_HALVES, .layer = qwen3_layer) \
    each("phi3", .rope = BUTLER_ROPE_HALVES, .layer = phi3_layer) \
    each("qwen2moe", .rope = BUTLER_ROPE_HALVES, .expert_layer = qwen2moe_layer, .experts_unnormalised = true) \
    each("qwen3moe", .rope = BUTLER_ROPE_HALVES, .expert_layer = qwen3moe_layer) \
    each("gpt-oss", .activation = BUTLER_SWIGLU_CLAMPED, .rope = BUTLER_ROPE_HALVES, .expert_layer = gpt_oss_layer, \
         .window_period = 2, .exact_yarn = true) \
    each("gpt2", .norm = BUTLER_NORM_LAYER, .activation = BUTLER_GELU, .model = gpt2_model, .layer = gpt2_layer) \
    each("gemma", .activation = BUTLER_GELU, .rope = BUTLER_ROPE_HALVES, .layer = gemma_layer, .scales_embd = true) \
    each("gemma2", .activation = BUTLER_GELU, .rope = BUTLER_ROPE_HALVES, .layer = gemma2_layer, .scales_embd = true, \
         .window_period = 2, .wide_scale_layers = 46) \
    each("gemma3", .activation = BUTLER_GELU, .rope = BUTLER_ROPE_HALVES, .layer = gemma3_layer, .scales_embd = true, \
         .window_period = 6, .local_theta = 10000, .wide_scale_layers = 62) \
    each("gptneox", .norm = BUTLER_NORM_LAYER, .activation = BUTLER_GELU_ERF, .rope = BUTLER_ROPE_HALVES, \
         .model = layer_norm_model, .layer = gptneox_layer, .parallel = BUTLER_PARALLEL_KEY) \
    each("opt", .norm = BUTLER_NORM_LAYER, .activation = BUTLER_RELU, .model = opt_model, .layer = opt_layer) \
    each("phi2", .norm = BUTLER_NORM_LAYER, .activation = BUTLER_GELU, .rope = BUTLER_ROPE_HALVES, .model = layer_norm_model, \
         .layer = phi2_layer, .parallel = BUTLER_PARALLEL_ALWAYS) \
    each("stablelm", .norm = BUTLER_NORM_LAYER, .rope = BUTLER_ROPE_HALVES, .model = layer_norm_model, \
         .layer = stablelm_layer, .parallel = BUTLER_PARALLEL_NO_NORM) \
    each("starcoder2", .norm = BUTLER_NORM_LAYER, .activation = BUTLER_GELU, .rope = BUTLER_ROPE_HALVES, \
         .model = layer_norm_model, .layer = starcoder2_layer) \
    each("olmo2", .rope = BUTLER_ROPE_HALVES, .layer = post_norm_layer, .wide_qk_norm = true) \
    each("granite", .rope = BUTLER_ROPE_ADJACENT, .layer = llama_layer, .divides_logits = true) \
    each("smollm3", .rope = BUTLER_ROPE_ADJACENT, .layer = llama_layer, .rotates = BUTLER_ROTATES_NOT_FOURTH) \
    each("cohere2", .norm = BUTLER_NORM_LAYER, .rope = BUTLER_ROPE_ADJACENT, .layer = cohere2_layer, \
         .parallel = BUTLER_PARALLEL_ALWAYS, .window_period = 4, .rotates = BUTLER_ROTATES_WINDOWED) \
    each("glm4", .rope = BUTLER_ROPE_ADJACENT, .layer = glm4_layer) \
    each("exaone4", .rope = BUTLER_ROPE_HALVES, .layer = post_norm_layer, .window_period = 4, \
         .rotates = BUTLER_ROTATES_WINDOWED) \
    each("internlm2", .rope = BUTLER_ROPE_ADJACENT, .layer = llama_layer)
/* clang-format on */

#define ROW(arch_name, ...) {.name = arch_name, __VA_ARGS__},
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

const struct butler_binding *butler_arch_model(const struct butler_arch *arch)
{
    return arch->model ? arch->model : rope_model;
}

const struct butler_binding *butler_arch_layer(const struct butler_arch *arch, const struct butler_hparams *hp)
{
    return hp->n_experts > 0 ? arch->expert_layer : arch->layer;
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
