/* Writes small random models of every architecture for the tests, through the library's own writer. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernel_test.h"
#include "model/model.h"

enum { TINY_MAX_TENSORS = 128 };

struct tiny {
    const char *arch;
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx;
    enum butler_type matrix_type, vector_type;
    const enum butler_type *types; /* [n_types] of matrices, in turn; NULL: matrix_type */
    int n_types;
    bool widened; /* matrices in F32, with the values that matrix_type would give them */
    bool tied;
    bool vocab; /* with a tokenizer of n_vocab made-up tokens */
    uint64_t seed;
    void (*extra_values)(struct butler_gguf_writer *writer);
    const char *extra_tensor; /* one additional vector of extra_n elements, all extra_value */
    int extra_n;
    float extra_value;
    const char *extra_tensor_2; /* the same with twice the value */
    const char *leave_out;      /* a tensor that is left out */
    const char *wrong_shape;    /* a tensor that gets one row (a vector: one element) too many */
    int alignment;              /* 0: the default */
};

static const struct tiny tiny_default = {
    .arch = "llama",
    .n_layers = 2,
    .n_embd = 64,
    .n_ff = 96,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 16,
    .n_vocab = 40,
    .n_ctx = 128,
    .matrix_type = BUTLER_F32,
    .vector_type = BUTLER_F32,
    .tied = false,
    .vocab = true,
    .seed = 1,
};

struct tiny_tensor {
    char name[64];
    enum butler_type type;
    bool widened;
    int n_dims;
    int64_t dims[2];
    float constant; /* 0: random */
};

struct tiny_list {
    const struct tiny *tiny;
    struct tiny_tensor tensors[TINY_MAX_TENSORS];
    int n, n_matrices;
};

static inline void tiny_add(struct tiny_list *list, const char *name, int n_dims, int64_t n_cols, int64_t n_rows, float constant)
{
    const struct tiny *tiny = list->tiny;
    if (tiny->leave_out && strcmp(tiny->leave_out, name) == 0)
        return;
    assert_true(list->n < TINY_MAX_TENSORS);
    struct tiny_tensor *t = &list->tensors[list->n++];
    *t = (struct tiny_tensor){.n_dims = n_dims, .dims = {n_cols, n_rows}, .constant = constant};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = n_dims == 1 ? tiny->vector_type : tiny->types ? tiny->types[list->n_matrices % tiny->n_types] : tiny->matrix_type;
    list->n_matrices += n_dims == 2;
    t->widened = n_dims == 2 && tiny->widened;
    if (tiny->wrong_shape && strcmp(tiny->wrong_shape, name) == 0)
        t->dims[n_dims - 1]++;
}

static inline void tiny_matrix(struct tiny_list *list, int layer, const char *name, int64_t n_rows, int64_t n_cols, bool bias)
{
    char full[64];
    snprintf(full, sizeof full, layer < 0 ? "%s.weight" : "blk.%2$d.%1$s.weight", name, layer);
    tiny_add(list, full, 2, n_cols, n_rows, 0);
    snprintf(full, sizeof full, layer < 0 ? "%s.bias" : "blk.%2$d.%1$s.bias", name, layer);
    if (bias)
        tiny_add(list, full, 1, n_rows, 1, 0);
}

static inline void tiny_norm(struct tiny_list *list, int layer, const char *name, int64_t n, bool bias)
{
    char full[64];
    snprintf(full, sizeof full, layer < 0 ? "%s.weight" : "blk.%2$d.%1$s.weight", name, layer);
    tiny_add(list, full, 1, n, 1, 0);
    snprintf(full, sizeof full, layer < 0 ? "%s.bias" : "blk.%2$d.%1$s.bias", name, layer);
    if (bias)
        tiny_add(list, full, 1, n, 1, 0);
}

static inline void tiny_list_tensors(struct tiny_list *list)
{
    const struct tiny *t = list->tiny;
    bool gpt2 = strcmp(t->arch, "gpt2") == 0, phi3 = strcmp(t->arch, "phi3") == 0;
    bool qwen2 = strcmp(t->arch, "qwen2") == 0, qwen3 = strcmp(t->arch, "qwen3") == 0;
    int64_t q = (int64_t)t->n_heads * t->head_dim, kv = (int64_t)t->n_kv_heads * t->head_dim;
    tiny_matrix(list, -1, "token_embd", t->n_vocab, t->n_embd, false);
    if (gpt2)
        tiny_matrix(list, -1, "position_embd", t->n_ctx, t->n_embd, false);
    for (int l = 0; l < t->n_layers; l++) {
        tiny_norm(list, l, "attn_norm", t->n_embd, gpt2);
        if (gpt2 || phi3) {
            tiny_matrix(list, l, "attn_qkv", q + 2 * kv, t->n_embd, gpt2);
        } else {
            tiny_matrix(list, l, "attn_q", q, t->n_embd, qwen2);
            tiny_matrix(list, l, "attn_k", kv, t->n_embd, qwen2);
            tiny_matrix(list, l, "attn_v", kv, t->n_embd, qwen2);
        }
        if (qwen3) {
            tiny_norm(list, l, "attn_q_norm", t->head_dim, false);
            tiny_norm(list, l, "attn_k_norm", t->head_dim, false);
        }
        tiny_matrix(list, l, "attn_output", t->n_embd, q, gpt2);
        tiny_norm(list, l, "ffn_norm", t->n_embd, gpt2);
        if (!gpt2 && !phi3)
            tiny_matrix(list, l, "ffn_gate", t->n_ff, t->n_embd, false);
        tiny_matrix(list, l, "ffn_up", phi3 ? 2 * t->n_ff : t->n_ff, t->n_embd, gpt2);
        tiny_matrix(list, l, "ffn_down", t->n_embd, t->n_ff, gpt2);
    }
    tiny_norm(list, -1, "output_norm", t->n_embd, gpt2);
    if (!t->tied)
        tiny_matrix(list, -1, "output", t->n_vocab, t->n_embd, false);
    if (t->extra_tensor)
        tiny_add(list, t->extra_tensor, 1, t->extra_n, 1, t->extra_value);
    if (t->extra_tensor_2)
        tiny_add(list, t->extra_tensor_2, 1, t->extra_n, 1, 2 * t->extra_value);
}

static inline void tiny_put_int(struct butler_gguf_writer *writer, const char *arch, const char *suffix, int value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    assert_int_equal(butler_gguf_put_int(writer, key, BUTLER_GGUF_U32, value, NULL), 0);
}

static inline void tiny_put_values(struct butler_gguf_writer *writer, const struct tiny *t)
{
    char key[96];
    assert_int_equal(butler_gguf_put_string(writer, "general.architecture", t->arch, NULL), 0);
    assert_int_equal(butler_gguf_put_string(writer, "general.name", "tiny", NULL), 0);
    if (t->alignment)
        assert_int_equal(butler_gguf_put_int(writer, "general.alignment", BUTLER_GGUF_U32, t->alignment, NULL), 0);
    tiny_put_int(writer, t->arch, "block_count", t->n_layers);
    tiny_put_int(writer, t->arch, "context_length", t->n_ctx);
    tiny_put_int(writer, t->arch, "embedding_length", t->n_embd);
    tiny_put_int(writer, t->arch, "feed_forward_length", t->n_ff);
    tiny_put_int(writer, t->arch, "attention.head_count", t->n_heads);
    tiny_put_int(writer, t->arch, "attention.head_count_kv", t->n_kv_heads);
    if (t->head_dim * t->n_heads != t->n_embd)
        tiny_put_int(writer, t->arch, "attention.key_length", t->head_dim);
    bool gpt2 = strcmp(t->arch, "gpt2") == 0;
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", t->arch, gpt2 ? "" : "rms_");
    assert_int_equal(butler_gguf_put_float(writer, key, 1e-5f, NULL), 0);
    if (t->extra_values)
        t->extra_values(writer);
    if (!t->vocab)
        return;
    const char **texts = calloc((size_t)t->n_vocab, sizeof *texts);
    size_t *lengths = calloc((size_t)t->n_vocab, sizeof *lengths);
    float *scores = calloc((size_t)t->n_vocab, sizeof *scores);
    int32_t *types = calloc((size_t)t->n_vocab, sizeof *types);
    char *space = calloc((size_t)t->n_vocab, 16);
    for (int i = 0; i < t->n_vocab; i++) {
        texts[i] = space + 16 * i;
        lengths[i] = (size_t)snprintf(space + 16 * i, 16, i < 3 ? "<s%d>" : "t%d", i);
        scores[i] = (float)-i;
        types[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
    }
    assert_int_equal(butler_gguf_put_string(writer, "tokenizer.ggml.model", "llama", NULL), 0);
    assert_int_equal(butler_gguf_put_strings(writer, "tokenizer.ggml.tokens", texts, lengths, (uint64_t)t->n_vocab, NULL), 0);
    assert_int_equal(
        butler_gguf_put_array(writer, "tokenizer.ggml.scores", BUTLER_GGUF_FLOAT32, scores, (uint64_t)t->n_vocab, NULL), 0);
    assert_int_equal(butler_gguf_put_array(writer, "tokenizer.ggml.token_type", BUTLER_GGUF_I32, types, (uint64_t)t->n_vocab, NULL),
                     0);
    assert_int_equal(butler_gguf_put_int(writer, "tokenizer.ggml.add_bos_token", BUTLER_GGUF_BOOL, 1, NULL), 0);
    free(texts);
    free(lengths);
    free(scores);
    free(types);
    free(space);
}

/* Random blocks of a type that is not written otherwise: the root mean square of the row becomes `size`, its mean about 0. */
static inline void tiny_random_row(enum butler_type type, unsigned char *row, float *x, int n, float size, uint64_t *seed)
{
    static const float middle[BUTLER_N_TYPES] = {
        [BUTLER_Q4_1] = -7.5f, [BUTLER_Q5_1] = -15.5f, [BUTLER_Q2_K] = 1.5f, [BUTLER_Q4_K] = 7.5f, [BUTLER_Q5_K] = 15.5f};
    const struct butler_type_info *info = &butler_types[type];
    double squares = 0;
    for (size_t i = 0; i < butler_row_bytes(type, n); i++)
        row[i] = (unsigned char)butler_random(seed);
    for (int pass = 0; pass < 2; pass++) {
        const float scale = pass == 0 ? 1 : size / (float)sqrt(squares / n);
        for (int i = 0; i < n; i += info->block)
            put_scales(type, row + butler_row_bytes(type, i), scale, scale * middle[type]);
        info->dequantize(x, row, n);
        for (int i = 0; i < n && pass == 0; i++)
            squares += (double)x[i] * (double)x[i];
    }
}

static inline void tiny_put_data(struct butler_gguf_writer *writer, const struct tiny_tensor *t, uint64_t *seed)
{
    int64_t n_cols = t->dims[0], n_rows = t->n_dims == 2 ? t->dims[1] : 1;
    float *row = calloc((size_t)n_cols, sizeof *row);
    unsigned char *out = calloc(1, butler_row_bytes(t->type, n_cols));
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t c = 0; c < n_cols; c++)
            row[c] = t->constant != 0 ? t->constant : 0.1f * butler_random_normal(seed);
        if (!butler_quantize_row(t->type, out, row, (int)n_cols))
            tiny_random_row(t->type, out, row, (int)n_cols, 0.1f, seed);
        butler_types[t->type].dequantize(row, out, (int)n_cols);
        assert_int_equal(t->widened ? butler_gguf_put_data(writer, row, (size_t)n_cols * sizeof *row, NULL)
                                    : butler_gguf_put_data(writer, out, butler_row_bytes(t->type, n_cols), NULL),
                         0);
    }
    free(row);
    free(out);
}

static inline void tiny_write(const char *path, const struct tiny *tiny)
{
    struct butler_error err = {0};
    struct butler_gguf_writer *writer = butler_gguf_writer_new(path, &err);
    if (!writer)
        fail_msg("%s", err.message);
    tiny_put_values(writer, tiny);
    struct tiny_list *list = calloc(1, sizeof *list);
    list->tiny = tiny;
    tiny_list_tensors(list);
    for (int i = 0; i < list->n; i++) {
        const struct tiny_tensor *t = &list->tensors[i];
        if (butler_gguf_put_tensor(writer, t->name, t->widened ? BUTLER_F32 : t->type, t->n_dims, t->dims, &err) < 0)
            fail_msg("%s", err.message);
    }
    uint64_t seed = tiny->seed;
    for (int i = 0; i < list->n; i++)
        tiny_put_data(writer, &list->tensors[i], &seed);
    if (butler_gguf_writer_commit(writer, &err) < 0)
        fail_msg("%s", err.message);
    butler_gguf_writer_free(writer);
    free(list);
}

/* A path in a temporary folder that is the same during one process. Valid until the eighth call after it. */
static inline const char *tiny_path(const char *name)
{
    static char folder[64], paths[8][160];
    static int next;
    char *path = paths[next++ % 8];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/butler-test-XXXXXX");
        assert_non_null(mkdtemp(folder));
    }
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Deletes the files that tiny_path named; for the group's teardown. */
static inline int tiny_clean(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", tiny_path(""));
    return system(command);
}

struct tiny_bytes {
    unsigned char *data;
    size_t size;
};

static inline struct tiny_bytes tiny_read(const char *path)
{
    struct tiny_bytes bytes = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    bytes.size = (size_t)ftell(file);
    rewind(file);
    bytes.data = malloc(bytes.size + 1);
    assert_int_equal(fread(bytes.data, 1, bytes.size, file), bytes.size);
    fclose(file);
    return bytes;
}

#endif
