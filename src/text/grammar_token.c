/* What tokens are to a grammar, which is over bytes. See grammar_parts.h. */
#include <string.h>

#include "text/grammar_parts.h"
#include "text/tokenizer_parts.h"

const char *butler_grammar_bytes(const struct butler_tokenizer *tokenizer, int32_t id, char code[BUTLER_TOKEN_CODE], size_t *n)
{
    const char *bytes = butler_tokenizer_bytes(tokenizer, id, n);
    if (bytes && *n > 0) {
        *n = memchr(bytes, 0xff, *n) ? 0 : *n;
        return bytes;
    }
    if (!bytes || tokenizer->vocab.types[id] != BUTLER_TOKEN_CONTROL || butler_tokenizer_is_end(tokenizer, id))
        return "";
    for (int i = 0; i < BUTLER_TOKEN_CODE; i++)
        code[i] = (char)(i == 0 ? 0xff : id >> 8 * (BUTLER_TOKEN_CODE - 1 - i) & 0xff);
    *n = BUTLER_TOKEN_CODE;
    return code;
}
