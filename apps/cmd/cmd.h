/* What the files of the command share: one table of flags, one file per subcommand, one way to write a row. A subcommand lists
 * the flags it takes with their defaults as text; options.c parses the flags and prints the help from that list. */
#ifndef CMD_H
#define CMD_H

#include <jansson.h>
#include <stdio.h>

#include "butler.h"
#include "base/buffer.h"
#include "butler_plugin.h"
#include "butler_tools.h"

/* The exit status. CMD_INTERRUPTED never is one: Ctrl-C ended what a function did, and its caller decides what that means. */
enum cmd_status { CMD_DONE = 0, CMD_FAILED = 1, CMD_USAGE = 2, CMD_INTERRUPTED = 3 };

enum {
    CMD_MAX_LIST = 64, /* values of a flag that may be repeated or takes a list */
    CMD_MAX_POSITIONAL = 4,
    CMD_MAX_DRAFTS = 15, /* the library's */
};

/* ------------------------------------------------------------------------------------------------ options */

enum cmd_flag {
    CMD_NONE, /* ends a list */
    CMD_MODEL,
    CMD_PROMPT,
    CMD_FILE,
    CMD_DOCUMENTS,
    CMD_IDS,
    CMD_ALL,
    CMD_TOP,
    CMD_NO_SPECIAL,
    CMD_N,
    CMD_CTX,
    CMD_BLOCK,
    CMD_DEPTH,
    CMD_BATCH,
    CMD_WARMUP,
    CMD_KV,
    CMD_KV_TYPE,
    CMD_LOSSLESS,
    CMD_PLUGIN,
    CMD_STEP,
    CMD_PREDICTOR,
    CMD_TEMP,
    CMD_TOP_K,
    CMD_TOP_P,
    CMD_MIN_P,
    CMD_TYPICAL,
    CMD_REPEAT_PENALTY,
    CMD_REPEAT_LAST_N,
    CMD_FREQUENCY_PENALTY,
    CMD_PRESENCE_PENALTY,
    CMD_LOGIT_BIAS,
    CMD_MIN_TOKENS,
    CMD_IGNORE_EOS,
    CMD_STOP,
    CMD_GRAMMAR,
    CMD_JSON_SCHEMA,
    CMD_SEED,
    CMD_SYSTEM,
    CMD_CHAT_TEMPLATE,
    CMD_SAVE_SESSION,
    CMD_LOAD_SESSION,
    CMD_CACHE,
    CMD_CACHE_SIZE,
    CMD_NO_CACHE,
    CMD_REREAD,
    CMD_VERBOSE,
    CMD_RECEIPT,
    CMD_TOKENIZER,
    CMD_PRE,
    CMD_OUTPUT,
    CMD_BUDGET,
    CMD_DATA,
    CMD_LENGTH,
    CMD_LIMIT,
    CMD_MODE,
    CMD_SET,
    CMD_SHOTS,
    CMD_CALIBRATE_DATA,
    CMD_TRAIN_DATA,
    CMD_TRAIN_VERSION,
    CMD_RECIPE,
    CMD_RESUME,
    CMD_START,
    CMD_TRAIN_LENGTH,
    CMD_USES,
    CMD_QUERIES,
    CMD_DROPOUT,
    CMD_TRAIN_TOKENS,
    CMD_STEPS,
    CMD_TRAIN_BATCH,
    CMD_ACCUMULATE,
    CMD_LR,
    CMD_DECAY,
    CMD_LOSS,
    CMD_TRAIN_INPUT,
    CMD_DIM,
    CMD_MID,
    CMD_KEY_HEADS,
    CMD_ROTATE,
    CMD_BEGIN,
    CMD_VALID,
    CMD_VALID_TEXTS,
    CMD_EVERY,
    CMD_CHECKPOINT,
    CMD_TYPE,
    CMD_HOST,
    CMD_PORT,
    CMD_ALIAS,
    CMD_API_KEY,
    CMD_API_KEY_FILE,
    CMD_ADMIN_KEY,
    CMD_KV_RAM,
    CMD_KV_RESIDENT,
    CMD_KV_DISK,
    CMD_PARK,
    CMD_MAX_STALL,
    CMD_PARALLEL,
    CMD_QUEUE,
    CMD_CONNECTIONS,
    CMD_MAX_BODY,
    CMD_TIMEOUT,
    CMD_ACCESS_LOG,
    CMD_AUDIT,
    CMD_THREADS,
    CMD_DEVICE,
    CMD_ISA,
    CMD_PRECISION,
    CMD_ROPE_SCALING,
    CMD_ROPE_SCALE,
    CMD_ROPE_ORIGINAL,
    CMD_JSON,
    CMD_HELP,
    CMD_N_FLAGS,
};

struct cmd_strings {
    int n;
    const char *values[CMD_MAX_LIST];
};

struct cmd_integers {
    int n, capacity;
    int32_t *values; /* owned */
};

struct cmd_reals {
    int n;
    double values[CMD_MAX_LIST];
};

struct cmd_biases {
    int n;
    struct butler_logit_bias values[CMD_MAX_LIST];
};

/* What `train` alone takes. */
struct cmd_train {
    const char *data, *valid, *version, *recipe, *loss, *input, *key_heads, *rotate, *begin, *type, *start;
    bool resume;
    int length, n_uses, n_queries, n_tokens, n_steps, batch, accumulate, dim, mid, n_valid, every, checkpoint_s;
    double lr, decay, dropout;
};

/* What --kv auto stands for: see auto.c. */
struct cmd_auto {
    bool open;       /* --kv is auto */
    int at;          /* its place in kv */
    json_t *on;      /* owned: policies by length, of a gate that holds here; NULL: none */
    const char *why; /* there is none */
    bool said;       /* why */
};

struct cmd_options {
    const struct cmd_command *command;
    struct cmd_auto automatic;
    bool given[CMD_N_FLAGS]; /* on the command line, not by default */
    struct cmd_strings positional;
    char *found_model; /* owned; what model points to where there is no -m */

    const char *model, *prompt, *file, *device, *isa, *system, *chat_template, *save_session, *load_session, *tokenizer, *pre,
        *output, *data, *mode, *cache;
    struct cmd_strings kv, plugins, steps, predictors, settings, documents, stops;
    struct cmd_integers ids, depths, lengths;
    int shots;
    struct cmd_reals budgets;
    int receipt;  /* steps from one that is compared to the next; 0: none is */
    int n_drafts; /* of --lossless; 0: the library's default */
    int limit, top, n, n_ctx, n_block, n_threads, batch, warmup, top_k;
    int kv_type; /* enum butler_kv_type */
    int precision;
    const char *rope_scaling; /* and the next two: as in butler_model_params */
    double rope_scale;
    int rope_original_ctx;
    double temperature, top_p, min_p, typical, repeat_penalty, frequency_penalty, presence_penalty;
    int repeat_last_n, min_tokens;
    struct cmd_biases logit_biases;
    bool ignore_eos;
    const char *grammar; /* a file */
    const char *schema;  /* a file, or JSON that begins with { */
    uint64_t seed, cache_bytes;
    uint64_t kv_ram, kv_disk; /* the engine's kv_ram; serve: how much more than kv_bytes lies in its file */
    bool all, no_special, json, help, no_cache, reread, verbose;
    double start_s; /* of the command, by butler_seconds */
    /* serve; kv_bytes and prefix_bytes are the engine's, 0: its default */
    const char *host, *access_log, *park, *alias, *api_key_file, *admin_key;
    struct cmd_strings api_keys;
    int port, max_stall, parallel, queue, connections, timeout, audit;
    uint64_t kv_bytes, prefix_bytes, max_body;
    struct cmd_train train;
};

/* A flag that a command takes; value: its default, parsed as if it had been given; NULL: none. */
struct cmd_use {
    enum cmd_flag flag;
    const char *value;
};

/* What all commands that sample take beside temperature, top-k, top-p, min-p and seed. */
#define CMD_PENALTIES                                                                                                              \
    {CMD_TYPICAL, "1"}, {CMD_REPEAT_PENALTY, "1"}, {CMD_REPEAT_LAST_N, "64"}, {CMD_FREQUENCY_PENALTY, "0"},                        \
    {                                                                                                                              \
        CMD_PRESENCE_PENALTY, "0"                                                                                                  \
    }

/* What commands that sample a text take, but for the server, whose requests bring their own. */
#define CMD_CONSTRAINTS                                                                                                            \
    {CMD_LOGIT_BIAS, NULL}, {CMD_MIN_TOKENS, "0"}, {CMD_GRAMMAR, NULL}, {CMD_JSON_SCHEMA, NULL}, {CMD_IGNORE_EOS, NULL},           \
    {                                                                                                                              \
        CMD_STOP, NULL                                                                                                             \
    }

struct cmd_command {
    const char *name, *synopsis, *summary;
    const char *details;        /* for --help, after the flags */
    const struct cmd_use *uses; /* ends with CMD_NONE */
    bool answers;               /* answers people: without -m it takes no model that cannot */
    int min_positional, max_positional;
    int (*run)(struct cmd_options *options); /* enum cmd_status */
};

/* The subcommands in the order of the help, listed only here: each(NAME) for struct cmd_command cmd_NAME. */
#define CMD_COMMANDS(each)                                                                                                         \
    each(run) each(ask) each(chat) each(library) each(serve) each(info) each(tokenize) each(logits) each(policies) each(plan)      \
        each(bench) each(eval) each(gate) each(report) each(convert) each(quantize) each(train) each(calibrate)
#define CMD_DECLARE(name) extern const struct cmd_command cmd_##name;
CMD_COMMANDS(CMD_DECLARE)
#undef CMD_DECLARE

/* Fills *options from argv[argc] (after the subcommand). CMD_DONE, or CMD_USAGE after a message that names the error.
 * Strings are borrowed from argv. */
int cmd_options_parse(struct cmd_options *options, const struct cmd_command *command, int argc, char **argv);
void cmd_options_free(struct cmd_options *options);
void cmd_help_print(const struct cmd_command *command);
const char *cmd_kv_type_name(enum butler_kv_type type);

/* ------------------------------------------------------------------------------------------------- output */

/* Checked writes to standard output: a closed pipe ends the program without a message and with CMD_FAILED, any other error with
 * a message. */
void cmd_out(const char *bytes, size_t n);
void cmd_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cmd_out_flush(void);
/* Writes one row on a line of its own and frees it. Nine significant digits represent every float exactly. */
void cmd_row(json_t *row);
/* As json_string, with U+FFFD for what is not UTF-8. */
/* text[n] into out, control characters, which a terminal would obey, as \xNN; cut to what has room. Returns out. */
char *cmd_plain(char *out, size_t n_out, const char *text, size_t n);
json_t *cmd_json_text(const char *bytes, size_t n);

/* "butler NAME: message" on standard error. */
void cmd_say(const struct cmd_options *options, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the error and returns the exit status: CMD_USAGE when a flag's value is wrong, else CMD_FAILED. */
int cmd_fail(const struct cmd_options *options, const struct butler_error *err);

/* --kv auto, where a command's default is that. cmd_engine_load opens it, and cmd_auto_choose puts the policy into options->kv once
 * the length of the text is known; until then "full" stands there. */
void cmd_auto_open(struct cmd_options *options, struct butler_engine *engine);
/* The policy for a text that comes to have n_tokens at most; valid until cmd_options_free. */
const char *cmd_auto_policy(const struct cmd_auto *automatic, int n_tokens);
/* Says once, for texts from 4096 tokens on, why no gate's policy is used. Does nothing where one is, or --kv names a policy. */
void cmd_auto_say_why(struct cmd_options *options, int n_tokens);
/* Puts the policy of a text into options->kv and says on standard error which one a long text gets, and why. */
void cmd_auto_choose(struct cmd_options *options, int n_tokens);

/* What a long job shows of its progress. `what` stands before the bar, or is "". */
struct cmd_bar {
    const struct cmd_options *options;
    const char *what;
    double start, shown; /* seconds */
    double resumed;      /* fraction of the work that an earlier run had done; below 0: not known yet */
    bool terminal;
};
void cmd_bar_begin(struct cmd_bar *bar, const struct cmd_options *options, const char *what);
void cmd_bar_show(struct cmd_bar *bar, double done); /* done: the fraction, 0 .. 1 */
void cmd_bar_wipe(const struct cmd_bar *bar);        /* before a line of text */

/* ------------------------------------------------------------------------------------------------- set up */

/* Most bytes that the process can have: the machine's memory, or less where its control group is limited. *whose: which of both. */
uint64_t cmd_memory_limit(const char **whose);

/* Joins the processes that mpirun started, where it started this one; *out ends with out->end. */
struct butler_gather;
int cmd_join_processes(const struct cmd_options *options, struct butler_gather *out);

/* butler_buffer_append. Without memory the program prints an error and exits. */
void cmd_append(struct butler_buffer *text, const char *bytes, size_t n);

/* Zeroed memory for count elements. Without memory the program prints an error and exits. */
void *cmd_alloc(size_t count, size_t size);
char *cmd_copy(const char *text); /* of a string, to be freed */

/* What rows of an evaluation say of flags that change what is measured, ",isa=avx2,pre=qwen2,plugin=DIGEST"; "" without any. */
enum { CMD_CONDITIONS = 512 };
const char *cmd_conditions(const struct cmd_options *options, char out[CMD_CONDITIONS]);
/* Of --predictor's files, or of the query centres beside the model; 0: there are none. */
uint64_t cmd_centres_digest(const struct cmd_options *options);

/* Loads options->model (or the default model), then its plug-ins, and checks every --kv against it. NULL: *status is
 * the exit status. */
struct butler_engine *cmd_engine_load(struct cmd_options *options, int *status);
/* The same for a --device of several, engines[most] of one model on devices[most]. Their number; 0: *status is the exit status. */
int cmd_engines_load(struct cmd_options *options, struct butler_engine **engines, struct butler_device_info *devices, int most,
                     int *status);
/* Whether --device is cuda:all, opencl:all or a list such as cuda:0,cuda:1; and then which these are, devices[most]. Returns their
 * number, 0: there is none, or not all of the list. */
bool cmd_names_devices(const struct cmd_options *options);
int cmd_devices(const struct cmd_options *options, struct butler_device_info *devices, int most);
/* Bytes of the device that --device names, the smallest of several; 0: it is the CPU, or none that is known. *most: that KV pages
 * take of it unless somebody says otherwise: half, or of OpenCL's a quarter, which any allocation may have. */
uint64_t cmd_device_memory(const struct cmd_options *options, uint64_t *most);
void cmd_engine_free(struct butler_engine *engine); /* with its model; may be NULL */
/* As above, but only the vocabulary. */
struct butler_model *cmd_vocabulary_load(struct cmd_options *options, int *status);

/* Without -m: finds a model, says which on standard error, and sets options->model. CMD_DONE, or CMD_USAGE after a message. */
int cmd_choose_model(struct cmd_options *options);

/* The path of `name` in the folder of models: beside the executable, or under the prefix it is installed in. */
bool cmd_find_model_file(const char *name, char *path, size_t n_path);

/* The text of -p or -f ("-" is standard input). CMD_DONE, CMD_USAGE when there is none or both, CMD_FAILED when it
 * cannot be read. */
int cmd_text_read(const struct cmd_options *options, struct butler_buffer *text);
int cmd_file_read(const struct cmd_options *options, const char *path, struct butler_buffer *text);
/* Refuses, with CMD_USAGE, to write `out` over a file that is read: one of in[n], the model, or the text. in may have NULLs. */
int cmd_check_output(const struct cmd_options *options, const char *out, const char *const *in, int n);

/* Tokens of the text; CMD_DONE or the exit status. flags: enum butler_tokenize_flags. */
int cmd_tokenize_text(const struct cmd_options *options, const struct butler_model *model, const char *bytes, size_t n, int flags,
                      struct cmd_integers *ids);
void cmd_integers_append(struct cmd_integers *integers, int32_t value);

struct butler_session *cmd_session_new(const struct cmd_options *options, struct butler_engine *engine, const char *policy,
                                       int n_ctx, int *status);
/* Where a text of n_tokens is longer than what the model was trained for and the policy is `streaming`: the policy with positions
 * inside the cache, which reads any length in constant memory, to be freed, and the context to open a session with; a note says so.
 * NULL, and *n_ctx as it was: the text fits, or the policy or the model cannot. */
char *cmd_stream(const struct cmd_options *options, struct butler_engine *engine, const char *policy, int64_t n_tokens, int *n_ctx);
/* Says that a text does not fit, and what there is to choose; a -c only where the model was trained for it. what: "the prompt has";
 * n_answer: tokens of the answer. */
void cmd_say_choices(const struct cmd_options *options, struct butler_engine *engine, const char *what, int64_t n_tokens,
                     int n_answer, int n_ctx);
/* Adds the plug-ins of --step to a session, which may be NULL. Where one cannot be added, the session is freed: NULL and *status.
 */
struct butler_session *cmd_add_steps(const struct cmd_options *options, struct butler_session *session, int *status);
/* butler_prefill; of a text that begins only what neither memory nor the session's library has. Progress goes to standard error: on
 * a terminal all the time, else every ten seconds, and how long it will take, where that is long. CMD_DONE, CMD_INTERRUPTED (the
 * session holds the passes until then, the library keeps them) or the exit status. */
int cmd_prefill(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session,
                const struct cmd_integers *ids);
/* The flags of sampling, without seed and minimum of tokens; borrows from the options. */
struct butler_sampler_params cmd_sampler_params(const struct cmd_options *options);
struct butler_sampler *cmd_sampler_new(const struct cmd_options *options, const struct butler_model *model, int *status);

/* Tokens of a text, one after the other: each is drawn, and then decoded. With --lossless they come from checked drafts, some of
 * them at once; who draws and decodes sees no difference. */
struct cmd_writer {
    struct butler_engine *engine;
    struct butler_session *session;
    struct butler_sampler *sampler;
    struct butler_draft *draft;            /* NULL: no drafts */
    int32_t ids[CMD_MAX_DRAFTS + 1], last; /* what the latest step gave; the token drawn last */
    int n, n_drawn;                        /* of ids */
    int n_past;                            /* tokens that are decoded: the session may hold more of ids */
};
/* Whether a session of this policy can draft; else *err says why not. */
bool cmd_drafts_under(struct butler_engine *engine, const char *policy, struct butler_error *err);
/* CMD_DONE or the exit status. cmd_writer_end must follow. */
int cmd_writer_begin(struct cmd_writer *writer, const struct cmd_options *options, struct butler_engine *engine,
                     struct butler_session *session, struct butler_sampler *sampler);
/* The next token of the text, or an error's code. */
int32_t cmd_writer_draw(struct cmd_writer *writer, struct butler_error *err);
/* Decodes the token drawn last. most: how many more the text may have. */
int cmd_writer_decode(struct cmd_writer *writer, int most, struct butler_error *err);
/* The session holds what was decoded and no more, and the sampler has drawn what was drawn. A code. */
int cmd_writer_end(struct cmd_writer *writer, struct butler_error *err);

/* What bench does with --lossless. CMD_DONE or the exit status. */
int cmd_bench_lossless(const struct cmd_options *options, struct butler_engine *engine);
/* What bench does with several devices. CMD_DONE or the exit status. */
int cmd_bench_devices(struct cmd_options *options);

/* Ends an answer or a text. */
enum cmd_end { CMD_END_TOKEN, CMD_END_LENGTH, CMD_END_CONTEXT, CMD_END_POLICY, CMD_END_INTERRUPTED, CMD_END_STOP };
extern const char *const cmd_end_names[];
/* What decoding cost, on standard error. */
void cmd_say_cost(const struct butler_engine *engine, const char *policy, const struct butler_stats *stats, enum cmd_end end);
/* n per second; 0 where that is undefined. */
double cmd_per_second(uint64_t n, double seconds);

/* Share of the KV bytes of a dense decode that were read, metric bytes included. */
double cmd_kv_read(const struct butler_stats *stats);
/* "3 min 20 s" in a buffer of the caller's. */
const char *cmd_duration(char *out, size_t n_out, double seconds);
/* "12.3 MB" in a buffer of the caller's. */
const char *cmd_bytes(char *out, size_t n_out, uint64_t bytes);

/* --------------------------------------------------------------------------------------------- interrupts */

/* Ctrl-C ends an answer and not the program. From cmd_interrupts_start on SIGINT, SIGTERM and SIGHUP are blocked and polled, so
 * that no flag is shared with a handler; threads that start later never get them. While a line is read they are let through: SIGINT
 * interrupts the read, the others end the program. */
void cmd_interrupts_start(void);
void cmd_interrupts_block(bool block);
/* Waits until there is something to read, or an end. Ctrl-C: false, with errno; SIGTERM and SIGHUP end the program. */
bool cmd_wait_readable(int fd);
/* For reading; -1 with errno. A FIFO without a writer is waited for in the same way. */
int cmd_open_input(const char *path);
/* Whether Ctrl-C was pressed since the last call, or the program is to end. */
bool cmd_interrupted(void);
bool cmd_terminated(void); /* it is to end: SIGTERM or SIGHUP came */

/* --------------------------------------------------------------------------------------------------- lines */

struct cmd_editor; /* libedit, where butler is built with it */

/* Lines of standard input. */
struct cmd_lines {
    bool terminal;
    struct cmd_editor *editor; /* NULL: no terminal, or no libedit */
    struct butler_buffer line;
};

void cmd_lines_open(struct cmd_lines *lines);
/* The next line without its newline, valid until the next call; NULL at the end of input. The prompt is shown on a terminal, where
 * Ctrl-C drops the line and a text that is pasted is one line, newlines and all. */
const char *cmd_line_read(struct cmd_lines *lines, const char *prompt);
void cmd_lines_close(struct cmd_lines *lines);

/* edit.c, or edit_none.c without libedit. NULL: lines cannot be edited. */
struct cmd_editor *cmd_editor_open(void);
/* Appends a line with its newline to *line; -1 with errno EINTR after Ctrl-C, with errno 0 at the end of input. */
int cmd_editor_read(struct cmd_editor *editor, const char *prompt, struct butler_buffer *line);
void cmd_editor_close(struct cmd_editor *editor); /* may be NULL */

/* ------------------------------------------------------------------------------------------------- answers */

/* How much of a text that has n bytes so far can be shown: up to the first --stop or `own` (or NULL) in it, or, unless it is the
 * last of the text, up to what may be the beginning of one. *found: one was. */
size_t cmd_stop_find(const struct cmd_options *options, const char *own, const char *bytes, size_t n, bool last, bool *found);

/* The answer of a conversation's turn. Zeroed at first; freed by cmd_answer_free. */
struct cmd_answer {
    struct butler_buffer text; /* the bytes that were sampled */
    size_t n;                  /* of them the answer has: no stop text, nothing after it */
    size_t n_held;             /* of them the session holds */
    struct cmd_integers ids;   /* the tokens that the session holds of it */
    size_t n_shown;
    double shown_s; /* when its first bytes were shown, by butler_seconds; 0: never */
    enum cmd_end end;
};

/* Samples an answer behind the session's text and prints it while it is made, without the blanks before it and with a newline
 * behind it. stop: text that ends it, or NULL. CMD_DONE (also after Ctrl-C) or the exit status. */
int cmd_answer_generate(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session,
                        struct butler_sampler *sampler, const char *stop, struct cmd_answer *answer);
void cmd_answer_free(struct cmd_answer *answer);

/* Appends the text of a file ("-": standard input) in UTF-8, whatever it is written in: other encodings, HTML, PDF, docx, odt and
 * epub are converted, with a note. CMD_DONE, or CMD_FAILED after a message: it is empty, or no text. */
int cmd_document_read(const struct cmd_options *options, const char *path, struct butler_buffer *text);
/* Documents as they stand in a prompt. */
struct cmd_source {
    char *name, *bytes;
    size_t n;
};
struct cmd_sources {
    struct cmd_source *items;
    int n;
};
void cmd_sources_add(struct cmd_sources *sources, const char *name, const char *bytes, size_t n); /* copies */
void cmd_sources_free(struct cmd_sources *sources);
/* Appends a file's text and name, as they stand before a question, and adds it to sources (or NULL). CMD_DONE or the exit status.
 */
int cmd_document_append(const struct cmd_options *options, const char *path, struct butler_buffer *text,
                        struct cmd_sources *sources);

/* Before the prompt of an answer: its receipt begins (--receipt). CMD_DONE or the exit status. */
int cmd_receipt_begin(const struct cmd_options *options, struct butler_session *session);
/* After the answer: the share of the attention that was read, and the passages of the sources that had most of it. ids: the
 * session's tokens from the first on. */
void cmd_receipt_say(const struct cmd_options *options, const struct butler_model *model, const struct butler_session *session,
                     const struct cmd_integers *ids, const struct cmd_sources *sources);

/* Tokens of a rendered conversation from byte `from` on, into an empty *ids. CMD_DONE or the exit status. */
int cmd_chat_tokenize(const struct cmd_options *options, const struct butler_model *model, const struct butler_chat_text *text,
                      size_t from, struct cmd_integers *ids);

/* ------------------------------------------------------------------------------------ texts that were read */

/* How long prompts take (speed.c): seconds a token = a + b position. */
struct cmd_speed {
    double n, x, xx, y, xy; /* of passes: how many, sums of positions, of times of a token, of products */
    double kept_a, kept_b;  /* what an earlier reading found; kept_a 0: nothing */
};
void cmd_speed_add(struct cmd_speed *speed, double position, double seconds_a_token);
/* Seconds that tokens [from, to) will take; 0 where nothing is known. */
double cmd_speed_predict(const struct cmd_speed *speed, double from, double to);
/* The speed of this model on this machine, from and to the user's folder; without that folder, or a file of it, nothing happens. */
void cmd_speed_load(const struct cmd_options *options, struct butler_engine *engine, struct cmd_speed *speed);
void cmd_speed_store(const struct cmd_options *options, struct butler_engine *engine, double a, double b);
void cmd_speed_keep(const struct cmd_options *options, struct butler_engine *engine, const struct cmd_speed *speed);

/* $XDG_CACHE_HOME/butler or ~/.cache/butler, to be freed; NULL: the environment names neither. */
char *cmd_user_folder(void);
/* The folder of --cache, or library/ in the user's; to be freed, or NULL. */
char *cmd_library_folder(const struct cmd_options *options);
/* The library in that folder, of at most --cache-size. Its notes are warnings. NULL with *err filled on failure. */
struct butler_library *cmd_library_open(const struct cmd_options *options, struct butler_error *err);
/* The same where it is of use but not needed: NULL with --no-cache, or after a warning. */
struct butler_library *cmd_library_try(const struct cmd_options *options);
/* n random bytes that stay with the folder of --cache: made once, readable by its owner alone. A code. */
int cmd_library_secret(const struct cmd_options *options, unsigned char *secret, size_t n, struct butler_error *err);
/* From now on the session (may be NULL) finds and keeps texts there; library NULL: nothing. */
void cmd_library_use(const struct cmd_options *options, struct butler_library *library, struct butler_session *session);

/* ---------------------------------------------------------------------------------------------- templates */

/* How a conversation becomes text. */
struct cmd_template {
    const char *jinja;         /* NULL: the model's own */
    const char *stop;          /* text that ends an answer where no token does; NULL: none */
    bool system_in_user;       /* the template refuses a system message: it stands before the first user's */
    struct butler_buffer file; /* what jinja points to if it was read from a file */
};

/* The template of --chat-template (a name or a file), the model's own, or "plain" where it has none. A model's own that cannot be
 * rendered is replaced by chatml, with a warning. CMD_DONE or the exit status; cmd_template_free frees it in any case. */
int cmd_template_choose(const struct cmd_options *options, const struct butler_model *model, struct cmd_template *template);
void cmd_template_free(struct cmd_template *template);

/* The message that `ask` makes of --file, --system-prompt and a question, rendered, in tokens. *n_shared (may be NULL): how many of
 * them come first whatever the question is. CMD_DONE or the exit status. */
int cmd_ask_prompt(const struct cmd_options *options, const struct butler_model *model, const struct cmd_template *template,
                   const char *question, struct cmd_integers *ids, int *n_shared, struct cmd_sources *sources);
/* butler_chat_render with the beginning of an answer at the end. */
int cmd_template_render(const struct cmd_template *template, const struct butler_model *model,
                        const struct butler_chat_message *messages, size_t n, struct butler_chat_text *text,
                        struct butler_error *err);
/* Whether the model has a template of its own that renders a conversation; else *err says why not. */
bool cmd_template_works(const struct butler_model *model, struct butler_error *err);

#endif
