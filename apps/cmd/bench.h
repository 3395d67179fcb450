/* What the files of butler bench share: sessions of one engine that decode together. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include "cmd.h"

/* What one round (a token of every session) cost. */
struct bench_round {
    double ms, predict_us, score_us, select_us, attend_us;
};

struct bench {
    const struct cmd_options *options;
    struct butler_engine *engine;
    const char *policy;
    int depth, batch, first;          /* first: the number of its first session among those of all engines */
    struct butler_session **sessions; /* [batch] */
    struct bench_round *rounds;       /* [options->n] */
};

/* Makes the sessions and fills their caches. CMD_DONE or the exit status. */
int bench_prepare(struct bench *bench);
/* Rounds [first, end), of which those from 0 on are measured and kept. CMD_DONE or the exit status. */
int bench_decode(struct bench *bench, int first, int end);
void bench_free(struct bench *bench); /* what bench_prepare made */

/* Of values[n], which are sorted, between neighbours by distance; share 0.5: the median. */
double bench_quantile(double *values, int n, double share);
json_t *bench_model_name(const struct cmd_options *options);

#endif
