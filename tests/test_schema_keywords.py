"""Keywords that are held exactly: pattern with a length, bounds with a fraction, multipleOf, uniqueItems, minProperties. Texts near the edge are
accepted where the schema accepts them, and only there. And keywords that are not held: refused by name and place, or, for a tool that is not
strict, left out and told."""
import json
import random
import re
import time
from decimal import Decimal

import pytest

from accept import ACCEPTED, Acceptor, Refused
from test_serve import Server, pytestmark  # noqa: F401  (skips without libevent)
from test_serve_tool_choice import FORMS


@pytest.fixture(scope="module")
def acceptor():
    a = Acceptor()
    yield a
    a.close()


def check(acceptor, schema, texts, is_valid):
    texts = sorted(set(texts))
    wrong = [(text, verdict) for text, verdict in zip(texts, acceptor.verdicts(texts, schema=schema)) if (verdict == ACCEPTED) != is_valid(text)]
    assert not wrong, (schema, wrong[:5])
    return sum(map(is_valid, texts))


# ------------------------------------------------------------------------------------------------------ strings

@pytest.mark.parametrize("pattern, alphabet", [("^[a-z]+$", "ab1"), ("^(x|yz)+-[0-9]{2,4}$", "xyz-01"), ("b", "abc"), ("^a|b$", "abc"), ("^(ab?)*c?$", "abc"),
                                               ("^(a|b){0,5}(c+d?)?$", "abcd"), ("^\\d{3}-?\\d{3}$", "01-"), ("^$", "a"), ("^[^a]*a$", "ab\u00e9\""), ("^(a*)*b$", "ab")])
def test_pattern_with_a_length(acceptor, pattern, alphabet):
    jsonschema = pytest.importorskip("jsonschema")
    draw, n_valid = random.Random(1), 0
    for least, most in ((3, 5), (0, 4), (2, None), (7, 7), (6, 9), (None, 0), (None, 1)):
        schema = {"type": "string", "pattern": pattern}
        schema |= {"minLength": least} if least is not None else {}
        schema |= {"maxLength": most} if most is not None else {}
        valid = jsonschema.Draft202012Validator(schema).is_valid
        values = ["".join(draw.choice(alphabet) for _ in range(draw.randint(0, 11))) for _ in range(400)]
        values += ["a" * n + end for n in range(10) for end in ("", "b", "c")] + ["x" * n + "-" + "0" * k for n in range(7) for k in range(6)] + ["0" * n for n in range(9)]
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        try:
            n_valid += check(acceptor, schema, texts, lambda text: valid(json.loads(text)))
        except Refused as error:  # no string has this length
            assert "no JSON value" in str(error) and not any(valid(value) for value in values)
    assert n_valid > 0


# ------------------------------------------------------------------------------------------------------ numbers

BOUNDS = [{"minimum": 0.5}, {"exclusiveMinimum": 0.25, "maximum": 3.75}, {"minimum": -1.5, "maximum": 2.125}, {"exclusiveMaximum": -0.001},
          {"minimum": 0.1, "exclusiveMaximum": 0.3}, {"minimum": -12.5, "exclusiveMaximum": -12.25}, {"maximum": 99.99}, {"exclusiveMinimum": 9.5, "exclusiveMaximum": 10.5},
          {"minimum": 1.05, "maximum": 1.05}, {"minimum": 0.999, "maximum": 100}, {"minimum": -0.5, "exclusiveMaximum": 0}]


def holds(schema, value):
    value = Decimal(value)
    return (value >= Decimal(str(schema.get("minimum", "-Infinity"))) and value > Decimal(str(schema.get("exclusiveMinimum", "-Infinity"))) and
            value <= Decimal(str(schema.get("maximum", "Infinity"))) and value < Decimal(str(schema.get("exclusiveMaximum", "Infinity"))))


@pytest.mark.parametrize("schema", BOUNDS, ids=json.dumps)
def test_bounds_with_a_fraction(acceptor, schema):
    draw, texts = random.Random(2), []
    for bound in [*schema.values(), 0, 1, 10]:
        for step in ("0", "0.1", "0.01", "0.001", "0.0001", "1", "10"):
            texts += [str(Decimal(str(bound)) + sign * Decimal(step)) for sign in (1, -1)]
    texts += [f"{draw.uniform(-15, 105):.{draw.randint(0, 6)}f}" for _ in range(400)] + [text + "0" for text in texts if "." in text]
    texts = [text for text in texts if "E" not in text and not re.match(r"-0(\.0*)?$", text)]
    assert check(acceptor, {"type": "number", **schema}, texts, lambda text: holds(schema, text)) > 0


@pytest.mark.parametrize("of", [2, 3, 5, 7, 10, 12, 60, 100, 150, 199, 1000, 2500])
def test_multiples(acceptor, of):
    for bounds in ({}, {"minimum": -3 * of - 1, "maximum": 40 * of + 2}, {"exclusiveMinimum": 0}, {"minimum": 17, "exclusiveMaximum": 100000}, {"maximum": -of}):
        draw = random.Random(of)
        values = [k * of + d for k in (*range(-5, 50), 99, 100, 101, 12345, 10 ** 9) for d in (-1, 0, 1)] + [draw.randint(-10 ** 6, 10 ** 6) for _ in range(200)]
        for kind in ("integer", "number"):
            schema = {"type": kind, "multipleOf": of, **bounds}
            assert check(acceptor, schema, map(str, values), lambda text: int(text) % of == 0 and holds(bounds, text)) > 0


def test_multiples_of_two_schemas(acceptor):
    check(acceptor, {"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6}]}, map(str, range(-50, 50)), lambda text: int(text) % 12 == 0)


# ---------------------------------------------------------------------------------------------- arrays, objects

@pytest.mark.parametrize("items, least, most", [(["x", "y"], 0, 2), (["x", "y", 1, None], 2, 3), ([1, 2, 3, 4, 5], 0, None), ([1, 1.0, 2], 0, None), (list(range(20)), 1, 2)])
def test_different_items(acceptor, items, least, most):
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"type": "array", "items": {"enum": items}, "uniqueItems": True, "minItems": least} | ({"maxItems": most} if most else {})
    valid = jsonschema.Draft202012Validator(schema).is_valid
    draw = random.Random(3)
    values = [[draw.choice(items) for _ in range(draw.randint(0, 5))] for _ in range(500)] + [[], items[:1], items[:2], items]
    texts = [json.dumps(value, separators=(",", ":")) for value in values if 1.0 not in items or not any(type(item) is float for item in value)]
    assert check(acceptor, schema, texts, lambda text: valid(json.loads(text))) > 2


def test_members(acceptor):
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}
    check(acceptor, schema, ["{}", '{"a":1}', '{"a":1,"b":2}'], lambda text: text != "{}")
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "minProperties": 1, "maxProperties": 2, "additionalProperties": False}
    check(acceptor, schema, ["{}", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'], lambda text: text != "{}")
    check(acceptor, {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}}, ['{"a":1}', '{"a":2}'], lambda text: "1" in text)


# ------------------------------------------------------------------------------------------------- what is not held

ODD = [({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"), ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
       ({"type": "object", "patternProperties": {"^x": {"type": "string"}}}, "patternProperties"), ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
       ({"not": {"type": "null"}}, "not"), ({"type": "array", "contains": {"const": 1}}, "contains"), ({"type": "object", "minProperties": 2}, "minProperties"),
       ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"), ({"type": "string", "pattern": "^(?!x)[a-z]+$"}, "pattern"),
       ({"type": "string", "pattern": "(?i)abc"}, "pattern"), ({"type": "string", "pattern": "^\\p{L}+$"}, "pattern"), ({"type": "string", "pattern": "\\bword\\b"}, "pattern"),
       ({"type": "string", "format": "uri-reference"}, "format"), ({"type": "string", "format": "email", "pattern": "^(?!\\.)a"}, "pattern"),
       ({"type": "string", "maxLength": 100000}, "maxLength"), ({"enum": ["a", "b"], "minLength": 1}, "minLength"), ({"$ref": "https://example.org/x"}, "$ref"),
       ({"type": "array", "items": [{"type": "string"}]}, "items"), ({"type": "object", "if": {}, "then": {}}, "if")]


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder"])
def server(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("keywords") / "template"
    file.write_text(FORMS[request.param])
    s = Server("--chat-template", file, "-c", 4096)
    s.form = request.param
    yield s
    assert s.stop() == 0


def body(schema, **more):
    parameters = {"type": "object", "properties": {"n": {"enum": [1, 2]}, "odd": schema}, "required": ["n"], "additionalProperties": False}
    return {"messages": [{"role": "user", "content": "Go."}], "tools": [{"type": "function", "function": {"name": "t", "parameters": parameters, **more}}],
            "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "temperature": 3, "seed": 4}


@pytest.mark.parametrize("schema, keyword", ODD, ids=lambda value: value if isinstance(value, str) else "")
def test_odd_keywords_of_tools(server, schema, keyword):
    """One keyword in one tool does not refuse the request; the rest of the schema is held, and the answer's head says what is not."""
    for stream in (False, True):
        status, headers, text = server.request("POST", "/v1/chat/completions", {**body(schema), "stream": stream})
        assert status == 200, text
        assert f"/properties/odd/{keyword}" in headers["Butler-Not-Held"] and headers["Butler-Not-Held"].startswith("tools[0]#")
        if not stream:
            choice = json.loads(text)["choices"][0]
            arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
            assert choice["finish_reason"] == "length" or json.loads(arguments)["n"] in (1, 2)
    error = server.post("/v1/chat/completions", body(schema, strict=True), expect=400)["error"]
    assert keyword in error["message"] and error["param"] == "tools[0].function.parameters" and "odd" in error["message"]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"odd": schema}}}}
    error = server.post("/v1/chat/completions", {**body(schema), "tools": None, "tool_choice": None, "response_format": form}, expect=400)["error"]
    assert keyword in error["message"] and "#/properties/odd" in error["message"] and error["param"] == "response_format"


@pytest.mark.parametrize("schema", [{"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True, "maxItems": 2}, {"type": "number", "minimum": 0.5, "maximum": 1.5},
                                    {"type": "integer", "multipleOf": 15, "maximum": 90, "minimum": 0}])
def test_what_is_held_is_not_told(server, schema):
    jsonschema = pytest.importorskip("jsonschema")
    request = body(schema)
    request["tools"][0]["function"]["parameters"]["required"] = ["n", "odd"]
    for seed in range(6):
        status, headers, text = server.request("POST", "/v1/chat/completions", {**request, "seed": seed})
        assert status == 200 and "Butler-Not-Held" not in headers
        choice = json.loads(text)["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            jsonschema.validate(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["odd"], schema)


def test_names_in_the_head(server):
    """A property's name is the client's: it cannot end the line."""
    schema = {"type": "object", "properties": {"a\r\nX-Evil: 1, %\u00e9": {"not": {}}}}
    if server.form == "qwen3_coder":
        return  # refuses such names
    request = body({})
    request["tools"][0]["function"]["parameters"] = schema
    status, headers, _ = server.request("POST", "/v1/chat/completions", request)
    assert status == 200 and "X-Evil" not in headers and headers["Butler-Not-Held"] == "tools[0]#/properties/a%0D%0AX-Evil:%201%2C%20%25%C3%A9/not"
    request["tools"][0]["function"]["parameters"] = {"type": "object", "properties": {f"p{i}" * 10: {"not": {}} for i in range(90)}}
    status, headers, _ = server.request("POST", "/v1/chat/completions", request)
    assert status == 200 and len(headers["Butler-Not-Held"]) < 1200 and headers["Butler-Not-Held"].endswith("...")


@pytest.mark.parametrize("schema", [{"type": "thing"}, {"type": "array", "uniqueItems": 5}, {"multipleOf": 0}, {"properties": 5}, {"$ref": "#/$defs/none"}])
def test_what_makes_no_sense_is_refused(server, schema):
    assert server.post("/v1/chat/completions", body(schema), expect=400)["error"]["param"] == "tools[0].function.parameters"


@pytest.mark.parametrize("pattern", ["^(" + "|".join(f"word{i}" for i in range(2500)) + ")$", "^((a{0,900}){0,900}){0,900}$", "^" + "a?" * 5000 + "$", "^" + "(" * 100 + "a" + ")*" * 100 + "$",
                                     "^" + "[a-z]|" * 3000 + "$", "^.{0,1000}$", "a" * 30000], ids=lambda pattern: pattern[:12])
def test_large_patterns(server, pattern):
    """Work and memory have bounds; within them a pattern is held."""
    for lengths in ({}, {"maxLength": 200}, {"minLength": 200}):
        begin = time.time()
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "string", "pattern": pattern, **lengths}}}
        status, _, text = server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, "response_format": form})
        assert status == 200 or status == 400 and re.search("response_format|too ambiguous", json.loads(text)["error"]["message"]), text
        assert time.time() - begin < 5
