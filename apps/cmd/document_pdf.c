/* Documents: PDF, by poppler. */
#include <poppler.h>
#include <stdio.h>
#include <string.h>

#include "cmd/document.h"

/* Whether the end that every PDF has is there. */
static bool is_whole(const unsigned char *bytes, size_t n)
{
    enum { TRAILER = 2048 };
    const size_t m = n < TRAILER ? n : TRAILER;
    return memmem(bytes + n - m, m, "%%EOF", 5) != NULL;
}

static bool put_page(PopplerDocument *document, int i, struct document_result *result)
{
    PopplerPage *page = poppler_document_get_page(document, i);
    char *text = page ? poppler_page_get_text(page) : NULL;
    const bool ok =
        !text || !*text || (document_put_string(result, text) && document_end_line(result) && document_put(result, "\n", 1));
    g_free(text);
    if (page)
        g_object_unref(page);
    return ok;
}

bool document_from_pdf(const unsigned char *bytes, size_t n, struct document_result *result)
{
    GError *error = NULL;
    GBytes *all = NULL;
    PopplerDocument *document = NULL;
    bool ok = is_whole(bytes, n);
    if (!ok)
        return document_fail(result, "is a PDF whose end is missing: it was not copied or loaded as a whole");
    all = g_bytes_new_static(bytes, n);
    document = poppler_document_new_from_bytes(all, NULL, &error);
    if (!document) {
        ok = g_error_matches(error, POPPLER_ERROR, POPPLER_ERROR_ENCRYPTED)
                 ? document_fail(result, "is a PDF that is encrypted")
                 : document_fail(result, "is a damaged PDF: %s", error ? error->message : "it cannot be opened");
        goto done;
    }
    const int n_pages = poppler_document_get_n_pages(document);
    snprintf(result->what, sizeof result->what, "PDF of %d page%s", n_pages, n_pages == 1 ? "" : "s");
    for (int i = 0; ok && i < n_pages; i++)
        ok = put_page(document, i, result);
    if (ok && document_is_blank(result))
        ok = document_fail(result,
                           "is a PDF of %d page%s without text, as scanners make it: an OCR program (Debian's ocrmypdf) can add it",
                           n_pages, n_pages == 1 ? "" : "s");
done:
    if (document)
        g_object_unref(document);
    if (error)
        g_error_free(error);
    g_bytes_unref(all);
    return ok;
}
