/* The sums of training: losses and gradients in panels against those of whole rows in double precision, the sample of queries,
 * what is measured, and linear equations. */
#include <math.h>

#include "fixtures.h"
#include "train_loops.h"
#include "train/fit.h"
#include "train/loss.h"

/* The same loss and gradients in double precision, a query and a head at a time. dqp[n_queries][n_heads][d], dkp[n][d]. */
static double whole_loss(enum butler_loss_kind kind, const struct butler_loss_heads *h, double *dqp, double *dkp)
{
    const int n = h->n;
    const bool square = kind == BUTLER_LOSS_SQUARE_MSE, entropy = kind == BUTLER_LOSS_CROSS_ENTROPY;
    double *row = malloc((size_t)n * sizeof *row), *true_row = malloc((size_t)n * sizeof *row);
    double loss = 0;
    /* of all queries, and the part of them that is seen */
    const double n_terms = (entropy ? n : square ? (double)n * n : n * (n + 1.0) / 2) * h->n_queries / n;
    for (int r = 0; r < h->n_queries * h->n_heads; r++) {
        const int seen = square ? n : h->at[r / h->n_heads] + 1;
        double p_sum = 0, a_sum = 0;
        for (int i = 0; i < seen; i++) {
            double s = 0, z = 0;
            for (int j = 0; j < h->d; j++)
                s += (double)h->qp[r * h->d + j] * (double)h->kp[i * h->kp_stride + j];
            for (int j = 0; j < h->dim; j++)
                z += (double)h->q[r * h->dim + j] * (double)h->k[i * h->k_stride + j];
            row[i] = s / sqrt(h->d);
            true_row[i] = z / sqrt(h->dim);
            p_sum += exp(row[i]);
            a_sum += exp(true_row[i]);
        }
        for (int i = 0; i < seen; i++) {
            double slope;
            if (entropy) {
                loss -= exp(true_row[i]) / a_sum * (row[i] - log(p_sum));
                slope = exp(row[i]) / p_sum - exp(true_row[i]) / a_sum;
            } else {
                loss += (row[i] - true_row[i]) * (row[i] - true_row[i]);
                slope = 2 * (row[i] - true_row[i]);
            }
            slope *= (double)h->weight / n_terms / sqrt(h->d);
            for (int j = 0; j < h->d; j++) {
                dqp[r * h->d + j] += slope * (double)h->kp[i * h->kp_stride + j];
                dkp[i * h->d + j] += slope * (double)h->qp[r * h->d + j];
            }
        }
    }
    free(row);
    free(true_row);
    return loss / n_terms;
}

static float *random_rows(int n, int stride, uint64_t *seed)
{
    float *x = malloc((size_t)n * (size_t)stride * sizeof *x);
    for (int i = 0; i < n * stride; i++)
        x[i] = butler_random_normal(seed);
    return x;
}

static double distance_rows(const float *a, int stride, const double *b, int n, int d)
{
    double difference = 0, size = 0;
    for (int t = 0; t < n; t++)
        for (int j = 0; j < d; j++) {
            difference += pow((double)a[t * stride + j] - b[t * d + j], 2);
            size += pow(b[t * d + j], 2);
        }
    return sqrt(difference / size);
}

static void check_loss(const struct butler_blas *blas, enum butler_loss_kind kind, int n, int n_queries, int n_heads)
{
    enum { DIM = 10, D = 6, K_STRIDE = 11, KP_STRIDE = 7 };
    uint64_t seed = 5;
    int *at = malloc((size_t)n * sizeof *at);
    struct butler_loss_heads h = {
        .n = n, .n_heads = n_heads, .dim = DIM, .d = D, .k_stride = K_STRIDE, .kp_stride = KP_STRIDE, .at = at, .weight = 0.7f};
    h.n_queries = butler_loss_sample(n, n_queries, 3, at);
    const int n_rows = h.n_queries * n_heads;
    float *q = random_rows(n_rows, DIM, &seed), *k = random_rows(n, K_STRIDE, &seed), *qp = random_rows(n_rows, D, &seed);
    float *kp = random_rows(n, KP_STRIDE, &seed), *dqp = random_rows(n_rows, D, &seed);
    float *dkp = calloc((size_t)n * KP_STRIDE, sizeof *dkp);
    double *whole_dqp = calloc((size_t)(n_rows * D), sizeof *whole_dqp), *whole_dkp = calloc((size_t)(n * D), sizeof *whole_dkp);
    h.q = q, h.k = k, h.qp = qp, h.kp = kp, h.dqp = dqp, h.dkp = dkp;
    h.panels = malloc(butler_loss_panel_floats(n, n_heads) * sizeof(float));
    const double loss = butler_loss(blas, train_loops(), kind, &h);
    const double whole = whole_loss(kind, &h, whole_dqp, whole_dkp);
    assert_true(fabs(loss - whole) <= 2e-6 * fabs(whole) + 1e-6);
    if (n > 1) {
        assert_true(distance_rows(dqp, D, whole_dqp, n_rows, D) <= 1e-5);
        assert_true(distance_rows(dkp, KP_STRIDE, whole_dkp, n, D) <= 1e-5);
    }
    free(at), free(q), free(k), free(qp), free(kp), free(dqp), free(dkp), free(whole_dqp), free(whole_dkp), free(h.panels);
}

static void test_blocks_equal_whole(void **state)
{
    (void)state;
    struct butler_error err = {0};
    static const int lengths[] = {1, 2, 63, 64, 65, 128, 200};
    struct butler_blas *blas = butler_blas_load(&err);
    assert_non_null(blas);
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < BUTLER_COUNT(lengths); i++)
            for (int sampled = 0; sampled < 2; sampled++)
                for (int n_heads = 1; n_heads <= 66; n_heads += n_heads < 3 ? 2 : 63)
                    check_loss(blas, (enum butler_loss_kind)kind, lengths[i], sampled ? 30 : 0, n_heads);
    butler_blas_free(blas);
}

/* Every query has the same chance, so that the mean over samples is the loss of all queries. */
static void test_sampling_is_unbiased(void **state)
{
    (void)state;
    enum { N = 50, SAMPLED = 12, TIMES = 20000 };
    int at[N], count[N] = {0};
    assert_int_equal(butler_loss_sample(N, 0, 1, at), N);
    for (int t = 0; t < N; t++)
        assert_int_equal(at[t], t);
    for (uint64_t seed = 0; seed < TIMES; seed++) {
        assert_int_equal(butler_loss_sample(N, SAMPLED, seed, at), SAMPLED);
        for (int i = 0; i < SAMPLED; i++) {
            assert_true(at[i] >= (i > 0 ? at[i - 1] : 0) && at[i] < N);
            count[at[i]]++;
        }
    }
    const double expected = (double)TIMES * SAMPLED / N; /* its standard deviation is less than its root */
    for (int t = 0; t < N; t++)
        if (fabs(count[t] - expected) > 5 * sqrt(expected))
            fail_msg("query %d was drawn %d times of %g", t, count[t], expected);
}

/* Perfect scores are perfect; scores that are all alike choose the earliest tokens, which is no choice. */
static void test_measures(void **state)
{
    (void)state;
    struct butler_error err = {0};
    struct butler_blas *blas = butler_blas_load(&err);
    uint64_t seed = 9;
    const int n = 100;
    float *q = random_rows(n, 8, &seed), *k = random_rows(n, 8, &seed), *zero = calloc((size_t)n * 8, sizeof *zero);
    float *panels = malloc(butler_loss_panel_floats(n, 1) * sizeof *panels), *scratch = malloc((size_t)n * sizeof *scratch);
    int at[100];
    struct butler_loss_heads h = {
        .n = n, .n_heads = 1, .dim = 8, .d = 8, .q = q, .k = k, .qp = q, .kp = k, .panels = panels, .at = at};
    h.n_queries = butler_loss_sample(n, 0, 1, at);
    h.k_stride = h.kp_stride = 8;
    struct butler_loss_measures m = {0};
    butler_loss_measure(blas, train_loops(), &h, 1, scratch, &m);
    assert_int_equal((int)m.n_rows, n - BUTLER_LOSS_MIN_ROW + 1);
    assert_true(m.top_half == m.n_rows && m.recall == m.n_rows && m.mass == m.oracle_mass);
    h.qp = zero;
    m = (struct butler_loss_measures){0};
    butler_loss_measure(blas, train_loops(), &h, 1, scratch, &m);
    assert_true(fabs(m.top_half / m.n_rows - 0.5) < 0.05);
    assert_true(m.recall / m.n_rows < 0.2);
    free(q), free(k), free(zero), free(panels), free(scratch);
    butler_blas_free(blas);
}

/* Solutions of equations of which the solution is known; a matrix that has none is refused. */
static void test_solve(void **state)
{
    enum { N = 20, M = 3 };
    double a[N * N], x[N * M], b[N * M] = {0};
    uint64_t seed = 3;
    struct butler_error err = {0};
    (void)state;
    float *half = random_rows(N, N, &seed);
    for (int i = 0; i < N * N; i++) {
        a[i] = i % (N + 1) == 0;
        for (int k = 0; k < N; k++)
            a[i] += (double)half[i / N * N + k] * (double)half[i % N * N + k];
    }
    for (int i = 0; i < N * M; i++)
        x[i] = (double)butler_random_normal(&seed);
    for (int i = 0; i < N * M; i++)
        for (int k = 0; k < N; k++)
            b[i] += (a[i / M * N + k] + (i / M == k ? 0.5 : 0)) * x[k * M + i % M];
    double trace = 0;
    for (int i = 0; i < N; i++)
        trace += a[i * N + i];
    assert_int_equal(butler_solve(N, a, 0.5 * N / trace, M, b, &err), 0);
    for (int i = 0; i < N * M; i++)
        assert_true(fabs(b[i] - x[i]) < 1e-9);
    memset(a, 0, sizeof a);
    a[0] = 1, a[N + 1] = -1;
    assert_int_equal(butler_solve(N, a, 0, M, b, &err), BUTLER_ERROR_NUMERIC);
    assert_non_null(strstr(err.message, "row 1 of 20"));
    free(half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_equal_whole),
        cmocka_unit_test(test_sampling_is_unbiased),
        cmocka_unit_test(test_measures),
        cmocka_unit_test(test_solve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
