/* The tokens of one text that each policy read to predict the answer: strips of the whole text, then the text itself. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static bool is_heat(const struct report_row *row)
{
    return strcmp(row->task, "heat") == 0 && json_is_array(json_object_get(row->object, "tokens")) &&
           json_is_array(json_object_get(row->object, "kept"));
}

static double kept_at(const struct report_row *row, int i)
{
    const json_t *kept = json_array_get(json_object_get(row->object, "kept"), (size_t)i);
    double value = json_is_number(kept) ? json_number_value(kept) : json_is_true(kept) ? 1 : 0;
    return fmin(fmax(value, 0), 1);
}

static int n_tokens(const struct report_row *row)
{
    return (int)json_array_size(json_object_get(row->object, "tokens"));
}

static bool is_answer(const struct report_row *row, int token)
{
    const json_t *answer = json_object_get(row->object, "answer");
    for (size_t i = 0; i < json_array_size(answer); i++)
        if (json_is_integer(json_array_get(answer, i)) && json_integer_value(json_array_get(answer, i)) == token)
            return true;
    return false;
}

/* Share of the tokens that were read, of all or of those of the answer. */
static double share_kept(const struct report_row *row, bool answers)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < n_tokens(row); i++)
        if (!answers || is_answer(row, i)) {
            sum += kept_at(row, i);
            n++;
        }
    return n ? sum / n : NAN;
}

static int level(double kept)
{
    return kept <= 0 ? 0 : BUTLER_MAX(1, (int)lround(kept * 9));
}

/* Adjacent tokens of one level are one rectangle: a text has thousands of tokens. */
static void strip_write(FILE *out, const struct report_row *row)
{
    int n = n_tokens(row);
    fprintf(out, "<svg class=\"strip\" viewBox=\"0 0 %d 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\">", BUTLER_MAX(n, 1));
    for (int i = 0; i < n;) {
        int end = i + 1, colour = level(kept_at(row, i));
        while (end < n && level(kept_at(row, end)) == colour)
            end++;
        if (colour)
            fprintf(out, "<rect class=\"k%d\" x=\"%d\" y=\"0\" width=\"%d\" height=\"16\"/>", colour, i, end - i);
        i = end;
    }
    for (int i = 0; i < n; i++)
        if (is_answer(row, i))
            fprintf(out, "<rect class=\"answer\" x=\"%d\" y=\"17\" width=\"1\" height=\"3\"/>", i);
    fprintf(out, "</svg>");
}

/* Line breaks get a visible sign; other characters are written as they are. */
static void token_write(FILE *out, const char *text)
{
    char *copy = report_alloc(strlen(text) + 1, 1);
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        memcpy(copy, at, n);
        copy[n] = 0;
        report_text(out, copy);
        at += n;
        if (*at == '\n') {
            fprintf(out, "\xe2\x86\xb5<br/>");
            at++;
        }
    }
    free(copy);
}

static void text_write(FILE *out, const struct report_row *row)
{
    const json_t *tokens = json_object_get(row->object, "tokens");
    fprintf(out, "<p class=\"tokens\">");
    for (int i = 0; i < n_tokens(row);) {
        int end = i, colour = level(kept_at(row, i));
        bool answer = is_answer(row, i);
        fprintf(out, "<span class=\"k%d%s\">", colour, answer ? " answer" : "");
        for (; end < n_tokens(row) && level(kept_at(row, end)) == colour && is_answer(row, end) == answer; end++) {
            const char *text = json_string_value(json_array_get(tokens, (size_t)end));
            token_write(out, text ? text : "\xef\xbf\xbd");
        }
        fprintf(out, "</span>");
        i = end;
    }
    fprintf(out, "</p>\n");
}

static void strips_write(FILE *out, const struct report *report)
{
    char a[64], b[64];
    fprintf(out, "<div class=\"scroll\"><table class=\"strips\"><thead><tr><th scope=\"col\">policy</th><th scope=\"col\">read of "
                 "the text</th><th "
                 "scope=\"col\">of the answer</th><th scope=\"col\" class=\"wide\">from the first token to the "
                 "last</th></tr></thead><tbody>\n");
    for (int i = 0; i < report->rows->n; i++) {
        const struct report_row *row = &report->rows->rows[i];
        if (!is_heat(row))
            continue;
        fprintf(out, "<tr><th scope=\"row\">");
        report_text(out, row->policy);
        fprintf(out, "</th><td>%s</td><td>%s</td><td class=\"wide\">", report_number(a, sizeof a, share_kept(row, false), true),
                report_number(b, sizeof b, share_kept(row, true), true));
        strip_write(out, row);
        fprintf(out, "</td></tr>\n");
    }
    fprintf(out, "</tbody></table></div>\n");
}

void report_tokens_write(FILE *out, const struct report *report)
{
    int n = 0;
    for (int i = 0; i < report->rows->n; i++)
        n += is_heat(&report->rows->rows[i]);
    if (!n)
        return;
    fprintf(out, "<section id=\"tokens\"><h2>Which tokens were read</h2><p class=\"says\">One text at the step that gives the "
                 "answer. Dark: the share of "
                 "heads that read the token; <span class=\"tokens\"><span class=\"k7 answer\">outlined</span></span>: the tokens "
                 "of the "
                 "answer, marked below each strip.</p>\n");
    strips_write(out, report);
    for (int i = 0, shown = 0; i < report->rows->n; i++) {
        const struct report_row *row = &report->rows->rows[i];
        if (!is_heat(row))
            continue;
        fprintf(out, "<details%s><summary>The text under ", shown++ ? "" : " open=\"open\"");
        report_text(out, row->policy);
        fprintf(out, "</summary>");
        text_write(out, row);
        fprintf(out, "</details>\n");
    }
    fprintf(out, "</section>\n");
}
