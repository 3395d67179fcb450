/* Products of activations with weight matrices. Quantised rows are multiplied with activations quantised to 16-bit integers, for
 * any number of tokens. Float rows are multiplied with float activations: up to GEMV_TOKENS tokens one after the other, more by a
 * panel of rows widened to float32. Matrices with the same input run in one job, so that its activations are quantised once and
 * threads synchronise once. A task has some rows of a matrix. The order in which an output is summed depends on neither tasks,
 * threads nor the number of tokens (kernels.h). */
#include "cpu/matmul.h"

enum {
    GEMV_ROWS = 32,           /* minimum number of rows per task */
    GEMV_MOST = 128,          /* maximum; but of short rows as many as fit into */
    GEMV_BYTES = 256 << 10,   /* so many bytes: hardware prefetchers start anew with every task */
    PANEL_FLOATS = 128 << 10, /* of a panel: half a megabyte, which fits into a core's cache */
    PANEL_ROWS = 64,          /* maximum number of rows of a panel, so that all threads get work */
    GEMV_TOKENS = 4,          /* for more tokens, float rows are widened to a panel */
    QUANTISED_TOKENS = 8,     /* tokens per task of quantising */
    UNPACK_TOKENS = 9,        /* for so many tokens, rows are unpacked for 8-bit activations; */
    UNPACK_TOKENS_LOW = 17,   /* for so many where matmul_low has the type */
    UNPACK_ROWS = 64,         /* maximum number of rows at a time */
    MIN_TOKENS = 16,          /* the buffer of quantised activations holds at least so many tokens */
    PAGE = 4096,
};

struct matmul_job {
    const struct butler_kernels *kernels;
    struct butler_product products[BUTLER_MAX_PRODUCTS];
    int n_products, n_cols, rows_per_task;
    struct butler_workspace *work;
    const float *x;
    const unsigned char *q16; /* x in integers, or NULL */
    float most;               /* their greatest magnitude */
    int n;
    bool low; /* matmul_low */
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
    if (job->q16)
        (job->low ? job->kernels->matmul_low : job->kernels->matmul_q16)[w->type](
            result_of(&part, 0), (size_t)w->n_rows, part.rows, w->row_bytes, part.n_rows, job->q16, job->n, w->n_cols);
    else
        for (int t = 0; t < job->n; t++)
            job->kernels->gemv[w->type](result_of(&part, t), part.rows, w->row_bytes, part.n_rows,
                                        job->x + (size_t)t * (size_t)w->n_cols, w->n_cols);
    add_bias(job, &part);
}

/* Two tasks a thread, where there are enough rows, and more where these would be long: one that is late costs the others a part. */
static int gemv_rows(int n_rows, size_t row_bytes, int n_threads)
{
    const int share = BUTLER_CEIL_DIV(n_rows, 2 * n_threads * GEMV_ROWS) * GEMV_ROWS;
    return BUTLER_MIN(share, BUTLER_MAX(GEMV_MOST, (int)(GEMV_BYTES / row_bytes) / GEMV_ROWS * GEMV_ROWS));
}

static void quantise_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    (void)thread;
    for (int t = task * QUANTISED_TOKENS; t < BUTLER_MIN(job->n, (task + 1) * QUANTISED_TOKENS); t++)
        job->kernels->quantise_q16((unsigned char *)job->q16 + (size_t)t * butler_q16_bytes(job->n_cols), job->products[0].w->type,
                                   job->x + (size_t)t * (size_t)job->n_cols, job->n_cols, job->n == 1 || job->low, job->most);
}

static void q16_matmul(struct butler_pool *pool, struct matmul_job job)
{
    const int n = job.n, most = (int)((job.work->packed_bytes - PAGE) / butler_q16_bytes(job.n_cols));
    job.q16 = next_page(job.work->packed);
    for (int done = 0; done < n; done += job.n) {
        job.n = BUTLER_MIN(most, n - done);
        if (job.n <= QUANTISED_TOKENS)
            quantise_task(&job, 0, 0);
        else
            butler_pool_run(pool, quantise_task, &job, BUTLER_CEIL_DIV(job.n, QUANTISED_TOKENS));
        butler_pool_run_shares(pool, gemv_task, &job, n_tasks_of(&job));
        next_tokens(&job, job.n);
    }
}

static void quantise_block(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const int first = task * BUTLER_Q8_TOKENS;
    (void)thread;
    job->kernels->quantise_q8((unsigned char *)job->q16 + (size_t)task * butler_q8_bytes(job->n_cols), job->products[0].w->type,
                              job->x + (size_t)first * (size_t)job->n_cols, BUTLER_MIN(job->n - first, (int)BUTLER_Q8_TOKENS),
                              job->n_cols);
}

static void q8_task(void *context, int task, int thread)
{
    const struct matmul_job *job = context;
    const struct matmul_part part = part_of(job, task);
    const struct butler_matrix *w = part.w;
    void *panel = next_page(job->work->panel + (size_t)thread * job->work->panel_floats);
    job->kernels->unpack_q8[w->type](panel, part.rows, w->row_bytes, part.n_rows, w->n_cols, job->kernels->q8_signed);
    job->kernels->multiply_q8[w->type](result_of(&part, 0), (size_t)w->n_rows, panel, part.n_rows, job->q16, job->n, w->n_cols);
    add_bias(job, &part);
}

static void q8_matmul(struct butler_pool *pool, struct matmul_job job)
{
    const int n = job.n, most = (int)((job.work->packed_bytes - PAGE) / butler_q8_bytes(job.n_cols)) * BUTLER_Q8_TOKENS;
    const size_t room = job.work->panel_floats * sizeof(float) - PAGE;
    job.rows_per_task = BUTLER_MAX((int)(room / butler_q8_panel_bytes(1, job.n_cols)) * 16, 16);
    job.rows_per_task = BUTLER_MIN(job.rows_per_task, (int)UNPACK_ROWS);
    job.q16 = next_page(job.work->packed);
    for (int done = 0; done < n; done += job.n) {
        job.n = BUTLER_MIN(most, n - done);
        butler_pool_run(pool, quantise_block, &job, BUTLER_CEIL_DIV(job.n, BUTLER_Q8_TOKENS));
        butler_pool_run(pool, q8_task, &job, n_tasks_of(&job));
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
    for (int r = 0; r < part.n_rows; r++)
        job->kernels->dequant[w->type](panel + (size_t)r * (size_t)w->n_cols, part.rows + (size_t)r * w->row_bytes, w->n_cols);
    job->kernels->gemm(result_of(&part, 0), (size_t)w->n_rows, panel, part.n_rows, job->x, (size_t)w->n_cols, job->n, w->n_cols);
    add_bias(job, &part);
}

size_t butler_matmul_packed_bytes(int n, int n_cols)
{
    return (size_t)BUTLER_MAX(n, (int)MIN_TOKENS) * butler_q16_bytes(n_cols) + PAGE;
}

size_t butler_matmul_panel_floats(int n_cols)
{
    return BUTLER_MAX((size_t)BUTLER_MAX((int)PANEL_FLOATS, n_cols), (butler_q8_panel_bytes(1, n_cols) + PAGE) / sizeof(float));
}

/* Of matrices of one type, which take activations in one form. */
static void one_type(struct butler_backend *backend, struct matmul_job job)
{
    const struct butler_kernels *kernels = backend->kernels;
    const struct butler_matrix *w = job.products[0].w;
    const bool q16 = kernels->q16 && kernels->matmul_q16[w->type], q8 = q16 && backend->activation_bits == 8;
    job.most = q8 ? BUTLER_Q8_MAX : BUTLER_Q16_MAX;
    job.low = q8 && kernels->matmul_low[w->type];
    job.rows_per_task = q16 || job.n <= GEMV_TOKENS ? gemv_rows(n_rows_of(&job), w->row_bytes, butler_pool_size(backend->pool))
                                                    : panel_rows(job.n_cols);
    if (q8 && job.n >= (job.low ? UNPACK_TOKENS_LOW : UNPACK_TOKENS))
        q8_matmul(backend->pool, job);
    else if (q16)
        q16_matmul(backend->pool, job);
    else if (job.n <= GEMV_TOKENS)
        butler_pool_run_shares(backend->pool, gemv_task, &job, n_tasks_of(&job));
    else
        butler_pool_run(backend->pool, gemm_task, &job, n_tasks_of(&job));
}

void butler_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n)
{
    for (int i = 0; i < n_products;) {
        struct matmul_job job = {.kernels = backend->kernels, .work = work, .n_cols = products[i].w->n_cols, .x = x, .n = n};
        do
            job.products[job.n_products++] = products[i++];
        while (i < n_products && products[i].w->type == job.products[0].w->type);
        one_type(backend, job);
    }
}
