/* Anthropic's interface: /v1/messages and /v1/messages/count_tokens. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* ------------------------------------------------------------------------------------------------- the request */

static bool has_type(const json_t *value, const char *type)
{
    const char *own = json_string_value(json_object_get(value, "type"));
    return own && strcmp(own, type) == 0;
}

/* A block of a message that is no text. False: it is one, or something that is not supported. */
static bool read_block(json_t *out, const char *role, json_t *block, size_t i, struct serve_error *error)
{
    const bool is_user = strcmp(role, "user") == 0;
    if (has_type(block, "tool_use") && !is_user) {
        json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
        if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
            serve_fail(error, 400, "'messages[%zu]': a 'tool_use' block must have strings 'id' and 'name' and an object 'input'",
                       i);
        else
            serve_add_call(out, id, name, input);
        return true;
    }
    if (has_type(block, "tool_result") && is_user) {
        json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content"), *none = json_string("");
        if (!json_is_string(id) || (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content)))
            serve_fail(
                error, 400,
                "'messages[%zu]': a 'tool_result' block must have a string 'tool_use_id', and as 'content' a string or an array of "
                "blocks",
                i);
        else
            serve_add_result(out, id, content && !json_is_null(content) ? content : none);
        json_decref(none);
        return true;
    }
    if (has_type(block, "thinking") && !is_user) {
        const char *text = json_string_value(json_object_get(block, "thinking"));
        if (!text)
            serve_fail(error, 400, "'messages[%zu]': a 'thinking' block must have a string 'thinking'", i);
        else
            serve_add_reasoning(out, text);
        return true;
    }
    return false;
}

/* The blocks of a message: neighbouring texts together, results of tools as messages of their own. */
static void read_blocks(json_t *out, const char *role, json_t *content, size_t i, struct serve_error *error)
{
    json_t *texts = json_array(), *block;
    bool any = false;
    size_t k;
    json_array_foreach(content, k, block)
    {
        if (error->status || read_block(out, role, block, i, error)) {
            any = true;
            continue;
        }
        json_array_append(texts, block);
    }
    if (json_array_size(texts) > 0 || !any)
        serve_add_message(out, role, texts);
    json_decref(texts);
}

static json_t *read_messages(json_t *body, struct serve_error *error)
{
    json_t *list = json_object_get(body, "messages"), *system = json_object_get(body, "system"), *out = json_array(), *message;
    size_t i;
    if (json_is_string(system) ? json_string_length(system) > 0 : json_array_size(system) > 0)
        serve_add_message(out, "system", system);
    else if (system && !json_is_null(system) && !json_is_string(system) && !json_is_array(system))
        serve_fail(error, 400, "'system' must be a string or an array of text blocks");
    json_array_foreach(json_is_array(list) ? list : NULL, i, message)
    {
        json_t *content = json_object_get(message, "content");
        const char *role = json_string_value(json_object_get(message, "role"));
        const bool is_system = role && strcmp(role, "system") == 0; /* Claude Code has such behind its first message */
        const json_t *last = json_array_get(out, json_array_size(out) - 1);
        const char *last_role = json_string_value(json_object_get(last, "role"));
        if (!role || (!is_system && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
            serve_fail(error, 400, "'messages[%zu].role' must be 'user', 'assistant' or 'system'", i);
        else if (json_is_string(content) || (is_system && json_is_array(content)))
            /* Behind other messages the user's: many templates refuse one of the system there, or leave it out. */
            serve_add_message(out, is_system && last_role && strcmp(last_role, "system") != 0 ? "user" : role, content);
        else if (!json_is_array(content))
            serve_fail(error, 400, "'messages[%zu].content' must be a string or an array of blocks", i);
        else
            read_blocks(out, role, content, i, error);
    }
    if (json_array_size(list) == 0)
        serve_fail(error, 400, "'messages' must be an array with at least one message");
    return out;
}

/* The tools of a chat, a new reference; NULL: there are none, or *error. */
static json_t *read_tools(json_t *body, struct serve_error *error)
{
    json_t *list = json_object_get(body, "tools"), *tools, *tool;
    size_t i;
    if (error->status || serve_is_neutral(list))
        return NULL;
    if (!json_is_array(list)) {
        serve_fail(error, 400, "'tools' must be an array");
        return NULL;
    }
    tools = json_array();
    json_array_foreach(list, i, tool)
    {
        json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name"),
               *schema = json_object_get(tool, "input_schema"), *about = json_object_get(tool, "description");
        if (json_is_string(type) && !has_type(tool, "custom") && !has_type(tool, "function"))
            json_array_append(tools, tool); /* serve_read_tools leaves it out, or refuses it */
        else if (!serve_is_neutral(type) && !has_type(tool, "custom"))
            serve_fail(error, 400, "'tools[%zu]' of type '%.64s' is not supported by this server", i,
                       json_is_string(type) ? json_string_value(type) : "");
        else if (!json_is_string(name) || !json_is_object(schema))
            serve_fail(error, 400, "'tools[%zu]' must have a string 'name' and an object 'input_schema'", i);
        else
            json_array_append_new(tools, json_pack("{s:s, s:{s:O, s:O, s:O, s:O*}}", "type", "function", "function", "name", name,
                                                   "description", about ? about : json_null(), "parameters", schema, "strict",
                                                   json_object_get(tool, "strict")));
        if (error->status)
            break;
    }
    return tools;
}

static void read_choice(json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *choice = json_object_get(body, "tool_choice"), *name = json_object_get(choice, "name");
    json_object_del(chat, "parallel_tool_calls");
    json_object_del(chat, "tool_choice");
    if (error->status || serve_is_neutral(choice))
        return;
    if (serve_read_bool(choice, "disable_parallel_tool_use", false, error))
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    if (has_type(choice, "any"))
        json_object_set_new(chat, "tool_choice", json_string("required"));
    else if (has_type(choice, "tool") && json_is_string(name))
        json_object_set_new(chat, "tool_choice", json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
    else if (has_type(choice, "auto") || has_type(choice, "none"))
        json_object_set(chat, "tool_choice", json_object_get(choice, "type"));
    else
        serve_fail(error, 400, "'tool_choice' must be an object of type auto, any, none, or tool with a string 'name'");
}

/* Templates that can do without reasoning are told by this variable. */
static void read_thinking(const struct serve_api *api, json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *thinking = json_object_get(body, "thinking"), *given = json_object_get(chat, "chat_template_kwargs");
    const bool enabled = has_type(thinking, "enabled");
    if (error->status || serve_is_neutral(thinking) || has_type(thinking, "adaptive") || has_type(thinking, "between_tools"))
        return;
    if (!enabled && !has_type(thinking, "disabled")) {
        serve_fail(error, 400, "'thinking' must be an object of type enabled, adaptive, between_tools or disabled");
        return;
    }
    if (enabled && !serve_read_count(thinking, "budget_tokens", true, error))
        return;
    if (enabled && !serve_syntax_reasoning(serve_chat_template(api)))
        return; /* a hint, as reasoning.effort of /v1/responses is: such a model does not think */
    if (given && !json_is_null(given) && !json_is_object(given))
        return; /* is refused later */
    json_t *variables = json_is_object(given) ? json_copy(given) : json_object();
    if (!json_object_get(variables, "enable_thinking"))
        json_object_set_new(variables, "enable_thinking", json_boolean(enabled));
    json_object_set_new(chat, "chat_template_kwargs", variables);
}

/* The schema of the text, as the "response_format" of a chat: "output_config": {"format": ...}, or "output_format" of earlier
 * clients. The rest of output_config are hints. */
static void read_format(json_t *body, json_t *chat, struct serve_error *error)
{
    json_t *config = json_object_get(body, "output_config"), *earlier = json_object_get(body, "output_format"),
           *format = json_object_get(config, "format");
    const char *name = serve_is_neutral(format) ? "output_format" : "output_config.format";
    format = serve_is_neutral(format) ? earlier : format;
    json_object_del(chat, "response_format");
    if (error->status)
        return;
    if (config && !json_is_null(config) && !json_is_object(config))
        serve_fail(error, 400, "'output_config' must be an object");
    else if (!serve_is_neutral(format) && (!has_type(format, "json_schema") || !json_object_get(format, "schema")))
        serve_fail(error, 400, "'%s' must be an object of type 'json_schema' with a 'schema'", name);
    else if (!serve_is_neutral(format))
        json_object_set_new(chat, "response_format", json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
}

static json_t *to_chat(const struct serve_api *api, json_t *body, bool counts_only, struct serve_error *error)
{
    static const char *const unsupported[] = {"container", "mcp_servers"};
    json_t *stops = json_object_get(body, "stop_sequences"), *chat = serve_copy_body(body, read_messages(body, error)), *tools;
    if (!counts_only)
        serve_read_count(body, "max_tokens", true, error);
    if (!error->status)
        serve_refuse_fields(body, unsupported, sizeof unsupported / sizeof *unsupported, error);
    bool right = !stops || json_is_null(stops) || (json_is_array(stops) && json_array_size(stops) <= SERVE_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(stops) && right; i++)
        right = json_is_string(json_array_get(stops, i));
    if (!error->status && !right)
        serve_fail(error, 400, "'stop_sequences' must be an array of at most %d strings", SERVE_MAX_STOPS);
    tools = read_tools(body, error);
    json_object_del(chat, "tools");
    if (tools)
        json_object_set_new(chat, "tools", tools);
    read_choice(body, chat, error);
    read_format(body, chat, error);
    read_thinking(api, body, chat, error);
    json_object_del(chat, "stop");
    if (stops)
        json_object_set(chat, "stop", stops);
    if (!error->status)
        return chat;
    json_decref(chat);
    return NULL;
}

static json_t *translate(struct serve_api *api, json_t *body, struct serve_error *error)
{
    return to_chat(api, body, false, error);
}

json_t *serve_post_count_tokens(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *translated = to_chat(api, body, true, error);
    struct serve_chat chat = {0};
    int32_t *ids = NULL;
    int n = translated ? serve_read_chat(api, translated, &chat, error) : -1;
    if (n == 0)
        n = serve_tokenize_chat(api, &chat, NULL, &ids, error);
    if (n >= 0) /* a body that messages would refuse is refused here too */
        butler_grammar_free(serve_read_constraint(api, translated, error));
    free(ids);
    serve_chat_free(&chat);
    json_decref(translated);
    return n < 0 || error->status ? NULL : json_pack("{s:i}", "input_tokens", n);
}

/* -------------------------------------------------------------------------------------------------- the answer */

/* Anthropic counts what the cache had apart from what was read. done: the job is, and it is known what decoding read. */
static json_t *usage_json(const struct serve_request *request, bool done)
{
    const struct serve_job *job = request->jobs[0];
    json_t *usage = json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", job->n_prompt - job->n_cached, "cache_creation_input_tokens",
                              0, "cache_read_input_tokens", job->n_cached, "output_tokens", done ? job->n_generated : 0);
    if (done)
        json_object_set_new(usage, "kv", serve_kv_json(request));
    return usage;
}

/* stop_reason and stop_sequence. The stop text of the server's own chat format is the end of a turn. */
static json_t *stop_json(const struct serve_request *request)
{
    const struct serve_answer *answer = &request->answers[0];
    const char *own = request->api->config.chat_stop;
    if (answer->finish == SERVE_FINISH_STOP && answer->stop && (!own || strcmp(answer->stop, own) != 0))
        return json_pack("{s:s, s:s}", "stop_reason", "stop_sequence", "stop_sequence", answer->stop);
    const bool calls = answer->parser && serve_parser_has_whole_calls(answer->parser);
    return json_pack("{s:s, s:n}", "stop_reason",
                     answer->finish == SERVE_FINISH_LENGTH ? "max_tokens"
                     : calls                               ? "tool_use"
                                                           : "end_turn",
                     "stop_sequence");
}

/* Takes content, stop and usage. */
static json_t *message_json(const struct serve_request *request, json_t *content, json_t *stop, json_t *usage)
{
    json_t *message = json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", serve_id_json(request, "msg_"), "type", "message", "role",
                                "assistant", "model", request->api->config.model_name, "content", content);
    json_object_update(message, stop);
    json_object_set_new(message, "usage", usage);
    json_decref(stop);
    return message;
}

/* The input of a call, as an object; empty where the model wrote none that can be read. */
static json_t *input_json(const struct serve_block *block)
{
    json_t *input = block->text.n ? serve_load_json(block->text.bytes, block->text.n, 0, NULL) : NULL;
    if (json_is_object(input))
        return input;
    json_decref(input);
    return json_object();
}

/* begun: without what its deltas will say. */
static json_t *block_json(const struct serve_block *block, bool begun)
{
    json_t *text = begun ? json_string("") : serve_text_json(&block->text);
    if (block->kind == SERVE_CONTENT)
        return json_pack("{s:s, s:o}", "type", "text", "text", text);
    if (block->kind == SERVE_REASONING)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", text, "signature", "");
    json_decref(text);
    return json_pack("{s:s, s:o, s:s, s:o}", "type", "tool_use", "id", json_sprintf("toolu_%s", block->id), "name", block->name,
                     "input", begun ? json_object() : input_json(block));
}

static json_t *whole(const struct serve_request *request)
{
    const struct serve_answer *answer = &request->answers[0];
    json_t *content = json_array();
    for (int i = 0; i < answer->n_blocks; i++)
        json_array_append_new(content, block_json(&answer->blocks[i], false));
    return message_json(request, content, stop_json(request), usage_json(request, true));
}

/* Takes the event. */
static void write_event(struct serve_request *request, const char *type, json_t *event)
{
    json_object_set_new(event, "type", json_string(type));
    serve_write_event(request, type, event);
}

static void begin(struct serve_request *request)
{
    json_t *stop = json_pack("{s:n, s:n}", "stop_reason", "stop_sequence");
    write_event(request, "message_start",
                json_pack("{s:o}", "message", message_json(request, json_array(), stop, usage_json(request, false))));
}

static void begin_block(struct serve_request *request, const struct serve_block *block)
{
    write_event(request, "content_block_start",
                json_pack("{s:i, s:o}", "index", block->index, "content_block", block_json(block, true)));
    if (block->index == 0)
        write_event(request, "ping", json_object());
}

static void piece(struct serve_request *request, const struct serve_block *block, const char *bytes, size_t n)
{
    const char *type = block->kind == SERVE_CONTENT     ? "text_delta"
                       : block->kind == SERVE_REASONING ? "thinking_delta"
                                                        : "input_json_delta";
    const char *field = block->kind == SERVE_CONTENT ? "text" : block->kind == SERVE_REASONING ? "thinking" : "partial_json";
    write_event(request, "content_block_delta",
                json_pack("{s:i, s:{s:s, s:s%}}", "index", block->index, "delta", "type", type, field, bytes, n));
}

static void end_block(struct serve_request *request, const struct serve_block *block)
{
    write_event(request, "content_block_stop", json_pack("{s:i}", "index", block->index));
}

static void end(struct serve_request *request)
{
    write_event(request, "message_delta", json_pack("{s:o, s:o}", "delta", stop_json(request), "usage", usage_json(request, true)));
    write_event(request, "message_stop", json_object());
}

const struct serve_surface serve_messages = {.id_prefix = "msg_",
                                             .translate = translate,
                                             .whole = whole,
                                             .begin = begin,
                                             .begin_block = begin_block,
                                             .piece = piece,
                                             .end_block = end_block,
                                             .end = end};
