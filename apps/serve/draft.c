/* See draft.h. */
#include "serve/draft.h"

#include "serve/jobs.h"

enum { FIRST_TOKENS = 2 }; /* of a round before any was measured */

bool serve_draft_wanted(const struct serve_job *job)
{
    return job->lossless && job->prompt_done && job->n_top < 0;
}

int serve_draft_open(const struct serve_job *job, struct serve_choice *choice, struct butler_error *err)
{
    const struct butler_draft_params params = {.n_max = job->n_drafts};
    if (!choice->draft)
        choice->draft = butler_draft_new(choice->session, &params, err);
    return choice->draft ? 0 : err->code;
}

static int at_most(int n, int most)
{
    return n < most ? n : most;
}

/* A round of n tokens is n - 1 drafts and a check of n rows: no more work than 2n - 1 dense steps. */
static int count_tokens(const struct serve_job *job, const struct serve_choice *choice, double max_stall_s)
{
    int n = choice->step_s > 0 ? SERVE_ROUND : FIRST_TOKENS;
    if (choice->step_s > 0 && (2 * SERVE_ROUND - 1) * choice->step_s > max_stall_s)
        n = (int)((max_stall_s / choice->step_s + 1) / 2);
    n = at_most(n, job->max_tokens - choice->n_generated);
    n = at_most(n, job->grant.n_tokens - butler_n_past(choice->session));
    return n < 1 ? 1 : n;
}

int serve_draft_round(const struct serve_job *job, struct serve_choice *choice, double max_stall_s, struct butler_error *err)
{
    struct butler_stats before = {BUTLER_INIT(butler_stats)}, after = {BUTLER_INIT(butler_stats)};
    const double begin = serve_now();
    if (serve_draft_open(job, choice, err) < 0)
        return err->code;
    butler_session_stats(choice->session, &before);
    const int n =
        butler_draft_step(choice->draft, choice->sampler, choice->id, choice->drawn, count_tokens(job, choice, max_stall_s), err);
    if (n < 0)
        return n;
    butler_session_stats(choice->session, &after);
    choice->n_drawn = n;
    choice->n_taken = 0;
    choice->step_s = (serve_now() - begin) / (2 * (double)(after.n_drafted - before.n_drafted) + 1);
    return 0;
}
