/* How long a grammar takes at each token: bench_grammar VOCABULARY.gguf GRAMMAR TEXT... Each text, of the grammar, is followed
 * token by token as the tokenizer cuts it; before each token the mask is made, first by a new grammar (states and masks are
 * computed), then again (they are known). Prints one line of name=value pairs for both; times are microseconds of this thread on a
 * core, so that other programs of the machine do not count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"

enum { MAX_TOKENS = 1 << 16 };

struct times {
    double us[MAX_TOKENS];
    int n;
};

/* Seconds that this thread has run. */
static double thread_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(struct times *times, const char *name, const struct butler_tokenizer *tokenizer, double compile_us)
{
    double sum = 0;
    qsort(times->us, (size_t)times->n, sizeof *times->us, by_time);
    for (int i = 0; i < times->n; i++)
        sum += times->us[i];
    printf("masks=%s vocabulary=%d compile=%.0f tokens=%d mean=%.1f p50=%.1f p90=%.1f p99=%.1f max=%.1f\n", name,
           butler_tokenizer_n_vocab(tokenizer), compile_us, times->n, sum / times->n, times->us[times->n / 2],
           times->us[times->n * 9 / 10], times->us[times->n * 99 / 100], times->us[times->n - 1]);
}

/* Follows a text; 0, or a code with *err. */
static int follow(struct butler_tokenizer *tokenizer, const struct butler_grammar *grammar, const struct butler_map *text,
                  float *logits, struct times *times, struct butler_error *err)
{
    static int32_t ids[MAX_TOKENS];
    const int n_vocab = butler_tokenizer_n_vocab(tokenizer);
    const int n = butler_tokenizer_encode(tokenizer, (const char *)text->data, text->size, 0, ids, MAX_TOKENS, err);
    int32_t state = butler_grammar_start(grammar);
    if (n < 0)
        return n;
    for (int i = 0; i < BUTLER_MIN(n, (int)MAX_TOKENS) && times->n < MAX_TOKENS; i++) {
        memset(logits, 0, (size_t)n_vocab * sizeof *logits);
        const double start = thread_seconds();
        const int allowed = butler_grammar_mask(grammar, state, logits, n_vocab, err);
        times->us[times->n++] = (thread_seconds() - start) * 1e6;
        if (allowed < 0)
            return allowed;
        state = butler_grammar_advance(grammar, state, ids[i], err);
        if (state < 0)
            return state;
        if (state == 0 || logits[ids[i]] == -INFINITY)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "token %d of the text is not the grammar's", i);
    }
    return 0;
}

static char *read_text(const char *path, struct butler_error *err)
{
    struct butler_map map;
    if (butler_map_open(&map, path, err) < 0)
        return NULL;
    char *text = butler_alloc(map.size + 1, err);
    if (text)
        memcpy(text, map.data, map.size);
    butler_map_close(&map);
    return text;
}

int main(int argc, char **argv)
{
    static struct times times[2];
    static const char *const names[] = {"first", "again"};
    struct butler_error err = {.message = "usage: bench_grammar VOCABULARY.gguf GRAMMAR TEXT..."};
    struct butler_gguf *gguf = NULL;
    struct butler_tokenizer *tokenizer = NULL;
    struct butler_grammar *grammar = NULL;
    char *gbnf = NULL;
    float *logits = NULL;
    int status = EXIT_FAILURE;
    if (argc < 4 || !(gguf = butler_gguf_open(argv[1], &err)) || !(tokenizer = butler_tokenizer_new(gguf, NULL, &err)) ||
        !(gbnf = read_text(argv[2], &err)))
        goto fail;
    logits = butler_alloc((size_t)butler_tokenizer_n_vocab(tokenizer) * sizeof *logits, &err);
    double start = thread_seconds(), compile_us;
    butler_grammar_free(butler_grammar_compile(tokenizer, gbnf, &err)); /* the trie is made once for all grammars */
    printf("trie_ms=%.1f\n", (thread_seconds() - start) * 1e3);
    start = thread_seconds();
    if (!logits || !(grammar = butler_grammar_compile(tokenizer, gbnf, &err)))
        goto fail;
    compile_us = (thread_seconds() - start) * 1e6;
    for (int round = 0; round < 2; round++)
        for (int i = 3; i < argc; i++) {
            struct butler_map text;
            int code = butler_map_open(&text, argv[i], &err);
            if (code == 0) {
                code = follow(tokenizer, grammar, &text, logits, &times[round], &err);
                butler_map_close(&text);
            }
            if (code < 0)
                goto fail;
        }
    for (int round = 0; round < 2; round++)
        print(&times[round], names[round], tokenizer, compile_us);
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "bench_grammar: %s\n", err.message);
    butler_grammar_free(grammar);
    butler_tokenizer_free(tokenizer);
    butler_gguf_free(gguf);
    free(logits);
    free(gbnf);
    return status;
}
