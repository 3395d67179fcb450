/* Chat templates: renders the Jinja program of a model file by an interpreter of our own. The language is what published
 * templates use, with the meaning that Python's jinja2 gives it in transformers: trim_blocks, lstrip_blocks, an immutable sandbox,
 * loop controls, raise_exception, strftime_now, and `generation` blocks, which render as their body. */
#ifndef BUTLER_TEMPLATE_H
#define BUTLER_TEMPLATE_H

#include "butler.h"

struct butler_template_input {
    const char *source;
    const char *bos, *eos; /* spellings of the tokens, or "" */
    const struct butler_chat_message *messages;
    size_t n_messages;
    const struct butler_chat_options *options;
};

/* Fills *out, which butler_chat_text_free frees, or returns a negative code with the line of the template in *err. */
int butler_template_render(const struct butler_template_input *input, struct butler_chat_text *out, struct butler_error *err);

#endif
