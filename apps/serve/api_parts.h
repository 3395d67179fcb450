/* What the files of the interfaces share. A struct serve_request is one HTTP request that jobs answer: request.c makes it from the
 * body, in a worker's thread; answer.c writes what comes of it, in the loop's. An interface with bodies of its own (messages.c,
 * responses.c, embeddings.c) is a struct serve_surface: its requests become those that request.c reads. */
#ifndef SERVE_API_PARTS_H
#define SERVE_API_PARTS_H

#include <jansson.h>

#include "serve/api.h"
#include "serve/devices.h"
#include "serve/tools.h"
#include "serve/worker.h"

enum { SERVE_MAX_PROMPTS = 256 }; /* of one request */

struct serve_api {
    struct serve_config config;
    struct butler_engine *engine; /* the first of the devices': only its model may be used here */
    struct butler_model *model;
    const struct butler_model_info *info;
    struct http_server *http;
    struct serve_devices *devices;
    struct serve_worker *worker;
    int n_ctx;
    size_t longest_token;               /* bytes, or of its spelling */
    bool lossless;                      /* of requests that name neither a policy nor this; */
    int n_drafts;                       /* with so many drafts */
    uint64_t n_requests, random;        /* atomic, for the workers' threads */
    unsigned char secret[SERVE_SECRET]; /* salts of the prefix cache follow from it */
    /* Of the loop's thread: answers so far. */
    struct serve_answer_count {
        const char *path; /* of the route */
        int status;
        uint64_t n;
    } * counts; /* [n_counts] */
    int n_counts;
    time_t begun;
};

/* Who asks. */
struct serve_client {
    const char *key; /* of the request, "" without one; jobs of one key share its turns */
    int owner;       /* as in struct http_exchange */
};

enum serve_kind { SERVE_COMPLETION, SERVE_CHAT, SERVE_NATIVE };

/* Of the answers of surfaces: a stretch of text, of reasoning, or a call. */
struct serve_block {
    enum serve_part_kind kind; /* SERVE_CONTENT, SERVE_REASONING or SERVE_CALL_BEGIN */
    int index;                 /* among the answer's blocks */
    bool cut;                  /* the limit on tokens ended it */
    struct butler_buffer text; /* so far; of a call its arguments */
    char *name, id[10];        /* of a call */
};

/* An answer to one prompt: a choice of one job. */
struct serve_answer {
    struct butler_buffer text;
    json_t *logprobs, *tokens; /* of the tokens so far, in the endpoint's shape; ids */
    size_t offset;             /* characters of the tokens so far */
    int n_tokens;
    enum serve_finish finish;
    struct serve_parser *parser; /* of chats that have parts; or NULL */
    struct serve_request *request;
    struct butler_buffer reasoning, arguments; /* of a whole answer so far; of the call that is open */
    json_t *calls;                             /* of a whole answer; or NULL */
    const char *stop;                          /* text of the job that ended it; or NULL */
    struct serve_block *blocks; /* [n_blocks], of a surface, in the order of the text: one or more when it is complete */
    int n_blocks, n_reasoning;  /* n_reasoning: tokens of the blocks of reasoning */
    bool in_block;              /* the last one goes on */
};

struct serve_request;
struct serve_error;

/* Of requests with one answer, except that whole may make a body of any number of jobs. One that only translates (whole is NULL)
 * has the answers of its kind. */
struct serve_surface {
    const char *id_prefix; /* of its answers' ids; NULL: those of the route's kind */
    /* In a worker's thread: the request as a body of the route's kind, a new reference; NULL: *error. */
    json_t *(*translate)(struct serve_api *api, json_t *body, struct serve_error *error);
    /* What the request has beside that; NULL: nothing. translate has accepted the body. */
    void (*prepare)(struct serve_request *request, json_t *body);
    json_t *(*whole)(const struct serve_request *request);
    /* Streams, all NULL where there are none: before the first block, each block with its pieces, after the jobs are done. */
    void (*begin)(struct serve_request *request);
    void (*begin_block)(struct serve_request *request, const struct serve_block *block);
    void (*piece)(struct serve_request *request, const struct serve_block *block, const char *bytes, size_t n);
    void (*end_block)(struct serve_request *request, const struct serve_block *block);
    void (*end)(struct serve_request *request);
};
extern const struct serve_surface serve_messages, serve_responses, serve_embeddings, serve_infill;

struct serve_request {
    struct serve_api *api;
    struct http_exchange *exchange; /* NULL: the client has gone */
    enum serve_kind kind;
    const struct serve_surface *surface; /* NULL: what answer.c writes itself */
    json_t *fields;                      /* the surface's, from the request; or NULL */
    int n_events;                        /* of the stream so far, where the surface counts them */
    bool stream, include_usage, echo, begun, failed;
    int n_top;                      /* -1: no logprobs */
    struct butler_grammar *grammar; /* of all jobs; NULL: none */
    json_t *not_held;               /* array: places of keywords of tools' schemas that the grammar does not hold */
    struct serve_job **jobs;
    int n_jobs, n_done, n_choices; /* n_choices: of each job */
    struct serve_answer *answers;  /* [n_jobs * n_choices] */
    char id[48];
    time_t created;
    struct serve_syntax syntax; /* of the answers */
};

/* An error that becomes the answer. */
struct serve_error {
    int status;
    const char *type;
    char message[600];
    int n_param;        /* bytes of the field's name that the message begins with, in quotes; 0: it begins with none */
    int n_prompt;       /* of exceed_context_size_error */
    const char *header; /* a line with CR LF for the answer's head; or NULL */
};

/* Fills *error; returns its negative status. A message about one field begins with its name: 'tools[0].type' must be ... */
int serve_fail(struct serve_error *error, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* request.c: NULL with *error when the body makes no sense, or asks for what is not supported. */
struct serve_request *serve_request_parse(struct serve_api *api, enum serve_kind kind, json_t *body,
                                          const struct serve_client *client, struct serve_error *error);
/* Its jobs are known by their answer's id: the request's, or with another beginning. */
void serve_name_answer(struct serve_request *request, const char *prefix);
/* 0; or -400 with *error where the body asks for what this server does not have. */
int serve_refuse_unsupported(json_t *body, struct serve_error *error);
/* Ids of a text; *ids is to be freed. < 0: *error. */
int serve_tokenize(struct serve_api *api, json_t *text, int flags, int32_t **ids, struct serve_error *error);
/* fit.c: the same for a text, of a conversation or with flags, that must fit the context: exceed_context_size_error otherwise. */
int serve_tokenize_prompt(const struct serve_api *api, const struct butler_chat_text *text, bool is_chat, int flags, int32_t **ids,
                          struct serve_error *error);
/* 0; or exceed_context_size_error where n tokens do not fit. */
int serve_check_length(const struct serve_api *api, int n, struct serve_error *error);
void serve_measure_tokens(struct serve_api *api); /* before the two */
/* Ids of an array; < 0: *error. */
int serve_read_ids(struct serve_api *api, json_t *array, int32_t **ids, struct serve_error *error);
/* One prompt: a string, an array of ids, or both mixed. flags: of butler_tokenize. < 0: *error. */
int serve_read_prompt(struct serve_api *api, json_t *prompt, int flags, int32_t **ids, struct serve_error *error);
bool serve_read_bool(json_t *body, const char *name, bool missing, struct serve_error *error);
/* A whole number, 1 or more: 0 with *error where it is none, or is missing and required. */
int serve_read_count(json_t *body, const char *name, bool required, struct serve_error *error);
/* Whether a value asks for nothing: null, false, 0, "" or empty. */
bool serve_is_neutral(const json_t *value);
/* 0; or -400 with *error when one of names[n] asks for something. */
int serve_refuse_fields(json_t *body, const char *const *names, size_t n, struct serve_error *error);
/* Appends a message, its content a string or an array of parts; to the last one, after an empty line, where that has the same role.
 */
void serve_add_message(json_t *messages, const char *role, json_t *content);
/* The body as one of a chat that has these messages (takes the reference) and one answer. */
json_t *serve_copy_body(json_t *body, json_t *messages);

/* blocks.c */
/* A part of a surface's answer into its blocks, and on to the stream. */
void serve_add_part(struct serve_answer *answer, const struct serve_part *part);
/* The answer is complete: the open block ends; one without any gets an empty text. */
void serve_end_blocks(struct serve_answer *answer);
void serve_free_blocks(struct serve_answer *answer);
/* The message that a call or reasoning of the assistant belongs to: the last one where that is the assistant's, else a
 * new one. Borrowed. */
json_t *serve_assistant_message(json_t *messages);
/* Appends a call to that message. arguments: an object, or a text with one. */
void serve_add_call(json_t *messages, json_t *id, json_t *name, json_t *arguments);
/* Appends the result of a call. content: a string or an array of text parts. */
void serve_add_result(json_t *messages, json_t *id, json_t *content);
/* Appends a piece of reasoning to that message, which serve_read_chat joins. */
void serve_add_reasoning(json_t *messages, const char *text);
void serve_join_reasoning(json_t *message);

/* Which calls an answer may have. */
struct serve_tool_choice {
    bool allowed, required; /* required: the answer is a call */
    const char *name;       /* of the one function that is called, borrowed from the body; NULL: any */
};

/* chat.c: a conversation, read once from a body that outlives it. */
struct serve_chat {
    json_t *messages; /* as the template gets them */
    json_t *tools;    /* borrowed: those that the answer may call; NULL: none */
    json_t *left_out; /* array: the places in "tools" of those that are no functions, ascending */
    struct serve_tool_choice choice;
    json_t *variables; /* of the template, borrowed; or NULL */
    bool generation_prompt, one_call, no_reasoning;
    bool begun; /* the last message is the beginning of the answer, the assistant's without calls: the template does not close it */
};
/* 0 or a negative status; freed in both cases. */
int serve_read_chat(const struct serve_api *api, json_t *body, struct serve_chat *chat, struct serve_error *error);
void serve_chat_free(struct serve_chat *chat);
/* It as text. 0 or a negative status. */
int serve_render_chat(const struct serve_api *api, const struct serve_chat *chat, struct butler_chat_text *text,
                      struct serve_error *error);
/* Its ids, to be freed. *syntax: what to look for in answers; NULL: the ids are only counted. < 0: *error. */
int serve_tokenize_chat(const struct serve_api *api, const struct serve_chat *chat, struct serve_syntax *syntax, int32_t **ids,
                        struct serve_error *error);

/* chat_tools.c */
/* The template of conversations; "" where there is none. */
const char *serve_chat_template(const struct serve_api *api);
/* Of a tool that was checked. */
const char *serve_tool_name(json_t *tool);
/* Checks tools and tool_choice; *tools, borrowed: those that the answer may call; NULL: none. Where functions are beside other
 * tools, these are taken out of the body, and their places added to left_out. 0 or a negative status. */
int serve_read_tools(json_t *body, json_t **tools, struct serve_tool_choice *choice, json_t *left_out, struct serve_error *error);
/* The place in the request's "tools" of the i-th of those that are left. */
size_t serve_tool_place(const json_t *left_out, size_t i);
/* Checks the calls of message i. 0 or a negative status. */
int serve_check_calls(json_t *message, size_t i, struct serve_error *error);
/* Messages as the template gets them, a new reference; with a text of our own where it has no place for tools, calls and results.
 */
json_t *serve_tool_messages(const struct serve_api *api, json_t *list, json_t *tools);
/* Those of the tools that the template is given; NULL: none. */
json_t *serve_template_tools(const struct serve_api *api, json_t *tools);
/* What to look for in answers to the prompt; names and texts are to be freed. */
void serve_find_syntax(const struct serve_api *api, const struct serve_chat *chat, const struct butler_chat_text *prompt,
                       struct serve_syntax *syntax);

/* template_json.c: the value for struct butler_chat_options, to be freed; its strings and keys are the value's. NULL stays NULL. */
struct butler_json *serve_template_json(json_t *value);

/* call_xml.c: names of a tool's parameters that are strings, as `texts` of struct serve_syntax. */
char *serve_text_parameters(json_t *tool);

/* call_grammar.c: the grammar of the answers of a chat, the caller's: calls, where tool_choice requires them; reasoning, then calls
 * or the text that serve_read_constraint holds; or what "grammar" says. not_held: an array, to which places in schemas of tools
 * that are not strict are appended whose keywords are not supported. NULL: anything is allowed, or *error. */
struct butler_grammar *serve_make_chat_grammar(const struct serve_api *api, const struct serve_chat *chat, json_t *body,
                                               const struct serve_syntax *syntax, json_t *not_held, struct serve_error *error);
/* A line of an answer's head that lists the places, to be freed; NULL: there are none. */
char *serve_not_held_header(const json_t *not_held);

/* infill.c: whether the body is to fill a gap, and its prompt: ids around the gap, to be freed. prompt: of /v1/completions the text
 * before it, of the others more of that, or NULL. < 0: *error. */
bool serve_is_infill(json_t *body, enum serve_kind kind);
int serve_read_infill(struct serve_api *api, json_t *body, json_t *prompt, enum serve_kind kind, int32_t **ids,
                      struct serve_error *error);

/* constraint.c: the grammar of "grammar", "json_schema" or "response_format", the caller's, compiled in a worker's thread. NULL:
 * there is none, or *error. */
struct butler_grammar *serve_read_constraint(const struct serve_api *api, json_t *body, struct serve_error *error);
/* The same as GBNF, to be freed. *is_json: it is that of JSON. */
char *serve_read_constraint_text(json_t *body, bool *is_json, struct serve_error *error);

/* answer.c */
/* The id of a call: nine letters and digits. */
void serve_call_id(const struct serve_request *request, int index, int call, char id[10]);
void serve_request_start(struct serve_request *request, struct http_exchange *exchange);
void serve_on_event(struct serve_event *event);
void serve_request_free(struct serve_request *request);
/* A piece of a stream; takes the body. event: its name, or NULL. A client that does not read is cut off here. */
void serve_write_event(struct serve_request *request, const char *event, json_t *body);
/* What decoding read, of all jobs. After SERVE_DONE. */
json_t *serve_kv_json(const struct serve_request *request);
json_t *serve_text_json(const struct butler_buffer *text);
/* "prefix" and the number of the request. */
json_t *serve_id_json(const struct serve_request *request, const char *prefix);

/* json.c */
/* As json_loadb of jansson, which it calls: NULL with *wrong. U+0000 and halves of surrogate pairs become U+FFFD, integers beyond
 * 64 bits doubles. */
json_t *serve_load_json(const char *bytes, size_t n, size_t flags, json_error_t *wrong);
/* The body of a request. *error with a status: it is no JSON object; what was read is returned, or NULL. */
json_t *serve_parse_body(const char *bytes, size_t n, struct serve_error *error);

/* api.c */
/* The answers that need no engine; NULL with *error. */
json_t *serve_post_tokenize(struct serve_api *api, json_t *body, struct serve_error *error);
json_t *serve_post_detokenize(struct serve_api *api, json_t *body, struct serve_error *error);
json_t *serve_post_apply_template(struct serve_api *api, json_t *body, struct serve_error *error);
json_t *serve_post_count_tokens(struct serve_api *api, json_t *body, struct serve_error *error);
/* request.c's, or by way of the surface, which may be NULL. */
struct serve_request *serve_parse(struct serve_api *api, const struct serve_surface *surface, enum serve_kind kind, json_t *body,
                                  const struct serve_client *client, struct serve_error *error);
/* Takes the reference. header: as in struct serve_error. */
void serve_reply_json(struct http_exchange *exchange, int status, const char *header, json_t *body);
void serve_reply_error(struct serve_api *api, struct http_exchange *exchange, const struct serve_error *error);
json_t *serve_error_json(const struct serve_api *api, const struct serve_error *error);
/* What a token is called: its text, or "bytes:\xe2\x80" where that is no UTF-8, or "token_id:5" where it has none. */
json_t *serve_token_name(const struct butler_model *model, int32_t id);

/* metrics.c */
void serve_write_metrics(struct serve_api *api, struct butler_buffer *text);
/* query: id=, steps=; NULL: *error. */
json_t *serve_traces_json(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error);
/* What follows "name=" in a query, up to "&" or the end; NULL: it is not there. */
const char *serve_query_text(const char *query, const char *name);
/* Whether the client that asks may see what belongs to this owner. */
bool serve_may_see(const struct http_exchange *exchange, int owner);
/* A whole number from 0 to max of the query, "id=5&steps=10"; missing: where it is not there. Anything else is an error. */
int serve_query_number(const char *query, const char *name, int missing, int max, struct serve_error *error);

/* map_json.c: query: id=, choice=, token=, layer=, head=; NULL: *error. */
json_t *serve_map_json(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error);

#endif
