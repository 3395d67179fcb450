/* Tokens of a text as run, ask and chat write it: plainly, or by checked drafts (--lossless). */
#include "cmd.h"

bool cmd_drafts_under(struct butler_engine *engine, const char *policy, struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = 1, .policy = policy, .kv_type = BUTLER_KV_F32};
    struct butler_session *session = butler_session_new(engine, &params, err);
    struct butler_draft *draft = session ? butler_draft_new(session, NULL, err) : NULL;
    const bool can = draft != NULL;
    butler_draft_free(draft);
    butler_session_free(session);
    return can;
}

int cmd_writer_begin(struct cmd_writer *writer, const struct cmd_options *options, struct butler_engine *engine,
                     struct butler_session *session, struct butler_sampler *sampler)
{
    const struct butler_draft_params params = {.n_max = options->n_drafts};
    struct butler_error err = {0};
    *writer =
        (struct cmd_writer){.engine = engine, .session = session, .sampler = sampler, .n_past = butler_n_past(session), .last = -1};
    if (!options->given[CMD_LOSSLESS])
        return CMD_DONE;
    writer->draft = butler_draft_new(session, &params, &err);
    if (writer->draft)
        return CMD_DONE;
    cmd_say(options, "--lossless: %s", err.message);
    return err.code == BUTLER_ERROR_ARGUMENT ? CMD_USAGE : CMD_FAILED;
}

int32_t cmd_writer_draw(struct cmd_writer *writer, struct butler_error *err)
{
    const int n_vocab = butler_model_get_info(butler_engine_model(writer->engine))->n_vocab;
    writer->last = writer->n_drawn < writer->n ? writer->ids[writer->n_drawn++]
                                               : butler_sample(writer->sampler, butler_logits(writer->session), n_vocab, err);
    return writer->last;
}

int cmd_writer_decode(struct cmd_writer *writer, int most, struct butler_error *err)
{
    writer->n_past++;
    if (writer->n_drawn < writer->n) /* the session holds it since the latest check */
        return 0;
    if (!writer->draft)
        return butler_step(writer->session, writer->last, err);
    most = most < 1 ? 1 : most > CMD_MAX_DRAFTS ? CMD_MAX_DRAFTS + 1 : most;
    const int n = butler_draft_step(writer->draft, writer->sampler, writer->last, writer->ids, most, err);
    writer->n = n < 0 ? 0 : n;
    writer->n_drawn = 0;
    return n < 0 ? n : 0;
}

int cmd_writer_end(struct cmd_writer *writer, struct butler_error *err)
{
    struct butler_session *session = writer->session;
    int code = 0;
    if (writer->n_drawn < writer->n) {
        code = butler_draft_keep(writer->draft, writer->sampler, writer->n_drawn, err);
        const struct butler_span span = {.session = session, .ids = &writer->last, .n = 1, .exact = true};
        if (code == 0 && writer->n_past > butler_n_past(session))
            code = butler_run(writer->engine, &span, 1, err);
    }
    butler_draft_free(writer->draft);
    return code;
}
