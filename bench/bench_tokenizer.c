/* Speed of a vocabulary on a text: bench_tokenizer VOCABULARY.gguf TEXT [RUNS]. Prints one line of name=value pairs. */
#include <stdio.h>
#include <stdlib.h>

#include "text/tokenizer.h"

int main(int argc, char **argv)
{
    struct butler_error err = {.message = "usage: bench_tokenizer VOCABULARY.gguf TEXT [RUNS]"};
    struct butler_map text = {0};
    struct butler_gguf *gguf = NULL;
    struct butler_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    int status = EXIT_FAILURE, runs = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 3 || butler_map_open(&text, argv[2], &err) || !(gguf = butler_gguf_open(argv[1], &err)))
        goto fail;
    double start = butler_seconds();
    if (!(tokenizer = butler_tokenizer_new(gguf, NULL, &err)))
        goto fail;
    double load_s = butler_seconds() - start, best = 0;
    int n = butler_tokenizer_encode(tokenizer, (const char *)text.data, text.size, 0, NULL, 0, &err);
    if (n < 0 || !(ids = malloc((size_t)n * sizeof *ids + 1)))
        goto fail;
    for (int i = 0; i < runs; i++) {
        start = butler_seconds();
        if (butler_tokenizer_encode(tokenizer, (const char *)text.data, text.size, 0, ids, n, &err) != n)
            goto fail;
        double seconds = butler_seconds() - start;
        best = i == 0 || seconds < best ? seconds : best;
    }
    printf("vocabulary=%s tokens=%d load_ms=%.1f text_bytes=%zu ids=%d best_of=%d seconds=%.4f mb_s=%.1f\n",
           butler_tokenizer_kind(tokenizer), butler_tokenizer_n_vocab(tokenizer), load_s * 1e3, text.size, n, runs, best,
           (double)text.size / best / 1e6);
    status = EXIT_SUCCESS;
fail:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "bench_tokenizer: %s\n", err.message);
    free(ids);
    butler_tokenizer_free(tokenizer);
    butler_gguf_free(gguf);
    butler_map_close(&text);
    return status;
}
