/* Regular expressions -> GBNF over the JSON spelling of the characters that they match. A character is written as itself, or as
 * its escape where JSON asks for one. \d and \w mean ASCII, as in ECMAScript; \s writes only ASCII space. */
#include <string.h>

#include "base/utf8.h"
#include "schema/parts.h"

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
    struct schema_text *text;
    int depth;
};

static _Noreturn void refuse(struct reader *r, const char *what)
{
    schema_fail(r->c, "pattern at byte %d: %s", (int)(r->at - r->pattern), what);
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

static void add_class(struct reader *r, struct set *set, char letter)
{
    static const struct range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                              spaces[] = {{9, 13},          {' ', ' '},       {0x1c, 0x1f},     {0x85, 0x85},
                                          {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                          {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const char lower = (char)(letter | 0x20);
    const struct range *ranges = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    const int n = lower == 'd' ? 1 : lower == 'w' ? 4 : letter == 's' ? 2 : 12;
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

/* Writes the set without what JSON has no plain spelling for, then the escapes. */
static void put_set(struct reader *r, const struct set *set)
{
    static const char escapes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    struct set hidden = complement(r, set);
    add(r, &hidden, 0, 0x1f);
    add(r, &hidden, '"', '"');
    add(r, &hidden, '\\', '\\');
    add(r, &hidden, 0xD800, 0xDFFF);
    const struct set plain = complement(r, &hidden);
    const char *bar = " (";
    if (plain.n) {
        schema_put(r->c, r->text, "%s [", bar);
        for (int i = 0; i < plain.n; i++) {
            schema_put_character(r->c, r->text, plain.ranges[i].low);
            if (plain.ranges[i].high > plain.ranges[i].low) {
                schema_put(r->c, r->text, "-");
                schema_put_character(r->c, r->text, plain.ranges[i].high);
            }
        }
        schema_put(r->c, r->text, "]");
        bar = " |";
    }
    for (uint32_t code = 0; code <= '\\'; code++) {
        if ((code >= ' ' && code != '"' && code != '\\') || !has(set, code))
            continue;
        const char *found = code ? strchr(escapes, (char)code) : NULL;
        if (found)
            schema_put(r->c, r->text, "%s \"\\\\\" [\\x%02x]", bar, letters[found - escapes]);
        else
            schema_put(r->c, r->text, "%s \"\\\\u%04x\"", bar, code);
        bar = " |";
    }
    if (bar[1] == '(')
        refuse(r, "a set of no characters");
    schema_put(r->c, r->text, " )");
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
static uint32_t read_char(struct reader *r, struct set *set, bool *is_class)
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
        add_class(r, set, letter);
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

static void read_set(struct reader *r)
{
    struct set set = {.n = 0};
    const bool negated = r->at[1] == '^';
    r->at += 1 + negated;
    while (*r->at != ']') {
        bool is_class, high_is_class;
        const uint32_t low = read_char(r, &set, &is_class);
        uint32_t high = low;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            high = read_char(r, &set, &high_is_class);
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
    put_set(r, &set);
}

static void read_alternatives(struct reader *r);

static void read_group(struct reader *r)
{
    if (++r->depth > SCHEMA_MAX_DEPTH)
        refuse(r, "groups are nested too deeply");
    r->at++;
    if (*r->at == '?') {
        if (r->at[1] != ':')
            refuse(r, "groups with (? other than (?: are not supported");
        r->at += 2;
    }
    schema_put(r->c, r->text, " (");
    read_alternatives(r);
    schema_put(r->c, r->text, " )");
    if (*r->at != ')')
        refuse(r, "')' is missing");
    r->at++;
    r->depth--;
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

static void read_quantifier(struct reader *r)
{
    const char mark = *r->at;
    if (!mark || !strchr("*+?{", mark))
        return;
    r->at++;
    if (mark == '{') {
        const int min = read_count(r);
        schema_put(r->c, r->text, "{%d", min);
        if (*r->at == ',') {
            r->at++;
            schema_put(r->c, r->text, ",");
            if (*r->at != '}') {
                const int max = read_count(r);
                if (max < min)
                    refuse(r, "{m,n} with m > n");
                schema_put(r->c, r->text, "%d", max);
            }
        }
        if (*r->at != '}')
            refuse(r, "'}' is missing");
        r->at++;
        schema_put(r->c, r->text, "}");
    } else
        schema_put(r->c, r->text, "%c", mark);
    if (*r->at == '?') /* lazy: the same texts match */
        r->at++;
    if (*r->at && strchr("*+?{", *r->at))
        refuse(r, "a quantifier behind a quantifier");
}

static void read_atom(struct reader *r)
{
    struct set set = {.n = 0};
    bool is_class;
    if (*r->at == '[')
        read_set(r);
    else if (*r->at == '(')
        read_group(r);
    else if (*r->at == '.') {
        r->at++;
        add(r, &set, '\n', '\n');
        add(r, &set, '\r', '\r');
        add(r, &set, 0x2028, 0x2029);
        set = complement(r, &set);
        put_set(r, &set);
    } else if (strchr("*+?{}^$]", *r->at))
        refuse(r, *r->at == '^' || *r->at == '$' ? "'^' and '$' are supported only at the ends of the whole pattern's alternatives"
                                                 : "this character needs a \\ before it");
    else {
        const uint32_t code = read_char(r, &set, &is_class);
        if (!is_class)
            add(r, &set, code, code);
        put_set(r, &set);
    }
    read_quantifier(r);
}

static void read_alternatives(struct reader *r)
{
    const bool outer = r->depth == 0;
    for (;;) {
        bool ended = false;
        if (outer && *r->at == '^')
            r->at++;
        else if (outer)
            schema_put(r->c, r->text, " char*");
        else
            schema_put(r->c, r->text, " \"\"");
        while (*r->at && *r->at != '|' && *r->at != ')' && !ended) {
            if (outer && *r->at == '$' && (r->at[1] == 0 || r->at[1] == '|')) {
                r->at++;
                ended = true;
            } else
                read_atom(r);
        }
        if (outer && !ended)
            schema_put(r->c, r->text, " char*");
        if (*r->at != '|')
            return;
        r->at++;
        schema_put(r->c, r->text, " |");
    }
}

int schema_compile_pattern(struct schema_compiler *c, const char *pattern)
{
    struct reader r = {.c = c, .pattern = pattern, .at = pattern, .text = schema_begin(c)};
    c->used[SCHEMA_CHAR] = true;
    schema_put(c, r.text, " \"\\\"\" (");
    read_alternatives(&r);
    if (*r.at)
        refuse(&r, "')' without '('");
    schema_put(c, r.text, " \"\" ) \"\\\"\"");
    return schema_end(c, r.text);
}
