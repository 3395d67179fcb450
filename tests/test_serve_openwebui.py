"""The requests that Open WebUI 0.12.4 sent through a recording proxy: to find the models, for a chat of its page with its own tools,
for the tasks behind a chat (a title, tags, next questions, queries, ...) and for the embedding of a file. In
tests/data/openwebui.jsonl the texts are ours and the tools have no descriptions; all else is as it was sent."""
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


@pytest.mark.parametrize("request_", [r for r in RECORDED if (r["body"] or {}).get("stream") is False])
def test_tasks(server, request_):
    limit = request_["body"].get("max_tokens", 30)
    answer = json.loads(send(server, request_, max_tokens=min(limit, 30), ignore_eos=True)[1])
    assert answer["usage"]["completion_tokens"] == min(limit, 30) and type(answer["choices"][0]["message"]["content"]) is str


def test_models_and_embeddings(server):
    models, embeddings = (json.loads(send(server, r)[1]) for r in RECORDED if "stream" not in (r["body"] or {}))
    assert models["object"] == "list" and all(m["id"] and m["object"] == "model" for m in models["data"])
    assert [d["index"] for d in embeddings["data"]] == [0] and embeddings["data"][0]["embedding"]
