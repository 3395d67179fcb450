/* One text that follows a prompt: its session, its sampler, and what of its text can be shown. */
#ifndef SERVE_CHOICE_H
#define SERVE_CHOICE_H

#include "serve/map.h"
#include "serve/trace.h"

enum { SERVE_ROUND = 16 }; /* most tokens of a round of drafts and their check */

struct serve_choice {
    struct butler_session *session; /* NULL: none yet, parked, or ended */
    int fd;                         /* of the file that the session is parked in; -1: it is not */
    struct butler_sampler *sampler;
    struct butler_buffer text;
    struct butler_buffer ids; /* int32_t: of all its tokens */
    size_t n_shown;
    size_t line;    /* where the latest line begins; 0: the first one */
    double begun_s; /* when the first token was drawn */
    struct butler_utf8 utf8;
    int32_t id; /* to be decoded next */
    int n_generated;
    const char *stop; /* the job's text that ended it; or NULL */
    bool ended;
    struct serve_watch watch;
    struct serve_map *map; /* or NULL */
    /* Of a job with a grammar, see prepare.h. */
    bool preparing; /* the thread that prepares has it: nobody else uses its sampler, session or fields below */
    int prepared;   /* what butler_sampler_prepare returned */
    struct butler_error prepare_error;
    double prepare_s; /* that it took so far, of all its tokens */
    struct serve_job *job;
    struct serve_choice *next;
    /* Of a lossless job, see draft.h. */
    struct butler_draft *draft; /* of this session; NULL: none yet */
    int32_t drawn[SERVE_ROUND]; /* tokens of the latest round: */
    int n_drawn, n_taken;       /* how many there are, how many serve_choice_sample has given */
    double step_s;              /* of a decode step, at most, by the latest round; 0: none yet */
    /* Of a parked session's receipt: the attention of all compared steps to each position [n_attention], a sum. */
    double *attention;
    int n_attention;
};

/* Appends the bytes of ids as UTF-8; spelled: control tokens as the vocabulary spells them, else they are left out. */
void serve_detokenize(const struct butler_model *model, const int32_t *ids, int n, bool spelled, struct butler_buffer *text);
/* Of token id in logits[n_vocab]. n_top: the most probable to report with it. */
void serve_score_token(const float *logits, int n_vocab, int32_t id, int n_top, struct serve_score *score);

/* Puts the next token into choice->id, from the latest round or else by the sampler, and fills the event with it and its text (that
 * of an end token is empty). Returns why the text ends with it (enum serve_finish); < 0: *err. */
int serve_choice_sample(const struct serve_job *job, struct serve_choice *choice, const struct butler_model *model,
                        struct serve_event *event, struct butler_error *err);
/* The text that was held back, when nothing follows it. */
void serve_choice_flush(struct serve_choice *choice, struct serve_event *event);
/* Frees the session, if there is one, and adds what it cost to *sum. */
void serve_choice_release(struct serve_choice *choice, struct butler_stats *sum, struct butler_receipt *compared);
void serve_choice_free(struct serve_choice *choice);

#endif
