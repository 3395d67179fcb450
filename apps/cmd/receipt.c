/* What an answer rests on: the share of the attention that was read, and the passages of the documents that had most of it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "base/util.h"

enum {
    N_SHOWN = 5,      /* passages */
    MOST_BYTES = 600, /* after which no further line is taken in */
    MOST_LINES = 10,  /* of a passage, which a blank line ends too */
    N_SINKS = 4,      /* first tokens of a text: they have attention whatever they say */
    N_BEGINNING = 60, /* bytes of a passage that are shown */
    LEAST_SHARE = 50, /* passages with less than one in so many of the documents' attention are not shown */
};

void cmd_sources_add(struct cmd_sources *sources, const char *name, const char *bytes, size_t n)
{
    struct cmd_source *items = cmd_alloc((size_t)sources->n + 1, sizeof *items);
    if (sources->n > 0)
        memcpy(items, sources->items, (size_t)sources->n * sizeof *items);
    free(sources->items);
    sources->items = items;
    struct cmd_source *source = &items[sources->n++];
    *source = (struct cmd_source){.name = cmd_copy(name), .bytes = cmd_alloc(n + 1, 1), .n = n};
    memcpy(source->bytes, bytes, n);
}

void cmd_sources_free(struct cmd_sources *sources)
{
    for (int i = 0; i < sources->n; i++) {
        free(sources->items[i].name);
        free(sources->items[i].bytes);
    }
    free(sources->items);
    *sources = (struct cmd_sources){0};
}

int cmd_receipt_begin(const struct cmd_options *options, struct butler_session *session)
{
    struct butler_error err = {0};
    return butler_session_keep_receipt(session, options->receipt, &err) < 0 ? cmd_fail(options, &err) : CMD_DONE;
}

/* ------------------------------------------------------------------------------------------------ passages */

struct passage {
    const struct cmd_source *source;
    size_t at, end; /* bytes of the source */
    int first_line, last_line;
    double attention;
};

struct passages {
    struct passage *items; /* room for as many as the documents have lines */
    int n;
    double sum; /* of the attention of all of them */
};

static size_t count_lines(const struct cmd_sources *sources)
{
    size_t n = 0;
    for (int i = 0; i < sources->n; i++) {
        n++;
        for (size_t at = 0; at < sources->items[i].n; at++)
            n += sources->items[i].bytes[at] == '\n';
    }
    return n;
}

static bool is_blank(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n\f\v", bytes[i]))
            return false;
    return true;
}

/* Cuts a document into passages. */
static void add_passages(struct passages *passages, const struct cmd_source *source)
{
    int line = 1, n_lines = 0;
    size_t begin = 0;
    for (size_t at = 0; at < source->n; line++) {
        const char *newline = memchr(source->bytes + at, '\n', source->n - at);
        const size_t end = newline ? (size_t)(newline - source->bytes) + 1 : source->n;
        const bool blank = is_blank(source->bytes + at, end - at);
        if (n_lines == 0)
            begin = at;
        n_lines += !blank || n_lines > 0;
        if (n_lines > 0 && (blank || n_lines == MOST_LINES || end - begin >= MOST_BYTES || end == source->n)) {
            passages->items[passages->n++] = (struct passage){
                .source = source, .at = begin, .end = end, .first_line = line - n_lines + 1, .last_line = line - (blank ? 1 : 0)};
            n_lines = 0;
        }
        at = end;
    }
}

/* The tokens' bytes, and where each begins: starts[n + 1]. */
static void detokenize(const struct butler_model *model, const struct cmd_integers *ids, struct butler_buffer *text, size_t *starts)
{
    for (int i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *bytes = butler_token_bytes(model, ids->values[i], &n);
        starts[i] = text->n;
        cmd_append(text, bytes, n);
    }
    starts[ids->n] = text->n;
}

/* Where a source stands in the text: its first occurrence outside [taken[i], taken[i] + n) of the earlier sources, whose texts may
 * begin like it. SIZE_MAX: nowhere. */
static size_t place(const struct cmd_sources *sources, const size_t *taken, int which, const struct butler_buffer *text)
{
    const struct cmd_source *source = &sources->items[which];
    for (size_t from = 0; from < text->n;) {
        const char *found = memmem(text->bytes + from, text->n - from, source->bytes, source->n);
        if (!found)
            break;
        const size_t at = (size_t)(found - text->bytes);
        from = at;
        for (int i = 0; i < which; i++)
            if (taken[i] != SIZE_MAX && at < taken[i] + sources->items[i].n && taken[i] < at + source->n)
                from = BUTLER_MAX(from, taken[i] + sources->items[i].n);
        if (from == at)
            return at;
    }
    return SIZE_MAX;
}

/* Gives passages the attention of the tokens that begin in them. A document that is not in the text as it was read has none. */
static void weigh(struct passages *passages, const struct cmd_sources *sources, const struct butler_buffer *text,
                  const size_t *starts, int n, const double *attention)
{
    size_t *places = cmd_alloc((size_t)sources->n + 1, sizeof *places);
    for (int i = 0; i < sources->n; i++)
        places[i] = place(sources, places, i, text);
    for (int p = 0, token = 0; p < passages->n; p++) {
        struct passage *passage = &passages->items[p];
        const size_t from = places[passage->source - sources->items];
        if (p == 0 || passage->source != passage[-1].source)
            token = 0; /* they need not stand in the order in which they were named */
        if (from == SIZE_MAX)
            continue;
        while (token < n && starts[token] < from + passage->at)
            token++;
        for (; token < n && starts[token] < from + passage->end; token++)
            passage->attention += token >= N_SINKS ? attention[token] : 0;
        passages->sum += passage->attention;
    }
    free(places);
}

static int by_attention(const void *a, const void *b)
{
    const struct passage *x = a, *y = b;
    return x->attention > y->attention ? -1 : x->attention < y->attention;
}

/* A line of the receipt: file, lines, share, how the passage begins. */
static void say_passage(const struct cmd_options *options, const struct passage *passage, double share)
{
    char beginning[N_BEGINNING + 4];
    size_t n = 0, at = passage->at;
    for (bool space = true; at < passage->end && n < N_BEGINNING; at++) {
        const char c = passage->source->bytes[at];
        const bool blank = c >= 0 && c <= ' ';
        if (!blank || !space)
            beginning[n++] = blank ? ' ' : c;
        space = blank;
    }
    bool half = at < passage->end && (passage->source->bytes[at] & 0xc0) == 0x80; /* of a character */
    for (; half && n > 0; n--)
        half = (beginning[n - 1] & 0xc0) != 0xc0;
    beginning[n] = '\0';
    cmd_say(options, "  %s:%d-%d (%.0f %%) %s%s", passage->source->name, passage->first_line, passage->last_line, 100 * share,
            beginning, passage->end - passage->at > n ? "..." : "");
}

/* The passages of the sources, those with most attention first; sum is 0 where none stands in the text. items are to be freed. */
static struct passages find_passages(const struct butler_model *model, const struct cmd_integers *ids, const double *attention,
                                     const struct cmd_sources *sources)
{
    struct passages passages = {.items = cmd_alloc(count_lines(sources) + 1, sizeof *passages.items)};
    struct butler_buffer text = {0};
    size_t *starts = cmd_alloc((size_t)ids->n + 1, sizeof *starts);
    detokenize(model, ids, &text, starts);
    for (int i = 0; i < sources->n; i++)
        add_passages(&passages, &sources->items[i]);
    weigh(&passages, sources, &text, starts, ids->n, attention);
    qsort(passages.items, (size_t)passages.n, sizeof *passages.items, by_attention);
    free(starts);
    butler_buffer_free(&text);
    return passages;
}

void cmd_receipt_say(const struct cmd_options *options, const struct butler_model *model, const struct butler_session *session,
                     const struct cmd_integers *ids, const struct cmd_sources *sources)
{
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    double *attention = cmd_alloc((size_t)butler_n_past(session) + 1, sizeof *attention);
    char part[96] = "all tokens were read", lost[160] = "";
    int n_lost = 0;
    if (!butler_session_receipt(session, &receipt, attention) || receipt.n_steps == 0)
        goto done;
    if (receipt.read < 1 - 1e-9)
        snprintf(part, sizeof part, "what was read has %.1f %% of the attention", 100 * receipt.read);
    else if (receipt.prompt_evicted + receipt.step_evicted > 0)
        snprintf(part, sizeof part, "all tokens that are kept were read");
    if (receipt.prompt_evicted > 0)
        n_lost = snprintf(lost, sizeof lost, "; those that were dropped had %.1f %% of it when the prompt was cut",
                          100 * receipt.prompt_evicted);
    if (receipt.step_evicted > 0)
        snprintf(lost + n_lost, sizeof lost - (size_t)n_lost, "; what a step dropped had %.1f %%", 100 * receipt.step_evicted);
    struct passages passages = find_passages(model, ids, attention, sources);
    cmd_say(options, "%s%s (%d step%s compared)%s", part, lost, receipt.n_steps, receipt.n_steps == 1 ? "" : "s",
            passages.sum > 0 ? "; most attention:" : "");
    for (int i = 0; i < passages.n && i < N_SHOWN && passages.items[i].attention * LEAST_SHARE > passages.sum; i++)
        say_passage(options, &passages.items[i], passages.items[i].attention / passages.sum);
    free(passages.items);
done:
    free(attention);
}
