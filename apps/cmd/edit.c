/* Editing of a line and its history by libedit. It knows no bracketed paste: a terminal in that mode puts ESC [200~ before a
 * pasted text and ESC [201~ behind it, and here the first is a key whose function takes all characters up to the second. */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cmd.h"

enum { N_HISTORY = 1000 };
#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"
#define PASTE_END L"\033[201~"

struct cmd_editor {
    EditLine *line;
    History *history;
    const char *prompt;
    mbstate_t state; /* of the bytes read so far */
    bool interrupted;
};

static struct cmd_editor *editor_of(EditLine *line)
{
    void *editor = NULL;
    el_get(line, EL_CLIENTDATA, &editor);
    return editor;
}

static char *prompt_of(EditLine *line)
{
    return (char *)editor_of(line)->prompt;
}

/* One character of the terminal. libedit's own would read on after Ctrl-C. */
static int read_character(EditLine *line, wchar_t *out)
{
    struct cmd_editor *editor = editor_of(line);
    for (;;) {
        char byte;
        cmd_interrupts_block(false);
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        const int error = errno;
        cmd_interrupts_block(true);
        if (n <= 0) {
            editor->interrupted = n < 0 && error == EINTR;
            return n == 0 ? 0 : -1;
        }
        const size_t size = mbrtowc(out, &byte, 1, &editor->state);
        if (size == (size_t)-2)
            continue; /* more bytes to come */
        if (size == (size_t)-1) {
            editor->state = (mbstate_t){0};
            *out = 0xFFFD;
        }
        return 1;
    }
}

struct wide {
    wchar_t *text;
    size_t n, capacity;
};

static void append(struct wide *wide, wchar_t c)
{
    if (wide->n == wide->capacity) {
        const size_t capacity = 2 * wide->capacity + 256;
        wchar_t *grown = cmd_alloc(capacity, sizeof *grown);
        if (wide->n)
            memcpy(grown, wide->text, wide->n * sizeof *grown);
        free(wide->text);
        *wide = (struct wide){grown, wide->n, capacity};
    }
    wide->text[wide->n++] = c;
}

static unsigned char paste(EditLine *line, int key)
{
    static const wchar_t end[] = PASTE_END;
    const size_t n_end = sizeof end / sizeof *end - 1;
    struct wide wide = {0};
    wchar_t c = 0, before = 0;
    bool complete = false;
    (void)key;
    while (!complete && el_wgetc(line, &c) == 1) {
        if (c && !(c == L'\n' && before == L'\r'))
            append(&wide, c == L'\r' ? L'\n' : c); /* terminals send the key Enter */
        before = c;
        complete = wide.n >= n_end && wmemcmp(wide.text + wide.n - n_end, end, n_end) == 0;
    }
    wide.n -= complete ? n_end : 0;
    append(&wide, 0);
    if (wide.n > 1)
        el_winsertstr(line, wide.text);
    free(wide.text);
    return complete ? CC_REFRESH : CC_EOF;
}

struct cmd_editor *cmd_editor_open(void)
{
    struct cmd_editor *editor = cmd_alloc(1, sizeof *editor);
    HistEvent event;
    /* Characters of several bytes, also where no language is set. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    editor->line = el_init("butler", stdin, stderr, stderr);
    editor->history = history_init();
    if (!editor->line || !editor->history) {
        cmd_editor_close(editor);
        return NULL;
    }
    history(editor->history, &event, H_SETSIZE, N_HISTORY);
    history(editor->history, &event, H_SETUNIQUE, 1);
    el_set(editor->line, EL_CLIENTDATA, editor);
    el_set(editor->line, EL_EDITOR, "emacs");
    el_set(editor->line, EL_PROMPT, prompt_of);
    el_set(editor->line, EL_HIST, history, editor->history);
    el_set(editor->line, EL_GETCFN, read_character);
    el_source(editor->line, NULL);                                                     /* ~/.editrc */
    el_wset(editor->line, EL_ADDFN, L"butler-paste", L"Inserts a pasted text", paste); /* el_set would copy and never free */
    el_set(editor->line, EL_BIND, "\\e[200~", "butler-paste", NULL);
    return editor;
}

int cmd_editor_read(struct cmd_editor *editor, const char *prompt, struct butler_buffer *line)
{
    HistEvent event;
    int n = 0;
    editor->prompt = prompt;
    editor->interrupted = false;
    editor->state = (mbstate_t){0};
    fputs(PASTE_ON, stderr);
    el_resize(editor->line);
    const char *text = el_gets(editor->line, &n);
    fputs(PASTE_OFF, stderr);
    fflush(stderr);
    if (!text || n <= 0) {
        if (editor->interrupted) /* what was typed goes, and the terminal back to its own mode */
            el_reset(editor->line);
        errno = editor->interrupted ? EINTR : 0;
        return -1;
    }
    cmd_append(line, text, strlen(text));
    if (strspn(text, " \n") < strlen(text))
        history(editor->history, &event, H_ENTER, text);
    return 0;
}

void cmd_editor_close(struct cmd_editor *editor)
{
    if (!editor)
        return;
    if (editor->line)
        el_end(editor->line);
    if (editor->history)
        history_end(editor->history);
    free(editor);
}
