/* Methods: what a layer does with scores, as operations of a backend (backend.h) on what schedule.h has decided. */
#ifndef BUTLER_METHOD_H
#define BUTLER_METHOD_H

#include "engine/backend.h"

/* The newest n slots of every KV head of every span are there (butler_kv_grow): writes k and v, lets metrics summarise them,
 * selects, attends, lets metrics observe. */
void butler_method_attend(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans);

/* Cuts the caches: by scores for the last query of each span. state.position: that of the newest token in the cache. Slots must be
 * the session's own (butler_kv_unshare). */
void butler_method_evict(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                         int n_spans);

#endif
