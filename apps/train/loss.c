/* The losses, one panel of queries at a time: true and predicted scores of the panel give the loss and the gradient of the
 * predicted scores, and from that the gradients of predicted queries and keys. */
#include "loss.h"

#include <math.h>
#include <string.h>

struct panel {
    int first, n_queries, n_rows, n_cols; /* queries [first, first + n_queries) of every head against keys [0, n_cols) */
    float *z, *s;                         /* [n_rows][n_cols] true and predicted scores; s becomes the gradient */
};

static int queries_of_panel(int n_heads)
{
    return BUTLER_MAX(BUTLER_LOSS_ROWS / n_heads, 1);
}

size_t butler_loss_panel_floats(int n, int n_heads)
{
    return 2 * (size_t)(queries_of_panel(n_heads) * n_heads) * (size_t)n;
}

int butler_loss_sample(int n, int n_queries, uint64_t seed, int *at)
{
    const bool all = n_queries <= 0 || n_queries >= n;
    const int n_chosen = all ? n : n_queries;
    for (int i = 0; i < n_chosen; i++) {
        const double place = all ? i : (i + (double)butler_random_float(&seed)) * n / n_queries;
        at[i] = BUTLER_MIN((int)place, n - 1);
    }
    return n_chosen;
}

static struct panel panel_of(const struct butler_loss_heads *heads, int first, int n_queries, bool square)
{
    struct panel panel = {.first = first, .n_queries = n_queries, .n_rows = n_queries * heads->n_heads, .z = heads->panels};
    panel.n_cols = square ? heads->n : heads->at[first + n_queries - 1] + 1;
    panel.s = panel.z + butler_loss_panel_floats(heads->n, heads->n_heads) / 2;
    return panel;
}

static void make_scores(const struct butler_blas *blas, const struct butler_loss_heads *heads, const struct panel *panel)
{
    const size_t row = (size_t)panel->first * (size_t)heads->n_heads;
    butler_blas_nt(blas, &(struct butler_gemm){panel->n_rows, panel->n_cols, heads->dim, 1.0f / sqrtf((float)heads->dim),
                                               heads->q + row * (size_t)heads->dim, heads->dim, heads->k, heads->k_stride, false,
                                               panel->z, panel->n_cols});
    butler_blas_nt(blas, &(struct butler_gemm){panel->n_rows, panel->n_cols, heads->d, 1.0f / sqrtf((float)heads->d),
                                               heads->qp + row * (size_t)heads->d, heads->d, heads->kp, heads->kp_stride, false,
                                               panel->s, panel->n_cols});
}

/* Gradients of the predicted queries and keys. */
static void back_scores(const struct butler_blas *blas, const struct butler_loss_heads *heads, const struct panel *panel)
{
    const size_t at = (size_t)panel->first * (size_t)(heads->n_heads * heads->d);
    const float scale = 1.0f / sqrtf((float)heads->d);
    butler_blas_nn(blas, &(struct butler_gemm){panel->n_rows, heads->d, panel->n_cols, scale, panel->s, panel->n_cols, heads->kp,
                                               heads->kp_stride, false, heads->dqp + at, heads->d});
    butler_blas_tn(blas, &(struct butler_gemm){panel->n_cols, heads->d, panel->n_rows, scale, panel->s, panel->n_cols,
                                               heads->qp + at, heads->d, true, heads->dkp, heads->kp_stride});
}

/* One row: sum of (s - z)^2 over n tokens; s = slope * (s - z), zero after them. */
static double square_row(float *s, const float *z, int n, int n_cols, float slope)
{
    double sum = 0;
    for (int from = 0; from < n; from += 64) { /* sums of 64 in float, their total in double */
        const int to = BUTLER_MIN(from + 64, n);
        float part = 0;
        for (int i = from; i < to; i++) {
            const float difference = s[i] - z[i];
            part += difference * difference;
            s[i] = slope * difference;
        }
        sum += (double)part;
    }
    memset(s + n, 0, (size_t)(n_cols - n) * sizeof *s);
    return sum;
}

/* One row: -sum_i a_i log p_i over n tokens, a and p the softmaxes of z and s; s = slope * (p - a), zero after them. */
static double entropy_row(const struct butler_vector_loops *loops, float *s, float *z, int n, int n_cols, float slope)
{
    const float z_max = loops->max(z, n), s_max = loops->max(s, n);
    const float z_sum = loops->exp_sum(z, z_max, n);
    const float weighted = loops->dot(z, s, n) / z_sum;
    const float s_sum = loops->exp_sum(s, s_max, n);
    const float p_scale = slope / s_sum, a_scale = slope / z_sum;
    for (int i = 0; i < n; i++)
        s[i] = p_scale * s[i] - a_scale * z[i];
    memset(s + n, 0, (size_t)(n_cols - n) * sizeof *s);
    return (double)s_max + log((double)s_sum) - (double)weighted;
}

double butler_loss(const struct butler_blas *blas, const struct butler_vector_loops *loops, enum butler_loss_kind kind,
                   const struct butler_loss_heads *heads)
{
    const bool square = kind == BUTLER_LOSS_SQUARE_MSE, entropy = kind == BUTLER_LOSS_CROSS_ENTROPY;
    const double n = (double)heads->n;
    const double n_terms = (entropy ? n : square ? n * n : n * (n + 1) / 2) * (double)heads->n_queries / n;
    const float slope = (float)((double)heads->weight * (entropy ? 1 : 2) / n_terms);
    const int step = queries_of_panel(heads->n_heads);
    double sum = 0;
    for (int first = 0; first < heads->n_queries; first += step) {
        const struct panel panel = panel_of(heads, first, BUTLER_MIN(step, heads->n_queries - first), square);
        make_scores(blas, heads, &panel);
        for (int r = 0; r < panel.n_rows; r++) {
            float *z = panel.z + (size_t)r * (size_t)panel.n_cols, *s = panel.s + (size_t)r * (size_t)panel.n_cols;
            const int n_seen = square ? heads->n : heads->at[first + r / heads->n_heads] + 1;
            sum += entropy ? entropy_row(loops, s, z, n_seen, panel.n_cols, slope) : square_row(s, z, n_seen, panel.n_cols, slope);
        }
        if (heads->dqp)
            back_scores(blas, heads, &panel);
    }
    return sum / n_terms;
}

/* The k highest-scoring tokens: those above a threshold, and of those equal to it the earliest. */
struct cut {
    float at;
    int ties; /* number of tokens equal to the threshold that are still to be taken */
};

static struct cut cut_at(const float *scores, int n, int k, float *scratch)
{
    memcpy(scratch, scores, (size_t)n * sizeof *scratch);
    struct cut cut = {butler_kth_largest(scratch, n, k), k};
    for (int i = 0; i < n; i++)
        cut.ties -= scores[i] > cut.at;
    return cut;
}

static bool takes(struct cut *cut, float score)
{
    return score > cut->at || (score == cut->at && cut->ties-- > 0);
}

static void measure_row(const struct butler_vector_loops *loops, const float *z, const float *s, int n, float *scratch,
                        struct butler_loss_measures *sums)
{
    const int half = n / 2, tenth = BUTLER_MAX(n / 10, 1);
    struct cut z_half = cut_at(z, n, half, scratch), s_half = cut_at(s, n, half, scratch);
    struct cut z_tenth = cut_at(z, n, tenth, scratch), s_tenth = cut_at(s, n, tenth, scratch);
    memcpy(scratch, z, (size_t)n * sizeof *scratch);
    const double total = (double)loops->exp_sum(scratch, loops->max(z, n), n);
    int agree = 0, found = 0;
    double mass = 0, oracle = 0;
    for (int i = 0; i < n; i++) {
        agree += takes(&z_half, z[i]) == takes(&s_half, s[i]);
        const bool is_top = takes(&z_tenth, z[i]), is_taken = takes(&s_tenth, s[i]);
        found += is_top && is_taken;
        mass += is_taken ? (double)scratch[i] : 0;
        oracle += is_top ? (double)scratch[i] : 0;
    }
    sums->n_rows++;
    sums->top_half += (double)agree / n;
    sums->recall += (double)found / tenth;
    sums->mass += mass / total;
    sums->oracle_mass += oracle / total;
}

void butler_loss_measure(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                         const struct butler_loss_heads *heads, int step, float *scratch, struct butler_loss_measures *sums)
{
    int first = 0;
    while (first < heads->n_queries && heads->at[first] + 1 < BUTLER_LOSS_MIN_ROW)
        first++;
    for (; first < heads->n_queries; first += step) {
        const struct panel panel = panel_of(heads, first, 1, false);
        make_scores(blas, heads, &panel);
        for (int h = 0; h < heads->n_heads; h++)
            measure_row(loops, panel.z + (size_t)h * (size_t)panel.n_cols, panel.s + (size_t)h * (size_t)panel.n_cols, panel.n_cols,
                        scratch, sums);
    }
}
