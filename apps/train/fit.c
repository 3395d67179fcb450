/* Least squares for a new predictor of version 2 (fit.h has the steps). Three passes over the same texts: which pairs, the
 * regression on the input, the regression on the hidden layer. */
#include "fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

#define NORM_EPS 1e-5f
#define INPUT_RIDGE 1e-2
#define MID_RIDGE 1e-4
#define MID_SIZE 0.5f /* root mean square of the hidden layer before silu */

enum { MOMENTS = 6 /* of a pair: of keys xx, xy, yy about the text's mean; of queries about 0 */, ITERATIONS = 12 };

struct fit {
    struct butler_trainer *trainer;
    const struct butler_predictor_sizes *s;
    const struct butler_model *model;
    const struct butler_blas *blas;
    const struct butler_vector_loops *loops;
    int n_pairs;                         /* of a head */
    int n_chosen;                        /* of them, at most d / 2 */
    struct butler_predictor_pair *pairs; /* [n_layers][n_pairs] */
    int *chosen;                         /* [n_layers - 1][n_kv_heads][n_chosen] */
    float *sigma;                        /* the same */
    int n_producers;
};

static const struct butler_predictor_pair *chosen_pair(const struct fit *fit, int layer, int kv_head, int i)
{
    const int place = ((layer - 1) * fit->s->n_kv_heads + kv_head) * fit->n_chosen + i;
    return &fit->pairs[layer * fit->n_pairs + fit->chosen[place]];
}

/* ------------------------------------------------------------------------------------------- pass 1: the pairs */

/* out[n_layers - 1][n_kv_heads][n_pairs][MOMENTS] */
static int add_moments(void *user, const struct butler_states *states, float *out, struct butler_error *err)
{
    const struct fit *fit = user;
    const struct butler_predictor_sizes *s = fit->s;
    const int group = s->n_heads / s->n_kv_heads, n = states->n;
    (void)err;
    for (int place = 0; place < (s->n_layers - 1) * s->n_kv_heads * fit->n_pairs; place++, out += MOMENTS) {
        const int layer = place / fit->n_pairs / s->n_kv_heads + 1, g = place / fit->n_pairs % s->n_kv_heads;
        const struct butler_predictor_pair *pair = &fit->pairs[layer * fit->n_pairs + place % fit->n_pairs];
        const float *k = butler_states_keys(states, layer) + g * s->head_dim, *q = butler_states_queries(states, layer);
        double kx = 0, ky = 0, sums[MOMENTS] = {0};
        for (int t = 0; t < n; t++, k += s->n_kv_heads * s->head_dim) {
            const double x = (double)k[pair->first], y = (double)k[pair->second];
            kx += x, ky += y;
            sums[0] += x * x, sums[1] += x * y, sums[2] += y * y;
        }
        sums[0] -= kx * kx / n, sums[1] -= kx * ky / n, sums[2] -= ky * ky / n;
        for (int t = 0; t < n; t++)
            for (int h = g * group; h < (g + 1) * group; h++) {
                const float *head = q + (size_t)(t * s->n_heads + h) * (size_t)s->head_dim;
                const double x = (double)head[pair->first], y = (double)head[pair->second];
                sums[3] += x * x, sums[4] += x * y, sums[5] += y * y;
            }
        for (int i = 0; i < MOMENTS; i++)
            out[i] = (float)(sums[i] / n);
    }
    return 0;
}

/* Mean variance of the pair's part of a query's scores: the trace of both matrices' product. */
static double energy(const float *m)
{
    return (double)m[0] * (double)m[3] + 2 * (double)m[1] * (double)m[4] + (double)m[2] * (double)m[5];
}

/* moments: of one head. Its pairs of most energy, and their frequencies. */
static void choose_pairs(struct fit *fit, int layer, int g, const float *moments, int n_texts)
{
    const struct butler_predictor_sizes *s = fit->s;
    const int place = ((layer - 1) * s->n_kv_heads + g) * fit->n_chosen;
    struct butler_predictor *predictor = fit->trainer->predictor;
    char name[40];
    snprintf(name, sizeof name, "key.%d.weight", layer);
    float *key = butler_predictor_find(predictor, name)->data + (size_t)(g * s->d) * (size_t)s->head_dim;
    float *freq = butler_predictor_find(predictor, "rope_freq")->data + ((layer - 1) * s->n_kv_heads + g) * (s->d / 2);
    memset(key, 0, (size_t)s->d * (size_t)s->head_dim * sizeof *key);
    for (int i = 0; i < fit->n_chosen; i++) {
        int best = -1;
        for (int p = 0; p < fit->n_pairs; p++) {
            bool taken = false;
            for (int j = 0; j < i; j++)
                taken = taken || fit->chosen[place + j] == p;
            if (!taken && (best < 0 || energy(moments + p * MOMENTS) > energy(moments + best * MOMENTS)))
                best = p;
        }
        const float *m = moments + best * MOMENTS;
        const float variance = (m[0] + m[2]) / (2 * (float)n_texts), sigma = sqrtf(BUTLER_MAX(variance, 1e-12f));
        const struct butler_predictor_pair *pair = &fit->pairs[layer * fit->n_pairs + best];
        fit->chosen[place + i] = best;
        fit->sigma[place + i] = sigma;
        key[i * s->head_dim + pair->first] = 1 / sigma;
        key[(i + s->d / 2) * s->head_dim + pair->second] = 1 / sigma;
        freq[i] = pair->freq;
    }
}

static int fit_keys(struct fit *fit, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = fit->s;
    const size_t head = (size_t)(fit->n_pairs * MOMENTS), n = (size_t)((s->n_layers - 1) * s->n_kv_heads) * head;
    float *moments = butler_alloc(n * sizeof *moments, err);
    int code = moments ? butler_trainer_sum(fit->trainer, add_moments, fit, n, moments, err) : BUTLER_ERROR_MEMORY;
    for (int i = 0; i < (s->n_layers - 1) * s->n_kv_heads && code == 0; i++)
        choose_pairs(fit, i / s->n_kv_heads + 1, i % s->n_kv_heads, moments + (size_t)i * head,
                     BUTLER_TRAIN_KEPT * fit->trainer->params.batch);
    free(moments);
    return code;
}

/* ------------------------------------------------------------------------------------------------- regression */

static int targets_of(const struct fit *fit, int producer, int *first)
{
    return butler_predictor_serves(fit->s, producer, first) * fit->s->n_heads * fit->s->d;
}

/* y[n][targets_of]: in the order of query_2's rows. */
static void write_targets(const struct fit *fit, const struct butler_states *states, int producer, float *y)
{
    const struct butler_predictor_sizes *s = fit->s;
    int first;
    const int width = targets_of(fit, producer, &first), n_layers = width / (s->n_heads * s->d), half = s->d / 2;
    const float scale = sqrtf((float)s->d / (float)s->head_dim);
    memset(y, 0, (size_t)states->n * (size_t)width * sizeof *y);
    for (int l = 0; l < n_layers; l++)
        for (int i = 0; i < s->n_kv_heads * fit->n_chosen; i++) {
            const int g = i / fit->n_chosen, c = i % fit->n_chosen, layer = first + l, group = s->n_heads / s->n_kv_heads;
            const struct butler_predictor_pair *pair = chosen_pair(fit, layer, g, c);
            const float sigma = scale * fit->sigma[((layer - 1) * s->n_kv_heads + g) * fit->n_chosen + c];
            for (int t = 0; t < states->n; t++) {
                const float *q = butler_states_queries(states, layer) + (size_t)(t * s->n_heads * s->head_dim);
                const double angle = (double)t * (double)pair->freq;
                const float cosine = sigma * (float)cos(angle), sine = sigma * (float)sin(angle);
                for (int h = g * group; h < (g + 1) * group; h++) {
                    const float a = q[h * s->head_dim + pair->first], b = q[h * s->head_dim + pair->second];
                    float *row = y + (size_t)t * (size_t)width + (size_t)((l * s->n_heads + h) * s->d + c);
                    row[0] = a * cosine + b * sine;
                    row[half] = b * cosine - a * sine;
                }
            }
        }
}

/* a[m][m] += x^T x, b[m][width] += x^T y of n rows */
static void add_normal(const struct fit *fit, int n, int m, int width, const float *x, const float *y, float *a, float *b)
{
    butler_blas_tn(fit->blas, &(struct butler_gemm){m, m, n, 1, x, m, x, m, true, a, m});
    butler_blas_tn(fit->blas, &(struct butler_gemm){m, width, n, 1, x, m, y, width, true, b, width});
}

/* out: of each producer a[n_embd + 1][n_embd + 1] and b[n_embd + 1][targets], of its normed input and a constant 1. */
static int add_inputs(void *user, const struct butler_states *states, float *out, struct butler_error *err)
{
    const struct fit *fit = user;
    const int n = states->n, embd = fit->s->n_embd, m = embd + 1;
    int first, code = 0;
    float *ones = butler_alloc((size_t)embd * sizeof *ones, err), *x = butler_alloc((size_t)n * (size_t)m * sizeof *x, err),
          *y = NULL;
    for (int i = 0; ones && i < embd; i++)
        ones[i] = 1;
    for (int p = 0; p < fit->n_producers && code == 0; p++) {
        const int width = targets_of(fit, p, &first);
        y = butler_alloc((size_t)n * (size_t)width * sizeof *y, err);
        if (!ones || !x || !y)
            code = BUTLER_ERROR_MEMORY;
        for (int t = 0; t < n && code == 0; t++) {
            butler_norm_rows(1, embd, butler_states_input(states, p) + (size_t)t * (size_t)embd, ones, NULL, NORM_EPS,
                             x + (size_t)t * (size_t)m);
            x[(size_t)t * (size_t)m + (size_t)embd] = 1;
        }
        if (code == 0) {
            write_targets(fit, states, p, y);
            add_normal(fit, n, m, width, x, y, out, out + (size_t)m * (size_t)m);
            out += (size_t)m * (size_t)(m + width);
        }
        free(y);
    }
    free(ones);
    free(x);
    return code;
}

int butler_solve(int n, double *a, double ridge, int m, double *b, struct butler_error *err)
{
    double trace = 0;
    for (int i = 0; i < n; i++)
        trace += a[(size_t)i * (size_t)n + (size_t)i];
    for (int i = 0; i < n; i++) { /* Cholesky: a = l l^T, and l z = b */
        double *row = a + (size_t)i * (size_t)n, *bi = b + (size_t)i * (size_t)m;
        row[i] += ridge * trace / n;
        for (int j = 0; j <= i; j++) {
            const double *other = a + (size_t)j * (size_t)n;
            double sum = row[j];
            for (int k = 0; k < j; k++)
                sum -= row[k] * other[k];
            row[j] = j < i ? sum / other[j] : sum;
        }
        if (!(row[i] > 0))
            return butler_fail(err, BUTLER_ERROR_NUMERIC, "a matrix of the fit is not positive definite at row %d of %d", i, n);
        row[i] = sqrt(row[i]);
        for (int k = 0; k < i; k++)
            for (int c = 0; c < m; c++)
                bi[c] -= row[k] * b[(size_t)k * (size_t)m + (size_t)c];
        for (int c = 0; c < m; c++)
            bi[c] /= row[i];
    }
    for (int i = n - 1; i >= 0; i--) { /* l^T x = z */
        double *bi = b + (size_t)i * (size_t)m;
        for (int c = 0; c < m; c++)
            bi[c] /= a[(size_t)i * (size_t)n + (size_t)i];
        for (int k = 0; k < i; k++)
            for (int c = 0; c < m; c++)
                b[(size_t)k * (size_t)m + (size_t)c] -= a[(size_t)i * (size_t)n + (size_t)k] * bi[c];
    }
    return 0;
}

/* butler_solve of floats: w[n][m]. */
static int regress(int n, const float *a, double ridge, int m, const float *b, float *w, struct butler_error *err)
{
    const size_t n_a = (size_t)n * (size_t)n, n_b = (size_t)n * (size_t)m;
    double *wide = butler_alloc((n_a + n_b) * sizeof *wide, err);
    if (!wide)
        return BUTLER_ERROR_MEMORY;
    for (size_t i = 0; i < n_a + n_b; i++)
        wide[i] = (double)(i < n_a ? a[i] : b[i - n_a]);
    const int code = butler_solve(n, wide, ridge, m, wide + n_a, err);
    for (size_t i = 0; i < n_b; i++)
        w[i] = (float)wide[n_a + i];
    free(wide);
    return code;
}

/* u[rank][n]: orthonormal rows that span the largest eigenvectors of t[n][n], nearly (subspace iteration). spare: as u. */
static void largest_directions(const struct fit *fit, int n, int rank, const float *t, float *u, float *spare)
{
    const struct butler_vector_loops *loops = fit->loops;
    uint64_t seed = 1;
    for (size_t i = 0; i < (size_t)rank * (size_t)n; i++)
        u[i] = butler_random_normal(&seed);
    for (int i = 0; i < ITERATIONS; i++) {
        butler_blas_nn(fit->blas, &(struct butler_gemm){rank, n, n, 1, u, n, t, n, false, spare, n});
        memcpy(u, spare, (size_t)rank * (size_t)n * sizeof *u);
        for (int r = 0; r < rank; r++) {
            float *row = u + (size_t)r * (size_t)n;
            for (int twice = 0; twice < 2; twice++) /* once leaves the rounding of large parts that cancel */
                for (int j = 0; j < r; j++) {
                    const float *other = u + (size_t)j * (size_t)n;
                    loops->axpy(row, -loops->dot(row, other, n), other, n);
                }
            loops->scale(row, 1 / BUTLER_MAX(sqrtf(loops->dot(row, row, n)), 1e-30f), n);
        }
    }
}

/* ------------------------------------------------------------------------------- pass 2: the first matrix */

static struct butler_predictor_param *param_of(const struct fit *fit, const char *name, int producer)
{
    char full[40];
    snprintf(full, sizeof full, "producer.%d.%s", producer, name);
    for (int i = 0; i < fit->trainer->predictor->n_params; i++)
        if (!strcmp(fit->trainer->predictor->params[i].name, full))
            return &fit->trainer->predictor->params[i];
    return NULL;
}

/* The bias b[n_embd] of the norm with first b = constant[rank], nearly, and small. */
static int fit_bias(const struct fit *fit, int rank, const float *first, float *constant, float *bias, struct butler_error *err)
{
    const int embd = fit->s->n_embd;
    float *gram = butler_alloc((size_t)rank * (size_t)rank * sizeof *gram, err);
    if (!gram)
        return BUTLER_ERROR_MEMORY;
    butler_blas_nt(fit->blas, &(struct butler_gemm){rank, rank, embd, 1, first, embd, first, embd, false, gram, rank});
    const int code = regress(rank, gram, 1e-3, 1, constant, constant, err);
    if (code == 0)
        butler_blas_tn(fit->blas, &(struct butler_gemm){embd, 1, rank, 1, first, embd, constant, 1, false, bias, 1});
    free(gram);
    return code;
}

/* a, b: the normal equations of a producer. work: m targets + 2 rank targets + targets^2 + rank m + rank floats, m = n_embd + 1. */
static int fit_producer(const struct fit *fit, int producer, const float *a, const float *b, float *work, struct butler_error *err)
{
    int first;
    const int embd = fit->s->n_embd, m = embd + 1, width = targets_of(fit, producer, &first);
    const int rank = BUTLER_MIN(fit->s->n_mid, width);
    struct butler_predictor_param *query_1 = param_of(fit, "query_1.weight", producer);
    float *w = work, *aw = w + (size_t)m * (size_t)width, *t = aw + (size_t)m * (size_t)width;
    float *u = t + (size_t)width * (size_t)width, *spare = u + (size_t)rank * (size_t)width;
    float *reduced = spare + (size_t)rank * (size_t)width, *constant = reduced + (size_t)rank * (size_t)m;
    int code = regress(m, a, INPUT_RIDGE, width, b, w, err);
    if (code < 0)
        return code;
    butler_blas_nn(fit->blas, &(struct butler_gemm){m, width, m, 1, a, m, w, width, false, aw, width});
    butler_blas_tn(fit->blas,
                   &(struct butler_gemm){width, width, m, 1, w, width, aw, width, false, t, width}); /* of the fitted targets */
    largest_directions(fit, width, rank, t, u, spare);
    butler_blas_nt(fit->blas, &(struct butler_gemm){rank, m, width, 1, u, width, w, width, false, reduced, m});
    butler_blas_nn(fit->blas, &(struct butler_gemm){rank, width, width, 1, u, width, t, width, false, spare, width});
    const float n_rows = a[(size_t)m * (size_t)m - 1];
    for (int r = 0; r < rank; r++) {
        const float *row = reduced + (size_t)r * (size_t)m;
        const float square = fit->loops->dot(u + (size_t)r * (size_t)width, spare + (size_t)r * (size_t)width, width) / n_rows;
        const float scale = MID_SIZE / sqrtf(BUTLER_MAX(square, 1e-12f));
        for (int i = 0; i < embd; i++)
            query_1->data[(size_t)r * (size_t)embd + (size_t)i] = scale * row[i];
        constant[r] = scale * row[embd];
    }
    return fit_bias(fit, rank, query_1->data, constant, param_of(fit, "norm.bias", producer)->data, err);
}

static size_t input_floats(const struct fit *fit, int producer)
{
    int first;
    const size_t m = (size_t)fit->s->n_embd + 1;
    return m * (m + (size_t)targets_of(fit, producer, &first));
}

static int fit_inputs(struct fit *fit, struct butler_error *err)
{
    const size_t m = (size_t)fit->s->n_embd + 1, mid = (size_t)fit->s->n_mid;
    size_t n = 0;
    int first, code = BUTLER_ERROR_MEMORY;
    const size_t width = (size_t)targets_of(fit, 0, &first); /* no producer has more */
    for (int p = 0; p < fit->n_producers; p++)
        n += input_floats(fit, p);
    float *sums = butler_alloc(n * sizeof *sums, err);
    float *work = butler_alloc((2 * m * width + width * width + 2 * mid * width + mid * m + mid) * sizeof *work, err);
    if (sums && work)
        code = butler_trainer_sum(fit->trainer, add_inputs, fit, n, sums, err);
    const float *at = sums;
    for (int p = 0; p < fit->n_producers && code == 0; p++) {
        code = fit_producer(fit, p, at, at + m * m, work, err);
        at += input_floats(fit, p);
    }
    free(sums);
    free(work);
    return code;
}

/* ------------------------------------------------------------------------------- pass 3: the second matrix */

/* out: of each producer a[n_mid][n_mid] and b[n_mid][targets], of the hidden layer. */
static int add_mids(void *user, const struct butler_states *states, float *out, struct butler_error *err)
{
    const struct fit *fit = user;
    const int n = states->n, embd = fit->s->n_embd, mid = fit->s->n_mid;
    int first;
    const size_t widest = (size_t)targets_of(fit, 0, &first);
    float *x = butler_alloc((size_t)n * ((size_t)embd + (size_t)mid + widest) * sizeof *x, err);
    if (!x)
        return BUTLER_ERROR_MEMORY;
    float *hidden = x + (size_t)n * (size_t)embd, *y = hidden + (size_t)n * (size_t)mid;
    for (int p = 0; p < fit->n_producers; p++) {
        const int width = targets_of(fit, p, &first);
        butler_norm_rows(n, embd, butler_states_input(states, p), param_of(fit, "norm.weight", p)->data,
                         param_of(fit, "norm.bias", p)->data, NORM_EPS, x);
        butler_linear(fit->blas, n, embd, mid, x, param_of(fit, "query_1.weight", p)->data, hidden);
        butler_silu((size_t)n * (size_t)mid, hidden, hidden);
        write_targets(fit, states, p, y);
        add_normal(fit, n, mid, width, hidden, y, out, out + (size_t)mid * (size_t)mid);
        out += (size_t)mid * (size_t)(mid + width);
    }
    free(x);
    return 0;
}

static int fit_mids(struct fit *fit, struct butler_error *err)
{
    const int mid = fit->s->n_mid;
    size_t n = 0;
    int first, code = BUTLER_ERROR_MEMORY;
    for (int p = 0; p < fit->n_producers; p++)
        n += (size_t)mid * (size_t)(mid + targets_of(fit, p, &first));
    float *sums = butler_alloc(n * sizeof *sums, err);
    float *w = butler_alloc((size_t)mid * (size_t)targets_of(fit, 0, &first) * sizeof *w, err);
    if (sums && w)
        code = butler_trainer_sum(fit->trainer, add_mids, fit, n, sums, err);
    const float *at = sums;
    for (int p = 0; p < fit->n_producers && code == 0; p++) {
        const int width = targets_of(fit, p, &first);
        float *query_2 = param_of(fit, "query_2.weight", p)->data;
        code = regress(mid, at, MID_RIDGE, width, at + (size_t)mid * (size_t)mid, w, err);
        for (int r = 0; r < width; r++)
            for (int i = 0; i < mid; i++)
                query_2[(size_t)r * (size_t)mid + (size_t)i] = w[(size_t)i * (size_t)width + (size_t)r];
        at += (size_t)mid * (size_t)(mid + width);
    }
    free(sums);
    free(w);
    return code;
}

int butler_fit(struct butler_trainer *trainer, const struct butler_vector_loops *loops, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &trainer->predictor->sizes;
    struct fit fit = {
        .trainer = trainer, .s = s, .model = trainer->model, .blas = trainer->blas, .loops = loops, .n_pairs = s->head_dim / 2};
    fit.n_chosen = BUTLER_MIN(fit.n_pairs, s->d / 2);
    int first, code = BUTLER_ERROR_MEMORY;
    while (butler_predictor_serves(s, fit.n_producers, &first) > 0)
        fit.n_producers++;
    const size_t n_chosen = (size_t)((s->n_layers - 1) * s->n_kv_heads * fit.n_chosen);
    fit.pairs = butler_alloc((size_t)(s->n_layers * fit.n_pairs) * sizeof *fit.pairs, err);
    fit.chosen = butler_alloc(n_chosen * sizeof *fit.chosen, err);
    fit.sigma = butler_alloc(n_chosen * sizeof *fit.sigma, err);
    for (int i = 0; fit.pairs && i < s->n_layers * fit.n_pairs; i++)
        fit.pairs[i] = butler_predictor_pair_of(trainer->model, i / fit.n_pairs, i % fit.n_pairs);
    if (fit.pairs && fit.chosen && fit.sigma && (code = fit_keys(&fit, err)) == 0 && (code = fit_inputs(&fit, err)) == 0)
        code = fit_mids(&fit, err);
    free(fit.pairs);
    free(fit.chosen);
    free(fit.sigma);
    return code;
}
