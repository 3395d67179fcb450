"""JSON schemas: answers under them, from a small model that draws nearly at random, are accepted by an independent validator."""
import json
import os
import random
import time

import pytest

from cli import FAILED, ROOT, USAGE, refuses, rows
from test_serve import Server, pytestmark  # noqa: F401  (skips without libevent)

MODEL = str(ROOT / "models" / "butler-default.gguf")  # has bytes as tokens: every text can be written
N_SCHEMAS = int(os.environ.get("N_SCHEMAS", 120))  # random ones; 1,000 take 20 s


@pytest.fixture(scope="module")
def server():
    s = Server(model=MODEL)
    yield s
    assert s.stop() == 0


def number(draw):
    schema = {"type": draw.choice(["integer", "number", "integer"])}
    if schema["type"] == "integer" and draw.random() < 0.7:
        low = draw.randint(-1500, 1500)
        schema |= draw.choice([{"minimum": low}, {"maximum": low}, {"minimum": low, "maximum": low + draw.randint(0, 2000)},
                               {"exclusiveMinimum": low, "exclusiveMaximum": low + draw.randint(2, 90)}])
    return schema


def string(draw):
    return draw.choice([
        {"type": "string", "maxLength": draw.randint(0, 12)},
        {"type": "string", "minLength": 2, "maxLength": 5},
        {"type": "string", "pattern": draw.choice(["^[a-c]{2,4}$", "^(x|yz)+-[0-9]{3}$", "^[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9})?$"])},
        {"type": "string", "format": draw.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "hostname", "email", "uri", "duration"])},
    ])


def schema_of(draw, depth):
    """A random schema; its texts are short."""
    kind = draw.choice(["number", "string", "enum", "const", "bool", "null"] + 3 * ["object", "array", "any"] * (depth > 0))
    if kind == "number":
        return number(draw)
    if kind == "string":
        return string(draw)
    if kind == "enum":
        return {"enum": draw.sample(["red", "green", 1, 2.5, None, True, [1, "a"], {"k": 0}], draw.randint(1, 4))}
    if kind == "const":
        return {"const": draw.choice(["a\"b\\n", 7, [], {}])}
    if kind in ("bool", "null"):
        return {"type": {"bool": "boolean"}.get(kind, kind)}
    if kind == "any":
        return {draw.choice(["anyOf", "oneOf"]): [{"type": "null"}, {"type": "boolean"}]} if draw.random() < 0.3 else \
            {"anyOf": [schema_of(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    if kind == "array":
        schema = {"type": "array", "items": schema_of(draw, depth - 1), "maxItems": draw.randint(0, 4)}
        if schema["maxItems"] > 1 and draw.random() < 0.5:
            schema["minItems"] = draw.randint(0, 2)
        return schema
    names = draw.sample(["name", "b", "c d", "\u00fc", "x\"y"], draw.randint(0, 4))
    return {"type": "object", "properties": {name: schema_of(draw, depth - 1) for name in names},
            "required": [name for name in names if draw.random() < 0.6], "additionalProperties": False}


def complete(server, schema, seed, temperature=1.3):
    body = {"prompt": "JSON:", "n_predict": 400, "temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed, "json_schema": schema}
    return server.post("/completion", body)


def test_answers_are_valid(server):
    jsonschema = pytest.importorskip("jsonschema")
    n_complete = 0
    for i in range(N_SCHEMAS):
        schema = schema_of(random.Random(i), 3)
        answer = complete(server, schema, i)
        if answer["stop_type"] == "limit":  # a beginning
            continue
        n_complete += 1
        try:
            jsonschema.validate(json.loads(answer["content"]), schema)
        except (jsonschema.ValidationError, ValueError) as error:
            pytest.fail(f"{i}: {json.dumps(schema)}\n{answer['content']}\n{error}")
    assert n_complete > 0.9 * N_SCHEMAS


def test_references_and_merged_schemas(server):
    jsonschema = pytest.importorskip("jsonschema")
    node = {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
                                             "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"], "additionalProperties": False}
    merged = {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                        {"properties": {"a": {"maximum": 5}, "b": {"type": "boolean"}}, "required": ["b"]}]}
    for schema in ({"$defs": {"node": node}, "$ref": "#/$defs/node"}, {"$defs": {"node": node, "a b<c>/~": node}, "$ref": "#/$defs/a%20b%3cc%3E~1~0"}, merged):
        for seed in range(8):
            answer = complete(server, schema, seed)
            if answer["stop_type"] != "limit":
                jsonschema.validate(json.loads(answer["content"]), schema)


def test_every_value_is_reached(server):
    """Of a schema with few texts all are drawn."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}, "b": {"type": "boolean"}}, "additionalProperties": False}
    seen = {json.dumps(json.loads(complete(server, schema, seed, 50)["content"])) for seed in range(150)}
    assert len(seen) == 9  # a: 1, "x" or none; b: true, false or none


COLOUR = {"enum": ["red", "green"]}


@pytest.mark.parametrize("path, body, text_of", [
    ("/v1/completions", {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}}},
     lambda answer: answer["choices"][0]["text"]),
    ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "c", "schema": COLOUR}}},
     lambda answer: answer["output"][0]["content"][0]["text"]),
])
def test_fields_of_other_interfaces(server, path, body, text_of):
    answer = server.post(path, {**body, "max_tokens": 40, "max_output_tokens": 40})
    assert json.loads(text_of(answer)) in COLOUR["enum"]


@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}, "json_schema": COLOUR}, {"grammar": 'root ::= "a"', "json_schema": COLOUR},
                                    {"grammar": 5}, {"response_format": {"type": "json_schema", "json_schema": {}}}])
def test_fields_that_exclude_each_other_or_are_none(server, fields):
    server.post("/v1/completions", {"prompt": "x", **fields}, expect=400)


BAD = [({"not": {}}, "not"), ({"type": "thing"}, "type"), ({"properties": {"x": {"type": "string", "pattern": "(?=a)"}}}, "#/properties/x"),
       ({"$ref": "#/$defs/a"}, "$ref"), ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "$ref"),
       ({"type": "string", "minLength": -1}, "minLength"), ({"type": "array", "maxItems": 10**9}, "maxItems")]


@pytest.mark.parametrize("schema, word", BAD)
def test_what_is_refused(server, schema, word):
    begin = time.time()
    answer = server.post("/completion", {"prompt": "x", "json_schema": schema}, expect=400)
    assert word in answer["error"]["message"] and time.time() - begin < 1
    refuses(FAILED, "run", "-m", MODEL, "-p", "x", "--json-schema", json.dumps(schema), says=["--json-schema", word])


NEXT = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}, "required": ["v", "next"]}
ENDLESS = [({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, "'#'"), ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "'#'"),
           ({"$defs": {"n": NEXT}, "properties": {"list": {"$ref": "#/$defs/n"}}, "required": ["list"]}, "'#/$defs/n'"),
           ({"$defs": {"n": NEXT}, "type": "array", "minItems": 2, "prefixItems": [{"$ref": "#/$defs/n"}]}, "'#/$defs/n'")]


@pytest.mark.parametrize("schema, word", ENDLESS)
def test_a_schema_that_requires_itself(server, schema, word):
    error = server.post("/completion", {"prompt": "x", "json_schema": schema}, expect=400)["error"]["message"]
    assert word in error and ("requires itself" in error or "cyclic" in error)


@pytest.mark.parametrize("schema", [
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, {"$defs": {"n": NEXT}, "properties": {"list": {"$ref": "#/$defs/n"}}},
    {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
    {"type": "object", "properties": {"next": {"type": ["null", "array"], "minItems": 1, "items": {"$ref": "#"}}}, "required": ["next"]}])
def test_a_schema_that_may_contain_itself(server, schema):
    jsonschema = pytest.importorskip("jsonschema")
    ended = 0
    for seed in range(6):
        answer = complete(server, schema, seed)
        if answer["stop_type"] != "limit":
            jsonschema.validate(json.loads(answer["content"]), schema)
            ended += 1
    assert ended > 0


def test_values_with_shared_beginnings(server):
    """Every value of an enumeration is drawn, whatever it begins with, and nothing else."""
    values = [1, 12, 123, -1, True, None, "a", "ab", "abc", "\u00e9", "\u00e9t", "\u00ea", 'a"', "a\\", "", {"a": 1}, [1], [1, 2]]
    seen = {json.dumps(json.loads(complete(server, {"enum": values + values[:3]}, seed, 60)["content"])) for seed in range(400)}
    assert seen == {json.dumps(value) for value in values}


def test_many_values(server):
    values = [f"word{i * 7919 % 100003}" for i in range(20000)]
    begin = time.time()
    for seed in range(5):
        assert json.loads(complete(server, {"enum": values}, seed)["content"]) in values
    assert time.time() - begin < 30
    chain = ["a" * n for n in range(1, 200)]  # each is the beginning of the next
    assert json.loads(complete(server, {"enum": chain}, 1)["content"]) in chain


def test_hostile_schemas_end_soon(server):
    nested = {"type": "integer"}
    for _ in range(400):
        nested = {"type": "array", "items": nested}
    wide = {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"} for j in range(40)}} for i in range(200)]}
    product = {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {"type": "integer"}}} for j in range(6)]} for i in range(12)]}
    for schema in (nested, wide, product, {"type": "string", "maxLength": 60000}):
        begin = time.time()
        status, _, text = server.request("POST", "/completion", json.dumps({"prompt": "x", "n_predict": 2, "json_schema": schema}))
        assert status in (200, 400) and time.time() - begin < 3, text


def test_the_flag(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"enum": ["yes", "no"]}))
    for source in (path, '{"enum": ["yes", "no"]}'):
        row = rows("run", "-m", MODEL, "-p", "x", "-n", 20, "--temp", 0, "--json-schema", source)[-1]
        assert json.loads(row["text"]) in ("yes", "no")
    refuses(USAGE, "run", "-m", MODEL, "-p", "x", "--json-schema", "{}", "--grammar", path, says=["--grammar"])
    path.write_text("{")
    refuses(FAILED, "run", "-m", MODEL, "-p", "x", "--json-schema", path, says=["not JSON", path])
    refuses(FAILED, "run", "-m", MODEL, "-p", "x", "--json-schema", tmp_path / "none", says=["none"])
