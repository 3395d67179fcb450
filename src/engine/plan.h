/* What a policy comes to for a model: data, made once from its text (plan.c). Engine and backends follow it and ask the metric
 * nothing but its functions. */
#ifndef BUTLER_PLAN_H
#define BUTLER_PLAN_H

#include "butler_tools.h"
#include "engine/metric.h"

enum butler_method { BUTLER_DENSE, BUTLER_EVICT, BUTLER_RETRIEVE };
/* Who shares a selection: all query heads of the layer, those of a KV head, or so many neighbours of these: a subgroup. The last
 * subgroup of a KV head may have fewer. */
enum { BUTLER_SHARE_LAYER = -1, BUTLER_SHARE_KV, BUTLER_SHARE_QUERY };
enum butler_reduce { BUTLER_REDUCE_MAX, BUTLER_REDUCE_MEAN };
/* How heads that share a selection are made comparable. */
enum butler_normalise { BUTLER_NORMALISE_SOFTMAX, BUTLER_NORMALISE_ZSCORE };
enum butler_value_norm { BUTLER_NORM_NONE, BUTLER_NORM_L1, BUTLER_NORM_L2, BUTLER_NORM_LINF };

/* How many rows of scores a KV head has, and of which query. */
enum butler_score_rows {
    BUTLER_ROWS_QUERY,    /* one for each of its query heads */
    BUTLER_ROWS_ANY,      /* one: scores do not depend on the query */
    BUTLER_ROWS_COMBINED, /* one: of its query heads together (metric->score_mean) */
};

/* What the norms of values do to scores. */
enum butler_weigh { BUTLER_WEIGH_NOT, BUTLER_WEIGH_ADD_LOG, BUTLER_WEIGH_TIMES, BUTLER_WEIGH_DIVIDE };

/* Rows of scores -> one row of numbers to select by: heads that share a selection are made comparable, weighed, reduced. */
struct butler_reduction {
    enum butler_score_rows rows;
    bool logits;        /* scores are logits, of one query head each */
    bool zscores;       /* they are compared by standard scores; else by the logarithms of a softmax */
    bool probabilities; /* the numbers must be shares of attention (mass) */
    bool mean;          /* over heads; else the highest */
    enum butler_weigh weigh;
    int pool; /* scores selected together: a unit has the highest, or where they are shares the sum; 1: each by itself */
};

struct butler_plan {
    const struct butler_metric *metric;      /* NULL: dense. For its functions */
    double values[BUTLER_METRIC_MAX_PARAMS]; /* and what they are given */
    enum butler_method method;

    /* ---- scores and lists ---- */
    int unit;        /* slots selected together */
    int score_slots; /* slots of a score */
    int share;       /* BUTLER_SHARE_*, or query heads of a subgroup: from 1 to fewer than a KV head has */
    struct butler_reduction reduction;
    bool newest; /* evicts by the tokens' places: nothing is scored, the newest fill the budget */
    int scan;    /* two stages: pages of scan × budget tokens are chosen by the bounds of metric->scan; 0: every token is scored */
    bool ahead;  /* a layer can select before its newest token is in the cache: the queries are predicted, the newest token is
                    always read, and no other score depends on its score */
    bool fused;  /* a thread scores, selects and attends to a KV head in one pass */
    /* rope=cache: keys are stored unrotated. */
    bool unrotated;

    /* ---- what a metric keeps ---- */
    enum butler_value_norm value_norm;
    bool from_rows; /* records can be made anew from the stored rows: what a budget that covers the text puts off, and what a text
                       that is cut or taken over needs */
    bool own_text;  /* records are of what the metric's predictor has read itself: nobody else's are of use to it */
    int observe[2]; /* how many of the latest queries are observed: [0] in prompts, [1] while decoding; INT_MAX: all */
    /* Prompts and the last query of exact spans are observed, and no other decode step: so a metric asks, and so does every metric
     * that observes while its session drafts. Going back to an earlier token undoes nothing of it: some of what was observed may be
     * of drafts that were wrong, which changes what is drafted next but no text. */
    bool guided;
    bool prompt_records; /* they are of use only while a prompt is read */
    bool idle;           /* nothing is observed or summarised: the budget covers the session's whole context */
};

/* Of a KV head's `group` query heads how many go by one list; how many lists it has; and the list of query head `head`. Where a
 * layer shares a selection, the lists of its KV heads are equal. */
static inline int butler_list_heads(int share, int group)
{
    return share >= BUTLER_SHARE_QUERY ? BUTLER_MIN(share, group) : group;
}
static inline int butler_lists_per_head(int share, int group)
{
    return BUTLER_CEIL_DIV(group, butler_list_heads(share, group));
}
static inline int butler_list_of(int share, int group, int head)
{
    return head / group * butler_lists_per_head(share, group) + head % group / butler_list_heads(share, group);
}

/* From now on the session drafts: see guided. */
void butler_plan_guide(struct butler_plan *plan);

/* From now on the session is idle. */
void butler_plan_idle(struct butler_plan *plan);

#endif
