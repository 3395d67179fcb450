/* The scans of a selection on every ISA: against double precision and against their definitions, with numbers of every kind,
 * NaN and infinities among them, in memory that ends where the system says. */
#include "kernel_test.h"

enum { MAX_N = 300, ROWS = 5 };

static float special(uint64_t *seed)
{
    static const float values[] = {INFINITY, -INFINITY, NAN, 0, -0.0f, 1e-45f, -1e-45f, 3e38f};
    return butler_random(seed) % 3 ? butler_random_normal(seed) : values[butler_random(seed) % BUTLER_COUNT(values)];
}

static void check_log_sum_exp(const float *x, float scale, int n)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        max = (double)(x[i] * scale) > max ? (double)(x[i] * scale) : max;
    for (int i = 0; i < n; i++)
        sum += exp((double)(x[i] * scale) - max);
    FOR_EACH_ISA(table)
    {
        assert_near("log_sum_exp", table->isa, n, 0, table->log_sum_exp(x, scale, n), max + log(sum),
                    4 * EPS * fabs(max) + sum_bound(n, 1) + 8 * EPS * (1 + log(sum)));
    }
}

/* Short rows and long ones, whose maximum comes first, last, or ever again; numbers that are not finite. */
static void log_sum_exp(void **state)
{
    enum { MAX_LONG = 5000 };
    struct guarded g = guarded_new(MAX_LONG * sizeof(float));
    uint64_t seed = 1;
    (void)state;
    for (int n = 1; n <= MAX_LONG; n += 1 + n / 20) {
        float *x = guarded_at(&g, (size_t)n * sizeof *x, n % 2, 0);
        const float slope = n % 3 == 0 ? 0 : n % 3 == 1 ? 0.03f : -0.03f;
        for (int i = 0; i < n; i++)
            x[i] = butler_random_normal(&seed) * 40 + slope * (float)i;
        check_log_sum_exp(x, 0.125f * (1 + (float)(n % 4)), n);
        for (int i = 0; i < n / 2; i++)
            x[i] = -INFINITY;
        check_log_sum_exp(x, 0.125f, n);
        const int at = (int)(butler_random(&seed) % (uint64_t)n);
        for (int k = 0; k < 2; k++) {
            x[at] = k ? NAN : INFINITY;
            FOR_EACH_ISA(table)
            {
                assert_true(isnan(table->log_sum_exp(x, 1, n)));
            }
        }
    }
    guarded_free(&g);
}

/* Whatever the mean is beside the deviation, and where nothing deviates. */
static void moments(void **state)
{
    struct guarded g = guarded_new(MAX_N * sizeof(float));
    uint64_t seed = 4;
    (void)state;
    for (int n = 1; n <= MAX_N; n += 1 + n / 20)
        for (int k = 0; k < 4; k++) {
            float *x = guarded_at(&g, (size_t)n * sizeof *x, n % 2, 0), mean, deviation;
            double sum = 0, squares = 0, most = 0;
            for (int i = 0; i < n; i++) {
                x[i] = k == 3 ? 7.3f : butler_random_normal(&seed) * (k == 1 ? 40 : 1) + (k == 2 ? 1000 : 0);
                sum += (double)x[i];
                most = fmax(most, fabs((double)x[i] - (double)x[0]));
            }
            for (int i = 0; i < n; i++)
                squares += ((double)x[i] - sum / n) * ((double)x[i] - sum / n);
            FOR_EACH_ISA(table)
            {
                table->moments(x, n, &mean, &deviation);
                /* Means of n terms of at most `most`, each rounded, and of their squares; then x[0] is added again. */
                assert_near("mean", table->isa, n, k, mean, sum / n, sum_bound(n, most) + 4 * EPS * (most + fabs((double)x[0])));
                assert_near("variance", table->isa, n, k, deviation * deviation, squares / n,
                            4 * sum_bound(n, most * most) + 8 * EPS * most * most);
            }
            x[n / 2] = NAN;
            FOR_EACH_ISA(table)
            {
                table->moments(x, n, &mean, &deviation);
                assert_true(mean != mean && deviation != deviation);
            }
        }
    guarded_free(&g);
}

static void group_max(void **state)
{
    struct guarded g = guarded_new(ROWS * MAX_N * sizeof(float));
    uint64_t seed = 2;
    (void)state;
    for (int n = 1; n <= MAX_N; n += 1 + n / 20)
        for (int n_rows = 1; n_rows <= ROWS; n_rows++) {
            const size_t stride = (size_t)n;
            float *x = guarded_at(&g, ROWS * stride * sizeof *x, n % 2, 0), kept[ROWS * MAX_N], expected[MAX_N];
            float scale[ROWS], shift[ROWS];
            for (size_t i = 0; i < ROWS * stride; i++)
                kept[i] = special(&seed);
            for (int r = 0; r < ROWS; r++)
                scale[r] = 0.1f + 0.3f * (float)r, shift[r] = butler_random_normal(&seed);
            for (int i = 0; i < n; i++) {
                expected[i] = -INFINITY;
                for (int r = 0; r < n_rows; r++) {
                    const float v = kept[(size_t)r * stride + (size_t)i] * scale[r] - shift[r];
                    expected[i] = v > expected[i] ? v : expected[i];
                }
            }
            FOR_EACH_ISA(table)
            { /* into the first of the rows, where the engine puts it; the others stay */
                memcpy(x, kept, ROWS * stride * sizeof *x);
                table->group_max(x, x, stride, scale, shift, n_rows, n);
                for (int i = 0; i < n; i++)
                    assert_true(x[i] == expected[i]);
                assert_memory_equal(x + n, kept + n, (ROWS - 1) * stride * sizeof *x);
            }
        }
    guarded_free(&g);
}

static void reaching(void **state)
{
    struct guarded g = guarded_new(MAX_N * sizeof(float)), h = guarded_new(MAX_N * sizeof(uint32_t));
    uint64_t seed = 3;
    (void)state;
    for (int n = 1; n <= MAX_N; n++)
        for (int k = 0; k < 12; k++) {
            float *x = guarded_at(&g, (size_t)n * sizeof *x, k % 2, 0), bound = special(&seed);
            uint32_t *ids = guarded_at(&h, (size_t)n * sizeof *ids, true, 0), expected[MAX_N], kept[MAX_N];
            const float high = k % 4 == 1 ? bound : special(&seed);
            float between[MAX_N];
            int n_expected = 0, n_between = 0, n_high = 0, got_high;
            for (int i = 0; i < n; i++) {
                x[i] = k % 4 == 3 ? bound : special(&seed);
                if (x[i] >= bound)
                    kept[n_expected] = 0xff800000u + (uint32_t)i * 7, expected[n_expected++] = 70000u + (uint32_t)i;
                n_high += x[i] >= high;
                if (x[i] >= bound && !(x[i] >= high))
                    between[n_between++] = x[i];
            }
            FOR_EACH_ISA(table)
            {
                assert_int_equal(table->count_reaching(x, bound, n), n_expected);
                assert_int_equal(table->list_reaching(ids, 70000, x, bound, n), n_expected);
                assert_memory_equal(ids, expected, (size_t)n_expected * sizeof *ids);
                for (int i = 0; i < n; i++)
                    ids[i] = 0xff800000u + (uint32_t)i * 7;
                assert_int_equal(table->keep_reaching(ids, x, bound, n), n_expected);
                assert_memory_equal(ids, kept, (size_t)n_expected * sizeof *ids);
                assert_int_equal(table->keep_between((float *)ids, x, bound, high, n, &got_high), n_between);
                assert_int_equal(got_high, n_high);
                assert_memory_equal(ids, between, (size_t)n_between * sizeof *between);
            }
        }
    guarded_free(&g);
    guarded_free(&h);
}

static void note_bytes(void **state)
{
    enum { WORDS = 5 };
    struct guarded g = guarded_new(WORDS * 64);
    uint64_t seed = 4;
    (void)state;
    for (int trial = 0; trial < 50; trial++) {
        const int n_words = trial % (WORDS + 1);
        uint8_t *bytes = guarded_at(&g, (size_t)n_words * 64, trial % 2, 0);
        uint64_t before[WORDS], expected[WORDS] = {0}, bits[WORDS];
        int n_common = 0;
        for (int w = 0; w < WORDS; w++)
            expected[w] = before[w] = butler_random(&seed);
        for (int i = 0; i < n_words * 64; i++) {
            const uint64_t bit = (uint64_t)1 << i % 64;
            bytes[i] = trial % 3 ? butler_random(&seed) >> 62 == 0 : (uint8_t)(butler_random(&seed) >> 32 & 0x81);
            expected[i / 64] = bytes[i] ? expected[i / 64] | bit : expected[i / 64] & ~bit;
            n_common += bytes[i] && before[i / 64] & bit;
        }
        FOR_EACH_ISA(table)
        {
            memcpy(bits, before, sizeof bits);
            assert_int_equal(table->note_bytes(bits, bytes, n_words), n_common);
            assert_memory_equal(bits, expected, sizeof bits);
        }
    }
    guarded_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(log_sum_exp), cmocka_unit_test(moments), cmocka_unit_test(group_max),
                                       cmocka_unit_test(reaching), cmocka_unit_test(note_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
