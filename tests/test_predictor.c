/* Predictor files: written, read again, and refused beside another model or when they are not what they claim. */
#include "tiny_model.h"

#include <math.h>

#include "model/predictor.h"

static struct butler_model *open_tiny(const char *name, uint64_t seed)
{
    struct butler_error err;
    struct tiny tiny = tiny_default;
    tiny.seed = seed;
    tiny.n_layers = 6;
    const char *path = tiny_path(name);
    tiny_write(path, &tiny);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    if (!model)
        fail_msg("%s", err.message);
    return model;
}

static struct butler_predictor *make(struct butler_model *model, int version)
{
    struct butler_error err;
    const struct butler_predictor_sizes sizes = butler_predictor_sizes_for(model, version);
    struct butler_predictor *predictor = butler_predictor_new(&sizes, 5, &err);
    if (!predictor)
        fail_msg("%s", err.message);
    assert_int_equal(butler_model_fingerprint(model, &predictor->model_fingerprint, &err), 0);
    predictor->training = (struct butler_predictor_training){1000, 10, 0.5, "a text"};
    return predictor;
}

static void test_params(void **state)
{
    struct butler_model *model = open_tiny("a.gguf", 1);
    (void)state;
    for (int version = 1; version <= 2; version++) {
        struct butler_predictor *predictor = make(model, version);
        size_t n = 0;
        int first, n_layers = 0;
        for (int i = 0; i < predictor->n_params; i++) {
            const struct butler_predictor_param *param = &predictor->params[i];
            assert_ptr_equal(param->data, predictor->weights + n);
            assert_ptr_equal(param->matrix.data, param->data);
            assert_ptr_equal(butler_predictor_find(predictor, param->name), param);
            n += (size_t)param->n_rows * (size_t)param->n_cols;
        }
        assert_int_equal(n, predictor->n_weights);
        for (int b = 0; butler_predictor_serves(&predictor->sizes, b, &first) > 0; b++) {
            assert_int_equal(first, n_layers + 1); /* every layer but the first, once */
            n_layers += butler_predictor_serves(&predictor->sizes, b, &first);
        }
        assert_int_equal(n_layers, 5);
        butler_predictor_free(predictor);
    }
    butler_model_free(model);
}

/* Queries turn as fast as evenly chosen pairs of the model, where these turn at all within a text. */
static void test_rotation(void **state)
{
    struct butler_model *model = open_tiny("a.gguf", 1);
    struct butler_predictor_sizes sizes = butler_predictor_sizes_for(model, 2);
    int n_turning = 0;
    (void)state;
    sizes.d = 4;
    for (int n_tokens = 4; n_tokens <= 4096; n_tokens *= 32) {
        butler_predictor_rotate(&sizes, model, n_tokens);
        for (int i = 0; i < sizes.d / 2; i++) {
            const float freq = model->rope_freq[i * model->hp.n_rot / sizes.d];
            const bool turns = (double)freq * n_tokens >= 2 * 3.141592;
            assert_true(sizes.rope_freq[i] == (turns ? freq : 0));
            n_turning += turns;
        }
        assert_int_equal(butler_predictor_rotates(&sizes), n_tokens > 4);
    }
    assert_in_range(n_turning, 2, 4);
    sizes = butler_predictor_sizes_for(model, 1);
    for (int n_tokens = 0; n_tokens <= 100; n_tokens += 50) { /* 0: as published, all pairs */
        float freq[4];
        butler_predictor_rotate(&sizes, model, n_tokens);
        butler_predictor_frequencies(&sizes, 8, freq);
        assert_true(butler_predictor_rotates(&sizes));
        for (int i = 0; i < 4; i++) {
            const double turn = pow((double)sizes.rope_base, -i / 4.0);
            const bool turns = n_tokens == 0 || turn * n_tokens >= 2 * 3.141592;
            assert_true(fabs((double)freq[i] - (turns ? turn : 0)) <= 1e-6);
        }
    }
    butler_model_free(model);
}

static void test_round_trip(void **state)
{
    static const enum butler_type types[] = {BUTLER_F32, BUTLER_F16, BUTLER_Q8_0, BUTLER_Q4_0};
    static const float tolerance[] = {0, 1e-3f, 2e-2f, 0.1f};
    struct butler_model *model = open_tiny("a.gguf", 1);
    struct butler_error err;
    (void)state;
    for (int version = 1; version <= 2; version++)
        for (int t = 0; t < BUTLER_COUNT(types); t++) {
            struct butler_predictor *a = make(model, version), *b = NULL, *mapped = NULL;
            const char *path = tiny_path("p.gguf");
            if (butler_predictor_save(a, path, types[t], &err) < 0 || !(b = butler_predictor_load(path, model, true, &err)) ||
                !(mapped = butler_predictor_load(path, model, false, &err)))
                fail_msg("%s", err.message);
            assert_memory_equal(&a->sizes, &b->sizes, sizeof a->sizes);
            assert_int_equal(b->training.n_tokens, 1000);
            assert_int_equal(b->training.n_steps, 10);
            assert_true(b->training.loss == 0.5);
            assert_string_equal(b->training.text, "a text");
            assert_int_equal(a->n_weights, b->n_weights);
            for (size_t i = 0; i < a->n_weights; i++)
                assert_true(fabsf(a->weights[i] - b->weights[i]) <= tolerance[t]);
            for (int i = 0; i < mapped->n_params; i++) {
                const struct butler_predictor_param *param = &mapped->params[i];
                float row[512];
                assert_null(param->data);
                butler_kernels_ref.dequant[param->matrix.type](row, param->matrix.data, param->n_cols);
                assert_memory_equal(row, b->params[i].data, (size_t)param->n_cols * sizeof *row);
            }
            assert_int_equal(butler_predictor_save(mapped, path, types[t], &err), BUTLER_ERROR_ARGUMENT);
            butler_predictor_free(a);
            butler_predictor_free(b);
            butler_predictor_free(mapped);
        }
    butler_model_free(model);
}

static void test_other_model(void **state)
{
    struct butler_model *a = open_tiny("a.gguf", 1), *b = open_tiny("b.gguf", 2);
    struct butler_predictor *predictor = make(a, 2);
    struct butler_error err;
    char prints[2][17];
    uint64_t of_a, of_b;
    (void)state;
    assert_int_equal(butler_model_fingerprint(a, &of_a, &err), 0);
    assert_int_equal(butler_model_fingerprint(b, &of_b, &err), 0);
    assert_int_equal(butler_predictor_save(predictor, tiny_path("p.gguf"), BUTLER_F16, &err), 0);
    assert_null(butler_predictor_load(tiny_path("p.gguf"), b, false, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    snprintf(prints[0], sizeof prints[0], "%016llx", (unsigned long long)of_a);
    snprintf(prints[1], sizeof prints[1], "%016llx", (unsigned long long)of_b);
    assert_non_null(strstr(err.message, prints[0]));
    assert_non_null(strstr(err.message, prints[1]));
    assert_non_null(strstr(err.message, "p.gguf"));
    assert_null(butler_predictor_load(tiny_path("a.gguf"), a, false, &err)); /* a model is no predictor */
    assert_non_null(strstr(err.message, "butler-predictor"));
    butler_predictor_free(predictor);
    butler_model_free(a);
    butler_model_free(b);
}

/* A file cut anywhere is an error, and never more than that. */
static void test_cut(void **state)
{
    struct butler_model *model = open_tiny("a.gguf", 1);
    (void)state;
    for (int version = 1; version <= 2; version++) {
        struct butler_predictor *predictor = make(model, version);
        struct butler_error err;
        const char *path = tiny_path("p.gguf"), *cut = tiny_path("cut.gguf");
        assert_int_equal(butler_predictor_save(predictor, path, BUTLER_F16, &err), 0);
        struct tiny_bytes bytes = tiny_read(path);
        for (size_t size = 0; size < bytes.size; size += size < 2000 ? 7 : 1013) {
            FILE *file = fopen(cut, "wb");
            assert_non_null(file);
            assert_int_equal(fwrite(bytes.data, 1, size, file), size);
            fclose(file);
            err.code = 0;
            assert_null(butler_predictor_load(cut, model, false, &err));
            assert_true(err.code < 0);
            assert_non_null(strstr(err.message, "cut.gguf"));
        }
        free(bytes.data);
        butler_predictor_free(predictor);
    }
    butler_model_free(model);
}

static void test_impossible(void **state)
{
    struct butler_model *model = open_tiny("a.gguf", 1);
    struct butler_predictor_sizes sizes;
    struct butler_error err;
    (void)state;
#define REFUSED(version, change)                                                                                                   \
    sizes = butler_predictor_sizes_for(model, version);                                                                            \
    sizes.change;                                                                                                                  \
    assert_null(butler_predictor_new(&sizes, 1, &err));                                                                            \
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT)
    REFUSED(1, version = 3);
    REFUSED(1, d = 6);
    REFUSED(1, d = 256);
    REFUSED(1, n_inner = 7);
    REFUSED(1, n_inner_heads = 3);
    REFUSED(1, n_key_heads = 3);
    REFUSED(1, rope_base = 0);
    REFUSED(2, n_layers = 1);
    REFUSED(2, stride = 0);
    REFUSED(2, rope_freq[1] = -1);
    REFUSED(2, rope_freq[0] = INFINITY);
    REFUSED(1, rope_freq[0] = 1);
    REFUSED(1, rope_length = -1);
    REFUSED(2, rope_length = 1024);
    REFUSED(2, n_key_heads = 4);
    REFUSED(2, n_kv_heads = 3);
    butler_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params),      cmocka_unit_test(test_rotation), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_other_model), cmocka_unit_test(test_cut),      cmocka_unit_test(test_impossible),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
