"""tools/convert/convert_hf.py on tiny folders: types, several files, tokenizers, other spellings of configurations, and what is refused.
test_architectures.py runs what it writes."""
import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from arch_folder import make_folder, names_and_shapes, weight
from cli import FAILED, ROOT, needs_gguf, python_tool, rows
from gguf_file import Gguf
from hf_folder import write_safetensors

pytestmark = needs_gguf
CASES = json.loads((ROOT / "tests" / "data" / "architectures.json").read_text())["cases"]
F32, F16, Q8_0, BF16, MXFP4 = 0, 1, 8, 30, 39
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def change_json(path, **values):
    data = json.loads(path.read_text()) if path.exists() else {}
    data.update(values)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def convert(folder, *flags):
    out = folder.with_suffix(".gguf")
    python_tool("convert/convert_hf.py", folder, "-o", out, "--type", "f32", *flags)
    return out


def model(folder, *flags):
    file = Gguf(convert(folder, *flags))
    return {k: v[1].decode() if isinstance(v[1], bytes) else v[1][1] if isinstance(v[1], tuple) else v[1] for k, v in file.values.items()}, file


def refused(folder, *says):
    out = folder.with_suffix(".gguf")
    out.write_text("as it was")
    result = python_tool("convert/convert_hf.py", folder, "-o", out, expect=FAILED)
    for word in says:
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert out.read_text() == "as it was" and [p.name for p in folder.parent.glob(".*.gguf*")] == []


@pytest.fixture
def llama(tmp_path):
    make_folder(tmp_path / "llama", CASES["llama"])
    return tmp_path / "llama"


def weights(case):
    return {n: np.float32(weight(n, s, case)) for n, s in names_and_shapes(case)}


# ---------------------------------------------------------------------------------------- weights and files

@pytest.mark.parametrize("kind, number, share", [("f32", F32, 0), ("f16", F16, 5e-4), ("bf16", BF16, 4e-3), ("q8_0", Q8_0, 5e-3)])
def test_types(llama, kind, number, share):
    """Matrices in the type, vectors in F32; the values are those of the folder."""
    file = Gguf(convert(llama, "--type", kind))
    want = weights(CASES["llama"])["model.layers.1.mlp.down_proj.weight"]
    dims, found, data = file.tensors["blk.1.ffn_down.weight"]
    assert (dims, found) == ([96, 64], number)
    if kind == "q8_0":
        blocks = np.frombuffer(data, np.dtype([("d", "<f2"), ("q", "i1", 32)]))
        got = blocks["d"][:, None].astype(np.float32) * blocks["q"]
    elif kind == "bf16":
        got = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        got = np.frombuffer(data, {"f32": "<f4", "f16": "<f2"}[kind]).astype(np.float32)
    assert np.abs(got.reshape(64, 96) - want).max() <= share * np.abs(want).max()
    assert file.tensors["blk.1.ffn_norm.weight"][1] == F32 and file.tensors["token_embd.weight"][1] == number


def test_rows_that_do_not_divide_into_blocks(tmp_path):
    make_folder(tmp_path / "gpt2", CASES["gpt2"])
    file = Gguf(convert(tmp_path / "gpt2", "--type", "q8_0"))
    assert file.tensors["blk.0.attn_qkv.weight"][:2] == ([48, 144], F16) and file.tensors["blk.0.ffn_down.weight"][:2] == ([192, 48], Q8_0)


def test_several_files(llama):
    whole = convert(llama).read_bytes()
    arrays = weights(CASES["llama"])
    halves = list(arrays)[:7], list(arrays)[7:]
    (llama / "model.safetensors").unlink()
    place = {}
    for i, names in enumerate(halves):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        write_safetensors(llama / file, {n: arrays[n] for n in names})
        place |= {n: file for n in names}
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    assert convert(llama).read_bytes() == whole
    (llama / file).unlink()
    refused(llama, file, "no such file")


def test_bfloat16_weights(llama):
    """A folder in bfloat16 gives the floats that its bits are."""
    arrays = {n: (np.ascontiguousarray(a).view(np.uint32) >> 16).astype("<u2") for n, a in weights(CASES["llama"]).items()}
    header, offset = {}, 0
    for name, bits in arrays.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header).encode()
    (llama / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))
    data = Gguf(convert(llama)).tensors["token_embd.weight"][2]
    want = (arrays["model.embed_tokens.weight"].astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(np.frombuffer(data, "<f4").reshape(want.shape), want)


def test_experts_are_stacked(tmp_path):
    make_folder(tmp_path / "moe", CASES["qwen2moe"])
    values, file = model(tmp_path / "moe")
    want = weights(CASES["qwen2moe"])
    dims, _, data = file.tensors["blk.1.ffn_up_exps.weight"]
    assert dims == [64, 32, 6]
    got = np.frombuffer(data, "<f4").reshape(6, 32, 64)
    for e in range(6):
        assert np.array_equal(got[e], want[f"model.layers.1.mlp.experts.{e}.up_proj.weight"])
    assert file.tensors["blk.0.ffn_gate_inp_shexp.weight"][0] == [64]
    assert (values["qwen2moe.expert_count"], values["qwen2moe.expert_used_count"], values["qwen2moe.expert_feed_forward_length"],
            values["qwen2moe.expert_shared_feed_forward_length"]) == (6, 2, 32, 64)


def test_opt_projections_are_multiplied_in(tmp_path):
    make_folder(tmp_path / "opt", CASES["opt-350m"])
    values, file = model(tmp_path / "opt")
    w = {n.removeprefix("model.decoder."): a for n, a in weights(CASES["opt-350m"]).items()}
    tensor = lambda name: np.frombuffer(file.tensors[name][2], "<f4").reshape(file.tensors[name][0][::-1])
    assert np.allclose(tensor("token_embd.weight"), w["embed_tokens.weight"] @ w["project_in.weight"].T, atol=1e-5)
    assert np.allclose(tensor("output.weight"), w["embed_tokens.weight"] @ w["project_out.weight"], atol=1e-5)
    assert np.array_equal(tensor("position_embd.weight"), w["embed_positions.weight"][2:])
    assert values["opt.layer_norm_before"] is False


def test_mxfp4_stays(tmp_path):
    """gpt-oss as published: the values of GGUF's blocks, decoded here, are those of the folder's."""
    case = CASES["gpt-oss"]
    make_folder(tmp_path / "oss", case)
    rng, table = np.random.default_rng(5), np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    blocks, scales = rng.integers(0, 256, (4, 192, 2, 16), np.uint8), rng.integers(118, 130, (4, 192, 2), np.uint8)
    arrays = weights(case)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    del arrays[name]
    write_mixed(tmp_path / "oss" / "model.safetensors", arrays, {name + "_blocks": blocks, name + "_scales": scales})
    values = np.empty((4, 192, 2, 32))
    values[..., 0::2], values[..., 1::2] = table[blocks & 15], table[blocks >> 4]
    want = (values * 2.0 ** (scales[..., None].astype(int) - 127)).reshape(4, 192, 64)
    python_tool("convert/convert_hf.py", tmp_path / "oss", "-o", tmp_path / "oss.gguf")
    import gguf
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "oss.gguf").tensors}
    for part, first in (("gate", 0), ("up", 1)):
        tensor = found[f"blk.0.ffn_{part}_exps.weight"]
        assert tensor.tensor_type == MXFP4 and list(tensor.shape) == [64, 96, 4]
        data = np.array(tensor.data).reshape(4, 96, 2, 17)
        got = np.concatenate([table[data[..., 1:] & 15], table[data[..., 1:] >> 4]], -1) * 2.0 ** (data[..., :1].astype(int) - 127)
        assert np.array_equal(got.reshape(4, 96, 64), want[:, first::2])


def write_mixed(path, arrays, bytes_by_name):
    """A safetensors file of float32 and of byte tensors."""
    header, offset, every = {}, 0, {**{n: np.float32(a) for n, a in arrays.items()}, **bytes_by_name}
    for name, array in every.items():
        kind = "U8" if array.dtype == np.uint8 else "F32"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(a).tobytes() for a in every.values()))


# ------------------------------------------------------------------------------------- configurations

def test_older_spellings(tmp_path, llama):
    new = convert(llama).read_bytes()
    rope = CASES["llama"]["config"]["rope_parameters"]
    change_json(llama / "config.json", rope_parameters=..., rope_theta=rope["rope_theta"],
                rope_scaling={"type": "llama3", **{k: v for k, v in rope.items() if k not in ("rope_type", "rope_theta")}})
    assert convert(llama).read_bytes() == new
    make_folder(tmp_path / "gemma3", CASES["gemma3"])
    new = convert(tmp_path / "gemma3").read_bytes()
    change_json(tmp_path / "gemma3" / "config.json", rope_parameters=..., layer_types=..., sliding_window_pattern=6, rope_theta=1e6,
                rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert convert(tmp_path / "gemma3").read_bytes() == new


def test_text_part_of_a_model_that_sees(tmp_path):
    make_folder(tmp_path / "m", CASES["gemma3"])
    text = convert(tmp_path / "m").read_bytes()
    config = {k: v for k, v in CASES["gemma3"]["config"].items() if k != "rms_norm_eps"}  # its default
    (tmp_path / "m" / "config.json").write_text(json.dumps({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config, "vision_config": {}}))
    arrays = {"language_model." + n: a for n, a in weights(CASES["gemma3"]).items()}
    write_safetensors(tmp_path / "m" / "model.safetensors", {**arrays, "vision_tower.x.weight": np.ones((2, 2)),
                                                              "multi_modal_projector.norm.weight": np.ones(3)})
    assert convert(tmp_path / "m").read_bytes() == text


def test_windows(tmp_path):
    """The pattern is written where engines do not know it."""
    for name, window, pattern in (("mistral", 24, None), ("gemma2", 24, None), ("exaone4", 24, [1, 1, 1, 0, 1]), ("qwen2", None, None)):
        make_folder(tmp_path / name, CASES[name])
        values, _ = model(tmp_path / name)
        arch = values["general.architecture"]
        assert values.get(f"{arch}.attention.sliding_window") == window
        assert values.get(f"{arch}.attention.sliding_window_pattern") == pattern
    change_json(tmp_path / "qwen2" / "config.json", layer_types=..., use_sliding_window=True, sliding_window=24, max_window_layers=1)
    assert model(tmp_path / "qwen2")[0]["qwen2.attention.sliding_window_pattern"] == [0, 1]
    change_json(tmp_path / "gemma2" / "config.json", layer_types=["full_attention"] + ["sliding_attention"] * 3)
    assert model(tmp_path / "gemma2")[0]["gemma2.attention.sliding_window_pattern"] == [0, 1, 1, 1]


@pytest.mark.parametrize("name, change, says", [
    ("llama", dict(architectures=["MambaForCausalLM"]), "'MambaForCausalLM' is none of LlamaForCausalLM"),
    ("llama", dict(architectures=...), "no architectures"),
    ("llama", dict(hidden_act="gelu"), "activation 'gelu'"),
    ("llama", dict(num_hidden_layers=...), "'num_hidden_layers' is missing"),
    ("llama", dict(num_hidden_layers="2"), "'num_hidden_layers' is '2'; expected a whole number above 0"),
    ("llama", dict(num_key_value_heads=-1), "'num_key_value_heads' is -1"),
    ("llama", dict(num_hidden_layers=1), "'model.layers.1."),
    ("llama", dict(num_hidden_layers=3), "layer 2 has no tensor"),
    ("llama", dict(rope_parameters={"rope_type": "ntk", "factor": 2.0}), "rope scaling 'ntk'"),
    ("llama", dict(rope_parameters={"rope_type": "linear"}), "'linear' without 'factor'"),
    ("smollm3", dict(no_rope_layers=[1, 0, 1, 1, 1]), "no_rope_layers"),
    ("qwen3moe", dict(norm_topk_prob=False), "'norm_topk_prob' is False"),
    ("gemma3", dict(use_bidirectional_attention=True), "'use_bidirectional_attention' is True"),
    ("mixtral", dict(num_local_experts=5), "4 experts"),
    ("gemma3", dict(layer_types=["full_attention"]), "1 entries for 7 layers"),
])
def test_refused_configurations(tmp_path, name, change, says):
    make_folder(tmp_path / name, CASES[name])
    change_json(tmp_path / name / "config.json", **change)
    refused(tmp_path / name, says)


def test_refused_files(llama):
    path, arrays = llama / "model.safetensors", weights(CASES["llama"])
    data = path.read_bytes()
    for n, says in ((4, "truncated"), (200, "truncated"), (len(data) - 1, "truncated: tensor 'model.norm.weight'")):
        path.write_bytes(data[:n])
        refused(llama, str(path), says)
    path.write_bytes(struct.pack("<Q", 20) + b"x" * 100)
    refused(llama, "not JSON")
    path.write_bytes(data.replace(b'"F32"', b'"F33"', 1))
    refused(llama, "type F33")
    write_safetensors(path, {**arrays, "model.layers.0.mamba.weight": np.ones(3)})
    refused(llama, "'model.layers.0.mamba.weight' [3] has no place in GGUF's llama")
    write_safetensors(path, {n: a for n, a in arrays.items() if n != "lm_head.weight"})
    refused(llama, "lm_head.weight")
    write_safetensors(path, {**arrays, "model.norm.weight": np.full(64, np.nan)})
    refused(llama, "output_norm.weight", "NaN")
    path.unlink()
    refused(llama, "no *.safetensors")
    (llama / "config.json").unlink()
    refused(llama, "config.json: no such file")


# ------------------------------------------------------------------------------------------ tokenizers

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                                                  {**BYTE_LEVEL, "use_regex": False}]}


@pytest.mark.parametrize("shape, whole, name", [
    (BYTE_LEVEL, False, "gpt-2"),
    ({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "use_regex": True}]}, False, "smollm"),
    (split(LLAMA3), True, "llama-bpe"),
    (split(LLAMA3), False, "dbrx"),
    (split(LLAMA3.replace("{1,3}", "")), False, "qwen2"),
])
def test_pre_tokenizers(llama, shape, whole, name):
    data = json.loads((llama / "tokenizer.json").read_text())
    change_json(llama / "tokenizer.json", pre_tokenizer=shape, model={**data["model"], "ignore_merges": whole})
    assert model(llama)[0]["tokenizer.ggml.pre"] == name


@pytest.mark.parametrize("shape", [None, {"type": "Whitespace"}, split(r"\w+"), {**BYTE_LEVEL, "add_prefix_space": True}])
def test_unknown_pre_tokenizer(llama, shape):
    change_json(llama / "tokenizer.json", pre_tokenizer=shape)
    refused(llama, "tokenizer.json", "--pre")
    assert model(llama, "--pre", "gpt-2")[0]["tokenizer.ggml.pre"] == "gpt-2"


def test_special_tokens(llama):
    data = json.loads((llama / "tokenizer.json").read_text())
    vocab = {t: i for t, i in data["model"]["vocab"].items() if i < 90}
    change_json(llama / "tokenizer.json", added_tokens=[{"id": 91, "content": "<s>", "special": True}, {"id": 92, "content": "</s>", "special": True},
                                                        {"id": 93, "content": "<tool>", "special": False}],
                model={"type": "BPE", "vocab": vocab, "merges": ["a b", "a c"]},
                post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]})
    change_json(llama / "tokenizer_config.json", bos_token="<s>", eos_token={"content": "</s>"}, chat_template="{{ messages }}")
    change_json(llama / "generation_config.json", eos_token_id=[92, 93, 151329])
    values, _ = model(llama)
    types, tokens = values["tokenizer.ggml.token_type"], values["tokenizer.ggml.tokens"]
    assert types == [NORMAL] * 90 + [UNUSED, CONTROL, CONTROL, USER_DEFINED, UNUSED, UNUSED]
    assert len(set(tokens)) == 96 and tokens[91:94] == [b"<s>", b"</s>", b"<tool>"]
    assert values["tokenizer.ggml.merges"] == [b"a b", b"a c"]
    assert [values[f"tokenizer.ggml.{k}_token_id"] for k in ("bos", "eos", "eot")] == [91, 92, 93]
    assert (values["tokenizer.ggml.add_bos_token"], values["tokenizer.ggml.add_eos_token"]) == (True, False)
    assert values["tokenizer.chat_template"] == "{{ messages }}"
    change_json(llama / "tokenizer_config.json", add_bos_token=False, chat_template=[{"name": "tool_use", "template": "x"},
                                                                                     {"name": "default", "template": "y"}])
    values, _ = model(llama)
    assert values["tokenizer.ggml.add_bos_token"] is False and values["tokenizer.chat_template"] == "y"
    (llama / "chat_template.jinja").write_text("z")
    assert model(llama)[0]["tokenizer.chat_template"] == "z"


def message(*fields):
    """A protobuf message of (number, value): bytes, int or float."""
    out = b""
    for number, value in fields:
        if isinstance(value, bytes):
            out += bytes([number << 3 | 2]) + varint(len(value)) + value
        else:
            out += bytes([number << 3 | (5 if isinstance(value, float) else 0)])
            out += struct.pack("<f", value) if isinstance(value, float) else varint(value)
    return out


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


SPM = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<0x0A>", 0.0, BYTE), ("ab", -1.0, NORMAL), ("\u2581ab", -2.0, NORMAL),
       ("bc", -0.5, NORMAL), ("\u2581", -9.0, NORMAL), ("a", -10.0, NORMAL), ("b", -11.0, NORMAL), ("c", -12.0, NORMAL)]


def test_sentencepiece(llama):
    pieces = [(1, message((1, text.encode()), (2, score), *([(3, kind)] if kind != NORMAL else []))) for text, score, kind in SPM]
    data = message(*pieces, (2, message((3, 2), (4, 96))), (3, message((1, b"identity"), (3, 0))))
    (llama / "tokenizer.model").write_bytes(data)
    change_json(llama / "tokenizer_config.json", bos_token="<s>", eos_token="</s>", added_tokens_decoder={
        "0": {"content": "<unk>", "special": True}, "2": {"content": "</s>", "special": True}, "12": {"content": "<x>", "special": False}})
    values, _ = model(llama)
    get = lambda key: values["tokenizer.ggml." + key]
    assert (get("model"), get("bos_token_id"), get("eos_token_id"), get("add_bos_token")) == ("llama", 1, 2, True)
    assert get("tokens")[:11] == [t.encode() for t, _, _ in SPM] and get("tokens")[12] == b"<x>"
    assert get("token_type") == [k for _, _, k in SPM] + [UNUSED, USER_DEFINED] + [UNUSED] * 83
    assert get("scores")[:11] == [s for _, s, _ in SPM] and get("add_space_prefix") is False
    assert rows("tokenize", "-m", llama.with_suffix(".gguf"), "-p", "abc ab\n")[0]["ids"] == [1, 8, 6, 5, 3]
    (llama / "tokenizer.model").write_bytes(message(*pieces, (2, message((3, 1), (4, 96)))))
    refused(llama, "tokenizer.model", "unigram")
    (llama / "tokenizer.model").write_bytes(data[:-3])
    refused(llama, "tokenizer.model", "truncated")


def test_sentencepiece_as_merges(llama):
    """tokenizer.json of a SentencePiece model: its merges give the scores."""
    vocab = {text: i for i, (text, _, _) in enumerate(SPM)}
    change_json(llama / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]},
                model={"type": "BPE", "vocab": vocab, "merges": ["b c", "a b", "\u2581 ab"], "byte_fallback": True, "unk_token": "<unk>"},
                added_tokens=[{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}])
    change_json(llama / "tokenizer_config.json", bos_token="<s>", unk_token="<unk>", add_bos_token=True)
    values, _ = model(llama)
    assert values["tokenizer.ggml.model"] == "llama" and values["tokenizer.ggml.token_type"][:5] == [UNKNOWN, CONTROL, NORMAL, BYTE, NORMAL]
    assert values["tokenizer.ggml.add_space_prefix"] is True
    assert rows("tokenize", "-m", llama.with_suffix(".gguf"), "-p", "abc ab\n")[0]["ids"] == [1, 7, 8, 6, 5, 3]


def test_vocab_and_merges(llama):
    """The files of GPT-2 and OPT give what a tokenizer.json of the same content gives."""
    data = json.loads((llama / "tokenizer.json").read_text())
    vocab = {**data["model"]["vocab"], "</s>": data["model"]["vocab"].pop("}}")}
    del vocab["}}"]
    change_json(llama / "tokenizer_config.json", bos_token="</s>", add_bos_token=True)
    change_json(llama / "tokenizer.json", model={"type": "BPE", "vocab": vocab, "merges": ["a b"]},
                added_tokens=[{"id": 95, "content": "</s>", "special": True}])
    whole = convert(llama).read_bytes()
    (llama / "tokenizer.json").unlink()
    (llama / "vocab.json").write_text(json.dumps(vocab))
    (llama / "merges.txt").write_text("#version: 0.2\na b\n")
    assert convert(llama).read_bytes() == whole


def test_vocab_and_merges_of_another_class(llama):
    """The class says how texts are cut; every place that names special tokens counts, so that no user's text spells one."""
    data = json.loads((llama / "tokenizer.json").read_text())
    vocab = {text: i for text, i in data["model"]["vocab"].items() if i < 93}
    (llama / "tokenizer.json").unlink()
    (llama / "vocab.json").write_text(json.dumps(vocab))
    (llama / "merges.txt").write_text("#version: 0.2\na b\n")
    (llama / "added_tokens.json").write_text(json.dumps({"<|im_start|>": 93, "<plain>": 94}))
    (llama / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<|im_start|>"]}))
    change_json(llama / "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer", bos_token=None, added_tokens_decoder={"95": {"content": "<|im_end|>", "special": True}})
    values, _ = model(llama)
    assert values["tokenizer.ggml.pre"] == "qwen2" and values["tokenizer.ggml.token_type"][93:] == [CONTROL, USER_DEFINED, CONTROL]
    change_json(llama / "tokenizer_config.json", tokenizer_class="OtherTokenizer")
    refused(llama, "OtherTokenizer", "--pre")


def test_added_token_without_a_row(llama):
    change_json(llama / "tokenizer.json", added_tokens=[{"id": 96, "content": "<image>", "special": True}])
    out = llama.with_suffix(".gguf")
    result = python_tool("convert/convert_hf.py", llama, "-o", out)
    assert "1 added tokens from id 96 are left out: the embedding has 96 rows" in result.stderr
    assert len(Gguf(out).values["tokenizer.ggml.tokens"][1][1]) == 96


def test_refused_tokenizers(llama):
    change_json(llama / "tokenizer.json", model={"type": "WordPiece", "vocab": {}})
    refused(llama, "tokenizer.json", "WordPiece")
    change_json(llama / "tokenizer.json", model={"type": "BPE", "vocab": {"a": 96}, "merges": []})
    refused(llama, "token id 96, the embedding has 96 rows")
    change_json(llama / "tokenizer.json", model={"type": "BPE", "vocab": ["a"], "merges": []})
    refused(llama, "not as published ones are")
    (llama / "tokenizer.json").unlink()
    refused(llama, "no tokenizer.json, no tokenizer.model")


# ------------------------------------------------------------------------------------------- PyTorch's files

class FakeStorage:
    def __init__(self, key, n):
        self.key, self.n = key, n


class FakeTensor:
    def __init__(self, storage, shape, stride):
        self.state = (storage, 0, shape, stride, False, collections.OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.state


def write_bin(path, arrays, monkeypatch):
    """A state dict as torch.save writes it, with the storages of `arrays`; matrices as a transposed view."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch"})
    exec("def _rebuild_tensor_v2(*args): pass", utils.__dict__)
    utils._rebuild_tensor_v2.__module__ = "torch._utils"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    state, data = collections.OrderedDict(), {}
    for i, (name, array) in enumerate(arrays.items()):
        stored = np.ascontiguousarray(array.T)
        data[str(i)] = stored.astype("<f4").tobytes()
        stride = tuple(s // 4 for s in stored.T.strides)
        state[name] = FakeTensor(FakeStorage(str(i), array.size), array.shape, stride)
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 2)
    pickler.persistent_id = lambda o: ("storage", torch.FloatStorage, o.key, "cpu", o.n) if isinstance(o, FakeStorage) else None
    pickler.dump(state)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", out.getvalue())
        for key, content in data.items():
            archive.writestr(f"archive/data/{key}", content)


def test_pytorch_files(llama, monkeypatch):
    whole = convert(llama).read_bytes()
    (llama / "model.safetensors").unlink()
    arrays = weights(CASES["llama"])
    path = llama / "pytorch_model.bin"
    write_bin(path, arrays, monkeypatch)
    assert convert(llama).read_bytes() == whole
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    refused(llama, str(path), "truncated")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(print, 2))
    refused(llama, str(path), "it asks for __builtin__.print")
    write_bin(path, arrays, monkeypatch)
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:-4] if name.endswith("data/0") else content)
    refused(llama, str(path), "does not fit in its storage")
