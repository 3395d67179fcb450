"""Which way objects link: a folder of src/ uses no symbol of one that stands above it, and programs use the library's public functions
(tools/ci/check_includes.py says the same of #include lines). Skipped where the objects are not there, or nm is not."""
import importlib.util
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", "build"))
ORDER = ["base", "file", "text", "template", "grammar", "model", "engine", "metrics", "kernels", "cpu", "gpu", "devices"]
KNOWN = {("metrics", "kernels")}  # host functions of metrics use kernels


def symbols(folder):
    """(folder, file, kind, name) of every symbol of the objects whose sources are in folders of `folder`."""
    paths = [path for path in sorted((BUILD / folder).glob("*/*.o")) if (ROOT / folder / path.parent.name / f"{path.stem}.c").exists()]
    for line in subprocess.run(["nm", "--print-file-name", *paths], capture_output=True, text=True, check=True).stdout.splitlines():
        path, rest = line.split(".o:", 1)
        *_, kind, name = rest.split()
        yield Path(path).parent.name, Path(path).name, kind, name


@pytest.fixture(scope="module")
def library():
    """Where each of the library's symbols is, (folder, file), and which symbols each of its folders uses."""
    if not any((BUILD / "src").glob("*/*.o")) or not shutil.which("nm"):
        pytest.skip("no objects, or no nm")
    home, used = {}, defaultdict(set)
    for folder, file, kind, name in symbols("src"):
        if kind == "U":
            used[folder].add(name)
        elif kind in "TDRBV":
            home[name] = folder, file
    return home, used


def test_no_symbol_from_above(library):
    home, used = library
    upward = defaultdict(set)
    for folder, names in used.items():
        for name in names & home.keys():
            if ORDER.index(home[name][0]) > ORDER.index(folder):
                upward[folder, home[name][0]].add(name)
    assert {edge: names for edge, names in upward.items() if edge not in KNOWN} == {}


def test_programs_use_public_functions(library):
    """Of the library a program uses what the public headers declare, src/base, and the files whose headers check_includes.py lists."""
    home, _ = library
    spec = importlib.util.spec_from_file_location("check_includes", ROOT / "tools/ci/check_includes.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    public = set(re.findall(r"\b(butler_\w+)\(", "".join(f.read_text() for f in (ROOT / "include").glob("*.h"))))
    private = defaultdict(set)
    n_programs = 0
    for folder, file, kind, name in symbols("apps"):
        n_programs += 1
        if kind == "U" and name in home and name not in public and home[name][0] != "base":
            private[f"apps/{folder}"].add((home[name], name))
    assert n_programs > 0
    files = {"convert": "convert", "quantize": "quantize", "predictor_file": "predictor", "weight_types": "quantize"}
    for folder, uses in private.items():
        headers = {h for program in (folder, "apps/train" if folder == "apps/cmd" else folder) for h in table.PROGRAMS[program]}
        assert {(home, name) for home, name in uses if f"{home[0]}/{files.get(home[1], home[1])}.h" not in headers} == set(), folder


def test_engine_names_no_metric():
    """The engine knows metrics by what they say of themselves, never by a variable or a name."""
    names = set(re.findall(r"each\((\w+)\)", (ROOT / "src/metrics/registry.h").read_text())) - {"each"}
    assert len(names) > 10
    for path in sorted((ROOT / "src").glob("engine/*.[ch]")) + sorted((ROOT / "src").glob("cpu/*.[ch]")):
        text = path.read_text()
        found = {name for name in names if f"butler_metric_{name}" in text or f'"{name}"' in text}
        assert found == set(), path
