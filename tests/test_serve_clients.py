"""What programs send to butler serve in one request, as they send it: Claude Code, Codex, agents' frameworks, llama.cpp's clients."""
import json

import pytest

from cli import GQA
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

PLAIN = "{# tools #}{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% if m.tool_calls %}({{ m.tool_calls[0].function.name }}){% endif %}{% endfor %}"
FIRST = "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}"
THINKS = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}"
CALLS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + PLAIN + "{# <tool_call> #}"
USER = [{"role": "user", "content": "Well?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    made = {}

    def get(template):
        if template not in made:
            path = tmp_path_factory.mktemp("template") / "file"
            path.write_text(template)
            made[template] = Server("--chat-template", path, "-c", 4096)
        return made[template]

    yield get
    for server in made.values():
        server.stop()


def rendered(server, messages, **fields):
    return server.post("/apply-template", {"messages": messages, **fields})["prompt"]


def test_system_behind_the_first_message_of_claude_code(servers):
    """At the beginning it is the system's, later the user's: its tokens are counted, and read."""
    server = servers(FIRST)
    def count(*messages, **fields):
        return server.post("/v1/messages/count_tokens", {"messages": list(messages), **fields})["input_tokens"]
    user, system = {"role": "user", "content": "Well?"}, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert count(user, system) == count({"role": "user", "content": "Well?\n\nBe brief."})
    assert count(system, user) == count(user, system="Be brief.")
    body = {"messages": [user, system], "max_tokens": 2, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "thinking": {"type": "adaptive"}}
    assert server.post("/v1/messages", body)["usage"]["input_tokens"] > 0


def test_several_systems(servers):
    """Those at the beginning are one, with an empty line between them; what a template leaves out is refused."""
    first = [{"role": "system", "content": "AAA"}, {"role": "developer", "content": [{"type": "text", "text": "ZZQ"}]}]
    assert rendered(servers(FIRST), first + USER) == "[AAA\n\nZZQ][Well?]"
    assert rendered(servers(PLAIN), USER + first[:1]) == "[user:Well?][system:AAA]"
    error = servers(FIRST).post("/v1/chat/completions", {"messages": USER + first[:1]}, expect=400)["error"]
    assert "leaves out messages of the system" in error["message"]


def test_systems_in_another_form(servers):
    """A template that writes them otherwise does not leave them out."""
    loud = servers("{% for m in messages %}[{{ m.content | upper if m.role == 'system' else m.content }}]{% endfor %}")
    assert rendered(loud, [*USER, {"role": "system", "content": "be brief"}]) == "[Well?][BE BRIEF]"
    error = servers(FIRST).post("/apply-template", {"messages": [*USER, {"role": "system", "content": "be \"brief\"\nnow"}]}, expect=400)["error"]
    assert "leaves out" in error["message"]


def test_systems_with_calls(servers):
    """Their content may be null: such a request ended the server."""
    odd = {"role": "system", "content": None, "tool_calls": [{"type": "function", "function": {"name": "x", "arguments": "{}"}}]}
    for messages in ([odd, {"role": "system", "content": "hi"}], [{"role": "system", "content": "hi"}, odd], [odd, odd]):
        assert "Well?" in rendered(servers(PLAIN), messages + USER)


def test_contents_that_are_null(servers):
    server = servers(PLAIN)
    nulls = [{"role": role, "content": None} for role in ("system", "user", "assistant", "tool")]
    assert rendered(server, nulls[:2] + [{"role": "assistant"}] + nulls[3:] + USER) == "[system:][user:][assistant:][tool:][user:Well?]"
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    assert rendered(server, [*USER, call, *USER]) == "[user:Well?][assistant:None](f)[user:Well?]"  # templates ask for it


def test_function_call_of_old_clients(servers):
    old = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
    assert rendered(servers(PLAIN), [*USER, old, {"role": "function", "name": "f", "content": "5"}]) == "[user:Well?][assistant:](f)[tool:5]"


@pytest.mark.parametrize("path, tool", [
    ("/v1/responses", {"type": "function", "name": "f", "parameters": SCHEMA}),
    ("/v1/chat/completions", {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}),
])
def test_tools_of_other_types_beside_functions(servers, path, tool):
    """Codex sends its maker's tools with its own: they are left out, which a header says. Alone they are refused."""
    others = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    fields = {"max_tokens": 2, "max_output_tokens": 2, "input" if "responses" in path else "messages": USER}
    status, headers, text = servers(CALLS).request("POST", path, {**fields, "tools": [others[0], tool, others[1]]})
    assert status == 200 and headers["Butler-Not-Held"] == "tools[0], tools[2]", text
    status, _, text = servers(CALLS).request("POST", path, {**fields, "tools": others})
    assert status == 400 and "'tools[0]' of type 'web_search'" in json.loads(text)["error"]["message"]
    status, _, text = servers(CALLS).request("POST", path, {**fields, "tools": [*others, {**tool, "function": {"name": "?"}, "name": "?"}]})
    assert status == 400 and "tools[2]" in json.loads(text)["error"]["message"]


def test_choices_among_tools_of_other_types(servers):
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": SCHEMA}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]}
    servers(CALLS).post("/v1/responses", {"input": USER, "max_output_tokens": 2, "tools": tools, "tool_choice": choice})
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": SCHEMA}]
    status, headers, text = servers(CALLS).request("POST", "/v1/messages", {"messages": USER, "max_tokens": 2, "tools": tools})
    assert status == 200 and headers["Butler-Not-Held"] == "tools[0]", text


def test_strict_tools_of_messages(servers):
    tool = {"name": "w", "strict": True, "input_schema": {"type": "object", "properties": {"x": {"not": {}}}}}
    error = servers(CALLS).post("/v1/messages", {"messages": USER, "max_tokens": 4, "tools": [tool], "tool_choice": {"type": "any"}}, expect=400)["error"]
    assert "tools[0]" in error["message"]


@pytest.mark.parametrize("path, fields", [
    ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    ("/v1/messages", {"thinking": {"type": "disabled"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
])
def test_json_without_reasoning(servers, path, fields):
    """The prompt has closed the reasoning already: the answer is JSON, with none before it."""
    for seed in range(4):
        answer = servers(THINKS).post(path, {"messages": USER, "max_tokens": 200, "seed": seed, "logit_bias": {}, **fields})
        if "choices" in answer:
            message = answer["choices"][0]["message"]
            assert not message.get("reasoning_content")
            text = message["content"]
        else:
            assert [block["type"] for block in answer["content"]] == ["text"]
            text = answer["content"][0]["text"]
        assert text.lstrip().startswith("{")


def test_answers_to_several_prompts(servers):
    """Each has its own slot, and what its own decoding read, streamed too."""
    server = servers(PLAIN)
    body = {"prompt": ["Once upon a time there was", "The cat"], "n_predict": 4, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    whole = server.post("/completion", body)
    assert len({one["id_slot"] for one in whole}) == 2
    alone = [server.post("/completion", {**body, "prompt": prompt})["kv"]["bytes_read"] for prompt in body["prompt"]]
    assert [one["kv"]["bytes_read"] for one in whole] == alone and alone[0] > alone[1]
    ends = {piece["index"]: piece for piece in server.stream("/completion", **body) if piece["stop"]}
    assert [ends[i]["kv"]["bytes_read"] for i in range(2)] == alone


def test_ids_become_the_text_they_came_from(servers):
    """Control tokens too, as llama.cpp and vLLM have them; pieces that are no UTF-8 are arrays of bytes."""
    server = servers(PLAIN)
    found = server.post("/tokenize", {"content": "Hi \u00fc\U0001f600", "add_special": True, "with_pieces": True})["tokens"]
    assert found[0]["piece"] == "<s>"
    pieces = [bytes(one["piece"]) if isinstance(one["piece"], list) else one["piece"].encode() for one in found[1:]]
    assert b"".join(pieces).decode().strip() == "Hi \u00fc\U0001f600" and any(isinstance(one["piece"], list) for one in found)
    assert server.post("/detokenize", {"tokens": [one["id"] for one in found]})["content"].startswith("<s>")


def test_ignore_eos_with_a_grammar(servers):
    """A grammar's text that is complete ends the answer: nothing else may follow."""
    answer = servers(PLAIN).post("/v1/completions", {"prompt": "a", "max_tokens": 40, "ignore_eos": True, "grammar": 'root ::= "yes" | "no"'})["choices"][0]
    assert answer["text"] in ("yes", "no") and answer["finish_reason"] == "stop"
