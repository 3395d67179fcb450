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
    "gpt_oss": ["<|channel|>", "commentary to=functions.weather ", "<|constrain|>", "json", "<|message|>", "{\"city\": \"Bonn\"}"],
    "plain": ["No call here: {\"a\": 1} and <tool_"],
    "begun": ["So it </is.</think>\nYes."],  # follows the line break behind the mark that the template writes
    "recipient": ["all\nHm.>>>weather\n{\"city\": \"Bern\"}"],  # follows >>>
    "halfway": ["<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ul"],
    "broken": ["<tool_call>{\"name\": weather, \"arguments\": {}}</tool_call>."],
}
STARTS = {"begun": "<0x0A>", "recipient": ">>>"}  # the prompt's last token, where it is not <|NAME|>
TOOLS = [{"type": "function", "function": {"name": name, "description": "Says it.",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
         for name in ("weather", "time")]
USER = [{"role": "user", "content": "Well?"}]
HEAD = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}{{ '\\n' }}{% endfor %}"
END = "".join(f"{{% if script == '{name}' %}}<|{name}|>{{% endif %}}" for name in SCRIPTS if name not in STARTS)
MARKS = "{# <think> <tool_call> [TOOL_CALLS] #}"
TEMPLATE = MARKS + "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + HEAD + "" + END + "{% if script == 'begun' %}{{ '<think>\\n' }}{% endif %}"


CONTROL = {"[TOOL_CALLS]", "<|channel|>", "<|constrain|>", "<|message|>"}


def cut(script, tokens):
    """The tokens of a script, none of which is there already."""
    for text in script:
        at = 0
        while at < len(text):
            n = len(text) if text in CONTROL else 3
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
        start = STARTS.get(name, f"<|{name}|>")
        if start not in tokens:
            tokens.append(start)
        chain = [tokens.index(start), *cut(script, tokens), 2]
        follows += zip(chain, chain[1:-1])
        ends.append(chain[-2])
    n = len(tokens)
    control = {f"<|{name}|>" for name in SCRIPTS} | CONTROL
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


def test_messages_of_gpt_oss(model, tmp_path):
    """Their marks are control tokens; without tools too they are no content."""
    (tmp_path / "template").write_text(TEMPLATE.replace(MARKS, "{# <|channel|> <|message|> #}"))
    s = Server("--chat-template", tmp_path / "template", model=model)
    choice = ask(s, "gpt_oss")
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    assert without_ids(choice["message"]) == [("function", "weather", '{"city": "Bonn"}')]
    assert ask(s, "plain")["message"]["content"] == SCRIPTS["plain"][0]
    streamed, reason = joined(s.stream("/v1/chat/completions", **body("gpt_oss")))
    assert streamed["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Bonn"}'} and reason == "tool_calls"
    assert s.stop() == 0


def test_recipients_of_functionary(model, tmp_path):
    """Text goes to a recipient, too, and its name is no content, with tools and without."""
    (tmp_path / "template").write_text(TEMPLATE.replace(MARKS, "{# >>>all #}") + "{% if script == 'recipient' %}>>>{% endif %}")
    s = Server("--chat-template", tmp_path / "template", model=model)
    choice = ask(s, "recipient")
    assert choice["message"]["content"] == "Hm." and choice["finish_reason"] == "tool_calls"
    assert without_ids(choice["message"]) == [("function", "weather", '{"city": "Bern"}')]
    assert ask(s, "recipient", tools=[])["message"]["content"] == SCRIPTS["recipient"][0][4:]
    assert ask(s, "plain")["message"]["content"] == SCRIPTS["plain"][0]
    assert s.stop() == 0


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


@pytest.mark.parametrize("fields, says", [({"script": "halfway"}, "end_turn"), ({"script": "both", "stop": ["ln\", "], "stop_sequences": ["ln\", "]}, "stop_sequence")])
def test_a_call_that_is_cut_is_not_to_be_run(server, fields, says):
    script = fields["script"]
    choice = ask(server, script, stop=fields.get("stop"))
    assert choice["finish_reason"] == "stop" and len(choice["message"]["tool_calls"]) == 1
    assert server.post("/v1/messages", {**message_body(script), "stop_sequences": fields.get("stop_sequences")})["stop_reason"] == says
    calls = [item for item in server.post("/v1/responses", response_body(script, stop=fields.get("stop")))["output"] if item["type"] == "function_call"]
    assert [item["status"] for item in calls] == ["incomplete"]


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
    ({"tools": [{"type": "web_search"}]}, 400, "web_search"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "'tools[0].function.name'"),
    ({"tools": [TOOLS[0], {"type": "function", "function": {"name": "a", "parameters": []}}]}, 400, "'tools[1].function.parameters'"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, 400, "'messages[0].tool_calls'"),
    ({"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, 400, "messages[1]"),
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


# --------------------------------------------------------------------------- /v1/messages and /v1/responses

def message_body(script, **fields):
    tools = [{"name": t["function"]["name"], "description": "Says it.", "input_schema": t["function"]["parameters"]} for t in TOOLS]
    return {"model": "m", "messages": USER, "tools": tools, "temperature": 0, "max_tokens": 200, "chat_template_kwargs": {"script": script}, **fields}


def response_body(script, **fields):
    tools = [{"type": "function", "strict": None, **t["function"]} for t in TOOLS]
    return {"model": "m", "input": "Well?", "tools": tools, "temperature": 0, "max_output_tokens": 200, "chat_template_kwargs": {"script": script}, **fields}


def test_messages_have_blocks(server):
    message = server.post("/v1/messages", message_body("both"))
    ids = [block.pop("id") for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2 and all(i.startswith("toolu_") for i in ids) and message["stop_reason"] == "tool_use"
    assert message["content"] == [{"type": "thinking", "thinking": "Hm. \u00fc", "signature": ""}, {"type": "text", "text": "Let me look."},
                                  {"type": "tool_use", "name": "weather", "input": {"city": "K\u00f6ln", "n": [1, {}]}},
                                  {"type": "tool_use", "name": "time", "input": {}}]
    for script in ("plain", "broken"):
        message = server.post("/v1/messages", message_body(script))
        assert message["content"] == [{"type": "text", "text": SCRIPTS[script][0]}] and message["stop_reason"] == "end_turn"
    one = server.post("/v1/messages", message_body("both", tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert [b["type"] for b in one["content"]] == ["thinking", "text", "tool_use"]
    assert server.post("/v1/messages", message_body("both", tool_choice={"type": "none"}))["stop_reason"] == "end_turn"


@pytest.mark.parametrize("choice, names", [({"type": "any", "disable_parallel_tool_use": True}, {"weather", "time"}), ({"type": "tool", "name": "time"}, {"time"})])
def test_messages_require_calls(server, choice, names):
    tools = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("weather", "time")]
    message = server.post("/v1/messages", message_body("plain", tools=tools, tool_choice=choice))
    calls = [b for b in message["content"] if b["type"] == "tool_use"]
    assert len(calls) == 1 and calls[0]["name"] in names and calls[0]["input"] == {} and message["stop_reason"] == "tool_use"


def test_turns_of_messages(server):
    """They make the prompt that the same turns in a chat make."""
    turns = [{"role": "user", "content": "Well?"},
             {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."},
                                               {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Ulm"}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "rain"}]},
                                          {"type": "tool_result", "tool_use_id": "b"}, {"type": "text", "text": "And?"}]}]
    items = [{"role": "user", "content": "Well?"}, {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
             {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Ulm"}'},
             {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "rain"}]},
             {"type": "function_call_output", "call_id": "b", "output": ""}, {"role": "user", "content": "And?"}]
    chat = [USER[0], {**TURNS[1], "content": "I look."}, {"role": "tool", "content": "rain"}, {"role": "tool", "content": ""}, {"role": "user", "content": "And?"}]
    want = server.post("/v1/chat/completions", body("plain", messages=chat))["usage"]["prompt_tokens"]
    assert server.post("/v1/messages/count_tokens", message_body("plain", messages=turns))["input_tokens"] == want
    used = server.post("/v1/messages", message_body("plain", messages=turns, cache_prompt=False))["usage"]
    assert used["input_tokens"] == want
    cached = server.post("/v1/chat/completions", body("plain", messages=chat))["usage"]["prompt_tokens_details"]["cached_tokens"]
    response = server.post("/v1/responses", response_body("plain", input=items))["usage"]
    assert response["input_tokens"] == want and cached >= want - 2 and response["input_tokens_details"]["cached_tokens"] == cached


def test_responses_have_items(server):
    response = server.post("/v1/responses", response_body("both"))
    items = response["output"]
    assert [i["type"] for i in items] == ["reasoning", "message", "function_call", "function_call"] and len({i["id"] for i in items}) == 4
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "Hm. \u00fc"}] and items[1]["content"][0]["text"] == "Let me look."
    assert [(i["name"], i["arguments"]) for i in items[2:]] == [("weather", '{"city": "K\u00f6ln", "n": [1, {}]}'), ("time", "{}")]
    assert all(i["status"] == "completed" for i in items) and len(items[2]["call_id"]) == 9 and len(response["tools"]) == 2
    assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < response["usage"]["output_tokens"]
    cut = server.post("/v1/responses", response_body("both", max_output_tokens=40))
    states = [i["status"] for i in cut["output"]]
    assert cut["status"] == states.pop() == "incomplete" and states and set(states) == {"completed"}
    tools = [{"type": "function", "name": "time", "parameters": None}]
    for choice in ("required", {"type": "function", "name": "time"}):
        call = server.post("/v1/responses", response_body("plain", tools=tools, tool_choice=choice, parallel_tool_calls=False))
        assert [i["name"] for i in call["output"] if i["type"] == "function_call"] == ["time"] and call["tool_choice"] == choice
        assert call["parallel_tool_calls"] is False


def test_events_of_responses(server):
    from test_serve_surfaces import events
    found = events(server, "/v1/responses", response_body("both"))
    names = [name.removeprefix("response.") for name, _ in found]
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert [name for i, name in enumerate(names) if names[i - 1:i] != [name]] == [
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2, "completed"]
    done = [data["item"] for name, data in found if name == "response.output_item.done"]
    assert found[-1][1]["response"]["output"] == done
    for item, (kind, field) in zip(done, [("reasoning_text", "content"), ("output_text", "content"), *[("function_call_arguments", "arguments")] * 2]):
        text = "".join(data["delta"] for name, data in found if name == f"response.{kind}.delta" and data["item_id"] == item["id"])
        assert text == (item[field] if field == "arguments" else item["content"][0]["text"])


@pytest.mark.parametrize("path, fields, status, says", [
    ("/v1/messages", {"tools": 5}, 400, "'tools'"),
    ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "web_search_20250305"),
    ("/v1/messages", {"tools": [{"name": "f"}]}, 400, "'input_schema'"),
    ("/v1/messages", {"tool_choice": {"type": "tool"}}, 400, "'name'"), ("/v1/messages", {"tool_choice": "often"}, 400, "'tool_choice'"),
    ("/v1/messages", {"tool_choice": {"type": "tool", "name": "tomorrow"}}, 400, "'tomorrow'"),
    ("/v1/messages", {"tool_choice": {"type": "any"}, "tools": []}, 400, "'tools'"),
    ("/v1/messages", {"thinking": {"type": "enabled"}}, 400, "'budget_tokens'"), ("/v1/messages", {"thinking": {"type": "deep"}}, 400, "'thinking'"),
    ("/v1/messages", {"messages": [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}]}, 400, "messages[1]"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "'tool_use_id'"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, 400, "tool_use"),
    ("/v1/responses", {"tools": [{"type": "web_search"}]}, 400, "web_search"), ("/v1/responses", {"tools": 5}, 400, "'tools'"),
    ("/v1/responses", {"tool_choice": {"type": "function", "name": "tomorrow"}}, 400, "'tomorrow'"),
    ("/v1/responses", {"tool_choice": {"type": "mcp", "server_label": "x"}}, 400, "mcp"),
    ("/v1/responses", {"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, 400, "'input[0]"),
    ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "a"}]}, 400, "'output'"),
])
def test_refused_in_surfaces(server, path, fields, status, says):
    made = (message_body if path == "/v1/messages" else response_body)("plain", **fields)
    assert says in server.post(path, made, expect=status)["error"]["message"]


def test_anthropic_client_with_tools(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0)
    made = message_body("both", thinking={"type": "enabled", "budget_tokens": 100})
    kwargs = {**made, "extra_body": {"chat_template_kwargs": made.pop("chat_template_kwargs"), "temperature": made.pop("temperature")}}
    kwargs.pop("chat_template_kwargs"), kwargs.pop("temperature")
    whole = client.messages.create(**kwargs)
    with client.messages.stream(**kwargs) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    plain = [[{k: v for k, v in b.model_dump(exclude_none=True).items() if k not in ("id", "parsed_output")} for b in m.content] for m in (whole, final)]
    assert plain[0] == plain[1] and [b.type for b in final.content] == ["thinking", "text", "tool_use", "tool_use"] and final.stop_reason == "tool_use"
    assert {"thinking", "text", "input_json"} <= kinds
    turns = [*USER, {"role": "assistant", "content": whole.content},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "rain"} for b in whole.content if b.type == "tool_use"]}]
    assert client.messages.create(**{**kwargs, "messages": turns}).stop_reason == "tool_use"


def test_openai_client_with_tools(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    made = response_body("both")
    kwargs = {k: v for k, v in made.items() if k != "chat_template_kwargs"} | {"extra_body": {"chat_template_kwargs": made["chat_template_kwargs"]}}
    kwargs["tools"] = [{**t, "strict": False} for t in kwargs["tools"]]
    whole = client.responses.create(**kwargs)
    with client.responses.stream(**kwargs) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert [(i.name, i.arguments) for i in final.output[2:]] == [(i.name, i.arguments) for i in whole.output[2:]] and kinds[-1] == "response.completed"
    turns = [{"role": "user", "content": "Well?"}, *[i.model_dump(exclude_none=True) for i in whole.output],
             *[{"type": "function_call_output", "call_id": i.call_id, "output": "rain"} for i in whole.output[2:]]]
    assert client.responses.create(**{**kwargs, "input": turns}).status == "completed"
