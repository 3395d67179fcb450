/* A backend whose KV pages need not all be in memory: those of another one's operations, before which it fetches the rows that they
 * read. What an operation computes does not depend on what was resident. */
#ifndef BUTLER_SPILL_H
#define BUTLER_SPILL_H

#include "devices/frames.h"
#include "engine/backend.h"

struct butler_spill_params {
    uint64_t memory;                /* bytes of KV pages that are resident together, of each pool */
    struct butler_disk_params disk; /* folder, and what tests ask for */
};

/* Owns the other backend (also on failure), whose memory its operations must be able to read and write: the CPU's. NULL with *err
 * filled on failure. */
struct butler_backend *butler_spill_backend(struct butler_backend *inner, const struct butler_spill_params *params,
                                            struct butler_error *err);

#endif
