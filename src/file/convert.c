/* Converts checkpoints of llama2.c to GGUF. The checkpoint is a plain sequence of arrays. Rows of q and k already pair
 * adjacent dimensions, as GGUF's architecture llama requires. */
#include "file/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_value.h"

enum {
    N_HEADER = 7,
    MAGIC_LATER = 0x616b3432, /* versions 1 and 2 of the format begin with this */
    MAX_DIM = 1 << 20,
    MAX_HIDDEN = 1 << 24,
    MAX_LAYERS = 4096,
    MAX_VOCAB = 1 << 24,
    MAX_CONTEXT = 1 << 24,
    N_SPECIAL = 3, /* <unk>, <s>, </s> */
    N_BYTES = 256, /* followed by one token per byte */
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_BYTE = 6,
};

struct checkpoint {
    const char *path;
    struct butler_map map;
    int dim, hidden, n_layers, n_heads, n_kv_heads, n_vocab, n_ctx;
    bool has_output; /* otherwise the embedding is also the output matrix */
};

/* One array of the file, or one per layer, in the order of the file. */
struct array {
    const char *name; /* NULL: skipped */
    int64_t n_rows, n_cols;
    bool vector, layered;
};

enum { N_ARRAYS = 13 };

struct vocabulary {
    struct butler_map map;
    const char **texts;
    size_t *lengths;
    float *scores;
    int32_t *types;
    char *space; /* storage of the texts */
};

/* -------------------------------------------------------------------------------------------- checkpoint */

static int list_arrays(const struct checkpoint *c, struct array arrays[N_ARRAYS])
{
    int64_t dim = c->dim, hidden = c->hidden, head = dim / c->n_heads, kv = head * c->n_kv_heads;
    const struct array list[N_ARRAYS] = {
        {"token_embd.weight", c->n_vocab, dim, false, false},
        {"attn_norm.weight", 1, dim, true, true},
        {"attn_q.weight", dim, dim, false, true},
        {"attn_k.weight", kv, dim, false, true},
        {"attn_v.weight", kv, dim, false, true},
        {"attn_output.weight", dim, dim, false, true},
        {"ffn_norm.weight", 1, dim, true, true},
        {"ffn_gate.weight", hidden, dim, false, true},
        {"ffn_down.weight", dim, hidden, false, true},
        {"ffn_up.weight", hidden, dim, false, true},
        {"output_norm.weight", 1, dim, true, false},
        {NULL, c->n_ctx, head, false, false}, /* cos and sin of each position */
        {"output.weight", c->n_vocab, dim, false, false},
    };
    memcpy(arrays, list, sizeof list);
    return c->has_output ? N_ARRAYS : N_ARRAYS - 1;
}

static uint64_t array_bytes(const struct array *array)
{
    return 4 * (uint64_t)array->n_rows * (uint64_t)array->n_cols;
}

static int check_field(const struct checkpoint *c, const char *name, int index, int value, int max, struct butler_error *err)
{
    if (value >= 1 && value <= max)
        return 0;
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset %d: %s is %d, 1 to %d make sense", c->path, 4 * index, name, value,
                       max);
}

static int read_checkpoint(struct checkpoint *c, struct butler_error *err)
{
    int32_t header[N_HEADER];
    if (c->map.size < sizeof header)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes are no llama2.c checkpoint", c->path, c->map.size);
    for (int i = 0; i < N_HEADER; i++)
        header[i] = (int32_t)butler_gguf_load_u32(c->map.data + 4 * i);
    if (header[0] == MAGIC_LATER)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: offset 4: llama2.c format version %d; export it with --version 0",
                           c->path, header[1]);
    c->dim = header[0];
    c->hidden = header[1];
    c->n_layers = header[2];
    c->n_heads = header[3];
    c->n_kv_heads = header[4];
    /* A negative vocabulary size means that the output matrix is separate from the embedding. */
    c->has_output = header[5] < 0;
    c->n_vocab = c->has_output && header[5] != INT32_MIN ? -header[5] : header[5];
    c->n_ctx = header[6];
    int rc;
    if ((rc = check_field(c, "dim", 0, c->dim, MAX_DIM, err)) < 0 ||
        (rc = check_field(c, "hidden_dim", 1, c->hidden, MAX_HIDDEN, err)) < 0 ||
        (rc = check_field(c, "n_layers", 2, c->n_layers, MAX_LAYERS, err)) < 0 ||
        (rc = check_field(c, "n_heads", 3, c->n_heads, c->dim, err)) < 0 ||
        (rc = check_field(c, "n_kv_heads", 4, c->n_kv_heads, c->n_heads, err)) < 0 ||
        (rc = check_field(c, "vocab_size", 5, c->n_vocab, MAX_VOCAB, err)) < 0 ||
        (rc = check_field(c, "seq_len", 6, c->n_ctx, MAX_CONTEXT, err)) < 0)
        return rc;
    if (c->dim % c->n_heads || c->dim / c->n_heads % 2 || c->n_heads % c->n_kv_heads)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset 12: dim %d, %d heads and %d KV heads do not go together", c->path,
                           c->dim, c->n_heads, c->n_kv_heads);
    struct array arrays[N_ARRAYS];
    int n_arrays = list_arrays(c, arrays);
    uint64_t expected = sizeof header;
    for (int i = 0; i < n_arrays; i++)
        expected += array_bytes(&arrays[i]) * (uint64_t)(arrays[i].layered ? c->n_layers : 1);
    if (expected != c->map.size)
        return butler_fail(err, BUTLER_ERROR_FORMAT,
                           "%s: %zu bytes; a checkpoint with this header (dim %d, %d layers, %d tokens) has %llu", c->path,
                           c->map.size, c->dim, c->n_layers, c->n_vocab, (unsigned long long)expected);
    return 0;
}

/* -------------------------------------------------------------------------------------------- vocabulary */

/* Appends a token in GGUF's form: without the line breaks that llama2.c prints around special tokens, and with
 * SentencePiece's mark for spaces. */
static size_t spell_token(char *to, int id, const unsigned char *bytes, size_t n)
{
    static const char *const special[N_SPECIAL] = {"<unk>", "<s>", "</s>"};
    if (id < N_SPECIAL) {
        strcpy(to, special[id]);
        return strlen(special[id]);
    }
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == ' ') {
            memcpy(to + used, "\xe2\x96\x81", 3);
            used += 3;
        } else {
            to[used++] = (char)bytes[i];
        }
    return used;
}

static int32_t token_type(int id, const char *text, size_t n)
{
    char byte[8];
    if (id < N_SPECIAL)
        return id == 0 ? TOKEN_UNKNOWN : TOKEN_CONTROL;
    int length = snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(id - N_SPECIAL) & 0xff);
    bool is_byte = id < N_SPECIAL + N_BYTES && n == (size_t)length && memcmp(text, byte, n) == 0;
    return is_byte ? TOKEN_BYTE : TOKEN_NORMAL;
}

static int read_tokens(struct vocabulary *v, const char *path, int n_vocab, struct butler_error *err)
{
    const unsigned char *data = v->map.data;
    size_t at = 4, used = 0; /* the length of the longest token comes first; it is not needed */
    for (int id = 0; id < n_vocab; id++) {
        if (v->map.size - at < 8)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset %zu: the file ends before token %d of %d", path, at, id,
                               n_vocab);
        uint32_t bits = butler_gguf_load_u32(data + at), n = butler_gguf_load_u32(data + at + 4);
        memcpy(&v->scores[id], &bits, sizeof bits);
        if (!isfinite(v->scores[id]))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset %zu: the score of token %d is not finite", path, at, id);
        if (n == 0 || n > v->map.size - at - 8)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset %zu: token %d of %u bytes, the file has %zu left", path,
                               at + 4, id, n, v->map.size - at - 8);
        v->texts[id] = v->space + used;
        v->lengths[id] = spell_token(v->space + used, id, data + at + 8, n);
        v->types[id] = token_type(id, v->texts[id], v->lengths[id]);
        used += v->lengths[id];
        at += 8 + n;
    }
    if (at != v->map.size)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: offset %zu: more tokens than the model's %d", path, at, n_vocab);
    return 0;
}

static int read_vocabulary(struct vocabulary *v, const char *path, int n_vocab, struct butler_error *err)
{
    int rc = butler_map_open(&v->map, path, err);
    if (rc < 0)
        return rc;
    /* A token takes at least nine bytes, so the size of the file bounds the allocation. */
    if (v->map.size < 4 || (v->map.size - 4) / 9 < (size_t)n_vocab)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes cannot hold the model's %d tokens", path, v->map.size, n_vocab);
    size_t n = (size_t)n_vocab;
    v->texts = butler_alloc(n * sizeof *v->texts, err);
    v->lengths = butler_alloc(n * sizeof *v->lengths, err);
    v->scores = butler_alloc(n * sizeof *v->scores, err);
    v->types = butler_alloc(n * sizeof *v->types, err);
    v->space = butler_alloc(3 * v->map.size + 32, err);
    if (!v->texts || !v->lengths || !v->scores || !v->types || !v->space)
        return BUTLER_ERROR_MEMORY;
    return read_tokens(v, path, n_vocab, err);
}

static void free_vocabulary(struct vocabulary *v)
{
    free(v->texts);
    free(v->lengths);
    free(v->scores);
    free(v->types);
    free(v->space);
    butler_map_close(&v->map);
}

/* ------------------------------------------------------------------------------------------------ output */

static int put_hparams(struct butler_gguf_writer *w, const struct checkpoint *c, struct butler_error *err)
{
    const struct {
        const char *key;
        int value;
    } ints[] = {
        {"general.file_type", 0}, /* all F32 */
        {"llama.block_count", c->n_layers},
        {"llama.context_length", c->n_ctx},
        {"llama.embedding_length", c->dim},
        {"llama.feed_forward_length", c->hidden},
        {"llama.attention.head_count", c->n_heads},
        {"llama.attention.head_count_kv", c->n_kv_heads},
        {"llama.rope.dimension_count", c->dim / c->n_heads},
        {"llama.vocab_size", c->n_vocab},
    };
    const char *slash = strrchr(c->path, '/');
    char name[128];
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : c->path);
    char *dot = strrchr(name, '.');
    if (dot && dot > name)
        *dot = '\0';
    int rc;
    if ((rc = butler_gguf_put_string(w, "general.architecture", "llama", err)) < 0 ||
        (rc = butler_gguf_put_string(w, "general.name", name, err)) < 0)
        return rc;
    for (int i = 0; i < BUTLER_COUNT(ints); i++)
        if ((rc = butler_gguf_put_int(w, ints[i].key, BUTLER_GGUF_U32, ints[i].value, err)) < 0)
            return rc;
    /* Constants of llama2.c's run.c. */
    if ((rc = butler_gguf_put_float(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f, err)) < 0)
        return rc;
    return butler_gguf_put_float(w, "llama.rope.freq_base", 10000, err);
}

static int put_vocabulary(struct butler_gguf_writer *w, const struct vocabulary *v, int n_vocab, struct butler_error *err)
{
    uint64_t n = (uint64_t)n_vocab;
    int rc;
    if ((rc = butler_gguf_put_string(w, "tokenizer.ggml.model", "llama", err)) < 0 ||
        (rc = butler_gguf_put_string(w, "tokenizer.ggml.pre", "default", err)) < 0 ||
        (rc = butler_gguf_put_strings(w, "tokenizer.ggml.tokens", v->texts, v->lengths, n, err)) < 0 ||
        (rc = butler_gguf_put_array(w, "tokenizer.ggml.scores", BUTLER_GGUF_FLOAT32, v->scores, n, err)) < 0 ||
        (rc = butler_gguf_put_array(w, "tokenizer.ggml.token_type", BUTLER_GGUF_I32, v->types, n, err)) < 0 ||
        (rc = butler_gguf_put_int(w, "tokenizer.ggml.unknown_token_id", BUTLER_GGUF_U32, 0, err)) < 0 ||
        (rc = butler_gguf_put_int(w, "tokenizer.ggml.bos_token_id", BUTLER_GGUF_U32, 1, err)) < 0 ||
        (rc = butler_gguf_put_int(w, "tokenizer.ggml.eos_token_id", BUTLER_GGUF_U32, 2, err)) < 0 ||
        (rc = butler_gguf_put_int(w, "tokenizer.ggml.add_bos_token", BUTLER_GGUF_BOOL, 1, err)) < 0 ||
        (rc = butler_gguf_put_int(w, "tokenizer.ggml.add_eos_token", BUTLER_GGUF_BOOL, 0, err)) < 0)
        return rc;
    return butler_gguf_put_int(w, "tokenizer.ggml.add_space_prefix", BUTLER_GGUF_BOOL, 1, err);
}

static int put_tensors(struct butler_gguf_writer *w, const struct checkpoint *c, struct butler_error *err)
{
    struct array arrays[N_ARRAYS];
    int n_arrays = list_arrays(c, arrays), rc;
    for (int i = 0; i < n_arrays; i++)
        for (int l = 0; arrays[i].name && l < (arrays[i].layered ? c->n_layers : 1); l++) {
            char name[64];
            if (arrays[i].layered)
                snprintf(name, sizeof name, "blk.%d.%s", l, arrays[i].name);
            else
                snprintf(name, sizeof name, "%s", arrays[i].name);
            int64_t dims[2] = {arrays[i].n_cols, arrays[i].n_rows};
            if ((rc = butler_gguf_put_tensor(w, name, BUTLER_F32, arrays[i].vector ? 1 : 2, dims, err)) < 0)
                return rc;
        }
    const unsigned char *data = c->map.data + 4 * N_HEADER;
    for (int i = 0; i < n_arrays; i++)
        for (int l = 0; l < (arrays[i].layered ? c->n_layers : 1); l++) {
            size_t n_bytes = (size_t)array_bytes(&arrays[i]);
            if (arrays[i].name && (rc = butler_gguf_put_data(w, data, n_bytes, err)) < 0)
                return rc;
            data += n_bytes;
        }
    return 0;
}

int butler_convert_llama2c(const char *in, const char *tokenizer, const char *out, struct butler_error *err)
{
    struct checkpoint checkpoint = {.path = in};
    struct vocabulary vocabulary = {0};
    struct butler_gguf_writer *writer = NULL;
    int rc = butler_map_open(&checkpoint.map, in, err);
    if (rc < 0)
        return rc;
    if ((rc = read_checkpoint(&checkpoint, err)) < 0 ||
        (tokenizer && (rc = read_vocabulary(&vocabulary, tokenizer, checkpoint.n_vocab, err)) < 0))
        goto fail;
    rc = BUTLER_ERROR_IO;
    if (!(writer = butler_gguf_writer_new(out, err)))
        goto fail;
    if ((rc = put_hparams(writer, &checkpoint, err)) < 0 ||
        (tokenizer && (rc = put_vocabulary(writer, &vocabulary, checkpoint.n_vocab, err)) < 0) ||
        (rc = put_tensors(writer, &checkpoint, err)) < 0 || (rc = butler_map_check(&checkpoint.map, in, err)) < 0)
        goto fail;
    rc = butler_gguf_writer_commit(writer, err);
fail:
    butler_gguf_writer_free(writer);
    free_vocabulary(&vocabulary);
    butler_map_close(&checkpoint.map);
    return rc;
}
