/* A pattern as a tree, between its reader (pattern.c) and its writers. */
#ifndef BUTLER_SCHEMA_PATTERN_H
#define BUTLER_SCHEMA_PATTERN_H

#include <stdlib.h>

#include "schema/parts.h"

enum schema_node_kind {
    SCHEMA_NODE_EMPTY,
    SCHEMA_NODE_SET, /* one of some characters */
    SCHEMA_NODE_ANY, /* any number of any characters */
    SCHEMA_NODE_BOTH,
    SCHEMA_NODE_EITHER,
    SCHEMA_NODE_REPEAT, /* of the first, min to max times; max -1: any number */
};

struct schema_node {
    enum schema_node_kind kind;
    int first, second, min, max; /* of a set: the bytes first..second of its GBNF */
};

struct schema_pattern {
    struct schema_text *nodes, *sets, *reader; /* struct schema_node; GBNF of sets, one behind the other; the reader's state */
    int root;
};

const struct schema_node *schema_pattern_node(const struct schema_pattern *pattern, int index);
void schema_put_node(struct schema_compiler *c, struct schema_text *text, const struct schema_pattern *pattern, int index);
/* pattern_length.c: the rule of strings that match and have min to max characters (-1: any number). SCHEMA_MANY: their rules would
 * be too many. */
int schema_compile_length(struct schema_compiler *c, const struct schema_pattern *pattern, int64_t min, int64_t max);

#endif
