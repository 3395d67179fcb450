"""Which way the library's objects link: a folder of src/ uses no symbol of one that stands above it (tools/ci/check_includes.py says the same
of #include lines). Skipped where the objects are not there, or nm is not."""
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", "build")) / "src"
ORDER = ["base", "file", "text", "template", "grammar", "model", "engine", "metrics", "kernels", "cpu", "devices"]
KNOWN = {("metrics", "kernels")}  # host functions of metrics use kernels


def test_no_symbol_from_above():
    objects = [path for path in sorted(BUILD.glob("*/*.o")) if (ROOT / "src" / path.parent.name / f"{path.stem}.c").exists()]
    if not objects or not shutil.which("nm"):
        pytest.skip("no objects, or no nm")
    home, used = {}, defaultdict(set)
    for path in objects:
        for line in subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines():
            *_, kind, name = line.split()
            if kind == "U":
                used[path.parent.name].add(name)
            elif kind in "TDRBV":
                home[name] = path.parent.name
    upward = defaultdict(set)
    for folder, names in used.items():
        for name in names & home.keys():
            if ORDER.index(home[name]) > ORDER.index(folder):
                upward[folder, home[name]].add(name)
    assert {edge: names for edge, names in upward.items() if edge not in KNOWN} == {}


def test_engine_names_no_metric():
    """The engine knows metrics by what they say of themselves, never by a variable or a name."""
    names = set(re.findall(r"each\((\w+)\)", (ROOT / "src/metrics/registry.h").read_text())) - {"each"}
    assert len(names) > 10
    for path in sorted((ROOT / "src").glob("engine/*.[ch]")) + sorted((ROOT / "src").glob("cpu/*.[ch]")):
        text = path.read_text()
        found = {name for name in names if f"butler_metric_{name}" in text or f'"{name}"' in text}
        assert found == set(), path
