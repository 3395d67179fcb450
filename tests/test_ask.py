"""Questions about documents: the prompt they make, the folder of sessions that have read documents, and what is refused."""
import os
import subprocess
import time

import pytest

from cli import FAILED, GQA, MODELS, N_CTX, ROOT, USAGE, butler, refuses, rows, with_values
from test_smollm2 import MODEL as SMOLLM2

GREEDY = ["--temp", "0", "-n", "10"]
TEXT = "It was the best of times, it was the worst of times."


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A file whose name, which is part of the prompt, is short."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return "a.txt"


def ask(document, question, *args, model=GQA, cache="kept", **options):
    return butler("ask", "-m", model, "-f", document, "--cache", cache, *GREEDY, *args, question, **options)


def kept(folder="kept"):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def prompt_tokens(result):
    return int(result.stderr.split(" prompt tokens")[0].split()[-1])


def answer_to(prompt, *args):
    return rows("run", "-m", GQA, "-p", prompt, *GREEDY, *args)[-1]["text"].lstrip(" \n") + "\n"


def test_documents_stand_before_the_question(document, tmp_path):
    """The prompt written out by hand and run gives the same answer. The plain template is that of a model without one."""
    (tmp_path / "b").write_text("Two\n")
    prompt = f"User: a.txt:\n\n{TEXT}\n\nb:\n\nTwo\n\n\nQuestion: Who?\nAssistant:"
    assert ask(document, "Who?", "-f", "b").stdout == answer_to(prompt)
    assert ask(document, "Who?", "-f", "b", "--system-prompt", "Be kind.").stdout == answer_to("Be kind.\n" + prompt)


def test_standard_input_is_a_document():
    result = butler("ask", "-m", GQA, "-f", "-", "--no-cache", *GREEDY, "Who?", input=TEXT)
    assert result.stdout == answer_to(f"User: standard input:\n\n{TEXT}\n\nQuestion: Who?\nAssistant:")


@pytest.mark.parametrize("policy", ["full", "quest:budget=32,dense=0", "fier:budget=32,dense=0", "random:budget=32"])
def test_second_question_starts_from_what_was_read(policy, document):
    decode = ["--kv", policy]
    first = ask(document, "Who?", *decode)
    other = ask(document, "What was it?", *decode)
    again = ask(document, "Who?", *decode)
    assert len(kept()) == 1 and "read before" not in first.stderr
    assert "read before" in other.stderr and "read before" in again.stderr and kept()[0] in again.stderr
    assert prompt_tokens(again) < 30 < prompt_tokens(first)
    assert again.stdout == first.stdout
    assert other.stdout == ask(document, "What was it?", "--no-cache", *decode).stdout


@pytest.mark.parametrize("change", [["--kv", "fier:budget=32,dense=0"], ["--kv-type", "f32"], ["-c", "200"],
                                    ["--system-prompt", "Be kind."], ["-m", str(MODELS / "llama-mha.gguf")]])
def test_what_the_state_depends_on_is_kept_apart(change, document):
    ask(document, "Who?")
    changed = ask(document, "Who?", *change)
    assert "read before" not in changed.stderr and "warning" not in changed.stderr and len(kept()) == 2
    assert "read before" in ask(document, "Who?").stderr


def test_seeds_share_what_was_read_but_of_random(document):
    ask(document, "Who?")
    assert "read before" in ask(document, "Who?", "-s", "-1", "--temp", "1").stderr
    ask(document, "Who?", "--kv", "random:budget=32")
    assert "read before" not in ask(document, "Who?", "--kv", "random:budget=32", "-s", "3").stderr


def test_other_documents_are_read(document, tmp_path):
    ask(document, "Who?")
    (tmp_path / document).write_text(TEXT.replace("best", "rest"))
    assert "read before" not in ask(document, "Who?").stderr and len(kept()) == 2


@pytest.mark.parametrize("policy", ["snapkv:budget=64", "h2o:budget=64", "streaming:budget=64", "fier:method=evict,budget=64"])
def test_nothing_is_kept_where_the_question_decides(policy, document):
    first = ask(document, "Who?", "--kv", policy)
    assert "not kept" in first.stderr and policy in first.stderr and not os.path.exists("kept")
    assert first.stdout == answer_to(f"User: a.txt:\n\n{TEXT}\n\nQuestion: Who?\nAssistant:", "--kv", policy)


def test_damaged_and_foreign_files_are_written_anew(document, tmp_path):
    good = ask(document, "Who?")
    path = tmp_path / kept()[0]
    whole = path.read_bytes()
    butler("run", "-m", GQA, "-p", "x", "-n", "1", "--save-session", "foreign")
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content in (damaged, whole[:100], b"", b"no session" * 100, (tmp_path / "foreign").read_bytes()):
        path.write_bytes(content)
        result = ask(document, "Who?")
        assert result.stdout == good.stdout and "warning" in result.stderr and kept()[0] in result.stderr
        assert path.read_bytes() == whole and len(kept()) == 1
    assert "warning" not in ask(document, "Who?").stderr


def test_folder_is_bounded(document, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "note").write_text("not ours" * 100000)
    ask(document, "Who?")
    size = next(os.path.getsize(path) for path in kept() if path.endswith(".session"))
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(TEXT)
        time.sleep(0.02)
        ask(f"{i}.txt", "Who?", "--cache-size", 7 * size // 2)
        ask(document, "Who?", "--cache-size", 7 * size // 2)  # used each time, so that it stays
    assert len(kept()) == 1 + 3 and (tmp_path / "kept" / "note").exists()
    assert "read before" in ask(document, "Who?").stderr and "read before" in ask("2.txt", "Who?").stderr
    assert "read before" not in ask("0.txt", "Who?").stderr
    small = ask(document, "Who?", "--cache-size", "1K", cache="other")
    assert "--cache-size" in small.stderr and not os.path.exists("other")


def test_where_it_is_kept(document, tmp_path):
    plain = ["ask", "-m", GQA, "-f", document, *GREEDY]
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "x")}
    butler(*plain, "Who?", env=environment)
    sessions = [name for name in kept("x/butler") if name.endswith(".session")]
    assert len(sessions) == 1 and len(kept("x/butler")) <= 2  # and the model's fingerprint, if the model is not brand new
    assert os.stat("x/butler").st_mode & 0o777 == 0o700
    butler(*plain, "Who?", env={**environment, "XDG_CACHE_HOME": "relative"})
    assert len(kept("home/.cache/butler")) == len(kept("x/butler")) and not os.path.exists("relative")
    butler(*plain, "--no-cache", "Who?", env={**environment, "XDG_CACHE_HOME": str(tmp_path / "y")})
    assert not list((tmp_path / "y").rglob("*.session"))
    (tmp_path / "file").write_text("")
    result = ask(document, "Who?", cache="file/below")
    assert "warning" in result.stderr and "file/below" in result.stderr and result.stdout


def test_a_plug_in_that_is_not_used_changes_nothing(document, tmp_path):
    plugin = tmp_path / "value_norm.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{ROOT}/include", str(ROOT / "examples/plugin.c"), "-o", str(plugin), "-lm"], check=True)
    plain = ask(document, "Who?")
    loaded = ask(document, "Who?", "--plugin", plugin, cache="loaded")
    note = "depends on the question"
    assert loaded.stdout == plain.stdout and note not in loaded.stderr and len(kept("loaded")) == 1
    assert "read before" in ask(document, "What?", "--plugin", plugin).stderr
    used = ask(document, "Who?", "--plugin", plugin, "--kv", "value_norm:budget=32", cache="used")
    assert note in used.stderr and not os.path.exists("used")


def test_a_template_that_changes_the_documents(document, tmp_path):
    """Where the documents do not stand in the text as they are, nothing is kept and the answer is right."""
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert ask(document, "Who?", model=model).stdout == answer_to(f"A.TXT:\n\n{TEXT.upper()}\n\nQUESTION: WHO?".upper())
    assert not os.path.exists("kept")


def test_what_is_refused(document, tmp_path):
    start = ["ask", "-m", GQA]
    refuses(USAGE, *start, "Who?", says=["-f FILE"])
    refuses(USAGE, *start, "-f", document, says=["usage", "QUESTION"])
    refuses(USAGE, *start, "-f", document, "Who?", "else", says=["else"])
    refuses(USAGE, *start, "-f", document, "--kv", "full", "--kv", "quest", "Who?", says=["--kv"])
    for size in ("-1", "1X", "1GB", "", "99999999999T"):
        refuses(USAGE, *start, "-f", document, "--cache-size", size, "Who?", says=["--cache-size", "1024"])
    refuses(FAILED, *start, "-f", "absent.txt", "Who?", says=["absent.txt", "No such file"])
    (tmp_path / "zero").write_bytes(b"ab\0c")
    refuses(FAILED, *start, "-f", "zero", "Who?", says=["zero", "byte 2"])


def test_documents_longer_than_the_context(document, tmp_path):
    (tmp_path / document).write_text(TEXT * 20)
    n = len(rows("tokenize", "-m", GQA, "-p", f"User: a.txt:\n\n{TEXT * 20}\n\nQuestion: Who?\nAssistant:")[0]["ids"])
    result = refuses(FAILED, "ask", "-m", GQA, "-f", document, "--cache", "kept", *GREEDY, "Who?", says=[N_CTX, f"-c {n + 10}"])
    assert str(n) in result.stderr
    assert ask(document, "Who?", "-c", n + 10).stdout


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
def test_a_real_model_answers_from_the_document(document, tmp_path):
    text = (ROOT / "models" / "long_text.txt").read_text()[:4000]
    half = text.index(". ", 2000) + 2
    (tmp_path / document).write_text(text[:half] + "The access code of the archive is 73914. Remember it. " + text[half:])
    for question, answer in (("What is the access code of the archive?", "73914"), ("What is to be remembered?", "")):
        cold = ask(document, question, "-n", "16", "--no-cache", model=SMOLLM2)
        ask(document, question, "-n", "1", model=SMOLLM2)
        warm = ask(document, question, "-n", "16", model=SMOLLM2)
        assert cold.stdout == warm.stdout and answer in warm.stdout
        assert prompt_tokens(warm) < 40 < 800 < prompt_tokens(cold)
