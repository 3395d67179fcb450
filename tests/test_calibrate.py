"""butler calibrate and the file it writes; what the numbers are is in test_policies.py."""
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cli import DONE, FAILED, GPT2, GQA, MODELS, ROOT, USAGE, butler, refuses, rows  # noqa: E402
from gguf_file import STRING, Gguf  # noqa: E402

TEXT = ROOT / "tests" / "data" / "secret_garden.txt"
RUN = ["-p", "It was the best of times, it was the worst of times", "-n", "40", "--temp", "0", "--ignore-eos"]
SPARSE = ["--kv", "triattention:budget=24,recent=4"]


@pytest.fixture
def model(tmp_path):
    """A copy of the small model with its query centres beside it."""
    shutil.copy(GQA, tmp_path / "m.gguf")
    said = butler("calibrate", "-m", tmp_path / "m.gguf", "--data", TEXT).stderr
    assert "m.centres.gguf" in said and "256 tokens" in said
    return tmp_path / "m.gguf"


def test_found_beside_the_model_or_named(model, tmp_path):
    *_, found = rows("run", "-m", model, *RUN, *SPARSE)
    *_, named = rows("run", "-m", GQA, "--predictor", tmp_path / "m.centres.gguf", *RUN, *SPARSE)
    *_, full = rows("run", "-m", model, *RUN)
    assert found["ids"] == named["ids"] and found["stats"]["policy"].startswith("triattention:budget=24")
    assert found["stats"]["kv_bytes"] < full["stats"]["kv_bytes"] and found["stats"]["metric_bytes"] > 0


def test_a_session_goes_on_where_it_was_saved(model, tmp_path):
    *_, whole = rows("run", "-m", model, *RUN, *SPARSE)
    first = rows("run", "-m", model, *RUN[:3], "15", *RUN[4:], *SPARSE, "--save-session", tmp_path / "s")[-1]
    rest = rows("run", "-m", model, "--load-session", tmp_path / "s", "-n", "25", "--temp", "0", "--ignore-eos")[-1]
    assert first["ids"] + rest["ids"] == whole["ids"]


def test_same_file_with_any_number_of_threads(model, tmp_path):
    butler("calibrate", "-m", model, "--data", TEXT, "-o", tmp_path / "other", "-t", "1")
    assert (tmp_path / "other").read_bytes() == (tmp_path / "m.centres.gguf").read_bytes()


def test_a_model_that_does_not_rotate(tmp_path):
    butler("calibrate", "-m", GPT2, "--data", TEXT, "-o", tmp_path / "c.gguf")
    *_, last = rows("run", "-m", GPT2, "--predictor", tmp_path / "c.gguf", *RUN, *SPARSE)
    assert len(last["ids"]) > 15 and last["stats"]["metric_bytes"] > 0


def test_calibrate_refuses(model, tmp_path):
    refuses(USAGE, "calibrate", "-m", model, says=["--data"])
    refuses(FAILED, "calibrate", "-m", model, "--data", tmp_path / "absent", says=["absent"])
    (tmp_path / "short").write_text("a few words")
    refuses(FAILED, "calibrate", "-m", model, "--data", tmp_path / "short", "-o", tmp_path / "out", says=["short", "at least 32"])
    refuses(FAILED, "calibrate", "-m", model, "--data", TEXT, "-o", tmp_path / "no" / "out", says=[tmp_path / "no"])
    refuses(USAGE, "calibrate", "-m", model, "--data", TEXT, "-o", model, says=["same file"])
    assert not (tmp_path / "out").exists() and butler("info", model, expect=DONE)


def test_no_centres():
    refuses(USAGE, "run", "-m", GQA, *RUN, "--kv", "triattention", says=["query centres", "butler calibrate", "--predictor"])


def test_files_that_do_not_fit(model, tmp_path):
    good, bad = tmp_path / "m.centres.gguf", tmp_path / "bad.gguf"

    def fails(*says, status=FAILED):
        refuses(status, "run", "-m", GQA, "--predictor", bad, *RUN, *SPARSE, says=["bad.gguf", *says])

    def changed(change):
        file = Gguf(good)
        change(file)
        file.write(bad)

    data = good.read_bytes()
    for n in [0, 3, 40, *range(64, len(data), 97), len(data) - 1]:
        bad.write_bytes(data[:n])
        fails()
    changed(lambda f: f.tensors.pop("abs_mean"))
    fails("abs_mean")
    for dims in ([4, 4, 2], [8, 2, 2], [8, 4, 1], [64], [1 << 20, 1, 1]):
        size = 4 * int(dims[0]) * (dims[1] * dims[2] if len(dims) > 1 else 1)
        changed(lambda f: f.tensors.update(centre_imag=(dims, 0, bytes(size))))
        fails("centre_imag", "2 layers, 4 heads")
    changed(lambda f: f.tensors.update(centre_real=(f.tensors["centre_real"][0], 1, f.tensors["centre_real"][2][::2])))
    fails("centre_real", "F32")
    changed(lambda f: f.tensors.update(centre_real=(*f.tensors["centre_real"][:2], b"\xff" * len(f.tensors["centre_real"][2]))))
    fails("centre_real", "no number")
    changed(lambda f: f.put("butler-centres.model_xxh3", STRING, b"0123456789abcdef"))
    fails("0123456789abcdef", "butler calibrate", status=USAGE)
    other = refuses(USAGE, "run", "-m", MODELS / "llama-mha.gguf", "--predictor", good, *RUN, says=["fingerprint", "butler calibrate"])
    assert "m.centres.gguf" in other.stderr
    refuses(USAGE, "run", "-m", GQA, "--predictor", good, "--predictor", good, *RUN, says=["already"])
    refuses(FAILED, "info", good, says=["query centres"])
