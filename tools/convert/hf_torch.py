"""Reads the tensors of a pytorch_model.bin without PyTorch. For tools/convert/hf_folder.py.

The file is a zip archive: data.pkl, a pickle of names and tensors, and a member data/KEY for each storage. A pickle can call any
function; here it finds only the few names that a state dict needs."""
import collections
import io
import math
import pickle
import zipfile
import zlib

import numpy as np

from hf_base import Failure, Tensor, widen

STORAGES = {"DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "ByteStorage": "U8"}
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1}


class Storage:
    def __init__(self, dtype, key):
        self.dtype, self.key = dtype, key


class Rebuilt:
    """A tensor as the pickle describes it; offset and stride in elements."""

    def __init__(self, storage, offset, size, stride, *more):
        self.storage, self.offset, self.size, self.stride = storage, offset, tuple(size), tuple(stride)


class Loader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Rebuilt
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid):
        kind, dtype, key = pid[:3]
        if kind != "storage" or dtype not in SIZES or not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something that is no storage of a known type")
        return Storage(dtype, key)


def read_member(path, member, dtype, offset, size, stride):
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(member)
            if len(data) != archive.getinfo(member).file_size:  # which the tensors were checked against
                raise Failure(f"{path}: {member} has {len(data)} bytes, its folder says {archive.getinfo(member).file_size}")
    except (zipfile.BadZipFile, zlib.error) as error:
        raise Failure(f"{path}: {error}") from error
    flat = widen(np.frombuffer(data, np.uint8), dtype)[offset:]
    steps = tuple(s * flat.itemsize for s in stride)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, size, steps))


def read_bin(path):
    """name -> Tensor; every tensor lies inside its storage."""
    try:
        with zipfile.ZipFile(path) as archive:
            bytes_of = {info.filename: info.file_size for info in archive.infolist()}
            index = next((n for n in bytes_of if n.endswith("/data.pkl")), None)
            if index is None:
                raise Failure(f"{path}: no data.pkl in it")
            state = Loader(io.BytesIO(archive.read(index))).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Failure(f"{path}: truncated, or not a state dict as PyTorch 1.6 and later save it: {error}") from error
    tensors = {}
    for name, t in (state.items() if isinstance(state, dict) else ()):
        if not isinstance(t, Rebuilt) or not isinstance(t.storage, Storage):
            raise Failure(f"{path}: '{name}' is not a tensor")
        member = f"{index[:-len('data.pkl')]}data/{t.storage.key}"
        numbers = [t.offset, *t.size, *t.stride]
        if len(t.size) != len(t.stride) or not all(isinstance(n, int) and n >= 0 for n in numbers) or member not in bytes_of:
            raise Failure(f"{path}: tensor '{name}': its shape or its storage is wrong")
        last = t.offset + sum((n - 1) * s for n, s in zip(t.size, t.stride))
        if math.prod(t.size) and (last + 1) * SIZES[t.storage.dtype] > bytes_of[member]:
            raise Failure(f"{path}: tensor '{name}' does not fit in its storage of {bytes_of[member]} bytes")
        tensors[name] = Tensor(t.size, lambda m=member, t=t: read_member(path, m, t.storage.dtype, t.offset, t.size, t.stride))
    return tensors
