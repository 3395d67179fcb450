"""Makes the Hugging Face folders of tests/data/architectures.json: weights follow from the names and shapes of tensors, so that the
file holds none. Used by test_architectures.py, and by tools/fixtures/make_arch_fixtures.py for PyTorch's answer."""
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np

TOOLS = Path(__file__).resolve().parent.parent / "tools" / "convert"
sys.path.insert(0, str(TOOLS))
from hf_folder import write_safetensors  # noqa: E402


def weight(name, shape, case):
    """Scaled so that activations are of order 1, attention is not uniform, no norm is 1 and no bias 0."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(shape)
    if name.endswith("bias"):
        return 0.2 * x
    if re.search(r"norm|ln_", name):
        return 0.1 * x + (0 if case["config"]["model_type"].startswith("gemma") else 1)
    if name.endswith("sinks"):
        return x
    if re.search(r"embed|wte|wpe", name) and "embed_out" not in name:
        return x * case.get("embedding_scale", 0.5)
    transposed = re.search(r"\.(c_attn|c_proj|c_fc)\.weight$|experts\.\w+_proj$", name) and "starcoder2" not in case["config"]["model_type"]
    return 1.3 * x / np.sqrt(shape[-2 if transposed else -1])


def names_and_shapes(case):
    """tensors of the case: name -> shape; * stands for every layer, and ** for every expert."""
    layers = case["config"].get("num_hidden_layers") or case["config"]["n_layer"]
    experts = case["config"].get("num_local_experts") or case["config"].get("num_experts") or 0
    for name, shape in case["tensors"].items():
        for layer in range(layers if "*." in name else 1):
            for expert in range(experts if ".**." in name else 1):
                yield name.replace(".**.", f".{expert}.").replace(".*.", f".{layer}."), tuple(shape)


def token_texts(n_vocab):
    """Single characters, the end of a line, and one token of two characters."""
    return [chr(0x20 + i) for i in range(n_vocab - 2)] + ["\n", "}}"]


def write_tokenizer(folder, n_vocab):
    vocab = {text.replace(" ", "\u0120").replace("\n", "\u010a"): i for i, text in enumerate(token_texts(n_vocab))}
    data = {"added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["}", "}"]]}}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text("{}")


def text_of(ids, n_vocab):
    return "".join(token_texts(n_vocab)[i] for i in ids)


def make_folder(folder, case):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    write_safetensors(folder / "model.safetensors", {n: weight(n, s, case) for n, s in names_and_shapes(case)})
    write_tokenizer(folder, case["config"]["vocab_size"])
