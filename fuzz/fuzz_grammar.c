/* Any bytes as a grammar, and behind a zero byte as a text: the grammar is refused with a reason, or each step of the text has a
 * state, whose mask allows a token exactly where a step by it does. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "grammar/grammar.h"

enum { MAX_VOCAB = 4096 };

static struct butler_gguf *gguf;
static struct butler_tokenizer *tokenizer;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct butler_error err = {0};
    (void)argc, (void)argv;
    gguf = butler_gguf_open("tests/data/models/llama-gqa.gguf", &err);
    tokenizer = gguf ? butler_tokenizer_new(gguf, NULL, &err) : NULL;
    fuzz_require(tokenizer && butler_tokenizer_n_vocab(tokenizer) <= MAX_VOCAB, "run the target from the root of the repository");
    return 0;
}

/* Whether the mask of a state was made, and agrees with steps by each token. */
static bool check_state(const struct butler_grammar *grammar, int32_t state)
{
    float logits[MAX_VOCAB] = {0};
    struct butler_error err = {0};
    const int n_vocab = butler_tokenizer_n_vocab(tokenizer), n = butler_grammar_mask(grammar, state, logits, n_vocab, &err);
    int n_allowed = 0;
    fuzz_require(n >= 0 || (err.code == n && err.message[0]), "a mask that cannot be made has a reason");
    for (int32_t id = 0; id < n_vocab && n >= 0; id++) {
        const int32_t next = butler_grammar_advance(grammar, state, id, &err);
        fuzz_require(next < 0 || (next > 0) == (logits[id] > -INFINITY), "mask and step agree");
        n_allowed += logits[id] > -INFINITY;
    }
    fuzz_require(n < 0 || n == n_allowed, "the number of allowed tokens is right");
    return n >= 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    char *input = calloc(size + 2, 1);
    fuzz_require(input != NULL, "memory");
    if (size)
        memcpy(input, data, size);
    const size_t n = strlen(input);
    struct butler_grammar *grammar = butler_grammar_compile(tokenizer, input, &err);
    fuzz_require(grammar || (err.code < 0 && err.message[0]), "a refused grammar has a reason");
    if (grammar) {
        int32_t state = butler_grammar_start(grammar), ids[64];
        const int n_ids = n < size ? butler_tokenizer_encode(tokenizer, input + n + 1, size - n - 1, 0, ids, 64, &err) : 0;
        bool goes_on = check_state(grammar, state);
        for (int i = 0; i < n_ids && i < 64 && goes_on; i++) {
            state = butler_grammar_advance(grammar, state, ids[i], &err);
            goes_on = state > 0 && (i > 4 || check_state(grammar, state));
        }
    }
    butler_grammar_free(grammar);
    free(input);
    return 0;
}
