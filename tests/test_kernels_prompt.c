/* What a prompt's attention is made of, on every ISA: keys lie where kernels.h says; scores, weights and sums of values are those
 * of double precision, within what rounding may do; nothing outside the stated shapes is touched; and a query's numbers have the
 * same bits whatever other queries and keys share the call. */
#include "kernel_test.h"

enum { MAX_QUERIES = 40, MAX_KEYS = 100, MAX_DIM = 200, STRIDE = MAX_KEYS + 3 };

static struct guarded queries, keys, packed, scores, values, sums;

/* A length of each kind: whole vectors and what is left of them. */
static const int dims[] = {64, 128, 80, 1, 7, 16, 33, 48, 96, 100, 200};

static size_t packed_floats(int n_keys, int dim)
{
    return BUTLER_CEIL_DIV((size_t)n_keys, BUTLER_KEY_PANEL) * BUTLER_KEY_PANEL * (size_t)dim;
}

static float *floats_at(const struct guarded *pages, size_t n, bool end)
{
    return guarded_at(pages, n * sizeof(float), end, 0);
}

/* A sum of n terms one after the other. */
static double chain_bound(int n, double magnitude)
{
    return (n + 4) * EPS * magnitude + (n + 1) * 0x1p-149;
}

static void keys_are_packed(void **state)
{
    (void)state;
    uint64_t seed = 3;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 60; trial++) {
            const int n = 1 + trial * 29 % MAX_KEYS, dim = dims[trial % BUTLER_COUNT(dims)];
            const size_t size = packed_floats(n, dim);
            float *x = floats_at(&keys, (size_t)(n * dim), trial % 2), *y = floats_at(&packed, size, trial % 2);
            fill_random(x, (size_t)(n * dim), (enum kind)(trial % N_KINDS), &seed);
            memset(y, 0xff, size * sizeof *y);
            table->pack_keys(y, x, n, dim);
            for (size_t i = 0; i < size; i++) {
                const int j = (int)(i / ((size_t)dim * 32)) * 32 + (int)(i % 32), d = (int)(i / 32) % dim;
                const float want = j < n ? x[j * dim + d] : 0;
                assert_memory_equal(&y[i], &want, sizeof want);
            }
        }
    }
}

/* Some queries with some keys; each again alone, with the keys before it alone. */
static void scores_are_products(void **state)
{
    (void)state;
    uint64_t seed = 4;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 80; trial++) {
            if (!in_share(trial))
                continue;
            const int n_q = 1 + trial * 17 % MAX_QUERIES, n = 1 + trial * 29 % MAX_KEYS, dim = dims[trial % BUTLER_COUNT(dims)];
            const size_t stride = (size_t)n + (size_t)(trial % 3), size = (size_t)(n_q - 1) * stride + (size_t)n;
            float *q = floats_at(&queries, (size_t)(n_q * dim), trial % 2), *x = floats_at(&keys, (size_t)(n * dim), trial % 2);
            float *y = floats_at(&packed, packed_floats(n, dim), trial % 2), *s = floats_at(&scores, size, trial % 2);
            fill_random(q, (size_t)(n_q * dim), trial % 9 == 8 ? SUBNORMAL : NORMAL, &seed);
            fill_random(x, (size_t)(n * dim), trial % 7 == 6 ? ZEROS : NORMAL, &seed);
            butler_kernels_ref.pack_keys(y, x, n, dim);
            memset(s, 0xff, size * sizeof *s);
            table->score_keys(s, stride, q, n_q, y, n, dim);
            for (int i = 0; i < n_q; i++) {
                float alone[STRIDE];
                const int n_alone = 1 + (i + trial) % n;
                table->score_keys(alone, STRIDE, q + i * dim, 1, y, n_alone, dim);
                for (int j = 0; j < n; j++) {
                    double sum = 0, magnitude = 0;
                    for (int d = 0; d < dim; d++) {
                        sum += (double)q[i * dim + d] * (double)x[j * dim + d];
                        magnitude += fabs((double)q[i * dim + d] * (double)x[j * dim + d]);
                    }
                    assert_near("score_keys", table->isa, dim, j, s[(size_t)i * stride + (size_t)j], sum,
                                chain_bound(dim, magnitude));
                    if (j < n_alone)
                        assert_same_bits("score_keys alone", table->isa, dim, j, alone[j], s[(size_t)i * stride + (size_t)j]);
                }
                for (size_t gap = (size_t)n; i + 1 < n_q && gap < stride; gap++)
                    assert_true(isnan(s[(size_t)i * stride + gap])); /* not written */
            }
        }
    }
}

static void weights_are_powers(void **state)
{
    (void)state;
    uint64_t seed = 5;
    FOR_EACH_ISA(table)
    {
        for (int n = 0; n <= MAX_KEYS; n++) {
            float *s = floats_at(&scores, (size_t)n, n % 2), before[MAX_KEYS];
            double most = -INFINITY, sum = 0;
            fill_random(s, (size_t)n, n % 5 == 4 ? ZEROS : NORMAL, &seed);
            for (int i = 0; i < n; i++) {
                s[i] *= n % 3 == 0 ? 100 : 3;
                before[i] = s[i] = i % 11 == 10 ? -INFINITY : s[i];
                most = fmax(most, (double)s[i]);
            }
            const float max = ceilf((float)most * 1.44269504f);
            const float got = table->weigh(s, n ? max : 0, n);
            for (int i = 0; i < n; i++) {
                const double e = exp2((double)before[i] * 1.4426950408889634 - (double)max);
                const double bound = e * EPS * (8 + 3 * fabs(fmax((double)before[i], -1e3)) + fabs((double)max));
                assert_near("weigh", table->isa, n, i, s[i], e, bound + 0x1p-126);
                sum += (double)s[i];
            }
            assert_near("weigh's sum", table->isa, n, 0, got, sum, sum_bound(n, sum));
        }
        float bad[3] = {0, NAN, 1};
        assert_true(isnan(table->weigh(bad, 2, 3)) && isnan(bad[1]) && !isnan(bad[0]));
    }
}

/* Some queries over some values, on top of what was there; each again alone, in two calls. */
static void values_are_added(void **state)
{
    (void)state;
    uint64_t seed = 6;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 80; trial++) {
            if (!in_share(trial))
                continue;
            const int n_q = 1 + trial * 17 % MAX_QUERIES, n = 1 + trial * 29 % MAX_KEYS, dim = dims[trial % BUTLER_COUNT(dims)];
            const size_t stride = (size_t)n + (size_t)(trial % 3);
            float *p = floats_at(&scores, (size_t)(n_q - 1) * stride + (size_t)n, trial % 2);
            float *v = floats_at(&values, (size_t)(n * dim), trial % 2), *acc = floats_at(&sums, (size_t)(n_q * dim), trial % 2);
            static float before[MAX_QUERIES * MAX_DIM];
            fill_random(p, (size_t)(n_q - 1) * stride + (size_t)n, NORMAL, &seed);
            fill_random(v, (size_t)(n * dim), trial % 7 == 6 ? SUBNORMAL : NORMAL, &seed);
            fill_random(before, (size_t)(n_q * dim), trial % 5 == 4 ? ZEROS : NORMAL, &seed);
            memcpy(acc, before, (size_t)(n_q * dim) * sizeof *acc);
            table->add_values(acc, p, stride, n_q, v, n, dim);
            for (int i = 0; i < n_q; i++) {
                float alone[MAX_DIM];
                const float *own = p + (size_t)i * stride;
                const int first = (i + trial) % (n + 1);
                memcpy(alone, before + i * dim, (size_t)dim * sizeof *alone);
                table->add_values(alone, own, stride, 1, v, first, dim);
                table->add_values(alone, own + first, stride, 1, v + first * dim, n - first, dim);
                for (int d = 0; d < dim; d++) {
                    double sum = (double)before[i * dim + d], magnitude = fabs(sum);
                    for (int j = 0; j < n; j++) {
                        sum += (double)own[j] * (double)v[j * dim + d];
                        magnitude += fabs((double)own[j] * (double)v[j * dim + d]);
                    }
                    assert_near("add_values", table->isa, dim, d, acc[i * dim + d], sum, chain_bound(n, magnitude));
                    assert_same_bits("add_values alone", table->isa, dim, d, alone[d], acc[i * dim + d]);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_packed),
        cmocka_unit_test(scores_are_products),
        cmocka_unit_test(weights_are_powers),
        cmocka_unit_test(values_are_added),
    };
    queries = guarded_new(sizeof(float) * MAX_QUERIES * MAX_DIM);
    keys = guarded_new(sizeof(float) * MAX_KEYS * MAX_DIM);
    packed = guarded_new(sizeof(float) * packed_floats(MAX_KEYS, MAX_DIM));
    scores = guarded_new(sizeof(float) * MAX_QUERIES * STRIDE);
    values = guarded_new(sizeof(float) * MAX_KEYS * MAX_DIM);
    sums = guarded_new(sizeof(float) * MAX_QUERIES * MAX_DIM);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
