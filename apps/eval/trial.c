/* One item under one policy: its steps, and what compares them with dense attention on the same text. A second session decodes the
 * same tokens densely; a token's two distributions are compared, and every WATCH steps the tokens that the policy read are
 * compared with those of the highest q.k under dense attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { WATCH = 16 /* steps from one look at the selection to the next: one costs about as much as a dense step */ };

struct eval_watch {
    struct eval_trial *trial;
    float *values;        /* [n_ctx] */
    int32_t *read;        /* [n_ctx] */
    uint32_t *chosen;     /* [n_ctx] */
    unsigned char *marks; /* [n_ctx] */
    int n_steps;
    double n_selected, n_reused; /* units, up to the last step */
};

int eval_check_stop(const struct eval_run *run, struct butler_error *err)
{
    const struct eval_events *events = run->events;
    return events->stopped && events->stopped(events->user) ? butler_fail(err, BUTLER_ERROR_CANCELLED, "stopped") : 0;
}

/* Of an item's text, so that its numbers do not depend on the other items. */
static int part_of(const struct eval_trial *trial, int position)
{
    const int length = trial->item->n_ids + trial->item->n_extra;
    return BUTLER_MIN((int)((int64_t)position * EVAL_CURVE / length), EVAL_CURVE - 1);
}

/* A head of the dense session: the tokens with the highest q.k, as many as the policy read, and how many of them it read. */
static void watch_head(void *user, const struct butler_head_attention *attention)
{
    struct eval_watch *watch = user;
    struct eval_trial *trial = watch->trial;
    const int n = attention->n, part = part_of(trial, n - 1);
    if (!eval_policy_applies(trial->run, trial->policy, attention->layer))
        return;
    const int n_read = BUTLER_MIN(butler_last_selection(trial->session, attention->layer, attention->head, watch->read, n), n);
    const int n_best = eval_top(attention->scores, n, n_read, watch->values, watch->chosen);
    memset(watch->marks, 0, (size_t)n);
    for (int i = 0; i < n_read; i++)
        watch->marks[watch->read[i]] = 1;
    for (int i = 0; i < n_best; i++)
        trial->cost.found[part] += watch->marks[watch->chosen[i]];
    trial->cost.wanted[part] += n_best;
}

int eval_watch_begin(struct eval_trial *trial, struct butler_error *err)
{
    struct eval_watch *watch = trial->watch = butler_alloc(sizeof *watch, err);
    if (!watch)
        return BUTLER_ERROR_MEMORY;
    watch->trial = trial;
    if (!trial->dense)
        return 0;
    const size_t n = (size_t)butler_n_ctx(trial->dense);
    watch->values = butler_alloc(n * sizeof(float), err);
    watch->read = butler_alloc(n * sizeof(int32_t), err);
    watch->chosen = butler_alloc(n * sizeof(uint32_t), err);
    watch->marks = butler_alloc(n, err);
    return watch->values && watch->read && watch->chosen && watch->marks ? 0 : BUTLER_ERROR_MEMORY;
}

void eval_watch_end(struct eval_trial *trial)
{
    struct eval_watch *watch = trial->watch;
    if (watch) {
        free(watch->values);
        free(watch->read);
        free(watch->chosen);
        free(watch->marks);
    }
    free(watch);
    trial->watch = NULL;
}

double eval_divergence(const float *p_logits, const float *q_logits, int n)
{
    const double p_log = eval_log_prob(p_logits, n, 0) - (double)p_logits[0];
    const double q_log = eval_log_prob(q_logits, n, 0) - (double)q_logits[0];
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double p = (double)p_logits[i] + p_log;
        sum += exp(p) * (p - (double)q_logits[i] - q_log);
    }
    return fmax(sum, 0); /* rounding */
}

/* The step of both sessions. */
static int step_both(struct eval_trial *trial, int32_t id, struct butler_error *err)
{
    struct butler_session *const both[] = {trial->session, trial->dense};
    struct butler_error errs[2] = {{0}, {0}};
    if (!trial->dense)
        return butler_step(trial->session, id, err);
    if (trial->watch->n_steps % WATCH != 0) {
        const int code = butler_step_batch(both, (const int32_t[]){id, id}, 2, errs);
        if (code < 0)
            *err = errs[errs[0].code == 0];
        return code;
    }
    int code = butler_step(trial->session, id, err);
    if (code == 0)
        code = butler_session_on_attention(trial->dense, watch_head, trial->watch, err);
    if (code == 0)
        code = butler_step(trial->dense, id, err);
    butler_session_on_attention(trial->dense, NULL, NULL, NULL);
    return code;
}

int eval_step(struct eval_trial *trial, int32_t id, struct butler_error *err)
{
    struct eval_watch *watch = trial->watch;
    const int n_vocab = trial->run->info->n_vocab, part = part_of(trial, butler_n_past(trial->session));
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    int code = eval_check_stop(trial->run, err);
    if (code == 0)
        code = step_both(trial, id, err);
    if (code < 0)
        return code;
    watch->n_steps++;
    butler_session_stats(trial->session, &stats);
    trial->cost.selected[part] += (double)stats.units_selected - watch->n_selected;
    trial->cost.reused[part] += (double)stats.units_reused - watch->n_reused;
    watch->n_selected = (double)stats.units_selected;
    watch->n_reused = (double)stats.units_reused;
    if (trial->dense) {
        const float *ours = butler_logits(trial->session), *theirs = butler_logits(trial->dense);
        trial->cost.compared++;
        trial->cost.kl += eval_divergence(theirs, ours, n_vocab);
        trial->cost.agreed += eval_argmax(theirs, n_vocab) == eval_argmax(ours, n_vocab);
    }
    return 0;
}

void eval_cost_take(struct eval_cost *cost, const struct butler_stats *stats, double seconds)
{
    cost->n_decode = (double)stats->n_decode;
    cost->kv_bytes = (double)stats->kv_bytes;
    cost->metric_bytes = (double)stats->metric_bytes;
    cost->full_kv_bytes = (double)stats->full_kv_bytes;
    cost->seconds = seconds;
}
