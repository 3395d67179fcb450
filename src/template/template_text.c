/* Text of the template interpreter: bytes with a mark for each, which says whether the template or a message wrote it. */
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <wctype.h>

#include "base/utf8.h"
#include "template/template_parts.h"

/* ------------------------------------------------------------------------------------------------ buffers */

static void reserve(struct template_run *run, struct template_buffer *buffer, size_t n)
{
    if (n <= buffer->capacity - buffer->n)
        return;
    if (n > run->max_allocated)
        butler_template_fail(run, "the text grows over the limit of memory, %zu bytes", run->max_allocated);
    const size_t capacity = 2 * buffer->n + n + 32;
    char *bytes = butler_template_alloc(run, 2 * capacity), *marks = bytes + capacity;
    if (buffer->n) {
        memcpy(bytes, buffer->bytes, buffer->n);
        memcpy(marks, buffer->marks, buffer->n);
    }
    *buffer = (struct template_buffer){bytes, marks, buffer->n, capacity};
}

void butler_template_append(struct template_run *run, struct template_buffer *buffer, struct template_text text)
{
    if (text.n == 0)
        return;
    butler_template_step(run, text.n / TEMPLATE_STEP_BYTES);
    reserve(run, buffer, text.n);
    memcpy(buffer->bytes + buffer->n, text.bytes, text.n);
    memcpy(buffer->marks + buffer->n, text.marks, text.n);
    buffer->n += text.n;
}

void butler_template_append_made(struct template_run *run, struct template_buffer *buffer, const char *bytes, size_t n)
{
    if (n == 0)
        return;
    reserve(run, buffer, n);
    memcpy(buffer->bytes + buffer->n, bytes, n);
    memset(buffer->marks + buffer->n, 0, n);
    buffer->n += n;
}

struct template_text butler_template_copy(struct template_run *run, const char *bytes, size_t n, bool is_template)
{
    struct template_buffer buffer = {0};
    butler_template_append_made(run, &buffer, bytes, n);
    if (n)
        memset(buffer.marks, is_template, n);
    return template_taken(&buffer);
}

struct template_text butler_template_literal(struct template_run *run, const char *string)
{
    return butler_template_copy(run, string, strlen(string), true);
}

/* --------------------------------------------------------------------------------------------- questions */

bool butler_template_same(struct template_text a, struct template_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.bytes, b.bytes, a.n) == 0);
}

bool butler_template_is(struct template_text text, const char *string)
{
    return text.n == strlen(string) && memcmp(text.bytes, string, text.n) == 0;
}

size_t butler_template_find(struct template_run *run, struct template_text text, struct template_text what, size_t from)
{
    if (from > text.n || what.n > text.n - from)
        return SIZE_MAX;
    if (what.n == 0)
        return from;
    const char *found = memmem(text.bytes + from, text.n - from, what.bytes, what.n);
    const size_t at = found ? (size_t)(found - text.bytes) : SIZE_MAX;
    butler_template_step(run, (found ? at - from : text.n - from) / TEMPLATE_STEP_BYTES);
    return at;
}

size_t butler_template_char(const char *bytes, size_t n)
{
    const int length = butler_utf8_decode(bytes, n, NULL);
    return length > 0 ? (size_t)length : 1;
}

size_t butler_template_n_chars(struct template_run *run, struct template_text text)
{
    size_t n = 0;
    butler_template_step(run, text.n / TEMPLATE_STEP_BYTES);
    for (size_t i = 0; i < text.n; i += butler_template_char(text.bytes + i, text.n - i))
        n++;
    return n;
}

static bool is_space(uint32_t c)
{
    return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' ') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t butler_template_space(struct template_text text, bool at_end)
{
    uint32_t c;
    if (text.n == 0)
        return 0;
    size_t from = at_end ? text.n - 1 : 0;
    while (at_end && from > 0 && text.n - from < 4 && ((unsigned char)text.bytes[from] & 0xC0) == 0x80)
        from--;
    const int n = butler_utf8_decode(text.bytes + from, text.n - from, &c);
    return n > 0 && (!at_end || from + (size_t)n == text.n) && is_space(c) ? (size_t)n : 0;
}

size_t butler_template_line(struct template_text text, size_t *n_end)
{
    size_t n;
    for (size_t i = 0; i < text.n; i += n) {
        uint32_t c = 0;
        n = butler_template_char(text.bytes + i, text.n - i);
        butler_utf8_decode(text.bytes + i, n, &c);
        if (!((c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029))
            continue;
        *n_end = n + (c == '\r' && i + 1 < text.n && text.bytes[i + 1] == '\n');
        return i;
    }
    *n_end = 0;
    return text.n;
}

/* --------------------------------------------------------------------------------------------- operations */

/* Bytes of the character at that end of the text if the set has it; else 0. */
static size_t at_end_in(struct template_run *run, struct template_text text, struct template_text set, bool at_end)
{
    for (size_t i = 0, n; i < set.n; i += n) {
        n = butler_template_char(set.bytes + i, set.n - i);
        butler_template_step(run, 1);
        if (n <= text.n && memcmp(set.bytes + i, text.bytes + (at_end ? text.n - n : 0), n) == 0)
            return n;
    }
    return 0;
}

struct template_text butler_template_strip(struct template_run *run, struct template_text text, const struct template_text *set,
                                           bool left, bool right)
{
    size_t n;
    while (left && (n = set ? at_end_in(run, text, *set, false) : butler_template_space(text, false)) > 0)
        text = template_part(text, n, text.n - n);
    while (right && (n = set ? at_end_in(run, text, *set, true) : butler_template_space(text, true)) > 0)
        text.n -= n;
    return text;
}

struct template_text butler_template_replace(struct template_run *run, struct template_text text, struct template_text from,
                                             struct template_text to, int64_t max)
{
    struct template_buffer out = {0};
    size_t at = 0;
    for (int64_t i = 0; max < 0 || i < max; i++) {
        size_t found = butler_template_find(run, text, from, at);
        if (found == SIZE_MAX)
            break;
        butler_template_step(run, 1);
        butler_template_append(run, &out, template_part(text, at, found - at));
        butler_template_append(run, &out, to);
        at = found + from.n;
        if (from.n > 0)
            continue;
        if (at == text.n) /* an empty text is found between all characters and at both ends */
            break;
        size_t n = butler_template_char(text.bytes + at, text.n - at);
        butler_template_append(run, &out, template_part(text, at, n));
        at += n;
    }
    butler_template_append(run, &out, template_part(text, at, text.n - at));
    return template_taken(&out);
}

static locale_t unicode_locale;

static void make_unicode(void)
{
    unicode_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

/* Of other scripts: the C library counts them as letters, Python does not. */
static bool is_digit(uint32_t code)
{
    return (code >= 0x660 && code <= 0x669) || (code >= 0x6F0 && code <= 0x6F9) || (code >= 0x966 && code <= 0x96F) ||
           (code >= 0xFF10 && code <= 0xFF19);
}

/* Letters and their cases beyond ASCII are those of the C library, in a locale of UTF-8 that every system with glibc or musl has;
 * without it they are no letters. */
static locale_t unicode(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_unicode);
    return unicode_locale;
}

static uint32_t code_of(struct template_text character)
{
    uint32_t code = 0;
    return character.n > 0 && butler_utf8_decode(character.bytes, character.n, &code) > 0 ? code : 0;
}

bool butler_template_is_letter(struct template_text character)
{
    const uint32_t code = code_of(character);
    if (code < 0x80)
        return (code | 32) >= 'a' && (code | 32) <= 'z';
    return unicode() && iswalpha_l((wint_t)code, unicode()) && !is_digit(code);
}

/* The character in the other case, or itself. */
static uint32_t to_case(uint32_t code, bool upper)
{
    if (code < 0x80)
        return upper ? (uint32_t)(code >= 'a' && code <= 'z' ? code - 32 : code) : code >= 'A' && code <= 'Z' ? code + 32 : code;
    if (!unicode())
        return code;
    return (uint32_t)(upper ? towupper_l((wint_t)code, unicode()) : towlower_l((wint_t)code, unicode()));
}

bool butler_template_has_case(struct template_run *run, struct template_text text, bool upper)
{
    bool any = false;
    butler_template_step(run, text.n / TEMPLATE_STEP_BYTES);
    for (size_t i = 0, n; i < text.n; i += n) {
        n = butler_template_char(text.bytes + i, text.n - i);
        const uint32_t code = code_of(template_part(text, i, n));
        if (to_case(code, upper) != code)
            return false;
        any = any || to_case(code, !upper) != code;
    }
    return any;
}

/* Whether a letter after this character begins a word. */
static bool begins_word(struct template_text before, enum template_case which)
{
    if (which == CASE_TITLE_METHOD)
        return !butler_template_is_letter(before);
    return which == CASE_TITLE_FILTER && before.n == 1 && strchr("- \t\n\r\f\v({[<", before.bytes[0]) != NULL;
}

struct template_text butler_template_to_case(struct template_run *run, struct template_text text, enum template_case which)
{
    struct template_buffer out = {0};
    struct template_text before = {0};
    for (size_t i = 0, n; i < text.n; i += n) {
        n = butler_template_char(text.bytes + i, text.n - i);
        const struct template_text character = template_part(text, i, n);
        const bool upper = which == CASE_UPPER || (which != CASE_LOWER && (i == 0 || begins_word(before, which)));
        const uint32_t code = code_of(character), changed = to_case(code, upper);
        char bytes[4], marks[4];
        const size_t n_bytes = changed == code ? 0 : (size_t)butler_utf8_encode(changed, bytes);
        memset(marks, *character.marks, sizeof marks);
        butler_template_append(run, &out, n_bytes > 0 ? (struct template_text){bytes, marks, n_bytes} : character);
        before = character;
    }
    return template_taken(&out);
}
