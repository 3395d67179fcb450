/* Predicts how long a step takes, so that the chunk of prompts in it can be sized before it runs. The time is taken as linear in
 * what the step has to do; the factors follow the steps that were measured. */
#ifndef SERVE_PACE_H
#define SERVE_PACE_H

/* What a step does. */
enum serve_work {
    SERVE_WORK_STEP,   /* 1 */
    SERVE_WORK_TEXTS,  /* tokens that are decoded */
    SERVE_WORK_CACHE,  /* tokens that lie before those, all together */
    SERVE_WORK_PROMPT, /* tokens of prompts */
    SERVE_WORK_PAIRS,  /* over those: tokens before each */
    SERVE_N_WORK,
};

struct serve_pace {
    double products[SERVE_N_WORK][SERVE_N_WORK], times[SERVE_N_WORK]; /* sums over steps of work w and time t: w w^T / t^2 and
                                                                       * w / t; older ones count less */
    double factors[SERVE_N_WORK];                                     /* seconds for one unit of each */
    double ratio, spread; /* of measured to predicted times: lately, and how far from that they are */
    int n_steps;          /* that were measured */
};

/* A step was measured. */
void serve_pace_add(struct serve_pace *pace, const double work[SERVE_N_WORK], double seconds);
/* Seconds that a step will take, with a margin for how far predictions were off. 0: nothing is known. */
double serve_pace_predict(const struct serve_pace *pace, const double work[SERVE_N_WORK]);
/* How many tokens of a prompt, of which n_past are read, take so many seconds in a step, by the same reckoning; at most max. */
int serve_pace_tokens(const struct serve_pace *pace, int n_past, double seconds, int max);

#endif
