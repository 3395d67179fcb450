/* An answer in the model's own words: the rest of a prompt, then the likeliest token after the likeliest token. */
#include <stdio.h>

#include "generate.h"

int eval_generate(struct eval_trial *trial, int max_tokens, bool (*complete)(const struct eval_trial *trial, const char *text),
                  struct butler_error *err)
{
    const struct eval_run *run = trial->run;
    const struct eval_item *item = trial->item;
    struct butler_session *session = trial->session;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an answer");
    int code = 0;
    for (int i = butler_n_past(session); i < item->n_ids && code == 0; i++)
        code = eval_step(trial, item->ids[i], err);
    for (int i = 0; i < max_tokens && code == 0; i++) {
        const int32_t id = eval_argmax(butler_logits(session), run->info->n_vocab);
        size_t n_bytes;
        const char *bytes = butler_token_bytes(run->model, id, &n_bytes);
        if (butler_token_is_end(run->model, id) || butler_should_stop(session))
            break;
        for (size_t k = 0; k < n_bytes; k++)
            if (bytes[k])
                fputc(bytes[k], out);
        if (complete && fflush(out) == 0 && complete(trial, text))
            break;
        if (i + 1 < max_tokens)
            code = eval_step(trial, id, err);
    }
    if (fclose(out) != 0 && code == 0)
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for an answer");
    trial->output = text;
    return code;
}
