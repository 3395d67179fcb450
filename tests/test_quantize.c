/* Quantising a file: matrices change type and stay close to the originals, everything else stays the same, and what could not
 * be converted is reported. */
#include "file/quantize.h"
#include "tiny_model.h"

#include <math.h>

struct told {
    int n_steps, n_notes;
    char last_note[128], last_name[64];
};

static void tell(void *user, const struct butler_quantize_step *step)
{
    struct told *told = user;
    assert_int_equal(step->i, told->n_steps);
    told->n_steps++;
    if (step->note) {
        told->n_notes++;
        snprintf(told->last_note, sizeof told->last_note, "%s", step->note);
        snprintf(told->last_name, sizeof told->last_name, "%s", step->tensor->name);
    }
}

/* Maximum difference of a tensor's rows, relative to the row's absmax. */
static double worst(const struct butler_tensor *a, const struct butler_tensor *b)
{
    const struct butler_kernels *k = butler_kernels_get("ref");
    float x[512], y[512];
    double most = 0;
    assert_true(a->n_cols == b->n_cols && a->n_rows == b->n_rows && a->n_cols <= 512);
    for (int64_t r = 0; r < a->n_rows; r++) {
        k->dequant[a->type](x, (const char *)a->data + (size_t)r * a->row_bytes, (int)a->n_cols);
        k->dequant[b->type](y, (const char *)b->data + (size_t)r * b->row_bytes, (int)b->n_cols);
        double top = 0, off = 0;
        for (int64_t c = 0; c < a->n_cols; c++) {
            top = fmax(top, fabs((double)x[c]));
            off = fmax(off, fabs((double)x[c] - (double)y[c]));
        }
        most = fmax(most, off / top);
    }
    return most;
}

static void check_values(const struct butler_gguf *a, const struct butler_gguf *b, int file_type)
{
    for (int64_t i = 0; i < butler_gguf_n_values(a); i++) {
        const struct butler_gguf_value *v = butler_gguf_value_at(a, i), *w = butler_gguf_value(b, v->key);
        assert_non_null(w);
        assert_int_equal(v->type, w->type);
        assert_int_equal(v->n, w->n);
    }
    int64_t value = 0;
    assert_int_equal(butler_gguf_int(b, "general.file_type", true, 0, 99, &value, NULL), 0);
    assert_int_equal(value, file_type);
    assert_int_equal(butler_gguf_int(b, "general.quantization_version", true, 2, 2, &value, NULL), 0);
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        enum butler_type type;
        int file_type;
        double error; /* half a rounding step, relative to the absmax */
    } types[] = {{BUTLER_F16, 1, 0.0005},
                 {BUTLER_Q8_0, 7, 0.0045},
                 {BUTLER_Q4_0, 2, 0.13},
                 {BUTLER_Q4_K, 14, 0.17},
                 {BUTLER_Q6_K, 18, 0.04}};
    static const enum butler_type sources[] = {BUTLER_F32, BUTLER_F16, BUTLER_BF16};
    static const char *const archs[] = {"llama", "phi3", "gpt2"};
    for (int t = 0; t < BUTLER_COUNT(types); t++)
        for (int s = 0; s < BUTLER_COUNT(sources); s++)
            for (int a = 0; a < BUTLER_COUNT(archs); a++) {
                struct tiny tiny = tiny_default;
                tiny.arch = archs[a];
                if (butler_types[types[t].type].block == 256) {
                    tiny.n_embd = 256;
                    tiny.n_ff = 512;
                    tiny.head_dim = 64;
                }
                tiny.matrix_type = tiny.vector_type = sources[s];
                char in[160], out[160];
                snprintf(in, sizeof in, "%s", tiny_path("in.gguf"));
                snprintf(out, sizeof out, "%s", tiny_path("out.gguf"));
                tiny_write(in, &tiny);
                struct butler_error err = {0};
                struct told told = {0};
                if (butler_quantize_file(in, out, types[t].type, tell, &told, &err) < 0)
                    fail_msg("%s", err.message);
                struct butler_gguf *g = butler_gguf_open(in, &err), *q = butler_gguf_open(out, &err);
                assert_true(g && q);
                check_values(g, q, types[t].file_type);
                assert_int_equal(told.n_steps, butler_gguf_n_tensors(g));
                assert_int_equal(told.n_notes, a == 2); /* the positions of gpt2 */
                assert_int_equal(butler_gguf_n_tensors(g), butler_gguf_n_tensors(q));
                for (int64_t i = 0; i < butler_gguf_n_tensors(g); i++) {
                    const struct butler_tensor *x = butler_gguf_tensor(g, i), *y = butler_gguf_find(q, x->name);
                    bool kept = strcmp(x->name, "position_embd.weight") == 0;
                    assert_int_equal(y->type, x->n_dims == 1 ? BUTLER_F32 : kept ? x->type : types[t].type);
                    assert_int_equal(x->n_dims, y->n_dims);
                    double most = worst(x, y);
                    assert_true(x->n_dims == 1 || kept ? most == 0 : most <= types[t].error);
                    bool same = x->n_dims == 1 || kept || types[t].type == sources[s];
                    bool nearly = types[t].type == BUTLER_F16 && sources[s] == BUTLER_BF16; /* only the smallest lose bits */
                    assert_true(nearly || (most > 0) == !same);
                }
                struct butler_model model = {.path = out, .gguf = q};
                assert_int_equal(butler_model_bind(&model, &err), 0);
                if (a != 2) /* in this gpt2 the positions are most of the bytes */
                    assert_string_equal(model.info.file_type, butler_types[types[t].type].name);
                butler_model_unbind(&model);
                butler_gguf_free(g);
                butler_gguf_free(q);
            }
}

/* Rows of 40 are not a multiple of 32: they keep their type, and the caller is told. */
static void test_odd_rows(void **state)
{
    (void)state;
    struct tiny tiny = tiny_default;
    tiny.n_ff = 40;
    char in[160];
    snprintf(in, sizeof in, "%s", tiny_path("in.gguf"));
    tiny_write(in, &tiny);
    struct butler_error err = {0};
    struct told told = {0};
    assert_int_equal(butler_quantize_file(in, tiny_path("out.gguf"), BUTLER_Q8_0, tell, &told, &err), 0);
    assert_int_equal(told.n_notes, 2);
    assert_string_equal(told.last_name, "blk.1.ffn_down.weight");
    assert_non_null(strstr(told.last_note, "multiple"));
    struct butler_gguf *q = butler_gguf_open(tiny_path("out.gguf"), &err);
    assert_int_equal(butler_gguf_find(q, "blk.1.ffn_down.weight")->type, BUTLER_F32);
    assert_int_equal(butler_gguf_find(q, "blk.1.ffn_up.weight")->type, BUTLER_Q8_0);
    butler_gguf_free(q);
    /* Rows of 64 are no multiple of 256: Q8_0 instead of Q4_K. */
    told = (struct told){0};
    assert_int_equal(butler_quantize_file(in, tiny_path("out.gguf"), BUTLER_Q4_K, tell, &told, &err), 0);
    assert_int_equal(told.n_notes, told.n_steps - 5); /* all matrices */
    q = butler_gguf_open(tiny_path("out.gguf"), &err);
    assert_int_equal(butler_gguf_find(q, "blk.1.ffn_down.weight")->type, BUTLER_F32);
    assert_int_equal(butler_gguf_find(q, "blk.1.ffn_up.weight")->type, BUTLER_Q8_0);
    butler_gguf_free(q);
    /* F16 has no blocks. */
    told = (struct told){0};
    assert_int_equal(butler_quantize_file(in, tiny_path("out.gguf"), BUTLER_F16, tell, &told, &err), 0);
    assert_int_equal(told.n_notes, 0);
}

/* The result may replace its source; quantising twice changes nothing more. */
static void test_in_place(void **state)
{
    (void)state;
    struct butler_error err = {0};
    char path[160];
    snprintf(path, sizeof path, "%s", tiny_path("same.gguf"));
    struct tiny tiny = tiny_default;
    tiny.alignment = 64;
    tiny_write(path, &tiny);
    assert_int_equal(butler_quantize_file(path, path, BUTLER_Q8_0, NULL, NULL, &err), 0);
    struct tiny_bytes once = tiny_read(path);
    assert_int_equal(butler_quantize_file(path, path, BUTLER_Q8_0, NULL, NULL, &err), 0);
    struct tiny_bytes twice = tiny_read(path);
    assert_int_equal(once.size, twice.size);
    assert_memory_equal(once.data, twice.data, once.size);
    free(once.data);
    free(twice.data);
    struct told told = {0};
    assert_int_equal(butler_quantize_file(path, path, BUTLER_Q4_0, tell, &told, &err), 0);
    assert_non_null(strstr(told.last_note, "quantised before"));
}

static void expect_refused(const char *in, enum butler_type type, int code, const char *part)
{
    struct butler_error err = {0};
    char out[160];
    snprintf(out, sizeof out, "%s", tiny_path("refused.gguf"));
    int rc = butler_quantize_file(in, out, type, NULL, NULL, &err);
    if (rc != code || !strstr(err.message, part))
        fail_msg("%d: '%s', expected %d: '%s'", rc, err.message, code, part);
    assert_int_not_equal(access(out, F_OK), 0);
}

static void put_poison(const char *path, float value)
{
    struct butler_gguf_writer *w = butler_gguf_writer_new(path, NULL);
    float row[64] = {0};
    row[37] = value;
    assert_int_equal(butler_gguf_put_tensor(w, "t.weight", BUTLER_F32, 2, (int64_t[]){32, 2}, NULL), 0);
    assert_int_equal(butler_gguf_put_data(w, row, sizeof row, NULL), 0);
    assert_int_equal(butler_gguf_writer_commit(w, NULL), 0);
    butler_gguf_writer_free(w);
}

static void test_refusals(void **state)
{
    (void)state;
    char in[160];
    snprintf(in, sizeof in, "%s", tiny_path("poison.gguf"));
    put_poison(in, NAN);
    expect_refused(in, BUTLER_Q8_0, BUTLER_ERROR_NUMERIC, "poison.gguf: tensor 't.weight': element 5 of row 1 is nan");
    put_poison(in, -INFINITY);
    expect_refused(in, BUTLER_Q4_0, BUTLER_ERROR_NUMERIC, "element 5 of row 1 is -inf");
    put_poison(in, 70000);
    expect_refused(in, BUTLER_F16, BUTLER_ERROR_NUMERIC, "element 5 of row 1 is 70000, beyond F16");
    expect_refused(in, BUTLER_Q5_K, BUTLER_ERROR_ARGUMENT, "type Q5_K: F16, Q8_0, Q6_K, Q4_K or Q4_0 can be written");
    expect_refused(in, (enum butler_type)77, BUTLER_ERROR_ARGUMENT, "type unknown");
    expect_refused(tiny_path("absent.gguf"), BUTLER_Q8_0, BUTLER_ERROR_IO, "absent.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
