"""A session: one text, its cache, and what its policy remembers."""
from contextlib import contextmanager

import numpy as np

from ._handle import Handle, Owner
from ._library import Error, c_path, check, copy_of, fields_of, ffi, ids_of, kv_type_of, lib, new_error, new_struct, params_of
from .sampler import Sampler


class Session(Owner):
    """One text under a policy, "fier:budget=256". Parameters are those of struct butler_session_params: n_ctx, kv_type ("f16", "f32",
    "q8_0"), seed."""

    def __init__(self, engine, policy="full", *, kv_type="f16", **params):
        err = new_error()
        native, keep = params_of("struct butler_session_params", {"policy": policy, "kv_type": kv_type_of(kv_type), **params})
        with engine._use() as pointer:
            self._adopt(engine, check(lib.butler_session_new(pointer, native, err), err))

    @classmethod
    def _of(cls, engine, pointer):
        session = cls.__new__(cls)
        session._adopt(engine, pointer)
        return session

    def _adopt(self, engine, pointer):
        self._handle = Handle("session", pointer, lib.butler_session_free, engine._handle, engine._exclusive)
        self.engine, self._failed = engine, None
        # Between the passes of a prompt the interpreter looks for signals: Ctrl-C ends the prompt. It also ends where a metric failed.
        raised = engine._raised
        progress = engine._callback("butler_progress_fn *", lambda user, done, n: raised.first is None)
        lib.butler_session_on_progress(pointer, progress, ffi.NULL)
        self._handle.keep.append(progress)

    @contextmanager
    def _sound(self):
        """The pointer, unless a metric's exception left the session with contents that mean nothing."""
        with self._handle.use() as session:
            if self._failed is not None:
                raise Error("the session's metric failed before: it can only be truncated to 0 and closed") from self._failed
            yield session

    @contextmanager
    def _use(self):
        with self.engine._use(self), self._sound() as session:
            yield session

    # ------------------------------------------------------------------------------------------------- running

    def prefill(self, ids, logits="last"):
        """Reads ids as a whole prompt. Returns the logits [n_vocab] after the last one; "all": [n, n_vocab], after each; None: none."""
        return self.engine.run([(self, ids, None, logits)])[0]

    def step(self, token):
        """Decodes one token under the policy. Returns the logits [n_vocab] after it."""
        return self.engine.run([(self, [token], 0, "last")])[0]

    def generate(self, n, sampler=None):
        """Yields up to n tokens that continue the text, drawn by the sampler (None: the likeliest), until one ends the answer, the policy
        stops or the context is full. After n tokens, or with a full context, the last one has not been decoded yet."""
        own = Sampler() if sampler is None else sampler
        try:
            for i in range(n):
                logits = self.logits
                if logits is None:
                    raise ValueError("the session has no logits: it has read nothing yet, or was truncated")
                token = own.sample(logits)
                if self.engine.model.is_end(token):
                    return
                yield token
                if i + 1 == n or self.n_past >= self.n_ctx:
                    return
                self.step(token)
                if self.should_stop:
                    return
        finally:
            if sampler is None:
                own.close()

    def cancel(self):
        """From any thread: a prompt that is being read ends with an Error (CANCELLED) after the pass that is running, with what was read;
        where nothing runs, the next run ends so."""
        with self._handle.use() as session:
            lib.butler_session_cancel(session)

    @property
    def logits(self):
        """A copy of the logits [n_vocab] after the last token; None where there are none."""
        with self._use() as session:
            return self.engine._logits(session)

    @property
    def n_past(self):
        """Tokens of the text so far."""
        with self._handle.use() as session:
            return lib.butler_n_past(session)

    @property
    def n_ctx(self):
        """Most tokens that it can hold."""
        with self._handle.use() as session:
            return lib.butler_n_ctx(session)

    @property
    def should_stop(self):
        """Whether the policy's stopping rule (entropystop) says that the text is done."""
        with self._use() as session:
            return lib.butler_should_stop(session)

    # --------------------------------------------------------------------------------------------- what it read

    def selection(self, layer, head):
        """Positions, ascending, that the last step read in one layer for one query head: an array of int32."""
        info = self.engine.model.info
        if not (0 <= layer < info.n_layers and 0 <= head < info.n_heads):
            raise IndexError(f"layer {layer}, head {head} of {info.n_layers} layers with {info.n_heads} heads")
        return self._selections([layer], [head])[0][0]

    def selections(self):
        """The same for all: selections()[layer][head]."""
        info = self.engine.model.info
        return self._selections(range(info.n_layers), range(info.n_heads))

    def _selections(self, layers, heads):
        with self._use() as session:
            n = lib.butler_n_past(session)
            ids = ffi.new("int32_t[]", max(n, 1))
            return [[copy_of(ids, lib.butler_last_selection(session, layer, head, ids, n), dtype=np.int32) for head in heads]
                    for layer in layers]

    def stats(self):
        """What it cost so far (struct butler_stats), and kv_read: bytes read to score and to attend over those of a dense decode."""
        stats = new_struct("struct butler_stats")
        with self._use() as session:
            lib.butler_session_stats(session, stats)
        found = fields_of(stats)
        found.kv_read = (found.kv_bytes + found.metric_bytes) / found.full_kv_bytes if found.full_kv_bytes else float("nan")
        return found

    def reset_stats(self):
        with self._use() as session:
            lib.butler_session_stats_reset(session)

    # ------------------------------------------------------------------------------------- copies, files, going back

    def save(self, path):
        """Writes the whole session to a file; Engine.restore reads it."""
        err, name = new_error(), c_path(path)
        with self._use() as session:
            check(lib.butler_session_save(session, name, err), err)

    def fork(self):
        """A session that goes on from the same text and shares its pages."""
        err = new_error()
        with self._use() as session:
            return Session._of(self.engine, check(lib.butler_session_fork(session, err), err))

    def copy_from(self, other):
        """Becomes what the other session is, whatever it held. Both have the same policy, context, KV type and seed."""
        if other.engine is not self.engine:
            raise ValueError("a session of another engine")
        err = new_error()
        with self.engine._use(self), other._sound() as source, self._handle.use() as session:
            check(lib.butler_session_copy(session, source, err), err)
        self._failed = None

    def truncate(self, n):
        """Goes back to the first n tokens; there are no logits then. A policy that evicts cannot go back behind an eviction."""
        err = new_error()
        with self.engine._use(self), (self._handle.use() if n == 0 else self._sound()) as session:
            check(lib.butler_session_truncate(session, n, err), err)
        self._failed = None

    def adopt_prefix(self, ids):
        """Gives an empty session the longest beginning of ids that the engine's prefix cache knows. Returns how many tokens it has then;
        the others are to be run with prompt_end=len(ids)."""
        array, pointer = ids_of(ids)
        err = new_error()
        with self._use() as session:
            return check(lib.butler_session_adopt_prefix(session, pointer, len(array), err), err)

    def fill(self, n, seed=0):
        """Appends n random positions to the cache without running the model: for measuring speed at a depth."""
        err = new_error()
        with self._use() as session:
            check(lib.butler_fill(session, n, seed, err), err)
