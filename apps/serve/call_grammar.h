/* Shared by the files of the grammars of required calls: pieces of GBNF. */
#ifndef SERVE_CALL_GRAMMAR_H
#define SERVE_CALL_GRAMMAR_H

#include "serve/api_parts.h"

void serve_put(struct butler_buffer *text, const char *bytes);
/* A literal. */
void serve_put_literal(struct butler_buffer *text, const char *bytes);
/* The same, in which marks that the model has as control tokens are these. */
void serve_put_marked(struct butler_buffer *text, const struct butler_model *model, const char *bytes);
/* The rule `name ::= ...`: any text up to the mark, and the mark. */
void serve_put_text_to_mark(struct butler_buffer *text, const struct butler_model *model, const char *name, const char *mark);
/* A grammar with each rule's name behind `prefix` and a hyphen, so that several can stand in one. */
void serve_put_renamed(struct butler_buffer *text, const char *grammar, const char *prefix);

/* call_xml.c: rules of the parameters of a tool, of which `prefix-root` is all of them. schema: of its arguments. dropped: as
 * in schema_to_wide_grammar. 0 or a negative status. */
int serve_put_xml_parameters(struct butler_buffer *text, const struct butler_model *model, json_t *schema, const char *prefix,
                             json_t *dropped, struct serve_error *error);

#endif
