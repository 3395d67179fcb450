/* Vector operations between the products, written once for every vector width: included by each ISA file after its vec*.h.
 * A tail runs the same instructions on a masked vector, so an element's result does not depend on its index. */
#ifndef BUTLER_SIMD_VECTORS_H
#define BUTLER_SIMD_VECTORS_H

/* e^x within 2 units in the last place; 0 below -104, infinity above 89, NaN for NaN. */
INLINE vec vec_exp(vec x)
{
    const vec within = vec_min(vec_set1(89.0f), vec_max(vec_set1(-104.0f), x)); /* NaN passes both: it is the second operand */
    const vec n = vec_round(vec_mul(within, vec_set1(1.44269504f)));
    /* x - n ln 2 in two steps: the first constant has few enough bits for its product with n to be exact. */
    vec r = vec_fnma(n, vec_set1(0.693359375f), within);
    r = vec_fnma(n, vec_set1(-2.12194440e-4f), r);
    /* e^r = 1 + r + r^2 g(r) for |r| <= ln 2 / 2: g fitted for the least relative error of the whole, 3.1e-9. */
    vec g = vec_set1(0x1.6a2440p-10f);
    g = vec_fma(g, r, vec_set1(0x1.1239e8p-7f));
    g = vec_fma(g, r, vec_set1(0x1.5558f2p-5f));
    g = vec_fma(g, r, vec_set1(0x1.555492p-3f));
    g = vec_fma(g, r, vec_set1(0x1.fffffcp-2f));
    return vec_scale2(vec_add(vec_fma(vec_mul(r, r), g, r), vec_set1(1.0f)), n);
}

/* 2^x, x <= 0, within 4 units in the last place, and no subnormal number: 2^-126 below. */
INLINE vec exp2_normal(vec x)
{
    const vec t = vec_max(vec_set1(-126.0f), x), n = vec_round(t), r = vec_sub(t, n);
    /* 2^r for |r| <= 1/2: 1 there where r is 0, else fitted for the least relative error, 9.2e-8. */
    vec y = vec_fma(vec_set1(0x1.5bba14p-10f), r, vec_set1(0x1.3cea88p-7f));
    y = vec_fma(y, r, vec_set1(0x1.c6b752p-5f));
    y = vec_fma(y, r, vec_set1(0x1.ebf9bcp-3f));
    y = vec_fma(y, r, vec_set1(0x1.62e42ap-1f));
    return vec_scale2_normal(vec_fma(y, r, vec_set1(1.0f)), n);
}

static float dot(const float *x, const float *y, int n)
{
    vec a = vec_zero(), b = a, c = a, d = a;
    int i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        a = vec_fma(vec_load(x + i), vec_load(y + i), a);
        b = vec_fma(vec_load(x + i + VEC), vec_load(y + i + VEC), b);
        c = vec_fma(vec_load(x + i + 2 * VEC), vec_load(y + i + 2 * VEC), c);
        d = vec_fma(vec_load(x + i + 3 * VEC), vec_load(y + i + 3 * VEC), d);
    }
    for (; i + VEC <= n; i += VEC)
        a = vec_fma(vec_load(x + i), vec_load(y + i), a);
    if (i < n)
        b = vec_fma(vec_load_some(x + i, n - i), vec_load_some(y + i, n - i), b);
    return vec_sum(vec_add(vec_add(a, b), vec_add(c, d)));
}

/* for each vector of y: v = y's lanes from i on; EXPRESSION may use i, and the loads of other arrays through AT(p). */
#define FOR_EACH_VEC(y, n, EXPRESSION)                                                                                             \
    do {                                                                                                                           \
        int i = 0;                                                                                                                 \
        for (; i + VEC <= (n); i += VEC)                                                                                           \
            vec_store((y) + i, EXPRESSION(vec_load));                                                                              \
        if (i < (n)) {                                                                                                             \
            int rest = (n)-i;                                                                                                      \
            vec_store_some((y) + i, EXPRESSION(LOAD_REST), rest);                                                                  \
        }                                                                                                                          \
    } while (0)
#define LOAD_REST(p) vec_load_some(p, rest)

static void add(float *y, const float *x, int n)
{
#define SUM(load) vec_add(load(y + i), load(x + i))
    FOR_EACH_VEC(y, n, SUM);
#undef SUM
}

static void axpy(float *y, float a, const float *x, int n)
{
#define SUM(load) vec_fma(vec_set1(a), load(x + i), load(y + i))
    FOR_EACH_VEC(y, n, SUM);
#undef SUM
}

static void scale(float *y, float a, int n)
{
#define PRODUCT(load) vec_mul(vec_set1(a), load(y + i))
    FOR_EACH_VEC(y, n, PRODUCT);
#undef PRODUCT
}

static void rms_norm(float *y, const float *x, const float *weight, int n, float eps)
{
    vec r = vec_set1(1.0f / sqrtf(dot(x, x, n) / (float)n + eps));
#define NORMED(load) vec_mul(vec_mul(load(x + i), r), load(weight + i))
    FOR_EACH_VEC(y, n, NORMED);
#undef NORMED
}

static void layer_norm(float *y, const float *x, const float *weight, const float *bias, int n, float eps)
{
    vec sum = vec_zero(), square = vec_zero();
    int k = 0;
    for (; k + VEC <= n; k += VEC)
        sum = vec_add(sum, vec_load(x + k));
    sum = vec_add(sum, vec_load_some(x + k, n - k));
    vec mean = vec_set1(vec_sum(sum) / (float)n);
    for (k = 0; k + VEC <= n; k += VEC) {
        vec d = vec_sub(vec_load(x + k), mean);
        square = vec_fma(d, d, square);
    }
    vec d = vec_keep(vec_sub(vec_load_some(x + k, n - k), mean), vec_zero(), n - k);
    square = vec_fma(d, d, square);
    vec r = vec_set1(1.0f / sqrtf(vec_sum(square) / (float)n + eps));
#define NORMED(load) vec_mul(vec_mul(vec_sub(load(x + i), mean), r), load(weight + i))
#define SHIFTED(load) vec_add(NORMED(load), load(bias + i))
    if (bias)
        FOR_EACH_VEC(y, n, SHIFTED);
    else
        FOR_EACH_VEC(y, n, NORMED);
#undef NORMED
#undef SHIFTED
}

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    /* gate / (1 + e^-gate), not gate times its sigmoid: so it is what the definition rounds to, also where e^-gate overflows. */
#define GATED(load)                                                                                                                \
    vec_mul(vec_div(load(gate + i), vec_add(vec_set1(1.0f), vec_exp(vec_sub(vec_zero(), load(gate + i))))), load(up + i))
    FOR_EACH_VEC(y, n, GATED);
#undef GATED
}

/* x (1 + tanh u) / 2 = x / (1 + e^-2u) */
INLINE vec vec_gelu(vec x)
{
    vec u = vec_mul(vec_fma(vec_mul(vec_set1(0.044715f), vec_mul(x, x)), x, x), vec_set1(-2 * 0.7978845608028654f));
    return vec_div(x, vec_add(vec_set1(1.0f), vec_exp(u)));
}

static void gelu(float *y, int n)
{
#define ACTIVATED(load) vec_gelu(load(y + i))
    FOR_EACH_VEC(y, n, ACTIVATED);
#undef ACTIVATED
}

/* From minus infinity on; NaN is passed over, as in group_max. */
static float max(const float *x, int n)
{
    vec a = vec_set1(-INFINITY), b = a;
    int i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        a = vec_max(vec_load(x + i), a);
        b = vec_max(vec_load(x + i + VEC), b);
    }
    for (; i + VEC <= n; i += VEC)
        a = vec_max(vec_load(x + i), a);
    b = vec_max(vec_keep(vec_load_some(x + i, n - i), b, n - i), b);
    return vec_max_all(vec_max(a, b));
}

static float exp_sum(float *x, float maximum, int n)
{
    vec m = vec_set1(maximum), a = vec_zero(), b = a;
    int i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        vec e = vec_exp(vec_sub(vec_load(x + i), m)), f = vec_exp(vec_sub(vec_load(x + i + VEC), m));
        vec_store(x + i, e);
        vec_store(x + i + VEC, f);
        a = vec_add(a, e);
        b = vec_add(b, f);
    }
    for (; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec e = vec_keep(vec_exp(vec_sub(vec_load_some(x + i, count), m)), vec_zero(), count);
        vec_store_some(x + i, e, count);
        a = vec_add(a, e);
    }
    return vec_sum(vec_add(a, b));
}

/* There is one cos and one sin per pair: each is copied to both lanes of the pair. */
static void rope_adjacent(float *x, const float *cos, const float *sin, int n_rot)
{
    int i = 0;
    for (; i + VEC <= n_rot; i += VEC) {
        vec v = vec_load(x + i);
        vec_store(x + i, vec_fma_sub_add(v, vec_load_twice(cos + i / 2), vec_mul(vec_swap(v), vec_load_twice(sin + i / 2))));
    }
    if (i + 1 < n_rot) {
        float c[VEC / 2] = {0}, s[VEC / 2] = {0};
        int rest = (n_rot - i) / 2;
        memcpy(c, cos + i / 2, (size_t)rest * sizeof *c);
        memcpy(s, sin + i / 2, (size_t)rest * sizeof *s);
        vec v = vec_load_some(x + i, 2 * rest);
        vec_store_some(x + i, vec_fma_sub_add(v, vec_load_twice(c), vec_mul(vec_swap(v), vec_load_twice(s))), 2 * rest);
    }
}

static void rope_halves(float *x, const float *cos, const float *sin, int n_rot)
{
    float *y = x + n_rot / 2;
    for (int i = 0; i < n_rot / 2; i += VEC) {
        int count = BUTLER_MIN(n_rot / 2 - i, VEC);
        vec a = vec_load_some(x + i, count), b = vec_load_some(y + i, count);
        vec c = vec_load_some(cos + i, count), s = vec_load_some(sin + i, count);
        vec_store_some(x + i, vec_fnma(b, s, vec_mul(a, c)), count);
        vec_store_some(y + i, vec_fma(a, s, vec_mul(b, c)), count);
    }
}

INLINE void fill_vectors(struct butler_kernels *table)
{
    table->dot = dot;
    table->add = add;
    table->axpy = axpy;
    table->scale = scale;
    table->rms_norm = rms_norm;
    table->layer_norm = layer_norm;
    table->silu_mul = silu_mul;
    table->gelu = gelu;
    table->max = max;
    table->exp_sum = exp_sum;
    table->rope_adjacent = rope_adjacent;
    table->rope_halves = rope_halves;
}

#endif
