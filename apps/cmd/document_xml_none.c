/* Documents without libxml2. */
#include "cmd/document.h"

bool document_from_html(const unsigned char *bytes, size_t n, struct document_result *result)
{
    (void)bytes, (void)n;
    return document_fail(result, "is HTML, and butler was built without libxml2: install Debian's libxml2-dev and run make again");
}
