/* Selection: score -> ids. A radix descent over the floats' bits finds the k-th highest score in three passes of
 * counting, so that nothing is ever sorted for a plain budget. Over a long text one score in SAMPLE is looked at first:
 * that gives a bound which few scores besides the k highest reach, and the descent has only those to do with. */
#include <math.h>
#include <string.h>

#include "select.h"

/* Maps floats to integers of the same order; NaN, which compares with nothing, becomes the lowest. */
static uint32_t sortable(float f)
{
    uint32_t u;
    if (f != f)
        return 0;
    f += 0.0f; /* -0 and +0 are a tie */
    memcpy(&u, &f, sizeof u);
    return u ^ (-(u >> 31) | 0x80000000u);
}

/* The float a key stands for; of the key of NaN, the lowest there is. */
static float from_sortable(uint32_t key)
{
    float f;
    if (key == 0)
        return -INFINITY;
    key = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    memcpy(&f, &key, sizeof f);
    return f;
}

/* The key of the k-th highest of the scores at ids[n] (1 <= k <= n), and in *n_equal how many with exactly that key
 * belong to the k highest. */
static uint32_t kth_key(const float *scores, const uint32_t *ids, int n, int k, int *n_equal)
{
    uint32_t prefix = 0, mask = 0;
    static const struct {
        int shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    for (int d = 0; d < BUTLER_COUNT(digits); d++) {
        uint32_t count[2048] = {0};
        const int shift = digits[d].shift;
        const uint32_t low = (1u << digits[d].bits) - 1;
        for (int i = 0; i < n; i++) {
            const uint32_t key = sortable(scores[ids[i]]);
            count[key >> shift & low] += (key & mask) == prefix; /* no branch: see likely() */
        }
        uint32_t digit = low;
        while (count[digit] < (uint32_t)k)
            k -= (int)count[digit--];
        prefix |= digit << shift;
        mask |= low << shift;
    }
    *n_equal = k;
    return prefix;
}

enum {
    SAMPLE = 16,      /* one score in so many is sampled */
    SAMPLED_N = 2048, /* shorter lists are not worth it */
};

/* Indices in [first, end) whose score reaches a bound that the k highest are all but sure to reach, ascending, into ids;
 * their number. The margin is four standard deviations of how many of the k highest a sample of this size holds. */
static int likely(const float *scores, int first, int end, int k, uint32_t *ids)
{
    const int n_sample = (end - first) / SAMPLE;
    const double expected = (double)k / SAMPLE;
    int n_equal, n_likely = 0;
    for (int i = 0; i < n_sample; i++)
        ids[i] = (uint32_t)(first + i * SAMPLE);
    const float bound = from_sortable(kth_key(scores, ids, n_sample, (int)(expected + 4 * sqrt(expected) + 4), &n_equal));
    for (int i = first; i < end; i++) { /* without a branch: nothing here can be predicted */
        ids[n_likely] = (uint32_t)i;
        n_likely += scores[i] >= bound;
    }
    return n_likely;
}

/* The k highest of scores [first, end) into ids, ascending. */
static void top(const float *scores, int first, int end, int k, uint32_t *ids)
{
    int n_equal, n_kept = 0, n = 0;
    if (end - first >= SAMPLED_N && k < (end - first) / 4)
        n = likely(scores, first, end, k, ids);
    if (n < k) /* not sampled, or an unlucky sample: all are candidates */
        for (n = 0; n < end - first; n++)
            ids[n] = (uint32_t)(first + n);
    const uint32_t threshold = kth_key(scores, ids, n, k, &n_equal);
    for (int i = 0; i < n; i++) {
        const uint32_t key = sortable(scores[ids[i]]);
        const int equal = key == threshold && n_equal > 0;
        ids[n_kept] = ids[i];
        n_kept += key > threshold || equal;
        n_equal -= equal;
    }
}

int butler_select_top(const float *scores, int n, int budget, int first, int last, uint32_t *ids)
{
    if (budget >= n || first + last >= n) {
        for (int i = 0; i < n; i++)
            ids[i] = (uint32_t)i;
        return n;
    }
    const int k = BUTLER_MAX(budget - first - last, 0), end = n - last;
    for (int i = 0; i < first; i++)
        ids[i] = (uint32_t)i;
    if (k > 0)
        top(scores, first, end, k, ids + first);
    for (int i = 0; i < last; i++)
        ids[first + k + i] = (uint32_t)(end + i);
    return first + k + last;
}

/* Sorts order[n] by descending score, equal scores by ascending index: least significant digit first, stable. */
static void sort_descending(const float *scores, uint32_t *order, uint32_t *other, int n)
{
    for (int shift = 0; shift < 32; shift += 8) {
        uint32_t start[257] = {0};
        for (int i = 0; i < n; i++)
            start[(~sortable(scores[order[i]]) >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++)
            start[d + 1] += start[d];
        for (int i = 0; i < n; i++)
            other[start[~sortable(scores[order[i]]) >> shift & 255]++] = order[i];
        uint32_t *const swap = order;
        order = other;
        other = swap;
    }
}

int butler_select_mass(const float *scores, int n, double mass, int first, int last, uint32_t *order, uint32_t *ids)
{
    double total = 0, kept = 0;
    int n_top = 0;
    if (first + last >= n)
        return butler_select_top(scores, n, n, first, last, ids);
    for (int i = 0; i < n; i++) {
        const double p = scores[i] > 0 ? scores[i] : 0;
        total += p;
        if (i < first || i >= n - last)
            kept += p;
    }
    const int n_free = n - first - last;
    for (int i = 0; i < n_free; i++)
        order[i] = (uint32_t)(first + i);
    sort_descending(scores, order, ids, n_free);
    for (; n_top < n_free && kept < mass * total; n_top++)
        kept += scores[order[n_top]] > 0 ? scores[order[n_top]] : 0;
    /* The chosen are the n_top highest in the same order of preference that butler_select_top has. */
    return butler_select_top(scores, n, first + last + n_top, first, last, ids);
}
