/* The pre-tokenizer of BPE: splits text into words. Symbols are merged only within a word. */
#ifndef BUTLER_SPLIT_H
#define BUTLER_SPLIT_H

#include "base/util.h"

struct butler_split;

/* name: the value of tokenizer.ggml.pre. path is for errors. NULL: unknown name, or no memory. */
struct butler_split *butler_split_new(const char *name, const char *path, struct butler_error *err);
void butler_split_free(struct butler_split *split);

/* Two properties that depend on the name: whether a word that is a token is used without merging, and whether BOS is added if
 * the file does not say. */
bool butler_split_whole_words(const struct butler_split *split);
bool butler_split_adds_bos(const struct butler_split *split);

/* What words begin as before merges, and how the file spells tokens and merges. */
enum butler_spelling {
    BUTLER_SPELLING_BYTES,  /* as bytes, spelt as GPT-2's visible characters */
    BUTLER_SPELLING_MARKED, /* as characters, a space spelt U+2581 */
    BUTLER_SPELLING_PLAIN,  /* as characters, spelt as they are */
};
enum butler_spelling butler_split_spelling(const struct butler_split *split);

/* Calls word() for each word of text[n], in order; the words together are the text. Bytes that are not UTF-8 form words of
 * their own. Stops at the first result that is not 0 and returns it. */
typedef int butler_word_fn(void *user, const char *word, size_t n, struct butler_error *err);
int butler_split_run(const struct butler_split *split, const char *text, size_t n, butler_word_fn *word, void *user,
                     struct butler_error *err);

#endif
