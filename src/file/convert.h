/* Models of other formats become GGUF files. */
#ifndef BUTLER_CONVERT_H
#define BUTLER_CONVERT_H

#include "base/util.h"

/* A checkpoint of llama2.c (the layout its run.c reads: seven integers, then float32 weights) and its tokenizer file
 * become a GGUF file of architecture llama, F32, with a SentencePiece-style vocabulary. tokenizer NULL: none. */
int butler_convert_llama2c(const char *in, const char *tokenizer, const char *out, struct butler_error *err);

#endif
