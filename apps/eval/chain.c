/* A long procedure (the idea of LongProc, arXiv 2501.05414): a text says of each place which one comes after it, in random order;
 * the route from one of them is to be written down, place after place. Every step needs another line of the text, and what has been
 * written grows: where a policy evicts while it decodes, it loses lines that are still to come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

struct maker {
    struct eval_frame frame;
    struct eval_ids document;
    int n_places, n_steps;
    int *scratch, *names, *order; /* [EVAL_N_NAMES], [n_places], [n_places] */
};

/* The text: place i of the route leads to place i + 1, the last to the first; lines are in random order. The route from place 0. */
static int write_texts(const struct maker *maker, uint64_t *random, char **document, char **route)
{
    size_t n_document, n_route;
    FILE *out = open_memstream(document, &n_document), *answer = open_memstream(route, &n_route);
    char name[64], next[64];
    eval_distinct(random, maker->n_places, maker->n_places, maker->scratch, maker->order);
    if (out)
        fputs("Each line below names a place and the place that comes after it.\n", out);
    for (int i = 0; out && i < maker->n_places; i++) {
        const int at = maker->order[i];
        eval_name(maker->names[at], name, sizeof name);
        eval_name(maker->names[(at + 1) % maker->n_places], next, sizeof next);
        fprintf(out, "After %s comes %s.\n", name, next);
    }
    for (int i = 0; answer && i < maker->n_steps; i++) {
        eval_name(maker->names[i], name, sizeof name);
        eval_name(maker->names[i + 1], next, sizeof next);
        fprintf(answer, "%s%s comes %s.", i == 0 ? "" : "\nAfter ", i == 0 ? "" : name, next);
    }
    const bool good = out && answer;
    return (out ? fclose(out) : 0) == 0 && (answer ? fclose(answer) : 0) == 0 && good ? 0 : -1;
}

static int add_item(struct eval_run *run, struct maker *maker, uint64_t *random, struct butler_error *err)
{
    char *document = NULL, *route = NULL, start[64], ask[192], lead[96];
    eval_distinct(random, EVAL_N_NAMES, maker->n_places, maker->scratch, maker->names);
    int code =
        write_texts(maker, random, &document, &route) < 0 ? butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a route") : 0;
    eval_name(maker->names[0], start, sizeof start);
    snprintf(ask, sizeof ask, "\nWrite down the route from %s, line after line, for %d places.", start, maker->n_steps);
    snprintf(lead, sizeof lead, "\nAfter %s", start);
    if (code == 0)
        code = eval_document(&maker->document, run, &maker->frame, document, err);
    if (code == 0)
        code = eval_answer_add(run, &maker->frame, &maker->document, &(struct eval_question){ask, lead, route}, 0, err);
    free(document);
    free(route);
    return code;
}

static int load(struct eval_run *run, struct butler_error *err)
{
    struct maker maker = {0};
    uint64_t random = run->seed;
    if (run->params->length)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--length: it follows from the number of places (--set places=N)");
    if (eval_option_int(run, "places", 2, 50000, &maker.n_places, err) < 0 ||
        eval_option_int(run, "steps", 1, 50000, &maker.n_steps, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (maker.n_steps >= maker.n_places)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set steps: %d of a route of %d places", maker.n_steps, maker.n_places);
    const size_t n = (size_t)maker.n_places;
    maker.scratch = butler_alloc(((size_t)EVAL_N_NAMES + 2 * n) * sizeof *maker.scratch, err);
    int code = maker.scratch ? eval_frame_init(&maker.frame, run, err) : BUTLER_ERROR_MEMORY;
    maker.names = maker.scratch ? maker.scratch + EVAL_N_NAMES : NULL;
    maker.order = maker.scratch ? maker.names + n : NULL;
    for (int i = 0; code == 0 && i < (run->limit ? run->limit : 10); i++)
        code = add_item(run, &maker, &random, err);
    free(maker.scratch);
    eval_ids_free(&maker.document);
    eval_frame_free(&maker.frame);
    return code;
}

static const struct eval_option options[] = {
    {"places", "100", "places in a text"},
    {"steps", "40", "places of the route that are written"},
    EVAL_ANSWER_OPTIONS("off"),
    {NULL, NULL, NULL},
};

const struct eval_task eval_chain = {
    .name = "chain",
    .summary = "a long procedure: each step of the answer needs another line of the text",
    .data = "none",
    .work = "reads about 16 tokens a place, decodes as many a step",
    .details = "Generated. accuracy: share of routes that are right to the end; coverage: of their tokens.\n",
    .options = options,
    .limit = 10,
    .load = load,
    .run = eval_answer_run,
    .rows = eval_answer_rows,
};
