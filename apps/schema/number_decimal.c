/* Numbers between bounds that have digits behind the point, digit by digit. */
#include <stdio.h>
#include <string.h>

#include "schema/parts.h"

enum { MAX_FRACTION = 15 }; /* digits: with more, two of them may be one double */

bool schema_read_decimal(struct schema_compiler *c, const json_t *value, struct schema_decimal *out)
{
    const char *text = schema_value_text(c, value);
    *out = (struct schema_decimal){.negative = *text == '-'};
    text += out->negative;
    const size_t n = strspn(text, "0123456789");
    const char *fraction = text[n] == '.' ? text + n + 1 : "";
    out->n_fraction = (int)strspn(fraction, "0123456789");
    if (n == 0 || n > SCHEMA_MAX_DIGITS || out->n_fraction > MAX_FRACTION || strpbrk(text, "eE"))
        return false;
    for (size_t i = 0; i < n; i++)
        out->whole = 10 * out->whole + (text[i] - '0');
    memcpy(out->fraction, fraction, (size_t)out->n_fraction);
    while (out->n_fraction > 0 && out->fraction[out->n_fraction - 1] == '0')
        out->n_fraction--;
    out->negative &= out->whole > 0 || out->n_fraction > 0;
    return true;
}

struct fraction {
    struct schema_compiler *c;
    const struct schema_decimal *low, *high;
    int max; /* digits */
};

/* Whether the digits before `at`, those of the bounds that hold, may be all. */
static bool may_end(const struct fraction *f, int at, bool is_low, bool is_high)
{
    return (!is_low || (at >= f->low->n_fraction && !f->low->exclusive)) &&
           (!is_high || at < f->high->n_fraction || !f->high->exclusive);
}

/* The rule of the digits from `at` on, perhaps none; SCHEMA_NEVER: there are no such. */
static int compile_rest(struct fraction *f, int at, bool is_low, bool is_high)
{
    struct schema_compiler *c = f->c;
    const bool ends = may_end(f, at, is_low, is_high);
    if (at == f->max && !ends)
        return SCHEMA_NEVER;
    const int first = is_low && at < f->low->n_fraction ? f->low->fraction[at] - '0' : 0, last = !is_high ? 9
                                                                                                 : at < f->high->n_fraction
                                                                                                     ? f->high->fraction[at] - '0'
                                                                                                     : 0;
    int rests[10] = {0}, n = 0;
    for (int d = first; d <= last && at < f->max && (is_low || is_high); d++) {
        const bool low = is_low && d == first, high = is_high && d == last;
        rests[d] = low || high ? compile_rest(f, at + 1, low, high) : SCHEMA_MANY;
    }
    struct schema_text *text = schema_begin(c);
    if (!is_low && !is_high)
        schema_put(c, text, " [0-9]{0,%d}", f->max - at);
    for (int d = first; d <= last && at < f->max && (is_low || is_high); d++) {
        if (rests[d] == SCHEMA_NEVER)
            continue;
        schema_put(c, text, "%s \"%d\"", n++ ? " |" : "", d);
        if (rests[d] == SCHEMA_MANY)
            schema_put(c, text, " [0-9]{0,%d}", f->max - at - 1);
        else
            schema_put_rule(c, text, rests[d]);
    }
    if (ends && (is_low || is_high))
        schema_put(c, text, "%s \"\"", n++ ? " |" : "");
    if (n > 0 || (!is_low && !is_high))
        return schema_end(c, text);
    schema_drop(c);
    return SCHEMA_NEVER;
}

/* What may stand behind the whole part, where that is the bound's: nothing, or a point and one digit or more. */
static int compile_fraction(struct fraction *f, bool is_low, bool is_high)
{
    struct schema_compiler *c = f->c;
    const bool ends = may_end(f, 0, is_low, is_high);
    int rests[10], n = 0;
    const int first = is_low && f->low->n_fraction > 0 ? f->low->fraction[0] - '0' : 0, last = !is_high ? 9
                                                                                               : f->high->n_fraction > 0
                                                                                                   ? f->high->fraction[0] - '0'
                                                                                                   : 0;
    for (int d = first; d <= last; d++)
        rests[d] = compile_rest(f, 1, is_low && d == first, is_high && d == last);
    struct schema_text *text = schema_begin(c);
    for (int d = first; d <= last; d++)
        if (rests[d] != SCHEMA_NEVER) {
            schema_put(c, text, "%s \".%d\"", n++ ? " |" : "", d);
            schema_put_rule(c, text, rests[d]);
        }
    if (ends)
        schema_put(c, text, "%s \"\"", n++ ? " |" : "");
    if (n > 0)
        return schema_end(c, text);
    schema_drop(c);
    return SCHEMA_NEVER;
}

static void put_part(struct schema_compiler *c, struct schema_text *text, const char **bar, const char *sign, int64_t from,
                     int64_t to, int rule)
{
    if (from > to || rule == SCHEMA_NEVER)
        return;
    schema_put(c, text, "%s%s", *bar, sign);
    schema_put_range(c, text, from, to);
    schema_put_rule(c, text, rule);
    *bar = " |";
}

/* Digits behind the point where the whole part is that of a bound: a double has 15 in all. */
static int count_digits(const struct schema_decimal *bound, int least)
{
    int n = MAX_FRACTION;
    for (int64_t whole = bound->whole; whole > 0 && n > 1; whole /= 10)
        n--;
    return n < least ? least : n;
}

void schema_put_decimals(struct schema_compiler *c, struct schema_text *text, const char **bar, const char *sign,
                         const struct schema_decimal *low, const struct schema_decimal *high)
{
    const int n_low = count_digits(low, low->n_fraction + 1), n_high = count_digits(high, high->n_fraction);
    struct fraction f = {c, low, high, n_low > n_high ? n_low : n_high};
    if (low->whole > high->whole)
        return;
    if (low->whole == high->whole) {
        put_part(c, text, bar, sign, low->whole, low->whole, compile_fraction(&f, true, true));
        return;
    }
    f.max = n_low;
    put_part(c, text, bar, sign, low->whole, low->whole, compile_fraction(&f, true, false));
    f.max = high->whole < SCHEMA_LARGEST ? n_high : MAX_FRACTION;
    put_part(c, text, bar, sign, low->whole + 1, high->whole - 1, compile_fraction(&f, false, false));
    put_part(c, text, bar, sign, high->whole, high->whole, compile_fraction(&f, false, true));
}
