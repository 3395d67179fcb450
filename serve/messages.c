/* Anthropic's interface: /v1/messages and /v1/messages/count_tokens. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* ------------------------------------------------------------------------------------------------- the request */

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
        if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
            serve_fail(error, 400, "'role' of message %zu must be 'user' or 'assistant'", i);
        else if (!json_is_string(content) && !json_is_array(content))
            serve_fail(error, 400, "'content' of message %zu must be a string or an array of blocks", i);
        else
            serve_add_message(out, role, content);
    }
    if (json_array_size(list) == 0)
        serve_fail(error, 400, "'messages' must be an array with at least one message");
    return out;
}

/* An object whose type says that nothing is asked for. */
static bool has_type(const json_t *value, const char *type)
{
    const char *own = json_string_value(json_object_get(value, "type"));
    return own && strcmp(own, type) == 0;
}

static json_t *to_chat(json_t *body, bool counts_only, struct serve_error *error)
{
    static const char *const unsupported[] = {"container",     "mcp_servers",   "context_management",
                                              "output_config", "output_format", "tools"};
    json_t *stops = json_object_get(body, "stop_sequences"), *choice = json_object_get(body, "tool_choice"),
           *chat = serve_copy_body(body, read_messages(body, error));
    if (!counts_only)
        serve_read_count(body, "max_tokens", true, error);
    if (!error->status)
        serve_refuse_fields(body, unsupported, sizeof unsupported / sizeof *unsupported, error);
    if (!error->status && !serve_is_neutral(json_object_get(body, "thinking")) &&
        !has_type(json_object_get(body, "thinking"), "disabled"))
        serve_fail(error, 501, "'thinking' is not supported by this server");
    bool right = !stops || json_is_null(stops) || (json_is_array(stops) && json_array_size(stops) <= SERVE_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(stops) && right; i++)
        right = json_is_string(json_array_get(stops, i));
    if (!error->status && !right)
        serve_fail(error, 400, "'stop_sequences' must be an array of at most %d strings", SERVE_MAX_STOPS);
    if (has_type(choice, "auto") || has_type(choice, "none"))
        json_object_set(chat, "tool_choice", json_object_get(choice, "type"));
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
    (void)api;
    return to_chat(body, false, error);
}

json_t *serve_post_count_tokens(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *chat = to_chat(body, true, error);
    int32_t *ids = NULL;
    const int n = chat ? serve_tokenize_chat(api, chat, NULL, &ids, error) : -1;
    if (n >= 0) /* a body that messages would refuse is refused here too */
        butler_grammar_free(serve_read_constraint(api, chat, error));
    free(ids);
    json_decref(chat);
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
    return json_pack("{s:s, s:n}", "stop_reason", answer->finish == SERVE_FINISH_LENGTH ? "max_tokens" : "end_turn",
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

static json_t *whole(const struct serve_request *request)
{
    json_t *content = json_pack("[{s:s, s:o}]", "type", "text", "text", serve_text_json(&request->answers[0].text));
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
    write_event(request, "content_block_start",
                json_pack("{s:i, s:{s:s, s:s}}", "index", 0, "content_block", "type", "text", "text", ""));
    write_event(request, "ping", json_object());
}

static void piece(struct serve_request *request, const char *text, size_t n)
{
    write_event(request, "content_block_delta",
                json_pack("{s:i, s:{s:s, s:s%}}", "index", 0, "delta", "type", "text_delta", "text", text, n));
}

static void end(struct serve_request *request)
{
    write_event(request, "content_block_stop", json_pack("{s:i}", "index", 0));
    write_event(request, "message_delta", json_pack("{s:o, s:o}", "delta", stop_json(request), "usage", usage_json(request, true)));
    write_event(request, "message_stop", json_object());
}

const struct serve_surface serve_messages = {translate, NULL, whole, begin, piece, end};
