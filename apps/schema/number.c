/* Numbers between bounds, digit by digit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "schema/parts.h"

#define LIMIT SCHEMA_LARGEST

static bool all(const char *digits, int n, char digit)
{
    for (int i = 0; i < n; i++)
        if (digits[i] != digit)
            return false;
    return true;
}

/* The numbers low..high, both of n digits. */
static void put_same_length(struct schema_compiler *c, struct schema_text *text, const char *low, const char *high, int n)
{
    static const char zeros[] = "000000000000000000", nines[] = "999999999999999999";
    for (; n > 0 && *low == *high; n--, low++, high++)
        schema_put(c, text, " \"%c\"", *low);
    if (n == 0)
        return;
    if (all(low, n, '0') && all(high, n, '9')) {
        schema_put(c, text, " [0-9]{%d}", n);
        return;
    }
    char first = *low, last = *high;
    const char *bar = " (";
    if (!all(low + 1, n - 1, '0')) {
        schema_put(c, text, "%s \"%c\"", bar, first++);
        put_same_length(c, text, low + 1, nines, n - 1);
        bar = " |";
    }
    const bool high_part = !all(high + 1, n - 1, '9');
    last = (char)(last - high_part);
    if (first <= last) {
        schema_put(c, text, "%s [%c-%c]", bar, first, last);
        if (n > 1)
            schema_put(c, text, " [0-9]{%d}", n - 1);
        bar = " |";
    }
    if (high_part) {
        schema_put(c, text, "%s \"%c\"", bar, *high);
        put_same_length(c, text, zeros, high + 1, n - 1);
    }
    schema_put(c, text, " )");
}

void schema_put_range(struct schema_compiler *c, struct schema_text *text, int64_t low, int64_t high)
{
    char a[24], b[24], nines[24], one[24];
    const int n_a = snprintf(a, sizeof a, "%lld", (long long)low), n_b = snprintf(b, sizeof b, "%lld", (long long)high);
    if (n_a == n_b) {
        put_same_length(c, text, a, b, n_a);
        return;
    }
    memset(nines, '9', sizeof nines);
    memset(one, '0', sizeof one);
    one[0] = '1';
    schema_put(c, text, " (");
    put_same_length(c, text, a, nines, n_a);
    if (n_b - n_a > 1)
        schema_put(c, text, " | [1-9] [0-9]{%d,%d}", n_a, n_b - 2);
    schema_put(c, text, " |");
    put_same_length(c, text, one, b, n_b);
    schema_put(c, text, " )");
}

struct bound {
    int64_t at;
    bool exclusive;
};

/* Alternatives, each begun with *bar: the numbers from low to high, both >= 0, behind a sign or "". */
static void put_magnitudes(struct schema_compiler *c, struct schema_text *text, const char **bar, const char *sign,
                           struct bound low, struct bound high, bool fractions)
{
    const int64_t from = low.at + low.exclusive, to = high.at - high.exclusive;
    if (from <= to) {
        schema_put(c, text, "%s%s", *bar, sign);
        schema_put_range(c, text, from, to);
        *bar = " |";
    }
    if (!fractions)
        return;
    if (from < high.at) {
        schema_put(c, text, "%s%s", *bar, sign);
        schema_put_range(c, text, from, high.at - 1);
        schema_put(c, text, " \".\" [0-9]{1,18}");
        *bar = " |";
    }
    if (low.exclusive && low.at < high.at) {
        schema_put(c, text, "%s%s", *bar, sign);
        schema_put_range(c, text, low.at, low.at);
        schema_put(c, text, " \".\" [0-9]{0,17} [1-9]");
        *bar = " |";
    }
}

/* The tighter of two keywords, as a lower bound (sign 1) or, both negated, an upper one (sign -1). */
static struct bound read_bound(const json_t *flat, const char *inclusive, const char *exclusive, int sign)
{
    const char *names[] = {inclusive, exclusive};
    struct bound bound = {-LIMIT, false};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(flat, names[i]);
        if (!value)
            continue;
        const double real = sign * json_number_value(value);
        struct bound next = {LIMIT, true};
        if (real < -(double)LIMIT)
            continue;
        if (json_is_integer(value) && real < (double)LIMIT)
            next = (struct bound){sign * json_integer_value(value), i == 1};
        else if (real < (double)LIMIT) /* an integer above 0.5 is above 0 exclusively */
            next = (struct bound){(int64_t)floor(real), i == 1 || real != floor(real)};
        if (next.at > bound.at || (next.at == bound.at && next.exclusive))
            bound = next;
    }
    return bound;
}

static bool has_fraction(const json_t *flat)
{
    static const char *const names[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const double bound = json_number_value(json_object_get(flat, names[i]));
        if (bound != floor(bound))
            return true;
    }
    return false;
}

/* The tighter of two keywords as digits; all the numbers there are where there is none. */
static struct schema_decimal read_decimal(struct schema_compiler *c, const json_t *flat, const char *inclusive,
                                          const char *exclusive, bool is_low)
{
    const char *names[] = {inclusive, exclusive};
    struct schema_decimal bound = {.negative = is_low, .whole = LIMIT}, next;
    double at = is_low ? -INFINITY : INFINITY;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(flat, names[i]);
        const double real = json_number_value(value);
        if (!value || (is_low ? real < at : real > at))
            continue;
        if (!schema_read_decimal(c, value, &next)) {
            schema_cannot(c, names[i], "'%s' with so many digits is not supported", names[i]);
            continue;
        }
        bound = next;
        bound.exclusive = i == 1; /* of two that are equal it goes before the other */
        at = real;
    }
    return bound;
}

static int compile_decimals(struct schema_compiler *c, const json_t *flat)
{
    static const struct schema_decimal zero = {.whole = 0}, above_zero = {.exclusive = true};
    const struct schema_decimal low = read_decimal(c, flat, "minimum", "exclusiveMinimum", true),
                                high = read_decimal(c, flat, "maximum", "exclusiveMaximum", false);
    struct schema_text *text = schema_begin(c);
    const char *bar = "";
    if (!high.negative)
        schema_put_decimals(c, text, &bar, "", low.negative ? &zero : &low, &high);
    if (low.negative) /* -0 is not written */
        schema_put_decimals(c, text, &bar, " \"-\"", high.negative ? &high : &above_zero, &low);
    if (*bar)
        return schema_end(c, text);
    schema_drop(c);
    return SCHEMA_NEVER;
}

/* Multiples of a whole number are whole. SCHEMA_MANY: what "multipleOf" says is not supported, which is noted. */
static int compile_multiple(struct schema_compiler *c, const json_t *flat)
{
    const json_t *value = json_object_get(flat, "multipleOf");
    const double real = json_number_value(value);
    const struct bound low = read_bound(flat, "minimum", "exclusiveMinimum", 1),
                       high = read_bound(flat, "maximum", "exclusiveMaximum", -1);
    int rule = SCHEMA_MANY;
    if (real == floor(real) && real < (double)LIMIT)
        rule = schema_compile_multiple(c, (int64_t)real, low.at + low.exclusive, -high.at - high.exclusive);
    if (rule == SCHEMA_MANY)
        schema_cannot(c, "multipleOf", "'multipleOf' of this value is not supported");
    return rule;
}

int schema_compile_number(struct schema_compiler *c, const json_t *flat, bool fractions)
{
    if (json_object_get(flat, "multipleOf")) {
        const int rule = compile_multiple(c, flat);
        if (rule != SCHEMA_MANY)
            return rule;
    }
    if (fractions && has_fraction(flat))
        return compile_decimals(c, flat);
    if (!json_object_get(flat, "minimum") && !json_object_get(flat, "exclusiveMinimum") && !json_object_get(flat, "maximum") &&
        !json_object_get(flat, "exclusiveMaximum"))
        return fractions ? SCHEMA_NUMBER : SCHEMA_INTEGER;
    const struct bound low = read_bound(flat, "minimum", "exclusiveMinimum", 1);
    struct bound high = read_bound(flat, "maximum", "exclusiveMaximum", -1);
    high.at = -high.at;
    struct schema_text *text = schema_begin(c);
    const char *bar = "";
    if (high.at >= 0)
        put_magnitudes(c, text, &bar, "", low.at < 0 ? (struct bound){0, false} : low, high, fractions);
    if (low.at < 0) /* -0 is not written */
        put_magnitudes(c, text, &bar, " \"-\"", high.at >= 0 ? (struct bound){0, true} : (struct bound){-high.at, high.exclusive},
                       (struct bound){-low.at, low.exclusive}, fractions);
    if (*bar)
        return schema_end(c, text);
    schema_drop(c);
    return SCHEMA_NEVER;
}
