/* Documents that are no plain text: what a file is by its bytes, and its text. Whatever a file claims, what is made of it is
 * bounded. The converters read and write memory alone; document.c runs them in a process of its own (cmd_document_read). */
#ifndef CMD_DOCUMENT_H
#define CMD_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    DOCUMENT_MAX_TEXT = 64 << 20,      /* bytes of text that a document may become */
    DOCUMENT_MAX_UNPACKED = 256 << 20, /* bytes that the files in an archive may unpack to, together */
    DOCUMENT_MAX_MEMBERS = 20000,      /* files in an archive */
    DOCUMENT_MAX_DEPTH = 1000,         /* elements in elements */
};

enum document_kind {
    DOCUMENT_TEXT, /* of some encoding, or at least nothing that is known to be something else */
    DOCUMENT_HTML,
    DOCUMENT_PDF,
    DOCUMENT_ARCHIVE, /* ZIP: docx, odt, epub; what it is turns out when it is unpacked */
    DOCUMENT_OTHER,   /* a format without text, or one that cannot be read here: document_other_name */
};

/* What bytes[n] are. name: the file's, whose ending tells HTML that does not say so itself. */
enum document_kind document_kind_of(const char *name, const unsigned char *bytes, size_t n);
/* For DOCUMENT_OTHER: "a PNG picture", and the Debian package that makes text of it, or NULL. */
const char *document_other_name(const unsigned char *bytes, size_t n, const char **package);

/* What a converter gives: a text, or an error; what it was, for a note. Zeroed at first, freed by document_result_free. */
struct document_result {
    char *text; /* owned */
    size_t n, capacity;
    char error[256]; /* why there is no text; "" */
    char what[64];   /* "PDF of 3 pages" */
};
/* Appends to the text; false, with an error, where it would be longer than DOCUMENT_MAX_TEXT or there is no memory. */
bool document_put(struct document_result *result, const char *bytes, size_t n);
bool document_put_string(struct document_result *result, const char *string);
/* Ends a line that has something in it. */
bool document_end_line(struct document_result *result);
/* Sets the error, where there is none yet. Returns false. */
bool document_fail(struct document_result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Whether there is nothing but blanks. */
bool document_is_blank(const struct document_result *result);
void document_result_free(struct document_result *result);

/* UTF-8 of a text in UTF-8, -16 or -32 or Latin-1; result->what is "" where it was UTF-8 already. */
bool document_from_text(const unsigned char *bytes, size_t n, struct document_result *result);

/* Each is built where the library is there; otherwise its error says which package it needs. */
bool document_from_html(const unsigned char *bytes, size_t n, struct document_result *result);
bool document_from_pdf(const unsigned char *bytes, size_t n, struct document_result *result);
bool document_from_archive(const unsigned char *bytes, size_t n, struct document_result *result);

/* Text of a page of HTML, appended. encoding: NULL, what the page says or libxml2 finds. */
bool document_put_html(const char *bytes, size_t n, const char *encoding, struct document_result *result);
/* Text of word/document.xml or of an OpenDocument's content.xml, appended. */
bool document_put_docx(const char *bytes, size_t n, struct document_result *result);
bool document_put_odt(const char *bytes, size_t n, struct document_result *result);

/* Attributes of the elements `element` of an XML file, in order: the values of attribute[n_attributes], "" where there is none.
 * visit returns false to stop, with an error in the result. False after an error. */
typedef bool document_visit_fn(void *user, const char *const *values);
bool document_each_element(const char *bytes, size_t n, const char *element, const char *const *attributes, int n_attributes,
                           document_visit_fn *visit, void *user, struct document_result *result);

#endif
