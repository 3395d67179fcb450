/* butler bench --lossless: dense, lossless and sparse decoding behind the beginning of a text, for how many drafts are right
 * depends on the text. All three go on from one session that has read it, and take turns, so that a machine whose speed varies
 * slows all alike. */
#include <math.h>
#include <stdlib.h>

#include "cmd.h"
#include "base/util.h"

enum mode { DENSE, LOSSLESS, SPARSE, N_MODES };

enum { TURN = 16 }; /* tokens that a mode decodes before the next has its turn */

/* One way of decoding. */
struct writer {
    struct butler_session *session;
    struct butler_sampler *sampler;
    struct butler_draft *draft; /* LOSSLESS */
    int32_t id;                 /* drawn, not yet decoded */
    int n;                      /* tokens decoded, since the warm-up */
    int32_t *text;              /* [n_text] all tokens drawn behind the first */
    int n_text;
};

struct measured {
    const struct cmd_options *options;
    struct butler_engine *engine;
    const char *policy;
    int depth;
    struct writer writers[N_MODES];
    int n_turns;
    double *ms[N_MODES]; /* [n_turns] of a token; lossless rounds are not cut where turns end, and may leave a turn empty: 0 */
};

/* Some tokens of one mode: their number, or an error's code. */
static int decode_some(const struct measured *m, enum mode mode, int most, struct butler_error *err)
{
    struct writer *w = (struct writer *)&m->writers[mode];
    const int n_vocab = butler_model_get_info(butler_engine_model(m->engine))->n_vocab;
    if (mode == LOSSLESS) {
        int32_t ids[CMD_MAX_DRAFTS + 1];
        const int n = butler_draft_step(w->draft, w->sampler, w->id, ids, BUTLER_MIN(most, CMD_MAX_DRAFTS + 1), err);
        w->id = n > 0 ? ids[n - 1] : -1;
        for (int i = 0; i < n; i++)
            w->text[w->n_text++] = ids[i];
        return n;
    }
    const struct butler_span span = {.session = w->session, .ids = &w->id, .n = 1, .exact = mode == DENSE};
    const int code = butler_run(m->engine, &span, 1, err);
    if (code < 0)
        return code;
    w->id = butler_sample(w->sampler, butler_logits(w->session), n_vocab, err);
    if (w->id < 0)
        return w->id;
    w->text[w->n_text++] = w->id;
    return 1;
}

/* Lossless means that both texts are equal. */
static int compare_texts(const struct measured *m)
{
    const struct writer *dense = &m->writers[DENSE], *lossless = &m->writers[LOSSLESS];
    for (int i = 0; i < dense->n_text; i++)
        if (dense->text[i] != lossless->text[i]) {
            cmd_say(m->options, "%s, depth %d: token %d of the lossless text is %d, of the dense one %d", m->policy, m->depth, i,
                    lossless->text[i], dense->text[i]);
            return CMD_FAILED;
        }
    return CMD_DONE;
}

/* Until each mode has n tokens. */
static int decode(struct measured *m, int n)
{
    struct butler_error err = {0};
    for (m->n_turns = 0; m->n_turns * TURN < n; m->n_turns++)
        for (int mode = 0; mode < N_MODES; mode++) {
            struct writer *w = &m->writers[mode];
            const int before = w->n, end = BUTLER_MIN((m->n_turns + 1) * TURN, n);
            const double start = butler_seconds();
            while (w->n < end) {
                const int got = decode_some(m, mode, n - w->n, &err);
                if (got < 0)
                    return cmd_fail(m->options, &err);
                w->n += got;
            }
            m->ms[mode][m->n_turns] = w->n > before ? 1e3 * (butler_seconds() - start) / (w->n - before) : 0;
        }
    return CMD_DONE;
}

/* Three writers behind a session that has read the text; it becomes the last's. */
static int open_writers(struct measured *m, struct butler_session *session)
{
    struct butler_error err = {0};
    const struct butler_draft_params params = {.n_max = m->options->n_drafts, .fixed = m->options->n_drafts > 0};
    const int n_vocab = butler_model_get_info(butler_engine_model(m->engine))->n_vocab;
    for (int mode = 0; mode < N_MODES; mode++) {
        struct writer *w = &m->writers[mode];
        w->session = mode == N_MODES - 1 ? session : butler_session_fork(session, &err);
        w->sampler = butler_sampler_new(NULL, &err);
        if (mode == LOSSLESS && w->session)
            w->draft = butler_draft_new(w->session, &params, &err);
        w->id = w->session && w->sampler ? butler_sample(w->sampler, butler_logits(w->session), n_vocab, &err) : -1;
        if (w->id < 0 || (mode == LOSSLESS && !w->draft)) {
            if (mode < N_MODES - 1)
                butler_session_free(session);
            return cmd_fail(m->options, &err);
        }
    }
    return CMD_DONE;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, over turns, of x, or of x / y in the same turn. ends: its 95 % interval, from the turns in order (the number of turns
 * below the median is binomial); or NULL. */
static double median(const struct measured *m, const double *x, const double *y, double ends[2])
{
    double *all = cmd_alloc((size_t)m->n_turns, sizeof *all);
    int n = 0;
    for (int turn = 0; turn < m->n_turns; turn++)
        if (x[turn] > 0 && (!y || y[turn] > 0))
            all[n++] = y ? x[turn] / y[turn] : x[turn];
    qsort(all, (size_t)n, sizeof *all, by_size);
    const double middle = n % 2 ? all[n / 2] : n > 0 ? (all[n / 2 - 1] + all[n / 2]) / 2 : 0;
    if (ends && n > 0) {
        const int rank = BUTLER_MAX((int)(n / 2.0 - 0.98 * sqrt(n)), 0);
        ends[0] = all[rank];
        ends[1] = all[n - 1 - rank];
    }
    free(all);
    return middle;
}

static void print_row(const struct measured *m)
{
    const struct writer *w = m->writers;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    double ms[N_MODES], ends[2] = {0};
    const double speed_up = median(m, m->ms[DENSE], m->ms[LOSSLESS], ends);
    butler_session_stats(w[LOSSLESS].session, &stats);
    for (int mode = 0; mode < N_MODES; mode++)
        ms[mode] = median(m, m->ms[mode], NULL, NULL);
    const double checks = BUTLER_MAX((double)stats.n_checks, 1), drafted = BUTLER_MAX((double)stats.n_drafted, 1);
    /* What these drafts would give if a check took no longer than one dense step. */
    const double drafts = (double)stats.n_drafted / checks, tokens = 1 + (double)stats.n_accepted / checks;
    const double ceiling = stats.n_checks ? tokens * ms[DENSE] / (drafts * ms[SPARSE] + ms[DENSE]) : 1;
    if (!m->options->json) {
        char gain[64] = "- (no drafts)"; /* both are dense then, and a ratio is noise */
        if (stats.n_drafted > 0)
            snprintf(gain, sizeof gain, "%.2f [%.2f, %.2f] %8.2f", speed_up, ends[0], ends[1], ceiling);
        cmd_printf("%-28s %7d %9.2f %9.2f %9.2f %27s %7.2f %7.2f %9.2f %9.2f\n", m->policy, m->depth, ms[DENSE], ms[LOSSLESS],
                   ms[SPARSE], gain, drafts, tokens, 1e3 * stats.draft_s / drafted, 1e3 * stats.check_s / checks);
        cmd_out_flush();
        return;
    }
    const json_int_t n = (json_int_t)BUTLER_MAX(stats.n_decode, 1);
    json_t *ci = stats.n_drafted > 0 ? json_pack("[f, f]", ends[0], ends[1]) : json_null();
    cmd_row(json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I}", "policy",
                      m->policy, "depth", m->depth, "n", w[DENSE].n, "dense_ms", ms[DENSE], "lossless_ms", ms[LOSSLESS],
                      "sparse_ms", ms[SPARSE], "speed_up", stats.n_drafted > 0 ? json_real(speed_up) : json_null(), "ci", ci,
                      "ceiling", stats.n_drafted > 0 ? json_real(ceiling) : json_null(), "n_checks", (json_int_t)stats.n_checks,
                      "n_drafted", (json_int_t)stats.n_drafted, "n_accepted", (json_int_t)stats.n_accepted, "draft_s",
                      stats.draft_s, "check_s", stats.check_s, "weight_bytes", (json_int_t)stats.weight_bytes / n, "kv_bytes",
                      (json_int_t)stats.kv_bytes / n, "metric_bytes", (json_int_t)stats.metric_bytes / n, "full_kv_bytes",
                      (json_int_t)stats.full_kv_bytes / n));
}

/* The session holds `depth` tokens: of the text, or, without one, random rows and a token behind them. */
static int fill(const struct measured *m, struct butler_session *session, const struct cmd_integers *text)
{
    struct butler_error err = {0};
    if (text->n == 0) {
        const int32_t id = 0;
        const struct butler_span span = {.session = session, .ids = &id, .n = 1, .exact = true};
        const bool filled = (m->depth == 1 || butler_fill(session, m->depth - 1, m->options->seed, &err) == 0) &&
                            butler_run(m->engine, &span, 1, &err) == 0;
        return filled ? CMD_DONE : cmd_fail(m->options, &err);
    }
    /* What an earlier policy has read of the text is not read again. */
    const int n_adopted = butler_session_adopt_prefix(session, text->values, m->depth, NULL);
    const int n_known = BUTLER_MAX(n_adopted, 0);
    const struct cmd_integers rest = {.n = m->depth - n_known, .values = text->values + n_known};
    return cmd_prefill(m->options, m->engine, session, &rest);
}

static int measure(struct measured *m, const struct cmd_integers *text)
{
    const struct cmd_options *options = m->options;
    int status = CMD_DONE;
    struct butler_session *session =
        cmd_session_new(options, m->engine, m->policy, m->depth + options->warmup + options->n + CMD_MAX_DRAFTS + 1, &status);
    if (session && (status = fill(m, session, text)) != CMD_DONE)
        butler_session_free(session);
    if (status != CMD_DONE)
        return status == CMD_INTERRUPTED ? CMD_FAILED : status;
    for (int mode = 0; mode < N_MODES; mode++) {
        m->ms[mode] = cmd_alloc((size_t)(BUTLER_MAX(options->n, options->warmup) / TURN + 1), sizeof *m->ms[mode]);
        m->writers[mode].text = cmd_alloc((size_t)(options->n + options->warmup), sizeof *m->writers[mode].text);
    }
    status = open_writers(m, session);
    if (status == CMD_DONE && options->warmup)
        status = decode(m, options->warmup);
    for (int mode = 0; mode < N_MODES; mode++) {
        m->writers[mode].n = 0;
        butler_session_stats_reset(m->writers[mode].session);
    }
    if (status == CMD_DONE)
        status = decode(m, options->n);
    if (status == CMD_DONE)
        status = compare_texts(m);
    if (status == CMD_DONE)
        print_row(m);
    for (int mode = 0; mode < N_MODES; mode++) {
        butler_draft_free(m->writers[mode].draft);
        butler_sampler_free(m->writers[mode].sampler);
        free(m->ms[mode]);
        free(m->writers[mode].text);
        butler_session_free(m->writers[mode].session);
    }
    return status;
}

/* The text of -f; none: random rows are as good where only times count. */
static int read_text(const struct cmd_options *options, const struct butler_model *model, struct cmd_integers *ids)
{
    struct butler_buffer text = {0};
    const char *file = options->file;
    for (int d = 0; d < options->depths.n; d++)
        if (options->depths.values[d] < 1) {
            cmd_say(options, "-d: --lossless goes on from 1 token or more");
            return CMD_USAGE;
        }
    if (!file)
        return CMD_DONE;
    int status = cmd_file_read(options, file, &text);
    if (status == CMD_DONE)
        status = cmd_tokenize_text(options, model, text.bytes, text.n, BUTLER_ADD_SPECIAL, ids);
    butler_buffer_free(&text);
    for (int d = 0; status == CMD_DONE && d < options->depths.n; d++)
        if (options->depths.values[d] > ids->n) {
            cmd_say(options, "-d: the beginning of %s cannot have %d tokens: it has 1 to %d", file, options->depths.values[d],
                    ids->n);
            status = CMD_USAGE;
        }
    return status;
}

int cmd_bench_lossless(const struct cmd_options *options, struct butler_engine *engine)
{
    struct cmd_integers text = {0};
    int status = read_text(options, butler_engine_model(engine), &text);
    if (status == CMD_DONE && !options->json)
        cmd_printf("%-28s %7s %9s %9s %9s %18s %8s %7s %7s %9s %9s\n", "policy of drafts", "depth", "dense ms", "lossless",
                   "sparse", "speed-up [95 %]", "ceiling", "drafts", "tokens", "ms/draft", "ms/check");
    for (int d = 0; status == CMD_DONE && d < options->depths.n; d++)
        for (int k = 0; status == CMD_DONE && k < options->kv.n; k++) {
            struct measured m = {
                .options = options, .engine = engine, .policy = options->kv.values[k], .depth = options->depths.values[d]};
            status = measure(&m, &text);
        }
    free(text.values);
    return status;
}
