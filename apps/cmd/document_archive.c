/* Documents: docx, odt and epub are ZIP archives, which libarchive unpacks in memory. Names in an archive are compared and never
 * opened, so that it does not matter where they point. */
#include <archive.h>
#include <archive_entry.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/util.h"
#include "cmd/document.h"

struct member {
    char *name, *bytes;
    size_t n;
};

/* The members that may have text, unpacked. */
struct members {
    struct member *all;
    int n;
    size_t capacity;
    size_t n_bytes;
};

static void members_free(struct members *members)
{
    for (int i = 0; i < members->n; i++) {
        free(members->all[i].name);
        free(members->all[i].bytes);
    }
    free(members->all);
}

static const struct member *find(const struct members *members, const char *name)
{
    for (int i = 0; i < members->n; i++)
        if (strcmp(members->all[i].name, name) == 0)
            return &members->all[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------- unpack */

static bool may_have_text(const char *name)
{
    static const char *const ends[] = {".xml", ".opf", ".html", ".htm", ".xhtml"};
    const size_t n = strlen(name);
    for (int i = 0; i < BUTLER_COUNT(ends); i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return strcmp(name, "mimetype") == 0;
}

/* Unpacks what the archive is at, whatever size it claims. */
static bool unpack(struct archive *archive, struct members *members, struct member *member, struct document_result *result)
{
    size_t capacity = 0;
    for (;;) {
        if (!butler_grow(&member->bytes, member->n + 65536, &capacity, 1))
            return document_fail(result, "needs more memory than there is");
        const la_ssize_t n = archive_read_data(archive, member->bytes + member->n, capacity - member->n);
        if (n < 0)
            return document_fail(result, "is a damaged archive: %.120s", archive_error_string(archive));
        if (n == 0)
            return true;
        member->n += (size_t)n;
        members->n_bytes += (size_t)n;
        if (members->n_bytes > DOCUMENT_MAX_UNPACKED)
            return document_fail(result, "unpacks to more than %d MB", DOCUMENT_MAX_UNPACKED >> 20);
    }
}

static bool add(struct archive *archive, const char *name, struct members *members, struct document_result *result)
{
    if (!butler_grow(&members->all, (size_t)members->n + 1, &members->capacity, sizeof *members->all))
        return document_fail(result, "needs more memory than there is");
    struct member *member = &members->all[members->n++];
    *member = (struct member){.name = strdup(name)};
    return member->name ? unpack(archive, members, member, result) : document_fail(result, "needs more memory than there is");
}

static bool read_members(const unsigned char *bytes, size_t n, struct members *members, struct document_result *result)
{
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;
    int code = ARCHIVE_OK, n_members = 0;
    bool ok = archive && archive_read_support_format_zip(archive) == ARCHIVE_OK &&
              archive_read_open_memory(archive, bytes, n) == ARCHIVE_OK;
    if (!ok)
        document_fail(result, "is a damaged archive%s%.120s", archive ? ": " : "", archive ? archive_error_string(archive) : "");
    while (ok && ((code = archive_read_next_header(archive, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN)) {
        const char *name = archive_entry_pathname(entry);
        if (++n_members > DOCUMENT_MAX_MEMBERS)
            ok = document_fail(result, "is an archive of more than %d files", DOCUMENT_MAX_MEMBERS);
        else if (archive_entry_is_encrypted(entry))
            ok = document_fail(result, "is an encrypted archive");
        else if (name && may_have_text(name) && archive_entry_filetype(entry) == AE_IFREG)
            ok = add(archive, name, members, result);
    }
    if (ok && code != ARCHIVE_EOF)
        ok = document_fail(result, "is a damaged archive: %.120s", archive_error_string(archive));
    archive_read_free(archive);
    return ok;
}

/* ------------------------------------------------------------------------------------------------------ epub */

struct book {
    const struct members *members;
    struct document_result *result;
    const struct member *package; /* the list of its parts */
    char wanted[256];             /* id of the part that is looked for */
    char folder[256];             /* of the package, with a slash; paths in it begin there */
    int n_parts, n_missing;       /* missing: the list names a file that the archive does not have */
};

static bool note_package(void *user, const char *const *values)
{
    struct book *book = user;
    if (!book->package)
        book->package = find(book->members, values[0]);
    const char *slash = strrchr(values[0], '/');
    if (book->package && !*book->folder && slash)
        snprintf(book->folder, sizeof book->folder, "%.*s", (int)(slash + 1 - values[0]), values[0]);
    return true;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Takes "." and ".." out of a path, within the archive. */
static void resolve(char *path)
{
    char *out = path;
    for (const char *at = path; *at;) {
        const size_t n = strcspn(at, "/"), whole = n + (at[n] == '/');
        if (n == 2 && memcmp(at, "..", 2) == 0) {
            for (out -= out > path; out > path && out[-1] != '/';)
                out--;
        } else if (!(n == 0 || (n == 1 && *at == '.'))) {
            memmove(out, at, whole);
            out += whole;
        }
        at += whole;
    }
    *out = '\0';
}

/* The path that a part has in the archive: %20 in it is a blank, and what stands behind # is a place in it. */
static void part_path(const struct book *book, const char *href, char *path, size_t n_path)
{
    size_t used = (size_t)snprintf(path, n_path, "%s", *href == '/' ? "" : book->folder);
    for (; *href && *href != '#' && used + 1 < n_path; href++) {
        const bool escaped = *href == '%' && digit(href[1]) >= 0 && digit(href[2]) >= 0;
        path[used++] = escaped ? (char)(digit(href[1]) * 16 + digit(href[2])) : *href;
        href += escaped ? 2 : 0;
    }
    path[used] = '\0';
    resolve(path);
}

/* An item of the manifest: id, href. The text of the one that is wanted is appended. */
static bool put_part(void *user, const char *const *values)
{
    struct book *book = user;
    char path[1024];
    if (strcmp(values[0], book->wanted) != 0)
        return true;
    part_path(book, values[1], path, sizeof path);
    const struct member *part = find(book->members, path);
    if (!part) {
        book->n_missing++;
        return true;
    }
    book->n_parts++;
    return document_put_html(part->bytes, part->n, "UTF-8", book->result) && document_end_line(book->result) &&
           document_put(book->result, "\n", 1);
}

/* An entry of the spine, which has the order of reading: the id of an item. */
static bool read_part(void *user, const char *const *values)
{
    static const char *const attributes[] = {"id", "href"};
    enum { MOST_PARTS = 5000 };
    struct book *book = user;
    if (book->n_parts > MOST_PARTS)
        return document_fail(book->result, "is an e-book of more than %d parts", MOST_PARTS);
    snprintf(book->wanted, sizeof book->wanted, "%s", values[0]);
    return document_each_element(book->package->bytes, book->package->n, "item", attributes, 2, put_part, book, book->result);
}

static bool put_book(const struct members *members, struct document_result *result)
{
    static const char *const full_path[] = {"full-path"}, *const idref[] = {"idref"};
    struct book book = {.members = members, .result = result};
    const struct member *container = find(members, "META-INF/container.xml");
    if (!container)
        return document_fail(result, "is a damaged e-book: it has no META-INF/container.xml");
    if (!document_each_element(container->bytes, container->n, "rootfile", full_path, 1, note_package, &book, result))
        return false;
    if (!book.package)
        return document_fail(result, "is a damaged e-book: the list of its parts is missing");
    if (!document_each_element(book.package->bytes, book.package->n, "itemref", idref, 1, read_part, &book, result))
        return false;
    snprintf(result->what, sizeof result->what, book.n_missing ? "EPUB of %d parts; %d more are missing in it" : "EPUB of %d parts",
             book.n_parts, book.n_missing);
    return true;
}

/* --------------------------------------------------------------------------------------------------- archive */

static bool has_type(const struct members *members, const char *type)
{
    const struct member *mimetype = find(members, "mimetype");
    return mimetype && mimetype->n >= strlen(type) && memcmp(mimetype->bytes, type, strlen(type)) == 0;
}

static bool put_text(const struct members *members, struct document_result *result)
{
    const struct member *docx = find(members, "word/document.xml"), *content = find(members, "content.xml");
    if (docx) {
        snprintf(result->what, sizeof result->what, "docx");
        return document_put_docx(docx->bytes, docx->n, result);
    }
    if (has_type(members, "application/epub+zip"))
        return put_book(members, result);
    if (content && has_type(members, "application/vnd.oasis.opendocument.text")) {
        snprintf(result->what, sizeof result->what, "odt");
        return document_put_odt(content->bytes, content->n, result);
    }
    if (find(members, "xl/workbook.xml") || has_type(members, "application/vnd.oasis.opendocument.spreadsheet"))
        return document_fail(result, "is a spreadsheet: save it as CSV (Debian's gnumeric has ssconvert)");
    if (find(members, "ppt/presentation.xml") || has_type(members, "application/vnd.oasis.opendocument.presentation"))
        return document_fail(result, "is a presentation: save it as PDF (Debian's libreoffice-impress)");
    return document_fail(result,
                         "is a ZIP archive, and none of docx, odt and epub: unpack it (Debian's unzip) and name the files in it");
}

bool document_from_archive(const unsigned char *bytes, size_t n, struct document_result *result)
{
    struct members members = {0};
    const bool ok = read_members(bytes, n, &members, result) && put_text(&members, result);
    members_free(&members);
    return ok;
}
