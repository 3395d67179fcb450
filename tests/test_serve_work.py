"""butler serve before bodies that take long: what cannot fit is refused before it is tokenised, what nobody waits for is not done, and
others wait at most a second. Times are bounds of kinds (a few times what a quiet machine takes), not measurements."""
import json
import os
import socket
import string
import threading
import time

import pytest

from cli import BUTLER, N_CTX, PROMPT, rows
from test_serve import LINK, Server, completion, pytestmark  # noqa: F401  (skips where butler is built without libevent)

SLOW = 10 if "libasan" in LINK or "libtsan" in LINK else 1  # sanitizers
BYTES = 6_000_000
LONG = (PROMPT + " ") * (BYTES // (len(PROMPT) + 1))


@pytest.fixture(scope="module")
def server():
    s = Server("--max-body", "32M")
    yield s
    assert s.stop() == 0


def others_wait(server, work, n_threads=1):
    """The longest time of a small request while `work` runs, as a share of the time of all work; 0 below a second."""
    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    longest, start = 0, time.time()
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        begin = time.time()
        server.post("/v1/completions", completion("ab", 1))
        longest = max(longest, time.time() - begin)
    return longest / (time.time() - start) if longest > 1 else 0


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": LONG}), ("/completion", {"prompt": LONG}), ("/v1/completions", {"prompt": [5, LONG]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}), ("/v1/messages", {"messages": [{"role": "user", "content": LONG}]}),
    ("/v1/responses", {"input": LONG}), ("/v1/embeddings", {"input": LONG})])
def test_what_cannot_fit_is_refused_by_its_bytes(server, path, body):
    """No token has so many bytes: the answer says how many tokens there are at least, and none was made."""
    before = seconds_used(server)
    error = server.post(path, {**body, "max_tokens": 1}, expect=400)["error"]
    assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == N_CTX
    assert "(at least " in error["message"] and N_CTX < error["n_prompt_tokens"] < BYTES / 4
    assert seconds_used(server) - before < 2 * SLOW


def seconds_used(server):
    with open(f"/proc/{server.process.pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


def test_a_long_text_is_refused_by_its_beginning():
    """Its tokens could be long enough for it to fit; the first 16 bytes for each token of the context show that they are not."""
    s = Server("-c", 2000)
    text = (PROMPT + " ") * (60000 // (len(PROMPT) + 1))
    begin = s.post("/v1/completions", {"prompt": text, "max_tokens": 1}, expect=400)["error"]
    n = s.post("/tokenize", {"content": text})["count"]
    assert 4000 < begin["n_prompt_tokens"] < n and "(at least " in begin["message"]
    chat = {"messages": [{"role": "user", "content": text[:30000]}, {"role": "user", "content": "Jürgen €" * 4000}], "max_tokens": 1}
    error = s.post("/v1/chat/completions", chat, expect=400)["error"]
    assert error["type"] == "exceed_context_size_error" and "(at least " in error["message"]
    near = text[:len(text) * 2100 // n]  # a little too long: counted to the end
    error = s.post("/v1/completions", {"prompt": near, "max_tokens": 1}, expect=400)["error"]
    assert error["n_prompt_tokens"] == s.post("/tokenize", {"prompt": near})["count"] and "least" not in error["message"]
    fits = text[:len(text) * 1900 // n]
    assert s.post("/v1/completions", {"prompt": fits, "max_tokens": 1})["usage"]["prompt_tokens"] == s.post("/tokenize", {"prompt": fits})["count"]
    assert s.stop() == 0


def test_others_do_not_wait_for_long_texts(server):
    body = json.dumps({"content": LONG[:3_000_000]}).encode()
    assert others_wait(server, lambda: server.request("POST", "/tokenize", body), 6) < 0.4


def test_others_do_not_wait_for_large_schemas(server):
    values = [f"v{j}" for j in range(100)]  # together beyond the bounds on a schema's work and on its grammar's length
    body = json.dumps({"prompt": "x", "max_tokens": 2, "json_schema": {
        "type": "object", "properties": {f"p{i}": {"type": "string", "enum": values} for i in range(14000)}}}).encode()
    assert len(body) > 10_000_000
    assert others_wait(server, lambda: server.request("POST", "/v1/completions", body), 4) < 0.4


def test_vanished_clients_cost_nothing(server):
    """Their bodies wait for threads that are busy; when it is their turn, nothing of them is done."""
    data = json.dumps({"content": LONG}).encode()
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
    before = seconds_used(server)
    server.post("/tokenize", data.decode())
    one = seconds_used(server) - before
    before = seconds_used(server)
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as c:
            c.sendall(head + data)
            time.sleep(0.05)
    assert server.post("/v1/completions", completion("ab", 1))
    time.sleep(one)
    while server.metric("butler:connections") > 1:
        time.sleep(0.05)
    server.post("/tokenize", data.decode())  # behind all of them
    assert seconds_used(server) - before < 7 * one


def test_keys_take_turns(server):
    """A key that sends one request is answered while another key's many large ones wait: tests/test_worker.c has the order."""
    s = Server("--api-key", "a", "--api-key", "b", "--max-body", "32M")
    body = json.dumps({"content": LONG[:2_000_000]}).encode()
    threads = [threading.Thread(target=s.request, args=("POST", "/tokenize", body, {"X-Api-Key": "a"})) for _ in range(12)]
    for t in threads:
        t.start()
    time.sleep(0.2)
    assert s.request("POST", "/tokenize", body, {"X-Api-Key": "b"})[0] == 200
    assert sum(t.is_alive() for t in threads) >= 4
    for t in threads:
        t.join()
    assert s.stop() == 0


# -------------------------------------------------------------------------------------------------------- grammars

MODEL = os.path.join(os.environ.get("BUTLER_MODELS", os.path.join(os.path.dirname(BUTLER), "models")), "qwen2.5-coder-0.5b.gguf")
needs_vocabulary = pytest.mark.skipif(not os.path.exists(MODEL), reason="no models/qwen2.5-coder-0.5b.gguf, whose vocabulary is large (./setup)")


def palindromes(letters, ends=1):
    """Every text is a state of its own: what follows depends on all that came."""
    return f"root ::= {'p ' * ends} [.]\np ::= " + " | ".join(f'"{c}" p "{c}"' for c in letters) + " | [a-z ]{0,3}"


@needs_vocabulary
def test_others_do_not_wait_for_ambiguous_grammars():
    """32 at once, each of which takes up to half a second to find out what may follow, or that this is too ambiguous."""
    s = Server("-c", 512, model=MODEL)
    s.post("/v1/completions", completion("ab", 1))
    hard = palindromes(string.ascii_letters + " .,", 3).replace("[a-z ]{0,3}", "[a-zA-Z ]*")
    body = {"prompt": "Hi", "max_tokens": 2, "temperature": 1, "seed": 1, "grammar": hard}
    try:
        assert others_wait(s, lambda: s.request("POST", "/v1/completions", body), 32) < 0.2
    finally:
        assert s.stop() == 0


@needs_vocabulary
def test_prepared_texts_are_those_of_run(tmp_path):
    """The thread that works out what a grammar allows changes no text: several at once, with several choices, cancelled ones among them."""
    (tmp_path / "g").write_text(palindromes("etaoin "))
    wanted = [rows("run", "-m", MODEL, "-p", "Hi", "-n", 6, "-c", 64, "--temp", 1, "--top-k", 40, "--top-p", 1, "--min-p", 0, "-s", seed,
                   "--grammar", tmp_path / "g")[-1]["text"] for seed in (3, 4)]
    s = Server("-c", 64, model=MODEL)
    body = {"prompt": "Hi", "max_tokens": 6, "temperature": 1, "top_k": 40, "top_p": 1, "min_p": 0, "seed": 3, "n": 2,
            "grammar": (tmp_path / "g").read_text()}
    data = json.dumps(body).encode()
    got = []
    threads = [threading.Thread(target=lambda: got.append([c["text"] for c in s.post("/v1/completions", body)["choices"]])) for _ in range(4)]
    for t in threads:
        t.start()
        with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            time.sleep(0.05)
    for t in threads:
        t.join()
    assert got == [wanted] * 4
    s.wait_idle()
    assert s.stop() == 0
