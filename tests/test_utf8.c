/* UTF-8, decoding and streaming: the decoder against a table and each length, the stream against each way of splitting it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

#define R "\xEF\xBF\xBD"

static const struct {
    const char *in, *out;
} cases[] = {
    {"", ""},
    {"plain", "plain"},
    {"\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF",
     "\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"},
    {"\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80"},
    {"a\u00e9\u20ac\U0001F680z", "a\u00e9\u20ac\U0001F680z"},
    /* overlong forms */
    {"\xC0\x80", R R},
    {"\xC1\xBF", R R},
    {"\xE0\x9F\xBF", R R R},
    {"\xF0\x8F\xBF\xBF", R R R R},
    /* surrogates */
    {"\xED\xA0\x80", R R R},
    {"\xED\xBF\xBF", R R R},
    /* above U+10FFFF */
    {"\xF4\x90\x80\x80", R R R R},
    {"\xF5\x80\x80\x80", R R R R},
    {"\xFE\xFF", R R},
    /* bytes out of place, and truncated characters */
    {"\x80", R},
    {"a\xBF"
     "b",
     "a" R "b"},
    {"\xC3", R},
    {"\xC3(", R "("},
    {"\xE2\x82", R R},
    {"\xE2\x82x", R R "x"},
    {"\xF0\x9F\x9A", R R R},
    {"\xF0\x9F\x9A\xF0\x9F\x9A\x80", R R R "\U0001F680"},
    {"\xE2\xC3\xA9", R "\u00e9"},
};

/* in[n] in pieces whose ends are the bits of `cuts`, flushed. */
static size_t run(const char *in, size_t n, unsigned cuts, char *out, size_t max_out)
{
    struct butler_utf8 stream = {0};
    size_t n_out = 0, from = 0;
    for (size_t i = 1; i <= n; i++)
        if (i == n || cuts >> (i - 1) & 1) {
            n_out += butler_utf8_push(&stream, in + from, i - from, out + n_out, max_out - n_out);
            assert_in_range(stream.n_pending, 0, 3);
            from = i;
        }
    n_out += butler_utf8_push(&stream, NULL, 0, out + n_out, max_out - n_out);
    assert_int_equal(stream.n_pending, 0);
    return n_out;
}

static void every_split_says_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].in), bits = n > 1 ? (n > 15 ? 15 : n) - 1 : 0;
        for (unsigned cuts = 0; cuts < 1u << bits; cuts++) {
            /* Also shifted, so that in long cases each boundary is cut. */
            for (size_t shift = 0; shift + bits < (n ? n : 1); shift += bits ? bits : 1) {
                char out[128] = {0};
                assert_int_equal(run(cases[i].in, n, cuts << shift, out, sizeof out), strlen(cases[i].out));
                assert_string_equal(out, cases[i].out);
            }
        }
    }
}

static void whole_characters_come_out_at_once(void **state)
{
    (void)state;
    struct butler_utf8 stream = {0};
    char out[16];
    assert_int_equal(butler_utf8_push(&stream, "\xF0\x9F", 2, out, sizeof out), 0);
    assert_int_equal(butler_utf8_push(&stream, "", 0, out, sizeof out), 0);
    assert_int_equal(butler_utf8_push(&stream, "\x9A", 1, out, sizeof out), 0);
    assert_int_equal(stream.n_pending, 3);
    assert_int_equal(butler_utf8_push(&stream, "\x80z", 2, out, sizeof out), 5);
    assert_memory_equal(out, "\U0001F680z", 5);
}

/* A token cut from text needs at most 16 bytes more than it has, whatever is pending; arbitrary bytes need three times three
 * more. */
static void enough_room(void **state)
{
    (void)state;
    static const char text[] = "a\u00e9\u20ac\U0001F680\U0001F680\u20ac\u00e9z";
    static const struct butler_utf8 pending[] = {{.n_pending = 0}, {{0xC3}, 1},       {{0xE2, 0x82}, 2},
                                                 {{0xF0}, 1},      {{0xF0, 0x9F}, 2}, {{0xF0, 0x9F, 0x9A}, 3}};
    for (size_t p = 0; p < sizeof pending / sizeof *pending; p++)
        for (size_t from = 0; from < sizeof text - 1; from++)
            for (size_t n = 1; from + n < sizeof text; n++) {
                char out[128], exact[128];
                struct butler_utf8 ample = pending[p], tight = pending[p];
                size_t n_out = butler_utf8_push(&ample, text + from, n, out, sizeof out);
                assert_int_equal(butler_utf8_push(&tight, text + from, n, exact, n + 16), n_out);
                assert_memory_equal(exact, out, n_out);
            }
    char out[15];
    struct butler_utf8 worst = {.pending = {0xF0, 0x9F, 0x9A}, .n_pending = 3};
    assert_int_equal(butler_utf8_push(&worst, "\xFF\xFF", 2, out, 15), 15);
}

/* Nothing is written past the end, no partial character, and nothing more after the first character that does not fit. */
static void too_little_room(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 12; n++) {
        char *exact = malloc(n ? n : 1);
        struct butler_utf8 stream = {0};
        assert_int_equal(butler_utf8_push(&stream, "\U0001F680\U0001F680\U0001F680", 12, exact, n), n / 4 * 4);
        free(exact);
    }
    char out[3];
    assert_int_equal(butler_utf8_push(&(struct butler_utf8){0},
                                      "a\xFF"
                                      "b",
                                      3, out, 3),
                     1);
}

/* All one-, two- and three-byte strings, and four-byte ones at the limits, against the definition of UTF-8. */
static uint32_t defined(const unsigned char *s, size_t n, int *length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *length = s[0] < 0x80 ? 1 : (s[0] & 0xE0) == 0xC0 ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : (s[0] & 0xF8) == 0xF0 ? 4 : 0;
    uint32_t value = *length == 1 ? s[0] : *length ? s[0] & (0xFFu >> (*length + 1)) : 0;
    for (int i = 1; i < *length; i++) {
        if ((size_t)i >= n || (s[i] & 0xC0) != 0x80) {
            *length = 0;
            return 0;
        }
        value = value << 6 | (s[i] & 0x3F);
    }
    if (value < least[*length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        *length = 0;
    return value;
}

static void decode_is_the_definition(void **state)
{
    (void)state;
    static const unsigned char edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    enum { N_EDGES = sizeof edges };
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            for (unsigned c = 0; c < N_EDGES * N_EDGES; c++) {
                const unsigned char s[4] = {(unsigned char)a, (unsigned char)b, edges[c / N_EDGES], edges[c % N_EDGES]};
                for (size_t n = 1; n <= 4; n++) {
                    uint32_t value = 0xFFFFFFFF;
                    int length, got = butler_utf8_decode((const char *)s, n, &value);
                    uint32_t expected = defined(s, n, &length);
                    if (got != length || (length && value != expected))
                        fail_msg("%02x %02x %02x %02x of %zu: length %d, not %d", s[0], s[1], s[2], s[3], n, got, length);
                }
            }
    assert_int_equal(butler_utf8_decode("a", 0, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_says_the_same),
        cmocka_unit_test(whole_characters_come_out_at_once),
        cmocka_unit_test(enough_room),
        cmocka_unit_test(too_little_room),
        cmocka_unit_test(decode_is_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
