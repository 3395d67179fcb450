/* What both versions of the predictor share in training: scratch, the two-layer networks, the losses of a layer's heads, and the
 * callbacks from the model's forward pass to the version's functions. */
#include "net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct butler_net_version *const versions[] = {[1] = &butler_net_v1, [2] = &butler_net_v2};

void butler_net_rotations(const struct butler_net *net, int dim, const float *freq, float *cosines, float *sines)
{
    for (int t = 0; t < net->max_n; t++)
        for (int i = 0; i < dim / 2; i++) {
            const double angle = (double)t * (double)freq[i];
            *cosines++ = (float)cos(angle);
            *sines++ = (float)sin(angle);
        }
}

void butler_net_request_mid(struct butler_net *net, struct butler_net_mid *mid)
{
    const size_t size = (size_t)net->max_n * (size_t)net->predictor->sizes.n_mid;
    butler_arena_want(&net->arena, &mid->pre, size, sizeof(float));
    butler_arena_want(&net->arena, &mid->mid, size, sizeof(float));
    butler_arena_want(&net->arena, &mid->dmid, size, sizeof(float));
}

struct butler_net *butler_net_new(const struct butler_predictor *predictor, const struct butler_blas *blas,
                                  const struct butler_kernels *kernels, enum butler_loss_kind kind, int max_n,
                                  struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const size_t n = (size_t)max_n, embd = n * (size_t)s->n_embd;
    const size_t queries = n * (size_t)(s->n_heads * s->d), keys = n * (size_t)(s->n_key_heads * s->d);
    struct butler_net *net = butler_alloc(sizeof *net, err);
    if (!net)
        return NULL;
    net->predictor = predictor;
    net->version = versions[s->version];
    net->blas = blas;
    net->kernels = kernels;
    net->kind = kind;
    net->max_n = max_n;
    struct butler_arena *arena = &net->arena;
    butler_arena_want(arena, &net->input, embd, sizeof(float));
    butler_arena_want(arena, &net->wide, embd, sizeof(float));
    butler_arena_want(arena, &net->dwide, embd, sizeof(float));
    butler_net_request_mid(net, &net->query);
    butler_arena_want(arena, &net->qp, queries, sizeof(float));
    butler_arena_want(arena, &net->dqp, queries, sizeof(float));
    butler_arena_want(arena, &net->kp, keys, sizeof(float));
    butler_arena_want(arena, &net->dkp, keys, sizeof(float));
    butler_arena_want(arena, &net->panels, 2 * (size_t)BUTLER_LOSS_ROWS * n, sizeof(float));
    butler_arena_want(arena, &net->row, n, sizeof(float));
    if (butler_predictor_rotates(s)) {
        butler_arena_want(arena, &net->cosines, n * (size_t)(s->d / 2), sizeof(float));
        butler_arena_want(arena, &net->sines, n * (size_t)(s->d / 2), sizeof(float));
    }
    net->version->request(net);
    if (butler_arena_make(arena, err) < 0) {
        butler_net_free(net);
        return NULL;
    }
    net->version->prepare(net);
    return net;
}

void butler_net_free(struct butler_net *net)
{
    if (!net)
        return;
    butler_arena_free(&net->arena);
    free(net);
}

size_t butler_net_bytes(const struct butler_net *net)
{
    return net->arena.size;
}

void butler_net_begin(struct butler_net *net, int n)
{
    net->n = n;
    net->loss = 0;
    net->measures = (struct butler_loss_measures){0};
    net->layers_seen = 0;
    net->whole = true;
}

const struct butler_predictor_param *butler_net_param(const struct butler_net *net, const char *format, ...)
{
    char name[40];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return butler_predictor_find(net->predictor, name);
}

float *butler_net_grad(const struct butler_net *net, const struct butler_predictor_param *param, int row)
{
    return net->grads + (param->data - net->predictor->weights) + (size_t)row * (size_t)param->n_cols;
}

void butler_net_mid_forward(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *first,
                            const float *x)
{
    butler_linear(net->blas, net->n, first->n_cols, first->n_rows, x, first->data, mid->pre);
    butler_silu((size_t)net->n * (size_t)first->n_rows, mid->pre, mid->mid);
}

void butler_net_mid_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *first,
                         const float *x, float *dx, bool add)
{
    butler_silu_back((size_t)net->n * (size_t)first->n_rows, mid->pre, mid->dmid, mid->dmid);
    butler_linear_back(net->blas, net->n, first->n_cols, first->n_rows, x, first->data, mid->dmid, butler_net_grad(net, first, 0),
                       dx, add);
}

void butler_net_second_forward(const struct butler_net *net, const struct butler_net_mid *mid,
                               const struct butler_predictor_param *second, int row, int n_rows, float *out)
{
    butler_linear(net->blas, net->n, second->n_cols, n_rows, mid->mid, second->data + (size_t)row * (size_t)second->n_cols, out);
}

void butler_net_second_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *second,
                            int row, int n_rows, const float *dout, bool add)
{
    butler_linear_back(net->blas, net->n, second->n_cols, n_rows, mid->mid, second->data + (size_t)row * (size_t)second->n_cols,
                       dout, butler_net_grad(net, second, row), mid->dmid, add);
}

void butler_net_heads(struct butler_net *net, const float *q, const float *k)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const int query_row = s->n_heads * s->d, key_row = s->n_key_heads * s->d, n_predicted = (s->n_layers - 1) * s->n_heads;
    if (net->grads) {
        memset(net->dqp, 0, (size_t)net->n * (size_t)query_row * sizeof(float));
        memset(net->dkp, 0, (size_t)net->n * (size_t)key_row * sizeof(float));
    }
    for (int h = 0; h < s->n_heads; h++) {
        const int kv_head = h * s->n_kv_heads / s->n_heads, key_head = h * s->n_key_heads / s->n_heads;
        const struct butler_loss_head head = {
            .n = net->n,
            .dim = s->head_dim,
            .d = s->d,
            .q = q + h * s->head_dim,
            .k = k + kv_head * s->head_dim,
            .qp = net->qp + h * s->d,
            .kp = net->kp + key_head * s->d,
            .q_stride = s->n_heads * s->head_dim,
            .k_stride = s->n_kv_heads * s->head_dim,
            .qp_stride = query_row,
            .kp_stride = key_row,
            .dqp = net->grads ? net->dqp + h * s->d : NULL,
            .dkp = net->grads ? net->dkp + key_head * s->d : NULL,
            .weight = net->weight / (float)n_predicted,
            .panels = net->panels,
        };
        net->loss += butler_loss(net->blas, net->kernels, net->kind, &head) / n_predicted;
        if (net->measure_step > 0)
            butler_loss_measure(net->blas, net->kernels, &head, net->measure_step, net->row, &net->measures);
    }
}

/* h: a layer's input, of the kind that this predictor reads (sizes.input). */
static void take_input(struct butler_net *net, int layer, const float *h)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    if (!net->version->reads(s, layer))
        return;
    memcpy(net->input, h, (size_t)net->n * (size_t)s->n_embd * sizeof *h);
    net->version->input(net, layer);
}

static void at_layer(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct butler_net *net = user;
    (void)x;
    net->whole = net->whole && first == 0 && n == net->n;
    if (!net->whole)
        return;
    if (layer > 0) {
        net->version->layer(net, layer, q, k);
        net->layers_seen++;
    }
    if (net->predictor->sizes.input == BUTLER_PREDICTOR_INPUT_NORM)
        take_input(net, layer, h);
}

static void at_fed(void *user, int layer, int first, int n, const float *h)
{
    struct butler_net *net = user;
    (void)first;
    (void)n;
    if (net->whole && net->predictor->sizes.input == BUTLER_PREDICTOR_INPUT_ATTENTION)
        take_input(net, layer, h);
}

const struct butler_capture butler_net_capture = {.layer = at_layer, .fed = at_fed};
