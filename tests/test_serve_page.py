"""The server's page in headless Chromium: a document is dropped, a question asked, the answer streams, and the token map shows where it
was read. With BUTLER_PICTURE=FILE.png the test leaves a picture of the page (docs/serve/page.png)."""
import os
import re

import pytest

import browser
from cli import ROOT, SMOLLM2
from test_serve import Server, pytestmark  # noqa: F401  without libevent all are skipped

NEEDLE = "The pass key is 48213. Remember it."
SCRIPT = "<img src='/stolen' onerror='document.title=1'><script>document.title=2</script>"
drawn = pytest.mark.skipif(not browser.CHROMIUM, reason="chromium is absent (./setup --tests)")
asked = pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")


def test_files():
    """The page asks for nothing from elsewhere, says so, and needs no key; what it shows does."""
    server = Server("--api-key", "k")
    scripts = sorted(path.name for path in (ROOT / "apps" / "serve" / "page").glob("*.js"))
    kinds = {"/": "text/html", "/page/page.css": "text/css", **{f"/page/{name}": "text/javascript" for name in scripts}}
    for path, kind in kinds.items():
        status, headers, text = server.request("GET", path)
        assert status == 200 and headers["Content-Type"] == kind + "; charset=utf-8"
        assert "default-src 'none'" in headers["Content-Security-Policy"] and "unsafe" not in headers["Content-Security-Policy"]
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        assert text == (ROOT / "apps" / "serve" / "page" / name).read_bytes() and not re.search(rb"https?://|url\(|@import", text)
        assert server.request("HEAD", path)[2] == b"" and server.request("POST", path, {})[0] in (401, 404)
    assert server.request("GET", "/kv/map")[0] == 401 and server.request("GET", "/page/page.txt")[0] == 404
    for name in scripts:  # text becomes text nodes, and nothing that a text could hold is run
        text = (ROOT / "apps" / "serve" / "page" / name).read_text(encoding="utf-8")
        assert not re.search(r"(inner|outer)HTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|\beval\b|new Function", text), name
    assert server.stop() == 0


class Visit:
    """A page of a server, open in a browser."""

    def __init__(self, server, width=1280, height=800, dark=False):
        self.browser, self.origin = browser.Browser(width, height, dark), f"http://127.0.0.1:{server.port}/"
        self.browser.open(self.origin)
        self.browser.wait("document.querySelector('#log').children.length")  # the conversation that was kept, or an introduction

    def text(self, selector):
        return self.browser.run(f"document.querySelector({selector!r}).textContent")

    def ask(self, question):
        self.browser.run("document.querySelector('#question').focus()")
        self.browser.type(question)
        self.browser.key("Enter", "\r")

    def end(self):
        """Nobody else was asked, and nothing went wrong."""
        try:
            assert all(url.startswith((self.origin, "data:,")) for url in self.browser.requests), self.browser.requests
            assert not self.browser.said, self.browser.said
        finally:
            self.browser.close()


def document(folder):
    story = (ROOT / "models" / "long_text.txt").read_text(encoding="utf-8")
    story = re.sub(r"The pass key is 48213.*?is the pass key\.", "", story)
    path = folder / "report.txt"
    path.write_text(f"{story[:5000]}\n\n{SCRIPT}\n\n{NEEDLE}\n\n{story[5000:9000]}", encoding="utf-8")
    return path


@drawn
@asked
def test_a_question_about_a_file(tmp_path):
    server = Server("--kv", "fier:budget=256", model=SMOLLM2)
    visit = Visit(server)
    page = visit.browser
    page.wait("document.querySelector('#model').textContent")
    assert "smollm2" in visit.text("#model") and "fier:budget=256" in visit.text("#policy")
    page.drop(document(tmp_path))
    page.wait("document.querySelector('.chip')")
    page.run("document.querySelector('#longest').value = 24; document.querySelector('#temperature').value = 0")
    visit.ask("What is the pass key?")
    page.wait("/^\\d+ of \\d+ tokens, [\\d.]+ tokens.s, about .+ left$/.test(document.querySelector('#pace').textContent)", 120)  # it reads
    page.wait("document.querySelector('.assistant .text').textContent.length > 3 && !document.querySelector('.actions')", 120)  # it streams
    page.wait("document.querySelector('.read')", 60)
    page.click("document.querySelector('.read')")
    page.wait("document.querySelector('#map').dataset.token", 60)
    answer = page.run("[...document.querySelectorAll('.answer [role=option]')].map(e => e.textContent)")
    assert "48213" in "".join(answer) and "read" in visit.text(".cost")
    lines = (tmp_path / "report.txt").read_text(encoding="utf-8").split("\n")
    first = re.fullmatch(r"What was read has \d+ % of the attention. Most attention: report.txt, line (\d+)", visit.text(".receipt summary"))[1]
    passages = page.run("[...document.querySelectorAll('.receipt li')].map(e => [e.querySelector('b').textContent, e.querySelector('q').textContent])")
    assert 1 <= len(passages) <= 5 and passages[0][0] == f"report.txt:{first}"
    assert all(lines[int(place.split(":")[1]) - 1].strip().startswith(text.rstrip("…")) for place, text in passages), passages
    # The token of the key that is chosen by a click, then its neighbour by the keyboard.
    at = answer.index("4")
    page.click(f"document.querySelectorAll('.answer [role=option]')[{at}]")
    page.wait(f"document.querySelector('.answer [aria-selected=true]') === document.querySelectorAll('.answer [role=option]')[{at}]")
    page.run("document.querySelector('.answer').focus()")
    page.key("ArrowRight")
    page.wait("document.querySelector('#step').textContent.startsWith('To write “8” after “4”')")
    tokens = page.run("[...document.querySelectorAll('#text .token')].map(e => [e.textContent, e.title, e.classList.contains('unread')])")
    text = "".join(token[0] for token in tokens)
    assert SCRIPT in text and NEEDLE in text and "What is the pass key?" in text
    assert "48213" in page.run("document.querySelector('#places li').textContent"), "the document's most attended place is the needle"
    # The needle's "8", which comes next: read, and with more attention than nearly all tokens of the document.
    starts, offset = [], 0
    for token in tokens:
        starts.append(offset)
        offset += len(token[0])
    eight = starts.index(text.index(NEEDLE) + NEEDLE.index("8"))
    mass = [float(token[1].split(" %")[0]) for token in tokens]
    assert tokens[eight][0] == "8" and not tokens[eight][2] and sum(m > mass[eight] for m in mass[5:eight + 200]) < 10
    assert "read by 90 of 90 heads" in tokens[-1][1] and not any(token[2] for token in tokens)  # the first three layers read everything
    read, total, share = re.search(r"read (\S+) % of (\d+) tokens; they have (\S+) %", visit.text("#step")).groups()
    assert float(read) < 25 and int(total) == len(tokens) and float(share) > 50
    # One layer and head.
    page.run("(() => { const e = document.querySelector('#layer'); e.value = 12; e.dispatchEvent(new Event('change')); })()")
    page.wait("document.querySelector('#text .token').title.endsWith('of 3 heads')")
    page.run("(() => { const e = document.querySelector('#head'); e.value = 1; e.dispatchEvent(new Event('change')); })()")
    page.wait("document.querySelector('#text .token').title.endsWith('of 1 heads')")
    assert page.run("document.querySelectorAll('#text .unread').length") == len(tokens) - 256
    page.run("(() => { const e = document.querySelector('#layer'); e.value = ''; e.dispatchEvent(new Event('change')); })()")
    page.wait("document.querySelector('#text .token').title.endsWith('of 90 heads')")
    assert page.run("document.querySelectorAll('#grid td').length") == 90
    if os.environ.get("BUTLER_PICTURE"):
        page.resize(1280, 1000)
    page.run("document.querySelector('#places button').click()")
    if os.environ.get("BUTLER_PICTURE"):
        page.picture(os.environ["BUTLER_PICTURE"])
    # The document is remembered: of the next answer too, the places are its own, not the question's and not the template's.
    page.run("document.querySelector('#longest').value = 5")
    visit.ask("And what is the story about?")
    page.wait("document.querySelectorAll('.read').length === 2", 120)
    page.click("[...document.querySelectorAll('.read')].pop()")
    page.wait("document.querySelector('#map').dataset.token", 60)
    places = page.run("[...document.querySelectorAll('#places button')].map(e => e.childNodes[1].textContent.trim())")
    sent = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert len(places) == 5 and all(place in sent for place in places), places
    assert "And what is the story about?" in visit.text("#text")
    # A phone: nothing is wider than the screen; and the document was text.
    page.resize(375, 800)
    assert page.run("document.documentElement.scrollWidth") == 375
    assert page.run("[...document.querySelectorAll('.pick button, .pick select')].every((e, i, all) => e.offsetTop < all[0].offsetTop + 20)")
    assert page.run("document.querySelectorAll('img, #log script, #text script').length") == 0 and page.run("document.title") == "butler"
    visit.end()
    assert server.stop() == 0


@drawn
@asked
def test_what_goes_wrong_is_said():
    """A missing key, a policy that does not exist, a file that is no text, and an answer that is stopped."""
    server = Server("--api-key", "secret", model=SMOLLM2)
    visit = Visit(server, 375, 700, dark=True)
    page = visit.browser
    page.wait("!document.querySelector('#key-label').hidden")
    page.run("(() => { const e = document.querySelector('#key'); e.value = 'secret'; e.dispatchEvent(new Event('change')); })()")
    page.wait("document.querySelector('#in-force').textContent")
    page.run("document.querySelector('#options').open = true; document.querySelector('#policy').value = 'fier'; document.querySelector('#budget').value = 'x'")
    visit.ask("Hello?")
    page.wait("document.querySelector('.error')")
    assert "budget" in visit.text(".error") and page.run("document.querySelector('#question').value") == "Hello?"
    page.run("import('/page/files.js').then(m => m.addFiles([new File([new Uint8Array([255, 254, 0])], 'odd.bin')]))")
    page.wait("document.querySelector('#said').textContent.includes('odd.bin is no text')")
    assert page.run("document.querySelectorAll('.chip').length") == 0
    page.run("(() => { document.querySelector('#budget').value = 64; document.querySelector('#longest').value = 4000; document.querySelector('#temperature').value = 0; document.querySelector('#question').value = ''; })()")
    visit.ask("Count from 1 to 1000.")
    page.wait("document.querySelector('.assistant').textContent.length > 10", 60)
    page.click("document.querySelector('#stop')")
    page.wait("document.querySelector('#said').textContent === 'Stopped.' && !document.querySelector('#send').hidden")
    assert visit.text(".note") == "Stopped." and len(visit.text(".assistant .text")) > 3
    assert page.run("document.documentElement.scrollWidth") == 375
    assert page.run("[...document.querySelectorAll('.pick button, .pick select')].every((e, i, all) => e.offsetTop < all[0].offsetTop + 20)")
    # Controls are reached with the keyboard alone.
    page.run("document.activeElement.blur()")
    seen = set()
    for _ in range(20):
        page.key("Tab")
        seen.add(page.run("document.activeElement.id"))
    assert "budget" not in seen, "the policies of auto have budgets of their own"
    assert {"policy", "temperature", "longest", "record", "question", "send", "picker", "export", "clear", "log"} <= seen
    page.said = [line for line in page.said if "401" not in line and "400" not in line]  # Chromium logs the statuses
    visit.end()
    assert server.stop() == 0
