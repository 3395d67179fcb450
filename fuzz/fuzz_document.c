/* Documents of any bytes: what they are, and their text where the libraries are there. */
#include "cmd/document.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.txt", "a.html"};
    for (int i = 0; i < 2; i++) {
        struct document_result result = {0};
        const char *package;
        switch (document_kind_of(names[i], data, size)) {
        case DOCUMENT_HTML:
            document_from_html(data, size, &result);
            break;
        case DOCUMENT_ARCHIVE:
            document_from_archive(data, size, &result);
            break;
        case DOCUMENT_OTHER:
            document_other_name(data, size, &package);
            break;
        case DOCUMENT_PDF: /* poppler has fuzzers of its own */
        case DOCUMENT_TEXT:
            document_from_text(data, size, &result);
            break;
        }
        document_result_free(&result);
    }
    /* What an archive hides from a fuzzer that does not know its checksums. */
    struct document_result docx = {0}, odt = {0};
    document_put_docx((const char *)data, size, &docx);
    document_put_odt((const char *)data, size, &odt);
    document_result_free(&docx);
    document_result_free(&odt);
    return 0;
}
