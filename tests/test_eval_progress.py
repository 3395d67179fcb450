"""What `butler eval` says of its progress on a terminal, what it measures again, and what it refuses."""
import os
import pty
import re
import subprocess

from cli import BUTLER, FAILED, GQA, ROOT, USAGE, refuses, rows

TEXT = ROOT / "tests" / "data" / "secret_garden.txt"


def on_a_terminal(*words):
    """What `eval passkey` says on a terminal, and its rows."""
    main, side = pty.openpty()
    process = subprocess.Popen([BUTLER, "eval", "passkey", "-m", GQA, "--json", *words], stdout=subprocess.PIPE, stderr=side)
    os.close(side)
    said = b""
    try:
        while chunk := os.read(main, 4096):
            said += chunk
    except OSError:
        pass
    os.close(main)
    assert process.wait() == 0
    return said, process.stdout.read().splitlines()


def test_progress_on_a_terminal():
    said, found = on_a_terminal("--length", "200", "--limit", "4")
    assert b"100 %" in said and b"remaining" in said and len(found) == 1


def test_progress_goes_by_time():
    """The first of six policies reads the prompt, which takes nearly all of the time; the others share it."""
    policies = [word for name in ("full", "quest", "fier", "streaming", "random", "oracle") for word in ("--kv", name)]
    said, found = on_a_terminal("--length", "4000", "--limit", "1", "--set", "compare=0", *policies)
    done = [int(share) for share in re.findall(rb"(\d+) %", said)]
    assert len(found) == 6 and done[-1] == 100 and min(share for share in done if share > 0) > 40, done


def test_what_differs_is_measured_again(tmp_path):
    """Settings beyond any buffer, and the precision of prompts."""
    path, long = tmp_path / "rows.jsonl", "x" * 600
    common = ("eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 64, "--limit", 1, "-o", path)
    assert rows(*common) and not rows(*common) and rows(*common, "--prompt-precision", 16)
    common = ("eval", "mc", "-m", GQA, "--data", ROOT / "tests" / "data" / "mc" / "bbh.jsonl", "--limit", 1, "-o", path)
    for end in ("a", "b", "a, and what is behind a comma"):
        assert f"before={long}{end},examples=" in rows(*common, "--set", f"before={long}{end}")[0]["config"]
    assert not rows(*common, "--set", f"before={long}b")


def test_texts_only(tmp_path):
    path = tmp_path / "zero.txt"
    path.write_bytes(TEXT.read_bytes()[:1000] + b"\0" + TEXT.read_bytes()[1000:])
    refuses(FAILED, "eval", "ppl", "-m", GQA, "--data", path, "--length", 64, says=["zero.txt", "byte 1000"])
    for task in ("recall", "drafts"):
        refuses(USAGE, "eval", task, "-m", GQA, "--data", TEXT, "--length", 64, "--mode", "simulate", "--kv", "fier:budget=8", says=["--mode", task])
