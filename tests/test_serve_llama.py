"""What llama.cpp's own server tests ask for (tools/server/tests/unit), asked of butler serve on its own model. BEHAVIOURS names each of
them: the test here or in test_serve.py that passes it, or why butler answers otherwise."""
import json
import re
import threading
import time

import pytest

import test_serve
import test_serve_surfaces
from cli import GQA, N_CTX, N_VOCAB, PROMPT
from test_serve import Server, pytestmark, server  # noqa: F401  (a fixture; skips where butler is built without libevent)

NOT_THERE = "not there: "
BEHAVIOURS = {
    "basic: start": "test_start",
    "basic: props": "test_props",
    "basic: the seed in props": "there is none: without a seed each request has another",
    "basic: models": "test_models",
    "basic: slots": "test_slots",
    "basic: /slots without --slots": "the endpoint is always there; a key protects it",
    "basic: a model in several files": "test_files.c and test_odd_files.py load split models in general",
    "basic: no web page": "the page is always there; it holds no data, and a key protects what it asks for",
    "basic: aliases and tags of a model": NOT_THERE + "the model's name is its file's",
    "completion: lengths": "test_completion",
    "completion: has_new_line and generation_settings": NOT_THERE + "fields of the request are not repeated in the answer",
    "completion: return_tokens": "tokens are always returned",
    "completion: response_fields": "the answer has all fields, those that were named too",
    "completion: stream": "test_completion_stream",
    "completion: stream against whole": "test_native_stream",
    "completion: OpenAI's client": "test_sdk",
    "completion: stop texts in a stream": "test_stop_texts",
    "completion: same seed, same text": "test_same_seed",
    "completion: other seed, other text": "test_other_seed",
    "completion: other batch size, same text": "test_batch_sizes",
    "completion: with and without cache, same text": "test_cache",
    "completion: a long prompt": "test_long_prompt",
    "completion: token ids and mixed prompts": "test_token_prompts",
    "completion: requests at once": "test_parallel",
    "completion: n_probs": "test_n_probs",
    "completion: n_probs in a stream": "test_n_probs_stream",
    "completion: post_sampling_probs": NOT_THERE + "refused with 400",
    "completion: logit_bias": "test_logit_bias",
    "completion: a client that goes away": "test_cancel",
    "chat: whole": "test_chat",
    "chat: stream": "test_chat_stream",
    "chat: a template by name": "test_chat_template",
    "chat: the assistant's message is continued": "test_chat_prefill",
    "chat: --chat-template command-r": NOT_THERE + "templates by name are those of `butler chat --help`; any other comes from a file",
    "chat: response_format": "test_response_format",
    "chat: JSON schemas": "test_response_format",
    "completion, chat: grammars": "test_grammar",
    "chat: requests that are none": "test_chat_without_sense",
    "chat: timings_per_token": "test_stream_timings",
    "chat: timings of every token": NOT_THERE + "the piece with usage has them, and a whole answer",
    "chat: logprobs": "test_chat_logprobs",
    "chat: logprobs in a stream": "test_chat_logprobs",
    "chat: logit_bias": "test_logit_bias",
    "chat: a conversation that is too long": "test_long_conversation",
    "chat: return_progress": "test_progress",
    "chat: several choices": "test_chat_choices",
    "security: public endpoints": "test_keys_and_origins",
    "security: wrong, right and X-Api-Key keys": "test_keys_and_origins",
    "security: OpenAI's client with a key": "test_client_with_key",
    "security: CORS": "test_cors",
    "security: credentials of other origins": "Access-Control-Allow-Credentials is left out: keys are sent by the page, not by the browser",
    "security: images of local files": NOT_THERE + "images are refused with 400",
    "tokenize: and back": "test_tokenize",
    "tokenize: with BOS": "test_tokenize",
    "tokenize: with pieces": "test_tokenize_pieces",
    "template: reasoning, dates": "test_template.py renders such templates against Jinja itself",
    "template: add_generation_prompt": "test_generation_prompt",
    "context shift": NOT_THERE + "an answer ends where the context is full; policies that evict bound the memory instead",
    "context shift off: a short prompt": "test_context_is_filled",
    "context shift off: truncated": "always false: no prompt is cut, and an answer that fills the context has the finish_reason length",
    "context shift off: a long prompt": "test_long_prompt",
    "context shift off: a stream": "test_stream_fills_context",
    "ignore_eos": "test_ignore_eos",
    "kv_keep_only_active: a prompt that was read before": "test_kept_prompt",
    "kv_keep_only_active: off by a flag": '"cache_prompt": false is the same for a request',
    "slot_save: save, restore, erase": NOT_THERE + "no request belongs to a slot; the prefix cache finds what was read before by itself",
    "stream: a stream that is resumed": NOT_THERE + "a client that goes away ends its request",
    "proxy": NOT_THERE + "the server fetches nothing",
    "speculative decoding": NOT_THERE + "a server without a draft model",
    "embeddings: one and several texts, token ids, base64, none that is empty, none too long": "test_embeddings_shapes",
    "embeddings: /embeddings with 'content', vectors that are not normalised or of every token": NOT_THERE + "/v1/embeddings alone",
    "/v1/responses: whole, as a stream, with OpenAI's client": "test_responses",
    "/v1/messages and /v1/messages/count_tokens: whole, as a stream, system, stop_sequences, errors": "test_messages",
    "tool calls, reasoning_content: whole, in a stream, results, several": "test_serve_tools.py, with answers given to the model",
    "tool calls: tool_choice required, forms of calls that docs/serve/tools.md does not list": NOT_THERE + "400; such calls stay content",
    "rerank, infill, lora, vision, audio, router, sleep": NOT_THERE + "no such endpoint: 404",
}


def test_every_behaviour_has_its_test():
    named = [what for what in BEHAVIOURS.values() if re.fullmatch(r"test_\w+", what)]
    for name in named:
        assert callable(globals().get(name) or getattr(test_serve, name, None) or getattr(test_serve_surfaces, name)), name
    here = {name for name in globals() if name.startswith("test_") and callable(globals()[name])} - {"test_every_behaviour_has_its_test"}
    assert not here - set(named)


def complete(server, **fields):
    return server.post("/completion", {"prompt": PROMPT, "temperature": 0, "n_predict": 8, **fields})


# ---------------------------------------------------------------------------------------------------------- basic

def test_start(server):
    assert server.get("/health") == server.get("/v1/health") == {"status": "ok"}


def test_props():
    s = Server("--parallel", 3, "-c", 100, "--top-k", 7)
    props = s.get("/props")
    assert props["model_path"].endswith(".gguf") and props["total_slots"] == 3
    assert props["default_generation_settings"]["n_ctx"] == 100 and props["default_generation_settings"]["params"]["top_k"] == 7
    assert s.stop() == 0


def test_models(server):
    models = server.get("/models")
    assert models == server.get("/v1/models") and [m["id"] for m in models["data"]] == [GQA.rpartition("/")[2]]


def test_slots(server):
    """A slot for each request that runs, and no parameters of it."""
    seen = []
    body = {"prompt": [[5] * 8] * 8, "n_predict": 240, "ignore_eos": True}
    thread = threading.Thread(target=lambda: server.post("/completion", body))
    thread.start()
    while thread.is_alive():
        seen += server.get("/slots")
    assert seen and all(s["is_processing"] and s["n_ctx"] == N_CTX and "params" not in s and s["n_prompt_tokens"] == 8 for s in seen)
    server.wait_idle()
    assert server.get("/slots") == []


# ----------------------------------------------------------------------------------------------------- completions

@pytest.mark.parametrize("n", [1, 8, 64])
def test_completion(server, n):
    answer = complete(server, n_predict=n, ignore_eos=True, cache_prompt=False)
    n_prompt = server.post("/tokenize", {"content": PROMPT, "add_special": True})["count"]
    assert (answer["timings"]["prompt_n"], answer["timings"]["predicted_n"], answer["tokens_evaluated"]) == (n_prompt, n, n_prompt)
    assert answer["truncated"] is False and answer["content"] and len(answer["tokens"]) == n


def test_completion_stream(server):
    pieces = server.stream("/completion", prompt=PROMPT, n_predict=12, temperature=0, ignore_eos=True)
    assert all(p["stop"] is False for p in pieces[:-1]) and sum(len(p["tokens"]) for p in pieces) == 12
    last = pieces[-1]
    assert last["stop"] is True and last["stop_type"] == "limit" and last["timings"]["predicted_n"] == 12 and last["truncated"] is False


@pytest.mark.parametrize("n_slots", [1, 2])
def test_same_seed(n_slots):
    s = Server("--parallel", n_slots)
    for temperature in (0, 1):
        assert len({complete(s, temperature=temperature, seed=42)["content"] for _ in range(4)}) == 1
    assert s.stop() == 0


def test_other_seed(server):
    assert len({complete(server, temperature=1, seed=seed, n_predict=24)["content"] for seed in range(4)}) == 4
    assert len({complete(server, temperature=1, n_predict=24)["content"] for _ in range(4)}) == 4


def test_batch_sizes():
    """Also with a temperature, of which llama.cpp's test says that it does not work there."""
    texts = set()
    for block in (16, 32, 256):
        s = Server("--block", block)
        texts |= {tuple(complete(s, prompt=PROMPT * 8, temperature=t, seed=42, n_predict=24)["content"] for t in (0, 1))}
        assert s.stop() == 0
    assert len(texts) == 1


def test_cache(server):
    """llama.cpp skips its test of this."""
    prompt = PROMPT * 8
    texts = [complete(server, prompt=prompt, temperature=1, seed=42, n_predict=24, cache_prompt=cache) for cache in (False, True, True, False)]
    assert len({t["content"] for t in texts}) == 1 and texts[2]["tokens_cached"] >= 64 and texts[3]["tokens_cached"] == 0


def test_kept_prompt():
    s, prompt = Server(), PROMPT * 7
    first = complete(s, prompt=prompt)["timings"]
    complete(s, prompt="The quick brown fox")
    again, longer = complete(s, prompt=prompt)["timings"], complete(s, prompt=prompt + " The knight")["timings"]
    assert first["cache_n"] == 0 < again["cache_n"] <= longer["cache_n"] and again["prompt_n"] < first["prompt_n"]
    assert s.stop() == 0


def test_long_prompt(server):
    for cache in (True, False):
        error = server.post("/completion", {"prompt": PROMPT * 64, "cache_prompt": cache}, expect=400)["error"]
        assert "exceeds the available context size" in error["message"] and error["n_ctx"] == N_CTX


def test_token_prompts(server):
    ids = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    alone = complete(server, prompt=ids)["content"]
    for prompt in ([ids, ids], [ids, PROMPT], [PROMPT, PROMPT]):
        assert [a["content"] for a in complete(server, prompt=prompt)] == [alone] * 2
    mixed = complete(server, prompt=[1, 2, 3, 4, 5, 6, PROMPT, 7, 8, 9, 10, PROMPT])
    text = server.post("/tokenize", {"content": PROMPT})["tokens"]
    assert mixed["content"] == complete(server, prompt=[1, 2, 3, 4, 5, 6, *text, 7, 8, 9, 10, *text])["content"]
    assert complete(server, prompt=[PROMPT, 5])["content"] == complete(server, prompt=[*ids, 5])["content"]


@pytest.mark.parametrize("n_slots, n_requests", [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
def test_parallel(n_slots, n_requests):
    """Each has the text that it has alone, of which llama.cpp's test says that it does not hold there."""
    s, got = Server("--parallel", n_slots), {}
    bodies = [{"prompt": PROMPT[i:], "temperature": 1, "seed": 42, "n_predict": 100, "ignore_eos": True} for i in range(n_requests)]
    alone = [s.post("/completion", body)["content"] for body in bodies]
    threads = [threading.Thread(target=lambda i=i: got.update({i: s.post("/completion", bodies[i])["content"]})) for i in range(n_requests)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        assert len(s.get("/slots")) <= n_slots
    assert [got[i] for i in range(n_requests)] == alone and s.stop() == 0


def check_probabilities(tokens, n):
    for t in tokens:
        assert isinstance(t["id"], int) and isinstance(t["token"], str) and t["logprob"] <= 0 and isinstance(t["bytes"], list)
        assert len(t["top_logprobs"]) == n
        for top in t["top_logprobs"]:
            assert isinstance(top["id"], int) and isinstance(top["token"], str) and top["logprob"] <= 0 and isinstance(top["bytes"], list)


def test_n_probs(server):
    tokens = complete(server, n_probs=10, n_predict=5)["completion_probabilities"]
    assert len(tokens) == 5
    check_probabilities(tokens, 10)


def test_n_probs_stream(server):
    pieces = server.stream("/completion", prompt=PROMPT, n_probs=10, n_predict=5, temperature=0, ignore_eos=True)
    with_tokens = [p["completion_probabilities"] for p in pieces if p["tokens"]]
    assert len(with_tokens) == 5 and {len(t) for t in with_tokens} == {1}
    check_probabilities([t[0] for t in with_tokens], 10)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
@pytest.mark.parametrize("openai_style", [False, True])
@pytest.mark.parametrize("texts", [False, True])
def test_logit_bias(server, path, openai_style, texts):
    """Tokens of words do not occur when they are banned, by id or by the words themselves."""
    body = {"prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40, "temperature": 0, "ignore_eos": True,
            **({"n_probs": 1} if path == "/completion" else {"logprobs": True})}

    def tokens(**fields):
        answer = server.post(path, {**body, **fields})
        return [t["token"] for t in answer.get("completion_probabilities") or answer["choices"][0]["logprobs"]["content"]]

    words = sorted({t for t in tokens() if t.isascii() and t.isalpha()})
    ids = [i for word in words for i in server.post("/tokenize", {"content": word})["tokens"]]
    bias = [[b, -1000] for b in (words if texts else ids)]
    left = tokens(logit_bias={str(b): value for b, value in bias} if openai_style else bias)
    assert words and len(left) == 40 and not set(words) & set(left)


def test_cancel():
    s = Server("--parallel", 1, "-c", 100000)
    with pytest.raises(OSError):
        connection = test_serve.http.client.HTTPConnection("127.0.0.1", s.port, timeout=0.2)
        connection.request("POST", "/completion", json.dumps({"prompt": PROMPT, "ignore_eos": True}))
        connection.getresponse()
    assert s.get("/slots")
    connection.close()
    end = time.time() + 10
    while s.get("/slots"):
        assert time.time() < end
    assert s.stop() == 0


# ------------------------------------------------------------------------------------------------- conversations

BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]


@pytest.mark.parametrize("user", ["Hey", "What is the best book", [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]])
def test_chat(server, user):
    messages = [BOOK[0], {"role": "user", "content": user}]
    answer = server.post("/chat/completions", {"model": None, "max_tokens": 8, "messages": messages, "ignore_eos": True})
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    assert "cmpl" in answer["id"] and answer["system_fingerprint"].startswith("b") and answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens"] == server.post("/tokenize", {"prompt": prompt})["count"]
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"


def test_chat_stream(server):
    pieces = server.stream("/v1/chat/completions", messages=BOOK, max_tokens=8, ignore_eos=True)
    first, *rest = [p["choices"][0] for p in pieces]
    assert first["delta"] == {"role": "assistant", "content": None} and not any("role" in c["delta"] for c in rest)
    assert {p["id"] for p in pieces} == {pieces[0]["id"]} and {p["model"] for p in pieces} == {GQA.rpartition("/")[2]}
    assert all(p["system_fingerprint"].startswith("b") for p in pieces)
    assert rest[-1]["finish_reason"] == "length" and "content" not in rest[-1]["delta"]
    assert all(c["finish_reason"] is None for c in rest[:-1]) and "".join(c["delta"]["content"] for c in rest[:-1])


def test_stream_timings(server):
    pieces = server.stream("/v1/chat/completions", messages=BOOK, max_tokens=10, stream_options={"include_usage": True}, timings_per_token=True)
    timings = pieces[-1]["timings"]
    assert "timings" not in pieces[0] and timings["prompt_per_second"] > 0 and timings["predicted_per_second"] > 0
    assert timings["predicted_n"] == pieces[-1]["usage"]["completion_tokens"] <= 10


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_progress(path):
    """While a prompt is read a stream tells how much of it, beginning with what is known from before, and at the end that it is all."""
    server = Server("--block", 16)
    words = " ".join(f"word{i}" for i in range(12))
    prompt = {"messages": [{"role": "user", "content": words}]} if "chat" in path else {"prompt": words}
    for known in (False, True):
        pieces = server.stream(path, **prompt, max_tokens=3, ignore_eos=True, return_progress=True, stream_options={"include_usage": True})
        told = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
        total = pieces[-1]["usage"]["prompt_tokens"] if path.startswith("/v1") else pieces[-1]["tokens_evaluated"]
        assert total > 32 and all(t["total"] == total for t in told)
        assert all(a["processed"] < b["processed"] and a["time_ms"] <= b["time_ms"] for a, b in zip(told, told[1:]))
        assert told[-1]["processed"] == total and all(t["cache"] < t["processed"] and (t["cache"] > 0) == known for t in told)
        assert known or (len(told) > 1 and told[0]["processed"] == 16)
        if "chat" in path:
            assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": None} and "prompt_progress" not in pieces[0]
    assert not any("prompt_progress" in piece for piece in server.stream(path, **prompt, max_tokens=3))
    assert server.stop() == 0


@pytest.fixture(scope="module")
def llama3():
    s = Server("--chat-template", "llama3")
    yield s
    assert s.stop() == 0


LLAMA3 = ("<|start_header_id|>system<|end_header_id|>\n\nBook<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhat is the best book<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n")


def test_chat_template(llama3):
    assert llama3.post("/apply-template", {"messages": BOOK})["prompt"].endswith(LLAMA3)


@pytest.mark.parametrize("prefill", ["Whill", [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]])
def test_chat_prefill(llama3, prefill):
    messages = [*BOOK, {"role": "assistant", "content": prefill}]
    assert llama3.post("/apply-template", {"messages": messages})["prompt"].endswith(LLAMA3 + "Whill")


def test_generation_prompt(llama3):
    for wanted in (True, False):
        prompt = llama3.post("/apply-template", {"messages": BOOK, "add_generation_prompt": wanted})["prompt"]
        assert ("<|start_header_id|>assistant" in prompt) == wanted


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_grammar(server, path):
    body = {"messages": BOOK} if "chat" in path else {"prompt": PROMPT}

    def texts(**fields):
        answer = server.post(path, {**body, "max_tokens": 12, **fields})
        return [c["message"]["content"] if "chat" in path else c["text"] for c in answer["choices"]] if "choices" in answer else [answer["content"]]
    assert texts(grammar='root ::= "a"{5,5}') == ["aaaaa"]
    assert all(re.fullmatch("[0-9]{2,4}", text) for text in texts(grammar="root ::= [0-9]{2,4}", temperature=2, ignore_eos=True))
    assert texts(grammar='root ::= "aü" "!"*', stop=["!"], temperature=0)[0].rstrip("!") == "aü"
    assert texts(grammar="", temperature=0) == texts(temperature=0)
    chain = "".join(f'r{i} ::= r{i + 1} | "x"\n' for i in range(9000)) + 'r9000 ::= "y"'  # noticed only behind the first letter
    answer = server.post(path, {**body, "grammar": f'root ::= "a" r0\n{chain}'}, expect=400)
    assert "too ambiguous" in answer["error"]["message"]


@pytest.mark.parametrize("fields, wanted", [
    ({"response_format": {"type": "text"}}, None), ({"response_format": {"type": "sound"}}, 400), ({"response_format": {"type": 5}}, 400),
    ({"response_format": {"type": "json_object", "schema": {"const": "42"}}}, '"42"'), ({"json_schema": {"const": "42"}}, '"42"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "a"}}}}, '"a"'),
    ({"response_format": {"type": "json_schema"}}, 400), ({"response_format": {"type": "json_object", "schema": {"type": "x"}}}, 400),
])
def test_response_format(server, fields, wanted):
    status = wanted if isinstance(wanted, int) else 200
    answer = server.post("/chat/completions", {"messages": BOOK, "max_tokens": 20, **fields}, expect=status)
    if status != 200:
        assert "response_format" in answer["error"]["message"]
    elif wanted:
        assert answer["choices"][0]["message"]["content"] == wanted


@pytest.mark.parametrize("messages", [
    None, "string", [], [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [{"content": "hello"}],
    [{"role": "system", "content": "test"}, {}], [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}],
])
def test_chat_without_sense(server, messages):
    assert server.post("/chat/completions", {"messages": messages}, expect=400)["error"]["type"] == "invalid_request_error"


def test_chat_logprobs(server):
    body = {"messages": BOOK, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 10, "ignore_eos": True}
    choice = server.post("/v1/chat/completions", body)["choices"][0]
    streamed = [c["choices"][0] for c in server.stream("/v1/chat/completions", **body)]
    tokens = choice["logprobs"]["content"]
    assert sum((c["logprobs"]["content"] for c in streamed if c["logprobs"]), []) == tokens
    assert len(tokens) == 5 and all(t["logprob"] <= 0 and len(t["top_logprobs"]) == 10 for t in tokens)
    assert bytes(b for t in tokens for b in t["bytes"]).decode(errors="replace") == choice["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_long_conversation(server, stream):
    error = server.post("/chat/completions", {"messages": BOOK * 100, "stream": stream}, expect=400)["error"]
    assert error["type"] == "exceed_context_size_error" and error["n_prompt_tokens"] > error["n_ctx"] == N_CTX


def test_chat_choices(server):
    choices = server.post("/chat/completions", {"messages": BOOK, "n": 2, "max_tokens": 8, "ignore_eos": True})["choices"]
    assert [(c["index"], c["message"]["role"], c["finish_reason"]) for c in choices] == [(i, "assistant", "length") for i in range(2)]


# ------------------------------------------------------------------------------------------------------ the rest

def test_client_with_key():
    """OpenAI's client reads what it knows of answers and streams: choices, scores, usage, errors."""
    openai = pytest.importorskip("openai")
    s = Server("--api-key", "k")
    client, wrong = (openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key=key, max_retries=0) for key in ("k", "wrong"))
    body = {"model": "m", "messages": BOOK, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3, "n": 2, "logit_bias": {"100": -100},
            "stop": ["never"], "extra_body": {"ignore_eos": True, "kv": {"policy": "quest:budget=16"}}}
    whole = client.chat.completions.create(**body)
    assert len(whole.choices) == 2 and len(whole.choices[0].logprobs.content) == 6 and whole.usage.completion_tokens == 12
    assert whole.usage.model_extra["kv"]["policy"] == "quest:budget=16" and whole.usage.prompt_tokens_details.cached_tokens == 0
    pieces = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for choice in (c for p in pieces for c in p.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content for c in whole.choices] and pieces[-1].usage.completion_tokens == 12 and not pieces[-1].choices
    with pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(**body)
    with pytest.raises(openai.BadRequestError, match="grammar"):
        client.chat.completions.create(**{**body, "extra_body": {"grammar": "x"}})
    constrained = client.chat.completions.create(**{**body, "stop": None, "extra_body": {"grammar": 'root ::= "yes" | "no"'}})
    assert {c.message.content for c in constrained.choices} <= {"yes", "no"}
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(model="m", input="a")
    assert s.stop() == 0


def test_cors(server):
    for origin in ("localhost", "web.mydomain.fr"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
        status, headers, _ = server.request("OPTIONS", "/completions", None, asked)
        assert status in (200, 204) and headers["Access-Control-Allow-Origin"] == origin and headers["Vary"] == "Origin"
        assert "POST" in headers["Access-Control-Allow-Methods"] and headers["Access-Control-Allow-Headers"] == "Authorization"


def test_tokenize(server):
    text = "What is the capital of France ?"
    ids = server.post("/tokenize", {"content": text})["tokens"]
    assert len(ids) > 5 and server.post("/detokenize", {"tokens": ids})["content"].strip() == text
    bos = server.post("/tokenize", {"content": server.get("/tokenizer_info")["bos_token"]})["tokens"]
    assert server.post("/tokenize", {"content": text, "add_special": True})["tokens"] == bos + ids


def test_tokenize_pieces(server):
    text = "This is a test string with unicode \u5abd and emoji \U0001f917"
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert all(0 < p["id"] < N_VOCAB and p["piece"] for p in pieces)
    assert [p["id"] for p in pieces] == server.post("/tokenize", {"content": text})["tokens"]


def test_context_is_filled(server):
    assert complete(server, n_predict=64, ignore_eos=True)["timings"]["predicted_n"] == 64
    filled = complete(server, n_predict=-1, ignore_eos=True)
    assert filled["tokens_evaluated"] + filled["timings"]["predicted_n"] == N_CTX + 1 and filled["stop_type"] == "limit"


def test_stream_fills_context(server):
    choices = [c["choices"][0] for c in server.stream("/v1/completions", prompt="Once", n_predict=N_CTX, ignore_eos=True)]
    assert choices[-1]["finish_reason"] == "length" and "".join(c["text"] for c in choices)
    assert all(c["finish_reason"] is None for c in choices[:-1])


def test_ignore_eos(server):
    end = server.post("/tokenize", {"content": server.get("/tokenizer_info")["eos_token"]})["tokens"][0]
    wish = {str(end): 50}
    assert complete(server, logit_bias=wish)["stop_type"] == "eos"
    ignored = complete(server, logit_bias=wish, ignore_eos=True)
    assert ignored["stop_type"] == "limit" and end not in ignored["tokens"] and len(ignored["tokens"]) == 8
