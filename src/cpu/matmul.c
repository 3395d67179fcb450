/* Products of activations with weight matrices, in three ways: a few tokens meet the quantised rows as they stream by; a
 * block of tokens meets rows widened to floats, a panel at a time; and where there is a matrix unit, blocks of both are
 * packed for it. Matrices that meet the same activations pass together: what these become for the product they become once, and
 * threads meet once. Tasks are rows of a matrix, and the order in which an output is summed depends on none of this. */
#include <string.h>

#include "cpu/matmul.h"

enum {
    GEMV_ROWS = 32,           /* fewest rows of a matrix one task multiplies in decode, */
    GEMV_MOST = 128,          /* and most; of short rows as many as */
    GEMV_BYTES = 256 << 10,   /* hold: a task begins streams that the prefetchers have to find again, and ends them */
    PANEL_FLOATS = 128 << 10, /* of a panel: half a megabyte, to stay in a thread's cache */
    PANEL_ROWS = 64,          /* most rows of a panel, so that every thread has its share */
    TILE_ROWS = 256,          /* rows a task multiplies in the matrix unit: x is read once for so many */
    TILE_COLUMNS = 256,       /* columns at a time, with scales of their own: what 32 tokens have stays in the nearest cache */
    PAGE = 4096,
    LINES = 16, /* rows that are widened and packed together */
};

struct matmul_job {
    const struct butler_kernels *kernels;
    struct butler_product products[BUTLER_MOST_PRODUCTS];
    int n_products, n_cols, rows_per_task;
    struct butler_workspace *work;
    const float *x;
    const unsigned char *fixed; /* x as products of integers take it, or NULL */
    int n;
};

static int n_rows_of(const struct matmul_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_products; i++)
        n += job->products[i].w->n_rows;
    return n;
}

static int n_tasks_of(const struct matmul_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_products; i++)
        n += BUTLER_CEIL_DIV(job->products[i].w->n_rows, job->rows_per_task);
    return n;
}

/* Rows [first, first + n_rows) of a matrix. */
struct matmul_part {
    const struct butler_matrix *w;
    float *y; /* what its whole product goes to: of row `first` of token t to y[t * w->n_rows + first] */
    const unsigned char *rows;
    int first, n_rows;
};

static struct matmul_part part_of(const struct matmul_job *job, int task)
{
    const struct butler_product *product = job->products;
    for (int n; task >= (n = BUTLER_CEIL_DIV(product->w->n_rows, job->rows_per_task)); task -= n)
        product++;
    const struct butler_matrix *w = product->w;
    const int first = task * job->rows_per_task;
    return (struct matmul_part){w, product->y, (const unsigned char *)w->data + (size_t)first * w->row_bytes, first,
                                BUTLER_MIN(job->rows_per_task, w->n_rows - first)};
}

/* Where token t's results go. */
static float *result_of(const struct matmul_part *part, int t)
{
    return part->y + (size_t)t * (size_t)part->w->n_rows + part->first;
}

/* The next n rows of x. */
static void next_tokens(struct matmul_job *job, int n)
{
    job->x += (size_t)n * (size_t)job->n_cols;
    for (int i = 0; i < job->n_products; i++)
        job->products[i].y += (size_t)n * (size_t)job->products[i].w->n_rows;
}

static unsigned char *next_page(void *p)
{
    return (unsigned char *)(((uintptr_t)p + PAGE - 1) / PAGE * PAGE);
}

static void add_bias(const struct matmul_job *job, const struct matmul_part *part)
{
    if (part->w->bias)
        for (int t = 0; t < job->n; t++)
            job->kernels->add(result_of(part, t), part->w->bias + part->first, part->n_rows);
}

static void gemv_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const struct matmul_part part = part_of(job, task);
    const struct butler_matrix *w = part.w;
    (void)thread;
    for (int t = 0; t < job->n; t++) {
        float *y = result_of(&part, t);
        if (job->fixed)
            job->kernels->gemv_fixed[w->type](y, part.rows, w->row_bytes, part.n_rows,
                                              job->fixed + (size_t)t * butler_fixed_x_bytes(w->n_cols), w->n_cols);
        else
            job->kernels->gemv[w->type](y, part.rows, w->row_bytes, part.n_rows, job->x + (size_t)t * (size_t)w->n_cols, w->n_cols);
    }
    add_bias(job, &part);
}

/* Two tasks a thread, where there are enough rows, and more where these would be long: one that is late costs the others a part. */
static int gemv_rows(int n_rows, size_t row_bytes, int n_threads)
{
    const int share = BUTLER_CEIL_DIV(n_rows, 2 * n_threads * GEMV_ROWS) * GEMV_ROWS;
    return BUTLER_MIN(share, BUTLER_MAX(GEMV_MOST, (int)(GEMV_BYTES / row_bytes) / GEMV_ROWS * GEMV_ROWS));
}

static void gemv_matmul(struct butler_pool *pool, struct matmul_job job)
{
    const int n = job.n, n_cols = job.n_cols, n_tasks = n_tasks_of(&job);
    const enum butler_type type = job.products[0].w->type;
    const size_t size = butler_fixed_x_bytes(n_cols);
    unsigned char *fixed = next_page(job.work->packed);
    if (!job.kernels->fixed || !job.kernels->gemv_fixed[type]) {
        butler_pool_run_shares(pool, gemv_task, &job, n_tasks);
        return;
    }
    job.fixed = fixed;
    const int most = (int)((job.work->packed_bytes - PAGE) / size); /* at least 8: packed has room for 16 tokens in half the size */
    for (int done = 0; done < n; done += job.n) {
        job.n = BUTLER_MIN(most, n - done);
        for (int t = 0; t < job.n; t++)
            job.kernels->fix(fixed + (size_t)t * size, type, job.x + (size_t)t * (size_t)n_cols, n_cols);
        butler_pool_run_shares(pool, gemv_task, &job, n_tasks);
        next_tokens(&job, job.n);
    }
}

static int panel_rows(int n_cols)
{
    return BUTLER_MAX(BUTLER_MIN(PANEL_FLOATS / n_cols, PANEL_ROWS), 1);
}

static void gemm_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const struct matmul_part part = part_of(job, task);
    const struct butler_matrix *w = part.w;
    float *panel = job->work->panel + (size_t)thread * job->work->panel_floats;
    if (job->fixed) {
        unsigned char *turned = next_page(panel);
        job->kernels->turn_rows[w->type](turned, part.rows, w->row_bytes, part.n_rows, w->n_cols);
        job->kernels->gemm_fixed(result_of(&part, 0), (size_t)w->n_rows, w->type, turned, part.n_rows, job->fixed, job->n,
                                 w->n_cols);
        add_bias(job, &part);
        return;
    }
    for (int r = 0; r < part.n_rows; r++)
        job->kernels->dequant[w->type](panel + (size_t)r * (size_t)w->n_cols, part.rows + (size_t)r * w->row_bytes, w->n_cols);
    job->kernels->gemm(result_of(&part, 0), (size_t)w->n_rows, panel, part.n_rows, job->x, (size_t)w->n_cols, job->n, w->n_cols);
    add_bias(job, &part);
}

static void fix_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const int first = task * LINES;
    (void)thread;
    job->kernels->fix_tokens((unsigned char *)job->fixed + (size_t)first * butler_fixed_token_bytes(job->n_cols),
                             job->x + (size_t)first * (size_t)job->n_cols, (size_t)job->n_cols, BUTLER_MIN(LINES, job->n - first),
                             job->n_cols);
}

static void gemm_matmul(struct butler_pool *pool, struct matmul_job job)
{
    const int n = job.n, most = (int)((job.work->packed_bytes - PAGE) / butler_fixed_token_bytes(job.n_cols));
    if (!job.kernels->turn_rows[job.products[0].w->type]) {
        butler_pool_run(pool, gemm_task, &job, n_tasks_of(&job));
        return;
    }
    job.fixed = next_page(job.work->packed);
    const int together = job.kernels->turned_rows;
    job.rows_per_task = BUTLER_MAX(job.rows_per_task / together * together, together);
    for (int done = 0; done < n; done += job.n) {
        job.n = BUTLER_MIN(most, n - done);
        butler_pool_run(pool, fix_task, &job, BUTLER_CEIL_DIV(job.n, LINES));
        butler_pool_run(pool, gemm_task, &job, n_tasks_of(&job));
        next_tokens(&job, job.n);
    }
}

/* ------------------------------------------------------------------------------------------- the matrix unit */

/* Tokens packed for the matrix unit; of as much use where there is none: gemv_matmul. */
static size_t tile_bytes(int n, int n_cols)
{
    const size_t n_lines = BUTLER_CEIL_DIV((size_t)n, LINES) * LINES;
    return BUTLER_CEIL_DIV((size_t)n_cols, TILE_COLUMNS) * (butler_fixed_bytes(n, TILE_COLUMNS) + n_lines * sizeof(float)) + PAGE;
}

size_t butler_matmul_packed_bytes(const struct butler_kernels *kernels, int n, int n_cols)
{
    const size_t fixed = kernels->fix_tokens ? (size_t)n * butler_fixed_token_bytes(n_cols) + PAGE : 0;
    return BUTLER_MAX(tile_bytes(n, n_cols), fixed);
}

/* Where the tokens' part of a chunk of columns lies: chunk by chunk, as the products read them; then all scales. */
static unsigned char *packed_chunk(const struct matmul_job *job, int column)
{
    return next_page(job->work->packed) + (size_t)(column / TILE_COLUMNS) * butler_fixed_bytes(job->n, TILE_COLUMNS);
}

static float *chunk_scales(const struct matmul_job *job, int column)
{
    const int n_chunks = BUTLER_CEIL_DIV(job->n_cols, TILE_COLUMNS), n_lines = BUTLER_CEIL_DIV(job->n, LINES) * LINES;
    return (float *)packed_chunk(job, n_chunks * TILE_COLUMNS) + (size_t)(column / TILE_COLUMNS) * (size_t)n_lines;
}

static void pack_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const int column = task * TILE_COLUMNS, n_cols = job->n_cols;
    (void)thread;
    job->kernels->pack_fixed_rows(packed_chunk(job, column), chunk_scales(job, column), job->x + column, (size_t)n_cols, job->n,
                                  BUTLER_MIN(TILE_COLUMNS, n_cols - column));
}

/* What a task works with: weights packed and not yet, their scales, sums. */
struct tile_scratch {
    unsigned char packed[TILE_ROWS * TILE_COLUMNS * 2];
    float scales[TILE_ROWS], lines[LINES * TILE_COLUMNS], sums[BUTLER_PACKED_TOKENS * TILE_ROWS];
};

size_t butler_matmul_panel_floats(const struct butler_kernels *kernels, int n_cols)
{
    size_t bytes = sizeof(float) * (size_t)BUTLER_MAX((int)PANEL_FLOATS, n_cols);
    if (kernels->fix_tokens)
        bytes = BUTLER_MAX(bytes, butler_turned_bytes(BUTLER_TURNED_ROWS, n_cols) + PAGE);
    if (kernels->tiles)
        bytes = BUTLER_MAX(bytes, sizeof(struct tile_scratch) + PAGE);
    return BUTLER_CEIL_DIV(bytes, sizeof(float));
}

/* Columns [column, column + n) of a task's rows. */
static void pack_weights(const struct matmul_job *job, struct tile_scratch *scratch, const struct matmul_part *part, int column,
                         int n)
{
    const struct butler_matrix *w = part->w;
    const unsigned char *rows = part->rows + butler_row_bytes(w->type, column);
    if (job->kernels->pack_fixed_blocks[w->type]) {
        job->kernels->pack_fixed_blocks[w->type](scratch->packed, scratch->scales, rows, w->row_bytes, part->n_rows, n);
        return;
    }
    for (int r = 0; r < part->n_rows; r += LINES) {
        const int count = BUTLER_MIN(LINES, part->n_rows - r);
        for (int i = 0; i < count; i++)
            job->kernels->dequant[w->type](scratch->lines + i * TILE_COLUMNS, rows + (size_t)(r + i) * w->row_bytes, n);
        job->kernels->pack_fixed_columns(scratch->packed + butler_fixed_bytes(r, n), scratch->scales + r, scratch->lines,
                                         TILE_COLUMNS, count, n);
    }
}

static void tile_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const struct matmul_part part = part_of(job, task);
    const int m = BUTLER_CEIL_DIV(job->n, LINES) * LINES, n = BUTLER_CEIL_DIV(part.n_rows, LINES) * LINES;
    struct tile_scratch *scratch = (void *)next_page(job->work->panel + (size_t)thread * job->work->panel_floats);
    for (int column = 0; column < job->n_cols; column += TILE_COLUMNS) {
        const int k = BUTLER_MIN(TILE_COLUMNS, job->n_cols - column);
        pack_weights(job, scratch, &part, column, k);
        job->kernels->multiply_fixed(scratch->sums, TILE_ROWS, packed_chunk(job, column), chunk_scales(job, column),
                                     scratch->packed, scratch->scales, m, n, k, column > 0);
    }
    for (int t = 0; t < job->n; t++)
        memcpy(result_of(&part, t), scratch->sums + (size_t)t * TILE_ROWS, (size_t)part.n_rows * sizeof *scratch->sums);
    add_bias(job, &part);
}

static void tile_matmul(struct butler_pool *pool, struct matmul_job job)
{
    const int n = job.n, share = BUTLER_CEIL_DIV(n_rows_of(&job), 2 * butler_pool_size(pool) * LINES) * LINES;
    job.rows_per_task = BUTLER_MIN(share, TILE_ROWS);
    for (int done = 0; done < n; done += job.n) {
        job.n = BUTLER_MIN(BUTLER_PACKED_TOKENS, n - done);
        butler_pool_run(pool, pack_task, &job, BUTLER_CEIL_DIV(job.n_cols, TILE_COLUMNS));
        butler_pool_run(pool, tile_task, &job, n_tasks_of(&job));
        next_tokens(&job, job.n);
    }
}

/* Of matrices of one type, which take activations in one form. */
static void one_type(struct butler_backend *backend, struct matmul_job job, bool decode)
{
    const enum butler_type type = job.products[0].w->type;
    job.rows_per_task =
        decode ? gemv_rows(n_rows_of(&job), job.products[0].w->row_bytes, butler_pool_size(backend->pool)) : panel_rows(job.n_cols);
    /* What F32 weights are kept for is lost in parts of 16 bits; rounded weights lose nothing to speak of. */
    if (decode)
        gemv_matmul(backend->pool, job);
    else if (backend->kernels->tiles && type != BUTLER_F32 &&
             tile_bytes(BUTLER_MIN(job.n, BUTLER_PACKED_TOKENS), job.n_cols) <= job.work->packed_bytes)
        tile_matmul(backend->pool, job);
    else
        gemm_matmul(backend->pool, job);
}

void butler_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n, bool decode)
{
    for (int i = 0; i < n_products;) {
        struct matmul_job job = {.kernels = backend->kernels, .work = work, .n_cols = products[i].w->n_cols, .x = x, .n = n};
        do
            job.products[job.n_products++] = products[i++];
        while (i < n_products && products[i].w->type == job.products[0].w->type);
        one_type(backend, job, decode);
    }
}
