/* In place of edit.c where there is no libedit: lines are those of the terminal. */
#include "cmd.h"

struct cmd_editor *cmd_editor_open(void)
{
    return NULL;
}

int cmd_editor_read(struct cmd_editor *editor, const char *prompt, struct butler_buffer *line)
{
    (void)editor;
    (void)prompt;
    (void)line;
    return -1;
}

void cmd_editor_close(struct cmd_editor *editor)
{
    (void)editor;
}
