/* Lines of standard input: from the editor on a terminal, as they are otherwise. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"

void cmd_lines_open(struct cmd_lines *lines)
{
    *lines = (struct cmd_lines){.terminal = isatty(STDIN_FILENO)};
    if (lines->terminal && isatty(STDERR_FILENO))
        lines->editor = cmd_editor_open();
}

/* As cmd_editor_read. */
static int read_plain(const struct cmd_lines *lines, const char *prompt, struct butler_buffer *line)
{
    char *bytes = NULL;
    size_t capacity = 0;
    if (lines->terminal)
        fputs(prompt, stderr);
    cmd_interrupts_block(false);
    errno = 0;
    const ssize_t n = getline(&bytes, &capacity, stdin);
    const int error = errno;
    cmd_interrupts_block(true);
    if (n >= 0)
        cmd_append(line, bytes, (size_t)n);
    else
        clearerr(stdin);
    free(bytes);
    errno = n < 0 && error == EINTR ? EINTR : 0;
    return n < 0 ? -1 : 0;
}

const char *cmd_line_read(struct cmd_lines *lines, const char *prompt)
{
    struct butler_buffer *line = &lines->line;
    for (;;) {
        line->n = 0;
        const int code = lines->editor ? cmd_editor_read(lines->editor, prompt, line) : read_plain(lines, prompt, line);
        if (code == 0)
            break;
        if (errno != EINTR) {
            if (lines->terminal)
                fputc('\n', stderr);
            return NULL;
        }
        fputs("\n(Ctrl-D ends the program)\n", stderr);
    }
    if (line->n && line->bytes[line->n - 1] == '\n')
        line->n--;
    if (line->n && line->bytes[line->n - 1] == '\r')
        line->n--;
    cmd_append(line, "", 1);
    return line->bytes;
}

void cmd_lines_close(struct cmd_lines *lines)
{
    cmd_editor_close(lines->editor);
    butler_buffer_free(&lines->line);
}
