/* Decodes characters from bytes that may not be valid UTF-8. The tokenizer uses it; generated text passes through
 * butler_utf8_push (butler.h). */
#ifndef BUTLER_UTF8_H
#define BUTLER_UTF8_H

#include "butler.h"

/* Length (1 to 4) of the character at bytes[0], and *codepoint if that is not NULL. 0: bytes[n] does not begin with a valid
 * character; overlong forms, surrogates and values above U+10FFFF are invalid. */
int butler_utf8_decode(const char *bytes, size_t n, uint32_t *codepoint);

#endif
