"""--lossless: what run, ask and chat write is what they write under --kv full, token for token, and the cost says how."""
import re
from statistics import median

import pytest

from cli import GQA, USAGE, butler, refuses, rows

PROMPT = "It was the best of times, it was the worst of times. " * 2
SAMPLING = [["--temp", "0"], ["-s", "3", "--temp", "0.7"], ["-s", "4", "--repeat-penalty", "1.2"]]
POLICIES = [[], ["--kv", "verified:budget=40"], ["--kv", "quest:budget=32,page=8"], ["--kv", "fier:budget=40"]]


def run(*args, model=GQA):
    return rows("run", "-m", model, "-p", PROMPT, "-n", "50", *args)[-1]


@pytest.mark.parametrize("sampling", SAMPLING, ids=" ".join)
def test_run(sampling):
    dense, shares = run(*sampling), []
    for policy in POLICIES:
        for flag in ("--lossless", "--lossless=3"):
            last = run(flag, *policy, *sampling)
            assert last["ids"] == dense["ids"] and last["text"] == dense["text"]
            stats = last["stats"]
            assert stats["end"] == dense["stats"]["end"] and stats["n_decode"] == dense["stats"]["n_decode"]
            assert stats["full_kv_bytes"] == dense["stats"]["full_kv_bytes"]
            assert 0 < stats["n_drafted"] and stats["n_accepted"] <= stats["n_drafted"] <= stats["n_checks"] * (3 if "=" in flag else 8)
            assert stats["draft_s"] + stats["check_s"] > 0
            shares.append((stats["draft_s"] + stats["check_s"]) / stats["decode_s"])
    assert median(shares) <= 1.5  # of a single run a busy machine may take the clocks apart


def test_a_saved_session_goes_on(tmp_path):
    whole = run("--temp", "0")
    first = rows("run", "-m", GQA, "-p", PROMPT, "-n", "20", "--temp", "0", "--lossless", "--save-session", tmp_path / "s")[-1]
    rest = rows("run", "-m", GQA, "--load-session", tmp_path / "s", "-n", "30", "--temp", "0", "--lossless=2")[-1]
    assert first["ids"] + rest["ids"] == whole["ids"]


def test_ask(tmp_path):
    (tmp_path / "a.txt").write_text(PROMPT)
    ask = ["ask", "-m", GQA, "-f", tmp_path / "a.txt", "--no-cache", "-n", "20", "Who?"]
    assert butler(*ask, "--lossless").stdout == butler(*ask).stdout


def test_chat_goes_on_behind_a_stop_text():
    """The plain template ends an answer by a text, which may stand between drafts; the next turn draws what it would have drawn."""
    chat = ["chat", "-m", GQA, "--chat-template", "plain", "-n", "24", "--temp", "1.2", "-s", "2"]
    turns = "Who was it?\nAnd when?\nWhy?\n"
    assert butler(*chat, "--lossless", input=turns).stdout == butler(*chat, input=turns).stdout


def test_the_cost_is_said():
    said = butler("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0", "--lossless").stderr
    checks, confirmed, drafts, rate = re.search(r"(\d+) exact checks took \S+ s and confirmed (\d+) of (\d+) drafts, .*: (\S+) tokens a check", said).groups()
    assert int(confirmed) <= int(drafts) and float(rate) == pytest.approx(1 + int(confirmed) / int(checks), abs=0.01)


def test_what_is_refused():
    for value in ("0", "16", "x", ""):
        refuses(USAGE, "run", "-m", GQA, "-p", "a", f"--lossless={value}", says=["--lossless", "from 1 to 15"])
    said = butler("chat", "-m", GQA, "--lossless", "-n", "2", input="/policy full\n/policy quest:budget=32\nHi\n").stderr
    assert "full does not retrieve" in said and "the policy is quest:budget=32" in said
    for policy in ("full", "h2o:budget=32", "snapkv:budget=64", "entropystop"):
        refuses(USAGE, "run", "-m", GQA, "-p", "a", "--lossless", "--kv", policy, says=["--lossless"])
    assert "--lossless[=G]" in butler("run", "--help").stdout


LOSSLESS = ["policy", "depth", "n", "dense_ms", "lossless_ms", "sparse_ms", "speed_up", "ci", "ceiling", "n_checks", "n_drafted", "n_accepted", "draft_s", "check_s",
            "weight_bytes", "kv_bytes", "metric_bytes", "full_kv_bytes"]


def test_bench(tmp_path):
    (tmp_path / "t.txt").write_text(PROMPT * 2)
    bench = ["bench", "-m", GQA, "--lossless", "-f", tmp_path / "t.txt", "-n", "40", "--warmup", "3"]
    got = rows(*bench, "-d", "20,100", "--kv", "verified:budget=32", "--kv", "quest:budget=32,page=8")
    assert [(r["depth"], r["policy"].split(":")[0]) for r in got] == [(20, "verified"), (20, "quest"), (100, "verified"), (100, "quest")]
    for r in got:
        assert list(r) == LOSSLESS and r["n"] == 40
        assert min(r["dense_ms"], r["lossless_ms"], r["sparse_ms"]) > 0 and r["n_accepted"] <= r["n_drafted"]
        if r["n_drafted"]:
            assert r["ci"][0] <= r["speed_up"] <= r["ci"][1] and r["ceiling"] > 0
        else:
            assert (r["speed_up"], r["ci"], r["ceiling"]) == (None, None, None)
        # Two layers and two KV heads with 16 numbers in two bytes, keys and values.
        assert r["full_kv_bytes"] == sum((r["depth"] + 3 + i) * 2 * 2 * 2 * 16 * 2 for i in range(1, 41)) // 40
    assert len(butler(*bench, "-d", "20", "--kv", "verified").stdout.splitlines()) == 2
    depth = rows("bench", "-m", GQA, "--lossless=3", "-n", "20", "-d", "90", "--kv", "quest:budget=32")[0]  # behind random rows
    assert depth["n_drafted"] > depth["n_checks"] > 0 and depth["full_kv_bytes"] >= 91 * 2 * 2 * 2 * 16 * 2
    refuses(USAGE, "bench", "-m", GQA, "--lossless", "-d", "0", says=["-d"])
    refuses(USAGE, *bench, "-d", "20,9999", says=["-d", "9999", tmp_path / "t.txt"])
    refuses(USAGE, *bench, "-d", "20", "--batch", "2", says=["--batch"])
    refuses(USAGE, "bench", "-m", GQA, "-f", tmp_path / "t.txt", says=["-f", "--lossless"])


def test_eval_counts_right_drafts(tmp_path):
    (tmp_path / "t.txt").write_text(PROMPT * 8)
    task = ["eval", "drafts", "-m", GQA, "--data", tmp_path / "t.txt", "--length", "60", "--limit", "2"]
    got = rows(*task, "--set", "tokens=30,drafts=3", "--kv", "oracle:budget=200", "--kv", "random:budget=8")
    value = {(r["policy"].split(":")[0], r["metric"]): r["value"] for r in got}
    n = {(r["policy"].split(":")[0], r["metric"]): r["n"] for r in got}
    # What covers the text drafts densely: all drafts are right, unless the end of a text stands before them.
    assert value["oracle", "accepted"] > 0.9 and 3 < value["oracle", "tokens"] <= 4
    assert 0 <= value["random", "accepted"] < value["oracle", "accepted"]
    for policy in ("oracle", "random"):
        assert value[policy, "tokens"] == pytest.approx(1 + value[policy, "accepted"] * n[policy, "accepted"] / n[policy, "tokens"])
    refuses(USAGE, *task, "--kv", "full", says=["--kv", "full"])
    refuses(USAGE, *task, "--kv", "random:budget=8", "--set", "drafts=16", says=["drafts"])
