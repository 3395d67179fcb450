/* Scores that search an answer for classes or numbers, and the similarity of a line of code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "score.h"
#include "words.h"

int eval_score_class(const char *answer, const char *right, const char *const *classes, int n_classes, double *score,
                     struct butler_error *err)
{
    const char **named = butler_alloc((size_t)n_classes * sizeof *named, err);
    int n = 0;
    if (!named)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n_classes; i++)
        if (strstr(answer, classes[i]))
            named[n++] = classes[i];
    /* The published loop removes elements from the list it iterates over: the name after a removed one is skipped, and of equal
     * names the first is removed. */
    for (int i = 0; i < n; i++)
        if (strstr(right, named[i]) && strcmp(right, named[i]) != 0) {
            int first = 0;
            while (strcmp(named[first], named[i]) != 0)
                first++;
            memmove(named + first, named + first + 1, (size_t)(n - first - 1) * sizeof *named);
            n--;
        }
    *score = 0;
    for (int i = 0; i < n; i++)
        if (strcmp(named[i], right) == 0)
            *score = 1.0 / n;
    free(named);
    return 0;
}

int eval_score_contains(const char *answer, const char *right, double *score, struct butler_error *err)
{
    char *text = eval_lower((struct eval_span){answer, strlen(answer)}, false, err);
    char *wanted = eval_lower((struct eval_span){right, strlen(right)}, false, err);
    const bool lowered = text && wanted;
    *score = lowered && strstr(text, wanted);
    free(text);
    free(wanted);
    return lowered ? 0 : BUTLER_ERROR_MEMORY;
}

static const char digits[] = "0123456789";

int eval_score_number(const char *answer, const char *right, const char *before, double *score, struct butler_error *err)
{
    int n = 0, n_right = 0;
    if (before) {
        const char *at = right;
        while ((at = strstr(at, before)) && strspn(at + strlen(before), digits) == 0)
            at++;
        if (!at)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "the correct answer '%.40s' does not contain '%s' and a number", right,
                               before);
        right = at + strlen(before);
    }
    const size_t n_number = before ? strspn(right, digits) : strlen(right);
    for (const char *at = answer + strcspn(answer, digits); *at; at += strcspn(at, digits)) {
        const size_t length = strspn(at, digits);
        n_right += length == n_number && memcmp(at, right, length) == 0;
        n++;
        at += length;
    }
    *score = n ? (double)n_right / n : 0;
    return 0;
}

/* ----------------------------------------------------------------------------------------- edit similarity */

static uint32_t *characters_of(const char *text, size_t n_bytes, int *n, struct butler_error *err)
{
    uint32_t *out = butler_alloc((n_bytes + 1) * sizeof *out, err);
    *n = 0;
    while (out && n_bytes > 0) {
        const int length = eval_character(text, n_bytes, &out[(*n)++]);
        text += length;
        n_bytes -= (size_t)length;
    }
    return out;
}

/* The two texts. If b has 200 characters or more, a character that makes up more than a hundredth of it does not begin a match
 * (difflib's "popular" elements). */
struct comparison {
    const uint32_t *a, *b;
    const bool *popular; /* [characters of b] */
    int *lengths;        /* [2][characters of b + 1] scratch */
    int n_b;
};

struct range {
    int a_lo, a_hi, b_lo, b_hi;
};

/* The longest common run of both ranges, the earliest in a, then in b; extended by characters of any kind. */
static int longest_run(const struct comparison *c, struct range range, int *at_a, int *at_b)
{
    int best = 0, i_best = range.a_lo, j_best = range.b_lo;
    int *above = c->lengths, *now = c->lengths + c->n_b + 1;
    memset(c->lengths, 0, ((size_t)c->n_b + 1) * 2 * sizeof *c->lengths);
    for (int i = range.a_lo; i < range.a_hi; i++) {
        for (int j = range.b_lo; j < range.b_hi; j++) {
            now[j + 1] = c->a[i] == c->b[j] && !c->popular[j] ? above[j] + 1 : 0;
            if (now[j + 1] > best) {
                best = now[j + 1];
                i_best = i - best + 1;
                j_best = j - best + 1;
            }
        }
        int *swap = above;
        above = now;
        now = swap;
    }
    for (; i_best > range.a_lo && j_best > range.b_lo && c->a[i_best - 1] == c->b[j_best - 1]; best++) {
        i_best--;
        j_best--;
    }
    while (i_best + best < range.a_hi && j_best + best < range.b_hi && c->a[i_best + best] == c->b[j_best + best])
        best++;
    *at_a = i_best;
    *at_b = j_best;
    return best;
}

static int compare_characters(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void mark_popular(const uint32_t *b, int n, uint32_t *sorted, bool *popular)
{
    memcpy(sorted, b, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_characters);
    for (int i = 0; n >= 200 && i < n;) {
        int end = i;
        while (end < n && sorted[end] == sorted[i])
            end++;
        for (int j = 0; end - i > n / 100 + 1 && j < n; j++)
            popular[j] = popular[j] || b[j] == sorted[i];
        i = end;
    }
}

/* Number of characters in matching runs: the longest run first, then the ranges before and after it. */
static int count_matches(const struct comparison *c, int n_a, struct range *stack)
{
    int n = 0, n_stack = 0;
    stack[n_stack++] = (struct range){0, n_a, 0, c->n_b};
    while (n_stack > 0) {
        const struct range range = stack[--n_stack];
        int a, b;
        const int run = longest_run(c, range, &a, &b);
        n += run;
        if (run > 0 && range.a_lo < a && range.b_lo < b)
            stack[n_stack++] = (struct range){range.a_lo, a, range.b_lo, b};
        if (run > 0 && a + run < range.a_hi && b + run < range.b_hi)
            stack[n_stack++] = (struct range){a + run, range.a_hi, b + run, range.b_hi};
    }
    return n;
}

static int similarity(const char *a_text, size_t n_text, const char *b_text, double *score, struct butler_error *err)
{
    int n_a = 0, n_b = 0;
    uint32_t *a = characters_of(a_text, n_text, &n_a, err), *b = characters_of(b_text, strlen(b_text), &n_b, err);
    uint32_t *sorted = butler_alloc((size_t)n_b * sizeof *sorted, err);
    bool *popular = butler_alloc((size_t)n_b * sizeof *popular, err);
    int *lengths = butler_alloc(((size_t)n_b + 1) * 2 * sizeof *lengths, err);
    struct range *stack = butler_alloc(((size_t)n_a + 2) * sizeof *stack, err); /* ranges on it do not overlap */
    const int code = a && b && sorted && popular && lengths && stack ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0) {
        mark_popular(b, n_b, sorted, popular);
        const struct comparison c = {a, b, popular, lengths, n_b};
        *score = nearbyint(200.0 * count_matches(&c, n_a, stack) / (n_a + n_b)) / 100;
    }
    free(a);
    free(b);
    free(sorted);
    free(popular);
    free(lengths);
    free(stack);
    return code;
}

int eval_score_edit(const char *answer, const char *right, double *score, struct butler_error *err)
{
    size_t n = 0;
    const char *line = answer + strspn(answer, "\n");
    for (bool found = false; !found;) {
        n = strcspn(line, "\n");
        found = !memchr(line, '`', n) && !memchr(line, '#', n) && !memmem(line, n, "//", 2);
        if (!found && !line[n]) {
            n = 0;
            break;
        }
        if (!found)
            line += n + 1;
    }
    *score = n == strlen(right) && memcmp(line, right, n) == 0;
    return *score == 1 || n == 0 || !*right ? 0 : similarity(line, n, right, score, err);
}
