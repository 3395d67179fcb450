/* Documents: what a file is by its first bytes, and texts in other encodings than UTF-8. */
#include <errno.h>
#include <iconv.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "base/util.h"
#include "cmd/document.h"

/* ---------------------------------------------------------------------------------------------------- result */

bool document_fail(struct document_result *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*result->error)
        vsnprintf(result->error, sizeof result->error, format, args);
    va_end(args);
    return false;
}

bool document_put(struct document_result *result, const char *bytes, size_t n)
{
    if (n > DOCUMENT_MAX_TEXT - result->n)
        return document_fail(result, "has more than %d MB of text", DOCUMENT_MAX_TEXT >> 20);
    if (!butler_grow(&result->text, result->n + n, &result->capacity, 1))
        return document_fail(result, "needs more memory than there is");
    if (n)
        memcpy(result->text + result->n, bytes, n);
    result->n += n;
    return true;
}

bool document_put_string(struct document_result *result, const char *string)
{
    return document_put(result, string, strlen(string));
}

bool document_end_line(struct document_result *result)
{
    while (result->n && strchr(" \t", result->text[result->n - 1]))
        result->n--;
    return result->n == 0 || result->text[result->n - 1] == '\n' || document_put(result, "\n", 1);
}

bool document_is_blank(const struct document_result *result)
{
    for (size_t i = 0; i < result->n; i++)
        if (!strchr(" \t\n\r\f\v", result->text[i]))
            return false;
    return true;
}

void document_result_free(struct document_result *result)
{
    free(result->text);
    *result = (struct document_result){0};
}

/* ------------------------------------------------------------------------------------------------------ kind */

/* Formats without text, or whose text other programs make. The first N_TEXTS are written in letters. */
enum { N_TEXTS = 2 };
static const struct signature {
    const char *bytes;
    size_t n, at;
    const char *name, *package;
} signatures[] = {
    {"{\\rtf", 5, 0, "RTF", "unrtf"},
    {"%!PS", 4, 0, "PostScript", "ghostscript"},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 8, 0, "an old or encrypted Microsoft Office file", "catdoc"},
    {"AT&TFORM", 8, 0, "DjVu", "djvulibre-bin"},
    {"BOOKMOBI", 8, 60, "a Mobipocket or Kindle book", "calibre"},
    {"\x89PNG\r\n\x1a\n", 8, 0, "a PNG picture", "tesseract-ocr"},
    {"\xff\xd8\xff", 3, 0, "a JPEG picture", "tesseract-ocr"},
    {"GIF87a", 6, 0, "a GIF picture", "tesseract-ocr"},
    {"GIF89a", 6, 0, "a GIF picture", "tesseract-ocr"},
    {"II*\0", 4, 0, "a TIFF picture", "tesseract-ocr"},
    {"MM\0*", 4, 0, "a TIFF picture", "tesseract-ocr"},
    {"WEBP", 4, 8, "a WebP picture", "webp"},
    {"\x1f\x8b", 2, 0, "compressed by gzip", "gzip"},
    {"BZh", 3, 0, "compressed by bzip2", "bzip2"},
    {"\xfd"
     "7zXZ\0",
     6, 0, "compressed by xz", "xz-utils"},
    {"\x28\xb5\x2f\xfd", 4, 0, "compressed by zstd", "zstd"},
    {"7z\xbc\xaf\x27\x1c", 6, 0, "a 7z archive", "7zip"},
    {"Rar!\x1a\x07", 6, 0, "a RAR archive", "unar"},
    {"ustar", 5, 257, "a tar archive", "tar"},
    {"\x7f"
     "ELF",
     4, 0, "a program", NULL},
    {"GGUF", 4, 0, "a GGUF file, a model and not a document", NULL},
    {"SQLite format 3", 16, 0, "a SQLite database", "sqlite3"},
    {"ID3", 3, 0, "an MP3 sound", NULL},
    {"OggS", 4, 0, "an Ogg sound or film", NULL},
    {"fLaC", 4, 0, "a FLAC sound", NULL},
    {"RIFF", 4, 0, "a RIFF sound, film or picture", NULL},
    {"ftyp", 4, 4, "an MP4 film", NULL},
    {"\x1a\x45\xdf\xa3", 4, 0, "a Matroska film", NULL},
};

static const struct signature *signature_of(const unsigned char *bytes, size_t n)
{
    for (int i = 0; i < BUTLER_COUNT(signatures); i++)
        if (n >= signatures[i].at + signatures[i].n && memcmp(bytes + signatures[i].at, signatures[i].bytes, signatures[i].n) == 0)
            return &signatures[i];
    return NULL;
}

const char *document_other_name(const unsigned char *bytes, size_t n, const char **package)
{
    const struct signature *signature = signature_of(bytes, n);
    *package = signature ? signature->package : NULL;
    return signature ? signature->name : "no text";
}

static bool begins_with(const unsigned char *bytes, size_t n, const char *word)
{
    return n >= strlen(word) && strncasecmp((const char *)bytes, word, strlen(word)) == 0;
}

/* Whether a page says what it is: behind blanks, comments and an XML declaration. */
static bool is_html(const unsigned char *bytes, size_t n)
{
    for (size_t at = begins_with(bytes, n, "\xef\xbb\xbf") ? 3 : 0; at < n;) {
        const unsigned char *rest = bytes + at;
        const char *end = begins_with(rest, n - at, "<!--") ? "-->" : begins_with(rest, n - at, "<?xml") ? "?>" : NULL;
        if (strchr(" \t\r\n\f", *rest) && *rest) {
            at++;
        } else if (end) {
            const unsigned char *found = memmem(rest, n - at, end, strlen(end));
            if (!found)
                return false;
            at = (size_t)(found - bytes) + strlen(end);
        } else
            return begins_with(rest, n - at, "<!doctype html") || begins_with(rest, n - at, "<html");
    }
    return false;
}

/* Whether a beginning is plain text: a log that begins with the letters of a signature is no file of that kind. */
static bool is_plain(const unsigned char *bytes, size_t n)
{
    enum { SAMPLE = 512 };
    for (size_t i = 0; i < BUTLER_MIN(n, SAMPLE); i++)
        if (bytes[i] >= 0x7f || (bytes[i] < ' ' && !memchr("\t\n\f\r", bytes[i], 4))) /* zero is none of them */
            return false;
    return n > 0;
}

/* Whether PDF's mark begins a line, as it does behind what some programs put before it. */
static bool has_pdf_mark(const unsigned char *bytes, size_t n)
{
    for (const unsigned char *at = bytes; (at = memmem(at, n - (size_t)(at - bytes), "%PDF-", 5)); at++)
        if (at == bytes || at[-1] == '\n' || at[-1] == '\r' || !is_plain(bytes, (size_t)(at - bytes)))
            return true;
    return false;
}

enum document_kind document_kind_of(const char *name, const unsigned char *bytes, size_t n)
{
    enum { PDF_HEADER = 1024 }; /* readers of PDF look for its mark so far */
    const char *dot = strrchr(name, '.');
    const bool named_html =
        dot && (strcasecmp(dot, ".html") == 0 || strcasecmp(dot, ".htm") == 0 || strcasecmp(dot, ".xhtml") == 0);
    if (has_pdf_mark(bytes, BUTLER_MIN(n, PDF_HEADER)))
        return DOCUMENT_PDF;
    if (n >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0))
        return DOCUMENT_ARCHIVE;
    const struct signature *signature = signature_of(bytes, n);
    if (signature && (signature - signatures < N_TEXTS || !is_plain(bytes, n)))
        return DOCUMENT_OTHER;
    return is_html(bytes, n) || (named_html && n > 0) ? DOCUMENT_HTML : DOCUMENT_TEXT;
}

/* -------------------------------------------------------------------------------------------------- encodings */

/* What a text is written in, by its mark or by where it has zero bytes: in UTF-16 every second of Latin letters, in UTF-32 three of
 * four. *skip: bytes of the mark. NULL: it is not one of these. */
static const char *wide_encoding(const unsigned char *bytes, size_t n, size_t *skip)
{
    enum { SAMPLE = 4096, LEAST = 16 };
    static const struct {
        const char *bytes;
        size_t n;
        const char *name;
    } marks[] = {
        {"\xff\xfe\0\0", 4, "UTF-32LE"}, {"\0\0\xfe\xff", 4, "UTF-32BE"}, {"\xff\xfe", 2, "UTF-16LE"}, {"\xfe\xff", 2, "UTF-16BE"}};
    size_t zeros[4] = {0}, m = BUTLER_MIN(n, SAMPLE) / 4 * 4;
    for (int i = 0; i < BUTLER_COUNT(marks); i++)
        if (n >= marks[i].n && memcmp(bytes, marks[i].bytes, marks[i].n) == 0) {
            *skip = marks[i].n;
            return marks[i].name;
        }
    *skip = 0;
    for (size_t i = 0; i < m; i++)
        zeros[i % 4] += bytes[i] == 0;
    const size_t most = m / 4 * 9 / 10, few = m / 4 / 10;
    if (m < LEAST || n % 2)
        return NULL;
    if (n % 4 == 0 && zeros[1] > most && zeros[2] > most && zeros[3] > most && zeros[0] <= few)
        return "UTF-32LE";
    if (n % 4 == 0 && zeros[0] > most && zeros[1] > most && zeros[2] > most && zeros[3] <= few)
        return "UTF-32BE";
    const size_t half = m / 4 / 2; /* other scripts have zeros only in blanks and stops */
    if (zeros[1] + zeros[3] > half && zeros[0] + zeros[2] <= 2 * few)
        return "UTF-16LE";
    if (zeros[0] + zeros[2] > half && zeros[1] + zeros[3] <= 2 * few)
        return "UTF-16BE";
    return NULL;
}

/* Bytes that the encoding has no character for become U+FFFD where `lenient` is set; otherwise they are an error. */
static bool convert(const char *encoding, const unsigned char *bytes, size_t n, bool lenient, struct document_result *result)
{
    iconv_t converter = iconv_open("UTF-8", encoding);
    char *in = (char *)bytes, out[8192];
    size_t n_in = n;
    bool ok = converter != (iconv_t)-1;
    if (!ok)
        return document_fail(result, "is %s, which the C library cannot convert", encoding);
    while (ok && n_in > 0) {
        char *to = out;
        size_t room = sizeof out;
        const size_t done = iconv(converter, &in, &n_in, &to, &room);
        const int error = done == (size_t)-1 ? errno : 0;
        ok = document_put(result, out, sizeof out - room);
        if (!ok || error == 0 || error == E2BIG)
            continue;
        if (!lenient) {
            ok = document_fail(result, "is %s, but byte %zu is none of its characters%s", encoding, n - n_in,
                               error == EINVAL ? ": the end is missing" : "");
        } else {
            ok = document_put_string(result, "\xef\xbf\xbd");
            in++;
            n_in--;
        }
    }
    iconv_close(converter);
    return ok;
}

/* Bytes of the UTF-8 character at bytes[n]; 0: there is none. */
static size_t character(const unsigned char *bytes, size_t n)
{
    const unsigned char c = bytes[0];
    const size_t length = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (length == 0 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && bytes[1] < 0xa0) || (c == 0xed && bytes[1] > 0x9f) || (c == 0xf0 && bytes[1] < 0x90) ||
        (c == 0xf4 && bytes[1] > 0x8f)) /* too long, a surrogate, beyond Unicode */
        return 0;
    return length;
}

/* UTF-8 with some bytes that are none: they become U+FFFD. */
static bool repair(const unsigned char *bytes, size_t n, struct document_result *result)
{
    for (size_t at = 0; at < n;) {
        const size_t length = character(bytes + at, n - at);
        if (!(length ? document_put(result, (const char *)bytes + at, length) : document_put_string(result, "\xef\xbf\xbd")))
            return false;
        at += length ? length : 1;
    }
    return true;
}

bool document_from_text(const unsigned char *bytes, size_t n, struct document_result *result)
{
    size_t skip, n_wide = 0, n_bad = 0, n_control = 0, first_bad = 0;
    const char *wide = wide_encoding(bytes, n, &skip);
    if (wide) {
        snprintf(result->what, sizeof result->what, "%s", wide);
        if (!convert(wide, bytes + skip, n - skip, false, result))
            return false;
        const char *zero = result->n ? memchr(result->text, 0, result->n) : NULL;
        return zero ? document_fail(result, "seems to be %s, but has characters that are zero: this is no text", wide) : true;
    }
    const unsigned char *zero = n ? memchr(bytes, 0, n) : NULL;
    if (zero)
        return document_fail(result, "byte %zu is zero: this is no text", (size_t)(zero - bytes));
    if (begins_with(bytes, n, "\xef\xbb\xbf")) { /* UTF-8's mark is no part of the text */
        bytes += 3;
        n -= 3;
    }
    for (size_t at = 0; at < n;) {
        const size_t length = character(bytes + at, n - at);
        n_wide += length > 1;
        n_control += bytes[at] < 0x20 && !strchr("\t\n\r\f\b\x1b", bytes[at]);
        if (length == 0 && n_bad++ == 0)
            first_bad = at;
        at += length ? length : 1;
    }
    if (n_bad > 0 && n_control > n / 20)
        return document_fail(result, "is no text: %zu of its %zu bytes are control characters", n_control, n);
    if (n_bad == 0)
        return document_put(result, (const char *)bytes, n);
    if (n_wide > n_bad) {
        snprintf(result->what, sizeof result->what, "UTF-8 with %zu wrong bytes, the first at %zu", n_bad, first_bad);
        return repair(bytes, n, result);
    }
    snprintf(result->what, sizeof result->what, "no UTF-8: read as Latin-1");
    return convert("WINDOWS-1252", bytes, n, true, result);
}
