/* The curve of a training run: a CSV row per step, and a plot at the end. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curve.h"

static const char header[] = "step,tokens,loss,rate,norm,skipped,valid_loss,top_half,recall,mass\n";

static void keep(struct cmd_curve *curve, const struct cmd_curve_row *row)
{
    if (curve->n_rows == curve->capacity) {
        curve->capacity = 2 * curve->capacity + 256;
        struct cmd_curve_row *grown = cmd_alloc((size_t)curve->capacity, sizeof *grown);
        if (curve->n_rows)
            memcpy(grown, curve->rows, (size_t)curve->n_rows * sizeof *grown);
        free(curve->rows);
        curve->rows = grown;
    }
    curve->rows[curve->n_rows++] = *row;
}

/* Parses a line of the file; false if it is not a row. */
static bool read_row(const char *line, struct cmd_curve_row *row)
{
    int skipped = 0;
    *row = (struct cmd_curve_row){0};
    const int n = sscanf(line, "%" SCNd64 ",%" SCNd64 ",%lf,%lf,%lf,%d,%lf,%lf,%lf,%lf", &row->step, &row->n_tokens, &row->loss,
                         &row->rate, &row->norm, &skipped, &row->valid_loss, &row->top_half, &row->recall, &row->mass);
    row->skipped = skipped != 0;
    row->measured = n == 10;
    return n == 6 || n == 10;
}

static void read_rows(struct cmd_curve *curve, int64_t step)
{
    char line[512];
    struct cmd_curve_row row;
    FILE *file = fopen(curve->path, "r");
    while (file && fgets(line, sizeof line, file))
        if (read_row(line, &row) && row.step <= step)
            keep(curve, &row);
    if (file)
        fclose(file);
}

static int failed(const struct cmd_options *options, const char *path)
{
    cmd_say(options, "%s: %s", path, strerror(errno));
    return CMD_FAILED;
}

static int write_row(const struct cmd_curve *curve, const struct cmd_options *options, const struct cmd_curve_row *row)
{
    fprintf(curve->file, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.9g,%d,", row->step, row->n_tokens, row->loss, row->rate, row->norm,
            row->skipped);
    if (row->measured)
        fprintf(curve->file, "%.9g,%.6f,%.6f,%.6f", row->valid_loss, row->top_half, row->recall, row->mass);
    else
        fputs(",,,", curve->file);
    fputc('\n', curve->file);
    return fflush(curve->file) != 0 ? failed(options, curve->path) : CMD_DONE;
}

int cmd_curve_open(struct cmd_curve *curve, const struct cmd_options *options, const char *path, int64_t step)
{
    *curve = (struct cmd_curve){.path = cmd_alloc(strlen(path) + 1, 1)};
    strcpy(curve->path, path);
    if (step > 0)
        read_rows(curve, step);
    curve->file = fopen(path, "w");
    if (!curve->file)
        return failed(options, path);
    fputs(header, curve->file);
    int status = CMD_DONE;
    for (int i = 0; i < curve->n_rows && status == CMD_DONE; i++)
        status = write_row(curve, options, &curve->rows[i]);
    return status;
}

int cmd_curve_add(struct cmd_curve *curve, const struct cmd_options *options, const struct cmd_curve_row *row)
{
    keep(curve, row);
    return write_row(curve, options, row);
}

void cmd_curve_free(struct cmd_curve *curve)
{
    if (curve->file)
        fclose(curve->file);
    free(curve->rows);
    free(curve->path);
    *curve = (struct cmd_curve){0};
}

/* -------------------------------------------------------------------------------------------------- plot */

enum { WIDTH = 720, PANEL = 220, LEFT = 70, RIGHT = 20, TOP = 50, GAP = 50, N_GRID = 4 };

struct panel {
    int top;
    double max_x, low, high;
};

static double x_of(const struct panel *panel, double x)
{
    return LEFT + x / panel->max_x * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *panel, double y)
{
    return panel->top + PANEL - (y - panel->low) / (panel->high - panel->low) * PANEL;
}

static void draw_frame(FILE *file, const struct panel *panel, const char *name, double unit, const char *suffix)
{
    fprintf(file, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n", LEFT, panel->top - 10, name);
    for (int i = 0; i <= N_GRID; i++) {
        const double y = panel->low + (panel->high - panel->low) * i / N_GRID, x = panel->max_x * i / N_GRID;
        fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, WIDTH - RIGHT, y_of(panel, y),
                y_of(panel, y));
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g%s</text>\n", LEFT - 6, y_of(panel, y) + 4, y * unit,
                suffix);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.3g M</text>\n", x_of(panel, x), panel->top + PANEL + 16,
                x * 1e-6);
    }
}

static double value_of(const struct cmd_curve_row *row, int which)
{
    const double values[] = {row->loss, row->valid_loss, row->top_half, row->recall, row->mass};
    return values[which];
}

/* A line through the rows that have the figure. */
static void draw_line(FILE *file, const struct cmd_curve *curve, const struct panel *panel, int which, const char *colour,
                      const char *name, int label)
{
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"", colour, which == 0 ? "1" : "2");
    for (int i = 0; i < curve->n_rows; i++)
        if (which == 0 || curve->rows[i].measured)
            fprintf(file, "%.1f,%.1f ", x_of(panel, (double)curve->rows[i].n_tokens),
                    fmin(fmax(y_of(panel, value_of(&curve->rows[i], which)), panel->top), panel->top + PANEL));
    fprintf(file, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", LEFT + 250 + 130 * label, panel->top - 10, colour, name);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Range of the losses without the highest 5 %, the first steps. */
static void loss_range(const struct cmd_curve *curve, struct panel *panel)
{
    double *sorted = cmd_alloc((size_t)curve->n_rows, sizeof *sorted);
    for (int i = 0; i < curve->n_rows; i++)
        sorted[i] = curve->rows[i].loss;
    qsort(sorted, (size_t)curve->n_rows, sizeof *sorted, by_size);
    panel->low = sorted[0];
    panel->high = sorted[(curve->n_rows - 1) * 95 / 100];
    const double margin = fmax((panel->high - panel->low) * 0.1, 1e-9);
    panel->low -= margin;
    panel->high += margin;
    free(sorted);
}

/* Text within an element. */
static void put_text(FILE *file, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(file, "&#%d;", *text);
        else
            fputc(*text, file);
}

int cmd_curve_draw(const struct cmd_curve *curve, const struct cmd_options *options, const char *path, const char *title)
{
    if (curve->n_rows == 0)
        return CMD_DONE;
    FILE *file = fopen(path, "w");
    if (!file)
        return failed(options, path);
    const double max_x = (double)curve->rows[curve->n_rows - 1].n_tokens;
    struct panel loss = {TOP + 20, max_x, 0, 1}, shares = {TOP + 20 + PANEL + GAP + 20, max_x, 0, 1};
    const int height = shares.top + PANEL + GAP;
    loss_range(curve, &loss);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n<text x=\"%d\" y=\"28\" font-size=\"16\">",
            WIDTH, height, WIDTH, height, LEFT);
    put_text(file, title);
    fprintf(file, "</text>\n");
    draw_frame(file, &loss, "loss", 1, "");
    draw_line(file, curve, &loss, 0, "#9bbbdd", "training", 0);
    draw_line(file, curve, &loss, 1, "#1f5fa8", "held out", 1);
    draw_frame(file, &shares, "held out", 100, " %");
    draw_line(file, curve, &shares, 2, "#1f5fa8", "top-50 % accuracy", 0);
    draw_line(file, curve, &shares, 3, "#c0532b", "recall@10 %", 1);
    draw_line(file, curve, &shares, 4, "#3a8a4d", "mass@10 %", 2);
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens</text>\n</svg>\n", WIDTH / 2, height - 12);
    return fclose(file) != 0 ? failed(options, path) : CMD_DONE;
}
