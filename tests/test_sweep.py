"""`bench/sweep` measures, continues after an interruption, and reports; `bench/results.py` puts the rows' numbers into docs/results.md, bench/tables.md and bench/ruler.md."""
import importlib.util
import json
import os
import re
import shutil
import subprocess

import pytest

from cli import BUTLER, GQA, ROOT

SWEEP = str(ROOT / "bench" / "sweep")
STORE, PAGES = ROOT / "bench" / "results.jsonl", [ROOT / name for name in ("docs/results.md", "bench/tables.md", "bench/ruler.md")]


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


def test_pages_are_what_the_script_makes(results, tmp_path):
    """Also a second time, and whoever types a number into a table is found."""
    store, pages = tmp_path / "results.jsonl", [tmp_path / page.name for page in PAGES]
    shutil.copy(STORE, store)
    shutil.copytree(STORE.parent / "gates", tmp_path / "gates")
    for page, real in zip(pages, PAGES):
        whole = real.name == "README.md"  # which has tables of other things
        page.write_text(re.sub(r"(<!-- \w+ -->\n)(\|.*\n)+" if whole else r"(?m)^\| .*\d.*\|$", r"\1| typed |\n" if whole else "| typed |", real.read_text()))
        assert page.read_text() != real.read_text()
    pictures = ("results.svg", "results-qwen.svg", "results-qwen-1.5b.svg")
    results.main([], store, pages, [tmp_path / name for name in pictures])
    assert [page.read_text() for page in pages] == [page.read_text() for page in PAGES]
    for name in pictures:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()
    assert store.read_text() == STORE.read_text()


def pieces(results, tmp_path, rows, *names):
    """The tables that the script writes for these rows, by name."""
    store, page = tmp_path / "store.jsonl", tmp_path / "page.md"
    page.write_text("".join(f"before {name}\n<!-- {name} -->\n| typed before |\n\n" for name in names))
    store.write_text("".join(json.dumps(r) + "\n" for r in rows))
    results.main([], store, [page], [tmp_path / "page.svg"])
    text = page.read_text()
    assert "typed before" not in text and text.count("before") == len(names)
    return {name: text.split(f"<!-- {name} -->\n")[1].split("\n\n")[0] for name in names}


def test_rows_become_cells_and_verdicts(results, tmp_path):
    full = row("full", 1, 20, [18, 22])
    rows = [full, row("fier", 0.11, 99, [98, 99.5], n=5), row("fier", 0.11, 20.1, [18, 23], (0.1, 0.05, 0.2)),
            row("fier", 0.05, 20.5, [18, 23], (0.5, 0.3, 0.7)), row("knorm", 0.11, 90, [89, 91]), row("h2o", 0.25, 30, [28, 31], (10, 9, 11)),
            row("h2o", 0.5, 25, [23, 26], (5, 4, 6)),
            row("h2o+vatp", 0.5, 21, [20, 22], (1, -1, 3), n=50), row("h2o+vatp", 0.25, 31, [30, 32], (1, 9, 13))]
    found = pieces(results, tmp_path, [{**r, "seconds": 3} for r in rows], "short", "claims")
    store = (tmp_path / "store.jsonl").read_text()
    assert len(store.splitlines()) == 8 and "seconds" not in store  # more items replace fewer
    assert "| policy | WikiText-2, ppl, 5 % (n 100) | WikiText-2, ppl, 11 % (n 100) |" in found["short"]
    assert "| `fier` | 20.5 [18.0, 23.0] · 5 % | **20.1 [18.0, 23.0] · 11 %** |  |  |" in found["short"], "a loss of at most 1 % is shown"
    assert "| `h2o` |  |  | 30.0 [28.0, 31.0] · 25 % | 25.0 [23.0, 26.0] · 50 % |" in found["short"]
    assert "21.0 [20.0, 22.0] · 50 % · n 50 |" in found["short"], "another number of items than most"
    assert "knorm" not in found["short"], "one cell is no row"
    verdicts = re.findall(r"^\| ([^|]*) \| (?:SmolLM2)? ?\| WikiText-2, ppl, (\d+) % \|.*\| ([\w ]+) \|$", found["claims"], re.M)
    assert dict((claim, found) for claim, _, found in verdicts if found != "not measured") == {
        "FIER: full quality at 11 %": "shows", "VATP is better than H2O at 50 %": "shows", "H2O keeps quality at 20 % (here 25 %)": "does not"}


def test_same_items_beside_another_policy(results, tmp_path):
    """A row that was measured beside the other policy decides what two intervals leave open."""
    rows = [row("full", 1, 20, [10, 30]), row("h2o", 0.5, 25, [15, 35], (5, 4, 6)), row("h2o+vatp", 0.5, 24, [14, 34], (4, 3, 5))]
    claim = re.compile(r"\| VATP is better than H2O at 50 % \| SmolLM2 \| WikiText-2.*")
    found = pieces(results, tmp_path, rows, "claims", "claims of SmolLM2")
    assert claim.search(found["claims of SmolLM2"])[0].endswith("| undecided |") and not claim.search(found["claims"])
    beside = {**rows[2], "difference": {"to": "h2o:budget=0.5", "value": -1, "ci": [-1.5, -0.5]}}
    line = claim.search(pieces(results, tmp_path, [*rows, beside], "claims")["claims"])[0]
    assert line.endswith("| `h2o` 25.0 (-1.5 … -0.5) | shows |")
    assert len((tmp_path / "store.jsonl").read_text().splitlines()) == 4, "both rows are kept"
    pieces(results, tmp_path, [*rows, beside, {key: value for key, value in rows[1].items() if key != "difference"}], "claims")
    assert len((tmp_path / "store.jsonl").read_text().splitlines()) == 4, "a row beside none tells less"


def test_a_task_that_tests_nothing_says_so(results, tmp_path):
    """The oracle at the same budget fails too, full attention is below the floor, neither of two has any; and the first model that was measured counts."""
    def key(policy, value, budget=0.5, **more):
        low, high = max(value - 0.01, 0), min(value + 0.01, 1)
        return {**row(policy, 1 if policy == "full" else budget, value, [low, high], metric="string_match", length=4096, config="mode=prefill"), "task": "ruler", "subset": "niah_single_1", **more}
    rows = [row("full", 1, 20, [19, 21]), row("fier", 0.11, 30, [29, 31], (10, 9, 11)), row("oracle", 0.11, 25, [24, 26], (5, 4, 6)),
            key("full", 0.9), key("h2o", 0), key("h2o+vatp", 0), key("tinyserve", 0.5)]
    lines = pieces(results, tmp_path, rows, "claims of SmolLM2")["claims of SmolLM2"].splitlines()
    verdict = lambda claim, task: next(line for line in lines if line.startswith(f"| {claim}") and task in line).split(" | ")[-1].rstrip(" |")
    assert verdict("FIER: full quality at 11 %", "WikiText-2") == "not testable: oracle fails too"
    assert verdict("VATP is better than H2O at 50 %", "pass key") == "not testable: neither finds any"
    assert verdict("TinyServe: pages keep quality", "pass key in 4,096 tokens, %, 50 %") == "does not"
    weak = [key("full", 0.2, model="qwen2.5-coder-0.5b.gguf"), key("tinyserve", 0.1, model="qwen2.5-coder-0.5b.gguf")]
    lines = pieces(results, tmp_path, [*rows, *weak], "claims")["claims"].splitlines()
    assert not any("SmolLM2" in line and "not testable" in line for line in lines)
    assert verdict("TinyServe: pages keep quality", "Qwen 0.5B") == "not testable: full attention has 20 %"


def test_rows_of_two_predictors_are_refused(results, tmp_path):
    rows = [row("full", 0, 30, [29, 31])] + [row("tokenbutler2", budget, 31, [30, 32], config=f"compare=0,predictor={predictor}")
                                             for budget, predictor in ((0.1, "00ff"), (0.2, "00ff"))]
    pieces(results, tmp_path, rows, "short")
    with pytest.raises(SystemExit, match="tokenbutler2: rows of several predictors: 00aa, 00ff"):
        pieces(results, tmp_path, [*rows, row("tokenbutler2", 0.3, 31, [30, 32], config="compare=0,predictor=00aa")], "short")


@pytest.mark.parametrize("change", [{"fingerprint": "b"}, {"seed": 7}, {"data": "other"}, {"config": "kv-type=q8_0"}, {"config": "kv-type=f16,isa=ref"}])
def test_rows_of_two_protocols_are_refused(results, tmp_path, change):
    same = {"config": "kv-type=f16", "fingerprint": "a", "seed": 0, "data": "text", "length": 512}
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps(r) + "\n" for r in (row("full", 1, 20, [19, 21], **same), row("quest", 0.11, 21, [20, 22], **{**same, **change}))))
    with pytest.raises(SystemExit, match="differ in"):
        results.main([path], tmp_path / "store", [], [])


def test_gates(results, tmp_path):
    """A model's verdicts by length; where nothing is on, what failed is counted; several needles lost by one policy count once."""
    def candidate(policy, *because):
        return {"policy": policy, "ppl": {"value": 10.1, "dense": 10}, "speed_up": {"value": 1.2, "ci": [1.1, 1.3]}, "kv_read": 0.25, "passes": not because,
                "because": list(because)}
    lost = ["niah_single_2: 50 %, dense 100 %", "niah_multikey_2: 25 %, dense 75 %"]
    folder = tmp_path / "gates"
    folder.mkdir()
    for name, on, candidates in (("qwen2.5-coder-0.5b-16384", "full", [candidate("a:budget=1", *lost, "perplexity +1.00 %"), candidate("b:budget=1", "not shown to be faster: 1.0")]),
                                 ("qwen2.5-coder-0.5b-8192", "b:budget=2", [candidate("a:budget=1", lost[0]), candidate("b:budget=2"), candidate("c:budget=3")])):
        (folder / f"{name}.json").write_text(json.dumps({"machine": "m", "commit": "c0ffee", "on": [{"length": 8192, "policy": on}], "candidates": candidates}))
    found = pieces(results, tmp_path, [row("full", 1, 20, [10, 30])], "gates", "candidates")
    assert found["gates"].splitlines()[2:] == [
        "| Qwen2.5-Coder-0.5B, 8,192 | `b:budget=2` | 1.20 | +1.00 % |",
        "| Qwen2.5-Coder-0.5B, 16,384 | `full` | 1 | 2 fail: needles 1, perplexity 1, speed 1 |"]
    assert [line.split(" | ")[-1] for line in found["candidates"].splitlines()[2:6]] == [
        "off: niah_single_2: 50 %, dense 100 % |", "**on** |", "passes |", "m; c0ffee |"]


def test_a_policy_is_named_without_its_budget(results):
    names = {"fier:budget=0.11": "fier", "fier:g=16,budget=0.11": "fier:g=16", "fier:budget=0.11,g=16": "fier:g=16", "a:b=1,budget=2,c=3": "a:b=1,c=3", "full": "full"}
    assert {name: results.family(name) for name in names} == names


def test_long_texts_and_other_models_have_tables_of_their_own(results, tmp_path):
    """A task's length keeps its rows apart, and so does a model."""
    def ruler(policy, subset, length, value, read, budget=0.11, **more):
        budget = 1 if policy == "full" else budget
        return {**row(policy, budget, value, [value - 0.1, value + 0.1], n=10, metric="string_match", length=length, config="mode=prefill"),
                "task": "ruler", "subset": subset, "kv_read": read, **more}
    found = pieces(results, tmp_path, (
        ruler("full", "niah_single_1", 4096, 0.5, 1), ruler("fier", "niah_single_1", 4096, 0.4, 0.2), ruler("fier", "niah_single_1", 4096, 0.5, 0.4, 0.25),
        *(ruler("fier", name, 7900, 0.3, 0.1) for name in ("vt", "cwe")),
        *(ruler("fier", "niah_single_1", 4096, 0.9, 0.3, budget, model="gemma3-270m.gguf") for budget in (0.11, 0.5))),
        "long", "7900 11 %", "gemma")
    assert "| `full` | 50 [40, 60] · 100 % |" in found["long"] and "| `fier` |  | 40 [30, 50] · 20 % | 50 [40, 60] · 40 % |" in found["long"]
    assert "| niah_multiquery (n 0) | vt (n 10) | cwe (n 10) | fwe (n 0) |" in found["7900 11 %"]
    assert "|  | 30 [20, 40] · 10 % | 30 [20, 40] · 10 % |  |" in found["7900 11 %"]
    assert "| `fier` |  |  |  |  | 90 [80, 100] · 30 % | 90 [80, 100] · 30 % |" in found["gemma"]


def test_a_small_sample_does_not_prove_equality(results):
    """Twenty items without a difference leave room for a loss of nearly 3/20; two texts without an interval prove nothing."""
    task, full = results.NAMED, row("full", 1, 0.8, [0.7, 0.9], metric="coverage")
    same = row("quest", 0.5, 0.8, [0.7, 0.9], (0, 0, 0), n=20, metric="coverage")
    loss, low, high = results.loss(task, same, full)
    room = 1 - 0.05 ** (1 / 20)  # so many could differ, and 20 of 20 not
    assert loss == 0 and (low, high) == pytest.approx((-room / 0.8, room / 0.8)) and room == pytest.approx(0.139108, abs=1e-6)
    assert results.verdict("as good", low, high) == "undecided"
    unknown = row("quest", 0.5, 0.8, None, (0, None, None), metric="coverage")
    assert results.verdict("better", *results.loss(task, unknown, full)[1:]) == "undecided"
    assert results.verdict("better", *results.loss(task, row("fier", 0.1, 0.8, [0.76, 0.84], metric="coverage"), 0.75)[1:]) == "shows", "a value of the paper"


def test_rows_of_all_items(results):
    """Without --limit a row says 0; the number of its items bounds what none of them shows."""
    alike = {"difference": {"to": "full", "value": 0.0, "ci": [0.0, 0.0]}, "limit": 0, "n": 40}
    low, high = results.paired(alike)[1]
    assert low == -high == pytest.approx(-(1 - 0.05 ** (1 / 40))) and results.paired({**alike, "items": 10})[1][1] > high


def test_the_question_sets_have_a_mean(results, tmp_path):
    """Of a policy that has all of them, after five examples each, with the interval of a mean of independent ones."""
    def one(policy, name, value, metric, difference=None, shots=5, budget=0.5):
        return {**row(policy, 1 if policy == "full" else budget, value, [value - 0.06, value + 0.06], difference, metric=metric), "task": "mc", "subset": name,
                "config": f"mode=prefill,shots={shots}"}
    rows = []
    for i, name in enumerate(results.FEW_SHOT):
        metric = results.SETS[name][0]
        rows += [one("full", name, 0.5 + i / 100, metric), one("full", name, 0.1, metric, shots=0)]
        for budget in (0.11, 0.5):
            rows += [one("fier", name, 0.48 + i / 100, metric, (-0.02, -0.05, 0.01), budget=budget), one("quest", name, 0.5 + i / 100, metric, (0, 0, 0), budget=budget)]
    rows += [one("tova", "piqa", 0.5, "acc_norm", (0, 0, 0), budget=budget) for budget in (0.11, 0.5)]
    text = pieces(results, tmp_path, rows, "long")["long"]
    lines = {line.split("`")[1]: line.split("|")[-2].strip() for line in text.splitlines()[2:]}
    half = 100 * 0.06 / len(results.FEW_SHOT) ** 0.5
    assert lines == {"full": f"52 [{52 - half:.0f}, {52 + half:.0f}] · 100 %", "fier": f"50 [{50 - half:.0f}, {50 + half:.0f}] · 50 %",
                     "quest": f"52 [{52 - half:.0f}, {52 + half:.0f}] · 50 %"}, "tova has one set"
    assert text.splitlines()[0].endswith("| five question sets, %, 50 % (n 500) |")
    store = (tmp_path / "store.jsonl").read_text()
    assert "all sets" not in store and store.count('"mc"') == len(rows)
    loaded = {results.key_of(r): r for r in map(json.loads, store.splitlines())}
    means = results.means(loaded)
    low, high = means[results.QUESTIONS, "fier", 0.5, "full"]["difference"]["ci"]
    assert (low, high) == pytest.approx((-0.02 - 0.03 / 5**0.5, -0.02 + 0.03 / 5**0.5))
    room = (1 - 0.05 ** (1 / 100)) / 5**0.5
    assert means[results.QUESTIONS, "quest", 0.5, "full"]["difference"]["ci"] == pytest.approx([-room, room]), "no question differs"


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
