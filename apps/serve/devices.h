/* Jobs placed over engines that have a scheduler each: on several devices, whose engines run beside each other, or on one. All in
 * one thread, the caller's. A job stays where it is placed. */
#ifndef SERVE_DEVICES_H
#define SERVE_DEVICES_H

#include "serve/scheduler.h"

struct serve_devices;

struct serve_device {
    uint64_t n_jobs; /* that it was given so far */
    int n_texts;     /* of those that are not over */
    /* Within the last minute a job failed with BUTLER_ERROR_IO, as all do once a device is lost, and none succeeded since. It gets
     * jobs only where no other takes them. */
    bool failing;
};

/* As serve_scheduler_new, for engines of one model, all with these parameters: what they say of memory, and of how many jobs run or
 * wait, is each one's. Schedulers share traces, maps and the numbers of jobs. libraries[n]: each engine's, or NULL; params has
 * none. */
struct serve_devices *serve_devices_new(struct butler_engine *const *engines, struct butler_library *const *libraries, int n,
                                        const struct serve_params *params, struct butler_error *err);
/* As the functions of the scheduler. */
void serve_devices_stop(struct serve_devices *devices);
void serve_devices_free(struct serve_devices *devices); /* or NULL */
const struct serve_params *serve_devices_params(const struct serve_devices *devices);
struct serve_event *serve_devices_collect(struct serve_devices *devices);

/* As serve_submit, on the engine with the fewest texts, but one that was given the longest beginning of the prompt goes before it
 * while it has not more than twice as many texts. */
int serve_devices_submit(struct serve_devices *devices, struct serve_job *job);

/* Sums over the engines. slots[max_slots]. */
int serve_devices_inspect(struct serve_devices *devices, struct serve_metrics *metrics, struct serve_slot *slots, int max_slots);

int serve_devices_count(const struct serve_devices *devices);
struct serve_device serve_devices_get(const struct serve_devices *devices, int i);
bool serve_devices_all_fail(const struct serve_devices *devices);

#endif
