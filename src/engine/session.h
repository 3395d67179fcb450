/* A session: one text being read and written. It owns the KV store and all activations; the forward pass works on it. */
#ifndef BUTLER_SESSION_H
#define BUTLER_SESSION_H

#include "engine/backend.h"

/* Sees what each layer is given and what its attention compares and gives, while tokens are read: the way in of the trainer and of
 * measurements. A block of n tokens from position `first` on; buffers are valid during the call; a function may be NULL. */
struct butler_capture {
    /* Before attention: x[n][n_embd] is the layer's input, h[n][n_embd] the same after its first norm, q[n][n_heads][head_dim]
     * and k[n][n_kv_heads][head_dim] are rotated. */
    void (*layer)(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k);
    void *user;
    /* What attention gave, o[n][n_heads][head_dim], before it is used: who writes there leads the session. */
    void (*attended)(void *user, int layer, int first, int n, float *o);
    /* h[n][n_embd], what the feed-forward part takes in. */
    void (*fed)(void *user, int layer, int first, int n, const float *h);
};

struct butler_session {
    struct butler_model *model;
    struct butler_policy policy;
    struct butler_metric_shape shape;
    int n_ctx, n_block;
    enum butler_kv_type kv_type;
    uint64_t seed;
    struct butler_kv kv;
    struct butler_predict *predict; /* the predictor at work, where the policy's metric asks for one; or NULL */
    struct butler_workspace work;
    struct butler_traffic traffic;
    struct butler_stats stats;
    const float *rope_freq; /* the model's, for this length of context */
    float rope_scale;

    int32_t *tokens; /* [n_ctx] the text so far; -1 where butler_fill made it up */
    int n_past;
    int n_decoded; /* tokens decoded since the last prompt: what the stopping rule counts */
    int n_places;  /* rotations by place that the workspace has */
    bool has_logits, failed, stop;
    bool left; /* this step's prediction was certain before the last layer */
    butler_progress_fn *progress; /* or NULL */
    void *progress_user;
    const struct butler_capture *capture; /* or NULL */

    /* Activations of a block, in one arena. */
    struct butler_arena arena;
    float *x, *h;         /* [n_block][n_embd] residual stream, its normed copy */
    float *q, *k, *v, *o; /* [n_block][n_heads or n_kv_heads][head_dim] */
    float *up;            /* [n_block][n_ff] */
    float *gate;          /* [gate_floats], where q, k, v and o lie: attention is over when it is computed, a part at a time */
    size_t gate_floats;
    float *cos, *sin;     /* [n_block][n_rot / 2] */
    float *logits;        /* [n_vocab] */
    float *exit_logits;   /* [n_vocab] when the stopping rule looks between layers */
    float *queries;       /* [n_layers][n_heads][head_dim] of the newest token, where the metric looks at earlier layers */
};

/* How a block of tokens is to be run: those of one session, or one of each of several. */
struct butler_pass {
    const int32_t *ids; /* [n] */
    int n;
    bool decode;      /* one token a session, under its policy */
    bool prompt_ends; /* the last block of a prompt: evicting policies cut the cache */
    int prompt_end;   /* position after the prompt: which queries a metric's window still sees */
    butler_logits_fn *each;
    void *user;
};

/* Runs a block of tokens through the model of all sessions, in the activations of the first: their KV stores grow, their
 * logits are those of their last tokens. errs[n_sessions]; a session that fails is marked so, the others go on. */
int butler_forward(struct butler_session *const *sessions, int n_sessions, const struct butler_pass *pass,
                   struct butler_error *errs);

/* As butler_prefill, of the first part of a prompt that goes on to position prompt_end: nothing is evicted yet (but where
 * the policy cuts every block) and there are no logits. */
int butler_prefill_part(struct butler_session *session, const int32_t *ids, int n, int prompt_end, struct butler_error *err);

/* Whether a session of policy `to` can take over the text of one of policy `from`: what its metric keeps is the same, or
 * can be made from the keys. */
bool butler_session_can_adopt(const struct butler_policy *to, const struct butler_policy *from);
/* Gives an empty session the text of another session of the same model and type, whose policy may be
 * another. It must hold all tokens. Both go on from there by themselves. */
int butler_session_adopt(struct butler_session *session, const struct butler_session *from, struct butler_error *err);

/* Entropy in nats of softmax(logits[n]). */
double butler_entropy(const float *logits, int n);

/* Builds a session from a parsed policy; session_file.c uses it too. */
struct butler_session *butler_session_make(struct butler_model *model, const struct butler_policy *policy,
                                           const struct butler_session_params *params, struct butler_error *err);

#endif
