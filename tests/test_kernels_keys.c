/* Predicted keys of 4, 8 and 16 bits: every ISA against the definition, between guard pages. Integer sums are exact, and so every
 * ISA must give plain C's bits for keys8 and keys4. */
#include "kernels/blocks.h"
#include "kernel_test.h"

enum { T = BUTLER_KEYS_TOKENS, MAX_RECORDS = 140, MAX_Q = 9, MAX_N = 128 };

static struct guarded memory, qs, out, factors;

static int make(void **state)
{
    (void)state;
    memory = guarded_new(MAX_RECORDS * (T * 2 * MAX_N + 64));
    qs = guarded_new(MAX_Q * MAX_N * sizeof(float));
    out = guarded_new(MAX_Q * (MAX_RECORDS * T + 3) * sizeof(float));
    factors = guarded_new(MAX_Q * sizeof(float));
    return 0;
}

static int destroy(void **state)
{
    (void)state;
    guarded_free(&memory);
    guarded_free(&qs);
    guarded_free(&out);
    guarded_free(&factors);
    return 0;
}

struct shape {
    int n, n_q, n_records;
    size_t record_bytes, stride, n_s;
    bool end;
    unsigned char *records;
    float *s;
};

static struct shape shape_of(int trial, int n, int n_q, size_t content, uint64_t *seed)
{
    struct shape shape = {.n = n, .n_q = n_q, .n_records = trial % 11 ? 1 + trial % 9 : MAX_RECORDS - trial % 12, .end = trial % 2};
    shape.record_bytes = content + (size_t)(trial % 3) * 2;
    shape.stride = (size_t)(shape.n_records * T) + (size_t)(trial % 2) * 3;
    shape.n_s = (size_t)(n_q - 1) * shape.stride + (size_t)(shape.n_records * T);
    const size_t bytes = shape.record_bytes * (size_t)(shape.n_records - 1) + content;
    shape.records = guarded_at(&memory, bytes, shape.end, 0);
    shape.s = guarded_at(&out, shape.n_s * sizeof(float), shape.end, 0);
    for (size_t i = 0; i < bytes; i++)
        shape.records[i] = (unsigned char)butler_random(seed);
    for (size_t i = 0; i < shape.n_s; i++)
        shape.s[i] = 777;
    return shape;
}

static void put_half(unsigned char *at, float x)
{
    const uint16_t h = butler_float_to_half(x);
    memcpy(at, &h, 2);
}

static void check_integers(int bits)
{
    const char *name = bits == 8 ? "keys8" : "keys4";
    const int step = 32 / bits;
    uint64_t seed = 3;
    int trial = 0;
    FOR_EACH_ISA(table)
    {
        for (int n = step; n <= MAX_N; n += n < 32 ? step : 32)
            for (int n_q = 1; n_q <= MAX_Q; n_q++, trial++) {
                struct shape shape = shape_of(trial, n, n_q, (size_t)(T + T * n * bits / 8), &seed);
                int8_t *q = guarded_at(&qs, (size_t)(n_q * n), shape.end, 0);
                float *factor = guarded_at(&factors, (size_t)n_q * sizeof *factor, shape.end, 0);
                for (int i = 0; i < n_q * n; i++)
                    q[i] = trial % 5 == 4 ? -127 : (int8_t)(int)(butler_random(&seed) % 255 - 127);
                for (int i = 0; i < n_q; i++)
                    factor[i] = butler_random_normal(&seed);
                for (int r = 0; r < shape.n_records; r++) {
                    unsigned char *record = shape.records + (size_t)r * shape.record_bytes;
                    if (trial % 5 == 4) /* the extremes: a 16-bit sum would not hold two of them */
                        memset(record + T, r % 2 ? 255 : 0, (size_t)(T * n * bits / 8));
                }
                (bits == 8 ? table->keys8 : table->keys4)(
                    (struct butler_results){shape.s, shape.stride}, (struct butler_byte_queries){q, factor, n_q},
                    (struct butler_records){shape.records, shape.record_bytes, shape.n_records}, n);
                for (int i = 0; i < n_q; i++)
                    for (size_t j = 0; j < shape.stride && (size_t)i * shape.stride + j < shape.n_s; j++) {
                        const float got = shape.s[(size_t)i * shape.stride + j];
                        if (j >= (size_t)(shape.n_records * T)) {
                            assert_true(got == 777);
                            continue;
                        }
                        const int t = (int)j % T;
                        const unsigned char *record = shape.records + j / T * shape.record_bytes, *k = record + T;
                        long sum = 0;
                        for (int d = 0; d < n; d++) {
                            const long byte = k[(d / step * T + t) * 4 + d % 4];
                            sum += (long)q[i * n + d] * (bits == 8 ? byte - 128 : d % 8 < 4 ? byte % 16 - 8 : byte / 16 - 8);
                        }
                        const float scale = ldexpf(1 + (float)(record[t] % 8) / 8, record[t] / 8 - 23);
                        assert_same_bits(name, table->isa, n, (int)j, got, (float)sum * scale * factor[i]);
                    }
            }
    }
}

/* A scale is the lowest of 256 that is no less than what is asked for. */
static void key_scales(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        const float scale = ldexpf(1 + (float)(b % 8) / 8, b / 8 - 23);
        assert_true(key_scale((uint8_t)b) == scale);
        assert_int_equal(to_key_scale(scale), b);
        assert_int_equal(to_key_scale(nextafterf(scale, 0)), b);
        assert_int_equal(to_key_scale(nextafterf(scale, INFINITY)), b < 255 ? b + 1 : 255);
    }
    assert_int_equal(to_key_scale(0), 0);
    assert_int_equal(to_key_scale(0x1p-149f), 0);
    assert_int_equal(to_key_scale(-1), 0);
    assert_int_equal(to_key_scale(NAN), 0);
    assert_int_equal(to_key_scale(INFINITY), 255);
}

static void keys8(void **state)
{
    (void)state;
    check_integers(8);
}

static void keys4(void **state)
{
    (void)state;
    check_integers(4);
}

static void keys16(void **state)
{
    uint64_t seed = 4;
    int trial = 0;
    (void)state;
    FOR_EACH_ISA(table)
    {
        for (int n = 4; n <= MAX_N; n += n < 32 ? 4 : 32)
            for (int n_q = 1; n_q <= MAX_Q; n_q++, trial++) {
                struct shape shape = shape_of(trial, n, n_q, (size_t)(T * 2 * n), &seed);
                float *q = guarded_at(&qs, (size_t)(n_q * n) * sizeof *q, shape.end, 0), alone[T];
                fill_random(q, (size_t)(n_q * n), trial % 5 == 4 ? ZEROS : NORMAL, &seed);
                for (int r = 0; r < shape.n_records; r++)
                    for (int i = 0; i < n * T; i++)
                        put_half(shape.records + (size_t)r * shape.record_bytes + 2 * i, butler_random_normal(&seed));
                table->keys16(shape.s, shape.stride, q, n_q, shape.records, shape.record_bytes, shape.n_records, n);
                for (int i = 0; i < n_q; i++) {
                    for (size_t j = 0; j < shape.stride && (size_t)i * shape.stride + j < shape.n_s; j++) {
                        const float got = shape.s[(size_t)i * shape.stride + j];
                        if (j >= (size_t)(shape.n_records * T)) {
                            assert_true(got == 777);
                            continue;
                        }
                        const unsigned char *record = shape.records + j / T * shape.record_bytes;
                        double sum = 0, magnitude = 0;
                        for (int d = 0; d < n; d++) {
                            const double term = (double)q[i * n + d] * half_at(record + 2 * (d * T + (int)j % T));
                            sum += term;
                            magnitude += fabs(term);
                        }
                        assert_near("keys16", table->isa, n, (int)j, got, sum, (n + 12) * EPS * magnitude + (n + 1) * 0x1p-149);
                    }
                    table->keys16(alone, T, q + i * n, 1, shape.records, shape.record_bytes, 1, n);
                    for (int t = 0; t < T; t++)
                        assert_same_bits("keys16", table->isa, n, t, alone[t], shape.s[(size_t)i * shape.stride + (size_t)t]);
                }
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(key_scales), cmocka_unit_test(keys8), cmocka_unit_test(keys4),
                                       cmocka_unit_test(keys16)};
    return cmocka_run_group_tests(tests, make, destroy);
}
