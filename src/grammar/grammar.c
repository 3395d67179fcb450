/* GBNF, the notation of llama.cpp's grammars, to rules over bytes. Groups and repetitions become rules without a name; x* is a rule
 * R = x R | "", x{2,4} is x x and a chain of two rules that each may end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "grammar/grammar_parts.h"
#include "text/token_trie.h"
#include "text/tokenizer_parts.h"

enum {
    MAX_DEPTH = 200, /* of groups in groups */
    MAX_NAME = 256,
};

struct name {
    const char *text; /* in the source */
    size_t n;
    uint32_t rule;
    const char *used; /* where it was first used */
    bool defined;
};

struct parser {
    const char *source, *at;
    struct butler_rules *rules;
    const struct butler_tokenizer *tokenizer;
    struct name *names; /* [n_names] in the order in which they came */
    uint32_t *slots;    /* [n_slots] hash table of indices into names; BUTLER_NO_INDEX: free */
    size_t n_names, n_slots;
    int depth;
    struct butler_error *err;
};

/* An error at a place in the source. */
static int fail_at(struct parser *parser, const char *at, const char *what)
{
    int line = 1;
    const char *begin = parser->source;
    for (const char *c = parser->source; c < at; c++)
        if (*c == '\n') {
            line++;
            begin = c + 1;
        }
    return butler_fail(parser->err, BUTLER_ERROR_FORMAT, "grammar: line %d, column %d: %s", line, (int)(at - begin) + 1, what);
}

/* The same about a rule. */
static int fail_name(struct parser *parser, const char *at, const struct name *name, const char *what)
{
    char text[MAX_NAME + 64];
    snprintf(text, sizeof text, "rule '%.*s' %s", (int)name->n, name->text, what);
    return fail_at(parser, at, text);
}

/* Passes blanks and comments, and line ends where the sequence may go on behind them. */
static void skip_blanks(struct parser *parser, bool newlines)
{
    for (;; parser->at++) {
        if (*parser->at == '#')
            parser->at += strcspn(parser->at, "\r\n");
        if (*parser->at != ' ' && *parser->at != '\t' && !(newlines && (*parser->at == '\n' || *parser->at == '\r')))
            return;
    }
}

/* --------------------------------------------------------------------------------------------------- names */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Twice as many slots, and the names again. */
static int grow_names(struct parser *parser)
{
    const size_t n_slots = parser->n_slots ? 2 * parser->n_slots : 64;
    struct name *names = realloc(parser->names, n_slots / 2 * sizeof *names);
    if (names)
        parser->names = names;
    uint32_t *slots = names ? malloc(n_slots * sizeof *slots) : NULL;
    if (!slots)
        return butler_fail(parser->err, BUTLER_ERROR_MEMORY, "no memory for the %zu rules of a grammar", parser->n_names);
    memset(slots, 0xff, n_slots * sizeof *slots);
    for (size_t i = 0; i < parser->n_names; i++) {
        size_t slot = XXH3_64bits(names[i].text, names[i].n) & (n_slots - 1);
        while (slots[slot] != BUTLER_NO_INDEX)
            slot = (slot + 1) & (n_slots - 1);
        slots[slot] = (uint32_t)i;
    }
    free(parser->slots);
    parser->slots = slots;
    parser->n_slots = n_slots;
    return 0;
}

/* Reads a name at parser->at; *index of it. */
static int read_name(struct parser *parser, size_t *index)
{
    const char *text = parser->at;
    while (is_name(*parser->at))
        parser->at++;
    const size_t n = (size_t)(parser->at - text);
    if (n == 0)
        return fail_at(parser, text, "the name of a rule was expected");
    if (n > MAX_NAME)
        return fail_at(parser, text, "a name of more than 256 letters");
    if (2 * (parser->n_names + 1) > parser->n_slots && grow_names(parser) < 0)
        return BUTLER_ERROR_MEMORY;
    size_t slot = XXH3_64bits(text, n) & (parser->n_slots - 1);
    for (; parser->slots[slot] != BUTLER_NO_INDEX; slot = (slot + 1) & (parser->n_slots - 1)) {
        *index = parser->slots[slot];
        if (parser->names[*index].n == n && memcmp(parser->names[*index].text, text, n) == 0)
            return 0;
    }
    struct name name = {.text = text, .n = n, .used = text};
    const int code = butler_rules_new_rule(parser->rules, &name.rule, parser->err);
    if (code < 0)
        return code;
    *index = parser->n_names++;
    parser->slots[slot] = (uint32_t)*index;
    parser->names[*index] = name;
    return 0;
}

/* ---------------------------------------------------------------------------------------------- characters */

/* One character of a literal or a class, escapes resolved. */
static int read_character(struct parser *parser, uint32_t *character)
{
    static const char escapes[] = "tnr\\\"[]^-/", meanings[] = "\t\n\r\\\"[]^-/";
    const char *at = parser->at;
    if (*at != '\\') {
        const int n = butler_utf8_decode(at, strnlen(at, 4), character);
        if (n == 0)
            return fail_at(parser, at, "a byte that is not UTF-8");
        parser->at += n;
        return 0;
    }
    const char kind = at[1];
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    const char *simple = kind ? strchr(escapes, kind) : NULL;
    if (simple) {
        *character = (unsigned char)meanings[simple - escapes];
        parser->at += 2;
        return 0;
    }
    *character = 0;
    for (int i = 0; i < digits; i++) {
        const char c = at[2 + i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return fail_at(parser, at, "an escape with too few hexadecimal digits");
        *character = *character << 4 | (uint32_t)digit;
    }
    if (digits == 0)
        return fail_at(parser, at, "an unknown escape");
    if (*character > 0x10ffff || (*character >= 0xd800 && *character <= 0xdfff))
        return fail_at(parser, at, "an escape of no Unicode character");
    parser->at += 2 + digits;
    return 0;
}

/* Adds elements that match exactly these bytes. */
static int add_bytes(struct parser *parser, struct butler_sequence *sequence, const char *bytes, size_t n)
{
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) {
        const unsigned byte = (unsigned char)bytes[i];
        struct butler_byte_set set = {{0}};
        uint32_t index = 0;
        set.bits[byte / 64] = (uint64_t)1 << byte % 64;
        code = butler_rules_new_set(parser->rules, &set, &index, parser->err);
        if (code == 0)
            code = butler_sequence_add(sequence, BUTLER_ELEMENT_BYTES, index, parser->err);
    }
    return code;
}

static int parse_literal(struct parser *parser, struct butler_sequence *sequence)
{
    const char *open = parser->at++;
    int code = 0;
    while (code == 0 && *parser->at != '"') {
        uint32_t character = 0;
        char bytes[4];
        if (!*parser->at)
            return fail_at(parser, open, "a literal without its closing quote");
        code = read_character(parser, &character);
        if (code == 0)
            code = add_bytes(parser, sequence, bytes, butler_utf8_encode(character, bytes));
    }
    parser->at += code == 0;
    return code;
}

static int parse_class(struct parser *parser, struct butler_sequence *sequence)
{
    const char *open = parser->at++;
    struct butler_range *ranges = NULL;
    size_t n = 0, max = 0;
    bool negated = *parser->at == '^', empty = false;
    int code = 0;
    parser->at += negated;
    while (code == 0 && *parser->at != ']') {
        if (!*parser->at) {
            code = fail_at(parser, open, "a class without its closing bracket");
            break;
        }
        if (!butler_grow(&ranges, n + 1, &max, sizeof *ranges)) {
            code = butler_fail(parser->err, BUTLER_ERROR_MEMORY, "no memory for a class of a grammar");
            break;
        }
        const char *at = parser->at;
        code = read_character(parser, &ranges[n].low);
        ranges[n].high = ranges[n].low;
        if (code == 0 && parser->at[0] == '-' && parser->at[1] && parser->at[1] != ']') {
            parser->at++;
            code = read_character(parser, &ranges[n].high);
        }
        if (code == 0 && ranges[n].high < ranges[n].low)
            code = fail_at(parser, at, "a range that ends before it begins");
        n++;
    }
    if (code == 0) {
        parser->at++;
        code = butler_class_add(parser->rules, sequence, ranges, n, negated, &empty, parser->err);
    }
    if (code == 0 && empty)
        code = fail_at(parser, open, "a class without characters");
    free(ranges);
    return code;
}

/* ---------------------------------------------------------------------------------------------- repetitions */

/* How often an item comes; most BUTLER_NO_INDEX: without a bound. */
struct repeats {
    uint32_t least, most;
};

static int read_count(struct parser *parser, uint32_t *count)
{
    const char *at = parser->at;
    uint32_t value = 0;
    for (; *parser->at >= '0' && *parser->at <= '9'; parser->at++)
        value = value > BUTLER_MAX_REPEATS ? value : value * 10 + (uint32_t)(*parser->at - '0');
    if (at == parser->at)
        return fail_at(parser, at, "a number of repetitions was expected");
    if (value > BUTLER_MAX_REPEATS)
        return fail_at(parser, at, "more than 100000 repetitions");
    *count = value;
    return 0;
}

/* Reads `* + ?` or {m}, {m,}, {m,n}; *given: there is one. */
static int read_repeats(struct parser *parser, struct repeats *repeats, bool *given)
{
    const char *at = parser->at, c = *at;
    *given = c == '*' || c == '+' || c == '?' || c == '{';
    parser->at += *given;
    *repeats = (struct repeats){c == '+', c == '?' ? 1 : BUTLER_NO_INDEX};
    if (c != '{')
        return 0;
    skip_blanks(parser, false);
    int code = *parser->at == ',' ? 0 : read_count(parser, &repeats->least);
    skip_blanks(parser, false);
    if (code == 0 && *parser->at != ',')
        repeats->most = repeats->least;
    if (code == 0 && *parser->at == ',') {
        parser->at++;
        skip_blanks(parser, false);
        if (*parser->at != '}')
            code = read_count(parser, &repeats->most);
        skip_blanks(parser, false);
    }
    if (code == 0 && *parser->at != '}')
        code = fail_at(parser, parser->at, "'}' was expected");
    if (code == 0 && repeats->most < repeats->least)
        code = fail_at(parser, at, "a repetition whose end is below its beginning");
    parser->at += code == 0;
    return code;
}

/* A rule "item rest | nothing"; rest BUTLER_NO_INDEX: the rule itself. */
static int add_optional(struct parser *parser, struct butler_element item, uint32_t rest, bool has_rest, uint32_t *rule)
{
    struct butler_rules *rules = parser->rules;
    int code = butler_rules_new_rule(rules, rule, parser->err);
    if (item.kind == BUTLER_ELEMENT_RULE)
        item.kind = BUTLER_ELEMENT_NONEMPTY;
    if (code == 0) {
        const struct butler_element elements[] = {item,
                                                  butler_element_of(BUTLER_ELEMENT_RULE, rest == BUTLER_NO_INDEX ? *rule : rest)};
        code = butler_rules_add(rules, *rule, elements, has_rest ? 2 : 1, parser->err);
    }
    return code < 0 ? code : butler_rules_add(rules, *rule, NULL, 0, parser->err);
}

/* The elements of the sequence from `first` on become that many of them. */
static int repeat(struct parser *parser, struct butler_sequence *sequence, size_t first, struct repeats repeats)
{
    struct butler_element item;
    uint32_t rule = 0, rest = BUTLER_NO_INDEX;
    int code = 0;
    if (sequence->n == first)
        return 0; /* "" any number of times */
    if (sequence->n - first == 1) {
        item = sequence->elements[first];
    } else {
        code = butler_rules_new_rule(parser->rules, &rule, parser->err);
        if (code == 0)
            code = butler_rules_add(parser->rules, rule, sequence->elements + first, sequence->n - first, parser->err);
        item = butler_element_of(BUTLER_ELEMENT_RULE, rule);
    }
    sequence->n = first;
    for (uint32_t i = 0; i < repeats.least && code == 0; i++)
        code = butler_sequence_add(sequence, item.kind, item.arg, parser->err);
    if (repeats.most == BUTLER_NO_INDEX) {
        if (code == 0)
            code = add_optional(parser, item, BUTLER_NO_INDEX, true, &rest);
    } else {
        uint32_t canonical = 0;
        for (uint32_t n = 1; n <= repeats.most - repeats.least && code == 0; n++) {
            const uint32_t start = parser->rules->n_elements;
            code = add_optional(parser, item, rest, rest != BUTLER_NO_INDEX, &rule);
            if (n == BUTLER_MANY_REPEATS)
                canonical = start;
            else if (n > BUTLER_MANY_REPEATS && code == 0)
                code = butler_rules_add_canonical(parser->rules, start, canonical, parser->err);
            rest = rule;
        }
    }
    if (code == 0 && rest != BUTLER_NO_INDEX)
        code = butler_sequence_add(sequence, BUTLER_ELEMENT_RULE, rest, parser->err);
    return code;
}

/* ------------------------------------------------------------------------------------------------- sequences */

static int parse_alternatives(struct parser *parser, uint32_t rule);

static int parse_group(struct parser *parser, struct butler_sequence *sequence)
{
    const char *open = parser->at++;
    uint32_t rule = 0;
    if (++parser->depth > MAX_DEPTH)
        return fail_at(parser, open, "more than 200 groups in each other");
    int code = butler_rules_new_rule(parser->rules, &rule, parser->err);
    if (code == 0)
        code = parse_alternatives(parser, rule);
    if (code == 0 && *parser->at != ')')
        code = fail_at(parser, *parser->at ? parser->at : open, *parser->at ? "')' was expected" : "a group without its ')'");
    parser->depth--;
    parser->at += code == 0;
    return code < 0 ? code : butler_sequence_add(sequence, BUTLER_ELEMENT_RULE, rule, parser->err);
}

static int parse_any(struct parser *parser, struct butler_sequence *sequence)
{
    bool empty;
    parser->at++;
    return butler_class_add(parser->rules, sequence, NULL, 0, true, &empty, parser->err);
}

/* The token that is spelled so, most likely a special one; the number of tokens or more: there is none. */
static uint32_t find_token(const struct butler_tokenizer *tokenizer, const char *text, size_t n)
{
    const int end = tokenizer->special_by_byte[(unsigned char)text[0]].end;
    for (int i = tokenizer->special_by_byte[(unsigned char)text[0]].first; i < end; i++) {
        const struct butler_piece *piece = &tokenizer->vocab.pieces[tokenizer->special[i]];
        if (piece->n_bytes == n && memcmp(piece->bytes, text, n) == 0)
            return (uint32_t)tokenizer->special[i];
    }
    return butler_vocab_find(&tokenizer->vocab, text, n);
}

/* <spelling of a token, with its brackets> or <[id]>. */
static int parse_token(struct parser *parser, struct butler_sequence *sequence)
{
    const char *open = parser->at;
    char bytes[BUTLER_TOKEN_CODE], *end = NULL;
    size_t n = strcspn(open, ">\r\n");
    if (open[n] != '>')
        return fail_at(parser, open, "a token without its closing bracket");
    const long number = open[1] == '[' && open[2] >= '0' && open[2] <= '9' ? strtol(open + 2, &end, 10) : -1;
    const bool is_number = end && end[0] == ']' && end[1] == '>';
    const uint32_t id = is_number ? (uint32_t)BUTLER_MIN(number, INT32_MAX) : find_token(parser->tokenizer, open, n + 1);
    if (id >= parser->tokenizer->vocab.n_tokens)
        return fail_at(parser, open, "the vocabulary has no such token");
    if (butler_tokenizer_is_end(parser->tokenizer, (int32_t)id))
        return fail_at(parser, open, "a token that ends an answer, which is allowed where the grammar's text is complete");
    const char *text = butler_token_code_bytes(parser->tokenizer, (int32_t)id, bytes, &n);
    if (n == 0)
        return fail_at(parser, open, "a token that no answer has");
    parser->at = strchr(open, '>') + 1;
    return add_bytes(parser, sequence, text, n);
}

static int parse_reference(struct parser *parser, struct butler_sequence *sequence)
{
    size_t index = 0;
    const int code = read_name(parser, &index);
    return code < 0 ? code : butler_sequence_add(sequence, BUTLER_ELEMENT_RULE, parser->names[index].rule, parser->err);
}

/* Items up to a bar, a closing parenthesis or the end of the rule. */
static int parse_sequence(struct parser *parser, uint32_t rule)
{
    struct butler_sequence sequence = {0};
    int code = 0;
    while (code == 0) {
        const size_t first = sequence.n;
        struct repeats repeats;
        bool given;
        const char c = *parser->at;
        if (c == '"')
            code = parse_literal(parser, &sequence);
        else if (c == '[')
            code = parse_class(parser, &sequence);
        else if (c == '(')
            code = parse_group(parser, &sequence);
        else if (c == '.')
            code = parse_any(parser, &sequence);
        else if (is_name(c))
            code = parse_reference(parser, &sequence);
        else if (c == '<')
            code = parse_token(parser, &sequence);
        else if (c == '!')
            code = fail_at(parser, parser->at, "exclusions of tokens are not supported");
        else if (c == '*' || c == '+' || c == '?' || c == '{')
            code = fail_at(parser, parser->at, "a repetition of nothing");
        else
            break;
        do {
            skip_blanks(parser, parser->depth > 0);
            given = false;
            if (code == 0)
                code = read_repeats(parser, &repeats, &given);
            if (code == 0 && given)
                code = repeat(parser, &sequence, first, repeats);
        } while (code == 0 && given);
    }
    if (code == 0)
        code = butler_rules_add(parser->rules, rule, sequence.elements, sequence.n, parser->err);
    free(sequence.elements);
    return code;
}

static int parse_alternatives(struct parser *parser, uint32_t rule)
{
    int code;
    skip_blanks(parser, true);
    while ((code = parse_sequence(parser, rule)) == 0 && *parser->at == '|') {
        parser->at++;
        skip_blanks(parser, true);
    }
    return code;
}

static int parse_rule(struct parser *parser)
{
    const char *at = parser->at;
    size_t index = 0;
    int code = read_name(parser, &index);
    if (code < 0)
        return code;
    if (parser->names[index].defined)
        return fail_name(parser, at, &parser->names[index], "is defined twice");
    parser->names[index].defined = true;
    skip_blanks(parser, false);
    if (strncmp(parser->at, "::=", 3) != 0)
        return fail_at(parser, parser->at, "'::=' was expected");
    parser->at += 3;
    code = parse_alternatives(parser, parser->names[index].rule);
    if (code == 0 && *parser->at && *parser->at != '\n' && *parser->at != '\r')
        code = fail_at(parser, parser->at, "unexpected character");
    return code;
}

/* Names that were used have a rule, root is there and matches some text, and no rule is left-recursive. */
static int check_rules(struct parser *parser, size_t root)
{
    uint32_t cycle = BUTLER_NO_INDEX;
    for (size_t i = 0; i < parser->n_names; i++)
        if (!parser->names[i].defined)
            return fail_name(parser, parser->names[i].used, &parser->names[i], "is not defined");
    const struct butler_element start = butler_element_of(BUTLER_ELEMENT_RULE, parser->names[root].rule);
    uint32_t whole = 0;
    int code = butler_rules_new_rule(parser->rules, &whole, parser->err);
    if (code == 0)
        code = butler_rules_add(parser->rules, whole, &start, 1, parser->err);
    if (code < 0)
        return code;
    parser->rules->start = parser->rules->n_elements - 2;
    code = butler_rules_analyse(parser->rules, &cycle, parser->err);
    if (code < 0)
        return code;
    for (size_t i = 0; i < parser->n_names && cycle != BUTLER_NO_INDEX; i++)
        if (parser->names[i].rule == cycle)
            return fail_name(parser, parser->names[i].used, &parser->names[i],
                             "is left-recursive: it can begin with itself; write it as a repetition");
    if (cycle != BUTLER_NO_INDEX) /* a group: some rule with a name is in the cycle too, but it was not the first that was met */
        return butler_fail(parser->err, BUTLER_ERROR_FORMAT, "grammar: a group is left-recursive: it can begin with its own rule");
    if (!parser->rules->rules[parser->names[root].rule].productive)
        return fail_name(parser, parser->names[root].used, &parser->names[root], "matches no text that ends");
    return 0;
}

int butler_gbnf_parse(struct butler_rules *rules, const char *gbnf, const struct butler_tokenizer *tokenizer,
                      struct butler_error *err)
{
    struct parser parser = {.source = gbnf, .at = gbnf, .rules = rules, .tokenizer = tokenizer, .err = err};
    size_t root = 0;
    int code = 0;
    skip_blanks(&parser, true);
    while (code == 0 && *parser.at) {
        code = parse_rule(&parser);
        skip_blanks(&parser, true);
    }
    for (root = 0; root < parser.n_names; root++)
        if (parser.names[root].n == 4 && memcmp(parser.names[root].text, "root", 4) == 0)
            break;
    if (code == 0 && root == parser.n_names)
        code = fail_at(&parser, parser.at, "there is no rule 'root'");
    if (code == 0)
        code = check_rules(&parser, root);
    free(parser.names);
    free(parser.slots);
    return code;
}
