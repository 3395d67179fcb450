/* See receipt.h. */
#include "serve/receipt.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "serve/choice.h"

enum { N_SINKS = 4, LEAST = 100 };

struct passage {
    int first, last; /* tokens [first, last) of the prompt */
    double attention;
};

/* Cuts the prompt into lines; returns how many passages there are. passages: room for n_prompt. */
static int cut(const struct butler_model *model, const struct serve_job *job, const double *attention, struct passage *passages)
{
    int n = 0;
    size_t n_bytes = 0;
    bool ended = true;
    for (int i = 0; i < job->n_prompt; i++) {
        size_t length = 0;
        const char *bytes = butler_token_bytes(model, job->prompt[i], &length);
        const bool begins = length > 0 && ((unsigned char)bytes[0] & 0xc0) != 0x80; /* not within a character */
        if (ended || (begins && n_bytes + length > SERVE_PASSAGE_BYTES)) {
            passages[n++] = (struct passage){.first = i};
            n_bytes = 0;
        }
        passages[n - 1].last = i + 1;
        passages[n - 1].attention += i >= N_SINKS ? attention[i] : 0;
        n_bytes += length;
        ended = bytes && memchr(bytes, '\n', length);
    }
    return n;
}

static int by_attention(const void *a, const void *b)
{
    const struct passage *x = a, *y = b;
    return x->attention > y->attention ? -1 : x->attention < y->attention;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Its text in UTF-8, without blanks at both ends; NULL: nothing is left. */
static char *text_of(const struct butler_model *model, const struct serve_job *job, const struct passage *passage)
{
    struct butler_buffer text = {0};
    serve_detokenize(model, job->prompt + passage->first, passage->last - passage->first, false, &text);
    size_t n = text.n, skip = 0;
    while (skip < n && is_space(text.bytes[skip]))
        skip++;
    while (n > skip && is_space(text.bytes[n - 1]))
        n--;
    char *trimmed = n > skip ? serve_alloc(n - skip + 1, 1) : NULL;
    if (trimmed)
        memcpy(trimmed, text.bytes + skip, n - skip);
    butler_buffer_free(&text);
    return trimmed;
}

/* The attention of all steps of a choice that were compared to each position [butler_n_past()], a sum. Owned; NULL: none were. */
static double *attended(const struct serve_choice *choice)
{
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    const int n = butler_n_past(choice->session);
    double *attention = calloc((size_t)n + 1, sizeof *attention);
    if (!attention || !butler_session_receipt(choice->session, &receipt, attention) ||
        (receipt.n_steps == 0 && choice->n_attention == 0)) {
        free(attention);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        attention[i] = receipt.n_steps * attention[i] + (i < choice->n_attention ? choice->attention[i] : 0);
    return attention;
}

void serve_receipt_park(const struct serve_job *job, struct serve_choice *choice)
{
    double *attention = job->receipt > 0 && choice->session ? attended(choice) : NULL;
    if (!attention)
        return;
    free(choice->attention);
    choice->attention = attention;
    choice->n_attention = butler_n_past(choice->session);
}

static void find(struct serve_job *job, const struct butler_model *model, const struct serve_choice *choice)
{
    if (!choice->session || job->receipt == 0 || job->n_passages > 0 || butler_n_past(choice->session) < job->n_prompt)
        return;
    double *attention = attended(choice);
    struct passage *passages = calloc((size_t)job->n_prompt, sizeof *passages);
    if (attention && passages) {
        const int n = cut(model, job, attention, passages);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += passages[i].attention;
        qsort(passages, (size_t)n, sizeof *passages, by_attention);
        for (int i = 0; i < n && job->n_passages < SERVE_MAX_PASSAGES && passages[i].attention * LEAST >= sum && sum > 0; i++) {
            struct serve_passage *passage = &job->passages[job->n_passages];
            *passage = (struct serve_passage){text_of(model, job, &passages[i]), passages[i].attention / sum};
            job->n_passages += passage->text != NULL;
        }
    }
    free(passages);
    free(attention);
}

void serve_receipt_take(struct serve_job *job, const struct butler_model *model, struct serve_choice *choice)
{
    find(job, model, choice);
    serve_choice_release(choice, &job->stats, &job->compared);
}

void serve_passages_free(struct serve_job *job)
{
    for (int i = 0; i < job->n_passages; i++)
        free(job->passages[i].text);
    job->n_passages = 0;
}
