/* Conversion of other model formats to GGUF. */
#ifndef BUTLER_CONVERT_H
#define BUTLER_CONVERT_H

#include "base/util.h"

/* Converts a llama2.c checkpoint (the layout that its run.c reads: seven integers, then float32 weights) and its tokenizer
 * file to a GGUF file of architecture llama, F32, with a SentencePiece-style vocabulary. tokenizer may be NULL: then the file
 * has no vocabulary. */
int butler_convert_llama2c(const char *in, const char *tokenizer, const char *out, struct butler_error *err);

#endif
