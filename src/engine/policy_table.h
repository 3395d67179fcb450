/* The policies butler ships, one row each, and the presets they differ in. */
#ifndef BUTLER_POLICY_TABLE_H
#define BUTLER_POLICY_TABLE_H

#include "engine/policy.h"

struct butler_policy_row {
    const char *name;
    const char *metric; /* its name; NULL: dense */
    const char *summary;
    const char *text;  /* canonical policy string; the text after its colon has the defaults */
    const char *paper; /* what preset=paper and preset=code change of the defaults; NULL: nothing */
    const char *code;
    bool keeps_window; /* recent, where it is not given, is the observation window (rolling: nothing) */
};

extern const struct butler_policy_row butler_policy_rows[]; /* ends with name NULL */
const struct butler_policy_row *butler_policy_row_find(const char *name);

/* What every plug-in metric's policy starts from. */
#define BUTLER_POLICY_PLUGIN_DEFAULTS "method=retrieve,budget=1024"

#endif
