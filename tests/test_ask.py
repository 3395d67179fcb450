"""Questions about documents: the prompt they make, what was read once and is not read again, and what is refused."""
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli import BUTLER, FAILED, GQA, MODELS, N_CTX, ROOT, SMOLLM2, USAGE, butler, refuses, rows, with_values

GREEDY = ["--temp", "0", "-n", "10"]
TEXT = "It was the best of times, it was the worst of times."
N_KILLS = int(os.environ.get("BUTLER_KILLS", 20))


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A file whose name, which is part of the prompt, is short."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return "a.txt"


def long_text(folder, n=12):
    """More than two files' worth of tokens into the document."""
    (folder / "a.txt").write_text(" ".join(f"{i}. {TEXT}" for i in range(n)))


def ask(document, question, *args, model=GQA, cache="kept", **options):
    return butler("ask", "-m", model, "-f", document, "--cache", cache, *GREEDY, *args, question, **options)


def kept(folder="kept"):
    """Files of texts that were read."""
    return sorted(str(path) for path in Path(folder).rglob("*.kv"))


def tokens_read(result):
    """Prompt tokens that were read, and those that had been read before."""
    return tuple(map(int, re.search(r"(\d+) tokens read, (\d+) read before", result.stderr).groups()))


def prompt_of(question, documents, system=""):
    """The prompt written out by hand. The plain template is that of a model without one."""
    return "User: " + "".join(f"{text}\n\n(end of {name})\n\n" for name, text in documents) + system + f"Question: {question}\nAssistant:"


def answer_to(prompt, *args):
    return rows("run", "-m", GQA, "-p", prompt, *GREEDY, *args)[-1]["text"].lstrip(" \n") + "\n"


def test_documents_stand_before_the_question(document, tmp_path):
    (tmp_path / "b").write_text("Two\n")
    documents = [("a.txt", TEXT), ("b", "Two\n")]
    assert ask(document, "Who?", "-f", "b").stdout == answer_to(prompt_of("Who?", documents))
    assert ask(document, "Who?", "-f", "b", "--system-prompt", "Be kind.").stdout == answer_to(
        prompt_of("Who?", documents, "Be kind.\n\n"))


def test_standard_input_is_a_document():
    result = butler("ask", "-m", GQA, "-f", "-", "--no-cache", *GREEDY, "Who?", input=TEXT)
    assert result.stdout == answer_to(prompt_of("Who?", [("standard input", TEXT)]))


SAME_TEXT = {
    "question": [], "quest": ["--kv", "quest:budget=64,dense=0"], "fier": ["--kv", "fier:budget=64,dense=0"],
    "budget": ["--kv", "fier:budget=96,dense=0"], "random": ["--kv", "random:budget=64"], "tova": ["--kv", "tova:budget=64"],
    "context": ["-c", "2000"], "seed": ["-s", "-1"], "threads": ["-t", "1"], "lossless": ["--lossless=2", "--kv", "fier:budget=64"],
    "system prompt": ["--system-prompt", "Be kind."],
}


@pytest.mark.parametrize("change", SAME_TEXT)
def test_a_text_is_read_once(change, document, tmp_path):
    """Whatever else changes, only what stands behind the document is read; the answer is that of a fresh read."""
    long_text(tmp_path)
    other = ["-c", "1000", *SAME_TEXT[change]]
    n_all = sum(tokens_read(ask(document, "Who?", "-c", "1000")))
    changed = ask(document, "What was it?", *other)
    n, n_before = tokens_read(changed)
    assert n_all > 500 and n_before > n_all - 60 and n < 90
    assert changed.stdout == ask(document, "What was it?", "--no-cache", *other).stdout
    assert tokens_read(ask(document, "What was it?", "--no-cache", *other)) == (n + n_before, 0)


def test_sums_over_a_document_are_kept_where_it_ends(document, tmp_path):
    long_text(tmp_path)
    h2o = ["-c", "1000", "--kv", "h2o:budget=64"]
    ask(document, "Who?", *h2o)
    second = ask(document, "What was it?", *h2o)
    n, n_before = tokens_read(second)
    assert n_before > 500 and n < 90
    assert second.stdout == ask(document, "What was it?", "--no-cache", *h2o).stdout


def test_another_name_and_an_appended_line_are_read_alone(document, tmp_path):
    long_text(tmp_path)
    n_all = sum(tokens_read(ask(document, "Who?", "-c", "1000")))
    (tmp_path / "renamed.txt").write_text((tmp_path / document).read_text())
    assert tokens_read(ask("renamed.txt", "Who?", "-c", "1000"))[0] < 60
    with open(tmp_path / document, "a") as file:
        file.write(" It was the age of wisdom.")
    assert tokens_read(ask(document, "Who?", "-c", "1000"))[0] < 90
    assert sum(tokens_read(ask(document, "Who?", "-c", "1000"))) > n_all


def test_chat_goes_on_from_what_ask_read(document, tmp_path):
    long_text(tmp_path)
    ask(document, "Who?", "-c", "1000")
    chat = butler("chat", "-m", GQA, "-f", document, "--cache", "kept", "-c", "1000", *GREEDY, input="Who?\n")
    known, n = map(int, re.search(r"(\d+) of (\d+) tokens were read before", chat.stderr).groups())
    assert n > 500 and known > n - 60
    assert chat.stdout == butler("chat", "-m", GQA, "-f", document, "--no-cache", "-c", "1000", *GREEDY, input="Who?\n").stdout


def test_run_reads_a_file_once(document, tmp_path):
    long_text(tmp_path)
    run = ["run", "-m", GQA, "-f", document, "-c", "1000", *GREEDY, "--cache", "kept"]
    first, again = rows(*run)[-1], rows(*run, "--kv", "snapkv:budget=64")[-1]
    fresh = rows(*run[:-2], "--no-cache", "--kv", "snapkv:budget=64")[-1]
    assert first["stats"]["n_library"] == 0 and first["stats"]["n_prefill"] > 500
    assert again["stats"]["n_prefill"] == 32 and again["stats"]["n_library"] == first["stats"]["n_prefill"] - 32
    assert again["text"] == fresh["text"] and fresh["stats"]["n_library"] == 0


@pytest.mark.parametrize("change", [["--kv-type", "f32"], ["-m", str(MODELS / "llama-mha.gguf")], ["--isa", "ref"], ["--prompt-precision", "16"]])
def test_what_rows_depend_on_is_kept_apart(change, document):
    ask(document, "Who?")
    assert tokens_read(ask(document, "Who?", *change))[1] == 0
    assert tokens_read(ask(document, "Who?"))[0] == 1


def test_other_documents_are_read(document, tmp_path):
    ask(document, "Who?")
    (tmp_path / document).write_text(TEXT.replace("It was the best", "He was the rest"))
    assert tokens_read(ask(document, "Who?"))[1] < 10


def test_damaged_files_are_named_and_written_anew(document, tmp_path):
    """tests/test_library.c has all kinds of damage."""
    good = ask(document, "Who?")
    path = tmp_path / kept()[0]
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content in (damaged, whole[:100], b"", b"no block" * 100):
        path.write_bytes(content)
        result = ask(document, "Who?")
        assert result.stdout == good.stdout and "warning" in result.stderr and kept()[0] in result.stderr
        assert path.read_bytes() == whole and len(kept()) == 1
    assert "warning" not in ask(document, "Who?").stderr


def test_a_full_disk_is_a_warning(document):
    good = ask(document, "Who?", cache="other")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    result = ask(document, "Who?", preexec_fn=limit)
    assert result.stdout == good.stdout and "File too large" in result.stderr and not kept()
    assert not list(Path("kept").rglob("*.tmp"))


def test_two_processes_read_one_text(document, tmp_path):
    long_text(tmp_path)
    command = [BUTLER, "ask", "-m", GQA, "-f", document, "--cache", "kept", "-c", "1000", *GREEDY, "Who?"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    answers = {process.communicate(timeout=60)[0] for process in both}
    assert len(answers) == 1 and all(process.returncode == 0 for process in both)
    assert tokens_read(ask(document, "Who?", "-c", "1000"))[0] == 1
    assert "whole" in butler("library", "verify", "--cache", "kept").stderr


def test_folder_is_bounded(document, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "note").write_text("not ours" * 100000)
    ask(document, "Who?")
    size = os.path.getsize(kept()[0])
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"{i} {TEXT}")
        time.sleep(0.02)
        ask(f"{i}.txt", "Who?", "--cache-size", 7 * size // 2)
        time.sleep(0.02)
        ask(document, "Who?", "--cache-size", 7 * size // 2)  # used each time, so that it stays
    assert len(kept()) == 3 and (tmp_path / "kept" / "note").exists()
    assert tokens_read(ask(document, "Who?"))[0] == 1 and tokens_read(ask("2.txt", "Who?"))[0] == 1
    assert tokens_read(ask("0.txt", "Who?", "--cache-size", 7 * size // 2))[1] < 20
    small = ask(document, "Who?", "--cache-size", "1K", cache="other")
    assert "more than the 1024 that it may have" in small.stderr and not kept("other")


def test_where_it_is_kept(document, tmp_path):
    plain = ["ask", "-m", GQA, "-f", document, *GREEDY]
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "x")}
    old = tmp_path / "x" / "butler" / ("0" * 32 + ".session")
    old.parent.mkdir(parents=True, mode=0o700)
    old.write_text("of an earlier version")
    result = butler(*plain, "Who?", env=environment)
    assert "a tenth" in result.stderr and "x/butler/library" in result.stderr and not old.exists()
    assert len(kept("x/butler/library")) == 1 and os.stat(kept("x/butler")[0]).st_mode & 0o777 == 0o600
    assert os.stat("x/butler/library").st_mode & 0o777 == 0o700
    butler(*plain, "Who?", env={**environment, "XDG_CACHE_HOME": "relative"})
    assert len(kept("home/.cache/butler")) == 1 and not os.path.exists("relative")
    butler(*plain, "--no-cache", "Who?", env={**environment, "XDG_CACHE_HOME": str(tmp_path / "y")})
    assert not kept("y")
    (tmp_path / "file").write_text("")
    result = ask(document, "Who?", cache="file/below")
    assert "warning" in result.stderr and "file/below" in result.stderr and result.stdout


def test_plug_ins_share_what_was_read(document, tmp_path):
    plugin = tmp_path / "value_norm.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{ROOT}/include", str(ROOT / "examples/plugin.c"), "-o", str(plugin), "-lm"], check=True)
    plain = ask(document, "Who?")
    loaded = ask(document, "Who?", "--plugin", plugin)
    assert loaded.stdout == plain.stdout and tokens_read(loaded)[0] == 1
    own = ["--plugin", plugin, "--kv", "value_norm:budget=32"]
    used = ask(document, "Who?", *own)
    assert tokens_read(used)[0] == 1 and used.stdout == ask(document, "Who?", "--no-cache", *own).stdout


def test_a_template_that_changes_the_documents(document, tmp_path):
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert ask(document, "Who?", model=model).stdout == answer_to(f"{TEXT}\n\n(end of a.txt)\n\nQuestion: Who?".upper())
    assert tokens_read(ask(document, "Who?", model=model))[0] == 1


def test_cost_is_said(document):
    plain, verbose = ask(document, "Who?"), ask(document, "Who?", "-v")
    assert "first word after" in plain.stderr and "KV memory" not in plain.stderr
    assert "first word after" in verbose.stderr and "KV memory" in verbose.stderr


# --------------------------------------------------------------------------------------------- interruptions

def start(*args):
    return subprocess.Popen([BUTLER, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def wait_for_files(n, folder="kept"):
    for _ in range(2000):
        if len(kept(folder)) >= n:
            return
        time.sleep(0.01)
    raise AssertionError(f"{len(kept(folder))} files after 20 s")


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_an_interrupted_read_goes_on(name, document, tmp_path):
    (tmp_path / document).write_text((ROOT / "models" / "long_text.txt").read_text()[:3600])
    command = ["-m", SMOLLM2, "-f", document, "--cache", "kept", "--block", "64", "--temp", "0", "-n", "1"]
    process = start("ask", *command, "Who?")
    wait_for_files(1)
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if name == "SIGKILL" else FAILED), err
    if name != "SIGKILL":
        assert re.search(rb"interrupted after \d+ of \d+ tokens; they are kept", err), err
    done = int(re.search(rb"interrupted after (\d+)", err).group(1)) if name != "SIGKILL" else 256
    again = butler("ask", *command, "Who?")
    assert tokens_read(again)[1] >= done >= 256 and tokens_read(again)[0] > 100
    assert again.stdout == butler("ask", *command, "--no-cache", "Who?").stdout


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
@pytest.mark.parametrize("command", [["run", "--save-session", "s"], ["chat"]])
def test_run_and_chat_go_on_too(command, document, tmp_path):
    (tmp_path / document).write_text((ROOT / "models" / "long_text.txt").read_text()[:3600])
    rest = ["-m", SMOLLM2, "-f", document, "--cache", "kept", "--block", "64", "--temp", "0", "-n", "1"]
    process = subprocess.Popen([BUTLER, *command, *map(str, rest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"Who?\n")
    process.stdin.flush()
    wait_for_files(1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert b"kept" in err, err
    again = butler(*command, *rest, input="Who?\n")
    assert int(re.search(r"(\d+) of \d+ tokens were read before", again.stderr).group(1)) >= 256
    assert again.stdout == butler(*command, *[word for word in rest if word not in ("--cache", "kept")], "--no-cache", input="Who?\n").stdout


def test_kills_at_random_moments(document, tmp_path):
    """Whatever a kill leaves, later answers are right, no file is damaged, and nothing is read twice for long."""
    long_text(tmp_path, 100)
    command = ["-m", GQA, "-f", document, "--cache", "kept", "-c", "8000", "--block", "32", "-t", "1", *GREEDY, "Who?"]
    begin = time.monotonic()
    good = butler("ask", *command, "--no-cache").stdout
    whole = time.monotonic() - begin
    random.seed(7)
    n_killed = 0
    for i in range(N_KILLS):
        if i % 3 == 0:
            shutil.rmtree("kept", ignore_errors=True)
        process = start("ask", *command)
        time.sleep(random.uniform(0, whole))
        process.kill()
        out, err = process.communicate(timeout=60)
        n_killed += process.returncode == -signal.SIGKILL
        assert b"warning" not in err, err
    assert n_killed > N_KILLS // 4, n_killed
    print(n_killed, "of", N_KILLS, "killed")
    result = butler("ask", *command)
    assert result.stdout == good and "warning" not in result.stderr
    assert "whole" in butler("library", "verify", "--cache", "kept").stderr
    assert not list(Path("kept").rglob("*.tmp")) and not list(Path("kept").glob("*.use"))


# ------------------------------------------------------------------------------------------------ the command

def test_library_command(document, tmp_path):
    long_text(tmp_path)
    ask(document, "Who?", "-c", "1000")
    (tmp_path / "b.txt").write_text("Another text altogether. " + TEXT)
    time.sleep(0.02)
    ask("b.txt", "Who?")
    listed = rows("library", "list", "--cache", "kept")
    assert [row["tokens"] > 500 for row in listed] == [False, True]
    assert "Another text" in listed[0]["text"] and not any(row["broken"] for row in listed)
    text = butler("library", "--cache", "kept").stdout
    assert all(row["id"][:12] in text for row in listed) and "Another text" in text
    assert "2 texts" in butler("library", "info", "--cache", "kept").stdout
    butler("library", "export", listed[1]["id"][:8], "-o", "copy", "--cache", "kept")
    assert tokens_read(ask(document, "Who?", "-c", "1000", cache="copy"))[0] == 1
    butler("library", "remove", listed[1]["id"][:8], "--cache", "kept")
    assert [row["id"] for row in rows("library", "list", "--cache", "kept")] == [listed[0]["id"]]
    assert tokens_read(ask(document, "Who?", "-c", "1000"))[1] < 10
    kept_before = kept()[0]
    Path(kept_before).write_bytes(b"x")
    damaged = butler("library", "verify", "--cache", "kept", expect=FAILED)
    assert kept_before in damaged.stderr and "damaged" in damaged.stderr
    butler("library", "remove", "--all", "--cache", "kept")
    assert not kept() and rows("library", "--cache", "kept") == []
    refuses(USAGE, "library", "burn", "--cache", "kept", says=["burn", "verify"])
    refuses(USAGE, "library", "remove", "--cache", "kept", says=["--all"])
    refuses(USAGE, "library", "export", "0123", "-o", "none", "--cache", "kept", says=["no text '0123'"])
    assert not Path("none").exists()
    refuses(USAGE, "library", "list", "--all", "--cache", "kept", says=["--all", "remove"])
    refuses(USAGE, "library", "list", "-o", "x", "--cache", "kept", says=["-o", "export"])
    refuses(USAGE, "library", "remove", "0123", "--cache", "kept", says=["0123"])
    refuses(USAGE, "library", "export", "0123", "--cache", "kept", says=["-o FOLDER"])


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
    n = len(rows("tokenize", "-m", GQA, "-p", prompt_of("Who?", [("a.txt", TEXT * 20)]))[0]["ids"])
    result = refuses(FAILED, "ask", "-m", GQA, "-f", document, "--cache", "kept", *GREEDY, "Who?", says=[N_CTX, "another model", "in parts"])
    assert str(n) in result.stderr and "-c " not in result.stderr
    assert ask(document, "Who?", "-c", n + 10).stdout


PASSAGE = re.compile(r"^butler ask:   (\S+):(\d+)-(\d+) \((\d+) %\) (.*)$", re.M)


def test_a_receipt_names_passages(document, tmp_path):
    """Lines of the documents, by how they begin; shares that come to no more than all."""
    lines = [f"Line {i} has {i * 7}." + "\n" * (1 + (i % 3 == 0)) for i in range(1, 8)]
    (tmp_path / document).write_text("".join(lines))
    result = ask(document, "Which?", "--receipt", 2)
    found = PASSAGE.findall(result.stderr)
    all_lines = "".join(lines).split("\n")
    assert "all tokens were read (5 steps compared)" in result.stderr and 1 <= len(found) <= 5
    for name, first, last, _, beginning in found:
        assert name == document and int(first) <= int(last)
        assert " ".join(all_lines[int(first) - 1:int(last)]).startswith(beginning.removesuffix("...").rstrip())
        assert not any(line == "" for line in all_lines[int(first) - 1:int(last)])
    shares = [int(share) for _, _, _, share, _ in found]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 103
    sparse, evicting, none = (ask(document, "Which?", *args).stderr for args in (
        ("--kv", "quest:budget=32,dense=0"), ("--kv", "snapkv:budget=16,window=8,dense=0"), ("--receipt", 0)))
    assert re.search(r"what was read has [1-9][0-9.]* % of the attention", sparse)
    assert re.search(r"those that were dropped had [1-9][0-9.]* % of it when the prompt was cut", evicting)
    assert "steps compared" not in none and not PASSAGE.search(none)


def test_a_receipt_of_documents_that_begin_alike(document, tmp_path):
    """A document that is the beginning of another has its own passages, in either order."""
    long, short = "The dog ran home.\n\nThe cat slept.\n\nThe sun was hot.\n", "The dog ran home.\n\n"
    (tmp_path / "new.log").write_text(long)
    (tmp_path / "old.log").write_text(short)
    shares = {}
    for order in (("new.log", "old.log"), ("old.log", "new.log")):
        done = butler("ask", "-m", GQA, "-f", order[0], "-f", order[1], "--no-cache", "--receipt", 1, *GREEDY, "Which?", cwd=tmp_path)
        found = PASSAGE.findall(done.stderr)
        shares[order] = {name: sum(int(share) for n, _, _, share, _ in found if n == name) for name in order}
        assert all(shares[order].values()), done.stderr
    assert len(set(map(str, shares.values()))) == 2  # the model read them in another order


def test_a_receipt_of_chat(document, tmp_path):
    result = butler("chat", "-m", GQA, "-f", document, "--no-cache", *GREEDY, input="Who?\nWhere?\n")
    assert len(re.findall(r"chat: all tokens were read \(\d+ steps? compared\); most attention:", result.stderr)) == 2
    assert len(re.findall(rf"chat:   {document}:1-1 \(100 %\) It was", result.stderr)) == 2
    assert "compared" not in butler("chat", "-m", GQA, "--no-cache", *GREEDY, input="Who?\n").stderr


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
        assert tokens_read(warm)[0] < 40 < 800 < tokens_read(cold)[0]
