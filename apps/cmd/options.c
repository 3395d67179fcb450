/* Parses the command line into struct cmd_options. One table has every flag's name, argument, range and help; parsing, error
 * messages and help all read it, so that they cannot disagree. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd.h"

#include "base/util.h"

enum kind {
    KIND_BOOL,
    KIND_STRING,
    KIND_STRINGS,
    KIND_INT,
    KIND_OPTIONAL_INT, /* --flag or --flag=N */
    KIND_INTS,
    KIND_REAL,
    KIND_REALS,
    KIND_BIASES,
    KIND_SEED,
    KIND_BYTES,
    KIND_KV_TYPE,
    KIND_ISA,
    KIND_PRECISION
};

struct flag {
    char letter; /* 0: none */
    const char *name, *argument;
    enum kind kind;
    size_t offset;
    double min, max;
    const char *allowed; /* the range, for error messages */
    const char *help;
};

#define AT(field) offsetof(struct cmd_options, field)

static const struct flag flags[CMD_N_FLAGS] = {
    [CMD_MODEL] = {'m', "model", "FILE", KIND_STRING, AT(model), 0, 0, NULL, "the model, a GGUF file"},
    [CMD_PROMPT] = {'p', "prompt", "TEXT", KIND_STRING, AT(prompt), 0, 0, NULL, "the text itself"},
    [CMD_FILE] = {'f', "file", "FILE", KIND_STRING, AT(file), 0, 0, NULL, "the text, from a file; - is standard input"},
    [CMD_DOCUMENTS] = {'f', "file", "FILE", KIND_STRINGS, AT(documents), 0, 0, NULL,
                       "a document that comes before the question; may be repeated"},
    [CMD_IDS] = {0, "ids", "I,J,...", KIND_INTS, AT(ids), 0, INT32_MAX, "token ids, 0 or more, separated by commas",
                 "token ids instead of text; may be repeated"},
    [CMD_ALL] = {0, "all", NULL, KIND_BOOL, AT(all), 0, 0, NULL,
                 "logits: a row for every position, not only the last; library remove: all texts"},
    [CMD_TOP] = {0, "top", "N", KIND_INT, AT(top), 0, INT_MAX, "a whole number, 0 or more",
                 "only the N highest logits of a position, each with its token; 0: all, without tokens"},
    [CMD_NO_SPECIAL] = {0, "no-special", NULL, KIND_BOOL, AT(no_special), 0, 0, NULL,
                        "add no beginning-of-text token, and read special tokens as plain text"},
    [CMD_N] = {'n', "n-predict", "N", KIND_INT, AT(n), -1, INT_MAX, "a whole number: tokens, or -1 for no limit",
               "tokens to generate; -1: until the text ends or the context is full"},
    [CMD_CTX] = {'c', "ctx-size", "N", KIND_INT, AT(n_ctx), 0, INT_MAX, "a whole number of tokens, 0 or more",
                 "tokens the context holds; 0: what the model was trained for"},
    [CMD_BLOCK] = {0, "block", "N", KIND_INT, AT(n_block), 0, 65536, "a whole number from 0 to 65536",
                   "prompt tokens computed in one pass; 0: 512 with a matrix unit (AMX), 256 otherwise"},
    [CMD_DEPTH] = {'d', "n-depth", "N,...", KIND_INTS, AT(depths), 0, INT_MAX - 65536,
                   "token counts, 0 or more, separated by commas", "tokens in the cache before the first measured one"},
    [CMD_BATCH] = {0, "batch", "N", KIND_INT, AT(batch), 1, 1024, "a whole number from 1 to 1024",
                   "sessions that decode one token each at the same time; every weight is read once for all"},
    [CMD_WARMUP] = {0, "warmup", "N", KIND_INT, AT(warmup), 0, 65536, "a whole number from 0 to 65536",
                    "tokens decoded before measuring starts"},
    [CMD_KV] = {0, "kv", "POLICY", KIND_STRINGS, AT(kv), 0, 0, NULL, "what a step reads of the cache (`butler policies`)"},
    [CMD_KV_TYPE] = {0, "kv-type", "TYPE", KIND_KV_TYPE, AT(kv_type), 0, 0, "f32, f16 or q8_0",
                     "type of the stored keys and values"},
    [CMD_LOSSLESS] = {0, "lossless", "G", KIND_OPTIONAL_INT, AT(n_drafts), 1, CMD_MAX_DRAFTS, "a whole number from 1 to 15",
                      "the text of --kv full, faster: up to G tokens (8) are drafted under --kv, then checked exactly"},
    [CMD_PLUGIN] = {0, "plugin", "FILE", KIND_STRINGS, AT(plugins), 0, 0, NULL,
                    "a shared object with a metric or step plug-in of your own; may be repeated"},
    [CMD_STEP] = {0, "step", "NAME", KIND_STRINGS, AT(steps), 0, 0, NULL,
                  "a step plug-in of those loaded, NAME[:key=value,...], that is called around every step; may be repeated"},
    [CMD_PREDICTOR] =
        {0, "predictor", "FILE", KIND_STRINGS, AT(predictors), 0, 0, NULL,
         "a predictor trained for the model, or its query centres; without it those beside the model, NAME.tokenbutler[2].gguf and "
         "NAME.centres.gguf"},
    [CMD_TEMP] = {0, "temp", "T", KIND_REAL, AT(temperature), 0, 1000, "a number, 0 or more",
                  "sampling temperature; 0: always the most probable token"},
    [CMD_TOP_K] = {0, "top-k", "K", KIND_INT, AT(top_k), 0, INT_MAX, "a whole number, 0 or more",
                   "sample among the K most probable tokens; 0: all"},
    [CMD_TOP_P] = {0, "top-p", "P", KIND_REAL, AT(top_p), 0, 1, "a number from 0 to 1",
                   "sample among the most probable tokens that together reach probability P; 1: all"},
    [CMD_MIN_P] = {0, "min-p", "P", KIND_REAL, AT(min_p), 0, 1, "a number from 0 to 1",
                   "drop tokens below P times the highest probability; 0: none"},
    [CMD_TYPICAL] = {0, "typical", "P", KIND_REAL, AT(typical), 0, 1, "a number from 0 to 1",
                     "sample among the locally typical tokens that together reach probability P; 1: all"},
    [CMD_REPEAT_PENALTY] = {0, "repeat-penalty", "X", KIND_REAL, AT(repeat_penalty), 0, 1000, "a number from 0 to 1000",
                            "make the latest tokens of the text less probable: their logits are divided by X; 1: off"},
    [CMD_REPEAT_LAST_N] = {0, "repeat-last-n", "N", KIND_INT, AT(repeat_last_n), -1, INT_MAX, "a whole number of tokens, or -1",
                           "how many latest tokens penalties count; 0: 64, -1: the whole text"},
    [CMD_FREQUENCY_PENALTY] = {0, "frequency-penalty", "X", KIND_REAL, AT(frequency_penalty), -100, 100,
                               "a number from -100 to 100", "subtract X from a token's logit for every time it occurs there"},
    [CMD_PRESENCE_PENALTY] = {0, "presence-penalty", "X", KIND_REAL, AT(presence_penalty), -100, 100, "a number from -100 to 100",
                              "subtract X from the logit of every token that occurs there"},
    [CMD_LOGIT_BIAS] = {0, "logit-bias", "ID:VALUE", KIND_BIASES, AT(logit_biases), -1e30, 1e30,
                        "a token id, a colon and a number (-inf: never drawn), up to 64 times",
                        "add VALUE to the logit of token ID; -inf: it is never drawn; may be repeated"},
    [CMD_MIN_TOKENS] = {0, "min-tokens", "N", KIND_INT, AT(min_tokens), 0, INT_MAX, "a whole number of tokens, 0 or more",
                        "draw no token that ends the text before N others"},
    [CMD_STOP] = {0, "stop", "TEXT", KIND_STRINGS, AT(stops), 0, 0, "a text that is not empty",
                  "ends the answer before this text; may be repeated"},
    [CMD_IGNORE_EOS] = {0, "ignore-eos", NULL, KIND_BOOL, AT(ignore_eos), 0, 0, NULL, "never draw a token that ends the text"},
    [CMD_GRAMMAR] = {0, "grammar", "FILE", KIND_STRING, AT(grammar), 0, 0, NULL,
                     "draw only what this grammar allows, a file in GBNF (docs/serve/structured.md)"},
    [CMD_JSON_SCHEMA] = {0, "json-schema", "FILE", KIND_STRING, AT(schema), 0, 0, NULL,
                         "draw only JSON that this schema accepts: a file, or the schema itself (docs/serve/structured.md)"},
    [CMD_SEED] = {'s', "seed", "N", KIND_SEED, AT(seed), 0, 0,
                  "a whole number from 0 to 18446744073709551615, or -1 for a random one",
                  "seed of the sampler and of the policy random; -1: another each time"},
    [CMD_SYSTEM] = {0, "system-prompt", "TEXT", KIND_STRING, AT(system), 0, 0, NULL,
                    "instructions that come before the conversation"},
    [CMD_CHAT_TEMPLATE] = {0, "chat-template", "NAME|FILE", KIND_STRING, AT(chat_template), 0, 0, NULL,
                           "template of the conversation, instead of the model's own"},
    [CMD_SAVE_SESSION] = {0, "save-session", "FILE", KIND_STRING, AT(save_session), 0, 0, NULL,
                          "write the session there when the text is done"},
    [CMD_LOAD_SESSION] = {0, "load-session", "FILE", KIND_STRING, AT(load_session), 0, 0, NULL,
                          "continue a saved session, with its policy and type; -c: in another context"},
    [CMD_CACHE] =
        {0, "cache", "FOLDER", KIND_STRING, AT(cache), 0, 0, NULL,
         "where texts that were read are kept; without it butler/library in the user's cache folder (serve, eval, gate: nowhere)"},
    [CMD_CACHE_SIZE] = {0, "cache-size", "BYTES", KIND_BYTES, AT(cache_bytes), 0, 0,
                        "a number of bytes, K, M, G or T behind it for powers of 1024",
                        "most bytes of that folder; what was not used for longest goes first; 0: a tenth of its disk's free bytes"},
    [CMD_REREAD] = {0, "reread-answers", NULL, KIND_BOOL, AT(reread), 0, 0, NULL,
                    "while nothing else runs read answers as prompts, so that a next turn reads only what is new"},
    [CMD_NO_CACHE] = {0, "no-cache", NULL, KIND_BOOL, AT(no_cache), 0, 0, NULL, "keep nothing, and use nothing that was kept"},
    [CMD_VERBOSE] = {'v', "verbose", NULL, KIND_BOOL, AT(verbose), 0, 0, NULL,
                     "also what decoding read of the cache, memory, and the time of a token's parts"},
    [CMD_RECEIPT] = {0, "receipt", "N", KIND_INT, AT(receipt), 0, INT_MAX, "a whole number, 0 or more",
                     "compare every Nth step with exact attention, and say behind an answer what it rests on; 0: never"},
    [CMD_TOKENIZER] = {0, "tokenizer", "FILE", KIND_STRING, AT(tokenizer), 0, 0, NULL, "the tokenizer that belongs to IN"},
    [CMD_PRE] = {0, "pre", "NAME", KIND_STRING, AT(pre), 0, 0, NULL,
                 "pre-tokenizer, instead of the model's own: llama-bpe, qwen2, ... (a wrong name lists them)"},
    [CMD_OUTPUT] = {'o', "output", "FILE", KIND_STRING, AT(output), 0, 0, NULL, "the file to write; library export: the folder"},
    [CMD_BUDGET] = {0, "budget", "B,...", KIND_REALS, AT(budgets), 1e-6, 1 << 24,
                    "numbers above 0, separated by commas: shares of the length up to 1, tokens above",
                    "budgets, each applied to every --kv"},
    [CMD_DATA] = {0, "data", "FILE", KIND_STRING, AT(data), 0, 0, NULL, "what to measure on, where the task does not make its own"},
    [CMD_LENGTH] = {0, "length", "L,...", KIND_INTS, AT(lengths), 8, 1 << 24, "token counts, 8 or more, separated by commas",
                    "tokens of a sequence; several lengths run one after the other"},
    [CMD_LIMIT] = {0, "limit", "N", KIND_INT, AT(limit), 0, INT_MAX, "a whole number, 0 or more",
                   "at most that many items; 0: the task's default"},
    [CMD_MODE] = {0, "mode", "MODE", KIND_STRING, AT(mode), 0, 0, NULL,
                  "simulate: every token is decoded under the policy; prefill: the prompt is read densely first"},
    [CMD_SET] = {0, "set", "KEY=VALUE,...", KIND_STRINGS, AT(settings), 0, 0, NULL, "options of the task"},
    [CMD_SHOTS] = {0, "shots", "N", KIND_INT, AT(shots), 0, 1000, "a whole number from 0 to 1000",
                   "solved examples before each question, in tasks that have option shots"},
    [CMD_CALIBRATE_DATA] = {0, "data", "TEXT", KIND_STRING, AT(data), 0, 0, NULL, "the text to calibrate on"},
    [CMD_TRAIN_DATA] = {0, "data", "TEXT,...", KIND_STRING, AT(train.data), 0, 0, NULL,
                        "texts to train on; the last hundredth of each is held out for measuring"},
    [CMD_TRAIN_VERSION] = {0, "predictor", "V", KIND_STRING, AT(train.version), 0, 0, NULL, "v1 or v2 of TokenButler"},
    [CMD_RECIPE] = {0, "recipe", "NAME", KIND_STRING, AT(train.recipe), 0, 0, NULL,
                    "default, or paper: the paper's --loss, --input, --key-heads, --rotate, --dropout, --lr, --batch, --uses and "
                    "--queries"},
    [CMD_RESUME] = {0, "resume", NULL, KIND_BOOL, AT(train.resume), 0, 0, NULL, "continue from OUTPUT.checkpoint"},
    [CMD_START] = {0, "start", "PREDICTOR", KIND_STRING, AT(train.start), 0, 0, NULL,
                   "a predictor to continue from, with its sizes, instead of a new one"},
    [CMD_TRAIN_LENGTH] = {0, "length", "N", KIND_INT, AT(train.length), 32, 65536, "a whole number from 32 to 65536",
                          "tokens of a text"},
    [CMD_USES] = {0, "uses", "N", KIND_INT, AT(train.n_uses), 1, 65536, "a whole number from 1 to 65536",
                  "steps in which a text is used once the model has read it"},
    [CMD_QUERIES] = {0, "queries", "N", KIND_INT, AT(train.n_queries), 0, 65536, "a whole number from 0 to 65536",
                     "queries of a text that the loss sees, drawn at random in every step; 0: all"},
    [CMD_DROPOUT] = {0, "dropout", "X", KIND_REAL, AT(train.dropout), 0, 0.9, "a number from 0 to 0.9",
                     "v1: share of its feed-forward network's outputs that are 0 in a step, others each time; as published 0.1"},
    [CMD_TRAIN_TOKENS] = {0, "tokens", "N", KIND_INT, AT(train.n_tokens), 0, INT_MAX, "a whole number, 0 or more",
                          "tokens to train on; 0: set by --steps"},
    [CMD_STEPS] = {0, "steps", "N", KIND_INT, AT(train.n_steps), 0, INT_MAX, "a whole number, 0 or more",
                   "steps to take; 0: set by --tokens, or all texts once"},
    [CMD_TRAIN_BATCH] = {0, "batch", "N", KIND_INT, AT(train.batch), 1, 65536, "a whole number from 1 to 65536",
                         "texts whose gradients are held and added up together, over all processes"},
    [CMD_ACCUMULATE] = {0, "accumulate", "N", KIND_INT, AT(train.accumulate), 1, 65536, "a whole number from 1 to 65536",
                        "batches a step takes, one after the other"},
    [CMD_LR] = {0, "lr", "X", KIND_REAL, AT(train.lr), 0, 10, "a number from 0 to 10",
                "the highest learning rate (where the default recipe begins at random: 0.015 up to a width of 256, beyond it by "
                "the square of the width less): warm-up over a tenth of the steps, then cosine decay"},
    [CMD_DECAY] = {0, "weight-decay", "X", KIND_REAL, AT(train.decay), 0, 10, "a number from 0 to 10", "AdamW's, of matrices"},
    [CMD_LOSS] = {0, "loss", "NAME", KIND_STRING, AT(train.loss), 0, 0, NULL,
                  "v1: causal or square: squared errors over the causal half, or all as published; entropy: v2's"},
    [CMD_TRAIN_INPUT] = {0, "input", "NAME", KIND_STRING, AT(train.input), 0, 0, NULL,
                         "norm or attention: the layer's normed input, or that of its feed-forward part, behind attention"},
    [CMD_DIM] = {0, "dim", "N", KIND_INT, AT(train.dim), 0, 128, "a whole number from 0 to 128",
                 "width of a predicted head; 0: by the model's size"},
    [CMD_MID] = {0, "mid", "N", KIND_INT, AT(train.mid), 0, 1 << 20, "a whole number, 0 or more",
                 "hidden width of the predictor's networks; 0: by the model's size"},
    [CMD_KEY_HEADS] = {0, "key-heads", "NAME", KIND_STRING, AT(train.key_heads), 0, 0, NULL,
                       "v1: a predicted key per kv head, or per query head as published"},
    [CMD_ROTATE] = {0, "rotate", "NAME", KIND_STRING, AT(train.rotate), 0, 0, NULL,
                    "fast: rotates the pairs with a period below --length; published: v1 all pairs, v2 none"},
    [CMD_BEGIN] = {0, "begin", "NAME", KIND_STRING, AT(train.begin), 0, 0, NULL,
                   "v2: fit or random: begins with least squares and each head's own rotation, or at random as v1"},
    [CMD_VALID] = {0, "valid", "TEXT,...", KIND_STRING, AT(train.valid), 0, 0, NULL, "other texts to measure on"},
    [CMD_VALID_TEXTS] = {0, "valid-texts", "N", KIND_INT, AT(train.n_valid), 1, 65536, "a whole number from 1 to 65536",
                         "how many texts to measure on"},
    [CMD_EVERY] = {0, "every", "N", KIND_INT, AT(train.every), 0, INT_MAX, "a whole number, 0 or more",
                   "steps from one measurement to the next; 0: only at the end"},
    [CMD_CHECKPOINT] = {0, "checkpoint", "S", KIND_INT, AT(train.checkpoint_s), 0, INT_MAX, "a whole number of seconds",
                        "seconds from one checkpoint to the next; 0: after every step"},
    [CMD_TYPE] = {0, "type", "TYPE", KIND_STRING, AT(train.type), 0, 0, NULL, "q4_0, q8_0, f16 or f32: the predictor's matrices"},
    [CMD_HOST] = {0, "host", "HOST", KIND_STRING, AT(host), 0, 0, NULL,
                  "the address to listen on; a path ending in .sock: a unix socket"},
    [CMD_PORT] = {0, "port", "P", KIND_INT, AT(port), 0, 65535, "a whole number from 0 to 65535", "the port; 0: any that is free"},
    [CMD_ALIAS] = {0, "alias", "NAME", KIND_STRING, AT(alias), 0, 0, NULL, "the model's name in answers, instead of its file's"},
    [CMD_API_KEY] = {0, "api-key", "KEY", KIND_STRINGS, AT(api_keys), 0, 0, NULL,
                     "a key that clients must send; may be repeated; each sees only its own requests"},
    [CMD_API_KEY_FILE] = {0, "api-key-file", "FILE", KIND_STRING, AT(api_key_file), 0, 0, NULL,
                          "more keys, one a line; BUTLER_API_KEY in the environment is one too"},
    [CMD_ADMIN_KEY] = {0, "admin-key", "KEY", KIND_STRING, AT(admin_key), 0, 0, NULL,
                       "a key that sees the requests of all keys; also BUTLER_ADMIN_KEY in the environment"},
    [CMD_KV_RESIDENT] =
        {0, "kv-ram", "BYTES", KIND_BYTES, AT(kv_ram), 0, 0, "a number of bytes, K, M, G or T behind it for powers of 1024",
         "most bytes of keys and values in memory; the others lie on the disk, from which steps read what they select; "
         "0: all are in memory; with --device: that are there, all are in memory"},
    [CMD_KV_DISK] = {0, "kv-disk", "BYTES", KIND_BYTES, AT(kv_disk), 0, 0,
                     "a number of bytes, K, M, G or T behind it for powers of 1024",
                     "keys and values of so many more bytes than --kv-ram lie on the disk; 0: none"},
    [CMD_KV_RAM] = {0, "kv-ram", "BYTES", KIND_BYTES, AT(kv_bytes), 0, 0,
                    "a number of bytes, K, M, G or T behind it for powers of 1024",
                    "memory of all KV caches, a quarter of it for beginnings of earlier prompts; 0: half of the machine's"},
    [CMD_PARK] = {0, "park", "DIR", KIND_STRING, AT(park), 0, 0, NULL,
                  "a folder for requests that leave memory when --kv-ram runs out; none: memory is reserved for whole requests"},
    [CMD_MAX_STALL] = {0, "max-stall", "MS", KIND_INT, AT(max_stall), 1, 3600000, "milliseconds, 1 or more",
                       "longest wait between two tokens of an answer while other prompts are read"},
    [CMD_PARALLEL] = {0, "parallel", "N", KIND_INT, AT(parallel), 1, 1024, "a whole number from 1 to 1024",
                      "most requests that run at the same time"},
    [CMD_QUEUE] = {0, "queue", "N", KIND_INT, AT(queue), 0, 1 << 20, "a whole number, 0 or more",
                   "most requests that wait; further ones are refused (429)"},
    [CMD_CONNECTIONS] = {0, "connections", "N", KIND_INT, AT(connections), 1, 65536, "a whole number from 1 to 65536",
                         "most connections"},
    [CMD_MAX_BODY] = {0, "max-body", "BYTES", KIND_BYTES, AT(max_body), 0, 0,
                      "a number of bytes, K, M, G or T behind it for powers of 1024", "largest body of a request"},
    [CMD_TIMEOUT] = {0, "timeout", "S", KIND_INT, AT(timeout), 1, 86400, "a whole number of seconds, 1 or more",
                     "for a request to come in whole, and for a client to read some of its answer"},
    [CMD_AUDIT] = {0, "audit", "N", KIND_INT, AT(audit), 0, INT_MAX, "a whole number, 0 or more",
                   "every Nth step one of its texts also attends exactly, for recall and mass in /metrics; 0: never"},
    [CMD_ACCESS_LOG] = {0, "access-log", "FILE", KIND_STRING, AT(access_log), 0, 0, NULL,
                        "a line for every answer; - is standard error"},
    [CMD_THREADS] = {'t', "threads", "N", KIND_INT, AT(n_threads), 0, 1024, "a whole number from 0 to 1024",
                     "threads; 0: one per core that it may run on"},
    [CMD_DEVICE] =
        {0, "device", "NAME", KIND_STRING, AT(device), 0, 0, NULL,
         "cpu, cuda:N, opencl:N (info --device auto lists them) or auto: the first GPU, else the CPU; serve, bench: cuda:all"},
    [CMD_ISA] = {0, "isa", "NAME", KIND_ISA, AT(isa), 0, 0, "ref, avx2, avx512, amx or neon",
                 "instructions to use; without it the best this processor has"},
    [CMD_PRECISION] = {0, "prompt-precision", "BITS", KIND_PRECISION, AT(precision), 0, 0, "8 or 16",
                       "of the integers that activations are quantised to; with 16 prompts take up to twice as long"},
    [CMD_ROPE_SCALING] = {0, "rope-scaling", "TYPE", KIND_STRING, AT(rope_scaling), 0, 0, NULL,
                          "of positions, instead of the model's own, for longer texts: none, linear or yarn"},
    [CMD_ROPE_SCALE] = {0, "rope-scale", "X", KIND_REAL, AT(rope_scale), 0, 1000, "a number from 1 to 1000",
                        "with linear and yarn: so many times as long as in training"},
    [CMD_ROPE_ORIGINAL] = {0, "yarn-orig-ctx", "N", KIND_INT, AT(rope_original_ctx), 0, 1 << 28,
                           "a whole number of tokens, 0 or more",
                           "tokens of the training that --rope-scale extends; 0: as the model says"},
    [CMD_JSON] = {0, "json", NULL, KIND_BOOL, AT(json), 0, 0, NULL,
                  "one JSON object a line on standard output, nothing else there"},
    [CMD_HELP] = {'h', "help", NULL, KIND_BOOL, AT(help), 0, 0, NULL, "print this help"},
};

static const char *const kv_type_names[BUTLER_N_KV_TYPES] = {
    [BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};

const char *cmd_kv_type_name(enum butler_kv_type type)
{
    return kv_type_names[type];
}

void cmd_integers_append(struct cmd_integers *integers, int32_t value)
{
    if (integers->n == integers->capacity) {
        int capacity = integers->capacity ? 2 * integers->capacity : 64;
        int32_t *values = cmd_alloc((size_t)capacity, sizeof *values);
        if (integers->n)
            memcpy(values, integers->values, (size_t)integers->n * sizeof *values);
        free(integers->values);
        integers->values = values;
        integers->capacity = capacity;
    }
    integers->values[integers->n++] = value;
}

static bool parse_int(const char *text, size_t n, double min, double max, int *out)
{
    char copy[32];
    char *end;
    if (n == 0 || n >= sizeof copy || strchr(" \t\n+", text[0]))
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    errno = 0;
    long long value = strtoll(copy, &end, 10);
    if (errno || end != copy + n || (double)value < min || (double)value > max)
        return false;
    *out = (int)value;
    return true;
}

static bool parse_ints(const char *text, double min, double max, struct cmd_integers *out)
{
    for (;;) {
        size_t n = strcspn(text, ",");
        int value;
        if (!parse_int(text, n, min, max, &value))
            return false;
        cmd_integers_append(out, value);
        if (!text[n])
            return true;
        text += n + 1;
    }
}

static bool parse_real(const char *text, double min, double max, double *out)
{
    char *end;
    if (!*text || strchr(" \t\n", *text))
        return false;
    double value = strtod(text, &end);
    if (*end || !isfinite(value) || value < min || value > max)
        return false;
    *out = value;
    return true;
}

static bool parse_reals(const char *text, double min, double max, struct cmd_reals *out)
{
    for (;;) {
        char copy[64];
        const size_t n = strcspn(text, ",");
        if (n >= sizeof copy || out->n == CMD_MAX_LIST)
            return false;
        memcpy(copy, text, n);
        copy[n] = 0;
        if (!parse_real(copy, min, max, &out->values[out->n++]))
            return false;
        if (!text[n])
            return true;
        text += n + 1;
    }
}

static bool parse_bias(const char *text, double min, double max, struct cmd_biases *out)
{
    const char *colon = strchr(text, ':');
    double value;
    int id;
    if (!colon || out->n == CMD_MAX_LIST || !parse_int(text, (size_t)(colon - text), 0, INT32_MAX, &id))
        return false;
    if (strcmp(colon + 1, "-inf") == 0)
        value = -INFINITY;
    else if (!parse_real(colon + 1, min, max, &value))
        return false;
    out->values[out->n++] = (struct butler_logit_bias){.id = id, .bias = (float)value};
    return true;
}

static bool parse_seed(const char *text, uint64_t *out)
{
    char *end;
    if (strcmp(text, "-1") == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        *out = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec;
        return true;
    }
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !errno && !*end;
}

static bool parse_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (errno || (*end && (!unit || end[1])) || value > UINT64_MAX >> shift)
        return false;
    *out = (uint64_t)value << shift;
    return true;
}

static bool parse_kv_type(const char *text, int *out)
{
    for (int i = 0; i < BUTLER_N_KV_TYPES; i++)
        if (strcmp(text, kv_type_names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool parse_isa(const char *text, const char **out)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = names[i];
            return true;
        }
    return false;
}

static bool parse_precision(const char *text, int *out)
{
    *out = strcmp(text, "8") == 0 ? 8 : 16;
    return *out == 8 || strcmp(text, "16") == 0;
}

static bool parse_strings(const char *text, struct cmd_strings *out)
{
    if (out->n == CMD_MAX_LIST)
        return false;
    out->values[out->n++] = text;
    return true;
}

static bool set(struct cmd_options *options, const struct flag *flag, const char *text)
{
    void *where = (char *)options + flag->offset;
    switch (flag->kind) {
    case KIND_BOOL:
        *(bool *)where = true;
        return true;
    case KIND_STRING:
        *(const char **)where = text;
        return true;
    case KIND_STRINGS:
        return parse_strings(text, where);
    case KIND_OPTIONAL_INT:
        if (!text)
            return true;
        return parse_int(text, strlen(text), flag->min, flag->max, where);
    case KIND_INT:
        return parse_int(text, strlen(text), flag->min, flag->max, where);
    case KIND_INTS:
        return parse_ints(text, flag->min, flag->max, where);
    case KIND_REAL:
        return parse_real(text, flag->min, flag->max, where);
    case KIND_REALS:
        return parse_reals(text, flag->min, flag->max, where);
    case KIND_BIASES:
        return parse_bias(text, flag->min, flag->max, where);
    case KIND_SEED:
        return parse_seed(text, where);
    case KIND_BYTES:
        return parse_bytes(text, where);
    case KIND_KV_TYPE:
        return parse_kv_type(text, where);
    case KIND_ISA:
        return parse_isa(text, where);
    case KIND_PRECISION:
        return parse_precision(text, where);
    }
    return false;
}

/* The flag that `word` ("-n", "--temp", "--temp=1") names among those the command takes. */
static enum cmd_flag find(const struct cmd_command *command, const char *word, const char **value)
{
    *value = NULL;
    for (const struct cmd_use *use = command->uses; use->flag; use++) {
        const struct flag *flag = &flags[use->flag];
        if (word[1] != '-') {
            if (word[1] == flag->letter && !word[2])
                return use->flag;
            continue;
        }
        size_t n = strlen(flag->name);
        if (strncmp(word + 2, flag->name, n) != 0 || (word[2 + n] && word[2 + n] != '='))
            continue;
        if (word[2 + n])
            *value = word + 3 + n;
        return use->flag;
    }
    return CMD_NONE;
}

static int fail_unknown_flag(const struct cmd_options *options, const char *word)
{
    const struct cmd_command *command = options->command;
    char names[1024] = "", name[64], mean[80];
    for (const struct cmd_use *use = command->uses; use->flag; use++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "--%s, ", flags[use->flag].name);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    cmd_say(options, "unknown flag '%s';%s `butler %s --help` lists what is allowed", word,
            butler_did_you_mean(mean, sizeof mean, name, names), command->name);
    return CMD_USAGE;
}

static int take_flag(struct cmd_options *options, int argc, char **argv, int *i)
{
    const char *word = argv[*i], *value;
    const struct cmd_command *command = options->command;
    enum cmd_flag which = find(command, word, &value);
    if (which == CMD_NONE)
        return fail_unknown_flag(options, word);
    const struct flag *flag = &flags[which];
    if (!flag->argument && value) {
        cmd_say(options, "--%s takes no value, but got '%s'", flag->name, value);
        return CMD_USAGE;
    }
    if (flag->argument && flag->kind != KIND_OPTIONAL_INT && !value) {
        if (*i + 1 == argc) {
            cmd_say(options, "%s needs a value: %s %s", word, word, flag->argument);
            return CMD_USAGE;
        }
        value = argv[++*i];
    }
    if (!set(options, flag, value)) {
        if (flag->allowed)
            cmd_say(options, "%s: '%s' is not allowed; it takes %s", word, value, flag->allowed);
        else
            cmd_say(options, "%s: '%s' is one too many; at most %d are allowed", word, value, CMD_MAX_LIST);
        return CMD_USAGE;
    }
    options->given[which] = true;
    return CMD_DONE;
}

static int check_positional(const struct cmd_options *options)
{
    const struct cmd_command *command = options->command;
    if (options->positional.n > command->max_positional) {
        cmd_say(options, "unexpected '%s'; usage: butler %s %s", options->positional.values[command->max_positional], command->name,
                command->synopsis);
        return CMD_USAGE;
    }
    if (options->positional.n < command->min_positional) {
        cmd_say(options, "something is missing; usage: butler %s %s", command->name, command->synopsis);
        return CMD_USAGE;
    }
    return CMD_DONE;
}

int cmd_options_parse(struct cmd_options *options, const struct cmd_command *command, int argc, char **argv)
{
    bool only_positional = false;
    *options = (struct cmd_options){.command = command};
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (only_positional || word[0] != '-' || !word[1]) {
            if (!parse_strings(word, &options->positional)) {
                cmd_say(options, "too many words, from '%s' on", word);
                return CMD_USAGE;
            }
        } else if (strcmp(word, "--") == 0) {
            only_positional = true;
        } else {
            int status = take_flag(options, argc, argv, &i);
            if (status != CMD_DONE)
                return status;
            if (options->help)
                return CMD_DONE;
        }
    }
    for (const struct cmd_use *use = command->uses; use->flag; use++)
        if (use->value && !options->given[use->flag])
            set(options, &flags[use->flag], use->value);
    for (int i = 0; i < options->stops.n; i++)
        if (!*options->stops.values[i]) {
            cmd_say(options, "--stop: a text that is empty ends every answer before it begins");
            return CMD_USAGE;
        }
    if (options->given[CMD_LOSSLESS] &&
        (!options->given[CMD_KV] || (options->kv.n == 1 && strcmp(options->kv.values[0], "auto") == 0))) /* `full` drafts nothing */
        options->kv.values[0] = "verified";
    return check_positional(options);
}

void cmd_options_free(struct cmd_options *options)
{
    free(options->found_model);
    free(options->ids.values);
    free(options->depths.values);
    free(options->lengths.values);
    options->found_model = NULL;
    json_decref(options->automatic.on);
    options->automatic = (struct cmd_auto){0};
    options->ids = options->depths = options->lengths = (struct cmd_integers){0};
}

void cmd_help_print(const struct cmd_command *command)
{
    cmd_printf("butler %s - %s\n\nusage: butler %s %s\n\n", command->name, command->summary, command->name, command->synopsis);
    for (const struct cmd_use *use = command->uses; use->flag; use++) {
        const struct flag *flag = &flags[use->flag];
        char names[64];
        int n = 0;
        if (flag->letter)
            n = snprintf(names, sizeof names, "-%c, ", flag->letter);
        if (flag->kind == KIND_OPTIONAL_INT)
            snprintf(names + n, sizeof names - (size_t)n, "--%s[=%s]", flag->name, flag->argument);
        else
            snprintf(names + n, sizeof names - (size_t)n, "--%s%s%s", flag->name, flag->argument ? " " : "",
                     flag->argument ? flag->argument : "");
        cmd_printf("  %-24s %s", names, flag->help);
        if (use->value)
            cmd_printf(" (default %s)", use->value);
        cmd_printf("\n");
    }
    cmd_printf("\n%s", command->details);
}
