"""Rows of `butler eval`."""
import numpy as np
import pytest

import butler
from conftest import BUTLER, GQA


def test_rows(tmp_path):
    text = tmp_path / "text"
    text.write_text("It was the best of times, it was the worst of times. " * 20)
    flags = dict(command=BUTLER, model=GQA, kv=["fier:dense=0", "oracle"], budget=[8, 16], length=64, limit=1, data=text,
                 set={"steps": 4, "charge": 0})
    rows = butler.evaluate("recall", **flags, o=tmp_path / "rows.jsonl")
    assert len(rows) == 2 * 2 * 3 and butler.read_rows(tmp_path / "rows.jsonl") == rows
    assert butler.evaluate("recall", **flags, output=tmp_path / "rows.jsonl") == rows  # nothing is measured again
    assert [row["value"] for row in butler.evaluate("recall", **flags)] == [row["value"] for row in rows]
    table = butler.columns(rows)
    oracle = np.array(["oracle" in policy for policy in table["policy"]]) & (table["metric"] == "recall")
    assert oracle.sum() == 2 and table["value"].dtype == float
    assert np.all(table["value"][oracle] >= table["value"][(table["metric"] == "recall") & ~oracle])
    assert table["ci"].dtype == object and sorted(set(table["budget"])) == [8, 16]


def test_columns_of_rows_that_differ():
    table = butler.columns([{"a": 1, "b": None}, {"a": 2.5, "b": 3, "c": [1, 2]}, {"a": True}])
    assert table["a"].tolist() == [1, 2.5, True] and table["c"].tolist() == [None, [1, 2], None]
    assert table["b"].dtype == float and np.array_equal(table["b"], [np.nan, 3, np.nan], equal_nan=True)
    assert butler.columns([]) == {}


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(butler.Error, match="nosuch"):
        butler.evaluate("recall", command=BUTLER, model=GQA, kv="nosuch")
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a":\n')
    with pytest.raises(ValueError, match="rows.jsonl:2"):
        butler.read_rows(tmp_path / "rows.jsonl")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="command="):
        butler.evaluate("recall", model=GQA)
