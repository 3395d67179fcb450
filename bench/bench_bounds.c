/* How tight upper bounds of skipped attention are on real keys.
 *
 *     bench_bounds MODEL TEXT [--n N] [--budget N] [--steps N]
 *
 * Reads N tokens of the text densely, then decodes. For every query head of every layer behind the first two, a selection of
 * `budget` tokens is made by page bounds (pages of 16, as quest does it) and by one-bit keys (groups of 32, as fier does it).
 * Printed are the share of the exact attention that it skips, and what can be said without reading the skipped keys, as sum of
 * exp(bound) over the skipped tokens beside the sum over the read ones: from the minimum and maximum of each channel of a page;
 * from the norm of the difference between a key and its one-bit key; from the range that the one-bit keys of a group share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "butler.h"
#include "butler_tools.h"

enum { PAGE = 16, GROUP = 32, SINKS = 4, N_BOUNDS = 3, DENSE_LAYERS = 2 };
static const char *const names[N_BOUNDS] = {"page bounds", "one bit, norms", "one bit, ranges"};

struct sums {
    double skipped, bound; /* shares, summed over heads */
    int n, n_tight;        /* heads; those whose bound is at most 0.05 */
};

struct watch {
    int n_layers, n_heads, n_kv_heads, dim, n_ctx, n, budget;
    bool decodes;
    float *keys; /* [n_layers][n_ctx][n_kv_heads][dim] */
    /* Of one head. */
    float *k, *scores, *bit_scores, *page, *own[N_BOUNDS];
    bool *read;
    struct sums sums[N_BOUNDS];
};

static float dot(const float *x, const float *y, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The k-th highest of values[n]. */
static float kth_highest(const float *values, int n, int k, float *scratch)
{
    memcpy(scratch, values, (size_t)n * sizeof *values);
    qsort(scratch, (size_t)n, sizeof *scratch, descending);
    return scratch[BUTLER_MIN(k, n) - 1];
}

/* Adds what reading `read` skips, and what bounds[n] say of it. Scores are divided by the root of dim already. */
static void add(struct watch *watch, struct sums *sums, const float *bounds)
{
    double read = 0, skipped = 0, bound = 0;
    float max = -INFINITY;
    for (int t = 0; t < watch->n; t++)
        max = fmaxf(max, watch->scores[t]);
    for (int t = 0; t < watch->n; t++) {
        const double weight = exp((double)(watch->scores[t] - max));
        read += watch->read[t] ? weight : 0;
        skipped += watch->read[t] ? 0 : weight;
        bound += watch->read[t] ? 0 : exp(fmin((double)(bounds[t] - max), 500));
    }
    sums->skipped += skipped / (read + skipped);
    sums->bound += bound / (read + bound);
    sums->n_tight += bound / (read + bound) <= 0.05;
    sums->n++;
}

/* Minimum and maximum of each channel of tokens [first, end). */
static void channel_bounds(const struct watch *watch, int first, int end, float *min, float *max)
{
    for (int c = 0; c < watch->dim; c++)
        for (int t = first; t < end; t++) {
            const float k = watch->k[(size_t)t * (size_t)watch->dim + (size_t)c];
            min[c] = t == first ? k : fminf(min[c], k);
            max[c] = t == first ? k : fmaxf(max[c], k);
        }
}

static void mark_read(struct watch *watch, const float *scores, float least)
{
    for (int t = 0; t < watch->n; t++)
        watch->read[t] = t < SINKS || t == watch->n - 1 || scores[t] >= least;
}

static void compare_head(struct watch *watch, const float *q)
{
    const int dim = watch->dim, n = watch->n;
    const float scale = 1 / sqrtf((float)dim), norm = sqrtf(dot(q, q, dim));
    float min[BUTLER_MAX_HEAD_DIM], max[BUTLER_MAX_HEAD_DIM], bits[BUTLER_MAX_HEAD_DIM];
    for (int first = 0; first < n; first += PAGE) {
        const int end = BUTLER_MIN(first + PAGE, n);
        float bound = 0;
        channel_bounds(watch, first, end, min, max);
        for (int c = 0; c < dim; c++)
            bound += fmaxf(q[c] * min[c], q[c] * max[c]) * scale;
        for (int t = first; t < end; t++)
            watch->own[0][t] = bound;
    }
    for (int first = 0; first < n; first += GROUP) {
        const int end = BUTLER_MIN(first + GROUP, n);
        channel_bounds(watch, first, end, min, max);
        for (int t = first; t < end; t++) {
            const float *k = watch->k + (size_t)t * (size_t)dim;
            float difference = 0, range = 0;
            for (int c = 0; c < dim; c++) {
                bits[c] = k[c] >= (min[c] + max[c]) / 2 ? max[c] : min[c];
                difference += (k[c] - bits[c]) * (k[c] - bits[c]);
                range += fabsf(q[c]) * (max[c] - min[c]) / 2;
            }
            watch->bit_scores[t] = dot(q, bits, dim) * scale;
            watch->own[1][t] = watch->bit_scores[t] + norm * sqrtf(difference) * scale;
            watch->own[2][t] = watch->bit_scores[t] + range * scale;
        }
    }
    for (int t = 0; t < n; t++)
        watch->scores[t] = dot(q, watch->k + (size_t)t * (size_t)dim, dim) * scale;
    mark_read(watch, watch->own[0], kth_highest(watch->own[0], n, watch->budget, watch->page));
    add(watch, &watch->sums[0], watch->own[0]);
    mark_read(watch, watch->bit_scores, kth_highest(watch->bit_scores, n, watch->budget, watch->page));
    add(watch, &watch->sums[1], watch->own[1]);
    add(watch, &watch->sums[2], watch->own[2]);
}

static void see(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct watch *watch = user;
    const size_t row = (size_t)(watch->n_kv_heads * watch->dim);
    float *keys = watch->keys + (size_t)layer * (size_t)watch->n_ctx * row;
    (void)x, (void)h;
    memcpy(keys + (size_t)first * row, k, (size_t)n * row * sizeof *k);
    watch->n = first + n;
    for (int head = 0; watch->decodes && layer >= DENSE_LAYERS && head < watch->n_heads; head++) {
        const int group = watch->n_heads / watch->n_kv_heads;
        for (int t = 0; head % group == 0 && t < watch->n; t++)
            memcpy(watch->k + (size_t)t * (size_t)watch->dim, keys + (size_t)t * row + (size_t)(head / group * watch->dim),
                   (size_t)watch->dim * sizeof *watch->k);
        compare_head(watch, q + (size_t)head * (size_t)watch->dim);
    }
}

static int run(struct butler_engine *engine, const int32_t *ids, struct watch *watch, int n, int n_steps, struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = watch->n_ctx, .policy = "full"};
    const struct butler_capture capture = {BUTLER_INIT(butler_capture), .layer = see, .user = watch};
    struct butler_session *session = butler_session_new(engine, &params, err);
    int code = session ? butler_session_set_capture(session, &capture, err) : -1;
    if (code == 0)
        code = butler_prefill(session, ids, n, NULL, NULL, err);
    watch->decodes = true;
    for (int i = 0; code == 0 && i < n_steps; i++)
        code = butler_step(session, ids[n + i], err);
    butler_session_free(session);
    return code;
}

static char *read_text(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    *n = 0;
    for (size_t got = 1; file && got > 0; *n += got) {
        text = realloc(text, *n + (1 << 16));
        got = text ? fread(text + *n, 1, 1 << 16, file) : 0;
    }
    if (file)
        fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    struct butler_error err = {0};
    int n = 8192, budget = 1024, n_steps = 4;
    for (int i = 3; i + 1 < argc; i += 2)
        *(strcmp(argv[i], "--n") == 0 ? &n : strcmp(argv[i], "--budget") == 0 ? &budget : &n_steps) = atoi(argv[i + 1]);
    struct butler_model *model = argc >= 3 && n > 0 && budget > 0 && n_steps > 0 ? butler_model_load(argv[1], NULL, &err) : NULL;
    struct butler_engine *engine = model ? butler_engine_new(model, NULL, &err) : NULL;
    if (!engine) {
        fprintf(stderr, "bench_bounds MODEL TEXT [--n N] [--budget N] [--steps N]%s%s\n", *err.message ? ": " : "", err.message);
        return 1;
    }
    const struct butler_model_info *info = butler_model_get_info(model);
    struct watch watch = {.n_layers = info->n_layers,
                          .n_heads = info->n_heads,
                          .n_kv_heads = info->n_kv_heads,
                          .dim = info->head_dim,
                          .n_ctx = n + n_steps,
                          .budget = budget};
    const size_t row = (size_t)(watch.n_kv_heads * watch.dim), n_ctx = (size_t)watch.n_ctx;
    size_t n_text;
    char *text = read_text(argv[2], &n_text);
    int32_t *ids = calloc(n_text + 2, sizeof *ids);
    watch.keys = calloc((size_t)watch.n_layers * n_ctx * row, sizeof *watch.keys);
    watch.k = calloc(n_ctx * (size_t)watch.dim, sizeof *watch.k);
    float *rows = calloc(n_ctx * 6, sizeof *rows);
    watch.read = calloc(n_ctx, sizeof *watch.read);
    if (!text || !ids || !watch.keys || !watch.k || !rows || !watch.read) {
        fprintf(stderr, "bench_bounds: %s: cannot be read, or out of memory\n", argv[2]);
        return 1;
    }
    watch.scores = rows;
    watch.bit_scores = rows + n_ctx;
    watch.page = rows + 2 * n_ctx;
    for (size_t i = 0; i < N_BOUNDS; i++)
        watch.own[i] = rows + (3 + i) * n_ctx;
    const int n_ids = butler_tokenize(model, text, n_text, 0, ids, (int)n_text + 2, &err);
    if (n_ids < watch.n_ctx || run(engine, ids, &watch, n, n_steps, &err) < 0) {
        fprintf(stderr, "bench_bounds: %s\n", *err.message ? err.message : "the text has too few tokens");
        return 1;
    }
    printf("%d tokens, budget %d, %d heads and steps\n", n, budget, watch.sums[0].n);
    for (int i = 0; i < N_BOUNDS; i++)
        printf("%-16s skipped %.3f of the attention; bound %.3f, at most 0.05 in %.1f %% of them\n", names[i],
               watch.sums[i].skipped / watch.sums[i].n, watch.sums[i].bound / watch.sums[i].n,
               100.0 * watch.sums[i].n_tight / watch.sums[i].n);
    free(text);
    free(ids);
    free(watch.keys);
    free(watch.k);
    free(rows);
    free(watch.read);
    butler_engine_free(engine);
    butler_model_free(model);
    return 0;
}
