/* butler library: the texts that were read, and what keeping them takes. */
#include <string.h>
#include <time.h>

#include "cmd.h"

static json_t *json_of(const struct butler_library_entry *entry)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)entry->model_fingerprint);
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:o, s:s, s:s, s:s, s:b, s:o, s:o}", "id", entry->id, "tokens", entry->n_tokens,
                     "bytes", (json_int_t)entry->bytes, "shared", (json_int_t)entry->shared, "used",
                     (json_int_t)(entry->used_ns / 1000000000), "model", cmd_json_text(entry->model, strlen(entry->model)),
                     "fingerprint", fingerprint, "kv_type", cmd_kv_type_name((enum butler_kv_type)entry->kv_type), "isa",
                     entry->isa, "broken", (int)entry->broken, "text", cmd_json_text(entry->text, strlen(entry->text)), "end",
                     cmd_json_text(entry->end, strlen(entry->end)));
}

/* The beginning of a text on one line. */
static const char *line_of(const char *text, char *out, size_t n_out)
{
    char flat[160];
    size_t n = 0;
    for (const char *at = text; *at && n + 1 < sizeof flat; at++) {
        const char c = *at == '\n' || *at == '\t' ? ' ' : *at;
        if (c != ' ' || (n > 0 && flat[n - 1] != ' '))
            flat[n++] = c;
    }
    return cmd_plain(out, n_out, flat, n);
}

static bool show(void *user, const struct butler_library_entry *entry)
{
    const struct cmd_options *options = user;
    char size[32], when[32] = "?", line[700], model[300];
    const time_t used = (time_t)(entry->used_ns / 1000000000);
    struct tm tm;
    if (options->json) {
        cmd_row(json_of(entry));
        return true;
    }
    if (localtime_r(&used, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    cmd_printf("%.12s  %7d tokens  %8s  %s  %s %s%s\n    %s\n", entry->id, entry->n_tokens,
               cmd_bytes(size, sizeof size, entry->bytes), when, line_of(entry->model, model, sizeof model),
               cmd_kv_type_name((enum butler_kv_type)entry->kv_type), entry->broken ? "  (its beginning is gone)" : "",
               line_of(entry->text, line, sizeof line));
    return true;
}

struct sum {
    int n;
};

static bool count(void *user, const struct butler_library_entry *entry)
{
    (void)entry;
    ((struct sum *)user)->n++;
    return true;
}

static int say_info(const struct cmd_options *options, struct butler_library *library, struct butler_error *err)
{
    struct butler_library_info info = {BUTLER_INIT(butler_library_info)};
    struct sum sum = {0};
    char bytes[32], most[32];
    const int n = butler_library_list(library, count, &sum, err);
    if (n < 0)
        return cmd_fail(options, err);
    butler_library_get_info(library, &info);
    if (options->json)
        cmd_row(json_pack("{s:o, s:i, s:I, s:I}", "folder", cmd_json_text(info.folder, strlen(info.folder)), "texts", n, "bytes",
                          (json_int_t)info.bytes, "max_bytes", (json_int_t)info.max_bytes));
    else
        cmd_printf("%s: %d text%s, %s of at most %s%s\n", info.folder, n, n == 1 ? "" : "s",
                   cmd_bytes(bytes, sizeof bytes, info.bytes), cmd_bytes(most, sizeof most, info.max_bytes),
                   options->cache_bytes ? "" : " (a tenth of the free bytes of its disk; --cache-size)");
    return CMD_DONE;
}

static int remove_texts(const struct cmd_options *options, struct butler_library *library, struct butler_error *err)
{
    int n = 0;
    if (options->all == (options->positional.n > 1)) {
        cmd_say(options, "remove takes the ids of texts (`butler library list`), or --all");
        return CMD_USAGE;
    }
    for (int i = 1; i < options->positional.n || (options->all && i == 1); i++) {
        const int removed = butler_library_remove(library, options->all ? NULL : options->positional.values[i], err);
        if (removed < 0)
            return cmd_fail(options, err);
        n += removed;
    }
    cmd_say(options, "%d text%s removed", n, n == 1 ? "" : "s");
    return CMD_DONE;
}

static int verify(const struct cmd_options *options, struct butler_library *library, struct butler_error *err)
{
    const int n = butler_library_verify(library, err);
    if (n < 0)
        return cmd_fail(options, err);
    cmd_say(options,
            n ? "%d files were damaged and are removed; their texts are read again when they are needed" : "all files are whole",
            n);
    return n ? CMD_FAILED : CMD_DONE;
}

static int export(const struct cmd_options *options, struct butler_library *library, struct butler_error *err)
{
    if (options->positional.n != 2 || !options->output) {
        cmd_say(options, "export takes the id of one text and -o FOLDER, which `--cache FOLDER` then uses");
        return CMD_USAGE;
    }
    if (butler_library_export(library, options->positional.values[1], NULL, err) < 0) /* before a folder is made */
        return cmd_fail(options, err);
    struct cmd_options target = *options;
    target.cache = options->output;
    struct butler_library *to = cmd_library_open(&target, err);
    const int n = to ? butler_library_export(library, options->positional.values[1], to, err) : -1;
    butler_library_free(to);
    if (n < 0)
        return cmd_fail(options, err);
    cmd_say(options, "%d files written to %s", n, options->output);
    return CMD_DONE;
}

static int run(struct cmd_options *options)
{
    const char *what = options->positional.n ? options->positional.values[0] : "list";
    struct butler_error err = {0};
    int status = CMD_USAGE;
    struct butler_library *library = cmd_library_open(options, &err);
    if (!library)
        return cmd_fail(options, &err);
    if (options->positional.n > 1 && (strcmp(what, "list") == 0 || strcmp(what, "info") == 0 || strcmp(what, "verify") == 0)) {
        cmd_say(options, "%s takes no '%s'", what, options->positional.values[1]);
    } else if (options->all && strcmp(what, "remove") != 0) {
        cmd_say(options, "--all belongs to remove");
    } else if (options->output && strcmp(what, "export") != 0) {
        cmd_say(options, "-o belongs to export");
    } else if (strcmp(what, "list") == 0)
        status = butler_library_list(library, show, options, &err) < 0 ? cmd_fail(options, &err) : CMD_DONE;
    else if (strcmp(what, "info") == 0)
        status = say_info(options, library, &err);
    else if (strcmp(what, "remove") == 0)
        status = remove_texts(options, library, &err);
    else if (strcmp(what, "verify") == 0)
        status = verify(options, library, &err);
    else if (strcmp(what, "export") == 0)
        status = export(options, library, &err);
    else
        cmd_say(options, "'%s' is none of list, info, remove, verify, export", what);
    butler_library_free(library);
    return status;
}

static const struct cmd_use uses[] = {
    {CMD_CACHE, NULL}, {CMD_CACHE_SIZE, "0"}, {CMD_ALL, NULL},  {CMD_OUTPUT, NULL},
    {CMD_JSON, NULL},  {CMD_HELP, NULL},      {CMD_NONE, NULL},
};

const struct cmd_command cmd_library = {
    .name = "library",
    .synopsis = "[list | info | remove ID... | remove --all | verify | export ID -o FOLDER] [FLAGS]",
    .summary = "texts that were read and are kept",
    .details =
        "list    the texts, the latest used first: id, tokens, bytes, last use, model, KV type, and how the text begins. Texts\n"
        "        that begin alike share files.\n"
        "info    the folder, its size and its limit.\n"
        "remove  the text whose id begins so, or --all; what other texts share stays.\n"
        "verify  reads all files and compares them with their checksums; removes what is damaged. Exit status 1 if something was.\n"
        "export  copies one text into another folder, which other machines with the same kernels can use (--cache).\n\n"
        "A text is kept for a model's file, a KV type and a set of kernels (--isa), whatever the policy; no other model uses it.\n"
        "--json: a row for each text, {\"id\", \"tokens\", \"bytes\", \"shared\", \"used\", \"model\", \"fingerprint\", "
        "\"kv_type\", "
        "\"isa\",\n\"broken\", \"text\", \"end\"}; info: {\"folder\", \"texts\", \"bytes\", \"max_bytes\"}.\n",
    .uses = uses,
    .max_positional = CMD_MAX_POSITIONAL,
    .run = run,
};
