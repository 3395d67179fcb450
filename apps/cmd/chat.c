/* butler chat: a conversation in one session. Each turn renders the whole conversation; the session goes on from the beginning that
 * it already holds, so that a turn adds only its own tokens. Ctrl-C ends an answer, the end of input ends the program. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/chat.h"

/* ------------------------------------------------------------------------------------------------ messages */

void chat_add_message(struct chat *chat, const char *role, const char *content, size_t n)
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

void chat_drop_messages(struct chat *chat, size_t n)
{
    while (chat->n_messages > n)
        free((char *)chat->messages[--chat->n_messages].content);
}

/* -------------------------------------------------------------------------------------------------- answer */

static int generate(struct chat *chat)
{
    struct cmd_answer answer = {0};
    const int status = cmd_answer_generate(chat->options, chat->engine, chat->session, chat->sampler, chat->template.stop, &answer);
    for (int i = 0; i < answer.ids.n; i++)
        cmd_integers_append(&chat->ids, answer.ids.values[i]);
    cmd_append(&chat->held, answer.text.bytes, answer.n_held);
    if (answer.end == CMD_END_CONTEXT) {
        const int n_ctx = butler_n_ctx(chat->session), n_train = butler_model_get_info(chat->model)->n_ctx_train;
        fprintf(stderr, "(the context of %d tokens is full: /clear forgets the conversation", n_ctx);
        if (n_ctx < n_train)
            fprintf(stderr, "; -c sets a larger context, up to the %d that the model was trained for", n_train);
        fprintf(stderr, ")\n");
    }
    if (status == CMD_DONE) {
        chat_add_message(chat, "assistant", answer.text.bytes, answer.n);
        if (chat->sources.n > 0)
            cmd_receipt_say(chat->options, chat->model, chat->session, &chat->ids, &chat->sources);
    }
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

/* After Ctrl-C: the session is again what it was, or empty where its policy cannot go back. */
static int forget_new_tokens(struct chat *chat, bool *fits)
{
    struct butler_error err = {0};
    *fits = false;
    cmd_say(chat->options, "interrupted: this turn is forgotten, with the documents before it%s",
            chat->library ? "; what was read of them is kept" : "");
    if (butler_session_truncate(chat->session, chat->ids.n, NULL) == 0)
        return CMD_DONE;
    chat->ids.n = 0;
    chat->held.n = 0;
    return butler_session_truncate(chat->session, 0, &err) < 0 ? cmd_fail(chat->options, &err) : CMD_DONE;
}

/* Under --kv auto: goes on under the policy that the gate allows at n tokens. A session that has read something is only given up
 * where the library has what it read. *changed: the session is a new one. */
static int follow_gate(struct chat *chat, int n, bool *changed)
{
    const struct cmd_auto *automatic = &chat->options->automatic;
    *changed = false;
    if (!chat->chosen)
        cmd_auto_say_why(chat->options, n);
    if (!automatic->open || chat->chosen || (chat->ids.n > 0 && !chat->library))
        return CMD_DONE;
    const char *policy = cmd_auto_policy(automatic, n);
    if (strcmp(policy, chat->policy) == 0)
        return CMD_DONE;
    const int status = chat_change_policy(chat, policy);
    *changed = status == CMD_DONE;
    if (*changed)
        cmd_say(chat->options, "--kv auto: %s from here on; /policy full reads everything", policy);
    return status;
}

/* Runs what is new in the text as a prompt. *fits: the context had space for it. */
static int read_text(struct chat *chat, const struct butler_chat_text *text, bool *fits)
{
    struct butler_error err = {0};
    struct cmd_integers ids = {0};
    int n_keep = 0, status = find_new_tokens(chat, text, &ids, &n_keep);
    bool changed = false;
    if (status == CMD_DONE)
        status = follow_gate(chat, n_keep + ids.n, &changed);
    if (status == CMD_DONE && changed) {
        free(ids.values);
        ids = (struct cmd_integers){0};
        status = find_new_tokens(chat, text, &ids, &n_keep);
    }
    const int n_ctx = butler_n_ctx(chat->session);
    *fits = ids.n <= n_ctx - n_keep;
    if (status == CMD_DONE && !*fits)
        cmd_say(chat->options,
                "the conversation has %d tokens and this turn %d, but the context holds %d: /clear forgets the conversation%s",
                n_keep, ids.n, n_ctx, chat->documents.n ? "; this turn is forgotten, with the documents before it" : "");
    if (status == CMD_DONE && *fits && n_keep < chat->ids.n)
        chat->held.n = 0;
    if (status == CMD_DONE && *fits)
        status = go_back(chat, text, n_keep, &ids);
    if (status == CMD_DONE && *fits && chat->sources.n > 0)
        status = cmd_receipt_begin(chat->options, chat->session);
    if (status == CMD_DONE && *fits)
        status = cmd_prefill(chat->options, chat->engine, chat->session, &ids);
    if (status == CMD_DONE && *fits && butler_sampler_accept(chat->sampler, ids.values, ids.n, &err) < 0)
        status = cmd_fail(chat->options, &err);
    for (int i = 0; status == CMD_DONE && *fits && i < ids.n; i++)
        cmd_integers_append(&chat->ids, ids.values[i]);
    free(ids.values);
    if (status == CMD_DONE && *fits) {
        chat->held.n = 0;
        cmd_append(&chat->held, text->bytes, text->n);
    }
    return status == CMD_INTERRUPTED ? forget_new_tokens(chat, fits) : status;
}

int chat_answer(struct chat *chat)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    bool fits = false;
    if (cmd_template_render(&chat->template, chat->model, chat->messages, chat->n_messages, &text, &err) < 0)
        return cmd_fail(chat->options, &err);
    const int status = read_text(chat, &text, &fits);
    butler_chat_text_free(&text);
    return status == CMD_DONE && fits ? generate(chat) : status;
}

/* A turn of the user, with the documents before it. Without an answer it is forgotten. */
static int take_turn(struct chat *chat, const char *user)
{
    const char *system = chat->options->system;
    const size_t n_before = chat->n_messages;
    struct butler_buffer content = {0};
    if (n_before == 0 && system && *system)
        chat_add_message(chat, "system", system, strlen(system));
    cmd_append(&content, chat->documents.bytes, chat->documents.n);
    cmd_append(&content, user, strlen(user));
    chat_add_message(chat, "user", content.bytes, content.n);
    butler_buffer_free(&content);
    const size_t n_turn = chat->n_messages;
    const int status = chat_answer(chat);
    if (chat->n_messages == n_turn)
        chat_drop_messages(chat, n_before);
    chat->documents.n = 0;
    return status;
}

int chat_new_session(struct chat *chat)
{
    int status = CMD_DONE;
    struct butler_session *session = cmd_session_new(chat->options, chat->engine, chat->policy, chat->options->n_ctx, &status);
    session = cmd_add_steps(chat->options, session, &status);
    if (status != CMD_DONE) {
        butler_session_free(session);
        return status;
    }
    butler_session_free(chat->session);
    chat->session = session;
    chat->held.n = 0;
    chat->ids.n = 0;
    cmd_library_use(chat->options, chat->library, chat->session);
    return CMD_DONE;
}

int chat_change_policy(struct chat *chat, const char *policy)
{
    char *before = chat->policy;
    chat->policy = cmd_copy(policy);
    const int status = chat_new_session(chat);
    if (status != CMD_DONE) {
        free(chat->policy);
        chat->policy = before;
        return status;
    }
    free(before);
    return CMD_DONE;
}

static int converse(struct chat *chat)
{
    struct cmd_lines lines;
    const char *line;
    int status = chat_new_session(chat);
    cmd_lines_open(&lines);
    while (status == CMD_DONE && !chat->done && !cmd_terminated() && (line = cmd_line_read(&lines, "> ")) != NULL) {
        if (line[0] == '/' && !strchr(line, '\n'))
            status = chat_command(chat, line);
        else if (*line)
            status = take_turn(chat, line);
    }
    cmd_lines_close(&lines);
    return status;
}

static int read_documents(struct chat *chat)
{
    const struct cmd_strings *documents = &chat->options->documents;
    int status = CMD_DONE;
    for (int i = 0; status == CMD_DONE && i < documents->n; i++)
        status = cmd_document_append(chat->options, documents->values[i], &chat->documents, &chat->sources);
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
    for (int i = 0; i < options->documents.n; i++)
        if (strcmp(options->documents.values[i], "-") == 0) {
            cmd_say(options, "-f -: standard input is the conversation; name a file");
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
    chat.sampler = cmd_sampler_new(options, chat.model, &status);
    chat.policy = cmd_copy(options->kv.values[0]);
    chat.library = cmd_library_try(options);
    if (chat.sampler)
        status = read_documents(&chat);
    if (status == CMD_DONE)
        status = converse(&chat);
    if (status == CMD_DONE && chat.session) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        butler_session_stats(chat.session, &stats);
        if (stats.n_decode)
            cmd_say(options, "%llu tokens, %.1f a second, %.1f %% of the KV cache read", (unsigned long long)stats.n_decode,
                    (double)stats.n_decode / stats.decode_s, 100 * cmd_kv_read(&stats));
    }
done:
    chat_drop_messages(&chat, 0);
    free(chat.messages);
    free(chat.policy);
    butler_buffer_free(&chat.documents);
    cmd_sources_free(&chat.sources);
    free(chat.ids.values);
    cmd_template_free(&chat.template);
    butler_buffer_free(&chat.held);
    butler_sampler_free(chat.sampler);
    butler_session_free(chat.session);
    butler_library_free(chat.library);
    cmd_engine_free(chat.engine);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_MODEL, NULL},
    {CMD_PRE, NULL},
    {CMD_DOCUMENTS, NULL},
    {CMD_SYSTEM, NULL},
    {CMD_CHAT_TEMPLATE, NULL},
    {CMD_N, "-1"},
    {CMD_CTX, "0"},
    {CMD_KV, "auto"},
    {CMD_KV_TYPE, "f16"},
    {CMD_KV_RESIDENT, "0"},
    {CMD_LOSSLESS, NULL},
    {CMD_BLOCK, "0"},
    {CMD_TEMP, "0.8"},
    {CMD_TOP_K, "40"},
    {CMD_TOP_P, "0.95"},
    {CMD_MIN_P, "0.05"},
    CMD_PENALTIES,
    CMD_CONSTRAINTS,
    {CMD_SEED, "0"},
    {CMD_THREADS, "0"},
    {CMD_DEVICE, NULL},
    {CMD_ISA, NULL},
    {CMD_PRECISION, "8"},
    {CMD_ROPE_SCALING, NULL},
    {CMD_ROPE_SCALE, "0"},
    {CMD_ROPE_ORIGINAL, "0"},
    {CMD_PLUGIN, NULL},
    {CMD_STEP, NULL},
    {CMD_PREDICTOR, NULL},
    {CMD_CACHE, NULL},
    {CMD_CACHE_SIZE, "0"},
    {CMD_NO_CACHE, NULL},
    {CMD_RECEIPT, "8"},
    {CMD_HELP, NULL},
    {CMD_NONE, NULL},
};

const struct cmd_command cmd_chat = {
    .name = "chat",
    .synopsis = "[-m FILE] [-f FILE]... [--system-prompt TEXT] [--kv POLICY] [FLAGS]",
    .summary = "a conversation, with the model's chat template",
    .details =
        "Without -m the model is found as in `butler ask`.\n\n"
        "Reads a turn from every line of standard input and prints the answer. On a terminal lines are edited, the arrow keys "
        "bring\n"
        "back earlier ones, and a pasted text of many lines is one turn. Ctrl-C ends an answer or drops a line; Ctrl-D (the end "
        "of\n"
        "input) ends the program. A document of -f stands before the first turn; what is read is kept in the folder of --cache "
        "and\n"
        "not read again: see `butler ask --help`.\n\n"
        "A line that begins with a slash is a command; /help lists them: /file, /save, /load, /undo, /regen, /policy, /clear, "
        "/exit.\n"
        "/save writes the messages as JSON, which any model can continue.\n\n"
        "The conversation is rendered by the template of the model's file. --chat-template takes another: a file with a Jinja\n"
        "template, or chatml, llama3, llama2, mistral, mistral-v3, phi3, zephyr, deepseek, vicuna, plain. A model without a\n"
        "template gets plain: lines beginning with User: and Assistant:. A template that cannot be rendered is replaced by\n"
        "chatml, with a warning. What looks like a special token in a turn stays text.\n",
    .uses = uses,
    .answers = true,
    .run = run,
};
