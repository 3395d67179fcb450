"""When native objects are freed. The garbage collector may finalise a session after its engine, and in any thread; the library wants
sessions freed before their engine, the engine before its model, and nothing freed while the engine runs."""
import threading
import weakref
from collections import deque
from contextlib import contextmanager


class Exclusive:
    """An engine and its sessions are used by one thread at a time. A second call is refused, not made to wait: it may come from a metric
    that the first call waits for. What is freed meanwhile waits for the end of the call."""

    def __init__(self):
        self.lock, self.waiting = threading.Lock(), deque()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("the engine is at work: in another thread, or in the call that this one was called from")

    def __exit__(self, *what):
        self.lock.release()
        self.drain()

    def when_idle(self, action):
        self.waiting.append(action)
        self.drain()

    def drain(self):
        while self.waiting and self.lock.acquire(blocking=False):
            try:
                while self.waiting:
                    self.waiting.popleft()()
            finally:
                self.lock.release()


class Handle:
    """A pointer of the library, freed once it is closed and nobody holds it: a call that uses it, or a child that was made from it.
    Operations on `holds` and `pointers` are atomic under the interpreter's lock."""

    def __init__(self, what, pointer, free, parent=None, exclusive=None):
        self.what, self.free, self.parent, self.exclusive = what, free, parent, exclusive
        self.pointers, self.holds, self.closed = [pointer], set(), False
        self.hold = object()  # of its parent
        self.children = weakref.WeakSet()
        self.keep = []  # what the library points to
        if parent:
            parent.holds.add(self.hold)
            parent.children.add(self)

    def close(self):
        for child in list(self.children):
            child.close()
        self.closed = True
        self.free_if_unused()

    __del__ = close

    def free_if_unused(self):
        if not self.closed or self.holds:
            return
        try:
            pointer = self.pointers.pop()
        except IndexError:
            return
        if self.exclusive:
            self.exclusive.when_idle(lambda: self.free_now(pointer))
        else:
            self.free_now(pointer)

    def free_now(self, pointer):
        self.free(pointer)
        if self.parent:
            self.parent.release(self.hold)

    def release(self, hold):
        self.holds.discard(hold)
        self.free_if_unused()

    @contextmanager
    def use(self):
        """The pointer, which stays valid during the `with`."""
        hold = object()
        self.holds.add(hold)
        try:
            if self.closed:
                raise ValueError(f"the {self.what} is closed")
            yield self.pointers[0]
        finally:
            self.release(hold)


class Owner:
    """What models, engines, sessions and samplers have in common: close(), and `with`."""

    def close(self):
        """Frees it, and first what was made from it. Doing so again changes nothing."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.close()
