/* See pace.h. Least squares with weights that fade, and on top of that the ratio of the last few steps: the first learns how the
 * cost grows with depth and batch, the second follows a machine that has become slower for a while. */
#include "serve/pace.h"

#include <math.h>
#include <stdbool.h>

static const double FADE = 0.997;      /* weight of a step against the one after it */
static const double RIDGE = 1e-4;      /* against factors that the steps so far do not tell apart, as a share of the sums */
static const double FOLLOW = 0.2;      /* weight of the latest ratio */
static const double OUTLIER = 3;       /* a step that takes so many times what was predicted teaches no more than that */
static const double N_SPREADS = 1.5;   /* margin */
static const double UNKNOWN_RATIO = 1; /* before anything was measured */
enum { N_LEARNT = 3 };                 /* steps before predictions are trusted */

/* Solves for the factors in use; false: they are not determined. */
static bool solve(const struct serve_pace *pace, const bool *used, double *factors)
{
    double a[SERVE_N_WORK][SERVE_N_WORK + 1];
    int of[SERVE_N_WORK], n = 0;
    for (int i = 0; i < SERVE_N_WORK; i++)
        if (used[i])
            of[n++] = i;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            a[i][j] = pace->products[of[i]][of[j]] * (i == j ? 1 + RIDGE : 1);
        a[i][n] = pace->times[of[i]];
    }
    for (int i = 0; i < n; i++) {
        if (a[i][i] <= 0)
            return false;
        for (int k = i + 1; k < n; k++) {
            const double by = a[k][i] / a[i][i];
            for (int j = i; j <= n; j++)
                a[k][j] -= by * a[i][j];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double x = a[i][n];
        for (int j = i + 1; j < n; j++)
            x -= a[i][j] * factors[of[j]];
        factors[of[i]] = x / a[i][i];
    }
    return true;
}

/* No kind of work takes negative time: the factor whose share is most negative is taken to be 0 until none is. */
static void learn(struct serve_pace *pace)
{
    bool used[SERVE_N_WORK];
    for (int i = 0; i < SERVE_N_WORK; i++)
        used[i] = pace->products[i][i] > 0;
    for (int round = 0; round < SERVE_N_WORK; round++) {
        double factors[SERVE_N_WORK] = {0}, least = 0;
        int worst = -1;
        if (!solve(pace, used, factors))
            return;
        for (int i = 0; i < SERVE_N_WORK; i++) {
            const double share = factors[i] * sqrt(pace->products[i][i]);
            if (share < least) {
                least = share;
                worst = i;
            }
        }
        if (worst < 0) {
            for (int i = 0; i < SERVE_N_WORK; i++)
                pace->factors[i] = factors[i];
            return;
        }
        used[worst] = false;
    }
}

static double multiply(const struct serve_pace *pace, const double *work)
{
    double seconds = 0;
    for (int i = 0; i < SERVE_N_WORK; i++)
        seconds += pace->factors[i] * work[i];
    return seconds;
}

void serve_pace_add(struct serve_pace *pace, const double work[SERVE_N_WORK], double seconds)
{
    const double predicted = multiply(pace, work);
    const bool known = pace->n_steps >= N_LEARNT && predicted > 0;
    if (seconds <= 0)
        return;
    if (known && seconds > OUTLIER * predicted)
        seconds = OUTLIER * predicted;
    if (known) {
        const double off = seconds / predicted - pace->ratio;
        pace->ratio += FOLLOW * off;
        pace->spread += FOLLOW * (fabs(off) - pace->spread);
    } else {
        pace->ratio = UNKNOWN_RATIO;
    }
    for (int i = 0; i < SERVE_N_WORK; i++) { /* of what is off as a share of the time, so that short steps count too */
        for (int j = 0; j < SERVE_N_WORK; j++)
            pace->products[i][j] = FADE * pace->products[i][j] + work[i] / seconds * (work[j] / seconds);
        pace->times[i] = FADE * pace->times[i] + work[i] / seconds;
    }
    pace->n_steps++;
    learn(pace);
}

/* Measured seconds for a predicted one. */
static double margin(const struct serve_pace *pace)
{
    return pace->ratio + N_SPREADS * pace->spread;
}

double serve_pace_predict(const struct serve_pace *pace, const double work[SERVE_N_WORK])
{
    return pace->n_steps < N_LEARNT ? 0 : margin(pace) * multiply(pace, work);
}

int serve_pace_tokens(const struct serve_pace *pace, int n_past, double seconds, int max)
{
    /* one * n + pair * (n * n_past + n * n / 2) = seconds */
    const double pair = pace->factors[SERVE_WORK_PAIRS] * margin(pace),
                 one = pace->factors[SERVE_WORK_PROMPT] * margin(pace) + pair * n_past;
    if (seconds <= 0)
        return 0;
    const double n =
        one + sqrt(one * one + 2 * pair * seconds) > 0 ? 2 * seconds / (one + sqrt(one * one + 2 * pair * seconds)) : max;
    return n < max ? (int)n : max;
}
