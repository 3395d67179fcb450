"""tool_choice that requires a call: a model with random weights, which would never write one, answers with calls whose arguments
match the tool's schema, in the form of every family, whole and in a stream."""
import json
import re

import pytest

from gguf_file import Gguf
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)
from test_serve_tools import joined, write_model

CITIES = ["Ulm", "K\u00f6ln"]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
             "type": "object", "required": ["city"], "additionalProperties": False,
             "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
             "$defs": {"city": {"enum": CITIES}}}}},
         {"type": "function", "function": {"name": "now"}},
         {"type": "function", "function": {"name": "switch.v2", "parameters": {
             "properties": {"on": {"type": "boolean"}, "to": {"anyOf": [{"const": "a"}, {"type": "null"}]}}, "required": ["on", "to"]}}}]
BODY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
FORMS = {
    "none": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "hermes": "{# <tool_call> #}" + BODY,
    "mistral": "{# [TOOL_CALLS] #}" + BODY,
    "mistral_named": "{# [TOOL_CALLS] [ARGS] #}" + BODY,
    "command": "{# <|START_ACTION|> #}" + BODY,
    "granite": "{# <|tool_call|> #}" + BODY,
    "qwen3_coder": "{# <tool_call> <function= #}" + BODY,
    "gpt_oss": "{# <|channel|> <|message|> #}" + BODY,
    "phi4_mini": "{% for message in messages %}{{ message['role'] }}{{ message['content'] }}{% if 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{% endfor %}",
    "glm4": "{# <|observation|> <|assistant|> #}" + BODY,
    "functionary_3.1": "{# <function= #}" + BODY,
    "functionary_3.2": "{# >>>all #}" + BODY + ">>>",
    "llama": '{# {"name": "", "parameters": {} } #}' + BODY,
}


def is_right(name, text):
    arguments = json.loads(text)
    if name == "weather":
        days = arguments.pop("days", 0)
        return type(days) is int and 0 <= days <= 99 and list(arguments) == ["city"] and arguments["city"] in CITIES
    if name == "switch.v2":
        return set(arguments) == {"on", "to"} and type(arguments["on"]) is bool and arguments["to"] in ("a", None)
    return name == "now" and arguments == {}


@pytest.fixture(scope="module", params=FORMS)
def server(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("choice") / "template"
    file.write_text(FORMS[request.param])
    s = Server("--chat-template", file, "-c", 8192)
    s.form = request.param
    yield s
    assert s.stop() == 0


def body(seed, **fields):
    """Draws nearly at random, so that every function is called sometimes."""
    return {"messages": [{"role": "user", "content": f"Well {seed}?"}], "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False,
            "temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed, "max_tokens": 600, "reasoning_format": "none", **fields}


def named(name):
    return {"type": "function", "function": {"name": name}}


def test_calls_match_their_schemas(server):
    found = set()
    for seed in range(12):
        choice = server.post("/v1/chat/completions", body(seed))["choices"][0]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls" and message["content"] is None and len(message["tool_calls"]) == 1
        function = message["tool_calls"][0]["function"]
        assert is_right(function["name"], function["arguments"])
        found.add(function["name"])
    assert len(found) > 1
    streamed, reason = joined(server.stream("/v1/chat/completions", **body(11)))
    assert streamed["tool_calls"][0]["function"] == function and reason == "tool_calls" and streamed["content"] is None


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["function"]["name"])
def test_named_function(server, tool):
    name = tool["function"]["name"]
    message = server.post("/v1/chat/completions", body(1, tool_choice=named(name), parallel_tool_calls=True))["choices"][0]["message"]
    assert [c["function"]["name"] for c in message["tool_calls"]] == [name] and is_right(name, message["tool_calls"][0]["function"]["arguments"])


def test_several_calls(server):
    """As many as the model likes; one that max_tokens cut may be there last."""
    counts = []
    for seed in range(8):
        choice = server.post("/v1/chat/completions", body(seed, parallel_tool_calls=True, max_tokens=400))["choices"][0]
        calls = choice["message"]["tool_calls"]
        assert all(is_right(c["function"]["name"], c["function"]["arguments"]) for c in calls[:len(calls) - (choice["finish_reason"] == "length")])
        counts.append(len(calls))
    assert max(counts) == 1 if server.form in ("gpt_oss", "glm4") else max(counts) > 1


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}


def test_a_call_or_the_format(server):
    """Tools beside a format: the answer is a call whose arguments are right, or a text of the schema, and both come. Where a call is required
    the format has no text to hold."""
    found = set()
    for seed in range(24):
        choice = server.post("/v1/chat/completions", body(seed, tool_choice="auto", response_format=FORMAT))["choices"][0]
        message = choice["message"]
        found.add(choice["finish_reason"])
        if choice["finish_reason"] == "tool_calls":
            function = message["tool_calls"][0]["function"]
            assert message["content"] is None and is_right(function["name"], function["arguments"])
        else:
            assert "tool_calls" not in message and json.loads(message["content"])["colour"] in ("red", "green")
    assert found == {"stop", "tool_calls"}
    for seed in range(4):
        choice = server.post("/v1/chat/completions", body(seed, response_format=FORMAT))["choices"][0]
        function = choice["message"]["tool_calls"][0]["function"]
        assert choice["message"]["content"] is None and is_right(function["name"], function["arguments"])
    for fields in ({"tools": None, "tool_choice": None}, {"tool_choice": "none"}):
        choice = server.post("/v1/chat/completions", body(3, response_format=FORMAT, **fields))["choices"][0]
        assert json.loads(choice["message"]["content"])["colour"] in ("red", "green") and choice["finish_reason"] == "stop"


def test_allowed_tools(server):
    """A part of the tools: the others are not called and not in the prompt."""
    names = {server.post("/v1/chat/completions", body(seed, tool_choice=allowed("required", "now", "weather")))["choices"][0]["message"]
             ["tool_calls"][0]["function"]["name"] for seed in range(12)}
    assert names == {"now", "weather"}
    def prompt(**fields):
        return server.post("/apply-template", body(0, **fields))["prompt"]
    assert prompt(tool_choice=allowed("auto", "now")) == prompt(tool_choice="auto", tools=TOOLS[1:2])
    if server.form == "gpt_oss":
        return  # thinks at random to the end, which only chats can be asked not to do
    answer = server.post("/v1/responses", {"input": "Well?", "tools": [{"type": "function", **tool["function"]} for tool in TOOLS], "max_output_tokens": 600,
                                           "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}})
    assert {item["name"] for item in answer["output"] if item["type"] == "function_call"} == {"now"}


@pytest.mark.parametrize("fields, status, says", [
    ({"tool_choice": named("tomorrow")}, 400, "'tomorrow'"),
    ({"tool_choice": {"type": "function"}}, 400, "'name'"),
    ({"tools": []}, 400, "there are no 'tools'"),
    ({"tools": None, "tool_choice": named("now")}, 400, "there are no 'tools'"),
    ({"tool_choice": allowed("any", "now")}, 400, "'tool_choice.allowed_tools' must have 'mode'"),
    ({"tool_choice": allowed("auto", "tomorrow")}, 400, "'tomorrow', which is not in 'tools'"),
    ({"tool_choice": allowed("required")}, 400, "there are no 'tools'"),
    ({"grammar": 'root ::= "a"'}, 400, "excludes"),
    ({"tools": [TOOLS[0], {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}}]},
     400, "'tools[1].function.parameters': "),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, 400, "must have the type 'object'"),
])
def test_refused(server, fields, status, says):
    assert says in server.post("/v1/chat/completions", body(0, **fields), expect=status)["error"]["message"]


def test_tools_of_phi4_mini_are_a_text_of_the_system_message(tmp_path):
    (tmp_path / "template").write_text(FORMS["phi4_mini"])
    s = Server("--chat-template", tmp_path / "template", "-c", 8192)
    for messages in ([{"role": "user", "content": "Well?"}], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"}]):
        prompt = s.post("/apply-template", {"messages": messages, "tools": TOOLS})["prompt"]
        head, tools, rest = re.split(r"<\|/?tool\|>", prompt)
        assert head == "system" + (messages[0]["content"] if len(messages) == 2 else "") and json.loads(tools) == TOOLS and rest == "userWell?"
    assert "<|tool|>" not in s.post("/apply-template", {"messages": messages})["prompt"]
    assert s.stop() == 0


@pytest.mark.parametrize("name, parameter, says", [
    ("x", {"type": "string", "pattern": "a"}, "'pattern' of parameter 'x'"), ("x>", {"type": "string"}, "'x>' has '>'"),
    ("x", {"enum": ["a", "</parameter>"]}, "a value of parameter 'x'"), ("x", {"$ref": "#/$defs/none"}, "parameter 'x'"),
    ("x", {"type": "string", "const": 5}, "parameter 'x'"), ("x", {"type": "string", "enum": []}, "parameter 'x'"), ("x", {"type": "string", "enum": 5}, "parameter 'x'")])
def test_what_parameters_of_qwen3_coder_cannot_be(tmp_path, name, parameter, says):
    (tmp_path / "template").write_text(FORMS["qwen3_coder"])
    s = Server("--chat-template", tmp_path / "template", "-c", 8192)
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {name: parameter}}}}]
    error = s.post("/v1/chat/completions", body(0, tools=tools), expect=400)["error"]["message"]
    assert says in error and "'tools[0].function.parameters'" in error
    tools[0]["function"]["parameters"] = {"properties": {"t": {"type": "string"}}, "required": ["t"]}
    choice = s.post("/v1/chat/completions", body(3, tools=tools))["choices"][0]
    text = choice["message"]["tool_calls"][0]["function"]["arguments"]  # any characters, cut by max_tokens: they become a string
    assert len(json.loads(text + '"}')["t"]) > 100 and choice["finish_reason"] == "length"
    assert s.stop() == 0


def test_marks_are_control_tokens(tmp_path):
    """Where the vocabulary has a mark as a control token, a required call begins with that one."""
    model = tmp_path / "scripts.gguf"
    write_model(model)
    (tmp_path / "template").write_text(FORMS["mistral"])
    s = Server("--chat-template", tmp_path / "template", model=model)
    choice = s.post("/v1/chat/completions", body(1, logprobs=True))["choices"][0]
    function = choice["message"]["tool_calls"][0]["function"]
    assert choice["finish_reason"] == "tool_calls" and is_right(function["name"], function["arguments"])
    mark = Gguf(model).values["tokenizer.ggml.tokens"][1][1].index(b"[TOOL_CALLS]")
    assert choice["logprobs"]["content"][0]["token"] == f"token_id:{mark}"
    assert s.stop() == 0


def test_template_with_an_unknown_form(tmp_path):
    (tmp_path / "template").write_text(BODY)
    s = Server("--chat-template", tmp_path / "template", "-c", 8192)
    assert "form of calls" in s.post("/v1/chat/completions", body(0), expect=400)["error"]["message"]
    assert s.post("/v1/chat/completions", body(0, tool_choice="auto", max_tokens=5))["choices"]
    assert s.stop() == 0
