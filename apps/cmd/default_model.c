/* The model of a command without -m: what lies in the folder of models, beside the executable or under the prefix it is installed
 * in. Commands that answer people take the one real model there; the others take the small one that comes with butler. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "cmd.h"

#define DEFAULT_MODEL "butler-default.gguf"

static const char *const folders[] = {"models", "../models", "../share/butler"};

bool cmd_find_model_file(const char *name, char *path, size_t n_path)
{
    return butler_find_file(name, folders, BUTLER_COUNT(folders), path, n_path);
}

/* NAME.gguf, but no predictor or query centres, no later part of a model in several files, and not the small model. */
static bool is_real_model(const char *name)
{
    const size_t n = strlen(name);
    const char *of = strstr(name, "-of-");
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0 && name[0] != '.' && strcmp(name, DEFAULT_MODEL) != 0 &&
           !strstr(name, ".tokenbutler.gguf") && !strstr(name, ".tokenbutler2.gguf") && !strstr(name, ".centres.gguf") &&
           (!of || of - name < 6 || memcmp(of - 6, "-00001", 6) == 0);
}

/* Appends the real models of a folder to *names, a line each; returns how many there are. path: the last one. */
static int list_models(const char *folder, struct butler_buffer *names, char *path, size_t n_path)
{
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, NULL, alphasort);
    int found = 0;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        char file[PATH_MAX];
        if (is_real_model(name) && snprintf(file, sizeof file, "%s/%s", folder, name) < (int)sizeof file &&
            access(file, R_OK) == 0) {
            found++;
            snprintf(path, n_path, "%s", file);
            cmd_append(names, "\n  ", 3);
            cmd_append(names, file, strlen(file));
        }
        free(entries[i]);
    }
    free(entries);
    return found;
}

/* The one real model; NULL after a message: there is none, or several. */
static char *find_real_model(const struct cmd_options *options)
{
    struct butler_buffer names = {0};
    char folder[PATH_MAX], path[PATH_MAX] = "";
    int n = 0;
    for (int i = 0; i < BUTLER_COUNT(folders) && n == 0; i++)
        if (butler_find_file(".", &folders[i], 1, folder, sizeof folder)) {
            folder[strlen(folder) - 2] = '\0';
            n = list_models(folder, &names, path, sizeof path);
        }
    cmd_append(&names, "", 1);
    if (n == 0)
        cmd_say(options, "no -m, and no model is in a folder models beside the command or in share/butler under its prefix: "
                         "`./setup --model smollm2` (98 MB) or `./setup --model "
                         "qwen2.5-coder-0.5b` (491 MB), in butler's source folder, fetches one; -m FILE names any other");
    else if (n > 1)
        cmd_say(options, "no -m, and there are %d models; name one with -m FILE:%s", n, names.bytes);
    butler_buffer_free(&names);
    return n == 1 ? cmd_copy(path) : NULL;
}

int cmd_choose_model(struct cmd_options *options)
{
    char path[PATH_MAX];
    if (options->model)
        return CMD_DONE;
    if (options->command->answers) {
        options->found_model = find_real_model(options);
    } else if (cmd_find_model_file(DEFAULT_MODEL, path, sizeof path)) {
        options->found_model = cmd_copy(path);
    } else {
        cmd_say(options, "no -m, and no " DEFAULT_MODEL " in a folder models beside the command or in share/butler under its "
                         "prefix; name a model with -m FILE");
    }
    if (!options->found_model)
        return CMD_USAGE;
    options->model = options->found_model;
    cmd_say(options, "no -m: the model is %s", options->model);
    return CMD_DONE;
}
