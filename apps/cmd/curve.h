/* What `butler train` writes beside the predictor: its curve, as numbers and as a plot. */
#ifndef CMD_CURVE_H
#define CMD_CURVE_H

#include <stdint.h>

#include "cmd.h"

/* One row of the curve; measured: the held-out figures are there. */
struct cmd_curve_row {
    int64_t step, n_tokens;
    double loss, rate, norm;
    bool skipped, measured;
    double valid_loss, top_half, recall, mass;
};

struct cmd_curve {
    char *path;
    FILE *file;
    int n_rows, capacity;
    struct cmd_curve_row *rows;
};

/* Opens PATH for writing; rows up to `step` that are already in it stay (a resumed run). CMD_DONE, or CMD_FAILED after a
 * message. */
int cmd_curve_open(struct cmd_curve *curve, const struct cmd_options *options, const char *path, int64_t step);
int cmd_curve_add(struct cmd_curve *curve, const struct cmd_options *options, const struct cmd_curve_row *row);
/* The curve as an SVG: loss over tokens, and the held-out figures. */
int cmd_curve_draw(const struct cmd_curve *curve, const struct cmd_options *options, const char *path, const char *title);
void cmd_curve_free(struct cmd_curve *curve);

#endif
