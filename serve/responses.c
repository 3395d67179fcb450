/* OpenAI's newer interface: /v1/responses. Nothing is stored, so that a response cannot go on from an earlier one. */
#include <string.h>

#include "serve/api_parts.h"

/* ------------------------------------------------------------------------------------------------- the request */

/* The content of an item as that of a message: its text parts have other types here. A new reference. */
static json_t *read_content(json_t *content)
{
    json_t *out, *part;
    size_t i;
    if (!json_is_array(content))
        return json_incref(content);
    out = json_array();
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && (strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0)) {
            json_t *text = json_object_get(part, "text");
            json_array_append_new(out, json_pack("{s:s, s:O}", "type", "text", "text", text ? text : json_null()));
        } else {
            json_array_append(out, part);
        }
    }
    return out;
}

static void add_item(json_t *messages, json_t *item, size_t i, struct serve_error *error)
{
    json_t *type = json_object_get(item, "type"), *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    if (type && !json_is_null(type) && !json_is_string(type))
        serve_fail(error, 400, "'type' of item %zu of 'input' must be a string", i);
    else if (json_is_string(type) && strcmp(json_string_value(type), "message") != 0)
        serve_fail(error, 501, "item %zu of 'input' of type '%.64s' is not supported by this server", i, json_string_value(type));
    else if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0 &&
                       strcmp(role, "developer") != 0))
        serve_fail(error, 400, "'role' of item %zu of 'input' must be 'user', 'assistant', 'system' or 'developer'", i);
    else if (!json_is_string(content) && !json_is_array(content))
        serve_fail(error, 400, "'content' of item %zu of 'input' must be a string or an array of parts", i);
    if (error->status)
        return;
    json_t *parts = read_content(content);
    serve_add_message(messages, strcmp(role, "developer") == 0 ? "system" : role, parts); /* templates know no developer */
    json_decref(parts);
}

static json_t *read_input(json_t *body, struct serve_error *error)
{
    json_t *input = json_object_get(body, "input"), *instructions = json_object_get(body, "instructions"), *messages = json_array(),
           *item;
    size_t i;
    if (json_string_length(instructions) > 0)
        serve_add_message(messages, "system", instructions);
    else if (instructions && !json_is_null(instructions) && !json_is_string(instructions))
        serve_fail(error, 400, "'instructions' must be a string");
    if (json_is_string(input))
        serve_add_message(messages, "user", input);
    else if (json_array_size(input) == 0)
        serve_fail(error, 400, "'input' must be a string or an array with at least one item");
    json_array_foreach(json_is_array(input) ? input : NULL, i, item)
    {
        add_item(messages, item, i, error);
    }
    return messages;
}

/* "text": {"format": ...} as the "response_format" of a chat. */
static void read_format(json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *text = json_object_get(body, "text"), *format = json_object_get(text, "format"),
           *verbosity = json_object_get(text, "verbosity");
    const char *type = json_string_value(json_object_get(format, "type")), *words = json_string_value(verbosity);
    json_object_del(chat, "response_format");
    if (text && !json_is_null(text) && !json_is_object(text))
        serve_fail(error, 400, "'text' must be an object");
    else if (!serve_is_neutral(verbosity) && (!words || strcmp(words, "medium") != 0))
        serve_fail(error, 501, "'text.verbosity' is not supported by this server");
    else if (type && strcmp(type, "json_schema") == 0)
        json_object_set_new(chat, "response_format", json_pack("{s:s, s:O}", "type", type, "json_schema", format));
    else if (!serve_is_neutral(format))
        json_object_set(chat, "response_format", format);
}

/* Fields with a value that asks for nothing, and other values. */
static void refuse_others(json_t *body, struct serve_error *error)
{
    static const char *const unsupported[] = {"previous_response_id", "conversation",       "background", "prompt",
                                              "top_logprobs",         "context_management", "tools"};
    json_t *reasoning = json_object_get(body, "reasoning"), *include = json_object_get(body, "include"),
           *truncation = json_object_get(body, "truncation"), *metadata = json_object_get(body, "metadata"), *value;
    const char *name;
    size_t i;
    if (error->status || serve_refuse_fields(body, unsupported, sizeof unsupported / sizeof *unsupported, error) < 0)
        return;
    if (!serve_is_neutral(truncation) && !(json_is_string(truncation) && strcmp(json_string_value(truncation), "disabled") == 0))
        serve_fail(error, 501, "'truncation' is not supported by this server");
    if ((reasoning && !json_is_null(reasoning) && !json_is_object(reasoning)) ||
        (metadata && !json_is_null(metadata) && !json_is_object(metadata)))
        serve_fail(error, 400, "'reasoning' and 'metadata' must be objects");
    if (include && !json_is_null(include) && !json_is_array(include))
        serve_fail(error, 400, "'include' must be an array");
    json_object_foreach(json_is_object(reasoning) ? reasoning : NULL, name, value)
    {
        if (!serve_is_neutral(value))
            serve_fail(error, 501, "'reasoning.%.64s' is not supported by this server", name);
    }
    json_array_foreach(json_is_array(include) ? include : NULL, i, value)
    {
        const char *what = json_string_value(value);
        if (!what || strcmp(what, "reasoning.encrypted_content") != 0) /* there is none */
            serve_fail(error, 501, "'include' of '%.64s' is not supported by this server", what ? what : "");
    }
}

static json_t *translate(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *chat = serve_copy_body(body, read_input(body, error));
    const int n = serve_read_count(body, "max_output_tokens", false, error);
    (void)api;
    json_object_del(chat, "max_tokens");
    if (n > 0)
        json_object_set_new(chat, "max_tokens", json_integer(n));
    serve_read_bool(body, "store", false, error);
    if (!error->status)
        read_format(body, chat, error);
    refuse_others(body, error);
    if (!error->status)
        return chat;
    json_decref(chat);
    return NULL;
}

/* What the response repeats. */
static void prepare(struct serve_request *request, json_t *body)
{
    const struct butler_sampler_params *sampling = &request->jobs[0]->sampling;
    json_t *fields = request->fields = json_pack(
        "{s:n, s:n, s:{}, s:f, s:f, s:{s:{s:s}}, s:s}", "instructions", "max_output_tokens", "metadata", "temperature",
        (double)sampling->temperature, "top_p", (double)sampling->top_p, "text", "format", "type", "text", "tool_choice", "auto");
    const char *name;
    json_t *value;
    json_object_foreach(fields, name, value)
    {
        json_t *given = json_object_get(body, name);
        const bool has_type = json_object_get(json_object_get(given, "format"), "type");
        if ((json_is_number(value) ? json_is_number(given) : !serve_is_neutral(given)) && (strcmp(name, "text") != 0 || has_type))
            json_object_set(fields, name, given);
    }
}

/* -------------------------------------------------------------------------------------------------- the answer */

/* Takes items. ended: the jobs are done. */
static json_t *response_json(const struct serve_request *request, json_t *items, bool ended)
{
    const struct serve_job *job = request->jobs[0];
    const bool cut = ended && request->answers[0].finish == SERVE_FINISH_LENGTH;
    json_t *response = json_pack(
        "{s:o, s:s, s:I, s:s, s:b, s:n, s:o, s:s, s:o, s:b, s:n, s:{s:n, s:n}, s:b, s:[], s:s}", "id",
        serve_id_json(request, "resp_"), "object", "response", "created_at", (json_int_t)request->created, "status",
        !ended ? "in_progress"
        : cut  ? "incomplete"
               : "completed",
        "background", 0, "error", "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(),
        "model", request->api->config.model_name, "output", items, "parallel_tool_calls", 1, "previous_response_id", "reasoning",
        "effort", "summary", "store", 0, "tools", "truncation", "disabled");
    json_object_update(response, request->fields);
    json_object_set_new(response, "usage",
                        ended ? json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i, s:o}", "input_tokens", job->n_prompt,
                                          "input_tokens_details", "cached_tokens", job->n_cached, "output_tokens", job->n_generated,
                                          "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                                          job->n_prompt + job->n_generated, "kv", serve_kv_json(request))
                              : json_null());
    return response;
}

static json_t *part_json(const struct serve_request *request)
{
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", serve_text_json(&request->answers[0].text),
                     "annotations", "logprobs");
}

/* The message; before its end without a part. */
static json_t *item_json(const struct serve_request *request, bool ended)
{
    const bool cut = request->answers[0].finish == SERVE_FINISH_LENGTH;
    json_t *item = json_pack("{s:o, s:s, s:s, s:s, s:[]}", "id", serve_id_json(request, "msg_"), "type", "message", "status",
                             !ended ? "in_progress"
                             : cut  ? "incomplete"
                                    : "completed",
                             "role", "assistant", "content");
    if (ended)
        json_array_append_new(json_object_get(item, "content"), part_json(request));
    return item;
}

static json_t *whole(const struct serve_request *request)
{
    return response_json(request, json_pack("[o]", item_json(request, true)), true);
}

/* Takes the event. */
static void write_event(struct serve_request *request, const char *type, json_t *event)
{
    json_object_set_new(event, "type", json_string(type));
    json_object_set_new(event, "sequence_number", json_integer(request->n_events++));
    serve_write_event(request, type, event);
}

/* An event of the message's part; field: what it has, a new reference. */
static void write_part_event(struct serve_request *request, const char *type, const char *field, json_t *value)
{
    json_t *event = json_pack("{s:o, s:i, s:i, s:o}", "item_id", serve_id_json(request, "msg_"), "output_index", 0, "content_index",
                              0, field, value);
    if (json_is_string(value))
        json_object_set_new(event, "logprobs", json_array());
    write_event(request, type, event);
}

static void begin(struct serve_request *request)
{
    write_event(request, "response.created", json_pack("{s:o}", "response", response_json(request, json_array(), false)));
    write_event(request, "response.in_progress", json_pack("{s:o}", "response", response_json(request, json_array(), false)));
    write_event(request, "response.output_item.added",
                json_pack("{s:i, s:o}", "output_index", 0, "item", item_json(request, false)));
    write_part_event(request, "response.content_part.added", "part", part_json(request));
}

static void piece(struct serve_request *request, const char *text, size_t n)
{
    serve_text_append(&request->answers[0].text, text, n); /* the last events repeat all of it */
    write_part_event(request, "response.output_text.delta", "delta", json_stringn(text, n));
}

static void end(struct serve_request *request)
{
    const bool cut = request->answers[0].finish == SERVE_FINISH_LENGTH;
    write_part_event(request, "response.output_text.done", "text", serve_text_json(&request->answers[0].text));
    write_part_event(request, "response.content_part.done", "part", part_json(request));
    write_event(request, "response.output_item.done", json_pack("{s:i, s:o}", "output_index", 0, "item", item_json(request, true)));
    write_event(request, cut ? "response.incomplete" : "response.completed", json_pack("{s:o}", "response", whole(request)));
}

const struct serve_surface serve_responses = {translate, prepare, whole, begin, piece, end};
