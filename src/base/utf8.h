/* Characters from bytes that may not be UTF-8 at all: the tokenizer reads its text with this, and what a model says
 * passes through butler_utf8_push (butler.h) on its way out. */
#ifndef BUTLER_UTF8_H
#define BUTLER_UTF8_H

#include "butler.h"

/* Length (1 to 4) of the character at bytes[0], and *codepoint if that is not NULL. 0: bytes[n] does not begin with one;
 * overlong forms, surrogates and values past U+10FFFF are none. */
int butler_utf8_decode(const char *bytes, size_t n, uint32_t *codepoint);

#endif
