"""The command with a predictor: named, beside the model, for another model, and missing."""
import re
import shutil

import numpy
import pytest

from cli import DONE, FAILED, GPT2, GQA, PROMPT, USAGE, butler, refuses, rows
from gguf_file import F32, STRING, U32, Gguf

POLICY = "tokenbutler2:budget=16,on_top=0,sinks=2,recent=2"


def write_predictor(path, fingerprint):
    """A second-version predictor of random weights for the small model, by the file format alone."""
    info = rows("info", GQA)[0]
    layers, embd, heads, kv_heads, dim = (info[k] for k in ("n_layers", "n_embd", "n_heads", "n_kv_heads", "head_dim"))
    d, mid = 8, 32
    sizes = dict(version=2, input=0, n_layers=layers, n_embd=embd, n_heads=heads, n_kv_heads=kv_heads, head_dim=dim, d=d, n_mid=mid,
                 n_key_heads=kv_heads, stride=4)
    file = Gguf()
    file.values["general.architecture"] = (STRING, b"butler-predictor")
    for key, value in sizes.items():
        file.values[f"butler-predictor.{key}"] = (U32, value)
    file.values["butler-predictor.model_fingerprint"] = (STRING, fingerprint.encode())
    file.values["butler-predictor.training.loss"] = (F32, 0.5)
    random = numpy.random.default_rng(1)
    shapes = {"producer.0.norm.weight": (embd,), "producer.0.norm.bias": (embd,), "producer.0.query_1.weight": (mid, embd),
              "producer.0.query_2.weight": ((layers - 1) * heads * d, mid)}
    shapes.update({f"key.{layer}.weight": (kv_heads * d, dim) for layer in range(1, layers)})
    for name, shape in shapes.items():
        data = random.normal(0, 0.2, shape).astype("<f4")
        file.tensors[name] = (list(reversed(shape)), 0, data.tobytes())
    file.write(path)
    return sum(numpy.prod(shape) for shape in shapes.values())


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    """The file, and how many parameters it has. The command itself says which fingerprint the model has."""
    path = tmp_path_factory.mktemp("predictor") / "p.gguf"
    write_predictor(path, "0123456789abcdef")
    error = refuses(USAGE, "run", "-m", GQA, "-p", PROMPT, "--predictor", path, says=["0123456789abcdef", path]).stderr
    other, = set(re.findall(r"\b[0-9a-f]{16}\b", error)) - {"0123456789abcdef"}
    return path, write_predictor(path, other)


def test_run(predictor):
    path, _ = predictor
    last = rows("run", "-m", GQA, "-p", PROMPT, "-n", "20", "--temp", "0", "--kv", POLICY, "--predictor", path)[-1]
    stats = last["stats"]
    assert stats["predict_s"] > 0 and stats["predict_bytes"] > 0 and stats["metric_memory"] > 0 and stats["kv_read"] < 1
    full = rows("run", "-m", GQA, "-p", PROMPT, "-n", "20", "--temp", "0", "--kv", POLICY.replace("16", "1000"), "--predictor", path)[-1]
    assert full["ids"] == rows("run", "-m", GQA, "-p", PROMPT, "-n", "20", "--temp", "0")[-1]["ids"]
    assert "the predictor took" in butler("run", "-m", GQA, "-p", PROMPT, "-n", "5", "--kv", POLICY, "--predictor", path).stderr


def test_default_is_a_policy(predictor):
    path, _ = predictor
    default, = (row["defaults"] for row in rows("policies") if row["policy"] == "tokenbutler2")
    butler("run", "-m", GQA, "-p", PROMPT, "-n", "3", "--kv", default, "--predictor", path)


def test_bench(predictor):
    path, _ = predictor
    row, = rows("bench", "-m", GQA, "-d", "64", "-n", "4", "--kv", POLICY, "--predictor", path)
    assert row["us_predict"] > 0 and row["predict_bytes"] > 0


def test_info(predictor):
    path, n_params = predictor
    info = rows("info", GQA, "--predictor", path)[0]
    row, = info["predictors"]
    assert row["version"] == 2 and row["n_params"] == n_params and row["file"] == str(path)
    assert row["share"] == pytest.approx(n_params / info["n_params"])
    assert "predictor v2" in butler("info", GQA, "--predictor", path).stdout
    assert rows("info", GQA)[0]["predictors"] == []


def test_beside_the_model(predictor, tmp_path):
    path, _ = predictor
    model = tmp_path / "m.gguf"
    shutil.copy(GQA, model)
    refuses(USAGE, "run", "-m", model, "-p", PROMPT, "--kv", POLICY, says=["butler train", "tokenbutler2.gguf"])
    shutil.copy(path, tmp_path / "m.tokenbutler2.gguf")
    butler("run", "-m", model, "-p", PROMPT, "-n", "3", "--kv", POLICY, expect=DONE)
    (tmp_path / "m.tokenbutler2.gguf").write_bytes(b"nothing")  # what nobody asked for is no error
    assert "not used" in butler("run", "-m", model, "-p", PROMPT, "-n", "3", expect=DONE).stderr


def test_bad_files(predictor, tmp_path):
    path, _ = predictor
    refuses(USAGE, "run", "-m", GPT2, "-p", PROMPT, "--predictor", path, says=["fingerprint"])
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--predictor", GQA, says=["butler-predictor"])
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--predictor", tmp_path / "none", says=["none"])
    refuses(USAGE, "run", "-m", GQA, "-p", PROMPT, "--predictor", path, "--predictor", path, says=["already"])
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:-40])
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--predictor", short, says=["short.gguf"])
    wrong = Gguf(path)
    wrong.values["butler-predictor.d"] = (U32, 6)
    wrong.write(tmp_path / "wrong.gguf")
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--predictor", tmp_path / "wrong.gguf", says=["multiple of 4"])
