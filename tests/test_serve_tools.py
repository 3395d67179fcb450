"""Tools and reasoning in butler serve, end to end: a model made so that each token has one successor writes the answers given here."""
import json
import random

import pytest

from cli import GQA
from gguf_file import ARRAY, STRING, U32, Gguf
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

SCRIPTS = {  # a list: control tokens and texts
    "both": ["<think>\nHm. \u00fc</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\u00f6ln\", "
             "\"n\": [1, {}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\"}\n</tool_call>"],
    "control": ["[TOOL_CALLS]", "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}]"],
    "plain": ["No call here: {\"a\": 1} and <tool_"],
    "begun": ["So it </is.</think>\nYes."],  # follows the line break behind the mark that the template writes
    "broken": ["<tool_call>{\"name\": weather, \"arguments\": {}}</tool_call>."],
}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Says it.",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
         for name in ("weather", "time")]
USER = [{"role": "user", "content": "Well?"}]
HEAD = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}{{ '\\n' }}{% endfor %}"
END = "".join(f"{{% if script == '{name}' %}}<|{name}|>{{% endif %}}" for name in SCRIPTS if name != "begun")
MARKS = "{# <think> <tool_call> [TOOL_CALLS] #}"
TEMPLATE = MARKS + "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + HEAD + "" + END + "{% if script == 'begun' %}{{ '<think>\\n' }}{% endif %}"


def cut(script, tokens):
    """The tokens of a script, none of which is there already."""
    for text in script:
        at = 0
        while at < len(text):
            n = len(text) if text == "[TOOL_CALLS]" else 3
            while text[at:at + n] in tokens:
                n += 1
            tokens.append(text[at:at + n])
            yield len(tokens) - 1
            at += n


def write_model(path):
    model, follows, ends = Gguf(GQA), [], []
    values = model.values
    tokens = [t.decode() for t in values["tokenizer.ggml.tokens"][1][1]][:259]
    for name, script in SCRIPTS.items():
        tokens.append(f"<|{name}|>")
        chain = [tokens.index("<0x0A>") if name == "begun" else len(tokens) - 1, *cut(script, tokens), 2]
        follows += zip(chain, chain[1:-1])
        ends.append(chain[-2])
    n = len(tokens)
    control = {f"<|{name}|>" for name in SCRIPTS} | {"[TOOL_CALLS]"}
    types = values["tokenizer.ggml.token_type"][1][1][:259] + [3 if t in control else 4 for t in tokens[259:]]
    model.put("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))
    model.put("tokenizer.ggml.token_type", ARRAY, (5, types))
    model.put("tokenizer.ggml.scores", ARRAY, (6, [0.0] * n))
    model.put("llama.vocab_size", U32, n)
    model.put("llama.context_length", U32, 4096)
    model.put("tokenizer.chat_template", STRING, TEMPLATE)
    for name, (dims, _, _) in list(model.tensors.items()):
        if "attn_output" in name or "ffn_down" in name:  # what is added to the embedding is zero
            model.put_tensor(name, dims, [0.0] * (dims[0] * dims[1]))
    rng = random.Random(1)
    rows = [[rng.choice((-1.0, 1.0)) for _ in range(64)] for _ in range(n)]
    for token in ends:  # one embedding, so that one row of the output says: end
        rows[token] = rows[ends[0]]
    follows.append((ends[0], 2))
    out = [[0.0] * 64 for _ in range(n)]
    for token, after in follows:
        out[after] = [a + b for a, b in zip(out[after], rows[token])]
    for token, after in follows:
        logits = [sum(a * b for a, b in zip(rows[token], row)) for row in out]
        assert max(range(n), key=logits.__getitem__) == after
    model.put_tensor("output_norm.weight", [64], [1.0] * 64)
    model.put_tensor("token_embd.weight", [64, n], sum(rows, []))
    model.put_tensor("output.weight", [64, n], sum(out, []))
    model.write(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tools") / "scripts.gguf"
    write_model(path)
    return path


@pytest.fixture(scope="module")
def server(model):
    s = Server(model=model)
    yield s
    assert s.stop() == 0


def body(script, **fields):
    return {"messages": USER, "tools": TOOLS, "temperature": 0, "max_tokens": 200, "chat_template_kwargs": {"script": script}, **fields}


def ask(server, script, **fields):
    return server.post("/v1/chat/completions", body(script, **fields))["choices"][0]


def without_ids(message):
    return [(c["type"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]


def test_calls_and_reasoning(server):
    choice = ask(server, "both")
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("Hm. \u00fc", "Let me look.")
    assert without_ids(message) == [("function", "weather", '{"city": "K\u00f6ln", "n": [1, {}]}'), ("function", "time", "{}")]
    ids = [c["id"] for c in message["tool_calls"]]
    assert len(set(ids)) == 2 and all(len(i) == 9 and i.isalnum() for i in ids)


def test_control_token_is_a_mark(server):
    choice = ask(server, "control")
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    assert without_ids(choice["message"]) == [("function", "weather", '{"city": "Ulm"}')]


@pytest.mark.parametrize("script", ["plain", "broken"])
def test_what_is_no_call_is_content(server, script):
    choice = ask(server, script)
    assert choice["message"] == {"role": "assistant", "content": SCRIPTS[script][0]} and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("fields", [{"tools": []}, {"tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(server, fields):
    choice = ask(server, "both", **fields)
    assert choice["message"]["content"] == SCRIPTS["both"][0].split("</think>\n\n")[1] and choice["finish_reason"] == "stop"
    raw = ask(server, "both", reasoning_format="none", **fields)["message"]
    assert raw == {"role": "assistant", "content": SCRIPTS["both"][0]}


def test_one_call_alone(server):
    assert [c[1] for c in without_ids(ask(server, "both", parallel_tool_calls=False)["message"])] == ["weather"]


def test_reasoning_that_the_prompt_began(server):
    assert ask(server, "begun")["message"] == {"role": "assistant", "reasoning_content": "So it </is.", "content": "Yes."}


def test_required_call_behind_reasoning(server):
    """The model reasons as it likes, whether the prompt has begun that or not; then comes the call, though the script has none."""
    tool = {"type": "function", "function": {"name": "now"}}
    for script, reasoning in (("begun", "So it </is."), ("both", "Hm. \u00fc")):
        choice = ask(server, script, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        message = choice["message"]
        assert (message.get("reasoning_content"), message["content"], choice["finish_reason"]) == (reasoning, None, "tool_calls")
        assert without_ids(message) == [("function", "now", "{}")]


def test_an_answer_that_is_cut(server):
    choice = ask(server, "both", max_tokens=40)
    assert choice["finish_reason"] == "length" and SCRIPTS["both"][0].find(without_ids(choice["message"])[0][2]) > 0


def joined(chunks):
    """The message that the deltas of a stream make, and the reason of its end."""
    message, reason = {"role": "assistant", "content": None}, None
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta, reason = choice["delta"], reason or choice["finish_reason"]
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = (message.get(key) or "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["id"] and call["function"]["name"] and call["function"]["arguments"] == ""
                calls.append({k: call[k] for k in ("id", "type", "function")})
            else:
                assert call["index"] == len(calls) - 1 and set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return message, reason


@pytest.mark.parametrize("script", SCRIPTS)
def test_streams_say_the_same(server, script):
    chunks = server.stream("/v1/chat/completions", **body(script))
    message, reason = joined(chunks)
    choice = ask(server, script)
    for call in (*message.get("tool_calls", []), *choice["message"].get("tool_calls", [])):
        del call["id"]
    assert (message, reason) == (choice["message"], choice["finish_reason"])
    pieces = [c["function"]["arguments"] for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert script != "both" or len([p for p in pieces if p]) > 4  # as they come


def test_choices_have_ids_of_their_own(server):
    choices = server.post("/v1/chat/completions", body("both", n=2, logprobs=True))["choices"]
    assert len({call["id"] for c in choices for call in c["message"]["tool_calls"]}) == 4
    assert without_ids(choices[0]["message"]) == without_ids(choices[1]["message"])


# --------------------------------------------------------------------------------------------------------- prompts

TURNS = USER + [{"role": "assistant", "content": None,
                 "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}]},
                {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"}, {"role": "tool", "tool_call_id": "x", "content": "wind"}]


def prompt(server, **fields):
    return server.post("/apply-template", {"messages": TURNS, **fields})["prompt"]


def test_template_gets_tools_and_objects(server):
    assert prompt(server, tools=TOOLS) == "[weather][time]user: Well?\nassistant: Ulm\ntool: rain\ntool: wind\n"
    assert prompt(server, tools=TOOLS, tool_choice="none") == prompt(server) == "user: Well?\nassistant: Ulm\ntool: rain\ntool: wind\n"


def test_template_without_tools(model, tmp_path):
    file = tmp_path / "template"
    file.write_text(HEAD + END)
    s = Server("--chat-template", file, model=model)
    text = prompt(s, tools=TOOLS)
    system, rest = text.split("\nuser: Well?\n")
    assert system.startswith("system: ") and all(json.dumps(t) in system for t in TOOLS) and "<tool_call>" in system
    assert rest == ('assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
                    "user: <tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>\n")
    assert prompt(s, tools=TOOLS, messages=[{"role": "system", "content": "Be brief."}]).startswith("system: Be brief.\n\nYou can call")
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
    assert prompt(s, tools=TOOLS, messages=[{"role": "system", "content": parts}]).startswith("system: Be kind.\n\nYou can call")
    assert prompt(s, messages=[{"role": "tool", "content": parts}]) == "user: <tool_response>\nBe kind.\n</tool_response>\n"
    message = ask(s, "both")["message"]
    assert "<think>" in message["content"] and len(message["tool_calls"]) == 2  # a template that shows no reasoning
    assert s.stop() == 0


@pytest.mark.parametrize("fields, status, says", [
    ({"tool_choice": "often"}, 400, "'tool_choice'"), ({"tool_choice": 5}, 400, "'tool_choice'"),
    ({"tools": {"a": 1}}, 400, "'tools'"), ({"tools": [TOOLS[0]] * 257}, 400, "256"),
    ({"tools": [{"type": "web_search"}]}, 501, "web_search"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "'tools[0].function.name'"),
    ({"tools": [TOOLS[0], {"type": "function", "function": {"name": "a", "parameters": []}}]}, 400, "'tools[1].function.parameters'"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, 400, "'tool_calls' of message 0"),
    ({"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, 400, "message 1"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]}, 400, "arguments"),
    ({"parallel_tool_calls": "no"}, 400, "'parallel_tool_calls'"),
    ({"reasoning_format": "all"}, 400, "'reasoning_format'"), ({"reasoning_format": 1}, 400, "'reasoning_format'"),
    ({"chat_template_kwargs": 5}, 400, "'chat_template_kwargs'"),
])
def test_refused(server, fields, status, says):
    error = server.post("/v1/chat/completions", body("plain", **fields), expect=status)["error"]
    assert says in error["message"]


def test_client(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    kwargs = {"model": "m", "messages": USER, "tools": TOOLS, "temperature": 0, "extra_body": {"chat_template_kwargs": {"script": "both"}}}
    choice = client.chat.completions.create(**kwargs).choices[0]
    assert choice.finish_reason == "tool_calls" and json.loads(choice.message.tool_calls[0].function.arguments)["city"] == "K\u00f6ln"
    with client.chat.completions.stream(**kwargs) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert [c.function.arguments for c in final.message.tool_calls] == [c.function.arguments for c in choice.message.tool_calls]
    turn = USER + [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "rain"}]
    assert client.chat.completions.create(**{**kwargs, "messages": turn}).choices[0].finish_reason == "tool_calls"
