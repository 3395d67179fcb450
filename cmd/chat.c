/* butler chat: a conversation in one session. Each turn renders the whole conversation; the session goes on from the beginning that
 * it already holds, so that a turn adds only its own tokens. Ctrl-C ends an answer, the end of input ends the program. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"

struct chat {
    const struct cmd_options *options;
    struct butler_engine *engine;
    const struct butler_model *model; /* the engine's */
    struct butler_session *session;
    struct butler_sampler *sampler;
    struct cmd_template template;
    struct butler_chat_message *messages; /* [n_messages], contents owned */
    size_t n_messages, capacity;
    struct cmd_integers ids; /* the session's tokens */
    struct cmd_text held;    /* the text that they stand for */
    struct cmd_text answer;  /* of this turn, all bytes that were sampled */
    size_t n_shown;
};

/* ---------------------------------------------------------------------------------------------- interrupts */

static void ignore_signal(int signal_number)
{
    (void)signal_number;
}

/* While an answer is generated SIGINT is blocked and polled; while a line is read it interrupts the read. So no flag is shared
 * with a handler, and the library's threads, which start with the signal blocked, never get it. */
static void interrupts_block(bool block)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void interrupts_start(void)
{
    struct sigaction action = {.sa_handler = ignore_signal}; /* no SA_RESTART: reading returns */
    sigaction(SIGINT, &action, NULL);
    interrupts_block(true);
}

static bool interrupted(void)
{
    sigset_t set;
    struct timespec none = {0};
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    return sigtimedwait(&set, NULL, &none) == SIGINT;
}

/* ------------------------------------------------------------------------------------------------ messages */

static void add_message(struct chat *chat, const char *role, const char *content, size_t n)
{
    if (chat->n_messages == chat->capacity) {
        chat->capacity = 2 * chat->capacity + 8;
        struct butler_chat_message *grown = cmd_alloc(chat->capacity, sizeof *grown);
        if (chat->n_messages)
            memcpy(grown, chat->messages, chat->n_messages * sizeof *grown);
        free(chat->messages);
        chat->messages = grown;
    }
    char *copy = cmd_alloc(n + 1, 1);
    if (n)
        memcpy(copy, content, n);
    chat->messages[chat->n_messages++] = (struct butler_chat_message){.role = role, .content = copy};
}

/* Forgets the messages from the n-th on. */
static void drop_messages(struct chat *chat, size_t n)
{
    while (chat->n_messages > n)
        free((char *)chat->messages[--chat->n_messages].content);
}

/* -------------------------------------------------------------------------------------------------- answer */

/* Prints the part of the answer that cannot be the beginning of the stop text. True: the stop text was found, at *at. */
static bool show(struct chat *chat, bool last, size_t *at)
{
    const char *stop = chat->template.stop;
    size_t n = chat->answer.n, end = n;
    bool found = false;
    if (stop) {
        size_t n_stop = strlen(stop);
        const char *where = n ? memmem(chat->answer.bytes, n, stop, n_stop) : NULL;
        found = where != NULL;
        if (found)
            end = (size_t)(where - chat->answer.bytes);
        for (size_t k = n_stop - 1; !found && !last && k > 0; k--)
            if (k <= n && memcmp(chat->answer.bytes + n - k, stop, k) == 0) {
                end = n - k;
                break;
            }
    }
    *at = end;
    if (chat->n_shown == 0) /* spaces that the template has before the answer */
        while (chat->n_shown < end && strchr(" \n", chat->answer.bytes[chat->n_shown]))
            chat->n_shown++;
    if (end > chat->n_shown) {
        cmd_out(chat->answer.bytes + chat->n_shown, end - chat->n_shown);
        chat->n_shown = end;
    }
    cmd_out_flush();
    return found;
}

static size_t append_token(struct chat *chat, struct butler_utf8 *stream, int32_t id)
{
    size_t n = 0;
    const char *bytes = id < 0 ? NULL : butler_token_bytes(chat->model, id, &n);
    char *piece = cmd_alloc(n + 16, 1);
    size_t n_out = butler_utf8_push(stream, bytes, n, piece, n + 16);
    cmd_text_append(&chat->answer, piece, n_out);
    free(piece);
    return n_out;
}

/* One token of the answer. *done: it was the last. *at: where the answer ends. */
static int answer_token(struct chat *chat, struct butler_utf8 *stream, bool *done, size_t *at)
{
    struct butler_error err = {0};
    const size_t before = chat->answer.n;
    const int32_t id =
        butler_sample(chat->sampler, butler_logits(chat->session), butler_model_get_info(chat->model)->n_vocab, &err);
    if (id < 0)
        return cmd_fail(chat->options, &err);
    *done = butler_token_is_end(chat->model, id);
    if (*done)
        return CMD_DONE;
    append_token(chat, stream, id);
    *done = show(chat, false, at);
    if (*done)
        return CMD_DONE;
    if (butler_n_past(chat->session) >= butler_n_ctx(chat->session)) {
        fprintf(stderr, "\n(the context of %d tokens is full: /clear forgets the conversation; -c sets a larger context)",
                butler_n_ctx(chat->session));
        *done = true;
        return CMD_DONE;
    }
    if (butler_step(chat->session, id, &err) < 0)
        return cmd_fail(chat->options, &err);
    cmd_integers_append(&chat->ids, id);
    cmd_text_append(&chat->held, chat->answer.bytes + before, chat->answer.n - before);
    *done = butler_should_stop(chat->session);
    return CMD_DONE;
}

static int answer(struct chat *chat)
{
    struct butler_utf8 stream = {0};
    size_t at = 0;
    bool done = false;
    chat->answer.n = chat->n_shown = 0;
    for (int i = 0; (chat->options->n < 0 || i < chat->options->n) && !interrupted() && !done; i++) {
        const int status = answer_token(chat, &stream, &done, &at);
        if (status != CMD_DONE)
            return status;
    }
    append_token(chat, &stream, -1);
    show(chat, true, &at);
    cmd_out("\n", 1);
    cmd_out_flush();
    add_message(chat, "assistant", chat->answer.bytes, at);
    return CMD_DONE;
}

/* ---------------------------------------------------------------------------------------------------- turn */

/* Tokens of the text from byte `from` on. */
static int tokenize(struct chat *chat, const struct butler_chat_text *text, size_t from, struct cmd_integers *ids)
{
    struct butler_error err = {0};
    int n = butler_chat_tokenize(chat->model, text, from, NULL, 0, &err);
    if (n >= 0) {
        *ids = (struct cmd_integers){.n = n, .capacity = n, .values = cmd_alloc((size_t)n, sizeof *ids->values)};
        n = butler_chat_tokenize(chat->model, text, from, ids->values, n, &err);
    }
    return n < 0 ? cmd_fail(chat->options, &err) : CMD_DONE;
}

/* What to run after the first *n_keep tokens of the session. Where the text goes on as the session does, its tokens stay as they
 * are; where the template wrote the conversation otherwise (it drops the thinking of earlier turns), those stay that are equal. */
static int find_new_tokens(struct chat *chat, const struct butler_chat_text *text, struct cmd_integers *ids, int *n_keep)
{
    const bool goes_on = chat->held.n > 0 && text->n > chat->held.n && memcmp(text->bytes, chat->held.bytes, chat->held.n) == 0;
    const int status = tokenize(chat, text, goes_on ? chat->held.n : 0, ids);
    *n_keep = goes_on ? chat->ids.n : 0;
    if (status != CMD_DONE || goes_on)
        return status;
    while (*n_keep < chat->ids.n && *n_keep < ids->n - 1 && chat->ids.values[*n_keep] == ids->values[*n_keep])
        ++*n_keep;
    ids->n -= *n_keep;
    memmove(ids->values, ids->values + *n_keep, (size_t)ids->n * sizeof *ids->values);
    return CMD_DONE;
}

/* Goes back to the first n tokens. Policies that evict may not be able to: then all are to be read again, and *ids is the whole
 * text's. */
static int go_back(struct chat *chat, const struct butler_chat_text *text, int n, struct cmd_integers *ids)
{
    struct butler_error err = {0};
    int status = CMD_DONE;
    if (n < chat->ids.n && butler_session_truncate(chat->session, n, NULL) < 0) {
        free(ids->values);
        *ids = (struct cmd_integers){0};
        n = 0;
        status = tokenize(chat, text, 0, ids);
        if (butler_session_truncate(chat->session, 0, &err) < 0)
            status = cmd_fail(chat->options, &err);
    }
    chat->ids.n = n;
    return status;
}

/* Runs what is new in the text as a prompt. *fits: the context had space for it. */
static int read_text(struct chat *chat, const struct butler_chat_text *text, bool *fits)
{
    struct cmd_integers ids = {0};
    int n_keep = 0, status = find_new_tokens(chat, text, &ids, &n_keep);
    const int n_ctx = butler_n_ctx(chat->session);
    *fits = ids.n <= n_ctx - n_keep;
    if (status == CMD_DONE && !*fits)
        cmd_say(chat->options,
                "the conversation has %d tokens and this turn %d, but the context holds %d: /clear forgets the conversation",
                n_keep, ids.n, n_ctx);
    if (status == CMD_DONE && *fits)
        status = go_back(chat, text, n_keep, &ids);
    if (status == CMD_DONE && *fits)
        status = cmd_prefill(chat->options, chat->session, &ids);
    for (int i = 0; status == CMD_DONE && *fits && i < ids.n; i++)
        cmd_integers_append(&chat->ids, ids.values[i]);
    free(ids.values);
    if (status == CMD_DONE && *fits) {
        chat->held.n = 0;
        cmd_text_append(&chat->held, text->bytes, text->n);
    }
    return status;
}

static int take_turn(struct chat *chat, const char *user, bool *fits)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    const char *system = chat->options->system;
    const size_t n_before = chat->n_messages;
    if (n_before == 0 && system && *system)
        add_message(chat, "system", system, strlen(system));
    add_message(chat, "user", user, strlen(user));
    if (cmd_template_render(&chat->template, chat->model, chat->messages, chat->n_messages, &text, &err) < 0)
        return cmd_fail(chat->options, &err);
    const int status = read_text(chat, &text, fits);
    butler_chat_text_free(&text);
    if (!*fits)
        drop_messages(chat, n_before);
    return status;
}

static int clear(struct chat *chat)
{
    int status = CMD_DONE;
    butler_session_free(chat->session);
    drop_messages(chat, 0);
    chat->held.n = 0;
    chat->ids.n = 0;
    chat->session = cmd_session_new(chat->options, chat->engine, chat->options->kv.values[0], chat->options->n_ctx, &status);
    return status;
}

/* One line without its newline into *line; false at the end of input. */
static bool read_line(char **line, size_t *capacity)
{
    bool terminal = isatty(STDIN_FILENO);
    for (;;) {
        if (terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        interrupts_block(false);
        errno = 0;
        ssize_t n = getline(line, capacity, stdin);
        int error = errno;
        interrupts_block(true);
        if (n >= 0) {
            if (n && (*line)[n - 1] == '\n')
                (*line)[n - 1] = 0;
            return true;
        }
        if (error != EINTR)
            return false;
        clearerr(stdin);
        fputs("\n(Ctrl-D ends the program)\n", stderr);
    }
}

static int converse(struct chat *chat)
{
    char *line = NULL;
    size_t capacity = 0;
    int status = clear(chat);
    while (status == CMD_DONE && read_line(&line, &capacity)) {
        bool fits = false;
        if (!*line)
            continue;
        if (strcmp(line, "/clear") == 0) {
            status = clear(chat);
            continue;
        }
        status = take_turn(chat, line, &fits);
        if (status == CMD_DONE && fits)
            status = answer(chat);
    }
    if (isatty(STDIN_FILENO))
        fputc('\n', stderr);
    free(line);
    return status;
}

static int run(struct cmd_options *options)
{
    int status = CMD_DONE;
    struct chat chat = {.options = options};
    if (options->kv.n > 1) {
        cmd_say(options, "--kv: a conversation has one policy, but %d are given", options->kv.n);
        return CMD_USAGE;
    }
    interrupts_start();
    chat.engine = cmd_engine_load(options, &status);
    if (!chat.engine)
        return status;
    chat.model = butler_engine_model(chat.engine);
    status = cmd_template_choose(options, chat.model, &chat.template);
    if (status != CMD_DONE)
        goto done;
    chat.sampler = cmd_sampler_new(options, &status);
    if (chat.sampler)
        status = converse(&chat);
    if (status == CMD_DONE && chat.session) {
        struct butler_stats stats;
        butler_session_stats(chat.session, &stats);
        if (stats.n_decode)
            cmd_say(options, "%llu tokens, %.1f a second, %.1f %% of the KV cache read", (unsigned long long)stats.n_decode,
                    (double)stats.n_decode / stats.decode_s, 100 * cmd_kv_read(&stats));
    }
done:
    drop_messages(&chat, 0);
    free(chat.messages);
    free(chat.ids.values);
    cmd_template_free(&chat.template);
    cmd_text_free(&chat.held);
    cmd_text_free(&chat.answer);
    butler_sampler_free(chat.sampler);
    butler_session_free(chat.session);
    cmd_engine_free(chat.engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL}, {CMD_PRE, NULL},     {CMD_SYSTEM, NULL},    {CMD_CHAT_TEMPLATE, NULL}, {CMD_N, "-1"},
    {CMD_CTX, "0"},    {CMD_KV, "full"},    {CMD_KV_TYPE, "f16"},  {CMD_BLOCK, "0"},          {CMD_TEMP, "0.8"},
    {CMD_TOP_K, "40"}, {CMD_TOP_P, "0.95"}, {CMD_MIN_P, "0.05"},   {CMD_SEED, "0"},           {CMD_THREADS, "0"},
    {CMD_ISA, NULL},   {CMD_PLUGIN, NULL},  {CMD_PREDICTOR, NULL}, {CMD_HELP, NULL},          {CMD_NONE, NULL},
};

const struct cmd_command cmd_chat = {
    .name = "chat",
    .synopsis = "[-m FILE] [--system-prompt TEXT] [--kv POLICY] [FLAGS]",
    .summary = "a conversation, with the model's chat template",
    .details =
        "Reads a turn from every line of standard input and prints the answer. /clear forgets the conversation. Ctrl-C ends an\n"
        "answer; Ctrl-D (the end of input) ends the program.\n\n"
        "The conversation is rendered by the template of the model's file. --chat-template takes another: a file with a Jinja\n"
        "template, or chatml, llama3, llama2, mistral, mistral-v3, phi3, zephyr, deepseek, vicuna, plain. A model without a\n"
        "template gets plain: lines beginning with User: and Assistant:. A template that cannot be rendered is replaced by\n"
        "chatml, with a warning. What looks like a special token in a turn stays text.\n",
    .uses = uses,
    .run = run,
};
