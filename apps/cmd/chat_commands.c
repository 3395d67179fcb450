/* The commands of chat: lines that begin with a slash. What is wrong with one is a message, and the conversation goes on. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/util.h"
#include "cmd/chat.h"

static int help(struct chat *chat, const char *argument)
{
    (void)chat;
    (void)argument;
    chat_help(stderr);
    return CMD_DONE;
}

/* Of a pipe or a device there may be no end, and standard input is the conversation. Where there is nothing, opening it says so. */
static bool is_file(const struct chat *chat, const char *path)
{
    struct stat st;
    if (strcmp(path, "-") != 0 && (stat(path, &st) != 0 || S_ISREG(st.st_mode)))
        return true;
    cmd_say(chat->options, "%s: no regular file", path);
    return false;
}

static int file(struct chat *chat, const char *path)
{
    const size_t before = chat->documents.n;
    if (!is_file(chat, path))
        return CMD_DONE;
    if (cmd_document_append(chat->options, path, &chat->documents, &chat->sources) == CMD_DONE)
        cmd_say(chat->options, "%s: %zu bytes stand before the next turn", path, chat->documents.n - before);
    return CMD_DONE;
}

/* ------------------------------------------------------------------------------------------------ save, load */

static int save(struct chat *chat, const char *path)
{
    struct butler_error err = {0};
    struct butler_writer writer;
    if (cmd_check_output(chat->options, path, chat->options->documents.values, chat->options->documents.n) != CMD_DONE)
        return CMD_DONE;
    json_t *messages = json_array();
    for (size_t i = 0; i < chat->n_messages; i++)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", chat->messages[i].role, "content",
                                                  cmd_json_text(chat->messages[i].content, strlen(chat->messages[i].content))));
    json_t *all = json_pack("{s:o}", "messages", messages);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    json_decref(all);
    int code = text ? butler_writer_open(&writer, path, BUTLER_WRITER_PRIVATE, &err)
                    : butler_fail(&err, BUTLER_ERROR_MEMORY, "out of memory");
    if (code == 0) {
        if ((code = butler_write(&writer, text, strlen(text), &err)) == 0 && (code = butler_write(&writer, "\n", 1, &err)) == 0)
            code = butler_writer_commit(&writer, &err);
        butler_writer_abort(&writer);
    }
    free(text);
    if (code < 0)
        cmd_say(chat->options, "%s", err.message);
    else
        cmd_say(chat->options, "%s: %zu messages", path, chat->n_messages);
    return CMD_DONE;
}

/* The role as a literal; NULL: none that a conversation here has. */
static const char *role_of(const char *name)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    for (int i = 0; name && i < BUTLER_COUNT(roles); i++)
        if (strcmp(name, roles[i]) == 0)
            return roles[i];
    return NULL;
}

static bool is_message(const json_t *message)
{
    return role_of(json_string_value(json_object_get(message, "role"))) && json_string_value(json_object_get(message, "content"));
}

/* Whether the template renders the conversation with one more turn: some want roles to alternate. */
static bool takes_a_turn(struct chat *chat, const char *path)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    chat_add_message(chat, "user", "Hello", 5);
    const int code = cmd_template_render(&chat->template, chat->model, chat->messages, chat->n_messages, &text, &err);
    chat_drop_messages(chat, chat->n_messages - 1);
    if (code < 0)
        cmd_say(chat->options, "%s: %s", path, err.message);
    else
        butler_chat_text_free(&text);
    return code == 0;
}

static int load(struct chat *chat, const char *path)
{
    json_error_t error;
    if (!is_file(chat, path))
        return CMD_DONE;
    json_t *all = json_load_file(path, 0, &error), *messages = json_object_get(all, "messages"), *message;
    size_t i, n = json_array_size(messages), n_good = 0;
    if (!all) {
        if (error.line < 0)
            cmd_say(chat->options, "%s", error.text);
        else
            cmd_say(chat->options, "%s: line %d: %s", path, error.line, error.text);
        return CMD_DONE;
    }
    while (n_good < n && is_message(json_array_get(messages, n_good)))
        n_good++;
    if (!json_is_array(messages) || n_good < n) {
        if (json_is_array(messages))
            cmd_say(chat->options, "%s: message %zu has no content, or no role that is system, user or assistant", path, n_good);
        else
            cmd_say(chat->options, "%s: no conversation: it has no array `messages`", path);
        json_decref(all);
        return CMD_DONE;
    }
    struct chat loaded = *chat;
    loaded.messages = NULL;
    loaded.n_messages = loaded.capacity = 0;
    json_array_foreach(messages, i, message)
    {
        const char *content = json_string_value(json_object_get(message, "content"));
        chat_add_message(&loaded, role_of(json_string_value(json_object_get(message, "role"))), content, strlen(content));
    }
    json_decref(all);
    const bool taken = takes_a_turn(&loaded, path);
    if (taken) {
        const struct chat before = *chat;
        *chat = loaded;
        loaded = before;
        cmd_say(chat->options, "%s: %zu messages; the next turn reads them", path, n);
    }
    chat_drop_messages(&loaded, 0);
    free(loaded.messages);
    return CMD_DONE;
}

/* ---------------------------------------------------------------------------------------------- going back */

/* The last message of the user; n_messages: there is none. */
static size_t last_turn(const struct chat *chat)
{
    for (size_t i = chat->n_messages; i > 0; i--)
        if (strcmp(chat->messages[i - 1].role, "user") == 0)
            return i - 1;
    return chat->n_messages;
}

static int undo(struct chat *chat, const char *argument)
{
    const size_t turn = last_turn(chat);
    (void)argument;
    if (turn == chat->n_messages) {
        cmd_say(chat->options, "there is no turn to take back");
        return CMD_DONE;
    }
    const char *content = chat->messages[turn].content;
    for (const char *line;
         (line = strchr(content, '\n')) && line[1 + strspn(line + 1, " \n")];) /* documents stand before the question */
        content = line + 1;
    int n = (int)BUTLER_MIN(strcspn(content, "\n"), (size_t)60);
    while (n > 0 && ((unsigned char)content[n] & 0xC0) == 0x80) /* not within a character */
        n--;
    cmd_say(chat->options, "taken back%s: %.*s%s", content == chat->messages[turn].content ? "" : ", with what is before it", n,
            content, content[n] ? "..." : "");
    chat_drop_messages(chat, turn);
    if (chat->n_messages == 1 && strcmp(chat->messages[0].role, "system") == 0 && chat->options->system &&
        strcmp(chat->messages[0].content, chat->options->system) == 0)
        chat_drop_messages(chat, 0); /* the first turn adds it again */
    return CMD_DONE;
}

static int regen(struct chat *chat, const char *argument)
{
    const size_t turn = last_turn(chat);
    struct butler_chat_message before = {0};
    (void)argument;
    if (turn == chat->n_messages) {
        cmd_say(chat->options, "there is no turn to answer again");
        return CMD_DONE;
    }
    chat_drop_messages(chat, turn + 2);
    if (chat->n_messages == turn + 2)
        before = chat->messages[--chat->n_messages];
    const int status = chat_answer(chat);
    if (chat->n_messages == turn + 1 && before.content)
        chat->messages[chat->n_messages++] = before; /* no new answer: the old one stays */
    else
        free((char *)before.content);
    return status;
}

static int clear(struct chat *chat, const char *argument)
{
    (void)argument;
    const int status = chat_new_session(chat);
    if (status == CMD_DONE) {
        chat_drop_messages(chat, 0);
        chat->documents.n = 0;
        cmd_sources_free(&chat->sources);
    }
    return status;
}

/* -------------------------------------------------------------------------------------------------- policy */

static int policy(struct chat *chat, const char *argument)
{
    struct butler_error err = {0};
    if (!*argument) {
        cmd_say(chat->options, "the policy is %s", chat->policy);
        return CMD_DONE;
    }
    if (butler_policy_check(chat->engine, argument, &err) < 0 ||
        (chat->options->given[CMD_LOSSLESS] && !cmd_drafts_under(chat->engine, argument, &err))) {
        cmd_say(chat->options, "/policy: %s", err.message);
        return CMD_DONE;
    }
    if (chat_change_policy(chat, argument) != CMD_DONE)
        return CMD_DONE; /* which said why */
    chat->chosen = true;
    cmd_say(chat->options, "the policy is %s; the next turn reads the conversation again", chat->policy);
    return CMD_DONE;
}

static int leave(struct chat *chat, const char *argument)
{
    (void)argument;
    chat->done = true;
    return CMD_DONE;
}

/* --------------------------------------------------------------------------------------------------- table */

enum argument { NO_ARGUMENT, MAY_HAVE, MUST_HAVE };

static const struct {
    const char *name, *argument;
    enum argument takes;
    int (*run)(struct chat *chat, const char *argument); /* what is wrong is said; only what ends the program is no CMD_DONE */
    const char *help;
} commands[] = {
    {"help", "", NO_ARGUMENT, help, "lists the commands"},
    {"file", "PATH", MUST_HAVE, file, "puts a document before the next turn"},
    {"save", "PATH", MUST_HAVE, save, "writes the conversation as JSON"},
    {"load", "PATH", MUST_HAVE, load, "continues a conversation that /save wrote"},
    {"undo", "", NO_ARGUMENT, undo, "takes the last turn and its answer back"},
    {"regen", "", NO_ARGUMENT, regen, "answers the last turn again"},
    {"policy", "[POLICY]", MAY_HAVE, policy, "shows the policy, or goes on under another"},
    {"clear", "", NO_ARGUMENT, clear, "forgets the conversation"},
    {"exit", "", NO_ARGUMENT, leave, "ends the program"},
};

void chat_help(FILE *out)
{
    for (int i = 0; i < BUTLER_COUNT(commands); i++) {
        char name[32];
        snprintf(name, sizeof name, "/%s %s", commands[i].name, commands[i].argument);
        fprintf(out, "  %-18s %s\n", name, commands[i].help);
    }
    fputs("Any other line is a turn. A turn that begins with a slash needs a blank before it. Ctrl-C ends an answer.\n", out);
}

int chat_command(struct chat *chat, const char *line)
{
    const size_t n = strcspn(line + 1, " \t");
    char argument[4096];
    const char *rest = line + 1 + n + strspn(line + 1 + n, " \t");
    size_t n_rest = strlen(rest);
    while (n_rest && strchr(" \t\r", rest[n_rest - 1]))
        n_rest--;
    for (int i = 0; i < BUTLER_COUNT(commands); i++) {
        if (strlen(commands[i].name) != n || memcmp(commands[i].name, line + 1, n) != 0)
            continue;
        if (n_rest >= sizeof argument || (n_rest ? commands[i].takes == NO_ARGUMENT : commands[i].takes == MUST_HAVE)) {
            cmd_say(chat->options, "usage: /%s %s", commands[i].name, commands[i].argument);
            return CMD_DONE;
        }
        snprintf(argument, sizeof argument, "%.*s", (int)n_rest, rest);
        return commands[i].run(chat, argument);
    }
    cmd_say(chat->options, "unknown command '/%.*s'; /help lists them", (int)n, line + 1);
    return CMD_DONE;
}
