"""The chat of the server's page in headless Chromium: what it shows is what it sends, however an answer ends, and what it keeps. Answers
are written by a relay, so that they end as they should."""
import contextlib
import json
import time

import pytest

import browser
from relay import Relay
from test_serve import Server, pytestmark  # noqa: F401  without libevent all are skipped
from test_serve_page import Visit

pytestmark = [pytestmark, pytest.mark.skipif(not browser.CHROMIUM, reason="chromium is absent (./setup --tests)")]

FILES = {"first.txt": "Alpha is the first letter.\n\nIt has one sound.", "second.txt": "What is asked? Beta is the second: [x](y)."}
TURNS = """[...document.querySelectorAll('#log .message')].map(e => ({
    role: e.classList.contains('user') ? 'user' : 'assistant', text: e.querySelector('.text').textContent,
    files: [...e.querySelectorAll('.files li')].map(file => file.textContent)}))"""


class Chat(Visit):
    """A page whose questions go by way of a relay."""

    def __init__(self, *flags, width=1280):
        self.server = Server(*flags)
        self.relay = Relay(self.server.port)
        super().__init__(self.relay, width)
        self.ready()

    def ready(self):
        self.browser.wait("document.querySelector('#log') && document.querySelector('#log').children.length")
        self.browser.wait("document.querySelector('#model').textContent")

    def shown(self):
        """The turns on the screen, as messages: a file stands for its text."""
        return [{"role": turn["role"], "content": "".join(f"{name}:\n\n{FILES[name]}\n\n" for name in turn["files"]) + turn["text"]}
                for turn in self.browser.run(TURNS)]

    def chips(self):
        return self.browser.run("[...document.querySelectorAll('.chip')].map(e => e.firstChild.textContent.trim())")

    def add(self, *names):
        files = ", ".join(f"new File([{json.dumps(FILES[name])}], '{name}')" for name in names)
        self.browser.run(f"import('/page/files.js').then(m => m.addFiles([{files}]))")

    def answer(self, question, pieces, end):
        """Asks, and waits until the answer has ended so."""
        n = len(self.relay.bodies)
        self.relay.script = pieces, end
        self.ask(question)
        self.ended(n, pieces, end)

    def ended(self, n, pieces, end):
        """Waits until the question that follows n others has been sent and answered."""
        while len(self.relay.bodies) == n:
            time.sleep(0.02)
        if end in ("silent", "lost") and pieces:
            self.browser.wait(f"document.querySelector('#log .message:last-child .text').textContent === {''.join(pieces)!r}")
        if end == "silent":
            self.browser.click("document.querySelector('#stop')")
        elif end == "lost":
            self.relay.cut.set()
        self.browser.wait("!document.querySelector('#send').hidden")

    def reload(self):
        self.browser.run("import('/page/store.js').then(m => m.save())")
        self.browser.call("Page.reload")
        self.browser.wait("document.readyState === 'complete'")
        self.ready()

    def end(self):
        self.browser.said = [line for line in self.browser.said if "net::ERR_" not in line and "429" not in line]  # Chromium's own
        super().end()
        assert self.server.stop() == 0


@contextlib.contextmanager
def chat(*flags, **fields):
    page = Chat(*flags, **fields)
    try:
        yield page
        page.end()
    finally:
        page.relay.stop()
        page.server.process.kill()
        page.browser.process.kill()


ENDS = {"done": "", "silent": "Stopped.", "error": "the engine has no memory left", "lost": "The connection was lost.",
        "short": "The connection was lost."}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_shown_is_sent(end):
    with chat() as page:
        page.add("first.txt", "second.txt")
        page.answer("What is alpha?", ["A let", "ter, the fir"], end)
        shown = page.shown()
        assert [turn["role"] for turn in shown] == ["user", "assistant"] and shown[1]["content"] == "A letter, the fir"
        assert page.browser.run("[...document.querySelectorAll('.note')].map(e => e.textContent)") == ([ENDS[end]] if ENDS[end] else [])
        assert not page.chips() and page.browser.run("document.querySelector('#question').value") == ""
        page.reload()
        assert page.shown() == shown
        page.answer("And beta?", ["Two."], "done")
        assert page.relay.bodies[-1]["messages"] == shown + [{"role": "user", "content": "And beta?"}]
        assert page.shown() == [*page.relay.bodies[-1]["messages"], {"role": "assistant", "content": "Two."}]


@pytest.mark.parametrize("end", ["silent", "error", "lost", "short", "refused"])
def test_a_question_without_an_answer_comes_back(end):
    """It is neither shown nor sent as a turn: it stands where it was written, with its files."""
    with chat() as page:
        page.answer("Hello?", ["Hi."], "done")
        before = page.shown()
        page.add("first.txt")
        page.answer("What is alpha?", [], end)
        assert page.shown() == before and page.chips() == ["first.txt"]
        assert page.browser.run("document.querySelector('#question').value") == "What is alpha?" and page.text(".error")
        page.reload()
        assert page.shown() == before and page.chips() == ["first.txt"]
        page.relay.script = ["A letter."], "done"
        page.browser.run("document.querySelector('#composer').requestSubmit()")
        page.browser.wait("document.querySelectorAll('.actions').length === 2")
        assert page.shown() == [*page.relay.bodies[-1]["messages"], {"role": "assistant", "content": "A letter."}]
        assert len(page.shown()) == 4 and not page.browser.run("document.querySelector('.error')")


def test_a_page_that_is_closed_in_mid_answer():
    with chat() as page:
        page.relay.script = ["Half an ans"], "silent"
        page.ask("Hello?")
        page.browser.wait("document.querySelector('.assistant .text').textContent === 'Half an ans'")
        page.reload()
        assert page.shown() == [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Half an ans"}]
        assert "closed" in page.text(".note")
        page.relay.script = [], "silent"
        page.ask("And now?")
        page.browser.wait("document.querySelectorAll('.message').length === 4")
        page.reload()
        assert len(page.shown()) == 2 and page.browser.run("document.querySelector('#question').value") == "And now?"


def test_reasoning_is_shown_and_sent():
    with chat() as page:
        page.answer("Six times seven?", [{"reasoning_content": "6 * 7 is 42."}, "It is 42."], "done")
        assert page.text(".reasoning div") == "6 * 7 is 42." and page.text(".assistant .text") == "It is 42."
        page.answer("Sure?", ["Yes."], "done")
        assert page.relay.bodies[-1]["messages"][1] == {"role": "assistant", "content": "It is 42.", "reasoning_content": "6 * 7 is 42."}


def test_an_answer_is_written_again():
    with chat() as page:
        page.answer("Hello?", ["One."], "done")
        page.answer("And?", ["Two."], "done")
        assert page.browser.run("document.querySelectorAll('.again').length") == 1
        sent = page.relay.bodies[-1]["messages"]
        for pieces, end, text in ((["Three."], "done", "Three."), ([], "error", "Three."), (["Fo"], "lost", "Fo")):
            page.relay.script = pieces, end
            n = len(page.relay.bodies)
            page.browser.click("document.querySelector('.again')")
            page.ended(n, pieces, end)
            assert page.relay.bodies[-1]["messages"] == sent and page.shown() == [*sent, {"role": "assistant", "content": text}]


def test_kept_exported_cleared(tmp_path):
    with chat(width=375) as page:
        page.browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        page.add("first.txt")
        page.answer("What is alpha?", ["A *letter*."], "done")
        page.add("second.txt")
        page.browser.run("document.querySelector('#question').focus()")
        page.browser.type("half a quest")
        page.reload()
        assert page.chips() == ["second.txt"] and page.browser.run("document.querySelector('#question').value") == "half a quest"
        page.browser.click("document.querySelector('#export')")
        file = tmp_path / "conversation.json"
        end = time.time() + 20
        while not file.exists() and time.time() < end:
            time.sleep(0.05)
        assert json.loads(file.read_text()) == {"messages": [*page.relay.bodies[-1]["messages"],
                                                             {"role": "assistant", "content": "A *letter*."}]}
        page.browser.click("document.querySelector('#clear')")
        page.browser.wait("document.querySelector('#intro')")
        page.reload()
        assert not page.shown() and not page.chips() and page.browser.run("document.querySelector('#question').value") == ""
        page.answer("Who?", ["I."], "done")
        assert page.relay.bodies[-1]["messages"] == [{"role": "user", "content": "Who?"}]


def test_answers_and_code_are_copied():
    with chat() as page:
        page.browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        answer = "**Two** lines:\n\n```c\nint a;\n\tint b;\n```\n"
        page.answer("Code?", [answer], "done")
        for button, text in ((".actions button", answer), ("figcaption button", "int a;\n\tint b;")):
            page.browser.click(f"document.querySelector('{button}')")
            page.browser.wait(f"document.querySelector('{button}').textContent === 'Copied'")
            assert page.browser.run("navigator.clipboard.readText()") == text


def test_the_servers_defaults():
    """A request holds only what was changed; the fields show what is in force."""
    with chat("--kv", "quest:budget=32,sinks=2", "--temp", "0.3") as page:
        page.browser.wait("document.querySelector('#in-force').textContent")
        assert page.text("#in-force") == "quest:budget=32,sinks=2, temperature 0.3"
        assert page.browser.run("['budget', 'temperature'].map(id => document.getElementById(id).placeholder)") == ["32", "0.3"]
        page.answer("Hello?", ["Hi."], "done")
        body = page.relay.bodies[-1]
        assert body["kv"] == {"map": True, "receipt": 4} and not {"temperature", "max_tokens", "top_p", "top_k"} & set(body)
        page.browser.run("document.querySelector('#budget').value = 16; document.querySelector('#temperature').value = '0,5';"
                         "document.querySelector('#record').checked = false; document.querySelector('#longest').value = 7;"
                         "document.querySelector('#settings').dispatchEvent(new Event('input'))")
        assert page.text("#in-force") == "quest:budget=16,sinks=2, temperature 0.5"
        page.answer("Hello?", ["Hi."], "done")
        body = page.relay.bodies[-1]
        assert body["kv"] == {"map": False, "policy": "quest:budget=16,sinks=2"} and (body["temperature"], body["max_tokens"]) == (0.5, 7)
        names = page.browser.run("[...document.querySelector('#policy').options].map(option => option.value)")
        assert names[0] == "" and {"full", "fier", "h2o", "tokenbutler2"} <= set(names)


def test_a_server_that_chooses():
    """--kv auto has no budget of its own to be changed; a policy that is named has."""
    with chat("--kv", "auto") as page:
        page.browser.wait("document.querySelector('#in-force').textContent")
        assert page.text("#in-force") == "auto, temperature 0.8" and page.browser.run("document.querySelector('#budget').disabled")
        page.browser.run("document.querySelector('#policy').value = 'fier'; document.querySelector('#budget').value = 16;"
                         "document.querySelector('#settings').dispatchEvent(new Event('input'))")
        assert page.text("#in-force") == "fier:budget=16, temperature 0.8" and not page.browser.run("document.querySelector('#budget').disabled")
        page.answer("Hello?", ["Hi."], "done")
        assert page.relay.bodies[-1]["kv"] == {"policy": "fier:budget=16", "map": True, "receipt": 4}
        page.browser.run("document.querySelector('#policy').value = ''; document.querySelector('#settings').dispatchEvent(new Event('input'))")
        page.answer("And now?", ["Hi."], "done")
        assert page.relay.bodies[-1]["kv"] == {"map": True, "receipt": 4}


def test_a_lossless_server():
    """The default request of the page is one that such a server takes."""
    with chat("--lossless") as page:
        page.browser.wait("document.querySelector('#record').disabled")
        page.relay.script = None
        page.browser.run("document.querySelector('#longest').value = 4")
        page.ask("Hello?")
        page.browser.wait("document.querySelector('.actions')")
        assert page.relay.bodies[-1]["kv"] == {"map": False} and not page.browser.run("document.querySelector('.error, .read')")


def test_two_tabs():
    """The second does not overwrite what the first keeps, and says that it is not kept."""
    with chat() as page:
        page.answer("Hello?", ["Hi."], "done")
        page.browser.run("import('/page/store.js').then(m => m.save())")
        target = page.browser.call("Target.createTarget", url=page.origin)["targetId"]
        first = page.browser.session
        page.browser.session = None
        second = page.browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page.browser.session = second
        page.ready()
        assert "not" in page.text("#said") and page.shown() == []
        page.browser.run("document.querySelector('#question').value = 'Two?'; document.querySelector('#composer').requestSubmit()")
        page.browser.wait("document.querySelector('.actions')")
        page.browser.session = first
        page.reload()
        assert page.shown()[0]["content"] == "Hello?"


def test_documents_of_a_prompt():
    """Tokens of documents are found in their turns, also where the question or the template has the same words."""
    with chat() as page:
        tokens = ["<s>", "sys", "tem: ", "a.txt", " a", " b", "\n", "user: ", "a.t", "xt:\n", "\n", "a", " b", "\n\n", "Where ", "is a b?",
                  "</s>", "assistant: ", "a b", "</s>", "user: ", "a b", "?", "</s>", "user: ", "c:\n\n", "c", "\n\n", "c?", "</s>"]
        turns = [{"role": "user", "text": "Where is a b?", "files": [{"name": "a.txt", "text": "a b"}]},
                 {"role": "assistant", "content": "a b", "reasoning": ""}, {"role": "user", "text": "a b?", "files": []},
                 {"role": "user", "text": "c?", "files": [{"name": "c", "text": "c"}]}]
        run = lambda turns: page.browser.run(f"import('/page/conversation.js').then(m => m.documentTokens({json.dumps(tokens)}, "
                                             f"{len(tokens)}, {json.dumps(turns)}))")
        assert run(turns) == [[11, 13], [26, 27]] and run(turns[2:3]) == []
        assert run([{"role": "user", "text": "?", "files": [{"name": "other", "text": "a b"}]}]) == []
        tokens = ["user: ", "c:\n\n", "c", "\n\n", "c?", "</s>", "user: ", "c:\n\nc", "\n\nc?", "</s>"]  # the same twice; a token holds more
        assert run([turns[3], turns[3]]) == [[2, 3], [7, 8]]
