"""butler serve: answers equal those of `butler run` whatever else is served, the interfaces' shapes, and what a server must refuse."""
import contextlib
import http.client
import json
import math
import random
import re
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

from cli import BUTLER, GQA, N_CTX, N_VOCAB, PROMPT, rows

LINK = subprocess.run(["ldd", BUTLER], capture_output=True, text=True).stdout
pytestmark = pytest.mark.skipif("libevent" not in LINK, reason="butler is built without libevent")


class Server:
    """A server on a free port, with what it writes on standard error."""

    def __init__(self, *flags, model=GQA):
        self.process = subprocess.Popen([BUTLER, "serve", "-m", model, "--port", "0", "-t", "1", *map(str, flags)],
                                        stderr=subprocess.PIPE, text=True)
        self.ready = ""
        while "listening on" not in self.ready:
            self.ready = self.process.stderr.readline()
            assert self.ready, "the server ended before it listened"
        found = re.search(r":(\d+)$", self.ready.strip())
        self.port = int(found.group(1)) if found else 0

    def request(self, method, path, body=None, headers={}):
        """(status, headers, bytes) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, expect=200, **fields):
        status, _, text = self.request("POST", path, body if isinstance(body, (bytes, str)) else {**body, **fields})
        assert status == expect, text
        return json.loads(text)

    def get(self, path):
        status, _, text = self.request("GET", path)
        assert status == 200
        return json.loads(text)

    def stream(self, path, **body):
        """The objects of a stream, which must end as it should."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream"
        pieces = text.decode().split("\n\n")
        assert pieces.pop() == "" and all(piece.startswith("data: ") for piece in pieces)
        if path.startswith("/v1"):
            assert pieces.pop() == "data: [DONE]"
        return [json.loads(piece[6:]) for piece in pieces]

    def raw(self, data, n=65536):
        """The first bytes that come back for these bytes; "" when the connection is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as s:
            s.sendall(data)
            return s.recv(n).decode(errors="replace")

    def metric(self, name):
        text = self.request("GET", "/metrics")[2].decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M).group(1))

    def wait_idle(self):
        end = time.time() + 20
        while self.get("/slots") or self.metric("llamacpp:requests_deferred"):
            assert time.time() < end, "jobs are left"
            time.sleep(0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()
            self.process.stderr.close()


@pytest.fixture(scope="module")
def server():
    s = Server()
    yield s
    assert s.stop() == 0


def run_text(prompt, n, policy="full", temp=0, seed=0, *flags):
    row = rows("run", "-m", GQA, "-p", prompt, "-n", n, "--kv", policy, "--temp", temp, "--top-k", 0, "--top-p", 1, "--min-p", 0, "-s",
               seed, "-t", 1, *flags)[-1]
    return row["text"]


def completion(prompt, n, policy="full", temp=0, seed=0):
    return {"prompt": prompt, "max_tokens": n, "temperature": temp, "seed": seed, "top_k": 0, "top_p": 1, "min_p": 0,
            "kv": {"policy": policy}}


# ------------------------------------------------------------------------------------------------------- equality

CASES = [(PROMPT, 12, "full", 0, 0), (PROMPT * 3, 20, "quest:budget=32", 1, 3), (PROMPT * 5, 9, "h2o:budget=24", 1, 4),
         (PROMPT + " and of Jürgen €5", 24, "streaming:budget=16", 0.7, 5), ("a", 40, "full", 1.3, 6),
         (PROMPT * 6, 30, "snapkv:budget=40", 1, 7), (PROMPT * 4, 16, "fier:budget=20", 0, 0), (PROMPT * 6, 8, "tinyserve:budget=32", 1, 1)]


# Answers that grow: with little memory some of them must leave it.
LONG_CASES = [(PROMPT, 180, "full", 1, 1), (PROMPT, 190, "full", 0.8, 2), (PROMPT[:9], 200, "quest:budget=32", 1, 3),
              (PROMPT, 170, "fier:budget=20", 1, 4), (PROMPT * 3, 120, "h2o:budget=0.5", 1, 5), (PROMPT * 6, 30, "snapkv:budget=40", 1, 7)]


@pytest.mark.parametrize("parks", [False, True])
def test_equals_run_under_load(parks, tmp_path, request):
    """Random clients with policies, seeds, streams and disconnects: every answer is what one session alone gives."""
    server = Server(*(["--kv-ram", 640000, "--park", tmp_path] if parks else []))
    request.addfinalizer(server.process.kill)
    cases = LONG_CASES if parks else CASES
    wanted = {case: run_text(*case) for case in cases}
    assert len(set(wanted.values())) == len(cases)
    wrong, done = [], []

    def client(seed):
        r = random.Random(seed)
        for _ in range(4):
            case = r.choice(cases)
            body = completion(*case)
            way = r.choice(["whole", "stream", "gone"])
            if way == "gone":  # ends in the middle of whatever the server does
                data = json.dumps({**body, "stream": r.random() < 0.5, "ignore_eos": True, "max_tokens": 100}).encode()
                s = socket.create_connection(("127.0.0.1", server.port))
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                time.sleep(r.random() * 0.01)
                s.close()
                continue
            got = server.post("/v1/completions", body)["choices"][0]["text"] if way == "whole" else \
                "".join(c["choices"][0]["text"] for c in server.stream("/v1/completions", **body))
            (done if got == wanted[case] else wrong).append((case, way, got))

    def crowd():
        """Answers that begin together and grow together: there is memory for about half of them to the end."""
        prompts = [PROMPT[:5 + i] for i in range(16)]
        got = server.post("/v1/completions", completion(prompts, 200, "full", 1, 8), ignore_eos=True)["choices"]
        assert [c["text"] for c in got] == [run_text(prompt, 200, "full", 1, 8, "--ignore-eos") for prompt in prompts]

    if parks:
        crowd()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(done) > 100
    server.wait_idle()
    assert server.metric("butler:kv_reserved_bytes") == server.metric("butler:parked") == server.metric("butler:jobs_failed_total") == 0
    assert (server.metric("butler:parked_total") > 0) == (server.metric("butler:parked_bytes_total") > 0) == parks
    assert list(tmp_path.iterdir()) == []  # no file ever has a name
    assert server.stop() == 0


def test_lossless(server):
    """Drafts and checks change no byte: of an answer alone, of several, of a stream that ends at a stop text; usage counts drafts."""
    wanted = [run_text(PROMPT * 3, 60, "full", 1, seed) for seed in (3, 4)]
    body = completion(PROMPT * 3, 60, temp=1, seed=3)
    for kv in ({"lossless": True}, {"lossless": 3, "policy": "quest:budget=32,page=8"}):
        got = server.post("/v1/completions", body, kv=kv)
        used = got["usage"]["kv"]
        assert got["choices"][0]["text"] == wanted[0] and used["policy"] == kv.get("policy", "verified")
        assert 0 < used["drafted"] and 0 <= used["accepted"] <= used["drafted"]
        assert [c["text"] for c in server.post("/v1/completions", body, kv=kv, n=2)["choices"]] == wanted
        stop = wanted[0][20:24]
        streamed = "".join(c["choices"][0]["text"] for c in server.stream("/v1/completions", **{**body, "kv": kv, "stop": [stop]}))
        assert streamed == wanted[0][:wanted[0].index(stop)]
    scored = server.post("/v1/completions", body, kv={"lossless": True}, logprobs=1)  # needs every token's logits: no drafts
    assert scored["choices"][0]["text"] == wanted[0] and scored["usage"]["kv"]["drafted"] == 0
    assert "drafted" not in server.post("/v1/completions", body, kv={"lossless": False})["usage"]["kv"]


@pytest.mark.parametrize("policy", ["h2o:budget=200", "tova:budget=200", "knorm:budget=200", "quest:budget=200", "h2o:budget=100000"])
def test_share_where_a_budget_covers_the_text(server, policy):
    used = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}, kv={"policy": policy})["usage"]["kv"]
    assert used["read_share"] == 1 and used["metric_bytes_read"] == 0 and used["bytes_read"] == used["dense_bytes"] > 0
    assert (used.get("upkeep_bytes_read", 0) > 0) == (policy in ("h2o:budget=200", "knorm:budget=200"))


def test_lossless_for_all(request):
    """--lossless is for requests that do not choose."""
    server = Server("--lossless=3")
    request.addfinalizer(server.process.kill)
    body = completion(PROMPT, 40)
    policies = [server.post("/v1/completions", body, kv=kv)["usage"]["kv"] for kv in (None, {"lossless": False}, {"policy": "h2o:budget=32"})]
    assert [(kv["policy"], kv.get("drafted", 0) > 0) for kv in policies] == [("verified", True), ("full", False), ("h2o:budget=32", False)]
    assert server.stop() == 0


def test_killed_while_requests_are_parked(tmp_path, request):
    """Nothing is left in the folder, and the next server begins as if nothing had been."""
    flags = ("--kv-ram", 640000, "--park", tmp_path)
    first = Server(*flags)
    request.addfinalizer(first.process.kill)
    data = json.dumps(completion([PROMPT[:5 + i % 18] for i in range(64)], 240, "full", 1, 8) | {"ignore_eos": True}).encode()
    with socket.create_connection(("127.0.0.1", first.port), timeout=60) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        end = time.time() + 30
        while not any(slot["state"] == "parked" for slot in first.get("/slots")):
            assert time.time() < end
        first.process.kill()
        first.process.wait()
    first.process.stderr.close()
    assert list(tmp_path.iterdir()) == []
    second = Server(*flags)
    request.addfinalizer(second.process.kill)
    assert second.metric("butler:parked") == 0
    assert second.post("/v1/completions", completion(*CASES[0]))["choices"][0]["text"] == run_text(*CASES[0])
    assert second.stop() == 0


def test_park_must_be_a_folder(tmp_path):
    done = subprocess.run([BUTLER, "serve", "-m", GQA, "--port", "0", "--park", tmp_path / "none"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and str(tmp_path / "none") in done.stderr


def test_prefix_cache_changes_nothing():
    cold, warm = Server(), Server()
    long = PROMPT * 9
    body = completion(long + " x", 20, "quest:budget=32", 1, 9)
    before = warm.post("/v1/completions", completion(long + " y", 2))
    assert before["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    a, b = cold.post("/v1/completions", body), warm.post("/v1/completions", body)
    assert b["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64 and warm.metric("butler:prefix_hits_total") == 1
    assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and a["choices"] == b["choices"]
    cold.stop(), warm.stop()


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 1}])
def test_prompts_that_come_together_share_their_beginning(more):
    """One that begins to be read when another is complete finds what they share."""
    document = [5 + i * 7 % 250 for i in range(200)]
    body = {"prompt": [document + [9, i] for i in range(5, 10)], "max_tokens": 3, "temperature": 0, **more}
    s = Server("--block", 64)
    together = s.post("/v1/completions", body)
    alone = s.post("/v1/completions", {**body, "cache_prompt": False})
    assert together["choices"] == alone["choices"] and alone["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert together["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
    assert s.stop() == 0


def test_choices_are_those_of_their_seeds(server):
    many = server.post("/v1/completions", {**completion(PROMPT, 10, temp=1, seed=20), "n": 3})
    assert [c["index"] for c in many["choices"]] == [0, 1, 2]
    assert [c["text"] for c in many["choices"]] == [run_text(PROMPT, 10, temp=1, seed=20 + i) for i in range(3)]
    assert many["usage"]["completion_tokens"] == 30


# -------------------------------------------------------------------------------------------------------- scoring

def log_softmax_rows(ids):
    out = np.array([row["logits"] for row in rows("logits", "-m", GQA, "--ids", ",".join(map(str, ids)), "--all", "--kv-type", "f16")], dtype=np.float64)
    out -= out.max(axis=1, keepdims=True)
    return out - np.log(np.exp(out).sum(axis=1, keepdims=True))


def test_scoring(server):
    ids = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    expected = log_softmax_rows(ids)
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": True, "seed": 1234}
    text = server.post("/v1/completions", body, prompt=PROMPT)["choices"][0]
    array = server.post("/v1/completions", body, prompt=ids)["choices"][0]
    several = server.post("/v1/completions", body, prompt=[ids, ids[:5]])["choices"]
    assert text == array == several[0] and several[1]["index"] == 1
    scores = text["logprobs"]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert {len(v) for v in scores.values()} == {len(ids) + 1} and len(several[1]["logprobs"]["tokens"]) == 6
    for i, score in enumerate(scores["token_logprobs"][1:], 1):
        if i < len(ids):
            assert score == pytest.approx(expected[i - 1][ids[i]], abs=1e-5)
        top = scores["top_logprobs"][i]
        assert max(top.values()) == pytest.approx(expected[i - 1].max(), abs=1e-5) and top[scores["tokens"][i]] == score
    assert max(scores["top_logprobs"][-1].values()) == scores["token_logprobs"][-1]  # greedy
    assert several[1]["logprobs"]["token_logprobs"][1:5] == scores["token_logprobs"][1:5]
    assert server.post("/v1/completions", {**body, "max_tokens": 0}, prompt=ids)["choices"][0]["logprobs"]["tokens"] == scores["tokens"][:-1]
    streamed = server.stream("/v1/completions", prompt=PROMPT, **body)
    for name in ("token_logprobs", "text_offset", "tokens"):
        assert sum((c["choices"][0]["logprobs"][name] for c in streamed if c["choices"][0]["logprobs"]), []) == scores[name]


@pytest.mark.parametrize("policy", ["full", "quest:budget=32", "h2o:budget=24", "streaming:budget=16,prefill=evict"])
def test_scoring_with_the_prefix_cache_changes_nothing(policy):
    """Four continuations of one question, each scored by a server that has read nothing and by one that has scored the others."""
    question = [5 + i * 7 % 250 for i in range(200)]
    warm, cached = Server(), []
    for n_top in (1, 0):
        for continuation in ([9, 8, 7], [9, 8, 6, 5], [11], [30] * 20):
            body = {"prompt": question + continuation, "max_tokens": 1, "temperature": 0, "logprobs": n_top, "echo": True, "kv": {"policy": policy}}
            cold = Server()
            a, b = cold.post("/v1/completions", body), warm.post("/v1/completions", body)
            assert a["choices"] == b["choices"] and a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            cached.append(b["usage"]["prompt_tokens_details"]["cached_tokens"])
            cold.stop()
    assert cached == [0, 201, 199, 199, 201, 202, 199, 218] if policy in ("full", "quest:budget=32") else cached == [0] * 8
    # other policies of the same prompt share no scores, and more than the most probable token is computed anew
    more = warm.post("/v1/completions", {**body, "logprobs": 2})
    assert more["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert more["choices"][0]["logprobs"]["token_logprobs"] == b["choices"][0]["logprobs"]["token_logprobs"]
    assert warm.stop() == 0


def test_logprobs_shapes(server):
    zero = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "logprobs": 0})["choices"][0]["logprobs"]
    assert [len(top) for top in zero["top_logprobs"]] == [1, 1]
    chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": True,
                                                "top_logprobs": 3})["choices"][0]["logprobs"]["content"]
    assert len(chat) == 2 and all(len(t["top_logprobs"]) == 3 and t["bytes"] is not None for t in chat)
    native = server.post("/completion", {"prompt": PROMPT, "n_predict": 2, "n_probs": 3, "temperature": 0})
    assert len(native["completion_probabilities"]) == 2
    for t in native["completion_probabilities"]:
        assert t["id"] == t["top_logprobs"][0]["id"] and t["logprob"] == t["top_logprobs"][0]["logprob"]


# -------------------------------------------------------------------------------------------------------- streams

def test_chat_stream(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 0}
    whole = server.post("/v1/chat/completions", body)
    chunks = server.stream("/v1/chat/completions", **body, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert len({c["id"] for c in chunks}) == 1 and "cmpl" in chunks[0]["id"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    last = chunks[-2]["choices"][0]
    assert last["finish_reason"] == whole["choices"][0]["finish_reason"] and last["delta"] == {}
    deltas = [c["choices"][0]["delta"] for c in chunks[1:-2]]
    assert not any("role" in d for d in deltas)
    assert "".join(d["content"] for d in deltas) == whole["choices"][0]["message"]["content"]


def test_stop_texts(server):
    full = run_text(PROMPT, 40)
    stop = full[5:8]
    cut = full[:full.index(stop)]
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": ["never", stop]}
    whole = server.post("/v1/completions", body)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (cut, "stop")
    assert "".join(c["choices"][0]["text"] for c in server.stream("/v1/completions", **body)) == cut
    assert server.post("/completion", {**body, "n_predict": 40})["stop_type"] == "word"
    # what could have been the beginning of a stop text, and was not, comes in the end
    body["stop"] = full[-2:] + "never"
    assert server.post("/v1/completions", body)["choices"][0]["text"] == full


def test_native_stream(server):
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0}
    whole, chunks = server.post("/completion", body), server.stream("/completion", **body)
    assert "".join(c["content"] for c in chunks) == whole["content"] and chunks[-1]["stop"] and not chunks[0]["stop"]
    assert sum((c["tokens"] for c in chunks), []) == whole["tokens"] and chunks[-1]["stop_type"] == whole["stop_type"] == "limit"
    assert chunks[-1]["timings"]["predicted_n"] == 12


def test_assistant_message_is_continued(server):
    messages = [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "it"}]},
                {"role": "assistant", "content": "It w"}]
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    assert prompt == "User: Say it\nAssistant:It w"
    error = server.post("/v1/chat/completions", {"messages": messages + messages[1:]}, expect=400)["error"]
    assert "two messages of the assistant" in error["message"]


# ------------------------------------------------------------------------------------------------------- sampling

def test_sampling_fields(server):
    def ids(**fields):
        return server.post("/completion", {"prompt": PROMPT, "n_predict": 6, "temperature": 0, **fields})["tokens"]
    plain = ids()
    assert plain[0] not in ids(logit_bias=[[plain[0], False]]) and plain[0] not in ids(logit_bias={str(plain[0]): -1e9})
    assert ids(logit_bias={"100": 1000}) == [100] * 6
    assert len(set(ids(logit_bias={"100": 20, "101": 19.5, "102": 19}, presence_penalty=15))) > 1
    assert ids(temperature=5, top_k=1) == ids(temperature=5, top_p=0) == plain
    assert ids(temperature=2, seed=1) == ids(temperature=2, seed=1) != ids(temperature=2, seed=2)
    for flag, field, value in [("typical", "typical_p", 0.6), ("repeat-penalty", "repeat_penalty", 1.7), ("presence-penalty", "presence_penalty", 2),
                               ("frequency-penalty", "frequency_penalty", 1.5)]:
        shown = rows("run", "-m", GQA, "-p", PROMPT, "-n", 16, "--temp", 1, "-s", 3, f"--{flag}", value, "-t", 1)[-1]["text"]
        same = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1, "seed": 3}
        assert server.post("/v1/completions", {**same, field: value})["choices"][0]["text"] == shown
        assert server.post("/v1/completions", same)["choices"][0]["text"] != shown
    end = server.post("/tokenize", {"content": server.get("/tokenizer_info")["eos_token"]})["tokens"]
    wish = {str(end[0]): 100}
    assert ids(logit_bias=wish) == end and len(ids(logit_bias=wish, min_tokens=3)) == 4
    assert len(ids(logit_bias=wish, ignore_eos=True)) == 6


# ---------------------------------------------------------------------------------------------------- bad requests

@pytest.mark.parametrize("path, body, status, says", [
    ("/v1/completions", {"prompt": PROMPT, "grammar": "root ::= x"}, 400, "'grammar': grammar: line 1, column 10: rule 'x' is not defined"),
    ("/v1/completions", {"prompt": PROMPT, "grammar": 5}, 400, "'grammar'"),
    ("/v1/completions", {"prompt": PROMPT, "best_of": 2}, 400, "'best_of'"),
    ("/v1/completions", {"prompt": [5, "a", N_VOCAB]}, 400, "token 2"),
    ("/v1/completions", {"prompt": [5, [5]]}, 400, "token 1"),
    ("/v1/completions", {"prompt": ["a", [5], {}]}, 400, "'prompt'"),
    ("/v1/completions", {"prompt": [N_VOCAB]}, 400, "token 0"),
    ("/v1/completions", {"prompt": [1.5]}, 400, "token 0"),
    ("/v1/completions", {"prompt": []}, 400, "empty"),
    ("/v1/completions", {}, 400, "'prompt'"),
    ("/v1/completions", [], 400, "JSON object"),
    ("/v1/completions", "{", 400, "no JSON"),
    ("/v1/completions", b'{"prompt": "\xff"}', 400, "no JSON"),
    ("/v1/completions", {"prompt": PROMPT, "temperature": "hot"}, 400, "'temperature'"),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1.5}, 400, "'max_tokens'"),
    ("/v1/completions", {"prompt": PROMPT, "n": 0}, 400, "'n'"),
    ("/v1/completions", {"prompt": PROMPT, "logprobs": 21}, 400, "'logprobs'"),
    ("/v1/completions", {"prompt": PROMPT, "stop": [1]}, 400, "'stop'"),
    ("/v1/completions", {"prompt": PROMPT, "stop": ["a"] * 17}, 400, "'stop'"),
    ("/v1/completions", {"prompt": PROMPT, "logit_bias": {str(N_VOCAB): 1}}, 400, "'logit_bias'"),
    ("/v1/completions", {"prompt": PROMPT, "logit_bias": {"x": True}}, 400, "'logit_bias'"),
    ("/v1/completions", {"prompt": PROMPT, "logit_bias": [[5]]}, 400, "'logit_bias'"),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": ""}, 400, "'max_tokens'"),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "n_predict": "x"}, 400, "'n_predict'"),
    ("/v1/completions", {"prompt": PROMPT, "n": 0, "n_cmpl": 1}, 400, "'n'"),
    ("/v1/completions", {"prompt": PROMPT, "seed": 1.5}, 400, "'seed'"),
    ("/v1/completions", {"prompt": PROMPT, "stream_options": 5}, 400, "'stream_options'"),
    ("/v1/completions", {"prompt": PROMPT, "top_logprobs": 5}, 400, "'top_logprobs'"),
    ("/v1/completions", {"prompt": PROMPT, "model": 5}, 400, "'model'"),
    ("/v1/completions", {"prompt": PROMPT, "kv": {"policy": "nonsense"}}, 400, "nonsense"),
    ("/v1/completions", {"prompt": PROMPT, "kv": {"colour": 1}}, 400, "'kv.colour'"),
    ("/v1/completions", {"prompt": PROMPT, "kv": {"lossless": 16}}, 400, "'kv.lossless'"),
    ("/v1/completions", {"prompt": PROMPT, "kv": {"lossless": "yes"}}, 400, "'kv.lossless'"),
    ("/v1/completions", {"prompt": PROMPT, "kv": {"lossless": True, "policy": "h2o:budget=32"}}, 400, "h2o evicts tokens"),
    ("/v1/completions", {"prompt": PROMPT, "stream": 1}, 400, "'stream'"),
    ("/v1/chat/completions", {}, 400, "'messages'"),
    ("/v1/chat/completions", {"messages": [5]}, 400, "messages[0]"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "'content'"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json"}}, 400, "json"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "x"}}, 400, "response_format"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, 400, "'tools[0].function.name'"),
    ("/apply-template", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "'tools[0]'"),
    ("/v1/completions", {"prompt": PROMPT, "tools": [{"type": "function"}]}, 400, "'tools'"),
    ("/tokenize", {}, 400, "'content'"),
    ("/detokenize", {"tokens": [-1]}, 400, "token 0"),
    ("/nothing", {}, 404, "/nothing"),
    ("/health", {}, 405, "/health"),
])
def test_bad_requests(server, path, body, status, says):
    error = server.post(path, body if isinstance(body, (str, bytes)) else json.dumps(body), expect=status)["error"]
    assert error["code"] == status and says in error["message"] and error["type"]


def test_neutral_and_unknown_fields_are_ignored(server):
    body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0}
    extra = {"grammar": None, "tools": [], "mirostat": 0, "suffix": "", "stop": None, "no_such_field": {"a": 1}, "logprobs": None,
             "response_format": {"type": "text"}, "repetition_penalty": 1.0}
    assert server.post("/v1/completions", {**body, **extra})["choices"] == server.post("/v1/completions", body)["choices"]


def test_too_long(server):
    error = server.post("/v1/completions", {"prompt": [5] * (N_CTX + 1)}, expect=400)["error"]
    assert error["type"] == "exceed_context_size_error" and (error["n_ctx"], error["n_prompt_tokens"]) == (N_CTX, N_CTX + 1)
    last = server.post("/v1/completions", {"prompt": [5] * N_CTX, "max_tokens": 5, "ignore_eos": True})
    assert last["usage"]["completion_tokens"] == 1 and last["choices"][0]["finish_reason"] == "length"


# ------------------------------------------------------------------------------------------------- others meanwhile

def long_text(n):
    r = random.Random(4)
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyz      .,") for _ in range(n))


def test_answers_while_long_texts_come_in(request):
    """Texts of a megabyte become tokens beside the thread that answers, so /health and others are quick meanwhile."""
    s = Server()
    request.addfinalizer(s.process.kill)
    body = json.dumps({"content": long_text(1 << 20)})
    lengths, times = [], []
    workers = [threading.Thread(target=lambda: lengths.append(s.post("/tokenize", body)["count"])) for _ in range(4)]
    for w in workers:
        w.start()
    while any(w.is_alive() for w in workers):
        for path in ("/health", "/slots", "/metrics"):
            begin = time.perf_counter()
            assert s.request("GET", path)[0] == 200
            times.append(time.perf_counter() - begin)
    assert len(lengths) == 4 and len(set(lengths)) == 1 and lengths[0] > 1 << 18
    assert np.median(times) < 0.25, sorted(times)
    # a client that goes away while its text is read does no harm, nor does the end of the server
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body.encode())
    assert s.post("/tokenize", {"content": "a"})["count"] == 1
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body.encode())
        time.sleep(0.05)
        s.process.send_signal(signal.SIGTERM)
        assert c.recv(64).startswith(b"HTTP/1.1 200")  # what had come in whole is answered
        while c.recv(1 << 16):
            pass
    assert s.process.wait(timeout=60) == 0
    s.process.stderr.close()


# ----------------------------------------------------------------------------------------------------------- HTTP

@pytest.mark.parametrize("data, status", [
    (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),                                        # no Host
    (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: x\n\r\n\r\n", 400),                             # bare LF
    (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400),
    (b"GET health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"nonsense\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", 413),
    (b"POST /detokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"tokens\r\n6;a=b\r\n\":[5]}\r\n0\r\nT: x\r\n\r\n", 200),
    (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: nonsense\r\n\r\n", 417),
])
def test_http(server, data, status):
    assert server.raw(data).startswith(f"HTTP/1.1 {status} ")


def test_one_connection_many_requests(server):
    """Requests that come at once are answered one after the other; a connection is kept for further ones."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for i in range(50):
        connection.request("POST", "/tokenize", json.dumps({"content": "a" * i}))
        assert json.loads(connection.getresponse().read())["count"] >= (i > 0)
    connection.close()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := s.recv(65536):
            text += piece
    assert text.count(b'{"status":"ok"}') == 21


def test_keys_and_origins():
    s = Server("--api-key", "first", "--api-key", "second")
    body = {"prompt": PROMPT, "max_tokens": 1}
    for headers, status in [({}, 401), ({"Authorization": "Bearer firs"}, 401), ({"Authorization": "Bearer firstx"}, 401),
                            ({"Authorization": "Bearer first"}, 200), ({"X-Api-Key": "second"}, 200), ({"X-Api-Key": ""}, 401)]:
        got, _, text = s.request("POST", "/v1/completions", body, headers)
        assert got == status and (status == 200 or json.loads(text)["error"]["type"] == "authentication_error")
    assert s.request("GET", "/health")[0] == s.request("GET", "/v1/models")[0] == 200 and s.request("GET", "/slots")[0] == 401
    status, headers, _ = s.request("OPTIONS", "/v1/completions", None, {"Origin": "http://a.example", "Access-Control-Request-Headers": "x-a"})
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "http://a.example" and headers["Access-Control-Allow-Headers"] == "x-a"
    assert s.stop() == 0


def test_slow_requests_are_ended():
    s = Server("--timeout", 1, "--connections", 3)
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as slow:
        begin = time.time()
        try:
            for byte in b"GET /health HTTP/1.1\r\nHost: x\r\n" * 3:  # one byte at a time would take ten seconds
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            pass
        assert time.time() - begin < 5
    held = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(3)]
    time.sleep(0.1)
    assert s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").startswith("HTTP/1.1 503 ")
    for c in held:
        c.close()
    assert s.stop() == 0


def test_client_that_does_not_read_is_cut_off(server):
    """Its answer is not kept in memory without a bound, its work ends, and others are answered meanwhile."""
    before = server.metric("butler:jobs_cancelled_total")
    data = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 64}).encode()
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", server.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        assert server.post("/v1/completions", completion(*CASES[0]))["choices"][0]["text"] == run_text(*CASES[0])
        end = time.time() + 20  # its body may still be parsed when the other answer is there
        while server.metric("butler:jobs_cancelled_total") == before and time.time() < end:
            time.sleep(0.02)
        server.wait_idle()
        assert server.metric("butler:jobs_cancelled_total") == before + 1


@contextlib.contextmanager
def occupied(server, headers=""):
    """A request that runs meanwhile and is long."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as c:
        data = json.dumps({"prompt": [5] * 8, "n": 64, "max_tokens": 240, "ignore_eos": True, "stream": True}).encode()
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        assert b"200 OK" in c.recv(4096)
        yield


def test_queue_is_bounded():
    s = Server("--parallel", 1, "--queue", 1)
    body = {"prompt": [[5] * 8] * 2, "max_tokens": 200, "ignore_eos": True}
    with occupied(s):
        status, headers, text = s.request("POST", "/v1/completions", body)
    assert status == 429 and headers["Retry-After"] and json.loads(text)["error"]["type"] == "rate_limit_error"
    s.wait_idle()
    error = s.post("/v1/completions", {**body, "prompt": [[5] * 8] * 3}, expect=400)["error"]
    assert "3 prompts" in error["message"] and "takes 2 at a time" in error["message"], "it could never be taken"
    assert s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})["usage"]["completion_tokens"] == 1 and s.stop() == 0


def test_memory_is_reserved_for_whole_requests():
    """With memory for little more than one request they run one after the other, and all are answered."""
    s = Server("--kv-ram", 400000)
    case = (PROMPT, 200, "full", 1, 3)
    wanted, got = run_text(*case), []
    threads = [threading.Thread(target=lambda: got.append(s.post("/v1/completions", completion(*case))["choices"][0]["text"]))
               for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [wanted] * 12
    error = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "n": 64}, expect=400)["error"]
    assert "--kv-ram" in error["message"] and s.stop() == 0


def test_drain():
    """SIGTERM: the answer that has begun is completed, and the server ends."""
    s = Server()
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
        data = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        text = c.recv(4096)
        assert b"200 OK" in text
        s.process.send_signal(signal.SIGTERM)
        while piece := c.recv(65536):
            text += piece
    assert b"data: [DONE]" in text and b'"finish_reason":"length"' in text
    assert s.process.wait(timeout=20) == 0
    s.process.stderr.close()


def test_drain_sends_what_was_written():
    """SIGTERM behind an answer that is complete, but of which the client has read nothing: more than the socket holds."""
    s = Server()
    with socket.socket() as c:
        c.settimeout(60)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        data = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "n": 14, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        end = time.time() + 20
        while s.metric("butler:jobs_total") == 0 and time.time() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # the network's thread has what the engine's gave it
        s.process.send_signal(signal.SIGTERM)
        text = b""
        while piece := c.recv(65536):
            text += piece
    assert text.count(b"data: [DONE]") == 1 and text.count(b'"finish_reason":"length"') == 14
    assert s.process.wait(timeout=20) == 0
    s.process.stderr.close()


def test_unix_socket(tmp_path):
    path = str(tmp_path / "b.sock")
    for _ in range(2):  # the second finds the file of a server that was killed
        s = Server("--host", path)
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(path)
            c.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert b"200 OK" in c.recv(4096)
        s.process.kill()
        s.process.wait()
        s.process.stderr.close()


def test_histograms_and_log(tmp_path):
    log = tmp_path / "log"
    s = Server("--access-log", log)
    s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True})
    assert s.metric("butler:time_to_first_token_seconds_count") == 1 and s.metric("butler:time_between_tokens_seconds_count") == 4
    assert s.metric("llamacpp:tokens_predicted_total") == 5 and not math.isnan(s.metric("butler:longest_step_seconds"))
    assert s.stop() == 0
    assert re.match(r"\S+Z 127\.0\.0\.1 POST /v1/completions 200 \d+ bytes [\d.]+ ms key -\n", log.read_text())


def test_sdk(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    messages = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model="m", messages=messages, max_tokens=8, temperature=0)
    stream = client.chat.completions.create(model="m", messages=messages, max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content
    assert client.models.list().data[0].id and client.completions.create(model="m", prompt=PROMPT, max_tokens=3).usage.completion_tokens <= 3
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="m", prompt=[5] * (N_CTX + 1))
