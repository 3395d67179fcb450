/* RULER's tasks of tracing and counting: a chain of variables, common words of a list, frequent code words. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ruler.h"

/* ------------------------------------------------------------------------------------------------- a chain */

enum { N_CHAIN = 5, EXAMPLE_LINES = 12 }; /* one chain of four hops; the example takes up to 500 tokens */

/* Different names of n_letters capital letters. */
static void draw_names(uint64_t *random, int n_letters, char names[N_CHAIN][8])
{
    for (int i = 0; i < N_CHAIN; i++) {
        bool known = true;
        while (known) {
            for (int k = 0; k < n_letters; k++)
                names[i][k] = (char)('A' + eval_below(random, 26));
            names[i][n_letters] = 0;
            known = false;
            for (int k = 0; k < i; k++)
                known = known || strcmp(names[i], names[k]) == 0;
        }
    }
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Text, question and beginning of the answer about one chain among n lines of noise. value: five digits. */
static int write_chain(FILE *out, int n, char names[N_CHAIN][8], const char *value, uint64_t *random, struct butler_error *err)
{
    int at[N_CHAIN], next = 0, *scratch = butler_alloc((size_t)n * sizeof *scratch, err);
    if (!scratch)
        return BUTLER_ERROR_MEMORY;
    eval_distinct(random, n, N_CHAIN, scratch, at);
    free(scratch);
    qsort(at, N_CHAIN, sizeof *at, by_number);
    fputs("The text below contains assignments of variables. Follow them.\n\n", out);
    for (int i = 0; i < n; i++) {
        if (next < N_CHAIN && at[next] == i) {
            if (next == 0)
                fprintf(out, "VAR %s = %s\n", names[0], value);
            else
                fprintf(out, "VAR %s = VAR %s\n", names[next], names[next - 1]);
            next++;
        }
        fprintf(out, "%s%s", ruler_noise, i + 1 < n ? "\n" : "");
    }
    return 0;
}

static const char chain_ask[] = "\nQuestion: Which variables have the value %s in the text above?";
static const char chain_lead[] = " Answer: By the assignments in the text above, %d variables have the value %s:";

int ruler_make_chain(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                     struct butler_error *err)
{
    char names[N_CHAIN][8], value[8] = "1";
    size_t n_document;
    FILE *document = open_memstream(&out->document, &n_document);
    int code = 0;
    (void)ruler;
    (void)index;
    for (int example = 1; example >= 0 && code == 0 && document; example--) {
        draw_names(random, example ? 3 : 5, names);
        value[0] = (char)('1' + eval_below(random, 9));
        eval_digits(random, 4, value + 1);
        code = write_chain(document, example ? EXAMPLE_LINES : size, names, value, random, err);
        if (!example)
            break;
        fprintf(document, chain_ask, value);
        fprintf(document, chain_lead, N_CHAIN, value);
        for (int i = 0; i < N_CHAIN; i++)
            fprintf(document, " %s", names[i]);
        fputs("\n\n", document);
    }
    if (ruler_close(document, err) < 0 || code < 0)
        return BUTLER_ERROR_MEMORY;
    out->ask = ruler_format(chain_ask, value);
    out->lead = ruler_format(chain_lead, N_CHAIN, value);
    out->answers = json_array();
    for (int i = 0; i < N_CHAIN; i++)
        json_array_append_new(out->answers, json_string(names[i]));
    return 0;
}

/* -------------------------------------------------------------------------------------------- common words */

enum { N_COMMON = 10, WORD = 24 };

static void shuffle(uint64_t *random, int *numbers, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = eval_below(random, i + 1), kept = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = kept;
    }
}

/* A word of the pool: one of eval_words, or, where the item needs more than those, two joined. */
static const char *pool_word(int index, bool joined, char out[WORD])
{
    snprintf(out, WORD, "%s%s", eval_words[joined ? index / EVAL_N_WORDS : index], joined ? eval_words[index % EVAL_N_WORDS] : "");
    return out;
}

/* A numbered list of n words, N_COMMON of which occur `common` times each and the others `rare` times. words: the indices of the
 * common ones. */
static int write_list(FILE *out, int n, int common, int rare, uint64_t *random, int words[N_COMMON], struct butler_error *err)
{
    const bool joined = n > EVAL_N_WORDS;
    const int n_pool = joined ? EVAL_N_NAMES : EVAL_N_WORDS, n_list = N_COMMON * common + (n - N_COMMON) * rare;
    int *scratch = butler_alloc((size_t)n_pool * sizeof *scratch, err), *chosen = butler_alloc((size_t)n * sizeof *chosen, err);
    int *list = butler_alloc((size_t)n_list * sizeof *list, err), code = scratch && chosen && list ? 0 : BUTLER_ERROR_MEMORY;
    if (code == 0) {
        char word[WORD];
        int at = 0;
        eval_distinct(random, n_pool, n, scratch, chosen);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < (i < N_COMMON ? common : rare); k++)
                list[at++] = chosen[i];
        shuffle(random, list, n_list);
        fputs("Here is a numbered list of words. Some of them occur more often than others: remember those.\n", out);
        for (int i = 0; i < n_list; i++)
            fprintf(out, "%s%d. %s", i ? " " : "", i + 1, pool_word(list[i], joined, word));
        memcpy(words, chosen, N_COMMON * sizeof *words);
    }
    free(scratch);
    free(chosen);
    free(list);
    return code;
}

int ruler_make_common(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                      struct butler_error *err)
{
    static const char ask[] = "\nQuestion: Which 10 words occur most often in the list above?";
    static const char lead[] = " Answer: The 10 words that occur most often in the list are:";
    const bool small = ruler->length < 4096; /* as the benchmark does it */
    char word[WORD];
    int words[N_COMMON];
    size_t n_document;
    FILE *document = open_memstream(&out->document, &n_document);
    (void)index;
    int code = document ? write_list(document, small ? 20 : 40, small ? 3 : 10, small ? 1 : 3, random, words, err) : 0;
    if (document && code == 0) {
        fprintf(document, "%s%s", ask, lead);
        for (int i = 0; i < N_COMMON; i++)
            fprintf(document, " %d. %s", i + 1, pool_word(words[i], false, word));
        fputc('\n', document);
        code = write_list(document, size, small ? 6 : 30, small ? 1 : 3, random, words, err);
    }
    if (ruler_close(document, err) < 0 || code < 0)
        return BUTLER_ERROR_MEMORY;
    out->ask = strdup(ask);
    out->lead = strdup(lead);
    out->answers = json_array();
    for (int i = 0; i < N_COMMON; i++)
        json_array_append_new(out->answers, json_string(pool_word(words[i], size > EVAL_N_WORDS, word)));
    return 0;
}

/* ------------------------------------------------------------------------------------------ frequent words */

enum { N_LETTERS = 6, N_ASKED = 3 };

/* Different code words; words[0] stands for noise. */
static void draw_code_words(uint64_t *random, char (*words)[8], int n)
{
    strcpy(words[0], "...");
    for (int i = 1; i < n; i++) {
        bool known = true;
        while (known) {
            for (int k = 0; k < N_LETTERS; k++)
                words[i][k] = (char)('a' + eval_below(random, 26));
            words[i][N_LETTERS] = 0;
            known = false;
            for (int k = 1; k < i; k++)
                known = known || strcmp(words[i], words[k]) == 0;
        }
    }
}

int ruler_make_frequent(const struct ruler *ruler, int index, int size, uint64_t *random, struct ruler_text *out,
                        struct butler_error *err)
{
    const int n_words = BUTLER_MAX(ruler->length / 50, N_ASKED + 1);
    const double zeta_2 = 9.8696044010893586 / 6; /* pi^2 / 6 */
    char(*words)[8] = butler_alloc((size_t)n_words * sizeof *words, err);
    int *list = butler_alloc((size_t)size * sizeof *list, err), n = 0;
    size_t n_document;
    FILE *document = words && list ? open_memstream(&out->document, &n_document) : NULL;
    (void)index;
    if (document) {
        draw_code_words(random, words, n_words);
        for (int k = 0; k < n_words; k++) /* the zeta distribution with exponent 2: the k-th word size / (k^2 zeta(2)) times */
            for (int i = (int)(size / ((k + 1.0) * (k + 1.0)) / zeta_2); i > 0; i--)
                list[n++] = k;
        shuffle(random, list, n);
        fputs("The text below is made of code words. Count how often each of them occurs.\n", document);
        for (int i = 0; i < n; i++)
            fprintf(document, "%s%s", i ? " " : "", words[list[i]]);
        out->answers = json_array();
        for (int k = 1; k <= N_ASKED; k++)
            json_array_append_new(out->answers, json_string(words[k]));
    }
    const int code = words && list ? ruler_close(document, err) : BUTLER_ERROR_MEMORY;
    free(words);
    free(list);
    out->ask = strdup("\nQuestion: Which three code words occur most often in the text above? The dots '...' are no words. Give no "
                      "explanation.");
    out->lead = strdup(" Answer: The three code words that occur most often in the text are:");
    return code;
}
