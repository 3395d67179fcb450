/* Shared by the files of the parser of answers. */
#ifndef SERVE_TOOLS_PARTS_H
#define SERVE_TOOLS_PARTS_H

#include <stddef.h>

#include "serve/tools.h"

enum { SERVE_MAX_HEAD = 1024 }; /* bytes before the arguments of a call: what is longer is no call */

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct call_form {
    enum serve_call_form form;
    const char *open, *close; /* close: behind the call or the list, may be missing; NULL: there is none */
    bool is_list;
};

struct reasoning_form {
    enum serve_reasoning_form form;
    const char *open, *close;
};

enum serve_parser_state {
    IN_TEXT,
    IN_REASONING,
    IN_HEAD,       /* from the opening mark to the arguments */
    IN_ARGUMENTS,  /* JSON: passed on as it comes */
    IN_PARAMETERS, /* of <function=...>: they become JSON */
    IN_TAIL,       /* from the arguments to the end of the call's object */
    BEHIND_CALL,   /* a closing mark, or the next call of a list */
    BEHIND_LIST,   /* a closing mark */
    IN_WHOLE,      /* the whole answer may be a call */
    IN_HEADER,     /* of a message of gpt-oss */
    IN_MESSAGE,
    DROPPING,
};

struct serve_parser {
    const struct serve_syntax *syntax;
    void (*write)(void *user, const struct serve_part *part);
    void *user;
    struct butler_buffer held; /* bytes that are not certain yet, from `at` on */
    size_t at;
    enum serve_parser_state state;
    const struct call_form *form;
    const struct reasoning_form *reasoning;
    size_t lead;    /* bytes before the head: white space and the mark, which are content if it is no call */
    bool is_first;  /* of a list */
    bool is_object; /* the call is an object with a name: a brace follows the arguments */
    bool has_begun; /* there was content: reasoning and bare calls come before it */
    bool has_thought;
    bool skip_space; /* behind reasoning and calls */
    int n_calls, depth;
    bool in_string, escaped;
    int tool;                          /* of the call: its index among the names */
    bool in_value, is_text, has_value; /* of a parameter; the value is text, not JSON; there was one before it */
    enum serve_part_kind message;      /* what the body of the message is */
    bool is_raw;                       /* a message with its marks, as content */
    bool has_message;                  /* there was one before */
    bool is_cut;                       /* the text ended within a call's arguments */
};

/* tools.c */
void serve_write_part(struct serve_parser *parser, enum serve_part_kind kind, const char *bytes, size_t n);
/* The bytes that are held. */
const char *serve_rest(const struct serve_parser *parser, size_t *n);
/* How many bytes at the end may be the beginning of the mark. */
size_t serve_count_partial(const char *bytes, size_t n, const char *mark);
size_t serve_count_space(const char *bytes, size_t n);
bool serve_is_text(const char *text, const char *bytes, size_t n);
/* The index of the tool; -1: there is none of this name. */
int serve_find_tool(const struct serve_syntax *syntax, const char *name, size_t n);
void serve_begin_call(struct serve_parser *parser, int tool);
/* The call is complete; `next`: the state behind it. */
void serve_end_call(struct serve_parser *parser, enum serve_parser_state next);

/* tools_head.c: what is before and behind the arguments of a call. Readers take a cursor and return 1: read; 0: more text is
 * needed; -1: it is something else. */
struct cursor {
    const char *at, *end;
};
struct call_head {
    const char *name;
    size_t n_name, n; /* n: bytes up to the arguments */
    bool is_object, has_arguments, is_xml;
    bool is_text; /* text for the user follows, no call */
};
void serve_skip_space(struct cursor *c);
int serve_read_text(struct cursor *c, const char *text);
int serve_read_head(const struct serve_parser *parser, const char *bytes, size_t n, struct call_head *head);
/* What may follow the arguments in the call's object, and its brace. */
int serve_read_tail(struct cursor *c);

/* States. Each takes what it can from the held bytes, end: there will be no more. False: nothing changed. */
bool serve_step_whole(struct serve_parser *parser, bool end);      /* tools_whole.c */
bool serve_step_parameters(struct serve_parser *parser, bool end); /* tools_xml.c */
bool serve_step_header(struct serve_parser *parser, bool end);     /* tools_messages.c */
bool serve_step_message(struct serve_parser *parser, bool end);

#endif
