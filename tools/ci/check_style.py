#!/usr/bin/env python3
"""Checks the habits of CONTRIBUTING.md that a program can see. Prints what is wrong, then "N passed, N failed[, N skipped]".

    tools/ci/check_style.py format      clang-format changes nothing
    tools/ci/check_style.py lengths     no file of more than 800 lines, no function of more than 80 or, in src and apps, 8 parameters
    tools/ci/check_style.py cppcheck    no error and no warning of cppcheck

The lists below hold what is wrong today; an entry that is no longer true fails, so that they only shrink."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ["include", "src", "apps", "tests", "fuzz", "bench", "examples"]

# Releases of clang-format differ in what they write; this is Debian 12's.
FORMAT_RELEASE = "14"
NOT_FORMATTED = """
""".split()

MAX_FILE, MAX_FUNCTION = 800, 80
# "FILE:FUNCTION" and the lines it may have. The layer loop may have 150.
LONG_FUNCTIONS = {
    "src/kernels/attend_amx.c:advance_pipeline": 128,
    "tests/test_policy.c:refusals": 85,
}

MAX_PARAMETERS = 8
# "FILE:FUNCTION" and its number of parameters; pointers to functions count by the name of the member or type.
MANY_PARAMETERS = {
    # As the C interface of BLAS declares cblas_sgemm.
    "apps/train/blas.c:gemm_fn": 14,
}

# Kinds of finding of cppcheck 2.10 that were wrong wherever they were found, and why.
CPPCHECK_SUPPRESSED = {
    "unknownMacro": "does not read the system's headers, where json_array_foreach is",
    "uninitvar": "does not follow a loop that sets an array, nor `code == 0` behind a function that sets on success; gcc looks for it too",
    "legacyUninitvar": "the same: an array that a called function fills",
    "invalidFunctionArg": "log of a sum of which one term is exp(0): it begins at 0 but does not end there",
}
# "FILE:ID": why it is no fault.
CPPCHECK_KNOWN = {
    "src/base/buffer.c:memleak": "memcpy stores the pointer where the caller has it",
    "src/cpu/reduce.c:objectIndex": "own_scale and own_shift stand for arrays of one where n_heads is 1",
}


def sources(*folders):
    return sorted(str(f.relative_to(ROOT)) for folder in folders for f in (ROOT / folder).rglob("*.[ch]"))


def result(wrong, n, skipped=0):
    """wrong: a line for each thing that failed, of n that were looked at."""
    print("\n".join(wrong + [""]) if wrong else "", end="")
    print(f"{n - len(wrong)} passed, {len(wrong)} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if wrong or not n + skipped else 0


def skip(why):
    print(f"skipped: {why}")
    return result([], 0, 1)


def check_format():
    release = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout if shutil.which("clang-format") else ""
    if f"version {FORMAT_RELEASE}." not in release:
        return skip(f"clang-format {FORMAT_RELEASE} is not here")
    files = sources(*FOLDERS)
    text = subprocess.run(["clang-format", "--dry-run", *files], cwd=ROOT, capture_output=True, text=True).stderr
    bad = set(re.findall(r"^(\S+?):\d+:\d+: warning: code should be clang-formatted", text, re.M))
    wrong = [f"{f}: clang-format -i {f}" for f in sorted(bad - set(NOT_FORMATTED))]
    wrong += [f"{f}: is formatted now; take it out of NOT_FORMATTED in tools/ci/check_style.py" for f in NOT_FORMATTED if f not in bad]
    return result(wrong, len(files))


def functions(lines):
    """Name and number of lines of every function: its braces stand alone in the first column."""
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line == "}" and start is not None:
            above = []
            for j in range(start - 1, -1, -1):  # the declaration, which may take several lines
                above.insert(0, lines[j])
                if not lines[j].startswith((" ", "\t")):
                    break
            name = re.search(r"(\w+)\(", " ".join(above))
            yield name.group(1) if name else f"line {start + 1}", i - start + 1
            start = None


def parameters(text):
    """Name and number of parameters of every function that is defined or declared, and of every pointer to one."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S).replace("\\\n", " \n")
    for m in re.finditer(r"^[ \t]*(?!return\b|else\b|goto\b)[A-Za-z_][\w \t*]*?[ \t*](\w+)\(|\(\*(\w+)(?:\[[^\]]*\])?\)\(", text, re.M):
        depth, commas, i = 1, 0, m.end()
        while depth and i < len(text):
            depth += {"(": 1, ")": -1}.get(text[i], 0)
            commas += text[i] == "," and depth == 1
            i += 1
        if re.match(r"\s*[{;\[,]", text[i:]):
            yield m.group(1) or m.group(2), commas + 1


def check_parameters(file, text):
    """What is wrong with the numbers of parameters in a file, and the entries of MANY_PARAMETERS that it needs."""
    wrong, many = [], set()
    for name, n in parameters(text) if file.startswith(("src/", "apps/")) else ():
        key = f"{file}:{name}"
        if n > MANY_PARAMETERS.get(key, MAX_PARAMETERS):
            wrong.append(f"{key}: {n} parameters, {MANY_PARAMETERS.get(key, MAX_PARAMETERS)} are allowed")
        elif n > MAX_PARAMETERS:
            many.add(key)
    return wrong, many


def check_lengths():
    wrong, long, many = [], set(), set()
    files = sources(*FOLDERS) + sorted(str(f.relative_to(ROOT)) for folder in ("tests", "tools", "bench", "examples", "python") for f in (ROOT / folder).rglob("*.py"))
    for file in files:
        lines = (ROOT / file).read_text().splitlines()
        if len(lines) > MAX_FILE:
            wrong.append(f"{file}: {len(lines)} lines, {MAX_FILE} are allowed")
        for name, n in functions(lines) if file.endswith((".c", ".h")) else ():
            key = f"{file}:{name}"
            if n > LONG_FUNCTIONS.get(key, MAX_FUNCTION):
                wrong.append(f"{key}: {n} lines, {LONG_FUNCTIONS.get(key, MAX_FUNCTION)} are allowed")
            elif n > MAX_FUNCTION:
                long.add(key)
        if file.endswith((".c", ".h")):
            told, needed = check_parameters(file, "\n".join(lines))
            wrong += told
            many |= needed
    wrong += [f"{key}: has fewer parameters now, or is gone; take it out of MANY_PARAMETERS in tools/ci/check_style.py"
              for key in MANY_PARAMETERS if key not in many and not any(w.startswith(key + ":") for w in wrong)]
    wrong += [f"{key}: is short now, or gone; take it out of LONG_FUNCTIONS in tools/ci/check_style.py" for key in LONG_FUNCTIONS
              if key not in long and not any(w.startswith(key + ":") for w in wrong)]
    return result(wrong, len(files))


def check_cppcheck():
    if not shutil.which("cppcheck"):
        return skip("cppcheck is not here")
    files = [f for f in sources("src", "apps") if f.endswith(".c")]
    # Kernels are one file for each instruction set, under intrinsics that cppcheck does not know.
    files = [f for f in files if not f.startswith("src/kernels/")] + [f for f in files if f.startswith("src/kernels/ref")]
    command = ["cppcheck", "--std=c11", "--enable=warning", "--quiet", "--max-configs=1",
               *[f"--suppress={name}" for name in CPPCHECK_SUPPRESSED], f"-j{os.cpu_count() or 2}", "-Iinclude", "-Isrc", "-I.",
               "--template={file}:{line}: {severity}: {id}: {message}", *files]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stderr
    found = [m.groups() for m in re.finditer(r"^(\S+?):(\d+): (?:error|warning): (\w+): (.*)$", text, re.M)]
    wrong = [f"{file}:{line}: {name}: {message}" for file, line, name, message in found if f"{file}:{name}" not in CPPCHECK_KNOWN]
    keys = {f"{file}:{name}" for file, _, name, _ in found}
    if "" != text and not found:
        wrong.append("cppcheck: " + text[:500])
    if cppcheck_is_the_listed_one():
        wrong += [f"{key}: not found any more; take it out of CPPCHECK_KNOWN in tools/ci/check_style.py" for key in CPPCHECK_KNOWN if key not in keys]
    return result(wrong, max(len(files), len(wrong)))


def cppcheck_is_the_listed_one():
    """The entries of CPPCHECK_KNOWN are those of Debian 12's release; others may find fewer."""
    return "Cppcheck 2.10" in subprocess.run(["cppcheck", "--version"], capture_output=True, text=True).stdout


def main():
    checks = {"format": check_format, "lengths": check_lengths, "cppcheck": check_cppcheck}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    return checks[sys.argv[1]]()


if __name__ == "__main__":
    sys.exit(main())
