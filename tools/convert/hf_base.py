"""What the readers of Hugging Face folders share: errors, tensors that are read when they are needed, and types."""
from dataclasses import dataclass
from typing import Callable

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1"}


class Failure(Exception):
    """What the person who runs the converter has to know; the message names the file and what is wrong in it."""


@dataclass
class Tensor:
    """shape: rows first, as in PyTorch. read() gives float32 of that shape, or uint8 where the file stores bytes.
    mxfp4: the bytes are rows of GGUF's type MXFP4."""
    shape: tuple
    read: Callable[[], np.ndarray]
    mxfp4: bool = False


def widen(data, dtype):
    """The bytes of elements of a type as float32, or as they are for U8. data: bytes [n] as uint8."""
    elements = data.view(DTYPES[dtype])
    if dtype == "BF16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements if dtype == "U8" else elements.astype(np.float32)
