/* Regular expressions -> a tree -> GBNF over the JSON spelling of the characters that they match. A character is written as itself,
 * or as its escape where JSON asks for one. \d and \w mean ASCII, as in ECMAScript; \s writes only ASCII space. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "schema/pattern.h"

struct range {
    uint32_t low, high;
};

enum { MAX_RANGES = 256, MAX_CHAR = 0x10FFFF };

struct set {
    struct range ranges[MAX_RANGES];
    int n;
};

struct reader {
    struct schema_compiler *c;
    const char *pattern, *at;
    struct schema_pattern *tree;
    int depth;
    jmp_buf refused;
};

/* What is no pattern, or one that is not supported: the reader ends. */
static _Noreturn void refuse(struct reader *r, const char *what)
{
    schema_cannot(r->c, "pattern", "pattern at byte %d: %s", (int)(r->at - r->pattern), what);
    longjmp(r->refused, 1);
}

/* ------------------------------------------------------------------------------------------------ the tree */

const struct schema_node *schema_pattern_node(const struct schema_pattern *pattern, int index)
{
    return (const struct schema_node *)(const void *)pattern->nodes->bytes + index;
}

static int add_node(struct reader *r, enum schema_node_kind kind, int first, int second)
{
    const struct schema_node node = {.kind = kind, .first = first, .second = second};
    schema_put_bytes(r->c, r->tree->nodes, (const char *)&node, sizeof node);
    return (int)(r->tree->nodes->n / sizeof node) - 1;
}

static bool is_simple(const struct schema_node *node)
{
    return node->kind == SCHEMA_NODE_SET || node->kind == SCHEMA_NODE_EITHER;
}

/* Recursion is as deep as groups are nested, and along a row of nodes, which is a loop. */
void schema_put_node(struct schema_compiler *c, struct schema_text *text, const struct schema_pattern *pattern, int index)
{
    const struct schema_node *node = schema_pattern_node(pattern, index);
    for (; node->kind == SCHEMA_NODE_BOTH; node = schema_pattern_node(pattern, node->second))
        schema_put_node(c, text, pattern, node->first);
    if (node->kind == SCHEMA_NODE_EMPTY) {
        schema_put(c, text, " \"\"");
    } else if (node->kind == SCHEMA_NODE_SET) {
        schema_put_bytes(c, text, pattern->sets->bytes + node->first, (size_t)(node->second - node->first));
    } else if (node->kind == SCHEMA_NODE_ANY) {
        schema_put_rule(c, text, SCHEMA_CHAR);
        schema_put(c, text, "*");
    } else if (node->kind == SCHEMA_NODE_EITHER) {
        const char *bar = " (";
        for (; node->kind == SCHEMA_NODE_EITHER; node = schema_pattern_node(pattern, node->second), bar = " |") {
            schema_put(c, text, "%s", bar);
            schema_put_node(c, text, pattern, node->first);
        }
        schema_put(c, text, " |");
        schema_put_node(c, text, pattern, (int)(node - schema_pattern_node(pattern, 0)));
        schema_put(c, text, " )");
    } else {
        const bool simple = is_simple(schema_pattern_node(pattern, node->first));
        schema_put(c, text, simple ? "" : " (");
        schema_put_node(c, text, pattern, node->first);
        schema_put(c, text, simple ? "" : " )");
        if (node->max < 0)
            schema_put(c, text, "{%d,}", node->min);
        else
            schema_put(c, text, "{%d,%d}", node->min, node->max);
    }
}

/* -------------------------------------------------------------------------------------------------- sets */

static void add(struct reader *r, struct set *set, uint32_t low, uint32_t high)
{
    if (set->n == MAX_RANGES)
        refuse(r, "too many characters in a set");
    int i = set->n++;
    for (; i > 0 && set->ranges[i - 1].low > low; i--) /* sorted by low */
        set->ranges[i] = set->ranges[i - 1];
    set->ranges[i] = (struct range){low, high};
}

static struct set complement(struct reader *r, const struct set *set)
{
    struct set out = {.n = 0};
    uint32_t next = 0;
    for (int i = 0; i < set->n; i++) {
        if (set->ranges[i].low > next)
            add(r, &out, next, set->ranges[i].low - 1);
        if (set->ranges[i].high >= next)
            next = set->ranges[i].high + 1;
    }
    if (next <= MAX_CHAR)
        add(r, &out, next, MAX_CHAR);
    return out;
}

/* negated: the set is complemented later. White space is written as ECMAScript's and Python's ASCII alone, and what is none of it
 * as what neither counts: such a set is never wider than the pattern's. */
static void add_class(struct reader *r, struct set *set, char letter, bool negated)
{
    static const struct range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                              spaces[] = {{9, 13},          {' ', ' '},       {0x1c, 0x1f},     {0x85, 0x85},
                                          {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                          {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const char lower = (char)(letter | 0x20);
    const struct range *ranges = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    const int n = lower == 'd' ? 1 : lower == 'w' ? 4 : (letter == 's') != negated ? 2 : 12;
    struct set part = {.n = 0};
    for (int i = 0; i < n; i++)
        add(r, &part, ranges[i].low, ranges[i].high);
    if (letter != lower)
        part = complement(r, &part);
    for (int i = 0; i < part.n; i++)
        add(r, set, part.ranges[i].low, part.ranges[i].high);
}

static bool has(const struct set *set, uint32_t code)
{
    for (int i = 0; i < set->n; i++)
        if (set->ranges[i].low <= code && code <= set->ranges[i].high)
            return true;
    return false;
}

/* A node of the set: its GBNF is what has a plain spelling in JSON, then the escapes. */
static int put_set(struct reader *r, const struct set *set)
{
    static const char escapes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    struct set hidden = complement(r, set);
    add(r, &hidden, 0, 0x1f);
    add(r, &hidden, '"', '"');
    add(r, &hidden, '\\', '\\');
    add(r, &hidden, 0xD800, 0xDFFF);
    const struct set plain = complement(r, &hidden);
    struct schema_text *text = r->tree->sets;
    const size_t begin = text->n;
    const char *bar = " (";
    if (plain.n) {
        schema_put(r->c, text, "%s [", bar);
        for (int i = 0; i < plain.n; i++) {
            schema_put_character(r->c, text, plain.ranges[i].low);
            if (plain.ranges[i].high > plain.ranges[i].low) {
                schema_put(r->c, text, "-");
                schema_put_character(r->c, text, plain.ranges[i].high);
            }
        }
        schema_put(r->c, text, "]");
        bar = " |";
    }
    for (uint32_t code = 0; code <= '\\'; code++) {
        if ((code >= ' ' && code != '"' && code != '\\') || !has(set, code))
            continue;
        const char *found = code ? strchr(escapes, (char)code) : NULL;
        if (found)
            schema_put(r->c, text, "%s \"\\\\\" [\\x%02x]", bar, letters[found - escapes]);
        else
            schema_put(r->c, text, "%s \"\\\\u%04x\"", bar, code);
        bar = " |";
    }
    if (bar[1] == '(')
        refuse(r, "a set of no characters");
    schema_put(r->c, text, " )");
    return add_node(r, SCHEMA_NODE_SET, (int)begin, (int)text->n);
}

/* ------------------------------------------------------------------------------------------------ reading */

static uint32_t read_hex(struct reader *r, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++, r->at++) {
        const char *digits = "0123456789abcdef";
        const char lower = (char)(*r->at >= 'A' && *r->at <= 'F' ? *r->at | 0x20 : *r->at),
                   *found = lower ? strchr(digits, lower) : NULL;
        if (!found)
            refuse(r, "hexadecimal digits are missing");
        else
            value = value * 16 + (uint32_t)(found - digits);
    }
    return value;
}

/* The character that is next, escapes included, or a class that is added to the set: then *is_class. */
static uint32_t read_char(struct reader *r, struct set *set, bool negated, bool *is_class)
{
    *is_class = false;
    uint32_t code = 0;
    if (*r->at != '\\') {
        const int n = butler_utf8_decode(r->at, strlen(r->at), &code);
        if (!n)
            refuse(r, "a character is missing");
        r->at += n;
        return code;
    }
    const char letter = *++r->at;
    if (letter && strchr("dDwWsS", letter)) {
        r->at++;
        add_class(r, set, letter, negated);
        *is_class = true;
        return 0;
    }
    static const char names[] = "nrtfv", meanings[] = "\n\r\t\f\v";
    const char *found = letter ? strchr(names, letter) : NULL;
    if (found) {
        r->at++;
        return (uint32_t)meanings[found - names];
    }
    if (letter == 'x' || letter == 'u') {
        r->at++;
        code = read_hex(r, letter == 'x' ? 2 : 4);
        if (code >= 0xD800 && code <= 0xDFFF)
            refuse(r, "a surrogate is no character");
        return code;
    }
    if (!letter || (letter & 0x80) || (letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z'))
        refuse(r, "this escape is not supported");
    r->at++;
    return (uint32_t)letter;
}

static int read_set(struct reader *r)
{
    struct set set = {.n = 0};
    const bool negated = r->at[1] == '^';
    r->at += 1 + negated;
    while (*r->at != ']') {
        bool is_class, high_is_class;
        const uint32_t low = read_char(r, &set, negated, &is_class);
        uint32_t high = low;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            high = read_char(r, &set, negated, &high_is_class);
            if (is_class || high_is_class)
                refuse(r, "a class is no end of a range");
        }
        if (high < low)
            refuse(r, "a range whose end is before its begin");
        if (!is_class)
            add(r, &set, low, high);
    }
    r->at++;
    if (negated)
        set = complement(r, &set);
    return put_set(r, &set);
}

static int read_alternatives(struct reader *r);

static int read_group(struct reader *r)
{
    if (++r->depth > SCHEMA_MAX_DEPTH)
        refuse(r, "groups are nested too deeply");
    r->at++;
    if (*r->at == '?') {
        if (r->at[1] != ':')
            refuse(r, "groups with (? other than (?: are not supported");
        r->at += 2;
    }
    const int node = read_alternatives(r);
    if (*r->at != ')')
        refuse(r, "')' is missing");
    r->at++;
    r->depth--;
    return node;
}

static int read_count(struct reader *r)
{
    int n = 0;
    if (*r->at < '0' || *r->at > '9')
        refuse(r, "a number is missing in {}");
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        n = 10 * n + (*r->at - '0');
        if (n > SCHEMA_MAX_REPEATS)
            refuse(r, "so many repetitions are not supported");
    }
    return n;
}

/* The node, or its repetition. */
static int read_quantifier(struct reader *r, int node)
{
    const char mark = *r->at;
    if (!mark || !strchr("*+?{", mark))
        return node;
    int min = mark == '+', max = mark == '?' ? 1 : -1;
    r->at++;
    if (mark == '{') {
        max = min = read_count(r);
        if (*r->at == ',') {
            r->at++;
            max = *r->at == '}' ? -1 : read_count(r);
            if (max >= 0 && max < min)
                refuse(r, "{m,n} with m > n");
        }
        if (*r->at != '}')
            refuse(r, "'}' is missing");
        r->at++;
    }
    if (*r->at == '?') /* lazy: the same texts match */
        r->at++;
    if (*r->at && strchr("*+?{", *r->at))
        refuse(r, "a quantifier behind a quantifier");
    const int repeat = add_node(r, SCHEMA_NODE_REPEAT, node, 0);
    struct schema_node *made = (struct schema_node *)(void *)r->tree->nodes->bytes + repeat;
    made->min = min;
    made->max = max;
    return repeat;
}

static int read_atom(struct reader *r)
{
    struct set set = {.n = 0};
    bool is_class;
    int node;
    if (*r->at == '[')
        node = read_set(r);
    else if (*r->at == '(')
        node = read_group(r);
    else if (*r->at == '.') {
        r->at++;
        add(r, &set, '\n', '\n');
        add(r, &set, '\r', '\r');
        add(r, &set, 0x2028, 0x2029);
        set = complement(r, &set);
        node = put_set(r, &set);
    } else if (strchr("*+?{}^$]", *r->at))
        refuse(r, *r->at == '^' || *r->at == '$' ? "'^' and '$' are supported only at the ends of the whole pattern's alternatives"
                                                 : "this character needs a \\ before it");
    else {
        const uint32_t code = read_char(r, &set, false, &is_class);
        if (!is_class)
            add(r, &set, code, code);
        node = put_set(r, &set);
    }
    return read_quantifier(r, node);
}

/* One alternative, with what may stand before and behind a pattern that is not anchored. */
static int read_row(struct reader *r)
{
    const bool outer = r->depth == 0;
    bool ended = false;
    struct schema_text *held = schema_begin(r->c); /* the atoms */
    int atom, row;
    if (outer && *r->at == '^')
        r->at++;
    else if (outer) {
        atom = add_node(r, SCHEMA_NODE_ANY, 0, 0);
        schema_put_bytes(r->c, held, (const char *)&atom, sizeof atom);
    }
    while (*r->at && *r->at != '|' && *r->at != ')' && !ended) {
        if (outer && *r->at == '$' && (r->at[1] == 0 || r->at[1] == '|')) {
            r->at++;
            ended = true;
        } else {
            atom = read_atom(r);
            schema_put_bytes(r->c, held, (const char *)&atom, sizeof atom);
        }
    }
    row = add_node(r, outer && !ended ? SCHEMA_NODE_ANY : SCHEMA_NODE_EMPTY, 0, 0);
    for (size_t i = held->n / sizeof atom; i-- > 0;) {
        memcpy(&atom, held->bytes + i * sizeof atom, sizeof atom);
        row = add_node(r, SCHEMA_NODE_BOTH, atom, row);
    }
    schema_drop(r->c);
    return row;
}

static int read_alternatives(struct reader *r)
{
    struct schema_text *held = schema_begin(r->c); /* the rows */
    int row;
    for (;; r->at++) {
        row = read_row(r);
        if (*r->at != '|')
            break;
        schema_put_bytes(r->c, held, (const char *)&row, sizeof row);
    }
    for (size_t i = held->n / sizeof row; i-- > 0;) {
        int before;
        memcpy(&before, held->bytes + i * sizeof row, sizeof row);
        row = add_node(r, SCHEMA_NODE_EITHER, before, row);
    }
    schema_drop(r->c);
    return row;
}

/* Reads the pattern into the tree. false: it is not supported, which is noted. */
static bool read_pattern(struct schema_compiler *c, const char *pattern, struct schema_pattern *tree)
{
    struct reader *r = (struct reader *)(void *)tree->reader->bytes;
    *r = (struct reader){.c = c, .pattern = pattern, .at = pattern, .tree = tree};
    if (setjmp(r->refused))
        return false;
    tree->root = read_alternatives(r);
    if (*r->at)
        refuse(r, "')' without '('");
    return true;
}

int schema_compile_pattern(struct schema_compiler *c, const char *pattern, int64_t min, int64_t max)
{
    struct schema_pattern tree = {.root = 0};
    struct reader blank = {.depth = 0};
    int rule = SCHEMA_MANY;
    tree.reader = schema_begin(c);
    tree.nodes = schema_begin(c);
    tree.sets = schema_begin(c);
    schema_put_bytes(c, tree.reader, (const char *)&blank, sizeof blank);
    const bool right = read_pattern(c, pattern, &tree);
    while (c->open != tree.sets) /* bodies that were begun where the reader ended */
        schema_drop(c);
    if (right && (min > 0 || max >= 0)) {
        rule = schema_compile_length(c, &tree, min, max);
        if (rule == SCHEMA_MANY)
            schema_cannot(c, min > 0 ? "minLength" : "maxLength", "a length beside a 'pattern' of that size is not supported");
    }
    if (right && rule == SCHEMA_MANY) {
        struct schema_text *text = schema_begin(c);
        schema_put(c, text, " \"\\\"\"");
        schema_put_node(c, text, &tree, tree.root);
        schema_put(c, text, " \"\\\"\"");
        rule = schema_end(c, text);
    }
    for (int i = 0; i < 3; i++)
        schema_drop(c);
    return rule;
}
