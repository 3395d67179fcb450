/* Rouge-1, Rouge-2 and Rouge-L as the package rouge-score computes them, without its stemmer. */
#include <stdlib.h>
#include <string.h>

#include "score.h"
#include "words.h"

/* The runs of ASCII letters and digits of a text in lower case; *text owns their bytes. */
static int words_of(const char *from, char **text, struct eval_words *words, struct butler_error *err)
{
    static const char kept[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    *text = eval_lower((struct eval_span){from, strlen(from)}, false, err);
    if (!*text)
        return BUTLER_ERROR_MEMORY;
    int code = 0;
    for (const char *at = *text + strcspn(*text, kept); *at && code == 0; at += strcspn(at, kept)) {
        const size_t n = strspn(at, kept);
        code = eval_words_add(words, (struct eval_span){at, n}, err);
        at += n;
    }
    return code;
}

static int by_code(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The n-grams (n = 1, 2) of ids[n_ids] as numbers, sorted, into codes; returns how many. */
static int grams(const int *ids, int n_ids, int n, int n_words, int64_t *codes)
{
    const int n_codes = BUTLER_MAX(n_ids - n + 1, 0);
    for (int i = 0; i < n_codes; i++)
        codes[i] = n == 1 ? ids[i] : (int64_t)ids[i] * n_words + ids[i + 1];
    if (n_codes > 0)
        qsort(codes, (size_t)n_codes, sizeof *codes, by_code);
    return n_codes;
}

/* Common elements of two sorted arrays, each as often as in both. */
static int common(const int64_t *a, int n_a, const int64_t *b, int n_b)
{
    int n = 0;
    for (int i = 0, k = 0; i < n_a && k < n_b;) {
        const int order = by_code(&a[i], &b[k]);
        n += order == 0;
        i += order <= 0;
        k += order >= 0;
    }
    return n;
}

/* Length of the longest common subsequence. row: scratch [m + 1], zeros. */
static int longest_common(const int *x, int n, const int *y, int m, int *row)
{
    for (int i = 0; i < n; i++)
        for (int j = 0, diagonal = 0; j < m; j++) { /* row[j + 1]: of x[0, i) and y[0, j], then of x[0, i] */
            const int above = row[j + 1];
            row[j + 1] = x[i] == y[j] ? diagonal + 1 : BUTLER_MAX(above, row[j]);
            diagonal = above;
        }
    return row[m];
}

static double f_measure(int same, int n_answer, int n_right)
{
    const double precision = (double)same / BUTLER_MAX(n_answer, 1), recall = (double)same / BUTLER_MAX(n_right, 1);
    return same > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

int eval_score_rouge(const char *answer, const char *right, double scores[EVAL_N_ROUGE], struct butler_error *err)
{
    char *text_a = NULL, *text_b = NULL;
    struct eval_words a = {0}, b = {0};
    int code = words_of(answer, &text_a, &a, err);
    if (code == 0)
        code = words_of(right, &text_b, &b, err);
    const size_t n = (size_t)a.n + (size_t)b.n;
    int *ids = code == 0 ? butler_alloc((2 * n + 1) * sizeof *ids, err) : NULL; /* and a row for Rouge-L */
    int64_t *codes = ids ? butler_alloc(n * sizeof *codes, err) : NULL;
    int n_words = codes ? eval_number_words(&a, &b, ids, ids + a.n, err) : BUTLER_ERROR_MEMORY;
    for (int k = 1; k <= 2 && n_words >= 0; k++) {
        const int n_a = grams(ids, a.n, k, n_words, codes), n_b = grams(ids + a.n, b.n, k, n_words, codes + a.n);
        scores[k - 1] = f_measure(common(codes, n_a, codes + a.n, n_b), n_a, n_b);
    }
    if (n_words >= 0)
        scores[2] = f_measure(longest_common(ids, a.n, ids + a.n, b.n, ids + n), a.n, b.n);
    free(ids);
    free(codes);
    free(text_a);
    free(text_b);
    eval_words_free(&a);
    eval_words_free(&b);
    return BUTLER_MIN(n_words, 0);
}
