"""`butler report`: the page is well formed whatever the rows hold, and says what they say; a browser shows it."""
import http.server
import json
import os
import re
import shutil
import struct
import subprocess
import threading
import xml.etree.ElementTree as xml
import zlib

import numpy as np
import pytest

import report_rows
from cli import FAILED, USAGE, butler, refuses

XHTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = "</script><script>alert(1)</script>\"' onload='x' <b>&amp;\x01\x7f\u202e\ufffe]]><!-- \u00e9\u4e2d\U0001f600"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return Page(tmp_path_factory.mktemp("report"), report_rows.all_rows())


class Page:
    """A report of rows, parsed as XML, which is stricter than any browser."""

    def __init__(self, folder, *files):
        self.path = folder / "report.html"
        names = [report_rows.write(folder / f"rows{i}.jsonl", rows) for i, rows in enumerate(files)]
        self.result = butler("report", *names, "-o", self.path)
        self.text = self.path.read_text(encoding="utf-8")
        self.root = xml.fromstring(self.text)

    def all(self, path):
        return self.root.findall(".//" + re.sub(r"(^|/)(?=\w)", r"\1" + XHTML, path))

    def chart(self, *words):
        found = [a for a in self.all("article") if all(w in plain(a.find(XHTML + "h3")) for w in words)]
        assert len(found) == 1, f"{len(found)} charts have all of {words} in their titles"
        return found[0]


def plain(element):
    return "".join(element.itertext()).replace("\xa0", " ")


def table_of(element, kind):
    """The cells of a table as text, a list for each row."""
    table = [t for t in element.iter(XHTML + "table") if kind in t.get("class").split()]
    assert len(table) == 1
    return [[plain(cell).strip() for cell in row] for row in table[0].iter(XHTML + "tr")]


def values_of(element, kind):
    """The same as numbers, where cells carry them."""
    table, = [t for t in element.iter(XHTML + "table") if kind in t.get("class").split()]
    return [[cell.get("data-v") for cell in row] for row in list(table.iter(XHTML + "tr"))[1:]]


# --------------------------------------------------------------------------------------------- what it says

def test_alone_in_one_file(page):
    assert page.result.stdout == "" and page.result.stderr == ""
    assert page.text.startswith("<!DOCTYPE html>")
    assert len(page.all("script")) == 1 and not page.all("link") and not page.all("img")
    for element in page.root.iter():
        for key, value in element.attrib.items():
            assert not key.startswith("on")
            if key.endswith("href"):
                assert value.startswith("#"), value
            assert "url(" not in value
    assert "url(" not in page.text and "@import" not in page.text
    assert "http://" not in page.text.replace("http://www.w3.org/1999/xhtml", "") and "https://" not in page.text
    assert "default-src 'none'" in page.text


def test_links_and_copies_lead_somewhere(page):
    ids = [e.get("id") for e in page.root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    targets = {e.get("href")[1:] for e in page.root.iter() if e.get("href")}
    assert len(targets) > 10 and targets <= set(ids)


def test_every_row_is_in_the_tables(page):
    for task, data, config, length, metric, dense in report_rows.TASKS:
        mine = [r for r in report_rows.all_rows() if (r["task"], r.get("data"), r.get("metric")) == (task, data, metric)]
        name = {"ppl": "Perplexity", "recall": "Recall of", "mass": "Attention mass", "coverage": "coverage", "accuracy": "accuracy",
                "acc_norm": "accuracy, normalised"}[metric]
        article = page.chart(name if metric in ("coverage", "accuracy", "acc_norm") else name.lower() if metric != "recall" else "recall of",
                             data.partition("#")[0], f"{length:,}" if task in ("ppl", "recall") else "") if task != "passkey" else \
            next(a for a in page.all("article") if plain(a.find(XHTML + "h3")) == "accuracy: 8,192 tokens")
        heads = table_of(article, "sortable")[0]
        got = {}
        for text, numbers in zip(table_of(article, "sortable")[1:], values_of(article, "sortable"), strict=True):
            got[text[0], text[1]] = dict(zip(heads, zip(text, numbers)))
        assert len(got) == len(mine)
        for row in mine:
            family = re.sub(r"[:,]budget=[^,]*", "", row["policy"])
            cell = got[family, f"{100 * row['budget']:g} %"]
            assert float(cell["value"][1]) == pytest.approx(row["value"], rel=1e-8)
            assert float(cell["95 % interval"][1]) == pytest.approx(row["ci"][0], rel=1e-8)
            assert float(cell["KV read"][1]) == pytest.approx(row["kv_read"], rel=1e-8)
            assert float(cell["items"][1]) == row["n"]
            assert float(cell["KV bytes/token"][1]) == pytest.approx(row["bytes"]["kv"])
            shown = float(cell["value"][0].rstrip(" %"))
            assert shown == pytest.approx(row["value"] * (1 if metric == "ppl" else 100), abs=0.51 if metric != "ppl" else 0.051)


def test_settings_are_what_was_measured(page):
    """One row a policy, without its budget, but with what its short name leaves out."""
    table, = [t for t in page.all("table") if "settings" in t.get("class").split()]
    got = {plain(row[0]).strip(): plain(row[1]) for row in list(table.iter(XHTML + "tr"))[1:]}
    assert got == {name: report_rows.settings(name) for name in report_rows.POLICIES}
    assert "#settings" in {a.get("href") for a in page.all("nav/a")}


def test_rows_without_settings_have_no_table(tmp_path):
    bare = [{k: v for k, v in row.items() if k != "settings"} for row in report_rows.all_rows()]
    page = Page(tmp_path, bare)
    assert "settings" not in {s.get("id") for s in page.all("section")} | {a.get("href")[1:] for a in page.all("nav/a")}


def is_near(row, dense):
    return row["value"] <= 1.02 * dense if row["metric"] == "ppl" else row["value"] >= 0.98 * dense


def test_fewest_bytes_near_dense(page):
    """The first table against the definition: the least kv_read of the rows within 2 % of dense."""
    table, = [t for t in page.all("table") if "matrix" in t.get("class")]
    heads = [plain(h) for h in table.iter(XHTML + "th") if h.get("scope") == "col"][1:]
    assert len(heads) == len(report_rows.TASKS)
    for row in list(table.iter(XHTML + "tr"))[1:]:
        policy = plain(row[0])
        for cell, task in zip(row[1:], report_rows.TASKS, strict=True):
            rows = [report_rows.eval_row(*task, policy, b) for b in report_rows.BUDGETS]
            near = [r["kv_read"] for r in rows if is_near(r, report_rows.eval_row(*task, "full", 1)["value"])]
            if near:
                assert float(cell.get("data-v")) == pytest.approx(min(near))
                assert plain(cell) == f"{100 * min(near):.0f} %"
            else:
                assert plain(cell) == "–"


def area(rows, dense):
    """The best quality relative to dense within a limit of bytes, averaged over limits."""
    total = best = at = 0.0
    for row in sorted(rows, key=lambda r: r["kv_read"]):
        if row["kv_read"] >= 1:
            break
        total += best * (row["kv_read"] - at)
        at = row["kv_read"]
        best = max(best, min(1, dense / row["value"] if row["metric"] == "ppl" else row["value"] / dense))
    return total + best * (1 - at)


def test_order_of_the_policies(page):
    names = [p for p in report_rows.POLICIES if p not in ("full", "oracle", "random")]
    by_task = {}
    for task in report_rows.TASKS:
        dense = report_rows.eval_row(*task, "full", 1)["value"]
        areas = {p: area([report_rows.eval_row(*task, p, b) for b in report_rows.BUDGETS], dense) for p in names}
        by_task.setdefault(task[0], []).append({p: a - np.mean(list(areas.values())) for p, a in areas.items()})
    score = {p: np.mean([np.mean([chart[p] for chart in charts]) for charts in by_task.values()]) for p in names}
    wanted = ["oracle"] + sorted(names, key=lambda p: -score[p]) + ["random"]
    table, = [t for t in page.all("table") if "matrix" in t.get("class")]
    assert [plain(r[0]) for r in list(table.iter(XHTML + "tr"))[1:]] == wanted
    assert "over all tasks" not in plain(page.all("section")[0]), "a rank over tasks has no interval"


def test_a_cell_says_where_the_interval_leaves_a_larger_loss(tmp_path):
    """All are within 2 % of dense; one is so in the whole interval of the difference, and of one 20 items without a difference prove nothing."""
    task = report_rows.TASKS[4]
    rows = [report_rows.eval_row(*task, p, b) for p, b in (("full", 1), ("fier", 0.25), ("quest", 0.25), ("h2o", 0.25))]
    dense = rows[0]["value"]
    for row, (worst, best) in zip(rows[1:], ((-0.01, 0.01), (-0.2, 0.01), (0, 0)), strict=True):
        row.update(value=dense, difference={"to": "full", "value": 0, "ci": [worst * dense, best]})
    table, = [t for t in Page(tmp_path, rows).all("table") if "matrix" in t.get("class")]
    cells = {plain(r[0]): plain(r[1]) for r in list(table.iter(XHTML + "tr"))[1:]}
    assert not cells["fier"].endswith("?") and cells["quest"].endswith("% ?") and cells["h2o"].endswith("% ?")


def test_a_row_is_judged_by_the_items_it_has(tmp_path):
    """Five items on which dense is far better are not near it because all items' dense value is worse. Beside another policy, a row tells
    nothing about dense, and does not replace one that does."""
    task = report_rows.TASKS[4]
    rows = [report_rows.eval_row(*task, p, b) for p, b in (("full", 1), ("fier", 0.25), ("quest", 0.25))]
    dense = rows[0]["value"]
    for row in rows[1:]:
        row.update(value=dense, difference={"to": "full", "value": -0.2 * dense, "ci": [-0.3 * dense, -0.1 * dense]})
    rows.append({**rows[2], "difference": {"to": "fier:budget=0.25", "value": 0, "ci": [0, 0]}, "date": "2030-01-01T00:00:00Z"})
    table, = [t for t in Page(tmp_path, rows).all("table") if "matrix" in t.get("class")]
    cells = {plain(r[0]): plain(r[1]) for r in list(table.iter(XHTML + "tr"))[1:]}
    assert cells["fier"] == cells["quest"] == "\u2013"


def test_two_models_are_named_apart_from_the_metric(tmp_path):
    """Also where a row has neither data nor a length."""
    rows = [{**report_rows.eval_row(*report_rows.TASKS[4], p, b), "model": model, "data": "", "subset": ""} for p, b in (("full", 1), ("fier", 0.25))
            for model in ("one.gguf", "two.gguf")]
    for row in rows:
        row.pop("length")
    text = plain(Page(tmp_path, rows).all("section")[0])
    assert ": one.gguf)" in text and ": two.gguf)" in text


def test_sentences(page):
    sentence, = [plain(li) for li in page.all("li") if plain(li).startswith("Pass key")]
    task = report_rows.TASKS[4]
    dense = report_rows.eval_row(*task, "full", 1)["value"]
    least = {}
    for policy in report_rows.POLICIES:
        rows = [report_rows.eval_row(*task, policy, b) for b in report_rows.BUDGETS]
        near = [r["kv_read"] for r in rows if is_near(r, dense) and r["kv_read"] < 1]
        if near and policy not in ("full", "oracle", "random"):
            least[policy] = min(near)
    best = min(least, key=least.get)
    assert f"Within 2 % of it: {best} with {100 * least[best]:.0f} % of the bytes" in sentence
    assert f"{len(least)} of {len(report_rows.POLICIES) - 3} policies reach that" in sentence


def test_curves_are_where_the_numbers_are(page):
    """Marks lie on one straight line in log(bytes) and one in the value, and the dense line at the dense value."""
    article = page.chart("accuracy", "mrcr")
    svg = next(e for e in article.iter(XHTML + "svg") if e.get("class") == "plot")
    xs, ys = [], []
    for group in svg.iter(XHTML + "g"):
        if not (group.get("class") or "").startswith("curve"):
            continue
        marks = [m for m in group if m.get("class") == "mark"]
        policy = plain(marks[0]).partition(":")[0] if "dense=0" not in plain(marks[0]) else "quest:dense=0"
        points = re.findall(r"([\d.]+),([\d.]+)", group.find(XHTML + "polyline").get("points"))
        rows = sorted((report_rows.eval_row(*report_rows.TASKS[2], policy, b) for b in report_rows.BUDGETS), key=lambda r: r["kv_read"])
        assert len(points) == len(rows) == len(marks)
        for (x, y), row in zip(points, rows):
            xs.append((np.log(row["kv_read"]), float(x)))
            ys.append((row["value"], float(y)))
    assert len(xs) == 5 * (len(report_rows.POLICIES) - 1)
    for points in (np.array(xs), np.array(ys)):
        slope, start = np.polyfit(*points.T, 1)
        assert np.abs(slope * points[:, 0] + start - points[:, 1]).max() < 0.2
    slope, start = np.polyfit(*np.array(ys).T, 1)
    assert slope < 0, "better is up"
    dense = next(e for e in svg.iter(XHTML + "path") if e.get("class") == "dense").get("d")
    value = report_rows.eval_row(*report_rows.TASKS[2], "full", 1)["value"]
    assert float(re.match(r"M\d+ ([\d.]+)H", dense)[1]) == pytest.approx(slope * value + start, abs=0.2)


def test_maps(page):
    """Every head of the recall map, every cell of the pass key's grid."""
    gallery = next(t for t in page.all("table") if "gallery" in t.get("class") and "Recall of every" in plain(t[0]))
    row = next(r for r in gallery.iter(XHTML + "tr") if plain(r[0]) == "fier")
    titles = [plain(t) for t in row[1].iter(XHTML + "title")]
    layers = report_rows.eval_row(*report_rows.TASKS[7], "fier", 0.05)["detail"]["layers"]
    assert titles == [f"layer {i}, head {h}: {layers[i][h]:.2f}" for i in range(6) for h in range(6)]
    assert f"mean {100 * np.mean(layers):.0f} %" in plain(row[1])

    gallery = next(t for t in page.all("table") if "gallery" in t.get("class") and "Correct answers" in plain(t[0]))
    row = next(r for r in gallery.iter(XHTML + "tr") if r[0].get("scope") == "row" and plain(r[0]) == "h2o")
    for k, budget in enumerate(report_rows.BUDGETS):
        grid = report_rows.eval_row(*report_rows.TASKS[4], "h2o", budget)["detail"]["grid"]
        cells = list(row[k + 1].find(XHTML + "table").iter(XHTML + "td"))
        assert [c.get("title") for c in cells] == [f"{g['right']} of 8" for g in grid]
        assert [plain(c) for c in cells] == [f"{100 * g['right'] / 8:.0f}" for g in grid]


def test_own_attention(page):
    """Every head of the maps, every layer's curve, every token of the text and the marks of the most attended ones."""
    for metric, words in (("sparsity", "Sparsity of every"), ("first_norm", "first token's value"), ("rank_correlation", "Rank correlation")):
        gallery, = [t for t in page.all("table") if "gallery" in (t.get("class") or "") and words in plain(t[0])]
        heads = next(d["heads"] for _, m, d in report_rows.ATTENTION if m == metric)
        assert [plain(t) for t in gallery.iter(XHTML + "title")] == [f"layer {l}, head {h}: {heads[l][h]:.2f}" for l in range(6) for h in range(3)]
    article = page.chart("held by the most attended tokens")
    assert {plain(t) for t in article.iter(XHTML + "title")} == {
        f"layer {l}: {100 * y:.0f} % at {100 * x:.{int(x < 0.09)}f} %" for l in range(6) for x, y in zip((0.01, 0.1, 0.5), (0.2 + l / 50, 0.5 + l / 50, 0.8 + l / 50))}
    for shown in report_rows.SHOWN:
        article = page.chart(f"Layer {shown['layer']}")
        for name, line in zip(("attention", "norm"), article.iter(XHTML + "polyline")):
            points = np.array([point.split(",") for point in line.get("points").split()], float)
            drawn = np.log(shown[name]) if name == "attention" else np.array(shown[name])
            assert (np.diff(points[:, 0]) > 0).all() and np.corrcoef(points[:, 1], drawn)[0, 1] < -0.9999
        best = np.argsort(shown["attention"])[-2:]
        assert {plain(t) for t in article.iter(XHTML + "title")} == {f"token {t}: attention {shown['attention'][t]:.3g}, norm {shown['norm'][t]:.3g}" for t in best}


def test_lengths_of_a_grid_are_one_map(tmp_path):
    """Depth by length: charts of one task that differ in length have one picture, where dense stands too."""
    cell = {(p, length, d): (i * 7 + j * 3 + k) % 9 / 2 for i, p in enumerate(("full", "h2o:budget=0.25"))
            for j, length in enumerate((1024, 4096)) for k, d in enumerate((0, 0.5, 1))}
    rows = [{"task": "ruler", "subset": "niah_single_2", "model": "m.gguf", "policy": policy, "budget": 1 if policy == "full" else 0.25,
             "data": "#0123", "config": "subset=niah_single_2,depths=3", "length": length, "metric": "string_match", "value": 0.5, "n": 12,
             "kv_read": 0.5, "detail": {"grid": [{"length": length, "depth": d, "right": cell[policy, length, d], "n": 4} for d in (0, 0.5, 1)]}}
            for length in (4096, 1024) for policy in ("full", "h2o:budget=0.25")]
    page = Page(tmp_path, rows)
    gallery, = [t for t in page.all("table") if "gallery" in (t.get("class") or "")]
    for policy in ("full", "h2o:budget=0.25"):
        line = next(r for r in gallery.iter(XHTML + "tr") if r[0].get("scope") == "row" and plain(r[0]) == policy.split(":")[0])
        table, = line.iter(XHTML + "table")
        grid = [[c.get("title") for c in r.iter(XHTML + "td")] for r in table.iter(XHTML + "tr")]
        assert grid == [[f"{cell[policy, length, d]:g} of 4" for length in (1024, 4096)] for d in (0, 0.5, 1)] + [[]]
        assert [plain(h) for h in list(table.iter(XHTML + "tr"))[-1]] == ["", "1k", "4k"]
    heading, = [h for h in page.all("h3") if h.get("class") == "maps"]
    assert plain(heading) == "expected strings found: niah_single_2"


def test_tokens(page):
    rows = [r for r in report_rows.all_rows() if r["task"] == "heat"]
    paragraphs = [p for p in page.all("p") if p.get("class") == "tokens"]
    assert len(paragraphs) == len(rows)
    for paragraph, row in zip(paragraphs, rows):
        assert plain(paragraph) == "".join(row["tokens"]).replace("\n", "↵")
        marked = "".join(plain(s) for s in paragraph if "answer" in s.get("class"))
        assert marked == " Kimberly Reyes"
        dropped = "".join(plain(s) for s in paragraph if s.get("class") == "k0")
        assert dropped.replace("↵", "\n") == "".join(t for t, k in zip(row["tokens"], row["kept"]) if k == 0)


def test_measured_again(tmp_path):
    """More items count, else the later row, over all files; the page has the number of rows that are not shown."""
    task = report_rows.TASKS[0]
    first, full = report_rows.eval_row(*task, "quest", 0.1), report_rows.eval_row(*task, "full", 1)
    more, later, fewer = {**first, "n": 200, "value": 77.5}, {**first, "n": 200, "value": 78.5}, {**first, "n": 50, "value": 79.5}
    page = Page(tmp_path, [full, first, more], [later, fewer])
    table = table_of(page.chart("perplexity"), "sortable")
    assert [row[2] for row in table[1:] if row[0] == "quest"] == ["78.50"]
    assert "3 are not shown" in plain(page.root)


# ----------------------------------------------------------------------------------------------- what comes

def test_predictors_stand_beside_the_rest(tmp_path):
    """Rows of a policy with a predictor name it in their config; they belong to the same chart all the same."""
    task, data, config, length, metric, dense = report_rows.TASKS[2]
    rows = [report_rows.eval_row(task, data, config, length, metric, dense, policy, 0.25) for policy in ("full", "quest", "tokenbutler2")]
    rows[2]["config"] += ",predictor=265216/1198080/3.8"
    results, page = tmp_path / "r.jsonl", tmp_path / "r.html"
    report_rows.write(results, rows)
    butler("report", results, "-o", page)
    apart = page.read_text()
    rows[2]["config"] = rows[1]["config"]
    report_rows.write(results, rows)
    butler("report", results, "-o", page)
    assert apart == page.read_text()


def test_two_files_of_one_name(tmp_path):
    """Rows of another model's file with the same name are not compared with these; rows of old versions name no file."""
    task, data, config, length, metric, dense = report_rows.TASKS[2]
    rows = [{**report_rows.eval_row(task, data, config, length, metric, dense, policy, 0.25), "fingerprint": fingerprint}
            for fingerprint in ("00aa", "00bb") for policy in ("full", "quest")]
    results, page = tmp_path / "r.jsonl", tmp_path / "r.html"
    report_rows.write(results, rows)
    butler("report", results, "-o", page)
    assert page.read_text().count("file 00aa") == page.read_text().count("file 00bb") > 0
    del rows[2:], rows[0]["fingerprint"]
    report_rows.write(results, rows)
    butler("report", results, "-o", page)
    assert "file 00" not in page.read_text()


def test_hostile_text(tmp_path):
    """Names, tokens and data that try to leave their place."""
    rows = [report_rows.eval_row(*report_rows.TASKS[0], "full", 1)]
    for key in ("policy", "model", "data", "config", "version", "date"):
        rows.append({**report_rows.eval_row(*report_rows.TASKS[0], "quest", 0.1), key: HOSTILE})
    rows += [{**rows[1], "task": HOSTILE, "metric": HOSTILE, "policy": HOSTILE}, {"task": HOSTILE, "policy": HOSTILE, "note": HOSTILE},
             {"task": "heat", "policy": HOSTILE, "tokens": [HOSTILE, "\n", "<", "&lt;"], "kept": [1, 0, 0.5, "x"], "answer": [0, 99, "x"]}]
    page = Page(tmp_path, rows)
    assert len(page.all("script")) == 1
    assert "alert(1)" not in page.all("script")[0].text
    assert all(not key.startswith("on") for e in page.root.iter() for key in e.attrib)
    shown = "</script><script>alert(1)</script>\"' onload='x' <b>&amp;\ufffd\ufffd\ufffd\ufffd]]><!-- \u00e9\u4e2d\U0001f600"
    text = plain(page.root)
    assert text.count(shown) >= 6
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ufffe]", page.text)


def test_odd_rows(tmp_path):
    """What is missing is left out; nothing else suffers."""
    base = report_rows.eval_row(*report_rows.TASKS[2], "quest", 0.1)
    rows = [base, {"task": "ppl", "policy": "full", "metric": "ppl"}, {**base, "value": None, "ci": None, "budget": 0.2},
            {**base, "kv_read": 0, "value": 0, "budget": 0.3}, {**base, "kv_read": None, "budget": 1024}, {**base, "value": 1e300, "budget": 2},
            {**base, "ci": [-1e300, 1e300], "budget": 3}, {**base, "task": "new", "metric": "unheard", "value": -3},
            {**base, "detail": {"layers": [[], [1, "x"], 3], "grid": [3, {}, {"length": 1}], "by_position": [{}, 1], "mass": [[]]}, "budget": 4},
            {**base, "metric": "first_norm", "detail": {"heads": [3, []], "held": [[], "x"], "tops": 3, "shown": [{}, 1, {"attention": [0, 2, "x"], "norm": [1]}]}},
            {"task": "heat", "policy": "x", "tokens": [], "kept": []}, {"task": "strange", "policy": "y", "answer": 42},
            {**base, "policy": "quest:page=8,budget=0.1,group=mean", "task": "long"}]
    page = Page(tmp_path, rows)
    text = plain(page.root)
    assert "unheard" in text and '"answer":42' in text and "1,024 tokens" in text
    assert "quest:page=8,group=mean" in text
    assert "nan" not in page.text.lower().replace("isnan", "") and "inf" not in re.sub(r"\w*inf\w+", "", page.text.lower())


@pytest.mark.parametrize("line, words", [
    ('{"task": "ppl"', ["not JSON"]), ("[1, 2]", ["object"]), ('"text"', ["not JSON"]), ('{"policy": "full"}', ['"task"', "missing"]),
    ('{"task": "ppl"}', ['"policy"', "missing"]), ('{"task": 3, "policy": "full"}', ['"task"', "string"]),
    ('{"task": "", "policy": "full"}', ['"task"', "empty"]), ('{"task": "a", "policy": "b", "value": "12"}', ['"value"', "number"]),
    ('{"task": "a", "policy": "b", "ci": [2, 1]}', ['"ci"', "low"]), ('{"task": "a", "policy": "b", "ci": [2]}', ['"ci"', "two"]),
    ('{"task": "a", "policy": "b", "kv_read": -1}', ['"kv_read"', "0 or more"]), ('{"task": "a", "policy": "b", "detail": []}', ['"detail"', "object"]),
    ('{"task": "a", "policy": "b", "value": 1e999}', ["not JSON"]), ('{"task": "a", "task": "b", "policy": "c"}', ["not JSON"]),
    ('{"task": "a\\u0000", "policy": "b"}', ["not JSON"]), (b'{"task": "\xff", "policy": "b"}', ["not JSON"]), (b'{"task": "a\x00', ["not JSON"]),
])
def test_bad_line(tmp_path, line, words):
    """The file, the line and what is wrong; a page that was there stays."""
    good = json.dumps(report_rows.eval_row(*report_rows.TASKS[0], "full", 1)).encode()
    rows, out = tmp_path / "rows.jsonl", tmp_path / "report.html"
    rows.write_bytes(good + b"\n\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n" + good + b"\n")
    out.write_text("what was there")
    refuses(FAILED, "report", rows, "-o", out, says=[f"{rows}:3:", *words])
    assert out.read_text() == "what was there" and sorted(os.listdir(tmp_path)) == ["report.html", "rows.jsonl"]


def test_bad_files(tmp_path):
    rows = report_rows.write(tmp_path / "rows.jsonl", report_rows.all_rows()[:5])
    (tmp_path / "empty.jsonl").write_text("\n\n")
    refuses(USAGE, "report", rows, says=["-o"])
    refuses(USAGE, "report", "-o", tmp_path / "x.html", says=["usage"])
    refuses(FAILED, "report", rows, tmp_path / "nosuch.jsonl", "-o", tmp_path / "x.html", says=["nosuch.jsonl"])
    refuses(FAILED, "report", tmp_path / "empty.jsonl", "-o", tmp_path / "x.html", says=["empty.jsonl", "no rows"])
    refuses(FAILED, "report", tmp_path, "-o", tmp_path / "x.html", says=[str(tmp_path)])
    refuses(FAILED, "report", rows, "-o", tmp_path / "no" / "x.html", says=["x.html"])
    assert not (tmp_path / "x.html").exists()


def test_many_policies(tmp_path):
    """Two hundred policies with long names, two models: as much as anybody would give it."""
    rows = []
    for model in ("small.gguf", "/models/large.gguf"):
        rows.append({**report_rows.eval_row(*report_rows.TASKS[0], "full", 1), "model": model})
        for i in range(200):
            row = report_rows.eval_row(*report_rows.TASKS[0], "h2o", 0.1)
            rows.append({**row, "model": model, "policy": f"h2o:sinks={i}," + "x" * 200 + "=1,budget=0.1", "value": 40 + i})
    page = Page(tmp_path, rows)
    assert len([a for a in page.all("article") if "large.gguf" in plain(a.find(XHTML + "h3"))]) == 1
    table, = [t for t in page.all("table") if "matrix" in t.get("class")]
    assert len(list(table.iter(XHTML + "tr"))) == 201


# ------------------------------------------------------------------------------------------------ in a browser

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


def pixels(path):
    """A PNG as an array [height, width, channels], by the five filters of its format."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6)
        packed += body if kind == b"IDAT" else b""
        at += 12 + n
    channels = 3 if colour == 2 else 4
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    image = np.zeros((height, width * channels), np.uint8)
    for y in range(height):
        row, up = lines[y, 1:].astype(np.int32), image[y - 1].astype(np.int32) if y else np.zeros(width * channels, np.int32)
        if lines[y, 0] == 2:
            image[y] = row + up
        elif lines[y, 0] == 1:
            image[y] = np.cumsum(row.reshape(width, channels), axis=0).reshape(-1)
        elif lines[y, 0] == 0:
            image[y] = row
        else:
            image[y] = unfilter(lines[y, 0], row.tolist(), up.tolist(), channels)
    return image.reshape(height, width, channels)


def unfilter(kind, row, up, channels):
    """Filters 3 (mean) and 4 (Paeth), whose every byte needs the one before it."""
    out = []
    for i, value in enumerate(row):
        left, corner = (out[i - channels], up[i - channels]) if i >= channels else (0, 0)
        if kind == 3:
            guess = (left + up[i]) // 2
        else:
            near = left + up[i] - corner
            guess = min((left, up[i], corner), key=lambda v: abs(near - v))
        out.append((value + guess) & 255)
    return out


def shoot(page, folder, width, height, *flags):
    """The page as Chromium draws it, and what it says meanwhile. Requests that leave the machine would go to a closed port."""
    out = folder / f"{width}.png"
    result = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
                             "--disable-extensions", "--disable-component-update", "--disable-background-networking", "--hide-scrollbars",
                             "--enable-logging=stderr", f"--user-data-dir={folder}/profile{width}", f"--window-size={width},{height}",
                             f"--screenshot={out}", *flags, page], capture_output=True, text=True, timeout=420)
    assert result.returncode == 0 and out.exists(), result.stderr[-2000:]
    said = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    return pixels(out), said


@pytest.mark.skipif(not CHROMIUM, reason="chromium is absent")
def test_in_a_browser(tmp_path):
    """Drawn at the width of a desk and of a phone: not blank, in colours, no error, and nothing is fetched but the page."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    rows = [r for r in report_rows.all_rows() if r.get("data") != "book.txt#1123456789abcdef"]
    rows.append({"task": HOSTILE, "policy": HOSTILE, "metric": HOSTILE, "value": 1, "note": "<img src='/stolen'/>"})
    body = Page(tmp_path, rows).text.encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for width in (1280, 375):
            image, said = shoot(f"http://127.0.0.1:{server.server_address[1]}/", tmp_path, width, 1400)
            assert image.shape[:2] == (1400, width)
            assert not said, said
            colours = {tuple(c) for c in image[::3, ::3, :3].reshape(-1, 3).tolist()}
            assert len(colours) > 60, "text, lines and marks have many shades"
            ink = (image[:, :, :3].astype(int).sum(axis=2) < 600).mean()
            assert 0.01 < ink < 0.5
            right = image[:, -8:, :3].reshape(-1, 3)
            assert (right == right[0]).all(axis=1).mean() > 0.97, "nothing runs over the right edge"
    finally:
        server.shutdown()
    assert {path for path in asked if path != "/favicon.ico"} == {"/"}
