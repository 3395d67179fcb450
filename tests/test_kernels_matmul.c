/* The CPU backend's products: a row of activations gives the same bits alone and in any block, with one thread and with three, for
 * every weight type and ISA and both precisions of activations. */
#include "cpu/matmul.h"
#include "kernel_test.h"

enum { N_TOKENS = 100, N_ROWS = 67 };

static const int counts[] = {2, 3, 5, 8, 16, 17, 64, N_TOKENS};

/* n tokens from the first one on, `step` at a time. */
static void product(const struct butler_kernels *kernels, int bits, int n_threads, const struct butler_matrix *w, float *y,
                    const float *x, int n, int step)
{
    struct butler_error err;
    struct butler_pool *pool = butler_pool_new(n_threads, &err);
    struct butler_backend backend = {.pool = pool, .kernels = kernels, .activation_bits = bits};
    struct butler_workspace work = {.panel_floats = butler_matmul_panel_floats(w->n_cols),
                                    .packed_bytes = butler_matmul_packed_bytes(20, w->n_cols)}; /* of the larger blocks a part */
    assert_non_null(pool);
    work.panel = malloc(work.panel_floats * sizeof *work.panel * (size_t)n_threads);
    work.packed = malloc(work.packed_bytes);
    assert_true(work.panel && work.packed);
    for (int t = 0; t < n; t += step)
        butler_matmul(&backend, &work, &(struct butler_product){y + (size_t)t * (size_t)w->n_rows, w}, 1,
                      x + (size_t)t * (size_t)w->n_cols, BUTLER_MIN(step, n - t));
    free(work.panel);
    free(work.packed);
    butler_pool_free(pool);
}

static void check_type(const struct butler_kernels *kernels, int bits, enum butler_type type, int n_cols, uint64_t *seed)
{
    static float alone[N_TOKENS * N_ROWS], together[N_TOKENS * N_ROWS], bias[N_ROWS];
    const struct butler_type_info *info = &butler_types[type];
    bool some = false; /* of the comparisons below are in the share */
    for (int k = 0; k < 2 * BUTLER_COUNT(counts); k++)
        some |= in_share((int)type * 16 + k);
    if (!some)
        return;
    const size_t row_bytes = butler_row_bytes(type, n_cols);
    unsigned char *rows = malloc(row_bytes * N_ROWS);
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * n_cols));
    assert_true(rows && x);
    for (size_t i = 0; i < row_bytes * N_ROWS; i++)
        rows[i] = (unsigned char)butler_random(seed);
    for (size_t i = 0; i < row_bytes * N_ROWS; i += (size_t)info->block_bytes) { /* finite numbers, small scales */
        const float number = random_value(seed, NORMAL);
        if (info->block == 1)
            butler_quantize_row(type, rows + i, &number, 1);
        else
            put_scales(type, rows + i, number / 64, number / 64);
    }
    fill_random(x, (size_t)(N_TOKENS * n_cols), NORMAL, seed);
    fill_random(bias, N_ROWS, NORMAL, seed);
    const struct butler_matrix w = {
        .type = type, .n_rows = N_ROWS, .n_cols = n_cols, .row_bytes = row_bytes, .data = rows, .bias = bias};
    product(kernels, bits, 1, &w, alone, x, N_TOKENS, 1);
    for (int i = 0; i < BUTLER_COUNT(counts); i++)
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            if (!in_share((int)type * 16 + i * 2 + n_threads / 2))
                continue;
            memset(together, 0xff, sizeof together);
            product(kernels, bits, n_threads, &w, together, x, N_TOKENS, counts[i]);
            for (int k = 0; k < N_TOKENS * N_ROWS; k++)
                assert_same_bits(info->name, kernels->isa, counts[i], k, together[k], alone[k]);
        }
    free(rows);
    free(x);
}

static void rows_do_not_depend_on_others(void **state)
{
    (void)state;
    uint64_t seed = 21;
    FOR_EACH_ISA(table)
    {
        for (int type = 0; type < BUTLER_N_TYPES; type++)
            if (butler_type_known((uint32_t)type)) {
                const int block = butler_types[type].block;
                for (int bits = 8; bits <= 16; bits += 8)
                    check_type(table, bits, (enum butler_type)type, block == 1 ? 1061 : block == 32 ? 1056 : 1280, &seed);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_do_not_depend_on_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
