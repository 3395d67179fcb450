/* Decodes characters from bytes that may not be valid UTF-8, and encodes them. The tokenizer uses it; generated text passes through
 * butler_utf8_push (butler.h). */
#ifndef BUTLER_UTF8_H
#define BUTLER_UTF8_H

#include "butler.h"

/* Length (1 to 4) of the character at bytes[0], and *codepoint if that is not NULL. 0: bytes[n] does not begin with a valid
 * character; overlong forms, surrogates and values above U+10FFFF are invalid. */
int butler_utf8_decode(const char *bytes, size_t n, uint32_t *codepoint);

/* Writes the character; returns its length, 1 to 4. codepoint: at most U+10FFFF. */
size_t butler_utf8_encode(uint32_t codepoint, char out[4]);

#endif
