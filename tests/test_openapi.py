"""docs/openapi.yaml is the server as it is: its endpoints, its fields, and what schemathesis finds between both."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli import N_EMBD, N_VOCAB, PACKAGES, ROOT
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

yaml = pytest.importorskip("yaml")
SPEC = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
SCHEMAS = SPEC["components"]["schemas"]
ALIASES = {path: item["$ref"][8:].replace("~1", "/") for path, item in SPEC["paths"].items() if "$ref" in item}


def source(name):
    return (ROOT / "apps" / "serve" / name).read_text()


def resolve(value):
    return SCHEMAS[value["$ref"].rpartition("/")[2]] if "$ref" in value else value


def property_names(schema):
    """All names that a request of this schema may have, at any depth."""
    schema, names = resolve(schema), set()
    for key in ("allOf", "anyOf", "prefixItems"):
        for part in schema.get(key, []):
            names |= property_names(part)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            names |= property_names(schema[key])
    for name, value in schema.get("properties", {}).items():
        names |= {name} | property_names(value)
    return names


def test_endpoints():
    """The table of routes in api.c, method and what answers it; a path that refers to another has the same."""
    table = source("api.c").replace('{"/v1/models/",', '{"/v1/models/{model}",')
    routes = {path: (method, *rest) for path, method, *rest in re.findall(r'\{"(/[\w/{}-]*)", "(\w+)", (HTTP_\w+), ([^}]+)\}', table)}
    assert len(routes) >= 20 and set(routes) == set(SPEC["paths"])
    for path, item in SPEC["paths"].items():
        if path in ALIASES:
            assert routes[path] == routes[ALIASES[path]]
        else:
            assert [method.upper() for method in item] == [routes[path][0]]


def test_fields():
    """Every field that the server reads is in the file, and the reverse."""
    surfaces = "".join(map(source, ("messages.c", "responses.c", "embeddings.c", "chat.c", "chat_tools.c", "constraint.c", "json.c", "infill.c")))
    reading = source("request.c") + source("api.c")[source("api.c").index("with a body"):] + surfaces
    read = set(re.findall(r'(?:read_number|read_int|serve_read_bool|serve_read_count|json_object_get|json_object_del)\(\w+, "(\w+)"', reading))
    lists = re.findall(r"(?<!_)(?:names|unsupported)\[\] = \{(.*?)\};", reading, re.S)
    read |= set(re.findall(r'"(\w+)"', "".join(lists)))                                               # fields that are refused
    read |= set(re.findall(r'"(\w+)"', re.search(r"read_max_tokens.*?\{(.*?)\};", reading, re.S).group(1)))
    read |= set(re.findall(r'strcmp\(name, "(\w+)"\)', reading))                                        # of "kv"
    written = set().union(*(property_names(SCHEMAS[name]) for name in SCHEMAS if name.endswith("Request")))
    assert len(read) > 80 and read == written


def narrowed():
    """The file for the server of this test: what depends on its model, and what its template makes of a message without a text."""
    spec = json.loads(json.dumps(SPEC))
    schemas = spec["components"]["schemas"]
    schemas["TokenId"]["maximum"] = N_VOCAB - 1
    fields = schemas["SamplingFields"]["properties"]
    schemas["EmbeddingsRequest"]["properties"]["dimensions"] = {"enum": [N_EMBD, None]}
    fields["kv"]["properties"]["policy"] = {"enum": ["quest:budget=16", "verified"]}  # such as can be lossless
    fields["logit_bias"]["anyOf"][1]["propertyNames"]["pattern"] = f"^0{{0,6}}({'|'.join(map(str, range(N_VOCAB)))})$|[^0-9]"
    schemas["CompletionRequest"]["allOf"][-1]["properties"]["suffix"] = {"enum": [None, ""]}  # its model has no tokens for a gap
    schemas["NativeRequest"]["allOf"][-1]["properties"].update({name: {"type": "null"} for name in ("input_prefix", "input_suffix", "input_extra")})
    message = schemas["Messages"]["items"]
    message["anyOf"] = [{"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}}, {"properties": {"tool_calls": {"enum": [None, []]}, "function_call": False}}]
    return spec


@pytest.mark.skipif(not Path(PACKAGES, "schemathesis").is_dir(), reason="the Python package schemathesis is absent (./setup --tests)")
def test_schemathesis(tmp_path):
    """Requests made from the file, right and wrong ones: every answer has a status and a shape of the file, right ones are accepted,
    wrong ones and ones without a key are not. Which maps there are, the file cannot know."""
    (tmp_path / "openapi.json").write_text(json.dumps(narrowed()))
    (tmp_path / "schemathesis.toml").write_text("""
[generation]
allow-x00 = false
[checks]
not_a_server_error.expected-statuses = ["2XX", "3XX", "4XX"]
positive_data_acceptance.expected-statuses = ["2XX", 429]
[[operations]]
include-path = "/v1/models/{model}"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2XX", 404]
[[operations]]
include-path = "/kv/map"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2XX", 400, 404]
[[operations]]
include-path = "/infill"
[operations.checks]
positive_data_acceptance.expected-statuses = [400]
""")
    s = Server("--api-key", "k", "-c", 4096)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", tmp_path / "schemathesis.toml", "run", tmp_path / "openapi.json",
               "--url", f"http://127.0.0.1:{s.port}", "-H", "Authorization: Bearer k", "--phases", "coverage,fuzzing", "--max-examples", "5", "--suppress-health-check", "too_slow",
               "--seed", "1", "--generation-database", "none", "--no-color", "--output-truncate", "false",
               *[word for path in ALIASES for word in ("--exclude-path", path)]]
    result = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=600,
                            env={**os.environ, "PYTHONPATH": str(PACKAGES), "SCHEMATHESIS_HOOKS": str(ROOT / "tests" / "openapi_hooks.py")})
    assert s.stop() == 0
    cases = re.search(r"(\d+) generated", result.stdout)
    assert result.returncode == 0 and cases and int(cases.group(1)) > 1000, result.stdout[-6000:] + result.stderr[-2000:]
