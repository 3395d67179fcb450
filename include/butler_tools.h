/* What programs around a model need beside butler.h: the library of texts that were read, and calls for evaluation and training.
 * Conventions as in butler.h. */
#ifndef BUTLER_TOOLS_H
#define BUTLER_TOOLS_H

#include "butler.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A folder with keys and values of texts that were read, in files of up to 256 tokens, so that no text is read twice: not by
 * another session or process, under another policy, with another end or in another context. A file is found by the model's
 * fingerprint, the KV type, the kernels, and the tokens up to its last one; what is read of it is compared with checksums, and what
 * is damaged counts as absent. Several processes may use a folder. Used by the thread that runs the sessions that use it. */

/* Told in a sentence what the library could not do, where its caller goes on without: a file that is damaged, a full disk. */
typedef void butler_library_note_fn(void *user, const char *message);

struct butler_library;

struct butler_library_params {
    size_t struct_size;
    const char *folder; /* made if need be, for the user alone */
    uint64_t max_bytes; /* most bytes of its files; what was used longest ago goes first. 0: a tenth of the disk's free bytes */
    butler_library_note_fn *note; /* or NULL */
    void *user;
};

/* NULL on failure: BUTLER_ERROR_IO where the folder cannot be made or written to. */
struct butler_library *butler_library_open(const struct butler_library_params *params, struct butler_error *err);
void butler_library_free(struct butler_library *library);

/* From now on butler_session_adopt_prefix also looks in the library, and what the session reads as a prompt is kept there while it
 * is read: after every pass, and where it is cancelled. NULL: no longer. It must outlive the session; forks and copies have none.
 */
int butler_session_use_library(struct butler_session *session, struct butler_library *library, struct butler_error *err);

/* Other prompts will go on differently behind this one's first n tokens: where a document ends. Policies like h2o, whose sums over
 * all queries cannot be made again from keys and values, then keep theirs in the library when n tokens are read, beside those of
 * the whole prompt. One place; a later call replaces it, 0 takes it back. BUTLER_ERROR_ARGUMENT: the session has no library. */
int butler_session_keep_at(struct butler_session *session, int n, struct butler_error *err);

struct butler_library_info {
    size_t struct_size;
    const char *folder;                                   /* the library's */
    uint64_t max_bytes, bytes, bytes_read, bytes_written; /* the latter two by this process */
    int n_damaged;                                        /* files that could not be used */
};
void butler_library_get_info(const struct butler_library *library, struct butler_library_info *info);

/* A text of the library: all its files up to one that no other goes on from. */
struct butler_library_entry {
    size_t struct_size;
    char id[33];                               /* names it: the hash of its tokens */
    char model[64], isa[16];                   /* its model's name; the kernels that made the rows, and can use them */
    char text[160], end[160];                  /* how its first and its last file's text begin */
    int kv_type, n_tokens;                     /* kv_type: enum butler_kv_type */
    uint64_t model_fingerprint, bytes, shared; /* bytes of its files, states included; of shared ones */
    int64_t used_ns;                           /* since 1970: when it was last read or written */
    bool broken;                               /* a file of its beginning is gone: what is behind it cannot be used */
};
typedef bool butler_library_entry_fn(void *user, const struct butler_library_entry *entry); /* false: stop */

/* All texts, the latest used first. Returns their number. */
int butler_library_list(struct butler_library *library, butler_library_entry_fn *fn, void *user, struct butler_error *err);
/* Removes the text whose id begins with `id` (NULL: all), but what others share; returns the number of texts, more than one where
 * models or KV types have the same tokens. No text is an error; so are several ids that begin so: then none is removed. */
int butler_library_remove(struct butler_library *library, const char *id, struct butler_error *err);
/* Compares every file with its checksums. Damaged ones, and those whose beginning is gone, are removed: a note each. How many. */
int butler_library_verify(struct butler_library *library, struct butler_error *err);
/* Copies the files of the one text whose id begins with `id` into the library `to` (NULL: says only whether there is that one);
 * returns their number. */
int butler_library_export(struct butler_library *library, const char *id, struct butler_library *to, struct butler_error *err);

/* -------------------------------------------------------------------------------------- policies and budgets */

/* A budget in tokens, as a share of the text, and as attention that is to be read. */
enum butler_budget { BUTLER_BUDGET_COUNT, BUTLER_BUDGET_FRACTION, BUTLER_BUDGET_MASS };

/* What a policy string says. */
struct butler_policy_parts {
    size_t struct_size;
    char name[64];      /* "h2o+vatp" */
    char text[768];     /* canonical: every parameter written out, one spelling for one policy */
    const char *metric; /* valid as long as the engine; NULL: everything is read */
    bool retrieves, evicts;
    enum butler_budget budget_kind;
    double budget;    /* 1 where everything is read */
    int predictor;    /* version of the predictor that it selects by; 0: none */
    bool looks_ahead; /* it selects by queries or keys of earlier layers: the first layer always reads everything */
};

int butler_policy_read(const struct butler_engine *engine, const char *policy, struct butler_policy_parts *parts,
                       struct butler_error *err);

/* Whether a session of policy `to` can take over the text of one of policy `from`: what its metric keeps is the same, or can be
 * made from the keys. false also where one of both is no policy. */
bool butler_policy_can_adopt(const struct butler_engine *engine, const char *to, const char *from);

/* Gives an empty session the text of another one of the same engine and KV type, whose policy may be another; pages are shared.
 * Both go on by themselves. BUTLER_ERROR_ARGUMENT where the policies do not allow it, or the other has evicted tokens. */
int butler_session_adopt(struct butler_session *session, struct butler_session *from, struct butler_error *err);

/* From now on the session's budget is n_tokens >= 1 in place of its policy's count, fraction or ratio, also under a policy that
 * evicts. butler_policy_of and session files have the policy's own. BUTLER_ERROR_ARGUMENT under `full` and mass=. */
int butler_session_set_budget(struct butler_session *session, int n_tokens, struct butler_error *err);

/* Bytes that the session's metric reads for one step in one KV head of n tokens, under a budget of `budget` tokens: to score, to
 * observe, and its share of a predictor's own attention. Keys that a metric reads to score are not counted: of `oracle` it is 0. */
double butler_session_metric_bytes(const struct butler_session *session, int budget, int n);

/* Takes the newest token out of the text again, but not what the policy observed of it and evicted for it: the step that decodes
 * it anew reads what the policy kept. There are no logits then. BUTLER_ERROR_ARGUMENT where butler_session_can_unread is false. */
int butler_session_unread(struct butler_session *session, struct butler_error *err);
/* Whether the last of n tokens could be taken out: the metric's records are single tokens' and it has no state, no predictor has
 * read them, and layers with a window still hold what the token before reads. */
bool butler_session_can_unread(const struct butler_session *session, int n);

/* How many of the latest tokens a layer sees; 0: all, and for a layer that the model does not have. */
int butler_model_window(const struct butler_model *model, int layer);

/* ---------------------------------------------------------------------------------------- engines and layers */

/* Another engine on the same model and device, with the plug-ins and predictors of this one, which must outlive it: for a thread
 * that runs sessions beside it. n_threads and prefix_bytes as in butler_engine_params. */
struct butler_engine *butler_engine_clone(const struct butler_engine *engine, int n_threads, uint64_t prefix_bytes,
                                          struct butler_error *err);

/* Hooks into the layers: what a layer is given, what its attention compares and gives. Of a block of n tokens of the session from
 * position `first` on, in host memory that is valid during the call; a function may be NULL. */
struct butler_capture {
    size_t struct_size;
    /* Before attention: x[n][n_embd] is the layer's input, h[n][n_embd] the same after its first norm, q[n][n_heads][head_dim]
     * and k[n][n_kv_heads][head_dim] are rotated. */
    void (*layer)(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k);
    void *user;
    /* What attention gave for q, o[n][n_heads][head_dim], before it is used: the callback may overwrite o to steer the model. */
    void (*attended)(void *user, int layer, int first, int n, const float *q, float *o);
    /* h[n][n_embd], what the feed-forward part takes in. */
    void (*fed)(void *user, int layer, int first, int n, const float *h);
    /* v[n][n_kv_heads][head_dim], the values that the cache gets. */
    void (*values)(void *user, int layer, int first, int n, const float *v);
};

/* From now on the session's passes call these hooks; NULL: no longer. The struct is borrowed. */
int butler_session_set_capture(struct butler_session *session, const struct butler_capture *capture, struct butler_error *err);

/* Loops over numbers in the instructions that the engine uses, for training beside it. Results of different instruction sets differ
 * in rounding. */
struct butler_vector_loops {
    size_t struct_size;
    float (*dot)(const float *x, const float *y, int n);
    void (*add)(float *y, const float *x, int n);           /* y += x */
    void (*axpy)(float *y, float a, const float *x, int n); /* y += a x */
    void (*scale)(float *x, float factor, int n);
    float (*max)(const float *x, int n);
    float (*exp_sum)(float *x, float max, int n); /* x = exp(x - max); returns the sum */
};

void butler_engine_vector_loops(const struct butler_engine *engine, struct butler_vector_loops *loops);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
