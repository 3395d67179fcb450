/* Rates of the kernels on one core, beside the ceilings measured in the same run: reading memory, multiply-adds.
 *
 *     bench_kernels [--isa NAME] [--only TEXT] [--mb N] [--repeat N]
 *     bench_kernels --compare [--only TEXT] [--mb N] [--repeat N]
 *
 * A kernel that streams weights, cache rows or records runs over a set that no cache holds and is measured in bytes of it;
 * one that computes is measured in operations. Rates are medians over the repetitions. In every repetition the kernel and its
 * ceiling take turns on a slice of the set, and time is what the thread got of its core, so that what else the machine does
 * falls on both or on neither.
 *
 * --compare: every kernel with every instruction set in turns, from the plain C reference up: nanoseconds of a run, how many times
 * faster than the set below (1.00 where it has none of its own), and the largest difference from the reference's results, relative
 * to the largest of these. Exits with 1 where that is more than DIFFERENCE. */
#include "measure.h"

/* ----------------------------------------------------------------------------------------------- weights */

enum { Q16_AT = 1 << 21 /* of x: where its 16-bit integers go */ };

static void run_gemv(const struct job *job)
{
    struct bench *b = job->bench;
    enum { TASK = 128 }; /* rows per call, as the thread pool hands them out */
    void *q16 = b->table->q16 && b->table->matmul_q16[job->type] ? b->x + Q16_AT : NULL;
    if (q16)
        b->table->quantise_q16(q16, (enum butler_type)job->type, b->x, job->n, true, BUTLER_Q16_MAX);
    for (int r = 0; r < job->n_rows; r += TASK) {
        const void *rows = job->slice + (size_t)r * job->row_bytes;
        const int n_rows = BUTLER_MIN(TASK, job->n_rows - r);
        if (q16)
            b->table->matmul_q16[job->type](b->y + r, 0, rows, job->row_bytes, n_rows, q16, 1, job->n);
        else
            b->table->gemv[job->type](b->y + r, rows, job->row_bytes, n_rows, b->x, job->n);
    }
}

/* Fills the set with copies of one megabyte of valid blocks of the type. */
static void fill_weights(struct bench *b, enum butler_type type)
{
    const struct butler_type_info *info = &butler_types[type];
    size_t size = (size_t)(1 << 20) / (size_t)info->block_bytes * (size_t)info->block_bytes;
    uint64_t seed = 1;
    for (size_t i = 0; i < size; i += (size_t)info->block_bytes) {
        float f[256];
        for (int k = 0; k < info->block; k++)
            f[k] = butler_random_normal(&seed);
        if (butler_quantize_row(type, b->set + i, f, info->block))
            continue;
        for (int k = 0; k < info->block_bytes; k++)
            b->set[i + (size_t)k] = (unsigned char)butler_random(&seed);
        static const short scale_at[BUTLER_N_TYPES] = {
            [BUTLER_Q2_K] = 80, [BUTLER_Q3_K] = 108, [BUTLER_Q6_K] = 208, [BUTLER_TQ1_0] = 52, [BUTLER_TQ2_0] = 64};
        uint16_t d = butler_float_to_half(0.01f);
        if (type == BUTLER_MXFP4)
            b->set[i] = 120;
        else
            memcpy(b->set + i + scale_at[type], &d, 2);
        if (type == BUTLER_Q4_1 || type == BUTLER_Q5_1 || type == BUTLER_Q2_K || type == BUTLER_Q4_K || type == BUTLER_Q5_K)
            memcpy(b->set + i + scale_at[type] + 2, &d, 2);
    }
    for (size_t done = size; done < b->set_bytes; done += size)
        memcpy(b->set + done, b->set, BUTLER_MIN(size, b->set_bytes - done));
}

#define TYPE(type, ...) BUTLER_##type,
static const enum butler_type weight_types[] = {BUTLER_WEIGHT_TYPES(TYPE)};

static void bench_gemv(struct bench *b)
{
    for (int i = 0; i < BUTLER_COUNT(weight_types); i++) {
        char name[64];
        snprintf(name, sizeof name, "gemv %s 4096", butler_types[weight_types[i]].name);
        if (b->only && !strstr(name, b->only))
            continue;
        fill_weights(b, weight_types[i]);
        struct job job = {
            .bench = b, .type = (int)weight_types[i], .n = 4096, .row_bytes = butler_row_bytes(weight_types[i], 4096)};
        job.n_rows = (int)(SLICE / job.row_bytes);
        measure_stream(b, name, (double)job.row_bytes * job.n_rows, run_gemv, read_slice, (double)SLICE, &job);
        /* A small model's matrix, from the second-level cache. */
        snprintf(name, sizeof name, "gemv %s 512x512 cached", butler_types[weight_types[i]].name);
        job.n = 512;
        job.row_bytes = butler_row_bytes(weight_types[i], 512);
        job.n_rows = 512;
        measure(b, name, FLOPS, 2.0 * 512 * 512, run_gemv, &job);
    }
}

static void run_gemm(const struct job *job)
{
    struct bench *b = job->bench;
    b->table->gemm(b->y, (size_t)job->n_rows, (const float *)job->slice, job->n_rows, b->x, (size_t)job->n, job->n_tokens, job->n);
}

static void bench_gemm(struct bench *b)
{
    static const int shapes[][3] = {{16, 256, 4096}, {64, 256, 4096}, {16, 256, 1024}, {64, 64, 512}, {16, 8, 4096}};
    fill_weights(b, BUTLER_F32);
    for (int i = 0; i < BUTLER_COUNT(shapes); i++) {
        char name[64];
        struct job job = {.bench = b, .n_rows = shapes[i][0], .n_tokens = shapes[i][1], .n = shapes[i][2]};
        snprintf(name, sizeof name, "gemm %d rows %d tokens k %d", job.n_rows, job.n_tokens, job.n);
        measure(b, name, FLOPS, 2.0 * job.n_rows * job.n_tokens * job.n, run_gemm, &job);
    }
}

static void run_matmul(const struct job *job)
{
    struct bench *b = job->bench;
    b->table->matmul_q16[job->type](b->y, (size_t)job->n_rows, job->slice, job->row_bytes, job->n_rows, b->x + Q16_AT,
                                    job->n_tokens, job->n);
}

static void prepare_matmul(const struct job *job)
{
    struct bench *b = job->bench;
    for (int t = 0; t < job->n_tokens; t++)
        b->table->quantise_q16((char *)(b->x + Q16_AT) + (size_t)t * butler_q16_bytes(job->n), (enum butler_type)job->type, b->x,
                               job->n, job->n_tokens == 1, BUTLER_Q16_MAX);
}

/* A task of a batch's or a prompt's products, weights from the second-level cache. */
static void bench_matmul(struct bench *b)
{
    static const int counts[] = {1, 2, 4, 8, 16, 64, 256};
    for (int i = 0; i < BUTLER_COUNT(weight_types) && b->table->q16; i++) {
        for (int c = 0; c < BUTLER_COUNT(counts); c++) {
            char name[64];
            struct job job = {.bench = b,
                              .type = (int)weight_types[i],
                              .n_rows = 64,
                              .n_tokens = counts[c],
                              .n = 2048,
                              .prepare = prepare_matmul};
            job.row_bytes = butler_row_bytes(weight_types[i], job.n);
            snprintf(name, sizeof name, "matmul %s 64x2048 %d tokens", butler_types[weight_types[i]].name, job.n_tokens);
            if (!b->table->matmul_q16[weight_types[i]] || (b->only && !strstr(name, b->only)))
                continue;
            if (c == 0 || b->only)
                fill_weights(b, weight_types[i]);
            measure(b, name, FLOPS, 2.0 * job.n_rows * job.n_tokens * job.n, run_matmul, &job);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- tiles */

static void run_pack_rows(const struct job *job)
{
    job->bench->table->pack_rows(job->bench->y, job->bench->x, (size_t)job->n, job->n_rows, job->n);
}
static void run_pack_columns(const struct job *job)
{
    job->bench->table->pack_columns(job->bench->y, job->bench->x, (size_t)job->n, job->n_rows, job->n);
}
static void run_pack_transposed(const struct job *job)
{
    job->bench->table->pack_transposed(job->bench->y, job->bench->x, (size_t)job->n_rows, job->n_rows, job->n);
}
static void run_attend_packed(const struct job *job)
{
    struct bench *b = job->bench;
    static _Alignas(64) float max[1024], sum[1024];
    static int32_t begin[1024], end[1024];
    for (int i = 0; i < job->n_tokens; i++) {
        max[i] = 0;
        end[i] = job->n_rows;
    }
    b->table->attend_packed(&(struct butler_attention){.queries = b->set,
                                                       .keys = b->set + SLICE,
                                                       .values = b->set + SLICE,
                                                       .begin = begin,
                                                       .end = end,
                                                       .max = max,
                                                       .sum = sum,
                                                       .out = b->y,
                                                       .n_rows = job->n_tokens,
                                                       .n_keys = job->n_rows,
                                                       .dim = job->n});
}

/* Products in the unit's own operations: three multiply-adds for each of ours. */
static void bench_tiles(struct bench *b)
{
    static const int shapes[][3] = {{512, 256, 64}, {1024, 256, 64}, {512, 256, 128}}; /* queries, keys, channels */
    struct job job = {.bench = b, .n = 256, .n_rows = 64};
    if (!b->table->tiles)
        return;
    measure(b, "pack_rows 64 x 256", ELEMENTS, 64.0 * 256, run_pack_rows, &job);
    measure(b, "pack_columns 64 x 256", ELEMENTS, 64.0 * 256, run_pack_columns, &job);
    measure(b, "pack_transposed 64 x 256", ELEMENTS, 64.0 * 256, run_pack_transposed, &job);
    fill_weights(b, BUTLER_F32);
    for (int i = 0; i < BUTLER_COUNT(shapes); i++) {
        char name[64];
        job.n_tokens = shapes[i][0], job.n_rows = shapes[i][1], job.n = shapes[i][2];
        snprintf(name, sizeof name, "attend_packed %d x %d of %d", job.n_tokens, job.n_rows, job.n);
        if (b->only && !strstr(name, b->only))
            continue;
        for (size_t at = 0; at < 2 * SLICE; at += SLICE) /* any packed numbers: those of small values */
            b->table->pack_rows(b->set + at, b->x, (size_t)job.n, 1024, job.n);
        measure(b, name, TILE_FLOPS, 3 * 4.0 * job.n_tokens * job.n_rows * job.n, run_attend_packed, &job);
    }
}

/* ------------------------------------------------------------------------------------------------- cache */

enum { CALL_ROWS = 1024 }; /* rows per call: scores stay in cache, as in the engine */

static void run_qk(const struct job *job)
{
    struct bench *b = job->bench;
    for (int j = 0; j < job->n_rows; j += CALL_ROWS)
        b->table->qk[job->type](b->y, CALL_ROWS, b->x, (size_t)job->n, job->n_q, job->rows + j,
                                BUTLER_MIN(CALL_ROWS, job->n_rows - j), job->n);
}

static void run_av(const struct job *job)
{
    struct bench *b = job->bench;
    for (int j = 0; j < job->n_rows; j += CALL_ROWS)
        b->table->av[job->type](b->y, (size_t)job->n, b->x, CALL_ROWS, job->n_q, job->rows + j,
                                BUTLER_MIN(CALL_ROWS, job->n_rows - j), job->n);
}

/* Keys and values as the engine has them: each value behind its key. */
enum { SLICE_ROWS = 1024, CACHED_ROWS = 2 * SLICE_ROWS };

static void run_attend(const struct job *job)
{
    struct bench *b = job->bench;
    float top[8], sum[8];
    for (int j = 0; j < job->n_rows; j += SLICE_ROWS) {
        const int n = BUTLER_MIN(SLICE_ROWS, job->n_rows - j);
        const struct butler_pairs pairs = {job->rows + j, job->row_bytes, n, BUTLER_MIN(BUTLER_PAIRS_NEXT, job->n_rows - j - n)};
        b->table->attend[job->type]((struct butler_attended){{b->y, (size_t)job->n}, top, sum, {NULL, 0}},
                                    (struct butler_vectors){b->x, (size_t)job->n, job->n_q}, &pairs, job->n);
    }
}

static void read_pairs(const struct job *job)
{
    const void *rows[2 * SLICE_ROWS];
    for (int j = 0; j < job->n_rows; j += SLICE_ROWS) {
        const int n = BUTLER_MIN(SLICE_ROWS, job->n_rows - j);
        for (int r = 0; r < n; r++) {
            rows[2 * r] = job->rows[j + r];
            rows[2 * r + 1] = (const unsigned char *)job->rows[j + r] + job->row_bytes;
        }
        job->bench->sink += (double)ceiling_gather(rows, 2 * n, job->row_bytes);
    }
}

/* The rows of every slice (of pairs, the keys) in order, or in a random one. Returns rows per slice. */
static int list_rows(struct bench *b, size_t row_bytes, bool pairs, bool shuffled)
{
    int n = (int)(SLICE / row_bytes), n_slices = (int)(b->set_bytes / SLICE);
    uint64_t seed = 3;
    n = BUTLER_MIN(pairs ? n / 2 : n, b->max_rows / n_slices);
    for (int slice = 0; slice < n_slices; slice++) {
        const void **rows = b->rows + (size_t)slice * (size_t)n;
        const unsigned char *first =
            b->set + (size_t)slice * SLICE / row_bytes * row_bytes; /* blocks begin where they were written */
        for (int j = 0; j < n; j++)
            rows[j] = first + (size_t)(pairs ? 2 * j : j) * row_bytes;
        for (int j = n - 1; j > 0 && shuffled; j--) {
            int k = (int)(butler_random(&seed) % (uint64_t)(j + 1));
            const void *row = rows[j];
            rows[j] = rows[k];
            rows[k] = row;
        }
    }
    return n;
}

static void bench_attention(struct bench *b)
{
    static const struct {
        const char *name;
        int type;
        enum butler_type as;
    } types[] = {{"f16", BUTLER_KV_F16, BUTLER_F16}, {"q8_0", BUTLER_KV_Q8_0, BUTLER_Q8_0}, {"f32", BUTLER_KV_F32, BUTLER_F32}};
    for (int t = 0; t < BUTLER_COUNT(types); t++) {
        if (b->only && !strstr("qk av", b->only) && !strstr(b->only, "qk") && !strstr(b->only, "av") && !strstr(b->only, "attend"))
            break;
        fill_weights(b, types[t].as);
        for (int dim = 64; dim <= 128; dim *= 2) {
            struct job job = {.bench = b, .type = types[t].type, .n = dim, .row_bytes = butler_row_bytes(types[t].as, dim)};
            for (int shuffled = 0; shuffled < 2; shuffled++) {
                job.n_rows = list_rows(b, job.row_bytes, false, shuffled);
                double bytes = (double)job.row_bytes * job.n_rows, top = shuffled ? bytes : (double)SLICE;
                job_fn *ceiling = shuffled ? read_rows : read_slice;
                for (job.n_q = 1; job.n_q <= 8; job.n_q *= 2) {
                    char name[64];
                    snprintf(name, sizeof name, "qk %s %d q %d %s", types[t].name, dim, job.n_q,
                             shuffled ? "gathered" : "in order");
                    measure_stream(b, name, bytes, run_qk, ceiling, top, &job);
                    name[0] = 'a', name[1] = 'v';
                    measure_stream(b, name, bytes, run_av, ceiling, top, &job);
                }
                job.n_rows = list_rows(b, job.row_bytes, true, shuffled);
                bytes = 2 * (double)job.row_bytes * job.n_rows;
                for (job.n_q = 1; job.n_q <= 8; job.n_q *= 2) {
                    char name[64];
                    snprintf(name, sizeof name, "attend %s %d q %d %s", types[t].name, dim, job.n_q,
                             shuffled ? "gathered" : "in order");
                    measure_stream(b, name, bytes, run_attend, shuffled ? read_pairs : read_slice, shuffled ? bytes : (double)SLICE,
                                   &job);
                    if (shuffled)
                        continue;
                    /* What fits into the second-level cache: arithmetic alone. */
                    struct job cached = job;
                    cached.n_rows = CACHED_ROWS;
                    snprintf(name, sizeof name, "attend %s %d q %d cached", types[t].name, dim, job.n_q);
                    measure(b, name, BYTES, 2.0 * (double)job.row_bytes * CACHED_ROWS, run_attend, &cached);
                }
            }
            list_rows(b, job.row_bytes, false, false);
            job.n_q = job.n_rows = 64;
            char name[64];
            snprintf(name, sizeof name, "qk %s %d prefill 64x64", types[t].name, dim);
            measure(b, name, FLOPS, 2.0 * 64 * 64 * dim, run_qk, &job);
            snprintf(name, sizeof name, "av %s %d prefill 64x64", types[t].name, dim);
            measure(b, name, FLOPS, 2.0 * 64 * 64 * dim, run_av, &job);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- metrics */

static void run_bounds(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->page_bounds(b->y, CALL_ROWS, b->x, job->n_q, job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                              BUTLER_MIN(CALL_ROWS, job->n_rows - r), job->n);
}

static void run_bounds_max(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->page_bounds_max(b->y, CALL_ROWS, b->x, job->n_q, job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                                  BUTLER_MIN(CALL_ROWS, job->n_rows - r), job->n);
}

static void run_one_bit(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->one_bit(b->y, 32 * CALL_ROWS, b->x, job->n_q, job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                          BUTLER_MIN(CALL_ROWS, job->n_rows - r), job->n);
}

static void run_one_bit_bounds(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->one_bit_bounds(b->y, CALL_ROWS, b->x, job->n_q, job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                                 BUTLER_MIN(CALL_ROWS, job->n_rows - r), job->n);
}

static void run_keys8(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->keys8((struct butler_results){b->y, BUTLER_KEYS_TOKENS * CALL_ROWS},
                        (struct butler_byte_queries){(const int8_t *)b->x, b->x, job->n_q},
                        (struct butler_records){job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                                                BUTLER_MIN(CALL_ROWS, job->n_rows - r)},
                        job->n);
}

static void run_keys4(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->keys4((struct butler_results){b->y, BUTLER_KEYS_TOKENS * CALL_ROWS},
                        (struct butler_byte_queries){(const int8_t *)b->x, b->x, job->n_q},
                        (struct butler_records){job->slice + (size_t)r * job->row_bytes, job->row_bytes,
                                                BUTLER_MIN(CALL_ROWS, job->n_rows - r)},
                        job->n);
}

static void run_keys16(const struct job *job)
{
    struct bench *b = job->bench;
    for (int r = 0; r < job->n_rows; r += CALL_ROWS)
        b->table->keys16(b->y, BUTLER_KEYS_TOKENS * CALL_ROWS, b->x, job->n_q, job->slice + (size_t)r * job->row_bytes,
                         job->row_bytes, BUTLER_MIN(CALL_ROWS, job->n_rows - r), job->n);
}

static void bench_metrics(struct bench *b)
{
    fill_weights(b, BUTLER_F16);
    for (int n_q = 1; n_q <= 8; n_q *= 2) {
        char name[64];
        struct job job = {.bench = b, .n = 128, .n_q = n_q, .row_bytes = 512, .n_rows = SLICE / 512};
        snprintf(name, sizeof name, "page_bounds 128 q %d", n_q);
        measure_stream(b, name, (double)SLICE, run_bounds, read_slice, (double)SLICE, &job);
        snprintf(name, sizeof name, "page_bounds_max 128 q %d", n_q);
        measure_stream(b, name, (double)SLICE, run_bounds_max, read_slice, (double)SLICE, &job);
        job.row_bytes = butler_one_bit_bytes(job.n);
        job.n_rows = (int)(SLICE / job.row_bytes);
        snprintf(name, sizeof name, "one_bit 128 q %d", n_q);
        job.allowed = 2e-2; /* an ISA may round each product to one_bit_step */
        measure_stream(b, name, (double)SLICE, run_one_bit, read_slice, (double)SLICE, &job);
        job.allowed = 0;
        snprintf(name, sizeof name, "one_bit_bounds 128 q %d", n_q);
        measure_stream(b, name, (double)job.n_rows * (double)butler_one_bit_bounds_bytes(job.n), run_one_bit_bounds, read_slice,
                       (double)SLICE, &job);
        job.n = 16; /* predicted heads */
        job.row_bytes = BUTLER_KEYS_TOKENS * (1 + 16);
        job.n_rows = (int)(SLICE / job.row_bytes);
        snprintf(name, sizeof name, "keys8 16 q %d", n_q);
        measure_stream(b, name, (double)SLICE, run_keys8, read_slice, (double)SLICE, &job);
        job.row_bytes = BUTLER_KEYS_TOKENS * (1 + 8);
        job.n_rows = (int)(SLICE / job.row_bytes);
        snprintf(name, sizeof name, "keys4 16 q %d", n_q);
        measure_stream(b, name, (double)SLICE, run_keys4, read_slice, (double)SLICE, &job);
        job.row_bytes = BUTLER_KEYS_TOKENS * 2 * 16;
        job.n_rows = (int)(SLICE / job.row_bytes);
        snprintf(name, sizeof name, "keys16 16 q %d", n_q);
        measure_stream(b, name, (double)SLICE, run_keys16, read_slice, (double)SLICE, &job);
    }
}

/* ----------------------------------------------------------------------------------------------- vectors */

static void run_dot(const struct job *job)
{
    job->bench->sink += (double)job->bench->table->dot(job->bench->x, job->bench->y, job->n);
}
static void run_add(const struct job *job)
{
    job->bench->table->add(job->bench->y, job->bench->x, job->n);
}
static void run_axpy(const struct job *job)
{
    job->bench->table->axpy(job->bench->y, 0.5f, job->bench->x, job->n);
}
static void run_max(const struct job *job)
{
    job->bench->sink += (double)job->bench->table->max(job->bench->x, job->n);
}
static void run_rms(const struct job *job)
{
    job->bench->table->rms_norm(job->bench->y, job->bench->x, job->bench->x, job->n, 1e-5f);
}
static void run_layer(const struct job *job)
{
    job->bench->table->layer_norm(job->bench->y, job->bench->x, job->bench->x, job->bench->x, job->n, 1e-5f);
}
static void run_silu(const struct job *job)
{
    job->bench->table->silu_mul(job->bench->y, job->bench->x, job->bench->x, job->n);
}
static void run_gelu(const struct job *job)
{
    memcpy(job->bench->y, job->bench->x, (size_t)job->n * sizeof(float));
    job->bench->table->gelu(job->bench->y, job->n);
}
static void run_exp(const struct job *job)
{
    memcpy(job->bench->y, job->bench->x, (size_t)job->n * sizeof(float));
    job->bench->sink += (double)job->bench->table->exp_sum(job->bench->y, 5, job->n);
}
static void run_rope(const struct job *job)
{
    job->bench->table->rope_halves(job->bench->y, job->bench->x, job->bench->x + job->n, job->n);
}
static void run_rope_adjacent(const struct job *job)
{
    job->bench->table->rope_adjacent(job->bench->y, job->bench->x, job->bench->x + job->n, job->n);
}
static void run_log_sum(const struct job *job)
{
    job->bench->sink += (double)job->bench->table->log_sum_exp(job->bench->x, 0.125f, job->n);
}
static void run_moments(const struct job *job)
{
    float mean, deviation;
    job->bench->table->moments(job->bench->x, job->n, &mean, &deviation);
    job->bench->sink += (double)deviation;
}
static void run_group_max(const struct job *job)
{
    static const float scale[4] = {0.125f, 0.125f, 0.125f, 0.125f}, shift[4];
    job->bench->table->group_max(job->bench->y, job->bench->x, (size_t)job->n / 4, scale, shift, 4, job->n / 4);
}
static void run_count(const struct job *job)
{
    job->bench->sink += job->bench->table->count_reaching(job->bench->x, 1.5f, job->n);
}
static void run_list(const struct job *job)
{
    uint32_t *ids = (uint32_t *)job->bench->y + N_COMPARED; /* beyond the last id lies anything */
    const int n = job->bench->table->list_reaching(ids, 0, job->bench->x, 1.5f, job->n);
    job->bench->sink += (double)n + (double)ids[n - 1];
}
static void run_store(const struct job *job)
{
    job->bench->table->store_row[job->type](job->bench->y, job->bench->x, job->n);
}
static void run_load(const struct job *job)
{
    job->bench->table->load_row[job->type](job->bench->y, job->bench->set, job->n);
}

static void bench_vectors(struct bench *b)
{
    static const struct {
        const char *name;
        job_fn *fn;
    } list[] = {{"dot", run_dot},
                {"add", run_add},
                {"axpy", run_axpy},
                {"max", run_max},
                {"rms_norm", run_rms},
                {"layer_norm", run_layer},
                {"silu_mul", run_silu},
                {"gelu", run_gelu},
                {"exp_sum", run_exp},
                {"log_sum_exp", run_log_sum},
                {"moments", run_moments},
                {"group_max of 4", run_group_max},
                {"count_reaching", run_count},
                {"list_reaching", run_list},
                {"rope_halves", run_rope},
                {"rope_adjacent", run_rope_adjacent}};
    struct job job = {.bench = b, .n = 4096};
    for (int i = 0; i < BUTLER_COUNT(list); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %d", list[i].name, job.n);
        measure(b, name, ELEMENTS, job.n, list[i].fn, &job);
        memset(b->y, 0, (size_t)job.n * sizeof(float));
    }
    job.n = 128;
    for (job.type = 0; job.type < BUTLER_N_KV_TYPES; job.type++) {
        static const char *const names[][2] = {
            {"store_row f32", "load_row f32"}, {"store_row f16", "load_row f16"}, {"store_row q8_0", "load_row q8_0"}};
        measure(b, names[job.type][0], ELEMENTS, job.n, run_store, &job);
        measure(b, names[job.type][1], ELEMENTS, job.n, run_load, &job);
    }
}

/* The best reading rate over prefetch distances, so that the ceiling is one. */
static void find_ceiling(struct bench *b)
{
    static const size_t distances[] = {0, 256, 512, 1024, 2048, 4096};
    double best = 0, rates[BUTLER_COUNT(distances)][MAX_REPEAT];
    size_t best_ahead = 0;
    struct job job = {.bench = b};
    for (int k = 0; k < b->repeat; k++) {
        for (int i = 0; i < BUTLER_COUNT(distances); i++) {
            b->ahead = distances[i];
            choose_slice(&job, k * BUTLER_COUNT(distances) + i);
            rates[i][k] = (double)SLICE / seconds_of(read_slice, &job);
        }
    }
    for (int i = 0; i < BUTLER_COUNT(distances); i++) {
        double rate = median(rates[i], b->repeat);
        printf("reading, prefetch %4zu bytes ahead: %.2f GB/s\n", distances[i], rate / 1e9);
        if (rate > best) {
            best = rate;
            best_ahead = distances[i];
        }
    }
    b->ahead = best_ahead;
}

static void bench_all(struct bench *b)
{
    bench_gemv(b);
    bench_attention(b);
    bench_gemm(b);
    bench_matmul(b);
    bench_tiles(b);
    bench_metrics(b);
    bench_vectors(b);
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s [--compare | --isa NAME] [--only TEXT] [--mb N] [--repeat N]\n", program);
    return 2;
}

/* Returns whether the arguments are understood. */
static bool read_arguments(struct bench *b, const char **isa, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--compare") == 0) {
            while (butler_kernels_available()[b->n_tables])
                b->n_tables++;
            for (int k = 0; k < b->n_tables; k++)
                b->tables[k] = butler_kernels_get(butler_kernels_available()[b->n_tables - 1 - k]);
            b->repeat = 5;
        } else if (i + 1 == argc)
            return false;
        else {
            const char *name = argv[i], *value = argv[++i];
            if (strcmp(name, "--isa") == 0)
                *isa = value;
            else if (strcmp(name, "--only") == 0)
                b->only = value;
            else if (strcmp(name, "--mb") == 0)
                b->set_bytes = (size_t)BUTLER_MAX(atol(value), 128) >> 7 << 27;
            else if (strcmp(name, "--repeat") == 0)
                b->repeat = BUTLER_MIN(BUTLER_MAX(atoi(value), 1), MAX_REPEAT);
            else
                return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct bench b = {.repeat = 31, .set_bytes = (size_t)2 << 30, .max_rows = 1 << 25};
    struct butler_error err;
    const char *isa = NULL;
    if (!read_arguments(&b, &isa, argc, argv))
        return usage(argv[0]);
    b.set = butler_reserve(b.set_bytes, true, &err);
    b.rows = butler_alloc((size_t)b.max_rows * sizeof *b.rows, &err);
    b.x = butler_alloc(sizeof(float) << 22, &err);
    b.y = butler_alloc(sizeof(float) << 22, &err);
    b.expected = butler_alloc(sizeof(float) * N_COMPARED, &err);
    if (!b.set || !b.rows || !b.x || !b.y || !b.expected) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    uint64_t seed = 2;
    for (int i = 0; i < 1 << 22; i++)
        b.x[i] = butler_random_normal(&seed);
    memset(b.set, 1, b.set_bytes);
    if (b.n_tables) {
        printf("%-34s %-12s %15s %8s %9s\n", "kernel", "isa", "time", "gain", "apart");
        b.table = b.tables[b.n_tables - 1];
        bench_all(&b);
    } else {
        find_ceiling(&b);
        printf("%-34s %-12s %17s %8s %8s\n", "kernel", "isa", "rate", "ceiling", "ratio");
        for (const char *const *name = butler_kernels_available(); *name; name++)
            if (!isa || strcmp(isa, *name) == 0) {
                b.table = butler_kernels_get(*name);
                bench_all(&b);
            }
    }
    butler_unreserve(b.set, b.set_bytes);
    free(b.rows);
    free(b.x);
    free(b.y);
    free(b.expected);
    return b.n_wrong > 0;
}
