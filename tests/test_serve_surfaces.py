"""butler serve: /v1/responses, /v1/messages and /v1/embeddings. Their texts are those of /v1/chat/completions; shapes, the order of
events, refusals; the clients of OpenAI and Anthropic; vectors that do not depend on what else is served."""
import base64
import concurrent.futures
import json
import socket
import time

import numpy as np
import pytest

from cli import N_CTX, N_EMBD, PROMPT
from test_serve import Server, pytestmark, server  # noqa: F401  (skips where butler is built without libevent)

USER = [{"role": "user", "content": "It was"}]
SYSTEM = "Be brief."
CHAT = [{"role": "system", "content": SYSTEM}, *USER]
FIELDS = {"temperature": 0, "ignore_eos": True}
KV_KEYS = {"policy", "bytes_read", "metric_bytes_read", "dense_bytes", "read_share", "reuse", "memory_bytes"}


def chat_text(server, messages, n, **fields):
    body = {"messages": messages, "max_tokens": n, **FIELDS, **fields}
    return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def events(server, path, body):
    """[(event, data)] of a stream; every event's name is its data's type."""
    status, headers, text = server.request("POST", path, {**body, "stream": True})
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    pieces = text.decode().split("\n\n")
    assert pieces.pop() == ""
    found = []
    for piece in pieces:
        event, data = piece.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        found.append((event[7:], json.loads(data[6:])))
    assert all(event == data["type"] for event, data in found)
    return found


# ------------------------------------------------------------------------------------------------- /v1/messages

def test_messages(server):
    text = chat_text(server, CHAT, 12)
    body = {"model": "m", "max_tokens": 12, "system": SYSTEM, "messages": USER, **FIELDS, "cache_prompt": False}
    whole = server.post("/v1/messages", body)
    usage = whole["usage"]
    assert whole["content"] == [{"type": "text", "text": text}] and whole["id"].startswith("msg_")
    assert (whole["type"], whole["role"], whole["stop_reason"], whole["stop_sequence"]) == ("message", "assistant", "max_tokens", None)
    n = server.post("/v1/messages/count_tokens", {"system": SYSTEM, "messages": USER})["input_tokens"]
    assert usage["input_tokens"] == n > 0 and usage["output_tokens"] == 12 and usage["cache_read_input_tokens"] == 0
    assert set(usage["kv"]) == KV_KEYS
    # the order of events, and the same message in them
    found = events(server, "/v1/messages", body)
    names = [name for name, _ in found]
    deltas = [data["delta"]["text"] for name, data in found if name == "content_block_delta"]
    assert names == ["message_start", "content_block_start", "ping", *["content_block_delta"] * len(deltas), "content_block_stop",
                     "message_delta", "message_stop"]
    assert len(deltas) > 2 and "".join(deltas) == text
    start = found[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] == n
    assert found[1][1]["content_block"] == {"type": "text", "text": ""}
    assert found[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] == 12 and set(found[-2][1]["usage"]["kv"]) == KV_KEYS
    # blocks are their text; neighbouring messages of one role are one
    blocks = {"system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}}],
              "messages": [{"role": "user", "content": [{"type": "text", "text": "It was"}]}]}
    assert server.post("/v1/messages", {**body, **blocks})["content"][0]["text"] == text
    two = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]}
    one = {"messages": [{"role": "user", "content": "a\n\nb"}]}
    assert server.post("/v1/messages", {**body, **two})["content"] == server.post("/v1/messages", {**body, **one})["content"]
    # what the cache had is counted apart
    server.post("/v1/messages", {**body, "cache_prompt": True})
    usage = server.post("/v1/messages", {**body, "cache_prompt": True})["usage"]
    assert usage["cache_read_input_tokens"] > 0 and usage["input_tokens"] + usage["cache_read_input_tokens"] == n


def test_stop_reasons(server):
    text = chat_text(server, CHAT, 20)
    body = {"max_tokens": 20, "system": SYSTEM, "messages": USER, **FIELDS, "stop_sequences": ["never", text[4:7]]}
    whole = server.post("/v1/messages", body)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", text[4:7])
    assert whole["content"][0]["text"] == text[:text.index(text[4:7])]
    assert events(server, "/v1/messages", body)[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": text[4:7]}
    ended = {**body, "stop_sequences": [], "ignore_eos": False, "logit_bias": {"2": 1e9}}  # the end token
    whole = server.post("/v1/messages", ended)
    assert (whole["stop_reason"], whole["stop_sequence"], whole["usage"]["output_tokens"]) == ("end_turn", None, 1)


# ------------------------------------------------------------------------------------------------ /v1/responses

def test_responses(server):
    text = chat_text(server, CHAT, 12)
    body = {"model": "m", "max_output_tokens": 12, "instructions": SYSTEM, "input": "It was", **FIELDS, "cache_prompt": False, "store": True,
            "metadata": {"a": "b"}}
    whole = server.post("/v1/responses", body)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = whole["output"][0]
    assert item["content"] == [part] and item["role"] == "assistant" and whole["id"].startswith("resp_") and item["id"].startswith("msg_")
    assert (whole["object"], whole["status"], item["status"]) == ("response", "incomplete", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"} and whole["max_output_tokens"] == 12
    assert (whole["store"], whole["instructions"], whole["metadata"], whole["temperature"]) == (False, SYSTEM, {"a": "b"}, 0)
    usage = whole["usage"]
    assert usage["output_tokens"] == 12 and usage["total_tokens"] == usage["input_tokens"] + 12 and set(usage["kv"]) == KV_KEYS
    found = events(server, "/v1/responses", body)
    names = [name for name, _ in found]
    deltas = [data["delta"] for name, data in found if name == "response.output_text.delta"]
    assert names == [f"response.{name}" for name in (
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * len(deltas), "output_text.done",
        "content_part.done", "output_item.done", "incomplete")]
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert len(deltas) > 2 and "".join(deltas) == text == found[-4][1]["text"] and found[-3][1]["part"] == part
    assert found[0][1]["response"]["status"] == "in_progress" and found[0][1]["response"]["usage"] is None
    last = found[-1][1]["response"]
    assert last["output"] == [found[-2][1]["item"]] and {**last["output"][0], "id": 0} == {**item, "id": 0}
    # items; an answer that ends by itself
    items = [{"role": "developer", "content": SYSTEM}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "It was"}]}]
    assert server.post("/v1/responses", {**body, "instructions": None, "input": items})["output"][0]["content"] == [part]
    ended = {**body, "ignore_eos": False, "logit_bias": {"2": 1e9}}
    whole = server.post("/v1/responses", ended)
    assert (whole["status"], whole["incomplete_details"], whole["output"][0]["status"]) == ("completed", None, "completed")
    assert events(server, "/v1/responses", ended)[-1][0] == "response.completed"


# ----------------------------------------------------------------------------------------------- /v1/embeddings

def vectors(server, texts, **fields):
    data = server.post("/v1/embeddings", {"input": texts, **fields})["data"]
    assert [d["index"] for d in data] == list(range(len(data))) and all(d["object"] == "embedding" for d in data)
    return [d["embedding"] for d in data]


def test_embeddings_shapes(server):
    ids = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    answer = server.post("/v1/embeddings", {"input": [PROMPT, "a"], "dimensions": N_EMBD})
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(ids) and answer["object"] == "list"
    mean = vectors(server, PROMPT)[0]
    assert len(mean) == N_EMBD and abs(np.linalg.norm(mean) - 1) < 1e-6
    assert vectors(server, [PROMPT, "a"])[0] == vectors(server, ids)[0] == vectors(server, ["a", ids])[1] == mean
    coded = base64.b64decode(vectors(server, PROMPT, encoding_format="base64")[0])
    assert np.array_equal(np.frombuffer(coded, "<f4"), np.array(mean, "<f4"))
    # The last hidden state of a beginning is that of its token in the whole text, and their mean is the mean.
    last = [np.array(vectors(server, ids[:n], pooling="last")[0]) for n in (1, len(ids))]
    assert np.array_equal(last[0], vectors(server, ids, pooling="cls")[0]) and not np.array_equal(last[0], last[1])
    assert vectors(server, ids[:1])[0] == vectors(server, ids[:1], pooling="last")[0] == list(last[0])


def test_embeddings_do_not_depend_on_others():
    """Bit for bit the same alone, in chunks among texts that are generated, with and without the prefix cache."""
    s = Server("--max-stall", "1")
    texts = [PROMPT * n + " and" * n for n in (1, 2, 4, 6)]
    alone = [vectors(s, text)[0] for text in texts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(s.post, "/v1/completions", {"prompt": text, "max_tokens": 60, "ignore_eos": True, "temperature": 0}) for text in texts[:2]]
        found = list(pool.map(lambda _: vectors(s, texts), range(3)))
        assert all(vector == alone for vector in found) and all(job.result()["usage"] for job in busy)
    assert s.stop() == 0


# --------------------------------------------------------------------------------------------- what is refused

IMAGE = [{"role": "user", "content": [{"type": "image", "source": {}}]}]


@pytest.mark.parametrize("path, body, status, says", [
    ("/v1/messages", {"messages": USER}, 400, "'max_tokens'"),
    ("/v1/messages", {"messages": USER, "max_tokens": 0}, 400, "'max_tokens'"),
    ("/v1/messages", {"messages": [], "max_tokens": 5}, 400, "'messages'"),
    ("/v1/messages", {"messages": [{"role": "tool", "content": "a"}], "max_tokens": 5}, 400, "'messages[0].role'"),
    ("/v1/messages", {"messages": [{"role": "user"}], "max_tokens": 5}, 400, "'messages[0].content'"),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "system": 5}, 400, "'system'"),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "stop_sequences": [5]}, 400, "'stop_sequences'"),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "mcp_servers": [{}]}, 400, "'mcp_servers'"),
    ("/v1/messages", {"messages": IMAGE, "max_tokens": 5}, 400, "image"),
    ("/v1/messages/count_tokens", {"messages": IMAGE}, 400, "image"),
    ("/v1/responses", {}, 400, "'input'"),
    ("/v1/responses", {"input": [5]}, 400, "'input[0]"),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}, 400, "item_reference"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input_image"),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, 400, "'previous_response_id'"),
    ("/v1/responses", {"input": "a", "background": True}, 400, "'background'"),
    ("/v1/responses", {"input": "a", "include": ["file_search_call.results"]}, 400, "file_search_call.results"),
    ("/v1/responses", {"input": "a", "max_output_tokens": -1}, 400, "'max_output_tokens'"),
    ("/v1/responses", {"input": "a", "store": 1}, 400, "'store'"),
    ("/v1/responses", {"input": "a " * N_CTX}, 400, "exceeds the available context size"),
    ("/v1/embeddings", {}, 400, "'input'"),
    ("/v1/embeddings", {"input": ""}, 400, "'input'"),
    ("/v1/embeddings", {"input": ["a", ""]}, 400, "'input'"),
    ("/v1/embeddings", {"input": ["a", 5]}, 400, "'input'"),
    ("/v1/embeddings", {"input": ["a"] * 257}, 400, "'input'"),
    ("/v1/embeddings", {"input": [5] * (N_CTX + 1)}, 400, "exceeds the available context size"),
    ("/v1/embeddings", {"input": "a", "dimensions": N_EMBD - 1}, 400, "'dimensions'"),
    ("/v1/embeddings", {"input": "a", "pooling": "none"}, 400, "'pooling'"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "'encoding_format'"),
])
def test_refusals(server, path, body, status, says):
    """In a shape that both families of clients read."""
    answer = server.post(path, body, expect=status)
    error = answer["error"]
    assert answer["type"] == "error" and error["code"] == status and says in error["message"] and error["type"]
    assert error["param"] == (error["message"].split("'")[1] if error["message"][0] == "'" else None)
    if "context size" not in error["message"]:  # clients send what a server does not have again where the status is 5xx
        assert error["type"] == "invalid_request_error" and error["param"]


HINTS = [
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 4},
     {"reasoning_effort": "high", "verbosity": "low", "service_tier": "auto", "prediction": {"type": "content", "content": "It"}, "store": True, "prompt_cache_key": "k"}),
    ("/v1/responses", {"input": "It was", "max_output_tokens": 4},
     {"reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}, "truncation": "auto", "service_tier": "auto", "include": []}),
    ("/v1/messages", {"messages": USER, "max_tokens": 4},
     {"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto", "metadata": {"user_id": "u"}}),
]


@pytest.mark.parametrize("path, body, hints", HINTS)
def test_hints_are_ignored(server, path, body, hints):
    """How much to think or to write, what to do with too long a prompt: a server may ignore it, and does so on every surface."""
    def text(**more):
        answer = server.post(path, {**body, **FIELDS, **more})
        return (answer["choices"][0]["message"] if "choices" in answer else answer.get("output", [answer])[0])["content"]
    assert text() == text(**hints)
    for name, value in hints.items():
        assert text() == text(**{name: value}), name


def test_schema_of_messages(server):
    """output_config.format holds the text, as text.format and response_format do; output_format is its earlier name."""
    form = {"type": "json_schema", "schema": {"enum": ["red", "green"]}}
    for field in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}):
        answer = server.post("/v1/messages", {"messages": USER, "max_tokens": 40, **field})
        assert json.loads(answer["content"][0]["text"]) in ("red", "green") and answer["stop_reason"] == "end_turn"
    for wrong, param in (({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"), ({"output_config": 5}, "output_config"),
                         ({"output_format": {"type": "text"}}, "output_format")):
        assert server.post("/v1/messages", {"messages": USER, "max_tokens": 4, **wrong}, expect=400)["error"]["param"] == param


def test_keys_and_clients_that_go_away():
    s = Server("--api-key", "k")
    for path, body in (("/v1/messages", {"messages": USER, "max_tokens": 1}), ("/v1/responses", {"input": "a"}), ("/v1/embeddings", {"input": "a"})):
        status, _, text = s.request("POST", path, body)
        assert status == 401 and json.loads(text)["type"] == "error"
        assert s.request("POST", path, body, {"X-Api-Key": "k"})[0] == 200
        data = json.dumps({**body, "stream": True, "max_tokens": 200, "max_output_tokens": 200, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as gone:
            gone.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
            time.sleep(0.01)
    end = time.time() + 20
    while json.loads(s.request("GET", "/slots", None, {"X-Api-Key": "k"})[2]):
        assert time.time() < end, "jobs are left"
        time.sleep(0.02)
    assert s.stop() == 0


# ------------------------------------------------------------------------------------------------------ clients

def test_anthropic_client():
    anthropic = pytest.importorskip("anthropic", reason="the Python package anthropic is absent (./setup --tests)")
    s = Server("--api-key", "k")
    client, wrong = (anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key=key, max_retries=0) for key in ("k", "wrong"))
    body = {"model": "m", "max_tokens": 12, "system": SYSTEM, "messages": USER, "extra_body": {"ignore_eos": True, "temperature": 0}}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        text, final = "".join(stream.text_stream), stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text and (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    count = client.messages.count_tokens(model="m", system=SYSTEM, messages=USER).input_tokens
    assert count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens and set(whole.usage.model_extra["kv"]) == KV_KEYS
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**body)
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        client.messages.create(**{**body, "messages": [{"role": "user", "content": "a " * N_CTX}]})
    assert s.stop() == 0


def test_openai_client(server):
    openai = pytest.importorskip("openai", reason="the Python package openai is absent (./setup --tests)")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    body = {"model": "m", "instructions": SYSTEM, "input": "It was", "temperature": 0, "extra_body": {"logit_bias": {"2": 3.0}}}
    whole = client.responses.create(**body)
    assert whole.status == "completed" and whole.output_text and set(whole.usage.model_extra["kv"]) == KV_KEYS
    with client.responses.stream(**body) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text and kinds[0] == "response.created" and kinds[-1] == "response.completed"
    cut = client.responses.create(**{**body, "max_output_tokens": 1, "extra_body": {"ignore_eos": True}})
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    floats = client.embeddings.create(model="m", input=[PROMPT, "a"], encoding_format="float")
    assert floats.data[0].embedding == client.embeddings.create(model="m", input=PROMPT).data[0].embedding  # of base64
    assert floats.usage.total_tokens == floats.usage.prompt_tokens > 0
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**body, previous_response_id="resp_1")


# ------------------------------------------------------------------------------------------- what clients rely on

BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]


def test_roles_of_openai(server):
    """A template that does not know "developer" has it as the system's."""
    def prompt(*messages):
        return server.post("/apply-template", {"messages": list(messages)})["prompt"]
    assert prompt({**BOOK[0], "role": "developer"}, *BOOK[1:]) == prompt(*BOOK)
    assert prompt(*BOOK, {"role": "function", "name": "f", "content": "1"}) == prompt(*BOOK, {"role": "tool", "tool_call_id": "a", "content": "1"})
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    ended = prompt(*BOOK, call)  # a turn of its own, and not the beginning of the answer
    assert ended.startswith(prompt(*BOOK)) and '"f"' in ended and len(ended) > len(prompt(*BOOK, {"role": "assistant", "content": '{"name": "f"}'}))


def test_several_answers_are_counted_apart(server):
    answers = server.post("/completion", {"prompt": "a", "n_predict": 3, "n_cmpl": 2, "ignore_eos": True, "return_tokens": True})
    assert [(a["tokens_predicted"], a["timings"]["predicted_n"], len(a["tokens"])) for a in answers] == [(3, 3, 3)] * 2
    text = server.post("/completion", {"prompt": "a", "n_predict": 8, "temperature": 0})["content"]
    ended = server.post("/completion", {"prompt": "a", "n_predict": 8, "temperature": 0, "stop": [text[2:4]]})
    assert ended["stop_type"] == "word" and ended["stopping_word"] == text[2:4]


def test_usage_is_in_every_piece(server):
    pieces = server.stream("/v1/chat/completions", messages=BOOK, max_tokens=3, stream_options={"include_usage": True})
    assert all("usage" in piece for piece in pieces) and [piece for piece in pieces if piece["usage"]] == pieces[-1:]
