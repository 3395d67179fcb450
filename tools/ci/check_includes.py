#!/usr/bin/env python3
"""Checks the direction of `#include "..."` lines: no level includes one above it. Prints what is wrong, then "N passed, N failed"
over the files. KNOWN lists what is wrong today: a new violation fails, and so does an entry that is no longer true.

    tools/ci/check_includes.py [ROOT]"""
import re
import sys
from pathlib import Path

# Each folder of src/ and the folders it may include, beside itself and butler.h.
BASE = ["base"]
FILE = BASE + ["file"]
TEXT = FILE + ["text"]
MODEL = TEXT + ["template", "grammar", "model"]
ENGINE = MODEL + ["engine"]
LEVELS = {
    "base": [],
    "file": BASE,
    "text": FILE,
    "template": TEXT,
    "grammar": TEXT,
    "model": TEXT,
    "engine": MODEL,
    "metrics": ENGINE + ["kernels"],  # their host functions for the CPU
    "kernels": FILE,
    "cpu": ENGINE + ["kernels"],
    "gpu": ENGINE,
    "devices": ENGINE + ["metrics", "cpu"],
}

# Programs stand on butler.h and their own folder. What else they may include, and why.
PROGRAMS = {
    "apps/cmd": {
        "schema/schema.h": "the flag --json-schema",
        "base/utf8.h": "documents in other encodings become UTF-8",
        "base/util.h": "limits, counts and random numbers, shared by all folders",
        "eval/eval.h": "the subcommand eval",
        "report/report.h": "the subcommand report",
        "serve/api.h": "the subcommand serve",
        "train/train.h": "the subcommand train",
        "file/convert.h": "the subcommand convert, which is not in the library",
        "file/quantize.h": "the subcommand quantize",
    },
    "apps/eval": {
        "base/util.h": "limits, counts and random numbers, shared by all folders",
        "base/utf8.h": "scores of answers compare characters",
    },
    "apps/report": {"base/util.h": "limits, counts and random numbers, shared by all folders"},
    "apps/train": {
        "base/util.h": "limits, counts and random numbers, shared by all folders",
        "model/predictor.h": "the trainer writes predictors, whose layout the model level defines",
        "engine/capture.h": "the hooks through which training sees a layer's queries and keys",
    },
    "apps/schema": {"base/utf8.h": "patterns and lengths count characters"},
    "apps/serve": {"schema/schema.h": "fields that are JSON schemas"},
    "examples": {},
}

# Known violations, to be removed one by one: "FILE HEADER".
KNOWN = """
apps/eval/run.c engine/engine.h
apps/cmd/train.c model/model.h
apps/eval/consensus.c engine/session.h
apps/eval/eval.h engine/policy.h
apps/eval/mc.c engine/session.h
apps/eval/prompt.c engine/session.h
apps/eval/recall.c cpu/select.h
apps/eval/recall.c engine/predict.h
apps/eval/recall.c engine/session.h
apps/eval/results.c model/model.h
apps/eval/trial.c cpu/select.h
apps/eval/trial.c engine/session.h
apps/train/dense.h kernels/kernels.h
apps/train/loss.h kernels/kernels.h
apps/train/trainer.c engine/session.h
""".split("\n")[1:-1]


def allowed(folder, header):
    """Whether a file of this folder may include the header. folder: "src/engine", "apps/cmd"."""
    target = header.rpartition("/")[0]
    if header == "butler.h" or target in ("", folder.removeprefix("src/").removeprefix("apps/")):
        return True
    if folder.startswith("src/"):
        return target in LEVELS[folder.removeprefix("src/")]
    return header in PROGRAMS[folder]


def includes(root):
    """Every (file, folder, header) of the checked folders."""
    for folder in [f"src/{level}" for level in LEVELS] + list(PROGRAMS):
        for path in sorted((root / folder).glob("*.[ch]")):
            for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
                yield f"{folder}/{path.name}", folder, header
    for folder in (root / "src").iterdir():
        if folder.is_dir() and folder.name not in LEVELS:
            raise SystemExit(f"src/{folder.name} has no level in tools/ci/check_includes.py\n0 passed, 1 failed")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent.parent)
    files, wrong = set(), []
    for file, folder, header in includes(root):
        files.add(file)
        if not allowed(folder, header):
            wrong.append(f"{file} {header}")
    new = [w for w in wrong if w not in KNOWN]
    gone = [k for k in KNOWN if k not in wrong]
    for line in new:
        print("{}: includes {}, which is of a higher level".format(*line.split()))
    for line in gone:
        print(f"{line}: no longer true; take this line out of KNOWN in tools/ci/check_includes.py")
    failed = len({line.split()[0] for line in new}) + len(gone)
    print(f"{max(len(files) - failed, 0)} passed, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
