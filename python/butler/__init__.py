"""butler from Python: models, engines, sessions, what their policies read, and metrics written in Python.

    engine = butler.Engine(butler.Model("model.gguf"))
    session = engine.session("fier:budget=256", n_ctx=4096)
    session.prefill(engine.model.tokenize("It was the best of times"))
    print(engine.model.detokenize(session.generate(64)), session.stats().kv_read)

`butler.lib` and `butler.ffi` are every function of butler.h as cffi declares it."""
from ._build import VERSION as __version__
from ._library import Error, ffi, lib
from .engine import Engine, Span
from .metric import Metric, Param, View
from .model import Model, describe
from .rows import columns, evaluate, read_rows
from .sampler import Sampler
from .session import Session

__all__ = ["Engine", "Error", "Metric", "Model", "Param", "Sampler", "Session", "Span", "View", "columns", "describe", "evaluate", "ffi", "lib",
           "read_rows"]
