/* Selection: score -> ids. The k-th highest score is found by counting how many scores reach a bound: one that is guessed, then
 * the middle of the floats that remain; passes of nothing but comparisons. Over a long text one score in SAMPLE is looked at
 * first: that gives a bound which few scores besides the k highest reach, and only those are counted further. */
#include <math.h>
#include <string.h>

#include "cpu/select.h"

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

/* The float a key stands for; above the key of infinity NaN, which nothing reaches. */
static float from_sortable(uint32_t key)
{
    float f;
    key = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    memcpy(&f, &key, sizeof f);
    return f;
}

/* How many standard deviations above the mean a share p of normal numbers reaches (Abramowitz and Stegun, 26.2.22). */
static double normal_tail(double p)
{
    const double t = sqrt(-2 * log(p < 0.5 ? p : 1 - p)), z = t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t));
    return p < 0.5 ? z : -z;
}

/* Guesses of a bound that k of n numbers reach, as if they were normal: from their mean and deviation, then from the last two
 * bounds that were tried. */
struct guess {
    double at, z, slope, z_k;
};

static struct guess first_guess(const struct butler_kernels *kernels, const float *x, int n, int k)
{
    float mean, deviation;
    kernels->moments(x, n, &mean, &deviation);
    return (struct guess){mean, 0, deviation, normal_tail(BUTLER_MIN(k, n - 0.5) / n)};
}

static void next_guess(struct guess *guess, float bound, int n_reach, int n, bool first)
{
    const double z = normal_tail(BUTLER_MIN(BUTLER_MAX(n_reach, 0.5), n - 0.5) / n), slope = (bound - guess->at) / (z - guess->z);
    if (slope > 0 && !first)
        guess->slope = slope;
    guess->at = bound;
    guess->z = z;
}

/* The highest bound that at least k of x[n] reach (1 <= k <= n), or one that exactly k reach. False where fewer than k are
 * numbers. Guesses find it in a quarter of the steps that halving takes, or, where the numbers are nothing like normal, not. */
static bool kth_highest(const struct butler_kernels *kernels, const float *x, int n, int k, float *bound)
{
    enum { GUESSES = 6, GUESSED_N = 256 /* of fewer numbers halving is as fast */ };
    uint32_t low = sortable(-INFINITY), high = sortable(INFINITY);
    int reach = kernels->count_reaching(x, -INFINITY, n), n_guesses = n < GUESSED_N ? 0 : GUESSES;
    struct guess guess;
    if (reach < k)
        return false;
    if (n_guesses > 0)
        guess = first_guess(kernels, x, n, k);
    for (int step = 0; reach > k && low < high; step++) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (step < n_guesses) {
            const uint32_t guessed = sortable((float)(guess.at + guess.slope * (guess.z_k - guess.z)));
            middle = low < guessed && guessed <= high ? guessed : middle;
        }
        const float tried = from_sortable(middle);
        const int n_reach = kernels->count_reaching(x, tried, n);
        if (step < n_guesses)
            next_guess(&guess, tried, n_reach, n, step == 0);
        if (n_reach >= k) {
            low = middle;
            reach = n_reach;
        } else
            high = middle - 1;
    }
    *bound = from_sortable(low);
    return true;
}

enum {
    SAMPLE = 16,      /* one score in so many is sampled */
    SAMPLED_N = 2048, /* shorter lists are not worth it */
};

/* Indices in [first, end) whose score reaches a bound that the k highest are all but sure to reach, ascending, into ids;
 * their number. The margin is four standard deviations of how many of the k highest a sample of this size holds. */
static int likely(const struct butler_kernels *kernels, const float *scores, int first, int end, int k, float *sample,
                  uint32_t *ids)
{
    const int n_sample = (end - first) / SAMPLE;
    const double expected = (double)k / SAMPLE;
    float bound;
    for (int i = 0; i < n_sample; i++)
        sample[i] = scores[first + i * SAMPLE];
    if (!kth_highest(kernels, sample, n_sample, (int)(expected + 4 * sqrt(expected) + 4), &bound))
        return 0;
    return kernels->list_reaching(ids, (uint32_t)first, scores + first, bound, end - first);
}

/* kth_highest of scores [first, end) where k is a large share of them: the sample bounds it on both sides, and only what lies
 * between is halved. False where the sample was unlucky. */
static bool between(const struct butler_kernels *kernels, const float *scores, int first, int end, int k, float *values,
                    float *bound)
{
    const int n = end - first, n_sample = n / SAMPLE;
    const double expected = (double)k / SAMPLE, margin = 4 * sqrt(expected) + 4;
    float high, low;
    int n_high;
    if (expected - margin < 1 || expected + margin > n_sample)
        return false;
    for (int i = 0; i < n_sample; i++)
        values[i] = scores[first + i * SAMPLE];
    if (!kth_highest(kernels, values, n_sample, (int)(expected - margin), &high) ||
        !kth_highest(kernels, values, n_sample, (int)(expected + margin), &low))
        return false;
    const int n_between = kernels->keep_between(values, scores + first, low, high, n, &n_high);
    if (n_high >= k || n_high + n_between < k)
        return false;
    if (n_high + n_between == k) { /* any lower bound would do for what is between, but not for the rest */
        *bound = low;
        return true;
    }
    return kth_highest(kernels, values, n_between, k - n_high, bound);
}

/* Of equal scores the first are preferred: more than k of x[n] may reach bound, and the last that equal it are too many. The place
 * of the first of those; before it what reaches bound is chosen, behind it what reaches *above, the next float. */
static int first_left_out(const struct butler_kernels *kernels, const float *x, int n, int k, float bound, float *above)
{
    enum { CHUNK = 256 };
    int at = n, n_extra = kernels->count_reaching(x, bound, n) - k;
    *above = from_sortable(sortable(bound) + 1);
    while (n_extra > 0) {
        const int chunk = BUTLER_MIN(at, CHUNK);
        const float *from = x + at - chunk;
        const int n_equal = kernels->count_reaching(from, bound, chunk) - kernels->count_reaching(from, *above, chunk);
        if (n_equal >= n_extra)
            break;
        n_extra -= n_equal;
        at -= chunk;
    }
    while (n_extra > 0)
        n_extra -= x[--at] == bound;
    return at;
}

/* The k highest of scores [first, end) into ids, ascending. */
static void top(const struct butler_kernels *kernels, const float *scores, int first, int end, int k, float *values, uint32_t *ids)
{
    const float *x = scores + first;
    const int n = end - first;
    int n_listed = 0;
    float bound, above;
    if (n >= SAMPLED_N && k < n / 4)
        n_listed = likely(kernels, scores, first, end, k, values, ids);
    if (n_listed >= k) {
        for (int i = 0; i < n_listed; i++)
            values[i] = scores[ids[i]];
        kth_highest(kernels, values, n_listed, k, &bound); /* they reach a bound: all are numbers */
        const int cut = first_left_out(kernels, values, n_listed, k, bound, &above);
        const int n_kept = kernels->keep_reaching(ids, values, bound, cut);
        const int n_more = kernels->keep_reaching(ids + cut, values + cut, above, n_listed - cut);
        memmove(ids + n_kept, ids + cut, (size_t)n_more * sizeof *ids);
    } else if ((n >= SAMPLED_N && between(kernels, scores, first, end, k, values, &bound)) ||
               kth_highest(kernels, x, n, k, &bound)) {
        const int cut = first_left_out(kernels, x, n, k, bound, &above);
        const int n_kept = kernels->list_reaching(ids, (uint32_t)first, x, bound, cut);
        kernels->list_reaching(ids + n_kept, (uint32_t)(first + cut), x + cut, above, n - cut);
    } else { /* all numbers, and the first of the others */
        int n_kept = 0, n_nan = k - kernels->count_reaching(x, -INFINITY, n);
        for (int i = 0; i < n; i++)
            if (x[i] == x[i] || n_nan-- > 0)
                ids[n_kept++] = (uint32_t)(first + i);
    }
}

int butler_select_top(const struct butler_kernels *kernels, const float *scores, int n, int budget, int first, int last,
                      float *scratch, uint32_t *ids)
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
        top(kernels, scores, first, end, k, scratch, ids + first);
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

int butler_select_mass(const struct butler_kernels *kernels, const float *scores, const struct butler_choice *choice, double beside,
                       float *scratch, uint32_t *order, uint32_t *ids)
{
    const int n = choice->n_units, first = choice->first, last = choice->last;
    double total = beside, kept = beside;
    int n_top = 0;
    if (first + last >= n)
        return butler_select_top(kernels, scores, n, n, first, last, scratch, ids);
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
    for (; n_top < n_free && kept < choice->mass * total; n_top++)
        kept += scores[order[n_top]] > 0 ? scores[order[n_top]] : 0;
    /* The chosen are the n_top highest in the same order of preference that butler_select_top has. */
    return butler_select_top(kernels, scores, n, first + last + n_top, first, last, scratch, ids);
}
