/* What chat and ask share: documents before a question, tokens of a rendered conversation, the answer while it is made. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "base/util.h"

int cmd_document_append(const struct cmd_options *options, const char *path, struct butler_buffer *text,
                        struct cmd_sources *sources)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct butler_buffer document = {0};
    int status = cmd_document_read(options, path, &document);
    size_t n_blank = 0;
    while (n_blank < document.n && strchr(" \t\r\n\f\v", document.bytes[n_blank]))
        n_blank++;
    if (status == CMD_DONE && n_blank == document.n) {
        cmd_say(options, "%s: is empty: it has nothing but blanks", name);
        status = CMD_FAILED;
    }
    if (status == CMD_DONE) {
        /* The name stands behind the text: the same text under another name begins alike, and is not read again. */
        cmd_append(text, document.bytes, document.n);
        if (sources)
            cmd_sources_add(sources, name, document.bytes, document.n);
        cmd_append(text, "\n\n(end of ", 10);
        cmd_append(text, name, strlen(name));
        cmd_append(text, ")\n\n", 3);
    }
    butler_buffer_free(&document);
    return status;
}

int cmd_chat_tokenize(const struct cmd_options *options, const struct butler_model *model, const struct butler_chat_text *text,
                      size_t from, struct cmd_integers *ids)
{
    struct butler_error err = {0};
    int n = butler_chat_tokenize(model, text, from, NULL, 0, &err);
    if (n >= 0) {
        *ids = (struct cmd_integers){.n = n, .capacity = n, .values = cmd_alloc((size_t)n, sizeof *ids->values)};
        n = butler_chat_tokenize(model, text, from, ids->values, n, &err);
    }
    if (n < 0)
        return cmd_fail(options, &err);
    if (*err.message)
        cmd_say(options, "note: %s", err.message);
    return CMD_DONE;
}

/* -------------------------------------------------------------------------------------------------- answer */

/* Prints the part of the answer that cannot be the beginning of a stop text. True: one was found. */
static bool show(const struct cmd_options *options, struct cmd_answer *answer, const char *stop, bool last)
{
    const char *bytes = answer->text.bytes;
    const size_t from = answer->n_shown; /* before it nothing can begin one */
    bool found;
    const size_t end = from + cmd_stop_find(options, stop, bytes ? bytes + from : "", answer->text.n - from, last, &found);
    answer->n = end;
    if (answer->n_shown == 0) /* spaces that the template has before the answer */
        while (answer->n_shown < end && strchr(" \n", bytes[answer->n_shown]))
            answer->n_shown++;
    if (end > answer->n_shown) {
        cmd_out(bytes + answer->n_shown, end - answer->n_shown);
        if (answer->shown_s == 0)
            answer->shown_s = butler_seconds();
        answer->n_shown = end;
    }
    cmd_out_flush();
    return found;
}

static void append_token(const struct butler_model *model, struct butler_utf8 *stream, int32_t id, struct cmd_answer *answer)
{
    size_t n = 0;
    const char *bytes = id < 0 ? NULL : butler_token_bytes(model, id, &n);
    char *piece = cmd_alloc(n + 16, 1);
    cmd_append(&answer->text, piece, butler_utf8_push(stream, bytes, n, piece, n + 16));
    free(piece);
}

/* One token of the answer. *done: it was the last. */
static int answer_token(const struct cmd_options *options, struct cmd_writer *writer, int most, const char *stop,
                        struct butler_utf8 *stream, struct cmd_answer *answer, bool *done, struct butler_error *err)
{
    const struct butler_model *model = butler_engine_model(writer->engine);
    const int32_t id = cmd_writer_draw(writer, err);
    if (id < 0)
        return id;
    answer->end = CMD_END_TOKEN;
    *done = true;
    if (butler_token_is_end(model, id))
        return 0;
    append_token(model, stream, id, answer);
    if (show(options, answer, stop, false)) {
        if (!stop || strncmp(answer->text.bytes + answer->n, stop, BUTLER_MIN(strlen(stop), answer->text.n - answer->n)) != 0)
            answer->end = CMD_END_STOP; /* not by the template's own end of a turn */
        return 0;
    }
    answer->end = CMD_END_CONTEXT;
    if (writer->n_past >= butler_n_ctx(writer->session))
        return 0;
    const int code = cmd_writer_decode(writer, most, err);
    if (code < 0)
        return code;
    cmd_integers_append(&answer->ids, id);
    answer->n_held = answer->text.n;
    answer->end = CMD_END_POLICY;
    *done = butler_should_stop(writer->session);
    return 0;
}

int cmd_answer_generate(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session,
                        struct butler_sampler *sampler, const char *stop, struct cmd_answer *answer)
{
    struct butler_utf8 stream = {0};
    struct butler_error err = {0};
    struct cmd_writer writer;
    const int status = cmd_writer_begin(&writer, options, engine, session, sampler);
    bool done = false;
    if (status != CMD_DONE)
        return status;
    for (int i = 0; err.code == 0 && !done; i++) {
        if (cmd_interrupted() || i == options->n) {
            answer->end = i == options->n ? CMD_END_LENGTH : CMD_END_INTERRUPTED;
            break;
        }
        answer_token(options, &writer, options->n < 0 ? INT_MAX : options->n - i, stop, &stream, answer, &done, &err);
    }
    cmd_writer_end(&writer, &err);
    if (err.code < 0)
        return cmd_fail(options, &err);
    append_token(butler_engine_model(engine), &stream, -1, answer);
    show(options, answer, stop, true);
    cmd_out("\n", 1);
    cmd_out_flush();
    return CMD_DONE;
}

void cmd_answer_free(struct cmd_answer *answer)
{
    butler_buffer_free(&answer->text);
    free(answer->ids.values);
    *answer = (struct cmd_answer){0};
}
