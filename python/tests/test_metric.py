"""Metrics in Python: they get what C metrics get, and select what the built-in ones select."""
import subprocess

import numpy as np
import pytest

import butler
from conftest import GQA, PROMPT, ROOT

N = 60  # tokens of the prompt


class Exact(butler.Metric):
    name, summary = "py_exact", "q.k"

    def score(self, view, q, first, n):
        return view.dot_keys(q, first, n)


class Norm(butler.Metric):
    """The built-in `knorm`, in a structured record."""
    name, scale, query_free = "py_norm", "weight", True

    def record(self, shape, params):
        return 1, [("norm", np.float32)]

    def append(self, view, first, n):
        view.records(first, n)["norm"] = -np.linalg.norm(view.keys(first, n), axis=1)

    def score(self, view, q, first, n):
        return view.records(first, n)["norm"]


class FourNorms(butler.Metric):
    """The same, with a record for four slots: what it holds has to follow tokens that move."""
    name, scale, query_free = "py_four_norms", "weight", True

    def record(self, shape, params):
        return 4, np.dtype((np.float32, 4))

    def append(self, view, first, n):
        view.records().reshape(-1)[first:first + n] = -np.linalg.norm(view.keys(first, n), axis=1)

    def move(self, view, source, target, n):
        norms = view.records().reshape(-1)
        norms[target:target + n] = norms[source:source + n].copy()

    def score(self, view, q, first, n):
        return view.records().reshape(-1)[first:first + n]


class Earlier(butler.Metric):
    """The built-in `prevlayer`."""
    name, earlier_layers = "py_earlier", True

    def score(self, view, q, first, n):
        return view.dot_layer(view.layer - 1, first, n)


class Attention(butler.Metric):
    """The built-in metric of `h2o`."""
    name, scale = "py_attention", "weight"
    reads_keys = False

    def record(self, shape, params):
        return 1, np.dtype((np.float32, shape.group))

    def attention_window(self, params):
        return 2**31 - 1

    def observe(self, view, position, weights):
        view.records(0, weights.shape[1])[:] += weights.T

    def score(self, view, q, first, n):
        return view.records(first, n).T


class Pages(butler.Metric):
    """One score for 8 tokens: the first key of each. params: what it is divided by."""
    name, page_scores = "py_pages", True
    params = [butler.Param("divisor", 2, 1, 9, "what scores are divided by"), butler.Param("sign", 1, -1, 1)]

    def record(self, shape, params):
        return 8, np.dtype((np.float32, shape.head_dim))

    def append(self, view, first, n):
        for slot in range(first, first + n):
            if slot % 8 == 0:
                view.records(slot // 8, 1)[0] = view.keys(slot, 1)[0]

    def score(self, view, q, first, n):
        return view.params["sign"] * q @ view.records(first, n).T / view.params["divisor"]

    def score_bytes(self, shape, params, n_slots):
        return 1000


def follow(engine, policy, n_steps=12):
    """Selections of some steps, and the bytes that the metric read in them."""
    session = engine.session(policy)
    session.prefill(engine.model.tokenize(PROMPT * 2)[:N])
    session.reset_stats()
    selections = []
    for token in range(20, 20 + n_steps):
        session.step(token)
        selections.append([[head.tolist() for head in heads] for heads in session.selections()])
    return selections, session.stats()


@pytest.mark.parametrize("metric, policy, like", [
    (Exact, "py_exact:budget=16,sinks=0,recent=0,dense=0", "oracle:budget=16"),
    (Exact, "py_exact:budget=16,sinks=2,recent=4,dense=1,share=query", "oracle:budget=16,sinks=2,recent=4,dense=1,share=query"),
    (Earlier, "py_earlier:budget=16,sinks=0,recent=0,dense=1", "prevlayer:budget=16"),
    (Norm, "py_norm:method=evict,budget=24,sinks=0,recent=0", "knorm:budget=24"),
    (FourNorms, "py_four_norms:method=evict,budget=24,sinks=0,recent=0", "knorm:budget=24"),
    (Attention, "py_attention:method=evict,budget=24,sinks=2,recent=4", "h2o:budget=24,heavy=0.75,sinks=2"),
])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_like_a_built_in_metric(model, metric, policy, like, n_threads):
    with butler.Engine(model, n_threads=n_threads) as engine:
        engine.register(metric())
        (own, own_stats), (built_in, stats) = follow(engine, policy), follow(engine, like)
        if metric is not Attention:
            assert own == built_in
        assert own_stats.kv_bytes == stats.kv_bytes
        if metric is Exact:
            assert own_stats.metric_bytes == stats.metric_bytes > 0
        assert engine.policies()[-1].name == metric.name


def test_like_a_metric_in_c(model, tmp_path):
    """examples/plugin.c, which finds the library's functions in the one that Python loaded."""
    class ValueNorm(butler.Metric):
        name, scale, query_free, reads_keys = "py_value_norm", "weight", True, False

        def score(self, view, q, first, n):
            assert q.shape == (1, view.shape.head_dim)
            return np.linalg.norm(view.values(first, n), axis=1)
    plugin = tmp_path / "value_norm.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{ROOT}/include", ROOT / "examples/plugin.c", "-lm", "-o", plugin], check=True)
    with butler.Engine(model, n_threads=2) as engine:
        engine.load_plugin(plugin)
        engine.register(ValueNorm())
        own, built_in = (follow(engine, name + ":budget=16,dense=0") for name in ("py_value_norm", "value_norm"))
        assert own[0] == built_in[0] and own[1].metric_bytes == built_in[1].metric_bytes


def test_pages_and_params(engine):
    engine.register(Pages())
    assert "divisor=2,sign=1" in engine.policies()[-1].defaults
    selections, stats = follow(engine, "py_pages:budget=16,divisor=3,dense=0,sinks=0,recent=0")
    heads = 2 * 2  # layers, KV heads
    assert stats.metric_bytes == heads * (12 * 1000 + engine.model.info.head_dim * 2)  # in one of the 12 steps append() reads a key
    for heads in selections[0]:
        for chosen in heads:
            whole = [slot for slot in chosen if slot < N // 8 * 8]
            assert len(whole) % 8 == 0 and whole
    other, _ = follow(engine, "py_pages:budget=16,sign=-1,dense=0,sinks=0,recent=0")
    assert other != selections
    with pytest.raises(butler.Error, match="divisor"):
        engine.session("py_pages:divisor=10")


def test_what_a_view_gives(engine):
    seen = []

    class Look(butler.Metric):
        name = "look"

        def score(self, view, q, first, n):
            keys, values = view.keys(first, n), view.values()
            assert np.array_equal(view.keys(3, 2), view.keys()[3:5]) and keys.shape == values.shape == (view.n_slots, view.shape.head_dim)
            assert np.allclose(view.dot_keys(q, first, n), q @ keys.T, rtol=1e-4, atol=1e-4) and not np.array_equal(keys, values)
            assert view.positions().tolist() == list(range(n)) and view.query_position == view.n_slots - 1
            for wrong in (lambda: view.keys(n, 1), lambda: view.positions(-1), lambda: view.dot_layer(7)):
                with pytest.raises(IndexError):
                    wrong()
            with pytest.raises(ValueError, match="record"):
                view.records()
            seen.append((view.layer, view.kv_head, view.shape.n_heads, view))
            return np.zeros((len(q), n))
    engine.register(Look())
    follow(engine, "look:budget=8,dense=0", 1)
    assert sorted(place[:3] for place in seen) == [(0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4)]
    with pytest.raises(ValueError, match="only during the call"):
        seen[0][3].keys()


@pytest.mark.parametrize("metric, policy", [(Norm, "py_norm:budget=12,dense=0"), (Attention, "py_attention:method=evict,budget=24"),
                                            (Pages, "py_pages:budget=16,dense=0")])
def test_records_are_saved(model, engine, metric, policy, tmp_path):
    """A restored session goes on as the saved one, in another engine too, and records follow tokens that move."""
    engine.register(metric())
    session = engine.session(policy)
    session.prefill(model.tokenize(PROMPT))
    list(session.generate(5))
    session.save(tmp_path / "saved")
    expected = list(session.generate(20))
    with butler.Engine(model, n_threads=1) as other:
        with pytest.raises(butler.Error, match=metric.name):
            other.restore(tmp_path / "saved")
        other.register(metric())
        assert list(other.restore(tmp_path / "saved").generate(20)) == expected


def test_exceptions_arrive(engine, capfd):
    """What a metric raises is raised by the call that used it, once, and the session is not used on."""
    class Fails(Norm):
        name, where = "fails", None

        def record(self, shape, params):
            self.check("record")
            return super().record(shape, params)

        def append(self, view, first, n):
            self.check("append")
            super().append(view, first, n)

        def score(self, view, q, first, n):
            self.check("score")
            return super().score(view, q, first, n)

        def check(self, where):
            if where == self.where:
                raise LookupError(f"in {where}")
    metric = Fails()
    metric.where = "record"
    with pytest.raises(LookupError, match="in record"):
        engine.register(metric)
    metric = Fails()
    metric.name = "fails2"
    engine.register(metric)
    for where in ("append", "score"):
        session = engine.session("fails2:budget=8,dense=0")
        untouched = engine.session("full")
        metric.where = where
        with pytest.raises(LookupError, match=f"in {where}"):
            session.prefill(range(3, 40))
            session.step(9)
        metric.where = None
        with pytest.raises(butler.Error, match="metric failed") as caught:
            session.step(9)
        assert isinstance(caught.value.__cause__, LookupError)
        untouched.prefill([1, 2, 3])
        session.truncate(0)
        session.prefill(range(3, 40))
        session.step(9)
        assert len(session.selection(1, 0)) == 8
    assert capfd.readouterr().err == ""


def test_wrong_metrics_are_refused(engine):
    class Wide(Exact):
        name = "wide"

        def score(self, view, q, first, n):
            return np.zeros((len(q), n + 1))
    engine.register(Wide())
    session = engine.session("wide:budget=8,dense=0")
    session.prefill(range(3, 40))
    with pytest.raises(ValueError, match=r"wide: score\(\) gave an array \[2, 39\], not \[2, 38\]"):
        session.step(1)

    def changed(base=Exact, **fields):
        return type("Changed", (base,), fields)()
    for metric, kind, words in [
            (object(), TypeError, "butler.Metric"), (butler.Metric(), TypeError, r"score\(\)"), (Exact, TypeError, "object of"),
            (changed(scale="log"), ValueError, "log.*logit"), (changed(name="fier"), butler.Error, "taken"),
            (changed(name="A b"), butler.Error, "name"), (changed(name="p", params=[butler.Param("budget", 1, 0, 2)]), butler.Error, "budget"),
            (changed(name="q", page_scores=True), butler.Error, r"record\(\)"),
            (changed(Norm, name="r", record=lambda self, shape, params: (1, "no dtype")), TypeError, "no dtype")]:
        with pytest.raises(kind, match=words):
            engine.register(metric)
