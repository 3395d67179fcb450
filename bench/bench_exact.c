/* What a check of drafts costs: milliseconds of an exact span of 1 to 9 rows over a whole cache, and of them its attention.
 *
 *     bench_exact MODEL [DEPTH [TURNS]]
 *
 * The cache has DEPTH (default 7400) random rows. Every turn (default 21) runs each size once; printed are medians over the turns
 * and the ratio to one row, which is a dense decode step. */
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "butler.h"
#include "median.h"

enum { MOST_ROWS = 9, MAX_TURNS = 999 };

static double total_ms[MOST_ROWS][MAX_TURNS], attend_ms[MOST_ROWS][MAX_TURNS];

/* Both times of one span, which is cut off again. 0 or a negative code. */
static int measure(struct butler_engine *engine, struct butler_session *session, int n_rows, double *total, double *attend,
                   struct butler_error *err)
{
    const int depth = butler_n_past(session);
    int32_t ids[MOST_ROWS];
    struct butler_stats before = {BUTLER_INIT(butler_stats)}, after = {BUTLER_INIT(butler_stats)};
    for (int i = 0; i < n_rows; i++)
        ids[i] = i + 1;
    const struct butler_span span = {.session = session, .ids = ids, .n = n_rows, .exact = true};
    butler_session_stats(session, &before);
    const double start = butler_seconds();
    if (butler_run(engine, &span, 1, err) < 0)
        return err->code;
    *total = (butler_seconds() - start) * 1e3;
    butler_session_stats(session, &after);
    *attend = (after.attend_s - before.attend_s) * 1e3;
    return butler_session_truncate(session, depth, err);
}

static int bench(struct butler_engine *engine, struct butler_session *session, int n_turns, struct butler_error *err)
{
    for (int t = -1; t < n_turns; t++) /* the first turn is not measured */
        for (int i = 0; i < MOST_ROWS; i++)
            if (measure(engine, session, i + 1, &total_ms[i][BUTLER_MAX(t, 0)], &attend_ms[i][BUTLER_MAX(t, 0)], err) < 0)
                return err->code;
    const double one = median(total_ms[0], n_turns);
    printf("rows  ms     attention  ratio\n");
    for (int i = 0; i < MOST_ROWS; i++) {
        const double ms = median(total_ms[i], n_turns);
        printf("%-4d  %-5.1f  %-9.1f  %.2f\n", i + 1, ms, median(attend_ms[i], n_turns), ms / one);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct butler_error err = {0};
    const int depth = argc > 2 ? atoi(argv[2]) : 7400, n_turns = argc > 3 ? atoi(argv[3]) : 21;
    if (argc < 2 || depth < 1 || n_turns < 1 || n_turns > MAX_TURNS) {
        fprintf(stderr, "usage: bench_exact MODEL [DEPTH [TURNS]]\n");
        return 2;
    }
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, NULL, &err) : NULL;
    const struct butler_session_params params = {.n_ctx = depth + MOST_ROWS, .policy = "verified"};
    struct butler_session *session = engine ? butler_session_new(engine, &params, &err) : NULL;
    const int code = session && butler_fill(session, depth, 1, &err) >= 0 ? bench(engine, session, n_turns, &err) : err.code;
    if (code < 0)
        fprintf(stderr, "bench_exact: %s\n", err.message);
    butler_session_free(session);
    butler_engine_free(engine);
    butler_model_free(model);
    return code < 0;
}
