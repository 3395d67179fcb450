/* Splits text into words with regular expressions. A pre-tokenizer has up to four: each splits the pieces that the one before
 * produced, into its matches and the stretches between them. */
#include "text/pretokenizer.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 4

/* Unicode's White_Space, written out: PCRE2's own \s has one character more. Letters and numbers are \pL and \pN. */
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define TRAILING_SPACES "[" SPACES "]+(?![^" SPACES "])"

#define GPT2_WORDS "'(?:[stmd]|re|ve|ll)| ?\\pL+| ?\\pN+| ?[^" SPACES "\\pL\\pN]+|" TRAILING_SPACES
#define LLAMA3_WORDS(digits)                                                                                                       \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\\r\\n\\pL\\pN]?\\pL+|\\pN" digits "| ?[^" SPACES "\\pL\\pN]+[\\r\\n]*|"         \
    "[" SPACES "]*[\\r\\n]+|" TRAILING_SPACES "|[" SPACES "]+"

static const struct pre_tokenizer {
    const char *name;
    bool whole_words, adds_bos;
    const char *stages[MAX_STAGES];
} pre_tokenizers[] = {
    {"default", false, false, {"[\\pP$+<=>^~|]+", GPT2_WORDS, "\\pN+", "[0-9][0-9][0-9]"}},
    {"gpt-2", false, false, {GPT2_WORDS}},
    {"smollm", false, false, {"\\pN", GPT2_WORDS}},
    {"llama-bpe", true, true, {LLAMA3_WORDS("{1,3}")}},
    {"llama3", true, true, {LLAMA3_WORDS("{1,3}")}},
    {"llama-v3", true, true, {LLAMA3_WORDS("{1,3}")}},
    {"qwen2", false, false, {LLAMA3_WORDS("")}},
    {"deepseek-r1-qwen", false, false, {LLAMA3_WORDS("")}},
};

struct butler_split {
    const struct pre_tokenizer *pre;
    pcre2_code *stages[MAX_STAGES]; /* NULL ends the list */
};

static int compile(struct butler_split *split, const char *path, struct butler_error *err)
{
    for (int i = 0; i < MAX_STAGES && split->pre->stages[i]; i++) {
        int code;
        size_t offset;
        split->stages[i] =
            pcre2_compile((PCRE2_SPTR)split->pre->stages[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
        if (!split->stages[i]) {
            char why[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            return butler_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_UNSUPPORTED,
                               "%s: pre-tokenizer %s, expression %d, offset %zu: %s", path, split->pre->name, i, offset, why);
        }
        /* If JIT is not available or not allowed, matching is slower but gives the same result. */
        pcre2_jit_compile(split->stages[i], PCRE2_JIT_COMPLETE);
    }
    return BUTLER_OK;
}

struct butler_split *butler_split_new(const char *name, const char *path, struct butler_error *err)
{
    const struct pre_tokenizer *pre = NULL;
    for (int i = 0; i < BUTLER_COUNT(pre_tokenizers) && !pre; i++)
        if (strcmp(pre_tokenizers[i].name, name) == 0)
            pre = &pre_tokenizers[i];
    if (!pre) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: tokenizer.ggml.pre is \"%.64s\", a pre-tokenizer butler does not know",
                    path, name);
        return NULL;
    }
    struct butler_split *split = calloc(1, sizeof *split);
    if (!split) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the pre-tokenizer", path);
        return NULL;
    }
    split->pre = pre;
    if (compile(split, path, err)) {
        butler_split_free(split);
        return NULL;
    }
    return split;
}

void butler_split_free(struct butler_split *split)
{
    if (!split)
        return;
    for (int i = 0; i < MAX_STAGES; i++)
        pcre2_code_free(split->stages[i]);
    free(split);
}

bool butler_split_whole_words(const struct butler_split *split)
{
    return split->pre->whole_words;
}

bool butler_split_adds_bos(const struct butler_split *split)
{
    return split->pre->adds_bos;
}

/* ---------------------------------------------------------------------------------------------- matching */

struct run {
    const struct butler_split *split;
    pcre2_match_data *match;
    pcre2_match_context *context;
    butler_word_fn *word;
    void *user;
    struct butler_error *err;
};

/* The first match in text[n], which is valid UTF-8, as [*start, *end); both n if there is none. */
static int find(struct run *run, int stage, const char *text, size_t n, size_t *start, size_t *end)
{
    const pcre2_code *code = run->split->stages[stage];
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, 0, PCRE2_NO_UTF_CHECK, run->match, run->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, 0, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->match, run->context);
    *start = *end = n;
    if (rc == PCRE2_ERROR_NOMATCH)
        return BUTLER_OK;
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return butler_fail(run->err,
                           rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_ARGUMENT,
                           "pre-tokenizer %s, %zu bytes before the end of a text: %s", run->split->pre->name, n, why);
    }
    const size_t *offsets = pcre2_get_ovector_pointer(run->match);
    *start = offsets[0];
    *end = offsets[1];
    return BUTLER_OK;
}

/* Splits text[n], valid UTF-8, by the expressions from `stage` on. Each piece is a separate subject, because a lookahead must
 * not see past the end that an earlier expression set. */
static int cut(struct run *run, int stage, const char *text, size_t n)
{
    if (stage == MAX_STAGES || !run->split->stages[stage])
        return run->word(run->user, text, n, run->err);
    while (n > 0) {
        size_t start, end;
        int rc = find(run, stage, text, n, &start, &end);
        if (!rc && start > 0)
            rc = cut(run, stage + 1, text, start);
        if (!rc && end > start)
            rc = cut(run, stage + 1, text + start, end - start);
        if (rc)
            return rc;
        text += end;
        n -= end;
    }
    return BUTLER_OK;
}

/* Length of the longest prefix of text[n] that is UTF-8 (valid), or that is not. */
static size_t stretch(const char *text, size_t n, bool valid)
{
    size_t i = 0;
    while (i < n) {
        int length = (signed char)text[i] >= 0 ? 1 : butler_utf8_decode(text + i, n - i, NULL);
        if ((length > 0) != valid)
            break;
        i += length > 0 ? (size_t)length : 1;
    }
    return i;
}

int butler_split_run(const struct butler_split *split, const char *text, size_t n, butler_word_fn *word, void *user,
                     struct butler_error *err)
{
    int rc = BUTLER_OK;
    struct run run = {.split = split, .word = word, .user = user, .err = err};
    run.match = pcre2_match_data_create(1, NULL);
    run.context = pcre2_match_context_create(NULL);
    if (!run.match || !run.context) {
        rc = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory to match a pre-tokenizer's expressions");
        goto fail;
    }
    /* Each alternative that begins with a run of spaces may backtrack over it at most once. */
    pcre2_set_match_limit(run.context, (uint32_t)BUTLER_MIN(n * 16 + 1000, UINT32_MAX));
    while (n > 0 && !rc) {
        size_t valid = stretch(text, n, true);
        rc = cut(&run, 0, text, valid);
        size_t invalid = stretch(text + valid, n - valid, false);
        if (!rc && invalid > 0)
            rc = word(user, text + valid, invalid, err);
        text += valid + invalid;
        n -= valid + invalid;
    }
fail:
    pcre2_match_data_free(run.match);
    pcre2_match_context_free(run.context);
    return rc;
}
