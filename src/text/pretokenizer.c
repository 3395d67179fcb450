/* Splits text into words with regular expressions. A rule has up to six: each splits the pieces that the one before produced,
 * into its matches and the stretches between them. A pre-tokenizer is a name, as files give it, for a rule. */
#include "text/pretokenizer.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 6

/* ------------------------------------------------------------------------------------------------ the rules */

/* Unicode's White_Space, written out: PCRE2's own \s has one character more. Letters, marks and numbers are \pL, \pM and \pN. */
#define WIDE_SPACES "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "\\t-\\r " WIDE_SPACES
#define BEFORE_SPACE "(?![^" SPACES "])"
#define TRAILING_SPACES "[" SPACES "]+" BEFORE_SPACE

#define GPT2_WORDS "'(?:[stmd]|re|ve|ll)| ?\\pL+| ?\\pN+| ?[^" SPACES "\\pL\\pN]+|" TRAILING_SPACES

/* The parts of the rules that descend from GPT-4's. */
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define LEAD "[^\\r\\n\\pL\\pN]?"
#define SYMBOLS "| ?[^" SPACES "\\pL\\pN]+"
#define GAPS "|[" SPACES "]*[\\r\\n]+|" TRAILING_SPACES "|[" SPACES "]+"
#define GPT4_WORDS(letters, numbers) CONTRACTION "|" LEAD letters "|" numbers SYMBOLS "[\\r\\n]*" GAPS

/* GPT-4o's rule splits a word before a capital letter: upper and lower are the classes of its two parts, which share what has no
 * case. */
#define CASED(upper, lower, suffix) LEAD upper "*" lower "+" suffix "|" LEAD upper "+" lower "*" suffix
#define CASED_WORDS(upper, lower, suffix, numbers) CASED(upper, lower, suffix) "|" numbers SYMBOLS "[\\r\\n/]*" GAPS
#define UPPER "[^\\PLa-z]" /* llama.cpp tells the case of ASCII letters only */
#define LOWER "[^\\PLA-Z]"
#define UPPER_MARKED "(?:" UPPER "|\\pM)"
#define LOWER_MARKED "(?:" LOWER "|\\pM)"
/* In the rules with Unicode's case, which llama.cpp does not tell: letters of any case. */
#define MARKED_WORDS(numbers) LEAD "[\\pL\\pM]+(?:" CONTRACTION ")?|" numbers SYMBOLS "[\\r\\n/]*" GAPS

#define ASCII_PUNCTUATION "!-/:-@\\[-`{-~"
#define DEEPSEEK_WORDS(symbols)                                                                                                    \
    "[" ASCII_PUNCTUATION "][A-Za-z]+|[^\\r\\n\\pL\\pP\\pS]?[\\pL\\pM]+| ?[\\pP\\pS]+" symbols "|" TRAILING_SPACES "|[" SPACES "]" \
    "+"
#define DEEPSEEK_LINES "[\\r\\n]*|[" SPACES "]*[\\r\\n]+"
#define CHINESE_JAPANESE "\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}"
/* All of CJK and Hangul, of what is not a space. */
#define EAST_ASIAN                                                                                                                 \
    "[\\x{800}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-" \
    "\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"
/* The letters with case of Unicode 11, as the files of DeepSeek LLM list them. */
#define CASED_LETTERS                                                                                                              \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"               \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"                 \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"                   \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                              \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"                              \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}"                      \
    "\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                     \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"                      \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                                \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"                      \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                               \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}"                              \
    "\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"                      \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define HAN                                                                                                                        \
    "\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2ebef}\\x{f900}-\\x{faff}\\x{2f800}-\\x{2fa1f}"
#define BLOOM_WORDS " ?[^(|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})" SPACES "]+"
#define HALVED(n) "[" SPACES "]{" n "}" BEFORE_SPACE "|"

/* Runs of digits, counted in threes from their end. An expression after '*' or '+' (which begin none) does not isolate its
 * matches: after '*' text is cut before each whole group of three, after '+' behind each group, so that what stands before a run
 * stays with the run's first group. */
#define BEFORE_THREES "*[0-9]+"
#define AFTER_THREES "+\\pN+"

struct rule {
    const char *stages[MAX_STAGES]; /* NULL ends the list */
};

enum rule_id {
    DEFAULT,
    GPT2,
    SMOLLM,
    LLAMA3,
    QWEN2,
    QWEN35,
    K2_HORIZON,
    MINICPM5,
    LAGUNA,
    SEED_CODER,
    EXAONE_MOE,
    UFAKZEKA,
    JAIS2,
    TEKKEN,
    GPT4O,
    GRANITE_97M,
    TINY_AYA,
    YOUTU,
    KIMI_K2,
    FALCON,
    DEEPSEEK_LLM,
    DEEPSEEK_CODER,
    DEEPSEEK_V3,
    SPARK,
    AFMOE,
    BLOOM,
    VIKING,
    CHAMELEON,
    SUPERBPE,
    LINES,
    UNSPACED,
};

static const struct rule rules[] = {
    [DEFAULT] = {{"[\\pP$+<=>^~|]+", GPT2_WORDS, "\\pN+", "[0-9][0-9][0-9]"}},
    [GPT2] = {{GPT2_WORDS}},
    [SMOLLM] = {{"\\pN", GPT2_WORDS}},
    [LLAMA3] = {{GPT4_WORDS("\\pL+", "\\pN{1,3}")}},
    [QWEN2] = {{GPT4_WORDS("\\pL+", "\\pN")}},
    [QWEN35] = {{CONTRACTION "|" LEAD "[\\pL\\pM]+|\\pN| ?[^" SPACES "\\pL\\pM\\pN]+[\\r\\n]*" GAPS}},
    [K2_HORIZON] = {{GPT4_WORDS("[\\pL\\pM\\x{200c}\\x{200d}]+", "\\pN{1,3}")}},
    [MINICPM5] = {{"\\pN{1,3}", GPT4_WORDS("\\pL+", "\\pN+")}},
    [LAGUNA] = {{"\\n+", GPT4_WORDS("\\pL+", "\\pN")}},
    [SEED_CODER] = {{CONTRACTION "|" LEAD "\\pL+|\\pN| ?[^" SPACES "\\pL\\pN\\r\\n]+" GAPS}},
    [EXAONE_MOE] = {{CONTRACTION "|" LEAD "\\pL\\pM*+(?: ?\\pL\\pM*+)*+|\\pN" SYMBOLS "[\\r\\n/]?" GAPS}},
    [UFAKZEKA] = {{LEAD "\\pL+|\\pN" SYMBOLS "[\\r\\n]*" GAPS}},
    [JAIS2] = {{CONTRACTION "|" LEAD "\\pL+|\\pN{1,3}" SYMBOLS "[\\r\\n]*|[" SPACES "]*[\\r\\n]+|" HALVED("512") HALVED("256")
                    HALVED("128") HALVED("64") HALVED("32") HALVED("16") HALVED("8") HALVED("4") HALVED("1,2") "[" SPACES "]"}},
    [TEKKEN] = {{CASED_WORDS(UPPER, LOWER, "", "\\pN")}},
    [GPT4O] = {{CASED_WORDS(UPPER, LOWER, "(?:" CONTRACTION ")?", "\\pN{1,3}")}},
    [GRANITE_97M] = {{CASED_WORDS(UPPER_MARKED, LOWER_MARKED, "(?:" CONTRACTION ")?", "\\pN{1,3}")}},
    [TINY_AYA] = {{AFTER_THREES, MARKED_WORDS("\\pN{1,3}")}},
    [YOUTU] = {{"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}"
                "\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|[" CHINESE_JAPANESE
                "]+",
                MARKED_WORDS("\\pN")}},
    [KIMI_K2] = {{"[" HAN "]+|" LEAD "[^\\PL" HAN "]+(?:" CONTRACTION ")?|\\pN{1,3}" SYMBOLS "[\\r\\n]*" GAPS}},
    [FALCON] = {{"[\\pP$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"}},
    [DEEPSEEK_LLM] = {{"[\\r\\n]", "[" SPACES "]?[" CASED_LETTERS "]+",
                       "[" SPACES "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3001}\\x{3002}]+",
                       "[" SPACES "]+\\z", EAST_ASIAN, "\\pN+"}},
    [DEEPSEEK_CODER] = {{"[\\r\\n]", "[" SPACES "]?\\pL+", "[" SPACES "]?\\pP+", EAST_ASIAN, "\\pN"}},
    [DEEPSEEK_V3] = {{"\\pN{1,3}", "[" CHINESE_JAPANESE "]+", DEEPSEEK_WORDS(DEEPSEEK_LINES)}},
    [SPARK] = {{"\\pN{1,3}", "[" CHINESE_JAPANESE "]+", DEEPSEEK_WORDS("|[\\r\\n]"), "\\pN"}},
    [AFMOE] =
        {{AFTER_THREES,
          "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{8c48}-\\x{faff}\\x{3040}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}"
          "\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{1100}-\\x{11ff}]+",
          DEEPSEEK_WORDS(DEEPSEEK_LINES)}},
    [BLOOM] = {{BLOOM_WORDS}},
    [VIKING] = {{BLOOM_WORDS, "\\pN"}},
    [CHAMELEON] = {{"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\pN", "[\\pP" ASCII_PUNCTUATION "]",
                    GPT2_WORDS}},
    [SUPERBPE] = {{"\\pN+", BEFORE_THREES}},
    [LINES] = {{"\\n+"}},
    [UNSPACED] = {{"[^" SPACES "]+"}},
};

/* ------------------------------------------------------------------------------------------------ the names */

struct butler_pre_tokenizer {
    const char *name;
    enum rule_id rule;
    bool whole_words, adds_bos;
};

/* Every name that llama.cpp knows. */
static const struct butler_pre_tokenizer pre_tokenizers[] = {
    {"default", DEFAULT, false, false},
    {"gpt-2", GPT2, false, false},
    {"phi-2", GPT2, false, false},
    {"jina-es", GPT2, false, false},
    {"jina-de", GPT2, false, false},
    {"jina-v2-es", GPT2, false, false},
    {"jina-v2-de", GPT2, false, false},
    {"jina-v1-en", GPT2, false, false},
    {"jina-v2-code", GPT2, false, false},
    {"roberta-bpe", GPT2, false, false},
    {"gigachat", GPT2, false, false},
    {"a.x-4.0", GPT2, false, false},
    {"mellum", GPT2, false, false},
    {"modern-bert", GPT2, false, false},
    {"exaone4", GPT2, false, false},
    {"mpt", GPT2, false, false},
    {"olmo", GPT2, false, false},
    {"jais", GPT2, false, false},
    {"trillion", GPT2, false, false},
    {"granite-docling", GPT2, false, false},
    {"smollm", SMOLLM, false, false},
    {"starcoder", SMOLLM, false, false},
    {"refact", SMOLLM, false, false},
    {"command-r", SMOLLM, false, false},
    {"codeshell", SMOLLM, false, false},
    {"exaone", SMOLLM, false, false},
    {"minerva-7b", SMOLLM, false, false},
    {"mellum2", SMOLLM, false, false},
    {"llama-bpe", LLAMA3, true, true},
    {"llama3", LLAMA3, true, true},
    {"llama-v3", LLAMA3, true, true},
    {"falcon3", LLAMA3, true, true},
    {"falcon-h1", LLAMA3, true, true},
    {"pixtral", LLAMA3, true, true},
    {"midm-2.0", LLAMA3, true, true},
    {"lfm2", LLAMA3, true, true},
    {"jina-v5-nano", LLAMA3, true, true},
    {"dbrx", LLAMA3, false, false},
    {"smaug-bpe", LLAMA3, false, false},
    {"chatglm-bpe", LLAMA3, false, false},
    {"glm4", LLAMA3, false, false},
    {"glm5", LLAMA3, false, false},
    {"qwen2", QWEN2, false, false},
    {"deepseek-r1-qwen", QWEN2, false, false},
    {"kormo", QWEN2, false, false},
    {"f2llmv2", QWEN2, false, false},
    {"megrez", QWEN2, false, false},
    {"stablelm2", QWEN2, false, false},
    {"hunyuan", QWEN2, false, false},
    {"solar-open", QWEN2, false, false},
    {"grok-2", QWEN2, false, false},
    {"bailingmoe", QWEN2, false, false},
    {"bailingmoe2", QWEN2, false, false},
    {"llada-moe", QWEN2, false, false},
    {"qwen35", QWEN35, false, false},
    {"k2-horizon", K2_HORIZON, false, false},
    {"minicpm5", MINICPM5, true, false},
    {"laguna", LAGUNA, false, false},
    {"seed-coder", SEED_CODER, false, false},
    {"exaone-moe", EXAONE_MOE, false, false},
    {"ufakzeka", UFAKZEKA, false, false},
    {"jais-2", JAIS2, false, false},
    {"tekken", TEKKEN, true, true},
    {"gpt-4o", GPT4O, false, false},
    {"llama4", GPT4O, false, false},
    {"kanana2", GPT4O, false, false},
    {"talkie", GPT4O, false, false},
    {"minimax-m2", GPT4O, false, false},
    {"granite-embed-multi-97m", GRANITE_97M, true, false},
    {"tiny_aya", TINY_AYA, false, false},
    {"cohere2moe", TINY_AYA, false, false},
    {"youtu", YOUTU, true, false},
    {"kimi-k2", KIMI_K2, false, false},
    {"falcon", FALCON, false, false},
    {"deepseek-llm", DEEPSEEK_LLM, false, false},
    {"deepseek-coder", DEEPSEEK_CODER, false, false},
    {"deepseek-v3", DEEPSEEK_V3, false, false},
    {"hunyuan-dense", DEEPSEEK_V3, false, false},
    {"joyai-llm", DEEPSEEK_V3, false, false},
    {"spark2_5", SPARK, false, false},
    {"afmoe", AFMOE, false, false},
    {"bloom", BLOOM, false, false},
    {"poro-chat", BLOOM, false, false},
    {"gpt3-finnish", BLOOM, false, false},
    {"viking", VIKING, false, false},
    {"chameleon", CHAMELEON, false, true},
    {"superbpe", SUPERBPE, false, false},
    {"gemma4", LINES, false, true},
    {"granite-embed-multi-311m", LINES, false, true},
    {"sarvam-moe", LINES, false, false},
    {"whitespace", UNSPACED, false, false},
};

/* ---------------------------------------------------------------------------------------------- compiling */

struct butler_split {
    const struct butler_pre_tokenizer *pre;
    const char *const *expressions; /* the rule's */
    pcre2_code *stages[MAX_STAGES]; /* NULL ends the list */
};

static bool in_threes(const char *expression)
{
    return *expression == '*' || *expression == '+';
}

static int compile(struct butler_split *split, const char *path, struct butler_error *err)
{
    for (int i = 0; i < MAX_STAGES && split->expressions[i]; i++) {
        int code;
        size_t offset;
        const char *expression = split->expressions[i] + in_threes(split->expressions[i]);
        split->stages[i] =
            pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
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

/* One name of each rule, ", " between; those that differ in a flag too. */
static void list_names(char *out, size_t n_out)
{
    size_t at = 0;
    for (int i = 0; i < BUTLER_COUNT(pre_tokenizers); i++) {
        const struct butler_pre_tokenizer *pre = &pre_tokenizers[i], *last = i ? pre - 1 : NULL;
        if (last && last->rule == pre->rule && last->whole_words == pre->whole_words && last->adds_bos == pre->adds_bos)
            continue;
        int n = snprintf(out + at, n_out - at, "%s%s", i ? ", " : "", pre->name);
        at = BUTLER_MIN(at + (size_t)n, n_out - 1);
    }
}

struct butler_split *butler_split_new(const char *name, const char *path, struct butler_error *err)
{
    const struct butler_pre_tokenizer *pre = NULL;
    if (!*name)
        name = "default";
    for (int i = 0; i < BUTLER_COUNT(pre_tokenizers) && !pre; i++)
        if (strcmp(pre_tokenizers[i].name, name) == 0)
            pre = &pre_tokenizers[i];
    if (!pre) {
        char names[352];
        list_names(names, sizeof names);
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                    "%.64s: unknown pre-tokenizer \"%.32s\"; pre_tokenizer (--pre) takes %s and other names of these rules", path,
                    name, names);
        return NULL;
    }
    struct butler_split *split = calloc(1, sizeof *split);
    if (!split) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the pre-tokenizer", path);
        return NULL;
    }
    split->pre = pre;
    split->expressions = rules[pre->rule].stages;
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

enum butler_spelling butler_split_spelling(const struct butler_split *split)
{
    return split->pre->rule == LINES      ? BUTLER_SPELLING_MARKED
           : split->pre->rule == UNSPACED ? BUTLER_SPELLING_PLAIN
                                          : BUTLER_SPELLING_BYTES;
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

static int cut(struct run *run, int stage, const char *text, size_t n);

/* Cuts text[n] inside the runs that stage's expression finds, where a multiple of three characters of the run follows: before such
 * a place with `before`, so at its start but not at its end; else at its end but not at its start. */
static int cut_threes(struct run *run, int stage, const char *text, size_t n, bool before)
{
    size_t piece = 0, at = 0;
    int rc = BUTLER_OK;
    while (at < n && !rc) {
        size_t start, end, left = 0;
        if ((rc = find(run, stage, text + at, n - at, &start, &end)))
            break;
        start += at;
        end += at;
        for (size_t i = start; i < end; i++)
            left += ((unsigned char)text[i] & 0xC0) != 0x80;
        for (size_t i = start; i <= end && start < end && !rc; i++) {
            if (i < end && ((unsigned char)text[i] & 0xC0) == 0x80)
                continue;
            if (left % 3 == 0 && i > piece && (before ? i < end : i > start)) {
                rc = cut(run, stage + 1, text + piece, i - piece);
                piece = i;
            }
            left -= i < end;
        }
        at = end;
    }
    return rc || piece == n ? rc : cut(run, stage + 1, text + piece, n - piece);
}

/* Splits text[n], valid UTF-8, by the expressions from `stage` on. Each piece is a separate subject, because a lookahead must
 * not see past the end that an earlier expression set. */
static int cut(struct run *run, int stage, const char *text, size_t n)
{
    if (stage == MAX_STAGES || !run->split->stages[stage])
        return run->word(run->user, text, n, run->err);
    const char *expression = run->split->expressions[stage];
    if (in_threes(expression))
        return cut_threes(run, stage, text, n, *expression == '*');
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
