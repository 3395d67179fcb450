"""Reads a Hugging Face folder: its JSON files and the tensors of its safetensors files. For tools/convert_hf.py.

A safetensors file is an 8-byte length, a JSON header of that length (name -> dtype, shape, data_offsets) and the data. It is read
here and not by the safetensors package because numpy, to which that package gives tensors, has no bfloat16."""
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1"}
MAX_HEADER = 100_000_000


class Failure(Exception):
    """What the person who runs the converter has to know; the message names the file and what is wrong in it."""


@dataclass
class Tensor:
    """shape: rows first, as in PyTorch. read() gives float32 of that shape, or uint8 where the file stores bytes.
    mxfp4: the bytes are rows of GGUF's type MXFP4."""
    shape: tuple
    read: Callable[[], np.ndarray]
    mxfp4: bool = False


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
    data = np.fromfile(path, dtype=DTYPES[dtype], count=math.prod(shape), offset=offset).reshape(shape)
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data if dtype == "U8" else data.astype(np.float32)


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
    """name -> Tensor of all safetensors files: those of the index, or else every one there is."""
    index = read_json(folder / "model.safetensors.index.json", optional=True)
    if index is None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise Failure(f"{folder}: no *.safetensors file in it")
    else:
        if not isinstance(index.get("weight_map"), dict):
            raise Failure(f"{folder / 'model.safetensors.index.json'}: no weight_map in it")
        files = sorted({folder / name for name in index["weight_map"].values()})
    tensors = {}
    for path in files:
        if not path.exists():
            raise Failure(f"{path}: no such file, model.safetensors.index.json names it")
        tensors |= read_header(path)
    missing = sorted(set(index["weight_map"]) - set(tensors)) if index else []
    if missing:
        raise Failure(f"{folder / 'model.safetensors.index.json'}: tensor '{missing[0]}' is in none of its files")
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
