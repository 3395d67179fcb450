/* Scores over words: F1 and ROUGE-L. */
#include <stdlib.h>
#include <string.h>

#include "score.h"
#include "words.h"

static int compare_words(const void *a, const void *b)
{
    return eval_span_compare(*(const struct eval_span *)a, *(const struct eval_span *)b);
}

/* ---------------------------------------------------------------------------------------------------- F1 */

static bool is_article(struct eval_span word)
{
    static const char *const articles[] = {"a", "an", "the"};
    for (int i = 0; i < BUTLER_COUNT(articles); i++)
        if (word.n == strlen(articles[i]) && memcmp(word.bytes, articles[i], word.n) == 0)
            return true;
    return false;
}

/* Lower case, without ASCII punctuation; then articles between non-letters become spaces. In place. */
static void normalise(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++)
        if (!strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", *from))
            *to++ = *from;
    *to = 0;
    size_t n = strlen(text), start = 0;
    for (size_t i = 0; i <= n;) {
        uint32_t codepoint = ' ';
        const size_t length = i < n ? (size_t)eval_character(text + i, n - i, &codepoint) : 1;
        if (i == n || !eval_is_word(codepoint)) {
            if (is_article((struct eval_span){text + start, i - start}))
                memset(text + start, ' ', i - start);
            start = i + length;
        }
        i += length;
    }
}

/* The words of a text for F1, sorted; *text owns their bytes. */
static int words_of(const char *from, char **text, struct eval_words *words, struct butler_error *err)
{
    *text = eval_lower((struct eval_span){from, strlen(from)}, false, err);
    if (!*text)
        return BUTLER_ERROR_MEMORY;
    normalise(*text);
    const int code = eval_split((struct eval_span){*text, strlen(*text)}, words, err);
    if (code == 0 && words->n > 0)
        qsort(words->words, (size_t)words->n, sizeof *words->words, compare_words);
    return code;
}

int eval_score_f1(const char *answer, const char *right, double *score, struct butler_error *err)
{
    char *text_a = NULL, *text_b = NULL;
    struct eval_words a = {0}, b = {0};
    int code = words_of(answer, &text_a, &a, err), same = 0;
    if (code == 0)
        code = words_of(right, &text_b, &b, err);
    for (int i = 0, j = 0; code == 0 && i < a.n && j < b.n;) {
        const int order = eval_span_compare(a.words[i], b.words[j]);
        same += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    *score = 0;
    if (same > 0) {
        const double precision = (double)same / a.n, recall = (double)same / b.n;
        *score = 2 * precision * recall / (precision + recall);
    }
    eval_words_free(&a);
    eval_words_free(&b);
    free(text_a);
    free(text_b);
    return code;
}

/* ----------------------------------------------------------------------------------------------- ROUGE-L */

/* A text as sentences of words; sentence i has words [starts[i], starts[i + 1]). A sentence of white space has one word,
 * the empty one. */
struct sentences {
    struct eval_words words;
    int *starts, n;
    int *ids; /* [words.n] equal words have equal numbers */
};

static int cut_sentences(const char *text, struct sentences *out, struct butler_error *err)
{
    int code = 0;
    out->starts = butler_alloc((strlen(text) + 2) * sizeof *out->starts, err);
    if (!out->starts)
        return BUTLER_ERROR_MEMORY;
    while (*text && code == 0) {
        const size_t n = strcspn(text, ".");
        if (n > 0) {
            const int before = out->words.n;
            code = eval_split((struct eval_span){text, n}, &out->words, err);
            if (code == 0 && out->words.n == before)
                code = eval_words_add(&out->words, (struct eval_span){text, 0}, err);
            out->starts[++out->n] = out->words.n;
        }
        text += n + (text[n] == '.');
    }
    return code;
}

/* The number of different ones among ids[n], which are below n_all. seen: scratch [n_all]. */
static int count_different(const int *ids, int n, bool *seen, int n_all)
{
    int count = 0;
    memset(seen, 0, (size_t)n_all * sizeof *seen);
    for (int i = 0; i < n; i++) {
        count += !seen[ids[i]];
        seen[ids[i]] = true;
    }
    return count;
}

/* Marks the words of one longest common subsequence of x[n] and y[m]; of several, the one found by backtracking from both ends that
 * prefers to skip a word of y. table: scratch [(n + 1) * (m + 1)]. */
static void mark_common(const int *x, int n, const int *y, int m, int *table, bool *marks)
{
    const size_t row = (size_t)m + 1;
    memset(table, 0, row * sizeof *table);
    for (int i = 1; i <= n; i++) {
        int *now = table + (size_t)i * row, *above = now - row;
        now[0] = 0;
        for (int j = 1; j <= m; j++)
            now[j] = x[i - 1] == y[j - 1] ? above[j - 1] + 1 : BUTLER_MAX(above[j], now[j - 1]);
    }
    for (int i = n, j = m; i > 0 && j > 0;) {
        const int *now = table + (size_t)i * row + j;
        if (x[i - 1] == y[j - 1]) {
            marks[x[i - 1]] = true;
            i--;
            j--;
        } else if (now[-(ptrdiff_t)row] > now[-1])
            i--;
        else
            j--;
    }
}

static int longest_sentence(const struct sentences *text)
{
    int longest = 0;
    for (int i = 0; i < text->n; i++)
        longest = BUTLER_MAX(longest, text->starts[i + 1] - text->starts[i]);
    return longest;
}

static int rouge_l(struct sentences *answer, struct sentences *right, double *score, struct butler_error *err)
{
    answer->ids = butler_alloc((size_t)answer->words.n * sizeof *answer->ids, err);
    right->ids = butler_alloc((size_t)right->words.n * sizeof *right->ids, err);
    if (!answer->ids || !right->ids)
        return BUTLER_ERROR_MEMORY;
    const int n_all = eval_number_words(&answer->words, &right->words, answer->ids, right->ids, err);
    if (n_all < 0)
        return n_all;
    int n_answer = 0, n_right = 0, common = 0, code;
    size_t cells;
    int *table = NULL;
    bool *marks = butler_alloc((size_t)n_all * sizeof *marks, err);
    if (butler_mul_size((size_t)longest_sentence(answer) + 1, (size_t)longest_sentence(right) + 1, &cells) &&
        butler_mul_size(cells, sizeof *table, &cells))
        table = butler_alloc(cells, err);
    code = table && marks ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "sentences too long to compare");
    if (code == 0) {
        n_answer = count_different(answer->ids, answer->words.n, marks, n_all);
        n_right = count_different(right->ids, right->words.n, marks, n_all);
        memset(marks, 0, (size_t)n_all * sizeof *marks);
    }
    for (int i = 0; i < right->n && code == 0; i++)
        for (int j = 0; j < answer->n; j++)
            mark_common(right->ids + right->starts[i], right->starts[i + 1] - right->starts[i], answer->ids + answer->starts[j],
                        answer->starts[j + 1] - answer->starts[j], table, marks);
    for (int i = 0; i < n_all && code == 0; i++)
        common += marks[i];
    const double recall = (double)common / n_right, precision = (double)common / n_answer;
    *score = 2 * precision * recall / (precision + recall + 1e-8);
    free(table);
    free(marks);
    return code;
}

int eval_score_rouge_l(const char *answer, const char *right, double *score, struct butler_error *err)
{
    struct sentences a = {0}, b = {0};
    int code = cut_sentences(answer, &a, err);
    *score = 0;
    if (code == 0)
        code = cut_sentences(right, &b, err);
    if (code == 0 && a.n > 0 && b.n > 0)
        code = rouge_l(&a, &b, score, err);
    eval_words_free(&a.words);
    eval_words_free(&b.words);
    free(a.starts);
    free(b.starts);
    free(a.ids);
    free(b.ids);
    return code;
}
