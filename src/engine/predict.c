/* The predictor's forward pass (predictor.h has its formulas), block by block, on the session's backend. Runs inside the layer
 * loop of forward.c. */
#include "engine/abi.h"
#include "engine/predict.h"
#include "model/centres.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Places in predictor->params: the order of predictor.h. */
enum {
    DOWN,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    NORM,
    NORM_BIAS,
    FFN_UP,
    FFN_UP_BIAS,
    FFN_DOWN,
    FFN_DOWN_BIAS,
    QUERY_1,
    QUERY_2,
    KEY_1,
    KEY_2
};
enum { P_NORM, P_NORM_BIAS, P_QUERY_1, P_QUERY_2, N_PRODUCER };

#define LAYER_NORM_EPS 1e-5f

static int n_producers(const struct butler_predictor_sizes *s)
{
    int first, n = 0;
    while (butler_predictor_serves(s, n, &first) > 0)
        n++;
    return n;
}

static const float *vector(const struct butler_predictor *predictor, int param)
{
    return predictor->params[param].matrix.data;
}

/* ------------------------------------------------------------------------------------------------ making */

static int bind(struct butler_predict_scratch *scratch, struct butler_error *err)
{
    const struct butler_predictor *predictor = scratch->predictor;
    scratch->bound = butler_alloc((size_t)predictor->n_params * sizeof *scratch->bound, err);
    if (!scratch->bound)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < predictor->n_params; i++)
        scratch->bound[i] = predictor->params[i].matrix;
    if (predictor->sizes.version == 1) {
        scratch->bound[FFN_UP].bias = vector(predictor, FFN_UP_BIAS);
        scratch->bound[FFN_DOWN].bias = vector(predictor, FFN_DOWN_BIAS);
    }
    scratch->matrices = scratch->bound;
    return 0;
}

static size_t keys_of_a_token(const struct butler_predictor_sizes *s)
{
    return (size_t)(s->n_layers - 1) * (size_t)s->n_key_heads * (size_t)s->d;
}

static size_t queries_of_a_token(const struct butler_predictor_sizes *s)
{
    return (size_t)s->n_layers * (size_t)s->n_heads * (size_t)s->d;
}

/* Version 2: numbers of each of predict->cosines and sines. */
static size_t rotations_of_a_token(const struct butler_predictor_sizes *s)
{
    return (s->head_freq ? (size_t)((s->n_layers - 1) * s->n_kv_heads) : 1) * (size_t)(s->d / 2);
}

static int make_activations(struct butler_predict_scratch *scratch, struct butler_backend *backend, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &scratch->predictor->sizes;
    struct butler_arena *arena = &scratch->buffers.pieces, *host = &scratch->host;
    const size_t n = (size_t)scratch->max_rows, embd = (size_t)s->n_embd, d = (size_t)s->d;
    if (s->version == 1) {
        const size_t inner = (size_t)s->n_inner, half = BUTLER_MAX(inner / (size_t)s->n_inner_heads, d) / 2;
        butler_arena_want(arena, &scratch->z, n * inner, sizeof(float));
        butler_arena_want(arena, &scratch->q, n * inner, sizeof(float));
        butler_arena_want(arena, &scratch->k, n * inner, sizeof(float));
        butler_arena_want(arena, &scratch->v, n * inner, sizeof(float));
        butler_arena_want(arena, &scratch->up, n * 2 * inner, sizeof(float));
        butler_arena_want(arena, &scratch->out, n * embd, sizeof(float));
        butler_arena_want(arena, &scratch->mid, n * (size_t)s->n_mid, sizeof(float));
        butler_arena_want(arena, &scratch->cosines, n * half, sizeof(float));
        butler_arena_want(arena, &scratch->sines, n * half, sizeof(float));
        butler_arena_want(host, &scratch->freq_inner, inner / (size_t)s->n_inner_heads / 2, sizeof(float));
        butler_arena_want(host, &scratch->freq_head, d / 2, sizeof(float));
        butler_arena_want(host, &scratch->host_cosines, n * half, sizeof(float));
        butler_arena_want(host, &scratch->host_sines, n * half, sizeof(float));
        scratch->n_staging = BUTLER_MAX(n * BUTLER_MAX(keys_of_a_token(s), inner), queries_of_a_token(s));
    } else {
        butler_arena_want(arena, &scratch->out, embd, sizeof(float));
        butler_arena_want(arena, &scratch->mid, (size_t)s->n_mid, sizeof(float));
        butler_arena_want(host, &scratch->host_cosines, rotations_of_a_token(s), sizeof(float));
        butler_arena_want(host, &scratch->host_sines, rotations_of_a_token(s), sizeof(float));
        scratch->n_staging = BUTLER_MAX((size_t)s->head_dim, queries_of_a_token(s));
        butler_arena_want(arena, &scratch->projections, (size_t)(s->n_layers - 1) * (size_t)s->n_kv_heads * d * (size_t)s->head_dim,
                          sizeof(float));
    }
    butler_arena_want(host, &scratch->staging, scratch->n_staging, sizeof(float));
    return butler_arena_make(host, err) < 0 ? BUTLER_ERROR_MEMORY : butler_buffers_make(&scratch->buffers, backend, err);
}

static void widen_projections(struct butler_predict_scratch *scratch, struct butler_backend *backend)
{
    const struct butler_predictor_sizes *s = &scratch->predictor->sizes;
    const struct butler_matrix *matrices = scratch->matrices + N_PRODUCER * n_producers(s);
    float *at = scratch->projections;
    for (int l = 0; l < s->n_layers - 1; l++)
        for (int r = 0; r < matrices[l].n_rows; r++, at += s->head_dim)
            backend->embed(backend, at, &matrices[l], &(const int32_t){r}, 1);
}

static void empty_scratch(struct butler_predict_scratch *scratch)
{
    butler_workspace_free(&scratch->work);
    butler_buffers_free(&scratch->buffers);
    butler_arena_free(&scratch->host);
    free(scratch->bound);
    memset(scratch, 0, sizeof *scratch);
}

void butler_predict_scratch_free(struct butler_predict_scratch *scratch)
{
    if (scratch)
        empty_scratch(scratch);
    free(scratch);
}

/* The engine's scratch for this predictor, with room for passes of its n_block rows and texts of max_slots tokens. */
static struct butler_predict_scratch *scratch_of(struct butler_engine *engine, const struct butler_predictor *predictor,
                                                 const struct butler_metric_shape *shape, int max_slots, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    struct butler_backend *backend = engine->backend;
    struct butler_predict_scratch **place = &engine->predict_scratch[s->version - 1];
    struct butler_predict_scratch *scratch = *place ? *place : (*place = butler_alloc(sizeof **place, err)), larger = {0};
    if (!scratch || (scratch->predictor == predictor && scratch->max_rows == engine->n_block && scratch->max_slots >= max_slots))
        return scratch;
    /* What the workspace is made for: one layer of its own heads, rows of products no wider than these. */
    const struct butler_hparams hp = {.n_layers = 1,
                                      .n_embd = s->n_embd,
                                      .n_ff = BUTLER_MAX(s->n_mid, 2 * s->n_inner),
                                      .n_heads = shape->n_heads,
                                      .n_kv_heads = shape->n_kv_heads,
                                      .head_dim = shape->head_dim};
    max_slots = BUTLER_MAX(max_slots, scratch->max_slots);
    const struct butler_workspace_sizes sizes = {max_slots, engine->n_block, butler_pool_size(backend->pool), true, false};
    larger.predictor = predictor;
    larger.max_rows = engine->n_block;
    larger.max_slots = max_slots;
    if (bind(&larger, err) < 0 || make_activations(&larger, backend, err) < 0 ||
        backend->make_workspace(backend, &larger.work, &hp, &sizes, err) < 0) {
        empty_scratch(&larger);
        return NULL; /* sessions that there are go on with the old one */
    }
    empty_scratch(scratch);
    *scratch = larger;
    if (s->version == 1) {
        butler_predictor_frequencies(s, shape->head_dim, scratch->freq_inner);
        butler_predictor_frequencies(s, s->d, scratch->freq_head);
    } else
        widen_projections(scratch, backend);
    return scratch;
}

struct butler_predict *butler_predict_new(struct butler_engine *engine, int version, enum butler_kv_type kv_type, int n_ctx,
                                          struct butler_error *err)
{
    const struct butler_predictor *predictor = engine->predictors[version - 1];
    const struct butler_predictor_sizes *s = &predictor->sizes;
    struct butler_pages *pages;
    struct butler_predict *predict = butler_alloc(sizeof *predict, err);
    if (!predict)
        return NULL;
    const bool attends = s->version == 1;
    const int heads = attends ? s->n_inner_heads : 1, dim = attends ? s->n_inner / heads : 1, slots = attends ? n_ctx : 1;
    if (butler_kv_row_bytes(kv_type, dim) == 0)
        kv_type = BUTLER_KV_F16;
    predict->predictor = predictor;
    predict->backend = engine->backend;
    predict->shape =
        (struct butler_metric_shape){.n_layers = 1, .n_heads = heads, .n_kv_heads = heads, .head_dim = dim, .group = 1};
    butler_arena_want(&predict->buffers.pieces, &predict->queries, queries_of_a_token(s), sizeof(float));
    if (attends)
        butler_arena_want(&predict->buffers.pieces, &predict->keys, (size_t)engine->n_block * keys_of_a_token(s), sizeof(float));
    else {
        butler_arena_want(&predict->buffers.pieces, &predict->cosines, rotations_of_a_token(s), sizeof(float));
        butler_arena_want(&predict->buffers.pieces, &predict->sines, rotations_of_a_token(s), sizeof(float));
    }
    if (!(predict->scratch = scratch_of(engine, predictor, &predict->shape, slots, err)) ||
        butler_buffers_make(&predict->buffers, engine->backend, err) < 0 ||
        !(pages = butler_engine_pages(engine, kv_type, dim, false, err)) ||
        butler_kv_init(&predict->kv, &predict->shape, pages, kv_type, slots, &predict->policy, err) < 0) {
        butler_predict_free(predict);
        return NULL;
    }
    return predict;
}

void butler_predict_free(struct butler_predict *predict)
{
    if (!predict)
        return;
    butler_kv_free(&predict->kv);
    butler_buffers_free(&predict->buffers);
    free(predict);
}

/* ----------------------------------------------------------------------------------------------- running */

static void multiply(struct butler_predict *predict, struct butler_traffic *traffic, const struct butler_product *products,
                     int n_products, const float *x, int n)
{
    predict->backend->matmul(predict->backend, &predict->scratch->work, products, n_products, x, n);
    for (int i = 0; i < n_products; i++)
        traffic->predict_bytes += products[i].w->row_bytes * (uint64_t)products[i].w->n_rows;
}

static void matmul(struct butler_predict *predict, struct butler_traffic *traffic, float *y, int param, const float *x, int n)
{
    multiply(predict, traffic, &(struct butler_product){y, &predict->scratch->matrices[param]}, 1, x, n);
}

/* out[n][...] = second silu(first x[n][n_embd]) */
static void two_layers(struct butler_predict *predict, struct butler_traffic *traffic, float *out, int first, int second,
                       const float *x, int n)
{
    matmul(predict, traffic, predict->scratch->mid, first, x, n);
    const int n_mid = predict->predictor->sizes.n_mid;
    predict->backend->activate(predict->backend, predict->scratch->mid, (size_t)n_mid, NULL, n, n_mid, BUTLER_SILU);
    matmul(predict, traffic, out, second, predict->scratch->mid, n);
}

/* Row t of some is rotated for position first_position + t * step by freq[t * stride ...][dim / 2]. */
struct frequencies {
    const float *freq;
    int stride, first_position, step;
};

/* Cosines and sines of n rows of `half` pairs. */
static void upload_rotations(struct butler_predict *predict, float *cosines, float *sines, int n, int half,
                             const struct frequencies *f)
{
    float *host_cosines = predict->scratch->host_cosines, *host_sines = predict->scratch->host_sines;
    for (int t = 0; t < n; t++)
        for (int i = 0; i < half; i++) {
            const double angle = (double)(f->first_position + t * f->step) * (double)f->freq[t * f->stride + i];
            host_cosines[t * half + i] = (float)cos(angle);
            host_sines[t * half + i] = (float)sin(angle);
        }
    const size_t bytes = (size_t)n * (size_t)half * sizeof(float);
    const struct butler_upload tables[] = {{cosines, host_cosines, bytes}, {sines, host_sines, bytes}};
    predict->backend->upload_many(predict->backend, tables, BUTLER_COUNT(tables));
}

/* Rotates x[n][heads][dim], for positions from first_position on. */
static void rotate(struct butler_predict *predict, float *x, int n, int heads, int dim, const float *freq, int first_position)
{
    const struct butler_angles angles = {predict->scratch->cosines, predict->scratch->sines, dim, dim, BUTLER_ROPE_HALVES};
    upload_rotations(predict, predict->scratch->cosines, predict->scratch->sines, n, dim / 2,
                     &(struct frequencies){freq, 0, first_position, 1});
    predict->backend->rope(predict->backend, &(struct butler_rotation){x, heads}, 1, &angles, n);
}

/* Queries x[n_layers][n_heads][d] of the layers from `first` on, of the token at a position. */
static void rotate_queries(struct butler_predict *predict, float *x, int first, int n_layers, int position)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    const int half = s->d / 2, n_known = (int)rotations_of_a_token(s) / half;
    int n_sets;
    const float *freq = butler_predictor_layer_freq(predict->predictor, 1, &n_sets);
    if (predict->rotated != position + 1)
        upload_rotations(predict, predict->cosines, predict->sines, n_known, half, &(struct frequencies){freq, half, position, 0});
    predict->rotated = position + 1;
    const int rows = s->head_freq ? n_layers * n_sets : 1, at = s->head_freq ? (first - 1) * n_sets * half : 0;
    const struct butler_angles angles = {predict->cosines + at, predict->sines + at, s->d, s->d, BUTLER_ROPE_HALVES};
    predict->backend->rope(predict->backend, &(struct butler_rotation){x, n_layers * s->n_heads / rows}, 1, &angles, rows);
}

/* The one layer of version 1, as the backend's operations take it. */
static struct butler_layer_state own_layer(struct butler_predict *predict, struct butler_traffic *traffic, int first_position)
{
    return (struct butler_layer_state){.plan = &predict->policy.plan,
                                       .shape = &predict->shape,
                                       .kv = &predict->kv,
                                       .work = &predict->scratch->work,
                                       .traffic = traffic,
                                       .n_heads = predict->shape.n_heads,
                                       .position = first_position,
                                       .summarise_from = INT32_MAX};
}

/* The newest n tokens' q, k, v -> z: causal attention over the window before each. */
static int attend(struct butler_predict *predict, struct butler_traffic *traffic, int n, int first_position, bool decode,
                  struct butler_error *err)
{
    struct butler_backend *backend = predict->backend;
    const int window = butler_predictor_window(&predict->predictor->sizes);
    struct butler_traffic own = {0};
    struct butler_layer_state state = own_layer(predict, &own, first_position);
    if (butler_kv_grow(&predict->kv, 0, n, err) < 0)
        return BUTLER_ERROR_LENGTH;
    if (decode) {
        backend->attend(backend, &state,
                        &(struct butler_attend_token){.q = predict->scratch->q,
                                                      .k = predict->scratch->k,
                                                      .v = predict->scratch->v,
                                                      .newest = BUTLER_MIN(predict->kv.heads[0].n_slots, window),
                                                      .out = predict->scratch->z});
    } else {
        backend->append(backend, &state, predict->scratch->k, predict->scratch->v, n);
        backend->attend_block(backend, &state, predict->scratch->q, predict->scratch->z, n, window, INT32_MAX);
    }
    traffic->metric_bytes += own.kv_bytes;
    return 0;
}

static int run_first(struct butler_predict *predict, struct butler_traffic *traffic, const struct butler_predict_block *block,
                     struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    struct butler_backend *backend = predict->backend;
    const struct butler_vector norm = {vector(predict->predictor, NORM), vector(predict->predictor, NORM_BIAS), 1};
    const size_t embd = (size_t)s->n_embd;
    const int layers = s->n_layers - 1, dim = s->n_inner / s->n_inner_heads, n = block->n, first_position = block->first_position;
    matmul(predict, traffic, predict->scratch->z, DOWN, block->input, n);
    const struct butler_matrix *w = predict->scratch->matrices;
    const struct butler_product products[] = {
        {predict->scratch->q, &w[ATTN_Q]}, {predict->scratch->k, &w[ATTN_K]}, {predict->scratch->v, &w[ATTN_V]}};
    multiply(predict, traffic, products, BUTLER_COUNT(products), predict->scratch->z, n);
    rotate(predict, predict->scratch->q, n, s->n_inner_heads, dim, predict->scratch->freq_inner, first_position);
    rotate(predict, predict->scratch->k, n, s->n_inner_heads, dim, predict->scratch->freq_inner, first_position);
    if (attend(predict, traffic, n, first_position, block->decode, err) < 0)
        return BUTLER_ERROR_LENGTH;
    backend->norm(backend, predict->scratch->z, predict->scratch->z, &norm, n, s->n_inner, BUTLER_NORM_LAYER, LAYER_NORM_EPS);
    matmul(predict, traffic, predict->scratch->up, FFN_UP, predict->scratch->z, n);
    backend->activate(backend, predict->scratch->up, 2 * (size_t)s->n_inner, NULL, n, 2 * s->n_inner, BUTLER_GELU);
    matmul(predict, traffic, predict->scratch->out, FFN_DOWN, predict->scratch->up, n);
    backend->add(backend, predict->scratch->out, block->input, (size_t)n * embd);

    two_layers(predict, traffic, predict->keys, KEY_1, KEY_2, predict->scratch->out, n);
    rotate(predict, predict->keys, n, layers * s->n_key_heads, s->d, predict->scratch->freq_head, first_position);
    if (n < predict->n_new) /* those of a prompt's block are in the records: what they took is given back */
        backend->discard(backend, predict->keys + (size_t)n * keys_of_a_token(s),
                         (size_t)(predict->n_new - n) * keys_of_a_token(s) * sizeof *predict->keys);
    predict->n_new = n;
    if (block->queries) {
        float *out = predict->queries + (size_t)(s->n_heads * s->d);
        two_layers(predict, traffic, out, QUERY_1, QUERY_2, predict->scratch->out + (size_t)(n - 1) * embd, 1);
        rotate(predict, out, 1, layers * s->n_heads, s->d, predict->scratch->freq_head, first_position + n - 1);
        predict->known_first = 1;
        predict->known_end = s->n_layers;
    }
    return 0;
}

static void run_producer(struct butler_predict *predict, struct butler_traffic *traffic, int producer,
                         const struct butler_predict_block *block)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    const int at = N_PRODUCER * producer;
    const struct butler_vector norm = {vector(predict->predictor, at + P_NORM), vector(predict->predictor, at + P_NORM_BIAS), 1};
    int first;
    const int n_served = butler_predictor_serves(s, producer, &first);
    predict->backend->norm(predict->backend, predict->scratch->out, block->input + (size_t)(block->n - 1) * (size_t)s->n_embd,
                           &norm, 1, s->n_embd, BUTLER_NORM_LAYER, LAYER_NORM_EPS);
    float *out = predict->queries + (size_t)first * (size_t)(s->n_heads * s->d);
    two_layers(predict, traffic, out, at + P_QUERY_1, at + P_QUERY_2, predict->scratch->out, 1);
    if (butler_predictor_rotates(s))
        rotate_queries(predict, out, first, n_served, block->first_position + block->n - 1);
    predict->known_first = first;
    predict->known_end = first + n_served;
}

int butler_predict_serves(const struct butler_predict *predict, int layer, int *first)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    if (s->version == 1)
        return layer == 0 ? butler_predictor_serves(s, 0, first) : 0;
    return layer % s->stride == 0 ? butler_predictor_serves(s, layer / s->stride, first) : 0;
}

int butler_predict_run(struct butler_predict *predict, struct butler_traffic *traffic, int layer,
                       const struct butler_predict_block *block, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    if (s->version == 1)
        return run_first(predict, traffic, block, err);
    if (block->queries)
        run_producer(predict, traffic, layer / s->stride, block);
    return 0;
}

static void fill(struct butler_predict *predict, float *to, size_t n, float (*noise)(uint64_t *random), uint64_t *random)
{
    for (size_t i = 0; i < n; i++)
        predict->scratch->staging[i] = noise(random);
    predict->backend->upload(predict->backend, to, predict->scratch->staging, n * sizeof *to);
}

int butler_predict_fill(struct butler_predict *predict, int n, int first_position, float (*noise)(uint64_t *random),
                        uint64_t *random, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    struct butler_traffic own = {0};
    struct butler_layer_state state = own_layer(predict, &own, first_position);
    fill(predict, predict->queries, (size_t)(s->n_layers * s->n_heads * s->d), noise, random);
    if (s->version == 2)
        return 0;
    fill(predict, predict->keys, (size_t)n * (size_t)((s->n_layers - 1) * s->n_key_heads * s->d), noise, random);
    fill(predict, predict->scratch->k, (size_t)n * (size_t)s->n_inner, noise, random);
    fill(predict, predict->scratch->v, (size_t)n * (size_t)s->n_inner, noise, random);
    predict->n_new = n;
    if (butler_kv_grow(&predict->kv, 0, n, err) < 0)
        return BUTLER_ERROR_LENGTH;
    predict->backend->append(predict->backend, &state, predict->scratch->k, predict->scratch->v, n);
    return 0;
}

/* ------------------------------------------------------------------------------------- an engine's predictors */

int butler_predictor_bind(struct butler_engine *engine, const struct butler_predictor *predictor, struct butler_error *err)
{
    struct butler_weights *weights = butler_alloc((size_t)predictor->n_params * sizeof *weights, err);
    if (!weights)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < predictor->n_params; i++) {
        const struct butler_matrix *matrix = &predictor->params[i].matrix;
        weights[i] = (struct butler_weights){matrix->data, (size_t)matrix->n_rows * matrix->row_bytes, matrix->type};
    }
    const int code = engine->backend->bind_weights(engine->backend, weights, predictor->n_params, err);
    free(weights);
    return code;
}

/* Whether the file says that it has query centres; negative where it is no GGUF file. */
static int has_centres(const char *path, struct butler_error *err)
{
    const char *architecture = "";
    struct butler_gguf *gguf = butler_gguf_open(path, err);
    if (!gguf)
        return err->code;
    const int code = butler_gguf_string(gguf, "general.architecture", false, &architecture, err);
    const bool found = strcmp(architecture, BUTLER_CENTRES_ARCHITECTURE) == 0;
    butler_gguf_free(gguf);
    return code < 0 ? code : found;
}

static int attach_centres(struct butler_engine *engine, const char *path, struct butler_error *err)
{
    if (engine->centres)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: the model has query centres already, %s", path, engine->centres->path);
    engine->centres = butler_centres_load(path, engine->model, err);
    return engine->centres ? 0 : err->code;
}

int butler_predictor_attach(struct butler_engine *engine, const char *path, struct butler_error *err)
{
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(path, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_error own, *e = err ? err : &own;
    int code = has_centres(path, e);
    if (code != 0)
        return code < 0 ? code : attach_centres(engine, path, e);
    struct butler_predictor *predictor = butler_predictor_load(path, engine->model, false, e);
    if (!predictor)
        return e->code;
    struct butler_predictor **place = &engine->predictors[predictor->sizes.version - 1];
    if (*place) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: the model has a predictor of version %d already, %s", path,
                    predictor->sizes.version, butler_gguf_path((*place)->gguf));
        butler_predictor_free(predictor);
        return BUTLER_ERROR_ARGUMENT;
    }
    if (butler_predictor_bind(engine, predictor, e) < 0) {
        butler_predictor_free(predictor);
        return e->code;
    }
    *place = predictor;
    return 0;
}

bool butler_predictor_describe(const struct butler_engine *engine, int version, struct butler_predictor_info *info)
{
    const struct butler_predictor *predictor = engine && (version == 1 || version == 2) ? engine->predictors[version - 1] : NULL;
    if (!predictor || !info)
        return false;
    const struct butler_predictor_info own = {
        .path = butler_gguf_path(predictor->gguf),
        .version = version,
        .d = predictor->sizes.d,
        .n_params = predictor->n_weights,
        .bytes = predictor->run_bytes,
        .step_bytes = butler_predictor_step_bytes(predictor),
        .share = (double)predictor->n_weights / (double)engine->model->info.n_params,
        .n_tokens = predictor->training.n_tokens,
        .n_steps = predictor->training.n_steps,
        .loss = predictor->training.loss,
        .text = predictor->training.text,
        .fingerprint = predictor->fingerprint,
    };
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_predictor_info, fingerprint));
    return true;
}
