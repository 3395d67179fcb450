/* Binding: each architecture's tensors are bound to their roles; hyperparameters and shapes that contradict each other give
 * errors that name them; rotations follow the scaling keys. */
#include "tiny_model.h"

#include <math.h>

struct loaded {
    struct butler_model model;
    struct tiny_bytes bytes; /* if opened from memory */
    struct butler_error err;
    int rc;
};

static void load(struct loaded *l, const char *path)
{
    memset(l, 0, sizeof *l);
    l->model.path = strdup(path);
    l->model.gguf = butler_gguf_open(path, &l->err);
    if (!l->model.gguf)
        fail_msg("%s", l->err.message);
    l->rc = butler_model_bind(&l->model, &l->err);
}

static void load_good(struct loaded *l, const struct tiny *tiny)
{
    tiny_write(tiny_path("model.gguf"), tiny);
    load(l, tiny_path("model.gguf"));
    if (l->rc < 0)
        fail_msg("%s", l->err.message);
}

static void unload(struct loaded *l)
{
    butler_model_unbind(&l->model);
    butler_gguf_free(l->model.gguf);
    free(l->model.path);
}

static struct tiny with_arch(const char *arch)
{
    struct tiny tiny = tiny_default;
    tiny.arch = arch;
    if (strcmp(arch, "gpt2") == 0)
        tiny.n_kv_heads = tiny.n_heads;
    if (strcmp(arch, "qwen3") == 0)
        tiny.head_dim = 32; /* wider than n_embd / n_heads */
    return tiny;
}

static const char *const archs[] = {"llama", "qwen2", "qwen3", "phi3", "gpt2"};

static void check_matrix(const struct butler_matrix *m, const struct butler_gguf *g, const char *name, int64_t first, int n_rows)
{
    const struct butler_tensor *t = butler_gguf_find(g, name);
    assert_non_null(t);
    assert_int_equal(m->type, t->type);
    assert_int_equal(m->n_rows, n_rows);
    assert_int_equal(m->n_cols, t->n_cols);
    assert_int_equal(m->row_bytes, t->row_bytes);
    assert_ptr_equal(m->data, (const char *)t->data + (size_t)first * t->row_bytes);
}

/* The tensor's elements [first, first + n) as floats. */
static void check_vector(const float *v, const struct butler_gguf *g, const char *name, int first, int n)
{
    const struct butler_tensor *t = butler_gguf_find(g, name);
    assert_non_null(t);
    assert_non_null(v);
    for (int i = 0; i < n; i++) {
        float want;
        if (t->type == BUTLER_F32) {
            memcpy(&want, (const char *)t->data + 4 * (first + i), 4);
        } else {
            uint16_t half;
            memcpy(&half, (const char *)t->data + 2 * (first + i), 2);
            uint32_t wide = (uint32_t)half << 16;
            if (t->type == BUTLER_BF16)
                memcpy(&want, &wide, 4);
            else
                want = butler_half_to_float(half);
        }
        assert_true(v[i] == want && want != 0);
    }
}

static void check_places(const struct loaded *l, const struct tiny *t)
{
    const struct butler_model *m = &l->model;
    const struct butler_gguf *g = m->gguf;
    bool gpt2 = strcmp(t->arch, "gpt2") == 0, phi3 = strcmp(t->arch, "phi3") == 0;
    bool qwen2 = strcmp(t->arch, "qwen2") == 0, qwen3 = strcmp(t->arch, "qwen3") == 0;
    int q = t->n_heads * t->head_dim, kv = t->n_kv_heads * t->head_dim;
    check_matrix(&m->tok_embd, g, "token_embd.weight", 0, t->n_vocab);
    check_matrix(&m->output, g, t->tied ? "token_embd.weight" : "output.weight", 0, t->n_vocab);
    check_vector(m->output_norm.weight, g, "output_norm.weight", 0, t->n_embd);
    if (gpt2) {
        check_matrix(&m->pos_embd, g, "position_embd.weight", 0, t->n_ctx);
        check_vector(m->output_norm.bias, g, "output_norm.bias", 0, t->n_embd);
    } else {
        assert_null(m->pos_embd.data);
        assert_null(m->output_norm.bias);
    }
    const struct butler_layer *y = &m->layers[1];
    check_vector(y->attn_norm.weight, g, "blk.1.attn_norm.weight", 0, t->n_embd);
    check_vector(y->ffn_norm.weight, g, "blk.1.ffn_norm.weight", 0, t->n_embd);
    check_matrix(&y->wq, g, gpt2 || phi3 ? "blk.1.attn_qkv.weight" : "blk.1.attn_q.weight", 0, q);
    check_matrix(&y->wk, g, gpt2 || phi3 ? "blk.1.attn_qkv.weight" : "blk.1.attn_k.weight", gpt2 || phi3 ? q : 0, kv);
    check_matrix(&y->wv, g, gpt2 || phi3 ? "blk.1.attn_qkv.weight" : "blk.1.attn_v.weight", gpt2 || phi3 ? q + kv : 0, kv);
    check_matrix(&y->wo, g, "blk.1.attn_output.weight", 0, t->n_embd);
    check_matrix(&y->w_up, g, "blk.1.ffn_up.weight", phi3 ? t->n_ff : 0, t->n_ff);
    check_matrix(&y->w_down, g, "blk.1.ffn_down.weight", 0, t->n_embd);
    if (gpt2)
        assert_null(y->w_gate.data);
    else
        check_matrix(&y->w_gate, g, phi3 ? "blk.1.ffn_up.weight" : "blk.1.ffn_gate.weight", 0, t->n_ff);
    if (gpt2) {
        check_vector(y->wq.bias, g, "blk.1.attn_qkv.bias", 0, q);
        check_vector(y->wk.bias, g, "blk.1.attn_qkv.bias", q, kv);
        check_vector(y->wv.bias, g, "blk.1.attn_qkv.bias", q + kv, kv);
        check_vector(y->wo.bias, g, "blk.1.attn_output.bias", 0, t->n_embd);
        check_vector(y->w_up.bias, g, "blk.1.ffn_up.bias", 0, t->n_ff);
        check_vector(y->w_down.bias, g, "blk.1.ffn_down.bias", 0, t->n_embd);
        check_vector(y->attn_norm.bias, g, "blk.1.attn_norm.bias", 0, t->n_embd);
        check_vector(y->ffn_norm.bias, g, "blk.1.ffn_norm.bias", 0, t->n_embd);
    } else if (qwen2) {
        check_vector(y->wq.bias, g, "blk.1.attn_q.bias", 0, q);
        check_vector(y->wk.bias, g, "blk.1.attn_k.bias", 0, kv);
        check_vector(y->wv.bias, g, "blk.1.attn_v.bias", 0, kv);
    } else {
        assert_true(!y->wq.bias && !y->wk.bias && !y->wv.bias && !y->wo.bias && !y->w_up.bias && !y->w_down.bias);
    }
    if (qwen3) {
        check_vector(y->q_norm.weight, g, "blk.1.attn_q_norm.weight", 0, t->head_dim);
        check_vector(y->k_norm.weight, g, "blk.1.attn_k_norm.weight", 0, t->head_dim);
    } else {
        assert_true(!y->q_norm.weight && !y->k_norm.weight);
    }
}

static void test_places(void **state)
{
    (void)state;
    static const enum butler_type vectors[] = {BUTLER_F32, BUTLER_F16, BUTLER_BF16};
    static const enum butler_type matrices[] = {BUTLER_F32, BUTLER_F16, BUTLER_Q8_0, BUTLER_Q4_0};
    for (int a = 0; a < BUTLER_COUNT(archs); a++)
        for (int v = 0; v < BUTLER_COUNT(vectors); v++)
            for (int w = 0; w < BUTLER_COUNT(matrices); w++)
                for (int tied = 0; tied < 2; tied++) {
                    struct tiny tiny = with_arch(archs[a]);
                    tiny.vector_type = vectors[v];
                    tiny.matrix_type = matrices[w];
                    tiny.tied = tied;
                    struct loaded l;
                    load_good(&l, &tiny);
                    check_places(&l, &tiny);
                    assert_int_equal(l.model.n_owned_vectors > 0, vectors[v] != BUTLER_F32);
                    unload(&l);
                }
}

/* With alignment 1 floats may begin at any byte: then they are copied, with equal values. */
static void test_unaligned_vectors(void **state)
{
    (void)state;
    for (int a = 0; a < BUTLER_COUNT(archs); a++) {
        struct tiny tiny = with_arch(archs[a]);
        tiny.alignment = 1;
        int n_copied = 0;
        for (int n_vocab = 37; n_vocab < 41; n_vocab++) { /* shifts the header by a few bytes each */
            tiny.n_vocab = n_vocab;
            struct loaded l;
            load_good(&l, &tiny);
            check_places(&l, &tiny);
            assert_true((uintptr_t)l.model.layers[1].ffn_norm.weight % 4 == 0);
            n_copied += l.model.n_owned_vectors > 0;
            unload(&l);
        }
        assert_true(n_copied > 0);
    }
}

static void test_hparams(void **state)
{
    (void)state;
    for (int a = 0; a < BUTLER_COUNT(archs); a++) {
        struct tiny tiny = with_arch(archs[a]);
        struct loaded l;
        load_good(&l, &tiny);
        const struct butler_hparams *hp = &l.model.hp;
        assert_int_equal(hp->n_layers, 2);
        assert_int_equal(hp->n_embd, 64);
        assert_int_equal(hp->n_ff, 96);
        assert_int_equal(hp->n_heads, 4);
        assert_int_equal(hp->n_kv_heads, tiny.n_kv_heads);
        assert_int_equal(hp->head_dim, tiny.head_dim);
        assert_int_equal(hp->n_vocab, 40);
        assert_int_equal(hp->n_ctx_train, 128);
        assert_true(hp->norm_eps == 1e-5f);
        assert_int_equal(hp->norm, a == 4 ? BUTLER_NORM_LAYER : BUTLER_NORM_RMS);
        assert_int_equal(hp->activation, a == 4 ? BUTLER_GELU : BUTLER_SILU);
        assert_int_equal(hp->rope, a == 4 ? BUTLER_ROPE_NONE : a == 0 ? BUTLER_ROPE_ADJACENT : BUTLER_ROPE_HALVES);
        assert_int_equal(hp->n_rot, a == 4 ? 0 : tiny.head_dim);
        assert_int_equal(l.model.rope_freq == NULL, a == 4);
        assert_string_equal(l.model.info.architecture, archs[a]);
        assert_string_equal(l.model.info.name, "tiny");
        assert_null(l.model.info.chat_template);
        assert_true(l.model.sampled_fingerprint != 0);
        unload(&l);
    }
}

static void test_info_bytes(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    struct loaded l;
    tiny.vector_type = BUTLER_F16;
    tiny.matrix_type = BUTLER_Q8_0;
    load_good(&l, &tiny);
    uint64_t layer = (64 + 32 + 32 + 64) * 64 + 3 * 96 * 64, embd = 40 * 64, norms = 5 * 64;
    assert_true(l.model.info.n_params == 2 * layer + 2 * embd + norms);
    assert_true(l.model.info.weight_bytes == (2 * layer + 2 * embd) / 32 * 34 + norms * 2);
    assert_true(l.model.info.step_weight_bytes == (2 * layer + embd + 64) / 32 * 34 + norms * 4);
    assert_string_equal(l.model.info.file_type, "Q8_0");
    unload(&l);
    tiny.tied = true;
    load_good(&l, &tiny);
    assert_true(l.model.info.weight_bytes == (2 * layer + embd) / 32 * 34 + norms * 2);
    assert_true(l.model.info.step_weight_bytes == (2 * layer + embd + 64) / 32 * 34 + norms * 4);
    unload(&l);
    tiny = with_arch("gpt2");
    load_good(&l, &tiny);
    uint64_t gpt2_layer = 4 * 64 * 64 + 2 * 96 * 64, biases = 4 * 64 + 96 + 64;
    assert_true(l.model.info.step_weight_bytes ==
                4 * (2 * (gpt2_layer + biases + 4 * 64) + embd + 64 /* token */ + 64 /* position */ + 2 * 64));
    unload(&l);
}

/* --------------------------------------------------------------------------------------------- rotations */

static float freq(int i, int n_rot, double theta)
{
    return (float)pow(theta, -2.0 * i / n_rot);
}

static void expect_freqs(const float *got, int n, const float *want)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i])))
            fail_msg("pair %d: %.9g, expected %.9g", i, (double)got[i], (double)want[i]);
}

static void put_linear(struct butler_gguf_writer *w)
{
    butler_gguf_put_float(w, "llama.rope.freq_base", 500000, NULL);
    butler_gguf_put_float(w, "llama.rope.scaling.factor", 4, NULL);
    butler_gguf_put_int(w, "llama.rope.dimension_count", BUTLER_GGUF_U32, 12, NULL);
}

static void put_none(struct butler_gguf_writer *w)
{
    put_linear(w);
    butler_gguf_put_string(w, "llama.rope.scaling.type", "none", NULL);
}

static void put_yarn(struct butler_gguf_writer *w)
{
    butler_gguf_put_string(w, "qwen2.rope.scaling.type", "yarn", NULL);
    butler_gguf_put_float(w, "qwen2.rope.freq_base", 1000000, NULL);
    butler_gguf_put_float(w, "qwen2.rope.scaling.factor", 4, NULL);
    butler_gguf_put_int(w, "qwen2.rope.scaling.original_context_length", BUTLER_GGUF_U32, 32768, NULL);
}

static void put_longrope(struct butler_gguf_writer *w)
{
    butler_gguf_put_float(w, "phi3.rope.scaling.attn_factor", 1.1902381f, NULL);
    butler_gguf_put_int(w, "phi3.rope.scaling.original_context_length", BUTLER_GGUF_U32, 64, NULL);
    butler_gguf_put_int(w, "phi3.attention.sliding_window", BUTLER_GGUF_U32, 2047, NULL);
}

static void test_rope(void **state)
{
    (void)state;
    struct loaded l;
    struct tiny tiny = tiny_default;
    float want[64];

    load_good(&l, &tiny);
    for (int i = 0; i < 8; i++)
        want[i] = freq(i, 16, 10000);
    expect_freqs(l.model.rope_freq, 8, want);
    assert_true(l.model.rope_scale == 1 && l.model.hp.rope_theta == 10000 && !l.model.rope_freq_long);
    assert_int_equal(l.model.rope_original_ctx, 128);
    unload(&l);

    tiny.extra_values = put_linear;
    load_good(&l, &tiny);
    for (int i = 0; i < 6; i++)
        want[i] = freq(i, 12, 500000) / 4;
    expect_freqs(l.model.rope_freq, 6, want);
    assert_int_equal(l.model.hp.n_rot, 12);
    assert_true(l.model.rope_scale == 1);
    unload(&l);

    tiny.extra_values = put_none;
    load_good(&l, &tiny);
    for (int i = 0; i < 6; i++)
        want[i] = freq(i, 12, 500000);
    expect_freqs(l.model.rope_freq, 6, want);
    unload(&l);

    tiny.extra_values = NULL; /* Llama 3: one factor per pair */
    tiny.extra_tensor = "rope_freqs.weight";
    tiny.extra_n = 8;
    tiny.extra_value = 8;
    load_good(&l, &tiny);
    for (int i = 0; i < 8; i++)
        want[i] = freq(i, 16, 10000) / 8;
    expect_freqs(l.model.rope_freq, 8, want);
    unload(&l);

    tiny = with_arch("phi3");
    tiny.extra_values = put_longrope;
    tiny.extra_tensor = "rope_factors_short.weight";
    tiny.extra_tensor_2 = "rope_factors_long.weight";
    tiny.extra_n = 8;
    tiny.extra_value = 1.5f;
    load_good(&l, &tiny);
    for (int i = 0; i < 8; i++)
        want[i] = freq(i, 16, 10000) / 1.5f;
    expect_freqs(l.model.rope_freq, 8, want);
    for (int i = 0; i < 8; i++)
        want[i] = freq(i, 16, 10000) / 3;
    expect_freqs(l.model.rope_freq_long, 8, want);
    assert_true(l.model.rope_scale == 1.1902381f && l.model.rope_scale_long == 1.1902381f);
    assert_int_equal(l.model.rope_original_ctx, 64);
    assert_int_equal(l.model.hp.window, 2047);
    unload(&l);
    for (int is_long = 0; is_long < 2; is_long++) { /* one alone: the other texts have no factors */
        tiny.extra_tensor = is_long ? "rope_factors_long.weight" : "rope_factors_short.weight";
        tiny.extra_tensor_2 = NULL;
        load_good(&l, &tiny);
        for (int i = 0; i < 8; i++)
            want[i] = freq(i, 16, 10000);
        expect_freqs(is_long ? l.model.rope_freq : l.model.rope_freq_long, 8, want);
        for (int i = 0; i < 8; i++)
            want[i] /= 1.5f;
        expect_freqs(is_long ? l.model.rope_freq_long : l.model.rope_freq, 8, want);
        unload(&l);
    }
}

/* The inverse frequencies that transformers 4.46 computes for Qwen2's YaRN: rope_theta 1e6, head 128, factor 4, 32768. */
static void test_yarn(void **state)
{
    (void)state;
    static const struct {
        int pair;
        float value;
    } known[] = {
        {0, 1.0f},
        {1, 0.805842221f},
        {10, 0.115478203f},
        {20, 0.0133352149f},
        {22, 0.00865964312f},
        {23, 0.00697830599f},
        {24, 0.00537532149f},
        {26, 0.00316842273f},
        {28, 0.00184827659f},
        {30, 0.00106436096f},
        {32, 0.000602941145f},
        {34, 0.000334240554f},
        {36, 0.000179841154f},
        {38, 9.26230132e-05f},
        {39, 6.4903943e-05f},
        {40, 4.44569851e-05f},
        {41, 3.58253164e-05f},
        {42, 2.88695483e-05f},
        {50, 5.13381246e-06f},
        {63, 3.10234441e-07f},
    };
    struct tiny tiny = with_arch("qwen2");
    tiny.head_dim = 128;
    tiny.extra_values = put_yarn;
    struct loaded l;
    load_good(&l, &tiny);
    for (int i = 0; i < BUTLER_COUNT(known); i++)
        expect_freqs(&l.model.rope_freq[known[i].pair], 1, &known[i].value);
    assert_true(fabsf(l.model.rope_scale - 1.1386294f) < 1e-6f);
    assert_int_equal(l.model.rope_original_ctx, 32768);
    unload(&l);
}

/* ------------------------------------------------------------------------------------------------- errors */

static void expect_failure(const struct tiny *tiny, int code, const char *part)
{
    struct loaded l;
    tiny_write(tiny_path("bad.gguf"), tiny);
    load(&l, tiny_path("bad.gguf"));
    if (l.rc != code || l.err.code != code || !strstr(l.err.message, part) || !strstr(l.err.message, "bad.gguf"))
        fail_msg("code %d: '%s', expected %d: '%s'", l.rc, l.err.message, code, part);
    unload(&l);
}

/* Each tensor in turn is left out, and gets a wrong shape. */
/* As in llama.cpp: biases of the attention's products, and an output matrix of its own. */
static bool is_optional(const char *name)
{
    const char *part = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') + 1 : name;
    static const char *const names[] = {"output.weight", "attn_q.bias",   "attn_k.bias",
                                        "attn_v.bias",   "attn_qkv.bias", "attn_output.bias"};
    for (int i = 0; i < BUTLER_COUNT(names); i++)
        if (strcmp(part, names[i]) == 0)
            return true;
    return false;
}

static void test_missing_and_misshapen(void **state)
{
    (void)state;
    for (int a = 0; a < BUTLER_COUNT(archs); a++) {
        struct tiny tiny = with_arch(archs[a]);
        struct tiny_list *list = calloc(1, sizeof *list);
        list->tiny = &tiny;
        tiny_list_tensors(list);
        assert_true(list->n > 10);
        for (int i = 0; i < list->n; i++) {
            const char *name = list->tensors[i].name;
            char part[128];
            struct tiny bad = tiny;
            bad.leave_out = name;
            snprintf(part, sizeof part, "tensor '%s' is missing", name);
            if (strstr(name, "attn_qkv.weight")) /* or three of their own */
                snprintf(part, sizeof part, "tensor 'blk.%c.attn_q.weight' is missing, and so is 'attn_qkv.weight'", name[4]);
            if (is_optional(name)) {
                struct loaded l;
                load_good(&l, &bad);
                unload(&l);
            } else {
                expect_failure(&bad, BUTLER_ERROR_FORMAT, part);
            }
            bad = tiny;
            bad.wrong_shape = name;
            /* The embedding's rows define the vocabulary: then the output matrix does not fit. */
            snprintf(part, sizeof part, "tensor '%s': shape [", strcmp(name, "token_embd.weight") == 0 ? "output.weight" : name);
            expect_failure(&bad, BUTLER_ERROR_FORMAT, part);
        }
        free(list);
    }
}

static void test_shape_message(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    tiny.wrong_shape = "blk.1.attn_k.weight";
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "tensor 'blk.1.attn_k.weight': shape [64, 33], llama needs [64, 32]");
    tiny.wrong_shape = "blk.0.ffn_norm.weight";
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "tensor 'blk.0.ffn_norm.weight': shape [65], llama needs [64]");
}

static const char *bad_key;
static int64_t bad_int;
static float bad_float;
static const char *bad_string;
static void put_bad_int(struct butler_gguf_writer *w)
{
    butler_gguf_put_int(w, bad_key, BUTLER_GGUF_I64, bad_int, NULL);
}
static void put_bad_float(struct butler_gguf_writer *w)
{
    butler_gguf_put_float(w, bad_key, bad_float, NULL);
}
static void put_bad_string(struct butler_gguf_writer *w)
{
    butler_gguf_put_string(w, bad_key, bad_string, NULL);
}

static void test_bad_values(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int64_t value;
        int code;
        const char *part;
    } ints[] = {
        {"llama.rope.dimension_count", 18, BUTLER_ERROR_FORMAT, "18 is not in [2, 16]"},
        {"llama.rope.dimension_count", 3, BUTLER_ERROR_FORMAT, "3 dimensions cannot be rotated"},
        {"llama.attention.key_length", 15, BUTLER_ERROR_UNSUPPORTED, "an even number"},
        {"llama.attention.key_length", 1 << 20, BUTLER_ERROR_FORMAT, "'llama.attention.key_length'"},
        {"llama.attention.value_length", 32, BUTLER_ERROR_UNSUPPORTED, "values of 32 dimensions"},
        {"llama.expert_count", 8, BUTLER_ERROR_FORMAT, "expert_used_count' is missing"},
        {"llama.rope.scaling.original_context_length", 0, BUTLER_ERROR_FORMAT, "original_context_length"},
    };
    struct tiny tiny = tiny_default;
    tiny.extra_values = put_bad_int;
    for (int i = 0; i < BUTLER_COUNT(ints); i++) {
        bad_key = ints[i].key;
        bad_int = ints[i].value;
        expect_failure(&tiny, ints[i].code, ints[i].part);
    }
    static const struct {
        const char *key;
        float value;
    } floats[] = {
        {"llama.rope.freq_base", 0},          {"llama.rope.freq_base", -1},          {"llama.rope.freq_base", INFINITY},
        {"llama.rope.freq_base", NAN},        {"llama.rope.scaling.factor", -4},     {"llama.rope.scaling.factor", 1e30f},
        {"llama.rope.scaling.factor", 1e-6f}, {"llama.rope.scaling.attn_factor", 0}, {"llama.rope.scaling.yarn_beta_fast", 0}};
    tiny.extra_values = put_bad_float;
    for (int i = 0; i < BUTLER_COUNT(floats); i++) {
        bad_key = floats[i].key;
        bad_float = floats[i].value;
        expect_failure(&tiny, BUTLER_ERROR_FORMAT, bad_key);
    }
    tiny.extra_values = put_bad_string;
    bad_key = "llama.rope.scaling.type";
    bad_string = "dynamic";
    expect_failure(&tiny, BUTLER_ERROR_UNSUPPORTED, "rope scaling 'dynamic'");
}

static void test_bad_shapes_of_model(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    tiny.arch = "mamba";
    expect_failure(&tiny, BUTLER_ERROR_UNSUPPORTED, "'mamba' is none of llama");
    tiny = tiny_default;
    tiny.n_kv_heads = 3;
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "3 KV heads do not divide 4 heads");
    tiny = tiny_default;
    tiny.extra_tensor = "blk.0.attn_q_norm.weight";
    tiny.extra_n = 16;
    tiny.extra_value = 1;
    expect_failure(&tiny, BUTLER_ERROR_UNSUPPORTED, "tensor 'blk.0.attn_q_norm.weight' has no place in a llama model of 2 layers");
    static const char *const strangers[] = {"blk.2.attn_q.bias",  "blk.00.attn_q.bias", "blk.-1.attn_q.bias", "blk.+1.attn_q.bias",
                                            "blk. 1.attn_q.bias", "attn_q.bias",        "blk.0.output.weight"};
    for (int i = 0; i < BUTLER_COUNT(strangers); i++) {
        tiny.extra_tensor = strangers[i];
        tiny.extra_n = 64;
        expect_failure(&tiny, BUTLER_ERROR_UNSUPPORTED, "has no place");
    }
    struct tiny wide = tiny_default;
    wide.head_dim = BUTLER_MAX_HEAD_DIM + 2;
    expect_failure(&wide, BUTLER_ERROR_UNSUPPORTED, "heads of 514 dimensions; expected an even number up to 512");
    tiny.extra_tensor = "rope_freqs.weight";
    tiny.extra_n = 9;
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "tensor 'rope_freqs.weight': shape [9, 1], llama needs [8]");
    tiny.extra_n = 8;
    tiny.extra_value = -1;
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "factor 0 is -1");
    tiny.extra_value = 1;
    tiny = tiny_default;
    tiny.vector_type = BUTLER_Q8_0;
    expect_failure(&tiny, BUTLER_ERROR_UNSUPPORTED, "a vector of type Q8_0");
    tiny = tiny_default;
    tiny.leave_out = "token_embd.weight";
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "tensor 'token_embd.weight' is missing");
}

/* A vocabulary may be smaller than the embedding (padding), not larger; a model may have none. */
static void put_tokens(struct butler_gguf_writer *w)
{
    const char *texts[64];
    size_t lengths[64];
    for (int i = 0; i < 64; i++)
        texts[i] = "t", lengths[i] = 1;
    assert_int_equal(butler_gguf_put_strings(w, "tokenizer.ggml.tokens", texts, lengths, (uint64_t)bad_int, NULL), 0);
}

static void test_vocabulary(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    struct loaded l;
    tiny.vocab = false;
    load_good(&l, &tiny);
    unload(&l);
    tiny.extra_values = put_tokens;
    bad_int = 39;
    load_good(&l, &tiny);
    unload(&l);
    bad_int = 41;
    expect_failure(&tiny, BUTLER_ERROR_FORMAT, "'tokenizer.ggml.tokens': 41 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_unaligned_vectors),
        cmocka_unit_test(test_hparams),
        cmocka_unit_test(test_info_bytes),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_missing_and_misshapen),
        cmocka_unit_test(test_shape_message),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_bad_shapes_of_model),
        cmocka_unit_test(test_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
