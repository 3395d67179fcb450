"""Which way the library's objects link: a folder of src/ uses no symbol of one that stands above it (tools/ci/check_includes.py says the same
of #include lines). Skipped where the objects are not there, or nm is not."""
import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("BUILD", "build")) / "src"
ORDER = ["base", "file", "text", "template", "grammar", "model", "engine", "metrics", "kernels", "cpu"]
# The list of built-in metrics is part of the contract with them (engine/metric.h); it is made where they are.
KNOWN = {("engine", "metrics"): {"butler_metrics_builtin"}, ("metrics", "kernels"): None}  # host functions of metrics use kernels


def test_no_symbol_from_above():
    objects = sorted(BUILD.glob("*/*.o"))
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
    upward = {edge: names for edge, names in upward.items() if not (edge in KNOWN and KNOWN[edge] is None)}
    assert upward == {edge: names for edge, names in KNOWN.items() if names}
