/* Resident memory of this process, for benchmarks. */
#ifndef BUTLER_RESIDENT_H
#define BUTLER_RESIDENT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Anonymous memory in MB: without the mapping of the model's file. */
static inline double resident_anonymous_mb(void)
{
    char line[256];
    double kb = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "RssAnon:", 8) == 0)
            kb = strtod(line + 8, NULL);
    if (file)
        fclose(file);
    return kb * 1024 / 1e6;
}

#endif
