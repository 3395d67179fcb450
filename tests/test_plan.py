"""butler plan, and what readings leave for the next estimate."""
import json

import pytest

from cli import DONE, FAILED, GQA, ROOT, USAGE, butler, refuses, rows

MODEL = ROOT / "models" / "butler-default.gguf"
TEXT = (ROOT / "tests" / "data" / "secret_garden.txt").read_text()


@pytest.fixture
def document(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(TEXT[:4000])
    return path


def plan(document, *flags):
    return rows("plan", "-m", MODEL, "-f", document, *flags)


def test_rows(document):
    found = plan(document, "-n", 50)
    assert [r["policy"] for r in found] == ["full", "fier:budget=1024", "quest:budget=1024", "snapkv:budget=1024"]
    for row in found:
        assert row["first_word_s"] > row["question_s"] > row["token_s"] > 0 and row["answer_s"] == pytest.approx(50 * row["token_s"])
        assert row["tokens"] == found[0]["tokens"] > 600 and row["known"] == 0 and row["disk"] > 0
    one, = plan(document, "--kv", "quest:budget=64", "--no-cache")
    assert one["kv_read"] < 0.5 < found[0]["kv_read"] == 1 and one["disk"] == 0
    assert one["kv_memory"] > found[0]["kv_memory"] / 2


def test_what_was_read_is_known(document):
    before, = plan(document, "--kv", "full")
    butler("ask", "-m", MODEL, "-f", document, "-n", 1, "Who?")
    after, = plan(document, "--kv", "full")
    assert before["tokens"] - 64 < after["known"] <= after["tokens"] == before["tokens"]
    assert after["first_word_s"] < before["first_word_s"]


def test_text(document):
    said = butler("plan", "-m", MODEL, "-f", document, "--kv", "full").stdout.splitlines()
    assert "tokens, of which 0 were read before" in said[0] and said[2].split()[:3] == ["policy", "first", "word"] and said[3].split()[0] == "full"


def test_refusals(document, tmp_path):
    refuses(USAGE, "plan", "-m", MODEL, says=["no document"])
    refuses(USAGE, "plan", "-m", MODEL, "-f", document, "-n", 0, says=["-n"])
    refuses(FAILED, "plan", "-m", GQA, "-f", document, says=["the documents have", "256"])
    refuses(FAILED, "plan", "-m", MODEL, "-f", tmp_path / "none.txt", says=["none.txt"])


def kept(tmp_path):
    path, = (tmp_path / "cache" / "butler").glob("speed-*.json")
    return path, json.loads(path.read_text())


def test_readings_are_kept_and_announced(document, tmp_path):
    """A reading of eight passes or more leaves its speed; the next is announced by it before its first pass."""
    ask = ["ask", "-m", MODEL, "-f", document, "-n", 1, "--no-cache", "--block", 64, "Who?"]
    assert "take about" not in butler(*ask).stderr
    path, speeds = kept(tmp_path)
    (entry, one), = speeds.items()
    assert one["seconds_a_token"] > 0 and one["more_a_position"] >= 0 and entry.endswith("8 bits, f16")
    path.write_text(json.dumps({entry: {"seconds_a_token": 2, "more_a_position": 0.01}}))
    said = butler(*ask).stderr
    n = int(said.split(" tokens to read take about")[0].split()[-1])
    minutes = (2 * n + 0.005 * n * n) / 60
    assert f"{n} tokens to read take about {int(minutes)} min" in said
    _, speeds = kept(tmp_path)
    assert speeds[entry]["seconds_a_token"] < 1  # measured anew
    for broken in ("", "[]", "{", json.dumps({entry: {"seconds_a_token": "x"}}), json.dumps({entry: {"seconds_a_token": -1, "more_a_position": 0}})):
        path.write_text(broken)
        assert butler(*ask, expect=DONE).stderr.count("take about") == 0
        assert json.loads(path.read_text())[entry]["seconds_a_token"] < 1
