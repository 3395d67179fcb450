/* Layers forward and backward. Each backward function is the derivative of the function above it. */
#include "dense.h"

#include <math.h>
#include <string.h>

#include "loss.h"

void butler_linear(const struct butler_blas *blas, int n, int n_in, int n_out, const float *x, const float *w, float *y)
{
    butler_blas_nt(blas, &(struct butler_gemm){n, n_out, n_in, 1, x, n_in, w, n_in, false, y, n_out});
}

void butler_linear_back(const struct butler_blas *blas, int n, int n_in, int n_out, const float *x, const float *w,
                        const struct butler_gradients *d)
{
    butler_blas_tn(blas, &(struct butler_gemm){n_out, n_in, n, 1, d->dy, n_out, x, n_in, true, d->dw, n_in});
    if (d->dx)
        butler_blas_nn(blas, &(struct butler_gemm){n, n_in, n_out, 1, d->dy, n_out, w, n_in, d->add, d->dx, n_in});
}

static void moments(const float *x, int dim, float eps, float *mean, float *rate)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < dim; i++)
        sum += (double)x[i];
    const double middle = sum / dim;
    for (int i = 0; i < dim; i++)
        squares += ((double)x[i] - middle) * ((double)x[i] - middle);
    *mean = (float)middle;
    *rate = (float)(1 / sqrt(squares / dim + (double)eps));
}

void butler_norm_rows(int n, int dim, const float *x, const float *weight, const float *bias, float eps, float *y)
{
    for (int t = 0; t < n; t++, x += dim, y += dim) {
        float mean, rate;
        moments(x, dim, eps, &mean, &rate);
        for (int i = 0; i < dim; i++)
            y[i] = (x[i] - mean) * rate * weight[i] + (bias ? bias[i] : 0);
    }
}

void butler_norm_rows_back(int n, int dim, const float *x, const float *weight, float eps, const struct butler_gradients *d)
{
    const float *dy = d->dy;
    float *dx = d->dx;
    for (int t = 0; t < n; t++, x += dim, dy += dim, dx = dx ? dx + dim : NULL) {
        float mean, rate;
        double sum = 0, along = 0; /* of the gradient of the normed row, and its dot product with that row */
        moments(x, dim, eps, &mean, &rate);
        for (int i = 0; i < dim; i++) {
            const float normed = (x[i] - mean) * rate, slope = dy[i] * weight[i];
            d->dw[i] += dy[i] * normed;
            if (d->dbias)
                d->dbias[i] += dy[i];
            sum += (double)slope;
            along += (double)slope * (double)normed;
        }
        const float sum_mean = (float)(sum / dim), along_mean = (float)(along / dim);
        for (int i = 0; dx && i < dim; i++)
            dx[i] = rate * (dy[i] * weight[i] - sum_mean - (x[i] - mean) * rate * along_mean);
    }
}

void butler_silu(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1 + expf(-x[i]));
}

void butler_silu_back(size_t n, const float *x, const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i++) {
        const float gate = 1 / (1 + expf(-x[i]));
        dx[i] = dy[i] * gate * (1 + x[i] * (1 - gate));
    }
}

#define GELU_SCALE 0.7978845608f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

void butler_gelu(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = 0.5f * x[i] * (1 + tanhf(GELU_SCALE * (x[i] + GELU_CUBE * x[i] * x[i] * x[i])));
}

void butler_gelu_back(size_t n, const float *x, const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i++) {
        const float square = x[i] * x[i], tanh_x = tanhf(GELU_SCALE * x[i] * (1 + GELU_CUBE * square));
        const float slope = GELU_SCALE * (1 + 3 * GELU_CUBE * square);
        dx[i] = dy[i] * 0.5f * (1 + tanh_x + x[i] * (1 - tanh_x * tanh_x) * slope);
    }
}

void butler_rotate_heads(int n, int n_heads, int dim, const float *cosines, const float *sines, bool back, float *x)
{
    const int half = dim / 2;
    for (int t = 0; t < n; t++, cosines += half, sines += half)
        for (int h = 0; h < n_heads; h++, x += dim)
            for (int i = 0; i < half; i++) {
                const float c = cosines[i], s = back ? -sines[i] : sines[i], a = x[i], b = x[i + half];
                x[i] = a * c - b * s;
                x[i + half] = a * s + b * c;
            }
}

/* Queries [first, first + n_rows) of a head and the keys [from, from + n_cols) that they attend to. */
struct panel {
    int first, n_rows, from, n_cols;
};

static struct panel panel_at(int first, int n, int window)
{
    const int n_rows = BUTLER_MIN(BUTLER_LOSS_ROWS, n - first), from = BUTLER_MAX(first + 1 - window, 0);
    return (struct panel){first, n_rows, from, first + n_rows - from};
}

/* Attention weights p[n_rows][n_cols] of a panel of the head whose channels begin at `head`: zero outside each row's window. */
static void weights(const struct butler_blas *blas, const struct butler_vector_loops *loops, const struct butler_self_attention *a,
                    const struct panel *panel, size_t head, float *p)
{
    const int stride = a->n_heads * a->dim;
    butler_blas_nt(blas,
                   &(struct butler_gemm){panel->n_rows, panel->n_cols, a->dim, 1 / sqrtf((float)a->dim),
                                         a->q + head + (size_t)panel->first * (size_t)stride, stride,
                                         a->k + head + (size_t)panel->from * (size_t)stride, stride, false, p, panel->n_cols});
    for (int r = 0; r < panel->n_rows; r++, p += panel->n_cols) {
        const int end = panel->first + r + 1 - panel->from, begin = BUTLER_MAX(end - a->window, 0), n = end - begin;
        loops->scale(p + begin, 1 / loops->exp_sum(p + begin, loops->max(p + begin, n), n), n);
        memset(p, 0, (size_t)begin * sizeof *p);
        memset(p + end, 0, (size_t)(panel->n_cols - end) * sizeof *p);
    }
}

void butler_self_attention(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                           const struct butler_self_attention *attention, float *out)
{
    const int n = attention->n, dim = attention->dim, stride = attention->n_heads * dim;
    for (int h = 0; h < attention->n_heads; h++)
        for (int first = 0; first < n; first += BUTLER_LOSS_ROWS) {
            const struct panel panel = panel_at(first, n, attention->window);
            const size_t head = (size_t)(h * dim);
            weights(blas, loops, attention, &panel, head, attention->panels);
            butler_blas_nn(blas, &(struct butler_gemm){panel.n_rows, dim, panel.n_cols, 1, attention->panels, panel.n_cols,
                                                       attention->v + head + (size_t)panel.from * (size_t)stride, stride, false,
                                                       out + head + (size_t)first * (size_t)stride, stride});
        }
}

void butler_self_attention_back(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                                const struct butler_self_attention *attention, const float *dout, float *dq, float *dk, float *dv)
{
    const int n = attention->n, dim = attention->dim, stride = attention->n_heads * dim;
    const float scale = 1 / sqrtf((float)dim);
    float *p = attention->panels, *dp = p + (size_t)BUTLER_LOSS_ROWS * (size_t)n;
    memset(dk, 0, (size_t)n * (size_t)stride * sizeof *dk);
    memset(dv, 0, (size_t)n * (size_t)stride * sizeof *dv);
    for (int h = 0; h < attention->n_heads; h++)
        for (int first = 0; first < n; first += BUTLER_LOSS_ROWS) {
            const struct panel panel = panel_at(first, n, attention->window);
            const int n_rows = panel.n_rows, n_cols = panel.n_cols;
            const size_t head = (size_t)(h * dim), at = head + (size_t)first * (size_t)stride;
            const size_t from = head + (size_t)panel.from * (size_t)stride;
            weights(blas, loops, attention, &panel, head, p);
            butler_blas_tn(blas,
                           &(struct butler_gemm){n_cols, dim, n_rows, 1, p, n_cols, dout + at, stride, true, dv + from, stride});
            butler_blas_nt(blas, &(struct butler_gemm){n_rows, n_cols, dim, 1, dout + at, stride, attention->v + from, stride,
                                                       false, dp, n_cols});
            for (int r = 0; r < n_rows; r++) { /* through the softmax: ds = p (dp - p . dp) */
                float *row = dp + (size_t)r * (size_t)n_cols;
                const float *weight = p + (size_t)r * (size_t)n_cols;
                const float along = loops->dot(weight, row, n_cols);
                for (int i = 0; i < n_cols; i++)
                    row[i] = weight[i] * (row[i] - along);
            }
            butler_blas_nn(blas, &(struct butler_gemm){n_rows, dim, n_cols, scale, dp, n_cols, attention->k + from, stride, false,
                                                       dq + at, stride});
            butler_blas_tn(blas, &(struct butler_gemm){n_cols, dim, n_rows, scale, dp, n_cols, attention->q + at, stride, true,
                                                       dk + from, stride});
        }
}
