"""The command with a predictor: named, beside the model, for another model, missing."""
import shutil
import struct

import pytest

from cli import DONE, FAILED, GPT2, GQA, PROMPT, ROOT, SMOLLM2, USAGE, butler, refuses, rows
from gguf_file import ARRAY, F32, U32, Gguf
from predictor_reference import fingerprint_of, write_random

POLICY = "tokenbutler2:budget=16,on_top=0,sinks=2,recent=2"


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    """The file, and the number of its parameters."""
    folder = tmp_path_factory.mktemp("predictor")
    return folder / "p.gguf", write_random(folder / "p.gguf", GQA, fingerprint_of(GQA, folder), 2)


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


@pytest.mark.parametrize("value,says", [((ARRAY, (F32, [1.0] * 3)), "4 float32"), ((ARRAY, (U32, [1] * 4)), "4 float32"), ((F32, 1.0), "4 float32"),
                                        ((ARRAY, (F32, [1.0, -1.0, 0.0, 0.0])), "-1 radians"),
                                        ((ARRAY, (F32, [float("nan")] * 4)), "nan radians")])
def test_rotations_that_cannot_be(predictor, tmp_path, value, says):
    file = Gguf(predictor[0])
    file.put("butler-predictor.rope_freq", *value)
    file.write(tmp_path / "bad.gguf")
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--kv", POLICY, "--predictor", tmp_path / "bad.gguf", says=["bad.gguf", "rope_freq", says])


@pytest.mark.parametrize("version,key", [("v1", "rope_length"), ("v2", "rope_freq")])
def test_rotation_is_chosen_in_training(tmp_path, version, key):
    text = tmp_path / "text"
    text.write_text("It was the best of times. " * 40)
    flags = ["train", "-m", GQA, "--data", text, "-o", tmp_path / "p.gguf", "--length", "32", "--steps", "1", "--predictor", version]
    refuses(USAGE, *flags, "--rotate", "slow", says=["--rotate", "fast or published"])
    for rotate, keys in [("fast", 1), ("published", 0)]:
        butler(*flags, "--rotate", rotate, "--begin", "random")
        written = [value for name, value in Gguf(tmp_path / "p.gguf").values.items() if name.endswith("." + key)]
        assert len(written) == keys
        if version == "v1" and keys:
            assert written == [(U32, 32)]
        butler("run", "-m", GQA, "-p", PROMPT, "-n", "3", "--kv", "tokenbutler" + version[1:].replace("1", ""), "--predictor", tmp_path / "p.gguf")


def test_each_head_rotates_in_its_own_way(tmp_path):
    """What is fitted names the frequencies of every KV head; a file with others than can be is refused."""
    text, out = tmp_path / "text", tmp_path / "p.gguf"
    text.write_text("It was the best of times, it was the worst of times. " * 99)
    butler("train", "-m", GQA, "--data", text, "-o", out, "--length", "64", "--steps", "2", "--predictor", "v2")
    file, info = Gguf(out), rows("info", GQA)[0]
    dims, kind, data = file.tensors["rope_freq"]
    d = file.values["butler-predictor.d"][1]
    assert dims == [(info["n_layers"] - 1) * info["n_kv_heads"] * d // 2] and kind == 0
    assert "butler-predictor.rope_freq" not in file.values
    butler("run", "-m", GQA, "-p", PROMPT, "-n", "3", "--kv", POLICY, "--predictor", out)
    file.tensors["rope_freq"] = (dims, kind, struct.pack("<f", float("nan")) + data[4:])
    file.write(tmp_path / "bad.gguf")
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--kv", POLICY, "--predictor", tmp_path / "bad.gguf", says=["bad.gguf", "rope_freq", "nan radians"])


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
    (tmp_path / "m.tokenbutler2.gguf").write_bytes(b"nothing")  # a file that is not needed is not an error
    assert "not used" in butler("run", "-m", model, "-p", PROMPT, "-n", "3", expect=DONE).stderr


def test_a_predictor_alone_changes_no_policy(predictor, tmp_path):
    """Without --kv it is the gate that allows a policy, not the predictor beside the model."""
    model, text = tmp_path / "m.gguf", tmp_path / "text"
    shutil.copy(GQA, model)
    shutil.copy(predictor[0], tmp_path / "m.tokenbutler2.gguf")
    text.write_text("It was the best of times. " * 125)  # 22 tokens each
    for kv, policy in (((), "full"), (("--kv", POLICY), POLICY)):
        found = rows("run", "-m", model, "--temp", "0", "-f", text, "-n", "3", "-c", "3000", *kv)[-1]["stats"]
        assert found["policy"] == policy


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_predictors_of_qwen_rank_tokens(name):
    """The shipped one is for the file that setup makes, and ranks more of the top half right than pages and chance do."""
    model = SMOLLM2.parent / f"{name}.gguf"
    if not model.exists():
        pytest.skip(f"models/{name}.gguf is absent (./setup --model {name})")
    policies = {"tokenbutler2": "tokenbutler2:on_top=0,sinks=4,recent=0", "quest": "quest:dense=1", "random": "random:dense=1"}
    flags = [word for policy in policies.values() for word in ("--kv", policy)]
    found = {row["policy"].split(":")[0]: row["value"] for row in rows(
        "eval", "recall", "-m", model, "--data", ROOT / "models" / "long_text.txt", "--length", "384", "--limit", "1", "--set", "dense=1,steps=2",
        "--budget", "0.25", "--predictor", ROOT / "models" / f"{name}.tokenbutler2.gguf", *flags) if row["metric"] == "top_half_accuracy"}
    assert found["tokenbutler2"] > found["quest"] + 0.02 > found["random"] + 0.05, found


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
