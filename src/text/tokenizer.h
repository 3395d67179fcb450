/* Text to ids and back. Two families: SentencePiece-style merging by score ("llama": ▁ for space, byte fallback), and
 * byte-level BPE by rank ("gpt2") after a pre-tokenizer's regular expressions. */
#ifndef BUTLER_TOKENIZER_H
#define BUTLER_TOKENIZER_H

#include "file/gguf.h"

struct butler_tokenizer;

/* Reads the keys tokenizer.ggml.*. The gguf must outlive the tokenizer. pre_tokenizer: used instead of the file's; NULL: the
 * file's. Where the file's is unknown the tokenizer tells ids and bytes, but encoding fails. */
struct butler_tokenizer *butler_tokenizer_new(const struct butler_gguf *gguf, const char *pre_tokenizer, struct butler_error *err);
void butler_tokenizer_free(struct butler_tokenizer *tokenizer);

/* The contract of butler_tokenize, with the flags of butler.h. text may be any bytes. Thread-safe. */
int butler_tokenizer_encode(const struct butler_tokenizer *tokenizer, const char *text, size_t n_text, int flags, int32_t *ids,
                            int max_ids, struct butler_error *err);
struct butler_marked_text {
    const char *bytes;
    size_t n;
    const char *marks; /* [n]: control tokens are read only where all of their bytes are marked; NULL: everywhere */
    bool continues;    /* it goes on behind another text, so nothing is added before it, no space either */
};

/* The same for such a text. */
int butler_tokenizer_encode_marked(const struct butler_tokenizer *tokenizer, const struct butler_marked_text *text, int flags,
                                   int32_t *ids, int max_ids, struct butler_error *err);
/* How the token is written in a text with special tokens, also a control token; "" for an id out of range. */
const char *butler_tokenizer_spelling(const struct butler_tokenizer *tokenizer, int32_t id, size_t *n_bytes);
const char *butler_tokenizer_bytes(const struct butler_tokenizer *tokenizer, int32_t id, size_t *n_bytes);
int butler_tokenizer_n_vocab(const struct butler_tokenizer *tokenizer);
const char *butler_tokenizer_kind(const struct butler_tokenizer *tokenizer); /* "llama", "gpt2" */
int32_t butler_tokenizer_bos(const struct butler_tokenizer *tokenizer);      /* -1 if none */
bool butler_tokenizer_adds_bos(const struct butler_tokenizer *tokenizer);    /* to every text */
int32_t butler_tokenizer_eos(const struct butler_tokenizer *tokenizer);
const struct butler_fim_tokens *butler_tokenizer_fim(const struct butler_tokenizer *tokenizer);
bool butler_tokenizer_is_end(const struct butler_tokenizer *tokenizer, int32_t id); /* EOS, EOT, <|im_end|>, ... */

#endif
