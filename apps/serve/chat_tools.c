/* Tools of a request on the way into the prompt: the template renders them, or, where it has no place for them, a text of our own
 * in the form that most open models were trained on (Hermes): <tools>, <tool_call>, <tool_response>. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

enum { MAX_TOOLS = 256, MAX_NAME = 64 };

const char *serve_chat_template(const struct serve_api *api)
{
    const char *jinja = api->config.chat_template ? api->config.chat_template : api->info->chat_template;
    return jinja ? jinja : "";
}

static bool renders_tools(const struct serve_api *api)
{
    return strstr(serve_chat_template(api), "tools") != NULL;
}

/* Whether the template takes tools as a text of the system message (Phi-4-mini). */
static bool takes_text(const struct serve_api *api)
{
    return strstr(serve_chat_template(api), "message['tools']") != NULL;
}

static int check_tool(const json_t *tool, size_t i, struct serve_error *error)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
    const json_t *parameters = json_object_get(function, "parameters");
    const char *text = json_string_value(name);
    if (!type)
        return serve_fail(error, 400, "'tools[%zu]' must be an object with a string 'type'", i);
    if (strcmp(type, "function") != 0)
        return serve_fail(error, 400, "'tools[%zu]' of type '%.64s' is not supported by this server", i, type);
    const size_t n = json_string_length(name);
    if (n == 0 || n > MAX_NAME || serve_count_name(text, n) != n)
        return serve_fail(error, 400, "'tools[%zu].function.name' must have 1 to %d letters, digits or _-.:/", i, MAX_NAME);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return serve_fail(error, 400, "'tools[%zu].function.parameters' must be an object", i);
    return 0;
}

static int read_choice(json_t *body, struct serve_tool_choice *choice, struct serve_error *error)
{
    json_t *value = json_object_get(body, "tool_choice");
    const char *text = json_string_value(value), *type = json_string_value(json_object_get(value, "type"));
    *choice = (struct serve_tool_choice){.allowed = true};
    if (serve_is_neutral(value) || (text && strcmp(text, "auto") == 0))
        return 0;
    if (text && strcmp(text, "none") == 0) {
        choice->allowed = false;
        return 0;
    }
    if (text && strcmp(text, "required") == 0) {
        choice->required = true;
        return 0;
    }
    if (!type || strcmp(type, "function") != 0)
        return serve_fail(error, 400, "'tool_choice' must be none, auto, required, or an object of type 'function'");
    choice->name = json_string_value(json_object_get(json_object_get(value, "function"), "name"));
    choice->required = true;
    return choice->name ? 0 : serve_fail(error, 400, "'tool_choice' of type 'function' must have 'function' with a string 'name'");
}

const char *serve_tool_name(json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static json_t *find_tool(json_t *tools, const char *name)
{
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        if (name && strcmp(serve_tool_name(tool), name) == 0)
            return tool;
    }
    return NULL;
}

/* A choice of type allowed_tools becomes what it says: fewer tools, of which the model calls any or must call one. 0 or a negative
 * status. */
static int apply_allowed(json_t *body, json_t *tools, const json_t *left_out, struct serve_error *error)
{
    json_t *choice = json_object_get(body, "tool_choice"), *allowed = json_object_get(choice, "allowed_tools"), *item;
    const char *type = json_string_value(json_object_get(choice, "type")),
               *mode = json_string_value(json_object_get(allowed, "mode"));
    json_t *list = json_object_get(allowed, "tools");
    size_t i;
    if (!type || strcmp(type, "allowed_tools") != 0)
        return 0;
    if (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0) || !json_is_array(list))
        return serve_fail(error, 400, "'tool_choice.allowed_tools' must have 'mode', auto or required, and an array 'tools'");
    json_t *some = json_array();
    json_array_foreach(list, i, item)
    {
        const char *name = serve_tool_name(item), *of = json_string_value(json_object_get(item, "type"));
        json_t *tool = find_tool(tools, name);
        if (of && strcmp(of, "function") != 0 && json_array_size(left_out) > 0)
            continue; /* as from the tools */
        if (!tool)
            serve_fail(error, 400, "'tool_choice.allowed_tools.tools[%zu]' names '%.64s', which is not in 'tools'", i,
                       name ? name : "");
        else if (!find_tool(some, name))
            json_array_append(some, tool);
    }
    if (!error->status) {
        json_object_set_new(body, "tool_choice", json_string(mode));
        json_object_set(body, "tools", some);
    }
    json_decref(some);
    return -error->status;
}

/* Whether the tools have what the choice requires. 0 or a negative status. */
static int check_choice(const struct serve_tool_choice *choice, json_t *tools, struct serve_error *error)
{
    if (choice->required && json_array_size(tools) == 0)
        return serve_fail(error, 400, "'tool_choice' requires a call, but there are no 'tools'");
    return choice->name && !find_tool(tools, choice->name)
               ? serve_fail(error, 400, "'tool_choice' names '%.64s', which is not in 'tools'", choice->name)
               : 0;
}

/* Leaves tools that are no functions out of the body where functions are beside them: clients with tools of their own maker's
 * server send both (Codex). A body that has no others is refused. */
static json_t *leave_out(json_t *body, json_t *list, json_t *left_out)
{
    json_t *functions = json_array(), *tool;
    size_t i;
    json_array_foreach(list, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "function") != 0)
            json_array_append_new(left_out, json_integer((json_int_t)i));
        else
            json_array_append(functions, tool);
    }
    if (json_array_size(functions) > 0 && json_array_size(left_out) > 0)
        json_object_set(body, "tools", functions);
    else
        json_array_clear(left_out);
    json_decref(functions);
    return json_object_get(body, "tools");
}

size_t serve_tool_place(const json_t *left_out, size_t i)
{
    for (size_t k = 0; k < json_array_size(left_out) && (size_t)json_integer_value(json_array_get(left_out, k)) <= i; k++)
        i++;
    return i;
}

int serve_read_tools(json_t *body, json_t **tools, struct serve_tool_choice *choice, json_t *left_out, struct serve_error *error)
{
    json_t *list = json_object_get(body, "tools"), *tool;
    size_t i;
    *tools = NULL;
    if (serve_is_neutral(list) && !json_is_array(list))
        list = NULL;
    if (list && !json_is_array(list))
        return serve_fail(error, 400, "'tools' must be an array");
    if (json_array_size(list) > MAX_TOOLS)
        return serve_fail(error, 400, "'tools' has more than %d tools", MAX_TOOLS);
    if (list)
        list = leave_out(body, list, left_out);
    json_array_foreach(list, i, tool)
    {
        if (check_tool(tool, serve_tool_place(left_out, i), error) < 0)
            return -error->status;
    }
    if (apply_allowed(body, list, left_out, error) < 0)
        return -error->status;
    list = list ? json_object_get(body, "tools") : NULL;
    if (read_choice(body, choice, error) < 0 || check_choice(choice, list, error) < 0)
        return -error->status;
    *tools = choice->allowed && json_array_size(list) > 0 ? list : NULL;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- messages */

int serve_check_calls(json_t *message, size_t i, struct serve_error *error)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t k;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return serve_fail(error, 400, "'messages[%zu].tool_calls' must be an array", i);
    json_array_foreach(calls, k, call)
    {
        const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")))
            return serve_fail(error, 400, "'messages[%zu].tool_calls[%zu].function' must have a string 'name'", i, k);
        if (arguments && !json_is_null(arguments) && !json_is_string(arguments) && !json_is_object(arguments))
            return serve_fail(error, 400, "'messages[%zu].tool_calls[%zu].function.arguments' must be a text or an object", i, k);
    }
    return 0;
}

/* Clients send the arguments of former calls as a text; templates expect the object in it. */
static json_t *open_arguments(json_t *calls)
{
    json_t *copy = json_deep_copy(calls), *call;
    size_t i;
    json_array_foreach(copy, i, call)
    {
        json_t *function = json_object_get(call, "function"), *text = json_object_get(function, "arguments");
        json_t *arguments =
            json_is_string(text) ? serve_load_json(json_string_value(text), json_string_length(text), 0, NULL) : NULL;
        if (json_is_object(arguments))
            json_object_set(function, "arguments", arguments);
        json_decref(arguments);
    }
    return copy;
}

static void append(struct butler_buffer *text, const char *bytes)
{
    serve_text_append(text, bytes, strlen(bytes));
}

static void append_json(struct butler_buffer *text, json_t *value)
{
    char *json = json_dumps(value, JSON_ENCODE_ANY);
    append(text, json ? json : "null");
    free(json);
}

static const char *content_of(const json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "content"));
    return text ? text : "";
}

static void set_content(json_t *message, struct butler_buffer *text)
{
    json_object_set_new(message, "content", serve_text_json(text));
    butler_buffer_free(text);
}

static void write_calls(json_t *message)
{
    struct butler_buffer text = {0};
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    append(&text, content_of(message));
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        append(&text, text.n ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        append_json(&text, json_object_get(function, "name"));
        append(&text, ", \"arguments\": ");
        append_json(&text, json_object_get(function, "arguments"));
        append(&text, "}\n</tool_call>");
    }
    json_object_del(message, "tool_calls");
    set_content(message, &text);
}

/* A tool's message becomes the user's; several in a row one, for templates in which roles alternate. */
static void write_result(struct butler_buffer *text, json_t *message)
{
    append(text, text->n ? "\n<tool_response>\n" : "<tool_response>\n");
    append(text, content_of(message));
    append(text, "\n</tool_response>");
}

static void end_results(json_t *messages, struct butler_buffer *text)
{
    json_t *message = json_pack("{s:s}", "role", "user");
    if (text->n > 0) {
        set_content(message, text);
        json_array_append(messages, message);
    }
    json_decref(message);
}

static void write_tools(json_t *messages, json_t *tools)
{
    struct butler_buffer text = {0};
    json_t *first = json_array_get(messages, 0), *tool;
    const char *role = json_string_value(json_object_get(first, "role"));
    const bool has_system = role && strcmp(role, "system") == 0;
    size_t i;
    if (has_system && *content_of(first)) {
        append(&text, content_of(first));
        append(&text, "\n\n");
    }
    append(&text, "You can call functions. These are their signatures:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        append_json(&text, tool);
        append(&text, "\n");
    }
    append(&text, "</tools>\nTo call a function, answer with its name and arguments as JSON:\n<tool_call>\n"
                  "{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n</tool_call>");
    if (!has_system) {
        first = json_pack("{s:s}", "role", "system");
        json_array_insert_new(messages, 0, first);
    }
    set_content(first, &text);
}

/* Tools as a text of the system message. */
static void set_tools_text(json_t *messages, json_t *tools)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    char *text = json_dumps(tools, JSON_COMPACT);
    if (!role || strcmp(role, "system") != 0)
        json_array_insert_new(messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", ""));
    json_object_set_new(json_array_get(messages, 0), "tools", json_string(text ? text : ""));
    free(text);
}

json_t *serve_tool_messages(const struct serve_api *api, json_t *list, json_t *tools)
{
    const bool by_template = renders_tools(api);
    json_t *messages = json_array(), *message;
    struct butler_buffer results = {0};
    size_t i;
    json_array_foreach(list, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const bool has_calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
        const bool is_result = !by_template && role && strcmp(role, "tool") == 0;
        if (is_result) {
            write_result(&results, message);
        } else {
            end_results(messages, &results);
            message = json_copy(message);
            if (has_calls) {
                json_object_set_new(message, "tool_calls", open_arguments(json_object_get(message, "tool_calls")));
                if (!by_template)
                    write_calls(message);
            }
            json_array_append_new(messages, message);
        }
    }
    end_results(messages, &results);
    if (tools && !by_template)
        write_tools(messages, tools);
    else if (tools && takes_text(api))
        set_tools_text(messages, tools);
    return messages;
}

json_t *serve_template_tools(const struct serve_api *api, json_t *tools)
{
    return renders_tools(api) ? tools : NULL;
}

/* ------------------------------------------------------------------------------------------------------ syntax */

void serve_find_syntax(const struct serve_api *api, const struct serve_chat *chat, const struct butler_chat_text *prompt,
                       struct serve_syntax *syntax)
{
    json_t *tool;
    size_t i;
    syntax->one_call = chat->one_call;
    if (!chat->no_reasoning)
        syntax->reasoning = serve_syntax_reasoning(serve_chat_template(api));
    syntax->reasoning &= ~serve_syntax_closed(syntax->reasoning, prompt->bytes, prompt->n); /* the prompt has it: none follows */
    syntax->open = serve_syntax_open(syntax->reasoning, prompt->bytes, prompt->n);
    syntax->calls = renders_tools(api) ? serve_syntax_calls(serve_chat_template(api)) : SERVE_CALLS_TAGGED;
    syntax->in_recipient = serve_syntax_in_recipient(syntax->calls, prompt->bytes, prompt->n);
    if (!chat->tools) {
        syntax->calls &= SERVE_CALLS_RECIPIENT;
        return;
    }
    if (!(syntax->calls & (SERVE_CALLS_BARE | SERVE_CALLS_MESSAGE | SERVE_CALLS_RECIPIENT)))
        syntax->calls |= SERVE_CALLS_WHOLE;
    syntax->names = serve_alloc(json_array_size(chat->tools), sizeof *syntax->names);
    syntax->texts = serve_alloc(json_array_size(chat->tools), sizeof *syntax->texts);
    json_array_foreach(chat->tools, i, tool)
    {
        syntax->texts[syntax->n_names] = serve_text_parameters(tool);
        syntax->names[syntax->n_names++] = strdup(serve_tool_name(tool));
    }
}
