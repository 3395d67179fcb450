#!/usr/bin/env python3
"""Checks the direction of `#include "..."` lines: no level includes one above it. Prints what is wrong, then "N passed, N failed"
over the files.

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
    "devices": ENGINE + ["metrics", "kernels", "cpu", "gpu"],
}

# Programs stand on the public headers, src/base and their own folder. What else they may include, and why. tests/test_links.py reads
# the same table: objects of a program use no private symbol but those of src/base and of these headers' files.
PROGRAMS = {
    "apps/cmd": {
        "schema/schema.h": "the flag --json-schema",
        "eval/eval.h": "the subcommand eval",
        "report/report.h": "the subcommand report",
        "serve/api.h": "the subcommand serve",
        "train/train.h": "the subcommand train",
        "model/centres.h": "the subcommand calibrate writes query centres, whose file the model level defines",
        "file/convert.h": "the subcommand convert, which is not in the library",
        "file/quantize.h": "the subcommand quantize, which is not in the library",
    },
    "apps/eval": {},
    "apps/report": {},
    "apps/train": {"model/predictor.h": "the trainer writes predictors, whose layout the model level defines"},
    "apps/schema": {},
    "apps/serve": {"schema/schema.h": "fields that are JSON schemas"},
    "examples": {},
}


def allowed(folder, header):
    """Whether a file of this folder may include the header. folder: "src/engine", "apps/cmd"."""
    target = header.rpartition("/")[0]
    if target in ("", folder.removeprefix("src/").removeprefix("apps/")):
        return True
    if folder.startswith("src/"):
        return target in LEVELS[folder.removeprefix("src/")]
    return header in PROGRAMS[folder] or (target == "base" and folder != "examples")


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
    files, wrong = set(), set()
    for file, folder, header in includes(root):
        files.add(file)
        if not allowed(folder, header):
            wrong.add(file)
            print(f"{file}: includes {header}, which is of a higher level")
    print(f"{len(files) - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
