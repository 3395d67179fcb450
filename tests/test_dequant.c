/* Each tensor type as the gguf package decodes it: rows with random quants, zero and full blocks, negative and subnormal
 * scales, on each ISA of this machine; the product with a vector; a small model of each type from prompt to logits.
 * tools/fixtures/make_test_models.py writes the data. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "butler.h"
#include "fixtures.h"
#include "share.h"
#include "tiny_model.h"

struct rows {
    char name[32];
    int type, n_rows, n_cols;
    size_t row_bytes;
    unsigned char *data;
    float *expected; /* [n_rows][n_cols] */
};

static struct rows all[BUTLER_N_TYPES];
static int n_all;

static int load_manifest(void **state)
{
    (void)state;
    char path[FIXTURE_PATH], line[512], bin[256], f32[256];
    fixture_path(path, "dequant/manifest.txt");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#')
            continue;
        assert_true(n_all < BUTLER_N_TYPES);
        struct rows *r = &all[n_all++];
        assert_int_equal(sscanf(line, "%31s %d %d %d %255s %255s", r->name, &r->type, &r->n_rows, &r->n_cols, bin, f32), 6);
        size_t n_bytes = 0;
        r->data = fixture_read(bin, &n_bytes);
        assert_non_null(r->data);
        r->row_bytes = n_bytes / (size_t)r->n_rows;
        r->expected = fixture_read(f32, &n_bytes);
        assert_non_null(r->expected);
        assert_int_equal(n_bytes, sizeof(float) * (size_t)(r->n_rows * r->n_cols));
    }
    fclose(file);
    return 0;
}

static int free_manifest(void **state)
{
    (void)state;
    for (int i = 0; i < n_all; i++) {
        free(all[i].data);
        free(all[i].expected);
    }
    return 0;
}

static void every_type_is_here(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < BUTLER_N_TYPES; type++) {
        int found = 0;
        for (int j = 0; j < n_all; j++)
            found += all[j].type == (int)type;
        assert_int_equal(found, butler_type_known(type));
    }
}

/* Scale * quant - minimum may be rounded once (fused) or twice: 4 units in the last place of the largest of the 32 elements
 * of the block. Types without arithmetic must be exact. */
static float allowed(const struct rows *r, const float *expected, int c)
{
    float largest = 0;
    if (r->type == BUTLER_F32 || r->type == BUTLER_F16 || r->type == BUTLER_BF16)
        return 0;
    for (int i = c / 32 * 32; i < c / 32 * 32 + 32; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    return largest * 0x1p-21f;
}

static void rows_decode(void **state)
{
    (void)state;
    for (const char *const *isa = butler_kernels_available(); *isa; isa++) {
        const struct butler_kernels *kernels = butler_kernels_get(*isa);
        assert_non_null(kernels);
        for (int i = 0; i < n_all; i++) {
            const struct rows *r = &all[i];
            assert_non_null(kernels->dequant[r->type]);
            float *y = malloc(sizeof(float) * (size_t)r->n_cols);
            unsigned char *odd = malloc(r->row_bytes + 1); /* the row at an odd address, ending at the end of memory */
            assert_true(y && odd);
            for (int row = 0; row < r->n_rows; row++) {
                const float *expected = r->expected + (size_t)row * (size_t)r->n_cols;
                memcpy(odd + 1, r->data + (size_t)row * r->row_bytes, r->row_bytes);
                memset(y, 0xff, sizeof(float) * (size_t)r->n_cols);
                kernels->dequant[r->type](y, odd + 1, r->n_cols);
                for (int c = 0; c < r->n_cols; c++)
                    if (!(fabsf(y[c] - expected[c]) <= allowed(r, expected, c)))
                        fail_msg("%s %s row %d element %d: %.9g, should be %.9g", *isa, r->name, row, c, (double)y[c],
                                 (double)expected[c]);
            }
            free(odd);
            free(y);
        }
    }
}

static void rows_multiply(void **state)
{
    (void)state;
    for (const char *const *isa = butler_kernels_available(); *isa; isa++) {
        const struct butler_kernels *kernels = butler_kernels_get(*isa);
        for (int i = 0; i < n_all; i++) {
            const struct rows *r = &all[i];
            if (r->type == BUTLER_BF16) /* these rows reach 1e38 and overflow any product; models cover the type */
                continue;
            uint64_t seed = 5;
            float *x = malloc(sizeof(float) * (size_t)r->n_cols), *y = malloc(sizeof(float) * (size_t)r->n_rows);
            assert_true(x && y);
            for (int c = 0; c < r->n_cols; c++)
                x[c] = butler_random_normal(&seed);
            kernels->gemv[r->type](y, r->data, r->row_bytes, r->n_rows, x, r->n_cols);
            for (int row = 0; row < r->n_rows; row++) {
                const float *w = r->expected + (size_t)row * (size_t)r->n_cols;
                double sum = 0, size = 0;
                for (int c = 0; c < r->n_cols; c++) {
                    sum += (double)w[c] * (double)x[c];
                    size += fabs((double)w[c] * (double)x[c]);
                }
                if (!(fabs((double)y[row] - sum) <= 1e-5 * size))
                    fail_msg("%s %s row %d: product %.9g, should be %.9g (terms add up to %.3g)", *isa, r->name, row,
                             (double)y[row], sum, size);
            }
            free(x);
            free(y);
        }
    }
}

enum { TEXT = 40, PROMPT = 33, VOCAB = 48 };

struct collected {
    float logits[TEXT * VOCAB]; /* [TEXT][VOCAB] */
    int n;
};

static bool collect(void *user, int position, const float *logits)
{
    struct collected *c = user;
    assert_int_equal(position, c->n++);
    memcpy(c->logits + position * VOCAB, logits, VOCAB * sizeof *logits);
    return true;
}

/* Logits of a text: a prompt in one pass, then single steps. */
static void run_text(const char *path, const char *isa, int bits, struct collected *c)
{
    struct butler_error err = {0};
    int32_t ids[TEXT];
    c->n = 0;
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine =
        model ? butler_engine_new(
                    model, &(struct butler_engine_params){.isa = isa, .n_threads = 1, .kv_bytes = 1 << 24, .activation_bits = bits},
                    &err)
              : NULL;
    struct butler_session *session =
        engine ? butler_session_new(engine, &(struct butler_session_params){.n_ctx = TEXT, .kv_type = BUTLER_KV_F32}, &err) : NULL;
    if (!session)
        fail_msg("%s, %s: %s", path, isa, err.message);
    for (int i = 0; i < TEXT; i++)
        ids[i] = i * 7 % VOCAB;
    assert_true(butler_prefill(session, ids, PROMPT, collect, c, &err) >= 0);
    assert_int_equal(c->n, PROMPT);
    for (int i = PROMPT; i < TEXT; i++) {
        assert_true(butler_step(session, ids[i], &err) >= 0);
        memcpy(c->logits + i * VOCAB, butler_logits(session), VOCAB * sizeof(float));
    }
    butler_session_free(session);
    butler_engine_free(engine);
    butler_model_free(model);
}

/* They are apart by at most that share of the greatest. */
static void compare(const struct collected *typed, const struct collected *widened, enum butler_type type, const char *isa,
                    double tolerance)
{
    double most = 0, apart = 0;
    for (int k = 0; k < TEXT * VOCAB; k++) {
        assert_true(isfinite(widened->logits[k]) && isfinite(typed->logits[k]));
        most = fmax(most, fabs((double)widened->logits[k]));
        apart = fmax(apart, fabs((double)widened->logits[k] - (double)typed->logits[k]));
    }
    assert_true(most > 0.1);
    if (!(apart <= tolerance * most))
        fail_msg("%s, %s: logits of up to %.3g differ by %.2g", butler_types[type].name, isa, most, apart);
}

/* A small model of each type against one with the same values in F32: they differ by the rounding of activations to 16 or 8 bits.
 */
static void models_run(void **state)
{
    (void)state;
    static struct collected typed, widened;
    for (uint32_t type = 0; type < BUTLER_N_TYPES; type++) {
        if (!butler_type_known(type) || !in_share((int)type))
            continue;
        struct tiny tiny = tiny_default;
        tiny.n_embd = 256;
        tiny.n_ff = 256;
        tiny.head_dim = 64;
        tiny.n_vocab = VOCAB;
        tiny.matrix_type = (enum butler_type)type;
        char path[160], wide_path[160];
        snprintf(path, sizeof path, "%s", tiny_path("typed.gguf"));
        snprintf(wide_path, sizeof wide_path, "%s", tiny_path("widened.gguf"));
        tiny_write(path, &tiny);
        tiny.widened = true;
        tiny_write(wide_path, &tiny);
        run_text(wide_path, "ref", 16, &widened);
        for (const char *const *isa = butler_kernels_available(); *isa; isa++) {
            run_text(path, *isa, 16, &typed);
            compare(&typed, &widened, (enum butler_type)type, *isa, 1e-3);
            run_text(path, *isa, 8, &typed);
            compare(&typed, &widened, (enum butler_type)type, *isa, 1e-1);
        }
    }
}

/* The error for a type that we cannot read names it, and the types that load. */
static void other_types_are_named(void **state)
{
    (void)state;
    struct butler_error err = {0};
    struct tiny tiny = tiny_default;
    const char *path = tiny_path("other.gguf");
    tiny_write(path, &tiny);
    struct tiny_bytes bytes = tiny_read(path);
    const char name[] = "blk.0.attn_q.weight";
    unsigned char *at = memmem(bytes.data, bytes.size, name, sizeof name - 1);
    assert_non_null(at);
    at[sizeof name - 1 + 4 + 16] = 16; /* behind the number of dimensions and two of them */
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, file), bytes.size);
    fclose(file);
    free(bytes.data);
    assert_null(butler_model_load(path, NULL, &err));
    if (!strstr(err.message, "blk.0.attn_q.weight") || !strstr(err.message, "IQ2_XXS (16)") ||
        !strstr(err.message, " Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0"))
        fail_msg("%s", err.message);
}

static int clean(void **state)
{
    return free_manifest(state) | tiny_clean(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_here), cmocka_unit_test(rows_decode),           cmocka_unit_test(rows_multiply),
        cmocka_unit_test(models_run),         cmocka_unit_test(other_types_are_named),
    };
    return cmocka_run_group_tests_name("dequant", tests, load_manifest, clean);
}
