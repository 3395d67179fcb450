/* A conversation: what chat.c keeps of it and chat_commands.c changes. */
#ifndef CHAT_H
#define CHAT_H

#include "cmd.h"

struct chat {
    struct cmd_options *options;
    struct butler_engine *engine;
    const struct butler_model *model; /* the engine's */
    struct butler_session *session;
    struct butler_library *library; /* or NULL */
    struct butler_sampler *sampler;
    struct cmd_template template;
    char *policy;                         /* owned */
    struct butler_chat_message *messages; /* [n_messages], contents owned */
    size_t n_messages, capacity;
    struct butler_buffer documents; /* they stand before the next turn */
    struct cmd_sources sources;     /* those of all turns */
    struct cmd_integers ids;        /* the session's tokens */
    struct butler_buffer held;      /* the text that they stand for; empty: not known */
    bool done;                      /* /exit */
    bool chosen;                    /* by /policy: --kv auto has no say any more */
};

/* role: a literal; content[n] is copied. */
void chat_add_message(struct chat *chat, const char *role, const char *content, size_t n);
/* Forgets the messages from the n-th on. */
void chat_drop_messages(struct chat *chat, size_t n);
/* An empty session under the policy: the messages are read again by the next turn. CMD_DONE or the exit status, and the old one
 * stays. */
int chat_new_session(struct chat *chat);
/* The same under another policy. */
int chat_change_policy(struct chat *chat, const char *policy);
/* Reads what is new of the conversation, which ends with a user's message, and adds the answer to it. Where that is not possible
 * (no space in the context, Ctrl-C while it is read) nothing is added, after a message. CMD_DONE or the exit status. */
int chat_answer(struct chat *chat);

/* Runs a line that begins with a slash. CMD_DONE or the exit status. */
int chat_command(struct chat *chat, const char *line);
/* Lists the commands. */
void chat_help(FILE *out);

#endif
