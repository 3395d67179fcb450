/* Products of prompts' rows by the driver's own library of products (cuBLAS), where it has one.
 *
 * A row must have the same bits however a text is cut into passes and whatever else is in them, and such a library chooses how it
 * sums by the shape of a product. So every product with a matrix has one shape: that of TILE rows, of which the last ones may be
 * zeros, from and to memory that is laid out alike. That equal calls give equal bits is what cuBLAS promises (of one stream); that
 * a row's place in the tile is of no matter is true of how products are computed there, and no promise.
 *
 * Weights are unpacked to floats, some rows of a matrix at a time, and multiplied as TF32: halves would be faster, but activations
 * of some models are above what a half can be. */
#include "gpu/gpu.h"

enum {
    TILE = 256,                 /* rows of x of a product, as many as a pass has */
    WEIGHTS_AT_ONCE = 32 << 20, /* floats */
    UNPACKED = 32 * GPU_THREADS /* weights that a group unpacks */
};

/* Memory of at least n floats, whose contents are undefined; NULL: there is none, which is the device's error then. */
static float *reserve(struct butler_gpu *gpu, enum butler_gpu_tile which, size_t n)
{
    struct butler_backend *backend = &gpu->backend;
    struct butler_gpu_tiles *tile = &gpu->tiles[which];
    if (gpu->fault.code < 0)
        return NULL;
    if (tile->n_floats < n) {
        backend->free(backend, tile->at, tile->n_floats * sizeof *tile->at);
        tile->at = backend->alloc(backend, n * sizeof *tile->at, false, &gpu->fault);
        tile->n_floats = tile->at ? n : 0;
    }
    return tile->at;
}

/* y[n][n_rows] from a tile of x. */
static void multiply(struct butler_gpu *gpu, const struct butler_product *product, float *y, const float *x, int n)
{
    const struct butler_matrix *w = product->w;
    const int most = BUTLER_MIN(BUTLER_MAX(WEIGHTS_AT_ONCE / w->n_cols, 1), w->n_rows);
    float *weights = reserve(gpu, GPU_TILE_W, (size_t)most * (size_t)w->n_cols),
          *out = reserve(gpu, GPU_TILE_Y, (size_t)most * TILE);
    for (int first = 0, m; first < w->n_rows && gpu->fault.code == 0; first += m) {
        m = BUTLER_MIN(most, w->n_rows - first);
        butler_gpu_launch(gpu, GPU_unpack, m, BUTLER_CEIL_DIV(w->n_cols, UNPACKED), 1, weights,
                          (const unsigned char *)w->data + (size_t)first * w->row_bytes, (int)w->type, (int)w->row_bytes,
                          w->n_cols);
        butler_gpu_multiply(gpu, out, weights, x, (const int[]){m, TILE, w->n_cols});
        butler_gpu_launch(gpu, GPU_take_product, n, BUTLER_CEIL_DIV(m, GPU_THREADS), 1, y + first, out,
                          w->bias ? w->bias + first : NULL, w->n_rows, m);
    }
}

void butler_gpu_matmul_prompt(struct butler_backend *backend, const struct butler_product *products, int n_products, const float *x,
                              int n)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    const size_t n_cols = (size_t)products[0].w->n_cols;
    float *tile = reserve(gpu, GPU_TILE_X, TILE * n_cols);
    for (int first = 0, m; first < n && tile; first += m) {
        m = BUTLER_MIN(n - first, TILE);
        backend->copy(backend, tile, x + (size_t)first * n_cols, (size_t)m * n_cols * sizeof *x);
        backend->zero_many(
            backend, &(struct butler_piece){(unsigned char *)(tile + (size_t)m * n_cols), (size_t)(TILE - m) * n_cols * sizeof *x},
            1);
        for (int i = 0; i < n_products; i++)
            multiply(gpu, &products[i], products[i].y + (size_t)first * (size_t)products[i].w->n_rows, tile, m);
    }
}
