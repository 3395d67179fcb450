/* A row of the table of policies (src/metrics/policy_table.c), and the presets it differs in. */
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
    bool prunes;       /* its budget is set by ratio= and min= */
};

const struct butler_policy_row *butler_policy_row_find(const struct butler_registry *registry, const char *name);

/* What every plug-in metric's policy starts from. */
#define BUTLER_POLICY_PLUGIN_DEFAULTS "method=retrieve,budget=1024"

#endif
