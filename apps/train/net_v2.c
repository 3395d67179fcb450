/* TokenButler v2 (arXiv 2503.07518 v2) in training: a producer every few layers predicts the queries of the layers after it; keys
 * are the model's own, projected by a small matrix per KV head. After a producer's last layer its gradient is computed, and the
 * next producer uses its scratch again. Formulas: predictor.h. */
#include "net.h"

#define NORM_EPS 1e-5f

static void request(struct butler_net *net)
{
    (void)net;
}

static void prepare(struct butler_net *net)
{
    (void)net;
}

static void input(struct butler_net *net, int b, const float *h)
{
    const int n_embd = net->predictor->sizes.n_embd;
    butler_net_gather(net, h, n_embd, n_embd, net->input);
    butler_norm_rows(net->n_queries, n_embd, net->input, butler_net_param(net, "producer.%d.norm.weight", b)->data,
                     butler_net_param(net, "producer.%d.norm.bias", b)->data, NORM_EPS, net->wide);
    butler_net_mid_forward(net, &net->query, butler_net_param(net, "producer.%d.query_1.weight", b), net->wide);
}

static void back(struct butler_net *net, int b)
{
    const struct butler_predictor_param *weight = butler_net_param(net, "producer.%d.norm.weight", b);
    const struct butler_predictor_param *bias = butler_net_param(net, "producer.%d.norm.bias", b);
    butler_net_mid_back(net, &net->query, butler_net_param(net, "producer.%d.query_1.weight", b), net->wide, net->dwide, false);
    butler_norm_rows_back(net->n_queries, net->predictor->sizes.n_embd, net->input, weight->data, NORM_EPS,
                          &(struct butler_gradients){
                              .dy = net->dwide, .dw = butler_net_grad(net, weight, 0), .dbias = butler_net_grad(net, bias, 0)});
}

static void predict(struct butler_net *net, int layer, const float *q, const float *k)
{
    const struct butler_predictor_sizes *s = &net->predictor->sizes;
    const int b = (layer - 1) / s->stride, n_queries = s->n_heads * s->d, dim = s->head_dim;
    const int key_row = s->n_kv_heads * s->d, cache_row = s->n_kv_heads * dim;
    const struct butler_predictor_param *query_2 = butler_net_param(net, "producer.%d.query_2.weight", b);
    const struct butler_predictor_param *key = butler_net_param(net, "key.%d.weight", layer);
    int first;
    const int n_served = butler_predictor_serves(s, b, &first), row = (layer - first) * n_queries;
    if (net->at_cosines) {
        int n_sets;
        const float *freq = butler_predictor_layer_freq(net->predictor, layer, &n_sets);
        butler_net_turn(net, freq, n_sets);
    }
    butler_net_queries_forward(net, query_2, row);
    for (int g = 0; g < s->n_kv_heads; g++)
        butler_blas_nt(net->blas, &(struct butler_gemm){net->n, s->d, dim, 1, k + g * dim, cache_row,
                                                        key->data + (size_t)(g * s->d) * (size_t)dim, dim, false,
                                                        net->kp + g * s->d, key_row});
    butler_net_heads(net, q, k);
    if (!net->grads)
        return;
    for (int g = 0; g < s->n_kv_heads; g++)
        butler_blas_tn(net->blas, &(struct butler_gemm){s->d, dim, net->n, 1, net->dkp + g * s->d, key_row, k + g * dim, cache_row,
                                                        true, butler_net_grad(net, key, g * s->d), dim});
    butler_net_queries_back(net, query_2, row, layer > first);
    if (layer == first + n_served - 1)
        back(net, b);
}

const struct butler_net_version butler_net_v2 = {request, prepare, input, predict};
