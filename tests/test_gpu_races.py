"""Kernels of src/gpu in Oclgrind, an OpenCL device that interprets them and finds data races and accesses out of bounds: operations of
test_gpu on few numbers, which have the CPU's results there too."""
import os
import subprocess
from pathlib import Path

import pytest

from cli import ROOT

OCLGRIND = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
TEST_GPU = ROOT / "build/tests/test_gpu"
pytestmark = pytest.mark.skipif(not OCLGRIND.exists() or not TEST_GPU.exists(), reason="Oclgrind (Debian: oclgrind) or build/tests/test_gpu is absent")
BARRIER = b"shared[THREAD] = x;\n    BARRIER();\n    for (int n = THREADS / 2"


def findings(test, tmp_path, program=TEST_GPU):
    """What Oclgrind says of a test of test_gpu, and the test's output."""
    log = tmp_path / "log"
    env = {**os.environ, "OCL_ICD_VENDORS": str(OCLGRIND), "OCLGRIND_DATA_RACES": "1", "OCLGRIND_LOG": str(log)}
    result = subprocess.run([program, test], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert "opencl:0: Oclgrind Simulator" in result.stdout
    return log.read_text() if log.exists() else "", result.stdout


@pytest.mark.parametrize("test", ["test_layer", "test_rows", "test_evict", "test_selection"])
def test_no_races(test, tmp_path):
    found, output = findings(test, tmp_path)
    assert found == ""
    assert f"[       OK ] {test}" in output and "skipped" not in output


def test_races_are_found(tmp_path):
    """The kernels' text lies in the program: here without a barrier of the sums over a group."""
    program = tmp_path / "test_gpu"
    text = TEST_GPU.read_bytes()
    assert BARRIER in text
    program.write_bytes(text.replace(BARRIER, BARRIER.replace(b"BARRIER();", b" " * 10)))
    program.chmod(0o700)
    found, _ = findings("test_rows", tmp_path, program)
    assert "race" in found and "norm_rows" in found
