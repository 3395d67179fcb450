"""Models, engines, sessions and samplers give what the command gives."""
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import butler
from conftest import GQA, PROMPT, ROOT, SMOLLM2, command

POLICIES = ["full", "fier:budget=16,dense=0", "quest:budget=32,dense=0", "h2o:budget=20", "tova:budget=24"]


@pytest.mark.parametrize("text", [PROMPT, "naïve café — 日本語\n\t😀", "<s>x</s>", ""])
def test_tokens_and_text(model, text):
    ids = model.tokenize(text)
    assert ids.dtype == np.int32 and ids.tolist() == command("tokenize", "-m", GQA, "-p", text)[0]["ids"]
    plain = model.tokenize(text, add_special=False, parse_special=False)
    assert plain.tolist() == command("tokenize", "-m", GQA, "-p", text, "--no-special")[0]["ids"]
    assert model.detokenize(plain).strip() == text.strip()
    assert b"".join(model.token_bytes(i) for i in plain).decode() == model.detokenize(plain)


def test_what_a_model_is(model):
    row = command("info", GQA)[0]
    assert (model.info.architecture, model.info.n_layers, model.n_vocab) == (row["architecture"], row["n_layers"], row["n_vocab"])
    assert butler.describe(GQA).model_fingerprint == 0 and butler.describe(GQA).bytes == (ROOT / GQA).stat().st_size
    assert model.bos == 1 and not model.is_end(model.bos) and model.token_spelling(1) == b"<s>" and model.token_bytes(1) == b""
    assert model.kv_bytes(64, "f32") == 2 * model.kv_bytes(64, "f16") > 0
    with pytest.raises(ValueError, match="267"):
        model.token_bytes(267)


def test_texts_are_utf8_in_any_locale(model):
    done = subprocess.run([sys.executable, "-c", f"import butler; m = butler.Model({GQA!r}); print(ascii(m.chat([dict(role='user', content=chr(252))], jinja='{{{{ messages[0].content }}}}')[0]))"],
                          capture_output=True, text=True, env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, timeout=60)
    assert "\\xfc" in done.stdout, done.stderr
    for wrong in (5, None, [104, 105]):
        with pytest.raises(TypeError, match="str or bytes"):
            model.tokenize(wrong)


def test_chat(model):
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{{ m.mood }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    messages = [{"role": "user", "content": "a<s>b", "mood": "!"}, {"role": "assistant", "content": "c"}]
    text, ids = model.chat(messages, jinja=template)
    assert text == "<s>user: a<s>b!\n<s>assistant: c\n>"
    assert ids.tolist().count(1) == 2  # the one in the message is its letters
    assert model.chat([], jinja="{{ x }}", variables={"x": 7}, add_generation_prompt=False)[0] == "7"
    with pytest.raises(butler.Error, match="line 2") as caught:
        model.chat(messages, jinja="\n{{ nosuch.field.field }}")
    assert caught.value.name == "FORMAT"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_the_command_s(engine, policy):
    session = engine.session(policy)
    session.prefill(engine.model.tokenize(PROMPT))
    ids = list(session.generate(40))
    *_, last = command("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0", "--kv", policy)
    assert ids == last["ids"] and engine.model.detokenize(ids) == last["text"]
    stats = session.stats()
    for name in ("n_prefill", "n_decode", "kv_bytes", "metric_bytes", "full_kv_bytes", "kv_memory", "metric_memory"):
        assert getattr(stats, name) == last["stats"][name], name
    assert stats.kv_read == pytest.approx(last["stats"]["kv_read"])


def test_sampling_is_the_command_s(engine):
    session = engine.session(n_ctx=200)
    prompt = engine.model.tokenize(PROMPT)
    session.prefill(prompt)
    with butler.Sampler(temperature=0.9, top_k=40, seed=7, repeat_penalty=1.2) as sampler:
        sampler.accept(prompt)
        ids = list(session.generate(30, sampler))
    flags = ["--temp", 0.9, "--top-k", 40, "--top-p", 1, "--min-p", 0, "-s", 7, "--repeat-penalty", 1.2]
    assert ids == command("run", "-m", GQA, "-p", PROMPT, "-n", 30, "-c", 200, *flags)[-1]["ids"]
    never = butler.Sampler(logit_bias={ids[0]: -np.inf}, end_ids=[5], min_tokens=3)
    logits = np.zeros(267, np.float32)
    logits[[ids[0], 5, 6]] = 3, 2, 1
    assert [never.sample(logits) for _ in range(4)] == [6, 6, 6, 5]
    with pytest.raises(butler.Error, match="token 0 is nan"):
        never.sample(np.full(267, np.nan))


def test_logits_are_the_command_s(engine):
    ids = engine.model.tokenize(PROMPT)
    session = engine.session(kv_type="f32")
    assert session.logits is None
    logits = session.prefill(ids, logits="all")
    rows = command("logits", "-m", GQA, "--ids", ",".join(map(str, ids)), "--all")
    assert np.array_equal(logits, np.array([row["logits"] for row in rows], np.float32)) and logits.shape == (len(ids), 267)
    assert np.array_equal(session.logits, logits[-1])
    other = engine.session(kv_type="f32")
    assert other.prefill(ids[:9], logits=None) is None
    assert np.array_equal(other.prefill(ids[9:]), logits[-1])


def test_selections(engine):
    ids = engine.model.tokenize(PROMPT)
    session = engine.session("fier:budget=8,dense=1,sinks=2")
    session.prefill(ids)
    session.step(7)
    selections = session.selections()
    assert (len(selections), len(selections[0])) == (2, 4)
    for head in range(4):
        assert selections[0][head].tolist() == list(range(len(ids) + 1))  # a dense layer
        chosen = selections[1][head].tolist()
        assert len(chosen) == 8 and chosen == sorted(chosen) and {0, 1, len(ids)} <= set(chosen)
        assert session.selection(1, head).tolist() == chosen
    with pytest.raises(IndexError):
        session.selection(2, 0)


def test_many_sessions_at_once(engine):
    prompts = [engine.model.tokenize(PROMPT[:n]) for n in (10, 25, 40)]
    alone = []
    for policy, prompt in zip(POLICIES, prompts):
        session = engine.session(policy)
        alone.append((session.prefill(prompt, logits="all"), session.step(9)))
    sessions = [engine.session(policy) for policy, _ in zip(POLICIES, prompts)]
    first = engine.run([butler.Span(s, ids, logits="all") for s, ids in zip(sessions, prompts)])
    then = engine.run([(s, [9], 0, logits) for s, logits in zip(sessions, ("last", "all", None))])
    for i, (prompt_logits, step_logits) in enumerate(alone):
        assert np.array_equal(first[i], prompt_logits)
        assert then[i] is None if i == 2 else np.array_equal(np.reshape(then[i], -1), step_logits)
    with pytest.raises(butler.Error, match="same session"):
        engine.run([(sessions[0], [1]), (sessions[0], [2])])


def test_copies_and_files(engine, tmp_path):
    ids = engine.model.tokenize(PROMPT)
    session = engine.session("h2o:budget=20", n_ctx=128)
    session.prefill(ids)
    session.save(tmp_path / "session")
    info = butler.describe(tmp_path / "session")
    assert info.n_tokens == len(ids) and info.policy.startswith("h2o:")
    fork, copy = session.fork(), engine.session("h2o:budget=20", n_ctx=128)
    copy.copy_from(session)
    restored = engine.restore(tmp_path / "session", n_ctx=100)
    assert restored.n_ctx == 100
    texts = [list(s.generate(20)) for s in (session, fork, copy, restored)]
    assert texts == [texts[0]] * 4 and len(texts[0]) == 20
    session.truncate(0)
    assert session.n_past == 0 and session.logits is None
    with pytest.raises(butler.Error) as caught:
        engine.restore(GQA)
    assert caught.value.name == "FORMAT" and GQA in str(caught.value)


def test_prefixes(model):
    with butler.Engine(model, n_threads=1, prefix_bytes=1 << 20) as engine:
        ids = np.arange(3, 203) % 250 + 3
        first = engine.session()
        expected = first.prefill(ids)
        second = engine.session()
        n = second.adopt_prefix(ids)
        assert n == 192 and np.array_equal(second.prefill(ids[n:]), expected)
        assert engine.info.prefix_hits == 1


def test_policies(engine):
    rows = command("policies")
    assert [(p.name, p.defaults) for p in engine.policies()] == [(row["policy"], row["defaults"]) for row in rows]
    cost = engine.estimate("fier:budget=128,dense=0", 1000)
    assert 0 < cost.kv_bytes < cost.full_kv_bytes and cost.budget_known
    engine.check_policy("fier")
    with pytest.raises(butler.Error, match="nosuch") as caught:
        engine.check_policy("fier:nosuch=1")
    assert caught.value.name == "ARGUMENT" and caught.value.code == butler.lib.BUTLER_ERROR_ARGUMENT


def test_a_policy_that_stops(engine):
    session = engine.session("entropystop:entropy=100,after=1")
    session.prefill(engine.model.tokenize(PROMPT))
    assert len(list(session.generate(20))) < 20 and session.should_stop


def test_errors_name_what_is_wrong(engine, tmp_path):
    for call, kind, words in [
            (lambda: butler.Model("/nonexistent.gguf"), butler.Error, "/nonexistent.gguf"),
            (lambda: butler.Model(GQA, nosuch=1), TypeError, "nosuch.*vocabulary_only"),
            (lambda: butler.Model("a\0b"), ValueError, "zero byte"),
            (lambda: butler.Engine(engine.model, isa="z80"), butler.Error, "z80"),
            (lambda: engine.session("nosuch"), butler.Error, "nosuch"),
            (lambda: engine.session(kv_type="q4"), ValueError, "q4.*f16, f32, q8_0"),
            (lambda: engine.session().copy_from(butler.Engine(engine.model).session()), ValueError, "another engine"),
            (lambda: engine.session(n_ctx=-1), butler.Error, "n_ctx|context"),
            (lambda: engine.session().prefill([1.5]), TypeError, "integers"),
            (lambda: engine.session().prefill([[1, 2]]), TypeError, "one dimension|in 2"),
            (lambda: engine.session().prefill([2**40]), ValueError, "32 bits"),
            (lambda: engine.session().prefill([267]), butler.Error, "267"),
            (lambda: engine.session().prefill([1] * 300), butler.Error, "300"),
            (lambda: engine.session().prefill([1], logits="some"), ValueError, "some"),
            (lambda: list(engine.session().generate(1)), ValueError, "no logits"),
            (lambda: butler.Sampler(top_p=7), butler.Error, "top-p"),
            (lambda: butler.Sampler(heat=7), TypeError, "heat.*temperature")]:
        with pytest.raises(kind, match=words):
            call()


def test_cancel(real, request):
    """From another thread, and by Ctrl-C: the prompt ends early, and the session has what was read."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    ids = real.model.tokenize((ROOT / "models/long_text.txt").read_text())[:4000]
    session = real.session()
    for stop, kind in ((session.cancel, butler.Error), (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt)):
        timer = threading.Timer(0.3, stop)
        timer.start()
        start = time.monotonic()
        with pytest.raises(kind):
            session.prefill(ids)
        timer.join()
        assert 0 <= session.n_past < len(ids)
        session.truncate(0)
        assert session.prefill(ids[:4]).shape == (real.model.n_vocab,)
        session.truncate(0)


def test_a_real_model(real):
    text, ids = real.model.chat([{"role": "user", "content": "What is the capital of France?"}])
    session = real.session("fier:budget=64", n_ctx=256)
    session.prefill(ids)
    answer = list(session.generate(12))
    assert real.model.detokenize(answer) == "The capital of France is Paris."
    row = command("run", "-m", SMOLLM2, "-p", text, "-n", 12, "--temp", 0, "--kv", "fier:budget=64", "-c", 256,
                  "--prompt-precision", 16)[-1]
    assert row["ids"] == answer and row["stats"]["kv_bytes"] == session.stats().kv_bytes
    other = real.session(kv_type="f32")
    logits = command("logits", "-m", SMOLLM2, "-p", "The capital of France is", "--prompt-precision", 16)[-1]["logits"]
    assert np.array_equal(other.prefill(real.model.tokenize("The capital of France is")), np.array(logits, np.float32))
