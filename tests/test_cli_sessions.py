"""Files of sessions that `butler run` saves and loads, and what Ctrl-C keeps."""
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from cli import BUTLER, DONE, FAILED, GQA, MODELS, N_CTX, PROMPT, ROOT, USAGE, butler, refuses, rows


@pytest.mark.parametrize("policy", ["full", "h2o:budget=16", "quest:budget=16,dense=0", "streaming:budget=12,sinks=2"])
def test_session_goes_on_where_it_stopped(policy, tmp_path):
    session = tmp_path / "s.session"
    greedy = ["run", "-m", GQA, "--temp", "0"]
    whole = rows(*greedy, "-p", PROMPT, "-n", "30", "--kv", policy)[-1]
    first = rows(*greedy, "-p", PROMPT, "-n", "13", "--kv", policy, "--save-session", session)[-1]
    second = rows(*greedy, "-n", "17", "--load-session", session)[-1]
    assert first["ids"] + second["ids"] == whole["ids"]
    assert second["stats"]["n_prefill"] == 0 and second["stats"]["n_decode"] == 16
    assert rows(*greedy, "-n", "17", "--load-session", session)[-1]["ids"] == second["ids"]


def test_session_takes_more_text(tmp_path):
    session = tmp_path / "s.session"
    butler("run", "-m", GQA, "-p", PROMPT, "-n", "0", "--save-session", session)
    longer = rows("run", "-m", GQA, "-p", ", it was", "-n", "5", "--temp", "0", "--load-session", session)[-1]
    assert longer["stats"]["n_prefill"] > 0 and len(longer["ids"]) == 5
    refuses(FAILED, "run", "-m", GQA, "-p", "x" * 300, "--load-session", session, says=[N_CTX])


@pytest.mark.parametrize("policy", ["full", "h2o:budget=16", "quest:budget=16,dense=0", "streaming:budget=12,sinks=2",
                                    "quest:budget=16,dense=0,every=3", "h2o+vatp:budget=20,sinks=4,recent=8"])
def test_a_full_session_goes_on_in_a_larger_context(policy, tmp_path):
    """The saved session has all of the text that was printed, and goes on as if its context had been larger from the beginning."""
    session = tmp_path / "s.session"
    greedy = ["run", "-m", GQA, "--temp", "0"]
    whole = rows(*greedy, "-p", PROMPT, "-n", "60", "-c", "120", "--kv", policy)[-1]
    first = rows(*greedy, "-p", PROMPT, "-n", "-1", "-c", "40", "--kv", policy, "--save-session", session)[-1]
    assert first["stats"]["end"] == "context full" and 0 < len(first["ids"]) < 40
    n_left = 60 - len(first["ids"])
    second = rows(*greedy, "-n", str(n_left), "-c", "120", "--load-session", session)[-1]
    assert first["ids"] + second["ids"] == whole["ids"]
    refuses(FAILED, *greedy, "-n", "1", "-c", "39", "--load-session", session, says=["s.session", "40 tokens", "39"])


def test_session_files_that_are_not(tmp_path):
    session = tmp_path / "s.session"
    refuses(FAILED, "run", "-m", GQA, "--load-session", session, says=["s.session"])
    butler("run", "-m", GQA, "-p", PROMPT, "-n", "3", "--save-session", session)
    good = session.read_bytes()
    for n in (0, 4, 40, len(good) // 2, len(good) - 1):
        session.write_bytes(good[:n])
        refuses(FAILED, "run", "-m", GQA, "--load-session", session, says=["s.session"])
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    session.write_bytes(changed)
    refuses(FAILED, "run", "-m", GQA, "--load-session", session, says=["s.session"])
    session.write_bytes(good)
    assert butler("run", "-m", str(MODELS / "llama-mha.gguf"), "--load-session", session, expect=USAGE).stdout == ""


def test_session_path_is_checked_before_the_work_begins(tmp_path):
    """No text and no model is needed to say that a session cannot be written."""
    for path in (tmp_path / "no" / "s", tmp_path):
        refuses(FAILED, "run", "-m", tmp_path / "absent.gguf", "-p", PROMPT, "--save-session", path, says=[path])
    refuses(FAILED, "run", "-m", tmp_path / "absent.gguf", "-p", PROMPT, "--save-session", tmp_path / "s", says=["absent.gguf"])
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- Ctrl-C

def interrupted(*args, after, expect):
    """Runs the command, sends it SIGINT when its standard output or its terminal shows `after`, and returns what both had."""
    terminal, other = pty.openpty()
    process = subprocess.Popen([BUTLER, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=other, bufsize=0)
    os.close(other)
    out, err = b"", b""
    try:
        if after == b"":
            out = process.stdout.read(1)
        while after not in err:
            err += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        out += process.stdout.read()
        assert process.wait(timeout=60) == expect
        try:
            while piece := os.read(terminal, 4096):
                err += piece
        except OSError:  # all of it was read
            pass
        return out, err.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_ctrl_c_ends_the_text(tmp_path):
    """What was printed, continued from the saved session, is one text."""
    session = tmp_path / "s.session"
    greedy = ["run", "-m", GQA, "--temp", "0", "-t", "1", "--ignore-eos"]
    out, err = interrupted(*greedy, "-p", PROMPT, "-n", "-1", "-c", "1000000", "--json", "--save-session", session, after=b"", expect=DONE)
    last = json.loads(out.splitlines()[-1])
    assert last["stats"]["end"] == "interrupted" and "interrupted" in err and "decoded in" in err
    assert len(last["ids"]) == last["stats"]["n_decode"] == len(out.splitlines()) - 1
    more = rows(*greedy, "-n", "5", "--load-session", session)[-1]["ids"]
    assert last["ids"] + more == rows(*greedy, "-p", PROMPT, "-n", len(last["ids"]) + 5, "-c", "1000000")[-1]["ids"]


def test_ctrl_c_ends_a_comparison():
    out, err = interrupted("run", "-m", GQA, "-p", PROMPT, "-n", "-1", "-c", "1000000", "-t", "1", "--ignore-eos", "--kv", "full", "--kv", "quest", after=b"",
                           expect=DONE)
    assert "[full]" in err and "quest" not in err


def test_ctrl_c_ends_an_answer_and_keeps_what_was_read(tmp_path):
    (tmp_path / "a").write_text(PROMPT)
    args = ["ask", "-m", GQA, "-c", "1000000", "-t", "1", "-n", "-1", "--ignore-eos", "-f", tmp_path / "a", "--cache", tmp_path / "kept"]
    out, err = interrupted(*args, "Who?", after=b"", expect=DONE)
    assert out.endswith(b"\n") and "(interrupted)" in err
    assert " 1 tokens read" in butler(*args, "-n", "1", "Who?").stderr


def test_ctrl_c_while_the_prompt_is_read(tmp_path):
    (tmp_path / "long").write_text("x" * 200000)
    args = ["-m", GQA, "-c", "1000000", "-t", "1", "--block", "16", "-f", tmp_path / "long"]
    for command in (["run", *args, "--no-cache", "--save-session", tmp_path / "s"], ["ask", *args, "--cache", tmp_path / "kept", "Who?"]):
        out, err = interrupted(*command, after=b"prompt:", expect=FAILED)
        assert out == b"" and "interrupted after" in err and ("they are kept" in err) == (command[0] == "ask")
    assert not (tmp_path / "s").exists() and list((tmp_path / "kept").rglob("*.kv"))


def test_keys_and_values_on_the_disk(tmp_path):
    """With room for a layer in memory the same text comes out, and the report says what came from the disk."""
    text = tmp_path / "text.txt"
    run = ["run", "-m", GQA, "-c", "640", "-f", text, "-n", "8", "--temp", "0", "--kv", "quest:budget=64,dense=0", "--no-cache"]
    text.write_text((ROOT / "tests/data/secret_garden.txt").read_text()[:600])
    resident = rows(*run)[-1]
    found = butler(*run, "--json", "--kv-ram", "80K")
    last = json.loads(found.stdout.splitlines()[-1])
    assert last["ids"] == resident["ids"] and last["text"] == resident["text"]
    assert 0 < last["stats"]["pages_fetched"] <= last["stats"]["pages_wanted"] and last["stats"]["disk_bytes"] > 0
    assert "io_uring" in found.stderr or "preadv" in found.stderr
    assert resident["stats"]["pages_wanted"] == resident["stats"]["disk_bytes"] == 0
    refuses(USAGE, *run, "--kv-ram", "40K", says=["--kv-ram", "640"])
    bench, = rows("bench", "-m", GQA, "-d", "500", "-n", "4", "--kv", "quest:budget=64,dense=0", "--kv-ram", "80K")
    assert bench["pages_wanted"] > 0


def test_rows_that_change_while_they_are_prefetched(tmp_path):
    """A bit of the library's files changes after it was checked: an error names the file, whether a step or a prefetch reads it first."""
    model, text, kept = ROOT / "models" / "butler-default.gguf", ROOT / "models" / "long_text.txt", tmp_path / "kept"
    args = ("run", "-m", str(model), "-c", "7600", "-f", str(text), "-t", "1", "--cache", str(kept))
    butler(*args, "-n", 2)
    policy = "tokenbutler2:budget=512,page=16,sinks=16,recent=64"
    with subprocess.Popen([BUTLER, *args, "-n", "800", "--ignore-eos", "--kv", policy, "--kv-ram", "4200K"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1), process.stderr.read()
        for path in kept.rglob("*.kv"):
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 1]))
        _, said = process.communicate(timeout=120)
    assert process.returncode == FAILED and b".kv: corrupt: the checksum" in said, (process.returncode, said)


def test_the_end_of_an_old_text_goes_first(tmp_path):
    """What is left of a text in a full library is its beginning, which can be used; an export that does not fit removes nothing."""
    text = (ROOT / "models" / "long_text.txt").read_text()
    (tmp_path / "first.txt").write_text(text[:9000])
    (tmp_path / "second.txt").write_text(text[-5000:])

    def read(name, *flags):
        said = butler("run", "-m", ROOT / "models" / "butler-default.gguf", "-f", tmp_path / name, "-n", 1, "-t", 1, "--cache", tmp_path / "kept", *flags).stderr
        found = re.search(r"(\d+) of (\d+) tokens were read before", said)
        return int(found[1]) if found else 0
    assert read("first.txt", "--cache-size", "9M") == 0 and read("second.txt", "--cache-size", "9M") == 0
    assert 0 < read("first.txt", "--cache-size", "9M") < 2400
    listed = rows("library", "list", "--cache", tmp_path / "kept")
    assert not any(entry.get("broken") or entry.get("first", 0) for entry in listed), listed
    (tmp_path / "out").mkdir()
    before = sorted(p.name for p in (tmp_path / "kept").rglob("*.kv"))
    refuses(FAILED, "library", "export", listed[0]["id"], "--cache", tmp_path / "kept", "-o", tmp_path / "out", "--cache-size", "2M", says=["full", "--cache-size"])
    assert sorted(p.name for p in (tmp_path / "kept").rglob("*.kv")) == before
    refuses(USAGE, "library", "remove", "", "--cache", tmp_path / "kept", says=["id is empty"])
    assert sorted(p.name for p in (tmp_path / "kept").rglob("*.kv")) == before
