"""`mpirun -n K butler eval`: the rows of one process, and what a killed run leaves."""
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli import BUTLER, GQA, ROOT, refuses, rows, FAILED
from eval_rows import journal, kv, steady

MPI = ROOT / "build" / "butler-mpi.so"
pytestmark = pytest.mark.skipif(not (shutil.which("mpirun") and MPI.exists()), reason="no MPI here (libopenmpi-dev, openmpi-bin)")
ENV = {**os.environ, "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}
TEXT = ROOT / "tests" / "data" / "secret_garden.txt"
POLICIES = kv("full", "quest:dense=0", "h2o", "random")


def mpirun(n, *args):
    """A command of n processes, on any number of cores and as any user."""
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(n), BUTLER, "eval", *map(str, args), "-t", "1", "--json"]


def spread(n, *args):
    out = subprocess.run(mpirun(n, *args), check=True, timeout=300, env=ENV, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def read(path):
    return steady(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("n, task, args", [
    (3, "ppl", ["--data", TEXT, "--length", 100, "--limit", 7, "--budget", "0.3", *POLICIES]),
    (2, "recall", ["--data", TEXT, "--length", 100, "--limit", 3, "--budget", "0.3", "--set", "steps=4", *POLICIES]),
    (2, "passkey", ["--length", "150,180", "--limit", 1, "--budget", "0.3", *POLICIES])])
def test_the_rows_of_one_process(tmp_path, n, task, args):
    """Also where a process has no item at all."""
    alone = steady(rows("eval", task, "-m", GQA, *args, "-t", 1))
    path = tmp_path / "rows.jsonl"
    assert steady(spread(n, task, "-m", GQA, *args, "-o", path)) == alone == read(path)
    assert spread(n, task, "-m", GQA, *args, "-o", path) == [] and read(path) == alone
    if task == "ppl":
        parts = [journal(path)] + [[json.loads(line) for line in Path(f"{path}.items.{r}").read_text().splitlines()] for r in (1, 2)]
        names = [item["id"] for part in parts for item in part]
        assert all(len(part) >= 2 * 4 for part in parts) and len(names) == len(set(names)) == 7 * 4


def test_one_process_continues_what_several_began(tmp_path):
    """Killed in the middle, then continued by several and by one: nothing is measured twice."""
    args = ["ppl", "-m", GQA, "--data", TEXT, "--length", 120, "--limit", 16, "--budget", "0.2,0.6", *POLICIES]
    whole, path = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    rows("eval", *args, "-t", 1, "-o", whole)

    def measured():
        return [line for p in tmp_path.glob("part.jsonl.items*") for line in p.read_bytes().splitlines(True) if line.endswith(b"\n")]
    process = subprocess.Popen(mpirun(2, *args, "-o", path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    end = time.time() + 120
    while time.time() < end and len(measured()) < 6 and process.poll() is None:
        time.sleep(0.002)
    children = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(60) != 0, "the other process ends too"
    assert len(measured()) >= 6
    rows("eval", *args, "-t", 1, "-o", path)
    names = [json.loads(line)["id"] for line in measured()]
    assert len(names) == len(set(names)) == len(journal(whole)) and read(path) == read(whole)


def test_an_error_ends_all(tmp_path):
    result = subprocess.run(mpirun(2, "ppl", "-m", GQA, "--data", tmp_path / "nosuch"), timeout=120, env=ENV, capture_output=True, text=True)
    assert result.returncode != 0 and "nosuch" in result.stderr and result.stdout == ""


def test_without_the_object(tmp_path):
    shutil.copy(BUTLER, tmp_path / "butler")
    refuses(FAILED, "eval", "passkey", "-m", GQA, "--length", 150, binary=str(tmp_path / "butler"),
            env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}, says=["butler-mpi.so", "2 processes"])
