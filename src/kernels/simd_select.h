/* Scans over scores that end in a selection, written once for every vector width: included by each ISA file after its vec*.h
 * and simd_vectors.h. */
#ifndef BUTLER_SIMD_SELECT_H
#define BUTLER_SIMD_SELECT_H

/* In one pass, for long rows of many heads lie beyond the second cache: sums against the maximum so far, which are scaled down
 * where a chunk has a higher one. What is too small for a normal number beside a 1 counts as one of those. */
static float log_sum_exp(const float *x, float factor, int n)
{
    enum { CHUNK = 1024 };
    const float binary = factor * 1.44269504f; /* powers of 2 take fewer instructions */
    const vec f = vec_set1(binary);
    vec a = vec_zero(), b = a;
    float maximum = -INFINITY;
    for (int count; n > 0; x += count, n -= count) {
        count = BUTLER_MIN(n, CHUNK);
        const float most = max(x, count);
        if (most > maximum) {
            const vec less = vec_set1(exp2f((maximum - most) * binary));
            a = vec_mul(a, less);
            b = vec_mul(b, less);
            maximum = most;
        }
        /* What is added where there is no number yet, the first maximum takes away. */
        const vec m = vec_set1(maximum > -INFINITY ? -maximum * binary : 0);
        int i = 0;
        for (; i + 2 * VEC <= count; i += 2 * VEC) {
            a = vec_add(a, exp2_normal(vec_fma(vec_load(x + i), f, m)));
            b = vec_add(b, exp2_normal(vec_fma(vec_load(x + i + VEC), f, m)));
        }
        for (; i < count; i += VEC) {
            const int rest = BUTLER_MIN(count - i, VEC);
            const vec e = exp2_normal(vec_fma(vec_load_some(x + i, rest), f, m));
            a = vec_add(a, vec_keep(e, vec_zero(), rest));
        }
    }
    return maximum * factor + logf(vec_sum(vec_add(a, b)));
}

static void moments(const float *x, int n, float *mean, float *deviation)
{
    const vec first = vec_set1(x[0]);
    vec sum = vec_zero(), sum_b = sum, square = sum, square_b = sum;
    int i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        const vec a = vec_sub(vec_load(x + i), first), b = vec_sub(vec_load(x + i + VEC), first);
        sum = vec_add(sum, a);
        sum_b = vec_add(sum_b, b);
        square = vec_fma(a, a, square);
        square_b = vec_fma(b, b, square_b);
    }
    for (; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        const vec a = vec_keep(vec_sub(vec_load_some(x + i, count), first), vec_zero(), count);
        sum = vec_add(sum, a);
        square = vec_fma(a, a, square);
    }
    const float shift = vec_sum(vec_add(sum, sum_b)) / (float)n;
    const float variance = vec_sum(vec_add(square, square_b)) / (float)n - shift * shift;
    *mean = x[0] + shift;
    *deviation = sqrtf(variance < 0 ? 0 : variance);
}

/* The maximum starts from minus infinity and stays where a number is NaN: vec_max gives its second operand then. */
static void group_max(float *y, const float *x, size_t x_stride, const float *scale, const float *shift, int n_rows, int n)
{
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec m = vec_set1(-INFINITY);
        for (int r = 0; r < n_rows; r++)
            m = vec_max(vec_sub(vec_mul(vec_load(x + (size_t)r * x_stride + i), vec_set1(scale[r])), vec_set1(shift[r])), m);
        vec_store(y + i, m);
    }
    if (i < n) {
        vec m = vec_set1(-INFINITY);
        for (int r = 0; r < n_rows; r++)
            m = vec_max(
                vec_sub(vec_mul(vec_load_some(x + (size_t)r * x_stride + i, n - i), vec_set1(scale[r])), vec_set1(shift[r])), m);
        vec_store_some(y + i, m, n - i);
    }
}

static int count_reaching(const float *x, float bound, int n)
{
    const vec b = vec_set1(bound);
    int count = 0, i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        uint64_t bits = 0;
        UNROLL
        for (int k = 0; k < 4; k++)
            bits |= (uint64_t)vec_reaches(vec_load(x + i + k * VEC), b) << (k * VEC);
        count += __builtin_popcountll(bits);
    }
    for (; i < n; i++)
        count += x[i] >= bound;
    return count;
}

static int list_reaching(uint32_t *ids, uint32_t first, const float *x, float bound, int n)
{
    const vec b = vec_set1(bound);
    int count = 0, i = 0;
    for (; i + VEC <= n; i += VEC) {
        const uint32_t bits = vec_reaches(vec_load(x + i), b);
        vec_store_set(ids + count, first + (uint32_t)i, bits); /* what it writes beyond lies within the first i + VEC ids */
        count += __builtin_popcount(bits);
    }
    for (; i < n; i++) {
        ids[count] = first + (uint32_t)i;
        count += x[i] >= bound;
    }
    return count;
}

/* In place: what is written beyond was read before. */
static int keep_reaching(uint32_t *ids, const float *x, float bound, int n)
{
    const vec b = vec_set1(bound);
    int count = 0, i = 0;
    for (; i + VEC <= n; i += VEC) {
        const uint32_t bits = vec_reaches(vec_load(x + i), b);
        vec_store_kept(ids + count, ids + i, bits);
        count += __builtin_popcount(bits);
    }
    for (; i < n; i++) {
        ids[count] = ids[i];
        count += x[i] >= bound;
    }
    return count;
}

static int note_bytes(uint64_t *bits, const uint8_t *bytes, int n_words)
{
    int n_common = 0;
    for (int w = 0; w < n_words; w++) {
        const uint64_t word = vec_bits_of_bytes(bytes + (size_t)w * 64);
        n_common += __builtin_popcountll(word & bits[w]);
        bits[w] = word;
    }
    return n_common;
}

static int keep_between(float *values, const float *x, float low, float high, int n, int *n_high)
{
    const vec l = vec_set1(low), h = vec_set1(high);
    int count = 0, above = 0, i = 0;
    for (; i + VEC <= n; i += VEC) {
        const vec v = vec_load(x + i);
        const uint32_t reach = vec_reaches(v, h), kept = vec_reaches(v, l) & ~reach;
        vec_store_kept(values + count, x + i, kept); /* what it writes beyond lies within the first i + VEC values */
        count += __builtin_popcount(kept);
        above += __builtin_popcount(reach);
    }
    for (; i < n; i++) {
        values[count] = x[i];
        count += x[i] >= low && !(x[i] >= high);
        above += x[i] >= high;
    }
    *n_high = above;
    return count;
}

INLINE void fill_select(struct butler_kernels *table)
{
    table->log_sum_exp = log_sum_exp;
    table->moments = moments;
    table->group_max = group_max;
    table->count_reaching = count_reaching;
    table->list_reaching = list_reaching;
    table->keep_reaching = keep_reaching;
    table->keep_between = keep_between;
    table->note_bytes = note_bytes;
}

#endif
