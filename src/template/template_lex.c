/* Cuts a template into tokens: text unchanged, and what is between {{ }} and {% %}. White space around tags goes here, by the
 * signs in the tags (-, +) and by jinja2's options trim_blocks (the newline after a tag) and lstrip_blocks (blanks before a tag
 * that begins a line). */
#include <string.h>

#include "base/utf8.h"
#include "template/template_parts.h"

struct lexer {
    struct template_run *run;
    struct template_text source;
    size_t at;
    bool line_start; /* the last tag took the newline that ended its line */
    struct template_token *tokens;
    size_t n_tokens, capacity;
};

static bool looking_at(const struct lexer *lexer, size_t at, const char *string)
{
    const size_t n = strlen(string);
    return at <= lexer->source.n && lexer->source.n - at >= n && memcmp(lexer->source.bytes + at, string, n) == 0;
}

static char byte_at(const struct lexer *lexer, size_t at)
{
    return at < lexer->source.n ? lexer->source.bytes[at] : 0;
}

static void add_token(struct lexer *lexer, enum template_token_kind kind, struct template_text text)
{
    lexer->tokens = butler_template_grow(lexer->run, lexer->tokens, lexer->n_tokens, &lexer->capacity, sizeof *lexer->tokens);
    lexer->tokens[lexer->n_tokens++] = (struct template_token){kind, lexer->run->line, text};
}

/* Moves to `to` and counts the lines. */
static void advance(struct lexer *lexer, size_t to)
{
    for (; lexer->at < to; lexer->at++)
        lexer->run->line += lexer->source.bytes[lexer->at] == '\n';
}

static size_t skip_space(const struct lexer *lexer, size_t at)
{
    size_t n;
    while ((n = butler_template_space(template_part(lexer->source, at, lexer->source.n - at), false)) > 0)
        at += n;
    return at;
}

/* Newlines of every system become \n; the last one is dropped. */
static struct template_text normalise(struct template_run *run, const char *source, size_t n)
{
    struct template_text text = butler_template_copy(run, source, n, true);
    char *bytes = (char *)text.bytes; /* not shared yet */
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        bytes[n_out++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
            i++;
    }
    text.n = n_out > 0 && bytes[n_out - 1] == '\n' ? n_out - 1 : n_out;
    return text;
}

/* --------------------------------------------------------------------------------------- text between tags */

/* Emits the text from the current place to the tag at `end`, whose sign is '-', '+' or another byte. */
static void lex_data(struct lexer *lexer, size_t end, char sign, bool is_block)
{
    struct template_text data = template_part(lexer->source, lexer->at, end - lexer->at);
    if (sign == '-')
        data = butler_template_strip(lexer->run, data, NULL, false, true);
    else if (is_block && sign != '+') {
        const char *newline = data.n ? memrchr(data.bytes, '\n', data.n) : NULL;
        const size_t start = newline ? (size_t)(newline - data.bytes) + 1 : 0;
        const struct template_text line = template_part(data, start, data.n - start);
        if ((newline || lexer->line_start) && butler_template_strip(lexer->run, line, NULL, true, false).n == 0)
            data.n = start;
    }
    if (data.n)
        add_token(lexer, TOKEN_DATA, data);
    lexer->line_start = false;
    advance(lexer, end);
}

/* Moves behind the tag's end, which lies at `end`, and the white space that belongs to it. */
static void end_tag(struct lexer *lexer, size_t end, char sign, bool trims_newline)
{
    size_t at = end + 2;
    if (sign == '-')
        at = skip_space(lexer, at);
    else if (sign != '+' && trims_newline && byte_at(lexer, at) == '\n')
        at++;
    lexer->line_start = byte_at(lexer, at - 1) == '\n';
    advance(lexer, at);
}

static void lex_comment(struct lexer *lexer)
{
    const struct template_text close = butler_template_literal(lexer->run, "#}");
    const size_t end = butler_template_find(lexer->run, lexer->source, close, lexer->at + 2);
    if (end == SIZE_MAX)
        butler_template_fail(lexer->run, "the comment has no end '#}'");
    end_tag(lexer, end, end > lexer->at + 2 ? lexer->source.bytes[end - 1] : 0, true);
}

/* Whether "{%" at `at` begins a block of this one name: where its "%}" lies, or SIZE_MAX. *sign: that before the "%}". */
static size_t bare_block(const struct lexer *lexer, size_t at, const char *name, char *sign)
{
    at += 2;
    at = skip_space(lexer, at + (byte_at(lexer, at) == '-' || byte_at(lexer, at) == '+'));
    if (!looking_at(lexer, at, name))
        return SIZE_MAX;
    at = skip_space(lexer, at + strlen(name));
    *sign = byte_at(lexer, at);
    at += *sign == '-' || *sign == '+';
    return looking_at(lexer, at, "%}") ? at : SIZE_MAX;
}

/* The text between {% raw %} and {% endraw %}; `end`: the "%}" of the first. */
static void lex_raw(struct lexer *lexer, size_t end, char sign)
{
    const struct template_text open = butler_template_literal(lexer->run, "{%");
    end_tag(lexer, end, sign, false);
    if (lexer->at == lexer->source.n) /* nothing follows: jinja2 does not miss the endraw */
        return;
    for (size_t at = lexer->at; (at = butler_template_find(lexer->run, lexer->source, open, at)) != SIZE_MAX; at += 2) {
        const size_t close = bare_block(lexer, at, "endraw", &sign);
        if (close == SIZE_MAX)
            continue;
        lex_data(lexer, at, byte_at(lexer, at + 2), true);
        end_tag(lexer, close, sign, true);
        return;
    }
    butler_template_fail(lexer->run, "raw has no endraw");
}

/* ----------------------------------------------------------------------------------------------- inside tags */

static bool is_name_byte(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80 ||
           (!first && c >= '0' && c <= '9');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The code behind \x, \u, \U or of an octal escape at `at`; *n_digits: how many digits it has, at most max. */
static uint32_t read_code(const struct template_text *text, size_t at, unsigned base, size_t max, size_t *n_digits)
{
    uint32_t code = 0;
    for (*n_digits = 0; *n_digits < max && at < text->n; ++*n_digits, at++) {
        const char *digits = "0123456789abcdef", c = text->bytes[at] >= 'A' ? text->bytes[at] | 0x20 : text->bytes[at];
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found || (unsigned)(found - digits) >= base)
            break;
        code = code * base + (uint32_t)(found - digits);
    }
    return code;
}

/* Appends what the escape sequence at text[at] means; returns the place behind it. */
static size_t unescape(struct lexer *lexer, const struct template_text *text, size_t at, struct template_buffer *out)
{
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = text->bytes[at + 1], *found = c ? strchr(letters, c) : NULL;
    const size_t n_wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t n = 0;
    char bytes[4];
    if (c == '\n')
        return at + 2;
    if (found) {
        butler_template_append(lexer->run, out, butler_template_copy(lexer->run, &meanings[found - letters], 1, true));
        return at + 2;
    }
    if (!n_wanted && !(c >= '0' && c <= '7')) {
        butler_template_append(lexer->run, out, template_part(*text, at, 2)); /* no escape: both bytes are kept */
        return at + 2;
    }
    const size_t start = at + 1 + (n_wanted > 0);
    const uint32_t code = read_code(text, start, n_wanted ? 16 : 8, n_wanted ? n_wanted : 3, &n);
    if (n < n_wanted || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        butler_template_fail(lexer->run, "a string has the wrong escape '\\%c'", c);
    const size_t n_bytes = butler_utf8_encode(code, bytes);
    butler_template_append(lexer->run, out, butler_template_copy(lexer->run, bytes, n_bytes, true));
    return start + n;
}

static void lex_string(struct lexer *lexer)
{
    const char quote = lexer->source.bytes[lexer->at];
    size_t end = lexer->at + 1;
    bool escapes = false;
    for (; byte_at(lexer, end) != quote; end++) {
        if (end >= lexer->source.n)
            butler_template_fail(lexer->run, "a string has no end");
        if (lexer->source.bytes[end] == '\\') {
            escapes = true;
            end++;
        }
    }
    struct template_text text = template_part(lexer->source, lexer->at + 1, end - lexer->at - 1);
    struct template_buffer out = {0};
    for (size_t at = 0, n; escapes && at < text.n;) {
        if (text.bytes[at] == '\\')
            at = unescape(lexer, &text, at, &out);
        else {
            const char *next = memchr(text.bytes + at, '\\', text.n - at);
            n = next ? (size_t)(next - text.bytes) - at : text.n - at;
            butler_template_append(lexer->run, &out, template_part(text, at, n));
            at += n;
        }
    }
    add_token(lexer, TOKEN_STRING, escapes ? template_taken(&out) : text);
    advance(lexer, end + 1);
}

static void lex_number(struct lexer *lexer)
{
    size_t end = lexer->at;
    while (is_digit(byte_at(lexer, end)) || byte_at(lexer, end) == '_')
        end++;
    if (byte_at(lexer, end) == '.' && is_digit(byte_at(lexer, end + 1)))
        for (end++; is_digit(byte_at(lexer, end)) || byte_at(lexer, end) == '_';)
            end++;
    size_t exponent = end + 1 + (byte_at(lexer, end + 1) == '-' || byte_at(lexer, end + 1) == '+');
    if ((byte_at(lexer, end) | 0x20) == 'e' && is_digit(byte_at(lexer, exponent)))
        for (end = exponent; is_digit(byte_at(lexer, end));)
            end++;
    add_token(lexer, TOKEN_NUMBER, template_part(lexer->source, lexer->at, end - lexer->at));
    advance(lexer, end);
}

static void lex_operator(struct lexer *lexer, int *nesting)
{
    static const char *const twins[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = lexer->source.bytes[lexer->at];
    size_t n = 1;
    for (int i = 0; i < BUTLER_COUNT(twins); i++)
        if (looking_at(lexer, lexer->at, twins[i]))
            n = 2;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}<>=.:|,", c)))
        butler_template_fail(lexer->run, "the byte 0x%02X has no meaning here", (unsigned char)c);
    if (n == 1 && strchr("([{", c))
        ++*nesting;
    if (n == 1 && strchr(")]}", c) && --*nesting < 0)
        butler_template_fail(lexer->run, "'%c' closes nothing", c);
    add_token(lexer, TOKEN_OPERATOR, template_part(lexer->source, lexer->at, n));
    advance(lexer, lexer->at + n);
}

/* From behind "{{" or "{%" and its sign to behind the end of the tag. */
static void lex_tag(struct lexer *lexer, bool is_block)
{
    const char *close = is_block ? "%}" : "}}";
    int nesting = 0;
    for (;;) {
        size_t n;
        while ((n = butler_template_space(template_part(lexer->source, lexer->at, lexer->source.n - lexer->at), false)) > 0)
            advance(lexer, lexer->at + n);
        const char c = byte_at(lexer, lexer->at);
        const size_t n_sign = (c == '-' || (c == '+' && is_block)) && looking_at(lexer, lexer->at + 1, close);
        if (nesting == 0 && looking_at(lexer, lexer->at + n_sign, close)) {
            add_token(lexer, TOKEN_END, template_part(lexer->source, lexer->at + n_sign, 2));
            end_tag(lexer, lexer->at + n_sign, n_sign ? c : 0, is_block);
            return;
        }
        if (lexer->at >= lexer->source.n)
            butler_template_fail(lexer->run, "the tag has no end '%s'", close);
        if (is_name_byte(c, true)) {
            for (n = 1; is_name_byte(byte_at(lexer, lexer->at + n), false);)
                n++;
            add_token(lexer, TOKEN_NAME, template_part(lexer->source, lexer->at, n));
            advance(lexer, lexer->at + n);
        } else if (is_digit(c))
            lex_number(lexer);
        else if (c == '"' || c == '\'')
            lex_string(lexer);
        else
            lex_operator(lexer, &nesting);
    }
}

const struct template_token *butler_template_lex(struct template_run *run, const char *source, size_t n)
{
    struct lexer lexer = {.run = run, .source = normalise(run, source, n), .line_start = true};
    run->line = 1;
    while (lexer.at < lexer.source.n) {
        size_t tag = lexer.at, end;
        char raw_sign;
        while (tag < lexer.source.n &&
               !(lexer.source.bytes[tag] == '{' && byte_at(&lexer, tag + 1) && strchr("{%#", lexer.source.bytes[tag + 1])))
            tag++;
        const char kind = byte_at(&lexer, tag + 1), sign = byte_at(&lexer, tag + 2);
        if (tag >= lexer.source.n) {
            add_token(&lexer, TOKEN_DATA, template_part(lexer.source, lexer.at, tag - lexer.at));
            break;
        }
        lex_data(&lexer, tag, sign, kind != '{');
        if (kind == '#')
            lex_comment(&lexer);
        else if (kind == '%' && (end = bare_block(&lexer, tag, "raw", &raw_sign)) != SIZE_MAX && raw_sign != '+')
            lex_raw(&lexer, end, raw_sign);
        else {
            add_token(&lexer, TOKEN_BEGIN, template_part(lexer.source, tag, 2));
            advance(&lexer, tag + 2 + (sign == '-' || sign == '+'));
            lex_tag(&lexer, kind == '%');
        }
    }
    add_token(&lexer, TOKEN_EOF, template_part(lexer.source, lexer.source.n, 0));
    return lexer.tokens;
}
