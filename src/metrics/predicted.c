/* Learned scores (TokenButler v1 and v2, arXiv 2503.07518): q.k of the queries that a predictor gave for this layer, and of
 * predicted keys with d channels. predictor.h has the formulas. Version 1 predicts the keys of new tokens; version 2's keys
 * are the cached keys times a learned matrix.
 *
 * A record has 16 tokens in the kernels' layout, once for each predicted key of the KV head (one, or one per query head).
 * Keys have 4 bits per channel and one scale per token; keys=int8 has 8 bits, keys=f16 half precision. */
#include <math.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/kernels.h"
#include "engine/metric.h"
#include "engine/predict.h"

enum { TOKENS = BUTLER_KEYS_TOKENS, QUERIES = 16 /* query heads per call */ };

static const struct butler_param params[] = {
    {"keys", 0, 0, 2, "how predicted keys are kept: int4, int8 or f16"},
    {"page", 1, 1, 1024, "tokens selected together, by the highest score among them; 1: token by token"},
    {"normalise", 1, 0, 1,
     "what makes heads that share a selection comparable: softmax, the logarithms of its probabilities, or zscore, standard "
     "deviations from the head's mean"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {"int4", "int8", "f16"}}, {1, {NULL}}, {1, {"softmax", "zscore"}}};

/* Bits per channel. */
static int bits_of(const double *values)
{
    static const int bits[] = {4, 8, 16};
    return bits[(int)values[0]];
}

/* Stored channels: for 4 bits, a multiple of 8; the padding is 0. */
static int width(int d, int bits)
{
    return bits == 4 ? (d + 7) / 8 * 8 : d;
}

/* Bytes of 16 keys of one head. Keys of 4 or 8 bits have one byte of scale each, before the keys. */
static size_t block_size(int d, int bits)
{
    return TOKENS * (size_t)((bits < 16) + width(d, bits) * bits / 8);
}

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = TOKENS;
    *n_bytes = (size_t)shape->predicted_keys * block_size(shape->predicted_dim, bits_of(values));
}

static void *block_of(const struct butler_head_view *view, int d, int bits, int slot, int key)
{
    return (unsigned char *)butler_view_record(view, slot / TOKENS) + (size_t)key * block_size(d, bits);
}

/* ------------------------------------------------------------------------------------------------ storing */

static uint16_t finite_half(float x)
{
    return butler_float_to_half(BUTLER_MAX(-65504.0f, BUTLER_MIN(x, 65504.0f)));
}

/* Quantises x[n] to integers; `limit` times scale is the largest magnitude. NaN becomes the minimum. Calls no
 * function, because it runs for every key and query of a step. */
static float quantise(int8_t *out, const float *x, int n, float limit, float scale)
{
    const float inverse = scale > 0 ? 1 / scale : 0, whole = 0x1.8p23f; /* adding it rounds a float to an integer */
    for (int i = 0; i < n; i++) {
        const float y = x[i] * inverse, low = y > -limit ? y : -limit, kept = low < limit ? low : limit;
        out[i] = (int8_t)(int)((kept + whole) - whole);
    }
    return scale;
}

static float absmax(const float *x, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++) {
        const float y = fabsf(x[i]);
        max = y > max ? y : max;
    }
    return max;
}

static void store(void *block, int token, const float *key, int d, int bits)
{
    if (bits == 16) {
        for (int i = 0; i < d; i++)
            ((uint16_t *)block)[i * TOKENS + token] = finite_half(key[i]);
        return;
    }
    int8_t numbers[BUTLER_PREDICTOR_MAX_D + 8] = {0};
    const float limit = bits == 8 ? 127 : 7;
    uint8_t *scales = block, *quads = scales + TOKENS + 4 * token;
    scales[token] = to_key_scale(absmax(key, d) / limit);
    quantise(numbers, key, d, limit, key_scale(scales[token]));
    for (int i = 0; i < width(d, bits); i += 32 / bits, quads += TOKENS * 4)
        for (int c = 0; c < 4; c++)
            quads[c] = (uint8_t)(bits == 8 ? numbers[i + c] + 128 : (numbers[i + c] + 8) | (numbers[i + 4 + c] + 8) << 4);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    const struct butler_predict *predict = view->predict;
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    const int d = shape->predicted_dim, keys = shape->predicted_keys, layer = butler_view_layer(view) - 1;
    const size_t stride = (size_t)((s->n_layers - 1) * s->n_key_heads * d);
    const float *from = predict->keys + (size_t)((layer * s->n_key_heads + butler_view_kv_head(view) * keys) * d);
    for (int t = 0; t < n; t++)
        for (int key = 0; key < keys; key++)
            store(block_of(view, d, bits_of(values), first + t, key), (first + t) % TOKENS,
                  from + (size_t)t * stride + (size_t)(key * d), d, bits_of(values));
}

static void append2(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                    int n)
{
    const struct butler_predictor_sizes *s = &view->predict->predictor->sizes;
    const int d = shape->predicted_dim, dim = shape->head_dim;
    const float *projection =
        view->predict->scratch->projections +
        (size_t)((butler_view_layer(view) - 1) * s->n_kv_heads + butler_view_kv_head(view)) * (size_t)(d * dim);
    float keys[TOKENS * BUTLER_MAX_HEAD_DIM], predicted[TOKENS * BUTLER_PREDICTOR_MAX_D];
    for (int done = 0; done < n; done += TOKENS) {
        const int m = BUTLER_MIN(n - done, TOKENS);
        butler_view_keys(view, first + done, m, keys);
        butler_view_kernels(view)->gemm(predicted, (size_t)d, projection, d, keys, (size_t)dim, m, dim);
        for (int t = 0; t < m; t++) {
            const int slot = first + done + t;
            store(block_of(view, d, bits_of(values), slot, 0), slot % TOKENS, predicted + (size_t)(t * d), d, bits_of(values));
        }
    }
}

static void move_one(const struct butler_head_view *view, int from, int to, int d, int bits, int key)
{
    uint8_t *source = block_of(view, d, bits, from, key), *target = block_of(view, d, bits, to, key);
    const int f = from % TOKENS, t = to % TOKENS;
    const size_t item = bits == 16 ? sizeof(uint16_t) : 4; /* bytes of a token in each row of the block */
    const int rows = width(d, bits) * bits / (8 * (int)item);
    if (bits < 16) {
        target[t] = source[f];
        source += TOKENS;
        target += TOKENS;
    }
    for (int i = 0; i < rows; i++)
        memcpy(target + (size_t)(i * TOKENS + t) * item, source + (size_t)(i * TOKENS + f) * item, item);
}

static void move(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int from,
                 int to, int n)
{
    for (int i = 0; i < n; i++)
        for (int key = 0; key < shape->predicted_keys; key++)
            move_one(view, from + i, to + i, shape->predicted_dim, bits_of(values), key);
}

/* ------------------------------------------------------------------------------------------------ scoring */

/* Queries in the kernels' form, width(d) channels each. factor multiplies the scores, so that they have the scale of q.k. */
struct queries {
    int8_t bytes[QUERIES * BUTLER_PREDICTOR_MAX_D];
    float floats[QUERIES * BUTLER_PREDICTOR_MAX_D];
    float factors[QUERIES];
};

static void prepare(struct queries *out, const float *q, int n_q, int d, float factor, int bits)
{
    const int wide = width(d, bits);
    for (int i = 0; i < n_q; i++, q += d)
        if (bits == 16) {
            for (int c = 0; c < d; c++)
                out->floats[i * d + c] = q[c] * factor;
        } else {
            out->factors[i] = factor * quantise(out->bytes + i * wide, q, d, 127, absmax(q, d) / 127);
            for (int c = d; c < wide; c++)
                out->bytes[i * wide + c] = 0;
        }
}

/* n_q queries that share predicted key `key` of a head. */
struct key_scan {
    const struct butler_head_view *view;
    const struct queries *queries;
    int n_q, key, d, bits; /* d channels, of `bits` each */
};

/* Scores n_records whole records from slot on. */
static void scan(const struct key_scan *keys, int slot, int n_records, struct butler_results out)
{
    const struct butler_kernels *kernels = butler_view_kernels(keys->view);
    const struct queries *q = keys->queries;
    const struct butler_records records = {block_of(keys->view, keys->d, keys->bits, slot, keys->key), keys->view->record_bytes,
                                           n_records};
    if (keys->bits == 16)
        kernels->keys16(out.at, out.stride, q->floats, keys->n_q, records.at, records.bytes, n_records, keys->d);
    else
        (keys->bits == 8 ? kernels->keys8 : kernels->keys4)(out, (struct butler_byte_queries){q->bytes, q->factors, keys->n_q},
                                                            records, width(keys->d, keys->bits));
}

/* Scores slots [first, first + n): whole records directly into out, a record that they cover only partly by way of rows of 16. */
static void score_key(const struct key_scan *keys, int first, int n, struct butler_results out)
{
    const int last = first + n;
    for (int slot = first; slot < last;) {
        const int whole = slot % TOKENS ? 0 : (last - slot) / TOKENS, end = BUTLER_MIN((slot / TOKENS + 1) * TOKENS, last);
        float rows[QUERIES * TOKENS];
        if (whole) {
            scan(keys, slot, whole, (struct butler_results){out.at + (slot - first), out.stride});
            slot += whole * TOKENS;
            continue;
        }
        scan(keys, slot, 1, (struct butler_results){rows, TOKENS});
        for (int i = 0; i < keys->n_q; i++)
            memcpy(out.at + (size_t)i * out.stride + (slot - first), rows + i * TOKENS + slot % TOKENS,
                   (size_t)(end - slot) * sizeof *rows);
        slot = end;
    }
}

static const float *queries_of(const struct butler_metric_shape *shape, const struct butler_head_view *view)
{
    return butler_predict_queries(view->predict, butler_view_layer(view)) +
           butler_view_kv_head(view) * shape->group * shape->predicted_dim;
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const int n_q = request->n_q; /* the queries are the predictor's */
    const int d = shape->predicted_dim, shared = shape->predicted_keys > 1 ? 1 : BUTLER_MIN(n_q, QUERIES);
    const float *predicted = queries_of(shape, view);
    const float factor = sqrtf((float)shape->head_dim / (float)d);
    struct queries queries;
    for (int i = 0; i < n_q; i += shared) {
        const int m = BUTLER_MIN(shared, n_q - i);
        prepare(&queries, predicted + i * d, m, d, factor, bits_of(values));
        score_key(&(struct key_scan){view, &queries, m, shape->predicted_keys > 1 ? i : 0, d, bits_of(values)}, request->first,
                  request->n, (struct butler_results){request->out + (size_t)i * request->stride, request->stride});
    }
}

/* The mean over heads of (q_h.k - mean_h) / deviation_h equals, up to a constant that all tokens share, the product of k with
 * the mean of q_h / deviation_h. As deviation of a head we use the length of its query. If keys scatter equally in all
 * directions, the two are equal up to a factor that the heads of a KV head share. */

/* The combined query, the mean over heads of q_h / |q_h|, into out[d]. In double precision: the order of summation must not
 * change how a channel is rounded. */
static void combine(const float *q, int n_q, int d, float *out)
{
    double sum[BUTLER_PREDICTOR_MAX_D] = {0};
    for (int i = 0; i < n_q; i++, q += d) {
        double square = 0;
        for (int c = 0; c < d; c++)
            square += (double)q[c] * (double)q[c];
        if (!(square > 0 && isfinite(square)))
            continue;
        for (int c = 0; c < d; c++)
            sum[c] += (double)q[c] / sqrt(square);
    }
    for (int c = 0; c < d; c++)
        out[c] = (float)(sum[c] / n_q);
}

static void score_mean(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                       const float *q, int n_q, int first, int n, float *out)
{
    (void)q;
    const int d = shape->predicted_dim, bits = bits_of(values);
    float combined[BUTLER_PREDICTOR_MAX_D];
    struct queries queries;
    combine(queries_of(shape, view), n_q, d, combined);
    prepare(&queries, combined, 1, d, 1, bits);
    score_key(&(struct key_scan){view, &queries, 1, 0, d, bits}, first, n, (struct butler_results){out, (size_t)n});
}

const struct butler_metric butler_metric_predicted = {
    .name = "predicted",
    .summary = "q.k as predicted at the first layer",
    .scale = BUTLER_SCORE_LOGIT,
    .params = params,
    .forms = forms,
    .record = record,
    .append = append,
    .score = score,
    .move = move,
    .score_mean = score_mean,
    .predictor = 1,
};

const struct butler_metric butler_metric_predicted2 = {
    .name = "predicted2",
    .summary = "q.k of queries predicted every few layers with projected cached keys",
    .scale = BUTLER_SCORE_LOGIT,
    .reads_keys = true,
    .params = params,
    .forms = forms,
    .record = record,
    .append = append2,
    .score = score,
    .move = move,
    .score_mean = score_mean,
    .predictor = 2,
};
