/* The journal of a run, beside the file of results (RESULTS.items): a line for every item under every policy, written when it is
 * done, with its values, its cost and what the model wrote. A run that was killed takes them from there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "parts.h"

/* Policy and item as one key of `done`. It has the item's text: of a run with another limit only the same items are taken. */
static void name_of(char out[64], const char *key, const struct eval_item *item, int index)
{
    const uint64_t digest = XXH3_64bits_withSeed(item->ids, (size_t)item->n_ids * sizeof *item->ids, XXH3_64bits(key, strlen(key)));
    snprintf(out, 64, "%016" PRIx64 ":%d", digest, index);
}

static bool are_numbers(json_t *values)
{
    size_t i;
    json_t *value;
    json_array_foreach(values, i, value)
    {
        if (!json_is_number(value) && !json_is_null(value))
            return false;
    }
    return json_is_array(values);
}

static int take_line(void *user, json_t *line)
{
    struct eval_journal *journal = user;
    const char *id = json_string_value(json_object_get(line, "id"));
    if (!id || !are_numbers(json_object_get(line, "values")) || json_array_size(json_object_get(line, "cost")) != EVAL_N_COSTS)
        return -1;
    json_object_set(journal->done, id, line);
    return 1;
}

/* RESULTS.items, or RESULTS.items.RANK. Owned. */
static char *path_of(const char *results_path, int rank)
{
    char *path = NULL;
    const int n = rank ? asprintf(&path, "%s.items.%d", results_path, rank) : asprintf(&path, "%s.items", results_path);
    return n < 0 ? NULL : path;
}

int eval_journal_open(struct eval_journal *journal, const char *results_path, int rank, struct butler_error *err)
{
    *journal = (struct eval_journal){.log = {.fd = -1}, .done = json_object(), .commits = json_object()};
    if (!results_path)
        return 0;
    const struct eval_log_kind kind = {"{\"id\":\"", "no id, values and cost in it", take_line, journal};
    char *path = path_of(results_path, rank);
    int code = path ? eval_log_open(&journal->log, path, &kind, err)
                    : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for its name", results_path);
    journal->log.precision = 17; /* gives every double back */
    free(path);
    /* What other processes of an earlier run measured. */
    for (int other = 1; rank == 0 && code == 0; other++) {
        path = path_of(results_path, other);
        const bool there = path && access(path, F_OK) == 0;
        if (there)
            code = eval_log_read(path, &kind, err);
        free(path);
        if (!there)
            break;
    }
    return code;
}

static json_t *numbers(const double *values, int n)
{
    json_t *out = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(out, isfinite(values[i]) ? json_real(values[i]) : json_null());
    return out;
}

static void take_numbers(const json_t *array, double *values, int n)
{
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, (size_t)i);
        values[i] = json_is_number(value) ? json_number_value(value) : NAN;
    }
}

bool eval_journal_take(const struct eval_journal *journal, const char *key, const struct eval_run *run, int index, double *values,
                       struct eval_cost *cost)
{
    char name[64];
    name_of(name, key, &run->items.items[index], index);
    const json_t *line = json_object_get(journal->done, name), *kept = json_object_get(line, "values");
    if (!line || json_array_size(kept) != (size_t)run->n_values)
        return false;
    const char *commit = json_string_value(json_object_get(line, "commit"));
    commit = commit ? commit : "unknown";
    if (strcmp(commit, eval_commit()) != 0) {
        if (!json_object_get(journal->commits, key))
            json_object_set_new(journal->commits, key, json_object());
        json_object_set_new(json_object_get(journal->commits, key), commit, json_true());
    }
    take_numbers(kept, values, run->n_values);
    take_numbers(json_object_get(line, "cost"), (double *)cost, EVAL_N_COSTS);
    return true;
}

void eval_journal_name_commits(const struct eval_journal *journal, const char *key, json_t *rows)
{
    const char *commit;
    json_t *unused, *row;
    size_t i;
    json_object_foreach(json_object_get(journal->commits, key), commit, unused)
    {
        json_array_foreach(rows, i, row)
        {
            json_object_set_new(row, "commit", json_sprintf("%s,%s", json_string_value(json_object_get(row, "commit")), commit));
        }
    }
}

int eval_journal_add(const struct eval_journal *journal, const struct eval_run *run, const struct eval_journal_item *item,
                     struct butler_error *err)
{
    char name[64];
    if (!journal->log.path)
        return 0;
    name_of(name, item->key, &run->items.items[item->index], item->index);
    json_t *lines = json_pack("[{s:s, s:o, s:i, s:s, s:o, s:o, s:o*}]", "id", name, "policy",
                              eval_text(item->policy, strlen(item->policy)), "item", item->index, "commit", eval_commit(), "values",
                              numbers(item->values, run->n_values), "cost", numbers((const double *)item->cost, EVAL_N_COSTS),
                              "output", item->output ? eval_text(item->output, strlen(item->output)) : NULL);
    const int code = lines ? eval_log_append(&journal->log, lines, err)
                           : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a row", journal->log.path);
    json_decref(lines);
    return code;
}

void eval_journal_close(struct eval_journal *journal)
{
    eval_log_close(&journal->log);
    json_decref(journal->done);
    json_decref(journal->commits);
}
