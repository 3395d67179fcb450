/* The tokens that matter most: the newest and those with the highest scores. */
#include <math.h>

#include "parts.h"

/* NaN counts as lowest. */
static float rank(float score)
{
    return isnan(score) ? -INFINITY : score;
}

int eval_top(const float *scores, int n, int k, float *scratch, uint32_t *ids)
{
    const int n_wanted = BUTLER_MIN(k, n) - 1; /* beside the newest */
    int n_out = 0, n_ties = n_wanted;
    float least = INFINITY;
    for (int i = 0; i < n - 1; i++)
        scratch[i] = rank(scores[i]);
    if (n_wanted > 0)
        least = butler_kth_largest(scratch, n - 1, n_wanted);
    for (int i = 0; i < n - 1; i++) /* of the tokens that are as low as the last one wanted, the first count */
        n_ties -= rank(scores[i]) > least;
    for (int i = 0; i < n - 1 && n_wanted > 0; i++) {
        const float score = rank(scores[i]);
        if (score > least || (score >= least && n_ties-- > 0))
            ids[n_out++] = (uint32_t)i;
    }
    if (n > 0)
        ids[n_out++] = (uint32_t)(n - 1);
    return n_out;
}
