"""Reads a Hugging Face folder: its JSON files and the tensors of its safetensors files. For tools/convert/convert_hf.py.

A safetensors file is an 8-byte length, a JSON header of that length (name -> dtype, shape, data_offsets) and the data. It is read
here and not by the safetensors package because numpy, to which that package gives tensors, has no bfloat16."""
import json
import math
import struct
from pathlib import Path

import numpy as np

from hf_base import DTYPES, Failure, Tensor, widen
from hf_torch import read_bin

MAX_HEADER = 100_000_000


def read_json(path, optional=False):
    if not path.exists():
        if optional:
            return None
        raise Failure(f"{path}: no such file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error


def read_data(path, dtype, shape, offset):
    size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    return widen(np.fromfile(path, np.uint8, size, offset=offset), dtype).reshape(shape)


def read_header(path):
    """name -> Tensor of one safetensors file; every offset lies inside the file."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1
        if length > min(MAX_HEADER, size - 8):
            raise Failure(f"{path}: truncated, or not a safetensors file: its header does not fit in {size} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise Failure(f"{path}: its header is not JSON: {error}") from error
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (first, end) = entry["dtype"], tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise Failure(f"{path}: tensor '{name}': its entry in the header is incomplete") from error
        if dtype not in DTYPES:
            raise Failure(f"{path}: tensor '{name}': type {dtype}; expected one of {', '.join(DTYPES)}")
        if end - first != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize or first < 0 or min(shape, default=0) < 0:
            raise Failure(f"{path}: tensor '{name}': bytes {first} to {end} do not hold the shape {list(shape)}")
        if 8 + length + end > size:
            raise Failure(f"{path}: truncated: tensor '{name}' ends at byte {8 + length + end}, the file has {size}")
        tensors[name] = Tensor(shape, lambda d=dtype, s=shape, o=8 + length + first: read_data(path, d, s, o))
    return tensors


def read_tensors(folder):
    """name -> Tensor of all safetensors files, or where there is none, of PyTorch's: those of the index, or every one."""
    index_path = next((p for p in (folder / "model.safetensors.index.json", folder / "pytorch_model.bin.index.json") if p.exists()), None)
    index = read_json(index_path) if index_path else None
    if index is None:
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        if not files:
            raise Failure(f"{folder}: no *.safetensors file in it, and no pytorch_model.bin")
    else:
        if not isinstance(index.get("weight_map"), dict):
            raise Failure(f"{index_path}: no weight_map in it")
        files = sorted({folder / name for name in index["weight_map"].values()})
    tensors = {}
    for path in files:
        if not path.exists():
            raise Failure(f"{path}: no such file, {index_path.name} names it")
        tensors |= read_bin(path) if path.suffix == ".bin" else read_header(path)
    missing = sorted(set(index["weight_map"]) - set(tensors)) if index else []
    if missing:
        raise Failure(f"{index_path}: tensor '{missing[0]}' is in none of its files")
    return tensors


def read_config(folder):
    """config.json; of a model with several parts, its text_config with the architectures of the whole."""
    if not Path(folder).is_dir():
        raise Failure(f"{folder}: not a folder")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not config.get("architectures"):
        raise Failure(f"{folder / 'config.json'}: no architectures in it")
    if isinstance(config.get("text_config"), dict):
        config = {**config, **{k: v for k, v in config["text_config"].items() if k != "architectures"}}
    return config


def write_safetensors(path, arrays):
    """arrays: name -> float32 array. The inverse of read_header, for tests."""
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + 4 * array.size]}
        offset += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").tobytes())
