/* JSON of clients and models -> values. Texts of this program end with a zero byte and are UTF-8, and its integers have 64 bits:
 * what JSON can say beyond that is replaced before it is read, rather than refused, for it comes out of files and other programs
 * that their users did not write. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* The code unit of the escape \uXXXX at bytes; -1: it is none. */
static int read_unit(const char *bytes, const char *end)
{
    int unit = 0;
    if (end - bytes < 6 || bytes[0] != '\\' || bytes[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char *digits = "0123456789abcdef";
        const char lower = (char)(bytes[i] >= 'A' && bytes[i] <= 'F' ? bytes[i] | 0x20 : bytes[i]);
        const char *found = lower ? strchr(digits, lower) : NULL;
        if (!found)
            return -1;
        unit = unit * 16 + (int)(found - digits);
    }
    return unit;
}

/* The string behind the quote at *at: U+0000 and halves of surrogate pairs become U+FFFD, which is as long. Returns its end. */
static char *clean_string(char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++) {
        if (*at != '\\')
            continue;
        const int unit = read_unit(at, end), next = unit >= 0xd800 && unit < 0xdc00 ? read_unit(at + 6, end) : -1;
        if (next >= 0xdc00 && next < 0xe000)
            at += 6;
        else if (unit == 0 || (unit >= 0xd800 && unit < 0xe000))
            memcpy(at + 2, "fffd", 4);
        at += at + 1 < end;
    }
    return at < end ? at + 1 : at;
}

/* Digits that are an integer beyond 64 bits become the same number with an exponent, 15 or more digits exact: as long, and read
 * as a double. Returns the number's end. */
static char *clean_number(char *at, const char *end)
{
    const bool negative = *at == '-';
    char *digits = at + negative, *stop = digits, exponent[24];
    uint64_t value = 0;
    bool large = false;
    for (; stop < end && *stop >= '0' && *stop <= '9'; stop++) {
        const unsigned digit = (unsigned)(*stop - '0');
        large |= value > ((uint64_t)INT64_MAX + negative - digit) / 10;
        value = large ? value : 10 * value + digit;
    }
    const size_t n = (size_t)(stop - digits);
    const bool whole = stop == end || !memchr(".eE", *stop, 3);
    while (!whole && stop < end && memchr("0123456789.eE+-", *stop, 15)) /* digits of a fraction or an exponent are no integer */
        stop++;
    if (!large || *digits == '0' || !whole)
        return stop > at ? stop : at + 1;
    const size_t n_exponent = (size_t)snprintf(exponent, sizeof exponent, "e%zu", n - 1);
    memmove(digits + 2, digits + 1, n - 2);
    digits[1] = '.';
    memcpy(stop - n_exponent, exponent, n_exponent);
    return stop;
}

static void clean(char *bytes, size_t n)
{
    const char *end = bytes + n;
    for (char *at = bytes; at < end;) {
        if (*at == '"')
            at = clean_string(at, end);
        else if (*at == '-' || (*at >= '0' && *at <= '9'))
            at = clean_number(at, end);
        else
            at++;
    }
}

/* Whether there is anything to clean, mostly not: a copy of a large body is saved. */
static bool is_clean(const char *bytes, size_t n)
{
    size_t n_digits = 0;
    for (size_t i = 0; i < n; i++) {
        n_digits = bytes[i] >= '0' && bytes[i] <= '9' ? n_digits + 1 : 0;
        if (n_digits > 18 ||
            (bytes[i] == '\\' && i + 2 < n && bytes[i + 1] == 'u' && (bytes[i + 2] == '0' || (bytes[i + 2] | 0x20) == 'd')))
            return false;
    }
    return true;
}

json_t *serve_load_json(const char *bytes, size_t n, size_t flags, json_error_t *wrong)
{
    if (n == 0 || is_clean(bytes, n))
        return json_loadb(bytes, n, flags, wrong);
    char *copy = serve_alloc(n, 1);
    memcpy(copy, bytes, n);
    clean(copy, n);
    json_t *value = json_loadb(copy, n, flags, wrong);
    free(copy);
    return value;
}

json_t *serve_parse_body(const char *bytes, size_t n, struct serve_error *error)
{
    json_error_t wrong;
    json_t *body = serve_load_json(bytes, n, 0, &wrong);
    if (!body)
        serve_fail(error, 400, "the body is no JSON: line %d, column %d: %s", wrong.line, wrong.column, wrong.text);
    else if (!json_is_object(body))
        serve_fail(error, 400, "the body must be a JSON object");
    return body;
}
