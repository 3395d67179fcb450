"""The binary interface: the check of layouts, and what a program meets that was built with another release's header."""
import copy
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from cli import ROOT

sys.path.insert(0, str(ROOT / "tools" / "ci"))
import abi  # noqa: E402

HEADERS = [ROOT / "include" / name for name in abi.HEADERS if (ROOT / "include" / name).exists()]


@pytest.fixture(scope="module")
def now():
    return abi.read(ROOT / "include")


def test_every_declaration_is_read(now):
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.S)
    assert set(now["structs"]) == set(re.findall(r"^struct (butler_\w+) \{", text, re.M))
    assert set(now["functions"]) == set(re.findall(r"\b(butler_\w+)\(", text))
    assert now["constants"]["BUTLER_ERROR_FORMAT"] == -3 and now["constants"]["BUTLER_KV_Q8_0"] == 2
    assert now["structs"]["butler_utf8"] == {"size": 8, "sized": False, "fields": {"pending": [0, 4], "n_pending": [4, 4]}}


def test_structs_without_a_size_are_these(now):
    """All others can get fields. Those of plug-ins have a number of their own."""
    assert {name for name, struct in now["structs"].items() if not struct["sized"]} - set(abi.PLUGIN) == {
        "butler_error", "butler_utf8", "butler_json", "butler_chat_message", "butler_chat_segment", "butler_chat_text", "butler_logit_bias",
        "butler_fim_tokens"}


def test_the_headers_follow_the_latest_release():
    done = subprocess.run([sys.executable, ROOT / "tools" / "ci" / "abi.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_size_of_zero_means_all_fields_until_the_release(now):
    """A field that joins a struct before this version is recorded belongs to it."""
    version = re.search(r'define BUTLER_VERSION "(.*)"', (ROOT / "include" / "butler.h").read_text())[1]
    if (ROOT / "abi" / f"{version}.json").exists():
        return  # from then on the fields of the release are fixed
    named = [pair for path in (ROOT / "src").rglob("*.c") for pair in re.findall(r"BUTLER_END_OF\((butler_\w+), (\w+)\)", path.read_text())]
    assert len(named) > 10
    assert {struct: field for struct, field in named} == {struct: list(now["structs"][struct]["fields"])[-1] for struct, _ in named}


def changed(now, struct, **changes):
    new = copy.deepcopy(now)
    new["structs"][struct].update(changes)
    return new


def test_what_needs_a_new_soname(now):
    stats, error = now["structs"]["butler_stats"], now["structs"]["butler_error"]
    assert abi.differences(now, now) == []
    more = {**stats["fields"], "more": [stats["size"], 8]}
    assert abi.differences(now, changed(now, "butler_stats", size=stats["size"] + 8, fields=more)) == []
    for what, new in {
        "in the padding": changed(now, "butler_draft_params", fields={**now["structs"]["butler_draft_params"]["fields"], "more": [14, 1]}),
        "n_decode has moved": changed(now, "butler_stats", fields={**stats["fields"], "n_decode": [24, 8]}),
        "is smaller": changed(now, "butler_stats", size=stats["size"] - 8),
        "has no struct_size": changed(now, "butler_error", size=error["size"] + 4, fields={**error["fields"], "more": [error["size"], 4]}),
        "butler_stats is gone": {**now, "structs": {k: v for k, v in now["structs"].items() if k != "butler_stats"}},
        "BUTLER_KV_F32 is 7": {**now, "constants": {**now["constants"], "BUTLER_KV_F32": 7}},
        "butler_step() is declared": {**now, "functions": {**now["functions"], "butler_step": "int butler_step(void)"}},
    }.items():
        found = abi.differences(now, new)
        assert len(found) == 1 and what in found[0], (what, found)
    metric = changed(now, "butler_metric", size=now["structs"]["butler_metric"]["size"] + 8)
    assert abi.differences(now, metric)
    metric["constants"] = {**now["constants"], "BUTLER_METRIC_ABI": 99}
    assert abi.differences(now, metric) == []


def test_a_change_within_a_soname_fails(tmp_path, now):
    (tmp_path / "records").mkdir()
    shutil.copytree(ROOT / "include", tmp_path / "include")
    (tmp_path / "records" / "0.2.0.json").write_text((ROOT / "abi" / "0.2.0.json").read_text())

    def run(*words):
        return subprocess.run([sys.executable, ROOT / "tools" / "ci" / "abi.py", "--include", tmp_path / "include", "--records", tmp_path / "records", *words],
                              capture_output=True, text=True)
    assert run("--write").returncode == 0 and run().returncode == 0
    record = json.loads((tmp_path / "records" / f"{now['version']}.json").read_text())
    assert record == now
    header = tmp_path / "include" / "butler.h"
    header.write_text(header.read_text().replace("struct butler_utf8 {", "struct butler_utf8 {\n    int more;"))
    done = run()
    assert done.returncode == 1 and "butler_utf8" in done.stdout and "needs a new soname" in done.stdout
    major, minor, patch = now["version"].split(".")
    header.write_text(header.read_text().replace(f'VERSION "{now["version"]}"', f'VERSION "{major}.{int(minor) + 1}.{patch}"'))
    assert run().returncode == 0


def test_structs_that_the_library_fills_are_initialised(now):
    """Their size would else be what happens to lie there."""
    filled = "|".join(name for name, struct in now["structs"].items() if struct["sized"] and re.search("_info$|_stats$|_audit$|_cost$", name))
    for folder in ("apps", "examples", "bench", "tests", "fuzz"):
        for path in (ROOT / folder).rglob("*.c"):
            text = re.sub(r"^(?:static |typedef )?(?:const )?struct\b[^(=;]*\{.*?^\}", "", path.read_text(), flags=re.S | re.M)
            text = re.sub(r"^ {8,}struct \{.*?^ {8,}\}|^    struct \{.*?^    \}", "", text, flags=re.S | re.M)
            found = re.findall(rf"^ +struct (?:{filled}) \w+(?:\[\w+\])?(?:, \w+)*;", text, re.M)
            assert not found, f"{path}: {found}: begin with {{BUTLER_INIT(...)}}"


PROGRAM = """
struct butler_session;
struct butler_stats { char bytes[192]; };
void butler_session_stats(const struct butler_session *session, struct butler_stats *stats);
int main(void) { struct butler_stats stats; butler_session_stats(0, &stats); return 0; }
"""


def test_a_program_of_the_release_before_is_refused_by_the_loader(tmp_path):
    """0.2.0's structs have no size: its programs ask for libbutler.so.0.2, and are not started with a later one."""
    assert json.loads((ROOT / "abi" / "0.2.0.json").read_text())["structs"]["butler_stats"] == {
        **json.loads((ROOT / "abi" / "0.2.0.json").read_text())["structs"]["butler_stats"], "size": 192, "sized": False}
    (tmp_path / "library.c").write_text("void butler_session_stats(const void *session, void *stats) { (void)session, (void)stats; }\n")
    (tmp_path / "program.c").write_text(PROGRAM)
    old = tmp_path / "libbutler.so.0.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libbutler.so.0.2", "-o", old, tmp_path / "library.c"], check=True)
    subprocess.run(["cc", "-o", tmp_path / "program", tmp_path / "program.c", old], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    assert subprocess.run([tmp_path / "program"], env=environment).returncode == 0
    old.unlink()
    shared = subprocess.run(["make", "-s", "print-shared-library"], cwd=ROOT, capture_output=True, text=True, check=True,
                            env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")}).stdout.strip()
    assert shared.endswith(f"libbutler.so.{abi.soname(abi.read(ROOT / 'include')['version'])}")
    if not (ROOT / shared).exists():
        pytest.skip(f"{shared} is absent (make lib)")
    shutil.copy(ROOT / shared, tmp_path)
    (tmp_path / "libbutler.so").symlink_to(shared.split("/")[-1])
    done = subprocess.run([tmp_path / "program"], env=environment, capture_output=True, text=True)
    assert done.returncode == 127 and "libbutler.so.0.2" in done.stderr
