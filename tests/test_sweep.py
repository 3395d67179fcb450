"""`bench/sweep`: its tables contain the rows' numbers; it measures, continues after an interruption, and reports."""
import json
import os
import re
import subprocess

import pytest

import report_rows
from cli import BUTLER, GQA, ROOT

SWEEP = str(ROOT / "bench" / "sweep")


def sweep(*args, expect=0, data=None):
    env = {**os.environ, "BUTLER": BUTLER, "BUTLER_DATA": str(data or "/nonexistent")}
    result = subprocess.run(["/usr/bin/python3", "-B", SWEEP, *map(str, args)], capture_output=True, text=True, timeout=600, env=env)
    assert result.returncode == expect, result.stderr
    return result


@pytest.fixture
def doc(tmp_path):
    """docs/results.md with its tables filled from made-up rows."""
    path, results = tmp_path / "results.md", tmp_path / "results.jsonl"
    path.write_text((ROOT / "docs" / "results.md").read_text())
    rows = [{**r, "data": r["data"].replace("hellaswag.txt", "hellaswag_val_full.txt").replace("piqa.jsonl", "piqa_valid.jsonl")
             .replace("book.txt", "Elizabeth_Gaskell__Cranford.txt")}
            for r in report_rows.all_rows() if r["task"] not in ("heat", "consensus")]
    piqa = [r for r in rows if r["data"].startswith("piqa")]
    for name, metric in (("arc_easy", "acc_norm"), ("winogrande", "accuracy"), ("boolq", "accuracy"), ("lambada_openai", "ppl")):
        rows += [{**r, "data": f"{name}.jsonl#4", "metric": metric} for r in piqa]
    report_rows.write(results, rows)
    commands = [("wikitext2", 20, ""), ("wikitext2", 4, "")]
    commands += [("coref", 20, f" --kv full --kv {more}") for more in ("h2o", "tova", "h2o --kv quest")]
    results.with_suffix(".commands").write_text("".join(
        json.dumps({"name": n, "limit": limit, "command": f"./butler eval {n} --limit {limit}{more}", "seconds": 1, "date": "2026-01-02"}) + "\n"
        for n, limit, more in commands))
    result = sweep("--tables", "-o", results, "--doc", path)
    assert result.stderr == ""
    return path.read_text()


def test_tables(doc):
    piece = doc.split("<!-- wikitext2 -->")[1].split("<!-- /wikitext2 -->")[0]
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in piece.splitlines() if line.startswith("| `")]
    assert {line[0].strip("`") for line in lines} == set(report_rows.POLICIES) - {"full"}
    dense = report_rows.eval_row(*report_rows.TASKS[0], "full", 1)["value"]
    for name, *cells in lines:
        for budget, text in zip(report_rows.BUDGETS, cells, strict=True):
            row = report_rows.eval_row(*report_rows.TASKS[0], name.strip("`"), budget)
            value, low, high, read = map(float, re.fullmatch(r"\**([\d.]+)\** \[([\d.]+), ([\d.]+)\] · (\d+) %", text).groups())
            assert (value, low, high) == pytest.approx((row["value"], *row["ci"]), abs=0.006)
            assert read == pytest.approx(100 * row["kv_read"], abs=0.51)
            assert text.startswith("**") == (row["value"] <= 1.02 * dense)
    assert "Measured 2026-01-02." in piece and "\n    ./butler eval wikitext2 --limit 20\n" in piece
    assert f"Dense (`full`): {dense:.2f} [" in piece
    piece = doc.split("<!-- coref -->")[1].split("<!-- /coref -->")[0]  # only the latest measurement of a policy is shown
    assert re.findall(r"--kv full (.*)", piece) == ["--kv tova", "--kv h2o --kv quest"]


def test_matrix_and_what_stands_around(doc):
    piece = doc.split("<!-- matrix -->")[1].split("<!-- /matrix -->")[0]
    row = next(line for line in piece.splitlines() if line.startswith("| `fier`"))
    for cell, task in zip([c.strip() for c in row.split("|")[2:-1]], [report_rows.TASKS[i] for i in (0, 2, 4, 5, 6, 7)], strict=False):
        if task[0] == "ppl":
            dense = report_rows.eval_row(*task, "full", 1)["value"]
            reads = [r["kv_read"] for r in (report_rows.eval_row(*task, "fier", b) for b in report_rows.BUDGETS) if r["value"] <= 1.02 * dense]
            assert cell == f"{100 * min(reads):.0f} %"
    before = (ROOT / "docs" / "results.md").read_text()
    by_hand = re.compile(r"(<!-- (\w+) -->).*?(<!-- /\2 -->)", re.S)
    assert by_hand.sub("", before) == by_hand.sub("", doc)


def test_tables_again_change_nothing(doc, tmp_path):
    sweep("--tables", "-o", tmp_path / "results.jsonl", "--doc", tmp_path / "results.md")
    assert (tmp_path / "results.md").read_text() == doc


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
