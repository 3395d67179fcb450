"""The demo's script, with stand-ins for setup, make and the command: where SmolLM2 cannot be fetched it says so and uses the small model."""
import os
import re
import shutil
import subprocess

import pytest

from cli import ROOT


def script(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


@pytest.fixture
def run_demo(tmp_path):
    def run(fetch):
        (tmp_path / "bin").mkdir()
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "long_text.txt").write_text("A text.\nWhat is the pass key? The pass key is\n")
        shutil.copy(ROOT / "demo", tmp_path)
        script(tmp_path / "setup", f'[ "${{1-}}" != --model ] || exit {fetch}\n')
        script(tmp_path / "bin" / "make", "true\n")
        script(tmp_path / "butler", 'sleep 0.3; echo "butler $*"; echo "  read 1 % of the KV cache" >&2\n')
        env = dict(os.environ, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return subprocess.run([tmp_path / "demo"], env=env, capture_output=True, text=True)
    return run


def test_without_the_weights(run_demo):
    ran = run_demo(fetch=1)
    assert ran.returncode == 0 and "cannot be fetched" in ran.stderr
    assert ran.stdout.startswith("butler run ") and ran.stdout.count("--kv") == 3


def test_with_the_weights(run_demo):
    ran = run_demo(fetch=0)
    assert ran.returncode == 0 and ran.stderr == ""
    asked = [line for line in ran.stdout.splitlines() if line.startswith("  answer: butler ask -m ") and "models/smollm2.gguf -f text.txt " in line]  # no random path
    assert [line.split("--kv ")[1].split()[0] for line in asked] == ["full", "fier:budget=256", "quest:budget=512"]
    assert ran.stdout.count("read 1 % of the KV cache") == 3
    first = re.search(r"^The first word of the answer, after the text was read: (.*)\.$", ran.stdout, re.M)[1].split(", ")
    assert [re.fullmatch(r"\d+\.\d s \((\S+)\)", one)[1] for one in first] == ["full", "fier:budget=256", "quest:budget=512"]
    assert all(0.2 <= float(one.split()[0]) < 20 for one in first)  # the stand-in takes 0.3 s
