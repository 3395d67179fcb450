/* One tokenizer in several threads at once: all sessions of a model share it. */
#include "tokenizer_test.h"

#include <pthread.h>

enum { N_VOCABS = 3 };
static struct tiny_vocab *vocabs[N_VOCABS];

struct worker {
    pthread_t thread;
    const char *text;
    int32_t ids[N_VOCABS][128];
    int n[N_VOCABS];
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (int i = 0; i < 200; i++)
        for (int v = 0; v < N_VOCABS; v++)
            worker->n[v] = butler_tokenizer_encode(vocabs[v]->tokenizer, worker->text, strlen(worker->text), BUTLER_PARSE_SPECIAL,
                                                   worker->ids[v], 128, NULL);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    vocabs[0] = tiny_bpe("llama-bpe");
    vocabs[1] = tiny_bpe("default");
    vocabs[2] = tiny_spm();
    for (int v = 0; v < N_VOCABS; v++)
        opened(vocabs[v]);
    struct worker workers[5] = {{0}};
    for (int i = 0; i < 5; i++) {
        workers[i].text = "hello world, user-defined 123 <|im_end|>\u00e9\u20ac";
        if (i > 0)
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    work(&workers[0]);
    for (int i = 1; i < 5; i++) {
        pthread_join(workers[i].thread, NULL);
        for (int v = 0; v < N_VOCABS; v++) {
            assert_in_range(workers[0].n[v], 10, 128);
            assert_int_equal(workers[i].n[v], workers[0].n[v]);
            assert_memory_equal(workers[i].ids[v], workers[0].ids[v], (size_t)workers[0].n[v] * sizeof(int32_t));
        }
    }
    for (int v = 0; v < N_VOCABS; v++)
        tiny_vocab_free(vocabs[v]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
