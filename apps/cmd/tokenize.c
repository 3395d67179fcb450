/* butler tokenize: the token ids of a text. */
#include <string.h>

#include "cmd.h"

/* The token's bytes on one line: control characters, quotes and bytes that are not UTF-8 are escaped. */
static void print_piece(const char *bytes, size_t n)
{
    json_t *text = json_stringn(bytes, n);
    if (text) {
        char *escaped = json_dumps(text, JSON_ENCODE_ANY);
        if (escaped) {
            cmd_out(escaped, strlen(escaped));
            free(escaped);
        }
        json_decref(text);
        return;
    }
    cmd_out("\"", 1);
    for (size_t i = 0; i < n; i++)
        cmd_printf("\\x%02x", (unsigned char)bytes[i]);
    cmd_out("\"", 1);
}

static int print_ids(const struct cmd_options *options, const struct butler_model *model, const struct cmd_integers *ids)
{
    if (options->json) {
        json_t *list = json_array();
        for (int i = 0; i < ids->n; i++)
            json_array_append_new(list, json_integer(ids->values[i]));
        cmd_row(json_pack("{s:o}", "ids", list));
        return CMD_DONE;
    }
    for (int i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *bytes = butler_token_bytes(model, ids->values[i], &n);
        cmd_printf("%d\t", ids->values[i]);
        print_piece(bytes ? bytes : "", bytes ? n : 0);
        cmd_out("\n", 1);
    }
    return CMD_DONE;
}

static int run(struct cmd_options *options)
{
    struct butler_buffer text = {0};
    struct butler_model *model = NULL;
    int status = cmd_text_read(options, &text);
    if (status != CMD_DONE)
        goto done;
    model = cmd_vocabulary_load(options, &status);
    if (!model)
        goto done;
    int flags = options->no_special ? 0 : BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL;
    status = cmd_tokenize_text(options, model, text.bytes, text.n, flags, &options->ids);
    if (status == CMD_DONE)
        status = print_ids(options, model, &options->ids);
done:
    butler_model_free(model);
    butler_buffer_free(&text);
    return status;
}

static const struct cmd_use uses[] = {{CMD_MODEL, NULL},      {CMD_PRE, NULL},  {CMD_PROMPT, NULL}, {CMD_FILE, NULL},
                                      {CMD_NO_SPECIAL, NULL}, {CMD_JSON, NULL}, {CMD_HELP, NULL},   {CMD_NONE, NULL}};

const struct cmd_command cmd_tokenize = {
    .name = "tokenize",
    .synopsis = "[-m FILE] (-p TEXT | -f FILE) [--no-special] [--json]",
    .summary = "the tokens of a text",
    .details = "Prints one token a line: its id, a tab, and its bytes as a quoted string (\\xNN where they are not UTF-8 by\n"
               "themselves; empty for control tokens). The bytes of the text are taken as they are, a final newline included.\n"
               "The file of -m may be a vocabulary alone, without weights.\n\n"
               "With --json one row: {\"ids\": [...]}.\n",
    .uses = uses,
    .run = run,
};
