/* See choice.h. */
#include "serve/choice.h"

#include "serve/jobs.h"
#include "base/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void serve_detokenize(const struct butler_model *model, const int32_t *ids, int n, bool spelled, struct butler_buffer *text)
{
    struct butler_utf8 stream = {0};
    for (int i = 0; i <= n; i++) {
        size_t n_bytes = 0;
        const char *bytes = i < n ? butler_token_bytes(model, ids[i], &n_bytes) : NULL;
        if (bytes && n_bytes == 0 && spelled)
            bytes = butler_token_spelling(model, ids[i], &n_bytes);
        const size_t room = 3 * (n_bytes + 3);
        serve_text_reserve(text, room);
        if (bytes || i == n) /* no bytes would flush what is pending */
            text->n += butler_utf8_push(&stream, bytes, n_bytes, text->bytes + text->n, room);
    }
}

void serve_score_token(const float *logits, int n_vocab, int32_t id, int n_top, struct serve_score *score)
{
    float max = logits[0];
    double sum = 0;
    int32_t best[SERVE_MAX_TOP];
    int n = 0;
    for (int i = 1; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n_vocab; i++)
        sum += (double)expf(logits[i] - max);
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        if (n == n_top && logits[i] <= logits[best[n - 1]])
            continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[best[at - 1]] < logits[i]; at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
    const double log_sum = log(sum);
    score->logprob = (double)logits[id] - (double)max - log_sum;
    score->n_top = n;
    for (int i = 0; i < n; i++)
        score->top[i] = (struct serve_top){best[i], (double)logits[best[i]] - (double)max - log_sum};
}

static void append_token(struct serve_choice *choice, const char *bytes, size_t n)
{
    serve_text_reserve(&choice->text, 3 * (n + 3));
    choice->text.n += butler_utf8_push(&choice->utf8, bytes, n, choice->text.bytes + choice->text.n, 3 * (n + 3));
}

/* How much of the text can be shown: up to the first stop text, or up to what may be the beginning of one. *stop: that text; or
 * NULL. */
static size_t find_end(const struct serve_job *job, const struct serve_choice *choice, const char **stop)
{
    const char *bytes = choice->text.bytes + choice->n_shown;
    const size_t n = choice->text.n - choice->n_shown;
    size_t end = n;
    *stop = NULL;
    for (int s = 0; s < job->n_stops; s++) {
        const char *at = n ? memmem(bytes, end, job->stops[s], strlen(job->stops[s])) : NULL;
        if (at) {
            *stop = job->stops[s];
            end = (size_t)(at - bytes);
        }
    }
    for (int s = 0; s < job->n_stops && !*stop; s++) {
        const size_t n_stop = strlen(job->stops[s]);
        for (size_t k = n_stop - 1 < n ? n_stop - 1 : n; k > n - end; k--)
            if (memcmp(bytes + n - k, job->stops[s], k) == 0)
                end = n - k;
    }
    return choice->n_shown + end;
}

/* Whether the text ends by the rules of editors: a line that is indented less than asked for, which is then cut off, or a line end
 * after a time. Both hold from the second line on. */
static bool ends_lines(const struct serve_job *job, struct serve_choice *choice, size_t before)
{
    struct butler_buffer *text = &choice->text;
    bool late = false;
    for (size_t at = before; at < text->n; at++) {
        if (text->bytes[at] != '\n')
            continue;
        late = choice->line > 0 && job->max_line_s > 0 && serve_now() - choice->begun_s > job->max_line_s;
        choice->line = at + 1;
    }
    size_t first = choice->line;
    while (first < text->n && (text->bytes[first] == ' ' || text->bytes[first] == '\t'))
        first++;
    const bool is_short = job->n_indent > 0 && choice->line > 0 && first < text->n && text->bytes[first] != '\n' &&
                          first - choice->line < (size_t)job->n_indent;
    if (is_short)
        text->n = choice->line > choice->n_shown ? choice->line : choice->n_shown;
    return late || is_short;
}

static void show(struct serve_choice *choice, size_t end, struct serve_event *event)
{
    event->n_text = end - choice->n_shown;
    event->text = serve_alloc(event->n_text + 1, 1);
    if (event->n_text)
        memcpy(event->text, choice->text.bytes + choice->n_shown, event->n_text);
    choice->n_shown = end;
}

int serve_choice_sample(const struct serve_job *job, struct serve_choice *choice, const struct butler_model *model,
                        struct serve_event *event, struct butler_error *err)
{
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    const float *logits = butler_logits(choice->session);
    size_t n = 0;
    choice->id =
        choice->n_taken < choice->n_drawn ? choice->drawn[choice->n_taken++] : butler_sample(choice->sampler, logits, n_vocab, err);
    if (choice->id < 0)
        return choice->id;
    /* With ignore_eos an end token is drawn only where a grammar allows nothing else. */
    const bool ended = butler_token_is_end(model, choice->id) && (!job->ignore_end || job->sampling.grammar);
    choice->n_generated++;
    serve_text_append(&choice->ids, (const char *)&choice->id, sizeof choice->id);
    event->id = choice->id;
    if (job->n_top >= 0)
        serve_score_token(logits, n_vocab, choice->id, job->n_top, &event->score);
    const char *bytes = butler_token_bytes(model, choice->id, &n);
    if (n == 0 && job->is_shown) {
        bytes = butler_token_spelling(model, choice->id, &n);
        n = bytes && job->is_shown(bytes, n) ? n : 0;
    }
    const size_t before = choice->text.n;
    if (choice->n_generated == 1)
        choice->begun_s = serve_now();
    if (n && !ended)
        append_token(choice, bytes, n);
    const bool full_lines = (job->n_indent > 0 || job->max_line_s > 0) && ends_lines(job, choice, before);
    const size_t end = find_end(job, choice, &choice->stop);
    show(choice, end, event);
    if (choice->stop) {
        choice->text.n = end;
        choice->utf8.n_pending = 0;
        return SERVE_FINISH_STOP;
    }
    if (ended)
        return SERVE_FINISH_END;
    const bool full = choice->n_taken == choice->n_drawn && butler_n_past(choice->session) >= butler_n_ctx(choice->session);
    return choice->n_generated >= job->max_tokens || full || full_lines ? SERVE_FINISH_LENGTH : SERVE_FINISH_NONE;
}

void serve_choice_flush(struct serve_choice *choice, struct serve_event *event)
{
    append_token(choice, NULL, 0);
    show(choice, choice->text.n, event);
}

/* Means of steps and of further steps. */
static void add_receipt(struct butler_receipt *sum, const struct butler_receipt *more)
{
    const double n = BUTLER_MAX(sum->n_steps + more->n_steps, 1), share = more->n_steps / n,
                 n_cuts = BUTLER_MAX(sum->n_step_cuts + more->n_step_cuts, 1);
    sum->n_steps += more->n_steps;
    sum->read += (more->read - sum->read) * share;
    sum->step_evicted += (more->step_evicted - sum->step_evicted) * more->n_step_cuts / n_cuts;
    sum->n_step_cuts += more->n_step_cuts;
    sum->prompt_evicted = BUTLER_MAX(sum->prompt_evicted, more->prompt_evicted); /* choices share a prompt */
    sum->seconds += more->seconds;
}

void serve_choice_release(struct serve_choice *choice, struct butler_stats *sum, struct butler_receipt *compared)
{
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    if (!choice->session)
        return;
    butler_session_stats(choice->session, &stats);
    sum->kv_bytes += stats.kv_bytes;
    sum->metric_bytes += stats.metric_bytes;
    sum->upkeep_bytes += stats.upkeep_bytes;
    sum->full_kv_bytes += stats.full_kv_bytes;
    sum->kv_memory += stats.kv_memory;
    sum->metric_memory += stats.metric_memory;
    sum->units_selected += stats.units_selected;
    sum->units_reused += stats.units_reused;
    sum->pages_wanted += stats.pages_wanted;
    sum->pages_fetched += stats.pages_fetched;
    sum->disk_bytes += stats.disk_bytes;
    sum->disk_s += stats.disk_s;
    sum->n_library += stats.n_library;
    sum->n_decode += stats.n_decode;
    sum->n_checks += stats.n_checks;
    sum->n_drafted += stats.n_drafted;
    sum->n_accepted += stats.n_accepted;
    if (butler_session_receipt(choice->session, &receipt, NULL))
        add_receipt(compared, &receipt);
    butler_draft_free(choice->draft);
    choice->draft = NULL;
    butler_session_free(choice->session);
    choice->session = NULL;
}

void serve_choice_free(struct serve_choice *choice)
{
    if (choice->fd >= 0)
        close(choice->fd);
    butler_draft_free(choice->draft);
    butler_sampler_free(choice->sampler);
    butler_session_free(choice->session);
    butler_buffer_free(&choice->text);
    butler_buffer_free(&choice->ids);
    free(choice->attention);
    *choice = (struct serve_choice){0};
}
