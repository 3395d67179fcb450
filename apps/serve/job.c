/* What concerns one job alone: its end, what is taken from its prompt while that is read, and histograms of jobs. See jobs.h. */
#include <math.h>
#include <stdlib.h>

#include "serve/choice.h"
#include "serve/jobs.h"
#include "serve/receipt.h"

void serve_job_free(struct serve_job *job)
{
    for (int i = 0; i < job->n_stops; i++)
        free(job->stops[i]);
    free((void *)job->sampling.logit_bias);
    free(job->prompt);
    free(job->policy);
    free(job->key);
    free(job->scores);
    serve_passages_free(job);
    free(job->embedding);
    free(job);
}

bool serve_job_is_cancelled(const struct serve_job *job)
{
    return __atomic_load_n(&job->cancelled, __ATOMIC_ACQUIRE);
}

void serve_cancel(struct serve_job *job)
{
    __atomic_store_n(&job->cancelled, 1, __ATOMIC_RELEASE);
}

/* Positions come in order and the sum is in double: the vector does not depend on how the prompt was cut. */
bool serve_job_hidden(void *user, int position, const float *hidden)
{
    struct serve_job *job = user;
    if (job->pooling == SERVE_POOL_MEAN || position == (job->pooling == SERVE_POOL_FIRST ? 0 : job->n_prompt - 1))
        for (int i = 0; i < job->n_embd; i++)
            job->embedding[i] += (double)hidden[i];
    return !serve_job_is_cancelled(job);
}

void serve_job_end_embedding(struct serve_job *job)
{
    double sum = 0;
    for (int i = 0; i < job->n_embd; i++)
        sum += job->embedding[i] * job->embedding[i];
    for (int i = 0; i < job->n_embd && sum > 0; i++)
        job->embedding[i] /= sqrt(sum);
}

bool serve_job_logits(void *user, int position, const float *logits)
{
    struct serve_job *job = user;
    if (position + 1 < job->n_prompt)
        serve_score_token(logits, job->n_vocab, job->prompt[position + 1],
                          job->n_top > 0 ? job->n_top : 1, /* for serve_scores_add */
                          &job->scores[position + 1]);
    return !serve_job_is_cancelled(job);
}

const double serve_bounds[SERVE_BUCKETS - 1] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120};

void serve_histogram_add(struct serve_histogram *histogram, const double *bounds, double value)
{
    int i = 0;
    while (i < SERVE_BUCKETS - 1 && value > bounds[i])
        i++;
    histogram->counts[i]++;
    histogram->n++;
    histogram->sum += value;
}
