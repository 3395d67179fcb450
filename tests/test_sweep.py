"""`bench/sweep` measures, continues after an interruption, and reports; `bench/results.py` puts the rows' numbers into docs/results.md."""
import importlib.util
import json
import os
import re
import shutil
import subprocess

import pytest

from cli import BUTLER, GQA, ROOT

SWEEP = str(ROOT / "bench" / "sweep")
STORE, PAGE = ROOT / "bench" / "results.jsonl", ROOT / "docs" / "results.md"


def sweep(*args, expect=0, data=None):
    env = {**os.environ, "BUTLER": BUTLER, "BUTLER_DATA": str(data or "/nonexistent")}
    result = subprocess.run(["/usr/bin/python3", "-B", SWEEP, *map(str, args)], capture_output=True, text=True, timeout=600, env=env)
    assert result.returncode == expect, result.stderr
    return result


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "bench" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(policy, budget, value, ci, difference=None, n=100, metric="ppl", **more):
    name = policy if policy == "full" else f"{policy}{',' if ':' in policy else ':'}budget={budget:g}"
    paired = {"difference": {"to": "full", "value": difference[0], "ci": list(difference[1:])}} if difference else {}
    return {"task": "ppl", "policy": name, "budget": budget, "metric": metric, "value": value, "ci": ci, "n": n, "limit": n, "kv_read": budget, **paired, **more}


def test_page_is_what_the_script_makes(results, tmp_path):
    """Also a second time, and whoever types a number into a table is found."""
    store, page = tmp_path / "results.jsonl", tmp_path / "results.md"
    shutil.copy(STORE, store)
    page.write_text(re.sub(r"(?m)^\| .*\d.*\|$", "| typed |", PAGE.read_text()))
    assert page.read_text() != PAGE.read_text()
    results.main([], store, page)
    assert page.read_text() == PAGE.read_text()
    assert store.read_text() == STORE.read_text()


def test_rows_become_cells_and_verdicts(results, tmp_path):
    store, page, more = (tmp_path / name for name in ("store.jsonl", "page.md", "more.jsonl"))
    page.write_text("".join(f"before {name}\n<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in ("budget 11", "budget 50", "claims", "fewest")))
    full, fier = row("full", 1, 20, [18, 22]), "fier"
    store.write_text("".join(json.dumps(r) + "\n" for r in (full, row(fier, 0.11, 99, [98, 99.5], n=5))))
    rows = [row(fier, 0.11, 20.1, [18, 23], (0.1, 0.05, 0.2)), row("h2o", 0.25, 30, [28, 31], (10, 9, 11)), row("h2o", 0.5, 25, [23, 26], (5, 4, 6)),
            row("h2o+vatp", 0.5, 21, [20, 22], (1, -1, 3))]
    more.write_text("".join(json.dumps({**r, "seconds": 3}) + "\n" for r in rows))
    results.main([more], store, page)
    text = page.read_text()
    assert len(store.read_text().splitlines()) == 5 and "seconds" not in store.read_text()  # more items replace fewer
    assert "| `fier` | 20.1 [18.0, 23.0] · 11 % · 100 |  |" in text
    assert "old" not in text and text.count("before") == 4
    verdicts = re.findall(r"^\| ([^|]*) \| WikiText-2, ppl, (\d+) % \|.*\| ([\w ]+) \|$", text, re.M)
    assert dict((claim, found) for claim, _, found in verdicts if found != "not measured") == {
        "FIER: full quality at 11 %": "shows", "VATP is better than H2O at 50 %": "shows", "H2O keeps quality at 20 % (here 25 %)": "does not"}
    assert re.search(r"\| `fier` \| 11 % \|", text) and "| `h2o` | –" not in text


def test_long_texts_have_a_table_of_their_own(results, tmp_path):
    """A task's length keeps its rows apart; bytes are a mean over the tasks of the row."""
    def ruler(policy, subset, length, value, read):
        budget = 1 if policy == "full" else 0.11
        return {**row(policy, budget, value, [value - 0.1, value + 0.1], n=10, metric="string_match", length=length, config="mode=prefill"),
                "task": "ruler", "subset": subset, "kv_read": read}
    store, page = tmp_path / "store.jsonl", tmp_path / "page.md"
    page.write_text("<!-- long -->\n<!-- /long -->\n<!-- budget 11 -->\n<!-- /budget 11 -->\n")
    store.write_text("".join(json.dumps(r) + "\n" for r in (
        ruler("full", "vt", 4096, 0.5, 1), ruler("fier", "vt", 4096, 0.4, 0.2), ruler("fier", "niah_single_2", 7900, 0.3, 0.1),
        ruler("fier", "niah_single_2", 4096, 0.6, 0.3))))
    results.main([], store, page)
    text = page.read_text()
    assert "| policy | KV read | vt | a number in 7,900 tokens |" in text
    assert "| `full` | 100 % | 50 [40, 60] · 10 |  |" in text
    assert "| `fier` | 15 % | 40 [30, 50] · 10 | 30 [20, 40] · 10 |" in text
    assert "| `fier` |  |  | 60 [50, 70] · 30 % · 10 |" in text


def test_a_small_sample_does_not_prove_equality(results):
    """Twenty items without a difference leave room for a loss of 3/20; two texts without an interval prove nothing."""
    task, full = results.TASKS["co-reference, % of tokens"], row("full", 1, 0.8, [0.7, 0.9], metric="coverage")
    same = row("quest", 0.5, 0.8, [0.7, 0.9], (0, 0, 0), n=20, metric="coverage")
    loss, low, high = results.loss(task, same, full)
    assert loss == 0 and (low, high) == pytest.approx((-0.15 / 0.8, 0.15 / 0.8))
    assert results.verdict("as good", low, high) == "undecided"
    unknown = row("quest", 0.5, 0.8, None, (0, None, None), metric="coverage")
    assert results.verdict("better", *results.loss(task, unknown, full)[1:]) == "undecided"


def test_measures_and_goes_on(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out" / "results.jsonl"
    (data / "wikitext2").mkdir(parents=True)
    (data / "wikitext2" / "test.txt").write_text("It was the best of times, it was the worst of times. " * 200)
    args = ["--quick", "-m", GQA, "--task", "wikitext2", "--length", "64", "--kv", "quest:dense=0", "--kv", "h2o", "--kv", "nosuch", "-o", out]
    first = sweep(*args, data=data)
    assert "without nosuch" in first.stderr
    rows = out.read_text()
    names = [json.loads(line)["policy"] for line in rows.splitlines()]
    assert {re.sub("[:,]budget=.*", "", n) for n in names} == {"full", "quest:dense=0", "h2o"}
    assert out.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")
    sweep(*args, data=data)
    assert out.read_text() == rows, "what is there is not measured again"


def test_absent_data_is_said(tmp_path):
    result = sweep("--quick", "-m", GQA, "--task", "wikitext2", "-o", tmp_path / "r.jsonl", expect=1)
    assert "without wikitext2" in result.stderr and "nothing to measure" in result.stderr
