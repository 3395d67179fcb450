"""Nothing is freed while it is used, whatever is closed, collected or called first; what is closed says so."""
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import butler
from butler._handle import Exclusive, Handle
from conftest import GQA, PROMPT


class Log:
    """Stands for the library's free functions."""

    def __init__(self):
        self.freed = []

    def handle(self, name, parent=None, exclusive=None):
        return Handle(name, name, self.freed.append, parent, exclusive)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_children_are_freed_first(order):
    log, exclusive = Log(), Exclusive()
    model = log.handle("model")
    engine = log.handle("engine", model)
    session = log.handle("session", engine, exclusive)
    for i in order:
        [model, engine, session][i].close()
    assert log.freed == ["session", "engine", "model"]


def test_finalisers_in_any_order():
    """The collector of cycles may finalise a parent before its child, and weak references to the child are gone by then."""
    log, exclusive = Log(), Exclusive()
    model = log.handle("model")
    session = log.handle("session", model, exclusive)
    model.children.clear()
    model.__del__()
    assert log.freed == []
    session.__del__()
    assert log.freed == ["session", "model"]


def test_what_is_used_is_freed_behind_the_use():
    log = Log()
    model = log.handle("model")
    with model.use() as pointer:
        model.close()
        assert pointer == "model" and log.freed == []
        with pytest.raises(ValueError, match="the model is closed"), model.use():
            pass
        assert log.freed == []
    assert log.freed == ["model"]


def test_sessions_wait_for_the_engine():
    log, exclusive = Log(), Exclusive()
    session = log.handle("session", log.handle("engine"), exclusive)
    with exclusive:
        threading.Thread(target=session.close).start()
        session.close()
        with pytest.raises(RuntimeError, match="at work"), exclusive:
            pass
        assert log.freed == []
    assert log.freed[:1] == ["session"]


def test_a_session_keeps_its_engine_and_model():
    model = butler.Model(GQA)
    engine = butler.Engine(model, n_threads=1)
    session = engine.session()
    ids = model.tokenize(PROMPT)
    watched = [weakref.ref(x) for x in (model, engine)]
    del model, engine
    gc.collect()
    assert session.prefill(ids).shape == (267,)
    assert None not in [ref() for ref in watched]
    del session
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_use_after_close():
    with butler.Model(GQA) as model:
        engine = butler.Engine(model)
        session, sampler = engine.session(), butler.Sampler()
        session.prefill([1, 2])
        generating = session.generate(5)
        next(generating)
        session.close()
        session.close()
        for call in (lambda: session.step(3), lambda: session.n_past, session.stats, session.fork, session.cancel, lambda: session.save("x"),
                     lambda: next(generating)):
            with pytest.raises(ValueError, match="the session is closed"):
                call()
        other = engine.session()
        engine.close()
        with pytest.raises(ValueError, match="closed"):
            other.prefill([1])
        for call in (engine.session, engine.policies, lambda: engine.info):
            with pytest.raises(ValueError, match="the engine is closed"):
                call()
        sampler.close()
        with pytest.raises(ValueError, match="the sampler is closed"):
            sampler.sample(np.zeros(3))
    for call in (lambda: model.tokenize("a"), lambda: butler.Engine(model), lambda: model.info):
        with pytest.raises(ValueError, match="the model is closed"):
            call()


def test_one_call_at_a_time(engine):
    """A second call is refused instead of waiting, also from inside a metric; what is closed meanwhile is freed behind the call."""
    class Nosy(butler.Metric):
        name, scale, query_free = "nosy", "weight", True
        seen = []

        def score(self, view, q, first, n):
            victim = engine_sessions.pop() if engine_sessions else None
            if victim:
                victim.close()
            try:
                session.step(1)
            except RuntimeError as error:
                self.seen.append(str(error))
            return np.arange(n)
    engine.register(Nosy())
    engine_sessions = [engine.session() for _ in range(4)]
    for other in engine_sessions:
        other.prefill([1, 2, 3])
    used = engine.info.kv_memory
    session = engine.session("nosy:budget=4")
    session.prefill(range(3, 40))
    session.step(9)
    assert Nosy.seen and all("at work" in words for words in Nosy.seen) and not engine_sessions
    assert session.n_past == 38 and engine.info.kv_memory < used


def test_threads_with_an_engine_each(model):
    """One model, several engines at the same time: the interpreter's lock is free while they work, and the texts are the same."""
    found = []

    def work():
        with butler.Engine(model, n_threads=1) as engine, engine.session("fier:budget=16") as session:
            session.prefill(model.tokenize(PROMPT))
            found.append(list(session.generate(30)))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and found == [found[0]] * 4


def test_a_forked_process_goes_on_and_ends():
    """multiprocessing's fork: the child has none of the engine's threads, and waits for none."""
    program = f"""
import butler, os
model = butler.Model({GQA!r})
engine = butler.Engine(model, n_threads=3)
def text():
    session = engine.session("h2o:budget=16")
    session.prefill(model.tokenize({PROMPT!r}))
    return list(session.generate(30))
wanted = text()
child = os.fork()
same = text() == wanted
if child:
    print(same, os.waitpid(child, 0)[1])
else:
    engine.close()
    os._exit(0 if same else 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 0\n", "")


def test_the_interpreter_ends_with_everything_open():
    """Cycles through a metric, nothing closed, callbacks registered: no crash at the end."""
    program = f"""
import butler, numpy as np
class M(butler.Metric):
    name, scale = "m", "weight"
    def record(self, shape, params): return 1, np.float32
    def append(self, view, first, n): view.records(first, n)[:] = 1
    def score(self, view, q, first, n): return np.zeros((len(q), n))
for _ in range(30):
    model = butler.Model({GQA!r})
    engine = butler.Engine(model, n_threads=2)
    m = M()
    m.engine, m.session, model.m = engine, engine.session(), m
    engine.register(m)
    m.own = engine.session("m:budget=4")
    m.own.prefill([1, 2, 3, 4, 5, 6, 7])
    m.own.step(3)
print("done")
"""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
