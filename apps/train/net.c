/* What both versions of the predictor share in training: scratch, the two-layer networks, the losses of a layer's heads, and the
 * loop over the layers. */
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
                                  const struct butler_vector_loops *loops, enum butler_loss_kind kind, int max_n,
                                  struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const size_t n = (size_t)max_n, embd = n * (size_t)s->n_embd, half = n * (size_t)(s->d / 2);
    const size_t queries = n * (size_t)(s->n_heads * s->d), keys = n * (size_t)(s->n_key_heads * s->d);
    const size_t panels = butler_loss_panel_floats(max_n, s->n_heads / s->n_key_heads);
    struct butler_net *net = butler_alloc(sizeof *net, err);
    if (!net)
        return NULL;
    net->predictor = predictor;
    net->version = versions[s->version];
    net->blas = blas;
    net->loops = loops;
    net->kind = kind;
    net->max_n = max_n;
    struct butler_arena *arena = &net->arena;
    butler_arena_want(arena, &net->at, n, sizeof(int));
    butler_arena_want(arena, &net->input, embd, sizeof(float));
    butler_arena_want(arena, &net->wide, embd, sizeof(float));
    butler_arena_want(arena, &net->dwide, embd, sizeof(float));
    butler_net_request_mid(net, &net->query);
    butler_arena_want(arena, &net->q, n * (size_t)(s->n_heads * s->head_dim), sizeof(float));
    butler_arena_want(arena, &net->qp, queries, sizeof(float));
    butler_arena_want(arena, &net->dqp, queries, sizeof(float));
    butler_arena_want(arena, &net->kp, keys, sizeof(float));
    butler_arena_want(arena, &net->dkp, keys, sizeof(float));
    butler_arena_want(arena, &net->panels, BUTLER_MAX(panels, 2 * (size_t)BUTLER_LOSS_ROWS * n), sizeof(float));
    butler_arena_want(arena, &net->row, n, sizeof(float));
    if (butler_predictor_rotates(s)) {
        const size_t n_sets = s->head_freq ? (size_t)s->n_key_heads : 1;
        butler_arena_want(arena, &net->at_cosines, n_sets * half, sizeof(float));
        butler_arena_want(arena, &net->at_sines, n_sets * half, sizeof(float));
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

void butler_net_gather(const struct butler_net *net, const float *from, int stride, int width, float *to)
{
    for (int r = 0; r < net->n_queries; r++)
        memcpy(to + (size_t)r * (size_t)width, from + (size_t)net->at[r] * (size_t)stride, (size_t)width * sizeof *to);
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
    butler_linear(net->blas, mid->n, first->n_cols, first->n_rows, x, first->data, mid->pre);
    butler_silu((size_t)mid->n * (size_t)first->n_rows, mid->pre, mid->mid);
}

void butler_net_mid_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *first,
                         const float *x, float *dx, bool add)
{
    butler_silu_back((size_t)mid->n * (size_t)first->n_rows, mid->pre, mid->dmid, mid->dmid);
    butler_linear_back(net->blas, mid->n, first->n_cols, first->n_rows, x, first->data,
                       &(struct butler_gradients){.dy = mid->dmid, .dw = butler_net_grad(net, first, 0), .dx = dx, .add = add});
}

void butler_net_second_forward(const struct butler_net *net, const struct butler_net_mid *mid,
                               const struct butler_predictor_param *second, int row, int n_rows, float *out)
{
    butler_linear(net->blas, mid->n, second->n_cols, n_rows, mid->mid, second->data + (size_t)row * (size_t)second->n_cols, out);
}

void butler_net_second_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *second,
                            int row, int n_rows, const float *dout, bool add)
{
    butler_linear_back(
        net->blas, mid->n, second->n_cols, n_rows, mid->mid, second->data + (size_t)row * (size_t)second->n_cols,
        &(struct butler_gradients){.dy = dout, .dw = butler_net_grad(net, second, row), .dx = mid->dmid, .add = add});
}

/* Floats of one group of heads in qp, and rows of the second matrix. */
static size_t group_floats(const struct butler_net *net, int *n_rows)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    *n_rows = s->n_heads / s->n_key_heads * s->d;
    return (size_t)net->n_queries * (size_t)*n_rows;
}

void butler_net_turn(struct butler_net *net, const float *freq, int n_sets)
{
    const int half = net->predictor->sizes.d / 2;
    float *cosines = net->at_cosines, *sines = net->at_sines;
    net->n_turns = n_sets;
    for (int set = 0; set < n_sets; set++, freq += half)
        for (int r = 0; r < net->n_queries; r++)
            for (int i = 0; i < half; i++) {
                const double angle = (double)net->at[r] * (double)freq[i];
                *cosines++ = (float)cos(angle);
                *sines++ = (float)sin(angle);
            }
}

static void rotate_queries(struct butler_net *net, bool back, float *x)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const int group = s->n_heads / s->n_key_heads;
    for (int g = 0; g < s->n_key_heads && net->at_cosines; g++, x += (size_t)net->n_queries * (size_t)(group * s->d)) {
        const size_t set = net->n_turns > 1 ? (size_t)g * (size_t)net->n_queries * (size_t)(s->d / 2) : 0;
        butler_rotate_heads(net->n_queries, group, s->d, net->at_cosines + set, net->at_sines + set, back, x);
    }
}

void butler_net_queries_forward(struct butler_net *net, const struct butler_predictor_param *second, int row)
{
    int n_rows;
    const size_t size = group_floats(net, &n_rows);
    for (int g = 0; g < net->predictor->sizes.n_key_heads; g++)
        butler_net_second_forward(net, &net->query, second, row + g * n_rows, n_rows, net->qp + (size_t)g * size);
    rotate_queries(net, false, net->qp);
}

void butler_net_queries_back(struct butler_net *net, const struct butler_predictor_param *second, int row, bool add)
{
    int n_rows;
    const size_t size = group_floats(net, &n_rows);
    rotate_queries(net, true, net->dqp);
    for (int g = 0; g < net->predictor->sizes.n_key_heads; g++)
        butler_net_second_back(net, &net->query, second, row + g * n_rows, n_rows, net->dqp + (size_t)g * size, add || g > 0);
}

void butler_net_heads(struct butler_net *net, const float *q, const float *k)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const int group = s->n_heads / s->n_key_heads, n_predicted = (s->n_layers - 1) * s->n_heads;
    const size_t n_group = (size_t)net->n_queries * (size_t)group; /* rows of q, qp and dqp */
    if (net->grads)
        memset(net->dkp, 0, (size_t)net->n * (size_t)(s->n_key_heads * s->d) * sizeof(float));
    for (int g = 0; g < s->n_key_heads; g++) {
        float *q_rows = net->q + (size_t)g * n_group * (size_t)s->head_dim;
        const size_t at = (size_t)g * n_group * (size_t)s->d;
        const struct butler_loss_heads heads = {
            .n = net->n,
            .n_queries = net->n_queries,
            .n_heads = group,
            .dim = s->head_dim,
            .d = s->d,
            .at = net->at,
            .q = q_rows,
            .qp = net->qp + at,
            .k = k + g * s->n_kv_heads / s->n_key_heads * s->head_dim,
            .kp = net->kp + g * s->d,
            .k_stride = s->n_kv_heads * s->head_dim,
            .kp_stride = s->n_key_heads * s->d,
            .dqp = net->grads ? net->dqp + at : NULL,
            .dkp = net->grads ? net->dkp + g * s->d : NULL,
            .weight = net->weight / (float)n_predicted,
            .panels = net->panels,
        };
        butler_net_gather(net, q + g * group * s->head_dim, s->n_heads * s->head_dim, group * s->head_dim, q_rows);
        net->loss += butler_loss(net->blas, net->loops, net->kind, &heads) / n_predicted;
        if (net->measure_step > 0)
            butler_loss_measure(net->blas, net->loops, &heads, net->measure_step, net->row, &net->measures);
    }
}

void butler_net_run(struct butler_net *net, const struct butler_states *states, int n_queries, uint64_t seed)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    net->n = net->key.n = states->n;
    net->n_queries = net->query.n = butler_loss_sample(states->n, n_queries, seed, net->at);
    net->seed = seed;
    net->loss = 0;
    net->measures = (struct butler_loss_measures){0};
    for (int l = 0; l < s->n_layers; l++) {
        const int producer = butler_states_producer(s, l);
        if (l > 0)
            net->version->layer(net, l, butler_states_queries(states, l), butler_states_keys(states, l));
        if (producer >= 0)
            net->version->input(net, producer, butler_states_input(states, producer));
    }
}
