/* The kernel tables: how they are found, halves, and the vector operations of every ISA against double precision. */
#include "kernel_test.h"

static const int lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 15,  16,  17,  20,  23,  24,  25,  31,   32,  33,
                              40, 47, 48, 49, 63, 64, 65, 79, 96, 97, 127, 128, 129, 191, 255, 256, 257, 1000, 4099};

#define MAX_LENGTH 4224

/* Arrays between guard pages, and plain copies of what went in. */
static struct guarded a, b, c;
static float in_a[MAX_LENGTH], in_b[MAX_LENGTH], in_c[MAX_LENGTH];

static int make(void **state)
{
    (void)state;
    a = guarded_new(MAX_LENGTH * sizeof(float));
    b = guarded_new(MAX_LENGTH * sizeof(float));
    c = guarded_new(MAX_LENGTH * sizeof(float));
    return 0;
}

static int destroy(void **state)
{
    (void)state;
    guarded_free(&a);
    guarded_free(&b);
    guarded_free(&c);
    return 0;
}

/* One case: length n, data of a kind, at one of the two guards. x, y and z hold copies of in_a, in_b and in_c. */
struct trial {
    const struct butler_kernels *table;
    const char *isa;
    int n;
    enum kind kind;
    float *x, *y, *z;
};

static void for_each_trial(void (*check)(const struct trial *))
{
    uint64_t seed = 1;
    FOR_EACH_ISA(table)
    {
        for (int l = 0; l < BUTLER_COUNT(lengths); l++) {
            for (int kind = 0; kind < N_KINDS; kind++) {
                for (int end = 0; end < 2; end++) {
                    int n = lengths[l];
                    size_t bytes = (size_t)n * sizeof(float);
                    struct trial t = {table,
                                      table->isa,
                                      n,
                                      (enum kind)kind,
                                      guarded_at(&a, bytes, end, 0),
                                      guarded_at(&b, bytes, end, 0),
                                      guarded_at(&c, bytes, end, 0)};
                    fill_random(in_a, (size_t)n, t.kind, &seed);
                    fill_random(in_b, (size_t)n, t.kind, &seed);
                    fill_random(in_c, (size_t)n, t.kind, &seed);
                    memcpy(t.x, in_a, bytes);
                    memcpy(t.y, in_b, bytes);
                    memcpy(t.z, in_c, bytes);
                    check(&t);
                }
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------- tables and halves */

static void tables_are_found_by_name(void **state)
{
    (void)state;
    const char *const *names = butler_kernels_available();
    int n = 0;
    for (; names[n]; n++) {
        const struct butler_kernels *table = butler_kernels_get(names[n]);
        assert_non_null(table);
        assert_string_equal(table->isa, names[n]);
    }
    assert_in_range(n, 1, 8);
    assert_string_equal(names[n - 1], "ref");
    assert_ptr_equal(butler_kernels_get(NULL), butler_kernels_get(names[0]));
    assert_null(butler_kernels_get("neon9"));
    assert_null(butler_kernels_get(""));
}

static void every_entry_is_filled(void **state)
{
    (void)state;
    FOR_EACH_ISA(table)
    {
        for (int type = 0; type < BUTLER_N_TYPES; type++) {
            assert_int_equal(table->gemv[type] != NULL, butler_type_known((uint32_t)type));
            assert_int_equal(table->dequant[type] != NULL, butler_type_known((uint32_t)type));
        }
        for (int type = 0; type < BUTLER_N_KV_TYPES; type++)
            assert_true(table->store_row[type] && table->load_row[type] && table->qk[type] && table->av[type]);
        assert_true(table->gemm && table->dot && table->add && table->axpy && table->scale && table->rms_norm);
        assert_true(table->layer_norm && table->silu_mul && table->gelu && table->max && table->exp_sum);
        assert_true(table->rope_adjacent && table->rope_halves);
        assert_true(table->page_bounds && table->page_bounds_max && table->one_bit && table->one_bit_bounds && table->keys8 &&
                    table->keys4 && table->keys16);
    }
}

static void halves_become_floats(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = butler_half_to_float((uint16_t)h);
        double expected = half_value(h);
        if (isnan(expected)) {
            assert_true(isnan(f));
        } else {
            assert_true((double)f == expected);
            assert_int_equal(signbit(f) != 0, h >> 15);
            assert_int_equal(butler_float_to_half(f), h);
        }
    }
    assert_true(isnan(butler_half_to_float(butler_float_to_half(NAN))));
}

/* Between neighbouring halves the middle goes to the even one, and the floats next to the middle to the nearer one. */
static void floats_become_the_nearest_half(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        double low = half_value(h), high = h == 0x7bff ? 65536 : half_value(h + 1);
        float middle = (float)((low + high) / 2);
        assert_true((double)middle == (low + high) / 2);
        unsigned even = h % 2 == 0 ? h : h + 1;
        assert_int_equal(butler_float_to_half(middle), even);
        assert_int_equal(butler_float_to_half(-middle), even | 0x8000);
        assert_int_equal(butler_float_to_half(nextafterf(middle, 0)), h);
        assert_int_equal(butler_float_to_half(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(butler_float_to_half(1e30f), 0x7c00);
    assert_int_equal(butler_float_to_half(-INFINITY), 0xfc00);
    assert_int_equal(butler_float_to_half(1e-45f), 0);
}

/* ----------------------------------------------------------------------------------------------- vectors */

static void check_dot(const struct trial *t)
{
    double sum = 0, magnitude = 0;
    for (int i = 0; i < t->n; i++) {
        sum += (double)in_a[i] * in_b[i];
        magnitude += fabs((double)in_a[i] * in_b[i]);
    }
    assert_near("dot", t->isa, t->n, 0, t->table->dot(t->x, t->y, t->n), sum, sum_bound(t->n, magnitude));
}

static void check_elementwise(const struct trial *t)
{
    const float factor = in_c[0];
    t->table->add(t->y, t->x, t->n);
    for (int i = 0; i < t->n; i++)
        assert_same_bits("add", t->isa, t->n, i, t->y[i], in_b[i] + in_a[i]);
    memcpy(t->y, in_b, (size_t)t->n * sizeof(float));
    t->table->axpy(t->y, factor, t->x, t->n);
    for (int i = 0; i < t->n; i++) {
        double product = (double)factor * in_a[i];
        assert_near("axpy", t->isa, t->n, i, t->y[i], in_b[i] + product, sum_bound(1, fabs(product) + fabs((double)in_b[i])));
    }
    t->table->scale(t->x, factor, t->n);
    for (int i = 0; i < t->n; i++)
        assert_same_bits("scale", t->isa, t->n, i, t->x[i], factor * in_a[i]);
}

/* The sum of squares is off by at most its bound, its root by half of that, and four more roundings follow. */
static void check_rms_norm(const struct trial *t)
{
    const float eps = 1e-5f;
    double squares = 0;
    for (int i = 0; i < t->n; i++)
        squares += (double)in_a[i] * in_a[i];
    double r = 1 / sqrt(squares / t->n + (double)eps);
    t->table->rms_norm(t->z, t->x, t->y, t->n, eps);
    for (int i = 0; i < t->n; i++) {
        double v = in_a[i] * r * in_b[i];
        assert_near("rms_norm", t->isa, t->n, i, t->z[i], v, sum_bound(t->n, fabs(v)) + fabs((double)in_b[i]) * 0x1p-149);
        assert_memory_equal(&t->x[i], &in_a[i], sizeof(float));
    }
    t->table->rms_norm(t->x, t->x, t->y, t->n, eps);
    assert_memory_equal(t->x, t->z, (size_t)t->n * sizeof(float));
}

/* The mean's error shifts every element; the rest is as in rms_norm. */
static void check_layer_norm(const struct trial *t)
{
    static float out[MAX_LENGTH];
    const float eps = 1e-5f;
    double sum = 0, magnitude = 0, squares = 0;
    for (int i = 0; i < t->n; i++) {
        sum += (double)in_a[i];
        magnitude += fabs((double)in_a[i]);
    }
    double mean = sum / t->n, shift = sum_bound(t->n, magnitude) / t->n + fabs(mean) * EPS;
    for (int i = 0; i < t->n; i++)
        squares += (in_a[i] - mean) * (in_a[i] - mean);
    double r = 1 / sqrt(squares / t->n + (double)eps);
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        t->table->layer_norm(out, t->x, t->y, with_bias ? t->z : NULL, t->n, eps);
        for (int i = 0; i < t->n; i++) {
            double centred = in_a[i] - mean, v = centred * r * in_b[i], bias = with_bias ? (double)in_c[i] : 0;
            /* The variance suffers from the shift too: by its square, and by less than itself relative to the deviation. */
            double bound = (shift + fabs(centred) * fmin(1, shift * r)) * r * fabs((double)in_b[i]) + sum_bound(t->n, fabs(v)) +
                           2 * EPS * fabs(bias) + fabs((double)in_b[i]) * 0x1p-149;
            assert_near("layer_norm", t->isa, t->n, i, out[i], v + bias, bound);
        }
    }
    t->table->layer_norm(t->x, t->x, t->y, t->z, t->n, eps);
    assert_memory_equal(t->x, out, (size_t)t->n * sizeof(float));
}

/* e^x within 2 units in the last place, then a sum, a division and a product. */
static void check_silu_mul(const struct trial *t)
{
    t->table->silu_mul(t->z, t->x, t->y, t->n);
    for (int i = 0; i < t->n; i++) {
        double v = in_a[i] / (1 + exp(-(double)in_a[i])) * in_b[i];
        /* Where e^-x overflows a float the result is zero instead of less than 1e-36 of the product. */
        double lost = in_a[i] < -87 ? 1e-36 * fabs((double)in_b[i]) : 0;
        assert_near("silu_mul", t->isa, t->n, i, t->z[i], v, 16 * EPS * fabs(v) + (1 + fabs((double)in_b[i])) * 0x1p-148 + lost);
    }
    for (int other = 0; other < 2; other++) {
        float *y = other ? t->y : t->x;
        memcpy(t->x, in_a, (size_t)t->n * sizeof(float));
        memcpy(t->y, in_b, (size_t)t->n * sizeof(float));
        t->table->silu_mul(y, t->x, t->y, t->n);
        assert_memory_equal(y, t->z, (size_t)t->n * sizeof(float));
    }
}

/* 1 + tanh cancels for negative x: an error of some roundings of 1, times x. */
static void check_gelu(const struct trial *t)
{
    t->table->gelu(t->x, t->n);
    for (int i = 0; i < t->n; i++) {
        double x = in_a[i], v = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
        assert_near("gelu", t->isa, t->n, i, t->x[i], v, 8 * EPS * fabs(x) + 0x1p-148);
    }
}

static void check_max(const struct trial *t)
{
    float m = in_a[0];
    for (int i = 1; i < t->n; i++)
        m = in_a[i] > m ? in_a[i] : m;
    assert_true(t->table->max(t->x, t->n) == m);
    /* Wherever it stands, also among negative numbers only. */
    for (int i = 0; i < t->n; i++)
        t->x[i] = -1 - fabsf(in_a[i]);
    for (int i = 0; i < t->n; i += t->n / 40 + 1) {
        float kept = t->x[i];
        t->x[i] = -0.5f;
        assert_true(t->table->max(t->x, t->n) == -0.5f);
        t->x[i] = NAN; /* which is passed over, wherever the maximum stands */
        for (int j = 0; j < t->n; j += t->n / 40 + 1) {
            const float other = t->x[j];
            if (j == i)
                continue;
            t->x[j] = -0.25f;
            assert_true(t->table->max(t->x, t->n) == -0.25f);
            t->x[j] = other;
        }
        t->x[i] = kept;
    }
}

static void check_exp_sum(const struct trial *t)
{
    float m = in_a[0];
    for (int i = 1; i < t->n; i++)
        m = in_a[i] > m ? in_a[i] : m;
    double sum = 0;
    float total = t->table->exp_sum(t->x, m, t->n);
    for (int i = 0; i < t->n; i++) {
        double v = exp((double)(in_a[i] - m));
        assert_near("exp_sum", t->isa, t->n, i, t->x[i], v, 4 * EPS * v + 0x1p-149);
        sum += (double)t->x[i];
    }
    assert_near("exp_sum's sum", t->isa, t->n, 0, total, sum, sum_bound(t->n, sum));
}

static void check_rope(const struct trial *t)
{
    for (int halves = 0; halves < 2; halves++) {
        int pairs = t->n / 2;
        memcpy(t->x, in_a, (size_t)t->n * sizeof(float));
        /* cos and sin of their own length: y and z have their guard where the arrays end. */
        float *cos = t->y + (t->n - pairs), *sin = t->z + (t->n - pairs);
        (halves ? t->table->rope_halves : t->table->rope_adjacent)(t->x, cos, sin, 2 * pairs);
        for (int i = 0; i < pairs; i++) {
            int p = halves ? i : 2 * i, q = halves ? i + pairs : 2 * i + 1;
            double u = in_a[p], v = in_a[q], k = cos[i], s = sin[i];
            assert_near("rope", t->isa, t->n, p, t->x[p], u * k - v * s, sum_bound(1, fabs(u * k) + fabs(v * s)));
            assert_near("rope", t->isa, t->n, q, t->x[q], u * s + v * k, sum_bound(1, fabs(u * s) + fabs(v * k)));
        }
        if (t->n % 2)
            assert_memory_equal(&t->x[t->n - 1], &in_a[t->n - 1], sizeof(float));
    }
}

#define TRIALS(name)                                                                                                               \
    static void name(void **state)                                                                                                 \
    {                                                                                                                              \
        (void)state;                                                                                                               \
        for_each_trial(check_##name);                                                                                              \
    }
TRIALS(dot)
TRIALS(elementwise)
TRIALS(rms_norm)
TRIALS(layer_norm)
TRIALS(silu_mul)
TRIALS(gelu)
TRIALS(max)
TRIALS(exp_sum)
TRIALS(rope)

/* The whole range: subnormal results, results that vanish, arguments of no use. */
static void exponential_at_its_ends(void **state)
{
    (void)state;
    FOR_EACH_ISA(table)
    {
        for (float x = -110; x < 0; x += 0.00390625f) {
            float y = x, sum = table->exp_sum(&y, 0, 1);
            double v = exp((double)x);
            assert_near("exp", table->isa, 1, 0, y, v, 4 * EPS * v + 0x1p-149);
            assert_same_bits("exp", table->isa, 1, 0, sum, y);
        }
        float ends[8] = {-INFINITY, -1e30f, -3.4e38f, -150, 0, -0.0f, -1e-30f, -1e-45f};
        float sum = table->exp_sum(ends, 0, 8);
        for (int i = 0; i < 8; i++)
            assert_true(ends[i] == (i < 4 ? 0.0f : 1.0f));
        assert_true(sum == 4);
        float nan = NAN;
        assert_true(isnan(table->exp_sum(&nan, 0, 1)));
        float gate[4] = {-INFINITY, INFINITY, -200, 200}, up[4] = {1, 1, 1, 1};
        table->silu_mul(up, gate, up, 4);
        assert_true(isinf(up[1]) && up[2] == 0 && up[3] == 200);
    }
}

/* An element's result is the same wherever it stands and whatever stands beside it. */
static void exponential_does_not_depend_on_place(void **state)
{
    (void)state;
    FOR_EACH_ISA(table)
    {
        for (int n = 1; n < 70; n++) {
            float x[70], alone;
            uint64_t seed = (uint64_t)n;
            fill_random(x, (size_t)n, NORMAL, &seed);
            int i = (int)(butler_random(&seed) % (uint64_t)n);
            alone = x[i];
            table->exp_sum(x, 3, n);
            table->exp_sum(&alone, 3, 1);
            assert_same_bits("exp", table->isa, n, i, x[i], alone);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_found_by_name),
        cmocka_unit_test(every_entry_is_filled),
        cmocka_unit_test(halves_become_floats),
        cmocka_unit_test(floats_become_the_nearest_half),
        cmocka_unit_test(dot),
        cmocka_unit_test(elementwise),
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(layer_norm),
        cmocka_unit_test(silu_mul),
        cmocka_unit_test(gelu),
        cmocka_unit_test(max),
        cmocka_unit_test(exp_sum),
        cmocka_unit_test(rope),
        cmocka_unit_test(exponential_at_its_ends),
        cmocka_unit_test(exponential_does_not_depend_on_place),
    };
    return cmocka_run_group_tests(tests, make, destroy);
}
