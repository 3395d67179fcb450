/* The format of a conversation: the Jinja program of the model's file, of a file that --chat-template names, or one of those here,
 * for models whose file has none. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"

/* Of a conversation that begins with a system message `before_user` is what its first user message begins with. */
#define SYSTEM_IN_USER(before, after)                                                                                              \
    "{% set ns = namespace(before='') %}{% for m in messages %}{% if m.role == 'system' %}"                                        \
    "{% set ns.before = '" before "' + m.content + '" after "' %}"

static const struct cmd_named_template {
    const char *name, *jinja;
    const char *stop; /* text that ends an answer where no token does; NULL: none */
} named[] = {
    {.name = "chatml",
     .jinja = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {.name = "llama3",
     .jinja = "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {.name = "llama2",
     .jinja = SYSTEM_IN_USER(
         "<<SYS>>\\n",
         "\\n<</SYS>>\\n\\n") "{% elif m.role == 'user' %}{{ '[INST] ' + ns.before + m.content + ' [/INST]' }}{% set ns.before = "
                              "'' %}"
                              "{% else %}{{ ' ' + m.content | trim + ' ' + eos_token + bos_token }}{% endif %}{% endfor %}"},
    {.name = "mistral",
     .jinja = SYSTEM_IN_USER(
         "", "\\n\\n") "{% elif m.role == 'user' %}{{ '[INST] ' + ns.before + m.content + ' [/INST]' }}{% set ns.before = '' %}"
                       "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"},
    {.name = "mistral-v3",
     .jinja = SYSTEM_IN_USER(
         "", "\\n\\n") "{% elif m.role == 'user' %}{{ '[INST] ' + ns.before + m.content + '[/INST]' }}{% set ns.before = '' %}"
                       "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"},
    {.name = "phi3",
     .jinja = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {.name = "zephyr",
     .jinja = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {.name = "deepseek",
     .jinja = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
              "{{ '<｜User｜>' + m.content }}{% else %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"},
    {.name = "vicuna",
     .jinja = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}{% elif m.role == 'user' %}"
              "{{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT: ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"},
    {.name = "plain",
     .jinja = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n' }}{% elif m.role == 'user' %}"
              "{{ 'User: ' + m.content + '\\n' }}{% else %}{{ 'Assistant:' + m.content + '\\n' }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
     .stop = "\nUser:"},
};
enum { N_NAMED = sizeof named / sizeof *named };

static bool use_named(struct cmd_template *template, const char *name)
{
    for (int i = 0; i < N_NAMED; i++)
        if (strcmp(named[i].name, name) == 0) {
            template->jinja = named[i].jinja;
            template->stop = named[i].stop;
            return true;
        }
    return false;
}

/* --------------------------------------------------------------------------------------------------- render */

int cmd_template_render(const struct cmd_template *template, const struct butler_model *model,
                        const struct butler_chat_message *messages, size_t n, struct butler_chat_text *text,
                        struct butler_error *err)
{
    const struct butler_chat_options options = {.jinja = template->jinja, .add_generation_prompt = true};
    if (!template->system_in_user || n < 2 || strcmp(messages[0].role, "system") != 0)
        return butler_chat_render(model, messages, n, &options, text, err);
    struct butler_chat_message *merged = cmd_alloc(n - 1, sizeof *merged);
    struct butler_buffer first = {0};
    memcpy(merged, messages + 1, (n - 1) * sizeof *merged);
    cmd_append(&first, messages[0].content, strlen(messages[0].content));
    cmd_append(&first, "\n\n", 2);
    cmd_append(&first, messages[1].content, strlen(messages[1].content) + 1);
    merged[0].content = first.bytes;
    const int rc = butler_chat_render(model, merged, n - 1, &options, text, err);
    butler_buffer_free(&first);
    free(merged);
    return rc;
}

/* ----------------------------------------------------------------------------------------------------- choose */

/* Whether the template renders a conversation, with a system message where with_system is set. */
static bool renders(const struct cmd_template *template, const struct butler_model *model, bool with_system,
                    struct butler_error *err)
{
    static const struct butler_chat_message messages[] = {{.role = "system", .content = "Be kind."},
                                                          {.role = "user", .content = "Hello"},
                                                          {.role = "assistant", .content = "Hello."},
                                                          {.role = "user", .content = "Bye"}};
    const char *jinja = template->jinja ? template->jinja : butler_model_get_info(model)->chat_template;
    struct butler_chat_text text;
    if (jinja && !strstr(jinja, "{{") && !strstr(jinja, "{%")) {
        *err = (struct butler_error){BUTLER_ERROR_FORMAT, "the chat template has no tags, so that no message is in its text"};
        return false;
    }
    if (cmd_template_render(template, model, messages + !with_system, 4 - !with_system, &text, err) < 0)
        return false;
    butler_chat_text_free(&text);
    return true;
}

bool cmd_template_works(const struct butler_model *model, struct butler_error *err)
{
    return renders(&(struct cmd_template){0}, model, false, err);
}

/* The template that --chat-template asks for, or the model's own. */
static int find(const struct cmd_options *options, const struct butler_model *model, struct cmd_template *template)
{
    const char *wanted = options->chat_template;
    char names[256];
    size_t n = 0;
    if (!wanted) {
        if (!butler_model_get_info(model)->chat_template)
            use_named(template, "plain");
        return CMD_DONE;
    }
    if (use_named(template, wanted))
        return CMD_DONE;
    if (access(wanted, R_OK) != 0) {
        for (int i = 0; i < N_NAMED; i++)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s, ", named[i].name);
        cmd_say(options, "--chat-template: '%s' is not allowed; it takes %sor a file that can be read", wanted, names);
        return CMD_USAGE;
    }
    const int status = cmd_file_read(options, wanted, &template->file);
    cmd_append(&template->file, "", 1);
    template->jinja = template->file.bytes;
    return status;
}

int cmd_template_choose(const struct cmd_options *options, const struct butler_model *model, struct cmd_template *template)
{
    const bool with_system = options->system && *options->system;
    struct butler_error err = {0}, other = {0};
    *template = (struct cmd_template){0};
    const int status = find(options, model, template);
    if (status != CMD_DONE || renders(template, model, with_system, &err))
        return status;
    if (with_system && renders(template, model, false, &other)) {
        cmd_say(options, "note: %s; --system-prompt goes into the first turn", err.message);
        template->system_in_user = true;
        return CMD_DONE;
    }
    if (options->chat_template) {
        cmd_say(options, "--chat-template %s: %s", options->chat_template, err.message);
        return err.code == BUTLER_ERROR_ARGUMENT ? CMD_USAGE : CMD_FAILED;
    }
    cmd_say(options, "warning: the model's template cannot be used, chatml is used instead: %s", err.message);
    use_named(template, "chatml");
    return renders(template, model, with_system, &err) ? CMD_DONE : cmd_fail(options, &err);
}

void cmd_template_free(struct cmd_template *template)
{
    butler_buffer_free(&template->file);
}
