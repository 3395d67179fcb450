#!/usr/bin/env python3
"""Builds and runs every test of butler and adds up what they say.

Stages: style (format, lengths, includes, the binary interface, cppcheck, clang's warnings), plain (C programs and pytest; gcc's
warnings are one failure beside what the tests say), asan (the C programs and the command line's tests under AddressSanitizer and
UndefinedBehaviorSanitizer), tsan (what runs threads, under ThreadSanitizer), fuzz (libFuzzer targets, each for some
seconds, starting from tests/corpus; clang's warnings of the library are one failure), arm64 (kernels and the logits of quantised models, built for 64-bit ARM and run by
an emulator; left out, saying so, where there is no compiler, emulator or library for it). coverage, which runs only where it is
named, prints the share of the library's lines that the C programs reach. Each stage builds and runs in a copy of the tree without
build results, build/check/tree-STAGE; with ccache installed what was compiled before is not compiled again. Tests of a stage run
while the next ones are built, which has a lower priority: it takes the processors where tests wait. The last line is
"N passed, N failed[, N skipped]"; the exit status is 0 only when something ran and nothing failed.
"""
import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check_counts

ROOT = Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "build" / "check"
STAGES = ["style", "plain", "asan", "tsan", "fuzz", "arm64"]
OPTIONAL_STAGES = ["coverage"]
MINUTES = "about 25 minutes on two cores, less with ccache once it has compiled all"

# What ThreadSanitizer has something to say about; all else has one thread, or is what test_run does under every policy, too.
THREADED = {"test_run", "test_scheduler", "test_session", "test_tokenizer_threads", "test_train"}
# What takes longest, and so starts first: at the end no core waits for it alone.
SLOW = {"clang", "test_ask", "test_cli", "test_documents", "test_invariants", "test_kernels_cache", "test_kernels_matmul",
        "test_kernels_weights", "test_library", "test_logits", "test_lossless_smollm2", "test_openapi", "test_operations",
        "test_policies", "test_python", "test_run", "test_scheduler", "test_serve_page_chat", "test_smollm2", "test_sparse_prompts"}
# Python tests that start the command, and so find in it what a sanitizer can see.
COMMAND_TESTS = {"test_cli", "test_cli_sessions", "test_chat", "test_sampling", "test_serve_hostile"}

# Of what the C tests draw at random or repeat, the part that is done where they run many times slower: tests/share.h.
SLOWER, SLOWEST, EMULATED = ({"BUTLER_TEST_SHARE": share} for share in ("0.1", "0.1", "0.03"))
# Continuous integration has 25 minutes: there the longest do a half without sanitizers, too.
HALF = {"BUTLER_TEST_SHARE": "0.5"} if os.environ.get("CI") else {}

# Of what is undefined, all but the use of bad pointers, which AddressSanitizer reports anyway: checks before every access take a third
# of the time to build.
ASAN_FLAGS = "-fno-sanitize=null,object-size,pointer-overflow"

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def fixed_addresses():
    """The words before a command that keep the kernel from placing its memory at random: the shadow memory of older sanitizers
    does not stand the many random bits of newer kernels. Nothing where that is not allowed."""
    words = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*words, "true"], capture_output=True).returncode == 0
    return words if works else []


class Job:
    """A program to run, and what it said: counts of passed, failed and skipped tests."""

    def __init__(self, name, command, timeout, kind, env=None, tree=ROOT):
        self.name, self.command, self.timeout, self.kind, self.tree = name, command, timeout, kind, tree
        self.before = fixed_addresses() if name.startswith(("asan/", "tsan/", "fuzz/")) else []
        self.env = {**os.environ, **data_folders(), **SANITIZER_OPTIONS, **(env or {})}
        self.passed = self.failed = self.skipped = 0
        self.log = LOGS / (name.replace("/", "-") + ".log")
        self.reasons = []

    def run(self):
        start = time.monotonic()
        with open(self.log, "wb") as log:
            process = subprocess.Popen(self.before + self.command, cwd=self.tree, env=self.env, stdout=log, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
            stopped = threading.Event()

            def stop():
                stopped.set()
                os.killpg(process.pid, signal.SIGKILL)
            timer = threading.Timer(self.timeout, stop)
            timer.start()
            usage = os.wait4(process.pid, 0)  # unlike Popen.wait, says what processor time it took
            timer.cancel()
            code = process.returncode = os.waitstatus_to_exitcode(usage[1])
        self.count(self.log.read_text(errors="replace"), f"stopped after {self.timeout} s" if stopped.is_set() else code)
        self.seconds, self.cpu = time.monotonic() - start, usage[2].ru_utime + usage[2].ru_stime
        return self

    def slow(self):
        stage, name = self.name.split("/")
        return name in SLOW or stage == "fuzz"

    def count(self, text, code):
        report = self.log.with_suffix(".xml")
        counts = {
            "cmocka": lambda: check_counts.cmocka(text),
            "pytest": lambda: check_counts.pytest(report.read_text() if report.exists() else ""),
            "fuzz": lambda: (1, 0, 0) if check_counts.fuzz(text) else None,
            "script": lambda: check_counts.script(text),
        }[self.kind]()
        if counts:
            self.passed, self.failed, self.skipped = counts
        if self.kind == "fuzz" and counts:
            self.reasons.append(f"{check_counts.fuzz(text)} runs")
        if code != 0 and not self.failed:  # a crash, a leak, a time limit
            self.failed = 1
            self.reasons.append(f"exit status {code}")
        elif not counts:
            self.failed = 1
            self.reasons.append("its output cannot be read")
        elif not sum(counts):
            self.failed = 1
            self.reasons.append("ran no tests")


def data_folders():
    """Where tests in a copy of the tree find what is not committed."""
    folders = {"BUTLER_DATA": ROOT.parent / "shared" / "data", "BUTLER_MODELS": ROOT / "models", "BUTLER_PYTHON": ROOT / "build" / "python"}
    return {name: str(folder) for name, folder in folders.items() if name not in os.environ and folder.is_dir()}


def copy_tree(stage):
    """A copy of what git tracks or would add, changes that are not committed included, without anything that was built."""
    tree = LOGS / f"tree-{stage}"
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if listed.returncode or not listed.stdout:  # not a clone
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"))
        (tree / "butler").unlink(missing_ok=True)
        return tree
    for name in listed.stdout.decode().strip("\0").split("\0"):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


WARNING = re.compile(r"^\S+?:\d+:(?:\d+:)? warning: .*$", re.M)


def compiler_warnings(text):
    """The lines of a build's output that are a compiler's warnings, each once."""
    return list(dict.fromkeys(WARNING.findall(text)))


def make(tree, targets, *variables, warnings=None):
    """Builds the targets; False, with the compiler's words shown, if that failed. warnings: a list that gets the compiler's warnings;
    without it they are allowed. (-Werror would compile anew what ccache has from ordinary builds, and stop at the first one.)"""
    print(f"-- building {tree.name.removeprefix('tree-')}", flush=True)
    start = time.monotonic()
    env = dict(os.environ)
    if os.path.isdir("/usr/lib/ccache"):
        env |= {"PATH": "/usr/lib/ccache:" + env["PATH"], "CCACHE_NOHASHDIR": "1"}
    result = subprocess.run(["nice", "-n", "10", "make", f"-j{os.cpu_count() or 2}", *variables, *targets], cwd=tree, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if result.returncode:
        print(result.stdout[-8000:], flush=True)
        return False
    print(f"   built in {time.monotonic() - start:.0f} s", flush=True)
    if warnings is not None:
        warnings += compiler_warnings(result.stdout)
    return True


def warnings_job(stage, warnings):
    """What shows the warnings of a build as one failed test of its own."""
    return Job(f"{stage}/warnings", ["printf", "%s", "\n".join([*warnings[:100], "0 passed, 1 failed"])], 10, "script")


def c_tests(tree, build, names, stage, env=None):
    return [Job(f"{stage}/{name}", [str(tree / build / "tests" / name)], 900, "cmocka", env, tree) for name in names]


def python_tests(tree, files, stage, env=None):
    jobs = []
    for file in files:
        job = Job(f"{stage}/{file.stem}", [], 900, "pytest", env, tree)
        report = job.log.with_suffix(".xml")
        report.unlink(missing_ok=True)
        job.command = ["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--junitxml={report}",
                       str(tree / file.relative_to(ROOT))]
        jobs.append(job)
    return jobs


def style(tree, names, files, args):
    tools = {"includes": ["check_includes.py"], "abi": ["abi.py"], **{what: ["check_style.py", what] for what in ("format", "lengths", "cppcheck")}}
    jobs = [Job(f"style/{name}", ["/usr/bin/python3", str(tree / "tools" / "ci" / words[0]), *words[1:]], 600, "script", tree=tree)
            for name, words in tools.items() if args.only in name]
    if args.only in "clang":
        library = "LIB_OBJ=" if "fuzz" in args.stages and args.fuzz and not args.only else ""  # which that stage builds with clang
        command = f"make -s -j{os.cpu_count() or 2} CC=clang BUILD=build/clang CFLAGS='-fsyntax-only -Werror' {library} objects && echo 1 passed, 0 failed"
        jobs.append(Job("style/clang", ["sh", "-c", command], 600, "script", tree=tree))
    return jobs


def plain(tree, names, files, args):
    warnings = []
    if not make(tree, ["all", "lib", *[f"build/tests/{n}" for n in names]], warnings=warnings):
        return None
    told = [warnings_job("plain", warnings)] if warnings else []
    long = [n for n in names if n == "test_invariants" or n.startswith("test_kernels")]
    others = [n for n in names if n not in long]
    return told + c_tests(tree, "build", long, "plain", HALF) + c_tests(tree, "build", others, "plain") + python_tests(tree, files, "plain")


def asan(tree, names, files, args):
    build = "build/address-undefined"
    if not make(tree, [f"{build}/butler", *[f"{build}/tests/{n}" for n in names]], "SANITIZE=address,undefined",
                f"CFLAGS=-O1 -g1 {ASAN_FLAGS}"):
        return None
    commands = [f for f in files if f.stem in COMMAND_TESTS]
    return c_tests(tree, build, names, "asan", SLOWER) + python_tests(tree, commands, "asan", {**SLOWER, "BUTLER": str(tree / build / "butler")})


def tsan(tree, names, files, args):
    names = [n for n in names if n in THREADED]
    if not names:
        return []
    if not make(tree, [f"build/thread/tests/{n}" for n in names], "SANITIZE=thread", "CFLAGS=-O1 -g1"):
        return None
    return c_tests(tree, "build/thread", names, "tsan", SLOWEST)


def fuzz(tree, names, files, args):
    targets = sorted(f.stem for f in (ROOT / "fuzz").glob("fuzz_*.c") if args.only in f.stem)
    if not targets or args.fuzz == 0:
        return []
    warnings = []
    if not make(tree, ["fuzz"], "FUZZ_CFLAGS=-O0 -g1", warnings=warnings):  # built in a quarter of the time; what it finds in seconds is mostly the corpus
        return None
    jobs = [warnings_job("fuzz", warnings)] if warnings else []
    for target in targets:
        if not (tree / "build/fuzz/fuzz" / target).exists():  # the server's, where there is no libevent
            print(f"skip fuzz/{target}: not built here", flush=True)
            continue
        seeds = tree / "tests" / "corpus" / target.removeprefix("fuzz_")
        found = ROOT / "build" / "corpus" / target
        found.mkdir(parents=True, exist_ok=True)
        command = [str(tree / "build/fuzz/fuzz" / target), f"-max_total_time={args.fuzz}", "-timeout=20", "-rss_limit_mb=2048",
                   "-print_final_stats=1", f"-artifact_prefix={LOGS}/{target}-", str(found)]
        jobs.append(Job(f"fuzz/{target}", command + ([str(seeds)] if seeds.is_dir() else []), args.fuzz + 120, "fuzz", tree=tree))
    return jobs


def arm64(tree, names, files, args):
    """What is written for this processor alone, the forward pass around it for the quantised models (an emulator is slow), and the
    pool of threads, because stores are ordered otherwise."""
    names = [n for n in names if n.startswith("test_kernels") or n in ("test_logits", "test_threads")]
    if not names:
        return []
    for program in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if not shutil.which(program):
            return f"there is no {program}"
    libraries = ROOT / "build" / "arm64" / "libraries"
    fetched = subprocess.run([str(ROOT / "tools/ci/arm64_libraries"), str(libraries)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    if fetched.returncode:
        return "no archive has the libraries for it: " + " ".join(fetched.stdout.split("\n")[-3:]).strip()
    folder = libraries / "usr/lib/aarch64-linux-gnu"
    targets = [f"build/arm64/{n}" for n in ("butler", *[f"tests/{n}" for n in names])]
    absent = ("MPI_SO=", "LIBEDIT=", "LIBEVENT=", "POPPLER=", "LIBXML=", "LIBARCHIVE=")
    if not make(tree, targets, "BUILD=build/arm64", "CFLAGS=-O1 -g1", *absent, "AR=aarch64-linux-gnu-ar",
                f"CC=aarch64-linux-gnu-gcc -isystem {libraries}/usr/include -L{folder}"):
        return None
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}"]
    jobs = []
    for name in names:
        program = [str(tree / "build/arm64/tests" / name)]
        jobs.append(Job(f"arm64/{name}", emulator + program + ["llama-q*"] * (name == "test_logits"), 1800, "cmocka", EMULATED, tree))
        if name == "test_kernels_keys":  # once more without the instructions for dot products
            jobs.append(Job(f"arm64/{name}_base", [*emulator, "-cpu", "cortex-a53", *program], 1800, "cmocka", EMULATED, tree))
    return jobs


def coverage(tree, names, files, args):
    if not make(tree, [f"build/coverage/tests/{n}" for n in names], "BUILD=build/coverage", "CFLAGS=-O1 -g", "SANFLAGS=--coverage"):
        return None
    return c_tests(tree, "build/coverage", names, "coverage")


def say_coverage():
    """Share of the lines of src/*/*.c that ran, from gcov's summary of every object."""
    tree = LOGS / "tree-coverage"
    data = sorted(tree.glob("build/coverage/src/**/*.gcno"))
    text = subprocess.run(["gcov", "-n", *map(str, data)], cwd=tree, capture_output=True, text=True).stdout
    found = re.findall(r"^File '(src/\S+\.c)'\nLines executed:([\d.]+)% of (\d+)$", text, re.M)
    lines = sum(int(n) for _, _, n in found)
    if lines:
        print(f"coverage: {sum(float(share) * int(n) for _, share, n in found) / lines:.1f} % of {lines} lines of src in {len(found)} files")


class Runner:
    """Runs jobs as they come, n at a time, slow ones first."""

    def __init__(self, n, totals):
        self.pool, self.lock, self.waiting, self.totals = ThreadPoolExecutor(n), threading.Lock(), [], totals
        self.runs = []

    def add(self, jobs):
        with self.lock:
            self.waiting = sorted(self.waiting + jobs, key=lambda job: not job.slow())
        self.runs += [self.pool.submit(self.next) for _ in jobs]

    def next(self):
        with self.lock:
            job = self.waiting.pop(0)
        job.run()
        with self.lock:
            say(job)
            for key in self.totals:
                self.totals[key] += getattr(job, key)

    def wait(self):
        for run in self.runs:
            run.result()


def say(job):
    counts = f"{job.passed} passed, {job.failed} failed" + (f", {job.skipped} skipped" if job.skipped else "")
    notes = f" ({', '.join(job.reasons)})" if job.reasons else ""
    print(f"{'FAIL' if job.failed else 'ok  '} {job.name:32} {counts}{notes}, {job.seconds:.1f} s (CPU {job.cpu:.1f} s)", flush=True)
    text = job.log.read_text(errors="replace")
    if job.failed:
        lines = [line for line in text.splitlines() if not re.match(r"#\d+\s", line)]  # what libFuzzer says on its way
        print("\n".join("     " + line for line in lines[-60:]), flush=True)
    elif job.skipped:
        words = [line for line in text.splitlines() if re.search(r"skip|absent|SKIP", line)]
        print("\n".join("     " + line for line in words[:8]), flush=True)


def arguments():
    parser = argparse.ArgumentParser(prog="check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default=",".join(STAGES), help="which of them, separated by commas (default: all but coverage)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tests whose name contains TEXT")
    parser.add_argument("--fuzz", type=int, default=3, metavar="SECONDS",
                        help="seconds for each fuzz target (default: 3)")
    parser.add_argument("-j", type=int, default=min(os.cpu_count() or 2, 8), metavar="N", help="programs run at the same time")
    args = parser.parse_args()
    args.stages = args.stages.split(",")
    known = STAGES + OPTIONAL_STAGES
    unknown = [s for s in args.stages if s not in known]
    if unknown:
        parser.error(f"--stages: '{unknown[0]}' is not allowed; it takes {', '.join(known)}")
    return args


def fetch_model():
    """The real model that some tests use; without a network they are skipped and say so."""
    if subprocess.run([str(ROOT / "setup"), "--model", "smollm2"], stderr=subprocess.DEVNULL).returncode:
        print("check: models/smollm2.gguf could not be fetched; its tests are skipped", flush=True)


def main():
    args = arguments()
    print(f"check: {', '.join(args.stages)}; all stages take {MINUTES}", flush=True)
    start = time.monotonic()
    fetch_model()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    names = sorted(f.stem for f in (ROOT / "tests").glob("test_*.c") if args.only in f.stem)
    files = sorted(f for f in (ROOT / "tests").glob("test_*.py") if args.only in f.stem)
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    runner = Runner(args.j, totals)
    functions = {"style": style, "plain": plain, "asan": asan, "tsan": tsan, "fuzz": fuzz, "arm64": arm64, "coverage": coverage}
    for stage in args.stages:
        built = functions[stage](copy_tree(stage), names, files, args)
        if isinstance(built, str):
            print(f"skip {stage}: {built}", flush=True)
            totals["skipped"] += 1
            continue
        if built is None:
            print(f"FAIL {stage}: does not build", flush=True)
            totals["failed"] += 1
        runner.add(built or [])
    runner.wait()
    if "coverage" in args.stages:
        say_coverage()
    minutes, seconds = divmod(int(time.monotonic() - start), 60)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"check: took {minutes} min {seconds} s, of CPU time {(usage.ru_utime + usage.ru_stime) / 60:.1f} min")
    print(f"{totals['passed']} passed, {totals['failed']} failed" + (f", {totals['skipped']} skipped" if totals["skipped"] else ""))
    return 0 if totals["passed"] and not totals["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
