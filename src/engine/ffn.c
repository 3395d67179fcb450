/* The feed-forward part of a layer: one network, or a mixture of experts. */
#include <math.h>

#include "engine/pass.h"

/* How many outputs of a gate of n_ff are computed together: equal parts of as many as fit for n rows. */
static int gate_part(const struct butler_pass *pass, int n_ff, int n)
{
    enum { EVEN = 256 };
    const int most = (int)BUTLER_MIN(pass->s->gate_floats / (size_t)n, (size_t)n_ff);
    const int even = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n_ff, BUTLER_CEIL_DIV(n_ff, most)), EVEN) * EVEN;
    return BUTLER_MIN(even, most);
}

/* y[n][n_embd] = w_down activation(w_gate x, w_up x) for some rows; y may be x. */
static void feed_forward(const struct butler_pass *pass, const struct butler_matrix *w_gate, const struct butler_matrix *w_up,
                         const struct butler_matrix *w_down, float *y, const float *x, struct butler_rows rows)
{
    struct butler_scratch *s = pass->s;
    const int n_ff = w_up->n_rows, n = rows.n;
    struct butler_matrix some;
    const struct butler_product products[] = {{s->up, w_up}, {s->gate, &some}};
    if (!w_gate->data) {
        butler_pass_multiply(pass, products, 1, x, rows);
        pass->backend->activate(pass->backend, s->up, (size_t)n_ff, NULL, n, n_ff, pass->hp->activation);
    }
    for (int first = 0, part = gate_part(pass, n_ff, n); w_gate->data && first < n_ff; first += part) {
        some = butler_matrix_rows(w_gate, first, BUTLER_MIN(part, n_ff - first));
        butler_pass_multiply(pass, products + (first > 0), 2 - (first > 0), x, rows);
        pass->backend->activate(pass->backend, s->up + first, (size_t)n_ff, s->gate, n, some.n_rows, pass->hp->activation);
    }
    butler_pass_multiply(pass, &(struct butler_product){y, w_down}, 1, s->up, rows);
}

/* The router's logits of a row become the weights of the experts that it uses, the others 0. */
static void choose_experts(const struct butler_hparams *hp, float *weights)
{
    float max = -INFINITY, sum = 0, chosen = 0;
    for (int e = 0; e < hp->n_experts; e++)
        max = fmaxf(max, weights[e]);
    for (int e = 0; e < hp->n_experts; e++)
        sum += weights[e] = expf(weights[e] - max);
    for (int k = 0; k < hp->n_experts_used; k++) { /* a chosen weight has its sign set */
        int best = -1;
        for (int e = 0; e < hp->n_experts; e++)
            if (!signbit(weights[e]) && (best < 0 || weights[e] > weights[best]))
                best = e;
        if (best < 0)
            break;
        chosen += weights[best];
        weights[best] = -weights[best];
    }
    for (int e = 0; e < hp->n_experts; e++)
        weights[e] = signbit(weights[e]) ? -weights[e] / (hp->experts_normalised ? chosen : sum) : 0;
}

/* h (normed) -> h: the FFN of n rows, where it is a mixture of experts. An expert runs for all rows that use it. */
static void mix_experts(const struct butler_pass *pass, const struct butler_layer *layer, int n)
{
    const struct butler_hparams *hp = pass->hp;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const size_t n_embd = (size_t)hp->n_embd, n_experts = (size_t)hp->n_experts;
    butler_pass_matmul(pass, s->router, &layer->router, s->h, n);
    backend->download(backend, s->host_router, s->router, (size_t)n * n_experts * sizeof(float));
    for (int t = 0; t < n; t++)
        choose_experts(hp, s->host_router + (size_t)t * n_experts);
    backend->zero_many(backend, &(struct butler_piece){s->mixed, (size_t)n * n_embd * sizeof(float)}, 1);
    for (int e = 0; e < hp->n_experts; e++) {
        const struct butler_matrix w_gate = butler_matrix_rows(&layer->expert_gate, e * hp->n_expert_ff, hp->n_expert_ff),
                                   w_up = butler_matrix_rows(&layer->expert_up, e * hp->n_expert_ff, hp->n_expert_ff),
                                   w_down = butler_matrix_rows(&layer->expert_down, e * hp->n_embd, hp->n_embd);
        int m = 0;
        for (int t = 0; t < n; t++) {
            s->factors[m] = s->host_router[(size_t)t * n_experts + (size_t)e];
            s->rows[m] = t;
            m += s->factors[m] != 0;
        }
        if (m == 0)
            continue;
        backend->gather_rows(backend, s->expert_x, s->h, s->rows, m, hp->n_embd);
        feed_forward(pass, &w_gate, &w_up, &w_down, s->expert_x, s->expert_x, (struct butler_rows){m, m}); /* of both kinds */
        backend->scatter_add(backend, s->mixed, s->expert_x, s->rows, s->factors, m, hp->n_embd);
    }
    if (layer->shared_gate.data) {
        butler_pass_matmul(pass, s->router, &layer->shared_gate, s->h, n);
        backend->download(backend, s->host_router, s->router, (size_t)n * sizeof(float));
        feed_forward(pass, &layer->w_gate, &layer->w_up, &layer->w_down, s->expert_x, s->h, (struct butler_rows){n, n});
        for (int t = 0; t < n; t++) {
            s->rows[t] = t;
            s->factors[t] = 1 / (1 + expf(-s->host_router[t]));
        }
        backend->scatter_add(backend, s->mixed, s->expert_x, s->rows, s->factors, n, hp->n_embd);
    }
    backend->copy(backend, s->h, s->mixed, (size_t)n * n_embd * sizeof(float));
}

void butler_pass_ffn(const struct butler_pass *pass, const struct butler_layer *layer, struct butler_rows rows)
{
    struct butler_scratch *s = pass->s;
    if (layer->router.data)
        mix_experts(pass, layer, rows.n);
    else
        feed_forward(pass, &layer->w_gate, &layer->w_up, &layer->w_down, s->h, s->h, rows);
}
