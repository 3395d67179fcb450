/* Numbers between bounds, digit by digit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "schema/parts.h"

#define LIMIT INT64_C(999999999999999999) /* the largest integer of SCHEMA_MAX_DIGITS digits */

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

/* The integers low..high, 0 <= low <= high <= LIMIT, without leading zeros. */
static void put_range(struct schema_compiler *c, struct schema_text *text, int64_t low, int64_t high)
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
        put_range(c, text, from, to);
        *bar = " |";
    }
    if (!fractions)
        return;
    if (from < high.at) {
        schema_put(c, text, "%s%s", *bar, sign);
        put_range(c, text, from, high.at - 1);
        schema_put(c, text, " \".\" [0-9]{1,18}");
        *bar = " |";
    }
    if (low.exclusive && low.at < high.at) {
        schema_put(c, text, "%s%s", *bar, sign);
        put_range(c, text, low.at, low.at);
        schema_put(c, text, " \".\" [0-9]{0,17} [1-9]");
        *bar = " |";
    }
}

/* The tighter of two keywords, as a lower bound (sign 1) or, both negated, an upper one (sign -1). */
static struct bound read_bound(struct schema_compiler *c, const json_t *flat, const char *inclusive, const char *exclusive,
                               int sign, bool fractions)
{
    const char *names[] = {inclusive, exclusive};
    struct bound bound = {-LIMIT, false};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(flat, names[i]);
        if (!value)
            continue;
        const double real = sign * json_number_value(value);
        if (fractions && real != floor(real))
            schema_fail(c, "'%s' that is not a whole number is not supported for numbers", names[i]);
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

int schema_compile_number(struct schema_compiler *c, const json_t *flat, bool fractions)
{
    if (!json_object_get(flat, "minimum") && !json_object_get(flat, "exclusiveMinimum") && !json_object_get(flat, "maximum") &&
        !json_object_get(flat, "exclusiveMaximum"))
        return fractions ? SCHEMA_NUMBER : SCHEMA_INTEGER;
    const struct bound low = read_bound(c, flat, "minimum", "exclusiveMinimum", 1, fractions);
    struct bound high = read_bound(c, flat, "maximum", "exclusiveMaximum", -1, fractions);
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
