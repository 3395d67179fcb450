#!/usr/bin/env python3
"""Records llama.cpp's logits of models with one optional tensor more or less, for test_optional_tensors.py.

    python3 -m venv V && V/bin/pip install xllamacpp llama_cpp_py_sync cffi numpy gguf pyyaml pytest
    V/bin/python tools/record_optional_tensors.py

A variant that llama.cpp refuses is left out; so is one whose logits hardly differ from the model's."""
import importlib.metadata
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import test_architectures  # noqa: E402
from gguf_file import Gguf  # noqa: E402
from optional_tensors import variants  # noqa: E402
from record_pretokenizers import llama_cpp  # noqa: E402

OUT = ROOT / "tests" / "data" / "optional_tensors.json"
N_IDS, N_TOKENS = 20, 12  # fewer than any window: what llama.cpp makes of windows does not belong here
F32 = 0  # enum ggml_type


def logits(path):
    """After the last token, or None where llama.cpp does not load the file."""
    ffi, library = llama_cpp()
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    model = library.llama_model_load_from_file(str(path).encode(), params)
    if model == ffi.NULL:
        return None
    params = library.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = F32
    context = library.llama_init_from_model(model, params)
    ids = ffi.new("llama_token[]", test_architectures.IDS[:N_IDS])
    if context == ffi.NULL or library.llama_decode(context, library.llama_batch_get_one(ids, N_IDS)):
        return None
    n = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    return np.frombuffer(ffi.buffer(library.llama_get_logits_ith(context, -1), 4 * n), np.float32).copy()


def in_child(path):
    """llama.cpp ends the process where it finds a fault late."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply_async(logits, [path]).get(90)
        except multiprocessing.TimeoutError:
            return None


def main():
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in test_architectures.CASES:
            base = test_architectures.convert(name, folder)
            plain = in_child(base)
            if plain is None:
                print(f"{name}: llama.cpp does not load the model")
                continue
            tokens = list(range(0, len(plain), max(1, len(plain) // N_TOKENS)))[:N_TOKENS]
            for variant, gguf in variants(Gguf(base)):
                gguf.write(folder / "variant.gguf")
                found = in_child(folder / "variant.gguf")
                if found is not None and (variant == "fuse" or np.abs(found - plain).max() > 0.01 * np.abs(plain).max()):
                    cases.setdefault(name, {})[variant] = [round(float(found[t]), 4) for t in tokens]
    versions = {name: importlib.metadata.version(name) for name in ("xllamacpp", "llama_cpp_py_sync")}
    OUT.write_text(json.dumps({"versions": versions, "n_ids": N_IDS, "tokens": tokens, "cases": cases}, indent=0) + "\n")


if __name__ == "__main__":
    main()
