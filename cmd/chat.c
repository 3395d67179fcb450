/* butler chat: a conversation in one session. Each turn renders the whole conversation; the session goes on from the beginning that
 * it already holds, so that a turn adds only its own tokens. Ctrl-C ends an answer, the end of input ends the program. */
#include <errno.h>
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
};

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

static int answer(struct chat *chat)
{
    struct cmd_answer answer = {0};
    const int status = cmd_answer_generate(chat->options, chat->model, chat->session, chat->sampler, chat->template.stop, &answer);
    for (int i = 0; i < answer.ids.n; i++)
        cmd_integers_append(&chat->ids, answer.ids.values[i]);
    cmd_text_append(&chat->held, answer.text.bytes, answer.n_held);
    if (answer.end == CMD_END_CONTEXT)
        fprintf(stderr, "(the context of %d tokens is full: /clear forgets the conversation; -c sets a larger context)\n",
                butler_n_ctx(chat->session));
    if (status == CMD_DONE)
        add_message(chat, "assistant", answer.text.bytes, answer.n);
    cmd_answer_free(&answer);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- turn */

/* What to run after the first *n_keep tokens of the session. Where the text goes on as the session does, its tokens stay as they
 * are; where the template wrote the conversation otherwise (it drops the thinking of earlier turns), those stay that are equal. */
static int find_new_tokens(struct chat *chat, const struct butler_chat_text *text, struct cmd_integers *ids, int *n_keep)
{
    const bool goes_on = chat->held.n > 0 && text->n > chat->held.n && memcmp(text->bytes, chat->held.bytes, chat->held.n) == 0;
    const int status = cmd_chat_tokenize(chat->options, chat->model, text, goes_on ? chat->held.n : 0, ids);
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
        status = cmd_chat_tokenize(chat->options, chat->model, text, 0, ids);
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
        cmd_interrupts_block(false);
        errno = 0;
        ssize_t n = getline(line, capacity, stdin);
        int error = errno;
        cmd_interrupts_block(true);
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
    cmd_interrupts_start();
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
    butler_sampler_free(chat.sampler);
    butler_session_free(chat.session);
    cmd_engine_free(chat.engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},   {CMD_SYSTEM, NULL},    {CMD_CHAT_TEMPLATE, NULL}, {CMD_N, "-1"},      {CMD_CTX, "0"},
    {CMD_KV, "full"},    {CMD_KV_TYPE, "f16"},  {CMD_BLOCK, "0"},          {CMD_TEMP, "0.8"},  {CMD_TOP_K, "40"},
    {CMD_TOP_P, "0.95"}, {CMD_MIN_P, "0.05"},   {CMD_SEED, "0"},           {CMD_THREADS, "0"}, {CMD_ISA, NULL},
    {CMD_PLUGIN, NULL},  {CMD_PREDICTOR, NULL}, {CMD_HELP, NULL},          {CMD_NONE, NULL},
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
