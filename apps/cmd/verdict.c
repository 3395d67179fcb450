/* Judges the rows that `butler gate` measured, by the rules of verdict.h. Everything in a verdict comes from these rows: judging
 * twice gives the same. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "verdict.h"
#include "base/util.h"

const char *const verdict_sets[VERDICT_SETS] = {"niah_single_2", "niah_multikey_2"};

/* ------------------------------------------------------------------------------------------------- rows */

static bool has_text(const json_t *row, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(row, key));
    return found && strcmp(found, text) == 0;
}

/* The row of a measurement; NULL: none. subset NULL: a task without. Borrowed. */
static const json_t *find(const json_t *rows, const char *task, const char *subset, const char *metric, int length,
                          const char *policy)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        if (has_text(row, "task", task) && (!subset || has_text(row, "subset", subset)) && has_text(row, "metric", metric) &&
            has_text(row, "policy", policy) && json_integer_value(json_object_get(row, "length")) == length)
            return row;
    }
    return NULL;
}

static double value_of(const json_t *row)
{
    return json_number_value(json_object_get(row, "value"));
}

/* {"value", "ci", "n", "dense"} of a row beside the dense one. */
static json_t *measured(const json_t *row, const json_t *dense)
{
    return json_pack("{s:O, s:O, s:O, s:O}", "value", json_object_get(row, "value"), "ci", json_object_get(row, "ci"), "n",
                     json_object_get(row, "n"), "dense", json_object_get(dense, "value"));
}

/* --------------------------------------------------------------------------------------------- judgements */

/* Adds why a candidate does not pass. */
__attribute__((format(printf, 2, 3))) static void refuse(json_t *reasons, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_array_append_new(reasons, json_string(text));
}

static void judge_needles(const json_t *rows, int length, const char *policy, json_t *out, json_t *reasons)
{
    int n_testable = 0;
    for (int i = 0; i < VERDICT_SETS; i++) {
        const json_t *dense = find(rows, "ruler", verdict_sets[i], "string_match", length, "full");
        const json_t *row = find(rows, "ruler", verdict_sets[i], "string_match", length, policy);
        if (!dense || !row) {
            refuse(reasons, "%s was not measured", verdict_sets[i]);
            continue;
        }
        const bool testable = value_of(dense) >= VERDICT_FLOOR;
        json_object_set_new(out, verdict_sets[i], measured(row, dense));
        json_object_set_new(json_object_get(out, verdict_sets[i]), "testable", json_boolean(testable));
        n_testable += testable;
        if (testable && value_of(row) < value_of(dense))
            refuse(reasons, "%s: %.0f %%, dense %.0f %%", verdict_sets[i], 100 * value_of(row), 100 * value_of(dense));
    }
    if (n_testable == 0)
        refuse(reasons, "needles are not testable: dense attention itself finds less than %.0f %%", 100 * VERDICT_FLOOR);
}

static void judge_perplexity(const json_t *rows, int length, const char *policy, json_t *out, json_t *reasons)
{
    const json_t *dense = find(rows, "ppl", NULL, "ppl", length, "full"), *row = find(rows, "ppl", NULL, "ppl", length, policy);
    if (!dense || !row) {
        refuse(reasons, "perplexity was not measured");
        return;
    }
    const double above = json_is_number(json_object_get(row, "value")) ? value_of(row) / value_of(dense) - 1 : INFINITY;
    json_object_set_new(out, "ppl", measured(row, dense));
    if (!(above <= VERDICT_PERPLEXITY))
        refuse(reasons, "perplexity %+.*f %%", above < VERDICT_PERPLEXITY + 5e-5 ? 3 : 2, 100 * above); /* no 0.50 > 0.5 */
}

static void judge_speed(const json_t *rows, int length, const char *policy, json_t *out, json_t *reasons)
{
    const json_t *row = find(rows, "speed", NULL, "speed_up", length, policy);
    const double low = json_number_value(json_array_get(json_object_get(row, "ci"), 0));
    if (row)
        json_object_set_new(out, "speed_up",
                            json_pack("{s:O, s:O, s:O}", "value", json_object_get(row, "value"), "ci", json_object_get(row, "ci"),
                                      "n", json_object_get(row, "n")));
    if (!row)
        refuse(reasons, "speed was not measured");
    else if (!(low > 1))
        refuse(reasons, "not shown to be faster: %.2f times, 95 %% interval from %.2f", value_of(row), low);
}

static json_t *candidate(const json_t *rows, int length, const char *policy)
{
    json_t *out = json_pack("{s:i, s:s}", "length", length, "policy", policy), *reasons = json_array();
    judge_needles(rows, length, policy, out, reasons);
    judge_perplexity(rows, length, policy, out, reasons);
    judge_speed(rows, length, policy, out, reasons);
    const json_t *read = find(rows, "ruler", verdict_sets[0], "string_match", length, policy);
    json_object_set(out, "kv_read", json_object_get(read, "kv_read"));
    json_object_set_new(out, "passes", json_boolean(json_array_size(reasons) == 0));
    json_object_set_new(out, "because", reasons);
    return out;
}

/* Of the candidates that pass at a length, the one that reads least of the cache. NULL: none passes. Borrowed. */
static const json_t *best(const json_t *candidates, int length)
{
    size_t i;
    const json_t *one, *found = NULL;
    json_array_foreach(candidates, i, one)
    {
        if (json_integer_value(json_object_get(one, "length")) == length && json_is_true(json_object_get(one, "passes")) &&
            (!found || json_number_value(json_object_get(one, "kv_read")) < json_number_value(json_object_get(found, "kv_read"))))
            found = one;
    }
    return found;
}

/* The fingerprint of the predictor that a row was measured with; NULL: none. */
static const char *predictor_of(const json_t *row)
{
    const char *config = json_string_value(json_object_get(row, "config"));
    const char *at = config ? strstr(config, ",predictor=") : NULL;
    return at ? at + strlen(",predictor=") : NULL;
}

json_t *verdict_make(const struct cmd_options *options, const struct verdict_of *of)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    const json_t *rows = of->rows;
    json_t *candidates = json_array(), *on = json_array();
    for (int l = 0; l < of->n_lengths; l++) {
        for (int p = 0; p < of->n_policies; p++)
            if (of->lengths[l] >= of->from[p])
                json_array_append_new(candidates, candidate(rows, of->lengths[l], of->policies[p]));
        const json_t *chosen = best(candidates, of->lengths[l]);
        const char *policy = chosen ? json_string_value(json_object_get(chosen, "policy")) : "full";
        const json_t *row = find(rows, "speed", NULL, "speed_up", of->lengths[l], policy);
        json_array_append_new(
            on, json_pack("{s:i, s:s, s:s*}", "length", of->lengths[l], "policy", policy, "predictor", predictor_of(row)));
    }
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const json_t *any = json_array_get(rows, json_array_size(rows) - 1);
    json_t *out = json_pack("{s:i, s:s, s:s, s:s, s:O*, s:s, s:{s:f, s:f, s:f}, s:o, s:o}", "gate", 1, "fingerprint",
                            of->fingerprint, "kv_type", of->kv_type, "machine", of->machine, "commit",
                            json_object_get(any, "commit"), "date", date, "rules", "needles_floor", VERDICT_FLOOR,
                            "perplexity_above", VERDICT_PERPLEXITY, "speed_up_above", 1.0, "on", on, "candidates", candidates);
    if (!out)
        cmd_say(options, "no memory for the verdict");
    return out;
}

/* ------------------------------------------------------------------------------------------------ the file */

bool verdict_path(const char *model, const char *ending, char *path, size_t n_path)
{
    const size_t n = strlen(model), stem = n > 5 && strcmp(model + n - 5, ".gguf") == 0 ? n - 5 : n;
    return snprintf(path, n_path, "%.*s%s", (int)stem, model, ending) < (int)n_path;
}

int verdict_write(const struct cmd_options *options, const char *path, const json_t *verdict)
{
    char part[PATH_MAX + 16];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "w");
    const bool made = file != NULL;
    bool ok = file && json_dumpf(verdict, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', file) == '\n' &&
              fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (made)
        ok = fclose(file) == 0 && ok;
    if (ok && rename(part, path) == 0)
        return CMD_DONE;
    cmd_say(options, "%s: %s", path, strerror(errno));
    if (made)
        unlink(part);
    return CMD_FAILED;
}

/* Why a file is no verdict of the model with this fingerprint; NULL: it is one. */
static const char *fault_of(const json_t *verdict, const char *fingerprint)
{
    size_t i;
    const json_t *on = json_object_get(verdict, "on"), *one;
    json_int_t before = 0;
    if (!json_is_string(json_object_get(verdict, "fingerprint")) || !json_is_array(on))
        return "it is no verdict of butler gate";
    if (!has_text(verdict, "fingerprint", fingerprint))
        return "it is of another model file";
    json_array_foreach(on, i, one)
    {
        const json_t *length = json_object_get(one, "length");
        if (!json_is_integer(length) || json_integer_value(length) <= before || !json_is_string(json_object_get(one, "policy")))
            return "\"on\" is not a list of lengths, the shorter ones first, each with its policy";
        before = json_integer_value(length);
    }
    return NULL;
}

json_t *verdict_read(const struct cmd_options *options, const char *model, uint64_t fingerprint)
{
    char path[PATH_MAX + 16], own[24];
    json_error_t fault;
    if (!verdict_path(model, ".gate.json", path, sizeof path) || access(path, F_OK) != 0)
        return NULL;
    json_t *verdict = json_load_file(path, 0, &fault);
    snprintf(own, sizeof own, "%016" PRIx64, fingerprint);
    const char *why = verdict ? fault_of(verdict, own) : fault.text;
    if (!why)
        return verdict;
    cmd_say(options, "note: %s: not used: %s", path, why);
    json_decref(verdict);
    return NULL;
}
