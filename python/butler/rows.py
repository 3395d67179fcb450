"""Rows of `butler eval`: the command is run, or a file of its rows is read."""
import json
import os
import shutil
import subprocess

import numpy as np

from ._library import Error


REPEATED = ("kv", "plugin", "predictor")


def evaluate(task, *, command=None, **flags):
    """Runs `butler eval TASK --json` and returns its rows, a dict each. Every keyword is a flag of the command: model="m.gguf", kv=["fier",
    "quest"], budget=[64, 128], length=1024, data="text.txt", set={"steps": 8}, output="rows.jsonl". kv, plugin and predictor are
    given once for each item of a list, other lists as "64,128". With output= all rows of that file, those of earlier runs too, which
    are not measured again. command: the program; None: butler, found on the PATH."""
    program = command or shutil.which("butler")
    if not program:
        raise FileNotFoundError("there is no butler on the PATH; name it: command='.../butler'")
    words = [os.fspath(program), "eval", task, "--json"]
    for name, value in flags.items():
        flag = "-" + name if len(name) == 1 else "--" + name.replace("_", "-")
        if isinstance(value, dict):
            value = ",".join(f"{key}={item}" for key, item in value.items())
        elif isinstance(value, (list, tuple)) and name not in REPEATED:
            value = ",".join(map(str, value))
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [flag] if item is True else [] if item is None or item is False else [flag, str(item)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
                          errors="replace")  # files' names in messages may be anything
    if done.returncode:
        raise Error(done.stderr.strip() or f"{program} eval ended with exit status {done.returncode}")
    output = flags.get("output") or flags.get("o")
    return read_rows(output) if output else [json.loads(line) for line in done.stdout.split("\n") if line]


def read_rows(path):
    """The rows of a file that `butler eval -o` wrote."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
    return rows


def columns(rows):
    """The same by field: {name: array}. Numbers become float64, with NaN where a row has none; everything else stays an object."""
    table = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if all(value is None or isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            table[name] = np.array([np.nan if value is None else value for value in values], float)
        else:
            table[name] = np.empty(len(values), object)
            table[name][:] = values
    return table
