/* Any bytes as an answer, the first two as what to look for and how to cut it: parts come in order, say the same for every cut, and
 * where there is neither a call nor reasoning every byte is content. */
#include <string.h>

#include "fuzz.h"
#include "serve/tools.h"

struct record {
    struct butler_buffer parts[3]; /* content, reasoning, calls with a zero byte behind each name and each call */
    int n_calls;
    bool is_open;
};

static void write_part(void *user, const struct serve_part *part)
{
    struct record *record = user;
    const int which = part->kind == SERVE_CONTENT ? 0 : part->kind == SERVE_REASONING ? 1 : 2;
    if (part->kind == SERVE_CALL_BEGIN) {
        fuzz_require(!record->is_open && part->call == record->n_calls++ && part->n > 0,
                     "calls are numbered, begin once and have a name");
        record->is_open = true;
    }
    fuzz_require(record->is_open == (which == 2), "nothing else is inside a call");
    fuzz_require(which != 2 || part->call == record->n_calls - 1, "arguments are those of the call that is open");
    serve_text_append(&record->parts[which], part->bytes, part->n);
    if (part->kind == SERVE_CALL_BEGIN || part->kind == SERVE_CALL_END)
        serve_text_append(&record->parts[which], "", 1);
    record->is_open &= part->kind != SERVE_CALL_END;
}

static struct record parse(const struct serve_syntax *syntax, const char *bytes, size_t n, size_t step)
{
    struct record record = {0};
    struct serve_parser *parser = serve_parser_new(syntax, write_part, &record);
    for (size_t at = 0; at < n; at += step)
        serve_parser_push(parser, bytes + at, step < n - at ? step : n - at);
    serve_parser_end(parser);
    fuzz_require(!record.is_open && serve_parser_n_calls(parser) == record.n_calls, "each call ends");
    serve_parser_free(parser);
    return record;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *names[] = {(char[]){"f"}, (char[]){"get_weather"}}, *texts[] = {(char[]){"x\0"}, (char[]){""}};
    static const unsigned calls[16] = {0, 1, 2, 128, 4, 256, 8, 15, 16, 512, 33, 32, 64, 1023, 65, 144};
    if (size < 2)
        return 0;
    const struct serve_syntax syntax = {.calls = calls[data[0] & 15],
                                        .reasoning = data[0] >> 4,
                                        .open = data[1] & 64 ? data[0] >> 4 & 7 : 0,
                                        .in_recipient = (calls[data[0] & 15] & SERVE_CALLS_RECIPIENT) && (data[1] & 64),
                                        .one_call = data[1] & 128,
                                        .names = names,
                                        .texts = texts,
                                        .n_names = 2};
    const char *bytes = (const char *)data + 2;
    const size_t n = size - 2;
    struct record whole = parse(&syntax, bytes, n, n + 1), cut = parse(&syntax, bytes, n, 1 + (data[1] & 63));
    for (int i = 0; i < 3; i++) {
        fuzz_require(whole.parts[i].n == cut.parts[i].n, "parts do not depend on the cut");
        fuzz_require(whole.parts[i].n == 0 || memcmp(whole.parts[i].bytes, cut.parts[i].bytes, cut.parts[i].n) == 0,
                     "nor what they say");
        fuzz_require(whole.parts[i].n <= (i == 2 && (syntax.calls & SERVE_CALLS_XML) ? 6 : 1) * n + 4 * (size_t)whole.n_calls,
                     "nothing is said twice");
    }
    /* Marks of messages and the recipient of text are no content. */
    if (syntax.reasoning == 0 && whole.n_calls == 0 && !(syntax.calls & (SERVE_CALLS_MESSAGE | SERVE_CALLS_RECIPIENT)))
        fuzz_require(whole.parts[0].n == n && memcmp(whole.parts[0].bytes ? whole.parts[0].bytes : "", bytes, n) == 0,
                     "what is no call is content, every byte");
    for (int i = 0; i < 3; i++) {
        butler_buffer_free(&whole.parts[i]);
        butler_buffer_free(&cut.parts[i]);
    }
    return 0;
}
