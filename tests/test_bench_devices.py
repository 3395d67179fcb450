"""butler bench on several devices: of OpenCL (PoCL makes as many of the CPU as it is asked for), and of a stand-in for CUDA's driver."""
import os
import subprocess

import pytest

from cli import BUTLER, FAILED, GQA, ROOT, USAGE, butler, refuses, rows
from test_gpu_cuda import FAKE, needs_fake

TWO = {**os.environ, "POCL_DEVICES": "pthread pthread"}
POCL = "opencl:1: pthread" in subprocess.run([BUTLER, "info", "-m", GQA, "--device", "auto"], env=TWO, capture_output=True, text=True).stdout
needs_pocl = pytest.mark.skipif(not POCL, reason="PoCL (Debian: pocl-opencl-icd) is absent")
ARGS = ["-m", GQA, "-d", 40, "-n", 3, "--warmup", 1]


def placed(row):
    return [(own["device"], own["batch"], own["tokens"]) for own in row["by_device"]]


@needs_pocl
def test_sessions_are_placed_over_devices():
    """The first device alone, then both; numbers of tokens are what the sessions say."""
    one, two = rows("bench", *ARGS, "--batch", 5, "--kv", "quest:budget=16", "--device", "opencl:1,opencl:0", env=TWO)
    assert [row["devices"] for row in (one, two)] == [1, 2]
    assert placed(one) == [("opencl:0", 5, 15)] and placed(two) == [("opencl:0", 3, 9), ("opencl:1", 2, 6)]
    for row in (one, two):
        assert row["policy"] == "quest:budget=16" and row["depth"] == 40 and row["batch"] == 5
        assert 0 < row["ms_step"] <= row["ms_step_p99"]
        assert row["speed_up"] == pytest.approx(row["tok_s"] / one["tok_s"]) and row["efficiency"] == pytest.approx(row["speed_up"] / row["devices"])
        # No faster than the sum of each, which began and ended within the whole.
        assert 0 < row["tok_s"] <= sum(own["tok_s"] for own in row["by_device"]) * (1 + 1e-6)


@needs_fake
def test_engines_are_on_their_devices():
    """Names are the devices' own. One, then both."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(FAKE), "FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_NUMBERED": "1"}
    got = rows("bench", "-m", GQA, "-d", 2, "-n", 1, "--warmup", 0, "--batch", 2, "--device", "cuda:all", env=env)
    names = ["fake 0", "fake 1"]
    assert [[own["name"] for own in row["by_device"]] for row in got] == [names[:1], names]
    assert placed(got[-1]) == [(f"cuda:{i}", 1, 1) for i in range(2)]


@needs_pocl
def test_table():
    lines = butler("bench", *ARGS, "--batch", 2, "--device", "opencl:all", env=TWO).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", "full", "full", "opencl:0", "opencl:1"]


@needs_pocl
def test_refused():
    refuses(USAGE, "bench", *ARGS, "--device", "opencl:all", env=TWO, says=["--batch", "1 sessions", "2 devices"])
    refuses(USAGE, "bench", *ARGS, "--device", "opencl:all", "--lossless", env=TWO, says=["--lossless measures one device"])
    for device in ("opencl:0,opencl:7", "opencl:0,opencl:0", "opencl:0,", "cpu,opencl:0"):
        refuses(FAILED, "bench", *ARGS, "--device", device, env=TWO, says=[f"--device {device}: there is no such device here, or it is named twice"])
    refuses(USAGE, "run", "-m", GQA, "-p", "It", "--device", "opencl:0,opencl:1", env=TWO, says=["only serve and bench use several devices"])


# ----------------------------------------------------------------------------------------------- bench/gpu.sh

STAND_IN = """#!/bin/sh
[ "$1" = info ] && [ "$info_fails" ] && echo "no such device" >&2 && exit 1
[ "$1" = info ] && echo 'device          cuda:0: a card, 80 GB' && exit
if [ "$1" = eval ]; then
    while [ "$1" != --device ]; do shift; done
    [ "$2" = cpu ] && accuracy=1 found=0.5
    for policy in full quest tinyserve fier; do
        echo '{"policy": "'$policy'", "length": 8192, "value": '$accuracy', "found": '$found'}'
    done
    exit
fi
while [ "$1" != --kv ]; do shift; done
policy=$2 depth=$4 ms=$(eval "echo \\$${2%:*}")
[ "$ms" ] && [ "${policy#full}" = "" -o "${policy#*:}" = budget=$((depth / 8)) ] || exit 1
echo '{"tok_s": 1000, "ms_tok": '$ms', "depth": '$depth', "weight_bytes": 3000000, "kv_bytes": 900000, "metric_bytes": 100000}'
"""
CARD = """#!/bin/sh
echo "$tests"
exit $tests_fail
"""
SAYS = {"full": "2", "quest": "1", "tinyserve": "0.5", "fier": "1.9", "accuracy": "1", "found": "0.495", "tests": "PASSED", "tests_fail": "0"}


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def gate(tmp_path, depths, expect, limit=None, cwd=ROOT, **changed):
    """What the script prints where stand-ins for the command and the tests on a card say this, or measure these milliseconds a token."""
    env = {**os.environ, "BUTLER": script(tmp_path / "butler", STAND_IN), "BUTLER_CARD": script(tmp_path / "card", CARD), **SAYS, **changed}
    if limit:
        env["BUTLER_GATE"] = str(limit)
    result = subprocess.run([ROOT / "bench/gpu.sh", "m.gguf", "cuda:0", *map(str, depths)], env=env, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == expect, result.stdout + result.stderr
    return (result.stderr if expect == 3 else result.stdout).splitlines()


def test_gate_passes_where_sparse_is_ahead(tmp_path):
    lines = gate(tmp_path, [32768], 0)
    assert lines[0].startswith("m.gguf, ") and lines[0].endswith(", a card, 80 GB:")
    assert lines[2:4] == [f"- {tmp_path}/card: passed", "- pass key in 8192 tokens, found as often as on the CPU: `full` 100 %, `quest` 100 %, `tinyserve` 100 %, `fier` 100 %"]
    assert lines[7:] == ["| `full` | 32768 | 1000.0 | 2.000 | 1.00 | 4.0 | 2.0 |", "| `quest:budget=4096` | 32768 | 1000.0 | 1.000 | 2.00 | 4.0 | 4.0 |",
                         "| `tinyserve:budget=4096` | 32768 | 1000.0 | 0.500 | 4.00 | 4.0 | 8.0 |", "| `fier:budget=4096` | 32768 | 1000.0 | 1.900 | 1.05 | 4.0 | 2.1 |"]


@pytest.mark.parametrize("changed", [{"accuracy": "0.66"}, {"found": "0.48"}, {"found": "null"}, {"tests_fail": "1"}, {"tests": "SKIPPED"}])
def test_nothing_is_measured_on_a_wrong_device(changed, tmp_path):
    """Tests that fail or are skipped, a pass key that is not found, other tokens than the CPU attends to."""
    assert not any(line.startswith("|") for line in gate(tmp_path, [32768], 2, **changed))


@pytest.mark.parametrize("changed", [{"fier": "2"}, {"tinyserve": ""}])
def test_gate_fails(changed, tmp_path):
    """A sparse policy is not ahead, or a row is missing; with fewer tokens neither matters."""
    lines = gate(tmp_path, [32767], 0, **changed)
    assert sum("failed" in line for line in lines) == ("" in changed.values())
    gate(tmp_path, [32768], 1, **changed)


def test_length_of_the_gate(tmp_path):
    gate(tmp_path, [64], 1, limit=64, quest="2.1")


@needs_pocl
def test_gpu_script():
    """The pass key is found, and all rows are there: a gate that is never reached asks for no speed."""
    env = {**TWO, "BUTLER_NEEDLE": "512"}
    lines = subprocess.run([ROOT / "bench/gpu.sh", GQA, "opencl:0", "64"], env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[2].startswith("- pass key in 512 tokens, found as often as on the CPU: `full` 100 %, `quest:budget=64` ")
    assert [line.split("`")[1].split(":")[0] for line in lines[6:]] == ["full", "quest", "tinyserve", "fier"]
    assert all(float(cell) > 0 for line in lines[6:] for cell in line.split("|")[3:-1])


def test_what_cannot_be_opened_is_no_wrong_device(tmp_path):
    assert gate(tmp_path, [32768], 3, info_fails="1") == ["no such device"]


def test_models_of_another_folder(tmp_path):
    """The model's name is relative to where the script is called; butler runs in the repository."""
    (tmp_path / "butler2").mkdir()
    lines = gate(tmp_path / "butler2", [32768], 0, cwd=tmp_path)
    assert lines[0].startswith("m.gguf, ")


def test_it_ends_in_time(tmp_path):
    lines = gate(tmp_path, [32767, 32768], 1, BUTLER_SECONDS="0")
    assert sum("no time was left" in line for line in lines) == 8
