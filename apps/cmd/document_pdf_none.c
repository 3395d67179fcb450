/* Documents without poppler. */
#include "cmd/document.h"

bool document_from_pdf(const unsigned char *bytes, size_t n, struct document_result *result)
{
    (void)bytes, (void)n;
    return document_fail(result,
                         "is a PDF, and butler was built without poppler: install Debian's libpoppler-glib-dev and run make again");
}
