/* The loop of a simple program: draws tokens, decodes them, and gives their text away as whole characters. */
#include "engine/session.h"

enum { MAX_TEXT = 3 * (1024 + 3) }; /* of a token, which has at most 1,024 bytes */

int butler_generate(struct butler_session *session, struct butler_sampler *sampler, int n, butler_piece_fn *on_text, void *user,
                    struct butler_error *err)
{
    struct butler_utf8 stream = {0};
    char text[MAX_TEXT];
    int n_made = 0;
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(sampler, err))
        return BUTLER_ERROR_ARGUMENT;
    if (n < 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "an answer of %d tokens", n);
    if (!butler_logits(session))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "the session has no logits to begin with: read a prompt first");
    const struct butler_model *model = session->model;
    bool goes_on = true;
    while (n_made < n && goes_on && butler_n_past(session) < butler_n_ctx(session)) {
        size_t n_bytes = 0;
        const int32_t id = butler_sample(sampler, butler_logits(session), model->hp.n_vocab, err);
        if (id >= 0 && butler_token_is_end(model, id))
            break;
        const int code = id < 0 ? (int)id : butler_step(session, id, err);
        if (code < 0)
            return code;
        n_made++;
        const char *bytes = butler_token_bytes(model, id, &n_bytes);
        const size_t n_text = bytes ? butler_utf8_push(&stream, bytes, n_bytes, text, sizeof text) : 0;
        goes_on = (!on_text || n_text == 0 || on_text(user, text, n_text)) && !butler_should_stop(session);
    }
    const size_t n_text = butler_utf8_push(&stream, NULL, 0, text, sizeof text);
    if (on_text && n_text > 0)
        on_text(user, text, n_text);
    return n_made;
}
