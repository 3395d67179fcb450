/* Any bytes as what a client sends to the server, cut anywhere. Requests are read until one is refused or the bytes end. What is
 * read must not depend on where the bytes are cut, and nothing may exceed its limit. */
#include <event2/buffer.h>
#include <string.h>

#include "fuzz.h"
#include "serve/http_read.h"

enum { MAX_HEADER = 512, MAX_BODY = 1024, MAX_REQUESTS = 64 };

/* What came of some bytes: a hash of the requests, and how they ended. */
struct outcome {
    uint64_t hash;
    int n_requests, status;
};

static void hash_bytes(struct outcome *out, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out->hash = (out->hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    out->hash = (out->hash ^ n) * 1099511628211u;
}

static void hash_string(struct outcome *out, const char *text)
{
    hash_bytes(out, text ? text : "", text ? strlen(text) + 1 : 0);
}

static void check_head(const struct http_reader *reader, struct outcome *out)
{
    const struct http_head *head = &reader->head;
    fuzz_require(*head->method && *head->path && head->query && head->key, "a head is complete");
    fuzz_require(*head->path == '/' || strcmp(head->path, "*") == 0, "a path is one");
    fuzz_require(!head->chunked || (head->length == 0 && !head->http_1_0), "a body is chunked or has a length");
    fuzz_require(head->length <= MAX_BODY, "a body is within its limit");
    const char *const strings[] = {head->method, head->path,   head->query,         head->key,
                                   head->host,   head->origin, head->asked_headers, head->fetch_site};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        for (const char *p = strings[i]; p && *p; p++)
            fuzz_require(((unsigned char)*p >= 0x20 || *p == '\t') && *p != 0x7f, "no control byte is in a head");
        fuzz_require(!strings[i] || strlen(strings[i]) <= MAX_HEADER, "a head is within its limit");
        hash_string(out, strings[i]);
    }
    hash_bytes(out, &(int){head->expect + 2 * head->keep_alive}, sizeof(int));
}

/* Feeds the bytes in pieces of 1 + random % n bytes; n 0: all at once. */
static struct outcome feed(const uint8_t *data, size_t size, unsigned n, uint32_t random)
{
    struct outcome out = {0};
    struct http_reader reader = {.max_header = MAX_HEADER, .max_body = MAX_BODY};
    struct evbuffer *in = evbuffer_new();
    fuzz_require(in != NULL, "memory");
    for (size_t at = 0; at < size && !out.status && out.n_requests < MAX_REQUESTS;) {
        random = random * 1664525u + 1013904223u;
        const size_t wanted = n ? 1 + (random >> 16) % n : size, piece = wanted < size - at ? wanted : size - at;
        evbuffer_add(in, data + at, piece);
        at += piece;
        enum http_read result = HTTP_READ_HEAD;
        while (result != HTTP_READ_MORE && !out.status && out.n_requests < MAX_REQUESTS) {
            result = http_read(&reader, in);
            fuzz_require(reader.body.n <= MAX_BODY, "a body is within its limit");
            if (result == HTTP_READ_HEAD)
                check_head(&reader, &out);
            else if (result == HTTP_READ_WRONG)
                out.status = reader.status;
            if (result != HTTP_READ_WHOLE)
                continue;
            hash_bytes(&out, reader.body.bytes, reader.body.n);
            out.n_requests++;
            http_reader_next(&reader);
        }
    }
    fuzz_require(!out.status || (out.status >= 400 && out.status <= 505 && reader.message && *reader.message),
                 "a refusal has a reason");
    http_reader_free(&reader);
    evbuffer_free(in);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct outcome whole = feed(data, size, 0, 0);
    const unsigned sizes[] = {1, 3, 40};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct outcome cut = feed(data, size, sizes[i], (uint32_t)size);
        fuzz_require(cut.n_requests == whole.n_requests && cut.hash == whole.hash,
                     "requests do not depend on where the bytes are cut");
        fuzz_require(cut.status == whole.status, "nor does a refusal");
    }
    return 0;
}
