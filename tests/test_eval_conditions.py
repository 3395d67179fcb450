"""Rows of `butler eval` say under which conditions they were measured, and by which commits; others are measured anew."""
import json

import pytest

from cli import GQA, MODELS, ROOT, USAGE, butler, refuses, rows

TEXT = ROOT / "tests" / "data" / "secret_garden.txt"
PPL = ["eval", "ppl", "-m", GQA, "--data", TEXT, "--length", "60", "--limit", "2", "-t", "1"]


def measured(out, *flags):
    """Lines that the command added to the results."""
    before = out.read_text().splitlines() if out.exists() else []
    butler(*PPL, "-o", out, *flags)
    return [json.loads(line) for line in out.read_text().splitlines()[len(before):]]


@pytest.mark.parametrize("flags, word", [(["--isa", "ref"], "isa=ref"), (["--device", "cpu"], "device=cpu"), (["--rope-scaling", "linear", "--rope-scale", "2"], "rope-scaling=linear:2:256")])
def test_conditions(flags, word, tmp_path):
    out = tmp_path / "rows"
    first = measured(out)
    assert first and all(word not in row["config"] for row in first)
    again = measured(out, *flags)
    assert len(again) == len(first) and all(word in row["config"].split(",") for row in again)
    assert measured(out, *flags) == measured(out) == []


def test_items_of_another_program(tmp_path):
    """A row that has some names their commits too; what is no number is no item."""
    out, items = tmp_path / "rows", tmp_path / "rows.items"
    own = measured(out)[0]["commit"]
    lines = [json.loads(line) for line in items.read_text().splitlines()]
    assert {line["commit"] for line in lines} == {own}
    lines[0]["commit"] = "0123456789ab"
    del lines[1]["commit"]
    items.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out.unlink()
    commits = measured(out)[0]["commit"].split(",")
    assert commits[0] == own and sorted(commits[1:]) == ["0123456789ab", "unknown"]
    lines[0]["values"] = ["a"] * len(lines[0]["values"])
    items.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refuses(1, *PPL, "-o", out, says=["values"])


def test_the_base_is_dense():
    """entropystop ends texts early: it is none."""
    found = rows(*PPL, "--kv", "entropystop", "--kv", "full", "--kv", "streaming:budget=20")
    assert {row["difference"]["to"] for row in found if row.get("difference")} == {"full"}


def test_budgets_in_full(tmp_path):
    found = measured(tmp_path / "rows", "--kv", "streaming", "--budget", "1048577")
    assert found[0]["policy"] == "streaming:budget=1048577"


def test_sets_of_ruler_that_are_too_long():
    """They are left out where all sets run, and an error where one was asked for."""
    model = MODELS / "llama-yarn.gguf"
    args = ["eval", "ruler", "-m", model, "--length", "1200", "--limit", "1", "--set", "compare=0,chat=off", "-t", "1", "--kv", "streaming:budget=16"]
    found = butler(*args, "--json")
    sets = {json.loads(line)["subset"] for line in found.stdout.splitlines()}
    assert sets and "too few for an item of" in found.stderr
    missing = next(line for line in found.stderr.splitlines() if "too few for an item of" in line).split("an item of ")[1].split(";")[0]
    assert missing not in sets
    assert "too few for an item of" in butler(*args[:-4], "--set", f"subset={missing}", expect=USAGE).stderr


def test_depths_of_given_items(tmp_path):
    items = tmp_path / "items"
    butler("eval", "ruler", "-m", MODELS / "llama-yarn.gguf", "--length", "600", "--limit", "2", "--set", f"subset=niah_single_1,write={items},chat=off")
    refuses(USAGE, "eval", "ruler", "-m", MODELS / "llama-yarn.gguf", "--data", items, "--set", "depths=3,chat=off", says=["depths"])
