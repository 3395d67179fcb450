/* Resident memory of this process, for benchmarks. */
#ifndef BUTLER_RESIDENT_H
#define BUTLER_RESIDENT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* To be called first: pages of 2 MB would round what a session takes up or down by as much. */
static inline void use_small_pages(void)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

/* Anonymous memory in MB: without the mapping of the model's file. By page tables, since the counters of /proc/self/status lag. */
static inline double resident_anonymous_mb(void)
{
    char line[256];
    double kb = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "Anonymous:", 10) == 0)
            kb = strtod(line + 10, NULL);
    if (file)
        fclose(file);
    return kb * 1024 / 1e6;
}

#endif
