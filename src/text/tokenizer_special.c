/* Finds special tokens such as "<|eot_id|>" in text, before it is split into words or characters. */
#include "text/tokenizer_parts.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

static bool is_special(const struct butler_vocab *vocab, uint32_t id)
{
    unsigned char type = vocab->types[id];
    return vocab->pieces[id].n_bytes > 0 &&
           (type == BUTLER_TOKEN_CONTROL || type == BUTLER_TOKEN_UNKNOWN || type == BUTLER_TOKEN_USER_DEFINED);
}

static int compare_pieces(const void *a, const void *b, void *user)
{
    const struct butler_vocab *vocab = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const struct butler_piece *p = &vocab->pieces[x], *q = &vocab->pieces[y];
    int order = memcmp(p->bytes, q->bytes, BUTLER_MIN(p->n_bytes, q->n_bytes));
    if (order == 0)
        order = (p->n_bytes > q->n_bytes) - (p->n_bytes < q->n_bytes);
    return order ? order : (x > y) - (x < y);
}

int butler_special_init(struct butler_tokenizer *tokenizer, struct butler_error *err)
{
    struct butler_vocab *vocab = &tokenizer->vocab;
    int n = 0;
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        n += is_special(vocab, i);
    tokenizer->special = malloc((size_t)n * sizeof *tokenizer->special + 1);
    if (!tokenizer->special)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for %d special tokens", vocab->path, n);
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        if (is_special(vocab, i))
            tokenizer->special[tokenizer->n_special++] = (int32_t)i;
    qsort_r(tokenizer->special, (size_t)n, sizeof *tokenizer->special, compare_pieces, vocab);
    for (int i = 0; i < n; i++) {
        int32_t id = tokenizer->special[i];
        unsigned char byte = (unsigned char)vocab->pieces[id].bytes[0];
        if (tokenizer->special_by_byte[byte].end == 0)
            tokenizer->special_by_byte[byte].first = i;
        tokenizer->special_by_byte[byte].end = i + 1;
        tokenizer->special_by_byte[byte].plain |= vocab->types[id] == BUTLER_TOKEN_USER_DEFINED;
    }
    return BUTLER_OK;
}

/* First i in special[first..end) whose byte at `depth` is not below `byte`. All of them agree before `depth` and are longer. */
static int lower_bound(const struct butler_tokenizer *tokenizer, int first, int end, uint32_t depth, unsigned byte)
{
    while (first < end) {
        int middle = first + (end - first) / 2;
        if ((unsigned char)tokenizer->vocab.pieces[tokenizer->special[middle]].bytes[depth] < byte)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* The special tokens that text[n] begins with, shortest first, into found[BUTLER_MAX_TOKEN_BYTES]. Control tokens only where
 * marks[n] of all their bytes are set, or marks is NULL. */
static int begins_with(const struct butler_tokenizer *tokenizer, const char *text, size_t n, bool parse, const char *marks,
                       int32_t *found)
{
    const struct butler_vocab *vocab = &tokenizer->vocab;
    unsigned char byte = (unsigned char)text[0];
    int first = tokenizer->special_by_byte[byte].first, end = tokenizer->special_by_byte[byte].end, n_found = 0;
    if (!parse && !tokenizer->special_by_byte[byte].plain)
        return 0;
    for (uint32_t depth = 1; first < end; depth++) {
        int32_t whole = -1;
        for (; first < end && vocab->pieces[tokenizer->special[first]].n_bytes == depth; first++)
            if (whole < 0 && ((parse && (!marks || !memchr(marks, 0, depth))) ||
                              vocab->types[tokenizer->special[first]] == BUTLER_TOKEN_USER_DEFINED))
                whole = tokenizer->special[first];
        if (whole >= 0)
            found[n_found++] = whole;
        if (depth >= n)
            break;
        byte = (unsigned char)text[depth];
        first = lower_bound(tokenizer, first, end, depth, byte);
        end = lower_bound(tokenizer, first, end, depth, byte + 1u);
    }
    return n_found;
}

/* -------------------------------------------------------------------------------------------- splitting */

static bool strips_after(const struct butler_tokenizer *tokenizer, int32_t id)
{
    static const char *const keeps[] = {"<unk>", "<s>", "<|endoftext|>"};
    const struct butler_piece *piece = &tokenizer->vocab.pieces[id];
    for (int i = 0; i < BUTLER_COUNT(keeps); i++)
        if (strlen(keeps[i]) == piece->n_bytes && memcmp(keeps[i], piece->bytes, piece->n_bytes) == 0)
            return false;
    return tokenizer->strip_after_special;
}

struct spans {
    struct butler_text_range *items;
    size_t n, capacity;
};

static int add_span(struct spans *spans, size_t start, size_t n, int32_t token, struct butler_error *err)
{
    if (n == 0 && token < 0)
        return BUTLER_OK;
    if (!butler_grow(&spans->items, spans->n + 1, &spans->capacity, sizeof *spans->items))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory to split a text at its special tokens");
    spans->items[spans->n++] = (struct butler_text_range){start, n, token};
    return BUTLER_OK;
}

/* Cuts one span of ordinary text at the special tokens of exactly this length. */
static int cut_span(const struct butler_tokenizer *tokenizer, const char *text, struct butler_text_range span, bool parse,
                    const char *marks, size_t length, struct spans *out, struct butler_error *err)
{
    int32_t found[BUTLER_MAX_TOKEN_BYTES];
    size_t start = span.start, end = span.start + span.n, at = start;
    int rc;
    while (at < end && end - at >= length) {
        int32_t token = -1;
        for (int i = begins_with(tokenizer, text + at, end - at, parse, marks ? marks + at : NULL, found) - 1; i >= 0 && token < 0;
             i--)
            if (tokenizer->vocab.pieces[found[i]].n_bytes == length)
                token = found[i];
        if (token < 0) {
            at++;
            continue;
        }
        if ((rc = add_span(out, start, at - start, -1, err)) || (rc = add_span(out, at, length, token, err)))
            return rc;
        at += length;
        if (strips_after(tokenizer, token))
            while (at < end && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r')))
                at++;
        start = at;
    }
    return add_span(out, start, end - start, -1, err);
}

int butler_special_cut(const struct butler_tokenizer *tokenizer, const char *text, size_t n, bool parse, const char *marks,
                       struct butler_text_range **spans, size_t *n_spans, struct butler_error *err)
{
    int32_t found[BUTLER_MAX_TOKEN_BYTES];
    bool lengths[BUTLER_MAX_TOKEN_BYTES + 1] = {false};
    struct spans now = {0}, next = {0};
    int rc = add_span(&now, 0, n, -1, err);
    for (size_t i = 0; i < n && tokenizer->n_special > 0; i++)
        for (int k = begins_with(tokenizer, text + i, n - i, parse, marks ? marks + i : NULL, found) - 1; k >= 0; k--)
            lengths[tokenizer->vocab.pieces[found[k]].n_bytes] = true;
    for (size_t length = BUTLER_MAX_TOKEN_BYTES; length > 0 && !rc; length--) {
        if (!lengths[length])
            continue;
        next.n = 0;
        for (size_t i = 0; i < now.n && !rc; i++)
            rc = now.items[i].token >= 0 ? add_span(&next, now.items[i].start, now.items[i].n, now.items[i].token, err)
                                         : cut_span(tokenizer, text, now.items[i], parse, marks, length, &next, err);
        struct spans swap = now;
        now = next;
        next = swap;
    }
    free(next.items);
    *spans = now.items;
    *n_spans = now.n;
    return rc;
}
