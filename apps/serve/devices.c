/* See devices.h. Who read which beginnings of prompts is remembered by hashes of their first 32, 64, 128, ... tokens: each
 * scheduler's prefix cache is its engine's, which only its own thread may ask. */
#include "serve/devices.h"

#include <stdlib.h>

#include "base/util.h"

enum {
    SHORTEST = 32,          /* tokens of a beginning that counts */
    N_BEGINNINGS = 1 << 12, /* that are remembered */
    MOST_LENGTHS = 32,
    FAILS_S = 60, /* seconds after which a device that failed is tried again: a disk can have room again */
};

struct serve_devices {
    struct serve_scheduler *schedulers[SERVE_MAX_DEVICES]; /* [n] */
    int n;
    struct serve_device each[SERVE_MAX_DEVICES];
    double failed_s[SERVE_MAX_DEVICES]; /* butler_seconds() when its last job failed with BUTLER_ERROR_IO; 0: it did not */
    uint64_t n_refused;
    struct beginning {
        uint64_t hash;
        uint32_t readers;       /* a bit for each */
    } beginnings[N_BEGINNINGS]; /* at their hash, modulo */
};

/* Stops and frees what has begun. */
static void give_up(struct serve_devices *devices)
{
    serve_devices_stop(devices);
    serve_devices_free(devices);
}

struct serve_devices *serve_devices_new(struct butler_engine *const *engines, struct butler_library *const *libraries, int n,
                                        const struct serve_params *params, struct butler_error *err)
{
    struct serve_devices *devices = serve_alloc(1, sizeof *devices);
    for (; devices->n < n; devices->n++) {
        struct serve_params own = devices->n > 0 ? *serve_devices_params(devices) : *params;
        own.library = libraries ? libraries[devices->n] : NULL;
        if (!(devices->schedulers[devices->n] = serve_scheduler_new(engines[devices->n], &own, err))) {
            give_up(devices);
            return NULL;
        }
    }
    return devices;
}

void serve_devices_stop(struct serve_devices *devices)
{
    for (int i = 0; i < devices->n; i++)
        serve_scheduler_stop(devices->schedulers[i]);
}

void serve_devices_free(struct serve_devices *devices)
{
    for (int i = devices ? devices->n - 1 : -1; i >= 0; i--) /* the first owns what they share */
        serve_scheduler_free(devices->schedulers[i]);
    free(devices);
}

const struct serve_params *serve_devices_params(const struct serve_devices *devices)
{
    return serve_scheduler_params(devices->schedulers[0]);
}

int serve_devices_count(const struct serve_devices *devices)
{
    return devices->n;
}

struct serve_device serve_devices_get(const struct serve_devices *devices, int i)
{
    struct serve_device device = devices->each[i];
    device.failing = devices->failed_s[i] > 0 && butler_seconds() < devices->failed_s[i] + FAILS_S;
    return device;
}

bool serve_devices_all_fail(const struct serve_devices *devices)
{
    for (int i = 0; i < devices->n; i++)
        if (!serve_devices_get(devices, i).failing)
            return false;
    return true;
}

/* ---------------------------------------------------------------------------------------------------- placement */

/* hashes[MOST_LENGTHS] of the beginnings of a prompt, shortest first; returns their number. */
static int hash_beginnings(const struct serve_job *job, uint64_t *hashes)
{
    uint64_t hash = 14695981039346656037u ^ job->salt; /* FNV-1a, a token a step */
    int n = 0;
    for (int i = 0, length = SHORTEST; i < job->n_prompt && !job->no_cache && n < MOST_LENGTHS; i++) {
        hash = (hash ^ (uint32_t)job->prompt[i]) * 1099511628211u;
        if (i + 1 == length) {
            hashes[n++] = hash ^ (hash >> 32);
            length = length <= INT32_MAX / 2 ? 2 * length : 0;
        }
    }
    return n;
}

/* The one of `among`, a bit for each, with the fewest texts, one that fails only where there is no other: it would be idle always,
 * and get every job. -1: there is none. */
static int least_busy(const struct serve_devices *devices, uint32_t among)
{
    struct serve_device best = {0};
    int found = -1;
    for (int i = 0; i < devices->n; i++) {
        const struct serve_device one = serve_devices_get(devices, i);
        if (among >> i & 1 && (found < 0 || (one.failing != best.failing ? best.failing : one.n_texts < best.n_texts))) {
            best = one;
            found = i;
        }
    }
    return found;
}

static int choose(const struct serve_devices *devices, const uint64_t *hashes, int n)
{
    const int idle = least_busy(devices, UINT32_MAX);
    const struct serve_device least = serve_devices_get(devices, idle);
    for (int i = n - 1; i >= 0; i--) {
        const struct beginning *found = &devices->beginnings[hashes[i] % N_BEGINNINGS];
        const int reader = found->hash == hashes[i] ? least_busy(devices, found->readers) : -1;
        const struct serve_device other = serve_devices_get(devices, BUTLER_MAX(reader, 0));
        if (reader >= 0 && other.failing == least.failing && other.n_texts <= 2 * least.n_texts)
            return reader;
    }
    return idle;
}

static void remember(struct serve_devices *devices, const uint64_t *hashes, int n, int device)
{
    for (int i = 0; i < n; i++) {
        struct beginning *at = &devices->beginnings[hashes[i] % N_BEGINNINGS];
        if (at->hash != hashes[i])
            *at = (struct beginning){.hash = hashes[i]};
        at->readers |= 1u << device;
    }
}

int serve_devices_submit(struct serve_devices *devices, struct serve_job *job)
{
    uint64_t hashes[MOST_LENGTHS];
    const int n = devices->n > 1 ? hash_beginnings(job, hashes) : 0;
    uint32_t left = UINT32_MAX;
    for (int device = choose(devices, hashes, n); device >= 0; device = least_busy(devices, left)) {
        job->device = device;
        if (serve_submit(devices->schedulers[device], job) == 0) {
            devices->each[device].n_texts += job->n_choices;
            devices->each[device].n_jobs++;
            remember(devices, hashes, n, device);
            return 0;
        }
        left &= ~(1u << device);
    }
    devices->n_refused++;
    return BUTLER_ERROR_MEMORY;
}

struct serve_event *serve_devices_collect(struct serve_devices *devices)
{
    struct serve_event *all = NULL, **end = &all;
    for (int i = 0; i < devices->n; i++) {
        *end = serve_collect(devices->schedulers[i]);
        for (; *end; end = &(*end)->next)
            if ((*end)->kind == SERVE_DONE) {
                const int code = (*end)->job->error.code;
                devices->each[i].n_texts -= (*end)->job->n_choices;
                if (code == 0 || code == BUTLER_ERROR_IO)
                    devices->failed_s[i] = code ? butler_seconds() : 0;
            }
    }
    return all;
}

/* ------------------------------------------------------------------------------------------------------- numbers */

static void add_histogram(struct serve_histogram *sum, const struct serve_histogram *h)
{
    for (int i = 0; i < SERVE_BUCKETS; i++)
        sum->counts[i] += h->counts[i];
    sum->n += h->n;
    sum->sum += h->sum;
}

static void add_engine(struct butler_engine_info *sum, const struct butler_engine_info *e)
{
    sum->kv_memory += e->kv_memory;
    sum->scratch_memory += e->scratch_memory;
    sum->prefix_memory += e->prefix_memory;
    sum->prefix_lookups += e->prefix_lookups;
    sum->prefix_hits += e->prefix_hits;
    sum->prefix_tokens += e->prefix_tokens;
    sum->kv_resident += e->kv_resident;
    sum->kv_on_disk += e->kv_on_disk;
}

#define ADD(field) sum->field += m->field
#define TAKE_LARGER(field) sum->field = m->field > sum->field ? m->field : sum->field
static void add_metrics(struct serve_metrics *sum, const struct serve_metrics *m)
{
    ADD(n_jobs), ADD(n_failed), ADD(n_cancelled);
    ADD(prompt_tokens), ADD(cached_tokens), ADD(generated_tokens), ADD(reread_tokens), ADD(library_tokens);
    ADD(n_steps), ADD(busy), ADD(n_running), ADD(n_waiting), ADD(n_parked), ADD(reserved);
    ADD(kv_bytes), ADD(metric_bytes), ADD(full_kv_bytes);
    ADD(pages_wanted), ADD(pages_fetched), ADD(disk_bytes), ADD(disk_s);
    ADD(prompt_s), ADD(decode_s);
    ADD(parked_total), ADD(parked_bytes), ADD(park_failures), ADD(park_s);
    TAKE_LARGER(longest_step_s);
    TAKE_LARGER(chunk);
    add_histogram(&sum->queue, &m->queue);
    add_histogram(&sum->first, &m->first);
    add_histogram(&sum->between, &m->between);
    add_engine(&sum->engine, &m->engine);
}

int serve_devices_inspect(struct serve_devices *devices, struct serve_metrics *metrics, struct serve_slot *slots, int max_slots)
{
    int n = serve_inspect(devices->schedulers[0], metrics, slots, max_slots);
    for (int i = 1; i < devices->n; i++) {
        struct serve_metrics own;
        n += serve_inspect(devices->schedulers[i], &own, slots ? slots + n : NULL, max_slots - n);
        add_metrics(metrics, &own);
    }
    metrics->n_refused = devices->n_refused;
    return n;
}
