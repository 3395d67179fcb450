/* Co-reference (TokenButler, section 4.2): a place is described and named, other sentences follow, the place is described again
 * and its name is asked for. Parts are drawn from the pools of a JSON file with the published names, or from built-in ones. The
 * first layer is dense. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "pools.h"

enum pool { NAMES, PAIRS, THOUGHTS, FOODS, SUMS, N_POOLS };

static const char *const fields[N_POOLS] = {"location_names", "loc_intro_tieback_list", "philosophy_statements",
                                            "food_descriptions", "math_problems"};

/* The pools of a file, borrowed from its JSON, or the built-in ones. */
struct pools {
    json_t *file; /* owned, or NULL */
    int n[N_POOLS];
};

static int check_entry(const char *path, enum pool pool, size_t i, const json_t *entry, struct butler_error *err)
{
    static const char *const parts[] = {"location_intro", "tieback_question"};
    if (pool != PAIRS)
        return json_is_string(entry) && *json_string_value(entry)
                   ? 0
                   : butler_fail(err, BUTLER_ERROR_FORMAT, "%s: field \"%s\", entry %zu: not a string, or empty", path,
                                 fields[pool], i);
    for (int k = 0; k < 2; k++) {
        const char *text = json_string_value(json_object_get(entry, parts[k]));
        if (!text || !*text)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: field \"%s\", entry %zu: \"%s\" is missing or not a string", path,
                               fields[pool], i, parts[k]);
    }
    return 0;
}

static int read_pools(struct eval_run *run, const char *path, struct pools *pools, struct butler_error *err)
{
    struct eval_text text;
    json_error_t fault;
    int code = eval_text_read(run, path, &text, err);
    if (code < 0)
        return code;
    pools->file = json_loadb(text.bytes, text.n, 0, &fault);
    eval_text_free(&text);
    if (!pools->file)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not JSON: %s (column %d)", path, fault.line, fault.text, fault.column);
    for (int pool = 0; pool < N_POOLS; pool++) {
        const json_t *list = json_object_get(pools->file, fields[pool]);
        if (!list || !json_is_array(list) || json_array_size(list) == 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: field \"%s\": %s", path, fields[pool],
                               list ? "not an array with something in it" : "missing");
        pools->n[pool] = (int)json_array_size(list);
        for (size_t i = 0; i < json_array_size(list); i++)
            if ((code = check_entry(path, (enum pool)pool, i, json_array_get(list, i), err)) < 0)
                return code;
    }
    return 0;
}

static const char *entry(const struct pools *pools, enum pool pool, int i, const char *part)
{
    static const char *const *const ours[N_POOLS] = {
        [NAMES] = eval_place_names, [THOUGHTS] = eval_thoughts, [FOODS] = eval_foods, [SUMS] = eval_sums};
    if (!pools->file)
        return pool == PAIRS ? eval_places[i][strcmp(part, "location_intro") == 0 ? 0 : 1] : ours[pool][i];
    const json_t *value = json_array_get(json_object_get(pools->file, fields[pool]), (size_t)i);
    return json_string_value(part ? json_object_get(value, part) : value);
}

static int add_item(struct eval_run *run, const struct pools *pools, const struct eval_frame *frame, struct eval_ids *ids,
                    uint64_t *random, struct butler_error *err)
{
    int drawn[N_POOLS];
    char *prompt = NULL, *answer = NULL, *lead = NULL;
    for (int pool = 0; pool < N_POOLS; pool++)
        drawn[pool] = eval_below(random, pools->n[pool]);
    const char *name = entry(pools, NAMES, drawn[NAMES], NULL), *tieback = entry(pools, PAIRS, drawn[PAIRS], "tieback_question");
    int code = 0;
    if (asprintf(&prompt, "%s %s. %s. %s. %s.", entry(pools, PAIRS, drawn[PAIRS], "location_intro"), name,
                 entry(pools, THOUGHTS, drawn[THOUGHTS], NULL), entry(pools, FOODS, drawn[FOODS], NULL),
                 entry(pools, SUMS, drawn[SUMS], NULL)) < 0 ||
        asprintf(&answer, " %s", name) < 0 || asprintf(&lead, " %s:", tieback) < 0)
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a text");
    if (code == 0)
        code = eval_document(ids, run, frame, prompt, err);
    const struct eval_question question = {frame->chat ? "\nWhich place is described here once more?" : "", lead, answer};
    if (code == 0)
        code = eval_answer_add(run, frame, ids, &question, 0, err);
    free(prompt);
    free(answer);
    free(lead);
    return code;
}

int eval_coref_load(struct eval_run *run, struct butler_error *err)
{
    struct pools pools = {.n = {EVAL_N_PLACE_NAMES, EVAL_N_PLACES, EVAL_N_THOUGHTS, EVAL_N_FOODS, EVAL_N_SUMS}};
    struct eval_ids ids = {0};
    uint64_t random = run->seed;
    struct eval_frame frame;
    if (eval_option_int(run, "dense", 0, run->info->n_layers, &run->min_dense, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: the length of coref's texts follows from their parts");
    int code = eval_frame_init(&frame, run, err);
    if (code == 0 && run->params->data)
        code = read_pools(run, run->params->data, &pools, err);
    for (int i = 0; i < run->limit && code == 0; i++)
        code = add_item(run, &pools, &frame, &ids, &random, err);
    json_decref(pools.file);
    eval_ids_free(&ids);
    eval_frame_free(&frame);
    return code;
}

static const struct eval_option options[] = {
    {"dense", "1", "this many layers, at least, read everything under every policy"},
    EVAL_ANSWER_OPTIONS("off"), /* a text to continue, as published */
    {NULL, NULL, NULL},
};

const struct eval_task eval_coref = {
    .name = "coref",
    .summary = "the name of a place that was described before",
    .data = "none: our pools of sentences; or TokenButler's pools (they name no licence)",
    .work = "reads about 150 tokens, decodes 3",
    .details = "--data: a JSON file of pools (location_names, loc_intro_tieback_list, philosophy_statements, food_descriptions,\n"
               "math_problems); without it our own are used.\n",
    .options = options,
    .limit = 100,
    .load = eval_coref_load,
    .run = eval_answer_run,
    .rows = eval_answer_rows,
};
