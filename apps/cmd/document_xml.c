/* Documents: HTML and the XML in office files and e-books, by libxml2. Nothing is loaded but the bytes given, no entity is expanded
 * (of HTML only those that every page has), and a declaration of entities is an error. */
#include <libxml/HTMLparser.h>
#include <libxml/xmlreader.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util.h"
#include "cmd/document.h"

static void ignore_error(void *context, const char *format, ...)
{
    (void)context, (void)format;
}

static bool is_one_of(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------------------ HTML */

/* Text with runs of blanks as one, unless it is preformatted. */
static bool put_flowing(struct document_result *result, const char *text, bool preformatted)
{
    if (preformatted)
        return document_put_string(result, text);
    for (const char *at = text; *at;) {
        const size_t n_blank = strspn(at, " \t\r\n\f"), n_word = strcspn(at + n_blank, " \t\r\n\f");
        if (n_blank && result->n && !strchr(" \t\n", result->text[result->n - 1]) && !document_put(result, " ", 1))
            return false;
        if (n_word && !document_put(result, at + n_blank, n_word))
            return false;
        at += n_blank + n_word;
    }
    return true;
}

static const char *const hidden[] = {"script", "style", "template", "noscript", "iframe",
                                     "object", "svg",   "math",     "select",   "head"};
static const char *const blocks[] = {"address", "article", "aside", "blockquote", "body",       "caption", "dd",     "details",
                                     "div",     "dl",      "dt",    "fieldset",   "figcaption", "figure",  "footer", "form",
                                     "h1",      "h2",      "h3",    "h4",         "h5",         "h6",      "header", "hr",
                                     "html",    "li",      "main",  "nav",        "ol",         "p",       "pre",    "section",
                                     "summary", "table",   "tbody", "tfoot",      "thead",      "title",   "tr",     "ul"};
static const char *const apart[] = {"blockquote", "dl", "h1", "h2",  "h3",    "h4",    "h5",
                                    "h6",         "ol", "p",  "pre", "table", "title", "ul"};

#define IS(name, list) is_one_of(name, list, BUTLER_COUNT(list))

/* An empty line before or after a paragraph. */
static bool put_gap(struct document_result *result)
{
    return document_end_line(result) && (result->n < 2 || result->text[result->n - 2] == '\n' || document_put(result, "\n", 1));
}

static bool begin_element(struct document_result *result, const char *name)
{
    if (strcasecmp(name, "br") == 0)
        return document_put(result, "\n", 1);
    if (strcasecmp(name, "li") == 0)
        return document_end_line(result) && document_put_string(result, "- ");
    if ((strcasecmp(name, "td") == 0 || strcasecmp(name, "th") == 0) && result->n && result->text[result->n - 1] != '\n')
        return document_put(result, "\t", 1);
    return IS(name, apart) ? put_gap(result) : IS(name, blocks) ? document_end_line(result) : true;
}

static bool end_element(struct document_result *result, const char *name)
{
    return IS(name, apart) ? put_gap(result) : IS(name, blocks) ? document_end_line(result) : true;
}

/* The texts of a tree in order. Without recursion: pages may nest as deep as they like. */
static bool put_tree(const xmlNode *root, struct document_result *result)
{
    const xmlNode *node = root;
    int n_pre = 0;
    while (node) {
        const char *name = node->type == XML_ELEMENT_NODE ? (const char *)node->name : "";
        const bool shown = *name && !IS(name, hidden);
        if (shown && !begin_element(result, name))
            return false;
        if ((node->type == XML_TEXT_NODE || node->type == XML_CDATA_SECTION_NODE) && node->content &&
            !put_flowing(result, (const char *)node->content, n_pre > 0))
            return false;
        if (shown && node->children) {
            n_pre += strcasecmp(name, "pre") == 0;
            node = node->children;
            continue;
        }
        if (shown && !end_element(result, name))
            return false;
        while (node && node != root && !node->next) {
            node = node->parent;
            n_pre -= node && strcasecmp((const char *)node->name, "pre") == 0;
            if (node && node->type == XML_ELEMENT_NODE && !end_element(result, (const char *)node->name))
                return false;
        }
        node = !node || node == root ? NULL : node->next;
    }
    return true;
}

static const xmlNode *find_title(const xmlNode *root)
{
    for (const xmlNode *head = root ? root->children : NULL; head; head = head->next)
        for (const xmlNode *node =
                 head->type == XML_ELEMENT_NODE && strcasecmp((const char *)head->name, "head") == 0 ? head->children : NULL;
             node; node = node->next)
            if (node->type == XML_ELEMENT_NODE && strcasecmp((const char *)node->name, "title") == 0)
                return node;
    return NULL;
}

bool document_put_html(const char *bytes, size_t n, const char *encoding, struct document_result *result)
{
    const int options = HTML_PARSE_RECOVER | HTML_PARSE_NONET | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING;
    if (n == 0)
        return true;
    if (n > INT_MAX)
        return document_fail(result, "is too large for a page of HTML");
    xmlSetGenericErrorFunc(NULL, ignore_error);
    xmlDoc *page = htmlReadMemory(bytes, (int)n, NULL, encoding, options);
    if (!page)
        return document_fail(result, "is no HTML that can be read");
    const xmlNode *root = xmlDocGetRootElement(page), *title = find_title(root);
    bool ok = (!title || put_tree(title, result)) && (!root || put_tree(root, result));
    xmlFreeDoc(page);
    while (ok && result->n > 1 && result->text[result->n - 1] == '\n' && result->text[result->n - 2] == '\n')
        result->n--; /* no gap at the end */
    return ok && document_end_line(result);
}

bool document_from_html(const unsigned char *bytes, size_t n, struct document_result *result)
{
    struct document_result text = {0};
    size_t skip = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    /* What is UTF-8, or UTF-16, is so whatever the page says; in anything else the page's word counts. */
    const bool ok = document_from_text(bytes + skip, n - skip, &text);
    const bool is_unicode = ok && (!*text.what || strncmp(text.what, "UTF", 3) == 0);
    snprintf(result->what, sizeof result->what, "HTML");
    bool done = ok ? true : document_fail(result, "%s", text.error);
    if (done && is_unicode)
        done = document_put_html(text.text, text.n, "UTF-8", result);
    else if (done)
        done = document_put_html((const char *)bytes, n, NULL, result);
    document_result_free(&text);
    return done;
}

/* ------------------------------------------------------------------------------------------------------- XML */

/* Calls visit for every node; false where the XML is not well formed, nests too deep, or declares entities. */
typedef bool node_fn(void *user, xmlTextReader *reader, int type, const char *name);

static bool each_node(const char *bytes, size_t n, node_fn *visit, void *user, struct document_result *result)
{
    const int options = XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING | XML_PARSE_NOCDATA;
    if (n > INT_MAX)
        return document_fail(result, "has a part that is too large");
    xmlSetGenericErrorFunc(NULL, ignore_error);
    xmlTextReader *reader = n ? xmlReaderForMemory(bytes, (int)n, NULL, NULL, options) : NULL;
    int more = reader ? 1 : -1;
    bool ok = true;
    if (reader)
        xmlTextReaderSetErrorHandler(reader, NULL, NULL);
    while (ok && more == 1 && (more = xmlTextReaderRead(reader)) == 1) {
        const int type = xmlTextReaderNodeType(reader);
        const char *name = (const char *)xmlTextReaderConstLocalName(reader);
        const xmlDtd *dtd = type == XML_READER_TYPE_DOCUMENT_TYPE ? (const xmlDtd *)xmlTextReaderCurrentNode(reader) : NULL;
        if ((dtd && dtd->children) || type == XML_READER_TYPE_ENTITY_REFERENCE)
            ok = document_fail(result, "declares entities, which is not taken");
        else if (xmlTextReaderDepth(reader) > DOCUMENT_MAX_DEPTH)
            ok = document_fail(result, "nests more than %d elements", DOCUMENT_MAX_DEPTH);
        else
            ok = visit(user, reader, type, name ? name : "");
    }
    if (reader)
        xmlFreeTextReader(reader);
    return ok && more == 0 ? true : document_fail(result, "is damaged: its XML is not well formed");
}

/* What becomes of the elements of a format. */
struct words {
    const char *text[2];       /* elements whose text counts */
    const char *paragraphs[2]; /* end a line */
    const char *tab, *line_break, *space, *cell, *row;
    const char *return_mark, *hyphen; /* another line break; a hyphen at which no line ends */
    const char *left_out[3];
};

struct office {
    const struct words *words;
    struct document_result *result;
    int n_text, n_left_out, n_cells; /* open elements of each kind */
};

static bool is_word(const char *name, const char *const *words, int n)
{
    for (int i = 0; i < n && words[i]; i++)
        if (strcmp(name, words[i]) == 0)
            return true;
    return false;
}

static bool is(const char *name, const char *word)
{
    return word && strcmp(name, word) == 0;
}

/* c of <text:s text:c="3"/>: how many blanks. */
static bool put_spaces(struct office *office, xmlTextReader *reader)
{
    xmlChar *count = xmlTextReaderGetAttributeNs(reader, BAD_CAST "c", BAD_CAST "urn:oasis:names:tc:opendocument:xmlns:text:1.0");
    const int n = count ? atoi((const char *)count) : 1;
    bool ok = true;
    xmlFree(count);
    for (int i = 0; ok && i < n && i < 1000; i++)
        ok = document_put(office->result, " ", 1);
    return ok;
}

static bool open_element(struct office *office, xmlTextReader *reader, const char *name, bool is_empty)
{
    const struct words *words = office->words;
    if (is_word(name, words->left_out, 3) && !is_empty)
        office->n_left_out++;
    if (office->n_left_out)
        return true;
    if (is_word(name, words->text, 2) && !is_empty)
        office->n_text++;
    if (is(name, words->cell) && !is_empty)
        office->n_cells++;
    if (is(name, words->tab))
        return document_put(office->result, "\t", 1);
    if (is(name, words->line_break) || is(name, words->return_mark))
        return document_put(office->result, "\n", 1);
    if (is(name, words->hyphen))
        return document_put(office->result, "-", 1);
    return is(name, words->space) ? put_spaces(office, reader) : true;
}

static bool close_element(struct office *office, const char *name)
{
    const struct words *words = office->words;
    struct document_result *result = office->result;
    if (is_word(name, words->left_out, 3)) {
        office->n_left_out--;
        return true;
    }
    if (office->n_left_out)
        return true;
    office->n_text -= is_word(name, words->text, 2);
    office->n_cells -= is(name, words->cell);
    if (is(name, words->cell))
        return document_put(result, "\t", 1);
    if (is(name, words->row))
        return document_end_line(result);
    if (is_word(name, words->paragraphs, 2))
        return document_put(result, office->n_cells ? " " : "\n", 1);
    return true;
}

static bool visit_office(void *user, xmlTextReader *reader, int type, const char *name)
{
    struct office *office = user;
    if (type == XML_READER_TYPE_ELEMENT)
        return open_element(office, reader, name, xmlTextReaderIsEmptyElement(reader) == 1) &&
               (xmlTextReaderIsEmptyElement(reader) != 1 || !is_word(name, office->words->paragraphs, 2) ||
                document_put(office->result, "\n", 1));
    if (type == XML_READER_TYPE_END_ELEMENT)
        return close_element(office, name);
    const bool is_text = type == XML_READER_TYPE_TEXT || type == XML_READER_TYPE_CDATA || type == XML_READER_TYPE_WHITESPACE ||
                         type == XML_READER_TYPE_SIGNIFICANT_WHITESPACE;
    const char *value = is_text && office->n_text > 0 && !office->n_left_out ? (const char *)xmlTextReaderConstValue(reader) : NULL;
    return !value || document_put_string(office->result, value);
}

bool document_put_docx(const char *bytes, size_t n, struct document_result *result)
{
    static const struct words words = {.text = {"t"},
                                       .paragraphs = {"p"},
                                       .tab = "tab",
                                       .line_break = "br",
                                       .return_mark = "cr",
                                       .hyphen = "noBreakHyphen",
                                       .cell = "tc",
                                       .row = "tr",
                                       .left_out = {"pPr", "Fallback", "moveFrom"}};
    struct office office = {.words = &words, .result = result};
    return each_node(bytes, n, visit_office, &office, result);
}

bool document_put_odt(const char *bytes, size_t n, struct document_result *result)
{
    static const struct words words = {.text = {"p", "h"},
                                       .paragraphs = {"p", "h"},
                                       .tab = "tab",
                                       .line_break = "line-break",
                                       .space = "s",
                                       .cell = "table-cell",
                                       .row = "table-row",
                                       .left_out = {"annotation", "tracked-changes", "automatic-styles"}};
    struct office office = {.words = &words, .result = result};
    return each_node(bytes, n, visit_office, &office, result);
}

/* ------------------------------------------------------------------------------------------------ attributes */

struct attributes {
    const char *element;
    const char *const *names;
    int n;
    document_visit_fn *visit;
    void *user;
};

static bool visit_attributes(void *user, xmlTextReader *reader, int type, const char *name)
{
    enum { MOST = 4 };
    const struct attributes *wanted = user;
    const char *values[MOST];
    xmlChar *owned[MOST] = {NULL};
    if (type != XML_READER_TYPE_ELEMENT || strcmp(name, wanted->element) != 0)
        return true;
    for (int i = 0; i < wanted->n && i < MOST; i++) {
        owned[i] = xmlTextReaderGetAttribute(reader, BAD_CAST wanted->names[i]);
        values[i] = owned[i] ? (const char *)owned[i] : "";
    }
    const bool ok = wanted->visit(wanted->user, values);
    for (int i = 0; i < MOST; i++)
        xmlFree(owned[i]);
    return ok;
}

bool document_each_element(const char *bytes, size_t n, const char *element, const char *const *attributes, int n_attributes,
                           document_visit_fn *visit, void *user, struct document_result *result)
{
    struct attributes wanted = {element, attributes, n_attributes, visit, user};
    return each_node(bytes, n, visit_attributes, &wanted, result);
}
