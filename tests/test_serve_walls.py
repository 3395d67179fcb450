"""Keys are walls: with several API keys a request belongs to the key that sent it. Without a key only the server's own page, and
programs that are no browser, see what others wrote."""
import json
import os
import re
import stat
import threading
import time

import pytest

from cli import GQA, PROMPT, butler
from test_serve import BUTLER, Server, completion, pytestmark, run_text  # noqa: F401  (skips where butler is built without libevent)

SECRET = PROMPT * 4 + " the code is 4711 "
SHOWN = ("/slots", "/kv/trace", "/kv/map")


def with_key(key):
    return {"X-Api-Key": key} if key else {}


def ask(server, key, body, path="/v1/completions", expect=200):
    status, _, text = server.request("POST", path, body, with_key(key))
    assert status == expect, text
    return json.loads(text)


def get(server, key, path, expect=200):
    status, _, text = server.request("GET", path, None, with_key(key))
    assert status == expect, text
    return json.loads(text)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def server():
    s = Server("--api-key", "a", "--api-key", "b", "--admin-key", "root")
    yield s
    assert s.stop() == 0


# ------------------------------------------------------------------------------------------------------------ owners

def test_maps_and_traces_are_their_owners(server):
    body = {**completion(SECRET, 6, "fier:budget=20"), "ignore_eos": True}
    answer = ask(server, "a", {**body, "kv": {"policy": "fier:budget=20", "map": True}})
    number = answer["usage"]["kv"]["map"]
    for key in ("a", "root"):
        assert "4711" in "".join(get(server, key, f"/kv/map?id={number}")["tokens"])
        assert number in [m["id"] for m in get(server, key, "/kv/map")["maps"]]
        assert [t["id"] for t in get(server, key, f"/kv/trace?id={answer['id']}")["traces"]] == [answer["id"]]
    error = get(server, "b", f"/kv/map?id={number}", expect=404)["error"]["message"]
    assert error == get(server, "b", f"/kv/map?id={number + 1000}", expect=404)["error"]["message"].replace(str(number + 1000), str(number))
    assert get(server, "b", f"/kv/map?id={number}&token=30", expect=404)
    assert get(server, "b", "/kv/map")["maps"] == [] and get(server, "b", f"/kv/trace?id={answer['id']}")["traces"] == []
    ask(server, "b", body)
    assert len(get(server, "b", "/kv/trace")["traces"]) == 1 and len(get(server, "root", "/kv/trace")["traces"]) >= 2


def test_slots_are_their_owners(server):
    body = {"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "n": 16, "kv": {"policy": "h2o:budget=24"}}
    thread = threading.Thread(target=ask, args=(server, "a", body))
    thread.start()
    end, seen = time.time() + 30, []
    while thread.is_alive() and not seen and time.time() < end:
        seen = get(server, "a", "/slots")
        assert get(server, "b", "/slots") == []
    thread.join()
    assert [slot["policy"] for slot in seen] == ["h2o:budget=24"]


def test_the_prefix_cache_tells_nobody_else(server):
    """How many tokens of a prompt were cached, and how long it took, would confirm a guess of another key's prompt."""
    prompt = "Mine alone: " + PROMPT * 5
    body, scored = completion(prompt, 3), {**completion(prompt, 1), "echo": True, "logprobs": 1}
    first, again = ask(server, "a", body), ask(server, "a", body)
    assert cached(first) == 0 and cached(again) >= again["usage"]["prompt_tokens"] - 1
    for other in (ask(server, "b", body), ask(server, "root", body)):
        assert cached(other) == 0 and other["choices"] == first["choices"]
    assert cached(ask(server, "b", body)) > 0
    fresh = {**scored, "prompt": "Scored too: " + prompt}
    ask(server, "a", fresh)
    ask(server, "b", {**body, "prompt": fresh["prompt"]})  # what b has read, but has not scored
    assert cached(ask(server, "a", fresh)) > 0 and cached(ask(server, "b", fresh)) == 0


def test_cache_salt(server):
    """A field that parts users of one key; with it too, keys stay apart."""
    body = completion("A little salt: " + PROMPT * 5, 3)
    texts = set()
    for key, salt in (("a", "u1"), ("a", "u2"), ("b", "u1"), ("a", None)):
        answer = ask(server, key, {**body, "cache_salt": salt} if salt else body)
        assert cached(answer) == 0
        texts.add(answer["choices"][0]["text"])
    assert texts == {run_text(body["prompt"], 3)}
    assert cached(ask(server, "a", {**body, "cache_salt": "u1"})) > 0
    chat = {"messages": [{"role": "user", "content": "In a chat: " + PROMPT * 3}], "max_tokens": 2, "cache_salt": "u9"}
    for path, tokens in (("/v1/chat/completions", 2), ("/v1/messages", 2)):
        ask(server, "a", {**chat, "max_tokens": tokens}, path)
    assert cached(ask(server, "a", chat, "/v1/chat/completions")) > 0 and cached(ask(server, "a", {**chat, "cache_salt": "u8"}, "/v1/chat/completions")) == 0
    for wrong in ("", 5, ["u1"]):
        assert "cache_salt" in ask(server, "a", {**body, "cache_salt": wrong}, expect=400)["error"]["message"]


def test_salts_survive_parking(tmp_path):
    """A session that was parked while its prompt was read keeps what it read for its own key."""
    s = Server("--api-key", "a", "--api-key", "b", "--kv-ram", 200000, "--park", tmp_path)
    bodies = []

    def n_parked():
        return int(re.search(r"^butler:parked_total (\d+)", s.request("GET", "/metrics", None, with_key("a"))[2].decode(), re.M)[1])
    for _ in range(10):  # whether requests meet in memory depends on the machine
        new = [{**completion(f"{len(bodies) + i} is the number. " + PROMPT * 5, 120, "full", 1, 2), "ignore_eos": True} for i in range(6)]
        threads = [threading.Thread(target=ask, args=(s, "a", body)) for body in new]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        bodies += new
        if n_parked():
            break
    assert n_parked() > 0
    assert all(cached(ask(s, "b", {**body, "max_tokens": 1})) < 8 + len("00 is the number. ") for body in bodies)
    assert s.stop() == 0


def test_a_traces_id_is_that_of_the_answer(server):
    """/kv/trace knows an answer by the id that its client has, on every surface; /completion, whose answers have none, by id_slot."""
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "ignore_eos": True}
    answers = [ask(server, "a", chat, "/v1/chat/completions"), ask(server, "a", chat, "/v1/messages"),
               ask(server, "a", {"input": PROMPT, "max_output_tokens": 4}, "/v1/responses"), ask(server, "a", completion(PROMPT, 4))]
    assert [re.match("[a-z]+", answer["id"]).group() for answer in answers] == ["chatcmpl", "msg", "resp", "cmpl"]
    for answer in answers[:1] + answers[2:]:
        found = get(server, "a", f"/kv/trace?id={answer['id']}&steps=2")["traces"]
        assert [trace["id"] for trace in found] == [answer["id"]] and len(found[0]["n_tokens"]) <= 2
    native = ask(server, "a", {**completion(PROMPT, 4), "ignore_eos": True, "n_predict": 4}, "/completion")
    trace, = get(server, "a", f"/kv/trace?id={native['id_slot']}")["traces"]
    assert trace["id"] is None and trace["id_slot"] == native["id_slot"]


# ------------------------------------------------------------------------------------------------- pages of others

@pytest.mark.parametrize("path", SHOWN)
def test_pages_of_other_origins(path):
    """Which page asks is in Origin and Sec-Fetch-Site, which pages cannot forge; a name that resolves to this machine is no own one."""
    s = Server()
    own = f"127.0.0.1:{s.port}"
    for headers, status in [({}, 200), ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
                            ({"Origin": f"http://{own}"}, 200), ({"Host": f"localhost:{s.port}"}, 200), ({"Host": "[::1]"}, 200),
                            ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": f"http://localhost:{s.port}"}, 403),
                            ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
                            ({"Sec-Fetch-Site": "same-origin", "Host": f"evil.example:{s.port}"}, 403), ({"Host": "evil.localhost.example"}, 403)]:
        got, _, text = s.request("GET", path, None, headers)
        assert got == status, headers
        assert status == 200 or json.loads(text)["error"]["type"] == "permission_error"
    assert s.request("OPTIONS", path, None, {"Origin": "http://evil.example"})[0] == 403
    assert s.request("GET", "/health", None, {"Origin": "http://evil.example"})[0] == 200
    assert s.stop() == 0
    keyed = Server("--api-key", "k")
    assert keyed.request("GET", path, None, {"X-Api-Key": "k", "Origin": "http://evil.example"})[0] == 200
    assert keyed.stop() == 0


# -------------------------------------------------------------------------------------------------------------- keys

def server_with(env, *flags):
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        return Server(*flags)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_keys_from_a_file_and_the_environment(tmp_path):
    (tmp_path / "keys").write_bytes(b"one\r\n\ntwo#2\nthree")
    s = server_with({"BUTLER_API_KEY": "four", "BUTLER_ADMIN_KEY": "root"}, "--api-key-file", tmp_path / "keys", "--api-key", "five")
    for key, status in [("one", 200), ("two#2", 200), ("three", 200), ("four", 200), ("five", 200), ("root", 200), ("", 401), ("two", 401),
                        ("one\r", 400)]:
        data = b"GET /slots HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + key.encode() + b"\r\n\r\n"
        assert s.raw(data).startswith(f"HTTP/1.1 {status} "), key
    with open(f"/proc/{s.process.pid}/cmdline", "rb") as line:
        assert b"four" not in line.read()
    assert s.stop() == 0


@pytest.mark.parametrize("flags, env, status, says", [
    (("--api-key", ""), {}, 2, "--api-key: the key is empty"), (("--api-key", "a b"), {}, 2, "no blanks"),
    ((), {"BUTLER_API_KEY": ""}, 2, "BUTLER_API_KEY: the key is empty"), (("--admin-key", ""), {}, 2, "--admin-key: the key is empty"),
    (("--api-key-file", "{}/none"), {}, 1, "none"), (("--api-key-file", "{}/empty"), {}, 2, "has no key")])
def test_keys_that_would_let_everybody_in(tmp_path, monkeypatch, flags, env, status, says):
    (tmp_path / "empty").write_text("\n\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    result = butler("serve", "-m", GQA, "--port", 0, *(flag.format(tmp_path) for flag in flags), expect=status)
    assert says in result.stderr


def test_access_log_is_private_and_names_keys(tmp_path):
    log = tmp_path / "log"
    before = os.umask(0)
    try:
        s = Server("--access-log", log, "--api-key", "a-long-secret", "--admin-key", "root")
    finally:
        os.umask(before)
    get(s, "a-long-secret", "/slots"), get(s, "root", "/slots"), get(s, "wrong", "/slots", expect=401), get(s, "", "/health")
    assert s.stop() == 0
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    names = [re.fullmatch(r".* ms key (\S+)", line).group(1) for line in log.read_text().splitlines()]
    assert re.fullmatch("[0-9a-f]{8}", names[0]) and re.fullmatch("[0-9a-f]{8}", names[1]) and names[0] != names[1]
    assert names[2:] == ["-", "-"] and "secret" not in log.read_text()
    assert names[0] == "73282087"  # printf %s a-long-secret | xxh64sum


# ------------------------------------------------------------------------------------------------------------- names

def test_a_model_by_name():
    s = Server("--alias", "org/small", "-c", 96)
    listed, = s.get("/v1/models")["data"]
    assert listed["id"] == "org/small" and listed["meta"]["n_ctx"] == 96 and listed["meta"]["ftype"] in ("F32", "F16", "Q8_0")
    file_name = os.path.basename(GQA)
    for name in ("org/small", "org%2Fsmall", "org%2fsmall", file_name):
        assert s.get("/v1/models/" + name) == listed
    for name in ("other", "org%2", "org%00", "", file_name + "x"):
        status, _, text = s.request("GET", "/v1/models/" + name)
        assert status == 404 and json.loads(text)["error"]["type"] == "not_found_error"
    assert s.request("POST", "/v1/models/org/small", "{}")[0] == 405
    for name in ("org/small", file_name, "gpt-4o"):  # a client's default name is no error, as in llama.cpp's server
        assert s.post("/v1/completions", completion(PROMPT, 1), model=name)["model"] == "org/small"
    assert s.stop() == 0
