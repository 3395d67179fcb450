"""`make install`, and a program built against what it put there."""
import os
import re
import shutil
import subprocess

import pytest

from cli import BUTLER, COMMANDS, GQA, PROMPT, ROOT, butler, rows

PREFIX = "/usr/local"
MAN_PAGE, COMPLETION = "share/man/man1/butler.1", "share/bash-completion/completions/butler"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    destination = tmp_path_factory.mktemp("root")
    subprocess.run(["make", "-s", "install", f"DESTDIR={destination}", f"PREFIX={PREFIX}"], cwd=ROOT, check=True, timeout=600,
                   env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
    return destination


def pkg_config(root, *args):
    env = {**os.environ, "PKG_CONFIG_PATH": f"{root}{PREFIX}/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": str(root)}
    return subprocess.run(["pkg-config", *args, "butler"], env=env, check=True, capture_output=True, text=True).stdout.split()


def compile_example(root, name, out, *flags):
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", str(ROOT / "examples" / name), *flags, "-o", str(out)], check=True)


def version():
    return [line.split('"')[1] for line in open(ROOT / "include/butler.h") if "define BUTLER_VERSION" in line][0]


def soname():
    major, minor, _ = version().split(".")
    return f"libbutler.so.0.{minor}" if major == "0" else f"libbutler.so.{major}"


def names(file, *args):
    lines = subprocess.run(["nm", *args, "--defined-only", str(file)], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1] for line in lines if len(line.split()) == 3]


def test_what_is_installed(installed):
    files = {str(f.relative_to(f"{installed}{PREFIX}")) for f in installed.rglob("*") if not f.is_dir()}
    assert {"bin/butler", "include/butler.h", "lib/libbutler.a", "lib/libbutler.so", f"lib/{soname()}", "lib/pkgconfig/butler.pc",
            MAN_PAGE, COMPLETION} <= files
    assert all(f.startswith(("bin/butler", "include/butler.h", "include/butler_tools.h", "include/butler_plugin.h", "lib/", "share/butler/")) or f in (MAN_PAGE, COMPLETION) for f in files)
    assert pkg_config(installed, "--modversion") == [version()]
    dynamic = subprocess.run(["readelf", "-d", f"{installed}{PREFIX}/lib/libbutler.so"], capture_output=True, text=True, check=True).stdout
    assert f"[{soname()}]" in next(line for line in dynamic.splitlines() if "SONAME" in line)


def test_the_library_neither_trains_nor_converts(installed):
    """That is the command's: a program that runs models does not carry it."""
    defined = names(f"{installed}{PREFIX}/lib/libbutler.a")
    assert "butler_model_load" in defined
    command_only = {"butler_trainer_new", "butler_net_new", "butler_convert_llama2c", "butler_quantize_file"}
    assert command_only <= set(names(ROOT / "build" / "tools.a")) and not command_only & set(defined)


@pytest.mark.parametrize("static", [False, True])
def test_the_example_runs_against_it(installed, static, tmp_path):
    flags = pkg_config(installed, "--cflags", "--libs", *(["--static"] if static else []))
    if static:
        library = f"{installed}{PREFIX}/lib/libbutler.a"
        flags = [library if f == "-lbutler" else f for f in flags]
    compile_example(installed, "minimal.c", tmp_path / "minimal", *flags)
    env = {**os.environ, "LD_LIBRARY_PATH": f"{installed}{PREFIX}/lib"}
    for policy in ("full", "h2o:budget=16"):
        run = subprocess.run([tmp_path / "minimal", GQA, PROMPT, policy], env=env, capture_output=True, timeout=60)
        assert run.returncode == 0, run.stderr
        expected = rows("run", "-m", GQA, "-p", PROMPT, "-n", "64", "--temp", "0", "--kv", policy)[-1]
        text, cost = run.stdout.decode().rsplit("\n[", 1)
        assert expected["text"].startswith(text) and len(text) >= 0.9 * len(expected["text"])
        assert "KV bytes" in cost
    wrong = subprocess.run([tmp_path / "minimal", GQA, PROMPT, "nosuch"], env=env, capture_output=True, timeout=60)
    assert wrong.returncode == 1 and b"nosuch" in wrong.stderr


def test_a_program_finds_the_library(tmp_path):
    """Whatever PREFIX is: the flags of pkg-config suffice, and whoever does not want the rpath can leave it out."""
    prefix = tmp_path / "prefix"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "LD_LIBRARY"))} | {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    subprocess.run(["make", "-s", "install", f"PREFIX={prefix}"], cwd=ROOT, check=True, timeout=600, env=environment)

    def linked(*words):
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", *words, "butler"], env=environment, check=True, capture_output=True, text=True)
        compile_example(None, "minimal.c", tmp_path / "minimal", *flags.stdout.split())
        return subprocess.run([tmp_path / "minimal", GQA, PROMPT, "full"], env=environment, capture_output=True, timeout=60)
    assert linked().returncode == 0
    assert b"libbutler.so" in linked("--define-variable=rpath=").stderr


def test_the_installed_command_finds_its_model_and_text(installed):
    text = ROOT / "models" / "long_text.txt"
    if not (ROOT / "models" / "butler-default.gguf").exists() or not text.exists():
        pytest.skip("models/butler-default.gguf or models/long_text.txt is absent")
    *_, last = rows("run", "--temp", "0", "-n", "8", binary=f"{installed}{PREFIX}/bin/butler")
    assert last["stats"]["n_prefill"] == len(rows("tokenize", "-f", text)[0]["ids"]) > 1000
    key = re.search(r"\d{5}", last["text"])  # the text hides a pass key and ends by asking for it
    assert key and key.group() in text.read_text()


def test_programs_are_stripped(installed):
    for name in ("bin/butler", "lib/libbutler.so", "lib/libbutler.a"):
        path = f"{installed}{PREFIX}/{name}"
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
        assert ".text" in sections and ".debug_info" not in sections, name


def completions(installed, *words):
    """What bash offers for the last word."""
    script = f'source "{installed}{PREFIX}/{COMPLETION}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _butler; printf "%s\\n" "${{COMPREPLY[@]}}"'
    result = subprocess.run(["bash", "-c", script, "bash", BUTLER, *words], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return set(result.stdout.split())


def test_completion(installed):
    assert completions(installed, "") == {*COMMANDS, "--help", "--version"}
    assert completions(installed, "t") == {"tokenize", "train"}
    for name in COMMANDS:
        flags = set(re.findall(r"(?<![\w-])--?[a-z][-a-z]*(?=[ ,[])", "\n".join(
            line[:25] + " " for line in butler(name, "--help").stdout.splitlines() if line.startswith("  -"))))
        assert "--help" in flags and completions(installed, name, "-") == flags
    assert completions(installed, "run", "--kv", "") == {row["policy"] for row in rows("policies")}
    assert completions(installed, "run", "--kv", "qu") == {"quest"}


def test_man_page(installed):
    page = (installed / f"{PREFIX[1:]}/{MAN_PAGE}").read_text()
    assert re.findall(r"^\.B ([a-z]+)$", page.split(".SH COMMANDS")[1].split(".PP")[0], re.M) == \
        re.findall(r"^  ([a-z]+)  ", butler("--help").stdout, re.M)
    flags = re.findall(r"\\-\\?-?[a-z](?:[a-z]|\\-)*", page)
    helps = "".join(butler(name, "--help").stdout for name in COMMANDS)
    for flag in {f.replace("\\", "") for f in flags}:
        assert re.search(rf"(?<![\w-]){flag}[ ,\n]", helps), f"no command has {flag}"
    if not shutil.which("man"):
        pytest.skip("no man here")
    shown = subprocess.run(["man", "--warnings", "-l", str(installed / f"{PREFIX[1:]}/{MAN_PAGE}")], capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stderr == ""


def test_a_trainer_that_is_absent_is_made(tmp_path):
    """Where MPI comes after the first build the command is there and newer than all it is made of."""
    for name in ("src", "apps"):
        if (ROOT / "build" / name).exists():
            (tmp_path / name).symlink_to(ROOT / "build" / name)
    for name in ("butler", "libbutler.a"):
        (tmp_path / name).symlink_to(ROOT / "build" / name)
    out = subprocess.run(["make", "-n", "all", f"BUILD={tmp_path}", f"MPI_SO={tmp_path}/butler-mpi.so"], cwd=ROOT, check=True,
                         capture_output=True, text=True, timeout=60).stdout
    assert "-shared" in out and f"-o {tmp_path}/butler-mpi.so" in out


def test_the_library_shows_only_its_own_names(installed):
    shown = names(f"{installed}{PREFIX}/lib/libbutler.so", "-D")
    header = "".join(open(f"{installed}{PREFIX}/include/{name}").read() for name in ("butler.h", "butler_plugin.h", "butler_tools.h"))
    assert "butler_model_load" in shown and "butler_view_key" in shown
    assert all(f"{name}(" in header for name in shown), [name for name in shown if f"{name}(" not in header]


def test_a_plug_in_against_the_library(installed, tmp_path):
    compile_example(installed, "plugin.c", tmp_path / "value_norm.so", "-shared", "-fPIC", "-lm", *pkg_config(installed, "--cflags"))
    assert "value_norm" in [row["policy"] for row in rows("policies", "-m", GQA, "--plugin", tmp_path / "value_norm.so",
                                                            binary=f"{installed}{PREFIX}/bin/butler")]


def test_the_header_is_c_and_cpp(installed, tmp_path):
    (tmp_path / "a.c").write_text("#include <butler.h>\nint main(void) { return butler_policy_describe(0, 0, 0); }\n")
    flags = pkg_config(installed, "--cflags")
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(tmp_path / "a.c"), *flags], check=True)
    cpp = subprocess.run(["c++", "-x", "c++", "-fsyntax-only", str(tmp_path / "a.c"), *flags], capture_output=True, text=True) \
        if os.path.exists("/usr/bin/c++") else None
    if cpp is None:
        pytest.skip("no C++ compiler here")
    assert cpp.returncode == 0, cpp.stderr
