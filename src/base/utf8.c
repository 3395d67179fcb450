/* UTF-8: decoding for the tokenizer, and reassembling whole characters from the bytes of generated tokens, which may end
 * within a character. */
#include "base/utf8.h"

#include <string.h>

/* Number of bytes of a character with this first byte (0: invalid), and the allowed range of its second byte. The range
 * excludes overlong forms, surrogates and values above U+10FFFF. */
static int sequence(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    if (first == 0xE0)
        *low = 0xA0;
    else if (first == 0xED)
        *high = 0x9F;
    else if (first == 0xF0)
        *low = 0x90;
    else if (first == 0xF4)
        *high = 0x8F;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Length of the character at bytes[0]; 0 if it is invalid; -1 if it may become valid with more bytes. */
static int examine(const unsigned char *bytes, size_t n)
{
    unsigned char low, high;
    int length = sequence(bytes[0], &low, &high);
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n)
            return -1;
        if (bytes[i] < low || bytes[i] > high)
            return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

int butler_utf8_decode(const char *bytes, size_t n, uint32_t *codepoint)
{
    const unsigned char *at = (const unsigned char *)bytes;
    if (n == 0)
        return 0;
    int length = examine(at, n);
    if (length <= 0)
        return 0;
    if (codepoint) {
        uint32_t value = length == 1 ? at[0] : at[0] & (0x7Fu >> length);
        for (int i = 1; i < length; i++)
            value = value << 6 | (at[i] & 0x3Fu);
        *codepoint = value;
    }
    return length;
}

size_t butler_utf8_encode(uint32_t codepoint, char out[4])
{
    if (codepoint < 0x80) {
        out[0] = (char)codepoint;
        return 1;
    }
    const int n = codepoint < 0x800 ? 2 : codepoint < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, codepoint >>= 6)
        out[i] = (char)(0x80 | (codepoint & 0x3F));
    out[0] = (char)((0xF00 >> n & 0xFF) | codepoint);
    return (size_t)n;
}

size_t butler_utf8_push(struct butler_utf8 *stream, const char *bytes, size_t n_bytes, char *out, size_t max_out)
{
    static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};
    if (!stream || (!out && max_out > 0))
        return 0;
    size_t n_out = 0, taken = 0;
    bool flush = !bytes, full = false;
    unsigned char window[4];
    size_t n = stream->n_pending > 0 ? (size_t)stream->n_pending : 0;
    n = n > sizeof window ? sizeof window : n;
    memcpy(window, stream->pending, n);
    if (flush)
        n_bytes = 0;
    for (;;) {
        while (n < sizeof window && taken < n_bytes)
            window[n++] = (unsigned char)bytes[taken++];
        if (n == 0)
            break;
        int length = examine(window, n);
        if (length < 0 && !flush)
            break;
        size_t used = length > 0 ? (size_t)length : 1;
        const void *from = length > 0 ? (const void *)window : replacement;
        size_t n_from = length > 0 ? used : sizeof replacement;
        /* Once something does not fit, nothing more is written: text with a gap would look complete. */
        full = full || n_from > max_out - n_out;
        if (!full) {
            memcpy(out + n_out, from, n_from);
            n_out += n_from;
        }
        n -= used;
        memmove(window, window + used, n);
    }
    memcpy(stream->pending, window, n);
    stream->n_pending = (int)n;
    return n_out;
}
