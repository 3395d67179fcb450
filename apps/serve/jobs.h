/* The jobs that have begun, and the memory that they may hold. A running job has a grant: bytes of KV pages and metrics that are
 * reserved for it. With a folder to park in, a grant covers a little more than the job holds now; where a further one does not fit,
 * the youngest job leaves memory (park.h) and comes back when there is room. Without one, a grant covers the whole job. All in the
 * engine's thread. */
#ifndef SERVE_JOBS_H
#define SERVE_JOBS_H

#include "serve/scheduler.h"

struct serve_jobs {
    struct butler_engine *engine;
    const struct serve_params *params;
    struct serve_job **running; /* [max_jobs], oldest first */
    struct serve_job *parked;   /* oldest first, by next */
    int n_running, n_parked;
    uint64_t slack;                 /* bytes that pages of one text are rounded up by */
    double park_again;              /* time before which nothing is parked: it failed a moment ago */
    struct butler_error park_error; /* the latest */
    uint64_t parked_total, parked_bytes, park_failures;
    double park_s;
};

double serve_now(void); /* seconds */

/* job->error gets the code, the message and its negative code is returned. */
int serve_set_error(struct serve_job *job, int code, const char *message);

/* Callbacks of the spans of a prompt, user: the job. They add to its embedding, and to its scores. */
bool serve_job_hidden(void *user, int position, const float *hidden);
bool serve_job_logits(void *user, int position, const float *logits);
/* The embedding gets its length. */
void serve_job_end_embedding(struct serve_job *job);

void serve_jobs_init(struct serve_jobs *jobs, struct butler_engine *engine, const struct serve_params *params);

/* Tokens that each text of the job can come to have. */
int serve_jobs_most(const struct serve_jobs *jobs, const struct serve_job *job);
/* Counts a waiting job's first grant; again does nothing. < 0: job->error, also where the job could never fit. */
int serve_jobs_count(const struct serve_jobs *jobs, struct serve_job *job);
/* Whether a job that was counted may begin now. */
bool serve_jobs_fits(const struct serve_jobs *jobs, const struct serve_job *job);
uint64_t serve_jobs_reserved(const struct serve_jobs *jobs); /* bytes */
/* The running jobs whose prompts are not read yet, in the order in which they are to be: those with the fewest tokens left first,
 * after what the prefix cache has. Younger prompts go ahead of an older one until they had twice as many tokens as that one has.
 * Returns their number. */
int serve_jobs_prompts(const struct serve_jobs *jobs, struct serve_job **prompts);
/* Tokens of a job's prompt go into the next step: older ones that wait are overtaken. */
void serve_jobs_overtake(const struct serve_jobs *jobs, const struct serve_job *job, int n);
/* The prompt was read: the grant becomes that of the answer. */
int serve_jobs_end_prompt(const struct serve_jobs *jobs, struct serve_job *job);
/* Parked jobs for which there is room go on, oldest first. One that cannot be restored goes on with its error. */
void serve_jobs_resume(struct serve_jobs *jobs);
/* Whether some job waits for what is being prepared (prepare.h). */
bool serve_jobs_preparing(const struct serve_jobs *jobs);
/* Grants what the next step needs, oldest job first; parks the youngest where it does not fit. A job that gets nothing is held. The
 * oldest job is held only while parking fails; where then no job could go on, the youngest gets an error. */
void serve_jobs_grant(struct serve_jobs *jobs);

#endif
