/* TokenButler v1 (arXiv 2503.07518, section 3.1) in training: one small transformer block on the first layer's input predicts
 * queries and keys of every later layer. Layers are predicted from `query` and `key` and accumulate their gradients; after the
 * last layer these go back through the block. Formulas: predictor.h. */
#include <string.h>

#include "net.h"

#define NORM_EPS 1e-5f

static void request(struct butler_net *net)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const size_t n = (size_t)net->max_n, inner = n * (size_t)s->n_inner, half = n * (size_t)(s->n_inner / s->n_inner_heads / 2);
    float **const narrow[] = {&net->z,  &net->inner_q, &net->k,  &net->v,  &net->a, &net->normed,
                              &net->dz, &net->dq,      &net->dk, &net->dv, &net->da};
    float **const doubled[] = {&net->up, &net->gelu, &net->dup};
    for (int i = 0; i < BUTLER_COUNT(narrow); i++)
        butler_arena_want(&net->arena, narrow[i], inner, sizeof(float));
    for (int i = 0; i < BUTLER_COUNT(doubled); i++)
        butler_arena_want(&net->arena, doubled[i], 2 * inner, sizeof(float));
    butler_arena_want(&net->arena, &net->inner_freq, (size_t)(s->n_inner / s->n_inner_heads / 2), sizeof(float));
    butler_arena_want(&net->arena, &net->inner_cosines, half, sizeof(float));
    butler_arena_want(&net->arena, &net->inner_sines, half, sizeof(float));
    butler_arena_want(&net->arena, &net->freq, (size_t)(s->d / 2), sizeof(float));
    butler_arena_want(&net->arena, &net->cosines, n * (size_t)(s->d / 2), sizeof(float));
    butler_arena_want(&net->arena, &net->sines, n * (size_t)(s->d / 2), sizeof(float));
    butler_arena_want(&net->arena, &net->asked, n * (size_t)s->n_embd, sizeof(float));
    butler_arena_want(&net->arena, &net->dasked, n * (size_t)s->n_embd, sizeof(float));
    butler_net_request_mid(net, &net->key);
}

static void prepare(struct butler_net *net)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const int head = s->n_inner / s->n_inner_heads;
    butler_predictor_frequencies(s, s->d, net->freq);
    butler_net_rotations(net, s->d, net->freq, net->cosines, net->sines);
    butler_predictor_frequencies(s, head, net->inner_freq);
    butler_net_rotations(net, head, net->inner_freq, net->inner_cosines, net->inner_sines);
}

static void linear(const struct butler_net *net, const char *name, const float *x, float *y)
{
    const struct butler_predictor_param *w = butler_net_param(net, "%s.weight", name);
    butler_linear(net->blas, net->n, w->n_cols, w->n_rows, x, w->data, y);
}

static void linear_back(const struct butler_net *net, const char *name, const float *x, const float *dy, float *dx, bool add)
{
    const struct butler_predictor_param *w = butler_net_param(net, "%s.weight", name);
    butler_linear_back(net->blas, net->n, w->n_cols, w->n_rows, x, w->data,
                       &(struct butler_gradients){.dy = dy, .dw = butler_net_grad(net, w, 0), .dx = dx, .add = add});
}

static void add_bias(const struct butler_net *net, const char *name, float *y)
{
    const struct butler_predictor_param *bias = butler_net_param(net, "%s.bias", name);
    for (int t = 0; t < net->n; t++)
        net->loops->add(y + (size_t)t * (size_t)bias->n_cols, bias->data, bias->n_cols);
}

static void add_bias_back(const struct butler_net *net, const char *name, const float *dy)
{
    const struct butler_predictor_param *bias = butler_net_param(net, "%s.bias", name);
    float *grad = butler_net_grad(net, bias, 0);
    for (int t = 0; t < net->n; t++)
        net->loops->add(grad, dy + (size_t)t * (size_t)bias->n_cols, bias->n_cols);
}

static void rotate_inner(const struct butler_net *net, bool back, float *x)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    butler_rotate_heads(net->n, s->n_inner_heads, s->n_inner / s->n_inner_heads, net->inner_cosines, net->inner_sines, back, x);
}

/* x[n_wide], outputs of the feed-forward network or their gradient: those that drop out become 0, the others larger, so that the
 * mean stays. Drawn again for the gradient, by their place in the text, so that no mask has to be kept. */
static void drop_out(const struct butler_net *net, size_t n_wide, float *x)
{
    const float scale = 1 / (1 - net->dropout);
    for (size_t i = 0; i < n_wide && net->dropout > 0; i++) {
        uint64_t state = net->seed + i * 0x9e3779b97f4a7c15u;
        x[i] *= butler_random_float(&state) < net->dropout ? 0 : scale;
    }
}

static struct butler_self_attention attention_of(const struct butler_net *net)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    return (struct butler_self_attention){.n = net->n,
                                          .n_heads = s->n_inner_heads,
                                          .dim = s->n_inner / s->n_inner_heads,
                                          .window = butler_predictor_window(s),
                                          .q = net->inner_q,
                                          .k = net->k,
                                          .v = net->v,
                                          .panels = net->panels};
}

static void input(struct butler_net *net, int producer, const float *h)
{
    (void)producer;
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const struct butler_self_attention attention = attention_of(net);
    const size_t n_up = (size_t)net->n * 2 * (size_t)s->n_inner, n_wide = (size_t)net->n * (size_t)s->n_embd;
    butler_net_turn(net, net->freq, 1);
    memcpy(net->input, h, n_wide * sizeof *h);
    linear(net, "down", net->input, net->z);
    linear(net, "attn_q", net->z, net->inner_q);
    linear(net, "attn_k", net->z, net->k);
    linear(net, "attn_v", net->z, net->v);
    rotate_inner(net, false, net->inner_q);
    rotate_inner(net, false, net->k);
    butler_self_attention(net->blas, net->loops, &attention, net->a);
    butler_norm_rows(net->n, s->n_inner, net->a, butler_net_param(net, "norm.weight")->data,
                     butler_net_param(net, "norm.bias")->data, NORM_EPS, net->normed);
    linear(net, "ffn_up", net->normed, net->up);
    add_bias(net, "ffn_up", net->up);
    butler_gelu(n_up, net->up, net->gelu);
    linear(net, "ffn_down", net->gelu, net->wide);
    add_bias(net, "ffn_down", net->wide);
    drop_out(net, n_wide, net->wide);
    for (size_t i = 0; i < n_wide; i++)
        net->wide[i] += net->input[i];
    butler_net_gather(net, net->wide, s->n_embd, s->n_embd, net->asked);
    butler_net_mid_forward(net, &net->query, butler_net_param(net, "query_1.weight"), net->asked);
    butler_net_mid_forward(net, &net->key, butler_net_param(net, "key_1.weight"), net->wide);
}

/* Backward from the gradients of both hidden layers to every parameter before them. */
static void back(struct butler_net *net)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const struct butler_predictor_param *weight = butler_net_param(net, "norm.weight"), *bias = butler_net_param(net, "norm.bias");
    const struct butler_self_attention attention = attention_of(net);
    butler_net_mid_back(net, &net->key, butler_net_param(net, "key_1.weight"), net->wide, net->dwide, false);
    butler_net_mid_back(net, &net->query, butler_net_param(net, "query_1.weight"), net->asked, net->dasked, false);
    for (int r = 0; r < net->n_queries; r++)
        net->loops->add(net->dwide + (size_t)net->at[r] * (size_t)s->n_embd, net->dasked + (size_t)r * (size_t)s->n_embd,
                        s->n_embd);
    drop_out(net, (size_t)net->n * (size_t)s->n_embd, net->dwide);
    add_bias_back(net, "ffn_down", net->dwide);
    linear_back(net, "ffn_down", net->gelu, net->dwide, net->dup, false);
    butler_gelu_back((size_t)net->n * 2 * (size_t)s->n_inner, net->up, net->dup, net->dup);
    add_bias_back(net, "ffn_up", net->dup);
    linear_back(net, "ffn_up", net->normed, net->dup, net->da, false);
    butler_norm_rows_back(
        net->n, s->n_inner, net->a, weight->data, NORM_EPS,
        &(struct butler_gradients){
            .dy = net->da, .dw = butler_net_grad(net, weight, 0), .dbias = butler_net_grad(net, bias, 0), .dx = net->da});
    butler_self_attention_back(net->blas, net->loops, &attention, net->da, net->dq, net->dk, net->dv);
    rotate_inner(net, true, net->dq);
    rotate_inner(net, true, net->dk);
    linear_back(net, "attn_q", net->z, net->dq, net->dz, false);
    linear_back(net, "attn_k", net->z, net->dk, net->dz, true);
    linear_back(net, "attn_v", net->z, net->dv, net->dz, true);
    linear_back(net, "down", net->input, net->dz, NULL, false);
}

static void predict(struct butler_net *net, int layer, const float *q, const float *k)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const struct butler_predictor_param *query_2 = butler_net_param(net, "query_2.weight");
    const struct butler_predictor_param *key_2 = butler_net_param(net, "key_2.weight");
    const int n_queries = s->n_heads * s->d, n_keys = s->n_key_heads * s->d, at = layer - 1;
    butler_net_queries_forward(net, query_2, at * n_queries);
    butler_net_second_forward(net, &net->key, key_2, at * n_keys, n_keys, net->kp);
    butler_rotate_heads(net->n, s->n_key_heads, s->d, net->cosines, net->sines, false, net->kp);
    butler_net_heads(net, q, k);
    if (!net->grads)
        return;
    butler_rotate_heads(net->n, s->n_key_heads, s->d, net->cosines, net->sines, true, net->dkp);
    butler_net_queries_back(net, query_2, at * n_queries, layer > 1);
    butler_net_second_back(net, &net->key, key_2, at * n_keys, n_keys, net->dkp, layer > 1);
    if (layer == s->n_layers - 1)
        back(net);
}

const struct butler_net_version butler_net_v1 = {request, prepare, input, predict};
