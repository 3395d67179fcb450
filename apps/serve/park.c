/* See park.h. */
#include "serve/park.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/choice.h"
#include "serve/receipt.h"

int serve_park_open(const char *folder, struct butler_error *err)
{
    char path[PATH_MAX];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    /* A file system that has no such files, or a kernel that takes the flag for that of a folder. */
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR) &&
        snprintf(path, sizeof path, "%s/butler-XXXXXX", folder) < (int)sizeof path) {
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    if (fd >= 0)
        return fd;
    err->code = BUTLER_ERROR_IO;
    snprintf(err->message, sizeof err->message, "%s: no file can be made in it: %s", folder, strerror(errno));
    return err->code;
}

static void close_files(struct serve_job *job)
{
    for (int i = 0; i < job->n_choices; i++) {
        if (job->choices[i].fd >= 0)
            close(job->choices[i].fd);
        job->choices[i].fd = -1;
    }
}

int serve_park(struct serve_job *job, const char *folder, uint64_t *n_bytes, struct butler_error *err)
{
    *n_bytes = 0;
    for (int i = 0; i < job->n_choices; i++) {
        struct serve_choice *choice = &job->choices[i];
        struct stat st;
        if (!choice->session || choice->ended)
            continue;
        choice->fd = serve_park_open(folder, err);
        if (choice->fd < 0 || butler_session_save_fd(choice->session, choice->fd, err) < 0) {
            close_files(job);
            return err->code;
        }
        *n_bytes += fstat(choice->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    }
    if (!job->prompt_done)
        job->n_left = job->n_prompt - butler_n_past(job->choices[0].session);
    for (int i = 0; i < job->n_choices; i++) {
        serve_receipt_park(job, &job->choices[i]);
        serve_choice_release(&job->choices[i], &job->stats, &job->compared);
        job->choices[i].watch.seen = (struct butler_stats){0}; /* the restored session's begin anew */
    }
    job->stats.kv_memory = job->stats.metric_memory = 0; /* of sessions that are there at the end */
    return 0;
}

int serve_unpark(struct serve_job *job, struct butler_engine *engine, struct butler_error *err)
{
    for (int i = 0; i < job->n_choices; i++) {
        struct serve_choice *choice = &job->choices[i];
        if (choice->fd >= 0 && (!(choice->session = butler_session_restore_fd(engine, choice->fd, 0, err)) ||
                                butler_session_set_prefix_salt(choice->session, job->salt, err) < 0 ||
                                butler_session_keep_receipt(choice->session, job->receipt, err) < 0))
            return err->code;
    }
    close_files(job);
    return 0;
}

int serve_park_check(struct butler_engine *engine, const char *folder, struct butler_error *err)
{
    uint64_t fingerprint;
    const int fd = folder ? serve_park_open(folder, err) : -1;
    if (!folder || fd < 0)
        return folder ? err->code : 0;
    close(fd);
    return butler_model_fingerprint(butler_engine_model(engine), &fingerprint, err);
}
