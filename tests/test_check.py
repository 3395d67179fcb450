"""tools/ci/check.py counts what suites say: recorded output of two releases of cmocka, and output that says nothing."""
import subprocess
import sys
import time

import pytest

from cli import ROOT

sys.path.insert(0, str(ROOT / "tools" / "ci"))
import check  # noqa: E402
import check_counts  # noqa: E402
import check_includes  # noqa: E402
import check_style  # noqa: E402

# cmocka 1.1.5 and 1.1.7 on the same program: one test each passes, fails, is skipped, and has a setup that fails.
CMOCKA = {"1.1.5": """\
[==========] Running 4 test(s).
[ RUN      ] test_good
[       OK ] test_good
[ RUN      ] test_bad
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- t.c:7: error: Failure!
[  FAILED  ] test_bad
[ RUN      ] test_absent
[  SKIPPED ] test_absent
[ RUN      ] test_good
Could not run test: Test setup failed
[  ERROR   ] test_good
[==========] 4 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] test_absent

 1 SKIPPED TEST(S)
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] test_bad

 2 FAILED TEST(S)
""", "1.1.7": """\
[==========] tests: Running 4 test(s).
[ RUN      ] test_good
[       OK ] test_good
[ RUN      ] test_bad
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- t.c:7: error: Failure!
[  FAILED  ] test_bad
[ RUN      ] test_absent
[  SKIPPED ] test_absent
[ RUN      ] test_good
Could not run test: Test setup failed
[  ERROR   ] test_good
[==========] tests: 4 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] tests: 1 test(s), listed below:
[  SKIPPED ] test_absent

 1 SKIPPED TEST(S)
[  FAILED  ] tests: 1 test(s), listed below:
[  FAILED  ] test_bad

 2 FAILED TEST(S)
"""}
GROUP_SETUP = """\
[==========] tests: Running 2 test(s).
[  FAILED  ] GROUP SETUP
[  ERROR   ] tests
[==========] tests: 0 test(s) run.
[  PASSED  ] 0 test(s).
"""


@pytest.mark.parametrize("release", CMOCKA)
def test_cmocka(release):
    text = CMOCKA[release]
    assert check_counts.cmocka(text) == (1, 2, 1)
    assert check_counts.cmocka(text + text) == (2, 4, 2)  # two groups in one program


@pytest.mark.parametrize("release", CMOCKA)
def test_cmocka_that_says_too_little(release):
    lines = CMOCKA[release].splitlines(keepends=True)
    for i, line in enumerate(lines):
        if "test(s)" in line or line == "[  ERROR   ] test_good\n":  # each total is needed
            assert check_counts.cmocka("".join(lines[:i] + lines[i + 1:])) is None, line
    assert check_counts.cmocka("".join(lines[:6])) is None  # it crashed
    assert check_counts.cmocka(GROUP_SETUP) is None
    assert check_counts.cmocka(CMOCKA[release].replace("4 test(s) run", "four tests ran")) is None
    assert check_counts.cmocka("") is None


def test_pytest():
    report = '<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10"></testsuite></testsuites>'
    assert check_counts.pytest(report) == (4, 3, 3)
    for broken in ("", "<testsuites></testsuites>", report.replace("skipped", "left_out"), report[:40]):
        assert check_counts.pytest(broken) is None


def test_fuzz_and_scripts():
    assert check_counts.fuzz("#2\nDone 1234 runs in 6 second(s)\n") == 1234
    assert check_counts.fuzz("Done 0 runs in 6 second(s)\n") is None and check_counts.fuzz("") is None
    assert check_counts.script("a\n3 passed, 1 failed\n") == (3, 1, 0)
    assert check_counts.script("3 passed, 1 failed, 2 skipped\n") == (3, 1, 2)
    assert check_counts.script("3 passed, 1 failed\nTraceback") is None and check_counts.script("") is None


def test_a_suite_that_cannot_be_read_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LOGS", tmp_path)
    for kind, output in (("cmocka", "all is well"), ("pytest", "3 passed"), ("fuzz", "done"), ("script", "fine")):
        job = check.Job(f"plain/{kind}", ["echo", output], 10, kind).run()
        assert (job.passed, job.failed) == (0, 1) and "cannot be read" in job.reasons[0]
    good = check.Job("plain/good", ["printf", CMOCKA["1.1.7"].replace("%", "%%")], 10, "cmocka").run()
    assert (good.passed, good.failed, good.skipped) == (1, 2, 1)
    crash = check.Job("plain/crash", ["sh", "-c", "echo 3 passed, 0 failed; exit 3"], 10, "script").run()
    assert crash.failed == 1 and crash.reasons == ["exit status 3"]


def test_jobs_run_as_they_come_slow_ones_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "LOGS", tmp_path)
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    runner = check.Runner(1, totals)

    def job(name, words, timeout=10):
        return check.Job(name, ["sh", "-c", words], timeout, "script")
    begun, marker = tmp_path / "begun", tmp_path / "go"
    runner.add([job("plain/test_first", f"touch {begun}; until test -e {marker}; do sleep 0.01; done; echo 1 passed, 0 failed")])
    while not begun.exists():
        time.sleep(0.01)
    runner.add([job("asan/test_quick", "echo 1 passed, 2 failed")])
    runner.add([job("tsan/test_hangs", "echo 5 passed, 0 failed; sleep 60", 0.3), job("tsan/test_run", "echo 1 passed, 0 failed, 3 skipped")])
    marker.touch()
    runner.wait()
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if "/test_" in line]
    assert [line[:2] for line in lines] == [["ok", "plain/test_first"], ["ok", "tsan/test_run"], ["FAIL", "asan/test_quick"], ["FAIL", "tsan/test_hangs"]]
    assert "stopped after 0.3 s" in lines[3][2] and totals == {"passed": 8, "failed": 3, "skipped": 3}
    assert float(lines[0][2].split("(CPU ")[1].split()[0]) >= 0


def test_a_warning_is_a_failure_and_the_tests_run(tmp_path, monkeypatch, capsys):
    """A build that warns is a build: its tests run, and the warnings are one failure. One that stops is None."""
    monkeypatch.setattr(check, "LOGS", tmp_path)
    tree = tmp_path / "tree-plain"
    tree.mkdir()
    (tree / "Makefile").write_text("all:\n\tcc -Wall -Wextra -c a.c\nlib:\nbuild/tests/test_a: all\n")

    def plain(text):
        (tree / "a.c").write_text(text)
        jobs = check.plain(tree, ["test_a"], [], None)
        return jobs and [job.name for job in jobs], jobs
    assert plain("int main(void) { return 0; }\n")[0] == ["plain/test_a"]
    names, jobs = plain("int main(void) { int unused; return 0; }\n")
    assert names == ["plain/warnings", "plain/test_a"]
    job = jobs[0].run()
    assert (job.passed, job.failed) == (0, 1) and "a.c:1:22: warning: unused variable" in job.log.read_text()
    assert plain("int main(void) { return }\n")[0] is None
    assert "error: expected expression" in capsys.readouterr().out
    assert check.compiler_warnings("a.c:1: warning: x\nb.c:2:3: warning: y\nc.c:4:5: error: z\na.c:1: warning: x\n") == \
        ["a.c:1: warning: x", "b.c:2:3: warning: y"]


@pytest.mark.parametrize("folder, header, right", [
    ("src/file", "base/util.h", True), ("src/base", "file/gguf.h", False), ("src/engine", "cpu/attend.h", False),
    ("src/engine", "metrics/metric_parts.h", False), ("src/metrics", "engine/kv.h", True), ("src/kernels", "engine/kv.h", False),
    ("src/cpu", "kernels/kernels.h", True), ("src/cpu", "metrics/metric_parts.h", False), ("apps/cmd", "butler.h", True), ("apps/cmd", "cmd.h", True),
    ("apps/cmd", "engine/session.h", False), ("examples", "base/util.h", False),
])
def test_includes(folder, header, right):
    assert check_includes.allowed(folder, header) == right


def test_include_of_a_higher_level_is_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "src/base").mkdir(parents=True)
    file = tmp_path / "src/base/a.c"
    file.write_text('#include "base/util.h"\n#include <stdio.h>\n')
    monkeypatch.setattr(sys, "argv", ["check_includes", str(tmp_path)])
    assert check_includes.main() == 0
    file.write_text('#include "engine/kv.h"\n')
    assert check_includes.main() == 1 and "src/base/a.c: includes engine/kv.h" in capsys.readouterr().out


def test_lengths(tmp_path, monkeypatch, capsys):
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(check_style, "ROOT", tmp_path)
    monkeypatch.setattr(check_style, "LONG_FUNCTIONS", {})
    monkeypatch.setattr(check_style, "MANY_PARAMETERS", {})

    def lengths(lines, name="a.c"):
        for file in (tmp_path / "src").iterdir():
            file.unlink()
        (tmp_path / "src" / name).write_text("\n".join(lines) + "\n")
        return check_style.check_lengths(), capsys.readouterr().out

    def function(n):
        return ["static int work(int a,", "                int b)", "{", *["    a++;"] * (n - 2), "}"]

    assert lengths(function(80)) == (0, "1 passed, 0 failed\n")
    code, text = lengths([*function(80), *function(81)])
    assert code == 1 and text.startswith("src/a.c:work: 81 lines, 80 are allowed\n")
    assert lengths(["/* */"] * 800)[0] == 0
    assert lengths(["/* */"] * 801)[0] == 1
    monkeypatch.setattr(check_style, "LONG_FUNCTIONS", {"src/a.c:work": 100})
    assert lengths(function(100))[0] == 0
    assert lengths(function(101))[0] == 1
    assert lengths(function(20))[0] == 1  # an entry that is no longer needed


def test_parameters(tmp_path, monkeypatch, capsys):
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(check_style, "ROOT", tmp_path)
    monkeypatch.setattr(check_style, "LONG_FUNCTIONS", {})
    monkeypatch.setattr(check_style, "MANY_PARAMETERS", {})

    def told(text):
        (tmp_path / "src/a.h").write_text(text)
        return check_style.check_lengths(), capsys.readouterr().out

    eight, nine = "int (*a)(int, int), " + ", ".join(f"int p{i}" for i in range(7)), ", ".join(f"int p{i}" for i in range(9))
    assert told(f"static int work({eight})\n{{\n}}\n") == (0, "1 passed, 0 failed\n")
    assert told(f"/* int work({nine}); */\n    return call({nine});\n")[0] == 0
    for text in (f"static int work({nine})\n{{\n}}\n", f"int work({nine.replace(', ', ',' + chr(10), 3)});\n", f"    void (*work[3])({nine});\n",
                 f"#define MAKE(name) \\\n    static void work({nine}) \\\n    {{\n", f"typedef void work({nine});\n"):
        code, out = told(text)
        assert code == 1 and out.startswith("src/a.h:work: 9 parameters, 8 are allowed\n"), text
    monkeypatch.setattr(check_style, "MANY_PARAMETERS", {"src/a.h:work": 9})
    assert told(f"int work({nine});\n")[0] == 0
    assert told(f"int work({nine}, int p);\n")[0] == 1
    assert told("int work(int a);\n")[0] == 1  # an entry that is no longer needed


def test_copy_of_the_tree(tmp_path, monkeypatch):
    """What is tracked, as it is now, and new files; nothing that was built or removed."""
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    monkeypatch.setattr(check, "ROOT", root)
    monkeypatch.setattr(check, "LOGS", root / "build" / "check")
    for name, text in ((".gitignore", "/build/\n"), ("src/a.c", "old"), ("gone.c", ""), ("script", "#!/bin/sh\n")):
        (root / name).write_text(text)
    (root / "script").chmod(0o755)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / "src/a.c").write_text("changed")
    (root / "src/new.c").write_text("new")
    (root / "gone.c").unlink()
    (root / "build").mkdir()
    (root / "build/a.o").write_text("")
    tree = check.copy_tree("plain")
    assert {str(f.relative_to(tree)) for f in tree.rglob("*") if f.is_file()} == {".gitignore", "src/a.c", "src/new.c", "script"}
    assert (tree / "src/a.c").read_text() == "changed" and (tree / "script").stat().st_mode & 0o100
