/* A conversation: the body of a request is read once into struct serve_chat, from which the prompt, the syntax of answers and their
 * grammar are made. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* The text of "content" that is no string: the text parts of an array, joined; null stays NULL. To be freed. */
static char *read_content(json_t *message, struct serve_error *error)
{
    json_t *content = json_object_get(message, "content");
    struct butler_buffer text = {0};
    size_t i;
    json_t *part;
    if (!content || json_is_null(content))
        return NULL;
    if (!json_is_array(content))
        serve_fail(error, 400, "'content' of a message must be a string or an array of parts");
    json_array_foreach(json_is_array(content) ? content : NULL, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *words = json_object_get(part, "text");
        if (!json_is_string(type))
            serve_fail(error, 400, "a part of 'content' must have a string 'type'");
        else if (strcmp(json_string_value(type), "text") != 0)
            serve_fail(error, 400, "'content' has a part of type '%.64s', which is not supported by this server",
                       json_string_value(type));
        else if (!json_is_string(words))
            serve_fail(error, 400, "a text part of 'content' must have a string 'text'");
        else
            serve_text_append(&text, json_string_value(words), json_string_length(words));
    }
    serve_text_append(&text, "", 1);
    return text.bytes;
}

/* What each message has beside role and content. A new reference. */
static json_t *read_fields(json_t *messages)
{
    json_t *fields = json_array(), *message;
    size_t i;
    json_array_foreach(messages, i, message)
    {
        json_t *rest = json_copy(message);
        json_object_del(rest, "role");
        json_object_del(rest, "content");
        json_array_append_new(fields, rest);
    }
    return fields;
}

/* Appends bytes that the template did not write: in them special tokens are not read. */
static void append_plain(struct butler_chat_text *text, const char *bytes)
{
    const size_t n = strlen(bytes);
    if (n == 0)
        return;
    struct butler_chat_text grown = {.bytes = serve_alloc(text->n + n + 1, 1),
                                     .n = text->n + n,
                                     .segments = serve_alloc(text->n_segments + 1, sizeof *grown.segments),
                                     .n_segments = text->n_segments + 1};
    if (text->n)
        memcpy(grown.bytes, text->bytes, text->n);
    if (text->n_segments)
        memcpy(grown.segments, text->segments, text->n_segments * sizeof *grown.segments);
    memcpy(grown.bytes + text->n, bytes, n);
    grown.segments[text->n_segments] = (struct butler_chat_segment){.offset = text->n, .n = n};
    butler_chat_text_free(text);
    *text = grown;
}

/* OpenAI's other names for the system and for tools: a template that does not know them would leave such a message out. */
static const char *role_for(const struct serve_api *api, const char *role)
{
    if (strcmp(role, "developer") == 0)
        return strstr(serve_chat_template(api), role) ? role : "system";
    return strcmp(role, "function") == 0 ? "tool" : role;
}

/* The field function_call, which tool_calls came after, as one of these: no template knows it. */
static void take_function_call(json_t *message, size_t i, struct serve_error *error)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *call = json_object_get(message, "function_call");
    if (json_is_object(call) && (!calls || json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)))
        json_object_set_new(message, "tool_calls", json_pack("[{s:s, s:O}]", "type", "function", "function", call));
    else if (call && !json_is_object(call) && !json_is_null(call))
        serve_fail(error, 400, "'messages[%zu].function_call' must be an object", i);
    json_object_del(message, "function_call");
}

static bool is_systems(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

/* Makes one message of those of the system that the conversation begins with: templates take the first, and refuse others or leave
 * them out. */
static void join_systems(json_t *messages)
{
    json_t *first = json_array_get(messages, 0), *next;
    while (is_systems(first) && is_systems(next = json_array_get(messages, 1))) {
        const char *a = json_string_value(json_object_get(first, "content")),
                   *b = json_string_value(json_object_get(next, "content"));
        a = a ? a : ""; /* null beside calls */
        b = b ? b : "";
        json_object_set_new(first, "content", json_sprintf("%s%s%s", a, *a && *b ? "\n\n" : "", b));
        json_array_remove(messages, 1);
    }
}

/* The messages with contents that are texts; NULL: *error. A new reference. */
static json_t *read_messages(const struct serve_api *api, json_t *list, struct serve_error *error)
{
    json_t *messages = json_array(), *message;
    size_t i;
    json_array_foreach(list, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role) {
            serve_fail(error, 400, "'messages[%zu]' must be an object with a string 'role'", i);
            break;
        }
        message = json_copy(message);
        json_array_append_new(messages, message);
        take_function_call(message, i, error);
        if (serve_check_calls(message, i, error) < 0)
            break;
        json_object_set_new(message, "role", json_string(role_for(api, role)));
        serve_join_reasoning(message);
        if (!json_is_string(json_object_get(message, "content"))) {
            char *content = read_content(message, error);
            const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
            json_object_set_new(message, "content", content || !calls ? json_string(content ? content : "") : json_null());
            free(content);
        }
    }
    if (!error->status) {
        join_systems(messages);
        return messages;
    }
    json_decref(messages);
    return NULL;
}

/* What else the template is given. */
static void read_options(json_t *body, struct serve_chat *chat, struct serve_error *error)
{
    json_t *kwargs = json_object_get(body, "chat_template_kwargs"), *format = json_object_get(body, "reasoning_format");
    const char *wanted = json_string_value(format);
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        serve_fail(error, 400, "'chat_template_kwargs' must be an object");
    chat->variables = json_object_size(kwargs) ? kwargs : NULL;
    chat->generation_prompt = serve_read_bool(body, "add_generation_prompt", true, error);
    chat->one_call = !serve_read_bool(body, "parallel_tool_calls", true, error);
    chat->no_reasoning = wanted && strcmp(wanted, "none") == 0;
    if (!serve_is_neutral(format) && !chat->no_reasoning && !error->status &&
        (!wanted || (strcmp(wanted, "deepseek") != 0 && strcmp(wanted, "auto") != 0)))
        serve_fail(error, 400, "'reasoning_format' must be none, deepseek or auto");
}

int serve_read_chat(const struct serve_api *api, json_t *body, struct serve_chat *chat, struct serve_error *error)
{
    json_t *list = json_object_get(body, "messages");
    *chat = (struct serve_chat){0};
    if (serve_refuse_unsupported(body, error) < 0)
        return -error->status;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return serve_fail(error, 400, "'messages' must be an array with at least one message");
    chat->left_out = json_array();
    if (serve_read_tools(body, &chat->tools, &chat->choice, chat->left_out, error) < 0 || !(list = read_messages(api, list, error)))
        return -error->status;
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    chat->begun = role && strcmp(role, "assistant") == 0 && json_array_size(json_object_get(last, "tool_calls")) == 0;
    chat->messages = serve_tool_messages(api, list, chat->tools);
    json_decref(list);
    read_options(body, chat, error);
    return -error->status;
}

void serve_chat_free(struct serve_chat *chat)
{
    json_decref(chat->messages);
    json_decref(chat->left_out);
}

/* Many templates leave out what the system says behind other messages: an answer that lacks it would be wrong. A text that the
 * prompt does not have as it is may be there in another form, and then the prompt without it is another. */
static void check_systems(const struct serve_api *api, struct butler_chat_message *messages, size_t n,
                          const struct butler_chat_options *options, const struct butler_chat_text *text, struct serve_error *error)
{
    for (size_t i = 1; i < n && !error->status; i++) {
        const char *content = messages[i].content, *at = content ? content + strspn(content, " \n\r\t") : "";
        size_t length = strlen(at);
        while (length > 0 && strchr(" \n\r\t", at[length - 1]))
            length--;
        if (strcmp(messages[i].role, "system") != 0 || length == 0 || memmem(text->bytes, text->n, at, length))
            continue;
        struct butler_chat_text without = {0};
        struct butler_error err = {0};
        messages[i].content = "";
        if (butler_chat_render(api->model, messages, n, options, &without, &err) == 0 && without.n == text->n &&
            memcmp(without.bytes, text->bytes, text->n) == 0)
            serve_fail(error, 400, "the chat template leaves out messages of the system behind others; give its text to the user");
        butler_chat_text_free(&without);
        messages[i].content = content;
    }
}

int serve_render_chat(const struct serve_api *api, const struct serve_chat *chat, struct butler_chat_text *text,
                      struct serve_error *error)
{
    const size_t n = json_array_size(chat->messages);
    struct butler_chat_message *messages = serve_alloc(n, sizeof *messages);
    json_t *rest = read_fields(chat->messages);
    struct butler_json *fields = serve_template_json(rest), *variables = serve_template_json(chat->variables),
                       *tools = serve_template_json(serve_template_tools(api, chat->tools));
    struct butler_error err = {0};
    *text = (struct butler_chat_text){0};
    for (size_t i = 0; i < n; i++) {
        json_t *message = json_array_get(chat->messages, i);
        messages[i] = (struct butler_chat_message){.role = json_string_value(json_object_get(message, "role")),
                                                   .content = json_string_value(json_object_get(message, "content"))};
    }
    const bool begun = chat->begun;
    const struct butler_chat_options options = {BUTLER_INIT(butler_chat_options),
                                                .jinja = api->config.chat_template,
                                                .add_generation_prompt = begun || chat->generation_prompt,
                                                .parsed_tools = tools,
                                                .parsed_variables = variables,
                                                .parsed_fields = fields->items};
    if (begun && n > 1 && strcmp(messages[n - 2].role, "assistant") == 0)
        serve_fail(error, 400, "the conversation ends with two messages of the assistant");
    else if (butler_chat_render(api->model, messages, begun ? n - 1 : n, &options, text, &err) < 0)
        serve_fail(error, 400, "%s", err.message);
    else {
        check_systems(api, messages, begun ? n - 1 : n, &options, text, error);
        if (error->status)
            butler_chat_text_free(text);
        else if (begun && messages[n - 1].content)
            append_plain(text, messages[n - 1].content);
    }
    json_decref(rest);
    free(fields);
    free(variables);
    free(tools);
    free(messages);
    return -error->status;
}

int serve_tokenize_chat(const struct serve_api *api, const struct serve_chat *chat, struct serve_syntax *syntax, int32_t **ids,
                        struct serve_error *error)
{
    struct butler_chat_text text;
    struct butler_error err = {0};
    int n;
    *ids = NULL;
    if (serve_render_chat(api, chat, &text, error) < 0)
        return -error->status;
    if (syntax) {
        serve_find_syntax(api, chat, &text, syntax);
        n = serve_tokenize_prompt(api, &text, true, 0, ids, error);
    } else { /* they are only counted, whether they fit or not */
        *ids = serve_alloc(1, sizeof **ids);
        n = butler_chat_tokenize(api->model, &text, 0, NULL, 0, &err);
    }
    butler_chat_text_free(&text);
    return n < 0 && !error->status ? serve_fail(error, 400, "%s", err.message) : n;
}
