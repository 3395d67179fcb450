/* The verdict of `butler gate`: which policies may be on by default for a model on this machine. gate.c measures, verdict.c judges
 * by the rules below and writes the file that others read. */
#ifndef VERDICT_H
#define VERDICT_H

#include <jansson.h>

#include "cmd.h"

/* The rules, fixed before anything was measured. A policy passes at a length if
 *   1. needles: in each set where dense attention itself has VERDICT_FLOOR or more, its mean score is not below dense attention's
 * on the same items, and there is such a set;
 *   2. perplexity behind the dense prompt is at most VERDICT_PERPLEXITY above dense attention's;
 *   3. a decode step is faster than a dense one: the lower end of the speed-up's 95 % interval is above 1. */
#define VERDICT_FLOOR 0.5
#define VERDICT_PERPLEXITY 0.005

/* The sets of needles: one key in an essay, and one of many keys. */
enum { VERDICT_SETS = 2 };
extern const char *const verdict_sets[VERDICT_SETS];

/* What was measured. */
struct verdict_of {
    const json_t *rows; /* of eval: one for each policy, length and metric, dense attention's among them, on the same items */
    char fingerprint[24];
    const char *kv_type, *machine;
    const int *lengths;
    int n_lengths;
    const char *const *policies; /* each with its budget, [n_policies]; dense attention is not among them */
    const int *from;             /* [n_policies]: the length from which each is a candidate */
    int n_policies;
};

/* {"model", "fingerprint", "kv_type", "machine", "commit", "date", "rules", "candidates": [...], "on": [{"length", "policy",
 * "predictor"}]}, as docs/gate.md says. NULL with a message: no memory. Owned. */
json_t *verdict_make(const struct cmd_options *options, const struct verdict_of *of);

/* Writes the verdict at once or not at all. CMD_DONE or the exit status. */
int verdict_write(const struct cmd_options *options, const char *path, const json_t *verdict);

/* The file of a model's verdict: MODEL.gate.json for MODEL.gguf, in `ending` (".gate.json", ".gate.jsonl"). false: it has no room.
 */
bool verdict_path(const char *model, const char *ending, char *path, size_t n_path);
/* The verdict beside a model, if there is one for the file with this fingerprint; NULL: none. A file that cannot be used is a note.
 * "on" is an array of {"length", "policy"} by rising length. */
json_t *verdict_read(const struct cmd_options *options, const char *model, uint64_t fingerprint);

#endif
