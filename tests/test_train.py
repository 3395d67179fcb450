"""`butler train` as a command: what it leaves behind, going on after a kill, many processes, and what it refuses."""
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli import BUTLER, DONE, FAILED, GQA, MODELS, ROOT, USAGE, butler, refuses, rows
from gguf_file import Gguf
from test_smollm2 import MODEL as SMOLLM2

TEXT = str(ROOT / "tests" / "data" / "secret_garden.txt")
SMALL = ["-m", GQA, "--data", f"{TEXT},{ROOT}/README.md", "--length", "64", "--batch", "4", "--valid-texts", "2", "--every", "5", "--type", "f32"]
MPI = ROOT / "build" / "butler-mpi.so"
needs_mpi = pytest.mark.skipif(not (shutil.which("mpirun") and MPI.exists()), reason="no MPI here (libopenmpi-dev, openmpi-bin)")


def train(out, *args, **options):
    return butler("train", *SMALL, "-o", out, *args, **options)


def mpirun(n):
    """The words before a command that make it n processes, on any number of cores and as any user."""
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(n), BUTLER]


MPI_ENV = {**os.environ, "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}


def left_by(out):
    """The predictor's numbers and its curve, byte by byte."""
    return out.read_bytes(), out.with_name(out.name + ".csv").read_bytes()


def test_what_it_leaves(tmp_path):
    for version in ("v1", "v2"):
        out = tmp_path / f"{version}.gguf"
        shown = rows("train", *SMALL, "-o", out, "--predictor", version, "--steps", "10")
        predictor = Gguf(out)
        assert predictor.values["general.architecture"][1] == b"butler-predictor"
        with open(f"{out}.csv") as file:
            curve = list(csv.DictReader(file))
        assert [int(row["step"]) for row in curve] == [row["step"] for row in shown] == list(range(1, 11))
        assert [row["step"] for row in shown if "valid_loss" in row] == [5, 10]
        for row, said in zip(curve, shown):
            assert float(row["loss"]) == pytest.approx(said["loss"], rel=1e-8)
        assert 0 < shown[-1]["top_half_accuracy"] <= 1 and 0 < shown[-1]["recall"] <= 1
        assert max(row["rate"] for row in shown) == pytest.approx(0.015 if version == "v1" else 0.001) and shown[-1]["rate"] < 1.5e-3
        assert (tmp_path / f"{version}.gguf.svg").read_text().startswith("<svg")
        assert not os.path.exists(f"{out}.checkpoint")


def test_the_picture_of_any_name(tmp_path):
    """A model's name is text within the picture, whatever it holds."""
    model = tmp_path / "m.gguf"
    model.write_bytes(Path(GQA).read_bytes().replace(b"llama-gqa", b"<a> & \"b\"", 1))
    train(tmp_path / "p.gguf", "-m", model, "--steps", "5")
    picture = ElementTree.parse(tmp_path / "p.gguf.svg")
    assert any((text.text or "").endswith('for <a> & "b"') for text in picture.iter("{http://www.w3.org/2000/svg}text"))


def test_what_is_deployed_is_measured(tmp_path):
    """With --valid: the policy beside fier and true attention, as `eval recall` measures them; in text a line for each."""
    out, text = tmp_path / "p.gguf", ROOT / "tests" / "data" / "secret_garden.txt"
    shown = rows("train", *SMALL, "--valid", text, "-o", out, "--predictor", "v2", "--steps", "2")
    found = [(row["policy"], row["metric"], row["value"]) for row in shown if "policy" in row]
    policies = ["tokenbutler2:on_top=0,sinks=4,recent=0", "fier:dense=1", "oracle:dense=1"]
    assert [name.rpartition(",")[0] or name for name, _, _ in found[::3]] == policies
    flags = [word for policy in policies for word in ("--kv", policy)]
    wanted = rows("eval", "recall", "-m", GQA, "--data", text, "--length", 64, "--limit", 2, "--budget", 0.1, "--set", "dense=1,steps=16", "--predictor", out, *flags)
    assert found == [(row["policy"], row["metric"], row["value"]) for row in wanted] and len(found) == 9
    said = train(tmp_path / "q.gguf", "--valid", text, "--predictor", "v2", "--steps", "2").stderr
    lines = re.findall(r"as deployed, (\S+): ([0-9.]+) % of the top half", said)
    assert [(name, f"{100 * value:.1f}") for name, _, value in found[2::3]] == lines


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
def test_a_wide_model_learns_at_a_lower_rate(tmp_path):
    shown = rows("train", "-m", SMOLLM2, "--data", TEXT, "--length", "64", "--batch", "1", "--valid-texts", "1", "--steps", "10", "--every", "10",
                 "--predictor", "v1", "-o", tmp_path / "p.gguf")
    assert max(row["rate"] for row in shown) == pytest.approx(0.015 * (256 / 576) ** 2)


def test_the_curve_falls(tmp_path):
    shown = rows("train", *SMALL, "-o", tmp_path / "p.gguf", "--predictor", "v2", "--steps", "60", "--lr", "0.01", "--every", "60")
    losses = [row["loss"] for row in shown]
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("model", ["gpt2", "qwen2", "qwen3", "phi3", "llama-mha"])
def test_any_model(model, tmp_path):
    for version in ("v1", "v2"):
        shown = rows("train", "-m", MODELS / f"{model}.gguf", "--data", ROOT / "README.md", "-o", tmp_path / "p.gguf", "--predictor", version,
                     "--length", "64", "--steps", "20", "--begin", "random", "--valid-texts", "1")
        assert sum(row["loss"] for row in shown[-5:]) < sum(row["loss"] for row in shown[:5])


@pytest.mark.parametrize("model", ["gpt2", "qwen3", "phi3", "llama-mha"])
def test_fit_of_any_model(model, tmp_path):
    """Least squares choose better than random weights do, and than these after twenty steps of training."""
    flags = ["train", "-m", MODELS / f"{model}.gguf", "--data", ROOT / "README.md", "-o", tmp_path / "p.gguf", "--predictor", "v2",
             "--length", "64", "--valid-texts", "2", "--every", "0"]
    fitted, random = rows(*flags, "--steps", "1", "--lr", "0")[-1], rows(*flags, "--steps", "20", "--begin", "random")[-1]
    for measure in ("top_half_accuracy", "recall", "mass"):
        assert fitted[measure] > random[measure]


def test_losses_of_v1(tmp_path):
    """The same first step under each: three different figures, of which the cross-entropy is near that of a choice by lot."""
    first = {loss: rows("train", *SMALL, "-o", tmp_path / "p", "--steps", "1", "--loss", loss)[0]["loss"] for loss in ("causal", "square", "entropy")}
    assert len(set(first.values())) == 3
    assert 3 < first["entropy"] < 4.5  # ln(t) averaged over t up to 64 is 3.2


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_recipes(version, tmp_path):
    """The one-line default and the paper's are names for flags: the same bits; a flag of one's own goes before."""
    def bits(*flags):
        out = tmp_path / "p.gguf"
        butler("train", "-m", GQA, "--data", TEXT, "--length", "64", "--steps", "3", "--valid-texts", "1", "--predictor", version, *flags, "-o", out)
        return left_by(out)

    only_v1 = {"default": ["--loss", "entropy", "--key-heads", "kv"], "paper": ["--loss", "square", "--key-heads", "query", "--dropout", "0.1"]}
    spelt = {
        "default": ["--input", "attention", "--rotate", "fast", "--begin", "fit" if version == "v2" else "random",
                    "--lr", "0.001" if version == "v2" else "0.015", "--batch", "2", "--uses", "8", "--queries", "128"],
        "paper": ["--input", "norm", "--rotate", "published", "--begin", "random", "--lr", "0.001", "--batch", "4", "--uses", "1", "--queries", "0"],
    }
    made = {name: bits(*flags, *(only_v1[name] if version == "v1" else [])) for name, flags in spelt.items()}
    assert made["default"] == bits() == bits("--recipe", "default")
    assert made["paper"] == bits("--recipe", "paper") != made["default"]
    assert bits("--recipe", "paper", "--lr", "0.01") != made["paper"]


def test_the_fit_says_how_far_it_is_and_leaves_a_predictor(tmp_path):
    """Before the first step ends there is a file; the time left is told once steps of both kinds were seen."""
    flags = ["--predictor", "v2", "--steps", "8", "--every", "1", "--uses", "2"]
    said = train(tmp_path / "p.gguf", *flags).stderr
    assert "least squares took" in said and f"{tmp_path / 'p.gguf'} can be used" in said
    lines = [line for line in said.splitlines() if line.startswith("[")]
    assert len(lines) == 8 and all("not known yet" in line for line in lines[:4]) and all("0:0" in line for line in lines[4:])
    killed = subprocess.Popen([BUTLER, "train", *map(str, SMALL), "-o", tmp_path / "killed.gguf", *flags[:2], "--steps", "100000", "--checkpoint", "1000"], stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "killed.gguf").exists, killed)
    killed.kill()
    killed.wait()
    assert "predictor" in butler("info", tmp_path / "killed.gguf").stdout


def test_start_from_a_predictor(tmp_path):
    """A step at rate 0 from a file leaves the file's numbers; what is measured is what was measured when it was written."""
    first, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    measured = rows("train", *SMALL, "-o", first, "--predictor", "v2", "--steps", "10", "--dim", "8")[-1]
    said = rows("train", *SMALL, "-o", again, "--predictor", "v2", "--steps", "1", "--lr", "0", "--start", first)[-1]
    assert Gguf(first).tensors == Gguf(again).tensors
    assert said["valid_loss"] == measured["valid_loss"] and said["recall"] == measured["recall"]
    refuses(USAGE, "train", *SMALL, "-o", again, "--predictor", "v1", "--steps", "1", "--start", first, says=[first, "version 2, not 1"])


def test_types_of_matrices(tmp_path):
    """Q4_0 unless told otherwise; rows that are no whole blocks, and vectors, stay wide."""
    words = [word for word in SMALL if word not in ("--type", "f32")]
    for flags, kind in (([], 2), (["--type", "q8_0"], 8), (["--type", "f16"], 1)):
        out = tmp_path / "p.gguf"
        rows("train", *words, "-o", out, "--predictor", "v1", "--steps", "1", "--mid", "32", *flags)
        kinds = {found for dims, found, _ in Gguf(out).tensors.values() if len(dims) == 2 and dims[0] % 32 == 0}
        assert kinds == {kind}, flags


def test_threads_change_nothing(tmp_path):
    for threads in (1, 3):
        train(tmp_path / f"{threads}.gguf", "--steps", "6", "-t", threads)
    assert left_by(tmp_path / "1.gguf") == left_by(tmp_path / "3.gguf")


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "it ended, or never got there"
        time.sleep(0.002)


def lines_of(path):
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_killed_and_resumed(version, tmp_path):
    """kill -9 in the middle leaves a predictor that can be used; then --resume: the same bits as a run that was left alone."""
    args = ["--steps", "40", "--predictor", version, "--checkpoint", "0"]
    train(tmp_path / "whole.gguf", *args)
    out = tmp_path / "killed.gguf"
    process = subprocess.Popen([BUTLER, "train", *SMALL, "-o", str(out), *args], stderr=subprocess.DEVNULL)
    wait_for(lambda: lines_of(tmp_path / "killed.gguf.csv") > 7, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert rows("run", "-m", GQA, "--predictor", out, "-p", "abc", "-n", "8", "--kv", f"tokenbutler{'' if version == 'v1' else 2}:budget=4,on_top=0,sinks=1,recent=1")[-1]["stats"]["n_decode"] == 7
    said = train(out, *args, "--resume").stderr
    assert "continuing after step" in said
    assert left_by(out) == left_by(tmp_path / "whole.gguf")


@needs_mpi
@pytest.mark.parametrize("version, n", [("v2", 2), ("v1", 3)])
def test_processes_change_nothing(version, n, tmp_path):
    """The same total batch in one process and in several: the same bits, for gradients are added in the order of the texts."""
    args = ["--steps", "6", "--predictor", version, "--accumulate", "2", "-t", "1"]
    train(tmp_path / "one.gguf", *args)
    out = tmp_path / "many.gguf"
    subprocess.run([*mpirun(n), "train", *SMALL, "-o", str(out), *args], check=True, timeout=300, env=MPI_ENV, capture_output=True)
    assert left_by(out) == left_by(tmp_path / "one.gguf")


@needs_mpi
def test_a_rank_dies(tmp_path):
    """One process of two is killed: all end, with a checkpoint from which two go on as if nothing had been."""
    args = ["--steps", "40", "--predictor", "v2", "-t", "1", "--checkpoint", "0"]
    train(tmp_path / "whole.gguf", *args)
    out = tmp_path / "killed.gguf"
    command = [*mpirun(2), "train", *SMALL, "-o", str(out), *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=MPI_ENV)
    wait_for(lambda: lines_of(tmp_path / "killed.gguf.csv") > 5, process)
    children = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(60) != 0
    assert out.exists(), "the fit's, or a checkpoint's"
    subprocess.run([*command, "--resume"], check=True, timeout=300, env=MPI_ENV, capture_output=True)
    assert left_by(out) == left_by(tmp_path / "whole.gguf")


@needs_mpi
@pytest.mark.skipif(b"__asan_" in open(BUTLER, "rb").read() or b"__tsan_" in open(BUTLER, "rb").read(),
                    reason="sanitizers reserve address space of their own")
def test_a_limit_of_memory(tmp_path):
    """OpenBLAS tries for ever to get memory that there is not; the command must end by itself under every limit."""
    def limited(mib, expect):
        limit = (mib << 20, mib << 20)
        return train(tmp_path / "p.gguf", "--steps", "2", "-t", "2", expect=expect,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))

    for mib in (128, 160, 192, 256, 320):
        assert "the BLAS needs" in limited(mib, FAILED).stderr
    limited(1024, DONE)


def test_a_batch_too_small_for_the_processes(tmp_path):
    result = subprocess.run([*mpirun(2), "train", *SMALL, "-o", str(tmp_path / "p"), "--steps", "2", "--batch", "1"], timeout=300,
                            env=MPI_ENV, capture_output=True, text=True)
    assert result.returncode != 0 and "a batch of 1 texts is too small for 2 processes" in result.stderr


def test_bad_checkpoints(tmp_path):
    out, checkpoint = tmp_path / "p.gguf", tmp_path / "p.gguf.checkpoint"
    args = ["train", *SMALL, "-o", out, "--steps", "20", "--resume"]
    refuses(FAILED, *args, says=["p.gguf.checkpoint"])
    checkpoint.write_bytes(b"nothing")
    refuses(FAILED, *args, says=[checkpoint, "not a training checkpoint"])
    process = subprocess.Popen([BUTLER, "train", *map(str, SMALL), "-o", str(out), "--steps", "2000", "--checkpoint", "0"], stderr=subprocess.DEVNULL)
    wait_for(lambda: checkpoint.stat().st_size > 1000 and out.exists(), process)
    process.kill()
    process.wait()
    good, left = checkpoint.read_bytes(), out.read_bytes()
    refuses(USAGE, *args, says=["another run: the number of steps was 2000 there and is 20 here"])
    checkpoint.write_bytes(good[:-100] + b"x" + good[-99:])
    refuses(FAILED, *args, says=["checksum", "damaged"])
    assert out.read_bytes() == left, "what was refused wrote nothing"


@pytest.mark.parametrize("args, says", [
    (["--predictor", "v3"], ["--predictor", "v3", "v1 or v2"]),
    (["--predictor", "v2", "--loss", "square"], ["--loss", "v1"]),
    (["--loss", "cube"], ["--loss", "cube", "causal"]),
    (["--recipe", "mine"], ["--recipe", "mine", "default or paper"]),
    (["--uses", "0"], ["--uses"]),
    (["--begin", "late"], ["--begin", "late", "fit or random"]),
    (["--steps", "-1"], ["--steps"]),
    (["--dim", "7"], ["7", "multiple of 4"]),
    (["--type", "q4"], ["--type", "f16"]),
])
def test_bad_flags(args, says, tmp_path):
    refuses(USAGE, "train", *SMALL, "-o", tmp_path / "p", *args, says=says)


def test_one_layer_leaves_nothing_to_foresee(tmp_path):
    refuses(USAGE, "train", "-m", MODELS / "llama-q4_k.gguf", "--data", TEXT, "-o", tmp_path / "p", says=["no predictor for a model of 1 layers"])


def test_bad_texts(tmp_path):
    short, empty = tmp_path / "short", tmp_path / "empty"
    short.write_text("Too short. " * 9)
    empty.write_text("")
    flags = ["train", "-m", GQA, "-o", tmp_path / "p", "--steps", "2"]
    refuses(USAGE, *flags, says=["--data"])
    refuses(FAILED, *flags, "--data", tmp_path / "none", says=[tmp_path / "none"])
    refuses(FAILED, *flags, "--data", empty, says=[empty])
    refuses(FAILED, *flags, "--data", short, says=[short, "too short"])
    refuses(USAGE, "train", "-m", GQA, "--data", TEXT, says=["-o"])
    short.write_text("the " * 20)
    refuses(FAILED, "train", "-m", ROOT / "models" / "butler-default.gguf", *flags[3:], "--data", TEXT, "--valid", short, "--length", 64, says=[short, "at least"])
    assert not list(tmp_path.glob("p*"))


def test_nothing_that_is_read_is_written_over(tmp_path):
    text = open(TEXT, "rb").read()
    for data, valid, out in (("books", None, "books"), ("books.csv", None, "books"), ("books.svg", None, "books"), ("books", "held", "held"),
                             ("books", "held.checkpoint", "held")):
        paths = [tmp_path / name for name in (data, valid) if name]
        for path in paths:
            path.write_bytes(text)
        refuses(USAGE, "train", "-m", GQA, "--data", paths[0], *(["--valid", paths[1]] if valid else []), "-o", tmp_path / out, "--steps", 1,
                says=["written over", "the same file"])
        assert all(path.read_bytes() == text for path in paths)
