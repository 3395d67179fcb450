/* Integers that are multiples of a number, between bounds: digit by digit, with the remainder of the digits so far. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/parts.h"

enum { MAX_MULTIPLE = 200 };

struct multiples {
    struct schema_compiler *c;
    int of, n_zeros;                                /* multiples of `of`, with so many zeros behind them */
    int rules[SCHEMA_MAX_DIGITS + 1][MAX_MULTIPLE]; /* of n digits behind a remainder; 0: not asked for; SCHEMA_NEVER */
    char low[24], high[24];                         /* digits of the bounds, as many */
};

static int compile_digits(struct multiples *m, int n, int remainder);

/* The same, for the first time. */
static int make_digits(struct multiples *m, int n, int remainder)
{
    int rests[10], n_possible = n == 0 && remainder == 0;
    schema_step(m->c, 10);
    for (int d = 0; d < 10 && n > 0; d++)
        n_possible += (rests[d] = compile_digits(m, n - 1, (10 * remainder + d) % m->of)) != SCHEMA_NEVER;
    if (n_possible == 0)
        return SCHEMA_NEVER;
    struct schema_text *text = schema_begin(m->c);
    for (int d = 0, k = 0; d < 10 && n > 0; d++)
        if (rests[d] != SCHEMA_NEVER) {
            schema_put(m->c, text, "%s \"%d\"", k++ ? " |" : "", d);
            schema_put_rule(m->c, text, rests[d]);
        }
    if (n == 0) {
        schema_put(m->c, text, " \"");
        for (int i = 0; i < m->n_zeros; i++)
            schema_put(m->c, text, "0");
        schema_put(m->c, text, "\"");
    }
    return schema_end(m->c, text);
}

/* The rule of n more digits behind digits of this remainder. */
static int compile_digits(struct multiples *m, int n, int remainder)
{
    const int known = m->rules[n][remainder];
    return known ? known : (m->rules[n][remainder] = make_digits(m, n, remainder));
}

/* The rule of the digits from `at` on, n in all, where those before are the bound's; SCHEMA_NEVER: none. */
static int compile_between(struct multiples *m, int at, int n, int remainder, bool is_low, bool is_high)
{
    if (at == n || !(is_low || is_high))
        return compile_digits(m, n - at, remainder);
    const int first = is_low ? m->low[at] - '0' : 0, last = is_high ? m->high[at] - '0' : 9;
    int rests[10], n_possible = 0;
    for (int d = first; d <= last; d++)
        n_possible += (rests[d] = compile_between(m, at + 1, n, (10 * remainder + d) % m->of, is_low && d == first,
                                                  is_high && d == last)) != SCHEMA_NEVER;
    if (n_possible == 0)
        return SCHEMA_NEVER;
    struct schema_text *text = schema_begin(m->c);
    for (int d = first, k = 0; d <= last; d++)
        if (rests[d] != SCHEMA_NEVER) {
            schema_put(m->c, text, "%s \"%d\"", k++ ? " |" : "", d);
            schema_put_rule(m->c, text, rests[d]);
        }
    return schema_end(m->c, text);
}

/* Alternatives, each begun with *bar: the multiples from low to high, both >= 0, behind a sign or "". Zero has no sign. */
static void put_multiples(struct multiples *m, struct schema_text *text, const char **bar, const char *sign, int64_t low,
                          int64_t high, int64_t unit)
{
    if (low == 0 && high >= 0 && !*sign) {
        schema_put(m->c, text, "%s \"0\"", *bar);
        *bar = " |";
    }
    low = low / unit + (low % unit > 0); /* of the digits before the zeros */
    high /= unit;
    low = low < 1 ? 1 : low;
    for (int n = 1; n <= SCHEMA_MAX_DIGITS; n++) {
        int64_t least = 1, most;
        for (int i = 1; i < n; i++)
            least *= 10;
        most = 10 * (least - 1) + 9;
        snprintf(m->low, sizeof m->low, "%lld", (long long)(least > low ? least : low));
        snprintf(m->high, sizeof m->high, "%lld", (long long)(most < high ? most : high));
        if (most < low || least > high || strlen(m->low) != strlen(m->high) || strcmp(m->low, m->high) > 0)
            continue;
        const int rule = compile_between(m, 0, n, 0, true, true);
        if (rule == SCHEMA_NEVER)
            continue;
        schema_put(m->c, text, "%s%s", *bar, sign);
        schema_put_rule(m->c, text, rule);
        *bar = " |";
    }
}

int schema_compile_multiple(struct schema_compiler *c, int64_t of, int64_t low, int64_t high)
{
    struct multiples *m;
    struct schema_text *held, *text;
    const char *bar = "";
    int64_t unit = 1;
    int n_zeros = 0;
    for (; of % 10 == 0 && of > 0; of /= 10, unit *= 10)
        n_zeros++;
    if (of < 1 || of > MAX_MULTIPLE || n_zeros > SCHEMA_MAX_DIGITS - 3)
        return SCHEMA_MANY;
    held = schema_begin(c); /* freed also where what follows fails */
    if (!(held->bytes = calloc(1, sizeof *m)))
        schema_no_memory(c);
    m = (struct multiples *)(void *)held->bytes;
    m->c = c;
    m->of = (int)of;
    m->n_zeros = n_zeros;
    text = schema_begin(c);
    if (high >= 0)
        put_multiples(m, text, &bar, "", low > 0 ? low : 0, high, unit);
    if (low < 0)
        put_multiples(m, text, &bar, " \"-\"", high < 0 ? -high : 1, -low, unit);
    if (*bar) {
        const int rule = schema_end(c, text);
        schema_drop(c);
        return rule;
    }
    schema_drop(c);
    schema_drop(c);
    return SCHEMA_NEVER;
}
