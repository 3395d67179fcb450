/* butler chat: a conversation in one session. Earlier turns stay in the cache; a turn adds only its own tokens. Ctrl-C ends an
 * answer, the end of input ends the program. */
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
    const struct cmd_template *template;
    const char *eos;
    bool first;
    struct cmd_text answer; /* of this turn, all bytes that were sampled */
    size_t n_shown;
    size_t n_ahead; /* bytes of the next turn's beginning that the model wrote itself and the cache holds already */
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

/* ------------------------------------------------------------------------------------------------ template */

static int choose_template(struct chat *chat)
{
    char names[256];
    const char *wanted = chat->options->chat_template, *jinja = butler_model_get_info(chat->model)->chat_template;
    cmd_template_names(names, sizeof names);
    if (wanted) {
        chat->template = cmd_template_find(wanted);
        if (chat->template)
            return CMD_DONE;
        cmd_say(chat->options, "--chat-template: '%s' is not allowed; it takes %s", wanted, names);
        return CMD_USAGE;
    }
    chat->template = jinja ? cmd_template_recognise(jinja) : cmd_template_find("plain");
    if (chat->template)
        return CMD_DONE;
    cmd_say(chat->options, "the model's chat template is unknown: it begins with '%.60s'; choose one with --chat-template: %s",
            jinja, names);
    return CMD_FAILED;
}

/* The text of this vocabulary's end-of-text token, or "". */
static const char *find_eos(const struct butler_model *model)
{
    static const char *const candidates[] = {"</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>"};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        int32_t ids[2];
        if (butler_tokenize(model, candidates[i], strlen(candidates[i]), BUTLER_PARSE_SPECIAL, ids, 2, NULL) == 1 &&
            butler_token_is_end(model, ids[0]))
            return candidates[i];
    }
    return "";
}

/* -------------------------------------------------------------------------------------------------- answer */

/* Prints the part of the answer that cannot be the beginning of the stop text. True: the stop text was found, at *at. */
static bool show(struct chat *chat, bool last, size_t *at)
{
    const char *stop = chat->template->stop;
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

static int answer(struct chat *chat)
{
    struct butler_error err = {0};
    struct butler_utf8 stream = {0};
    int n_vocab = butler_model_get_info(chat->model)->n_vocab, n_ctx = butler_n_ctx(chat->session);
    size_t at;
    chat->answer.n = chat->n_shown = 0;
    chat->n_ahead = 0;
    for (int i = 0; (chat->options->n < 0 || i < chat->options->n) && !interrupted(); i++) {
        int32_t id = butler_sample(chat->sampler, butler_logits(chat->session), n_vocab, &err);
        if (id < 0)
            return cmd_fail(chat->options, &err);
        if (butler_token_is_end(chat->model, id))
            break;
        size_t before = chat->answer.n;
        append_token(chat, &stream, id);
        if (show(chat, false, &at)) {
            /* The cache holds the stop text except its last token, which was not decoded. */
            chat->n_ahead = before > at ? before - at : 0;
            break;
        }
        if (butler_n_past(chat->session) >= n_ctx) {
            fprintf(stderr, "\n(the context of %d tokens is full: /clear forgets the conversation; -c sets a larger context)",
                    n_ctx);
            break;
        }
        if (butler_step(chat->session, id, &err) < 0)
            return cmd_fail(chat->options, &err);
        if (butler_should_stop(chat->session))
            break;
    }
    append_token(chat, &stream, -1);
    show(chat, true, &at);
    cmd_out("\n", 1);
    cmd_out_flush();
    return CMD_DONE;
}

/* ---------------------------------------------------------------------------------------------------- turn */

/* Runs the user's turn as a prompt. *fits: the context had space for it. */
static int take_turn(struct chat *chat, const char *user, bool *fits)
{
    struct cmd_text text = {0};
    struct cmd_integers ids = {0};
    cmd_template_turn(chat->template, chat->eos, chat->first, chat->options->system, user, &text);
    size_t skip = chat->first ? 0 : chat->n_ahead; /* the model itself wrote how this turn begins */
    int status = cmd_tokenize_text(chat->options, chat->model, text.bytes + skip, text.n - skip,
                                   chat->first ? BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL : BUTLER_PARSE_SPECIAL, &ids);
    int n_past = butler_n_past(chat->session), n_ctx = butler_n_ctx(chat->session);
    *fits = ids.n <= n_ctx - n_past;
    if (status == CMD_DONE && !*fits)
        cmd_say(chat->options,
                "the conversation has %d tokens and this turn %d, but the context holds %d: /clear forgets the conversation",
                n_past, ids.n, n_ctx);
    else if (status == CMD_DONE)
        status = cmd_prefill(chat->options, chat->session, &ids);
    if (status == CMD_DONE && *fits)
        chat->first = false;
    free(ids.values);
    cmd_text_free(&text);
    return status;
}

static int clear(struct chat *chat)
{
    int status = CMD_DONE;
    butler_session_free(chat->session);
    chat->first = true;
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
    struct chat chat = {.options = options, .first = true};
    if (options->kv.n > 1) {
        cmd_say(options, "--kv: a conversation has one policy, but %d are given", options->kv.n);
        return CMD_USAGE;
    }
    interrupts_start();
    chat.engine = cmd_engine_load(options, &status);
    if (!chat.engine)
        return status;
    chat.model = butler_engine_model(chat.engine);
    status = choose_template(&chat);
    if (status != CMD_DONE)
        goto done;
    chat.eos = find_eos(chat.model);
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
        "The template is recognised from the model's file; --chat-template names one instead: chatml, llama3, llama2,\n"
        "mistral, mistral-v3, phi3, zephyr, deepseek, vicuna, plain. A model without a template gets plain: lines beginning with\n"
        "User: and Assistant:.\n",
    .uses = uses,
    .run = run,
};
