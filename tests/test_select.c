/* Selection against a simple definition: sort all scores, take the first. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cpu/select.h"

enum { MAX = 9000 };

struct ranked {
    float score;
    int index;
};

/* Higher first, ties to the lower index, NaN last. */
static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    const float s = isnan(x->score) ? -INFINITY : x->score, t = isnan(y->score) ? -INFINITY : y->score;
    if (s != t)
        return s < t ? 1 : -1;
    if (isnan(x->score) != isnan(y->score))
        return isnan(x->score) ? 1 : -1;
    return x->index - y->index;
}

/* kept[i]: whether index i belongs to the selection. */
static void naive(const float *scores, int n, int budget, int first, int last, bool *kept)
{
    struct ranked ranked[MAX];
    int n_free = 0;
    memset(kept, 0, MAX);
    for (int i = 0; i < n; i++)
        if (i < first || i >= n - last)
            kept[i] = true;
        else
            ranked[n_free++] = (struct ranked){scores[i], i};
    qsort(ranked, (size_t)n_free, sizeof *ranked, by_rank);
    for (int i = 0; i < n_free && i < budget - first - last; i++)
        kept[ranked[i].index] = true;
}

static void fill(float *scores, int n, int kind, uint64_t *random)
{
    for (int i = 0; i < n; i++)
        switch (kind) {
        case 0:
            scores[i] = butler_random_normal(random);
            break;
        case 1: /* many ties, zeros of both signs */
            scores[i] = (float)((int)(butler_random(random) % 5) - 2) * 0.5f;
            if (scores[i] == 0 && butler_random(random) % 2)
                scores[i] = -0.0f;
            break;
        case 2: /* all equal */
            scores[i] = 1.5f;
            break;
        case 3: /* extremes */
            scores[i] = (float[]){INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 3e38f, -3e38f, 0}[butler_random(random) % 8];
            break;
        default: /* differences only in the last bits */
            scores[i] = 1.0f + (float)(butler_random(random) % 64) * 1.1920929e-7f;
        }
}

/* Each table of this CPU in turn. */
static const struct butler_kernels *kernels_of_round(int round)
{
    const char *const *names = butler_kernels_available();
    int n = 0;
    while (names[n])
        n++;
    return butler_kernels_get(names[round / 5 % n]);
}

static void test_top(void **state)
{
    uint64_t random = 1;
    (void)state;
    for (int round = 0; round < 1500; round++) {
        const int n = 1 + (int)(butler_random(&random) % (round % 3 ? 300 : MAX - 1));
        const int budget = (int)(butler_random(&random) % (uint64_t)(round % 2 ? n + 3 : n / 8 + 2));
        const int first = (int)(butler_random(&random) % 6), last = (int)(butler_random(&random) % 6);
        float scores[MAX], scratch[MAX];
        uint32_t ids[MAX];
        bool kept[MAX];
        fill(scores, n, round % 5, &random);
        naive(scores, n, budget, first, last, kept);
        const struct butler_kernels *kernels = kernels_of_round(round);
        const int n_kept = butler_select_top(kernels, scores, n, budget, first, last, scratch, ids);
        int j = 0;
        for (int i = 0; i < n; i++)
            if (kept[i] || first + last >= n || budget >= n) {
                assert_true(j < n_kept);
                assert_int_equal(ids[j++], i);
            }
        assert_int_equal(j, n_kept);
    }
}

/* The sample of a long list is misleading: exactly k scores reach the lower bound that it gives, or one more, or one less. */
static void test_unlucky_samples(void **state)
{
    enum { N = 4096, STRIDE = 16, SAMPLED = 77, K = 2048 };
    uint64_t random = 7;
    (void)state;
    for (int round = 0; round < 15; round++) {
        float scores[N], scratch[MAX];
        uint32_t ids[N];
        bool kept[MAX];
        for (int from = 0; from < N / STRIDE; from++) { /* the sample: i of them reach N - i */
            const int i = (from * SAMPLED) % (N / STRIDE);
            scores[from * STRIDE] = (float)(N - i);
        }
        /* The bound is that of the 177th of 256: 128 are expected among the highest half, and 4 √128 + 4 are the margin. */
        const float low = (float)(N - 176);
        int n_above = K - 177 + round % 3 - 1;
        for (int i = 0; i < N; i++)
            if (i % STRIDE != 0)
                scores[i] = n_above-- > 0 ? low + 0.25f + 0.5f * butler_random_float(&random) : -1 - butler_random_float(&random);
        naive(scores, N, K, 0, 0, kept);
        assert_int_equal(butler_select_top(kernels_of_round(round), scores, N, K, 0, 0, scratch, ids), K);
        for (int i = 0, j = 0; i < N; i++)
            if (kept[i])
                assert_int_equal(ids[j++], i);
    }
}

static void test_mass(void **state)
{
    uint64_t random = 2;
    (void)state;
    for (int round = 0; round < 500; round++) {
        const int n = 1 + (int)(butler_random(&random) % (MAX - 1)), first = (int)(butler_random(&random) % 4);
        const int last = (int)(butler_random(&random) % 4);
        const double mass = butler_random_float(&random);
        float scores[MAX], scratch[MAX];
        uint32_t ids[MAX], order[MAX];
        const double beside = round % 3 ? 0 : (double)butler_random_float(&random) * n;
        double total = beside, kept = beside;
        for (int i = 0; i < n; i++) {
            scores[i] = round % 2 ? butler_random_float(&random) : (float)(butler_random(&random) % 4);
            total += (double)scores[i];
        }
        const struct butler_kernels *kernels = kernels_of_round(round);
        const struct butler_choice choice = {.n_units = n, .first = first, .last = last, .mass = mass};
        const int n_kept = butler_select_mass(kernels, scores, &choice, beside, scratch, order, ids);
        float lowest = INFINITY;
        bool in[MAX] = {0};
        for (int j = 0; j < n_kept; j++) {
            assert_true(j == 0 || ids[j] > ids[j - 1]);
            in[ids[j]] = true;
            kept += (double)scores[ids[j]];
            if ((int)ids[j] >= first && (int)ids[j] < n - last)
                lowest = fminf(lowest, scores[ids[j]]);
        }
        assert_true(kept >= mass * total * (1 - 1e-9) - 1e-9);
        if (lowest != INFINITY) /* without the last one the mass is not reached: the set is minimal */
            assert_true(kept - (double)lowest < mass * total * (1 + 1e-9) + 1e-9);
        for (int i = 0; i < n; i++) {
            if (i < first || i >= n - last)
                assert_true(in[i]);
            else if (!in[i] && lowest != INFINITY)
                assert_true(scores[i] <= lowest);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_top), cmocka_unit_test(test_unlucky_samples),
                                       cmocka_unit_test(test_mass)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
