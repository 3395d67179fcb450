"""Shared by the tests of `butler eval`: rows, journals, and texts as tokens."""
import json
import math
from pathlib import Path

from cli import GQA, butler

VOLATILE = ("seconds", "date")


def kv(*policies):
    return [word for p in policies for word in ("--kv", p)]


def steady(found):
    """Rows without what differs from run to run."""
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in found]


def by(found, **wanted):
    out = [row for row in found if all(row[k] == v for k, v in wanted.items())]
    assert len(out) == 1, (wanted, len(out))
    return out[0]


def ids_of(text, model=GQA):
    return json.loads(butler("tokenize", "-m", model, "-f", "-", "--no-special", "--json", input=text).stdout)["ids"]


def piece_of(text, model=GQA):
    """Tokens of a text that goes on from another: the space that this vocabulary puts before a text is not wanted there."""
    whole, start = ids_of("x\n" + text, model), ids_of("x\n", model)
    assert whole[:len(start)] == start
    return whole[len(start):]


def bos(model=GQA):
    """The beginning-of-text token where the file asks for one, as the command reads it."""
    special = json.loads(butler("tokenize", "-m", model, "-p", "a", "--json").stdout)["ids"]
    return special[:len(special) - len(ids_of("a", model))]


def journal(path):
    file = Path(f"{path}.items")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wilson(k, n, z=1.959964):
    p, d = k / n, 1 + z * z / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [max(0, (middle - half) / d), min(1, (middle + half) / d)]
