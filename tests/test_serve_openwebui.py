"""The requests that Open WebUI 0.12.4 sent through a recording proxy: to find the models, for a chat of its page with its own tools,
for the tasks behind a chat (a title, tags, next questions, queries, ...) and for the embedding of a file. In
tests/data/openwebui.jsonl texts, names and ids are ours and the tools have no descriptions; all else is as it was sent. Its documentation
names three members that it did not send with these settings: stream_options, max_completion_tokens, several texts to embed."""
import json

import pytest

from cli import ROOT
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

RECORDED = [json.loads(line) for line in (ROOT / "tests" / "data" / "openwebui.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def server():
    s = Server("-c", 16384)
    yield s
    assert s.stop() == 0


def send(server, request, **fields):
    """fields: short answers, or those that go on for some tokens."""
    body = request["body"] and {**request["body"], **fields}
    status, headers, text = server.request(request["method"], request["path"], body, request["headers"])
    assert status == 200, text
    return headers, text.decode()


def test_the_recording_has_all_kinds():
    bodies = [r["body"] or {} for r in RECORDED]
    assert len(RECORDED) == 14 and any(len(b.get("tools", [])) > 5 for b in bodies)
    assert {"/v1/models", "/v1/chat/completions", "/v1/embeddings"} == {r["path"] for r in RECORDED}


@pytest.mark.parametrize("request_", [r for r in RECORDED if (r["body"] or {}).get("stream")])
def test_chats(server, request_):
    headers, text = send(server, request_, max_tokens=8, ignore_eos=True)
    assert headers["Content-Type"].startswith("text/event-stream")
    pieces = text.split("\n\n")
    assert pieces[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-2]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length" and len({c["id"] for c in chunks}) == 1
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])


def test_usage_of_a_chat(server):
    """A piece of its own, before the end mark."""
    chat = next(r for r in RECORDED if (r["body"] or {}).get("stream"))
    model = json.loads(send(server, RECORDED[0])[1])["data"][0]["id"]
    messages = [{"role": "system", "content": "Be brief."}, *chat["body"]["messages"]]
    text = send(server, chat, model=model, messages=messages, stream_options={"include_usage": True}, max_tokens=8, temperature=0.8, ignore_eos=True)[1]
    chunks = [json.loads(piece.removeprefix("data: ")) for piece in text.split("\n\n")[:-2]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 8
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("request_", [r for r in RECORDED if (r["body"] or {}).get("stream") is False])
def test_tasks(server, request_, name):
    sent = {**request_, "body": dict(request_["body"])}
    limit = min(sent["body"].pop("max_tokens", 30), 30)
    answer = json.loads(send(server, sent, ignore_eos=True, **{name: limit})[1])
    assert answer["usage"]["completion_tokens"] == limit and type(answer["choices"][0]["message"]["content"]) is str


def test_models_and_embeddings(server):
    models, embeddings = (json.loads(send(server, r)[1]) for r in RECORDED if "stream" not in (r["body"] or {}))
    assert models["object"] == "list" and all(m["id"] and m["object"] == "model" for m in models["data"])
    assert [d["index"] for d in embeddings["data"]] == [0] and embeddings["data"][0]["embedding"]
    two = json.loads(send(server, RECORDED[-1], input=["a document", "another one"])[1])
    assert [d["index"] for d in two["data"]] == [0, 1] and all(d["embedding"] for d in two["data"])
