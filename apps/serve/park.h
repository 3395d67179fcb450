/* Sessions of a job that leave memory for a while: each goes to a file that has no name, so that a server that is killed leaves
 * nothing behind, and comes back as it was. */
#ifndef SERVE_PARK_H
#define SERVE_PARK_H

#include "serve/scheduler.h"

/* A file without a name in the folder, to be closed: >= 0. < 0: *err, which names the folder. */
int serve_park_open(const char *folder, struct butler_error *err);
/* Before anything is served: that the folder takes files, and the model's fingerprint, which every file has and which takes the
 * time of reading the model once. folder NULL: nothing to do. < 0: *err. */
int serve_park_check(struct butler_engine *engine, const char *folder, struct butler_error *err);
/* Saves and frees the sessions of a job; what they cost is added to its statistics. *n_bytes: written. < 0: *err, nothing has
 * changed. */
int serve_park(struct serve_job *job, const char *folder, uint64_t *n_bytes, struct butler_error *err);
/* Restores the sessions of a parked job. < 0: *err; the job can then only be freed. */
int serve_unpark(struct serve_job *job, struct butler_engine *engine, struct butler_error *err);

#endif
