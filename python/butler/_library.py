"""The shared library, its errors, and its structs as Python values."""
import hashlib
import os
from types import SimpleNamespace

import numpy as np

from . import _build
from ._ffi import ffi


def load():
    path = os.path.join(os.path.dirname(__file__), "libbutler.so")
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    # The library does not say which header it was built with: another library's structs could be misread.
    if found != _build.LIBRARY_SHA256:
        raise ImportError(f"{path} is not the library that this package (butler {_build.VERSION}) was built with: install the package again")
    # Global: a metric in a shared object finds the library's functions.
    return ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_GLOBAL)


lib = load()
ERROR_NAMES = {value: name.removeprefix("BUTLER_ERROR_") for value, name in ffi.typeof("enum butler_code").elements.items()}
KV_TYPES = {name.removeprefix("BUTLER_KV_").lower(): value for value, name in ffi.typeof("enum butler_kv_type").elements.items()
            if name.startswith("BUTLER_KV_")}


class Error(Exception):
    """What the library could not do. code: that of enum butler_code; name: "ARGUMENT", "IO", ..."""

    def __init__(self, message, code=0):
        super().__init__(message)
        self.code, self.name = code, ERROR_NAMES.get(code, "")


def text_of(value):
    """A zero-terminated string of the library; None where there is none."""
    return None if value == ffi.NULL else ffi.string(value).decode("utf-8", "replace")


def new_error():
    return ffi.new("struct butler_error *")


def error_of(err):
    return Error(text_of(err.message), err.code)


def check(result, err):
    """The result of a function that gives a negative code, or NULL, when it failed."""
    if isinstance(result, int) and result < 0 or not isinstance(result, int) and result == ffi.NULL:
        raise error_of(err)
    return result


def c_string(text):
    """A zero-terminated copy of a text, in UTF-8."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError(f"a zero byte in {text!r}")
    return ffi.new("char[]", raw)


def c_path(path):
    """The same of a file's name, as the system spells it."""
    return c_string(os.fsencode(path))


def ids_of(ids):
    """Token ids as an array of int32, and the pointer to it."""
    array = np.asarray(ids if hasattr(ids, "__len__") else list(ids))
    if array.ndim != 1 or array.size and array.dtype.kind not in "iu":
        raise TypeError(f"token ids are integers in one dimension, not {array.dtype} in {array.ndim}")
    if array.size and (array.min() < -2**31 or array.max() >= 2**31):
        raise ValueError("a token id does not fit in 32 bits")
    array = np.ascontiguousarray(array, dtype=np.int32)
    return array, pointer_to(array, "int32_t *")


def pointer_to(array, kind):
    return ffi.cast(kind, array.ctypes.data)


def copy_of(pointer, *shape, dtype=np.float32):
    """An array of its own with what the library's memory holds; valid as long as anybody wants."""
    array = np.empty(shape, dtype)
    ffi.memmove(array, pointer, array.nbytes)
    return array


def kv_type_of(name):
    if name not in KV_TYPES:
        raise ValueError(f"unknown KV type {name!r}; allowed: {', '.join(sorted(KV_TYPES))}")
    return KV_TYPES[name]


def new_struct(name):
    """A struct of the library with its size, as BUTLER_INIT sets it."""
    struct = ffi.new(f"{name} *")
    struct.struct_size = ffi.sizeof(name)
    return struct


def fields_of(struct):
    """The fields of the struct that a pointer points to, but for pointers to anything but text."""
    values = {}
    for name, field in ffi.typeof(struct).item.fields:
        value = getattr(struct, name)
        if name == "struct_size":
            continue
        if field.type.cname in ("char *", "char const *") or field.type.kind == "array" and field.type.item.cname == "char":
            values[name] = text_of(value)
        elif field.type.kind in ("primitive", "enum"):
            values[name] = value
    return SimpleNamespace(**values)


def params_of(struct, values):
    """A struct of parameters with these fields, None meaning the default, and what must live as long as it does."""
    params, keep = new_struct(struct), []
    fields = {name: field.type for name, field in ffi.typeof(struct).fields if name != "struct_size"}
    for name, value in values.items():
        if name not in fields:
            raise TypeError(f"unknown parameter {name!r}; allowed: {', '.join(fields)}")
        if isinstance(value, (str, bytes, os.PathLike)) and fields[name].kind == "pointer":
            keep.append(c_path(value) if isinstance(value, os.PathLike) else c_string(value))
            value = keep[-1]
        if value is not None:
            setattr(params, name, value)
    return params, keep
