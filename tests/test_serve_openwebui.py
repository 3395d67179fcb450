"""The requests that Open WebUI sends to an OpenAI connection, in their form: the list of models, a chat as a stream, a task behind it
(a title for the chat), embeddings. Written from its documentation of that connection, not recorded."""
import json

import pytest

from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

HEADERS = {"Authorization": "Bearer sk-any", "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Role": "admin"}
TASK = ('### Task:\nGive this chat a short title.\n### Output:\nJSON: { "title": "..." }\n### Chat:\n<chat_history>\nUSER: Hi\nASSISTANT: Hello\n'
        "</chat_history>")


@pytest.fixture(scope="module")
def server():
    s = Server("-c", 4096)
    yield s
    assert s.stop() == 0


def send(server, path, body):
    status, headers, text = server.request("POST", path, body, HEADERS)
    assert status == 200, text
    return headers, text.decode()


def test_models(server):
    status, _, text = server.request("GET", "/v1/models", None, HEADERS)
    models = json.loads(text)
    assert status == 200 and models["object"] == "list" and all(m["id"] and m["object"] == "model" for m in models["data"])


def test_chat(server):
    """Unknown members of the body are ignored; usage is a piece of its own, before the end mark."""
    model = json.loads(server.request("GET", "/v1/models", None, HEADERS)[2])["data"][0]["id"]
    body = {"stream": True, "model": model, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "stream_options": {"include_usage": True}, "max_tokens": 8, "temperature": 0.8, "ignore_eos": True}
    headers, text = send(server, "/v1/chat/completions", body)
    assert headers["Content-Type"].startswith("text/event-stream")
    pieces = text.split("\n\n")
    assert pieces[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-2]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 8
    assert chunks[-2]["choices"][0]["finish_reason"] == "length" and len({c["id"] for c in chunks}) == 1
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])


@pytest.mark.parametrize("limit", [{"max_tokens": 30}, {"max_completion_tokens": 30}])
def test_tasks(server, limit):
    """Not as a stream; with the answer of a chat before them."""
    body = {"model": "any", "messages": [{"role": "user", "content": TASK}], "stream": False, "ignore_eos": True, **limit}
    answer = json.loads(send(server, "/v1/chat/completions", body)[1])
    assert answer["usage"]["completion_tokens"] == 30 and type(answer["choices"][0]["message"]["content"]) is str


def test_embeddings(server):
    answer = json.loads(send(server, "/v1/embeddings", {"input": ["a document", "another one"], "model": "any"})[1])
    assert [d["index"] for d in answer["data"]] == [0, 1] and all(d["embedding"] for d in answer["data"])
