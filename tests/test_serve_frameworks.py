"""The first requests of frameworks: the pairs of fields that they send together, in words and values of ours. Each is accepted; an answer that
must be JSON is, whatever a model with random weights would write; and where there are tools beside a format, both calls and texts come."""
import json
import os
from pathlib import Path

import pytest

from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)
from test_serve_tool_choice import FORMS
from test_serve_tools import joined

PLACE = {"title": "Place", "type": "object", "additionalProperties": False, "required": ["name", "degrees", "note"],
         "properties": {"name": {"title": "Name", "enum": ["Ulm", "Bonn"]}, "degrees": {"title": "Degrees", "type": "integer", "minimum": -90, "maximum": 90},
                        "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}], "title": "Note"}}}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9, "title": "City"}}, "required": ["city"], "additionalProperties": False}
USER = {"role": "user", "content": "How warm is it in Ulm?"}
SYSTEM = {"role": "system", "content": "Look it up, then say it."}
DRAWN = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0}


def function(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "description": f"Says {name}.", "parameters": parameters, **more}}


def flat(name, parameters, **more):
    return {"type": "function", "name": name, "description": f"Says {name}.", "parameters": parameters, **more}


def chat(*messages, **fields):
    return "/v1/chat/completions", {"model": "any", "messages": [*messages], "max_tokens": 400, **DRAWN, **fields}


def responses(**fields):
    return "/v1/responses", {"model": "any", "input": [{"role": "user", "content": "How warm?"}], "max_output_tokens": 400, **DRAWN, **fields}


def named_schema(**more):
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, **more}}


FINAL = {"format": {"type": "json_schema", "name": "final_output", "schema": PLACE, "strict": True}}
CALLED = {"type": "function", "function": {"name": "Place"}}
MESSAGES = [{"role": "user", "content": "How warm?"}]
WHAT = {"title": "Place", "type": "object", "properties": PLACE["properties"], "required": PLACE["required"]}

# what comes: "call", "text" (JSON of PLACE), "either" of the two (over some seeds both), "any" (free text too), "json" (any object)
REQUESTS = {
    "openai-agents": ("either", *responses(
        instructions="Be brief.", include=[], tools=[flat("weather", CITY, strict=True)], text={**FINAL, "verbosity": "low"},
        reasoning={"effort": "none"}, stream=False, store=None, metadata=None, truncation="auto")),
    "openai-agents, after the call": ("either", *responses(
        instructions="Be brief.", include=[], tools=[flat("weather", CITY, strict=True)], text=FINAL, reasoning={"effort": "low", "summary": "auto"},
        input=[{"role": "user", "content": "How warm?"},
               {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}', "status": "completed"},
               {"type": "function_call_output", "call_id": "c1", "output": "37 degrees"}])),
    "openai-agents, chat": ("either", *chat(SYSTEM, USER, tools=[function("weather", CITY, strict=True)], response_format=named_schema(strict=True),
                                            parallel_tool_calls=True, reasoning_effort="low", verbosity="low", store=False, stream=False)),
    "openai-agents, no output type": ("any", *responses(tools=[flat("weather", CITY, strict=True)], parallel_tool_calls=True, text={"verbosity": "low"},
                                                        reasoning={"effort": "minimal"}, include=[])),
    "openai-agents, output type, no tools": ("text", *responses(instructions="Be brief.", include=[], tools=[], text=FINAL)),
    "openai-agents, required": ("call", *responses(instructions="Be brief.", include=[], tools=[flat("weather", CITY, strict=True)], tool_choice="required",
                                                   temperature=0.0)),
    "langchain json_schema": ("text", *chat(USER, response_format=named_schema(strict=True), stream=False)),
    "langchain responses": ("text", *responses(input=[{"content": "How warm?", "role": "user", "type": "message"}], stream=False, text=FINAL)),
    "langchain responses, tools": ("any", *responses(input=[{"content": "How warm?", "role": "user", "type": "message"}], stream=False,
                                                     tools=[flat("weather", CITY)])),
    "langchain agent, schema as a tool": ("call", *chat(USER, stream=False, tool_choice="required", tools=[function("weather", CITY), function("Place", PLACE)])),
    "langchain agent, schema of the provider": ("either", *chat(USER, response_format=named_schema(strict=False, description="A place."), stream=False,
                                                                tools=[function("weather", CITY, strict=True)])),
    "langchain json_schema, strict, tools": ("either", *chat(USER, response_format=named_schema(strict=True), tools=[function("weather", CITY, strict=True)],
                                                             parallel_tool_calls=False)),
    "langchain function_calling": ("call", *chat(USER, tools=[function("Place", PLACE)], tool_choice=CALLED, parallel_tool_calls=False)),
    "langchain json_mode": ("json", *chat(USER, response_format={"type": "json_object"}, stream=False)),
    "instructor TOOLS": ("call", *chat(USER, tools=[function("Place", WHAT)], tool_choice=CALLED)),
    "instructor TOOLS_STRICT": ("call", *chat(USER, tools=[function("Place", PLACE, strict=True)], tool_choice=CALLED)),
    "instructor PARALLEL_TOOLS": ("any", *chat(USER, tools=[function("Place", WHAT), function("weather", CITY)], tool_choice="auto")),
    "instructor JSON": ("json", *chat({"role": "system", "content": f"Answer with JSON of this schema: {json.dumps(PLACE)}"}, USER,
                                      response_format={"type": "json_object"})),
    "instructor JSON_SCHEMA": ("text", *chat(USER, response_format=named_schema())),
    "instructor JSON_SCHEMA, older": ("text", *chat(USER, response_format={"type": "json_object", "schema": PLACE})),
    "instructor MD_JSON": ("any", *chat({"role": "system", "content": f"Schema: {json.dumps(PLACE)}"},
                                        {"role": "user", "content": "How warm? Give it in a ```json block."}, stop="```")),
    "instructor RESPONSES_TOOLS": ("call", *responses(tools=[flat("Place", PLACE, strict=True)], tool_choice={"type": "function", "name": "Place"},
                                                      text={"format": {"type": "json_schema", "name": "Place", "schema": PLACE, "strict": True}})),
    "instructor RESPONSES_TOOLS, own tools too": ("either", *responses(tools=[flat("Place", PLACE)], tool_choice="auto", text=FINAL)),
    "instructor STRUCTURED_OUTPUTS": ("text", *chat(USER, response_format=named_schema(strict=True))),
    "instructor ANTHROPIC_TOOLS": ("call", "/v1/messages", {
        "model": "any", "max_tokens": 400, "messages": MESSAGES, "tools": [{"name": "Place", "description": "A place.", "input_schema": PLACE}],
        "tool_choice": {"type": "tool", "name": "Place"}, **DRAWN}),
    "pydantic-ai tool output": ("call", *chat(USER, tools=[function("weather", CITY, strict=True), function("final_result", PLACE, strict=True)],
                                              tool_choice="required", stream=False)),
    "pydantic-ai text": ("any", *chat(SYSTEM, USER, max_tokens=None, max_completion_tokens=200, stream=False, tool_choice="auto",
                                      tools=[function("weather", CITY, strict=True)])),
    "pydantic-ai native output, strict tools": ("either", *chat(SYSTEM, USER, max_tokens=None, max_completion_tokens=400, stream=False, tool_choice="auto",
                                                                tools=[function("weather", CITY, strict=True)], response_format=named_schema(strict=True))),
    "pydantic-ai native output": ("either", *chat(USER, tools=[function("weather", CITY)], tool_choice="auto", response_format=named_schema(strict=True))),
    "pydantic-ai prompted output": ("any", *chat(SYSTEM, USER, tools=[function("weather", CITY)], tool_choice="auto",
                                                 response_format={"type": "json_object"})),
    "pydantic-ai, text or tool": ("any", *chat(USER, tools=[function("final_result", PLACE)], tool_choice="auto", parallel_tool_calls=True)),
    "litellm": ("either", *chat(USER, tools=[function("weather", CITY)], response_format=named_schema(strict=True), reasoning_effort="low",
                                stream_options={"include_usage": True})),
    "litellm responses": ("any", *responses(input="How warm?", tools=[{"type": "function", "name": "weather", "parameters": CITY}])),
    "litellm, one call": ("call", *chat(USER, tools=[function("weather", CITY)], tool_choice="required", parallel_tool_calls=False)),
    "litellm, required": ("call", *chat(USER, tools=[function("weather", CITY)], tool_choice="required", user="u", seed=3)),
    "anthropic parse": ("text", "/v1/messages", {"model": "any", "max_tokens": 400, "messages": MESSAGES, "thinking": {"type": "adaptive"},
                                                 "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": PLACE}}, **DRAWN}),
    "anthropic parse with tools": ("either", "/v1/messages", {
        "model": "any", "max_tokens": 400, "messages": MESSAGES, "tools": [{"name": "weather", "input_schema": CITY, "strict": True}],
        "tool_choice": {"type": "auto"}, "output_config": {"format": {"type": "json_schema", "schema": PLACE}}, **DRAWN}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = tmp_path_factory.mktemp("frameworks") / "template"
    file.write_text(FORMS["hermes"])
    s = Server("--chat-template", file, "-c", 8192)
    yield s
    assert s.stop() == 0


def parts(answer):
    """(text, calls, cut) of an answer of any surface; a call is a name and arguments."""
    if "choices" in answer:
        choice = answer["choices"][0]
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"].get("tool_calls", [])
                 if choice["finish_reason"] != "length"]
        return choice["message"]["content"], calls, choice["finish_reason"] == "length"
    if "output" in answer:
        text = "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
        cut = answer["status"] != "completed"
        return text, [(item["name"], json.loads(item["arguments"])) for item in answer["output"] if item["type"] == "function_call" and not cut], cut
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    return text, [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"], answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("name", REQUESTS)
def test_first_request(server, name):
    jsonschema = pytest.importorskip("jsonschema")
    what, path, body = REQUESTS[name]
    schemas = {"Place": PLACE, "final_result": PLACE, "weather": CITY}
    seen = set()
    for seed in range(16 if what == "either" else 3):
        status, headers, raw = server.request("POST", path, {**body, "seed": seed})
        assert status == 200, raw
        assert "Butler-Not-Held" not in headers
        if headers["Content-Type"] == "text/event-stream":
            continue
        text, calls, cut = parts(json.loads(raw))
        if cut:
            continue
        seen.add("call" if calls else "text")
        for called, arguments in calls:
            if what != "any":
                jsonschema.validate(arguments, schemas[called])
        if what in ("text", "either") and not calls:
            jsonschema.validate(json.loads(text), PLACE)
        if what == "json" and not calls:
            assert isinstance(json.loads(text), dict)
    wanted = {"call": {"call"}, "text": {"text"}, "json": {"text"}, "either": {"call", "text"}}
    assert what == "any" or seen == wanted[what] or (what == "json" and not seen)


@pytest.mark.parametrize("name", [name for name, (what, path, _) in REQUESTS.items() if what in ("either", "call") and path == "/v1/chat/completions"])
def test_streams_say_the_same(server, name):
    _, path, body = REQUESTS[name]
    for seed in range(4):
        whole = server.post(path, {**body, "stream": False, "stream_options": None, "seed": seed})["choices"][0]
        streamed, reason = joined(server.stream(path, **{**body, "stream_options": None, "seed": seed}))
        assert reason == whole["finish_reason"] and streamed["content"] == whole["message"]["content"]
        assert [c["function"] for c in streamed.get("tool_calls") or []] == [c["function"] for c in whole["message"].get("tool_calls") or []]


CODER = Path(os.environ.get("BUTLER_MODELS", "models")) / "qwen2.5-coder-0.5b.gguf"
TOOLS = {"weather": function("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
         "read_file": function("read_file", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}),
         "list_files": function("list_files", {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]}),
         "set_timer": function("set_timer", {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}),
         "calculate": function("calculate", {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}),
         "search": function("search", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})}
QUESTIONS = [("What is the weather in Paris?", "weather"), ("Read the file notes.txt using the tool.", "read_file"), ("How much is 37 times 91? Use the tool.", "calculate"),
             ("Search the web for the tallest tower in Japan.", "search"), ("Start a timer of ten minutes.", "set_timer"),
             ("Which files are in the folder src?", "list_files"), ("What is the weather in Oslo?", "weather"), ("Read README.md and tell me what it says.", "read_file"),
             ("Start a timer of 25 minutes, please.", "set_timer"), ("How much is 12.5 divided by 5? Use the tool.", "calculate")]


@pytest.mark.skipif(not CODER.is_file(), reason="models/qwen2.5-coder-0.5b.gguf is absent (./setup --model qwen2.5-coder-0.5b)")
def test_ten_questions():
    """Qwen2.5-Coder writes its calls bare or in a fence, without the marks of its template."""
    s = Server("-c", 2048, model=CODER)
    right = 0
    for question, tool in QUESTIONS:
        body = {"messages": [{"role": "user", "content": question}], "tools": [TOOLS[tool]], "temperature": 0, "max_tokens": 60}
        choice = s.post("/v1/chat/completions", body)["choices"][0]
        calls = choice["message"].get("tool_calls", [])
        right += [call["function"]["name"] for call in calls] == [tool] and choice["finish_reason"] == "tool_calls"
    streamed, reason = joined(s.stream("/v1/chat/completions", **body))
    assert reason == choice["finish_reason"] and [c["function"] for c in streamed["tool_calls"]] == [c["function"] for c in calls]
    none = s.post("/v1/chat/completions", {**body, "tools": [TOOLS["weather"]]})["choices"][0]["message"]
    assert all(call["function"]["name"] == "weather" for call in none.get("tool_calls", []))
    assert s.stop() == 0 and right >= 8
