"""An engine: a model on a device, with its threads and the cache of all its sessions."""
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Optional

import numpy as np

from ._handle import Exclusive, Handle, Owner
from ._library import Error, c_path, c_string, check, copy_of, error_of, fields_of, ffi, ids_of, kv_type_of, lib, new_error, new_struct, params_of
from .metric import native_metric
from .session import Session


class Span(NamedTuple):
    """A part of what Engine.run does (struct butler_span). prompt_end None: the tokens end a prompt, which attends densely; 0: all of them
    are decoded. logits: "last", "all" (of every position) or None."""
    session: Session
    ids: object
    prompt_end: Optional[int] = None
    logits: Optional[str] = "last"


class Raised:
    """Exceptions of Python code that the library called. The library cannot pass them on: they are kept until its call returns. The first
    one counts, and after it metrics do no more work. intact: what the sessions hold is still right."""

    def __init__(self):
        self.first, self.intact = None, True

    def keep(self, exception, intact=False):
        if self.first is None:
            self.first = exception
        self.intact = self.intact and intact

    def take(self):
        first, intact = self.first, self.intact
        self.first, self.intact = None, True
        return first, intact


class Engine(Owner):
    """A model on a device. Parameters are those of struct butler_engine_params: n_threads, isa, n_block, kv_bytes, prefix_bytes. An engine
    and its sessions are used by one thread at a time; another call meanwhile is a RuntimeError. The interpreter's lock is free while the
    library works."""

    def __init__(self, model, **params):
        err = new_error()
        native, keep = params_of("struct butler_engine_params", params)
        self.model, self._exclusive, self._raised = model, Exclusive(), Raised()
        with model._handle.use() as pointer:
            engine = check(lib.butler_engine_new(pointer, native, err), err)
            self._handle = Handle("engine", engine, lib.butler_engine_free, model._handle)

    @contextmanager
    def _use(self, *sessions):
        """The engine's pointer, for one call at a time. What Python code raised during the call is raised behind it; the sessions, if
        they are in doubt then, are marked as failed."""
        with self._handle.use() as engine, self._exclusive:
            self._raised.take()
            failed = None
            try:
                yield engine
            except Error as error:
                failed = error
            raised, intact = self._raised.take()
            if raised is not None:
                for session in () if intact else sessions:
                    session._failed = raised
                raise raised
            if failed is not None:
                raise failed

    @property
    def info(self):
        """Device, threads, memory in use, and what the prefix cache did (struct butler_engine_info)."""
        info = new_struct("struct butler_engine_info")
        with self._use() as engine:
            lib.butler_engine_get_info(engine, info)
        return fields_of(info)

    def session(self, policy="full", **params):
        """A new Session: one text under a policy."""
        return Session(self, policy, **params)

    def restore(self, path, n_ctx=0):
        """The session that Session.save wrote. n_ctx: most tokens that it can hold; 0: as when it was saved."""
        err = new_error()
        name = c_path(path)
        with self._use() as engine:
            return Session._of(self, check(lib.butler_session_restore(engine, name, n_ctx, err), err))

    def policies(self):
        """Every policy that this engine knows, registered metrics too: name, metric, method, summary, defaults."""
        found, info = [], new_struct("struct butler_policy_info")
        with self._use() as engine:
            while lib.butler_policy_describe(engine, len(found), info):
                found.append(fields_of(info))
        return found

    def check_policy(self, policy):
        """An Error where the policy string is wrong."""
        err, text = new_error(), c_string(policy)
        with self._use() as engine:
            check(lib.butler_policy_check(engine, text, err), err)

    def estimate(self, policy, n_tokens, kv_type="f16"):
        """Bytes that a policy holds and reads at a length of text (struct butler_policy_cost)."""
        err, text, cost = new_error(), c_string(policy), new_struct("struct butler_policy_cost")
        with self._use() as engine:
            check(lib.butler_policy_estimate(engine, text, kv_type_of(kv_type), n_tokens, cost, err), err)
        return fields_of(cost)

    def attach_predictor(self, path):
        """Gives the engine a predictor, for the policies tokenbutler and tokenbutler2, or query centres, for triattention."""
        err, name = new_error(), c_path(path)
        with self._use() as engine:
            check(lib.butler_predictor_attach(engine, name, err), err)

    def load_plugin(self, path):
        """Registers the metric of a shared object (examples/plugin.c)."""
        err, name = new_error(), c_path(path)
        with self._use() as engine:
            check(lib.butler_plugin_load(engine, name, err), err)

    def register(self, metric):
        """Makes a Metric known under its name: "name:budget=..." is a policy then."""
        err = new_error()
        native, keep = native_metric(metric, self._raised)
        self._handle.keep.append((native, keep))  # also where it is refused: a call that failed may have used it
        with self._use() as engine:
            check(lib.butler_metric_register(engine, native, err), err)

    def run(self, spans):
        """Runs parts of prompts and decode steps of many sessions at once, each a Span or its fields as a tuple. Returns for each span its
        logits: [n_vocab], [n, n_vocab] for "all", or None. What a session computes does not depend on what else is in the call. Where a
        span is wrong nothing changes. A session that fails inside is an Error with the first one's message, and the others go on."""
        spans = [Span(*span) for span in spans]
        for span in spans:
            if span.logits not in ("last", "all", None):
                raise ValueError(f"logits={span.logits!r}: allowed are 'last', 'all' and None")
            if span.session.engine is not self:
                raise ValueError("a session of another engine")
        n = max(len(spans), 1)
        natives, errs, rows = ffi.new("struct butler_span[]", n), ffi.new("struct butler_error[]", n), [[] for _ in spans]
        sessions = [span.session for span in spans]
        with self._use(*sessions) as engine, ExitStack() as stack:
            keep = []
            for native, span, row in zip(natives, spans, rows):
                native.session = stack.enter_context(span.session._sound())
                keep += self._fill(native, span, row)
            if lib.butler_run(engine, natives, len(spans), errs) < 0:
                raise error_of(next(err for err in errs if err.code < 0))
            return [None if span.logits is None else np.stack(row) if row else self._logits(native.session)
                    for span, row, native in zip(spans, rows, natives)]

    def _fill(self, native, span, row):
        """A span for the library, and what it points to. row: gets the logits of each position."""
        native.struct_size = ffi.sizeof("struct butler_span")
        ids, native.ids = ids_of(span.ids)
        native.n = len(ids)
        native.prompt_end = lib.butler_n_past(native.session) + len(ids) if span.prompt_end is None else span.prompt_end
        native.no_logits = span.logits is None
        if span.logits != "all":
            return [ids]

        def each(user, position, logits):
            row.append(copy_of(logits, self.model.n_vocab))
            return True
        native.each = callback = self._callback("butler_logits_fn *", each)
        return [ids, callback]

    def _callback(self, kind, function):
        """For the library to call; it stops where the function raised something, without harm to the session."""
        raised = self._raised
        return ffi.callback(kind, function, error=False, onerror=lambda kind, exception, trace: raised.keep(exception, intact=True))

    def _logits(self, session):
        logits = lib.butler_logits(session)
        return None if logits == ffi.NULL else copy_of(logits, self.model.n_vocab)
