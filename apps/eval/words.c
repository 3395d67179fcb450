/* Characters, spaces and words by Python's rules, for tasks whose published scorers are Python programs. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "words.h"

int eval_character(const char *bytes, size_t n, uint32_t *codepoint)
{
    const int length = butler_utf8_decode(bytes, n, codepoint);
    if (length > 0)
        return length;
    *codepoint = 0xfffd;
    return 1;
}

int eval_count_characters(const char *text)
{
    uint32_t codepoint;
    int count = 0;
    for (size_t n = strlen(text); n > 0; count++) {
        const int length = eval_character(text, n, &codepoint);
        text += length;
        n -= (size_t)length;
    }
    return count;
}

bool eval_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

struct eval_span eval_strip(struct eval_span text)
{
    size_t first = text.n, end = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t codepoint;
        const size_t length = (size_t)eval_character(text.bytes + i, text.n - i, &codepoint);
        if (!eval_is_space(codepoint)) {
            first = BUTLER_MIN(first, i);
            end = i + length;
        }
        i += length;
    }
    return first < end ? (struct eval_span){text.bytes + first, end - first} : (struct eval_span){text.bytes, 0};
}

/* ------------------------------------------------------------------------------------------------- letters */

char *eval_lower(struct eval_span text, bool capital, struct butler_error *err)
{
    const locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    char *out = unicode ? butler_alloc(3 * text.n + 1, err) : NULL; /* no character becomes longer than that */
    if (!unicode)
        butler_fail(err, BUTLER_ERROR_IO, "the system has no locale C.UTF-8, which is needed to classify letters");
    size_t n_out = 0;
    for (size_t i = 0; out && i < text.n;) {
        uint32_t c;
        i += (size_t)eval_character(text.bytes + i, text.n - i, &c);
        const wint_t changed = capital && n_out == 0 ? towupper_l((wint_t)c, unicode) : towlower_l((wint_t)c, unicode);
        n_out += butler_utf8_encode((uint32_t)changed, out + n_out);
    }
    if (unicode)
        freelocale(unicode);
    return out;
}

bool eval_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    const locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    const bool is = unicode && iswalnum_l((wint_t)c, unicode);
    if (unicode)
        freelocale(unicode);
    return is;
}

/* --------------------------------------------------------------------------------------------------- words */

int eval_words_add(struct eval_words *words, struct eval_span word, struct butler_error *err)
{
    if (!butler_grow(&words->words, (size_t)words->n + 1, &words->capacity, sizeof *words->words))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d words", words->n + 1);
    words->words[words->n++] = word;
    return 0;
}

int eval_split(struct eval_span text, struct eval_words *words, struct butler_error *err)
{
    size_t start = 0;
    for (size_t i = 0; i <= text.n;) {
        uint32_t codepoint = ' ';
        const size_t length = i < text.n ? (size_t)eval_character(text.bytes + i, text.n - i, &codepoint) : 1;
        if (eval_is_space(codepoint)) {
            if (i > start && eval_words_add(words, (struct eval_span){text.bytes + start, i - start}, err) < 0)
                return BUTLER_ERROR_MEMORY;
            start = i + length;
        }
        i += length;
    }
    return 0;
}

void eval_words_free(struct eval_words *words)
{
    free(words->words);
    *words = (struct eval_words){0};
}

int eval_span_compare(struct eval_span a, struct eval_span b)
{
    const int order = memcmp(a.bytes, b.bytes, BUTLER_MIN(a.n, b.n));
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

static int compare_words(const void *a, const void *b)
{
    return eval_span_compare(*(const struct eval_span *)a, *(const struct eval_span *)b);
}

int eval_number_words(const struct eval_words *a, const struct eval_words *b, int *ids_a, int *ids_b, struct butler_error *err)
{
    const size_t n_a = (size_t)a->n, n = n_a + (size_t)b->n;
    struct eval_span *sorted = butler_alloc(n * sizeof *sorted, err);
    size_t n_different = 0;
    if (!sorted)
        return BUTLER_ERROR_MEMORY;
    for (size_t i = 0; i < n; i++)
        sorted[i] = i < n_a ? a->words[i] : b->words[i - n_a];
    qsort(sorted, n, sizeof *sorted, compare_words);
    for (size_t i = 0; i < n; i++)
        if (n_different == 0 || compare_words(&sorted[n_different - 1], &sorted[i]) != 0)
            sorted[n_different++] = sorted[i];
    for (size_t i = 0; i < n; i++) {
        const struct eval_span *word = i < n_a ? &a->words[i] : &b->words[i - n_a];
        const struct eval_span *at = bsearch(word, sorted, n_different, sizeof *sorted, compare_words);
        *(i < n_a ? &ids_a[i] : &ids_b[i - n_a]) = (int)(at - sorted);
    }
    free(sorted);
    return (int)n_different;
}
