/* Formats of conversations. A model file has its format as a Jinja program; instead of running it we recognise the well-known
 * ones by markers that they contain, and format the turns here. */
#include <string.h>

#include "cmd.h"

/* Order matters: the first whose markers are all present is taken, so the more specific one comes first. */
static const struct cmd_template templates[] = {
    {.name = "chatml",
     .markers = {"<|im_start|>"},
     .system_before = "<|im_start|>system\n",
     .system_after = "<|im_end|>\n",
     .user_before = "<|im_start|>user\n",
     .user_after = "<|im_end|>\n<|im_start|>assistant\n",
     .answer_after = "<|im_end|>\n"},
    {.name = "llama3",
     .markers = {"<|start_header_id|>", "<|eot_id|>"},
     .system_before = "<|start_header_id|>system<|end_header_id|>\n\n",
     .system_after = "<|eot_id|>",
     .user_before = "<|start_header_id|>user<|end_header_id|>\n\n",
     .user_after = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     .answer_after = "<|eot_id|>"},
    {.name = "llama2",
     .markers = {"[INST]", "<<SYS>>"},
     .system_before = "<<SYS>>\n",
     .system_after = "\n<</SYS>>\n\n",
     .system_inside = true,
     .user_before = "[INST] ",
     .user_after = " [/INST]",
     .answer_after = " </s><s>"},
    {.name = "mistral-v3",
     .markers = {"[INST]", "[AVAILABLE_TOOLS]"},
     .system_before = "",
     .system_after = "\n\n",
     .system_inside = true,
     .user_before = "[INST] ",
     .user_after = "[/INST]",
     .answer_after = "</s>"},
    {.name = "mistral",
     .markers = {"[INST]"},
     .system_before = "",
     .system_after = "\n\n",
     .system_inside = true,
     .user_before = "[INST] ",
     .user_after = " [/INST]",
     .answer_after = "</s> "},
    {.name = "phi3",
     .markers = {"<|assistant|>", "<|end|>"},
     .system_before = "<|system|>\n",
     .system_after = "<|end|>\n",
     .user_before = "<|user|>\n",
     .user_after = "<|end|>\n<|assistant|>\n",
     .answer_after = "<|end|>\n"},
    {.name = "zephyr",
     .markers = {"<|user|>", "<|assistant|>", "eos_token"},
     .system_before = "<|system|>\n",
     .system_after = "{eos}\n",
     .user_before = "<|user|>\n",
     .user_after = "{eos}\n<|assistant|>\n",
     .answer_after = "{eos}\n"},
    {.name = "deepseek",
     .markers = {"<｜User｜>", "<｜Assistant｜>"},
     .system_before = "",
     .system_after = "",
     .user_before = "<｜User｜>",
     .user_after = "<｜Assistant｜>",
     .answer_after = "<｜end▁of▁sentence｜>"},
    {.name = "vicuna",
     .markers = {"USER: ", "ASSISTANT:"},
     .system_before = "",
     .system_after = " ",
     .user_before = "USER: ",
     .user_after = " ASSISTANT:",
     .answer_after = "</s>"},
    {.name = "plain",
     .markers = {NULL},
     .system_before = "",
     .system_after = "\n",
     .user_before = "User: ",
     .user_after = "\nAssistant:",
     .answer_after = "\n",
     .stop = "\nUser:"},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const struct cmd_template *cmd_template_find(const char *name)
{
    for (int i = 0; i < N_TEMPLATES; i++)
        if (strcmp(templates[i].name, name) == 0)
            return &templates[i];
    return NULL;
}

const struct cmd_template *cmd_template_recognise(const char *jinja)
{
    enum { MAX_MARKERS = sizeof templates->markers / sizeof *templates->markers };
    for (int i = 0; i < N_TEMPLATES; i++) {
        int m = 0;
        while (m < MAX_MARKERS && templates[i].markers[m] && strstr(jinja, templates[i].markers[m]))
            m++;
        if (m > 0 && (m == MAX_MARKERS || !templates[i].markers[m]))
            return &templates[i];
    }
    return NULL;
}

void cmd_template_names(char *out, size_t n_out)
{
    size_t n = 0;
    for (int i = 0; i < N_TEMPLATES && n < n_out; i++)
        n += (size_t)snprintf(out + n, n_out - n, "%s%s", i ? ", " : "", templates[i].name);
}

static void append(struct cmd_text *out, const char *piece, const char *eos)
{
    const char *mark;
    while ((mark = strstr(piece, "{eos}"))) {
        cmd_text_append(out, piece, (size_t)(mark - piece));
        cmd_text_append(out, eos, strlen(eos));
        piece = mark + strlen("{eos}");
    }
    cmd_text_append(out, piece, strlen(piece));
}

void cmd_template_turn(const struct cmd_template *template, const char *eos, bool first, const char *system, const char *user,
                       struct cmd_text *out)
{
    bool with_system = first && system && *system;
    if (!first)
        append(out, template->answer_after, eos);
    if (with_system && template->system_inside)
        append(out, template->user_before, eos);
    if (with_system) {
        append(out, template->system_before, eos);
        cmd_text_append(out, system, strlen(system));
        append(out, template->system_after, eos);
    }
    if (!with_system || !template->system_inside)
        append(out, template->user_before, eos);
    cmd_text_append(out, user, strlen(user));
    append(out, template->user_after, eos);
}
