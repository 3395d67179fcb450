/* See prepare.h. */
#include "serve/prepare.h"

#include <pthread.h>
#include <stdlib.h>

#include "serve/jobs.h"

enum {
    AT_ONCE = 20000, /* work, in butler_sampler_prepare's units of about 0.1 us, that the engine's thread does itself */
    SLICE = 200000,
};
static const double STEP_S = 0.01; /* that this may take of a step's time; the rest goes to the thread */

struct serve_prepare {
    int n_vocab;
    void (*wake)(void *user);
    void *user;
    pthread_t thread;
    bool started;
    double spent_s;       /* by the engine's thread, in this step */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct serve_choice *waiting, *done, **done_end;
    bool stopping;
};

/* The choice that has taken least time. */
static struct serve_choice *take(struct serve_prepare *prepare)
{
    struct serve_choice **best = &prepare->waiting;
    for (struct serve_choice **at = best; *at; at = &(*at)->next)
        if ((*at)->prepare_s < (*best)->prepare_s)
            best = at;
    struct serve_choice *choice = *best;
    if (choice)
        *best = choice->next;
    return choice;
}

static void run_slice(const struct serve_prepare *prepare, struct serve_choice *choice)
{
    const double begin = serve_now();
    choice->prepared =
        butler_sampler_prepare(choice->sampler, butler_logits(choice->session), prepare->n_vocab, SLICE, &choice->prepare_error);
    choice->prepare_s += serve_now() - begin;
}

static void *work(void *user)
{
    struct serve_prepare *prepare = user;
    pthread_mutex_lock(&prepare->lock);
    for (;;) {
        struct serve_choice *choice = take(prepare);
        if (!choice && prepare->stopping)
            break;
        if (!choice) {
            pthread_cond_wait(&prepare->changed, &prepare->lock);
            continue;
        }
        const bool runs = !prepare->stopping && !serve_job_is_cancelled(choice->job);
        pthread_mutex_unlock(&prepare->lock);
        if (runs)
            run_slice(prepare, choice);
        pthread_mutex_lock(&prepare->lock);
        choice->next = NULL;
        if (runs && choice->prepared == 0) {
            choice->next = prepare->waiting;
            prepare->waiting = choice;
            continue;
        }
        *prepare->done_end = choice;
        prepare->done_end = &choice->next;
        pthread_mutex_unlock(&prepare->lock);
        prepare->wake(prepare->user);
        pthread_mutex_lock(&prepare->lock);
    }
    pthread_mutex_unlock(&prepare->lock);
    return NULL;
}

struct serve_prepare *serve_prepare_new(int n_vocab, void (*wake)(void *user), void *user)
{
    struct serve_prepare *prepare = serve_alloc(1, sizeof *prepare);
    prepare->n_vocab = n_vocab;
    prepare->wake = wake;
    prepare->user = user;
    prepare->done_end = &prepare->done;
    pthread_mutex_init(&prepare->lock, NULL);
    pthread_cond_init(&prepare->changed, NULL);
    prepare->started = pthread_create(&prepare->thread, NULL, work, prepare) == 0;
    if (prepare->started)
        return prepare;
    serve_prepare_free(prepare);
    return NULL;
}

int serve_prepare_choice(struct serve_prepare *prepare, struct serve_job *job, struct serve_choice *choice,
                         struct butler_error *err)
{
    const double begin = serve_now();
    int code = 0;
    /* Choices of one job share its grammar, which the thread has locked while it works at another. */
    if (job->n_preparing == 0 && prepare->spent_s < STEP_S)
        code = butler_sampler_prepare(choice->sampler, butler_logits(choice->session), prepare->n_vocab, AT_ONCE, err);
    prepare->spent_s += serve_now() - begin;
    if (code != 0)
        return code;
    choice->job = job;
    choice->preparing = true;
    choice->prepared = 0;
    job->n_preparing++;
    pthread_mutex_lock(&prepare->lock);
    choice->next = prepare->waiting;
    prepare->waiting = choice;
    pthread_cond_signal(&prepare->changed);
    pthread_mutex_unlock(&prepare->lock);
    return 0;
}

struct serve_choice *serve_prepare_collect(struct serve_prepare *prepare)
{
    prepare->spent_s = 0;
    pthread_mutex_lock(&prepare->lock);
    struct serve_choice *done = prepare->done;
    prepare->done = NULL;
    prepare->done_end = &prepare->done;
    pthread_mutex_unlock(&prepare->lock);
    for (struct serve_choice *choice = done; choice; choice = choice->next) {
        choice->preparing = false;
        choice->job->n_preparing--;
    }
    return done;
}

void serve_prepare_stop(struct serve_prepare *prepare)
{
    if (!prepare->started)
        return;
    pthread_mutex_lock(&prepare->lock);
    prepare->stopping = true;
    pthread_cond_signal(&prepare->changed);
    pthread_mutex_unlock(&prepare->lock);
    pthread_join(prepare->thread, NULL);
    prepare->started = false;
}

void serve_prepare_free(struct serve_prepare *prepare)
{
    if (!prepare)
        return;
    serve_prepare_stop(prepare);
    pthread_cond_destroy(&prepare->changed);
    pthread_mutex_destroy(&prepare->lock);
    free(prepare);
}
