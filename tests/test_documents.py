"""Documents that are no plain UTF-8: encodings, HTML, PDF, docx, odt, epub, and files that are damaged or made to do harm."""
import gzip
import resource
import subprocess
import time
import zipfile

import pytest

import documents
from cli import BUTLER, FAILED, GQA, ROOT, SMOLLM2, butler, refuses, rows

GREEDY = ["--temp", "0", "-n", "12"]


def has(package):
    return subprocess.run(["pkg-config", "--exists", package]).returncode == 0


poppler = pytest.mark.skipif(not has("poppler-glib"), reason="no poppler (libpoppler-glib-dev)")
libxml = pytest.mark.skipif(not has("libxml-2.0"), reason="no libxml2 (libxml2-dev)")
libarchive = pytest.mark.skipif(not (has("libarchive") and has("libxml-2.0")), reason="no libarchive (libarchive-dev)")


def ask(path, **options):
    return butler("ask", "-m", GQA, "-f", path, "--no-cache", *GREEDY, "Who?", **options)


def becomes(path, text, note=None):
    """The document is read as this text: random weights answer to every token of it."""
    plain = path.parent / "plain" / path.name
    plain.parent.mkdir(exist_ok=True)
    plain.write_text(text, encoding="utf-8", newline="")
    result, expected = ask(path.name, cwd=path.parent), ask(path.name, cwd=plain.parent) if note is None else None
    if note is not None:
        # The name is part of the prompt, and its ending may say what the file is: the plain text stands behind the same name.
        expected = butler("run", "-m", GQA, *GREEDY, "-p", prompt_of(path.name, text))
    assert result.stdout == expected.stdout.lstrip(" \n"), result.stderr
    if note is not None:
        assert "note: " in result.stderr and note in result.stderr, result.stderr
    else:
        assert "note" not in result.stderr
    return result


def prompt_of(name, text):
    """The prompt that ask makes of a document, in the plain template of a model without one."""
    return PROMPT.replace("NAME", name).replace("TEXT", text)


PROMPT = "User: TEXT\n\n(end of NAME)\n\nQuestion: Who?\nAssistant:"

# ------------------------------------------------------------------------------------------------- encodings


@pytest.mark.parametrize("content, text, note", [
    ("Zoë's café".encode("latin-1"), "Zoë's café", "Latin-1"),
    (b"It costs 5 \x80 \x93so\x94", "It costs 5 € “so”", "Latin-1"),  # Windows' characters, which Latin-1 does not have
    ("Zoë\n".encode("utf-16"), "Zoë\n", "UTF-16LE"),
    (b"\xfe\xff" + "Zoë\n".encode("utf-16-be"), "Zoë\n", "UTF-16BE"),
    ("It was the best of times, Zoë.".encode("utf-16-le"), "It was the best of times, Zoë.", "UTF-16LE"),
    ("It was the best of times, Zoë.".encode("utf-16-be"), "It was the best of times, Zoë.", "UTF-16BE"),
    ("Zoë\n".encode("utf-32"), "Zoë\n", "UTF-32LE"),
    (b"\0\0\xfe\xff" + "Zoë \U0001f600".encode("utf-32-be"), "Zoë \U0001f600", "UTF-32BE"),
    ("The best of times".encode("utf-32-le"), "The best of times", "UTF-32LE"),
    ("The best of times".encode("utf-32-be"), "The best of times", "UTF-32BE"),
    ("Zoë, café, naïve ".encode() + b"\xff!", "Zoë, café, naïve \ufffd!", "UTF-8 with 1 wrong bytes, the first at 20"),
    (b"\xef\xbb\xbfZo\xc3\xab", "Zoë", None),
    ("Zoë \U0001f600 日本".encode(), "Zoë \U0001f600 日本", None),
])
def test_encodings(content, text, note, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    becomes(path, text, note)


def test_a_prompt_is_converted_too(tmp_path):
    for encoding in ("utf-16", "latin-1"):
        (tmp_path / "a.txt").write_bytes("Zoë's café".encode(encoding))
        result = butler("run", "-m", GQA, "-f", tmp_path / "a.txt", *GREEDY)
        assert result.stdout == butler("run", "-m", GQA, "-p", "Zoë's café", *GREEDY).stdout and "note" in result.stderr


def test_standard_input_is_converted_too():
    result = subprocess.run([BUTLER, "ask", "-m", GQA, "-f", "-", "--no-cache", *GREEDY, "Who?"], input="Zoë".encode("latin-1"),
                            capture_output=True, timeout=60)
    assert result.returncode == 0 and b"standard input: no UTF-8: read as Latin-1" in result.stderr


@pytest.mark.parametrize("content, says", [
    (b"", "empty"), (b" \n\t\r\n", "empty"), (b"\xef\xbb\xbf", "empty"), (b"\xff\xfe", "empty"),
    (b"ab\0c", "byte 2 is zero"), (b"\xff\xfea", "end is missing"), (b"\xff\xfe\x00\xdc\x00\xdc", "none of its characters"),
    (bytes(range(1, 32)) * 9 + b"\xff", "control characters"),
    (b"{\\rtf1 Hello}", "RTF"), (b"\x89PNG\r\n\x1a\n0000", "PNG"), (b"\xff\xd8\xff\xe0", "JPEG"), (b"\x7fELF\2\1", "program"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Office"), (gzip.compress(b"text"), "gzip"), (b"GGUF\3\0\0\0", "GGUF"),
    (b"%!PS-Adobe-3.0\n", "ghostscript"),
])
def test_what_is_no_text_is_refused_by_name(content, says, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    refuses(FAILED, "ask", "-m", GQA, "-f", tmp_path / "a.txt", "--no-cache", *GREEDY, "Who?", says=["a.txt", says])
    chat = butler("chat", "-m", GQA, *GREEDY, input=f"/file {tmp_path / 'a.txt'}\nHello\n")  # the conversation goes on
    assert says in chat.stderr and chat.stdout


# --------------------------------------------------------------------------------------------------- formats

PAGE = """<!-- made by hand --><!DOCTYPE html><html><head><title>My &quot;page&quot;</title><script>var x = "<p>no</p>";</script>
<style>p { color: red }</style></head><body><h1>Head</h1><p>One
   two <b>th</b>ree</p><ul><li>a<li>b</ul><table><tr><td>1<td>2<tr><td>3<td>4</table><pre>  x
  y</pre>&copy; &eacute;nd<br>last</body></html>"""
PAGE_TEXT = 'My "page"\n\nHead\n\nOne two three\n\n- a\n- b\n\n1\t2\n3\t4\n\n  x\n  y\n\n© énd\nlast\n'


@libxml
@pytest.mark.parametrize("name, content, text", [
    ("a.txt", PAGE.encode(), PAGE_TEXT), ("a.html", b"<p>No <i>head</i>", "No head\n"),
    ("a.html", PAGE.encode("utf-16"), PAGE_TEXT), ("a.html", '<p>Zoë'.encode(), "Zoë\n"),
    ("a.html", '<meta charset="iso-8859-2"><p>Za\u017c\u00f3\u0142\u0107'.encode("iso-8859-2"), "Za\u017c\u00f3\u0142\u0107\n"),
    ("a.xhtml", b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>x</p></body></html>', "x\n"),
    ("a.html", b"<p>&lol; &#x41; &amp;lt;</p>", "&lol; A &lt;\n"),
])
def test_html(name, content, text, tmp_path):
    (tmp_path / name).write_bytes(content)
    becomes(tmp_path / name, text, "HTML")


def paragraph(text):
    return f"<w:p><w:pPr><w:tabs><w:tab w:val='left'/></w:tabs></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


@libarchive
def test_docx(tmp_path):
    path = tmp_path / "a.docx"
    cells = "".join(f"<w:tc>{paragraph(x)}</w:tc>" for x in "ab")
    path.write_bytes(documents.docx(paragraph("Zo\u00eb &amp; I") + "<w:p/>" + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
                                    "<w:p><w:r><w:t>x</w:t><w:tab/><w:t>y</w:t><w:br/><w:delText>gone</w:delText><w:t>z</w:t></w:r></w:p>"))
    becomes(path, "Zo\u00eb & I\n\na \tb\nx\ty\nz\n", "docx")
    moved = "<w:moveFrom><w:r><w:t>there</w:t></w:r></w:moveFrom><w:moveTo><w:r><w:t>here</w:t></w:r></w:moveTo>"
    path.write_bytes(documents.docx(f"<w:p><w:r><w:t>555</w:t><w:noBreakHyphen/><w:t>1234</w:t><w:cr/><w:t>next</w:t></w:r>{moved}</w:p>"))
    becomes(path, "555-1234\nnexthere\n", "docx")


@libarchive
def test_odt(tmp_path):
    path = tmp_path / "a.odt"
    path.write_bytes(documents.odt('<text:h>Head</text:h><text:p>a<text:s text:c="3"/>b<text:tab/>c<text:line-break/>d</text:p>'
                                   "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
                                   "<table:table><table:table-row><table:table-cell><text:p>1</text:p></table:table-cell>"
                                   "<table:table-cell><text:p>2</text:p></table:table-cell></table:table-row></table:table>"))
    becomes(path, "Head\na   b\tc\nd\n1 \t2\n", "odt")


@libarchive
def test_epub(tmp_path):
    path = tmp_path / "a.epub"
    path.write_bytes(documents.epub("<html><body><h1>One</h1><p>\u00e9</p></body></html>", "<html><body><p>Two&nbsp;x</p></body></html>",
                                    names=["z 1.xhtml", "a.xhtml"]))
    becomes(path, "One\n\n\u00e9\n\nTwo\u00a0x\n\n", "EPUB of 2 parts")
    pages = ("<p>One</p>", "<p>Two</p>", "<p>Three</p>")
    path.write_bytes(documents.epub(*pages, names=["./a.xhtml", "../text/b.xhtml", "c.xhtml#top"], members=["OEBPS/a.xhtml", "text/b.xhtml", "OEBPS/c.xhtml"]))
    becomes(path, "One\n\nTwo\n\nThree\n\n", "EPUB of 3 parts")
    path.write_bytes(documents.epub(*pages, names=["a.xhtml", "b.xhtml", "c.xhtml"], members=["OEBPS/a.xhtml", "elsewhere", "OEBPS/c.xhtml"]))
    becomes(path, "One\n\nThree\n\n", "EPUB of 2 parts; 1 more are missing")


def test_a_tar_archive_is_no_text(tmp_path):
    """Its header is letters, digits and zeros."""
    (tmp_path / "a.txt").write_text("Some words.\n" * 99)
    subprocess.run(["tar", "-cf", "a.tar", "a.txt"], cwd=tmp_path, check=True)
    assert "a tar archive" in converted(tmp_path / "a.tar")


@pytest.mark.parametrize("text", ["GGUF is a format.\n", "RIFF, ID3 and OggS are others.\n", "A page that quotes %PDF-1.4 in a sentence.\n", "BZh was here.\n"])
def test_texts_that_begin_like_other_files(text, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(text)
    becomes(path, text)


@poppler
def test_pdf(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(documents.pdf("Page one", "Page two"))
    becomes(path, "Page one\n\nPage two\n\n", "PDF of 2 pages")


def converted(path, limit=None):
    """What the command says of a document, with the bytes that its processes may write and the seconds that it takes bounded."""
    began = time.monotonic()
    result = subprocess.run([BUTLER, "ask", "-m", GQA, "-f", str(path), "--no-cache", *GREEDY, "Who?"], capture_output=True, timeout=120,
                            cwd=path.parent, preexec_fn=limit)
    assert result.returncode == FAILED and result.stdout == b"", result
    assert time.monotonic() - began < 60
    return result.stderr.decode()


BODY = paragraph("&lol1;")
LAUGHS = '<!DOCTYPE l [<!ENTITY lol "lol"><!ENTITY lol1 "' + "&lol;" * 9 + '">]>'
OUTSIDE = '<!DOCTYPE l [<!ENTITY lol1 SYSTEM "file:///etc/passwd">]>'


@libarchive
@pytest.mark.parametrize("name, content, says", [
    ("bomb.docx", lambda: documents.zipped({"word/document.xml": b" " * (300 << 20)}), "more than 256 MB"),
    ("many.docx", lambda: documents.zipped({f"{i}.bin": b"" for i in range(20001)}), "more than 20000 files"),
    ("laughs.docx", lambda: documents.docx(BODY, LAUGHS), "declares entities"),
    ("outside.docx", lambda: documents.docx(BODY, OUTSIDE), "declares entities"),
    ("deep.docx", lambda: documents.docx("<w:p>" * 1100 + "</w:p>" * 1100), "not well formed"),
    ("cut.docx", lambda: documents.docx(paragraph("Hello" * 500))[:-300], "damaged"),
    ("cut.odt", lambda: documents.odt("<text:p>x")[:], "not well formed"),
    ("paths.epub", lambda: documents.epub("<p>x</p>", names=["../../../etc/passwd"]), "no text"),
    ("absolute.zip", lambda: documents.zipped({"/etc/passwd": "x", "../../x": "y"}), "none of docx, odt and epub"),
    ("sheet.xlsx", lambda: documents.zipped({"xl/workbook.xml": "<x/>"}), "spreadsheet"),
    ("empty.docx", lambda: documents.docx(""), "no text"),
    ("nothing.zip", lambda: documents.zipped({}), "none of docx"),
    ("headless.epub", lambda: documents.zipped({"mimetype": "application/epub+zip"}), "container.xml"),
])
def test_hostile_archives_end_in_an_error(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content())
    assert says in converted(path) and [x.name for x in tmp_path.iterdir()] == [name]


@libarchive
def test_every_cut_and_many_flips_of_a_docx(tmp_path):
    """Whatever is cut off or changed: text, or an error, and never a crash."""
    whole = documents.docx(paragraph("It was the best of times. " * 3))
    cases = [whole[:n] for n in range(4, len(whole), 97)] + [whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1:] for i in range(7, len(whole), 61)]
    path = tmp_path / "a.docx"
    for content in cases:
        path.write_bytes(content)
        result = subprocess.run([BUTLER, "run", "-m", GQA, "-f", path, "-n", "1"], capture_output=True, timeout=60)
        assert result.returncode in (0, FAILED), (result.returncode, result.stderr)
        assert result.returncode == 0 or b"a.docx: " in result.stderr


@libxml
def test_pages_that_nest_deep_end(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("<div>" * 200000 + "x")
    result = subprocess.run([BUTLER, "run", "-m", GQA, "-f", path, "-n", "1"], capture_output=True, timeout=120)
    assert result.returncode in (0, FAILED) and b"a.html" in result.stderr


@poppler
@pytest.mark.parametrize("name, content, says", [
    ("cut.pdf", lambda: documents.pdf("Hello")[:-40], "end is missing"),
    ("scan.pdf", lambda: documents.pdf("", ""), "OCR"),
    ("odd.pdf", lambda: b"%PDF-1.4\nnothing\n%%EOF\n", "damaged"),
    ("locked.pdf", lambda: documents.pdf("x").replace(b"/Root 1 0 R", b"/Root 1 0 R /Encrypt << /Filter /Standard /V 1 /R 2 /O (%s) /U (%s) /P -4 >> /ID [(a) (a)]"
                                                      % (b"o" * 32, b"u" * 32)), "encrypted"),
])
def test_damaged_pdfs_end_in_an_error(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content())
    assert says in converted(path)


@libxml
def test_memory_is_bounded(tmp_path):
    """A page that would take more memory than a conversion may have ends it, and not butler."""
    path = tmp_path / "a.html"
    path.write_bytes(b"<i>" * (20 << 20))
    said = converted(path)
    assert "cannot be converted" in said or "no text" in said or "no HTML" in said


def test_builds_without_the_libraries_name_format_and_package(tmp_path):
    out = tmp_path / "build"
    sources = [ROOT / "apps" / "cmd" / f"document_{name}_none.c" for name in ("pdf", "xml", "archive")]
    main = tmp_path / "main.c"
    main.write_text("""
#include <stdarg.h>
#include <stdio.h>
#include "cmd/document.h"
bool document_fail(struct document_result *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(result->error, sizeof result->error, format, args);
    va_end(args);
    return false;
}
int main(void)
{
    struct document_result results[3] = {{0}};
    if (document_from_pdf(0, 0, &results[0]) || document_from_html(0, 0, &results[1]) || document_from_archive(0, 0, &results[2]))
        return 1;
    for (int i = 0; i < 3; i++)
        puts(results[i].error);
    return 0;
}
""")
    subprocess.run(["cc", "-std=c11", f"-I{ROOT}/apps", "-o", out, main, *sources], check=True)
    said = subprocess.run([out], check=True, capture_output=True, text=True).stdout.splitlines()
    for line, words in zip(said, (("PDF", "libpoppler-glib-dev"), ("HTML", "libxml2-dev"), ("docx", "libarchive-dev")), strict=True):
        assert all(word in line for word in words)


# ---------------------------------------------------------------------------------------- longer than the context

@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """The small model, as if it had been trained for 512 tokens: what streaming keeps, and reads at a time, fits."""
    from gguf_file import U32, Gguf
    path = tmp_path_factory.mktemp("long") / "m.gguf"
    model = Gguf(GQA)
    model.put("llama.context_length", U32, 512)
    model.write(path)
    return path


def test_a_text_beyond_the_context_says_what_the_choices_are(long_model, tmp_path):
    (tmp_path / "a.txt").write_text("It was the best of times. " * 200)
    for command in (["ask", "--no-cache", "Who?"], ["run"]):
        for policy in ("full", "quest:budget=64,dense=0", "streaming:rope=original"):
            said = refuses(FAILED, *command, "-m", long_model, "-f", tmp_path / "a.txt", *GREEDY, "--kv", policy,
                           says=["trained for 512", "another model", "in parts", "--kv streaming"]).stderr
            assert "-c " not in said
        # Nor is it proposed where the model cannot: what streaming reads at a time is more than its context.
        said = refuses(FAILED, *command, "-m", GQA, "-f", tmp_path / "a.txt", *GREEDY, says=["another model"]).stderr
        assert "streaming" not in said and "-c " not in said
    (tmp_path / "b.txt").write_text("It was the best of times. " * 10)
    n = len(rows("tokenize", "-m", long_model, "-f", tmp_path / "b.txt")[0]["ids"])
    refuses(FAILED, "run", "-m", long_model, "-f", tmp_path / "b.txt", "-c", "100", "-n", "9", says=[f"-c {n + 9} holds them"])


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
def test_streaming_of_a_real_model_predicts_beyond_its_context(tmp_path):
    """SmolLM2 as if it had been trained for 384 tokens, and a text of twice as many. With positions inside the cache the
    perplexity stays that of a text (29.9 was measured); the memory does not depend on the length."""
    from gguf_file import U32, Gguf
    path = tmp_path / "m.gguf"
    model = Gguf(SMOLLM2)
    model.put("llama.context_length", U32, 384)
    model.write(path)
    text = ROOT / "models" / "long_text.txt"
    out = rows("eval", "ppl", "-m", path, "--data", text, "--length", 768, "--limit", 1, "--kv", "streaming:budget=96,rope=cache")
    assert [25 < row["value"] < 35 for row in out if row["metric"] == "ppl"] == [True]
    memory = set()
    for n_bytes in (2000, 4000):
        (tmp_path / "a.txt").write_bytes(text.read_bytes()[:n_bytes])
        stats = rows("run", "-m", path, "-f", tmp_path / "a.txt", *GREEDY, "--kv", "streaming:budget=96")[-1]["stats"]
        assert stats["n_prefill"] > 384
        memory.add((stats["kv_memory"], stats["kv_memory_peak"]))
    assert len(memory) == 1


def test_streaming_takes_any_length_in_constant_memory(long_model, tmp_path):
    memory = {}
    for times in (1, 4, 16):
        (tmp_path / "a.txt").write_text("It was the best of times. " * 40 * times)
        row = rows("run", "-m", long_model, "-f", tmp_path / "a.txt", *GREEDY, "--kv", "streaming:budget=128")[-1]
        stats = row["stats"]
        assert stats["n_prefill"] > 512 * times and len(row["ids"]) == 12 and "rope=cache" in stats["policy"]
        memory[times] = stats["kv_memory"], stats["kv_memory_peak"]
        asked = butler("ask", "-m", long_model, "-f", tmp_path / "a.txt", "--no-cache", *GREEDY, "--kv", "streaming:budget=128", "Who?")
        assert asked.stdout.strip() and "forgets what is between" in asked.stderr
    assert len(set(memory.values())) == 1
    (tmp_path / "a.txt").write_text("It was the best of times. ")  # a short one is read as it always was
    row = rows("run", "-m", long_model, "-f", tmp_path / "a.txt", *GREEDY, "--kv", "streaming:budget=128")[-1]
    assert row["stats"]["policy"] == "streaming:budget=128"
