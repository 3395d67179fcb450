#!/usr/bin/env python3
"""Records what llama.cpp makes of the texts of tests/hard_texts.py with every pre-tokenizer that butler has, for test_pretokenizers.py.

    python3 -m venv V && V/bin/pip install xllamacpp llama_cpp_py_sync cffi numpy pytest
    V/bin/python tools/record_pretokenizers.py            compares with the stored digests; --write stores them
"""
import argparse
import glob
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import hard_texts
import test_pretokenizers

STORED = ROOT / "tests" / "data" / "pretokenizers.json"


def llama_cpp():
    """The C API of the wheels: one has the library, the other its declarations."""
    import xllamacpp
    from llama_cpp_py_sync import _cffi_bindings

    ffi = _cffi_bindings.get_ffi()
    library = ffi.dlopen(glob.glob(str(Path(xllamacpp.__file__).parent / "xllamacpp*.so"))[0])
    llama_cpp.quiet = ffi.callback("void(int, const char *, void *)", lambda level, text, user: None)
    library.llama_log_set(ffi.cast("ggml_log_callback", llama_cpp.quiet), ffi.NULL)
    library.llama_backend_init()
    return ffi, library


def tokens(ffi, library, path, text):
    params = library.llama_model_default_params()
    params.vocab_only, params.n_gpu_layers = True, 0
    model = library.llama_model_load_from_file(path.encode(), params)
    if model == ffi.NULL:
        sys.exit(f"{path}: llama.cpp does not load it")
    room = len(text) + 16
    ids = ffi.new("llama_token[]", room)
    n = library.llama_tokenize(library.llama_model_get_vocab(model), text, len(text), ids, room, True, True)
    out = list(ids[0:n])
    library.llama_model_free(model)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    ffi, library = llama_cpp()
    texts = hard_texts.hard_texts()
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in test_pretokenizers.NAMES:
            path = test_pretokenizers.vocabulary(pre).write(f"{folder}/v.gguf", pre)
            digests[pre] = hard_texts.digest(tokens(ffi, library, path, hard_texts.joined(pre, texts)))
    found = {"made_by": f"llama.cpp of xllamacpp {importlib.metadata.version('xllamacpp')}", "digests": digests}
    if args.write:
        STORED.write_text(json.dumps(found, indent=1) + "\n")
    stored = json.loads(STORED.read_text())["digests"]
    different = sorted(pre for pre in digests if digests[pre] != stored.get(pre))
    print(f"{found['made_by']}: {len(digests) - len(different)} of {len(digests)} as stored", *different)
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
