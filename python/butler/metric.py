"""A metric written in Python, for trying an idea before it becomes C: the contract of struct butler_metric, on NumPy arrays.

The engine calls a metric for one layer and KV head at a time, from the threads of its pool. Each call takes the interpreter's lock, so that
calls of several threads take turns; they come in any order, and a metric must not keep anything between them but in its records."""
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from ._library import copy_of, fields_of, ffi, lib, pointer_to

SCALES = {name.removeprefix("BUTLER_SCORE_").lower(): value for value, name in ffi.typeof("enum butler_metric_scale").elements.items()}
FLAGS = ("page_scores", "query_free", "reads_keys", "earlier_layers")
# Calls of struct butler_metric that a metric may leave out; score() it has.
OPTIONAL = ("record", "attention_window", "append", "observe", "score_bytes", "observe_bytes", "move")


class Param(NamedTuple):
    """A number of the metric that a policy string may set, "mine:width=8"."""
    name: str
    value: float  # the default
    min: float
    max: float
    help: str = ""


class Metric:
    """A subclass sets `name` and `summary` and has score(); the other functions below are optional. Engine.register makes it known.

    scale: "logit", scores like q.k before scaling by 1/sqrt(head_dim), or "weight", comparable between query heads. page_scores: one score
    for a record instead of one for a token. query_free: scores do not depend on the query; score() gets one. reads_keys: append() or
    score() looks at keys. earlier_layers: score() uses View.dot_layer.

        def record(self, shape, params):              slots that a record covers, and its dtype
        def attention_window(self, params):           how many of the latest queries' weights observe() gets
        def append(self, view, first, n):             slots [first, first + n) are new or have changed: bring their records up to date
        def observe(self, view, position, weights):   weights [group, n]: attention of the query at that position to slots 0..n-1
        def score(self, view, q, first, n):           scores [n_q, n] of the units [first, first + n), slots or pages, for queries
                                                      q [n_q, head_dim]
        def score_bytes(self, shape, params, n_slots):     bytes of records that one score() reads; else all of them count. (Keys and
        def observe_bytes(self, shape, params, n_slots):   values that are read through the view count by themselves.)
        def move(self, view, source, target, n):      slots [source, source + n) now lie in [target, target + n)

    shape has the fields of struct butler_metric_shape, params the numbers of the policy string by name; a view has both."""
    name, summary, scale = "", "", "logit"
    page_scores, query_free, reads_keys, earlier_layers = False, False, True, False
    params = ()


class View:
    """One layer and KV head of the cache, valid during the call that got it. Arrays are copies, but for records()."""

    def __init__(self, pointer, shape, params, dtype, n_slots_record):
        self._pointer, self.shape, self.params, self._dtype, self._n_slots_record = pointer, shape, params, dtype, n_slots_record

    def _valid(self):
        if self._pointer is None:
            raise ValueError("a view is valid only during the call of the metric that got it")
        return self._pointer

    @property
    def layer(self):
        return lib.butler_view_layer(self._valid())

    @property
    def kv_head(self):
        return lib.butler_view_kv_head(self._valid())

    @property
    def n_slots(self):
        """Rows in use. Without eviction, slot i holds position i."""
        return lib.butler_view_n_slots(self._valid())

    @property
    def query_position(self):
        """Position of the newest token."""
        return lib.butler_view_query_position(self._valid())

    def positions(self, first=0, n=None):
        """Positions of slots [first, first + n), n None: to the end."""
        n = self._count(first, n)
        return np.array([lib.butler_view_position(self._pointer, slot) for slot in range(first, first + n)], np.int32)

    def keys(self, first=0, n=None):
        """Keys of these slots, [n, head_dim]. They count as bytes that the metric read."""
        return self._rows(lib.butler_view_keys, first, n)

    def values(self, first=0, n=None):
        """The same for values."""
        return self._rows(lib.butler_view_values, first, n)

    def dot_keys(self, q, first=0, n=None):
        """q [n_q, head_dim] times the keys of these slots, [n_q, n], at the engine's own speed. The keys count as read."""
        n = self._count(first, n)
        q = np.ascontiguousarray(q, np.float32)
        if q.ndim != 2 or q.shape[1] != self.shape.head_dim:
            raise ValueError(f"queries are [n, {self.shape.head_dim}], not {list(q.shape)}")
        out = np.empty((len(q), n), np.float32)
        lib.butler_view_dot_keys(self._pointer, pointer_to(q, "float *"), len(q), first, n, pointer_to(out, "float *"), n)
        return out

    def dot_layer(self, layer, first=0, n=None):
        """An earlier layer's keys of these slots times that layer's queries of the newest token, [group, n]."""
        n = self._count(first, n)
        if not 0 <= layer <= self.layer:
            raise IndexError(f"layer {layer} in layer {self.layer}")
        out = np.empty((self.shape.group, n), np.float32)
        lib.butler_view_dot_layer(self._pointer, layer, self.shape.group, first, n, pointer_to(out, "float *"), n)
        return out

    def records(self, first=0, n=None):
        """Records [first, first + n) as an array of the dtype that record() gave, to be read and written. It is the engine's own memory:
        do not keep it behind the call."""
        self._valid()
        if self._dtype is None:
            raise ValueError("the metric has no record()")
        all_ = -(-self.n_slots // self._n_slots_record)
        n = check_range(first, n, all_, "records")
        base, inner = self._dtype.subdtype or (self._dtype, ())
        if n == 0:
            return np.empty((0, *inner), base)
        start = ffi.cast("char *", lib.butler_view_record(self._pointer, first))
        return np.frombuffer(ffi.buffer(start, n * self._dtype.itemsize), base).reshape(n, *inner)

    def _rows(self, function, first, n):
        n = self._count(first, n)
        out = np.empty((n, self.shape.head_dim), np.float32)
        function(self._pointer, first, n, pointer_to(out, "float *"))
        return out

    def _count(self, first, n):
        self._valid()
        return check_range(first, n, self.n_slots, "slots")


def check_range(first, n, end, what):
    n = end - first if n is None else n
    if first < 0 or n < 0 or first + n > end:
        raise IndexError(f"{what} [{first}, {first + n}) of {end}")
    return n


# ---------------------------------------------------------------------------------------- the library's side


class Caller:
    """Calls one metric's functions for the library. raised: where an exception is kept until the library's call returns."""

    def __init__(self, metric, raised):
        self.metric, self.raised, self.names = metric, raised, [param.name for param in metric.params]
        self.records = {}  # (shape, values) -> slots of a record, dtype

    def arguments(self, shape, values):
        return fields_of(shape), {name: values[i] for i, name in enumerate(self.names)}

    def layout(self, shape, params):
        """What record() says; it is asked once for each shape and set of values."""
        key = (*vars(shape).values(), *params.values())
        if key not in self.records:
            n_slots, dtype = self.metric.record(shape, params)
            self.records[key] = int(n_slots), np.dtype(dtype)
        return self.records[key]

    def with_view(self, shape, values, pointer, function):
        shape, params = self.arguments(shape, values)
        n_slots, dtype = self.layout(shape, params) if hasattr(self.metric, "record") else (0, None)
        view = View(pointer, shape, params, dtype, n_slots)
        try:
            return function(view)
        finally:
            view._pointer = None

    # Each of the functions of struct butler_metric, with its arguments.

    def record(self, shape, values, n_slots, n_bytes):
        slots, dtype = self.layout(*self.arguments(shape, values))
        n_slots[0], n_bytes[0] = slots, dtype.itemsize

    def attention_window(self, values):
        return int(self.metric.attention_window({name: values[i] for i, name in enumerate(self.names)}))

    def append(self, shape, values, view, first, n):
        self.with_view(shape, values, view, lambda v: self.metric.append(v, first, n))

    def observe(self, shape, values, view, position, weights, stride, n):
        rows = np.stack([copy_of(weights + i * stride, n) for i in range(shape.group)])
        self.with_view(shape, values, view, lambda v: self.metric.observe(v, position, rows))

    def move(self, shape, values, view, source, target, n):
        self.with_view(shape, values, view, lambda v: self.metric.move(v, source, target, n))

    def score_bytes(self, shape, values, n_slots):
        return int(self.metric.score_bytes(*self.arguments(shape, values), n_slots))

    def observe_bytes(self, shape, values, n_slots):
        return int(self.metric.observe_bytes(*self.arguments(shape, values), n_slots))

    def score(self, shape, values, view, request):
        n_q, first, n = request.n_q, request.first, request.n
        scores = np.zeros((n_q, n), np.float32)  # what the library gets where the metric fails
        try:
            if self.raised.first is None:
                queries = copy_of(request.q, n_q, shape.head_dim)
                found = np.asarray(self.with_view(shape, values, view, lambda v: self.metric.score(v, queries, first, n)))
                if found.shape not in ((n_q, n), (n,) * (n_q == 1)):
                    raise ValueError(f"metric {self.metric.name}: score() gave an array {list(found.shape)}, not [{n_q}, {n}]")
                scores[:] = found
        finally:
            for i in range(n_q):
                ffi.memmove(request.out + i * request.stride, np.ascontiguousarray(scores[i]), n * 4)

    def callback(self, name):
        """The function for the library. Without an exception before it; score() must always write."""
        function = getattr(self, name)

        def call(*args):
            if self.raised.first is None or name == "score":
                return function(*args)
            return 0 if name.endswith(("bytes", "window")) else None
        kind = dict(ffi.typeof("struct butler_metric").fields)[name].type
        return ffi.callback(kind, call, onerror=lambda kind, exception, trace: self.raised.keep(exception))


def native_metric(metric, raised):
    """A struct butler_metric, and what must live as long as it."""
    if not isinstance(metric, Metric) or not callable(getattr(metric, "score", None)):
        raise TypeError("a metric is an object of a subclass of butler.Metric with a function score()")
    if metric.scale not in SCALES:
        raise ValueError(f"metric {metric.name}: scale {metric.scale!r}; allowed: {', '.join(SCALES)}")
    caller, keep = Caller(metric, raised), []

    def text(words):
        keep.append(ffi.new("char[]", words.encode()))
        return keep[-1]
    native = ffi.new("struct butler_metric *", {"abi": lib.BUTLER_METRIC_ABI, "name": text(metric.name), "summary": text(metric.summary),
                                                 "scale": SCALES[metric.scale], **{flag: getattr(metric, flag) for flag in FLAGS}})
    if metric.params:
        native.params = params = ffi.new("struct butler_param[]", len(metric.params) + 1)
        keep.append(params)
        for place, param in zip(params, metric.params):
            place.name, place.value, place.min, place.max, place.help = text(param.name), param.value, param.min, param.max, text(param.help)
    for name in ("score", *OPTIONAL):
        if hasattr(metric, name):
            keep.append(caller.callback(name))
            setattr(native, name, keep[-1])
    return native, keep
