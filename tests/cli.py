"""Shared by the command's tests: running it, parsing its rows, models derived from the committed ones."""
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from gguf_file import STRING, Gguf

ROOT = Path(__file__).resolve().parent.parent
BUTLER = os.environ.get("BUTLER", str(ROOT / "butler"))
MODELS = ROOT / "tests" / "data" / "models"
SMOLLM2 = Path(os.environ.get("BUTLER_MODELS", ROOT / "models")) / "smollm2.gguf"  # `./setup --model smollm2` fetches it
GQA = str(MODELS / "llama-gqa.gguf")      # 2 layers, 4 query heads, 2 KV heads, context 256
GPT2 = str(MODELS / "gpt2.gguf")
N_VOCAB, N_CTX, N_EMBD = 267, 256, 64
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "cache")  # fingerprints of the tests' models are not the user's
PROMPT = "It was the best of times"
DONE, FAILED, USAGE = 0, 1, 2
COMMANDS = ["run", "ask", "chat", "library", "serve", "info", "tokenize", "logits", "policies", "plan", "bench", "convert", "quantize", "eval", "gate", "report", "train", "calibrate"]


def data_folder():
    """The folder of real data that is not committed, or None."""
    for path in (os.environ.get("BUTLER_DATA"), ROOT.parent / "shared" / "data"):
        if path and Path(path).is_dir():
            return Path(path)
    return None


def butler(*args, input=None, expect=DONE, binary=BUTLER, **options):
    """Runs the command; checks its exit status. Output is decoded as UTF-8, strictly."""
    result = subprocess.run([binary, *map(str, args)], input=None if input is None else input.encode(), timeout=300,
                            stdin=subprocess.DEVNULL if input is None else None, capture_output=True, **options)
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode(errors="replace")
    assert result.returncode == expect, f"exit status {result.returncode}, not {expect}: {result.stderr}"
    return result


# Python packages that Debian does not have, put there by ./setup --tests.
PACKAGES = os.environ.get("BUTLER_PYTHON", str(ROOT / "build" / "python"))
sys.path.append(PACKAGES)
needs_gguf = pytest.mark.skipif(None in map(importlib.util.find_spec, ("gguf", "yaml")),
                                reason="the Python package gguf, or yaml that it needs, is absent (./setup --tests)")


def run_forked(script, args):
    """Runs a Python script as subprocess.run would, but in a fork of this process: most of a short script's time goes into loading NumPy
    and gguf, which are loaded here. It leaves nothing behind here either."""
    import gguf  # noqa: F401  (for the children)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
                sys.argv, sys.path[0:0] = [str(script), *args], [str(script.parent)]
                runpy.run_path(str(script), run_name="__main__")
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([script, *args], status, out.read(), err.read())


started = set()  # tools that have run as programs of their own


def python_tool(name, *args, expect=DONE):
    """Runs a script of tools/, the first time as a program and then forked; checks its exit status."""
    script, args = ROOT / "tools" / name, [str(arg) for arg in args]
    if name in started:
        result = run_forked(script, args)
    else:
        started.add(name)
        result = subprocess.run([sys.executable, script, *args], capture_output=True, text=True, timeout=300,
                                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))})
    assert result.returncode == expect, f"exit status {result.returncode}, not {expect}: {result.stderr}"
    return result


def rows(*args, **options):
    """Every line of standard output, each of which must be one JSON object."""
    out = [json.loads(line, parse_constant=not_json) for line in butler(*args, "--json", **options).stdout.splitlines()]
    assert all(isinstance(row, dict) for row in out)
    return out


def not_json(word):
    raise AssertionError(f"{word} is not JSON")


def refuses(status, *args, says=(), **options):
    """The command exits with this status, prints all of these words on standard error, and nothing on standard output."""
    result = butler(*args, expect=status, **options)
    assert result.stdout == ""
    assert result.stderr.strip(), "an error without a word"
    for word in says:
        assert str(word) in result.stderr, f"'{word}' is not in: {result.stderr}"
    return result


def with_values(path, **values):
    """The small model with some string values of its header changed."""
    model = Gguf(GQA)
    for key, value in values.items():
        model.put("tokenizer.chat_template" if key == "chat_template" else key, STRING, value)
    model.write(path)
    return str(path)
