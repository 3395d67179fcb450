/* Tokens around the parts of a text with a gap ("fill in the middle"): by the file's keys, else by how families spell them. The
 * spellings are those that llama.cpp knows. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_parts.h"

enum { MAX_SPELLINGS = 8, N_TOKENS = 5 };

static const struct {
    size_t offset;           /* in struct butler_fim_tokens */
    const char *key, *older; /* of the file, behind "tokenizer.ggml." */
    const char *spellings[MAX_SPELLINGS];
} tokens[N_TOKENS] = {
    /* DeepSeek's have fullwidth bars and U+2581 between the words, CodeLlama's begin with U+2581. */
    {offsetof(struct butler_fim_tokens, prefix),
     "fim_pre_token_id",
     "prefix_token_id",
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>", "<|code_prefix|>"}},
    {offsetof(struct butler_fim_tokens, suffix),
     "fim_suf_token_id",
     "suffix_token_id",
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>"}},
    {offsetof(struct butler_fim_tokens, middle),
     "fim_mid_token_id",
     "middle_token_id",
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>"}},
    {offsetof(struct butler_fim_tokens, repository),
     "fim_rep_token_id",
     NULL,
     {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {offsetof(struct butler_fim_tokens, file), "fim_sep_token_id", NULL, {"<|file_sep|>"}},
};

static int32_t *token_of(struct butler_tokenizer *tokenizer, int i)
{
    return (int32_t *)(void *)((char *)&tokenizer->fim + tokens[i].offset);
}

static int read_keys(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err)
{
    char key[64];
    int rc = BUTLER_OK;
    for (int i = 0; i < N_TOKENS && !rc; i++)
        for (int k = 0; k < 2 && !rc; k++) {
            const char *name = k ? tokens[i].key : tokens[i].older;
            if (!name)
                continue;
            snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
            rc = butler_tokenizer_read_id(tokenizer, gguf, key, token_of(tokenizer, i), err);
        }
    return rc;
}

int butler_fim_init(struct butler_tokenizer *tokenizer, const struct butler_gguf *gguf, struct butler_error *err)
{
    const struct butler_gguf_value *spelled = butler_gguf_value(gguf, "tokenizer.ggml.tokens");
    bool by_key[N_TOKENS];
    tokenizer->fim = (struct butler_fim_tokens){-1, -1, -1, -1, -1};
    const int rc = read_keys(tokenizer, gguf, err);
    for (int i = 0; i < N_TOKENS; i++)
        by_key[i] = *token_of(tokenizer, i) >= 0;
    for (uint32_t id = 0; id < tokenizer->vocab.n_tokens && !rc; id++) {
        size_t n;
        const char *bytes = butler_gguf_array_string(spelled, id, &n);
        if (n < 5 || n > 24 || !(bytes[0] == '<' || (unsigned char)bytes[0] == 0xe2) || bytes[n - 1] != '>')
            continue;
        for (int i = 0; i < N_TOKENS; i++)
            for (int k = 0; k < MAX_SPELLINGS && tokens[i].spellings[k] && !by_key[i]; k++)
                if (strlen(tokens[i].spellings[k]) == n && memcmp(tokens[i].spellings[k], bytes, n) == 0)
                    *token_of(tokenizer, i) = (int32_t)id;
    }
    return rc;
}
