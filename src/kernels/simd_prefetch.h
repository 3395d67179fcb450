/* Prefetching a long list of records twice: into the second-level cache early, into the first when they are there. Prefetched into
 * the first only, lines keep its few places while they are under way; prefetched in bursts, arithmetic waits for those places.
 * Included after a vec*.h. */
#ifndef BUTLER_SIMD_FETCH_H
#define BUTLER_SIMD_FETCH_H

enum { WALK_AHEAD = 4096 /* bytes between the two */ };

/* The line that is next into the first-level cache. Lines beyond the list may be no memory of ours, hence the integer. */
struct walk {
    uintptr_t next;
};

INLINE struct walk walk_from(const void *p)
{
    return (struct walk){(uintptr_t)p / 64 * 64};
}

INLINE void walk_to(struct walk *walk, uintptr_t end)
{
    for (; walk->next < end; walk->next += 64) {
        prefetch_second((const void *)(walk->next + WALK_AHEAD));
        prefetch((const void *)walk->next, 0);
    }
}

#endif
