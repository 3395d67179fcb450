/* A session: one text, its prompt and its continuation. It owns its KV cache, the state of its policy, its tokens and its last
 * logits. Activations belong to the engine (scratch.h). */
#ifndef BUTLER_SESSION_H
#define BUTLER_SESSION_H

#include "engine/engine.h"
#include "engine/receipt.h"

struct butler_session {
    struct butler_engine *engine;
    struct butler_model *model; /* the engine's */
    struct butler_policy policy;
    struct butler_metric_shape shape;
    int n_ctx;
    enum butler_kv_type kv_type;
    uint64_t seed, prefix_salt;
    struct butler_kv kv;
    struct butler_selection selection;
    struct butler_predict *predict; /* the predictor at work, where the policy's metric asks for one; or NULL */
    struct butler_traffic traffic;  /* of decode steps */
    struct butler_traffic prompt_traffic;
    struct butler_stats stats;
    const float *rope_freq; /* the model's, for this length of context */
    float rope_scale;

    int32_t *tokens; /* [n_ctx] the text so far; -1 where butler_fill made it up */
    int n_past;
    int n_decoded;      /* tokens decoded since the last prompt: what the stopping rule counts */
    int n_dense;        /* the first tokens of the text that were read as a prompt, from the beginning on: what others can share */
    int n_adopted;      /* tokens that the last butler_session_adopt_prefix gave */
    int n_observed;     /* the metric has observed queries of positions below this one */
    int n_skipped;      /* position behind the latest decode step that a metric which observes them was not shown (schedule.c) */
    bool observed_more; /* and queries that the text as a prompt has not: of checks of drafts, of tokens that were taken back */
    bool steered;       /* a capture was set while tokens were read: their rows are not what the text alone gives */
    int sparse_end;     /* position after the last token that was read sparsely (prompt=) */
    bool evicted;       /* some token is no longer held */
    int n_places;       /* rotations by place that the cache has */
    bool has_logits, failed, stop;
    bool drafting;                /* some tokens may be cut off again: no pages are given back meanwhile */
    int cancelled;                /* set by any thread */
    butler_progress_fn *progress; /* or NULL */
    void *progress_user;
    const struct butler_capture *capture; /* or NULL */
    struct butler_audit *audit;           /* the next decode step fills it; or NULL */
    struct butler_audit audited;          /* what audit points to */
    struct butler_audit *audit_to;        /* the caller's, which gets it */
    butler_attention_fn *on_attention;    /* decode steps call it; or NULL */
    void *attention_user;
    struct butler_receipt_state *receipt; /* or NULL */
    struct butler_steps *steps;           /* plug-ins; or NULL */
    struct butler_shelf *shelf;           /* of a library (library.h); or NULL */

    struct butler_arena arena;     /* host memory: tokens, logits, selection.at */
    struct butler_buffers buffers; /* device memory: selection, rotations, queries */
    float *logits;                 /* host, [n_vocab] */
    struct butler_top top;         /* of these, while drafting: the two highest */
    float *queries; /* [n_layers][n_heads][head_dim] of the newest token, where the metric looks at earlier layers; or NULL */
};

/* Tokens of one session in a pass: some of a prompt, or one decode step. */
struct butler_part {
    struct butler_session *session;
    const int32_t *ids; /* [n] */
    int n, row;         /* its first row in the pass */
    bool decode;
    bool exact;       /* decode: n tokens that attend to the whole cache */
    bool sparse;      /* of a prompt, by the policy's prompt= */
    int cut_end;      /* position after the tokens that are there when the cache is next cut: whose last queries a metric sees */
    bool ends_prompt; /* after these tokens */
    int shared_end;   /* of a prompt: tokens from this position on would have other keys in a longer prompt */
    bool cuts;        /* an evicting policy cuts the cache after these tokens */
    bool logits;      /* of the last token */
    butler_logits_fn *each;   /* or NULL */
    butler_hidden_fn *hidden; /* or NULL */
    void *user;
    struct butler_error *err;       /* code 0 so far */
    bool failed;                    /* the rest of the pass runs without it */
    int n_kept, kept_row;           /* rows that go on after the last layer's attention, and the first of them in the pass */
    bool cancelled;                 /* its callback asked to stop */
    struct butler_traffic *traffic; /* the session's, for decode steps or prompts */
    uint64_t ns_before;             /* threads' time in attention before this layer */
    uint64_t metric_bytes_before;   /* the same of bytes */
};

/* Runs the parts (in engine->scratch.parts) through the model together: KV caches grow, logits are made, tokens are noted. A part
 * that fails has its error, its session is marked. */
void butler_forward(struct butler_engine *engine, int n_parts);

/* butler_policy_can_adopt of policies that are parsed. */
bool butler_session_can_adopt(const struct butler_policy *to, const struct butler_policy *from);

/* The session's cache holds the first n tokens of a text in shared pages: makes what its metric keeps of slots [first, n). */
void butler_session_summarise(struct butler_session *session, int first, int n);

/* Its policy's budget was `last`: makes what that budget put off and the new one wants. */
void butler_session_follow_policy(struct butler_session *session, const struct butler_policy *last);

/* Whether the metric has not observed decode steps that the next policy of this text may evict by. */
bool butler_session_has_skipped(const struct butler_session *session, const struct butler_policy *next);

/* A session that failed: why, if its cache knows. */
int butler_session_fault(const struct butler_session *session, struct butler_error *err);

/* Gives back the pages that layers with a window will not read again. */
void butler_session_release_windows(struct butler_session *session);

/* Entropy in nats of softmax(logits[n]). */
double butler_entropy(const float *logits, int n);

/* Builds a session from a parsed policy; session_file.c uses it too. */
struct butler_session *butler_session_make(struct butler_engine *engine, const struct butler_policy *policy,
                                           const struct butler_session_params *params, struct butler_error *err);

/* Lets a session's metric rest (butler_plan_idle) where no step of its context can evict. Not of one that others adopt from. */
void butler_session_rest(struct butler_session *session);

/* Fills what butler_file_describe says of a session's file; in session_file.c. */
int butler_session_describe(const struct butler_map *map, const char *path, struct butler_file_info *info,
                            struct butler_error *err);

/* What operations need for one layer of the session. traffic: where they count. */
static inline struct butler_layer_state butler_session_layer(struct butler_session *session, struct butler_traffic *traffic,
                                                             int layer, int position)
{
    return (struct butler_layer_state){.plan = &session->policy.plan,
                                       .shape = &session->shape,
                                       .kv = &session->kv,
                                       .work = &session->engine->scratch.work,
                                       .selection = &session->selection,
                                       .traffic = traffic,
                                       .layer = layer,
                                       .n_heads = session->shape.n_heads,
                                       .position = position,
                                       .summarise_from = INT32_MAX,
                                       .sinks = session->model->layers[layer].sinks,
                                       .softcap = session->model->hp.attn_softcap};
}

#endif
