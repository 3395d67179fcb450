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

/* The text of a reasoning item. */
static void add_reasoning(json_t *messages, json_t *item)
{
    json_t *part;
    size_t k;
    json_array_foreach(json_object_get(item, "content"), k, part)
    {
        if (json_is_string(json_object_get(part, "text")))
            serve_add_reasoning(messages, json_string_value(json_object_get(part, "text")));
    }
}

/* An item that is no message. False: it is one, or something that is not supported. */
static bool add_other(json_t *messages, json_t *item, const char *type, size_t i, struct serve_error *error)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"), *output = json_object_get(item, "output"),
           *arguments = json_object_get(item, "arguments");
    if (strcmp(type, "reasoning") == 0) {
        add_reasoning(messages, item);
    } else if (strcmp(type, "function_call") == 0) {
        if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
            serve_fail(error, 400, "'input[%zu]' of type 'function_call' must have strings 'call_id', 'name' and 'arguments'", i);
        else
            serve_add_call(messages, id, name, arguments);
    } else if (strcmp(type, "function_call_output") == 0) {
        json_t *content = read_content(output);
        if (!json_is_string(id) || (!json_is_string(output) && !json_is_array(output)))
            serve_fail(error, 400,
                       "'input[%zu]' of type 'function_call_output' must have a string 'call_id', and as 'output' a string or an "
                       "array of parts",
                       i);
        else
            serve_add_result(messages, id, content);
        json_decref(content);
    } else {
        return false;
    }
    return true;
}

static void add_item(json_t *messages, json_t *item, size_t i, struct serve_error *error)
{
    json_t *type = json_object_get(item, "type"), *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    if (json_is_string(type) && add_other(messages, item, json_string_value(type), i, error))
        return;
    if (type && !json_is_null(type) && !json_is_string(type))
        serve_fail(error, 400, "'input[%zu].type' must be a string", i);
    else if (json_is_string(type) && strcmp(json_string_value(type), "message") != 0)
        serve_fail(error, 400, "'input[%zu]' of type '%.64s' is not supported by this server", i, json_string_value(type));
    else if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0 &&
                       strcmp(role, "developer") != 0))
        serve_fail(error, 400, "'input[%zu].role' must be 'user', 'assistant', 'system' or 'developer'", i);
    else if (!json_is_string(content) && !json_is_array(content))
        serve_fail(error, 400, "'input[%zu].content' must be a string or an array of parts", i);
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
    if (!error->status && json_array_size(messages) == 0)
        serve_fail(error, 400, "'input' must have a message: it has reasoning alone");
    return messages;
}

/* "text": {"format": ...} as the "response_format" of a chat. */
static void read_format(json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *text = json_object_get(body, "text"), *format = json_object_get(text, "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    json_object_del(chat, "response_format");
    if (text && !json_is_null(text) && !json_is_object(text))
        serve_fail(error, 400, "'text' must be an object");
    else if (type && strcmp(type, "json_schema") == 0)
        json_object_set_new(chat, "response_format", json_pack("{s:s, s:O}", "type", type, "json_schema", format));
    else if (!serve_is_neutral(format))
        json_object_set(chat, "response_format", format);
}

/* Fields with a value that asks for nothing, and other values. Hints are ignored: reasoning (its effort), text.verbosity,
 * truncation (a prompt that is too long is an error in either case). */
static void refuse_others(json_t *body, struct serve_error *error)
{
    static const char *const unsupported[] = {"previous_response_id", "conversation",      "background", "prompt",
                                              "top_logprobs",         "context_management"};
    json_t *reasoning = json_object_get(body, "reasoning"), *include = json_object_get(body, "include"),
           *metadata = json_object_get(body, "metadata"), *value;
    size_t i;
    if (error->status || serve_refuse_fields(body, unsupported, sizeof unsupported / sizeof *unsupported, error) < 0)
        return;
    if ((reasoning && !json_is_null(reasoning) && !json_is_object(reasoning)) ||
        (metadata && !json_is_null(metadata) && !json_is_object(metadata)))
        serve_fail(error, 400, "'reasoning' and 'metadata' must be objects");
    if (include && !json_is_null(include) && !json_is_array(include))
        serve_fail(error, 400, "'include' must be an array");
    json_array_foreach(json_is_array(include) ? include : NULL, i, value)
    {
        const char *what = json_string_value(value);
        if (!what || strcmp(what, "reasoning.encrypted_content") != 0) /* there is none */
            serve_fail(error, 400, "'include' of '%.64s' is not supported by this server", what ? what : "");
    }
}

/* Tools and their choice as those of a chat, where a function is an object of its own. */
static void read_tools(json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *list = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice"), *tools = json_array(), *tool;
    json_t *choice_type = json_object_get(choice, "type");
    size_t i;
    json_array_foreach(json_is_array(list) ? list : NULL, i, tool)
    {
        json_t *type = json_object_get(tool, "type"), *function = json_is_object(tool) ? json_copy(tool) : json_object();
        json_object_del(function, "type");
        json_array_append_new(tools, json_pack("{s:O, s:o}", "type", type ? type : json_null(), "function", function));
    }
    if (json_array_size(tools) > 0)
        json_object_set(chat, "tools", tools);
    json_decref(tools);
    if (!error->status && json_is_string(choice_type) && strcmp(json_string_value(choice_type), "function") == 0) {
        json_t *name = json_object_get(choice, "name");
        json_object_set_new(chat, "tool_choice",
                            json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name ? name : json_null()));
    } else if (!error->status && json_is_string(choice_type) && strcmp(json_string_value(choice_type), "allowed_tools") == 0) {
        json_t *names = json_array(), *mode = json_object_get(choice, "mode");
        json_array_foreach(json_object_get(choice, "tools"), i, tool)
        {
            json_t *name = json_object_get(tool, "name"), *type = json_object_get(tool, "type");
            json_array_append_new(names, json_pack("{s:O*, s:{s:O}}", "type", type, "function", "name", name ? name : json_null()));
        }
        json_object_set_new(chat, "tool_choice",
                            json_pack("{s:s, s:{s:O, s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                                      mode ? mode : json_null(), "tools", names));
    } else if (!error->status && json_is_string(choice_type)) {
        serve_fail(error, 400, "'tool_choice' of type '%.64s' is not supported by this server", json_string_value(choice_type));
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
    read_tools(body, chat, error);
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
    json_t *fields = request->fields =
        json_pack("{s:n, s:n, s:{}, s:f, s:f, s:{s:{s:s}}, s:s, s:[], s:b}", "instructions", "max_output_tokens", "metadata",
                  "temperature", (double)sampling->temperature, "top_p", (double)sampling->top_p, "text", "format", "type", "text",
                  "tool_choice", "auto", "tools", "parallel_tool_calls", 1);
    const char *name;
    json_t *value;
    json_object_foreach(fields, name, value)
    {
        json_t *given = json_object_get(body, name);
        const bool has_type = json_object_get(json_object_get(given, "format"), "type");
        if ((json_is_number(value)    ? json_is_number(given)
             : json_is_boolean(value) ? json_is_boolean(given)
                                      : !serve_is_neutral(given)) &&
            (strcmp(name, "text") != 0 || has_type))
            json_object_set(fields, name, given);
    }
}

/* -------------------------------------------------------------------------------------------------- the answer */

/* Takes items. ended: the jobs are done. */
static json_t *response_json(const struct serve_request *request, json_t *items, bool ended)
{
    const struct serve_job *job = request->jobs[0];
    const bool cut = ended && request->answers[0].finish == SERVE_FINISH_LENGTH;
    json_t *response =
        json_pack("{s:o, s:s, s:I, s:s, s:b, s:n, s:o, s:s, s:o, s:n, s:{s:n, s:n}, s:b, s:s}", "id",
                  serve_id_json(request, "resp_"), "object", "response", "created_at", (json_int_t)request->created, "status",
                  !ended ? "in_progress"
                  : cut  ? "incomplete"
                         : "completed",
                  "background", 0, "error", "incomplete_details",
                  cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "model", request->api->config.model_name,
                  "output", items, "previous_response_id", "reasoning", "effort", "summary", "store", 0, "truncation", "disabled");
    json_object_update(response, request->fields);
    json_object_set_new(response, "usage",
                        ended ? json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i, s:o}", "input_tokens", job->n_prompt,
                                          "input_tokens_details", "cached_tokens", job->n_cached, "output_tokens", job->n_generated,
                                          "output_tokens_details", "reasoning_tokens", request->answers[0].n_reasoning,
                                          "total_tokens", job->n_prompt + job->n_generated, "kv", serve_kv_json(request))
                              : json_null());
    return response;
}

/* The text of a message's or a reasoning item's only part. begun: before its first piece. */
static json_t *part_json(const struct serve_block *block, bool begun)
{
    json_t *text = begun ? json_string("") : serve_text_json(&block->text);
    return block->kind == SERVE_CONTENT
               ? json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text, "annotations", "logprobs")
               : json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
}

static json_t *item_id(const struct serve_request *request, const struct serve_block *block)
{
    const char *prefix = block->kind == SERVE_CONTENT ? "msg_" : block->kind == SERVE_REASONING ? "rs_" : "fc_";
    return json_sprintf("%s%s_%d", prefix, strchr(request->id, '-') + 1, block->index);
}

/* An item of the output; begun: at its beginning. */
static json_t *item_json(const struct serve_request *request, const struct serve_block *block, bool begun)
{
    const char *status = begun ? "in_progress" : block->cut ? "incomplete" : "completed";
    json_t *id = item_id(request, block), *parts = begun ? json_array() : json_pack("[o]", part_json(block, false));
    if (block->kind == SERVE_CONTENT)
        return json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role", "assistant", "content",
                         parts);
    if (block->kind == SERVE_REASONING)
        return json_pack("{s:o, s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "status", status, "summary", "content",
                         parts);
    json_decref(parts);
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "function_call", "status", status, "call_id", block->id,
                     "name", block->name, "arguments", begun ? json_string("") : serve_text_json(&block->text));
}

static json_t *whole(const struct serve_request *request)
{
    const struct serve_answer *answer = &request->answers[0];
    json_t *items = json_array();
    for (int i = 0; i < answer->n_blocks; i++)
        json_array_append_new(items, item_json(request, &answer->blocks[i], false));
    return response_json(request, items, true);
}

/* Takes the event. */
static void write_event(struct serve_request *request, const char *type, json_t *event)
{
    json_object_set_new(event, "type", json_string(type));
    json_object_set_new(event, "sequence_number", json_integer(request->n_events++));
    serve_write_event(request, type, event);
}

/* An event of an item's part; field: what it has, a new reference. */
static void write_part_event(struct serve_request *request, const struct serve_block *block, const char *type, const char *field,
                             json_t *value)
{
    json_t *event = json_pack("{s:o, s:i, s:o}", "item_id", item_id(request, block), "output_index", block->index, field, value);
    if (block->kind != SERVE_CALL_BEGIN)
        json_object_set_new(event, "content_index", json_integer(0));
    if (block->kind == SERVE_CONTENT && json_is_string(value))
        json_object_set_new(event, "logprobs", json_array());
    write_event(request, type, event);
}

static void begin(struct serve_request *request)
{
    write_event(request, "response.created", json_pack("{s:o}", "response", response_json(request, json_array(), false)));
    write_event(request, "response.in_progress", json_pack("{s:o}", "response", response_json(request, json_array(), false)));
}

static void begin_block(struct serve_request *request, const struct serve_block *block)
{
    write_event(request, "response.output_item.added",
                json_pack("{s:i, s:o}", "output_index", block->index, "item", item_json(request, block, true)));
    if (block->kind != SERVE_CALL_BEGIN)
        write_part_event(request, block, "response.content_part.added", "part", part_json(block, true));
}

static void piece(struct serve_request *request, const struct serve_block *block, const char *bytes, size_t n)
{
    write_part_event(request, block,
                     block->kind == SERVE_CONTENT     ? "response.output_text.delta"
                     : block->kind == SERVE_REASONING ? "response.reasoning_text.delta"
                                                      : "response.function_call_arguments.delta",
                     "delta", json_stringn(bytes, n));
}

static void end_block(struct serve_request *request, const struct serve_block *block)
{
    if (block->kind == SERVE_CALL_BEGIN) {
        json_t *event = json_pack("{s:o, s:i, s:s, s:o}", "item_id", item_id(request, block), "output_index", block->index, "name",
                                  block->name, "arguments", serve_text_json(&block->text));
        write_event(request, "response.function_call_arguments.done", event);
    } else {
        write_part_event(request, block,
                         block->kind == SERVE_CONTENT ? "response.output_text.done" : "response.reasoning_text.done", "text",
                         serve_text_json(&block->text));
        write_part_event(request, block, "response.content_part.done", "part", part_json(block, false));
    }
    write_event(request, "response.output_item.done",
                json_pack("{s:i, s:o}", "output_index", block->index, "item", item_json(request, block, false)));
}

static void end(struct serve_request *request)
{
    const bool cut = request->answers[0].finish == SERVE_FINISH_LENGTH;
    write_event(request, cut ? "response.incomplete" : "response.completed", json_pack("{s:o}", "response", whole(request)));
}

const struct serve_surface serve_responses = {.id_prefix = "resp_",
                                              .translate = translate,
                                              .prepare = prepare,
                                              .whole = whole,
                                              .begin = begin,
                                              .begin_block = begin_block,
                                              .piece = piece,
                                              .end_block = end_block,
                                              .end = end};
