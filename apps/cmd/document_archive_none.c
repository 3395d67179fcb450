/* Documents without libarchive or libxml2. */
#include "cmd/document.h"

bool document_from_archive(const unsigned char *bytes, size_t n, struct document_result *result)
{
    (void)bytes, (void)n;
    return document_fail(
        result, "is a ZIP archive (docx, odt, epub?), and butler was built without libarchive or libxml2: install Debian's "
                "libarchive-dev and libxml2-dev and run make again");
}
