#!/usr/bin/env python3
"""Builds and runs every test of butler and adds up what they say.

Stages: plain (C programs and pytest), asan (the C programs and the command line's tests under AddressSanitizer and
UndefinedBehaviorSanitizer), tsan (what runs threads, under ThreadSanitizer), fuzz (libFuzzer targets, each for some
seconds, starting from tests/corpus), arm64 (kernels and the logits of quantised models, built for 64-bit ARM and run by
an emulator; left out, saying so, where there is no compiler, emulator or library for it). The last line is
"N passed, N failed[, N skipped]"; the exit status is 0 only when something ran and nothing failed.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "check"
STAGES = ["plain", "asan", "tsan", "fuzz", "arm64"]

# What ThreadSanitizer has something to say about; all else has one thread, and would only be slow.
THREADED = {"test_session", "test_invariants", "test_tokenizer_threads", "test_train"}
# What takes longest, and so starts first: at the end no core waits for it alone.
SLOW = {"test_invariants", "test_logits", "test_kernels_cache", "test_policies"}
# Python tests that start the command, and so find in it what a sanitizer can see.
COMMAND_TESTS = {"test_cli", "test_chat"}

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

    def __init__(self, name, command, timeout, kind, env=None):
        self.name, self.command, self.timeout, self.kind = name, command, timeout, kind
        self.before = [] if name.startswith(("plain/", "arm64/")) else fixed_addresses()
        self.env = {**os.environ, **SANITIZER_OPTIONS, **(env or {})}
        self.passed = self.failed = self.skipped = 0
        self.log = LOGS / (name.replace("/", "-") + ".log")
        self.reasons = []

    def run(self):
        start = time.monotonic()
        with open(self.log, "wb") as log:
            process = subprocess.Popen(self.before + self.command, cwd=ROOT, env=self.env, stdout=log, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                code = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = f"stopped after {self.timeout} s"
        self.count(self.log.read_text(errors="replace"), code)
        self.seconds = time.monotonic() - start
        return self

    def slow(self):
        stage, name = self.name.split("/")
        return name in SLOW or stage == "fuzz"

    def count(self, text, code):
        {"cmocka": self.count_cmocka, "pytest": self.count_pytest, "fuzz": self.count_fuzz}[self.kind](text, code)
        if code != 0 and not self.failed:  # a crash, a leak, a time limit
            self.failed = 1
            self.reasons.append(f"exit status {code}")
        elif not (self.passed or self.failed or self.skipped):
            self.failed = 1
            self.reasons.append("ran no tests")

    def count_cmocka(self, text, code):
        def total(word):
            return sum(int(n) for n in re.findall(rf"^\[\s+{word}\s+\] (\d+) test\(s\)", text, re.M))
        self.passed, self.failed, self.skipped = total("PASSED"), total("FAILED"), total("SKIPPED")

    def count_pytest(self, text, code):
        report = self.log.with_suffix(".xml")
        if not report.exists():
            return
        for suite in xml.parse(report).getroot().iter("testsuite"):
            n = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            self.failed += n["failures"] + n["errors"]
            self.skipped += n["skipped"]
            self.passed += n["tests"] - n["failures"] - n["errors"] - n["skipped"]

    def count_fuzz(self, text, code):
        runs = re.findall(r"^Done (\d+) runs", text, re.M)
        if code == 0 and runs and int(runs[-1]) > 0:
            self.passed = 1
            self.reasons.append(f"{runs[-1]} runs")


def make(stage, targets, *variables):
    """Builds the targets; False, with the compiler's words shown, if that failed."""
    print(f"-- building {stage}", flush=True)
    result = subprocess.run(["make", f"-j{os.cpu_count() or 2}", *variables, *targets], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if result.returncode:
        print(result.stdout[-8000:], flush=True)
    return result.returncode == 0


def c_tests(build, names, stage):
    return [Job(f"{stage}/{name}", [str(ROOT / build / "tests" / name)], 900, "cmocka") for name in names]


def python_tests(files, stage, env=None):
    jobs = []
    for file in files:
        job = Job(f"{stage}/{file.stem}", [], 900, "pytest", env)
        report = job.log.with_suffix(".xml")
        report.unlink(missing_ok=True)
        job.command = ["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--junitxml={report}", str(file)]
        jobs.append(job)
    return jobs


def plain(names, files, args):
    if not make("plain", ["all", "lib", *[f"build/tests/{n}" for n in names]]):
        return None
    return c_tests("build", names, "plain") + python_tests(files, "plain")


def asan(names, files, args):
    build = "build/address-undefined"
    if not make("asan", [f"{build}/butler", *[f"{build}/tests/{n}" for n in names]], "SANITIZE=address,undefined", "CFLAGS=-O1 -g"):
        return None
    commands = [f for f in files if f.stem in COMMAND_TESTS]
    return c_tests(build, names, "asan") + python_tests(commands, "asan", {"BUTLER": str(ROOT / build / "butler")})


def tsan(names, files, args):
    names = [n for n in names if n in THREADED]
    if not names:
        return []
    if not make("tsan", [f"build/thread/tests/{n}" for n in names], "SANITIZE=thread", "CFLAGS=-O1 -g"):
        return None
    return c_tests("build/thread", names, "tsan")


def fuzz(names, files, args):
    targets = sorted(f.stem for f in (ROOT / "fuzz").glob("fuzz_*.c") if args.only in f.stem)
    if not targets or args.fuzz == 0:
        return []
    if not make("fuzz", ["fuzz"]):
        return None
    jobs = []
    for target in targets:
        seeds = ROOT / "tests" / "corpus" / target.removeprefix("fuzz_")
        found = ROOT / "build" / "corpus" / target
        found.mkdir(parents=True, exist_ok=True)
        command = [str(ROOT / "build/fuzz/fuzz" / target), f"-max_total_time={args.fuzz}", "-timeout=20", "-rss_limit_mb=2048",
                   "-print_final_stats=1", f"-artifact_prefix={LOGS}/{target}-", str(found)]
        jobs.append(Job(f"fuzz/{target}", command + ([str(seeds)] if seeds.is_dir() else []), args.fuzz + 120, "fuzz"))
    return jobs


def arm64(names, files, args):
    """What is written for this processor alone, and the forward pass around it for the quantised models: an emulator is slow."""
    names = [n for n in names if n.startswith("test_kernels") or n == "test_logits"]
    if not names:
        return []
    for program in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if not shutil.which(program):
            return f"there is no {program}"
    libraries = ROOT / "build" / "arm64" / "libraries"
    fetched = subprocess.run([str(ROOT / "tools/arm64_libraries"), str(libraries)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    if fetched.returncode:
        return "no archive has the libraries for it: " + " ".join(fetched.stdout.split("\n")[-3:]).strip()
    folder = libraries / "usr/lib/aarch64-linux-gnu"
    if not make("arm64", [f"build/arm64/{n}" for n in ("butler", *[f"tests/{n}" for n in names])], "BUILD=build/arm64", "MPI_SO=",
                "AR=aarch64-linux-gnu-ar", f"CC=aarch64-linux-gnu-gcc -isystem {libraries}/usr/include -L{folder}"):
        return None
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}"]
    jobs = []
    for name in names:
        program = [str(ROOT / "build/arm64/tests" / name)]
        jobs.append(Job(f"arm64/{name}", emulator + program + ["llama-q*"] * (name == "test_logits"), 1800, "cmocka"))
        if name == "test_kernels_keys":  # once more without the instructions for dot products
            jobs.append(Job(f"arm64/{name}_base", [*emulator, "-cpu", "cortex-a53", *program], 1800, "cmocka"))
    return jobs


def run(jobs, n_workers, totals):
    lock = threading.Lock()

    def one(job):
        job.run()
        with lock:
            counts = f"{job.passed} passed, {job.failed} failed" + (f", {job.skipped} skipped" if job.skipped else "")
            notes = f" ({', '.join(job.reasons)})" if job.reasons else ""
            print(f"{'FAIL' if job.failed else 'ok  '} {job.name:32} {counts}{notes}, {job.seconds:.1f} s", flush=True)
            text = job.log.read_text(errors="replace")
            if job.failed:
                lines = [line for line in text.splitlines() if not re.match(r"#\d+\s", line)]  # what libFuzzer says on its way
                print("\n".join("     " + line for line in lines[-60:]), flush=True)
            elif job.skipped:
                words = [line for line in text.splitlines() if re.search(r"skip|absent|SKIP", line)]
                print("\n".join("     " + line for line in words[:8]), flush=True)
            for key in totals:
                totals[key] += getattr(job, key)

    with ThreadPoolExecutor(n_workers) as pool:
        list(pool.map(one, jobs))


def arguments():
    parser = argparse.ArgumentParser(prog="check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default=",".join(STAGES), help="which of them, separated by commas (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tests whose name contains TEXT")
    parser.add_argument("--fuzz", type=int, default=15 if os.environ.get("CI") else 5, metavar="SECONDS",
                        help="seconds for each fuzz target (default: 15 where CI is set, else 5)")
    parser.add_argument("-j", type=int, default=min(os.cpu_count() or 2, 8), metavar="N", help="programs run at the same time")
    args = parser.parse_args()
    args.stages = args.stages.split(",")
    unknown = [s for s in args.stages if s not in STAGES]
    if unknown:
        parser.error(f"--stages: '{unknown[0]}' is not allowed; it takes {', '.join(STAGES)}")
    return args


def main():
    args = arguments()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    names = sorted(f.stem for f in (ROOT / "tests").glob("test_*.c") if args.only in f.stem)
    files = sorted(f for f in (ROOT / "tests").glob("test_*.py") if args.only in f.stem)
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    jobs = []
    for stage in args.stages:
        built = {"plain": plain, "asan": asan, "tsan": tsan, "fuzz": fuzz, "arm64": arm64}[stage](names, files, args)
        if isinstance(built, str):
            print(f"skip {stage}: {built}", flush=True)
            totals["skipped"] += 1
            continue
        if built is None:
            print(f"FAIL {stage}: does not build", flush=True)
            totals["failed"] += 1
        jobs += built or []
    run(sorted(jobs, key=lambda job: not job.slow()), args.j, totals)
    print(f"{totals['passed']} passed, {totals['failed']} failed" + (f", {totals['skipped']} skipped" if totals["skipped"] else ""))
    return 0 if totals["passed"] and not totals["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
