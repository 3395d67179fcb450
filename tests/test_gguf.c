/* The GGUF reader and writer: what is written is read back. A damaged file gives an error that says where, never a crash, and
 * never an allocation that the size of the file does not justify. */
#include <xxhash.h>

#include "tiny_model.h"

/* ---------------------------------------------------------------------------------------------- round trip */

static void write_values(const char *path)
{
    struct butler_error err = {0};
    struct butler_gguf_writer *w = butler_gguf_writer_new(path, &err);
    assert_non_null(w);
    assert_int_equal(butler_gguf_put_int(w, "i.u8", BUTLER_GGUF_U8, 255, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.i8", BUTLER_GGUF_I8, -128, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.u16", BUTLER_GGUF_U16, 65535, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.i16", BUTLER_GGUF_I16, -32768, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.u32", BUTLER_GGUF_U32, 4294967295, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.i32", BUTLER_GGUF_I32, INT32_MIN, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.u64", BUTLER_GGUF_U64, INT64_MAX, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.i64", BUTLER_GGUF_I64, INT64_MIN, &err), 0);
    assert_int_equal(butler_gguf_put_int(w, "i.bool", BUTLER_GGUF_BOOL, 1, &err), 0);
    assert_int_equal(butler_gguf_put_float(w, "f", 0.1f, &err), 0);
    assert_int_equal(butler_gguf_put_string(w, "s", "grüße", &err), 0);
    assert_int_equal(butler_gguf_put_string(w, "s.empty", "", &err), 0);
    assert_int_equal(butler_gguf_put_strings(w, "a.s", (const char *[]){"one", "", "t\0o"}, (size_t[]){3, 0, 3}, 3, &err), 0);
    assert_int_equal(butler_gguf_put_strings(w, "a.s.empty", NULL, NULL, 0, &err), 0);
    assert_int_equal(butler_gguf_put_array(w, "a.f", BUTLER_GGUF_FLOAT32, (float[]){1.5f, -2}, 2, &err), 0);
    assert_int_equal(butler_gguf_put_array(w, "a.i16", BUTLER_GGUF_I16, (int16_t[]){1, -2, 3}, 3, &err), 0);
    assert_true(butler_gguf_put_int(w, "i.u8", BUTLER_GGUF_U8, 1, &err) == BUTLER_ERROR_ARGUMENT); /* twice */
    assert_true(butler_gguf_put_int(w, "x", BUTLER_GGUF_U8, 256, &err) == BUTLER_ERROR_ARGUMENT);
    assert_true(butler_gguf_put_int(w, "x", BUTLER_GGUF_I8, -129, &err) == BUTLER_ERROR_ARGUMENT);
    assert_true(butler_gguf_put_int(w, "x", BUTLER_GGUF_U64, -1, &err) == BUTLER_ERROR_ARGUMENT);
    assert_true(butler_gguf_put_int(w, "x", BUTLER_GGUF_BOOL, 2, &err) == BUTLER_ERROR_ARGUMENT);
    assert_true(butler_gguf_put_int(w, "x", BUTLER_GGUF_STRING, 1, &err) == BUTLER_ERROR_ARGUMENT);
    assert_true(butler_gguf_put_int(w, "general.alignment", BUTLER_GGUF_U32, 24, &err) == BUTLER_ERROR_ARGUMENT);
    assert_int_not_equal(access(path, F_OK), 0); /* no file under this name before the commit */
    assert_int_equal(butler_gguf_writer_commit(w, &err), 0);
    butler_gguf_writer_free(w);
}

static void check_scalars(const struct butler_gguf *g)
{
    struct butler_error err = {0};
    assert_int_equal(butler_gguf_n_values(g), 16);
    assert_int_equal(butler_gguf_n_tensors(g), 0);
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"i.u8", 255},        {"i.i8", -128},       {"i.u16", 65535},     {"i.i16", -32768}, {"i.u32", 4294967295},
                {"i.i32", INT32_MIN}, {"i.u64", INT64_MAX}, {"i.i64", INT64_MIN}, {"i.bool", 1}};
    for (int i = 0; i < BUTLER_COUNT(ints); i++) {
        int64_t value = 7;
        assert_int_equal(butler_gguf_int(g, ints[i].key, true, INT64_MIN, INT64_MAX, &value, &err), 0);
        assert_true(value == ints[i].value);
    }
    int64_t i = 7;
    assert_int_equal(butler_gguf_int(g, "absent", false, 0, 9, &i, &err), 0);
    assert_int_equal(i, 7);
    assert_true(butler_gguf_int(g, "absent", true, 0, 9, &i, &err) == BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "'absent'"));
    assert_true(butler_gguf_int(g, "i.u8", false, 0, 254, &i, &err) == BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "offset"));
    assert_true(butler_gguf_int(g, "f", false, 0, 254, &i, &err) == BUTLER_ERROR_FORMAT);
    assert_true(butler_gguf_int(g, "a.i16", false, 0, 254, &i, &err) == BUTLER_ERROR_FORMAT);
    double f = 0;
    assert_int_equal(butler_gguf_float(g, "f", true, &f, &err), 0);
    assert_true(f == (double)0.1f);
    assert_true(butler_gguf_float(g, "i.u8", false, &f, &err) == BUTLER_ERROR_FORMAT);
    const char *s = NULL;
    assert_int_equal(butler_gguf_string(g, "s", true, &s, &err), 0);
    assert_string_equal(s, "grüße");
    assert_int_equal(butler_gguf_string(g, "s.empty", true, &s, &err), 0);
    assert_string_equal(s, "");
    assert_true(butler_gguf_string(g, "f", false, &s, &err) == BUTLER_ERROR_FORMAT);
}

static void check_arrays(const struct butler_gguf *g)
{
    const struct butler_gguf_value *a = butler_gguf_value(g, "a.s");
    assert_non_null(a);
    assert_int_equal(a->n, 3);
    size_t n;
    assert_memory_equal(butler_gguf_array_string(a, 0, &n), "one", 3);
    assert_int_equal(n, 3);
    butler_gguf_array_string(a, 1, &n);
    assert_int_equal(n, 0);
    assert_memory_equal(butler_gguf_array_string(a, 2, &n), "t\0o", 3);
    assert_int_equal(butler_gguf_value(g, "a.s.empty")->n, 0);
    assert_true(butler_gguf_array_float(butler_gguf_value(g, "a.f"), 1) == -2);
    assert_int_equal(butler_gguf_array_int(butler_gguf_value(g, "a.i16"), 1), -2);
    assert_null(butler_gguf_value(g, "absent"));
    assert_null(butler_gguf_find(g, "absent"));
}

static void test_values(void **state)
{
    (void)state;
    struct butler_error err = {0};
    const char *path = tiny_path("values.gguf");
    write_values(path);
    struct butler_gguf *g = butler_gguf_open(path, &err);
    if (!g)
        fail_msg("%s", err.message);
    assert_string_equal(butler_gguf_path(g), path);
    check_scalars(g);
    check_arrays(g);

    /* Values copied from one file to another are the same bytes. */
    struct butler_gguf_writer *w = butler_gguf_writer_new(tiny_path("copy.gguf"), &err);
    for (int64_t v = 0; v < butler_gguf_n_values(g); v++)
        assert_int_equal(butler_gguf_put_value(w, butler_gguf_value_at(g, v), &err), 0);
    assert_int_equal(butler_gguf_writer_commit(w, &err), 0);
    butler_gguf_writer_free(w);
    struct tiny_bytes first = tiny_read(tiny_path("values.gguf")), second = tiny_read(tiny_path("copy.gguf"));
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    free(first.data);
    free(second.data);
    butler_gguf_free(g);
}

static void test_tensors(void **state)
{
    (void)state;
    static const int alignments[] = {0, 1, 8, 32, 4096};
    for (int k = 0; k < BUTLER_COUNT(alignments); k++) {
        struct butler_error err = {0};
        const char *path = tiny_path("tensors.gguf");
        struct butler_gguf_writer *w = butler_gguf_writer_new(path, &err);
        assert_non_null(w);
        if (alignments[k])
            assert_int_equal(butler_gguf_put_int(w, "general.alignment", BUTLER_GGUF_U32, alignments[k], &err), 0);
        float f[15];
        unsigned char q[2 * 34];
        for (int i = 0; i < 15; i++)
            f[i] = (float)i;
        memset(q, 0x5a, sizeof q);
        assert_int_equal(butler_gguf_put_tensor(w, "f", BUTLER_F32, 2, (int64_t[]){5, 3}, &err), 0);
        assert_int_equal(butler_gguf_put_tensor(w, "q", BUTLER_Q8_0, 3, (int64_t[]){32, 2, 1}, &err), 0);
        assert_true(butler_gguf_put_tensor(w, "q", BUTLER_F32, 1, (int64_t[]){1}, &err) == BUTLER_ERROR_ARGUMENT);
        assert_true(butler_gguf_put_tensor(w, "r", BUTLER_Q8_0, 1, (int64_t[]){33}, &err) == BUTLER_ERROR_ARGUMENT);
        assert_true(butler_gguf_put_tensor(w, "r", BUTLER_F32, 1, (int64_t[]){0}, &err) == BUTLER_ERROR_ARGUMENT);
        assert_true(butler_gguf_put_int(w, "late", BUTLER_GGUF_U8, 1, &err) == BUTLER_ERROR_ARGUMENT);
        assert_true(butler_gguf_writer_commit(w, &err) == BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_gguf_put_data(w, f, 28, &err), 0);
        assert_true(butler_gguf_put_data(w, f, 33, &err) == BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_gguf_put_data(w, f + 7, 32, &err), 0);
        assert_int_equal(butler_gguf_put_data(w, q, sizeof q, &err), 0);
        assert_true(butler_gguf_put_data(w, q, 1, &err) == BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_gguf_writer_commit(w, &err), 0);
        butler_gguf_writer_free(w);

        struct butler_gguf *g = butler_gguf_open(path, &err);
        if (!g)
            fail_msg("%s", err.message);
        const struct butler_tensor *t = butler_gguf_find(g, "f");
        assert_non_null(t);
        assert_ptr_equal(t, butler_gguf_tensor(g, 0));
        assert_int_equal(t->n_cols, 5);
        assert_int_equal(t->n_rows, 3);
        assert_int_equal(t->row_bytes, 20);
        assert_memory_equal(t->data, f, sizeof f);
        t = butler_gguf_find(g, "q");
        assert_int_equal(t->type, BUTLER_Q8_0);
        assert_int_equal(t->n_rows, 2);
        assert_int_equal(t->n_dims, 3);
        assert_memory_equal(t->data, q, sizeof q);
        butler_gguf_free(g);
    }
}

static void test_writer_leaves_nothing(void **state)
{
    (void)state;
    struct butler_gguf_writer *w = butler_gguf_writer_new(tiny_path("gone.gguf"), NULL);
    assert_int_equal(butler_gguf_put_string(w, "a", "b", NULL), 0);
    assert_int_equal(butler_gguf_put_tensor(w, "t", BUTLER_F32, 1, (int64_t[]){4}, NULL), 0);
    assert_int_equal(butler_gguf_put_data(w, "12345678", 8, NULL), 0);
    butler_gguf_writer_free(w);
    assert_int_not_equal(access(tiny_path("gone.gguf"), F_OK), 0);
    struct butler_error err = {0};
    assert_null(butler_gguf_writer_new(tiny_path("no/such/folder/x.gguf"), &err));
    assert_int_equal(err.code, BUTLER_ERROR_IO);
    assert_null(butler_gguf_open(tiny_path("absent.gguf"), &err));
    assert_non_null(strstr(err.message, "absent.gguf"));
}

static void test_fingerprint(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    tiny_write(tiny_path("a.gguf"), &tiny);
    struct tiny_bytes bytes = tiny_read(tiny_path("a.gguf"));
    struct butler_gguf *g = butler_gguf_open_memory(bytes.data, bytes.size, "a", NULL);
    uint64_t before = butler_gguf_sampled_fingerprint(g), whole = 0;
    assert_true(before == butler_gguf_sampled_fingerprint(g));
    assert_int_equal(butler_gguf_fingerprint(g, NULL, &whole, NULL), 0);
    assert_true(whole == XXH3_64bits(bytes.data, bytes.size));
    ((unsigned char *)(uintptr_t)butler_gguf_find(g, "blk.1.ffn_down.weight")->data)[100] ^= 1;
    assert_true(before != butler_gguf_sampled_fingerprint(g));
    butler_gguf_free(g);
    free(bytes.data);
}

/* ------------------------------------------------------------------------------------------- hostile files */

/* Opens and binds a buffer of exactly this size, so that the sanitizer detects a read past it. Either it works and each
 * weight can be read, or the error names the file and the position. */
static bool try_bytes(const unsigned char *data, size_t size)
{
    unsigned char *exact = malloc(size ? size : 1);
    memcpy(exact, data, size);
    struct butler_error err = {0};
    struct butler_model model = {.path = "damaged.gguf"};
    model.gguf = butler_gguf_open_memory(exact, size, "damaged.gguf", &err);
    bool good = model.gguf && butler_model_bind(&model, &err) == 0;
    if (good) {
        unsigned sum = 0;
        for (int64_t i = 0; i < butler_gguf_n_tensors(model.gguf); i++) {
            const struct butler_tensor *t = butler_gguf_tensor(model.gguf, i);
            for (size_t b = 0; b < t->row_bytes * (size_t)t->n_rows; b++)
                sum += ((const unsigned char *)t->data)[b];
        }
        assert_true(sum != 0);
        assert_true(model.layers[0].wq.data && model.output.data && model.hp.n_vocab > 0);
        assert_int_equal(err.code, 0);
    } else {
        assert_true(err.code < 0);
        if (!strstr(err.message, "damaged.gguf") ||
            !(strstr(err.message, "offset ") || strstr(err.message, "key '") || strstr(err.message, "tensor '")))
            fail_msg("error does not say where: %s", err.message);
    }
    butler_model_unbind(&model);
    butler_gguf_free(model.gguf);
    free(exact);
    return good;
}

static void test_truncations(void **state)
{
    (void)state;
    tiny_write(tiny_path("whole.gguf"), &(struct tiny){.arch = "qwen2",
                                                       .n_layers = 1,
                                                       .n_embd = 32,
                                                       .n_ff = 32,
                                                       .n_heads = 2,
                                                       .n_kv_heads = 1,
                                                       .head_dim = 16,
                                                       .n_vocab = 8,
                                                       .n_ctx = 16,
                                                       .matrix_type = BUTLER_Q8_0,
                                                       .vector_type = BUTLER_F16,
                                                       .vocab = true});
    struct tiny_bytes whole = tiny_read(tiny_path("whole.gguf"));
    assert_true(try_bytes(whole.data, whole.size));
    /* The writer pads the last tensor: a cut within the padding may go unnoticed. */
    for (size_t n = 0; n + 64 <= whole.size; n += 64)
        assert_false(try_bytes(whole.data, n));
    for (size_t n = 0; n < BUTLER_MIN(whole.size, (size_t)600); n++)
        assert_false(try_bytes(whole.data, n));
    free(whole.data);
}

/* Every field of the header, found by parsing it as the format specifies. */
struct field {
    size_t at, n_bytes;
};
struct walk {
    const unsigned char *data;
    size_t at;
    struct field fields[4096];
    int n;
};

static uint64_t walk_word(struct walk *w, size_t n_bytes)
{
    uint64_t value = 0;
    memcpy(&value, w->data + w->at, n_bytes);
    assert_true(w->n < BUTLER_COUNT(w->fields));
    w->fields[w->n++] = (struct field){w->at, n_bytes};
    w->at += n_bytes;
    return value;
}

static void walk_string(struct walk *w)
{
    uint64_t n = walk_word(w, 8);
    w->at += n;
}

static void walk_header(struct walk *w)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    walk_word(w, 4);
    walk_word(w, 4);
    uint64_t n_tensors = walk_word(w, 8), n_values = walk_word(w, 8);
    for (uint64_t i = 0; i < n_values; i++) {
        walk_string(w);
        uint64_t type = walk_word(w, 4), n = 1;
        if (type == BUTLER_GGUF_ARRAY) {
            type = walk_word(w, 4);
            n = walk_word(w, 8);
        }
        for (uint64_t k = 0; k < n; k++)
            if (type == BUTLER_GGUF_STRING)
                walk_string(w);
            else
                walk_word(w, sizes[type]);
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        walk_string(w);
        uint64_t n_dims = walk_word(w, 4);
        for (uint64_t d = 0; d < n_dims; d++)
            walk_word(w, 8);
        walk_word(w, 4);
        walk_word(w, 8);
    }
}

static void check_fields(const struct tiny *tiny)
{
    static const uint64_t values[] = {0,          1,          2,          3,          0x7f,           0xff,
                                      1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX / 2};
    tiny_write(tiny_path("fields.gguf"), tiny);
    struct tiny_bytes whole = tiny_read(tiny_path("fields.gguf"));
    struct walk *w = calloc(1, sizeof *w);
    w->data = whole.data;
    walk_header(w);
    int n_good = 0, n_bad = 0;
    for (int f = 0; f < w->n; f++)
        for (int v = 0; v < BUTLER_COUNT(values); v++) {
            unsigned char saved[8];
            memcpy(saved, whole.data + w->fields[f].at, w->fields[f].n_bytes);
            memcpy(whole.data + w->fields[f].at, &values[v], w->fields[f].n_bytes);
            bool good = try_bytes(whole.data, whole.size);
            n_good += good;
            n_bad += !good;
            /* Magic, version and counts allow no other value. */
            if (f < 4 && memcmp(saved, &values[v], w->fields[f].n_bytes) != 0 && !(f == 1 && values[v] == 2))
                assert_false(good);
            memcpy(whole.data + w->fields[f].at, saved, w->fields[f].n_bytes);
        }
    print_message("%s: %d fields, %d variants refused, %d still a model\n", tiny->arch, w->n, n_bad, n_good);
    assert_true(n_bad > 3 * w->n);
    assert_true(n_good > 0);
    free(w);
    free(whole.data);
}

static void test_fields(void **state)
{
    (void)state;
    struct tiny tiny = {.n_layers = 1,
                        .n_embd = 32,
                        .n_ff = 32,
                        .n_heads = 2,
                        .n_kv_heads = 2,
                        .head_dim = 16,
                        .n_vocab = 6,
                        .n_ctx = 16,
                        .matrix_type = BUTLER_Q8_0,
                        .vector_type = BUTLER_F32,
                        .vocab = true};
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "phi3", "gpt2"};
    for (int i = 0; i < BUTLER_COUNT(archs); i++) {
        tiny.arch = archs[i];
        check_fields(&tiny);
    }
}

/* Peak address space of this process in KiB: it grows with what is requested, touched or not. */
static long peak_kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[256];
    long peak = -1;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmPeak: %ld", &peak) == 1)
            break;
    fclose(file);
    assert_true(peak > 0);
    return peak;
}

/* A file that only claims large counts: they must not be allocated. */
static void test_announced_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        size_t at;
    } cases[] = {{"tensors", 8}, {"keys", 16}, {"key bytes", 24}, {"array", 41}, {"string of an array", 49}};
    static const uint64_t announced[] = {1 << 24, 1 << 28, 1ull << 40, 1ull << 60};
    for (int i = 0; i < BUTLER_COUNT(cases); i++)
        for (int k = 0; k < BUTLER_COUNT(announced); k++) {
            unsigned char file[256] = "GGUF\3";
            file[16] = 1;                 /* one key */
            file[24] = 1, file[32] = 'k'; /* named k */
            file[33] = BUTLER_GGUF_ARRAY, file[37] = BUTLER_GGUF_STRING;
            file[41] = 1; /* of one string */
            memcpy(file + cases[i].at, &announced[k], 8);
            long before = peak_kib();
            struct butler_error err = {0};
            assert_null(butler_gguf_open_memory(file, sizeof file, "liar.gguf", &err));
            assert_int_equal(err.code, BUTLER_ERROR_FORMAT);
            assert_non_null(strstr(err.message, "liar.gguf: offset "));
            if (peak_kib() - before > 4096)
                fail_msg("%s: %ld KiB more", cases[i].what, peak_kib() - before);
        }
}

static void expect_error(const unsigned char *file, size_t size, const char *part)
{
    struct butler_error err = {0};
    struct butler_gguf *g = butler_gguf_open_memory(file, size, "x.gguf", &err);
    assert_null(g);
    if (!strstr(err.message, part))
        fail_msg("'%s' does not contain '%s'", err.message, part);
}

/* Opens; the warnings have `part`. */
static void expect_warning(const unsigned char *file, size_t size, const char *part)
{
    struct butler_error err = {0};
    struct butler_gguf *g = butler_gguf_open_memory(file, size, "x.gguf", &err);
    if (!g)
        fail_msg("%s", err.message);
    if (!strstr(butler_gguf_warnings(g), part))
        fail_msg("'%s' does not contain '%s'", butler_gguf_warnings(g), part);
    butler_gguf_free(g);
}

static void test_messages(void **state)
{
    (void)state;
    unsigned char file[512] = "GGUF\3";
    expect_error(file, 3, "x.gguf: offset 0: header: magic needs 4 bytes");
    expect_error((const unsigned char *)"GGML\3\0\0\0", 8, "not a GGUF file");
    file[4] = 1;
    expect_error(file, sizeof file, "GGUF version 1");
    file[4] = 0, file[7] = 3;
    expect_error(file, sizeof file, "big-endian");
    file[4] = 3, file[7] = 0;
    file[16] = 1, file[24] = 1, file[32] = 'k';
    file[33] = BUTLER_GGUF_BOOL, file[37] = 2;
    expect_warning(file, sizeof file, "offset 37: key 'k': bool with the value 2");
    file[33] = BUTLER_GGUF_ARRAY, file[37] = BUTLER_GGUF_ARRAY, file[41] = 1;
    expect_error(file, sizeof file, "offset 37: key 'k': array of arrays");
    file[37] = BUTLER_GGUF_BOOL, file[41] = 3, file[50] = 9;
    expect_warning(file, sizeof file, "offset 50: key 'k': bool with the value 9");
    file[33] = 13;
    expect_error(file, sizeof file, "offset 33: key 'k': unknown value type 13");
    file[32] = 0;
    expect_error(file, sizeof file, "NUL byte in the name");
    memset(file + 24, 0, sizeof file - 24);
    file[16] = 2;
    file[24] = 1, file[32] = 'k', file[33] = BUTLER_GGUF_U8;
    file[38] = 1, file[46] = 'k', file[47] = BUTLER_GGUF_U8;
    expect_error(file, sizeof file, "key 'k': the header has it twice");
}

static void put_one_tensor(struct tiny_bytes *out, const char *second, uint64_t second_offset)
{
    const char *path = tiny_path("pair.gguf");
    struct butler_gguf_writer *w = butler_gguf_writer_new(path, NULL);
    assert_int_equal(butler_gguf_put_tensor(w, "a", BUTLER_F32, 1, (int64_t[]){8}, NULL), 0);
    assert_int_equal(butler_gguf_put_tensor(w, second, BUTLER_F32, 1, (int64_t[]){8}, NULL), 0);
    float zeros[8] = {0};
    assert_int_equal(butler_gguf_put_data(w, zeros, sizeof zeros, NULL), 0);
    assert_int_equal(butler_gguf_put_data(w, zeros, sizeof zeros, NULL), 0);
    assert_int_equal(butler_gguf_writer_commit(w, NULL), 0);
    butler_gguf_writer_free(w);
    *out = tiny_read(path);
    memcpy(out->data + 24 + 33 + 25, &second_offset, 8);
}

static void test_tensor_messages(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset;
        const char *part;
    } cases[] = {{0, "overlap those of"},
                 {16, "is not a multiple of the alignment 32"},
                 {64, "the file has 64 bytes of data"},
                 {UINT64_MAX - 31, "the file has 64 bytes of data"}};
    struct tiny_bytes bytes;
    for (int i = 0; i < BUTLER_COUNT(cases); i++) {
        put_one_tensor(&bytes, "b", cases[i].offset);
        expect_error(bytes.data, bytes.size, cases[i].part);
        free(bytes.data);
    }
    put_one_tensor(&bytes, "b", 32);
    struct butler_gguf *g = butler_gguf_open_memory(bytes.data, bytes.size, "x.gguf", NULL);
    assert_non_null(g);
    butler_gguf_free(g);
    bytes.data[24 + 33 + 8] = 'a';
    expect_error(bytes.data, bytes.size, "tensor 'a': the header has it twice");
    free(bytes.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_tensors),     cmocka_unit_test(test_writer_leaves_nothing),
        cmocka_unit_test(test_fingerprint),     cmocka_unit_test(test_truncations), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_announced_sizes), cmocka_unit_test(test_messages),    cmocka_unit_test(test_tensor_messages),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
