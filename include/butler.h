/* butler: runs language models and, while decoding, reads only the part of the KV cache that matters.
 *
 * The public header (butler_tools.h: what programs around texts need). The life of a program that uses it:
 *
 *     model   = butler_model_load(path)              a GGUF file, mapped: weights and tokenizer; immutable, shared
 *     engine  = butler_engine_new(model)             the model on a device: threads, scratch, KV pages of all its sessions
 *     session = butler_session_new(engine, policy)   one text: its KV cache and what its policy remembers
 *     butler_tokenize -> butler_prefill -> butler_generate -> butler_session_stats
 *     butler_tokenize -> butler_prefill -> { butler_sample -> butler_step }, token by token
 *     butler_chat_render -> butler_chat_tokenize     the same for a conversation, by the model's chat template
 *     butler_run                                     the same for many sessions at once
 *
 * Conventions. Sizes are counts of elements unless the name says bytes. A function that can fail returns 0 (or a
 * count >= 0) when it worked and a negative enum butler_code when not, and then fills *err; err may be NULL.
 * Nothing here prints, exits or reads the environment.
 *
 * NULL. A pointer may be NULL where its comment says so, an array also where it has no elements; what is freed always may.
 * Otherwise a function that can fail gives BUTLER_ERROR_ARGUMENT with the parameter's name; one that cannot fail does nothing and
 * returns NULL, 0, false or, for a token, -1.
 *
 * Files. Models, predictors and session files are mapped. The first one installs a handler for SIGBUS: a file that shrinks while it
 * is in use gives zeros and then BUTLER_ERROR_IO instead of ending the process. Faults of other memory go to the handler that was
 * there before; a program that installs its own later should pass on what is not its own.
 *
 * Threads. A model may be used by any number of threads. An engine and all its sessions are used by one thread at a time;
 * only butler_session_cancel may be called from any thread.
 *
 * Structs that may get more fields begin with struct_size, the number of bytes that the program knows:
 *
 *     struct butler_session_params params = {BUTLER_INIT(butler_session_params), .n_ctx = 4096};
 *     struct butler_stats stats = {BUTLER_INIT(butler_stats)};
 *
 * A program and a library of one soname may know different numbers of fields. Of parameters the library reads those that the
 * program knows, and the others are zero; zero means the default that each struct names. A field that is set and that the library
 * does not know is BUTLER_ERROR_UNSUPPORTED. Of a struct that the library fills, it writes nothing behind struct_size, and
 * struct_size stays. struct_size 0 means the fields of version 0.3.0. Structs without it never change.
 */
#ifndef BUTLER_H
#define BUTLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* the rest of the library is built hidden */

#define BUTLER_VERSION "0.3.0"

/* The beginning of an initialiser: {BUTLER_INIT(butler_stats)}. */
#define BUTLER_INIT(name) .struct_size = sizeof(struct name)

/* Most channels of an attention head. A model with more is BUTLER_ERROR_UNSUPPORTED when it is loaded. */
#define BUTLER_MAX_HEAD_DIM 512

/* ------------------------------------------------------------------------------------------------ errors */

enum butler_code {
    BUTLER_OK = 0,
    BUTLER_ERROR_ARGUMENT = -1,    /* a parameter, a flag or a policy string makes no sense */
    BUTLER_ERROR_IO = -2,          /* the operating system refused: open, read, write, map */
    BUTLER_ERROR_FORMAT = -3,      /* a file is truncated, corrupt or not what it claims to be */
    BUTLER_ERROR_UNSUPPORTED = -4, /* well formed, but nothing we know how to run */
    BUTLER_ERROR_MEMORY = -5,
    BUTLER_ERROR_LENGTH = -6,    /* more tokens than the context holds */
    BUTLER_ERROR_NUMERIC = -7,   /* NaN or infinity where a number was expected */
    BUTLER_ERROR_CANCELLED = -8, /* the caller asked to stop; the session holds the tokens of all whole chunks */
};

/* Filled by every function that fails: which code, and a sentence naming what and where (file, offset, key, flag). */
struct butler_error {
    int code;
    char message[512];
};

/* ------------------------------------------------------------------------------------------------- model */

struct butler_model; /* weights and tokenizer of a file */

struct butler_model_params {
    size_t struct_size;
    bool vocabulary_only; /* only the tokenizer and the chat template: the file needs no tensors, and no engine can be made */
    /* How text is split into words before tokens are made, by the name of tokenizer.ggml.pre ("llama-bpe", "qwen2"); NULL: as the
     * file says. A model whose file names an unknown one loads, and only butler_tokenize fails. */
    const char *pre_tokenizer;
    /* A folder of the user's in which fingerprints of models and kernels compiled for CUDA are kept between processes, made if need
     * be; NULL: none. One that cannot be used is no error. */
    const char *cache_folder;
    /* How rotary positions are scaled for texts longer than those of the training, in place of what the file says: "none", "linear"
     * or "yarn"; NULL: as it says. BUTLER_ERROR_ARGUMENT where the model has no rotary positions, or has factors of its own for
     * long texts, and for scales that are not allowed. Sessions, kept texts, verdicts and predictors of another scaling are those
     * of another model: its fingerprint is another. */
    const char *rope_scaling;
    double rope_scale;     /* 1 to 1000: by so many times, in "linear" and "yarn"; n_ctx_train is so many times rope_original_ctx */
    int rope_original_ctx; /* tokens of the training before any scaling; 0: what the file says, else its context length */
};

/* Maps a GGUF file and binds its tensors. params may be NULL. NULL on failure. Freed after its engines. */
struct butler_model *butler_model_load(const char *path, const struct butler_model_params *params, struct butler_error *err);
void butler_model_free(struct butler_model *model);

struct butler_model_info {
    size_t struct_size;
    const char *architecture;  /* as the file names it: "llama", "gemma3", ... */
    const char *name;          /* general.name, or "" */
    const char *file_type;     /* the type most weights are in, "Q8_0" */
    const char *tokenizer;     /* "llama" (SentencePiece) or "gpt2" (byte-level BPE) */
    const char *chat_template; /* the model's own Jinja text, or NULL */
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    int n_ctx_train; /* tokens the model was trained for, or to which rope_scaling of butler_model_params extends it */
    int n_windowed;  /* layers that see only the latest `window` tokens */
    int window;      /* 0: no layer has one */
    /* What is odd in the file but does not keep it from being run: a sentence a line, "" if nothing. */
    const char *warnings;
    uint64_t n_params;
    uint64_t weight_bytes;      /* all tensors in the file */
    uint64_t step_weight_bytes; /* what one decode step reads of them */
    const char *rope_scaling;   /* of butler_model_params, "yarn:4:32768"; "": as the file says */
};

/* Owned by the model. */
const struct butler_model_info *butler_model_get_info(const struct butler_model *model);

/* XXH3-64 of the whole file (split models: of all of them), and of rope_scaling where it was given: session files and predictors
 * belong to the model that has it. The first call for a model reads all of the file, unless cache_folder knows the fingerprint of a
 * file with its inode, size and times. */
int butler_model_fingerprint(struct butler_model *model, uint64_t *fingerprint, struct butler_error *err);

/* ------------------------------------------------------------------------------------------------ engine */

struct butler_engine; /* a model on a device */

struct butler_engine_params {
    size_t struct_size;
    int n_threads;         /* 0: one for each core that the process may run on; at most 256 */
    const char *isa;       /* NULL: the best this CPU has; else "ref", "avx2", "avx512", "amx" or "neon" */
    int n_block;           /* most tokens of one pass, of all sessions together; 0: what suits the device */
    uint64_t kv_bytes;     /* most bytes of KV pages of all sessions of one KV type; 0: the machine's memory */
    uint64_t prefix_bytes; /* most bytes that the prefix cache keeps alive; 0: no prefix cache */
    /* Bits of the integers that activations are quantised to, 32 with one scale, for products with quantised weights: 8 or 16;
     * 0: 8. With 16 prompts take up to twice as long. What a session computes depends on it, so all sessions of an engine, and
     * the files that they are saved to, have one. */
    int activation_bits;
    /* Most bytes of keys and values that are in memory at the same time, for all sessions of one KV type; the others lie in a file
     * without a name in kv_folder (NULL: /var/tmp), from which a step reads what it selects. A pass needs the text's keys and
     * values of one layer together. What a session computes does not depend on it. 0: all are in memory. On another device than the
     * CPU: that are on the device; all are in host memory, and policies that evict, or score all keys, are refused. */
    uint64_t kv_ram;
    const char *kv_folder;
    /* "cpu" or NULL; "cuda:N" or "opencl:N", which butler_device_describe lists; "auto": the first GPU of CUDA that starts, else of
     * OpenCL, else the CPU: *err then says why a better one is not used, with code 0. A device may leave a policy's metric to
     * the CPU (docs/gpu.md), of which butler_policy_check and butler_session_new leave a note, with code 0; policies that it
     * cannot run are BUTLER_ERROR_UNSUPPORTED when a session is made. */
    const char *device;
};

/* Device i of this machine: those of CUDA (libcuda.so.1), then those of OpenCL (libOpenCL.so.1); the drivers are opened here.
 * False: there are no more. A GPU may be there twice, once by each driver. */
struct butler_device_info {
    size_t struct_size;
    char name[160], driver[64];
    uint64_t memory; /* bytes */
    bool is_gpu;
    char device[16]; /* "cuda:0", for butler_engine_params */
};
bool butler_device_describe(int i, struct butler_device_info *info);

/* params may be NULL. NULL on failure. The model must outlive the engine; all sessions are freed before it. */
struct butler_engine *butler_engine_new(struct butler_model *model, const struct butler_engine_params *params,
                                        struct butler_error *err);
void butler_engine_free(struct butler_engine *engine);
struct butler_model *butler_engine_model(const struct butler_engine *engine);

struct butler_engine_info {
    size_t struct_size;
    const char *device; /* "cpu", "cuda" or "opencl" */
    const char *isa;    /* kernels in use; the name of another device */
    int n_threads, n_block;
    uint64_t kv_memory;                   /* bytes of KV pages in use: a page that several sessions share counts once */
    uint64_t scratch_memory;              /* bytes reserved for activations and scratch; what is never written costs nothing */
    uint64_t prefix_memory;               /* bytes that the prefix cache holds: pages, counted also in kv_memory */
    uint64_t prefix_lookups, prefix_hits; /* prompts that were looked up; those that found a beginning */
    uint64_t prefix_tokens;               /* tokens that did not have to be read again */
    uint64_t kv_resident, kv_on_disk;     /* under kv_ram: bytes of KV pages in memory; in the file, or a device's in host memory */
    const char *kv_disk;                  /* how that is read: "io_uring" or "preadv", with ", cached" without O_DIRECT; or NULL */
};

void butler_engine_get_info(const struct butler_engine *engine, struct butler_engine_info *info);

/* -------------------------------------------------------------------------------------------- predictors */

/* Gives the engine a predictor from a file that was trained for it: what the policies tokenbutler (version 1) and tokenbutler2
 * (version 2) select by. One of each version; a file for another model is an error that names both fingerprints. Also the query
 * centres that `butler calibrate` wrote, for the policy triattention. */
int butler_predictor_attach(struct butler_engine *engine, const char *path, struct butler_error *err);

struct butler_predictor_info {
    size_t struct_size;
    const char *path;
    int version, d; /* d: channels of a predicted head */
    uint64_t n_params;
    uint64_t bytes;            /* of its weights as they are run */
    uint64_t step_bytes;       /* of them a decode step reads */
    double share;              /* n_params of the model's n_params */
    int64_t n_tokens, n_steps; /* its training */
    double loss;
    const char *text;
    uint64_t fingerprint; /* of its file, as butler_model_fingerprint is of the model's */
};

/* The predictor of this version that the engine has, if any. Strings are the engine's. */
bool butler_predictor_describe(const struct butler_engine *engine, int version, struct butler_predictor_info *info);

/* ------------------------------------------------------------------------------------------------- files */

enum butler_file_kind { BUTLER_FILE_MODEL, BUTLER_FILE_PREDICTOR, BUTLER_FILE_SESSION };

/* What a file is, without the model that it belongs to. */
struct butler_file_info {
    size_t struct_size;
    enum butler_file_kind kind;
    uint64_t bytes; /* of the file */
    /* Predictors and sessions. */
    uint64_t model_fingerprint; /* of the model it belongs to: butler_model_fingerprint, */
    bool model_sampled;         /* or, in files of version 0.1, a hash of samples of the model's file */
    int n_layers, n_kv_heads, head_dim;
    /* Predictors. */
    int version, d;
    uint64_t n_params;
    int64_t n_trained, n_steps; /* tokens and steps of its training */
    double loss;
    char text[256]; /* what it was trained on */
    /* Sessions. */
    int n_tokens, n_ctx;
    int kv_type;      /* enum butler_kv_type */
    char policy[768]; /* every parameter written out */
};

/* Reads what a GGUF file (a model or a predictor) or a session file is. A predictor's sizes and a session's header and checksum are
 * checked; of a model nothing but its header. */
int butler_file_describe(const char *path, struct butler_file_info *info, struct butler_error *err);

/* --------------------------------------------------------------------------------------------- tokenizer */

enum butler_tokenize_flags {
    BUTLER_ADD_SPECIAL = 1,   /* BOS (and EOS) where the vocabulary asks for them */
    BUTLER_PARSE_SPECIAL = 2, /* "<|eot_id|>" in the text is that token, not its letters */
};

/* Ids of text[n_text] into ids[max_ids]. Returns how many ids the text has, which may be more than max_ids: then only
 * the first max_ids were written, and a second call with room enough gets them all. Bytes that the vocabulary has no token for are
 * left out: then *err has code 0 and a message that says how many. */
int butler_tokenize(const struct butler_model *model, const char *text, size_t n_text, int flags, int32_t *ids, int max_ids,
                    struct butler_error *err);

/* The bytes of one token as they stand in text (a token may be part of a UTF-8 character). Owned by the model.
 * NULL for an id out of range; length 0 for control tokens. */
const char *butler_token_bytes(const struct butler_model *model, int32_t id, size_t *n_bytes);

/* How the vocabulary spells the token, control tokens too ("<|im_end|>"); not zero-terminated, owned by the model. NULL
 * for a model without a vocabulary; length 0 for an id out of range. */
const char *butler_token_spelling(const struct butler_model *model, int32_t id, size_t *n_bytes);

int32_t butler_token_bos(const struct butler_model *model); /* -1 if none */

/* Tokens that stand before the parts of a text with a gap, as models of code learn to fill it: prefix, text before the gap, suffix,
 * text behind it, middle, and what the model writes is the gap. Before that may stand repository, a name, a line end, and for each
 * other file: file, its name, a line end, its text. -1: the vocabulary has no such token. */
struct butler_fim_tokens {
    int32_t prefix, suffix, middle, repository, file;
};
/* By the file's keys, else by the spellings of known families. All -1 for a model without a vocabulary. */
struct butler_fim_tokens butler_model_fim(const struct butler_model *model);

/* Whether the token ends an answer: the file's EOS, EOT and EOM, and every token with a spelling that ends a turn in some model
 * ("<|im_end|>", "<end_of_turn>", ...), whatever type the file gives it. */
bool butler_token_is_end(const struct butler_model *model, int32_t id);

/* Turns a stream of tokens into whole UTF-8 characters: bytes of an unfinished character wait for the next token. */
struct butler_utf8 {
    unsigned char pending[4];
    int n_pending;
};

/* Appends the token's bytes to what is pending and writes the complete characters to out[max_out], no terminator.
 * Returns the number of bytes written. Invalid bytes come out as U+FFFD, one each; with bytes NULL flushes: so does what
 * is pending. 16 bytes more than the token suffice for one cut from text, 3 * (n_bytes + 3) for any; what has no room is
 * lost. */
size_t butler_utf8_push(struct butler_utf8 *stream, const char *bytes, size_t n_bytes, char *out, size_t max_out);

/* ------------------------------------------------------------------------------------------ conversations
 *
 * A model file says by a program in the language Jinja how a conversation becomes text. It is run by an interpreter of our own;
 * published templates render as jinja2 renders them in transformers. */

/* A JSON value that was parsed already. All memory is the caller's. Zeroed: null. */
enum butler_json_kind {
    BUTLER_JSON_NULL,
    BUTLER_JSON_BOOL,
    BUTLER_JSON_INTEGER,
    BUTLER_JSON_REAL,
    BUTLER_JSON_STRING,
    BUTLER_JSON_ARRAY,
    BUTLER_JSON_OBJECT,
};

struct butler_json {
    enum butler_json_kind kind;
    const char *key;                 /* of a value in an object: its name, UTF-8 */
    int64_t integer;                 /* BUTLER_JSON_BOOL: 0 or 1 */
    double real;                     /* finite */
    const char *string;              /* [n] bytes, UTF-8 */
    const struct butler_json *items; /* [n], in order: a tree, no value below itself */
    size_t n;
};

struct butler_chat_message {
    const char *role;    /* "system", "user", "assistant", "tool": a plain word counts as the template's text */
    const char *content; /* NULL: none */
    const char *fields;  /* a JSON object of what else the message has, "{\"tool_calls\": [...]}"; NULL: nothing */
};

struct butler_chat_options {
    size_t struct_size;
    const char *jinja;          /* the template; NULL: the model's own */
    bool add_generation_prompt; /* ends the text with the beginning of an answer */
    const char *tools;          /* a JSON array of tools; NULL: none */
    const char *variables;      /* a JSON object of more variables, "{\"enable_thinking\": false}"; NULL: none */
    int64_t now;                /* seconds since 1970 for templates that write the date, in UTC; 0: the system's clock */
    /* The same as values that are parsed already: each takes the place of its text, which then is not read. */
    const struct butler_json *parsed_tools;     /* an array */
    const struct butler_json *parsed_variables; /* an object */
    const struct butler_json *parsed_fields;    /* [n]: those of messages[i], an object or null */
};

/* Neighbouring bytes of one origin. What an operation of the template made of both, or of numbers, counts as a message's. */
struct butler_chat_segment {
    size_t offset, n;
    bool is_template; /* written by the template; else it comes from a message, a tool or a variable */
};

struct butler_chat_text {
    char *bytes; /* [n], then a zero byte */
    size_t n;
    struct butler_chat_segment *segments; /* [n_segments], in order; together they cover the text */
    size_t n_segments;
};

/* Renders messages[n] into *text, which butler_chat_text_free frees. options may be NULL. A template that fails, or that takes too
 * much time or memory, is an error (BUTLER_ERROR_FORMAT) with the line of the template; then *text is empty. */
int butler_chat_render(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                       const struct butler_chat_options *options, struct butler_chat_text *text, struct butler_error *err);
void butler_chat_text_free(struct butler_chat_text *text);

/* Ids of the text from byte `from` on, as butler_tokenize counts and writes them. Special tokens are read only where the template
 * wrote all of their bytes: in a message they are plain text. from 0: with one BOS where the vocabulary asks for it, or the
 * template wrote it. from > 0: the text goes on behind what a session already holds. */
int butler_chat_tokenize(const struct butler_model *model, const struct butler_chat_text *text, size_t from, int32_t *ids,
                         int max_ids, struct butler_error *err);

/* ----------------------------------------------------------------------------------------------- session */

/* How keys and values are stored. */
enum butler_kv_type { BUTLER_KV_F16, BUTLER_KV_F32, BUTLER_KV_Q8_0, BUTLER_N_KV_TYPES };

struct butler_session_params {
    size_t struct_size;
    int n_ctx;                   /* most tokens of the text; 0: what the model was trained for */
    enum butler_kv_type kv_type; /* 0: F16 */
    const char *policy;          /* "full", "quest:budget=1024", ...; NULL: "full". See butler_policy_describe */
    uint64_t seed;               /* for the policy "random" */
};

struct butler_session;

/* params may be NULL: the defaults. */
struct butler_session *butler_session_new(struct butler_engine *engine, const struct butler_session_params *params,
                                          struct butler_error *err);
void butler_session_free(struct butler_session *session);

/* Called with the logits [n_vocab] after each position. false: stop (BUTLER_ERROR_CANCELLED). */
typedef bool butler_logits_fn(void *user, int position, const float *logits);

/* Called with the hidden state [n_embd] of each position: of the last layer, after the final norm, which is what the output product
 * makes logits of. Valid during the call. false: stop (BUTLER_ERROR_CANCELLED). */
typedef bool butler_hidden_fn(void *user, int position, const float *hidden);

/* A part of what butler_run does: some tokens of one session. */
struct butler_span {
    size_t struct_size;
    struct butler_session *session;
    const int32_t *ids; /* [n] */
    int n;
    /* Tokens at positions below prompt_end are a prompt: they attend densely (or as prompt= says), whole blocks at a time, and
     * where the prompt ends an evicting policy cuts the cache to its budget. A prompt may come in several spans, each with the same
     * prompt_end. Tokens from prompt_end on are decoded, one after the other, under the policy. */
    int prompt_end;
    /* Tokens from prompt_end on attend to the whole cache, as under the policy `full` and with the same bits, up to 16 of them in a
     * pass. Not under policies that evict. */
    bool exact;
    bool no_logits;           /* no logits after the span's last token (a prompt that goes on never makes any) */
    butler_logits_fn *each;   /* gets the logits of every position; or NULL */
    void *user;               /* of each and hidden */
    butler_hidden_fn *hidden; /* gets the hidden state of every position, in order; makes no logits by itself; or NULL */
};

/* Runs all spans, in passes of up to n_block tokens in which weights are read once for all decode steps and once for all prompts.
 * What a session computes is the same, bit for bit, whatever else is in the call and however its tokens are cut into spans. A
 * session may occur once. Where a span is wrong nothing changes and every bad span has its error in errs[n] (may be NULL); code 0
 * where nothing is wrong. A session that fails inside (BUTLER_ERROR_NUMERIC: the model gave NaN or infinity; BUTLER_ERROR_MEMORY:
 * KV pages ran out) can then only be read, truncated to 0 and freed; the others go on. A session that is cancelled stops between
 * passes. Returns 0 or the first error. */
int butler_run(struct butler_engine *engine, const struct butler_span *spans, int n, struct butler_error *errs);

/* Runs ids[n] as a whole prompt. each, if not NULL, gets the logits of every position; otherwise only the logits of the last are
 * computed. A prompt that does not fit is refused before anything changes. */
int butler_prefill(struct butler_session *session, const int32_t *ids, int n, butler_logits_fn *each, void *user,
                   struct butler_error *err);

/* fn, if not NULL, is called after every pass with tokens of a prompt: done of the span's n tokens are read. false: stop. */
typedef bool butler_progress_fn(void *user, int done, int n);
void butler_session_on_progress(struct butler_session *session, butler_progress_fn *fn, void *user);

/* From any thread: a prompt that is being read ends after the pass that is running, with BUTLER_ERROR_CANCELLED and the session
 * intact. Where nothing runs, the session's next run ends so before it begins. */
void butler_session_cancel(struct butler_session *session);

/* Decodes one token under the policy. */
int butler_step(struct butler_session *session, int32_t id, struct butler_error *err);

/* Decodes one token of each of n different sessions of one engine, each under its own policy. errs as in butler_run. */
int butler_step_batch(struct butler_session *const *sessions, const int32_t *ids, int n, struct butler_error *errs);

/* A session that goes on from the same text: pages of keys and values are shared until one of both writes (copy on write), what
 * the metric keeps is copied. Statistics begin anew. */
struct butler_session *butler_session_fork(struct butler_session *session, struct butler_error *err);

/* Goes back to the first n tokens of the text, as if the others had never been read; there are no logits then. With every=N the
 * next steps may select at other tokens than in a session that never read them. A policy that evicts can go back to a point after
 * which it has neither evicted nor observed; else BUTLER_ERROR_ARGUMENT and nothing changes. Policies that guide drafts
 * (`verified`, and others once a session drafts) keep what later tokens made them observe: a draft may be another, a lossless text
 * is not. 0 empties every session, also one that has failed. */
int butler_session_truncate(struct butler_session *session, int n, struct butler_error *err);

/* Gives an empty session the longest beginning of ids[n] that the engine's prefix cache or the session's library (butler_tools.h)
 * knows (at least 8 tokens, less than n). Returns how many tokens it has then: the rest is to be run, with prompt_end n; all has
 * the same bits as if it had read them. 0 under policies whose state after a prompt depends on all its queries (h2o, softprune,
 * prefill=evict). */
int butler_session_adopt_prefix(struct butler_session *session, const int32_t *ids, int n, struct butler_error *err);
/* Sessions share beginnings only with sessions of the same salt; 0 at first, also after a restore (a fork has its parent's). So who
 * can measure what a prompt costs learns nothing about prompts under another salt. Set it before a prompt is looked up or read. */
int butler_session_set_prefix_salt(struct butler_session *session, uint64_t salt, struct butler_error *err);
/* What butler_session_adopt_prefix would return now; nothing changes. */
int butler_session_find_prefix(const struct butler_session *session, const int32_t *ids, int n, struct butler_error *err);

/* Logits [n_vocab] after the last token, owned by the session, valid until the next call. NULL before the first. */
const float *butler_logits(const struct butler_session *session);
int butler_n_past(const struct butler_session *session);
int butler_n_ctx(const struct butler_session *session); /* most tokens it can hold */

/* Appends n random positions to every layer's cache, as if a text of that length had been read, without running the
 * model: for measuring speed at a depth. Keys and values are drawn by seed, about N(0,1). */
int butler_fill(struct butler_session *session, int n, uint64_t seed, struct butler_error *err);

/* True when the policy's stopping rule (entropystop) says that the text is done. */
bool butler_should_stop(const struct butler_session *session);

/* Writes the whole session (tokens, KV pages, what the metric remembers) to path: versioned, checksummed, written to a
 * temporary file and renamed. Restoring needs the same model (by fingerprint) and gives back a session that continues
 * exactly as the saved one would have. n_ctx: most tokens that it can hold, 0: as when it was saved; fewer than the saved tokens,
 * or a context in which the model rotates keys by other angles, is BUTLER_ERROR_LENGTH. So is one beyond the budget of an evicting
 * policy that goes by observed attention, where the saved context was within it: there nothing was observed. */
int butler_session_save(const struct butler_session *session, const char *path, struct butler_error *err);
struct butler_session *butler_session_restore(struct butler_engine *engine, const char *path, int n_ctx, struct butler_error *err);

/* The same with a regular file that is open as fd for reading and writing and stays the caller's: it may have no name. Saving
 * replaces its contents and does not sync it. */
int butler_session_save_fd(const struct butler_session *session, int fd, struct butler_error *err);
struct butler_session *butler_session_restore_fd(struct butler_engine *engine, int fd, int n_ctx, struct butler_error *err);

/* Makes `to` what `from` is, whatever it held before: it continues exactly as `from` would, so that several texts can
 * follow one beginning. Both of the same model, policy, context, KV type and seed, or BUTLER_ERROR_ARGUMENT and nothing
 * has changed. Statistics stay each session's own. A copy of an empty session is an empty session. */
int butler_session_copy(struct butler_session *to, struct butler_session *from, struct butler_error *err);

/* What the session cost so far. Bytes: what kernels were asked to read in decode steps: rows that exact tokens share
 * once, a row that several lists of a KV head have (share=query, share=2, ...) once for each. */
struct butler_stats {
    size_t struct_size;
    uint64_t n_prefill, n_decode;       /* tokens */
    double prefill_s, decode_s;         /* wall time; of a pass of several sessions each has its tokens' share */
    double score_s, select_s, attend_s; /* wall time inside decode_s */
    double predict_s;                   /* ... and that of the predictor */
    uint64_t weight_bytes;
    uint64_t kv_bytes;                 /* keys and values read */
    uint64_t metric_bytes;             /* read to score, to observe and to summarise; but see upkeep_bytes */
    uint64_t full_kv_bytes;            /* keys and values a dense decode would have read */
    uint64_t kv_memory, metric_memory; /* bytes held now, shared pages included */
    uint64_t kv_memory_peak;
    uint64_t predict_bytes;                /* the predictor's weights read (weight_bytes has the model's alone) */
    uint64_t units_selected, units_reused; /* retrieve: tokens or pages read; of them, read in the step before too */
    uint64_t metric_memory_peak;
    /* Of butler_draft_step. n_decode counts the tokens that stayed; bytes and decode_s have drafts and checks in them. */
    uint64_t n_checks, n_drafted, n_accepted; /* exact passes of drafts; drafts checked; drafts that were the text's next tokens */
    double draft_s, check_s;                  /* wall time inside decode_s */
    uint64_t n_shared, n_library;             /* of butler_session_adopt_prefix: tokens that were in memory; that the library had */
    double library_s;                         /* wall time to load these */
    /* Read to observe and to summarise in layers that read all, for the budget covers the text: what later steps go by. Like the
     * same work in a prompt it is no part of metric_bytes, so that kv_bytes + metric_bytes there are full_kv_bytes. */
    uint64_t upkeep_bytes;
    /* Under kv_ram, of decode steps: pages that they wanted; of these, that came from the file, or to a device; bytes read there;
     * the wait for it, inside attend_s. */
    uint64_t pages_wanted, pages_fetched, disk_bytes;
    double disk_s;
    uint64_t prompt_disk_bytes;               /* read by prompts, which pass over all that came before */
    uint64_t pages_prefetched, pages_guessed; /* read before they were wanted; of these, that were wanted then */
    /* Of sparse prompts (prompt=): keys and values that blocks read, once a block; what they would have read densely. */
    uint64_t prompt_kv_bytes, prompt_full_kv_bytes;
};

void butler_session_stats(const struct butler_session *session, struct butler_stats *stats);
void butler_session_stats_reset(struct butler_session *session);

/* Bytes of KV cache a session of n tokens will hold under dense attention. */
uint64_t butler_kv_bytes(const struct butler_model *model, enum butler_kv_type type, int n_tokens);

/* Token positions that the last step read in one layer for one query head, ascending, into ids[max_ids]. Returns their
 * number (which may exceed max_ids). For tests, for heat maps, for trust. */
int butler_last_selection(const struct butler_session *session, int layer, int head, int32_t *ids, int max_ids);

/* What the selection of one decode step has of exact attention: means over the query heads of the layers that read a part of their
 * cache. The exact attention is that of the step's own queries to all keys. */
struct butler_audit {
    size_t struct_size;
    int n_heads;    /* query heads that were compared, of all layers; 0: the step read everything */
    double recall;  /* of the k tokens with the highest exact attention the share that was read, k being as many as were read; the
                     * newest token, which every step reads, is always one of them */
    double mass;    /* exact attention to the tokens that were read, and to a learned sink: 0 to 1 */
    double seconds; /* that the comparison took */
};

/* The session's next decode step is audited: *audit, which must stay valid until then, is filled when the step has run. What the
 * step computes does not change; the comparison takes as long as one or two dense steps. Returns 1; or 0, and nothing happens, if
 * the policy does not retrieve: the full cache is read whole, and what a policy has evicted cannot be compared. */
int butler_session_audit(struct butler_session *session, struct butler_audit *audit, struct butler_error *err);

/* What an answer rests on: decode steps, each every-th of them, and the cuts of an evicting policy, compared with exact attention.
 * Means over query heads and layers. */
struct butler_receipt {
    size_t struct_size;
    int n_steps;           /* decode steps that were compared */
    double read;           /* of their exact attention to what the cache holds the share that was read; 1 where all was read */
    double prompt_evicted; /* of the attention of a prompt's last token what it gave to the tokens that were evicted then; with
                            * prefill=evict a mean over the prompt's cuts */
    double step_evicted;   /* of a decode step's attention what the tokens evicted right before it would have had, a mean */
    double seconds;        /* that comparing took */
    int n_prompt_cuts, n_step_cuts; /* that prompt_evicted and step_evicted are means of */
};

/* From now on a receipt is kept, of each every-th decode step since the prompt, the first among them; 0: no longer. To be called
 * before the prompt where the policy evicts from it. What is computed does not change; a step that is compared takes as long as two
 * or three dense ones. Drafts and exact spans are not compared. Forks and restored sessions begin without; a session that gets a
 * copy, or is cut to 0 tokens, keeps a new one. */
int butler_session_keep_receipt(struct butler_session *session, int every, struct butler_error *err);
/* Fills *receipt and, where it is not NULL, attention[butler_n_past()]: the mean attention of the compared steps to each position.
 * Returns 1; 0 where no receipt is kept. */
int butler_session_receipt(const struct butler_session *session, struct butler_receipt *receipt, double *attention);

/* What a query head of a decode step attended to. Arrays are valid during the call. */
struct butler_head_attention {
    size_t struct_size;
    int layer, head;
    const int32_t *read; /* [n_read] positions that the step read, ascending, the new token's own among them */
    int n_read;
    /* The head's exact attention: the softmax over all n tokens that the cache holds after the step (in a layer with a window: that
     * lie in it), whether they were read or not. The sum is 1, or less by what a learned sink takes. */
    const int32_t *positions; /* [n], ascending */
    const float *weights;     /* [n] */
    int n;
    const float *scores; /* [n] q . k, neither scaled nor capped */
    float sink;          /* exact attention to the learned sink; 0 where there is none */
};

/* Called for every query head of every layer of a decode step, in order. */
typedef void butler_attention_fn(void *user, const struct butler_head_attention *attention);

/* From now on fn is called in decode steps, but neither for exact spans nor for drafts; NULL: no longer. What a step computes does
 * not change; it takes as long as two or three dense ones. Forks, copies and restored sessions begin without. < 0: no memory. */
int butler_session_on_attention(struct butler_session *session, butler_attention_fn *fn, void *user, struct butler_error *err);

/* ----------------------------------------------------------------------------------------------- grammar */

/* What an answer may be, as a grammar over its bytes. Samplers of any number of threads may share one. */
struct butler_grammar;

/* Compiles a grammar in GBNF, the notation of llama.cpp; its rule `root` is the whole answer. Tokens are allowed that continue a
 * text of the grammar, tokens that end an answer exactly where such a text is complete. NULL with BUTLER_ERROR_FORMAT and the line
 * and column where the text is no grammar, is left-recursive or is too large; BUTLER_ERROR_UNSUPPORTED where the model has no
 * tokenizer. The model is borrowed: it is freed after the grammar and its samplers. */
struct butler_grammar *butler_grammar_new(const struct butler_model *model, const char *gbnf, struct butler_error *err);
void butler_grammar_free(struct butler_grammar *grammar);

/* ----------------------------------------------------------------------------------------------- sampler */

/* Added to the logit of a token before anything else; -INFINITY: it is never drawn. */
struct butler_logit_bias {
    int32_t id;
    float bias;
};

struct butler_sampler_params {
    size_t struct_size;
    float temperature; /* <= 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 0 or 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
    float typical_p; /* locally typical sampling (Meister et al. 2022); 0 or 1: off */
    /* Of each token among the latest penalty_last_n of the text: its logit is divided by repeat_penalty where it is positive and
     * multiplied where not (0 or 1: off); frequency_penalty is subtracted for every time that it occurs there, presence_penalty
     * once. */
    float repeat_penalty, frequency_penalty, presence_penalty;
    int penalty_last_n;                         /* 0: 64; -1: the whole text */
    const struct butler_logit_bias *logit_bias; /* [n_logit_bias], copied */
    int n_logit_bias;
    const int32_t *end_ids; /* [n_end_ids], copied: tokens that are not drawn before min_tokens others were */
    int n_end_ids, min_tokens;
    /* What is drawn follows this grammar; NULL: none. The sampler keeps it: the caller may free it at once. Where it allows nothing
     * but tokens that biases or min_tokens forbid, it wins. */
    const struct butler_grammar *grammar;
};

struct butler_sampler;
/* params NULL or zeroed: the defaults, greedy. NULL with BUTLER_ERROR_ARGUMENT when a number is out of its range. */
struct butler_sampler *butler_sampler_new(const struct butler_sampler_params *params, struct butler_error *err);
void butler_sampler_free(struct butler_sampler *sampler);

/* Tells the sampler tokens [n] of the text that it did not draw itself, a prompt: penalties count them, and min_tokens counts what
 * is drawn behind them. A grammar does not read them: it begins anew with what is drawn next. */
int butler_sampler_accept(struct butler_sampler *sampler, const int32_t *ids, int n, struct butler_error *err);

/* One id drawn from logits[n_vocab] (not changed), or BUTLER_ERROR_NUMERIC when they hold NaN or +infinity. With a grammar also
 * BUTLER_ERROR_UNSUPPORTED: no token of the vocabulary goes on as the grammar asks, or the grammar is too ambiguous to follow. */
int32_t butler_sample(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err);

/* Works out which tokens the grammar allows next, which butler_sample of the same logits else does itself: with an ambiguous
 * grammar and a large vocabulary that takes seconds. work: about how many tenths of a microsecond this call may take, 1 or more. 1:
 * it is done (or there is no grammar), and butler_sample will be quick; 0: more is left, and what was done is kept; or a code as of
 * butler_sample. What is drawn does not change. Any thread may call it, where no other uses the sampler or changes the logits
 * meanwhile. */
int butler_sampler_prepare(struct butler_sampler *sampler, const float *logits, int n_vocab, int work, struct butler_error *err);

/* Gets whole UTF-8 characters of a text as they come, n bytes without a terminator. false: stop. */
typedef bool butler_piece_fn(void *user, const char *text, size_t n);

/* Decodes up to n tokens of an answer to what the session has read. Ends before a token that ends an answer, where the policy's
 * rule says so (butler_should_stop), where the context is full, and where on_text returns false. on_text may be NULL. Returns the
 * number of tokens that were added to the session; butler_logits are then those behind the last. After an error the session holds
 * the tokens whose text on_text got. */
int butler_generate(struct butler_session *session, struct butler_sampler *sampler, int n, butler_piece_fn *on_text, void *user,
                    struct butler_error *err);

/* ----------------------------------------------------------------------------------------------- drafts
 *
 * Self-speculative decoding: the session drafts some tokens under its policy, which reads a part of the cache, and one exact pass
 * over the whole cache checks all of them. The text is that of dense decoding, token for token. */

struct butler_draft; /* of one session */

struct butler_draft_params {
    size_t struct_size;
    int n_max;  /* most drafts of a check, 1 to 15; 0: 8 */
    bool fixed; /* always n_max drafts; else as many as measured times and acceptance pay for, or none */
};

/* Drafts for a session whose policy retrieves ("verified", "quest:budget=256", "h2o:method=retrieve,budget=256", ...); any other is
 * BUTLER_ERROR_ARGUMENT. A metric that observes attention sees the prompt and the last query of each check from now on, and no
 * other step. params may be NULL: the defaults. The session must outlive it, and may be used otherwise between steps. */
struct butler_draft *butler_draft_new(struct butler_session *session, const struct butler_draft_params *params,
                                      struct butler_error *err);
void butler_draft_free(struct butler_draft *draft);

/* Decodes id and as many more tokens as the check confirms, and writes the tokens that the sampler drew behind id to ids[max_ids],
 * max_ids >= 1. Returns their number n, 1 or more. The session then holds id and the first n - 1 of them; ids[n - 1] was drawn from
 * butler_logits(session) and is the id of the next step. What the sampler draws, the logits and the session's cache are as after n
 * steps under the policy `full` and draws after each, bit for bit: a draft is taken only where the sampler draws the same token
 * from the exact logits. A token that ends the text is always the last of ids. After an error the session holds the tokens that it
 * held before, without logits, unless it has failed (see butler_run); what the sampler has drawn is taken back. */
int butler_draft_step(struct butler_draft *draft, struct butler_sampler *sampler, int32_t id, int32_t *ids, int max_ids,
                      struct butler_error *err);

/* Takes back all but the first n of the tokens that the latest step gave, 0 <= n: the session and the sampler become what they
 * would be if it had been given max_ids = n (0: the session holds id, nothing is drawn behind it). For a text that ends between
 * them. Once for a step; neither may have been used since. */
int butler_draft_keep(struct butler_draft *draft, struct butler_sampler *sampler, int n, struct butler_error *err);

/* ---------------------------------------------------------------------------------------------- policies */

/* Checks a policy string (NULL: "full") against this engine without building anything. engine NULL: against no model. */
int butler_policy_check(const struct butler_engine *engine, const char *policy, struct butler_error *err);

/* One named number of a policy or metric. */
struct butler_param {
    const char *name;
    double value; /* the default */
    double min, max;
    const char *help;
};

/* What `butler policies` lists. */
struct butler_policy_info {
    size_t struct_size;
    const char *name, *metric, *method, *summary;
    const char *defaults; /* the policy string with every parameter written out */
};

/* The i-th policy this engine knows (built in, then plug-ins), false past the last. engine may be NULL. */
bool butler_policy_describe(const struct butler_engine *engine, int i, struct butler_policy_info *info);

/* The paper that defines a policy: authors, title, arXiv number, equation. NULL: none. */
const char *butler_policy_paper(const char *name);
/* One line on a parameter, of the policy string or of a metric (by its name). NULL: there is none of that name. engine may be
 * NULL. */
const char *butler_policy_help(const struct butler_engine *engine, const char *metric, const char *parameter);

/* What a session costs in bytes, all layers together, by the shapes alone; a predictor's own bytes are not included. */
struct butler_policy_cost {
    size_t struct_size;
    double record_bytes;               /* what the metric keeps for a token in all layers */
    uint64_t kv_memory, metric_memory; /* held for a text of that length; pages are rounded up beyond that */
    uint64_t prompt_memory;            /* of both, held at most while a prompt of that length is read */
    uint64_t kv_bytes, metric_bytes;   /* a decode step reads; of a policy with every= the mean */
    uint64_t full_kv_bytes;            /* a step without a policy */
    bool budget_known;                 /* false: mass=; kv_bytes then says nothing */
    bool evicts_prompts_only;          /* decoded tokens all stay, beside kv_memory, which is that of a prompt of this length */
    uint64_t upkeep_bytes;             /* as in butler_stats */
};

/* Fills *cost for a decode step of a text of n_tokens (1 to 2^24), the newest included. */
int butler_policy_estimate(const struct butler_engine *engine, const char *policy, enum butler_kv_type type, int n_tokens,
                           struct butler_policy_cost *cost, struct butler_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
