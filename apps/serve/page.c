/* See page.h. The assembler takes the files as they are into the program. */
#include "serve/page.h"

#include <string.h>

#include "serve/http.h"

#define EMBED(name, path)                                                                                                          \
    extern const char name[], name##_end[];                                                                                        \
    __asm__(".pushsection .rodata\n.globl " #name ", " #name "_end\n.hidden " #name ", " #name "_end\n" #name ":\n.incbin \"" path \
            "\"\n" #name "_end:\n.popsection\n")

#define SCRIPTS(each)                                                                                                              \
    each(chat) each(conversation) each(dom) each(files) each(map) each(markdown) each(page) each(server) each(settings) each(store)
#define EMBED_SCRIPT(name) EMBED(serve_page_js_##name, "serve/page/" #name ".js");
#define SCRIPT_FILE(name)                                                                                                          \
    {"/page/" #name ".js", "text/javascript; charset=utf-8", serve_page_js_##name, serve_page_js_##name##_end},

EMBED(serve_page_html, "serve/page/index.html");
EMBED(serve_page_css, "serve/page/page.css");
SCRIPTS(EMBED_SCRIPT)

/* Nothing but the server itself is asked for anything, and no text of a model can run. */
static const char guard[] = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
                            "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                            "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n";

static const struct page_file {
    const char *path, *type, *begin, *end;
} files[] = {{"/", "text/html; charset=utf-8", serve_page_html, serve_page_html_end},
             {"/page/page.css", "text/css; charset=utf-8", serve_page_css, serve_page_css_end},
             SCRIPTS(SCRIPT_FILE)};

static const struct page_file *find_file(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(path, files[i].path) == 0)
            return &files[i];
    return NULL;
}

bool serve_page_has(const char *path)
{
    return strcmp(path, "/") == 0 || strncmp(path, "/page/", 6) == 0;
}

bool serve_page_reply(struct http_exchange *exchange)
{
    const bool is_read = strcmp(exchange->method, "GET") == 0 || strcmp(exchange->method, "HEAD") == 0;
    const struct page_file *file = is_read ? find_file(exchange->path) : NULL;
    if (file)
        http_reply(exchange, 200, file->type, guard, file->begin, (size_t)(file->end - file->begin));
    return file != NULL;
}
