/* Grammars: GBNF that is refused, texts that are accepted, masks of a small vocabulary, and random grammars against a recogniser of
 * another kind, which descends recursively and keeps the set of positions that it has reached. */
#include <math.h>

#include "base/util.h"
#include "fixtures.h"
#include "grammar/grammar.h"
#include "text/tokenizer_parts.h"
#include "tokenizer_test.h"

enum { MAX_TEXT = 14, MAX_VOCAB = 600 };

#define LONG "aaaaaaaaaaaaaaaaaaaaaaaaaa" /* more than BUTLER_MANY_REPEATS */

static struct tiny_vocab *vocab;
static int mark; /* a control token */

static int make_vocab(void **state)
{
    static const char *const words[] = {"ab",  "ba",  "aba", "bb", "a\u00e9", "\u00e9b", "{\"",         "\":",    "true",
                                        "\"}", "a\"", "12",  "]]", "<ab>",    LONG "a",  LONG LONG "b", LONG "\""};
    (void)state;
    vocab = tiny_spm();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        tiny_token(vocab, words[i], -1, TINY_NORMAL);
    mark = tiny_token(vocab, "<mark>", 0, TINY_CONTROL);
    opened(vocab);
    return 0;
}

static int free_vocab(void **state)
{
    (void)state;
    tiny_vocab_free(vocab);
    return 0;
}

static struct butler_grammar *compiled(const char *gbnf)
{
    struct butler_error err = {0};
    struct butler_grammar *grammar = butler_grammar_compile(vocab->tokenizer, gbnf, &err);
    if (!grammar)
        fail_msg("%s\n%s", err.message, gbnf);
    return grammar;
}

/* The state behind a text, taken byte by byte: the vocabulary has a token for each. */
static int32_t state_of(const struct butler_grammar *grammar, const char *text, size_t n)
{
    struct butler_error err = {0};
    int32_t state = butler_grammar_start(grammar);
    for (size_t i = 0; i < n && state > 0; i++)
        state = butler_grammar_advance(grammar, state, 3 + (unsigned char)text[i], &err);
    if (state < 0)
        fail_msg("%s", err.message);
    return state;
}

/* -1: the text is no beginning of the grammar's; 0: it is one; 1: it is complete. */
static int verdict(const struct butler_grammar *grammar, const char *text, size_t n)
{
    const int32_t state = state_of(grammar, text, n);
    return state == 0 ? -1 : butler_grammar_advance(grammar, state, 2, NULL) > 0;
}

static void test_texts(void **state)
{
    static const struct {
        const char *gbnf, *complete, *beginnings, *refused; /* texts, separated by '|' */
    } cases[] = {
        {"root ::= \"yes\" | \"no\" # comment\n", "yes|no", "y|n", "x|yess|nn"},
        {"root ::= [a-c]+ [^a-c\\x30-\\x39\\n]\n", "ab-|a\xC3\xA9|c\xF0\x9F\x98\x80", "a|b\xC3|b\xF0\x9F", "-|a1|a\n|a\xFF|a\xC0"},
        {"root ::= ( # a group\n \"a\"\n | \"b\" )* \"\\u00e9\" {2}", "ab\xC3\xA9\xC3\xA9", "a|\xC3\xA9", "c|\xC3\xA9\xC3\xA9\xC3"},
        {"root ::= x{2,4} x-y?\nx ::= \"ab\"\nx-y ::= [-]", "abab|abababab-", "ab|a", "abab--|ababababababab"},
        {"root ::= \"a\"{3,} | \"b\"{0} | \"c\"{,2}", "aaa|aaaaaa||c|cc", "a|aa", "b|ccc"},
        {"root ::= [a\\]\\-\\\\]+ [z-]", "]z|-\\-", "a|\\", "b"},
        {"root ::= .\n", "a|\n|\xC3\xA9|\xEF\xBF\xBF", "\xC3|\xF4\x8F", "\xC3\x28|\xED\xA0|\xF4\x90|\x80"},
        {"root ::= ((\"a\"?)* | \"\")+ \"b\"", "b|aab", "a", "c"},
        {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"x\"", "x|axb|aaaaaaaaaaaaaxbbbbbbbbbbbbc", "aaa|aax", "axd|b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const lists[] = {cases[i].refused, cases[i].beginnings, cases[i].complete};
        struct butler_grammar *grammar = compiled(cases[i].gbnf);
        for (int expected = -1; expected <= 1; expected++) {
            char *copy = strdup(lists[expected + 1]), *rest = copy, *text;
            while ((text = strsep(&rest, "|")))
                if (verdict(grammar, text, strlen(text)) != expected)
                    fail_msg("%s: \"%s\" is %d, not %d", cases[i].gbnf, text, verdict(grammar, text, strlen(text)), expected);
            free(copy);
        }
        butler_grammar_free(grammar);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *gbnf, *says;
    } cases[] = {
        {"", "line 1, column 1: there is no rule 'root'"},
        {"root ::= a", "line 1, column 10: rule 'a' is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is defined twice"},
        {"root = \"a\"", "line 1, column 6: '::=' was expected"},
        {"root ::= \"a", "line 1, column 10: a literal without its closing quote"},
        {"root ::= [a", "line 1, column 10: a class without its closing bracket"},
        {"root ::= []", "line 1, column 10: a class without characters"},
        {"root ::= [b-a]", "line 1, column 11: a range that ends before it begins"},
        {"root ::= (\"a\"\n", "line 1, column 10: a group without its ')'"},
        {"root ::= \"a\" )", "line 1, column 14: unexpected character"},
        {"root ::= *", "line 1, column 10: a repetition of nothing"},
        {"root ::= \"a\"{2,1}", "a repetition whose end is below its beginning"},
        {"root ::= \"a\"{1000000}", "more than 100000 repetitions"},
        {"root ::= \"a\"{x}", "line 1, column 14: a number of repetitions was expected"},
        {"root ::= ((\"ab\"{99999}){99999} [0-9a-z]{99999}){99999} \"c\"{99999} (.{0,99999}){0,99999} (\"d\"{0,99999}){0,99999}",
         "too large"},
        {"root ::= \"\\q\"", "line 1, column 11: an unknown escape"},
        {"root ::= \"\\x4\"", "too few hexadecimal digits"},
        {"root ::= \"\\ud800\"", "an escape of no Unicode character"},
        {"root ::= \"\xFF\"", "a byte that is not UTF-8"},
        {"root ::= <think>", "line 1, column 10: the vocabulary has no such token"},
        {"root ::= <[99999999999]>", "line 1, column 10: the vocabulary has no such token"},
        {"root ::= <[1x]>", "line 1, column 10: the vocabulary has no such token"},
        {"root ::= <mark", "line 1, column 10: a token without its closing bracket"},
        {"root ::= !<mark>", "line 1, column 10: exclusions of tokens are not supported"},
        {"root ::= <[0]>", "line 1, column 10: a token that no answer has"},
        {"root ::= </s>", "line 1, column 10: a token that ends an answer"},
        {"root ::= root \"a\" | \"b\"", "line 1, column 1: rule 'root' is left-recursive"},
        {"root ::= a\na ::= b? c\nb ::= \"b\"\nc ::= a \"x\" | \"y\"", "is left-recursive"},
        {"root ::= (a \"x\")*\na ::= root | \"y\"", "is left-recursive"},
        {"root ::= \"a\" root", "rule 'root' matches no text that ends"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct butler_error err = {0};
        struct butler_grammar *grammar = butler_grammar_compile(vocab->tokenizer, cases[i].gbnf, &err);
        if (grammar || err.code != BUTLER_ERROR_FORMAT || !strstr(err.message, cases[i].says))
            fail_msg("%s: %d \"%s\" is not \"%s\"", cases[i].gbnf, err.code, err.message, cases[i].says);
    }
}

/* A control token is in an answer only where a grammar names it; its spelling in ordinary tokens is another text. */
static void test_tokens(void **state)
{
    char gbnf[64];
    struct butler_error err = {0};
    (void)state;
    for (int by_id = 0; by_id < 2; by_id++) {
        float logits[MAX_VOCAB] = {0};
        snprintf(gbnf, sizeof gbnf, by_id ? "root ::= \"a\" <[%d]> \"b\"" : "root ::= \"a\" <mark> \"b\"", mark);
        struct butler_grammar *grammar = compiled(gbnf);
        const int32_t before = state_of(grammar, "a", 1), after = butler_grammar_advance(grammar, before, mark, &err);
        assert_true(after > 0 && verdict(grammar, "a<mark>b", 8) == -1 && verdict(grammar, "ab", 2) == -1);
        assert_int_equal(butler_grammar_advance(grammar, butler_grammar_start(grammar), mark, &err), 0);
        assert_int_equal(butler_grammar_mask(grammar, before, logits, vocab->n_tokens, &err), 1);
        assert_true(logits[mark] > -INFINITY && butler_grammar_advance(grammar, before, 3 + 0xff, &err) == 0);
        assert_true(butler_grammar_advance(grammar, butler_grammar_advance(grammar, after, 3 + 'b', &err), 2, &err) > 0);
        butler_grammar_free(grammar);
    }
    struct butler_grammar *any = compiled("root ::= .*");
    assert_int_equal(butler_grammar_advance(any, butler_grammar_start(any), mark, &err), 0);
    assert_int_equal(verdict(any, "<mark>", 6), 1);
    butler_grammar_free(any);
    struct butler_grammar *ordinary = compiled("root ::= <ab> \"b\""); /* ordinary text, however it is cut */
    assert_int_equal(verdict(ordinary, "<ab>b", 5), 1);
    butler_grammar_free(ordinary);
}

/* Long repetitions share a part of their masks: at every count a mask is what steps say, also of tokens that pass the end. */
static void test_long_repetitions(void **state)
{
    static const char *const grammars[] = {
        "root ::= \"\\\"\" [ab]{0,90} \"\\\"\" \"b\"?", "root ::= \"\\\"\" (\"a\" | \"ab\"){3,60} \"\\\"\"",
        "root ::= \"\\\"\" ([ab]{1,40} \"a\"){0,50} \"\\\"\"", "root ::= ((\"\\\"\" [ab]{0,70}){0,30} \"b\"){0,26} \"a\""};
    struct butler_error err = {0};
    (void)state;
    for (size_t g = 0; g < sizeof grammars / sizeof *grammars; g++) {
        struct butler_grammar *grammar = compiled(grammars[g]);
        int32_t at = butler_grammar_advance(grammar, butler_grammar_start(grammar), 3 + '"', &err);
        int n_checked = 0;
        for (; at > 0 && n_checked < 100; n_checked++) {
            float logits[MAX_VOCAB] = {0};
            assert_true(butler_grammar_mask(grammar, at, logits, vocab->n_tokens, &err) >= 0);
            for (int id = 0; id < vocab->n_tokens; id++)
                if ((butler_grammar_advance(grammar, at, id, &err) > 0) != (logits[id] > -INFINITY))
                    fail_msg("%s: token %d behind %d characters", grammars[g], id, n_checked);
            at = butler_grammar_advance(grammar, at, 3 + 'a', &err);
        }
        assert_true(n_checked > 50);
        butler_grammar_free(grammar);
    }
}

/* Grammars whose parsers need exponential time or endless memory end with a reason, or go on in bounded time. */
static void test_hostile(void **state)
{
    static const char *const loops[] = {"root ::= \"a\" root root root | \"a\" root root | \"a\" root | \"a\"",
                                        "root ::= x x x x x x x x x x x x x x x x\nx ::= (\"a\"? \"a\"?)* | \"a\" x \"a\" | \"\"",
                                        "root ::= (\"a\"{0,9000} \"b\"?){0,9000}"};
    struct tiny_bytes deep = {0}, chain = {0};
    char line[64];
    (void)state;
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        struct butler_error err = {0};
        const double start = butler_seconds();
        struct butler_grammar *grammar = butler_grammar_compile(vocab->tokenizer, loops[i], &err);
        int32_t at = grammar ? butler_grammar_start(grammar) : err.code;
        for (int n = 0; n < 3000 && at > 0 && butler_seconds() - start < 0.5; n++)
            at = butler_grammar_advance(grammar, at, 3 + 'a', &err);
        assert_true(at > 0 || (err.code == BUTLER_ERROR_UNSUPPORTED && strstr(err.message, "grammar")));
        assert_true(butler_seconds() - start < 5); /* of a machine that is loaded */
        butler_grammar_free(grammar);
    }
    tiny_put(&deep, "root ::= ", 9);
    for (int i = 0; i < 100000; i++)
        tiny_put(&deep, "(", 1);
    tiny_put(&deep, "", 1);
    struct butler_error err = {0};
    assert_null(butler_grammar_compile(vocab->tokenizer, deep.data, &err));
    assert_non_null(strstr(err.message, "groups in each other"));
    tiny_put(&chain, "root ::= r0\n", 12);
    for (int i = 0; i < 50000; i++)
        tiny_put(&chain, line, (size_t)snprintf(line, sizeof line, "r%d ::= r%d\n", i, i + 1));
    tiny_put(&chain, "r50000 ::= \"a\"", 15);
    assert_null(butler_grammar_compile(vocab->tokenizer, chain.data, &err));
    assert_int_equal(err.code, BUTLER_ERROR_UNSUPPORTED);
    free(deep.data);
    free(chain.data);
}

/* ------------------------------------------------------------------------------------------- random grammars */

enum kind { LITERAL, CLASS, NOT_CLASS, SEQUENCE, CHOICE, REPEAT, REFERENCE, N_KINDS };

static const char *const letters[] = {"a", "b", "\xC3\xA9"};

/* A part of a grammar. Those of all rules lie in one array; parts of parts come behind them. */
struct part {
    enum kind kind;
    unsigned characters; /* of LITERAL: an index; of a class: a bit for each */
    int parts[3], n;     /* of SEQUENCE, CHOICE; of REPEAT one */
    int least, most;     /* of REPEAT; most -1: no bound */
    int rule;            /* of REFERENCE */
};

struct random_grammar {
    struct part parts[200];
    int n_parts, rules[3];
    bool negates;       /* a class */
    bool productive[3]; /* rules that match some text */
    /* What the recogniser knows of a part from a position of the text `now`. */
    struct {
        unsigned text, ends;
        bool wants;
    } known[200][2 * MAX_TEXT + 1];
    unsigned now;
    uint64_t random;
    struct tiny_bytes gbnf;
};

static int below(struct random_grammar *g, int n)
{
    g->random = g->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((g->random >> 33) % (uint64_t)n);
}

static int make_part(struct random_grammar *g, int depth)
{
    const int index = g->n_parts++;
    struct part part = {.kind = (enum kind)(depth > 2 ? below(g, 3) : below(g, N_KINDS)), .n = 1 + below(g, 3)};
    part.characters = (unsigned)(part.kind == LITERAL ? below(g, 3) : 1 + below(g, 7));
    g->negates = g->negates || part.kind == NOT_CLASS;
    part.rule = below(g, 3);
    part.least = below(g, 3);
    part.most = below(g, 3) ? part.least + below(g, 3) : -1;
    if (part.kind == REPEAT)
        part.n = 1;
    for (int i = 0; i < part.n && part.kind >= SEQUENCE && part.kind <= REPEAT; i++)
        part.parts[i] = make_part(g, depth + 1);
    g->parts[index] = part;
    return index;
}

static void write_text(struct random_grammar *g, const char *text)
{
    tiny_put(&g->gbnf, text, strlen(text));
}

static void write_part(struct random_grammar *g, int index)
{
    const struct part *part = &g->parts[index];
    char text[64];
    switch (part->kind) {
    case LITERAL:
        snprintf(text, sizeof text, "\"%s\"", letters[part->characters]);
        write_text(g, text);
        break;
    case CLASS:
    case NOT_CLASS:
        write_text(g, part->kind == CLASS ? "[" : "[^");
        for (int i = 0; i < 3; i++)
            if (part->characters >> i & 1)
                write_text(g, i == 2 ? "\\u00e9" : letters[i]);
        write_text(g, "]");
        break;
    case REFERENCE:
        snprintf(text, sizeof text, "%s", part->rule == 0 ? "root" : part->rule == 1 ? "one" : "two");
        write_text(g, text);
        break;
    default:
        write_text(g, "(");
        for (int i = 0; i < part->n; i++) {
            write_text(g, i == 0 ? "" : part->kind == CHOICE ? " | " : " ");
            write_part(g, part->parts[i]);
        }
        if (part->most < 0)
            snprintf(text, sizeof text, "){%d,}", part->least);
        else
            snprintf(text, sizeof text, "){%d,%d}", part->least, part->most);
        write_text(g, part->kind == REPEAT ? text : ")");
    }
}

static bool is_productive(const struct random_grammar *g, int index);

static void make_grammar(struct random_grammar *g, uint64_t seed)
{
    *g = (struct random_grammar){.random = seed * 0x9e3779b97f4a7c15u + 1};
    for (int r = 0; r < 3; r++) {
        g->rules[r] = make_part(g, 0);
        write_text(g, r == 0 ? "root ::= " : r == 1 ? "\none ::= " : "\ntwo ::= ");
        write_part(g, g->rules[r]);
    }
    tiny_put(&g->gbnf, "", 1);
    for (int i = 0; i < 9; i++)
        g->productive[i % 3] = is_productive(g, g->rules[i % 3]);
}

/* Whether a part matches any text, as far as is known of the rules. */
static bool is_productive(const struct random_grammar *g, int index)
{
    const struct part *part = &g->parts[index];
    bool all = true, any = false;
    for (int i = 0; i < part->n && part->kind >= SEQUENCE && part->kind <= REPEAT; i++) {
        const bool productive = is_productive(g, part->parts[i]);
        all = all && productive;
        any = any || productive;
    }
    return part->kind == REFERENCE  ? g->productive[part->rule]
           : part->kind == SEQUENCE ? all
           : part->kind == CHOICE   ? any
           : part->kind == REPEAT   ? any || part->least == 0
                                    : true;
}

/* The recogniser: the positions behind all ways in which a part matches text[n] from one of `starts` (a bit for each position).
 * *wants: the text ended where one more byte could follow. */
static unsigned match(struct random_grammar *g, int index, const char *text, int n, unsigned starts, bool *wants);

/* One character of `allowed`, or with negated any other. */
static unsigned match_class(const char *text, int n, unsigned starts, unsigned allowed, bool negated, bool *wants)
{
    unsigned ends = 0;
    for (int at = 0; at <= n; at++) {
        if (!(starts >> at & 1))
            continue;
        for (int i = 0; i < 3; i++) {
            const int length = (int)strlen(letters[i]), rest = n - at;
            if ((allowed >> i & 1) == negated)
                continue;
            if (rest >= length && memcmp(text + at, letters[i], (size_t)length) == 0)
                ends |= 1u << (at + length);
            *wants = *wants || (rest < length && memcmp(text + at, letters[i], (size_t)rest) == 0);
        }
        *wants = *wants || (negated && at == n); /* some character that the texts of this test do not have */
    }
    return ends;
}

static unsigned match_repeat(struct random_grammar *g, const struct part *part, const char *text, int n, unsigned starts,
                             bool *wants)
{
    unsigned ends = part->least == 0 ? starts : 0, reached = starts;
    /* Behind so many rounds as there are positions nothing new is reached. */
    for (int i = 1; reached && (part->most < 0 ? i <= part->least + n + 1 : i <= part->most); i++) {
        reached = match(g, part->parts[0], text, n, reached, wants);
        ends |= i >= part->least ? reached : 0;
    }
    return ends;
}

static unsigned match_at(struct random_grammar *g, int index, const char *text, int n, unsigned starts, bool *wants)
{
    const struct part *part = &g->parts[index];
    unsigned ends = 0;
    switch (part->kind) {
    case LITERAL:
        return match_class(text, n, starts, 1u << part->characters, false, wants);
    case CLASS:
    case NOT_CLASS:
        return match_class(text, n, starts, part->characters, part->kind == NOT_CLASS, wants);
    case REFERENCE:
        return starts ? match(g, g->rules[part->rule], text, n, starts, wants) : 0;
    case SEQUENCE:
        for (int i = 0; i < part->n && starts; i++)
            starts = match(g, part->parts[i], text, n, starts, wants);
        return starts;
    case REPEAT:
        return match_repeat(g, part, text, n, starts, wants);
    default:
        for (int i = 0; i < part->n; i++)
            ends |= match(g, part->parts[i], text, n, starts, wants);
        return ends;
    }
}

static unsigned match(struct random_grammar *g, int index, const char *text, int n, unsigned starts, bool *wants)
{
    unsigned ends = 0;
    for (int at = 0; at <= n && is_productive(g, index); at++) {
        if (!(starts >> at & 1))
            continue;
        if (g->known[index][at].text != g->now) {
            bool here = false;
            const unsigned reached = match_at(g, index, text, n, 1u << at, &here);
            g->known[index][at].text = g->now;
            g->known[index][at].ends = reached;
            g->known[index][at].wants = here;
        }
        ends |= g->known[index][at].ends;
        *wants = *wants || g->known[index][at].wants;
    }
    return ends;
}

/* As verdict(), of the recogniser. */
static int expected_verdict(struct random_grammar *g, const char *text, int n)
{
    bool wants = false;
    g->now++;
    const unsigned ends = match(g, g->rules[0], text, n, 1, &wants);
    return ends >> n & 1 ? 1 : wants ? 0 : -1;
}

/* The mask behind text[n] says of every token what the recogniser says of the text with it. A class that is negated also allows
 * characters that the recogniser does not know: tokens with other bytes, or that end in a part of a character, are left out. */
static int compare_mask(struct random_grammar *g, const struct butler_grammar *grammar, const char *text, int n)
{
    float logits[MAX_VOCAB] = {0};
    struct butler_error err = {0};
    const int32_t state = state_of(grammar, text, (size_t)n);
    int n_compared = 0;
    assert_true(vocab->n_tokens <= MAX_VOCAB);
    const int n_allowed = butler_grammar_mask(grammar, state, logits, vocab->n_tokens + 4, &err);
    for (int id = 0; id < vocab->n_tokens + 4; id++) {
        size_t length = 0;
        char whole[2 * MAX_TEXT];
        const char *bytes = butler_tokenizer_bytes(vocab->tokenizer, id, &length);
        bool known = bytes && length > 0 && length < MAX_TEXT;
        for (size_t i = 0; known && i < length; i++)
            known = memchr("ab\xC3\xA9", bytes[i], 4) != NULL && !(g->negates && i == length - 1 && bytes[i] == '\xC3');
        const bool allowed = logits[id] > -INFINITY;
        assert_true(allowed == (butler_grammar_advance(grammar, state, id, &err) > 0));
        if (butler_tokenizer_is_end(vocab->tokenizer, id)) {
            assert_int_equal(allowed, expected_verdict(g, text, n) == 1);
        } else if (known) {
            memcpy(whole, text, (size_t)n);
            memcpy(whole + n, bytes, length);
            if (allowed != (expected_verdict(g, whole, n + (int)length) >= 0))
                fail_msg("behind \"%.*s\" token \"%.*s\" is %d\n%s", n, text, (int)length, bytes, allowed, g->gbnf.data);
            n_compared++;
        } else if (!bytes || length == 0) {
            assert_false(allowed);
        }
    }
    assert_true(n_allowed >= 0);
    return n_compared;
}

static void test_random(void **state)
{
    int n_grammars = 0, n_left = 0, n_masks = 0, n_verdicts[3] = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct random_grammar g;
        struct butler_error err = {0};
        make_grammar(&g, seed);
        struct butler_grammar *grammar = butler_grammar_compile(vocab->tokenizer, g.gbnf.data, &err);
        if (!grammar) { /* "matches no text": all of it goes on without end */
            if (!strstr(err.message, "left-recursive") && !strstr(err.message, "matches no text"))
                fail_msg("%s\n%s", err.message, g.gbnf.data);
            n_left++;
        }
        for (int i = 0; i < 40 && grammar; i++) {
            char text[MAX_TEXT];
            int n = 0;
            for (int k = below(&g, 7); k > 0; k--) {
                const char *letter = letters[below(&g, 3)];
                memcpy(text + n, letter, strlen(letter));
                n += (int)strlen(letter);
            }
            const int expected = expected_verdict(&g, text, n), got = verdict(grammar, text, (size_t)n);
            if (got != expected)
                fail_msg("\"%.*s\" is %d, not %d\n%s", n, text, got, expected, g.gbnf.data);
            n_verdicts[expected + 1]++;
            if (expected >= 0 && i < 8)
                n_masks += compare_mask(&g, grammar, text, n) > 0;
        }
        n_grammars += grammar != NULL;
        butler_grammar_free(grammar);
        free(g.gbnf.data);
    }
    assert_true(n_grammars > 100 && n_left > 10 && n_masks > 200);
    for (int i = 0; i < 3; i++)
        assert_true(n_verdicts[i] > 300);
}

/* -------------------------------------------------------------------------------------------------- samplers */

enum { N_VOCAB = 2048 };

/* Draws from the same logits until a token ends the text, at most n; the text. */
static const char *drawn(struct butler_sampler *sampler, const struct butler_model *model, const float *logits, int n, char *text)
{
    struct butler_error err = {0};
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    size_t n_text = 0, n_bytes;
    for (int i = 0; i < n; i++) {
        const int32_t id = butler_sample(sampler, logits, n_vocab, &err);
        if (id < 0)
            fail_msg("%s", err.message);
        if (butler_token_is_end(model, id))
            break;
        const char *bytes = butler_token_bytes(model, id, &n_bytes);
        memcpy(text + n_text, bytes, n_bytes);
        n_text += n_bytes;
    }
    text[n_text] = 0;
    return text;
}

static void test_samplers(void **state)
{
    char path[FIXTURE_PATH], text[4096];
    struct butler_error err = {0};
    static float logits[N_VOCAB];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_grammar *grammar = butler_grammar_new(model, "root ::= [0-9]{2} \"x\"? ", &err);
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    assert_true(grammar && n_vocab <= N_VOCAB);
    for (int i = 0; i < n_vocab; i++) /* the best tokens are none of the grammar's, and end tokens are the worst */
        logits[i] = butler_token_is_end(model, i) ? -50 : sinf((float)i);
    struct butler_logit_bias banned[N_VOCAB];
    for (int i = 0; i < n_vocab; i++)
        banned[i] = (struct butler_logit_bias){.id = i, .bias = -INFINITY};
    for (int t = 0; t < 4; t++) {
        const struct butler_sampler_params params = {.temperature = (float)(t % 2),
                                                     .seed = 5,
                                                     .top_k = t % 2 * 3,
                                                     .logit_bias = banned,
                                                     .n_logit_bias = t < 2 ? 0 : n_vocab,
                                                     .grammar = grammar};
        struct butler_sampler *sampler = butler_sampler_new(&params, &err);
        assert_non_null(sampler);
        for (int turn = 0; turn < 3; turn++) { /* a prompt is not read by the grammar, and begins it anew */
            assert_int_equal(butler_sampler_accept(sampler, (int32_t[]){7, 8, 9}, 3, &err), 0);
            const char *answer = drawn(sampler, model, logits, 9, text);
            if (strspn(answer, "0123456789") != 2 || (answer[2] && strcmp(answer + 2, "x") != 0))
                fail_msg("\"%s\" is not two digits", answer);
        }
        butler_sampler_free(sampler);
    }
    /* What the sampler holds outlives the caller's grammar. */
    struct butler_sampler *sampler = butler_sampler_new(&(struct butler_sampler_params){.grammar = grammar}, &err);
    butler_grammar_free(grammar);
    assert_int_equal(strlen(drawn(sampler, model, logits, 2, text)), 2);
    butler_sampler_free(sampler);
    butler_model_free(model);
}

/* In pieces, as small as they may be: what is drawn is the same; and work beyond its bound is an error, in pieces too. */
static void test_prepared(void **state)
{
    /* Palindromes: the way on depends on all that came before, so that every text is a state of its own. */
    static const char palindromes[] = "root ::= p p \"!\"\np ::= \"a\" p \"a\" | \"b\" p \"b\" | \"c\" p \"c\" | [a-c]{0,3}";
    char path[FIXTURE_PATH], text[2][4096];
    struct butler_error err = {0};
    static float logits[N_VOCAB];
    int n_unfinished = 0;
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct butler_model *model = butler_model_load(path, NULL, &err);
    const int n_vocab = butler_model_get_info(model)->n_vocab;
    for (int i = 0; i < n_vocab; i++)
        logits[i] = sinf((float)i);
    for (int temperature = 0; temperature < 2; temperature++) {
        for (int prepares = 0; prepares < 2; prepares++) {
            struct butler_grammar *grammar =
                butler_grammar_new(model, palindromes, &err); /* anew: it remembers what it worked out */
            const struct butler_sampler_params params = {.temperature = (float)temperature, .seed = 3, .grammar = grammar};
            struct butler_sampler *sampler = butler_sampler_new(&params, &err);
            assert_non_null(sampler);
            text[prepares][0] = 0;
            for (int i = 0; i < 40 && strlen(text[prepares]) < 40; i++) {
                int code = !prepares, n_calls = 0;
                while (code == 0 && n_calls++ < 10000) {
                    code = butler_sampler_prepare(sampler, logits, n_vocab, 100, &err);
                    n_unfinished += code == 0;
                }
                assert_int_equal(code, 1);
                drawn(sampler, model, logits, 1, text[prepares] + strlen(text[prepares]));
            }
            butler_sampler_free(sampler);
            butler_grammar_free(grammar);
        }
        assert_string_equal(text[0], text[1]);
        assert_true(strlen(text[0]) > 5);
    }
    assert_true(n_unfinished > 10);
    butler_model_free(model);
}

/* Grammars whose states are never the same: each may hold some, all together no more than the tokenizer's bound, and a freed one
 * makes room. */
static void test_memory(void **state)
{
    static const char gbnf[] = "root ::= p [.]\np ::= \"a\" p \"a\" | \"b\" p \"b\" | [ab]*";
    enum { N = 8, TEXT = 60 };
    struct butler_shared_memory *shared = &vocab->tokenizer->grammars;
    struct butler_grammar *grammars[N];
    struct butler_error err = {0};
    size_t alone = 0;
    int n = 0, code = 0;
    (void)state;
    assert_int_equal(shared->used, 0);
    assert_int_equal(shared->max, 1 << 30);
    for (int pass = 0; pass < 2; pass++) { /* the first only measures what one needs */
        for (n = 0, code = 0; n < (pass ? N : 1) && code >= 0; n++) {
            grammars[n] = compiled(gbnf);
            int32_t at = butler_grammar_start(grammars[n]);
            for (int i = 0; i < TEXT && code >= 0; i++)
                code = at = butler_grammar_advance(grammars[n], at, 3 + (i % 3 ? 'a' : 'b'), &err);
        }
        if (!pass) {
            assert_true(code > 0);
            alone = shared->used;
            shared->max = 3 * alone + alone / 2;
        }
        assert_true(alone > 10000 && shared->used < shared->max + alone);
        for (int i = 0; i < n; i++)
            butler_grammar_free(grammars[i]);
        assert_int_equal(shared->used, 0);
    }
    assert_int_equal(n, 4);
    assert_int_equal(code, BUTLER_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "all grammars in use together"));
    shared->max = 1 << 30;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tokens),   cmocka_unit_test(test_long_repetitions),
        cmocka_unit_test(test_hostile),  cmocka_unit_test(test_random),
        cmocka_unit_test(test_samplers), cmocka_unit_test(test_prepared),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}
