/* The text of an answer in parts: content, reasoning, calls of tools. The text comes in pieces, and the parts are given as soon as
 * they are certain. How the text is cut into pieces changes where parts are cut, but not what they say. Needs no network and no
 * model. */
#ifndef SERVE_TOOLS_H
#define SERVE_TOOLS_H

#include <stdbool.h>

#include "serve/text.h"

/* How models write calls, bits of a set; a model's template shows which are its own. */
enum serve_call_form {
    SERVE_CALLS_TAGGED = 1,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen2.5, Qwen3, EXAONE 4) */
    SERVE_CALLS_BARE = 2,    /* {"name": ..., "parameters": {...}} alone, also behind <|python_tag|> (Llama 3.1) */
    SERVE_CALLS_MISTRAL = 4, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]name[ARGS]{...} */
    SERVE_CALLS_ACTION = 8,  /* <|START_ACTION|>[{"tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|> (Command R7B) */
    /* <|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>, the end may lack (Granite 3); functools[...]
       (Phi-4-mini) */
    SERVE_CALLS_BARRED = 16,
    /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call> (Qwen3-Coder) */
    SERVE_CALLS_XML = 32,
    SERVE_CALLS_MESSAGE = 64,   /* <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...} (gpt-oss) */
    SERVE_CALLS_LINE = 128,     /* NAME, a line end and {...}, at the beginning (GLM-4) */
    SERVE_CALLS_FUNCTION = 256, /* <function=NAME>{...}</function> (Functionary 3.1) */
    /* >>>NAME, a line end and {...}; text is behind >>>all and a line end (Functionary 3.2). Needs no tools. */
    SERVE_CALLS_RECIPIENT = 512,
    /* The whole answer is {"name": ..., "arguments": {...}}, or several, or a list, bare or in a fence. No template shows it:
       models whose template has another form write it too (Qwen2.5-Coder). */
    SERVE_CALLS_WHOLE = 1024,
};

/* Marks around reasoning, bits of a set. */
enum serve_reasoning_form {
    SERVE_REASONING_THINK = 1,   /* <think> </think> */
    SERVE_REASONING_MISTRAL = 2, /* [THINK] [/THINK] */
    SERVE_REASONING_COMMAND = 4, /* <|START_THINKING|> <|END_THINKING|> */
    SERVE_REASONING_MESSAGE = 8, /* <|channel|>analysis<|message|> <|end|> (gpt-oss) */
};

/* What to look for. All zero: everything is content. */
struct serve_syntax {
    unsigned calls, reasoning; /* sets of the forms above */
    unsigned open;             /* the form of reasoning that the prompt has begun already; 0: none */
    bool in_recipient;         /* the prompt ends with >>> */
    bool one_call;             /* text behind the first call is left out */
    char **names;              /* [n_names] of tools; what calls another is content */
    char **texts; /* [n_names] of each tool, the names of its parameters that are strings, a zero behind each and one more at
                   * the end; or NULL: no parameter is known to be one. For SERVE_CALLS_XML. */
    int n_names;
};

/* How many of the bytes, from the first on, a tool's name may have: letters, digits and _-.:/ */
size_t serve_count_name(const char *bytes, size_t n);
/* Forms of calls, or of reasoning, whose marks the template has. */
unsigned serve_syntax_calls(const char *template);
unsigned serve_syntax_reasoning(const char *template);
/* The form of reasoning, of the set, that the end of a prompt begins, or closes; 0: none. */
unsigned serve_syntax_open(unsigned reasoning, const char *prompt, size_t n);
unsigned serve_syntax_closed(unsigned reasoning, const char *prompt, size_t n);
/* Whether the end of a prompt begins a recipient, where the set has SERVE_CALLS_RECIPIENT. */
bool serve_syntax_in_recipient(unsigned calls, const char *prompt, size_t n);
/* The marks around reasoning of one form; *open and *close stay as they are where there is none. */
void serve_reasoning_marks(enum serve_reasoning_form form, const char **open, const char **close);
/* Whether the bytes are a mark. Marks may be control tokens, which otherwise do not count as text. */
bool serve_syntax_is_mark(const char *bytes, size_t n);

/* Parts come in the order of the text. A call is BEGIN with the name, ARGUMENTS that together are an object in JSON as the model
 * wrote it (not checked: a model may make mistakes inside it, or stop before its end), END. */
enum serve_part_kind { SERVE_CONTENT, SERVE_REASONING, SERVE_CALL_BEGIN, SERVE_CALL_ARGUMENTS, SERVE_CALL_END };

struct serve_part {
    enum serve_part_kind kind;
    int call;          /* index of the call, from 0 */
    const char *bytes; /* [n]; until the callback returns */
    size_t n;
};

struct serve_parser;

/* write gets each part. syntax must outlive the parser. */
struct serve_parser *serve_parser_new(const struct serve_syntax *syntax, void (*write)(void *user, const struct serve_part *part),
                                      void *user);
void serve_parser_push(struct serve_parser *parser, const char *bytes, size_t n);
/* The text is complete: what was held back is given, a call that is open is ended. */
void serve_parser_end(struct serve_parser *parser);
/* What comes next is reasoning, as far as the text goes. */
bool serve_parser_thinks(const struct serve_parser *parser);
int serve_parser_n_calls(const struct serve_parser *parser);
/* There are calls, and the text did not end within the arguments of one. */
bool serve_parser_has_whole_calls(const struct serve_parser *parser);
void serve_parser_free(struct serve_parser *parser);

#endif
